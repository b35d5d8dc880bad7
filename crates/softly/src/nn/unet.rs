//! The magnitude-preserving U-Net of EDM2: every layer keeps the size of its input, so no normalisation layers and no
//! weight decay are needed. Parameters have the names of the published network, so that weights can be exchanged.

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::nn::backbone::{Backbone, BuildBackbone, FieldShape, Footprint};
use crate::nn::layers::{Fourier, LogVariance, conv_weight, gain, linear_weight, unit_gain};
use crate::nn::mp_ops as mp;
use crate::nn::ops::fused;
use crate::nn::padding::Padding;
use crate::nn::parameter::{Parameter, Parameters, Visitor};
use crate::nn::precision::Precision;
use crate::nn::recompute;
use crate::random::Stream;

/// Weight of the residual branch and of attention in their sums.
const BRANCH: f64 = 0.3;
/// Activations stay within ±this.
const CLIP: f64 = 256.0;

/// The architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UNetConfig {
    /// Channels at the first level.
    pub channels: usize,
    /// Channels of each level as multiples of `channels`; every level halves the grid, which is padded inside the network to
    /// sides that can be halved so often.
    pub multipliers: Vec<usize>,
    /// Residual blocks per level of the encoder; the decoder has one more.
    pub blocks: usize,
    /// Levels with attention, by their number of grid rows (padded ones included). The middle has it in any case.
    #[serde(default)]
    pub attention: Vec<usize>,
    /// Channels per attention head; a level with fewer has no attention.
    #[serde(default = "default_head")]
    pub head: usize,
    /// Learn the log-variance of the loss by noise level as well.
    #[serde(default)]
    pub log_variance: bool,
    /// The numbers that the network computes with on devices other than the CPU.
    #[serde(default, skip_serializing_if = "Precision::is_single")]
    pub precision: Precision,
}

fn default_head() -> usize {
    64
}

impl BuildBackbone for UNetConfig {
    fn check(&self) -> Result<()> {
        // Checked with the grid when it is built.
        Ok(())
    }

    fn build(&self, shape: FieldShape, stream: &mut Stream, device: &Device) -> Result<Box<dyn Backbone>> {
        self.precision.check(device)?;
        Ok(Box::new(UNet::new(self, shape, stream, device)?))
    }

    fn footprint(&self, [_, rows, cols]: [usize; 3]) -> Footprint {
        let mut footprint = Footprint { weights: 0.0, activations: 0.0 };
        for (level, &multiplier) in self.multipliers.iter().enumerate() {
            let width = self.channels as f64 * multiplier as f64;
            let pixels = rows as f64 * cols as f64 / 4f64.powi(level as i32);
            // In the encoder, in the decoder with one more, and between levels or in the middle. A block has two 3×3 filters,
            // those of the decoder with up to twice as many inputs, and keeps about six fields per channel.
            let blocks = 2.0 * self.blocks as f64 + 3.0;
            footprint.weights += 27.0 * blocks * width * width;
            footprint.activations += 6.0 * blocks * width * pixels;
        }
        footprint
    }

    fn is_large(&self) -> bool {
        true
    }

    fn loss_scale(&self, shape: [usize; 3]) -> f64 {
        self.precision.loss_scale(shape)
    }

    fn can_recompute(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Resample {
    Keep,
    Down,
    Up,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Encoder,
    Decoder,
}

/// What distinguishes one block from another.
struct BlockPlan {
    name: String,
    side: Side,
    resample: Resample,
    inputs: usize,
    outputs: usize,
    /// Attention heads; 0 for none.
    heads: usize,
}

struct Attention {
    qkv: Parameter<4>,
    proj: Parameter<4>,
}

/// What a block does to its inputs, whatever its weights.
#[derive(Clone, Copy)]
struct BlockPath {
    side: Side,
    resample: Resample,
    /// Whether the number of channels changes.
    changes: bool,
    /// Attention heads; 0 for none.
    heads: usize,
}

impl BlockPath {
    /// `inputs` are x `[N, inputs, H, W]`, the embedding `[N, E]` and the weights in the order of [`Block::forward`] →
    /// `[N, outputs, H', W']`.
    fn forward(self, inputs: Vec<DispatchTensor>) -> Tensor<4> {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().expect("as many inputs as Block::forward gives");
        let x = Tensor::from_dispatch(next());
        let emb: Tensor<2> = Tensor::from_dispatch(next());
        let emb_gain: Tensor<1> = Tensor::from_dispatch(next());
        let emb_linear: Tensor<2> = Tensor::from_dispatch(next());
        let [conv_res0, conv_res1] = [next(), next()].map(Tensor::<4>::from_dispatch);
        let mut x = match self.resample {
            Resample::Keep => x,
            Resample::Down => mp::down(x),
            Resample::Up => mp::up(x),
        };
        let conv_skip = self.changes.then(|| Tensor::from_dispatch(next()));
        let skip = |x: Tensor<4>| match &conv_skip {
            Some(weight) => mp::conv(x, weight.clone()),
            None => x,
        };
        if self.side == Side::Encoder {
            x = mp::pixel_norm(skip(x));
        }
        let inner = mp::silu_conv(x.clone(), conv_res0);
        let scale = mp::linear(emb, emb_linear, emb_gain) + 1.0;
        let branch = mp::scaled_silu_conv(inner, scale, conv_res1);
        if self.side == Side::Decoder {
            x = skip(x);
        }
        if self.heads == 0 {
            return mp::sum(x, branch, BRANCH, CLIP);
        }
        let [qkv, proj] = [next(), next()].map(Tensor::<4>::from_dispatch);
        let x = mp::sum(x, branch, BRANCH, f64::INFINITY);
        let mixed = mp::attention(mp::conv(x.clone(), qkv), self.heads);
        mp::sum(x, mp::conv(mixed, proj), BRANCH, CLIP)
    }
}

/// A residual block, with attention or without.
struct Block {
    plan: BlockPlan,
    emb_gain: Parameter<1>,
    conv_res0: Parameter<4>,
    emb_linear: Parameter<2>,
    conv_res1: Parameter<4>,
    conv_skip: Option<Parameter<4>>,
    attention: Option<Attention>,
}

impl Block {
    fn new(plan: BlockPlan, embedding: usize, stream: &mut Stream, device: &Device) -> Self {
        let BlockPlan { inputs, outputs, heads, .. } = plan;
        // The encoder changes the number of channels before the residual branch, the decoder after it.
        let inner = if plan.side == Side::Encoder { outputs } else { inputs };
        Self {
            emb_gain: gain(device),
            conv_res0: conv_weight(inner, outputs, 3, stream, device),
            emb_linear: linear_weight(embedding, outputs, stream, device),
            conv_res1: conv_weight(outputs, outputs, 3, stream, device),
            conv_skip: (inputs != outputs).then(|| conv_weight(inputs, outputs, 1, stream, device)),
            attention: (heads > 0).then(|| Attention {
                qkv: conv_weight(outputs, 3 * outputs, 1, stream, device),
                proj: conv_weight(outputs, outputs, 1, stream, device),
            }),
            plan,
        }
    }

    /// `x [N, inputs, H, W]`, `emb [N, E]` → `[N, outputs, H', W']`.
    fn forward(&self, x: Tensor<4>, emb: &Tensor<2>) -> Tensor<4> {
        let BlockPlan { side, resample, heads, .. } = self.plan;
        let path = BlockPath { side, resample, changes: self.conv_skip.is_some(), heads };
        let weights = [&self.conv_res0, &self.conv_res1].into_iter().chain(&self.conv_skip);
        let weights = weights.chain(self.attention.iter().flat_map(|attention| [&attention.qkv, &attention.proj]));
        let mut inputs = vec![x.into_dispatch(), emb.clone().into_dispatch()];
        inputs.extend([self.emb_gain.get().into_dispatch(), self.emb_linear.get().into_dispatch()]);
        inputs.extend(weights.map(|weight| weight.get().into_dispatch()));
        recompute::part(inputs, move |inputs| path.forward(inputs))
    }
}

impl Parameters for Block {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        let prefix = format!("{prefix}{}.", self.plan.name);
        visit(&format!("{prefix}emb_gain"), &mut self.emb_gain);
        visit(&format!("{prefix}conv_res0.weight"), &mut self.conv_res0);
        visit(&format!("{prefix}emb_linear.weight"), &mut self.emb_linear);
        visit(&format!("{prefix}conv_res1.weight"), &mut self.conv_res1);
        if let Some(skip) = &mut self.conv_skip {
            visit(&format!("{prefix}conv_skip.weight"), skip);
        }
        if let Some(attention) = &mut self.attention {
            visit(&format!("{prefix}attn_qkv.weight"), &mut attention.qkv);
            visit(&format!("{prefix}attn_proj.weight"), &mut attention.proj);
        }
    }
}

/// The network.
pub struct UNet {
    padding: Padding,
    precision: DType,
    emb_fourier: Fourier,
    emb_noise: Parameter<2>,
    first: (String, Parameter<4>),
    encoder: Vec<Block>,
    /// Blocks, and whether each takes a skip connection.
    decoder: Vec<(Block, bool)>,
    out_conv: Parameter<4>,
    out_gain: Parameter<1>,
    log_variance: Option<LogVariance>,
}

impl UNet {
    /// A network for fields of `shape`, such as `[C, H, W]`, with initial weights.
    pub fn new(
        config: &UNetConfig,
        shape: impl Into<FieldShape>,
        stream: &mut Stream,
        device: &Device,
    ) -> Result<Self> {
        let FieldShape { size: [fields, rows, cols], periodic, .. } = shape.into();
        let padding = Padding::new([rows, cols], periodic, config.step([rows, cols])?);
        let [rows, cols] = padding.sides();
        let widths: Vec<usize> = config.multipliers.iter().map(|m| m * config.channels).collect();
        let embedding = widths.iter().copied().max().unwrap_or(config.channels);
        let heads = |level: usize| {
            if config.attention.contains(&(rows >> level)) { widths[level] / config.head } else { 0 }
        };
        let name = |level: usize, part: &str| format!("{}x{}_{part}", rows >> level, cols >> level);

        let emb_fourier = Fourier::new(widths[0], stream, device);
        let emb_noise = linear_weight(widths[0], embedding, stream, device);
        // One more channel of ones stands in for the biases that the network does not have.
        let first = (name(0, "conv"), conv_weight(fields + 1, widths[0], 3, stream, device));
        let mut block = |plan: BlockPlan| Block::new(plan, embedding, stream, device);
        let mut skips = vec![widths[0]];
        let mut now = widths[0];
        let mut encoder = Vec::new();
        let side = Side::Encoder;
        for (level, &width) in widths.iter().enumerate() {
            if level > 0 {
                let resample = Resample::Down;
                let plan = BlockPlan { name: name(level, "down"), side, resample, inputs: now, outputs: now, heads: 0 };
                encoder.push(block(plan));
                skips.push(now);
            }
            for i in 0..config.blocks {
                let name = name(level, &format!("block{i}"));
                let (resample, heads) = (Resample::Keep, heads(level));
                encoder.push(block(BlockPlan { name, side, resample, inputs: now, outputs: width, heads }));
                now = width;
                skips.push(now);
            }
        }
        let mut decoder = Vec::new();
        let side = Side::Decoder;
        for (level, &width) in widths.iter().enumerate().rev() {
            let keep = Resample::Keep;
            let plan = |name, resample, heads| BlockPlan { name, side, resample, inputs: now, outputs: now, heads };
            if level + 1 == widths.len() {
                decoder.push((block(plan(name(level, "in0"), keep, width / config.head)), false));
                decoder.push((block(plan(name(level, "in1"), keep, 0)), false));
            } else {
                decoder.push((block(plan(name(level, "up"), Resample::Up, 0)), false));
            }
            for i in 0..=config.blocks {
                let name = name(level, &format!("block{i}"));
                let inputs = now + skips.pop().expect("as many skips as decoder blocks");
                let plan = BlockPlan { name, side, resample: keep, inputs, outputs: width, heads: heads(level) };
                decoder.push((block(plan), true));
                now = width;
            }
        }
        let out_conv = conv_weight(now, fields, 3, stream, device);
        let log_variance = config.log_variance.then(|| LogVariance::new(stream, device));
        let out_gain = gain(device);
        let precision = config.precision.dtype();
        Ok(Self {
            padding,
            precision,
            emb_fourier,
            emb_noise,
            first,
            encoder,
            decoder,
            out_conv,
            out_gain,
            log_variance,
        })
    }
}

impl UNetConfig {
    /// 2^(levels − 1), which the sides of the grid are padded to multiples of; refuses settings that cannot work.
    fn step(&self, grid: [usize; 2]) -> Result<usize> {
        let problem = |what: String| Err(Error::input("denoiser.backbone", what));
        if self.channels == 0 || self.head == 0 || self.multipliers.is_empty() || self.multipliers.contains(&0) {
            return problem("`channels`, `head` and every one of `multipliers` must be at least 1".into());
        }
        let halvings = self.multipliers.len() - 1;
        let step = 1usize.checked_shl(halvings as u32).unwrap_or(usize::MAX);
        // A side that is mostly padding tells the network little.
        match grid.into_iter().find(|side| step / 2 > *side) {
            None => Ok(step),
            Some(side) => {
                let [rows, cols] = grid;
                let found = format!("{} levels halve the grid {halvings} times", self.multipliers.len());
                let problem = format!("{found}, and {side} nodes of a {rows}×{cols} grid are too few for that");
                Err(Error::input("denoiser.backbone.multipliers", problem).hint("use fewer levels"))
            }
        }
    }
}

impl Parameters for UNet {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        let unet = format!("{prefix}unet.");
        self.emb_fourier.visit(&format!("{unet}emb_fourier."), visit);
        visit(&format!("{unet}emb_noise.weight"), &mut self.emb_noise);
        let (name, weight) = &mut self.first;
        visit(&format!("{unet}enc.{name}.weight"), weight);
        for block in &mut self.encoder {
            block.visit(&format!("{unet}enc."), visit);
        }
        for (block, _) in &mut self.decoder {
            block.visit(&format!("{unet}dec."), visit);
        }
        visit(&format!("{unet}out_conv.weight"), &mut self.out_conv);
        visit(&format!("{unet}out_gain"), &mut self.out_gain);
        if let Some(head) = &mut self.log_variance {
            head.visit(prefix, visit);
        }
    }
}

impl Backbone for UNet {
    fn forward(&self, x: Tensor<4>, noise: &[f64]) -> Tensor<4> {
        let x = self.padding.pad(x);
        let [n, _, h, w] = x.dims();
        let device = x.device().without_autodiff();
        let features = self.emb_fourier.forward(noise);
        let emb = mp::silu(mp::linear(features, self.emb_noise.get(), unit_gain(&device)));
        let ones = Tensor::ones([n, 1, h, w], &device);
        // Kernels of ours know single precision only.
        let precision = if fused(&x) { DType::F32 } else { self.precision };
        let x = Tensor::cat(vec![x, ones], 1).cast(precision);
        let mut x = mp::conv(x, self.first.1.get());
        let mut skips = vec![x.clone()];
        for block in &self.encoder {
            x = block.forward(x, &emb);
            skips.push(x.clone());
        }
        for (block, with_skip) in &self.decoder {
            if *with_skip {
                x = mp::cat(x, skips.pop().expect("as many skips as decoder blocks"));
            }
            x = block.forward(x, &emb);
        }
        let y = mp::conv(x, self.out_conv.get()).cast(DType::F32);
        self.padding.crop(y) * self.out_gain.get().reshape([1, 1, 1, 1])
    }

    fn log_variance(&self, noise: &[f64]) -> Option<Tensor<1>> {
        self.log_variance.as_ref().map(|head| head.forward(noise))
    }
}
