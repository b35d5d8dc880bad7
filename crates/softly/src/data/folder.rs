//! Dataset folders: `dataset.toml`, `train/<field>.npy` and `valid/<field>.npy`, each `[N, H, W]`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;
use toml::Table;

use crate::constraint::config::ConstraintConfig;
use crate::data::dataset::Dataset;
use crate::data::generator::GeneratorConfig;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::files::read_text;
use crate::npy;
use crate::statistics::Statistics;

/// Version of the layout.
pub(super) const FORMAT: u32 = 2;

/// `dataset.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the layout.
    pub format: u32,
    /// Training samples.
    pub train: usize,
    /// Held-out samples.
    pub valid: usize,
    /// Seed of the samples, if they were generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// BLAKE3 of all numbers as `f4`: train, then valid, sample after sample, the fields of a sample in order.
    pub hash: String,
    /// The nodes and their domain.
    pub grid: Grid,
    /// The fields, in the order of the channels.
    pub fields: Vec<FieldEntry>,
    /// What made the samples, if they were generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator: Option<GeneratorConfig>,
    /// Where the samples came from, if they were not generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Table>,
    /// The equation that they obey, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equation: Option<ConstraintConfig>,
}

/// A field in `dataset.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldEntry {
    /// Name in formulas and files.
    pub name: String,
    /// What it is.
    #[serde(default)]
    pub quantity: String,
    /// Its unit; `1` for dimensionless quantities.
    #[serde(default)]
    pub unit: String,
    /// Statistics of the training samples.
    pub statistics: Statistics,
}

/// A complete dataset on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetFolder {
    /// The folder.
    pub path: PathBuf,
    /// Its `dataset.toml`.
    pub description: Description,
}

impl DatasetFolder {
    /// Opens the dataset in `path` and checks that its files are what `dataset.toml` says.
    pub fn open(path: &Path) -> Result<Self> {
        let place = path.join("dataset.toml");
        if !place.exists() {
            let unfinished = path.join(".partial").exists();
            let (problem, hint) = if unfinished {
                ("the dataset in this folder is not finished", "run the same `softly data generate` again to go on")
            } else {
                ("expected a dataset folder, found no dataset.toml", "make one with `softly data generate`")
            };
            return Err(Error::input(path.display(), problem).hint(hint));
        }
        let text = read_text(&place)?;
        let broken = |e: toml::de::Error| Error::input(place.display(), e.to_string().trim_end());
        let table: Table = toml::from_str(&text).map_err(broken)?;
        // First of all: another layout has other keys.
        let format = table.get("format").and_then(toml::Value::as_integer);
        if format != Some(i64::from(FORMAT)) {
            let found = format.map_or("none".into(), |format| format.to_string());
            return Err(Error::input(place.display(), format!("expected format = {FORMAT}, found {found}"))
                .hint("the dataset was made by another version: make it again"));
        }
        let description: Description = toml::from_str(&text).map_err(broken)?;
        let refuse = |problem: String| Err(Error::input(place.display(), problem));
        if description.fields.is_empty() || description.grid.is_empty() {
            return refuse("expected at least one field and one node".into());
        }
        if let Some(field) = description.fields.iter().find(|f| f.name.is_empty() || f.name.contains(['/', '\\', '.']))
        {
            return refuse(format!("`{}` cannot be a field's name", field.name));
        }
        let folder = Self { path: path.to_path_buf(), description };
        for split in Split::BOTH {
            if folder.count(split) == 0 {
                return refuse(format!("expected at least one {} sample, found 0", split.name()));
            }
            folder.samples(split)?;
        }
        Ok(folder)
    }

    /// Samples of a split.
    pub fn count(&self, split: Split) -> usize {
        match split {
            Split::Train => self.description.train,
            Split::Valid => self.description.valid,
        }
    }

    /// Names of the fields.
    pub fn fields(&self) -> Vec<String> {
        self.description.fields.iter().map(|f| f.name.clone()).collect()
    }

    /// The samples of a split, to be read one after the other.
    pub fn samples(&self, split: Split) -> Result<Samples> {
        let (rows, cols) = (self.description.grid.rows(), self.description.grid.cols());
        let expected = [self.count(split), rows, cols];
        let readers = self.description.fields.iter().map(|field| {
            let path = self.path.join(split.name()).join(format!("{}.npy", field.name));
            let place = format!("{} (field `{}`)", path.display(), field.name);
            if !path.exists() {
                return Err(Error::input(place, "dataset.toml names this field, but its file is missing")
                    .hint("copy the whole folder, or generate it again"));
            }
            let reader = npy::Reader::open(&path)?;
            if reader.shape != expected {
                let problem = format!("dataset.toml says [N, H, W] = {expected:?}, the array has {:?}", reader.shape);
                return Err(Error::input(place, problem));
            }
            Ok((place, reader))
        });
        Ok(Samples { readers: readers.collect::<Result<_>>()?, nodes: rows * cols, next: 0, count: self.count(split) })
    }

    /// Reads all of it into memory.
    pub fn load(&self) -> Result<Dataset> {
        let read = |split| -> Result<Vec<f32>> {
            let mut samples = self.samples(split)?;
            let mut values =
                Vec::with_capacity(self.count(split) * self.description.fields.len() * self.description.grid.len());
            while let Some(fields) = samples.next_sample()? {
                values.extend(fields.iter().flatten().map(|&v| v as f32));
            }
            Ok(values)
        };
        Ok(Dataset {
            fields: self.fields(),
            grid: self.description.grid.clone(),
            train: read(Split::Train)?,
            valid: read(Split::Valid)?,
            generator: self.description.generator.clone(),
            equation: self.description.equation.clone(),
        })
    }
}

/// Samples of a split, one after the other.
#[derive(Debug)]
pub struct Samples {
    /// Each field's file, named as errors name it, and what is left of it.
    readers: Vec<(String, npy::Reader)>,
    nodes: usize,
    next: usize,
    count: usize,
}

impl Samples {
    /// The next sample, `[H, W]` for every field; its values are finite.
    pub fn next_sample(&mut self) -> Result<Option<Vec<Vec<f64>>>> {
        if self.next == self.count {
            return Ok(None);
        }
        let sample = self.next;
        self.next += 1;
        let field = |(place, reader): &mut (String, npy::Reader)| {
            let mut values = vec![0.0; self.nodes];
            reader.read(&mut values)?;
            match values.iter().find(|v| !v.is_finite()) {
                None => Ok(values),
                Some(value) => {
                    let problem = format!("expected finite numbers, found {value} in sample {sample}");
                    Err(Error::input(&*place, problem).hint("drop or repair that sample"))
                }
            }
        };
        self.readers.iter_mut().map(field).collect::<Result<_>>().map(Some)
    }
}
