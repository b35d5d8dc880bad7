//! `softly data inspect`: ranges, statistics, and how far the real data are from an equation.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

use burn::tensor::Device;
use serde_json::{Value, json};
use softly::error::{Error, Result};
use softly::files::write_atomically;
use softly::job::Reporter;
use softly::{ConstraintConfig, DataConstraint, DatasetFolder, Layers, Residuals, Split, SplitInspection, inspect};
use softly_figures::field_grid::{FieldGrid, FieldRow, Quantity};
use softly_figures::picture::{Field, colours_of};
use softly_figures::raster::svg_to_png;
use softly_figures::svg::Svg;
use softly_pde::grid::{Axis, Grid, Placement};
use softly_studies::coordinates;

use super::label;
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::Bar;

/// Samples in a plot.
const DRAWN: usize = 4;
/// Pixels per unit of length of a plot.
const SCALE: f32 = 2.0;

/// Prints ranges, moments, distributions and the residual of the dataset in `path`, and draws its first samples.
pub fn run(path: &Path, config: Option<&Path>, plot: Option<&Path>, json: bool) -> Result<()> {
    let folder = DatasetFolder::open(path)?;
    let (name, equation) = match config {
        Some(file) => {
            let location = file.display().to_string();
            let parsed = Layers::new().file(file)?.finish(&location)?;
            let missing = || {
                Error::input(&location, "expected a [constraint] table, found none")
                    .hint("see `softly presets darcy-demo`")
            };
            (location.clone(), Some(parsed.constraint.ok_or_else(missing)?))
        }
        None => ("the data's own equation".to_string(), folder.description.equation.clone()),
    };
    let constraint = equation.as_ref().map(|e| DataConstraint::new(e, &folder)).transpose()?;
    // A plot that cannot be drawn is refused before all samples are read.
    if let Some(file) = plot {
        draw(&folder, file)?;
    }
    catch_interrupt();
    let bar = Bar::new(0, "samples");
    bar.begin((folder.count(Split::Train) + folder.count(Split::Valid)) as u64, 0);
    let (mut hasher, device) = (blake3::Hasher::new(), Device::flex());
    let mut look_at =
        |split| inspect(&folder, split, usize::MAX, constraint.as_ref(), &mut hasher, &job(&device, &bar));
    let (train, valid) = (look_at(Split::Train)?, look_at(Split::Valid)?);
    bar.finish();
    let unchanged = hasher.finalize().to_hex().as_str() == folder.description.hash;
    if json {
        print_json(&report(&folder, [&train, &valid], constraint.is_some().then_some(&name), unchanged));
    } else {
        tell(&folder, [&train, &valid], equation.as_ref().map(|e| (name.as_str(), e)), unchanged);
    }
    Ok(())
}

fn report(
    folder: &DatasetFolder,
    splits: [&SplitInspection; 2],
    constraint: Option<&String>,
    unchanged: bool,
) -> Value {
    let description = &folder.description;
    let [train, valid] = splits;
    let fields: Vec<Value> = description
        .fields
        .iter()
        .enumerate()
        .map(|(c, field)| {
            json!({
                "name": field.name, "quantity": field.quantity, "unit": field.unit,
                "train": train.fields[c], "valid": valid.fields[c],
            })
        })
        .collect();
    json!({
        "path": folder.path, "train": train.count, "valid": valid.count, "grid": description.grid,
        "generator": description.generator, "seed": description.seed, "hash": description.hash,
        "hash_matches": unchanged, "fields": fields,
        "residual": constraint.map(|name| json!({ "constraint": name, "train": train.residual, "valid": valid.residual })),
    })
}

fn tell(
    folder: &DatasetFolder,
    splits: [&SplitInspection; 2],
    constraint: Option<(&str, &ConstraintConfig)>,
    unchanged: bool,
) {
    let description = &folder.description;
    let grid = &description.grid;
    print(&format!(
        "{}: {} training and {} held-out samples on {}",
        folder.path.display(),
        description.train,
        description.valid,
        grid_words(grid)
    ));
    if let (Some(generator), Some(seed)) = (&description.generator, description.seed) {
        let text = serde_json::to_string(generator).expect("a generator is valid JSON");
        print(&format!("generator {text}, seed {seed}"));
    }
    let verdict =
        if unchanged { "matches" } else { "DOES NOT MATCH: the files have changed since dataset.toml was written" };
    print(&format!("hash {} {verdict}", description.hash));
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
    for (k, entry) in description.fields.iter().enumerate() {
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

/// A grid in words: its axes with their points and ends.
fn grid_words(grid: &Grid) -> String {
    let axis = |axis: &Axis| {
        let points = if axis.placement == Placement::Cells { "cells" } else { "nodes" };
        let periodic = if axis.periodic { ", periodic" } else { "" };
        format!("{} {points} along {} from {} to {}{periodic}", axis.nodes, axis.name, axis.first, axis.last)
    };
    if grid.is_point() { "single points".into() } else { grid.axes.iter().map(axis).collect::<Vec<_>>().join(" × ") }
}
