//! Methods of conditioning against closed forms: Gaussian data, linear sensors.

use burn::tensor::Tensor;
use softly::noise::{Noise as SampleNoise, NoiseConfig};
use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    CoCoGen, Condition, DataMoments, Dataset, Denoiser, DiffusionPde, Eci, Errors, Extent, FunDps, Given, Knowledge,
    Kriging, Measured, MomentMatched, Noise, Norm, Observations, Observed, Parameters, Pcfm, Pdm, Ppr, Reading,
    Sampler, SensorDps, SigmaGrid, Target, Unobserved, Visitor,
};
use softly_pde::gaussian::{Covariance, Modes};
use softly_pde::grid::Grid;

use crate::common::denoisers::Shrink;
use crate::common::gaussian::Gaussian;
use crate::common::{field, normals, point_constraint};

/// Sensors of Gaussian data: readings, and the rows of H in the order of the data's numbers.
struct Problem {
    data: Gaussian,
    observations: Observations,
    rows: Vec<Vec<f64>>,
}

fn names(count: usize) -> Vec<String> {
    ["a", "b"][..count].iter().map(ToString::to_string).collect()
}

fn observe(readings: &[(&str, Vec<Extent>, f64, f64)], grid: &Grid, channels: usize) -> Observations {
    let reading = |(quantity, place, value, sd): &(&str, Vec<Extent>, f64, f64)| Reading {
        source: "test".into(),
        quantity: (*quantity).into(),
        place: place.clone(),
        value: *value,
        sd: Some(*sd),
    };
    let readings: Vec<Reading> = readings.iter().map(reading).collect();
    let (fields, units) = (names(channels), Units::identity(channels));
    let measured = Measured { fields: &fields, grid, units: &units, sigma_data: 0.5, constraint: None };
    Observations::new(&readings, &Noise::default(), measured).unwrap()
}

impl Problem {
    /// Two dimensions, one sensor of a sum.
    fn flat() -> Self {
        let observations = observe(&[("a + 2*b", Vec::new(), 0.7, 0.2)], &Grid::point(), 2);
        Self { data: Gaussian::flat(), observations, rows: vec![vec![1.0, 2.0]] }
    }

    /// 256 dimensions: points on and between nodes, and a mean.
    fn large() -> Self {
        let grid = Grid::unit(16, 16);
        let h = 1.0 / 15.0;
        let at = |x: f64, y: f64| vec![Extent::Point(x * h), Extent::Point(y * h)];
        let mut readings =
            vec![("a", at(3.0, 4.5), 0.4, 0.05), ("a", vec![Extent::Whole, Extent::Range(0.0, h)], 0.1, 0.02)];
        let mut rows = vec![vec![0.0; 256], vec![0.0; 256]];
        rows[0][3 * 16 + 4] = 0.5;
        rows[0][3 * 16 + 5] = 0.5;
        for i in 0..16 {
            let weight = if i == 0 || i == 15 { 0.5 } else { 1.0 } / 15.0;
            rows[1][i * 16] = weight / 2.0;
            rows[1][i * 16 + 1] = weight / 2.0;
        }
        for (k, node) in [17, 40, 99, 130, 201, 255].into_iter().enumerate() {
            readings.push(("a", at(f64::from(node / 16), f64::from(node % 16)), 0.2 * k as f64 - 0.5, 0.1));
            rows.push((0..256).map(|i| if i == node { 1.0 } else { 0.0 }).collect());
        }
        Self { data: Gaussian::large(), observations: observe(&readings, &grid, 1), rows }
    }

    /// The modes of the best denoiser's errors: λσ²/(λ + σ²) along each eigenvector.
    fn errors(&self) -> Errors {
        let data = self.data.clone();
        Errors::known(self.data.shape, move |sigma| modes(&data, |l| l * sigma * sigma / (l + sigma * sigma)))
    }

    /// Mean `[d]` and covariance `[d, d]` of the data given the sensors, by plain elimination.
    fn exact(&self) -> (Vec<f64>, Vec<f64>) {
        let d = self.data.size();
        let prior = modes(&self.data, |l| l);
        let covariance = |x: &[f64]| {
            let inner = |mode: &[f64]| mode.iter().zip(x).map(|(m, x)| m * x).sum::<f64>();
            let mut sum = vec![0.0; d];
            for mode in prior.vectors.chunks_exact(d) {
                let along = inner(mode);
                sum.iter_mut().zip(mode).for_each(|(s, m)| *s += along * m);
            }
            sum
        };
        let mean = self.data.out_of_eigen(&vec![0.0; d]);
        let spread: Vec<Vec<f64>> = self.rows.iter().map(|row| covariance(row)).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let m = self.rows.len();
        let mut system: Vec<Vec<f64>> =
            (0..m).map(|i| (0..m).map(|j| dot(&self.rows[i], &spread[j])).collect()).collect();
        for (i, sd) in self.observations.sds().iter().enumerate() {
            system[i][i] += sd * sd;
        }
        let innovation: Vec<f64> =
            self.observations.values().iter().zip(&self.rows).map(|(y, row)| y - dot(row, &mean)).collect();
        let weights = solve(&system, &innovation);
        let moved = |k: usize| mean[k] + (0..m).map(|i| weights[i] * spread[i][k]).sum::<f64>();
        let mut posterior = Vec::with_capacity(d * d);
        for k in 0..d {
            let unit: Vec<f64> = (0..d).map(|i| if i == k { 1.0 } else { 0.0 }).collect();
            let gains = solve(&system, &spread.iter().map(|row| row[k]).collect::<Vec<_>>());
            let own = covariance(&unit);
            posterior.extend((0..d).map(|j| own[j] - (0..m).map(|i| gains[i] * spread[i][j]).sum::<f64>()));
        }
        ((0..d).map(moved).collect(), posterior)
    }
}

fn modes(data: &Gaussian, variance: impl Fn(f64) -> f64) -> Modes {
    let d = data.size();
    let values: Vec<f64> = data.eigenvalues.iter().map(|&l| variance(l)).collect();
    let vector = |k: usize| {
        let unit: Vec<f64> = (0..d).map(|i| if i == k { values[k].sqrt() } else { 0.0 }).collect();
        data.mirror(&unit)
    };
    Modes { vectors: (0..d).flat_map(vector).collect(), values: values.clone(), rest: vec![0.0; d] }
}

/// Gauss's elimination with the largest pivots.
fn solve(matrix: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let n = right.len();
    let mut rows: Vec<Vec<f64>> = matrix.iter().zip(right).map(|(row, r)| [&row[..], &[*r]].concat()).collect();
    for k in 0..n {
        let pivot = (k..n).max_by(|&a, &b| rows[a][k].abs().total_cmp(&rows[b][k].abs())).unwrap();
        rows.swap(k, pivot);
        let lead = rows[k].clone();
        for (i, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != k) {
            let factor = row[k] / lead[k];
            row.iter_mut().zip(&lead).for_each(|(v, l)| *v -= factor * l);
            assert!(i < n);
        }
    }
    (0..n).map(|i| rows[i][n] / rows[i][i]).collect()
}

/// The mean and the covariance `[d, d]` of an affine map of standard normal latents, exactly: its values at 0 and at unit vectors.
fn moments(size: usize, map: impl Fn(Vec<f64>) -> Vec<f64>) -> (Vec<f64>, Vec<f64>) {
    let mut latents = vec![0.0; (size + 1) * size];
    (0..size).for_each(|k| latents[(k + 1) * size + k] = 1.0);
    let values = map(latents);
    let d = values.len() / (size + 1);
    let mean = values[..d].to_vec();
    let columns: Vec<Vec<f64>> =
        values[d..].chunks_exact(d).map(|x| x.iter().zip(&mean).map(|(x, m)| x - m).collect()).collect();
    let entry = |k: usize| columns.iter().map(|c| c[k / d] * c[k % d]).sum::<f64>();
    ((mean), (0..d * d).map(entry).collect())
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn norm(a: &[f64]) -> f64 {
    a.iter().map(|a| a * a).sum::<f64>().sqrt()
}

#[test]
fn kalmans_samples_converge_to_the_exact_posteriors_mean_and_covariance() {
    for problem in [Problem::flat(), Problem::large()] {
        let (mean, covariance) = problem.exact();
        let errors = problem.errors();
        let observed = Observed::new(&problem.data, &problem.observations, None, &errors, 1);
        let (size, shape) = (problem.data.size(), problem.data.shape);
        let off = |steps: usize| {
            let sampler = Sampler { steps, ..Sampler::default() };
            let sample = |latents: Vec<f64>| {
                let target = Target::plain(&observed, shape);
                let more = &mut || unreachable!("nothing is stochastic");
                to_vec_f64(sampler.sample_from(field(&latents, shape), target, more, &mut Unobserved))
            };
            let (found_mean, found_covariance) = moments(size, sample);
            let mean_error = distance(&found_mean, &mean) / norm(&mean);
            assert!(mean_error < 0.01, "mean of {size} dimensions is off by {mean_error} after {steps} steps");
            distance(&found_covariance, &covariance) / norm(&covariance)
        };
        // Heun's own error on a Gaussian, with sensors or without, is 3 to 4 % of a variance at 32 steps; its order is 2.
        let (coarse, fine) = (off(32), off(64));
        assert!(fine < 0.01, "covariance of {size} dimensions is off by {fine}");
        assert!(
            coarse < 0.04 && coarse / fine > 3.0,
            "covariance of {size} dimensions is off by {coarse}, then {fine}"
        );
    }
}

#[test]
fn a_denoiser_given_sensors_is_the_mean_given_both_and_so_is_moment_matching() {
    for problem in [Problem::flat(), Problem::large()] {
        let (shape, size) = (problem.data.shape, problem.data.size());
        let (errors, sigma) = (problem.errors(), 0.3);
        let x = field(&normals(8, 0, 2 * size), shape);
        let observed = Observed::new(&problem.data, &problem.observations, None, &errors, 1);
        let found = to_vec_f64(observed.denoise(x.clone(), &[sigma, sigma]));
        // x is one more measurement of every number, with noise σ.
        let base = to_vec_f64(problem.data.denoise(x.clone(), &[sigma, sigma]));
        let own = modes(&problem.data, |l| l * sigma * sigma / (l + sigma * sigma));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for (found, base) in found.chunks_exact(size).zip(base.chunks_exact(size)) {
            let spread: Vec<Vec<f64>> = problem
                .rows
                .iter()
                .map(|row| {
                    let along: Vec<f64> = own.vectors.chunks_exact(size).map(|mode| dot(mode, row)).collect();
                    own.combined(&along)
                })
                .collect();
            let m = problem.rows.len();
            let mut system: Vec<Vec<f64>> =
                (0..m).map(|i| (0..m).map(|j| dot(&problem.rows[i], &spread[j])).collect()).collect();
            problem.observations.sds().iter().enumerate().for_each(|(i, sd)| system[i][i] += sd * sd);
            let right: Vec<f64> =
                problem.observations.values().iter().zip(&problem.rows).map(|(y, row)| y - dot(row, base)).collect();
            let weights = solve(&system, &right);
            for k in 0..size {
                let expected = base[k] + (0..m).map(|i| weights[i] * spread[i][k]).sum::<f64>();
                assert!((found[k] - expected).abs() < 1e-9, "{} and {expected}", found[k]);
            }
        }
        // The best denoiser's Jacobian times σ² is the covariance of its errors.
        let matched = MomentMatched {
            base: &problem.data,
            observations: &problem.observations,
            iterations: 12,
            sigma_data: None,
        };
        let other = to_vec_f64(matched.denoise(x, &[sigma, sigma]));
        assert!(distance(&other, &found) < 1e-6 * norm(&found), "{}", distance(&other, &found));
    }
}

#[test]
fn jfps_is_exact_where_its_covariance_is() {
    let observations = observe(&[("a", Vec::new(), 0.7, 0.2)], &Grid::point(), 2);
    let base = Shrink { variance: 0.25 };
    let matched = MomentMatched { base: &base, observations: &observations, iterations: 1, sigma_data: Some(0.5) };
    let found = to_vec_f64(matched.denoise(field(&[0.3, -0.4], [2, 1, 1]), &[0.4]));
    // Three measurements of the first number: 0 ± 0.5, 0.3 ± 0.4 and 0.7 ± 0.2; two of the second.
    let weights = [1.0 / 0.25, 1.0 / 0.16, 1.0 / 0.04];
    let first = (0.3 * weights[1] + 0.7 * weights[2]) / weights.iter().sum::<f64>();
    let second = -0.4 * weights[1] / (weights[0] + weights[1]);
    assert!((found[0] - first).abs() < 1e-12 && (found[1] - second).abs() < 1e-12, "{found:?}");
}

#[test]
fn samples_at_different_levels_are_matched_by_themselves() {
    let observations = observe(&[("a", Vec::new(), 0.7, 0.2)], &Grid::point(), 2);
    let base = Shrink { variance: 0.25 };
    for sigma_data in [None, Some(0.5)] {
        let matched = MomentMatched { base: &base, observations: &observations, iterations: 2, sigma_data };
        let (first, second) = ([0.3, -0.4], [1.5, 0.2]);
        let both = to_vec_f64(matched.denoise(field(&[first, second].concat(), [2, 1, 1]), &[0.4, 3.0]));
        let alone = [(first, 0.4), (second, 3.0)];
        let alone = alone.map(|(x, sigma)| to_vec_f64(matched.denoise(field(&x, [2, 1, 1]), &[sigma])));
        assert!(distance(&both, &alone.concat()) < 1e-12, "{both:?} and {alone:?}");
    }
}

/// Samples of a problem by jumps from `latents` `[N, d]`; `more` draws noise of the same size.
fn jumped(problem: &Problem, sampler: &Sampler, latents: &[f64], mut more: impl FnMut() -> Vec<f64>) -> Vec<f64> {
    let knowledge = Knowledge { errors: Some(problem.errors()), data: None };
    let shape = problem.data.shape;
    let (denoiser, observations) = (&problem.data, &problem.observations);
    let given = Given { denoiser, observations, constraint: None, knowledge: &knowledge, shape };
    let kalman = softly::Kalman { jumps: true, ..softly::Kalman::default() };
    let mut more = || field(&more(), shape);
    to_vec_f64(kalman.sample(given, sampler, field(latents, shape), &mut more, &mut Unobserved))
}

#[test]
fn jumps_have_the_posteriors_mean_and_covariance_exactly() {
    // One level with a draw holds all that many levels do.
    for (problem, steps) in [(Problem::flat(), 32), (Problem::large(), 2)] {
        let (mean, covariance) = problem.exact();
        let sampler = Sampler { steps, ..Sampler::default() };
        // The map is affine in the latents and, at all levels but the last, in four draws as large: for modes, waves, the
        // sensors, and the next level's noise.
        let d = problem.data.size();
        let size = d * (1 + 4 * (steps - 1));
        let sample = |numbers: Vec<f64>| {
            let part = |first: usize| -> Vec<f64> {
                numbers.chunks_exact(size).flat_map(|own| own[first..first + d].to_vec()).collect()
            };
            let mut drawn = 0;
            let more = || {
                drawn += d;
                part(drawn)
            };
            jumped(&problem, &sampler, &part(0), more)
        };
        let (found_mean, found_covariance) = moments(size, sample);
        let mean_error = distance(&found_mean, &mean) / norm(&mean);
        assert!(mean_error < 1e-3, "mean of {d} dimensions is off by {mean_error}");
        let error = distance(&found_covariance, &covariance) / norm(&covariance);
        assert!(error < 1e-3, "covariance of {d} dimensions is off by {error}");
    }
}

#[test]
fn samples_of_256_dimensions_after_32_steps_are_within_statistical_error_of_the_posterior() {
    let problem = Problem::large();
    let (mean, covariance) = problem.exact();
    let (d, count) = (problem.data.size(), 256);
    // Far below the narrowest eigenvalue, as the last step is a mean.
    let sampler = Sampler { steps: 32, sigma_min: 2e-4, ..Sampler::default() };
    let mut drawn = 0;
    let more = || {
        drawn += 1;
        normals(22, drawn, count * d)
    };
    let samples = jumped(&problem, &sampler, &normals(22, 0, count * d), more);
    let inverse = Covariance::new(&covariance, d);
    let square = |x: &[f64]| -> f64 {
        let off: Vec<f64> = x.iter().zip(&mean).map(|(x, m)| x - m).collect();
        inverse.solve(&off).iter().zip(&off).map(|(a, b)| a * b).sum()
    };
    // (x − m)ᵀ C⁻¹ (x − m) is χ² of d degrees of freedom: over d its mean is 1 with the variance 2/d.
    let spread = samples.chunks_exact(d).map(square).sum::<f64>() / (d * count) as f64;
    assert!((spread - 1.0).abs() < 4.0 * (2.0 / (d * count) as f64).sqrt(), "{spread}");
    let centre: Vec<f64> = (0..d).map(|k| samples.iter().skip(k).step_by(d).sum::<f64>() / count as f64).collect();
    let centre = square(&centre) * count as f64 / d as f64;
    assert!((centre - 1.0).abs() < 4.0 * (2.0 / d as f64).sqrt(), "{centre}");
}

#[test]
fn kriging_is_the_posterior_under_the_datas_own_moments() {
    let data: Vec<f32> = Gaussian::flat().data(50);
    let dataset = Dataset {
        fields: names(2),
        scalars: Vec::new(),
        constants: std::collections::BTreeMap::new(),
        grid: Grid::point(),
        train: data.clone().into(),
        valid: data.clone().into(),
        generator: None,
        equation: None,
    };
    let observations = observe(&[("a + 2*b", Vec::new(), 0.7, 0.2)], &Grid::point(), 2);
    let moments_of_data = DataMoments::of(&dataset, &Units::identity(2)).unwrap();
    let knowledge = Knowledge { errors: None, data: Some(moments_of_data) };
    let base = Shrink { variance: 1.0 };
    let shape = [2, 1, 1];
    let given = Given { denoiser: &base, observations: &observations, constraint: None, knowledge: &knowledge, shape };
    let sampler = Sampler::default();
    // The map is affine in two latents and one disturbance of the reading.
    let sample = |numbers: Vec<f64>| {
        numbers
            .chunks_exact(3)
            .flat_map(|z| {
                let mut more = || field(&[z[2], 0.0], shape);
                to_vec_f64(Kriging {}.sample(given, &sampler, field(&z[..2], shape), &mut more, &mut Unobserved))
            })
            .collect()
    };
    let (found_mean, found_covariance) = moments(3, sample);
    let points: Vec<[f64; 2]> = data.chunks_exact(2).map(|x| [f64::from(x[0]), f64::from(x[1])]).collect();
    let mean = [0, 1].map(|k| points.iter().map(|x| x[k]).sum::<f64>() / 50.0);
    let c = |i: usize, j: usize| points.iter().map(|x| (x[i] - mean[i]) * (x[j] - mean[j])).sum::<f64>() / 50.0;
    let spread = [c(0, 0) + 2.0 * c(0, 1), c(1, 0) + 2.0 * c(1, 1)];
    let total = spread[0] + 2.0 * spread[1] + 0.04;
    let innovation = 0.7 - mean[0] - 2.0 * mean[1];
    for i in 0..2 {
        assert!((found_mean[i] - mean[i] - spread[i] * innovation / total).abs() < 1e-9);
        for j in 0..2 {
            let expected = c(i, j) - spread[i] * spread[j] / total;
            assert!((found_covariance[2 * i + j] - expected).abs() < 1e-9, "{found_covariance:?}");
        }
    }
}

/// One sample of two numbers through the steps of `method` from the latents (1, −0.5), with a sensor that reads 0.2 of the first.
fn guided(method: &dyn Condition, steps: usize) -> Vec<f64> {
    let observations = observe(&[("a", Vec::new(), 0.2, 0.1)], &Grid::point(), 2);
    let (base, knowledge) = (Shrink { variance: 1.0 }, Knowledge::default());
    let shape = [2, 1, 1];
    let given = Given { denoiser: &base, observations: &observations, constraint: None, knowledge: &knowledge, shape };
    let sampler = Sampler { steps, sigma_max: 3.0, sigma_min: 0.5, ..Sampler::default() };
    let more: &mut dyn FnMut() -> Tensor<4> = &mut || unreachable!("guidance is deterministic");
    to_vec_f64(method.sample(given, &sampler, field(&[1.0, -0.5], shape), more, &mut Unobserved))
}

/// The same with noise 1 whenever a method draws more, and the constraint 3 a − 2 b + ½ = 0.
fn stepped(method: &dyn Condition, constrained: bool) -> Vec<f64> {
    let observations = observe(&[("a", Vec::new(), 0.2, 0.1)], &Grid::point(), 2);
    let (base, knowledge, shape) = (Shrink { variance: 1.0 }, Knowledge::default(), [2, 1, 1]);
    let law = point_constraint("3*x - 2*y + 0.5", Norm::L1Mean);
    let constraint = constrained.then_some(&law);
    let given = Given { denoiser: &base, observations: &observations, constraint, knowledge: &knowledge, shape };
    let sampler = Sampler { steps: 2, sigma_max: 3.0, sigma_min: 0.5, ..Sampler::default() };
    let more: &mut dyn FnMut() -> Tensor<4> = &mut || field(&[1.0, 1.0], shape);
    to_vec_f64(method.sample(given, &sampler, field(&[1.0, -0.5], shape), more, &mut Unobserved))
}

/// Two of Heun's steps of D = x/(1 + σ²) from 3 to 0.5 to 0 by hand; `push` gives the gradient of the loss in x at a step's start
/// from x, the step's number, and the factor of the judged estimate of x.
fn by_hand(mut x: [f64; 2], push: impl Fn(f64, usize, f64) -> f64, through_both: bool) -> [f64; 2] {
    let levels = SigmaGrid { steps: 2, sigma_min: 0.5, sigma_max: 3.0, ..SigmaGrid::default() }.levels();
    assert!((levels[0] - 3.0).abs() < 1e-12 && (levels[1] - 0.5).abs() < 1e-12);
    let gain = |sigma: f64| 1.0 / (1.0 + sigma * sigma);
    for (i, pair) in levels.windows(2).enumerate() {
        let (sigma, next) = (pair[0], pair[1]);
        let slope = (1.0 - gain(sigma)) / sigma;
        let euler = 1.0 + (next - sigma) * slope;
        let (stepped, judged) = if next == 0.0 {
            (euler, gain(sigma))
        } else {
            let there = euler * (1.0 - gain(next)) / next;
            let judged = if through_both { gain(next) * euler } else { gain(sigma) };
            (1.0 + 0.5 * (next - sigma) * (slope + there), judged)
        };
        let pushed = push(x[0], i, judged);
        x = [x[0] * stepped - pushed, x[1] * stepped];
    }
    x
}

#[test]
fn guidance_takes_the_steps_of_a_hand_calculation() {
    let start = [3.0, -1.5];
    // ‖D − y‖ of one sensor: the gradient is the factor, with the misfit's sign.
    let sign = |x: f64, judged: f64| (judged * x - 0.2).signum() * judged;
    let dps = by_hand(start, |x, _, judged| 0.2 * sign(x, judged), false);
    let found = guided(&SensorDps { scale: 0.2, equation: 0.0 }, 2);
    assert!(distance(&found, &dps) < 1e-6, "{found:?} and {dps:?}");
    // Both of two steps belong to the first four fifths.
    let diffusion_pde = by_hand(start, |x, _, judged| 0.2 * sign(x, judged), true);
    let found = guided(&DiffusionPde { scale: 0.2, equation: 5.0 }, 2);
    assert!(distance(&found, &diffusion_pde) < 1e-6, "{found:?} and {diffusion_pde:?}");
    assert!(distance(&dps, &diffusion_pde) > 0.01);
    // w (D − y)² with the coefficient 1 at σ = 3, nothing in the last step.
    let push = |x: f64, i: usize, judged: f64| if i == 0 { 0.4 * 2.0 * (judged * x - 0.2) * judged } else { 0.0 };
    let fun_dps = by_hand(start, push, true);
    let found = guided(&FunDps { scale: 0.4, equation: 0.0 }, 2);
    assert!(distance(&found, &fun_dps) < 1e-6, "{found:?} and {fun_dps:?}");
}

#[test]
fn projections_meet_the_sensors_and_keep_the_noise_that_a_sample_began_with() {
    // The second number is not measured. D = x/(1 + σ²): 1/10 at σ = 3, 4/5 at σ = 1/2; its noise is −1/2 all the way.
    let once = guided(&Eci { mixing: 1, ..Eci::default() }, 2);
    let expected = [0.2, (-1.5 / 10.0 - 0.25) * 0.8];
    assert!(distance(&once, &expected) < 1e-5, "{once:?} and {expected:?}");
    let twice = guided(&Eci { mixing: 2, ..Eci::default() }, 2);
    let after = (-0.15 - 1.5) / 10.0;
    let expected = [0.2, ((after - 0.25) * 0.8 - 0.25) * 0.8];
    assert!(distance(&twice, &expected) < 1e-5, "{twice:?} and {expected:?}");
    let pcfm = guided(&Pcfm::default(), 2);
    assert!(distance(&pcfm, &once) < 1e-5, "{pcfm:?} and {once:?}");
    // A product of both numbers: the surface is curved, and the last steps end on it.
    let observations = observe(&[("a*b", Vec::new(), 0.3, 0.1)], &Grid::point(), 2);
    let (base, knowledge, shape) = (Shrink { variance: 1.0 }, Knowledge::default(), [2, 1, 1]);
    let given = Given { denoiser: &base, observations: &observations, constraint: None, knowledge: &knowledge, shape };
    let more: &mut dyn FnMut() -> Tensor<4> = &mut || unreachable!("nothing is stochastic");
    let latents = field(&normals(15, 0, 10), shape);
    let sampler = Sampler { steps: 8, ..Sampler::default() };
    let samples =
        to_vec_f64(Pcfm { final_steps: 20, ..Pcfm::default() }.sample(given, &sampler, latents, more, &mut Unobserved));
    for x in samples.chunks_exact(2) {
        assert!((x[0] * x[1] - 0.3).abs() < 1e-3, "{x:?}");
    }
}

#[test]
fn fresh_noise_langevin_steps_and_corrections_are_those_of_hand_calculations() {
    // D = x/10 at σ = 3 and 4x/5 at σ = ½; the first number is measured as 0.2, the second is free.
    let ppr = stepped(&Ppr { equation: false, ..Ppr::default() }, false);
    let expected = [0.2, 0.8 * (-0.15 + 0.5)];
    assert!(distance(&ppr, &expected) < 1e-5, "{ppr:?} and {expected:?}");
    // With the equation the second number is (3·0.2 + ½)/2.
    let ppr = stepped(&Ppr::default(), true);
    assert!(distance(&ppr, &[0.2, 0.55]) < 1e-4, "{ppr:?}");
    // Two Langevin steps at each level: x + ½ r (D − x) + √r σ z.
    let (rate, mut second): (f64, f64) = (0.6, -1.5);
    for (sigma, factor) in [(3.0, 0.1), (3.0, 0.1), (0.5, 0.8), (0.5, 0.8)] {
        second += 0.5 * rate * (factor - 1.0) * second + rate.sqrt() * sigma;
    }
    let pdm = stepped(&Pdm { langevin_steps: 2, rate, equation: false, ..Pdm::default() }, false);
    assert!(distance(&pdm, &[0.2, second]) < 1e-5, "{pdm:?} and {second}");
    // The state is (0.2, 0.8 (−0.15 − 0.25)) = (0.2, −0.32) before corrections, and R = 1.74 > 0: a falls by ε a time, b stays.
    let cocogen = CoCoGen { last_steps: 1, rate: 0.01, extra: 3, extra_rate: 0.002, ..CoCoGen::default() };
    let found = stepped(&cocogen, true);
    assert!(distance(&found, &[0.2 - 0.01 - 3.0 * 0.002, -0.32]) < 1e-5, "{found:?}");
    let free = stepped(&cocogen, false);
    assert!(distance(&free, &[0.2, -0.32]) < 1e-5, "{free:?}");
}

/// A denoiser of a random field's noise.
struct Coloured(SampleNoise);

impl Parameters for Coloured {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Coloured {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        x
    }

    fn noise(&self) -> SampleNoise {
        self.0.clone()
    }
}

#[test]
fn denoisers_given_measurements_remove_the_noise_of_the_denoiser_below() {
    let grid = Grid::unit(4, 4);
    let config: NoiseConfig = serde_json::from_str(r#"{"field": {"length": 0.3}}"#).unwrap();
    let base = Coloured(SampleNoise::new(&config, &grid).unwrap());
    let at = vec![Extent::Point(1.0 / 3.0), Extent::Point(0.0)];
    let observations = observe(&[("a", at, 0.2, 0.1)], &grid, 1);
    let errors =
        Errors::known([1, 4, 4], |_| Modes { vectors: vec![0.1; 16], values: vec![0.16], rest: vec![0.0; 16] });
    let observed = Observed::new(&base, &observations, None, &errors, 1);
    let matched = MomentMatched { base: &base, observations: &observations, iterations: 1, sigma_data: Some(0.5) };
    let wrapped: [&dyn Denoiser; 2] = [&observed, &matched];
    assert!(wrapped.iter().all(|denoiser| matches!(denoiser.noise(), SampleNoise::Field(_))));
}
