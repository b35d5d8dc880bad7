//! Several equations as one: the waves that each of them is seen in, and how strongly it acts on them.
//!
//! The strengths (`variance`, `probe`) are for preconditioners: a wrong one costs iterations, never the answer.

use burn::tensor::Tensor;
use softly_pde::derivative::Scheme;
use softly_pde::grid::{Axis, AxisId, Grid};
use softly_pde::region::Region;

use crate::constraint::SoftConstraint;
use crate::constraint::basis::{Basis, Family, eigenvalues, squared_overlaps};
use crate::constraint::config::ConstraintConfig;
use crate::constraint::linearised::{LinearisedSystem, stacked};
use crate::direction::equation::{Role, roles};
use crate::direction::krylov::sum;
use crate::direction::symbol::{AxisSymbol, Energy, short_wave};
use crate::error::Result;
use crate::tensors::{constant, per_node};

/// E equations of a constraint with their fields.
pub(crate) struct Stack {
    grid: Grid,
    equations: Vec<StackedEquation>,
    /// Of the fields, one pair of families per channel.
    pub fields: Basis,
    /// Of the residuals, one pair of families per equation: nodes inside and outside of the equation's region never share a
    /// function.
    pub residuals: Basis,
}

struct StackedEquation {
    /// Place in the constraint.
    part: usize,
    /// 1 where the equation counts, else 0, `[H, W]`.
    inside: Vec<f64>,
    /// The field whose second derivatives are the strongest, if there is one.
    principal: Option<usize>,
    terms: Vec<Term>,
}

/// A field in an equation.
struct Term {
    slot: usize,
    channel: usize,
    /// Eigenvalues of the field's second derivative along each axis by functions of the residual.
    of_residual: [Vec<f64>; 2],
    /// The same by functions of the field.
    of_field: [Vec<f64>; 2],
    /// Matrices along each axis that turn a variance by functions of the field into one by functions of the residual; `None` if
    /// the functions are the same.
    overlaps: Option<[Vec<f64>; 2]>,
}

/// What the equations do at given fields.
pub(crate) struct Probe {
    /// How strongly each equation acts at each node, up to a factor, `[N, E, H, W]`.
    pub size: Tensor<4>,
    /// |J / size|² by equation and term.
    energies: Vec<Vec<Energy>>,
}

impl Stack {
    /// The equations `parts` of `constraint`, whose formulas are `formulas`, on fields that are seen in the basis `fields`; only
    /// those fields move for which `moves` of their slot is true.
    pub fn new(
        constraint: &SoftConstraint,
        formulas: &ConstraintConfig,
        fields: Basis,
        parts: &[usize],
        moves: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let grid = constraint.grid();
        let residuals = formulas.residuals();
        let (mut equations, mut families) = (Vec::new(), Vec::new());
        for &part in parts {
            let roles = roles(constraint, part, fields.shape()[0]);
            let slots: Vec<usize> = (0..roles.len()).filter(|&slot| roles[slot].is_some() && moves(slot)).collect();
            let strength = |slot: &usize| roles[*slot].as_ref().map_or(0.0, Role::laplacian);
            let principal = slots.iter().copied().filter(|slot| strength(slot) > 0.0);
            let principal = principal.max_by(|a, b| strength(a).total_cmp(&strength(b)));
            let leading = principal.or(slots.first().copied()).map(|slot| constraint.fields[slot].channel);
            let own = residual_families(&residuals[part].region, leading.map(|channel| fields.families(channel)), grid);
            let term = |slot: usize| Term::new(constraint, formulas, &fields, own, slot);
            equations.push(StackedEquation {
                part,
                inside: constraint.counts(part).into_iter().map(|counts| if counts { 1.0 } else { 0.0 }).collect(),
                principal,
                terms: slots.into_iter().map(term).collect::<Result<_>>()?,
            });
            families.push(own);
        }
        let residuals = Basis::new(families, grid.rows(), grid.cols());
        Ok(Self { grid: grid.clone(), equations, fields, residuals })
    }

    /// The places of the equations in the constraint.
    pub fn parts(&self) -> impl Iterator<Item = usize> {
        self.equations.iter().map(|equation| equation.part)
    }

    /// 1 where an equation counts, else 0, `[1, E, H, W]`.
    pub fn inside(&self, like: &Tensor<4>) -> Tensor<4> {
        stacked(self.equations.iter().map(|equation| per_node(equation.inside.clone(), &self.grid, like)))
    }

    /// The mean over the nodes where an equation counts of `x` `[N, E, H, W]`, zero elsewhere, `[N, E, 1, 1]`.
    pub fn mean(&self, x: Tensor<4>) -> Tensor<4> {
        let counts = self.equations.iter().map(|equation| 1.0 / equation.count()).collect::<Vec<_>>();
        let counts = constant(counts, [1, self.equations.len(), 1, 1], &x.device(), x.dtype());
        x.sum_dim(3).sum_dim(2) * counts
    }

    /// What the equations, which are `linearised`, do at the fields `like` `[N, C, H, W]`.
    pub fn probe(&self, linearised: &LinearisedSystem<'_>, like: &Tensor<4>) -> Probe {
        let [n, _, h, w] = like.dims();
        let (mut sizes, mut energies) = (Vec::new(), Vec::new());
        for (equation, linearised) in self.equations.iter().zip(&linearised.equations) {
            let symbols: Vec<AxisSymbol> =
                equation.terms.iter().map(|term| AxisSymbol::of(linearised, term.slot, &self.grid, like)).collect();
            let leading = equation.terms.iter().position(|term| Some(term.slot) == equation.principal);
            let size = match leading {
                Some(leading) => equation.size(&symbols[leading]),
                None => Tensor::ones([n, h, w], (&like.device().without_autodiff(), like.dtype())),
            };
            let weights = (size.clone() * size.clone()).recip() / equation.count();
            energies.push(symbols.iter().map(|symbol| symbol.energy(&weights)).collect());
            sizes.push(size);
        }
        Probe { size: stacked(sizes.into_iter()), energies }
    }

    /// The variance of J x / size by function of each residual, `[N, E, H, W]`, if `covariance` `[N, C, H, W]` is the variance of
    /// x by function of each field.
    pub fn variance(&self, probe: &Probe, covariance: &Tensor<4>) -> Tensor<4> {
        let of_equation = |(equation, energies): (&StackedEquation, &Vec<Energy>)| {
            let of_term = |(term, energy): (&Term, &Energy)| {
                let variance = covariance.clone().narrow(1, term.channel, 1);
                energy.at(&along_axes(&term.of_residual, covariance)) * term.transferred(variance)
            };
            let sum = equation.terms.iter().zip(energies).map(of_term).reduce(|a, b| a + b);
            sum.unwrap_or_else(|| covariance.clone().narrow(1, 0, 1).zeros_like())
        };
        Tensor::cat(self.equations.iter().zip(&probe.energies).map(of_equation).collect(), 1)
    }

    /// A variance by function of each field, `[N, C, H, W]`, for which no equation feels any wave much more than others: the
    /// inverse of what all equations feel of it, each measured by the mean of what it feels. Zero for fields that do not move.
    pub fn evening(&self, probe: &Probe, like: &Tensor<4>) -> Tensor<4> {
        let [n, c, h, w] = like.dims();
        let mut felt: Vec<Option<Tensor<4>>> = vec![None; c];
        for (equation, energies) in self.equations.iter().zip(&probe.energies) {
            let energy = |(term, energy): (&Term, &Energy)| energy.at(&along_axes(&term.of_field, like));
            let energies: Vec<Tensor<4>> = equation.terms.iter().zip(energies).map(energy).collect();
            let mean = energies.iter().map(|energy| sum(energy.clone())).reduce(|a, b| a + b);
            let Some(mean) = mean.map(|mean| (mean / (h * w) as f64).clamp_min(1e-24)) else { continue };
            for (term, energy) in equation.terms.iter().zip(energies) {
                let share = energy / mean.clone();
                let sum = &mut felt[term.channel];
                *sum = Some(sum.take().map_or(share.clone(), |before| before + share));
            }
        }
        let zeros = || Tensor::zeros([n, 1, h, w], (&like.device().without_autodiff(), like.dtype()));
        let inverse = |felt: Tensor<4>| {
            let least = sum(felt.clone()) * (EVENING / (h * w) as f64);
            (felt + least.clamp_min(EVENING)).recip()
        };
        Tensor::cat(felt.into_iter().map(|felt| felt.map_or_else(zeros, inverse)).collect(), 1)
    }
}

/// The least share of the mean that a wave counts with in [`Stack::evening`]: what equations do not feel at all has no inverse.
const EVENING: f64 = 1e-6;

impl StackedEquation {
    /// Nodes where the equation counts.
    fn count(&self) -> f64 {
        self.inside.iter().sum::<f64>().max(1.0)
    }

    /// √(a_x² + a_y²) at every node, kept away from zero, `[N, H, W]`.
    fn size(&self, symbol: &AxisSymbol) -> Tensor<3> {
        let [x, y] = symbol.second.clone();
        let square = x.clone() * x + y.clone() * y;
        let mean = sum(square.clone()) / self.count();
        (square + mean * 1e-4).clamp_min(1e-24).sqrt()
    }
}

impl Term {
    fn new(
        constraint: &SoftConstraint,
        formulas: &ConstraintConfig,
        fields: &Basis,
        residual: [Family; 2],
        slot: usize,
    ) -> Result<Self> {
        let grid = constraint.grid();
        let channel = constraint.fields[slot].channel;
        let own = fields.families(channel);
        let schemes = formulas.schemes_of(&formulas.fields[slot], grid)?;
        // One-sided rows, which are far larger than others, would spoil the means that stand in for eigenvalues. Single nodes are
        // short waves.
        let central = |scheme: Scheme| match scheme {
            Scheme::OneSided2 | Scheme::OneSided4 => Scheme::Mirror,
            scheme => scheme,
        };
        let by = |families: [Family; 2]| {
            AxisId::BOTH.map(|id| {
                let values = eigenvalues(families[id as usize], central(schemes[id as usize]), grid.axis(id));
                values.into_iter().map(|value| value.unwrap_or(short_wave(grid, id))).collect()
            })
        };
        let overlaps = |id: AxisId| squared_overlaps(residual[id as usize], own[id as usize], grid.nodes(id));
        Ok(Self {
            slot,
            channel,
            of_residual: by(residual),
            of_field: by(own),
            overlaps: (residual != own).then(|| AxisId::BOTH.map(overlaps)),
        })
    }

    /// A variance by function of the field → by function of the residual, `[N, 1, H, W]` both.
    fn transferred(&self, variance: Tensor<4>) -> Tensor<4> {
        let Some([rows, cols]) = &self.overlaps else { return variance };
        let [_, _, h, w] = variance.dims();
        let matrix = |values: &[f64], n: usize| -> Tensor<4> {
            constant(values.to_vec(), [1, 1, n, n], &variance.device(), variance.dtype())
        };
        let (rows, cols) = (matrix(rows, h), matrix(cols, w).swap_dims(2, 3));
        rows.matmul(variance).matmul(cols)
    }
}

/// Families for an equation on `region` of `grid` whose strongest field has the families `leading`.
fn residual_families(region: &Region, leading: Option<[Family; 2]>, grid: &Grid) -> [Family; 2] {
    AxisId::BOTH.map(|id| {
        let Axis { periodic, name, .. } = grid.axis(id);
        let cut = match region {
            Region::All => false,
            Region::Interior | Region::Border => true,
            Region::End { axis, .. } => axis == name,
        };
        match leading {
            _ if *periodic => Family::Fourier,
            _ if cut => Family::InnerSine,
            Some(families) => families[id as usize],
            None => Family::Cosine,
        }
    })
}

/// Eigenvalues along rows and columns as tensors `[1, 1, H, 1]` and `[1, 1, 1, W]`.
fn along_axes([rows, cols]: &[Vec<f64>; 2], like: &Tensor<4>) -> [Tensor<4>; 2] {
    let (device, dtype) = (like.device(), like.dtype());
    [
        constant(rows.clone(), [1, 1, rows.len(), 1], &device, dtype),
        constant(cols.clone(), [1, 1, 1, cols.len()], &device, dtype),
    ]
}
