//! Measurements as users write them: tables `field,<axes>,value[,sd][,sample]`, and arrays with NaN where nothing is known.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use softly_pde::grid::Grid;

use crate::error::{Error, Result, nearest};
use crate::files::read_text;
use crate::npy;
use crate::observe::place::Extent;

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// Where it was written, for errors.
    pub source: String,
    /// A field, or a formula of fields.
    pub quantity: String,
    /// One extent per axis; none for a lone point.
    pub place: Vec<Extent>,
    /// What was measured, in physical units.
    pub value: f64,
    /// Standard deviation of its noise, if it has one of its own.
    pub sd: Option<f64>,
}

/// Readings by case; a single case holds for every sample.
pub type Cases = Vec<Vec<Reading>>;

/// Reads what `--observe` names: tables, and `NAME=array.npy`.
pub fn read(sources: &[String], grid: &Grid) -> Result<Cases> {
    let files = sources.iter().map(|source| match array_of(source) {
        Some((quantity, path)) => {
            let array = npy::read(&path)?;
            Ok((source.clone(), of_array(quantity, &path.display().to_string(), &array.shape, &array.values, grid)?))
        }
        None => Ok((source.clone(), read_table(Path::new(source), sources.len() == 1, grid)?)),
    });
    together(files.collect::<Result<_>>()?)
}

/// The readings of several sources, each with its name. They are of the same cases; a source without cases of its own holds for all.
pub fn together(sources: Vec<(String, Cases)>) -> Result<Cases> {
    let count = sources.iter().map(|(_, cases)| cases.len()).max().unwrap_or(0);
    if let Some((name, cases)) = sources.iter().find(|(_, cases)| cases.len() != 1 && cases.len() != count) {
        let problem = format!("expected readings of {count} samples, as in the other files, found {}", cases.len());
        return Err(Error::input(name, problem));
    }
    let case = |i: usize| sources.iter().flat_map(move |(_, f)| f[if f.len() == 1 { 0 } else { i }].clone()).collect();
    let cases: Cases = (0..count).map(case).collect();
    if let Some(empty) = cases.iter().position(Vec::is_empty) {
        let names: Vec<&str> = sources.iter().map(|(name, _)| name.as_str()).collect();
        return Err(nothing_for(&names.join(", "), empty));
    }
    if cases.is_empty() {
        return Err(Error::input("observe", "expected at least one file of measurements, found none"));
    }
    Ok(cases)
}

/// The refusal of a sample without readings.
fn nothing_for(sources: &str, sample: usize) -> Error {
    let problem = format!("expected at least one measurement of every sample, found none of sample {sample}");
    Error::input(sources, problem).hint("samples count from 0 without gaps; leave out those without a number")
}

/// `NAME=array.npy` in its parts; a formula may hold a `=` of its own.
fn array_of(source: &str) -> Option<(&str, PathBuf)> {
    let (quantity, path) = source.rsplit_once('=')?;
    Path::new(path).extension().is_some_and(|e| e.eq_ignore_ascii_case("npy")).then(|| (quantity.trim(), path.into()))
}

/// The numbers of an array `[H, W]`, one case, or `[N, H, W]`, where they are not NaN; `location` names it in errors.
pub fn of_array(quantity: &str, location: &str, shape: &[usize], values: &[f64], grid: &Grid) -> Result<Cases> {
    let (rows, cols) = (grid.rows(), grid.cols());
    if !(2..=3).contains(&shape.len()) || !shape.ends_with(&[rows, cols]) || shape.contains(&0) {
        let problem = format!("expected the shape [{rows}, {cols}] or [N, {rows}, {cols}], found {shape:?}");
        return Err(Error::input(location, problem).hint("NaN stands where nothing was measured"));
    }
    let reading = |sample: usize, (node, &value): (usize, &f64)| {
        let (i, j) = (node / cols, node % cols);
        if value.is_infinite() {
            let problem = format!("expected numbers, or NaN where nothing is known; found {value} at [{i}, {j}]");
            return Some(Err(Error::input(location, problem)));
        }
        let place = grid.axes.iter().zip([i, j]).map(|(axis, i)| Extent::Point(axis.coordinate(i)));
        let source = format!("{location}, sample {sample}, node [{i}, {j}]");
        let reading = Reading { source, quantity: quantity.into(), place: place.collect(), value, sd: None };
        (!value.is_nan()).then_some(Ok(reading))
    };
    let case = |(sample, values): (usize, &[f64])| {
        values.iter().enumerate().filter_map(|entry| reading(sample, entry)).collect::<Result<Vec<_>>>()
    };
    let cases: Cases = values.chunks_exact(rows * cols).enumerate().map(case).collect::<Result<_>>()?;
    if cases.iter().all(Vec::is_empty) {
        return Err(Error::input(location, "expected at least one number, found NaN at every node"));
    }
    Ok(cases)
}

/// What a column of a table holds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Field,
    Axis(usize),
    Value,
    Sd,
    Sample,
}

/// The rows of a table with the columns `field`, one per axis, `value`, and if wanted `sd` and `sample`. A table that is `alone` has
/// readings of every sample.
fn read_table(path: &Path, alone: bool, grid: &Grid) -> Result<Cases> {
    let text = read_text(path)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let Some((_, head)) = lines.next() else {
        return Err(Error::input(path.display(), "the table is empty").hint(example(grid)));
    };
    let separator = [';', '\t', ','].into_iter().find(|&c| head.contains(c)).unwrap_or(',');
    let columns = columns(&cells(head, separator), path, grid)?;
    let mut found: BTreeMap<usize, Vec<Reading>> = BTreeMap::new();
    for (number, line) in lines {
        let source = format!("{}, line {}", path.display(), number + 1);
        let cells = cells(line, separator);
        if cells.len() != columns.len() {
            let problem = format!("expected {} cells, as in the first line, found {}", columns.len(), cells.len());
            return Err(Error::input(source, problem).hint("quote a formula that holds a comma: \"dot(u, v)\""));
        }
        let (sample, reading) = row(&columns, &cells, source, grid)?;
        if sample > 1_000_000 {
            return Err(Error::input(reading.source, format!("expected a sample's number, found {sample}")));
        }
        found.entry(sample).or_default().push(reading);
    }
    let Some((&last, _)) = found.last_key_value() else {
        return Err(Error::input(path.display(), "the table has no rows").hint(example(grid)));
    };
    if alone && let Some((missing, _)) = found.keys().enumerate().find(|(i, sample)| i != *sample) {
        return Err(nothing_for(&path.display().to_string(), missing));
    }
    Ok((0..=last).map(|sample| found.remove(&sample).unwrap_or_default()).collect())
}

/// A table's row: its sample and its reading.
fn row(columns: &[Column], cells: &[String], source: String, grid: &Grid) -> Result<(usize, Reading)> {
    let number = |name: &str, cell: &str| {
        let number = cell.trim().parse::<f64>().ok().filter(|v| v.is_finite());
        number.ok_or_else(|| Error::input(&source, format!("expected a number for `{name}`, found `{cell}`")))
    };
    let mut reading = Reading {
        source: source.clone(),
        quantity: String::new(),
        place: vec![Extent::Whole; grid.axes.len()],
        value: 0.0,
        sd: None,
    };
    let mut sample = 0;
    for (column, cell) in columns.iter().zip(cells) {
        match column {
            Column::Field => reading.quantity = cell.trim().to_string(),
            Column::Axis(axis) => {
                let extent = Extent::parse(cell);
                reading.place[*axis] = extent.map_err(|problem| Error::input(&source, problem))?;
            }
            Column::Value => reading.value = number("value", cell)?,
            Column::Sd if cell.trim().is_empty() => {}
            Column::Sd => reading.sd = Some(number("sd", cell)?),
            Column::Sample => {
                let parsed = cell.trim().parse::<usize>();
                let problem = format!("expected the number of a sample from 0 on, found `{cell}`");
                sample = parsed.map_err(|_| Error::input(&source, problem))?;
            }
        }
    }
    Ok((sample, reading))
}

/// The columns that a table's first line names.
fn columns(names: &[String], path: &Path, grid: &Grid) -> Result<Vec<Column>> {
    let axes: Vec<&str> = grid.axes.iter().map(|axis| axis.name.as_str()).collect();
    let column = |name: &String| match name.trim() {
        "field" => Ok(Column::Field),
        "value" => Ok(Column::Value),
        "sd" => Ok(Column::Sd),
        "sample" => Ok(Column::Sample),
        name => axes.iter().position(|axis| *axis == name).map(Column::Axis).ok_or_else(|| {
            let known = ["field", "value", "sd", "sample"].into_iter().chain(axes.iter().copied());
            let hint = nearest(name, known).map_or_else(|| example(grid), |near| format!("did you mean `{near}`?"));
            Error::input(path.display(), format!("the first line has an unknown column `{name}`")).hint(hint)
        }),
    };
    let columns = names.iter().map(column).collect::<Result<Vec<_>>>()?;
    let known = [("field", Column::Field), ("value", Column::Value), ("sd", Column::Sd), ("sample", Column::Sample)];
    let known = known.into_iter().chain(axes.iter().enumerate().map(|(i, axis)| (*axis, Column::Axis(i))));
    for (name, column) in known {
        match columns.iter().filter(|c| **c == column).count() {
            1 => {}
            0 if matches!(column, Column::Sd | Column::Sample) => {}
            0 => {
                return Err(
                    Error::input(path.display(), format!("the first line has no column `{name}`")).hint(example(grid))
                );
            }
            _ => return Err(Error::input(path.display(), format!("the first line has two columns `{name}`"))),
        }
    }
    Ok(columns)
}

/// What a table looks like.
fn example(grid: &Grid) -> String {
    let axes: String = grid.axes.iter().flat_map(|axis| [axis.name.as_str(), ","]).collect();
    format!("the first line is field,{axes}value,sd (sd may be left out)")
}

/// The cells of a line; quotes keep a separator in a cell.
fn cells(line: &str, separator: char) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    for c in line.trim_end_matches('\r').chars() {
        match c {
            '"' => quoted = !quoted,
            c if c == separator && !quoted => cells.push(String::new()),
            c => cells.last_mut().expect("there is a first cell").push(c),
        }
    }
    cells
}
