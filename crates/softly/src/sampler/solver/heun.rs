//! Heun's steps (EDM, Algorithm 1): an Euler step, then one with the mean of the slopes at both ends.

use burn::tensor::Tensor;

use crate::sampler::Sampler;
use crate::sampler::solver::{Solver, Step};

/// Two denoiser calls per step, one in the last; second order.
pub struct Heun;

impl Heun {
    /// The solver; it needs no memory of its steps.
    pub fn new(_: &Sampler) -> Self {
        Self
    }
}

impl Solver for Heun {
    fn step(&mut self, Step { state, estimate, sigma, next, denoise, .. }: Step<'_>) -> Tensor<4> {
        let slope = (state.clone() - estimate) / sigma;
        let euler = state.clone() + slope.clone() * (next - sigma);
        if next == 0.0 {
            return euler;
        }
        let slope_there = (euler.clone() - denoise(euler, next)) / next;
        state + (slope + slope_there) * (0.5 * (next - sigma))
    }

    fn calls(&self, steps: usize) -> usize {
        2 * steps - 1
    }
}
