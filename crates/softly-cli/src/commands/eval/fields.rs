//! `softly eval` of a model of fields.

use std::path::Path;

use burn::tensor::Device;
use serde_json::json;
use softly::error::{Error, Result};
use softly::{
    Config, Dataset, DatasetFolder, FieldEval, FieldEvaluator, FieldMetrics, FieldResult, FormulaResidual, METRICS,
    MadeOf, ReferenceRow, RunFolder, SampleMetric, StoredFields, Trained, write_fields,
};

use crate::arguments::{MetricName, Sampling};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::{Bar, say};
use crate::ranks;
use crate::sampling::settings_of;

/// The data to measure `trained` on: the data of its run, or of the folder `data`.
pub fn data_of(trained: &Trained, data: Option<&Path>) -> Result<Dataset> {
    let data = match data {
        Some(folder) => DatasetFolder::open(folder)?.load()?,
        None => trained.own_data()?,
    };
    if data.fields != trained.blueprint.data.fields || data.grid != trained.blueprint.data.grid {
        let problem = format!("the data are {:?} on {}×{} nodes", data.fields, data.grid.rows(), data.grid.cols());
        return Err(
            Error::input("--data", problem).hint("name data with the model's fields and grid: --set data.path=DIR")
        );
    }
    Ok(data)
}

/// Samples that are kept beside the evaluation of a run.
const KEPT: usize = 64;

/// The run folder that is measured, unless the command line changes how it samples: such numbers are of the moment.
pub fn run_as_it_is(sampling: &Sampling) -> Option<RunFolder> {
    let changed =
        !settings_of(sampling, sampling.compliance).is_empty() || sampling.seed != 0 || sampling.grid.is_some();
    (!changed && sampling.model.is_dir()).then(|| RunFolder::new(&sampling.model))
}

/// Says so if numbers could not be kept: a run may be in a place where nothing can be written.
pub fn keep(outcome: Result<()>) {
    if let Err(error) = outcome {
        say(&format!("not kept for `softly report`: {error}"));
    }
}

/// Measures the samples of `trained`, and with `nll` its likelihood and loss, against the data of its run or of `data`.
pub fn run(
    trained: &Trained,
    sampling: &Sampling,
    device: &Device,
    data: Option<&Path>,
    metrics: &[MetricName],
    json: bool,
) -> Result<()> {
    let config = &trained.blueprint.config;
    let other = data.is_some();
    let data = data_of(trained, data)?;
    ranks::here().same("fingerprint of the data", &data.hash())?;
    let evaluator = FieldEvaluator::for_model(trained, &data, other)?;
    let nll = metrics.contains(&MetricName::Nll);
    let eval = FieldEval {
        samples: sampling.count() as usize,
        batch: (sampling.batch as usize).min(64),
        likelihood: if nll { 64 } else { 0 },
        likelihood_steps: 64,
        loss: if nll { 256 } else { 0 },
        keep: KEPT,
    }
    .unless_reduced();
    catch_interrupt();
    let bar = Bar::new(eval.units(config.sampler.steps), "calls");
    let (result, samples) = eval.run(trained, &evaluator, &data, &job(device, &bar))?;
    bar.finish();
    let references = evaluator.references()?;
    if json {
        print_json(&json!({ "model": result, "references": references }));
    } else {
        print_result(&result, &references, &eval, config);
    }
    let run = run_as_it_is(sampling).filter(|_| !other && ranks::here().leads());
    if let Some(run) = run {
        let made_of = MadeOf::new(&run, &data, evaluator.equation(), &[])?;
        let found = StoredFields { eval, result, references };
        keep(write_fields(&run, "fields", &made_of, found, (&samples, data.shape())));
    }
    Ok(())
}

/// The result as text.
fn print_result(result: &FieldResult, references: &[ReferenceRow], eval: &FieldEval, config: &Config) {
    print(&format!(
        "{} samples, {} steps; mean ± two standard deviations over samples, true parameters",
        eval.samples, config.sampler.steps
    ));
    if result.metrics.residual.is_none() {
        print(
            "no residual: neither the data nor the run bring an equation; give one with --set truth={fields=[…], residual='…'}",
        );
    }
    print(&row("model", &result.metrics));
    for reference in references {
        print(&row(&reference.name, &reference.metrics));
    }
    print_equations(&result.metrics, references);
    for field in &result.metrics.fields {
        print(&format!(
            "field {:4} std {:.4} (data {:.4}), marginal W1 {:.4} (true samples {:.4}), spectral distance {:.2} dB ({:.2})",
            field.name,
            field.samples.std,
            field.data.std,
            field.w1,
            field.w1_floor,
            field.spectral_distance,
            field.spectral_floor
        ));
    }
    if let Some(bits) = result.likelihood {
        let error = bits.standard_error.map_or_else(String::new, |e| format!(" ± {:.3}", 2.0 * e));
        print(&format!(
            "NLL {:.3}{error} bits/dim in normalised units, {:.3} in physical units ({} held-out samples, σ_min {})",
            bits.normalised, bits.physical, bits.count, config.sampler.sigma_min
        ));
    }
    if let Some(why) = &result.no_likelihood {
        print(&format!("no NLL: {why}"));
    }
    if let Some(bits) = result.bound {
        print(&format!(
            "variational bound {:.3} bits/dim in normalised units ({} held-out samples)",
            bits.normalised, bits.count
        ));
    }
}

/// Mean |R| of every equation over its nodes, next to the held-out data's, if there are several.
fn print_equations(metrics: &FieldMetrics, references: &[ReferenceRow]) {
    if metrics.formulas.len() < 2 {
        return;
    }
    let data = references.iter().find(|row| row.name == "data").map_or(&[][..], |row| &row.metrics.formulas);
    for (k, equation) in metrics.formulas.iter().enumerate() {
        let size = |e: &FormulaResidual| format!("{:.3e} ± {:.1e}", e.residual.summary.mean, e.residual.summary.two_sd);
        let data = data.get(k).map_or_else(String::new, |data| format!(" (data {})", size(data)));
        print(&format!("equation {:24} |R| {}{data}", equation.title(), size(equation)));
    }
}

fn row(name: &str, m: &FieldMetrics) -> String {
    let residual =
        m.residual.map_or_else(String::new, |r| format!(" |R| {:.4} ± {:.4}", r.summary.mean, r.summary.two_sd));
    let solver = m.solver.as_ref().and_then(|s| s.error.as_ref());
    let solver = solver.map_or_else(String::new, |e| format!("  solver error {:.4} (median)", e.median));
    let other = |metric: &&dyn SampleMetric| {
        let found = m.others.get(metric.name());
        found.map_or_else(String::new, |found| format!("  {} {:.4}", metric.title(), found.summary.mean))
    };
    let others: String = METRICS.iter().map(other).collect();
    let ratio = m.neighbours.ratio.map_or_else(String::new, |r| format!("  neighbours {r:.2}"));
    format!("{name:16}{residual}{others}{solver}{ratio}")
}
