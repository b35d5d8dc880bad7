//! Array files of other programs: what is in them, what they are taken for, and their samples.
//!
//! A file is recognised by its first bytes, whatever its name. Every format gives the same view, [`ArrayFile`]: named
//! arrays with shapes as NumPy shows them, read block by block, so that no file has to fit the memory.

mod csv;
mod describe;
mod export;
mod hdf5;
mod hdf5_writer;
mod layout;
mod lzf;
mod mat5;
mod npy;
mod npz;
mod number;
mod options;
mod plan;
mod source;
mod stored;
mod streams;
mod vti;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use describe::{Description, describe};
pub use export::{ExportHead, ExportLayout, Exporter};
pub use layout::{AxisGuess, Coordinates, FieldSource, Layout, Piece, Role, Scalar, recognise};
pub use number::NumberType;
pub use options::{FieldOption, ImportOptions};
pub use source::{FileSource, Sample};
pub use vti::write_vti;

use crate::error::{Error, Result};

/// An open file of arrays.
pub trait ArrayFile: Send {
    /// The arrays.
    fn arrays(&self) -> &[ArrayInfo];

    /// Notes on the whole file.
    fn attributes(&self) -> &[(String, Value)];

    /// Notes on a group of arrays (HDF5).
    fn group_attributes(&self, _group: &str) -> Result<Vec<(String, Value)>> {
        Ok(Vec::new())
    }

    /// The block of `count` entries from `start` on along each axis of an array (by position), row-major.
    fn read_f32(&mut self, array: usize, start: &[usize], count: &[usize]) -> Result<Vec<f32>>;

    /// The same in double precision, for coordinates and parameters.
    fn read_f64(&mut self, array: usize, start: &[usize], count: &[usize]) -> Result<Vec<f64>>;
}

/// What is known of an array without reading it.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrayInfo {
    /// Name; in HDF5 the path from the root, without the leading slash.
    pub name: String,
    /// Size along each axis, as NumPy (or `scipy.io.loadmat`) shows it.
    pub shape: Vec<usize>,
    /// Type of the values.
    pub dtype: Type,
    /// Names of the axes, if the file knows them (NetCDF).
    pub dimensions: Vec<String>,
    /// Notes on the array.
    pub attributes: Vec<(String, Value)>,
    /// Size along each axis of the parts that are read at once.
    pub chunk: Vec<usize>,
}

/// Number of values of a shape; the largest number for what no computer holds.
fn size_of(shape: &[usize]) -> usize {
    shape.iter().fold(1, |size, &n| size.saturating_mul(n))
}

impl ArrayInfo {
    fn new(name: impl Into<String>, shape: Vec<usize>, dtype: Type) -> Self {
        let chunk = vec![1; shape.len()];
        Self { name: name.into(), shape, dtype, dimensions: Vec::new(), attributes: Vec::new(), chunk }
    }

    /// Whether the values are real numbers.
    pub fn is_numeric(&self) -> bool {
        matches!(self.dtype, Type::Number(_))
    }

    /// Number of values; the largest number for what no computer holds.
    pub fn size(&self) -> usize {
        size_of(&self.shape)
    }

    /// The value of a note.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        find(&self.attributes, name)
    }

    /// The refusal of an array of this file whose values are no real numbers.
    pub(in crate::data) fn unreadable(&self, path: &Path) -> Error {
        let reason = match &self.dtype {
            Type::Number(_) => "nothing that can be read".into(),
            Type::Other(reason) => reason.clone(),
        };
        let hint = if reason.starts_with("complex") {
            "save the real and the imaginary part as two arrays: they become two fields"
        } else {
            "save it as an array of floats or integers"
        };
        Error::input(format!("{}:{}", path.display(), self.name), format!("expected real numbers, found {reason}"))
            .hint(hint)
    }
}

/// The type of an array's values.
#[derive(Debug, Clone, PartialEq)]
pub enum Type {
    /// Real numbers.
    Number(NumberType),
    /// Anything else, in words.
    Other(String),
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Other(reason) => reason.fmt(f),
        }
    }
}

/// The value of a note.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Numbers; truth values are 0 and 1.
    Numbers(Vec<f64>),
    /// Texts.
    Texts(Vec<String>),
}

impl Value {
    /// The only number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Numbers(values) if values.len() == 1 => Some(values[0]),
            _ => None,
        }
    }

    /// The numbers; none for texts.
    pub fn numbers(&self) -> &[f64] {
        match self {
            Self::Numbers(values) => values,
            Self::Texts(_) => &[],
        }
    }

    /// The texts; none for numbers.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::Numbers(_) => &[],
            Self::Texts(values) => values,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = match self {
            Self::Numbers(values) => values.iter().map(ToString::to_string).collect(),
            Self::Texts(values) => values.clone(),
        };
        write!(f, "{}", parts.join(", "))
    }
}

/// The value called `name` in a list of notes.
pub fn find<'a>(attributes: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// Opens an array file of any format.
pub fn open(path: &Path) -> Result<Box<dyn ArrayFile>> {
    let mut head = Vec::new();
    let file = File::open(path).map_err(Error::io("read", path))?;
    if file.metadata().map_err(Error::io("read", path))?.is_dir() {
        return Err(Error::input(path.display(), "expected a file, found a folder")
            .hint("name the files in it; a folder with a dataset.toml is completed by `softly data import DIR`"));
    }
    file.take(1024).read_to_end(&mut head).map_err(Error::io("read", path))?;
    match () {
        () if head.is_empty() => Err(Error::input(path.display(), "the file is empty").hint("copy or save it again")),
        () if head.starts_with(b"\x93NUMPY") => npy::open(path),
        () if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") => npz::open(path),
        () if head.starts_with(b"MATLAB 5.0") => mat5::open(path),
        () if hdf5::SIGNATURE_PLACES
            .iter()
            .any(|&at| head.get(at..).is_some_and(|b| b.starts_with(hdf5::SIGNATURE))) =>
        {
            hdf5::open(path, head.starts_with(b"MATLAB 7.3"))
        }
        () => foreign(path, &head).map_or_else(|| csv::open(path, &head), Err),
    }
}

/// The refusal of files that are known but not read.
fn foreign(path: &Path, head: &[u8]) -> Option<Error> {
    let known: [(&[u8], &str, &str); 7] = [
        (b"CDF", "a classic NetCDF file", "convert it with `nccopy -k nc4 in.nc out.nc`"),
        (b"ARROW1", "an Arrow file", "save its columns with numpy.save"),
        (b"PAR1", "a Parquet file", "save its columns with numpy.save"),
        (b"\x1f\x8b", "a gzip file", "unpack it first"),
        (b"\x0e\x03\x13\x01", "an HDF4 file", "convert it with h4toh5"),
        (b"MATLAB 7.3", "the beginning of a MATLAB 7.3 file without its HDF5 part", "copy or save it again"),
        (b"\x80", "a Python pickle or PyTorch file", "save its arrays with numpy.save"),
    ];
    let kinds = ".npy, .npz, .csv, .mat, HDF5 or NetCDF-4";
    if let Some((_, what, hint)) = known.iter().find(|(magic, ..)| head.starts_with(magic)) {
        return Some(Error::input(path.display(), format!("expected {kinds}, found {what}")).hint(hint));
    }
    head.contains(&0).then(|| {
        Error::input(path.display(), format!("expected {kinds}, found bytes of no known format"))
            .hint("the file may be truncated at its beginning or of another program; MATLAB 4 files: save with -v7")
    })
}

/// The error of a file that ends too early or is damaged.
fn truncated(path: &Path, what: impl fmt::Display) -> Error {
    Error::input(path.display(), format!("the file is truncated or damaged: {what}"))
        .hint("copy, download or save it again")
}
