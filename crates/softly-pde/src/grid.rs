//! Rectangular grids of nodes, boundary included.

use serde::{Deserialize, Serialize};

/// Nodes of a rectangle. x runs along the first axis (rows), y along the second (columns).
///
/// A lone point (a "field" of one number per sample, as in the toy study) is a grid of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// Nodes along x.
    pub rows: usize,
    /// Nodes along y.
    pub cols: usize,
    /// First and last coordinate along x.
    #[serde(default = "unit_interval")]
    pub x: [f64; 2],
    /// First and last coordinate along y.
    #[serde(default = "unit_interval")]
    pub y: [f64; 2],
}

fn unit_interval() -> [f64; 2] {
    [0.0, 1.0]
}

/// The axis that a derivative runs along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// The first axis (rows), coordinate x.
    X,
    /// The second axis (columns), coordinate y.
    Y,
}

impl Grid {
    /// A grid of `rows` × `cols` nodes on the unit square.
    pub fn unit(rows: usize, cols: usize) -> Self {
        Self { rows, cols, x: unit_interval(), y: unit_interval() }
    }

    /// The grid of a lone point.
    pub fn point() -> Self {
        Self::unit(1, 1)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// True when the grid has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for the grid of a lone point, which has no derivatives.
    pub fn is_point(&self) -> bool {
        self.len() == 1
    }

    /// Number of nodes along `axis`.
    pub fn nodes(&self, axis: Axis) -> usize {
        match axis {
            Axis::X => self.rows,
            Axis::Y => self.cols,
        }
    }

    /// First and last coordinate along `axis`.
    pub fn ends(&self, axis: Axis) -> [f64; 2] {
        match axis {
            Axis::X => self.x,
            Axis::Y => self.y,
        }
    }

    /// Distance between neighbouring nodes along `axis`.
    pub fn spacing(&self, axis: Axis) -> f64 {
        let [first, last] = self.ends(axis);
        (last - first) / (self.nodes(axis).max(2) - 1) as f64
    }

    /// The coordinate of every node along `axis`, row-major `[rows, cols]`.
    pub fn coordinate(&self, axis: Axis) -> Vec<f64> {
        let [first, last] = self.ends(axis);
        let steps = (self.nodes(axis).max(2) - 1) as f64;
        let at = |i: usize| first + (last - first) * i as f64 / steps;
        (0..self.len())
            .map(|node| match axis {
                Axis::X => at(node / self.cols),
                Axis::Y => at(node % self.cols),
            })
            .collect()
    }
}
