//! `softly eval` of a model of fields.

use std::path::Path;

use burn::tensor::Device;
use serde_json::json;
use softly::error::{Error, Result};
use softly::{
    Config, Dataset, DatasetFolder, FieldEval, FieldEvaluator, FieldMetrics, FieldResult, METRICS, ReferenceRow,
    SampleMetric, Trained,
};

use crate::arguments::{MetricName, Sampling};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::Bar;

/// The data to measure `trained` on: the data of its run, or of the folder `data`.
pub fn data_of(trained: &Trained, data: Option<&Path>) -> Result<Dataset> {
    let data = match data {
        Some(folder) => DatasetFolder::open(folder)?.load()?,
        None => Dataset::from_config(&trained.blueprint.config.data)?,
    };
    if data.fields != trained.blueprint.data.fields || data.grid != trained.blueprint.data.grid {
        let problem = format!("the data are {:?} on {}×{} nodes", data.fields, data.grid.rows(), data.grid.cols());
        return Err(Error::input("--data", problem).hint("use data with the model's fields and grid"));
    }
    Ok(data)
}

/// What measures samples of `trained` against `data`: by the equation of the data, if it is known, else by the run's.
pub fn evaluator_of<'a>(trained: &Trained, data: &'a Dataset) -> Result<FieldEvaluator<'a>> {
    let config = &trained.blueprint.config;
    // [truth] is the equation of the training data unless it was given; other data may obey another one.
    let other = data.equation.as_ref().filter(|_| data.generator != config.data.generator);
    let truth = other.or(config.truth.as_ref()).or(config.constraint.as_ref()).ok_or_else(|| {
        Error::input(trained.path.display(), "the run has neither [truth] nor [constraint]")
            .hint("give the equation with --set, or draw samples and use `softly residual`")
    })?;
    FieldEvaluator::new(data, truth, &trained.blueprint.data.units)
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
    let data = data_of(trained, data)?;
    let evaluator = evaluator_of(trained, &data)?;
    let nll = metrics.contains(&MetricName::Nll);
    let eval = FieldEval {
        samples: sampling.count as usize,
        batch: (sampling.batch as usize).min(64),
        likelihood: if nll { 64 } else { 0 },
        likelihood_steps: 64,
        loss: if nll { 256 } else { 0 },
        keep: 0,
    }
    .unless_reduced();
    catch_interrupt();
    let bar = Bar::new(eval.units(config.sampler.steps), "calls");
    let (result, _) = eval.run(trained, &evaluator, &data, &job(device, &bar))?;
    bar.finish();
    let references = evaluator.references()?;
    if json {
        print_json(&json!({ "model": result, "references": references }));
        return Ok(());
    }
    print_result(&result, &references, &eval, config);
    Ok(())
}

/// The result as text.
fn print_result(result: &FieldResult, references: &[ReferenceRow], eval: &FieldEval, config: &Config) {
    print(&format!(
        "{} samples, {} steps; mean ± two standard deviations over samples, true parameters",
        eval.samples, config.sampler.steps
    ));
    print(&row("model", &result.metrics));
    for reference in references {
        print(&row(&reference.name, &reference.metrics));
    }
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

fn row(name: &str, m: &FieldMetrics) -> String {
    let residual = format!("{:.4} ± {:.4}", m.residual.summary.mean, m.residual.summary.two_sd);
    let solver = m.solver.as_ref().and_then(|s| s.error.as_ref());
    let solver = solver.map_or_else(String::new, |e| format!("  solver error {:.4} (median)", e.median));
    let other = |metric: &&dyn SampleMetric| {
        let found = m.others.get(metric.name());
        found.map_or_else(String::new, |found| format!("  {} {:.4}", metric.title(), found.summary.mean))
    };
    let others: String = METRICS.iter().map(other).collect();
    let ratio = m.neighbours.ratio.map_or_else(String::new, |r| format!("  neighbours {r:.2}"));
    format!("{name:16} |R| {residual}{others}{solver}{ratio}")
}
