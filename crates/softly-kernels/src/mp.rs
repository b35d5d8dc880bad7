//! Sums and concatenations that preserve the magnitude of independent inputs.

use rayon::prelude::*;

use crate::elementwise::{GRAIN, RowMap, Rows};
use crate::shape::Planes;
use crate::simd::Simd;

/// Weights `(1 − t)/n` and `t/n` with `n = √((1−t)² + t²)`.
fn sum_weights(t: f32) -> [f32; 2] {
    let norm = (1.0 - t).hypot(t);
    [(1.0 - t) / norm, t / norm]
}

/// `y = ((1−t) a + t b) / √((1−t)² + t²)`, then moved into `±clip` (infinite: not at all); arrays of any equal length.
pub fn mp_sum(t: f32, clip: f32, a: &[f32], b: &[f32], y: &mut [f32]) {
    struct Map([f32; 2], f32);
    impl RowMap<0, 2, 1, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, []: [S::V; 0], [a, b]: [S::V; 2], _: [S::V; 1]) -> ([S::V; 1], [S::V; 0]) {
            let sum = s.mul_add(a, s.splat(self.0[0]), s.mul(b, s.splat(self.0[1])));
            // The sum comes last, so that a NaN stays visible.
            ([s.min(s.splat(self.1), s.max(s.splat(-self.1), sum))], [])
        }
    }
    Rows { count: a.len(), len: 1, k: [], x: [a, b], y: [y], sums: [] }.map(&Map(sum_weights(t), clip));
}

/// Gradients of [`mp_sum`] with the result `y`: `dy` times the weights of `a` and `b` where `y` was not clipped, else 0;
/// arrays of any equal length.
pub fn mp_sum_grad(t: f32, clip: f32, y: &[f32], dy: &[f32], da: &mut [f32], db: &mut [f32]) {
    struct Map([f32; 2], f32);
    impl RowMap<0, 2, 2, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, []: [S::V; 0], [y, dy]: [S::V; 2], _: [S::V; 2]) -> ([S::V; 2], [S::V; 0]) {
            let dy = s.keep_within(dy, y, s.splat(self.1));
            ([s.mul(dy, s.splat(self.0[0])), s.mul(dy, s.splat(self.0[1]))], [])
        }
    }
    // A clipped value equals ±clip.
    let map = Map(sum_weights(t), clip.next_down());
    Rows { count: y.len(), len: 1, k: [], x: [y, dy], y: [da, db], sums: [] }.map(&map);
}

/// Factors of the two inputs of a concatenation: `C(1−t)/√Na` and `C t/√Nb` with `C = √((Na+Nb)/((1−t)²+t²))`.
fn cat_factors(channels: [usize; 2], t: f32) -> [f32; 2] {
    let weights = sum_weights(t);
    let total = (channels[0] + channels[1]) as f32;
    [0, 1].map(|i| weights[i] * (total / channels[i] as f32).sqrt())
}

/// `y = [f_a a, f_b b]` along channels with `f_a = C(1−t)/√Na`, `f_b = C t/√Nb`, `C = √((Na+Nb)/((1−t)²+t²))`;
/// `a [N, Na, P]` has shape `a_shape`, `b [N, Nb, P]`, `y [N, Na + Nb, P]`.
pub fn mp_cat(a_shape: Planes, b_channels: usize, t: f32, a: &[f32], b: &[f32], y: &mut [f32]) {
    let Planes { batch, channels, pixels } = a_shape;
    check_cat(a_shape, b_channels, a, b, y);
    if batch * pixels == 0 {
        return;
    }
    let [fa, fb] = cat_factors([channels, b_channels], t);
    let width = channels + b_channels;
    y.par_chunks_mut(pixels).with_min_len(GRAIN.div_ceil(pixels)).enumerate().for_each(|(row, y)| {
        let (n, c) = (row / width, row % width);
        match c.checked_sub(channels) {
            None => scale(fa, &a[(n * channels + c) * pixels..][..pixels], y),
            Some(c) => scale(fb, &b[(n * b_channels + c) * pixels..][..pixels], y),
        }
    });
}

/// Gradients of [`mp_cat`]: the channels of `dy [N, Na + Nb, P]` times the factors, `da [N, Na, P]` and `db [N, Nb, P]`.
pub fn mp_cat_grad(a_shape: Planes, b_channels: usize, t: f32, dy: &[f32], da: &mut [f32], db: &mut [f32]) {
    let Planes { batch, channels, pixels } = a_shape;
    check_cat(a_shape, b_channels, da, db, dy);
    if batch * pixels == 0 {
        return;
    }
    let factors = cat_factors([channels, b_channels], t);
    let width = channels + b_channels;
    for (to, channels, first, factor) in [(da, channels, 0, factors[0]), (db, b_channels, channels, factors[1])] {
        to.par_chunks_mut(pixels).with_min_len(GRAIN.div_ceil(pixels)).enumerate().for_each(|(row, to)| {
            let (n, c) = (row / channels, row % channels);
            scale(factor, &dy[(n * width + first + c) * pixels..][..pixels], to);
        });
    }
}

fn check_cat(a_shape: Planes, b_channels: usize, a: &[f32], b: &[f32], y: &[f32]) {
    let Planes { batch, channels, pixels } = a_shape;
    assert_eq!(a.len(), a_shape.values(), "a must have N·Na·P values");
    assert_eq!(b.len(), batch * b_channels * pixels, "b must have N·Nb·P values");
    assert_eq!(y.len(), batch * (channels + b_channels) * pixels, "y must have N·(Na+Nb)·P values");
}

fn scale(factor: f32, from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = factor * from;
    }
}
