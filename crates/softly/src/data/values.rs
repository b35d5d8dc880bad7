//! The numbers of a split's samples: in memory, or in the array files of a folder.
//!
//! Files are read where a sample lies when it is used, so that memory does not depend on their size. They are not mapped: a mapped file
//! that another process shortens ends this one by a signal, where a read gives an error, and the system's cache serves both.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::data::array_file::ArrayFile;
use crate::data::fingerprint::BlockHasher;
use crate::data::folder::Description;
use crate::data::split::Split;
use crate::error::Result;
use crate::npy::Positioned;

/// Numbers that are read at a time: four megabytes.
pub(super) const PIECE: usize = 1 << 20;

/// Samples in physical units, `[N, C, H, W]` row-major.
#[derive(Debug, Clone)]
pub enum Values {
    /// All of them.
    Memory(Vec<f32>),
    /// The files that hold them.
    Files(Arc<ArrayFiles>),
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Self {
        Self::Memory(values)
    }
}

impl Values {
    /// The samples of a split of the dataset in `folder`.
    pub(super) fn of_folder(folder: &Path, description: &Description, split: Split) -> Result<Self> {
        let (count, block) = (description.count(split), description.blocks.samples.max(1));
        let checked = || (0..count.div_ceil(block)).map(|_| AtomicBool::new(false)).collect();
        let files = ArrayFile::open_all(folder, description, split)?.into_iter();
        let files = files.map(|(file, reader)| CheckedFile {
            file,
            array: reader.by_position(),
            count,
            block,
            checked: checked(),
        });
        Ok(Self::Files(Arc::new(ArrayFiles {
            files: files.collect(),
            scalar: description.fields.iter().map(|field| field.scalar).collect(),
            nodes: description.grid.len(),
            count,
        })))
    }

    /// The number of samples, which have `length` numbers each.
    pub(super) fn count(&self, length: usize) -> usize {
        match self {
            Self::Memory(values) => values.len() / length,
            Self::Files(files) => files.count,
        }
    }

    /// Samples `range`, which have `length` numbers each.
    pub(super) fn read(&self, range: Range<usize>, length: usize) -> Result<Cow<'_, [f32]>> {
        Ok(match self {
            Self::Memory(values) => Cow::Borrowed(&values[range.start * length..range.end * length]),
            Self::Files(files) => Cow::Owned(files.read(range)?),
        })
    }
}

/// The array files of a split.
#[derive(Debug)]
pub struct ArrayFiles {
    /// Of the fields, and of the scalars if there are any.
    files: Vec<CheckedFile>,
    /// For each channel whether it is a scalar.
    scalar: Vec<bool>,
    nodes: usize,
    count: usize,
}

impl ArrayFiles {
    /// The recorded hashes of every file's blocks, by the file's name.
    pub(super) fn hashes(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.files.iter().map(|CheckedFile { file, .. }| (&file.name[..], &file.recorded[..]))
    }

    /// Samples `range`, `[N, C, H, W]`.
    fn read(&self, range: Range<usize>) -> Result<Vec<f32>> {
        let arrays = self.files.iter().map(|file| file.read(range.clone())).collect::<Result<Vec<_>>>()?;
        let mut values = Vec::with_capacity(range.len() * self.scalar.len() * self.nodes);
        for k in 0..range.len() {
            let mut fields =
                self.files.iter().zip(&arrays).map(|(f, array)| &array[k * f.file.width..(k + 1) * f.file.width]);
            // The table of scalars is the last file.
            let mut scalars = if self.scalar.contains(&true) { fields.next_back() } else { None }.into_iter().flatten();
            for &is_scalar in &self.scalar {
                if is_scalar {
                    values.extend(scalars.next().into_iter().flat_map(|value| std::iter::repeat_n(value, self.nodes)));
                } else {
                    values.extend(fields.next().into_iter().flatten());
                }
            }
        }
        Ok(values)
    }
}

/// A file whose blocks are compared with their hashes when one of their samples is read for the first time.
#[derive(Debug)]
struct CheckedFile {
    file: ArrayFile,
    array: Positioned,
    /// Samples.
    count: usize,
    /// Samples of a block.
    block: usize,
    /// For each block whether it was compared.
    checked: Vec<AtomicBool>,
}

impl CheckedFile {
    fn read(&self, samples: Range<usize>) -> Result<Vec<f32>> {
        if !samples.is_empty() {
            (samples.start / self.block..=(samples.end - 1) / self.block).try_for_each(|block| self.check(block))?;
        }
        self.array.read(samples.start * self.file.width, samples.len() * self.file.width)
    }

    /// Refuses a block that is not finite or has another hash than `dataset.toml` records.
    fn check(&self, block: usize) -> Result<()> {
        if self.checked[block].load(Ordering::Relaxed) {
            return Ok(());
        }
        let (width, end) = (self.file.width, self.count.min((block + 1) * self.block));
        let at_once = (PIECE / width).max(1);
        let mut hasher = BlockHasher::after(block, self.block);
        for first in (block * self.block..end).step_by(at_once) {
            let values = self.array.read(first * width, at_once.min(end - first) * width)?;
            for (sample, values) in (first..).zip(values.chunks_exact(width)) {
                self.file.check_finite(sample, values)?;
                hasher.add_numbers(values.iter().copied());
            }
        }
        hasher.check(&self.file.recorded, true, &self.file.path, &self.file.folder)?;
        self.checked[block].store(true, Ordering::Relaxed);
        Ok(())
    }
}
