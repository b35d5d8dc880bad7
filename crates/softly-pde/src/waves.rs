//! Waves along an axis, and the fast transforms between the values of a field and its waves.
//!
//! ```text
//! φ₀ = 1,  φ_p = √2 cos(π p x̂)                         along an axis with ends
//! φ₀ = 1,  φ_{2m−1} = √2 cos(2π m x̂),  φ_{2m} = √2 sin(2π m x̂)   along a periodic axis
//! ```
//!
//! x̂ runs from 0 at the first to 1 at the last end of the domain (along a periodic axis from the first point on, cells
//! included). All waves but one have a mean square of 1; the one that changes sign from point to point has 2.

use std::f64::consts::{PI, SQRT_2};
use std::sync::Arc;

use rustdct::rustfft::num_complex::Complex;
use rustdct::rustfft::{Fft, FftPlanner};
use rustdct::{Dct1, DctPlanner, TransformType2And3};

use crate::grid::{Axis, AxisId, Grid, Placement};
use crate::transpose::transpose;

/// The wave φ_p at the relative coordinate `x` of an axis.
pub fn wave(periodic: bool, p: usize, x: f64) -> f64 {
    if p == 0 {
        return 1.0;
    }
    let angle = PI * half_waves(periodic, p) as f64 * x;
    SQRT_2 * if periodic && p.is_multiple_of(2) { angle.sin() } else { angle.cos() }
}

/// Half waves of φ_p along the axis.
pub fn half_waves(periodic: bool, p: usize) -> usize {
    if periodic { 2 * p.div_ceil(2) } else { p }
}

/// The values on the grid `to` of the waves through `field` `[rows, cols]` on the grid `from`: two grids of one domain with two
/// points or more along each axis.
///
/// # Panics
/// If the field does not have one value per point of its grid.
pub fn interpolate(from: &Grid, to: &Grid, field: &[f64]) -> Vec<f64> {
    assert_eq!(field.len(), from.len(), "one value per point");
    let rows = from.rows();
    let across = along(from.axis(AxisId::Cols), to.axis(AxisId::Cols), field);
    let mut transposed = vec![0.0; across.len()];
    transpose(&across, to.cols(), &mut transposed, rows);
    let down = along(from.axis(AxisId::Rows), to.axis(AxisId::Rows), &transposed);
    let mut values = vec![0.0; down.len()];
    transpose(&down, to.rows(), &mut values, to.cols());
    values
}

/// The lines `[lines, n]` of points `from` at the points `to`, `[lines, m]`.
fn along(from: &Axis, to: &Axis, lines: &[f64]) -> Vec<f64> {
    let mut coefficients = lines.to_vec();
    Waves::new(from).analyse(&mut coefficients);
    // Along a periodic axis waves begin at the first point, which need not be the end of the domain.
    let first = if from.periodic { from.coordinate(0) } else { from.first };
    let place = |i: usize| (to.coordinate(i) - first) / from.length();
    let n = from.nodes;
    let table: Vec<Vec<f64>> =
        (0..to.nodes).map(|i| (0..n).map(|p| wave(from.periodic, p, place(i))).collect()).collect();
    let value = |line: &[f64], row: &[f64]| line.iter().zip(row).map(|(c, v)| c * v).sum();
    coefficients.chunks_exact(n).flat_map(|line| table.iter().map(move |row| value(line, row))).collect()
}

/// The waves along one axis: n real coefficients of n ≥ 2 values.
pub(crate) struct Waves {
    n: usize,
    transform: Transform,
}

enum Transform {
    /// `Σ' f_i cos(π p i / (n - 1))`, ends halved.
    Nodes(Arc<dyn Dct1<f64>>),
    /// `Σ f_i cos(π p (i + ½) / n)`.
    Cells(Arc<dyn TransformType2And3<f64>>),
    /// Real and imaginary parts of `F_m = Σ f_i exp(-2πi m i / n)`: F₀, Re F₁, Im F₁, Re F₂, …
    Periodic(Arc<dyn Fft<f64>>),
}

impl Waves {
    pub fn new(axis: &Axis) -> Self {
        let n = axis.nodes;
        let transform = match (axis.periodic, axis.placement) {
            (true, _) => Transform::Periodic(FftPlanner::new().plan_fft_forward(n)),
            (false, Placement::Nodes) => Transform::Nodes(DctPlanner::new().plan_dct1(n)),
            (false, Placement::Cells) => Transform::Cells(DctPlanner::new().plan_dct2(n)),
        };
        Self { n, transform }
    }

    fn periodic(&self) -> bool {
        matches!(self.transform, Transform::Periodic(_))
    }

    /// Half waves of coefficient `p` along the axis.
    pub fn half_waves(&self, p: usize) -> usize {
        half_waves(self.periodic(), p)
    }

    /// Spacings in the domain.
    fn intervals(&self) -> usize {
        if matches!(self.transform, Transform::Nodes(_)) { self.n - 1 } else { self.n }
    }

    /// The mean square of φ_p over the axis, which is 2 for the wave that changes sign from point to point.
    pub fn mean_square(&self, p: usize) -> f64 {
        let alternates = match self.transform {
            Transform::Nodes(_) => p == self.n - 1,
            Transform::Cells(_) => false,
            Transform::Periodic(_) => self.half_waves(p) == self.n,
        };
        if alternates && p > 0 { 2.0 } else { 1.0 }
    }

    /// The relative coordinates x̂ that the waves are taken at.
    pub fn places(&self) -> impl Iterator<Item = f64> + '_ {
        let offset = if matches!(self.transform, Transform::Cells(_)) { 0.5 } else { 0.0 };
        (0..self.n).map(move |i| (i as f64 + offset) / self.intervals() as f64)
    }

    /// φ_p at every point, `[n]`.
    pub fn values(&self, p: usize) -> Vec<f64> {
        self.places().map(|x| wave(self.periodic(), p, x)).collect()
    }

    /// The factor from the square of coefficient `p` of [`Waves::transform`] to the wave's mean square.
    pub fn weight(&self, p: usize) -> f64 {
        // The transform sums over the points: a coefficient is 2 / intervals of that, its mean square a half; both
        // factors are 1 for the constant and for a wave that changes sign from point to point.
        let twice = if p == 0 || self.mean_square(p) == 2.0 { 1.0 } else { 2.0 };
        twice / (self.intervals() * self.intervals()) as f64
    }

    /// The unnormalised sums over points along each line of `[lines, n]`.
    pub fn transform(&self, lines: &mut [f64]) {
        let n = self.n;
        match &self.transform {
            Transform::Nodes(transform) => {
                let mut scratch = vec![0.0; transform.get_scratch_len()];
                lines.chunks_exact_mut(n).for_each(|line| transform.process_dct1_with_scratch(line, &mut scratch));
            }
            Transform::Cells(transform) => {
                let mut scratch = vec![0.0; transform.get_scratch_len()];
                lines.chunks_exact_mut(n).for_each(|line| transform.process_dct2_with_scratch(line, &mut scratch));
            }
            Transform::Periodic(transform) => {
                for line in lines.chunks_exact_mut(n) {
                    let mut waves: Vec<Complex<f64>> = line.iter().map(|&value| value.into()).collect();
                    transform.process(&mut waves);
                    for (p, value) in line.iter_mut().enumerate() {
                        let wave = waves[p.div_ceil(2)];
                        *value = if p == 0 || p % 2 == 1 { wave.re } else { wave.im };
                    }
                }
            }
        }
    }

    /// The coefficients c of f = Σ c_p φ_p along each line of `[lines, n]`, in place of the values.
    pub fn analyse(&self, lines: &mut [f64]) {
        self.transform(lines);
        let factor = |p: usize| {
            let sine = self.periodic() && p > 0 && p.is_multiple_of(2);
            let root = if p == 0 { 1.0 } else { SQRT_2 / self.mean_square(p) };
            (if sine { -root } else { root }) / self.intervals() as f64
        };
        let factors: Vec<f64> = (0..self.n).map(factor).collect();
        for line in lines.chunks_exact_mut(self.n) {
            line.iter_mut().zip(&factors).for_each(|(value, factor)| *value *= factor);
        }
    }

    /// The values f = Σ c_p φ_p along each line of `[lines, n]`, in place of the coefficients.
    pub fn synthesise(&self, lines: &mut [f64]) {
        let n = self.n;
        // The transforms halve the terms at the ends of their sums.
        let unhalved = |line: &mut [f64]| {
            line[0] *= 2.0;
            line[1..].iter_mut().for_each(|value| *value *= SQRT_2);
        };
        match &self.transform {
            Transform::Nodes(transform) => {
                let mut scratch = vec![0.0; transform.get_scratch_len()];
                for line in lines.chunks_exact_mut(n) {
                    unhalved(line);
                    line[n - 1] *= 2.0;
                    transform.process_dct1_with_scratch(line, &mut scratch);
                }
            }
            Transform::Cells(transform) => {
                let mut scratch = vec![0.0; transform.get_scratch_len()];
                for line in lines.chunks_exact_mut(n) {
                    unhalved(line);
                    transform.process_dct3_with_scratch(line, &mut scratch);
                }
            }
            Transform::Periodic(transform) => {
                for line in lines.chunks_exact_mut(n) {
                    let mut waves = vec![Complex::default(); n];
                    waves[0].re = line[0];
                    for (p, &value) in line.iter().enumerate().skip(1) {
                        // The conjugate of half the wave at m, and half the wave at n − m; both are one at n / 2.
                        let m = p.div_ceil(2);
                        let half = if p % 2 == 1 { Complex::new(value, 0.0) } else { Complex::new(0.0, value) };
                        waves[m] += half / SQRT_2;
                        waves[n - m] += half.conj() / SQRT_2;
                    }
                    transform.process(&mut waves);
                    line.iter_mut().zip(&waves).for_each(|(value, wave)| *value = wave.re);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolation_goes_through_the_points_and_is_exact_for_waves() {
        for (cells, periodic) in [(false, false), (true, false), (false, true), (true, true)] {
            let grid = |rows, cols| {
                let axis = |name, n| {
                    let axis = Axis::new(name, n, 1.0, 3.0);
                    let axis = if cells { axis.cells() } else { axis };
                    if periodic { axis.periodic() } else { axis }
                };
                Grid { axes: vec![axis("x", rows), axis("y", cols)] }
            };
            let field = |grid: &Grid| -> Vec<f64> {
                let places = grid.coordinate(AxisId::Rows).into_iter().zip(grid.coordinate(AxisId::Cols));
                let value = |(x, y): (f64, f64)| {
                    let [x, y] = [0.5 * (x - 1.0), 0.5 * (y - 1.0)];
                    0.3 + (2.0 * PI * x).cos() * (1.0 - 0.4 * (4.0 * PI * y).cos())
                };
                places.map(value).collect()
            };
            let (coarse, fine) = (grid(9, 8), grid(13, 16));
            for (found, expected) in interpolate(&coarse, &fine, &field(&coarse)).iter().zip(field(&fine)) {
                assert!((found - expected).abs() < 1e-12, "{cells}, {periodic}: {found} against {expected}");
            }
            let rough: Vec<f64> = (0..72).map(|i| f64::from(i * i % 13)).collect();
            for (found, expected) in interpolate(&coarse, &coarse, &rough).iter().zip(&rough) {
                assert!((found - expected).abs() < 1e-11, "{cells}, {periodic}: {found} against {expected}");
            }
        }
    }

    #[test]
    fn fast_transforms_are_the_sums_of_waves_and_undo_each_other() {
        for n in [2, 3, 8, 9] {
            for (cells, periodic) in [(false, false), (true, false), (false, true), (true, true)] {
                let axis = Axis::new("x", n, 1.0, 3.0);
                let axis = if cells { axis.cells() } else { axis };
                let axis = if periodic { axis.periodic() } else { axis };
                let waves = Waves::new(&axis);
                let coefficients: Vec<f64> = (0..n).map(|p| 1.0 - 0.3 * p as f64 + 0.1 * (p * p) as f64).collect();
                let mut values = coefficients.clone();
                waves.synthesise(&mut values);
                let mut expected = vec![0.0; n];
                for (p, c) in coefficients.iter().enumerate() {
                    expected.iter_mut().zip(waves.values(p)).for_each(|(sum, wave)| *sum += c * wave);
                }
                for (found, expected) in values.iter().zip(&expected) {
                    assert!((found - expected).abs() < 1e-12, "{axis:?}: {found} against {expected}");
                }
                waves.analyse(&mut values);
                for (found, expected) in values.iter().zip(&coefficients) {
                    assert!((found - expected).abs() < 1e-12, "{axis:?}: {found} against {expected}");
                }
                for p in 0..n {
                    let square: f64 = axis.weights().iter().zip(waves.values(p)).map(|(w, v)| w * v * v).sum();
                    assert!((square - waves.mean_square(p)).abs() < 1e-12, "{axis:?}, wave {p}: {square}");
                }
            }
        }
    }
}
