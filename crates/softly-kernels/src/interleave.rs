//! Interleaving of rows: the transposition that packs matrices for the register blocks.

use crate::simd::{Job, Simd};

/// Rows that the fast path transposes together.
pub(crate) const TOGETHER: usize = 8;

/// `to[c·stride + r] = rows[r][c]` for all columns `c` of `R ≤ 8` rows.
#[inline(always)]
pub(crate) fn interleave<S: Simd, const R: usize>(s: S, rows: [&[f32]; R], stride: usize, to: &mut [f32]) {
    let columns = rows[0].len();
    let mut done = 0;
    if R == TOGETHER || stride == R {
        let mut starts = [rows[R - 1].as_ptr(); TOGETHER];
        for r in 0..R {
            assert_eq!(rows[r].len(), columns);
            starts[r] = rows[r].as_ptr();
        }
        // With fewer rows, eight numbers are written all the same; the next column overwrites the surplus.
        while done + TOGETHER <= columns && (done + TOGETHER - 1) * stride + TOGETHER <= to.len() {
            // SAFETY: every row has the columns `done..done + 8`, and the last of the eight writes ends in bounds.
            unsafe { s.transpose(starts, done, to.as_mut_ptr().add(done * stride), stride) };
            done += TOGETHER;
        }
    }
    for c in done..columns {
        for r in 0..R {
            to[c * stride + r] = rows[r][c];
        }
    }
}

/// [`interleave`] without gaps, for code outside of kernels.
pub(crate) struct Interleave<'a, const R: usize> {
    pub rows: [&'a [f32]; R],
    pub to: &'a mut [f32],
}

impl<const R: usize> Job for Interleave<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        interleave(s, self.rows, R, self.to);
    }
}
