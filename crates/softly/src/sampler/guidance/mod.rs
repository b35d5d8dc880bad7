//! Guidance: methods that push a sampler's state toward a constraint, one file each.

pub mod dps;
pub mod fundps;

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::denoiser::Denoiser;
use crate::error::Result;
use crate::sampler::guidance::dps::Dps;
use crate::sampler::guidance::fundps::Fundps;

/// A method of guidance.
pub trait Guidance {
    /// Refuses settings that cannot work.
    fn check(&self) -> Result<()>;

    /// The observations that it asks for, if any.
    fn observes(&self) -> Option<Observing<'_>> {
        None
    }

    /// D(x; σ) at a step's start, and the push that is subtracted from the state after the step; all `[N, C, H, W]`.
    fn guide(&self, at: Moment<'_>) -> (Tensor<4>, Option<Tensor<4>>);
}

/// The start of a step.
pub struct Moment<'a> {
    /// The denoiser.
    pub denoiser: &'a dyn Denoiser,
    /// The constraint to follow.
    pub constraint: &'a SoftConstraint,
    /// Observations of the batch, if there are any.
    pub given: Option<&'a ObservedNodes>,
    /// The state x, `[N, C, H, W]`.
    pub state: Tensor<4>,
    /// σ of the state.
    pub sigma: f64,
    /// σ that the step leads to; 0 in the last step.
    pub next: f64,
}

/// Observations that a method asks for: nodes of held-out fields.
#[derive(Debug, Clone, Copy)]
pub struct Observing<'a> {
    /// Weight of the mean squared misfit of each observed field.
    pub weights: &'a BTreeMap<String, f64>,
    /// Share of its nodes that are observed.
    pub share: f64,
}

/// Observations of a batch in normalised units.
pub struct ObservedNodes {
    /// Observed values, anything elsewhere, `[N, C, H, W]`.
    pub values: Tensor<4>,
    /// Weight of each squared misfit, zero where nothing is observed, `[1, C, H, W]`.
    pub weights: Tensor<4>,
}

impl ObservedNodes {
    /// Σ weight · (x̂ − y)² of every sample of `estimate` `[N, C, H, W]`, `[N]`.
    pub fn misfit(&self, estimate: Tensor<4>) -> Tensor<1> {
        let [n, c, h, w] = estimate.dims();
        let gap = estimate - self.values.clone();
        (gap.clone() * gap * self.weights.clone()).reshape([n, c * h * w]).sum_dim(1).reshape([n])
    }
}

/// Makes the enumeration of all methods from a list of names and types.
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident;)*) => {
        /// A method of guidance with its settings.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// FunDPS: observed nodes of held-out fields and the residual, through both network calls of a step.
    Fundps;
}
