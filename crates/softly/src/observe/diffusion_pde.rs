//! DiffusionPDE's guidance: x ← x_Heun − Σ_q ζ_q ∇‖M(q̂ − q)‖₂ in the first four fifths of the steps, then a tenth of it and
//! −ζ_R ∇(‖R‖₂/n), n the number of nodes. The gradient goes through both network calls of Heun's step.
//!
//! Its weights ζ belong to a dataset, a number of sensors and a number of steps: Darcy 5 (coefficient), 5000 (solution) and 100
//! (equation) at 2000 steps and 500 sensors, as published, in the units of its own data. Here misfits are in normalised units, and one weight
//! serves all quantities.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::conditioning::Given;
use crate::observe::guided::{Guide, Stage, norms};

/// Share of the steps in which sensors alone guide.
const FIRST_STAGE: f64 = 0.8;

/// The factor on the sensors' weight after that.
const SECOND_STAGE: f64 = 0.1;

/// DiffusionPDE's guidance by sensors, then by the equation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiffusionPde {
    /// ζ of every quantity's sensors.
    pub scale: f64,
    /// ζ_R of the equation.
    pub equation: f64,
}

impl Default for DiffusionPde {
    fn default() -> Self {
        Self { scale: 1.0, equation: 1.0 }
    }
}

impl Guide for DiffusionPde {
    const THROUGH_BOTH: bool = true;

    fn weights(&self) -> [f64; 2] {
        [self.scale, self.equation]
    }

    fn loss(&self, given: Given<'_>, estimate: Tensor<4>, stage: Stage) -> Option<Tensor<1>> {
        let sensors = norms(given, &estimate).into_iter().reduce(|a, b| a + b)? * self.scale;
        if stage.index as f64 <= FIRST_STAGE * stage.steps as f64 {
            return Some(sensors);
        }
        let sensors = sensors * SECOND_STAGE;
        Some(match given.constraint {
            Some(constraint) => {
                let nodes = constraint.grid().len() as f64;
                let residuals = constraint.residuals(&estimate).into_iter().map(|r| {
                    let [n, h, w] = r.dims();
                    (r.clone() * r).reshape([n, h * w]).sum_dim(1).reshape([n])
                });
                let square = residuals.reduce(|a, b| a + b)?;
                sensors + square.clamp_min(1e-24).sqrt() * (self.equation / nodes)
            }
            None => sensors,
        })
    }
}
