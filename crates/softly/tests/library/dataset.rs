//! Dataset folders: the same bytes whatever the threads, the count and the interruptions.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::Path;

use softly::error::Result;
use softly::format::ImportOptions;
use softly::job::Job;
use softly::{DataConfig, Dataset, DatasetFolder, Split, complete, generate};

use crate::common::{Watch, contents, cpu, train, valid};

/// Generates data in `folder`, and asks to stop once `samples` are made in all.
fn make_until(config: &DataConfig, folder: &Path, samples: u64) -> Result<DatasetFolder> {
    generate(config, folder, &Watch::new(|made| made >= samples).job(&cpu()))
}

fn make(config: &DataConfig, folder: &Path) -> Result<DatasetFolder> {
    make_until(config, folder, u64::MAX)
}

fn darcy(count: usize) -> DataConfig {
    let generator = toml::from_str("kind = 'darcy'\nsize = [8, 10]\nlength = 0.3\nmodes = 4").unwrap();
    DataConfig { generator: Some(generator), count, valid: 70, seed: 7, ..DataConfig::default() }
}

/// Every file of a folder by its path inside the folder.
fn bytes(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let inside = |path: &Path| path.strip_prefix(folder).unwrap().to_string_lossy().replace('\\', "/");
    contents(folder).into_iter().map(|(path, bytes)| (inside(&path), bytes)).collect()
}

#[test]
fn threads_do_not_matter_and_a_larger_set_begins_with_the_smaller_one() {
    let folder = tempfile::tempdir().unwrap();
    let with_threads = |threads: usize, config: &DataConfig, name: &str| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| make(config, &folder.path().join(name))).unwrap();
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
    make(&darcy(150), &whole).unwrap();

    let error = make_until(&darcy(150), &broken, 100).unwrap_err();
    assert_eq!(error.exit_code(), 130);
    assert!(!broken.join("dataset.toml").exists() && !broken.join("train").exists());
    assert!(DatasetFolder::open(&broken).unwrap_err().to_string().contains("not finished"));
    // Other data may not go on here.
    assert!(make(&darcy(151), &broken).unwrap_err().to_string().contains("unfinished dataset of other data"));
    // A crash in the middle of a sample: one file is shorter than promised, the other longer.
    let cut = |field: &str, length: u64| {
        let path = broken.join(".partial/train").join(field);
        OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
    };
    cut("p.npy", 128 + 50 * 320 + 77);
    cut("K.npy", 128 + 140 * 320);
    // And an interruption among the held-out samples: the chunk under way when it came is kept, too.
    assert_eq!(make_until(&darcy(150), &broken, 140).unwrap_err().exit_code(), 130);
    make(&darcy(150), &broken).unwrap();
    assert_eq!(bytes(&whole), bytes(&broken));
    // Once more: it is done.
    make(&darcy(150), &broken).unwrap();
    assert!(make(&darcy(149), &broken).unwrap_err().to_string().contains("a dataset of other data"));
}

#[test]
fn a_folder_reads_back_what_the_generator_makes_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let config = darcy(30);
    let made = make(&config, &path).unwrap();
    let generated = Dataset::from_config(&config).unwrap();
    let read = Dataset::from_config(&DataConfig { path: Some(path.clone()), ..DataConfig::default() }).unwrap();
    read.check().unwrap();
    assert_eq!((train(&generated), valid(&generated)), (train(&read), valid(&read)));
    assert_eq!((read.train_count(), read.valid_count(), read.shape()), (30, 70, [2, 8, 10]));
    assert_eq!(made.description.hash, read.hash());
    assert_eq!((&generated.generator, &generated.equation), (&read.generator, &read.equation));
    assert!(read.equation.is_some());
    // The statistics are those of the training samples.
    let pressures: Vec<f64> = train(&read).chunks(80).step_by(2).flatten().map(|&v| f64::from(v)).collect();
    let n = pressures.len() as f64;
    let mean = pressures.iter().sum::<f64>() / n;
    let std = (pressures.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / n).sqrt();
    let said = made.description.fields[0].statistics;
    assert!((said.mean - mean).abs() < 1e-12 && (said.std / std - 1.0).abs() < 1e-12, "{said:?}");
    assert_eq!(said.max, pressures.iter().copied().fold(f64::MIN, f64::max));
    assert_eq!(made.count(Split::Train), 30);
}

/// Reads every sample of the dataset in `path`.
fn read_all(path: &Path) -> Result<()> {
    let data = DatasetFolder::open(path)?.load()?;
    Split::BOTH.into_iter().try_for_each(|split| data.all(split).map(|_| ()))
}

#[test]
fn broken_folders_are_refused_with_file_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    make(&darcy(5), &path).unwrap();
    let file = path.join("valid/K.npy");
    let good = fs::read(&file).unwrap();
    let said = || {
        let error = read_all(&path).unwrap_err();
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

#[test]
fn names_in_a_dataset_cannot_lead_out_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    make(&darcy(5), &path).unwrap();
    let file = path.join("dataset.toml");
    let text = fs::read_to_string(&file).unwrap();
    let body = &text[..text.rfind("# checksum").unwrap()];
    for name in ["../K", "/tmp/K", "a/b", "..", "", "K."] {
        let body = body.replace("name = \"K\"", &format!("name = \"{name}\""));
        assert!(body.contains(&format!("\"{name}\"")), "the description names its fields otherwise: {body}");
        // The checksum is right: only the name is wrong.
        fs::write(&file, format!("{body}# checksum {}\n", blake3::hash(body.as_bytes()))).unwrap();
        let error = DatasetFolder::open(&path).err().unwrap();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(&format!("`{name}` cannot be a field's name")), "{error}");
    }
}

/// Flips a bit of a file at `distance` bytes before its end.
fn flip(path: &Path, distance: usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() - distance;
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_changed_bit_is_refused_where_the_data_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    make(&darcy(5), &path).unwrap();
    let load = || read_all(&path);
    for (file, distance, block) in [("train/K.npy", 1600, 0), ("valid/p.npy", 4, 0)] {
        let good = fs::read(path.join(file)).unwrap();
        flip(&path.join(file), distance);
        let error = load().unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let said = error.to_string();
        for part in [file, &format!("block {block} "), "dataset.toml", "softly data import"] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
        fs::write(path.join(file), good).unwrap();
    }
    load().unwrap();
    // The list of hashes is guarded by the hash of the whole.
    let file = path.join("dataset.toml");
    let text = fs::read_to_string(&file).unwrap();
    let at = text.find("[blocks.train]").unwrap() + 30;
    let other = if &text[at..=at] == "0" { "1" } else { "0" };
    let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
    let body = &changed[..changed.rfind("# checksum").unwrap()];
    fs::write(&file, format!("{body}# checksum {}\n", blake3::hash(body.as_bytes()))).unwrap();
    let said = load().unwrap_err().to_string();
    assert!(said.contains("does not belong to the hashes of its blocks"), "{said}");
    // Axes, equation, constants and statistics have no hashes of their own: the file has.
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1 << (at % 7);
        fs::write(&file, bytes).unwrap();
        assert_eq!(load().expect_err(&format!("byte {at} was flipped")).exit_code(), 2);
    }
    // Datasets of before say how they are renewed.
    fs::write(&file, text.replace("format = 3", "format = 2")).unwrap();
    let said = load().unwrap_err().to_string();
    assert!(said.contains("expected format = 3, found 2") && said.contains("softly data import"), "{said}");
}

#[test]
fn a_change_that_is_wanted_can_be_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let before = make(&darcy(5), &path).unwrap();
    flip(&path.join("train/K.npy"), 2);
    assert!(read_all(&path).is_err());
    let (after, _) = complete(&path, &ImportOptions::default(), 0.1, &Job::silent(&cpu())).unwrap();
    read_all(&path).unwrap();
    assert_ne!(after.description.hash, before.description.hash);
    let mut renewed = after.description.clone();
    renewed.hash.clone_from(&before.description.hash);
    renewed.blocks.clone_from(&before.description.blocks);
    renewed.fields.clone_from(&before.description.fields);
    assert_eq!(renewed, before.description, "all else stays");
}

#[test]
fn samples_of_an_unfinished_dataset_are_compared_before_going_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    assert_eq!(make_until(&darcy(150), &path, 100).unwrap_err().exit_code(), 130);
    let file = path.join(".partial/train/K.npy");
    let good = fs::read(&file).unwrap();
    flip(&file, 4000);
    let error = make(&darcy(150), &path).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let said = error.to_string();
    for part in [".partial/train/K.npy", "block 0", "progress.toml", "start again"] {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    fs::write(&file, good).unwrap();
    make(&darcy(150), &path).unwrap();
    make(&darcy(150), &folder.path().join("whole")).unwrap();
    assert_eq!(bytes(&path), bytes(&folder.path().join("whole")));
}
