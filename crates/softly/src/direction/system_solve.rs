//! Several equations solved for one or more fields at once, the others standing still.
//!
//! With R the stacked residuals and J = ∂R/∂u for all unknown fields u, the step δ = −S Jᵀ (J S Jᵀ + V)⁻¹ R solves every equation
//! that can be solved, border and initial conditions among them. V is small: equations that contradict each other are met in the
//! sense of least squares, each measured by how strongly it acts. Of all steps that do, δ is the one of least S⁻¹-norm, and S evens
//! out what the equations feel: without it smooth errors, which a Laplacian hardly feels, would be neglected.

use burn::tensor::{DType, Tensor};
use softly_pde::region::Region;
use softly_pde::stencil::StencilError;

use crate::constraint::SoftConstraint;
use crate::constraint::basis::Basis;
use crate::direction::Site;
use crate::direction::equation::undetermined;
use crate::direction::field_solve::by_name;
use crate::direction::floors::Floors;
use crate::direction::stack::Stack;
use crate::direction::update::{Misfit, Update};
use crate::error::{Error, Result};

/// V relative to J S Jᵀ: what a step leaves of a residual that it could remove.
const DAMPING: f64 = 1e-4;

/// The solution of several equations for several fields.
pub(crate) struct SystemSolve {
    /// The formulas in the direction's own discretisation.
    constraint: SoftConstraint,
    stack: Stack,
    /// Fields that are solved for.
    pub unknowns: usize,
    iterations: usize,
}

impl SystemSolve {
    /// Solves the residuals `parts` at `site` for the fields `unknowns`, by slot.
    pub fn new(site: Site<'_>, parts: &[usize], unknowns: &[usize]) -> Result<Self> {
        let names: Vec<String> = unknowns.iter().map(|&slot| site.formulas.fields[slot].clone()).collect();
        let residuals = site.formulas.residuals();
        let full = |&part: &usize| matches!(residuals[part].region, Region::All | Region::Interior);
        if !parts.iter().any(full) {
            let region = parts.first().map_or(&Region::Border, |&part| &residuals[part].region);
            return Err(undetermined(&names.join("`, `"), region));
        }
        let mut own = site.formulas.clone();
        if let Some(stencil) = &site.settings.newton.stencil {
            let refused =
                |e: StencilError| Error::input("denoiser.scd.newton.stencil", &e).hint(e.hint().unwrap_or_default());
            for name in names {
                // Axes that the stencil does not name stay as they are given for the field.
                let given = site.formulas.schemes_of(&name, site.grid)?;
                let schemes = stencil.schemes(site.grid, given).map_err(refused)?;
                own.stencils.insert(name, by_name(site.grid, schemes));
            }
        }
        let constraint =
            SoftConstraint::new(&own, site.fields, site.grid, site.units)?.sharing_parameters_of(site.constraint);
        let basis = Basis::of_data(&constraint, &own, site.fields, site.grid)?;
        let stack = Stack::new(&constraint, &own, basis, parts, |slot| unknowns.contains(&slot))?;
        Ok(Self { constraint, stack, unknowns: unknowns.len(), iterations: site.settings.newton.iterations })
    }

    /// δ in normalised units and in numbers of the type `working`, `[N, C, H, W]`, not limited; zero in channels that are not
    /// solved for.
    pub fn step(&self, working: DType, base: &Tensor<4>, floors: &Floors) -> Tensor<4> {
        let linearised = self.constraint.linearised_system(self.stack.parts(), base, |fields| floors.lift(fields));
        let linearised = linearised.working_in(working);
        let base = linearised.fields();
        let probe = self.stack.probe(&linearised, base);
        let prior = self.stack.evening(&probe, base);
        let misfit = Misfit {
            deviation: probe.size.clone() * self.stack.inside(base),
            spectrum: self.stack.variance(&probe, &prior) * DAMPING,
        };
        let right = linearised.residual().neg();
        let iterations = vec![self.iterations; base.dims()[0]];
        Update::new(&self.stack, &probe, &linearised, prior, misfit).step(right, &iterations)
    }
}
