//! Snapshots: weights in files that describe themselves, so that a lone file can be sampled from.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;

use crate::auto::NumberOrAuto;
use crate::checks::name;
use crate::config::Config;
use crate::config::layers::Layers;
use crate::data::dataset::Dataset;
use crate::denoiser::external::Estimator;
use crate::direction::DirectionKind;
use crate::error::{Error, Result};
use crate::model::blueprint::{Blueprint, DataSpec};
use crate::model::tensor_file::{NamedTensor, TensorFile};
use crate::model::{Model, edm2_file};
use crate::nn::backbone::BackboneConfig;
use crate::nn::parameter::Parameters;
use crate::units::Units;

/// The number of a network's weights is estimated within this factor.
const ESTIMATE: f64 = 8.0;

/// Weights that are not worth a check: 400 kB.
const SMALL: f64 = 1e5;

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Whether no `auto` is left.
fn is_resolved(config: &Config) -> bool {
    let scd = config.denoiser.scd.as_ref();
    config.data.sigma_data != NumberOrAuto::AUTO && scd.is_none_or(|scd| scd.lambda != NumberOrAuto::AUTO)
}

/// Weights to sample from, with all that is needed to use them.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// How to build the model.
    pub blueprint: Blueprint,
    /// Training steps behind the weights.
    pub step: u64,
    /// Every parameter.
    pub weights: Vec<NamedTensor>,
}

impl Snapshot {
    /// Writes the snapshot. Paths in its configuration lead from its folder, as those of a configuration file do.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.file_for(path).write(path)
    }

    /// The same with weights rounded to f16: half as many bytes, to share.
    pub fn write_half(&self, path: &Path) -> Result<()> {
        self.file_for(path).write_half(path)
    }

    /// The contents of a file at `path`.
    fn file_for(&self, path: &Path) -> TensorFile {
        let config = self.blueprint.config.clone().for_folder(folder_of(path));
        let metadata = HashMap::from([
            ("version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
            ("config".to_string(), config.to_toml()),
            ("data".to_string(), self.blueprint.data.to_json()),
            ("step".to_string(), self.step.to_string()),
        ]);
        TensorFile { metadata, tensors: self.weights.clone() }
    }

    /// A denoiser outside of softly, for data like `dataset`: a snapshot without weights. `units` are measured if they are not given.
    pub fn external(dataset: &Dataset, sigma_data: f64, units: Option<Units>) -> Result<Self> {
        dataset.check()?;
        let settings = [format!("data.sigma_data={sigma_data:?}"), "denoiser.backbone={kind=\"external\"}".to_string()];
        let layers = Layers::new().over_field_defaults(&dataset.grid)?.with_settings(&settings)?;
        let mut blueprint = Blueprint::new(&layers.finish("denoiser")?, dataset)?;
        blueprint.config.truth = None;
        if let Some(units) = units {
            let n = dataset.fields.len();
            let finite = |numbers: &[f64]| numbers.len() == n && numbers.iter().all(|number| number.is_finite());
            if !finite(&units.mean) || !finite(&units.scale) || units.scale.iter().any(|&scale| scale <= 0.0) {
                let problem = format!("expected a finite mean and a scale above 0 for each of {n} fields");
                return Err(Error::input("units", problem));
            }
            blueprint.data.units = units;
        }
        Ok(Self { blueprint, step: 0, weights: Vec::new() })
    }

    /// Whether the denoiser is outside of softly.
    pub fn is_external(&self) -> bool {
        matches!(self.blueprint.config.denoiser.backbone, BackboneConfig::External(_))
    }

    /// Reads a snapshot, or the weights of an EDM2 network.
    pub fn read(path: &Path) -> Result<Self> {
        let file = TensorFile::read_any(path)?;
        if edm2_file::is_edm2(&file) {
            return edm2_file::snapshot(file, path);
        }
        let file = file.ours(path)?;
        let location = path.display().to_string();
        let config = Layers::new().text(file.text("config", path)?, &location)?.finish(&location)?;
        let config = config.of_folder(folder_of(path));
        let data: DataSpec = serde_json::from_str(file.text("data", path)?).map_err(|e| {
            Error::input(&location, format!("the header's data description is broken: {e}"))
                .hint("the file is damaged, or another version wrote it: train again")
        })?;
        for field in &data.fields {
            name(&location, field)?;
        }
        let step = file.text("step", path)?.parse().unwrap_or(0);
        // What a written snapshot always has, and what building the model relies on.
        let n = data.fields.len();
        if !is_resolved(&config)
            || n == 0
            || data.grid.is_empty()
            || data.units.mean.len() != n
            || data.units.scale.len() != n
        {
            let problem = "expected the header of a trained model, found one with an `auto` left or units that do not fit its fields";
            return Err(Error::input(&location, problem));
        }
        let snapshot = Self { blueprint: Blueprint { config, data }, step, weights: file.tensors };
        snapshot.check_size(path)?;
        Ok(snapshot)
    }

    /// Refuses a header that describes a far larger network than the file has weights for, before it is built.
    fn check_size(&self, location: &Path) -> Result<()> {
        let held: f64 = self.weights.iter().map(|(_, _, values)| values.len() as f64).sum();
        let Blueprint { config, data } = &self.blueprint;
        let described = config.denoiser.backbone.get().footprint(data.shape()).weights;
        if described <= ESTIMATE * held + SMALL {
            return Ok(());
        }
        let problem = format!("its header describes a network of about {described:.0} weights, the file has {held}");
        Err(Error::input(location.display(), problem).hint("the file is damaged or foreign: use another snapshot"))
    }

    /// Changes settings (`a.b=c`) of the configuration; `location` names the snapshot in errors. Constant weights of the directions replace a
    /// learned γ, and directions that are no longer named are forgotten.
    pub fn change(&mut self, settings: &[String], location: &Path) -> Result<()> {
        let dial = "denoiser.scd.compliance";
        if self.blueprint.config.denoiser.scd.is_none() && settings.iter().any(|s| s.trim_start().starts_with(dial)) {
            let problem = format!("{} has no soft constraint that could be turned up or down", location.display());
            return Err(Error::input(dial, problem).hint("`softly adapt` puts one on a trained denoiser"));
        }
        let location = location.display().to_string();
        let mut layers = Layers::new().text(&self.blueprint.config.to_toml(), &location)?;
        for setting in settings {
            layers = layers.set(setting)?;
        }
        let config = layers.finish(&location)?;
        if !is_resolved(&config) {
            let problem =
                "`auto` is found out in training: expected a number for data.sigma_data and denoiser.scd.lambda";
            return Err(Error::input("--set", problem));
        }
        self.refuse_another_law(&config, &location)?;
        if config.noise != self.blueprint.config.noise {
            let problem = format!("{location} was trained to remove one kind of noise, and no other");
            return Err(Error::input("noise", problem).hint("train with this noise"));
        }
        if let Some(scd) = &config.denoiser.scd {
            let left_out = DirectionKind::ALL.iter().filter(|kind| !scd.directions.contains(kind));
            let forgotten = left_out.map(|kind| kind.name()).chain(scd.constant.as_ref().map(|_| "gamma"));
            let prefixes: Vec<String> = forgotten.map(|name| format!("{name}.")).collect();
            self.weights.retain(|(name, _, _)| !prefixes.iter().any(|prefix| name.starts_with(prefix)));
        }
        self.blueprint.config = config;
        Ok(())
    }

    /// Puts the model on a grid of other `size`, rows and columns, over the same domain.
    pub fn resize(&mut self, size: [usize; 2]) -> Result<()> {
        let Blueprint { config, data } = &mut self.blueprint;
        let refuse = |problem: &str, hint: &str| Err(Error::input("--grid", problem).hint(hint));
        if data.grid.axes.len() != 2 {
            return refuse("this is a model of points: it has no grid", "leave --grid out");
        }
        if !config.denoiser.backbone.get().any_resolution() {
            let hint = "train a network of functions: --set denoiser.backbone={ kind = \"operator\", … }";
            return refuse("the model's network knows the grid that it was trained on, and no other", hint);
        }
        if config.denoiser.scd.is_some() {
            let hint = "sample from the denoiser below it, or train on this grid";
            return refuse("the soft constraint was measured on the grid that it was trained on", hint);
        }
        for (axis, nodes) in data.grid.axes.iter_mut().zip(size) {
            axis.nodes = nodes;
        }
        data.grid.check().map_err(|problem| Error::input("--grid", problem))
    }

    /// Refuses another constraint than the one that γ, learned parameters and measured covariances belong to.
    fn refuse_another_law(&self, config: &Config, location: &str) -> Result<()> {
        let before = &self.blueprint.config;
        if before.denoiser.scd.is_none() || config.denoiser.scd.is_none() || before.constraint == config.constraint {
            return Ok(());
        }
        let problem = format!("{location} was trained with its own constraint: weights and measurements belong to it");
        Err(Error::input("constraint", problem).hint(
            "put another one on the denoiser below it with `softly adapt`; metrics are taken under `[truth]`, which may be set",
        ))
    }

    /// Gives the base denoiser of `model` these weights and freezes it; `location` names the snapshot in errors.
    ///
    /// If the snapshot has a soft constraint itself, only the denoiser below it is taken.
    pub fn freeze_into(&self, model: &mut Model, location: &Path) -> Result<()> {
        let mut file = TensorFile { metadata: HashMap::new(), tensors: self.weights.clone() };
        let mut outcome = Ok(());
        model.visit_base(&mut |name, parameter| {
            if outcome.is_ok() {
                outcome = file.take(name, &parameter.shape(), location).map(|values| parameter.set(values));
            }
            parameter.freeze();
        });
        outcome
    }

    /// Builds the model on `device` and loads the weights; `location` names the snapshot in errors.
    pub fn model(&self, device: &Device, location: &Path) -> Result<Model> {
        self.model_on(None, device, location)
    }

    /// The same with D₀ outside of softly, if there is one.
    pub fn model_on(&self, outside: Option<&Arc<dyn Estimator>>, device: &Device, location: &Path) -> Result<Model> {
        let mut model = self.blueprint.build_on(outside, device)?;
        let mut file = TensorFile { metadata: HashMap::new(), tensors: self.weights.clone() };
        let mut outcome = Ok(());
        model.visit("", &mut |name, parameter| {
            if outcome.is_ok() {
                outcome = file.take(name, &parameter.shape(), location).map(|values| parameter.set(values));
            }
        });
        outcome?;
        match file.tensors.first() {
            Some((name, _, _)) => {
                Err(Error::input(location.display(), format!("tensor `{name}` is unknown to the model")))
            }
            None => Ok(model),
        }
    }
}
