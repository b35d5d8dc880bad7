//! Metrics of sampled fields: residual, distance from the true solution, distribution, and copying from the data.
//!
//! No number stands alone. A residual can be lowered by fields that hardly vary, so amplitudes and spectra stand beside
//! it; distances between finite sets are never zero, so each has a floor: what training data score.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use softly_pde::region::Region;
use softly_pde::spectrum::{RadialSpectrum, log_spectral_distance};

use crate::constraint::SoftConstraint;
use crate::constraint::config::{ConstraintConfig, ResidualConfig};
use crate::data::dataset::Dataset;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::evaluate::neighbours::{Nearest, nearest};
use crate::model::trained::Trained;
use crate::statistics::Summary;

use crate::data::generator::Reference;
use crate::evaluate::metric::{METRICS, Sample, SampleMetric};
use crate::evaluate::wasserstein::w1_1d;
use crate::statistics::OverSamples;
use crate::units::Units;

/// Everything that is measured of a set of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FieldMetrics {
    /// Samples that were measured.
    pub count: usize,
    /// Samples with a value or residual that is not finite: counted here and left out of all else.
    pub not_finite: usize,
    /// Mean |R| over the nodes, all formulas of the true constraint together; absent where no equation is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<OverSamples>,
    /// Mean |R| of each formula over its nodes.
    pub formulas: Vec<FormulaResidual>,
    /// Distance from the true solver's solution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solver: Option<SolverComparison>,
    /// Each field against the data.
    pub fields: Vec<FieldComparison>,
    /// Distance to the training data.
    pub neighbours: NeighbourComparison,
    /// Numbers of single samples, in the samples' order.
    pub per_sample: PerSample,
    /// The [`METRICS`] by name.
    #[serde(flatten)]
    pub others: BTreeMap<String, OverSamples>,
}

impl FieldMetrics {
    /// Mean |R| over nodes and samples; not a number where no equation is known.
    pub fn mean_residual(&self) -> f64 {
        self.residual.map_or(f64::NAN, |residual| residual.summary.mean)
    }
}

/// The residual of one formula.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FormulaResidual {
    /// The name of the equation, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The formula.
    pub formula: String,
    /// The nodes where it counts.
    #[serde(default)]
    pub region: Region,
    /// Mean |R| over its nodes.
    pub residual: OverSamples,
}

impl FormulaResidual {
    /// The name or else the formula, and the region if it is not the whole grid.
    pub fn title(&self) -> String {
        match (&self.name, &self.region) {
            (Some(name), _) => name.clone(),
            (None, Region::All) => self.formula.clone(),
            (None, region) => format!("{} on {region}", self.formula),
        }
    }
}

/// Sampled solutions against the solutions of the data's own solver for the sampled coefficients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SolverComparison {
    /// Relative L2 error; absent if no sample could be solved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<OverSamples>,
    /// Samples without a solution to compare with.
    pub unsolved: usize,
    /// Fraction of all nodes whose permeability had to be lifted to a positive floor.
    pub lifted: f64,
}

/// The distribution of one field against the held-out data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FieldComparison {
    /// The field.
    pub name: String,
    /// W1 between the values at all nodes, in the field's unit.
    pub w1: f64,
    /// The same for as many training samples: what chance alone leaves.
    pub w1_floor: f64,
    /// Amplitude of the samples.
    pub samples: Amplitude,
    /// Amplitude of the held-out data.
    pub data: Amplitude,
    /// Mean power of the samples in each ring of [`RadialSpectrum`]: index k is k half waves along the longer side.
    pub spectrum: Vec<f64>,
    /// Mean power of the held-out data.
    pub data_spectrum: Vec<f64>,
    /// Log-spectral distance between the two, in decibels.
    pub spectral_distance: f64,
    /// The same for as many training samples.
    pub spectral_floor: f64,
}

/// How large the values of a field are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Amplitude {
    /// Mean of all values.
    pub mean: f64,
    /// Standard deviation of all values.
    pub std: f64,
    /// Standard deviation over the nodes of single samples.
    pub within: Summary,
}

/// Distance to the nearest training sample, root mean square in normalised units.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NeighbourComparison {
    /// Of the samples.
    pub samples: OverSamples,
    /// Of the held-out data.
    pub held_out: OverSamples,
    /// Ratio of the medians: far below 1, samples are copies. Absent if held-out data are copies themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// Numbers of single samples; `None` where there is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PerSample {
    /// Mean |R|.
    pub residual: Vec<Option<f64>>,
    /// Relative error against the true solver.
    pub solver_error: Vec<Option<f64>>,
}

/// A row that results are compared with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReferenceRow {
    /// What it is.
    pub name: String,
    /// Its metrics.
    pub metrics: FieldMetrics,
}

/// The distance of each of `points` `[N, C, H, W]` to the nearest training sample of `data`, `[N]`.
fn nearest_distances(points: &[f32], data: &Dataset, units: &Units) -> Result<Vec<f64>> {
    let found = nearest(points, data.pieces(Split::Train), data.grid.len(), units)?;
    Ok(found.into_iter().map(|nearest| nearest.distance).collect())
}

/// Measures sets of samples against data and the true equation.
pub struct FieldEvaluator<'a> {
    data: &'a Dataset,
    /// Held-out samples `[N, C, H, W]`.
    valid: Cow<'a, [f32]>,
    units: Units,
    equation: Option<Equation>,
    reference: Option<Box<dyn Reference>>,
    spectrum: RadialSpectrum,
    /// Each field of the held-out data.
    held_out: Vec<SetStatistics>,
    held_out_neighbours: OverSamples,
}

/// The equation that residuals are taken of.
struct Equation {
    config: ConstraintConfig,
    compiled: SoftConstraint,
    /// The data's channel of each field of the constraint.
    channels: Vec<usize>,
    residuals: Vec<ResidualConfig>,
}

impl Equation {
    fn new(config: &ConstraintConfig, data: &Dataset) -> Result<Self> {
        let compiled = SoftConstraint::new(config, &data.fields, &data.grid, &Units::identity(data.fields.len()))?;
        // Compiling has found every one of them.
        let channels = config.fields.iter().filter_map(|name| data.fields.iter().position(|f| f == name)).collect();
        Ok(Self { config: config.clone(), compiled, channels, residuals: config.residuals() })
    }

    /// The fields `[H, W]` of a sample in the constraint's order.
    fn constrained(&self, fields: &[Vec<f64>]) -> Vec<Vec<f64>> {
        self.channels.iter().map(|&c| fields[c].clone()).collect()
    }
}

/// One field of one sample.
struct FieldStatistics {
    mean: f64,
    std: f64,
    power: Vec<f64>,
}

/// One field of a set of samples.
struct SetStatistics {
    amplitude: Amplitude,
    power: Vec<f64>,
}

/// What one sample adds.
struct Measured {
    /// Σ|R| and number of values of each formula; none where no equation is known.
    residuals: Vec<(f64, usize)>,
    /// Of all [`METRICS`], in their order.
    others: Vec<Option<f64>>,
    solver_error: Option<f64>,
    lifted: usize,
    statistics: Vec<FieldStatistics>,
}

impl Measured {
    fn residual(&self) -> Option<f64> {
        let (sum, count) = self.residuals.iter().fold((0.0, 0), |(s, c), (sum, count)| (s + sum, c + count));
        (!self.residuals.is_empty()).then(|| sum / count as f64)
    }
}

impl<'a> FieldEvaluator<'a> {
    /// What measures samples of `trained` against `data`, which are of `other` origin than the training data or not: by [truth],
    /// which is the equation of the training data unless it was given, else by [constraint]; without either there are no
    /// residuals.
    pub fn for_model(trained: &Trained, data: &'a Dataset, other: bool) -> Result<Self> {
        let config = &trained.blueprint.config;
        // Other data may obey another equation.
        let own = data.equation.as_ref().filter(|_| other);
        let truth = own.or(config.truth.as_ref()).or(config.constraint.as_ref());
        Self::new(data, truth, &trained.blueprint.data.units)
    }

    /// Measures against `data`, the constraint `truth` if it is known, and the solver that made the data, if there is one.
    /// Distances between samples are taken in `units`.
    pub fn new(data: &'a Dataset, truth: Option<&ConstraintConfig>, units: &Units) -> Result<Self> {
        data.check()?;
        let truth = truth.map(|truth| data.complete(truth));
        let truth = truth.as_ref();
        let spectrum = RadialSpectrum::new(&data.grid).map_err(|e| Error::input("data", e))?;
        let valid = data.all(Split::Valid)?;
        let distances = nearest_distances(&valid, data, units)?;
        let mut evaluator = Self {
            data,
            valid,
            units: units.clone(),
            equation: truth.map(|truth| Equation::new(truth, data)).transpose()?,
            reference: data.reference()?,
            spectrum,
            held_out: Vec::new(),
            held_out_neighbours: OverSamples::of(distances).expect("checked data are not empty"),
        };
        evaluator.held_out = evaluator.set_statistics(&evaluator.statistics(&evaluator.valid));
        Ok(evaluator)
    }

    /// The equation that residuals are taken of, if one is known.
    pub fn equation(&self) -> Option<&ConstraintConfig> {
        self.equation.as_ref().map(|equation| &equation.config)
    }

    /// Measures `samples` in physical units, `[N, C, H, W]` row-major.
    pub fn metrics<T: Copy + Into<f64> + Sync>(&self, samples: &[T]) -> Result<FieldMetrics> {
        let length = self.data.sample_len();
        let total = samples.len() / length;
        if total == 0 || samples.len() != total * length {
            let problem = format!("expected samples of {length} numbers each, found {} numbers", samples.len());
            return Err(Error::input("samples", problem).hint("use the grid and the fields of the data"));
        }
        let measured: Vec<Option<Measured>> =
            samples.par_chunks_exact(length).map(|sample| self.measure(sample)).collect();
        let finite = measured.iter().zip(samples.chunks_exact(length)).filter(|(m, _)| m.is_some());
        let finite: Vec<f32> = finite.flat_map(|(_, s)| s.iter().map(|&v| v.into() as f32)).collect();
        let per_sample = PerSample {
            residual: measured.iter().map(|m| m.as_ref()?.residual()).collect(),
            solver_error: measured.iter().map(|m| m.as_ref()?.solver_error).collect(),
        };
        let measured: Vec<Measured> = measured.into_iter().flatten().collect();
        let count = measured.len();
        let over = |pick: &dyn Fn(&Measured) -> Option<f64>| OverSamples::of(measured.iter().filter_map(pick));
        let distances = nearest_distances(&finite, self.data, &self.units)?;
        let Some(neighbours) = OverSamples::of(distances) else {
            return Err(Error::input("samples", format!("none of the {total} samples is finite"))
                .hint("lower the guidance scale, or train longer"));
        };
        let equations = self.equation.as_ref().map_or(&[][..], |equation| &equation.residuals);
        let formula = |(k, equation): (usize, &ResidualConfig)| {
            let mean = |m: &Measured| m.residuals.get(k).map(|(sum, count)| sum / *count as f64);
            let ResidualConfig { formula, region, name, .. } = equation.clone();
            Some(FormulaResidual { name, formula, region, residual: over(&mean)? })
        };
        let other = |(k, metric): (usize, &&dyn SampleMetric)| {
            Some((metric.name().to_string(), over(&|m: &Measured| m.others[k])?))
        };
        let others = METRICS.iter().enumerate().filter_map(other).collect();
        let held_out = self.held_out_neighbours;
        Ok(FieldMetrics {
            count,
            not_finite: total - count,
            residual: over(&Measured::residual),
            formulas: equations.iter().enumerate().filter_map(formula).collect(),
            solver: self.reference.as_ref().map(|_| SolverComparison {
                error: over(&|m| m.solver_error),
                unsolved: measured.iter().filter(|m| m.solver_error.is_none()).count(),
                lifted: measured.iter().map(|m| m.lifted).sum::<usize>() as f64 / (count * self.data.grid.len()) as f64,
            }),
            fields: self.compare_fields(&finite, measured.into_iter().map(|m| m.statistics).collect())?,
            neighbours: NeighbourComparison {
                samples: neighbours,
                held_out,
                ratio: (held_out.median > 0.0).then(|| neighbours.median / held_out.median),
            },
            per_sample,
            others,
        })
    }

    /// Rows to compare with: the held-out data, their coefficients with a solution of zero, and with the solution of
    /// the next sample.
    ///
    /// The data's distances to themselves are zero: compare with the floors instead.
    pub fn references(&self) -> Result<Vec<ReferenceRow>> {
        let valid = &self.valid;
        let (length, nodes) = (self.data.sample_len(), self.data.grid.len());
        let mut rows = vec![("data".to_string(), valid.to_vec())];
        if let Some(reference) = &self.reference {
            let start = nodes * reference.solution();
            let mut zero = valid.to_vec();
            let mut shuffled = valid.to_vec();
            for (k, (zero, shuffled)) in
                zero.chunks_exact_mut(length).zip(shuffled.chunks_exact_mut(length)).enumerate()
            {
                let next = (k + 1) % self.data.valid_count() * length + start;
                zero[start..start + nodes].fill(0.0);
                shuffled[start..start + nodes].copy_from_slice(&valid[next..next + nodes]);
            }
            rows.push((format!("{} ≡ 0", self.data.fields[reference.solution()]), zero));
            rows.push(("shuffled pairs".to_string(), shuffled));
        }
        rows.into_iter().map(|(name, samples)| Ok(ReferenceRow { name, metrics: self.metrics(&samples)? })).collect()
    }

    /// The true residual of one sample `[C, H, W]` at every node, one `[H, W]` per formula; not a number where a formula
    /// does not count. None where no equation is known.
    pub fn residual_maps<T: Copy + Into<f64>>(&self, sample: &[T]) -> Vec<Vec<f64>> {
        let of = |equation: &Equation| equation.compiled.residual_maps(&equation.constrained(&self.split(sample)));
        self.equation.as_ref().map_or_else(Vec::new, of)
    }

    /// The nearest training sample of each of `samples` `[N, C, H, W]`, in physical units.
    pub fn nearest(&self, samples: &[f32]) -> Result<Vec<Nearest>> {
        nearest(samples, self.data.pieces(Split::Train), self.data.grid.len(), &self.units)
    }

    /// The fields of a sample `[C, H, W]`.
    fn split<T: Copy + Into<f64>>(&self, sample: &[T]) -> Vec<Vec<f64>> {
        sample.chunks_exact(self.data.grid.len()).map(|f| f.iter().map(|&v| v.into()).collect()).collect()
    }

    /// Measures one sample; `None` if it is not finite.
    fn measure<T: Copy + Into<f64>>(&self, sample: &[T]) -> Option<Measured> {
        let fields = self.split(sample);
        // Marginals and neighbours are compared in single precision.
        if !fields.iter().flatten().all(|&v| (v as f32).is_finite()) {
            return None;
        }
        let values = |equation: &Equation| equation.compiled.residual_values(&equation.constrained(&fields));
        let residuals = self.equation.as_ref().map_or_else(Vec::new, values);
        let sums = residuals.iter().map(|r| (r.iter().map(|v| v.abs()).sum::<f64>(), r.len())).collect();
        let reference = self.reference.as_deref();
        let comparison = reference.map(|reference| reference.compare(&fields));
        let judged = Sample { fields: &fields, reference };
        let measured = Measured {
            residuals: sums,
            others: METRICS.iter().map(|metric| metric.measure(&judged)).collect(),
            solver_error: comparison.and_then(|c| c.error),
            lifted: comparison.map_or(0, |c| c.lifted),
            statistics: fields.iter().map(|field| self.field_statistics(field)).collect(),
        };
        measured.residual().is_none_or(f64::is_finite).then_some(measured)
    }

    fn field_statistics(&self, field: &[f64]) -> FieldStatistics {
        let n = field.len() as f64;
        let mean = field.iter().sum::<f64>() / n;
        let std = (field.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        FieldStatistics { mean, std, power: self.spectrum.power(field) }
    }

    /// Every field of `samples` `[N, C, H, W]`.
    fn statistics(&self, samples: &[f32]) -> Vec<Vec<FieldStatistics>> {
        let sample = |s: &[f32]| self.split(s).iter().map(|field| self.field_statistics(field)).collect();
        samples.par_chunks_exact(self.data.sample_len()).map(sample).collect()
    }

    fn set_statistics(&self, statistics: &[Vec<FieldStatistics>]) -> Vec<SetStatistics> {
        let n = statistics.len() as f64;
        let portrait = |channel: usize| {
            let field = || statistics.iter().map(|sample| &sample[channel]);
            let average = |value: &dyn Fn(&FieldStatistics) -> f64| field().map(value).sum::<f64>() / n;
            let mean = average(&|g| g.mean);
            let std = average(&|g| g.std * g.std + (g.mean - mean).powi(2)).sqrt();
            let within = Summary::of(&field().map(|g| g.std).collect::<Vec<_>>());
            let power = (0..self.spectrum.rings()).map(|k| average(&|g| g.power[k])).collect();
            SetStatistics { amplitude: Amplitude { mean, std, within }, power }
        };
        (0..self.data.fields.len()).map(portrait).collect()
    }

    /// Compares the fields of `samples` `[N, C, H, W]`, seen as `statistics`, with the held-out data.
    fn compare_fields(&self, samples: &[f32], statistics: Vec<Vec<FieldStatistics>>) -> Result<Vec<FieldComparison>> {
        // As many training samples, spread over all of them.
        let (train, n) = (self.data.train_count(), statistics.len().min(self.data.train_count()));
        let chosen: Vec<usize> = (0..n).map(|k| k * train / n).collect();
        let subset = self.data.batch(Split::Train, &chosen, &Units::identity(self.data.fields.len()))?;
        let set_statistics = self.set_statistics(&statistics);
        let floors = self.set_statistics(&self.statistics(&subset));
        let compare = |channel: usize| {
            let held_out = self.pooled(&self.valid, channel);
            let w1 = |values: &[f32]| {
                w1_1d(&self.pooled(values, channel), &held_out).map_err(|e| Error::input("samples", e))
            };
            let (portrait, data) = (&set_statistics[channel], &self.held_out[channel]);
            Ok(FieldComparison {
                name: self.data.fields[channel].clone(),
                w1: w1(samples)?,
                w1_floor: w1(&subset)?,
                samples: portrait.amplitude,
                data: data.amplitude,
                spectrum: portrait.power.clone(),
                data_spectrum: data.power.clone(),
                spectral_distance: log_spectral_distance(&portrait.power, &data.power),
                spectral_floor: log_spectral_distance(&floors[channel].power, &data.power),
            })
        };
        (0..self.data.fields.len()).into_par_iter().map(compare).collect()
    }

    /// All values of one field of `samples` `[N, C, H, W]`.
    fn pooled(&self, samples: &[f32], channel: usize) -> Vec<f64> {
        let fields = samples.chunks_exact(self.data.grid.len()).skip(channel).step_by(self.data.fields.len());
        fields.flatten().map(|&v| f64::from(v)).collect()
    }
}
