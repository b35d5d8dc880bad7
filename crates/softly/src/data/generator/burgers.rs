//! Burgers' equation in space and time: `u(t, x)` with u_t + u u_x = ν u_xx on a periodic line, from a random initial state.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::burgers::{BurgersSolver, InitialState};
use softly_pde::derivative::Scheme;
use softly_pde::grid::{Axis, Grid, TIME};
use softly_pde::stencil::Stencil;

use crate::checks::{at_least_one, finite, positive};
use crate::constraint::config::{ConstraintConfig, ParameterConfig, Residuals};
use crate::constraint::norm::Norm;
use crate::data::dataset::Dataset;
use crate::data::generator::{
    Comparison, FieldSpec, Generator, Recipe, Reference, Size, double, refused, relative_error, single,
};
use crate::error::Result;
use crate::random::Stream;

/// Least frames and points: as many as the widest stencil of the equation takes.
const LEAST: usize = 8;

/// `u(t, x)` with `u_t + u u_x = ν u_xx` for t from 0 to 1 on a periodic line of length 1; the initial state is the Gaussian
/// field `Σ √2 scale ((2πk)² + τ²)^(−γ/2) (a cos 2πkx + b sin 2πkx)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Burgers {
    /// Frames, both ends of time included, and points along the line.
    pub size: Size,
    /// The viscosity ν.
    #[serde(default = "viscosity")]
    pub viscosity: f64,
    /// Smoothness γ of the initial state.
    #[serde(default = "gamma")]
    pub gamma: f64,
    /// Inverse length τ of the initial state.
    #[serde(default = "tau")]
    pub tau: f64,
    /// Scale of the initial state.
    #[serde(default = "scale")]
    pub scale: f64,
    /// Waves of the initial state.
    #[serde(default = "modes")]
    pub modes: usize,
}

fn viscosity() -> f64 {
    0.01
}

fn gamma() -> f64 {
    2.5
}

fn tau() -> f64 {
    7.0
}

fn scale() -> f64 {
    49.0
}

fn modes() -> usize {
    64
}

impl Burgers {
    fn solver(&self) -> Result<BurgersSolver> {
        BurgersSolver::new(&self.grid(), self.viscosity).map_err(refused)
    }
}

impl Generator for Burgers {
    fn fields(&self) -> Vec<FieldSpec> {
        vec![FieldSpec::dimensionless("u", "velocity")]
    }

    fn grid(&self) -> Grid {
        let [frames, points] = self.size.nodes();
        Grid { axes: vec![Axis::new(TIME, frames, 0.0, 1.0), Axis::new("x", points, 0.0, 1.0).periodic()] }
    }

    fn check(&self) -> Result<()> {
        self.size.check(LEAST)?;
        finite("data.generator.gamma", self.gamma)?;
        positive("data.generator.tau", self.tau)?;
        positive("data.generator.scale", self.scale)?;
        at_least_one("data.generator.modes", self.modes as u64)?;
        positive("data.generator.viscosity", self.viscosity)?;
        self.solver().map(|_| ())
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        let schemes = [(TIME, Scheme::OneSided4), ("x", Scheme::Spectral)];
        Some(ConstraintConfig {
            fields: vec!["u".into()],
            residual: Residuals::One("dt(u) + u*dx(u) - nu*dxx(u)".into()),
            stencil: Stencil::PerAxis(schemes.map(|(axis, scheme)| (axis.to_string(), scheme)).into()),
            stencils: BTreeMap::new(),
            norm: Norm::L1Mean,
            parameters: BTreeMap::from([("nu".to_string(), ParameterConfig::Number(self.viscosity))]),
        })
    }

    fn recipe(&self) -> Result<Box<dyn Recipe>> {
        let Self { gamma, tau, scale, modes, .. } = *self;
        let state = InitialState { gamma, tau, scale, modes };
        Ok(Box::new(BurgersRecipe { state, solver: self.solver()? }))
    }

    fn reference(&self, _data: &Dataset) -> Result<Option<Box<dyn Reference>>> {
        Ok(Some(Box::new(BurgersReference { points: self.size.nodes()[1], solver: self.solver()? })))
    }
}

struct BurgersRecipe {
    state: InitialState,
    solver: BurgersSolver,
}

impl Recipe for BurgersRecipe {
    fn sample(&self, stream: &mut Stream) -> std::result::Result<Vec<f32>, String> {
        let initial = self.state.sample(self.solver.points(), stream.rng());
        let frames = self.solver.solve(&initial).map_err(|e| e.to_string())?;
        Ok(single(&frames))
    }
}

struct BurgersReference {
    points: usize,
    solver: BurgersSolver,
}

impl Reference for BurgersReference {
    fn solution(&self) -> usize {
        0
    }

    /// Solves from the first frame of the sample on.
    fn compare(&self, fields: &[Vec<f64>]) -> Comparison {
        let first = self.solver.interpolate(&fields[0][..self.points]);
        let exact = self.solver.solve(&first).ok().map(|u| double(&single(&u)));
        Comparison { error: exact.and_then(|u| relative_error(&fields[0], &u)), lifted: 0 }
    }

    /// A periodic line has no border.
    fn boundary(&self, _fields: &[Vec<f64>]) -> Option<f64> {
        Some(0.0)
    }
}
