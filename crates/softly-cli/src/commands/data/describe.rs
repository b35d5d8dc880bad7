//! `softly data describe`: what is in a file, and what it is taken for.

use std::path::Path;

use serde_json::{Map, Value, json};
use softly::error::Result;
use softly::format::{self, ArrayInfo, Layout, Value as Note};

use crate::output::{print, print_json};

/// Prints the arrays and attributes of `file` and its layout.
pub fn run(file: &Path, json: bool) -> Result<()> {
    let description = format::describe(file)?;
    if !json {
        print(description.to_string().trim_end());
        return Ok(());
    }
    let (layout, problem) = match &description.layout {
        Ok(layout) => (Some(layout_json(layout)), None),
        Err(why) => (None, Some(why)),
    };
    print_json(&json!({
        "arrays": description.arrays.iter().map(array_json).collect::<Vec<_>>(),
        "attributes": notes_json(&description.attributes),
        "layout": layout,
        "problem": problem,
    }));
    Ok(())
}

fn array_json(array: &ArrayInfo) -> Value {
    json!({
        "name": array.name, "shape": array.shape, "type": array.dtype.to_string(),
        "attributes": notes_json(&array.attributes),
    })
}

fn notes_json(notes: &[(String, Note)]) -> Value {
    let value = |note: &Note| match note {
        Note::Numbers(numbers) => json!(numbers),
        Note::Texts(texts) => json!(texts),
    };
    notes.iter().map(|(name, note)| (name.clone(), value(note))).collect::<Map<_, _>>().into()
}

fn layout_json(layout: &Layout) -> Value {
    let axes = layout.axes.iter().map(|axis| {
        json!({
            "name": axis.name, "nodes": axis.nodes, "first": axis.first, "last": axis.last, "periodic": axis.periodic,
            "placement": if axis.cells { "cells" } else { "nodes" },
        })
    });
    json!({
        "name": layout.name,
        "fields": layout.fields.iter().map(|f| &f.name).collect::<Vec<_>>(),
        "axes": axes.collect::<Vec<_>>(),
        "scalars": layout.scalars.iter().map(|s| &s.name).collect::<Vec<_>>(),
        "samples": layout.samples,
        "notes": layout.notes,
    })
}
