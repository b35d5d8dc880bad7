//! DPM-Solver++ (2M): D is extrapolated to the middle of the step from the last two estimates.

use burn::tensor::Tensor;

use crate::sampler::Sampler;
use crate::sampler::solver::multistep::{Known, Leap};
use crate::sampler::solver::{Solver, Step};

/// One denoiser call per step, second order.
pub struct Dpm2m {
    before: Option<Known>,
}

impl Dpm2m {
    /// The solver before its first step.
    pub fn new(_: &Sampler) -> Self {
        Self { before: None }
    }
}

impl Solver for Dpm2m {
    fn step(&mut self, step: Step<'_>) -> Tensor<4> {
        if step.next == 0.0 {
            return step.estimate;
        }
        let leap = Leap::of(&step);
        let middle = match self.before.take() {
            Some((lambda, before)) => {
                let half = 0.5 * leap.length / (leap.from - lambda);
                step.estimate.clone() * (1.0 + half) - before * half
            }
            None => step.estimate.clone(),
        };
        self.before = Some((leap.from, step.estimate));
        let mean = step.state * leap.decay() + middle * (1.0 - leap.decay());
        leap.end(mean, step.noise)
    }

    fn is_multistep(&self) -> bool {
        true
    }
}
