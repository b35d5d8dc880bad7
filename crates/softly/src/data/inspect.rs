//! Looking at a dataset: moments, distributions, and the residual of the real data under a constraint.

use rayon::prelude::*;
use serde::Serialize;

use crate::constraint::SoftConstraint;
use crate::constraint::config::ConstraintConfig;
use crate::constraint::norm::ResidualSummary;
use crate::data::folder::DatasetFolder;
use crate::data::split::Split;
use crate::error::Result;
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
    /// The dataset's channel of each field of the constraint.
    channels: Vec<usize>,
}

impl DataConstraint {
    /// Compiles `config` for the fields and the grid of `folder`.
    pub fn new(config: &ConstraintConfig, folder: &DatasetFolder) -> Result<Self> {
        let names = folder.fields();
        let constraint = SoftConstraint::new(config, &names, &folder.description.grid, &Units::identity(names.len()))?;
        // Compiling has found every one of them.
        let channels = config.fields.iter().filter_map(|name| names.iter().position(|n| n == name)).collect();
        Ok(Self { constraint, channels })
    }

    /// Every residual value of a sample, whose fields are `[H, W]` each.
    pub fn residual(&self, fields: &[Vec<f64>]) -> Vec<f64> {
        let chosen: Vec<Vec<f64>> = self.channels.iter().map(|&c| fields[c].clone()).collect();
        self.constraint.residual_values(&chosen).concat()
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

/// What one sample adds.
struct Share {
    moments: Vec<Moments>,
    histograms: Vec<Vec<u64>>,
    residual: ResidualSums,
    bytes: Vec<u8>,
}

/// Inspects the first `limit` samples of a split, feeding `hasher` with their numbers.
pub fn inspect(
    folder: &DatasetFolder,
    split: Split,
    limit: usize,
    constraint: Option<&DataConstraint>,
    hasher: &mut blake3::Hasher,
    job: &Job<'_>,
) -> Result<SplitInspection> {
    let entries = &folder.description.fields;
    let count = folder.count(split).min(limit);
    let mut samples = folder.samples(split)?;
    let mut moments = vec![Moments::default(); entries.len()];
    let mut histograms = vec![vec![0; BARS]; entries.len()];
    let mut sums = ResidualSums::default();
    let share = |fields: &Vec<Vec<f64>>| {
        let residual = constraint.map_or_else(ResidualSums::default, |c| {
            let values = c.residual(fields);
            ResidualSums {
                absolute: values.iter().map(|v| v.abs()).sum(),
                squares: values.iter().map(|v| v * v).sum(),
                largest: values.iter().fold(0.0, |max, v| v.abs().max(max)),
                count: values.len(),
            }
        });
        Share {
            moments: fields.iter().map(|field| Moments::of(field.iter().copied())).collect(),
            histograms: fields.iter().zip(entries).map(|(field, e)| histogram(field, e.statistics)).collect(),
            residual,
            bytes: fields.iter().flatten().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
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
        done += chunk.len();
        for share in chunk.par_iter().map(share).collect::<Vec<_>>() {
            hasher.update(&share.bytes);
            for (sum, new) in moments.iter_mut().zip(share.moments) {
                *sum = sum.merged(new);
            }
            for (sum, new) in histograms.iter_mut().flatten().zip(share.histograms.iter().flatten()) {
                *sum += new;
            }
            sums.absolute += share.residual.absolute;
            sums.squares += share.residual.squares;
            sums.largest = sums.largest.max(share.residual.largest);
            sums.count += share.residual.count;
        }
        job.reporter.advance(chunk.len() as u64);
        job.go_on("")?;
    }
    let n = sums.count.max(1) as f64;
    Ok(SplitInspection {
        count,
        fields: moments
            .into_iter()
            .zip(histograms)
            .map(|(moments, histogram)| FieldInspection { statistics: moments.statistics(), histogram })
            .collect(),
        residual: constraint.map(|_| ResidualSummary {
            mean_abs: sums.absolute / n,
            rms: (sums.squares / n).sqrt(),
            max_abs: sums.largest,
            n: sums.count,
        }),
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
