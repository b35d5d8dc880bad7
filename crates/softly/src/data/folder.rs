//! Dataset folders: `dataset.toml`, `train/<field>.npy` and `valid/<field>.npy`, each `[N, H, W]`, and `scalars.npy`
//! `[N, S]` if samples have numbers of their own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;
use toml::Table;

use crate::checks::usable_name;
use crate::constraint::config::{ConstraintConfig, ParameterConfig};
use crate::data::array_file::ArrayFile;
use crate::data::dataset::Dataset;
use crate::data::fingerprint::{BlockHasher, Blocks};
use crate::data::generator::GeneratorConfig;
use crate::data::split::Split;
use crate::data::values::Values;
use crate::error::{Error, Result};
use crate::files::read_text;
use crate::npy;
use crate::statistics::{Statistics, is_constant};

/// Version of the layout.
pub(super) const FORMAT: u32 = 3;

/// The name of the array file of scalars; no field is called so.
pub(super) const SCALARS: &str = "scalars";

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
    /// Fingerprint of all numbers as `f4`, made from the hashes of the blocks.
    pub hash: String,
    /// Numbers that all samples share, by their names in formulas.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub constants: BTreeMap<String, f64>,
    /// The nodes and their domain.
    pub grid: Grid,
    /// The fields and the scalars of samples, in the order of the channels.
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
    /// Hashes of the array files.
    pub blocks: Blocks,
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
    /// Whether it is a scalar: one number per sample, a column of `scalars.npy`, and a channel that is constant over the grid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scalar: bool,
    /// Statistics of the training samples.
    pub statistics: Statistics,
}

impl Description {
    /// Samples of a split.
    pub fn count(&self, split: Split) -> usize {
        match split {
            Split::Train => self.train,
            Split::Valid => self.valid,
        }
    }

    /// The array files of a split by name, with the numbers that a sample has in each.
    pub fn files(&self) -> Vec<(String, usize)> {
        let fields = self.fields.iter().filter(|field| !field.scalar);
        let scalars = self.fields.iter().filter(|field| field.scalar).count();
        let table = (scalars > 0).then(|| (SCALARS.to_string(), scalars));
        fields.map(|field| (field.name.clone(), self.grid.len())).chain(table).collect()
    }

    /// Names of the scalars.
    pub fn scalars(&self) -> Vec<String> {
        self.fields.iter().filter(|field| field.scalar).map(|field| field.name.clone()).collect()
    }

    /// What a user should know before training on the data: fields that do not vary.
    pub fn remarks(&self) -> Vec<String> {
        let constant = |field: &&FieldEntry| is_constant(field.statistics.mean, field.statistics.std);
        let remark = |FieldEntry { name, statistics: Statistics { mean, .. }, .. }: &FieldEntry| {
            let tiny = mean.abs() < f64::from(f32::MIN_POSITIVE);
            let unit =
                if tiny { "; if it is not meant to be 0, change its unit: single precision ends at 1e-38" } else { "" };
            format!(
                "the field {name} is {mean} in all training samples: training cannot scale it; leave it out, and write the \
                 number in the equation{unit}"
            )
        };
        self.fields.iter().filter(constant).map(remark).collect()
    }
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
                ("the dataset in this folder is not finished", "run the command that makes it again to go on")
            } else {
                (
                    "expected a dataset folder, found no dataset.toml",
                    "make one with `softly data generate` or `softly data import`",
                )
            };
            return Err(Error::input(path.display(), problem).hint(hint));
        }
        let description = describe(path, &read_text(&place)?)?;
        let refuse = |problem: String| Err(Error::input(place.display(), problem));
        if description.fields.iter().all(|f| f.scalar) || description.grid.is_empty() {
            return refuse("expected at least one field and one node".into());
        }
        for (i, field) in description.fields.iter().enumerate() {
            check_name(&field.name).map_err(|problem| Error::input(place.display(), problem))?;
            if description.fields[..i].iter().any(|other| other.name == field.name) {
                return refuse(format!("two fields are called `{}`", field.name));
            }
        }
        check_constants(&description)
            .and_then(|()| description.equation.as_ref().map_or(Ok(()), check_equation))
            .map_err(|problem| Error::input(place.display(), problem))?;
        if description.blocks.hash() != description.hash {
            return Err(Error::input(place.display(), "its hash does not belong to the hashes of its blocks").hint(
                format!("the file is damaged or was changed: `softly data import {}` makes it anew", path.display()),
            ));
        }
        let folder = Self { path: path.to_path_buf(), description };
        for split in Split::BOTH {
            if folder.count(split) == 0 {
                let problem = format!("expected at least one {} sample, found 0", split.name());
                return Err(Error::input(place.display(), problem)
                    .hint("hold some out to judge models by: `softly data import … --valid 0.1`"));
            }
            folder.samples(split)?;
        }
        Ok(folder)
    }

    /// Samples of a split.
    pub fn count(&self, split: Split) -> usize {
        self.description.count(split)
    }

    /// The equation that the samples obey, if it is known, with the numbers of these data.
    pub fn equation(&self) -> Option<ConstraintConfig> {
        self.description.equation.as_ref().map(|equation| self.complete(equation))
    }

    /// A constraint with the numbers of these data that its formulas use, see [`Dataset::complete`].
    #[must_use]
    pub fn complete(&self, constraint: &ConstraintConfig) -> ConstraintConfig {
        constraint.with_numbers(&self.description.scalars(), &self.description.constants)
    }

    /// Names of the fields.
    pub fn fields(&self) -> Vec<String> {
        self.description.fields.iter().map(|f| f.name.clone()).collect()
    }

    /// The samples of a split, to be read one after the other; every block is compared with its hash.
    pub fn samples(&self, split: Split) -> Result<Samples> {
        Samples::open(&self.path, &self.description, split, true)
    }

    /// The dataset, whose samples are read when they are used.
    pub fn load(&self) -> Result<Dataset> {
        let values = |split| Values::of_folder(&self.path, &self.description, split);
        Ok(Dataset {
            fields: self.fields(),
            scalars: self.description.scalars(),
            constants: self.description.constants.clone(),
            grid: self.description.grid.clone(),
            train: values(Split::Train)?,
            valid: values(Split::Valid)?,
            generator: self.description.generator.clone(),
            equation: self.description.equation.clone(),
        })
    }
}

/// The description in the text of a folder's `dataset.toml`; says how to complete one that a user wrote.
fn describe(folder: &Path, text: &str) -> Result<Description> {
    let place = folder.join("dataset.toml");
    let broken = |e: toml::de::Error| Error::input(place.display(), e.to_string().trim_end());
    let table: Table = toml::from_str(text).map_err(broken)?;
    let import = format!("softly data import {}", folder.display());
    if !table.contains_key("hash") || !table.contains_key("blocks") && !table.contains_key("format") {
        return Err(Error::input(place.display(), "the description has no statistics and no hash: it is not complete")
            .hint(format!("complete it: `{import}`")));
    }
    // First of all: another layout has other keys.
    let format = table.get("format").and_then(toml::Value::as_integer);
    if format != Some(i64::from(FORMAT)) {
        let found = format.map_or("none".into(), |format| format.to_string());
        return Err(Error::input(place.display(), format!("expected format = {FORMAT}, found {found}")).hint(format!(
            "the dataset was made by another version: renew its description by `{import}`, or make it again"
        )));
    }
    if !is_sealed(text) {
        return Err(Error::input(
            place.display(),
            "the file is damaged or was changed: its last line is the checksum of all others",
        )
        .hint(format!("copy or make it again; `{import}` records a change that is wanted")));
    }
    toml::from_str(text).map_err(broken)
}

/// The beginning of the last line of `dataset.toml`, which TOML takes for a comment; BLAKE3 of all lines before follows.
const SEAL: &str = "# checksum ";

/// The text of `dataset.toml` with its checksum.
pub(super) fn seal(text: &str) -> String {
    format!("{text}{SEAL}{}\n", blake3::hash(text.as_bytes()))
}

/// Whether the checksum of a text is there and right.
fn is_sealed(text: &str) -> bool {
    text.rfind(SEAL).is_some_and(|at| seal(&text[..at]) == text)
}

/// Refuses what cannot be the name of a field and of its file.
pub(super) fn check_name(name: &str) -> std::result::Result<(), String> {
    if name == SCALARS {
        return Err(format!("`{name}` cannot be a field's name: a file of this name holds the numbers of samples"));
    }
    usable_name(name)
}

/// Refuses an equation of data that is more than formulas and numbers: data have no learned or drawn parameters, and files do
/// not travel with a dataset.
pub(super) fn check_equation(equation: &ConstraintConfig) -> std::result::Result<(), String> {
    let odd =
        |parameter: &ParameterConfig| !matches!(parameter, ParameterConfig::Number(_) | ParameterConfig::Formula(_));
    match equation.parameters.iter().find(|(_, parameter)| odd(parameter)) {
        Some((name, _)) => {
            Err(format!("equation.parameters.{name}: expected a number or a formula in the data's own equation"))
        }
        None => Ok(()),
    }
}

/// Refuses constants that cannot be used by name.
fn check_constants(description: &Description) -> std::result::Result<(), String> {
    let axes = description.grid.axes.iter().map(|axis| &axis.name);
    let taken: Vec<&String> = description.fields.iter().map(|field| &field.name).chain(axes).collect();
    for (name, value) in &description.constants {
        check_name(name)?;
        if taken.contains(&name) {
            return Err(format!("the constant `{name}` has the name of a field or an axis"));
        }
        if !value.is_finite() {
            return Err(format!("expected a finite constant `{name}`, found {value}"));
        }
    }
    Ok(())
}

/// An array file that is read sample by sample.
#[derive(Debug)]
struct Sequence {
    file: ArrayFile,
    reader: npy::Reader,
    hasher: BlockHasher,
    /// Whether blocks are compared with their hashes.
    checked: bool,
}

impl Sequence {
    /// The next sample's numbers, which are finite; `last` says that no other follows.
    fn read(&mut self, sample: usize, last: bool) -> Result<Vec<f64>> {
        let file = &self.file;
        let mut values = vec![0.0; file.width];
        self.reader.read(&mut values)?;
        file.check_finite(sample, &values)?;
        self.hasher.add_numbers(values.iter().map(|&v| v as f32));
        if self.checked {
            self.hasher.check(&file.recorded, last, &file.path, &file.folder)?;
        }
        Ok(values)
    }
}

/// Samples of a split, one after the other.
#[derive(Debug)]
pub struct Samples {
    files: Vec<Sequence>,
    /// For each channel whether it is a scalar.
    scalar: Vec<bool>,
    nodes: usize,
    next: usize,
    count: usize,
}

impl Samples {
    /// The samples of a split of the dataset in `folder`, whose blocks are compared with their hashes if `checked`.
    pub(super) fn open(folder: &Path, description: &Description, split: Split, checked: bool) -> Result<Self> {
        let sequence = |(file, reader)| {
            let hasher = BlockHasher::new(description.blocks.samples);
            Sequence { file, reader, hasher, checked }
        };
        let files = ArrayFile::open_all(folder, description, split)?.into_iter().map(sequence).collect();
        let scalar = description.fields.iter().map(|field| field.scalar).collect();
        Ok(Self { files, scalar, nodes: description.grid.len(), next: 0, count: description.count(split) })
    }

    /// The next sample, `[H, W]` for every channel; its values are finite.
    pub fn next_sample(&mut self) -> Result<Option<Vec<Vec<f64>>>> {
        if self.next == self.count {
            return Ok(None);
        }
        let sample = self.next;
        self.next += 1;
        let last = self.next == self.count;
        let read = |file: &mut Sequence| file.read(sample, last);
        let mut arrays = self.files.iter_mut().map(read).collect::<Result<Vec<_>>>()?;
        let scalars = if self.scalar.contains(&true) { arrays.pop().unwrap_or_default() } else { Vec::new() };
        let (mut fields, mut scalars) = (arrays.into_iter(), scalars.into_iter());
        let spread = |value: f64| vec![value; self.nodes];
        let channel = |&scalar: &bool| if scalar { scalars.next().map(spread) } else { fields.next() };
        Ok(Some(self.scalar.iter().filter_map(channel).collect()))
    }

    /// The hashes of each file's blocks as far as they were read.
    pub(super) fn hashes(&self) -> Vec<Vec<String>> {
        self.files.iter().map(|file| file.hasher.hashes()).collect()
    }
}
