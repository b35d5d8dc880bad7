//! What training minimises: denoising score matching, optionally with PIDM's residual regulariser.

pub mod noise;
pub mod regulariser;

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::{at_least_one, positive};
use crate::constraint::SoftConstraint;
use crate::denoiser::{Denoiser, Estimates};
use crate::error::Result;
use crate::objective::noise::NoiseDist;
use crate::objective::regulariser::Regulariser;
use crate::tensors::per_sample;

/// The weight of a noise level in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// The training objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// One part of a loss.
pub struct Term {
    /// Its name in `metrics.jsonl`.
    pub name: &'static str,
    /// Its value, one number.
    pub value: Tensor<1>,
}

/// A loss as the sum of named terms; the first is the denoising loss, called `loss`.
pub struct Loss(pub Vec<Term>);

impl Loss {
    /// The sum of the terms.
    pub fn total(&self) -> Tensor<1> {
        let [first, others @ ..] = &self.0[..] else { unreachable!("a loss has its data term") };
        others.iter().fold(first.value.clone(), |sum, term| sum + term.value.clone())
    }

    /// The value of the term called `name`, if there is one.
    pub fn term(&self, name: &str) -> Option<&Tensor<1>> {
        self.0.iter().find(|term| term.name == name).map(|term| &term.value)
    }
}

/// A batch of training data: fields and what the denoiser sees, both `[N, C, H, W]`, with one σ per sample.
///
/// Fields may have noise of their own, y = x0 + s·noise, as far as s is known: then x = y + √(σ² − s²)·noise is x0 with noise σ.
pub struct Batch<'a> {
    /// y, or x0 if s = 0.
    pub clean: Tensor<4>,
    /// x.
    pub noisy: Tensor<4>,
    /// The noise levels, none below s.
    pub sigma: &'a [f64],
    /// s.
    pub data_noise: f64,
}

impl<'a> Batch<'a> {
    /// `clean` fields with `noise` of unit variance and levels `sigma` added.
    pub fn new(clean: Tensor<4>, noise: Tensor<4>, sigma: &'a [f64]) -> Self {
        Self::of_noisy(clean, 0.0, noise, sigma)
    }

    /// `fields` that have noise `data_noise` already, with as much `noise` added as brings them to the levels `sigma`.
    pub fn of_noisy(fields: Tensor<4>, data_noise: f64, noise: Tensor<4>, sigma: &'a [f64]) -> Self {
        let added = |&s: &f64| if data_noise == 0.0 { s } else { (s * s - data_noise * data_noise).max(0.0).sqrt() };
        let noisy = fields.clone() + noise * per_sample(sigma.iter().map(added), &fields);
        Self { clean: fields, noisy, sigma, data_noise }
    }

    /// E[y | x] = D + (s/σ)² (x − D) for an `estimate` D of x0.
    fn expected(&self, estimate: Tensor<4>) -> Tensor<4> {
        if self.data_noise == 0.0 {
            return estimate;
        }
        let kept = |sigma: &f64| (self.data_noise / sigma).powi(2).min(1.0);
        let kept = per_sample(self.sigma.iter().map(kept), &estimate);
        estimate.clone() + (self.noisy.clone() - estimate) * kept
    }
}

impl Objective {
    /// Refuses settings that cannot work.
    pub fn check(&self) -> Result<()> {
        match self.noise {
            NoiseDist::LogNormal { std, .. } => positive("objective.noise.std", std)?,
            NoiseDist::TruncLogNormal { std, min, .. } => {
                positive("objective.noise.std", std)?;
                if let Some(min) = min {
                    positive("objective.noise.min", min)?;
                }
            }
            NoiseDist::Cosine { steps, .. } => at_least_one("objective.noise.steps", steps as u64)?,
        }
        if let Weight::MinSnr { max } = self.weight {
            positive("objective.weight.max", max)?;
        }
        if self.base_loss != 0.0 {
            positive("objective.base_loss", self.base_loss)?;
        }
        Ok(())
    }

    /// The loss of a denoiser whose `estimates` of the `batch` are given.
    ///
    /// w(σ) ‖D − x0‖² per number, or w(σ) ‖E[y | x] − y‖² of fields y with noise of their own, whose optimum is D = E[x0 | x],
    /// too; with a learned log-variance u(σ), EDM2's Gaussian likelihood e²/exp(u) + u of the weighted error e. `denoiser` and `constraint` serve the regulariser.
    pub fn loss(
        &self,
        denoiser: &dyn Denoiser,
        constraint: Option<&SoftConstraint>,
        batch: &Batch<'_>,
        estimates: Estimates,
        sigma_data: f64,
    ) -> Loss {
        let Batch { clean, noisy, sigma, .. } = batch;
        let Estimates { estimate, base } = estimates;
        // √w multiplies the error before squaring: one product fewer to differentiate.
        let root_weight = per_sample(sigma.iter().map(|&s| self.weight.at(s, sigma_data).sqrt()), clean);
        let log_variance = denoiser.log_variance(sigma).map(|u| u.reshape([sigma.len(), 1, 1, 1]));
        let loss_of = |estimate: Tensor<4>| {
            let error = (batch.expected(estimate) - clean.clone()) * root_weight.clone();
            match &log_variance {
                Some(u) => (error.clone() * error / u.clone().exp() + u.clone()).mean(),
                None => (error.clone() * error).mean(),
            }
        };
        let mut terms = vec![Term { name: "loss", value: loss_of(estimate.clone()) }];
        if let Some(base) = base.filter(|_| self.base_loss > 0.0) {
            terms.push(Term { name: "base", value: loss_of(base) * self.base_loss });
        }
        if let (Some(regulariser), Some(constraint)) = (self.regulariser, constraint) {
            let weight = |s| self.weight.at(s, sigma_data);
            let value = regulariser.term(denoiser, constraint, noisy, estimate, sigma, weight);
            terms.push(Term { name: "residual", value });
        }
        Loss(terms)
    }
}
