//! `softly data import`: a dataset folder from array files of other programs, or from a folder that a user wrote.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::json;
use softly::error::{Error, Result};
use softly::format::{FieldOption, ImportOptions};
use softly::{DatasetFolder, HandMade, Imported, complete, write};

use super::print_statistics;
use crate::arguments::{Import, PlacementName};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::{Bar, say};

/// Imports the files of the command line, or goes on with it.
pub fn run(arguments: &Import, json: bool) -> Result<()> {
    let (folder, mut notes) = import(arguments)?;
    let remarks = folder.description.remarks();
    for remark in &remarks {
        say(&format!("warning: {remark}"));
    }
    notes.extend(remarks);
    let description = &folder.description;
    if json {
        print_json(&json!({
            "path": folder.path, "train": description.train, "valid": description.valid, "hash": description.hash,
            "fields": description.fields, "grid": description.grid, "constants": description.constants, "notes": notes,
        }));
        return Ok(());
    }
    print(&folder.path.display().to_string());
    print_statistics(description);
    Ok(())
}

/// The dataset and what a user should know of how it was made.
fn import(arguments: &Import) -> Result<(DatasetFolder, Vec<String>)> {
    let (options, valid) = (options(arguments)?, arguments.valid);
    let bar = Bar::new(0, "samples");
    let device = Device::flex();
    let job = job(&device, &bar);
    let folder = folder_of(&arguments.files)?;
    let result = match (folder, &arguments.out) {
        (Some(folder), out) if out.as_ref().is_none_or(|out| is_same(folder, out)) => {
            catch_interrupt();
            complete(folder, &options, valid, &job).inspect(|(_, notes)| notes.iter().for_each(|note| say(note)))
        }
        (_, None) => {
            return Err(Error::input("--out", "expected a folder for the dataset, found none").hint("add --out DIR"));
        }
        (folder, Some(out)) => {
            let source = match folder {
                Some(folder) => Imported::of_folder(&HandMade::open(folder)?, &options, valid)?,
                None => Imported::open(&arguments.files, &options, valid)?,
            };
            source.notes.iter().for_each(|note| say(note));
            catch_interrupt();
            write(&source, out, &job).map(|made| (made, source.notes))
        }
    };
    bar.finish();
    result
}

/// The folder among `files`, if there is one; it must be alone.
fn folder_of(files: &[PathBuf]) -> Result<Option<&Path>> {
    match files {
        [only] if only.is_dir() => Ok(Some(only)),
        _ => match files.iter().find(|file| file.is_dir()) {
            Some(folder) => Err(Error::input(folder.display(), "expected one folder or several files, found both")),
            None => Ok(None),
        },
    }
}

fn is_same(a: &Path, b: &Path) -> bool {
    a == b || matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// The options of the command line.
fn options(arguments: &Import) -> Result<ImportOptions> {
    let each = |texts: &[String], parse: &dyn Fn(&str) -> Result<(String, usize)>| {
        texts.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()
    };
    let axes = &arguments.axes;
    let scalars = arguments.scalars.clone().map(|names| if names == ["none"] { Vec::new() } else { names });
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
        scalars,
    })
}
