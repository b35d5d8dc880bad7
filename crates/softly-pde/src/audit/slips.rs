//! Classical slips, each found by trying the alternative: does the residual collapse if the data are read another way?
//!
//! Every alternative is judged by one number, the size of the residual relative to the largest term, with the given
//! stencils and with those of another order, whichever makes it smaller; several equations count by their mean square.

use serde::Serialize;

use crate::algebra::Value;
use crate::audit::claim::{Claim, Sample, restricted};
use crate::audit::discretisation::other_order;
use crate::audit::fit::least_squares;
use crate::audit::gram::Gram;
use crate::audit::normalised::{affine, looks_normalised};
use crate::audit::search::golden;
use crate::audit::words::{number, percent};
use crate::audit::{AuditError, Watch};
use crate::grid::{Axis, AxisId, Placement, TIME};
use crate::terms::mentions;

/// Points of the samples that alternatives are tried on.
const POINTS: usize = 1 << 17;
/// Below this size relative to the largest term an equation holds, and no alternative is tried.
const HOLDS: f64 = 1e-3;
/// Above this size suspicions that no trial confirms are told.
const SUSPICIOUS: f64 = 0.1;
/// A collapse: the residual falls below this fraction.
const COLLAPSE: f64 = 1.0 / 3.0;
/// The same for an alternative without a free number.
const CLEAR: f64 = 0.4;
/// Alternatives up to this many times the best one are told, too.
const TIE: f64 = 1.5;
/// Most alternatives told.
const MOST: usize = 4;

/// A way of reading the data in which the equation holds much better.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slip {
    /// What is different.
    pub kind: SlipKind,
    /// The same in words.
    pub sentence: String,
    /// The new value of a parameter, factor or spacing.
    pub value: Option<f64>,
    /// Size of the residual relative to the largest term as the data are read now.
    pub before: f64,
    /// The same in the other reading; none if that could only be suspected.
    pub after: Option<f64>,
}

/// Kinds of slips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlipKind {
    /// The axes are exchanged.
    Transposed,
    /// An axis runs the other way.
    Reversed,
    /// Cell centres are taken for nodes, or the other way round.
    Placement,
    /// The last node of a periodic axis is the first one again.
    RepeatedNode,
    /// A term has the wrong sign.
    Sign,
    /// A factor on a term.
    Factor,
    /// The spacing along axes of space.
    Spacing,
    /// The spacing along the time axis.
    TimeStep,
    /// The value of a parameter.
    Parameter,
    /// Fields are not in physical units.
    Normalised,
}

impl SlipKind {
    /// Whether the alternative has no free number.
    fn is_discrete(self) -> bool {
        use SlipKind::{Placement, RepeatedNode, Reversed, Sign, Transposed};
        matches!(self, Transposed | Reversed | Placement | RepeatedNode | Sign)
    }
}

/// An alternative and how plausible it is among equals: 0 is most plausible.
struct Candidate {
    slip: Slip,
    rank: usize,
    /// The term that a factor stands on, by equation and place.
    term: Option<(usize, usize)>,
    /// The parameter whose value is another.
    parameter: Option<String>,
}

/// The trial of alternatives.
pub(super) struct Trial<'a> {
    /// The claim with the given stencils and with those of another order.
    claims: Vec<Claim>,
    samples: Vec<Sample>,
    /// Equations that have more than one term.
    pub(super) equations: Vec<usize>,
    names: Vec<Vec<String>>,
    /// Products of terms by claim and equation, as the data are read now.
    grams: Vec<Vec<Gram>>,
    watch: &'a Watch<'a>,
}

/// Finds slips of `claim` on `samples`. Residuals below `floor` are rounding; free numbers closer to the given ones
/// than the fraction `tolerance` are discretisation.
pub(super) fn slips(
    claim: &Claim,
    samples: &[Sample],
    floor: f64,
    tolerance: f64,
    watch: &Watch<'_>,
) -> Result<Vec<Slip>, AuditError> {
    let trial = Trial::new(claim, samples, watch)?;
    let before = trial.before();
    let mut found: Vec<Candidate> = trial.repeated_nodes();
    if trial.equations.is_empty() || before < HOLDS.max(3.0 * floor) {
        return Ok(found.into_iter().map(|candidate| candidate.slip).collect());
    }
    let certain = !found.is_empty();
    found.extend(trial.readings()?);
    found.extend(trial.parameters(tolerance)?);
    found.extend(trial.stretches(tolerance)?);
    found.extend(trial.factors(tolerance));
    found.extend(trial.normalised()?);
    Ok(chosen(found, claim, before, certain))
}

/// The alternatives worth telling: those that make the residual collapse, best and simplest first.
fn chosen(found: Vec<Candidate>, claim: &Claim, before: f64, certain: bool) -> Vec<Slip> {
    let after = |candidate: &Candidate| candidate.slip.after.unwrap_or(f64::INFINITY);
    let collapses = |candidate: &Candidate| {
        let limit = if candidate.slip.kind.is_discrete() { CLEAR } else { COLLAPSE };
        candidate.slip.kind == SlipKind::RepeatedNode || after(candidate) < limit * before
    };
    let (mut good, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(collapses);
    let best = |of: &dyn Fn(&Candidate) -> bool| good.iter().filter(|c| of(c)).map(after).fold(f64::INFINITY, f64::min);
    let discrete = best(&|c| c.slip.kind.is_discrete());
    let free = best(&|c| !c.slip.kind.is_discrete());
    // An alternative without a free number explains more by less.
    let only_discrete = certain || discrete <= 3.0 * free;
    let limit = TIE * if only_discrete { discrete } else { free };
    good.retain(|c| c.slip.kind == SlipKind::RepeatedNode || after(c) <= limit);
    if only_discrete {
        good.retain(|c| c.slip.kind.is_discrete());
    }
    // A factor on a term with a parameter says what the parameter says.
    let parameters: Vec<String> = good.iter().filter_map(|c| c.parameter.clone()).collect();
    good.retain(|c| {
        let Some((e, k)) = c.term.filter(|_| c.slip.kind == SlipKind::Factor) else { return true };
        let text = crate::terms::terms(&claim.equations[e].formula).ok().and_then(|terms| terms.get(k).cloned());
        let Some(text) = text.map(|term| term.text) else { return true };
        let depends = |name: &str| {
            let through =
                claim.formulas.iter().any(|(formula, meaning)| mentions(&text, formula) && mentions(meaning, name));
            mentions(&text, name) || through
        };
        !parameters.iter().any(|name| depends(name))
    });
    good.sort_by(|a, b| a.rank.cmp(&b.rank).then(after(a).total_cmp(&after(b))));
    good.truncate(MOST);
    let mut slips: Vec<Slip> = good.into_iter().map(|candidate| candidate.slip).collect();
    // What can only be suspected is told if much is wrong and nothing better is known.
    if slips.is_empty() && before > SUSPICIOUS {
        slips.extend(rest.into_iter().map(|c| c.slip).filter(|slip| slip.after.is_none()));
    }
    slips
}

impl<'a> Trial<'a> {
    fn new(claim: &Claim, samples: &[Sample], watch: &'a Watch<'a>) -> Result<Self, AuditError> {
        let wanted = (POINTS / claim.grid.len().max(1)).clamp(1, samples.len().max(1));
        let chosen = (0..wanted).map(|i| samples[i * samples.len() / wanted].clone()).collect();
        let mut claims = vec![claim.clone()];
        if !claim.grid.is_point() {
            claims.extend(other_order(claim).map(|(other, _, _)| other));
        }
        let ready = claim.ready(&[])?;
        let names: Vec<Vec<String>> = ready.equations.iter().map(|equation| equation.names.clone()).collect();
        let equations = (0..names.len()).filter(|&e| names[e].len() > 1).collect();
        let mut trial = Self { claims, samples: chosen, equations, names, grams: Vec::new(), watch };
        trial.grams = trial.all_grams(&|claim| claim.clone(), &trial.samples)?.into_iter().flatten().collect();
        Ok(trial)
    }

    /// The products of terms with every claim varied; `None` for a claim that cannot be varied so.
    fn all_grams(
        &self,
        vary: &dyn Fn(&Claim) -> Claim,
        samples: &[Sample],
    ) -> Result<Vec<Option<Vec<Gram>>>, AuditError> {
        (self.watch)()?;
        Ok(self.claims.iter().map(|claim| Some(Gram::of(&vary(claim).ready(&[]).ok()?, samples))).collect())
    }

    /// √ of the mean square over equations of the relative residuals.
    fn combined(&self, grams: &[Gram]) -> f64 {
        self.combined_of(|e| grams[e].relative())
    }

    fn combined_of(&self, relative: impl Fn(usize) -> f64) -> f64 {
        let squares: f64 = self.equations.iter().map(|&e| relative(e).powi(2)).sum();
        let size = (squares / self.equations.len().max(1) as f64).sqrt();
        if size.is_finite() { size } else { f64::INFINITY }
    }

    /// The size as the data are read now.
    fn before(&self) -> f64 {
        self.grams.iter().map(|grams| self.combined(grams)).fold(f64::INFINITY, f64::min)
    }

    /// The size with varied claims and samples.
    fn size(&self, vary: &dyn Fn(&Claim) -> Claim, samples: &[Sample]) -> Result<f64, AuditError> {
        let grams = self.all_grams(vary, samples)?;
        Ok(grams.iter().flatten().map(|grams| self.combined(grams)).fold(f64::INFINITY, f64::min))
    }

    /// The size with the given stencils only and a varied claim, for searches.
    fn quick_size(&self, claim: &Claim, samples: &[Sample]) -> f64 {
        claim.ready(&[]).map_or(f64::INFINITY, |ready| self.combined(&Gram::of(&ready, samples)))
    }

    fn candidate(&self, kind: SlipKind, sentence: String, value: Option<f64>, after: f64, rank: usize) -> Candidate {
        let slip = Slip { kind, sentence, value, before: self.before(), after: Some(after) };
        Candidate { slip, rank, term: None, parameter: None }
    }

    fn grid(&self) -> &crate::grid::Grid {
        &self.claims[0].grid
    }

    /// The samples with every field, or one of them, changed.
    fn changed(&self, only: Option<usize>, change: impl Fn(&[f64]) -> Vec<f64>) -> Vec<Sample> {
        let points = self.grid().len();
        let field = |(index, value): (usize, &Value)| {
            let chosen = only.is_none_or(|only| only == index);
            if chosen { Value::from(change(&value.broadcast(points))) } else { value.clone() }
        };
        self.samples.iter().map(|sample| sample.iter().enumerate().map(field).collect()).collect()
    }

    /// Exchanged, reversed and shifted axes.
    fn readings(&self) -> Result<Vec<Candidate>, AuditError> {
        let mut found = Vec::new();
        let grid = self.grid();
        let [rows_axis, cols_axis] = &grid.axes[..] else { return Ok(found) };
        let (rows, cols) = (grid.rows(), grid.cols());
        let names = [&rows_axis.name, &cols_axis.name];
        let after = self.size(&Claim::exchanged, &self.samples)?;
        let sentence = format!(
            "the axes are exchanged: with {} along rows and {} along columns the equation holds to {}",
            names[1],
            names[0],
            percent(after)
        );
        found.push(self.candidate(SlipKind::Transposed, sentence, None, after, 0));
        let fields = &self.claims[0].fields;
        if rows == cols && fields.len() > 1 {
            for (index, name) in fields.iter().enumerate() {
                let turned = |v: &[f64]| (0..v.len()).map(|p| v[p % cols * cols + p / cols]).collect();
                let after = self.size(&Claim::clone, &self.changed(Some(index), turned))?;
                let sentence =
                    format!("the field {name} is transposed: turned, the equation holds to {}", percent(after));
                found.push(self.candidate(SlipKind::Transposed, sentence, None, after, 0));
            }
        }
        for id in AxisId::BOTH {
            let back = |v: &[f64]| match id {
                AxisId::Rows => (0..v.len()).map(|p| v[(rows - 1 - p / cols) * cols + p % cols]).collect(),
                AxisId::Cols => (0..v.len()).map(|p| v[p / cols * cols + (cols - 1 - p % cols)]).collect::<Vec<_>>(),
            };
            let after = self.size(&Claim::clone, &self.changed(None, back))?;
            let sentence = format!(
                "the axis {} runs the other way: reversed, the equation holds to {}",
                grid.axis(id).name,
                percent(after)
            );
            found.push(self.candidate(SlipKind::Reversed, sentence, None, after, 1));
        }
        found.extend(self.placements()?);
        Ok(found)
    }

    /// Cells instead of nodes, or nodes instead of cells.
    fn placements(&self) -> Result<Vec<Candidate>, AuditError> {
        let grid = self.grid();
        let open: Vec<AxisId> = grid.ids().filter(|&id| !grid.axis(id).periodic).collect();
        let space: Vec<AxisId> = open.iter().copied().filter(|&id| grid.axis(id).name != TIME).collect();
        let mut sets: Vec<Vec<AxisId>> = open.iter().map(|&id| vec![id]).collect();
        if space.len() > 1 {
            sets.insert(0, space);
        }
        let mut found = Vec::new();
        for set in sets {
            let vary = |claim: &Claim| set.iter().fold(claim.clone(), |claim, &id| claim.replaced(id));
            let after = self.size(&vary, &self.samples)?;
            let axes: Vec<&str> = set.iter().map(|&id| grid.axis(id).name.as_str()).collect();
            let axes = axes.join(" and ");
            let sentence = match grid.axis(set[0]).placement {
                Placement::Nodes => format!(
                    "cell centres are taken for nodes along {axes}: with cells the equation holds to {}",
                    percent(after)
                ),
                Placement::Cells => format!(
                    "nodes are taken for cell centres along {axes}: with nodes the equation holds to {}",
                    percent(after)
                ),
            };
            found.push(self.candidate(SlipKind::Placement, sentence, None, after, 0));
        }
        Ok(found)
    }

    /// Periodic axes whose last node is the first one again.
    fn repeated_nodes(&self) -> Vec<Candidate> {
        let grid = self.grid().clone();
        let mut found = Vec::new();
        for id in grid.ids().filter(|&id| grid.axis(id).periodic && grid.nodes(id) > 3) {
            let n = grid.nodes(id);
            let distance = |i: usize, j: usize| -> f64 {
                let line = |field: &Value, i| restricted(&field.broadcast(grid.len()), &grid, id, &[i]);
                let between = |field: &Value| -> f64 {
                    line(field, i).iter().zip(line(field, j).iter()).map(|(a, b)| (a - b).abs()).sum()
                };
                self.samples.iter().flatten().map(between).sum()
            };
            let (ends, next) = (distance(0, n - 1), distance(0, 1).max(distance(n - 2, n - 1)));
            if next > 0.0 && ends < 1e-3 * next {
                let axis = grid.axis(id);
                let kept: Vec<usize> = (0..n - 1).collect();
                let samples: Vec<Sample> = self
                    .samples
                    .iter()
                    .map(|sample| {
                        let cut = |field: &Value| restricted(&field.broadcast(grid.len()), &grid, id, &kept);
                        sample.iter().map(|field| Value::Field(cut(field))).collect()
                    })
                    .collect();
                let shorter = Axis { nodes: n - 1, ..axis.clone() };
                let vary = |claim: &Claim| claim.restricted(id, &kept, shorter.clone());
                let after = self.size(&vary, &samples).unwrap_or(f64::INFINITY);
                let name = &axis.name;
                let sentence = format!(
                    "the last node along the periodic axis {name} is the first one again: without it the equation \
                     holds to {}",
                    percent(after)
                );
                found.push(self.candidate(SlipKind::RepeatedNode, sentence, None, after, 0));
            }
        }
        found
    }

    /// Each number of the claim fitted alone.
    fn parameters(&self, tolerance: f64) -> Result<Vec<Candidate>, AuditError> {
        let mut found = Vec::new();
        for name in self.claims[0].used_numbers() {
            let given = self.claims[0].numbers[&name];
            let mut best: Option<(f64, f64)> = None;
            for claim in &self.claims {
                (self.watch)()?;
                let names = [name.clone()];
                let Ok((values, relative)) = least_squares(claim, &self.samples, &names, self.watch) else { continue };
                let after = self.combined_of(|e| relative[e]);
                if best.is_none_or(|(_, least)| after < least) {
                    best = Some((values[0], after));
                }
            }
            let Some((value, after)) = best else { continue };
            let ratio = value / given;
            let same = (ratio - 1.0).abs() < tolerance;
            // A parameter of the other sign is a term of the other sign.
            let opposite = (ratio + 1.0).abs() < 0.15;
            if same || opposite {
                continue;
            }
            let sentence = format!(
                "with {name} = {} instead of {} the equation would hold to {}",
                number(value),
                number(given),
                percent(after)
            );
            let candidate = self.candidate(SlipKind::Parameter, sentence, Some(value), after, 0);
            found.push(Candidate { parameter: Some(name), ..candidate });
        }
        Ok(found)
    }

    /// Axes longer or shorter than claimed.
    fn stretches(&self, tolerance: f64) -> Result<Vec<Candidate>, AuditError> {
        let grid = self.grid();
        let mut sets: Vec<Vec<AxisId>> = grid.ids().map(|id| vec![id]).collect();
        let space: Vec<AxisId> = grid.space().collect();
        if space.len() > 1 {
            sets.push(space);
        }
        // Searching needs few samples.
        let few = &self.samples[..self.samples.len().min((POINTS / 4 / grid.len()).max(1))];
        let mut found = Vec::new();
        for set in sets {
            let stretch = |claim: &Claim, factor: f64| set.iter().fold(claim.clone(), |c, &id| c.stretched(id, factor));
            let quick = |claim: &Claim, log: f64| self.quick_size(&stretch(claim, log.exp()), few);
            if quick(&self.claims[0], 0.0) == quick(&self.claims[0], 0.3) {
                continue;
            }
            let step = 0.35;
            let mut best = (0.0, f64::INFINITY);
            for place in (-26..=26).map(|i| step * f64::from(i)) {
                (self.watch)()?;
                let size = quick(&self.claims[0], place);
                if size < best.1 {
                    best = (place, size);
                }
            }
            // Each order of stencils has a minimum of its own.
            let refined = |claim| golden(best.0 - step, best.0 + step, 22, |log| quick(claim, log));
            let refined = self.claims.iter().map(refined).min_by(|a, b| a.1.total_cmp(&b.1));
            let factor = refined.map_or(1.0, |(log, _)| log.exp());
            if (factor - 1.0).abs() < tolerance {
                continue;
            }
            let after = self.size(&|claim| stretch(claim, factor), &self.samples)?;
            let (sentence, familiar) = self.stretch_words(&set, factor, after);
            let time = set.iter().all(|&id| grid.axis(id).name == TIME);
            let kind = if time { SlipKind::TimeStep } else { SlipKind::Spacing };
            let value = Some(factor * grid.spacing(set[0]));
            found.push(self.candidate(kind, sentence, value, after, if familiar { 0 } else { 2 }));
        }
        Ok(found)
    }

    /// A stretch in words, and whether the new or old spacing or length is a familiar number.
    fn stretch_words(&self, set: &[AxisId], factor: f64, after: f64) -> (String, bool) {
        let grid = self.grid();
        let axis = grid.axis(set[0]);
        let names: Vec<&str> = set.iter().map(|&id| grid.axis(id).name.as_str()).collect();
        let (old, new) = (axis.spacing(), factor * axis.spacing());
        let near = |value: f64, target: f64| (value / target - 1.0).abs() < 0.03;
        let length = factor * axis.length();
        let round = [1.0, 2.0, 10.0, 100.0, std::f64::consts::PI, std::f64::consts::TAU];
        let why = if near(old, 1.0) && !near(new, 1.0) {
            "; index numbers were taken for coordinates, so a factor 1/h is missing in derivatives"
        } else if near(new, 1.0) {
            "; derivatives were taken with spacing one, without their factor 1/h"
        } else {
            ""
        };
        let what = if axis.name == TIME && set.len() == 1 {
            format!("the time step is wrong: with a step of {} instead of {}", number(new), number(old))
        } else {
            let (names, new, old) = (names.join(" and "), number(new), number(old));
            format!("the spacing along {names} is wrong: with h = {new} instead of {old}")
        };
        let sentence =
            format!("{what} (a domain of length {}) the equation holds to {}{why}", number(length), percent(after));
        (sentence, !why.is_empty() || round.iter().any(|&target| near(length, target)))
    }

    /// Factors on single terms.
    fn factors(&self, tolerance: f64) -> Vec<Candidate> {
        let mut found = Vec::new();
        for &e in &self.equations {
            for k in 0..self.names[e].len() {
                let with = |grams: &Vec<Gram>, factor: f64| {
                    let relative = |other: usize| {
                        if other == e { grams[e].relative_with_factor(k, factor) } else { grams[other].relative() }
                    };
                    self.combined_of(relative)
                };
                let each = self.grams.iter().filter_map(|grams| {
                    let factor = grams[e].best_factor(k)?;
                    Some((factor, with(grams, factor), with(grams, -1.0)))
                });
                let Some((factor, after, negated)) = each.min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
                if (factor - 1.0).abs() < tolerance {
                    continue;
                }
                let term = &self.names[e][k];
                let (kind, sentence, after, rank) = if (factor + 1.0).abs() < 0.15 {
                    let sentence = format!(
                        "the term {term} has the wrong sign: with the other one the equation holds to {}",
                        percent(negated)
                    );
                    (SlipKind::Sign, sentence, negated, 0)
                } else if factor.abs() < 0.05 {
                    let sentence = format!(
                        "the data do not obey the term {term}: without it the equation holds to {}",
                        percent(after)
                    );
                    (SlipKind::Factor, sentence, after, 1)
                } else {
                    let (words, familiar) = self.factor_words(factor);
                    let sentence =
                        format!("a factor on the term {term}: times {words} the equation holds to {}", percent(after));
                    (SlipKind::Factor, sentence, after, if familiar { 1 } else { 3 })
                };
                let mut candidate = self.candidate(kind, sentence, Some(factor), after, rank);
                candidate.term = Some((e, k));
                found.push(candidate);
            }
        }
        found
    }

    /// A factor in words, and whether it is a familiar one.
    fn factor_words(&self, factor: f64) -> (String, bool) {
        use std::f64::consts::{PI, TAU};
        let mut familiar: Vec<(String, f64)> = [
            ("2", 2.0),
            ("1/2", 0.5),
            ("3", 3.0),
            ("1/3", 1.0 / 3.0),
            ("4", 4.0),
            ("1/4", 0.25),
            ("π", PI),
            ("2π", TAU),
            ("1/(2π)", 1.0 / TAU),
            ("4π²", TAU * TAU),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        for id in self.grid().ids() {
            let (name, h) = (&self.grid().axis(id).name, self.grid().spacing(id));
            let powers = [("the spacing h", 1), ("h²", 2), ("1/h", -1), ("1/h²", -2)];
            familiar.extend(powers.map(|(words, power)| (format!("{words} of {name}"), h.powi(power))));
        }
        let near = familiar.iter().find(|(_, value)| (factor.abs() / value - 1.0).abs() < 0.02);
        let sign = if factor < 0.0 { "−" } else { "" };
        match near {
            Some((name, _)) => (format!("{} ({sign}{name})", number(factor)), true),
            None => (number(factor), false),
        }
    }

    /// Fields that look normalised, with physical units fitted.
    fn normalised(&self) -> Result<Vec<Candidate>, AuditError> {
        let fields = &self.claims[0].fields;
        let points = self.grid().len();
        let suspects: Vec<usize> =
            (0..fields.len()).filter(|&field| looks_normalised(&self.samples, field, points)).collect();
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        let few = &self.samples[..self.samples.len().min((POINTS / 16 / points).max(1))];
        // A search that was stopped ends without looking any further.
        let quick = |samples: &[Sample]| {
            if (self.watch)().is_ok() { self.quick_size(&self.claims[0], samples) } else { f64::INFINITY }
        };
        let units = affine(few, &suspects, points, quick);
        let changed = units.apply(&self.samples, points);
        let after = self.size(&Claim::clone, &changed)?;
        let names: Vec<&str> = suspects.iter().map(|&field| fields[field].as_str()).collect();
        let names = names.join(" and ");
        let verb = if suspects.len() == 1 { "looks" } else { "look" };
        let looks = format!("{names} {verb} normalised (mean 0 and standard deviation 1, or a range of length 1 or 2)");
        if after < COLLAPSE * self.before() {
            let sentence = format!("{looks}: with {} the equation holds to {}", units.words(fields), percent(after));
            return Ok(vec![self.candidate(SlipKind::Normalised, sentence, None, after, 0)]);
        }
        let sentence = format!("{looks}: formulas speak of physical units");
        let slip = Slip { kind: SlipKind::Normalised, sentence, value: None, before: self.before(), after: None };
        Ok(vec![Candidate { slip, rank: 0, term: None, parameter: None }])
    }
}
