//! Named f32 arrays in `.safetensors` files, with text metadata and a checksum.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

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

/// What a file's header says of an array; the bytes follow the header one array after the other.
impl safetensors::View for &View<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// BLAKE3 of the metadata's text and of every tensor, by name: its name, its shape and its bytes.
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

/// Writes a file of `tensors` as a whole, without a second copy of them in memory.
pub fn write(path: &Path, metadata: &HashMap<String, String>, tensors: &[View<'_>]) -> Result<()> {
    // A hash map would write its keys in another order every time; one key keeps the bytes reproducible.
    let sorted: std::collections::BTreeMap<_, _> = metadata.iter().collect();
    let text = serde_json::to_string(&sorted).expect("text is valid JSON");
    let text = format!("{text}\n{}", checksum(&text, tensors));
    let metadata = HashMap::from([("softly".to_string(), text)]);
    // Arrays lie in the order of their names.
    let mut sorted: Vec<&View<'_>> = tensors.iter().collect();
    sorted.sort_by_key(|view| &view.name);
    let header = safetensors::serialize(sorted.iter().map(|view| (view.name.as_str(), *view)), Some(metadata))
        .map_err(|e| Error::input(path.display(), format!("cannot be written: {e}")))?;
    write_atomically(path, |out| {
        out.write_all(&header)?;
        sorted.iter().try_for_each(|view| out.write_all(&bytes(view.values)))
    })
}

impl TensorFile {
    /// Writes the file as a whole.
    pub fn write(&self, path: &Path) -> Result<()> {
        write(path, &self.metadata, &self.views())
    }

    fn views(&self) -> Vec<View<'_>> {
        self.tensors.iter().map(|(name, shape, values)| View { name: name.clone(), shape, values }).collect()
    }

    /// Reads a file that [`TensorFile::write`] wrote.
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_any(path)?.ours(path)
    }

    /// Reads any file of f32 arrays; its metadata come from the header.
    pub fn read_any(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(path, format!("found {e}")))?;
        let views = SafeTensors::deserialize(&bytes).map_err(|e| damaged(path, format!("found {e}")))?;
        let mut tensors = Vec::new();
        for (name, view) in views.tensors() {
            if view.dtype() != Dtype::F32 {
                return Err(damaged(path, format!("found {:?} values in {name}", view.dtype())));
            }
            let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
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
