//! Cosines, sines and Fourier modes as matrices that act along each axis of a field.
//!
//! Grids have at most a few hundred nodes along an axis, so a dense matrix product is a fast transform on every back end
//! and autodiff passes through it.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Device, Tensor, TensorData};
use softly_pde::derivative::{Order, Scheme};
use softly_pde::grid::{Axis, AxisId, Grid, Placement};
use softly_pde::matrix::Matrix;
use softly_pde::region::Region;

use crate::constraint::SoftConstraint;
use crate::constraint::config::ConstraintConfig;
use crate::error::Result;
use crate::nn::linear_map::{AlongBoth, LinearMap, mapped};
use crate::profile::{self, Part};
use crate::tensors::{to_vec_f64, uploaded};

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
    /// sin(π (j + ½)(k + 1) / n) (DST-II): orthonormal eigenvectors of [`Scheme::Zero`] on cells, zero half a spacing beyond the
    /// last cells' centres.
    CellSine,
    /// Orthonormal sines of the n − 2 inner nodes, zero at the end nodes, and last the two end nodes by themselves.
    InnerSine,
    /// Orthonormal real Fourier modes: eigenvectors of [`Scheme::Periodic`] and [`Scheme::Spectral`].
    Fourier,
}

impl Family {
    /// The orthonormal family for data that are differentiated with `scheme` along `axis`.
    pub fn of_data(scheme: Scheme, axis: &Axis) -> Self {
        match (scheme, axis.placement) {
            (Scheme::OneSided2 | Scheme::OneSided4 | Scheme::Mirror, _) => Self::Cosine,
            (Scheme::Zero, Placement::Nodes) => Self::Sine,
            (Scheme::Zero, Placement::Cells) => Self::CellSine,
            (Scheme::Periodic | Scheme::Periodic4 | Scheme::Spectral, _) => Self::Fourier,
        }
    }

    /// The eigenvectors of the second derivative of `scheme` along `axis`. One-sided schemes have none that help; the mirrored
    /// ones stand in.
    pub fn of_derivative(scheme: Scheme, axis: &Axis) -> Self {
        match Self::of_data(scheme, axis) {
            Self::Cosine if axis.placement == Placement::Nodes => Self::MirroredCosine,
            family => family,
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
            Self::CellSine => {
                let norm = if k + 1 == n { 1.0 } else { 2.0 } / nf;
                norm.sqrt() * (PI * (jf + 0.5) * (kf + 1.0) / nf).sin()
            }
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

/// A transform, and the type and device of its tensors.
type Known = (DType, Device, Transform);

/// A basis of fields `[C, H, W]`: each channel has the products of the functions of two families, one along each axis.
#[derive(Debug, Clone)]
pub struct Basis {
    /// Along rows and columns, by channel.
    families: Vec<[Family; 2]>,
    rows: usize,
    cols: usize,
    /// Transforms that were asked for so far.
    transforms: Arc<Mutex<Vec<Known>>>,
}

impl Basis {
    /// The basis of fields with one channel per entry of `families` on `rows` × `cols` nodes.
    pub fn new(families: Vec<[Family; 2]>, rows: usize, cols: usize) -> Self {
        Self { families, rows, cols, transforms: Arc::default() }
    }

    /// The basis of `channels` fields on `grid`: Fourier's modes along axes that are periodic, else cosines.
    pub fn of_grid(channels: usize, grid: &Grid) -> Self {
        let family = |id: AxisId| match grid.axes.get(id as usize) {
            Some(axis) if axis.periodic => Family::Fourier,
            _ => Family::Cosine,
        };
        Self::new(vec![AxisId::BOTH.map(family); channels], grid.rows(), grid.cols())
    }

    /// The basis for channels `channels` on `grid`, by what their fields do at the sides in `constraint`, whose formulas are
    /// `formulas`.
    ///
    /// A field with an equation in the interior and none on the whole grid gets sines of the interior and its border's nodes by
    /// themselves, which boundary conditions may act on; else its stencil decides. Channels that the constraint does not know
    /// get cosines, which assume nothing.
    pub fn of_data(
        constraint: &SoftConstraint,
        formulas: &ConstraintConfig,
        channels: &[String],
        grid: &Grid,
    ) -> Result<Self> {
        let regions: Vec<Region> = formulas.residuals().into_iter().map(|residual| residual.region).collect();
        let holds = |slot: usize, region: &Region| {
            let mut parts = constraint.parts.iter().zip(&regions);
            parts.any(|(part, other)| other == region && part.program.uses(slot))
        };
        let families = |name: &String| {
            let slot = formulas.fields.iter().position(|field| field == name);
            let inner = slot.is_some_and(|slot| holds(slot, &Region::Interior) && !holds(slot, &Region::All));
            let schemes = formulas.schemes_of(name, grid)?;
            Ok(AxisId::BOTH.map(|id| {
                let axis = grid.axis(id);
                match schemes[id as usize] {
                    _ if axis.periodic => Family::Fourier,
                    _ if slot.is_none() => Family::Cosine,
                    _ if inner => Family::InnerSine,
                    scheme => Family::of_data(scheme, axis),
                }
            }))
        };
        Ok(Self::new(channels.iter().map(families).collect::<Result<_>>()?, grid.rows(), grid.cols()))
    }

    /// Shape of a sample, `[C, H, W]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.families.len(), self.rows, self.cols]
    }

    /// The families of a channel along rows and columns.
    pub fn families(&self, channel: usize) -> [Family; 2] {
        self.families[channel]
    }

    /// The transform for tensors of the type and device of `like`.
    pub fn transform(&self, like: &Tensor<4>) -> Transform {
        let (dtype, device) = (like.dtype(), like.device().without_autodiff());
        let mut known = self.transforms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., transform)) = known.iter().find(|(d, place, _)| *d == dtype && *place == device) {
            return transform.clone();
        }
        let matrices = |matrix: fn(Family, usize) -> Vec<f64>| {
            Matrices::new(&self.families, [self.rows, self.cols], matrix, dtype, &device)
        };
        let transform = Transform { analysis: matrices(Family::analysis), synthesis: matrices(Family::synthesis) };
        known.push((dtype, device, transform.clone()));
        transform
    }
}

/// The transform of a [`Basis`] for tensors of one type and device.
#[derive(Debug, Clone)]
pub struct Transform {
    analysis: Matrices,
    synthesis: Matrices,
}

impl Transform {
    /// The device of the tensors that it takes.
    pub fn device(&self) -> Device {
        self.analysis.tensors[0].device()
    }

    /// Fields `[N, C, H, W]` → their coefficients, of the same shape.
    pub fn coefficients(&self, fields: Tensor<4>) -> Tensor<4> {
        profile::part(Part::Transforms, || self.analysis.apply(fields))
    }

    /// Coefficients `[N, C, H, W]` → fields.
    pub fn fields(&self, coefficients: Tensor<4>) -> Tensor<4> {
        profile::part(Part::Transforms, || self.synthesis.apply(coefficients))
    }
}

/// A pair of matrices for every channel.
#[derive(Debug, Clone)]
struct Matrices {
    /// `[1, C, H, H]` and `[1, C, W, W]`; the second is transposed, as it multiplies from the right.
    tensors: [Tensor<4>; 2],
    /// The same as a kernel.
    map: Arc<dyn LinearMap>,
}

impl Matrices {
    fn new(
        families: &[[Family; 2]],
        [rows, cols]: [usize; 2],
        matrix: fn(Family, usize) -> Vec<f64>,
        dtype: DType,
        device: &Device,
    ) -> Self {
        let channels = families.len();
        let left: Vec<f64> = families.iter().flat_map(|families| matrix(families[0], rows)).collect();
        let right = families.iter().flat_map(|families| {
            let matrix = matrix(families[1], cols);
            (0..cols * cols).map(move |i| matrix[i % cols * cols + i / cols])
        });
        let right: Vec<f64> = right.collect();
        let tensor = |values: &[f64], n| uploaded(TensorData::new(values.to_vec(), [1, channels, n, n]), device, dtype);
        let tensors = [tensor(&left, rows), tensor(&right, cols)];
        Self { tensors, map: Arc::new(AlongBoth::new([channels, rows, cols], left, right)) }
    }

    fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        let [left, right] = &self.tensors;
        mapped(&x, &self.map).unwrap_or_else(|| left.clone().matmul(x).matmul(right.clone()))
    }
}

/// The eigenvalue of the second derivative along `axis` for each function of `family`; `None` for those that stand for
/// nodes that keep their values.
pub(crate) fn eigenvalues(family: Family, scheme: Scheme, axis: &Axis) -> Vec<Option<f64>> {
    let n = axis.nodes;
    let (analysis, synthesis) = (family.analysis(n), family.synthesis(n));
    let matrix = Matrix::derivative(scheme, Order::Second, axis);
    let eigenvalue = |k: usize| {
        let image = |row: &Vec<(usize, f64)>| row.iter().map(|&(j, v)| v * synthesis[j * n + k]).sum::<f64>();
        matrix.rows.iter().zip(&analysis[k * n..]).map(|(row, a)| a * image(row)).sum::<f64>()
    };
    let solved = if family == Family::InnerSine { n - 2 } else { n };
    (0..n).map(|k| (k < solved).then(|| eigenvalue(k))).collect()
}

/// ⟨f, g⟩² for every function f of `of` (row) and g of `other` (column) along n nodes, `[n, n]`: what a variance by functions of
/// `other` is by functions of `of`. Both families are orthonormal.
pub(crate) fn squared_overlaps(of: Family, other: Family, n: usize) -> Vec<f64> {
    let (rows, columns) = (of.analysis(n), other.synthesis(n));
    let overlap = |k: usize, l: usize| (0..n).map(|j| rows[k * n + j] * columns[j * n + l]).sum::<f64>();
    (0..n * n).map(|i| overlap(i / n, i % n).powi(2)).collect()
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
