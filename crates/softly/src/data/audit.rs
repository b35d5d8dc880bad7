//! The audit of a dataset: does it obey an equation, and with which parameters?

use rayon::prelude::*;
use serde::Serialize;
use softly_pde::algebra::Value;
use softly_pde::audit::{self, AuditError, Claim, Fit, Identifiability, Outlier, interval, number, outliers, percent};

use crate::constraint::SoftConstraint;
use crate::constraint::config::ConstraintConfig;
use crate::constraint::norm::ResidualSummary;
use crate::data::dataset::Dataset;
use crate::data::folder::DatasetFolder;
use crate::data::inspect::SplitInspection;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::random::{Purpose, Stream};
use crate::units::Units;

/// Most samples of an audit.
const SAMPLES: usize = 2048;
/// Most points of all samples of an audit.
const POINTS: usize = 1 << 22;
/// Samples of an audit whatever their size.
const FEWEST: usize = 16;

/// What an audit of a dataset found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataAudit {
    /// Equations, slips and verdict.
    #[serde(flatten)]
    pub audit: audit::Audit,
    /// Training samples in the dataset; the audit looks at some of them.
    pub of: usize,
    /// Training samples whose residual stands out, by equation.
    pub outliers: Vec<Vec<Outlier>>,
    /// The parameters that were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
}

/// One of how many training samples of `folder` an audit looks at.
pub fn audit_stride(folder: &DatasetFolder) -> usize {
    stride(folder.count(Split::Train), folder.description.grid.len())
}

fn stride(samples: usize, nodes: usize) -> usize {
    let most = (POINTS / nodes.max(1)).clamp(FEWEST, SAMPLES);
    samples.div_ceil(most).max(1)
}

/// Audits the samples that `train` has kept under `config`, and fits the parameters `names` to them.
pub fn audit(
    config: &ConstraintConfig,
    folder: &DatasetFolder,
    train: &SplitInspection,
    names: &[String],
    job: &Job<'_>,
) -> Result<DataAudit> {
    let seen = Seen { kept: &train.kept, by_sample: &train.by_sample, of: folder.count(Split::Train) };
    seen.audit(&config.claim(&folder.description.grid)?, audit_stride(folder), names, job)
}

/// Audits the training samples of `dataset` under `config`, and fits the parameters `names` to them.
pub fn audit_dataset(
    config: &ConstraintConfig,
    dataset: &Dataset,
    names: &[String],
    job: &Job<'_>,
) -> Result<DataAudit> {
    let config = dataset.complete(config);
    let (claim, all) = (config.claim(&dataset.grid)?, samples(&config, dataset)?);
    let units = Units::identity(dataset.fields.len());
    let constraint = SoftConstraint::new(&config, &dataset.fields, &dataset.grid, &units)?;
    let sizes = |sample: &Vec<Vec<f64>>| -> Vec<f64> {
        constraint.residual_values(sample).iter().map(|values| ResidualSummary::of(values).rms).collect()
    };
    let sizes: Vec<Vec<f64>> = all.par_iter().map(sizes).collect();
    if let Some(sample) = sizes.iter().position(|sizes| sizes.iter().any(|size| !size.is_finite())) {
        let problem = format!("expected finite residuals, found others in train sample {sample}");
        return Err(Error::input("constraint.residual", problem)
            .hint("the formula divides by zero or takes a root or logarithm of a negative number there"));
    }
    let by_sample: Vec<Vec<f64>> =
        (0..constraint.equations()).map(|e| sizes.iter().map(|sizes| sizes[e]).collect()).collect();
    let stride = stride(all.len(), dataset.grid.len());
    let seen = Seen { kept: &kept(&all, stride), by_sample: &by_sample, of: all.len() };
    seen.audit(&claim, stride, names, job)
}

/// Fits the parameters `names` of `config` to the training samples of `dataset`.
pub fn fit_dataset(config: &ConstraintConfig, dataset: &Dataset, names: &[String], job: &Job<'_>) -> Result<Fit> {
    let config = dataset.complete(config);
    let (claim, all) = (config.claim(&dataset.grid)?, samples(&config, dataset)?);
    let stride = stride(all.len(), dataset.grid.len());
    let watch = || if job.stopped() { Err(AuditError::Stopped) } else { Ok(()) };
    fitted(&claim, &kept(&all, stride), names, &watch).map_err(|error| refused(error, stride))
}

/// The fields of `config` in every training sample of `dataset`, `[H, W]` each.
fn samples(config: &ConstraintConfig, dataset: &Dataset) -> Result<Vec<Vec<Vec<f64>>>> {
    dataset.check()?;
    let channel = |name: &String| {
        dataset.fields.iter().position(|field| field == name).ok_or_else(|| {
            let known = dataset.fields.join(", ");
            Error::input("constraint.fields", format!("the data have no field `{name}`; they have {known}"))
        })
    };
    let channels = config.fields.iter().map(channel).collect::<Result<Vec<_>>>()?;
    let nodes = dataset.grid.len();
    let field = |sample: &[f32], c: usize| sample[c * nodes..(c + 1) * nodes].iter().map(|&v| f64::from(v)).collect();
    let chosen = |sample| channels.iter().map(|&c| field(sample, c)).collect();
    Ok(dataset.all(Split::Train)?.par_chunks_exact(dataset.sample_len()).map(chosen).collect())
}

/// One of every `stride` samples.
fn kept(samples: &[Vec<Vec<f64>>], stride: usize) -> Vec<audit::Sample> {
    samples.iter().step_by(stride).map(|sample| sample.iter().cloned().map(Value::from).collect()).collect()
}

/// What an audit looks at.
struct Seen<'a> {
    /// The fields of the constraint of some samples.
    kept: &'a [audit::Sample],
    /// √⟨R²⟩ of every equation and sample.
    by_sample: &'a [Vec<f64>],
    /// Training samples in the dataset.
    of: usize,
}

impl Seen<'_> {
    fn audit(&self, claim: &Claim, stride: usize, names: &[String], job: &Job<'_>) -> Result<DataAudit> {
        let watch = || if job.stopped() { Err(AuditError::Stopped) } else { Ok(()) };
        let failed = |error| refused(error, stride);
        job.reporter.status("looking for slips");
        let mut found = audit::audit(claim, self.kept, &watch).map_err(failed)?;
        let fit = if names.is_empty() { None } else { Some(fitted(claim, self.kept, names, &watch).map_err(failed)?) };
        if let Some(fit) = &fit {
            found.verdict = format!("{} {}", found.verdict, fit_words(fit));
        }
        let outliers = self.by_sample.iter().map(|sizes| outliers(sizes)).collect();
        Ok(DataAudit { audit: found, of: self.of, outliers, fit })
    }
}

fn fitted(
    claim: &Claim,
    samples: &[audit::Sample],
    names: &[String],
    watch: &audit::Watch<'_>,
) -> std::result::Result<Fit, AuditError> {
    audit::fit(claim, samples, names, Stream::new(0, Purpose::Metric, 0).rng(), watch)
}

/// The fit as a sentence.
fn fit_words(fit: &Fit) -> String {
    let one = |p: &audit::FittedParameter| {
        let interval = p.interval.map_or(String::new(), |ends| format!(" (95 %: {})", interval(ends)));
        match &p.verdict {
            Identifiability::Absent => format!("{} has no effect", p.name),
            Identifiability::SameAs(other) => format!("{} cannot be told apart from {other}", p.name),
            _ => format!("{} = {}{interval}, given {}", p.name, number(p.value), number(p.given)),
        }
    };
    let parameters: Vec<String> = fit.parameters.iter().map(one).collect();
    let largest = |relative: &[f64]| percent(relative.iter().copied().fold(0.0, f64::max));
    let (before, after) = (largest(&fit.relative_before), largest(&fit.relative_after));
    format!(
        "Fitted to the data: {}; the residual goes from {before} to {after} of the largest term.",
        parameters.join(", ")
    )
}

/// The error of an audit in the words of a configuration; samples are counted as in the file.
fn refused(error: AuditError, stride: usize) -> Error {
    match error {
        AuditError::Stopped => Error::Interrupted { hint: "nothing was written; run the same command again".into() },
        AuditError::NotFinite { equation, sample } => {
            let error = AuditError::NotFinite { equation, sample: sample * stride };
            Error::input("constraint.residual", error)
                .hint("the formula divides by zero or takes a root or logarithm of a negative number there")
        }
        AuditError::UnknownParameter { name, known, near } => {
            let near = near.map_or_else(
                || "name a number of [constraint.parameters]".into(),
                |near| format!("did you mean `{near}`?"),
            );
            let error = AuditError::UnknownParameter { name, known, near: None };
            Error::input("--fit", error).hint(near)
        }
        other => Error::input("constraint", other),
    }
}
