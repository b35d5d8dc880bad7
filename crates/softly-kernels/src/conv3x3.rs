//! Convolution with a 3×3 filter, zero padding 1, stride 1.
//!
//! Rows are packed with one zero in front and behind the next one's front zero, so a sample is one long line in which
//! the pixel above, below, left and right is always a constant distance away, and the inner loops have no branches.
//! Forward and input gradient vectorise over pixels; the weight gradient vectorises over input channels.

use rayon::prelude::*;
use std::ops::Range;

use crate::gemm::{BLOCK, accumulate, with_rows, write_row};
use crate::interleave::{Interleave, TOGETHER, interleave};
use crate::scratch::{Scratch, Shared};
use crate::shape::ConvShape;
use crate::simd::{Job, Level, MAX_LANES, Simd};
use crate::winograd::{self, Filters};

/// Numbers of packed input per task: stays in the second-level cache.
const BAND_VALUES: usize = 48 * 1024;

/// `y[n, o, r, c] = Σ_i,a,b w[o, i, a, b] x[n, i, r + a − 1, c + b − 1]`; `x [N, I, H, W]`, `w [O, I, 3, 3]`,
/// `y [N, O, H, W]`.
pub fn conv3x3(shape: ConvShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    check(shape, x, w, y);
    if winograd::applies(shape) {
        return winograd::convolve(shape, x, Filters::Forward(w), y);
    }
    let depth = shape.inputs * 9;
    let level = Level::current();
    let pack = |first: usize, rows: usize, packed: &mut [f32]| {
        with_rows!(rows, R => {
            let rows: [&[f32]; R] = std::array::from_fn(|r| &w[(first + r) * depth..][..depth]);
            level.run(Interleave { rows, to: packed });
        });
    };
    convolve(shape, x, &pack, y);
}

/// `dx[n, i, r, c] = Σ_o,a,b w[o, i, a, b] dy[n, o, r − a + 1, c − b + 1]`: the adjoint of [`conv3x3`] in `x`;
/// `dy [N, O, H, W]`, `w [O, I, 3, 3]`, `dx [N, I, H, W]`.
pub fn conv3x3_grad_input(shape: ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    check(shape, dx, w, dy);
    if winograd::applies(shape) {
        return winograd::convolve(shape.adjoint(), dy, Filters::Adjoint(w), dx);
    }
    // The same convolution with channels exchanged and the filter turned by 180°.
    let pack = |first: usize, rows: usize, packed: &mut [f32]| {
        for (o, to) in packed.chunks_exact_mut(9 * rows).enumerate() {
            let from = &w[(o * shape.inputs + first) * 9..][..9 * rows];
            for r in 0..rows {
                for tap in 0..9 {
                    to[tap * rows + r] = from[r * 9 + 8 - tap];
                }
            }
        }
    };
    convolve(shape.adjoint(), dy, &pack, dx);
}

fn check(shape: ConvShape, x: &[f32], w: &[f32], y: &[f32]) {
    assert_eq!(x.len(), shape.input_values(), "input must have N·I·H·W values");
    assert_eq!(w.len(), shape.outputs * shape.inputs * 9, "weights must have O·I·3·3 values");
    assert_eq!(y.len(), shape.output_values(), "output must have N·O·H·W values");
}

/// Splits `len` into equal parts of at most `most`; returns the length of a part.
fn even_parts(len: usize, most: usize) -> usize {
    len.div_ceil(len.div_ceil(most.max(1)))
}

/// Output blocks per task, so that all threads are busy although there are only `tasks` pieces of images.
fn blocks_per_group(blocks: usize, tasks: usize) -> usize {
    let threads = rayon::current_num_threads();
    // Every group packs the image again, so there are no more of them than needed.
    let groups = if threads == 1 { 1 } else { (2 * threads).div_ceil(tasks) };
    blocks.div_ceil(groups)
}

/// Forward convolution with weights from `pack(first, rows, packed)`, which writes the filters of output channels
/// `first..first + rows` as `[I, 9, rows]`.
fn convolve(shape: ConvShape, x: &[f32], pack: &(impl Fn(usize, usize, &mut [f32]) + Sync), y: &mut [f32]) {
    let ConvShape { batch, inputs, outputs, height, width } = shape;
    if y.is_empty() {
        return;
    }
    let level = Level::current();
    let band = even_parts(height, (BAND_VALUES / (inputs.max(1) * (width + 1))).saturating_sub(2));
    let bands = height.div_ceil(band);
    let blocks = outputs.div_ceil(BLOCK);
    let group = blocks_per_group(blocks, batch * bands);
    let groups = blocks.div_ceil(group);
    let block_len = BLOCK * inputs * 9;
    let mut scratch = Scratch::new(outputs * inputs * 9);
    let weights = scratch.slice();
    if block_len > 0 {
        weights.par_chunks_mut(block_len).enumerate().for_each(|(block, packed)| {
            pack(block * BLOCK, BLOCK.min(outputs - block * BLOCK), packed);
        });
    }
    let (weights, y) = (&*weights, &Shared::new(y));
    (0..batch * bands * groups).into_par_iter().with_max_len(1).for_each(|task| {
        let (n, first_row, first_block) = (task / groups / bands, task / groups % bands * band, task % groups * group);
        let rows = band.min(height - first_row);
        let blocks = first_block..(first_block + group).min(blocks);
        let x = &x[n * inputs * height * width..][..inputs * height * width];
        level.run(Band { shape, n, x, first_row, rows, weights, blocks, y });
    });
}

/// Some output rows and channels of one sample. Owns those elements of `y`.
struct Band<'a> {
    shape: ConvShape,
    n: usize,
    x: &'a [f32],
    first_row: usize,
    rows: usize,
    weights: &'a [f32],
    blocks: Range<usize>,
    y: &'a Shared<'a>,
}

impl Job for Band<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ConvShape { inputs, outputs, width, .. } = self.shape;
        let line = width + 1;
        // A plane starts on its own cache line, and planes are not a power of two apart.
        let plane = (((self.rows + 2) * line + 1).div_ceil(16) | 1) * 16;
        let lanes = S::LANES;
        // Vectors either tile the rows exactly or run over the packed line, padding included.
        let whole = width.is_multiple_of(lanes);
        let (vectors, per_row) =
            if whole { (self.rows * width / lanes, width / lanes) } else { ((self.rows * line).div_ceil(lanes), 1) };
        let start = |v: usize| if whole { v / per_row * line + v % per_row * lanes } else { v * lanes };
        let mut scratch = Scratch::new(inputs * plane + 2 * MAX_LANES);
        let packed = scratch.slice();
        self.pack(plane, packed);
        for v in (0..vectors).step_by(2) {
            let at = [start(v), start((v + 1).min(vectors - 1))];
            for block in self.blocks.clone() {
                let rows = BLOCK.min(outputs - block * BLOCK);
                let weights = &self.weights[block * BLOCK * inputs * 9..][..rows * inputs * 9];
                with_rows!(rows, R => {
                    let sums = filter::<S, R>(s, inputs, weights, packed, plane, line, at);
                    for (r, sums) in sums.into_iter().enumerate() {
                        self.write(s, block * BLOCK + r, v, whole, sums);
                    }
                });
            }
        }
    }
}

impl Band<'_> {
    /// Packs the band and a row on each side: plane `i`, row `r`, column `c` at `i·plane + r·(W + 1) + c + 1`.
    #[inline(always)]
    fn pack(&self, plane: usize, packed: &mut [f32]) {
        let ConvShape { height, width, .. } = self.shape;
        let line = width + 1;
        for (from, to) in self.x.chunks_exact(height * width).zip(packed.chunks_exact_mut(plane)) {
            for (r, to) in to[..(self.rows + 2) * line].chunks_exact_mut(line).enumerate() {
                to[0] = 0.0;
                match (self.first_row + r).checked_sub(1) {
                    Some(row) if row < height => to[1..].copy_from_slice(&from[row * width..][..width]),
                    _ => to[1..].fill(0.0),
                }
            }
            to[(self.rows + 2) * line] = 0.0;
        }
    }

    /// Writes vectors `v` and `v + 1` of output channel `o`.
    #[inline(always)]
    fn write<S: Simd>(&self, s: S, o: usize, v: usize, whole: bool, sums: [S::V; 2]) {
        let ConvShape { outputs, height, width, .. } = self.shape;
        let start = ((self.n * outputs + o) * height + self.first_row) * width;
        // SAFETY: this task alone writes these rows of this channel; one piece at a time.
        let y = unsafe { self.y.piece(start, self.rows * width) };
        if whole {
            let to = &mut y[v * S::LANES..];
            let len = to.len().min(2 * S::LANES);
            write_row(s, sums, &mut to[..len], false);
            return;
        }
        let line = width + 1;
        for (v, sums) in (v..).zip(sums) {
            let sums = s.to_array(sums);
            let (mut lane, mut row, mut column) = (0, v * S::LANES / line, v * S::LANES % line);
            while lane < S::LANES && row < self.rows {
                let run = (line - column).min(S::LANES - lane);
                // The last column of a packed line is padding.
                let kept = run.min(width - column);
                y[row * width + column..][..kept].copy_from_slice(&sums[lane..lane + kept]);
                (lane, row, column) = (lane + run, row + 1, 0);
            }
        }
    }
}

/// Sums of `R` output channels at the two vectors of pixels that start at `at`.
#[inline(always)]
fn filter<S: Simd, const R: usize>(
    s: S,
    inputs: usize,
    weights: &[f32],
    packed: &[f32],
    plane: usize,
    line: usize,
    at: [usize; 2],
) -> [[S::V; 2]; R] {
    debug_assert_eq!(weights.len(), inputs * 9 * R);
    debug_assert!(inputs == 0 || (inputs - 1) * plane + 2 * line + 2 + at[0].max(at[1]) + S::LANES <= packed.len());
    let mut acc = [[s.splat(0.0); 2]; R];
    let mut w = weights.as_ptr();
    let mut x = [packed.as_ptr().wrapping_add(at[0]), packed.as_ptr().wrapping_add(at[1])];
    for _ in 0..inputs {
        for tap_row in 0..3 {
            // SAFETY: 3 filter rows of 3·R weights per input channel; the pixels are in bounds as asserted above.
            unsafe {
                let x = x.map(|x| x.add(tap_row * line));
                accumulate(s, &mut acc, w.add(tap_row * 3 * R), x, 1, 3);
            }
        }
        w = w.wrapping_add(9 * R);
        x = x.map(|x| x.wrapping_add(plane));
    }
    acc
}

/// Numbers that are packed together for the weight gradient: they stay in the second-level cache.
const PACK_VALUES: usize = 64 * 1024;
/// Packed numbers after which sums go back to memory, so that the panels in use stay in the first-level cache.
const STEP_VALUES: usize = 8 * 1024;
/// Most partial sums of the weight gradient, and least pixels of one: writing and adding them costs time too.
const MAX_PARTS: usize = 32;
const PART_PIXELS: usize = 256;

/// `dw[o, i, a, b] = Σ_n,r,c dy[n, o, r, c] x[n, i, r + a − 1, c + b − 1]`; `x [N, I, H, W]`, `dy [N, O, H, W]`,
/// `dw [O, I, 3, 3]`.
pub fn conv3x3_grad_weights(shape: ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    check(shape, x, dw, dy);
    if winograd::applies(shape) {
        return winograd::grad_weights(shape, x, dy, dw);
    }
    let ConvShape { batch, inputs, outputs, height, width } = shape;
    if x.is_empty() || dy.is_empty() {
        dw.fill(0.0);
        return;
    }
    let level = Level::current();
    let most = (PACK_VALUES / (inputs + outputs)).clamp(PART_PIXELS, 4 * PART_PIXELS);
    let band = even_parts(height, most / width);
    let bands = height.div_ceil(band);
    // Several small images are packed together. Everything here depends on the shape alone, so that the order of the
    // sums, and with it the result, does not depend on the number of threads.
    let per_part = (batch * bands).div_ceil(MAX_PARTS).max(PART_PIXELS / (band * width)).min(batch * bands);
    let per_pack = (most / (band * width)).clamp(1, per_part);
    let parts = (batch * bands).div_ceil(per_part);
    let blocks = outputs.div_ceil(BLOCK);
    let group = blocks_per_group(blocks, parts);
    let groups = blocks.div_ceil(group);
    // Per output channel 3 rows of the filter, each a row of [3, I] rounded up to whole vectors.
    let filter_row = (3 * inputs).next_multiple_of(MAX_LANES);
    let part_len = outputs * 3 * filter_row;
    let mut scratch = Scratch::new(parts * part_len);
    let partial = scratch.slice();
    let sums = &Shared::new(partial);
    (0..parts * groups).into_par_iter().with_max_len(1).for_each(|task| {
        let (part, first_block) = (task / groups, task % groups * group);
        let channels = first_block * BLOCK..((first_block + group) * BLOCK).min(outputs);
        let first = part * per_part;
        let images = first..(first + per_part).min(batch * bands);
        let start = part * part_len + channels.start * 3 * filter_row;
        // SAFETY: every task has its own part and channels.
        let sums = unsafe { sums.piece(start, channels.len() * 3 * filter_row) };
        level.run(WeightSums { shape, x, dy, band, bands, per_pack, images, channels, filter_row, sums });
    });
    dw.par_chunks_mut(inputs * 9).enumerate().for_each(|(o, dw)| {
        let mut scratch = Scratch::new(3 * filter_row);
        let sum = scratch.slice();
        sum.copy_from_slice(&partial[o * 3 * filter_row..][..3 * filter_row]);
        for part in 1..parts {
            let from = &partial[part * part_len + o * 3 * filter_row..][..3 * filter_row];
            for (sum, from) in sum.iter_mut().zip(from) {
                *sum += from;
            }
        }
        for tap in 0..9 {
            let from = &sum[tap / 3 * filter_row + tap % 3 * inputs..][..inputs];
            for (dw, from) in dw.as_chunks_mut::<9>().0.iter_mut().zip(from) {
                dw[tap] = *from;
            }
        }
    });
}

/// The sum over some bands of images of the weight gradient of some output channels, `[channels, 3, filter_row]`.
struct WeightSums<'a> {
    shape: ConvShape,
    x: &'a [f32],
    dy: &'a [f32],
    /// Rows of a band, and bands of a sample.
    band: usize,
    bands: usize,
    /// Bands that are packed together.
    per_pack: usize,
    /// Bands to sum over, counted over all samples.
    images: Range<usize>,
    channels: Range<usize>,
    filter_row: usize,
    sums: &'a mut [f32],
}

impl Job for WeightSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let ConvShape { inputs, width, .. } = self.shape;
        let line = (width + 1) * inputs;
        let image = (self.band + 2) * line;
        let pixels = self.per_pack * self.band * width;
        let x_len = self.per_pack * image + inputs + 2 * MAX_LANES;
        let mut scratch = Scratch::new(x_len + pixels * self.channels.len());
        let scratch = scratch.slice();
        let (packed_x, packed_dy) = scratch.split_at_mut(x_len);
        for first in self.images.clone().step_by(self.per_pack) {
            let last = (first + self.per_pack).min(self.images.end);
            let mut lines = Vec::new();
            for (slot, index) in (first..last).enumerate() {
                let rows = self.pack_x(s, index, &mut packed_x[slot * image..][..image + inputs]);
                lines.extend((0..rows).map(|r| slot * image + r * line));
            }
            self.pack_dy(s, first..last, lines.len() * width, packed_dy);
            self.multiply(s, packed_x, packed_dy, &lines, first > self.images.start);
        }
    }
}

impl WeightSums<'_> {
    /// Rows `first..first + count` and sample of a band.
    #[inline(always)]
    fn rows(&self, index: usize) -> (usize, Range<usize>) {
        let first = index % self.bands * self.band;
        (index / self.bands, first..(first + self.band).min(self.shape.height))
    }

    /// Packs a band and a row on each side with channels innermost: row `r`, column `c`, channel `i` at
    /// `(r·(W + 1) + c + 1)·I + i`. Returns the rows of the band.
    #[inline(always)]
    fn pack_x<S: Simd>(&self, s: S, index: usize, packed: &mut [f32]) -> usize {
        let ConvShape { inputs, height, width, .. } = self.shape;
        let (n, rows) = self.rows(index);
        let line = (width + 1) * inputs;
        let x = &self.x[n * inputs * height * width..][..inputs * height * width];
        for (r, to) in packed.chunks_exact_mut(line).take(rows.len() + 2).enumerate() {
            match (rows.start + r).checked_sub(1) {
                Some(row) if row < height => {
                    to[..inputs].fill(0.0);
                    transpose(s, inputs, width, height * width, &x[row * width..], &mut to[inputs..]);
                }
                _ => to.fill(0.0),
            }
        }
        packed[(rows.len() + 2) * line..][..inputs].fill(0.0);
        rows.len()
    }

    /// Packs output gradients by blocks of channels, `[pixels, BLOCK]` each.
    #[inline(always)]
    fn pack_dy<S: Simd>(&self, s: S, images: Range<usize>, pixels: usize, packed: &mut [f32]) {
        let ConvShape { outputs, height, width, .. } = self.shape;
        for o in self.channels.clone().step_by(BLOCK) {
            let mut packed = &mut packed[(o - self.channels.start) * pixels..];
            with_rows!(BLOCK.min(self.channels.end - o), R => {
                for index in images.clone() {
                    let (n, rows) = self.rows(index);
                    let len = rows.len() * width;
                    let start = |r: usize| ((n * outputs + o + r) * height + rows.start) * width;
                    let (to, rest) = packed.split_at_mut(len * R);
                    let rows: [&[f32]; R] = std::array::from_fn(|r| &self.dy[start(r)..][..len]);
                    interleave(s, rows, R, to);
                    packed = rest;
                }
            });
        }
    }

    /// Computes (or adds) the products of all packed rows, which start at `lines`.
    #[inline(always)]
    fn multiply<S: Simd>(&mut self, s: S, x: &[f32], dy: &[f32], lines: &[usize], add: bool) {
        let ConvShape { inputs, width, .. } = self.shape;
        let line = (width + 1) * inputs;
        let per_row = (3 * inputs).div_ceil(S::LANES);
        let step = (STEP_VALUES / line).max(1);
        for v in (0..3 * per_row).step_by(2) {
            // Vectors of the three filter rows follow each other, so that only the very last pair may be half empty.
            let pair = [v, (v + 1).min(3 * per_row - 1)];
            let at = pair.map(|v| v / per_row * line + v % per_row * S::LANES);
            for first in (0..lines.len()).step_by(step) {
                let rows = first..(first + step).min(lines.len());
                for o in (0..self.channels.len()).step_by(BLOCK) {
                    let dy = &dy[o * lines.len() * width..];
                    with_rows!(BLOCK.min(self.channels.len() - o), R => {
                        let sums = row_products::<S, R>(s, inputs, width, x, dy, lines, rows.clone(), at);
                        for (r, sums) in sums.into_iter().enumerate() {
                            for (v, sums) in pair.into_iter().zip(sums).take(3 * per_row - v) {
                                let start = ((o + r) * 3 + v / per_row) * self.filter_row + v % per_row * S::LANES;
                                let to = &mut self.sums[start..start + S::LANES];
                                let sums = if add || first > 0 { s.add(s.load(to), sums) } else { sums };
                                s.store(sums, to);
                            }
                        }
                    });
                }
            }
        }
    }
}

/// Sums over the packed `rows` of the products of `R` output gradients and two vectors of input at offsets `at`.
#[inline(always)]
fn row_products<S: Simd, const R: usize>(
    s: S,
    inputs: usize,
    width: usize,
    x: &[f32],
    dy: &[f32],
    lines: &[usize],
    rows: Range<usize>,
    at: [usize; 2],
) -> [[S::V; 2]; R] {
    let mut acc = [[s.splat(0.0); 2]; R];
    for row in rows {
        let starts = at.map(|at| lines[row] + at);
        debug_assert!((row + 1) * width * R <= dy.len());
        debug_assert!(starts.iter().all(|start| start + (width - 1) * inputs + S::LANES <= x.len()));
        // SAFETY: in bounds as asserted above; `pack_x` and `pack_dy` have filled these rows.
        unsafe {
            let b = starts.map(|start| x.as_ptr().add(start));
            accumulate(s, &mut acc, dy.as_ptr().add(row * width * R), b, inputs, width);
        }
    }
    acc
}

/// `to[c·rows + r] = from[r·stride + c]` for `rows × columns` numbers.
#[inline(always)]
fn transpose<S: Simd>(s: S, rows: usize, columns: usize, stride: usize, from: &[f32], to: &mut [f32]) {
    let whole = rows - rows % TOGETHER;
    for first in (0..whole).step_by(TOGETHER) {
        let from: [&[f32]; TOGETHER] = std::array::from_fn(|r| &from[(first + r) * stride..][..columns]);
        interleave(s, from, rows, &mut to[first..]);
    }
    for r in whole..rows {
        interleave(s, [&from[r * stride..][..columns]], rows, &mut to[r..]);
    }
}
