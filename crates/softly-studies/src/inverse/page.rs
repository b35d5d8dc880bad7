//! A posterior on one page: sensors, mean, samples, standard deviation and, if the truth is known, truth and error.

use std::path::Path;

use softly::error::{Error, Result};
use softly::files::write_text;
use softly::{Observations, Trained, node_moments};
use softly_figures::field_grid::{FieldGrid, FieldRow, Quantity};
use softly_figures::page::{Block, Cell, Page, Section, Table, render};
use softly_figures::picture::{Field, PictureError};
use softly_figures::svg::Svg;

use crate::fields::figures::coordinates;
use crate::inverse::table::{PosteriorRow, posterior_table};

/// Samples that are shown.
const SHOWN: usize = 3;

/// The posterior of one case.
pub struct PosteriorView<'a> {
    /// The model.
    pub trained: &'a Trained,
    /// What was measured.
    pub observations: &'a Observations,
    /// Samples in physical units, `[≥ count, C, H, W]`; the first `count` of them belong to the case.
    pub posterior: &'a [f64],
    /// Number of samples.
    pub count: usize,
    /// The truth `[C, H, W]`, if it is known.
    pub truth: Option<&'a [f64]>,
}

/// Writes the page; `rows` say how good the posteriors of several cases are.
pub fn posterior_page(view: &PosteriorView<'_>, rows: &[PosteriorRow], file: &Path) -> Result<()> {
    let drawn = |e: PictureError| Error::Failed { what: "drawing the fields".into(), why: e.to_string() };
    let [fields, spread] = posterior_figures(view).map_err(drawn)?;
    let mut sections = vec![Section {
        heading: "Fields given the sensors".into(),
        text: Vec::new(),
        blocks: vec![
            Block::Figure {
                svg: fields,
                caption: "Sensors at their nodes, the mean of all samples, and some of them.".into(),
            },
            Block::Figure {
                svg: spread,
                caption: "What the samples do not agree on, and where their mean is wrong.".into(),
            },
        ],
    }];
    if !rows.is_empty() {
        let lines = posterior_table(rows);
        let cells = |line: &Vec<String>| {
            let cell = |(k, text): (usize, &String)| if k < 2 { Cell::text(text) } else { Cell::number(text) };
            line.iter().enumerate().map(cell).collect()
        };
        let table = Table {
            caption: "Errors are relative, medians over held-out fields; a calibrated posterior has the coverage of its column and spread/error 1.".into(),
            header: lines[0].clone(),
            rows: lines[1..].iter().map(cells).collect(),
            origin: None,
        };
        sections.push(Section {
            heading: "How good it is".into(),
            text: Vec::new(),
            blocks: vec![Block::Table(table)],
        });
    }
    let count = view.count;
    let lead = format!("{count} samples given {} measurements.", view.observations.len());
    write_text(file, &render(&Page { title: "Fields from measurements".into(), lead, sections }))
}

/// Truth, sensors, mean and samples; standard deviation and error.
pub fn posterior_figures(view: &PosteriorView<'_>) -> std::result::Result<[Svg; 2], PictureError> {
    let data = &view.trained.blueprint.data;
    let (rows, cols, nodes, channels) = (data.grid.rows(), data.grid.cols(), data.grid.len(), data.fields.len());
    let shown = SHOWN.min(view.count);
    let mut columns: Vec<String> = view.truth.iter().map(|_| "truth".to_string()).collect();
    columns.extend(["sensors".to_string(), "mean".to_string()]);
    columns.extend((1..=shown).map(|k| format!("sample {k}")));
    let mut spread_columns = vec!["standard deviation".to_string()];
    spread_columns.extend(view.truth.map(|_| "|mean − truth|".to_string()));
    let sensors = sensors(view, channels, nodes);
    let samples: Vec<&[f64]> = view.posterior.chunks_exact(channels * nodes).take(view.count).collect();
    let of_channel = |channel: usize| -> Vec<&[f64]> {
        samples.iter().map(|sample| &sample[channel * nodes..(channel + 1) * nodes]).collect()
    };
    let moments: Vec<Vec<(f64, f64)>> = (0..channels).map(|channel| node_moments(&of_channel(channel))).collect();
    let means: Vec<Vec<f64>> = moments.iter().map(|m| m.iter().map(|m| m.0).collect()).collect();
    let sds: Vec<Vec<f64>> = moments.iter().map(|m| m.iter().map(|m| m.1).collect()).collect();
    let error = |channel: usize, truth: &[f64]| -> Vec<f64> {
        means[channel].iter().zip(&truth[channel * nodes..]).map(|(mean, truth)| (mean - truth).abs()).collect()
    };
    let errors: Vec<Option<Vec<f64>>> = (0..channels).map(|c| view.truth.map(|truth| error(c, truth))).collect();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (channel, name) in data.fields.iter().enumerate() {
        let own = of_channel(channel);
        let mut fields: Vec<&[f64]> =
            view.truth.iter().map(|truth| &truth[channel * nodes..(channel + 1) * nodes]).collect();
        fields.extend([&sensors[channel][..], &means[channel][..]]);
        fields.extend(&own[..shown]);
        let fields = fields.into_iter().map(|values| Field::new(rows, cols, values));
        let fields = fields.collect::<std::result::Result<Vec<_>, PictureError>>()?;
        first.push(FieldRow { value: Quantity::new(name, ""), fields, ..FieldRow::default() });
        let mut spread = vec![Field::new(rows, cols, &sds[channel])?];
        if let Some(error) = &errors[channel] {
            spread.push(Field::new(rows, cols, error)?);
        }
        second.push(FieldRow { value: Quantity::new(name, ""), fields: spread, ..FieldRow::default() });
    }
    let coordinates = || (!data.grid.is_point()).then(|| coordinates(&data.grid));
    let grid = |title: &str, columns: Vec<String>, rows: Vec<FieldRow<'_>>| {
        FieldGrid { title: title.into(), columns, rows, coordinates: coordinates() }.svg()
    };
    Ok([grid("Fields given the sensors", columns, first)?, grid("Spread and error", spread_columns, second)?])
}

/// What sensors read at their nodes, NaN elsewhere, by channel; sensors of formulas are not shown.
fn sensors(view: &PosteriorView<'_>, channels: usize, nodes: usize) -> Vec<Vec<f64>> {
    let data = &view.trained.blueprint.data;
    let mut shown = vec![vec![f64::NAN; nodes]; channels];
    for ((quantity, places), value) in view.observations.places().zip(view.observations.values()) {
        let name = &view.observations.names()[quantity];
        let nearest = places.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some(channel), Some((node, _))) = (data.fields.iter().position(|field| field == name), nearest) {
            shown[channel][*node] = value;
        }
    }
    shown
}
