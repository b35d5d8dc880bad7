//! Cosines, sines and Fourier modes as matrices that act along each axis of a field.
//!
//! Grids have at most a few hundred nodes along an axis, so a dense matrix product is a fast transform on every back end
//! and autodiff passes through it.

use burn::tensor::{Device, Tensor, TensorData};
use softly_pde::derivative::{Matrix, Order, Scheme};
use softly_pde::grid::{Axis, Grid};

use crate::constraint::config::{ConstraintConfig, Region};
use crate::tensors::to_vec_f64;

/// n functions along an axis of n nodes, chosen by what a field does at the ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// cos(π (j + ½) k / n) (DCT-II): orthonormal. The cosines of *data* that end freely or without flux: unlike those
    /// of [`Self::MirroredCosine`] they are orthonormal without weights, as white noise wants them, and smooth at the
    /// ends. They mirror half a spacing beyond the last node, so they only nearly diagonalise a derivative matrix.
    Cosine,
    /// cos(π j k / (n − 1)) (DCT-I): the exact eigenvectors of the second derivative with [`Scheme::Mirror`], whose
    /// ghost nodes are mirrored *at* the last node. Orthogonal with half a weight on both ends.
    MirroredCosine,
    /// sin(π (j + 1)(k + 1) / (n + 1)) (DST-I): orthonormal eigenvectors of [`Scheme::Zero`], zero one spacing beyond
    /// the ends.
    Sine,
    /// Orthonormal sines of the n − 2 inner nodes, zero at the end nodes, and last the two end nodes by themselves.
    InnerSine,
    /// Orthonormal real Fourier modes: eigenvectors of [`Scheme::Periodic`] and [`Scheme::Spectral`].
    Fourier,
}

impl Family {
    /// The orthonormal family for data that are differentiated with `scheme`.
    pub fn of_data(scheme: Scheme) -> Self {
        match scheme {
            Scheme::OneSided2 | Scheme::Mirror => Self::Cosine,
            Scheme::Zero => Self::Sine,
            Scheme::Periodic | Scheme::Spectral => Self::Fourier,
        }
    }

    /// The value of function `k` at node `j` of `n`.
    fn value(self, k: usize, j: usize, n: usize) -> f64 {
        use std::f64::consts::PI;
        let (kf, jf, nf) = (k as f64, j as f64, n as f64);
        match self {
            Self::Cosine => {
                let norm = if k == 0 { 1.0 } else { 2.0 } / nf;
                norm.sqrt() * (PI * (jf + 0.5) * kf / nf).cos()
            }
            Self::MirroredCosine => (PI * jf * kf / (nf - 1.0).max(1.0)).cos(),
            Self::Sine => (2.0 / (nf + 1.0)).sqrt() * (PI * (jf + 1.0) * (kf + 1.0) / (nf + 1.0)).sin(),
            Self::InnerSine => {
                let inner = n.saturating_sub(2);
                let end = j == 0 || j + 1 == n;
                if k < inner {
                    if end { 0.0 } else { (2.0 / (nf - 1.0)).sqrt() * (PI * jf * (kf + 1.0) / (nf - 1.0)).sin() }
                } else {
                    let node = if k == inner { 0 } else { n - 1 };
                    if j == node { 1.0 } else { 0.0 }
                }
            }
            Self::Fourier => {
                // 1, then cosine and sine of each frequency, then the fastest cosine if n is even.
                let angle = 2.0 * PI * jf * k.div_ceil(2) as f64 / nf;
                let lone = k == 0 || (n.is_multiple_of(2) && k + 1 == n);
                let norm = (if lone { 1.0 } else { 2.0 } / nf).sqrt();
                norm * if k % 2 == 1 {
                    angle.cos()
                } else if k == 0 {
                    1.0
                } else {
                    angle.sin()
                }
            }
        }
    }

    /// The weight of node `j` of `n` in the inner product that makes the functions orthogonal.
    pub fn node_weight(self, j: usize, n: usize) -> f64 {
        if self == Self::MirroredCosine && (j == 0 || j + 1 == n) { 0.5 } else { 1.0 }
    }

    /// Coefficients → values, row-major `[n, n]`: column k is function k.
    pub fn synthesis(self, n: usize) -> Vec<f64> {
        (0..n * n).map(|i| self.value(i % n, i / n, n)).collect()
    }

    /// Values → coefficients, row-major `[n, n]`: the inverse of [`Self::synthesis`].
    pub fn analysis(self, n: usize) -> Vec<f64> {
        let mut rows = Vec::with_capacity(n * n);
        for k in 0..n {
            let weighted = |j: usize| self.node_weight(j, n) * self.value(k, j, n);
            let square: f64 = (0..n).map(|j| weighted(j) * self.value(k, j, n)).sum();
            rows.extend((0..n).map(|j| weighted(j) / square));
        }
        rows
    }
}

/// A basis of fields `[C, H, W]`: each channel has the products of one family's functions along both axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Basis {
    families: Vec<Family>,
    rows: usize,
    cols: usize,
}

impl Basis {
    /// The basis of fields with one channel per entry of `families` on `rows` × `cols` nodes.
    pub fn new(families: Vec<Family>, rows: usize, cols: usize) -> Self {
        Self { families, rows, cols }
    }

    /// The basis for channels `channels` on `grid`, by what their fields do at the sides in `constraint`.
    ///
    /// A field whose equations all hold in the interior gets sines of the interior and its border's nodes by themselves; else
    /// its stencil decides. Channels that the constraint does not know get cosines, which assume nothing.
    pub fn of_data(constraint: &ConstraintConfig, channels: &[String], grid: &Grid) -> Self {
        let interior = constraint.residuals().iter().all(|r| r.region == Region::Interior);
        let family = |name: &String| {
            if !constraint.fields.contains(name) {
                Family::Cosine
            } else if interior {
                Family::InnerSine
            } else {
                Family::of_data(constraint.stencil_of(name))
            }
        };
        Self::new(channels.iter().map(family).collect(), grid.rows, grid.cols)
    }

    /// Shape of a sample, `[C, H, W]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.families.len(), self.rows, self.cols]
    }

    /// The family of a channel.
    pub fn family(&self, channel: usize) -> Family {
        self.families[channel]
    }

    /// The basis of one channel alone.
    #[must_use]
    pub fn of_channel(&self, channel: usize) -> Self {
        Self { families: vec![self.families[channel]], ..self.clone() }
    }

    /// The transform for tensors of the type and device of `like`.
    pub fn transform(&self, like: &Tensor<4>) -> Transform {
        let device = like.device().without_autodiff();
        let matrices = |n: usize, matrix: &dyn Fn(Family) -> Vec<f64>| -> Tensor<4> {
            let values: Vec<f64> = self.families.iter().flat_map(|&family| matrix(family)).collect();
            Tensor::from_data(TensorData::new(values, [1, self.families.len(), n, n]), (&device, like.dtype()))
        };
        let (analysis, synthesis) = (|n| matrices(n, &|f| f.analysis(n)), |n| matrices(n, &|f| f.synthesis(n)));
        Transform {
            analysis: [analysis(self.rows), analysis(self.cols).swap_dims(2, 3)],
            synthesis: [synthesis(self.rows), synthesis(self.cols).swap_dims(2, 3)],
        }
    }
}

/// The matrices of a [`Basis`], `[1, C, n, n]`; the second of each pair is transposed, as it multiplies from the right.
pub struct Transform {
    analysis: [Tensor<4>; 2],
    synthesis: [Tensor<4>; 2],
}

impl Transform {
    /// Fields `[N, C, H, W]` → their coefficients, of the same shape.
    pub fn coefficients(&self, fields: Tensor<4>) -> Tensor<4> {
        apply(&self.analysis, fields)
    }

    /// Coefficients `[N, C, H, W]` → fields.
    pub fn fields(&self, coefficients: Tensor<4>) -> Tensor<4> {
        apply(&self.synthesis, coefficients)
    }
}

fn apply([left, right]: &[Tensor<4>; 2], x: Tensor<4>) -> Tensor<4> {
    left.clone().matmul(x).matmul(right.clone())
}

/// The eigenvalue of the second derivative along `axis` for each function of `family`; `None` for those that stand for
/// nodes that keep their values.
pub(crate) fn eigenvalues(family: Family, scheme: Scheme, grid: &Grid, axis: Axis) -> Vec<Option<f64>> {
    let n = grid.nodes(axis);
    let (analysis, synthesis) = (family.analysis(n), family.synthesis(n));
    let matrix = Matrix::on_grid(scheme, Order::Second, grid, axis);
    let eigenvalue = |k: usize| {
        let image = |row: &Vec<(usize, f64)>| row.iter().map(|&(j, v)| v * synthesis[j * n + k]).sum::<f64>();
        matrix.rows.iter().zip(&analysis[k * n..]).map(|(row, a)| a * image(row)).sum::<f64>()
    };
    let solved = if family == Family::InnerSine { n - 2 } else { n };
    (0..n).map(|k| (k < solved).then(|| eigenvalue(k))).collect()
}

/// The variance of every coefficient over batches of normalised samples, each `[M, C, H, W]` row-major → `[C, H, W]`.
///
/// Never zero: at least a ten-millionth of the channel's mean variance.
pub fn data_spectrum(batches: impl Iterator<Item = Vec<f32>>, basis: &Basis) -> Vec<f32> {
    let [channels, rows, cols] = basis.shape();
    let len = channels * rows * cols;
    let (mut sums, mut squares) = (vec![0.0; len], vec![0.0; len]);
    let mut count = 0.0;
    for batch in batches {
        let samples = batch.len() / len;
        count += samples as f64;
        let fields = TensorData::new(batch, [samples, channels, rows, cols]);
        let fields: Tensor<4> = Tensor::from_data(fields, &Device::flex());
        let coefficients = to_vec_f64(basis.transform(&fields).coefficients(fields));
        for sample in coefficients.chunks_exact(len) {
            for ((sum, square), c) in sums.iter_mut().zip(&mut squares).zip(sample) {
                *sum += c;
                *square += c * c;
            }
        }
    }
    let variance = |(sum, square): (&f64, &f64)| (square / count - (sum / count).powi(2)).max(0.0);
    let variances: Vec<f64> = sums.iter().zip(&squares).map(variance).collect();
    let floored = variances.chunks_exact(rows * cols).flat_map(|channel| {
        let floor = (1e-7 * channel.iter().sum::<f64>() / channel.len() as f64).max(1e-20);
        channel.iter().map(move |v| v.max(floor) as f32)
    });
    floored.collect()
}
