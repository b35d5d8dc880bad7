//! A soft constraint on a frozen denoiser: what changes and what does not, exact resumption, what is learned, what is
//! refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use softly::error::Result;
use softly::job::{Job, Reporter};
use softly::{Config, Denoiser, Draw, Estimates, Metrics, Model, Parameters, RunFolder, Snapshot, Trained, Training};
use tempfile::TempDir;

use crate::common::probe::{loss_of, number};
use crate::common::{
    POINT, adapting, bits, configured, cpu, dataset, denoised, field, new_training, normals, run_until, train, weights,
};

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
        let mut training = new_training(&config).unwrap();
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
    adapting(base(), config)
}

/// The bits of every tensor by name.
fn all_weights(snapshot: &Snapshot) -> BTreeMap<String, Vec<u32>> {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
    snapshot.weights.iter().map(|(name, _, values)| (name.clone(), bits(values))).collect()
}

fn denoised_bits(denoiser: &dyn Denoiser) -> Vec<u64> {
    bits(denoised(denoiser, field(&normals(1, 0, 12), POINT), &[0.01, 0.1, 0.5, 1.0, 5.0, 50.0]))
}

fn learned_radius(snapshot: &Snapshot) -> f64 {
    f64::from(weights(snapshot, "constraint.r")[0])
}

#[test]
fn the_circles_radius_is_found() {
    for start in ["0.2", "0.7", "1.3", "40.0"] {
        let training = adapt(&points(&[&format!("constraint.parameters.r={{learn={start}}}")])).unwrap();
        let radius = learned_radius(&training.snapshot());
        assert!((radius - 1.0).abs() < 1e-5, "{radius} from {start}");
    }
}

#[test]
fn adapting_changes_the_soft_constraint_alone() {
    let mut training = adapt(&points(&[])).unwrap();
    let vanilla = base().model(&cpu(), Path::new("base")).unwrap();
    assert_eq!(denoised_bits(&training.model), denoised_bits(&vanilla), "starts as the base, bit for bit");
    // γ's network of 11 inputs.
    assert_eq!(training.model.count_parameters(), 11 * 100 + 100 + 100 + 1);
    let Estimates { estimate, base: below, .. } = training.model.estimates(field(&[0.3, -0.2], POINT), &[0.1]);
    assert!(estimate.is_autodiff() && !below.unwrap().is_autodiff(), "the base runs untracked");
    for _ in 0..1000 {
        training.step().unwrap();
    }
    let adapted = training.snapshot();
    let (before, after) = (all_weights(base()), all_weights(&adapted));
    let new: Vec<&str> = after.keys().filter(|name| !before.contains_key(*name)).map(String::as_str).collect();
    assert_eq!(new, ["constraint.r", "gamma.first.bias", "gamma.first.weight", "gamma.last.bias", "gamma.last.weight"]);
    assert!(before.iter().all(|(name, values)| after[name] == *values));
    assert!(learned_radius(&adapted) != f64::from(1.3f32));
    // The loss is lower for it. Nearly all of it is error along the circle, which no constraint can take away.
    let loss = |model: &Model| {
        let config = &adapted.blueprint.config;
        let clean: Vec<f64> = train(&dataset(config))[..1000].iter().map(|&v| f64::from(v)).collect();
        number(&loss_of(model, &config.objective, &clean, &normals(7, 0, 1000), &[0.05; 500]), "loss")
    };
    let model = adapted.model(&cpu(), Path::new("adapted")).unwrap();
    let (corrected, plain) = (loss(&model), loss(&vanilla));
    assert!(corrected < 0.995 * plain, "{corrected} against {plain}");
    // A file like any other: the radius is in it.
    let home = TempDir::new().unwrap();
    let path = home.path().join("adapted.safetensors");
    adapted.write(&path).unwrap();
    let trained = Trained::load_with(&path, &["sampler.steps=8".to_string()], &cpu()).unwrap();
    assert_eq!(denoised_bits(&trained.model), denoised_bits(&model));
    let draw = Draw { seed: 0, indices: &[0, 1], batch: 2, observed: None };
    let drawn = trained.samples(&draw, &Job::silent(&cpu())).unwrap();
    assert_eq!(drawn.len(), 4);
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
    let other = || adapting(&other, &config).unwrap();
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
    assert!(radii.len() == 5 && radii.iter().all(|radius| (radius - 1.0).abs() < 0.01), "{radii:?}");
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
}

/// Units of work that were announced and those that were done.
#[derive(Default)]
struct Tally {
    total: AtomicU64,
    done: AtomicU64,
}

impl Reporter for Tally {
    fn begin(&self, total: u64, _done: u64) {
        self.total.store(total, Ordering::Relaxed);
    }
    fn advance(&self, units: u64) {
        self.done.fetch_add(units, Ordering::Relaxed);
    }
    fn note(&self, _text: &str) {}
}

#[test]
fn measurements_before_adapting_are_reported_sample_by_sample() {
    let settings = ["data.count=12", "data.valid=2", "denoiser.backbone={kind='mlp', hidden=8}", "train.batch=2"];
    let vanilla = new_training(&configured("darcy-demo", &settings)).unwrap().snapshot();
    let kalman = "denoiser.scd={directions=['kalman'], solve_for='p', input='features'}";
    let config = configured("darcy-demo", &[&settings[..], &[kalman]].concat());
    let (tally, device) = (Tally::default(), cpu());
    let job = Job::silent(&device).reporting_to(&tally);
    Training::adapt_watched(&vanilla, Path::new("base"), None, &config, dataset(&config), &job).unwrap();
    // 12 samples at 16 noise levels.
    assert_eq!([&tally.total, &tally.done].map(|n| n.load(Ordering::Relaxed)), [192, 192]);
}
