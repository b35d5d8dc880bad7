//! `softly eval --observe`: how good samples are, given measurements of held-out fields.

use std::path::Path;

use serde_json::json;
use softly::error::{Error, Result};
use softly::files::{make_folder, write_text};
use softly::{
    Conditioning, Dataset, Draw, Kriging, Noise, Observations, Posterior, PosteriorJudge, PosteriorMetrics,
    RandomSensors, Reading, SoftConstraint, Split, Trained, device, disturbed, is_reduced, read_observations,
};
use softly_studies::{PosteriorRow, PosteriorView, posterior_page, posterior_table};

use super::fields::data_of;
use crate::arguments::{Observing, Sampling};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json, text_table};
use crate::progress::Bar;
use crate::sampling::load_observing;

/// Samples of each case unless the command line says otherwise: with 39, intervals of 50, 90 and 95 % end at samples.
const COUNT: u32 = 39;

/// Measures held-out samples, draws posteriors of them, and judges those next to kriging's.
pub fn run(
    sampling: &Sampling,
    observing: &Observing,
    cases: usize,
    data: Option<&Path>,
    out: Option<&Path>,
    json: bool,
) -> Result<()> {
    let device = device::by_name(&sampling.compute.device)?;
    let mut trained = load_observing(sampling, observing, &device)?;
    let data = data_of(&trained, data)?;
    let reduced = is_reduced();
    let cases = cases.min(data.valid_count()).min(if reduced { 2 } else { usize::MAX });
    let count = sampling.count.unwrap_or(COUNT).min(if reduced { 3 } else { u32::MAX });
    let truth: Vec<f64> = data.samples(Split::Valid, 0..cases)?.iter().map(|&v| f64::from(v)).collect();
    let observations = measure(&trained, observing, &truth, sampling.seed)?;
    let equation = equation_of(&trained, &data)?;
    let judge = PosteriorJudge {
        fields: &trained.blueprint.data.fields.clone(),
        units: &trained.blueprint.data.units.clone(),
        sigma_data: trained.model.sigma_data,
        truth: &truth,
        observations: &observations,
        equation: equation.as_ref(),
        shape: trained.model.shape,
    };
    catch_interrupt();
    let steps = trained.blueprint.config.sampler.steps;
    let bar = Bar::new((cases * count as usize * steps) as u64, "sample-steps");
    let job = job(&device, &bar);
    let indices: Vec<u64> = (0..u64::from(count)).collect();
    let draw = Draw { seed: sampling.seed, indices: &indices, batch: sampling.batch as usize, observed: None };
    let mut rows = Vec::new();
    let mut shown: Option<Posterior> = None;
    let method = trained.blueprint.config.conditioning.clone();
    let control = (method.name() != "kriging").then_some(Conditioning::Kriging(Kriging {}));
    for method in std::iter::once(method).chain(control) {
        let knowledge = trained.knowledge(method.method().needs(), &data, &job)?;
        job.reporter.begin((cases * count as usize * steps) as u64, 0);
        trained.blueprint.config.conditioning = method.clone();
        let posterior = trained.posterior(&observations, &knowledge, &draw, &job)?;
        let metrics = judge.judge(&posterior.samples);
        let metrics = metrics.ok_or_else(|| Error::input("--count", "expected at least one sample"))?;
        rows.push(PosteriorRow {
            method: method.name().into(),
            metrics,
            calls: posterior.calls,
            gradients: posterior.gradients,
            seconds: posterior.seconds,
        });
        shown.get_or_insert(posterior);
    }
    bar.finish();
    if let (Some(out), Some(posterior)) = (out, shown) {
        make_folder(out)?;
        let first = &truth[..data.sample_len()];
        let view = PosteriorView {
            trained: &trained,
            observations: &observations[0],
            posterior: &posterior.samples,
            count: count as usize,
            truth: Some(first),
        };
        posterior_page(&view, &rows, &out.join("posterior.html"))?;
        let text = serde_json::to_string_pretty(&json!({ "rows": rows })).expect("numbers are valid JSON") + "\n";
        write_text(&out.join("posterior.json"), &text)?;
    }
    if json {
        print_json(&json!({ "cases": cases, "samples": count, "steps": steps, "rows": rows }));
    } else {
        print(&format!("{cases} held-out fields, {count} samples of each; errors are relative, medians over fields"));
        print(&text_table(&posterior_table(&rows), 2));
        print(&verdict(&rows));
    }
    Ok(())
}

/// The measurements of every truth `[cases, C, H, W]` that the command line asks for.
fn measure(trained: &Trained, observing: &Observing, truth: &[f64], seed: u64) -> Result<Vec<Observations>> {
    let measured = trained.measured();
    let noise = Noise::parse(&observing.noise)?;
    let (mut random, mut files) = (Vec::new(), Vec::new());
    for source in &observing.observe {
        match source.split_once('=') {
            Some((field, count)) if count == "all" || count.parse::<usize>().is_ok() => {
                let count = count.parse().ok();
                if count == Some(0) {
                    return Err(Error::input("--observe", format!("expected at least one sensor, found `{source}`")));
                }
                if !measured.fields.iter().any(|name| name == field) {
                    let problem = format!("there is no field `{field}`; the fields are {}", measured.fields.join(", "));
                    return Err(Error::input("--observe", problem));
                }
                if count.is_some_and(|count| count > measured.grid.len()) {
                    let problem = format!("`{source}` is more than the grid's {} nodes", measured.grid.len());
                    return Err(Error::input("--observe", problem));
                }
                random.push(RandomSensors { field: field.into(), count });
            }
            _ => files.push(source.clone()),
        }
    }
    let fixed: Vec<Reading> =
        if files.is_empty() { Vec::new() } else { read_observations(&files, measured.grid)?.swap_remove(0) };
    let len: usize = trained.model.shape.iter().product();
    let of_case = |(case, truth): (usize, &[f64])| {
        let drawn = random.iter().flat_map(|sensors| sensors.readings(measured, truth, seed, case as u64));
        let readings: Vec<Reading> = fixed.iter().cloned().chain(drawn).collect();
        disturbed(&readings, &noise, measured, truth, seed, case as u64)
    };
    truth.chunks_exact(len).enumerate().map(of_case).collect()
}

/// The equation that residuals are taken of: [truth], the data's own, or [constraint].
fn equation_of(trained: &Trained, data: &Dataset) -> Result<Option<SoftConstraint>> {
    match &data.equation {
        Some(equation) => {
            let spec = &trained.blueprint.data;
            SoftConstraint::new(&data.complete(equation), &spec.fields, &spec.grid, &spec.units).map(Some)
        }
        None => trained.blueprint.truth(),
    }
}

/// Whether the method beats kriging, in words.
fn verdict(rows: &[PosteriorRow]) -> String {
    let [own, kriging] = rows else { return String::new() };
    let ratio = |(a, b): (&softly::FieldPosterior, &softly::FieldPosterior)| {
        (a.name.clone(), a.mean_error.median / b.mean_error.median)
    };
    let fields = |metrics: &PosteriorMetrics| metrics.fields.clone();
    let (own_fields, control) = (fields(&own.metrics), fields(&kriging.metrics));
    let ratios: Vec<(String, f64)> = own_fields.iter().zip(&control).map(ratio).collect();
    let words: Vec<String> = ratios.iter().map(|(name, ratio)| format!("{name} {ratio:.2}")).collect();
    let worth = if ratios.iter().all(|(_, ratio)| *ratio < 1.0) { "beats kriging" } else { "does not beat kriging" };
    format!("{} {worth}: error of the mean over kriging's is {}", own.method, words.join(", "))
}
