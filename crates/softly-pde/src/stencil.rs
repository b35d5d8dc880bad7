//! Schemes as configuration files name them: one for all axes, or one per axis.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::derivative::Scheme;
use crate::grid::Grid;
use crate::nearest::nearest;

/// `"mirror"`, or `{ t = "one-sided-2", x = "periodic" }` with the default for axes that are not named.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a stencil (one-sided-2, one-sided-4, mirror, zero, periodic, periodic-4 or spectral) or one \
                 per axis, such as { t = \"one-sided-2\", x = \"periodic\" }"
)]
pub enum Stencil {
    /// One scheme for all axes.
    All(Scheme),
    /// A scheme by the name of its axis.
    PerAxis(BTreeMap<String, Scheme>),
}

/// A stencil for an axis that the grid does not have.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("there is no axis `{axis}`: the grid has {}", if known.is_empty() { "none".into() } else { known.join(" and ") })]
pub struct StencilError {
    /// The axis.
    pub axis: String,
    /// The axes that there are.
    pub known: Vec<String>,
}

impl StencilError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        nearest(&self.axis, self.known.iter().map(String::as_str)).map(|near| format!("did you mean `{near}`?"))
    }
}

/// The schemes that follow from the axes of `grid` alone, by [`AxisId`](crate::grid::AxisId).
pub fn default_schemes(grid: &Grid) -> [Scheme; 2] {
    match &grid.axes[..] {
        [rows, cols] => [rows, cols].map(Scheme::default_for),
        _ => [Scheme::OneSided2; 2],
    }
}

impl Default for Stencil {
    fn default() -> Self {
        Stencil::PerAxis(BTreeMap::new())
    }
}

impl Stencil {
    /// Whether every axis has its default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The scheme along each axis of `grid`; `others` are the schemes of axes that the stencil does not name.
    pub fn schemes(&self, grid: &Grid, others: [Scheme; 2]) -> Result<[Scheme; 2], StencilError> {
        match self {
            Stencil::All(scheme) => Ok([*scheme; 2]),
            Stencil::PerAxis(named) => {
                let mut schemes = others;
                for (name, scheme) in named {
                    let axis = grid.find(name).ok_or_else(|| StencilError {
                        axis: name.clone(),
                        known: grid.axes.iter().map(|axis| axis.name.clone()).collect(),
                    })?;
                    schemes[axis as usize] = *scheme;
                }
                Ok(schemes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Axis;

    #[test]
    fn schemes_come_from_the_stencil_and_else_from_the_axis() {
        let grid = Grid { axes: vec![Axis::new("t", 6, 0.0, 1.0), Axis::new("x", 6, 0.0, 1.0).periodic()] };
        let defaults = default_schemes(&grid);
        assert_eq!(defaults, [Scheme::OneSided2, Scheme::Periodic]);
        assert_eq!(Stencil::default().schemes(&grid, defaults), Ok(defaults));
        assert_eq!(Stencil::All(Scheme::Mirror).schemes(&grid, defaults), Ok([Scheme::Mirror; 2]));
        let spectral = Stencil::PerAxis([("x".into(), Scheme::Spectral)].into());
        assert_eq!(spectral.schemes(&grid, defaults), Ok([Scheme::OneSided2, Scheme::Spectral]));
        let wrong = Stencil::PerAxis([("X".into(), Scheme::Spectral)].into());
        let error = wrong.schemes(&grid, defaults).unwrap_err();
        assert_eq!(error.to_string(), "there is no axis `X`: the grid has t and x");
        assert_eq!(error.hint().as_deref(), Some("did you mean `x`?"));
        assert_eq!(default_schemes(&Grid::point()), [Scheme::OneSided2; 2]);
    }
}
