//! How well held-out data know a learned parameter of a constraint.
//!
//! One Gauss–Newton step of [`ParameterFit`] on held-out data gives their estimate θ. Its variance is
//!
//! ```text
//! s² = Σ_i (B⁻¹ u_i)² + Σ_n (B⁻¹ u_n)²,   B = −∂(Σ_i u_i)/∂θ,
//! ```
//!
//! the sandwich of independent pulls u at θ by the pulls' slope B, in which the misfit's covariance V changes with θ.
//!
//! - *Chance*: the pulls u_i of samples, whatever the residuals' distribution is.
//! - *A law that is a little wrong everywhere*: what an equation leaves over may be the same in every sample (a discretisation
//!   other than the data's, an end of the domain), and no number of samples averages it away. The pulls u_n of places tell how
//!   large it is. Places are nodes, rows or columns, whichever disagree most: an error of time steps is alike in a whole frame.
//!
//! Where the residual does not depend on a parameter, or depends on several in the same way, there is no finite interval.

use serde::{Deserialize, Serialize};
use softly_pde::normal_equations::NormalEquations;

use crate::error::Result;
use crate::evaluate::held_out::HeldOut;
use crate::host::host;
use crate::job::{Job, NOTHING_WRITTEN};
use crate::model::Model;
use crate::soft::parameter_fit::ParameterFit;
use crate::tensors::field_batch;

/// Samples of a batch.
const BATCH: usize = 32;

/// 95 % of normal numbers are nearer to their mean, in standard deviations.
const NORMAL_QUANTILE: f64 = 1.96;

/// What held-out data say about a learned parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterInterval {
    /// Its name.
    pub name: String,
    /// The learned value.
    pub value: f64,
    /// What the held-out data prefer; none if they have no preference.
    pub estimate: Option<f64>,
    /// 95 % interval of the estimate, by chance and by what places disagree about; none if it is unbounded.
    pub interval: Option<[f64; 2]>,
    /// What follows.
    pub verdict: Identification,
    /// Held-out samples.
    pub count: usize,
}

/// Whether a parameter is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Identification {
    /// The interval holds the learned value and is narrower than it is large.
    Identified,
    /// The interval is narrow, but elsewhere: held-out data are not like those that the parameter was learned from.
    Elsewhere,
    /// The interval is unbounded or wider than the value is large.
    NotIdentifiable,
}

impl ParameterInterval {
    fn new(name: String, value: f64, estimate: Option<f64>, interval: Option<[f64; 2]>, count: usize) -> Self {
        let verdict = match interval {
            Some([low, high]) if high - low <= value.abs() => {
                if (low..=high).contains(&value) {
                    Identification::Identified
                } else {
                    Identification::Elsewhere
                }
            }
            _ => Identification::NotIdentifiable,
        };
        Self { name, value, estimate, interval, verdict, count }
    }
}

/// The intervals of all learned numbers of the constraint of `model`; none without a constraint. Waves of learned fields are left
/// out: an interval for each of them would help nobody.
pub fn parameter_intervals(model: &Model, data: HeldOut<'_>, job: &Job<'_>) -> Result<Vec<ParameterInterval>> {
    data.check()?;
    job.go_on(NOTHING_WRITTEN)?;
    let Some(constraint) = model.constraint.as_ref().filter(|constraint| constraint.learns()) else {
        return Ok(Vec::new());
    };
    let samples: Vec<usize> = (0..data.count()).collect();
    let batch = |indices: &[usize]| {
        let values = indices.iter().flat_map(|&i| data.sample(i)).collect();
        field_batch(values, data.shape, &host())
    };
    let clean: Vec<_> = samples.chunks(BATCH).map(batch).collect();
    let intervals = intervals_of(&ParameterFit::new(constraint, &clean));
    job.reporter.advance(data.count() as u64);
    intervals
}

/// What the samples of `fit` say about its learned numbers at their present values.
pub fn intervals_of(fit: &ParameterFit<'_>) -> Result<Vec<ParameterInterval>> {
    let samples = fit.equations()?;
    let all = sum(&samples);
    let numbers = fit.numbers().into_iter().enumerate();
    let numbers: Vec<(usize, &str, f64)> = numbers.filter_map(|(i, number)| number.map(|(n, v)| (i, n, v))).collect();
    let steps: Vec<Option<f64>> = (0..all.right.len()).map(|index| solve(&all, index)).collect();
    let change: Vec<f64> = steps.iter().map(|step| step.unwrap_or_default()).collect();
    let indices: Vec<usize> = numbers.iter().map(|(index, ..)| *index).collect();
    let deviations = fit.moved(&change, || deviations(fit, &indices))?;
    let of_number = |(&(index, name, value), deviation): (&(usize, &str, f64), Option<f64>)| {
        let estimate = steps[index].map(|step| value + step);
        let interval = estimate.zip(deviation).map(|(estimate, deviation)| {
            [-NORMAL_QUANTILE, NORMAL_QUANTILE].map(|quantile| estimate + quantile * deviation)
        });
        ParameterInterval::new(name.to_string(), value, estimate, interval, samples.len())
    };
    Ok(numbers.iter().zip(deviations).map(of_number).collect())
}

/// The standard deviation s of each of the `numbers` of θ at its present value, the estimate; none if it is unbounded.
fn deviations(fit: &ParameterFit<'_>, numbers: &[usize]) -> Result<Vec<Option<f64>>> {
    let samples = fit.equations()?;
    let chance: Vec<Vec<f64>> = samples.iter().map(|sample| sample.right.clone()).collect();
    let places = by_place(&fit.pulls()?, fit.shape());
    let deviation = |gram: &[f64], index: usize| {
        let variance = |pulls: &Vec<Vec<f64>>| {
            let shift = |pull: &Vec<f64>| solve(&NormalEquations { gram: gram.to_vec(), right: pull.clone() }, index);
            pulls.iter().map(|pull| shift(pull).map(|shift| shift * shift)).sum::<Option<f64>>()
        };
        let systematic = places.iter().map(variance).try_fold(0.0, |most, found| Some(f64::max(most, found?)))?;
        Some((variance(&chance)? + systematic).sqrt())
    };
    let gram = sum(&samples).gram;
    let steps: Vec<Option<f64>> = numbers.iter().map(|&index| deviation(&gram, index)).collect();
    let slope = slope(fit, gram, numbers, &steps)?;
    Ok(numbers.iter().map(|&index| deviation(&slope, index)).collect())
}

/// B: `gram`, which takes V for constant, with differences over ± `steps` in the rows and columns of `numbers`.
fn slope(fit: &ParameterFit<'_>, mut gram: Vec<f64>, numbers: &[usize], steps: &[Option<f64>]) -> Result<Vec<f64>> {
    let present = fit.numbers();
    let n = present.len();
    for (&index, step) in numbers.iter().zip(steps) {
        let (Some(step), Some((_, value))) = (*step, present[index]) else { continue };
        // Parameters are kept in single precision.
        let step = step.max(8.0 * f64::from(f32::EPSILON) * value.abs());
        let ends = [value - step, value + step].map(|end| f64::from(end as f32));
        let [below, above] = ends.map(|end| {
            let mut change = vec![0.0; n];
            change[index] = end - value;
            fit.moved(&change, || fit.equations()).map(|samples| sum(&samples).right)
        });
        for (other, (below, above)) in below?.into_iter().zip(above?).enumerate() {
            let slope = (below - above) / (ends[1] - ends[0]);
            (gram[index * n + other], gram[other * n + index]) = (slope, slope);
        }
    }
    Ok(gram)
}

/// The pulls `[E H W][θ]` of nodes, of rows and of columns, each summed over equations.
fn by_place(pulls: &[Vec<f64>], [_, rows, cols]: [usize; 3]) -> [Vec<Vec<f64>>; 3] {
    let summed = |places: usize, place: &dyn Fn(usize) -> usize| {
        let mut sums = vec![vec![0.0; pulls[0].len()]; places];
        for (i, pull) in pulls.iter().enumerate() {
            sums[place(i % (rows * cols))].iter_mut().zip(pull).for_each(|(sum, pull)| *sum += pull);
        }
        sums
    };
    [summed(rows * cols, &|node| node), summed(rows, &|node| node / cols), summed(cols, &|node| node % cols)]
}

/// Number `index` of the solution; none if the others can do the same.
fn solve(equations: &NormalEquations, index: usize) -> Option<f64> {
    // Last, so that it counts only with what the others cannot do.
    equations.with_last(index).solve().pop().flatten()
}

fn sum(samples: &[NormalEquations]) -> NormalEquations {
    let mut sum = NormalEquations::new(samples[0].right.len());
    for part in samples {
        sum.add(part);
    }
    sum
}
