//! Where data come from and how they are normalised (`[data]`).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;

use crate::auto::NumberOrAuto;
use crate::checks::{at_least_one, positive};
use crate::data::folder::DatasetFolder;
use crate::data::generator::GeneratorConfig;
use crate::error::Result;

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
        self.generator.as_ref().map_or(Ok(()), |generator| generator.get().check())
    }
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
