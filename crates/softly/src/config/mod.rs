//! Configuration: everything that defines a run, checked as a whole.

pub mod layers;
pub(crate) mod paths;
pub mod presets;
pub mod reference;
pub mod source;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::checks::{at_least_one, positive, within};
use crate::constraint::config::{ConstraintConfig, ParameterConfig};
use crate::data::config::DataConfig;
use crate::direction::config::ScdConfig;
use crate::error::{Error, Result};
use crate::nn::backbone::BackboneConfig;
use crate::nn::mlp::MlpConfig;
use crate::nn::optimizer::{Adam, Ema, Schedule};
use crate::noise::NoiseConfig;
use crate::objective::Objective;
use crate::objective::noise::NoiseDist;
use crate::observe::conditioning::Conditioning;
use crate::sampler::Sampler;
use crate::sampler::solver::SolverKind;

/// Everything that defines a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the data come from.
    pub data: DataConfig,
    /// The noise that data are mixed with.
    #[serde(skip_serializing_if = "NoiseConfig::is_white")]
    pub noise: NoiseConfig,
    /// The network and what is put on top of it.
    pub denoiser: DenoiserConfig,
    /// What training minimises.
    pub objective: Objective,
    /// How samples are drawn.
    pub sampler: Sampler,
    /// How samples are conditioned on measurements (`--observe`).
    #[serde(skip_serializing_if = "is_default")]
    pub conditioning: Conditioning,
    /// How training proceeds.
    pub train: TrainConfig,
    /// The constraint that the method is given; it may be wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<ConstraintConfig>,
    /// The constraint that metrics use: the true one. By default the dataset's own equation, then the method's constraint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truth: Option<ConstraintConfig>,
    /// Named variations of this configuration, chosen with `--method`: tables that are laid over it.
    #[serde(skip_serializing_if = "Table::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub methods: Table,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: DataConfig::default(),
            noise: NoiseConfig::default(),
            denoiser: DenoiserConfig::default(),
            objective: Objective::default(),
            sampler: Sampler::default(),
            conditioning: Conditioning::default(),
            train: TrainConfig::default(),
            constraint: None,
            truth: None,
            methods: Table::new(),
        }
    }
}

fn is_default(conditioning: &Conditioning) -> bool {
    *conditioning == Conditioning::default()
}

/// The denoiser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
        Self {
            precondition: PreconditionKind::Edm,
            backbone: BackboneConfig::Mlp(MlpConfig { hidden: 128 }),
            scd: None,
        }
    }
}

/// How a network becomes a denoiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PreconditionKind {
    /// EDM's preconditioning.
    Edm,
    /// A DDPM network that predicts x0 from the index of a cosine noise level.
    Ddpm,
}

/// Activations that are computed twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// None: all are kept.
    None,
    /// Those inside the blocks of every level: the inputs of blocks are kept.
    Level,
}

impl Recompute {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// How training proceeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Optimiser steps.
    pub iterations: u64,
    /// Samples per step.
    pub batch: usize,
    /// Parts that a batch is cut into. Each has its own way through the network and back, side by side as far as there are threads
    /// and one after the other if not (which needs less memory); their gradients are added. The result does not depend on the number of threads.
    /// Unless given it follows from the batch and the network: up to 8, of at least two samples, none of them too little work for a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<usize>,
    /// Activations that are computed again on the way back instead of being kept: less memory for more time (networks of kind `unet`,
    /// on the CPU).
    #[serde(skip_serializing_if = "Recompute::is_none")]
    pub recompute: Recompute,
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
    /// Steps between snapshots on the way, `snapshots/step-N.safetensors`, for learning curves; only the last is kept if left
    /// out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_every: Option<u64>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            iterations: 78_000,
            batch: 128,
            shares: None,
            recompute: Recompute::None,
            rate: 1e-4,
            schedule: Schedule::Constant,
            adam: Adam { betas: [0.9, 0.999], eps: 1e-8 },
            clip: None,
            ema: Ema::Constant { decay: 0.99 },
            seed: 0,
            log_every: 500,
            checkpoint_every: 10_000,
            snapshot_every: None,
        }
    }
}

/// Most shares of a batch.
const MOST_SHARES: usize = 8;
/// Samples of a share, at least.
const SAMPLES_PER_SHARE: usize = 2;
/// Activations of a share, at least: below, a share costs more than a second thread gains.
const ACTIVATIONS_PER_SHARE: f64 = 3e6;

impl TrainConfig {
    /// The largest power of two of shares that are worth a thread each, for a network that keeps so many activations of a sample.
    pub(crate) fn automatic_shares(&self, activations: f64) -> usize {
        let worth = |shares: &usize| {
            let samples = self.batch / shares;
            samples >= SAMPLES_PER_SHARE && samples as f64 * activations >= ACTIVATIONS_PER_SHARE
        };
        std::iter::successors(Some(MOST_SHARES), |shares| (*shares > 1).then_some(shares / 2)).find(worth).unwrap_or(1)
    }

    /// Refuses settings that cannot work.
    pub fn check(&self) -> Result<()> {
        at_least_one("train.iterations", self.iterations)?;
        at_least_one("train.batch", self.batch as u64)?;
        at_least_one("train.log_every", self.log_every)?;
        at_least_one("train.checkpoint_every", self.checkpoint_every)?;
        self.snapshot_every.map_or(Ok(()), |every| at_least_one("train.snapshot_every", every))?;
        positive("train.rate", self.rate)?;
        for beta in self.adam.betas {
            within("train.adam.betas", beta, 0.0..1.0, "numbers from 0 to below 1")?;
        }
        positive("train.adam.eps", self.adam.eps)?;
        match self.ema {
            Ema::Constant { decay } => within("train.ema.decay", decay, 0.0..1.0, "a number from 0 to below 1")?,
            Ema::Power { sigma_rel } => within("train.ema.sigma_rel", sigma_rel, 1e-3..0.28, "0.001 to below 0.28")?,
        }
        self.clip.map_or(Ok(()), |clip| positive("train.clip", clip))
    }
}

impl Config {
    /// Refuses settings that cannot work, whatever the data.
    pub fn check(&self) -> Result<()> {
        self.data.check()?;
        self.noise.check()?;
        self.denoiser.backbone.get().check()?;
        self.check_precondition()?;
        self.check_data_noise()?;
        if self.train.recompute != Recompute::None && !self.denoiser.backbone.get().can_recompute() {
            return Err(Error::input("train.recompute", "expected none, for this network has no levels, found level")
                .hint("leave it out, or use denoiser.backbone.kind = \"unet\""));
        }
        self.objective.check()?;
        self.sampler.check()?;
        self.conditioning.method().check()?;
        if let (Some(levels), SolverKind::Ancestral) = (self.ddpm_levels(), self.sampler.solver)
            && levels != self.sampler.steps
        {
            let problem =
                format!("the network knows {levels} noise levels, the sampler has {} steps", self.sampler.steps);
            return Err(Error::input("sampler.steps", problem));
        }
        self.train.check()?;
        let needs = [
            ("denoiser.scd", self.denoiser.scd.is_some()),
            ("objective.regulariser", self.objective.regulariser.is_some()),
            ("sampler.guidance", self.sampler.guidance.is_some()),
        ];
        if let (None, Some((key, _))) = (&self.constraint, needs.iter().find(|(_, used)| *used)) {
            return Err(Error::input(key, "needs a [constraint] table, and there is none"));
        }
        [&self.constraint, &self.truth].into_iter().flatten().try_for_each(ConstraintConfig::check_letters)?;
        self.check_parameters()?;
        let fields = self.constraint.as_ref().map_or(&[][..], |c| &c.fields);
        self.denoiser.scd.as_ref().map_or(Ok(()), |scd| scd.check(fields, self.objective.base_loss))
    }

    /// Lets every parameter of the constraint that is a number be learned from there, if `denoiser.scd.learn_parameters` asks for it.
    fn learn_numbers(&mut self) -> Result<()> {
        let Some(scd) = self.denoiser.scd.as_mut().filter(|scd| scd.learn_parameters) else { return Ok(()) };
        scd.learn_parameters = false;
        let mut learned = false;
        for parameter in self.constraint.iter_mut().flat_map(|constraint| constraint.parameters.values_mut()) {
            if let ParameterConfig::Number(number) = *parameter {
                *parameter = ParameterConfig::Learn { learn: number };
            }
            learned |= parameter.is_learned();
        }
        if learned {
            return Ok(());
        }
        let problem = "expected a parameter of the constraint that is a plain number, found none to learn";
        Err(Error::input("denoiser.scd.learn_parameters", problem)
            .hint("name the unknown number in the formula and give a first value: [constraint.parameters] nu = 0.01"))
    }

    fn check_precondition(&self) -> Result<()> {
        let ddpm = self.denoiser.precondition == PreconditionKind::Ddpm;
        if !ddpm && self.denoiser.backbone.get().levels().is_some() {
            let problem = "a network of single noise levels goes with the precondition `ddpm` only";
            return Err(Error::input("denoiser.backbone", problem));
        }
        if ddpm && self.ddpm_levels().is_none() {
            let problem = "`ddpm` needs the backbone `level-mlp`, or objective.noise of the kind `cosine`";
            return Err(Error::input("denoiser.precondition", problem));
        }
        Ok(())
    }

    /// Noise in the data is part of the noise of a level: both are of one kind, and no level is below the data's own.
    fn check_data_noise(&self) -> Result<()> {
        if self.data.noise == 0.0 {
            return Ok(());
        }
        if !self.noise.is_white() {
            let problem = "is white, and the noise that the model removes is a random field: they do not add up";
            return Err(Error::input("data.noise", problem).hint("leave noise.field out, or data.noise"));
        }
        if !matches!(self.objective.noise, NoiseDist::TruncLogNormal { .. }) {
            let problem =
                "expected trunc-log-normal, whose levels can begin at the noise of the data, found another kind";
            return Err(Error::input("objective.noise.kind", problem).hint("change it, or leave data.noise out"));
        }
        Ok(())
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
                Err(Error::input(format!("constraint.parameters.{name}"), "is learned before γ is, and there is no γ")
                    .hint("give a number, or add a [denoiser.scd] table"))
            }
            _ => Ok(()),
        }
    }

    /// Noise levels of a network that knows only the levels of a cosine DDPM schedule; `None` for all others.
    pub fn ddpm_levels(&self) -> Option<usize> {
        let cosine = match self.objective.noise {
            NoiseDist::Cosine { steps, .. } => Some(steps),
            _ => None,
        };
        match self.denoiser.precondition {
            PreconditionKind::Edm => None,
            PreconditionKind::Ddpm => self.denoiser.backbone.get().levels().or(cosine),
        }
    }

    /// The configuration with little data, few and small steps: it shows that a command works, and means nothing else.
    #[must_use]
    pub(crate) fn reduced(mut self) -> Self {
        let (data, train, sampler) = (&mut self.data, &mut self.train, &mut self.sampler);
        data.count = data.count.min(48);
        data.valid = data.valid.min(12);
        train.iterations = train.iterations.min(12);
        train.batch = train.batch.min(8);
        train.shares = train.shares.map(|shares| shares.min(train.batch));
        train.log_every = train.log_every.min(4);
        if sampler.solver != SolverKind::Ancestral {
            sampler.steps = sampler.steps.min(4);
        }
        self
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
    fn shares_follow_from_the_batch_and_the_network() {
        let shares = |batch: usize, activations: f64| {
            TrainConfig { batch, ..TrainConfig::default() }.automatic_shares(activations)
        };
        // Little networks, single samples, uneven batches; never more than eight.
        assert_eq!([shares(16, 1e4), shares(16, 4e5), shares(16, 8e5), shares(16, 1e7)], [1, 2, 4, 8]);
        assert_eq!([1, 2, 3, 4, 7, 8, 12, 16, 1000].map(|batch| shares(batch, 1e7)), [1, 1, 1, 2, 2, 4, 4, 8, 8]);
    }
}
