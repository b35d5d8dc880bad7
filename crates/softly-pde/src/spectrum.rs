//! Radial power spectra: how much of a field lies in waves of which length.

use thiserror::Error;

use crate::grid::{AxisId, Grid};
use crate::transpose::transpose;
use crate::waves::Waves;

/// Power below this fraction of the total is rounding of fields stored in single precision.
const ROUNDING: f64 = 1e-14;

/// Why a grid has no spectrum.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("a spectrum needs at least 2 nodes along each axis between ascending ends, found {grid:?}")]
pub struct SpectrumError {
    /// The grid.
    pub grid: Grid,
}

/// Power of a field in its waves, summed over rings `|k| = L √(p²/L₀² + q²/L₁²)` rounded to whole numbers, for waves of
/// `p` and `q` half waves along the axes of lengths `L₀` and `L₁` and the longer side `L` of the domain.
///
/// Along an axis with ends the waves are the cosines `cos(π p x̂)`, `x̂` running from 0 at the first to 1 at the last
/// end of the domain, along a periodic axis sines and cosines of whole periods (even `p`).
///
/// Ring `k` holds the waves of `k` half waves along the longer side. A wave of both directions and amplitude `a` has
/// the power `a²/4`, one along an axis `a²/2`, a constant `a²`, so that all powers add up to the mean of `f²` (with the
/// weights of [`Grid::weights`]). Rings that the grid resolves in some directions only are left out.
pub struct RadialSpectrum {
    rows: usize,
    cols: usize,
    rings: usize,
    /// Ring and weight of each squared coefficient, `[cols, rows]`.
    shares: Vec<(usize, f64)>,
    /// Along both axes.
    transforms: [Waves; 2],
}

impl RadialSpectrum {
    /// Prepares spectra of fields on `grid`.
    pub fn new(grid: &Grid) -> Result<Self, SpectrumError> {
        let (rows, cols) = (grid.rows(), grid.cols());
        if rows < 2 || cols < 2 || grid.check().is_err() {
            return Err(SpectrumError { grid: grid.clone() });
        }
        let lengths = AxisId::BOTH.map(|axis| grid.length(axis));
        let transforms = AxisId::BOTH.map(|axis| Waves::new(grid.axis(axis)));
        let [down, across] = &transforms;
        let longer = lengths[0].max(lengths[1]);
        let wave = |p: usize, q: usize| longer * (p as f64 / lengths[0]).hypot(q as f64 / lengths[1]);
        let rings = 1 + wave(down.half_waves(rows - 1), 0).min(wave(0, across.half_waves(cols - 1))) as usize;
        let shares = (0..rows * cols)
            .map(|i| (i % rows, i / rows))
            .map(|(p, q)| {
                let ring = wave(down.half_waves(p), across.half_waves(q)).round() as usize;
                (ring, down.weight(p) * across.weight(q))
            })
            .collect();
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
        let [down, across] = &self.transforms;
        let mut lines = field.to_vec();
        across.transform(&mut lines);
        let mut transposed = vec![0.0; lines.len()];
        transpose(&lines, cols, &mut transposed, rows);
        down.transform(&mut transposed);
        let mut power = vec![0.0; self.rings];
        for (value, &(ring, weight)) in transposed.iter().zip(&self.shares) {
            if let Some(sum) = power.get_mut(ring) {
                *sum += weight * value * value;
            }
        }
        power
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
    use crate::grid::{Axis, Placement};

    /// `amplitude cos(π p x̂) cos(π q ŷ)` on `grid`, moved by `shift` half waves along both axes.
    fn wave(grid: &Grid, amplitude: f64, [p, q]: [usize; 2], shift: f64) -> Vec<f64> {
        let place = |axis: AxisId| {
            let Axis { first, .. } = *grid.axis(axis);
            grid.coordinate(axis).into_iter().map(move |x| PI * (x - first)).map(move |x| x / grid.length(axis))
        };
        let cosine = |k: usize, angle: f64| (k as f64 * angle + shift).cos();
        place(AxisId::Rows).zip(place(AxisId::Cols)).map(|(x, y)| amplitude * cosine(p, x) * cosine(q, y)).collect()
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
            assert_close(&spectrum.power(&wave(&grid, 3.0, [p, q], 0.0)), &expected);
        }
        // Corners are resolved in some directions only.
        assert_close(&spectrum.power(&wave(&grid, 3.0, [14, 14], 0.0)), &[0.0; 16]);
    }

    #[test]
    fn lengths_are_those_of_the_domain() {
        let grid = Grid { axes: vec![Axis::new("x", 9, 0.0, 1.0), Axis::new("y", 17, 0.0, 2.0)] };
        let spectrum = RadialSpectrum::new(&grid).unwrap();
        assert_eq!(spectrum.rings(), 17);
        let mut expected = vec![0.0; 17];
        expected[10] = 0.25;
        // Three half waves along x are six along the longer side.
        assert_close(&spectrum.power(&wave(&grid, 1.0, [3, 8], 0.0)), &expected);
        assert!(RadialSpectrum::new(&Grid::point()).is_err());
        assert!(RadialSpectrum::new(&Grid::unit(1, 9)).is_err());
    }

    #[test]
    fn cells_and_periodic_axes_have_their_own_waves() {
        for (cells, periodic) in [(true, false), (false, true), (true, true)] {
            let axis = |name, nodes| {
                let axis = Axis::new(name, nodes, 1.0, 3.0);
                let axis = if cells { axis.cells() } else { axis };
                if periodic { axis.periodic() } else { axis }
            };
            let grid = Grid { axes: vec![axis("x", 16), axis("y", 17)] };
            let spectrum = RadialSpectrum::new(&grid).unwrap();
            assert_eq!(spectrum.rings(), if periodic { 17 } else { 16 });
            // Periodic waves have any phase.
            let shift = if periodic { 0.7 } else { 0.0 };
            for (p, q, ring) in [(6, 8, 10), (2, 2, 3), (4, 6, 7)] {
                let mut expected = vec![0.0; spectrum.rings()];
                expected[ring] = 0.25 * 4.0;
                assert_close(&spectrum.power(&wave(&grid, 2.0, [p, q], shift)), &expected);
            }
            let mut expected = vec![0.0; spectrum.rings()];
            expected[0] = 9.0;
            assert_close(&spectrum.power(&vec![3.0; grid.len()]), &expected);
        }
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

    fn axis(name: &'static str) -> impl Strategy<Value = Axis> {
        (10..14_usize, any::<bool>(), any::<bool>()).prop_map(move |(nodes, cells, periodic)| {
            let placement = if cells { Placement::Cells } else { Placement::Nodes };
            Axis { periodic, placement, ..Axis::new(name, nodes, 0.0, 1.0) }
        })
    }

    proptest! {
        #[test]
        fn powers_of_resolved_waves_add_up_to_the_mean_square(
            amplitudes in prop::collection::vec(-1.0..1.0_f64, 25), rows in axis("x"), cols in axis("y"),
        ) {
            // Four half waves along both axes lie within the rings.
            let waves = |axis: &Axis, k: usize| if axis.periodic { 2 * (k / 2) } else { k };
            let grid = Grid { axes: vec![rows.clone(), cols.clone()] };
            let mut field = vec![0.0; grid.len()];
            for (k, &amplitude) in amplitudes.iter().enumerate() {
                let values = wave(&grid, amplitude, [waves(&rows, k / 5), waves(&cols, k % 5)], 0.0);
                field.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            let square: f64 = grid.weights().iter().zip(&field).map(|(weight, value)| weight * value * value).sum();
            let total: f64 = RadialSpectrum::new(&grid).unwrap().power(&field).iter().sum();
            prop_assert!((total - square).abs() < 1e-12 * (1.0 + square));
        }
    }
}
