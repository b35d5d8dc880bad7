//! FunDPS's guidance, of two terms: x ← x_Heun − ∇[c(σ) Σ_q w_q mean (q̂ − q)² + c_R(σ) w_R mean huber(R)], through both network calls.
//!
//! The loss is [`crate::sampler::guidance::fundps`]'s, with sensors for observed nodes. Above σ = 1 the sensors' coefficient c
//! is 1 and the equation's c_R is 0; below both are σ. The last step is not guided. Published
//! weights for Darcy flow are 10,000 (coefficient known) and 50,000 (solution known), without an equation, at 500 steps.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::conditioning::Given;
use crate::observe::guided::{Guide, Stage, squares};
use crate::sampler::guidance::fundps::loss;

/// FunDPS's guidance of two terms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FunDps {
    /// w of every quantity's sensors.
    pub scale: f64,
    /// w_R of the equation.
    pub equation: f64,
}

impl Default for FunDps {
    fn default() -> Self {
        Self { scale: 1e4, equation: 0.0 }
    }
}

impl Guide for FunDps {
    const THROUGH_BOTH: bool = true;

    fn weights(&self) -> [f64; 2] {
        [self.scale, self.equation]
    }

    fn loss(&self, given: Given<'_>, estimate: Tensor<4>, stage: Stage) -> Option<Tensor<1>> {
        if stage.is_last() {
            return None;
        }
        let means = squares(given, &estimate).into_iter().map(|(sum, count)| sum / count as f64);
        let sensors = means.reduce(|a, b| a + b)? * self.scale;
        let equation = given.constraint.map(|constraint| (constraint, self.equation));
        loss(Some(sensors), equation, &estimate, stage.sigma)
    }
}
