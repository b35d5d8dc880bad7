//! The Helmholtz equation `∇²u + k²u = a` with `u = 0` on the boundary: reference solver.

use std::f64::consts::PI;
use std::sync::Arc;

use rustdct::rustfft::num_complex::Complex;
use rustdct::rustfft::{Fft, FftPlanner};
use thiserror::Error;

use crate::grid::{Axis, AxisId, Grid, GridError};
use crate::transpose::transpose;

/// A `k²` whose distance from an eigenvalue of the discrete operator is a smaller fraction of that eigenvalue is
/// refused: rounding is amplified by one over this fraction.
pub const RESONANCE_TOLERANCE: f64 = 1e-6;

/// The eigenvalue of `-∇²` on the grid that lies nearest to `k²`: the closer, the more the solution is that one mode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NearestEigenvalue {
    /// The eigenvalue `λ`.
    pub eigenvalue: f64,
    /// `|λ - k²| / λ`.
    pub relative_distance: f64,
    /// Half waves along x and y of its mode.
    pub half_waves: [usize; 2],
}

/// Why a Helmholtz problem could not be posed or solved.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum HelmholtzError {
    /// The grid has no interior nodes.
    #[error("the Helmholtz solver needs at least 3 nodes along each axis, the grid has {rows} × {cols}: refine it")]
    GridTooSmall {
        /// Nodes along x.
        rows: usize,
        /// Nodes along y.
        cols: usize,
    },
    /// Axes that the solver cannot use.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The wave number is not finite.
    #[error("the wave number must be finite, found {wave_number}")]
    BadWaveNumber {
        /// The wave number.
        wave_number: f64,
    },
    /// `k²` is an eigenvalue up to [`RESONANCE_TOLERANCE`], so there is no solution to compute.
    #[error(
        "wave number {wave_number} resonates: its square is within a fraction {:e} of the eigenvalue {} ({} × {} half \
         waves) and less than {RESONANCE_TOLERANCE:e} cannot be resolved; change the wave number or the grid",
        nearest.relative_distance, nearest.eigenvalue, nearest.half_waves[0], nearest.half_waves[1]
    )]
    Resonance {
        /// The wave number.
        wave_number: f64,
        /// The eigenvalue it hits.
        nearest: NearestEigenvalue,
    },
    /// The source does not have one value per node.
    #[error("the source must have one value for each of the {expected} nodes, found {found} values")]
    WrongLength {
        /// Number of nodes.
        expected: usize,
        /// Number of values.
        found: usize,
    },
    /// A source that is not finite.
    #[error("the source must be finite, found {value} at row {row}, column {col}")]
    NotFinite {
        /// Row of the first such node.
        row: usize,
        /// Column of the first such node.
        col: usize,
        /// The value there.
        value: f64,
    },
}

/// Solves `∇²u + k²u = a` at the interior nodes with the five-point stencil and `u = 0` on the border nodes.
///
/// Sines diagonalise the stencil, so a solve is a sine transform along both axes, a division and the way back.
pub struct HelmholtzSolver {
    grid: Grid,
    nearest: NearestEigenvalue,
    /// Sine transforms along x and y.
    transforms: [SineTransform; 2],
    /// What each coefficient of the source is multiplied with, normalisation included, `[cols - 2, rows - 2]`.
    multipliers: Vec<f64>,
}

impl HelmholtzSolver {
    /// Prepares solves with wave number `k` on `grid`.
    pub fn new(grid: &Grid, wave_number: f64) -> Result<Self, HelmholtzError> {
        grid.check_for("the Helmholtz solver", Axis::has_end_nodes)?;
        if grid.rows() < 3 || grid.cols() < 3 {
            return Err(HelmholtzError::GridTooSmall { rows: grid.rows(), cols: grid.cols() });
        }
        let square = wave_number * wave_number;
        if !square.is_finite() {
            return Err(HelmholtzError::BadWaveNumber { wave_number });
        }
        let [along_x, along_y] = AxisId::BOTH.map(|axis| eigenvalues(grid, axis));
        let mut nearest =
            NearestEigenvalue { eigenvalue: f64::NAN, relative_distance: f64::INFINITY, half_waves: [0, 0] };
        let mut multipliers = Vec::with_capacity(along_x.len() * along_y.len());
        // The transform is its own inverse up to a factor 1 / (2 (n + 1)) for n interior nodes.
        let normalisation = 0.25 / ((grid.rows() - 1) * (grid.cols() - 1)) as f64;
        for (q, y) in along_y.iter().enumerate() {
            for (p, x) in along_x.iter().enumerate() {
                let eigenvalue = x + y;
                let relative_distance = (eigenvalue - square).abs() / eigenvalue;
                if relative_distance < nearest.relative_distance {
                    nearest = NearestEigenvalue { eigenvalue, relative_distance, half_waves: [p + 1, q + 1] };
                }
                multipliers.push(normalisation / (square - eigenvalue));
            }
        }
        if nearest.relative_distance < RESONANCE_TOLERANCE {
            return Err(HelmholtzError::Resonance { wave_number, nearest });
        }
        let transforms = [grid.rows(), grid.cols()].map(|nodes| SineTransform::new(nodes - 2));
        Ok(Self { grid: grid.clone(), nearest, transforms, multipliers })
    }

    /// How close `k²` is to resonance.
    pub fn nearest_eigenvalue(&self) -> NearestEigenvalue {
        self.nearest
    }

    /// The solution of `source`, both `[rows, cols]`; the source on the border does not matter.
    pub fn solve(&self, source: &[f64]) -> Result<Vec<f64>, HelmholtzError> {
        let (rows, cols) = (self.grid.rows(), self.grid.cols());
        if source.len() != rows * cols {
            return Err(HelmholtzError::WrongLength { expected: rows * cols, found: source.len() });
        }
        if let Some(node) = source.iter().position(|a| !a.is_finite()) {
            return Err(HelmholtzError::NotFinite { row: node / cols, col: node % cols, value: source[node] });
        }
        let (m, n) = (rows - 2, cols - 2);
        let [along_x, along_y] = &self.transforms;
        let mut field = Vec::with_capacity(m * n);
        for line in source.chunks_exact(cols).skip(1).take(m) {
            field.extend_from_slice(&line[1..=n]);
        }
        along_y.apply(&mut field);
        let mut transposed = vec![0.0; m * n];
        transpose(&field, n, &mut transposed, m);
        along_x.apply(&mut transposed);
        for (value, multiplier) in transposed.iter_mut().zip(&self.multipliers) {
            *value *= multiplier;
        }
        along_x.apply(&mut transposed);
        transpose(&transposed, m, &mut field, n);
        along_y.apply(&mut field);

        let mut solution = vec![0.0; rows * cols];
        for (line, values) in solution.chunks_exact_mut(cols).skip(1).zip(field.chunks_exact(n)) {
            line[1..=n].copy_from_slice(values);
        }
        Ok(solution)
    }
}

/// `Xₖ = 2 Σⱼ xⱼ sin(π j k / (n + 1))` for `j` and `k` from 1 to `n`.
struct SineTransform {
    /// Of the odd extension, which has length `2 (n + 1)`.
    fourier: Arc<dyn Fft<f64>>,
    n: usize,
}

impl SineTransform {
    fn new(n: usize) -> Self {
        Self { fourier: FftPlanner::new().plan_fft_forward(2 * (n + 1)), n }
    }

    /// Transforms each line of `[lines, n]`.
    fn apply(&self, lines: &mut [f64]) {
        let n = self.n;
        let mut scratch = vec![Complex::default(); self.fourier.get_inplace_scratch_len()];
        let mut extension = vec![Complex::default(); 2 * (n + 1)];
        // The transform of an odd real line is imaginary, so a second line fits into the imaginary part.
        for pair in lines.chunks_mut(2 * n) {
            let (first, second) = pair.split_at_mut(n);
            extension[0] = Complex::default();
            extension[n + 1] = Complex::default();
            for (j, &re) in first.iter().enumerate() {
                let value = Complex::new(re, second.get(j).copied().unwrap_or(0.0));
                extension[1 + j] = value;
                extension[2 * n + 1 - j] = -value;
            }
            self.fourier.process_with_scratch(&mut extension, &mut scratch);
            for (value, transformed) in first.iter_mut().zip(&extension[1..]) {
                *value = -transformed.im;
            }
            for (value, transformed) in second.iter_mut().zip(&extension[1..]) {
                *value = transformed.re;
            }
        }
    }
}

/// Eigenvalues of the negative second difference along `axis` with zero ends, ascending.
fn eigenvalues(grid: &Grid, axis: AxisId) -> Vec<f64> {
    let (steps, h) = (grid.nodes(axis) - 1, grid.spacing(axis));
    (1..steps).map(|p| (2.0 / h * (0.5 * PI * p as f64 / steps as f64).sin()).powi(2)).collect()
}
