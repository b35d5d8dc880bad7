//! Named f32 arrays in `.safetensors` files, with text metadata and a checksum. Files to be shared hold f16.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use half::f16;
use safetensors::tensor::{Dtype, SafeTensors};

use crate::direction::DirectionKind;
use crate::error::{Error, Result};
use crate::files::write_atomically;

/// Name, shape and row-major values.
pub type NamedTensor = (String, Vec<usize>, Vec<f32>);

/// Named f32 arrays with text metadata and a checksum over all of it.
#[derive(Debug, Clone, Default)]
pub struct TensorFile {
    /// Text by key.
    pub metadata: HashMap<String, String>,
    /// The arrays.
    pub tensors: Vec<NamedTensor>,
}

/// An array that is to be written: its name, its shape and its values.
pub struct View<'a> {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: &'a [usize],
    /// The values, row-major.
    pub values: &'a [f32],
}

/// The numbers of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// f32.
    Single,
    /// f16, for values that are f16 already.
    Half,
}

/// What a file's header says of an array; the bytes follow the header one array after the other.
struct Entry<'a>(&'a View<'a>, Width);

impl safetensors::View for Entry<'_> {
    fn dtype(&self) -> Dtype {
        match self.1 {
            Width::Single => Dtype::F32,
            Width::Half => Dtype::F16,
        }
    }

    fn shape(&self) -> &[usize] {
        self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn data_len(&self) -> usize {
        match self.1 {
            Width::Single => 4 * self.0.values.len(),
            Width::Half => 2 * self.0.values.len(),
        }
    }
}

/// BLAKE3 of the metadata's text and of every tensor, by name: its name, its shape and the bytes of its values as f32.
fn checksum(text: &str, tensors: &[View<'_>]) -> String {
    let mut sorted: Vec<&View<'_>> = tensors.iter().collect();
    sorted.sort_by_key(|view| &view.name);
    let mut hasher = blake3::Hasher::new();
    hasher.update(text.as_bytes());
    for View { name, shape, values } in sorted {
        hasher.update(format!("\n{name} {shape:?}\n").as_bytes());
        hasher.update(&bytes(values));
    }
    hasher.finalize().to_hex().to_string()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 4 * values.len()];
    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
    bytes
}

fn half_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
}

/// Writes a file of `tensors` as a whole, without a second copy of them in memory.
pub fn write(path: &Path, metadata: &HashMap<String, String>, tensors: &[View<'_>], width: Width) -> Result<()> {
    // A hash map would write its keys in another order every time; one key keeps the bytes reproducible.
    let sorted: std::collections::BTreeMap<_, _> = metadata.iter().collect();
    let text = serde_json::to_string(&sorted).expect("text is valid JSON");
    let text = format!("{text}\n{}", checksum(&text, tensors));
    let metadata = HashMap::from([("softly".to_string(), text)]);
    // Arrays lie in the order of their names.
    let mut sorted: Vec<&View<'_>> = tensors.iter().collect();
    sorted.sort_by_key(|view| &view.name);
    let entries = sorted.iter().map(|view| (view.name.as_str(), Entry(view, width)));
    let header = safetensors::serialize(entries, Some(metadata))
        .map_err(|e| Error::input(path.display(), format!("cannot be written: {e}")))?;
    write_atomically(path, |out| {
        out.write_all(&header)?;
        sorted.iter().try_for_each(|view| match width {
            Width::Single => out.write_all(&bytes(view.values)),
            Width::Half => out.write_all(&half_bytes(view.values)),
        })
    })
}

impl TensorFile {
    /// Writes the file as a whole.
    pub fn write(&self, path: &Path) -> Result<()> {
        write(path, &self.metadata, &self.views(), Width::Single)
    }

    /// Writes the file as a whole with half as many bytes: values are rounded to f16, and read as they then are.
    pub fn write_half(mut self, path: &Path) -> Result<()> {
        for (name, _, values) in &mut self.tensors {
            for value in values {
                let rounded = f16::from_f32(*value).to_f32();
                if value.is_finite() && !rounded.is_finite() {
                    let problem = format!("tensor `{name}` has the value {value}: half precision ends at 65504");
                    return Err(Error::input(path.display(), problem).hint("share the snapshot as it is"));
                }
                *value = rounded;
            }
        }
        write(path, &self.metadata, &self.views(), Width::Half)
    }

    fn views(&self) -> Vec<View<'_>> {
        self.tensors.iter().map(|(name, shape, values)| View { name: name.clone(), shape, values }).collect()
    }

    /// Reads a file that [`TensorFile::write`] wrote.
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_any(path)?.ours(path)
    }

    /// Reads any file of f32 or f16 arrays; its metadata come from the header.
    pub fn read_any(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(path, format!("found {e}")))?;
        let views = SafeTensors::deserialize(&bytes).map_err(|e| damaged(path, format!("found {e}")))?;
        let mut tensors = Vec::new();
        for (name, view) in views.tensors() {
            let values = match view.dtype() {
                Dtype::F32 => view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
                Dtype::F16 => view.data().as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
                other => return Err(damaged(path, format!("found {other:?} values in {name}"))),
            };
            tensors.push((name, view.shape().to_vec(), values));
        }
        Ok(Self { metadata: header.metadata().clone().unwrap_or_default(), tensors })
    }

    /// The file with its metadata unpacked as [`TensorFile::write`] packed them, and its checksum compared.
    pub(super) fn ours(mut self, path: &Path) -> Result<Self> {
        let text = self.metadata.get("softly").ok_or_else(|| damaged(path, "found no softly header".into()))?;
        let Some((text, expected)) = text.split_once('\n') else {
            return Err(damaged(path, "found a header without a checksum".into()));
        };
        if expected != checksum(text, &self.views()) {
            return Err(damaged(path, "found contents that do not match their checksum".into()));
        }
        self.metadata =
            serde_json::from_str(text).map_err(|e| damaged(path, format!("found a broken header ({e})")))?;
        Ok(self)
    }

    /// The text stored under `key`.
    pub fn text(&self, key: &str, path: &Path) -> Result<&str> {
        self.metadata
            .get(key)
            .map(String::as_str)
            .ok_or_else(|| Error::input(path.display(), format!("the header has no `{key}`")))
    }

    /// The place of tensor `name`, which must have `shape`.
    pub fn find(&self, name: &str, shape: &[usize], path: &Path) -> Result<usize> {
        let Some(at) = self.tensors.iter().position(|(n, _, _)| n == name) else {
            let problem = Error::input(path.display(), format!("tensor `{name}` is missing"));
            let measured = DirectionKind::ALL.iter().any(|kind| name.contains(&format!("{}.", kind.name())));
            return Err(if measured {
                problem
                    .hint("the direction knows what was measured on the data when it was trained: run `softly adapt`")
            } else {
                problem
            });
        };
        let found = &self.tensors[at].1;
        // A scalar may be stored without an axis, as PyTorch does.
        if found != shape && !(found.is_empty() && shape == [1]) {
            return Err(Error::input(path.display(), format!("tensor `{name}`: expected {shape:?}, found {found:?}")));
        }
        Ok(at)
    }

    /// The values of tensor `name`, which must have `shape`.
    pub fn take(&mut self, name: &str, shape: &[usize], path: &Path) -> Result<Vec<f32>> {
        let at = self.find(name, shape, path)?;
        Ok(self.tensors.swap_remove(at).2)
    }
}

fn damaged(path: &Path, what: String) -> Error {
    Error::input(path.display(), format!("expected a softly weights file, {what}"))
        .hint("the file is damaged or foreign: use another snapshot, or delete it and train again")
}
