//! Training: the loop, checkpoints and exact resumption.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use softly_pde::algebra::Value;
use softly_pde::grid::Grid;

use crate::compliance::Compliance;
use crate::config::Config;
use crate::dataset::Dataset;
use crate::direction::DirectionKind;
use crate::error::{Error, Result};
use crate::files::{make_folder, read_text, write_text};
use crate::model::{Blueprint, Model};
use crate::npy;
use crate::objective::Objective;
use crate::optimizer::{GradientList, Optimizer, Slot};
use crate::random::{Purpose, Stream};
use crate::side_by_side::side_by_side;
use crate::snapshot::{Snapshot, TensorFile};

/// One line of `metrics.jsonl`: means over the steps since the last line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Steps done.
    pub step: u64,
    /// The data term of the loss.
    pub loss: f64,
    /// The base denoiser's own loss times its weight, if it counts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base: Option<f64>,
    /// The regulariser, if there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub residual: Option<f64>,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Learning rate of the last step.
    pub rate: f64,
    /// Gradient entries that were not finite and were taken as zero.
    pub replaced: usize,
    /// Learned parameters of the constraint by name, after the last step.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub constraint: BTreeMap<String, f64>,
}

/// Running sums behind the next line of `metrics.jsonl`; part of a checkpoint, so that resuming is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    steps: u64,
    loss: f64,
    #[serde(default)]
    base: f64,
    residual: f64,
    gradient_norm: f64,
    replaced: usize,
}

/// Steps after which directions are told that learned parameters of the constraint have changed.
const UPDATE_EVERY: u64 = 100;

/// A training under way.
pub struct Training {
    /// The resolved configuration and data description.
    pub blueprint: Blueprint,
    /// The model with its current weights.
    pub model: Model,
    /// The same model again for every further share of a batch: a graph of its own, so that shares do not wait for one another.
    twins: Vec<Model>,
    /// Weights, moments and averages.
    pub optimizer: Optimizer,
    dataset: Dataset,
    device: Device,
    order: Order,
    sums: Sums,
}

/// A part of a batch.
struct Share<'a> {
    /// `[n, C, H, W]`.
    clean: &'a [f32],
    /// `[n, C, H, W]`.
    noise: &'a [f32],
    sigma: &'a [f64],
    /// n over the size of the batch.
    weight: f64,
    shape: [usize; 3],
}

/// The numbers of a [`Loss`](crate::objective::Loss).
struct Terms {
    total: f64,
    data: f64,
    base: Option<f64>,
    residual: Option<f64>,
}

impl<'a> Share<'a> {
    /// A batch in `count` parts of nearly the same size.
    fn cut(clean: &'a [f32], noise: &'a [f32], sigma: &'a [f64], count: usize, shape: [usize; 3]) -> Vec<Self> {
        let (len, batch) = (shape.iter().product::<usize>(), sigma.len());
        let part = |i: usize| {
            let [first, last] = [i, i + 1].map(|i| i * batch / count);
            Self {
                clean: &clean[first * len..last * len],
                noise: &noise[first * len..last * len],
                sigma: &sigma[first..last],
                weight: (last - first) as f64 / batch as f64,
                shape,
            }
        };
        (0..count).map(part).collect()
    }

    /// Its part of the batch's loss, and the gradients of that.
    fn gradients(self, model: &mut Model, objective: &Objective, device: &Device) -> (Terms, GradientList) {
        let [c, h, w] = self.shape;
        let field = |values: &[f32]| -> Tensor<4> {
            Tensor::from_data(TensorData::new(values.to_vec(), [self.sigma.len(), c, h, w]), device)
        };
        let (clean, noise) = (field(self.clean), field(self.noise));
        let (constraint, sigma_data) = (model.constraint.as_deref(), model.sigma_data);
        let loss = objective.loss(&*model.denoiser, constraint, clean, noise, self.sigma, sigma_data);
        let total = if self.weight == 1.0 { loss.total() } else { loss.total() * self.weight };
        let mut gradients = total.backward();
        let number = |t: Tensor<1>| f64::from(t.into_scalar::<f32>());
        let part = |t: Tensor<1>| self.weight * number(t);
        let terms = Terms {
            total: number(total),
            data: part(loss.data),
            base: loss.base.map(part),
            residual: loss.residual.map(part),
        };
        (terms, GradientList::of(&mut *model.denoiser, &mut gradients))
    }
}

impl Terms {
    fn add(&mut self, other: &Self) {
        let sum = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
        self.total += other.total;
        self.data += other.data;
        (self.base, self.residual) = (sum(self.base, other.base), sum(self.residual, other.residual));
    }
}

/// The order of the data: every epoch a new permutation.
#[derive(Default)]
struct Order {
    epoch: Option<u64>,
    permutation: Vec<usize>,
}

impl Order {
    /// The data indices of training step `step`.
    fn batch(&mut self, step: u64, batch: usize, count: usize, seed: u64) -> Vec<usize> {
        let first = step * batch as u64;
        (first..first + batch as u64)
            .map(|k| {
                let (epoch, at) = (k / count as u64, (k % count as u64) as usize);
                if self.epoch != Some(epoch) {
                    self.permutation = Stream::new(seed, Purpose::Shuffle, epoch).permutation(count);
                    self.epoch = Some(epoch);
                }
                self.permutation[at]
            })
            .collect()
    }
}

impl Training {
    /// Starts a training from scratch on `device`.
    pub fn new(config: &Config, dataset: Dataset, device: &Device) -> Result<Self> {
        dataset.check()?;
        check_compliance(config)?;
        if config.denoiser.scd.as_ref().is_some_and(|scd| scd.directions.contains(&DirectionKind::Kalman)) {
            let problem = "`kalman` knows the errors of a trained denoiser, and here is none yet";
            return Err(Error::input("denoiser.scd.directions", problem)
                .hint("train without it, then put it on top: `softly adapt`"));
        }
        let blueprint = Blueprint::new(config, &dataset)?;
        let model = blueprint.build(&device.clone().autodiff())?;
        Self::of(blueprint, model, dataset, device)
    }

    fn of(blueprint: Blueprint, mut model: Model, dataset: Dataset, device: &Device) -> Result<Self> {
        let train = &blueprint.config.train;
        if !(1..=train.batch).contains(&train.shares) {
            let problem = format!("expected 1 to {}, the size of a batch, found {}", train.batch, train.shares);
            return Err(Error::input("train.shares", problem));
        }
        model.denoiser.measure(&dataset, &blueprint.data.units);
        let twin = |_| {
            let mut twin = blueprint.build(&device.clone().autodiff())?;
            twin.copy_weights(&mut model);
            Ok(twin)
        };
        let twins = (1..train.shares).map(twin).collect::<Result<_>>()?;
        let optimizer = Optimizer::new(&mut *model.denoiser);
        let device = device.clone();
        Ok(Self { blueprint, model, twins, optimizer, dataset, device, order: Order::default(), sums: Sums::default() })
    }

    /// Starts a training of the soft constraint alone, on top of the frozen denoiser of `base`; `place` names it in errors.
    ///
    /// The frozen denoiser runs untracked, so a step costs little more than one evaluation of it.
    pub fn adapt(base: &Snapshot, place: &Path, config: &Config, dataset: Dataset, device: &Device) -> Result<Self> {
        dataset.check()?;
        check_compliance(config)?;
        let blueprint = Blueprint::adapted(&base.blueprint, config, &dataset)?;
        let mut model = blueprint.build(&device.clone().autodiff())?;
        base.freeze_into(&mut model, place)?;
        let training = Self::of(blueprint, model, dataset, device)?;
        if !training.optimizer.slots.iter().any(|slot| slot.trainable) {
            return Err(Error::input("denoiser.scd.constant", "constant weights leave nothing to train")
                .hint("leave them out, or let a parameter of the constraint be learned"));
        }
        Ok(training)
    }

    /// Takes one step; returns a line of metrics when one is due.
    pub fn step(&mut self) -> Result<Option<Metrics>> {
        let step = self.optimizer.step;
        if self.learns_parameters() && step > 0 && step.is_multiple_of(UPDATE_EVERY) {
            self.update();
            self.twins.iter_mut().for_each(|twin| twin.copy_weights(&mut self.model));
        }
        let config = &self.blueprint.config;
        let train = &config.train;
        let shape = self.model.shape;
        let sample_len = self.dataset.sample_len();
        let indices = self.order.batch(step, train.batch, self.dataset.train_count(), train.seed);
        let nodes = self.dataset.grid.len();
        let clean = Dataset::batch(&self.dataset.train, &indices, sample_len, nodes, &self.blueprint.data.units);
        let mut stream = Stream::new(train.seed, Purpose::TrainNoise, step);
        let sigma = config.objective.noise.sample(train.batch, &mut stream);
        let noise: Vec<f32> = (0..clean.len()).map(|_| stream.normal() as f32).collect();
        let shares = Share::cut(&clean, &noise, &sigma, train.shares, shape);
        let models = std::iter::once(&mut self.model).chain(&mut self.twins);
        let (device, objective) = (&self.device, &config.objective);
        let work = |(model, share): (&mut Model, Share<'_>)| share.gradients(model, objective, device);
        let results = side_by_side(models.zip(shares).collect(), work);
        let added = results.into_iter().reduce(|(mut terms, mut gradients), (other_terms, other)| {
            terms.add(&other_terms);
            gradients.add(other);
            (terms, gradients)
        });
        let (Terms { total, data, base, residual }, gradients) = added.expect("there is at least one share");
        if step == 0 {
            let mut useless = gradients.without_influence(&self.optimizer.slots);
            if let Some(name) = useless.find_map(|slot| slot.name.strip_prefix("constraint.")) {
                let problem = "expected a parameter that the correction depends on, found one that it does not";
                return Err(Error::input(format!("constraint.parameters.{name}"), problem).hint(
                    "use it in a formula, or give it a value; along `kalman` it has to be in the equation of `solve_for`",
                ));
            }
        }
        if !total.is_finite() {
            return Err(Error::Diverged { step, loss: total, hint: String::new() });
        }
        let rate = train.rate * train.schedule.factor(step, train.iterations);
        let report = self.optimizer.step(gradients, train.adam, rate, train.clip, train.ema);
        let models: Vec<&mut Model> = std::iter::once(&mut self.model).chain(&mut self.twins).collect();
        models.into_par_iter().for_each(|model| self.optimizer.write_into(&mut *model.denoiser));
        let sums = &mut self.sums;
        sums.steps += 1;
        sums.loss += data;
        sums.base += base.unwrap_or(0.0);
        sums.residual += residual.unwrap_or(0.0);
        sums.gradient_norm += report.gradient_norm;
        sums.replaced += report.replaced;
        let done = self.optimizer.step;
        if !done.is_multiple_of(train.log_every) && done != train.iterations {
            return Ok(None);
        }
        let mean = |total: f64| total / sums.steps as f64;
        let line = Metrics {
            step: done,
            loss: mean(sums.loss),
            base: base.map(|_| mean(sums.base)),
            residual: residual.map(|_| mean(sums.residual)),
            gradient_norm: mean(sums.gradient_norm),
            rate,
            replaced: sums.replaced,
            constraint: self
                .learned(|slot| &slot.value)
                .into_iter()
                .flat_map(|(name, value)| summary(name, &value))
                .collect(),
        };
        self.sums = Sums::default();
        Ok(Some(line))
    }

    fn learns_parameters(&self) -> bool {
        self.model.constraint.as_ref().is_some_and(|constraint| constraint.learns())
    }

    /// Brings up to date what directions know of the constraint.
    fn update(&mut self) {
        self.model.denoiser.update();
        self.optimizer.read_fixed_of(&mut *self.model.denoiser);
    }

    /// The same for the averaged parameters, which a snapshot has: the last thing to do.
    fn finish(&mut self) {
        if self.learns_parameters() {
            let mut slots = self.optimizer.slots.iter();
            self.model.denoiser.visit("", &mut |name, parameter| {
                if let Some(slot) = slots.next()
                    && name.starts_with("constraint.")
                {
                    parameter.set(slot.averaged().to_vec());
                }
            });
            self.update();
        }
    }

    /// The averaged weights, ready to sample from.
    pub fn snapshot(&self) -> Snapshot {
        let weights = self.optimizer.slots.iter().map(|s| (s.name.clone(), s.shape.clone(), s.averaged().to_vec()));
        Snapshot { blueprint: self.blueprint.clone(), step: self.optimizer.step, weights: weights.collect() }
    }

    /// The learned parameters of the constraint with their names, from the values that `pick` takes of their slots.
    fn learned(&self, pick: fn(&Slot) -> &[f32]) -> Vec<(String, Value)> {
        let Some(constraint) = &self.model.constraint else { return Vec::new() };
        let learned = |slot: &Slot| {
            let name = slot.name.strip_prefix("constraint.")?;
            Some((name.to_string(), constraint.learned_value(name, pick(slot))?))
        };
        self.optimizer.slots.iter().filter_map(learned).collect()
    }

    /// Writes everything needed to go on.
    pub fn write_checkpoint(&self, path: &Path) -> Result<()> {
        let mut tensors = Vec::new();
        for slot in &self.optimizer.slots {
            let all =
                [("value", &slot.value), ("mean", &slot.mean), ("square", &slot.square), ("average", &slot.average)];
            for (kind, values) in &all[..if slot.trainable { 4 } else { 1 }] {
                tensors.push((format!("{kind}/{}", slot.name), slot.shape.clone(), (*values).clone()));
            }
        }
        let metadata = HashMap::from([
            ("step".to_string(), self.optimizer.step.to_string()),
            ("sums".to_string(), serde_json::to_string(&self.sums).expect("numbers are valid JSON")),
        ]);
        TensorFile { metadata, tensors }.write(path)
    }

    /// Refuses a file of `folder`, whose weights are called `prefix`…, if it was made on top of another frozen denoiser.
    fn check_base(&mut self, prefix: &str, file: &TensorFile, folder: &RunFolder) -> Result<()> {
        let mut same = true;
        self.model.denoiser.visit_base(&mut |name, parameter| {
            if !parameter.trainable() {
                let name = format!("{prefix}{name}");
                let found = file.tensors.iter().find(|(n, _, _)| *n == name);
                same &= found.is_none_or(|(_, _, values)| *values == parameter.values());
            }
        });
        if same {
            return Ok(());
        }
        Err(Error::input(folder.path.display(), "this folder holds a run on top of another denoiser")
            .hint("choose another --out, or adapt the same snapshot"))
    }

    /// Goes on from a checkpoint of the same configuration.
    pub fn read_checkpoint(&mut self, path: &Path) -> Result<()> {
        let mut file = TensorFile::read(path)?;
        let broken = |what: &str| Error::input(path.display(), format!("the header's `{what}` is broken"));
        let step = file.text("step", path)?.parse().map_err(|_| broken("step"))?;
        self.sums = serde_json::from_str(file.text("sums", path)?).map_err(|_| broken("sums"))?;
        for slot in &mut self.optimizer.slots {
            let mut take = |kind: &str| file.take(&format!("{kind}/{}", slot.name), &slot.shape, path);
            slot.value = take("value")?;
            if slot.trainable {
                (slot.mean, slot.square, slot.average) = (take("mean")?, take("square")?, take("average")?);
            }
        }
        self.optimizer.step = step;
        let mut slots = self.optimizer.slots.iter();
        self.model.denoiser.visit("", &mut |_, parameter| {
            if let Some(slot) = slots.next() {
                parameter.set(slot.value.clone());
            }
        });
        self.twins.iter_mut().for_each(|twin| twin.copy_weights(&mut self.model));
        Ok(())
    }
}

/// Refuses to train a correction that is not applied as it is learned.
fn check_compliance(config: &Config) -> Result<()> {
    match &config.denoiser.scd {
        Some(scd) if scd.compliance != Compliance::LEARNED => {
            let problem = format!("{} is for trained models: training learns what 1 means", scd.compliance);
            Err(Error::input("denoiser.scd.compliance", problem)
                .hint("leave it out, and give it to `softly sample` or `softly eval`"))
        }
        _ => Ok(()),
    }
}

/// The files of a run folder.
#[derive(Debug, Clone)]
pub struct RunFolder {
    /// The folder.
    pub path: PathBuf,
}

impl RunFolder {
    /// The run folder at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    /// Who made the run, how, and whether it is finished.
    pub fn info(&self) -> PathBuf {
        self.path.join("run.json")
    }

    /// Metrics by step.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Wall-clock notes.
    pub fn log(&self) -> PathBuf {
        self.path.join("log.txt")
    }

    /// The newest checkpoint.
    pub fn checkpoint(&self) -> PathBuf {
        self.path.join("checkpoints").join("latest.safetensors")
    }

    /// A learned field of the constraint, `[H, W]`.
    pub fn learned(&self, name: &str) -> PathBuf {
        self.path.join(format!("learned-{name}.npy"))
    }

    /// The weights to sample from.
    pub fn snapshot(&self) -> PathBuf {
        self.path.join("snapshots").join("final.safetensors")
    }
}

/// `run.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of the program.
    pub version: String,
    /// Commit that it was built from, if known.
    pub commit: String,
    /// The command line.
    pub command: String,
    /// Seed of the training.
    pub seed: u64,
    /// Fingerprint of the data.
    pub dataset_hash: String,
    /// Where it ran.
    pub device: String,
    /// Threads it could use.
    pub threads: usize,
    /// `running`, `interrupted` or `finished`.
    pub status: String,
    /// Seconds of training, over all resumptions.
    pub seconds: f64,
}

impl RunFolder {
    /// The step that the newest line of metrics tells of; 0 before the first.
    pub fn step(&self) -> u64 {
        let text = read_text(&self.metrics()).unwrap_or_default();
        text.lines().rev().find_map(|line| serde_json::from_str::<Metrics>(line).ok()).map_or(0, |m| m.step)
    }

    /// Makes this process the only one that trains here, until the file is dropped or the process ends, however it ends:
    /// a study that was killed may have left a training behind.
    fn lock(&self) -> Result<File> {
        let path = self.log();
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io("write", &path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                Err(Error::input(self.path.display(), "another process is training in this folder")
                    .hint("wait until it is done, or stop it; then run the same command again"))
            }
            // Not every file system has locks; there it is up to the user.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
        }
    }
}

/// How far a training is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps in all.
    pub total: u64,
    /// The newest loss.
    pub loss: Option<f64>,
}

/// Trains in `folder`, or goes on with the training there, until done or `stop` is set.
///
/// `info` describes the run; its status and time are filled in here.
pub fn run(
    config: &Config,
    dataset: Dataset,
    folder: &RunFolder,
    device: &Device,
    info: RunInfo,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    run_training(Training::new(config, dataset, device)?, folder, info, stop, progress)
}

/// [`run`] for a training at its start, of whatever kind.
pub fn run_training(
    mut training: Training,
    folder: &RunFolder,
    mut info: RunInfo,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    info.dataset_hash = training.dataset.hash();
    let config = &training.blueprint.config.clone();
    let resolved = training.blueprint.config.to_toml();
    if folder.config().exists() {
        if read_text(&folder.config())? != resolved {
            return Err(Error::input(folder.path.display(), "this folder holds a run of another configuration")
                .hint(format!("choose another --out, or compare with {}", folder.config().display())));
        }
        if folder.snapshot().exists() {
            training.check_base("", &TensorFile::read(&folder.snapshot())?, folder)?;
            progress(Progress { step: config.train.iterations, total: config.train.iterations, loss: None });
            return Ok(());
        }
        if let Ok(text) = read_text(&folder.info())
            && let Ok(before) = serde_json::from_str::<RunInfo>(&text)
        {
            info.seconds = before.seconds;
        }
    } else if folder.path.exists() && fs::read_dir(&folder.path).is_ok_and(|mut d| d.next().is_some()) {
        return Err(Error::input(folder.path.display(), "this folder is not empty and holds no run")
            .hint("choose another --out"));
    }
    for part in ["checkpoints", "snapshots"] {
        make_folder(&folder.path.join(part))?;
    }
    let _lock = folder.lock()?;
    if folder.checkpoint().exists() {
        training.check_base("value/", &TensorFile::read(&folder.checkpoint())?, folder)?;
        training.read_checkpoint(&folder.checkpoint())?;
    }
    write_text(&folder.config(), &resolved)?;
    keep_metrics_until(&folder.metrics(), training.optimizer.step)?;
    let before = info.seconds;
    let start = Instant::now();
    let mut save_info = |status: &str| {
        info.status = status.to_string();
        info.seconds = before + start.elapsed().as_secs_f64();
        write_text(&folder.info(), &(serde_json::to_string_pretty(&info).expect("text is valid JSON") + "\n"))
    };
    save_info("running")?;
    append(&folder.log(), &format!("step {} of {}: start\n", training.optimizer.step, config.train.iterations))?;
    let total = config.train.iterations;
    let mut loss = None;
    while training.optimizer.step < total {
        match training.step() {
            Ok(Some(line)) => {
                loss = Some(line.loss);
                append(&folder.metrics(), &(serde_json::to_string(&line).expect("numbers are valid JSON") + "\n"))?;
                let seconds = start.elapsed().as_secs_f64();
                append(&folder.log(), &format!("step {} loss {:.5} after {seconds:.1} s\n", line.step, line.loss))?;
            }
            Ok(None) => {}
            Err(Error::Diverged { step, loss, .. }) => {
                let last = if folder.checkpoint().exists() {
                    format!("the last good checkpoint is {}; ", folder.checkpoint().display())
                } else {
                    String::new()
                };
                let hint = format!("{last}lower train.rate, or set train.clip");
                return Err(Error::Diverged { step, loss, hint });
            }
            Err(error) => return Err(error),
        }
        let step = training.optimizer.step;
        progress(Progress { step, total, loss });
        let stopped = stop.load(Ordering::Relaxed);
        if step.is_multiple_of(config.train.checkpoint_every) || stopped {
            training.write_checkpoint(&folder.checkpoint())?;
        }
        if stopped && step < total {
            save_info("interrupted")?;
            return Err(Error::Interrupted {
                hint: format!("step {step} of {total} is saved; run the same command again to go on"),
            });
        }
    }
    for (name, value) in training.learned(Slot::averaged) {
        if let Value::Field(values) = value {
            let Grid { rows, cols, .. } = training.dataset.grid;
            npy::write_f64(&folder.learned(&name), &[rows, cols], values.iter().copied())?;
        }
    }
    training.finish();
    training.snapshot().write(&folder.snapshot())?;
    save_info("finished")
}

/// A learned parameter as numbers with names: itself, or the mean and the standard deviation of a field.
fn summary(name: String, value: &Value) -> Vec<(String, f64)> {
    match value {
        Value::Number(number) => vec![(name, *number)],
        Value::Field(values) => {
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
            vec![(format!("{name}.mean"), mean), (format!("{name}.std"), variance.sqrt())]
        }
    }
}

/// Drops lines of steps that will be taken again.
fn keep_metrics_until(path: &Path, step: u64) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let text = read_text(path)?;
    let keep = |line: &&str| serde_json::from_str::<Metrics>(line).is_ok_and(|m| m.step <= step);
    let kept: String = text.lines().filter(keep).flat_map(|line| [line, "\n"]).collect();
    write_text(path, &kept)
}

fn append(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(Error::io("write", path))?;
    file.write_all(text.as_bytes()).map_err(Error::io("write", path))
}
