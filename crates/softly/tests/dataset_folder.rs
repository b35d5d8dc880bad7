//! Dataset folders: the same bytes whatever the threads, the count and the interruptions.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use softly::error::Error;
use softly::job::Reporter;
use softly::{Config, Dataset, DatasetFolder, Generator, Plan, Split, generate};

/// Asks to stop once so many samples are made.
struct StopAfter<'a> {
    samples: u64,
    made: AtomicU64,
    stop: &'a AtomicBool,
}

impl Reporter for StopAfter<'_> {
    fn begin(&self, _: u64, _: u64) {}

    fn advance(&self, units: u64) {
        if self.made.fetch_add(units, Ordering::Relaxed) + units >= self.samples {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn note(&self, _: &str) {}
}

fn make(plan: &Plan, folder: &Path, samples: u64) -> Result<DatasetFolder, Error> {
    let stop = AtomicBool::new(false);
    generate(plan, folder, &stop, &StopAfter { samples, made: AtomicU64::new(0), stop: &stop })
}

fn darcy(train: usize) -> Plan {
    let generator: Generator = toml::from_str("kind = 'darcy'\nsize = [8, 10]\nlength = 0.3\nmodes = 4").unwrap();
    Plan { train, valid: 70, seed: 7, generator }
}

/// Every file of a folder by its path.
fn bytes(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            files.extend(bytes(&path).into_iter().map(|(inner, b)| (format!("{name}/{inner}"), b)));
        } else {
            files.insert(name, fs::read(path).unwrap());
        }
    }
    files
}

#[test]
fn threads_do_not_matter_and_a_larger_set_begins_with_the_smaller_one() {
    let folder = tempfile::tempdir().unwrap();
    let with_threads = |threads: usize, plan: &Plan, name: &str| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| make(plan, &folder.path().join(name), u64::MAX)).unwrap();
        bytes(&folder.path().join(name))
    };
    let one = with_threads(1, &darcy(10), "one");
    assert_eq!(
        one.keys().collect::<Vec<_>>(),
        ["dataset.toml", "train/K.npy", "train/p.npy", "valid/K.npy", "valid/p.npy"]
    );
    assert_eq!(one, with_threads(2, &darcy(10), "two"));
    let larger = with_threads(2, &darcy(20), "larger");
    for field in ["train/K.npy", "train/p.npy"] {
        assert_eq!(one[field][128..], larger[field][128..one[field].len()], "{field}");
        assert_eq!(larger[field].len(), 128 + 20 * 80 * 4);
    }
    for field in ["valid/K.npy", "valid/p.npy"] {
        assert_eq!(one[field], larger[field]);
    }
}

#[test]
fn an_interrupted_generation_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
    make(&darcy(150), &whole, u64::MAX).unwrap();

    let error = make(&darcy(150), &broken, 100).unwrap_err();
    assert_eq!(error.exit_code(), 130);
    assert!(!broken.join("dataset.toml").exists() && !broken.join("train").exists());
    assert!(DatasetFolder::open(&broken).unwrap_err().to_string().contains("not finished"));
    // Other data may not go on here.
    assert!(make(&darcy(151), &broken, u64::MAX).unwrap_err().to_string().contains("unfinished dataset of other data"));
    // A crash in the middle of a sample: one file is shorter than promised, the other longer.
    let cut = |field: &str, length: u64| {
        let path = broken.join(".partial/train").join(field);
        OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
    };
    cut("p.npy", 128 + 50 * 320 + 77);
    cut("K.npy", 128 + 140 * 320);
    // And an interruption among the held-out samples: the chunk under way when it came is kept, too.
    assert_eq!(make(&darcy(150), &broken, 90).unwrap_err().exit_code(), 130);
    make(&darcy(150), &broken, u64::MAX).unwrap();
    assert_eq!(bytes(&whole), bytes(&broken));
    // Once more: it is done.
    make(&darcy(150), &broken, u64::MAX).unwrap();
    assert!(make(&darcy(149), &broken, u64::MAX).unwrap_err().to_string().contains("a dataset of other data"));
}

#[test]
fn a_folder_reads_back_what_the_generator_makes_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let plan = darcy(30);
    let made = make(&plan, &path, u64::MAX).unwrap();
    let mut config = Config::default();
    config.data.generator = plan.generator.clone();
    (config.data.count, config.data.valid, config.data.seed) = (30, 70, 7);
    let generated = Dataset::from_config(&config).unwrap();
    config.data.path = Some(path.clone());
    let read = Dataset::from_config(&config).unwrap();
    read.check().unwrap();
    assert_eq!((&generated.train, &generated.valid), (&read.train, &read.valid));
    assert_eq!((read.train_count(), read.valid_count(), read.shape()), (30, 70, [2, 8, 10]));
    assert_eq!(made.description.hash, read.hash());
    // The statistics are those of the training samples.
    let pressures: Vec<f64> = read.train.chunks(80).step_by(2).flatten().map(|&v| f64::from(v)).collect();
    let n = pressures.len() as f64;
    let mean = pressures.iter().sum::<f64>() / n;
    let std = (pressures.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / n).sqrt();
    let said = made.description.fields[0].statistics;
    assert!((said.mean - mean).abs() < 1e-12 && (said.std / std - 1.0).abs() < 1e-12, "{said:?}");
    assert_eq!(said.max, pressures.iter().copied().fold(f64::MIN, f64::max));
    assert_eq!(made.count(Split::Train), 30);
}

#[test]
fn broken_folders_are_refused_with_file_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    make(&darcy(5), &path, u64::MAX).unwrap();
    let file = path.join("valid/K.npy");
    let good = fs::read(&file).unwrap();
    let said = || {
        let error = DatasetFolder::open(&path).and_then(|f| f.load()).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    fs::write(&file, &good[..good.len() - 1]).unwrap();
    assert!(said().contains("K.npy") && said().contains("truncated"), "{}", said());
    let mut bad = good.clone();
    let middle = bad.len() - 40;
    bad[middle..middle + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&file, &bad).unwrap();
    assert!(said().contains("`K`") && said().contains("NaN in sample 69"), "{}", said());
    fs::write(&file, fs::read(path.join("train/K.npy")).unwrap()).unwrap();
    assert!(said().contains("[70, 8, 10]") && said().contains("[5, 8, 10]"), "{}", said());
    fs::remove_file(&file).unwrap();
    assert!(said().contains("`K`") && said().contains("missing"), "{}", said());
    fs::write(&file, &good).unwrap();
    DatasetFolder::open(&path).unwrap();
}
