//! Burgers' equation `u_t + u u_x = ν u_xx` on a periodic line: random initial states and reference solver.

use std::f64::consts::{PI, SQRT_2};
use std::sync::Arc;

use rand::Rng;
use rand_distr::{Distribution, StandardNormal};
use rustdct::rustfft::num_complex::Complex;
use rustdct::rustfft::{Fft, FftPlanner};
use thiserror::Error;

use crate::grid::{AxisId, Grid, TIME};

/// Fewest points that a solution is computed on.
const LEAST_POINTS: usize = 256;

/// Points per ν of a line of length 1: the spectrum of a front between ±1 has fallen to 1e-7 where waves are cut.
const POINTS_TIMES_VISCOSITY: f64 = 2.56;

/// Smallest viscosity of a line of length 1.
pub const MIN_VISCOSITY: f64 = 1e-4;

/// A step moves nothing by more than this fraction of a spacing.
const COURANT: f64 = 0.5;

/// Why Burgers' equation could not be posed or solved.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum BurgersError {
    /// A grid other than time along rows and a periodic line along columns.
    #[error("Burgers' equation needs the axis `t` along rows (two or more nodes) and a periodic axis along columns")]
    WrongGrid,
    /// A viscosity that is too small to resolve, or no number.
    #[error("the viscosity must be at least {MIN_VISCOSITY} of length²/time of the domain, found {viscosity}")]
    BadViscosity {
        /// The viscosity.
        viscosity: f64,
    },
    /// An initial state that is not finite or does not have one value per point.
    #[error("expected {expected} finite values of the initial state, found {found}")]
    BadState {
        /// Points of the solver.
        expected: usize,
        /// Finite values found.
        found: usize,
    },
}

/// The initial state `Σ_k √2 scale ((2πk)² + τ²)^(-γ/2) (a_k cos 2πkx̂ + b_k sin 2πkx̂)` with standard normals a and b,
/// k from 1 to `modes`, x̂ from 0 to 1 along the line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InitialState {
    /// Smoothness γ.
    pub gamma: f64,
    /// Inverse length τ.
    pub tau: f64,
    /// Factor of all waves.
    pub scale: f64,
    /// Number of waves.
    pub modes: usize,
}

impl InitialState {
    /// A random state at `points` equal distances. The same random numbers give the same function for any number of
    /// points.
    pub fn sample(&self, points: usize, rng: &mut impl Rng) -> Vec<f64> {
        let mut spectrum = vec![Complex::default(); points];
        for k in 1..=self.modes {
            let [a, b]: [f64; 2] = [StandardNormal.sample(rng), StandardNormal.sample(rng)];
            let square = (2.0 * PI * k as f64).powi(2) + self.tau * self.tau;
            let size = SQRT_2 * self.scale * square.powf(-0.5 * self.gamma);
            if let Some(wave) = spectrum.get_mut(k).filter(|_| 2 * k < points) {
                // Of the real part of Σ F_k exp(-2πi k i / n).
                *wave = Complex::new(size * a, size * b);
            }
        }
        FftPlanner::new().plan_fft_forward(points).process(&mut spectrum);
        spectrum.into_iter().map(|value| value.re).collect()
    }
}

/// Solves Burgers' equation on a grid of time (rows) and a periodic line (columns): Fourier waves in space, of which
/// the upper third is cut against aliasing, and Runge and Kutta's fourth-order steps with the exact decay by viscosity
/// in time.
pub struct BurgersSolver {
    frames: usize,
    cols: usize,
    /// Time between frames.
    interval: f64,
    /// Points that are computed, a multiple of `cols`.
    points: usize,
    spacing: f64,
    /// ν k² of every wave, in the transform's order.
    decay: Vec<f64>,
    /// -i k / 2, zero where waves are cut.
    slope: Vec<Complex<f64>>,
    forward: Arc<dyn Fft<f64>>,
    backward: Arc<dyn Fft<f64>>,
}

impl BurgersSolver {
    /// Prepares solutions on `grid`, computed on as many points as the viscosity needs.
    pub fn new(grid: &Grid, viscosity: f64) -> Result<Self, BurgersError> {
        let good = grid.check().is_ok()
            && matches!(&grid.axes[..], [t, x] if t.name == TIME && t.has_end_nodes() && t.nodes > 1 && x.periodic);
        if !good {
            return Err(BurgersError::WrongGrid);
        }
        let (length, cols) = (grid.length(AxisId::Cols), grid.cols());
        // In the units of the domain: one length, one unit of time.
        let relative = viscosity * grid.length(AxisId::Rows) / (length * length);
        if !(relative >= MIN_VISCOSITY && relative.is_finite()) {
            return Err(BurgersError::BadViscosity { viscosity });
        }
        let needed = (POINTS_TIMES_VISCOSITY / relative).ceil() as usize;
        let points = cols * needed.max(LEAST_POINTS).div_ceil(cols);
        Ok(Self::on_points(grid, viscosity, points))
    }

    /// The same on a given number of points, a multiple of the grid's columns.
    fn on_points(grid: &Grid, viscosity: f64, points: usize) -> Self {
        let length = grid.length(AxisId::Cols);
        let wave = |i: usize| 2.0 * PI / length * if 2 * i < points { i as f64 } else { i as f64 - points as f64 };
        let kept = |i: usize| 3 * i.min(points - i) < points;
        let slope = |i: usize| if kept(i) { Complex::new(0.0, -0.5 * wave(i)) } else { Complex::default() };
        let mut planner = FftPlanner::new();
        Self {
            frames: grid.rows(),
            cols: grid.cols(),
            interval: grid.spacing(AxisId::Rows),
            points,
            spacing: length / points as f64,
            decay: (0..points).map(|i| viscosity * wave(i).powi(2)).collect(),
            slope: (0..points).map(slope).collect(),
            forward: planner.plan_fft_forward(points),
            backward: planner.plan_fft_inverse(points),
        }
    }

    /// Points of an initial state.
    pub fn points(&self) -> usize {
        self.points
    }

    /// The state at all points of the trigonometric polynomial through `values` at the grid's columns.
    ///
    /// # Panics
    /// If there is not one value per column.
    pub fn interpolate(&self, values: &[f64]) -> Vec<f64> {
        let (n, points) = (self.cols, self.points);
        assert_eq!(values.len(), n, "one value per column");
        let mut coarse: Vec<Complex<f64>> = values.iter().map(|&value| (value / n as f64).into()).collect();
        FftPlanner::new().plan_fft_forward(n).process(&mut coarse);
        let mut spectrum = vec![Complex::default(); points];
        for (k, &wave) in coarse.iter().enumerate() {
            // Half of the wave that changes sign from point to point goes to either side.
            if 2 * k == n && points > n {
                spectrum[k] = wave * 0.5;
                spectrum[points - k] = wave * 0.5;
            } else {
                spectrum[if 2 * k < n { k } else { points + k - n }] = wave;
            }
        }
        self.backward.process(&mut spectrum);
        spectrum.into_iter().map(|value| value.re).collect()
    }

    /// u at all frames, `[rows, cols]`, from the `initial` state at [`BurgersSolver::points`] points.
    pub fn solve(&self, initial: &[f64]) -> Result<Vec<f64>, BurgersError> {
        let found = initial.iter().filter(|u| u.is_finite()).count();
        if found != self.points || initial.len() != self.points {
            return Err(BurgersError::BadState { expected: self.points, found });
        }
        // Nothing ever exceeds the extremes of the initial state.
        let fastest = initial.iter().fold(0.0_f64, |max, u| max.max(u.abs()));
        let steps = (self.interval * fastest / (COURANT * self.spacing)).ceil().max(1.0) as usize;
        Ok(self.solve_in_steps(initial, steps))
    }

    /// The same in `steps` steps from frame to frame.
    fn solve_in_steps(&self, initial: &[f64], steps: usize) -> Vec<f64> {
        let dt = self.interval / steps as f64;
        let half: Vec<f64> = self.decay.iter().map(|decay| (-0.5 * dt * decay).exp()).collect();
        let mut spectrum: Vec<Complex<f64>> = initial.iter().map(|&u| u.into()).collect();
        self.forward.process(&mut spectrum);
        let mut frames = Vec::with_capacity(self.frames * self.cols);
        self.store(&spectrum, &mut frames);
        for _ in 1..self.frames {
            for _ in 0..steps {
                spectrum = self.step(&spectrum, dt, &half);
            }
            self.store(&spectrum, &mut frames);
        }
        frames
    }

    /// One step of û_t = N(û) − ν k² û, with E = exp(−ν k² dt/2) `half`:
    /// û' = E² û + dt/6 (E² N₁ + 2 E (N₂ + N₃) + N₄).
    fn step(&self, u: &[Complex<f64>], dt: f64, half: &[f64]) -> Vec<Complex<f64>> {
        let n1 = self.advection(u);
        let stage = |n: &[Complex<f64>], combine: &dyn Fn(usize, Complex<f64>) -> Complex<f64>| -> Vec<Complex<f64>> {
            n.iter().enumerate().map(|(i, &n)| combine(i, n)).collect()
        };
        let n2 = self.advection(&stage(&n1, &|i, n| (u[i] + n * (0.5 * dt)) * half[i]));
        let n3 = self.advection(&stage(&n2, &|i, n| u[i] * half[i] + n * (0.5 * dt)));
        let n4 = self.advection(&stage(&n3, &|i, n| u[i] * (half[i] * half[i]) + n * (dt * half[i])));
        let whole = |i: usize| {
            let e = half[i];
            u[i] * (e * e) + (n1[i] * (e * e) + (n2[i] + n3[i]) * (2.0 * e) + n4[i]) * (dt / 6.0)
        };
        (0..u.len()).map(whole).collect()
    }

    /// N(û): the waves of −(u²/2)_x.
    fn advection(&self, spectrum: &[Complex<f64>]) -> Vec<Complex<f64>> {
        let mut values = spectrum.to_vec();
        self.backward.process(&mut values);
        let normalisation = 1.0 / self.points as f64;
        for u in &mut values {
            *u = Complex::from((u.re * normalisation).powi(2));
        }
        self.forward.process(&mut values);
        values.iter_mut().zip(&self.slope).for_each(|(value, slope)| *value *= slope);
        values
    }

    /// Appends the values at the grid's points.
    fn store(&self, spectrum: &[Complex<f64>], frames: &mut Vec<f64>) {
        let mut values = spectrum.to_vec();
        self.backward.process(&mut values);
        let every = self.points / self.cols;
        frames.extend(values.iter().step_by(every).map(|u| u.re / self.points as f64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Axis;

    fn grid(frames: usize, cols: usize) -> Grid {
        Grid { axes: vec![Axis::new("t", frames, 0.0, 1.0), Axis::new("x", cols, 0.0, 1.0).periodic()] }
    }

    /// Cole and Hopf's `u = -2ν φ_x/φ` with `φ = 1 + a exp(-4π²νt) cos 2πx`, which obeys the heat equation.
    fn exact(viscosity: f64, a: f64, [t, x]: [f64; 2]) -> f64 {
        let height = a * (-4.0 * PI * PI * viscosity * t).exp();
        let angle = 2.0 * PI * x;
        4.0 * PI * viscosity * height * angle.sin() / (1.0 + height * angle.cos())
    }

    fn worst(grid: &Grid, found: &[f64], viscosity: f64, a: f64) -> f64 {
        let places = grid.coordinate(AxisId::Rows).into_iter().zip(grid.coordinate(AxisId::Cols));
        let gaps = places.zip(found).map(|((t, x), found)| (found - exact(viscosity, a, [t, x])).abs());
        gaps.fold(0.0, f64::max)
    }

    fn initial(points: usize, viscosity: f64, a: f64) -> Vec<f64> {
        (0..points).map(|i| exact(viscosity, a, [0.0, i as f64 / points as f64])).collect()
    }

    #[test]
    fn cole_and_hopf_s_solution_is_found_to_seven_digits() {
        // 0.9 makes a front of five times the viscosity's own slope.
        for (viscosity, a) in [(0.01, 0.9), (0.05, 0.9), (0.01, 0.3)] {
            let grid = grid(5, 32);
            let solver = BurgersSolver::new(&grid, viscosity).unwrap();
            let found = solver.solve(&initial(solver.points(), viscosity, a)).unwrap();
            let error = worst(&grid, &found, viscosity, a);
            assert!(error < 1e-7 * exact(viscosity, a, [0.0, 0.4]).abs(), "ν = {viscosity}, a = {a}: {error:e}");
        }
    }

    #[test]
    fn interpolation_is_exact_for_resolved_waves() {
        let wave = |i: usize, n: usize| {
            let angle = 2.0 * PI * i as f64 / n as f64;
            0.3 + (3.0 * angle).cos() - 0.7 * (5.0 * angle).sin()
        };
        for cols in [16, 17] {
            let solver = BurgersSolver::new(&grid(3, cols), 0.01).unwrap();
            let found = solver.interpolate(&(0..cols).map(|i| wave(i, cols)).collect::<Vec<_>>());
            assert_eq!(found.len(), solver.points());
            for (i, found) in found.iter().enumerate() {
                assert!((found - wave(i, solver.points())).abs() < 1e-12, "{cols}, {i}: {found}");
            }
        }
        // The wave that changes sign goes through its points.
        let solver = BurgersSolver::new(&grid(3, 16), 0.01).unwrap();
        let found = solver.interpolate(&(0..16).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect::<Vec<_>>());
        assert!((found[0] - 1.0).abs() < 1e-12 && (found[solver.points() / 16] + 1.0).abs() < 1e-12);
    }

    #[test]
    fn steps_are_of_fourth_order() {
        // Little viscosity per step: where waves die within one, the order is lower.
        let (viscosity, a) = (0.05, 0.5);
        let grid = grid(2, 64);
        let solver = BurgersSolver::on_points(&grid, viscosity, 256);
        let start = initial(256, viscosity, a);
        let error = |steps| worst(&grid, &solver.solve_in_steps(&start, steps), viscosity, a);
        let errors = [32, 64, 128, 256].map(error);
        let orders: Vec<f64> = errors.windows(2).map(|pair| (pair[0] / pair[1]).log2()).collect();
        let mean = orders.iter().sum::<f64>() / orders.len() as f64;
        assert!((3.6..4.6).contains(&mean), "{errors:?}, orders {orders:?}");
    }

    #[test]
    fn waves_are_resolved_exponentially() {
        let (viscosity, a) = (0.01, 0.8);
        let grid = grid(3, 8);
        let error = |points: usize| {
            let solver = BurgersSolver::on_points(&grid, viscosity, points);
            worst(&grid, &solver.solve_in_steps(&initial(points, viscosity, a), 400), viscosity, a)
        };
        let errors = [16, 32, 64].map(error);
        // Twice the points square the error, as far as rounding allows.
        assert!(errors[1] < 0.1 * errors[0] && errors[2] < 0.01 * errors[1], "{errors:?}");
    }

    #[test]
    fn the_mean_stays_and_the_energy_falls() {
        use rand::SeedableRng;
        // All points of the solver: on fewer ones a short wave would look like a mean.
        let grid = grid(9, 512);
        let solver = BurgersSolver::on_points(&grid, 0.01, 512);
        let state = InitialState { gamma: 2.5, tau: 7.0, scale: 49.0, modes: 64 };
        let initial = state.sample(solver.points(), &mut rand_chacha::ChaCha8Rng::seed_from_u64(3));
        let found = solver.solve(&initial).unwrap();
        let frames: Vec<&[f64]> = found.chunks(512).collect();
        let energy = |frame: &[f64]| frame.iter().map(|u| u * u).sum::<f64>();
        for pair in frames.windows(2) {
            assert!(energy(pair[1]) < energy(pair[0]));
        }
        assert!(frames.iter().all(|frame| (frame.iter().sum::<f64>() / 512.0).abs() < 1e-9));
    }

    #[test]
    fn initial_states_have_their_variance_and_do_not_depend_on_the_points() {
        use rand::SeedableRng;
        let state = InitialState { gamma: 2.5, tau: 7.0, scale: 49.0, modes: 64 };
        let draw = |points, seed| state.sample(points, &mut rand_chacha::ChaCha8Rng::seed_from_u64(seed));
        let (coarse, fine) = (draw(256, 1), draw(512, 1));
        for (coarse, fine) in coarse.iter().zip(fine.iter().step_by(2)) {
            assert!((coarse - fine).abs() < 1e-12);
        }
        // Σ 2 · 49² ((2πk)² + 49)^(-5/2), the variance at every point.
        let expected: f64 =
            (1..=64).map(|k| 2.0 * 49f64.powi(2) * ((2.0 * PI * f64::from(k)).powi(2) + 49.0).powf(-2.5)).sum();
        let draws = 4000;
        let found = (0..draws).map(|seed| draw(256, seed)[17].powi(2)).sum::<f64>() / f64::from(draws as u32);
        assert!((found / expected - 1.0).abs() < 4.0 * (2.0 / f64::from(draws as u32)).sqrt(), "{found}, {expected}");
    }

    #[test]
    fn what_cannot_be_solved_is_refused() {
        let line = Axis::new("x", 16, 0.0, 1.0);
        let time = Axis::new("t", 4, 0.0, 1.0);
        for axes in [vec![time.clone(), line.clone()], vec![line.clone().periodic(), time.clone()], vec![]] {
            assert_eq!(BurgersSolver::new(&Grid { axes }, 0.01).err(), Some(BurgersError::WrongGrid));
        }
        for viscosity in [0.0, -1.0, 1e-5, f64::NAN, f64::INFINITY] {
            let found = BurgersSolver::new(&grid(4, 16), viscosity).err();
            assert!(matches!(found, Some(BurgersError::BadViscosity { .. })), "{viscosity}");
        }
        let solver = BurgersSolver::new(&grid(4, 16), 0.01).unwrap();
        for state in [vec![0.0; 16], vec![f64::NAN; 256]] {
            assert!(matches!(solver.solve(&state), Err(BurgersError::BadState { expected: 256, .. })));
        }
    }
}
