//! Rectangular grids with named axes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::function;

/// The name of the time axis; every other axis is one of space.
pub const TIME: &str = "t";

/// Most nodes along an axis: far beyond any field that fits into memory, so that products of sizes cannot overflow.
const MAX_NODES: usize = 1 << 24;

/// Points at equal distances along one coordinate: nodes or the centres of cells.
///
/// `first` and `last` are the ends of the domain. A periodic axis repeats itself after `last − first`, so a node at
/// `last` would be the one at `first` again and is left out.
///
/// | axis              | spacing h              | coordinate of point i |
/// |-------------------|------------------------|-----------------------|
/// | nodes             | (last − first) / (n−1) | first + i h           |
/// | nodes, periodic   | (last − first) / n     | first + i h           |
/// | cells             | (last − first) / n     | first + (i + ½) h     |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// The coordinate's name in formulas.
    pub name: String,
    /// Number of points n.
    pub nodes: usize,
    /// Coordinate at the first end of the domain.
    #[serde(default)]
    pub first: f64,
    /// Coordinate at the last end of the domain.
    #[serde(default = "one")]
    pub last: f64,
    /// Whether the domain's last end is its first end again.
    #[serde(default)]
    pub periodic: bool,
    /// Where the points lie.
    #[serde(default)]
    pub placement: Placement,
}

fn one() -> f64 {
    1.0
}

/// Where the points of an axis lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// At the ends of the domain and between them.
    #[default]
    Nodes,
    /// In the centres of equal cells, half a spacing inside the ends.
    Cells,
}

impl Axis {
    /// `nodes` ordinary nodes from `first` to `last`.
    pub fn new(name: &str, nodes: usize, first: f64, last: f64) -> Self {
        Self { name: name.to_owned(), nodes, first, last, periodic: false, placement: Placement::Nodes }
    }

    /// The axis made periodic.
    #[must_use]
    pub fn periodic(self) -> Self {
        Self { periodic: true, ..self }
    }

    /// The axis with points in the centres of cells.
    #[must_use]
    pub fn cells(self) -> Self {
        Self { placement: Placement::Cells, ..self }
    }

    /// Extent of the domain: last − first.
    pub fn length(&self) -> f64 {
        self.last - self.first
    }

    /// True for nodes that include both ends of the domain.
    pub fn has_end_nodes(&self) -> bool {
        self.placement == Placement::Nodes && !self.periodic
    }

    /// Number of spacings in the domain.
    fn steps(&self) -> f64 {
        // A single node has no neighbour: its spacing is the whole domain.
        (if self.has_end_nodes() { self.nodes.max(2) - 1 } else { self.nodes }) as f64
    }

    /// Distance h between neighbouring points.
    pub fn spacing(&self) -> f64 {
        self.length() / self.steps()
    }

    /// The coordinate of point `i`.
    pub fn coordinate(&self, i: usize) -> f64 {
        let offset = if self.placement == Placement::Cells { 0.5 } else { 0.0 };
        self.first + self.length() * (i as f64 + offset) / self.steps()
    }

    /// The share of the domain that each point stands for, `[n]`, summing to 1: half a spacing for nodes at the ends of
    /// the domain (the trapezoid rule), a whole spacing for every other point.
    pub fn weights(&self) -> Vec<f64> {
        let is_end = |i: usize| self.has_end_nodes() && self.nodes > 1 && (i == 0 || i == self.nodes - 1);
        (0..self.nodes).map(|i| if is_end(i) { 0.5 } else { 1.0 } / self.steps()).collect()
    }

    fn check(&self) -> Result<(), GridError> {
        let axis = self.name.clone();
        let mut letters = self.name.chars();
        let starts_well = letters.next().is_some_and(|c| c.is_alphabetic() || c == '_');
        if !starts_well || !letters.all(|c| c.is_alphanumeric() || c == '_') {
            return Err(GridError::BadName { axis });
        }
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return Err(GridError::NodeCount { axis, nodes: self.nodes });
        }
        let h = self.spacing();
        // Second derivatives divide by h².
        if !(self.first.is_finite() && self.last.is_finite() && h > 0.0 && (h * h).is_normal()) {
            return Err(GridError::Ends { axis, first: self.first, last: self.last });
        }
        Ok(())
    }
}

/// One of the two axes of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AxisId {
    /// The first axis: its points number the rows of a field.
    Rows,
    /// The second axis: its points number the columns of a field.
    Cols,
}

impl AxisId {
    /// Both axes in their order.
    pub const BOTH: [AxisId; 2] = [AxisId::Rows, AxisId::Cols];
}

/// Points of a rectangle: two axes, fields row-major `[axes[0].nodes, axes[1].nodes]`. Files list the axes.
///
/// A lone point (a "field" of one number per sample, as in the toy study) has no axes and is a 1 × 1 field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<Axis>", into = "Vec<Axis>")]
pub struct Grid {
    /// Two axes, or none.
    pub axes: Vec<Axis>,
}

/// Why a list of axes is no grid.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum GridError {
    /// Neither two axes nor none.
    #[error("a grid has two axes, or none for a lone point (found {found})")]
    AxisCount {
        /// Axes found.
        found: usize,
    },
    /// A name that formulas cannot contain.
    #[error("axis `{axis}`: the name must be made of letters, digits and `_` and not begin with a digit")]
    BadName {
        /// The axis.
        axis: String,
    },
    /// Two axes of one name.
    #[error("axis `{axis}`: both axes have this name")]
    SameName {
        /// The name.
        axis: String,
    },
    /// A name that means something else in formulas, or whose derivatives would.
    #[error("axis `{axis}`: `{taken}` already has a meaning in formulas")]
    NameTaken {
        /// The axis.
        axis: String,
        /// The name, or a derivative along the axis.
        taken: String,
    },
    /// No points, or absurdly many.
    #[error("axis `{axis}`: expected 1 to {MAX_NODES} nodes, found {nodes}")]
    NodeCount {
        /// The axis.
        axis: String,
        /// Nodes found.
        nodes: usize,
    },
    /// Ends that are reversed, equal, not finite or too close for second differences.
    #[error("axis `{axis}`: expected finite ends with first < last, found first {first} and last {last}")]
    Ends {
        /// The axis.
        axis: String,
        /// The first end.
        first: f64,
        /// The last end.
        last: f64,
    },
    /// Cells or a periodic axis where they will not do.
    #[error("axis `{axis}`: {user} cannot use {}", if *periodic { "a periodic axis" } else { "cells" })]
    Unsuitable {
        /// The axis.
        axis: String,
        /// What cannot use the axis.
        user: &'static str,
        /// Whether the axis is periodic; it has cells otherwise.
        periodic: bool,
    },
}

impl GridError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            GridError::SameName { .. } | GridError::NameTaken { .. } => "rename the axis",
            GridError::Ends { .. } => {
                "`first` and `last` are the ends of the domain; if the arrays run the other way, reverse them"
            }
            _ => return None,
        })
    }
}

impl TryFrom<Vec<Axis>> for Grid {
    type Error = GridError;

    fn try_from(axes: Vec<Axis>) -> Result<Self, GridError> {
        let grid = Self { axes };
        grid.check()?;
        Ok(grid)
    }
}

impl From<Grid> for Vec<Axis> {
    fn from(grid: Grid) -> Self {
        grid.axes
    }
}

impl Grid {
    /// `rows` × `cols` nodes on the unit square, axes x and y.
    pub fn unit(rows: usize, cols: usize) -> Self {
        Self { axes: vec![Axis::new("x", rows, 0.0, 1.0), Axis::new("y", cols, 0.0, 1.0)] }
    }

    /// The grid of a lone point.
    pub fn point() -> Self {
        Self { axes: Vec::new() }
    }

    /// Refuses axes that no field can live on or that formulas could not tell apart.
    pub fn check(&self) -> Result<(), GridError> {
        if !matches!(self.axes.len(), 0 | 2) {
            return Err(GridError::AxisCount { found: self.axes.len() });
        }
        self.axes.iter().try_for_each(Axis::check)?;
        if let [a, b] = &self.axes[..]
            && a.name == b.name
        {
            return Err(GridError::SameName { axis: a.name.clone() });
        }
        let mut known: Vec<String> = function::fixed_names().map(str::to_owned).collect();
        let names = self.axes.iter().map(|axis| (axis.name.clone(), axis.name.clone()));
        let derivatives = function::derivatives(self)
            .into_iter()
            .map(|(name, partial)| (self.axis(partial.inner).name.clone(), name));
        for (axis, name) in names.chain(derivatives) {
            if known.contains(&name) {
                return Err(GridError::NameTaken { axis, taken: name });
            }
            known.push(name);
        }
        Ok(())
    }

    /// Refuses axes that no field can live on, and those that `user` does not accept for being periodic or cells.
    pub(crate) fn check_for(&self, user: &'static str, accepts: impl Fn(&Axis) -> bool) -> Result<(), GridError> {
        self.check()?;
        match self.axes.iter().find(|axis| !accepts(axis)) {
            Some(Axis { name, periodic, .. }) => {
                Err(GridError::Unsuitable { axis: name.clone(), user, periodic: *periodic })
            }
            None => Ok(()),
        }
    }

    /// Number of points along the first axis.
    pub fn rows(&self) -> usize {
        self.nodes(AxisId::Rows)
    }

    /// Number of points along the second axis.
    pub fn cols(&self) -> usize {
        self.nodes(AxisId::Cols)
    }

    /// Number of points along an axis; 1 for a lone point.
    pub fn nodes(&self, axis: AxisId) -> usize {
        self.axes.get(axis as usize).map_or(1, |axis| axis.nodes)
    }

    /// Number of points of a field.
    pub fn len(&self) -> usize {
        self.rows() * self.cols()
    }

    /// True when the grid has no points.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for the grid of a lone point, which has no derivatives.
    pub fn is_point(&self) -> bool {
        self.len() == 1
    }

    /// An axis.
    ///
    /// # Panics
    /// If the grid is a lone point without axes.
    pub fn axis(&self, axis: AxisId) -> &Axis {
        &self.axes[axis as usize]
    }

    /// The axes of the grid: both, or none for a lone point.
    pub fn ids(&self) -> impl Iterator<Item = AxisId> + use<> {
        AxisId::BOTH.into_iter().take(self.axes.len())
    }

    /// The axes of space: all but the one called `t`.
    pub fn space(&self) -> impl Iterator<Item = AxisId> {
        self.ids().filter(|&axis| self.axis(axis).name != TIME)
    }

    /// The axis called `name`.
    pub fn find(&self, name: &str) -> Option<AxisId> {
        self.ids().find(|&axis| self.axis(axis).name == name)
    }

    /// Extent of the domain along an axis; 1 for a lone point.
    pub fn length(&self, axis: AxisId) -> f64 {
        self.axes.get(axis as usize).map_or(1.0, Axis::length)
    }

    /// Distance between neighbouring points along an axis; 1 for a lone point.
    pub fn spacing(&self, axis: AxisId) -> f64 {
        self.axes.get(axis as usize).map_or(1.0, Axis::spacing)
    }

    /// The coordinate of every point along an axis, row-major `[rows, cols]`; 0 for a lone point.
    pub fn coordinate(&self, axis: AxisId) -> Vec<f64> {
        let cols = self.cols();
        let at = |i: usize| self.axes.get(axis as usize).map_or(0.0, |axis| axis.coordinate(i));
        let along: Vec<f64> = (0..self.nodes(axis)).map(at).collect();
        let index = |node: usize| match axis {
            AxisId::Rows => node / cols,
            AxisId::Cols => node % cols,
        };
        (0..self.len()).map(|node| along[index(node)]).collect()
    }

    /// The share of the domain that each point stands for, row-major `[rows, cols]`, summing to 1.
    pub fn weights(&self) -> Vec<f64> {
        let [down, across] = AxisId::BOTH.map(|axis| self.axes.get(axis as usize).map_or(vec![1.0], Axis::weights));
        down.iter().flat_map(|a| across.iter().map(move |b| a * b)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(first: Axis, second: Axis) -> Grid {
        Grid { axes: vec![first, second] }
    }

    fn ordinary(name: &str) -> Axis {
        Axis::new(name, 5, 0.0, 1.0)
    }

    #[test]
    fn coordinates_and_weights_follow_from_placement_and_periodicity() {
        let axis = Axis::new("x", 4, 1.0, 3.0);
        let coordinates = |axis: &Axis| (0..4).map(|i| axis.coordinate(i)).collect::<Vec<_>>();
        assert_eq!(coordinates(&Axis::new("x", 4, 1.0, 2.5)), [1.0, 1.5, 2.0, 2.5]);
        assert_eq!(coordinates(&axis.clone().periodic()), [1.0, 1.5, 2.0, 2.5]);
        assert_eq!(coordinates(&axis.clone().cells()), [1.25, 1.75, 2.25, 2.75]);
        assert_eq!(coordinates(&axis.clone().cells().periodic()), [1.25, 1.75, 2.25, 2.75]);
        assert_eq!(axis.spacing(), 2.0 / 3.0);
        assert_eq!(axis.weights(), [0.5, 1.0, 1.0, 0.5].map(|w| w / 3.0));
        assert_eq!(axis.clone().cells().weights(), [0.25; 4]);
        assert_eq!(axis.periodic().weights(), [0.25; 4]);
        assert_eq!(Axis::new("x", 1, 0.0, 1.0).weights(), [1.0]);
        assert_eq!(Grid::point().weights(), [1.0]);
        let grid = grid(Axis::new("t", 2, 0.0, 3.0).cells(), Axis::new("x", 3, 0.0, 1.0));
        assert_eq!(grid.weights(), [0.125, 0.25, 0.125, 0.125, 0.25, 0.125]);
        assert_eq!(grid.coordinate(AxisId::Rows), [0.75, 0.75, 0.75, 2.25, 2.25, 2.25]);
        assert_eq!(grid.coordinate(AxisId::Cols), [0.0, 0.5, 1.0, 0.0, 0.5, 1.0]);
        assert_eq!(grid.space().collect::<Vec<_>>(), [AxisId::Cols]);
        assert_eq!((grid.find("t"), grid.find("y")), (Some(AxisId::Rows), None));
        assert_eq!((grid.rows(), grid.cols(), grid.len(), grid.is_point()), (2, 3, 6, false));
        assert_eq!((Grid::point().rows(), Grid::point().len(), Grid::point().is_point()), (1, 1, true));
    }

    #[test]
    fn bad_axes_are_refused_by_name() {
        let message = |first: Axis, second: Axis| grid(first, second).check().expect_err("a bad grid").to_string();
        let with_ends = |first, last| message(Axis::new("time", 5, first, last), ordinary("x"));
        for (first, last) in [(1.0, 1.0), (2.0, 1.0), (0.0, f64::NAN), (f64::NEG_INFINITY, 0.0), (0.0, 1e-300)] {
            let expected =
                format!("axis `time`: expected finite ends with first < last, found first {first} and last {last}");
            assert_eq!(with_ends(first, last), expected);
        }
        let no_nodes = message(ordinary("x"), Axis::new("y", 0, 0.0, 1.0));
        assert_eq!(no_nodes, "axis `y`: expected 1 to 16777216 nodes, found 0");
        assert!(matches!(
            Grid::unit(usize::MAX, usize::MAX).check(),
            Err(GridError::NodeCount { nodes: usize::MAX, .. })
        ));
        assert!(message(ordinary("x"), ordinary("x")).contains("both axes have this name"));
        for name in ["", "2x", "a b", "x-y", "∂"] {
            assert!(matches!(grid(ordinary(name), ordinary("y")).check(), Err(GridError::BadName { .. })), "{name}");
        }
        // `div` and `dot` would be derivatives along `iv` and `ot`, `dxx` the derivative along `xx` or the second one.
        for (axis, other, taken) in [
            ("sin", "y", "sin"),
            ("pi", "y", "pi"),
            ("iv", "y", "div"),
            ("ot", "y", "dot"),
            ("xx", "x", "dxx"),
            ("dx", "x", "dx"),
        ] {
            let found = grid(ordinary(other), ordinary(axis)).check();
            assert!(matches!(&found, Err(GridError::NameTaken { taken: name, .. }) if name == taken), "{found:?}");
        }
        assert_eq!(Grid { axes: vec![ordinary("x")] }.check(), Err(GridError::AxisCount { found: 1 }));
        assert_eq!(Grid::point().check(), Ok(()));
        assert_eq!(grid(ordinary("t"), Axis::new("θ_1", 1, -1.0, 1e-9).cells()).check(), Ok(()));
    }
}
