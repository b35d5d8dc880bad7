//! The Softly Constrained Denoiser: any denoiser plus learned multiples of directions that a constraint gives.
//!
//! D(x; σ) = D₀(x; σ) + Σ_i γ_i(x, σ) v_i(D₀(x; σ)). With the one direction v = σ² e^{−λσ} ∇log l_c it is the paper's
//! Eq. 8. It is trained with the plain denoising loss, so its optimum is E[x0 | x] whatever the constraint: a wrong one is
//! learned away.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::compliance::Compliance;
use crate::constraint::SoftConstraint;
use crate::dataset::Dataset;
use crate::denoiser::{Denoiser, Estimates, Precondition, per_sample};
use crate::direction::{Direction, DirectionKind};
use crate::error::{Error, Result};
pub use crate::gradient_direction::{Damping, Scale, automatic_lambda};
use crate::kalman_direction::KalmanConfig;
use crate::mlp::{EMBEDDING, TwoLayer, noise_embedding};
use crate::newton_direction::NewtonConfig;
use crate::parameter::{Parameters, Visitor};
use crate::random::Stream;
use crate::units::Units;

/// λ of the exponential damping.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Lambda {
    /// A given value.
    Number(f64),
    /// The paper's heuristic, see [`automatic_lambda`].
    Auto(Auto),
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Auto {
    /// Find the value from the data.
    Auto,
}

/// What γ's network looks at besides the noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GammaInput {
    /// The noisy field c_in·x.
    Noisy,
    /// The base denoiser's output.
    Denoised,
    /// Two numbers instead of a field: ln rms R(D) and ln rms R(D) − ln σ. Cheap, and the same for every grid.
    Features,
}

/// How many numbers γ has per sample and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GammaOutput {
    /// One.
    Scalar,
    /// One per channel.
    Channel,
    /// One per channel and node.
    Pixel,
}

/// The soft constraint's part of a denoiser, as configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScdConfig {
    /// What the correction moves along; γ has a part for each.
    pub directions: Vec<DirectionKind>,
    /// The field that the directions `newton` and `kalman` solve the equation for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub solve_for: Option<String>,
    /// How the direction `gradient` is scaled.
    pub scale: Scale,
    /// How `paper` and `plain` are damped at high noise.
    pub damping: Damping,
    /// λ of the exponential damping.
    pub lambda: Lambda,
    /// What γ looks at.
    pub input: GammaInput,
    /// How many numbers γ has.
    pub output: GammaOutput,
    /// Constant weights in place of a learned γ, one per direction and channel if γ has one per channel: a correction
    /// that can be put on a trained denoiser as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constant: Option<Vec<f64>>,
    /// Hidden units of γ's network.
    pub hidden: usize,
    /// Learning rate of γ's network and of learned parameters of the constraint, as a multiple of the run's.
    pub rate: f64,
    /// How the direction `newton` solves.
    #[serde(skip_serializing_if = "is_default")]
    pub newton: NewtonConfig,
    /// How the direction `kalman` solves.
    #[serde(skip_serializing_if = "is_default")]
    pub kalman: KalmanConfig,
    /// Treat the directions as constants in training (ablation; wrong for residuals that are not linear).
    pub detach: bool,
    /// Keep the loss of the corrected estimate from the base denoiser: it learns from `objective.base_loss` alone, as if the
    /// correction were put on it later.
    pub detach_base: bool,
    /// How much of the correction is applied after training.
    #[serde(skip_serializing_if = "as_learned")]
    pub compliance: Compliance,
}

impl Default for ScdConfig {
    fn default() -> Self {
        Self {
            directions: vec![DirectionKind::Gradient],
            solve_for: None,
            scale: Scale::Plain,
            damping: Damping::Exponential,
            lambda: Lambda::Number(1.0),
            input: GammaInput::Noisy,
            output: GammaOutput::Scalar,
            constant: None,
            hidden: 100,
            rate: 1.0,
            newton: NewtonConfig::default(),
            kalman: KalmanConfig::default(),
            detach: false,
            detach_base: false,
            compliance: Compliance::LEARNED,
        }
    }
}

impl ScdConfig {
    /// The parts of γ for the given `fields` by name: directions, and their fields where γ has weights per channel or node.
    pub fn parts(&self, fields: &[String]) -> Vec<String> {
        let of = |kind: &DirectionKind| match self.output {
            GammaOutput::Scalar => vec![kind.name().to_string()],
            GammaOutput::Channel | GammaOutput::Pixel => {
                fields.iter().map(|field| format!("{}, {field}", kind.name())).collect()
            }
        };
        self.directions.iter().flat_map(of).collect()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn as_learned(compliance: &Compliance) -> bool {
    *compliance == Compliance::LEARNED
}

/// The learned weights γ: a two-layer network of what [`GammaInput`] says and the noise level, at the start
/// [`DirectionKind::first_weight`].
pub struct Gamma {
    weights: Weights,
    /// Broadcastable shape of one direction's γ, `[C, H, W]`.
    outputs: [usize; 3],
}

enum Weights {
    Learned(Box<TwoLayer>),
    Constant(Vec<f64>),
}

impl Gamma {
    /// A network for fields of shape `[C, H, W]`.
    pub fn new(config: &ScdConfig, shape: [usize; 3], stream: &mut Stream, device: &Device) -> Result<Self> {
        let outputs = match config.output {
            GammaOutput::Scalar => [1, 1, 1],
            GammaOutput::Channel => [shape[0], 1, 1],
            GammaOutput::Pixel => shape,
        };
        let inputs = match config.input {
            GammaInput::Noisy | GammaInput::Denoised => shape.iter().product(),
            // ln σ/4 and the two of the residual.
            GammaInput::Features => 3,
        };
        let count = config.directions.len() * outputs.iter().product::<usize>();
        let weights = match &config.constant {
            Some(values) if values.len() != count => {
                let problem = format!("expected {count} numbers, found {}", values.len());
                return Err(Error::input("denoiser.scd.constant", problem)
                    .hint("one per direction, times the number of channels if `output` is \"channel\""));
            }
            Some(values) => Weights::Constant(values.clone()),
            None => {
                let per_direction = outputs.iter().product();
                let first =
                    config.directions.iter().flat_map(|kind| vec![kind.first_weight(); per_direction]).collect();
                let mut network = TwoLayer::new(inputs + EMBEDDING, config.hidden, first, stream, device);
                network.visit("", &mut |_, parameter| parameter.set_rate(config.rate));
                Weights::Learned(Box::new(network))
            }
        };
        Ok(Self { weights, outputs })
    }

    /// Inputs `[N, inputs]` and noise input c_noise per sample → γ `[N, directions × outputs]`.
    pub fn forward(&self, inputs: Tensor<2>, noise: &[f64]) -> Tensor<2> {
        match &self.weights {
            Weights::Constant(values) => {
                let all: Vec<f64> = noise.iter().flat_map(|_| values.clone()).collect();
                let shape = [noise.len(), values.len()];
                Tensor::from_data(TensorData::new(all, shape), (&inputs.device().without_autodiff(), DType::F32))
            }
            Weights::Learned(network) => {
                let embedding = noise_embedding(noise, &inputs.device());
                network.forward(Tensor::cat(vec![inputs.cast(DType::F32), embedding], 1))
            }
        }
    }
}

/// Any denoiser with a soft constraint on top.
pub struct SoftlyConstrained {
    base: Box<dyn Denoiser>,
    constraint: Arc<SoftConstraint>,
    directions: Vec<Box<dyn Direction>>,
    gamma: Gamma,
    config: ScdConfig,
    sigma_data: f64,
}

impl SoftlyConstrained {
    /// Puts `constraint` on top of `base`; `directions` are those that `config` names.
    pub fn new(
        base: Box<dyn Denoiser>,
        constraint: Arc<SoftConstraint>,
        directions: Vec<Box<dyn Direction>>,
        gamma: Gamma,
        config: ScdConfig,
        sigma_data: f64,
    ) -> Self {
        Self { base, constraint, directions, gamma, config, sigma_data }
    }

    /// Whether parameters of the constraint are learned from what `kalman` makes of the base by itself.
    ///
    /// It knows how wrong the equation is, and so leads from anywhere to the right one. Through γ nothing would be learned once γ
    /// is off, and the other directions trust the equation: close to a resonance of a wrong one they push a parameter back.
    fn learns_through_kalman(&self) -> bool {
        self.constraint.learns() && self.config.directions.contains(&DirectionKind::Kalman)
    }

    /// What γ weighs or sees of `base`: constant if parameters are learned otherwise, for it depends on nothing else that
    /// is trained if the base is frozen.
    fn constant_for_gamma<const D: usize>(&self, tensor: Tensor<D>, base: &Tensor<4>) -> Tensor<D> {
        if self.learns_through_kalman() && !base.is_autodiff() { tensor.detach() } else { tensor }
    }

    /// γ of every direction as it is applied, `[N, directions × outputs]`.
    fn gamma_at(&self, x: &Tensor<4>, base: &Tensor<4>, sigma: &[f64], at: &[Precondition]) -> Tensor<2> {
        let noise: Vec<f64> = at.iter().map(|c| c.noise).collect();
        let [n, c, h, w] = x.dims();
        let inputs = match self.config.input {
            GammaInput::Noisy => (x.clone() * per_sample(at.iter().map(|c| c.input), x)).reshape([n, c * h * w]),
            GammaInput::Denoised => base.clone().reshape([n, c * h * w]),
            GammaInput::Features => self.constant_for_gamma(self.features(base, sigma, &noise), base),
        };
        let gamma = self.gamma.forward(inputs, &noise);
        let factor: Vec<f64> = at.iter().map(|&at| self.config.compliance.factor(at)).collect();
        if factor.iter().all(|&f| f == 1.0) {
            return gamma;
        }
        let options = (&gamma.device().without_autodiff(), gamma.dtype());
        gamma * Tensor::from_data(TensorData::new(factor, [n, 1]), options)
    }

    /// ln σ/4, ln rms R(D) and ln rms R(D) − ln σ, `[N, 3]`.
    fn features(&self, base: &Tensor<4>, sigma: &[f64], noise: &[f64]) -> Tensor<2> {
        let n = sigma.len();
        let column = |values: Vec<f64>| -> Tensor<2> {
            Tensor::from_data(TensorData::new(values, [n, 1]), (&base.device().without_autodiff(), base.dtype()))
        };
        let residual = self.constraint.rms(base).log().reshape([n, 1]);
        let relative = residual.clone() - column(sigma.iter().map(|s| s.ln()).collect());
        Tensor::cat(vec![column(noise.to_vec()), residual, relative], 1)
    }
}

impl Parameters for SoftlyConstrained {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        self.base.visit(prefix, visit);
        if let Weights::Learned(network) = &mut self.gamma.weights {
            network.visit(&format!("{prefix}gamma."), visit);
        }
        self.constraint.visit(&format!("{prefix}constraint."), visit);
        for (kind, direction) in self.config.directions.iter().zip(&mut self.directions) {
            direction.visit(&format!("{prefix}{}.", kind.name()), visit);
        }
    }
}

impl Denoiser for SoftlyConstrained {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        self.estimates(x, sigma).estimate
    }

    fn estimates(&self, x: Tensor<4>, sigma: &[f64]) -> Estimates {
        let at: Vec<Precondition> = sigma.iter().map(|&s| Precondition::new(s, self.sigma_data)).collect();
        let base = self.base.denoise(x.clone(), sigma);
        if self.config.compliance == Compliance::NONE {
            return Estimates { estimate: base.clone(), base: Some(base), unweighted: None };
        }
        let below = if self.config.detach_base { base.clone().detach() } else { base.clone() };
        let [c, h, w] = self.gamma.outputs;
        let gamma = self.gamma_at(&x, &below, sigma, &at).cast(x.dtype());
        let mut estimate = below.clone();
        let mut unweighted = None;
        for (i, direction) in self.directions.iter().enumerate() {
            let weight = gamma.clone().narrow(1, i * c * h * w, c * h * w).reshape([sigma.len(), c, h, w]);
            let direction = direction.at(&below, sigma, &at);
            if self.learns_through_kalman() && self.config.directions[i] == DirectionKind::Kalman {
                unweighted = Some(below.clone() + direction.clone());
            }
            let direction =
                if self.config.detach { direction.detach() } else { self.constant_for_gamma(direction, &below) };
            estimate = estimate + weight * direction;
        }
        Estimates { estimate, base: Some(base), unweighted }
    }

    fn project(&self, estimate: Tensor<4>) -> Tensor<4> {
        let full = self.config.compliance == Compliance::FULL;
        let projected = self.directions.iter().filter(|_| full).find_map(|direction| direction.project(&estimate));
        projected.unwrap_or(estimate)
    }

    fn visit_base(&mut self, visit: &mut Visitor<'_>) {
        self.base.visit("", visit);
    }

    fn measure(&mut self, dataset: &Dataset, units: &Units) {
        self.base.measure(dataset, units);
        for direction in &mut self.directions {
            direction.measure(&*self.base, dataset, units);
        }
    }

    fn update(&mut self) {
        self.directions.iter_mut().for_each(|direction| direction.update());
    }

    fn gamma(&self, x: Tensor<4>, sigma: &[f64]) -> Option<Tensor<2>> {
        let at: Vec<Precondition> = sigma.iter().map(|&s| Precondition::new(s, self.sigma_data)).collect();
        let base = self.base.denoise(x.clone(), sigma);
        Some(self.gamma_at(&x, &base, sigma, &at))
    }

    fn log_variance(&self, sigma: &[f64]) -> Option<Tensor<1>> {
        self.base.log_variance(sigma)
    }
}
