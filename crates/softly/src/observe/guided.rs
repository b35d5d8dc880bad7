//! Heun's steps with a push: after each step x ← x − ∇ₓ loss(D), through the network.

use burn::tensor::Tensor;

use crate::checks::within;
use crate::error::Result;
use crate::observe::conditioning::{Condition, Given};
use crate::sampler::{Observer, Sampler};
use crate::tensors::constant;

/// Where a sampler is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stage {
    /// Place of the step, from 0.
    pub index: usize,
    /// Number of steps.
    pub steps: usize,
    /// Noise level at the step's start.
    pub sigma: f64,
}

impl Stage {
    /// Whether no step follows.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.steps
    }
}

/// A method of guidance by measurements.
pub(crate) trait Guide {
    /// Whether the loss is of the estimate after Heun's second network call, through both calls, or of the one at the step's start.
    const THROUGH_BOTH: bool;

    /// The weights of the sensors and of the equation.
    fn weights(&self) -> [f64; 2];

    /// The loss of every sample's estimate `[N, C, H, W]`, `[N]`, whose gradient pushes; `None` for no push in this step.
    fn loss(&self, given: Given<'_>, estimate: Tensor<4>, stage: Stage) -> Option<Tensor<1>>;
}

impl<G: Guide> Condition for G {
    fn check(&self) -> Result<()> {
        let [scale, equation] = self.weights();
        within("conditioning.scale", scale, 0.0..=f64::MAX, "a number ≥ 0")?;
        within("conditioning.equation", equation, 0.0..=f64::MAX, "a number ≥ 0")
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        _noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        guided(self, given, sampler, latents, observer)
    }
}

/// Samples from `latents` `[N, C, H, W]` by Heun's steps with the guide's pushes.
fn guided<G: Guide>(
    guide: &G,
    given: Given<'_>,
    sampler: &Sampler,
    latents: Tensor<4>,
    observer: &mut dyn Observer,
) -> Tensor<4> {
    let levels = sampler.levels();
    let steps = levels.len() - 1;
    let n = latents.dims()[0];
    let mut x = latents * levels[0];
    for (index, pair) in levels.windows(2).enumerate() {
        let (sigma, next) = (pair[0], pair[1]);
        let stage = Stage { index, steps, sigma };
        let tracked = x.clone().autodiff().require_grad();
        let denoise = |x: Tensor<4>, sigma: f64| given.denoiser.denoise(x, &vec![sigma; n]);
        let estimate = denoise(tracked.clone(), sigma);
        let both = G::THROUGH_BOTH && next > 0.0;
        let plain = |t: &Tensor<4>| t.clone().without_autodiff();
        let (here, first) = if both { (tracked.clone(), estimate.clone()) } else { (x.clone(), plain(&estimate)) };
        let slope = (here.clone() - first) / sigma;
        let euler = here.clone() + slope.clone() * (next - sigma);
        let (judged, stepped) = if next == 0.0 {
            (estimate.clone(), euler)
        } else {
            let second = denoise(euler.clone(), next);
            let there = (euler - second.clone()) / next;
            let stepped = here + (slope + there) * (0.5 * (next - sigma));
            (if both { second } else { estimate.clone() }, stepped)
        };
        let push = guide.loss(given, judged, stage).and_then(|loss| {
            // Summed over samples: each sample's gradient involves its own loss only.
            let mut gradients = loss.sum().backward();
            tracked.grad_remove(&mut gradients)
        });
        x = plain(&stepped);
        if let Some(push) = push {
            x = x - push;
        }
        observer.step(index + 1, steps, sigma, &plain(&estimate), &x);
        if observer.stopped() {
            break;
        }
    }
    x
}

/// ‖misfit‖₂ of each sample over the measurements of each quantity, in normalised units: one `[N]` per quantity.
pub(crate) fn norms(given: Given<'_>, estimate: &Tensor<4>) -> Vec<Tensor<1>> {
    squares(given, estimate).into_iter().map(|(sum, _)| sum.clamp_min(1e-24).sqrt()).collect()
}

/// ‖misfit‖² of each sample over the measurements of each quantity, in normalised units, and their number.
pub(crate) fn squares(given: Given<'_>, estimate: &Tensor<4>) -> Vec<(Tensor<1>, usize)> {
    let misfit = given.observations.normalised_misfit(estimate);
    let [n, _] = misfit.dims();
    let owners: Vec<usize> = given.observations.places().map(|(quantity, _)| quantity).collect();
    let of = |quantity: usize| {
        let own: Vec<f64> = (0..owners.len()).filter(|&k| owners[k] == quantity).map(|k| k as f64).collect();
        let count = own.len();
        let own = constant::<1>(own, [count], &misfit.device(), misfit.dtype()).int();
        let chosen = misfit.clone().select(1, own);
        ((chosen.clone() * chosen).sum_dim(1).reshape([n]), count)
    };
    (0..given.observations.names().len()).map(of).collect()
}
