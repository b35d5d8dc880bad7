//! FunDPS's guidance, of two terms: x ← x_Heun − ∇[c(σ) Σ_q w_q mean (q̂ − q)² + c_R(σ) w_R mean huber(R)], through both network calls.
//!
//! Above σ = 1 the sensors' coefficient c is 1 and the equation's c_R is 0; below both are σ. The last step is not guided. Published
//! weights for Darcy flow are 10,000 (coefficient known) and 50,000 (solution known), without an equation, at 500 steps.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::conditioning::Given;
use crate::observe::guided::{Guide, Stage, squares};

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
        let high = stage.sigma > 1.0;
        let means = squares(given, &estimate).into_iter().map(|(sum, count)| sum / count as f64);
        let sensors = means.reduce(|a, b| a + b)? * (self.scale * if high { 1.0 } else { stage.sigma });
        Some(match given.constraint {
            Some(constraint) if self.equation > 0.0 && !high => {
                let losses = constraint.residuals(&estimate).into_iter().map(huber_mean);
                sensors + losses.reduce(|a, b| a + b)? * (self.equation * stage.sigma)
            }
            _ => sensors,
        })
    }
}

/// The mean over nodes of ½ r² where |r| ≤ 1 and |r| − ½ elsewhere, of residuals `[N, H, W]`: `[N]`.
fn huber_mean(residual: Tensor<3>) -> Tensor<1> {
    let [n, h, w] = residual.dims();
    let size = residual.abs();
    let inner = size.clone().clamp_max(1.0);
    // ½ m² + (|r| − m) with m = min(|r|, 1).
    let loss = inner.clone() * inner.clone() * 0.5 + (size - inner);
    loss.reshape([n, h * w]).mean_dim(1).reshape([n])
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn hubers_loss_is_quadratic_inside_and_linear_outside() {
        let residual: Tensor<3> = Tensor::from_data(TensorData::new(vec![0.5f32, -3.0], [2, 1, 1]), &Device::flex());
        let found = crate::tensors::to_vec_f64(huber_mean(residual));
        assert_eq!(found, [0.125, 2.5]);
    }
}
