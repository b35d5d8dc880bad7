//! Derivatives as matrices applied along one axis.
//!
//! A stencil, its boundary rule and its periodicity are all just a matrix; the adjoint is the transpose. Formulas
//! and solvers share these definitions.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::grid::{Axis, AxisId, Grid, Placement};
use crate::matrix::Matrix;

/// How a derivative is taken along an axis, and what it assumes beyond the ends of the domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Central differences, second-order one-sided ones at the outermost points (the stencils of PIDM).
    #[serde(rename = "one-sided-2")]
    OneSided2,
    /// Fourth-order central differences, fourth-order one-sided ones at the two outermost points of each end.
    #[serde(rename = "one-sided-4")]
    OneSided4,
    /// Central differences of a field mirrored at the ends: no flux. Nodes are mirrored at the end node, u₋₁ = u₁,
    /// cells at the end of the domain, u₋₁ = u₀.
    Mirror,
    /// Central differences of a field that is zero outside: u₋₁ = 0 beyond the end node; with cells the field is zero
    /// at the end of the domain, u₋₁ = −u₀.
    Zero,
    /// Central differences on a periodic axis.
    Periodic,
    /// Fourth-order central differences on a periodic axis.
    #[serde(rename = "periodic-4")]
    Periodic4,
    /// Fourier differentiation on a periodic axis.
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

/// Why a scheme cannot be used along an axis.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SchemeError {
    /// A periodic scheme where nothing repeats.
    #[error("stencil `{scheme}` is for periodic axes, and axis `{axis}` is not periodic")]
    NotPeriodic {
        /// The axis.
        axis: String,
        /// The scheme.
        scheme: Scheme,
    },
    /// A scheme with ends where there are none.
    #[error("stencil `{scheme}` is for axes with ends, and axis `{axis}` is periodic")]
    Periodic {
        /// The axis.
        axis: String,
        /// The scheme.
        scheme: Scheme,
    },
    /// An axis with fewer points than the stencil.
    #[error("stencil `{scheme}` needs at least {needed} nodes along `{axis}` (the grid has {found})")]
    TooFewNodes {
        /// The axis.
        axis: String,
        /// The scheme.
        scheme: Scheme,
        /// Nodes needed.
        needed: usize,
        /// Nodes found.
        found: usize,
    },
}

impl SchemeError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            SchemeError::NotPeriodic { axis, .. } => {
                format!(
                    "mark the axis `periodic = true` if the data are, or use stencil = {{ {axis} = \"one-sided-2\" }}"
                )
            }
            SchemeError::Periodic { axis, .. } => format!("use stencil = {{ {axis} = \"periodic\" }}"),
            SchemeError::TooFewNodes { .. } => "use a finer grid or another scheme".into(),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, scheme)| scheme == self).map_or("", |(name, _)| name))
    }
}

impl Scheme {
    /// Every scheme with its name in configuration files.
    pub const ALL: [(&'static str, Scheme); 7] = [
        ("one-sided-2", Scheme::OneSided2),
        ("one-sided-4", Scheme::OneSided4),
        ("mirror", Scheme::Mirror),
        ("zero", Scheme::Zero),
        ("periodic", Scheme::Periodic),
        ("periodic-4", Scheme::Periodic4),
        ("spectral", Scheme::Spectral),
    ];

    /// The scheme that assumes nothing but what the axis says.
    pub fn default_for(axis: &Axis) -> Self {
        if axis.periodic { Scheme::Periodic } else { Scheme::OneSided2 }
    }

    /// Whether the scheme is one for periodic axes.
    pub fn is_periodic(self) -> bool {
        matches!(self, Scheme::Periodic | Scheme::Periodic4 | Scheme::Spectral)
    }

    /// Fewest points along an axis that the scheme's stencils fit on.
    pub fn min_nodes(self) -> usize {
        match self {
            Scheme::OneSided2 => 4,
            Scheme::OneSided4 => 6,
            Scheme::Mirror | Scheme::Zero => 2,
            Scheme::Periodic | Scheme::Spectral => 3,
            Scheme::Periodic4 => 5,
        }
    }

    /// Refuses an axis that the scheme does not fit.
    pub fn check(self, axis: &Axis) -> Result<(), SchemeError> {
        let (scheme, name) = (self, axis.name.clone());
        match (self.is_periodic(), axis.periodic) {
            (true, false) => return Err(SchemeError::NotPeriodic { axis: name, scheme }),
            (false, true) => return Err(SchemeError::Periodic { axis: name, scheme }),
            _ => {}
        }
        let (needed, found) = (self.min_nodes(), axis.nodes);
        if found < needed {
            return Err(SchemeError::TooFewNodes { axis: name, scheme, needed, found });
        }
        Ok(())
    }

    /// The point that stands for index `j`, which may lie outside the axis, and the factor on its value; none where the
    /// field is zero.
    pub(crate) fn ghost(self, axis: &Axis, j: isize) -> Option<(usize, f64)> {
        let n = axis.nodes as isize;
        if self.is_periodic() {
            return Some((j.rem_euclid(n) as usize, 1.0));
        }
        if (0..n).contains(&j) {
            return Some((j as usize, 1.0));
        }
        let at_node = if j < 0 { -j } else { 2 * n - 2 - j } as usize;
        let at_face = if j < 0 { -1 - j } else { 2 * n - 1 - j } as usize;
        match (self, axis.placement) {
            (Scheme::Mirror, Placement::Nodes) => Some((at_node, 1.0)),
            (Scheme::Mirror, Placement::Cells) => Some((at_face, 1.0)),
            (Scheme::Zero, Placement::Cells) => Some((at_face, -1.0)),
            _ => None,
        }
    }
}

impl Matrix {
    /// The derivative matrix `[n, n]` along `axis`.
    ///
    /// # Panics
    /// If the scheme does not fit the axis (see [`Scheme::check`]).
    pub fn derivative(scheme: Scheme, order: Order, axis: &Axis) -> Self {
        scheme.check(axis).unwrap_or_else(|error| panic!("{error}"));
        let (n, h) = (axis.nodes, axis.spacing());
        let rows = (0..n).map(|i| match scheme {
            Scheme::OneSided2 | Scheme::OneSided4 => one_sided_row(scheme, order, i, axis),
            Scheme::Spectral => spectral_row(order, i, n),
            _ => centred_row(central(scheme, order), i, |j| scheme.ghost(axis, j)),
        });
        let scale = match order {
            Order::First => 1.0 / h,
            Order::Second => 1.0 / (h * h),
        };
        Self::new(rows, scale)
    }

    /// The derivative matrix along `axis` of `grid`.
    pub fn on_grid(scheme: Scheme, order: Order, grid: &Grid, axis: AxisId) -> Self {
        Self::derivative(scheme, order, grid.axis(axis))
    }
}

/// The central stencil of a scheme for unit spacing.
fn central(scheme: Scheme, order: Order) -> &'static [f64] {
    let fourth = matches!(scheme, Scheme::OneSided4 | Scheme::Periodic4);
    match (order, fourth) {
        (Order::First, false) => &[-0.5, 0.0, 0.5],
        (Order::Second, false) => &[1.0, -2.0, 1.0],
        (Order::First, true) => &[1.0 / 12.0, -2.0 / 3.0, 0.0, 2.0 / 3.0, -1.0 / 12.0],
        (Order::Second, true) => &[-1.0 / 12.0, 4.0 / 3.0, -2.5, 4.0 / 3.0, -1.0 / 12.0],
    }
}

/// The stencils of the outermost points, outermost first, for unit spacing at the first end.
fn edges(scheme: Scheme, order: Order) -> &'static [&'static [f64]] {
    match (scheme, order) {
        (Scheme::OneSided4, Order::First) => {
            &[&[-25.0 / 12.0, 4.0, -3.0, 4.0 / 3.0, -0.25], &[-0.25, -5.0 / 6.0, 1.5, -0.5, 1.0 / 12.0]]
        }
        (Scheme::OneSided4, Order::Second) => &[
            &[3.75, -77.0 / 6.0, 107.0 / 6.0, -13.0, 61.0 / 12.0, -5.0 / 6.0],
            &[5.0 / 6.0, -1.25, -1.0 / 3.0, 7.0 / 6.0, -0.5, 1.0 / 12.0],
        ],
        (_, Order::First) => &[&[-1.5, 2.0, -0.5]],
        (_, Order::Second) => &[&[2.0, -5.0, 4.0, -1.0]],
    }
}

/// One-sided stencils at the outermost points, central ones elsewhere.
fn one_sided_row(scheme: Scheme, order: Order, i: usize, axis: &Axis) -> Vec<(usize, f64)> {
    let (edges, last) = (edges(scheme, order), axis.nodes - 1);
    if let Some(edge) = edges.get(i) {
        return edge.iter().copied().enumerate().collect();
    }
    if let Some(edge) = edges.get(last - i) {
        // Mirroring a stencil flips the sign of odd derivatives.
        let sign = if order == Order::First { -1.0 } else { 1.0 };
        return edge.iter().enumerate().map(|(k, v)| (last - k, sign * v)).collect();
    }
    centred_row(central(scheme, order), i, |j| scheme.ghost(axis, j))
}

/// The entries of a `stencil` of odd length around point `i`; `ghost` says which point with which factor stands for an
/// index.
fn centred_row(stencil: &[f64], i: usize, ghost: impl Fn(isize) -> Option<(usize, f64)>) -> Vec<(usize, f64)> {
    let first = i as isize - (stencil.len() / 2) as isize;
    let entry = |(k, v): (usize, &f64)| ghost(first + k as isize).map(|(j, factor)| (j, factor * v));
    stencil.iter().enumerate().filter_map(entry).collect()
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
