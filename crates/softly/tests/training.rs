//! Training runs: exact resumption, refusal of what does not belong, divergence, memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use softly::error::{Error, Result};
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, to_vec_f64};
use softly::{
    Config, Dataset, Layers, Metrics, Progress, RunFolder, RunInfo, Snapshot, TensorFile, Trained, Training, run,
};
use tempfile::TempDir;

/// The test of memory wants the process to itself; all others share it.
static PROCESS: RwLock<()> = RwLock::new(());

fn shared() -> impl Drop {
    PROCESS.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn cpu() -> Device {
    Device::flex()
}

/// A small training of the demonstration preset.
fn small(method: &str, settings: &[&str]) -> Config {
    let mut layers = Layers::new().preset("circle-demo").unwrap().method(method).unwrap();
    let network = if method == "pidm-ddpm" {
        "denoiser.backbone={kind='level-mlp', hidden=16, levels=100}"
    } else {
        "denoiser.backbone={kind='mlp', hidden=16}"
    };
    let common = [
        network,
        "data.count=100",
        "data.valid=10",
        "train.iterations=60",
        "train.batch=16",
        "train.log_every=7",
        "train.checkpoint_every=10",
    ];
    for setting in common.iter().chain(settings) {
        layers = layers.set(setting).unwrap();
    }
    layers.finish("test").unwrap()
}

fn info() -> RunInfo {
    RunInfo {
        version: "test".into(),
        commit: String::new(),
        command: "test".into(),
        seed: 0,
        dataset_hash: String::new(),
        device: "cpu".into(),
        threads: 1,
        status: String::new(),
        seconds: 0.0,
    }
}

/// Trains in `folder`; `watch` sees every step and may ask to stop.
fn train_watched(config: &Config, folder: &Path, mut watch: impl FnMut(u64) -> bool) -> Result<()> {
    let stop = AtomicBool::new(false);
    let mut progress = |p: Progress| {
        if watch(p.step) {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let dataset = Dataset::from_config(config)?;
    run(config, dataset, &RunFolder::new(folder), &cpu(), info(), &stop, &mut progress)
}

fn train(config: &Config, folder: &Path) -> Result<()> {
    train_watched(config, folder, |_| false)
}

/// Every file below `folder` with its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

/// The outcome is an input error that names `place`, and the folder is as it was.
fn assert_refused(folder: &Path, place: &str, attempt: impl FnOnce() -> Result<()>) {
    let before = contents(folder);
    let error = attempt().expect_err("this must be refused");
    assert!(matches!(error, Error::Input { .. }), "{error:?}");
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains(place), "{error} does not name {place}");
    assert_eq!(contents(folder), before, "something was overwritten");
}

#[test]
fn shares_of_a_batch_add_up_whatever_the_threads() {
    let _shared = shared();
    // PIDM has every term of a loss but that of a base; the shares of 16 in 3 are not of one size.
    let trained = |shares: usize, threads: usize| {
        let config = small("pidm", &[&format!("train.shares={shares}")]);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut training = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).unwrap();
            let metrics: Vec<Metrics> = (0..21).filter_map(|_| training.step().unwrap()).collect();
            (training.snapshot().weights, metrics.iter().map(|m| (m.loss, m.residual.unwrap())).collect::<Vec<_>>())
        })
    };
    let (whole, losses) = trained(1, 1);
    let (cut, cut_losses) = trained(3, 1);
    assert_eq!((cut.clone(), cut_losses.clone()), trained(3, 3), "threads change nothing");
    assert_ne!(whole, cut, "sums in another order");
    for ((name, _, a), (_, _, b)) in whole.iter().zip(&cut) {
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() < 1e-4 * a.abs().max(0.1), "{name}: {a} and {b}");
        }
    }
    for (a, b) in losses.into_iter().zip(cut_losses) {
        assert!((a.0 / b.0 - 1.0).abs() < 1e-4 && (a.1 / b.1 - 1.0).abs() < 1e-4, "{a:?} and {b:?}");
    }
    let config = small("vanilla", &["train.shares=17"]);
    let refused = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).err().unwrap().to_string();
    assert!(refused.starts_with("train.shares: expected 1 to 16"), "{refused}");
}

#[test]
fn a_resumed_training_equals_an_uninterrupted_one_byte_for_byte() {
    let _guard = shared();
    let unknown = [
        "constraint.residual=(sqrt(x^2 + y^2) - r - s)^2",
        "constraint.parameters={r={learn=1.2}, s={normal=[0.0, 0.1]}}",
    ];
    for (method, settings) in [("scd", &[][..]), ("scd", &unknown), ("pidm-ddpm", &[])] {
        let config = small(method, settings);
        let home = TempDir::new().unwrap();
        let [whole, stopped, crashed] = ["whole", "stopped", "crashed"].map(|n| RunFolder::new(home.path().join(n)));
        train(&config, &whole.path).unwrap();

        let error = train_watched(&config, &stopped.path, |step| step == 25).unwrap_err();
        assert!(matches!(error, Error::Interrupted { .. }) && error.exit_code() == 130, "{error:?}");
        assert!(error.to_string().contains("step 25 of 60"), "{error}");
        assert!(!stopped.snapshot().exists());
        assert!(fs::read_to_string(stopped.info()).unwrap().contains("interrupted"));
        let mut first = None;
        train_watched(&config, &stopped.path, |step| {
            first.get_or_insert(step);
            false
        })
        .unwrap();
        assert_eq!(first, Some(26), "{method}: started over");

        // A crash at step 25 leaves the checkpoint of step 20 and metrics of later steps.
        let mut at_20 = Vec::new();
        train_watched(&config, &crashed.path, |step| {
            if step == 23 {
                at_20 = fs::read(crashed.checkpoint()).unwrap();
            }
            step == 25
        })
        .unwrap_err();
        fs::write(crashed.checkpoint(), at_20).unwrap();
        train(&config, &crashed.path).unwrap();

        let metrics = fs::read(whole.metrics()).unwrap();
        assert_eq!(String::from_utf8(metrics.clone()).unwrap().lines().count(), 9, "every 7 of 60 steps, and the last");
        for resumed in [stopped, crashed] {
            assert_eq!(fs::read(resumed.snapshot()).unwrap(), fs::read(whole.snapshot()).unwrap(), "{method}");
            assert_eq!(fs::read(resumed.metrics()).unwrap(), metrics, "{method}");
            assert!(fs::read_to_string(resumed.info()).unwrap().contains("finished"));
        }
        let learned: Vec<f64> = String::from_utf8(metrics)
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str::<Metrics>(line).unwrap().constraint.get("r").copied())
            .collect();
        assert_eq!(learned.len(), if settings.is_empty() { 0 } else { 9 });
        if let Some(last) = learned.last() {
            assert!(learned.windows(2).all(|pair| pair[0] != pair[1]), "{learned:?}");
            let snapshot = Snapshot::read(&whole.snapshot()).unwrap();
            let (_, shape, values) = snapshot.weights.iter().find(|(name, _, _)| name == "constraint.r").unwrap();
            // The snapshot has the running average.
            assert!(shape == &[1] && (f64::from(values[0]) - last).abs() < 0.1, "{values:?} against {last}");
        }
        // A finished run is left alone.
        let before = contents(&whole.path);
        train(&config, &whole.path).unwrap();
        assert_eq!(contents(&whole.path), before);
    }
}

#[test]
fn folders_that_belong_to_something_else_are_refused_and_left_alone() {
    let _guard = shared();
    let config = small("scd", &[]);
    let home = TempDir::new().unwrap();
    let run_path = home.path().join("run");
    train_watched(&config, &run_path, |step| step == 12).unwrap_err();
    let other = small("scd", &["train.rate=2e-3"]);
    assert_refused(&run_path, "another configuration", || train(&other, &run_path));
    // A second training while the first is at work there; afterwards it may go on.
    let mut refused = false;
    train_watched(&config, &run_path, |step| {
        if step == 13 {
            assert_refused(&run_path, "another process is training", || train(&config, &run_path));
            refused = true;
        }
        step == 14
    })
    .unwrap_err();
    assert!(refused);
    train_watched(&config, &run_path, |step| step == 15).unwrap_err();

    let foreign = home.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
    assert_refused(&foreign, "holds no run", || train(&config, &foreign));

    // An empty folder is as good as none.
    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    train_watched(&config, &empty, |step| step == 1).unwrap_err();
    assert!(RunFolder::new(&empty).checkpoint().exists());
}

#[test]
fn damaged_and_foreign_checkpoints_are_refused_and_left_alone() {
    let _guard = shared();
    let config = small("scd", &[]);
    let home = TempDir::new().unwrap();
    let folder = RunFolder::new(home.path().join("run"));
    train_watched(&config, &folder.path, |step| step == 12).unwrap_err();
    let good = fs::read(folder.checkpoint()).unwrap();
    let mut damaged: Vec<Vec<u8>> = [0, 4, 8, 100, good.len() / 2, good.len() - 1].map(|n| good[..n].to_vec()).into();
    // The header's length, its first brace, a tensor's name and offsets: bytes 0, 7, 8 and two letters in the text.
    let text_at = |text: &[u8]| good.windows(text.len()).position(|w| w == text).unwrap();
    for at in [0, 7, 8, text_at(b"square/"), text_at(b"data_offsets"), text_at(b"sums")] {
        let mut flipped = good.clone();
        flipped[at] ^= 0x11;
        damaged.push(flipped);
    }
    damaged.push(b"not a tensor file at all, but long enough to be one".to_vec());
    // A tensor file of somebody else, and one of ours that is no checkpoint.
    let mut foreign = 2u64.to_le_bytes().to_vec();
    foreign.extend(b"{}");
    damaged.push(foreign);
    let training = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).unwrap();
    let snapshot = home.path().join("snapshot.safetensors");
    training.snapshot().write(&snapshot).unwrap();
    damaged.push(fs::read(&snapshot).unwrap());
    for (i, bytes) in damaged.iter().enumerate() {
        fs::write(folder.checkpoint(), bytes).unwrap();
        let place = folder.checkpoint().display().to_string();
        assert_refused(&folder.path, &place, || {
            println!("damage {i}");
            train(&config, &folder.path)
        });
    }
    fs::write(folder.checkpoint(), good).unwrap();
    train(&config, &folder.path).unwrap();
}

#[test]
fn no_single_flipped_bit_goes_unnoticed() {
    let _guard = shared();
    let config = small("vanilla", &[]);
    let home = TempDir::new().unwrap();
    let (checkpoint, snapshot) = (home.path().join("c.safetensors"), home.path().join("s.safetensors"));
    let mut training = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).unwrap();
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

/// A change of a header's text.
type Change = fn(&str) -> String;

#[test]
fn snapshots_that_no_training_wrote_are_refused_and_those_without_a_checksum_are_read() {
    let _guard = shared();
    let config = small("scd", &[]);
    let home = TempDir::new().unwrap();
    let path = home.path().join("snapshot.safetensors");
    let training = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).unwrap();
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
    Snapshot::read(&path).unwrap().model(&cpu(), &path).unwrap();
}

#[test]
fn a_loaded_snapshot_denoises_bit_for_bit_like_the_trained_model() {
    let _guard = shared();
    for method in ["scd", "pidm-ddpm"] {
        let config = small(method, &[]);
        let home = TempDir::new().unwrap();
        let mut training = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).unwrap();
        for _ in 0..15 {
            training.step().unwrap();
        }
        let path = home.path().join("snapshot.safetensors");
        let in_memory = training.snapshot();
        in_memory.write(&path).unwrap();
        let loaded = Snapshot::read(&path).unwrap();
        assert_eq!(loaded.step, 15);
        assert_eq!(loaded.blueprint, in_memory.blueprint);
        let x = || field_batch(Stream::new(1, Purpose::Metric, 0).normals(12), [2, 1, 1], &cpu());
        let sigma = [0.01, 0.1, 0.5, 1.0, 5.0, 50.0];
        let denoise =
            |snapshot: &Snapshot| to_vec_f64(snapshot.model(&cpu(), &path).unwrap().denoiser.denoise(x(), &sigma));
        let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        let ours = bits(denoise(&in_memory));
        assert_eq!(bits(denoise(&loaded)), ours, "{method}");
        let trained = Trained::load(&path, &cpu()).unwrap();
        assert_eq!(bits(to_vec_f64(trained.model.denoiser.denoise(x(), &sigma))), ours, "{method}");
        // The snapshot holds the running average, not the last step's weights.
        let current = training.model.denoiser.denoise(x(), &sigma).without_autodiff();
        assert_ne!(bits(to_vec_f64(current)), ours, "{method}");
    }
}

#[test]
fn a_diverging_training_stops_names_the_step_and_keeps_the_checkpoint() {
    let _guard = shared();
    let config = small("vanilla", &["train.rate=1e13", "train.checkpoint_every=1"]);
    let home = TempDir::new().unwrap();
    let folder = RunFolder::new(home.path().join("run"));
    let mut last = 0;
    let error = train_watched(&config, &folder.path, |step| {
        last = step;
        false
    })
    .unwrap_err();
    assert!(matches!(error, Error::Diverged { step, .. } if step == last), "{error:?} after step {last}");
    assert_eq!(error.exit_code(), 1);
    let said = error.to_string();
    assert!(said.contains(&format!("step {last}")) && said.contains("train.rate"), "{said}");
    assert!(said.contains(&folder.checkpoint().display().to_string()), "{said}");
    assert!(last >= 1 && !folder.snapshot().exists());
    let mut training = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).unwrap();
    training.read_checkpoint(&folder.checkpoint()).unwrap();
    assert_eq!(training.optimizer.step, last);
    assert!(training.optimizer.slots.iter().flat_map(|s| &s.value).all(|v| v.is_finite()));
}

#[test]
fn empty_data_and_data_that_are_not_finite_are_refused() {
    let _guard = shared();
    let config = small("scd", &[]);
    let good = Dataset::from_config(&config).unwrap();
    let attempt = |dataset: Dataset| {
        let home = TempDir::new().unwrap();
        let folder = RunFolder::new(home.path().join("run"));
        let error = run(&config, dataset, &folder, &cpu(), info(), &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(matches!(error, Error::Input { .. }) && !folder.path.exists(), "{error:?}");
        error.to_string()
    };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut dataset = good.clone();
        // Sample 6, field y.
        dataset.train[13] = bad;
        let said = attempt(dataset);
        assert!(said.contains("train data") && said.contains("`y`") && said.contains("sample 6"), "{said}");
        let mut dataset = good.clone();
        dataset.valid[4] = bad;
        let said = attempt(dataset);
        assert!(said.contains("valid data") && said.contains("`x`") && said.contains("sample 2"), "{said}");
    }
    assert!(attempt(Dataset { train: Vec::new(), ..good.clone() }).contains("train data"));
    assert!(attempt(Dataset { valid: Vec::new(), ..good }).contains("valid data"));
}

/// Resident memory of this process in kilobytes.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn memory_stays_flat_over_a_thousand_steps() {
    let _alone = PROCESS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    for method in ["scd", "pidm-ddpm"] {
        let config = small(method, &["train.iterations=2000", "train.batch=64"]);
        let mut training = Training::new(&config, Dataset::from_config(&config).unwrap(), &cpu()).unwrap();
        let mut steps = |n: usize| {
            for _ in 0..n {
                training.step().unwrap();
            }
        };
        steps(200);
        let before = resident();
        steps(1_000);
        let grown = resident().saturating_sub(before);
        // One step's tensors are about 100 kB: keeping 1% of them would show.
        assert!(grown < 1_024, "{method}: {grown} kB more after 1,000 steps");
    }
}
