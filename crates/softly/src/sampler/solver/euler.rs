//! Euler's steps: x' = x + (σ' − σ)(x − D)/σ.

use burn::tensor::Tensor;

use crate::sampler::Sampler;
use crate::sampler::solver::{Solver, Step};

/// One denoiser call per step, first order.
pub struct Euler;

impl Euler {
    /// The solver; it needs no memory of its steps.
    pub fn new(_: &Sampler) -> Self {
        Self
    }
}

impl Solver for Euler {
    fn step(&mut self, Step { state, estimate, sigma, next, .. }: Step<'_>) -> Tensor<4> {
        let slope = (state.clone() - estimate) / sigma;
        state + slope * (next - sigma)
    }
}
