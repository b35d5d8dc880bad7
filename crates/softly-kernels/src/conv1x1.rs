//! Convolution with a 1×1 filter: per sample the product `W [O, I] · X [I, H·W]`.

use rayon::prelude::*;

use crate::gemm::{Matrix, Product};
use crate::scratch::{Scratch, Shared};
use crate::shape::ConvShape;
use crate::simd::{Level, MAX_LANES};

/// Pixels that one task treats at a time in the weight gradient.
const SPAN: usize = 512;
/// Numbers of packed input per task of the other two: stays close to the first-level cache.
const SPAN_VALUES: usize = 12 * 1024;
/// Most partial sums of the weight gradient, and least pixels of one: writing and adding them costs time too.
const MAX_PARTS: usize = 32;
const PART_PIXELS: usize = 128;

/// `y[n, o] = Σ_i w[o, i] x[n, i]`; `x [N, I, H, W]`, `w [O, I]`, `y [N, O, H, W]`.
pub fn conv1x1(shape: ConvShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    check(shape, x, w, y);
    apply(shape, x, Matrix { data: w, row: shape.inputs, col: 1 }, y);
}

/// `dx[n, i] = Σ_o w[o, i] dy[n, o]`; `dy [N, O, H, W]`, `w [O, I]`, `dx [N, I, H, W]`.
pub fn conv1x1_grad_input(shape: ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    check(shape, dx, w, dy);
    apply(shape.adjoint(), dy, Matrix { data: w, row: 1, col: shape.inputs }, dx);
}

/// `dw[o, i] = Σ_n,p dy[n, o, p] x[n, i, p]`; `x [N, I, H, W]`, `dy [N, O, H, W]`, `dw [O, I]`.
pub fn conv1x1_grad_weights(shape: ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    check(shape, x, dw, dy);
    let ConvShape { batch, inputs, outputs, .. } = shape;
    let pixels = shape.pixels();
    let level = Level::current();
    let spans = pixels.div_ceil(SPAN);
    // The partial sums depend on the shape alone, so the result does not depend on the number of threads.
    let per_part = (PART_PIXELS / pixels.max(1)).max((batch * spans).div_ceil(MAX_PARTS)).max(1);
    let parts = (batch * spans).div_ceil(per_part);
    let mut scratch = Scratch::new(parts * dw.len());
    let partial = scratch.slice();
    let size = dw.len().max(1);
    partial.par_chunks_mut(size).enumerate().with_max_len(1).for_each(|(part, sum)| {
        let first = part * per_part;
        let sum = Shared::new(sum);
        for span in first..(first + per_part).min(batch * spans) {
            let (n, p) = (span / spans, span % spans * SPAN);
            let k = SPAN.min(pixels - p);
            let a = Matrix { data: &dy[n * outputs * pixels..], row: pixels, col: 1 }.from(0, p);
            let b = Matrix { data: &x[n * inputs * pixels..], row: 1, col: pixels }.from(p, 0);
            let accumulate = span > first;
            let product = Product { m: outputs, n: inputs, k, a, b, c: &sum, c_start: 0, c_row: inputs, accumulate };
            // SAFETY: every task has its own partial sum.
            unsafe { product.run(level) };
        }
    });
    dw.fill(0.0);
    for part in partial.chunks_exact(size) {
        for (sum, part) in dw.iter_mut().zip(part) {
            *sum += part;
        }
    }
}

fn check(shape: ConvShape, x: &[f32], w: &[f32], y: &[f32]) {
    assert_eq!(x.len(), shape.input_values(), "input must have N·I·H·W values");
    assert_eq!(w.len(), shape.outputs * shape.inputs, "weights must have O·I values");
    assert_eq!(y.len(), shape.output_values(), "output must have N·O·H·W values");
}

/// `y[n] = W·x[n]` with any layout of the weights.
fn apply(shape: ConvShape, x: &[f32], w: Matrix, y: &mut [f32]) {
    let ConvShape { batch, inputs, outputs, .. } = shape;
    let pixels = shape.pixels();
    let level = Level::current();
    let y = Shared::new(y);
    let most = (SPAN_VALUES / inputs.max(1)).next_multiple_of(2 * MAX_LANES);
    let spans = pixels.div_ceil(most);
    (0..batch * spans).into_par_iter().with_max_len(1).for_each(|span| {
        let (sample, p) = (span / spans, span % spans * most);
        let n = most.min(pixels - p);
        let b = Matrix { data: &x[sample * inputs * pixels..], row: pixels, col: 1 }.from(0, p);
        let c_start = sample * outputs * pixels + p;
        let product = Product { m: outputs, n, k: inputs, a: w, b, c: &y, c_start, c_row: pixels, accumulate: false };
        // SAFETY: every task has its own pixels.
        unsafe { product.run(level) };
    });
}
