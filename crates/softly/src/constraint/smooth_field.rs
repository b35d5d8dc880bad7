//! Smooth fields on a grid, as sums of waves with a Gaussian prior: what a learned field of a constraint is made of.

use std::f64::consts::{PI, SQRT_2};

use burn::tensor::Tensor;
use softly_pde::grid::{AxisId, Grid};

use crate::tensors::constant;

/// Waves whose amplitude is below this share of the largest are left out.
const NEGLIGIBLE: f64 = 0.01;

/// The field start + Σ a_pq z_pq φ_pq with φ_pq = c_p c_q cos(π p (i + ½)/rows) cos(π q (j + ½)/cols), c_0 = 1 and c_p = √2.
/// Along a periodic axis the waves are 1, √2 cos(2π i/n), √2 sin(2π i/n), √2 cos(4π i/n), … instead.
///
/// For independent standard normal z it is a Gaussian field around the start with standard deviation `size` (on average over
/// the nodes) and correlations of about exp(−r²/2 length²): a_pq ∝ exp(−length² ω²/4), the root of that covariance's
/// spectrum. Learning z by steps of one size for all therefore moves long waves first and short ones hardly.
pub(crate) struct SmoothField {
    start: f64,
    /// Waves along x and y.
    waves: [usize; 2],
    nodes: [usize; 2],
    /// The waves along x `[rows, p]` and along y `[q, cols]`.
    tables: [Vec<f64>; 2],
    /// a_pq, `[p, q]`.
    amplitudes: Vec<f64>,
}

impl SmoothField {
    /// The field around `start` on `grid`.
    pub fn new(grid: &Grid, start: f64, length: f64, size: f64) -> Self {
        let axes = AxisId::BOTH;
        let nodes = axes.map(|axis| grid.nodes(axis));
        let periodic = axes.map(|axis| grid.axes.get(axis as usize).is_some_and(|axis| axis.periodic));
        let frequency = |axis: AxisId, wave: usize| {
            let half_waves = if periodic[axis as usize] { 2 * wave.div_ceil(2) } else { wave };
            PI * half_waves as f64 / grid.length(axis).max(f64::MIN_POSITIVE)
        };
        let amplitude = |axis: AxisId, wave: usize| (-0.25 * (length * frequency(axis, wave)).powi(2)).exp();
        let waves = axes.map(|axis| {
            (1..grid.nodes(axis)).find(|&wave| amplitude(axis, wave) < NEGLIGIBLE).unwrap_or(grid.nodes(axis))
        });
        let value = |axis: usize, wave: usize, node: usize| {
            if periodic[axis] {
                return periodic_wave(wave, node, nodes[axis]);
            }
            let factor = if wave == 0 { 1.0 } else { SQRT_2 };
            factor * (PI * wave as f64 * (node as f64 + 0.5) / nodes[axis] as f64).cos()
        };
        let rows = (0..nodes[0]).flat_map(|i| (0..waves[0]).map(move |p| value(0, p, i))).collect();
        let cols = (0..waves[1]).flat_map(|q| (0..nodes[1]).map(move |j| value(1, q, j))).collect();
        let mut amplitudes: Vec<f64> = (0..waves[0] * waves[1])
            .map(|pq| amplitude(AxisId::Rows, pq / waves[1]) * amplitude(AxisId::Cols, pq % waves[1]))
            .collect();
        // The mean square of every φ over the nodes is 1.
        let scale = size / amplitudes.iter().map(|a| a * a).sum::<f64>().sqrt();
        for amplitude in &mut amplitudes {
            *amplitude *= scale;
        }
        Self { start, waves, nodes, tables: [rows, cols], amplitudes }
    }

    /// How many z there are.
    pub fn coefficients(&self) -> usize {
        self.amplitudes.len()
    }

    /// The field of `z`, `[p·q]` → `[1, H, W]`, of the type and on the device of `like`.
    pub fn tensor(&self, z: Tensor<1>, like: &Tensor<4>) -> Tensor<3> {
        let constant = |values: &[f64], shape: [usize; 2]| -> Tensor<2> {
            constant(values.to_vec(), shape, &like.device(), like.dtype())
        };
        let [p, q] = self.waves;
        let [h, w] = self.nodes;
        let amplitudes = constant(&self.amplitudes, [p, q]);
        let waves = z.reshape([p, q]).cast(like.dtype()) * amplitudes;
        let field = constant(&self.tables[0], [h, p]).matmul(waves).matmul(constant(&self.tables[1], [q, w]));
        field.reshape([1, h, w]) + self.start
    }

    /// The same in f64, row-major.
    pub fn values(&self, z: &[f64]) -> Vec<f64> {
        let [p, q] = self.waves;
        let [h, w] = self.nodes;
        let [rows, cols] = &self.tables;
        let value = |i: usize, j: usize| {
            let term = |pq: usize| self.amplitudes[pq] * z[pq] * rows[i * p + pq / q] * cols[(pq % q) * w + j];
            self.start + (0..p * q).map(term).sum::<f64>()
        };
        (0..h * w).map(|node| value(node / w, node % w)).collect()
    }
}

/// Wave `k` of 1, √2 cos(2π i/n), √2 sin(2π i/n), … at node i of n; its mean square is 1.
fn periodic_wave(k: usize, i: usize, n: usize) -> f64 {
    let angle = 2.0 * PI * k.div_ceil(2) as f64 * i as f64 / n as f64;
    // The fastest cosine of an even number of nodes has no sine beside it.
    let alone = k == 0 || (n.is_multiple_of(2) && k + 1 == n);
    let wave = if k % 2 == 1 || k == 0 { angle.cos() } else { angle.sin() };
    if alone { wave } else { SQRT_2 * wave }
}

#[cfg(test)]
mod tests {
    use softly_pde::grid::Axis;

    use super::*;
    use crate::random::{Purpose, Stream};
    use crate::tensors::to_vec_f64;
    use burn::tensor::{DType, Device, TensorData};

    #[test]
    fn it_has_the_size_and_the_correlation_that_were_asked_for() {
        let grid = Grid { axes: vec![Axis::new("x", 24, 0.0, 1.0), Axis::new("y", 32, 0.0, 2.0)] };
        let field = SmoothField::new(&grid, 3.0, 0.2, 0.5);
        assert!(field.waves[0] < field.waves[1] && field.waves[1] < 24, "{:?}", field.waves);
        let (draws, n) = (400, field.coefficients());
        // Over all nodes the variance; around the middle, where the free ends do not matter, the correlation at 4 columns'
        // distance.
        let (mut variance, mut square, mut product) = (0.0, 0.0, 0.0);
        for draw in 0..draws {
            let values = field.values(&Stream::new(1, Purpose::Metric, draw).normals(n));
            let at = |row: usize, col: usize| values[row * 32 + col] - 3.0;
            variance += values.iter().map(|v| (v - 3.0).powi(2)).sum::<f64>() / (values.len() as f64 * draws as f64);
            for row in 8..16 {
                square += (at(row, 14).powi(2) + at(row, 18).powi(2)) / (16 * draws) as f64;
                product += at(row, 14) * at(row, 18) / (8 * draws) as f64;
            }
        }
        assert!((variance / 0.25 - 1.0).abs() < 0.05, "{variance}");
        let distance = 4.0 / 16.0;
        let expected = (-0.5 * (distance / 0.2_f64).powi(2)).exp();
        assert!((product / square - expected).abs() < 0.1, "{} against {expected}", product / square);
    }

    #[test]
    fn along_a_periodic_axis_it_goes_on_where_it_begins() {
        let grid = Grid { axes: vec![Axis::new("t", 16, 0.0, 1.0), Axis::new("x", 24, 0.0, 1.0).periodic()] };
        let field = SmoothField::new(&grid, 0.0, 0.2, 1.0);
        let (draws, n) = (400, field.coefficients());
        // Mean squares of steps from node to node: across the seam of x they are like those inside, and all places vary alike.
        let (mut seam, mut inside, mut first, mut middle) = (0.0, 0.0, 0.0, 0.0);
        for draw in 0..draws {
            let values = field.values(&Stream::new(3, Purpose::Metric, draw).normals(n));
            for row in values.chunks_exact(24) {
                seam += (row[0] - row[23]).powi(2);
                inside += (row[12] - row[11]).powi(2);
                first += row[0].powi(2);
                middle += row[12].powi(2);
            }
        }
        assert!((seam / inside - 1.0).abs() < 0.2, "{seam} against {inside}");
        assert!((first / middle - 1.0).abs() < 0.2, "{first} against {middle}");
        // The waves are orthonormal, so that the size is what was asked for.
        for n in [7, 8] {
            for (a, b) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
                let product = (0..n).map(|i| periodic_wave(a, i, n) * periodic_wave(b, i, n)).sum::<f64>() / n as f64;
                assert!((product - f64::from(u8::from(a == b))).abs() < 1e-12, "{a} {b} of {n}");
            }
        }
    }

    #[test]
    fn tensors_and_numbers_agree() {
        let grid = Grid { axes: vec![Axis::new("x", 6, 0.0, 1.0), Axis::new("y", 5, 0.0, 0.8)] };
        let field = SmoothField::new(&grid, -1.0, 0.3, 2.0);
        let z = Stream::new(2, Purpose::Metric, 0).normals(field.coefficients());
        let double = (&Device::flex(), DType::F64);
        let like = Tensor::<4>::zeros([1, 1, 6, 5], double);
        let tensor: Tensor<1> = Tensor::from_data(TensorData::new(z.clone(), [z.len()]), double);
        let found = to_vec_f64(field.tensor(tensor, &like));
        for (found, expected) in found.iter().zip(field.values(&z)) {
            assert!((found - expected).abs() < 1e-12, "{found} against {expected}");
        }
    }
}
