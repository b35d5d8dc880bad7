//! Likelihoods and denoising losses of data whose best denoiser is known in closed form.

use std::collections::BTreeMap;
use std::f64::consts::{E, LN_2, TAU};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::tensor::{DType, Device, Tensor, TensorData};
use softly::error::{Error, Result};
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, per_sample, to_vec_f64};
use softly::units::Units;
use softly::{
    Backbone, BackboneConfig, Blueprint, Config, ConstraintConfig, Damping, DataSpec, Ddpm, Denoiser, DenoisingLoss,
    DenoisingReport, Gamma, GammaInput, GradientDirection, HeldOut, Integrator, Label, Lambda, Likelihood,
    LikelihoodReport, Model, Norm, PROGRESS_PER_SAMPLE, ParameterConfig, Parameters, PreconditionKind, Probes,
    Residuals, Scale, ScdConfig, SigmaData, SoftConstraint, SoftlyConstrained, Visitor,
};
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;

const SEED: u64 = 3;

fn cpu() -> Device {
    Device::flex()
}

/// Gaussian data: mean, and a covariance with the given eigenvalues whose eigenvectors are mirrored unit vectors.
#[derive(Clone)]
struct Gaussian {
    shape: [usize; 3],
    mean: Vec<f64>,
    eigenvalues: Vec<f64>,
    /// Normal of the mirror, of length 1.
    normal: Vec<f64>,
}

impl Gaussian {
    /// Two dimensions, one wide and one narrow.
    fn flat() -> Self {
        Self {
            shape: [2, 1, 1],
            mean: vec![0.02, -0.01],
            eigenvalues: vec![1.2, 0.1],
            normal: vec![0.3f64.cos(), 0.3f64.sin()],
        }
    }

    /// 64 dimensions as two channels of 4×8, from far narrower than σmin = 0.002 to wide, as PDE solutions are.
    fn field() -> Self {
        let eigenvalues = (0..64).map(|i| 10f64.powf(-8.0 + 8.0 * f64::from(i) / 63.0)).collect();
        let mut stream = Stream::new(40, Purpose::Metric, 0);
        let normal = stream.normals(64);
        let length = normal.iter().map(|v| v * v).sum::<f64>().sqrt();
        let mean = stream.normals(64).into_iter().map(|v| 0.02 * v).collect();
        Self { shape: [2, 4, 8], mean, eigenvalues, normal: normal.into_iter().map(|v| v / length).collect() }
    }

    fn size(&self) -> usize {
        self.mean.len()
    }

    /// The mirror: its own inverse.
    fn mirror(&self, x: &[f64]) -> Vec<f64> {
        let along: f64 = x.iter().zip(&self.normal).map(|(x, n)| x * n).sum();
        x.iter().zip(&self.normal).map(|(x, n)| x - 2.0 * along * n).collect()
    }

    fn to_eigen(&self, x: &[f64]) -> Vec<f64> {
        self.mirror(&x.iter().zip(&self.mean).map(|(x, m)| x - m).collect::<Vec<_>>())
    }

    fn run_from_eigen(&self, y: &[f64]) -> Vec<f64> {
        self.mirror(y).iter().zip(&self.mean).map(|(y, m)| y + m).collect()
    }

    fn data(&self, n: u64) -> Vec<f32> {
        let sample = |i: u64| {
            let z = Stream::new(41, Purpose::Metric, i).normals(self.size());
            self.run_from_eigen(&z.iter().zip(&self.eigenvalues).map(|(z, l)| z * l.sqrt()).collect::<Vec<_>>())
        };
        (0..n).flat_map(sample).map(|v| v as f32).collect()
    }

    /// −log density of data + σ·noise at x, nats.
    fn nll(&self, x: &[f64], sigma: f64) -> f64 {
        let term = |(y, l): (f64, &f64)| {
            let variance = l + sigma * sigma;
            0.5 * (y * y / variance + (TAU * variance).ln())
        };
        self.to_eigen(x).into_iter().zip(&self.eigenvalues).map(term).sum()
    }

    /// −log density at x of what the exact flow makes of N(0, σmax²) at σmin, nats.
    fn flow_nll(&self, x: &[f64], sigma_min: f64, sigma_max: f64) -> f64 {
        let growth: Vec<f64> = self
            .eigenvalues
            .iter()
            .map(|l| ((l + sigma_max * sigma_max) / (l + sigma_min * sigma_min)).sqrt())
            .collect();
        let end = self.run_from_eigen(&self.to_eigen(x).iter().zip(&growth).map(|(y, g)| y * g).collect::<Vec<_>>());
        let terminal: f64 =
            end.iter().map(|v| 0.5 * ((v / sigma_max).powi(2) + (TAU * sigma_max * sigma_max).ln())).sum();
        terminal - growth.iter().map(|g| g.ln()).sum::<f64>()
    }

    /// E‖x0 − D‖²/d of the best denoiser.
    fn mse(&self, sigma: f64) -> f64 {
        self.eigenvalues.iter().map(|l| l * sigma * sigma / (l + sigma * sigma)).sum::<f64>() / self.size() as f64
    }

    /// Where the likelihood of sample `index` is evaluated: one stream gives the noise.
    fn start(&self, data: &[f32], index: usize, sigma: f64) -> Vec<f64> {
        let noise = Stream::new(SEED, Purpose::Metric, index as u64).normals(self.size());
        let sample = &data[index * self.size()..(index + 1) * self.size()];
        sample.iter().zip(noise).map(|(&x, n)| f64::from(x) + sigma * n).collect()
    }

    fn row(values: &[f64], like: &Tensor<2>) -> Tensor<2> {
        Tensor::from_data(
            TensorData::new(values.to_vec(), [1, values.len()]),
            (&like.device().without_autodiff(), like.dtype()),
        )
    }

    /// mean + gains · (x − offset·mean) in the eigenbasis, one row of gains per sample, in tensor operations.
    fn filter(&self, x: Tensor<4>, offsets: &[f64], gains: Vec<f64>) -> Tensor<4> {
        let ([n, c, h, w], d) = (x.dims(), self.size());
        let mirror = |y: Tensor<2>| {
            let normal = Self::row(&self.normal, &y);
            let along = (y.clone() * normal.clone()).sum_dim(1);
            y - along * normal * 2.0
        };
        let constant = |values: Vec<f64>, shape: [usize; 2]| -> Tensor<2> {
            Tensor::from_data(TensorData::new(values, shape), (&x.device().without_autodiff(), x.dtype()))
        };
        let flat = x.clone().reshape([n, d]);
        let mean = Self::row(&self.mean, &flat);
        let centred = flat - mean.clone() * constant(offsets.to_vec(), [n, 1]);
        (mirror(mirror(centred) * constant(gains, [n, d])) + mean).reshape([n, c, h, w])
    }
}

impl Parameters for Gaussian {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Gaussian {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let gains = sigma.iter().flat_map(|s| self.eigenvalues.iter().map(move |l| l / (l + s * s)));
        self.filter(x, &vec![1.0; sigma.len()], gains.collect())
    }
}

/// The best x0 from DDPM's x_t = √ᾱ x0 + √(1−ᾱ) noise and the index of one of so many levels, in f32.
struct LevelGaussian(Gaussian, f64);

impl Parameters for LevelGaussian {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Backbone for LevelGaussian {
    fn forward(&self, x: Tensor<4>, level: &[f64]) -> Tensor<4> {
        assert_eq!(x.dtype(), DType::F32);
        // ᾱ from its definition.
        let curve = |t: f64| ((t / self.1 + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
        let bars: Vec<f64> = level.iter().map(|t| curve(t + 1.0) / curve(0.0)).collect();
        let gains =
            bars.iter().flat_map(|bar| self.0.eigenvalues.iter().map(move |l| l * bar.sqrt() / (l * bar + 1.0 - bar)));
        self.0.filter(x, &bars.iter().map(|b| b.sqrt()).collect::<Vec<_>>(), gains.collect())
    }
}

fn likelihood(integrator: Integrator, probes: Probes) -> Likelihood {
    Likelihood { integrator, probes, ..Likelihood::default() }
}

fn run(settings: &Likelihood, denoiser: &dyn Denoiser, values: &[f32], shape: [usize; 3]) -> LikelihoodReport {
    let units = Units::identity(shape[0]);
    let data = HeldOut { values, shape, units: &units };
    settings.evaluate(denoiser, data, SEED, &cpu(), &AtomicBool::new(false), &|_| {}).unwrap()
}

/// Slope of ln y against ln x.
fn order(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    logs.iter().map(|(x, y)| (x - mx) * (y - my)).sum::<f64>() / logs.iter().map(|(x, _)| (x - mx).powi(2)).sum::<f64>()
}

/// Largest distance, over samples, from the exact flow's −log p, bits per dimension.
fn worst_error(report: &LikelihoodReport, gaussian: &Gaussian, values: &[f32]) -> f64 {
    let (min, max, size) = (report.sigma_min, report.sigma_max, gaussian.size());
    let errors = report.samples.iter().enumerate().map(|(i, s)| {
        let exact = gaussian.flow_nll(&gaussian.start(values, i, min), min, max);
        (s.nats - exact).abs() / (size as f64 * LN_2)
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn the_exact_trace_gives_the_density_of_gaussian_data() {
    let solvers = [Integrator::Heun { steps: 300, rho: 7.0 }, Likelihood::default().integrator];
    for gaussian in [Gaussian::flat(), Gaussian::field()] {
        let values = gaussian.data(12);
        for integrator in solvers {
            let report = run(&likelihood(integrator, Probes::Exact), &gaussian, &values, gaussian.shape);
            let d = gaussian.size() as f64;
            assert_eq!((report.count, report.dimensions), (12, gaussian.size()));
            assert_eq!((report.sigma_min, report.sigma_max), (0.002, 80.0));
            assert_eq!((report.probe_standard_error, report.forced_steps), (Some(0.0), 0));
            let mut sum = 0.0;
            for (i, sample) in report.samples.iter().enumerate() {
                let exact = gaussian.nll(&gaussian.start(&values, i, 0.002), 0.002) / (d * LN_2);
                let error = (sample.bits_per_dim - exact).abs();
                assert!(error < 1e-3, "{integrator:?}, {d}: {} against {exact}", sample.bits_per_dim);
                assert!((sample.nats / (d * LN_2) - sample.bits_per_dim).abs() < 1e-12);
                sum += exact / 12.0;
            }
            assert!((report.bits_per_dim - sum).abs() < 1e-3);
            let worst = worst_error(&report, &gaussian, &values);
            println!("{d} dimensions, {integrator:?}: error {worst:.1e}, {} evaluations", report.evaluations);
        }
    }
}

#[test]
fn probes_are_unbiased_and_their_standard_error_is_true() {
    let gaussian = Gaussian::field();
    let (n, count, d) = (40, 8, 64.0);
    let values = gaussian.data(n as u64);
    // The probes' quadratic form is M = ∫ J d ln σ; its eigenvalues are ∫ λ/(λ+σ²) d ln σ.
    let shares: Vec<f64> =
        gaussian.eigenvalues.iter().map(|l| (80.0f64 / 0.002).ln() - 0.5 * ((l + 6400.0) / (l + 4e-6)).ln()).collect();
    let diagonal = |i: usize| {
        let unit: Vec<f64> = (0..64).map(|j| f64::from(u8::from(i == j))).collect();
        gaussian.mirror(&unit).iter().zip(&shares).map(|(q, s)| q * q * s).sum::<f64>()
    };
    let all: f64 = shares.iter().map(|s| s * s).sum();
    let on_diagonal: f64 = (0..64).map(|i| diagonal(i).powi(2)).sum();
    let adaptive = Likelihood::default().integrator;
    let exact = run(&likelihood(adaptive, Probes::Exact), &gaussian, &values, gaussian.shape);
    for (probes, variance) in
        [(Probes::Rademacher { count }, 2.0 * (all - on_diagonal)), (Probes::Gaussian { count }, 2.0 * all)]
    {
        let report = run(&likelihood(adaptive, probes), &gaussian, &values, gaussian.shape);
        let error = report.probe_standard_error.unwrap();
        let expected = (variance / (count * n) as f64).sqrt() / (d * LN_2);
        // 40 × 7 degrees of freedom: 4 % for a variance that is normal.
        assert!((error / expected - 1.0).abs() < 0.15, "{probes:?}: {error} against {expected}");
        let distance = report.bits_per_dim - exact.bits_per_dim;
        assert!(distance.abs() < 3.0 * error, "{probes:?}: {distance} with standard error {error}");
        assert!(report.standard_error.unwrap() > error);
        println!("{probes:?}: {distance:.1e} ± {error:.1e} bits/dim");
    }
    // A single probe cannot tell its error.
    let alone = run(&likelihood(adaptive, Probes::Rademacher { count: 1 }), &gaussian, &values, gaussian.shape);
    assert_eq!(alone.probe_standard_error, None);
}

#[test]
fn heun_converges_with_second_order() {
    for gaussian in [Gaussian::flat(), Gaussian::field()] {
        let values = gaussian.data(3);
        let errors = [60usize, 120, 240, 480].map(|steps| {
            let settings = likelihood(Integrator::Heun { steps, rho: 7.0 }, Probes::Exact);
            let report = run(&settings, &gaussian, &values, gaussian.shape);
            assert_eq!(report.evaluations, 1.0 + 2.0 * (steps - 1) as f64);
            assert_eq!(report.reverse_passes, (steps * gaussian.size()) as f64);
            ((steps - 1) as f64, worst_error(&report, &gaussian, &values))
        });
        let slope = order(&errors);
        assert!((slope + 2.0).abs() < 0.15, "order {}: {errors:?}", -slope);
    }
}

#[test]
fn the_adaptive_solver_meets_its_tolerance() {
    for gaussian in [Gaussian::flat(), Gaussian::field()] {
        let values = gaussian.data(6);
        let mut costs = Vec::new();
        for tolerance in [1e-2, 1e-3, 1e-4, 1e-5] {
            let report =
                run(&likelihood(Integrator::Adaptive { tolerance }, Probes::Exact), &gaussian, &values, gaussian.shape);
            let worst = worst_error(&report, &gaussian, &values);
            let steps = report.evaluations / 3.0;
            println!("tolerance {tolerance:.0e}: error {worst:.1e} bits/dim, {} evaluations", report.evaluations);
            // Errors of steps are bounded one by one; they may add up.
            assert!(worst < tolerance * steps / LN_2, "tolerance {tolerance}: {worst} after {steps} steps");
            assert_eq!(report.forced_steps, 0);
            costs.push((tolerance, report.evaluations));
        }
        // A method of third order needs steps in proportion to tolerance^(−1/3); few steps are bounded by their length.
        let growth = order(&costs[1..]);
        assert!((-0.36..-0.2).contains(&growth), "steps grow with tolerance^{growth}: {costs:?}");
    }
}

#[test]
fn ddpm_is_integrated_over_its_own_levels() {
    for gaussian in [Gaussian::flat(), Gaussian::field()] {
        let values = gaussian.data(10);
        // 100 levels are what they are, in large steps at the low end; with more of them the integral converges.
        let mut errors = Vec::new();
        for levels in [100, 400] {
            let denoiser = Ddpm::new(Box::new(LevelGaussian(gaussian.clone(), levels as f64)), levels, Label::Index);
            let settings = Likelihood { sigma_min: 0.025, ..likelihood(Integrator::Cosine { levels }, Probes::Exact) };
            let report = run(&settings, &denoiser, &values, gaussian.shape);
            for (i, sample) in report.samples.iter().enumerate() {
                let x = gaussian.start(&values, i, report.sigma_min);
                let exact = gaussian.nll(&x, report.sigma_min) / (gaussian.size() as f64 * LN_2);
                let error = (sample.bits_per_dim - exact).abs();
                assert!(error < if levels == 100 { 1e-2 } else { 1e-3 }, "{} against {exact}", sample.bits_per_dim);
            }
            errors.push(worst_error(&report, &gaussian, &values));
            // All levels on request: the last of them is far out.
            let all =
                run(&Likelihood { sigma_min: 0.001, sigma_max: 1e5, ..settings }, &denoiser, &values, gaussian.shape);
            assert_eq!(all.evaluations, 1.0 + 2.0 * (levels - 1) as f64);
            if levels == 100 {
                assert!((report.sigma_min / 2.5133e-2 - 1.0).abs() < 5e-5, "{}", report.sigma_min);
                assert!((report.sigma_max / 64.161 - 1.0).abs() < 5e-5, "{}", report.sigma_max);
                assert!((all.sigma_max / 2029.2 - 1.0).abs() < 5e-5, "{}", all.sigma_max);
                assert!((all.bits_per_dim - report.bits_per_dim).abs() < 3e-3);
            }
        }
        println!("100 and 400 levels: errors {errors:.5?} bits/dim");
        assert!(errors[1] < 0.2 * errors[0], "{errors:?}");
    }
}

#[test]
fn settings_suit_the_model() {
    let mut config = Config::default();
    config.denoiser.precondition = PreconditionKind::Ddpm;
    config.denoiser.backbone = BackboneConfig::LevelMlp { hidden: 8, levels: 100 };
    assert_eq!(Likelihood::for_model(&config).integrator, Integrator::Cosine { levels: 100 });
    let sigmas = DenoisingLoss::for_model(&config, 5).sigmas;
    assert_eq!(sigmas.len(), 99);
    assert!((sigmas[0] / 2.5133e-2 - 1.0).abs() < 5e-5 && (sigmas[98] / 64.161 - 1.0).abs() < 5e-5);
    // A parameter that is drawn anew at every evaluation leaves no step without error.
    let mut config = Config::default();
    config.denoiser.scd = Some(ScdConfig::default());
    let mut constraint = point_constraint("x - k*y", Norm::HalfSquares);
    constraint.parameters.insert("k".into(), ParameterConfig::Number(1.0));
    config.constraint = Some(constraint.clone());
    assert_eq!(Likelihood::for_model(&config), Likelihood::default());
    constraint.parameters.insert("k".into(), ParameterConfig::Normal { normal: [1.0, 0.1] });
    config.constraint = Some(constraint);
    assert_eq!(Likelihood::for_model(&config).integrator, Integrator::Heun { steps: 100, rho: 7.0 });
    assert_eq!(DenoisingLoss::for_model(&config, 7), DenoisingLoss::log_spaced(0.002, 80.0, 7));
}

#[test]
fn physical_units_shift_the_density_by_the_scale() {
    let gaussian = Gaussian::field();
    let values = gaussian.data(3);
    let units = Units { mean: vec![5.0, -1.0], scale: vec![4.0, 0.5] };
    let data = HeldOut { values: &values, shape: gaussian.shape, units: &units };
    let settings = Likelihood::default();
    let report = settings.evaluate(&gaussian, data, SEED, &cpu(), &AtomicBool::new(false), &|_| {}).unwrap();
    // Half the numbers are stretched by 4 and half by ½: (2 − 1)/2 bits per number.
    for sample in &report.samples {
        assert!((sample.bits_per_dim_physical - sample.bits_per_dim - 0.5).abs() < 1e-12);
    }
    assert!((report.bits_per_dim_physical - report.bits_per_dim - 0.5).abs() < 1e-12);
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<LikelihoodReport>(&text).unwrap(), report);
}

// ------------------------------------------------------------------------------------------------------------- SCD

fn point_constraint(formula: &str, norm: Norm) -> ConstraintConfig {
    ConstraintConfig {
        fields: vec!["x".into(), "y".into()],
        residual: Residuals::One(formula.into()),
        stencil: Scheme::OneSided2,
        stencils: BTreeMap::new(),
        norm,
        parameters: BTreeMap::new(),
    }
}

/// Gives γ's last layer values of about `size`, so that γ is not zero and depends on its input.
fn wake_gamma(denoiser: &mut dyn Denoiser, size: f32) {
    let mut stream = Stream::new(8, Purpose::Metric, 0);
    denoiser.visit("", &mut |name, parameter| {
        if name.starts_with("gamma.last.") {
            let shift = if name.ends_with("bias") { 1.0 } else { 0.0 };
            let values = parameter.values().into_iter().map(|_| size * (shift + 0.3 * stream.normal() as f32));
            parameter.set(values.collect());
        }
    });
}

/// −log p of points by small Runge–Kutta steps in ln σ with a trace from finite differences: the denoiser is a black box.
fn black_box_nats(denoiser: &dyn Denoiser, points: &[[f64; 2]], sigma_min: f64, sigma_max: f64) -> Vec<f64> {
    let (steps, h) = (250, 1e-3);
    let flow = |points: &[[f64; 2]], u: f64| -> Vec<[f64; 3]> {
        let scale = h * (1.0 + u.exp());
        let moves = [[0.0, 0.0], [scale, 0.0], [-scale, 0.0], [0.0, scale], [0.0, -scale]];
        let moved = points.iter().flat_map(|p| moves.iter().flat_map(|m| [p[0] + m[0], p[1] + m[1]])).collect();
        let denoised = denoiser.denoise(field_batch(moved, [2, 1, 1], &cpu()), &vec![u.exp(); 5 * points.len()]);
        let rate = |(p, d): (&[f64; 2], &[f64])| {
            let trace = (d[2] - d[4] + d[7] - d[9]) / (2.0 * scale);
            [p[0] - d[0], p[1] - d[1], 2.0 - trace]
        };
        points.iter().zip(to_vec_f64(denoised).chunks(10)).map(rate).collect()
    };
    let mut states: Vec<[f64; 3]> = points.iter().map(|p| [p[0], p[1], 0.0]).collect();
    let width = (sigma_max / sigma_min).ln() / f64::from(steps);
    for k in 0..steps {
        let u = sigma_min.ln() + f64::from(k) * width;
        let ahead = |fraction: f64, rates: &[[f64; 3]]| -> Vec<[f64; 2]> {
            states.iter().zip(rates).map(|(s, r)| [0, 1].map(|i| s[i] + fraction * width * r[i])).collect()
        };
        let first = flow(&ahead(0.0, &vec![[0.0; 3]; states.len()]), u);
        let second = flow(&ahead(0.5, &first), u + 0.5 * width);
        let third = flow(&ahead(0.5, &second), u + 0.5 * width);
        let fourth = flow(&ahead(1.0, &third), u + width);
        for (n, state) in states.iter_mut().enumerate() {
            for i in 0..3 {
                let sum = first[n][i] + 2.0 * (second[n][i] + third[n][i]) + fourth[n][i];
                state[i] += width / 6.0 * sum;
            }
        }
    }
    let end = |s: &[f64; 3]| {
        0.5 * (s[0] * s[0] + s[1] * s[1]) / (sigma_max * sigma_max) + (TAU * sigma_max * sigma_max).ln() - s[2]
    };
    states.iter().map(end).collect()
}

#[test]
fn the_likelihood_differentiates_through_the_correction() {
    let gaussian = Gaussian::flat();
    let values = gaussian.data(5);
    let (sigma_min, sigma_max) = (0.1, 20.0);
    let settings =
        Likelihood { sigma_min, sigma_max, ..likelihood(Integrator::Adaptive { tolerance: 1e-5 }, Probes::Exact) };
    let cases = [
        (Scale::Plain, Norm::HalfSquares, 0.3),
        (Scale::Polyak, Norm::L2, 0.1),
        (Scale::Paper, Norm::HalfSquares, 0.4),
        (Scale::Jacobi, Norm::L1Mean, 0.1),
    ];
    for (scale, norm, size) in cases {
        for input in [GammaInput::Noisy, GammaInput::Denoised] {
            let config = point_constraint("tanh(2*x - y) + 0.5*x - 0.2", norm);
            let names = ["x".to_string(), "y".to_string()];
            let constraint =
                Arc::new(SoftConstraint::new(&config, &names, &Grid::point(), &Units::identity(2)).unwrap());
            let build = |detach: bool| {
                let scd = ScdConfig { scale, input, detach, ..ScdConfig::default() };
                let gamma = Gamma::new(&scd, [2, 1, 1], &mut Stream::new(0, Purpose::Weights, 1), &cpu()).unwrap();
                let gradient =
                    GradientDirection::new(constraint.clone(), scale, Damping::Exponential, 1.0).differentiable();
                let base = Box::new(Gaussian::flat());
                let mut model =
                    SoftlyConstrained::new(base, constraint.clone(), vec![Box::new(gradient)], gamma, scd, 0.8);
                wake_gamma(&mut model, size);
                model
            };
            let model = build(false);
            let starts: Vec<[f64; 2]> = (0..5)
                .map(|i| {
                    let x = gaussian.start(&values, i, sigma_min);
                    [x[0], x[1]]
                })
                .collect();
            let expected = black_box_nats(&model, &starts, sigma_min, sigma_max);
            let found = |model: &dyn Denoiser| -> Vec<f64> {
                run(&settings, model, &values, gaussian.shape).samples.iter().map(|s| s.nats).collect()
            };
            let worst = |found: Vec<f64>| {
                found.iter().zip(&expected).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max) / (2.0 * LN_2)
            };
            // The correction matters, …
            let plain = worst(found(&gaussian));
            assert!(plain > 0.05, "{scale:?} {norm:?} {input:?}: the correction changes {plain} only");
            // … its derivative is in the trace, …
            let error = worst(found(&model));
            assert!(error < 1e-3, "{scale:?} {norm:?} {input:?}: off by {error}");
            // … and without it the trace is wrong.
            let detached = worst(found(&build(true)));
            assert!(detached > 0.02, "{scale:?} {norm:?} {input:?}: detached, off by {detached} only");
            println!("{scale:?} {norm:?} {input:?}: plain {plain:.3}, error {error:.1e}, detached {detached:.3}");
        }
    }
}

/// A model of points with an untrained network and a constraint.
fn point_model(detach: bool) -> Model {
    let mut config = Config::default();
    config.data.sigma_data = SigmaData::Number(0.7);
    config.denoiser.backbone = BackboneConfig::Mlp { hidden: 24 };
    let lambda = Lambda::Number(0.7);
    config.denoiser.scd = Some(ScdConfig { lambda, detach, ..ScdConfig::default() });
    config.constraint = Some(point_constraint("(sqrt(x^2 + y^2) - 1)^2", Norm::L1Sum));
    let data = DataSpec {
        fields: vec!["x".into(), "y".into()],
        grid: Grid::point(),
        units: Units::identity(2),
        floors: BTreeMap::new(),
    };
    let mut model = Blueprint { config, data }.build(&cpu()).unwrap();
    wake_gamma(&mut *model.denoiser, 0.03);
    model
}

#[test]
fn a_model_that_was_trained_detached_is_differentiated_all_the_same() {
    let values = Gaussian::flat().data(4);
    let nats = |detach: bool| -> Vec<f64> {
        let model = point_model(detach);
        let report = run(&Likelihood::default(), &*model.denoiser, &values, model.shape);
        report.samples.iter().map(|s| s.nats).collect()
    };
    assert_eq!(nats(true), nats(false));
}

#[test]
fn a_sample_does_not_depend_on_its_batch_or_on_threads() {
    let model = point_model(false);
    let values = Gaussian::flat().data(13);
    for integrator in [Integrator::Heun { steps: 10, rho: 7.0 }, Likelihood::default().integrator] {
        let settings = likelihood(integrator, Probes::Rademacher { count: 3 });
        let run = |batch: usize, values: &[f32]| {
            run(&Likelihood { batch, ..settings }, &*model.denoiser, values, model.shape).samples
        };
        let all = run(1_000, &values);
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                assert_eq!(run(2, &values), all);
                assert_eq!(run(12, &values), all);
                assert_eq!(run(64, &values[..10]), all[..5]);
            });
        }
    }
}

/// A denoiser of one formula, x and σ² being tensors of the same shape.
struct Formula(fn(Tensor<4>, Tensor<4>) -> Tensor<4>);

impl Parameters for Formula {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Formula {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let squares = per_sample(sigma.iter().map(|s| s * s), &x);
        (self.0)(x, squares)
    }
}

#[test]
fn jumps_are_stepped_over_and_paths_without_bounds_are_refused() {
    let values = Gaussian::flat().data(3);
    let settings = likelihood(Likelihood::default().integrator, Probes::Exact);
    // As with the signs of residuals: the estimate jumps, and between the jumps the trace is a constant.
    let jumping = Formula(|x, squares| {
        let jumps = (x.clone() * 40.0).round().detach() * 0.01;
        x / (squares + 1.0) + jumps
    });
    let report = run(&settings, &jumping, &values, [2, 1, 1]);
    assert!(report.forced_steps > 0);
    assert!(report.evaluations < 3_500.0, "{}", report.evaluations);
    let units = Units::identity(2);
    let data = HeldOut { values: &values, shape: [2, 1, 1], units: &units };
    let bursting = Formula(|x, _| (x.clone() * x.clone() * x).neg());
    let outcome = settings.evaluate(&bursting, data, SEED, &cpu(), &AtomicBool::new(false), &|_| {});
    let error = outcome.unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().contains("out of all bounds"), "{error}");
}

#[test]
fn progress_adds_up_and_a_stop_is_heard() {
    let gaussian = Gaussian::flat();
    let values = gaussian.data(7);
    let units = Units::identity(2);
    let data = HeldOut { values: &values, shape: gaussian.shape, units: &units };
    for integrator in [Integrator::Heun { steps: 9, rho: 7.0 }, Likelihood::default().integrator] {
        let settings = Likelihood { batch: 8, ..likelihood(integrator, Probes::Rademacher { count: 2 }) };
        let (told, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let advance = |units: usize| {
            told.fetch_add(units, Ordering::Relaxed);
        };
        settings.evaluate(&gaussian, data, SEED, &cpu(), &stop, &advance).unwrap();
        assert_eq!(told.into_inner(), 7 * PROGRESS_PER_SAMPLE);
        let outcome = settings.evaluate(&gaussian, data, SEED, &cpu(), &stop, &|_| stop.store(true, Ordering::Relaxed));
        assert!(matches!(outcome, Err(Error::Interrupted { .. })));
    }
}

#[test]
fn impossible_settings_are_refused_by_name() {
    let gaussian = Gaussian::flat();
    let units = Units::identity(2);
    let good = Likelihood::default();
    let said = |settings: &Likelihood, values: &[f32]| {
        let data = HeldOut { values, shape: gaussian.shape, units: &units };
        let outcome = settings.evaluate(&gaussian, data, SEED, &cpu(), &AtomicBool::new(false), &|_| {});
        let error = outcome.unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    for (settings, place) in [
        (Likelihood { sigma_min: 0.0, ..good }, "likelihood.sigma_min"),
        (Likelihood { sigma_max: 0.001, ..good }, "likelihood.sigma_min"),
        (Likelihood { sigma_max: f64::NAN, ..good }, "likelihood.sigma_min"),
        (Likelihood { batch: 0, ..good }, "likelihood.batch"),
        (Likelihood { probes: Probes::Gaussian { count: 0 }, ..good }, "likelihood.probes.count"),
        (Likelihood { integrator: Integrator::Heun { steps: 1, rho: 7.0 }, ..good }, "likelihood.integrator"),
        (Likelihood { integrator: Integrator::Adaptive { tolerance: 0.0 }, ..good }, "likelihood.integrator.tolerance"),
        (Likelihood { integrator: Integrator::Cosine { levels: 1 }, ..good }, "likelihood.integrator.levels"),
    ] {
        let said = said(&settings, &gaussian.data(1));
        assert!(said.starts_with(place), "{said}");
    }
    for values in [vec![], vec![0.0; 3], vec![0.0, f32::NAN]] {
        assert!(said(&good, &values).starts_with("held-out data"));
    }
}

// ------------------------------------------------------------------------------------------------- denoising losses

/// A denoiser that is off: D + bias, so that its squared error is larger by bias² at every noise level.
struct Biased(Gaussian, f64);

impl Parameters for Biased {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Biased {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let bias = per_sample(sigma.iter().map(|s| self.1 * s / (1.0 + s * s).sqrt()), &x);
        self.0.denoise(x, sigma) + bias
    }
}

fn losses(settings: &DenoisingLoss, denoiser: &dyn Denoiser, values: &[f32], shape: [usize; 3]) -> DenoisingReport {
    let units = Units { mean: vec![0.0; shape[0]], scale: vec![2.0; shape[0]] };
    let data = HeldOut { values, shape, units: &units };
    settings.evaluate(denoiser, data, 0.5, SEED, &cpu(), &AtomicBool::new(false), &|_| {}).unwrap()
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
        let flow = run(&likelihood(Likelihood::default().integrator, Probes::Exact), &gaussian, &few, gaussian.shape);
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
        let outcome: Result<_> =
            settings.evaluate(&gaussian, data, 0.5, SEED, &cpu(), &AtomicBool::new(false), &|_| {});
        let error = outcome.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().starts_with("denoising loss, sigmas"), "{error}");
    }
}
