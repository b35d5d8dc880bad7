//! Parts of a grid where an equation holds.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::grid::{AxisId, Grid};
use crate::nearest::nearest;

/// A set of points, written `all`, `interior`, `border`, `t=first`, `x=last`, …
///
/// A periodic axis has no ends: interior and border look at the other axes only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Region {
    /// Every point.
    #[default]
    All,
    /// Every point but the outermost ones.
    Interior,
    /// The outermost points.
    Border,
    /// The outermost points at one end of an axis.
    End {
        /// Name of the axis.
        axis: String,
        /// First or last.
        end: End,
    },
}

/// An end of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// Where the coordinate is smallest.
    First,
    /// Where the coordinate is largest.
    Last,
}

/// Why a region is none.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RegionError {
    /// Text that names no region.
    #[error("`{found}` is no region: expected all, interior, border, or an end of an axis such as t=first or x=last{}",
        old_name(found).map_or(String::new(), |end| format!(" (instead of `{found}` write {end})")))]
    Unknown {
        /// The text.
        found: String,
    },
    /// The end of an axis that the grid does not have.
    #[error("region `{region}`: there is no axis `{axis}`, the axes are {}", known.join(" and "))]
    UnknownAxis {
        /// The region.
        region: Region,
        /// The axis.
        axis: String,
        /// The axes that there are.
        known: Vec<String>,
    },
    /// The end of a periodic axis.
    #[error("region `{region}`: axis `{axis}` is periodic and has no ends")]
    PeriodicAxis {
        /// The region.
        region: Region,
        /// The axis.
        axis: String,
    },
    /// A region without points.
    #[error("region `{region}` has no points on this grid")]
    Empty {
        /// The region.
        region: Region,
    },
}

/// What a side of the picture is called now: rows run downwards, columns to the right.
fn old_name(found: &str) -> Option<&'static str> {
    match found {
        "top" => Some("the first axis' first end: x=first unless the axis has another name"),
        "bottom" => Some("the first axis' last end: x=last unless the axis has another name"),
        "left" => Some("the second axis' first end: y=first unless the axis has another name"),
        "right" => Some("the second axis' last end: y=last unless the axis has another name"),
        _ => None,
    }
}

impl RegionError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            RegionError::UnknownAxis { axis, known, .. } => {
                nearest(axis, known.iter().map(String::as_str)).map(|near| format!("did you mean `{near}`?"))
            }
            RegionError::PeriodicAxis { axis, .. } => {
                Some(format!("`at(u, {axis}=0)` in a formula gives the values at one place"))
            }
            RegionError::Unknown { .. } | RegionError::Empty { .. } => None,
        }
    }
}

impl FromStr for Region {
    type Err = RegionError;

    fn from_str(text: &str) -> Result<Self, RegionError> {
        let end = |end: &str| match end.trim() {
            "first" => Some(End::First),
            "last" => Some(End::Last),
            _ => None,
        };
        match text.trim() {
            "all" => Some(Region::All),
            "interior" => Some(Region::Interior),
            "border" => Some(Region::Border),
            other => other.split_once('=').and_then(|(axis, place)| {
                let axis = axis.trim();
                (!axis.is_empty()).then_some(())?;
                Some(Region::End { axis: axis.to_owned(), end: end(place)? })
            }),
        }
        .ok_or_else(|| RegionError::Unknown { found: text.to_owned() })
    }
}

impl TryFrom<String> for Region {
    type Error = RegionError;

    fn try_from(text: String) -> Result<Self, RegionError> {
        text.parse()
    }
}

impl From<Region> for String {
    fn from(region: Region) -> Self {
        region.to_string()
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Region::All => f.write_str("all"),
            Region::Interior => f.write_str("interior"),
            Region::Border => f.write_str("border"),
            Region::End { axis, end: End::First } => write!(f, "{axis}=first"),
            Region::End { axis, end: End::Last } => write!(f, "{axis}=last"),
        }
    }
}

impl Region {
    /// Whether each point belongs to the region, row-major `[rows, cols]`; at least one does.
    pub fn mask(&self, grid: &Grid) -> Result<Vec<bool>, RegionError> {
        let end_axis = match self {
            Region::End { axis, .. } => Some(self.axis(axis, grid)?),
            _ => None,
        };
        let inside = |node: usize| {
            let index = |axis| match axis {
                AxisId::Rows => node / grid.cols(),
                AxisId::Cols => node % grid.cols(),
            };
            let at = |axis, end| match end {
                End::First => index(axis) == 0,
                End::Last => index(axis) + 1 == grid.nodes(axis),
            };
            let on_border = || {
                let mut with_ends = grid.ids().filter(|&axis| !grid.axis(axis).periodic);
                with_ends.any(|axis| at(axis, End::First) || at(axis, End::Last))
            };
            match (self, end_axis) {
                (Region::End { end, .. }, Some(axis)) => at(axis, *end),
                (Region::Interior, _) => !on_border(),
                (Region::Border, _) => on_border(),
                _ => true,
            }
        };
        let mask: Vec<bool> = (0..grid.len()).map(inside).collect();
        if mask.contains(&true) { Ok(mask) } else { Err(RegionError::Empty { region: self.clone() }) }
    }

    /// The axis called `name`, if it has ends.
    fn axis(&self, name: &str, grid: &Grid) -> Result<AxisId, RegionError> {
        let (region, axis) = (self.clone(), name.to_owned());
        match grid.find(name) {
            None => {
                let known = grid.axes.iter().map(|axis| axis.name.clone()).collect();
                Err(RegionError::UnknownAxis { region, axis, known })
            }
            Some(id) if grid.axis(id).periodic => Err(RegionError::PeriodicAxis { region, axis }),
            Some(id) => Ok(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Axis;

    fn region(text: &str) -> Region {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn mask(text: &str, grid: &Grid) -> String {
        let mask = region(text).mask(grid).unwrap_or_else(|error| panic!("{error}"));
        mask.iter().map(|&inside| if inside { '#' } else { '.' }).collect()
    }

    #[test]
    fn regions_are_sets_of_points() {
        let grid = Grid::unit(3, 4);
        assert_eq!(mask("all", &grid), "############");
        assert_eq!(mask("interior", &grid), ".....##.....");
        assert_eq!(mask("border", &grid), "#####..#####");
        assert_eq!(mask("x=first", &grid), "####........");
        assert_eq!(mask("x=last", &grid), "........####");
        assert_eq!(mask(" y = first ", &grid), "#...#...#...");
        assert_eq!(mask("y=last", &grid), "...#...#...#");
        // Nothing ends along a periodic axis.
        let tube = Grid { axes: vec![Axis::new("t", 3, 0.0, 1.0), Axis::new("x", 2, 0.0, 1.0).periodic()] };
        assert_eq!(mask("interior", &tube), "..##..");
        assert_eq!(mask("border", &tube), "##..##");
        assert_eq!(mask("t=first", &tube), "##....");
        assert_eq!(mask("all", &Grid::point()), "#");
        assert_eq!(mask("interior", &Grid::point()), "#");
    }

    #[test]
    fn regions_are_read_as_they_are_shown() {
        for text in ["all", "interior", "border", "t=first", "x_1=last"] {
            assert_eq!(region(text).to_string(), text);
            assert_eq!(String::from(region(text)), text);
        }
    }

    #[test]
    fn wrong_regions_are_refused_with_a_way_out() {
        let message = |text: &str| text.parse::<Region>().unwrap_err().to_string();
        assert!(message("inside").starts_with("`inside` is no region: expected all, interior, border, or an end"));
        assert!(message("left").contains("instead of `left` write the second axis' first end: y=first"));
        assert!(message("bottom").contains("x=last"));
        for text in ["", "x=", "=first", "x=middle", "x"] {
            assert!(matches!(text.parse::<Region>(), Err(RegionError::Unknown { .. })), "{text}");
        }
        let tube = Grid { axes: vec![Axis::new("time", 3, 0.0, 1.0), Axis::new("x", 2, 0.0, 1.0).periodic()] };
        let error = region("tim=first").mask(&tube).unwrap_err();
        assert_eq!(error.to_string(), "region `tim=first`: there is no axis `tim`, the axes are time and x");
        assert_eq!(error.hint().as_deref(), Some("did you mean `time`?"));
        let error = region("x=last").mask(&tube).unwrap_err();
        assert_eq!(error.to_string(), "region `x=last`: axis `x` is periodic and has no ends");
        let error = region("interior").mask(&Grid::unit(2, 9)).unwrap_err();
        assert_eq!(error.to_string(), "region `interior` has no points on this grid");
    }
}
