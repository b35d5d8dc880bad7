//! EDM's denoiser: D(x; σ) = c_skip x + c_out F(c_in x; c_noise) around a network F.

use burn::tensor::{DType, Tensor};

use crate::denoiser::Denoiser;
use crate::nn::backbone::Backbone;
use crate::nn::lanes::side_by_side;
use crate::nn::parameter::{Parameters, Visitor};
use crate::noise::Noise;
use crate::tensors::per_sample;

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
    noise: Noise,
    side_by_side: bool,
    /// Whether training changes the weights.
    trains: bool,
}

impl Edm {
    /// Wraps `backbone` for data of standard deviation `sigma_data` in white noise.
    pub fn new(backbone: Box<dyn Backbone>, sigma_data: f64) -> Self {
        Self { backbone, sigma_data, noise: Noise::White, side_by_side: false, trains: true }
    }

    /// The same for data in another noise of unit variance, under which the preconditioning is as good.
    #[must_use]
    pub fn with_noise(self, noise: Noise) -> Self {
        Self { noise, ..self }
    }

    /// Runs parts of a batch side by side, one per thread; a sample's result does not depend on its batch. Gradients of weights,
    /// sums over a batch, would depend on its parts: weights under training see the whole of it.
    #[must_use]
    pub fn side_by_side(self, side_by_side: bool) -> Self {
        Self { side_by_side, ..self }
    }

    /// F `[N, C, H, W]` of scaled fields, one noise input per sample.
    fn forward(&self, x: Tensor<4>, noise: &[f64]) -> Tensor<4> {
        let n = noise.len();
        let parts = if self.side_by_side && !self.trains { rayon::current_num_threads().min(n) } else { 1 };
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
        let mut trains = false;
        self.backbone.visit(prefix, &mut |name, parameter| {
            visit(name, parameter);
            trains |= parameter.tracked();
        });
        self.trains = trains;
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

    fn noise(&self) -> Noise {
        self.noise.clone()
    }
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
