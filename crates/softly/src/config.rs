//! Configuration: presets, files and `--set a.b=c`, merged in that order and checked as a whole.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::compliance::Compliance;
use crate::constraint::ConstraintConfig;
use crate::direction::DirectionKind;
use crate::error::{Error, Result, nearest};
use crate::files::read_text;
use crate::generators::Generator;
use crate::noise::NoiseDist;
use crate::objective::{Objective, Weight};
use crate::optimizer::{Adam, Ema, Schedule};
use crate::sampler::{Sampler, Solver};
use crate::scd::{Auto, Lambda, ScdConfig};
use crate::toy::Shape;
use crate::unet::UNetConfig;

/// Everything that defines a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the data come from.
    pub data: DataConfig,
    /// The network and what is put on top of it.
    pub denoiser: DenoiserConfig,
    /// What training minimises.
    pub objective: Objective,
    /// How samples are drawn.
    pub sampler: Sampler,
    /// How training proceeds.
    pub train: TrainConfig,
    /// The constraint that the method is given; it may be wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<ConstraintConfig>,
    /// The constraint that metrics use: the true one. By default the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truth: Option<ConstraintConfig>,
    /// Named variations of this configuration, chosen with `--method`: tables that are laid over it.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub methods: Table,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: DataConfig::default(),
            denoiser: DenoiserConfig::default(),
            objective: Objective::default(),
            sampler: Sampler::default(),
            train: TrainConfig::default(),
            constraint: None,
            truth: None,
            methods: Table::new(),
        }
    }
}

/// Where the data come from: a dataset folder, or a generator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// A dataset folder, all of which is used; if absent the data are generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// What to generate.
    pub generator: Generator,
    /// Training samples.
    pub count: usize,
    /// Held-out samples.
    pub valid: usize,
    /// Seed of the data; runs with different training seeds share them.
    pub seed: u64,
    /// How channels are normalised for the network.
    pub normalise: Normalise,
    /// Standard deviation of the normalised data, or `auto` to measure it.
    pub sigma_data: SigmaData,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            path: None,
            generator: Generator::Points { curve: Shape::Circle, noise: 0.0 },
            count: 10_000,
            valid: 1_000,
            seed: 0,
            normalise: Normalise::None,
            sigma_data: SigmaData::Auto(Auto::Auto),
        }
    }
}

/// How channels are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normalise {
    /// Not at all: the network sees physical units.
    None,
    /// Each channel to mean 0 and standard deviation sigma_data.
    Std,
}

/// sigma_data: given, or measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SigmaData {
    /// A given value.
    Number(f64),
    /// Measured over all channels of the training data (0.5 if channels are normalised).
    Auto(Auto),
}

/// The denoiser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DenoiserConfig {
    /// How the network is wrapped.
    pub precondition: PreconditionKind,
    /// The network.
    pub backbone: BackboneConfig,
    /// The soft constraint, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scd: Option<ScdConfig>,
}

impl Default for DenoiserConfig {
    fn default() -> Self {
        Self { precondition: PreconditionKind::Edm, backbone: BackboneConfig::Mlp { hidden: 128 }, scd: None }
    }
}

/// How a network becomes a denoiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PreconditionKind {
    /// EDM's preconditioning.
    Edm,
    /// A DDPM network that predicts x0 from the index of a cosine noise level.
    Ddpm,
}

/// A network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BackboneConfig {
    /// Three linear layers, modulated by the noise level.
    Mlp {
        /// Hidden units.
        hidden: usize,
    },
    /// PIDM's three linear layers with a learned row per noise level (for `precondition = "ddpm"`).
    LevelMlp {
        /// Hidden units.
        hidden: usize,
        /// Noise levels.
        levels: usize,
    },
    /// EDM2's magnitude-preserving U-Net for fields on a grid.
    Unet(UNetConfig),
}

/// How training proceeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Optimiser steps.
    pub iterations: u64,
    /// Samples per step.
    pub batch: usize,
    /// Parts that a batch is cut into. Each has its own way through the network and back, side by side as far as there are threads
    /// and one after the other if not (which needs less memory); their gradients are added. The result does not depend on the number of threads.
    #[serde(skip_serializing_if = "is_one")]
    pub shares: usize,
    /// Learning rate.
    pub rate: f64,
    /// How the rate changes.
    pub schedule: Schedule,
    /// Adam's constants.
    pub adam: Adam,
    /// Largest norm of the gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// The running average that samples are drawn with.
    pub ema: Ema,
    /// Seed of weights, order and noise.
    pub seed: u64,
    /// Steps between lines of `metrics.jsonl`.
    pub log_every: u64,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
}

/// Serde hands over references.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(shares: &usize) -> bool {
    *shares == 1
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            iterations: 78_000,
            batch: 128,
            shares: 1,
            rate: 1e-4,
            schedule: Schedule::Constant,
            adam: Adam { betas: [0.9, 0.999], eps: 1e-8 },
            clip: None,
            ema: Ema::Constant { decay: 0.99 },
            seed: 0,
            log_every: 500,
            checkpoint_every: 10_000,
        }
    }
}

/// The presets compiled into the program, by name.
pub const PRESETS: &[(&str, &str)] = &[
    ("circle-demo", include_str!("../../../presets/circle-demo.toml")),
    ("circle-cpu", include_str!("../../../presets/circle-cpu.toml")),
    ("circle-paper", include_str!("../../../presets/circle-paper.toml")),
    ("darcy-demo", include_str!("../../../presets/darcy-demo.toml")),
    ("darcy-cpu", include_str!("../../../presets/darcy-cpu.toml")),
    ("darcy-paper", include_str!("../../../presets/darcy-paper.toml")),
    ("helmholtz-demo", include_str!("../../../presets/helmholtz-demo.toml")),
    ("helmholtz-cpu", include_str!("../../../presets/helmholtz-cpu.toml")),
    ("helmholtz-paper", include_str!("../../../presets/helmholtz-paper.toml")),
];

/// How a soft constraint is trained on a frozen denoiser unless a configuration says otherwise.
const ADAPTING: &str = "
[train]
iterations = 600
batch = 64
rate = 2e-3
schedule = { kind = 'cosine', warmup = 20 }
ema = { kind = 'constant', decay = 0.99 }
log_every = 20
checkpoint_every = 200
";

/// The text of a preset.
pub fn preset(name: &str) -> Result<&'static str> {
    PRESETS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text).ok_or_else(|| {
        let hint = nearest(name, PRESETS.iter().map(|(n, _)| *n))
            .map_or_else(|| "`softly presets` lists them".to_string(), |n| format!("did you mean `{n}`?"));
        Error::input("--preset", format!("there is no preset `{name}`")).hint(hint)
    })
}

/// Layers of configuration, lowest first.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    table: Table,
}

impl Layers {
    /// No layer yet: every setting has its default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a preset.
    pub fn preset(self, name: &str) -> Result<Self> {
        self.text(preset(name)?, &format!("preset {name}"))
    }

    /// Adds a file. Relative paths in it stay relative to the working folder.
    pub fn file(self, path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        self.text(&text, &path.display().to_string())
    }

    /// Adds a TOML text; `place` names it in errors.
    pub fn text(mut self, text: &str, place: &str) -> Result<Self> {
        // Every setting has a default, so a layer alone must already make sense: errors point into its own text.
        toml::from_str::<Config>(text).map_err(|e| parse_error(place, &e))?;
        let table: Table = toml::from_str(text).map_err(|e| parse_error(place, &e))?;
        merge(&mut self.table, table);
        Ok(self)
    }

    /// Adds the training settings that suit the few weights of a soft constraint on a frozen denoiser.
    pub fn adapting(self) -> Result<Self> {
        self.text(ADAPTING, "adapting")
    }

    /// Lays the named method's table over what is there.
    pub fn method(mut self, name: &str) -> Result<Self> {
        let methods = self.table.get("methods").and_then(Value::as_table).cloned().unwrap_or_default();
        let Some(Value::Table(chosen)) = methods.get(name) else {
            let known = methods.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let hint = nearest(name, methods.keys().map(String::as_str)).map(|n| format!("did you mean `{n}`?"));
            return Err(Error::input("--method", format!("there is no method `{name}`; there are: {known}"))
                .hint(hint.unwrap_or_default()));
        };
        merge(&mut self.table, chosen.clone());
        Ok(self)
    }

    /// Adds one `a.b.c=value` setting; the value is TOML, or a bare word.
    pub fn set(mut self, assignment: &str) -> Result<Self> {
        let place = format!("--set {assignment}");
        let Some((key, text)) = assignment.split_once('=') else {
            return Err(Error::input(place, "expected key=value").hint("for example --set train.iterations=1000"));
        };
        let parse = |text: &str| toml::from_str::<Table>(&format!("value = {text}")).ok()?.remove("value");
        let value = parse(text).unwrap_or_else(|| Value::String(text.trim().to_string()));
        let mut layer = value;
        for part in key.trim().split('.').rev() {
            layer = Value::Table(Table::from_iter([(part.to_string(), layer)]));
        }
        if let Value::Table(layer) = layer {
            merge(&mut self.table, layer);
        }
        // Check now, so that the error names this setting.
        self.clone().finish(&place)?;
        Ok(self)
    }

    /// The merged configuration; `place` names it in errors.
    pub fn finish(self, place: &str) -> Result<Config> {
        let mut config: Config = Config::deserialize(Value::Table(self.table)).map_err(|e| parse_error(place, &e))?;
        config.methods = Table::new();
        config.check()?;
        Ok(config)
    }
}

/// Lays `upper` over `lower`, table by table. A table with another `kind` or `shape` replaces the old one whole: the
/// settings of one kind mean nothing to another.
fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => {
                let other = |tag: &str| new.get(tag).is_some_and(|v| old.get(tag) != Some(v));
                // A parameter of a constraint is a table of one key, which says what it is.
                let parameter = old.len() == 1 && new.len() == 1;
                let replaced = ["kind", "shape"].into_iter().any(other)
                    || parameter && ["file", "normal", "learn"].into_iter().any(other);
                if replaced { *old = new } else { merge(old, new) }
            }
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

/// TOML's own message (line, caret) with the nearest known key as a hint.
fn parse_error(place: &str, error: &toml::de::Error) -> Error {
    let message = error.message();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let hint = if message.starts_with("unknown") {
        let wrong = quoted.next().unwrap_or_default();
        nearest(wrong, quoted).map(|n| format!("did you mean `{n}`?"))
    } else {
        None
    };
    Error::input(place, error.to_string().trim_end()).hint(hint.unwrap_or_default())
}

impl Config {
    /// Refuses settings that cannot work, whatever the data.
    pub fn check(&self) -> Result<()> {
        let positive = |place: &str, value: f64| {
            if value.is_finite() && value > 0.0 {
                Ok(())
            } else {
                Err(Error::input(place, format!("expected a positive number, found {value}")))
            }
        };
        let at_least_one = |place: &str, value: u64| {
            if value >= 1 { Ok(()) } else { Err(Error::input(place, format!("expected at least 1, found {value}"))) }
        };
        at_least_one("data.count", self.data.count as u64)?;
        at_least_one("data.valid", self.data.valid as u64)?;
        if let SigmaData::Number(sigma) = self.data.sigma_data {
            positive("data.sigma_data", sigma)?;
        }
        self.data.generator.check()?;
        match self.denoiser.backbone {
            BackboneConfig::Mlp { hidden } => at_least_one("denoiser.backbone.hidden", hidden as u64)?,
            BackboneConfig::LevelMlp { hidden, levels } => {
                at_least_one("denoiser.backbone.hidden", hidden as u64)?;
                at_least_one("denoiser.backbone.levels", levels as u64)?;
            }
            // Checked with the grid when it is built.
            BackboneConfig::Unet(_) => {}
        }
        let ddpm = self.denoiser.precondition == PreconditionKind::Ddpm;
        if !ddpm && matches!(self.denoiser.backbone, BackboneConfig::LevelMlp { .. }) {
            return Err(Error::input("denoiser.backbone", "`level-mlp` goes with the precondition `ddpm` only"));
        }
        if ddpm && self.ddpm_levels().is_none() {
            return Err(Error::input(
                "denoiser.precondition",
                "`ddpm` needs the backbone `level-mlp`, or `unet` with objective.noise of the kind `cosine`",
            ));
        }
        match self.objective.noise {
            NoiseDist::LogNormal { std, .. } => positive("objective.noise.std", std)?,
            NoiseDist::TruncLogNormal { std, min, .. } => {
                positive("objective.noise.std", std)?;
                if let Some(min) = min {
                    positive("objective.noise.min", min)?;
                }
            }
            NoiseDist::Cosine { steps, .. } => at_least_one("objective.noise.steps", steps as u64)?,
        }
        if let Weight::MinSnr { max } = self.objective.weight {
            positive("objective.weight.max", max)?;
        }
        if self.objective.base_loss != 0.0 {
            positive("objective.base_loss", self.objective.base_loss)?;
        }
        self.check_sampler(positive)?;
        at_least_one("train.iterations", self.train.iterations)?;
        at_least_one("train.batch", self.train.batch as u64)?;
        at_least_one("train.log_every", self.train.log_every)?;
        at_least_one("train.checkpoint_every", self.train.checkpoint_every)?;
        positive("train.rate", self.train.rate)?;
        if let Some(clip) = self.train.clip {
            positive("train.clip", clip)?;
        }
        let needs = [
            ("denoiser.scd", self.denoiser.scd.is_some()),
            ("objective.regulariser", self.objective.regulariser.is_some()),
            ("sampler.guidance", self.sampler.guidance.is_some()),
        ];
        if let (None, Some((place, _))) = (&self.constraint, needs.iter().find(|(_, used)| *used)) {
            return Err(Error::input(place, "needs a [constraint] table, and there is none"));
        }
        self.check_parameters()?;
        self.check_scd(positive)
    }

    fn check_parameters(&self) -> Result<()> {
        let parameters = |c: Option<&ConstraintConfig>| c.map_or_else(Default::default, |c| c.parameters.clone());
        if let Some((name, _)) = parameters(self.truth.as_ref()).iter().find(|(_, p)| !p.is_fixed()) {
            return Err(Error::input(format!("truth.parameters.{name}"), "the truth is neither drawn nor learned")
                .hint("give a number"));
        }
        let given = parameters(self.constraint.as_ref());
        let learned = given.iter().find(|(_, p)| p.is_learned());
        let used = self.objective.regulariser.is_some() || self.sampler.guidance.is_some();
        match (learned, &self.denoiser.scd) {
            (Some((name, _)), None) if used => {
                Err(Error::input(format!("constraint.parameters.{name}"), "is learned with γ, and there is none")
                    .hint("give a number, or add a [denoiser.scd] table"))
            }
            _ => Ok(()),
        }
    }

    fn check_scd(&self, positive: impl Fn(&str, f64) -> Result<()>) -> Result<()> {
        let Some(scd) = &self.denoiser.scd else { return Ok(()) };
        if scd.hidden == 0 {
            return Err(Error::input("denoiser.scd.hidden", "expected at least 1, found 0"));
        }
        positive("denoiser.scd.rate", scd.rate)?;
        if let Lambda::Number(lambda) = scd.lambda
            && !(lambda.is_finite() && lambda >= 0.0)
        {
            return Err(Error::input("denoiser.scd.lambda", format!("expected a number ≥ 0, found {lambda}")));
        }
        if scd.detach_base && self.objective.base_loss == 0.0 {
            let problem =
                "keeps the loss from the base denoiser, which then learns from objective.base_loss alone: it is 0";
            return Err(Error::input("denoiser.scd.detach_base", problem).hint("set objective.base_loss=1"));
        }
        if !scd.compliance.is_valid() {
            let problem = format!("expected a number ≥ 0 or \"full\", found {}", scd.compliance);
            return Err(Error::input("denoiser.scd.compliance", problem));
        }
        if scd.compliance == Compliance::FULL && !scd.directions.contains(&DirectionKind::Newton) {
            let problem = "`full` projects with Newton steps, and the model has no direction `newton`";
            return Err(Error::input("denoiser.scd.compliance", problem).hint(
                "give a number, or adapt with \"newton\" among denoiser.scd.directions and denoiser.scd.solve_for",
            ));
        }
        let place = "denoiser.scd.directions";
        if scd.directions.is_empty() {
            return Err(Error::input(place, "expected at least one direction, found none")
                .hint("leave out the [denoiser.scd] table for a denoiser without a constraint"));
        }
        for (i, kind) in scd.directions.iter().enumerate() {
            if scd.directions[..i].contains(kind) {
                return Err(Error::input(place, format!("`{}` is named twice", kind.name())));
            }
        }
        let fields = self.constraint.as_ref().map_or(&[][..], |c| &c.fields);
        let known = fields.join(", ");
        match &scd.solve_for {
            Some(name) if !fields.contains(name) => {
                let hint = nearest(name, fields.iter().map(String::as_str)).map(|n| format!("did you mean `{n}`?"));
                let problem = format!("the constraint has no field `{name}`; it has {known}");
                Err(Error::input("denoiser.scd.solve_for", problem).hint(hint.unwrap_or_default()))
            }
            None => match scd.directions.iter().find(|kind| kind.solves()) {
                Some(kind) => {
                    let problem = format!("the direction `{}` needs a field to solve for", kind.name());
                    Err(Error::input("denoiser.scd.solve_for", problem).hint(format!("name one of {known}")))
                }
                None => Ok(()),
            },
            Some(_) => Ok(()),
        }
    }

    /// Noise levels of a network that knows only those of a cosine DDPM schedule; `None` for all others.
    pub fn ddpm_levels(&self) -> Option<usize> {
        match (self.denoiser.precondition, &self.denoiser.backbone, &self.objective.noise) {
            (PreconditionKind::Edm, ..) => None,
            (_, BackboneConfig::LevelMlp { levels, .. }, _) => Some(*levels),
            (_, BackboneConfig::Unet(_), NoiseDist::Cosine { steps, .. }) => Some(*steps),
            _ => None,
        }
    }

    fn check_sampler(&self, positive: impl Fn(&str, f64) -> Result<()>) -> Result<()> {
        let s = &self.sampler;
        positive("sampler.sigma_min", s.sigma_min)?;
        positive("sampler.sigma_max", s.sigma_max)?;
        positive("sampler.rho", s.rho)?;
        if s.steps == 0 {
            return Err(Error::input("sampler.steps", "expected at least 1 step, found 0").hint("the default is 100"));
        }
        if s.sigma_min >= s.sigma_max {
            let problem = format!("expected sigma_min < sigma_max, found {} and {}", s.sigma_min, s.sigma_max);
            return Err(Error::input("sampler.sigma_min", problem));
        }
        if let (Some(levels), Solver::Ancestral) = (self.ddpm_levels(), s.solver)
            && levels != s.steps
        {
            let problem = format!("the network knows {levels} noise levels, the sampler has {} steps", s.steps);
            return Err(Error::input("sampler.steps", problem));
        }
        Ok(())
    }

    /// The configuration as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("a configuration is always valid TOML")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_and_method_is_valid_and_survives_a_round_trip() {
        for (name, _) in PRESETS {
            let layers = Layers::new().preset(name).unwrap();
            let methods: Vec<String> = layers.table["methods"].as_table().unwrap().keys().cloned().collect();
            for method in methods {
                let config = layers.clone().method(&method).unwrap().finish(name).unwrap();
                let again = Layers::new().text(&config.to_toml(), "again").unwrap().finish("again").unwrap();
                assert_eq!(config, again, "{name} {method}");
            }
        }
    }

    fn message(result: Result<impl std::fmt::Debug>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn typos_name_the_line_and_the_nearest_key() {
        let text = "[train]\nitertions = 5\n";
        let said = message(Layers::new().text(text, "my.toml"));
        assert!(
            said.contains("my.toml") && said.contains("line 2") && said.contains("did you mean `iterations`?"),
            "{said}"
        );
        let said = message(Layers::new().set("train.batches=3"));
        assert!(said.contains("--set train.batches=3") && said.contains("did you mean `batch`?"), "{said}");
        let said = message(Layers::new().set("train.batch=many"));
        assert!(said.contains("--set train.batch=many") && said.contains("invalid type"), "{said}");
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        for (setting, place) in [
            ("sampler.steps=0", "sampler.steps"),
            ("sampler.sigma_min=-0.1", "sampler.sigma_min"),
            ("sampler.sigma_min=100", "sampler.sigma_min"),
            ("data.count=0", "data.count"),
            ("train.rate=-1", "train.rate"),
            ("objective.noise.std=0", "objective.noise.std"),
            ("denoiser.scd.hidden=3", "denoiser.scd"),
        ] {
            let set = if setting.contains("noise.std") {
                Layers::new().set("objective.noise={kind='log-normal', mean=-1.2, std=0.0}")
            } else {
                Layers::new().set(setting)
            };
            let said = message(set);
            assert!(said.starts_with(place), "{setting}: {said}");
        }
    }
}
