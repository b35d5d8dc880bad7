//! Convolution with a 3×3 filter by minimal filtering, F(4×4, 3×3): a quarter of the multiplications.
//!
//! Every tile of 4×4 outputs reads a window of 6×6 inputs. Both the window and the filter are polynomials (per
//! direction); multiplied at 6 points (0, ±1/√2, ±√2, ∞) each, 36 products per tile and pair of channels give the 16
//! outputs: `y = Aᵀ[(G w Gᵀ) ⊙ (Bᵀ x B)]A`, where the sum over input channels is 36 matrix products. These points keep
//! all factors close to 1, and with them the rounding errors. The weight gradient is the exact adjoint,
//! `dw = Gᵀ[Σ (A dy Aᵀ) ⊙ (Bᵀ x B)]G`. Vectors run over channels everywhere.

use std::ops::Range;

use rayon::prelude::*;

use crate::gemm::with_rows;
use crate::interleave::{TOGETHER, interleave};
use crate::scratch::{Scratch, Shared};
use crate::shape::ConvShape;
use crate::simd::{Job, Level, MAX_LANES, MIN_LANES, Simd};

/// Outputs and inputs of a tile per direction, and points of the products.
const TILE: usize = 4;
const WINDOW: usize = 6;
const POINTS: usize = WINDOW * WINDOW;
/// Side of a filter.
const SIDE: usize = 3;
/// Tiles that are treated together: transformed filters are read once for all of them.
const CHUNK: usize = 24;
/// The points ±P and ±Q, with P² = 1/2 and Q² = 2.
const P: f32 = std::f32::consts::FRAC_1_SQRT_2;
const Q: f32 = std::f32::consts::SQRT_2;

/// Whether this is the way to convolve: channels fill vectors and images fill tiles. Does not depend on the batch.
pub(crate) fn applies(shape: ConvShape) -> bool {
    shape.inputs >= 8 && shape.outputs >= 8 && shape.height >= TILE && shape.width >= TILE
}

/// `c·a + b`.
#[inline(always)]
fn fma<S: Simd>(s: S, c: f32, a: S::V, b: S::V) -> S::V {
    s.mul_add(s.splat(c), a, b)
}

/// `Bᵀ d`: the window's polynomial at the points.
#[inline(always)]
fn window_at_points<S: Simd>(s: S, d: [S::V; WINDOW]) -> [S::V; WINDOW] {
    let (even, odd) = (fma(s, -2.0, d[2], d[4]), fma(s, -2.0, d[1], d[3]));
    let (even_q, odd_q) = (fma(s, -0.5, d[2], d[4]), fma(s, -0.5, d[1], d[3]));
    [
        s.add(fma(s, -2.5, d[2], d[4]), d[0]),
        fma(s, P, odd, even),
        fma(s, -P, odd, even),
        fma(s, Q, odd_q, even_q),
        fma(s, -Q, odd_q, even_q),
        s.add(fma(s, -2.5, d[3], d[5]), d[1]),
    ]
}

/// `Aᵀ m`: outputs from the products.
#[inline(always)]
fn outputs_from_points<S: Simd>(s: S, m: [S::V; WINDOW]) -> [S::V; TILE] {
    let (sum_p, difference_p) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
    let (sum_q, difference_q) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
    [
        s.add(s.add(m[0], sum_p), sum_q),
        fma(s, P, difference_p, s.mul(s.splat(Q), difference_q)),
        fma(s, 0.5, sum_p, s.add(sum_q, sum_q)),
        fma(s, 0.5 * P, difference_p, fma(s, 2.0 * Q, difference_q, m[5])),
    ]
}

/// `A y`: the adjoint of [`outputs_from_points`].
#[inline(always)]
fn outputs_at_points<S: Simd>(s: S, y: [S::V; TILE]) -> [S::V; WINDOW] {
    let (even, odd) = (fma(s, 0.5, y[2], y[0]), fma(s, 0.5, y[3], y[1]));
    let (even_q, odd_q) = (fma(s, 2.0, y[2], y[0]), fma(s, 2.0, y[3], y[1]));
    [y[0], fma(s, P, odd, even), fma(s, -P, odd, even), fma(s, Q, odd_q, even_q), fma(s, -Q, odd_q, even_q), y[3]]
}

/// `G w`: the filter's polynomial at the points, over Π (point − other points).
#[inline(always)]
fn filter_at_points<S: Simd>(s: S, w: [S::V; SIDE]) -> [S::V; WINDOW] {
    let even = s.mul(s.splat(-1.0 / 1.5), fma(s, 0.5, w[2], w[0]));
    let even_q = s.mul(s.splat(1.0 / 6.0), fma(s, 2.0, w[2], w[0]));
    [
        w[0],
        fma(s, -P / 1.5, w[1], even),
        fma(s, P / 1.5, w[1], even),
        fma(s, Q / 6.0, w[1], even_q),
        fma(s, -Q / 6.0, w[1], even_q),
        w[2],
    ]
}

/// `Gᵀ u`: the adjoint of [`filter_at_points`].
#[inline(always)]
fn filter_from_points<S: Simd>(s: S, u: [S::V; WINDOW]) -> [S::V; SIDE] {
    let (sum_p, difference_p) = (s.add(u[1], u[2]), s.sub(u[1], u[2]));
    let (sum_q, difference_q) = (s.add(u[3], u[4]), s.sub(u[3], u[4]));
    [
        fma(s, -1.0 / 1.5, sum_p, fma(s, 1.0 / 6.0, sum_q, u[0])),
        fma(s, -P / 1.5, difference_p, s.mul(s.splat(Q / 6.0), difference_q)),
        fma(s, -0.5 / 1.5, sum_p, fma(s, 2.0 / 6.0, sum_q, u[5])),
    ]
}

/// Applies `$transform` to the columns and then to the rows of `$from × $from` vectors `$load` and does `$store` with every
/// one of the `$to × $to` results. A macro, because closures would not be compiled for the instruction set.
macro_rules! both_ways {
    (
        $s:ident, $transform:ident, $from:ident => $to:ident,
        ($row:ident, $column:ident) => $load:expr,
        $value:ident => $store:expr
    ) => {{
        let mut half = [[$s.splat(0.0); $from]; $to];
        for $column in 0..$from {
            let mut line = [$s.splat(0.0); $from];
            for $row in 0..$from {
                line[$row] = $load;
            }
            let line = $transform($s, line);
            for row in 0..$to {
                half[row][$column] = line[row];
            }
        }
        for $row in 0..$to {
            let line = $transform($s, half[$row]);
            for $column in 0..$to {
                let $value = line[$column];
                $store;
            }
        }
    }};
}

/// Evaluates `$body` for every vector of `$columns` numbers, a multiple of [`MIN_LANES`]: `$at` is the first of them, and `$s`
/// is of half as long vectors for the last if need be.
macro_rules! each_vector {
    ($s:ident, $columns:expr, $at:ident => $body:expr) => {{
        let columns: usize = $columns;
        let whole = columns / S::LANES * S::LANES;
        for $at in (0..whole).step_by(S::LANES) {
            $body;
        }
        if S::Half::LANES < S::LANES && whole < columns {
            let ($s, $at) = ($s.half(), whole);
            $body;
        }
    }};
}

/// Rows of tiles that one task treats together, counted over all samples.
#[derive(Clone, Copy)]
struct TileRows {
    first: usize,
    count: usize,
}

/// How an image is cut into tiles.
#[derive(Clone, Copy)]
struct Tiling {
    height: usize,
    width: usize,
    /// Rows and columns of tiles of a sample.
    rows: usize,
    columns: usize,
}

impl Tiling {
    fn new(shape: ConvShape) -> Self {
        let ConvShape { height, width, .. } = shape;
        Self { height, width, rows: height.div_ceil(TILE), columns: width.div_ceil(TILE) }
    }

    /// Sample, and row of tiles within it.
    fn place(self, row: usize) -> (usize, usize) {
        (row / self.rows, row % self.rows)
    }
}

/// Turns pixels of `channels` around: `to[(r·columns + c)·stride + i] = x[i, first_row + r, first_column + c]`, with zeros
/// outside of the image and in `channels.len()..stride`; `x [C, H, W]`. First rows and columns are counted from −1.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn turn<S: Simd>(
    s: S,
    x: &[f32],
    tiling: Tiling,
    channels: Range<usize>,
    start: (usize, usize),
    columns: usize,
    stride: usize,
    to: &mut [f32],
) {
    let Tiling { height, width, .. } = tiling;
    let pixels = height * width;
    for (r, to) in to.chunks_exact_mut(columns * stride).enumerate() {
        let (first_row, first_column) = start;
        let row = match (first_row + r).checked_sub(1) {
            Some(row) if row < height => row,
            _ => {
                to.fill(0.0);
                continue;
            }
        };
        if stride > channels.len() {
            to.fill(0.0);
        }
        // Columns before and behind the image.
        let before = 1 - first_column;
        to[..before * stride].fill(0.0);
        to[(before + width) * stride..].fill(0.0);
        let to = &mut to[before * stride..(before + width) * stride];
        let line = |i: usize| &x[i * pixels + row * width..][..width];
        let whole = channels.len() / TOGETHER * TOGETHER;
        for i in (0..whole).step_by(TOGETHER) {
            let lines: [&[f32]; TOGETHER] = std::array::from_fn(|l| line(channels.start + i + l));
            interleave(s, lines, stride, &mut to[i..]);
        }
        for i in whole..channels.len() {
            interleave(s, [line(channels.start + i)], stride, &mut to[i..]);
        }
    }
}

/// Sums of `R` rows and `C` vectors of columns, and of `H` half vectors behind them.
type Sums<S, const R: usize, const C: usize, const H: usize> =
    ([[<S as Simd>::V; C]; R], [[<<S as Simd>::Half as Simd>::V; H]; R]);

/// `R` rows of `A` times `C` vectors and `H` half vectors of columns of `B`: `Σ_k a[r·a_row + k·a_step] · b[k·b_step + column]`.
///
/// # Safety
/// `a` must be valid at `(R − 1)·a_row + (steps − 1)·a_step`, `b` for `(steps − 1)·b_step` and all columns more.
#[inline(always)]
unsafe fn products<S: Simd, const R: usize, const C: usize, const H: usize>(
    s: S,
    (a, a_row, a_step): (*const f32, usize, usize),
    (b, b_step): (*const f32, usize),
    steps: usize,
) -> Sums<S, R, C, H> {
    let half = s.half();
    let (mut sums, mut half_sums) = ([[s.splat(0.0); C]; R], [[half.splat(0.0); H]; R]);
    let (mut a, mut b) = (a, b);
    for _ in 0..steps {
        let (mut vectors, mut half_vectors) = ([s.splat(0.0); C], [half.splat(0.0); H]);
        for c in 0..C {
            // SAFETY: fewer than `steps` steps have been made, so this lies in the range that the caller promises.
            vectors[c] = unsafe { s.read(b.add(c * S::LANES)) };
        }
        for h in 0..H {
            // SAFETY: as above.
            half_vectors[h] = unsafe { half.read(b.add(C * S::LANES + h * S::Half::LANES)) };
        }
        for r in 0..R {
            // SAFETY: as above.
            let factor = unsafe { *a.add(r * a_row) };
            for c in 0..C {
                sums[r][c] = s.mul_add(s.splat(factor), vectors[c], sums[r][c]);
            }
            for h in 0..H {
                half_sums[r][h] = half.mul_add(half.splat(factor), half_vectors[h], half_sums[r][h]);
            }
        }
        a = a.wrapping_add(a_step);
        b = b.wrapping_add(b_step);
    }
    (sums, half_sums)
}

/// Columns that a register block treats together.
#[derive(Clone, Copy)]
struct Panel {
    /// The first column, and the number of them.
    first: usize,
    columns: usize,
}

/// Panels of `columns`, a multiple of [`MIN_LANES`]: pairs of vectors; the last one has three if need be, or fewer and a half.
fn panels(lanes: usize, columns: usize) -> impl Iterator<Item = Panel> {
    let (vectors, half) = (columns / lanes, !columns.is_multiple_of(lanes));
    let count = (if half { vectors.div_ceil(2) } else { vectors / 2 }).max(1);
    (0..count).map(move |panel| {
        let first = 2 * lanes * panel;
        Panel { first, columns: if panel + 1 < count { 2 * lanes } else { columns - first } }
    })
}

/// Evaluates `$body` with the constants `$C` vectors and `$H` half vectors of a panel, and `$ROWS` rows of its register block:
/// enough sums that they need not wait for each other, few enough for the 16 registers of AVX2. Vectors that have halves have
/// 32 registers.
macro_rules! with_panel {
    ($columns:expr, $C:ident, $H:ident, $ROWS:ident => $body:expr) => {
        with_panel!(@ $columns, $C, $H, $ROWS => $body, [1 0 6] [2 0 6] [3 0 3], [0 1 6] [1 1 6] [2 1 6])
    };
    (@ $columns:expr, $C:ident, $H:ident, $ROWS:ident => $body:expr, $([$c:literal $h:literal $rows:literal])*, $([$c2:literal $h2:literal $rows2:literal])*) => {
        match ($columns / S::LANES, $columns % S::LANES > 0) {
            $(($c, false) => {
                const $C: usize = $c;
                const $H: usize = $h;
                const $ROWS: usize = $rows;
                $body
            })*
            $(($c2, true) if S::Half::LANES < S::LANES => {
                const $C: usize = $c2;
                const $H: usize = $h2;
                const $ROWS: usize = $rows2;
                $body
            })*
            _ => unreachable!("a panel of {} columns", $columns),
        }
    };
}

/// Where the filter of an input and an output channel lies in the weights.
#[derive(Clone, Copy)]
pub(crate) enum Filters<'a> {
    /// `w [O, I, 3, 3]`, as it is.
    Forward(&'a [f32]),
    /// `w [I, O, 3, 3]`, turned by 180°: the adjoint.
    Adjoint(&'a [f32]),
}

/// `y[n, o] = Σ_i w[o, i] ∗ x[n, i]`; `x [N, I, H, W]`, `y [N, O, H, W]`.
pub(crate) fn convolve(shape: ConvShape, x: &[f32], filters: Filters, y: &mut [f32]) {
    let level = Level::current();
    let ConvShape { batch, inputs, outputs, .. } = shape;
    let columns = outputs.next_multiple_of(MIN_LANES);
    let mut scratch = Scratch::new(POINTS * inputs * columns);
    let transformed = scratch.slice();
    let shared = Shared::new(transformed);
    panels(level.lanes(), columns).collect::<Vec<_>>().into_par_iter().for_each(|panel| {
        let size = POINTS * inputs;
        // SAFETY: every task has its own panel.
        let to = unsafe { shared.piece(panel.first * size, panel.columns * size) };
        level.run(PanelOfFilters { inputs, outputs, panel, filters, to });
    });
    let tiling = Tiling::new(shape);
    let tile_rows = batch * tiling.rows;
    if tile_rows == 0 {
        return;
    }
    // As many chunks for every thread, of nearly equal size.
    let most = (CHUNK / tiling.columns).max(1);
    let chunks = tile_rows.div_ceil(most).next_multiple_of(rayon::current_num_threads()).min(tile_rows);
    let (filters, y) = (&*transformed, &Shared::new(y));
    (0..chunks).into_par_iter().with_max_len(1).for_each(|chunk| {
        let [first, end] = [chunk, chunk + 1].map(|chunk| chunk * tile_rows / chunks);
        let rows = TileRows { first, count: end - first };
        level.run(Outputs { shape, tiling, rows, x, filters, y });
    });
}

/// The transformed filters of a panel of output channels, `[POINTS, I, panel's columns]`.
struct PanelOfFilters<'a> {
    inputs: usize,
    outputs: usize,
    panel: Panel,
    filters: Filters<'a>,
    to: &'a mut [f32],
}

impl Job for PanelOfFilters<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        assert_eq!(self.to.len(), POINTS * self.inputs * self.panel.columns);
        each_vector!(s, self.panel.columns, at => self.vector(s, at));
    }
}

impl PanelOfFilters<'_> {
    /// The columns of a vector from `at` on.
    #[inline(always)]
    fn vector<S: Simd>(&mut self, s: S, at: usize) {
        let Self { inputs, outputs, panel, filters, .. } = *self;
        let to = self.to.as_mut_ptr();
        let mut taps = [0.0; 9 * MAX_LANES];
        let first = panel.first + at;
        for i in 0..inputs {
            for (lane, o) in (first..outputs.min(first + S::LANES)).enumerate() {
                let w: &[f32; 9] = match filters {
                    Filters::Forward(w) => w[(o * inputs + i) * 9..].first_chunk(),
                    Filters::Adjoint(w) => w[(i * outputs + o) * 9..].first_chunk(),
                }
                .expect("nine weights");
                let turned = matches!(filters, Filters::Adjoint(_));
                for tap in 0..9 {
                    taps[tap * MAX_LANES + lane] = w[if turned { 8 - tap } else { tap }];
                }
            }
            both_ways!(
                s,
                filter_at_points,
                SIDE => WINDOW,
                (row, column) => s.load(&taps[(row * SIDE + column) * MAX_LANES..]),
                value => {
                    let point = row * WINDOW + column;
                    // SAFETY: a vector of the panel, `i < inputs` and `point < POINTS`, which the array has by the assertion.
                    unsafe { s.write(value, to.add((point * inputs + i) * panel.columns + at)) }
                }
            );
        }
    }
}

/// All output channels of some rows of tiles. Owns those elements of `y`.
struct Outputs<'a> {
    shape: ConvShape,
    tiling: Tiling,
    rows: TileRows,
    x: &'a [f32],
    filters: &'a [f32],
    y: &'a Shared<'a>,
}

impl Job for Outputs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ConvShape { inputs, outputs, .. } = self.shape;
        let stride = inputs.next_multiple_of(MIN_LANES);
        let tiles = self.rows.count * self.tiling.columns;
        let mut scratch = Scratch::new(POINTS * tiles * stride);
        let windows = scratch.slice();
        transform_windows(s, self.x, inputs, self.tiling, self.rows, stride, windows);
        let mut scratch = Scratch::new(POINTS * tiles * 3 * S::LANES);
        let sums = scratch.slice();
        let mut strip = Scratch::new(TILE * self.tiling.columns * TILE * S::LANES);
        let strip = strip.slice();
        for panel in panels(S::LANES, outputs.next_multiple_of(MIN_LANES)) {
            let columns = panel.columns;
            let filters = &self.filters[panel.first * POINTS * inputs..][..columns * POINTS * inputs];
            with_panel!(columns, C, H, ROWS => {
                for point in 0..POINTS {
                    let filters = &filters[point * inputs * columns..][..inputs * columns];
                    let windows = &windows[point * tiles * stride..][..tiles * stride];
                    let sums = &mut sums[point * tiles * columns..][..tiles * columns];
                    for t in (0..tiles).step_by(ROWS) {
                        with_rows!(ROWS.min(tiles - t), R => {
                            // SAFETY: `R` rows of `windows` with `inputs ≤ stride` numbers each, all rows of `filters`.
                            let (block, halves) = unsafe {
                                products::<S, R, C, H>(
                                    s,
                                    (windows[t * stride..].as_ptr(), stride, 1),
                                    (filters.as_ptr(), columns),
                                    inputs,
                                )
                            };
                            for r in 0..R {
                                let sums = &mut sums[(t + r) * columns..][..columns];
                                for (c, &v) in block[r].iter().enumerate() {
                                    s.store(v, &mut sums[c * S::LANES..]);
                                }
                                for (h, &v) in halves[r].iter().enumerate() {
                                    s.half().store(v, &mut sums[C * S::LANES + h * S::Half::LANES..]);
                                }
                            }
                        });
                    }
                }
            });
            let sums = &sums[..POINTS * tiles * columns];
            for row in 0..self.rows.count {
                each_vector!(s, columns, at => {
                    self.row_of_tiles(s, row, sums, (columns, at), strip);
                    self.write(s, row, panel.first + at, strip);
                });
            }
        }
    }
}

impl Outputs<'_> {
    /// The outputs of a vector of channels from column `at` on in a row of tiles, `strip [4, columns, LANES]`, from
    /// `sums [POINTS, tiles, columns]`.
    #[inline(always)]
    fn row_of_tiles<S: Simd>(&self, s: S, row: usize, sums: &[f32], (columns, at): (usize, usize), strip: &mut [f32]) {
        let tiles = self.rows.count * self.tiling.columns;
        assert!(sums.len() == POINTS * tiles * columns && row < self.rows.count && at + S::LANES <= columns);
        for t in 0..self.tiling.columns {
            let tile = row * self.tiling.columns + t;
            both_ways!(
                s,
                outputs_from_points,
                WINDOW => TILE,
                (row, column) => {
                    let point = row * WINDOW + column;
                    // SAFETY: `tile < tiles` and a whole vector from `at` on: inside of the sums as asserted.
                    unsafe { s.read(sums.as_ptr().add((point * tiles + tile) * columns + at)) }
                },
                value => {
                    let pixel = (row * self.tiling.columns + t) * TILE + column;
                    s.store(value, &mut strip[pixel * S::LANES..]);
                }
            );
        }
    }

    /// Writes a row of tiles, `strip [4, columns, LANES]`, of the output channels from `first` on.
    #[inline(always)]
    fn write<S: Simd>(&self, s: S, row: usize, first: usize, strip: &[f32]) {
        let Tiling { height, width, columns, .. } = self.tiling;
        let (n, tile_row) = self.tiling.place(self.rows.first + row);
        let channels = S::LANES.min(self.shape.outputs - first);
        let pixels = height * width;
        for r in 0..TILE.min(height - tile_row * TILE) {
            let start = (n * self.shape.outputs + first) * pixels + (tile_row * TILE + r) * width;
            let strip = &strip[r * columns * TILE * S::LANES..][..width * S::LANES];
            let fast = if channels == S::LANES { width / TOGETHER * TOGETHER } else { 0 };
            for p in (0..fast).step_by(TOGETHER) {
                for half in (0..S::LANES).step_by(TOGETHER) {
                    let mut lines = [strip.as_ptr(); TOGETHER];
                    for l in 0..TOGETHER {
                        lines[l] = strip[(p + l) * S::LANES + half..].as_ptr();
                    }
                    let to = self.y.pointer(start + half * pixels + p, (TOGETHER - 1) * pixels + TOGETHER);
                    // SAFETY: eight pixels of eight channels, which this task alone writes.
                    unsafe { s.transpose(lines, 0, to, pixels) };
                }
            }
            for lane in 0..channels {
                // SAFETY: this task alone writes these rows; one piece at a time.
                let to = unsafe { self.y.piece(start + lane * pixels + fast, width - fast) };
                for (p, to) in (fast..).zip(to) {
                    *to = strip[p * S::LANES + lane];
                }
            }
        }
    }
}

/// `Bᵀ x B` of every window, `[POINTS, tiles, stride]`; `x [N, I, H, W]`.
#[inline(always)]
fn transform_windows<S: Simd>(
    s: S,
    x: &[f32],
    inputs: usize,
    tiling: Tiling,
    rows: TileRows,
    stride: usize,
    to: &mut [f32],
) {
    let tiles = rows.count * tiling.columns;
    let columns = tiling.columns * TILE + 2;
    let size = inputs * tiling.height * tiling.width;
    let mut scratch = Scratch::new(WINDOW * columns * stride);
    let strip = scratch.slice();
    assert!(stride.is_multiple_of(MIN_LANES) && to.len() >= POINTS * tiles * stride);
    for row in 0..rows.count {
        let (n, tile_row) = tiling.place(rows.first + row);
        turn(s, &x[n * size..][..size], tiling, 0..inputs, (tile_row * TILE, 0), columns, stride, strip);
        for t in 0..tiling.columns {
            let tile = row * tiling.columns + t;
            each_vector!(s, stride, v => {
                // SAFETY: windows of `WINDOW` pixels each way from `t·4` on, `tile < tiles`, and vectors within the stride: the
                // arrays are long enough as asserted.
                unsafe {
                    let from = strip.as_ptr().add(t * TILE * stride + v);
                    let to = to.as_mut_ptr().add(tile * stride + v);
                    window_vector(s, from, (columns * stride, stride), to, tiles * stride);
                }
            });
        }
    }
}

/// `Bᵀ x B` of a vector of channels: pixels are `steps` apart (rows, columns), points `apart`.
///
/// # Safety
/// Vectors must be valid at all pixels of a window and at all points.
#[inline(always)]
unsafe fn window_vector<S: Simd>(s: S, from: *const f32, steps: (usize, usize), to: *mut f32, apart: usize) {
    both_ways!(
        s,
        window_at_points,
        WINDOW => WINDOW,
        // SAFETY: promised by the caller.
        (row, column) => unsafe { s.read(from.add(row * steps.0 + column * steps.1)) },
        // SAFETY: promised by the caller.
        value => unsafe { s.write(value, to.add((row * WINDOW + column) * apart)) }
    );
}

/// Most partial sums of the weight gradient, and least tiles of one: writing and adding them costs time too.
const MAX_PARTS: usize = 8;
const PART_TILES: usize = 128;
/// Output channels of a task of the weight gradient come in multiples of this.
const CHANNELS: usize = 12;

/// `dw[o, i, a, b] = Σ_n,r,c dy[n, o, r, c] x[n, i, r + a − 1, c + b − 1]`; `x [N, I, H, W]`, `dy [N, O, H, W]`,
/// `dw [O, I, 3, 3]`.
pub(crate) fn grad_weights(shape: ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let level = Level::current();
    let ConvShape { batch, inputs, outputs, .. } = shape;
    let tiling = Tiling::new(shape);
    let tile_rows = batch * tiling.rows;
    if tile_rows == 0 {
        dw.fill(0.0);
        return;
    }
    // Parts depend on the shape alone, so that the order of the sums does not depend on the number of threads.
    let per_part = tile_rows.div_ceil(MAX_PARTS).max(PART_TILES / tiling.columns).min(tile_rows);
    let parts = tile_rows.div_ceil(per_part);
    // Every group of output channels transforms the input again, so there are no more of them than needed.
    let threads = rayon::current_num_threads();
    let blocks = outputs.div_ceil(CHANNELS);
    let group = blocks.div_ceil(threads.div_ceil(parts));
    let groups = blocks.div_ceil(group);
    let stride = inputs.next_multiple_of(MAX_LANES);
    let size = outputs * POINTS * stride;
    let mut scratch = Scratch::new(parts * size);
    let partial = scratch.slice();
    let sums = &Shared::new(partial);
    (0..parts * groups).into_par_iter().with_max_len(1).for_each(|task| {
        let (part, first) = (task / groups, task % groups * group * CHANNELS);
        let channels = first..(first + group * CHANNELS).min(outputs);
        let first = part * per_part;
        let rows = TileRows { first, count: per_part.min(tile_rows - first) };
        // SAFETY: every task has its own part and channels.
        let sums =
            unsafe { sums.piece(part * size + channels.start * POINTS * stride, channels.len() * POINTS * stride) };
        level.run(FilterSums { shape, tiling, rows, x, dy, channels, stride, sums });
    });
    let partial = &*partial;
    dw.par_chunks_mut(inputs * 9).enumerate().for_each(|(o, dw)| {
        level.run(FilterGradient { parts: partial, size, first: o * POINTS * stride, stride, dw });
    });
}

/// The products `Σ (A dy Aᵀ) ⊙ (Bᵀ x B)` over some rows of tiles, `[channels, POINTS, stride]`.
struct FilterSums<'a> {
    shape: ConvShape,
    tiling: Tiling,
    rows: TileRows,
    x: &'a [f32],
    dy: &'a [f32],
    channels: Range<usize>,
    stride: usize,
    sums: &'a mut [f32],
}

impl Job for FilterSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ConvShape { inputs, .. } = self.shape;
        let most = (CHUNK / self.tiling.columns).max(1);
        let (input_stride, output_stride) =
            (inputs.next_multiple_of(MIN_LANES), self.channels.len().next_multiple_of(MIN_LANES));
        let most_tiles = most * self.tiling.columns;
        let mut window_scratch = Scratch::new(POINTS * most_tiles * input_stride);
        let mut output_scratch = Scratch::new(POINTS * most_tiles * output_stride);
        let (windows, outputs) = (window_scratch.slice(), output_scratch.slice());
        for done in (0..self.rows.count).step_by(most) {
            let rows = TileRows { first: self.rows.first + done, count: most.min(self.rows.count - done) };
            let tiles = rows.count * self.tiling.columns;
            transform_windows(s, self.x, inputs, self.tiling, rows, input_stride, windows);
            self.transform_outputs(s, rows, output_stride, outputs);
            for point in 0..POINTS {
                let windows = &windows[point * tiles * input_stride..][..tiles * input_stride];
                let outputs = &outputs[point * tiles * output_stride..][..tiles * output_stride];
                for panel in panels(S::LANES, input_stride) {
                    with_panel!(panel.columns, C, H, ROWS => {
                        for o in (0..self.channels.len()).step_by(ROWS) {
                            with_rows!(ROWS.min(self.channels.len() - o), R => {
                                // SAFETY: `tiles` rows of `outputs` and of `windows`, with these columns.
                                let (block, halves) = unsafe {
                                    products::<S, R, C, H>(
                                        s,
                                        (outputs[o..].as_ptr(), 1, output_stride),
                                        (windows[panel.first..].as_ptr(), input_stride),
                                        tiles,
                                    )
                                };
                                for r in 0..R {
                                    let at = ((o + r) * POINTS + point) * self.stride + panel.first;
                                    let to = &mut self.sums[at..at + panel.columns];
                                    for (c, &v) in block[r].iter().enumerate() {
                                        put(s, v, &mut to[c * S::LANES..], done > 0);
                                    }
                                    for (h, &v) in halves[r].iter().enumerate() {
                                        put(s.half(), v, &mut to[C * S::LANES + h * S::Half::LANES..], done > 0);
                                    }
                                }
                            });
                        }
                    });
                }
            }
        }
    }
}

/// Writes `v` to the first numbers of `to`, or adds it to them.
#[inline(always)]
fn put<S: Simd>(s: S, v: S::V, to: &mut [f32], add: bool) {
    let v = if add { s.add(s.load(to), v) } else { v };
    s.store(v, to);
}

impl FilterSums<'_> {
    /// `A dy Aᵀ` of every tile, `[POINTS, tiles, stride]`.
    #[inline(always)]
    fn transform_outputs<S: Simd>(&self, s: S, rows: TileRows, stride: usize, to: &mut [f32]) {
        let tiling = self.tiling;
        let tiles = rows.count * tiling.columns;
        let columns = tiling.columns * TILE;
        let size = self.shape.outputs * tiling.height * tiling.width;
        let mut scratch = Scratch::new(TILE * columns * stride);
        let strip = scratch.slice();
        assert!(stride.is_multiple_of(MIN_LANES) && to.len() >= POINTS * tiles * stride);
        for row in 0..rows.count {
            let (n, tile_row) = tiling.place(rows.first + row);
            let channels = self.channels.clone();
            turn(s, &self.dy[n * size..][..size], tiling, channels, (tile_row * TILE + 1, 1), columns, stride, strip);
            for t in 0..tiling.columns {
                let tile = row * tiling.columns + t;
                each_vector!(s, stride, v => {
                    // SAFETY: tiles of `TILE` pixels each way from `t·4` on, `tile < tiles`, and vectors within the stride: the
                    // arrays are long enough as asserted.
                    unsafe {
                        let from = strip.as_ptr().add(t * TILE * stride + v);
                        let to = to.as_mut_ptr().add(tile * stride + v);
                        tile_vector(s, from, (columns * stride, stride), to, tiles * stride);
                    }
                });
            }
        }
    }
}

/// `A dy Aᵀ` of a vector of channels: pixels are `steps` apart (rows, columns), points `apart`.
///
/// # Safety
/// Vectors must be valid at all pixels of a tile and at all points.
#[inline(always)]
unsafe fn tile_vector<S: Simd>(s: S, from: *const f32, steps: (usize, usize), to: *mut f32, apart: usize) {
    both_ways!(
        s,
        outputs_at_points,
        TILE => WINDOW,
        // SAFETY: promised by the caller.
        (row, column) => unsafe { s.read(from.add(row * steps.0 + column * steps.1)) },
        // SAFETY: promised by the caller.
        value => unsafe { s.write(value, to.add((row * WINDOW + column) * apart)) }
    );
}

/// `dw[i] = Gᵀ (Σ parts) G` of one output channel.
struct FilterGradient<'a> {
    parts: &'a [f32],
    /// Numbers of a part, and where the channel starts in it.
    size: usize,
    first: usize,
    stride: usize,
    dw: &'a mut [f32],
}

impl Job for FilterGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inputs = self.dw.len() / 9;
        for v in (0..inputs).step_by(S::LANES) {
            let lanes = S::LANES.min(inputs - v);
            both_ways!(
                s,
                filter_from_points,
                WINDOW => SIDE,
                (row, column) => {
                    let at = self.first + (row * WINDOW + column) * self.stride + v;
                    let mut sum = s.load(&self.parts[at..]);
                    for part in self.parts.chunks_exact(self.size).skip(1) {
                        sum = s.add(sum, s.load(&part[at..]));
                    }
                    sum
                },
                value => {
                    let value = s.to_array(value);
                    for lane in 0..lanes {
                        self.dw[(v + lane) * 9 + row * 3 + column] = value[lane];
                    }
                }
            );
        }
    }
}
