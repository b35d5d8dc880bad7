//! The audit of a dataset as a page with figures.

use std::path::Path;

use softly::audit_text::{fitted, outlier_words, place, share, span};
use softly::error::{Error, Result};
use softly::files::write_text;
use softly::{DataAudit, DatasetFolder, SplitInspection};
use softly_figures::axis::{Scale, Tick};
use softly_figures::charts::{Axes, LineChart, Point, Series, Spread};
use softly_figures::field_grid::{FieldGrid, FieldRow, Quantity};
use softly_figures::histogram::{Histogram, ValueSet};
use softly_figures::page::{Block, Cell, Page, Section, Table, render};
use softly_figures::picture::{ColourMap, Field};
use softly_figures::svg::Svg;
use softly_pde::audit::{EquationAudit, percent};
use softly_studies::coordinates;

/// Writes the page of `found` to `file`; `name` says where the equation comes from.
pub fn write(
    file: &Path,
    folder: &DatasetFolder,
    found: &DataAudit,
    train: &SplitInspection,
    name: &str,
) -> Result<()> {
    let mut sections = vec![Section {
        heading: "Verdict".into(),
        text: vec![format!(
            "{} of {} training samples of {} under {name}.",
            found.audit.samples,
            found.of,
            folder.path.display()
        )],
        blocks: vec![Block::Verdict(found.audit.verdict.clone())],
    }];
    for (e, equation) in found.audit.equations.iter().enumerate() {
        let sizes = train.by_sample.get(e).map_or(&[][..], Vec::as_slice);
        let mut blocks = vec![Block::Table(terms(equation))];
        blocks.extend(map(equation, folder)?);
        blocks.extend(regions(equation));
        blocks.extend(wavelengths(equation));
        blocks.push(histogram(sizes));
        blocks.push(Block::Table(comparisons(equation)));
        let mut text = vec![equation.verdict.clone()];
        if let Some(outliers) = found.outliers.get(e).filter(|outliers| !outliers.is_empty()) {
            text.push(format!("Outliers: {}.", outlier_words(outliers)));
        }
        sections.push(Section { heading: format!("{} {}", equation.formula, place(equation)), text, blocks });
    }
    if let Some(fit) = &found.fit {
        let rows = fitted(fit);
        let table = Table {
            caption: "Least-squares values of the parameters; intervals by the bootstrap over samples.".into(),
            header: rows[0].clone(),
            rows: rows[1..].iter().map(|row| row.iter().map(Cell::text).collect()).collect(),
            origin: None,
        };
        sections.push(Section {
            heading: "Fitted parameters".into(),
            text: Vec::new(),
            blocks: vec![Block::Table(table)],
        });
    }
    let page = Page { title: "Do the data obey the equation?".into(), lead: String::new(), sections };
    write_text(file, &render(&page))
}

/// Sizes of the terms and of the residual.
fn terms(equation: &EquationAudit) -> Table {
    let relative = |rms: f64| if equation.scale > 0.0 { percent(rms / equation.scale) } else { String::new() };
    let number = |value: f64| Cell::number(format!("{value:.3e}"));
    let mut rows: Vec<Vec<Cell>> = equation
        .terms
        .iter()
        .map(|term| {
            let factor = term.factor.map_or_else(String::new, |factor| format!("{factor:.3}"));
            let share = Cell::number(relative(term.rms));
            vec![Cell::text(&*term.text), number(term.mean_abs), number(term.rms), share, Cell::number(factor)]
        })
        .collect();
    let own = Cell::number(equation.relative.map_or_else(String::new, percent)).strong();
    let residual = Cell::text("residual R").strong();
    rows.push(vec![residual, number(equation.mean_abs), number(equation.rms), own, Cell::number("")]);
    Table {
        caption: "Terms of the equation. The best factor on a term alone makes the residual smallest; it is 1 where \
                  the equation holds."
            .into(),
        header: ["", "mean |·|", "rms", "of the largest term", "best factor"].map(String::from).to_vec(),
        rows,
        origin: None,
    }
}

/// Mean |R| at every point.
fn map(equation: &EquationAudit, folder: &DatasetFolder) -> Result<Option<Block>> {
    let grid = &folder.description.grid;
    if grid.is_point() {
        return Ok(None);
    }
    let failed = |e: softly_figures::picture::PictureError| Error::input("--report", e);
    let field = Field::new(grid.rows(), grid.cols(), &equation.map).map_err(failed)?;
    let largest = equation.map.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
    let row = FieldRow {
        value: Quantity::new("mean |R|", ""),
        map: ColourMap::Inferno,
        scale: Scale::Linear,
        range: Some([0.0, if largest > 0.0 { largest } else { 1.0 }]),
        fields: vec![field],
    };
    let columns = vec!["mean over samples".into()];
    let figure = FieldGrid { title: String::new(), columns, rows: vec![row], coordinates: Some(coordinates(grid)) };
    let svg = figure.svg().map_err(failed)?;
    Ok(Some(Block::Figure { svg, caption: "Where the residual is; grey where the equation does not count.".into() }))
}

/// Mean |R| by part of the grid.
fn regions(equation: &EquationAudit) -> Option<Block> {
    let rows = equation.regions.iter().map(|share| {
        let times = Cell::number(format!("{:.2}", share.mean_abs / equation.mean_abs.max(f64::MIN_POSITIVE)));
        vec![Cell::text(&*share.region), Cell::number(format!("{:.3e}", share.mean_abs)), times]
    });
    let table = Table {
        caption: "The residual by part of the grid.".into(),
        header: ["", "mean |R|", "times the mean over all"].map(String::from).to_vec(),
        rows: rows.collect(),
        origin: None,
    };
    (!equation.regions.is_empty()).then_some(Block::Table(table))
}

/// Spectra of the residual and of the largest term.
fn wavelengths(equation: &EquationAudit) -> Option<Block> {
    let bands = &equation.wavelengths;
    let series = |name: &str, colour: usize, of: &dyn Fn(usize) -> f64| Series {
        name: name.into(),
        colour,
        points: (0..bands.len()).map(|k| Point::exact(k as f64, of(k))).collect(),
    };
    let ticks = bands.iter().enumerate().map(|(k, band)| Tick { value: k as f64, label: span(band) }).collect();
    let axes = Axes {
        title: "Residual by wavelength".into(),
        x_label: "wavelength in grid spacings h".into(),
        y_label: "√power".into(),
        y_scale: Scale::Log,
        x_ticks: ticks,
        ..Axes::default()
    };
    let all = vec![
        series("residual R", 1, &|k| bands[k].residual),
        series(&format!("largest term, {}", equation.largest), 0, &|k| bands[k].largest),
    ];
    let shares: Vec<String> = bands.iter().map(|band| format!("{} {}", span(band), share(band))).collect();
    let caption = format!("R relative to the largest term: {}.", shares.join(", "));
    let svg: Svg = LineChart { axes, series: all, spread: Spread::Bars }.svg();
    (!bands.is_empty()).then_some(Block::Figure { svg, caption })
}

/// The residual of each sample.
fn histogram(sizes: &[f64]) -> Block {
    let positive: Vec<f64> = sizes.iter().copied().filter(|size| *size > 0.0).collect();
    let x_scale = if positive.len() == sizes.len() && !sizes.is_empty() { Scale::Log } else { Scale::Linear };
    let figure = Histogram {
        title: "Residual by sample".into(),
        x_label: "rms of R over a training sample".into(),
        x_scale,
        sets: vec![ValueSet { name: "", colour: 0, values: sizes }],
    };
    Block::Figure { svg: figure.svg(), caption: format!("All {} training samples.", sizes.len()) }
}

/// What the residual may be compared with.
fn comparisons(equation: &EquationAudit) -> Table {
    let mut rows = vec![("the data", Some(equation.mean_abs), Some(equation.rms))];
    if let Some(d) = &equation.discretisation {
        rows.push(("the data with stencils of another order", None, Some(d.other_rms)));
        rows.push(("difference of both stencils", None, Some(d.difference_rms)));
    }
    rows.push(("rounding of the fields to single precision", None, Some(equation.rounding)));
    rows.push(("shuffled pairs of fields", equation.yardsticks.shuffled, None));
    rows.push(("zero fields", equation.yardsticks.zero, None));
    rows.push(("the mean field", equation.yardsticks.mean_field, None));
    let cell = |value: Option<f64>| Cell::number(value.map_or_else(String::new, |value| format!("{value:.3e}")));
    let known = rows.into_iter().filter(|(_, mean, rms)| mean.is_some() || rms.is_some());
    let order = equation.discretisation.as_ref().and_then(|d| d.order).map_or_else(String::new, |order| {
        format!(" On every second point the residual is {:.1} times as large.", order.exp2())
    });
    Table {
        caption: format!("Residuals for comparison.{order}"),
        header: ["", "mean |R|", "rms"].map(String::from).to_vec(),
        rows: known.map(|(name, mean, rms)| vec![Cell::text(name), cell(mean), cell(rms)]).collect(),
        origin: None,
    }
}
