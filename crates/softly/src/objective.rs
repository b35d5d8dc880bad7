//! What training minimises: denoising score matching, optionally with PIDM's residual regulariser.

use std::sync::LazyLock;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::ddpm::CosineSchedule;
use crate::denoiser::{Denoiser, Estimates, per_sample};
use crate::noise::NoiseDist;

/// The weight of a noise level in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Weight {
    /// EDM's (σ²+σd²)/(σ σd)²: every noise level contributes alike.
    Edm,
    /// min(1/σ², max): min-SNR, as PIDM trains its DDPM.
    MinSnr {
        /// Upper bound of the weight.
        max: f64,
    },
}

impl Weight {
    /// The weight at `sigma` for data of standard deviation `sigma_data`.
    pub fn at(self, sigma: f64, sigma_data: f64) -> f64 {
        match self {
            Self::Edm => (sigma * sigma + sigma_data * sigma_data) / (sigma * sigma_data).powi(2),
            Self::MinSnr { max } => (1.0 / (sigma * sigma)).min(max),
        }
    }
}

/// How the regulariser's weight depends on the noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Estimation {
    /// On the denoiser's output at the training noise level.
    Mean,
    /// On the denoiser's output at `final_sigma`, after one deterministic step there.
    Sample,
}

/// PIDM's regulariser: weight·λ(σ)·‖R(x̂)‖ is added to the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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

/// The training objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Objective {
    /// Distribution of the noise level.
    pub noise: NoiseDist,
    /// Weight of the noise level.
    pub weight: Weight,
    /// Weight of the base denoiser's own denoising loss, for a model with a soft constraint. Where the correction is strong
    /// the base would otherwise leave the work to it.
    pub base_loss: f64,
    /// PIDM's residual term, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regulariser: Option<Regulariser>,
}

impl Default for Objective {
    fn default() -> Self {
        Self {
            noise: NoiseDist::TruncLogNormal { mean: -2.0, std: 1.7, min: None, stratified: false },
            weight: Weight::Edm,
            base_loss: 0.0,
            regulariser: None,
        }
    }
}

/// The terms of a loss, each one number.
pub struct Loss {
    /// Weighted squared error, mean over batch, channels and nodes.
    pub data: Tensor<1>,
    /// The same of the denoiser below a soft constraint, times its weight, if that counts.
    pub base: Option<Tensor<1>>,
    /// The same of the estimate that parameters of the constraint are learned from, if that is another one.
    pub parameters: Option<Tensor<1>>,
    /// The regulariser, if there is one, mean over the batch.
    pub residual: Option<Tensor<1>>,
}

impl Loss {
    /// The sum of the terms.
    pub fn total(&self) -> Tensor<1> {
        let others = [&self.base, &self.parameters, &self.residual].into_iter().flatten();
        others.fold(self.data.clone(), |sum, term| sum + term.clone())
    }
}

impl Objective {
    /// The loss on a batch: `clean` and `noise` (standard normal) are `[N, C, H, W]`, one σ per sample.
    pub fn loss(
        &self,
        denoiser: &dyn Denoiser,
        constraint: Option<&SoftConstraint>,
        clean: Tensor<4>,
        noise: Tensor<4>,
        sigma: &[f64],
        sigma_data: f64,
    ) -> Loss {
        let noisy = clean.clone() + noise * per_sample(sigma.iter().copied(), &clean);
        let Estimates { estimate, base, unweighted } = denoiser.estimates(noisy.clone(), sigma);
        // √w multiplies the error before squaring: one product fewer to differentiate.
        let root_weight = per_sample(sigma.iter().map(|&s| self.weight.at(s, sigma_data).sqrt()), &clean);
        let log_variance = denoiser.log_variance(sigma).map(|u| u.reshape([sigma.len(), 1, 1, 1]));
        let loss_of = |estimate: Tensor<4>| {
            let error = (estimate - clean.clone()) * root_weight.clone();
            match &log_variance {
                // EDM2: a Gaussian likelihood of the error with learned variance, e²/exp(u) + u.
                Some(u) => (error.clone() * error / u.clone().exp() + u.clone()).mean(),
                None => (error.clone() * error).mean(),
            }
        };
        let data = loss_of(estimate.clone());
        let parameters = unweighted.map(loss_of);
        let base = base.filter(|_| self.base_loss > 0.0).map(|base| loss_of(base) * self.base_loss);
        let residual = match (self.regulariser, constraint) {
            (Some(regulariser), Some(constraint)) => {
                Some(regulariser.term(denoiser, constraint, &noisy, estimate, sigma, |s| self.weight.at(s, sigma_data)))
            }
            _ => None,
        };
        Loss { data, base, parameters, residual }
    }
}

impl Regulariser {
    fn term(
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
