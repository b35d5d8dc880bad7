//! Two denoisers given measurements in the manner of azula: MMPS, and the Jacobian-free JFPS.
//!
//! MMPS takes Cov[x0 | x] = σ² ∂D/∂x: D' = D + σ² (∂D/∂x)ᵀ Hᵀ w with (S + H σ² (∂D/∂x)ᵀ Hᵀ) w = y − H(D), every product a gradient of the
//! network. JFPS takes a multiple of the identity instead, (1/σd² + 1/σ²)⁻¹, and needs no gradients. Both solve their system by so many
//! iterations of a Krylov method; the published default is 1.

use burn::tensor::{Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::at_least_one;
use crate::denoiser::Denoiser;
use crate::error::Result;
use crate::nn::parameter::{Parameters, Visitor};
use crate::observe::conditioning::{Condition, Given};
use crate::observe::observations::Observations;
use crate::sampler::{Observer, Sampler, Target};

/// Moment matching posterior sampling: the covariance is the denoiser's own Jacobian.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mmps {
    /// Iterations of the solver, each a gradient of the network.
    pub iterations: usize,
}

/// Jacobian-free posterior sampling: the covariance is a multiple of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Jfps {
    /// Iterations of the solver.
    pub iterations: usize,
    /// σd, the standard deviation that fields are taken to have, in normalised units.
    pub sigma_data: f64,
}

impl Default for Mmps {
    fn default() -> Self {
        Self { iterations: 1 }
    }
}

impl Default for Jfps {
    fn default() -> Self {
        Self { iterations: 1, sigma_data: 0.5 }
    }
}

impl Condition for Mmps {
    fn check(&self) -> Result<()> {
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
        let matched = MomentMatched {
            base: given.denoiser,
            observations: given.observations,
            iterations: self.iterations,
            sigma_data: None,
        };
        sampler.sample_from(latents, Target::plain(&matched, given.shape), noise, observer)
    }
}

impl Condition for Jfps {
    fn check(&self) -> Result<()> {
        crate::checks::positive("conditioning.sigma_data", self.sigma_data)?;
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
        let matched = MomentMatched {
            base: given.denoiser,
            observations: given.observations,
            iterations: self.iterations,
            sigma_data: Some(self.sigma_data),
        };
        sampler.sample_from(latents, Target::plain(&matched, given.shape), noise, observer)
    }
}

/// A denoiser given measurements whose covariance is σ² ∂D/∂x, or with a σd a multiple of the identity.
pub struct MomentMatched<'a> {
    /// The denoiser.
    pub base: &'a dyn Denoiser,
    /// The measurements.
    pub observations: &'a Observations,
    /// Iterations of the solver.
    pub iterations: usize,
    /// σd of the identity's multiple; without it the covariance is the Jacobian's.
    pub sigma_data: Option<f64>,
}

impl Parameters for MomentMatched<'_> {
    fn visit(&mut self, _prefix: &str, _visit: &mut Visitor<'_>) {}
}

impl Denoiser for MomentMatched<'_> {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let sigma = sigma.first().copied().unwrap_or(1.0);
        let n = x.dims()[0];
        let levels = vec![sigma; n];
        let plain = |t: Tensor<4>| t.without_autodiff();
        let x = plain(x);
        let at = plain(self.base.denoise(x.clone(), &levels));
        let linearised = self.observations.linearised(&at);
        // Cov·v `[N, C, H, W]`.
        let covariance = |v: Tensor<4>| match self.sigma_data {
            None => {
                // A graph serves one backward pass: the network is called again for each.
                let tracked = x.clone().autodiff().require_grad();
                let again = self.base.denoise(tracked.clone(), &levels);
                let mut gradients = (again * v.clone()).sum().backward();
                tracked.grad_remove(&mut gradients).unwrap_or_else(|| v.zeros_like()) * (sigma * sigma)
            }
            Some(sigma_data) => v * (1.0 / (1.0 / (sigma_data * sigma_data) + 1.0 / (sigma * sigma))),
        };
        let row = |values: Vec<f64>| -> Tensor<2> {
            let shape = [1, values.len()];
            Tensor::from_data(TensorData::new(values, shape), (&at.device(), at.dtype()))
        };
        let variances = row(self.observations.sds().iter().map(|sd| sd * sd).collect());
        let right = row(self.observations.values()) - self.observations.predicted(&at);
        let apply =
            |w: Tensor<2>| w.clone() * variances.clone() + linearised.product(&covariance(linearised.transposed(&w)));
        let solution = least_residual(right, self.iterations, apply);
        let step = covariance(linearised.transposed(&solution));
        at + step
    }
}

/// w with A w ≈ b by generalised conjugate residuals (as GMRES), `[N, M]`; A need not be symmetric.
fn least_residual(right: Tensor<2>, iterations: usize, apply: impl Fn(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    let dot = |a: &Tensor<2>, b: &Tensor<2>| (a.clone() * b.clone()).sum_dim(1);
    let (mut residual, mut solution) = (right.clone(), right.zeros_like());
    let mut past: Vec<(Tensor<2>, Tensor<2>, Tensor<2>)> = Vec::new();
    for _ in 0..iterations {
        let (mut search, mut image) = (residual.clone(), apply(residual.clone()));
        for (old, old_image, square) in &past {
            let overlap = dot(&image, old_image) / square.clone();
            search = search - old.clone() * overlap.clone();
            image = image - old_image.clone() * overlap;
        }
        let square = dot(&image, &image).clamp_min(1e-300);
        let length = dot(&residual, &image) / square.clone();
        solution = solution + search.clone() * length.clone();
        residual = residual - image.clone() * length;
        past.push((search, image, square));
    }
    solution
}
