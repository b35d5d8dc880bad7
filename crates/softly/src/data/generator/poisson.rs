//! Poisson's equation: source `a` and solution `u` with ∇²u = a on the unit square, u = 0 on its border.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;

use crate::constraint::config::{ConstraintConfig, ResidualConfig, Residuals};
use crate::data::dataset::Dataset;
use crate::data::generator::helmholtz::{Helmholtz, alpha, tau};
use crate::data::generator::{FieldSpec, Generator, Recipe, Reference, Size};
use crate::error::Result;

/// Source `a` and solution `u` with `∇²u = a` on the unit square, `u = 0` on its border, `a` a Gaussian field of cosines.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Poisson {
    /// Nodes along the axes, boundary included.
    pub size: Size,
    /// Smoothness of the source.
    #[serde(default = "alpha")]
    pub alpha: f64,
    /// Inverse length of the source.
    #[serde(default = "tau")]
    pub tau: f64,
}

impl Poisson {
    /// The Helmholtz equation of wave number 0, its source not cut at the border.
    fn helmholtz(&self) -> Helmholtz {
        let Self { size, alpha, tau } = *self;
        Helmholtz { size, wave_number: 0.0, alpha, tau, zero_border: false }
    }
}

impl Generator for Poisson {
    fn fields(&self) -> Vec<FieldSpec> {
        self.helmholtz().fields()
    }

    fn grid(&self) -> Grid {
        self.size.grid()
    }

    fn check(&self) -> Result<()> {
        self.helmholtz().check()
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        let equation = self.helmholtz().equation()?;
        let Residuals::Many(residuals) = equation.residual else { return None };
        let formula = "laplacian(u) - a".to_string();
        let residuals = residuals.into_iter().map(|residual| ResidualConfig { formula: formula.clone(), ..residual });
        Some(ConstraintConfig {
            residual: Residuals::Many(residuals.collect()),
            parameters: BTreeMap::new(),
            ..equation
        })
    }

    fn recipe(&self) -> Result<Box<dyn Recipe>> {
        self.helmholtz().recipe()
    }

    fn reference(&self, data: &Dataset) -> Result<Option<Box<dyn Reference>>> {
        self.helmholtz().reference(data)
    }
}
