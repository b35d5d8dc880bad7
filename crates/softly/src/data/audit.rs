//! The audit of a dataset: does it obey an equation, and with which parameters?

use serde::Serialize;
use softly_pde::audit::{self, AuditError, Claim, Fit, Identifiability, Outlier, interval, number, outliers, percent};

use crate::constraint::config::ConstraintConfig;
use crate::data::folder::DatasetFolder;
use crate::data::inspect::SplitInspection;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::random::{Purpose, Stream};

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
    let most = (POINTS / folder.description.grid.len().max(1)).clamp(FEWEST, SAMPLES);
    folder.count(Split::Train).div_ceil(most)
}

/// Audits the samples that `train` has kept under `config`, and fits the parameters `names` to them.
pub fn audit(
    config: &ConstraintConfig,
    folder: &DatasetFolder,
    train: &SplitInspection,
    names: &[String],
    job: &Job<'_>,
) -> Result<DataAudit> {
    let claim = config.claim(&folder.description.grid)?;
    let stride = audit_stride(folder);
    let watch = || if job.stopped() { Err(AuditError::Stopped) } else { Ok(()) };
    let failed = |error| refused(error, stride);
    job.reporter.status("looking for slips");
    let mut found = audit::audit(&claim, &train.kept, &watch).map_err(failed)?;
    let fit = if names.is_empty() { None } else { Some(fitted(&claim, train, names, &watch).map_err(failed)?) };
    if let Some(fit) = &fit {
        found.verdict = format!("{} {}", found.verdict, fit_words(fit));
    }
    let outliers = train.by_sample.iter().map(|sizes| outliers(sizes)).collect();
    Ok(DataAudit { audit: found, of: folder.count(Split::Train), outliers, fit })
}

fn fitted(
    claim: &Claim,
    train: &SplitInspection,
    names: &[String],
    watch: &audit::Watch<'_>,
) -> std::result::Result<Fit, AuditError> {
    audit::fit(claim, &train.kept, names, Stream::new(0, Purpose::Metric, 0).rng(), watch)
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
