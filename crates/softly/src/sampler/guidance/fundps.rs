//! FunDPS: two terms, the misfit at observed nodes and the residual, differentiated through both network calls of Heun's step.
//!
//! ```text
//! x ← x' − ∇ₓ [ w(σ) Σ_f λ_f mean (x̂_f − y_f)² + v(σ) λ mean Huber(R(x̂)) ],   x̂ = D(x + (σ' − σ)(x − D(x; σ))/σ; σ')
//! ```
//!
//! Means are over observed nodes (normalised units) and over the nodes of the equation (physical units); Huber(r) is r²/2 up to
//! |r| = 1 and |r| − ½ beyond. w = 1 and v = 0 for σ > 1, both are σ below, and the last step is not guided.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::within;
use crate::error::Result;
use crate::sampler::guidance::{Guidance, Moment, Observing};

/// FunDPS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fundps {
    /// Weight λ_f of the misfit of each observed field. Sample i is compared with held-out sample i; without any the residual
    /// alone guides.
    #[serde(default)]
    pub observe: BTreeMap<String, f64>,
    /// Share of the nodes of a field that are observed, the same ones in all samples.
    #[serde(default = "share")]
    pub share: f64,
    /// Weight λ of the residual.
    #[serde(default = "residual")]
    pub residual: f64,
}

/// FunDPS observes 500 of 128 × 128 nodes.
fn share() -> f64 {
    0.03
}

fn residual() -> f64 {
    1.0
}

/// w(σ) and v(σ).
fn schedule(sigma: f64) -> [f64; 2] {
    if sigma > 1.0 { [1.0, 0.0] } else { [sigma, sigma] }
}

/// Σ Huber(R) over all nodes and equations of every sample.
fn huber(residuals: Vec<Tensor<3>>) -> Tensor<1> {
    let sum = |residual: Tensor<3>| {
        // r²/2 inside and |r| − ½ outside is c (|r| − c/2) with c = min(|r|, 1).
        let size = residual.abs();
        let inside = size.clone().clamp_max(1.0);
        (inside.clone() * (size - inside / 2.0)).sum()
    };
    residuals.into_iter().map(sum).reduce(|a, b| a + b).expect("a constraint has an equation")
}

impl Guidance for Fundps {
    fn check(&self) -> Result<()> {
        within("sampler.guidance.residual", self.residual, 0.0..=f64::MAX, "a number ≥ 0")?;
        within("sampler.guidance.share", self.share, f64::MIN_POSITIVE..=1.0, "a number above 0, at most 1")?;
        for (field, &weight) in &self.observe {
            within(&format!("sampler.guidance.observe.{field}"), weight, 0.0..=f64::MAX, "a number ≥ 0")?;
        }
        Ok(())
    }

    fn observes(&self) -> Option<Observing<'_>> {
        (!self.observe.is_empty()).then_some(Observing { weights: &self.observe, share: self.share })
    }

    fn guide(&self, at: Moment<'_>) -> (Tensor<4>, Option<Tensor<4>>) {
        let Moment { denoiser, constraint, given, state, sigma, next } = at;
        let n = state.dims()[0];
        if next == 0.0 {
            return (denoiser.denoise(state, &vec![sigma; n]), None);
        }
        let x = state.autodiff().require_grad();
        let first = denoiser.denoise(x.clone(), &vec![sigma; n]);
        let slope = (x.clone() - first.clone()) / sigma;
        let estimate = denoiser.denoise(x.clone() + slope * (next - sigma), &vec![next; n]);
        let [observation, equation] = schedule(sigma);
        // Summed over samples: each sample's gradient involves its own terms only.
        let misfit = given.map(|given| given.misfit(estimate.clone()) * observation);
        let residual = (equation * self.residual > 0.0).then(|| {
            let mean = huber(constraint.residuals(&estimate)) / constraint.nodes() as f64;
            mean * (equation * self.residual)
        });
        let loss = match (misfit, residual) {
            (Some(misfit), Some(residual)) => misfit + residual,
            (Some(term), None) | (None, Some(term)) => term,
            (None, None) => return (first.without_autodiff(), None),
        };
        let push = x.grad_remove(&mut loss.backward());
        (first.without_autodiff(), push)
    }
}
