//! `softly data import`: a dataset folder from array files of other programs.

use burn::tensor::Device;
use serde_json::json;
use softly::error::Result;
use softly::format::{FieldOption, ImportOptions};
use softly::{Imported, Source, write};

use super::print_statistics;
use crate::arguments::{Import, PlacementName};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::{Bar, say};

/// Imports the files of the command line, or goes on with it.
pub fn run(arguments: &Import, json: bool) -> Result<()> {
    let source = Imported::open(&arguments.files, &options(arguments)?, arguments.valid)?;
    for note in &source.notes {
        say(note);
    }
    catch_interrupt();
    let plan = source.plan();
    let bar = Bar::new((plan.train + plan.valid) as u64, "samples");
    let device = Device::flex();
    let made = write(&source, &arguments.out, &job(&device, &bar));
    bar.finish();
    let folder = made?;
    let description = &folder.description;
    if json {
        print_json(&json!({
            "path": arguments.out, "train": description.train, "valid": description.valid, "hash": description.hash,
            "fields": description.fields, "grid": description.grid, "notes": source.notes,
        }));
        return Ok(());
    }
    print(&arguments.out.display().to_string());
    print_statistics(description);
    Ok(())
}

/// The options of the command line.
fn options(arguments: &Import) -> Result<ImportOptions> {
    let each = |texts: &[String], parse: &dyn Fn(&str) -> Result<(String, usize)>| {
        texts.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()
    };
    let axes = &arguments.axes;
    Ok(ImportOptions {
        fields: arguments.fields.iter().map(|text| FieldOption::parse(text)).collect::<Result<_>>()?,
        axes: axes.axes.clone(),
        domain: axes.domain.iter().map(|text| ImportOptions::parse_domain(text)).collect::<Result<_>>()?,
        periodic: axes.periodic.clone(),
        cells: axes.placement.map(|placement| placement == PlacementName::Cells),
        stride: each(&arguments.stride, &|text| ImportOptions::parse_count("--stride", text, 1))?,
        slice: each(&arguments.slice, &|text| ImportOptions::parse_count("--slice", text, 0))?,
        frames: arguments.frames.as_deref().map(ImportOptions::parse_frames).transpose()?,
        drop_nan: arguments.drop_nan,
    })
}
