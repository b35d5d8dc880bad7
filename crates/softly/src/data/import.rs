//! Datasets from files of other programs: the samples of [`crate::data::format`] as a source for the writer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use softly_pde::grid::{Axis, Grid, Placement};
use toml::{Table, Value};

use crate::constraint::config::ConstraintConfig;
use crate::data::draft::HandMade;
use crate::data::folder::check_name;
use crate::data::format::{AxisGuess, FileSource, ImportOptions, Sample, recognise};
use crate::data::generator::FieldSpec;
use crate::data::split::Split;
use crate::data::writer::{Plan, Source};
use crate::error::{Error, Result};

/// Samples of files.
pub struct Imported {
    plan: Plan,
    grid: Grid,
    fields: Vec<FieldSpec>,
    /// The scalars that are channels, with their positions among the source's.
    scalars: Vec<(usize, FieldSpec)>,
    constants: BTreeMap<String, f64>,
    equation: Option<ConstraintConfig>,
    /// Samples that are best read at once.
    block: usize,
    source: Mutex<FileSource>,
    /// What a user should know of how the files are taken.
    pub notes: Vec<String>,
}

impl Imported {
    /// The samples of `files`, or of the fields that `options` name, as `options` say; the last share `valid` of them is held
    /// out.
    pub fn open(files: &[PathBuf], options: &ImportOptions, valid: f64) -> Result<Self> {
        let layout = recognise(files, options)?;
        let origin = origin(files.iter().chain(options.fields.iter().map(|field| &field.file)), options, &layout.name)?;
        let source = FileSource::open(layout, options)?;
        let train = share(source.count(), valid)?;
        let plan = |train, valid| Plan { train, valid, seed: None, generator: None, origin: Some(origin) };
        Self::of(source, train, plan, options)
    }

    /// The samples of a folder with a `dataset.toml` that a user wrote; the last share `valid` of them is held out if they are
    /// not split already.
    pub fn of_folder(hand_made: &HandMade, options: &ImportOptions, valid: f64) -> Result<Self> {
        let HandMade { draft, layout, files, .. } = hand_made;
        if !options.fields.is_empty() {
            return Err(Error::input("--field", "expected either a folder or fields, found both")
                .hint("a folder's fields are those that its dataset.toml names"));
        }
        let mut origin = origin(files.iter(), options, &layout.name)?;
        // Other axes, constants or another equation make another dataset.
        let description = blake3::hash(format!("{draft:?}").as_bytes()).to_hex().to_string();
        origin.insert("description".into(), Value::String(description));
        if let Some(before) = &draft.origin {
            origin.insert("of".into(), Value::Table(before.clone()));
        }
        let source = FileSource::open(layout.clone(), options)?;
        // A part of generated data is not what the generator makes.
        let grid = Grid { axes: source.axes().iter().map(axis_of).collect() };
        let generator = draft.generator.clone().filter(|generator| generator.get().grid() == grid);
        let seed = draft.seed.filter(|_| generator.is_some());
        let train = match hand_made.train {
            Some(train) => source.left_of(train),
            None => share(source.count(), valid)?,
        };
        let plan = |train, valid| Plan { train, valid, seed, generator, origin: Some(origin) };
        let mut imported = Self::of(source, train, plan, options)?;
        imported.fields.iter_mut().for_each(|field| *field = draft.spec(&field.name));
        imported.scalars.iter_mut().for_each(|(_, scalar)| *scalar = draft.spec(&scalar.name));
        imported.constants.extend(draft.constants.clone());
        imported.equation.clone_from(&draft.equation);
        Ok(imported)
    }

    fn of(
        mut source: FileSource,
        train: usize,
        plan: impl FnOnce(usize, usize) -> Plan,
        options: &ImportOptions,
    ) -> Result<Self> {
        let grid = Grid { axes: source.axes().iter().map(axis_of).collect() };
        grid.check().map_err(|e| Error::input("axes", &e).hint(e.hint().unwrap_or_default()))?;
        for name in source.fields() {
            check_name(&name).map_err(|problem| {
                Error::input("data import", problem).hint("name the field by --field NAME=FILE:ARRAY")
            })?;
        }
        let mut notes = vec![format!("taken for: {}", source.layout_name())];
        notes.extend(source.axes().iter().map(axis_words));
        notes.extend(source.notes().iter().cloned());
        let Numbers { scalars, constants } = numbers(&source, options, &mut notes)?;
        let plan = plan(train, source.count() - train);
        let fields = source.fields().into_iter().map(plain).collect();
        let block = source.block()?;
        let (equation, source) = (None, Mutex::new(source));
        Ok(Self { plan, grid, fields, scalars, constants, equation, block, source, notes })
    }

    /// Values of the scalar `k` of a split.
    pub(super) fn scalar_values(&self, k: usize, split: Split) -> Vec<f64> {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let values = source.scalar_values().swap_remove(self.scalars[k].0).values;
        let (train, valid) = values.split_at(self.plan.train.min(values.len()));
        if split == Split::Train { train.to_vec() } else { valid.to_vec() }
    }
}

/// How many of `count` samples are for training if the share `valid` is held out: at least one for each.
fn share(count: usize, valid: f64) -> Result<usize> {
    if !(valid > 0.0 && valid < 1.0) {
        return Err(Error::input("--valid", format!("expected a share between 0 and 1, found {valid}")));
    }
    if count < 2 {
        return Err(Error::input("data import", format!("expected at least 2 samples, found {count}"))
            .hint("one to train on and one to hold out"));
    }
    Ok(count - ((count as f64 * valid).round() as usize).clamp(1, count - 1))
}

/// Numbers of samples: the scalars that vary, with their positions among the source's, and the constants.
#[derive(Default)]
struct Numbers {
    scalars: Vec<(usize, FieldSpec)>,
    constants: BTreeMap<String, f64>,
}

/// The numbers of the samples of `source` that `options` keep.
fn numbers(source: &FileSource, options: &ImportOptions, notes: &mut Vec<String>) -> Result<Numbers> {
    let all = source.scalar_values();
    let names: Vec<&str> = all.iter().map(|scalar| scalar.name.as_str()).collect();
    if let Some(unknown) = options.scalars.iter().flatten().find(|name| !names.contains(&name.as_str())) {
        let known = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        return Err(Error::input("--scalars", format!("there is no number {unknown} of samples; there are: {known}")));
    }
    let frames = source.frame_axis();
    let is_kept = |name: &str| match &options.scalars {
        Some(kept) => kept.iter().any(|k| k == name),
        None => Some(name) != frames,
    };
    let mut numbers = Numbers::default();
    for (k, scalar) in all.iter().enumerate() {
        let name = &scalar.name;
        if !is_kept(name) {
            notes.push(format!("{name} of the samples is not kept; --scalars {name} keeps it"));
            continue;
        }
        check_name(name).map_err(|problem| Error::input("data import", problem).hint("leave it out by --scalars"))?;
        if let [value] = scalar.values[..] {
            notes.push(format!("{name} = {value} for all samples: a constant that formulas may use"));
            numbers.constants.insert(name.clone(), value);
        } else {
            notes.push(format!("{name} varies between samples: a field that is constant over the grid"));
            numbers.scalars.push((k, plain(name.clone())));
        }
    }
    Ok(numbers)
}

/// A field of which only the name is known.
fn plain(name: String) -> FieldSpec {
    FieldSpec { name, quantity: String::new(), unit: String::new() }
}

impl Source for Imported {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn fields(&self) -> Vec<FieldSpec> {
        self.fields.clone()
    }

    fn scalars(&self) -> Vec<FieldSpec> {
        self.scalars.iter().map(|(_, scalar)| scalar.clone()).collect()
    }

    fn constants(&self) -> BTreeMap<String, f64> {
        self.constants.clone()
    }

    fn grid(&self) -> Grid {
        self.grid.clone()
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        self.equation.clone()
    }

    fn samples(&self, split: Split, range: Range<usize>) -> Result<Vec<Vec<f32>>> {
        let before = if split == Split::Train { 0 } else { self.plan.train };
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = source.read(before + range.start..before + range.end)?;
        let whole = |sample: Sample| {
            let mut values = sample.values;
            values.extend(self.scalars.iter().map(|&(k, _)| sample.scalars[k] as f32));
            values
        };
        Ok(samples.into_iter().map(whole).collect())
    }

    fn chunk(&self) -> usize {
        self.block
    }
}

/// An axis in words, with where its numbers come from.
fn axis_words(axis: &AxisGuess) -> String {
    let AxisGuess { name, nodes, first, last, from, .. } = axis;
    let placement = if axis.cells { "cells" } else { "nodes" };
    let periodic = if axis.periodic { ", periodic" } else { "" };
    format!("axis {name}: {nodes} {placement} from {first} to {last}{periodic} ({from})")
}

/// The axis as grids have it.
fn axis_of(guess: &AxisGuess) -> Axis {
    Axis {
        name: guess.name.clone(),
        nodes: guess.nodes,
        first: guess.first,
        last: guess.last,
        periodic: guess.periodic,
        placement: if guess.cells { Placement::Cells } else { Placement::Nodes },
    }
}

/// Where the samples come from: the layout, the names and sizes of the files, and the options.
fn origin<'a>(files: impl Iterator<Item = &'a PathBuf>, options: &ImportOptions, layout: &str) -> Result<Table> {
    let file = |path: &PathBuf| {
        let bytes = std::fs::metadata(path).map_err(Error::io("read", path))?.len();
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Value::Table(Table::from_iter([
            ("name".to_string(), Value::String(name)),
            ("bytes".to_string(), Value::Integer(bytes as i64)),
        ])))
    };
    let files = files.map(file).collect::<Result<Vec<_>>>()?;
    // Without paths: a dataset is shared with others.
    let fields = options.fields.iter().map(|f| (&f.name, &f.array)).collect::<Vec<_>>();
    let ImportOptions { axes, domain, periodic, cells, stride, slice, frames, drop_nan, scalars, .. } = options;
    let said = format!("{:?}", (fields, axes, domain, periodic, cells, stride, slice, frames, drop_nan, scalars));
    Ok(Table::from_iter([
        ("layout".to_string(), Value::String(layout.to_string())),
        ("files".to_string(), Value::Array(files)),
        ("options".to_string(), Value::String(said)),
    ]))
}
