//! Samplers on denoisers in closed form, guidance, projection, and independence of batch size and threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Tensor;
use softly::job::Job;
use softly::tensors::to_vec_f64;
use softly::{
    BackboneConfig, Blueprint, Churn, Denoiser, DirectionKind, Dps, GammaInput, GammaOutput, GuidanceConfig,
    LevelMlpConfig, Norm, Observer, PreconditionKind, Projection, Sampler, Scale, ScdConfig, SolverKind, Target,
    Unobserved,
};

use crate::common::denoisers::{Closed, Mixture, Shrink, without_parameters};
use crate::common::{
    POINT, bits, cpu, darcy_blueprint, field, normals, order, point_blueprint, point_constraint, scd, wake_gamma,
};

fn sample_points(sampler: &Sampler, denoiser: &dyn Denoiser, seed: u64, n: u64) -> Vec<[f64; 2]> {
    let indices: Vec<u64> = (0..n).collect();
    let drawn = sampler.sample(Target::plain(denoiser, POINT), seed, &indices, &cpu(), &mut Unobserved);
    to_vec_f64(drawn).as_chunks().0.to_vec()
}

/// The samples that grow from `latents` without any further noise.
fn grown(sampler: &Sampler, latents: &[f64], target: Target<'_>, observer: &mut dyn Observer) -> Vec<f64> {
    let mut no_noise = || -> Tensor<4> { unreachable!("a deterministic sampler draws no noise") };
    to_vec_f64(sampler.sample_from(field(latents, POINT), target, &mut no_noise, observer))
}

#[test]
fn heun_on_a_gaussian_mixture_reproduces_the_reference_sampler() {
    let text = include_str!("../data/edm_heun_mixture.json");
    let reference: serde_json::Value = serde_json::from_str(text).unwrap();
    let numbers = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect::<Vec<_>>();
    let points = |v: &serde_json::Value| v.as_array().unwrap().iter().map(numbers).collect::<Vec<_>>();
    let mixture = &reference["mixture"];
    let three = |key: &str| -> [f64; 3] { numbers(&mixture[key]).try_into().unwrap() };
    let means: Vec<[f64; 2]> = points(&mixture["means"]).into_iter().map(|m| m.try_into().unwrap()).collect();
    let mixture =
        Mixture { weights: three("weights"), means: means.try_into().unwrap(), variances: three("variances") };
    let denoiser = Closed(move |x, sigma| mixture.denoise(x, sigma));
    let latents = points(&reference["latents"]).concat();
    let mut compared = 0;
    for run in reference["runs"].as_array().unwrap() {
        let sampler = Sampler {
            steps: run["num_steps"].as_u64().unwrap() as usize,
            sigma_min: run["sigma_min"].as_f64().unwrap(),
            sigma_max: run["sigma_max"].as_f64().unwrap(),
            rho: run["rho"].as_f64().unwrap(),
            ..Sampler::default()
        };
        let drawn = grown(&sampler, &latents, Target::plain(&denoiser, POINT), &mut Unobserved);
        let expected = points(&run["samples"]).concat();
        assert_eq!(drawn.len(), expected.len());
        for (d, e) in drawn.iter().zip(&expected) {
            assert!((d - e).abs() < 1e-9, "{} steps: {d} against {e}", sampler.steps);
            compared += 1;
        }
    }
    assert_eq!(compared, 2 * 16);
}

/// Correlated Gaussian data: mean, eigenvalues of the covariance, angle of the first eigenvector.
struct Gaussian {
    mean: [f64; 2],
    eigenvalues: [f64; 2],
    angle: f64,
}

const GAUSSIAN: Gaussian = Gaussian { mean: [0.7, -0.4], eigenvalues: [1.2, 0.1], angle: 0.6 };

impl Gaussian {
    /// x − mean in the eigenbasis.
    fn to_eigen(&self, x: [f64; 2]) -> [f64; 2] {
        let (d, (sin, cos)) = ([x[0] - self.mean[0], x[1] - self.mean[1]], self.angle.sin_cos());
        [cos * d[0] + sin * d[1], -sin * d[0] + cos * d[1]]
    }

    fn out_of_eigen(&self, y: [f64; 2]) -> [f64; 2] {
        let (sin, cos) = self.angle.sin_cos();
        [self.mean[0] + cos * y[0] - sin * y[1], self.mean[1] + sin * y[0] + cos * y[1]]
    }

    /// mean + C(C + σ²)⁻¹(x − mean).
    fn denoiser(&'static self) -> Closed<impl Fn([f64; 2], f64) -> [f64; 2] + Send + Sync> {
        Closed(|x: [f64; 2], sigma: f64| {
            let (y, l) = (self.to_eigen(x), self.eigenvalues);
            self.out_of_eigen([0, 1].map(|i| l[i] / (l[i] + sigma * sigma) * y[i]))
        })
    }
}

/// Checks that points in the eigenbasis have the given mean and variances and no correlation, up to 4.5 standard
/// errors.
fn assert_moments(points: &[[f64; 2]], mean: [f64; 2], variance: [f64; 2]) {
    let n = points.len() as f64;
    let y: Vec<[f64; 2]> = points.iter().map(|&p| GAUSSIAN.to_eigen(p)).collect();
    let average = |f: &dyn Fn(&[f64; 2]) -> f64| y.iter().map(f).sum::<f64>() / n;
    for i in [0, 1] {
        let found = average(&|p| p[i]);
        let error = (variance[i] / n).sqrt();
        assert!((found - mean[i]).abs() < 4.5 * error, "mean {i}: {found} against {}, error {error}", mean[i]);
        for j in [i, 1] {
            let expected = if i == j { variance[i] } else { 0.0 };
            let found = average(&|p| (p[i] - mean[i]) * (p[j] - mean[j]));
            let error = ((variance[i] * variance[j] + expected * expected) / n).sqrt();
            assert!((found - expected).abs() < 4.5 * error, "covariance {i}{j}: {found} against {expected}, {error}");
        }
    }
}

/// Mean and variances in the eigenbasis at the end of the exact flow from N(0, σmax²) to σ = 0.
fn after_the_flow(sigma_max: f64) -> ([f64; 2], [f64; 2]) {
    let start = GAUSSIAN.to_eigen([0.0, 0.0]);
    let shrink2 = GAUSSIAN.eigenvalues.map(|l| l / (l + sigma_max * sigma_max));
    ([0, 1].map(|i| start[i] * shrink2[i].sqrt()), shrink2.map(|s| s * sigma_max * sigma_max))
}

#[test]
fn samples_of_gaussian_data_have_its_mean_and_covariance() {
    let sampler = Sampler { steps: 60, ..Sampler::default() };
    let (mean, variance) = after_the_flow(sampler.sigma_max);
    let plain = sample_points(&sampler, &GAUSSIAN.denoiser(), 1, 6_000);
    assert_moments(&plain, mean, variance);
    // Noise that is put back is taken out again: the same distribution, other samples.
    let churned = Sampler { steps: 200, churn: Churn { amount: 60.0, ..Churn::default() }, ..sampler };
    let points = sample_points(&churned, &GAUSSIAN.denoiser(), 1, 6_000);
    assert_moments(&points, [0.0, 0.0], GAUSSIAN.eigenvalues);
    let moved = points.iter().zip(&plain).map(|(a, b)| (a[0] - b[0]).abs()).sum::<f64>() / 6_000.0;
    assert!(moved > 0.2, "churn moved points by {moved} only");
}

/// Keeps the state after the step to `sigma_min`.
#[derive(Default)]
struct BeforeTheLast(Vec<f64>);

impl Observer for BeforeTheLast {
    fn step(&mut self, step: usize, steps: usize, _: f64, _: &Tensor<4>, state: &Tensor<4>) {
        if step + 1 == steps {
            self.0 = to_vec_f64(state.clone());
        }
    }
}

#[test]
fn heun_is_of_second_order_and_euler_of_first() {
    let latents = normals(3, 0, 20);
    for (solver, expected) in [(SolverKind::Heun, 2.0), (SolverKind::Euler, 1.0)] {
        let errors = [40usize, 80, 160, 320].map(|steps| {
            let sampler = Sampler { solver, steps, sigma_min: 0.02, sigma_max: 10.0, ..Sampler::default() };
            let mut seen = BeforeTheLast::default();
            grown(&sampler, &latents, Target::plain(&GAUSSIAN.denoiser(), POINT), &mut seen);
            let worst = seen.0.chunks_exact(2).zip(latents.chunks_exact(2)).map(|(found, z)| {
                // The flow scales each eigen-direction by √((λ+σmin²)/(λ+σmax²)).
                let y = GAUSSIAN.to_eigen([10.0 * z[0], 10.0 * z[1]]);
                let l = GAUSSIAN.eigenvalues;
                let exact = GAUSSIAN.out_of_eigen([0, 1].map(|i| y[i] * ((l[i] + 4e-4) / (l[i] + 100.0)).sqrt()));
                (found[0] - exact[0]).hypot(found[1] - exact[1])
            });
            ((steps - 1) as f64, worst.fold(0.0, f64::max))
        });
        let slope = order(&errors);
        assert!((slope + expected).abs() < 0.12, "{solver:?}: order {}, errors {errors:?}", -slope);
    }
}

#[test]
fn ancestral_samples_have_the_moments_that_ddpms_recursion_predicts() {
    let steps = 100;
    let sampler = Sampler { solver: SolverKind::Ancestral, steps, ..Sampler::default() };
    let points = sample_points(&sampler, &GAUSSIAN.denoiser(), 5, 6_000);
    // DDPM in its own variables, from the schedule's definition: x_{t−1} = μ̃(x̂0, x_t) + √β z, no noise at the end.
    let curve = |t: usize| ((t as f64 / steps as f64 + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
    let beta: Vec<f64> = (0..steps).map(|t| (1.0 - curve(t + 1) / curve(t)).min(0.999)).collect();
    let product = |t: usize| beta[..t].iter().map(|b| 1.0 - b).product::<f64>();
    let start = GAUSSIAN.to_eigen([0.0, 0.0]);
    let moments = [0, 1].map(|i| {
        let eigenvalue = GAUSSIAN.eigenvalues[i];
        // Of the distance to √ᾱ·mean, in the eigenbasis.
        let (mut mean, mut variance) = (product(steps).sqrt() * start[i], 1.0);
        for t in (0..steps).rev() {
            let (bar, before) = (product(t + 1), product(t));
            let shrink = eigenvalue * bar.sqrt() / (eigenvalue * bar + 1.0 - bar);
            let factor =
                before.sqrt() * beta[t] / (1.0 - bar) * shrink + (1.0 - beta[t]).sqrt() * (1.0 - before) / (1.0 - bar);
            mean *= factor;
            variance = factor * factor * variance + if t == 0 { 0.0 } else { beta[t] };
        }
        (mean, variance)
    });
    assert_moments(&points, moments.map(|m| m.0), moments.map(|m| m.1));
    // The recursion itself is near the data: unit-variance directions exactly, narrow ones a little too wide.
    assert!((moments[0].1 / GAUSSIAN.eigenvalues[0] - 1.0).abs() < 0.05, "{moments:?}");
}

/// PIDM's own network: x0 predicted from the index of a noise level.
fn level_blueprint(levels: usize) -> Blueprint {
    let mut blueprint = point_blueprint(None);
    blueprint.config.denoiser.precondition = PreconditionKind::Ddpm;
    blueprint.config.denoiser.backbone = BackboneConfig::LevelMlp(LevelMlpConfig { hidden: 128, levels });
    blueprint
}

#[test]
fn a_sample_does_not_depend_on_its_batch_or_on_threads() {
    let churn = Churn { amount: 4.0, ..Churn::default() };
    let heun = Sampler { steps: 8, ..Sampler::default() };
    let ancestral = Sampler { solver: SolverKind::Ancestral, steps: 12, ..Sampler::default() };
    let guided = Sampler { guidance: Some(GuidanceConfig::Dps(Dps { scale: 0.1 })), ..heun.clone() };
    let features = ScdConfig { input: GammaInput::Features, output: GammaOutput::Channel, ..scd(Scale::Jacobi) };
    let every = ScdConfig { directions: DirectionKind::ALL.to_vec(), solve_for: Some("p".into()), ..features.clone() };
    let cases = vec![
        ("vanilla", point_blueprint(None), heun.clone()),
        ("euler", point_blueprint(None), Sampler { solver: SolverKind::Euler, ..heun.clone() }),
        ("dpm-2m", point_blueprint(None), Sampler { solver: SolverKind::Dpm2m, ..heun.clone() }),
        ("dpm-3m", point_blueprint(None), Sampler { solver: SolverKind::Dpm3m, eta: 0.5, ..heun.clone() }),
        ("unipc", darcy_blueprint(None, Norm::L1Mean), Sampler { solver: SolverKind::UniPc, ..heun.clone() }),
        ("fitted", darcy_blueprint(None, Norm::L1Mean), Sampler { solver: SolverKind::Fitted, ..heun.clone() }),
        ("unipc, stochastic", point_blueprint(None), Sampler { solver: SolverKind::UniPc, eta: 1.0, ..heun.clone() }),
        ("scd", point_blueprint(Some(scd(Scale::Plain))), heun.clone()),
        ("scd with churn", point_blueprint(Some(scd(Scale::Unit))), Sampler { churn, ..heun.clone() }),
        ("guided", point_blueprint(None), guided),
        ("darcy", darcy_blueprint(Some(scd(Scale::Polyak)), Norm::L1Mean), heun.clone()),
        ("four directions", darcy_blueprint(Some(every), Norm::L2), heun.clone()),
        ("jacobi", darcy_blueprint(Some(features), Norm::L1Mean), heun),
        ("levels", level_blueprint(12), ancestral),
    ];
    for (name, blueprint, sampler) in cases {
        let mut model = blueprint.build(&cpu()).unwrap();
        wake_gamma(&mut model, 0.3);
        let fitted = || sampler.fitted_to(model.target(), &Job::silent(&cpu())).unwrap();
        let sampler = fitted();
        let draw = |indices: &[u64]| -> Vec<u64> {
            let values = to_vec_f64(sampler.sample(model.target(), 7, indices, &cpu(), &mut Unobserved));
            assert!(values.iter().all(|v| v.is_finite()), "{name}");
            bits(values)
        };
        let all: Vec<u64> = (0..20).collect();
        let many: Vec<u64> = (0..300).collect();
        let in_one = draw(&all);
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                assert_eq!(fitted(), sampler, "{name}: {threads} threads");
                assert_eq!(draw(&all), in_one, "{name}: {threads} threads");
                assert_eq!(draw(&many)[..in_one.len()], in_one, "{name}: among 300 on {threads} threads");
                let in_threes: Vec<u64> = all.chunks(3).flat_map(&draw).collect();
                assert_eq!(in_threes, in_one, "{name}: batches of 3 on {threads} threads");
            });
        }
        let alone: Vec<u64> = all.iter().flat_map(|&i| draw(&[i])).collect();
        assert_eq!(alone, in_one, "{name}: alone");
    }
}

#[test]
fn guidance_pushes_every_sample_along_its_own_gradient() {
    let denoiser = Shrink { variance: 0.5 };
    let (sigma, scale) = (2.0, 0.3);
    let sampler = Sampler {
        solver: SolverKind::Euler,
        steps: 1,
        sigma_max: sigma,
        guidance: Some(GuidanceConfig::Dps(Dps { scale })),
        ..Sampler::default()
    };
    let latents = normals(11, 0, 10);
    let k = denoiser.factor(sigma);
    for norm in [Norm::HalfSquares, Norm::L2] {
        let constraint = point_constraint("x - 2*y + 0.5", norm);
        let target = Target { constraint: Some(&constraint), ..Target::plain(&denoiser, POINT) };
        let run = |latents: &[f64]| grown(&sampler, latents, target, &mut Unobserved);
        let together = run(&latents);
        for (found, z) in together.chunks_exact(2).zip(latents.chunks_exact(2)) {
            // One Euler step to σ = 0 ends at D = k x; the push is scale · k Jᵀ ∂‖r‖/∂r with J = (1, −2).
            let denoised = [k * sigma * z[0], k * sigma * z[1]];
            let residual = denoised[0] - 2.0 * denoised[1] + 0.5;
            let slope = if norm == Norm::L2 { residual.signum() } else { residual };
            for (i, jacobian) in [1.0, -2.0].into_iter().enumerate() {
                let expected = denoised[i] - scale * k * jacobian * slope;
                assert!((found[i] - expected).abs() < 1e-12, "{norm:?}: {} against {expected}", found[i]);
            }
            assert_eq!(run(z), found, "alone or in a batch");
        }
    }
}

/// D(x) = x/2, projected onto 7; counts the projections.
struct Projecting(AtomicUsize);

without_parameters!(Projecting);

impl Denoiser for Projecting {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        x * 0.5
    }
}

impl Projection for Projecting {
    fn project(&self, estimate: Tensor<4>) -> Tensor<4> {
        self.0.fetch_add(1, Ordering::Relaxed);
        estimate * 0.0 + 7.0
    }
}

#[test]
fn samplers_project_in_the_last_eighth_of_their_steps() {
    // Heun calls the denoiser twice in all steps but the last.
    let cases = [
        (SolverKind::Heun, 16, 3),
        (SolverKind::Euler, 17, 3),
        (SolverKind::Heun, 1, 1),
        (SolverKind::UniPc, 12, 2),
        (SolverKind::Dpm3m, 1, 1),
    ];
    for (solver, steps, expected) in cases {
        let denoiser = Projecting(AtomicUsize::new(0));
        let sampler = Sampler { solver, steps, ..Sampler::default() };
        let target = Target { projection: Some(&denoiser), ..Target::plain(&denoiser, POINT) };
        let drawn = sampler.sample(target, 0, &[0, 1], &cpu(), &mut Unobserved);
        assert_eq!(denoiser.0.load(Ordering::Relaxed), expected, "{solver:?} {steps}");
        assert!(to_vec_f64(drawn).iter().all(|v| (v - 7.0).abs() < 1e-12));
    }
}
