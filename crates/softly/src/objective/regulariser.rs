//! PIDM's residual regulariser: c λ(σ) ‖R(x̂)‖ is added to the denoising loss.

use std::sync::LazyLock;

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::denoiser::Denoiser;
use crate::denoiser::ddpm::CosineSchedule;
use crate::tensors::per_sample;

/// How the regulariser's weight depends on the noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LambdaSchedule {
    /// The same weight as the data term.
    Data,
    /// The same at every level.
    Constant,
    /// 1/(posterior variance of the nearest level of the 100-step cosine DDPM), as PIDM.
    PosteriorVariance,
}

/// Where PIDM evaluates the residual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Estimation {
    /// On the denoiser's output at the training noise level.
    Mean,
    /// On the denoiser's output at the lowest level of the 100-step cosine DDPM, after one deterministic step there.
    Sample,
}

/// PIDM's regulariser: weight·λ(σ)·‖R(x̂)‖ is added to the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Regulariser {
    /// Overall weight c.
    pub weight: f64,
    /// λ(σ).
    #[serde(default = "default_lambda_schedule")]
    pub schedule: LambdaSchedule,
    /// Mean or sample estimation.
    #[serde(default = "default_estimation")]
    pub estimation: Estimation,
    /// Upper bound on λ(σ)·‖R‖ per sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamp: Option<f64>,
}

fn default_lambda_schedule() -> LambdaSchedule {
    LambdaSchedule::Data
}

fn default_estimation() -> Estimation {
    Estimation::Mean
}

impl Regulariser {
    /// The mean over the batch of weight·λ(σ)·‖R(x̂)‖ for the `estimate` of the clean fields behind `noisy`, both
    /// `[N, C, H, W]`; λ of [`LambdaSchedule::Data`] is `data_weight`.
    pub(crate) fn term(
        &self,
        denoiser: &dyn Denoiser,
        constraint: &SoftConstraint,
        noisy: &Tensor<4>,
        estimate: Tensor<4>,
        sigma: &[f64],
        data_weight: impl Fn(f64) -> f64,
    ) -> Tensor<1> {
        static SCHEDULE: LazyLock<CosineSchedule> = LazyLock::new(|| CosineSchedule::new(100));
        let schedule = &*SCHEDULE;
        let judged = match self.estimation {
            Estimation::Mean => estimate,
            Estimation::Sample => {
                // A DDIM step is an Euler step of the probability flow: x' = D + (σ'/σ)(x − D).
                let last = schedule.sigma(0);
                let ratio = per_sample(sigma.iter().map(|s| last / s), noisy);
                let there = estimate.clone() + (noisy.clone() - estimate) * ratio;
                denoiser.denoise(there, &vec![last; sigma.len()])
            }
        };
        let lambda = |s: f64| match self.schedule {
            LambdaSchedule::Data => data_weight(s),
            LambdaSchedule::Constant => 1.0,
            LambdaSchedule::PosteriorVariance => 1.0 / schedule.posterior_variance(schedule.nearest_level(s)),
        };
        let lambda = per_sample(sigma.iter().map(|&s| lambda(s)), noisy).reshape([sigma.len()]);
        let weighted = constraint.norm(judged) * lambda;
        let bounded = match self.clamp {
            Some(max) => weighted.clamp_max(max),
            None => weighted,
        };
        bounded.mean() * self.weight
    }
}
