//! Files that are a list of stored arrays: `.npy`, `.npz`, MATLAB v5 and v7.

use std::io;
use std::path::{Path, PathBuf};

use super::number::Real;
use super::stored::{Bytes, Stored};
use super::{ArrayFile, ArrayInfo, Value, size_of, truncated};
use crate::error::{Error, Result};

/// An array of such a file: its description and, if its numbers can be read, where they are.
pub struct Entry {
    info: ArrayInfo,
    numbers: Option<(Stored, Box<dyn Bytes>)>,
}

impl Entry {
    /// The array's name.
    pub fn name(&self) -> &str {
        &self.info.name
    }
}

/// An entry from its parts.
pub fn entry(info: ArrayInfo, stored: Option<Stored>, bytes: Box<dyn Bytes>) -> Entry {
    Entry { info, numbers: stored.map(|stored| (stored, bytes)) }
}

/// A file of stored arrays.
pub struct Streams {
    path: PathBuf,
    arrays: Vec<ArrayInfo>,
    numbers: Vec<Option<(Stored, Box<dyn Bytes>)>>,
}

impl Streams {
    /// The file at `path` with these arrays.
    pub fn new(path: &Path, entries: Vec<Entry>) -> Self {
        let (arrays, numbers) = entries.into_iter().map(|e| (e.info, e.numbers)).unzip();
        Self { path: path.to_path_buf(), arrays, numbers }
    }

    fn fill<T: Real>(&mut self, array: usize, start: &[usize], count: &[usize], out: &mut [T]) -> Result<()> {
        let Some((stored, bytes)) = &mut self.numbers[array] else {
            return Err(self.arrays[array].unreadable(&self.path));
        };
        stored.read(bytes.as_mut(), start, count, out).map_err(|e| {
            let name = &self.arrays[array].name;
            match e.kind() {
                io::ErrorKind::UnexpectedEof => truncated(&self.path, format!("{name} ends too early")),
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                    truncated(&self.path, format!("the compressed numbers of {name} are damaged ({e})"))
                }
                _ => Error::io("read", &self.path)(e),
            }
        })
    }
}

impl ArrayFile for Streams {
    fn arrays(&self) -> &[ArrayInfo] {
        &self.arrays
    }

    fn attributes(&self) -> &[(String, Value)] {
        &[]
    }

    fn read_f32(&mut self, array: usize, start: &[usize], count: &[usize]) -> Result<Vec<f32>> {
        let mut out = vec![0.0; size_of(count)];
        self.fill(array, start, count, &mut out)?;
        Ok(out)
    }

    fn read_f64(&mut self, array: usize, start: &[usize], count: &[usize]) -> Result<Vec<f64>> {
        let mut out = vec![0.0; size_of(count)];
        self.fill(array, start, count, &mut out)?;
        Ok(out)
    }
}
