//! Training and adapting.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use serde::Deserialize;
use softly::error::Result;
use softly::job::Job;
use softly::units::Units;
use softly::{ConfigSource, Dataset, RunFolder, Snapshot, Starter, Training};

use crate::callable::Callable;
use crate::data::Data;
use crate::error::refuse;
use crate::model::Model;
use crate::watch::watch;

/// What Python asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wishes {
    preset: Option<String>,
    file: Option<PathBuf>,
    text: Option<String>,
    method: Option<String>,
    settings: Vec<String>,
    /// Seconds of training and adapting that the network is sized to, if nothing else says its size.
    budget: Option<f64>,
    out: PathBuf,
    command: String,
}

/// The frozen denoiser of a function.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Outside {
    sigma_data: f64,
    /// Mean and scale by field; measured if missing.
    units: Option<Units>,
}

impl Wishes {
    fn parse(text: &str) -> PyResult<Self> {
        serde_json::from_str(text).map_err(|e| refuse("settings", e, ""))
    }

    fn source(&self, dataset: &Dataset) -> ConfigSource {
        let Self { preset, file, text, method, settings, .. } = self;
        ConfigSource {
            preset: preset.clone(),
            file: file.clone(),
            text: text.clone(),
            method: method.clone(),
            settings: settings.clone(),
            grid: Some(dataset.grid.clone()),
        }
    }

    /// The configuration's text over the network and the schedule that suit the data and the time, if a time is given.
    fn sized(&mut self, dataset: &Dataset, job: &Job<'_>) -> Result<()> {
        let Some(seconds) = self.budget else { return Ok(()) };
        let begun = RunFolder::new(&self.out).config();
        if begun.exists() {
            // A run that goes on keeps its network and its schedule.
            self.file = Some(begun);
            return Ok(());
        }
        job.reporter.status("timing some training steps");
        let said = self.text.clone().unwrap_or_default();
        let constraint =
            ConfigSource { method: None, settings: Vec::new(), ..self.source(dataset) }.config()?.constraint;
        let starter =
            Starter { equations: Vec::new(), parameters: BTreeMap::new(), budget: Duration::from_secs_f64(seconds) };
        let start = starter.sizes(dataset, constraint.as_ref(), job.device)?;
        self.text = Some(format!("{}\n{said}", start.text));
        Ok(())
    }

    /// Runs a training in the folder.
    fn run(&self, training: Training, job: &Job<'_>) -> Result<Snapshot> {
        let folder = RunFolder::new(&self.out);
        let seed = training.blueprint.config.train.seed;
        softly::run(training, &folder, softly_cli::run_info_of(self.command.clone(), seed, "cpu"), job)?;
        Snapshot::read(&folder.snapshot())
    }
}

/// Trains a model in a run folder, or goes on there.
#[pyfunction]
#[pyo3(signature = (data, wishes, progress=None))]
pub fn train(py: Python<'_>, data: &Data, wishes: &str, progress: Option<Bound<'_, PyAny>>) -> PyResult<Model> {
    let mut wishes = Wishes::parse(wishes)?;
    let dataset = data.dataset(py)?;
    let snapshot = watch(py, None, progress.as_ref(), |job| {
        wishes.sized(&dataset, job)?;
        let config = wishes.source(&dataset).config()?;
        let training = Training::new(&config, dataset, job.device)?;
        wishes.run(training, job)
    })?;
    Model::new(py, snapshot, RunFolder::new(&wishes.out).snapshot(), None)
}

/// Trains a soft constraint on a frozen denoiser in a run folder, or goes on there. The denoiser is a model's, or a function with
/// the JSON of its sigma_data and units.
#[pyfunction]
#[pyo3(signature = (base, function, outside, data, wishes, progress=None))]
pub fn adapt(
    py: Python<'_>,
    base: Option<&Model>,
    function: Option<Py<Callable>>,
    outside: Option<&str>,
    data: &Data,
    wishes: &str,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<Model> {
    let wishes = Wishes::parse(wishes)?;
    let dataset = data.dataset(py)?;
    let (snapshot, location) = match (base, outside) {
        (Some(base), _) => (base.snapshot.clone(), base.path.clone()),
        (None, Some(outside)) => {
            let Outside { sigma_data, units } = serde_json::from_str(outside).map_err(|e| refuse("units", e, ""))?;
            let snapshot = Snapshot::external(&dataset, sigma_data, units).map_err(crate::error::raise)?;
            (snapshot, PathBuf::from("denoiser"))
        }
        (None, None) => return Err(refuse("adapt", "expected a model or a function, found neither", "")),
    };
    let function = function.or_else(|| base.and_then(|base| base.function.as_ref().map(|f| f.clone_ref(py))));
    let callable = function.as_ref().map(Py::get);
    let estimator = callable.map(Callable::estimator);
    let trained = watch(py, callable, progress.as_ref(), |job| {
        let blueprint = &snapshot.blueprint;
        let named = location.display().to_string();
        let config = wishes.source(&dataset).adapting(&blueprint.config, &named, &blueprint.data.grid)?;
        job.reporter.status("measuring the denoiser's errors");
        let training = Training::adapt_watched(&snapshot, &location, estimator.as_ref(), &config, dataset, job)?;
        wishes.run(training, job)
    })?;
    Model::new(py, trained, RunFolder::new(&wishes.out).snapshot(), function)
}
