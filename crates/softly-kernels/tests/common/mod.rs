//! Helpers of the tests: reproducible noise, comparison, and the levels and thread counts to run.
#![allow(dead_code)]

use softly_kernels::simd::{Level, with_level};

/// Reproducible numbers in −1..1.
pub fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x0123_4567_89AB_CDEF;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// An output buffer whose contents must not matter.
pub fn garbage(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Asserts that every number is within `tolerance` times the size of the numbers (at least 1).
pub fn assert_close(name: &str, found: &[f32], exact: &[f64], tolerance: f64) {
    assert_eq!(found.len(), exact.len(), "{name}");
    let size = exact.iter().fold(1.0_f64, |size, x| size.max(x.abs()));
    for (i, (found, exact)) in found.iter().zip(exact).enumerate() {
        let error = (f64::from(*found) - exact).abs();
        assert!(error <= tolerance * size, "{name}[{i}] = {found}, expected {exact}");
    }
}

/// Runs `check` at every level of this machine.
pub fn at_every_level(check: impl Fn()) {
    for level in Level::supported() {
        with_level(level, &check);
    }
}

/// Central differences in each number of `x` of the scalar function `f`.
pub fn differences(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let centre = x[i];
            x[i] = centre + STEP;
            let above = f(&x);
            x[i] = centre - STEP;
            let below = f(&x);
            x[i] = centre;
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

/// Weighted sum of the outputs, the scalar whose gradients the kernels compute.
pub fn weighted(dy: &[f32], y: &[f64]) -> f64 {
    dy.iter().zip(y).map(|(dy, y)| f64::from(*dy) * y).sum()
}
