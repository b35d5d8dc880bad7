//! The numbers that a network computes with.

use burn::tensor::{DType, Device};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The numbers that activations and the weights in use are rounded to, on devices other than the CPU.
///
/// The weights that training keeps, their gradients' sums, the loss, the sampler's state and the physics stay in single precision, and
/// so do norms within the network, whose squares would leave the range of `f16`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// Half precision: 11 bits, up to 65,504. Gradients are computed of a multiple of the loss, so that they are not lost below 6e-8.
    F16,
    /// 8 bits, with the range of single precision.
    Bf16,
}

impl Precision {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_single(&self) -> bool {
        *self == Self::F32
    }

    /// The type of tensors.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }

    /// The factor on a loss that is a mean over samples `[C, H, W]`: about C·H·W for `f16`, a power of two.
    ///
    /// The gradient by a number of the estimate is then that of EDM2's loss, a sum over numbers. Its network keeps the size of
    /// activations and so of gradients, which therefore fit into `f16` at every layer.
    pub(crate) fn loss_scale(self, shape: [usize; 3]) -> f64 {
        let numbers: usize = shape.iter().product();
        if self == Self::F16 { numbers.next_power_of_two() as f64 } else { 1.0 }
    }

    /// Refuses a device without such numbers; the CPU computes in single precision.
    pub(crate) fn check(self, device: &Device) -> Result<()> {
        let device = device.clone().without_autodiff();
        if device == Device::flex() || device.supports_dtype(self.dtype()) {
            return Ok(());
        }
        let problem = format!("this device does not compute in {}", self.dtype().name());
        Err(Error::input("denoiser.backbone.precision", problem).hint("use \"f32\", or another device"))
    }
}
