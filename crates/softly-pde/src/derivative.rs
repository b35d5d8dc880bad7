//! Derivatives as matrices applied along one axis.
//!
//! A stencil, its boundary rule and its periodicity are all just a matrix; the adjoint is the transpose. Formulas
//! and solvers share these definitions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::grid::{Axis, Grid};

/// How a derivative is taken along an axis, and what it assumes beyond the boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Central differences, second-order one-sided ones on the outermost node (the stencils of PIDM).
    #[serde(rename = "one-sided-2")]
    OneSided2,
    /// Central differences with ghost nodes mirrored at the boundary: no flux.
    Mirror,
    /// Central differences with zero outside the grid.
    Zero,
    /// Central differences on a periodic grid whose last node is one spacing before the first one's image.
    Periodic,
    /// Fourier differentiation on a periodic grid.
    Spectral,
}

/// Order of a derivative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// First derivative.
    First,
    /// Second derivative.
    Second,
}

impl Scheme {
    /// Every scheme with its name in configuration files.
    pub const ALL: [(&'static str, Scheme); 5] = [
        ("one-sided-2", Scheme::OneSided2),
        ("mirror", Scheme::Mirror),
        ("zero", Scheme::Zero),
        ("periodic", Scheme::Periodic),
        ("spectral", Scheme::Spectral),
    ];

    /// Fewest nodes along an axis that the scheme's stencils fit on.
    pub fn min_nodes(self) -> usize {
        match self {
            Scheme::OneSided2 => 4,
            Scheme::Mirror | Scheme::Zero => 2,
            Scheme::Periodic | Scheme::Spectral => 3,
        }
    }
}

/// A square matrix, stored by rows of non-zero entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// For each row its `(column, value)` entries, ascending in column.
    pub rows: Vec<Vec<(usize, f64)>>,
}

impl Matrix {
    /// The derivative matrix of `scheme` and `order` for `n` nodes at distance `h`.
    pub fn derivative(scheme: Scheme, order: Order, n: usize, h: f64) -> Self {
        assert!(n >= scheme.min_nodes(), "{n} nodes are too few for {scheme:?}");
        let rows = (0..n).map(|i| match scheme {
            Scheme::OneSided2 => one_sided_row(order, i, n),
            Scheme::Mirror => central_row(order, i, |j| Some(mirrored(j, n))),
            Scheme::Zero => central_row(order, i, |j| usize::try_from(j).ok().filter(|&j| j < n)),
            Scheme::Periodic => central_row(order, i, |j| Some(j.rem_euclid(n as isize) as usize)),
            Scheme::Spectral => spectral_row(order, i, n),
        });
        let scale = match order {
            Order::First => 1.0 / h,
            Order::Second => 1.0 / (h * h),
        };
        let rows = rows.map(|row| merged(row).into_iter().map(|(j, v)| (j, v * scale)).collect());
        Self { rows: rows.collect() }
    }

    /// The derivative matrix along `axis` of `grid`.
    pub fn on_grid(scheme: Scheme, order: Order, grid: &Grid, axis: Axis) -> Self {
        Self::derivative(scheme, order, grid.nodes(axis), grid.spacing(axis))
    }

    /// Number of rows and columns.
    pub fn size(&self) -> usize {
        self.rows.len()
    }

    /// The transposed matrix: the adjoint of the derivative.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let mut rows = vec![Vec::new(); self.size()];
        for (i, row) in self.rows.iter().enumerate() {
            for &(j, v) in row {
                rows[j].push((i, v));
            }
        }
        Self { rows }
    }

    /// Every entry, row-major `[n, n]`.
    pub fn dense(&self) -> Vec<f64> {
        let n = self.size();
        let mut entries = vec![0.0; n * n];
        for (i, row) in self.rows.iter().enumerate() {
            for &(j, v) in row {
                entries[i * n + j] = v;
            }
        }
        entries
    }

    /// Applies the matrix along `axis` of a field `[rows, cols]`.
    pub fn apply(&self, axis: Axis, field: &[f64], rows: usize, cols: usize) -> Vec<f64> {
        let mut out = vec![0.0; rows * cols];
        match axis {
            Axis::X => {
                for (row, out_row) in self.rows.iter().zip(out.chunks_exact_mut(cols)) {
                    for &(j, v) in row {
                        for (o, f) in out_row.iter_mut().zip(&field[j * cols..(j + 1) * cols]) {
                            *o += v * f;
                        }
                    }
                }
            }
            Axis::Y => {
                for (line, out_line) in field.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
                    for (row, o) in self.rows.iter().zip(out_line) {
                        *o = row.iter().map(|&(j, v)| v * line[j]).sum();
                    }
                }
            }
        }
        out
    }
}

/// Second-order one-sided stencils on the outermost node, central elsewhere.
fn one_sided_row(order: Order, i: usize, n: usize) -> Vec<(usize, f64)> {
    let edge: &[f64] = match order {
        Order::First => &[-1.5, 2.0, -0.5],
        Order::Second => &[2.0, -5.0, 4.0, -1.0],
    };
    if i == 0 {
        return edge.iter().copied().enumerate().collect();
    }
    if i == n - 1 {
        // Mirroring a stencil flips the sign of odd derivatives.
        let sign = if order == Order::First { -1.0 } else { 1.0 };
        return edge.iter().enumerate().map(|(k, v)| (n - 1 - k, sign * v)).collect();
    }
    central_row(order, i, |j| usize::try_from(j).ok())
}

/// The central stencil around `i`; `node` says which node (if any) stands for index `j`, which may lie outside.
fn central_row(order: Order, i: usize, node: impl Fn(isize) -> Option<usize>) -> Vec<(usize, f64)> {
    let stencil = match order {
        Order::First => [-0.5, 0.0, 0.5],
        Order::Second => [1.0, -2.0, 1.0],
    };
    stencil.into_iter().enumerate().filter_map(|(k, v)| node(i as isize + k as isize - 1).map(|j| (j, v))).collect()
}

/// The node that mirrors index `j` at the boundary nodes.
fn mirrored(j: isize, n: usize) -> usize {
    let last = n as isize - 1;
    (if j < 0 {
        -j
    } else if j > last {
        2 * last - j
    } else {
        j
    }) as usize
}

/// Fourier differentiation of n equispaced values with unit spacing (n odd or even).
fn spectral_row(order: Order, i: usize, n: usize) -> Vec<(usize, f64)> {
    use std::f64::consts::PI;
    let even = n.is_multiple_of(2);
    // With angle spacing 2π/n instead of unit spacing every derivative gains a factor 2π/n.
    let scale = 2.0 * PI / n as f64;
    (0..n)
        .map(|j| {
            let k = i as isize - j as isize;
            let half = PI * k as f64 / n as f64;
            let sign = if k.rem_euclid(2) == 0 { 1.0 } else { -1.0 };
            let value = match (order, k == 0, even) {
                (Order::First, true, _) => 0.0,
                (Order::First, false, true) => 0.5 * sign / half.tan(),
                (Order::First, false, false) => 0.5 * sign / half.sin(),
                (Order::Second, true, true) => -((n * n) as f64 + 2.0) / 12.0,
                (Order::Second, true, false) => -((n * n) as f64 - 1.0) / 12.0,
                (Order::Second, false, true) => -0.5 * sign / half.sin().powi(2),
                (Order::Second, false, false) => -0.5 * sign * half.cos() / half.sin().powi(2),
            };
            let scale = if order == Order::First { scale } else { scale * scale };
            (j, value * scale)
        })
        .collect()
}

/// Sums entries of the same column, sorts them and drops zeros.
fn merged(mut row: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    row.sort_by_key(|&(j, _)| j);
    let mut out: Vec<(usize, f64)> = Vec::with_capacity(row.len());
    for (j, v) in row {
        match out.last_mut() {
            Some(last) if last.0 == j => last.1 += v,
            _ => out.push((j, v)),
        }
    }
    out.retain(|&(_, v)| v != 0.0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derivative_of(scheme: Scheme, order: Order, n: usize, h: f64, f: impl Fn(f64) -> f64) -> Vec<f64> {
        let field: Vec<f64> = (0..n).map(|i| f(i as f64 * h)).collect();
        Matrix::derivative(scheme, order, n, h).apply(Axis::X, &field, n, 1)
    }

    #[test]
    fn one_sided_is_exact_on_quadratics_and_cubics() {
        let h = 0.1;
        for (i, d) in derivative_of(Scheme::OneSided2, Order::First, 9, h, |x| 3.0 * x * x - x).iter().enumerate() {
            assert!((d - (6.0 * i as f64 * h - 1.0)).abs() < 1e-12);
        }
        for (i, d) in derivative_of(Scheme::OneSided2, Order::Second, 9, h, |x| x.powi(3)).iter().enumerate() {
            assert!((d - 6.0 * i as f64 * h).abs() < 1e-10, "node {i}: {d}");
        }
    }

    #[test]
    fn mirror_has_no_flux_and_the_doubled_boundary_stencil() {
        let first = Matrix::derivative(Scheme::Mirror, Order::First, 5, 0.5);
        assert!(first.rows[0].is_empty() && first.rows[4].is_empty());
        let second = Matrix::derivative(Scheme::Mirror, Order::Second, 5, 0.5);
        assert_eq!(second.rows[0], [(0, -8.0), (1, 8.0)]);
        assert_eq!(second.rows[4], [(3, 8.0), (4, -8.0)]);
    }

    #[test]
    fn spectral_is_exact_on_resolved_waves() {
        use std::f64::consts::TAU;
        for n in [7, 8, 9, 12] {
            let h = 1.0 / n as f64;
            let first = derivative_of(Scheme::Spectral, Order::First, n, h, |x| (TAU * 2.0 * x).sin());
            let second = derivative_of(Scheme::Spectral, Order::Second, n, h, |x| (TAU * 2.0 * x).sin());
            for i in 0..n {
                let x = i as f64 * h;
                assert!((first[i] - 2.0 * TAU * (TAU * 2.0 * x).cos()).abs() < 1e-9, "n {n} node {i}");
                assert!((second[i] + 4.0 * TAU * TAU * (TAU * 2.0 * x).sin()).abs() < 1e-8, "n {n} node {i}");
            }
        }
    }

    #[test]
    fn central_schemes_converge_at_second_order() {
        use std::f64::consts::TAU;
        let error = |n: usize, order| {
            let h = 1.0 / n as f64;
            let d = derivative_of(Scheme::Periodic, order, n, h, |x| (TAU * x).sin());
            let exact = |x: f64| match order {
                Order::First => TAU * (TAU * x).cos(),
                Order::Second => -TAU * TAU * (TAU * x).sin(),
            };
            d.iter().enumerate().map(|(i, d)| (d - exact(i as f64 * h)).abs()).fold(0.0, f64::max)
        };
        for order in [Order::First, Order::Second] {
            let rate = (error(32, order) / error(64, order)).log2();
            assert!((rate - 2.0).abs() < 0.05, "{order:?}: rate {rate}");
        }
    }

    #[test]
    fn columns_and_rows_agree_and_the_transpose_is_the_adjoint() {
        let (rows, cols) = (6, 5);
        let noise = |seed: usize| (0..rows * cols).map(|i| ((i * 7 + seed) as f64 * 1.7).sin()).collect::<Vec<_>>();
        let (v, w) = (noise(1), noise(2));
        let inner = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for (_, scheme) in Scheme::ALL {
            for order in [Order::First, Order::Second] {
                for (axis, n) in [(Axis::X, rows), (Axis::Y, cols)] {
                    let m = Matrix::derivative(scheme, order, n, 0.3);
                    let left = inner(&m.apply(axis, &v, rows, cols), &w);
                    let right = inner(&v, &m.transposed().apply(axis, &w, rows, cols));
                    assert!((left - right).abs() < 1e-9 * (1.0 + left.abs()), "{scheme:?} {order:?} {axis:?}");
                }
            }
        }
    }
}
