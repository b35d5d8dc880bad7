//! Normalisation to unit root mean square: of pixels over channels, and of the rows of weight matrices.

use rayon::prelude::*;

use crate::elementwise::{GRAIN, load_some};
use crate::scratch::Shared;
use crate::shape::Planes;
use crate::simd::{Job, Level, Simd};

/// Added to the root mean square, so that zeros stay zeros.
const EPSILON: f32 = 1e-4;
/// Replaces a root mean square of 0 where it divides a sum that is then 0 as well.
const TINY: f32 = 1e-20;
/// Vectors that are worked on together.
const STRIP: usize = 4;

/// `y = x / (1e-4 + r)` with `r² = mean_c x²` for every pixel; `x, y [N, C, P]`.
pub fn pixel_norm(shape: Planes, x: &[f32], y: &mut [f32]) {
    per_pixel(shape, x, None, y);
}

/// Gradient of [`pixel_norm`]: with `d = 1e-4 + r`, `dx = dy/d − x Σ_c(dy x)/(C r d²)`; `x, dy, dx [N, C, P]`.
pub fn pixel_norm_grad(shape: Planes, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    per_pixel(shape, x, Some(dy), dx);
}

/// [`pixel_norm`] of one sample on this thread.
pub(crate) fn pixel_norm_on_one_thread(level: Level, shape: Planes, x: &[f32], y: &mut [f32]) {
    let out = &Shared::new(y);
    level.run(Pixels { shape, n: 0, first: 0, last: shape.pixels, x, dy: None, out });
}

/// [`pixel_norm_grad`] of one sample on this thread.
pub(crate) fn pixel_norm_grad_on_one_thread(level: Level, shape: Planes, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    let out = &Shared::new(dx);
    level.run(Pixels { shape, n: 0, first: 0, last: shape.pixels, x, dy: Some(dy), out });
}

fn per_pixel(shape: Planes, x: &[f32], dy: Option<&[f32]>, out: &mut [f32]) {
    assert_eq!(x.len(), shape.values(), "input must have N·C·P values");
    assert_eq!(out.len(), shape.values(), "output must have N·C·P values");
    assert!(dy.is_none_or(|dy| dy.len() == shape.values()), "output gradient must have N·C·P values");
    if out.is_empty() {
        return;
    }
    let level = Level::current();
    let out = &Shared::new(out);
    let span = GRAIN.div_ceil(shape.channels).next_multiple_of(128);
    let spans = shape.pixels.div_ceil(span);
    let samples = GRAIN.div_ceil(shape.channels * shape.pixels);
    (0..shape.batch * spans).into_par_iter().with_min_len(samples).for_each(|task| {
        let (n, first) = (task / spans, task % spans * span);
        let last = (first + span).min(shape.pixels);
        level.run(Pixels { shape, n, first, last, x, dy, out });
    });
}

/// Pixels `first..last` of sample `n`. Owns those elements of `out`.
struct Pixels<'a> {
    shape: Planes,
    n: usize,
    first: usize,
    last: usize,
    x: &'a [f32],
    dy: Option<&'a [f32]>,
    out: &'a Shared<'a>,
}

impl Job for Pixels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut at = self.first;
        while at + STRIP * S::LANES <= self.last {
            self.strip::<S, STRIP>(s, at, S::LANES);
            at += STRIP * S::LANES;
        }
        while at < self.last {
            let count = S::LANES.min(self.last - at);
            self.strip::<S, 1>(s, at, count);
            at += count;
        }
    }
}

impl Pixels<'_> {
    /// `M` vectors of `count` pixels each.
    #[inline(always)]
    fn strip<S: Simd, const M: usize>(&self, s: S, at: usize, count: usize) {
        let Planes { channels, pixels, .. } = self.shape;
        let start = self.n * channels * pixels + at;
        let mut squares = [s.splat(0.0); M];
        let mut products = [s.splat(0.0); M];
        for c in 0..channels {
            for m in 0..M {
                let position = start + c * pixels + m * S::LANES;
                let x = load_some(s, self.x, position, count);
                squares[m] = s.mul_add(x, x, squares[m]);
                if let Some(dy) = self.dy {
                    products[m] = s.mul_add(load_some(s, dy, position, count), x, products[m]);
                }
            }
        }
        // out = a·(x or dy) − b·x
        let (mut a, mut b) = ([s.splat(0.0); M], [s.splat(0.0); M]);
        let count_channels = s.splat(channels as f32);
        for m in 0..M {
            let rms = s.sqrt(s.div(squares[m], count_channels));
            a[m] = s.div(s.splat(1.0), s.add(s.splat(EPSILON), rms));
            let divisor = s.mul(count_channels, s.max(rms, s.splat(TINY)));
            b[m] = s.mul(s.mul(a[m], a[m]), s.div(products[m], divisor));
        }
        for c in 0..channels {
            for m in 0..M {
                let position = start + c * pixels + m * S::LANES;
                let x = load_some(s, self.x, position, count);
                let v = match self.dy {
                    None => s.mul(a[m], x),
                    Some(dy) => s.sub(s.mul(a[m], load_some(s, dy, position, count)), s.mul(b[m], x)),
                };
                // SAFETY: this task alone writes these pixels; one piece at a time.
                let to = unsafe { self.out.piece(position, count) };
                if count == S::LANES { s.store(v, to) } else { s.store_part(v, to) }
            }
        }
    }
}

/// `w ← w / (1e-4 + r)` with `r² = mean w²` for every row of `len` values: forced weight normalisation; `w [rows, len]`.
pub fn normalize_rows(len: usize, w: &mut [f32]) {
    assert!(w.is_empty() || len > 0 && w.len().is_multiple_of(len), "weights must have whole rows of {len} values");
    let level = Level::current();
    w.par_chunks_mut(len.max(1)).with_min_len(GRAIN.div_ceil(len.max(1))).for_each(|row| level.run(NormalizeRow(row)));
}

struct NormalizeRow<'a>(&'a mut [f32]);

impl Job for NormalizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let row = self.0;
        let divisor = EPSILON + (sum_of_products(s, row, row) / row.len() as f32).sqrt();
        for x in row {
            *x /= divisor;
        }
    }
}

/// The weight that a layer uses, `y = w/(1e-4 + r) · gain/√len` with `r² = mean w²` for every row of `len` values (the
/// inputs of one output); `w, y [rows, len]`.
pub fn weight_norm(len: usize, gain: f32, w: &[f32], y: &mut [f32]) {
    assert!(w.is_empty() || len > 0 && w.len().is_multiple_of(len), "weights must have whole rows of {len} values");
    assert_eq!(y.len(), w.len(), "output must have as many values as the weights");
    let level = Level::current();
    let scale = gain / (len as f32).sqrt();
    let rows = w.par_chunks(len.max(1)).zip(y.par_chunks_mut(len.max(1)));
    rows.with_min_len(GRAIN.div_ceil(len.max(1))).for_each(|(w, y)| level.run(UsedRow { scale, w, y }));
}

struct UsedRow<'a> {
    scale: f32,
    w: &'a [f32],
    y: &'a mut [f32],
}

impl Job for UsedRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rms = (sum_of_products(s, self.w, self.w) / self.w.len() as f32).sqrt();
        let factor = self.scale / (EPSILON + rms);
        for (y, w) in self.y.iter_mut().zip(self.w) {
            *y = factor * w;
        }
    }
}

/// Gradients of [`weight_norm`]: with `d = 1e-4 + r`, `dw = gain/√len · (dy/d − w Σ(dy w)/(len r d²))` for every row, and
/// the result is `dgain = Σ_rows Σ(dy w)/(d √len)`; `w, dy, dw [rows, len]`.
pub fn weight_norm_grad(len: usize, gain: f32, w: &[f32], dy: &[f32], dw: &mut [f32]) -> f32 {
    assert!(w.is_empty() || len > 0 && w.len().is_multiple_of(len), "weights must have whole rows of {len} values");
    assert_eq!(dy.len(), w.len(), "output gradient must have as many values as the weights");
    assert_eq!(dw.len(), w.len(), "weight gradient must have as many values as the weights");
    let level = Level::current();
    let root = (len as f32).sqrt();
    let rows = w.par_chunks(len.max(1)).zip(dy.par_chunks(len.max(1))).zip(dw.par_chunks_mut(len.max(1)));
    let along: Vec<f32> = rows
        .with_min_len(GRAIN.div_ceil(len.max(1)))
        .map(|((w, dy), dw)| level.run(UsedRowGrad { scale: gain / root, w, dy, dw }))
        .collect();
    // Summed in the order of the rows, whatever thread made them.
    (along.into_iter().map(f64::from).sum::<f64>() / f64::from(root)) as f32
}

struct UsedRowGrad<'a> {
    scale: f32,
    w: &'a [f32],
    dy: &'a [f32],
    dw: &'a mut [f32],
}

impl Job for UsedRowGrad<'_> {
    /// `Σ(dy w)/d`
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let Self { scale, w, dy, dw } = self;
        let count = w.len() as f32;
        let rms = (sum_of_products(s, w, w) / count).sqrt();
        let inverse = 1.0 / (EPSILON + rms);
        let along = sum_of_products(s, dy, w) * inverse;
        let (a, b) = (scale * inverse, scale * inverse * along / (count * rms.max(TINY)));
        for ((dw, dy), w) in dw.iter_mut().zip(dy).zip(w) {
            *dw = a * dy - b * w;
        }
        along
    }
}

/// `Σ a b`, with enough chains to hide the latency of a multiply-add.
#[inline(always)]
fn sum_of_products<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); STRIP];
    let mut at = 0;
    while at + STRIP * S::LANES <= a.len() {
        for m in 0..STRIP {
            let position = at + m * S::LANES;
            sums[m] = s.mul_add(s.load(&a[position..]), s.load(&b[position..]), sums[m]);
        }
        at += STRIP * S::LANES;
    }
    while at < a.len() {
        let count = S::LANES.min(a.len() - at);
        sums[0] = s.mul_add(load_some(s, a, at, count), load_some(s, b, at, count), sums[0]);
        at += count;
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}
