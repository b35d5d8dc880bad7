//! `∇·(K ∇u) + f = 0` with `u = 0` on the boundary, by fluxes through the faces of cells: reference solver.
//!
//! The flux between neighbouring cells is K̄ (u' − u)/h with the arithmetic or harmonic mean K̄ of both; from a cell at the
//! boundary to the zero outside, half a spacing away, it is 2 K u/h. The formula `divgrad(K, u) + f` with the scheme `zero`
//! has this very discretisation.

use faer::Side;
use faer::linalg::solvers::Solve;
use faer::sparse::linalg::solvers::{Llt, SymbolicLlt};
use faer::sparse::{SparseColMat, Triplet};
use thiserror::Error;

use crate::flux::FaceMean;
use crate::grid::{Axis, AxisId, Grid, GridError, Placement};

/// Why a problem of fluxes could not be posed or solved.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum FluxError {
    /// Axes that the solver cannot use.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// Points at the boundary itself.
    #[error("the flux solver needs cells along both axes, and axis `{axis}` has nodes")]
    Nodes {
        /// The axis.
        axis: String,
    },
    /// A field does not have one value per cell.
    #[error("{field} must have one value for each of the {expected} cells, found {found} values")]
    WrongLength {
        /// Which field.
        field: &'static str,
        /// Number of cells.
        expected: usize,
        /// Number of values.
        found: usize,
    },
    /// A coefficient that is no positive finite number, or a source that is not finite.
    #[error("{field} must be {expected}, found {value} at row {row}, column {col}")]
    BadValue {
        /// Which field.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
        /// Row of the first such cell.
        row: usize,
        /// Column of the first such cell.
        col: usize,
        /// The value there.
        value: f64,
    },
    /// The system is too badly conditioned for double precision.
    #[error("the system of fluxes is not positive to double precision: coefficients span too wide a range")]
    IllConditioned,
}

/// Solves `∇·(K ∇u) + f = 0` with `u = 0` on the boundary of a grid of cells. The order of elimination is found once.
pub struct FluxSolver {
    grid: Grid,
    mean: FaceMean,
    symbolic: SymbolicLlt<usize>,
}

impl FluxSolver {
    /// Prepares solves on `grid`.
    pub fn new(grid: &Grid, mean: FaceMean) -> Result<Self, FluxError> {
        grid.check_for("the flux solver", |axis: &Axis| !axis.periodic)?;
        if let Some(axis) = grid.axes.iter().find(|axis| axis.placement == Placement::Nodes) {
            return Err(FluxError::Nodes { axis: axis.name.clone() });
        }
        let pattern = matrix(grid, mean, &vec![1.0; grid.len()]);
        let symbolic =
            SymbolicLlt::try_new(pattern.symbolic(), Side::Lower).expect("memory for the factorisation's pattern");
        Ok(Self { grid: grid.clone(), mean, symbolic })
    }

    /// The solution of `coefficient` K and `source` f, each `[rows, cols]`.
    pub fn solve(&self, coefficient: &[f64], source: &[f64]) -> Result<Vec<f64>, FluxError> {
        self.check("the coefficient", coefficient, "positive and finite", |k| k.is_finite() && k > 0.0)?;
        self.check("the source", source, "finite", f64::is_finite)?;
        let matrix = matrix(&self.grid, self.mean, coefficient);
        let factor = Llt::try_new_with_symbolic(self.symbolic.clone(), matrix.as_ref(), Side::Lower)
            .map_err(|_| FluxError::IllConditioned)?;
        let mut solution = faer::Col::from_fn(source.len(), |i| source[i]);
        factor.solve_in_place(solution.as_mut());
        Ok(solution.iter().copied().collect())
    }

    fn check(
        &self,
        field: &'static str,
        values: &[f64],
        expected: &'static str,
        good: impl Fn(f64) -> bool,
    ) -> Result<(), FluxError> {
        let cells = self.grid.len();
        if values.len() != cells {
            return Err(FluxError::WrongLength { field, expected: cells, found: values.len() });
        }
        match values.iter().position(|&value| !good(value)) {
            None => Ok(()),
            Some(cell) => {
                let (row, col) = (cell / self.grid.cols(), cell % self.grid.cols());
                Err(FluxError::BadValue { field, expected, row, col, value: values[cell] })
            }
        }
    }
}

/// −∇·(K ∇·), of which the lower half is filled.
fn matrix(grid: &Grid, mean: FaceMean, coefficient: &[f64]) -> SparseColMat<usize, f64> {
    let mut entries = Vec::with_capacity(5 * grid.len());
    let mut add = |row: usize, col: usize, value: f64| entries.push(Triplet::new(row, col, value));
    for axis in AxisId::BOTH {
        let stride = if axis == AxisId::Rows { grid.cols() } else { 1 };
        let (last, scale) = (grid.nodes(axis) - 1, grid.spacing(axis).powi(-2));
        for (cell, &k) in coefficient.iter().enumerate() {
            let place = (cell / stride) % grid.nodes(axis);
            for end in [0, last] {
                if place == end {
                    add(cell, cell, 2.0 * k * scale);
                }
            }
            if place < last {
                let next = cell + stride;
                let flux = mean.of(k, coefficient[next]) * scale;
                add(cell, cell, flux);
                add(next, next, flux);
                add(next, cell, -flux);
            }
        }
    }
    SparseColMat::try_new_from_triplets(grid.len(), grid.len(), &entries).expect("every cell is part of the grid")
}
