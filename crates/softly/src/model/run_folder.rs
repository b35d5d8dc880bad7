//! Run folders: the files of a training.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::{claim, read_text, write_text};

/// How long a training that is just stopping is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The files of a run folder.
#[derive(Debug, Clone)]
pub struct RunFolder {
    /// The folder.
    pub path: PathBuf,
}

impl RunFolder {
    /// The run folder at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    /// Who made the run, how, and whether it is finished.
    pub fn info(&self) -> PathBuf {
        self.path.join("run.json")
    }

    /// Metrics by step.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Wall-clock notes.
    pub fn log(&self) -> PathBuf {
        self.path.join("log.txt")
    }

    /// The newest checkpoint.
    pub fn checkpoint(&self) -> PathBuf {
        self.path.join("checkpoints").join("latest.safetensors")
    }

    /// A learned field of the constraint, `[H, W]`.
    pub fn learned(&self, name: &str) -> PathBuf {
        self.path.join(format!("learned-{name}.npy"))
    }

    /// The weights to sample from.
    pub fn snapshot(&self) -> PathBuf {
        self.path.join("snapshots").join("final.safetensors")
    }

    /// The averaged weights after `step` steps, if `train.snapshot_every` asks for them.
    pub fn snapshot_at(&self, step: u64) -> PathBuf {
        self.path.join("snapshots").join(format!("step-{step}.safetensors"))
    }

    /// The step of the newest line of metrics; 0 before the first.
    pub fn step(&self) -> u64 {
        let text = read_text(&self.metrics()).unwrap_or_default();
        text.lines().rev().find_map(|line| serde_json::from_str::<Metrics>(line).ok()).map_or(0, |m| m.step)
    }

    /// Every line of `metrics.jsonl`; none before the first.
    pub fn read_metrics(&self) -> Result<Vec<Metrics>> {
        let file = self.metrics();
        let text = if file.exists() { read_text(&file)? } else { String::new() };
        let damaged = |e: serde_json::Error| Error::input(file.display(), format!("is damaged: {e}"));
        // A line that is just being written has no end yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).map_err(damaged)).collect()
    }

    /// Reads `run.json`.
    pub fn read_info(&self) -> Result<RunInfo> {
        serde_json::from_str(&read_text(&self.info())?)
            .map_err(|e| Error::input(self.info().display(), format!("is damaged: {e}")))
    }

    /// Writes `run.json`.
    pub(crate) fn write_info(&self, info: &RunInfo) -> Result<()> {
        write_text(&self.info(), &(serde_json::to_string_pretty(info).expect("text is valid JSON") + "\n"))
    }

    /// Says that a run with a snapshot is finished, should it have been killed before it said so itself. A training that is just
    /// ending is waited for.
    pub fn note_finished(&self) -> Result<()> {
        let _lock = self.lock()?;
        match self.read_info() {
            Ok(info) if info.status != "finished" => self.write_info(&RunInfo { status: "finished".into(), ..info }),
            _ => Ok(()),
        }
    }

    /// Makes this process the only one that trains here, until the file is dropped or the process ends, however it ends. A
    /// training that is just stopping is waited for.
    pub(crate) fn lock(&self) -> Result<File> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(file) = claim(&self.log())? {
                return Ok(file);
            }
            if Instant::now() > deadline {
                return Err(Error::input(self.path.display(), "another process is training in this folder")
                    .hint("wait until it is done, or stop it; then run the same command again"));
            }
            sleep(Duration::from_millis(50));
        }
    }
}

/// `run.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of the program.
    pub version: String,
    /// Commit that it was built from, if known.
    pub commit: String,
    /// The command line.
    pub command: String,
    /// Seed of the training.
    pub seed: u64,
    /// Fingerprint of the data.
    pub dataset_hash: String,
    /// Where it ran.
    pub device: String,
    /// Processes that shared the work.
    #[serde(default = "one")]
    pub ranks: usize,
    /// Threads each could use.
    pub threads: usize,
    /// `running`, `interrupted`, `failed` or `finished`.
    pub status: String,
    /// Seconds of training, over all resumptions.
    pub seconds: f64,
    /// Numbers of the constraint that were fitted to the data, by name: at the start, and after every step of the fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fit: Vec<BTreeMap<String, f64>>,
}

/// The ranks of a run by itself.
fn one() -> usize {
    1
}

/// One line of `metrics.jsonl`: means over the steps since the last line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Steps done.
    pub step: u64,
    /// The denoising loss.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Learning rate of the last step.
    pub rate: f64,
    /// Gradient entries that were not finite and were taken as zero.
    pub replaced: usize,
    /// Learned parameters of the constraint by name, after the last step.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub constraint: BTreeMap<String, f64>,
    /// The other terms of the loss by name: `base` (the base denoiser's own), `residual` (the regulariser).
    #[serde(flatten)]
    pub terms: BTreeMap<String, f64>,
}

impl Metrics {
    /// The line, with its end.
    pub(crate) fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers are valid JSON") + "\n"
    }
}

/// The fingerprint of all lines up to `line`: BLAKE3 of `before`, the fingerprint of those before it, and the line. A training
/// begins with an empty one.
pub(crate) fn chained(before: &str, line: &str) -> String {
    blake3::Hasher::new().update(before.as_bytes()).update(line.as_bytes()).finalize().to_hex().to_string()
}
