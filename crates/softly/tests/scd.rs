//! Directions of the correction: the local step against dense Jacobians, its gradient, sums of several directions, and
//! what a configuration may ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, to_vec_f64};
use softly::units::Units;
use softly::{
    Blueprint, ConstraintConfig, Damping, Dataset, Denoiser, Direction, DirectionKind, Gamma, GammaOutput,
    GradientDirection, Layers, Norm, Optimizer, Parameters, Precondition, Region, ResidualConfig, Residuals, Scale,
    ScdConfig, SoftConstraint, SoftlyConstrained, Visitor,
};
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;

fn cpu() -> Device {
    Device::flex()
}

fn constraint(residual: Residuals, grid: &Grid, units: &Units) -> SoftConstraint {
    let config = ConstraintConfig {
        fields: vec!["p".into(), "K".into()],
        residual,
        stencil: Scheme::OneSided2,
        stencils: BTreeMap::from([("p".to_string(), Scheme::Mirror)]),
        norm: Norm::L1Mean,
        parameters: BTreeMap::new(),
    };
    SoftConstraint::new(&config, &["p".into(), "K".into()], grid, units).unwrap()
}

fn one(formula: &str) -> Residuals {
    Residuals::One(formula.into())
}

const GRID: Grid = Grid { rows: 6, cols: 5, x: [0.0, 1.0], y: [0.0, 0.8] };
const SHAPE: [usize; 3] = [2, 6, 5];
const SIZE: usize = 60;

fn units() -> Units {
    Units { mean: vec![0.1, 1.3], scale: vec![0.2, 0.6] }
}

/// The residual of one sample of normalised values, all parts after one another.
fn residual(constraint: &SoftConstraint, sample: &[f64]) -> Vec<f64> {
    let x = field_batch(sample.to_vec(), SHAPE, &cpu());
    constraint.residuals(&x).into_iter().flat_map(to_vec_f64).collect()
}

/// J = ∂R/∂x by central differences, one row per residual value.
fn jacobian(constraint: &SoftConstraint, sample: &[f64]) -> Vec<Vec<f64>> {
    let h = 1e-5;
    let columns: Vec<Vec<f64>> = (0..SIZE)
        .map(|j| {
            let at = |step: f64| {
                let mut moved = sample.to_vec();
                moved[j] += step;
                residual(constraint, &moved)
            };
            at(h).iter().zip(at(-h)).map(|(a, b)| (a - b) / (2.0 * h)).collect()
        })
        .collect();
    (0..columns[0].len()).map(|i| columns.iter().map(|c| c[i]).collect()).collect()
}

fn sample(index: u64) -> Vec<f64> {
    Stream::new(3, Purpose::Metric, index).normals(SIZE).into_iter().map(|v| 0.5 * v).collect()
}

#[test]
fn the_jacobi_step_is_one_over_the_absolute_jacobians_row_and_column_sums() {
    // Whether every entry of J comes from one path only, so that nothing can cancel.
    let many = Residuals::Many(vec![
        ResidualConfig { formula: "laplacian(p)".into(), region: Region::Interior, weight: -2.0 },
        ResidualConfig { formula: "p*dx(K)".into(), region: Region::Left, weight: 0.5 },
    ]);
    let cases = [
        (one("laplacian(p) - K"), true),
        (one("exp(K)*p - dx(K)"), false),
        (one("tanh(p)/(2 + K^2)"), false),
        (many, false),
        (one("K*laplacian(p) + dot(grad(K), grad(p)) + 1"), false),
        (one("div(K*grad(p)) - sqrt(1 + p^2)"), false),
        (one("cos(p) - abs(K)*dy(p)"), false),
        (one("p*K"), true),
    ];
    for (i, (formulas, single)) in cases.into_iter().enumerate() {
        let constraint = constraint(formulas.clone(), &GRID, &units());
        let sample = sample(i as u64);
        let step = to_vec_f64(constraint.jacobi_step(&field_batch(sample.clone(), SHAPE, &cpu())));
        let jacobian = jacobian(&constraint, &sample);
        let reach: Vec<f64> = jacobian.iter().map(|row| row.iter().map(|v| v.abs()).sum()).collect();
        let bound = |j: usize| -> f64 { jacobian.iter().zip(&reach).map(|(row, r)| row[j].abs() * r).sum() };
        for (j, step) in step.iter().enumerate() {
            // The floor keeps the step finite where R does not react.
            let exact = 1.0 / bound(j);
            assert!(*step > 0.0 && step.is_finite(), "{formulas:?} {j}: {step}");
            assert!(*step <= exact * (1.0 + 1e-6), "{formulas:?} {j}: {step} above {exact}");
            assert!(!single || *step > exact * (1.0 - 1e-6), "{formulas:?} {j}: {step} below {exact}");
        }
        // ‖J S^½‖ ≤ 1 by power iteration of S JᵀJ, and not far below.
        let mut v: Vec<f64> = Stream::new(4, Purpose::Metric, 0).normals(SIZE);
        let mut growth = 0.0;
        for _ in 0..300 {
            let r: Vec<f64> = jacobian.iter().map(|row| row.iter().zip(&v).map(|(a, b)| a * b).sum()).collect();
            let next: Vec<f64> =
                (0..SIZE).map(|j| step[j] * jacobian.iter().zip(&r).map(|(row, r)| row[j] * r).sum::<f64>()).collect();
            let length = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
            growth = length(&next) / length(&v);
            v = next.iter().map(|n| n / length(&next)).collect();
        }
        assert!(growth <= 1.0 + 1e-6 && growth > 0.2, "{formulas:?}: {growth}");
    }
}

fn at(sigma: &[f64]) -> Vec<Precondition> {
    sigma.iter().map(|&s| Precondition::new(s, 0.5)).collect()
}

#[test]
fn the_jacobi_step_of_darcy_flow_takes_out_white_noise_as_measured() {
    // Fields with white noise of 0.001 in normalised units. Along −S JᵀR of the pressure with γ = 1.9 a PyTorch prototype
    // with S = 1/(8K/h²)² brought the mean |R| from 0.118 to 0.056 and the error of p to 0.68.
    let mut layers = Layers::new().preset("darcy-demo").unwrap();
    for setting in ["data.count=96", "data.valid=1"] {
        layers = layers.set(setting).unwrap();
    }
    let config = layers.finish("test").unwrap();
    let dataset = Dataset::from_config(&config).unwrap();
    let blueprint = Blueprint::new(&config, &dataset).unwrap();
    let constraint = Arc::new(blueprint.constraint().unwrap().unwrap());
    let shape = dataset.shape();
    let (n, nodes) = (dataset.train_count(), dataset.grid.len());
    let indices: Vec<usize> = (0..n).collect();
    let clean = Dataset::batch(&dataset.train, &indices, dataset.sample_len(), nodes, &blueprint.data.units);
    let noise = Stream::new(0, Purpose::Metric, 0).normals(clean.len());
    let noisy: Vec<f64> = clean.iter().zip(&noise).map(|(c, z)| f64::from(*c) + 0.001 * z).collect();
    let x = field_batch(noisy.clone(), shape, &cpu());
    let sigma = vec![0.001; n];
    let direction = GradientDirection::new(constraint.clone(), Scale::Jacobi, Damping::Exponential, 0.0);
    let moved = to_vec_f64(direction.at(&x, &sigma, &at(&sigma)));
    let pressure = |i: usize| (i / nodes).is_multiple_of(2);
    let corrected: Vec<f64> =
        (0..noisy.len()).map(|i| noisy[i] + if pressure(i) { 1.9 * moved[i] } else { 0.0 }).collect();
    let mean = |values: &[f64]| {
        to_vec_f64(constraint.norm(field_batch(values.to_vec(), shape, &cpu()))).iter().sum::<f64>() / n as f64
    };
    let (before, after) = (mean(&noisy), mean(&corrected));
    assert!((before - 0.118).abs() < 0.012, "{before}");
    assert!((after / before - 0.056 / 0.118).abs() < 0.05, "{before} → {after}");
    let error = |values: &[f64]| {
        let squares = (0..values.len()).filter(|&i| pressure(i)).map(|i| (values[i] - f64::from(clean[i])).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let ratio = error(&corrected) / error(&noisy);
    assert!((ratio - 0.68).abs() < 0.03, "{ratio}");
}

#[test]
fn the_gradient_through_the_jacobi_direction_is_that_with_a_constant_step() {
    let constraint = Arc::new(constraint(one("K*laplacian(p) + dot(grad(K), grad(p)) + 1"), &GRID, &units()));
    let direction = GradientDirection::new(constraint.clone(), Scale::Jacobi, Damping::Exponential, 0.0);
    let (values, weights) = (sample(20), sample(21));
    let field = |values: &[f64]| field_batch(values.to_vec(), SHAPE, &cpu());
    let x = field(&values).autodiff().require_grad();
    let mut gradients = (direction.at(&x, &[0.1], &at(&[0.1])) * field(&weights)).sum().backward();
    let recorded = to_vec_f64(x.grad_remove(&mut gradients).unwrap());
    let step = to_vec_f64(constraint.jacobi_step(&field(&values)));
    let value = |values: &[f64]| -> f64 {
        let (_, gradient) = constraint.norm_and_gradient_in(Norm::HalfSquares, &field(values));
        to_vec_f64(gradient).iter().zip(&step).zip(&weights).map(|((g, s), w)| g * s * w).sum()
    };
    let size = recorded.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (j, recorded) in recorded.iter().enumerate() {
        let moved = |step: f64| {
            let mut moved = values.clone();
            moved[j] += step;
            value(&moved)
        };
        let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        assert!((recorded - difference).abs() < 1e-6 * size, "{j}: {recorded} against {difference}");
    }
}

/// D(x) = x.
struct Identity;

impl Parameters for Identity {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Identity {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        x
    }
}

/// v(D) = factor · D · c_out.
struct Along(f64);

impl Direction for Along {
    fn at(&self, base: &Tensor<4>, _: &[f64], at: &[Precondition]) -> Tensor<4> {
        base.clone() * softly::denoiser::per_sample(at.iter().map(|a| self.0 * a.out), base)
    }
}

#[test]
fn several_directions_add_up_each_with_its_own_weights() {
    let constraint = Arc::new(constraint(one("p*K"), &GRID, &units()));
    let directions = vec![DirectionKind::Gradient, DirectionKind::Spectral, DirectionKind::Newton];
    for output in [GammaOutput::Scalar, GammaOutput::Channel, GammaOutput::Pixel] {
        let config = ScdConfig { directions: directions.clone(), output, ..ScdConfig::default() };
        let gamma = Gamma::new(&config, SHAPE, &mut Stream::new(0, Purpose::Weights, 1), &cpu()).unwrap();
        let along: Vec<Box<dyn Direction>> = vec![Box::new(Along(1.0)), Box::new(Along(10.0)), Box::new(Along(100.0))];
        let mut model = SoftlyConstrained::new(Box::new(Identity), constraint.clone(), along, gamma, config, 0.5);
        let mut weights = Vec::new();
        model.visit("", &mut |name, parameter| {
            if name == "gamma.last.bias" {
                weights = (0..parameter.values().len()).map(|i| i as f32 + 1.0).collect();
                parameter.set(weights.clone());
            }
        });
        let per = weights.len() / 3;
        let (values, sigma) = (sample(5), 0.3);
        let denoised = to_vec_f64(model.denoise(field_batch(values.clone(), SHAPE, &cpu()), &[sigma]));
        let out = Precondition::new(sigma, 0.5).out;
        for (i, (v, d)) in values.iter().zip(denoised).enumerate() {
            let place = i * per / SIZE;
            let sum: f64 = [1.0, 10.0, 100.0]
                .into_iter()
                .enumerate()
                .map(|(k, factor)| f64::from(weights[k * per + place]) * factor)
                .sum();
            assert!((d - v * (1.0 + sum * out)).abs() < 1e-9 * d.abs(), "{output:?} {i}");
        }
    }
}

#[test]
fn gammas_learning_rate_is_a_multiple_of_the_runs() {
    let config = Layers::new().preset("circle-demo").unwrap().method("scd").unwrap();
    let config = config.set("denoiser.scd.rate=0.1").unwrap().set("data.count=16").unwrap().finish("test").unwrap();
    let blueprint = Blueprint::new(&config, &Dataset::from_config(&config).unwrap()).unwrap();
    let mut model = blueprint.build(&cpu().autodiff()).unwrap();
    let slots = Optimizer::new(&mut *model.denoiser).slots;
    assert!(slots.iter().any(|s| s.name.starts_with("gamma.")) && slots.iter().any(|s| s.rate == 1.0));
    assert!(slots.iter().all(|s| s.rate == if s.name.starts_with("gamma.") { 0.1 } else { 1.0 }));
}

#[test]
fn impossible_directions_are_refused_by_name() {
    let base = Layers::new().preset("darcy-demo").unwrap();
    let cases = [
        ("denoiser.scd={directions=['gradiant']}", "did you mean `gradient`?"),
        ("denoiser.scd={directions=[]}", "denoiser.scd.directions"),
        ("denoiser.scd={directions=['gradient', 'gradient']}", "`gradient` is named twice"),
        ("denoiser.scd={directions=['newton']}", "denoiser.scd.solve_for"),
        ("denoiser.scd={solve_for='k'}", "no field `k`; it has p, K"),
        ("denoiser.scd={scale='jakobi'}", "did you mean `jacobi`?"),
        ("denoiser.scd={input='feature'}", "did you mean `features`?"),
        ("denoiser.scd={rate=0.0}", "denoiser.scd.rate"),
    ];
    for (setting, expected) in cases {
        let error = base.clone().set(setting).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(expected), "{setting}: {error}");
    }
}
