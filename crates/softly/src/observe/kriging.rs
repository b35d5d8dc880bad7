//! Kriging: the Gaussian with the training data's mean and covariance, given the sensors. No network, no equation.
//!
//! A sample is a prior draw x = μ + U a moved by the update for readings that were disturbed by their noise:
//! x + U E[a | y + η − H x]; its mean and covariance are the posterior's. The last steps of a sampler have nothing to do with it.

use burn::tensor::Tensor;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::gaussian::{Modes, Update};

use crate::data::dataset::Dataset;
use crate::data::split::Split;
use crate::error::Result;
use crate::observe::conditioning::{Condition, Given, Knowledge, Needs};
use crate::sampler::{Observer, Sampler};
use crate::tensors::{field_batch, to_vec_f64};
use crate::units::Units;

/// Kriging with the training data's covariance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kriging {}

/// Most training samples that the covariance is taken of.
const SAMPLES: usize = 8192;

/// Most modes, and the share of the variance that they may leave out.
const MODES: usize = 1024;
const LEFT_OUT: f64 = 1e-8;

/// Mean and covariance of the training data, in normalised units.
pub struct Moments {
    mean: Vec<f64>,
    modes: Modes,
}

impl Moments {
    /// Of the training samples of `dataset`, normalised by `units`.
    pub fn of(dataset: &Dataset, units: &Units) -> Result<Self> {
        let (len, count) = (dataset.sample_len(), dataset.train_count());
        let wanted = SAMPLES.min(count);
        let indices: Vec<usize> = (0..wanted).map(|k| k * count / wanted).collect();
        let values = dataset.batch(Split::Train, &indices, units)?;
        let mut values: Vec<f64> = values.into_iter().map(f64::from).collect();
        let mut mean = vec![0.0; len];
        for sample in values.chunks_exact(len) {
            mean.iter_mut().zip(sample).for_each(|(mean, v)| *mean += v / wanted as f64);
        }
        for sample in values.chunks_exact_mut(len) {
            sample.iter_mut().zip(&mean).for_each(|(v, mean)| *v -= mean);
        }
        let modes = Modes::of_samples(&values, len, MODES, LEFT_OUT);
        Ok(Self { mean, modes })
    }
}

impl Condition for Kriging {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn needs(&self) -> Needs {
        Needs { moments: true, ..Needs::default() }
    }

    fn sample(
        &self,
        given: Given<'_>,
        _sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        _observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let Knowledge { data: Some(Moments { mean, modes }), .. } = given.knowledge else {
            unreachable!("moments were asked for")
        };
        let (observations, device) = (given.observations, latents.device());
        let (l, m, len) = (modes.len(), observations.len(), modes.rest.len());
        let centre = field_batch(mean.clone(), given.shape, &device);
        let fields = field_batch(modes.vectors.clone(), given.shape, &device);
        let left_out = observations.left_out(&modes.rest);
        let sds: Vec<f64> = observations.sds().iter().zip(left_out).map(|(sd, rest)| sd.hypot(rest)).collect();
        let mut columns = to_vec_f64(observations.linearised(&centre).product(&fields));
        for column in columns.chunks_exact_mut(m) {
            column.iter_mut().zip(&sds).for_each(|(v, sd)| *v /= sd);
        }
        let predicted = to_vec_f64(observations.predicted(&centre));
        let innovation: Vec<f64> =
            observations.values().iter().zip(predicted).zip(&sds).map(|((y, p), sd)| (y - p) / sd).collect();
        let update = Update::new(&columns, l);
        // Standard normals, whatever the denoiser's noise is.
        let kind = given.denoiser.noise();
        let white = |noise: Tensor<4>| -> Vec<f64> {
            to_vec_f64(noise).chunks_exact(len).flat_map(|sample| kind.whiten(sample)).collect()
        };
        let latents = white(latents);
        let draws: usize = m.div_ceil(len);
        let disturbances: Vec<Vec<f64>> = (0..draws).map(|_| white(noise())).collect();
        let samples = latents.par_chunks_exact(len).enumerate().flat_map_iter(|(i, latent)| {
            let prior = &latent[..l];
            let disturbed = |k: usize| innovation[k] + disturbances[k / len][i * len + k % len];
            let own = |k: usize| (0..l).map(|j| columns[j * m + k] * prior[j]).sum::<f64>();
            let right: Vec<f64> = (0..m).map(|k| disturbed(k) - own(k)).collect();
            let coefficients: Vec<f64> = update.mean(&right).iter().zip(prior).map(|(a, z)| a + z).collect();
            modes.combined(&coefficients).into_iter().zip(mean).map(|(x, mean)| x + mean).collect::<Vec<_>>()
        });
        field_batch(samples.collect(), given.shape, &device)
    }
}
