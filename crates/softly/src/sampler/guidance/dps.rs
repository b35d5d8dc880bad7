//! Diffusion posterior sampling: after each step x ← x − scale·∇ₓ‖R(D(x; σ))‖ at the step's start, through the network.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::sampler::guidance::{Guidance, Moment};

/// Diffusion posterior sampling.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dps {
    /// Size of the guidance step.
    pub scale: f64,
}

impl Guidance for Dps {
    fn check(&self) -> Result<()> {
        if self.scale.is_finite() && self.scale >= 0.0 {
            return Ok(());
        }
        Err(Error::input("sampler.guidance.scale", format!("expected a number ≥ 0, found {}", self.scale)))
    }

    fn guide(&self, at: Moment<'_>) -> (Tensor<4>, Option<Tensor<4>>) {
        let Moment { denoiser, constraint, state, sigma, .. } = at;
        let sigma = vec![sigma; state.dims()[0]];
        if self.scale == 0.0 {
            return (denoiser.denoise(state, &sigma), None);
        }
        let x = state.autodiff().require_grad();
        let denoised = denoiser.denoise(x.clone(), &sigma);
        // Summed over samples: each sample's gradient involves its own norm only.
        let mut gradients = constraint.norm(denoised.clone()).sum().backward();
        let push = x.grad_remove(&mut gradients).map(|g| g * self.scale);
        (denoised.without_autodiff(), push)
    }
}
