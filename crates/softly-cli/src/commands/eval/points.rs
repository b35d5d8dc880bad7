//! `softly eval` of a model of points.

use serde_json::json;
use softly::error::{Error, Result};
use softly::statistics::Summary;
use softly::{DistanceError, GeneratorConfig, PointEval, PointMetrics, ResidualSummary, Trained, cloud};

use burn::tensor::Device;

use crate::arguments::Sampling;
use crate::interrupt::catch_interrupt;
use crate::output::{print, print_json, text_table};
use crate::sampling::{check_amount, draw, guidance, settings_of};

/// A row of the table: its name, its metrics, and the size of its residual.
type Row = (String, PointMetrics<Summary>, Option<ResidualSummary>);

/// How samples of a model of points are measured.
pub fn point_eval_of(trained: &Trained, sampling: &Sampling, sets: usize) -> Result<PointEval> {
    let points = sampling.count() as usize;
    check_amount("--sets × --count", sets as u64 * points as u64, trained)?;
    let Some(GeneratorConfig::Points(points_of)) = &trained.blueprint.config.data.generator else {
        return Err(Error::input(sampling.model.display(), "only models of points can be measured")
            .hint("draw samples with `softly sample` and use `softly residual`"));
    };
    Ok(PointEval { curve: points_of.curve, noise: points_of.noise, sets, points })
}

/// Measures samples of `trained`, without guidance or with DPS at each of `scales`, next to true points.
pub fn run(
    trained: &Trained,
    sampling: &Sampling,
    sets: usize,
    scales: &[f64],
    device: &Device,
    json: bool,
) -> Result<()> {
    if !scales.is_empty() && trained.model.constraint.is_none() {
        return Err(Error::input("--scales", "guidance needs a [constraint] table, and this run has none"));
    }
    let eval = point_eval_of(trained, sampling, sets)?;
    catch_interrupt();
    let refuse = |e: DistanceError| Error::input(sampling.model.display(), e);
    let residual = trained.blueprint.truth()?;
    let residual_of = |points: &[[f64; 2]]| {
        residual.as_ref().map(|constraint| {
            let values: Vec<f64> =
                points.iter().flat_map(|p| constraint.residual_values(&[vec![p[0]], vec![p[1]]]).concat()).collect();
            ResidualSummary::of(&values)
        })
    };
    let mut rows: Vec<Row> = Vec::new();
    let mut measure = |name: String, trained: &Trained| -> Result<()> {
        let all = cloud(&draw(trained, sampling, &eval.indices(), device)?);
        rows.push((name, eval.measure(&all).map_err(refuse)?, residual_of(&all)));
        Ok(())
    };
    if scales.is_empty() {
        measure("model".into(), trained)?;
    }
    for &scale in scales {
        let mut settings = settings_of(sampling, sampling.compliance);
        settings.push(guidance(scale));
        measure(format!("guidance {scale}"), &Trained::load_with(&sampling.model, &settings, device)?)?;
    }
    let (real, metrics) = eval.floor().map_err(refuse)?;
    rows.push(("data".to_string(), metrics, residual_of(&real)));
    if json {
        let rows = rows
            .iter()
            .map(|(name, metrics, residual)| json!({ "name": name, "metrics": metrics, "residual": residual }));
        print_json(&json!({ "sets": sets, "points": eval.points, "rows": rows.collect::<Vec<_>>() }));
        return Ok(());
    }
    print(&format!(
        "{sets} estimates of {} samples each; mean ± two standard deviations over estimates. \"data\" is what true points score.",
        eval.points
    ));
    print(&text_table(&table(&rows), 1));
    Ok(())
}

fn table(rows: &[Row]) -> Vec<Vec<String>> {
    let head = ["", "distance to curve", "W1", "radial W1", "angular W1", "mean |residual|"].map(String::from).to_vec();
    let cell = |s: Summary| format!("{:.5} ± {:.5}", s.mean, s.two_sd);
    let line = |(name, m, residual): &Row| {
        let residual = residual.map_or_else(|| "-".to_string(), |r| format!("{:.3e}", r.mean_abs));
        vec![name.clone(), cell(m.curve_mean), cell(m.w1), cell(m.radial_w1), cell(m.angular_w1), residual]
    };
    std::iter::once(head).chain(rows.iter().map(line)).collect()
}
