//! The Softly Constrained Denoiser: any denoiser plus a learned multiple of the constraint's gradient.
//!
//! D(x; σ) = D₀(x; σ) + γ(x, σ) · s(σ) · ∇log l_c(D₀(x; σ)), the paper's Eq. 8 with s = σ² e^{−λσ}. It is trained with
//! the plain denoising loss, so its optimum is E[x0 | x] whatever the constraint: a wrong one is learned away.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::denoiser::{Denoiser, Precondition, per_sample};
use crate::mlp::{EMBEDDING, TwoLayer, noise_embedding};
use crate::parameter::{Parameters, Visitor, to_vec_f64};
use crate::random::{Purpose, Stream};
use crate::sampler::field_batch;

/// The factor between the constraint's gradient g and the correction that γ multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// σ² · damping · g: as written in the paper.
    Paper,
    /// damping · g.
    Plain,
    /// c_out · g / rms(g): only the direction counts.
    Unit,
    /// g · ‖R‖/‖g‖²: the step that would reach ‖R‖ = 0 if R were linear, so γ has no units.
    Polyak,
}

/// What keeps the correction of `paper` and `plain` bounded at high noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Damping {
    /// e^{−λσ}.
    Exponential,
    /// 1/‖g‖².
    GradientNorm,
}

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
}

/// How many numbers γ has per sample.
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScdConfig {
    /// How the gradient is scaled.
    pub scale: Scale,
    /// How `paper` and `plain` are damped at high noise.
    pub damping: Damping,
    /// λ of the exponential damping.
    pub lambda: Lambda,
    /// What γ looks at.
    pub input: GammaInput,
    /// How many numbers γ has.
    pub output: GammaOutput,
    /// Hidden units of γ's network.
    pub hidden: usize,
    /// Treat the gradient as a constant in training (ablation; wrong for residuals that are not linear).
    pub detach: bool,
}

impl Default for ScdConfig {
    fn default() -> Self {
        Self {
            scale: Scale::Plain,
            damping: Damping::Exponential,
            lambda: Lambda::Number(1.0),
            input: GammaInput::Noisy,
            output: GammaOutput::Scalar,
            hidden: 100,
            detach: false,
        }
    }
}

/// The learned weight γ: a two-layer network of a field and the noise level, zero at the start.
pub struct Gamma {
    network: TwoLayer,
    outputs: [usize; 3],
}

impl Gamma {
    /// A network for fields of shape `[C, H, W]`.
    pub fn new(config: &ScdConfig, shape: [usize; 3], stream: &mut Stream, device: &Device) -> Self {
        let outputs = match config.output {
            GammaOutput::Scalar => [1, 1, 1],
            GammaOutput::Channel => [shape[0], 1, 1],
            GammaOutput::Pixel => shape,
        };
        let inputs = shape.iter().product::<usize>() + EMBEDDING;
        let network = TwoLayer::new(inputs, config.hidden, outputs.iter().product(), stream, device);
        Self { network, outputs }
    }

    /// Field `[N, C, H, W]` and noise input c_noise per sample → γ `[N, outputs]`.
    pub fn forward(&self, field: Tensor<4>, noise: &[f64]) -> Tensor<2> {
        let [n, c, h, w] = field.dims();
        let embedding = noise_embedding(noise, &field.device());
        self.network.forward(Tensor::cat(vec![field.cast(DType::F32).reshape([n, c * h * w]), embedding], 1))
    }
}

/// Any denoiser with a soft constraint on top.
pub struct SoftlyConstrained {
    base: Box<dyn Denoiser>,
    constraint: Arc<SoftConstraint>,
    gamma: Gamma,
    config: ScdConfig,
    lambda: f64,
    sigma_data: f64,
}

impl SoftlyConstrained {
    /// Puts `constraint` on top of `base`. `lambda` is the resolved value of the configured one.
    pub fn new(
        base: Box<dyn Denoiser>,
        constraint: Arc<SoftConstraint>,
        gamma: Gamma,
        config: ScdConfig,
        lambda: f64,
        sigma_data: f64,
    ) -> Self {
        Self { base, constraint, gamma, config, lambda, sigma_data }
    }

    fn gamma_at(&self, x: &Tensor<4>, base: &Tensor<4>, at: &[Precondition]) -> Tensor<2> {
        let noise: Vec<f64> = at.iter().map(|c| c.noise).collect();
        let field = match self.config.input {
            GammaInput::Noisy => x.clone() * per_sample(at.iter().map(|c| c.input), x),
            GammaInput::Denoised => base.clone(),
        };
        self.gamma.forward(field, &noise)
    }

    /// The correction that γ multiplies: the constraint's gradient at the base estimate, scaled. `[N, C, H, W]`.
    fn direction(&self, base: &Tensor<4>, sigma: &[f64], at: &[Precondition]) -> Tensor<4> {
        let (norm, gradient) = self.constraint.norm_and_gradient(base);
        let (norm, gradient) = if self.config.detach { (norm.detach(), gradient.detach()) } else { (norm, gradient) };
        let [n, c, h, w] = gradient.dims();
        let squares = || (gradient.clone() * gradient.clone()).reshape([n, c * h * w]).sum_dim(1).reshape([n, 1, 1, 1]);
        // Small enough never to matter, large enough that its inverse is finite in f32.
        let floor = 1e-20;
        match self.config.scale {
            Scale::Unit => {
                let rms = (squares() / (c * h * w) as f64).clamp_min(floor).sqrt();
                gradient * (per_sample(at.iter().map(|a| a.out), base) / rms)
            }
            Scale::Polyak => gradient.clone() * (norm.reshape([n, 1, 1, 1]) / squares().clamp_min(floor)),
            Scale::Paper | Scale::Plain => {
                let power = if self.config.scale == Scale::Paper { 2 } else { 0 };
                match self.config.damping {
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

impl Parameters for SoftlyConstrained {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        self.base.visit(prefix, visit);
        self.gamma.network.visit(&format!("{prefix}gamma."), visit);
    }
}

impl Denoiser for SoftlyConstrained {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let at: Vec<Precondition> = sigma.iter().map(|&s| Precondition::new(s, self.sigma_data)).collect();
        let base = self.base.denoise(x.clone(), sigma);
        let [o1, o2, o3] = self.gamma.outputs;
        let gamma = self.gamma_at(&x, &base, &at).cast(x.dtype()).reshape([sigma.len(), o1, o2, o3]);
        base.clone() + gamma * self.direction(&base, sigma, &at)
    }

    fn gamma(&self, x: Tensor<4>, sigma: &[f64]) -> Option<Tensor<2>> {
        let at: Vec<Precondition> = sigma.iter().map(|&s| Precondition::new(s, self.sigma_data)).collect();
        let base = self.base.denoise(x.clone(), sigma);
        Some(self.gamma_at(&x, &base, &at))
    }

    fn log_variance(&self, sigma: &[f64]) -> Option<Tensor<1>> {
        self.base.log_variance(sigma)
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
