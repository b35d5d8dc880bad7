//! Datasets from files of other programs: the samples of [`crate::data::format`] as a source for the writer.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use softly_pde::grid::{Axis, Grid, Placement};
use toml::{Table, Value};

use crate::constraint::config::ConstraintConfig;
use crate::data::format::{AxisGuess, FileSource, ImportOptions, recognise};
use crate::data::generator::FieldSpec;
use crate::data::split::Split;
use crate::data::writer::{Plan, Source};
use crate::error::{Error, Result};

/// Samples of files.
pub struct Imported {
    plan: Plan,
    grid: Grid,
    fields: Vec<FieldSpec>,
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
        if !(valid > 0.0 && valid < 1.0) {
            return Err(Error::input("--valid", format!("expected a share between 0 and 1, found {valid}")));
        }
        let layout = recognise(files, options)?;
        let mut notes = vec![format!("taken for: {}", layout.name)];
        let name = layout.name.clone();
        let mut source = FileSource::open(layout, options)?;
        let count = source.count();
        if count < 2 {
            return Err(Error::input("data import", format!("expected at least 2 samples, found {count}"))
                .hint("one to train on and one to hold out"));
        }
        let held_out = ((count as f64 * valid).round() as usize).clamp(1, count - 1);
        let grid = Grid { axes: source.axes().iter().map(axis_of).collect() };
        grid.check().map_err(|e| Error::input("axes", &e).hint(e.hint().unwrap_or_default()))?;
        let field = |name| FieldSpec { name, quantity: String::new(), unit: String::new() };
        let fields = source.fields().into_iter().map(field).collect();
        notes.extend(source.notes().iter().cloned());
        let left_out = source.scalars();
        if !left_out.is_empty() {
            notes.push(format!("numbers of samples that are not kept: {}", left_out.join(", ")));
        }
        let plan = Plan {
            train: count - held_out,
            valid: held_out,
            seed: None,
            generator: None,
            origin: Some(origin(files, options, &name)?),
        };
        let block = source.block()?;
        Ok(Self { plan, grid, fields, block, source: Mutex::new(source), notes })
    }
}

impl Source for Imported {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn fields(&self) -> Vec<FieldSpec> {
        self.fields.clone()
    }

    fn grid(&self) -> Grid {
        self.grid.clone()
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        None
    }

    fn samples(&self, split: Split, range: Range<usize>) -> Result<Vec<Vec<f32>>> {
        let before = if split == Split::Train { 0 } else { self.plan.train };
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = source.read(before + range.start..before + range.end)?;
        Ok(samples.into_iter().map(|sample| sample.values).collect())
    }

    fn chunk(&self) -> usize {
        self.block
    }
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
fn origin(files: &[PathBuf], options: &ImportOptions, layout: &str) -> Result<Table> {
    let named = options.fields.iter().map(|field| &field.file);
    let file = |path: &PathBuf| {
        let bytes = std::fs::metadata(path).map_err(Error::io("read", path))?.len();
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Value::Table(Table::from_iter([
            ("name".to_string(), Value::String(name)),
            ("bytes".to_string(), Value::Integer(bytes as i64)),
        ])))
    };
    let files = files.iter().chain(named).map(file).collect::<Result<Vec<_>>>()?;
    // Without paths: a dataset is shared with others.
    let fields = options.fields.iter().map(|f| (&f.name, &f.array)).collect::<Vec<_>>();
    let ImportOptions { axes, domain, periodic, cells, stride, slice, frames, drop_nan, .. } = options;
    let said = format!("{:?}", (fields, axes, domain, periodic, cells, stride, slice, frames, drop_nan));
    Ok(Table::from_iter([
        ("layout".to_string(), Value::String(layout.to_string())),
        ("files".to_string(), Value::Array(files)),
        ("options".to_string(), Value::String(said)),
    ]))
}
