//! Training runs: exact resumption, refusal of what does not belong, divergence.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::tensor::{Tensor, TensorData};
use softly::error::{Error, Result};
use softly::tensors::to_vec_f64;
use softly::{
    Config, Dataset, Layers, Metrics, ParameterConfig, Recompute, RunFolder, Snapshot, Split, Training, Values, run,
};
use softly_kernels::simd::{Level, with_level};
use softly_pde::grid::{Axis, Grid};
use tempfile::TempDir;

use crate::common::{Watch, contents, cpu, dataset, info, new_training, small, train as train_values, valid, weights};

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
fn other_vector_units_change_little() {
    let settings = [
        "denoiser.backbone={kind='unet', channels=8, multipliers=[1, 2], blocks=1, head=8}",
        "data.count=24",
        "data.valid=4",
        "train.batch=4",
        "train.log_every=100",
    ];
    let layers = Layers::new().preset("darcy-demo").unwrap().method("vanilla").unwrap();
    let config = settings.iter().fold(layers, |layers, setting| layers.set(setting).unwrap()).finish("test").unwrap();
    let data = dataset(&config);
    let trained = |level: Level| {
        // One thread: levels are chosen thread by thread.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let train = || {
            let mut training = Training::new(&config, data.clone(), &cpu()).unwrap();
            let loss = (0..100).filter_map(|_| training.step().unwrap()).last().unwrap().loss;
            (loss, training.snapshot().weights)
        };
        pool.install(|| with_level(level, train))
    };
    let levels = Level::supported();
    let (loss, weights) = trained(levels[0]);
    for &level in &levels[1..] {
        let (other_loss, other) = trained(level);
        let of_loss = (other_loss / loss - 1.0).abs();
        let pairs = weights.iter().zip(&other).flat_map(|((_, _, a), (_, _, b))| a.iter().zip(b));
        let (distance, size) = pairs.fold((0.0, 0.0), |(distance, size): (f64, f64), (a, b)| {
            (distance + f64::from(a - b).powi(2), size + f64::from(*a).powi(2))
        });
        let of_weights = (distance / size).sqrt();
        println!("{level:?} against {:?}: loss {of_loss:.1e}, weights {of_weights:.1e}", levels[0]);
        assert!(of_loss < 1e-3 && of_weights < 1e-2, "{level:?}: loss {of_loss:.1e}, weights {of_weights:.1e}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_a_training() {
    let darcy = |backbone: &str, batch: usize, shares: usize| {
        let settings = [backbone, "data.count=24", "data.valid=4", "train.log_every=1"];
        let sizes = [format!("train.batch={batch}"), format!("train.shares={shares}")];
        let layers = Layers::new().preset("darcy-demo").unwrap().method("vanilla").unwrap();
        let settings = settings.into_iter().chain(sizes.iter().map(String::as_str));
        settings.fold(layers, |layers, setting| layers.set(setting).unwrap()).finish("test").unwrap()
    };
    let mlp = |batch: usize, shares: usize| {
        small("scd", &[&format!("train.batch={batch}"), &format!("train.shares={shares}"), "train.log_every=1"])
    };
    let unet = "denoiser.backbone={kind='unet', channels=8, multipliers=[1, 2], blocks=1, head=8}";
    let operator = "denoiser.backbone={kind='operator', channels=6, modes=4, blocks=1}";
    let networks: [&dyn Fn(usize, usize) -> Config; 3] =
        [&|batch, shares| darcy(unet, batch, shares), &|batch, shares| darcy(operator, batch, shares), &mlp];
    for (network, of) in networks.into_iter().enumerate() {
        for (batch, shares) in [(1, 1), (7, 1), (16, 1), (7, 3)] {
            let config = of(batch, shares);
            let data = dataset(&config);
            let trained = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    let mut training = Training::new(&config, data.clone(), &cpu()).unwrap();
                    let norms: Vec<f64> = (0..4).map(|_| training.step().unwrap().unwrap().gradient_norm).collect();
                    (norms, training.snapshot().weights)
                })
            };
            let alone = trained(1);
            for threads in [2, 3, 5] {
                assert!(
                    alone == trained(threads),
                    "network {network}, batch {batch}, {shares} shares, {threads} threads"
                );
            }
        }
    }
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
            assert!((last - 1.0).abs() < 0.02 && learned.iter().all(|r| r == last), "{learned:?}");
            let values = weights(&Snapshot::read(&whole.snapshot()).unwrap(), "constraint.r").to_vec();
            assert_eq!(values, [*last as f32]);
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
fn a_finished_training_goes_on_when_more_steps_are_asked_for() {
    let with =
        |iterations: u64, more: &[&str]| small("scd", &[&[&*format!("train.iterations={iterations}")], more].concat());
    let home = TempDir::new().unwrap();
    let folder = |name: &str| RunFolder::new(home.path().join(name));
    // 33 steps end between two checkpoints.
    let (whole, extended) = (folder("whole"), folder("extended"));
    train(&with(60, &[]), &whole.path).unwrap();
    train(&with(33, &[]), &extended.path).unwrap();
    let short = fs::read(extended.snapshot()).unwrap();
    let mut first = None;
    let stopped = train_watched(&with(60, &[]), &extended.path, |step| {
        first.get_or_insert(step);
        step == 40
    });
    assert!(matches!(stopped, Err(Error::Interrupted { .. })) && first == Some(34), "{first:?}");
    assert_eq!(fs::read(extended.snapshot()).unwrap(), short, "the shorter training can still be used");
    train(&with(60, &[]), &extended.path).unwrap();
    // The rate is constant, so all is as if the count had been 60 from the start; only the 33rd step has a line of its own.
    assert_eq!(fs::read(extended.snapshot()).unwrap(), fs::read(whole.snapshot()).unwrap());
    let steps = |folder: &RunFolder| -> Vec<u64> {
        let text = fs::read_to_string(folder.metrics()).unwrap();
        text.lines().map(|line| serde_json::from_str::<Metrics>(line).unwrap().step).collect()
    };
    assert_eq!(steps(&whole), [7, 14, 21, 28, 35, 42, 49, 56, 60]);
    assert_eq!(steps(&extended), [7, 14, 21, 28, 33, 35, 42, 49, 56, 60]);
    assert_eq!(fs::read(extended.config()).unwrap(), fs::read(whole.config()).unwrap());

    assert_refused(&extended.path, "60 steps already", || train(&with(33, &[]), &extended.path));
    let other = with(90, &["train.rate=2e-3"]);
    assert_refused(&extended.path, "another configuration", || train(&other, &extended.path));

    // A cosine knows its end: with more steps it goes on at the rate that the longer run has there.
    let cosine = "train.schedule={kind='cosine'}";
    let bent = folder("bent");
    train(&with(28, &[cosine]), &bent.path).unwrap();
    train(&with(56, &[cosine]), &bent.path).unwrap();
    let text = fs::read_to_string(bent.metrics()).unwrap();
    let rates: Vec<f64> = text.lines().map(|line| serde_json::from_str::<Metrics>(line).unwrap().rate).collect();
    let config = with(56, &[cosine]).train;
    let expected = |done: u64, total: u64| config.rate * config.schedule.factor(done - 1, total);
    assert_eq!(
        rates,
        [7, 14, 21, 28]
            .map(|s| expected(s, 28))
            .into_iter()
            .chain([35, 42, 49, 56].map(|s| expected(s, 56)))
            .collect::<Vec<_>>()
    );
}

#[test]
fn fewer_samples_than_a_batch_are_used_over_and_over() {
    let config = small("vanilla", &["data.count=3", "data.valid=1"]);
    let mut training = new_training(&config).unwrap();
    for _ in 0..8 {
        training.step().unwrap();
    }
    assert!(training.optimizer.slots.iter().flat_map(|s| &s.value).all(|v| v.is_finite()));
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
    let with = |mut values: Vec<f32>, at: usize, bad: f32| -> Values {
        values[at] = bad;
        values.into()
    };
    for bad in [f32::NAN, f32::INFINITY] {
        // Sample 6, field y.
        let said = attempt(Dataset { train: with(train_values(&good), 13, bad), ..good.clone() });
        assert!(said.contains("train data") && said.contains("`y`") && said.contains("sample 6"), "{said}");
        let said = attempt(Dataset { valid: with(valid(&good), 4, bad), ..good.clone() });
        assert!(said.contains("valid data") && said.contains("`x`") && said.contains("sample 2"), "{said}");
    }
    assert!(attempt(Dataset { train: Vec::new().into(), ..good.clone() }).contains("train data"));
    assert!(attempt(Dataset { valid: Vec::new().into(), ..good }).contains("valid data"));
}

#[test]
fn a_run_goes_on_with_its_own_data_and_files_only() {
    let config = small("scd", &[]);
    let home = TempDir::new().unwrap();
    let folder = RunFolder::new(home.path().join("run"));
    let mut other = dataset(&config);
    let mut numbers = train_values(&other);
    numbers[5] += 0.5;
    other.train = numbers.into();
    let with_other = || {
        let training = Training::new(&config, other.clone(), &cpu())?;
        run(training, &folder, info(), &Watch::new(|_| false).job(&cpu()))
    };
    train_watched(&config, &folder.path, |step| step == 12).unwrap_err();
    assert_refused(&folder.path, "a run on other data", with_other);
    // The same numbers on another domain are other data.
    let moved = |grid: Grid| {
        let data = Dataset { grid, ..dataset(&config) };
        run(Training::new(&config, data, &cpu())?, &folder, info(), &Watch::new(|_| false).job(&cpu()))
    };
    let point = |last: f64| Grid { axes: vec![Axis::new("a", 1, 0.0, last), Axis::new("b", 1, 0.0, 1.0)] };
    assert_refused(&folder.path, "a run on other data", || moved(point(2.0)));
    // The checkpoint of another seed has the same shapes.
    let seeded = RunFolder::new(home.path().join("seeded"));
    train_watched(&small("scd", &["train.seed=5"]), &seeded.path, |step| step == 12).unwrap_err();
    let own = fs::read(folder.checkpoint()).unwrap();
    fs::copy(seeded.checkpoint(), folder.checkpoint()).unwrap();
    assert_refused(&folder.path, "another configuration", || train(&config, &folder.path));
    fs::write(folder.checkpoint(), own).unwrap();
    train(&config, &folder.path).unwrap();
    assert_refused(&folder.path, "a run on other data", with_other);
    train(&small("scd", &["train.seed=5"]), &seeded.path).unwrap();
    fs::copy(seeded.snapshot(), folder.snapshot()).unwrap();
    assert_refused(&folder.path, "another configuration", || train(&config, &folder.path));
    let hash = dataset(&config).hash();
    assert_eq!(folder.read_info().unwrap().dataset_hash, hash);
    assert_eq!(Snapshot::read(&seeded.snapshot()).unwrap().blueprint.data.hash, hash);
}

#[test]
fn activations_that_are_computed_again_give_the_same_training() {
    // Two levels, with attention and with blocks that change the number of channels.
    let unet = "denoiser.backbone={kind='unet', channels=16, multipliers=[1, 2], blocks=1, attention=[8], head=16}";
    let scd = "denoiser.scd={scale='unit', rate=0.1}";
    let trained = |recompute: &str| {
        let mut layers = Layers::new();
        let law = "constraint={fields=['u'], residual='dxx(u)'}";
        let how = ["data.normalise='std'", "train.batch=4", "train.shares=2", "train.log_every=1"];
        for setting in how.into_iter().chain([unet, law, scd, recompute]) {
            layers = layers.set(setting).unwrap();
        }
        let mut training = Training::new(&layers.finish("test").unwrap(), waves(6, 1.0, 0.0, false), &cpu()).unwrap();
        let lines: Vec<Metrics> = (0..4).map(|_| training.step().unwrap().unwrap()).collect();
        lines
    };
    let (kept, again) = (trained("train.recompute='none'"), trained("train.recompute='level'"));
    // The way there is the same; on the way back the embedding's gradients are added in another order.
    assert_eq!(kept[0].loss, again[0].loss);
    for (kept, again) in kept.iter().zip(&again) {
        let gap = |a: f64, b: f64| (a / b - 1.0).abs();
        let worst = gap(kept.loss, again.loss).max(gap(kept.gradient_norm, again.gradient_norm));
        assert!(worst < 1e-5, "step {}: {worst:.1e}", kept.step);
    }
    let mlp = small("vanilla", &[]);
    let mut refused = mlp.clone();
    refused.train.recompute = Recompute::Level;
    let said = refused.check().unwrap_err().to_string();
    assert!(mlp.check().is_ok() && said.contains("train.recompute") && said.contains("unet"), "{said}");
}

/// Samples of u on 8 × 8 nodes, each a wave times `size` plus `mean`, and the scalar nu if asked for.
fn waves(count: usize, size: f32, mean: f32, with_nu: bool) -> Dataset {
    let mut train = Vec::new();
    for i in 0..count {
        train.extend((0..64).map(|k| mean + size * (0.3 * (k * (i + 1)) as f32).sin()));
        if with_nu {
            train.extend([0.1 * (i + 1) as f32; 64]);
        }
    }
    let (fields, scalars): (&[&str], &[&str]) = if with_nu { (&["u", "nu"], &["nu"]) } else { (&["u"], &[]) };
    Dataset {
        fields: fields.iter().map(ToString::to_string).collect(),
        scalars: scalars.iter().map(ToString::to_string).collect(),
        constants: BTreeMap::from([("beta".to_string(), 2.0)]),
        grid: Grid::unit(8, 8),
        valid: train.clone().into(),
        train: train.into(),
        generator: None,
        equation: None,
    }
}

/// A small configuration for fields, with an equation.
fn of_fields(residual: &str) -> Config {
    let residual = format!("constraint={{ fields = ['u'], residual = '{residual}' }}");
    let settings = ["data.normalise='std'", "denoiser.backbone={kind='unet', channels=8, multipliers=[1], blocks=1}"];
    let mut layers = Layers::new();
    for setting in settings.iter().copied().chain([residual.as_str(), "train.batch=4", "train.iterations=3"]) {
        layers = layers.set(setting).unwrap();
    }
    layers.finish("test").unwrap()
}

#[test]
fn tiny_and_huge_units_are_normalised_and_constant_fields_are_refused() {
    let config = of_fields("dxx(u)");
    for size in [1e-30, 1.0, 1e30] {
        let data = waves(6, size, 3.0 * size, false);
        let mut training = Training::new(&config, data.clone(), &cpu()).unwrap();
        let units = &training.blueprint.data.units;
        let normalised = data.batch(Split::Train, &[0, 1, 2, 3, 4, 5], units).unwrap();
        let n = normalised.len() as f64;
        let mean = normalised.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let std = (normalised.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n).sqrt();
        assert!(mean.abs() < 1e-6 && (std - 0.5).abs() < 1e-6, "{size}: {mean} ± {std}");
        let x = Tensor::from_data(TensorData::new(normalised, [6, 1, 8, 8]), &cpu());
        for (back, value) in to_vec_f64(units.physical(x)).iter().zip(&train_values(&data)) {
            assert!(
                (back / f64::from(*value) - 1.0).abs() < 1e-4 || (back / f64::from(size)).abs() < 1e-3,
                "{back} {value}"
            );
        }
        for _ in 0..3 {
            training.step().unwrap();
        }
    }
    for (size, mean) in [(0.0, 0.0), (0.0, 2.5), (1e-8, 1.0), (1e-42, 0.0)] {
        let said = Training::new(&config, waves(6, size, mean, false), &cpu()).err().unwrap().to_string();
        assert!(said.contains("field `u`") && said.contains("values that vary"), "{said}");
    }
}

#[test]
fn formulas_use_the_numbers_of_samples_by_name() {
    let config = of_fields("nu*dxx(u) - beta");
    let training = Training::new(&config, waves(6, 1.0, 0.0, true), &cpu()).unwrap();
    let constraint = training.blueprint.config.constraint.as_ref().unwrap();
    assert_eq!(constraint.fields, ["u", "nu"]);
    assert_eq!(constraint.parameters.get("beta"), Some(&ParameterConfig::Number(2.0)));
    assert_eq!(training.blueprint.data.scalars, ["nu"]);
    // Without nu among the data the name means nothing; the configuration's own number wins over the data's.
    let said = Training::new(&config, waves(6, 1.0, 0.0, false), &cpu()).err().unwrap().to_string();
    assert!(said.contains("nu"), "{said}");
    let mut own = config.clone();
    own.constraint.as_mut().unwrap().parameters.insert("beta".into(), ParameterConfig::Number(3.0));
    let training = Training::new(&own, waves(6, 1.0, 0.0, true), &cpu()).unwrap();
    let constraint = training.blueprint.config.constraint.as_ref().unwrap();
    assert_eq!(constraint.parameters.get("beta"), Some(&ParameterConfig::Number(3.0)));
    // Equations that the data cannot have.
    let refused = |config: &Config| Training::new(config, waves(6, 1.0, 0.0, true), &cpu()).err().unwrap().to_string();
    let said = refused(&of_fields("x^2 - beta"));
    assert!(said.contains("depends on none of the fields u"), "{said}");
    let mut lacking = of_fields("dxx(u)");
    lacking.constraint.as_mut().unwrap().fields = vec!["v".into()];
    let said = refused(&lacking);
    assert!(said.contains("no field `v`; they have u, nu"), "{said}");
}
