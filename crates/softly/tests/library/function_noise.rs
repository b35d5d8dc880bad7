//! Noise that is a random field: samplers, likelihoods and losses of Gaussian data in it, in closed form, and its promises.

use std::f64::consts::{E, LN_2, TAU};

use burn::tensor::{Tensor, TensorData};
use softly::job::Job;
use softly::noise::{FieldNoise, Noise, NoiseConfig};
use softly::random::{Purpose, Stream};
use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    Churn, Denoiser, DenoisingLoss, HeldOut, Integrator, Likelihood, Probes, RunFolder, Sampler, Target, Trained,
    Unobserved,
};
use softly_pde::grid::{Axis, Grid};

use crate::common::denoisers::without_parameters;
use crate::common::{adapting, bits, contents, cpu, new_training, order, run_until, try_configured};

const SHAPE: [usize; 3] = [2, 4, 5];
const SIZE: usize = 40;
const NODES: usize = 20;

fn noise() -> Noise {
    let grid = Grid { axes: vec![Axis::new("t", 4, 0.0, 1.0), Axis::new("x", 5, 0.0, 2.0).periodic()] };
    Noise::new(&NoiseConfig { field: Some(FieldNoise { length: 0.2, smoothness: 0.5 }) }, &grid).unwrap()
}

/// Gaussian data x0 = A √λ z with the map A of the noise ε = A z: in y = A⁻¹ x all dimensions are independent.
struct Coloured {
    noise: Noise,
    /// λ of both channels.
    eigenvalues: Vec<f64>,
    /// A and A⁻¹, `[NODES, NODES]`.
    matrices: [Vec<f64>; 2],
}

without_parameters!(Coloured);

impl Coloured {
    fn new() -> Self {
        let noise = noise();
        let Noise::Field(field) = &noise else { panic!("a field") };
        let unit = |k: usize| (0..NODES).map(|i| f64::from(u8::from(i == k))).collect::<Vec<_>>();
        let matrix = |map: &dyn Fn(&[f64]) -> Vec<f64>| {
            let columns: Vec<Vec<f64>> = (0..NODES).map(|k| map(&unit(k))).collect();
            (0..NODES * NODES).map(|i| columns[i % NODES][i / NODES]).collect::<Vec<_>>()
        };
        let matrices = [matrix(&|z| field.colour(z)), matrix(&|x| field.whiten(x))];
        let eigenvalues = (0..SIZE).map(|i| 10f64.powf(-6.0 + 6.0 * i as f64 / 39.0)).collect();
        Self { noise, eigenvalues, matrices }
    }

    /// x of y, channel by channel.
    fn colour(&self, y: &[f64]) -> Vec<f64> {
        let Noise::Field(field) = &self.noise else { panic!("a field") };
        y.chunks(NODES).flat_map(|channel| field.colour(channel)).collect()
    }

    fn data(&self, n: u64) -> Vec<f32> {
        let sample = |i: u64| {
            let z = Stream::new(41, Purpose::Metric, i).normals(SIZE);
            self.colour(&z.iter().zip(&self.eigenvalues).map(|(z, l)| z * l.sqrt()).collect::<Vec<_>>())
        };
        (0..n).flat_map(sample).map(|v| v as f32).collect()
    }

    /// ln |det ∂x/∂y|.
    fn log_volume(&self) -> f64 {
        SIZE as f64 * self.noise.log_spread()
    }
}

impl Denoiser for Coloured {
    /// A λ/(λ + σ²) A⁻¹ x.
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let n = sigma.len();
        let constant = |values: Vec<f64>, shape: [usize; 2]| -> Tensor<2> {
            Tensor::from_data(TensorData::new(values, shape), (&x.device().without_autodiff(), x.dtype()))
        };
        let [colour, whiten] = self.matrices.clone().map(|m| constant(m, [NODES, NODES]).transpose());
        let gains = sigma.iter().flat_map(|s| self.eigenvalues.iter().map(move |l| l / (l + s * s))).collect();
        let y = x.clone().reshape([2 * n, NODES]).matmul(whiten);
        (y * constant(gains, [2 * n, NODES])).matmul(colour).reshape([n, 2, 4, 5])
    }

    fn noise(&self) -> Noise {
        self.noise.clone()
    }
}

fn samples(sampler: &Sampler, denoiser: &Coloured, indices: &[u64]) -> Vec<f64> {
    to_vec_f64(sampler.sample(Target::plain(denoiser, SHAPE), 7, indices, &cpu(), &mut Unobserved))
}

#[test]
fn heun_follows_the_exact_flow_from_coloured_noise() {
    let coloured = Coloured::new();
    // y of the flow is y_T √(λ/(λ + σmax²)) at σ = 0.
    let exact = |i: u64| {
        let start = Stream::new(7, Purpose::Latent, i).normals(SIZE);
        let end = start.iter().zip(&coloured.eigenvalues).map(|(z, l)| 80.0 * z * (l / (l + 6400.0)).sqrt());
        coloured.colour(&end.collect::<Vec<_>>())
    };
    let worst = |steps: usize| {
        let sampler = Sampler { steps, ..Sampler::default() };
        let found = samples(&sampler, &coloured, &[0, 5, 9]);
        let expected = [0, 5, 9].map(exact).concat();
        found.iter().zip(&expected).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max)
    };
    let errors = [64, 128, 256].map(|steps| (1.0 / steps as f64, worst(steps)));
    // The last step, from σ = 0.002 to 0, is Euler's, and leaves directions of that width where they are.
    assert!(errors[2].1 < 2e-3, "{errors:?}");
    assert!(order(&errors) > 1.0, "{errors:?}");
}

#[test]
fn fresh_noise_has_the_same_colour() {
    // With churn most of a sample's noise is fresh; white noise would leave other variances in y.
    let coloured = Coloured::new();
    let sampler = Sampler { steps: 60, churn: Churn { amount: 20.0, ..Churn::default() }, ..Sampler::default() };
    let n = 1500;
    let found = samples(&sampler, &coloured, &(0..n).collect::<Vec<_>>());
    let y: Vec<Vec<f64>> = found.chunks(SIZE).map(|x| coloured.noise.whiten(x)).collect();
    for (i, lambda) in coloured.eigenvalues.iter().enumerate().filter(|(_, l)| **l > 1e-3) {
        let mean = y.iter().map(|y| y[i]).sum::<f64>() / n as f64;
        let variance = y.iter().map(|y| y[i] * y[i]).sum::<f64>() / n as f64;
        assert!(mean.abs() < 4.5 * (lambda / n as f64).sqrt(), "{i}: mean {mean}, variance {lambda}");
        // Steps of finite length widen by a few per cent.
        let error = 4.5 * (2.0 / n as f64).sqrt();
        assert!((variance / lambda - 1.0).abs() < error + 0.05, "{i}: {variance} against {lambda}");
    }
    for (i, j) in [(39, 38), (39, 19), (30, 10)] {
        let covariance = y.iter().map(|y| y[i] * y[j]).sum::<f64>() / n as f64;
        let size = (coloured.eigenvalues[i] * coloured.eigenvalues[j]).sqrt();
        assert!(covariance.abs() < 4.5 * 1.05 * size / (n as f64).sqrt(), "{i}, {j}: {covariance} beside {size}");
    }
}

#[test]
fn a_sample_does_not_depend_on_its_batch() {
    let coloured = Coloured::new();
    let churn = Churn { amount: 4.0, ..Churn::default() };
    let sampler = Sampler { steps: 6, churn, ..Sampler::default() };
    let together = samples(&sampler, &coloured, &[0, 1, 2, 3, 4]);
    let alone: Vec<f64> = (0..5).flat_map(|i| samples(&sampler, &coloured, &[i])).collect();
    assert_eq!(bits(together), bits(alone));
}

#[test]
fn the_likelihood_is_the_closed_form_s() {
    let coloured = Coloured::new();
    let (values, units) = (coloured.data(8), Units::identity(2));
    let data = HeldOut { values: &values, shape: SHAPE, units: &units };
    for integrator in [Integrator::Heun { steps: 300, rho: 7.0 }, Likelihood::default().integrator] {
        let settings = Likelihood { integrator, probes: Probes::Exact, ..Likelihood::default() };
        let report = settings.evaluate(&coloured, data, 3, &Job::silent(&cpu())).unwrap();
        for (i, sample) in report.samples.iter().enumerate() {
            // One stream gives the noise of sample i.
            let fresh = coloured.noise.draw(&mut Stream::new(3, Purpose::Metric, i as u64), SIZE);
            let x: Vec<f64> = data.sample(i).iter().zip(fresh).map(|(x, n)| x + 0.002 * n).collect();
            let term = |(y, l): (f64, &f64)| {
                let growth = ((l + 6400.0) / (l + 4e-6)).sqrt();
                0.5 * ((growth * y / 80.0).powi(2) + (TAU * 6400.0).ln()) - growth.ln()
            };
            let exact: f64 = coloured.noise.whiten(&x).into_iter().zip(&coloured.eigenvalues).map(term).sum::<f64>()
                + coloured.log_volume();
            let error = (sample.nats - exact).abs() / (SIZE as f64 * LN_2);
            assert!(error < 1e-3, "{integrator:?}: {} against {exact}", sample.nats);
        }
    }
}

#[test]
fn the_bound_is_met_by_the_best_denoiser() {
    let coloured = Coloured::new();
    let (n, units) = (600, Units::identity(2));
    let values = coloured.data(n);
    let data = HeldOut { values: &values, shape: SHAPE, units: &units };
    let settings = DenoisingLoss::log_spaced(0.002, 80.0, 41);
    let report = settings.evaluate(&coloured, data, 0.5, 3, &Job::silent(&cpu())).unwrap();
    let entropy: f64 = coloured.eigenvalues.iter().map(|l| 0.5 * (TAU * E * (l + 4e-6)).ln()).sum();
    let exact = (entropy + coloured.log_volume()) / (SIZE as f64 * LN_2);
    let (found, error) = (report.bound.bits_per_dim, report.bound.standard_error.unwrap());
    assert!((found - exact).abs() < 4.0 * error + 2e-3, "{found} ± {error} against {exact}");
    assert!(error < 0.02);
    // Losses themselves are in plain units: A λσ²/(λ+σ²) Aᵀ has this trace.
    let level = &report.levels[20];
    let shrunk = |(i, l): (usize, &f64)| {
        let column: f64 = (0..NODES).map(|k| coloured.matrices[0][k * NODES + i % NODES].powi(2)).sum();
        column * l * level.sigma.powi(2) / (l + level.sigma.powi(2))
    };
    let expected = coloured.eigenvalues.iter().enumerate().map(shrunk).sum::<f64>() / SIZE as f64;
    let spread = 0.5 * level.mse.two_sd / (n as f64).sqrt();
    assert!((level.mse.mean - expected).abs() < 4.0 * spread, "{:?} against {expected}", level.mse);
}

/// A small training of fields in coloured noise.
fn settings(more: &[&'static str]) -> Vec<&'static str> {
    let common = [
        "data.generator.size=8",
        "data.count=40",
        "data.valid=8",
        "denoiser.backbone={kind='operator', channels=6, modes=4, blocks=1}",
        "noise.field={length=0.1}",
        "train.iterations=12",
        "train.batch=6",
        "train.checkpoint_every=4",
        "sampler.steps=3",
    ];
    common.into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn resumption_is_exact_and_noise_goes_with_the_snapshot() {
    let config = try_configured("helmholtz-demo", &settings(&[])).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| RunFolder::new(folder.path().join(name)));
    run_until(new_training(&config).unwrap(), &whole, u64::MAX).unwrap();
    let interrupted = run_until(new_training(&config).unwrap(), &parts, 5);
    assert!(interrupted.is_err());
    run_until(new_training(&config).unwrap(), &parts, u64::MAX).unwrap();
    let snapshot = |run: &RunFolder| contents(run.snapshot().parent().unwrap()).into_values().collect::<Vec<_>>();
    assert_eq!(snapshot(&whole), snapshot(&parts));

    let trained = Trained::load(&whole.path, &cpu()).unwrap();
    assert!(matches!(trained.model.noise(), Noise::Field(_)));
    let said = Trained::load_with(&whole.path, &["noise.field.length=0.2".into()], &cpu()).err().unwrap().to_string();
    assert!(said.starts_with("noise: ") && said.contains("trained to remove"), "{said}");
    let other = try_configured(
        "helmholtz-demo",
        &settings(&["noise.field.length=0.3", "denoiser.scd={scale='jacobi', input='features'}"]),
    );
    let base = softly::Snapshot::read(&whole.snapshot()).unwrap();
    let said = adapting(&base, &other.unwrap()).err().unwrap().to_string();
    assert!(said.starts_with("noise: "), "{said}");
}

#[test]
fn coloured_noise_changes_what_is_trained_and_bad_settings_are_refused() {
    let loss = |more: &[&'static str]| {
        let config = try_configured("helmholtz-demo", &settings(more)).unwrap();
        let mut training = new_training(&config).unwrap();
        (0..12).filter_map(|_| training.step().unwrap()).map(|line| line.loss).next_back().unwrap()
    };
    assert_ne!(loss(&[]).to_bits(), loss(&["noise.field.length=0.2"]).to_bits());
    for (setting, place) in [
        ("noise.field={length=0.0}", "noise.field.length"),
        ("noise.field={length=0.1, smoothness=-1.0}", "noise.field.smoothness"),
    ] {
        let said = try_configured("helmholtz-demo", &settings(&[setting])).err().unwrap().to_string();
        assert!(said.starts_with(place), "{said}");
    }
    // A point has no field.
    let config = try_configured("circle-demo", &["noise.field={length=0.1}", "data.count=20", "data.valid=4"]).unwrap();
    let said = new_training(&config).err().unwrap().to_string();
    assert!(said.starts_with("noise.field: ") && said.contains("at least 2 points"), "{said}");
}
