//! Sensors and equation as rows for the errors of an estimate D, and their solution.
//!
//! With x0 = D + U a + C √ρ b the rows are r = G(x0 − D) + noise, G = [H'; J]. In units of their noise they have the covariance
//! S = A Aᵀ + B Bᵀ + 1, A = G U, B = G C √ρ, and the mean of x0 − D is (U Aᵀ + C √ρ Bᵀ) S⁻¹ r. S of sensors alone is small and factorised
//! ([`Sensors`]). With the equation S is not formed: conjugate gradients need its products with vectors, and begin with the inverse of
//! A Aᵀ + diag(B Bᵀ) + 1, which takes modes along exactly. The equation's share of A, by far the most work, is in single precision.

use burn::tensor::{DType, Tensor, TensorData};
use softly_pde::gaussian::Update;

use crate::constraint::SoftConstraint;
use crate::constraint::linearised::LinearisedSystem;
use crate::observe::errors::ErrorsAt;
use crate::observe::observations::{LinearisedObservations, Observations};
use crate::observe::sensors::Sensors;
use crate::tensors::{field_batch, to_vec_f64, uploaded};

/// Most iterations, and the share of a row's noise that may stay of it.
const ITERATIONS: usize = 60;
const TOLERANCE: f64 = 1e-3;

/// Standard normal numbers that turn a mean into a draw.
#[derive(Clone, Copy)]
pub(crate) struct Disturbance<'a> {
    /// a `[L]`.
    pub modes: &'a [f64],
    /// b `[C·H·W]`.
    pub waves: &'a [f64],
    /// The rows' noise `[M]`.
    pub rows: &'a [f64],
}

impl<'a> Disturbance<'a> {
    /// Of `numbers`, at least L + C·H·W + M of them.
    pub fn of(numbers: &'a [f64], errors: &ErrorsAt, len: usize) -> Self {
        let (modes, numbers) = numbers.split_at(errors.len());
        let (waves, rows) = numbers.split_at(len);
        Self { modes, waves, rows }
    }
}

/// The rows at given fields.
pub(crate) struct Rows<'a> {
    sensors: &'a Sensors,
    own: LinearisedObservations<'a>,
    equation: Option<Equation<'a>>,
    shape: [usize; 3],
    /// Standard deviations `[M]`.
    noise: Vec<f64>,
    /// r in units of the noise, `[M]`: what the fields lack.
    right: Vec<f64>,
}

/// The equation among the rows.
struct Equation<'a> {
    system: LinearisedSystem<'a>,
    /// Aᵀ of all rows in units of the noise, `[L, M]`.
    columns: Vec<f64>,
    /// The diagonal of B Bᵀ + 1, `[M]`.
    diagonal: Vec<f64>,
}

impl<'a> Rows<'a> {
    /// `sensors` and, if its misfit is known, the equation with so many times the misfit's deviation for noise, at fields `[1, C, H, W]`.
    /// Sensors that are not linear were linearised there.
    pub fn new(
        observations: &'a Observations,
        sensors: &'a Sensors,
        equation: Option<(&'a SoftConstraint, f64)>,
        at: &Tensor<4>,
    ) -> Self {
        let [_, c, h, w] = at.dims();
        let errors = &*sensors.errors;
        let mut noise = observations.sds();
        let mut right = to_vec_f64(observations.misfit(at).neg());
        let equation = equation.zip(errors.misfit.as_ref()).map(|((constraint, doubt), misfit)| {
            let system = constraint.linearised_system(0..constraint.equations(), at, |_| {});
            let deviation: Vec<f64> = misfit.deviation.iter().map(|sd| sd * doubt).collect();
            let lack = misfit.mean.iter().zip(to_vec_f64(system.residual())).zip(&deviation);
            right.extend(lack.map(|((m, r), sd)| (m - r) / sd));
            let rest = misfit.rest.iter().zip(&deviation).map(|(rest, sd)| (rest / sd).powi(2));
            let diagonal = sensors.rest.iter().copied().chain(rest).map(|rest| 1.0 + rest).collect();
            let single = at.clone().cast(DType::F32);
            let seen = constraint.linearised_system(0..constraint.equations(), &single, |_| {}).product(&errors.single);
            let seen = to_vec_f64(seen);
            let mut columns = Vec::with_capacity(errors.len() * (noise.len() + deviation.len()));
            for (own, seen) in sensors.columns.chunks_exact(noise.len()).zip(seen.chunks_exact(deviation.len())) {
                columns.extend_from_slice(own);
                columns.extend(seen.iter().zip(&deviation).map(|(v, sd)| v / sd));
            }
            noise.extend(deviation);
            Equation { system, columns, diagonal }
        });
        Self { sensors, own: observations.linearised(at), equation, shape: [c, h, w], noise, right }
    }

    /// The mean of x0 − D, or a draw of it, `[C·H·W]`; the rows are linearised at D + `moved`.
    pub fn solve(&self, moved: &[f64], disturbance: Option<Disturbance<'_>>) -> Vec<f64> {
        let (errors, count, len) = (&*self.sensors.errors, self.noise.len(), moved.len());
        let mut right = self.right.clone();
        let mut add = |values: &[f64], factor: f64| right.iter_mut().zip(values).for_each(|(r, v)| *r += factor * v);
        if moved.iter().any(|v| *v != 0.0) {
            add(&self.product(&self.fields(moved.to_vec())), 1.0);
        }
        let prior = disturbance.map(|Disturbance { modes, waves, rows }| {
            let own = errors.combined(modes);
            let spread = to_vec_f64(errors.spread(self.fields(waves.to_vec())));
            let prior: Vec<f64> = own.iter().zip(&spread).map(|(a, b)| a + b).collect();
            add(&self.product(&self.fields(prior.clone())), -1.0);
            add(&rows[..count], 1.0);
            prior
        });
        let (weights, columns) = match &self.equation {
            Some(equation) => (self.weights(equation, &right), &equation.columns),
            None => (self.sensors.covariance.solve(&right), &self.sensors.columns),
        };
        let along: Vec<f64> = columns.chunks_exact(count).map(|column| dot(column, &weights)).collect();
        let mut step = errors.combined(&along);
        let rest = to_vec_f64(errors.spread(errors.gathered(self.transposed(&weights))));
        let prior = prior.unwrap_or_else(|| vec![0.0; len]);
        step.iter_mut().zip(rest.iter().zip(&prior)).for_each(|(step, (rest, prior))| *step += rest + prior);
        step
    }

    /// S⁻¹ `right`.
    fn weights(&self, equation: &Equation<'_>, right: &[f64]) -> Vec<f64> {
        let count = right.len();
        let roots: Vec<f64> = equation.diagonal.iter().map(|d| d.sqrt()).collect();
        let mut scaled = equation.columns.clone();
        for column in scaled.chunks_exact_mut(count) {
            column.iter_mut().zip(&roots).for_each(|(v, root)| *v /= root);
        }
        let update = Update::new(&scaled, self.sensors.errors.len());
        // With Ã and r̃ in units of the diagonal's roots, (Ã Ãᵀ + 1)⁻¹ r̃ = r̃ − Ã E[a | r̃].
        let precondition = |residual: &[f64]| -> Vec<f64> {
            let own: Vec<f64> = residual.iter().zip(&roots).map(|(r, root)| r / root).collect();
            let mut rest = own.clone();
            for (column, a) in scaled.chunks_exact(count).zip(update.mean(&own)) {
                rest.iter_mut().zip(column).for_each(|(rest, v)| *rest -= a * v);
            }
            rest.iter().zip(&roots).map(|(v, root)| v / root).collect()
        };
        let goal = TOLERANCE * (count as f64).sqrt();
        let (mut solution, mut residual) = (vec![0.0; count], right.to_vec());
        let mut search = precondition(&residual);
        let mut size = dot(&residual, &search);
        for _ in 0..ITERATIONS {
            if dot(&residual, &residual).sqrt() <= goal {
                break;
            }
            let image = self.covariance(&equation.columns, &search);
            let length = size / dot(&search, &image).max(f64::MIN_POSITIVE);
            solution.iter_mut().zip(&search).for_each(|(s, v)| *s += length * v);
            residual.iter_mut().zip(&image).for_each(|(r, v)| *r -= length * v);
            let next = precondition(&residual);
            let next_size = dot(&residual, &next);
            let share = next_size / size.max(f64::MIN_POSITIVE);
            search = next.iter().zip(&search).map(|(n, s)| n + share * s).collect();
            size = next_size;
        }
        solution
    }

    /// S·`w` `[M]`.
    fn covariance(&self, columns: &[f64], w: &[f64]) -> Vec<f64> {
        let errors = &self.sensors.errors;
        let mut sum = self.product(&errors.spread(errors.gathered(self.transposed(w))));
        for column in columns.chunks_exact(w.len()) {
            let along = dot(column, w);
            sum.iter_mut().zip(column).for_each(|(s, v)| *s += along * v);
        }
        sum.iter_mut().zip(w).for_each(|(s, w)| *s += w);
        sum
    }

    /// G·`directions` `[N, C, H, W]` in units of the noise, `[N, M]`.
    fn product(&self, directions: &Tensor<4>) -> Vec<f64> {
        let parts = [
            Some(to_vec_f64(self.own.product(directions))),
            self.equation.as_ref().map(|equation| to_vec_f64(equation.system.product(directions))),
        ];
        let n = directions.dims()[0];
        let mut values = Vec::with_capacity(n * self.noise.len());
        for k in 0..n {
            for part in parts.iter().flatten() {
                let own = part.len() / n;
                values.extend_from_slice(&part[k * own..(k + 1) * own]);
            }
        }
        for row in values.chunks_exact_mut(self.noise.len()) {
            row.iter_mut().zip(&self.noise).for_each(|(v, sd)| *v /= sd);
        }
        values
    }

    /// Gᵀ·`w` `[M]` with the rows in units of their noise, `[1, C, H, W]`.
    fn transposed(&self, w: &[f64]) -> Tensor<4> {
        let like = &self.sensors.errors.rest;
        let scaled: Vec<f64> = w.iter().zip(&self.noise).map(|(w, sd)| w / sd).collect();
        let (sensors, equation) = scaled.split_at(self.sensors.rest.len());
        let sensors = TensorData::new(sensors.to_vec(), [1, sensors.len()]);
        let gathered = self.own.transposed(&uploaded(sensors, &like.device(), like.dtype()));
        match &self.equation {
            Some(Equation { system, .. }) => {
                let shape = [system.equations.len(), self.shape[1], self.shape[2]];
                gathered + system.transposed(&field_batch(equation.to_vec(), shape, &like.device()))
            }
            None => gathered,
        }
    }

    fn fields(&self, values: Vec<f64>) -> Tensor<4> {
        field_batch(values, self.shape, &self.sensors.errors.rest.device())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::basis::Basis;
    use crate::constraint::config::ConstraintConfig;
    use crate::observe::errors::{Errors, LEVELS, LevelErrors, Misfit};
    use crate::observe::noise::Noise;
    use crate::observe::observations::Measured;
    use crate::observe::place::Extent;
    use crate::observe::reading::Reading;
    use crate::random::{Purpose, Stream};
    use crate::units::Units;
    use burn::tensor::Device;
    use softly_pde::gaussian::{Covariance, Modes};
    use softly_pde::grid::Grid;

    #[test]
    fn the_mean_is_that_of_the_dense_system() {
        let (grid, n) = (Grid::unit(4, 4), 16);
        let (fields, units) = (["a".to_string()], Units::identity(1));
        let config = r#"{"fields": ["a"], "residual": "laplacian(a) + 3*a - 1"}"#;
        let config: ConstraintConfig = serde_json::from_str(config).unwrap();
        let constraint = SoftConstraint::new(&config, &fields, &grid, &units).unwrap();
        let reading = |x: f64, value: f64| Reading {
            source: "test".into(),
            quantity: "a".into(),
            place: vec![Extent::Point(x), Extent::Whole],
            value,
            sd: Some(0.05),
        };
        let measured = Measured { fields: &fields, grid: &grid, units: &units, sigma_data: 0.5, constraint: None };
        let observations =
            Observations::new(&[reading(0.2, 0.4), reading(0.9, -0.1)], &Noise::default(), measured).unwrap();
        let numbers = |index: u64, count: usize| Stream::new(3, Purpose::Metric, index).normals(count);
        let misfit = Misfit {
            mean: numbers(0, n),
            variance: (0..n).map(|k| 0.5 + 0.1 * k as f64).collect(),
            rest: vec![2.0; n],
            inflation: 4.0,
        };
        let modes = Modes {
            vectors: numbers(1, 2 * n),
            values: vec![n as f64; 2],
            rest: (0..n).map(|k| 0.3 / (1.0 + k as f64)).collect(),
        };
        let errors =
            Errors::new(vec![LevelErrors { modes, misfit: Some(misfit) }; LEVELS], Basis::of_grid(1, &grid), 0.5);
        let device = Device::flex();
        let errors = errors.at(0.4, &device);
        let at = field_batch(numbers(2, n), [1, 4, 4], &device);
        let sensors = Sensors::new(&observations, errors.clone(), &at);
        let rows = Rows::new(&observations, &sensors, Some((&constraint, 1.5)), &at);
        let found = rows.solve(&vec![0.0; n], None);
        // The errors' covariance Σ, and G in units of the noise, by unit vectors.
        let unit =
            field_batch((0..n * n).map(|k| if k / n == k % n { 1.0 } else { 0.0 }).collect(), [1, 4, 4], &device);
        let spread = to_vec_f64(errors.spread(errors.gathered(unit.clone())));
        let of_modes = |i: usize, j: usize| errors.modes.chunks_exact(n).map(|m| m[i] * m[j]).sum::<f64>();
        let covariance = |i: usize, j: usize| spread[i * n + j] + of_modes(i, j);
        let (m, columns) = (2 + n, rows.product(&unit));
        let g = |row: usize, node: usize| columns[node * m + row];
        let mut seen = vec![0.0; m * n];
        for (k, seen) in seen.iter_mut().enumerate() {
            *seen = (0..n).map(|node| g(k / n, node) * covariance(node, k % n)).sum();
        }
        let mut system = vec![0.0; m * m];
        for (k, entry) in system.iter_mut().enumerate() {
            let noise = if k / m == k % m { 1.0 } else { 0.0 };
            *entry = noise + (0..n).map(|node| seen[k / m * n + node] * g(k % m, node)).sum::<f64>();
        }
        let weights = Covariance::new(&system, m).solve(&rows.right);
        for (node, found) in found.iter().enumerate() {
            let expected: f64 = (0..m).map(|row| seen[row * n + node] * weights[row]).sum();
            assert!((found - expected).abs() < 2e-3, "{found} and {expected}");
        }
    }
}
