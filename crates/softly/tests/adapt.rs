//! A soft constraint on a frozen denoiser: what changes and what does not, exact resumption, what is learned, what is
//! refused; and the base's own loss when both are trained together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use softly::error::Result;
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, to_vec_f64};
use softly::{
    Blueprint, Config, Dataset, Denoiser, Estimates, HeldOut, Layers, Loss, Metrics, Model, ParameterIntervals,
    RunFolder, RunInfo, Sampler, Snapshot, Trained, Training, run_training,
};
use tempfile::TempDir;

fn cpu() -> Device {
    Device::flex()
}

fn configured(preset: &str, settings: &[&str]) -> Config {
    let layers = Layers::new().preset(preset).unwrap();
    settings.iter().fold(layers, |layers, setting| layers.set(setting).unwrap()).finish("test").unwrap()
}

fn dataset(config: &Config) -> Dataset {
    Dataset::from_config(config).unwrap()
}

/// Points on the unit circle.
const POINTS: [&str; 8] = [
    "denoiser.backbone={kind='mlp', hidden=32}",
    "data.count=2000",
    "data.valid=10",
    "train.batch=64",
    "train.rate=3e-3",
    "train.iterations=500",
    "train.schedule={kind='cosine'}",
    "objective.noise={kind='log-normal', mean=-2.0, std=1.2}",
];

/// The points' distance to a circle whose radius is not known.
const CIRCLE: [&str; 5] = [
    "constraint={fields=['x', 'y'], residual='sqrt(x^2 + y^2) - r', norm='l2', parameters={r={learn=1.3}}}",
    "denoiser.scd={scale='polyak', input='features'}",
    "train.iterations=1000",
    "train.rate=5e-3",
    // The gradient is large as long as the radius is wrong: it has to be forgotten.
    "train.adam={betas=[0.9, 0.99], eps=1e-8}",
];

/// A trained denoiser of points.
fn base() -> &'static Snapshot {
    static BASE: OnceLock<Snapshot> = OnceLock::new();
    BASE.get_or_init(|| {
        let config = configured("circle-demo", &POINTS);
        let mut training = Training::new(&config, dataset(&config), &cpu()).unwrap();
        for _ in 0..config.train.iterations {
            training.step().unwrap();
        }
        training.snapshot()
    })
}

fn points(settings: &[&str]) -> Config {
    configured("circle-demo", &[&POINTS[..], &CIRCLE, settings].concat())
}

fn adapt(config: &Config) -> Result<Training> {
    Training::adapt(base(), Path::new("base"), config, dataset(config), &cpu())
}

fn weights(snapshot: &Snapshot) -> BTreeMap<String, Vec<u32>> {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
    snapshot.weights.iter().map(|(name, _, values)| (name.clone(), bits(values))).collect()
}

fn denoised(denoiser: &dyn Denoiser) -> Vec<u64> {
    let x = field_batch(Stream::new(1, Purpose::Metric, 0).normals(12), [2, 1, 1], &cpu());
    let estimate = denoiser.denoise(x, &[0.01, 0.1, 0.5, 1.0, 5.0, 50.0]).without_autodiff();
    to_vec_f64(estimate).into_iter().map(f64::to_bits).collect()
}

fn learned_radius(snapshot: &Snapshot) -> f64 {
    f64::from(snapshot.weights.iter().find(|(name, _, _)| name == "constraint.r").unwrap().2[0])
}

#[test]
fn the_circles_radius_is_found() {
    // γ = 1 puts every estimate onto the circle, so the best radius is that of the data. (A learned γ that sees the residual
    // could make up for a wrong radius.)
    for start in ["0.7", "1.3"] {
        let settings = [
            "objective.noise={kind='log-normal', mean=-4.0, std=0.5}",
            "denoiser.scd.constant=[1.0]",
            "train.rate=1e-3",
            &format!("constraint.parameters.r={{learn={start}}}"),
        ];
        let mut training = adapt(&points(&settings)).unwrap();
        assert_eq!(training.model.denoiser.count_parameters(), 1);
        for _ in 0..1000 {
            training.step().unwrap();
        }
        let radius = learned_radius(&training.snapshot());
        assert!((radius - 1.0).abs() < 2e-3, "{radius} from {start}");
    }
}

#[test]
fn adapting_changes_the_soft_constraint_alone() {
    let mut training = adapt(&points(&[])).unwrap();
    let vanilla = base().model(&cpu(), Path::new("base")).unwrap();
    assert_eq!(denoised(&*training.model.denoiser), denoised(&*vanilla.denoiser), "starts as the base, bit for bit");
    // γ's network of 11 inputs and the radius.
    assert_eq!(training.model.denoiser.count_parameters(), 11 * 100 + 100 + 100 + 1 + 1);
    let x = field_batch(vec![0.3, -0.2], [2, 1, 1], &cpu());
    let Estimates { estimate, base: below, .. } = training.model.denoiser.estimates(x, &[0.1]);
    assert!(estimate.is_autodiff() && !below.unwrap().is_autodiff(), "the base runs untracked");
    for _ in 0..1000 {
        training.step().unwrap();
    }
    let adapted = training.snapshot();
    let (before, after) = (weights(base()), weights(&adapted));
    let new: Vec<&str> = after.keys().filter(|name| !before.contains_key(*name)).map(String::as_str).collect();
    assert_eq!(new, ["constraint.r", "gamma.first.bias", "gamma.first.weight", "gamma.last.bias", "gamma.last.weight"]);
    assert!(before.iter().all(|(name, values)| after[name] == *values));
    assert!(learned_radius(&adapted) != f64::from(1.3f32));
    // The loss is lower for it. Nearly all of it is error along the circle, which no constraint can take away.
    let loss = |model: &Model| {
        let config = &adapted.blueprint.config;
        let data = dataset(config);
        let clean: Vec<f64> = data.train[..1000].iter().map(|&v| f64::from(v)).collect();
        let noise = Stream::new(7, Purpose::Metric, 0).normals(1000);
        let field = |values: Vec<f64>| field_batch(values, [2, 1, 1], &cpu());
        let sigma = vec![0.05; 500];
        let loss = config.objective.loss(&*model.denoiser, None, field(clean), field(noise), &sigma, model.sigma_data);
        to_vec_f64(loss.data)[0]
    };
    let model = adapted.model(&cpu(), Path::new("adapted")).unwrap();
    let (corrected, plain) = (loss(&model), loss(&vanilla));
    assert!(corrected < 0.995 * plain, "{corrected} against {plain}");
    // A file like any other: the radius is in it.
    let home = TempDir::new().unwrap();
    let path = home.path().join("adapted.safetensors");
    adapted.write(&path).unwrap();
    let trained = Trained::load(&path, &cpu()).unwrap();
    assert_eq!(denoised(&*trained.model.denoiser), denoised(&*model.denoiser));
    let sampler = Sampler { steps: 8, ..Sampler::default() };
    let drawn = trained.generate(&sampler, 0, &[0, 1], 2, &cpu(), &AtomicBool::new(false), &|_| ()).unwrap();
    assert_eq!(drawn.len(), 4);
}

fn info() -> RunInfo {
    RunInfo {
        version: "test".into(),
        commit: String::new(),
        command: "test".into(),
        seed: 0,
        dataset_hash: String::new(),
        device: "cpu".into(),
        threads: 1,
        status: String::new(),
        seconds: 0.0,
    }
}

fn run_until(training: Training, folder: &RunFolder, last: u64) -> Result<()> {
    let stop = AtomicBool::new(false);
    run_training(training, folder, info(), &stop, &mut |p| stop.store(p.step == last, Ordering::Relaxed))
}

#[test]
fn an_interrupted_adaptation_goes_on_byte_for_byte_and_belongs_to_its_base() {
    let settings = [
        "constraint.residual=sqrt(x^2 + y^2) - r - s",
        "constraint.parameters.s={normal=[0.0, 0.05]}",
        "train.iterations=30",
        "train.log_every=7",
    ];
    let config = points(&settings);
    let home = TempDir::new().unwrap();
    let [whole, stopped] = ["whole", "stopped"].map(|name| RunFolder::new(home.path().join(name)));
    run_until(adapt(&config).unwrap(), &whole, 0).unwrap();
    run_until(adapt(&config).unwrap(), &stopped, 12).unwrap_err();
    // Another base is not this run's, under way or finished.
    let mut other = base().clone();
    other.weights[0].2[0] += 1.0;
    let other = || Training::adapt(&other, Path::new("other"), &config, dataset(&config), &cpu()).unwrap();
    for folder in [&stopped, &whole] {
        let error = run_until(other(), folder, 0).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("another denoiser"), "{error}");
    }
    run_until(adapt(&config).unwrap(), &stopped, 0).unwrap();
    for file in [RunFolder::snapshot, RunFolder::metrics] {
        assert_eq!(fs::read(file(&stopped)).unwrap(), fs::read(file(&whole)).unwrap());
    }
    let text = fs::read_to_string(whole.metrics()).unwrap();
    let radii: Vec<f64> =
        text.lines().map(|line| serde_json::from_str::<Metrics>(line).unwrap().constraint["r"]).collect();
    assert!(radii.len() == 5 && radii.windows(2).all(|pair| pair[0] != pair[1]), "{radii:?}");
}

#[test]
fn what_cannot_be_adapted_is_refused_by_name() {
    let refused = |config: &Config| {
        let error = adapt(config).err().expect("refused");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    let said = refused(&points(&["denoiser.backbone.hidden=16"]));
    assert!(said.contains("denoiser.backbone") && said.contains("another network"), "{said}");
    let mut plain = points(&[]);
    plain.denoiser.scd = None;
    assert!(refused(&plain).contains("denoiser.scd"));
    let said = refused(&points(&["constraint.parameters={r=1.0}", "denoiser.scd.constant=[1.0]"]));
    assert!(said.contains("denoiser.scd.constant") && said.contains("nothing to train"), "{said}");
    let config = points(&[]);
    let mut data = dataset(&config);
    data.fields = vec!["y".into(), "x".into()];
    let error = Training::adapt(base(), Path::new("base"), &config, data, &cpu()).err().expect("refused").to_string();
    assert!(error.contains("x, y on 1 × 1") && error.contains("y, x on 1 × 1"), "{error}");
    // Constant weights with a parameter to learn are something.
    adapt(&points(&["denoiser.scd.constant=[1.0]"])).unwrap().step().unwrap();
}

/// Darcy flow with a learned source, corrected by Newton steps, all three directions at hand.
fn darcy(settings: &[&str]) -> Config {
    let common = [
        "data.count=16",
        "data.valid=1",
        "denoiser.backbone={kind='mlp', hidden=16}",
        "constraint.parameters.flow={learn=15.0}",
        "constraint.norm=l2",
        "denoiser.scd={directions=['newton'], solve_for='p', input='features'}",
    ];
    configured("darcy-demo", &[&common[..], settings].concat())
}

/// A model with γ awake, and its loss on some data in f64.
struct Probe {
    config: Config,
    data: Dataset,
    blueprint: Blueprint,
    model: Model,
}

impl Probe {
    fn new(config: Config) -> Self {
        let data = dataset(&config);
        let blueprint = Blueprint::new(&config, &data).unwrap();
        let mut model = blueprint.build(&cpu().autodiff()).unwrap();
        model.denoiser.measure(&data, &blueprint.data.units);
        model.denoiser.visit("", &mut |name, parameter| {
            if name == "gamma.last.bias" {
                parameter.set(vec![0.3; parameter.values().len()]);
            }
        });
        Self { config, data, blueprint, model }
    }

    fn loss(&self) -> Loss {
        let shape = self.model.shape;
        let len: usize = shape.iter().product();
        let clean = Dataset::batch(&self.data.train, &[0, 1, 2], len, len / 2, &self.blueprint.data.units);
        let field = |values: Vec<f64>| field_batch(values, shape, &cpu());
        let clean = field(clean.into_iter().map(f64::from).collect());
        let noise = field(Stream::new(5, Purpose::Metric, 0).normals(3 * len));
        let constraint = self.model.constraint.as_deref();
        let sigma = [0.05, 0.3, 1.0];
        self.config.objective.loss(&*self.model.denoiser, constraint, clean, noise, &sigma, self.model.sigma_data)
    }

    /// The loss' gradient by every base weight, zero if it does not depend on it.
    fn base_gradient(&mut self) -> Vec<f64> {
        let mut gradients = self.loss().total().backward();
        let mut all = Vec::new();
        self.model.denoiser.visit_base(&mut |_, parameter| {
            let zeros = vec![0.0; parameter.values().len()];
            all.extend(parameter.take_gradient(&mut gradients).unwrap_or(zeros).into_iter().map(f64::from));
        });
        all
    }
}

#[test]
fn kalman_is_measured_on_a_trained_base_and_kept_with_the_model() {
    let all = "denoiser.scd.directions=['spectral', 'kalman']";
    let fixed = "constraint.parameters.flow=15.0";
    let config = darcy(&[all, fixed]);
    let refused = Training::new(&config, dataset(&config), &cpu()).err().unwrap().to_string();
    assert!(refused.starts_with("denoiser.scd.directions: `kalman`"), "{refused}");

    let mut plain = darcy(&[fixed]);
    plain.denoiser.scd = None;
    let trained = Training::new(&plain, dataset(&plain), &cpu()).unwrap().snapshot();
    let mut training = Training::adapt(&trained, Path::new("base"), &config, dataset(&config), &cpu()).unwrap();
    let start = training.snapshot();
    training.step().unwrap();
    let snapshot = training.snapshot();
    let of = |name: &str| snapshot.weights.iter().find(|(n, _, _)| n == name).unwrap_or_else(|| panic!("{name}"));
    let (_, shape, errors) = of("kalman.errors");
    assert_eq!(*shape, [16, 2, 16, 16]);
    assert!(errors.iter().any(|e| *e != errors[0]), "measured");
    // The source is wrong by 5 in the corner of the inflow; at the lowest noise the misfit says so.
    let mean = &of("kalman.misfit-mean").2;
    assert!((mean[0] - 5.0).abs() < 0.5 && mean[8 * 16 + 8].abs() < 0.5, "{} and {}", mean[0], mean[8 * 16 + 8]);
    // A source that is to be learned is not excused.
    let learned = darcy(&[all, "constraint.parameters.flow={ learn = 15.0 }"]);
    let training = Training::adapt(&trained, Path::new("base"), &learned, dataset(&learned), &cpu()).unwrap();
    let weights = training.snapshot().weights;
    let (_, _, mean) = weights.iter().find(|(name, _, _)| name == "kalman.misfit-mean").unwrap();
    assert!(mean.iter().all(|m| *m == 0.0));

    // γ starts with the whole of this direction and nothing of others. Controls have that without a learned γ, or without the
    // other directions.
    let changed = |settings: &[&str]| {
        let mut changed = snapshot.clone();
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        changed.change(&settings, Path::new("here")).unwrap();
        changed
    };
    let constant = changed(&["denoiser.scd.constant=[0.0, 1.0]"]);
    let alone = changed(&["denoiser.scd.directions=['kalman']", "denoiser.scd.constant=[1.0]"]);
    let x = field_batch(Stream::new(1, Purpose::Metric, 0).normals(512), [2, 16, 16], &cpu());
    let estimate = |snapshot: &Snapshot| {
        let model = snapshot.model(&cpu(), Path::new("here")).unwrap();
        to_vec_f64(model.denoiser.denoise(x.clone(), &[0.1]))
    };
    assert_eq!(estimate(&constant), estimate(&start));
    assert_eq!(estimate(&alone), estimate(&start));
    assert_ne!(estimate(&constant), estimate(&snapshot));
    // What nobody measured cannot be put on a model.
    let mut bare = trained.clone();
    bare.change(
        &["denoiser.scd={directions=['kalman'], solve_for='p', constant=[1.0]}".to_string()],
        Path::new("here"),
    )
    .unwrap();
    let refused = bare.model(&cpu(), Path::new("here")).err().unwrap().to_string();
    assert!(refused.contains("kalman.errors") && refused.contains("softly adapt"), "{refused}");
}

/// An untrained base, and Newton steps and Kalman updates with a source that is learned on top of it.
fn learns_through_kalman(settings: &[&str]) -> (Config, Snapshot) {
    let mut plain = darcy(&["constraint.parameters.flow=15.0"]);
    plain.denoiser.scd = None;
    let base = Training::new(&plain, dataset(&plain), &cpu()).unwrap().snapshot();
    let common = ["denoiser.scd.directions=['newton', 'kalman']", "train.batch=4", "train.shares=2"];
    (darcy(&[&common, settings].concat()), base)
}

#[test]
fn a_parameter_is_learned_through_kalman_whatever_the_weights_are() {
    let (config, base) = learns_through_kalman(&[]);
    let training = Training::adapt(&base, Path::new("base"), &config, dataset(&config), &cpu()).unwrap();
    let blueprint = training.blueprint.clone();
    let mut probe = Probe { config: config.clone(), data: dataset(&config), blueprint, model: training.model };
    let set = |probe: &mut Probe, which: &str, value: f32| {
        probe.model.denoiser.visit("", &mut |name, parameter| {
            if name == which {
                parameter.set(vec![value; parameter.values().len()]);
            }
        });
    };
    let slope = |probe: &mut Probe, loss: burn::tensor::Tensor<1>| {
        let mut gradients = loss.backward();
        let mut found = None;
        probe.model.denoiser.visit("", &mut |name, parameter| {
            if name == "constraint.flow" {
                found = parameter.take_gradient(&mut gradients).map(|g| f64::from(g[0]));
            }
        });
        found
    };
    let mut slopes = Vec::new();
    for gamma in [0.0, 0.3] {
        set(&mut probe, "gamma.last.bias", gamma);
        let [weighed, all] = [probe.loss().data, probe.loss().total()].map(|loss| slope(&mut probe, loss));
        assert_eq!(weighed, None, "not through what γ weighs");
        slopes.push(all.unwrap());
    }
    assert_eq!(slopes[0], slopes[1]);
    let [below, above] = [14.5, 15.5].map(|flow| {
        set(&mut probe, "constraint.flow", flow);
        to_vec_f64(probe.loss().parameters.unwrap())[0]
    });
    let difference = above - below;
    assert!((slopes[0] - difference).abs() < 0.02 * difference.abs(), "{} and {difference}", slopes[0]);
}

#[test]
fn the_interval_is_that_of_the_estimate_which_a_parameter_is_learned_from() {
    let (config, base) = learns_through_kalman(&[]);
    let data = dataset(&config);
    let snapshot = Training::adapt(&base, Path::new("base"), &config, data.clone(), &cpu()).unwrap().snapshot();
    let intervals = |gamma: f32| {
        let mut snapshot = snapshot.clone();
        for (_, _, values) in snapshot.weights.iter_mut().filter(|(name, _, _)| name == "gamma.last.bias") {
            values.fill(gamma);
        }
        let model = snapshot.model(&cpu(), Path::new("here")).unwrap();
        let constraint = model.constraint.as_deref().unwrap();
        let units = &snapshot.blueprint.data.units;
        let held_out = HeldOut { values: &data.train[..4 * data.sample_len()], shape: model.shape, units };
        ParameterIntervals { levels: 2, batch: 4 }
            .evaluate(
                &*model.denoiser,
                constraint,
                &config.objective,
                held_out,
                model.sigma_data,
                0,
                &cpu(),
                &AtomicBool::new(false),
                &|_| (),
            )
            .unwrap()
    };
    let found = intervals(0.0);
    assert!(found.len() == 1 && found[0].estimate.is_some(), "{found:?}");
    assert_eq!(found, intervals(0.3));
}

#[test]
fn what_kalman_knows_of_a_learned_equation_is_kept_up_to_date() {
    let damped = "constraint.residual=K*laplacian(p) + dot(grad(K), grad(p)) + f - c*p";
    let settings = [
        damped,
        "constraint.parameters.c={learn=2.0}",
        "train.iterations=104",
        "train.log_every=104",
        "train.checkpoint_every=50",
    ];
    let (config, base) = learns_through_kalman(&settings);
    let adapted = || Training::adapt(&base, Path::new("base"), &config, dataset(&config), &cpu()).unwrap();
    let home = TempDir::new().unwrap();
    let [whole, before, after] = ["whole", "before", "after"].map(|name| RunFolder::new(home.path().join(name)));
    run_until(adapted(), &whole, 0).unwrap();
    for (folder, last) in [(&before, 100), (&after, 101)] {
        run_until(adapted(), folder, last).unwrap_err();
        run_until(adapted(), folder, 0).unwrap();
        assert_eq!(fs::read(folder.snapshot()).unwrap(), fs::read(whole.snapshot()).unwrap(), "stopped at {last}");
    }
    // What the snapshot knows of the equation is what it is with the snapshot's parameters.
    let last = Snapshot::read(&whole.snapshot()).unwrap();
    let learned = |name: &str| f64::from(last.weights.iter().find(|(n, _, _)| n == name).unwrap().2[0]);
    let (c, flow) = (learned("constraint.c"), learned("constraint.flow"));
    let there = [
        damped,
        &format!("constraint.parameters.c={{learn={c}}}"),
        &format!("constraint.parameters.flow={{learn={flow}}}"),
    ];
    let there = darcy(&[&["denoiser.scd.directions=['newton', 'kalman']"], &there[..]].concat());
    let there = Training::adapt(&base, Path::new("base"), &there, dataset(&there), &cpu()).unwrap().snapshot();
    for name in ["kalman.misfit-variance", "kalman.misfit-spectrum"] {
        let of = |snapshot: &Snapshot| snapshot.weights.iter().find(|(n, _, _)| n == name).unwrap().2.clone();
        let apart = of(&last).iter().zip(of(&there)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-2, "{name}: {apart}");
    }
    let variance = |snapshot: &Snapshot| weights(snapshot)["kalman.misfit-variance"].clone();
    assert!(variance(&last) != variance(&adapted().snapshot()));
}

#[test]
fn a_parameter_without_influence_is_refused_by_name() {
    let (config, base) = learns_through_kalman(&["constraint.parameters.c={learn=2.0}"]);
    let mut training = Training::adapt(&base, Path::new("base"), &config, dataset(&config), &cpu()).unwrap();
    let error = training.step().unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with("constraint.parameters.c: "), "{error}");
}

#[test]
fn a_newton_step_knows_the_learned_parameter() {
    let mut probe = Probe::new(darcy(&[]));
    let mut gradients = probe.loss().total().backward();
    let mut recorded = None;
    let mut at = |flow: f32| {
        probe.model.denoiser.visit("", &mut |name, parameter| {
            if name == "constraint.flow" {
                recorded = recorded.take().or_else(|| parameter.take_gradient(&mut gradients));
                parameter.set(vec![flow]);
            }
        });
        to_vec_f64(probe.loss().total())[0]
    };
    let mut difference = |h: f32| (at(15.0 + h) - at(15.0 - h)) / (2.0 * f64::from(h));
    let exact = (4.0 * difference(0.125) - difference(0.25)) / 3.0;
    let recorded = f64::from(recorded.expect("the loss depends on the parameter")[0]);
    assert!((recorded / exact - 1.0).abs() < 2e-3, "{recorded} against {exact}");
}

#[test]
fn the_bases_own_loss_is_that_of_the_base_alone() {
    let scd = "denoiser.scd={scale='unit', input='features'}";
    let mut vanilla = darcy(&[]);
    vanilla.denoiser.scd = None;
    let mut vanilla = Probe::new(vanilla);
    let alone = to_vec_f64(vanilla.loss().data)[0];
    let gradient = vanilla.base_gradient();
    let length = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let distance = |a: &[f64], factor: f64| {
        let rest: Vec<f64> = a.iter().zip(&gradient).map(|(a, g)| a - factor * g).collect();
        length(&rest) / length(&gradient)
    };
    // Without it the base learns from the corrected estimate alone.
    let mut joint = Probe::new(darcy(&[scd]));
    assert!(joint.loss().base.is_none());
    assert!(distance(&joint.base_gradient(), 1.0) > 1e-3);
    let mut supervised = Probe::new(darcy(&[scd, "objective.base_loss=0.5"]));
    let loss = supervised.loss();
    let (data, base, total) = (to_vec_f64(loss.data.clone())[0], loss.base.clone(), to_vec_f64(loss.total())[0]);
    let base = to_vec_f64(base.unwrap())[0];
    assert!((base / (0.5 * alone) - 1.0).abs() < 1e-12, "{base} against half of {alone}");
    assert!((total / (data + base) - 1.0).abs() < 1e-12 && (data / alone - 1.0).abs() > 1e-4);
    let both: Vec<f64> = supervised.base_gradient();
    let apart: Vec<f64> = joint.base_gradient().iter().zip(&gradient).map(|(j, g)| j + 0.5 * g).collect();
    let rest: Vec<f64> = both.iter().zip(&apart).map(|(a, b)| a - b).collect();
    assert!(length(&rest) < 1e-4 * length(&apart), "{}", length(&rest) / length(&apart));
    // Cut off from the correction, the base learns as if there were none, and γ still learns.
    let mut cut = Probe::new(darcy(&["objective.base_loss=0.5", &scd.replace('}', ", detach_base=true}")]));
    assert!(distance(&cut.base_gradient(), 0.5) < 1e-5, "{}", distance(&cut.base_gradient(), 0.5));
    let mut gradients = cut.loss().total().backward();
    cut.model.denoiser.visit("", &mut |name, parameter| {
        let has = parameter.take_gradient(&mut gradients).is_some();
        assert!(has || !(name.starts_with("gamma.last") || name == "constraint.flow"), "{name}");
    });
    let error = Layers::new().preset("darcy-demo").unwrap().set("denoiser.scd={detach_base=true}").unwrap_err();
    assert!(error.to_string().contains("denoiser.scd.detach_base"), "{error}");
    let error = Layers::new().set("objective.base_loss=-1").unwrap_err();
    assert!(error.to_string().contains("objective.base_loss"), "{error}");
}
