//! Correction directions against exact answers: bases, dense references, reference solvers and finite differences.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, to_vec_f64};
use softly::units::Units;
use softly::{
    Basis, ConstraintConfig, Dataset, Denoiser, Direction, Family, Generator, KalmanConfig, KalmanDirection, Layers,
    NewtonConfig, NewtonDirection, Norm, ParameterConfig, Parameters, Precondition, Region, ResidualConfig, Residuals,
    Size, Snapshot, SoftConstraint, SpectralDirection, Training, Visitor, data_spectrum,
};
use softly_pde::darcy::Discretisation;
use softly_pde::derivative::{Matrix, Order, Scheme};
use softly_pde::grid::Grid;

const FAMILIES: [Family; 5] =
    [Family::Cosine, Family::MirroredCosine, Family::Sine, Family::InnerSine, Family::Fourier];

fn cpu() -> Device {
    Device::flex()
}

fn normals(index: u64, count: usize) -> Vec<f64> {
    Stream::new(3, Purpose::Metric, index).normals(count)
}

/// a · b for row-major `[n, n]`.
fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    (0..n * n).map(|i| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum()).collect()
}

fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    rms(&found.iter().zip(expected).map(|(a, b)| a - b).collect::<Vec<_>>()) / rms(expected)
}

/// Noise levels as a direction is called with.
fn levels(sigma: &[f64]) -> Vec<Precondition> {
    sigma.iter().map(|&s| Precondition::new(s, 0.5)).collect()
}

/// Levels whose trust region is too large to matter.
fn unlimited(n: usize) -> Vec<Precondition> {
    vec![Precondition { out: 1e6, ..Precondition::new(1.0, 0.5) }; n]
}

#[test]
fn analysis_inverts_synthesis_and_families_are_orthonormal() {
    for family in FAMILIES {
        for n in [4, 7, 12] {
            let (analysis, synthesis) = (family.analysis(n), family.synthesis(n));
            for (i, v) in product(&analysis, &synthesis, n).into_iter().enumerate() {
                let identity = if i / n == i % n { 1.0 } else { 0.0 };
                assert!((v - identity).abs() < 1e-12, "{family:?} {n}: {v}");
            }
            if family != Family::MirroredCosine {
                for (i, a) in analysis.iter().enumerate() {
                    assert!((a - synthesis[i % n * n + i / n]).abs() < 1e-12, "{family:?} {n} is not orthonormal");
                }
            }
        }
    }
    for family in [Family::Cosine, Family::Fourier] {
        assert_eq!(family.synthesis(1), [1.0], "{family:?} of a lone point");
    }
}

#[test]
fn families_diagonalise_the_second_derivative_of_their_scheme() {
    for (family, scheme) in [
        (Family::MirroredCosine, Scheme::Mirror),
        (Family::Sine, Scheme::Zero),
        (Family::InnerSine, Scheme::OneSided2),
        (Family::Fourier, Scheme::Periodic),
        (Family::Fourier, Scheme::Spectral),
    ] {
        for n in [8, 11] {
            let derivative = Matrix::derivative(scheme, Order::Second, n, 1.0).dense();
            let in_basis = product(&product(&family.analysis(n), &derivative, n), &family.synthesis(n), n);
            // The inner sines stand for inner nodes only.
            let inner = if family == Family::InnerSine { n - 2 } else { n };
            for (i, v) in in_basis.iter().enumerate() {
                let (row, col) = (i / n, i % n);
                if row < inner && col < inner && row != col {
                    assert!(v.abs() < 1e-11, "{family:?} of {scheme:?}, {n} nodes: {v} at {row}, {col}");
                }
            }
        }
    }
}

/// Function (k, l) of a channel at node (i, j) by the matrices along the axes.
fn dense_basis(family: Family, rows: usize, cols: usize) -> Vec<Vec<f64>> {
    let (x, y) = (family.synthesis(rows), family.synthesis(cols));
    let function = |k: usize, l: usize| {
        (0..rows * cols).map(|node| x[node / cols * rows + k] * y[node % cols * cols + l]).collect()
    };
    (0..rows).flat_map(|k| (0..cols).map(move |l| (k, l))).map(|(k, l)| function(k, l)).collect()
}

#[test]
fn the_spectrum_is_the_variance_of_every_coefficient() {
    let families = vec![Family::Cosine, Family::InnerSine];
    let basis = Basis::new(families.clone(), 6, 5);
    // Two samples mean ± deviation have exactly that deviation; one coefficient of each channel never varies.
    let deviations: Vec<f64> = (0..60).map(|i| if i % 30 == 7 { 0.0 } else { 0.1 + 0.05 * f64::from(i) }).collect();
    let means = normals(0, 60);
    let mut values = Vec::new();
    for sign in [1.0, -1.0] {
        for (c, &family) in families.iter().enumerate() {
            let functions = dense_basis(family, 6, 5);
            values.extend((0..30).map(|node| {
                let coefficient = |k: usize| means[c * 30 + k] + sign * deviations[c * 30 + k];
                (0..30).map(|k| coefficient(k) * functions[k][node]).sum::<f64>() as f32
            }));
        }
    }
    let spectrum = data_spectrum(values.chunks_exact(60).map(<[f32]>::to_vec), &basis);
    assert_eq!(spectrum.len(), 60);
    for (s, d) in spectrum.iter().zip(&deviations) {
        assert!(*s > 0.0);
        assert!((f64::from(*s) - d * d).abs() < 1e-5 * (1.0 + d * d), "{s} against {}", d * d);
    }
}

/// Darcy's law on a small grid, p differentiated with `scheme`.
fn darcy_law(scheme: Scheme, norm: Norm) -> ConstraintConfig {
    let source = "flow*(x<=0.2)*(y<=0.2) - flow*(x>=0.8)*(y>=0.8)".to_string();
    ConstraintConfig {
        fields: vec!["p".into(), "K".into()],
        residual: Residuals::One("K*laplacian(p) + dot(grad(K), grad(p)) + f".into()),
        stencil: Scheme::OneSided2,
        stencils: BTreeMap::from([("p".to_string(), scheme)]),
        norm,
        parameters: BTreeMap::from([
            ("flow".to_string(), ParameterConfig::Number(10.0)),
            ("f".to_string(), ParameterConfig::Formula(source)),
        ]),
    }
}

fn helmholtz_law(k: f64) -> ConstraintConfig {
    let formula = "laplacian(u) + k^2*u - a".to_string();
    ConstraintConfig {
        fields: vec!["a".into(), "u".into()],
        residual: Residuals::Many(vec![ResidualConfig { formula, region: Region::Interior, weight: 2.0 }]),
        stencil: Scheme::OneSided2,
        stencils: BTreeMap::new(),
        norm: Norm::L2,
        parameters: BTreeMap::from([("k".to_string(), ParameterConfig::Number(k))]),
    }
}

fn names(constraint: &ConstraintConfig) -> Vec<String> {
    constraint.fields.clone()
}

/// Units that are not trivial: p or u in the channel given is small, the other field is near 1.
fn small_units(channel: usize) -> Units {
    let mut units = Units { mean: vec![1.2; 2], scale: vec![0.8; 2] };
    (units.mean[channel], units.scale[channel]) = (0.01, 0.07);
    units
}

fn normalised(physical: &[f64], units: &Units, nodes: usize) -> Vec<f64> {
    let channel = |i: usize| i / nodes % 2;
    physical.iter().enumerate().map(|(i, v)| (v - units.mean[channel(i)]) / units.scale[channel(i)]).collect()
}

fn newton(
    (config, solve_for): &(NewtonConfig, String),
    constraint: &ConstraintConfig,
    grid: &Grid,
    units: &Units,
) -> softly::error::Result<NewtonDirection> {
    NewtonDirection::new(config, solve_for, constraint, &names(constraint), grid, units)
}

fn solve_for(field: &str, iterations: usize) -> (NewtonConfig, String) {
    let floor = (field == "p").then(|| BTreeMap::from([("K".to_string(), 0.05)]));
    (NewtonConfig { iterations, floor, ..NewtonConfig::default() }, field.into())
}

fn spectral(constraint: &ConstraintConfig, families: Vec<Family>, grid: &Grid, units: &Units) -> SpectralDirection {
    let basis = Basis::new(families, grid.rows, grid.cols);
    let spectrum = (0..2 * grid.len()).map(|i| 1.0 / (1.0 + (i % grid.len()) as f32)).collect();
    let constraint = Arc::new(SoftConstraint::new(constraint, &names(constraint), grid, units).unwrap());
    SpectralDirection::new(constraint, basis, spectrum, &cpu())
}

#[test]
fn the_spectral_direction_is_its_dense_formula() {
    let grid = Grid::unit(6, 5);
    let law = darcy_law(Scheme::Mirror, Norm::L2);
    let units = small_units(0);
    let families = vec![Family::Cosine, Family::Fourier];
    let direction = spectral(&law, families.clone(), &grid, &units);
    let sigma = [0.02, 0.3, 40.0];
    let base = field_batch(normals(1, 3 * 60), [2, 6, 5], &cpu());
    let found = to_vec_f64(direction.at(&base, &sigma, &levels(&sigma)));

    let constraint = SoftConstraint::new(&law, &names(&law), &grid, &units).unwrap();
    let gradient = to_vec_f64(constraint.norm_and_gradient(&base).1);
    for (sample, &sigma) in sigma.iter().enumerate() {
        let mut expected = vec![0.0; 60];
        for (c, &family) in families.iter().enumerate() {
            let gradient = &gradient[sample * 60 + c * 30..][..30];
            for (k, function) in dense_basis(family, 6, 5).into_iter().enumerate() {
                let s = 1.0 / (1.0 + k as f64);
                let coefficient: f64 = function.iter().zip(gradient).map(|(f, g)| f * g).sum();
                let filtered = coefficient * s * sigma * sigma / (s + sigma * sigma);
                for (e, f) in expected[c * 30..].iter_mut().zip(&function) {
                    *e += filtered * f;
                }
            }
        }
        let scale = Precondition::new(sigma, 0.5).out / rms(&expected);
        for e in &mut expected {
            *e *= scale;
        }
        // The spectrum is stored in single precision.
        let error = relative_error(&found[sample * 60..][..60], &expected);
        assert!(error < 1e-7, "sigma {sigma}: {error}");
    }
}

/// The Kalman direction for `solve_for` with covariance e^`errors` `[2, H, W]`, mean misfit `mean`, its variance e^`variance` and
/// spectrum e^`spectrum` `[H, W]` at every noise level.
fn kalman(
    (solve_for, iterations): (&str, usize),
    law: &ConstraintConfig,
    grid: &Grid,
    units: &Units,
    [errors, mean, variance, spectrum]: [&dyn Fn(usize) -> f32; 4],
) -> KalmanDirection {
    let constraint = Arc::new(SoftConstraint::new(law, &names(law), grid, units).unwrap());
    let config = KalmanConfig { iterations };
    let mut direction = KalmanDirection::new(&config, constraint, law, solve_for, &names(law), grid, &cpu()).unwrap();
    direction.visit("", &mut |name, parameter| {
        let levels = parameter.shape()[0];
        let at_one: Vec<f32> = match name {
            "errors" => (0..2 * grid.len()).map(errors).collect(),
            "misfit-mean" => (0..grid.len()).map(mean).collect(),
            "misfit-variance" => (0..grid.len()).map(variance).collect(),
            "misfit-spectrum" => (0..grid.len()).map(spectrum).collect(),
            _ => panic!("{name}"),
        };
        parameter.set(at_one.repeat(levels));
    });
    direction
}

/// One that is not trivial in any part.
fn some_kalman(on: (&str, usize), law: &ConstraintConfig, grid: &Grid, units: &Units) -> KalmanDirection {
    let nodes = grid.len();
    let errors = |i: usize| -1.5 - 3.0 * (i % nodes) as f32 / nodes as f32 + (i as f32).sin();
    let mean = |i: usize| (1.7 * i as f32).sin();
    let variance = |i: usize| (2.3 * i as f32).cos() - 1.0;
    let spectrum = |i: usize| (3.1 * i as f32).sin() - 0.5;
    kalman(on, law, grid, units, [&errors, &mean, &variance, &spectrum])
}

#[test]
fn the_kalman_direction_is_its_dense_formula() {
    let grid = Grid::unit(6, 5);
    for (law, field, channel) in [
        (darcy_law(Scheme::Mirror, Norm::L2), "p", 0),
        (darcy_law(Scheme::OneSided2, Norm::L2), "p", 0),
        (helmholtz_law(2.0), "u", 1),
    ] {
        let units = small_units(channel);
        let mut direction = some_kalman((field, 60), &law, &grid, &units);
        let base = normals(1, 60);
        let found = to_vec_f64(direction.step(&field_batch(base.clone(), [2, 6, 5], &cpu()), &[0.3]));

        let constraint = SoftConstraint::new(&law, &names(&law), &grid, &units).unwrap();
        let residual = |x: Vec<f64>| to_vec_f64(constraint.residuals(&field_batch(x, [2, 6, 5], &cpu()))[0].clone());
        // Central differences are exact for formulas of second degree.
        let column = |i: usize| -> Vec<f64> {
            let [up, down] = [0.5, -0.5].map(|step| {
                let moved = base.iter().enumerate().map(|(j, x)| if i == j { x + step } else { *x });
                residual(moved.collect())
            });
            up.iter().zip(down).map(|(a, b)| a - b).collect()
        };
        let jacobian: Vec<Vec<f64>> = (0..60).map(column).collect();
        let mut measured = BTreeMap::new();
        direction.visit("", &mut |name, p| {
            let values = p.values();
            let at_one = values[..values.len() / p.shape()[0]].iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            measured.insert(name.to_string(), at_one);
        });
        let family = if field == "u" { Family::InnerSine } else { Family::Cosine };
        let functions = dense_basis(family, 6, 5);
        let smooth = |x: &[f64]| -> Vec<f64> {
            let mut result = vec![0.0; 60];
            for c in 0..2 {
                for (k, function) in functions.iter().enumerate() {
                    let coefficient: f64 = function.iter().zip(&x[c * 30..]).map(|(f, x)| f * x).sum();
                    let weight = coefficient * measured["errors"][c * 30 + k].exp();
                    result[c * 30..][..30].iter_mut().zip(function).for_each(|(r, f)| *r += weight * f);
                }
            }
            result
        };
        // Rows of J, then J Σ Jᵀ + V.
        let rows: Vec<Vec<f64>> = (0..30).map(|node| jacobian.iter().map(|column| column[node]).collect()).collect();
        let smoothed: Vec<Vec<f64>> = rows.iter().map(|row| smooth(row)).collect();
        let inner = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut system: Vec<Vec<f64>> =
            rows.iter().map(|row| smoothed.iter().map(|s| inner(row, s)).collect()).collect();
        // Outside its region the equation says nothing.
        let counts = |node: usize| rows[node].iter().any(|v| *v != 0.0);
        let deviation = |node: usize| (measured["misfit-variance"][node] / 2.0).exp();
        for (i, row) in system.iter_mut().enumerate() {
            for (j, value) in row.iter_mut().enumerate() {
                let waves = functions.iter().zip(&measured["misfit-spectrum"]);
                let correlation: f64 = waves.map(|(function, s)| function[i] * s.exp() * function[j]).sum();
                *value += deviation(i) * correlation * deviation(j);
            }
            row[i] += f64::from(!counts(i));
        }
        let right = residual(base).iter().zip(&measured["misfit-mean"]).map(|(r, m)| m - r).collect();
        let solution = solved(system, right);
        let expected: Vec<f64> = (0..60)
            .map(|i| (0..30).filter(|&node| counts(node)).map(|node| smoothed[node][i] * solution[node]).sum())
            .collect();
        let error = relative_error(&found, &expected);
        assert!(error < 1e-6, "{field}: {error}");
    }
}

/// x with a x = b, by elimination with pivots.
fn solved(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for k in 0..n {
        let pivot = (k..n).max_by(|&i, &j| a[i][k].abs().total_cmp(&a[j][k].abs())).unwrap();
        a.swap(k, pivot);
        b.swap(k, pivot);
        for i in k + 1..n {
            let factor = a[i][k] / a[k][k];
            let (above, below) = a.split_at_mut(i);
            below[0].iter_mut().zip(&above[k]).for_each(|(x, y)| *x -= factor * y);
            b[i] -= factor * b[k];
        }
    }
    for k in (0..n).rev() {
        b[k] = (b[k] - (k + 1..n).map(|j| a[k][j] * b[j]).sum::<f64>()) / a[k][k];
    }
    b
}

/// A denoiser that does nothing: its error is the noise.
struct Idle;

impl Parameters for Idle {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Idle {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        x
    }
}

#[test]
fn kalman_measures_errors_and_misfit_and_removes_what_the_equation_can_see() {
    // The equation of the data is linear, and white errors of a known size are what the denoiser makes: theory says what
    // is left. Told k = 4 in place of 1, the equation is wrong by 15 u.
    for k in [1.0, 4.0] {
        let generator =
            Generator::Helmholtz { size: Size::Square(16), wave_number: 1.0, alpha: 2.0, tau: 3.0, zero_border: true };
        let settings = ["data.count=600", "data.valid=32", "data.generator.size=16"];
        let config = Layers::new().preset("helmholtz-demo").unwrap();
        let config =
            settings.into_iter().fold(config, |config, setting| config.set(setting).unwrap()).finish("test").unwrap();
        let dataset = Dataset::from_config(&config).unwrap();
        let (units, _) = dataset.units(&config);
        let (law, grid) = (helmholtz_law(k), generator.grid());
        let constraint = Arc::new(SoftConstraint::new(&law, &names(&law), &grid, &units).unwrap());
        let kalman = KalmanConfig { iterations: 40 };
        let mut direction =
            KalmanDirection::new(&kalman, constraint.clone(), &law, "u", &names(&law), &grid, &cpu()).unwrap();
        direction.measure(&Idle, &dataset, &units);
        direction.visit("", &mut |name, p| {
            let values = p.values();
            let at_level = |level: usize| &values[level * values.len() / 16..(level + 1) * values.len() / 16];
            let last = at_level(15).iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            if name == "errors" {
                let mean = last.iter().map(|v| v.exp()).sum::<f64>() / last.len() as f64;
                assert!((mean / 6400.0 - 1.0).abs() < 0.02, "{mean}");
            }
        });
        let values = Dataset::batch(&dataset.valid, &(0..32).collect::<Vec<_>>(), 512, 256, &units);
        let clean: Vec<f64> = values.into_iter().map(f64::from).collect();
        let noise = normals(77, clean.len());
        let left = |direction: &KalmanDirection, sigma: f64| {
            let noisy: Vec<f64> = clean.iter().zip(&noise).map(|(x, z)| x + sigma * z).collect();
            let step = to_vec_f64(direction.step(&field_batch(noisy.clone(), [2, 16, 16], &cpu()), &vec![sigma; 32]));
            let error: Vec<f64> = noisy.iter().zip(&step).zip(&clean).map(|((y, d), x)| y + d - x).collect();
            (rms(&error) / (sigma * rms(&noise))).powi(2)
        };
        // Of 512 numbers the right equation fixes 196, one per inner node.
        let expected = 1.0 - 196.0 / 512.0;
        if k == 1.0 {
            for sigma in [0.01, 0.1, 1.0] {
                let left = left(&direction, sigma);
                assert!((left - expected).abs() < 0.02, "σ = {sigma}: {left} against {expected}");
            }
        } else {
            // Where noise is larger than what is wrong the equation still tells as much, where it is smaller it is still
            // right about short waves.
            let [small, large] = [0.01, 10.0].map(|sigma| left(&direction, sigma));
            assert!((large - expected).abs() < 0.02, "{large} against {expected}");
            direction.visit("", &mut |name, p| {
                if name == "misfit-spectrum" {
                    p.set(vec![0.0; p.values().len()]);
                }
            });
            let as_if_white = left(&direction, 0.01);
            assert!(
                expected + 0.01 < small && small + 0.05 < as_if_white && as_if_white < 1.001,
                "{small}, {as_if_white}"
            );
        }
    }
}

#[test]
fn newton_solves_helmholtz_in_one_application() {
    for (size, k) in [(Size::Rectangle([24, 32]), 1.0), (Size::Rectangle([24, 32]), 4.0), (Size::Square(64), 1.0)] {
        let generator = Generator::Helmholtz { size, wave_number: k, alpha: 2.0, tau: 3.0, zero_border: true };
        let grid = generator.grid();
        let maker = generator.prepare(5).unwrap();
        let samples: Vec<f64> =
            (0..2).flat_map(|i| maker.sample(Purpose::TrainData, i).unwrap()).map(f64::from).collect();
        let units = small_units(1);
        let truth = normalised(&samples, &units, grid.len());
        // Any solution with the right border is a start.
        let noise = normals(2, truth.len());
        let inner = |node: usize| {
            let (i, j) = (node / grid.cols, node % grid.cols);
            i > 0 && j > 0 && i + 1 < grid.rows && j + 1 < grid.cols
        };
        let start: Vec<f64> = truth
            .iter()
            .enumerate()
            .map(|(i, t)| if i / grid.len() % 2 == 1 && inner(i % grid.len()) { t + noise[i] } else { *t })
            .collect();
        let base = field_batch(start.clone(), [2, grid.rows, grid.cols], &cpu());
        for iterations in [1, 4] {
            let direction = newton(&solve_for("u", iterations), &helmholtz_law(k), &grid, &units).unwrap();
            let v = to_vec_f64(direction.at(&base, &[1.0; 2], &unlimited(2)));
            let (mut moved, mut expected) = (Vec::new(), Vec::new());
            for (i, v) in v.iter().enumerate() {
                if i / grid.len() % 2 == 1 {
                    moved.push(*v);
                    expected.push(truth[i] - start[i]);
                } else {
                    assert_eq!(*v, 0.0, "only the solved field moves");
                }
            }
            let error = relative_error(&moved, &expected);
            // Samples are stored in single precision.
            assert!(error < 1e-5, "k = {k}, {iterations} iterations: {error}");
        }
    }
}

#[test]
fn newton_solves_darcy_within_its_iterations() {
    for (size, length, modes, iterations, bound) in
        [(16, 0.2, 4, 10, 0.01), (32, 0.2, 16, 10, 0.05), (16, 0.2, 4, 40, 2e-3)]
    {
        let generator =
            |discretisation| Generator::Darcy { size: Size::Square(size), length, modes, flow: 10.0, discretisation };
        let mirrored = generator(Discretisation::Mirror);
        let grid = mirrored.grid();
        let maker = mirrored.prepare(5).unwrap();
        let samples: Vec<f64> =
            (0..3).flat_map(|i| maker.sample(Purpose::TrainData, i).unwrap()).map(f64::from).collect();
        let units = small_units(0);
        let truth = normalised(&samples, &units, grid.len());
        let noise = normals(4, truth.len());
        let moved = |i: usize| (i / grid.len()).is_multiple_of(2);
        let start: Vec<f64> = (0..truth.len()).map(|i| if moved(i) { truth[i] + noise[i] } else { truth[i] }).collect();
        let base = field_batch(start.clone(), [2, grid.rows, grid.cols], &cpu());
        // The constraint has one-sided rows; the direction takes mirrored ones by itself.
        let law = generator(Discretisation::OneSided).equation().unwrap();
        let direction = newton(&solve_for("p", iterations), &law, &grid, &units).unwrap();
        let v = to_vec_f64(direction.at(&base, &[1.0; 3], &unlimited(3)));
        for sample in 0..3 {
            let channel = 2 * sample * grid.len()..(2 * sample + 1) * grid.len();
            // The step keeps the mean, so compare what is left without one.
            let centred = |values: Vec<f64>| {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                values.into_iter().map(|v| v - mean).collect::<Vec<_>>()
            };
            let reached = centred(channel.clone().map(|i| start[i] + v[i]).collect());
            let error = relative_error(&reached, &centred(truth[channel].to_vec()));
            assert!(error < bound, "{size} nodes, {iterations} iterations: {error}");
        }
    }
}

/// A direction as a function of the base.
type At<'a> = dyn Fn(&Tensor<4>) -> Tensor<4> + 'a;

/// Compares the gradient of Σ w·v(x) by autodiff with central differences in f64.
fn check_gradient(name: &str, at: &At<'_>, x: &[f64], shape: [usize; 3]) {
    let size: usize = shape.iter().product();
    let n = x.len() / size;
    let weights = field_batch(normals(9, x.len()), shape, &cpu());
    let device = cpu().autodiff();
    let data = TensorData::new(x.to_vec(), [n, shape[0], shape[1], shape[2]]);
    let tracked: Tensor<4> = Tensor::<4>::from_data(data, (&device, DType::F64)).require_grad();
    let loss = (at(&tracked) * Tensor::from_inner(weights.clone())).sum();
    let gradients = loss.backward();
    let gradient = to_vec_f64(tracked.grad(&gradients).unwrap());
    let value = |x: Vec<f64>| to_vec_f64((at(&field_batch(x, shape, &cpu())) * weights.clone()).sum())[0];
    let size = rms(&gradient);
    assert!(size > 0.0, "{name}: the direction moves with the base");
    for probe in 0..4 {
        let direction = normals(20 + probe, x.len());
        let step = 1e-6;
        let moved = |sign: f64| value(x.iter().zip(&direction).map(|(x, d)| x + sign * step * d).collect());
        let slope = (moved(1.0) - moved(-1.0)) / (2.0 * step);
        let expected: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let scale = size * (x.len() as f64).sqrt();
        assert!((slope - expected).abs() < 1e-5 * scale, "{name}: {slope} against {expected} (scale {scale})");
    }
}

#[test]
fn gradients_through_every_direction_match_finite_differences() {
    let sigma = [0.05, 0.8];
    let at = levels(&sigma);
    let grid = Grid::unit(9, 8);
    let shape = [2, 9, 8];
    let x = normals(6, 2 * 2 * grid.len());
    let x: Vec<f64> = x.into_iter().map(|v| 0.5 * v).collect();
    for norm in [Norm::L1Mean, Norm::L2] {
        let direction = spectral(&darcy_law(Scheme::OneSided2, norm), vec![Family::Cosine; 2], &grid, &small_units(0));
        check_gradient("spectral", &|x| direction.at(x, &sigma, &at), &x, shape);
    }
    let darcy = newton(&solve_for("p", 6), &darcy_law(Scheme::OneSided2, Norm::L2), &grid, &small_units(0)).unwrap();
    check_gradient("newton, Darcy", &|x| darcy.at(x, &sigma, &at), &x, shape);
    let helmholtz = newton(&solve_for("u", 3), &helmholtz_law(2.0), &grid, &small_units(1)).unwrap();
    check_gradient("newton, Helmholtz", &|x| helmholtz.at(x, &sigma, &at), &x, shape);
    let darcy = some_kalman(("p", 5), &darcy_law(Scheme::OneSided2, Norm::L2), &grid, &small_units(0));
    check_gradient("kalman, Darcy", &|x| darcy.at(x, &sigma, &at), &x, shape);
}

#[test]
fn a_stopped_gradient_is_no_gradient() {
    let grid = Grid::unit(9, 8);
    let config = NewtonConfig { stop_gradient: true, ..solve_for("p", 3).0 };
    let direction =
        newton(&(config, "p".into()), &darcy_law(Scheme::OneSided2, Norm::L2), &grid, &small_units(0)).unwrap();
    let x: Tensor<4> = Tensor::<4>::from_data(
        TensorData::new(normals(6, 2 * grid.len()), [1, 2, 9, 8]),
        (&cpu().autodiff(), DType::F64),
    )
    .require_grad();
    let v = direction.at(&x, &[0.5], &levels(&[0.5]));
    let gradients = (x.clone() + v).sum().backward();
    assert!(to_vec_f64(x.grad(&gradients).unwrap()).iter().all(|g| *g == 1.0));
}

/// A direction as a function of the estimate and its noise levels.
type AtLevels<'a> = &'a dyn Fn(&Tensor<4>, &[f64]) -> Tensor<4>;

#[test]
fn a_sample_does_not_know_its_batch() {
    let grid = Grid::unit(9, 8);
    let (size, sigma) = (2 * grid.len(), [0.01, 0.4, 30.0]);
    let values = normals(7, 3 * size);
    let law = darcy_law(Scheme::OneSided2, Norm::L2);
    let newton = newton(&solve_for("p", 5), &law, &grid, &small_units(0)).unwrap();
    let spectral = spectral(&law, vec![Family::Cosine; 2], &grid, &small_units(0));
    let kalman = some_kalman(("p", 5), &law, &grid, &small_units(0));
    let directions: [AtLevels<'_>; 3] =
        [&|x, s| newton.at(x, s, &levels(s)), &|x, s| spectral.at(x, s, &levels(s)), &|x, s| {
            kalman.at(x, s, &levels(s))
        }];
    for direction in directions {
        let together = to_vec_f64(direction(&field_batch(values.clone(), [2, 9, 8], &cpu()), &sigma));
        for sample in 0..3 {
            let own = sample * size..(sample + 1) * size;
            let x = field_batch(values[own.clone()].to_vec(), [2, 9, 8], &cpu());
            let alone = to_vec_f64(direction(&x, &sigma[sample..=sample]));
            assert!(relative_error(&together[own], &alone) < 1e-12);
        }
    }
}

#[test]
fn without_a_residual_there_is_no_direction() {
    let grid = Grid::unit(8, 8);
    let units = Units::identity(2);
    let zero = Tensor::<4>::zeros([1, 2, 8, 8], (&cpu().autodiff(), DType::F32)).require_grad();
    let law = helmholtz_law(1.0);
    let newton = newton(&solve_for("u", 4), &law, &grid, &units).unwrap();
    let spectral = spectral(&law, vec![Family::Cosine; 2], &grid, &units);
    let kalman = kalman(("u", 4), &law, &grid, &units, [&|_| 0.0, &|_| 0.0, &|_| -4.0, &|_| 0.0]);
    let directions: [&dyn Direction; 3] = [&newton, &spectral, &kalman];
    for v in directions.map(|direction| direction.at(&zero, &[0.3], &levels(&[0.3]))) {
        assert!(to_vec_f64(v.clone()).iter().all(|v| *v == 0.0));
        let gradients = (v * 2.0).sum().backward();
        if let Some(gradient) = zero.grad(&gradients) {
            assert!(to_vec_f64(gradient).iter().all(|g| g.is_finite()));
        }
    }
}

#[test]
fn whatever_the_estimate_is_the_directions_are_finite_and_bounded() {
    let grid = Grid::unit(16, 16);
    let law = darcy_law(Scheme::OneSided2, Norm::L1Mean);
    let units = small_units(0);
    let noise = |scale: f64, shift: f64| normals(8, 512).into_iter().map(move |v| scale * v + shift);
    // Noise of every size, constants, and a permeability that is negative or zero everywhere.
    let estimates: Vec<Vec<f64>> =
        [(1e-3, 0.0), (0.5, 0.0), (20.0, 0.0), (1e4, 0.0), (0.0, 0.0), (0.0, -1.5), (0.3, -40.0)]
            .into_iter()
            .map(|(scale, shift)| noise(scale, shift).collect())
            .collect();
    let n = estimates.len();
    let data = TensorData::new(estimates.concat(), [n, 2, 16, 16]);
    for sigma in [0.002, 0.3, 80.0] {
        let (sigma, at) = (vec![sigma; n], levels(&vec![sigma; n]));
        for floor in [None, Some(BTreeMap::from([("K".to_string(), 0.05)]))] {
            let config = NewtonConfig { floor, ..NewtonConfig::default() };
            let newton = newton(&(config, "p".into()), &law, &grid, &units).unwrap();
            let spectral = spectral(&law, vec![Family::Cosine; 2], &grid, &units);
            let kalman = some_kalman(("p", 12), &law, &grid, &units);
            let directions: [(&str, &dyn Direction, f64); 3] =
                [("newton", &newton, 3.0), ("spectral", &spectral, 1.0), ("kalman", &kalman, 3.0)];
            for (name, direction, limit) in directions {
                let x = Tensor::<4>::from_data(data.clone(), (&cpu().autodiff(), DType::F32)).require_grad();
                let v = direction.at(&x, &sigma, &at);
                let gradient = x.grad(&v.clone().sum().backward()).unwrap();
                for (i, g) in to_vec_f64(gradient).iter().enumerate() {
                    assert!(g.is_finite(), "{name}, sigma {}: gradient {g} of estimate {}", sigma[0], i / 512);
                }
                for sample in to_vec_f64(v).chunks_exact(512) {
                    // The Newton step is limited in its own channel.
                    let size = if name == "newton" { rms(&sample[..256]) } else { rms(sample) };
                    assert!(size.is_finite() && size <= limit * at[0].out * 1.001, "{name}: {size} of {limit}");
                }
            }
        }
    }
}

#[test]
fn a_wrong_configuration_is_named() {
    let grid = Grid::unit(8, 8);
    let law = darcy_law(Scheme::OneSided2, Norm::L2);
    let border = ConstraintConfig {
        residual: Residuals::Many(vec![ResidualConfig { formula: "p".into(), region: Region::Border, weight: 1.0 }]),
        ..law.clone()
    };
    let circle = ConstraintConfig {
        residual: Residuals::One("p^2 + K^2 - 1".into()),
        parameters: BTreeMap::new(),
        ..law.clone()
    };
    let floored = |name: &str, floor: f64| {
        let floor = Some(BTreeMap::from([(name.to_string(), floor)]));
        (NewtonConfig { floor, ..NewtonConfig::default() }, "p".to_string())
    };
    for (config, law, grid, said) in [
        (solve_for("q", 3), &law, &grid, "denoiser.scd.solve_for: `q` is no field"),
        (solve_for("p", 3), &border, &grid, "denoiser.scd.solve_for"),
        (solve_for("K", 3), &border, &grid, "denoiser.scd.solve_for: no residual contains `K`"),
        (solve_for("p", 0), &law, &grid, "denoiser.scd.newton.iterations"),
        (solve_for("p", 3), &circle, &Grid::point(), "denoiser.scd.directions: `newton` needs 4 nodes"),
        (floored("K", 0.0), &law, &grid, "denoiser.scd.newton.floor: expected a positive number"),
        (floored("k", 0.1), &law, &grid, "denoiser.scd.newton.floor: `k` is no field"),
    ] {
        let error = newton(&config, law, grid, &Units::identity(2)).err().expect("a refusal").to_string();
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn a_model_with_every_direction_trains_and_its_snapshot_knows_the_data() {
    let config = Layers::new().preset("darcy-demo").unwrap();
    let settings = [
        "data.count=40",
        "data.valid=4",
        "train.iterations=3",
        "train.batch=4",
        "denoiser.backbone={ kind = 'mlp', hidden = 16 }",
        "denoiser.scd={ directions = ['gradient', 'spectral', 'newton'], solve_for = 'p', scale = 'unit', input = 'features' }",
    ];
    let config = settings.into_iter().fold(config, |config, setting| config.set(setting).unwrap());
    let config = config.finish("test").unwrap();
    let dataset = Dataset::from_config(&config).unwrap();
    let floors = dataset.floors();
    assert_eq!(floors.keys().collect::<Vec<_>>(), ["K"], "the permeability is positive, the pressure is not");
    let mut training = Training::new(&config, dataset.clone(), &cpu()).unwrap();
    for _ in 0..3 {
        training.step().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.safetensors");
    training.snapshot().write(&path).unwrap();
    let snapshot = Snapshot::read(&path).unwrap();
    assert_eq!(snapshot.blueprint.data.floors, floors);
    let (_, shape, spectrum) = snapshot.weights.iter().find(|(name, _, _)| name == "spectral.spectrum").unwrap();
    assert_eq!(*shape, [2, 16, 16]);
    // By Parseval the coefficients vary as much in all as the nodes do.
    let units = &snapshot.blueprint.data.units;
    let indices: Vec<usize> = (0..40).collect();
    let samples = Dataset::batch(&dataset.train, &indices, 512, 256, units);
    let mut total = 0.0;
    for node in 0..512 {
        let values: Vec<f64> = samples.iter().skip(node).step_by(512).map(|&v| f64::from(v)).collect();
        let mean = values.iter().sum::<f64>() / 40.0;
        total += values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 40.0;
    }
    let measured: f64 = spectrum.iter().map(|&s| f64::from(s)).sum();
    assert!((measured / total - 1.0).abs() < 1e-3, "{measured} against {total}");
    let model = snapshot.model(&cpu(), &path).unwrap();
    let x = field_batch(normals(30, 1024), [2, 16, 16], &cpu());
    let denoised = to_vec_f64(model.denoiser.denoise(x, &[0.1, 2.0]));
    assert!(denoised.iter().all(|v| v.is_finite()));
}
