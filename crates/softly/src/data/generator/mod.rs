//! Generators: equations whose solutions make datasets, one file each.
//!
//! A new generator is one file here with an implementation of [`Generator`], and one line in the list at the end of this file.

pub mod burgers;
pub mod curve;
pub mod darcy;
pub mod darcy_threshold;
pub mod helmholtz;
pub mod points;
pub mod poisson;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;

use crate::constraint::config::ConstraintConfig;
use crate::data::dataset::Dataset;
use crate::data::generator::burgers::Burgers;
use crate::data::generator::darcy::Darcy;
use crate::data::generator::darcy_threshold::DarcyThreshold;
use crate::data::generator::helmholtz::Helmholtz;
use crate::data::generator::points::Points;
use crate::data::generator::poisson::Poisson;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::random::Stream;

/// Most nodes along an axis: beyond it a factorisation does not fit into any memory.
const MAX_NODES: usize = 4096;

/// A field as readers of the data should know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSpec {
    /// Its name in formulas and files.
    pub name: String,
    /// What it is.
    pub quantity: String,
    /// Its unit; `1` for dimensionless quantities.
    pub unit: String,
}

impl FieldSpec {
    /// A dimensionless field.
    pub fn dimensionless(name: &str, quantity: &str) -> Self {
        Self { name: name.into(), quantity: quantity.into(), unit: "1".into() }
    }
}

/// An equation that makes samples.
pub trait Generator: Send + Sync {
    /// The fields of a sample: the channels, in order.
    fn fields(&self) -> Vec<FieldSpec>;

    /// The grid that the fields live on.
    fn grid(&self) -> Grid;

    /// Refuses settings that cannot work.
    fn check(&self) -> Result<()>;

    /// The equation that the data obey, discretised as they are; `None` if there is no single formula for it.
    fn equation(&self) -> Option<ConstraintConfig>;

    /// What all samples share: modes, transforms, factorisations.
    fn recipe(&self) -> Result<Box<dyn Recipe>>;

    /// The solver that made `data`, to judge samples by; `None` if there is nothing to solve.
    fn reference(&self, _data: &Dataset) -> Result<Option<Box<dyn Reference>>> {
        Ok(None)
    }
}

/// Makes samples on any thread and in any order.
pub trait Recipe: Send + Sync {
    /// One sample `[C, H, W]` from the random numbers of `stream`; an error says why it cannot be computed.
    fn sample(&self, stream: &mut Stream) -> std::result::Result<Vec<f32>, String>;
}

/// A sampled solution against the solution that a solver finds for the sampled coefficients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// ‖s − s*‖ / ‖s*‖ over nodes, without the means where a solution is known up to a constant only; `None` if there is no
    /// solution s* or it vanishes.
    pub error: Option<f64>,
    /// Nodes whose coefficient had to be lifted to a floor before solving.
    pub lifted: usize,
}

/// The equation behind generated data: what a sampled solution should have been, and how it meets its boundary.
///
/// The solver knows nothing of the stencils that a method was trained with through its constraint, so its verdict is an
/// independent one. `fields` are one sample's, `[H, W]` each.
pub trait Reference: Send + Sync {
    /// The channel that the solver computes from the others.
    fn solution(&self) -> usize;

    /// Solves for the sampled coefficients and compares.
    fn compare(&self, fields: &[Vec<f64>]) -> Comparison;

    /// How far the boundary condition is missed, a mean over nodes of the border; `None` if it is not finite.
    fn boundary(&self, fields: &[Vec<f64>]) -> Option<f64>;

    /// The residual as PIDM publishes it for this equation, if it does.
    fn published_residual(&self, _fields: &[Vec<f64>]) -> Option<f64> {
        None
    }
}

/// Nodes along the axes: `64`, or `[rows, cols]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

    /// The unit square with these nodes.
    pub fn grid(self) -> Grid {
        let [rows, cols] = self.nodes();
        Grid::unit(rows, cols)
    }

    /// Refuses fewer than `least` nodes along an axis, and more than any memory holds.
    fn check(self, least: usize) -> Result<()> {
        if self.nodes().iter().all(|n| (least..=MAX_NODES).contains(n)) {
            return Ok(());
        }
        let [rows, cols] = self.nodes();
        let problem = format!("expected {least} to {MAX_NODES} nodes along each axis, found {rows} × {cols}");
        Err(Error::input("data.generator.size", problem))
    }
}

/// A recipe with a seed: sample `index` of a split is always the same.
pub struct SampleMaker {
    recipe: Box<dyn Recipe>,
    seed: u64,
}

impl SampleMaker {
    /// The samples of `generator` under `seed`.
    pub fn new(generator: &dyn Generator, seed: u64) -> Result<Self> {
        generator.check()?;
        Ok(Self { recipe: generator.recipe()?, seed })
    }

    /// Sample `index` of `split`, `[C, H, W]`.
    pub fn sample(&self, split: Split, index: usize) -> Result<Vec<f32>> {
        let failed = |problem: String| {
            Error::input(format!("data.generator, {} sample {index}", split.name()), problem)
                .hint("such parameters give samples that cannot be computed; change them or data.seed")
        };
        let mut stream = Stream::new(self.seed, split.purpose(), index as u64);
        let sample = self.recipe.sample(&mut stream).map_err(failed)?;
        match sample.iter().find(|v| !v.is_finite()) {
            None => Ok(sample),
            Some(value) => Err(failed(format!("a value, {value}, is beyond single precision"))),
        }
    }

    /// Samples `range` of `split`, made in parallel.
    pub fn samples(&self, split: Split, range: std::ops::Range<usize>) -> Result<Vec<Vec<f32>>> {
        range.into_par_iter().map(|index| self.sample(split, index)).collect()
    }
}

/// A refusal of a generator by a solver or a random field.
fn refused(problem: impl std::fmt::Display) -> Error {
    Error::input("data.generator", problem)
}

/// Values as they are stored.
fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}

/// Stored values as solvers take them.
fn double(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// ‖found − exact‖ / ‖exact‖, if finite.
fn relative_error(found: &[f64], exact: &[f64]) -> Option<f64> {
    let gap: f64 = found.iter().zip(exact).map(|(f, e)| (f - e).powi(2)).sum();
    let size: f64 = exact.iter().map(|e| e * e).sum();
    let error = (gap / size).sqrt();
    error.is_finite().then_some(error)
}

/// Makes the enumeration of all generators from a list of types.
macro_rules! generators {
    ($($(#[$doc:meta])* $generator:ident;)*) => {
        /// A generator with its settings.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum GeneratorConfig {
            $($(#[$doc])* $generator($generator),)*
        }

        impl GeneratorConfig {
            /// The generator.
            pub fn get(&self) -> &dyn Generator {
                match self { $(Self::$generator(generator) => generator,)* }
            }
        }
    };
}

generators! {
    /// Points of a closed curve.
    Points;
    /// Pressure and permeability of Darcy flow.
    Darcy;
    /// Coefficient and solution of Darcy flow through two materials.
    DarcyThreshold;
    /// Source and solution of the Helmholtz equation.
    Helmholtz;
    /// Source and solution of Poisson's equation.
    Poisson;
    /// A solution of Burgers' equation in space and time.
    Burgers;
}
