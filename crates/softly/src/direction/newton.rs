//! The step that would make the equations hold for the fields that are solved for, the others standing still.
//!
//! One field with one equation is solved by itself ([`FieldSolve`]); several fields, or a field with boundary and initial
//! conditions, are solved with all their equations at once ([`SystemSolve`]).

use burn::tensor::{DType, Tensor};

use crate::denoiser::edm::Precondition;
use crate::direction::equation::{Equation, check_nodes, residuals_with, unknowns};
use crate::direction::field_solve::FieldSolve;
use crate::direction::floors::Floors;
use crate::direction::system_solve::SystemSolve;
use crate::direction::trust::{limited, mean_square};
use crate::direction::{BuildDirection, Direction, Needs, Site};
use crate::error::{Error, Result};
use crate::host::on_host;

/// Steps of a projection: one solves a linear equation to the accuracy of its iterations, the second squares that.
const PROJECTION: usize = 2;

/// v = δ limited to an RMS of 3 c_out in the channels of the solved fields, zero in all others.
pub struct NewtonDirection {
    solve: Solve,
    floors: Floors,
    stop_gradient: bool,
}

enum Solve {
    Field(Box<FieldSolve>),
    System(Box<SystemSolve>),
}

impl BuildDirection for NewtonDirection {
    const NEEDS: Needs = Needs { solve_for: true, grid: true, trained_base: false };
    const PROJECTS: bool = true;

    fn build(site: Site<'_>) -> Result<Self> {
        let config = &site.settings.newton;
        if config.iterations == 0 {
            return Err(Error::input("denoiser.scd.newton.iterations", "expected at least 1, found 0"));
        }
        check_nodes(site.grid, "newton")?;
        let unknowns = unknowns(site)?;
        let floors = Floors::of(site, &unknowns)?;
        let residuals = residuals_with(site, &unknowns)?;
        let solve = match (&unknowns[..], &residuals[..]) {
            (&[slot], &[residual]) => {
                Solve::Field(Box::new(FieldSolve::new(site, Equation::of(site, residual, slot)?)?))
            }
            _ => Solve::System(Box::new(SystemSolve::new(site, &residuals, &unknowns)?)),
        };
        // Stopping gradients is for training: guidance and likelihood differentiate the denoiser as it is.
        Ok(Self { solve, floors, stop_gradient: config.stop_gradient && site.device.is_autodiff() })
    }
}

impl NewtonDirection {
    /// δ in normalised units and in numbers of the type `working`, `[N, C, H, W]`, changed by `limit`, which is given the part of it
    /// that moves.
    fn step(
        &self,
        working: DType,
        base: &Tensor<4>,
        limit: impl FnOnce(Tensor<4>, Tensor<4>) -> Tensor<4>,
    ) -> Tensor<4> {
        let [n, c, h, w] = base.dims();
        match &self.solve {
            Solve::Field(solve) => {
                let step = solve.step(working, base, &self.floors).reshape([n, 1, h, w]);
                let mean_square = mean_square(&step);
                solve.in_its_channel(limit(step, mean_square))
            }
            Solve::System(solve) => on_host(working, base, |working, base| {
                let step = solve.step(working, base, &self.floors);
                let mean_square = mean_square(&step) * (c as f64 / solve.unknowns as f64);
                limit(step, mean_square)
            }),
        }
    }
}

impl Direction for NewtonDirection {
    fn correction_in(
        &self,
        working: DType,
        base: &Tensor<4>,
        _sigma: &[f64],
        coefficients: &[Precondition],
    ) -> Tensor<4> {
        let base = if self.stop_gradient { base.clone().detach() } else { base.clone() };
        self.step(working, &base, |step, mean_square| limited(step, mean_square, coefficients))
    }

    fn project(&self, estimate: &Tensor<4>) -> Option<Tensor<4>> {
        let step = |x: Tensor<4>| x.clone() + self.step(x.dtype(), &x, |step, _| step);
        Some((0..PROJECTION).fold(estimate.clone(), |x, _| step(x)))
    }
}
