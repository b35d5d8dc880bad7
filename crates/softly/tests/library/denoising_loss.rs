//! Denoising losses by noise level, and the bound on the likelihood that follows from them, in closed form.

use std::f64::consts::{E, LN_2, TAU};

use burn::tensor::Tensor;
use softly::job::Job;
use softly::tensors::per_sample;
use softly::units::Units;
use softly::{Denoiser, DenoisingLoss, DenoisingReport, HeldOut, Likelihood, Probes};

use crate::common::cpu;
use crate::common::denoisers::without_parameters;
use crate::common::gaussian::{Gaussian, SEED};

/// A denoiser that is off: D + bias, so that its squared error is larger by bias² at every noise level.
struct Biased(Gaussian, f64);

without_parameters!(Biased);

impl Denoiser for Biased {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let bias = per_sample(sigma.iter().map(|s| self.1 * s / (1.0 + s * s).sqrt()), &x);
        self.0.denoise(x, sigma) + bias
    }
}

fn losses(settings: &DenoisingLoss, denoiser: &dyn Denoiser, values: &[f32], shape: [usize; 3]) -> DenoisingReport {
    let units = Units { mean: vec![0.0; shape[0]], scale: vec![2.0; shape[0]] };
    let data = HeldOut { values, shape, units: &units };
    settings.evaluate(denoiser, data, 0.5, SEED, &Job::silent(&cpu())).unwrap()
}

#[test]
fn losses_by_noise_level_are_those_of_the_closed_form() {
    let gaussian = Gaussian::field();
    let values = gaussian.data(400);
    let settings = DenoisingLoss { sigmas: vec![0.002, 0.03, 0.4, 5.0], batch: 64 };
    let report = losses(&settings, &gaussian, &values, gaussian.shape);
    for (level, &sigma) in report.levels.iter().zip(&settings.sigmas) {
        assert_eq!((level.sigma, level.samples.len(), level.mse.n), (sigma, 400, 400));
        let expected = gaussian.mse(sigma);
        let error = 0.5 * level.mse.two_sd / 20.0;
        assert!((level.mse.mean - expected).abs() < 4.0 * error, "{sigma}: {:?} against {expected}", level.mse);
        assert!(error < 0.05 * expected);
        let weight = (sigma * sigma + 0.25) / (sigma * 0.5).powi(2);
        assert!((level.weighted.mean / (weight * level.mse.mean) - 1.0).abs() < 1e-12);
    }
    // Noise is paired: the same whatever the batch or the model.
    let again = losses(&DenoisingLoss { batch: 7, ..settings.clone() }, &gaussian, &values, gaussian.shape);
    assert_eq!(again, report);
    let biased = losses(&settings, &Biased(gaussian.clone(), 1e-3), &values, gaussian.shape);
    for (a, b) in report.levels.iter().zip(&biased.levels) {
        let worst = a.samples.iter().zip(&b.samples).map(|(a, b)| (a.sqrt() - b.sqrt()).abs()).fold(0.0, f64::max);
        assert!(worst <= 1.001e-3 && worst > 0.0, "unpaired: {worst}");
    }
}

#[test]
fn the_bound_is_met_by_the_best_denoiser_and_exceeded_by_what_another_one_misses() {
    let settings = DenoisingLoss::log_spaced(0.002, 80.0, 41);
    for gaussian in [Gaussian::flat(), Gaussian::field()] {
        let n = 1_500;
        let values = gaussian.data(n);
        let d = gaussian.size() as f64;
        // Entropy of data + σmin·noise, to which the divergence of x_T from N(0, 80²) adds next to nothing.
        let entropy = gaussian.eigenvalues.iter().map(|l| 0.5 * (TAU * E * (l + 4e-6)).ln()).sum::<f64>() / (d * LN_2);
        let bound = losses(&settings, &gaussian, &values, gaussian.shape).bound;
        let error = bound.standard_error.unwrap();
        println!("bound {} against {entropy}, standard error {error}", bound.bits_per_dim);
        assert!((bound.bits_per_dim - entropy).abs() < 3.5 * error + 2e-4, "{} {entropy}", bound.bits_per_dim);
        assert!(error < 0.05, "{error}");
        assert!((bound.bits_per_dim_physical - bound.bits_per_dim - 1.0).abs() < 1e-12);
        assert_eq!((bound.sigma_min, bound.sigma_max), (0.002, 80.0));
        // A bias of b σ/√(1+σ²) adds ∫ b²/(1+σ²) d ln σ = b²/2 · ln(σ²/(1+σ²)) nats per dimension.
        let b: f64 = 0.4;
        let biased = losses(&settings, &Biased(gaussian.clone(), b), &values, gaussian.shape).bound;
        let primitive = |s: f64| 0.5 * b * b * (s * s / (1.0 + s * s)).ln() / LN_2;
        let excess = primitive(80.0) - primitive(0.002);
        let found = biased.bits_per_dim - bound.bits_per_dim;
        // Sample by sample the noise is the same, but the bias meets its sign.
        let differences: Vec<f64> = biased.samples.iter().zip(&bound.samples).map(|(a, b)| a - b).collect();
        let variance = differences.iter().map(|v| (v - found).powi(2)).sum::<f64>() / (n - 1) as f64;
        let error = (variance / n as f64).sqrt();
        assert!((found - excess).abs() < 3.5 * error + 1e-3, "{found} against {excess}, standard error {error}");
        assert!(excess > 10.0 * error);
        // The flow's likelihood is the same quantity.
        let few = gaussian.data(60);
        let units = Units::identity(gaussian.shape[0]);
        let data = HeldOut { values: &few, shape: gaussian.shape, units: &units };
        let exact = Likelihood { probes: Probes::Exact, ..Likelihood::default() };
        let flow = exact.evaluate(&gaussian, data, SEED, &Job::silent(&cpu())).unwrap();
        let both = flow.standard_error.unwrap().hypot(bound.standard_error.unwrap());
        assert!((flow.bits_per_dim - bound.bits_per_dim).abs() < 3.5 * both, "{}", flow.bits_per_dim);
    }
}

#[test]
fn impossible_noise_levels_are_refused() {
    let gaussian = Gaussian::flat();
    let (values, units) = (gaussian.data(1), Units::identity(2));
    let data = HeldOut { values: &values, shape: gaussian.shape, units: &units };
    for sigmas in [vec![], vec![1.0], vec![2.0, 1.0], vec![0.0, 1.0], vec![1.0, f64::NAN]] {
        let settings = DenoisingLoss { sigmas, batch: 4 };
        let error = settings.evaluate(&gaussian, data, 0.5, SEED, &Job::silent(&cpu())).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().starts_with("denoising loss, sigmas"), "{error}");
    }
}
