//! The corpus of the fuzzers (`fuzz/corpus`) and mutations of it, read by the functions that the fuzzers call: none may
//! panic, and memory stays small.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use targets::{TARGETS, Target};

#[path = "../../../fuzz/src/targets.rs"]
mod targets;

/// Mutations of every target's corpus.
const MUTATIONS: usize = 2_000;

/// Resident memory that all of it may take, in kilobytes.
const MOST_KILOBYTES: u64 = 256 << 10;

/// The files of a target's corpus, by name.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{} has {} files", folder.display(), files.len());
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn run(target: Target, data: &[u8], place: &dyn Fn() -> String) {
    if catch_unwind(AssertUnwindSafe(|| target(data))).is_err() {
        let kept = std::env::temp_dir().join(format!("softly-finding-{}", std::process::id()));
        fs::write(&kept, data).unwrap();
        panic!("{} panics; its bytes are in {}", place(), kept.display());
    }
}

/// The data with a few changes: flipped bits, other bytes, extreme numbers, a cut, a part moved or doubled.
fn mutated(data: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut data = data.to_vec();
    for _ in 0..random.random_range(1..4) {
        if data.is_empty() {
            return vec![random.random()];
        }
        let at = random.random_range(0..data.len());
        let end = (at + random.random_range(1..64)).min(data.len());
        match random.random_range(0..6) {
            0 => data[at] ^= 1 << random.random_range(0..8),
            1 => data[at] = random.random(),
            2 => data.truncate(at),
            3 => {
                let extreme: u64 =
                    [0, u64::MAX, i64::MAX as u64, 1 << 31, 0x7ff0_0000_0000_0000][random.random_range(0..5)];
                let width = [1, 2, 4, 8][random.random_range(0..4)].min(data.len() - at);
                data[at..at + width].copy_from_slice(&extreme.to_le_bytes()[..width]);
            }
            4 => drop(data.drain(at..end)),
            _ => {
                let part = data[at..end].to_vec();
                let to = random.random_range(0..=data.len());
                data.splice(to..to, part);
            }
        }
    }
    data
}

/// The most memory that this process ever held, in kilobytes; none where the system does not tell.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[test]
fn neither_the_corpus_nor_its_mutations_cause_a_panic_or_take_much_memory() {
    for (name, target) in TARGETS {
        let files = corpus(name);
        for (path, data) in &files {
            run(target, data, &|| path.display().to_string());
        }
        let mut random = ChaCha8Rng::seed_from_u64(17);
        for n in 0..MUTATIONS {
            let (path, data) = &files[random.random_range(0..files.len())];
            run(target, &mutated(data, &mut random), &|| format!("mutation {n} of {}", path.display()));
        }
        assert!(peak().is_none_or(|peak| peak < MOST_KILOBYTES), "{name}: {peak:?} kB", peak = peak());
    }
    targets::clean();
}
