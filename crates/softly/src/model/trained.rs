//! Trained models: loading them, changing their settings, drawing samples from them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use softly_pde::waves::interpolate;

use crate::data::dataset::Dataset;
use crate::denoiser::external::Estimator;
use crate::direction::config::{Scale, ScdConfig};
use crate::error::{Error, Result};
use crate::job::{Job, NOTHING_WRITTEN};
use crate::memory;
use crate::model::Model;
use crate::model::blueprint::Blueprint;
use crate::model::held_out_nodes::HeldOutNodes;
use crate::model::run_folder::RunFolder;
use crate::model::snapshot::Snapshot;
use crate::ranks::Ranks;
use crate::sampler::{Observer, Sampler, Target, Unobserved};
use crate::tensors::{field_batch, to_vec_f64};

/// A number of a sample: in its batch, and once more when all batches are joined, `f64`.
const BYTES_PER_NUMBER: f64 = 16.0;

/// One in so many of the activations that a training step keeps is held at once by a denoiser call: a low guess, so
/// that only what cannot fit is refused.
const LAYERS_AT_ONCE: f64 = 8.0;

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

/// A snapshot file itself, or the snapshot of a run folder.
pub fn snapshot_file(path: &Path) -> Result<PathBuf> {
    let file = if path.is_dir() { RunFolder::new(path).snapshot() } else { path.to_path_buf() };
    if path.is_dir() && !file.exists() {
        return Err(Error::input(path.display(), "this run has no snapshot yet")
            .hint("finish the training: run the same command again"));
    }
    Ok(file)
}

impl Trained {
    /// The data that the model was trained on, which must not have been replaced since.
    pub fn own_data(&self) -> Result<Dataset> {
        let data = Dataset::from_config(&self.blueprint.config.data)?;
        let before = &self.blueprint.data.hash;
        match &self.blueprint.config.data.path {
            // Generated data are made anew; a folder may hold other data by now.
            Some(path) if !before.is_empty() && *before != data.hash() => {
                let problem = format!("the run was trained on other data than this folder holds now ({before})");
                Err(Error::input(path.display(), problem)
                    .hint(format!("to measure on these data say so: --data {}", path.display())))
            }
            _ => Ok(data),
        }
    }

    /// Loads a snapshot file, or the snapshot of a run folder.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        Self::load_with(path, &[], device)
    }

    /// The same weights under changed settings (`a.b=c`), for example a guidance scale or the constraint of guidance.
    pub fn load_with(path: &Path, settings: &[String], device: &Device) -> Result<Self> {
        Self::load_on(path, settings, None, device)
    }

    /// The same, and the soft constraint that it has or, if it was trained without one, that `settings` ask for (by default one along
    /// the unit gradient): not put on the model then, but there to be judged.
    pub fn load_to_judge(path: &Path, settings: &[String], device: &Device) -> Result<(Self, ScdConfig)> {
        let file = snapshot_file(path)?;
        Self::to_judge(Snapshot::read(&file)?, file, settings, None, device)
    }

    /// The same of a snapshot, whose denoiser may be outside of softly; `file` names it in errors.
    pub fn to_judge(
        mut snapshot: Snapshot,
        file: PathBuf,
        settings: &[String],
        outside: Option<&Arc<dyn Estimator>>,
        device: &Device,
    ) -> Result<(Self, ScdConfig)> {
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
        Ok((Self::of(snapshot, file, outside, device)?, scd))
    }

    /// The same weights on a grid of other `size`, rows and columns, over the same domain; the trained grid if there is
    /// none. Networks that belong to their grid are refused.
    pub fn load_on(path: &Path, settings: &[String], size: Option<[usize; 2]>, device: &Device) -> Result<Self> {
        let file = snapshot_file(path)?;
        let mut snapshot = Snapshot::read(&file)?;
        if !settings.is_empty() {
            snapshot.change(settings, &file)?;
        }
        if let Some(size) = size {
            snapshot.resize(size)?;
        }
        Self::of(snapshot, file, None, device)
    }

    /// The model of a snapshot, whose denoiser may be outside of softly; `path` names it in errors.
    pub fn of(
        snapshot: Snapshot,
        path: PathBuf,
        outside: Option<&Arc<dyn Estimator>>,
        device: &Device,
    ) -> Result<Self> {
        let model = snapshot.model_on(outside, device, &path)?;
        Ok(Self { path, blueprint: snapshot.blueprint, step: snapshot.step, model })
    }

    /// Draws the samples with the given indices in physical units, `[N, C, H, W]` row-major.
    ///
    /// Batches run in parallel; sample i depends on (seed, i) alone. Progress is counted in samples × steps. `watch` makes
    /// an observer of every batch from the number of its samples.
    pub fn generate<'w>(
        &self,
        draw: &Draw<'_>,
        job: &Job<'_>,
        watch: &(dyn Fn(usize) -> Box<dyn Observer + 'w> + Sync),
    ) -> Result<Vec<f64>> {
        let batch = draw.batch.clamp(1, draw.indices.len().max(1));
        self.check_memory(draw.indices.len(), batch)?;
        let sampler = self.fitted_sampler(job)?;
        let observations = draw.observed.map(|data| self.observations(data)).transpose()?.flatten();
        let batches: Vec<Vec<f64>> = draw
            .indices
            .par_chunks(batch)
            .map(|indices| {
                if job.stopped() {
                    return Vec::new();
                }
                let mut observer = Counted { observer: watch(indices.len()), job, samples: indices.len() as u64 };
                let given = observations.as_ref().map(|all| all.of(indices, self.model.shape, job.device));
                let target = Target { given: given.as_ref(), ..self.model.target() };
                let samples = sampler.sample(target, draw.seed, indices, job.device, &mut observer);
                to_vec_f64(self.blueprint.data.units.physical(samples))
            })
            .collect();
        job.go_on(NOTHING_WRITTEN)?;
        let samples: Vec<f64> = batches.concat();
        if let Some(bad) = samples.iter().position(|v| !v.is_finite()) {
            let sample = draw.indices[bad / self.model.shape.iter().product::<usize>()];
            let hint = "lower the guidance scale, or train longer".into();
            return Err(Error::NotFinite { place: self.path.display().to_string(), sample, value: samples[bad], hint });
        }
        Ok(samples)
    }

    /// Refuses a solver that cannot begin with samples of another grid.
    pub fn check_restart(&self) -> Result<()> {
        self.blueprint.config.sampler.refuse_fitted("from noise alone, not from samples of another grid")
    }

    /// Samples of `coarse`, the same model on another grid, drawn again here: interpolated by waves, mixed with noise
    /// of level `sigma` and denoised; physical units, `[N, C, H, W]` row-major. Progress is counted in samples × steps
    /// of both.
    pub fn refine(&self, coarse: &Self, sigma: f64, draw: &Draw<'_>, job: &Job<'_>) -> Result<Vec<f64>> {
        self.check_restart()?;
        let sampler = Sampler { sigma_max: sigma, ..self.blueprint.config.sampler.clone() };
        sampler.check()?;
        let first = coarse.samples(&Draw { observed: None, ..*draw }, job)?;
        let (from, to, units) = (&coarse.blueprint.data.grid, &self.blueprint.data.grid, &self.blueprint.data.units);
        let size = first.len() / draw.indices.len();
        let batch = draw.batch.clamp(1, draw.indices.len().max(1));
        let batches: Vec<Vec<f64>> = (draw.indices.par_chunks(batch), first.par_chunks(batch * size))
            .into_par_iter()
            .map(|(indices, samples)| {
                let mut observer = Counted { observer: Box::new(Unobserved), job, samples: indices.len() as u64 };
                let finer = samples.chunks_exact(from.len()).flat_map(|field| interpolate(from, to, field)).collect();
                let finer = units.normalised(field_batch(finer, self.model.shape, job.device));
                let samples = sampler.sample_again(finer, self.model.target(), draw.seed, indices, &mut observer);
                to_vec_f64(units.physical(samples))
            })
            .collect();
        job.go_on(NOTHING_WRITTEN)?;
        Ok(batches.concat())
    }

    /// The observations of `data` that the sampler's guidance asks for, if it does.
    fn observations(&self, data: &Dataset) -> Result<Option<HeldOutNodes>> {
        let guidance = self.blueprint.config.sampler.guidance.as_ref();
        let observing = guidance.and_then(|guidance| guidance.method().observes());
        observing.map(|observing| HeldOutNodes::new(observing, data, &self.blueprint.data.units)).transpose()
    }

    /// Whether the sampler's guidance compares samples with held-out data.
    pub fn observes(&self) -> bool {
        self.blueprint.config.sampler.guidance.as_ref().is_some_and(|guidance| guidance.method().observes().is_some())
    }

    /// Refuses samples in batches that the machine's memory does not hold.
    pub fn check_memory(&self, samples: usize, batch: usize) -> Result<()> {
        let numbers = self.model.shape.iter().product::<usize>() as f64;
        let backbone = self.blueprint.config.denoiser.backbone.get();
        let at_once = backbone.footprint(self.model.shape).activations / LAYERS_AT_ONCE;
        let batch = batch.clamp(1, samples.max(1));
        let bytes = BYTES_PER_NUMBER * samples as f64 * numbers + size_of::<f32>() as f64 * batch as f64 * at_once;
        memory::check("--count and --batch", bytes)
    }

    /// Refuses ranks that have loaded another model than rank 0, or the same with other settings.
    pub fn check_ranks(&self, ranks: &dyn Ranks) -> Result<()> {
        if ranks.count() == 1 {
            return Ok(());
        }
        let bytes = std::fs::read(&self.path).map_err(Error::io("read", &self.path))?;
        ranks.same("snapshot", &blake3::hash(&bytes).to_hex())?;
        ranks.same("configuration", &self.blueprint.config.to_toml())
    }

    /// [`Trained::generate`] without observers. Every rank draws some of them, and all get all.
    pub fn samples(&self, draw: &Draw<'_>, job: &Job<'_>) -> Result<Vec<f64>> {
        let part = Draw { indices: &draw.indices[job.ranks.part(draw.indices.len())], ..*draw };
        let own = self.generate(&part, job, &|_| Box::new(Unobserved))?;
        job.ranks.join(&own)
    }
}

/// Which samples are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// Seed of the samples.
    pub seed: u64,
    /// Their indices.
    pub indices: &'a [u64],
    /// Samples that go through the network at a time.
    pub batch: usize,
    /// The data whose held-out samples guidance observes, if it does.
    pub observed: Option<&'a Dataset>,
}

/// An observer that also counts samples × steps.
struct Counted<'a, 'w> {
    observer: Box<dyn Observer + 'w>,
    job: &'a Job<'a>,
    samples: u64,
}

impl Observer for Counted<'_, '_> {
    fn step(&mut self, step: usize, steps: usize, sigma: f64, denoised: &Tensor<4>, state: &Tensor<4>) {
        self.job.reporter.advance(self.samples);
        self.observer.step(step, steps, sigma, denoised, state);
    }

    fn stopped(&self) -> bool {
        self.job.stopped()
    }
}
