//! The loop shared by all kernels that treat every value alike.

use crate::simd::{Job, Level, Simd};

/// A function of `I` inputs and `O` outputs at one position, with `K` constants and `R` sums per row.
pub(crate) trait RowMap<const K: usize, const I: usize, const O: usize, const R: usize>: Sync {
    /// From the constants `k` of the row, the inputs `x` and the former outputs `y`: the new outputs and the terms of
    /// the sums. Must be `#[inline(always)]`.
    fn apply<S: Simd>(&self, s: S, k: [S::V; K], x: [S::V; I], y: [S::V; O]) -> ([S::V; O], [S::V; R]);
}

/// Arrays of a map over `count` rows of `len` positions: `k` and `sums` have one number per row, `x` and `y` have `len`.
pub(crate) struct Rows<'a, const K: usize, const I: usize, const O: usize, const R: usize> {
    pub count: usize,
    pub len: usize,
    pub k: [&'a [f32]; K],
    pub x: [&'a [f32]; I],
    pub y: [&'a mut [f32]; O],
    pub sums: [&'a mut [f32]; R],
}

/// Positions below which another task costs more than it saves.
pub(crate) const GRAIN: usize = 16_384;

impl<const K: usize, const I: usize, const O: usize, const R: usize> Rows<'_, K, I, O, R> {
    /// Applies `f` everywhere.
    ///
    /// # Panics
    /// If an array does not fit.
    pub(crate) fn map(self, f: &impl RowMap<K, I, O, R>) {
        let (rows, values) = (self.count, self.count * self.len);
        assert!(self.k.iter().all(|k| k.len() == rows), "row constants must have {rows} values");
        assert!(self.sums.iter().all(|k| k.len() == rows), "row sums must have {rows} values");
        assert!(self.x.iter().all(|x| x.len() == values), "inputs must have {values} values");
        assert!(self.y.iter().all(|y| y.len() == values), "outputs must have {values} values");
        self.split(Level::current(), f);
    }

    fn split(self, level: Level, f: &impl RowMap<K, I, O, R>) {
        if self.count < 2 || self.count * self.len < 2 * GRAIN {
            return level.run(MapJob { rows: self, f });
        }
        let (rows, len) = (self.count / 2, self.len);
        let (k0, k1) = split_all(self.k, |k| k.split_at(rows));
        let (x0, x1) = split_all(self.x, |x| x.split_at(rows * len));
        let (y0, y1) = split_all(self.y, |y| y.split_at_mut(rows * len));
        let (sums0, sums1) = split_all(self.sums, |r| r.split_at_mut(rows));
        let first = Rows { count: rows, len, k: k0, x: x0, y: y0, sums: sums0 };
        let second = Rows { count: self.count - rows, len, k: k1, x: x1, y: y1, sums: sums1 };
        rayon::join(|| first.split(level, f), || second.split(level, f));
    }
}

fn split_all<A, B, const M: usize>(arrays: [A; M], split: impl Fn(A) -> (B, B)) -> ([B; M], [B; M]) {
    let mut pairs = arrays.map(|a| {
        let (left, right) = split(a);
        (Some(left), Some(right))
    });
    let left = std::array::from_fn(|i| pairs[i].0.take().expect("taken once"));
    let right = std::array::from_fn(|i| pairs[i].1.take().expect("taken once"));
    (left, right)
}

struct MapJob<'a, 'f, F, const K: usize, const I: usize, const O: usize, const R: usize> {
    rows: Rows<'a, K, I, O, R>,
    f: &'f F,
}

impl<F: RowMap<K, I, O, R>, const K: usize, const I: usize, const O: usize, const R: usize> Job
    for MapJob<'_, '_, F, K, I, O, R>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Rows { count: rows, len, k, x, mut y, mut sums } = self.rows;
        let f = self.f;
        if len == 1 {
            // The rows themselves fill the vectors.
            let full = rows - rows % S::LANES;
            for at in (0..full).step_by(S::LANES) {
                let terms = step(s, f, load_all(s, k, at, S::LANES), x, &mut y, at, S::LANES);
                store_all(s, terms, &mut sums, at, S::LANES);
            }
            if full < rows {
                let terms = step(s, f, load_all(s, k, full, rows - full), x, &mut y, full, rows - full);
                store_all(s, terms, &mut sums, full, rows - full);
            }
            return;
        }
        let full = len - len % S::LANES;
        for row in 0..rows {
            let mut constants = [s.splat(0.0); K];
            for j in 0..K {
                constants[j] = s.splat(k[j][row]);
            }
            let mut total = [s.splat(0.0); R];
            for at in (row * len..row * len + full).step_by(S::LANES) {
                let terms = step(s, f, constants, x, &mut y, at, S::LANES);
                for j in 0..R {
                    total[j] = s.add(total[j], terms[j]);
                }
            }
            if full < len {
                let terms = step(s, f, constants, x, &mut y, row * len + full, len - full);
                for j in 0..R {
                    // Lanes beyond the row hold no terms.
                    total[j] = s.add(total[j], s.load_part(&s.to_array(terms[j])[..len - full]));
                }
            }
            for j in 0..R {
                sums[j][row] = s.sum(total[j]);
            }
        }
    }
}

/// Applies `f` to `count` positions from `at` on; returns the terms of the sums.
#[inline(always)]
fn step<S: Simd, const K: usize, const I: usize, const O: usize, const R: usize>(
    s: S,
    f: &impl RowMap<K, I, O, R>,
    k: [S::V; K],
    x: [&[f32]; I],
    y: &mut [&mut [f32]; O],
    at: usize,
    count: usize,
) -> [S::V; R] {
    let (new, terms) = f.apply(s, k, load_all(s, x, at, count), load_former(s, y, at, count));
    store_all(s, new, y, at, count);
    terms
}

// These are functions with loops, not closures: a closure would not be compiled for the instruction set.

/// `count` numbers from position `at` on, then zeros.
#[inline(always)]
pub(crate) fn load_some<S: Simd>(s: S, from: &[f32], at: usize, count: usize) -> S::V {
    let from = &from[at..at + count];
    if count == S::LANES { s.load(from) } else { s.load_part(from) }
}

#[inline(always)]
fn load_all<S: Simd, const M: usize>(s: S, from: [&[f32]; M], at: usize, count: usize) -> [S::V; M] {
    let mut v = [s.splat(0.0); M];
    for j in 0..M {
        v[j] = load_some(s, from[j], at, count);
    }
    v
}

#[inline(always)]
fn load_former<S: Simd, const M: usize>(s: S, from: &[&mut [f32]; M], at: usize, count: usize) -> [S::V; M] {
    let mut v = [s.splat(0.0); M];
    for j in 0..M {
        v[j] = load_some(s, from[j], at, count);
    }
    v
}

#[inline(always)]
fn store_all<S: Simd, const M: usize>(s: S, v: [S::V; M], to: &mut [&mut [f32]; M], at: usize, count: usize) {
    for j in 0..M {
        let to = &mut to[j][at..at + count];
        if count == S::LANES {
            s.store(v[j], to);
        } else {
            s.store_part(v[j], to);
        }
    }
}
