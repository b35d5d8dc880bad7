//! Likelihoods of data whose best denoiser is known in closed form.

use std::f64::consts::{LN_2, TAU};
use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use softly::error::Error;
use softly::job::Job;
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, per_sample, to_vec_f64};
use softly::units::Units;
use softly::{
    Backbone, BackboneConfig, Config, Damping, Ddpm, Denoiser, DenoisingLoss, Direction, Gamma, GammaInput,
    GradientDirection, HeldOut, Integrator, Label, LevelMlpConfig, Likelihood, LikelihoodReport, Model, Norm,
    PROGRESS_PER_SAMPLE, ParameterConfig, PreconditionKind, Probes, Scale, ScdConfig, SoftlyConstrained,
};

use crate::common::denoisers::without_parameters;
use crate::common::gaussian::{Gaussian, SEED};
use crate::common::{POINT, Watch, cpu, mlp, order, point_blueprint, point_constraint, point_law, scd, wake_gamma};

/// The best x0 from DDPM's x_t = √ᾱ x0 + √(1−ᾱ) noise and the index of one of so many levels, in f32.
struct LevelGaussian(Gaussian, f64);

without_parameters!(LevelGaussian);

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
    settings.evaluate(denoiser, data, SEED, &Job::silent(&cpu())).unwrap()
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
    config.denoiser.backbone = BackboneConfig::LevelMlp(LevelMlpConfig { hidden: 8, levels: 100 });
    assert_eq!(Likelihood::for_model(&config).integrator, Integrator::Cosine { levels: 100 });
    let sigmas = DenoisingLoss::for_model(&config, 5).sigmas;
    assert_eq!(sigmas.len(), 99);
    assert!((sigmas[0] / 2.5133e-2 - 1.0).abs() < 5e-5 && (sigmas[98] / 64.161 - 1.0).abs() < 5e-5);
    // A parameter that is drawn anew at every evaluation leaves no step without error.
    let mut config = Config::default();
    config.denoiser.scd = Some(ScdConfig::default());
    let mut constraint = point_law("x - k*y", Norm::HalfSquares);
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
    let report = settings.evaluate(&gaussian, data, SEED, &Job::silent(&cpu())).unwrap();
    // Half the numbers are stretched by 4 and half by ½: (2 − 1)/2 bits per number.
    for sample in &report.samples {
        assert!((sample.bits_per_dim_physical - sample.bits_per_dim - 0.5).abs() < 1e-12);
    }
    assert!((report.bits_per_dim_physical - report.bits_per_dim - 0.5).abs() < 1e-12);
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<LikelihoodReport>(&text).unwrap(), report);
}

/// −log p of points by small Runge–Kutta steps in ln σ with a trace from finite differences: the denoiser is a black
/// box.
fn black_box_nats(denoiser: &dyn Denoiser, points: &[[f64; 2]], sigma_min: f64, sigma_max: f64) -> Vec<f64> {
    let (steps, h) = (250, 1e-3);
    let flow = |points: &[[f64; 2]], u: f64| -> Vec<[f64; 3]> {
        let scale = h * (1.0 + u.exp());
        let moves = [[0.0, 0.0], [scale, 0.0], [-scale, 0.0], [0.0, scale], [0.0, -scale]];
        let moved = points.iter().flat_map(|p| moves.iter().flat_map(|m| [p[0] + m[0], p[1] + m[1]])).collect();
        let denoised = denoiser.denoise(field_batch(moved, POINT, &cpu()), &vec![u.exp(); 5 * points.len()]);
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
            let constraint = Arc::new(point_constraint("tanh(2*x - y) + 0.5*x - 0.2", norm));
            let build = |detach: bool| {
                let scd = ScdConfig { scale, input, detach, ..ScdConfig::default() };
                let gradient = GradientDirection::new(constraint.clone(), scale, Damping::Exponential, 1.0);
                let along: Vec<Box<dyn Direction>> = vec![Box::new(gradient.differentiable())];
                let gamma =
                    Gamma::new(&scd, &along, 1, POINT, &mut Stream::new(0, Purpose::Weights, 1), &cpu()).unwrap();
                let base = Box::new(Gaussian::flat());
                let mut model = SoftlyConstrained::new(base, constraint.clone(), along, gamma, scd, 0.8);
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
    let mut blueprint = point_blueprint(Some(ScdConfig { detach, ..scd(Scale::Plain) }));
    blueprint.config.denoiser.backbone = mlp(24);
    let mut model = blueprint.build(&cpu()).unwrap();
    wake_gamma(&mut model, 0.03);
    model
}

#[test]
fn a_model_that_was_trained_detached_is_differentiated_all_the_same() {
    let values = Gaussian::flat().data(4);
    let nats = |detach: bool| -> Vec<f64> {
        let model = point_model(detach);
        let report = run(&Likelihood::default(), &model, &values, model.shape);
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
        let run =
            |batch: usize, values: &[f32]| run(&Likelihood { batch, ..settings }, &model, values, model.shape).samples;
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

without_parameters!(Formula);

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
    let outcome = settings.evaluate(&bursting, data, SEED, &Job::silent(&cpu()));
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
        let watch = Watch::new(|_| false);
        settings.evaluate(&gaussian, data, SEED, &watch.job(&cpu())).unwrap();
        assert_eq!(watch.done(), 7 * PROGRESS_PER_SAMPLE as u64);
        let outcome = settings.evaluate(&gaussian, data, SEED, &Watch::new(|_| true).job(&cpu()));
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
        let outcome = settings.evaluate(&gaussian, data, SEED, &Job::silent(&cpu()));
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
