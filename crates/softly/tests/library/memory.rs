//! Memory over a long training, and of one on a large dataset.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use softly::job::Job;
use softly::{Dataset, DatasetFolder, InMemory, Layers, Split, Training, write};
use softly_pde::grid::Grid;

use crate::common::{cpu, new_training, small};

/// Names the dataset in the process that measures.
const ALONE: &str = "SOFTLY_TEST_ALONE";

/// A line of this process's status in kilobytes: `VmRSS:`, what is resident, or `VmHWM:`, the most that ever was.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Runs the test `name` in a process of its own, for other tests would disturb the measurement; it is told of `data`.
fn measure_alone(name: &str, data: &Path) {
    let this = [&format!("memory::{name}"), "--exact", "--nocapture"];
    let found = Command::new(env::current_exe().unwrap()).args(this).env(ALONE, data).output().unwrap();
    let said = [found.stdout, found.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(found.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn memory_stays_flat_over_a_thousand_steps() {
    if env::var_os(ALONE).is_none() {
        return measure_alone("memory_stays_flat_over_a_thousand_steps", Path::new(""));
    }
    for method in ["scd", "pidm-ddpm"] {
        let mut training = new_training(&small(method, &["train.iterations=2000", "train.batch=64"])).unwrap();
        let mut steps = |n: usize| {
            for _ in 0..n {
                training.step().unwrap();
            }
        };
        steps(200);
        let before = memory("VmRSS:");
        steps(1_000);
        let grown = memory("VmRSS:").saturating_sub(before);
        // One step's tensors are about 100 kB: keeping 1% of them would show.
        assert!(grown < 1_024, "{method}: {grown} kB more after 1,000 steps");
    }
}

/// 192 MB of training data, twelve blocks of one field.
fn large(path: &Path) -> DatasetFolder {
    let count = 3 << 10;
    let waves = |from: usize, to: usize| -> Vec<f32> {
        (from << 14..to << 14).map(|k| ((k % (1 << 14)) as f32 * 1e-3 * (k >> 14) as f32).sin()).collect()
    };
    let data = Dataset {
        fields: vec!["u".into()],
        scalars: Vec::new(),
        constants: std::collections::BTreeMap::new(),
        grid: Grid::unit(128, 128),
        train: waves(0, count).into(),
        valid: waves(count, count + 2).into(),
        generator: None,
        equation: None,
    };
    write(&InMemory::new(&data), path, &Job::silent(&cpu())).unwrap()
}

#[test]
fn training_takes_no_memory_for_its_data() {
    let Some(path) = env::var_os(ALONE).map(PathBuf::from) else {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("data");
        let folder = large(&path);
        measure_alone("training_takes_no_memory_for_its_data", &path);
        return only_blocks_that_are_read_are_looked_at(&folder);
    };
    let mut layers = Layers::new();
    for setting in ["data.normalise='std'", "denoiser.backbone={kind='mlp', hidden=8}", "train.batch=4"] {
        layers = layers.set(setting).unwrap();
    }
    let before = memory("VmRSS:");
    let data = DatasetFolder::open(&path).unwrap().load().unwrap();
    let mut training = Training::new(&layers.finish("test").unwrap(), data, &cpu()).unwrap();
    for _ in 0..20 {
        training.step().unwrap();
    }
    let grown = memory("VmHWM:").saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} kB more for 192 MB of data");
}

/// A damaged block is refused when one of its samples is used, and so is a file that was cut off after it had been opened.
fn only_blocks_that_are_read_are_looked_at(folder: &DatasetFolder) {
    let data = folder.load().unwrap();
    let file = folder.path.join("train/u.npy");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    data.samples(Split::Train, 0..100).unwrap();
    let said = data.samples(Split::Train, 3071..3072).unwrap_err();
    assert!(said.exit_code() == 2 && said.to_string().contains("block 11 (samples 2816 to 3071)"), "{said}");
    fs::write(&file, &bytes[..1 << 20]).unwrap();
    data.samples(Split::Train, 0..1).unwrap();
    assert!(data.samples(Split::Train, 100..101).unwrap_err().to_string().contains("train/u.npy"));
}
