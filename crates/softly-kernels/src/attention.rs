//! Cosine attention: queries, keys and values of unit root mean square, so that logits are bounded.

use rayon::prelude::*;

use crate::gemm::{Matrix, Product};
use crate::norm::{pixel_norm_grad_on_one_thread, pixel_norm_on_one_thread};
use crate::scratch::{Scratch, Shared};
use crate::shape::Planes;
use crate::simd::{Job, Level, Simd};

/// Shape of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Samples, `N`.
    pub batch: usize,
    /// Heads, `M`.
    pub heads: usize,
    /// Channels per head, `D`.
    pub width: usize,
    /// Pixels, `P`.
    pub pixels: usize,
}

impl AttentionShape {
    /// Values of one head's queries, `D·P`.
    fn plane(self) -> usize {
        self.width * self.pixels
    }

    fn check(self, qkv: &[f32], y: &[f32]) {
        assert_eq!(y.len(), self.batch * self.heads * self.plane(), "y must have N·M·D·P values");
        assert_eq!(qkv.len(), 3 * y.len(), "qkv must have N·M·D·3·P values");
    }

    fn planes(self) -> Planes {
        Planes { batch: 1, channels: self.width, pixels: self.pixels }
    }
}

/// `y[:, i] = Σ_j v̂[:, j] W[i, j]` with `W = softmax_j(q̂[:, i]·k̂[:, j] / √D)` for every sample and head, where `q̂`, `k̂`
/// and `v̂` are `q`, `k` and `v` with every pixel normalised over the head's channels; `qkv [N, M, D, 3, P]`,
/// `y [N, M, D, P]`.
pub fn attention(shape: AttentionShape, qkv: &[f32], y: &mut [f32]) {
    shape.check(qkv, y);
    let level = Level::current();
    let plane = shape.plane().max(1);
    y.par_chunks_mut(plane).zip(qkv.par_chunks(3 * plane)).with_max_len(1).for_each(|(y, qkv)| {
        let mut head = Head::new(shape, level, qkv);
        let Parts { v, weights, .. } = head.parts();
        product(level, [shape.width, shape.pixels, shape.pixels], rows(v, shape), columns(weights, shape), y);
    });
}

/// Gradient of [`attention`] from `dy [N, M, D, P]`: `dqkv [N, M, D, 3, P]`. The weights are computed again.
pub fn attention_grad(shape: AttentionShape, qkv: &[f32], dy: &[f32], dqkv: &mut [f32]) {
    shape.check(qkv, dy);
    shape.check(dqkv, dy);
    let level = Level::current();
    let AttentionShape { width, pixels, .. } = shape;
    let plane = shape.plane().max(1);
    let heads = dqkv.par_chunks_mut(3 * plane).zip(qkv.par_chunks(3 * plane)).zip(dy.par_chunks(plane));
    heads.with_max_len(1).for_each(|((dqkv, qkv), dy)| {
        let mut head = Head::new(shape, level, qkv);
        let Parts { q, k, v, weights } = head.parts();
        let mut scratch = Scratch::new(pixels * pixels + 3 * plane);
        let (slopes, grads) = scratch.slice().split_at_mut(pixels * pixels);
        let (dq, rest) = grads.split_at_mut(plane);
        let (dk, dv) = rest.split_at_mut(plane);
        product(level, [width, pixels, pixels], rows(dy, shape), rows(weights, shape), dv);
        product(level, [pixels, pixels, width], columns(dy, shape), rows(v, shape), slopes);
        let scale = 1.0 / (width as f32).sqrt();
        level.run(SoftmaxGrad { weights, slopes, pixels, scale });
        product(level, [width, pixels, pixels], rows(k, shape), columns(slopes, shape), dq);
        product(level, [width, pixels, pixels], rows(q, shape), rows(slopes, shape), dk);
        let mut back = Scratch::new(2 * plane);
        let (x, dx) = back.slice().split_at_mut(plane);
        for (part, grad) in [dq, dk, dv].into_iter().enumerate() {
            gather(qkv, part, pixels, x);
            pixel_norm_grad_on_one_thread(level, shape.planes(), x, grad, dx);
            for (c, row) in dx.chunks_exact(pixels.max(1)).enumerate() {
                dqkv[(3 * c + part) * pixels..][..pixels].copy_from_slice(row);
            }
        }
    });
}

/// One head's normalised queries, keys and values `[D, P]` each and its weights `[P, P]`.
struct Head {
    scratch: Scratch,
    plane: usize,
}

struct Parts<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    weights: &'a [f32],
}

impl Head {
    fn new(shape: AttentionShape, level: Level, qkv: &[f32]) -> Self {
        let AttentionShape { width, pixels, .. } = shape;
        let plane = shape.plane();
        let mut scratch = Scratch::new(4 * plane + pixels * pixels);
        let (raw, rest) = scratch.slice().split_at_mut(plane);
        let (normal, weights) = rest.split_at_mut(3 * plane);
        for (part, to) in normal.chunks_exact_mut(plane.max(1)).enumerate() {
            gather(qkv, part, pixels, raw);
            pixel_norm_on_one_thread(level, shape.planes(), raw, to);
        }
        let (q, k) = (&normal[..plane], &normal[plane..2 * plane]);
        product(level, [pixels, pixels, width], columns(q, shape), rows(k, shape), weights);
        level.run(Softmax { logits: weights, pixels, scale: 1.0 / (width as f32).sqrt() });
        Self { scratch, plane }
    }

    fn parts(&mut self) -> Parts<'_> {
        let (normal, weights) = self.scratch.slice()[self.plane..].split_at(3 * self.plane);
        let (q, rest) = normal.split_at(self.plane);
        let (k, v) = rest.split_at(self.plane);
        Parts { q, k, v, weights }
    }
}

/// The rows of part 0 (queries), 1 (keys) or 2 (values) of `qkv [D, 3, P]`.
fn gather(qkv: &[f32], part: usize, pixels: usize, to: &mut [f32]) {
    for (c, row) in to.chunks_exact_mut(pixels.max(1)).enumerate() {
        row.copy_from_slice(&qkv[(3 * c + part) * pixels..][..pixels]);
    }
}

/// A matrix with rows of `P` values.
fn rows(data: &[f32], shape: AttentionShape) -> Matrix<'_> {
    Matrix { data, row: shape.pixels, col: 1 }
}

/// The transpose of [`rows`].
fn columns(data: &[f32], shape: AttentionShape) -> Matrix<'_> {
    Matrix { data, row: 1, col: shape.pixels }
}

/// `C = A·B` with `[m, n, k]`, on this thread.
fn product(level: Level, [m, n, k]: [usize; 3], a: Matrix, b: Matrix, c: &mut [f32]) {
    let c = Shared::new(&mut c[..m * n]);
    let product = Product { m, n, k, a, b, c: &c, c_start: 0, c_row: n, accumulate: false };
    // SAFETY: this thread alone has C.
    unsafe { product.run(level) };
}

/// Rows of logits become weights `exp(scale·l) / Σ`. Unit vectors have logits within `±√D`, so nothing overflows.
struct Softmax<'a> {
    logits: &'a mut [f32],
    pixels: usize,
    scale: f32,
}

impl Job for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        for row in self.logits.chunks_exact_mut(self.pixels.max(1)) {
            let mut total = 0.0;
            let mut sums = s.splat(0.0);
            let whole = row.len() - row.len() % S::LANES;
            let (body, tail) = row.split_at_mut(whole);
            for chunk in body.chunks_exact_mut(S::LANES) {
                let e = s.exp(s.mul(s.load(chunk), scale));
                sums = s.add(sums, e);
                s.store(e, chunk);
            }
            for v in tail {
                *v = (*v * self.scale).exp();
                total += *v;
            }
            let inverse = 1.0 / (total + s.sum(sums));
            for v in row {
                *v *= inverse;
            }
        }
    }
}

/// From the slopes `∂/∂W [P, P]` to those of the unscaled logits: `scale·W (dW − Σ_j W dW)`.
struct SoftmaxGrad<'a> {
    weights: &'a [f32],
    slopes: &'a mut [f32],
    pixels: usize,
    scale: f32,
}

impl Job for SoftmaxGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pixels = self.pixels.max(1);
        for (weights, slopes) in self.weights.chunks_exact(pixels).zip(self.slopes.chunks_exact_mut(pixels)) {
            let mut sums = s.splat(0.0);
            let whole = weights.len() - weights.len() % S::LANES;
            for at in (0..whole).step_by(S::LANES) {
                sums = s.mul_add(s.load(&weights[at..]), s.load(&slopes[at..]), sums);
            }
            let mut mean = s.sum(sums);
            for at in whole..weights.len() {
                mean += weights[at] * slopes[at];
            }
            for (w, d) in weights.iter().zip(slopes) {
                *d = self.scale * w * (*d - mean);
            }
        }
    }
}
