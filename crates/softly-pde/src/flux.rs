//! Face matrices: ∂ₓ(K ∂ₓp) as a difference of fluxes through the faces between neighbouring points.
//!
//! ```text
//! divgrad(K, p) = D (face(K) · G p)  +  K · (E₂ p) + (E₁ K) · (E₁ p)
//! ```
//!
//! Face i lies between points i and i+1, so that a field of n points and its n faces (the last one joins the ends of a
//! periodic axis and is empty otherwise) both have length n. G differentiates from points to faces and D from faces to
//! points; face(K) is the arithmetic mean, or the harmonic mean 2ab/(a+b) of both neighbours. The second part stands
//! at the ends of the axis where a scheme has no flux to use.
//!
//! | scheme             | ends                                                                                 |
//! |--------------------|--------------------------------------------------------------------------------------|
//! | mirror             | no flux through the ends; an end node has half a cell, which doubles its difference  |
//! | zero               | the flux to the zero outside, K as at the outermost point                            |
//! | one-sided-2        | K p″ + K′ p′ with one-sided stencils at the outermost point                          |
//! | one-sided-4        | the same at the three outermost points                                               |
//! | periodic, spectral | none                                                                                 |
//!
//! The order is the scheme's own with the arithmetic mean (fourth-order and trigonometric interpolation to faces), two
//! with the harmonic mean.

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::derivative::{Order, Scheme};
use crate::grid::{Axis, Placement};
use crate::matrix::Matrix;

/// How K is averaged to faces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaceMean {
    /// (a + b)/2.
    Arithmetic,
    /// 2ab/(a + b), the exact mean where K jumps at the face.
    Harmonic,
}

impl FaceMean {
    /// The mean of both neighbours.
    pub fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Arithmetic => 0.5 * (a + b),
            Self::Harmonic => 2.0 * a * b / (a + b),
        }
    }
}

/// Difference and mean between the points around a face, for unit spacing.
struct FaceStencil {
    slope: &'static [f64],
    mean: &'static [f64],
}

const SECOND_ORDER: FaceStencil = FaceStencil { slope: &[-1.0, 1.0], mean: &[0.5, 0.5] };

const FOURTH_ORDER: FaceStencil = FaceStencil {
    slope: &[1.0 / 24.0, -27.0 / 24.0, 27.0 / 24.0, -1.0 / 24.0],
    mean: &[-1.0 / 16.0, 9.0 / 16.0, 9.0 / 16.0, -1.0 / 16.0],
};

impl Scheme {
    fn faces(self) -> FaceStencil {
        if matches!(self, Scheme::OneSided4 | Scheme::Periodic4) { FOURTH_ORDER } else { SECOND_ORDER }
    }

    /// Points at each end that get the one-sided expansion instead of a difference of fluxes.
    fn expanded(self) -> usize {
        match self {
            Scheme::OneSided2 => 1,
            Scheme::OneSided4 => 3,
            _ => 0,
        }
    }

    /// Which of E₁ and E₂ the ends of the axis need.
    pub(crate) fn end_orders(self) -> &'static [Order] {
        match self {
            Scheme::OneSided2 | Scheme::OneSided4 => &[Order::First, Order::Second],
            Scheme::Zero => &[Order::Second],
            _ => &[],
        }
    }
}

impl Matrix {
    /// G, from points to faces: (Gp)ᵢ = p′ at face i.
    pub(crate) fn face_slope(scheme: Scheme, axis: &Axis) -> Self {
        let rows = (0..axis.nodes).map(|i| match scheme {
            Scheme::Spectral => spectral_face_row(i, axis.nodes, true),
            _ => face_row(scheme.faces().slope, scheme, i, axis),
        });
        Self::new(rows, 1.0 / axis.spacing())
    }

    /// From points to faces: the mean of the neighbours, of the scheme's order.
    pub(crate) fn face_mean(scheme: Scheme, axis: &Axis) -> Self {
        let rows = (0..axis.nodes).map(|i| match scheme {
            Scheme::Spectral => spectral_face_row(i, axis.nodes, false),
            _ => face_row(scheme.faces().mean, scheme, i, axis),
        });
        Self::new(rows, 1.0)
    }

    /// From points to faces: the value at the face's second neighbour i+1; at an empty face the first neighbour's,
    /// which keeps means of both finite.
    pub(crate) fn face_ahead(scheme: Scheme, axis: &Axis) -> Self {
        let n = axis.nodes;
        let ahead = |i: usize| {
            if i + 1 < n {
                i + 1
            } else if scheme.is_periodic() {
                0
            } else {
                i
            }
        };
        Self::new((0..n).map(|i| vec![(ahead(i), 1.0)]), 1.0)
    }

    /// D, from faces to points: −W⁻¹Gᵀ, with W = ½ for the half cells of end nodes under `mirror` and 1 elsewhere;
    /// empty rows where the one-sided expansion stands.
    pub(crate) fn face_divergence(scheme: Scheme, axis: &Axis) -> Self {
        let n = axis.nodes;
        let half_cells = scheme == Scheme::Mirror && axis.placement == Placement::Nodes;
        let transposed = Self::face_slope(scheme, axis).transposed();
        let rows = transposed.rows.into_iter().enumerate().map(|(i, row)| {
            let from_end = i.min(n - 1 - i);
            let factor = if half_cells && from_end == 0 { -2.0 } else { -1.0 };
            if from_end < scheme.expanded() {
                Vec::new()
            } else {
                row.into_iter().map(|(j, v)| (j, factor * v)).collect()
            }
        });
        Self::new(rows, 1.0)
    }

    /// E₁ or E₂: the derivative at the ends of the axis, zero elsewhere.
    pub(crate) fn at_ends(scheme: Scheme, order: Order, axis: &Axis) -> Self {
        let n = axis.nodes;
        let from_end = |i: usize| i.min(n - 1 - i);
        if scheme == Scheme::Zero {
            // From the outermost point, zero is one spacing away with nodes and half a spacing with cells.
            let slope = if axis.placement == Placement::Cells { -2.0 } else { -1.0 };
            let rows = (0..n).map(|i| if from_end(i) == 0 { vec![(i, slope)] } else { Vec::new() });
            return Self::new(rows, axis.spacing().powi(-2));
        }
        let mut matrix = Self::derivative(scheme, order, axis);
        for (i, row) in matrix.rows.iter_mut().enumerate() {
            if from_end(i) >= scheme.expanded() {
                row.clear();
            }
        }
        matrix
    }
}

/// A stencil of even length around face `i`, between points i and i+1; empty where it would reach beyond the ends.
fn face_row(stencil: &[f64], scheme: Scheme, i: usize, axis: &Axis) -> Vec<(usize, f64)> {
    let first = i as isize + 1 - (stencil.len() / 2) as isize;
    let inside = |j: isize| (0..axis.nodes as isize).contains(&j);
    let fits = inside(first) && inside(first + stencil.len() as isize - 1);
    if !fits && !scheme.is_periodic() {
        return Vec::new();
    }
    let point = |k: usize| (first + k as isize).rem_euclid(axis.nodes as isize) as usize;
    stencil.iter().enumerate().map(|(k, &v)| (point(k), v)).collect()
}

/// Value or slope at face `i` of the trigonometric polynomial through n values with unit spacing.
///
/// The polynomial through a single 1 is S(x) = sin(πx) / (n tan(πx/n)) for even n and sin(πx) / (n sin(πx/n)) for odd
/// n; half-way between points sin(πx) = ±1 and cos(πx) = 0.
fn spectral_face_row(i: usize, n: usize, slope: bool) -> Vec<(usize, f64)> {
    let size = n as f64;
    let entry = |j: usize| {
        let k = i as isize - j as isize;
        let angle = PI * (k as f64 + 0.5) / size;
        let sign = if k.rem_euclid(2) == 0 { 1.0 } else { -1.0 };
        let cosine = if n.is_multiple_of(2) { 1.0 } else { angle.cos() };
        let value = match (slope, n.is_multiple_of(2)) {
            (true, _) => -sign * PI * cosine / (size * angle.sin()).powi(2),
            (false, true) => sign / (size * angle.tan()),
            (false, false) => sign / (size * angle.sin()),
        };
        (j, value)
    };
    (0..n).map(entry).collect()
}
