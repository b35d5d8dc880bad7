//! Everything that is measured of a trained model of fields: its samples, its likelihood, its loss and its γ.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::layers::is_reduced;
use crate::constraint::SoftConstraint;
use crate::data::dataset::Dataset;
use crate::data::split::Split;
use crate::denoiser::Denoiser;
use crate::direction::compliance::Compliance;
use crate::error::{Error, Result};
use crate::evaluate::denoising_loss::{DenoisingLoss, LevelLoss};
use crate::evaluate::fields::{FieldEvaluator, FieldMetrics};
use crate::evaluate::held_out::HeldOut;
use crate::evaluate::likelihood::{Integrator, Likelihood, PROGRESS_PER_SAMPLE, Probes};
use crate::job::{Job, Scaled};
use crate::model::blueprint::DataSpec;
use crate::model::trained::{Draw, Trained};
use crate::objective::Weight;
use crate::random::{Purpose, Stream};
use crate::ranks::Ranks;
use crate::sampler::Observer;
use crate::statistics::{AtLevel, log_spaced};
use crate::tensors::{field_batch, to_vec_f64};

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FieldEval {
    /// Samples to draw.
    pub samples: usize,
    /// Samples that go through the network at a time.
    pub batch: usize,
    /// Held-out samples whose likelihood is computed; 0 for none.
    pub likelihood: usize,
    /// Noise levels of the likelihood's path.
    pub likelihood_steps: usize,
    /// Held-out samples on which the loss is measured; 0 for none.
    pub loss: usize,
    /// Samples that are kept for pictures.
    pub keep: usize,
}

/// A number of bits per dimension.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bits {
    /// −log2 p per dimension in normalised units.
    pub normalised: f64,
    /// The same in physical units.
    pub physical: f64,
    /// Standard error over data (and probes).
    pub standard_error: Option<f64>,
    /// Held-out samples.
    pub count: usize,
}

/// What was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FieldResult {
    /// Of the samples.
    pub metrics: FieldMetrics,
    /// By the probability-flow ODE.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub likelihood: Option<Bits>,
    /// Why there is no likelihood though it was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub no_likelihood: Option<String>,
    /// −log2 p per dimension of each held-out sample, to compare models sample by sample.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub likelihood_samples: Vec<f64>,
    /// The variational bound.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bound: Option<Bits>,
    /// Denoising loss with EDM's weight.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub loss: Vec<AtLevel>,
    /// γ on noisy held-out data, one list for each of [`ScdConfig::parts`](crate::direction::config::ScdConfig::parts).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub gamma: Vec<Vec<AtLevel>>,
    /// Mean |R| of the denoiser's estimate along the sampling path, with the true parameters; empty where no equation is known.
    pub path: Vec<AtLevel>,
    /// Seconds of measuring.
    pub seconds: f64,
}

impl FieldEval {
    /// The evaluation as it is, or a few numbers of it if [`is_reduced`].
    #[must_use]
    pub fn unless_reduced(self) -> Self {
        if !is_reduced() {
            return self;
        }
        let Self { samples, batch, likelihood, likelihood_steps, loss, keep } = self;
        Self {
            samples: samples.min(6),
            batch,
            likelihood: likelihood.min(2),
            likelihood_steps: likelihood_steps.min(4),
            loss: loss.min(4),
            keep: keep.min(2),
        }
    }

    /// Units of work that [`FieldEval::run`] reports in all: denoiser calls on one sample, roughly.
    pub fn units(&self, steps: usize) -> u64 {
        let likelihood = if self.likelihood > 0 { 6 * self.likelihood * self.likelihood_steps } else { 0 };
        (2 * self.samples * steps + likelihood + self.loss * LEVELS) as u64
    }

    /// Measures `trained`; also returns the first samples in physical units, `[keep, C, H, W]`.
    pub fn run(
        &self,
        trained: &Trained,
        evaluator: &FieldEvaluator<'_>,
        data: &Dataset,
        job: &Job<'_>,
    ) -> Result<(FieldResult, Vec<f64>)> {
        let start = Instant::now();
        let blueprint = &trained.blueprint;
        let indices: Vec<u64> = (0..self.samples as u64).collect();
        let own = &indices[job.ranks.part(indices.len())];
        let DataSpec { fields, grid, units, .. } = &blueprint.data;
        let truth = evaluator.equation().map(|truth| SoftConstraint::new(truth, fields, grid, units)).transpose()?;
        let path = Path { truth, levels: Mutex::new(Vec::new()) };
        let draw = Draw { seed: blueprint.config.train.seed, indices: own, batch: self.batch, observed: Some(data) };
        // A step of a sample is two denoiser calls.
        let progress = Scaled::new(job.reporter, 2.0);
        let samples = trained.generate(&draw, &job.reporting_to(&progress), &|_| Box::new(Watch { path: &path }))?;
        let samples = job.ranks.join(&samples)?;
        // Projected samples lie on a surface: they have no density, and D alone is not what they are drawn with.
        let density = blueprint.config.denoiser.scd.as_ref().is_none_or(|scd| scd.compliance != Compliance::FULL);
        let mut result = FieldResult {
            metrics: evaluator.metrics(&samples)?,
            likelihood: None,
            no_likelihood: None,
            likelihood_samples: Vec::new(),
            bound: None,
            loss: Vec::new(),
            gamma: gamma(trained, &normalised(trained, data, 32)?, job.device),
            path: path.joined(job.ranks)?,
            seconds: 0.0,
        };
        if density {
            self.likelihood(trained, data, &mut result, job)?;
            self.loss(trained, data, &mut result, job)?;
        } else if self.likelihood > 0 {
            result.no_likelihood = Some("projected samples lie on a surface and have no density".into());
        }
        result.seconds = start.elapsed().as_secs_f64();
        let kept = samples[..self.keep.min(self.samples) * data.sample_len()].to_vec();
        Ok((result, kept))
    }

    /// The likelihood of held-out data, or why there is none.
    fn likelihood(&self, trained: &Trained, data: &Dataset, result: &mut FieldResult, job: &Job<'_>) -> Result<()> {
        if self.likelihood == 0 {
            return Ok(());
        }
        let mut settings = Likelihood::for_model(&trained.blueprint.config);
        if let Integrator::Heun { steps, .. } = &mut settings.integrator {
            *steps = self.likelihood_steps;
        }
        settings.probes = Probes::Rademacher { count: 1 };
        settings.batch = self.batch;
        let values = normalised(trained, data, self.likelihood)?;
        let held_out = HeldOut { values: &values, shape: data.shape(), units: &trained.blueprint.data.units };
        let progress = Scaled::new(job.reporter, (6 * self.likelihood_steps) as f64 / PROGRESS_PER_SAMPLE as f64);
        match settings.evaluate(&trained.model, held_out, 0, &job.reporting_to(&progress)) {
            Ok(report) => {
                result.likelihood = Some(Bits {
                    normalised: report.bits_per_dim,
                    physical: report.bits_per_dim_physical,
                    standard_error: report.standard_error,
                    count: report.count,
                });
                result.likelihood_samples = report.samples.iter().map(|s| s.bits_per_dim).collect();
                Ok(())
            }
            // A model that was ruined in training: the rest of it can be measured all the same.
            Err(Error::Failed { why, .. }) => {
                result.no_likelihood = Some(why);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The held-out loss by noise level and the bound that follows from it.
    fn loss(&self, trained: &Trained, data: &Dataset, result: &mut FieldResult, job: &Job<'_>) -> Result<()> {
        if self.loss == 0 {
            return Ok(());
        }
        let mut settings = DenoisingLoss::for_model(&trained.blueprint.config, LEVELS);
        settings.batch = self.batch;
        let values = normalised(trained, data, self.loss)?;
        let held_out = HeldOut { values: &values, shape: data.shape(), units: &trained.blueprint.data.units };
        let sigma_data = trained.model.sigma_data;
        let report = settings.evaluate(&trained.model, held_out, sigma_data, 0, job)?;
        result.bound = Some(Bits {
            normalised: report.bound.bits_per_dim,
            physical: report.bound.bits_per_dim_physical,
            standard_error: report.bound.standard_error,
            count: held_out.count(),
        });
        let level = |l: &LevelLoss| {
            let weight = Weight::Edm.at(l.sigma, sigma_data);
            AtLevel::of(l.sigma, l.samples.iter().map(|mse| mse * weight).collect())
        };
        result.loss = report.levels.iter().map(level).collect();
        Ok(())
    }
}

/// The first `count` held-out samples in the units of `trained`, `[N, C, H, W]`.
fn normalised(trained: &Trained, data: &Dataset, count: usize) -> Result<Vec<f32>> {
    let indices: Vec<usize> = (0..count.min(data.valid_count())).collect();
    data.batch(Split::Valid, &indices, &trained.blueprint.data.units)
}

/// Noise levels at which loss and γ are measured.
const LEVELS: usize = 16;

/// γ on noisy data `[N, C, H, W]` (normalised) by noise level, one list for each of [`ScdConfig::parts`]; empty for
/// models without one. Nodes with weights of their own are thrown together.
fn gamma(trained: &Trained, clean: &[f32], device: &Device) -> Vec<Vec<AtLevel>> {
    let (Some(scd), Some(soft)) = (&trained.blueprint.config.denoiser.scd, trained.model.softly()) else {
        return Vec::new();
    };
    let parts = scd.parts(&trained.blueprint.data.fields).len();
    let sampler = &trained.blueprint.config.sampler;
    let shape = trained.model.shape;
    let n = clean.len() / shape.iter().product::<usize>();
    let noise = trained.model.noise();
    let mut lists: Vec<Vec<AtLevel>> = vec![Vec::new(); parts];
    for (level, sigma) in log_spaced(sampler.sigma_min, sampler.sigma_max, LEVELS).into_iter().enumerate() {
        let mut stream = Stream::new(0, Purpose::Metric, level as u64);
        let samples = (0..n).flat_map(|_| noise.draw(&mut stream, clean.len() / n));
        let noisy = clean.iter().zip(samples).map(|(&v, z)| f64::from(v) + sigma * z).collect();
        let gamma = soft.gamma(field_batch(noisy, shape, device), &vec![sigma; n]);
        let outputs = gamma.dims()[1];
        let values = to_vec_f64(gamma);
        for (part, list) in lists.iter_mut().enumerate() {
            let own = |sample: &[f64]| sample[part * outputs / parts..(part + 1) * outputs / parts].to_vec();
            list.push(AtLevel::of(sigma, values.chunks(outputs).flat_map(own).collect()));
        }
    }
    lists
}

/// Residuals of the estimates along the sampling path.
struct Path {
    truth: Option<SoftConstraint>,
    /// σ of every step and mean |R| of every sample there.
    levels: Mutex<Vec<(f64, Vec<f64>)>>,
}

impl Path {
    /// The levels of the samples of all ranks.
    fn joined(self, ranks: &dyn Ranks) -> Result<Vec<AtLevel>> {
        let levels = self.levels.into_inner().unwrap_or_else(PoisonError::into_inner);
        let of_level = |(step, (sigma, values)): (usize, (f64, Vec<f64>))| {
            values.into_iter().flat_map(move |value| [step as f64, sigma, value])
        };
        let own: Vec<f64> = levels.into_iter().enumerate().flat_map(of_level).collect();
        let mut all: BTreeMap<usize, (f64, Vec<f64>)> = BTreeMap::new();
        for &[step, sigma, value] in ranks.join(&own)?.as_chunks().0 {
            all.entry(step as usize).or_insert((sigma, Vec::new())).1.push(value);
        }
        Ok(all.into_values().map(|(sigma, values)| AtLevel::of(sigma, values)).collect())
    }
}

struct Watch<'a> {
    path: &'a Path,
}

impl Observer for Watch<'_> {
    fn step(&mut self, step: usize, _: usize, sigma: f64, denoised: &Tensor<4>, _: &Tensor<4>) {
        let Some(truth) = &self.path.truth else { return };
        let residuals = truth.mean_abs(denoised);
        let mut levels = self.path.levels.lock().unwrap_or_else(PoisonError::into_inner);
        while levels.len() < step {
            levels.push((sigma, Vec::new()));
        }
        // Batches run side by side, but each tells of its steps 1, 2, … in order.
        levels[step - 1].0 = sigma;
        levels[step - 1].1.extend(residuals);
    }
}
