//! Training runs: exact resumption, refusal of what does not belong, divergence.

use std::fs;
use std::path::Path;

use softly::error::{Error, Result};
use softly::{Config, Dataset, Metrics, RunFolder, Snapshot, Training, run};
use tempfile::TempDir;

use crate::common::{Watch, contents, cpu, dataset, info, new_training, small, weights};

/// Trains in `folder`; `watch` sees every step and may ask to stop.
fn train_watched(config: &Config, folder: &Path, watch: impl FnMut(u64) -> bool + Send) -> Result<()> {
    run(new_training(config)?, &RunFolder::new(folder), info(), &Watch::new(watch).job(&cpu()))
}

fn train(config: &Config, folder: &Path) -> Result<()> {
    train_watched(config, folder, |_| false)
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
    // PIDM has every term of a loss but that of a base; the shares of 16 in 3 are not of one size.
    let trained = |shares: usize, threads: usize| {
        let config = small("pidm", &[&format!("train.shares={shares}")]);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut training = new_training(&config).unwrap();
            let metrics: Vec<Metrics> = (0..21).filter_map(|_| training.step().unwrap()).collect();
            (training.snapshot().weights, metrics.iter().map(|m| (m.loss, m.terms["residual"])).collect::<Vec<_>>())
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
    let refused = new_training(&config).err().unwrap().to_string();
    assert!(refused.starts_with("train.shares: expected 1 to 16"), "{refused}");
}

#[test]
fn a_resumed_training_equals_an_uninterrupted_one_byte_for_byte() {
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
            let values = weights(&snapshot, "constraint.r");
            // The snapshot has the running average.
            assert!(values.len() == 1 && (f64::from(values[0]) - last).abs() < 0.1, "{values:?} against {last}");
        }
        // A finished run is left alone.
        let before = contents(&whole.path);
        train(&config, &whole.path).unwrap();
        assert_eq!(contents(&whole.path), before);
    }
}

#[test]
fn folders_that_belong_to_something_else_are_refused_and_left_alone() {
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
    let training = new_training(&config).unwrap();
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
fn a_diverging_training_stops_names_the_step_and_keeps_the_checkpoint() {
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
    assert_eq!(folder.read_info().unwrap().status, "failed");
    let mut training = new_training(&config).unwrap();
    training.read_checkpoint(&folder.checkpoint()).unwrap();
    assert_eq!(training.optimizer.step, last);
    assert!(training.optimizer.slots.iter().flat_map(|s| &s.value).all(|v| v.is_finite()));
}

#[test]
fn empty_data_and_data_that_are_not_finite_are_refused() {
    let config = small("scd", &[]);
    let good = dataset(&config);
    let attempt = |dataset: Dataset| {
        let error = Training::new(&config, dataset, &cpu()).err().expect("refused");
        assert_eq!(error.exit_code(), 2);
        assert!(matches!(error, Error::Input { .. }), "{error:?}");
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
