//! Figures of runs: samples and residual maps beside data, distributions, curves by noise level, learned parameters,
//! neighbours.
//!
//! Runs keep their colours; the data are black.

use softly::statistics::AtLevel;
use softly::{FieldEvaluator, Metrics};
use softly_figures::axis::Scale;
use softly_figures::charts::{Axes, LineChart, Point, Series, Spread};
use softly_figures::field_grid::{FieldGrid, FieldRow, Quantity};
use softly_figures::histogram::{Histogram, ValueSet};
use softly_figures::picture::{ColourMap, Field, Result, colours_of};
use softly_figures::svg::{Colours, INK, Svg};
use softly_pde::grid::Grid;

use crate::fields::figures::{Curve, DATA, coordinates, quantiles, series};

/// Most equations whose residuals are mapped.
const MAPPED: usize = 4;

/// A sample with its name above it, `[C, H, W]`.
pub struct Named<'a> {
    /// What stands above it.
    pub name: String,
    /// Its values.
    pub sample: &'a [f32],
}

/// Samples as columns, fields and magnitudes of residuals as rows, each row on one colour scale.
///
/// Colours span all but the most extreme half per cent of a row's values on either side.
pub fn samples_figure(
    title: &str,
    fields: &[String],
    grid: &Grid,
    evaluator: &FieldEvaluator<'_>,
    samples: &[Named<'_>],
) -> Result<Svg> {
    let wide: Vec<Vec<f64>> = samples.iter().map(|s| s.sample.iter().map(|&v| f64::from(v)).collect()).collect();
    let maps: Vec<Vec<Vec<f64>>> = samples.iter().map(|s| magnitudes(evaluator.residual_maps(s.sample))).collect();
    let picture = |values| Field::new(grid.rows(), grid.cols(), values);
    let mut rows = Vec::new();
    for (k, name) in fields.iter().enumerate() {
        let columns: Vec<&[f64]> = wide.iter().map(|s| &s[k * grid.len()..(k + 1) * grid.len()]).collect();
        let range = quantiles(columns.iter().copied().flatten(), [0.005, 0.995]);
        let (map, scale) = colours_of(range);
        let fields = columns.into_iter().map(picture).collect::<Result<_>>()?;
        rows.push(FieldRow { value: Quantity::new(name, ""), map, scale, range: Some(range), fields });
    }
    let equations = maps.first().map_or(0, Vec::len);
    for k in 0..equations.min(MAPPED) {
        // The residual of data may be rounding, whole decades below the residual of any model.
        let models = samples.iter().zip(&maps).filter(|(s, _)| !s.name.starts_with(DATA));
        let shown: Vec<&f64> = models.flat_map(|(_, maps)| &maps[k]).filter(|r| **r > 0.0).collect();
        let range = quantiles(shown.into_iter(), [0.02, 0.995]);
        let name = if equations == 1 { "residual |R|".into() } else { format!("|R| of equation {}", k + 1) };
        rows.push(FieldRow {
            value: Quantity::new(name, ""),
            map: ColourMap::Inferno,
            scale: Scale::Log,
            range: Some(range),
            fields: maps.iter().map(|maps| picture(&maps[k])).collect::<Result<_>>()?,
        });
    }
    let columns = samples.iter().map(|s| s.name.clone()).collect();
    FieldGrid { title: title.into(), columns, rows, coordinates: Some(coordinates(grid)) }.svg()
}

fn magnitudes(maps: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    maps.into_iter().map(|map| map.into_iter().map(f64::abs).collect()).collect()
}

/// The first field of samples above the same field of their nearest training samples.
pub fn neighbours_figure(name: &str, grid: &Grid, pairs: &[(String, [&[f32]; 2])]) -> Result<Svg> {
    let wide = |k: usize| -> Vec<Vec<f64>> {
        pairs.iter().map(|(_, pair)| pair[k][..grid.len()].iter().map(|&v| f64::from(v)).collect()).collect()
    };
    let both = [wide(0), wide(1)];
    let range = quantiles(both.iter().flatten().flatten(), [0.005, 0.995]);
    let (map, scale) = colours_of(range);
    let mut rows = Vec::new();
    for (values, title) in both.iter().zip([format!("sampled {name}"), "nearest in training".into()]) {
        let fields = values.iter().map(|v| Field::new(grid.rows(), grid.cols(), v)).collect::<Result<_>>()?;
        rows.push(FieldRow { value: Quantity::new(title, ""), map, scale, range: Some(range), fields });
    }
    let columns = pairs.iter().map(|(name, _)| name.clone()).collect();
    FieldGrid {
        title: "Samples and their nearest training samples".into(),
        columns,
        rows,
        coordinates: Some(coordinates(grid)),
    }
    .svg()
}

/// How values are distributed, one outline per name; the data are black.
pub fn outlines(title: &str, x_label: &str, x_scale: Scale, sets: &[(&str, Vec<f64>)], colours: &mut Colours) -> Svg {
    let mut index = |name: &str| if name == DATA { INK } else { colours.index(name) };
    let sets: Vec<ValueSet<'_>> =
        sets.iter().map(|(name, values)| ValueSet { name, colour: index(name), values }).collect();
    Histogram { title: title.into(), x_label: x_label.into(), x_scale, sets }.svg()
}

/// A quantity against the noise level, one line per name.
pub fn by_level(title: &str, y_label: &str, y_scale: Scale, curves: &[Curve<'_>], colours: &mut Colours) -> Svg {
    let axes = Axes {
        title: title.into(),
        x_label: "noise level σ".into(),
        y_label: y_label.into(),
        x_scale: Scale::Log,
        y_scale,
        ..Axes::default()
    };
    LineChart { axes, series: series(curves, colours), spread: Spread::Band }.svg()
}

/// A quantity of trainings against the step, one line per name.
pub fn by_step(
    title: &str,
    y_scale: Scale,
    curves: &[Curve<'_>],
    levels: Vec<(String, f64)>,
    colours: &mut Colours,
) -> Svg {
    let axes =
        Axes { title: title.into(), x_label: "step".into(), y_label: title.into(), y_scale, levels, ..Axes::default() };
    let series: Vec<Series> = series(curves, colours);
    LineChart { axes, series, spread: Spread::Bars }.svg()
}

/// Levels as points with a band from the 10th to the 90th percentile.
pub fn banded(levels: &[AtLevel]) -> Vec<Point> {
    levels.iter().map(|l| Point { x: l.sigma, y: l.mean, low: l.low, high: l.high }).collect()
}

/// Levels as points.
pub fn exact(levels: &[AtLevel]) -> Vec<Point> {
    levels.iter().map(|l| Point::exact(l.sigma, l.mean)).collect()
}

/// The steps of a training as points, where `pick` finds a number.
pub fn steps(metrics: &[Metrics], pick: impl Fn(&Metrics) -> Option<f64>) -> Vec<Point> {
    metrics.iter().filter_map(|m| Some(Point::exact(m.step as f64, pick(m)?))).collect()
}
