//! Radial power spectra: how much of a field lies in waves of which length.

use std::sync::Arc;

use rustdct::{Dct1, DctPlanner};
use thiserror::Error;

use crate::grid::Grid;
use crate::transpose::transpose;

/// Power below this fraction of the total is rounding of fields stored in single precision.
const ROUNDING: f64 = 1e-14;

/// Why a grid has no spectrum.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("a spectrum needs at least 2 nodes along each axis between ascending ends, found {grid:?}")]
pub struct SpectrumError {
    /// The grid.
    pub grid: Grid,
}

/// Power of `f = Σ a_pq cos(π p x̂) cos(π q ŷ)`, `x̂` and `ŷ` running from 0 at the first to 1 at the last node, summed
/// over rings `|k| = L √(p²/L_x² + q²/L_y²)` rounded to whole numbers, `L` the longer side of the domain.
///
/// Ring `k` holds the waves of `k` half waves along the longer side. A wave of both directions and amplitude `a` has the
/// power `a²/4`, one along an axis `a²/2`, a constant `a²`, so that all powers add up to the mean of `f²` (by the
/// trapezoid rule). Rings that the grid resolves in some directions only are left out.
pub struct RadialSpectrum {
    rows: usize,
    cols: usize,
    rings: usize,
    /// Ring and weight of each squared coefficient, `[cols, rows]`.
    shares: Vec<(usize, f64)>,
    /// Along x and y.
    transforms: [Arc<dyn Dct1<f64>>; 2],
}

impl RadialSpectrum {
    /// Prepares spectra of fields on `grid`.
    pub fn new(grid: &Grid) -> Result<Self, SpectrumError> {
        let Grid { rows, cols, .. } = *grid;
        let lengths = [grid.x, grid.y].map(|[first, last]| last - first);
        if rows < 2 || cols < 2 || !lengths.iter().all(|l| l.is_finite() && *l > 0.0) {
            return Err(SpectrumError { grid: grid.clone() });
        }
        let longer = lengths[0].max(lengths[1]);
        let wave = |p: usize, q: usize| longer * (p as f64 / lengths[0]).hypot(q as f64 / lengths[1]);
        let rings = 1 + wave(rows - 1, 0).min(wave(0, cols - 1)) as usize;
        // The transform sums over the nodes: a coefficient is 2 / (n - 1) of that, its mean square a half; both factors
        // are 1 for the constant and for the wave that changes sign from node to node.
        let weight = |p: usize, n: usize| {
            let twice = if p == 0 || p == n - 1 { 1.0 } else { 2.0 };
            twice / ((n - 1) * (n - 1)) as f64
        };
        let shares = (0..rows * cols)
            .map(|i| (i % rows, i / rows))
            .map(|(p, q)| (wave(p, q).round() as usize, weight(p, rows) * weight(q, cols)))
            .collect();
        let mut planner = DctPlanner::new();
        let transforms = [rows, cols].map(|n| planner.plan_dct1(n));
        Ok(Self { rows, cols, rings, shares, transforms })
    }

    /// Number of rings, the constant's (ring 0) included.
    pub fn rings(&self) -> usize {
        self.rings
    }

    /// The power of `field` `[rows, cols]` in each ring.
    ///
    /// # Panics
    /// If the field does not have one value per node.
    pub fn power(&self, field: &[f64]) -> Vec<f64> {
        let Self { rows, cols, .. } = *self;
        assert_eq!(field.len(), rows * cols, "one value per node");
        let [along_x, along_y] = &self.transforms;
        let mut lines = field.to_vec();
        transform(&mut lines, cols, along_y.as_ref());
        let mut transposed = vec![0.0; lines.len()];
        transpose(&lines, cols, &mut transposed, rows);
        transform(&mut transposed, rows, along_x.as_ref());
        let mut power = vec![0.0; self.rings];
        for (value, &(ring, weight)) in transposed.iter().zip(&self.shares) {
            if let Some(sum) = power.get_mut(ring) {
                *sum += weight * value * value;
            }
        }
        power
    }
}

fn transform(lines: &mut [f64], n: usize, transform: &dyn Dct1<f64>) {
    let mut scratch = vec![0.0; transform.get_scratch_len()];
    for line in lines.chunks_exact_mut(n) {
        transform.process_dct1_with_scratch(line, &mut scratch);
    }
}

/// `√mean (10 log₁₀ P/Q)²` over all rings but the constant's, in decibels, for the spectra `power` P and `reference` Q.
///
/// Both get 1e-14 of the reference's total on top: what lies below is rounding.
pub fn log_spectral_distance(power: &[f64], reference: &[f64]) -> f64 {
    let rounding = (ROUNDING * reference.iter().sum::<f64>()).max(f64::MIN_POSITIVE);
    let square = |(p, q): (&f64, &f64)| (10.0 * ((p + rounding) / (q + rounding)).log10()).powi(2);
    let rings = power.len().min(reference.len()).saturating_sub(1).max(1);
    (power.iter().zip(reference).skip(1).map(square).sum::<f64>() / rings as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use proptest::prelude::*;

    use super::*;

    fn wave(grid: &Grid, amplitude: f64, p: usize, q: usize) -> Vec<f64> {
        let place = |k: usize, n: usize| PI * k as f64 / (n - 1) as f64;
        (0..grid.len())
            .map(|node| (node / grid.cols, node % grid.cols))
            .map(|(i, j)| amplitude * (place(p * i, grid.rows)).cos() * (place(q * j, grid.cols)).cos())
            .collect()
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-14), "{found:?} instead of {expected:?}");
    }

    #[test]
    fn a_single_cosine_is_in_its_ring() {
        let grid = Grid::unit(16, 16);
        let spectrum = RadialSpectrum::new(&grid).unwrap();
        assert_eq!(spectrum.rings(), 16);
        // Waves (3, 4) and (0, 5) both have the length 5; the last wave of an axis changes sign at every node.
        for (p, q, ring, share) in [(3, 4, 5, 0.25), (0, 5, 5, 0.5), (0, 0, 0, 1.0), (15, 0, 15, 1.0), (1, 1, 1, 0.25)]
        {
            let mut expected = vec![0.0; 16];
            expected[ring] = share * 9.0;
            assert_close(&spectrum.power(&wave(&grid, 3.0, p, q)), &expected);
        }
        // Corners are resolved in some directions only.
        assert_close(&spectrum.power(&wave(&grid, 3.0, 14, 14)), &[0.0; 16]);
    }

    #[test]
    fn lengths_are_those_of_the_domain() {
        let grid = Grid { rows: 9, cols: 17, x: [0.0, 1.0], y: [0.0, 2.0] };
        let spectrum = RadialSpectrum::new(&grid).unwrap();
        assert_eq!(spectrum.rings(), 17);
        let mut expected = vec![0.0; 17];
        expected[10] = 0.25;
        // Three half waves along x are six along the longer side.
        assert_close(&spectrum.power(&wave(&grid, 1.0, 3, 8)), &expected);
        assert!(RadialSpectrum::new(&Grid::point()).is_err());
    }

    #[test]
    fn ten_times_the_power_is_ten_decibels_away() {
        let reference = [5.0, 2.0, 0.3, 0.0];
        let louder = reference.map(|p| 10.0 * p);
        assert!((log_spectral_distance(&louder, &reference) - 10.0 * (2.0_f64 / 3.0).sqrt()).abs() < 1e-9);
        assert_eq!(log_spectral_distance(&reference, &reference), 0.0);
        // Only the ring of the constant differs.
        assert_eq!(log_spectral_distance(&[9.0, 2.0, 0.3, 0.0], &reference), 0.0);
    }

    proptest! {
        #[test]
        fn powers_of_resolved_waves_add_up_to_the_mean_square(
            amplitudes in prop::collection::vec(-1.0..1.0_f64, 36),
        ) {
            let grid = Grid::unit(12, 10);
            let mut field = vec![0.0; grid.len()];
            for (k, &amplitude) in amplitudes.iter().enumerate() {
                for (sum, value) in field.iter_mut().zip(wave(&grid, amplitude, k / 6, k % 6)) {
                    *sum += value;
                }
            }
            let end = |i: usize, n: usize| if i == 0 || i == n - 1 { 0.5 } else { 1.0 } / (n - 1) as f64;
            let square: f64 = (0..grid.len()).map(|node| {
                end(node / grid.cols, grid.rows) * end(node % grid.cols, grid.cols) * field[node].powi(2)
            }).sum();
            let total: f64 = RadialSpectrum::new(&grid).unwrap().power(&field).iter().sum();
            prop_assert!((total - square).abs() < 1e-12 * (1.0 + square));
        }
    }
}
