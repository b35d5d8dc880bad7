//! Denoisers that are formulas.

use burn::tensor::Tensor;
use softly::tensors::{field_batch, per_sample, to_vec_f64};
use softly::{Denoiser, Parameters, Visitor};

use crate::common::POINT;

/// Declares that nothing of a type is learned.
macro_rules! without_parameters {
    ($($name:ident),+) => {$(
        impl softly::Parameters for $name {
            fn visit(&mut self, _: &str, _: &mut softly::Visitor<'_>) {}
        }
    )+};
}
pub(crate) use without_parameters;

/// D(x) = x: its error is the noise.
pub struct Identity;

/// The best denoiser of data N(0, variance) in tensor operations, so that autodiff passes through it: D = k(σ) x.
pub struct Shrink {
    pub variance: f64,
}

without_parameters!(Identity, Shrink);

impl Denoiser for Identity {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        x
    }
}

impl Shrink {
    /// k(σ).
    pub fn factor(&self, sigma: f64) -> f64 {
        self.variance / (self.variance + sigma * sigma)
    }
}

impl Denoiser for Shrink {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        x.clone() * per_sample(sigma.iter().map(|&s| self.factor(s)), &x)
    }
}

/// A denoiser of points in closed form, one at a time in f64.
pub struct Closed<F>(pub F);

impl<F> Parameters for Closed<F> {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl<F: Fn([f64; 2], f64) -> [f64; 2] + Send + Sync> Denoiser for Closed<F> {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let device = x.device();
        let points = to_vec_f64(x);
        let denoised = points.chunks_exact(2).zip(sigma).flat_map(|(p, &s)| (self.0)([p[0], p[1]], s));
        field_batch(denoised.collect(), POINT, &device)
    }
}

/// A mixture of three round Gaussians in the plane.
pub struct Mixture {
    pub weights: [f64; 3],
    pub means: [[f64; 2]; 3],
    pub variances: [f64; 3],
}

impl Mixture {
    /// Σ_k p_k(x) (σ² μ_k + v_k x)/(v_k + σ²), p_k the posterior of mode k.
    pub fn denoise(&self, x: [f64; 2], sigma: f64) -> [f64; 2] {
        let Self { weights, means, variances } = self;
        // In logarithms: far from every mode all densities underflow.
        let total = |k: usize| variances[k] + sigma * sigma;
        let distance2 = |k: usize| (x[0] - means[k][0]).powi(2) + (x[1] - means[k][1]).powi(2);
        let logs = [0, 1, 2].map(|k| weights[k].ln() - total(k).ln() - 0.5 * distance2(k) / total(k));
        let largest = logs.iter().copied().fold(f64::MIN, f64::max);
        let posterior = logs.map(|l| (l - largest).exp());
        let sum: f64 = posterior.iter().sum();
        [0, 1].map(|i| {
            let mode = |k: usize| (sigma * sigma * means[k][i] + variances[k] * x[i]) / total(k);
            (0..3).map(|k| posterior[k] / sum * mode(k)).sum()
        })
    }
}
