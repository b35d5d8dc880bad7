//! Everything that is measured of a trained model of fields: its samples, its likelihood, its loss and its γ.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::compliance::Compliance;
use crate::constraint::SoftConstraint;
use crate::dataset::Dataset;
use crate::denoising_loss::DenoisingLoss;
use crate::error::{Error, Result};
use crate::field_metrics::{FieldEvaluator, FieldMetrics};
use crate::generate::Trained;
use crate::held_out::HeldOut;
use crate::likelihood::{Integrator, Likelihood, Probes};
use crate::parameter::to_vec_f64;
use crate::random::{Purpose, Stream};
use crate::sampler::{Observer, field_batch};

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

/// A quantity by noise level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AtLevel {
    /// Noise level.
    pub sigma: f64,
    /// Its mean.
    pub mean: f64,
    /// 10th percentile.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
}

impl AtLevel {
    /// Mean and percentiles of `values` at `sigma`.
    pub fn of(sigma: f64, mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let n = values.len().max(1);
        let at = |percent: usize| values.get(n * percent / 100).copied().unwrap_or(f64::NAN);
        Self { sigma, mean: values.iter().sum::<f64>() / n as f64, low: at(10), high: at(90) }
    }
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
    /// γ on noisy held-out data, one list for each of [`ScdConfig::parts`](crate::scd::ScdConfig::parts).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub gamma: Vec<Vec<AtLevel>>,
    /// Mean |R| of the denoiser's estimate along the sampling path, with the true parameters.
    pub path: Vec<AtLevel>,
    /// Seconds of measuring.
    pub seconds: f64,
}

impl FieldEval {
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
        device: &Device,
        stop: &AtomicBool,
        advance: &(dyn Fn(u64) + Sync),
    ) -> Result<(FieldResult, Vec<f64>)> {
        let start = Instant::now();
        let blueprint = &trained.blueprint;
        let sampler = &blueprint.config.sampler;
        let seed = blueprint.config.train.seed;
        let indices: Vec<u64> = (0..self.samples as u64).collect();
        let path = Path { truth: blueprint.truth()?, levels: Mutex::new(Vec::new()) };
        let watch = |samples: usize| -> Box<dyn Observer + '_> { Box::new(Watch { path: &path, samples, advance }) };
        let samples = trained.generate_watched(sampler, seed, &indices, self.batch, device, stop, &watch)?;
        let metrics = evaluator.metrics(&samples)?;
        let denoiser = &*trained.model.denoiser;

        let normalised = |count: usize| -> Vec<f32> {
            let indices: Vec<usize> = (0..count.min(data.valid_count())).collect();
            Dataset::batch(&data.valid, &indices, data.sample_len(), data.grid.len(), &blueprint.data.units)
        };
        // Projected samples lie on a surface: they have no density, and D alone is not what they are drawn with.
        let density = blueprint.config.denoiser.scd.as_ref().is_none_or(|scd| scd.compliance != Compliance::FULL);
        let (mut likelihood, mut likelihood_samples) = (None, Vec::new());
        let mut no_likelihood = (self.likelihood > 0 && !density)
            .then(|| "projected samples lie on a surface and have no density".to_string());
        if self.likelihood > 0 && density {
            let mut settings = Likelihood::for_model(&blueprint.config);
            if let Integrator::Heun { steps, .. } = &mut settings.integrator {
                *steps = self.likelihood_steps;
            }
            settings.probes = Probes::Rademacher { count: 1 };
            settings.batch = self.batch;
            let values = normalised(self.likelihood);
            let progress = |hundredths: usize| advance((6 * self.likelihood_steps * hundredths / 100) as u64);
            let held_out = HeldOut { values: &values, shape: data.shape(), units: &blueprint.data.units };
            match settings.evaluate(denoiser, held_out, 0, device, stop, &progress) {
                Ok(report) => {
                    likelihood = Some(Bits {
                        normalised: report.bits_per_dim,
                        physical: report.bits_per_dim_physical,
                        standard_error: report.standard_error,
                        count: report.count,
                    });
                    likelihood_samples = report.samples.iter().map(|s| s.bits_per_dim).collect();
                }
                // A model that was ruined in training: the rest of it can be measured all the same.
                Err(Error::Failed { why, .. }) => no_likelihood = Some(why),
                Err(error) => return Err(error),
            }
        }
        let (mut bound, mut loss) = (None, Vec::new());
        if self.loss > 0 && density {
            let mut settings = DenoisingLoss::for_model(&blueprint.config, LEVELS);
            settings.batch = self.batch;
            let values = normalised(self.loss);
            let sigma_data = trained.model.sigma_data;
            let progress = |calls: usize| advance(calls as u64);
            let report = settings.evaluate(
                denoiser,
                HeldOut { values: &values, shape: data.shape(), units: &blueprint.data.units },
                sigma_data,
                0,
                device,
                stop,
                &progress,
            )?;
            bound = Some(Bits {
                normalised: report.bound.bits_per_dim,
                physical: report.bound.bits_per_dim_physical,
                standard_error: report.bound.standard_error,
                count: self.loss.min(data.valid_count()),
            });
            let weight = |sigma: f64| (sigma * sigma + sigma_data * sigma_data) / (sigma * sigma_data).powi(2);
            let level = |l: &crate::denoising_loss::LevelLoss| {
                AtLevel::of(l.sigma, l.samples.iter().map(|mse| mse * weight(l.sigma)).collect())
            };
            loss = report.levels.iter().map(level).collect();
        }
        let result = FieldResult {
            metrics,
            likelihood,
            no_likelihood,
            likelihood_samples,
            bound,
            loss,
            gamma: gamma(trained, &normalised(32), device),
            path: path.summary(),
            seconds: start.elapsed().as_secs_f64(),
        };
        let kept = samples[..self.keep.min(self.samples) * data.sample_len()].to_vec();
        Ok((result, kept))
    }
}

/// Noise levels at which loss and γ are measured.
const LEVELS: usize = 16;

/// γ on noisy data `[N, C, H, W]` (normalised) by noise level, one list for each of [`ScdConfig::parts`](crate::scd::ScdConfig::parts); empty for models
/// without one. Nodes with weights of their own are thrown together.
fn gamma(trained: &Trained, clean: &[f32], device: &Device) -> Vec<Vec<AtLevel>> {
    let Some(scd) = &trained.blueprint.config.denoiser.scd else { return Vec::new() };
    let parts = scd.parts(&trained.blueprint.data.fields).len();
    let sampler = &trained.blueprint.config.sampler;
    let shape = trained.model.shape;
    let n = clean.len() / shape.iter().product::<usize>();
    let span = (sampler.sigma_max / sampler.sigma_min).powf(1.0 / (LEVELS - 1) as f64);
    let mut lists: Vec<Vec<AtLevel>> = Vec::new();
    for level in 0..LEVELS {
        let sigma = sampler.sigma_min * span.powi(level as i32);
        let mut stream = Stream::new(0, Purpose::Metric, level as u64);
        let noisy = clean.iter().map(|&v| f64::from(v) + sigma * stream.normal()).collect();
        let Some(gamma) = trained.model.denoiser.gamma(field_batch(noisy, shape, device), &vec![sigma; n]) else {
            return Vec::new();
        };
        let outputs = gamma.dims()[1];
        let values = to_vec_f64(gamma);
        lists.resize_with(parts, Vec::new);
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
    fn summary(self) -> Vec<AtLevel> {
        let levels = self.levels.into_inner().unwrap_or_else(PoisonError::into_inner);
        levels.into_iter().map(|(sigma, values)| AtLevel::of(sigma, values)).collect()
    }
}

struct Watch<'a> {
    path: &'a Path,
    samples: usize,
    advance: &'a (dyn Fn(u64) + Sync),
}

impl Observer for Watch<'_> {
    fn step(&mut self, step: usize, _: usize, sigma: f64, denoised: &Tensor<4>, _: &Tensor<4>) {
        (self.advance)(2 * self.samples as u64);
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
