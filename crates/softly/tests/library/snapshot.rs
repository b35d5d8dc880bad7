//! Snapshots and checkpoints as files: every flipped bit is noticed, foreign files are refused, nothing is lost.

use std::fs;

use softly::{Model, Snapshot, TensorFile, Trained};
use tempfile::TempDir;

use crate::common::{POINT, bits, cpu, denoised, field, new_training, normals, small};

#[test]
fn no_single_flipped_bit_goes_unnoticed() {
    let config = small("vanilla", &[]);
    let home = TempDir::new().unwrap();
    let (checkpoint, snapshot) = (home.path().join("c.safetensors"), home.path().join("s.safetensors"));
    let mut training = new_training(&config).unwrap();
    training.write_checkpoint(&checkpoint).unwrap();
    training.snapshot().write(&snapshot).unwrap();
    for path in [checkpoint, snapshot] {
        let good = fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
        // Every byte of the header, and values all over the file.
        for at in (0..header).chain((header..good.len()).step_by(13)) {
            let mut flipped = good.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, flipped).unwrap();
            let outcome = if path.ends_with("c.safetensors") {
                training.read_checkpoint(&path)
            } else {
                Snapshot::read(&path).and_then(|s| s.model(&cpu(), &path).map(|_| ()))
            };
            let error = outcome.expect_err(&format!("byte {at} of {} was flipped", path.display()));
            assert_eq!(error.exit_code(), 2, "byte {at}: {error:?}");
            assert!(at < header || error.to_string().contains("checksum"), "byte {at}: {error}");
        }
    }
}

#[test]
fn a_snapshot_in_half_precision_is_half_as_large_checked_and_nearly_the_same_model() {
    let config = small("scd", &[]);
    let home = TempDir::new().unwrap();
    let (path, half) = (home.path().join("s.safetensors"), home.path().join("h.safetensors"));
    let mut training = new_training(&config).unwrap();
    training.step().unwrap();
    let snapshot = training.snapshot();
    snapshot.write(&path).unwrap();
    snapshot.write_half(&half).unwrap();
    let weights: usize = snapshot.weights.iter().map(|(_, _, values)| values.len()).sum();
    let size = |path| fs::metadata(path).unwrap().len();
    assert!(size(&path) - size(&half) >= 2 * weights as u64 - 64, "{} and {}", size(&path), size(&half));
    let read = Snapshot::read(&half).unwrap();
    assert_eq!(read.step, snapshot.step);
    for ((name, shape, values), (other, same, exact)) in sorted(&read).iter().zip(&sorted(&snapshot)) {
        assert_eq!((name, shape), (other, same));
        // Eleven binary digits, and nothing finer than 2⁻²⁴.
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= b.abs() / 2048.0 + 1.0 / f32::powi(2.0, 25);
        assert!(values.iter().zip(exact).all(near), "{name}");
    }
    // What was read is written to the same bytes.
    let good = fs::read(&half).unwrap();
    read.write_half(&half).unwrap();
    assert_eq!(fs::read(&half).unwrap(), good);
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for at in (header..good.len()).step_by(13) {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&half, flipped).unwrap();
        assert!(Snapshot::read(&half).unwrap_err().to_string().contains("checksum"), "byte {at}");
    }
    let mut large = snapshot;
    large.weights[0].2[0] = 1e5;
    let error = large.write_half(&half).unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("65504"), "{error}");
}

/// The weights of a snapshot by name, the order of files.
fn sorted(snapshot: &Snapshot) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let mut weights = snapshot.weights.clone();
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    weights
}

#[test]
fn a_header_that_describes_more_weights_than_the_file_has_is_refused_before_they_are_made() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("snapshot.safetensors");
    new_training(&small("scd", &[])).unwrap().snapshot().write(&path).unwrap();
    let mut file = TensorFile::read(&path).unwrap();
    let config = file.metadata.get_mut("config").unwrap();
    let hidden = config.lines().find(|line| line.starts_with("hidden = ")).unwrap().to_string();
    // Ten gigabytes: a machine may have them.
    *config = config.replacen(&hidden, "hidden = 50000", 1);
    file.write(&path).unwrap();
    let error = Snapshot::read(&path).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("describes a network of about 25"), "{error}");
}

/// A change of a header's text.
type Change = fn(&str) -> String;

#[test]
fn snapshots_that_no_training_wrote_are_refused_and_those_without_a_checksum_too() {
    let config = small("scd", &[]);
    let home = TempDir::new().unwrap();
    let path = home.path().join("snapshot.safetensors");
    let training = new_training(&config).unwrap();
    training.snapshot().write(&path).unwrap();
    let good = fs::read(&path).unwrap();
    let file = TensorFile::read(&path).unwrap();
    let changes: [(&str, Change); 3] = [
        ("config", |text| text.replace("lambda = 1.0", "lambda = \"auto\"")),
        ("config", |text| {
            let line = |l: &str| {
                if l.starts_with("sigma_data =") { "sigma_data = \"auto\"\n".into() } else { format!("{l}\n") }
            };
            text.lines().map(line).collect()
        }),
        ("data", |text| text.replace("\"mean\":[0.0,0.0]", "\"mean\":[0.0]")),
    ];
    for (key, change) in changes {
        let mut broken = file.clone();
        let text = broken.metadata.get_mut(key).unwrap();
        let changed = change(text);
        assert_ne!(&changed, text, "{key}");
        *text = changed;
        broken.write(&path).unwrap();
        let error = Snapshot::read(&path).and_then(|s| s.model(&cpu(), &path).map(|_| ())).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("header of a trained model"), "{error}");
    }
    // The checksum stands behind the metadata's text: a line break and 64 digits, in JSON.
    let end = good.windows(3).position(|w| w == b"}\\n").unwrap() + 1;
    let mut bare = [&good[8..end], &good[end + 66..]].concat();
    let length = u64::from_le_bytes(good[..8].try_into().unwrap()) - 66;
    bare.splice(0..0, length.to_le_bytes());
    fs::write(&path, bare).unwrap();
    let error = Snapshot::read(&path).unwrap_err();
    assert!(error.to_string().contains("without a checksum"), "{error}");
}

#[test]
fn a_loaded_snapshot_denoises_bit_for_bit_like_the_trained_model() {
    for method in ["scd", "pidm-ddpm"] {
        let config = small(method, &[]);
        let home = TempDir::new().unwrap();
        let mut training = new_training(&config).unwrap();
        for _ in 0..15 {
            training.step().unwrap();
        }
        let path = home.path().join("snapshot.safetensors");
        let in_memory = training.snapshot();
        in_memory.write(&path).unwrap();
        let loaded = Snapshot::read(&path).unwrap();
        assert_eq!(loaded.step, 15);
        assert_eq!(loaded.blueprint, in_memory.blueprint);
        let sigma = [0.01, 0.1, 0.5, 1.0, 5.0, 50.0];
        let found = |model: &Model| bits(denoised(model, field(&normals(1, 0, 12), POINT), &sigma));
        let ours = found(&in_memory.model(&cpu(), &path).unwrap());
        assert_eq!(found(&loaded.model(&cpu(), &path).unwrap()), ours, "{method}");
        let trained = Trained::load(&path, &cpu()).unwrap();
        assert_eq!(found(&trained.model), ours, "{method}");
        // The snapshot holds the running average, not the last step's weights.
        assert_ne!(found(&training.model), ours, "{method}");
    }
}

#[test]
fn a_soft_constraint_stays_the_one_that_it_was_trained_with() {
    let home = TempDir::new().unwrap();
    let written = |method: &str| {
        let path = home.path().join(format!("{method}.safetensors"));
        new_training(&small(method, &[])).unwrap().snapshot().write(&path).unwrap();
        path
    };
    let other = ["constraint.residual=x^2 + y^2 - 4".to_string()];
    let (scd, vanilla) = (written("scd"), written("vanilla"));
    let error = Trained::load_with(&scd, &other, &cpu()).err().expect("refused");
    assert_eq!(error.exit_code(), 2);
    let said = error.to_string();
    assert!(
        said.starts_with("constraint: ") && said.contains("scd.safetensors") && said.contains("softly adapt"),
        "{said}"
    );
    assert!(Trained::load_to_judge(&scd, &other, &cpu()).is_err());
    // The truth, the sampler and directions may change, and so may the constraint of a model that does not use it.
    let truth = "truth={fields=['x', 'y'], residual='x^2 + y^2 - 4'}".to_string();
    Trained::load_with(&scd, &[truth, "sampler.steps=3".into()], &cpu()).unwrap();
    Trained::load_with(&scd, &["constraint.norm=l1-sum".into()], &cpu()).unwrap();
    Trained::load_with(&vanilla, &other, &cpu()).unwrap();
}

#[test]
fn paths_in_a_snapshot_lead_from_its_folder() {
    let home = TempDir::new().unwrap();
    let config = small("vanilla", &["data.path=some/where"]);
    let mut snapshot = new_training(&small("vanilla", &[])).unwrap().snapshot();
    snapshot.blueprint.config.data.path = config.data.path;
    let path = home.path().join("runs/a.safetensors");
    fs::create_dir(home.path().join("runs")).unwrap();
    snapshot.write(&path).unwrap();
    let text = TensorFile::read(&path).unwrap().metadata["config"].clone();
    assert!(text.contains("some/where\"") && !text.contains("path = \"some/where\""), "{text}");
    let read = Snapshot::read(&path).unwrap().blueprint.config.data.path.unwrap();
    assert_eq!(std::path::absolute(read).unwrap(), std::path::absolute("some/where").unwrap());
}
