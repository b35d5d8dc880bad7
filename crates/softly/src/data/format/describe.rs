//! What is in a file and what it is taken for, in words.

use std::fmt;
use std::path::Path;

use super::layout::{Layout, recognise};
use super::options::ImportOptions;
use super::plan::Plan;
use super::{ArrayInfo, Value, open};
use crate::error::Result;

/// The contents of a file.
#[derive(Debug, Clone)]
pub struct Description {
    /// The arrays.
    pub arrays: Vec<ArrayInfo>,
    /// Notes on the whole file.
    pub attributes: Vec<(String, Value)>,
    /// What the file is taken for, or why it cannot be imported as it is.
    pub layout: std::result::Result<Layout, String>,
}

/// Describes a file.
pub fn describe(path: &Path) -> Result<Description> {
    let file = open(path)?;
    let options = ImportOptions::default();
    let layout = recognise(&[path.to_path_buf()], &options)
        .and_then(|layout| Plan::new(layout, &options).map(|plan| plan.layout))
        .map_err(|e| e.to_string());
    Ok(Description { arrays: file.arrays().to_vec(), attributes: file.attributes().to_vec(), layout })
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "arrays:")?;
        let mut told = 0;
        for (i, array) in self.arrays.iter().enumerate() {
            // Groups `0000`, `0001`, … hold the same arrays: the first of them speaks for all.
            if self.arrays[..i].iter().any(|other| without_number(&other.name) == without_number(&array.name)) {
                told += 1;
                continue;
            }
            let shape: Vec<String> = array.shape.iter().map(ToString::to_string).collect();
            writeln!(f, "  {}  [{}]  {}", array.name, shape.join(", "), array.dtype)?;
            for (name, value) in &array.attributes {
                writeln!(f, "    {name} = {}", short(value))?;
            }
        }
        if told > 0 {
            writeln!(f, "  and {told} more of the same kind in other groups")?;
        }
        if !self.attributes.is_empty() {
            writeln!(f, "attributes:")?;
        }
        for (name, value) in &self.attributes {
            writeln!(f, "  {name} = {}", short(value))?;
        }
        match &self.layout {
            Ok(layout) => write_layout(f, layout),
            Err(why) => writeln!(f, "cannot be imported as it is: {why}"),
        }
    }
}

fn write_layout(f: &mut fmt::Formatter<'_>, layout: &Layout) -> fmt::Result {
    writeln!(f, "taken for {}: {} samples", layout.name, layout.samples)?;
    for field in &layout.fields {
        writeln!(f, "  field {} from {}", field.name, field.pieces[0].array)?;
    }
    for axis in &layout.axes {
        let placement = if axis.cells { "cells" } else { "nodes" };
        let periodic = if axis.periodic { ", periodic" } else { "" };
        let (name, nodes, first, last, from) = (&axis.name, axis.nodes, axis.first, axis.last, &axis.from);
        writeln!(f, "  axis {name}: {nodes} {placement} from {first} to {last}{periodic} ({from})")?;
    }
    for scalar in &layout.scalars {
        let value = if scalar.values.len() == 1 { format!("= {}", scalar.values[0]) } else { "per sample".into() };
        writeln!(f, "  number {} {value}", scalar.name)?;
    }
    for note in &layout.notes {
        writeln!(f, "  note: {note}")?;
    }
    Ok(())
}

fn without_number(name: &str) -> &str {
    name.split_once('/').filter(|(group, _)| group.bytes().all(|b| b.is_ascii_digit())).map_or(name, |(_, rest)| rest)
}

/// A value on one line.
fn short(value: &Value) -> String {
    let text = value.to_string().replace('\n', " ");
    if text.chars().count() > 100 { format!("{}…", text.chars().take(100).collect::<String>()) } else { text }
}
