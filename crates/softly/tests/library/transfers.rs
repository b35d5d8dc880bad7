//! How often a training step goes to and fro between the host and a device: the CPU taken for another device, or a GPU.

use burn::tensor::Device;
use softly::tensors::{Transfers, transfers};
use softly::{Config, Training, composed};

use crate::common::{configured, cpu, dataset, new_training};

const FIELDS: [&str; 5] = [
    "denoiser.backbone={kind='unet', channels=8, multipliers=[1, 2], blocks=1, head=8}",
    "data.count=24",
    "data.valid=4",
    "train.batch=4",
    "train.shares=1",
];

fn fields(settings: &[&str]) -> Config {
    configured("darcy-demo", &[&FIELDS[..], settings].concat())
}

fn along(directions: &str) -> String {
    format!("denoiser.scd={{directions=['{directions}'], solve_for='p', scale='jacobi', input='features'}}")
}

/// Transfers of a step after others, on the device of `begun`.
fn of_a_step(mut training: Training) -> Transfers {
    (0..3).for_each(|_| drop(training.step().unwrap()));
    let before = transfers();
    training.step().unwrap();
    let after = transfers();
    Transfers { up: after.up - before.up, down: after.down - before.down }
}

fn counted(device: &Device) -> Vec<(&'static str, Transfers)> {
    let vanilla = || {
        let mut config = fields(&[]);
        config.denoiser.scd = None;
        config
    };
    let scd = fields(&[&along("gradient"), "constraint.parameters.flow={learn=12.0}"]);
    let from_scratch = |config: &Config| of_a_step(Training::new(config, dataset(config), device).unwrap());
    let base = new_training(&vanilla()).unwrap().snapshot();
    let adapted = |directions: &str| {
        let config = fields(&[&along(directions)]);
        let place = std::path::Path::new("base");
        of_a_step(Training::adapt(&base, place, &config, dataset(&config), device).unwrap())
    };
    vec![
        ("vanilla", from_scratch(&vanilla())),
        ("scd", from_scratch(&scd)),
        ("adapt along three directions", adapted("gradient', 'spectral', 'newton")),
        ("adapt along all directions", adapted("gradient', 'spectral', 'newton', 'kalman")),
    ]
}

fn check(device: &Device) {
    for (name, Transfers { up, down }) in counted(device) {
        println!("{name}: {up} to the device, {down} from it");
        // Batch, weights; gradients with the loss. Kalman's update is made on the host: the estimate down, the correction up.
        let kalman = u64::from(name.contains("all"));
        assert_eq!([up, down], [2 + kalman, 1 + kalman], "{name}");
    }
}

#[test]
fn a_step_sends_batch_and_weights_and_gets_gradients() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| composed(|| check(&cpu())));
    #[cfg(feature = "wgpu")]
    pool.install(|| check(&softly::device::by_name("wgpu").unwrap()));
}

#[test]
fn the_cpu_has_no_transfers() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let found = pool.install(|| counted(&cpu()));
    assert!(found.iter().all(|(_, counts)| *counts == Transfers::default()), "{found:?}");
}
