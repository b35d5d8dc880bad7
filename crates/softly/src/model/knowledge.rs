//! What conditioning knows of a trained model, measured once and kept beside it: `observe/errors-HASH.safetensors` of a run.
//!
//! The hash is of the weights, the data and the equation: another of them is another file, and a second command finds all measured.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use softly_pde::gaussian::Modes;

use crate::constraint::basis::Basis;
use crate::data::dataset::Dataset;
use crate::error::{Error, Result};
use crate::files::make_folder;
use crate::job::Job;
use crate::model::tensor_file::TensorFile;
use crate::model::trained::Trained;
use crate::nn::backbone::BackboneConfig;
use crate::observe::conditioning::{Knowledge, Needs};
use crate::observe::errors::{Errors, LevelErrors, Misfit};
use crate::observe::kriging::Moments;

/// Version of the files and of how they are measured.
const FORMAT: u32 = 2;

impl Trained {
    /// All that `needs` asks for; the errors of the denoiser are read from a file beside it, or measured on `dataset` and written.
    pub fn knowledge(&self, needs: Needs, dataset: &Dataset, job: &Job<'_>) -> Result<Knowledge> {
        // Before minutes are spent on measuring.
        self.check_conditioning()?;
        let errors = needs.errors.then(|| self.errors(dataset, job)).transpose()?;
        let data = needs.moments.then(|| Moments::of(dataset, &self.blueprint.data.units)).transpose()?;
        Ok(Knowledge { errors, data })
    }

    fn errors(&self, dataset: &Dataset, job: &Job<'_>) -> Result<Errors> {
        if matches!(self.blueprint.config.denoiser.backbone, BackboneConfig::External(_)) {
            // A function outside may be another one tomorrow.
            return self.measure_errors(dataset, job);
        }
        let file = self.errors_file(dataset)?;
        let shape = self.model.shape;
        if let Some(levels) = file.exists().then(|| read(&file, shape.iter().product())).and_then(Result::ok) {
            return Ok(self.errors_of(levels));
        }
        let errors = self.measure_errors(dataset, job)?;
        if let Err(error) = write(&file, &errors) {
            job.reporter.note(&format!("measured errors are not kept: {error}"));
        }
        // As a second command finds them: in single precision.
        Ok(read(&file, shape.iter().product()).map_or(errors, |levels| self.errors_of(levels)))
    }

    fn errors_of(&self, levels: Vec<LevelErrors>) -> Errors {
        let data = &self.blueprint.data;
        Errors::new(levels, Basis::of_grid(data.fields.len(), &data.grid), self.model.sigma_data)
    }

    fn measure_errors(&self, dataset: &Dataset, job: &Job<'_>) -> Result<Errors> {
        job.reporter.note("measuring the denoiser's errors on training data, once");
        job.reporter.begin(Errors::units_of_work(dataset), 0);
        let (units, constraint) = (&self.blueprint.data.units, self.model.constraint.as_deref());
        Errors::measure(&self.model, constraint, dataset, units, self.model.sigma_data, job)
    }

    /// Where errors are kept.
    fn errors_file(&self, dataset: &Dataset) -> Result<PathBuf> {
        self.measured_file("observe", "errors", FORMAT, &dataset.hash())
    }

    /// A file for what was measured of this model and of what `circumstances` say: `FOLDER/NAME-HASH.safetensors` in the run's folder,
    /// or beside a lone snapshot.
    pub(crate) fn measured_file(&self, folder: &str, name: &str, format: u32, circumstances: &str) -> Result<PathBuf> {
        let bytes = std::fs::read(&self.path).map_err(Error::io("read", &self.path))?;
        let config = &self.blueprint.config;
        let equation = serde_json::to_string(&(&config.constraint, &config.denoiser)).expect("settings are valid JSON");
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&format.to_le_bytes())
            .update(&bytes)
            .update(equation.as_bytes())
            .update(circumstances.as_bytes());
        let name = format!("{name}-{}.safetensors", &hasher.finalize().to_hex()[..16]);
        let parent = self.path.parent().unwrap_or(Path::new("."));
        let of_run = parent.file_name().is_some_and(|name| name == "snapshots").then(|| parent.parent()).flatten();
        Ok(of_run.unwrap_or(parent).join(folder).join(name))
    }
}

fn write(path: &Path, errors: &Errors) -> Result<()> {
    make_folder(path.parent().unwrap_or(Path::new(".")))?;
    let mut tensors = Vec::new();
    let mut add = |name: String, rows: usize, values: &[f64]| {
        let shape = vec![rows, values.len() / rows.max(1)];
        tensors.push((name, shape, values.iter().map(|&v| v as f32).collect()));
    };
    for (k, level) in errors.levels().iter().enumerate() {
        add(format!("modes-{k}"), level.modes.len(), &level.modes.vectors);
        add(format!("rest-{k}"), 1, &level.modes.rest);
        if let Some(misfit) = &level.misfit {
            add(format!("misfit-mean-{k}"), 1, &misfit.mean);
            add(format!("misfit-variance-{k}"), 1, &misfit.variance);
            add(format!("misfit-rest-{k}"), 1, &misfit.rest);
            add(format!("misfit-inflation-{k}"), 1, &[misfit.inflation]);
        }
    }
    let metadata = HashMap::from([("levels".to_string(), errors.levels().len().to_string())]);
    TensorFile { metadata, tensors }.write(path)
}

fn read(path: &Path, dimensions: usize) -> Result<Vec<LevelErrors>> {
    let file = TensorFile::read(path)?;
    let levels: usize = file.text("levels", path)?.parse().unwrap_or(0);
    let numbers = |name: String| -> Option<Vec<f64>> {
        let (_, _, values) = file.tensors.iter().find(|(n, _, _)| *n == name)?;
        Some(values.iter().map(|&v| f64::from(v)).collect())
    };
    let level = |k: usize| {
        let (vectors, rest) = (numbers(format!("modes-{k}"))?, numbers(format!("rest-{k}"))?);
        let values = vectors.chunks_exact(dimensions).map(|mode| mode.iter().map(|v| v * v).sum()).collect();
        let misfit = numbers(format!("misfit-mean-{k}")).and_then(|mean| {
            let inflation = *numbers(format!("misfit-inflation-{k}"))?.first()?;
            let [variance, rest] = ["variance", "rest"].map(|name| numbers(format!("misfit-{name}-{k}")));
            Some(Misfit { mean, variance: variance?, rest: rest?, inflation })
        });
        (rest.len() == dimensions).then_some(LevelErrors { modes: Modes { vectors, values, rest }, misfit })
    };
    let levels: Option<Vec<LevelErrors>> = (0..levels).map(level).collect();
    levels.filter(|levels| levels.len() > 1).ok_or_else(|| Error::input(path.display(), "is damaged"))
}
