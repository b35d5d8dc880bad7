//! The register block shared by all products, and a single-threaded product of strided matrices.

use crate::interleave::{TOGETHER, interleave};
use crate::scratch::{Scratch, Shared};
use crate::simd::{Job, Level, Simd};

/// Rows of a register block. 6 rows × 2 vectors of accumulators, 2 vectors and 1 factor fill the 16 registers of AVX2.
pub(crate) const BLOCK: usize = 6;

/// Steps of the inner dimension after which sums go back to memory, so that packed panels stay in the first caches.
const DEPTH: usize = 256;

/// `acc[r][v] += Σ_k a[k·R + r] · b[v][k·stride..][..LANES]` for `k` in `0..steps`.
///
/// # Safety
/// `a` must be valid for `steps·R` numbers, each `b` for `(steps − 1)·stride + LANES`.
#[inline(always)]
pub(crate) unsafe fn accumulate<S: Simd, const R: usize>(
    s: S,
    acc: &mut [[S::V; 2]; R],
    a: *const f32,
    b: [*const f32; 2],
    stride: usize,
    steps: usize,
) {
    let (mut a, mut b) = (a, b);
    for _ in 0..steps {
        // SAFETY: fewer than `steps` steps have been made, so this lies in the ranges that the caller promises.
        unsafe {
            let vectors = [s.read(b[0]), s.read(b[1])];
            for r in 0..R {
                let factor = s.splat(*a.add(r));
                acc[r][0] = s.mul_add(factor, vectors[0], acc[r][0]);
                acc[r][1] = s.mul_add(factor, vectors[1], acc[r][1]);
            }
        }
        a = a.wrapping_add(R);
        b = [b[0].wrapping_add(stride), b[1].wrapping_add(stride)];
    }
}

/// Evaluates `$body` with the constant `$R` equal to `$rows` in `1..=BLOCK`.
macro_rules! with_rows {
    ($rows:expr, $R:ident => $body:expr) => {
        match $rows {
            1 => {
                const $R: usize = 1;
                $body
            }
            2 => {
                const $R: usize = 2;
                $body
            }
            3 => {
                const $R: usize = 3;
                $body
            }
            4 => {
                const $R: usize = 4;
                $body
            }
            5 => {
                const $R: usize = 5;
                $body
            }
            _ => {
                const $R: usize = 6;
                $body
            }
        }
    };
}
pub(crate) use with_rows;

/// A matrix in a slice: element `(i, j)` is `data[i·row + j·col]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub col: usize,
}

impl Matrix<'_> {
    /// The matrix without its first `i` rows and `j` columns.
    pub(crate) fn from(self, i: usize, j: usize) -> Self {
        Self { data: &self.data[(i * self.row + j * self.col).min(self.data.len())..], ..self }
    }
}

/// Interleaves `R` rows: `packed[k·R + r] = m[r, k]` for `k` in `0..depth`.
#[inline(always)]
fn pack_rows<S: Simd>(s: S, m: Matrix, rows: usize, depth: usize, packed: &mut [f32]) {
    if m.col == 1 {
        with_rows!(rows, R => {
            let rows: [&[f32]; R] = std::array::from_fn(|r| &m.data[r * m.row..][..depth]);
            interleave(s, rows, R, packed);
        });
    } else {
        debug_assert_eq!(m.row, 1, "one of the strides is 1");
        with_rows!(rows, R => {
            for (k, to) in packed.as_chunks_mut::<R>().0.iter_mut().enumerate() {
                to.copy_from_slice(&m.data[k * m.col..][..R]);
            }
        });
    }
}

/// A panel of `wide` columns: `packed[k·wide + j] = m[k, j]`, with arbitrary numbers where the matrix has ended.
#[inline(always)]
fn pack_panel<S: Simd>(s: S, m: Matrix, depth: usize, cols: usize, wide: usize, packed: &mut [f32]) {
    if m.col == 1 {
        for (k, to) in packed.chunks_exact_mut(wide).enumerate() {
            to[..cols].copy_from_slice(&m.data[k * m.row..][..cols]);
        }
    } else {
        debug_assert_eq!(m.row, 1, "one of the strides is 1");
        let whole = cols - cols % TOGETHER;
        for j in (0..whole).step_by(TOGETHER) {
            let rows: [&[f32]; TOGETHER] = std::array::from_fn(|r| &m.data[(j + r) * m.col..][..depth]);
            interleave(s, rows, wide, &mut packed[j..]);
        }
        for j in whole..cols {
            interleave(s, [&m.data[j * m.col..][..depth]], wide, &mut packed[j..]);
        }
    }
}

/// `C = A·B`, or `C += A·B`, on one thread. `A` is `m × k`, `B` is `k × n`; row `i` of `C` starts at `c_start + i·c_row`.
pub(crate) struct Product<'a> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Matrix<'a>,
    pub b: Matrix<'a>,
    pub c: &'a Shared<'a>,
    pub c_start: usize,
    pub c_row: usize,
    pub accumulate: bool,
}

impl Product<'_> {
    /// Computes the product.
    ///
    /// # Safety
    /// No other task may use the elements of `C`.
    pub(crate) unsafe fn run(self, level: Level) {
        level.run(self);
    }
}

impl Job for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let wide = 2 * S::LANES;
        let most = self.k.min(DEPTH);
        let mut scratch = Scratch::new((BLOCK + self.n.next_multiple_of(wide)) * most);
        let (packed_a, panels) = scratch.slice().split_at_mut(BLOCK * most);
        for k0 in (0..self.k.max(1)).step_by(DEPTH) {
            let depth = most.min(self.k - k0);
            let add = self.accumulate || k0 > 0;
            for j in (0..if depth > 0 { self.n } else { 0 }).step_by(wide) {
                let cols = wide.min(self.n - j);
                pack_panel(s, self.b.from(k0, j), depth, cols, wide, &mut panels[j * depth..][..wide * depth]);
            }
            for i in (0..self.m).step_by(BLOCK) {
                let rows = BLOCK.min(self.m - i);
                let a = &mut packed_a[..rows * depth];
                pack_rows(s, self.a.from(i, k0), rows, depth, a);
                for j in (0..self.n).step_by(wide) {
                    let cols = wide.min(self.n - j);
                    let panel = &panels[j * depth..][..wide * depth];
                    with_rows!(rows, R => self.tile::<S, R>(s, a, panel, i, j, cols, add));
                }
            }
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(
        &self,
        s: S,
        a: &[f32],
        panel: &[f32],
        i: usize,
        j: usize,
        cols: usize,
        add: bool,
    ) {
        let depth = a.len() / R;
        debug_assert_eq!(panel.len(), depth * 2 * S::LANES);
        let mut acc = [[s.splat(0.0); 2]; R];
        // SAFETY: `a` has `depth·R` numbers and the panel `depth` rows of two vectors.
        unsafe {
            let b = panel.as_ptr();
            accumulate(s, &mut acc, a.as_ptr(), [b, b.wrapping_add(S::LANES)], 2 * S::LANES, depth);
        }
        for (r, acc) in acc.iter().enumerate() {
            // SAFETY: whoever runs the product promises that the elements of C are its own; one piece at a time.
            let c = unsafe { self.c.piece(self.c_start + (i + r) * self.c_row + j, cols) };
            write_row(s, *acc, c, add);
        }
    }
}

/// Writes (or adds) as many numbers of two vectors as `to` has.
#[inline(always)]
pub(crate) fn write_row<S: Simd>(s: S, v: [S::V; 2], to: &mut [f32], add: bool) {
    for (v, to) in v.into_iter().zip(to.chunks_mut(S::LANES)) {
        if to.len() == S::LANES {
            let v = if add { s.add(s.load(to), v) } else { v };
            s.store(v, to);
        } else {
            let v = if add { s.add(s.load_part(to), v) } else { v };
            s.store_part(v, to);
        }
    }
}
