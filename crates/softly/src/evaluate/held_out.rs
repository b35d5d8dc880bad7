//! Data that a model was not trained on, as its likelihood and its loss are measured on.

use std::ops::Range;

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::job::{Job, NOTHING_WRITTEN};
use crate::noise::Noise;
use crate::random::{Purpose, Stream};
use crate::tensors::field_batch;
use crate::units::Units;

/// Held-out samples in the network's normalised units.
#[derive(Debug, Clone, Copy)]
pub struct HeldOut<'a> {
    /// `[N, C, H, W]` row-major.
    pub values: &'a [f32],
    /// Shape of a sample, `[C, H, W]`.
    pub shape: [usize; 3],
    /// What a normalised 1 is in physical units.
    pub units: &'a Units,
}

/// Noise levels at which held-out samples are looked at.
#[derive(Debug, Clone)]
pub(crate) struct Levels<'a> {
    /// The levels.
    pub sigmas: &'a [f64],
    /// Samples that are looked at together.
    pub batch: usize,
    /// Seed of the noise.
    pub seed: u64,
    /// The samples.
    pub samples: Range<usize>,
}

impl HeldOut<'_> {
    /// Numbers per sample: d.
    pub fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// Samples.
    pub fn count(&self) -> usize {
        self.values.len() / self.size().max(1)
    }

    /// Sample `index`, `[C, H, W]` row-major.
    pub fn sample(&self, index: usize) -> Vec<f64> {
        let size = self.size();
        self.values[index * size..(index + 1) * size].iter().map(|&v| f64::from(v)).collect()
    }

    /// Bits per dimension of a density in physical units, less those in normalised units: the mean of log2 scale.
    ///
    /// p_physical(x) = p_normalised / Π scale, one factor per channel and node.
    pub fn physical_shift(&self) -> f64 {
        let scale = &self.units.scale;
        scale.iter().map(|s| s.abs().log2()).sum::<f64>() / scale.len() as f64
    }

    /// `measure(clean, noisy, σ)` of every batch of samples at every one of `levels`, by batch and level; `clean` and
    /// `noisy` `[N, C, H, W]`.
    ///
    /// `kind` is the noise that the measured denoiser removes. The noise of sample i is fixed by (seed, i, position of
    /// the level) and thus the same for every model and every measure. Batches run in parallel; progress is counted in
    /// samples × levels.
    pub(crate) fn at_levels<T: Send>(
        &self,
        levels: &Levels<'_>,
        kind: &Noise,
        job: &Job<'_>,
        measure: impl Fn(&[f64], Tensor<4>, f64) -> T + Sync,
    ) -> Result<Vec<Vec<T>>> {
        self.check()?;
        let indices: Vec<usize> = levels.samples.clone().collect();
        let of_batch = |chunk: &[usize]| {
            let clean: Vec<f64> = chunk.iter().flat_map(|&i| self.sample(i)).collect();
            let mut streams: Vec<Stream> =
                chunk.iter().map(|&i| Stream::new(levels.seed, Purpose::ValidNoise, i as u64)).collect();
            let at_level = |&sigma: &f64| {
                if job.stopped() {
                    return None;
                }
                let noise = streams.iter_mut().flat_map(|stream| kind.draw(stream, self.size()));
                let noisy = clean.iter().zip(noise).map(|(x, n)| x + sigma * n).collect();
                let measured = measure(&clean, field_batch(noisy, self.shape, job.device), sigma);
                job.reporter.advance(chunk.len() as u64);
                Some(measured)
            };
            levels.sigmas.iter().map(at_level).collect()
        };
        let measured: Option<Vec<Vec<T>>> = indices.par_chunks(levels.batch.max(1)).map(of_batch).collect();
        measured.ok_or_else(|| Error::Interrupted { hint: NOTHING_WRITTEN.into() })
    }

    /// Refuses no data, half samples, numbers that are not finite, and units of other channels.
    pub fn check(&self) -> Result<()> {
        let [c, h, w] = self.shape;
        let place = "held-out data";
        if self.values.is_empty() || self.size() == 0 || !self.values.len().is_multiple_of(self.size()) {
            let problem =
                format!("expected one or more samples of {c}×{h}×{w} numbers, found {} numbers", self.values.len());
            return Err(Error::input(place, problem));
        }
        if self.units.scale.len() != c {
            let problem = format!("expected units of {c} channels, found units of {}", self.units.scale.len());
            return Err(Error::input(place, problem));
        }
        if let Some(bad) = self.values.iter().position(|v| !v.is_finite()) {
            let problem =
                format!("expected finite numbers, found {} in sample {}", self.values[bad], bad / self.size());
            return Err(Error::input(place, problem).hint("drop or repair that sample"));
        }
        Ok(())
    }
}
