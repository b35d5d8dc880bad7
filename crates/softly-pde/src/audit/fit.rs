//! Parameters fitted to data: the numbers of an equation that make its residual smallest in the least-squares sense.
//!
//! ```text
//! θ* = argmin Σ_e ⟨R_e(θ)²⟩ / S_e²
//! ```
//!
//! by Gauss–Newton steps with exact derivatives; S_e is the size of the largest term of equation e at the given values.
//! A parameter that enters linearly is found in one step. Intervals come from the bootstrap: samples are drawn with
//! replacement, and each draw moves θ* by one Gauss–Newton step.

use rand::{Rng, RngExt};
use rayon::prelude::*;
use serde::Serialize;

use crate::algebra::Value;
use crate::audit::claim::{Claim, Ready, ReadyEquation, Sample};
use crate::audit::gram::Gram;
use crate::audit::{AuditError, Watch};
use crate::nearest::nearest;
use crate::normal_equations::NormalEquations;

/// Most Gauss–Newton steps.
const STEPS: usize = 30;
/// Steps shorter than this, relative to the parameter, end the search.
const TOLERANCE: f64 = 1e-10;
/// Draws of the bootstrap.
const DRAWS: usize = 200;
/// With fewer samples, tiles of samples are drawn instead.
const FEW: usize = 8;
/// Tiles of a sample along each axis.
const TILES: usize = 4;
/// A column whose part that other columns do not have is below this fraction cannot be told apart from those.
const DISTINCT: f64 = 1e-4;
/// An interval wider than this multiple of the value determines little.
const WIDE: f64 = 1.0;

/// Parameters fitted together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// The parameters in the order of the request.
    pub parameters: Vec<FittedParameter>,
    /// Size of each equation's residual relative to its largest term, with the given values.
    pub relative_before: Vec<f64>,
    /// The same with the fitted values.
    pub relative_after: Vec<f64>,
    /// √⟨R²⟩ over all equations in units of their largest term at the given values, with the given values.
    pub rms_before: f64,
    /// The same with the fitted values.
    pub rms_after: f64,
    /// Gauss–Newton steps.
    pub steps: usize,
    /// Whether the steps came to an end.
    pub converged: bool,
    /// Samples, or tiles of samples if there are few, that the intervals were drawn from.
    pub drawn_from: usize,
    /// Whether those were tiles.
    pub tiles: bool,
}

/// A parameter and what the data say about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FittedParameter {
    /// Its name in the formulas.
    pub name: String,
    /// The claimed value.
    pub given: f64,
    /// The least-squares value; the given one if the data do not tell.
    pub value: f64,
    /// Bootstrap interval of 95 %; none if the data do not tell.
    pub interval: Option<[f64; 2]>,
    /// How well the data determine it.
    pub verdict: Identifiability,
}

/// How well data determine a parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Identifiability {
    /// The interval is narrow.
    Determined,
    /// The interval is wider than the value.
    Weak,
    /// Another parameter does the same to the residual; only a combination of both is determined.
    SameAs(String),
    /// The residual does not depend on it.
    Absent,
}

/// Fits the parameters `names` of `claim` to `samples`, all of them together. The bootstrap draws from `random`.
pub fn fit(
    claim: &Claim,
    samples: &[Sample],
    names: &[String],
    random: &mut impl Rng,
    watch: &Watch<'_>,
) -> Result<Fit, AuditError> {
    if let Some(name) = names.iter().find(|name| !claim.numbers.contains_key(*name)) {
        let known: Vec<String> = claim.numbers.keys().cloned().collect();
        let near = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
        return Err(AuditError::UnknownParameter { name: name.clone(), known, near });
    }
    if samples.is_empty() {
        return Err(AuditError::NoSamples);
    }
    let mut problem = Problem::new(claim, samples, names)?;
    let given = problem.ready.free.clone();
    let relative_before = problem.relative();
    let rms_before = problem.square()?.sqrt();
    let (steps, converged) = problem.descend(watch)?;
    let value = problem.ready.free.clone();
    let (rms_after, relative_after) = (problem.square()?.sqrt(), problem.relative());
    let tiles = samples.len() < FEW && !claim.grid.is_point();
    let units = problem.equations(if tiles { TILES } else { 1 });
    let total = total(&units, names.len());
    let draws = bootstrap(&units, &value, random);
    let parameter = |k: usize| {
        let verdict = identifiability(&total, k, names);
        let told = matches!(verdict, None | Some(Identifiability::SameAs(_)));
        let interval = (verdict.is_none() && units.len() > 1).then(|| percentiles(&draws, k));
        let verdict = verdict.unwrap_or_else(|| match interval {
            Some([low, high]) if high - low > WIDE * value[k].abs() => Identifiability::Weak,
            _ => Identifiability::Determined,
        });
        let value = if told { value[k] } else { given[k] };
        FittedParameter { name: names[k].clone(), given: given[k], value, interval, verdict }
    };
    Ok(Fit {
        parameters: (0..names.len()).map(parameter).collect(),
        relative_before,
        relative_after,
        rms_before,
        rms_after,
        steps,
        converged,
        drawn_from: units.len(),
        tiles,
    })
}

/// The values of `names` that fit best, without intervals, and the residual of each equation relative to its largest
/// term.
pub(super) fn least_squares(
    claim: &Claim,
    samples: &[Sample],
    names: &[String],
    watch: &Watch<'_>,
) -> Result<(Vec<f64>, Vec<f64>), AuditError> {
    let mut problem = Problem::new(claim, samples, names)?;
    problem.descend(watch)?;
    let relative = problem.relative();
    Ok((problem.ready.free, relative))
}

/// Least squares in progress; the current values are `ready.free`.
struct Problem<'a> {
    ready: Ready,
    samples: &'a [Sample],
    /// 1 / (S_e² n_e) of each equation with n_e points.
    weights: Vec<f64>,
}

impl<'a> Problem<'a> {
    fn new(claim: &Claim, samples: &'a [Sample], names: &[String]) -> Result<Self, AuditError> {
        let ready = claim.ready(names)?;
        let scale = |gram: &Gram| if gram.size(gram.largest()) > 0.0 { gram.size(gram.largest()) } else { 1.0 };
        let scales = Gram::of(&ready, samples).iter().map(scale).collect::<Vec<_>>();
        let of = |(equation, scale): (&ReadyEquation, f64)| 1.0 / (scale * scale * equation.count as f64);
        let weights = ready.equations.iter().zip(scales).map(of).collect();
        Ok(Self { ready, samples, weights })
    }

    /// The residual of each equation relative to its largest term.
    fn relative(&self) -> Vec<f64> {
        Gram::of(&self.ready, self.samples).iter().map(Gram::relative).collect()
    }

    /// Σ_e ⟨R_e²⟩ / S_e², averaged over samples.
    fn square(&self) -> Result<f64, AuditError> {
        let of_sample = |sample: &Sample| -> f64 {
            let inputs = self.ready.inputs(sample);
            let of_equation = |(equation, weight): (&ReadyEquation, &f64)| {
                let residual = equation.residual(&self.ready.algebra, &inputs);
                weight * equation.points().map(|point| residual[point].powi(2)).sum::<f64>()
            };
            self.ready.equations.iter().zip(&self.weights).map(of_equation).sum()
        };
        let each: Vec<f64> = self.samples.par_iter().map(of_sample).collect();
        match each.iter().position(|square| !square.is_finite()) {
            Some(sample) => Err(AuditError::NotFinite { equation: None, sample }),
            None => Ok(each.iter().sum::<f64>() / each.len() as f64),
        }
    }

    /// Gauss–Newton steps, halved while they make the residual larger; their number and whether they came to an end.
    fn descend(&mut self, watch: &Watch<'_>) -> Result<(usize, bool), AuditError> {
        let mut square = self.square()?;
        for step in 1..=STEPS {
            watch()?;
            let old = self.ready.free.clone();
            let change = total(&self.equations(1), old.len()).solve();
            let mut factor = 1.0;
            loop {
                let moved = old.iter().zip(&change).map(|(value, change)| value + factor * change.unwrap_or(0.0));
                self.ready.free = moved.collect();
                match self.square() {
                    Ok(new) if new <= square * (1.0 + 1e-12) => {
                        square = new;
                        break;
                    }
                    _ if factor < 1e-6 => {
                        self.ready.free = old;
                        return Ok((step, true));
                    }
                    _ => factor *= 0.5,
                }
            }
            let short = |(old, new): (&f64, &f64)| (new - old).abs() <= TOLERANCE * old.abs().max(new.abs());
            if old.iter().zip(&self.ready.free).all(short) {
                return Ok((step, true));
            }
        }
        Ok((STEPS, false))
    }

    /// The normal equations of a Gauss–Newton step, one for each of `tiles`² tiles of every sample.
    fn equations(&self, tiles: usize) -> Vec<NormalEquations> {
        let grid = self.ready.algebra.grid();
        let (rows, cols) = (grid.rows(), grid.cols());
        let tile = |point: usize| (point / cols) * tiles / rows * tiles + (point % cols) * tiles / cols;
        let of_sample = |sample: &Sample| {
            let mut units = vec![NormalEquations::new(self.ready.free.len()); tiles * tiles];
            let inputs = self.ready.inputs(sample);
            for (equation, weight) in self.ready.equations.iter().zip(&self.weights) {
                let (minus, columns) = self.linearised(equation, &inputs);
                let mut members = vec![Vec::new(); tiles * tiles];
                equation.points().for_each(|point| members[tile(point)].push(point));
                for (unit, points) in units.iter_mut().zip(members) {
                    let chosen = |values: &[f64]| points.iter().map(|&point| values[point]).collect::<Vec<_>>();
                    let columns: Vec<Vec<f64>> = columns.iter().map(|column| chosen(column)).collect();
                    let columns: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
                    unit.add_products(&columns, &chosen(&minus), *weight);
                }
            }
            units
        };
        let all: Vec<Vec<NormalEquations>> = self.samples.par_iter().map(of_sample).collect();
        all.into_iter().flatten().collect()
    }

    /// −R and ∂R/∂θ_k at every point.
    fn linearised(&self, equation: &ReadyEquation, inputs: &[Value]) -> (Vec<f64>, Vec<Vec<f64>>) {
        let algebra = &self.ready.algebra;
        let (points, free) = (algebra.grid().len(), self.ready.free.len());
        let mut minus = vec![0.0; points];
        let mut columns = vec![vec![0.0; points]; free];
        for (sign, program) in &equation.programs {
            let tape = program.forward(algebra, inputs);
            let value = tape.output().broadcast(points);
            minus.iter_mut().zip(value.iter()).for_each(|(sum, value)| *sum -= sign * value);
            for (k, column) in columns.iter_mut().enumerate() {
                let mut directions = vec![None; inputs.len()];
                directions[inputs.len() - free + k] = Some(Value::Number(1.0));
                if let Some(change) = program.tangent(algebra, &tape, &directions) {
                    let change = change.broadcast(points);
                    column.iter_mut().zip(change.iter()).for_each(|(sum, value)| *sum += sign * value);
                }
            }
        }
        (minus, columns)
    }
}

fn total(units: &[NormalEquations], columns: usize) -> NormalEquations {
    let mut total = NormalEquations::new(columns);
    for unit in units {
        total.add(unit);
    }
    total
}

/// The values that draws of the units with replacement lead to, `[draws][parameters]`.
fn bootstrap(units: &[NormalEquations], value: &[f64], random: &mut impl Rng) -> Vec<Vec<f64>> {
    let mut draw = || {
        let mut drawn = NormalEquations::new(value.len());
        for _ in 0..units.len() {
            drawn.add(&units[random.random_range(0..units.len())]);
        }
        let change = drawn.solve();
        value.iter().zip(change).map(|(value, change)| value + change.unwrap_or(0.0)).collect()
    };
    (0..DRAWS).map(|_| draw()).collect()
}

/// The 2.5 and 97.5 percentiles of parameter `k`.
fn percentiles(draws: &[Vec<f64>], k: usize) -> [f64; 2] {
    let mut values: Vec<f64> = draws.iter().map(|draw| draw[k]).collect();
    values.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| {
        let position = q * (values.len() - 1) as f64;
        let (low, high) = (values[position.floor() as usize], values[position.ceil() as usize]);
        low + (high - low) * position.fract()
    };
    [at(0.025), at(0.975)]
}

/// Whether parameter `k` has an effect of its own; `None` if it does.
fn identifiability(total: &NormalEquations, k: usize, names: &[String]) -> Option<Identifiability> {
    let n = names.len();
    let gram = |i: usize, j: usize| total.gram[i * n + j];
    if gram(k, k) <= 0.0 {
        return Some(Identifiability::Absent);
    }
    // The part of column k that the other columns do not have: a least-squares problem with column k as the target.
    let others: Vec<usize> = (0..n).filter(|&j| j != k).collect();
    let own = NormalEquations {
        gram: others.iter().flat_map(|&i| others.iter().map(move |&j| gram(i, j))).collect(),
        right: others.iter().map(|&i| gram(i, k)).collect(),
    };
    let left = 1.0 - own.explained() / gram(k, k);
    if left > DISTINCT {
        return None;
    }
    let alike = |j: usize| gram(k, j).powi(2) / (gram(k, k) * gram(j, j)).max(f64::MIN_POSITIVE);
    let other = others.into_iter().max_by(|a, b| alike(*a).total_cmp(&alike(*b)))?;
    Some(Identifiability::SameAs(names[other].clone()))
}
