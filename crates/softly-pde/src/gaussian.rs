//! Gaussian vectors in many dimensions: the leading modes of a covariance, and the update by noisy linear rows.

use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{BlockStructure, matmul as triangular_matmul};
use faer::linalg::solvers::{Llt, Solve};
use faer::{Accum, Mat, MatRef, Par, Side};

/// The leading modes √λₖ φₖ of a covariance Σ = Σₖ λₖ φₖ φₖᵀ + diag(rest).
#[derive(Debug, Clone, PartialEq)]
pub struct Modes {
    /// √λₖ φₖ, `[modes, dimensions]`, the largest first.
    pub vectors: Vec<f64>,
    /// λₖ, descending.
    pub values: Vec<f64>,
    /// Variance of every dimension that the modes leave out.
    pub rest: Vec<f64>,
}

impl Modes {
    /// The modes of (1/N) Σ xᵢ xᵢᵀ for `samples` xᵢ `[N, dimensions]`: at most `most`, and so many that all but the share `left_out`
    /// of the variance is in them.
    pub fn of_samples(samples: &[f64], dimensions: usize, most: usize, left_out: f64) -> Self {
        let count = samples.len() / dimensions.max(1);
        let x = MatRef::from_row_major_slice(samples, count, dimensions);
        let scale = 1.0 / count.max(1) as f64;
        let (values, vectors) = if count < dimensions {
            // x xᵀ has the same eigenvalues as xᵀ x, and is smaller: its eigenvectors v give φ = xᵀ v / |xᵀ v|.
            let (values, vectors) = eigen(&gram(x, scale));
            let (rows, kept) = (vectors.nrows(), leading(&values, most, left_out));
            (values, product(x.transpose(), vectors.as_ref().subcols(rows - kept, kept), 1.0))
        } else {
            eigen(&gram(x.transpose(), scale))
        };
        let variances = (0..dimensions).map(|j| (0..count).map(|i| x[(i, j)].powi(2)).sum::<f64>() * scale);
        Self::of_eigen(&values, vectors.as_ref(), variances.collect(), leading(&values, most, left_out))
    }

    /// The modes of the mean (1 − t) Σ + t Σ' of two covariances, with as many modes as are needed, likewise.
    pub fn between(first: &Self, second: &Self, t: f64, most: usize, left_out: f64) -> Self {
        let weighted =
            |modes: &Self, weight: f64| -> Vec<f64> { modes.vectors.iter().map(|v| v * weight.sqrt()).collect() };
        let dimensions = first.rest.len();
        let both = [weighted(first, 1.0 - t), weighted(second, t)].concat();
        let mut modes = Self::of_samples(&both, dimensions, most, left_out);
        // `of_samples` takes a mean over the rows, which here are a sum.
        let rows = (both.len() / dimensions.max(1)) as f64;
        modes.values.iter_mut().for_each(|v| *v *= rows);
        modes.vectors.iter_mut().for_each(|v| *v *= rows.sqrt());
        let rests = first.rest.iter().zip(&second.rest);
        let rests: Vec<f64> = rests.map(|(a, b)| (1.0 - t) * a + t * b).collect();
        modes.rest.iter_mut().zip(rests).for_each(|(rest, left)| *rest = *rest * rows + left);
        modes
    }

    /// Number of modes.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True without modes.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Σₖ aₖ √λₖ φₖ for coefficients a `[modes]`.
    pub fn combined(&self, coefficients: &[f64]) -> Vec<f64> {
        let mut sum = vec![0.0; self.rest.len()];
        for (mode, a) in self.vectors.chunks_exact(self.rest.len()).zip(coefficients) {
            sum.iter_mut().zip(mode).for_each(|(sum, v)| *sum += a * v);
        }
        sum
    }

    /// The part of `x` `[dimensions]` along the modes.
    pub fn projected(&self, x: &[f64]) -> Vec<f64> {
        let along = |(mode, value): (&[f64], &f64)| mode.iter().zip(x).map(|(v, x)| v * x).sum::<f64>() / value;
        let coefficients: Vec<f64> = self.vectors.chunks_exact(self.rest.len()).zip(&self.values).map(along).collect();
        self.combined(&coefficients)
    }

    /// The leading `count` of ascending eigenvalues; their vectors, which may have any length, are the last columns of `vectors`.
    fn of_eigen(values: &[f64], vectors: MatRef<'_, f64>, mut rest: Vec<f64>, count: usize) -> Self {
        let dimensions = rest.len();
        let mut modes = Self { vectors: Vec::new(), values: Vec::new(), rest: Vec::new() };
        for k in 1..=count {
            let (value, vector) = (values[values.len() - k], vectors.col(vectors.ncols() - k));
            let length = (0..dimensions).map(|j| vector[j].powi(2)).sum::<f64>().sqrt();
            let mode: Vec<f64> = (0..dimensions).map(|j| vector[j] / length * value.sqrt()).collect();
            rest.iter_mut().zip(&mode).for_each(|(rest, v)| *rest = (*rest - v * v).max(0.0));
            modes.vectors.extend(mode);
            modes.values.push(value);
        }
        modes.rest = rest;
        modes
    }
}

/// Number of the largest of ascending eigenvalues that hold all but the share `left_out` of their sum, at most `most`.
fn leading(values: &[f64], most: usize, left_out: f64) -> usize {
    let total: f64 = values.iter().map(|v| v.max(0.0)).sum();
    let (mut count, mut left) = (0, total);
    // Below the rounding of a sum of products there is nothing but rounding.
    for value in values.iter().rev().take_while(|value| **value > 1e-14 * total).take(most) {
        if left <= left_out * total {
            break;
        }
        left -= value;
        count += 1;
    }
    count
}

/// Standard normal coefficients a `[L]` given r = A a + noise of variance 1, for rows A `[M, L]`. Their mean is
/// Aᵀ(A Aᵀ + I)⁻¹ r = (I + Aᵀ A)⁻¹ Aᵀ r, whichever system is smaller.
pub struct Update<'a> {
    rows: MatRef<'a, f64>,
    factor: Covariance,
}

impl<'a> Update<'a> {
    /// Factorises the smaller system of the rows A, which are given column by column: Aᵀ `[modes, M]`, row-major.
    pub fn new(columns: &'a [f64], modes: usize) -> Self {
        let count = columns.len() / modes.max(1);
        let rows = MatRef::from_column_major_slice(columns, count, modes);
        let mut system = if count <= modes { gram(rows, 1.0) } else { gram(rows.transpose(), 1.0) };
        for i in 0..system.nrows() {
            system[(i, i)] += 1.0;
        }
        Self { rows, factor: Covariance(system.llt(Side::Lower).ok()) }
    }

    /// The mean coefficients `[modes]` for `right` r `[M]`.
    pub fn mean(&self, right: &[f64]) -> Vec<f64> {
        let a = self.rows;
        let along = |right: &[f64]| -> Vec<f64> {
            let along = product(a.transpose(), MatRef::from_column_major_slice(right, right.len(), 1), 1.0);
            along.col_as_slice(0).to_vec()
        };
        if a.nrows() <= a.ncols() { along(&self.factor.solve(right)) } else { self.factor.solve(&along(right)) }
    }
}

/// The mean coefficients `[modes]` of [`Update::mean`] for noise of each of the variances `inflations` instead of 1: one
/// decomposition serves all. `columns` are Aᵀ `[modes, M]`, row-major.
pub fn inflated_means(columns: &[f64], modes: usize, right: &[f64], inflations: &[f64]) -> Vec<Vec<f64>> {
    let count = columns.len() / modes.max(1);
    let rows = MatRef::from_column_major_slice(columns, count, modes);
    let right = MatRef::from_column_major_slice(right, count, 1);
    let small = count <= modes;
    let (values, vectors) = eigen(&if small { gram(rows, 1.0) } else { gram(rows.transpose(), 1.0) });
    // With A Aᵀ = Q Λ Qᵀ the mean is Aᵀ Q (Λ + v)⁻¹ Qᵀ r; with Aᵀ A = Q Λ Qᵀ it is Q (Λ + v)⁻¹ Qᵀ Aᵀ r.
    let seen = if small { right.to_owned() } else { product(rows.transpose(), right, 1.0) };
    let along = product(vectors.transpose(), seen.as_ref(), 1.0);
    let mean = |inflation: &f64| {
        let damped = Mat::from_fn(along.nrows(), 1, |i, _| along[(i, 0)] / (values[i].max(0.0) + inflation));
        let solved = product(vectors.as_ref(), damped.as_ref(), 1.0);
        let mean = if small { product(rows.transpose(), solved.as_ref(), 1.0) } else { solved };
        (0..modes).map(|k| mean[(k, 0)]).collect()
    };
    inflations.iter().map(mean).collect()
}

/// A positive definite matrix S, factorised. A matrix that is not positive definite, as with entries that are no numbers, solves to NaN.
pub struct Covariance(Option<Llt<f64>>);

impl Covariance {
    /// Of the symmetric `matrix` `[size, size]`.
    pub fn new(matrix: &[f64], size: usize) -> Self {
        Self(MatRef::from_row_major_slice(matrix, size, size).llt(Side::Lower).ok())
    }

    /// S = A Aᵀ + `rest` + 1 for `columns` Aᵀ `[modes, size]` and a symmetric `rest` `[size, size]`, row-major.
    pub fn of_rows(columns: &[f64], rest: &[f64], size: usize) -> Self {
        let rows = MatRef::from_column_major_slice(columns, size, columns.len() / size.max(1));
        let mut matrix = gram(rows, 1.0);
        for i in 0..size {
            (0..=i).for_each(|j| matrix[(i, j)] += rest[i * size + j]);
            matrix[(i, i)] += 1.0;
        }
        Self(matrix.llt(Side::Lower).ok())
    }

    /// S⁻¹ X for X `[size, any]`, row-major, of the same shape.
    pub fn solve(&self, right: &[f64]) -> Vec<f64> {
        let Some(factor) = &self.0 else { return vec![f64::NAN; right.len()] };
        let size = factor.L().nrows();
        let columns = right.len() / size.max(1);
        let solved = factor.solve(MatRef::from_row_major_slice(right, size, columns));
        (0..right.len()).map(|k| solved[(k / columns, k % columns)]).collect()
    }
}

/// scale · a b.
fn product(a: MatRef<'_, f64>, b: MatRef<'_, f64>, scale: f64) -> Mat<f64> {
    let mut result = Mat::zeros(a.nrows(), b.ncols());
    matmul(result.as_mut(), Accum::Replace, a, b, scale, Par::Seq);
    result
}

/// The lower half of scale · a aᵀ.
fn gram(a: MatRef<'_, f64>, scale: f64) -> Mat<f64> {
    let (mut result, whole) = (Mat::zeros(a.nrows(), a.nrows()), BlockStructure::Rectangular);
    let (lower, into) = (BlockStructure::TriangularLower, Accum::Replace);
    triangular_matmul(result.as_mut(), lower, into, a, whole, a.transpose(), whole, scale, Par::Seq);
    result
}

/// Eigenvalues, ascending, and eigenvectors of a symmetric matrix, of which the lower half is looked at.
fn eigen(matrix: &Mat<f64>) -> (Vec<f64>, Mat<f64>) {
    let found = matrix.self_adjoint_eigen(Side::Lower).expect("a finite symmetric matrix has eigenvalues");
    (found.S().column_vector().iter().copied().collect(), found.U().to_owned())
}
