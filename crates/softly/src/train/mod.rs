//! Training: one step after the other, with exact resumption.
//!
//! [`Training::step`] reads top to bottom: batch, loss and gradients by shares, optimiser, averages. [`run`] is the loop around
//! it with checkpoints and files.

pub mod checkpoint;
pub mod run;
pub mod starter;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use softly_pde::algebra::Value;

use crate::config::{Config, Recompute};
use crate::data::dataset::Dataset;
use crate::data::split::Split;
use crate::denoiser::Denoiser;
use crate::denoiser::edm::Precondition;
use crate::denoiser::external::Estimator;
use crate::direction::compliance::Compliance;
use crate::direction::trust::inverse_square_limit;
use crate::error::{Error, Result};
use crate::host::to_host;
use crate::job::Job;
use crate::memory;
use crate::model::Model;
use crate::model::blueprint::Blueprint;
use crate::model::run_folder::{Metrics, RunInfo, chained};
use crate::model::snapshot::Snapshot;
use crate::nn::lanes::side_by_side;
use crate::nn::mlp::noise_features;
use crate::nn::optimizer::{GradientList, Optimizer, Slot};
use crate::nn::parameter::Parameters;
use crate::nn::recompute::recomputing;
use crate::objective::{Batch, Objective};
use crate::profile::{self, Part};
use crate::random::{Purpose, Stream};
use crate::ranks::Ranks;
use crate::soft::parameter_fit::{ParameterFit, denoised};
use crate::tensors::sent_along;

/// Running sums behind the next line of `metrics.jsonl`; part of a checkpoint, so that resuming is exact.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    steps: u64,
    /// Of the loss's terms by name.
    terms: BTreeMap<String, f64>,
    gradient_norm: f64,
    replaced: usize,
}

/// Samples that learned parameters of the constraint are fitted to, and their nodes on large grids.
const FITTED: usize = 512;
const FITTED_NODES: usize = 1 << 21;

/// A training under way.
pub struct Training {
    /// The resolved configuration and data description.
    pub blueprint: Blueprint,
    /// The model with its current weights.
    pub model: Model,
    /// The same model again for every further share of a batch on this rank: a graph of its own, so that shares do not wait for one
    /// another.
    twins: Vec<Model>,
    /// Weights, moments and averages.
    pub optimizer: Optimizer,
    dataset: Dataset,
    device: Device,
    /// The way of the constraint's learned numbers to where they were fitted, by name.
    fit: Vec<BTreeMap<String, f64>>,
    order: Order,
    sums: Sums,
    /// Fingerprint of the lines of metrics so far.
    history: String,
    /// The processes that share every batch.
    ranks: &'static dyn Ranks,
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

/// How a share becomes gradients.
struct How<'a> {
    objective: &'a Objective,
    /// Standard deviation of the data's own noise.
    data_noise: f64,
    recompute: Recompute,
    /// A multiple of the loss whose gradients are computed, see [`loss_scale`](crate::nn::backbone::BuildBackbone::loss_scale).
    loss_scale: f64,
}

/// The numbers of a [`Loss`](crate::objective::Loss).
struct Numbers {
    total: f64,
    terms: Vec<(&'static str, f64)>,
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

    /// The share's part of the batch's loss, and its gradients.
    fn gradients(self, model: &mut Model, how: &How<'_>, device: &Device) -> (Numbers, GradientList) {
        let ([c, h, w], n) = (self.shape, self.sigma.len());
        let both = [self.clean, self.noise].concat();
        let columns = columns(self.sigma, model.sigma_data, how.objective);
        sent_along(both, [2 * n, c, h, w], columns, device, |both| {
            let [clean, noise] = [0, n].map(|first| both.clone().narrow(0, first, n));
            let batch = Batch::of_noisy(clean, how.data_noise, noise, self.sigma);
            self.differentiated(&batch, model, how)
        })
    }

    /// The share's part of the loss of a `batch`, and its gradients.
    fn differentiated(&self, batch: &Batch<'_>, model: &mut Model, how: &How<'_>) -> (Numbers, GradientList) {
        let loss = recomputing(how.recompute != Recompute::None, || {
            let estimates = model.estimates(batch.noisy.clone(), self.sigma);
            how.objective.loss(&*model, model.constraint.as_deref(), batch, estimates, model.sigma_data)
        });
        let total = if self.weight == 1.0 { loss.total() } else { loss.total() * self.weight };
        let scaled = if how.loss_scale == 1.0 { total.clone() } else { total.clone() * how.loss_scale };
        let mut gradients = profile::part(Part::Backward, || scaled.backward());
        let values = std::iter::once(&total).chain(loss.0.iter().map(|term| &term.value));
        let values = values.map(|value| value.clone().without_autodiff().reshape([1])).collect();
        let (values, gradients) = profile::part(Part::Copies, || GradientList::beside(values, model, &mut gradients));
        let gradients = if how.loss_scale == 1.0 { gradients } else { gradients.scaled(1.0 / how.loss_scale) };
        let terms = loss.0.iter().zip(&values[1..]).map(|(term, value)| (term.name, self.weight * value));
        (Numbers { total: values[0], terms: terms.collect() }, gradients)
    }
}

impl Numbers {
    /// The sum over the shares of a batch, one after the other: all of `shares`, which have the same terms, and those of other ranks.
    fn added(shares: &[Self], ranks: &dyn Ranks) -> Result<Self> {
        let of_share =
            |share: &Self| [share.total].into_iter().chain(share.terms.iter().map(|(_, term)| *term)).collect();
        let own: Vec<f64> = shares.iter().flat_map(|share| -> Vec<f64> { of_share(share) }).collect();
        let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
        let all: Vec<f64> = ranks.tell(&bytes)?.concat().as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
        let mut sums = vec![0.0; own.len() / shares.len()];
        for share in all.chunks(sums.len()) {
            sums.iter_mut().zip(share).for_each(|(sum, number)| *sum += number);
        }
        let names = shares[0].terms.iter().map(|(name, _)| *name);
        Ok(Self { total: sums[0], terms: names.zip(sums[1..].iter().copied()).collect() })
    }
}

/// What models and losses make of noise levels. A device is sent all of it at once; what is missing here costs a transfer.
fn columns(sigma: &[f64], sigma_data: f64, objective: &Objective) -> Vec<Vec<f64>> {
    let at: Vec<Precondition> = sigma.iter().map(|&s| Precondition::new(s, sigma_data)).collect();
    let of = |f: &dyn Fn(&Precondition) -> f64| -> Vec<f64> { at.iter().map(f).collect() };
    let noise = of(&|c| c.noise);
    let features = noise_features(&noise);
    let levels = |f: &dyn Fn(f64) -> f64| -> Vec<f64> { sigma.iter().map(|&s| f(s)).collect() };
    vec![
        sigma.to_vec(),
        levels(&|s| objective.weight.at(s, sigma_data).sqrt()),
        levels(&|s| s * s),
        levels(&f64::ln),
        of(&|c| c.skip),
        of(&|c| c.out),
        of(&|c| c.input),
        of(&|c| inverse_square_limit(c)),
        noise,
        features,
    ]
}

/// The activation and its gradient.
const BYTES_PER_ACTIVATION: f64 = 8.0;

/// Activations of all operations are about so many times the inputs of blocks.
const RECOMPUTED: f64 = 3.0;

/// Refuses a batch whose activations do not fit into memory. A frozen denoiser keeps none of them.
fn check_memory(blueprint: &Blueprint, ranks: &dyn Ranks) -> Result<()> {
    let train = &blueprint.config.train;
    let activations = blueprint.config.denoiser.backbone.get().footprint(blueprint.data.shape()).activations;
    // Shares that wait for a thread need no memory yet.
    let shares = train.shares.unwrap_or(1).max(1);
    let at_once = shares.div_ceil(ranks.count()).min(rayon::current_num_threads());
    let at_once = (train.batch.div_ceil(shares) * at_once) as f64;
    let fewer = if train.recompute == Recompute::None { 1.0 } else { RECOMPUTED };
    memory::check("train.batch", BYTES_PER_ACTIVATION * at_once * activations / fewer)
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
        Self::begin(config, dataset, &Job::silent(device))
    }

    /// The same on the device and the ranks of `job`.
    pub fn begin(config: &Config, dataset: Dataset, job: &Job<'_>) -> Result<Self> {
        dataset.check()?;
        check_compliance(config)?;
        let mut directions = config.denoiser.scd.iter().flat_map(|scd| &scd.directions);
        if let Some(kind) = directions.find(|kind| kind.needs().trained_base) {
            let problem = format!("`{}` knows the errors of a trained denoiser, and here is none yet", kind.name());
            return Err(Error::input("denoiser.scd.directions", problem)
                .hint("train without it, then put it on top: `softly adapt`"));
        }
        let blueprint = Blueprint::new(config, &dataset)?;
        check_learned(&blueprint.config)?;
        let model = blueprint.build(&job.device.clone().autodiff())?;
        check_memory(&blueprint, job.ranks)?;
        Self::of(blueprint, model, None, false, dataset, job)
    }

    fn of(
        blueprint: Blueprint,
        mut model: Model,
        outside: Option<&Arc<dyn Estimator>>,
        is_trained: bool,
        dataset: Dataset,
        job: &Job<'_>,
    ) -> Result<Self> {
        let (device, ranks) = (job.device, job.ranks);
        let train = &blueprint.config.train;
        let shares = train.shares.unwrap_or(1);
        if !(1..=train.batch).contains(&shares) {
            let problem = format!("expected 1 to {}, the size of a batch, found {shares}", train.batch);
            return Err(Error::input("train.shares", problem));
        }
        if shares < ranks.count() {
            let problem = format!("expected a share for each of {} ranks, found {shares}", ranks.count());
            return Err(Error::input("train.shares", problem).hint(format!(
                "start {shares} ranks at most, or cut the batch of {} into more shares: --set train.shares={}",
                train.batch,
                ranks.count()
            )));
        }
        let mut fit = Vec::new();
        // Fitted and measured once, on the rank whose weights all others get.
        let learning = model.constraint.as_ref().filter(|constraint| ranks.leads() && constraint.learns());
        if let Some(constraint) = learning {
            let some: Vec<usize> =
                dataset.spread(FITTED_NODES.div_ceil(dataset.grid.len()).clamp(16, FITTED)).collect();
            let mut fields = dataset.clean(&some, &blueprint.data.units, device)?;
            let noise = blueprint.data_noise();
            if is_trained && noise > 0.0 {
                fields = fields.into_iter().map(|y| denoised(model.base(), y, noise)).collect();
            }
            let fields: Vec<Tensor<4>> = fields.into_iter().map(to_host).collect();
            fit = ParameterFit::new(constraint, &fields).run()?;
        }
        if let Some(soft) = model.softly_mut().filter(|_| ranks.leads()) {
            soft.measure_watched(&dataset, &blueprint.data.units, job.reporter)?;
        }
        let twin = |_| {
            let mut twin = blueprint.build_on(outside, &device.clone().autodiff())?;
            twin.copy_weights(&mut model);
            Ok(twin)
        };
        let twins = (1..ranks.part(shares).len()).map(twin).collect::<Result<_>>()?;
        let optimizer = Optimizer::new(&mut model);
        let device = device.clone();
        let (order, sums, history) = (Order::default(), Sums::default(), String::new());
        Ok(Self { blueprint, model, twins, optimizer, dataset, device, fit, order, sums, history, ranks })
    }

    /// Starts a training of the soft constraint alone, on top of the frozen denoiser of `base`; `location` names it in errors.
    ///
    /// The frozen denoiser runs untracked, so a step costs little more than one evaluation of it.
    pub fn adapt(base: &Snapshot, location: &Path, config: &Config, dataset: Dataset, device: &Device) -> Result<Self> {
        Self::adapt_watched(base, location, None, config, dataset, &Job::silent(device))
    }

    /// The same while `job`'s reporter hears of the measurements that come first, sample by sample. The frozen denoiser may be
    /// outside of softly.
    pub fn adapt_watched(
        base: &Snapshot,
        location: &Path,
        outside: Option<&Arc<dyn Estimator>>,
        config: &Config,
        dataset: Dataset,
        job: &Job<'_>,
    ) -> Result<Self> {
        dataset.check()?;
        check_compliance(config)?;
        let blueprint = Blueprint::adapted(&base.blueprint, config, &dataset)?;
        check_measured(&blueprint.config)?;
        let mut model = blueprint.build_on(outside, &job.device.clone().autodiff())?;
        base.freeze_into(&mut model, location)?;
        let training = Self::of(blueprint, model, outside, true, dataset, job)?;
        if !training.optimizer.slots.iter().any(|slot| slot.trainable) {
            return Err(
                Error::input("denoiser.scd.constant", "constant weights leave nothing to train").hint("leave them out")
            );
        }
        Ok(training)
    }

    /// Takes one step; returns a line of metrics when one is due.
    pub fn step(&mut self) -> Result<Option<Metrics>> {
        let step = self.optimizer.step;
        let (numbers, gradients) = self.gradients()?;
        if !numbers.total.is_finite() {
            return Err(Error::Diverged { step, loss: numbers.total, hint: String::new() });
        }
        let train = &self.blueprint.config.train;
        let rate = train.rate * train.schedule.factor(step, train.iterations);
        let optimizer = &mut self.optimizer;
        let step = || optimizer.step(gradients, train.adam, rate, train.clip, train.ema);
        let report = profile::part(Part::Optimiser, step);
        let models: Vec<&mut Model> = std::iter::once(&mut self.model).chain(&mut self.twins).collect();
        let optimizer = &self.optimizer;
        profile::part(Part::Copies, || models.into_par_iter().for_each(|model| optimizer.write_into(model)));
        self.sums.steps += 1;
        for (name, value) in numbers.terms {
            *self.sums.terms.entry(name.to_string()).or_default() += value;
        }
        self.sums.gradient_norm += report.gradient_norm;
        self.sums.replaced += report.replaced;
        let done = self.optimizer.step;
        let due = done.is_multiple_of(train.log_every) || done == train.iterations;
        let line = due.then(|| self.line(rate));
        if let Some(line) = &line {
            self.history = chained(&self.history, &line.line());
        }
        Ok(line)
    }

    /// The numbers of the loss and its gradients at the weights as they are, for the batch of the next step.
    fn gradients(&mut self) -> Result<(Numbers, GradientList)> {
        let config = &self.blueprint.config;
        let (train, step) = (&config.train, self.optimizer.step);
        let (order, dataset, units) = (&mut self.order, &self.dataset, &self.blueprint.data.units);
        let kind = self.model.noise();
        let (clean, sigma, noise) = profile::part(Part::Copies, || {
            let sample_len = dataset.sample_len();
            let indices = order.batch(step, train.batch, dataset.train_count(), train.seed);
            let clean = dataset.batch(Split::Train, &indices, units)?;
            let mut stream = Stream::new(train.seed, Purpose::TrainNoise, step);
            let sigma = config.objective.noise.sample(train.batch, &mut stream);
            let mut noise = Vec::with_capacity(clean.len());
            for _ in 0..train.batch {
                noise.extend(kind.draw(&mut stream, sample_len).into_iter().map(|value| value as f32));
            }
            Result::Ok((clean, sigma, noise))
        })?;
        let loss_scale = config.denoiser.backbone.get().loss_scale(self.model.shape);
        let mine = self.ranks.part(train.shares.unwrap_or(1));
        let shares = Share::cut(&clean, &noise, &sigma, train.shares.unwrap_or(1), self.model.shape);
        let shares = shares.into_iter().skip(mine.start).take(mine.len());
        let models = std::iter::once(&mut self.model).chain(&mut self.twins);
        let device = &self.device;
        let data_noise = self.blueprint.data_noise();
        let how = How { objective: &config.objective, data_noise, recompute: train.recompute, loss_scale };
        let work = |(model, share): (&mut Model, Share<'_>)| share.gradients(model, &how, device);
        let results = side_by_side(models.zip(shares).collect(), work);
        let (numbers, lists): (Vec<Numbers>, Vec<GradientList>) = results.into_iter().unzip();
        profile::part(Part::Communication, || {
            Ok((Numbers::added(&numbers, self.ranks)?, GradientList::added(lists, self.ranks)))
        })
    }

    /// Refuses ranks that would compute something else than rank 0.
    fn check_ranks(&self, info: &RunInfo) -> Result<()> {
        self.ranks.alike(&format!("softly {} ({})", info.version, info.commit))?;
        self.ranks.same("configuration", &self.blueprint.config.to_toml())?;
        self.ranks.same("fingerprint of the data", &self.blueprint.data.hash)?;
        self.ranks.same("units of the data", &format!("{:?}", self.blueprint.data.units))
    }

    /// Gives every rank the state of rank 0: steps, weights, moments and averages.
    fn share(&mut self) -> Result<()> {
        let ranks = self.ranks;
        let steps = ranks.tell(&self.optimizer.step.to_le_bytes())?;
        self.optimizer.step = steps[0].as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).sum();
        for slot in &mut self.optimizer.slots {
            for values in [&mut slot.value, &mut slot.mean, &mut slot.square, &mut slot.average] {
                ranks.lead(values);
            }
        }
        if !ranks.leads() {
            self.set_weights();
        }
        Ok(())
    }

    /// Gives the models all weights of the optimiser, those that do not change as well.
    fn set_weights(&mut self) {
        let mut slots = self.optimizer.slots.iter();
        self.model.visit("", &mut |_, parameter| {
            if let Some(slot) = slots.next() {
                parameter.set(slot.value.clone());
            }
        });
        self.twins.iter_mut().for_each(|twin| twin.copy_weights(&mut self.model));
    }

    /// The means of everything since the last line, which starts anew.
    fn line(&mut self, rate: f64) -> Metrics {
        let sums = std::mem::take(&mut self.sums);
        let mean = |total: f64| total / sums.steps as f64;
        let mut terms: BTreeMap<String, f64> =
            sums.terms.iter().map(|(name, sum)| (name.clone(), mean(*sum))).collect();
        let learned = self.learned();
        Metrics {
            step: self.optimizer.step,
            loss: terms.remove("loss").unwrap_or(f64::NAN),
            gradient_norm: mean(sums.gradient_norm),
            rate,
            replaced: sums.replaced,
            constraint: learned.into_iter().flat_map(|(name, value)| summary(name, &value)).collect(),
            terms,
        }
    }

    /// The averaged weights, ready to sample from.
    pub fn snapshot(&self) -> Snapshot {
        let weights = self.optimizer.slots.iter().map(|s| (s.name.clone(), s.shape.clone(), s.averaged().to_vec()));
        Snapshot { blueprint: self.blueprint.clone(), step: self.optimizer.step, weights: weights.collect() }
    }

    /// The learned parameters of the constraint with their names.
    fn learned(&self) -> Vec<(String, Value)> {
        let Some(constraint) = &self.model.constraint else { return Vec::new() };
        let learned = |slot: &Slot| {
            let name = slot.name.strip_prefix("constraint.")?;
            Some((name.to_string(), constraint.learned_value(name, &slot.value)?))
        };
        self.optimizer.slots.iter().filter_map(learned).collect()
    }
}

/// Refuses a direction that measures the errors of the denoiser, which fields with noise of their own do not show.
fn check_measured(config: &Config) -> Result<()> {
    let mut directions = config.denoiser.scd.iter().flat_map(|scd| &scd.directions);
    match directions.find(|kind| kind.needs().trained_base && config.data.noise > 0.0) {
        Some(kind) => {
            let problem = format!(
                "`{}` compares the denoiser with clean data, and data.noise says that there are none",
                kind.name()
            );
            Err(Error::input("denoiser.scd.directions", problem).hint("leave it out"))
        }
        None => Ok(()),
    }
}

/// Refuses to learn parameters from data with noise before there is a denoiser that takes it away.
fn check_learned(config: &Config) -> Result<()> {
    let fitted = config.data.noise > 0.0 && config.denoiser.scd.is_some();
    let mut parameters = config.constraint.iter().flat_map(|constraint| &constraint.parameters);
    match parameters.find(|(_, parameter)| fitted && parameter.is_learned()) {
        Some((name, _)) => {
            let problem = "is learned from the data, whose noise (data.noise) would be fitted as well";
            Err(Error::input(format!("constraint.parameters.{name}"), problem)
                .hint("train a plain denoiser first, then learn on top of it: `softly adapt`"))
        }
        None => Ok(()),
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
