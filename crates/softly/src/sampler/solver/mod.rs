//! Solvers: how a sampler steps from one noise level to the next, one file each.

pub mod ancestral;
pub mod dpm2m;
pub mod dpm3m;
pub mod euler;
pub mod fitted;
pub mod heun;
pub mod multistep;
pub mod unipc;

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sampler::Sampler;
use crate::sampler::sigma_grid::SigmaGrid;
use crate::sampler::solver::ancestral::Ancestral;
use crate::sampler::solver::dpm2m::Dpm2m;
use crate::sampler::solver::dpm3m::Dpm3m;
use crate::sampler::solver::euler::Euler;
use crate::sampler::solver::fitted::Fitted;
use crate::sampler::solver::heun::Heun;
use crate::sampler::solver::unipc::UniPc;

/// One step of a solver.
pub struct Step<'a> {
    /// Place of the step, from 0.
    pub index: usize,
    /// The state x at `sigma`, `[N, C, H, W]`.
    pub state: Tensor<4>,
    /// D(x; σ), of the same shape.
    pub estimate: Tensor<4>,
    /// σ of the state.
    pub sigma: f64,
    /// σ to reach; 0 in the last step.
    pub next: f64,
    /// Strength η of the noise that a multistep solver puts back.
    pub eta: f64,
    /// The estimate at another state and noise level.
    pub denoise: &'a dyn Fn(Tensor<4>, f64) -> Tensor<4>,
    /// Fresh noise of unit variance, `[N, C, H, W]`.
    pub noise: &'a mut dyn FnMut() -> Tensor<4>,
}

/// A way to solve dx/dσ = (x − D(x; σ))/σ, or its stochastic relatives. A solver serves one batch and may remember its
/// earlier steps.
pub trait Solver {
    /// The noise levels, highest first, with a final 0.
    fn levels(&self, grid: &SigmaGrid) -> Vec<f64> {
        grid.levels()
    }

    /// The first state from `latents` `[N, C, H, W]`, noise of unit variance, at the highest level `sigma`.
    fn start(&self, latents: Tensor<4>, sigma: f64) -> Tensor<4> {
        latents * sigma
    }

    /// The state at the step's next level, `[N, C, H, W]`.
    fn step(&mut self, step: Step<'_>) -> Tensor<4>;

    /// Whether a step uses estimates of earlier ones: noise is then put back by η in every step, not by churn in between.
    fn is_multistep(&self) -> bool {
        false
    }

    /// Whether a multistep solver puts no noise back, whatever η says.
    fn is_deterministic(&self) -> bool {
        false
    }

    /// Denoiser calls of `steps` steps.
    fn calls(&self, steps: usize) -> usize {
        steps
    }
}

/// Makes the enumeration of all solvers from a list of types; each is made from the settings of a sampler.
macro_rules! solvers {
    ($($(#[$doc:meta])* $solver:ident;)*) => {
        /// The solvers by name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case")]
        pub enum SolverKind {
            $($(#[$doc])* $solver,)*
        }

        impl SolverKind {
            /// The solver of `sampler` for a batch.
            pub fn build(self, sampler: &Sampler) -> Box<dyn Solver> {
                match self { $(Self::$solver => Box::new($solver::new(sampler)),)* }
            }
        }
    };
}

solvers! {
    /// One denoiser call, first order.
    Euler;
    /// Two denoiser calls (one in the last step), second order.
    Heun;
    /// DDPM's ancestral steps over all levels of its cosine schedule; `steps` is the number of levels.
    Ancestral;
    /// DPM-Solver++ (2M): one denoiser call, second order; stochastic with `eta`.
    #[serde(rename = "dpm-2m")]
    Dpm2m;
    /// DPM-Solver++ (3M): one denoiser call, third order; stochastic with `eta`.
    #[serde(rename = "dpm-3m")]
    Dpm3m;
    /// UniPC: one denoiser call, corrected to fourth order; stochastic with `eta`.
    #[serde(rename = "unipc")]
    UniPc;
    /// Steps fitted to the model: one denoiser call, with the error of two to three times as many steps of `unipc`.
    Fitted;
}
