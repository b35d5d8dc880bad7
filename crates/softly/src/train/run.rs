//! A training in a run folder: the loop, its checkpoints and its files.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use softly_pde::algebra::Value;

use crate::error::{Error, Result};
use crate::files::{make_folder, read_text, write_text};
use crate::job::Job;
use crate::model::run_folder::{Metrics, RunFolder, RunInfo};
use crate::model::tensor_file::TensorFile;
use crate::nn::optimizer::Slot;
use crate::npy;
use crate::train::Training;

/// Trains in `folder`, or goes on with the training there, until done or stopped. Progress is counted in steps; every line of
/// metrics is noted as `loss …`.
///
/// `info` describes the run; its status and time are filled in here.
pub fn run(mut training: Training, folder: &RunFolder, mut info: RunInfo, job: &Job<'_>) -> Result<()> {
    info.dataset_hash = training.dataset.hash();
    let total = training.blueprint.config.train.iterations;
    if is_finished(&mut training, folder)? {
        job.reporter.begin(total, total);
        return Ok(());
    }
    info.seconds = folder.read_info().map_or(0.0, |before| before.seconds);
    for part in ["checkpoints", "snapshots"] {
        make_folder(&folder.path.join(part))?;
    }
    let _lock = folder.lock()?;
    if folder.checkpoint().exists() {
        training.check_base("value/", &TensorFile::read(&folder.checkpoint())?, folder)?;
        training.read_checkpoint(&folder.checkpoint())?;
    }
    write_text(&folder.config(), &training.blueprint.config.to_toml())?;
    keep_metrics_until(&folder.metrics(), training.optimizer.step)?;
    let clock = Clock { start: Instant::now(), before: info.seconds };
    let mut save_info = |status: &str| {
        info.status = status.to_string();
        info.seconds = clock.seconds();
        folder.write_info(&info)
    };
    save_info("running")?;
    append(&folder.log(), &format!("step {} of {total}: start\n", training.optimizer.step))?;
    job.reporter.begin(total, training.optimizer.step);
    if let Err(error) = steps(&mut training, folder, &clock, job) {
        save_info(if matches!(error, Error::Interrupted { .. }) { "interrupted" } else { "failed" })?;
        return Err(error);
    }
    finish(&mut training, folder)?;
    save_info("finished")
}

/// Seconds of training, over all resumptions.
struct Clock {
    start: Instant,
    before: f64,
}

impl Clock {
    fn seconds(&self) -> f64 {
        self.before + self.start.elapsed().as_secs_f64()
    }
}

/// Whether the run in `folder` is done; refuses a folder that holds something else.
fn is_finished(training: &mut Training, folder: &RunFolder) -> Result<bool> {
    if folder.config().exists() {
        if read_text(&folder.config())? != training.blueprint.config.to_toml() {
            return Err(Error::input(folder.path.display(), "this folder holds a run of another configuration")
                .hint(format!("choose another --out, or compare with {}", folder.config().display())));
        }
        if folder.snapshot().exists() {
            training.check_base("", &TensorFile::read(&folder.snapshot())?, folder)?;
            return Ok(true);
        }
    } else if folder.path.exists() && fs::read_dir(&folder.path).is_ok_and(|mut d| d.next().is_some()) {
        return Err(Error::input(folder.path.display(), "this folder is not empty and holds no run")
            .hint("choose another --out"));
    }
    Ok(false)
}

/// Takes all steps that are left, with lines of metrics and checkpoints when they are due.
fn steps(training: &mut Training, folder: &RunFolder, clock: &Clock, job: &Job<'_>) -> Result<()> {
    let train = training.blueprint.config.train.clone();
    let total = train.iterations;
    while training.optimizer.step < total {
        if let Some(line) = training.step().map_err(|error| with_checkpoint(error, folder))? {
            append(&folder.metrics(), &(serde_json::to_string(&line).expect("numbers are valid JSON") + "\n"))?;
            let seconds = clock.start.elapsed().as_secs_f64();
            append(&folder.log(), &format!("step {} loss {:.5} after {seconds:.1} s\n", line.step, line.loss))?;
            job.reporter.status(&format!("loss {:.5}", line.loss));
        }
        let step = training.optimizer.step;
        job.reporter.advance(1);
        let stopped = job.stopped();
        if step.is_multiple_of(train.checkpoint_every) || stopped {
            training.write_checkpoint(&folder.checkpoint())?;
        }
        if stopped && step < total {
            let hint = format!("step {step} of {total} is saved; run the same command again to go on");
            return Err(Error::Interrupted { hint });
        }
    }
    Ok(())
}

/// A divergence with the last good checkpoint and what to change.
fn with_checkpoint(error: Error, folder: &RunFolder) -> Error {
    let Error::Diverged { step, loss, .. } = error else { return error };
    let last = if folder.checkpoint().exists() {
        format!("the last good checkpoint is {}; ", folder.checkpoint().display())
    } else {
        String::new()
    };
    Error::Diverged { step, loss, hint: format!("{last}lower train.rate, or set train.clip") }
}

/// Writes learned fields and the snapshot.
fn finish(training: &mut Training, folder: &RunFolder) -> Result<()> {
    for (name, value) in training.learned(Slot::averaged) {
        if let Value::Field(values) = value {
            let (rows, cols) = (training.dataset.grid.rows(), training.dataset.grid.cols());
            npy::write_f64(&folder.learned(&name), &[rows, cols], values.iter().copied())?;
        }
    }
    training.finish();
    training.snapshot().write(&folder.snapshot())
}

/// Drops lines of steps that will be taken again.
fn keep_metrics_until(path: &Path, step: u64) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let text = read_text(path)?;
    let keep = |line: &&str| serde_json::from_str::<Metrics>(line).is_ok_and(|m| m.step <= step);
    let kept: String = text.lines().filter(keep).flat_map(|line| [line, "\n"]).collect();
    write_text(path, &kept)
}

fn append(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(Error::io("write", path))?;
    file.write_all(text.as_bytes()).map_err(Error::io("write", path))
}
