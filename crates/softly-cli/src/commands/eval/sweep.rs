//! `softly eval --sweep compliance`: the front between the residual and the distribution.

use std::path::Path;

use burn::tensor::Device;
use serde::Serialize;
use serde_json::json;
use softly::error::{Error, Result};
use softly::files::{make_folder, write_text};
use softly::statistics::Summary;
use softly::{Bits, Compliance, DistanceError, FieldEval, FieldEvaluator, Trained, cloud, device};
use softly_figures::axis::Scale;
use softly_figures::charts::{Axes, LineChart, Point, Series};
use softly_figures::svg::{INK, Svg};

use super::fields::data_of;
use super::points::point_eval_of;
use super::refuse_idle;
use crate::arguments::Sampling;
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json, text_table};
use crate::progress::{Bar, say};
use crate::sampling::{draw, settings_of};

/// One value of the dial.
#[derive(Serialize)]
struct Row {
    compliance: Compliance,
    /// Mean |R| with the true parameters; of points, their distance to the curve. Absent where no equation is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    residual: Option<Summary>,
    /// None where there is no density, and for points.
    likelihood: Option<Bits>,
    /// Each field, or the points.
    marginals: Vec<Marginal>,
}

/// A distribution against the data's.
#[derive(Serialize)]
struct Marginal {
    name: String,
    w1: f64,
    /// What true samples score.
    w1_floor: f64,
    /// Standard deviation over the data's.
    #[serde(skip_serializing_if = "Option::is_none")]
    std_ratio: Option<f64>,
}

/// Measures the model at every value of the dial; writes `sweep.json` and `sweep.svg` into `out`.
pub fn run(sampling: &Sampling, sets: usize, data: Option<&Path>, out: Option<&Path>, json: bool) -> Result<()> {
    let device = device::by_name(&sampling.compute.device)?;
    let load = |compliance: Compliance| -> Result<Trained> {
        Trained::load_with(&sampling.model, &settings_of(sampling, Some(compliance)), &device)
    };
    let base = load(Compliance::NONE)?;
    let scd = base.blueprint.config.denoiser.scd.as_ref();
    let full = scd.is_some_and(|scd| scd.directions.iter().any(|kind| kind.projects())).then_some(Compliance::FULL);
    let points = base.blueprint.data.grid.is_point();
    refuse_idle(points, data, &[], &[])?;
    let models = Compliance::SWEEP.into_iter().chain(full).map(|c| Ok((c, load(c)?)));
    catch_interrupt();
    let rows = if points {
        point_rows(models, sampling, sets, &device)?
    } else {
        field_rows(models, &base, sampling, data, &device)?
    };
    let measured = if points { "distance to the curve" } else { "mean |R|" };
    let report = json!({ "sweep": "compliance", "measured": measured, "rows": rows });
    if let Some(out) = out {
        make_folder(out)?;
        let text = serde_json::to_string_pretty(&report).expect("values of the program are valid JSON") + "\n";
        write_text(&out.join("sweep.json"), &text)?;
        write_text(&out.join("sweep.svg"), &front(&rows, measured).to_string())?;
    }
    if json {
        print_json(&report);
    } else {
        print_table(&rows, measured);
    }
    Ok(())
}

fn field_rows(
    models: impl Iterator<Item = Result<(Compliance, Trained)>>,
    base: &Trained,
    sampling: &Sampling,
    data: Option<&Path>,
    device: &Device,
) -> Result<Vec<Row>> {
    let other = data.is_some();
    let data = data_of(base, data)?;
    let evaluator = FieldEvaluator::for_model(base, &data, other)?;
    let eval = FieldEval {
        samples: sampling.count() as usize,
        batch: (sampling.batch as usize).min(64),
        likelihood: 64,
        likelihood_steps: 64,
        loss: 0,
        keep: 0,
    }
    .unless_reduced();
    let row = |model: Result<(Compliance, Trained)>| {
        let (compliance, trained) = model?;
        say(&format!("compliance {compliance}"));
        let bar = Bar::new(eval.units(trained.blueprint.config.sampler.steps), "calls");
        let (result, _) = eval.run(&trained, &evaluator, &data, &job(device, &bar))?;
        bar.finish();
        let marginals = result.metrics.fields.into_iter().map(|field| Marginal {
            name: field.name,
            w1: field.w1,
            w1_floor: field.w1_floor,
            std_ratio: Some(field.samples.std / field.data.std),
        });
        Ok(Row {
            compliance,
            residual: result.metrics.residual.map(|residual| residual.summary),
            likelihood: result.likelihood,
            marginals: marginals.collect(),
        })
    };
    models.map(row).collect()
}

fn point_rows(
    models: impl Iterator<Item = Result<(Compliance, Trained)>>,
    sampling: &Sampling,
    sets: usize,
    device: &Device,
) -> Result<Vec<Row>> {
    let refuse = |e: DistanceError| Error::input(sampling.model.display(), e);
    let row = |model: Result<(Compliance, Trained)>| {
        let (compliance, trained) = model?;
        say(&format!("compliance {compliance}"));
        let eval = point_eval_of(&trained, sampling, sets)?;
        let samples = cloud(&draw(&trained, sampling, &eval.indices(), device)?);
        let metrics = eval.measure(&samples).map_err(refuse)?;
        let floor = eval.floor().map_err(refuse)?.1;
        let points = Marginal { name: "points".into(), w1: metrics.w1.mean, w1_floor: floor.w1.mean, std_ratio: None };
        Ok(Row { compliance, residual: Some(metrics.curve_mean), likelihood: None, marginals: vec![points] })
    };
    models.map(row).collect()
}

fn print_table(rows: &[Row], measured: &str) {
    print(
        "every value with the same noise; ± two standard deviations over samples (or sets), of NLL two standard errors",
    );
    let density = rows.iter().any(|row| row.likelihood.is_some());
    let mut head = ["compliance", measured].map(String::from).to_vec();
    head.extend(density.then(|| "NLL (bits/dim)".to_string()));
    for marginal in rows.iter().take(1).flat_map(|row| &row.marginals) {
        head.push(format!("W1 {} (floor)", marginal.name));
        head.extend(marginal.std_ratio.map(|_| format!("std {} / data", marginal.name)));
    }
    let mut lines = vec![head];
    for row in rows {
        let bits = row.likelihood.map_or("-".into(), |bits| {
            format!("{:.3} ± {:.3}", bits.normalised, 2.0 * bits.standard_error.unwrap_or(f64::NAN))
        });
        let residual = row.residual.map_or("-".into(), |r| format!("{:.4} ± {:.4}", r.mean, r.two_sd));
        let mut cells = vec![row.compliance.to_string(), residual];
        cells.extend(density.then_some(bits));
        for marginal in &row.marginals {
            cells.push(format!("{:.4} ({:.4})", marginal.w1, marginal.w1_floor));
            cells.extend(marginal.std_ratio.map(|ratio| format!("{ratio:.3}")));
        }
        lines.push(cells);
    }
    print(&text_table(&lines, 0));
}

/// The residual against the likelihood and against the distance of each marginal: down and left is better.
fn front(rows: &[Row], measured: &str) -> Svg {
    let panel = |title: String, y_label: &str, y: &dyn Fn(&Row) -> Option<f64>, levels: Vec<(String, f64)>| {
        let points: Vec<(String, Point)> = rows
            .iter()
            .filter_map(|row| Some((row.compliance.to_string(), Point::exact(row.residual?.mean, y(row)?))))
            .collect();
        let path = Series { name: "compliance".into(), colour: INK, points: points.iter().map(|p| p.1).collect() };
        let single = |(k, (name, point)): (usize, &(String, Point))| Series {
            name: name.clone(),
            colour: k,
            points: vec![*point],
        };
        let axes = Axes {
            title,
            x_label: measured.into(),
            y_label: y_label.into(),
            x_scale: Scale::Log,
            levels,
            ..Axes::default()
        };
        let series = std::iter::once(path).chain(points.iter().enumerate().map(single)).collect();
        LineChart { axes, series, ..LineChart::default() }.svg()
    };
    let mut panels = Vec::new();
    if rows.iter().any(|row| row.likelihood.is_some()) {
        let bits = |row: &Row| row.likelihood.map(|bits| bits.normalised);
        panels.push(panel("Residual and likelihood".into(), "NLL (bits/dim)", &bits, Vec::new()));
    }
    for (k, marginal) in rows.first().iter().flat_map(|row| row.marginals.iter().enumerate()) {
        let w1 = |row: &Row| row.marginals.get(k).map(|m| m.w1);
        let floor = vec![("true samples".to_string(), marginal.w1_floor)];
        let title = format!("Residual and distribution of {}", marginal.name);
        panels.push(panel(title, &format!("W1 of {}", marginal.name), &w1, floor));
    }
    Svg::tile("The front between the constraint and the data", 2, &panels)
}
