//! The configuration that a command line asks for, and the description of a run.

use std::sync::OnceLock;

use softly::error::Result;
use softly::{Config, ConfigSource, RunInfo};

use crate::arguments::Source;
use crate::ranks;

/// The words of the command line after the program's name.
pub static WORDS: OnceLock<Vec<String>> = OnceLock::new();

impl From<&Source> for ConfigSource {
    fn from(source: &Source) -> Self {
        let Source { preset, config, method, settings } = source.clone();
        Self { preset, file: config, method, settings, ..Self::default() }
    }
}

/// The configuration that a command line asks for.
pub fn configuration(source: &Source) -> Result<Config> {
    ConfigSource::from(source).config()
}

/// The command line as text.
fn command_line() -> String {
    let words = WORDS.get().into_iter().flatten().map(String::as_str);
    std::iter::once("softly").chain(words).collect::<Vec<_>>().join(" ")
}

/// A description of this run of the program on the named device.
pub fn run_info(seed: u64, device: &str) -> RunInfo {
    run_info_of(command_line(), seed, device)
}

/// A description of a run that `command` asks for, on the named device.
pub fn run_info_of(command: String, seed: u64, device: &str) -> RunInfo {
    RunInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SOFTLY_COMMIT").into(),
        command,
        seed,
        dataset_hash: String::new(),
        device: if device == "cpu" { "cpu (flex)".into() } else { device.into() },
        ranks: ranks::here().count(),
        threads: rayon::current_num_threads(),
        status: String::new(),
        seconds: 0.0,
        fit: Vec::new(),
    }
}
