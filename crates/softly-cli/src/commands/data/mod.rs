//! `softly data`: make datasets and look at them.

mod audit_page;
mod describe;
mod export;
mod generate;
mod import;
mod inspect;

use softly::error::Result;
use softly::{Description, FieldEntry};

use crate::arguments::Data;
use crate::progress::say;

/// Runs a command on data.
pub fn run(command: Data, json: bool) -> Result<()> {
    match command {
        Data::Describe { file } => describe::run(&file, json),
        Data::Import(arguments) => import::run(&arguments, json),
        Data::Export { folder, to, out } => export::run(&folder, to, &out, json),
        Data::Generate { source, out, count, seed } => generate::run(&source, &out, count, seed, json),
        Data::Inspect { folder, config, fit, plot, report } => {
            let (config, plot, report) = (config.as_deref(), plot.as_deref(), report.as_deref());
            inspect::run(&folder, &inspect::Wishes { config, fit: &fit, plot, report }, json)
        }
    }
}

/// A field with its quantity and unit.
fn label(field: &FieldEntry) -> String {
    let unit = if matches!(field.unit.as_str(), "" | "1") { String::new() } else { format!(" [{}]", field.unit) };
    format!("{} {}{unit}", field.name, field.quantity)
}

/// Says how many samples there are, and the statistics of their fields.
fn print_statistics(description: &Description) {
    say(&format!(
        "{} training and {} held-out samples, hash {}",
        description.train, description.valid, description.hash
    ));
    for field in &description.fields {
        let s = field.statistics;
        say(&format!(
            "  {:16} mean {:.4e}  std {:.4e}  from {:.4e} to {:.4e}",
            label(field),
            s.mean,
            s.std,
            s.min,
            s.max
        ));
    }
}
