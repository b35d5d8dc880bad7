//! The soft constraint on top of a denoiser: where it starts, how training differentiates it, sums of several
//! directions, and what a configuration may ask for.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use softly::random::{Purpose, Stream};
use softly::tensors::{per_sample, to_vec_f64};
use softly::units::Units;
use softly::{
    Damping, Direction, DirectionKind, GammaInput, GammaOutput, Model, Norm, Objective, Parameters, Precondition,
    Scale, ScdConfig,
};
use softly_pde::grid::Grid;

use crate::common::denoisers::Identity;
use crate::common::probe::loss_of;
use crate::common::{
    bits, compiled, configured, cpu, darcy_blueprint, denoised, field, law, new_training, normals, one,
    point_blueprint, scd, soft, try_configured, wake_gamma,
};

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
        let clean = normals(2, 1, size).into_iter().map(|v| 0.5 * v).collect();
        let noise = normals(2, 2, size);
        Self { model, objective: Objective::default(), clean, noise, sigma }
    }

    /// The loss in f64 around the f32 network.
    fn loss(&self) -> Tensor<1> {
        loss_of(&self.model, &self.objective, &self.clean, &self.noise, &self.sigma).total()
    }

    /// The gradient by all weights of the base denoiser.
    fn gradient(&mut self) -> Vec<Vec<f32>> {
        let mut gradients = self.loss().backward();
        let mut all = Vec::new();
        self.model.visit("", &mut |name, parameter| {
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
        self.model.visit("", &mut |name, parameter| {
            if !name.starts_with("gamma.") {
                let values = parameter.values();
                let moved = values.iter().zip(moves.next().unwrap()).map(|(v, d)| v + step * d).collect();
                parameter.set(moved);
                before.push(values);
            }
        });
        let loss = to_vec_f64(self.loss())[0];
        let mut old = before.into_iter();
        self.model.visit("", &mut |name, parameter| {
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
                let x = field(&normals(6, 0, 5 * size), base.shape) * (1.0 + sigma);
                for dtype in [DType::F32, DType::F64] {
                    let found = |model: &Model| bits(denoised(model, x.clone().cast(dtype), &[sigma; 5]));
                    assert_eq!(found(&base), found(&constrained), "{scale:?} {sigma}");
                }
            }
        }
    }
}

/// v(D) = factor · D · c_out.
struct Along(f64);

impl Direction for Along {
    fn correction_in(&self, _: DType, base: &Tensor<4>, _: &[f64], coefficients: &[Precondition]) -> Tensor<4> {
        base.clone() * per_sample(coefficients.iter().map(|c| self.0 * c.out), base)
    }
}

#[test]
fn several_directions_add_up_each_with_its_own_weights() {
    let (shape, size, sigma) = ([2, 6, 5], 60, 0.3);
    let config = law(&["p", "K"], one("p*K"), Norm::L1Mean);
    let constraint = Arc::new(compiled(&config, &Grid::unit(6, 5), &Units::identity(2)));
    let directions = vec![DirectionKind::Gradient, DirectionKind::Spectral, DirectionKind::Newton];
    for output in [GammaOutput::Scalar, GammaOutput::Channel, GammaOutput::Pixel] {
        let config = ScdConfig { directions: directions.clone(), output, ..ScdConfig::default() };
        let along: Vec<Box<dyn Direction>> = vec![Box::new(Along(1.0)), Box::new(Along(10.0)), Box::new(Along(100.0))];
        let mut model = soft(Identity, &constraint, along, shape, config);
        let mut weights = Vec::new();
        model.visit("", &mut |name, parameter| {
            if name == "gamma.last.bias" {
                weights = (0..parameter.values().len()).map(|i| i as f32 + 1.0).collect();
                parameter.set(weights.clone());
            }
        });
        let per = weights.len() / 3;
        let values = normals(3, 5, size);
        let found = denoised(&model, field(&values, shape), &[sigma]);
        let out = Precondition::new(sigma, 0.5).out;
        for (i, (v, d)) in values.iter().zip(found).enumerate() {
            let place = i * per / size;
            let sum: f64 = [1.0, 10.0, 100.0]
                .into_iter()
                .enumerate()
                .map(|(k, factor)| f64::from(weights[k * per + place]) * factor)
                .sum();
            assert!((d - v * (1.0 + sum * out)).abs() < 1e-9 * d.abs(), "{output:?} {i}");
        }
    }
}

#[test]
fn gammas_learning_rate_is_a_multiple_of_the_runs() {
    let settings = ["denoiser.scd={scale='plain', rate=0.1}", "data.count=16", "data.valid=1"];
    let slots = new_training(&configured("circle-demo", &settings)).unwrap().optimizer.slots;
    assert!(slots.iter().any(|s| s.name.starts_with("gamma.")) && slots.iter().any(|s| s.rate == 1.0));
    assert!(slots.iter().all(|s| s.rate == if s.name.starts_with("gamma.") { 0.1 } else { 1.0 }));
}

#[test]
fn impossible_directions_are_refused_by_name() {
    let cases = [
        ("denoiser.scd={directions=['gradiant']}", "did you mean `gradient`?"),
        ("denoiser.scd={directions=[]}", "denoiser.scd.directions"),
        ("denoiser.scd={directions=['gradient', 'gradient']}", "`gradient` is named twice"),
        ("denoiser.scd={directions=['newton'], solve_for=[]}", "denoiser.scd.solve_for: expected at least one field"),
        ("denoiser.scd={solve_for='k'}", "no field `k`; it has p, K"),
        ("denoiser.scd={solve_for=['p', 'p']}", "`p` is named twice"),
        ("denoiser.scd={solve_for=3}", "expected the name of a field, or a list of names"),
        ("denoiser.scd={scale='jakobi'}", "did you mean `jacobi`?"),
        ("denoiser.scd={input='feature'}", "did you mean `features`?"),
        ("denoiser.scd={rate=0.0}", "denoiser.scd.rate"),
    ];
    for (setting, expected) in cases {
        let error = try_configured("darcy-demo", &[setting]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(expected), "{setting}: {error}");
    }
}
