//! A neural operator: a network of functions, of which a grid shows some values.
//!
//! ```text
//! F:      fields, 1, φ₁(x̂), φ₂(x̂), φ₁(ŷ), φ₂(ŷ) → lift → blocks → fields
//! block:  x ← x̃ ⊕ W₂ silu(c(σ) · (W₁ s ⊕ K s)),   s = silu(x̃),  x̃ = x/‖x‖ over channels
//! K s:    Σ_pq φ_p(x̂) φ_q(ŷ) W_pq ∫∫ φ_p φ_q s dx̂ dŷ
//! ```
//!
//! W₁, W₂ act on the channels at single points, W_pq on the channels of a wave; the waves φ are those of
//! [`softly_pde::waves`] and the integrals are sums over points with the weights of the grid, exact for waves that it
//! resolves. No weight belongs to a grid, so the network is one map of functions at any resolution. Sums ⊕ and weights
//! preserve magnitudes as in [`crate::nn::unet`].

use burn::tensor::{DType, Device, Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::grid::{Axis, Placement};
use softly_pde::waves::wave;

use crate::error::{Error, Result};
use crate::nn::backbone::{Backbone, BuildBackbone, FieldShape, Footprint};
use crate::nn::layers::{Fourier, LogVariance, conv_weight, gain, linear_weight, unit_gain};
use crate::nn::mp_ops as mp;
use crate::nn::ops;
use crate::nn::parameter::{Parameter, Parameters, Visitor};
use crate::random::Stream;
use crate::tensors::uploaded;

/// Weight of the branch of a block in its sum.
const BRANCH: f64 = 0.3;
/// Activations stay within ±this.
const CLIP: f64 = 256.0;
/// Waves of each axis, beside the constant, that tell the network where it is.
const PLACES: usize = 2;

/// The architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorConfig {
    /// Channels between the blocks.
    pub channels: usize,
    /// Waves along each axis that blocks mix; a grid must have more points along each axis.
    pub modes: usize,
    /// Blocks.
    pub blocks: usize,
    /// Learn the log-variance of the loss by noise level as well.
    #[serde(default)]
    pub log_variance: bool,
}

impl BuildBackbone for OperatorConfig {
    fn check(&self) -> Result<()> {
        if self.channels > 0 && self.blocks > 0 && self.modes > PLACES {
            return Ok(());
        }
        let Self { channels, modes, blocks, .. } = self;
        let problem = format!(
            "expected at least 1 channel, 1 block and {} modes, found {channels}, {blocks} and {modes}",
            PLACES + 1
        );
        Err(Error::input("denoiser.backbone", problem))
    }

    fn build(&self, shape: FieldShape, stream: &mut Stream, device: &Device) -> Result<Box<dyn Backbone>> {
        Ok(Box::new(Operator::new(self, shape, stream, device)?))
    }

    fn footprint(&self, [_, rows, cols]: [usize; 3]) -> Footprint {
        let [width, modes, blocks] = [self.channels, self.modes, self.blocks].map(|n| n as f64);
        Footprint {
            weights: blocks * width * width * (modes * modes + 3.0),
            // About nine fields per channel of a block.
            activations: 9.0 * blocks * width * rows as f64 * cols as f64,
        }
    }

    fn any_resolution(&self) -> bool {
        true
    }

    fn is_large(&self) -> bool {
        true
    }
}

/// The waves along one axis as matrices.
struct Basis {
    /// φ_p at the points, `[n, modes]`.
    synthesis: Tensor<2>,
    /// φ_p times the weights of the points, `[modes, n]`.
    analysis: Tensor<2>,
}

impl Basis {
    fn new(axis: &Axis, modes: usize, device: &Device) -> Self {
        let n = axis.nodes;
        let value = |i: usize, p: usize| wave(axis.periodic, p, axis.coordinate(i));
        let weights = axis.weights();
        let synthesis = (0..n * modes).map(|k| value(k / modes, k % modes) as f32).collect::<Vec<_>>();
        let analysis = (0..modes * n).map(|k| (weights[k % n] * value(k % n, k / n)) as f32).collect::<Vec<_>>();
        let device = device.clone().without_autodiff();
        Self {
            synthesis: uploaded(TensorData::new(synthesis, [n, modes]), &device, DType::F32),
            analysis: uploaded(TensorData::new(analysis, [modes, n]), &device, DType::F32),
        }
    }

    /// Sums over the last axis: `x [A, B, n]`, `matrix [m, n]` → `[A, m, B]`, the new axis moved to the front of the
    /// other.
    fn apply(matrix: &Tensor<2>, x: Tensor<3>) -> Tensor<3> {
        let ([a, b, n], m) = (x.dims(), matrix.dims()[0]);
        let zero = Tensor::zeros([m], &matrix.device());
        ops::linear(x.reshape([a * b, n]), matrix.clone(), zero).reshape([a, b, m]).swap_dims(1, 2)
    }
}

/// The waves of fields of one size.
struct Waves {
    rows: Basis,
    cols: Basis,
}

impl Waves {
    /// K s: `x [N, C, H, W]` with `weight [modes², O, C]` → `[N, O, H, W]`.
    fn mix(&self, x: Tensor<4>, weight: Tensor<3>) -> Tensor<4> {
        let [n, c, h, w] = x.dims();
        let ([modes2, outputs, _], modes) = (weight.dims(), self.rows.analysis.dims()[0]);
        // [NC, H, W] → [NC, q, H] → [NC, p, q].
        let waves = Basis::apply(&self.cols.analysis, x.reshape([n * c, h, w]));
        let waves = Basis::apply(&self.rows.analysis, waves);
        // [pq, O, C] [pq, C, N].
        let waves = waves.reshape([n, c, modes2]).permute([2, 1, 0]);
        let mixed: Tensor<3> = weight.matmul(waves);
        // [N, O, pq] → [NO, p, q] → [NO, W, p] → [NO, H, W].
        let mixed = mixed.permute([2, 1, 0]).reshape([n * outputs, modes, modes]);
        let lines = Basis::apply(&self.cols.synthesis, mixed);
        Basis::apply(&self.rows.synthesis, lines).reshape([n, outputs, h, w])
    }
}

/// One block.
struct Block {
    emb_gain: Parameter<1>,
    emb_linear: Parameter<2>,
    /// W₁.
    local: Parameter<4>,
    /// W_pq, `[modes² · C, C]`.
    waves: Parameter<2>,
    /// W₂.
    out: Parameter<4>,
}

impl Block {
    fn new(config: &OperatorConfig, stream: &mut Stream, device: &Device) -> Self {
        let (width, modes2) = (config.channels, config.modes * config.modes);
        Self {
            emb_gain: gain(device),
            emb_linear: linear_weight(width, width, stream, device),
            local: conv_weight(width, width, 1, stream, device),
            waves: linear_weight(width, modes2 * width, stream, device),
            out: conv_weight(width, width, 1, stream, device),
        }
    }

    /// `x [N, C, H, W]`, `emb [N, C]` → `[N, C, H, W]`.
    fn forward(&self, x: Tensor<4>, emb: &Tensor<2>, waves: &Waves) -> Tensor<4> {
        let x = mp::pixel_norm(x);
        let width = x.dims()[1];
        let used = mp::used_weight(self.waves.get());
        let modes2 = used.dims()[0] / width;
        let local = mp::silu_conv(x.clone(), self.local.get());
        let mixed = waves.mix(mp::silu(x.clone()), used.reshape([modes2, width, width]));
        let inner = mp::sum(local, mixed, 0.5, f64::INFINITY);
        let scale = mp::linear(emb.clone(), self.emb_linear.get(), self.emb_gain.get()) + 1.0;
        let branch = mp::scaled_silu_conv(inner, scale, self.out.get());
        mp::sum(x, branch, BRANCH, CLIP)
    }
}

impl Parameters for Block {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit(&format!("{prefix}emb_gain"), &mut self.emb_gain);
        visit(&format!("{prefix}emb_linear.weight"), &mut self.emb_linear);
        visit(&format!("{prefix}local.weight"), &mut self.local);
        visit(&format!("{prefix}waves.weight"), &mut self.waves);
        visit(&format!("{prefix}out.weight"), &mut self.out);
    }
}

/// The network on one grid; its weights fit every grid.
pub struct Operator {
    waves: Waves,
    /// 1 and the first waves of each axis, `[1, 1 + 2 PLACES, H, W]`.
    places: Tensor<4>,
    emb_fourier: Fourier,
    emb_noise: Parameter<2>,
    lift: Parameter<4>,
    blocks: Vec<Block>,
    out_conv: Parameter<4>,
    out_gain: Parameter<1>,
    log_variance: Option<LogVariance>,
}

impl Operator {
    /// A network for fields of `shape`, such as `[C, H, W]`, with initial weights, which do not depend on H and W.
    pub fn new(
        config: &OperatorConfig,
        shape: impl Into<FieldShape>,
        stream: &mut Stream,
        device: &Device,
    ) -> Result<Self> {
        config.check()?;
        let FieldShape { size: [fields, rows, cols], periodic, cells } = shape.into();
        if rows.min(cols) <= config.modes {
            let problem =
                format!("{} waves need more points than a {rows}×{cols} grid has along each axis", config.modes);
            return Err(Error::input("denoiser.backbone.modes", problem).hint("use fewer modes, or a finer grid"));
        }
        let axis = |i: usize, nodes: usize| {
            let placement = if cells[i] { Placement::Cells } else { Placement::Nodes };
            Axis { periodic: periodic[i], placement, ..Axis::new("x", nodes, 0.0, 1.0) }
        };
        let [rows, cols] = [axis(0, rows), axis(1, cols)];
        let width = config.channels;
        Ok(Self {
            places: places(&rows, &cols, device),
            waves: Waves {
                rows: Basis::new(&rows, config.modes, device),
                cols: Basis::new(&cols, config.modes, device),
            },
            emb_fourier: Fourier::new(width, stream, device),
            emb_noise: linear_weight(width, width, stream, device),
            lift: conv_weight(fields + 1 + 2 * PLACES, width, 1, stream, device),
            blocks: (0..config.blocks).map(|_| Block::new(config, stream, device)).collect(),
            out_conv: conv_weight(width, fields, 1, stream, device),
            out_gain: gain(device),
            log_variance: config.log_variance.then(|| LogVariance::new(stream, device)),
        })
    }
}

/// 1 and the first waves of each axis at every point, `[1, 1 + 2 PLACES, H, W]`.
fn places(rows: &Axis, cols: &Axis, device: &Device) -> Tensor<4> {
    let (h, w) = (rows.nodes, cols.nodes);
    let mut values = vec![1.0_f32; h * w];
    for p in 1..=PLACES {
        let down = (0..h * w).map(|node| wave(rows.periodic, p, rows.coordinate(node / w)) as f32);
        let across = (0..h * w).map(|node| wave(cols.periodic, p, cols.coordinate(node % w)) as f32);
        values.extend(down.chain(across));
    }
    let values = TensorData::new(values, [1, 1 + 2 * PLACES, h, w]);
    uploaded(values, &device.clone().without_autodiff(), DType::F32)
}

impl Parameters for Operator {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        let operator = format!("{prefix}operator.");
        self.emb_fourier.visit(&format!("{operator}emb_fourier."), visit);
        visit(&format!("{operator}emb_noise.weight"), &mut self.emb_noise);
        visit(&format!("{operator}lift.weight"), &mut self.lift);
        for (i, block) in self.blocks.iter_mut().enumerate() {
            block.visit(&format!("{operator}block{i}."), visit);
        }
        visit(&format!("{operator}out_conv.weight"), &mut self.out_conv);
        visit(&format!("{operator}out_gain"), &mut self.out_gain);
        if let Some(head) = &mut self.log_variance {
            head.visit(prefix, visit);
        }
    }
}

impl Backbone for Operator {
    fn forward(&self, x: Tensor<4>, noise: &[f64]) -> Tensor<4> {
        let [n, _, h, w] = x.dims();
        let device = x.device().without_autodiff();
        let features = self.emb_fourier.forward(noise);
        let emb = mp::silu(mp::linear(features, self.emb_noise.get(), unit_gain(&device)));
        let places = self.places.clone().expand([n, 1 + 2 * PLACES, h, w]);
        let mut x = mp::conv(Tensor::cat(vec![x, places], 1), self.lift.get());
        for block in &self.blocks {
            x = block.forward(x, &emb, &self.waves);
        }
        mp::conv(x, self.out_conv.get()) * self.out_gain.get().reshape([1, 1, 1, 1])
    }

    fn log_variance(&self, noise: &[f64]) -> Option<Tensor<1>> {
        self.log_variance.as_ref().map(|head| head.forward(noise))
    }
}
