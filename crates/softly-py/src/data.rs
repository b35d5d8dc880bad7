//! Datasets: in folders, or in arrays of Python.

use std::collections::BTreeMap;
use std::path::PathBuf;

use numpy::{PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use softly::error::Error;
use softly::format::{FieldOption, ImportOptions};
use softly::{ConstraintConfig, Dataset, DatasetFolder, HandMade, Imported, InMemory};
use softly_pde::grid::Grid;

use crate::error::{raise, refuse};
use crate::watch::watch;

/// What is found, as JSON.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("values of the library are valid JSON")
}

/// What Python says of arrays.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Words {
    fields: Vec<String>,
    scalars: Vec<String>,
    constants: BTreeMap<String, f64>,
    grid: Grid,
    equation: Option<ConstraintConfig>,
}

/// Where samples are.
enum Place {
    Folder(PathBuf),
    Arrays { words: String, train: Vec<Py<PyArrayDyn<f32>>>, valid: Vec<Py<PyArrayDyn<f32>>> },
}

/// Samples in a folder or in arrays; they are read when they are needed.
#[pyclass(frozen, module = "softly._core")]
pub struct Data(Place);

#[pymethods]
impl Data {
    /// The samples of a dataset folder.
    #[staticmethod]
    fn folder(path: PathBuf) -> Self {
        Self(Place::Folder(path))
    }

    /// Samples in arrays: one C-contiguous `[N, H, W]` per field, then one `[N]` per scalar, for training and held out. `words` is
    /// JSON with fields, scalars (the last of the fields), constants, grid and equation.
    #[staticmethod]
    fn arrays(words: String, train: Vec<Py<PyArrayDyn<f32>>>, valid: Vec<Py<PyArrayDyn<f32>>>) -> Self {
        Self(Place::Arrays { words, train, valid })
    }
}

impl Data {
    /// The samples in memory of the library.
    pub fn dataset(&self, py: Python<'_>) -> PyResult<Dataset> {
        match &self.0 {
            Place::Folder(path) => py.detach(|| DatasetFolder::open(path)?.load()).map_err(raise),
            Place::Arrays { words, train, valid } => {
                let Words { fields, scalars, constants, grid, equation } =
                    serde_json::from_str(words).map_err(|e| refuse("data", e, ""))?;
                let numbers = (fields.len() - scalars.len(), grid.len());
                let [train, valid] = [train, valid].map(|arrays| interleaved(py, arrays, numbers));
                let (train, valid) = (train?.into(), valid?.into());
                Ok(Dataset { fields, scalars, constants, grid, train, valid, generator: None, equation })
            }
        }
    }

    /// The folder of the samples, if they are in one.
    pub fn path(&self) -> Option<&PathBuf> {
        match &self.0 {
            Place::Folder(path) => Some(path),
            Place::Arrays { .. } => None,
        }
    }
}

/// Samples `[N, C, H, W]` from `fields` arrays `[N, H, W]` of `nodes` numbers per sample, then arrays `[N]`.
fn interleaved(py: Python<'_>, arrays: &[Py<PyArrayDyn<f32>>], (fields, nodes): (usize, usize)) -> PyResult<Vec<f32>> {
    let held: Vec<_> = arrays.iter().map(|array| array.bind(py).readonly()).collect();
    let slices = held.iter().map(|array| array.as_slice()).collect::<Result<Vec<_>, _>>();
    let slices = slices.map_err(|e| refuse("data", e, ""))?;
    let count = slices.first().map_or(0, |first| first.len() / if fields > 0 { nodes } else { 1 });
    Ok(py.detach(|| {
        let mut all = Vec::with_capacity(count * slices.len() * nodes);
        for sample in 0..count {
            for (k, slice) in slices.iter().enumerate() {
                if k < fields {
                    all.extend_from_slice(&slice[sample * nodes..(sample + 1) * nodes]);
                } else {
                    all.extend(std::iter::repeat_n(slice[sample], nodes));
                }
            }
        }
        all
    }))
}

/// The description of a dataset folder, as JSON.
#[pyfunction]
pub fn open_folder(path: PathBuf) -> PyResult<String> {
    DatasetFolder::open(&path).map(|folder| json(&folder.description)).map_err(raise)
}

/// Writes samples as a dataset folder.
#[pyfunction]
#[pyo3(signature = (data, folder, progress=None))]
pub fn save(py: Python<'_>, data: &Data, folder: PathBuf, progress: Option<Bound<'_, PyAny>>) -> PyResult<()> {
    let dataset = data.dataset(py)?;
    watch(py, None, progress.as_ref(), |job| {
        dataset.check()?;
        softly::write(&InMemory::new(&dataset), &folder, job).map(|_| ())
    })
}

/// The options of an import.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wishes {
    files: Vec<PathBuf>,
    fields: Vec<String>,
    axes: Vec<String>,
    domain: BTreeMap<String, [f64; 2]>,
    periodic: Vec<String>,
    cells: Option<bool>,
    stride: BTreeMap<String, usize>,
    slice: BTreeMap<String, usize>,
    frames: Option<[usize; 2]>,
    drop_nan: bool,
    scalars: Option<Vec<String>>,
    valid: f64,
}

impl Wishes {
    fn parse(text: &str) -> PyResult<(Vec<PathBuf>, ImportOptions, f64)> {
        let wishes: Self = serde_json::from_str(text).map_err(|e| refuse("import", e, ""))?;
        let fields = wishes.fields.iter().map(|text| FieldOption::parse(text));
        let options = ImportOptions {
            fields: fields.collect::<Result<_, _>>().map_err(raise)?,
            axes: wishes.axes,
            domain: wishes.domain.into_iter().collect(),
            periodic: wishes.periodic,
            cells: wishes.cells,
            stride: wishes.stride.into_iter().collect(),
            slice: wishes.slice.into_iter().collect(),
            frames: wishes.frames,
            drop_nan: wishes.drop_nan,
            scalars: wishes.scalars,
        };
        Ok((wishes.files, options, wishes.valid))
    }
}

/// Imports files of other programs, or a folder that a user wrote, into the folder `out`; returns notes on how they are taken.
#[pyfunction]
#[pyo3(signature = (wishes, out, progress=None))]
pub fn import_files(
    py: Python<'_>,
    wishes: &str,
    out: PathBuf,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<Vec<String>> {
    let (files, options, valid) = Wishes::parse(wishes)?;
    watch(py, None, progress.as_ref(), |job| {
        let source = match &files[..] {
            [folder] if folder.is_dir() => Imported::of_folder(&HandMade::open(folder)?, &options, valid)?,
            [] if options.fields.is_empty() => return Err(Error::input("import", "expected files, found none")),
            _ => Imported::open(&files, &options, valid)?,
        };
        softly::write(&source, &out, job)?;
        Ok(source.notes)
    })
}

/// Completes a folder that a user wrote, where it is; returns notes on how it is taken.
#[pyfunction]
#[pyo3(signature = (wishes, progress=None))]
pub fn complete(py: Python<'_>, wishes: &str, progress: Option<Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let (files, options, valid) = Wishes::parse(wishes)?;
    let [folder] = &files[..] else { return Err(refuse("import", "expected one folder", "")) };
    watch(py, None, progress.as_ref(), |job| Ok(softly::complete(folder, &options, valid, job)?.1))
}
