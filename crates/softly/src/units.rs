//! The affine map between the network's normalised channels and physical units.

use burn::tensor::Tensor;

use crate::tensors::constant;
use serde::{Deserialize, Serialize};

/// Per channel: physical = mean + scale · normalised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Units {
    /// Physical value of a normalised 0.
    pub mean: Vec<f64>,
    /// Physical size of a normalised 1.
    pub scale: Vec<f64>,
}

impl Units {
    /// Normalised and physical are the same.
    pub fn identity(channels: usize) -> Self {
        Self { mean: vec![0.0; channels], scale: vec![1.0; channels] }
    }

    /// True if normalised and physical are the same.
    pub fn is_identity(&self) -> bool {
        self.mean.iter().all(|&m| m == 0.0) && self.scale.iter().all(|&s| s == 1.0)
    }

    /// `[N, C, H, W]` in normalised units → physical units.
    pub fn physical(&self, x: Tensor<4>) -> Tensor<4> {
        if self.is_identity() {
            return x;
        }
        x.clone() * row(&self.scale, &x) + row(&self.mean, &x)
    }

    /// `[N, C, H, W]` in physical units → normalised units.
    pub fn normalised(&self, x: Tensor<4>) -> Tensor<4> {
        if self.is_identity() {
            return x;
        }
        (x.clone() - row(&self.mean, &x)) / row(&self.scale, &x)
    }

    /// The same for numbers `[N, C, H, W]` row-major of fields of `nodes` = H · W nodes.
    pub fn normalised_numbers(&self, mut values: Vec<f32>, nodes: usize) -> Vec<f32> {
        if !self.is_identity() {
            let channels = self.mean.iter().zip(&self.scale).cycle();
            for (field, (mean, scale)) in values.chunks_exact_mut(nodes).zip(channels) {
                for value in field {
                    *value = ((f64::from(*value) - mean) / scale) as f32;
                }
            }
        }
        values
    }
}

/// One number per channel, `[1, C, 1, 1]`, of the type and device of `like`.
fn row(values: &[f64], like: &Tensor<4>) -> Tensor<4> {
    constant(values.to_vec(), [1, values.len(), 1, 1], &like.device(), like.dtype())
}
