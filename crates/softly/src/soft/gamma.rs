//! The learned weights γ(x, σ) on the directions of a soft constraint.

use burn::tensor::{DType, Device, Tensor};

use crate::direction::Direction;
use crate::direction::config::{GammaInput, GammaOutput, ScdConfig};
use crate::error::{Error, Result};
use crate::nn::mlp::{EMBEDDING, TwoLayer, noise_embedding};
use crate::nn::parameter::{Parameters, Visitor};
use crate::random::Stream;
use crate::tensors::constant;

/// γ: a two-layer network of the inputs that [`GammaInput`] names and of the noise level, or constants. A network starts at
/// [`Direction::first_weight`].
pub struct Gamma {
    weights: Weights,
    /// Broadcastable shape of one direction's γ, `[C, H, W]`.
    pub(super) outputs: [usize; 3],
}

enum Weights {
    Learned(Box<TwoLayer>),
    Constant(Vec<f64>),
}

impl Gamma {
    /// Weights on `directions` along a constraint of so many `equations`, for fields of shape `[C, H, W]`.
    pub fn new(
        config: &ScdConfig,
        directions: &[Box<dyn Direction>],
        equations: usize,
        shape: [usize; 3],
        stream: &mut Stream,
        device: &Device,
    ) -> Result<Self> {
        let outputs = match config.output {
            GammaOutput::Scalar => [1, 1, 1],
            GammaOutput::Channel => [shape[0], 1, 1],
            GammaOutput::Pixel => shape,
        };
        let inputs = match config.input {
            GammaInput::Noisy | GammaInput::Denoised => shape.iter().product(),
            // ln σ/4 and two numbers of each residual.
            GammaInput::Features => 1 + 2 * equations,
        };
        let per_direction: usize = outputs.iter().product();
        let count = directions.len() * per_direction;
        let weights = match &config.constant {
            Some(values) if values.len() != count => {
                let problem = format!("expected {count} numbers, found {}", values.len());
                return Err(Error::input("denoiser.scd.constant", problem)
                    .hint("one per direction, times the number of channels if `output` is \"channel\""));
            }
            Some(values) => Weights::Constant(values.clone()),
            None => {
                let first = directions.iter().flat_map(|d| vec![d.first_weight(); per_direction]).collect();
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
                constant(all, shape, &inputs.device(), DType::F32)
            }
            Weights::Learned(network) => {
                let embedding = noise_embedding(noise, &inputs.device());
                network.forward(Tensor::cat(vec![inputs.cast(DType::F32), embedding], 1))
            }
        }
    }
}

impl Parameters for Gamma {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        if let Weights::Learned(network) = &mut self.weights {
            network.visit(prefix, visit);
        }
    }
}
