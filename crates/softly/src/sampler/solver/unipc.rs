//! UniPC: a step with the parabola through three estimates, corrected with a cubic once the estimate at its end is known.
//!
//! The correction is free: the estimate at the predicted state is what the next step begins with.

use burn::tensor::Tensor;

use crate::sampler::Sampler;
use crate::sampler::solver::multistep::{Known, Leap};
use crate::sampler::solver::{Solver, Step};

/// Estimates of the prediction; the correction has one more.
const ORDER: usize = 3;

/// One denoiser call per step, fourth order.
pub struct UniPc {
    /// Estimates, latest first.
    known: Vec<Known>,
    predicted: Option<Prediction>,
}

/// The last step as it was predicted.
struct Prediction {
    leap: Leap,
    /// Where it began, `[N, C, H, W]`.
    state: Tensor<4>,
    /// Where it ended, without noise, `[N, C, H, W]`.
    mean: Tensor<4>,
}

impl UniPc {
    /// The solver before its first step.
    pub fn new(_: &Sampler) -> Self {
        Self { known: Vec::new(), predicted: None }
    }
}

impl Solver for UniPc {
    fn step(&mut self, step: Step<'_>) -> Tensor<4> {
        if step.next == 0.0 {
            return step.estimate;
        }
        let leap = Leap::of(&step);
        self.known.insert(0, (leap.from, step.estimate));
        let state = match self.predicted.take() {
            // As a difference: noise and guidance since the prediction stay.
            Some(Prediction { leap, state, mean }) => step.state + (leap.mean(state, &self.known) - mean),
            None => step.state,
        };
        self.known.truncate(ORDER);
        let mean = leap.mean(state.clone(), &self.known);
        self.predicted = Some(Prediction { leap, state, mean: mean.clone() });
        leap.end(mean, step.noise)
    }

    fn is_multistep(&self) -> bool {
        true
    }
}
