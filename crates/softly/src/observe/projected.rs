//! Samplers that project: the estimate is moved onto the measurements, then the noise of the next level is put back.
//!
//! x ← x̂' + σ' ε, with x̂' the projected estimate and ε the noise that the sample began with. ECI projects onto the sensors alone, mixing
//! several times at each level before it goes on. PCFM takes a Gauss–Newton step of sensors and equation together,
//! u − Jᵀ(JJᵀ + 1e-6)⁻¹ h(u), and more of them at the end; its gradient steps on a relaxed penalty between levels are left out. PPR
//! (predict, project, renoise) takes the same steps and a fresh ε at every level. All take readings for exact: their noise does not
//! enter.

use burn::tensor::{Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::at_least_one;
use crate::constraint::SoftConstraint;
use crate::constraint::linearised::LinearisedSystem;
use crate::direction::krylov::conjugate_gradients;
use crate::error::Result;
use crate::observe::conditioning::{Condition, Given};
use crate::observe::observations::Observations;
use crate::sampler::{Observer, Sampler};

/// Extrapolation, correction, interpolation: exact sensors, no equation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Eci {
    /// How often the estimate is projected and its noise put back at each level.
    pub mixing: usize,
    /// Iterations of the projection's solver.
    pub iterations: usize,
}

/// Physics-constrained flow matching: a Gauss–Newton step of sensors and equation at each level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pcfm {
    /// Gauss–Newton steps at each level.
    pub newton_steps: usize,
    /// Gauss–Newton steps on the finished sample.
    pub final_steps: usize,
    /// Whether the equation counts besides the sensors.
    pub equation: bool,
    /// Iterations of each step's solver.
    pub iterations: usize,
}

/// Predict, project, renoise: Gauss–Newton steps of sensors and equation at each level, then fresh noise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ppr {
    /// Gauss–Newton steps at each level.
    pub newton_steps: usize,
    /// Whether the equation counts besides the sensors.
    pub equation: bool,
    /// Iterations of each step's solver.
    pub iterations: usize,
}

impl Default for Ppr {
    fn default() -> Self {
        Self { newton_steps: 1, equation: true, iterations: 50 }
    }
}

impl Default for Eci {
    fn default() -> Self {
        Self { mixing: 5, iterations: 50 }
    }
}

impl Default for Pcfm {
    fn default() -> Self {
        Self { newton_steps: 1, final_steps: 3, equation: true, iterations: 50 }
    }
}

/// What keeps J Jᵀ away from zero.
const RIDGE: f64 = 1e-6;

impl Condition for Eci {
    fn check(&self) -> Result<()> {
        at_least_one("conditioning.mixing", self.mixing as u64)?;
        at_least_one("conditioning.iterations", self.iterations as u64)
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        _noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let onto = Projection::new(given, false, self.iterations);
        let kept = &mut || latents.clone();
        sample(given, sampler, latents.clone(), kept, observer, self.mixing, |estimate| onto.step(estimate))
    }
}

impl Condition for Pcfm {
    fn check(&self) -> Result<()> {
        at_least_one("conditioning.newton_steps", self.newton_steps as u64)?;
        at_least_one("conditioning.iterations", self.iterations as u64)
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        _noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let onto = Projection::new(given, self.equation, self.iterations);
        let kept = &mut || latents.clone();
        let project = |estimate| onto.steps(estimate, self.newton_steps);
        let sampled = sample(given, sampler, latents.clone(), kept, observer, 1, project);
        onto.steps(sampled, self.final_steps)
    }
}

impl Condition for Ppr {
    fn check(&self) -> Result<()> {
        at_least_one("conditioning.newton_steps", self.newton_steps as u64)?;
        at_least_one("conditioning.iterations", self.iterations as u64)
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let onto = Projection::new(given, self.equation, self.iterations);
        sample(given, sampler, latents, noise, observer, 1, |estimate| onto.steps(estimate, self.newton_steps))
    }
}

/// Samples from `latents` `[N, C, H, W]`: at every level the projected estimate, then the next level's share of `noise`.
pub(crate) fn sample(
    given: Given<'_>,
    sampler: &Sampler,
    latents: Tensor<4>,
    noise: &mut dyn FnMut() -> Tensor<4>,
    observer: &mut dyn Observer,
    mixing: usize,
    project: impl Fn(Tensor<4>) -> Tensor<4>,
) -> Tensor<4> {
    let levels = sampler.levels();
    let n = latents.dims()[0];
    let mut x = latents * levels[0];
    for (i, pair) in levels.windows(2).enumerate() {
        let (sigma, next) = (pair[0], pair[1]);
        for round in 1..=mixing {
            let estimate = given.denoiser.denoise(x.clone(), &vec![sigma; n]).without_autodiff();
            let projected = project(estimate.clone());
            x = projected + noise() * if round == mixing { next } else { sigma };
            if round == mixing {
                observer.step(i + 1, levels.len() - 1, sigma, &estimate, &x);
            }
        }
        if observer.stopped() {
            break;
        }
    }
    x
}

/// The surface of fields that agree with sensors and equation.
pub(crate) struct Projection<'a> {
    observations: &'a Observations,
    equation: Option<&'a SoftConstraint>,
    iterations: usize,
}

impl<'a> Projection<'a> {
    /// Onto the sensors that are `given` and, if wanted, the equation, by so many iterations of a solver.
    pub fn new(given: Given<'a>, equation: bool, iterations: usize) -> Self {
        Self { observations: given.observations, equation: given.constraint.filter(|_| equation), iterations }
    }

    /// So many Gauss–Newton steps from `x` `[N, C, H, W]`.
    pub fn steps(&self, x: Tensor<4>, count: usize) -> Tensor<4> {
        (0..count).fold(x, |x, _| self.step(x))
    }

    /// x − Jᵀ(JJᵀ + 1e-6)⁻¹ h(x), `[N, C, H, W]`; h are the sensors' misfits in normalised units and the equation's residuals.
    pub fn step(&self, x: Tensor<4>) -> Tensor<4> {
        let [n, _, rows, cols] = x.dims();
        let sensors = self.observations.linearised(&x);
        let system = self.equation.map(|c| c.linearised_system(0..c.equations(), &x, |_| {}));
        let scales = self.observations.scales();
        let m = scales.len();
        let scales: Tensor<2> = Tensor::from_data(TensorData::new(scales, [1, m]), (&x.device(), x.dtype()));
        let e = self.equation.map_or(0, SoftConstraint::equations);
        let joined = |sensors: Tensor<2>, residual: Option<Tensor<4>>| match residual {
            Some(residual) => Tensor::cat(vec![sensors, residual.reshape([n, e * rows * cols])], 1),
            None => sensors,
        };
        let product = |d: &Tensor<4>| {
            joined(sensors.product(d) / scales.clone(), system.as_ref().map(|system| system.product(d)))
        };
        let transposed = |w: &Tensor<2>| {
            let own = sensors.transposed(&(w.clone().narrow(1, 0, m) / scales.clone()));
            match &system {
                Some(system) => {
                    let rest = w.clone().narrow(1, m, e * rows * cols).reshape([n, e, rows, cols]);
                    own + system.transposed(&rest)
                }
                None => own,
            }
        };
        let misfit = joined(self.observations.normalised_misfit(&x), system.as_ref().map(LinearisedSystem::residual));
        let apply = |w: Tensor<2>| product(&transposed(&w)) + w * RIDGE;
        let iterations = vec![self.iterations; misfit.dims()[0]];
        let weights = conjugate_gradients(misfit, &iterations, apply, |residual| residual);
        x - transposed(&weights)
    }
}
