//! Fused layers: hand-written CPU kernels with hand-written gradients under Burn's tensors.
//!
//! On the CPU back end each function here is one operation of the autodiff graph; on any other device, and inside
//! [`composed`](crate::host::composed), it is composed of ordinary tensor operations, so the same model runs everywhere. One module binds, the
//! networks read like the paper.

use std::fmt;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Tensor, TensorData, activation};
use burn_flex::FlexTensor;
use softly_kernels::activation::{silu_modulate, silu_modulate_grad, softplus_scaled, softplus_scaled_grad};
use softly_kernels::matmul::{MatmulShape, matmul, matmul_nt, matmul_tn};
use softly_kernels::shape::Planes;

use crate::host::is_host;

/// y = x Wᵀ + b: `x [N, I]`, `weight [O, I]`, `bias [O]` → `[N, O]`.
pub fn linear(x: Tensor<2>, weight: Tensor<2>, bias: Tensor<1>) -> Tensor<2> {
    if fused(&x) {
        let y = <Dispatch as Kernels>::linear(x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
        return Tensor::from_dispatch(y);
    }
    x.matmul(weight.transpose()) + bias.unsqueeze()
}

/// y = SiLU(x Wᵀ + b): `x [N, I]`, `weight [O, I]`, `bias [O]` → `[N, O]`.
pub fn linear_silu(x: Tensor<2>, weight: Tensor<2>, bias: Tensor<1>) -> Tensor<2> {
    if fused(&x) {
        let y = <Dispatch as Kernels>::linear_silu(x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
        return Tensor::from_dispatch(y);
    }
    activation::silu(x.matmul(weight.transpose()) + bias.unsqueeze())
}

/// A hidden layer modulated by an embedding: y = SiLU((x Wᵀ + b)(1 + e Sᵀ) + e Tᵀ).
///
/// `x [N, I]`, `weight [O, I]`, `bias [O]`, `embedding [N, E]`, `scale [O, E]`, `shift [O, E]` → `[N, O]`. The embedding
/// is an input, not a result: it gets no gradient.
pub fn modulated(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    embedding: Tensor<2>,
    scale: Tensor<2>,
    shift: Tensor<2>,
) -> Tensor<2> {
    if fused(&x) {
        let y = <Dispatch as Kernels>::modulated(
            x.into_dispatch(),
            weight.into_dispatch(),
            bias.into_dispatch(),
            embedding.into_dispatch(),
            scale.into_dispatch(),
            shift.into_dispatch(),
        );
        return Tensor::from_dispatch(y);
    }
    let scale = embedding.clone().matmul(scale.transpose()) + 1.0;
    let shift = embedding.matmul(shift.transpose());
    activation::silu((x.matmul(weight.transpose()) + bias.unsqueeze()) * scale + shift)
}

/// A hidden layer multiplied by a factor per sample and unit: y = ln(1 + e^z), z = (x Wᵀ + b) · factor.
///
/// `x [N, I]`, `weight [O, I]`, `bias [O]`, `factor [N, O]` → `[N, O]`.
pub fn linear_softplus(x: Tensor<2>, weight: Tensor<2>, bias: Tensor<1>, factor: Tensor<2>) -> Tensor<2> {
    if fused(&x) {
        let y = <Dispatch as Kernels>::linear_softplus(
            x.into_dispatch(),
            weight.into_dispatch(),
            bias.into_dispatch(),
            factor.into_dispatch(),
        );
        return Tensor::from_dispatch(y);
    }
    activation::softplus((x.matmul(weight.transpose()) + bias.unsqueeze()) * factor, 1.0)
}

/// Whether an operation on `x` is one of our kernels.
pub(crate) fn fused<const D: usize>(x: &Tensor<D>) -> bool {
    is_host(&x.device())
}

/// The fused operations as a back end sees them.
#[backend_extension(Flex, Autodiff)]
pub trait Kernels: Backend {
    /// See [`linear`](fn@linear).
    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`linear_silu`](fn@linear_silu).
    fn linear_silu(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`modulated`](fn@modulated).
    fn modulated(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        embedding: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// See [`linear_softplus`](fn@linear_softplus).
    fn linear_softplus(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        factor: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl Kernels for Flex {
    fn linear(x: FlexTensor, weight: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let (x, weight, bias) = (x.to_contiguous(), weight.to_contiguous(), bias.to_contiguous());
        affine(&x, &weight, &bias)
    }

    fn linear_silu(x: FlexTensor, weight: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let pre = Self::linear(x, weight, bias);
        Modulation::none(&pre).forward(&pre)
    }

    fn modulated(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        embedding: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
    ) -> FlexTensor {
        let pre = affine(&x.to_contiguous(), &weight.to_contiguous(), &bias.to_contiguous());
        let modulation = Modulation::new(&embedding.to_contiguous(), &scale.to_contiguous(), &shift.to_contiguous());
        modulation.forward(&pre)
    }

    fn linear_softplus(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, factor: FlexTensor) -> FlexTensor {
        softplus(&Self::linear(x, weight, bias), &factor.to_contiguous())
    }
}

impl<C: CheckpointStrategy> Kernels for Autodiff<Flex, C> {
    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let [x, weight, bias] = [x, weight, bias].map(|t| t.into_primitive().to_contiguous());
        let y = affine(&x, &weight, &bias);
        record::<C, 3>(nodes, y, move |dy, wanted| affine_grad(&x, &weight, dy, wanted))
    }

    fn linear_silu(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let [x, weight, bias] = [x, weight, bias].map(|t| t.into_primitive().to_contiguous());
        let pre = affine(&x, &weight, &bias);
        let modulation = Modulation::none(&pre);
        let y = modulation.forward(&pre);
        record::<C, 3>(nodes, y, move |dy, wanted| affine_grad(&x, &weight, &modulation.backward(&pre, dy).0, wanted))
    }

    fn modulated(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        embedding: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node(), scale.node(), shift.node()];
        let [x, weight, bias, embedding, scale, shift] =
            [x, weight, bias, embedding, scale, shift].map(|t| t.into_primitive().to_contiguous());
        let pre = affine(&x, &weight, &bias);
        let modulation = Modulation::new(&embedding, &scale, &shift);
        let y = modulation.forward(&pre);
        record::<C, 5>(nodes, y, move |dy, [x_wanted, w_wanted, b_wanted, s_wanted, t_wanted]| {
            let (dpre, dscale, dshift) = modulation.backward(&pre, dy);
            let [dx, dw, db] = affine_grad(&x, &weight, &dpre, [x_wanted, w_wanted, b_wanted]);
            // ∂/∂S of Σ d·(e Sᵀ) is dᵀ e, and so for T.
            let outer = |wanted: bool, d: &FlexTensor| wanted.then(|| product_tn(d, &embedding));
            [dx, dw, db, outer(s_wanted, &dscale), outer(t_wanted, &dshift)]
        })
    }

    fn linear_softplus(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        factor: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node(), factor.node()];
        let [x, weight, bias, factor] = [x, weight, bias, factor].map(|t| t.into_primitive().to_contiguous());
        let pre = affine(&x, &weight, &bias);
        let y = softplus(&pre, &factor);
        record::<C, 4>(nodes, y, move |dy, [x_wanted, w_wanted, b_wanted, f_wanted]| {
            let [n, o] = dims2(&pre);
            let (mut dpre, mut dfactor) = (vec![0.0; n * o], vec![0.0; n * o]);
            softplus_scaled_grad(values(&pre), values(&factor), values(dy), &mut dpre, &mut dfactor);
            let [dx, dw, db] = affine_grad(&x, &weight, &matrix(dpre, n, o), [x_wanted, w_wanted, b_wanted]);
            [dx, dw, db, f_wanted.then(|| matrix(dfactor, n, o))]
        })
    }
}

/// Gradients by input, for those wanted, from the gradient of the output.
type Gradient<const N: usize> = dyn Fn(&FlexTensor, [bool; N]) -> [Option<FlexTensor>; N] + Send + Sync;

/// The backward pass of one recorded operation.
struct Recorded<const N: usize>(Arc<Gradient<N>>);

impl<const N: usize> Clone for Recorded<N> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<const N: usize> fmt::Debug for Recorded<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorded<{N}>")
    }
}

#[derive(Debug)]
struct Fused;

impl<const N: usize> Backward<Flex, N> for Fused {
    type State = Recorded<N>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<Flex>(&ops.node).to_contiguous();
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (parent, gradient) in ops.parents.into_iter().zip((ops.state.0)(&dy, wanted)) {
            if let (Some(node), Some(gradient)) = (parent, gradient) {
                grads.register::<Flex>(node.id, gradient);
            }
        }
    }
}

/// Puts `output`, computed from `nodes`, into the graph with its gradient.
pub(crate) fn record<C: CheckpointStrategy, const N: usize>(
    nodes: [NodeGuard; N],
    output: FlexTensor,
    gradient: impl Fn(&FlexTensor, [bool; N]) -> [Option<FlexTensor>; N] + Send + Sync + 'static,
) -> FloatTensor<Autodiff<Flex, C>> {
    match Fused.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(Recorded(Arc::new(gradient)), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

pub(crate) fn dims2(tensor: &FlexTensor) -> [usize; 2] {
    let shape = tensor.shape();
    [shape[0], shape[1]]
}

pub(crate) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("a contiguous f32 tensor")
}

fn matrix(values: Vec<f32>, rows: usize, cols: usize) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, [rows, cols]))
}

/// aᵀ b: `a [K, M]`, `b [K, N]` → `[M, N]`.
fn product_tn(a: &FlexTensor, b: &FlexTensor) -> FlexTensor {
    let ([k, m], [_, n]) = (dims2(a), dims2(b));
    let mut c = vec![0.0; m * n];
    matmul_tn(MatmulShape { m, n, k }, values(a), values(b), &mut c, false);
    matrix(c, m, n)
}

/// a bᵀ: `a [M, K]`, `b [N, K]` → `[M, N]`.
fn product_nt(a: &FlexTensor, b: &FlexTensor) -> FlexTensor {
    let ([m, k], [n, _]) = (dims2(a), dims2(b));
    let mut c = vec![0.0; m * n];
    matmul_nt(MatmulShape { m, n, k }, values(a), values(b), &mut c, false);
    matrix(c, m, n)
}

/// x Wᵀ + b.
fn affine(x: &FlexTensor, weight: &FlexTensor, bias: &FlexTensor) -> FlexTensor {
    let ([m, k], [n, _]) = (dims2(x), dims2(weight));
    let mut y = Vec::with_capacity(m * n);
    for _ in 0..m {
        y.extend_from_slice(values(bias));
    }
    matmul_nt(MatmulShape { m, n, k }, values(x), values(weight), &mut y, true);
    matrix(y, m, n)
}

/// Gradients of [`affine`] to x, W and b.
fn affine_grad(
    x: &FlexTensor,
    weight: &FlexTensor,
    dy: &FlexTensor,
    [x_wanted, weight_wanted, bias_wanted]: [bool; 3],
) -> [Option<FlexTensor>; 3] {
    let ([m, n], [_, k]) = (dims2(dy), dims2(weight));
    let dx = x_wanted.then(|| {
        let mut dx = vec![0.0; m * k];
        matmul(MatmulShape { m, n: k, k: n }, values(dy), values(weight), &mut dx, false);
        matrix(dx, m, k)
    });
    let dbias = bias_wanted.then(|| {
        let mut sum = vec![0.0f32; n];
        for row in values(dy).chunks_exact(n) {
            for (sum, d) in sum.iter_mut().zip(row) {
                *sum += d;
            }
        }
        FlexTensor::from_data(TensorData::new(sum, [n]))
    });
    [dx, weight_wanted.then(|| product_tn(dy, x)), dbias]
}

/// ln(1 + e^{pre · factor}), `[N, O]` each.
fn softplus(pre: &FlexTensor, factor: &FlexTensor) -> FlexTensor {
    let [n, o] = dims2(pre);
    let mut y = vec![0.0; n * o];
    softplus_scaled(values(pre), values(factor), &mut y);
    matrix(y, n, o)
}

/// e Mᵀ: `embedding [N, E]`, `table [O, E]` → `[N, O]`. A sampler's batch has one noise level: then one row says it all.
fn embedded(embedding: &FlexTensor, table: &FlexTensor) -> FlexTensor {
    let ([n, e], [o, _]) = (dims2(embedding), dims2(table));
    let all = values(embedding);
    let first = &all[..e.min(all.len())];
    if n < 2 || all.chunks_exact(e).any(|row| row != first) {
        return product_nt(embedding, table);
    }
    let row = product_nt(&matrix(first.to_vec(), 1, e), table);
    matrix(values(&row).repeat(n), n, o)
}

/// What modulates a layer: scale e Sᵀ and shift e Tᵀ, `[N, O]` each.
struct Modulation {
    scale: FlexTensor,
    shift: FlexTensor,
}

impl Modulation {
    fn new(embedding: &FlexTensor, scale: &FlexTensor, shift: &FlexTensor) -> Self {
        Self { scale: embedded(embedding, scale), shift: embedded(embedding, shift) }
    }

    /// Scale and shift 0.
    fn none(pre: &FlexTensor) -> Self {
        let [rows, cols] = dims2(pre);
        let zeros = matrix(vec![0.0; rows * cols], rows, cols);
        Self { scale: zeros.clone(), shift: zeros }
    }

    /// SiLU(pre (1 + scale) + shift).
    fn forward(&self, pre: &FlexTensor) -> FlexTensor {
        let [batch, channels] = dims2(pre);
        let mut y = vec![0.0; batch * channels];
        let shape = Planes { batch, channels, pixels: 1 };
        silu_modulate(shape, values(pre), values(&self.scale), values(&self.shift), &mut y);
        matrix(y, batch, channels)
    }

    /// Gradients to `pre`, scale and shift.
    fn backward(&self, pre: &FlexTensor, dy: &FlexTensor) -> (FlexTensor, FlexTensor, FlexTensor) {
        let [batch, channels] = dims2(pre);
        let new = || vec![0.0; batch * channels];
        let (mut dpre, mut dscale, mut dshift) = (new(), new(), new());
        silu_modulate_grad(
            Planes { batch, channels, pixels: 1 },
            values(pre),
            values(&self.scale),
            values(&self.shift),
            values(dy),
            &mut dpre,
            &mut dscale,
            &mut dshift,
        );
        (matrix(dpre, batch, channels), matrix(dscale, batch, channels), matrix(dshift, batch, channels))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::host::composed;
    use crate::random::{Purpose, Stream};
    use crate::tensors::to_vec_f64;

    /// Inputs of a layer with odd sizes, tracked for gradients.
    fn inputs() -> (Vec<Tensor<2>>, Tensor<1>) {
        let device = Device::flex().autodiff();
        let mut stream = Stream::new(5, Purpose::Metric, 0);
        let mut draw = |shape: [usize; 2]| -> Tensor<2> {
            let values: Vec<f32> = stream.normals(shape[0] * shape[1]).into_iter().map(|v| v as f32).collect();
            Tensor::from_data(TensorData::new(values, shape), &device).require_grad()
        };
        let (batch, inputs, outputs, embedding) = (7, 5, 19, 3);
        let all = vec![
            draw([batch, inputs]),
            draw([outputs, inputs]),
            draw([batch, embedding]),
            draw([outputs, embedding]),
            draw([outputs, embedding]),
        ];
        let bias = draw([1, outputs]).reshape([outputs]).detach().require_grad();
        (all, bias)
    }

    fn assert_close(a: Vec<f64>, b: Vec<f64>) {
        let size = b.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (a, b) in a.into_iter().zip(b) {
            assert!((a - b).abs() < 1e-5 * size, "{a} against {b}");
        }
    }

    /// Checks that `run` gives the same through the kernels and composed of tensor operations, to rounding errors.
    fn assert_both_ways_agree(run: impl Fn() -> Vec<Vec<f64>>) {
        let (fused, composed) = (run(), composed(&run));
        assert_eq!(fused.len(), composed.len());
        assert_ne!(fused, composed, "sums in another order: were both ways taken?");
        for (fused, composed) in fused.into_iter().zip(composed) {
            assert_close(fused, composed);
        }
    }

    /// y and the gradients of Σ y² to all of `tensors` and to `bias`.
    fn with_gradients(y: Tensor<2>, tensors: &[Tensor<2>], bias: &Tensor<1>) -> Vec<Vec<f64>> {
        let mut gradients = (y.clone() * y.clone()).sum().backward();
        let mut all = vec![to_vec_f64(y.without_autodiff())];
        all.extend(tensors.iter().map(|t| to_vec_f64(t.grad_remove(&mut gradients).unwrap())));
        all.push(to_vec_f64(bias.grad_remove(&mut gradients).unwrap()));
        all
    }

    #[test]
    fn the_fused_layer_and_its_gradients_match_the_composed_one() {
        assert_both_ways_agree(|| {
            let (t, bias) = inputs();
            let [x, w, embedding, scale, shift] = [0, 1, 2, 3, 4].map(|i| t[i].clone());
            let y = modulated(x.clone(), w.clone(), bias.clone(), embedding.detach(), scale.clone(), shift.clone());
            with_gradients(y, &[x, w, scale, shift], &bias)
        });
    }

    #[test]
    fn linear_layers_and_their_gradients_match_the_composed_ones() {
        for layer in [linear, linear_silu] {
            assert_both_ways_agree(|| {
                let (t, bias) = inputs();
                let y = layer(t[0].clone(), t[1].clone(), bias.clone());
                with_gradients(y, &t[..2], &bias)
            });
        }
    }

    #[test]
    fn a_batch_of_one_noise_level_is_embedded_like_its_samples() {
        let device = Device::flex();
        let mut stream = Stream::new(6, Purpose::Metric, 0);
        let mut draw = |rows: usize, cols: usize| {
            let values: Vec<f32> = stream.normals(rows * cols).into_iter().map(|v| v as f32).collect();
            (values.clone(), Tensor::<2>::from_data(TensorData::new(values, [rows, cols]), &device))
        };
        let ((_, x), (_, w), (_, s), (_, t), (e, _)) = (draw(4, 5), draw(9, 5), draw(9, 3), draw(9, 3), draw(1, 3));
        let bias = w.clone().sum_dim(1).reshape([9]);
        let layer = |x: Tensor<2>, e: Vec<f32>| {
            let e = Tensor::from_data(TensorData::new(e, [x.dims()[0], 3]), &device);
            to_vec_f64(modulated(x, w.clone(), bias.clone(), e, s.clone(), t.clone()))
        };
        let together = layer(x.clone(), e.repeat(4));
        let alone: Vec<f64> = (0..4).flat_map(|i| layer(x.clone().narrow(0, i, 1), e.clone())).collect();
        assert_close(together, alone);
    }

    #[test]
    fn the_softplus_layer_and_its_gradients_match_the_composed_one() {
        assert_both_ways_agree(|| {
            let (t, bias) = inputs();
            // Any [N, O] will do as a factor that wants a gradient.
            let factor = t[2].clone().matmul(t[3].clone().transpose());
            let y = linear_softplus(t[0].clone(), t[1].clone(), bias.clone(), factor);
            with_gradients(y, &t[..4], &bias)
        });
    }
}
