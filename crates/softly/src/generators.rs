//! Where generated data come from: points of a curve, Darcy flow, the Helmholtz equation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use softly_pde::cosine_field::CosineField;
use softly_pde::darcy::{self, DarcySolver, Discretisation, corner_source};
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;
use softly_pde::helmholtz::HelmholtzSolver;
use softly_pde::karhunen_loeve::KarhunenLoeve;

use crate::constraint::{ConstraintConfig, Norm, ParameterConfig, Region, ResidualConfig, Residuals};
use crate::error::{Error, Result};
use crate::random::{Purpose, Stream};
use crate::toy::Shape;

/// Most nodes along an axis: beyond it a factorisation does not fit into any memory.
const MAX_NODES: usize = 4096;

/// A source of data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Generator {
    /// Points of a closed curve.
    Points {
        /// The curve.
        curve: Shape,
        /// Standard deviation of Gaussian noise on the points.
        #[serde(default)]
        noise: f64,
    },
    /// Pressure `p` and permeability `K` with `∇·(K∇p) + f = 0`, no flux through the sides of the unit square, `f` =
    /// ± flow in two corners and `K = exp(G)`, `G` the leading modes of a Gaussian field of covariance exp(−r/length).
    Darcy {
        /// Nodes along the axes, boundary included.
        size: Size,
        /// Correlation length of ln K.
        #[serde(default = "darcy_length")]
        length: f64,
        /// Karhunen–Loève modes of ln K.
        #[serde(default = "darcy_modes")]
        modes: usize,
        /// Strength of source and sink.
        #[serde(default = "darcy_flow")]
        flow: f64,
        /// How the equation is discretised.
        #[serde(default = "darcy_discretisation")]
        discretisation: Discretisation,
    },
    /// Source `a` and solution `u` with `∇²u + k²u = a` on the unit square, `u = 0` on its border, `a` a Gaussian field
    /// of cosines.
    Helmholtz {
        /// Nodes along the axes, boundary included.
        size: Size,
        /// The wave number `k`.
        #[serde(default = "one")]
        wave_number: f64,
        /// Smoothness of the source.
        #[serde(default = "helmholtz_alpha")]
        alpha: f64,
        /// Inverse length of the source.
        #[serde(default = "helmholtz_tau")]
        tau: f64,
        /// Whether the source vanishes on the border.
        #[serde(default = "yes")]
        zero_border: bool,
    },
}

fn darcy_length() -> f64 {
    0.1
}

fn darcy_modes() -> usize {
    64
}

fn darcy_flow() -> f64 {
    10.0
}

fn darcy_discretisation() -> Discretisation {
    Discretisation::OneSided
}

fn one() -> f64 {
    1.0
}

fn helmholtz_alpha() -> f64 {
    2.0
}

fn helmholtz_tau() -> f64 {
    3.0
}

fn yes() -> bool {
    true
}

/// Nodes along the axes: `64`, or `[rows, cols]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// As many along both axes.
    Square(usize),
    /// Along x (rows) and y (columns).
    Rectangle([usize; 2]),
}

impl Size {
    /// Nodes along x and y.
    pub fn nodes(self) -> [usize; 2] {
        match self {
            Self::Square(n) => [n, n],
            Self::Rectangle(nodes) => nodes,
        }
    }

    fn grid(self) -> Grid {
        let [rows, cols] = self.nodes();
        Grid::unit(rows, cols)
    }
}

/// A field as readers of the data should know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldSpec {
    /// Its name in formulas and files.
    pub name: &'static str,
    /// What it is.
    pub quantity: &'static str,
    /// Its unit; `1` for dimensionless quantities.
    pub unit: &'static str,
}

impl Generator {
    /// The fields of a sample: the channels, in order.
    pub fn fields(&self) -> [FieldSpec; 2] {
        let fields = match self {
            Self::Points { .. } => [("x", "coordinate"), ("y", "coordinate")],
            Self::Darcy { .. } => [("p", "pressure"), ("K", "permeability")],
            Self::Helmholtz { .. } => [("a", "source"), ("u", "solution")],
        };
        fields.map(|(name, quantity)| FieldSpec { name, quantity, unit: "1" })
    }

    /// The grid that the fields live on.
    pub fn grid(&self) -> Grid {
        match self {
            Self::Points { .. } => Grid::point(),
            Self::Darcy { size, .. } | Self::Helmholtz { size, .. } => size.grid(),
        }
    }

    /// Refuses parameters that cannot work.
    pub fn check(&self) -> Result<()> {
        let refuse = |key: &str, problem: String| Err(Error::input(format!("data.generator.{key}"), problem));
        let check_size = |size: &Size, least: usize| {
            if size.nodes().iter().all(|n| (least..=MAX_NODES).contains(n)) {
                return Ok(());
            }
            let [rows, cols] = size.nodes();
            refuse("size", format!("expected {least} to {MAX_NODES} nodes along each axis, found {rows} × {cols}"))
        };
        let positive = |key: &str, value: f64| {
            if value.is_finite() && value > 0.0 {
                return Ok(());
            }
            refuse(key, format!("expected a positive number, found {value}"))
        };
        let finite = |key: &str, value: f64| {
            if value.is_finite() { Ok(()) } else { refuse(key, format!("expected a finite number, found {value}")) }
        };
        match self {
            Self::Points { curve, noise } => {
                if !(noise.is_finite() && *noise >= 0.0) {
                    return refuse("noise", format!("expected a number ≥ 0, found {noise}"));
                }
                if let Shape::Chop { alpha } = curve
                    && !(0.0..=std::f64::consts::PI).contains(alpha)
                {
                    return refuse("curve.alpha", format!("expected an angle from 0 to π, found {alpha}"));
                }
                Ok(())
            }
            Self::Darcy { size, length, modes, flow, .. } => {
                check_size(size, darcy::MIN_NODES)?;
                positive("length", *length)?;
                finite("flow", *flow)?;
                let nodes = size.grid().len();
                if !(1..=nodes).contains(modes) {
                    return refuse("modes", format!("expected 1 to {nodes} (one per node), found {modes}"));
                }
                Ok(())
            }
            Self::Helmholtz { size, wave_number, alpha, tau, .. } => {
                check_size(size, 3)?;
                finite("wave_number", *wave_number)?;
                finite("alpha", *alpha)?;
                positive("tau", *tau)
            }
        }
    }

    /// The equation that the data obey, discretised as they are; `None` if there is no single formula for it.
    pub fn equation(&self) -> Option<ConstraintConfig> {
        let fields = self.fields().map(|f| f.name.to_string()).to_vec();
        let number = |name: &str, value: f64| (name.to_string(), ParameterConfig::Number(value));
        let constraint = |residual, stencils, parameters| ConstraintConfig {
            fields: fields.clone(),
            residual,
            stencil: Scheme::OneSided2,
            stencils,
            norm: Norm::L1Mean,
            parameters,
        };
        match self {
            Self::Points { curve: Shape::Circle, .. } => {
                Some(constraint(Residuals::One("(sqrt(x^2 + y^2) - 1)^2".into()), BTreeMap::new(), BTreeMap::new()))
            }
            Self::Points { .. } => None,
            Self::Darcy { flow, discretisation, .. } => {
                let source = "flow*(x<=0.125)*(y<=0.125) - flow*(x>=0.875)*(y>=0.875)";
                let stencils = match discretisation {
                    Discretisation::OneSided => BTreeMap::new(),
                    Discretisation::Mirror => BTreeMap::from([("p".to_string(), Scheme::Mirror)]),
                };
                Some(constraint(
                    Residuals::One("K*laplacian(p) + dot(grad(K), grad(p)) + f".into()),
                    stencils,
                    BTreeMap::from([
                        number("flow", *flow),
                        ("f".to_string(), ParameterConfig::Formula(source.to_string())),
                    ]),
                ))
            }
            Self::Helmholtz { wave_number, .. } => {
                let formula = "laplacian(u) + k^2*u - a".to_string();
                Some(constraint(
                    Residuals::Many(vec![ResidualConfig { formula, region: Region::Interior, weight: 1.0 }]),
                    BTreeMap::new(),
                    BTreeMap::from([number("k", *wave_number)]),
                ))
            }
        }
    }

    /// Sets up what all samples share: modes, transforms, factorisations.
    pub fn prepare(&self, seed: u64) -> Result<SampleMaker> {
        self.check()?;
        let refused = |e: &dyn std::fmt::Display| Error::input("data.generator", e);
        let grid = self.grid();
        let recipe = match self {
            Self::Points { curve, noise } => Recipe::Points { curve: *curve, noise: *noise },
            Self::Darcy { length, modes, flow, discretisation, .. } => Recipe::Darcy {
                logarithm: KarhunenLoeve::new(&grid, *length, *modes).map_err(|e| refused(&e))?,
                solver: Box::new(DarcySolver::new(&grid, *discretisation).map_err(|e| refused(&e))?),
                source: corner_source(&grid, *flow),
            },
            Self::Helmholtz { wave_number, alpha, tau, zero_border, .. } => Recipe::Helmholtz {
                source: CosineField::new(&grid, *alpha, *tau, *zero_border).map_err(|e| refused(&e))?,
                solver: Box::new(HelmholtzSolver::new(&grid, *wave_number).map_err(|e| refused(&e))?),
            },
        };
        Ok(SampleMaker { recipe, seed })
    }
}

/// Makes samples by their index, on any thread and in any order.
pub struct SampleMaker {
    recipe: Recipe,
    seed: u64,
}

enum Recipe {
    Points { curve: Shape, noise: f64 },
    Darcy { logarithm: KarhunenLoeve, solver: Box<DarcySolver>, source: Vec<f64> },
    Helmholtz { source: CosineField, solver: Box<HelmholtzSolver> },
}

impl SampleMaker {
    /// Sample `index` of the split that `purpose` stands for, `[C, H, W]`.
    pub fn sample(&self, purpose: Purpose, index: u64) -> Result<Vec<f32>> {
        let failed = |e: &dyn std::fmt::Display| {
            let split = if purpose == Purpose::ValidData { "valid" } else { "train" };
            Error::input(format!("data.generator, {split} sample {index}"), e)
                .hint("such parameters give samples that cannot be computed; change them or data.seed")
        };
        let mut stream = Stream::new(self.seed, purpose, index);
        let sample = match &self.recipe {
            Recipe::Points { curve, noise } => single(&curve.sample(*noise, &mut stream)),
            Recipe::Darcy { logarithm, solver, source } => {
                let permeability: Vec<f64> = logarithm.sample(stream.rng()).iter().map(|g| g.exp()).collect();
                // Solved for the numbers that are stored, so that the files solve each other.
                let stored = single(&permeability);
                let pressure = solver.solve(&double(&stored), source).map_err(|e| failed(&e))?;
                [single(&pressure), stored].concat()
            }
            Recipe::Helmholtz { source, solver } => {
                let stored = single(&source.sample(stream.rng()));
                let solution = solver.solve(&double(&stored)).map_err(|e| failed(&e))?;
                [stored, single(&solution)].concat()
            }
        };
        match sample.iter().find(|v| !v.is_finite()) {
            None => Ok(sample),
            Some(value) => Err(failed(&format!("a value, {value}, is beyond single precision"))),
        }
    }
}

fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}

fn double(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}
