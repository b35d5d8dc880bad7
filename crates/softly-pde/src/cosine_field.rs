//! Gaussian random fields with free slope at the boundary, as sums of cosines.

use std::f64::consts::PI;
use std::sync::Arc;

use rand::Rng;
use rand_distr::{Distribution, StandardNormal};
use rustdct::{DctPlanner, TransformType2And3};
use thiserror::Error;

use crate::grid::{AxisId, Grid, GridError};
use crate::transpose::transpose;

/// Why a cosine field could not be made.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CosineFieldError {
    /// Axes that the field cannot live on.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// A parameter out of range.
    #[error(
        "alpha must be finite and tau positive and finite with representable powers, found alpha {alpha}, tau {tau}"
    )]
    BadParameters {
        /// Smoothness.
        alpha: f64,
        /// Inverse length.
        tau: f64,
    },
    /// Not one normal per node.
    #[error("a cosine field takes one normal for each of the {expected} nodes, found {found}")]
    WrongLength {
        /// Number of nodes.
        expected: usize,
        /// Number of normals.
        found: usize,
    },
}

/// The field `Σ c_pq z_pq cos(π p (i + ½) / rows) cos(π q (j + ½) / cols)` over all waves but the constant, with
/// standard normals `z` and `c_pq = 2 τ^(α-1) (π² (p²/L_x² + q²/L_y²) + τ²)^(-α/2)` (a factor `√½` less for each of
/// `p` and `q` that is zero), on a domain of sides `L_x` and `L_y`.
///
/// Larger `alpha` is smoother, larger `tau` varies over shorter lengths.
pub struct CosineField {
    rows: usize,
    cols: usize,
    zero_border: bool,
    /// `[rows, cols]` over `(p, q)`; the unnormalised transform halves the terms of index zero.
    amplitudes: Vec<f64>,
    /// Along x and y.
    transforms: [Arc<dyn TransformType2And3<f64>>; 2],
}

impl CosineField {
    /// The field on `grid`; `zero_border` sets the outermost ring of nodes to zero.
    pub fn new(grid: &Grid, alpha: f64, tau: f64, zero_border: bool) -> Result<Self, CosineFieldError> {
        let (rows, cols) = (grid.rows(), grid.cols());
        grid.check_for("this random field", |axis| !axis.periodic)?;
        let frequency = |k: usize, axis| PI * k as f64 / grid.length(axis);
        let scale = |k: usize| if k == 0 { 2.0 } else { 2.0_f64.sqrt() };
        let amplitude = |(p, q): (usize, usize)| {
            let square = frequency(p, AxisId::Rows).powi(2) + frequency(q, AxisId::Cols).powi(2);
            scale(p) * scale(q) * tau.powf(alpha - 1.0) * (square + tau * tau).powf(-0.5 * alpha)
        };
        let mut amplitudes: Vec<f64> = (0..grid.len()).map(|node| amplitude((node / cols, node % cols))).collect();
        amplitudes[0] = 0.0;
        if !(tau > 0.0 && amplitudes.iter().all(|a| a.is_finite())) {
            return Err(CosineFieldError::BadParameters { alpha, tau });
        }
        let mut planner = DctPlanner::new();
        let transforms = [rows, cols].map(|n| planner.plan_dct3(n));
        Ok(Self { rows, cols, zero_border, amplitudes, transforms })
    }

    /// The field `[rows, cols]` of the given standard normals, one per wave `(p, q)` in `[rows, cols]`.
    pub fn combine(&self, normals: &[f64]) -> Result<Vec<f64>, CosineFieldError> {
        let Self { rows, cols, .. } = *self;
        if normals.len() != rows * cols {
            return Err(CosineFieldError::WrongLength { expected: rows * cols, found: normals.len() });
        }
        let [along_x, along_y] = &self.transforms;
        let mut field: Vec<f64> = normals.iter().zip(&self.amplitudes).map(|(z, a)| z * a).collect();
        transform(&mut field, along_y.as_ref());
        let mut transposed = vec![0.0; field.len()];
        transpose(&field, cols, &mut transposed, rows);
        transform(&mut transposed, along_x.as_ref());
        transpose(&transposed, rows, &mut field, cols);
        if self.zero_border {
            for (i, line) in field.chunks_exact_mut(cols).enumerate() {
                if i == 0 || i == rows - 1 {
                    line.fill(0.0);
                }
                line[0] = 0.0;
                line[cols - 1] = 0.0;
            }
        }
        Ok(field)
    }

    /// A random field `[rows, cols]`.
    pub fn sample(&self, rng: &mut impl Rng) -> Vec<f64> {
        let normals: Vec<f64> = StandardNormal.sample_iter(rng).take(self.rows * self.cols).collect();
        self.combine(&normals).expect("one normal per node")
    }
}

/// `x₀ / 2 + Σ xₖ cos(π k (i + ½) / n)` along each line.
fn transform(lines: &mut [f64], transform: &dyn TransformType2And3<f64>) {
    let mut scratch = vec![0.0; transform.get_scratch_len()];
    for line in lines.chunks_exact_mut(transform.len()) {
        transform.process_dct3_with_scratch(line, &mut scratch);
    }
}
