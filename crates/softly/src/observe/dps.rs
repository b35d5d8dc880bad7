//! Diffusion posterior sampling on sensors: after each step x ← x − ζ ∇ₓ‖y − H(D(x; σ))‖₂ at the step's start, through the network.
//!
//! The norm is over all sensors of a sample, in normalised units. The equation's term, −ζ_R ∇ₓ‖R(D)‖, counts below σ = 1 only: above it
//! the estimate is a mean of many fields, which obeys no equation.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::conditioning::Given;
use crate::observe::guided::{Guide, Stage, squares};

/// Diffusion posterior sampling on sensors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dps {
    /// ζ, the size of the push by the sensors.
    pub scale: f64,
    /// ζ_R, the size of the push by the equation; 0 leaves it out.
    pub equation: f64,
}

impl Default for Dps {
    fn default() -> Self {
        Self { scale: 1.0, equation: 0.0 }
    }
}

impl Guide for Dps {
    const THROUGH_BOTH: bool = false;

    fn weights(&self) -> [f64; 2] {
        [self.scale, self.equation]
    }

    fn loss(&self, given: Given<'_>, estimate: Tensor<4>, stage: Stage) -> Option<Tensor<1>> {
        let sum = squares(given, &estimate).into_iter().map(|(sum, _)| sum).reduce(|a, b| a + b)?;
        let loss = sum.clamp_min(1e-24).sqrt() * self.scale;
        Some(match given.constraint {
            Some(constraint) if self.equation > 0.0 && stage.sigma < 1.0 => {
                loss + constraint.norm(estimate) * self.equation
            }
            _ => loss,
        })
    }
}
