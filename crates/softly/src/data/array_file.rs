//! An array file of a dataset folder, checked against `dataset.toml`.

use std::path::{Path, PathBuf};

use crate::data::folder::{Description, SCALARS};
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::npy;

/// A file of a split that holds a field, or all scalars of samples.
#[derive(Debug)]
pub(super) struct ArrayFile {
    /// The dataset's folder.
    pub folder: PathBuf,
    /// The file.
    pub path: PathBuf,
    /// Its name in [`Description::files`].
    pub name: String,
    /// Names of the fields in it: one, or all scalars.
    pub fields: Vec<String>,
    /// Numbers of a sample.
    pub width: usize,
    /// The hashes of its blocks.
    pub recorded: Vec<String>,
}

impl ArrayFile {
    /// The array files of a split of the dataset in `folder`; refuses what is missing and what has another shape than `description` says.
    pub fn open_all(folder: &Path, description: &Description, split: Split) -> Result<Vec<(Self, npy::Reader)>> {
        description
            .files()
            .into_iter()
            .map(|(name, width)| Self::open(folder, description, split, name, width))
            .collect()
    }

    fn open(
        folder: &Path,
        description: &Description,
        split: Split,
        name: String,
        width: usize,
    ) -> Result<(Self, npy::Reader)> {
        let (count, grid) = (description.count(split), &description.grid);
        let path = folder.join(split.name()).join(format!("{name}.npy"));
        let fields = if name == SCALARS { description.scalars() } else { vec![name.clone()] };
        let place = place_of(&path, &fields.join(", "));
        if !path.exists() {
            return Err(Error::input(place, "dataset.toml names this field, but its file is missing")
                .hint("copy the whole folder, or make it again"));
        }
        let reader = npy::Reader::open(&path)?;
        let (expected, words) = if name == SCALARS {
            (vec![count, width], "[N, S]")
        } else {
            (vec![count, grid.rows(), grid.cols()], "[N, H, W]")
        };
        if reader.shape != expected {
            let problem = format!("dataset.toml says {words} = {expected:?}, the array has {:?}", reader.shape);
            return Err(Error::input(place, problem));
        }
        let recorded = description.blocks.of(split).get(&name).cloned().unwrap_or_default();
        Ok((Self { folder: folder.to_path_buf(), path, name, fields, width, recorded }, reader))
    }

    /// Refuses numbers of sample `sample` that are not finite in single precision.
    pub fn check_finite<T: Copy + Into<f64>>(&self, sample: usize, values: &[T]) -> Result<()> {
        let Some(bad) = values.iter().position(|&v| !(v.into() as f32).is_finite()) else { return Ok(()) };
        let field = self.fields.get(bad).unwrap_or(&self.fields[0]);
        let problem = format!("expected finite numbers, found {} in sample {sample}", values[bad].into());
        Err(Error::input(place_of(&self.path, field), problem)
            .hint("drop or repair that sample; `softly data import DIR --drop-nan --out OTHER` drops it"))
    }
}

/// A file and a field in it, as errors name them.
fn place_of(path: &Path, field: &str) -> String {
    format!("{} (field `{field}`)", path.display())
}
