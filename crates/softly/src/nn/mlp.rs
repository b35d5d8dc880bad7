//! Small networks for points: the toy study's backbone, PIDM's original one, and the two-layer network behind gamma.

use burn::tensor::{DType, Device, Tensor};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::at_least_one;
use crate::error::Result;
use crate::nn::backbone::{Backbone, BuildBackbone, FieldShape, Footprint};
use crate::nn::ops;
use crate::nn::parameter::{Parameter, Parameters, Visitor};
use crate::random::Stream;
use crate::tensors::constant;

/// Numbers in the embedding of a noise level.
pub const EMBEDDING: usize = 8;

/// Fourier features of a noise input c: √2·[cos(ω c), sin(ω c)] with ω = π·{¼, ½, 1, 2}; `[N, 8]`.
pub fn noise_embedding(noise: &[f64], device: &Device) -> Tensor<2> {
    constant(noise_features(noise), [noise.len(), EMBEDDING], device, DType::F32)
}

/// The numbers of [`noise_embedding`].
pub(crate) fn noise_features(noise: &[f64]) -> Vec<f64> {
    let features = |c: f64| -> [f64; EMBEDDING] {
        let waves = [0.25, 0.5, 1.0, 2.0].map(|w| std::f64::consts::PI * w * c);
        std::array::from_fn(|i| std::f64::consts::SQRT_2 * if i < 4 { waves[i].cos() } else { waves[i - 4].sin() })
    };
    // A sampler has the same noise level in the whole batch.
    let runs = noise.chunk_by(|a, b| a == b);
    runs.flat_map(|run| std::iter::repeat_n(features(run[0]), run.len())).flatten().collect()
}

/// y = x Wᵀ + b, with W `[outputs, inputs]` as in PyTorch.
pub struct Linear {
    weight: Parameter<2>,
    bias: Parameter<1>,
}

/// `n` numbers uniform in ±1/√fan_in.
fn uniform(n: usize, fan_in: usize, stream: &mut Stream) -> Vec<f32> {
    let bound = 1.0 / (fan_in as f64).sqrt();
    (0..n).map(|_| (bound * (2.0 * stream.uniform() - 1.0)) as f32).collect()
}

impl Linear {
    /// Weights and bias uniform in ±1/√inputs.
    pub fn new(inputs: usize, outputs: usize, stream: &mut Stream, device: &Device) -> Self {
        Self {
            weight: Parameter::new(uniform(outputs * inputs, inputs, stream), [outputs, inputs], device),
            bias: Parameter::new(uniform(outputs, inputs, stream), [outputs], device),
        }
    }

    /// Its output is `bias` at the start, whatever comes in.
    pub fn constant(inputs: usize, bias: Vec<f32>, device: &Device) -> Self {
        let outputs = bias.len();
        Self {
            weight: Parameter::new(vec![0.0; outputs * inputs], [outputs, inputs], device),
            bias: Parameter::new(bias, [outputs], device),
        }
    }

    /// `[N, inputs]` → `[N, outputs]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        ops::linear(x, self.weight.get(), self.bias.get())
    }
}

impl Parameters for Linear {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit(&format!("{prefix}weight"), &mut self.weight);
        visit(&format!("{prefix}bias"), &mut self.bias);
    }
}

/// Calls `visit` on each named part, extending the prefix.
macro_rules! visit_parts {
    ($self:ident, $prefix:ident, $visit:ident, $($part:ident),+) => {
        $( $self.$part.visit(&format!(concat!("{}", stringify!($part), "."), $prefix), $visit); )+
    };
}

/// A hidden layer modulated by the noise level: SiLU((W h + b)(1 + S e) + E e).
struct Modulated {
    weight: Parameter<2>,
    bias: Parameter<1>,
    scale: Parameter<2>,
    shift: Parameter<2>,
}

impl Modulated {
    fn new(inputs: usize, outputs: usize, stream: &mut Stream, device: &Device) -> Self {
        let mut draw = |n: usize, fan_in: usize| uniform(n, fan_in, stream);
        Self {
            weight: Parameter::new(draw(outputs * inputs, inputs), [outputs, inputs], device),
            bias: Parameter::new(draw(outputs, inputs), [outputs], device),
            scale: Parameter::new(draw(outputs * EMBEDDING, EMBEDDING), [outputs, EMBEDDING], device),
            shift: Parameter::new(draw(outputs * EMBEDDING, EMBEDDING), [outputs, EMBEDDING], device),
        }
    }

    /// `[N, inputs]`, embedding `[N, 8]` → `[N, outputs]`.
    fn forward(&self, x: Tensor<2>, embedding: &Tensor<2>) -> Tensor<2> {
        let Self { weight, bias, scale, shift } = self;
        ops::modulated(x, weight.get(), bias.get(), embedding.clone(), scale.get(), shift.get())
    }
}

impl Parameters for Modulated {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit(&format!("{prefix}weight"), &mut self.weight);
        visit(&format!("{prefix}bias"), &mut self.bias);
        visit(&format!("{prefix}scale"), &mut self.scale);
        visit(&format!("{prefix}shift"), &mut self.shift);
    }
}

/// Three linear layers, modulated by the noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MlpConfig {
    /// Hidden units.
    pub hidden: usize,
}

impl BuildBackbone for MlpConfig {
    fn check(&self) -> Result<()> {
        at_least_one("denoiser.backbone.hidden", self.hidden as u64)
    }

    fn build(&self, shape: FieldShape, stream: &mut Stream, device: &Device) -> Result<Box<dyn Backbone>> {
        Ok(Box::new(Mlp::new(shape.size.iter().product(), self.hidden, stream, device)))
    }

    fn footprint(&self, shape: [usize; 3]) -> Footprint {
        of_three_layers(shape, self.hidden, EMBEDDING)
    }
}

/// The size of three linear layers whose hidden ones are modulated by `levels` numbers.
fn of_three_layers(shape: [usize; 3], hidden: usize, levels: usize) -> Footprint {
    let inputs: f64 = shape.iter().map(|&side| side as f64).product();
    let (hidden, levels) = (hidden as f64, levels as f64);
    Footprint { weights: hidden * (hidden + 2.0 * inputs + 4.0 * levels), activations: 8.0 * hidden + 2.0 * inputs }
}

/// PIDM's three linear layers with a learned row per noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LevelMlpConfig {
    /// Hidden units.
    pub hidden: usize,
    /// Noise levels.
    pub levels: usize,
}

impl BuildBackbone for LevelMlpConfig {
    fn check(&self) -> Result<()> {
        at_least_one("denoiser.backbone.hidden", self.hidden as u64)?;
        at_least_one("denoiser.backbone.levels", self.levels as u64)
    }

    fn build(&self, shape: FieldShape, stream: &mut Stream, device: &Device) -> Result<Box<dyn Backbone>> {
        Ok(Box::new(LevelMlp::new(shape.size.iter().product(), self.hidden, self.levels, stream, device)))
    }

    fn footprint(&self, shape: [usize; 3]) -> Footprint {
        of_three_layers(shape, self.hidden, self.levels)
    }

    fn levels(&self) -> Option<usize> {
        Some(self.levels)
    }
}

/// Three linear layers, hidden ones modulated by the noise level: the toy study's network.
pub struct Mlp {
    first: Modulated,
    second: Modulated,
    last: Linear,
}

impl Mlp {
    /// A network on `channels` numbers with `hidden` units per hidden layer.
    pub fn new(channels: usize, hidden: usize, stream: &mut Stream, device: &Device) -> Self {
        Self {
            first: Modulated::new(channels, hidden, stream, device),
            second: Modulated::new(hidden, hidden, stream, device),
            last: Linear::new(hidden, channels, stream, device),
        }
    }
}

impl Parameters for Mlp {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit_parts!(self, prefix, visit, first, second, last);
    }
}

impl Backbone for Mlp {
    fn forward(&self, x: Tensor<4>, noise: &[f64]) -> Tensor<4> {
        let dims = x.dims();
        let embedding = noise_embedding(noise, &x.device());
        let flat = x.reshape([dims[0], dims[1] * dims[2] * dims[3]]);
        let hidden = self.second.forward(self.first.forward(flat, &embedding), &embedding);
        self.last.forward(hidden).reshape(dims)
    }
}

/// PIDM's toy backbone: hidden layers are multiplied by a learned row per noise level, softplus activations.
pub struct LevelMlp {
    first: Linear,
    second: Linear,
    last: Linear,
    first_level: Parameter<2>,
    second_level: Parameter<2>,
}

impl LevelMlp {
    /// A network on `channels` numbers with `hidden` units for `levels` noise levels.
    pub fn new(channels: usize, hidden: usize, levels: usize, stream: &mut Stream, device: &Device) -> Self {
        let mut table = || {
            let values = (0..levels * hidden).map(|_| stream.uniform() as f32).collect();
            Parameter::new(values, [levels, hidden], device)
        };
        let (first_level, second_level) = (table(), table());
        Self {
            first: Linear::new(channels, hidden, stream, device),
            second: Linear::new(hidden, hidden, stream, device),
            last: Linear::new(hidden, channels, stream, device),
            first_level,
            second_level,
        }
    }
}

impl Parameters for LevelMlp {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit_parts!(self, prefix, visit, first, second, last);
        visit(&format!("{prefix}first_level"), &mut self.first_level);
        visit(&format!("{prefix}second_level"), &mut self.second_level);
    }
}

impl Backbone for LevelMlp {
    fn forward(&self, x: Tensor<4>, noise: &[f64]) -> Tensor<4> {
        let dims = x.dims();
        let levels = noise.iter().map(|level| level.trunc()).collect();
        let levels = constant::<1>(levels, [dims[0]], &x.device(), DType::F32).int();
        let flat = x.reshape([dims[0], dims[1] * dims[2] * dims[3]]);
        let layer = |x: Tensor<2>, layer: &Linear, table: &Parameter<2>| {
            let factor = table.get().select(0, levels.clone());
            ops::linear_softplus(x, layer.weight.get(), layer.bias.get(), factor)
        };
        let hidden = layer(layer(flat, &self.first, &self.first_level), &self.second, &self.second_level);
        self.last.forward(hidden).reshape(dims)
    }
}

/// Two linear layers with a SiLU between; the second starts at zero but for its bias, which is then the output.
pub struct TwoLayer {
    first: Linear,
    last: Linear,
}

impl TwoLayer {
    /// `inputs` → `hidden` → as many outputs as `start` has values.
    pub fn new(inputs: usize, hidden: usize, start: Vec<f32>, stream: &mut Stream, device: &Device) -> Self {
        Self { first: Linear::new(inputs, hidden, stream, device), last: Linear::constant(hidden, start, device) }
    }

    /// `[N, inputs]` → `[N, outputs]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.last.forward(ops::linear_silu(x, self.first.weight.get(), self.first.bias.get()))
    }
}

impl Parameters for TwoLayer {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit_parts!(self, prefix, visit, first, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    #[test]
    fn the_toy_network_has_the_expected_size() {
        let stream = &mut Stream::new(0, Purpose::Weights, 0);
        assert_eq!(Mlp::new(2, 128, stream, &Device::flex()).count_parameters(), 21_250);
        assert_eq!(TwoLayer::new(2 + EMBEDDING, 100, vec![0.0], stream, &Device::flex()).count_parameters(), 1_201);
    }
}
