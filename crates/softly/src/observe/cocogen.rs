//! CoCoGen's corrections: the last steps of a sampler, and some more on the finished sample, descend along the equation.
//!
//! p ← p − ε g/max|g| with g = ∇ₚ Σ R², for the first field p of the equation alone; the others, its coefficients, stay. ε is 2e-3 in the
//! last steps and 2e-4 in the extra ones, as published. Readings are put into every estimate, as in inpainting (the projection of
//! [`crate::observe::projection`]), and taken for exact. The published g is 2R times the diagonal of ∂R/∂p; here it is the true gradient.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::{at_least_one, within};
use crate::constraint::SoftConstraint;
use crate::error::Result;
use crate::observe::conditioning::{Condition, Given};
use crate::observe::projection::Projection;
use crate::sampler::{Observer, Sampler};

/// Sensors put into the estimate, and corrections by the equation at the end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CoCoGen {
    /// Steps, the last ones, after which the sample is corrected once.
    pub last_steps: usize,
    /// ε in these, in normalised units.
    pub rate: f64,
    /// Corrections of the finished sample.
    pub extra: usize,
    /// ε in these.
    pub extra_rate: f64,
    /// Iterations of the projection's solver.
    pub iterations: usize,
}

impl Default for CoCoGen {
    fn default() -> Self {
        Self { last_steps: 10, rate: 2e-3, extra: 10, extra_rate: 2e-4, iterations: 50 }
    }
}

impl Condition for CoCoGen {
    fn check(&self) -> Result<()> {
        at_least_one("conditioning.iterations", self.iterations as u64)?;
        within("conditioning.rate", self.rate, 0.0..=f64::MAX, "a number ≥ 0")?;
        within("conditioning.extra_rate", self.extra_rate, 0.0..=f64::MAX, "a number ≥ 0")
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
        let correct =
            |x: Tensor<4>, rate: f64| given.constraint.map_or(x.clone(), |equation| descended(equation, x, rate));
        let levels = sampler.levels();
        let steps = levels.len() - 1;
        let n = latents.dims()[0];
        let mut x = latents.clone() * levels[0];
        for (i, pair) in levels.windows(2).enumerate() {
            let (sigma, next) = (pair[0], pair[1]);
            let estimate = given.denoiser.denoise(x, &vec![sigma; n]).without_autodiff();
            x = onto.step(estimate.clone()) + latents.clone() * next;
            if i + self.last_steps >= steps {
                x = correct(x, self.rate);
            }
            observer.step(i + 1, steps, sigma, &estimate, &x);
            if observer.stopped() {
                break;
            }
        }
        (0..self.extra).fold(x, |x, _| correct(x, self.extra_rate))
    }
}

/// `x` `[N, C, H, W]` with its first constrained field moved by `rate` against the gradient of Σ R², over its largest number.
fn descended(equation: &SoftConstraint, x: Tensor<4>, rate: f64) -> Tensor<4> {
    let [n, c, h, w] = x.dims();
    let system = equation.linearised_system(0..equation.equations(), &x, |_| {});
    let gradient = system.transposed(&system.residual());
    let channel = equation.fields[0].channel;
    let own = gradient.narrow(1, channel, 1);
    let largest = own.clone().abs().reshape([n, h * w]).max_dim(1).clamp_min(1e-30).reshape([n, 1, 1, 1]);
    let step = own / largest * rate;
    let parts = (0..c).map(|k| {
        let field = x.clone().narrow(1, k, 1);
        if k == channel { field - step.clone() } else { field }
    });
    Tensor::cat(parts.collect(), 1)
}
