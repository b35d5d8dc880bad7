//! How much of a residual is discretisation: the same formula with stencils of another order, and on every second
//! point.
//!
//! R_h = E + τ_h, with E the error of the model or of the data and τ_h = O(h^p) the error of the stencils. Stencils of
//! a higher order have a smaller τ on smooth data, so R_low − R_high ≈ τ_low; on every second point τ grows 2^p-fold
//! and E does not.

use rayon::prelude::*;
use serde::Serialize;

use crate::algebra::Value;
use crate::audit::claim::{Claim, Ready, Sample, restricted};
use crate::derivative::Scheme;
use crate::grid::{Axis, AxisId};

/// Samples that are looked at.
const SAMPLES: usize = 64;
/// Points next to an end that are left out where stencils with an assumption about the ends are compared.
const MARGIN: usize = 3;

/// A residual with stencils of another order and on a coarser grid; sizes are √⟨·²⟩ in units of the residual.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Discretisation {
    /// The other stencils in words.
    pub other: String,
    /// Whether their order is higher.
    pub higher: bool,
    /// The size of the residual with the given stencils, where both can be compared.
    pub given_rms: f64,
    /// The size of the residual with the other stencils.
    pub other_rms: f64,
    /// The size of the difference of both.
    pub difference_rms: f64,
    /// Estimated part of the given residual that is discretisation, from 0 to 1: 1 − other / given with a higher order.
    /// None if that cannot be told.
    pub share: Option<f64>,
    /// log₂ of the growth of the residual on every second point: the stencils' order for pure discretisation, 0 for
    /// pure model error; none if the grid cannot be coarsened.
    pub order: Option<f64>,
    /// What follows.
    pub cause: Cause,
}

/// What a residual consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Discretisation.
    Stencils,
    /// Discretisation and something else, both noticeable.
    Both,
    /// Something else: the equation, its parameters, the grid, or errors of the data.
    Model,
    /// Stencils of different order disagree and none is clearly better: rough data, or data made with other stencils.
    Undecided,
}

/// The claim with stencils of another order, whether it is higher, and whether ends have to be left out.
pub(super) fn other_order(claim: &Claim) -> Option<(Claim, bool, bool)> {
    let raised = |scheme| match scheme {
        Scheme::OneSided2 | Scheme::Mirror | Scheme::Zero => Scheme::OneSided4,
        Scheme::Periodic => Scheme::Periodic4,
        other => other,
    };
    let lowered = |scheme| match scheme {
        Scheme::OneSided4 => Scheme::OneSided2,
        Scheme::Periodic4 => Scheme::Periodic,
        Scheme::Spectral => Scheme::Periodic4,
        other => other,
    };
    let higher = claim.with_schemes(raised);
    let changes = higher.schemes != claim.schemes || higher.field_schemes != claim.field_schemes;
    let other = if changes { higher } else { claim.with_schemes(lowered) };
    other.ready(&[]).is_ok().then_some((other, changes, assumes_ends(claim)))
}

/// Whether a scheme assumes how a field goes on beyond the ends of an axis.
fn assumes_ends(claim: &Claim) -> bool {
    let mut all = claim.field_schemes.values().flatten().chain(&claim.schemes);
    all.any(|scheme| matches!(scheme, Scheme::Mirror | Scheme::Zero))
}

/// What another order says about every equation of `claim`.
pub(super) fn discretisation(claim: &Claim, ready: &Ready, samples: &[Sample]) -> Vec<Option<Discretisation>> {
    let none = || vec![None; claim.equations.len()];
    if claim.grid.is_point() {
        return none();
    }
    let Some((other, higher, cut_ends)) = other_order(claim) else { return none() };
    let Ok(other_ready) = other.ready(&[]) else { return none() };
    let samples = &samples[..samples.len().min(SAMPLES)];
    let coarse = Coarse::new(claim);
    let away = |point: usize| {
        let cols = claim.grid.cols();
        AxisId::BOTH.into_iter().zip([point / cols, point % cols]).all(|(id, index)| {
            let axis = claim.grid.axis(id);
            axis.periodic || (index >= MARGIN && index + MARGIN < axis.nodes)
        })
    };
    let of_equation = |e: usize| {
        let equation = &ready.equations[e];
        let points: Vec<usize> = equation.points().filter(|&point| !cut_ends || away(point)).collect();
        // Formulas without derivatives have no discretisation.
        let derives = equation.programs.iter().any(|(_, program)| !program.operators().is_empty());
        if points.is_empty() || !derives {
            return None;
        }
        let sums: Vec<[f64; 4]> = samples
            .par_iter()
            .map(|sample| {
                let given = equation.residual(&ready.algebra, &ready.inputs(sample));
                let other = other_ready.equations[e].residual(&other_ready.algebra, &other_ready.inputs(sample));
                let mean = |f: &dyn Fn(usize) -> f64| {
                    points.iter().map(|&point| f(point).powi(2)).sum::<f64>() / points.len() as f64
                };
                let everywhere = equation.points().map(|p| given[p].powi(2)).sum::<f64>() / equation.count as f64;
                [mean(&|p| given[p]), mean(&|p| other[p]), mean(&|p| given[p] - other[p]), everywhere]
            })
            .collect();
        let rms = |k: usize| (sums.iter().map(|sum| sum[k]).sum::<f64>() / sums.len() as f64).sqrt();
        let [given_rms, other_rms, difference_rms] = [rms(0), rms(1), rms(2)];
        // A residual that lies at the ends cannot be judged away from them.
        if given_rms < 0.5 * rms(3) {
            return None;
        }
        let order = coarse.as_ref().and_then(|coarse| coarse.order(ready, e, samples));
        let cause = cause(higher, [given_rms, other_rms, difference_rms], order);
        let share = match cause {
            Cause::Undecided => None,
            Cause::Model if !higher => Some(0.0),
            Cause::Stencils if other_rms > given_rms => Some(1.0),
            _ => Some(1.0 - (other_rms / given_rms.max(f64::MIN_POSITIVE)).min(1.0)),
        };
        let other = words(&other, claim);
        Some(Discretisation { other, higher, given_rms, other_rms, difference_rms, share, order, cause })
    };
    (0..claim.equations.len()).map(of_equation).collect()
}

/// The cause by the sizes of the given residual, the other one and their difference.
fn cause(higher: bool, [given, other, difference]: [f64; 3], order: Option<f64>) -> Cause {
    if given == 0.0 {
        return Cause::Stencils;
    }
    let by_order = match order {
        Some(order) if order > 1.5 => Cause::Stencils,
        _ => Cause::Undecided,
    };
    if higher {
        match () {
            () if difference <= 0.35 * given => Cause::Model,
            () if other <= 0.35 * given => Cause::Stencils,
            () if other <= 0.7 * given && by_order == Cause::Undecided => Cause::Both,
            () => by_order,
        }
    } else if difference <= 0.35 * given {
        // Stencils of lower order have larger errors, and even those do not matter.
        Cause::Model
    } else {
        by_order
    }
}

/// The schemes of `claim` that differ from those of `given`.
fn words(claim: &Claim, given: &Claim) -> String {
    let first = claim.schemes[0];
    if claim.schemes.iter().chain(claim.field_schemes.values().flatten()).all(|scheme| *scheme == first) {
        return format!("{first} stencils");
    }
    let axes = AxisId::BOTH.into_iter().filter(|&id| claim.schemes[id as usize] != given.schemes[id as usize]);
    let mut words: Vec<String> =
        axes.map(|id| format!("{} along {}", claim.schemes[id as usize], claim.grid.axis(id).name)).collect();
    for (name, schemes) in &claim.field_schemes {
        if given.field_schemes.get(name) != Some(schemes) {
            words.push(format!("{} for {name}", schemes[0]));
        }
    }
    words.join(", ")
}

/// A claim on every second point along every axis.
struct Coarse {
    ready: Ready,
    fine: crate::grid::Grid,
    kept: [Vec<usize>; 2],
}

impl Coarse {
    fn new(claim: &Claim) -> Option<Self> {
        if claim.has_indices() {
            return None;
        }
        let assumes_ends = assumes_ends(claim);
        let mut coarse = claim.clone();
        let mut kept = [Vec::new(), Vec::new()];
        for id in AxisId::BOTH {
            let axis = claim.grid.axis(id);
            // Every second point of a periodic axis is equally spaced only if their number is even; a scheme that
            // assumes something beyond the ends needs the ends.
            let even = axis.nodes.is_multiple_of(2);
            if (axis.periodic && !even) || (assumes_ends && (even || !axis.has_end_nodes())) {
                return None;
            }
            let indices: Vec<usize> = (0..axis.nodes).step_by(2).collect();
            let first = axis.coordinate(0);
            let new = if axis.periodic {
                Axis::new(&axis.name, indices.len(), first, first + axis.length()).periodic()
            } else {
                // Nodes from the first kept point to the last one; cells become nodes.
                Axis::new(&axis.name, indices.len(), first, axis.coordinate(*indices.last()?))
            };
            coarse = coarse.restricted(id, &indices, new);
            kept[id as usize] = indices;
        }
        Some(Self { ready: coarse.ready(&[]).ok()?, fine: claim.grid.clone(), kept })
    }

    /// The values at the kept points.
    fn cut(&self, values: &[f64]) -> std::sync::Arc<[f64]> {
        let across = restricted(values, &self.fine, AxisId::Rows, &self.kept[0]);
        let mut narrowed = self.fine.clone();
        narrowed.axes[0].nodes = self.kept[0].len();
        restricted(&across, &narrowed, AxisId::Cols, &self.kept[1])
    }

    /// log₂ of the growth of the residual of equation `e` at the points that both grids share.
    fn order(&self, fine: &Ready, e: usize, samples: &[Sample]) -> Option<f64> {
        let points: Vec<usize> = self.ready.equations[e].points().collect();
        let squares = |values: &[f64]| points.iter().map(|&point| values[point].powi(2)).sum::<f64>();
        let sums: Vec<[f64; 2]> = samples
            .par_iter()
            .map(|sample| {
                let residual = fine.equations[e].residual(&fine.algebra, &fine.inputs(sample));
                let narrow: Sample =
                    sample.iter().map(|field| Value::Field(self.cut(&field.broadcast(self.fine.len())))).collect();
                let coarse = self.ready.equations[e].residual(&self.ready.algebra, &narrow);
                [squares(&self.cut(&residual)), squares(&coarse)]
            })
            .collect();
        let [fine, coarse] = [0, 1].map(|k| sums.iter().map(|sum| sum[k]).sum::<f64>());
        (fine > 0.0 && coarse > 0.0).then(|| 0.5 * (coarse / fine).log2())
    }
}
