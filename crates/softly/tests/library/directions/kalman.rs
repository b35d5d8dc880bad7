//! The Kalman direction: its dense formula and its measurements.

use std::collections::BTreeMap;
use std::path::Path;

use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    ConstraintConfig, Direction, Family, KalmanConfig, KalmanDirection, Norm, ScdConfig, Snapshot, SoftConstraint,
    Split,
};
use softly_pde::derivative::Scheme;
use softly_pde::grid::{Axis, Grid};

use crate::common::denoisers::Identity;
use crate::common::probe::{darcy, plain_darcy};
use crate::common::{
    adapting, compiled, configured, cpu, dataset, denoised, field, new_training, normals, relative_error, rms, weights,
};
use crate::directions::systems::{reaction_law, three_units, transport_law};
use crate::directions::{build, darcy_law, dense_basis, helmholtz_law, small_units};

/// The settings of a soft constraint with so many `iterations`; no field to solve for is needed.
fn solving(iterations: usize) -> ScdConfig {
    ScdConfig { kalman: KalmanConfig { iterations }, ..ScdConfig::default() }
}

/// The Kalman direction with covariance e^`errors` `[C, H, W]`, mean misfit `mean`, its variance e^`variance` and spectrum
/// e^`spectrum` `[E, H, W]` at every noise level.
pub fn kalman(
    iterations: usize,
    law: &ConstraintConfig,
    grid: &Grid,
    units: &Units,
    [errors, mean, variance, spectrum]: [&dyn Fn(usize) -> f32; 4],
) -> KalmanDirection {
    let mut direction: KalmanDirection = build(law, grid, units, &solving(iterations)).unwrap();
    direction.visit("", &mut |name, parameter| {
        let (levels, rows) = (parameter.shape()[0], parameter.shape()[1]);
        let equations = law.residuals().len();
        let (expected, value) = match name {
            "errors" => (law.fields.len(), errors),
            "misfit-mean" => (equations, mean),
            "misfit-variance" => (equations, variance),
            "misfit-spectrum" => (equations, spectrum),
            _ => panic!("{name}"),
        };
        assert_eq!(rows, expected, "{name}");
        parameter.set((0..rows * grid.len()).map(value).collect::<Vec<f32>>().repeat(levels));
    });
    direction
}

/// One that is not trivial in any part.
pub fn some_kalman(iterations: usize, law: &ConstraintConfig, grid: &Grid, units: &Units) -> KalmanDirection {
    let nodes = grid.len();
    let errors = |i: usize| -1.5 - 3.0 * (i % nodes) as f32 / nodes as f32 + (i as f32).sin();
    let mean = |i: usize| (1.7 * i as f32).sin();
    let variance = |i: usize| (2.3 * i as f32).cos() - 1.0;
    let spectrum = |i: usize| (3.1 * i as f32).sin() - 0.5;
    kalman(iterations, law, grid, units, [&errors, &mean, &variance, &spectrum])
}

/// δ = −Σ Jᵀ (J Σ Jᵀ + V)⁻¹ (R − m) by dense algebra at `base` `[C, H, W]`; the functions of each field and of each residual are
/// those of `fields` and `residuals`.
fn dense_step(
    direction: &mut KalmanDirection,
    constraint: &SoftConstraint,
    base: &[f64],
    (fields, residuals): (&[[Family; 2]], &[[Family; 2]]),
) -> Vec<f64> {
    let (rows, cols) = (constraint.grid().rows(), constraint.grid().cols());
    let (nodes, len) = (rows * cols, base.len());
    let shape = [fields.len(), rows, cols];
    let residual = |x: Vec<f64>| -> Vec<f64> {
        constraint.residuals(&field(&x, shape)).into_iter().flat_map(to_vec_f64).collect()
    };
    // Central differences are exact for formulas of second degree.
    let column = |i: usize| -> Vec<f64> {
        let [up, down] = [0.5, -0.5].map(|step| {
            let moved = base.iter().enumerate().map(|(j, x)| if i == j { x + step } else { *x });
            residual(moved.collect())
        });
        up.iter().zip(down).map(|(a, b)| a - b).collect()
    };
    let jacobian: Vec<Vec<f64>> = (0..len).map(column).collect();
    let mut measured = BTreeMap::new();
    direction.visit("", &mut |name, p| {
        let values = p.values();
        let at_one = values[..values.len() / p.shape()[0]].iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        measured.insert(name.to_string(), at_one);
    });
    // Σ is block diagonal over fields, V over equations.
    let blocks = |families: &[[Family; 2]], spectrum: &[f64]| -> Vec<Vec<f64>> {
        let mut matrix = vec![vec![0.0; families.len() * nodes]; families.len() * nodes];
        for (k, families) in families.iter().enumerate() {
            for (function, s) in dense_basis(*families, rows, cols).iter().zip(&spectrum[k * nodes..]) {
                for i in 0..nodes {
                    for j in 0..nodes {
                        matrix[k * nodes + i][k * nodes + j] += function[i] * s.exp() * function[j];
                    }
                }
            }
        }
        matrix
    };
    let inner = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let sigma = blocks(fields, &measured["errors"]);
    let misfit = blocks(residuals, &measured["misfit-spectrum"]);
    // Outside its region an equation says nothing: only rows of nodes that count are there.
    let all = residuals.len() * nodes;
    let counts: Vec<usize> = (0..all).filter(|&i| jacobian.iter().any(|column| column[i] != 0.0)).collect();
    let rows: Vec<Vec<f64>> = counts.iter().map(|&i| jacobian.iter().map(|column| column[i]).collect()).collect();
    let smoothed: Vec<Vec<f64>> = rows.iter().map(|row| sigma.iter().map(|s| inner(s, row)).collect()).collect();
    let deviation = |i: usize| (measured["misfit-variance"][i] / 2.0).exp();
    let system = counts.iter().zip(&rows).map(|(&i, row)| {
        let entry =
            |(&j, smoothed): (&usize, &Vec<f64>)| inner(row, smoothed) + deviation(i) * misfit[i][j] * deviation(j);
        counts.iter().zip(&smoothed).map(entry).collect()
    });
    let at_base = residual(base.to_vec());
    let right = counts.iter().map(|&i| measured["misfit-mean"][i] - at_base[i]).collect();
    let solution = solved(system.collect(), right);
    (0..len).map(|i| smoothed.iter().zip(&solution).map(|(s, y)| s[i] * y).sum()).collect()
}

#[test]
fn the_kalman_direction_is_its_dense_formula() {
    let grid = Grid::unit(6, 5);
    for (law, channel, family) in [
        (darcy_law(Scheme::Mirror, Norm::L2), 0, Family::Cosine),
        (darcy_law(Scheme::OneSided2, Norm::L2), 0, Family::Cosine),
        (helmholtz_law(2.0), 1, Family::InnerSine),
    ] {
        let units = small_units(channel);
        let mut direction = some_kalman(60, &law, &grid, &units);
        let base = normals(3, 1, 60);
        let found = to_vec_f64(direction.step(&field(&base, [2, 6, 5]), &[0.3]));
        let constraint = compiled(&law, &grid, &units);
        let expected = dense_step(&mut direction, &constraint, &base, (&[[family; 2]; 2], &[[family; 2]]));
        let error = relative_error(&found, &expected);
        assert!(error < 1e-6, "{family:?}: {error}");
    }
}

#[test]
fn several_equations_are_one_dense_formula() {
    use Family::{Cosine, Fourier, InnerSine};
    let grid = Grid::unit(6, 5);
    // The concentration has a border by itself, the velocities are in an equation of the whole grid.
    let transport = [[InnerSine; 2], [Cosine; 2], [Cosine; 2]];
    let tube = Grid { axes: vec![Axis::new("t", 6, 0.0, 1.0), Axis::new("x", 5, 0.0, 2.0).periodic()] };
    for (law, grid, fields, residuals) in [
        (transport_law(), &grid, transport, vec![[Cosine; 2], [InnerSine; 2], [InnerSine; 2]]),
        // Reaction and diffusion in time: a law, a sum rule, and an initial condition.
        (
            reaction_law(),
            &tube,
            [[Cosine, Fourier]; 3],
            vec![[Cosine, Fourier], [Cosine, Fourier], [InnerSine, Fourier]],
        ),
    ] {
        let units = three_units();
        let mut direction = some_kalman(200, &law, grid, &units);
        let base = normals(3, 1, 90);
        let found = to_vec_f64(direction.step(&field(&base, [3, 6, 5]), &[0.3]));
        let constraint = compiled(&law, grid, &units);
        let expected = dense_step(&mut direction, &constraint, &base, (&fields, &residuals));
        let error = relative_error(&found, &expected);
        assert!(error < 1e-6, "{:?}: {error}", law.fields);
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

#[test]
fn kalman_measures_errors_and_misfit_and_removes_what_the_equation_can_see() {
    // The equation of the data is linear, and white errors of a known size are what the denoiser makes: theory says
    // what is left. Given k = 4 in place of 1, the equation is wrong by 15 u.
    for k in [1.0, 4.0] {
        let config = configured("helmholtz-demo", &["data.count=600", "data.valid=32", "data.generator.size=16"]);
        let dataset = dataset(&config);
        let (units, _) = dataset.units(&config.data).unwrap();
        let mut direction: KalmanDirection = build(&helmholtz_law(k), &dataset.grid, &units, &solving(40)).unwrap();
        direction.measure(&Identity, &dataset, &units).unwrap();
        let mut at_last_level = BTreeMap::new();
        direction.visit("", &mut |name, p| {
            let values = p.values();
            let last = &values[values.len() - values.len() / 16..];
            at_last_level.insert(name.to_string(), last.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
        });
        let errors = &at_last_level["errors"];
        let mean = errors.iter().map(|v| v.exp()).sum::<f64>() / errors.len() as f64;
        assert!((mean / 6400.0 - 1.0).abs() < 0.02, "{mean}");
        let values = dataset.batch(Split::Valid, &(0..32).collect::<Vec<_>>(), &units).unwrap();
        let clean: Vec<f64> = values.into_iter().map(f64::from).collect();
        let noise = normals(3, 77, clean.len());
        let left = |direction: &KalmanDirection, sigma: f64| {
            let noisy: Vec<f64> = clean.iter().zip(&noise).map(|(x, z)| x + sigma * z).collect();
            let step = to_vec_f64(direction.step(&field(&noisy, [2, 16, 16]), &vec![sigma; 32]));
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
            // Where noise is larger than what is wrong the equation still tells as much, where it is smaller it is
            // still right about short waves.
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
fn kalman_is_measured_on_a_trained_base_and_kept_with_the_model() {
    let all = "denoiser.scd.directions=['spectral', 'kalman']";
    let fixed = "constraint.parameters.flow=15.0";
    let config = darcy(&[all, fixed]);
    let refused = new_training(&config).err().unwrap().to_string();
    assert!(refused.starts_with("denoiser.scd.directions: `kalman`"), "{refused}");

    let trained = plain_darcy();
    let mut training = adapting(&trained, &config).unwrap();
    let start = training.snapshot();
    training.step().unwrap();
    let snapshot = training.snapshot();
    let (_, shape, errors) = snapshot.weights.iter().find(|(name, _, _)| name == "kalman.errors").unwrap();
    assert_eq!(*shape, [16, 2, 16, 16]);
    assert!(errors.iter().any(|e| *e != errors[0]), "measured");
    // The source is wrong by 5 in the corner of the inflow; at the lowest noise the misfit says so.
    let mean = weights(&snapshot, "kalman.misfit-mean");
    assert!((mean[0] - 5.0).abs() < 0.5 && mean[8 * 16 + 8].abs() < 0.5, "{} and {}", mean[0], mean[8 * 16 + 8]);
    // A source that is learned is right before anything is measured.
    let learned = darcy(&[all, "constraint.parameters.flow={ learn = 15.0 }"]);
    let learned = adapting(&trained, &learned).unwrap().snapshot();
    assert!((weights(&learned, "constraint.flow")[0] - 10.0).abs() < 1e-3);
    assert!(weights(&learned, "kalman.misfit-mean")[0].abs() < 0.5);

    // γ starts with the whole of this direction and nothing of others. Controls have that without a learned γ, or
    // without the other directions.
    let changed = |settings: &[&str]| {
        let mut changed = snapshot.clone();
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        changed.change(&settings, Path::new("here")).unwrap();
        changed
    };
    let constant = changed(&["denoiser.scd.constant=[0.0, 1.0]"]);
    let alone = changed(&["denoiser.scd.directions=['kalman']", "denoiser.scd.constant=[1.0]"]);
    let estimate = |snapshot: &Snapshot| {
        let model = snapshot.model(&cpu(), Path::new("here")).unwrap();
        denoised(&model, field(&normals(1, 0, 512), [2, 16, 16]), &[0.1])
    };
    assert_eq!(estimate(&constant), estimate(&start));
    assert_eq!(estimate(&alone), estimate(&start));
    assert_ne!(estimate(&constant), estimate(&snapshot));
    // What nobody measured cannot be put on a model.
    let mut bare = trained.clone();
    bare.change(&["denoiser.scd={directions=['kalman'], constant=[1.0]}".to_string()], Path::new("here")).unwrap();
    let refused = bare.model(&cpu(), Path::new("here")).err().unwrap().to_string();
    assert!(refused.contains("kalman.errors") && refused.contains("softly adapt"), "{refused}");
}
