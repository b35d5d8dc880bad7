//! Directions v(D) along which a soft constraint may move the estimate D of a base denoiser.
//!
//! | name | v | idea |
//! |---|---|---|
//! | `gradient` | ∇log l_c(D), scaled | the paper's direction |
//! | `spectral` | C_σ ∇log l_c(D) | the gradient seen through the data's covariance |
//! | `newton` | −J_p⁻¹ R | solves the equations for some fields |
//! | `kalman` | −Σ Jᵀ (J Σ Jᵀ + V)⁻¹ (R − m) | the mean of the base's error given the equation |
//!
//! Every direction uses all equations of the constraint, each on its region.
//!
//! A new direction is one file here with an implementation of [`Direction`] and [`BuildDirection`], and one line in the list
//! at the end of this file.

pub mod compliance;
pub mod config;
mod equation;
mod field_solve;
mod floors;
pub mod gradient;
pub mod kalman;
pub(crate) mod krylov;
pub mod newton;
pub mod spectral;
mod stack;
mod symbol;
mod system_solve;
pub(crate) mod trust;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;

use crate::constraint::SoftConstraint;
use crate::constraint::config::ConstraintConfig;
use crate::data::dataset::Dataset;
use crate::denoiser::Denoiser;
use crate::denoiser::edm::Precondition;
use crate::direction::config::ScdConfig;
use crate::error::{Error, Result};
use crate::nn::parameter::Visitor;
use crate::units::Units;

/// A direction v(D) in which the estimate D of a base denoiser may be moved.
pub trait Direction: Send + Sync {
    /// v at the base estimate D `[N, C, H, W]`, of the same shape; one σ and one set of EDM's `coefficients` per sample.
    ///
    /// v is in numbers of the type `working`. The residual at D, a small difference of large numbers, is evaluated in D's own type,
    /// all else in the working type. Ordinary tensor operations: training and the likelihood differentiate through them.
    fn correction_in(
        &self,
        working: DType,
        base: &Tensor<4>,
        sigma: &[f64],
        coefficients: &[Precondition],
    ) -> Tensor<4>;

    /// The same in D's own type.
    fn correction(&self, base: &Tensor<4>, sigma: &[f64], coefficients: &[Precondition]) -> Tensor<4> {
        self.correction_in(base.dtype(), base, sigma, coefficients)
    }

    /// γ before training. Most directions start at 0, as if there were no constraint.
    fn first_weight(&self) -> f32 {
        0.0
    }

    /// The estimate `[N, C, H, W]` moved onto the constraint, for directions that solve it.
    fn project(&self, _estimate: &Tensor<4>) -> Option<Tensor<4>> {
        None
    }

    /// Measurements on the training data, which `units` normalise, and on the denoiser `base` below the soft constraint.
    fn measure(&mut self, _base: &dyn Denoiser, _dataset: &Dataset, _units: &Units) -> Result<()> {
        Ok(())
    }

    /// Samples that [`Direction::measure`] denoises, every one as often as it does: how long it will take.
    fn samples_to_measure(&self, _dataset: &Dataset) -> usize {
        0
    }

    /// Visits the measurements, which are saved with a model, see
    /// [`Parameters::visit`](crate::nn::parameter::Parameters::visit).
    fn visit(&mut self, _prefix: &str, _visit: &mut Visitor<'_>) {}
}

/// What a direction is built from.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The compiled constraint. Directions share its learned parameters.
    pub constraint: &'a Arc<SoftConstraint>,
    /// The formulas behind it.
    pub formulas: &'a ConstraintConfig,
    /// Names of the data's channels.
    pub fields: &'a [String],
    /// The grid of the data.
    pub grid: &'a Grid,
    /// Units of the channels.
    pub units: &'a Units,
    /// For each field that is positive in all training data, a value that it is hardly ever below.
    pub floors: &'a BTreeMap<String, f64>,
    /// The settings of all directions; every direction reads its own.
    pub settings: &'a ScdConfig,
    /// Where measurements live. A device with autodiff means training.
    pub device: &'a Device,
}

/// What a kind of direction asks for before it can be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Fields that the equations are solved for (`denoiser.scd.solve_for`), unless the equations say which.
    pub solve_for: bool,
    /// Fields on a grid: points have no neighbours.
    pub grid: bool,
    /// A denoiser that is trained already.
    pub trained_base: bool,
}

/// How a kind of direction is built; the other half of [`Direction`].
pub trait BuildDirection: Direction + Sized {
    /// What has to be there.
    const NEEDS: Needs;
    /// Whether [`Direction::project`] moves estimates onto the constraint.
    const PROJECTS: bool = false;

    /// The direction at `site`, before its measurements.
    fn build(site: Site<'_>) -> Result<Self>;
}

/// Makes the enumeration of all directions from a list of names and types.
macro_rules! directions {
    ($($(#[$doc:meta])* $kind:ident, $name:literal => $direction:ty;)*) => {
        /// The directions by name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub enum DirectionKind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)*
        }

        impl DirectionKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The name in configurations and in snapshots.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// What has to be there before the direction can be built.
            pub fn needs(self) -> Needs {
                match self { $(Self::$kind => <$direction as BuildDirection>::NEEDS,)* }
            }

            /// Whether the direction moves estimates onto the constraint.
            pub fn projects(self) -> bool {
                match self { $(Self::$kind => <$direction as BuildDirection>::PROJECTS,)* }
            }

            /// The direction at `site`, before its measurements.
            pub fn build(self, site: Site<'_>) -> Result<Box<dyn Direction>> {
                if self.needs().grid && site.grid.is_point() {
                    let problem = format!("`{}` needs fields on a grid, and the data are points", self.name());
                    return Err(Error::input("denoiser.scd.directions", problem).hint("leave it out"));
                }
                Ok(match self { $(Self::$kind => Box::new(<$direction as BuildDirection>::build(site)?),)* })
            }
        }
    };
}

directions! {
    /// The gradient of log l_c, the paper's direction.
    Gradient, "gradient" => gradient::GradientDirection;
    /// The gradient seen through the data's own covariance.
    Spectral, "spectral" => spectral::SpectralDirection;
    /// The step that solves the equations for some fields.
    Newton, "newton" => newton::NewtonDirection;
    /// The mean of the base's error given the equation.
    Kalman, "kalman" => kalman::KalmanDirection;
}
