//! `softly eval` of what held-out data tell of a model without drawing samples: what its constraint explains, and how well its
//! learned parameters are known.

use std::path::Path;

use burn::tensor::Device;
use serde_json::{Map, Value, json};
use softly::error::{Error, Result};
use softly::{
    Dataset, DirectionKind, Directions, Explained, ExplainedReport, HeldOut, Identification, MadeOf, ParameterConfig,
    ParameterInterval, ScdConfig, Split, Trained, device, parameter_intervals, write_stored,
};

use super::fields::{data_of, keep, run_as_it_is};
use crate::arguments::{MetricName, Sampling};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json, text_table};
use crate::progress::{Bar, say};
use crate::sampling::settings_of;

/// Whether a metric is one of these.
pub fn measures(metric: MetricName) -> bool {
    matches!(metric, MetricName::Explained | MetricName::Parameters)
}

/// Measures `metrics` of a model on the data of its run or of `data`.
pub fn run(sampling: &Sampling, data: Option<&Path>, metrics: &[MetricName], json: bool) -> Result<()> {
    if !metrics.iter().all(|&metric| measures(metric)) {
        return Err(Error::input("--metrics", "`explained` and `parameters` are measured without samples")
            .hint("ask for the other metrics in a run of their own"));
    }
    let device = device::by_name(&sampling.compute.device)?;
    let settings = settings_of(sampling, sampling.compliance);
    let (trained, scd) = Trained::load_to_judge(&sampling.model, &settings, &device)?;
    let other = data.is_some();
    let data = data_of(&trained, data)?;
    data.check()?;
    let units = &trained.blueprint.data.units;
    let indices: Vec<usize> = (0..data.valid_count().min(sampling.count() as usize)).collect();
    let values = data.batch(Split::Valid, &indices, units)?;
    let held_out = HeldOut { values: &values, shape: data.shape(), units };
    let judge = Judge { sampling, trained: &trained, held_out, device: &device };
    catch_interrupt();
    let stored = run_as_it_is(sampling).filter(|_| !other);
    let stored = stored.map(|run| Ok((MadeOf::new(&run, &data, None, &[])?, run))).transpose()?;
    let mut all = Map::new();
    if metrics.contains(&MetricName::Explained) {
        let report = judge.explained(&scd, &data)?;
        if !json {
            print_explained(&report);
        }
        if let Some((made_of, run)) = &stored {
            keep(write_stored(run, "explained", made_of, &report));
        }
        all.insert("explained".into(), json!(report));
    }
    if metrics.contains(&MetricName::Parameters) {
        let intervals = judge.parameters()?;
        if !json {
            print_intervals(&intervals);
        }
        if let Some((made_of, run)) = &stored {
            keep(write_stored(run, "parameters", made_of, &intervals));
        }
        all.insert("parameters".into(), json!(intervals));
    }
    if json {
        print_json(&Value::Object(all));
    }
    Ok(())
}

/// A model on held-out data.
struct Judge<'a> {
    sampling: &'a Sampling,
    trained: &'a Trained,
    held_out: HeldOut<'a>,
    device: &'a Device,
}

impl Judge<'_> {
    fn batch(&self) -> usize {
        (self.sampling.batch as usize).min(64)
    }

    /// What the directions of the constraint explain.
    fn explained(&self, scd: &ScdConfig, data: &Dataset) -> Result<ExplainedReport> {
        let (model, blueprint) = (&self.trained.model, &self.trained.blueprint);
        let directions = Directions::of(blueprint, scd, model, data, self.device)?;
        let explained = Explained { batch: self.batch(), ..Explained::for_model(&blueprint.config) };
        let bar = Bar::new((self.held_out.count() * explained.sigmas.len()) as u64, "calls");
        let report =
            explained.evaluate(model, &directions, self.held_out, self.sampling.seed, &job(self.device, &bar))?;
        bar.finish();
        let missing = |kind: &&DirectionKind| kind.needs().solve_for && !report.directions.contains(kind);
        let left_out: Vec<String> =
            DirectionKind::ALL.iter().filter(missing).map(|kind| format!("`{}`", kind.name())).collect();
        if !left_out.is_empty() && !data.grid.is_point() {
            let names = left_out.join(" and ");
            let fields = &data.fields;
            say(&format!(
                "{names} is left out: name the fields to solve for, some of {}, e.g. --set denoiser.scd.solve_for={}",
                fields.join(", "),
                fields[0]
            ));
        }
        Ok(report)
    }

    /// The intervals of learned numbers.
    fn parameters(&self) -> Result<Vec<ParameterInterval>> {
        let config = &self.trained.blueprint.config;
        let parameters = config.constraint.iter().flat_map(|constraint| constraint.parameters.values());
        let learned = parameters.filter(|parameter| matches!(parameter, ParameterConfig::Learn { .. })).count();
        if learned == 0 || config.denoiser.scd.is_none() {
            return Err(Error::input(self.trained.path.display(), "this run has learned no number of a constraint")
                .hint(
                "`softly adapt … --set constraint.parameters.NAME={learn=START}` learns one; fields have no interval",
            ));
        }
        let bar = Bar::new(self.held_out.count() as u64, "samples");
        let job = job(self.device, &bar);
        let intervals = parameter_intervals(&self.trained.model, self.held_out, &job)?;
        bar.finish();
        Ok(intervals)
    }
}

fn print_explained(report: &ExplainedReport) {
    print(&format!(
        "share of the denoiser's error energy that the best multiple of each direction explains, on {} held-out samples (by chance {:.0e})",
        report.count, report.chance
    ));
    let learned = report.levels.iter().any(|level| level.learned.is_some());
    let names = || report.directions.iter().map(|kind| kind.name());
    let mut head: Vec<String> = ["σ", "error"].map(String::from).to_vec();
    head.extend(names().map(String::from).chain(["together".to_string()]));
    if learned {
        head.push("as learned".into());
        let count = report.levels.first().map_or(0, |level| level.gamma.len());
        head.extend(names().take(count).map(|name| format!("γ {name}")));
    }
    let mut rows = vec![head];
    let share = |share: &f64| format!("{:.1} %", 100.0 * share);
    for level in &report.levels {
        let mut cells = vec![format!("{:.3e}", level.sigma), format!("{:.2e}", level.error)];
        cells.extend(level.alone.iter().chain([&level.span]).chain(&level.learned).map(share));
        cells.extend(level.gamma.iter().map(|gamma| format!("{gamma:.3}")));
        rows.push(cells);
    }
    print(&text_table(&rows, 0));
}

fn print_intervals(intervals: &[ParameterInterval]) {
    for parameter in intervals {
        let ParameterInterval { name, value, estimate, interval, verdict, count } = parameter;
        let range = interval.map_or("unbounded".into(), |[low, high]| format!("{low:.5} to {high:.5}"));
        let verdict = match (verdict, interval, estimate) {
            (Identification::Identified, Some([low, high]), _) => {
                format!("identified to ± {:.2} %", 50.0 * (high - low) / value.abs())
            }
            (Identification::Elsewhere, _, Some(estimate)) => {
                format!("held-out data prefer {estimate:.5}: they are not like the training data")
            }
            _ => "not identifiable: the residual hardly depends on it".into(),
        };
        print(&format!("{name} = {value:.5}, 95 % interval {range} ({count} held-out samples): {verdict}"));
    }
}
