//! The equation behind generated data: what a sampled solution should have been, and how it meets its boundary.
//!
//! The solver knows nothing of the stencils that a method was trained with through its constraint, so its verdict is an
//! independent one.

use softly_pde::darcy::{DarcySolver, boundary_residual, corner_source};
use softly_pde::grid::Grid;
use softly_pde::helmholtz::HelmholtzSolver;

use crate::constraint::SoftConstraint;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::generators::Generator;
use crate::units::Units;

/// Sampled permeabilities below this fraction of the smallest one of the training data are lifted to it.
const PERMEABILITY_FLOOR: f64 = 0.1;

/// Channels of the generators' fields: `p`, `K` and `a`, `u`.
const PRESSURE: usize = 0;
const PERMEABILITY: usize = 1;
const SOURCE: usize = 0;
const SOLUTION: usize = 1;

/// The equation and the solver that made the data.
pub struct TrueEquation {
    grid: Grid,
    solver: Solver,
}

enum Solver {
    Darcy { solver: Box<DarcySolver>, source: Vec<f64>, floor: f64, equation: Box<SoftConstraint> },
    Helmholtz(Box<HelmholtzSolver>),
}

/// A sampled solution against the one that the solver finds for the sampled coefficients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// ‖s − s*‖ / ‖s*‖ over nodes, without the means for a pressure, which is known up to a constant only; `None` if
    /// there is no solution s* or it vanishes.
    pub error: Option<f64>,
    /// Nodes whose permeability was lifted to the floor.
    pub lifted: usize,
}

impl TrueEquation {
    /// The equation of `generator`, which made `data`; `None` if it makes points, not fields.
    pub fn new(generator: &Generator, data: &Dataset) -> Result<Option<Self>> {
        let names = generator.fields().map(|f| f.name.to_string());
        let grid = generator.grid();
        if data.fields != names || data.grid != grid {
            let problem = format!(
                "the data have the fields {} on {} × {} nodes, the generator makes {} on {} × {}",
                data.fields.join(", "),
                data.grid.rows,
                data.grid.cols,
                names.join(", "),
                grid.rows,
                grid.cols
            );
            return Err(Error::input("data.generator", problem).hint("set it to what made the data"));
        }
        let refused = |e: &dyn std::fmt::Display| Error::input("data.generator", e);
        let solver = match generator {
            Generator::Points { .. } => return Ok(None),
            Generator::Darcy { flow, discretisation, .. } => {
                let Some(equation) = generator.equation() else { return Ok(None) };
                let nodes = data.train.chunks_exact(grid.len()).skip(PERMEABILITY).step_by(names.len()).flatten();
                Solver::Darcy {
                    solver: Box::new(DarcySolver::new(&grid, *discretisation).map_err(|e| refused(&e))?),
                    source: corner_source(&grid, *flow),
                    floor: PERMEABILITY_FLOOR * f64::from(nodes.copied().fold(f32::INFINITY, f32::min)),
                    equation: Box::new(SoftConstraint::new(&equation, &names, &grid, &Units::identity(names.len()))?),
                }
            }
            Generator::Helmholtz { wave_number, .. } => {
                Solver::Helmholtz(Box::new(HelmholtzSolver::new(&grid, *wave_number).map_err(|e| refused(&e))?))
            }
        };
        Ok(Some(Self { grid, solver }))
    }

    /// The channel that the solver computes from the other.
    pub fn solution(&self) -> usize {
        match self.solver {
            Solver::Darcy { .. } => PRESSURE,
            Solver::Helmholtz(_) => SOLUTION,
        }
    }

    /// Solves for the sampled coefficients and compares; `fields` are one sample's `[H, W]` each.
    pub fn compare(&self, fields: &[Vec<f64>]) -> Comparison {
        match &self.solver {
            Solver::Darcy { solver, source, floor, .. } => {
                let permeability: Vec<f64> = fields[PERMEABILITY].iter().map(|k| k.max(*floor)).collect();
                let lifted = fields[PERMEABILITY].iter().filter(|k| **k < *floor).count();
                let exact = solver.solve(&permeability, source).ok();
                let centred = exact.map(|p| (centred(&fields[PRESSURE]), centred(&p)));
                Comparison { error: centred.and_then(|(p, exact)| relative_error(&p, &exact)), lifted }
            }
            Solver::Helmholtz(solver) => {
                let exact = solver.solve(&fields[SOURCE]).ok();
                Comparison { error: exact.and_then(|u| relative_error(&fields[SOLUTION], &u)), lifted: 0 }
            }
        }
    }

    /// Mean of |∂p/∂n| over the nodes of the four sides (one-sided stencils), or of |u| over the border nodes; `None` if
    /// it is not finite.
    pub fn boundary(&self, fields: &[Vec<f64>]) -> Option<f64> {
        let Grid { rows, cols, .. } = self.grid;
        let mean = match &self.solver {
            Solver::Darcy { .. } => self.normal_slopes(fields)? / (2 * (rows + cols)) as f64,
            Solver::Helmholtz(_) => {
                let border = |node: &usize| {
                    let (row, col) = (node / cols, node % cols);
                    row == 0 || row + 1 == rows || col == 0 || col + 1 == cols
                };
                let nodes: Vec<usize> = (0..rows * cols).filter(border).collect();
                nodes.iter().map(|&node| fields[SOLUTION][node].abs()).sum::<f64>() / nodes.len() as f64
            }
        };
        mean.is_finite().then_some(mean)
    }

    /// PIDM's residual of Darcy flow: the mean of |·| over the equation at all nodes and two further channels with the
    /// outward slopes of the pressure, which are zero away from the sides; 3 H W entries. `None` for other equations, or
    /// if it is not finite.
    pub fn three_channel_residual(&self, fields: &[Vec<f64>]) -> Option<f64> {
        let Solver::Darcy { equation, .. } = &self.solver else { return None };
        let inside: f64 = equation.residual_values(fields).iter().flatten().map(|r| r.abs()).sum();
        let mean = (inside + self.normal_slopes(fields)?) / (3 * self.grid.len()) as f64;
        mean.is_finite().then_some(mean)
    }

    /// Sum of |∂p/∂n| over the sides; corners count on both of theirs.
    fn normal_slopes(&self, fields: &[Vec<f64>]) -> Option<f64> {
        let slopes = boundary_residual(&self.grid, &fields[PRESSURE]).ok()?;
        Some(slopes.iter().flatten().map(|s| s.abs()).sum())
    }
}

fn centred(values: &[f64]) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|v| v - mean).collect()
}

/// ‖found − exact‖ / ‖exact‖, if finite.
fn relative_error(found: &[f64], exact: &[f64]) -> Option<f64> {
    let gap: f64 = found.iter().zip(exact).map(|(f, e)| (f - e).powi(2)).sum();
    let size: f64 = exact.iter().map(|e| e * e).sum();
    let error = (gap / size).sqrt();
    error.is_finite().then_some(error)
}
