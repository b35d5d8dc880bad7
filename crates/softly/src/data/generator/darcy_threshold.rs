//! Darcy flow through two materials: coefficient `a` and solution `u` with ∇·(a∇u) + f = 0 on the unit square, u = 0 on its border.
//!
//! a takes one of two values, by the sign of a Gaussian field of cosines. The points are cells, and the equation is a balance of fluxes
//! through their faces, which holds across the jumps of a.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::cosine_field::CosineField;
use softly_pde::derivative::Scheme;
use softly_pde::flux::FaceMean;
use softly_pde::flux_solver::FluxSolver;
use softly_pde::grid::{Axis, Grid};
use softly_pde::stencil::Stencil;

use crate::checks::{finite, positive};
use crate::constraint::config::{ConstraintConfig, ParameterConfig, Residuals};
use crate::constraint::norm::Norm;
use crate::data::dataset::Dataset;
use crate::data::generator::helmholtz::{alpha, tau};
use crate::data::generator::{
    Comparison, FieldSpec, Generator, Recipe, Reference, Size, double, refused, relative_error, single,
};
use crate::error::Result;
use crate::random::Stream;

/// Channel of the coefficient.
const COEFFICIENT: usize = 0;
/// Channel of the solution.
const SOLUTION: usize = 1;

/// Sampled coefficients below this fraction of the smaller material's are lifted to it.
const COEFFICIENT_FLOOR: f64 = 0.1;

/// Coefficient `a` and solution `u` with `∇·(a∇u) + f = 0` on cells of the unit square, `u = 0` on its border; `a` is `high`
/// where a Gaussian field of cosines is at least 0 and `low` elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DarcyThreshold {
    /// Cells along the axes.
    pub size: Size,
    /// Smoothness of the Gaussian field.
    #[serde(default = "alpha")]
    pub alpha: f64,
    /// Inverse length of the Gaussian field.
    #[serde(default = "tau")]
    pub tau: f64,
    /// The coefficient where the field is at least 0.
    #[serde(default = "high")]
    pub high: f64,
    /// The coefficient elsewhere.
    #[serde(default = "low")]
    pub low: f64,
    /// The source, the same everywhere.
    #[serde(default = "flow")]
    pub flow: f64,
    /// How the coefficient is averaged to the faces between cells.
    #[serde(default = "faces")]
    pub faces: FaceMean,
}

fn high() -> f64 {
    12.0
}

fn low() -> f64 {
    3.0
}

fn flow() -> f64 {
    1.0
}

fn faces() -> FaceMean {
    FaceMean::Arithmetic
}

impl DarcyThreshold {
    fn solver(&self) -> Result<FluxSolver> {
        FluxSolver::new(&self.grid(), self.faces).map_err(refused)
    }
}

impl Generator for DarcyThreshold {
    fn fields(&self) -> Vec<FieldSpec> {
        vec![FieldSpec::dimensionless("a", "coefficient"), FieldSpec::dimensionless("u", "solution")]
    }

    fn grid(&self) -> Grid {
        let [rows, cols] = self.size.nodes();
        Grid { axes: vec![Axis::new("x", rows, 0.0, 1.0).cells(), Axis::new("y", cols, 0.0, 1.0).cells()] }
    }

    fn check(&self) -> Result<()> {
        self.size.check(3)?;
        finite("data.generator.alpha", self.alpha)?;
        positive("data.generator.tau", self.tau)?;
        positive("data.generator.high", self.high)?;
        positive("data.generator.low", self.low)?;
        finite("data.generator.flow", self.flow)
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        let formula = match self.faces {
            FaceMean::Arithmetic => "divgrad(a, u) + flow",
            FaceMean::Harmonic => "divgrad(a, u, harmonic) + flow",
        };
        Some(ConstraintConfig {
            fields: vec!["a".into(), "u".into()],
            residual: Residuals::One(formula.into()),
            stencil: Stencil::All(Scheme::Zero),
            stencils: BTreeMap::new(),
            norm: Norm::L1Mean,
            parameters: BTreeMap::from([("flow".to_string(), ParameterConfig::Number(self.flow))]),
        })
    }

    fn recipe(&self) -> Result<Box<dyn Recipe>> {
        let field = CosineField::new(&self.grid(), self.alpha, self.tau, false).map_err(refused)?;
        Ok(Box::new(ThresholdRecipe { field, solver: self.solver()?, settings: *self }))
    }

    fn reference(&self, _data: &Dataset) -> Result<Option<Box<dyn Reference>>> {
        Ok(Some(Box::new(ThresholdReference { solver: self.solver()?, settings: *self })))
    }
}

struct ThresholdRecipe {
    field: CosineField,
    solver: FluxSolver,
    settings: DarcyThreshold,
}

impl Recipe for ThresholdRecipe {
    fn sample(&self, stream: &mut Stream) -> std::result::Result<Vec<f32>, String> {
        let DarcyThreshold { high, low, flow, .. } = self.settings;
        let coefficient: Vec<f64> =
            self.field.sample(stream.rng()).iter().map(|&g| if g >= 0.0 { high } else { low }).collect();
        // Solved for the numbers that are stored, so that the files solve each other.
        let stored = single(&coefficient);
        let source = vec![flow; stored.len()];
        let solution = self.solver.solve(&double(&stored), &source).map_err(|e| e.to_string())?;
        Ok([stored, single(&solution)].concat())
    }
}

struct ThresholdReference {
    solver: FluxSolver,
    settings: DarcyThreshold,
}

impl Reference for ThresholdReference {
    fn solution(&self) -> usize {
        SOLUTION
    }

    fn compare(&self, fields: &[Vec<f64>]) -> Comparison {
        let floor = COEFFICIENT_FLOOR * self.settings.high.min(self.settings.low);
        let lifted = fields[COEFFICIENT].iter().filter(|a| **a < floor).count();
        let coefficient: Vec<f64> = fields[COEFFICIENT].iter().map(|a| a.max(floor)).collect();
        let exact = self.solver.solve(&coefficient, &vec![self.settings.flow; coefficient.len()]).ok();
        Comparison { error: exact.and_then(|u| relative_error(&fields[SOLUTION], &u)), lifted }
    }

    /// Mean of |u| at the walls, (3 u₁ − u₂)/2 from the two outermost cells.
    fn boundary(&self, fields: &[Vec<f64>]) -> Option<f64> {
        let ([rows, cols], u) = (self.settings.size.nodes(), &fields[SOLUTION]);
        let at = |[i, j]: [usize; 2]| u[i * cols + j];
        let wall = |first: [usize; 2], second: [usize; 2]| (1.5 * at(first) - 0.5 * at(second)).abs();
        let ends = (0..cols).map(|j| wall([0, j], [1, j]) + wall([rows - 1, j], [rows - 2, j]));
        let sides = (0..rows).map(|i| wall([i, 0], [i, 1]) + wall([i, cols - 1], [i, cols - 2]));
        let mean = ends.chain(sides).sum::<f64>() / (2 * (rows + cols)) as f64;
        mean.is_finite().then_some(mean)
    }
}
