//! Drawing many samples from a trained model.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::model::{Blueprint, Model};
use crate::parameter::to_vec_f64;
use crate::sampler::{Observer, Sampler};
use crate::scd::{Scale, ScdConfig};
use crate::snapshot::Snapshot;
use crate::train::RunFolder;

/// A trained model ready to sample from.
pub struct Trained {
    /// Where the weights came from.
    pub path: PathBuf,
    /// The run's configuration and data description.
    pub blueprint: Blueprint,
    /// Training steps behind the weights.
    pub step: u64,
    /// The model with averaged weights.
    pub model: Model,
}

/// A snapshot file itself, or that of a run folder.
pub fn snapshot_file(path: &Path) -> Result<PathBuf> {
    let file = if path.is_dir() { RunFolder::new(path).snapshot() } else { path.to_path_buf() };
    if path.is_dir() && !file.exists() {
        return Err(Error::input(path.display(), "this run has no snapshot yet")
            .hint("finish the training: run the same command again"));
    }
    Ok(file)
}

impl Trained {
    /// Loads a snapshot file, or the snapshot of a run folder.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        Self::load_with(path, &[], device)
    }

    /// The same weights under changed settings (`a.b=c`), for example a guidance scale or another constraint.
    pub fn load_with(path: &Path, settings: &[String], device: &Device) -> Result<Self> {
        let file = snapshot_file(path)?;
        let mut snapshot = Snapshot::read(&file)?;
        if !settings.is_empty() {
            snapshot.change(settings, &file)?;
        }
        Self::of(snapshot, file, device)
    }

    /// The same, and the soft constraint that it has or, if it was trained without one, that `settings` ask for (by default one along
    /// the unit gradient): not put on the model then, but there to be judged.
    pub fn load_to_judge(path: &Path, settings: &[String], device: &Device) -> Result<(Self, ScdConfig)> {
        let file = snapshot_file(path)?;
        let mut snapshot = Snapshot::read(&file)?;
        let config = &snapshot.blueprint.config;
        let trained = config.denoiser.scd.is_some();
        let unit = (!trained && config.constraint.is_some()).then(|| "denoiser.scd.scale=unit".to_string());
        snapshot.change(&unit.into_iter().chain(settings.iter().cloned()).collect::<Vec<_>>(), &file)?;
        let config = &mut snapshot.blueprint.config;
        if config.constraint.is_none() {
            return Err(Error::input(file.display(), "the run has no [constraint] to judge")
                .hint("give one: --set constraint={fields=[…], residual='…'}"));
        }
        let scd = if trained { config.denoiser.scd.clone() } else { config.denoiser.scd.take() };
        let scd = scd.unwrap_or_else(|| ScdConfig { scale: Scale::Unit, ..ScdConfig::default() });
        Ok((Self::of(snapshot, file, device)?, scd))
    }

    fn of(snapshot: Snapshot, path: PathBuf, device: &Device) -> Result<Self> {
        let model = snapshot.model(device, &path)?;
        Ok(Self { path, blueprint: snapshot.blueprint, step: snapshot.step, model })
    }

    /// Draws the samples with the given indices in physical units, `[N, C, H, W]` row-major.
    ///
    /// Batches run in parallel; sample i depends on (seed, i) alone. `advance` is called with samples × steps done.
    #[allow(clippy::too_many_arguments)]
    pub fn generate(
        &self,
        sampler: &Sampler,
        seed: u64,
        indices: &[u64],
        batch: usize,
        device: &Device,
        stop: &AtomicBool,
        advance: &(dyn Fn(usize) + Sync),
    ) -> Result<Vec<f64>> {
        let watch = |samples| -> Box<dyn Observer + '_> { Box::new(Counter { advance, samples }) };
        self.generate_watched(sampler, seed, indices, batch, device, stop, &watch)
    }

    /// [`Trained::generate`] with an observer of every batch, made by `watch` from the number of its samples.
    #[allow(clippy::too_many_arguments)]
    pub fn generate_watched<'w>(
        &self,
        sampler: &Sampler,
        seed: u64,
        indices: &[u64],
        batch: usize,
        device: &Device,
        stop: &AtomicBool,
        watch: &(dyn Fn(usize) -> Box<dyn Observer + 'w> + Sync),
    ) -> Result<Vec<f64>> {
        let stopped = AtomicUsize::new(0);
        let batches: Vec<Vec<f64>> = indices
            .par_chunks(batch.max(1))
            .map(|indices| {
                if stop.load(Ordering::Relaxed) {
                    stopped.fetch_add(1, Ordering::Relaxed);
                    return Vec::new();
                }
                let mut observer = watch(indices.len());
                let samples = sampler.sample(
                    &*self.model.denoiser,
                    self.model.constraint.as_deref(),
                    self.model.shape,
                    seed,
                    indices,
                    device,
                    &mut *observer,
                );
                to_vec_f64(self.blueprint.data.units.physical(samples))
            })
            .collect();
        if stopped.into_inner() > 0 {
            return Err(Error::Interrupted { hint: "nothing was written; run the same command again".into() });
        }
        let samples: Vec<f64> = batches.concat();
        if let Some(bad) = samples.iter().position(|v| !v.is_finite()) {
            let sample = indices[bad / self.model.shape.iter().product::<usize>()];
            return Err(Error::input(self.path.display(), format!("sample {sample} came out as {}", samples[bad]))
                .hint("lower the guidance scale, or train longer"));
        }
        Ok(samples)
    }
}

struct Counter<'a> {
    advance: &'a (dyn Fn(usize) + Sync),
    samples: usize,
}

impl Observer for Counter<'_> {
    fn step(&mut self, _: usize, _: usize, _: f64, _: &Tensor<4>, _: &Tensor<4>) {
        (self.advance)(self.samples);
    }
}
