//! Matrices that act along the axes of images `[…, H, W]` of `f32` or `f64`.

use std::ops::{AddAssign, Mul};

use rayon::prelude::*;

use crate::elementwise::GRAIN;
use crate::gemm::{BLOCK, with_rows};
use crate::simd::{Job, Level, Simd};

/// `f32` or `f64`. Nobody else can be one: the vectors are this crate's own.
#[allow(private_bounds)]
pub trait Number: Vectors {}

impl Number for f32 {}
impl Number for f64 {}

/// Numbers and their vectors of every instruction set.
trait Vectors: Copy + Default + Send + Sync + AddAssign + Mul<Output = Self> {
    type V<S: Simd>: Copy;

    /// Numbers of a vector.
    fn lanes<S: Simd>() -> usize;
    fn splat<S: Simd>(s: S, x: Self) -> Self::V<S>;
    /// # Safety
    /// `from` must be valid for reading a vector.
    unsafe fn read<S: Simd>(s: S, from: *const Self) -> Self::V<S>;
    /// # Safety
    /// `to` must be valid for writing a vector.
    unsafe fn write<S: Simd>(s: S, v: Self::V<S>, to: *mut Self);
    /// `a·b + c`.
    fn mul_add<S: Simd>(s: S, a: Self::V<S>, b: Self::V<S>, c: Self::V<S>) -> Self::V<S>;

    /// The first vector of `from`.
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self]) -> Self::V<S> {
        assert!(from.len() >= Self::lanes::<S>());
        // SAFETY: the slice has at least a vector.
        unsafe { Self::read(s, from.as_ptr()) }
    }

    /// Writes the first vector of `to`.
    #[inline(always)]
    fn store<S: Simd>(s: S, v: Self::V<S>, to: &mut [Self]) {
        assert!(to.len() >= Self::lanes::<S>());
        // SAFETY: the slice has at least a vector.
        unsafe { Self::write(s, v, to.as_mut_ptr()) }
    }
}

/// [`Vectors`] by the methods of [`Simd`].
macro_rules! vectors {
    ($number:ty, $vector:ident, $share:literal, $splat:ident, $read:ident, $write:ident, $mul_add:ident) => {
        impl Vectors for $number {
            type V<S: Simd> = S::$vector;

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::LANES / $share
            }
            #[inline(always)]
            fn splat<S: Simd>(s: S, x: Self) -> Self::V<S> {
                s.$splat(x)
            }
            #[inline(always)]
            unsafe fn read<S: Simd>(s: S, from: *const Self) -> Self::V<S> {
                // SAFETY: promised by the caller.
                unsafe { s.$read(from) }
            }
            #[inline(always)]
            unsafe fn write<S: Simd>(s: S, v: Self::V<S>, to: *mut Self) {
                // SAFETY: promised by the caller.
                unsafe { s.$write(v, to) }
            }
            #[inline(always)]
            fn mul_add<S: Simd>(s: S, a: Self::V<S>, b: Self::V<S>, c: Self::V<S>) -> Self::V<S> {
                s.$mul_add(a, b, c)
            }
        }
    };
}

vectors!(f32, V, 1, splat, read, write, mul_add);
vectors!(f64, Wide, 2, wide_splat, wide_read, wide_write, wide_mul_add);

/// A square matrix M `[n, n]` with few entries that are not zero, such as a derivative by finite differences.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse<T> {
    /// Columns and values, by row.
    rows: Vec<Vec<(usize, T)>>,
    /// Diagonals that are mostly full: the column minus the row, and the entry of every row.
    diagonals: Vec<(isize, Vec<T>)>,
    /// All other entries: row, column, value.
    rest: Vec<(usize, usize, T)>,
}

impl<T: Number> Sparse<T> {
    /// The matrix with the given `(column, value)` entries by row.
    pub fn new(rows: Vec<Vec<(usize, T)>>) -> Self {
        let n = rows.len();
        let entries = || rows.iter().enumerate().flat_map(|(i, row)| row.iter().map(move |&(j, v)| (i, j, v)));
        assert!(entries().all(|(_, j, _)| j < n), "columns must be below {n}");
        let offset = |i: usize, j: usize| j as isize - i as isize;
        let mut counts = vec![0; 2 * n];
        entries().for_each(|(i, j, _)| counts[n + j - i] += 1);
        let full = (0..2 * n).filter(|&d| 2 * counts[d] > n);
        let mut diagonals: Vec<(isize, Vec<T>)> = full.map(|d| (offset(n, d), vec![T::default(); n])).collect();
        let mut rest = Vec::new();
        for (i, j, v) in entries() {
            match diagonals.iter_mut().find(|(d, _)| *d == offset(i, j)) {
                Some((_, diagonal)) => diagonal[i] += v,
                None => rest.push((i, j, v)),
            }
        }
        Self { rows, diagonals, rest }
    }

    /// Mᵀ.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let mut rows = vec![Vec::new(); self.rows.len()];
        for (i, row) in self.rows.iter().enumerate() {
            for &(j, v) in row {
                rows[j].push((i, v));
            }
        }
        Self::new(rows)
    }

    /// `y[i, :] = Σ_j M[i, j] x[j, :]` for images `[n, width]`.
    pub fn down(&self, width: usize, x: &[T], y: &mut [T]) {
        let size = (self.rows.len() * width).max(1);
        assert!(x.len() == y.len() && x.len().is_multiple_of(size), "x and y must be images of {size} values");
        let level = Level::current();
        by_pieces(x, y, size, |x, y| level.run(Down { matrix: self, width, x, y }));
    }

    /// `y[:, j] = Σ_k M[j, k] x[:, k]` for images whose lines have n numbers.
    pub fn across(&self, x: &[T], y: &mut [T]) {
        let n = self.rows.len().max(1);
        assert!(x.len() == y.len() && x.len().is_multiple_of(n), "x and y must have lines of {n} values");
        let level = Level::current();
        by_pieces(x, y, n, |x, y| level.run(Across { matrix: self, x, y }));
    }
}

/// `work` on pieces of some images of `size` numbers each.
fn by_pieces<T: Number>(x: &[T], y: &mut [T], size: usize, work: impl Fn(&[T], &mut [T]) + Sync) {
    let piece = size * (GRAIN / size).max(1);
    if x.len() < 2 * piece {
        return work(x, y);
    }
    x.par_chunks(piece).zip(y.par_chunks_mut(piece)).for_each(|(x, y)| work(x, y));
}

struct Down<'a, T> {
    matrix: &'a Sparse<T>,
    width: usize,
    x: &'a [T],
    y: &'a mut [T],
}

impl<T: Vectors> Job for Down<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { matrix, width, x, y } = self;
        let size = matrix.rows.len() * width;
        let lanes = T::lanes::<S>();
        for (x, y) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)) {
            for (row, y) in matrix.rows.iter().zip(y.chunks_exact_mut(width)) {
                if width < lanes {
                    y.fill(T::default());
                    for &(j, v) in row {
                        for k in 0..width {
                            y[k] += v * x[j * width + k];
                        }
                    }
                    continue;
                }
                for at in (0..width).step_by(lanes) {
                    // The last vector overlaps the one before it.
                    let at = at.min(width - lanes);
                    let mut sum = T::splat(s, T::default());
                    for &(j, v) in row {
                        sum = T::mul_add(s, T::splat(s, v), T::load(s, &x[j * width + at..]), sum);
                    }
                    T::store(s, sum, &mut y[at..]);
                }
            }
        }
    }
}

struct Across<'a, T> {
    matrix: &'a Sparse<T>,
    x: &'a [T],
    y: &'a mut [T],
}

impl<T: Vectors> Job for Across<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { matrix: Sparse { rows, diagonals, rest }, x, y } = self;
        let (n, lanes) = (rows.len(), T::lanes::<S>());
        let mut margin = 0;
        for (d, _) in diagonals {
            margin = margin.max(d.unsigned_abs());
        }
        // A line with zeros on both sides, where diagonals end.
        let mut padded = vec![T::default(); n + 2 * margin];
        for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
            padded[margin..margin + n].copy_from_slice(x);
            if n < lanes {
                y.fill(T::default());
                for (d, diagonal) in diagonals {
                    for j in 0..n {
                        y[j] += diagonal[j] * padded[(margin + j).strict_add_signed(*d)];
                    }
                }
            } else {
                for at in (0..n).step_by(lanes) {
                    // The last vector overlaps the one before it.
                    let at = at.min(n - lanes);
                    let mut sum = T::splat(s, T::default());
                    for (d, diagonal) in diagonals {
                        let from = (margin + at).strict_add_signed(*d);
                        sum = T::mul_add(s, T::load(s, &diagonal[at..]), T::load(s, &padded[from..]), sum);
                    }
                    T::store(s, sum, &mut y[at..]);
                }
            }
            for &(j, k, v) in rest {
                y[j] += v * x[k];
            }
        }
    }
}

/// Matrices along both axes of images `[N, C, H, W]`, a pair for every channel, such as a transform to waves.
#[derive(Clone, Debug, PartialEq)]
pub struct BothAxes<T> {
    /// C, H and W.
    pub shape: [usize; 3],
    /// L, `[C, H, H]`.
    pub left: Vec<T>,
    /// R, `[C, W, W]`.
    pub right: Vec<T>,
}

impl<T: Number> BothAxes<T> {
    /// Lᵀ and Rᵀ.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let [_, h, w] = self.shape;
        let transpose = |matrices: &[T], n: usize| {
            matrices.chunks_exact(n * n).flat_map(|m| (0..n * n).map(move |i| m[i % n * n + i / n])).collect()
        };
        Self { shape: self.shape, left: transpose(&self.left, h), right: transpose(&self.right, w) }
    }

    /// `y = L x R` for every image.
    pub fn apply(&self, x: &[T], y: &mut [T]) {
        let [c, h, w] = self.shape;
        assert_eq!((self.left.len(), self.right.len()), (c * h * h, c * w * w), "a pair of matrices for every channel");
        let sample = (c * h * w).max(1);
        assert!(x.len() == y.len() && x.len().is_multiple_of(sample), "x and y must be samples of {sample} values");
        let level = Level::current();
        let image = |(i, (x, y)): (usize, (&[T], &mut [T]))| {
            let left = &self.left[i % c * h * h..][..h * h];
            let right = &self.right[i % c * w * w..][..w * w];
            level.run(Both { left, right, x, y, size: [h, w] });
        };
        let images = x.par_chunks(h * w).zip(y.par_chunks_mut(h * w)).enumerate();
        images.with_min_len((GRAIN / (h * w)).max(1)).for_each(image);
    }
}

struct Both<'a, T> {
    left: &'a [T],
    right: &'a [T],
    x: &'a [T],
    y: &'a mut [T],
    size: [usize; 2],
}

impl<T: Vectors> Job for Both<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [h, w] = self.size;
        let mut between = vec![T::default(); h * w];
        product(s, h, w, self.left, self.x, &mut between);
        product(s, h, w, &between, self.right, self.y);
    }
}

/// `c = a·b`: `a [m, k]`, `b [k, n]`, `c [m, n]`, small enough to stay in the caches as they are.
#[inline(always)]
fn product<S: Simd, T: Vectors>(s: S, m: usize, n: usize, a: &[T], b: &[T], c: &mut [T]) {
    let (k, lanes) = (a.len() / m, T::lanes::<S>());
    assert!(a.len() == m * k && b.len() == k * n && c.len() == m * n);
    for i in (0..m).step_by(BLOCK) {
        let rows = BLOCK.min(m - i);
        let a = &a[i * k..][..rows * k];
        let c = &mut c[i * n..][..rows * n];
        if n >= 2 * lanes {
            for j in (0..n).step_by(2 * lanes) {
                // The last block overlaps the one before it.
                let j = j.min(n - 2 * lanes);
                with_rows!(rows, R => tile::<S, T, R, 2>(s, j, n, a, b, c));
            }
        } else if n >= lanes {
            for j in [0, n - lanes] {
                with_rows!(rows, R => tile::<S, T, R, 1>(s, j, n, a, b, c));
            }
        } else {
            c.fill(T::default());
            for r in 0..rows {
                for q in 0..k {
                    for j in 0..n {
                        c[r * n + j] += a[r * k + q] * b[q * n + j];
                    }
                }
            }
        }
    }
}

/// Columns `j` to `j + V vectors` of `c = a·b`: `a [R, k]`, `b [k, n]`, `c [R, n]`.
#[inline(always)]
fn tile<S: Simd, T: Vectors, const R: usize, const V: usize>(s: S, j: usize, n: usize, a: &[T], b: &[T], c: &mut [T]) {
    let (k, lanes) = (a.len() / R, T::lanes::<S>());
    assert!(a.len() == R * k && b.len() == k * n && c.len() == R * n && j + V * lanes <= n);
    let mut sums = [[T::splat(s, T::default()); V]; R];
    for q in 0..k {
        let mut vectors = [T::splat(s, T::default()); V];
        for v in 0..V {
            // SAFETY: row q of b has n numbers, and the V vectors from j on lie within them.
            vectors[v] = unsafe { T::read(s, b.as_ptr().add(q * n + j + v * lanes)) };
        }
        for r in 0..R {
            // SAFETY: a has R rows of k numbers.
            let factor = T::splat(s, unsafe { *a.get_unchecked(r * k + q) });
            for v in 0..V {
                sums[r][v] = T::mul_add(s, factor, vectors[v], sums[r][v]);
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            T::store(s, sums[r][v], &mut c[r * n + j + v * lanes..]);
        }
    }
}
