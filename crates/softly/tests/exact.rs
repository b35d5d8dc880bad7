//! What has an exact answer: samplers on denoisers in closed form, formulas against a second interpreter, gradients
//! against finite differences, and independence of batch size and threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, per_sample, to_vec_f64};
use softly::units::Units;
use softly::{
    BackboneConfig, Blueprint, Churn, Config, ConstraintConfig, Damping, DataSpec, Denoiser, Estimation, Gamma,
    GammaInput, GammaOutput, GradientDirection, Guidance, Lambda, LambdaSchedule, Model, Norm, Objective, Observer,
    ParameterConfig, Parameters, PreconditionKind, Region, Regulariser, ResidualConfig, Residuals, Sampler, Scale,
    ScdConfig, SigmaData, SoftConstraint, SoftlyConstrained, Solver, Unobserved, Visitor, Weight, automatic_lambda,
};
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;

const POINT: [usize; 3] = [2, 1, 1];

fn cpu() -> Device {
    Device::flex()
}

/// A denoiser of points in closed form, one at a time in f64.
struct Closed<F>(F);

impl<F> Parameters for Closed<F> {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl<F: Fn([f64; 2], f64) -> [f64; 2] + Send + Sync> Denoiser for Closed<F> {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let device = x.device();
        let points = to_vec_f64(x);
        let denoised = points.chunks_exact(2).zip(sigma).flat_map(|(p, &s)| (self.0)([p[0], p[1]], s));
        field_batch(denoised.collect(), POINT, &device)
    }
}

/// The best denoiser of data N(0, variance) in tensor operations, so that autodiff passes through it: D = k(σ) x.
struct Shrink {
    variance: f64,
}

impl Shrink {
    fn factor(&self, sigma: f64) -> f64 {
        self.variance / (self.variance + sigma * sigma)
    }
}

impl Parameters for Shrink {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Shrink {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        x.clone() * per_sample(sigma.iter().map(|&s| self.factor(s)), &x)
    }
}

fn sample_points(sampler: &Sampler, denoiser: &dyn Denoiser, seed: u64, n: u64) -> Vec<[f64; 2]> {
    let indices: Vec<u64> = (0..n).collect();
    let drawn = sampler.sample(denoiser, None, POINT, seed, &indices, &cpu(), &mut Unobserved);
    to_vec_f64(drawn).chunks_exact(2).map(|p| [p[0], p[1]]).collect()
}

#[test]
fn heun_on_a_gaussian_mixture_reproduces_the_reference_sampler() {
    let text = include_str!("data/edm_heun_mixture.json");
    let reference: serde_json::Value = serde_json::from_str(text).unwrap();
    let numbers = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect::<Vec<_>>();
    let points = |v: &serde_json::Value| v.as_array().unwrap().iter().map(numbers).collect::<Vec<_>>();
    let mixture = &reference["mixture"];
    let (weights, variances) = (numbers(&mixture["weights"]), numbers(&mixture["variances"]));
    let means = points(&mixture["means"]);
    let denoiser = Closed(move |x: [f64; 2], sigma: f64| {
        // In logarithms: far from every mode all densities underflow.
        let total = |k: usize| variances[k] + sigma * sigma;
        let distance2 = |k: usize| (x[0] - means[k][0]).powi(2) + (x[1] - means[k][1]).powi(2);
        let logs: Vec<f64> = (0..3).map(|k| weights[k].ln() - total(k).ln() - 0.5 * distance2(k) / total(k)).collect();
        let largest = logs.iter().copied().fold(f64::MIN, f64::max);
        let posterior: Vec<f64> = logs.iter().map(|l| (l - largest).exp()).collect();
        let sum: f64 = posterior.iter().sum();
        [0, 1].map(|i| {
            let mode = |k: usize| (sigma * sigma * means[k][i] + variances[k] * x[i]) / total(k);
            (0..3).map(|k| posterior[k] / sum * mode(k)).sum()
        })
    });
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
        let latents = field_batch(latents.clone(), POINT, &cpu());
        let mut no_noise = || -> Tensor<4> { unreachable!("Heun without churn draws no noise") };
        let drawn = to_vec_f64(sampler.sample_from(latents, &denoiser, None, &mut no_noise, &mut Unobserved));
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

    fn run_from_eigen(&self, y: [f64; 2]) -> [f64; 2] {
        let (sin, cos) = self.angle.sin_cos();
        [self.mean[0] + cos * y[0] - sin * y[1], self.mean[1] + sin * y[0] + cos * y[1]]
    }

    /// mean + C(C + σ²)⁻¹(x − mean).
    fn denoiser(&'static self) -> Closed<impl Fn([f64; 2], f64) -> [f64; 2] + Send + Sync> {
        Closed(|x: [f64; 2], sigma: f64| {
            let (y, l) = (self.to_eigen(x), self.eigenvalues);
            self.run_from_eigen([0, 1].map(|i| l[i] / (l[i] + sigma * sigma) * y[i]))
        })
    }
}

/// Checks that points in the eigenbasis have the given mean and variances and no correlation, up to 4.5 standard errors.
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

/// What the exact flow from N(0, σmax²) to σ = 0 makes of mean and variances, in the eigenbasis.
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
    let latents = Stream::new(3, Purpose::Metric, 0).normals(20);
    for (solver, order) in [(Solver::Heun, 2.0), (Solver::Euler, 1.0)] {
        let errors = [40usize, 80, 160, 320].map(|steps| {
            let sampler = Sampler { solver, steps, sigma_min: 0.02, sigma_max: 10.0, ..Sampler::default() };
            let mut seen = BeforeTheLast::default();
            let start = field_batch(latents.clone(), POINT, &cpu());
            let mut no_noise = || -> Tensor<4> { unreachable!("no churn, no noise") };
            sampler.sample_from(start, &GAUSSIAN.denoiser(), None, &mut no_noise, &mut seen);
            let worst = seen.0.chunks_exact(2).zip(latents.chunks_exact(2)).map(|(found, z)| {
                // The flow scales each eigen-direction by √((λ+σmin²)/(λ+σmax²)).
                let y = GAUSSIAN.to_eigen([10.0 * z[0], 10.0 * z[1]]);
                let l = GAUSSIAN.eigenvalues;
                let exact = GAUSSIAN.run_from_eigen([0, 1].map(|i| y[i] * ((l[i] + 4e-4) / (l[i] + 100.0)).sqrt()));
                (found[0] - exact[0]).hypot(found[1] - exact[1])
            });
            (((steps - 1) as f64).ln(), worst.fold(0.0, f64::max).ln())
        });
        let mean = |f: fn(&(f64, f64)) -> f64| errors.iter().map(f).sum::<f64>() / 4.0;
        let (mx, my) = (mean(|e| e.0), mean(|e| e.1));
        let slope = errors.iter().map(|(x, y)| (x - mx) * (y - my)).sum::<f64>()
            / errors.iter().map(|(x, _)| (x - mx).powi(2)).sum::<f64>();
        assert!((slope + order).abs() < 0.12, "{solver:?}: order {}, errors {errors:?}", -slope);
    }
}

#[test]
fn ancestral_samples_have_the_moments_that_ddpms_recursion_predicts() {
    let steps = 100;
    let sampler = Sampler { solver: Solver::Ancestral, steps, ..Sampler::default() };
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

// ---------------------------------------------------------------------------------------------------- constraints

fn constraint_config(fields: &[&str], residual: Residuals, stencil: Scheme, norm: Norm) -> ConstraintConfig {
    ConstraintConfig {
        fields: fields.iter().map(ToString::to_string).collect(),
        residual,
        stencil,
        stencils: BTreeMap::new(),
        norm,
        parameters: BTreeMap::new(),
    }
}

/// Formulas of p and K with the number c and the array f.
const FORMULAS: [&str; 21] = [
    "K*laplacian(p) + dot(grad(K), grad(p)) + f",
    "div(K*grad(p)) + f",
    "laplacian(p) + c^2*p - K",
    "(sqrt(p^2 + K^2) - 1)^2",
    "p^2 + K^2 - 1.7",
    "sqrt(0.2 + p^2)*K",
    "exp(0.3*p) - 2*K",
    "log(2 + K^2)*dx(p)",
    "sin(p)*cos(K) - tanh(p*K) + 0.3",
    "abs(p) + 0.5*K",
    "p^3 - (1.5 + tanh(K))^1.7",
    "p/(2 + cos(K)) - x*y",
    "max(x, 0.4)*p + min(y, c)",
    "p*K - p/K + 0.1",
    "dxx(p) - dyy(K) + dx(dy(p))",
    "div(grad(p))*p - 1/(3 + K^2)",
    "dot(grad(p), grad(p)) - (x < 0.6)",
    "p*(K^2 + 1)^(-0.5) - 2",
    "p*dx(p) + K*dy(p) - 0.05*laplacian(p)",
    "c - f*p",
    "(p - K)^4 - K^-1",
];

const NORMS: [Norm; 4] = [Norm::L1Mean, Norm::L1Sum, Norm::L2, Norm::HalfSquares];

/// The data's channels; the constraint names two of them, in another order.
const CHANNELS: [&str; 3] = ["K", "spare", "p"];

struct Case {
    name: String,
    grid: Grid,
    units: Units,
    constraint: SoftConstraint,
    norm: Norm,
    /// Region and weight of each part.
    parts: Vec<(Region, f64)>,
}

fn inside(region: Region, node: usize, grid: &Grid) -> bool {
    let (row, col) = (node / grid.cols, node % grid.cols);
    match region {
        Region::All => true,
        Region::Interior => row > 0 && col > 0 && row < grid.rows - 1 && col < grid.cols - 1,
        Region::Border => !inside(Region::Interior, node, grid),
        Region::Left => col == 0,
        Region::Right => col == grid.cols - 1,
        Region::Top => row == 0,
        Region::Bottom => row == grid.rows - 1,
    }
}

fn cases() -> Vec<Case> {
    let grid = Grid { rows: 7, cols: 6, x: [0.0, 2.0], y: [-0.5, 1.0] };
    let units = Units { mean: vec![1.6, 9.0, 0.3], scale: vec![0.4, 3.0, 0.7] };
    let channels = CHANNELS.map(String::from);
    let regions = [
        vec![(Region::All, 1.0)],
        vec![(Region::Interior, 2.0), (Region::Left, 0.5)],
        vec![(Region::Border, 1.0), (Region::Top, -1.5), (Region::Bottom, 1.0), (Region::Right, 0.1)],
    ];
    let mut cases = Vec::new();
    for (i, formula) in FORMULAS.iter().enumerate() {
        for (j, norm) in NORMS.into_iter().enumerate() {
            let (stencil_name, stencil) = Scheme::ALL[(i + j) % 5];
            let parts = regions[(i + 2 * j) % 3].clone();
            let residual = if parts.len() == 1 {
                Residuals::One((*formula).to_string())
            } else {
                // The second part is another formula, so that parts cannot be mixed up.
                let text = |k: usize| FORMULAS[(i + 5 * k) % FORMULAS.len()].to_string();
                let part = |(k, &(region, weight))| ResidualConfig { formula: text(k), region, weight };
                Residuals::Many(parts.iter().enumerate().map(part).collect())
            };
            let mut config = constraint_config(&["p", "K"], residual, stencil, norm);
            config.stencils = BTreeMap::from([("K".to_string(), Scheme::ALL[(i + j + 1) % 5].1)]);
            config.parameters = BTreeMap::from([
                ("c".to_string(), ParameterConfig::Number(2.5)),
                ("f".to_string(), ParameterConfig::Formula("sin(pi*x) + c*y".into())),
            ]);
            let constraint = SoftConstraint::new(&config, &channels, &grid, &units).unwrap();
            let name = format!("{formula} {stencil_name} {norm:?} {parts:?}");
            cases.push(Case { name, grid: grid.clone(), units: units.clone(), constraint, norm, parts });
        }
    }
    cases
}

/// Normalised random fields `[C, H, W]` of a sample.
fn random_fields(grid: &Grid, index: u64) -> Vec<f64> {
    Stream::new(17, Purpose::Metric, index).normals(CHANNELS.len() * grid.len())
}

impl Case {
    fn shape(&self) -> [usize; 3] {
        [CHANNELS.len(), self.grid.rows, self.grid.cols]
    }

    /// The physical p and K of a normalised sample.
    fn physical(&self, sample: &[f64]) -> Vec<Vec<f64>> {
        let n = self.grid.len();
        let field = |c: usize| {
            sample[c * n..(c + 1) * n].iter().map(|v| self.units.mean[c] + self.units.scale[c] * v).collect()
        };
        vec![field(2), field(0)]
    }

    /// ‖R‖ from its definition.
    fn norm_by_hand(&self, sample: &[f64]) -> f64 {
        let values = self.constraint.residual_values(&self.physical(sample)).concat();
        let sum = |f: fn(f64) -> f64| values.iter().map(|&v| f(v)).sum::<f64>();
        match self.norm {
            Norm::L1Mean => sum(f64::abs) / values.len() as f64,
            Norm::L1Sum => sum(f64::abs),
            Norm::L2 => sum(|v| v * v).sqrt(),
            Norm::HalfSquares => 0.5 * sum(|v| v * v),
        }
    }
}

#[test]
fn formulas_on_tensors_agree_with_formulas_on_f64_arrays() {
    for case in cases() {
        let n = case.grid.len();
        let samples = [random_fields(&case.grid, 0), random_fields(&case.grid, 1)];
        let x = field_batch(samples.concat(), case.shape(), &cpu());
        let tensors: Vec<Vec<f64>> = case.constraint.residuals(&x).into_iter().map(to_vec_f64).collect();
        let norms = to_vec_f64(case.constraint.norm(x));
        for (s, sample) in samples.iter().enumerate() {
            let expected = case.constraint.residual_values(&case.physical(sample));
            assert_eq!(expected.len(), case.parts.len());
            for ((tensor, expected), &(region, _)) in tensors.iter().zip(&expected).zip(&case.parts) {
                let all = &tensor[s * n..(s + 1) * n];
                let (here, outside): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| inside(region, i, &case.grid));
                assert!(outside.iter().all(|&i| all[i] == 0.0), "{}", case.name);
                assert_eq!(here.len(), expected.len(), "{}", case.name);
                let size = expected.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                for (&i, e) in here.iter().zip(expected) {
                    assert!((all[i] - e).abs() < 1e-12 * size, "{}: {} against {e}", case.name, all[i]);
                }
            }
            let by_hand = case.norm_by_hand(sample);
            assert!((norms[s] / by_hand - 1.0).abs() < 1e-12, "{}: {} against {by_hand}", case.name, norms[s]);
        }
    }
}

#[test]
fn a_residuals_weight_is_a_factor() {
    let grid = Grid::unit(4, 4);
    let fields: [String; 1] = ["p".into()];
    let values = |weight: f64| {
        let part = ResidualConfig { formula: "p^2 - x".into(), region: Region::Interior, weight };
        let config = constraint_config(&["p"], Residuals::Many(vec![part]), Scheme::OneSided2, Norm::L2);
        let constraint = SoftConstraint::new(&config, &fields, &grid, &Units::identity(1)).unwrap();
        constraint.residual_values(&[Stream::new(1, Purpose::Metric, 0).normals(16)]).concat()
    };
    assert_eq!(values(1.0).len(), 4);
    assert_eq!(values(-3.0), values(1.0).iter().map(|v| -3.0 * v).collect::<Vec<_>>());
}

#[test]
fn the_constraints_gradient_matches_finite_differences_under_every_norm() {
    for case in cases() {
        let h = 1e-6;
        // Fields away from the kinks of |R| and |p|, or a difference would step over one.
        let smooth = |sample: &Vec<f64>| {
            let fields = case.physical(sample);
            let residuals = case.constraint.residual_values(&fields).concat();
            fields[0].iter().chain(&residuals).all(|v| v.abs() > 5e-4)
        };
        let sample = (0..1_000).map(|i| random_fields(&case.grid, i)).find(smooth).expect("smooth fields");
        let (norm, gradient) = case.constraint.norm_and_gradient(&field_batch(sample.clone(), case.shape(), &cpu()));
        assert!((to_vec_f64(norm)[0] / case.norm_by_hand(&sample) - 1.0).abs() < 1e-12, "{}", case.name);
        let gradient = to_vec_f64(gradient);
        // One batch with every entry moved up and down.
        let moved = (0..sample.len()).flat_map(|i| [h, -h].map(|step| (i, step))).flat_map(|(i, step)| {
            let mut moved = sample.clone();
            moved[i] += step;
            moved
        });
        let norms = to_vec_f64(case.constraint.norm(field_batch(moved.collect(), case.shape(), &cpu())));
        let size = gradient.iter().fold(0.0f64, |m, g| m.max(g.abs()));
        assert!(size > 0.0, "{}", case.name);
        for (i, (g, pair)) in gradient.iter().zip(norms.chunks_exact(2)).enumerate() {
            let difference = (pair[0] - pair[1]) / (2.0 * h);
            assert!((g + difference).abs() < 2e-7 * size, "{} at {i}: {g} against {}", case.name, -difference);
        }
        // The field that the constraint does not name gets no push.
        let n = case.grid.len();
        assert!(gradient[n..2 * n].iter().all(|&g| g == 0.0));
    }
}

// --------------------------------------------------------------------------------------------------------- models

/// A model of p and K on a 6×6 grid with the Darcy equation as its constraint.
fn darcy_blueprint(scd: Option<ScdConfig>, norm: Norm) -> Blueprint {
    let mut config = Config::default();
    config.data.sigma_data = SigmaData::Number(0.5);
    config.denoiser.backbone = BackboneConfig::Mlp { hidden: 24 };
    config.denoiser.scd = scd;
    config.train.seed = 4;
    let residual = Residuals::One("K*laplacian(p) + dot(grad(K), grad(p)) + 1".into());
    config.constraint = Some(constraint_config(&["p", "K"], residual, Scheme::OneSided2, norm));
    let data = DataSpec {
        fields: vec!["p".into(), "K".into()],
        grid: Grid { x: [0.0, 5.0], y: [0.0, 5.0], ..Grid::unit(6, 6) },
        units: Units { mean: vec![0.1, 1.2], scale: vec![0.8, 0.6] },
        floors: BTreeMap::new(),
    };
    Blueprint { config, data }
}

/// A model of points with the unit circle as its constraint.
fn point_blueprint(scd: Option<ScdConfig>) -> Blueprint {
    let mut config = Config::default();
    config.data.sigma_data = SigmaData::Number(0.7);
    config.denoiser.backbone = BackboneConfig::Mlp { hidden: 128 };
    config.denoiser.scd = scd;
    let residual = Residuals::One("(sqrt(x^2 + y^2) - 1)^2".into());
    config.constraint = Some(constraint_config(&["x", "y"], residual, Scheme::OneSided2, Norm::L1Sum));
    let data = DataSpec {
        fields: vec!["x".into(), "y".into()],
        grid: Grid::point(),
        units: Units::identity(2),
        floors: BTreeMap::new(),
    };
    Blueprint { config, data }
}

/// PIDM's own network: x0 predicted from the index of a noise level.
fn level_blueprint(levels: usize) -> Blueprint {
    let mut blueprint = point_blueprint(None);
    blueprint.config.denoiser.precondition = PreconditionKind::Ddpm;
    blueprint.config.denoiser.backbone = BackboneConfig::LevelMlp { hidden: 128, levels };
    blueprint
}

fn scd(scale: Scale) -> ScdConfig {
    ScdConfig { scale, lambda: Lambda::Number(0.7), ..ScdConfig::default() }
}

/// Gives γ's last layer values of about `size`, so that γ is not zero.
fn wake_gamma(model: &mut Model, size: f32) {
    let mut stream = Stream::new(8, Purpose::Metric, 0);
    model.denoiser.visit("", &mut |name, parameter| {
        if name.starts_with("gamma.last.") {
            let shift = if name.ends_with("bias") { 1.0 } else { 0.0 };
            let values = parameter.values().into_iter().map(|_| size * (shift + 0.3 * stream.normal() as f32));
            parameter.set(values.collect());
        }
    });
}

/// The training loss of a model and its gradient by base weight, if wanted.
struct LossProbe {
    model: Model,
    objective: Objective,
    clean: Vec<f64>,
    noise: Vec<f64>,
    sigma: Vec<f64>,
}

impl LossProbe {
    fn new(scd: ScdConfig, norm: Norm, gamma: f32) -> Self {
        let blueprint = darcy_blueprint(Some(scd), norm);
        let mut model = blueprint.build(&cpu().autodiff()).unwrap();
        wake_gamma(&mut model, gamma);
        let sigma = vec![0.08, 0.3, 0.9, 2.0];
        let size = 4 * 72;
        let clean = Stream::new(2, Purpose::Metric, 1).normals(size).into_iter().map(|v| 0.5 * v).collect();
        let noise = Stream::new(2, Purpose::Metric, 2).normals(size);
        Self { model, objective: Objective::default(), clean, noise, sigma }
    }

    /// The loss in f64 around the f32 network.
    fn loss(&self) -> Tensor<1> {
        let field = |values: &Vec<f64>| field_batch(values.clone(), self.model.shape, &cpu());
        let Model { denoiser, constraint, sigma_data, .. } = &self.model;
        let (clean, noise) = (field(&self.clean), field(&self.noise));
        self.objective.loss(&**denoiser, constraint.as_deref(), clean, noise, &self.sigma, *sigma_data).total()
    }

    /// The gradient by all weights of the base denoiser.
    fn gradient(&mut self) -> Vec<Vec<f32>> {
        let mut gradients = self.loss().backward();
        let mut all = Vec::new();
        self.model.denoiser.visit("", &mut |name, parameter| {
            if !name.starts_with("gamma.") {
                all.push(parameter.take_gradient(&mut gradients).expect("every base weight matters"));
            }
        });
        all
    }

    /// The loss with base weights moved by `step` along `direction`.
    fn loss_at(&mut self, direction: &[Vec<f32>], step: f32) -> f64 {
        let mut moves = direction.iter();
        let mut before = Vec::new();
        self.model.denoiser.visit("", &mut |name, parameter| {
            if !name.starts_with("gamma.") {
                let values = parameter.values();
                let moved = values.iter().zip(moves.next().unwrap()).map(|(v, d)| v + step * d).collect();
                parameter.set(moved);
                before.push(values);
            }
        });
        let loss = to_vec_f64(self.loss())[0];
        let mut old = before.into_iter();
        self.model.denoiser.visit("", &mut |name, parameter| {
            if !name.starts_with("gamma.") {
                parameter.set(old.next().unwrap());
            }
        });
        loss
    }
}

/// Slopes of the loss along some directions: from its recorded gradient, and from finite differences.
fn slopes(probe: &mut LossProbe) -> Vec<(f64, f64)> {
    let gradient = probe.gradient();
    let mut stream = Stream::new(9, Purpose::Metric, 0);
    (0..4)
        .map(|_| {
            // Random, but leaning along the gradient: no direction has a slope near zero.
            let direction: Vec<Vec<f32>> =
                gradient.iter().map(|g| g.iter().map(|v| v * (1.0 + stream.normal() as f32)).collect()).collect();
            let pairs = || direction.iter().flatten().zip(gradient.iter().flatten());
            let length = pairs().map(|(d, _)| f64::from(*d).powi(2)).sum::<f64>().sqrt();
            let recorded = pairs().map(|(d, g)| f64::from(*d) * f64::from(*g)).sum::<f64>() / length;
            let mut difference = |step: f64| {
                let h = (step / length) as f32;
                (probe.loss_at(&direction, h) - probe.loss_at(&direction, -h)) / (2.0 * f64::from(h) * length)
            };
            // Richardson: the error of order h² cancels.
            let (coarse, fine) = (difference(4e-3), difference(2e-3));
            (recorded, (4.0 * fine - coarse) / 3.0)
        })
        .collect()
}

#[test]
fn the_training_gradient_goes_through_the_constraints_gradient() {
    // The Darcy residual is bilinear in (p, K): its gradient depends on the base estimate, and training must see that.
    let cases = [
        (Scale::Plain, Damping::Exponential, Norm::L2, 0.2),
        (Scale::Paper, Damping::Exponential, Norm::L2, 0.5),
        (Scale::Plain, Damping::GradientNorm, Norm::HalfSquares, 150.0),
        (Scale::Unit, Damping::Exponential, Norm::HalfSquares, 1.0),
        (Scale::Polyak, Damping::Exponential, Norm::L2, 2.0),
        (Scale::Polyak, Damping::Exponential, Norm::HalfSquares, 4.0),
    ];
    for (scale, damping, norm, gamma) in cases {
        for input in [GammaInput::Noisy, GammaInput::Denoised, GammaInput::Features] {
            let config = ScdConfig { damping, input, output: GammaOutput::Channel, ..scd(scale) };
            for (recorded, difference) in slopes(&mut LossProbe::new(config.clone(), norm, gamma)) {
                let error = (recorded / difference - 1.0).abs();
                assert!(error < 1e-3, "{scale:?} {damping:?} {norm:?} {input:?}: {recorded} against {difference}");
            }
            let detached = ScdConfig { detach: true, ..config };
            let errors = slopes(&mut LossProbe::new(detached, norm, gamma));
            let mean = errors.iter().map(|(r, d)| (r / d - 1.0).abs()).sum::<f64>() / errors.len() as f64;
            assert!(mean > 2e-2, "{scale:?} {damping:?} {norm:?} {input:?}: detached, off by {mean} only");
        }
    }
}

#[test]
fn a_fresh_softly_constrained_model_is_its_base_denoiser_bit_for_bit() {
    for scale in [Scale::Paper, Scale::Plain, Scale::Unit, Scale::Polyak, Scale::Jacobi] {
        for darcy in [true, false] {
            let build = |scd: Option<ScdConfig>| {
                let blueprint = if darcy { darcy_blueprint(scd, Norm::L1Mean) } else { point_blueprint(scd) };
                blueprint.build(&cpu()).unwrap()
            };
            let (base, constrained) = (build(None), build(Some(scd(scale))));
            let size: usize = base.shape.iter().product();
            for sigma in [0.002, 0.05, 0.7, 80.0] {
                let values = Stream::new(6, Purpose::Metric, 0).normals(5 * size);
                let x = field_batch(values, base.shape, &cpu()) * (1.0 + sigma);
                for dtype in [DType::F32, DType::F64] {
                    let denoise =
                        |model: &Model| to_vec_f64(model.denoiser.denoise(x.clone().cast(dtype), &[sigma; 5]));
                    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
                    assert_eq!(bits(denoise(&base)), bits(denoise(&constrained)), "{scale:?} {sigma}");
                }
            }
        }
    }
}

#[test]
fn a_sample_does_not_depend_on_its_batch_or_on_threads() {
    let churn = Churn { amount: 4.0, ..Churn::default() };
    let heun = Sampler { steps: 8, ..Sampler::default() };
    let ancestral = Sampler { solver: Solver::Ancestral, steps: 12, ..Sampler::default() };
    let guided = Sampler { guidance: Some(Guidance { scale: 0.1 }), ..heun.clone() };
    let features = ScdConfig { input: GammaInput::Features, output: GammaOutput::Channel, ..scd(Scale::Jacobi) };
    let cases = [
        ("vanilla", point_blueprint(None), heun.clone()),
        ("scd", point_blueprint(Some(scd(Scale::Plain))), heun.clone()),
        ("scd with churn", point_blueprint(Some(scd(Scale::Unit))), Sampler { churn, ..heun.clone() }),
        ("guided", point_blueprint(None), guided),
        ("darcy", darcy_blueprint(Some(scd(Scale::Polyak)), Norm::L1Mean), heun.clone()),
        ("jacobi", darcy_blueprint(Some(features), Norm::L1Mean), heun),
        ("levels", level_blueprint(12), ancestral),
    ];
    for (name, blueprint, sampler) in cases {
        let mut model = blueprint.build(&cpu()).unwrap();
        wake_gamma(&mut model, 0.3);
        let draw = |indices: &[u64]| -> Vec<u64> {
            let Model { denoiser, constraint, shape, .. } = &model;
            let drawn = sampler.sample(&**denoiser, constraint.as_deref(), *shape, 7, indices, &cpu(), &mut Unobserved);
            let values = to_vec_f64(drawn);
            assert!(values.iter().all(|v| v.is_finite()), "{name}");
            values.into_iter().map(f64::to_bits).collect()
        };
        let all: Vec<u64> = (0..20).collect();
        let many: Vec<u64> = (0..300).collect();
        let in_one = draw(&all);
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
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

// ---------------------------------------------------------------------------------------- guidance and regulariser

fn point_constraint(formula: &str, norm: Norm) -> SoftConstraint {
    let config = constraint_config(&["x", "y"], Residuals::One(formula.into()), Scheme::OneSided2, norm);
    SoftConstraint::new(&config, &["x".into(), "y".into()], &Grid::point(), &Units::identity(2)).unwrap()
}

#[test]
fn guidance_pushes_every_sample_along_its_own_gradient() {
    let denoiser = Shrink { variance: 0.5 };
    let (sigma, scale) = (2.0, 0.3);
    let sampler = Sampler {
        solver: Solver::Euler,
        steps: 1,
        sigma_max: sigma,
        guidance: Some(Guidance { scale }),
        ..Sampler::default()
    };
    let latents = Stream::new(11, Purpose::Metric, 0).normals(10);
    let k = denoiser.factor(sigma);
    for norm in [Norm::HalfSquares, Norm::L2] {
        let constraint = point_constraint("x - 2*y + 0.5", norm);
        let run = |latents: &[f64]| {
            let start = field_batch(latents.to_vec(), POINT, &cpu());
            let mut no_noise = || -> Tensor<4> { unreachable!("no churn, no noise") };
            to_vec_f64(sampler.sample_from(start, &denoiser, Some(&constraint), &mut no_noise, &mut Unobserved))
        };
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

#[test]
fn the_regulariser_is_what_its_formula_says() {
    let (denoiser, sigma_data) = (Shrink { variance: 0.8 }, 0.6);
    let constraint = point_constraint("x^2 + y^2 - 1", Norm::HalfSquares);
    // Levels 10, 50 and 1 of the cosine schedule with 100 levels: σ and variance of x_{t−1} given x_t and x0.
    let levels = [(1.8555e-1, 4.637_085e-3), (1.0445, 3.060_437e-2), (4.1840e-2, 4.034_886e-4)];
    let sigma = levels.map(|l| l.0);
    let last = 2.5133e-2;
    let clean = Stream::new(21, Purpose::Metric, 0).normals(6);
    let noise = Stream::new(21, Purpose::Metric, 1).normals(6);
    let edm = |s: f64| (s * s + sigma_data * sigma_data) / (s * sigma_data).powi(2);
    let min_snr = |s: f64| (1.0 / (s * s)).min(5.0);
    let mut bounded = 0;
    for (weight, data_weight) in [(Weight::Edm, &edm as &dyn Fn(f64) -> f64), (Weight::MinSnr { max: 5.0 }, &min_snr)] {
        for schedule in [LambdaSchedule::Data, LambdaSchedule::Constant, LambdaSchedule::PosteriorVariance] {
            for estimation in [Estimation::Mean, Estimation::Sample] {
                for clamp in [None, Some(2.0)] {
                    let regulariser = Regulariser { weight: 0.3, schedule, estimation, clamp };
                    let objective = Objective { weight, regulariser: Some(regulariser), ..Objective::default() };
                    let field = |values: &[f64]| field_batch(values.to_vec(), POINT, &cpu());
                    let (x0, z) = (field(&clean), field(&noise));
                    let loss = objective.loss(&denoiser, Some(&constraint), x0, z, &sigma, sigma_data);
                    let (mut data, mut residual) = (0.0, 0.0);
                    for (i, (s, variance)) in levels.into_iter().enumerate() {
                        let at = |v: &[f64]| [v[2 * i], v[2 * i + 1]];
                        let (x0, z) = (at(&clean), at(&noise));
                        let x = [x0[0] + s * z[0], x0[1] + s * z[1]];
                        let estimate = x.map(|v| denoiser.factor(s) * v);
                        let error2 = (estimate[0] - x0[0]).powi(2) + (estimate[1] - x0[1]).powi(2);
                        data += data_weight(s) * error2 / 6.0;
                        let judged = match estimation {
                            Estimation::Mean => estimate,
                            Estimation::Sample => {
                                [0, 1].map(|c| denoiser.factor(last) * (estimate[c] + last / s * (x[c] - estimate[c])))
                            }
                        };
                        let lambda = match schedule {
                            LambdaSchedule::Data => data_weight(s),
                            LambdaSchedule::Constant => 1.0,
                            LambdaSchedule::PosteriorVariance => 1.0 / variance,
                        };
                        let r = judged[0].powi(2) + judged[1].powi(2) - 1.0;
                        let term = lambda * 0.5 * r * r;
                        bounded += usize::from(clamp.is_some_and(|c| term > c));
                        residual += 0.3 * clamp.map_or(term, |c| term.min(c)) / 3.0;
                    }
                    let found = to_vec_f64(loss.data.clone())[0];
                    assert!((found / data - 1.0).abs() < 1e-12, "{found} against {data}");
                    let found = to_vec_f64(loss.residual.clone().unwrap())[0];
                    // The table above has five digits.
                    assert!((found / residual - 1.0).abs() < 3e-5, "{regulariser:?}: {found} against {residual}");
                    let total = to_vec_f64(loss.total())[0];
                    assert!((total / (data + residual) - 1.0).abs() < 3e-5);
                }
            }
        }
    }
    assert!(bounded > 0, "the bound was never reached");
}

/// D(x) = x.
struct Identity;

impl Parameters for Identity {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
}

impl Denoiser for Identity {
    fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
        x
    }
}

#[test]
fn automatic_lambda_makes_the_correction_as_large_as_the_data() {
    let shape = [2, 8, 8];
    let names: [String; 2] = ["p".into(), "K".into()];
    let residual = Residuals::One("K*laplacian(p) + dot(grad(K), grad(p)) + 1".into());
    let config = constraint_config(&["p", "K"], residual, Scheme::OneSided2, Norm::L1Sum);
    let constraint = Arc::new(SoftConstraint::new(&config, &names, &Grid::unit(8, 8), &Units::identity(2)).unwrap());
    for sigma_data in [0.5, 1.3] {
        for scale in [Scale::Plain, Scale::Paper] {
            let lambda = automatic_lambda(&constraint, scale, shape, sigma_data);
            assert!(lambda > 0.0);
            let scd = ScdConfig::default();
            let gamma = Gamma::new(&scd, shape, &mut Stream::new(0, Purpose::Weights, 1), &cpu()).unwrap();
            let gradient = GradientDirection::new(constraint.clone(), scale, Damping::Exponential, lambda);
            let base = Box::new(Identity);
            let mut model =
                SoftlyConstrained::new(base, constraint.clone(), vec![Box::new(gradient)], gamma, scd, sigma_data);
            model.visit("", &mut |name, parameter| {
                if name == "gamma.last.bias" {
                    parameter.set(vec![1.0]);
                }
            });
            // The base's output is white noise of the data's size, drawn afresh.
            let n = 400;
            let noise: Vec<f64> = Stream::new(31, Purpose::Metric, 0).normals(n * 128);
            let x = field_batch(noise.iter().map(|v| v * sigma_data).collect(), shape, &cpu());
            let correction = model.denoise(x.clone(), &vec![sigma_data; n]) - x;
            let rms = to_vec_f64(correction.clone() * correction).iter().sum::<f64>() / (n * 128) as f64;
            assert!((rms.sqrt() / sigma_data - 1.0).abs() < 0.03, "{scale:?}: {} of {sigma_data}", rms.sqrt());
        }
    }
    // A constraint too weak for that is not blown up.
    let weak = point_constraint("0.001*x + 0.001*y", Norm::L1Sum);
    assert_eq!(automatic_lambda(&weak, Scale::Plain, POINT, 0.5), 0.0);
}
