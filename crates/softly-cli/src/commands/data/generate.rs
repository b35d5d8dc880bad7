//! `softly data generate`: make a dataset.

use std::path::Path;

use burn::tensor::Device;
use serde_json::json;
use softly::error::{Error, Result};
use softly::job::Job;
use softly::{Config, DataConstraint, DatasetFolder, ResidualSummary, Split, generate, help_generate, inspect};

use super::print_statistics;
use crate::arguments::Source;
use crate::configuration::configuration;
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::{Bar, say};
use crate::ranks;

/// Samples that show how well the data obey their own equation.
const FEW: usize = 100;

/// Generates the dataset that `source` asks for in `out`, or goes on there.
pub fn run(source: &Source, out: &Path, count: Option<u64>, seed: Option<u64>, json: bool) -> Result<()> {
    let config = configuration(source)?;
    let mut data = config.data.clone();
    if let Some(path) = data.path {
        return Err(Error::input("data.path", format!("{} exists already: nothing to generate", path.display()))
            .hint("leave out data.path"));
    }
    if let Some(count) = count {
        // The same proportion of held-out samples, at least one.
        data.valid = (u128::from(count) * data.valid as u128).div_ceil(data.count as u128) as usize;
        data.count = count as usize;
    }
    data.seed = seed.unwrap_or(data.seed);
    catch_interrupt();
    let bar = Bar::new((data.count + data.valid) as u64, "samples");
    let device = Device::flex();
    let ranks = ranks::here();
    ranks.same("configuration", &Config { data: data.clone(), ..config }.to_toml())?;
    if !ranks.leads() {
        return help_generate(&data, &job(&device, &bar));
    }
    let made = generate(&data, out, &job(&device, &bar));
    bar.finish();
    if let Err(Error::Io { action: "write", .. }) = made {
        say("what is done is kept; make room and run the same command again to go on");
    }
    let folder = made?;
    let residual = own_residual(&folder, &device)?;
    let description = &folder.description;
    if json {
        print_json(&json!({
            "path": out, "train": description.train, "valid": description.valid, "hash": description.hash,
            "fields": description.fields, "residual": residual,
        }));
        return Ok(());
    }
    print(&out.display().to_string());
    print_statistics(description);
    if let Some(residual) = residual {
        say(&format!("  residual of the data in their own equation: mean |R| = {:.3e}", residual.mean_abs));
    }
    Ok(())
}

/// How well the first held-out samples obey their own equation, if they have one.
fn own_residual(folder: &DatasetFolder, device: &Device) -> Result<Option<ResidualSummary>> {
    let Some(equation) = &folder.description.equation else { return Ok(None) };
    let constraint = DataConstraint::new(equation, folder)?;
    let found = inspect(folder, Split::Valid, FEW, Some(&constraint), &Job::silent(device))?;
    Ok(found.residual)
}
