//! `softly train` and `softly adapt`.

use std::path::Path;

use serde_json::json;
use softly::error::Result;
use softly::job::Reporter;
use softly::{Blueprint, ConfigSource, Dataset, RunFolder, Snapshot, Training, device, snapshot_file};

use crate::arguments::Source;
use crate::configuration::{configuration, run_info};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::Bar;

/// Trains a model in the folder `out`, or goes on there.
pub fn train(source: &Source, out: &Path, device: &str, json: bool) -> Result<()> {
    let config = configuration(source)?;
    let (compute, bar) = (device::by_name(device)?, Bar::new(0, "samples"));
    let training = Training::begin(&config, Dataset::from_config(&config.data)?, &job(&compute, &bar))?;
    bar.finish();
    run(training, out, device, json)
}

/// Trains a soft constraint on top of the frozen denoiser `base` in the folder `out`, or goes on there.
pub fn adapt(base: &Path, source: &Source, out: &Path, device: &str, json: bool) -> Result<()> {
    let file = snapshot_file(base)?;
    let location = file.display().to_string();
    let snapshot = Snapshot::read(&file)?;
    let Blueprint { config, data } = &snapshot.blueprint;
    let config = ConfigSource::from(source).adapting(config, &location, &data.grid)?;
    let dataset = Dataset::from_config(&config.data)?;
    let compute = device::by_name(device)?;
    let bar = Bar::new(0, "samples");
    bar.status("measuring the denoiser's errors");
    let training = Training::adapt_watched(&snapshot, &file, None, &config, dataset, &job(&compute, &bar))?;
    bar.finish();
    run(training, out, device, json)
}

/// Runs a training with a progress bar.
fn run(training: Training, out: &Path, device: &str, json: bool) -> Result<()> {
    let train = training.blueprint.config.train.clone();
    catch_interrupt();
    let bar = Bar::new(train.iterations, "steps");
    let folder = RunFolder::new(out);
    let compute = device::by_name(device)?;
    softly::run(training, &folder, run_info(train.seed, device), &job(&compute, &bar))?;
    bar.finish();
    if json {
        print_json(&json!({ "run": out, "snapshot": folder.snapshot(), "iterations": train.iterations }));
    } else {
        print(&folder.snapshot().display().to_string());
    }
    Ok(())
}
