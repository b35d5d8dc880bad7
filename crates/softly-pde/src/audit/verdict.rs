//! The verdict of an audit in words.

use crate::audit::EquationAudit;
use crate::audit::claim::Claim;
use crate::audit::discretisation::Cause;
use crate::audit::slips::Slip;
use crate::audit::words::percent;
use crate::derivative::Scheme;

/// Below this size relative to the largest term an equation is said to hold.
const CLOSELY: f64 = 0.02;
/// Below this size it is said to hold roughly.
const HOLDS: f64 = 0.1;
/// A residual up to this many times that of rounding is rounding.
const ROUNDING: f64 = 3.0;
/// A residual above this fraction of the residual of shuffled pairs is no better than those.
const SHUFFLED: f64 = 0.7;

/// The verdict on one equation.
pub(super) fn of_equation(audit: &EquationAudit, claim: &Claim) -> String {
    let Some(relative) = audit.relative else {
        return format!(
            "The equation {} has one term only, so there is nothing to compare its residual (mean |R| {:.3e}) with.",
            audit.formula, audit.mean_abs
        );
    };
    let size = format!("{} of its largest term ({})", percent(relative), audit.largest);
    if audit.rms <= ROUNDING * audit.rounding {
        return format!("The equation holds up to {size}, which is what storing the fields in single precision costs.");
    }
    let is_discretisation = audit.discretisation.as_ref().is_some_and(|d| d.cause == Cause::Stencils);
    let whole = if relative < CLOSELY || is_discretisation {
        format!("The equation holds up to {size}")
    } else if relative < HOLDS {
        format!("The equation holds roughly, up to {size}")
    } else {
        format!("The equation does not hold: its residual is {size}")
    };
    let mut verdict = format!("{whole}{}", cause(audit, claim));
    if let Some(shuffled) = audit.yardsticks.shuffled
        && audit.mean_abs > SHUFFLED * shuffled
        && relative >= HOLDS
    {
        verdict += " It is no smaller than for fields of different samples: do the fields belong together?";
    }
    verdict
}

/// Where the residual comes from, as the end of a sentence.
fn cause(audit: &EquationAudit, claim: &Claim) -> String {
    let Some(d) = &audit.discretisation else { return ".".into() };
    let share = |size: f64| percent(size / audit.scale);
    let order = stencils(claim);
    match d.cause {
        Cause::Stencils if d.higher && d.other_rms <= d.given_rms => {
            format!(
                ", which is what {order} stencils cost at this grid (with {} it is {}).",
                d.other,
                share(d.other_rms)
            )
        }
        Cause::Stencils => {
            let grows = d.order.map_or(0.0, f64::exp2);
            format!(
                ", which is what {order} stencils cost at this grid: on every second point it is {grows:.1} times as \
                 large."
            )
        }
        Cause::Both => {
            format!("; part of it is discretisation: {} leave {}.", d.other, share(d.other_rms))
        }
        Cause::Model => {
            let kind = if d.higher { "higher" } else { "lower" };
            format!(
                ", and hardly any of it is discretisation: with stencils of {kind} order ({}) it is {}.",
                d.other,
                share(d.other_rms)
            )
        }
        Cause::Undecided if d.other_rms > d.given_rms => format!(
            "; whether that is discretisation cannot be told: {} give more ({}), so the data are rough at the size of \
             the grid, or were made with stencils like the given ones.",
            d.other,
            share(d.other_rms)
        ),
        Cause::Undecided => {
            format!("; whether that is discretisation cannot be told: {} give {}.", d.other, share(d.other_rms))
        }
    }
}

/// The order of the stencils in words.
fn stencils(claim: &Claim) -> &'static str {
    let all = || claim.schemes.iter().chain(claim.field_schemes.values().flatten());
    let second =
        |scheme: &Scheme| matches!(scheme, Scheme::OneSided2 | Scheme::Mirror | Scheme::Zero | Scheme::Periodic);
    if all().all(second) {
        "second-order"
    } else if all().any(second) {
        "the second-order"
    } else {
        "these"
    }
}

/// The verdict on all equations, with what would explain it.
pub(super) fn of_all(equations: &[EquationAudit], slips: &[Slip]) -> String {
    let one = |(e, audit): (usize, &EquationAudit)| {
        if equations.len() == 1 { audit.verdict.clone() } else { format!("Equation {}: {}", e + 1, audit.verdict) }
    };
    let verdict = equations.iter().enumerate().map(one).collect::<Vec<_>>().join(" ");
    match slips {
        [] => verdict,
        [slip] => format!("{verdict} {}.", capital(&slip.sentence)),
        several => {
            let list: Vec<String> =
                several.iter().enumerate().map(|(i, slip)| format!("({}) {}", i + 1, slip.sentence)).collect();
            let best = several.iter().filter_map(|slip| slip.after).fold(f64::INFINITY, f64::min);
            let part = if best < HOLDS { "" } else { "part of " };
            format!("{verdict} Any one of these would explain {part}it: {}.", list.join("; "))
        }
    }
}

fn capital(sentence: &str) -> String {
    // A sentence that begins with a field keeps its letter.
    let first = sentence.split_whitespace().next().unwrap_or_default();
    if !["the", "with", "a", "cell", "nodes"].contains(&first) {
        return sentence.to_owned();
    }
    let mut letters = sentence.chars();
    letters.next().map_or(String::new(), |c| c.to_uppercase().collect::<String>() + letters.as_str())
}
