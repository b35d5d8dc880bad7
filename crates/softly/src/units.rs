//! The affine map between the network's normalised channels and physical units.

use burn::tensor::{Tensor, TensorData};
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
        let row = |values: &Vec<f64>| -> Tensor<4> {
            let data = TensorData::new(values.clone(), [1, values.len(), 1, 1]);
            Tensor::from_data(data, (&x.device().without_autodiff(), x.dtype()))
        };
        x.clone() * row(&self.scale) + row(&self.mean)
    }
}
