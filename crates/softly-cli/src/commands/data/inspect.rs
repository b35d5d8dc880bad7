//! `softly data inspect`: ranges, statistics, and whether the real data obey an equation.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

use burn::tensor::Device;
use serde_json::{Value, json};
use softly::error::{Error, Result};
use softly::files::write_atomically;
use softly::job::Reporter;
use softly::{
    ConstraintConfig, DataConstraint, DatasetFolder, Layers, Residuals, Split, SplitInspection, audit, audit_stride,
    audit_text, inspect,
};
use softly_figures::field_grid::{FieldGrid, FieldRow, Quantity};
use softly_figures::picture::{Field, colours_of};
use softly_figures::raster::svg_to_png;
use softly_figures::svg::Svg;
use softly_pde::audit::number;
use softly_pde::grid::{Axis, Placement};
use softly_studies::coordinates;

use super::{audit_page, label};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::Bar;

/// Samples in a plot.
const DRAWN: usize = 4;
/// Pixels per unit of length of a plot.
const SCALE: f32 = 2.0;

/// What to look at besides ranges and moments.
pub struct Wishes<'a> {
    /// The file of the equation, instead of the dataset's own.
    pub config: Option<&'a Path>,
    /// Parameters to fit.
    pub fit: &'a [String],
    /// Where samples are drawn.
    pub plot: Option<&'a Path>,
    /// Where the page of the audit is written.
    pub report: Option<&'a Path>,
}

/// Prints ranges, moments, distributions and the audit of the dataset in `path`, and draws its first samples.
pub fn run(path: &Path, wishes: &Wishes<'_>, json: bool) -> Result<()> {
    let folder = DatasetFolder::open(path)?;
    let (name, equation) = equation_of(&folder, wishes)?;
    let equation = equation.map(|equation| folder.complete(&equation));
    let needs_equation = [("--fit", !wishes.fit.is_empty()), ("--report", wishes.report.is_some())];
    if let (None, Some((flag, _))) = (&equation, needs_equation.iter().find(|(_, wished)| *wished)) {
        let problem = "these data have no equation of their own";
        return Err(Error::input(flag, problem).hint("name a file with a [constraint] table: --config FILE"));
    }
    let constraint = equation.as_ref().map(|e| DataConstraint::new(e, &folder)).transpose()?;
    let constraint = constraint.map(|constraint| constraint.keeping(audit_stride(&folder)));
    // A plot that cannot be drawn is refused before all samples are read.
    if let Some(file) = wishes.plot {
        draw(&folder, file)?;
    }
    catch_interrupt();
    let bar = Bar::new(0, "samples");
    bar.begin((folder.count(Split::Train) + folder.count(Split::Valid)) as u64, 0);
    let device = Device::flex();
    let look_at = |split| inspect(&folder, split, usize::MAX, constraint.as_ref(), &job(&device, &bar));
    let (train, valid) = (look_at(Split::Train)?, look_at(Split::Valid)?);
    let found = equation.as_ref().map(|e| audit(e, &folder, &train, wishes.fit, &job(&device, &bar))).transpose();
    bar.finish();
    let found = found?;
    if let (Some(file), Some(found)) = (wishes.report, &found) {
        audit_page::write(file, &folder, found, &train, &name)?;
    }
    if json {
        let mut report = report(&folder, [&train, &valid], constraint.is_some().then_some(&name));
        report["audit"] = json!(found);
        print_json(&report);
    } else {
        tell(&folder, [&train, &valid], equation.as_ref().map(|e| (name.as_str(), e)));
        if let Some(found) = &found {
            for line in audit_text::lines(found) {
                print(&line);
            }
        }
    }
    Ok(())
}

/// The equation of a file, or the dataset's own, and a name for it.
fn equation_of(folder: &DatasetFolder, wishes: &Wishes<'_>) -> Result<(String, Option<ConstraintConfig>)> {
    let Some(file) = wishes.config else {
        return Ok(("the data's own equation".to_string(), folder.description.equation.clone()));
    };
    let location = file.display().to_string();
    let parsed = Layers::new().file(file)?.starting(wishes.fit).finish(&location)?;
    let missing =
        || Error::input(&location, "expected a [constraint] table, found none").hint("see `softly presets darcy-demo`");
    let constraint = parsed.constraint.ok_or_else(missing)?;
    Ok((location, Some(constraint)))
}

fn report(folder: &DatasetFolder, splits: [&SplitInspection; 2], constraint: Option<&String>) -> Value {
    let description = &folder.description;
    let [train, valid] = splits;
    let fields: Vec<Value> = description
        .fields
        .iter()
        .enumerate()
        .map(|(c, field)| {
            json!({
                "name": field.name, "quantity": field.quantity, "unit": field.unit, "scalar": field.scalar,
                "train": train.fields[c], "valid": valid.fields[c],
            })
        })
        .collect();
    json!({
        "path": folder.path, "train": train.count, "valid": valid.count, "grid": description.grid,
        "generator": description.generator, "seed": description.seed, "hash": description.hash,
        "constants": description.constants, "fields": fields,
        "residual": constraint.map(|name| json!({ "constraint": name, "train": train.residual, "valid": valid.residual })),
    })
}

fn tell(folder: &DatasetFolder, splits: [&SplitInspection; 2], constraint: Option<(&str, &ConstraintConfig)>) {
    let description = &folder.description;
    let grid = &description.grid;
    print(&format!(
        "{}: {} training and {} held-out samples{}",
        folder.path.display(),
        description.train,
        description.valid,
        if grid.is_point() { " of single points" } else { "" }
    ));
    for (number, axis) in grid.axes.iter().enumerate() {
        print(&format!("axis {}: {}", number + 1, axis_words(axis)));
    }
    if let (Some(generator), Some(seed)) = (&description.generator, description.seed) {
        let text = serde_json::to_string(generator).expect("a generator is valid JSON");
        print(&format!("generator {text}, seed {seed}"));
    }
    for (name, value) in &description.constants {
        print(&format!("{name} = {value} for all samples"));
    }
    // Blocks of another hash were refused while they were read.
    print(&format!("hash {} matches", description.hash));
    print("");
    print(&format!(
        "{:22} {:>11} {:>11} {:>11} {:>11}  distribution over the training range",
        "", "mean", "std", "min", "max"
    ));
    let names = Split::BOTH.map(Split::name);
    for (c, field) in description.fields.iter().enumerate() {
        for (split, name) in splits.iter().zip(names) {
            let s = split.fields[c].statistics;
            let title = if name == "train" { label(field) } else { String::new() };
            print(&format!(
                "{title:16} {name:5} {:>11.4e} {:>11.4e} {:>11.4e} {:>11.4e}  {}",
                s.mean,
                s.std,
                s.min,
                s.max,
                bars(&split.fields[c].histogram)
            ));
        }
    }
    let Some((name, constraint)) = constraint else { return };
    let formulas = match &constraint.residual {
        Residuals::One(formula) => formula.clone(),
        Residuals::Many(many) => many.iter().map(|r| r.formula.as_str()).collect::<Vec<_>>().join("; "),
    };
    print("");
    print(&format!("residual R under {name}: {formulas}"));
    for (split, name) in splits.iter().zip(names) {
        if let Some(r) = split.residual {
            print(&format!(
                "{:16} {name:5} mean |R| {:.4e}   rms {:.4e}   max |R| {:.4e}   ({} values)",
                "", r.mean_abs, r.rms, r.max_abs, r.n
            ));
        }
    }
}

/// A histogram in one line.
fn bars(counts: &[u64]) -> String {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let largest = counts.iter().copied().max().unwrap_or(0).max(1);
    // Rounded up: what is there can be seen.
    counts.iter().map(|&n| LEVELS[(8 * n).div_ceil(largest) as usize]).collect()
}

/// Draws the first training samples into an SVG or a PNG file.
fn draw(folder: &DatasetFolder, file: &Path) -> Result<()> {
    let ending = file.extension().and_then(OsStr::to_str).unwrap_or_default().to_ascii_lowercase();
    if !["svg", "png"].contains(&ending.as_str()) {
        let problem = format!("expected a file that ends in .svg or .png, found {}", file.display());
        return Err(Error::input("--plot", problem).hint("end its name in .svg for lines or in .png for pixels"));
    }
    let description = &folder.description;
    let grid = &description.grid;
    if grid.is_point() {
        return Err(Error::input("--plot", "these data are points: there is no field to draw"));
    }
    let mut samples = folder.samples(Split::Train)?;
    let mut drawn: Vec<Vec<Vec<f64>>> = Vec::new();
    while drawn.len() < DRAWN
        && let Some(sample) = samples.next_sample()?
    {
        drawn.push(sample);
    }
    let failed = |e: &dyn std::fmt::Display| Error::input("--plot", e);
    let mut rows = Vec::new();
    for (k, entry) in description.fields.iter().enumerate().filter(|(_, entry)| !entry.scalar) {
        let unit = if entry.unit == "1" { String::new() } else { entry.unit.clone() };
        let value = Quantity::new(format!("{} {}", entry.quantity, entry.name), unit);
        // Map and scale do not depend on which samples are drawn.
        let (map, scale) = colours_of([entry.statistics.min, entry.statistics.max]);
        let fields =
            drawn.iter().map(|sample| Field::new(grid.rows(), grid.cols(), &sample[k]).map_err(|e| failed(&e)));
        rows.push(FieldRow { value, map, scale, range: None, fields: fields.collect::<Result<_>>()? });
    }
    let columns = (0..drawn.len()).map(|i| format!("#{i}")).collect();
    let plain = description.fields.iter().all(|f| f.unit == "1");
    let title = if plain { "all quantities are dimensionless".to_string() } else { String::new() };
    let figure = FieldGrid { title, columns, rows, coordinates: Some(coordinates(grid)) };
    let figure = Svg::tile("Training samples", 1, &[figure.svg().map_err(|e| failed(&e))?]).to_string();
    let bytes = if ending == "png" { svg_to_png(&figure, SCALE).map_err(|e| failed(&e))? } else { figure.into_bytes() };
    write_atomically(file, |out| out.write_all(&bytes))
}

/// An axis in words: `x, 64 nodes from 0 to 1, h = 0.01587`.
fn axis_words(axis: &Axis) -> String {
    let points = if axis.placement == Placement::Cells { "cells" } else { "nodes" };
    let periodic = if axis.periodic { ", periodic" } else { "" };
    let (name, n, h) = (&axis.name, axis.nodes, number(axis.spacing()));
    format!("{name}, {n} {points} from {} to {}, h = {h}{periodic}", number(axis.first), number(axis.last))
}
