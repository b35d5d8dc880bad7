//! The configuration that a command line asks for, and the description of a run.

use softly::error::{Error, Result};
use softly::{Config, Layers, RunInfo};

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
    if source.preset.is_none() && source.config.is_none() {
        return Err(Error::input("--preset", "expected --preset or --config").hint("`softly presets` lists presets"));
    }
    with_method_and_settings(layers, source)?.finish(&location)
}

/// `layers` with the command line's method and settings on top.
pub fn with_method_and_settings(mut layers: Layers, source: &Source) -> Result<Layers> {
    if let Some(method) = &source.method {
        layers = layers.method(method)?;
    }
    for setting in &source.settings {
        layers = layers.set(setting)?;
    }
    Ok(layers)
}

/// A description of this run of the program on the named device.
pub fn run_info(seed: u64, device: &str) -> RunInfo {
    RunInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SOFTLY_COMMIT").into(),
        command: std::iter::once("softly".to_string()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" "),
        seed,
        dataset_hash: String::new(),
        device: if device == "cpu" { "cpu (flex)".into() } else { device.into() },
        threads: rayon::current_num_threads(),
        status: String::new(),
        seconds: 0.0,
    }
}
