//! Gaussian random fields of exponential covariance by their leading Karhunen–Loève modes.

use std::sync::Arc;

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};
use rand::Rng;
use rand_distr::{Distribution, StandardNormal};
use rustdct::rustfft::num_complex::Complex;
use rustdct::rustfft::{Fft, FftPlanner};
use thiserror::Error;

use crate::grid::{AxisId, Grid, GridError};
use crate::transpose::transpose;

/// An eigenpair counts as found once `‖Cφ - λφ‖` is below this fraction of the largest eigenvalue.
const TOLERANCE: f64 = 1e-12;
/// Vectors by which a Krylov basis grows at a time; even, because two real vectors share a Fourier transform.
const BLOCK: usize = 4;
/// Eigenvalues that differ by less than this fraction are ordered by their symmetry instead of by rounding.
const TIE: f64 = 1e-9;

/// Why a Karhunen–Loève expansion could not be made.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum KarhunenLoeveError {
    /// Axes that the field cannot live on.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The correlation length is not positive.
    #[error("the correlation length must be positive and finite, found {length}")]
    BadLength {
        /// The length.
        length: f64,
    },
    /// More modes than nodes, or none.
    #[error("the number of modes must be between 1 and the number of nodes, {nodes}, found {modes}")]
    BadModes {
        /// Number of modes.
        modes: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// Not one normal per mode.
    #[error("this expansion takes one normal for each of its {expected} modes, found {found}")]
    WrongLength {
        /// Number of modes.
        expected: usize,
        /// Number of normals.
        found: usize,
    },
}

/// The field `G = Σ √λₖ zₖ φₖ` with standard normals `z` and the leading eigenpairs of the covariance matrix
/// `exp(-|x - x'| / length)` between nodes; the eigenvectors have Euclidean length one (no quadrature weights).
///
/// A log-normal permeability is `exp(G)`.
#[derive(Debug, Clone, PartialEq)]
pub struct KarhunenLoeve {
    eigenvalues: Vec<f64>,
    /// Eigenvectors, `[modes, nodes]`.
    modes: Vec<f64>,
}

impl KarhunenLoeve {
    /// The leading `modes` eigenpairs on `grid`.
    ///
    /// The result is the same on every run: modes with a common eigenvalue (a square has such pairs) are told apart by
    /// their reflection symmetry, and the first of a mode's largest entries is positive.
    pub fn new(grid: &Grid, length: f64, modes: usize) -> Result<Self, KarhunenLoeveError> {
        grid.check_for("this random field", |axis| !axis.periodic)?;
        if !(length.is_finite() && length > 0.0) {
            return Err(KarhunenLoeveError::BadLength { length });
        }
        if modes == 0 || modes > grid.len() {
            return Err(KarhunenLoeveError::BadModes { modes, nodes: grid.len() });
        }
        let covariance = Covariance::new(grid, length);
        // Reflections commute with the covariance, so its eigenvectors are even or odd along each axis.
        let mut classes: Vec<Class> = [[false, false], [false, true], [true, false], [true, true]]
            .map(|[odd_x, odd_y]| Class::new(reflection(grid.rows(), odd_x), reflection(grid.cols(), odd_y)))
            .into_iter()
            .filter(|class| class.size() > 0)
            .collect();
        // About a quarter of the modes is in each class; a Krylov basis needs a multiple of what is to be found.
        let mut wanted = vec![modes.div_ceil(3) + BLOCK; classes.len()];
        loop {
            for (class, &wanted) in classes.iter_mut().zip(&wanted) {
                class.search(&covariance, wanted);
            }
            let found = leading(&classes, modes);
            // The first mode that is left out of a class proves that none is missing in between.
            let mut settled = true;
            for (i, (class, wanted)) in classes.iter().zip(&mut wanted).enumerate() {
                let needed = class.size().min(found.iter().filter(|(c, _)| *c == i).count() + 1);
                if needed > *wanted {
                    *wanted = needed + BLOCK;
                    settled = false;
                }
            }
            if settled {
                let eigenvalues = found.iter().map(|&(class, k)| classes[class].values[k]).collect();
                let modes = found.iter().flat_map(|&(class, k)| classes[class].mode(k, grid)).collect();
                return Ok(Self { eigenvalues, modes });
            }
        }
    }

    /// The eigenvalues, descending.
    pub fn eigenvalues(&self) -> &[f64] {
        &self.eigenvalues
    }

    /// The eigenvectors, `[modes, nodes]`.
    pub fn modes(&self) -> &[f64] {
        &self.modes
    }

    /// The field `[rows, cols]` of the given standard normals, one per mode.
    pub fn combine(&self, normals: &[f64]) -> Result<Vec<f64>, KarhunenLoeveError> {
        let count = self.eigenvalues.len();
        if normals.len() != count {
            return Err(KarhunenLoeveError::WrongLength { expected: count, found: normals.len() });
        }
        let nodes = self.modes.len() / count;
        let mut field = vec![0.0; nodes];
        for ((z, eigenvalue), mode) in normals.iter().zip(&self.eigenvalues).zip(self.modes.chunks_exact(nodes)) {
            // Rounding may leave the smallest eigenvalues of a full expansion slightly negative.
            let amplitude = z * eigenvalue.max(0.0).sqrt();
            for (value, entry) in field.iter_mut().zip(mode) {
                *value += amplitude * entry;
            }
        }
        Ok(field)
    }

    /// A random field `[rows, cols]`.
    pub fn sample(&self, rng: &mut impl Rng) -> Vec<f64> {
        let normals: Vec<f64> = StandardNormal.sample_iter(rng).take(self.eigenvalues.len()).collect();
        self.combine(&normals).expect("one normal per mode")
    }
}

/// The `count` largest eigenvalues over all classes, as (class, index in class), descending.
fn leading(classes: &[Class], count: usize) -> Vec<(usize, usize)> {
    let value = |&(class, k): &(usize, usize)| classes[class].values[k];
    let mut all: Vec<(usize, usize)> =
        classes.iter().enumerate().flat_map(|(c, class)| (0..class.values.len()).map(move |k| (c, k))).collect();
    all.sort_by(|a, b| value(b).total_cmp(&value(a)));
    let top = value(&all[0]);
    let mut start = 0;
    while start < all.len() {
        let tied = all[start..].iter().take_while(|pair| value(&all[start]) - value(pair) <= TIE * top).count();
        all[start..start + tied].sort_unstable();
        start += tied;
    }
    all.truncate(count);
    all
}

/// An orthonormal basis of the even or odd vectors of `n` nodes: for each its `(node, weight)` entries.
fn reflection(n: usize, odd: bool) -> Vec<Vec<(usize, f64)>> {
    let half = 0.5_f64.sqrt();
    let pairs = (0..n / 2).map(|i| vec![(i, half), (n - 1 - i, if odd { -half } else { half })]);
    let centre = (!odd && n % 2 == 1).then(|| vec![(n / 2, 1.0)]);
    pairs.chain(centre).collect()
}

/// The vectors of one reflection symmetry, a Krylov basis among them and the eigenpairs found with it.
///
/// All vectors are given by their components in the class, `[class rows, class cols]`.
struct Class {
    along_x: Vec<Vec<(usize, f64)>>,
    along_y: Vec<Vec<(usize, f64)>>,
    /// Orthonormal vectors, one after the other.
    basis: Vec<f64>,
    /// What the covariance makes of each of them.
    images: Vec<f64>,
    /// Eigenvalues found so far, descending.
    values: Vec<f64>,
    /// Their eigenvectors, one after the other.
    vectors: Vec<f64>,
    /// State of the generator of starting vectors.
    seed: u64,
}

impl Class {
    fn new(along_x: Vec<Vec<(usize, f64)>>, along_y: Vec<Vec<(usize, f64)>>) -> Self {
        let nothing = Vec::new;
        Self { along_x, along_y, basis: nothing(), images: nothing(), values: nothing(), vectors: nothing(), seed: 0 }
    }

    /// Dimension of the class.
    fn size(&self) -> usize {
        self.along_x.len() * self.along_y.len()
    }

    /// The nodes (row, column) and weights of component `k`.
    fn entries(&self, k: usize) -> impl Iterator<Item = (usize, usize, f64)> {
        let (x, y) = (&self.along_x[k / self.along_y.len()], &self.along_y[k % self.along_y.len()]);
        x.iter().flat_map(move |&(i, wx)| y.iter().map(move |&(j, wy)| (i, j, wx * wy)))
    }

    /// Finds the `count` largest eigenvalues (all of them if there are fewer) by block Krylov iteration.
    fn search(&mut self, covariance: &Covariance, count: usize) {
        let size = self.size();
        let count = count.min(size);
        if self.values.len() >= count {
            return;
        }
        loop {
            let target = size.min(self.basis.len() / size + 2 * BLOCK + count);
            while self.basis.len() < target * size {
                self.grow(covariance);
            }
            if self.project(count) {
                return;
            }
        }
    }

    /// Adds a block to the basis: the newest images, made orthogonal, or random vectors where these are exhausted.
    fn grow(&mut self, covariance: &Covariance) {
        let size = self.size();
        let old = self.basis.len() / size;
        let block = BLOCK.min(size - old);
        for k in 0..block {
            let mut vector = if old == 0 {
                self.random_vector()
            } else {
                let start = (old - BLOCK + k) * size;
                self.images[start..start + size].to_vec()
            };
            while !self.make_orthogonal(&mut vector) {
                vector = self.random_vector();
            }
            self.basis.extend_from_slice(&vector);
        }
        for first in (old..old + block).step_by(2) {
            let pair = [first, first + 1].map(|k| self.basis.get(k * size..(k + 1) * size));
            let images = covariance.apply(self, pair);
            self.images.extend(images.into_iter().zip(pair).filter(|(_, v)| v.is_some()).flat_map(|(image, _)| image));
        }
    }

    /// Makes `vector` orthogonal to the basis and of length one; false if nothing but rounding is left of it.
    fn make_orthogonal(&self, vector: &mut [f64]) -> bool {
        let size = self.size();
        let count = self.basis.len() / size;
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let basis = MatRef::from_column_major_slice(&self.basis, size, count);
        let original = norm(vector);
        let mut length = original;
        loop {
            let mut column = MatMut::from_column_major_slice_mut(vector, size, 1);
            let mut components = Mat::zeros(count, 1);
            matmul(&mut components, Accum::Replace, basis.transpose(), &column, 1.0, Par::Seq);
            matmul(&mut column, Accum::Add, basis, &components, -1.0, Par::Seq);
            let before = length;
            length = norm(vector);
            if length <= 1e-13 * original {
                return false;
            }
            // What cancels leaves rounding errors along the basis behind; repeat until nothing cancels.
            if length > 0.5 * before {
                for v in vector {
                    *v /= length;
                }
                return true;
            }
        }
    }

    /// Takes the `count` best eigenpairs within the basis; true once all of them are eigenpairs of the covariance.
    fn project(&mut self, count: usize) -> bool {
        let size = self.size();
        let dimension = self.basis.len() / size;
        let basis = MatRef::from_column_major_slice(&self.basis, size, dimension);
        let images = MatRef::from_column_major_slice(&self.images, size, dimension);
        let mut projected = Mat::zeros(dimension, dimension);
        matmul(&mut projected, Accum::Replace, basis.transpose(), images, 1.0, Par::Seq);
        let (values, rotation) = eigen(&projected);
        let rotation = rotation.as_ref().get(.., dimension - count..).reverse_cols();
        let mut vectors = Mat::zeros(size, count);
        matmul(&mut vectors, Accum::Replace, basis, rotation, 1.0, Par::Seq);
        let mut residuals = Mat::zeros(size, count);
        matmul(&mut residuals, Accum::Replace, images, rotation, 1.0, Par::Seq);
        self.values = values.iter().rev().take(count).copied().collect();
        self.vectors = vectors.col_iter().flat_map(|column| column.iter().copied()).collect();
        dimension == size
            || (0..count).all(|k| {
                let defects = residuals.col(k).iter().zip(vectors.col(k).iter()).map(|(r, v)| r - self.values[k] * v);
                defects.map(|d| d * d).sum::<f64>().sqrt() <= TOLERANCE * self.values[0]
            })
    }

    /// Eigenvector `k` as a field `[rows, cols]`, the first of its largest entries positive.
    fn mode(&self, k: usize, grid: &Grid) -> Vec<f64> {
        let size = self.size();
        let mut field = vec![0.0; grid.len()];
        for (component, value) in self.vectors[k * size..(k + 1) * size].iter().enumerate() {
            for (i, j, weight) in self.entries(component) {
                field[i * grid.cols() + j] += weight * value;
            }
        }
        let largest = field.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        // Symmetry makes several entries equally large up to rounding.
        let first = field.iter().find(|v| v.abs() >= (1.0 - 1e-6) * largest).copied().unwrap_or(0.0);
        field.iter().map(|v| v * first.signum()).collect()
    }

    /// A vector that is random enough to have a part along every eigenvector, and the same on every run (splitmix64).
    fn random_vector(&mut self) -> Vec<f64> {
        let mut next = || {
            self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) as f64 / u64::MAX as f64 - 0.5
        };
        (0..self.along_x.len() * self.along_y.len()).map(|_| next()).collect()
    }
}

/// Eigenvalues, ascending, and eigenvectors of a symmetric matrix.
fn eigen(matrix: &Mat<f64>) -> (Vec<f64>, Mat<f64>) {
    let n = matrix.nrows();
    let mut values = faer::diag::Diag::zeros(n);
    let mut vectors = Mat::zeros(n, n);
    let scratch = self_adjoint_evd_scratch::<f64>(n, ComputeEigenvectors::Yes, Par::Seq, faer::prelude::default());
    self_adjoint_evd(
        matrix.as_ref(),
        values.as_mut(),
        Some(vectors.as_mut()),
        Par::Seq,
        MemStack::new(&mut MemBuffer::new(scratch)),
        faer::prelude::default(),
    )
    .expect("a finite symmetric matrix has eigenvalues");
    (values.column_vector().iter().copied().collect(), vectors)
}

/// Products with the covariance matrix: it depends on the distance alone, so on a grid of twice the size it is a
/// periodic convolution.
struct Covariance {
    rows: usize,
    /// Size of the periodic grid.
    padded: [usize; 2],
    /// Transform of the kernel, normalisation included, transposed: `[padded cols, padded rows]`.
    spectrum: Vec<f64>,
    /// Along x and y.
    forward: [Arc<dyn Fft<f64>>; 2],
    inverse: [Arc<dyn Fft<f64>>; 2],
}

impl Covariance {
    fn new(grid: &Grid, length: f64) -> Self {
        let padded = [grid.rows(), grid.cols()].map(|n| fast_size(2 * n - 1));
        let mut planner = FftPlanner::new();
        let forward = padded.map(|n| planner.plan_fft_forward(n));
        let inverse = padded.map(|n| planner.plan_fft_inverse(n));
        let [rows, cols] = padded;
        let distance = |i: usize, n: usize, axis| i.min(n - i) as f64 * grid.spacing(axis);
        let kernel = |node: usize| {
            let (x, y) = (distance(node / cols, rows, AxisId::Rows), distance(node % cols, cols, AxisId::Cols));
            Complex::new((-x.hypot(y) / length).exp() / (rows * cols) as f64, 0.0)
        };
        let mut lines: Vec<Complex<f64>> = (0..rows * cols).map(kernel).collect();
        forward[1].process(&mut lines);
        let mut columns = vec![Complex::default(); rows * cols];
        transpose(&lines, cols, &mut columns, rows);
        forward[0].process(&mut columns);
        // The kernel is even, so its transform is real.
        let spectrum = columns.iter().map(|c| c.re).collect();
        Self { rows: grid.rows(), padded, spectrum, forward, inverse }
    }

    /// The products with one or two vectors of a class.
    fn apply(&self, class: &Class, vectors: [Option<&[f64]>; 2]) -> [Vec<f64>; 2] {
        let [padded_rows, padded_cols] = self.padded;
        let component = |v: Option<&[f64]>, k: usize| v.map_or(0.0, |v| v[k]);
        // The second vector travels in the imaginary part.
        let mut lines = vec![Complex::default(); self.rows * padded_cols];
        for k in 0..class.size() {
            let value = Complex::new(component(vectors[0], k), component(vectors[1], k));
            for (i, j, weight) in class.entries(k) {
                lines[i * padded_cols + j] += value * weight;
            }
        }
        self.forward[1].process(&mut lines);
        let mut columns = vec![Complex::default(); padded_rows * padded_cols];
        transpose(&lines, padded_cols, &mut columns, padded_rows);
        self.forward[0].process(&mut columns);
        for (value, factor) in columns.iter_mut().zip(&self.spectrum) {
            *value *= factor;
        }
        self.inverse[0].process(&mut columns);
        // Only the lines that hold nodes are needed.
        for (i, line) in lines.chunks_exact_mut(padded_cols).enumerate() {
            for (value, column) in line.iter_mut().zip(columns.chunks_exact(padded_rows)) {
                *value = column[i];
            }
        }
        self.inverse[1].process(&mut lines);
        let products = (0..class.size())
            .map(|k| class.entries(k).map(|(i, j, weight)| lines[i * padded_cols + j] * weight).sum::<Complex<f64>>());
        products.map(|c| (c.re, c.im)).unzip::<_, _, Vec<_>, Vec<_>>().into()
    }
}

/// A size not below `n` whose Fourier transform is fast: a power of two, or three quarters of one.
fn fast_size(n: usize) -> usize {
    let power = n.next_power_of_two();
    if power >= 4 && power / 4 * 3 >= n { power / 4 * 3 } else { power }
}
