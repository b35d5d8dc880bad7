//! The Helmholtz equation: source `a` and solution `u` with ∇²u + k²u = a on the unit square, u = 0 on its border.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::cosine_field::CosineField;
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;
use softly_pde::helmholtz::HelmholtzSolver;
use softly_pde::region::Region;
use softly_pde::stencil::Stencil;

use crate::checks::{finite, positive};
use crate::constraint::config::{ConstraintConfig, ParameterConfig, ResidualConfig, Residuals};
use crate::constraint::norm::Norm;
use crate::data::dataset::Dataset;
use crate::data::generator::{
    Comparison, FieldSpec, Generator, Recipe, Reference, Size, double, refused, relative_error, single,
};
use crate::error::Result;
use crate::random::Stream;

/// Channel of the source.
const SOURCE: usize = 0;
/// Channel of the solution.
const SOLUTION: usize = 1;

/// Source `a` and solution `u` with `∇²u + k²u = a` on the unit square, `u = 0` on its border, `a` a Gaussian field of
/// cosines.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Helmholtz {
    /// Nodes along the axes, boundary included.
    pub size: Size,
    /// The wave number `k`.
    #[serde(default = "wave_number")]
    pub wave_number: f64,
    /// Smoothness of the source.
    #[serde(default = "alpha")]
    pub alpha: f64,
    /// Inverse length of the source.
    #[serde(default = "tau")]
    pub tau: f64,
    /// Whether the source vanishes on the border.
    #[serde(default = "zero_border")]
    pub zero_border: bool,
}

fn wave_number() -> f64 {
    1.0
}

pub(super) fn alpha() -> f64 {
    2.0
}

pub(super) fn tau() -> f64 {
    3.0
}

fn zero_border() -> bool {
    true
}

impl Helmholtz {
    fn solver(&self) -> Result<HelmholtzSolver> {
        HelmholtzSolver::new(&self.grid(), self.wave_number).map_err(refused)
    }
}

impl Generator for Helmholtz {
    fn fields(&self) -> Vec<FieldSpec> {
        vec![FieldSpec::dimensionless("a", "source"), FieldSpec::dimensionless("u", "solution")]
    }

    fn grid(&self) -> Grid {
        self.size.grid()
    }

    fn check(&self) -> Result<()> {
        self.size.check(3)?;
        finite("data.generator.wave_number", self.wave_number)?;
        finite("data.generator.alpha", self.alpha)?;
        positive("data.generator.tau", self.tau)
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        let formula = "laplacian(u) + k^2*u - a".to_string();
        Some(ConstraintConfig {
            fields: vec!["a".into(), "u".into()],
            residual: Residuals::Many(vec![ResidualConfig {
                formula,
                region: Region::Interior,
                weight: 1.0,
                name: None,
            }]),
            stencil: Stencil::All(Scheme::OneSided2),
            stencils: BTreeMap::new(),
            norm: Norm::L1Mean,
            parameters: BTreeMap::from([("k".to_string(), ParameterConfig::Number(self.wave_number))]),
        })
    }

    fn recipe(&self) -> Result<Box<dyn Recipe>> {
        let source = CosineField::new(&self.grid(), self.alpha, self.tau, self.zero_border).map_err(refused)?;
        Ok(Box::new(HelmholtzRecipe { source, solver: self.solver()? }))
    }

    fn reference(&self, _data: &Dataset) -> Result<Option<Box<dyn Reference>>> {
        Ok(Some(Box::new(HelmholtzReference { grid: self.grid(), solver: self.solver()? })))
    }
}

struct HelmholtzRecipe {
    source: CosineField,
    solver: HelmholtzSolver,
}

impl Recipe for HelmholtzRecipe {
    fn sample(&self, stream: &mut Stream) -> std::result::Result<Vec<f32>, String> {
        // Solved for the numbers that are stored, so that the files solve each other.
        let stored = single(&self.source.sample(stream.rng()));
        let solution = self.solver.solve(&double(&stored)).map_err(|e| e.to_string())?;
        Ok([stored, single(&solution)].concat())
    }
}

struct HelmholtzReference {
    grid: Grid,
    solver: HelmholtzSolver,
}

impl Reference for HelmholtzReference {
    fn solution(&self) -> usize {
        SOLUTION
    }

    fn compare(&self, fields: &[Vec<f64>]) -> Comparison {
        let exact = self.solver.solve(&fields[SOURCE]).ok();
        Comparison { error: exact.and_then(|u| relative_error(&fields[SOLUTION], &u)), lifted: 0 }
    }

    /// Mean of |u| over the border nodes.
    fn boundary(&self, fields: &[Vec<f64>]) -> Option<f64> {
        let border = Region::Border.mask(&self.grid).ok()?;
        let values: Vec<f64> =
            fields[SOLUTION].iter().zip(border).filter(|(_, border)| *border).map(|(u, _)| u.abs()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        mean.is_finite().then_some(mean)
    }
}
