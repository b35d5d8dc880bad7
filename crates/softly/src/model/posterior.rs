//! Samples of a trained model given measurements.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::denoiser::Denoiser;
use crate::error::{Error, Result};
use crate::job::{Job, NOTHING_WRITTEN};
use crate::memory;
use crate::model::trained::{Draw, Trained};
use crate::nn::parameter::{Parameters, Visitor};
use crate::noise::Noise;
use crate::observe::conditioning::{Given, Knowledge};
use crate::observe::observations::{Measured, Observations};
use crate::random::{Purpose, Stream};
use crate::sampler::Observer;
use crate::tensors::{field_batch, to_vec_f64};

/// Samples given measurements, and what they cost.
#[derive(Debug, Clone)]
pub struct Posterior {
    /// In physical units, `[cases, samples, C, H, W]`.
    pub samples: Vec<f64>,
    /// Network calls per sample.
    pub calls: f64,
    /// Of these with a gradient through them.
    pub gradients: f64,
    /// Seconds of drawing.
    pub seconds: f64,
}

/// `settings` under which samples are conditioned by `method`. Settings of a method that is not named are of the default one.
pub fn conditioned(method: Option<&str>, settings: Vec<String>) -> Vec<String> {
    let unnamed = settings.iter().any(|setting| setting.trim_start().starts_with("conditioning."));
    let name = method.or(unnamed.then_some("kalman"));
    name.map(|name| format!("conditioning={{ kind = \"{name}\" }}")).into_iter().chain(settings).collect()
}

impl Trained {
    /// The data that measurements of this model are of.
    pub fn measured(&self) -> Measured<'_> {
        let data = &self.blueprint.data;
        Measured {
            fields: &data.fields,
            grid: &data.grid,
            units: &data.units,
            sigma_data: self.model.sigma_data,
            constraint: self.blueprint.config.constraint.as_ref(),
        }
    }

    /// Refuses a model that cannot be given measurements.
    pub(crate) fn check_conditioning(&self) -> Result<()> {
        let conditioning = &self.blueprint.config.conditioning;
        if conditioning.method().needs().white_noise && !self.blueprint.config.noise.is_white() {
            let problem = format!(
                "`{}` is for models of white noise, and this one's noise is a random field",
                conditioning.name()
            );
            return Err(Error::input("conditioning", problem).hint("use --conditioning kalman, or fundps"));
        }
        if conditioning.method().needs().data() && self.blueprint.config.data.noise > 0.0 {
            let problem =
                format!("`{}` knows clean training data, and data.noise says that there are none", conditioning.name());
            return Err(Error::input("conditioning", problem)
                .hint("use --conditioning mmps, or guidance such as dps, which ask the model alone"));
        }
        self.blueprint.config.sampler.refuse_fitted("without measurements")?;
        if self.blueprint.config.sampler.guidance.is_some() {
            let problem = "the run has guidance by its constraint, which does not go with measurements";
            return Err(Error::input("sampler.guidance", problem)
                .hint("set a weight of the equation instead: conditioning.equation"));
        }
        Ok(())
    }

    /// Draws the samples `draw` of every case by the configured method. Sample i of case c depends on (seed, c, i) alone; progress is
    /// counted in samples × steps.
    pub fn posterior(
        &self,
        cases: &[Observations],
        knowledge: &Knowledge,
        draw: &Draw<'_>,
        job: &Job<'_>,
    ) -> Result<Posterior> {
        self.check_conditioning()?;
        let batch = draw.batch.clamp(1, draw.indices.len().max(1));
        self.check_memory(cases.len() * draw.indices.len(), batch)?;
        if let Some(errors) = &knowledge.errors {
            memory::check("sampler.steps", errors.bytes(self.blueprint.config.sampler.steps))?;
        }
        let start = Instant::now();
        let calls = Counts::default();
        let counted = CountedDenoiser { denoiser: &self.model, counts: &calls };
        let parts: Vec<(usize, &[u64])> =
            (0..cases.len()).flat_map(|case| draw.indices.chunks(batch).map(move |chunk| (case, chunk))).collect();
        let samples: Vec<Vec<f64>> = parts
            .into_par_iter()
            .map(|(case, indices)| {
                if job.stopped() {
                    Vec::new()
                } else {
                    self.of_case(&counted, case, &cases[case], knowledge, (draw.seed, indices), job)
                }
            })
            .collect();
        job.go_on(NOTHING_WRITTEN)?;
        let samples = samples.concat();
        if let Some(bad) = samples.iter().position(|v| !v.is_finite()) {
            let len: usize = self.model.shape.iter().product();
            let (place, sample) = (self.path.display().to_string(), (bad / len) as u64);
            let hint = "lower the scale of the guidance, take more steps, or use --conditioning kalman".into();
            return Err(Error::NotFinite { place, sample, value: samples[bad], hint });
        }
        let count = (cases.len() * draw.indices.len()).max(1) as f64;
        let per_sample = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64 / count;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Posterior { samples, calls: per_sample(&calls.calls), gradients: per_sample(&calls.gradients), seconds })
    }

    /// The samples `indices` of one case, `[N, C, H, W]` in physical units.
    fn of_case(
        &self,
        denoiser: &dyn Denoiser,
        case: usize,
        observations: &Observations,
        knowledge: &Knowledge,
        (seed, indices): (u64, &[u64]),
        job: &Job<'_>,
    ) -> Vec<f64> {
        let (shape, size) = (self.model.shape, self.model.shape.iter().product());
        // Cases have streams of their own: the upper half of an index is the case.
        let streams = |purpose| -> Vec<Stream> {
            indices.iter().map(|&i| Stream::new(seed, purpose, ((case as u64) << 32) | i)).collect()
        };
        let kind = denoiser.noise();
        let numbers = |streams: &mut Vec<Stream>| {
            field_batch(streams.iter_mut().flat_map(|s| kind.draw(s, size)).collect(), shape, job.device)
        };
        let latents = numbers(&mut streams(Purpose::Latent));
        let mut more = streams(Purpose::SamplerNoise);
        let config = &self.blueprint.config;
        let constraint = self.model.constraint.as_deref();
        let given = Given { denoiser, observations, constraint, knowledge, shape };
        let mut observer = Steps { job, samples: indices.len() as u64 };
        let method = config.conditioning.method();
        let samples = method.sample(given, &config.sampler, latents, &mut || numbers(&mut more), &mut observer);
        to_vec_f64(self.blueprint.data.units.physical(samples.without_autodiff()))
    }
}

/// How often a denoiser was called, sample by sample.
#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    gradients: AtomicU64,
}

/// A denoiser whose calls are counted.
struct CountedDenoiser<'a> {
    denoiser: &'a dyn Denoiser,
    counts: &'a Counts,
}

impl Parameters for CountedDenoiser<'_> {
    fn visit(&mut self, _prefix: &str, _visit: &mut Visitor<'_>) {}
}

impl Denoiser for CountedDenoiser<'_> {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let n = sigma.len() as u64;
        self.counts.calls.fetch_add(n, Ordering::Relaxed);
        if x.is_autodiff() {
            self.counts.gradients.fetch_add(n, Ordering::Relaxed);
        }
        self.denoiser.denoise(x, sigma)
    }

    fn log_variance(&self, sigma: &[f64]) -> Option<Tensor<1>> {
        self.denoiser.log_variance(sigma)
    }

    fn noise(&self) -> Noise {
        self.denoiser.noise()
    }
}

/// An observer that counts samples × steps.
struct Steps<'a> {
    job: &'a Job<'a>,
    samples: u64,
}

impl Observer for Steps<'_> {
    fn step(&mut self, _: usize, _: usize, _: f64, _: &Tensor<4>, _: &Tensor<4>) {
        self.job.reporter.advance(self.samples);
    }

    fn stopped(&self) -> bool {
        self.job.stopped()
    }
}
