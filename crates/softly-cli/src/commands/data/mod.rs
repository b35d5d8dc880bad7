//! `softly data`: make datasets and look at them.

mod generate;
mod inspect;

use softly::FieldEntry;
use softly::error::Result;

use crate::arguments::Data;

/// Runs a command on data.
pub fn run(command: Data, json: bool) -> Result<()> {
    match command {
        Data::Generate { source, out, count, seed } => generate::run(&source, &out, count, seed, json),
        Data::Inspect { folder, config, plot } => inspect::run(&folder, config.as_deref(), plot.as_deref(), json),
    }
}

/// A field with its quantity and unit.
fn label(field: &FieldEntry) -> String {
    let unit = if matches!(field.unit.as_str(), "" | "1") { String::new() } else { format!(" [{}]", field.unit) };
    format!("{} {}{unit}", field.name, field.quantity)
}
