//! Solvers: orders on a mixture in closed form, variances and paths of stochastic versions, refusals.

use std::cell::Cell;

use burn::tensor::Tensor;
use softly::job::Job;
use softly::tensors::to_vec_f64;
use softly::{Churn, Denoiser, Dps, GuidanceConfig, Norm, Observer, Sampler, SolverKind, Spacing, Target, Unobserved};

use crate::common::denoisers::{Closed, Mixture, Shrink};
use crate::common::gaussian::Gaussian;
use crate::common::{POINT, cpu, field, normals, order, point_constraint, relative_error, rms};

/// The stochastic solvers with their order on the ODE.
const MULTISTEP: [(SolverKind, f64); 3] =
    [(SolverKind::Dpm2m, 2.0), (SolverKind::Dpm3m, 3.0), (SolverKind::UniPc, 4.0)];

/// The others; fitted steps without a rule.
const OTHERS: [(SolverKind, f64); 3] = [(SolverKind::Euler, 1.0), (SolverKind::Heun, 2.0), (SolverKind::Fitted, 3.0)];

const MIXTURE: Mixture =
    Mixture { weights: [0.5, 0.3, 0.2], means: [[1.0, 0.0], [-1.0, 0.5], [0.0, -1.2]], variances: [0.04, 0.01, 0.09] };

/// A sampler over levels that are even in ln σ.
fn even(solver: SolverKind, steps: usize, [sigma_max, sigma_min]: [f64; 2]) -> Sampler {
    Sampler { solver, steps, sigma_max, sigma_min, spacing: Spacing::LogUniform, ..Sampler::default() }
}

/// Keeps the state at σmin.
#[derive(Default)]
struct BeforeTheLast(Vec<f64>);

impl Observer for BeforeTheLast {
    fn step(&mut self, step: usize, steps: usize, _: f64, _: &Tensor<4>, state: &Tensor<4>) {
        if step + 1 == steps {
            self.0 = to_vec_f64(state.clone());
        }
    }
}

/// The state at σmin that grows from `latents`; `noise` are the normal numbers of the steps.
fn at_the_end(
    sampler: &Sampler,
    denoiser: &dyn Denoiser,
    latents: &[f64],
    noise: &dyn Fn(usize) -> Vec<f64>,
) -> Vec<f64> {
    let (mut seen, step) = (BeforeTheLast::default(), Cell::new(0));
    let mut draw = || field(&noise(step.replace(step.get() + 1)), POINT);
    sampler.sample_from(field(latents, POINT), Target::plain(denoiser, POINT), &mut draw, &mut seen);
    seen.0
}

/// The normal numbers of a deterministic sampler.
fn no_noise(_: usize) -> Vec<f64> {
    unreachable!("a deterministic sampler draws no noise")
}

/// dx/dλ = D − x with λ = −ln σ by the classical fourth-order Runge–Kutta rule.
fn runge_kutta(mut x: [f64; 2], [sigma_max, sigma_min]: [f64; 2], steps: usize) -> [f64; 2] {
    let h = (sigma_max / sigma_min).ln() / steps as f64;
    for i in 0..steps {
        let slope = |x: [f64; 2], s: f64| {
            let estimate = MIXTURE.denoise(x, sigma_max * (-h * (i as f64 + s)).exp());
            [estimate[0] - x[0], estimate[1] - x[1]]
        };
        let ahead = |k: [f64; 2], s: f64| [x[0] + s * h * k[0], x[1] + s * h * k[1]];
        let a = slope(x, 0.0);
        let b = slope(ahead(a, 0.5), 0.5);
        let c = slope(ahead(b, 0.5), 0.5);
        let d = slope(ahead(c, 1.0), 1.0);
        x = [0, 1].map(|j| x[j] + h / 6.0 * (a[j] + 2.0 * b[j] + 2.0 * c[j] + d[j]));
    }
    x
}

#[test]
fn solvers_have_their_order_on_a_mixture() {
    let range = [20.0, 0.02];
    let latents = normals(3, 0, 100);
    let starts = latents.chunks_exact(2).map(|z| [range[0] * z[0], range[0] * z[1]]);
    let exact: Vec<f64> = starts.flat_map(|x| runge_kutta(x, range, 20_000)).collect();
    let denoiser = Closed(|x, sigma| MIXTURE.denoise(x, sigma));
    for (solver, expected) in OTHERS.into_iter().chain(MULTISTEP) {
        let errors = [200usize, 400, 800, 1600].map(|steps| {
            let found = at_the_end(&even(solver, steps, range), &denoiser, &latents, &no_noise);
            let error: Vec<f64> = found.iter().zip(&exact).map(|(f, e)| f - e).collect();
            ((steps - 1) as f64, rms(&error))
        });
        let found = -order(&errors);
        assert!((expected - 0.3..expected + 0.6).contains(&found), "{solver:?}: order {found}, errors {errors:?}");
    }
}

/// D is linear for Gaussian data, so the end is a sum over the start and the noise of every step: one impulse per sample, and
/// the variance of the scheme is the sum of the squared answers.
#[test]
fn stochastic_solvers_have_the_variance_of_the_data_to_second_order() {
    let range = [80.0, 0.02];
    for (solver, _) in MULTISTEP {
        for eta in [0.3, 1.0] {
            let errors = [40usize, 80, 160, 320].map(|steps| {
                let sampler = Sampler { eta, ..even(solver, steps, range) };
                let denoiser = Shrink { variance: 0.1 };
                let impulse = |at: usize| (0..2 * steps).map(|k| f64::from(u8::from(k == 2 * at))).collect::<Vec<_>>();
                let answers = at_the_end(&sampler, &denoiser, &impulse(0), &|step| impulse(step + 1));
                let variance: f64 = answers.chunks_exact(2).map(|a| a[0] * a[0]).sum();
                assert!(answers.chunks_exact(2).all(|a| a[1] == 0.0));
                (steps as f64, (variance - (0.1 + 4e-4)).abs())
            });
            let found = -order(&errors);
            assert!((found - 2.0).abs() < 0.3, "{solver:?}, η = {eta}: order {found}, errors {errors:?}");
        }
    }
}

/// The noise of a long step that follows the same Brownian path as `fine` noise of equal short steps of length h: what the
/// short steps add up to, each decayed by e^{−κh} in every later one.
fn joined(fine: &[Vec<f64>], eta: f64, h: f64) -> Vec<f64> {
    let spread = |h: f64| (1.0 - (-2.0 * eta * h).exp()).sqrt();
    // In units of the last σ: an earlier step's σ is larger by e^{h}, so its noise decays by e^{−ηh} only.
    let sum = fine.iter().fold(vec![0.0; fine[0].len()], |sum, step| {
        sum.iter().zip(step).map(|(s, z)| s * (-eta * h).exp() + spread(h) * z).collect()
    });
    sum.iter().map(|s| s / spread(h * fine.len() as f64)).collect()
}

#[test]
fn stochastic_solvers_follow_a_path_to_first_order() {
    let (range, eta, finest): ([f64; 2], f64, usize) = ([80.0, 0.02], 1.0, 1280);
    let h = (range[0] / range[1]).ln() / finest as f64;
    let latents = normals(4, 0, 400);
    let noise: Vec<Vec<f64>> = (0..finest as u64).map(|k| normals(5, k, 400)).collect();
    let denoiser = Closed(|x, sigma| MIXTURE.denoise(x, sigma));
    for (solver, _) in MULTISTEP {
        let run = |stride: usize| {
            let coarse: Vec<Vec<f64>> = noise.chunks(stride).map(|fine| joined(fine, eta, h)).collect();
            let sampler = Sampler { eta, ..even(solver, finest / stride + 1, range) };
            at_the_end(&sampler, &denoiser, &latents, &|step| coarse[step].clone())
        };
        let exact = run(1);
        let errors = [64usize, 32, 16, 8].map(|stride| {
            let difference: Vec<f64> = run(stride).iter().zip(&exact).map(|(a, b)| a - b).collect();
            (1.0 / stride as f64, rms(&difference))
        });
        let found = -order(&errors);
        assert!((found - 1.0).abs() < 0.3, "{solver:?}: order {found}, errors {errors:?}");
    }
}

#[test]
fn two_steps_of_unipc_with_guidance_are_those_of_its_formula() {
    let (shrink, scale) = (Shrink { variance: 1.0 }, 0.25);
    let guidance = Some(GuidanceConfig::Dps(Dps { scale }));
    let sampler = Sampler { guidance, ..even(SolverKind::UniPc, 3, [4.0, 1.0]) };
    let constraint = point_constraint("x + y - 3", Norm::HalfSquares);
    let target = Target { constraint: Some(&constraint), ..Target::plain(&shrink, POINT) };
    let (mut seen, latents) = (BeforeTheLast::default(), [1.0, -2.0]);
    let mut none = || -> Tensor<4> { unreachable!("a deterministic sampler draws no noise") };
    sampler.sample_from(field(&latents, POINT), target, &mut none, &mut seen);
    // Levels 4, 2, 1: both steps have h = ln 2, m₀ = ∫ e^{s−h} ds = 1/2 and m₁ = ∫ e^{s−h} s/h ds = 1 − m₀/h.
    let (m0, m1) = (0.5, 1.0 - 0.5 / std::f64::consts::LN_2);
    let (k0, k1) = (shrink.factor(4.0), shrink.factor(2.0));
    // ∇ₓ of (D₁ + D₂ − 3)²/2 with D = k x.
    let push = |k: f64, x: [f64; 2]| scale * k * (k * (x[0] + x[1]) - 3.0);
    let start = latents.map(|z| 4.0 * z);
    let predicted = start.map(|x| 0.5 * x + m0 * k0 * x - push(k0, start));
    let expected = [0, 1].map(|i| {
        let (d0, d1) = (k0 * start[i], k1 * predicted[i]);
        let corrected = predicted[i] + (m1 * d1 + (m0 - m1) * d0) - m0 * d0;
        0.5 * corrected + (m0 + m1) * d1 - m1 * d0 - push(k1, predicted)
    });
    assert!(seen.0.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-12), "{:?} against {expected:?}", seen.0);
}

#[test]
fn calls_are_counted() {
    let solvers = [
        (SolverKind::Heun, 23),
        (SolverKind::Euler, 12),
        (SolverKind::Dpm3m, 12),
        (SolverKind::UniPc, 12),
        (SolverKind::Fitted, 12),
    ];
    for (solver, expected) in solvers {
        let sampler = Sampler { solver, steps: 12, ..Sampler::default() };
        assert_eq!(sampler.calls(), expected);
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let denoiser = Closed(|x, _| {
            calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            x
        });
        sampler.sample(Target::plain(&denoiser, POINT), 0, &[0], &cpu(), &mut Unobserved);
        assert_eq!(calls.into_inner(), expected, "{solver:?}");
    }
}

#[test]
fn noise_that_a_solver_cannot_put_back_is_refused() {
    let churn = Churn { amount: 1.0, ..Churn::default() };
    let cases = [
        (Sampler { eta: 0.5, ..Sampler::default() }, "sampler.eta"),
        (Sampler { eta: 0.5, solver: SolverKind::Fitted, ..Sampler::default() }, "sampler.eta"),
        (Sampler { eta: -0.5, solver: SolverKind::UniPc, ..Sampler::default() }, "sampler.eta"),
        (Sampler { churn, solver: SolverKind::Dpm2m, ..Sampler::default() }, "sampler.churn.amount"),
        (Sampler { density: vec![1.0], ..Sampler::default() }, "sampler.density"),
        (Sampler { density: vec![1.0, 0.0], ..Sampler::default() }, "sampler.density"),
    ];
    for (sampler, key) in cases {
        let error = sampler.check().unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    Sampler { eta: 0.5, solver: SolverKind::Dpm3m, ..Sampler::default() }.check().unwrap();
}

#[test]
fn fitted_levels_end_closer_than_even_ones() {
    let data = Gaussian::field();
    let even = Sampler { solver: SolverKind::UniPc, steps: 10, spacing: Spacing::LogUniform, ..Sampler::default() };
    let target = Target::plain(&data, data.shape);
    let fitted = Sampler { spacing: Spacing::Fitted, ..even.clone() }.fitted_to(target, &Job::silent(&cpu())).unwrap();
    assert_eq!(fitted.levels().len(), 11);
    let ends = |sampler: &Sampler| to_vec_f64(sampler.sample(target, 7, &[0, 1, 2, 3], &cpu(), &mut Unobserved));
    let exact = ends(&Sampler { steps: 2000, ..even.clone() });
    let [of_fitted, of_even] = [&fitted, &even].map(|sampler| relative_error(&ends(sampler), &exact));
    assert!(of_fitted < 0.5 * of_even, "{of_fitted} against {of_even}");
    // A density that is given stays.
    assert_eq!(fitted.fitted_to(target, &Job::silent(&cpu())).unwrap(), fitted);
    assert_eq!(even.fitted_to(target, &Job::silent(&cpu())).unwrap(), even);
}

/// D of Gaussian data is linear, but no rule has a number for every wave: what is left is within an octave.
#[test]
fn fitted_steps_end_far_closer_than_others() {
    let data = Gaussian::field();
    let few = Sampler { solver: SolverKind::Fitted, steps: 8, spacing: Spacing::LogUniform, ..Sampler::default() };
    let target = Target::plain(&data, data.shape);
    let fitted = few.fitted_to(target, &Job::silent(&cpu())).unwrap();
    let ends = |sampler: &Sampler| to_vec_f64(sampler.sample(target, 7, &[0, 1, 2, 3], &cpu(), &mut Unobserved));
    let unipc = |steps| Sampler { solver: SolverKind::UniPc, steps, ..few.clone() };
    let exact = ends(&unipc(2000));
    let [of_fitted, of_unipc] = [&fitted, &unipc(8)].map(|sampler| relative_error(&ends(sampler), &exact));
    assert!(of_fitted < 0.05 * of_unipc, "{of_fitted} and {of_unipc}");
    // A rule that is there stays, and one for other levels is measured anew.
    assert_eq!(fitted.fitted_to(target, &Job::silent(&cpu())).unwrap(), fitted);
    let other = Sampler { steps: 6, ..fitted.clone() };
    assert_ne!(other.fitted_to(target, &Job::silent(&cpu())).unwrap().rule, fitted.rule);
}

#[test]
fn fitted_steps_with_guidance_are_refused() {
    let guidance = Some(GuidanceConfig::Dps(Dps { scale: 0.1 }));
    let error = Sampler { guidance, solver: SolverKind::Fitted, ..Sampler::default() }.check().unwrap_err().to_string();
    assert!(error.contains("sampler.solver") && error.contains("unipc"), "{error}");
}
