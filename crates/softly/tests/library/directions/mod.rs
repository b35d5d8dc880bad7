//! Directions of the correction against exact answers: dense references, reference solvers and finite differences.

mod basis;
mod gradient;
mod kalman;
mod newton;
mod spectral;
mod systems;

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use softly::error::Result;
use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    BuildDirection, ConstraintConfig, Damping, Direction, Family, GradientDirection, NewtonConfig, NewtonDirection,
    Norm, ParameterConfig, Precondition, Region, ResidualConfig, Residuals, Scale, ScdConfig, Site, Snapshot, Split,
};
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;
use softly_pde::stencil::Stencil;

use crate::common::{
    compiled, configured, cpu, dataset, denoised, field, law, new_training, normals, one, relative_error, rms,
};
use crate::directions::kalman::{kalman, some_kalman};
use crate::directions::newton::solve_for;
use crate::directions::spectral::spectral;

/// Noise levels as a direction is called with.
fn levels(sigma: &[f64]) -> Vec<Precondition> {
    sigma.iter().map(|&s| Precondition::new(s, 0.5)).collect()
}

/// Levels whose trust region is too large to matter.
fn unlimited(n: usize) -> Vec<Precondition> {
    vec![Precondition { out: 1e6, ..Precondition::new(1.0, 0.5) }; n]
}

/// Function (k, l) of a channel at node (i, j) by the matrices along the axes.
fn dense_basis(families: [Family; 2], rows: usize, cols: usize) -> Vec<Vec<f64>> {
    let (x, y) = (families[0].synthesis(rows), families[1].synthesis(cols));
    let function = |k: usize, l: usize| {
        (0..rows * cols).map(|node| x[node / cols * rows + k] * y[node % cols * cols + l]).collect()
    };
    (0..rows).flat_map(|k| (0..cols).map(move |l| (k, l))).map(|(k, l)| function(k, l)).collect()
}

/// Darcy's law on a small grid, p differentiated with `scheme`.
fn darcy_law(scheme: Scheme, norm: Norm) -> ConstraintConfig {
    let source = "flow*(x<=0.2)*(y<=0.2) - flow*(x>=0.8)*(y>=0.8)".to_string();
    ConstraintConfig {
        stencils: BTreeMap::from([("p".to_string(), Stencil::All(scheme))]),
        parameters: BTreeMap::from([
            ("flow".to_string(), ParameterConfig::Number(10.0)),
            ("f".to_string(), ParameterConfig::Formula(source)),
        ]),
        ..law(&["p", "K"], one("K*laplacian(p) + dot(grad(K), grad(p)) + f"), norm)
    }
}

fn helmholtz_law(k: f64) -> ConstraintConfig {
    let formula = "laplacian(u) + k^2*u - a".to_string();
    let residual = Residuals::Many(vec![ResidualConfig { formula, region: Region::Interior, weight: 2.0, name: None }]);
    let parameters = BTreeMap::from([("k".to_string(), ParameterConfig::Number(k))]);
    ConstraintConfig { parameters, ..law(&["a", "u"], residual, Norm::L2) }
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

/// A direction along `law` on data that have exactly its fields.
fn build<D: BuildDirection>(law: &ConstraintConfig, grid: &Grid, units: &Units, settings: &ScdConfig) -> Result<D> {
    build_on(&cpu(), law, grid, units, settings)
}

/// The same on `device`; one with autodiff means training.
fn build_on<D: BuildDirection>(
    device: &Device,
    law: &ConstraintConfig,
    grid: &Grid,
    units: &Units,
    settings: &ScdConfig,
) -> Result<D> {
    let (constraint, floors) = (Arc::new(compiled(law, grid, units)), BTreeMap::new());
    let (constraint, floors, fields) = (&constraint, &floors, &law.fields);
    D::build(Site { constraint, formulas: law, fields, grid, units, floors, settings, device })
}

/// A direction as a function of the base.
type At<'a> = dyn Fn(&Tensor<4>) -> Tensor<4> + 'a;

/// Compares the gradient of Σ w·v(x) by autodiff with central differences in f64.
fn check_gradient(name: &str, at: &At<'_>, x: &[f64], shape: [usize; 3], step: f64) {
    let size: usize = shape.iter().product();
    let n = x.len() / size;
    let weights = field(&normals(3, 9, x.len()), shape);
    let device = cpu().autodiff();
    let data = TensorData::new(x.to_vec(), [n, shape[0], shape[1], shape[2]]);
    let tracked: Tensor<4> = Tensor::<4>::from_data(data, (&device, DType::F64)).require_grad();
    let loss = (at(&tracked) * Tensor::from_inner(weights.clone())).sum();
    let gradients = loss.backward();
    let gradient = to_vec_f64(tracked.grad(&gradients).unwrap());
    let value = |x: Vec<f64>| to_vec_f64((at(&field(&x, shape)) * weights.clone()).sum())[0];
    let size = rms(&gradient);
    assert!(size > 0.0, "{name}: the direction moves with the base");
    for probe in 0..4 {
        let direction = normals(3, 20 + probe, x.len());
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
    let x = normals(3, 6, 2 * 2 * grid.len());
    let x: Vec<f64> = x.into_iter().map(|v| 0.5 * v).collect();
    for norm in [Norm::L1Mean, Norm::L2] {
        let direction = spectral(&darcy_law(Scheme::OneSided2, norm), vec![Family::Cosine; 2], &grid, &small_units(0));
        check_gradient("spectral", &|x| direction.correction(x, &sigma, &at), &x, shape, 1e-6);
    }
    let law = darcy_law(Scheme::OneSided2, Norm::L2);
    let darcy: NewtonDirection = build(&law, &grid, &small_units(0), &solve_for("p", 6)).unwrap();
    check_gradient("newton, Darcy", &|x| darcy.correction(x, &sigma, &at), &x, shape, 1e-6);
    let helmholtz: NewtonDirection = build(&helmholtz_law(2.0), &grid, &small_units(1), &solve_for("u", 3)).unwrap();
    check_gradient("newton, Helmholtz", &|x| helmholtz.correction(x, &sigma, &at), &x, shape, 1e-6);
    let darcy = some_kalman(5, &law, &grid, &small_units(0));
    check_gradient("kalman, Darcy", &|x| darcy.correction(x, &sigma, &at), &x, shape, 1e-6);
}

#[test]
fn a_gradient_is_stopped_in_training_alone() {
    let (grid, law) = (Grid::unit(9, 8), darcy_law(Scheme::OneSided2, Norm::L2));
    let settings = solve_for("p", 3);
    let newton = NewtonConfig { stop_gradient: true, ..settings.newton.clone() };
    let settings = ScdConfig { newton, ..settings };
    let gradient = |device: &Device| {
        let direction: NewtonDirection = build_on(device, &law, &grid, &small_units(0), &settings).unwrap();
        let x = field(&normals(3, 6, 2 * grid.len()), [2, 9, 8]).autodiff().require_grad();
        let v = direction.correction(&x, &[0.5], &levels(&[0.5]));
        let gradients = (x.clone() + v).sum().backward();
        to_vec_f64(x.grad(&gradients).unwrap())
    };
    assert!(gradient(&cpu().autodiff()).iter().all(|g| *g == 1.0));
    assert!(gradient(&cpu()).iter().any(|g| *g != 1.0));
}

#[test]
fn a_sample_does_not_know_its_batch() {
    let grid = Grid::unit(9, 8);
    let (size, sigma) = (2 * grid.len(), [0.01, 0.4, 30.0]);
    let values = normals(3, 7, 3 * size);
    let law = darcy_law(Scheme::OneSided2, Norm::L2);
    let newton: NewtonDirection = build(&law, &grid, &small_units(0), &solve_for("p", 5)).unwrap();
    let spectral = spectral(&law, vec![Family::Cosine; 2], &grid, &small_units(0));
    let kalman = some_kalman(5, &law, &grid, &small_units(0));
    let directions: [&dyn Direction; 3] = [&newton, &spectral, &kalman];
    for direction in directions {
        let correction = |values: &[f64], sigma: &[f64]| {
            to_vec_f64(direction.correction(&field(values, [2, 9, 8]), sigma, &levels(sigma)))
        };
        let together = correction(&values, &sigma);
        for sample in 0..3 {
            let own = sample * size..(sample + 1) * size;
            let alone = correction(&values[own.clone()], &sigma[sample..=sample]);
            assert!(relative_error(&together[own], &alone) < 1e-12);
        }
    }
}

#[test]
fn without_a_residual_there_is_no_direction_and_its_gradient_is_finite() {
    let (grid, units, law) = (Grid::unit(8, 8), Units::identity(2), helmholtz_law(1.0));
    let zero = Tensor::<4>::zeros([1, 2, 8, 8], (&cpu().autodiff(), DType::F32)).require_grad();
    let newton: NewtonDirection = build(&law, &grid, &units, &solve_for("u", 4)).unwrap();
    let spectral = spectral(&law, vec![Family::Cosine; 2], &grid, &units);
    let kalman = kalman(4, &law, &grid, &units, [&|_| 0.0, &|_| 0.0, &|_| -4.0, &|_| 0.0]);
    let check = |name: &str, direction: &dyn Direction| {
        let v = direction.correction(&zero, &[0.3], &levels(&[0.3]));
        assert!(to_vec_f64(v.clone()).iter().all(|v| *v == 0.0), "{name}");
        let gradient = zero.grad(&(v * 2.0).sum().backward()).expect("the direction moves with the estimate");
        assert!(to_vec_f64(gradient).iter().all(|g| g.is_finite()), "{name}");
    };
    check("newton", &newton);
    check("spectral", &spectral);
    check("kalman", &kalman);
    let constraint = Arc::new(compiled(&law, &grid, &units));
    for scale in [Scale::Paper, Scale::Plain, Scale::Unit, Scale::Polyak, Scale::Jacobi] {
        for damping in [Damping::Exponential, Damping::GradientNorm] {
            let gradient = GradientDirection::new(constraint.clone(), scale, damping, 1.0);
            check(&format!("gradient, {scale:?} {damping:?}"), &gradient);
        }
    }
}

#[test]
fn whatever_the_estimate_is_the_directions_are_finite_and_bounded() {
    let grid = Grid::unit(16, 16);
    let law = darcy_law(Scheme::OneSided2, Norm::L1Mean);
    let units = small_units(0);
    let noise = |scale: f64, shift: f64| normals(3, 8, 512).into_iter().map(move |v| scale * v + shift);
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
            let settings = solve_for("p", NewtonConfig::default().iterations);
            let settings = ScdConfig { newton: NewtonConfig { floor, ..settings.newton.clone() }, ..settings };
            let newton: NewtonDirection = build(&law, &grid, &units, &settings).unwrap();
            let spectral = spectral(&law, vec![Family::Cosine; 2], &grid, &units);
            let kalman = some_kalman(12, &law, &grid, &units);
            let directions: [(&str, &dyn Direction, f64); 3] =
                [("newton", &newton, 3.0), ("spectral", &spectral, 1.0), ("kalman", &kalman, 3.0)];
            for (name, direction, limit) in directions {
                let x = Tensor::<4>::from_data(data.clone(), (&cpu().autodiff(), DType::F32)).require_grad();
                let v = direction.correction(&x, &sigma, &at);
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
fn a_model_with_every_direction_trains_and_its_snapshot_knows_the_data() {
    let settings = [
        "data.count=40",
        "data.valid=4",
        "train.iterations=3",
        "train.batch=4",
        "denoiser.backbone={ kind = 'mlp', hidden = 16 }",
        "denoiser.scd={directions=['gradient', 'spectral', 'newton'], solve_for='p', scale='unit', input='features'}",
    ];
    let config = configured("darcy-demo", &settings);
    let dataset = dataset(&config);
    let floors = dataset.floors().unwrap();
    assert_eq!(floors.keys().collect::<Vec<_>>(), ["K"], "the permeability is positive, the pressure is not");
    let mut training = new_training(&config).unwrap();
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
    let samples = dataset.batch(Split::Train, &indices, units).unwrap();
    let mut total = 0.0;
    for node in 0..512 {
        let values: Vec<f64> = samples.iter().skip(node).step_by(512).map(|&v| f64::from(v)).collect();
        let mean = values.iter().sum::<f64>() / 40.0;
        total += values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 40.0;
    }
    let measured: f64 = spectrum.iter().map(|&s| f64::from(s)).sum();
    assert!((measured / total - 1.0).abs() < 1e-3, "{measured} against {total}");
    let model = snapshot.model(&cpu(), &path).unwrap();
    let x = field(&normals(3, 30, 1024), [2, 16, 16]);
    assert!(denoised(&model, x, &[0.1, 2.0]).iter().all(|v| v.is_finite()));
}
