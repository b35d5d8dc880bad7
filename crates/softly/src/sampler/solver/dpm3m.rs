//! DPM-Solver++ (3M): D is the parabola through the last three estimates, integrated exactly.

use burn::tensor::Tensor;

use crate::sampler::Sampler;
use crate::sampler::solver::multistep::{Known, Leap};
use crate::sampler::solver::{Solver, Step};

/// Estimates of a rule.
const ORDER: usize = 3;

/// One denoiser call per step, third order.
pub struct Dpm3m {
    /// Estimates, latest first.
    known: Vec<Known>,
}

impl Dpm3m {
    /// The solver before its first step.
    pub fn new(_: &Sampler) -> Self {
        Self { known: Vec::new() }
    }
}

impl Solver for Dpm3m {
    fn step(&mut self, step: Step<'_>) -> Tensor<4> {
        if step.next == 0.0 {
            return step.estimate;
        }
        let leap = Leap::of(&step);
        self.known.insert(0, (leap.from, step.estimate));
        self.known.truncate(ORDER);
        leap.end(leap.mean(step.state, &self.known), step.noise)
    }

    fn is_multistep(&self) -> bool {
        true
    }
}
