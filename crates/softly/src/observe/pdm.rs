//! PDM, projected diffusion: annealed Langevin steps x ← P(x + ½ η s + √η z), every one of them followed by a projection of the noisy state.
//!
//! s = (D − x)/σ² is the score. η = r σ², with r = 0.6 as published (1.5e-5 at the lowest of ten levels from 10 to 0.005, 25 steps at each).
//! P is the Gauss–Newton step of sensors and equation of [`crate::observe::projection`]; readings are taken for exact.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::{at_least_one, positive};
use crate::error::Result;
use crate::observe::conditioning::{Condition, Given};
use crate::observe::projection::Projection;
use crate::sampler::{Observer, Sampler};

/// Projected annealed Langevin dynamics.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pdm {
    /// Langevin steps at each level, each a network call.
    pub langevin_steps: usize,
    /// r, the length η of a step over σ².
    pub rate: f64,
    /// Whether the equation counts besides the sensors.
    pub equation: bool,
    /// Iterations of the projection's solver.
    pub iterations: usize,
}

impl Default for Pdm {
    fn default() -> Self {
        Self { langevin_steps: 25, rate: 0.6, equation: true, iterations: 50 }
    }
}

impl Condition for Pdm {
    fn check(&self) -> Result<()> {
        at_least_one("conditioning.langevin_steps", self.langevin_steps as u64)?;
        at_least_one("conditioning.iterations", self.iterations as u64)?;
        positive("conditioning.rate", self.rate)
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let onto = Projection::new(given, self.equation, self.iterations);
        let levels = sampler.levels();
        let steps = levels.len() - 1;
        let n = latents.dims()[0];
        let mut x = latents * levels[0];
        for (i, &sigma) in levels[..steps].iter().enumerate() {
            let mut estimate = x.clone();
            for _ in 0..self.langevin_steps {
                estimate = given.denoiser.denoise(x.clone(), &vec![sigma; n]).without_autodiff();
                // ½ η s = ½ r (D − x), √η = √r σ.
                let drift = (estimate.clone() - x.clone()) * (0.5 * self.rate);
                x = onto.step(x + drift + noise() * (self.rate.sqrt() * sigma));
            }
            observer.step(i + 1, steps, sigma, &estimate, &x);
            if observer.stopped() {
                break;
            }
        }
        x
    }
}
