//! Gaussian random fields of unit variance with Matérn's spectrum, drawn by fast transforms.
//!
//! ```text
//! ε(x) = Σ a_pq z_pq φ_p(x̂) φ_q(ŷ) / s(x),   a_pq² ∝ (2ν/ℓ² + π²(P² + Q²))^(−ν−1),   s² = Σ a_pq² φ_p² φ_q²
//! ```
//!
//! z are standard normals, φ the waves of [`crate::waves`] and P, Q their numbers of half waves along the axes. Away from the
//! boundary the covariance is Matérn's of smoothness ν and length ℓ, in units of the sides of the domain: exp(−r/ℓ) for ν = ½.
//! At the boundary slopes are free, and the division by s keeps the variance at 1 there too.
//!
//! Normals are dealt to waves from the longest to the shortest, so a finer grid shows the same function with more detail.

use std::f64::consts::PI;

use thiserror::Error;

use crate::grid::{AxisId, Grid, GridError};
use crate::transpose::transpose;
use crate::waves::Waves;

/// Why there is no such field.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MaternError {
    /// Axes that no field can live on.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// A lone point or line.
    #[error("a random field needs at least 2 points along each axis, found {rows} × {cols}")]
    TooSmall {
        /// Points along the first axis.
        rows: usize,
        /// Points along the second axis.
        cols: usize,
    },
    /// A length or smoothness that is not positive, or whose spectrum is beyond double precision.
    #[error("length and smoothness must be positive with a representable spectrum, found {length} and {smoothness}")]
    BadParameters {
        /// Correlation length.
        length: f64,
        /// Smoothness.
        smoothness: f64,
    },
}

/// The field on a grid, as an invertible linear map of as many standard normals as points.
pub struct MaternField {
    rows: usize,
    cols: usize,
    /// Along both axes.
    waves: [Waves; 2],
    /// a_pq in `[rows, cols]`.
    amplitudes: Vec<f64>,
    /// s at every point, `[rows, cols]`.
    deviation: Vec<f64>,
    /// The wave `p · cols + q` of every normal.
    order: Vec<usize>,
    /// ln |det ∂ε/∂z|.
    log_determinant: f64,
}

/// Smallest amplitude as a fraction of the largest: below it the inverse map means nothing in double precision.
const LEAST_AMPLITUDE: f64 = 1e-10;

impl MaternField {
    /// The field on `grid` of correlation `length` ℓ, as a fraction of the domain's sides, and `smoothness` ν.
    pub fn new(grid: &Grid, length: f64, smoothness: f64) -> Result<Self, MaternError> {
        grid.check()?;
        let (rows, cols) = (grid.rows(), grid.cols());
        if rows < 2 || cols < 2 {
            return Err(MaternError::TooSmall { rows, cols });
        }
        let bad = MaternError::BadParameters { length, smoothness };
        if !(length > 0.0 && smoothness > 0.0 && length.is_finite() && smoothness.is_finite()) {
            return Err(bad);
        }
        let waves = AxisId::BOTH.map(|axis| Waves::new(grid.axis(axis)));
        let [down, across] = &waves;
        // Relative to the longest wave's, so that no power overflows.
        let floor = 2.0 * smoothness / (length * length);
        let amplitude = |node: usize| {
            let [p, q] = [down.half_waves(node / cols), across.half_waves(node % cols)].map(|k| (k * k) as f64);
            (1.0 + PI * PI * (p + q) / floor).powf(-0.5 * (smoothness + 1.0))
        };
        let amplitudes: Vec<f64> = (0..grid.len()).map(amplitude).collect();
        if !amplitudes.iter().all(|a| *a > LEAST_AMPLITUDE) {
            return Err(bad);
        }
        let deviation = deviation(&waves, &amplitudes, cols);
        let mut order: Vec<usize> = (0..grid.len()).collect();
        order.sort_by_key(|wave| ((wave / cols).max(wave % cols), *wave));
        // Φᵀ W Φ is the diagonal of mean squares along each axis, so ln det Φ = ½ Σ ln(mean square / weight).
        let determinant = |axis: AxisId| {
            let squares = (0..grid.nodes(axis)).map(|p| waves[axis as usize].mean_square(p));
            squares.zip(grid.axis(axis).weights()).map(|(square, weight)| 0.5 * (square / weight).ln()).sum::<f64>()
        };
        let transforms = cols as f64 * determinant(AxisId::Rows) + rows as f64 * determinant(AxisId::Cols);
        let scales = amplitudes.iter().zip(&deviation).map(|(a, s)| (a / s).ln()).sum::<f64>();
        Ok(Self { rows, cols, waves, amplitudes, deviation, order, log_determinant: transforms + scales })
    }

    /// Number of points, and of normals.
    pub fn len(&self) -> usize {
        self.amplitudes.len()
    }

    /// True for a field without points, which there is none of.
    pub fn is_empty(&self) -> bool {
        self.amplitudes.is_empty()
    }

    /// ε `[rows, cols]` of as many standard `normals` z.
    ///
    /// # Panics
    /// If there is not one normal per point.
    pub fn colour(&self, normals: &[f64]) -> Vec<f64> {
        assert_eq!(normals.len(), self.len(), "one normal per point");
        let mut field = vec![0.0; self.len()];
        for (&wave, z) in self.order.iter().zip(normals) {
            field[wave] = self.amplitudes[wave] * z;
        }
        self.both_axes(&mut field, Waves::synthesise);
        field.iter_mut().zip(&self.deviation).for_each(|(value, s)| *value /= s);
        field
    }

    /// z of a field ε `[rows, cols]`: the inverse of [`MaternField::colour`].
    ///
    /// # Panics
    /// If the field does not have one value per point.
    pub fn whiten(&self, field: &[f64]) -> Vec<f64> {
        assert_eq!(field.len(), self.len(), "one value per point");
        let mut waves: Vec<f64> = field.iter().zip(&self.deviation).map(|(value, s)| value * s).collect();
        self.both_axes(&mut waves, Waves::analyse);
        self.order.iter().map(|&wave| waves[wave] / self.amplitudes[wave]).collect()
    }

    /// ln |det ∂ε/∂z|.
    pub fn log_determinant(&self) -> f64 {
        self.log_determinant
    }

    /// `transform` along both axes of `[rows, cols]`.
    fn both_axes(&self, field: &mut [f64], transform: fn(&Waves, &mut [f64])) {
        let Self { rows, cols, .. } = *self;
        let [down, across] = &self.waves;
        transform(across, field);
        let mut transposed = vec![0.0; field.len()];
        transpose(field, cols, &mut transposed, rows);
        transform(down, &mut transposed);
        transpose(&transposed, rows, field, cols);
    }
}

/// s = √(Σ a_pq² φ_p² φ_q²) at every point, `[rows, cols]`.
fn deviation([down, across]: &[Waves; 2], amplitudes: &[f64], cols: usize) -> Vec<f64> {
    let rows = amplitudes.len() / cols;
    let squares = |waves: &Waves, n: usize| -> Vec<Vec<f64>> {
        (0..n).map(|p| waves.values(p).iter().map(|v| v * v).collect()).collect()
    };
    let (down, across) = (squares(down, rows), squares(across, cols));
    // Over q first: [rows waves, cols points].
    let partial: Vec<Vec<f64>> = amplitudes
        .chunks(cols)
        .map(|line| {
            let mut sums = vec![0.0; cols];
            for (a, wave) in line.iter().zip(&across) {
                sums.iter_mut().zip(wave).for_each(|(sum, square)| *sum += a * a * square);
            }
            sums
        })
        .collect();
    let mut variance = vec![0.0; rows * cols];
    for (wave, sums) in down.iter().zip(&partial) {
        for (line, square) in variance.chunks_mut(cols).zip(wave) {
            line.iter_mut().zip(sums).for_each(|(v, sum)| *v += square * sum);
        }
    }
    variance.into_iter().map(f64::sqrt).collect()
}
