//! Products of row-major matrices, for linear layers.

use rayon::prelude::*;

use crate::gemm::{Matrix, Product};
use crate::scratch::Shared;
use crate::simd::Level;

/// Size of a product `[M, K]·[K, N] = [M, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulShape {
    /// Rows of the result, `M`.
    pub m: usize,
    /// Columns of the result, `N`.
    pub n: usize,
    /// Inner dimension, `K`.
    pub k: usize,
}

/// Part of the result that one task computes.
const TILE_ROWS: usize = 96;
const TILE_COLS: usize = 128;

/// `C = A·B`, or `C += A·B` if `accumulate`; `A [M, K]`, `B [K, N]`, `C [M, N]`.
pub fn matmul(shape: MatmulShape, a: &[f32], b: &[f32], c: &mut [f32], accumulate: bool) {
    let MatmulShape { m: _, n, k } = shape;
    product(shape, Matrix { data: a, row: k, col: 1 }, Matrix { data: b, row: n, col: 1 }, c, accumulate);
}

/// `C = Aᵀ·B`, or `C += Aᵀ·B` if `accumulate`; `A [K, M]`, `B [K, N]`, `C [M, N]`.
pub fn matmul_tn(shape: MatmulShape, a: &[f32], b: &[f32], c: &mut [f32], accumulate: bool) {
    let MatmulShape { m, n, k: _ } = shape;
    product(shape, Matrix { data: a, row: 1, col: m }, Matrix { data: b, row: n, col: 1 }, c, accumulate);
}

/// `C = A·Bᵀ`, or `C += A·Bᵀ` if `accumulate`; `A [M, K]`, `B [N, K]`, `C [M, N]`.
pub fn matmul_nt(shape: MatmulShape, a: &[f32], b: &[f32], c: &mut [f32], accumulate: bool) {
    let k = shape.k;
    product(shape, Matrix { data: a, row: k, col: 1 }, Matrix { data: b, row: 1, col: k }, c, accumulate);
}

fn product(shape: MatmulShape, a: Matrix, b: Matrix, c: &mut [f32], accumulate: bool) {
    let MatmulShape { m, n, k } = shape;
    assert_eq!(a.data.len(), m * k, "A must have M·K values");
    assert_eq!(b.data.len(), k * n, "B must have K·N values");
    assert_eq!(c.len(), m * n, "C must have M·N values");
    let level = Level::current();
    let c = Shared::new(c);
    let across = n.div_ceil(TILE_COLS);
    let tile = |tile: usize| {
        let (i, j) = (tile / across * TILE_ROWS, tile % across * TILE_COLS);
        let (rows, cols) = (TILE_ROWS.min(m - i), TILE_COLS.min(n - j));
        let (a, b) = (a.from(i, 0), b.from(0, j));
        let product = Product { m: rows, n: cols, k, a, b, c: &c, c_start: i * n + j, c_row: n, accumulate };
        // SAFETY: tiles do not overlap.
        unsafe { product.run(level) };
    };
    (0..m.div_ceil(TILE_ROWS) * across).into_par_iter().with_max_len(1).for_each(tile);
}
