//! Evaluations in the folder of their run, `eval/NAME.json`, each with what it was made of: a stale one is not used.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::constraint::config::ConstraintConfig;
use crate::data::dataset::Dataset;
use crate::error::{Error, Result};
use crate::evaluate::field_eval::{FieldEval, FieldResult};
use crate::evaluate::fields::ReferenceRow;
use crate::files::{make_folder, read_text, write_text};
use crate::model::run_folder::RunFolder;
use crate::npy;

/// Version of the layout.
const FORMAT: u32 = 1;

/// What an evaluation was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MadeOf {
    format: u32,
    /// BLAKE3 of the snapshot's file.
    snapshot: String,
    /// Fingerprint of the data.
    data: String,
    /// The equation that residuals were taken of.
    truth: Option<ConstraintConfig>,
    /// Settings laid over the run's.
    settings: Vec<String>,
}

impl MadeOf {
    /// The snapshot of `folder` under `settings`, judged with `data` and the equation `truth`.
    pub fn new(
        folder: &RunFolder,
        data: &Dataset,
        truth: Option<&ConstraintConfig>,
        settings: &[String],
    ) -> Result<Self> {
        let file = folder.snapshot();
        let bytes = std::fs::read(&file).map_err(Error::io("read", &file))?;
        Ok(Self {
            format: FORMAT,
            snapshot: blake3::hash(&bytes).to_hex().to_string(),
            data: data.hash(),
            truth: truth.cloned(),
            settings: settings.to_vec(),
        })
    }
}

/// An evaluation with what it was made of.
#[derive(Serialize, Deserialize)]
struct Stored<T> {
    made_of: MadeOf,
    found: T,
}

/// The samples of a run and all that was measured of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredFields {
    /// How much was measured.
    pub eval: FieldEval,
    /// What was measured.
    pub result: FieldResult,
    /// Rows to compare with.
    pub references: Vec<ReferenceRow>,
}

/// The file of the evaluation `name`.
pub fn stored_file(folder: &RunFolder, name: &str) -> PathBuf {
    folder.path.join("eval").join(format!("{name}.json"))
}

/// The evaluation `name` of a run, if there is one and it was made of `made_of`.
pub fn read_stored<T: DeserializeOwned>(folder: &RunFolder, name: &str, made_of: &MadeOf) -> Option<T> {
    // A file of another version is as good as none.
    let stored: Stored<T> = serde_json::from_str(&read_text(&stored_file(folder, name)).ok()?).ok()?;
    (stored.made_of == *made_of).then_some(stored.found)
}

/// Writes the evaluation `name` of a run.
pub fn write_stored<T: Serialize>(folder: &RunFolder, name: &str, made_of: &MadeOf, found: T) -> Result<()> {
    let file = stored_file(folder, name);
    make_folder(file.parent().unwrap_or(Path::new(".")))?;
    let stored = Stored { made_of: made_of.clone(), found };
    write_text(&file, &(serde_json::to_string(&stored).expect("numbers are valid JSON") + "\n"))
}

/// The samples beside the evaluation `name`, `[N, C, H, W]` with `shape` = `[C, H, W]`; none if they are not there.
pub fn read_samples(folder: &RunFolder, name: &str, shape: [usize; 3]) -> Option<Vec<f32>> {
    let array = npy::read(&stored_file(folder, name).with_extension("npy")).ok()?;
    let fits = array.shape.len() == 4 && array.shape[1..] == shape;
    fits.then(|| array.values.iter().map(|&v| v as f32).collect())
}

/// Writes samples `[N, C, H, W]` beside the evaluation `name`.
pub fn write_samples(folder: &RunFolder, name: &str, shape: [usize; 3], samples: &[f64]) -> Result<()> {
    let file = stored_file(folder, name).with_extension("npy");
    make_folder(file.parent().unwrap_or(Path::new(".")))?;
    let [c, h, w] = shape;
    npy::write_f32(&file, &[samples.len() / (c * h * w).max(1), c, h, w], samples.iter().map(|&v| v as f32))
}
