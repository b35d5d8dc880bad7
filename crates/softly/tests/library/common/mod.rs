//! What several tests share: the device, small configurations and models, random numbers, plain denoisers, a watched
//! job.

pub mod denoisers;
pub mod gaussian;
pub mod probe;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Tensor};
use softly::auto::NumberOrAuto;
use softly::error::Result;
use softly::job::{Job, Reporter};
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, to_vec_f64};
use softly::units::Units;
use softly::{
    BackboneConfig, Blueprint, Compliance, Config, ConstraintConfig, Damping, DataSpec, Dataset, Denoiser, Direction,
    Gamma, GradientDirection, Layers, MlpConfig, Norm, ParameterConfig, Parameters, Residuals, RunFolder, RunInfo,
    Scale, ScdConfig, Snapshot, SoftConstraint, SoftlyConstrained, Split, Training, run,
};
use softly_pde::derivative::Scheme;
use softly_pde::grid::{Axis, Grid};
use softly_pde::stencil::Stencil;

use crate::common::denoisers::Identity;

/// Shape of a point in the plane, `[C, H, W]`.
pub const POINT: [usize; 3] = [2, 1, 1];

pub fn cpu() -> Device {
    Device::flex()
}

/// `count` standard normal numbers, the same for the same `seed` and `index`.
pub fn normals(seed: u64, index: u64, count: usize) -> Vec<f64> {
    Stream::new(seed, Purpose::Metric, index).normals(count)
}

/// Fields `[N, C, H, W]` in f64 from row-major values.
pub fn field(values: &[f64], shape: [usize; 3]) -> Tensor<4> {
    field_batch(values.to_vec(), shape, &cpu())
}

pub fn bits(values: Vec<f64>) -> Vec<u64> {
    values.into_iter().map(f64::to_bits).collect()
}

pub fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

/// rms(found − expected) / rms(expected).
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    rms(&found.iter().zip(expected).map(|(a, b)| a - b).collect::<Vec<_>>()) / rms(expected)
}

/// The slope of ln y against ln x: the order of convergence of errors y in steps x.
pub fn order(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    logs.iter().map(|(x, y)| (x - mx) * (y - my)).sum::<f64>() / logs.iter().map(|(x, _)| (x - mx).powi(2)).sum::<f64>()
}

/// A preset with settings `a.b=c` on top.
pub fn try_configured(preset: &str, settings: &[&str]) -> Result<Config> {
    let layers = Layers::new().preset(preset).unwrap();
    settings.iter().try_fold(layers, |layers, setting| layers.set(setting))?.finish("test")
}

/// A preset with settings `a.b=c` on top, which are valid.
pub fn configured(preset: &str, settings: &[&str]) -> Config {
    try_configured(preset, settings).unwrap()
}

/// A small training of points along `method` of the demonstration preset.
pub fn small(method: &str, settings: &[&str]) -> Config {
    let mut layers = Layers::new().preset("circle-demo").unwrap().method(method).unwrap();
    let network = if method == "pidm-ddpm" {
        "denoiser.backbone={kind='level-mlp', hidden=16, levels=100}"
    } else {
        "denoiser.backbone={kind='mlp', hidden=16}"
    };
    let common = [
        network,
        "data.count=100",
        "data.valid=10",
        "train.iterations=60",
        "train.batch=16",
        "train.log_every=7",
        "train.checkpoint_every=10",
    ];
    for setting in common.iter().chain(settings) {
        layers = layers.set(setting).unwrap();
    }
    layers.finish("test").unwrap()
}

/// All numbers of the training samples.
pub fn train(data: &Dataset) -> Vec<f32> {
    data.all(Split::Train).unwrap().into_owned()
}

/// All numbers of the held-out samples.
pub fn valid(data: &Dataset) -> Vec<f32> {
    data.all(Split::Valid).unwrap().into_owned()
}

pub fn dataset(config: &Config) -> Dataset {
    Dataset::from_config(&config.data).unwrap()
}

/// A training from scratch on the data that `config` names.
pub fn new_training(config: &Config) -> Result<Training> {
    Training::new(config, dataset(config), &cpu())
}

/// A training of the soft constraint alone, on top of `base`.
pub fn adapting(base: &Snapshot, config: &Config) -> Result<Training> {
    Training::adapt(base, Path::new("base"), config, dataset(config), &cpu())
}

/// Trains in `folder` until done, or until after step `last`.
pub fn run_until(training: Training, folder: &RunFolder, last: u64) -> Result<()> {
    run(training, folder, info(), &Watch::new(|step| step == last).job(&cpu()))
}

/// The values of the tensor `name`, which the snapshot has.
pub fn weights<'a>(snapshot: &'a Snapshot, name: &str) -> &'a [f32] {
    let found = snapshot.weights.iter().find(|(n, _, _)| n == name);
    &found.unwrap_or_else(|| panic!("no tensor `{name}`")).2
}

/// The header of a run folder.
pub fn info() -> RunInfo {
    RunInfo {
        version: "test".into(),
        commit: String::new(),
        command: "test".into(),
        seed: 0,
        dataset_hash: String::new(),
        device: "cpu".into(),
        ranks: 1,
        threads: 1,
        status: String::new(),
        seconds: 0.0,
        fit: Vec::new(),
    }
}

/// Every file below `folder` with its bytes.
pub fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

/// A reporter that knows how far a job has come and tells `listener`, who answers whether to stop.
pub struct Watch<F> {
    done: AtomicU64,
    stop: AtomicBool,
    listener: Mutex<F>,
}

impl<F: FnMut(u64) -> bool + Send> Watch<F> {
    pub fn new(listener: F) -> Self {
        Self { done: AtomicU64::new(0), stop: AtomicBool::new(false), listener: Mutex::new(listener) }
    }

    pub fn job<'a>(&'a self, device: &'a Device) -> Job<'a> {
        Job { stop: &self.stop, reporter: self, ..Job::silent(device) }
    }

    /// Units of progress so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

impl<F: FnMut(u64) -> bool + Send> Reporter for Watch<F> {
    fn begin(&self, _: u64, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    fn advance(&self, units: u64) {
        let done = self.done.fetch_add(units, Ordering::Relaxed) + units;
        if (self.listener.lock().unwrap_or_else(PoisonError::into_inner))(done) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn note(&self, _: &str) {}
}

/// A constraint without parameters whose derivatives are one-sided at the sides.
pub fn law(fields: &[&str], residual: Residuals, norm: Norm) -> ConstraintConfig {
    ConstraintConfig {
        fields: fields.iter().map(ToString::to_string).collect(),
        residual,
        stencil: Stencil::All(Scheme::OneSided2),
        stencils: BTreeMap::new(),
        norm,
        parameters: BTreeMap::new(),
    }
}

pub fn one(formula: &str) -> Residuals {
    Residuals::One(formula.into())
}

/// A constraint on data that have exactly its fields.
pub fn compiled(config: &ConstraintConfig, grid: &Grid, units: &Units) -> SoftConstraint {
    SoftConstraint::new(config, &config.fields, grid, units).unwrap()
}

/// A constraint on the coordinates x and y of a point.
pub fn point_law(formula: &str, norm: Norm) -> ConstraintConfig {
    law(&["x", "y"], one(formula), norm)
}

pub fn point_constraint(formula: &str, norm: Norm) -> SoftConstraint {
    compiled(&point_law(formula, norm), &Grid::point(), &Units::identity(2))
}

/// Points whose distance from the origin should be what `formula` says; `parameters` are learned from their values on.
pub fn circle(formula: &str, parameters: &[(&str, f64)]) -> Arc<SoftConstraint> {
    let learned = |(name, learn): &(&str, f64)| (name.to_string(), ParameterConfig::Learn { learn: *learn });
    let parameters = parameters.iter().map(learned).collect();
    let config = ConstraintConfig { parameters, ..point_law(&format!("sqrt(x^2 + y^2) - {formula}"), Norm::L2) };
    Arc::new(compiled(&config, &Grid::point(), &Units::identity(2)))
}

/// D₀(x) = x, corrected by the constant multiple `gamma` of the step onto `constraint`.
pub fn toward(constraint: &Arc<SoftConstraint>, gamma: f64, compliance: Compliance) -> SoftlyConstrained {
    let config = ScdConfig { scale: Scale::Polyak, constant: Some(vec![gamma]), compliance, ..ScdConfig::default() };
    let gradient = GradientDirection::new(constraint.clone(), Scale::Polyak, Damping::Exponential, 0.0);
    soft(Identity, constraint, vec![Box::new(gradient)], POINT, config)
}

/// `base` on fields `[C, H, W]` corrected along `directions`, for data of standard deviation 0.5.
pub fn soft(
    base: impl Denoiser + 'static,
    constraint: &Arc<SoftConstraint>,
    directions: Vec<Box<dyn Direction>>,
    shape: [usize; 3],
    config: ScdConfig,
) -> SoftlyConstrained {
    let mut stream = Stream::new(0, Purpose::Weights, 1);
    let gamma = Gamma::new(&config, &directions, constraint.equations(), shape, &mut stream, &cpu()).unwrap();
    SoftlyConstrained::new(Box::new(base), constraint.clone(), directions, gamma, config, 0.5)
}

/// A network of `hidden` units.
pub fn mlp(hidden: usize) -> BackboneConfig {
    BackboneConfig::Mlp(MlpConfig { hidden })
}

/// The settings of a soft constraint along the gradient in `scale`.
pub fn scd(scale: Scale) -> ScdConfig {
    ScdConfig { scale, lambda: NumberOrAuto::Number(0.7), ..ScdConfig::default() }
}

/// A model of p and K on a 6×6 grid with Darcy's equation as its constraint.
pub fn darcy_blueprint(scd: Option<ScdConfig>, norm: Norm) -> Blueprint {
    let mut config = Config::default();
    config.data.sigma_data = NumberOrAuto::Number(0.5);
    config.denoiser.backbone = mlp(24);
    config.denoiser.scd = scd;
    config.train.seed = 4;
    config.constraint = Some(law(&["p", "K"], one("K*laplacian(p) + dot(grad(K), grad(p)) + 1"), norm));
    let data = DataSpec {
        fields: vec!["p".into(), "K".into()],
        grid: Grid { axes: ["x", "y"].map(|name| Axis::new(name, 6, 0.0, 5.0)).to_vec() },
        units: Units { mean: vec![0.1, 1.2], scale: vec![0.8, 0.6] },
        scalars: Vec::new(),
        hash: String::new(),
        floors: BTreeMap::new(),
    };
    Blueprint { config, data }
}

/// A model of points with the unit circle as its constraint.
pub fn point_blueprint(scd: Option<ScdConfig>) -> Blueprint {
    let mut config = Config::default();
    config.data.sigma_data = NumberOrAuto::Number(0.7);
    config.denoiser.backbone = mlp(128);
    config.denoiser.scd = scd;
    config.constraint = Some(point_law("(sqrt(x^2 + y^2) - 1)^2", Norm::L1Sum));
    let data = DataSpec {
        fields: vec!["x".into(), "y".into()],
        grid: Grid::point(),
        units: Units::identity(2),
        scalars: Vec::new(),
        hash: String::new(),
        floors: BTreeMap::new(),
    };
    Blueprint { config, data }
}

/// Gives γ's last layer values of about `size`, so that γ is not zero and depends on its input.
pub fn wake_gamma(model: &mut dyn Parameters, size: f32) {
    let mut stream = Stream::new(8, Purpose::Metric, 0);
    model.visit("", &mut |name, parameter| {
        if name.starts_with("gamma.last.") {
            let shift = if name.ends_with("bias") { 1.0 } else { 0.0 };
            let values = parameter.values().into_iter().map(|_| size * (shift + 0.3 * stream.normal() as f32));
            parameter.set(values.collect());
        }
    });
}

/// D(x; σ) in f64, row-major.
pub fn denoised(denoiser: &dyn Denoiser, x: Tensor<4>, sigma: &[f64]) -> Vec<f64> {
    to_vec_f64(denoiser.denoise(x, sigma).without_autodiff())
}
