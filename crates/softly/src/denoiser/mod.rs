//! The one currency: a denoiser maps a noisy field and its noise level to an estimate of the clean field.

pub mod ddpm;
pub mod edm;
pub mod external;

use burn::tensor::Tensor;

use crate::nn::parameter::Parameters;
use crate::noise::Noise;

/// D(x; σ) ≈ E[x0 | x0 + σ·noise = x].
pub trait Denoiser: Parameters + Send + Sync {
    /// The estimate of the clean fields behind `x` `[N, C, H, W]`, of the same shape; one σ per sample.
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4>;

    /// u(σ), the learned log-variance of the denoising error at each noise level, `[N]`, if there is one.
    fn log_variance(&self, _sigma: &[f64]) -> Option<Tensor<1>> {
        None
    }

    /// The noise that it removes. Samplers start from it, and measures add it to data; a denoiser around another one hands on the
    /// other's.
    fn noise(&self) -> Noise {
        Noise::White
    }
}

/// Estimates of the clean field that a loss compares with it, `[N, C, H, W]` each.
pub struct Estimates {
    /// D(x; σ).
    pub estimate: Tensor<4>,
    /// D₀(x; σ), the estimate of the denoiser below a soft constraint, if there is one.
    pub base: Option<Tensor<4>>,
}

impl Estimates {
    /// The estimate of a denoiser without a soft constraint.
    pub fn plain(estimate: Tensor<4>) -> Self {
        Self { estimate, base: None }
    }
}
