//! One equation solved for one field, the others standing still: p_solve(K_D) − p_D.
//!
//! With R the residual and J = ∂R/∂p at the base estimate, the step δ solves J δ = −R: exactly the solution for equations
//! that are linear in p, one Gauss–Newton step for others. It takes a fixed number of Krylov iterations on the formula's own Jacobian
//! products, preconditioned by a constant-coefficient inverse in the basis that diagonalises it, all in tensor
//! operations.

use burn::tensor::{DType, Tensor};
use softly_pde::derivative::Scheme;
use softly_pde::grid::{AxisId, Grid};
use softly_pde::stencil::Stencil;

use crate::constraint::SoftConstraint;
use crate::constraint::basis::{Basis, Family, Transform, eigenvalues};
use crate::constraint::linearised::Linearised;
use crate::direction::Site;
use crate::direction::equation::{Equation, ignores_constants};
use crate::direction::floors::Floors;
use crate::direction::krylov::{conjugate_residuals, sum};
use crate::direction::symbol::Symbol;
use crate::error::{Error, Result};
use crate::tensors::per_node;

/// The solution of one equation for one field.
///
/// Nodes outside the equation's region keep their values, and if the equation only fixes the field up to a constant, so does the
/// field's mean.
pub(crate) struct FieldSolve {
    /// The formula in the direction's own discretisation.
    constraint: SoftConstraint,
    equation: usize,
    slot: usize,
    /// The channel of the solved field.
    pub channel: usize,
    channels: usize,
    basis: Basis,
    /// Eigenvalue of the Laplacian for every coefficient, `[H, W]`.
    eigenvalues: Vec<f64>,
    /// 1 for coefficients that the step has, 0 for others, `[H, W]`.
    modes: Vec<f64>,
    /// Weight of every node in a mean, `[H, W]`, summing to 1.
    weights: Vec<f64>,
    /// The equation only fixes the field up to a constant.
    up_to_constant: bool,
    iterations: usize,
}

impl FieldSolve {
    /// Solves `equation` at `site`.
    pub fn new(site: Site<'_>, Equation { residual: equation, slot, inner }: Equation) -> Result<Self> {
        let config = &site.settings.newton;
        let (solve_for, grid) = (&site.formulas.fields[slot], site.grid);

        let given = site.formulas.schemes_of(solve_for, grid)?;
        // In the interior one-sided stencils are plain central ones.
        let consistent = |scheme: Scheme| match scheme {
            Scheme::OneSided2 | Scheme::OneSided4 if !inner => Scheme::Mirror,
            scheme => scheme,
        };
        let schemes = match &config.stencil {
            Some(stencil) => stencil
                .schemes(grid, given.map(consistent))
                .map_err(|e| Error::input("denoiser.scd.newton.stencil", &e).hint(e.hint().unwrap_or_default()))?,
            None => given.map(consistent),
        };
        let mut own = site.formulas.clone();
        own.stencils.insert(solve_for.clone(), by_name(grid, schemes));
        let own = SoftConstraint::new(&own, site.fields, grid, site.units)?.sharing_parameters_of(site.constraint);

        let families = AxisId::BOTH.map(|id| match (inner, grid.axis(id).periodic) {
            (true, false) => Family::InnerSine,
            _ => Family::of_derivative(schemes[id as usize], grid.axis(id)),
        });
        let up_to_constant = !inner && ignores_constants(&own, equation, slot);
        let along = |id: AxisId| eigenvalues(families[id as usize], schemes[id as usize], grid.axis(id));
        let [along_rows, along_cols] = AxisId::BOTH.map(along);
        let pairs = || along_rows.iter().flat_map(|&x| along_cols.iter().map(move |&y| (x, y)));
        let mut modes: Vec<f64> = pairs().map(|(x, y)| if x.is_some() && y.is_some() { 1.0 } else { 0.0 }).collect();
        if up_to_constant {
            modes[0] = 0.0;
        }
        let weight = |node: usize| {
            families[0].node_weight(node / grid.cols(), grid.rows())
                * families[1].node_weight(node % grid.cols(), grid.cols())
        };
        let total: f64 = (0..grid.len()).map(weight).sum();
        Ok(Self {
            equation,
            slot,
            channel: own.fields[slot].channel,
            channels: site.fields.len(),
            constraint: own,
            basis: Basis::new(vec![families], grid.rows(), grid.cols()),
            eigenvalues: pairs().map(|(x, y)| x.unwrap_or(0.0) + y.unwrap_or(0.0)).collect(),
            modes,
            weights: (0..grid.len()).map(|node| weight(node) / total).collect(),
            up_to_constant,
            iterations: config.iterations,
        })
    }

    /// δ in normalised units and in numbers of the type `working`, `[N, H, W]`, not limited.
    ///
    /// Generalised conjugate residuals on P⁻¹J δ = −P⁻¹R: the least ‖P⁻¹(R + Jδ)‖ is close to the least error. (The least
    /// ‖R + Jδ‖ would neglect smooth errors, which a Laplacian hardly feels.)
    pub fn step(&self, working: DType, base: &Tensor<4>, floors: &Floors) -> Tensor<3> {
        let linearised =
            self.constraint.linearised(self.equation, base, |fields| floors.lift(fields)).working_in(working);
        let preconditioner = Preconditioner::new(self, &linearised, linearised.fields());
        let right = preconditioner.apply(linearised.residual().neg());
        let step = conjugate_residuals(right, self.iterations, |search| {
            preconditioner.apply(linearised.product_of(self.slot, search))
        });
        if self.up_to_constant { step.clone() - sum(step * preconditioner.weights) } else { step }
    }

    /// A step of the solved field `[N, 1, H, W]` with zeros in all other channels, `[N, C, H, W]`.
    pub fn in_its_channel(&self, step: Tensor<4>) -> Tensor<4> {
        let [n, _, h, w] = step.dims();
        let zeros = |count| Tensor::zeros([n, count, h, w], (&step.device().without_autodiff(), step.dtype()));
        let after = self.channels - self.channel - 1;
        let mut parts = Vec::with_capacity(3);
        if self.channel > 0 {
            parts.push(zeros(self.channel));
        }
        parts.push(step.clone());
        if after > 0 {
            parts.push(zeros(after));
        }
        Tensor::cat(parts, 1)
    }
}

/// A stencil that names the scheme of each axis of `grid`.
pub(super) fn by_name(grid: &Grid, schemes: [Scheme; 2]) -> Stencil {
    Stencil::PerAxis(grid.axes.iter().zip(schemes).map(|(axis, scheme)| (axis.name.clone(), scheme)).collect())
}

/// P = √c (∇² + κ) √c, the nearest thing to J that is inverted by a transform: c is the coefficient of the Laplacian at every node
/// and κ the mean ratio of the zeroth-order coefficient to it.
///
/// For ∇·(K∇p), c = K: √K ∇²(√K p) differs from it by p √K ∇²√K only. For ∇²u + k²u it is J itself.
struct Preconditioner {
    transform: Transform,
    /// ± 1/√|c|, with the sign of the mean c, and 1/√|c|; `[N, H, W]` each.
    roots: [Tensor<3>; 2],
    /// 1/(λ + κ) by coefficient, 0 for those that are left out, `[N or 1, 1, H, W]`.
    inverse: Tensor<4>,
    /// Weights of the nodes in a mean, `[1, H, W]`.
    weights: Tensor<3>,
    /// If the equation fixes the field up to a constant only, it also has a solution only if the source is balanced:
    /// what is subtracted from every residual of unit weighted mean.
    balance: Option<Tensor<3>>,
}

impl Preconditioner {
    fn new(direction: &FieldSolve, linearised: &Linearised<'_>, like: &Tensor<4>) -> Self {
        let grid = direction.constraint.grid();
        let (h, w) = (grid.rows(), grid.cols());
        let constant = |values: Vec<f64>| per_node(values, grid, like);
        let Symbol { size, sign, zeroth } = Symbol::of(linearised, direction.slot, grid, like);
        let root = size.clone().sqrt().recip();
        let eigenvalues = constant(direction.eigenvalues.clone()).reshape([1, 1, h, w]);
        let modes = constant(direction.modes.clone()).reshape([1, 1, h, w]);
        let shifted = if direction.up_to_constant {
            eigenvalues
        } else {
            let inside = (0..grid.len()).map(|node| {
                let (i, j) = (node / w, node % w);
                if i > 0 && j > 0 && i + 1 < h && j + 1 < w { 1.0 / ((h - 2) * (w - 2)) as f64 } else { 0.0 }
            });
            let ratio = zeroth / size * sign.clone();
            let mean = sum(ratio * constant(inside.collect()));
            let n = mean.dims()[0];
            eigenvalues + mean.reshape([n, 1, 1, 1])
        };
        // 1/x that stays finite at a resonance: the guard is far below the slowest wave's eigenvalue.
        let [x, y] = AxisId::BOTH.map(|axis| (std::f64::consts::PI / grid.length(axis)).powi(2));
        let guard = (1e-4 * x.min(y)).powi(2);
        let inverse = modes * shifted.clone() / (shifted.clone() * shifted + guard);
        let weights = constant(direction.weights.clone());
        let balance = direction.up_to_constant.then(|| {
            let shape = root.clone() * weights.clone();
            shape.clone() / sum(shape * weights.clone())
        });
        Self {
            transform: direction.basis.transform(like),
            roots: [root.clone() * sign, root],
            inverse,
            weights,
            balance,
        }
    }

    /// P⁻¹ residual, `[N, H, W]` both.
    fn apply(&self, residual: Tensor<3>) -> Tensor<3> {
        let [n, h, w] = residual.dims();
        let [before, after] = &self.roots;
        let mut scaled = residual * before.clone();
        if let Some(balance) = &self.balance {
            let mean = sum(scaled.clone() * self.weights.clone());
            scaled = scaled - balance.clone() * mean;
        }
        let coefficients = self.transform.coefficients(scaled.reshape([n, 1, h, w])) * self.inverse.clone();
        self.transform.fields(coefficients).reshape([n, h, w]) * after.clone()
    }
}
