//! Activations, alone and fused with the scaling that the embedding applies.

use crate::elementwise::{RowMap, Rows};
use crate::shape::Planes;
use crate::simd::Simd;

/// `mp_silu(x) = silu(x) / 0.596` keeps the magnitude of normal input.
const MP_SILU_GAIN: f32 = 1.0 / 0.596;

/// `x / (1 + e^−x)`.
#[inline(always)]
fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(x, s.sigmoid(x))
}

/// Derivative `σ + x σ (1 − σ)` with `σ = sigmoid(x)`.
#[inline(always)]
fn silu_slope<S: Simd>(s: S, x: S::V) -> S::V {
    let sigmoid = s.sigmoid(x);
    let rest = s.sub(s.splat(1.0), sigmoid);
    s.mul(sigmoid, s.mul_add(x, rest, s.splat(1.0)))
}

/// `y = silu(x) / 0.596`; arrays of any equal length.
pub fn mp_silu(x: &[f32], y: &mut [f32]) {
    struct Map;
    impl RowMap<0, 1, 1, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, []: [S::V; 0], [x]: [S::V; 1], _: [S::V; 1]) -> ([S::V; 1], [S::V; 0]) {
            ([s.mul(silu(s, x), s.splat(MP_SILU_GAIN))], [])
        }
    }
    Rows { count: x.len(), len: 1, k: [], x: [x], y: [y], sums: [] }.map(&Map);
}

/// `dx = dy silu'(x) / 0.596`; arrays of any equal length.
pub fn mp_silu_grad(x: &[f32], dy: &[f32], dx: &mut [f32]) {
    struct Map;
    impl RowMap<0, 2, 1, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, []: [S::V; 0], [x, dy]: [S::V; 2], _: [S::V; 1]) -> ([S::V; 1], [S::V; 0]) {
            ([s.mul(dy, s.mul(silu_slope(s, x), s.splat(MP_SILU_GAIN)))], [])
        }
    }
    Rows { count: x.len(), len: 1, k: [], x: [x, dy], y: [dx], sums: [] }.map(&Map);
}

/// `y = mp_silu(c x)`; `x, y [N, C, P]`, `c [N, C]`.
pub fn mp_silu_scaled(shape: Planes, x: &[f32], c: &[f32], y: &mut [f32]) {
    struct Map;
    impl RowMap<1, 1, 1, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, [c]: [S::V; 1], [x]: [S::V; 1], _: [S::V; 1]) -> ([S::V; 1], [S::V; 0]) {
            ([s.mul(silu(s, s.mul(c, x)), s.splat(MP_SILU_GAIN))], [])
        }
    }
    Rows { count: shape.rows(), len: shape.pixels, k: [c], x: [x], y: [y], sums: [] }.map(&Map);
}

/// Gradients of [`mp_silu_scaled`]: with `g = dy mp_silu'(c x)`, `dx = c g` and `dc = Σ_p x g`;
/// `x, dy, dx [N, C, P]`, `c, dc [N, C]`.
pub fn mp_silu_scaled_grad(shape: Planes, x: &[f32], c: &[f32], dy: &[f32], dx: &mut [f32], dc: &mut [f32]) {
    struct Map;
    impl RowMap<1, 2, 1, 1> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, [c]: [S::V; 1], [x, dy]: [S::V; 2], _: [S::V; 1]) -> ([S::V; 1], [S::V; 1]) {
            let g = s.mul(dy, s.mul(silu_slope(s, s.mul(c, x)), s.splat(MP_SILU_GAIN)));
            ([s.mul(c, g)], [s.mul(x, g)])
        }
    }
    Rows { count: shape.rows(), len: shape.pixels, k: [c], x: [x, dy], y: [dx], sums: [dc] }.map(&Map);
}

/// `x (1 + scale) + shift`.
#[inline(always)]
fn modulated<S: Simd>(s: S, x: S::V, scale: S::V, shift: S::V) -> S::V {
    s.mul_add(x, s.add(s.splat(1.0), scale), shift)
}

/// `y = silu(x (1 + scale) + shift)`; `x, y [N, C, P]`, `scale, shift [N, C]`.
pub fn silu_modulate(shape: Planes, x: &[f32], scale: &[f32], shift: &[f32], y: &mut [f32]) {
    struct Map;
    impl RowMap<2, 1, 1, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, k: [S::V; 2], [x]: [S::V; 1], _: [S::V; 1]) -> ([S::V; 1], [S::V; 0]) {
            ([silu(s, modulated(s, x, k[0], k[1]))], [])
        }
    }
    Rows { count: shape.rows(), len: shape.pixels, k: [scale, shift], x: [x], y: [y], sums: [] }.map(&Map);
}

/// Gradients of [`silu_modulate`]: with `g = dy silu'(x (1 + scale) + shift)`, `dx = (1 + scale) g`,
/// `dscale = Σ_p x g` and `dshift = Σ_p g`; `x, dy, dx [N, C, P]`, the others `[N, C]`.
pub fn silu_modulate_grad(
    shape: Planes,
    x: &[f32],
    scale: &[f32],
    shift: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    dscale: &mut [f32],
    dshift: &mut [f32],
) {
    struct Map;
    impl RowMap<2, 2, 1, 2> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, k: [S::V; 2], [x, dy]: [S::V; 2], _: [S::V; 1]) -> ([S::V; 1], [S::V; 2]) {
            let g = s.mul(dy, silu_slope(s, modulated(s, x, k[0], k[1])));
            ([s.mul_add(g, k[0], g)], [s.mul(x, g), g])
        }
    }
    let (count, len) = (shape.rows(), shape.pixels);
    Rows { count, len, k: [scale, shift], x: [x, dy], y: [dx], sums: [dscale, dshift] }.map(&Map);
}

/// `ln(1 + e^x) = max(x, 0) + ln(1 + u)` with `u = e^−|x|`, which overflows nowhere.
#[inline(always)]
fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let negative = s.sub(zero, x);
    let u = s.exp(s.min(x, negative));
    // ln(1 + u) = 2 artanh(z) with z = u / (2 + u) ≤ 1/3: the series z + z³/3 + z⁵/5 + … to z¹⁵.
    let z = s.div(u, s.add(s.splat(2.0), u));
    let z2 = s.mul(z, z);
    let mut series = s.splat(2.0 / 15.0);
    for divisor in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = s.mul_add(series, z2, s.splat(2.0 / divisor));
    }
    s.mul_add(z, series, s.max(x, zero))
}

/// `y = softplus(c x)`; arrays of any equal length.
pub fn softplus_scaled(x: &[f32], c: &[f32], y: &mut [f32]) {
    struct Map;
    impl RowMap<0, 2, 1, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, []: [S::V; 0], [x, c]: [S::V; 2], _: [S::V; 1]) -> ([S::V; 1], [S::V; 0]) {
            ([softplus(s, s.mul(c, x))], [])
        }
    }
    Rows { count: x.len(), len: 1, k: [], x: [x, c], y: [y], sums: [] }.map(&Map);
}

/// Gradients of [`softplus_scaled`]: with `g = dy sigmoid(c x)`, `dx = c g` and `dc = x g`; arrays of any equal length.
pub fn softplus_scaled_grad(x: &[f32], c: &[f32], dy: &[f32], dx: &mut [f32], dc: &mut [f32]) {
    struct Map;
    impl RowMap<0, 3, 2, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, []: [S::V; 0], [x, c, dy]: [S::V; 3], _: [S::V; 2]) -> ([S::V; 2], [S::V; 0]) {
            let g = s.mul(dy, s.sigmoid(s.mul(c, x)));
            ([s.mul(c, g), s.mul(x, g)], [])
        }
    }
    Rows { count: x.len(), len: 1, k: [], x: [x, c, dy], y: [dx, dc], sums: [] }.map(&Map);
}
