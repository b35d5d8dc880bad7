//! Fingerprints of datasets: BLAKE3 of every block of samples of every array file, and one hash of all of them.
//!
//! A block is checked when it is read, so that checking costs no pass of its own, and a mismatch names file and samples.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::data::split::Split;
use crate::error::{Error, Result};

/// Bytes of a field that make a block, about.
const BLOCK_BYTES: usize = 16 << 20;

/// Samples per block of fields of `nodes` numbers.
pub fn block_samples(nodes: usize) -> usize {
    (BLOCK_BYTES / (4 * nodes.max(1))).max(1)
}

/// `[blocks]` of `dataset.toml`: the hash of every block by the array file's name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blocks {
    /// Samples per block; the last one of a file may have fewer.
    pub samples: usize,
    /// Of the training samples.
    pub train: BTreeMap<String, Vec<String>>,
    /// Of the held-out samples.
    pub valid: BTreeMap<String, Vec<String>>,
}

impl Blocks {
    /// No hashes yet of fields of `nodes` numbers.
    pub fn new(nodes: usize) -> Self {
        Self { samples: block_samples(nodes), ..Self::default() }
    }

    /// The hashes of a split's files.
    pub fn of(&self, split: Split) -> &BTreeMap<String, Vec<String>> {
        match split {
            Split::Train => &self.train,
            Split::Valid => &self.valid,
        }
    }

    /// Records the hashes of the file `name` of a split.
    pub fn insert(&mut self, split: Split, name: &str, hashes: Vec<String>) {
        let files = match split {
            Split::Train => &mut self.train,
            Split::Valid => &mut self.valid,
        };
        files.insert(name.to_string(), hashes);
    }

    /// The fingerprint of the whole: BLAKE3 of the names and the hashes, training files first.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (name, hashes) in Split::BOTH.into_iter().flat_map(|split| self.of(split)) {
            hasher.update(name.as_bytes());
            for hash in hashes {
                hasher.update(b"\n").update(hash.as_bytes());
            }
            hasher.update(b"\n\n");
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// The hashes of an array file's blocks, found while its samples pass by.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    samples: usize,
    /// Blocks of the file before the first one that is hashed.
    skipped: usize,
    /// Samples in the block under way.
    inside: usize,
    hasher: blake3::Hasher,
    complete: Vec<String>,
}

impl BlockHasher {
    /// A hasher of blocks of so many samples.
    pub fn new(samples: usize) -> Self {
        Self::after(0, samples)
    }

    /// The same for the blocks after the first `skipped` ones.
    pub fn after(skipped: usize, samples: usize) -> Self {
        Self { samples: samples.max(1), skipped, inside: 0, hasher: blake3::Hasher::new(), complete: Vec::new() }
    }

    /// Takes the bytes of the next sample, `f4` little-endian.
    pub fn add(&mut self, sample: &[u8]) {
        self.hasher.update(sample);
        self.inside += 1;
        if self.inside == self.samples {
            self.complete.push(self.hasher.finalize().to_hex().to_string());
            self.hasher.reset();
            self.inside = 0;
        }
    }

    /// The same for numbers.
    pub fn add_numbers(&mut self, sample: impl ExactSizeIterator<Item = f32>) {
        let mut bytes = vec![0; 4 * sample.len()];
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(sample) {
            *bytes = value.to_le_bytes();
        }
        self.add(&bytes);
    }

    /// The number of complete blocks.
    pub fn complete(&self) -> usize {
        self.complete.len()
    }

    /// The hashes of all blocks so far, of an incomplete last one, too.
    pub fn hashes(&self) -> Vec<String> {
        let mut hashes = self.complete.clone();
        if self.inside > 0 {
            hashes.push(self.hasher.finalize().to_hex().to_string());
        }
        hashes
    }

    /// The refusal of the file `path` whose block `block` is another than `record` says.
    pub fn mismatch(&self, path: &Path, block: usize, record: &str) -> Error {
        let first = block.saturating_mul(self.samples);
        let last = first.saturating_add(self.samples - 1);
        let problem = format!("block {block} (samples {first} to {last}) is not what {record} records");
        Error::input(path.display(), problem)
    }

    /// Refuses the file `path` if the block that the last sample completed is another than `recorded`; with `ended` also an
    /// incomplete last one. `folder` is the dataset's.
    pub fn check(&self, recorded: &[String], ended: bool, path: &Path, folder: &Path) -> Result<()> {
        let (block, hash) = match (self.inside, self.complete.len()) {
            (0, 0) => return Ok(()),
            (0, n) => (n - 1, self.complete[n - 1].clone()),
            (_, n) if ended => (n, self.hasher.finalize().to_hex().to_string()),
            _ => return Ok(()),
        };
        let block = self.skipped + block;
        if recorded.get(block) == Some(&hash) {
            return Ok(());
        }
        Err(self.mismatch(path, block, "dataset.toml").hint(format!(
            "the file is damaged or was changed: copy or make it again; `softly data import {}` records a change that is \
             wanted",
            folder.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_hashed_one_by_one() {
        let mut hasher = BlockHasher::new(2);
        for sample in [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]] {
            hasher.add_numbers(sample.into_iter());
        }
        let hash = |numbers: &[f32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
            blake3::hash(&bytes).to_hex().to_string()
        };
        let expected = [hash(&[1.0, 2.0, 3.0, 4.0]), hash(&[5.0, 6.0])];
        assert_eq!((hasher.hashes(), hasher.complete()), (expected.to_vec(), 1));
        let (file, folder) = (Path::new("set/train/u.npy"), Path::new("set"));
        hasher.check(&expected, true, file, folder).unwrap();
        // An incomplete block is judged at the end only.
        let wrong = [expected[0].clone(), "other".into()];
        hasher.check(&wrong, false, file, folder).unwrap();
        let said = hasher.check(&wrong, true, file, folder).unwrap_err().to_string();
        for part in ["set/train/u.npy", "block 1 (samples 2 to 3)", "dataset.toml", "softly data import set"] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
    }

    #[test]
    fn the_whole_depends_on_every_block_and_on_names() {
        let mut blocks = Blocks::new(16);
        blocks.insert(Split::Train, "u", vec!["a".into(), "b".into()]);
        blocks.insert(Split::Valid, "u", vec!["c".into()]);
        let mut hashes = vec![blocks.hash()];
        let mut other = blocks.clone();
        other.insert(Split::Valid, "u", vec!["d".into()]);
        hashes.push(other.hash());
        let mut renamed = Blocks::new(16);
        renamed.insert(Split::Train, "v", vec!["a".into(), "b".into()]);
        renamed.insert(Split::Valid, "v", vec!["c".into()]);
        hashes.push(renamed.hash());
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), 3);
        assert_eq!((block_samples(64 * 64), block_samples(1 << 30)), (1024, 1));
    }
}
