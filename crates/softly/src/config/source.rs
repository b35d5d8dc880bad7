//! What a user asks for: a preset, a file, a text, a method and single settings, laid over one another.

use std::path::PathBuf;

use softly_pde::grid::Grid;

use crate::config::Config;
use crate::config::layers::Layers;
use crate::config::presets::FIELDS;
use crate::error::Result;

/// The parts of a configuration, lowest first; each may be missing.
#[derive(Debug, Clone, Default)]
pub struct ConfigSource {
    /// A preset.
    pub preset: Option<String>,
    /// A configuration file.
    pub file: Option<PathBuf>,
    /// TOML text.
    pub text: Option<String>,
    /// A method of the preset, the file or the text.
    pub method: Option<String>,
    /// Settings `a.b=c`.
    pub settings: Vec<String>,
    /// The grid of the data, if it is known before the configuration is.
    pub grid: Option<Grid>,
}

impl ConfigSource {
    /// The configuration of a training.
    pub fn config(&self) -> Result<Config> {
        let mut layers = Layers::new();
        if let Some(preset) = &self.preset {
            layers = layers.preset(preset)?;
        }
        layers = self.own_words(layers)?;
        if self.is_own() {
            layers = match &self.grid {
                Some(grid) => layers.over_field_defaults(grid)?,
                None => layers.over_defaults(&self.settings)?,
            };
        }
        let preset = self.preset.as_ref().map(|preset| format!("preset {preset}"));
        self.finished(layers, &preset.unwrap_or_else(|| "--set".into()))
    }

    /// The configuration of a soft constraint on a frozen denoiser with the configuration `base`, which `location` names, for
    /// data on `grid`.
    pub fn adapting(&self, base: &Config, location: &str, grid: &Grid) -> Result<Config> {
        let mut layers = Layers::new().text(&base.to_toml(), location)?;
        if let Some(preset) = &self.preset {
            layers = layers.preset(preset)?;
        }
        layers = self.own_words(layers.adapting()?)?;
        if self.is_own() {
            layers = layers.over_field_defaults(grid)?;
        }
        self.finished(layers, location)
    }

    /// Whether no preset is named but the one for data of one's own.
    fn is_own(&self) -> bool {
        self.preset.as_deref().is_none_or(|preset| preset == FIELDS)
    }

    fn own_words(&self, mut layers: Layers) -> Result<Layers> {
        if let Some(file) = &self.file {
            layers = layers.file(file)?;
        }
        match &self.text {
            Some(text) => layers.text(text, "configuration"),
            None => Ok(layers),
        }
    }

    /// The configuration of all layers; `location` names it in errors if no file does.
    fn finished(&self, mut layers: Layers, location: &str) -> Result<Config> {
        if let Some(method) = &self.method {
            layers = layers.method(method)?;
        }
        let file = self.file.as_ref().map(|file| file.display().to_string());
        layers.with_settings(&self.settings)?.finish(&file.unwrap_or_else(|| location.into()))
    }
}
