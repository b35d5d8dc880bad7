//! Looking at a dataset: moments, distributions, and the residual of the real data under a constraint.

use rayon::prelude::*;
use serde::Serialize;
use softly_pde::algebra::Value;
use softly_pde::audit::Sample;

use crate::constraint::SoftConstraint;
use crate::constraint::config::ConstraintConfig;
use crate::constraint::norm::ResidualSummary;
use crate::data::folder::DatasetFolder;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::statistics::{Moments, Statistics};
use crate::units::Units;

/// Bars of a histogram.
const BARS: usize = 40;
/// Samples that are in memory at a time.
const CHUNK: usize = 64;

/// What there is to say about a split.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitInspection {
    /// Samples.
    pub count: usize,
    /// Each field, in the order of the channels.
    pub fields: Vec<FieldInspection>,
    /// The residual of the samples, if there is a constraint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual: Option<ResidualSummary>,
    /// √⟨R²⟩ of every equation and sample, `[equations][samples]`.
    #[serde(skip)]
    pub by_sample: Vec<Vec<f64>>,
    /// The fields of the constraint of some samples, evenly spaced, see [`DataConstraint::keeping`].
    #[serde(skip)]
    pub kept: Vec<Sample>,
}

/// What there is to say about a field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FieldInspection {
    /// Moments and extremes.
    #[serde(flatten)]
    pub statistics: Statistics,
    /// Counts of values in equal intervals from the smallest to the largest training value; values beyond that range
    /// count in the outermost intervals.
    pub histogram: Vec<u64>,
}

/// A constraint on the fields of a dataset.
pub struct DataConstraint {
    constraint: SoftConstraint,
    formulas: Vec<String>,
    /// The dataset's channel of each field of the constraint.
    channels: Vec<usize>,
    /// One of this many samples is kept.
    every: Option<usize>,
}

impl DataConstraint {
    /// Compiles `config` for the fields and the grid of `folder`.
    pub fn new(config: &ConstraintConfig, folder: &DatasetFolder) -> Result<Self> {
        let names = folder.fields();
        let config = &folder.complete(config);
        let constraint = SoftConstraint::new(config, &names, &folder.description.grid, &Units::identity(names.len()))?;
        // Compiling has found every one of them.
        let channels = config.fields.iter().filter_map(|name| names.iter().position(|n| n == name)).collect();
        let formulas = config.residuals().into_iter().map(|residual| residual.formula).collect();
        Ok(Self { constraint, formulas, channels, every: None })
    }

    /// The constraint, one of `every` samples being kept for an audit.
    #[must_use]
    pub fn keeping(self, every: usize) -> Self {
        Self { every: Some(every.max(1)), ..self }
    }

    /// The fields of the constraint in a sample whose fields are `[H, W]` each.
    fn chosen(&self, fields: &[Vec<f64>]) -> Vec<Vec<f64>> {
        self.channels.iter().map(|&c| fields[c].clone()).collect()
    }

    /// Every residual value of a sample, whose fields are `[H, W]` each, by equation.
    pub fn residuals(&self, fields: &[Vec<f64>]) -> Vec<Vec<f64>> {
        self.constraint.residual_values(&self.chosen(fields))
    }

    /// The error of a residual `value` that is not finite.
    fn not_finite(&self, equation: usize, split: Split, sample: usize) -> Error {
        let formula = self.formulas.get(equation).map_or("", String::as_str);
        let problem =
            format!("expected finite numbers, found others for `{formula}` in {} sample {sample}", split.name());
        Error::input("constraint.residual", problem)
            .hint("the formula divides by zero or takes a root or logarithm of a negative number there")
    }
}

/// Sums behind a [`ResidualSummary`].
#[derive(Clone, Copy, Default)]
struct ResidualSums {
    absolute: f64,
    squares: f64,
    largest: f64,
    count: usize,
}

impl ResidualSums {
    fn of(values: &[f64]) -> Self {
        Self {
            absolute: values.iter().map(|v| v.abs()).sum(),
            squares: values.iter().map(|v| v * v).sum(),
            largest: values.iter().fold(0.0, |max, v| v.abs().max(max)),
            count: values.len(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.absolute += other.absolute;
        self.squares += other.squares;
        self.largest = self.largest.max(other.largest);
        self.count += other.count;
    }

    fn summary(&self) -> ResidualSummary {
        let n = self.count.max(1) as f64;
        let (mean_abs, rms) = (self.absolute / n, (self.squares / n).sqrt());
        ResidualSummary { mean_abs, rms, max_abs: self.largest, n: self.count }
    }
}

/// What one sample adds.
struct Share {
    moments: Vec<Moments>,
    histograms: Vec<Vec<u64>>,
    /// Of each equation.
    residuals: Vec<ResidualSums>,
}

/// Inspects the first `limit` samples of a split; blocks that are read whole are compared with their hashes.
pub fn inspect(
    folder: &DatasetFolder,
    split: Split,
    limit: usize,
    constraint: Option<&DataConstraint>,
    job: &Job<'_>,
) -> Result<SplitInspection> {
    let entries = &folder.description.fields;
    let count = folder.count(split).min(limit);
    let mut samples = folder.samples(split)?;
    let mut moments = vec![Moments::default(); entries.len()];
    let mut histograms = vec![vec![0; BARS]; entries.len()];
    let mut sums = ResidualSums::default();
    let mut by_sample = vec![Vec::new(); constraint.map_or(0, |c| c.formulas.len())];
    let mut kept = Vec::new();
    let share = |fields: &Vec<Vec<f64>>| {
        let residuals = constraint.map_or_else(Vec::new, |c| c.residuals(fields));
        Share {
            moments: fields.iter().map(|field| Moments::of(field.iter().copied())).collect(),
            histograms: fields.iter().zip(entries).map(|(field, e)| histogram(field, e.statistics)).collect(),
            residuals: residuals.iter().map(|values| ResidualSums::of(values)).collect(),
        }
    };
    let mut done = 0;
    while done < count {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK.min(count - done)
            && let Some(sample) = samples.next_sample()?
        {
            chunk.push(sample);
        }
        for (index, share) in chunk.par_iter().map(share).collect::<Vec<_>>().into_iter().enumerate() {
            if let Some(constraint) = constraint {
                if let Some(equation) = share.residuals.iter().position(|sums| !sums.absolute.is_finite()) {
                    return Err(constraint.not_finite(equation, split, done + index));
                }
                if constraint.every.is_some_and(|every| (done + index).is_multiple_of(every)) {
                    kept.push(constraint.chosen(&chunk[index]).into_iter().map(Value::from).collect());
                }
            }
            for (sizes, residual) in by_sample.iter_mut().zip(&share.residuals) {
                sizes.push(residual.summary().rms);
                sums.add(residual);
            }
            for (sum, new) in moments.iter_mut().zip(share.moments) {
                *sum = sum.merged(new);
            }
            for (sum, new) in histograms.iter_mut().flatten().zip(share.histograms.iter().flatten()) {
                *sum += new;
            }
        }
        done += chunk.len();
        job.reporter.advance(chunk.len() as u64);
        job.go_on("")?;
    }
    Ok(SplitInspection {
        count,
        fields: moments
            .into_iter()
            .zip(histograms)
            .map(|(moments, histogram)| FieldInspection { statistics: moments.statistics(), histogram })
            .collect(),
        residual: constraint.map(|_| sums.summary()),
        by_sample,
        kept,
    })
}

fn histogram(values: &[f64], range: Statistics) -> Vec<u64> {
    let mut counts = vec![0; BARS];
    for value in values {
        // A range without width gives 0/0, which counts as 0.
        let place = (value - range.min) / (range.max - range.min) * BARS as f64;
        counts[(place.max(0.0) as usize).min(BARS - 1)] += 1;
    }
    counts
}
