//! Networks: what a denoiser is wrapped around.
//!
//! A new network is one file here with an implementation of [`Backbone`] and of [`BuildBackbone`] for its settings, and one
//! line in the list at the end of this file.

use burn::tensor::{Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::nn::external::ExternalConfig;
use crate::nn::mlp::{LevelMlpConfig, MlpConfig};
use crate::nn::operator::OperatorConfig;
use crate::nn::parameter::Parameters;
use crate::nn::unet::UNetConfig;
use crate::random::Stream;

/// F(x, c), a network in f32: a scaled noisy field and a noise input in, a field out.
pub trait Backbone: Parameters + Send + Sync {
    /// F of `x` `[N, C, H, W]`, of the same shape; `noise` is one number per sample (EDM's c_noise, or a level's index).
    fn forward(&self, x: Tensor<4>, noise: &[f64]) -> Tensor<4>;

    /// u(c), the learned log-variance of the denoising error at each noise level, `[N]`, if the network has it.
    fn log_variance(&self, _noise: &[f64]) -> Option<Tensor<1>> {
        None
    }
}

/// The fields that a network is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldShape {
    /// Channels, rows and columns, `[C, H, W]`.
    pub size: [usize; 3],
    /// Whether a field goes on at its first row after its last one, and likewise for columns.
    pub periodic: [bool; 2],
    /// Whether the points of rows and columns are the centres of cells.
    pub cells: [bool; 2],
}

impl From<[usize; 3]> for FieldShape {
    /// Fields `[C, H, W]` on nodes, without periodic axes.
    fn from(size: [usize; 3]) -> Self {
        Self { size, periodic: [false; 2], cells: [false; 2] }
    }
}

/// Numbers that a network holds: an estimate from its settings alone, which may be absurd.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Footprint {
    /// Learned values.
    pub weights: f64,
    /// Activations of a sample that a training step keeps.
    pub activations: f64,
}

/// How a kind of network is built from its settings.
pub trait BuildBackbone {
    /// Refuses settings that cannot work, whatever the grid.
    fn check(&self) -> Result<()>;

    /// The size of the network for fields `[C, H, W]`.
    fn footprint(&self, shape: [usize; 3]) -> Footprint;

    /// The network for fields of `shape` with initial weights.
    fn build(&self, shape: FieldShape, stream: &mut Stream, device: &Device) -> Result<Box<dyn Backbone>>;

    /// The number of noise levels, for networks that know single levels by their index.
    fn levels(&self) -> Option<usize> {
        None
    }

    /// Whether one and the same network takes fields of any resolution: no weight depends on the grid.
    fn any_resolution(&self) -> bool {
        false
    }

    /// Whether activations can be computed again on the way back, see [`recomputing`](crate::nn::recompute::recomputing).
    fn can_recompute(&self) -> bool {
        false
    }

    /// The factor on the loss of samples `[C, H, W]` whose gradients are computed: more than 1 where small ones would be rounded to zero.
    fn loss_scale(&self, _shape: [usize; 3]) -> f64 {
        1.0
    }

    /// Whether parts of a batch gain from threads of their own.
    fn is_large(&self) -> bool {
        false
    }
}

/// Makes the enumeration of all networks from a list of names and settings.
macro_rules! backbones {
    ($($(#[$doc:meta])* $kind:ident($config:ident);)*) => {
        /// A network with its settings.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum BackboneConfig {
            $($(#[$doc])* $kind($config),)*
        }

        impl BackboneConfig {
            /// How the network is built.
            pub fn get(&self) -> &dyn BuildBackbone {
                match self { $(Self::$kind(config) => config,)* }
            }
        }
    };
}

backbones! {
    /// Three linear layers, modulated by the noise level.
    Mlp(MlpConfig);
    /// PIDM's three linear layers with a learned row per noise level (for `precondition = "ddpm"`).
    LevelMlp(LevelMlpConfig);
    /// EDM2's magnitude-preserving U-Net for fields on a grid.
    Unet(UNetConfig);
    /// A neural operator: waves of fields are mixed, so that one network takes every resolution.
    Operator(OperatorConfig);
    /// A denoiser outside of softly, such as a Python function: models below a soft constraint only.
    External(ExternalConfig);
}
