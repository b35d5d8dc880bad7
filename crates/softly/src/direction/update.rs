//! The step δ = Σ Jᵀ (J Σ Jᵀ + V)⁻¹ r that a system of equations asks of uncertain fields.

use burn::tensor::Tensor;

use crate::constraint::basis::Transform;
use crate::constraint::linearised::LinearisedSystem;
use crate::direction::krylov::conjugate_gradients;
use crate::direction::stack::{Probe, Stack};

/// V = d Fᵀ S F d, every equation by itself.
pub(crate) struct Misfit {
    /// d, zero where an equation does not count, `[N, E, H, W]`.
    pub deviation: Tensor<4>,
    /// S, `[N, E, H, W]`.
    pub spectrum: Tensor<4>,
}

/// A system of equations, the covariance Σ of its fields and the covariance V of its misfit.
pub(crate) struct Update<'a> {
    pub linearised: &'a LinearisedSystem<'a>,
    /// Σ by function of each field, `[N, C, H, W]`.
    pub covariance: Tensor<4>,
    pub misfit: Misfit,
    /// Of the fields.
    fields: Transform,
    /// Of the residuals.
    residuals: Transform,
    /// 1/c, zero where an equation does not count, `[N, E, H, W]`.
    root: Tensor<4>,
    /// 1/D, `[N, E, H, W]`.
    inverse: Tensor<4>,
}

impl<'a> Update<'a> {
    /// The preconditioner is c Fᵀ D F c ≈ J Σ Jᵀ + V, block by block: c is how strongly an equation acts at every node, D, for
    /// each wave and summed over fields, the energy of c⁻¹J on waves of that length times Σ, and V's share.
    pub fn new(
        stack: &Stack,
        probe: &Probe,
        linearised: &'a LinearisedSystem<'a>,
        covariance: Tensor<4>,
        misfit: Misfit,
    ) -> Self {
        let [n, e, h, w] = misfit.deviation.dims();
        let root = probe.size.clone().recip() * stack.inside(&covariance);
        let deviation = misfit.deviation.clone() * root.clone();
        let noise = stack.mean(deviation.clone() * deviation) * misfit.spectrum.clone();
        let energy = stack.variance(probe, &covariance) + noise;
        let floor = energy.clone().reshape([n, e, h * w]).mean_dim(2).reshape([n, e, 1, 1]) * 1e-6;
        let inverse = (energy + floor).clamp_min(1e-18).recip();
        let (fields, residuals) = (stack.fields.transform(&covariance), stack.residuals.transform(&covariance));
        Self { linearised, covariance, misfit, fields, residuals, root, inverse }
    }

    /// δ `[N, C, H, W]` for r `[N, E, H, W]`, which is zero where an equation does not count: so many `iterations` of each sample by
    /// preconditioned conjugate gradients on (J Σ Jᵀ + V) y = r, then δ = Σ Jᵀ y.
    pub fn step(&self, right: Tensor<4>, iterations: &[usize]) -> Tensor<4> {
        let apply = |y: Tensor<4>| {
            let moved = self.smooth(self.linearised.transposed(&y));
            self.linearised.product(&moved) + self.noise(y)
        };
        let solution = conjugate_gradients(right, iterations, apply, |residual| self.precondition(residual));
        self.smooth(self.linearised.transposed(&solution))
    }

    /// Σ x, `[N, C, H, W]` both.
    fn smooth(&self, x: Tensor<4>) -> Tensor<4> {
        self.fields.fields(self.fields.coefficients(x) * self.covariance.clone())
    }

    /// V y, `[N, E, H, W]` both.
    fn noise(&self, y: Tensor<4>) -> Tensor<4> {
        let coefficients = self.residuals.coefficients(y * self.misfit.deviation.clone());
        self.residuals.fields(coefficients * self.misfit.spectrum.clone()) * self.misfit.deviation.clone()
    }

    /// `[N, E, H, W]` both.
    fn precondition(&self, residual: Tensor<4>) -> Tensor<4> {
        let coefficients = self.residuals.coefficients(residual * self.root.clone()) * self.inverse.clone();
        self.residuals.fields(coefficients) * self.root.clone()
    }
}
