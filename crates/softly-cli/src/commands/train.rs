//! `softly train` and `softly adapt`.

use std::path::Path;

use serde_json::json;
use softly::error::Result;
use softly::job::Reporter;
use softly::{Dataset, Layers, RunFolder, Snapshot, Training, device, snapshot_file};

use crate::arguments::Source;
use crate::configuration::{configuration, is_own, run_info, with_method_and_settings};
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::Bar;

/// Trains a model in the folder `out`, or goes on there.
pub fn train(source: &Source, out: &Path, device: &str, json: bool) -> Result<()> {
    let config = configuration(source)?;
    let training = Training::new(&config, Dataset::from_config(&config.data)?, &device::by_name(device)?)?;
    run(training, out, device, json)
}

/// Trains a soft constraint on top of the frozen denoiser `base` in the folder `out`, or goes on there.
pub fn adapt(base: &Path, source: &Source, out: &Path, device: &str, json: bool) -> Result<()> {
    let file = snapshot_file(base)?;
    let location = file.display().to_string();
    let snapshot = Snapshot::read(&file)?;
    let mut layers = Layers::new().text(&snapshot.blueprint.config.to_toml(), &location)?;
    if let Some(preset) = &source.preset {
        layers = layers.preset(preset)?;
    }
    layers = layers.adapting()?;
    if let Some(file) = &source.config {
        layers = layers.file(file)?;
    }
    if is_own(source) {
        layers = layers.over_field_defaults(&snapshot.blueprint.data.grid)?;
    }
    let location = source.config.as_ref().map_or(location, |file| file.display().to_string());
    let config = with_method_and_settings(layers, source)?.finish(&location)?;
    let dataset = Dataset::from_config(&config.data)?;
    let compute = device::by_name(device)?;
    let bar = Bar::new(0, "samples");
    bar.status("measuring the denoiser's errors");
    let training = Training::adapt_watched(&snapshot, &file, &config, dataset, &job(&compute, &bar))?;
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
