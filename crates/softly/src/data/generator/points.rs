//! Points of a closed curve: the toy study's data.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;
use softly_pde::stencil::Stencil;

use crate::constraint::config::{ConstraintConfig, Residuals};
use crate::constraint::norm::Norm;
use crate::data::generator::curve::Shape;
use crate::data::generator::{FieldSpec, Generator, Recipe, single};
use crate::error::{Error, Result};
use crate::random::Stream;

/// Points of a closed curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Points {
    /// The curve.
    pub curve: Shape,
    /// Standard deviation of Gaussian noise on the points.
    #[serde(default)]
    pub noise: f64,
}

impl Generator for Points {
    fn fields(&self) -> Vec<FieldSpec> {
        ["x", "y"].map(|name| FieldSpec::dimensionless(name, "coordinate")).to_vec()
    }

    fn grid(&self) -> Grid {
        Grid::point()
    }

    fn check(&self) -> Result<()> {
        if !(self.noise.is_finite() && self.noise >= 0.0) {
            let problem = format!("expected a number ≥ 0, found {}", self.noise);
            return Err(Error::input("data.generator.noise", problem));
        }
        if let Shape::Chop { alpha } = self.curve
            && !(0.0..=std::f64::consts::PI).contains(&alpha)
        {
            let problem = format!("expected an angle from 0 to π, found {alpha}");
            return Err(Error::input("data.generator.curve.alpha", problem));
        }
        Ok(())
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        (self.curve == Shape::Circle).then(|| ConstraintConfig {
            fields: vec!["x".into(), "y".into()],
            residual: Residuals::One("(sqrt(x^2 + y^2) - 1)^2".into()),
            stencil: Stencil::default(),
            stencils: BTreeMap::new(),
            norm: Norm::L1Mean,
            parameters: BTreeMap::new(),
        })
    }

    fn recipe(&self) -> Result<Box<dyn Recipe>> {
        Ok(Box::new(*self))
    }
}

impl Recipe for Points {
    fn sample(&self, stream: &mut Stream) -> std::result::Result<Vec<f32>, String> {
        Ok(single(&self.curve.sample(self.noise, stream)))
    }
}
