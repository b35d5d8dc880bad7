//! Where data come from and how they are normalised (`[data]`).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;

use crate::auto::NumberOrAuto;
use crate::checks::{at_least_one, positive, within};
use crate::data::folder::DatasetFolder;
use crate::data::generator::GeneratorConfig;
use crate::error::{Error, Result};

/// The data: a dataset folder, or a generator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// A dataset folder, all of which is used; without it the data are generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// What to generate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator: Option<GeneratorConfig>,
    /// Generated training samples.
    pub count: usize,
    /// Generated held-out samples.
    pub valid: usize,
    /// Seed of generated data; runs with different training seeds share them.
    pub seed: u64,
    /// How channels are normalised for the network.
    pub normalise: Normalise,
    /// White noise in the training data: its standard deviation as a share of each channel's own. The model learns the clean fields
    /// behind them: levels below the noise are not trained on, and samplers end there. Needs `normalise = "std"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub noise: f64,
    /// Standard deviation of the normalised data, or `auto`: measured over all channels, 0.5 if channels are normalised.
    pub sigma_data: NumberOrAuto,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            path: None,
            generator: None,
            count: 10_000,
            valid: 1_000,
            seed: 0,
            normalise: Normalise::None,
            noise: 0.0,
            sigma_data: NumberOrAuto::AUTO,
        }
    }
}

impl DataConfig {
    /// The grid of the data; `None` if they are not named.
    pub fn grid(&self) -> Result<Option<Grid>> {
        match (&self.path, &self.generator) {
            (Some(path), _) => Ok(Some(DatasetFolder::open(path)?.description.grid)),
            (None, Some(generator)) => Ok(Some(generator.get().grid())),
            (None, None) => Ok(None),
        }
    }

    /// Refuses settings that cannot work.
    pub fn check(&self) -> Result<()> {
        at_least_one("data.count", self.count as u64)?;
        at_least_one("data.valid", self.valid as u64)?;
        if let NumberOrAuto::Number(sigma) = self.sigma_data {
            positive("data.sigma_data", sigma)?;
        }
        within("data.noise", self.noise, 0.0..1.0, "a share of the data's standard deviation from 0 to below 1")?;
        if self.noise > 0.0 && self.normalise == Normalise::None {
            let problem = format!(
                "{} is a share of each channel's standard deviation, and channels are not normalised",
                self.noise
            );
            return Err(Error::input("data.noise", problem).hint("set data.normalise to \"std\""));
        }
        self.generator.as_ref().map_or(Ok(()), |generator| generator.get().check())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// How channels are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Normalise {
    /// Not at all: the network sees physical units.
    None,
    /// Each channel to mean 0 and standard deviation sigma_data.
    Std,
}
