//! What a formula does along one axis: everything that is neither arithmetic nor a function of one number.

use crate::derivative::{Order, Scheme};
use crate::grid::{AxisId, Grid};
use crate::matrix::Matrix;

/// A matrix and the axis that it acts along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operator {
    /// Which matrix.
    pub kind: OperatorKind,
    /// The axis that the matrix acts along.
    pub axis: AxisId,
}

/// The matrices of the formula language, each `[n, n]` for an axis of n points. Faces are explained in [`crate::flux`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperatorKind {
    /// A derivative.
    Derivative(Scheme, Order),
    /// From points to faces: the slope.
    FaceSlope(Scheme),
    /// From points to faces: the arithmetic mean.
    FaceMean(Scheme),
    /// From points to faces: the value at the second neighbour.
    FaceAhead(Scheme),
    /// From faces to points: the difference of fluxes.
    FaceDivergence(Scheme),
    /// A derivative at the ends of the axis, zero elsewhere.
    AtEnds(Scheme, Order),
    /// The mean over the axis, everywhere.
    Mean,
    /// The value at one index of the axis, everywhere.
    At(usize),
}

impl Operator {
    /// The matrix on `grid`, `[n, n]` for n points along the axis.
    ///
    /// # Panics
    /// If the operator does not fit the grid; operators of compiled formulas do.
    pub fn matrix(&self, grid: &Grid) -> Matrix {
        let axis = grid.axis(self.axis);
        match self.kind {
            OperatorKind::Derivative(scheme, order) => Matrix::derivative(scheme, order, axis),
            OperatorKind::FaceSlope(scheme) => Matrix::face_slope(scheme, axis),
            OperatorKind::FaceMean(scheme) => Matrix::face_mean(scheme, axis),
            OperatorKind::FaceAhead(scheme) => Matrix::face_ahead(scheme, axis),
            OperatorKind::FaceDivergence(scheme) => Matrix::face_divergence(scheme, axis),
            OperatorKind::AtEnds(scheme, order) => Matrix::at_ends(scheme, order, axis),
            OperatorKind::Mean => {
                let weights: Vec<(usize, f64)> = axis.weights().into_iter().enumerate().collect();
                Matrix::new((0..axis.nodes).map(|_| weights.clone()), 1.0)
            }
            OperatorKind::At(index) => Matrix::new((0..axis.nodes).map(|_| vec![(index, 1.0)]), 1.0),
        }
    }
}
