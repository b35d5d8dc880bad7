//! The magnitude-preserving operations of the EDM2 network on tensors.
//!
//! On the CPU each is one operation of the autodiff graph with kernels for both passes; elsewhere, and inside
//! [`composed`](crate::host::composed), it is composed of ordinary tensor operations. A backward pass computes
//! activations and normalised weights again rather than keeping them: memory is what limits the batch.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Tensor, TensorData, activation};
use burn_flex::FlexTensor;
use softly_kernels::activation::{mp_silu, mp_silu_grad, mp_silu_scaled, mp_silu_scaled_grad};
use softly_kernels::attention::{AttentionShape, attention as attend, attention_grad};
use softly_kernels::conv1x1::{conv1x1, conv1x1_grad_input, conv1x1_grad_weights};
use softly_kernels::conv3x3::{conv3x3, conv3x3_grad_input, conv3x3_grad_weights};
use softly_kernels::matmul::{MatmulShape, matmul, matmul_nt, matmul_tn};
use softly_kernels::mp::{mp_cat, mp_cat_grad, mp_sum, mp_sum_grad};
use softly_kernels::norm::{pixel_norm as norm_pixels, pixel_norm_grad, weight_norm, weight_norm_grad};
use softly_kernels::resample::{ResampleShape, downsample, downsample_grad, upsample, upsample_grad};
use softly_kernels::scratch::Scratch;
use softly_kernels::shape::{ConvShape, Planes};

use crate::nn::ops::{dims2, fused, record, values};

/// Added to a root mean square before dividing by it.
const EPSILON: f64 = 1e-4;
/// Root mean square of silu(x) for standard normal x.
const SILU_SIZE: f64 = 0.596;

/// Calls a kernel operation on tensors.
macro_rules! call {
    ($op:ident($($tensor:expr),+ $(; $($other:expr),+)?)) => {
        Tensor::from_dispatch(<Dispatch as MpKernels>::$op($($tensor.into_dispatch()),+ $(, $($other),+)?))
    };
}

/// Convolution with the used weights ŵ = w/(1e-4 + rms_row(w))/√fan_in and zero padding: `x [N, I, H, W]`,
/// `w [O, I, k, k]` with k = 1 or 3 → `[N, O, H, W]`.
pub fn conv(x: Tensor<4>, w: Tensor<4>) -> Tensor<4> {
    if fused(&x) {
        return call!(mp_conv(x, w; false));
    }
    conv_composed(x, w)
}

/// [`conv`] of mp_silu(x) = silu(x)/0.596.
pub fn silu_conv(x: Tensor<4>, w: Tensor<4>) -> Tensor<4> {
    if fused(&x) {
        return call!(mp_conv(x, w; true));
    }
    conv_composed(silu(x), w)
}

/// [`conv`] of mp_silu(c·x) with one factor per sample and channel: `x [N, I, H, W]`, `c [N, I]`.
pub fn scaled_silu_conv(x: Tensor<4>, c: Tensor<2>, w: Tensor<4>) -> Tensor<4> {
    if fused(&x) {
        return call!(mp_scaled_conv(x, c, w));
    }
    let [n, channels] = c.dims();
    let c = c.reshape([n, channels, 1, 1]).cast(x.dtype());
    conv_composed(silu(x * c), w)
}

/// x ŵᵀ with the used weights of [`conv`] times `gain [1]`: `x [N, I]`, `w [O, I]` → `[N, O]`.
pub fn linear(x: Tensor<2>, w: Tensor<2>, gain: Tensor<1>) -> Tensor<2> {
    if fused(&x) {
        return call!(mp_linear(x, w, gain));
    }
    x.matmul(used_weight(w).transpose()) * gain.unsqueeze()
}

/// mp_silu(x) = silu(x)/0.596, any shape.
pub fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    activation::silu(x) / SILU_SIZE
}

/// ((1−t) a + t b)/√((1−t)²+t²), moved into ±`clip`: `[N, C, H, W]` all.
pub fn sum(a: Tensor<4>, b: Tensor<4>, t: f64, clip: f64) -> Tensor<4> {
    if fused(&a) {
        return call!(mp_sum(a, b; t, clip));
    }
    let size = (1.0 - t).hypot(t);
    let sum = a * ((1.0 - t) / size) + b * (t / size);
    if clip.is_finite() { sum.clamp(-clip, clip) } else { sum }
}

/// Channels of a and b side by side with equal weight in magnitude: `[N, A, H, W]`, `[N, B, H, W]` → `[N, A+B, H, W]`.
pub fn cat(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    if fused(&a) {
        return call!(mp_cat(a, b));
    }
    let [na, nb] = [&a, &b].map(|t| t.dims()[1] as f64);
    let size = ((na + nb) / 0.5).sqrt() * 0.5;
    Tensor::cat(vec![a * (size / na.sqrt()), b * (size / nb.sqrt())], 1)
}

/// Every pixel divided by 1e-4 + its root mean square over channels: `[N, C, H, W]`.
pub fn pixel_norm(x: Tensor<4>) -> Tensor<4> {
    if fused(&x) {
        return call!(mp_pixel_norm(x));
    }
    let rms = rms_along(x.clone(), 1) + EPSILON;
    x.clone() / rms.cast(x.dtype())
}

/// √mean x² along an axis, in single precision: squares of activations leave the range of half precision.
fn rms_along<const D: usize>(x: Tensor<D>, axis: usize) -> Tensor<D> {
    let x = x.cast(DType::F32);
    (x.clone() * x).mean_dim(axis).sqrt()
}

/// Means of 2×2 pixels: `[N, C, 2H, 2W]` → `[N, C, H, W]`.
pub fn down(x: Tensor<4>) -> Tensor<4> {
    if fused(&x) {
        return call!(mp_resample(x; false));
    }
    let [n, c, h, w] = x.dims();
    x.reshape([n * c, h / 2, 2, w / 2, 2]).mean_dim(4).mean_dim(2).reshape([n, c, h / 2, w / 2])
}

/// Every pixel repeated 2×2: `[N, C, H, W]` → `[N, C, 2H, 2W]`.
pub fn up(x: Tensor<4>) -> Tensor<4> {
    if fused(&x) {
        return call!(mp_resample(x; true));
    }
    let [n, c, h, w] = x.dims();
    x.reshape([n * c, h, 1, w, 1]).expand([n * c, h, 2, w, 2]).reshape([n, c, 2 * h, 2 * w])
}

/// Cosine attention over pixels: `qkv [N, heads·D·3, H, W]` (the three parts innermost) → `[N, heads·D, H, W]`.
///
/// Queries, keys and values are normalised over each head's channels; weights are softmax(q·k/√D).
pub fn attention(qkv: Tensor<4>, heads: usize) -> Tensor<4> {
    if fused(&qkv) {
        return call!(mp_attention(qkv; heads));
    }
    let [n, channels, h, w] = qkv.dims();
    let (width, pixels) = (channels / 3 / heads, h * w);
    let parts = qkv.reshape([n * heads, width, 3, pixels]);
    let part = |i: usize| {
        let x = parts.clone().narrow(2, i, 1).reshape([n * heads, width, pixels]);
        let rms = rms_along(x.clone(), 1) + EPSILON;
        x.clone() / rms.cast(x.dtype())
    };
    let logits = part(0).transpose().matmul(part(1)) / (width as f64).sqrt();
    let weights = activation::softmax(logits, 2);
    part(2).matmul(weights.transpose()).reshape([n, channels / 3, h, w])
}

/// w/(1e-4 + rms_row)/√fan_in: `[O, fan_in]`.
pub(crate) fn used_weight(w: Tensor<2>) -> Tensor<2> {
    let fan_in = w.dims()[1] as f64;
    let rms = (w.clone() * w.clone()).mean_dim(1).sqrt();
    w / ((rms + EPSILON) * fan_in.sqrt())
}

fn conv_composed(x: Tensor<4>, w: Tensor<4>) -> Tensor<4> {
    let [o, i, k, _] = w.dims();
    let used = used_weight(w.reshape([o, i * k * k])).reshape([o, i, k, k]).cast(x.dtype());
    let pad = k / 2;
    conv2d(x, used, None, ConvOptions::new([1, 1], [pad, pad], [1, 1], 1))
}

/// The operations as a back end sees them.
#[backend_extension(Flex, Autodiff)]
pub trait MpKernels: Backend {
    /// See [`conv`] and, if `activated`, [`silu_conv`].
    fn mp_conv(x: FloatTensor<Self>, w: FloatTensor<Self>, activated: bool) -> FloatTensor<Self>;

    /// See [`scaled_silu_conv`].
    fn mp_scaled_conv(x: FloatTensor<Self>, c: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`linear`].
    fn mp_linear(x: FloatTensor<Self>, w: FloatTensor<Self>, gain: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`sum`].
    fn mp_sum(a: FloatTensor<Self>, b: FloatTensor<Self>, t: f64, clip: f64) -> FloatTensor<Self>;

    /// See [`cat`].
    fn mp_cat(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`pixel_norm`].
    fn mp_pixel_norm(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`up`] and, if not `up`, [`down`].
    fn mp_resample(x: FloatTensor<Self>, up: bool) -> FloatTensor<Self>;

    /// See [`attention`].
    fn mp_attention(qkv: FloatTensor<Self>, heads: usize) -> FloatTensor<Self>;
}

impl MpKernels for Flex {
    fn mp_conv(x: FlexTensor, w: FlexTensor, activated: bool) -> FlexTensor {
        Conv::new(&x.to_contiguous(), &w.to_contiguous(), Before::from(activated)).forward()
    }

    fn mp_scaled_conv(x: FlexTensor, c: FlexTensor, w: FlexTensor) -> FlexTensor {
        Conv::new(&x.to_contiguous(), &w.to_contiguous(), Before::ScaledSilu(c.to_contiguous())).forward()
    }

    fn mp_linear(x: FlexTensor, w: FlexTensor, gain: FlexTensor) -> FlexTensor {
        Linear::new(&x.to_contiguous(), &w.to_contiguous(), &gain.to_contiguous()).forward()
    }

    fn mp_sum(a: FlexTensor, b: FlexTensor, t: f64, clip: f64) -> FlexTensor {
        sum_forward(&a.to_contiguous(), &b.to_contiguous(), t, clip)
    }

    fn mp_cat(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        cat_forward(&a.to_contiguous(), &b.to_contiguous())
    }

    fn mp_pixel_norm(x: FlexTensor) -> FlexTensor {
        let x = x.to_contiguous();
        fill(dims(&x), |y| norm_pixels(planes(&x), values(&x), y))
    }

    fn mp_resample(x: FlexTensor, up: bool) -> FlexTensor {
        resample_forward(&x.to_contiguous(), up)
    }

    fn mp_attention(qkv: FlexTensor, heads: usize) -> FlexTensor {
        attention_forward(&qkv.to_contiguous(), heads)
    }
}

impl<C: CheckpointStrategy> MpKernels for Autodiff<Flex, C> {
    fn mp_conv(x: FloatTensor<Self>, w: FloatTensor<Self>, activated: bool) -> FloatTensor<Self> {
        let nodes = [x.node(), w.node()];
        let [x, w] = [x, w].map(|t| t.into_primitive().to_contiguous());
        let conv = Conv::new(&x, &w, Before::from(activated));
        record::<C, 2>(nodes, conv.forward(), move |dy, [x_wanted, w_wanted]| {
            let [dx, _, dw] = conv.backward(dy, [x_wanted, false, w_wanted]);
            [dx, dw]
        })
    }

    fn mp_scaled_conv(x: FloatTensor<Self>, c: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node(), c.node(), w.node()];
        let [x, c, w] = [x, c, w].map(|t| t.into_primitive().to_contiguous());
        let conv = Conv::new(&x, &w, Before::ScaledSilu(c));
        record::<C, 3>(nodes, conv.forward(), move |dy, wanted| conv.backward(dy, wanted))
    }

    fn mp_linear(x: FloatTensor<Self>, w: FloatTensor<Self>, gain: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node(), w.node(), gain.node()];
        let [x, w, gain] = [x, w, gain].map(|t| t.into_primitive().to_contiguous());
        let linear = Linear::new(&x, &w, &gain);
        record::<C, 3>(nodes, linear.forward(), move |dy, wanted| linear.backward(dy, wanted))
    }

    fn mp_sum(a: FloatTensor<Self>, b: FloatTensor<Self>, t: f64, clip: f64) -> FloatTensor<Self> {
        let nodes = [a.node(), b.node()];
        let [a, b] = [a, b].map(|t| t.into_primitive().to_contiguous());
        let y = sum_forward(&a, &b, t, clip);
        let kept = y.clone();
        record::<C, 2>(nodes, y, move |dy, _| {
            let (mut da, mut db) = (buffer(dims(dy)), buffer(dims(dy)));
            mp_sum_grad(t as f32, clip as f32, values(&kept), values(dy), &mut da, &mut db);
            [da, db].map(|d| Some(tensor(d, dims(dy))))
        })
    }

    fn mp_cat(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [a.node(), b.node()];
        let [a, b] = [a, b].map(|t| t.into_primitive().to_contiguous());
        let shapes = [dims(&a), dims(&b)];
        record::<C, 2>(nodes, cat_forward(&a, &b), move |dy, _| {
            let [mut da, mut db] = shapes.map(buffer);
            mp_cat_grad(planes_of(shapes[0]), shapes[1][1], 0.5, values(dy), &mut da, &mut db);
            [Some(tensor(da, shapes[0])), Some(tensor(db, shapes[1]))]
        })
    }

    fn mp_pixel_norm(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let x = x.into_primitive().to_contiguous();
        let y = fill(dims(&x), |y| norm_pixels(planes(&x), values(&x), y));
        record::<C, 1>(nodes, y, move |dy, _| {
            [Some(fill(dims(&x), |dx| pixel_norm_grad(planes(&x), values(&x), values(dy), dx)))]
        })
    }

    fn mp_resample(x: FloatTensor<Self>, up: bool) -> FloatTensor<Self> {
        let nodes = [x.node()];
        let x = x.into_primitive().to_contiguous();
        let shape = dims(&x);
        record::<C, 1>(nodes, resample_forward(&x, up), move |dy, _| {
            [Some(fill(shape, |dx| {
                if up {
                    upsample_grad(small(shape), values(dy), dx);
                } else {
                    downsample_grad(small(dims(dy)), values(dy), dx);
                }
            }))]
        })
    }

    fn mp_attention(qkv: FloatTensor<Self>, heads: usize) -> FloatTensor<Self> {
        let nodes = [qkv.node()];
        let qkv = qkv.into_primitive().to_contiguous();
        record::<C, 1>(nodes, attention_forward(&qkv, heads), move |dy, _| {
            [Some(fill(dims(&qkv), |dqkv| attention_grad(heads_of(&qkv, heads), values(&qkv), values(dy), dqkv)))]
        })
    }
}

/// What happens to the input before a convolution.
enum Before {
    Nothing,
    Silu,
    ScaledSilu(FlexTensor),
}

impl From<bool> for Before {
    fn from(activated: bool) -> Self {
        if activated { Self::Silu } else { Self::Nothing }
    }
}

/// One convolution layer with its tensors.
struct Conv {
    x: FlexTensor,
    w: FlexTensor,
    before: Before,
    shape: ConvShape,
    small: bool,
}

impl Conv {
    fn new(x: &FlexTensor, w: &FlexTensor, before: Before) -> Self {
        let [batch, inputs, height, width] = dims(x);
        let [outputs, _, k, _] = dims(w);
        let shape = ConvShape { batch, inputs, outputs, height, width };
        Self { x: x.clone(), w: w.clone(), before, shape, small: k == 1 }
    }

    fn input_dims(&self) -> [usize; 4] {
        dims(&self.x)
    }

    fn fan_in(&self) -> usize {
        let [_, i, k, l] = dims(&self.w);
        i * k * l
    }

    fn used(&self) -> Scratch {
        temporary(dims(&self.w), |used| weight_norm(self.fan_in(), 1.0, values(&self.w), used))
    }

    /// Calls `work` with what is convolved: the activated input.
    fn activated<T>(&self, work: impl FnOnce(&[f32]) -> T) -> T {
        let x = values(&self.x);
        let mut activated = match &self.before {
            Before::Nothing => return work(x),
            Before::Silu => temporary(self.input_dims(), |y| mp_silu(x, y)),
            Before::ScaledSilu(c) => temporary(self.input_dims(), |y| mp_silu_scaled(planes(&self.x), x, values(c), y)),
        };
        work(activated.slice())
    }

    fn forward(&self) -> FlexTensor {
        let ConvShape { batch, outputs, height, width, .. } = self.shape;
        let run = if self.small { conv1x1 } else { conv3x3 };
        let mut used = self.used();
        fill([batch, outputs, height, width], |y| self.activated(|x| run(self.shape, x, used.slice(), y)))
    }

    /// Gradients to x, c and w from the gradient of the output.
    fn backward(&self, dy: &FlexTensor, [x_wanted, c_wanted, w_wanted]: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let dw = w_wanted.then(|| {
            let run = if self.small { conv1x1_grad_weights } else { conv3x3_grad_weights };
            let mut dused = temporary(dims(&self.w), |dused| self.activated(|x| run(self.shape, x, values(dy), dused)));
            fill(dims(&self.w), |dw| {
                weight_norm_grad(self.fan_in(), 1.0, values(&self.w), dused.slice(), dw);
            })
        });
        if !x_wanted && !c_wanted {
            return [None, None, dw];
        }
        let run = if self.small { conv1x1_grad_input } else { conv3x3_grad_input };
        let mut used = self.used();
        let through = |dx: &mut [f32]| run(self.shape, values(dy), used.slice(), dx);
        let x = values(&self.x);
        match &self.before {
            Before::Nothing => [Some(fill(self.input_dims(), through)), None, dw],
            Before::Silu => {
                let mut inner = temporary(self.input_dims(), through);
                [Some(fill(self.input_dims(), |dx| mp_silu_grad(x, inner.slice(), dx))), None, dw]
            }
            Before::ScaledSilu(c) => {
                let shape = planes(&self.x);
                let mut inner = temporary(self.input_dims(), through);
                let mut dc = vec![0.0; shape.rows()];
                let dx = fill(self.input_dims(), |dx| {
                    mp_silu_scaled_grad(shape, x, values(c), inner.slice(), dx, &mut dc);
                });
                [Some(dx), Some(tensor(dc, [shape.batch, shape.channels])), dw]
            }
        }
    }
}

/// One linear layer with its tensors.
struct Linear {
    x: FlexTensor,
    w: FlexTensor,
    gain: f32,
    shape: MatmulShape,
}

impl Linear {
    fn new(x: &FlexTensor, w: &FlexTensor, gain: &FlexTensor) -> Self {
        let ([m, k], [n, _]) = (dims2(x), dims2(w));
        Self { x: x.clone(), w: w.clone(), gain: values(gain)[0], shape: MatmulShape { m, n, k } }
    }

    fn used(&self) -> Vec<f32> {
        let MatmulShape { n, k, .. } = self.shape;
        let mut used = buffer([n, k]);
        weight_norm(k, self.gain, values(&self.w), &mut used);
        used
    }

    fn forward(&self) -> FlexTensor {
        let MatmulShape { m, n, .. } = self.shape;
        fill([m, n], |y| matmul_nt(self.shape, values(&self.x), &self.used(), y, false))
    }

    /// Gradients to x, w and gain.
    fn backward(&self, dy: &FlexTensor, [x_wanted, w_wanted, gain_wanted]: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let MatmulShape { m, n, k } = self.shape;
        let dx = x_wanted
            .then(|| fill([m, k], |dx| matmul(MatmulShape { m, n: k, k: n }, values(dy), &self.used(), dx, false)));
        if !w_wanted && !gain_wanted {
            return [dx, None, None];
        }
        let mut dused = buffer([n, k]);
        matmul_tn(MatmulShape { m: n, n: k, k: m }, values(dy), values(&self.x), &mut dused, false);
        let mut dgain = 0.0;
        let dw = fill([n, k], |dw| dgain = weight_norm_grad(k, self.gain, values(&self.w), &dused, dw));
        [dx, w_wanted.then_some(dw), gain_wanted.then(|| tensor(vec![dgain], [1]))]
    }
}

fn sum_forward(a: &FlexTensor, b: &FlexTensor, t: f64, clip: f64) -> FlexTensor {
    fill(dims(a), |y| mp_sum(t as f32, clip as f32, values(a), values(b), y))
}

fn cat_forward(a: &FlexTensor, b: &FlexTensor) -> FlexTensor {
    let ([n, na, h, w], [_, nb, _, _]) = (dims(a), dims(b));
    fill([n, na + nb, h, w], |y| mp_cat(planes(a), nb, 0.5, values(a), values(b), y))
}

fn resample_forward(x: &FlexTensor, up: bool) -> FlexTensor {
    let [n, c, h, w] = dims(x);
    if up {
        fill([n, c, 2 * h, 2 * w], |y| upsample(small([n, c, h, w]), values(x), y))
    } else {
        fill([n, c, h / 2, w / 2], |y| downsample(small([n, c, h / 2, w / 2]), values(x), y))
    }
}

fn attention_forward(qkv: &FlexTensor, heads: usize) -> FlexTensor {
    let [n, channels, h, w] = dims(qkv);
    fill([n, channels / 3, h, w], |y| attend(heads_of(qkv, heads), values(qkv), y))
}

fn heads_of(qkv: &FlexTensor, heads: usize) -> AttentionShape {
    let [batch, channels, h, w] = dims(qkv);
    AttentionShape { batch, heads, width: channels / 3 / heads, pixels: h * w }
}

/// The size of the small image in a resampling.
fn small([n, c, height, width]: [usize; 4]) -> ResampleShape {
    ResampleShape { images: n * c, height, width }
}

fn planes(x: &FlexTensor) -> Planes {
    planes_of(dims(x))
}

fn planes_of([batch, channels, h, w]: [usize; 4]) -> Planes {
    Planes { batch, channels, pixels: h * w }
}

fn dims(x: &FlexTensor) -> [usize; 4] {
    let shape = x.shape();
    std::array::from_fn(|i| shape[i])
}

fn buffer<const D: usize>(shape: [usize; D]) -> Vec<f32> {
    vec![0.0; shape.iter().product()]
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Reused memory whose values `write` writes.
fn temporary<const D: usize>(shape: [usize; D], write: impl FnOnce(&mut [f32])) -> Scratch {
    let mut scratch = Scratch::new(shape.iter().product());
    write(scratch.slice());
    scratch
}

/// A new tensor whose values `write` writes.
fn fill<const D: usize>(shape: [usize; D], write: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut values = buffer(shape);
    write(&mut values);
    tensor(values, shape)
}
