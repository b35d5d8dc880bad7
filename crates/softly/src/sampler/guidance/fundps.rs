//! FunDPS: two terms, the misfit at observed nodes and the residual, differentiated through both network calls of
//! Heun's step.
//!
//! ```text
//! x ← x' − ∇ₓ [ w(σ) Σ_f λ_f mean (x̂_f − y_f)² + v(σ) λ mean Huber(R(x̂)) ],   x̂ = D(x + (σ' − σ)(x − D(x; σ))/σ; σ')
//! ```
//!
//! Means are over observed nodes (normalised units) and over the nodes of the equation (physical units); Huber(r) is
//! r²/2 up to
//! |r| = 1 and |r| − ½ beyond. w = 1 and v = 0 for σ > 1, both are σ below, and the last step is not guided.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::within;
use crate::constraint::SoftConstraint;
use crate::error::Result;
use crate::sampler::guidance::{Guidance, Moment, Observing};

/// FunDPS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fundps {
    /// Weight λ_f of the misfit of each observed field. Sample i is compared with held-out sample i; without any the
    /// residual alone guides.
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

/// w(σ) `misfit` + v(σ) λ mean Huber(R) of every sample's estimate `[N, C, H, W]`, `[N]`; nothing where no term counts. It is the loss of
/// guidance by held-out nodes here and by sensors in [`crate::observe::fun_dps`].
pub(crate) fn loss(
    misfit: Option<Tensor<1>>,
    equation: Option<(&SoftConstraint, f64)>,
    estimate: &Tensor<4>,
    sigma: f64,
) -> Option<Tensor<1>> {
    let [seen, obeyed] = if sigma > 1.0 { [1.0, 0.0] } else { [sigma, sigma] };
    let residual = equation.filter(|(_, weight)| obeyed * weight > 0.0).and_then(|(constraint, weight)| {
        let sum = constraint.residuals(estimate).into_iter().map(huber).reduce(|a, b| a + b)?;
        Some(sum * (obeyed * weight / constraint.nodes() as f64))
    });
    misfit.map(|misfit| misfit * seen).into_iter().chain(residual).reduce(|a, b| a + b)
}

/// Σ Huber(R) over the nodes of a residual `[N, H, W]`, `[N]`.
fn huber(residual: Tensor<3>) -> Tensor<1> {
    let [n, h, w] = residual.dims();
    // r²/2 inside and |r| − ½ outside is c (|r| − c/2) with c = min(|r|, 1).
    let size = residual.abs();
    let inside = size.clone().clamp_max(1.0);
    (inside.clone() * (size - inside * 0.5)).reshape([n, h * w]).sum_dim(1).reshape([n])
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
        // Products, for Burn differentiates a quotient in single precision.
        let slope = (x.clone() - first.clone()) * (1.0 / sigma);
        let estimate = denoiser.denoise(x.clone() + slope * (next - sigma), &vec![next; n]);
        let misfit = given.map(|given| given.misfit(estimate.clone()));
        let Some(loss) = loss(misfit, Some((constraint, self.residual)), &estimate, sigma) else {
            return (first.without_autodiff(), None);
        };
        // Summed over samples: each sample's gradient involves its own terms only.
        let push = x.grad_remove(&mut loss.sum().backward());
        (first.without_autodiff(), push)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn hubers_loss_is_quadratic_inside_and_linear_outside() {
        let residual: Tensor<3> = Tensor::from_data(TensorData::new(vec![0.5f32, -3.0], [2, 1, 1]), &Device::flex());
        assert_eq!(crate::tensors::to_vec_f64(huber(residual)), [0.125, 2.5]);
    }
}
