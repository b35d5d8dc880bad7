//! Methods in rows, what was found of their posteriors in columns.

use serde::{Deserialize, Serialize};
use softly::PosteriorMetrics;

/// A method and what was found of its samples.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PosteriorRow {
    /// The method with its settings, in words.
    pub method: String,
    /// What was found.
    pub metrics: PosteriorMetrics,
    /// Network calls per sample.
    pub calls: f64,
    /// Of these with a gradient.
    pub gradients: f64,
    /// Seconds of drawing all samples.
    pub seconds: f64,
}

/// A table of text: a head, and a line for every field of every row. Errors are medians over cases.
pub fn posterior_table(rows: &[PosteriorRow]) -> Vec<Vec<String>> {
    let head = [
        "method",
        "field",
        "error of samples",
        "of their mean",
        "CRPS",
        "in 50 %",
        "in 90 %",
        "in 95 %",
        "spread/error",
        "misfit/noise",
        "mean |R|",
        "calls",
        "gradients",
        "seconds",
    ];
    let mut lines = vec![head.map(String::from).to_vec()];
    for row in rows {
        for (k, field) in row.metrics.fields.iter().enumerate() {
            let mut line = vec![if k == 0 { row.method.clone() } else { String::new() }, field.name.clone()];
            line.extend([field.sample_error, field.mean_error, field.crps].map(|e| format!("{:.4}", e.median)));
            line.extend(field.coverage.map(|share| format!("{:.0} %", 100.0 * share)));
            line.push(format!("{:.2}", field.spread_over_error));
            if k == 0 {
                line.push(format!("{:.2}", row.metrics.misfit.median));
                line.push(row.metrics.residual.map_or("-".into(), |r| format!("{:.4}", r.median)));
                line.push(format!("{:.0}", row.calls));
                line.push(format!("{:.0}", row.gradients));
                line.push(format!("{:.1}", row.seconds));
            }
            lines.push(line);
        }
    }
    lines
}
