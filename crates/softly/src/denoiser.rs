//! The one currency: a denoiser maps a noisy field and its noise level to an estimate of the clean field.

use burn::tensor::{DType, Tensor, TensorData};

use crate::dataset::Dataset;
use crate::parameter::{Parameters, Visitor};
use crate::side_by_side::side_by_side;
use crate::units::Units;

/// Estimates the clean field behind a noisy one.
pub trait Denoiser: Parameters + Send + Sync {
    /// D(x; σ) ≈ E[x0 | x0 + σ·noise = x]. `x` is `[N, C, H, W]` with one σ per sample; so is the result.
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4>;

    /// The same, and what a soft constraint is made of if there is one.
    fn estimates(&self, x: Tensor<4>, sigma: &[f64]) -> Estimates {
        Estimates { estimate: self.denoise(x, sigma), base: None, unweighted: None }
    }

    /// An estimate `[N, C, H, W]` moved onto the constraint, if the model is asked for that; samplers do it in their last steps.
    fn project(&self, estimate: Tensor<4>) -> Tensor<4> {
        estimate
    }

    /// Visits the parameters below a soft constraint: all, if there is none. Names are those of a visit without prefix.
    fn visit_base(&mut self, visit: &mut Visitor<'_>) {
        self.visit("", visit);
    }

    /// The weights of the soft constraint's directions at (x, σ), `[N, directions × outputs]`, if there is one.
    fn gamma(&self, _x: Tensor<4>, _sigma: &[f64]) -> Option<Tensor<2>> {
        None
    }

    /// Measures on the training data, which `units` normalise, what the denoiser has to know of them before it is trained.
    fn measure(&mut self, _dataset: &Dataset, _units: &Units) {}

    /// Measures again what depends on learned parameters of a constraint, after they have changed.
    fn update(&mut self) {}

    /// u(σ), the learned log-variance of the denoising error at each noise level, `[N]`, if there is one.
    fn log_variance(&self, _sigma: &[f64]) -> Option<Tensor<1>> {
        None
    }
}

/// Estimates of the clean field, `[N, C, H, W]` each.
pub struct Estimates {
    /// D(x; σ).
    pub estimate: Tensor<4>,
    /// That of the denoiser below a soft constraint.
    pub base: Option<Tensor<4>>,
    /// That corrected without a learned weight, from which learned parameters of the constraint are learned.
    pub unweighted: Option<Tensor<4>>,
}

impl Estimates {
    /// That of the denoiser below a soft constraint, or of the denoiser itself if it has none.
    pub fn into_base(self) -> Tensor<4> {
        self.base.unwrap_or(self.estimate)
    }
}

/// A network in f32: features of the noise level and a scaled noisy field in, a field out.
pub trait Backbone: Parameters + Send + Sync {
    /// F(x, c): `x` is `[N, C, H, W]`, `noise` one number per sample (EDM's c_noise, or a level's index).
    fn forward(&self, x: Tensor<4>, noise: &[f64]) -> Tensor<4>;

    /// u(c), the learned log-variance of the denoising error at each noise level, `[N]`, if the network has it.
    fn log_variance(&self, _noise: &[f64]) -> Option<Tensor<1>> {
        None
    }
}

/// EDM's preconditioning at one noise level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precondition {
    /// Weight of the input in the output: σd²/(σ²+σd²).
    pub skip: f64,
    /// Weight of the network in the output: σ σd/√(σ²+σd²).
    pub out: f64,
    /// Scale of the network's input: 1/√(σ²+σd²).
    pub input: f64,
    /// The network's noise input: ln(σ)/4.
    pub noise: f64,
}

impl Precondition {
    /// The coefficients at `sigma` for data of standard deviation `sigma_data`.
    pub fn new(sigma: f64, sigma_data: f64) -> Self {
        let total = sigma.hypot(sigma_data);
        Self {
            skip: (sigma_data / total).powi(2),
            out: sigma * sigma_data / total,
            input: 1.0 / total,
            noise: sigma.ln() / 4.0,
        }
    }
}

/// EDM's denoiser around a backbone: D(x; σ) = c_skip x + c_out F(c_in x; c_noise).
pub struct Edm {
    backbone: Box<dyn Backbone>,
    sigma_data: f64,
    side_by_side: bool,
}

impl Edm {
    /// Wraps `backbone` for data of standard deviation `sigma_data`.
    pub fn new(backbone: Box<dyn Backbone>, sigma_data: f64) -> Self {
        Self { backbone, sigma_data, side_by_side: false }
    }

    /// Runs parts of a batch side by side, one per thread; a sample's result does not depend on its batch.
    #[must_use]
    pub fn side_by_side(self, side_by_side: bool) -> Self {
        Self { side_by_side, ..self }
    }

    /// F `[N, C, H, W]` of scaled fields, one noise input per sample.
    fn forward(&self, x: Tensor<4>, noise: &[f64]) -> Tensor<4> {
        let n = noise.len();
        let parts = if self.side_by_side { rayon::current_num_threads().min(n) } else { 1 };
        if parts < 2 {
            return self.backbone.forward(x, noise);
        }
        let part = |i: usize| {
            let [first, last] = [i, i + 1].map(|i| i * n / parts);
            self.backbone.forward(x.clone().narrow(0, first, last - first), &noise[first..last])
        };
        Tensor::cat(side_by_side((0..parts).collect(), part), 0)
    }
}

impl Parameters for Edm {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        self.backbone.visit(prefix, visit);
    }
}

impl Denoiser for Edm {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let at: Vec<Precondition> = sigma.iter().map(|&s| Precondition::new(s, self.sigma_data)).collect();
        let noise: Vec<f64> = at.iter().map(|c| c.noise).collect();
        let scaled = x.clone() * per_sample(at.iter().map(|c| c.input), &x);
        // The network works in f32; the state may be f64 (sampling) and keeps its precision around it.
        let output = self.forward(scaled.cast(DType::F32), &noise).cast(x.dtype());
        x.clone() * per_sample(at.iter().map(|c| c.skip), &x) + output * per_sample(at.iter().map(|c| c.out), &x)
    }

    fn log_variance(&self, sigma: &[f64]) -> Option<Tensor<1>> {
        let noise: Vec<f64> = sigma.iter().map(|&s| Precondition::new(s, self.sigma_data).noise).collect();
        self.backbone.log_variance(&noise)
    }
}

/// One number per sample as `[N, 1, 1, 1]`, a constant of the same type and device as `like`.
pub fn per_sample(values: impl Iterator<Item = f64>, like: &Tensor<4>) -> Tensor<4> {
    let values: Vec<f64> = values.collect();
    let n = values.len();
    let device = like.device().without_autodiff();
    Tensor::from_data(TensorData::new(values, [n, 1, 1, 1]), (&device, like.dtype()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_precondition_keeps_unit_variance() {
        for sigma in [0.002, 0.1, 0.5, 3.0, 80.0] {
            let c = Precondition::new(sigma, 0.5);
            let total = sigma * sigma + 0.25;
            assert!((c.input * c.input * total - 1.0).abs() < 1e-12);
            // The effective target of the network, (x0 − c_skip x)/c_out, has unit variance.
            let target = (1.0 - c.skip).powi(2) * 0.25 + (c.skip * sigma).powi(2);
            assert!((target / (c.out * c.out) - 1.0).abs() < 1e-12);
        }
    }
}
