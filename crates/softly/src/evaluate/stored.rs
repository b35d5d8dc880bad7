//! Evaluations in the folder of their run, `eval/NAME.json`, each with what it was made of: a stale one is not used.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::constraint::config::ConstraintConfig;
use crate::data::dataset::Dataset;
use crate::error::{Error, Result};
use crate::evaluate::field_eval::{FieldEval, FieldResult};
use crate::evaluate::fields::ReferenceRow;
use crate::files::{make_folder, read_record, write_record};
use crate::model::run_folder::RunFolder;
use crate::npy;

/// Version of the layout.
const FORMAT: u32 = 2;

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
    // A file of another version, or a damaged one, is as good as none.
    let stored: Stored<T> = read_record(&stored_file(folder, name)).ok()?;
    (stored.made_of == *made_of).then_some(stored.found)
}

/// Writes the evaluation `name` of a run.
pub fn write_stored<T: Serialize>(folder: &RunFolder, name: &str, made_of: &MadeOf, found: T) -> Result<()> {
    let file = stored_file(folder, name);
    make_folder(file.parent().unwrap_or(Path::new(".")))?;
    write_record(&file, &Stored { made_of: made_of.clone(), found })
}

/// What is measured of samples, and their fingerprint: the samples lie beside it.
#[derive(Serialize, Deserialize)]
struct WithSamples {
    measured: StoredFields,
    samples: String,
}

/// BLAKE3 of samples as `f4`.
fn fingerprint(samples: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for sample in samples {
        hasher.update(&sample.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// The samples `[N, C, H, W]` of the evaluation `name` and what was measured of them, if they are there, belong together and
/// were made of `made_of`.
pub fn read_fields(folder: &RunFolder, name: &str, made_of: &MadeOf) -> Option<(StoredFields, Vec<f32>)> {
    let WithSamples { measured, samples: recorded } = read_stored(folder, name, made_of)?;
    let array = npy::read(&stored_file(folder, name).with_extension("npy")).ok()?;
    let samples: Vec<f32> = array.values.iter().map(|&v| v as f32).collect();
    (fingerprint(&samples) == recorded).then_some((measured, samples))
}

/// Writes the samples `[N, C, H, W]` of the evaluation `name`, `shape` being `[C, H, W]`, and what was measured of them.
pub fn write_fields(
    folder: &RunFolder,
    name: &str,
    made_of: &MadeOf,
    measured: StoredFields,
    (samples, shape): (&[f64], [usize; 3]),
) -> Result<()> {
    let file = stored_file(folder, name).with_extension("npy");
    make_folder(file.parent().unwrap_or(Path::new(".")))?;
    let samples: Vec<f32> = samples.iter().map(|&v| v as f32).collect();
    let [c, h, w] = shape;
    npy::write_f32(&file, &[samples.len() / (c * h * w).max(1), c, h, w], samples.iter().copied())?;
    write_stored(folder, name, made_of, WithSamples { measured, samples: fingerprint(&samples) })
}
