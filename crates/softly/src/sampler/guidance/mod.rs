//! Guidance: methods that push a sampler's state toward a constraint, one file each.

pub mod dps;

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::denoiser::Denoiser;
use crate::error::Result;
use crate::sampler::guidance::dps::Dps;

/// A method of guidance.
pub trait Guidance {
    /// Refuses settings that cannot work.
    fn check(&self) -> Result<()>;

    /// D(x; σ) at a step's start, and the push that is subtracted from the state after the step; all `[N, C, H, W]`.
    fn guide(
        &self,
        denoiser: &dyn Denoiser,
        constraint: &SoftConstraint,
        x: Tensor<4>,
        sigma: &[f64],
    ) -> (Tensor<4>, Option<Tensor<4>>);
}

/// Makes the enumeration of all methods from a list of names and types.
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident;)*) => {
        /// A method of guidance with its settings.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum GuidanceConfig {
            $($(#[$doc])* $method($method),)*
        }

        impl GuidanceConfig {
            /// The method.
            pub fn method(&self) -> &dyn Guidance {
                match self { $(Self::$method(method) => method,)* }
            }
        }
    };
}

methods! {
    /// Diffusion posterior sampling.
    Dps;
}
