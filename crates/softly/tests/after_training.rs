//! What can be done with a soft constraint after training: turn it up and down, see what it explains, and how well its
//! parameters are known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use burn::tensor::{Device, Tensor};
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, per_sample, to_vec_f64};
use softly::units::Units;
use softly::{
    Blueprint, Compliance, Config, ConstraintConfig, Damping, Dataset, Denoiser, Direction, DirectionKind, Directions,
    Explained, Gamma, GradientDirection, HeldOut, Layers, NewtonConfig, NoiseDist, Norm, Objective, ParameterConfig,
    ParameterInterval, ParameterIntervals, Parameters, Precondition, Residuals, Sampler, Scale, ScdConfig,
    SoftConstraint, SoftlyConstrained, Solver, Training, Unobserved, Verdict, Visitor,
};
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;

fn cpu() -> Device {
    Device::flex()
}

const POINT: [usize; 3] = [2, 1, 1];

/// Points whose distance from the origin should be what `formula` says.
fn circle(formula: &str, parameters: &[(&str, f64)]) -> Arc<SoftConstraint> {
    let learned = |(name, learn): &(&str, f64)| (name.to_string(), ParameterConfig::Learn { learn: *learn });
    let config = ConstraintConfig {
        fields: vec!["x".into(), "y".into()],
        residual: Residuals::One(format!("sqrt(x^2 + y^2) - {formula}")),
        stencil: Scheme::OneSided2,
        stencils: BTreeMap::new(),
        norm: Norm::L2,
        parameters: parameters.iter().map(learned).collect(),
    };
    Arc::new(SoftConstraint::new(&config, &["x".into(), "y".into()], &Grid::unit(1, 1), &Units::identity(2)).unwrap())
}

/// D₀(x) = x, corrected by the constant multiple `gamma` of the step onto the circle.
fn toward(constraint: &Arc<SoftConstraint>, gamma: f64, compliance: Compliance) -> SoftlyConstrained {
    let config = ScdConfig { scale: Scale::Polyak, constant: Some(vec![gamma]), compliance, ..ScdConfig::default() };
    let weights = Gamma::new(&config, POINT, &mut Stream::new(0, Purpose::Weights, 1), &cpu()).unwrap();
    let direction = GradientDirection::new(constraint.clone(), Scale::Polyak, Damping::Exponential, 0.0);
    SoftlyConstrained::new(Box::new(Identity), constraint.clone(), vec![Box::new(direction)], weights, config, 0.5)
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

#[test]
fn the_dial_goes_from_the_base_through_what_was_learned_onto_the_constraint() {
    let constraint = circle("1", &[]);
    let values = Stream::new(1, Purpose::Metric, 0).normals(12);
    let sigmas = [1e-5, 0.02, 0.5, 3.0, 80.0, 1e7];
    let x = || field_batch(values.clone(), POINT, &cpu());
    let at = |compliance| to_vec_f64(toward(&constraint, 0.5, compliance).denoise(x(), &sigmas));
    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    let learned = at(Compliance::default());
    assert_eq!(bits(at(Compliance::NONE)), bits(values.clone()), "0 is the base");
    assert_eq!(bits(at(Compliance::FULL)), bits(learned.clone()), "what is full is projected by the sampler");
    assert_ne!(learned, values);
    for c in [0.25, 1.0, 2.0] {
        let found = at(Compliance::Number(c));
        let gamma = toward(&constraint, 0.5, Compliance::Number(c)).gamma(x(), &sigmas).unwrap();
        for (k, (sigma, gamma)) in sigmas.iter().zip(to_vec_f64(gamma)).enumerate() {
            // The step onto the circle, times γ c^w.
            let factor = f64::powf(c, 0.25 / (0.25 + sigma * sigma));
            assert!((gamma - 0.5 * factor).abs() < 1e-6, "{gamma} at {sigma}");
            let radius = values[2 * k].hypot(values[2 * k + 1]);
            let expected = radius + 0.5 * factor * (1.0 - radius);
            assert!((found[2 * k].hypot(found[2 * k + 1]) - expected).abs() < 1e-6, "{c} at {sigma}");
        }
    }
    assert_eq!(bits(at(Compliance::Number(1.0))), bits(learned));
}

fn configured(preset: &str, settings: &[&str]) -> softly::error::Result<Config> {
    let layers = Layers::new().preset(preset).unwrap();
    settings.iter().try_fold(layers, |layers, setting| layers.set(setting))?.finish("test")
}

const SMALL: [&str; 3] = ["data.count=8", "data.valid=4", "denoiser.backbone={kind='mlp', hidden=8}"];

#[test]
fn full_compliance_projects_onto_the_equation() {
    let scd =
        "denoiser.scd={directions=['newton'], solve_for='p', constant=[0.0], newton={floor={}}, compliance='full'}";
    let config = configured("darcy-demo", &[&SMALL[..], &[scd]].concat()).unwrap();
    let data = Dataset::from_config(&config).unwrap();
    let blueprint = Blueprint::new(&config, &data).unwrap();
    let model = blueprint.build(&cpu()).unwrap();
    let truth = blueprint.truth().unwrap().unwrap();
    let (len, nodes) = (data.sample_len(), data.grid.len());
    let clean = Dataset::batch(&data.valid, &[0, 1, 2], len, nodes, &blueprint.data.units);
    let mut stream = Stream::new(2, Purpose::Metric, 0);
    let noise = |i: usize| if (i / nodes).is_multiple_of(2) { 0.03 } else { 0.0 };
    let noisy = clean.iter().enumerate().map(|(i, &x)| f64::from(x) + noise(i) * stream.normal()).collect();
    let noisy = field_batch(noisy, model.shape, &cpu());
    let projected = model.denoiser.project(noisy.clone());
    let exact = field_batch(clean.iter().map(|&v| f64::from(v)).collect(), model.shape, &cpu());
    let [of_data, before, after] = [&exact, &noisy, &projected].map(|x| truth.mean_abs(x));
    for ((of_data, before), after) in of_data.iter().zip(before).zip(after) {
        assert!(before > 1.0 && after < 2.0 * of_data + 2e-3 * before, "{before} to {after}, data have {of_data}");
    }
    // K stays as it is.
    let permeability = |x: Tensor<4>| to_vec_f64(x.narrow(1, 1, 1));
    assert_eq!(permeability(noisy.clone()), permeability(projected));
    let learned = configured("darcy-demo", &[&SMALL[..], &[&scd.replace("'full'", "1")]].concat()).unwrap();
    let model = Blueprint::new(&learned, &data).unwrap().build(&cpu()).unwrap();
    assert_eq!(to_vec_f64(model.denoiser.project(noisy.clone())), to_vec_f64(noisy));
}

/// D(x) = x/2, projected onto 7; notes every projection.
struct Projecting(Mutex<usize>);

impl Parameters for Projecting {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Projecting {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        x * 0.5
    }

    fn project(&self, estimate: Tensor<4>) -> Tensor<4> {
        *self.0.lock().unwrap() += 1;
        estimate * 0.0 + 7.0
    }
}

#[test]
fn samplers_project_in_the_last_eighth_of_their_steps() {
    // Heun calls the denoiser twice in all steps but the last.
    for (solver, steps, expected) in [(Solver::Heun, 16, 3), (Solver::Euler, 17, 3), (Solver::Heun, 1, 1)] {
        let denoiser = Projecting(Mutex::new(0));
        let sampler = Sampler { solver, steps, ..Sampler::default() };
        let drawn = sampler.sample(&denoiser, None, POINT, 0, &[0, 1], &cpu(), &mut Unobserved);
        assert_eq!(*denoiser.0.lock().unwrap(), expected, "{solver:?} {steps}");
        assert!(to_vec_f64(drawn).iter().all(|v| (v - 7.0).abs() < 1e-12));
    }
}

#[test]
fn a_dial_that_makes_no_sense_is_refused_by_name() {
    let refused = |scd: &str| {
        let error = configured("darcy-demo", &[scd]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    for value in ["-0.5", "nan", "inf"] {
        let said = refused(&format!("denoiser.scd={{compliance={value}}}"));
        assert!(said.starts_with("denoiser.scd.compliance") && said.contains("≥ 0"), "{said}");
    }
    assert!(refused("denoiser.scd={compliance='half'}").contains("a number ≥ 0 or"));
    let said = refused("denoiser.scd={compliance='full', solve_for='p'}");
    assert!(said.contains("denoiser.scd.compliance") && said.contains("no direction `newton`"), "{said}");
    // Training learns what 1 means.
    let config = configured("darcy-demo", &[&SMALL[..], &["denoiser.scd={compliance=2}"]].concat()).unwrap();
    let error = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).err().unwrap();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with("denoiser.scd.compliance: 2"), "{error}");
    // Runs that do not use it are described as before.
    let config = configured("darcy-demo", &["denoiser.scd={compliance=1.0}"]).unwrap();
    assert!(!config.to_toml().contains("compliance"));
}

/// The same field whatever x is.
struct Constant(Vec<f64>);

impl Constant {
    fn field(&self, like: &Tensor<4>) -> Tensor<4> {
        let one = field_batch(self.0.clone(), [1, 2, 2], &cpu());
        per_sample(vec![1.0; like.dims()[0]].into_iter(), like) * one
    }
}

impl Parameters for Constant {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Constant {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        self.field(&x)
    }
}

impl Direction for Constant {
    fn at(&self, base: &Tensor<4>, _: &[f64], _: &[Precondition]) -> Tensor<4> {
        self.field(base)
    }
}

#[test]
fn what_is_explained_is_the_energy_along_the_directions() {
    // Data that are zero, and an error of 3 along the first direction, 4 along the second, none along the third.
    let basis = [[0.5, 0.5, 0.5, 0.5], [0.5, -0.5, 0.5, -0.5], [0.5, 0.5, -0.5, -0.5]];
    let error: Vec<f64> = (0..4).map(|i| 3.0 * basis[0][i] + 4.0 * basis[1][i]).collect();
    let base = || Constant(error.iter().map(|e| -e).collect());
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
    let explain = |denoiser: &dyn Denoiser, directions: &Directions| {
        let data = HeldOut { values: &values, shape: [1, 2, 2], units: &units };
        let explained = Explained { sigmas: vec![0.1, 1.0], batch: 2 };
        let stop = AtomicBool::new(false);
        let report = explained.evaluate(denoiser, directions, data, 0.5, 0, &cpu(), &stop, &|_| ()).unwrap();
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
    let level = explain(&base(), &directions(0));
    near(&level.alone, &[9.0 / 25.0, 16.0 / 25.0, 0.0]);
    near(&level.best, &[0.3, -4.0, 0.0]);
    near(&[level.span, level.error], &[1.0, 2.5]);
    assert!(level.learned.is_none() && level.gamma.is_empty());
    // Two directions on top of one another are no more than one.
    let same = Directions {
        all: vec![(kinds[0], along(0, 1.0)), (kinds[1], along(0, 2.0)), (kinds[2], along(2, 1.0))],
        learned: 0,
    };
    let level = explain(&base(), &same);
    near(&level.alone, &[9.0 / 25.0, 9.0 / 25.0, 0.0]);
    near(&[level.span], &[9.0 / 25.0]);
    // A model with weights 0.1 and −2 leaves errors of 2 and 2.
    let config = ScdConfig { directions: kinds[..2].to_vec(), constant: Some(vec![0.1, -2.0]), ..ScdConfig::default() };
    let gamma = Gamma::new(&config, [1, 2, 2], &mut Stream::new(0, Purpose::Weights, 1), &cpu()).unwrap();
    let own = vec![along(0, 10.0), along(1, -1.0)];
    let model = SoftlyConstrained::new(Box::new(base()), circle("1", &[]), own, gamma, config, 0.5);
    let level = explain(&model, &directions(2));
    assert!(level.gamma.iter().zip([0.1, -2.0]).all(|(found, expected)| (found - expected).abs() < 1e-6));
    assert!((level.learned.unwrap() - (1.0 - 8.0 / 25.0)).abs() < 1e-6, "{level:?}");
    near(&[level.span], &[1.0]);
}

#[test]
fn a_true_equation_explains_what_a_wrong_one_does_not() {
    // Errors of p alone: the Newton step from the true equation undoes them, whatever they are.
    struct Wrong(Vec<f64>);
    impl Parameters for Wrong {
        fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
    }
    impl Denoiser for Wrong {
        fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
            x + field_batch(self.0.clone(), [2, 16, 16], &cpu())
        }
    }
    let share = |flow: &str| {
        let config = configured("darcy-demo", &[&SMALL[..], &["data.valid=6", flow]].concat()).unwrap();
        let data = Dataset::from_config(&config).unwrap();
        let blueprint = Blueprint::new(&config, &data).unwrap();
        let constraint = Arc::new(blueprint.constraint().unwrap().unwrap());
        let newton = NewtonConfig { floor: Some(BTreeMap::new()), ..NewtonConfig::default() };
        let scd = ScdConfig { scale: Scale::Unit, solve_for: Some("p".into()), newton, ..ScdConfig::default() };
        let directions =
            Directions::of(&blueprint, &scd, false, &constraint, &Wrong(vec![0.0; 512]), &data, &cpu()).unwrap();
        // Not symmetric about the diagonal from source to sink, as the pressure is.
        let cosine = |i: usize| 0.1 * (std::f64::consts::PI * i as f64 / 15.0).cos();
        let error = (0..512).map(|i| if i < 256 { cosine(i / 16) - cosine(i % 16) } else { 0.0 }).collect();
        let values = Dataset::batch(&data.valid, &[0, 1, 2, 3, 4, 5], 512, 256, &blueprint.data.units);
        let data = HeldOut { values: &values, shape: [2, 16, 16], units: &blueprint.data.units };
        let explained = Explained { sigmas: vec![1e-3], batch: 4 };
        let stop = AtomicBool::new(false);
        let report = explained.evaluate(&Wrong(error), &directions, data, 0.5, 0, &cpu(), &stop, &|_| ()).unwrap();
        assert_eq!(report.directions.len(), 4);
        report.levels[0].alone[2]
    };
    let (right, wrong) = (share("constraint.parameters.flow=10.0"), share("constraint.parameters.flow=15.0"));
    assert!(right > 0.95 && wrong < 0.4, "{right} and {wrong}");
}

/// Points around the unit circle, on average at `mean` from the origin.
fn points(count: usize) -> (Vec<f32>, f64) {
    let mut stream = Stream::new(9, Purpose::Metric, 0);
    let (mut values, mut sum) = (Vec::new(), 0.0);
    for _ in 0..count {
        let (radius, angle) = (1.0 + 0.05 * stream.normal(), std::f64::consts::TAU * stream.uniform());
        values.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
        sum += radius;
    }
    (values, sum / count as f64)
}

fn intervals(formula: &str, parameters: &[(&str, f64)], gamma: f64, values: &[f32]) -> Vec<ParameterInterval> {
    let constraint = circle(formula, parameters);
    let denoiser = toward(&constraint, gamma, Compliance::LEARNED);
    let units = Units::identity(2);
    let data = HeldOut { values, shape: POINT, units: &units };
    let noise = NoiseDist::LogNormal { mean: -5.0, std: 0.1 };
    let objective = Objective { noise, ..Objective::default() };
    let settings = ParameterIntervals { levels: 3, batch: 50 };
    let stop = AtomicBool::new(false);
    let found = settings.evaluate(&denoiser, &constraint, &objective, data, 0.5, 0, &cpu(), &stop, &|_| ()).unwrap();
    // Every parameter is back where it was.
    let mut after = Vec::new();
    constraint.visit("", &mut |name, p| after.push((name.to_string(), f64::from(p.values()[0]))));
    assert_eq!(after, found.iter().map(|p| (p.name.clone(), p.value)).collect::<Vec<_>>());
    found
}

#[test]
fn the_interval_of_a_radius_is_that_of_a_mean() {
    let (values, mean) = points(400);
    // With γ = 1 every estimate lies on the circle of radius r, so the loss has its minimum at the mean distance.
    for start in [0.8, mean, 1.2] {
        let found = intervals("r", &[("r", start)], 1.0, &values).remove(0);
        let (estimate, [low, high]) = (found.estimate.unwrap(), found.interval.unwrap());
        assert!((estimate - mean).abs() < 1e-3, "{estimate} against {mean}");
        assert!(low < mean && mean < high);
        let expected = 2.0 * 1.96 * 0.05 / 20.0;
        assert!(((high - low) / expected - 1.0).abs() < 0.15, "{} against {expected}", high - low);
        let verdict = if start == mean { Verdict::Identified } else { Verdict::Elsewhere };
        assert_eq!((found.verdict, found.count), (verdict, 400));
    }
}

#[test]
fn parameters_that_do_not_matter_are_not_identifiable() {
    let (values, mean) = points(100);
    let unknown = |found: &ParameterInterval| {
        let wide = found.interval.is_none_or(|[low, high]| high - low > found.value.abs());
        assert!(wide && found.verdict == Verdict::NotIdentifiable, "{found:?}");
    };
    // One that does nothing, beside one that does not mind.
    let found = intervals("r + 0*s", &[("r", 1.0), ("s", 2.0)], 1.0, &values);
    assert!(found[0].name == "r" && found[0].verdict == Verdict::Identified, "{found:?}");
    assert!((found[0].estimate.unwrap() - mean).abs() < 1e-3);
    unknown(&found[1]);
    // Two of which only the sum matters.
    intervals("(r + s)", &[("r", 0.4), ("s", 0.6)], 1.0, &values).iter().for_each(unknown);
    // A correction that is switched off.
    intervals("r", &[("r", 1.0)], 0.0, &values).iter().for_each(unknown);
}
