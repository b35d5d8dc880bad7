//! Darcy flow `∇·(K ∇p) + f = 0` without flux through the boundary: residual, source and reference solver.

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::LltRegularization;
use faer::perm::PermRef;
use faer::sparse::linalg::SupernodalThreshold;
use faer::sparse::linalg::cholesky::{
    CholeskySymbolicParams, SymbolicCholesky, SymmetricOrdering, factorize_symbolic_cholesky,
};
use faer::sparse::{SparseColMatRef, SymbolicSparseColMat};
use faer::{Conj, MatMut, Par, Side};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::derivative::{Order, Scheme};
use crate::grid::{Axis, AxisId, Grid, GridError};
use crate::matrix::Matrix;

/// Fewest nodes along each axis that the solver accepts.
pub const MIN_NODES: usize = 8;

/// Refinement stops once a step changes no pressure by more than this fraction of the largest one.
const CONVERGED: f64 = 1e-13;
/// The largest relative change of the last refinement step that still counts as solved.
const ACCEPTED: f64 = 1e-9;
const MAX_REFINEMENTS: usize = 12;

/// How pressure derivatives and the no-flux condition are discretised. `K` always has one-sided derivatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Discretisation {
    /// One-sided pressure stencils with one extra row per boundary node and side, `∂p/∂n = 0`; all rows weigh the
    /// same and the over-determined system is solved by least squares, so data keep a small residual (as in PIDM).
    #[serde(rename = "one-sided-2")]
    OneSided,
    /// Pressure mirrored at the boundary: no flux by construction, and a residual that vanishes up to one constraint
    /// on the source.
    Mirror,
}

impl FromStr for Discretisation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "one-sided-2" => Ok(Self::OneSided),
            "mirror" => Ok(Self::Mirror),
            _ => Err("expected one-sided-2 or mirror".into()),
        }
    }
}

impl Discretisation {
    /// The scheme of the pressure derivatives.
    pub fn pressure_scheme(self) -> Scheme {
        match self {
            Discretisation::OneSided => Scheme::OneSided2,
            Discretisation::Mirror => Scheme::Mirror,
        }
    }
}

/// Why a Darcy problem could not be posed or solved.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum DarcyError {
    /// The grid has too few nodes for the stencils.
    #[error(
        "the Darcy solver needs at least {MIN_NODES} nodes along each axis, the grid has {rows} × {cols}: refine it"
    )]
    GridTooSmall {
        /// Nodes along x.
        rows: usize,
        /// Nodes along y.
        cols: usize,
    },
    /// Axes that the solver cannot use.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// A field does not have one value per node.
    #[error("{field} must have one value for each of the {expected} nodes, found {found} values")]
    WrongLength {
        /// Which field.
        field: &'static str,
        /// Number of nodes.
        expected: usize,
        /// Number of values.
        found: usize,
    },
    /// A permeability that is no positive finite number.
    #[error(
        "permeability must be positive and finite, found {value} at row {row}, column {col} (a log-permeability? take \
         its exponential)"
    )]
    BadPermeability {
        /// Row of the first such node.
        row: usize,
        /// Column of the first such node.
        col: usize,
        /// The value there.
        value: f64,
    },
    /// A source or pressure that is not finite.
    #[error("{field} must be finite, found {value} at row {row}, column {col}")]
    NotFinite {
        /// Which field.
        field: &'static str,
        /// Row of the first such node.
        row: usize,
        /// Column of the first such node.
        col: usize,
        /// The value there.
        value: f64,
    },
    /// The system is too badly conditioned for double precision.
    #[error(
        "the Darcy system is too badly conditioned for double precision: permeability spans {smallest:e} to \
         {largest:e}, which leaves the pressure uncertain by a fraction {uncertainty:.1e}; narrow that range"
    )]
    IllConditioned {
        /// Smallest permeability.
        smallest: f64,
        /// Largest permeability.
        largest: f64,
        /// Relative change by the last refinement, infinite when the factorisation broke down.
        uncertainty: f64,
    },
}

/// The source `+strength` where both coordinates lie in the first eighth of the domain, `-strength` where both lie in
/// the last eighth, zero elsewhere, `[rows, cols]`.
pub fn corner_source(grid: &Grid, strength: f64) -> Vec<f64> {
    // In whole numbers, so that a node at exactly an eighth counts.
    let low = |i: usize, n: usize| 8 * i < n;
    let high = |i: usize, n: usize| 8 * (n - 1 - i) < n;
    let mut source = vec![0.0; grid.len()];
    for (node, value) in source.iter_mut().enumerate() {
        let (row, col) = (node / grid.cols(), node % grid.cols());
        if low(row, grid.rows()) && low(col, grid.cols()) {
            *value = strength;
        } else if high(row, grid.rows()) && high(col, grid.cols()) {
            *value = -strength;
        }
    }
    source
}

/// `K (p_xx + p_yy) + K_x p_x + K_y p_y + f` at every node, `[rows, cols]` like each argument.
pub fn residual(
    grid: &Grid,
    discretisation: Discretisation,
    permeability: &[f64],
    pressure: &[f64],
    source: &[f64],
) -> Result<Vec<f64>, DarcyError> {
    check_grid(grid)?;
    check_permeability(grid, permeability)?;
    check_finite(grid, "pressure", pressure)?;
    check_finite(grid, "source", source)?;
    let apply = |scheme, order, axis, field| {
        Matrix::on_grid(scheme, order, grid, axis).apply(axis, field, grid.rows(), grid.cols())
    };
    let mut residual = source.to_vec();
    for axis in AxisId::BOTH {
        let first = apply(discretisation.pressure_scheme(), Order::First, axis, pressure);
        let second = apply(discretisation.pressure_scheme(), Order::Second, axis, pressure);
        let slope = apply(Scheme::OneSided2, Order::First, axis, permeability);
        for (node, r) in residual.iter_mut().enumerate() {
            *r += permeability[node] * second[node] + slope[node] * first[node];
        }
    }
    Ok(residual)
}

/// The outward normal derivative of the pressure by one-sided stencils, one field `[rows, cols]` per axis, zero away
/// from the sides of that axis.
pub fn boundary_residual(grid: &Grid, pressure: &[f64]) -> Result<[Vec<f64>; 2], DarcyError> {
    check_grid(grid)?;
    check_finite(grid, "pressure", pressure)?;
    Ok(AxisId::BOTH.map(|axis| {
        let mut outward = Matrix::on_grid(Scheme::OneSided2, Order::First, grid, axis);
        let last = outward.size() - 1;
        outward.rows[0].iter_mut().for_each(|(_, v)| *v = -*v);
        outward.rows[1..last].iter_mut().for_each(Vec::clear);
        outward.apply(axis, pressure, grid.rows(), grid.cols())
    }))
}

/// One entry of a row of the system: the coefficient of the pressure at `node` is
/// `w₀ laplacian + w₁ dx + w₂ dy` with the row's weights `w = (K, K_x, K_y)`.
#[derive(Debug, Clone, Copy)]
struct Entry {
    node: usize,
    laplacian: f64,
    dx: f64,
    dy: f64,
}

/// Solves `∇·(K ∇p) + f = 0` without flux through the boundary for the pressure of zero trapezoid mean.
///
/// The least-squares solution comes from the normal equations `AᵀA p = -Aᵀf`: their sparsity pattern and its
/// factorisation's are found once, a solve only computes numbers (sparse Cholesky) and refines them with the residual
/// of the original system, which restores the digits that squaring the condition number costs.
pub struct DarcySolver {
    grid: Grid,
    permeability_slopes: [Matrix; 2],
    /// Rows of `A`: one per node, then those of the boundary condition.
    rows: Vec<Vec<Entry>>,
    /// Lower half of the pattern of `AᵀA`.
    normal: SymbolicSparseColMat<usize>,
    /// For each row and each pair of its entries (second not after first) where in `AᵀA` their product belongs.
    slots: Vec<usize>,
    /// Where in `AᵀA` the diagonal entry of the pinned node is.
    pinned_slot: usize,
    factor: SymbolicCholesky<usize>,
    /// Buffers of solves that have ended, for those to come on any thread.
    workspaces: Mutex<Vec<Workspace>>,
}

struct Workspace {
    /// Coefficients of `A`, row after row.
    coefficients: Vec<f64>,
    /// Values of `AᵀA`.
    normal: Vec<f64>,
    /// Values of its Cholesky factor.
    factor: Vec<f64>,
    memory: MemBuffer,
}

impl DarcySolver {
    /// Prepares solves on `grid`.
    pub fn new(grid: &Grid, discretisation: Discretisation) -> Result<Self, DarcyError> {
        check_grid(grid)?;
        let rows = system_rows(grid, discretisation);
        // Each product of two entries of a row, by its column and row in `AᵀA`.
        let products = rows.iter().flat_map(|row| pairs(row).map(|(a, b)| (row[b].node, row[a].node)));
        let products: Vec<(usize, usize)> = products.collect();
        let mut pattern = products.clone();
        pattern.sort_unstable();
        pattern.dedup();
        let slot = |place| pattern.binary_search(place).expect("every product is part of the pattern");
        let slots = products.iter().map(slot).collect();
        let centre = (grid.rows() / 2) * grid.cols() + grid.cols() / 2;
        let pinned_slot = slot(&(centre, centre));

        let n = grid.len();
        let mut starts = vec![0; n + 1];
        for &(col, _) in &pattern {
            starts[col + 1] += 1;
        }
        for col in 0..n {
            starts[col + 1] += starts[col];
        }
        let normal = SymbolicSparseColMat::new_checked(n, n, starts, None, pattern.iter().map(|p| p.1).collect());
        let order = elimination_order(grid);
        let mut position = vec![0; n];
        for (i, &node) in order.iter().enumerate() {
            position[node] = i;
        }
        let factor = factorize_symbolic_cholesky(
            normal.as_ref(),
            Side::Lower,
            SymmetricOrdering::Custom(PermRef::new_checked(&order, &position, n)),
            CholeskySymbolicParams {
                supernodal_flop_ratio_threshold: SupernodalThreshold::FORCE_SUPERNODAL,
                ..CholeskySymbolicParams::default()
            },
        )
        .expect("memory for the factorisation's pattern");
        Ok(Self {
            grid: grid.clone(),
            permeability_slopes: AxisId::BOTH.map(|axis| Matrix::on_grid(Scheme::OneSided2, Order::First, grid, axis)),
            rows,
            normal,
            slots,
            pinned_slot,
            factor,
            workspaces: Mutex::new(Vec::new()),
        })
    }

    /// The pressure of `permeability` and `source`, each `[rows, cols]`.
    ///
    /// Threads may share the solver; the result does not depend on what else runs.
    pub fn solve(&self, permeability: &[f64], source: &[f64]) -> Result<Vec<f64>, DarcyError> {
        check_permeability(&self.grid, permeability)?;
        check_finite(&self.grid, "source", source)?;
        let mut pool = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = pool.pop();
        drop(pool);
        let mut workspace = workspace.unwrap_or_else(|| self.workspace());
        let pressure = self.solve_with(&mut workspace, permeability, source);
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        pressure
    }

    fn workspace(&self) -> Workspace {
        let factorise = self.factor.factorize_numeric_llt_scratch::<f64>(Par::Seq, faer::prelude::default());
        let solve = self.factor.solve_in_place_scratch::<f64>(1, Par::Seq);
        Workspace {
            coefficients: vec![0.0; self.rows.iter().map(Vec::len).sum()],
            normal: vec![0.0; self.normal.row_idx().len()],
            factor: vec![0.0; self.factor.len_val()],
            memory: MemBuffer::new(factorise.or(solve)),
        }
    }

    fn solve_with(
        &self,
        workspace: &mut Workspace,
        permeability: &[f64],
        source: &[f64],
    ) -> Result<Vec<f64>, DarcyError> {
        let Workspace { coefficients, normal, factor, memory } = workspace;
        let stack = MemStack::new(memory);
        self.assemble(permeability, coefficients, normal);
        let ill_conditioned = |uncertainty| DarcyError::IllConditioned {
            smallest: permeability.iter().copied().fold(f64::INFINITY, f64::min),
            largest: permeability.iter().copied().fold(0.0, f64::max),
            uncertainty,
        };
        let factor = self
            .factor
            .factorize_numeric_llt(
                factor,
                SparseColMatRef::new(self.normal.as_ref(), normal),
                Side::Lower,
                LltRegularization::default(),
                Par::Seq,
                stack,
                faer::prelude::default(),
            )
            .map_err(|_| ill_conditioned(f64::INFINITY))?;

        let mut pressure = vec![0.0; self.grid.len()];
        let mut change = f64::INFINITY;
        for _ in 0..=MAX_REFINEMENTS {
            let mut correction = self.gradient(coefficients, &pressure, source);
            let column = MatMut::from_column_major_slice_mut(&mut correction, self.grid.len(), 1);
            factor.solve_in_place_with_conj(Conj::No, column, Par::Seq, stack);
            for (p, c) in pressure.iter_mut().zip(&correction) {
                *p += c;
            }
            let previous = change;
            change = largest(&correction) / largest(&pressure).max(f64::MIN_POSITIVE);
            // Rounding bounds how far refinement gets; stop where it no longer helps.
            if change <= CONVERGED || (change <= ACCEPTED && change > 0.5 * previous) {
                break;
            }
        }
        if change.is_nan() || change > ACCEPTED {
            return Err(ill_conditioned(change));
        }
        let mean = trapezoid_mean(&self.grid, &pressure);
        Ok(pressure.iter().map(|p| p - mean).collect())
    }

    /// Fills in the coefficients of `A` and the values of `AᵀA`, the latter with one node pinned.
    fn assemble(&self, permeability: &[f64], coefficients: &mut [f64], normal: &mut [f64]) {
        let [slope_x, slope_y] = AxisId::BOTH.map(|axis| {
            self.permeability_slopes[axis as usize].apply(axis, permeability, self.grid.rows(), self.grid.cols())
        });
        normal.fill(0.0);
        let mut slots = self.slots.iter();
        let mut rest = coefficients;
        for (i, row) in self.rows.iter().enumerate() {
            let (values, after) = rest.split_at_mut(row.len());
            rest = after;
            // Boundary rows come after those of the nodes and do not depend on the permeability.
            let (w0, w1, w2) = permeability.get(i).map_or((1.0, 0.0, 0.0), |&k| (k, slope_x[i], slope_y[i]));
            for (value, entry) in values.iter_mut().zip(row) {
                *value = w0 * entry.laplacian + w1 * entry.dx + w2 * entry.dy;
            }
            for ((a, b), &slot) in pairs(row).zip(&mut slots) {
                normal[slot] += values[a] * values[b];
            }
        }
        // A constant is no solution's concern (`A 1 = 0`), so adding `s pₖ²` to the least-squares objective makes
        // `AᵀA` invertible and only picks the solution with `pₖ = 0`.
        normal[self.pinned_slot] *= 2.0;
    }

    /// `Aᵀ(b - A p)` with `b = -f` in the rows of the nodes and 0 in those of the boundary.
    fn gradient(&self, coefficients: &[f64], pressure: &[f64], source: &[f64]) -> Vec<f64> {
        let mut gradient = vec![0.0; pressure.len()];
        let mut rest = coefficients;
        for (i, row) in self.rows.iter().enumerate() {
            let (values, after) = rest.split_at(row.len());
            rest = after;
            let product: f64 = row.iter().zip(values).map(|(entry, value)| value * pressure[entry.node]).sum();
            let defect = -source.get(i).copied().unwrap_or(0.0) - product;
            for (entry, value) in row.iter().zip(values) {
                gradient[entry.node] += value * defect;
            }
        }
        gradient
    }
}

/// Every pair of entries of a row, the second not after the first.
fn pairs(row: &[Entry]) -> impl Iterator<Item = (usize, usize)> + use<> {
    (0..row.len()).flat_map(|a| (0..=a).map(move |b| (a, b)))
}

/// The rows of `A`: one per node, then the boundary condition of [`Discretisation::OneSided`].
fn system_rows(grid: &Grid, discretisation: Discretisation) -> Vec<Vec<Entry>> {
    let matrix = |order, axis| Matrix::on_grid(discretisation.pressure_scheme(), order, grid, axis);
    let [first_x, first_y] = AxisId::BOTH.map(|axis| matrix(Order::First, axis));
    let [second_x, second_y] = AxisId::BOTH.map(|axis| matrix(Order::Second, axis));
    let cols = grid.cols();
    let mut rows: Vec<Vec<Entry>> = Vec::with_capacity(grid.len());
    for node in 0..grid.len() {
        let (i, j) = (node / cols, node % cols);
        let mut row = Vec::new();
        for (node, laplacian) in second_x.rows[i].iter().map(|&(k, v)| (k * cols + j, v)) {
            add(&mut row, Entry { node, laplacian, dx: 0.0, dy: 0.0 });
        }
        for (node, laplacian) in second_y.rows[j].iter().map(|&(k, v)| (i * cols + k, v)) {
            add(&mut row, Entry { node, laplacian, dx: 0.0, dy: 0.0 });
        }
        for (node, dx) in first_x.rows[i].iter().map(|&(k, v)| (k * cols + j, v)) {
            add(&mut row, Entry { node, laplacian: 0.0, dx, dy: 0.0 });
        }
        for (node, dy) in first_y.rows[j].iter().map(|&(k, v)| (i * cols + k, v)) {
            add(&mut row, Entry { node, laplacian: 0.0, dx: 0.0, dy });
        }
        row.sort_unstable_by_key(|entry| entry.node);
        rows.push(row);
    }
    if discretisation == Discretisation::OneSided {
        let entry = |node, coefficient| Entry { node, laplacian: coefficient, dx: 0.0, dy: 0.0 };
        for i in [0, grid.rows() - 1] {
            rows.extend((0..cols).map(|j| first_x.rows[i].iter().map(|&(k, v)| entry(k * cols + j, v)).collect()));
        }
        for j in [0, cols - 1] {
            let side = &first_y.rows[j];
            rows.extend((0..grid.rows()).map(|i| side.iter().map(|&(k, v)| entry(i * cols + k, v)).collect()));
        }
        // Mirrored stencils list their nodes in descending order.
        rows[grid.len()..].iter_mut().for_each(|row| row.sort_unstable_by_key(|entry| entry.node));
    }
    rows
}

/// Adds `entry` to a row that may already have one for the same node.
fn add(row: &mut Vec<Entry>, entry: Entry) {
    match row.iter_mut().find(|present| present.node == entry.node) {
        Some(present) => {
            present.laplacian += entry.laplacian;
            present.dx += entry.dx;
            present.dy += entry.dy;
        }
        None => row.push(entry),
    }
}

/// Nodes in an order that keeps the Cholesky factor of `AᵀA` sparse: nested dissection of the rectangle.
fn elimination_order(grid: &Grid) -> Vec<usize> {
    /// `AᵀA` couples nodes up to two apart, so two lines of nodes separate what lies on either side.
    const SEPARATOR: usize = 2;
    const SMALLEST: usize = 6;
    fn dissect(cols: usize, [top, bottom]: [usize; 2], [left, right]: [usize; 2], order: &mut Vec<usize>) {
        let (height, width) = (bottom - top, right - left);
        if height.max(width) <= SMALLEST {
            order.extend((top..bottom).flat_map(|i| (left..right).map(move |j| i * cols + j)));
        } else if height >= width {
            let cut = top + (height - SEPARATOR) / 2;
            dissect(cols, [top, cut], [left, right], order);
            dissect(cols, [cut + SEPARATOR, bottom], [left, right], order);
            order.extend((left..right).flat_map(|j| (cut..cut + SEPARATOR).map(move |i| i * cols + j)));
        } else {
            let cut = left + (width - SEPARATOR) / 2;
            dissect(cols, [top, bottom], [left, cut], order);
            dissect(cols, [top, bottom], [cut + SEPARATOR, right], order);
            order.extend((top..bottom).flat_map(|i| (cut..cut + SEPARATOR).map(move |j| i * cols + j)));
        }
    }
    let mut order = Vec::with_capacity(grid.len());
    dissect(grid.cols(), [0, grid.rows()], [0, grid.cols()], &mut order);
    order
}

/// Mean of a field `[rows, cols]` by the trapezoid rule.
fn trapezoid_mean(grid: &Grid, field: &[f64]) -> f64 {
    let weight = |i, n| if i == 0 || i == n - 1 { 0.5 } else { 1.0 };
    let sum: f64 = field
        .iter()
        .enumerate()
        .map(|(node, v)| weight(node / grid.cols(), grid.rows()) * weight(node % grid.cols(), grid.cols()) * v)
        .sum();
    sum / ((grid.rows() - 1) * (grid.cols() - 1)) as f64
}

fn largest(values: &[f64]) -> f64 {
    // `f64::max` would hide a NaN.
    values.iter().fold(0.0, |m, v| if v.abs() <= m { m } else { v.abs() })
}

fn check_grid(grid: &Grid) -> Result<(), DarcyError> {
    grid.check_for("the Darcy solver", Axis::has_end_nodes)?;
    if grid.rows() < MIN_NODES || grid.cols() < MIN_NODES {
        return Err(DarcyError::GridTooSmall { rows: grid.rows(), cols: grid.cols() });
    }
    Ok(())
}

fn check_length(grid: &Grid, field: &'static str, values: &[f64]) -> Result<(), DarcyError> {
    if values.len() != grid.len() {
        return Err(DarcyError::WrongLength { field, expected: grid.len(), found: values.len() });
    }
    Ok(())
}

fn check_permeability(grid: &Grid, permeability: &[f64]) -> Result<(), DarcyError> {
    check_length(grid, "permeability", permeability)?;
    match permeability.iter().position(|k| !(k.is_finite() && *k > 0.0)) {
        None => Ok(()),
        Some(node) => Err(DarcyError::BadPermeability {
            row: node / grid.cols(),
            col: node % grid.cols(),
            value: permeability[node],
        }),
    }
}

fn check_finite(grid: &Grid, field: &'static str, values: &[f64]) -> Result<(), DarcyError> {
    check_length(grid, field, values)?;
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(node) => {
            Err(DarcyError::NotFinite { field, row: node / grid.cols(), col: node % grid.cols(), value: values[node] })
        }
    }
}
