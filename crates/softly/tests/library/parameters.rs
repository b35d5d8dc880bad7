//! Parameters of a constraint that are drawn or learned: values, independence of batches, refusals.

use std::collections::BTreeMap;

use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    ConstraintConfig, DataSpec, Layers, Norm, ParameterConfig, Region, ResidualConfig, Residuals, SoftConstraint,
};
use softly_pde::grid::{Axis, Grid};

use crate::common::probe::{self, plain_darcy};
use crate::common::{POINT, adapting, compiled, field, law, normals, one};

const SHAPE: [usize; 3] = [2, 6, 5];
/// 6 × 5 nodes of spacing 0.2.
fn grid() -> Grid {
    Grid { axes: vec![Axis::new("x", 6, 0.0, 1.0), Axis::new("y", 5, 0.0, 0.8)] }
}

/// Darcy flow whose source is a formula of `flow`.
fn darcy(flow: ParameterConfig) -> ConstraintConfig {
    let residual = one("K*laplacian(p) + dot(grad(K), grad(p)) + f - 0.1*flow*p");
    ConstraintConfig {
        parameters: BTreeMap::from([
            ("flow".to_string(), flow),
            ("half".to_string(), ParameterConfig::Number(0.5)),
            ("f".to_string(), ParameterConfig::Formula("flow*(x <= half) - sqrt(flow)*y".into())),
        ]),
        ..law(&["p", "K"], residual, Norm::L2)
    }
}

fn data() -> DataSpec {
    DataSpec {
        fields: vec!["p".into(), "K".into()],
        grid: grid(),
        units: Units { mean: vec![0.1, 1.3], scale: vec![0.2, 0.6] },
        scalars: Vec::new(),
        hash: String::new(),
        floors: BTreeMap::new(),
    }
}

fn on_data(config: &ConstraintConfig) -> SoftConstraint {
    compiled(config, &grid(), &data().units)
}

fn fields(samples: usize, index: u64) -> Vec<f64> {
    normals(3, index, samples * 60)
}

/// Every residual value of normalised samples.
fn residuals(constraint: &SoftConstraint, values: &[f64]) -> Vec<f64> {
    constraint.residuals(&field(values, SHAPE)).into_iter().flat_map(to_vec_f64).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() < 1e-9 * (1.0 + e.abs()), "{f} against {e}");
    }
}

#[test]
fn a_learned_or_certain_number_acts_like_a_given_one_even_inside_a_formula() {
    let values = fields(3, 0);
    let given = on_data(&darcy(ParameterConfig::Number(7.5)));
    let physical = |channel: usize| -> Vec<f64> {
        let Units { mean, scale } = data().units;
        values[channel * 30..(channel + 1) * 30].iter().map(|v| mean[channel] + scale[channel] * v).collect()
    };
    let sample = [physical(0), physical(1)];
    for parameter in [
        ParameterConfig::Learn { learn: 7.5 },
        ParameterConfig::Normal { normal: [7.5, 0.0] },
        // A field starts out the same everywhere.
        ParameterConfig::LearnField { learn: 7.5, length: 0.3, size: 2.0 },
    ] {
        let constraint = on_data(&darcy(parameter));
        assert_near(&residuals(&constraint, &values), &residuals(&given, &values));
        assert_near(&constraint.residual_values(&sample).concat(), &given.residual_values(&sample).concat());
        let x = field(&values, SHAPE);
        let (norm, gradient) = constraint.norm_and_gradient(&x);
        let (given_norm, given_gradient) = given.norm_and_gradient(&x);
        assert_near(&to_vec_f64(norm), &to_vec_f64(given_norm));
        assert_near(&to_vec_f64(gradient), &to_vec_f64(given_gradient));
        assert_near(&to_vec_f64(constraint.jacobi_step(&x)), &to_vec_f64(given.jacobi_step(&x)));
    }
    // Arithmetic in f64 takes the mean of a drawn number.
    let drawn = on_data(&darcy(ParameterConfig::Normal { normal: [7.5, 2.0] }));
    assert_near(&drawn.residual_values(&sample).concat(), &given.residual_values(&sample).concat());
}

/// Two channels on one node; the residual is the parameters themselves.
fn drawn_numbers(values: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let part = |formula: &str| ResidualConfig { formula: formula.into(), region: Region::All, weight: 1.0, name: None };
    let config = ConstraintConfig {
        parameters: BTreeMap::from([
            ("a".to_string(), ParameterConfig::Normal { normal: [2.0, 0.5] }),
            ("b".to_string(), ParameterConfig::Normal { normal: [-1.0, 0.1] }),
        ]),
        ..law(&["p"], Residuals::Many(["a + 0*p", "b + 0*p"].map(part).to_vec()), Norm::L2)
    };
    let names = ["p".to_string(), "q".to_string()];
    let constraint = SoftConstraint::new(&config, &names, &Grid::point(), &Units::identity(2)).unwrap();
    let mut parts = constraint.residuals(&field(values, POINT)).into_iter().map(to_vec_f64);
    (parts.next().unwrap(), parts.next().unwrap())
}

#[test]
fn drawn_numbers_have_their_distribution_and_belong_to_the_field_alone() {
    let n = 4_000;
    let values = normals(5, 0, 2 * n);
    let (a, b) = drawn_numbers(&values);
    let moments = |v: &[f64]| {
        let mean = v.iter().sum::<f64>() / n as f64;
        (mean, (v.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64).sqrt())
    };
    for (found, (mean, std)) in [(moments(&a), (2.0, 0.5)), (moments(&b), (-1.0, 0.1))] {
        assert!((found.0 - mean).abs() < 4.5 * std / (n as f64).sqrt(), "{found:?}");
        assert!((found.1 / std - 1.0).abs() < 4.5 / (2.0 * n as f64).sqrt(), "{found:?}");
    }
    let correlation: f64 =
        a.iter().zip(&b).map(|(a, b)| (a - 2.0) / 0.5 * (b + 1.0) / 0.1).sum::<f64>() / (n as f64).sqrt();
    assert!(correlation.abs() < 4.5, "{correlation}");
    // The same field has the same draw alone, elsewhere in a batch and again; the least change gives another one.
    for (i, sample) in values.chunks_exact(2).enumerate().take(20) {
        assert_eq!(drawn_numbers(sample).0, [a[i]]);
    }
    let (again, _) = drawn_numbers(&values[100..200]);
    assert_eq!(again, a[50..100]);
    let nudged: Vec<f64> = values[..2].iter().map(|v| v * (1.0 + f64::EPSILON)).collect();
    assert_ne!(drawn_numbers(&nudged).0[0], a[0]);
}

#[test]
fn a_learned_field_acts_like_the_array_that_it_is() {
    let learned = on_data(&darcy(ParameterConfig::LearnField { learn: 7.5, length: 0.3, size: 2.0 }));
    let mut array = Vec::new();
    learned.visit("", &mut |name, parameter| {
        let z: Vec<f32> = normals(5, 9, parameter.values().len()).iter().map(|&z| z as f32).collect();
        assert!(name == "flow" && z.len() > 4 && z.len() < 30, "{}", z.len());
        parameter.set(z);
    });
    learned.visit("", &mut |name, parameter| {
        let value = learned.learned_value(name, &parameter.values()).unwrap();
        array = value.broadcast(30).to_vec();
    });
    assert!(array.iter().any(|v| *v > 8.0) && array.iter().any(|v| *v < 7.0), "{array:?}");
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("flow.npy");
    softly::npy::write_f64(&file, &[6, 5], array.iter().copied()).unwrap();
    let mut config = darcy(ParameterConfig::File { file });
    // Formulas may use numbers alone, so the one of the source is written out.
    config.parameters.remove("f");
    config.residual = one("K*laplacian(p) + dot(grad(K), grad(p)) + flow*(x <= half) - sqrt(flow)*y - 0.1*flow*p");
    let given = on_data(&config);
    let values = fields(3, 0);
    assert_near(&residuals(&learned, &values), &residuals(&given, &values));
    let sample = [values[..30].to_vec(), values[30..60].to_vec()];
    assert_near(&learned.residual_values(&sample).concat(), &given.residual_values(&sample).concat());
}

#[test]
fn a_parameter_without_influence_is_refused_by_name() {
    let config = probe::darcy(&["denoiser.scd.directions=['newton', 'kalman']", "constraint.parameters.c={learn=2.0}"]);
    let error = adapting(&plain_darcy(), &config).err().expect("refused");
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with("constraint.parameters.c: "), "{error}");
}

#[test]
fn impossible_parameters_are_refused_by_name() {
    let preset = || Layers::new().preset("darcy-demo").unwrap();
    let refused = |setting: &str| {
        let error = preset().set(setting).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    for setting in [
        "constraint.parameters.flow={learn='fast'}",
        "constraint.parameters.flow={learn=[1.0, 2.0]}",
        "constraint.parameters.flow={learn=15.0, rate=3}",
        "constraint.parameters.flow={learn=15.0, length=3.0}",
        "constraint.parameters.flow={normal=15.0}",
        "constraint.parameters.flow={lern=15.0}",
        "constraint.parameters.flow=true",
    ] {
        let said = refused(setting);
        assert!(said.contains("{ learn = start }") && said.contains("{ normal = [mean, std] }"), "{setting}: {said}");
    }
    let said = refused("truth={fields=['p'], residual='f*p', parameters={f={learn=1.0}}}");
    assert!(said.contains("truth.parameters.f"), "{said}");
    let learned = preset().set("constraint.parameters.flow={learn=15.0}").unwrap();
    // Vanilla has no use for the constraint; guidance has, but nothing there learns.
    learned.clone().finish("test").unwrap();
    let error = learned.clone().set("sampler.guidance={kind='dps', scale=0.1}").unwrap_err().to_string();
    assert!(error.contains("constraint.parameters.flow") && error.contains("[denoiser.scd]"), "{error}");
    // One kind of parameter over another replaces it.
    learned.set("constraint.parameters.flow={normal=[10.0, 1.0]}").unwrap().finish("test").unwrap();

    let compile = |flow: ParameterConfig, f: &str| {
        let mut config = darcy(flow);
        config.parameters.insert("f".into(), ParameterConfig::Formula(f.into()));
        let DataSpec { fields, grid, units, .. } = data();
        SoftConstraint::new(&config, &fields, &grid, &units).err().expect("refused").to_string()
    };
    let learn = || ParameterConfig::Learn { learn: 1.0 };
    for (flow, f, place) in [
        (ParameterConfig::Learn { learn: f64::NAN }, "1", "constraint.parameters.flow"),
        (ParameterConfig::LearnField { learn: 1.0, length: 0.0, size: 1.0 }, "1", "constraint.parameters.flow"),
        (ParameterConfig::Normal { normal: [1.0, -1.0] }, "1", "constraint.parameters.flow"),
        (ParameterConfig::Normal { normal: [1.0, f64::INFINITY] }, "1", "constraint.parameters.flow"),
        (learn(), "flow*(x <= flow)", "constraint.parameters.f"),
        (learn(), "flow*p", "constraint.parameters.f"),
    ] {
        let said = compile(flow, f);
        assert!(said.contains(place), "{said}");
    }
}
