//! How well held-out data know a learned parameter of a constraint.
//!
//! One Gauss–Newton step of [`ParameterFit`] on held-out data gives their estimate of θ; repeating it for samples drawn anew
//! (bootstrap) gives its interval, whatever the residuals' distribution is. Where the residual does not depend on a parameter, or
//! depends on several in the same way, there is no finite interval.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use softly_pde::normal_equations::NormalEquations;

use crate::error::Result;
use crate::evaluate::held_out::HeldOut;
use crate::evaluate::paired::DRAWS;
use crate::job::{Job, NOTHING_WRITTEN};
use crate::model::Model;
use crate::random::{Purpose, Stream};
use crate::soft::parameter_fit::ParameterFit;
use crate::statistics::quantile;
use crate::tensors::field_batch;

/// Samples of a batch.
const BATCH: usize = 32;

/// What held-out data say about a learned parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterInterval {
    /// Its name.
    pub name: String,
    /// The learned value.
    pub value: f64,
    /// What the held-out data prefer; none if they have no preference.
    pub estimate: Option<f64>,
    /// 95 % bootstrap interval of the estimate; none if it is unbounded.
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
pub fn parameter_intervals(
    model: &Model,
    data: HeldOut<'_>,
    seed: u64,
    job: &Job<'_>,
) -> Result<Vec<ParameterInterval>> {
    data.check()?;
    job.go_on(NOTHING_WRITTEN)?;
    let Some(constraint) = model.constraint.as_ref().filter(|constraint| constraint.learns()) else {
        return Ok(Vec::new());
    };
    let samples: Vec<usize> = (0..data.count()).collect();
    let batch = |indices: &[usize]| {
        let values = indices.iter().flat_map(|&i| data.sample(i)).collect();
        field_batch(values, data.shape, &job.device.clone().without_autodiff())
    };
    let clean: Vec<_> = samples.chunks(BATCH).map(batch).collect();
    let fit = ParameterFit::new(constraint, &clean);
    let equations = fit.equations()?;
    job.reporter.advance(data.count() as u64);
    let of_number = |(index, number): (usize, (&str, f64))| {
        let (name, value) = number;
        let (estimate, interval) = bootstrap(&equations, index, value, seed);
        ParameterInterval::new(name.to_string(), value, estimate, interval, data.count())
    };
    let numbers = fit.numbers().into_iter().enumerate();
    Ok(numbers.filter_map(|(index, number)| Some(of_number((index, number?)))).collect())
}

/// θ + Δθ of parameter `index` from all `samples`, and the interval that it has over samples drawn with replacement.
fn bootstrap(samples: &[NormalEquations], index: usize, value: f64, seed: u64) -> (Option<f64>, Option<[f64; 2]>) {
    let step = |chosen: &mut dyn Iterator<Item = &NormalEquations>| {
        let mut sum = NormalEquations::new(samples[0].right.len());
        chosen.for_each(|part| sum.add(part));
        // Last, so that it counts only with what the others cannot do.
        sum.with_last(index).solve().pop().flatten().map(|step| value + step)
    };
    let draw = |draw: u64| {
        let mut stream = Stream::new(seed, Purpose::Metric, draw);
        step(&mut (0..samples.len()).map(|_| &samples[stream.below(samples.len())]))
    };
    let draws: Option<Vec<f64>> = (0..DRAWS).into_par_iter().map(draw).collect();
    let interval = draws.map(|mut draws| {
        draws.sort_unstable_by(f64::total_cmp);
        [quantile(&draws, 0.025), quantile(&draws, 0.975)]
    });
    (step(&mut samples.iter()), interval)
}
