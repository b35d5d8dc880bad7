//! DDPM's ancestral steps over the levels of its cosine schedule, in the scaling x = x0 + σ·noise.

use burn::tensor::Tensor;

use crate::denoiser::ddpm::CosineSchedule;
use crate::sampler::Sampler;
use crate::sampler::sigma_grid::SigmaGrid;
use crate::sampler::solver::{Solver, Step};

/// One denoiser call and fresh noise of variance β per step.
pub struct Ancestral {
    schedule: CosineSchedule,
    steps: usize,
}

impl Ancestral {
    /// The solver over all `steps` levels of the cosine schedule.
    pub fn new(&Sampler { steps, .. }: &Sampler) -> Self {
        Self { schedule: CosineSchedule::new(steps), steps }
    }
}

impl Solver for Ancestral {
    fn levels(&self, _grid: &SigmaGrid) -> Vec<f64> {
        (0..self.steps).rev().map(|t| self.schedule.sigma(t)).chain([0.0]).collect()
    }

    fn start(&self, latents: Tensor<4>, sigma: f64) -> Tensor<4> {
        // DDPM starts from a standard normal x_T, which is our x divided by √(1+σ²).
        latents * (1.0 + sigma * sigma).sqrt()
    }

    fn step(&mut self, Step { index, state, estimate, noise, .. }: Step<'_>) -> Tensor<4> {
        let (schedule, t) = (&self.schedule, self.steps - 1 - index);
        let (beta, alpha_bar, before) = (schedule.beta[t], schedule.alpha_bar[t], schedule.alpha_bar_before(t));
        let weight_estimate = before.sqrt() * beta / (1.0 - alpha_bar);
        let weight_state = (1.0 - beta).sqrt() * (1.0 - before) / (1.0 - alpha_bar);
        let mean = estimate * weight_estimate + state * (alpha_bar.sqrt() * weight_state);
        let next = if t == 0 { mean } else { mean + noise() * beta.sqrt() };
        next / before.sqrt()
    }
}
