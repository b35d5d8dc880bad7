//! The gradient direction: the local step of `jacobi` against dense Jacobians, its gradient, and λ by the paper's rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    Blueprint, ConstraintConfig, Damping, Denoiser, Direction, GradientDirection, Norm, Region, ResidualConfig,
    Residuals, Scale, ScdConfig, SoftConstraint, Split, automatic_lambda,
};
use softly_pde::derivative::Scheme;
use softly_pde::grid::{Axis, Grid};
use softly_pde::stencil::Stencil;

use crate::common::denoisers::Identity;
use crate::common::{POINT, compiled, configured, dataset, field, law, normals, one, point_constraint, rms, soft};
use crate::directions::levels;

const SHAPE: [usize; 3] = [2, 6, 5];
const SIZE: usize = 60;

/// 6 × 5 nodes of spacing 0.2.
fn grid() -> Grid {
    Grid { axes: vec![Axis::new("x", 6, 0.0, 1.0), Axis::new("y", 5, 0.0, 0.8)] }
}

fn constraint(residual: Residuals) -> SoftConstraint {
    let stencils = BTreeMap::from([("p".to_string(), Stencil::All(Scheme::Mirror))]);
    let config = ConstraintConfig { stencils, ..law(&["p", "K"], residual, Norm::L1Mean) };
    compiled(&config, &grid(), &Units { mean: vec![0.1, 1.3], scale: vec![0.2, 0.6] })
}

/// The residual of one sample of normalised values, all parts after one another.
fn residual(constraint: &SoftConstraint, sample: &[f64]) -> Vec<f64> {
    let x = field(sample, SHAPE);
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
    normals(3, index, SIZE).into_iter().map(|v| 0.5 * v).collect()
}

#[test]
fn the_jacobi_step_is_one_over_the_absolute_jacobians_row_and_column_sums() {
    // Whether every entry of J comes from one path only, so that nothing can cancel.
    let many = Residuals::Many(vec![
        ResidualConfig { formula: "laplacian(p)".into(), region: Region::Interior, weight: -2.0, name: None },
        ResidualConfig { formula: "p*dx(K)".into(), region: "y=first".parse().unwrap(), weight: 0.5, name: None },
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
        let constraint = constraint(formulas.clone());
        let sample = sample(i as u64);
        let step = to_vec_f64(constraint.jacobi_step(&field(&sample, SHAPE)));
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
        let mut v: Vec<f64> = normals(4, 0, SIZE);
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

#[test]
fn the_jacobi_step_of_darcy_flow_takes_out_white_noise_as_measured() {
    // Fields with white noise of 0.001 in normalised units. Along −S JᵀR of the pressure with γ = 1.9 a PyTorch
    // prototype with S = 1/(8K/h²)² brought the mean |R| from 0.118 to 0.056 and the error of p to 0.68.
    let config = configured("darcy-demo", &["data.count=96", "data.valid=1"]);
    let dataset = dataset(&config);
    let blueprint = Blueprint::new(&config, &dataset).unwrap();
    let constraint = Arc::new(blueprint.constraint().unwrap().unwrap());
    let shape = dataset.shape();
    let (n, nodes) = (dataset.train_count(), dataset.grid.len());
    let indices: Vec<usize> = (0..n).collect();
    let clean = dataset.batch(Split::Train, &indices, &blueprint.data.units).unwrap();
    let noise = normals(0, 0, clean.len());
    let noisy: Vec<f64> = clean.iter().zip(&noise).map(|(c, z)| f64::from(*c) + 0.001 * z).collect();
    let x = field(&noisy, shape);
    let sigma = vec![0.001; n];
    let direction = GradientDirection::new(constraint.clone(), Scale::Jacobi, Damping::Exponential, 0.0);
    let moved = to_vec_f64(direction.correction(&x, &sigma, &levels(&sigma)));
    let pressure = |i: usize| (i / nodes).is_multiple_of(2);
    let corrected: Vec<f64> =
        (0..noisy.len()).map(|i| noisy[i] + if pressure(i) { 1.9 * moved[i] } else { 0.0 }).collect();
    let mean = |values: &[f64]| to_vec_f64(constraint.norm(field(values, shape))).iter().sum::<f64>() / n as f64;
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
    let constraint = Arc::new(constraint(one("K*laplacian(p) + dot(grad(K), grad(p)) + 1")));
    let direction = GradientDirection::new(constraint.clone(), Scale::Jacobi, Damping::Exponential, 0.0);
    let (values, weights) = (sample(20), sample(21));
    let field = |values: &[f64]| field(values, SHAPE);
    let x = field(&values).autodiff().require_grad();
    let mut gradients = (direction.correction(&x, &[0.1], &levels(&[0.1])) * field(&weights)).sum().backward();
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

#[test]
fn automatic_lambda_makes_the_correction_as_large_as_the_data() {
    let shape = [2, 8, 8];
    let config = law(&["p", "K"], one("K*laplacian(p) + dot(grad(K), grad(p)) + 1"), Norm::L1Sum);
    let constraint = Arc::new(compiled(&config, &Grid::unit(8, 8), &Units::identity(2)));
    for sigma_data in [0.5, 1.3] {
        for scale in [Scale::Plain, Scale::Paper] {
            let lambda = automatic_lambda(&constraint, scale, shape, sigma_data);
            assert!(lambda > 0.0);
            let gradient = GradientDirection::new(constraint.clone(), scale, Damping::Exponential, lambda);
            let config = ScdConfig { constant: Some(vec![1.0]), ..ScdConfig::default() };
            let model = soft(Identity, &constraint, vec![Box::new(gradient)], shape, config);
            // The base's output is white noise of the data's size, drawn afresh.
            let n = 400;
            let x = field(&normals(31, 0, n * 128), shape) * sigma_data;
            let correction = rms(&to_vec_f64(model.denoise(x.clone(), &vec![sigma_data; n]) - x));
            assert!((correction / sigma_data - 1.0).abs() < 0.03, "{scale:?}: {correction} of {sigma_data}");
        }
    }
    // A constraint too weak for that is not blown up.
    let weak = point_constraint("0.001*x + 0.001*y", Norm::L1Sum);
    assert_eq!(automatic_lambda(&weak, Scale::Plain, POINT, 0.5), 0.0);
}
