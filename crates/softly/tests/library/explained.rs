//! What the directions of a constraint explain of a denoiser's error.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use softly::job::Job;
use softly::tensors::per_sample;
use softly::units::Units;
use softly::{
    Blueprint, Denoiser, Direction, DirectionKind, Directions, Explained, HeldOut, Model, NewtonConfig, Precondition,
    Scale, ScdConfig, Split,
};

use crate::common::denoisers::without_parameters;
use crate::common::{circle, configured, cpu, dataset, field, soft};

/// The same field whatever x is.
struct Constant(Vec<f64>);

impl Constant {
    fn field(&self, like: &Tensor<4>) -> Tensor<4> {
        let one = field(&self.0, [1, 2, 2]);
        per_sample(vec![1.0; like.dims()[0]].into_iter(), like) * one
    }
}

without_parameters!(Constant, Offset);

impl Denoiser for Constant {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        self.field(&x)
    }
}

impl Direction for Constant {
    fn correction_in(&self, _: DType, base: &Tensor<4>, _: &[f64], _: &[Precondition]) -> Tensor<4> {
        self.field(base)
    }
}

#[test]
fn what_is_explained_is_the_energy_along_the_directions() {
    // Data that are zero, and an error of 3 along the first direction, 4 along the second, none along the third.
    let basis = [[0.5, 0.5, 0.5, 0.5], [0.5, -0.5, 0.5, -0.5], [0.5, 0.5, -0.5, -0.5]];
    let error: Vec<f64> = (0..4).map(|i| 3.0 * basis[0][i] + 4.0 * basis[1][i]).collect();
    let base = || Constant(error.iter().map(|e| -e).collect());
    let plain = Model::plain(Box::new(base()), None, 0.5, [1, 2, 2]);
    let along = |k: usize, factor: f64| -> Box<dyn Direction> {
        Box::new(Constant(basis[k].iter().map(|v| factor * v).collect()))
    };
    let kinds = [DirectionKind::Gradient, DirectionKind::Spectral, DirectionKind::Newton];
    let directions = |learned| {
        let all = kinds.into_iter().zip([along(0, 10.0), along(1, -1.0), along(2, 0.1)]).collect();
        Directions { all, learned }
    };
    let values = [0.0f32; 20];
    let units = Units::identity(1);
    let explain = |model: &Model, directions: &Directions| {
        let data = HeldOut { values: &values, shape: [1, 2, 2], units: &units };
        let explained = Explained { sigmas: vec![0.1, 1.0], batch: 2 };
        let report = explained.evaluate(model, directions, data, 0, &Job::silent(&cpu())).unwrap();
        assert_eq!((report.count, report.levels.len(), report.directions), (5, 2, kinds.to_vec()));
        assert_eq!(report.chance, 0.05);
        report.levels[0].clone()
    };
    let near = |found: &[f64], expected: &[f64]| {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-9, "{found:?} against {expected:?}");
        }
    };
    let level = explain(&plain, &directions(0));
    near(&level.alone, &[9.0 / 25.0, 16.0 / 25.0, 0.0]);
    near(&level.best, &[0.3, -4.0, 0.0]);
    near(&[level.span, level.error], &[1.0, 2.5]);
    assert!(level.learned.is_none() && level.gamma.is_empty());
    // Two directions on top of one another are no more than one.
    let same = Directions {
        all: vec![(kinds[0], along(0, 1.0)), (kinds[1], along(0, 2.0)), (kinds[2], along(2, 1.0))],
        learned: 0,
    };
    let level = explain(&plain, &same);
    near(&level.alone, &[9.0 / 25.0, 9.0 / 25.0, 0.0]);
    near(&[level.span], &[9.0 / 25.0]);
    // A model with weights 0.1 and −2 leaves errors of 2 and 2.
    let config = ScdConfig { directions: kinds[..2].to_vec(), constant: Some(vec![0.1, -2.0]), ..ScdConfig::default() };
    let own = vec![along(0, 10.0), along(1, -1.0)];
    let constraint = circle("1", &[]);
    let model = Model::soft(soft(base(), &constraint, own, [1, 2, 2], config), constraint, 0.5, [1, 2, 2]);
    let level = explain(&model, &directions(2));
    assert_eq!(level.gamma.len(), 2);
    assert!(level.gamma.iter().zip([0.1, -2.0]).all(|(found, expected)| (found - expected).abs() < 1e-6));
    assert!((level.learned.unwrap() - (1.0 - 8.0 / 25.0)).abs() < 1e-6, "{level:?}");
    near(&[level.span], &[1.0]);
}

/// D(x) = x + an error that is the same everywhere.
struct Offset(Vec<f64>);

impl Denoiser for Offset {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        x + field(&self.0, [2, 16, 16])
    }
}

#[test]
fn a_true_equation_explains_what_a_wrong_one_does_not() {
    // Errors of p alone: the Newton step from the true equation undoes them, whatever they are.
    let share = |flow: &str| {
        let small = ["data.count=8", "data.valid=6", "denoiser.backbone={kind='mlp', hidden=8}"];
        let config = configured("darcy-demo", &[&small[..], &[flow]].concat());
        let data = dataset(&config);
        let blueprint = Blueprint::new(&config, &data).unwrap();
        let constraint = Arc::new(blueprint.constraint().unwrap().unwrap());
        let model = |error: Vec<f64>| Model::plain(Box::new(Offset(error)), Some(constraint.clone()), 0.5, [2, 16, 16]);
        let newton = NewtonConfig { floor: Some(BTreeMap::new()), ..NewtonConfig::default() };
        let scd = ScdConfig { scale: Scale::Unit, solve_for: Some("p".into()), newton, ..ScdConfig::default() };
        let directions = Directions::of(&blueprint, &scd, &model(vec![0.0; 512]), &data, &cpu()).unwrap();
        // Not symmetric about the diagonal from source to sink, as the pressure is.
        let cosine = |i: usize| 0.1 * (std::f64::consts::PI * i as f64 / 15.0).cos();
        let error = (0..512).map(|i| if i < 256 { cosine(i / 16) - cosine(i % 16) } else { 0.0 }).collect();
        let values = data.batch(Split::Valid, &[0, 1, 2, 3, 4, 5], &blueprint.data.units).unwrap();
        let data = HeldOut { values: &values, shape: [2, 16, 16], units: &blueprint.data.units };
        let explained = Explained { sigmas: vec![1e-3], batch: 4 };
        let report = explained.evaluate(&model(error), &directions, data, 0, &Job::silent(&cpu())).unwrap();
        assert_eq!(report.directions.len(), 4);
        report.levels[0].alone[2]
    };
    let (right, wrong) = (share("constraint.parameters.flow=10.0"), share("constraint.parameters.flow=15.0"));
    assert!(right > 0.95 && wrong < 0.4, "{right} and {wrong}");
}
