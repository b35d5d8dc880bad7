//! The paper's direction: the gradient of log l_c = −‖R‖ at the base estimate, in one of several scales.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use crate::constraint::SoftConstraint;
use crate::constraint::norm::Norm;
use crate::denoiser::edm::Precondition;
use crate::direction::config::{Damping, Scale, ScdConfig};
use crate::direction::{BuildDirection, Direction, Needs, Site};
use crate::error::Result;
use crate::random::{Purpose, Stream};
use crate::tensors::{field_batch, in_type, per_sample, to_vec_f64};

/// v = scale · ∇log l_c(D), see [`Scale`].
pub struct GradientDirection {
    constraint: Arc<SoftConstraint>,
    scale: Scale,
    damping: Damping,
    lambda: f64,
    constant_step: bool,
}

impl GradientDirection {
    /// The gradient of `constraint` in `scale`; `damping` and its `lambda` count for `paper` and `plain`.
    pub fn new(constraint: Arc<SoftConstraint>, scale: Scale, damping: Damping, lambda: f64) -> Self {
        Self { constraint, scale, damping, lambda, constant_step: true }
    }

    /// The same, but with the derivative of the step of `jacobi`. Training does without it; guidance and likelihood need
    /// the derivative of the denoiser as it is.
    #[must_use]
    pub fn differentiable(self) -> Self {
        Self { constant_step: false, ..self }
    }
}

impl BuildDirection for GradientDirection {
    const NEEDS: Needs = Needs { solve_for: false, grid: false, trained_base: false };

    fn build(site: Site<'_>) -> Result<Self> {
        let ScdConfig { scale, damping, lambda, .. } = *site.settings;
        let lambda = lambda.number().expect("a blueprint has no auto left");
        let gradient = Self::new(site.constraint.clone(), scale, damping, lambda);
        Ok(if site.device.is_autodiff() { gradient } else { gradient.differentiable() })
    }
}

impl Direction for GradientDirection {
    fn correction_in(
        &self,
        working: DType,
        base: &Tensor<4>,
        sigma: &[f64],
        coefficients: &[Precondition],
    ) -> Tensor<4> {
        let norm = (self.scale == Scale::Jacobi).then_some(Norm::HalfSquares);
        let (norm, gradient) = self.constraint.norm_and_rounded_gradient(norm, base, working);
        let base = &in_type(base, working);
        let [n, c, h, w] = gradient.dims();
        let squares = || (gradient.clone() * gradient.clone()).reshape([n, c * h * w]).sum_dim(1).reshape([n, 1, 1, 1]);
        // Small enough never to matter, large enough that its inverse is finite in f32.
        let floor = 1e-20;
        match self.scale {
            Scale::Unit => {
                let rms = (squares() / (c * h * w) as f64).clamp_min(floor).sqrt();
                gradient * (per_sample(coefficients.iter().map(|c| c.out), base) / rms)
            }
            Scale::Polyak => gradient.clone() * (norm.reshape([n, 1, 1, 1]) / squares().clamp_min(floor)),
            Scale::Jacobi => {
                let base = if self.constant_step { base.clone().without_autodiff() } else { base.clone() };
                gradient * self.constraint.jacobi_step(&base)
            }
            Scale::Paper | Scale::Plain => {
                let power = if self.scale == Scale::Paper { 2 } else { 0 };
                match self.damping {
                    Damping::Exponential => {
                        let factor = sigma.iter().map(|s| s.powi(power) * (-self.lambda * s).exp());
                        gradient * per_sample(factor, base)
                    }
                    Damping::GradientNorm => {
                        let factor = per_sample(sigma.iter().map(|s| s.powi(power)), base);
                        gradient.clone() * (factor / squares().clamp_min(floor))
                    }
                }
            }
        }
    }
}

/// The paper's heuristic: λ such that at σ = σ_data the correction with γ = 1 is as large as the data.
///
/// An untrained denoiser puts out roughly white noise of standard deviation σ_data; with G the RMS of the constraint's
/// gradient there, σ^p e^{−λσ} G = σ_data at σ = σ_data. Never negative.
pub fn automatic_lambda(constraint: &SoftConstraint, scale: Scale, shape: [usize; 3], sigma_data: f64) -> f64 {
    let draws = 64;
    let mut stream = Stream::new(0, Purpose::Metric, 0);
    let values = stream.normals(draws * shape.iter().product::<usize>()).into_iter().map(|v| v * sigma_data).collect();
    let (_, gradient) = constraint.norm_and_gradient(&field_batch(values, shape, &Device::flex()));
    let gradient = to_vec_f64(gradient);
    let rms = (gradient.iter().map(|g| g * g).sum::<f64>() / gradient.len() as f64).sqrt();
    let power = if scale == Scale::Paper { 2 } else { 0 };
    ((sigma_data.powi(power) * rms / sigma_data).ln() / sigma_data).max(0.0)
}
