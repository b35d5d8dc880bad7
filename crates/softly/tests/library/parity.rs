//! One model on two back ends: the same weights give the same denoiser, gradients, training steps, samples and likelihood.
//!
//! Our CPU kernels are compared with the plain operations that every other back end computes with; with the feature `wgpu`, the CPU
//! also with a GPU, for which Mesa's software Vulkan is device enough.

use std::path::Path;
use std::sync::LazyLock;

use burn::tensor::{DType, Device, Tensor, TensorData};
use softly::job::Job;
use softly::tensors::to_vec_f64;
use softly::{
    Config, Denoiser, Draw, HeldOut, Integrator, Likelihood, Model, Parameters, Probes, Snapshot, Trained, Training,
    composed,
};

use crate::common::{adapting, configured, cpu, dataset, new_training, normals, valid};

/// Where the same is computed otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Other {
    /// Plain operations on the CPU.
    Plain,
    #[cfg(feature = "wgpu")]
    Wgpu,
}

impl Other {
    const ALL: &[Self] = &[
        Self::Plain,
        #[cfg(feature = "wgpu")]
        Self::Wgpu,
    ];

    /// The precision of a sampler's state that both have, or on `device` for the model called `name`: off the CPU the Kalman update
    /// is made on it and in double precision whatever the state.
    #[cfg_attr(not(feature = "wgpu"), allow(unused_variables))]
    fn state(self, name: &str, device: &Device) -> DType {
        match self {
            Self::Plain => DType::F64,
            #[cfg(feature = "wgpu")]
            Self::Wgpu if !name.contains("kalman") => DType::F32,
            #[cfg(feature = "wgpu")]
            Self::Wgpu => softly::device::state_dtype(device),
        }
    }

    /// What `work` finds there and on the CPU.
    fn compare<R: Send>(self, work: impl Fn(&Device) -> R + Sync) -> (R, R) {
        let found = match self {
            Self::Plain => {
                // Operations are composed thread by thread.
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                pool.install(|| composed(|| work(&cpu())))
            }
            #[cfg(feature = "wgpu")]
            Self::Wgpu => work(&softly::device::by_name("wgpu").unwrap()),
        };
        (found, work(&cpu()))
    }
}

const SHAPE: [usize; 3] = [2, 16, 16];

const LEVELS: [f64; 5] = [0.02, 0.05, 0.3, 2.0, 20.0];

/// A noise level at which the Kalman update of an untrained estimate jumps: difference quotients along a line are 7, −5 and 140 for
/// steps of 1e-2, 1e-3 and 1e-4, and rounding decides which side it is on.
const JUMP: f64 = 0.3;

/// A small U-Net of Darcy flow.
const SMALL: [&str; 6] = [
    "denoiser.backbone={kind='unet', channels=8, multipliers=[1, 2], blocks=1, head=8}",
    "data.count=24",
    "data.valid=4",
    "train.batch=4",
    "train.iterations=8",
    "train.log_every=1",
];

fn darcy(settings: &[&str]) -> Config {
    configured("darcy-demo", &[&SMALL[..], settings].concat())
}

/// A denoiser without a constraint.
fn vanilla() -> Config {
    let mut config = darcy(&[]);
    config.denoiser.scd = None;
    config
}

/// A snapshot whose weights γ are not zero.
fn awake(mut snapshot: Snapshot) -> Snapshot {
    for (i, (_, _, values)) in snapshot.weights.iter_mut().enumerate().filter(|(_, w)| w.0.starts_with("gamma.")) {
        let noise = normals(9, i as u64, values.len());
        for (value, noise) in values.iter_mut().zip(noise) {
            *value += 0.1 * noise as f32;
        }
    }
    snapshot
}

/// Every direction, scale and form of γ, with a name.
fn models() -> &'static [(String, Snapshot)] {
    static MODELS: LazyLock<Vec<(String, Snapshot)>> = LazyLock::new(made);
    &MODELS
}

fn made() -> Vec<(String, Snapshot)> {
    let mut all = vec![("vanilla".to_string(), new_training(&vanilla()).unwrap().snapshot())];
    let base = all[0].1.clone();
    let forms = [
        ("gradient", "scale='jacobi', input='noisy', output='scalar'"),
        ("gradient", "scale='jacobi', input='features', output='channel'"),
        ("gradient", "scale='unit', input='denoised', output='pixel'"),
        ("gradient", "scale='polyak', input='features', output='scalar'"),
        ("gradient", "scale='plain', damping='exponential', input='noisy', output='channel'"),
        ("gradient", "scale='plain', damping='gradient-norm', input='features', output='scalar'"),
        ("gradient", "scale='paper', damping='exponential', input='features', output='scalar'"),
        ("gradient", "scale='paper', damping='gradient-norm', input='denoised', output='channel'"),
        ("gradient", "scale='unit', constant=[0.4]"),
        ("spectral", "input='features', output='scalar'"),
        ("newton", "input='features', output='scalar'"),
        ("gradient', 'spectral', 'newton", "scale='unit', input='features', output='channel'"),
    ];
    for (directions, form) in forms {
        let scd = format!("denoiser.scd={{directions=['{directions}'], solve_for='p', {form}}}");
        let training = new_training(&darcy(&[&scd])).unwrap();
        all.push((format!("{directions}, {form}"), awake(training.snapshot())));
    }
    for directions in ["kalman", FOUR] {
        let training = adapting(&base, &darcy(&[&along(directions)])).unwrap();
        all.push((format!("adapted along {directions}"), awake(training.snapshot())));
    }
    all.extend(trained());
    all
}

const FOUR: &str = "gradient', 'spectral', 'newton', 'kalman";

fn along(directions: &str) -> String {
    format!("denoiser.scd={{directions=['{directions}'], solve_for='p', scale='unit', input='features'}}")
}

/// Models that were trained for a while: a denoiser, and two adaptations of it.
fn trained() -> Vec<(String, Snapshot)> {
    let until_done = |mut training: Training| {
        while training.optimizer.step < training.blueprint.config.train.iterations {
            training.step().unwrap();
        }
        training.snapshot()
    };
    let mut config = darcy(&["train.iterations=200", "train.batch=8"]);
    config.denoiser.scd = None;
    let base = until_done(new_training(&config).unwrap());
    let adapted = ["kalman", FOUR].map(|directions| {
        let config = darcy(&[&along(directions), "train.iterations=30"]);
        (format!("trained, {directions}"), until_done(adapting(&base, &config).unwrap()))
    });
    [("trained".to_string(), base)].into_iter().chain(adapted).collect()
}

/// The level that is left out of what is compared of the model called `name`.
fn jump(name: &str) -> Option<f64> {
    (name.contains("kalman") && !name.contains("trained")).then_some(JUMP)
}

fn model(snapshot: &Snapshot, device: &Device) -> Model {
    snapshot.model(device, Path::new("test")).unwrap()
}

/// Noisy fields, and their noise levels.
fn noisy(device: &Device, precision: DType) -> (Tensor<4>, Vec<f64>) {
    let sigma = LEVELS.to_vec();
    let [c, h, w] = SHAPE;
    let values: Vec<f32> = normals(4, 0, sigma.len() * c * h * w)
        .chunks_exact(c * h * w)
        .zip(&sigma)
        .flat_map(|(sample, s)| {
            sample.iter().enumerate().map(|(i, v)| ((i as f64 * 0.05).sin() * 0.5 + s * v) as f32).collect::<Vec<_>>()
        })
        .collect();
    (Tensor::from_data(TensorData::new(values, [sigma.len(), c, h, w]), (device, precision)), sigma)
}

/// Largest difference over the largest value.
fn deviation(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let difference = found
        .iter()
        .zip(expected)
        .fold(0.0f64, |m, (a, b)| if b.is_finite() { m.max((a - b).abs()) } else { f64::NAN });
    difference / largest
}

/// Sample by sample: levels differ in size.
fn worst(found: &[f64], expected: &[f64]) -> f64 {
    let len = SHAPE.iter().product();
    found.chunks(len).zip(expected.chunks(len)).map(|(a, b)| deviation(a, b)).fold(0.0, f64::max)
}

#[test]
fn denoisers_agree_with_and_without_autodiff() {
    let mut failed = Vec::new();
    for (name, snapshot) in models() {
        let kept = |found: Vec<f64>| -> Vec<f64> {
            let samples = found.chunks(SHAPE.iter().product()).zip(LEVELS);
            samples.filter(|(_, sigma)| jump(name) != Some(*sigma)).flat_map(|(sample, _)| sample.to_vec()).collect()
        };
        for other in Other::ALL {
            let worst = [false, true].map(|tracked| {
                let (found, expected) = other.compare(|device| {
                    let precision = if name.contains("kalman") { other.state(name, device) } else { DType::F32 };
                    let device = if tracked { device.clone().autodiff() } else { device.clone() };
                    let (x, sigma) = noisy(&device, precision);
                    kept(to_vec_f64(model(snapshot, &device).denoise(x, &sigma)))
                });
                worst(&found, &expected)
            });
            println!("{other:?}, {name}: {:.1e}, with autodiff {:.1e}", worst[0], worst[1]);
            if !worst.iter().all(|worst| *worst <= 1e-4) {
                failed.push(name.clone());
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// The gradients of a weighted sum of the estimate, without those of noise level `skipped`, by the noisy fields and by every parameter.
fn gradients(snapshot: &Snapshot, skipped: Option<f64>, precision: DType, device: &Device) -> Vec<(String, Vec<f64>)> {
    let device = device.clone().autodiff();
    let mut model = model(snapshot, &device);
    let (x, sigma) = noisy(&device, precision);
    let x = x.require_grad();
    let estimate = model.denoise(x.clone(), &sigma);
    let size = SHAPE.iter().product::<usize>();
    let weight = |(i, normal): (usize, &f64)| if skipped == Some(sigma[i / size]) { 0.0 } else { *normal as f32 };
    let weights: Vec<f32> = normals(6, 0, size * sigma.len()).iter().enumerate().map(weight).collect();
    let weights: Tensor<4> = Tensor::from_data(TensorData::new(weights, estimate.dims()), (&device, estimate.dtype()));
    let mut gradients = (estimate * weights).sum().backward();
    let mut all = vec![("x".to_string(), to_vec_f64(x.grad(&gradients).unwrap()))];
    model.visit("", &mut |name, parameter| {
        if let Some(gradient) = parameter.take_gradient(&mut gradients) {
            all.push((name.to_string(), gradient.into_iter().map(f64::from).collect()));
        }
    });
    all
}

#[test]
fn gradients_agree() {
    for (name, snapshot) in models() {
        for other in Other::ALL {
            let (found, expected) =
                other.compare(|device| gradients(snapshot, jump(name), other.state(name, device), device));
            let largest = expected.iter().flat_map(|(_, g)| g).fold(0.0f64, |m, v| m.max(v.abs()));
            for ((parameter, a), (_, b)) in found.iter().zip(&expected) {
                let difference = a.iter().zip(b).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
                assert!(difference <= 1e-3 * largest, "{name}, {parameter}: {difference:.1e} of {largest:.1e}");
            }
        }
    }
}

#[test]
fn trainings_agree() {
    let scd = "denoiser.scd={directions=['gradient', 'newton'], solve_for='p', scale='jacobi', input='features'}";
    let config = darcy(&[scd, "constraint.parameters.flow={learn=12.0}", "train.shares=1"]);
    for other in Other::ALL {
        let (found, expected) = other.compare(|device| {
            let mut training = Training::new(&config, dataset(&config), device).unwrap();
            let lines: Vec<_> = (0..8).map(|_| training.step().unwrap().unwrap()).collect();
            lines.iter().flat_map(|l| [l.loss, l.gradient_norm, l.constraint["flow"]]).collect::<Vec<f64>>()
        });
        for (a, b) in found.iter().zip(&expected) {
            assert!((a / b - 1.0).abs() < 1e-3, "{found:?} and {expected:?}");
        }
    }
}

#[test]
fn samples_and_likelihoods_agree() {
    // Samples of adapted models with random weights, or after so short a training, meet jumps of the update, as above.
    let chosen = ["vanilla", "gradient, scale='jacobi', input='noisy', output='scalar'"];
    let data = dataset(&darcy(&[]));
    let likelihood = Likelihood {
        integrator: Integrator::Heun { steps: 4, rho: 7.0 },
        probes: Probes::Rademacher { count: 1 },
        ..Likelihood::default()
    };
    for (name, mut snapshot) in models().iter().filter(|(name, _)| chosen.contains(&name.as_str())).cloned() {
        snapshot.blueprint.config.sampler.steps = 6;
        let held_out = HeldOut { values: &valid(&data)[..512], shape: SHAPE, units: &snapshot.blueprint.data.units };
        for other in Other::ALL {
            let ((found, bits), (expected, expected_bits)) = other.compare(|device| {
                let job = Job::silent(device);
                let trained = Trained::of(snapshot.clone(), "test".into(), None, device).unwrap();
                let draw = Draw { seed: 0, indices: &[0, 1, 2], batch: 3, observed: None };
                let report = likelihood.evaluate(&trained.model, held_out, 0, &job).unwrap();
                (trained.samples(&draw, &job).unwrap(), report.bits_per_dim)
            });
            let difference = worst(&found, &expected);
            println!("{other:?}, {name}: samples {difference:.1e}, bits per dimension {bits} and {expected_bits}");
            assert!(difference < 1e-3 && (bits - expected_bits).abs() < 1e-3 * expected_bits.abs().max(1.0), "{name}");
        }
    }
}
