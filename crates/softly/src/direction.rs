//! What a correction moves along: SCD is D + Σ_i γ_i v_i(D), each v_i a direction.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::dataset::Dataset;
use crate::denoiser::{Denoiser, Precondition};
use crate::parameter::Visitor;
use crate::units::Units;

/// A direction v(D) in which the estimate of a base denoiser may be moved.
pub trait Direction: Send + Sync {
    /// v at the base estimate `[N, C, H, W]`, of the same shape; one σ and one `at` (EDM's coefficients there) per sample.
    ///
    /// In ordinary tensor operations: training and the likelihood differentiate through it.
    fn at(&self, base: &Tensor<4>, sigma: &[f64], at: &[Precondition]) -> Tensor<4>;

    /// The estimate `[N, C, H, W]` moved onto the constraint as far as the direction can, for those that solve it.
    fn project(&self, _estimate: &Tensor<4>) -> Option<Tensor<4>> {
        None
    }

    /// Measures on the training data, which `units` normalise, what the direction has to know of them and of the denoiser
    /// `base` below it (below the soft constraint of `base` if it has one).
    fn measure(&mut self, _base: &dyn Denoiser, _dataset: &Dataset, _units: &Units) {}

    /// Measures again what depends on learned parameters of the constraint, after they have changed.
    fn update(&mut self) {}

    /// Visits what was measured on the data and has to be saved with a model, see
    /// [`Parameters::visit`](crate::parameter::Parameters::visit). Most directions have nothing of the kind.
    fn visit(&mut self, _prefix: &str, _visit: &mut Visitor<'_>) {}
}

/// The directions by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectionKind {
    /// The gradient of log l_c, the paper's.
    Gradient,
    /// The gradient seen through the data's own covariance.
    Spectral,
    /// The step that solves the equation for one field.
    Newton,
    /// The mean of the base's error given the equation.
    Kalman,
}

impl DirectionKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gradient, Self::Spectral, Self::Newton, Self::Kalman];

    /// Whether it needs a field that the equation is solved for.
    pub fn solves(self) -> bool {
        matches!(self, Self::Newton | Self::Kalman)
    }

    /// γ before it is trained: 1 for the direction that is an estimate of the error as it stands.
    pub fn first_weight(self) -> f32 {
        if self == Self::Kalman { 1.0 } else { 0.0 }
    }

    /// The name in configurations and in snapshots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gradient => "gradient",
            Self::Spectral => "spectral",
            Self::Newton => "newton",
            Self::Kalman => "kalman",
        }
    }
}
