//! Two denoisers given measurements in the manner of azula: MMPS, and the Jacobian-free JFPS.
//!
//! Both take D' = D + Cov Hᵀ w with (N + H Cov Hᵀ) w = y − H(D), N the variances of the sensors' noise, all in normalised units. MMPS has
//! Cov = Cov[x0 | x] = σ² ∂D/∂x, every product a gradient of the network. JFPS has a multiple of the identity instead,
//! (1/σd² + 1/σ²)⁻¹, and needs no gradients. MMPS's system is not symmetric for a network and is solved by generalised conjugate residuals (as
//! GMRES), JFPS's by conjugate gradients, both by so many iterations; the published default is 1.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::{at_least_one, positive};
use crate::denoiser::Denoiser;
use crate::direction::krylov::{conjugate_gradients, conjugate_residuals};
use crate::error::Result;
use crate::nn::parameter::{Parameters, Visitor};
use crate::noise::Noise;
use crate::observe::conditioning::{Condition, Given, Needs};
use crate::observe::observations::Observations;
use crate::sampler::{Observer, Sampler, Target};
use crate::tensors::{constant, per_sample};

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

/// Cov[x0 | x] = σ² ∂D/∂x, and (1/σd² + 1/σ²)⁻¹, are of white noise.
const NEEDS: Needs = Needs { white_noise: true, errors: false, moments: false };

impl Condition for Mmps {
    fn check(&self) -> Result<()> {
        at_least_one("conditioning.iterations", self.iterations as u64)
    }

    fn needs(&self) -> Needs {
        NEEDS
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let &Self { iterations } = self;
        let Given { denoiser: base, observations, shape, .. } = given;
        let matched = MomentMatched { base, observations, iterations, sigma_data: None };
        sampler.sample_from(latents, Target::plain(&matched, shape), noise, observer)
    }
}

impl Condition for Jfps {
    fn check(&self) -> Result<()> {
        positive("conditioning.sigma_data", self.sigma_data)?;
        at_least_one("conditioning.iterations", self.iterations as u64)
    }

    fn needs(&self) -> Needs {
        NEEDS
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let &Self { iterations, sigma_data } = self;
        let Given { denoiser: base, observations, shape, .. } = given;
        let matched = MomentMatched { base, observations, iterations, sigma_data: Some(sigma_data) };
        sampler.sample_from(latents, Target::plain(&matched, shape), noise, observer)
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
        let x = x.without_autodiff();
        let at = self.base.denoise(x.clone(), sigma).without_autodiff();
        let linearised = self.observations.linearised(&at);
        let variance = |sigma: f64| match self.sigma_data {
            None => sigma * sigma,
            Some(sigma_data) => 1.0 / (1.0 / (sigma_data * sigma_data) + 1.0 / (sigma * sigma)),
        };
        let variance = per_sample(sigma.iter().map(|&sigma| variance(sigma)), &at);
        // Cov·v `[N, C, H, W]`.
        let covariance = |v: Tensor<4>| match self.sigma_data {
            None => {
                // A graph serves one backward pass: the network is called again for each.
                let tracked = x.clone().autodiff().require_grad();
                let again = self.base.denoise(tracked.clone(), sigma);
                let mut gradients = (again * v.clone()).sum().backward();
                tracked.grad_remove(&mut gradients).unwrap_or_else(|| v.zeros_like()) * variance.clone()
            }
            Some(_) => v * variance.clone(),
        };
        let row = |values: Vec<f64>| -> Tensor<2> {
            let shape = [1, values.len()];
            constant(values, shape, &at.device(), at.dtype())
        };
        let (sds, scales) = (self.observations.sds(), self.observations.scales());
        let noise: Vec<f64> = sds.iter().zip(&scales).map(|(sd, scale)| (sd / scale).powi(2)).collect();
        // A factor on both sides keeps the system above 1 along every direction, whatever the noise.
        let factor = 1.0 / noise.iter().copied().fold(f64::INFINITY, f64::min);
        let (noise, scales) = (row(noise), row(scales));
        // Cov Hᵀw `[N, C, H, W]` for weights `[N, M]`.
        let spread = |w: &Tensor<2>| covariance(linearised.transposed(&(w.clone() / scales.clone())));
        let apply = |w: Tensor<2>| (linearised.product(&spread(&w)) / scales.clone() + w * noise.clone()) * factor;
        let lack = self.observations.normalised_misfit(&at) * -factor;
        let weights = if self.sigma_data.is_none() {
            conjugate_residuals(lack, self.iterations, apply)
        } else {
            let iterations = vec![self.iterations; lack.dims()[0]];
            conjugate_gradients(lack, &iterations, apply, |residual| residual)
        };
        at + spread(&weights)
    }

    fn noise(&self) -> Noise {
        self.base.noise()
    }
}
