//! Kalman's update by sensors and equation at every noise level ([`Observed`]), and two samplers that use it.
//!
//! *Jumps* draw x0 from the Gaussian that the update stands for and put the noise of the next level on it: x ← x0 + σ' z. The *flow* is the
//! ordinary solver with the updated estimate for a denoiser. Between Gaussians both are exact. Where linearisation was wrong at high
//! noise, a jump forgets it, while the flow has to live with it.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::at_least_one;
use crate::error::Result;
use crate::observe::conditioning::{Condition, Given, Knowledge, Needs};
use crate::observe::observed::Observed;
use crate::sampler::{Observer, Sampler, Target};

/// Kalman's update by sensors and equation at every noise level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Kalman {
    /// Whether the equation, if the run has one, counts besides the sensors.
    pub equation: bool,
    /// How often sensors and equation are linearised at each noise level.
    pub linearisations: usize,
    /// Whether samples jump from level to level, one network call and fresh noise per step, instead of following the flow.
    pub jumps: bool,
}

impl Default for Kalman {
    fn default() -> Self {
        Self { equation: true, linearisations: 1, jumps: true }
    }
}

impl Condition for Kalman {
    fn check(&self) -> Result<()> {
        at_least_one("conditioning.linearisations", self.linearisations as u64)
    }

    fn needs(&self) -> Needs {
        Needs { errors: true, ..Needs::default() }
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let Knowledge { errors: Some(errors), .. } = given.knowledge else { unreachable!("errors were asked for") };
        let constraint = given.constraint.filter(|_| self.equation);
        let observed = Observed::new(given.denoiser, given.observations, constraint, errors, self.linearisations);
        if self.jumps {
            return observed.jumps(sampler, latents, noise, observer);
        }
        sampler.sample_from(latents, Target::plain(&observed, given.shape), noise, observer)
    }
}
