//! The configuration that a command line asks for, and the description of a run.

use softly::error::Result;
use softly::{Config, FIELDS, Layers, RunInfo};

use crate::arguments::Source;

/// The configuration that a command line asks for.
pub fn configuration(source: &Source) -> Result<Config> {
    let mut layers = Layers::new();
    let mut location = "--set".to_string();
    if let Some(preset) = &source.preset {
        layers = layers.preset(preset)?;
        location = format!("preset {preset}");
    }
    if let Some(file) = &source.config {
        layers = layers.file(file)?;
        location = file.display().to_string();
    }
    if is_own(source) {
        layers = layers.over_defaults(&source.settings)?;
    }
    with_method_and_settings(layers, source)?.finish(&location)
}

/// Whether no preset is named but the one for data of one's own.
pub fn is_own(source: &Source) -> bool {
    source.preset.as_deref().is_none_or(|preset| preset == FIELDS)
}

/// `layers` with the command line's method and settings on top.
pub fn with_method_and_settings(mut layers: Layers, source: &Source) -> Result<Layers> {
    if let Some(method) = &source.method {
        layers = layers.method(method)?;
    }
    layers.with_settings(&source.settings)
}

/// The command line as text.
fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("softly".to_string()).chain(words).collect::<Vec<_>>().join(" ")
}

/// A description of this run of the program on the named device.
pub fn run_info(seed: u64, device: &str) -> RunInfo {
    RunInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SOFTLY_COMMIT").into(),
        command: command_line(),
        seed,
        dataset_hash: String::new(),
        device: if device == "cpu" { "cpu (flex)".into() } else { device.into() },
        threads: rayon::current_num_threads(),
        status: String::new(),
        seconds: 0.0,
    }
}
