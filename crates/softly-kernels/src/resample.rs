//! Halving and doubling of the image size with the filter `[1, 1]`.

use rayon::prelude::*;

use crate::elementwise::GRAIN;

/// Images whose size is halved or doubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResampleShape {
    /// Images, `B`: samples times channels.
    pub images: usize,
    /// Rows of the small image, `H`.
    pub height: usize,
    /// Columns of the small image, `W`.
    pub width: usize,
}

/// Mean of 2×2 pixels; `x [B, 2H, 2W]`, `y [B, H, W]`.
pub fn downsample(shape: ResampleShape, x: &[f32], y: &mut [f32]) {
    sum_squares(shape, 0.25, x, y);
}

/// Gradient of [`downsample`]; `dy [B, H, W]`, `dx [B, 2H, 2W]`.
pub fn downsample_grad(shape: ResampleShape, dy: &[f32], dx: &mut [f32]) {
    repeat(shape, 0.25, dy, dx);
}

/// Every pixel repeated 2×2; `x [B, H, W]`, `y [B, 2H, 2W]`.
pub fn upsample(shape: ResampleShape, x: &[f32], y: &mut [f32]) {
    repeat(shape, 1.0, x, y);
}

/// Gradient of [`upsample`]; `dy [B, 2H, 2W]`, `dx [B, H, W]`.
pub fn upsample_grad(shape: ResampleShape, dy: &[f32], dx: &mut [f32]) {
    sum_squares(shape, 1.0, dy, dx);
}

/// `small = factor · Σ` of 2×2 pixels of `large`.
fn sum_squares(shape: ResampleShape, factor: f32, large: &[f32], small: &mut [f32]) {
    let width = shape.width;
    if check(shape, small, large) {
        return;
    }
    let rows = small.par_chunks_mut(width).zip(large.par_chunks(4 * width));
    rows.with_min_len(GRAIN.div_ceil(4 * width)).for_each(|(small, large)| {
        let (upper, lower) = large.split_at(2 * width);
        let pairs = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
        for (small, (u, l)) in small.iter_mut().zip(pairs) {
            *small = factor * ((u[0] + u[1]) + (l[0] + l[1]));
        }
    });
}

/// `large = factor · small` in each of 2×2 pixels.
fn repeat(shape: ResampleShape, factor: f32, small: &[f32], large: &mut [f32]) {
    let width = shape.width;
    if check(shape, small, large) {
        return;
    }
    let rows = small.par_chunks(width).zip(large.par_chunks_mut(4 * width));
    rows.with_min_len(GRAIN.div_ceil(4 * width)).for_each(|(small, large)| {
        let (upper, lower) = large.split_at_mut(2 * width);
        for (pair, small) in upper.as_chunks_mut::<2>().0.iter_mut().zip(small) {
            *pair = [factor * small; 2];
        }
        lower.copy_from_slice(upper);
    });
}

/// Checks the lengths; whether there is nothing to do.
fn check(shape: ResampleShape, small: &[f32], large: &[f32]) -> bool {
    let values = shape.images * shape.height * shape.width;
    assert_eq!(small.len(), values, "the small images must have B·H·W values");
    assert_eq!(large.len(), 4 * values, "the large images must have B·2H·2W values");
    values == 0
}
