//! The Softly Constrained Denoiser: any denoiser plus learned multiples of directions that a constraint gives.
//!
//! D(x; σ) = D₀(x; σ) + Σ_i γ_i(x, σ) v_i(D₀(x; σ)). With the one direction v = σ² e^{−λσ} ∇log l_c it is the paper's
//! Eq. 8. Training minimises the plain denoising loss, whose optimum is E[x0 | x] whatever the constraint: a wrong constraint
//! is learned away.

pub mod gamma;
pub mod parameter_fit;

use std::sync::Arc;

use burn::tensor::{DType, Tensor};

use crate::constraint::SoftConstraint;
use crate::data::dataset::Dataset;
use crate::denoiser::edm::Precondition;
use crate::denoiser::{Denoiser, Estimates};
use crate::direction::Direction;
use crate::direction::compliance::Compliance;
use crate::direction::config::{GammaInput, ScdConfig};
use crate::error::Result;
use crate::job::{Reporter, Silent};
use crate::nn::lanes::by_ranges;
use crate::nn::ops::fused;
use crate::nn::parameter::{Parameters, Visitor};
use crate::noise::Noise;
use crate::profile::{self, Part};
use crate::sampler::Projection;
use crate::soft::gamma::Gamma;
use crate::tensors::{constant, in_type, per_sample};
use crate::units::Units;

/// Any denoiser D₀ with a soft constraint on top.
pub struct SoftlyConstrained {
    base: Box<dyn Denoiser>,
    constraint: Arc<SoftConstraint>,
    /// The directions that `config` names, in that order.
    directions: Vec<Box<dyn Direction>>,
    gamma: Gamma,
    config: ScdConfig,
    sigma_data: f64,
    side_by_side: bool,
}

impl SoftlyConstrained {
    /// `constraint` on top of `base`; `directions` are those that `config` names.
    pub fn new(
        base: Box<dyn Denoiser>,
        constraint: Arc<SoftConstraint>,
        directions: Vec<Box<dyn Direction>>,
        gamma: Gamma,
        config: ScdConfig,
        sigma_data: f64,
    ) -> Self {
        Self { base, constraint, directions, gamma, config, sigma_data, side_by_side: false }
    }

    /// Whether parts of a batch go through base and directions side by side, each on a thread of its own.
    #[must_use]
    pub fn side_by_side(self, side_by_side: bool) -> Self {
        Self { side_by_side, ..self }
    }

    /// D₀, the denoiser below the constraint.
    pub fn base(&self) -> &dyn Denoiser {
        &*self.base
    }

    /// D₀, to change its parameters.
    pub fn base_mut(&mut self) -> &mut dyn Denoiser {
        &mut *self.base
    }

    /// D and D₀ for `x` `[N, C, H, W]` with one σ per sample.
    pub fn estimates(&self, x: Tensor<4>, sigma: &[f64]) -> Estimates {
        let coefficients = self.coefficients(sigma);
        let base = self.base.denoise(x.clone(), sigma);
        if self.config.compliance == Compliance::NONE {
            return Estimates { estimate: base.clone(), base: Some(base) };
        }
        let below = if self.config.detach_base { base.clone().detach() } else { base.clone() };
        let [c, h, w] = self.gamma.outputs;
        let gamma = profile::part(Part::Gamma, || self.gamma_at(&x, &below, sigma, &coefficients));
        let gamma = in_type(&gamma, working(&below));
        let mut estimate = below.clone();
        for (i, direction) in self.directions.iter().enumerate() {
            let weight = gamma.clone().narrow(1, i * c * h * w, c * h * w).reshape([sigma.len(), c, h, w]);
            let correction = profile::part(Part::Directions, || correction(&**direction, &below, sigma, &coefficients));
            let correction = if self.config.detach { correction.detach() } else { correction };
            let moved = in_type(&weight, correction.dtype()) * correction;
            estimate = estimate + in_type(&moved, x.dtype());
        }
        Estimates { estimate, base: Some(base) }
    }

    /// γ of every direction at `x` `[N, C, H, W]`, `[N, directions × outputs]`.
    pub fn gamma(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<2> {
        let base = self.base.denoise(x.clone(), sigma);
        self.gamma_at(&x, &base, sigma, &self.coefficients(sigma))
    }

    /// Measures what the directions need to know of the base and of the training data, which `units` normalise.
    pub fn measure(&mut self, dataset: &Dataset, units: &Units) -> Result<()> {
        self.measure_watched(dataset, units, &Silent)
    }

    /// The same; `reporter` hears of every sample that the base denoises.
    pub fn measure_watched(&mut self, dataset: &Dataset, units: &Units, reporter: &dyn Reporter) -> Result<()> {
        let total: usize = self.directions.iter().map(|direction| direction.samples_to_measure(dataset)).sum();
        reporter.begin(total as u64, 0);
        let base = Watched { denoiser: &*self.base, reporter };
        for direction in &mut self.directions {
            direction.measure(&base, dataset, units)?;
        }
        Ok(())
    }

    fn coefficients(&self, sigma: &[f64]) -> Vec<Precondition> {
        sigma.iter().map(|&s| Precondition::new(s, self.sigma_data)).collect()
    }

    /// γ of every direction as it is applied, `[N, directions × outputs]`.
    fn gamma_at(&self, x: &Tensor<4>, base: &Tensor<4>, sigma: &[f64], coefficients: &[Precondition]) -> Tensor<2> {
        let noise: Vec<f64> = coefficients.iter().map(|c| c.noise).collect();
        let [n, c, h, w] = x.dims();
        let inputs = match self.config.input {
            GammaInput::Noisy => {
                (x.clone() * per_sample(coefficients.iter().map(|c| c.input), x)).reshape([n, c * h * w])
            }
            GammaInput::Denoised => base.clone().reshape([n, c * h * w]),
            GammaInput::Features => self.features(base, sigma, &noise),
        };
        let gamma = self.gamma.forward(inputs, &noise);
        let factor: Vec<f64> = coefficients.iter().map(|&c| self.config.compliance.factor(c)).collect();
        if factor.iter().all(|&f| f == 1.0) {
            return gamma;
        }
        gamma.clone() * constant(factor, [n, 1], &gamma.device(), gamma.dtype())
    }

    /// ln σ/4, ln rms R(D₀) and ln rms R(D₀) − ln σ of all E equations, `[N, 1 + 2E]`.
    fn features(&self, base: &Tensor<4>, sigma: &[f64], noise: &[f64]) -> Tensor<2> {
        let n = sigma.len();
        let column = |values: Vec<f64>| -> Tensor<2> { constant(values, [n, 1], &base.device(), base.dtype()) };
        let residual = self.constraint.rms(base).log();
        let relative = residual.clone() - column(sigma.iter().map(|s| s.ln()).collect());
        Tensor::cat(vec![column(noise.to_vec()), residual, relative], 1)
    }
}

/// Numbers of the fields that a direction works on at a time: with all that it keeps they fit into the second cache.
const AT_A_TIME: usize = 8192;

/// The type of numbers that directions work in at the estimate `base`. A sampler's state is f64 so that the residual is more than
/// rounding errors; γ v is as small as the error of `base`, and f32 is enough for it.
fn working(base: &Tensor<4>) -> DType {
    if base.is_autodiff() { base.dtype() } else { DType::F32 }
}

/// v of `direction` at `base` `[N, C, H, W]`, of the same shape; a few samples at a time, unless they are differentiated.
fn correction(direction: &dyn Direction, base: &Tensor<4>, sigma: &[f64], coefficients: &[Precondition]) -> Tensor<4> {
    let [n, c, h, w] = base.dims();
    let few = (AT_A_TIME / (c * h * w)).max(1);
    if n <= few || base.is_autodiff() || !fused(base) {
        return direction.correction_in(working(base), base, sigma, coefficients);
    }
    let part = |first: usize| {
        let range = first..n.min(first + few);
        let base = base.clone().narrow(0, first, range.len());
        direction.correction_in(working(&base), &base, &sigma[range.clone()], &coefficients[range])
    };
    Tensor::cat((0..n).step_by(few).map(part).collect(), 0)
}

/// A denoiser whose every sample is reported.
struct Watched<'a> {
    denoiser: &'a dyn Denoiser,
    reporter: &'a dyn Reporter,
}

impl Denoiser for Watched<'_> {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let estimate = self.denoiser.denoise(x, sigma);
        self.reporter.advance(sigma.len() as u64);
        estimate
    }

    fn log_variance(&self, sigma: &[f64]) -> Option<Tensor<1>> {
        self.denoiser.log_variance(sigma)
    }

    fn noise(&self) -> Noise {
        self.denoiser.noise()
    }
}

impl Parameters for Watched<'_> {
    fn visit(&mut self, _prefix: &str, _visit: &mut Visitor<'_>) {}
}

impl Parameters for SoftlyConstrained {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        self.base.visit(prefix, visit);
        self.gamma.visit(&format!("{prefix}gamma."), visit);
        self.constraint.visit(&format!("{prefix}constraint."), visit);
        for (kind, direction) in self.config.directions.iter().zip(&mut self.directions) {
            direction.visit(&format!("{prefix}{}.", kind.name()), visit);
        }
    }
}

impl Denoiser for SoftlyConstrained {
    /// What is differentiated stays in one piece.
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        if !self.side_by_side || x.is_autodiff() || !fused(&x) {
            return self.estimates(x, sigma).estimate;
        }
        by_ranges(sigma.len(), |range| {
            let part = x.clone().narrow(0, range.start, range.len());
            self.estimates(part, &sigma[range]).estimate
        })
    }

    fn log_variance(&self, sigma: &[f64]) -> Option<Tensor<1>> {
        self.base.log_variance(sigma)
    }

    fn noise(&self) -> Noise {
        self.base.noise()
    }
}

impl Projection for SoftlyConstrained {
    /// The estimate on the constraint if the compliance is `full`, else the estimate itself.
    fn project(&self, estimate: Tensor<4>) -> Tensor<4> {
        let full = self.config.compliance == Compliance::FULL;
        let projected = self.directions.iter().filter(|_| full).find_map(|direction| direction.project(&estimate));
        projected.unwrap_or(estimate)
    }
}
