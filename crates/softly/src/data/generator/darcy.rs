//! Darcy flow: pressure `p` and permeability `K` with ∇·(K∇p) + f = 0, no flux through the sides of the unit square.
//!
//! f = ± flow in two opposite corners. K = exp(G) with the leading modes G of a Gaussian field of covariance exp(−r/length).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::darcy::{self, DarcySolver, Discretisation, boundary_residual, corner_source};
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;
use softly_pde::karhunen_loeve::KarhunenLoeve;
use softly_pde::stencil::Stencil;

use crate::checks::{finite, positive};
use crate::constraint::SoftConstraint;
use crate::constraint::config::{ConstraintConfig, ParameterConfig, Residuals};
use crate::constraint::norm::Norm;
use crate::data::dataset::Dataset;
use crate::data::generator::{
    Comparison, FieldSpec, Generator, Recipe, Reference, Size, double, refused, relative_error, single,
};
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::random::Stream;
use crate::units::Units;

/// Channel of the pressure.
const PRESSURE: usize = 0;
/// Channel of the permeability.
const PERMEABILITY: usize = 1;

/// Sampled permeabilities below this fraction of the smallest one of the training data are lifted to it.
const PERMEABILITY_FLOOR: f64 = 0.1;

/// Pressure `p` and permeability `K` with `∇·(K∇p) + f = 0`, no flux through the sides of the unit square, `f` = ± flow in
/// two corners and `K = exp(G)`, `G` the leading modes of a Gaussian field of covariance exp(−r/length).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Darcy {
    /// Nodes along the axes, boundary included.
    pub size: Size,
    /// Correlation length of ln K.
    #[serde(default = "length")]
    pub length: f64,
    /// Karhunen–Loève modes of ln K.
    #[serde(default = "modes")]
    pub modes: usize,
    /// Strength of source and sink.
    #[serde(default = "flow")]
    pub flow: f64,
    /// How the equation is discretised.
    #[serde(default = "discretisation")]
    pub discretisation: Discretisation,
}

fn length() -> f64 {
    0.1
}

fn modes() -> usize {
    64
}

fn flow() -> f64 {
    10.0
}

fn discretisation() -> Discretisation {
    Discretisation::OneSided
}

impl Darcy {
    fn solver(&self) -> Result<DarcySolver> {
        DarcySolver::new(&self.grid(), self.discretisation).map_err(refused)
    }
}

impl Generator for Darcy {
    fn fields(&self) -> Vec<FieldSpec> {
        vec![FieldSpec::dimensionless("p", "pressure"), FieldSpec::dimensionless("K", "permeability")]
    }

    fn grid(&self) -> Grid {
        self.size.grid()
    }

    fn check(&self) -> Result<()> {
        self.size.check(darcy::MIN_NODES)?;
        positive("data.generator.length", self.length)?;
        finite("data.generator.flow", self.flow)?;
        let nodes = self.grid().len();
        if !(1..=nodes).contains(&self.modes) {
            let problem = format!("expected 1 to {nodes} (one per node), found {}", self.modes);
            return Err(Error::input("data.generator.modes", problem));
        }
        Ok(())
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        let source = "flow*(x<=0.125)*(y<=0.125) - flow*(x>=0.875)*(y>=0.875)";
        let stencils = match self.discretisation {
            Discretisation::OneSided => BTreeMap::new(),
            Discretisation::Mirror => BTreeMap::from([("p".to_string(), Stencil::All(Scheme::Mirror))]),
        };
        Some(ConstraintConfig {
            fields: vec!["p".into(), "K".into()],
            residual: Residuals::One("K*laplacian(p) + dot(grad(K), grad(p)) + f".into()),
            stencil: Stencil::All(Scheme::OneSided2),
            stencils,
            norm: Norm::L1Mean,
            parameters: BTreeMap::from([
                ("flow".to_string(), ParameterConfig::Number(self.flow)),
                ("f".to_string(), ParameterConfig::Formula(source.to_string())),
            ]),
        })
    }

    fn recipe(&self) -> Result<Box<dyn Recipe>> {
        let grid = self.grid();
        Ok(Box::new(DarcyRecipe {
            logarithm: KarhunenLoeve::new(&grid, self.length, self.modes).map_err(refused)?,
            solver: self.solver()?,
            source: corner_source(&grid, self.flow),
        }))
    }

    fn reference(&self, data: &Dataset) -> Result<Option<Box<dyn Reference>>> {
        let Some(equation) = self.equation() else { return Ok(None) };
        let grid = self.grid();
        let names = &data.fields;
        let mut least = f32::INFINITY;
        for piece in data.pieces(Split::Train) {
            let piece = piece?;
            let nodes = piece.chunks_exact(grid.len()).skip(PERMEABILITY).step_by(names.len()).flatten();
            least = nodes.copied().fold(least, f32::min);
        }
        Ok(Some(Box::new(DarcyReference {
            solver: self.solver()?,
            source: corner_source(&grid, self.flow),
            floor: PERMEABILITY_FLOOR * f64::from(least),
            equation: SoftConstraint::new(&equation, names, &grid, &Units::identity(names.len()))?,
            grid,
        })))
    }
}

struct DarcyRecipe {
    logarithm: KarhunenLoeve,
    solver: DarcySolver,
    source: Vec<f64>,
}

impl Recipe for DarcyRecipe {
    fn sample(&self, stream: &mut Stream) -> std::result::Result<Vec<f32>, String> {
        let permeability: Vec<f64> = self.logarithm.sample(stream.rng()).iter().map(|g| g.exp()).collect();
        // Solved for the numbers that are stored, so that the files solve each other.
        let stored = single(&permeability);
        let pressure = self.solver.solve(&double(&stored), &self.source).map_err(|e| e.to_string())?;
        Ok([single(&pressure), stored].concat())
    }
}

struct DarcyReference {
    grid: Grid,
    solver: DarcySolver,
    source: Vec<f64>,
    floor: f64,
    equation: SoftConstraint,
}

impl DarcyReference {
    /// Sum of |∂p/∂n| over the sides; corners count on both of theirs.
    fn normal_slopes(&self, fields: &[Vec<f64>]) -> Option<f64> {
        let slopes = boundary_residual(&self.grid, &fields[PRESSURE]).ok()?;
        Some(slopes.iter().flatten().map(|s| s.abs()).sum())
    }
}

impl Reference for DarcyReference {
    fn solution(&self) -> usize {
        PRESSURE
    }

    fn compare(&self, fields: &[Vec<f64>]) -> Comparison {
        let permeability: Vec<f64> = fields[PERMEABILITY].iter().map(|k| k.max(self.floor)).collect();
        let lifted = fields[PERMEABILITY].iter().filter(|k| **k < self.floor).count();
        let exact = self.solver.solve(&permeability, &self.source).ok();
        // A pressure is known up to a constant only.
        let error = exact.and_then(|p| relative_error(&centred(&fields[PRESSURE]), &centred(&p)));
        Comparison { error, lifted }
    }

    /// Mean of |∂p/∂n| over the nodes of the four sides (one-sided stencils).
    fn boundary(&self, fields: &[Vec<f64>]) -> Option<f64> {
        let mean = self.normal_slopes(fields)? / (2 * (self.grid.rows() + self.grid.cols())) as f64;
        mean.is_finite().then_some(mean)
    }

    /// The mean of |·| over the equation at all nodes and two further channels with the outward slopes of the pressure,
    /// which are zero away from the sides; 3 H W entries.
    fn published_residual(&self, fields: &[Vec<f64>]) -> Option<f64> {
        let inside: f64 = self.equation.residual_values(fields).iter().flatten().map(|r| r.abs()).sum();
        let mean = (inside + self.normal_slopes(fields)?) / (3 * self.grid.len()) as f64;
        mean.is_finite().then_some(mean)
    }
}

fn centred(values: &[f64]) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|v| v - mean).collect()
}
