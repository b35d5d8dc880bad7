//! Methods that draw samples given measurements, one file each.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::denoiser::Denoiser;
use crate::error::Result;
use crate::observe::cocogen::CoCoGen;
use crate::observe::diffusion_pde::DiffusionPde;
use crate::observe::dps::Dps;
use crate::observe::errors::Errors;
use crate::observe::fun_dps::FunDps;
use crate::observe::kalman::Kalman;
use crate::observe::kriging::{Kriging, Moments};
use crate::observe::mmps::{Jfps, Mmps};
use crate::observe::observations::Observations;
use crate::observe::pdm::Pdm;
use crate::observe::projected::{Eci, Pcfm, Ppr};
use crate::sampler::{Observer, Sampler};

/// What is known of the model and its data besides the measurements.
#[derive(Default)]
pub struct Knowledge {
    /// The denoiser's errors.
    pub errors: Option<Errors>,
    /// Mean and covariance of the training data.
    pub data: Option<Moments>,
}

/// What a method has to know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// [`Knowledge::errors`].
    pub errors: bool,
    /// [`Knowledge::data`].
    pub moments: bool,
    /// A denoiser of white noise: with a random field for noise the method's formulas are not right.
    pub white_noise: bool,
}

impl Needs {
    /// Whether training data must be at hand.
    pub fn data(self) -> bool {
        self.errors || self.moments
    }
}

/// What samples are drawn from and what they are given.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The denoiser, which knows nothing of the measurements.
    pub denoiser: &'a dyn Denoiser,
    /// The measurements.
    pub observations: &'a Observations,
    /// The equation, right or wrong.
    pub constraint: Option<&'a SoftConstraint>,
    /// All else.
    pub knowledge: &'a Knowledge,
    /// Shape of a sample, `[C, H, W]`.
    pub shape: [usize; 3],
}

/// A method that draws samples given measurements.
pub trait Condition {
    /// Refuses settings that cannot work.
    fn check(&self) -> Result<()>;

    /// What the method has to know.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// The samples that grow from `latents` `[N, C, H, W]`, the denoiser's noise at σ = 1; `noise` draws more of it when needed.
    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4>;
}

/// Makes the enumeration of all methods from a list of names and types.
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident, $name:literal;)*) => {
        /// A method of conditioning with its settings.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind")]
        pub enum Conditioning {
            $($(#[$doc])* #[serde(rename = $name)] $method($method),)*
        }

        impl Conditioning {
            /// The names of all methods.
            pub const NAMES: &[&str] = &[$($name),*];

            /// The method.
            pub fn method(&self) -> &dyn Condition {
                match self { $(Self::$method(method) => method,)* }
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$method(_) => $name,)* }
            }
        }
    };
}

methods! {
    /// Kalman's update by sensors and equation at every noise level.
    Kalman, "kalman";
    /// The Gaussian with the training data's covariance; no network.
    Kriging, "kriging";
    /// Diffusion posterior sampling: guidance down the gradient of the misfit.
    Dps, "dps";
    /// DiffusionPDE's guidance by sensors, then by the equation, through both network calls of a step.
    DiffusionPde, "diffusionpde";
    /// FunDPS's guidance of two terms with coefficients by noise level.
    FunDps, "fundps";
    /// Moment matching: Kalman's update with the denoiser's own Jacobian for a covariance.
    Mmps, "mmps";
    /// The same with a multiple of the identity.
    Jfps, "jfps";
    /// ECI: the estimate is projected onto the sensors at every level; no equation.
    Eci, "eci";
    /// PCFM: Gauss–Newton steps of sensors and equation at every level.
    Pcfm, "pcfm";
    /// PPR: the estimate is projected onto sensors and equation, then fresh noise is put on it.
    Ppr, "ppr";
    /// PDM: annealed Langevin steps, each followed by a projection of the noisy state.
    Pdm, "pdm";
    /// CoCoGen: sensors are put into the estimate, and the last steps descend along the equation.
    CoCoGen, "cocogen";
}

impl Default for Conditioning {
    fn default() -> Self {
        Self::Kalman(Kalman::default())
    }
}
