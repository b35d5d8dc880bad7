//! Judging samples given measurements against the truth that was measured.
//!
//! A posterior is good if its samples are close to the truth *and* no closer to each other than to it: then the truth looks like one
//! of the samples, at every node.

use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::error::Result;
use crate::observe::noise::Noise;
use crate::observe::observations::{Measured, Observations};
use crate::observe::place::Extent;
use crate::observe::reading::Reading;
use crate::random::{Purpose, Stream};
use crate::statistics::{OverSamples, quantile};
use crate::tensors::{field_batch, to_vec_f64};
use crate::units::Units;

/// Intervals whose coverage is measured.
pub const INTERVALS: [f64; 3] = [0.5, 0.9, 0.95];

/// Most bins of a rank histogram.
const BINS: usize = 10;

/// What was found of one field, over cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FieldPosterior {
    /// The field.
    pub name: String,
    /// ‖x − truth‖/‖truth‖ of samples x, the mean over a case's samples.
    pub sample_error: OverSamples,
    /// The same of the mean of a case's samples.
    pub mean_error: OverSamples,
    /// Continuous ranked probability score, mean over nodes, over the data's standard deviation: the error of a forecast that is a
    /// distribution.
    pub crps: OverSamples,
    /// Share of nodes at which the truth lies in the central interval of [`INTERVALS`].
    pub coverage: [f64; 3],
    /// Standard deviation of samples over the error of their mean, root mean squares over nodes and cases; 1 is right.
    pub spread_over_error: f64,
    /// How often the truth has each rank among the samples, in at most ten bins, as shares; flat is right.
    pub ranks: Vec<f64>,
}

/// What was found of all fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PosteriorMetrics {
    /// Number of cases.
    pub cases: usize,
    /// Samples per case.
    pub samples: usize,
    /// By field.
    pub fields: Vec<FieldPosterior>,
    /// Root mean square of H(x) − y over the sensors, in units of their noise; the truth has 1.
    pub misfit: OverSamples,
    /// Mean |R| of samples under the true equation, if it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub residual: Option<OverSamples>,
}

/// The truth of some cases and their measurements.
pub struct PosteriorJudge<'a> {
    /// Names of the fields.
    pub fields: &'a [String],
    /// Their units.
    pub units: &'a Units,
    /// Standard deviation of the normalised data.
    pub sigma_data: f64,
    /// `[cases, C, H, W]`, in physical units.
    pub truth: &'a [f64],
    /// One for each case.
    pub observations: &'a [Observations],
    /// The true equation, if it is known.
    pub equation: Option<&'a SoftConstraint>,
    /// Shape of a sample, `[C, H, W]`.
    pub shape: [usize; 3],
}

impl PosteriorJudge<'_> {
    /// Judges `samples` `[cases, S, C, H, W]` in physical units.
    pub fn judge(&self, samples: &[f64]) -> Option<PosteriorMetrics> {
        let len: usize = self.shape.iter().product();
        let cases = self.observations.len();
        let per_case = samples.len() / cases.max(1);
        let count = per_case / len;
        let nodes = self.shape[1] * self.shape[2];
        let field = |(channel, name): (usize, &String)| {
            let own = channel * nodes..(channel + 1) * nodes;
            let mut sums = Sums::default();
            for (truth, samples) in self.truth.chunks_exact(len).zip(samples.chunks_exact(per_case)) {
                let of_case: Vec<&[f64]> = samples.chunks_exact(len).map(|sample| &sample[own.clone()]).collect();
                sums.add(&truth[own.clone()], &of_case);
            }
            sums.finish(name, self.units.scale[channel] * self.sigma_data, count)
        };
        let device = burn::tensor::Device::flex();
        let (mut misfits, mut residuals) = (Vec::new(), Vec::new());
        for (observations, samples) in self.observations.iter().zip(samples.chunks_exact(per_case)) {
            let normalised = samples.iter().enumerate().map(|(i, v)| {
                let channel = i / nodes % self.shape[0];
                (v - self.units.mean[channel]) / self.units.scale[channel]
            });
            let normalised = field_batch(normalised.collect(), self.shape, &device);
            let misfit = to_vec_f64(observations.misfit(&normalised));
            let root = |m: &[f64]| (m.iter().map(|v| v * v).sum::<f64>() / m.len() as f64).sqrt();
            misfits.extend(misfit.chunks_exact(observations.len()).map(root));
            residuals.extend(self.equation.iter().flat_map(|equation| equation.mean_abs(&normalised)));
        }
        Some(PosteriorMetrics {
            cases,
            samples: count,
            fields: self.fields.iter().enumerate().map(field).collect::<Option<_>>()?,
            misfit: OverSamples::of(misfits)?,
            residual: OverSamples::of(residuals),
        })
    }
}

/// Running sums of one field.
#[derive(Default)]
struct Sums {
    sample_errors: Vec<f64>,
    mean_errors: Vec<f64>,
    crps: Vec<f64>,
    inside: [f64; 3],
    nodes: f64,
    variance: f64,
    square_error: f64,
    ranks: Vec<f64>,
}

impl Sums {
    /// Adds a case: its truth `[H, W]` and its samples.
    fn add(&mut self, truth: &[f64], samples: &[&[f64]]) {
        let s = samples.len() as f64;
        let size = truth.iter().map(|v| v * v).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        let distance = |x: &[f64]| x.iter().zip(truth).map(|(x, t)| (x - t).powi(2)).sum::<f64>().sqrt() / size;
        let mean: Vec<f64> = (0..truth.len()).map(|j| samples.iter().map(|x| x[j]).sum::<f64>() / s).collect();
        self.sample_errors.push(samples.iter().map(|x| distance(x)).sum::<f64>() / s);
        self.mean_errors.push(distance(&mean));
        self.ranks.resize(samples.len() + 1, 0.0);
        let mut crps = 0.0;
        for (j, &truth) in truth.iter().enumerate() {
            let mut values: Vec<f64> = samples.iter().map(|x| x[j]).collect();
            values.sort_unstable_by(f64::total_cmp);
            crps += score(&values, truth);
            self.ranks[values.partition_point(|v| *v < truth)] += 1.0;
            for (inside, interval) in self.inside.iter_mut().zip(INTERVALS) {
                let [low, high] = central(&values, interval);
                *inside += f64::from(u8::from((low..=high).contains(&truth)));
            }
            self.variance += values.iter().map(|v| (v - mean[j]).powi(2)).sum::<f64>() / (s - 1.0).max(1.0);
            self.square_error += (mean[j] - truth).powi(2);
        }
        self.nodes += truth.len() as f64;
        self.crps.push(crps / truth.len() as f64);
    }

    fn finish(self, name: &str, deviation: f64, samples: usize) -> Option<FieldPosterior> {
        let s = samples as f64;
        let bins = BINS.min(self.ranks.len());
        let mut ranks = vec![0.0; bins];
        let (all, total) = (self.ranks.len(), self.ranks.iter().sum::<f64>().max(1.0));
        self.ranks.iter().enumerate().for_each(|(rank, n)| ranks[rank * bins / all] += n / total);
        Some(FieldPosterior {
            name: name.into(),
            sample_error: OverSamples::of(self.sample_errors)?,
            mean_error: OverSamples::of(self.mean_errors)?,
            crps: OverSamples::of(self.crps.into_iter().map(|crps| crps / deviation))?,
            coverage: self.inside.map(|inside| inside / self.nodes.max(1.0)),
            // The mean of S samples is off by a further 1/S of the variance.
            spread_over_error: (self.variance * (1.0 + 1.0 / s) / self.square_error.max(f64::MIN_POSITIVE)).sqrt(),
            ranks,
        })
    }
}

/// Mean and standard deviation at every node of samples `[nodes]`.
pub fn node_moments(samples: &[&[f64]]) -> Vec<(f64, f64)> {
    let count = samples.len() as f64;
    let at = |node: usize| {
        let mean = samples.iter().map(|sample| sample[node]).sum::<f64>() / count;
        let square = samples.iter().map(|sample| (sample[node] - mean).powi(2)).sum::<f64>();
        (mean, (square / (count - 1.0).max(1.0)).sqrt())
    };
    (0..samples.first().map_or(0, |sample| sample.len())).map(at).collect()
}

/// E|X − truth| − ½ E|X − X'| over ascending samples, without bias for a few of them.
fn score(ascending: &[f64], truth: f64) -> f64 {
    let n = ascending.len() as f64;
    let to_truth = ascending.iter().map(|v| (v - truth).abs()).sum::<f64>() / n;
    // Σ_{i<j} (x_j − x_i) = Σ_i (2i − n + 1) x_i.
    let apart: f64 = ascending.iter().enumerate().map(|(i, v)| (2.0 * i as f64 - n + 1.0) * v).sum();
    if n < 2.0 { to_truth } else { to_truth - apart / (n * (n - 1.0)) }
}

/// The central interval of the given probability between order statistics: n samples cut the line into n + 1 pieces of equal
/// probability. Too few samples give their whole range.
fn central(ascending: &[f64], probability: f64) -> [f64; 2] {
    let n = ascending.len() as f64;
    let at = |p: f64| quantile(ascending, ((p * (n + 1.0) - 1.0) / (n - 1.0).max(1.0)).clamp(0.0, 1.0));
    [at(0.5 - 0.5 * probability), at(0.5 + 0.5 * probability)]
}

/// Sensors of one field for a test: so many random nodes, or all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomSensors {
    /// The field.
    pub field: String,
    /// Number of nodes; all of them without it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub count: Option<usize>,
}

impl RandomSensors {
    /// The readings of `truth` `[C, H, W]` (physical) at random nodes of case `case`; without noise, which [`disturbed`] adds.
    pub fn readings(&self, measured: Measured<'_>, truth: &[f64], seed: u64, case: u64) -> Vec<Reading> {
        let grid = measured.grid;
        let Some(channel) = measured.fields.iter().position(|field| *field == self.field) else { return Vec::new() };
        let mut order =
            Stream::new(seed, Purpose::Observation, ((channel as u64) << 32) | case).permutation(grid.len());
        order.truncate(self.count.unwrap_or(grid.len()));
        let reading = |&node: &usize| Reading {
            source: format!("{}, node {node}", self.field),
            quantity: self.field.clone(),
            place: grid
                .axes
                .iter()
                .zip([node / grid.cols(), node % grid.cols()])
                .map(|(axis, i)| Extent::Point(axis.coordinate(i)))
                .collect(),
            value: truth[channel * grid.len() + node],
            sd: None,
        };
        order.iter().map(reading).collect()
    }
}

/// The sensors of `readings` at the fields `truth` `[C, H, W]` (physical): what they would read, with their noise.
pub fn disturbed(
    readings: &[Reading],
    noise: &Noise,
    measured: Measured<'_>,
    truth: &[f64],
    seed: u64,
    case: u64,
) -> Result<Observations> {
    let observations = Observations::new(readings, noise, measured)?;
    let nodes = measured.grid.len();
    let normalised =
        truth.iter().enumerate().map(|(i, v)| (v - measured.units.mean[i / nodes]) / measured.units.scale[i / nodes]);
    let shape = [measured.fields.len(), measured.grid.rows(), measured.grid.cols()];
    let exact =
        to_vec_f64(observations.predicted(&field_batch(normalised.collect(), shape, &burn::tensor::Device::flex())));
    let mut stream = Stream::new(seed ^ (1 << 63), Purpose::Observation, case);
    let values: Vec<f64> = exact.iter().zip(observations.sds()).map(|(v, sd)| v + sd * stream.normal()).collect();
    Ok(observations.with_values(&values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_hand_made_samples() {
        // Samples 0 and 2, truth 1: E|X − 1| = 1, E|X − X'| = 2 without the pairs of a sample with itself.
        assert!((score(&[0.0, 2.0], 1.0)).abs() < 1e-15);
        assert!((score(&[0.0, 2.0], 5.0) - 3.0).abs() < 1e-15);
        assert_eq!(score(&[3.0], 1.0), 2.0);
        let samples: Vec<f64> = (1..=39).map(f64::from).collect();
        assert_eq!(central(&samples, 0.95), [1.0, 39.0]);
        assert_eq!(central(&samples, 0.9), [2.0, 38.0]);
        assert_eq!(central(&samples, 0.5), [10.0, 30.0]);
        assert_eq!(central(&samples[..3], 0.9), [1.0, 3.0]);
    }

    #[test]
    fn truths_like_their_samples_are_covered_as_often_as_they_should() {
        let mut sums = Sums::default();
        let mut stream = Stream::new(5, Purpose::Metric, 0);
        for _ in 0..60 {
            let mut draw = || (0..64).map(|_| 3.0 + 2.0 * stream.normal()).collect::<Vec<f64>>();
            let (truth, samples) = (draw(), (0..39).map(|_| draw()).collect::<Vec<_>>());
            sums.add(&truth, &samples.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        let found = sums.finish("u", 2.0, 39).unwrap();
        // 3840 nodes: two standard errors are at most 0.016.
        for (coverage, interval) in found.coverage.iter().zip(INTERVALS) {
            assert!((coverage - interval).abs() < 0.02, "{coverage} for {interval}");
        }
        assert!((found.spread_over_error - 1.0).abs() < 0.03, "{}", found.spread_over_error);
        assert!(found.ranks.iter().all(|share| (share - 0.1).abs() < 0.02), "{:?}", found.ranks);
        // CRPS of a normal forecast of a truth like it: σ/√π.
        assert!((found.crps.summary.mean - 1.0 / std::f64::consts::PI.sqrt()).abs() < 0.02, "{:?}", found.crps);
    }
}
