//! The gradient of log l_c seen through the data's own posterior covariance.
//!
//! Proposition 1 multiplies ∇log l_c with the covariance of x0 given x, which the paper replaces by a multiple of the
//! identity. For Gaussian data that is stationary enough to be diagonal in a fast basis it is S σ²/(S + σ²) there, S the
//! variance of each coefficient: what the data never do, the correction does not do either.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};

use crate::constraint::SoftConstraint;
use crate::denoiser::{Precondition, per_sample};
use crate::fast_basis::Basis;

/// v = c_out · u / rms(u) with u = C_σ ∇log l_c(D) and C_σ = S σ²/(S + σ²) in a fast basis.
pub struct SpectralDirection {
    constraint: Arc<SoftConstraint>,
    basis: Basis,
    /// S, `[C, H, W]`.
    spectrum: Vec<f32>,
    stop_gradient: bool,
}

impl SpectralDirection {
    /// The direction of `constraint` for data whose coefficients in `basis` have the variances `spectrum` `[C, H, W]`,
    /// see [`data_spectrum`](crate::fast_basis::data_spectrum).
    pub fn new(constraint: Arc<SoftConstraint>, basis: Basis, spectrum: Vec<f32>, stop_gradient: bool) -> Self {
        Self { constraint, basis, spectrum, stop_gradient }
    }

    /// v at the base estimate `[N, C, H, W]`, of the same shape. It is zero where the residual is.
    pub fn at(&self, base: &Tensor<4>, sigma: &[f64], at: &[Precondition]) -> Tensor<4> {
        let (_, gradient) = self.constraint.norm_and_gradient(base);
        let gradient = if self.stop_gradient { gradient.detach() } else { gradient };
        let [n, c, h, w] = gradient.dims();
        let transform = self.basis.transform(base);
        let data = TensorData::new(self.spectrum.clone(), [1, c, h, w]);
        let spectrum: Tensor<4> = Tensor::from_data(data, (&base.device().without_autodiff(), base.dtype()));
        let noise = per_sample(sigma.iter().map(|s| s * s), base);
        // Smallest first: S/(S + σ²) is at most 1, so nothing overflows at any noise.
        let covariance = spectrum.clone() / (spectrum + noise.clone()) * noise;
        let smoothed = transform.fields(transform.coefficients(gradient) * covariance);
        let squares = smoothed.clone() * smoothed.clone();
        let mean_square = squares.reshape([n, c * h * w]).mean_dim(1).reshape([n, 1, 1, 1]);
        // Small enough never to matter, large enough that its inverse is finite in f32.
        let rms = mean_square.clamp_min(1e-20).sqrt();
        smoothed * (per_sample(at.iter().map(|a| a.out), base) / rms)
    }
}
