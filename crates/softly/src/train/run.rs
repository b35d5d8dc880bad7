//! A training in a run folder: the loop, its checkpoints and its files.

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use softly_pde::algebra::Value;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::{make_folder, read_text, remove_leftovers, write_text, writer_of};
use crate::job::Job;
use crate::model::run_folder::{Metrics, RunFolder, RunInfo, chained};
use crate::model::snapshot::Snapshot;
use crate::model::tensor_file::TensorFile;
use crate::npy;
use crate::train::Training;
use crate::train::checkpoint::{fingerprint, fingerprint_of_config};

/// The folders in a run folder.
const PARTS: [&str; 2] = ["checkpoints", "snapshots"];

/// A checkpoint is never older than that and one step.
const LONGEST_LOSS: Duration = Duration::from_mins(1);

/// Trains in `folder`, or goes on with the training there, until done or stopped. A finished training goes on, too, if the
/// configuration asks for more steps than it had and else is the same. Progress is counted in steps; every line of
/// metrics is noted as `loss …`. Of several ranks only the first reads and writes the folder.
///
/// `info` describes the run; its status and time are filled in here.
pub fn run(mut training: Training, folder: &RunFolder, info: RunInfo, job: &Job<'_>) -> Result<()> {
    let ranks = training.ranks;
    training.check_ranks(&info)?;
    let mut files = if ranks.leads() { Files::open(&mut training, folder, info, job)? } else { None };
    if ranks.any(ranks.leads() && files.is_none())? {
        return Ok(());
    }
    training.share()?;
    let outcome = steps(&mut training, folder, files.as_ref(), job);
    let Some(files) = &mut files else { return outcome };
    if let Err(error) = outcome {
        files.save_info(if matches!(error, Error::Interrupted { .. }) { "interrupted" } else { "failed" })?;
        return Err(error);
    }
    finish(&mut training, folder)?;
    files.save_info("finished")
}

/// A run folder that this process writes.
struct Files<'a> {
    folder: &'a RunFolder,
    info: RunInfo,
    clock: Clock,
    /// Until it is dropped, no other process trains here.
    _lock: File,
}

impl<'a> Files<'a> {
    /// Prepares the folder and brings the training to the state in which it was left there; `None` if it is finished.
    fn open(training: &mut Training, folder: &'a RunFolder, mut info: RunInfo, job: &Job<'_>) -> Result<Option<Self>> {
        info.dataset_hash.clone_from(&training.blueprint.data.hash);
        info.fit.clone_from(&training.fit);
        let total = training.blueprint.config.train.iterations;
        if is_finished(training, folder)? {
            job.reporter.begin(total, total);
            remove_leftovers(&folder.path);
            for part in PARTS {
                remove_leftovers(&folder.path.join(part));
            }
            folder.note_finished()?;
            return Ok(None);
        }
        info.seconds = folder.read_info().map_or(0.0, |before| before.seconds);
        fs::create_dir_all(&folder.path).map_err(Error::io("create", &folder.path))?;
        let lock = folder.lock()?;
        // Under the lock, for the temporary files of another process are removed.
        make_folder(&folder.path)?;
        for part in PARTS {
            make_folder(&folder.path.join(part))?;
        }
        if folder.checkpoint().exists() {
            let file = TensorFile::read(&folder.checkpoint())?;
            let text = |key| file.text(key, &folder.checkpoint());
            check_fingerprint(text("configuration")?, training, &folder.checkpoint())?;
            check_data(text("dataset")?, training, folder)?;
            training.check_base("value/", &file, folder)?;
            training.read_checkpoint(&folder.checkpoint())?;
        }
        write_text(&folder.config(), &config_text(&training.blueprint.config, folder))?;
        let history = keep_metrics_until(&folder.metrics(), training.optimizer.step)?;
        let same_metrics = history == training.history;
        training.history = history;
        let clock = Clock { start: Instant::now(), before: info.seconds };
        let mut files = Self { folder, info, clock, _lock: lock };
        files.save_info("running")?;
        append(&folder.log(), &format!("step {} of {total}: start\n", training.optimizer.step))?;
        job.reporter.begin(total, training.optimizer.step);
        if !same_metrics {
            job.reporter.note(&format!(
                "{}: lines up to step {} were changed or lost since the checkpoint was written; the weights do not depend on them",
                folder.metrics().display(),
                training.optimizer.step
            ));
        }
        let (samples, batch) = (training.dataset.train_count(), training.blueprint.config.train.batch);
        if samples < batch {
            job.reporter.note(&format!(
                "the data have {samples} training samples, fewer than a batch of {batch}: every batch repeats them; set train.batch \
                 to {samples} or less, or get more samples"
            ));
        }
        Ok(Some(files))
    }

    fn save_info(&mut self, status: &str) -> Result<()> {
        self.info.status = status.to_string();
        self.info.seconds = self.clock.seconds();
        self.folder.write_info(&self.info)
    }

    fn add_line(&self, line: &Metrics) -> Result<()> {
        append(&self.folder.metrics(), &line.line())?;
        let seconds = self.clock.start.elapsed().as_secs_f64();
        append(&self.folder.log(), &format!("step {} loss {:.5} after {seconds:.1} s\n", line.step, line.loss))
    }
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

/// The configuration as a run folder has it: its paths lead from the folder.
fn config_text(config: &Config, folder: &RunFolder) -> String {
    config.clone().for_folder(&folder.path).to_toml()
}

/// Whether the run in `folder` is done; refuses a folder that holds something else.
fn is_finished(training: &mut Training, folder: &RunFolder) -> Result<bool> {
    if folder.config().exists() {
        check_config(&training.blueprint.config, folder).map_err(|error| match folder.read_info() {
            // Other data have other units and another sigma_data: the cause is said, not its effect.
            Ok(before) if before.dataset_hash != training.blueprint.data.hash => other_data(folder),
            _ => error,
        })?;
        if folder.snapshot().exists() {
            let file = folder.snapshot();
            let Snapshot { blueprint, step, .. } = Snapshot::read(&file)?;
            check_fingerprint(&fingerprint_of_config(&blueprint.config, &file), training, &file)?;
            check_data(&fingerprint(&blueprint.data.to_json()), training, folder)?;
            training.check_base("", &TensorFile::read(&file)?, folder)?;
            let finished = step >= training.blueprint.config.train.iterations;
            if !finished && !folder.checkpoint().exists() {
                let problem = format!("the run has {step} steps and no checkpoint to go on from");
                return Err(Error::input(folder.checkpoint().display(), problem)
                    .hint("put the checkpoint back, or train anew with another --out"));
            }
            return Ok(finished);
        }
    } else if fs::read_dir(&folder.path).is_ok_and(|mut entries| entries.any(|e| !e.is_ok_and(|e| is_begun(&e)))) {
        return Err(Error::input(folder.path.display(), "this folder is not empty and holds no run")
            .hint("choose another --out"));
    }
    Ok(false)
}

/// Refuses a checkpoint or a snapshot whose configuration has another fingerprint, for another seed for example.
fn check_fingerprint(before: &str, training: &Training, file: &Path) -> Result<()> {
    if before == fingerprint_of_config(&training.blueprint.config, file) {
        return Ok(());
    }
    Err(Error::input(file.display(), "the file belongs to a run of another configuration than config.toml says")
        .hint("put the run's own file back, or choose another --out"))
}

/// Refuses to go on with a run on data whose description (hash, axes, units) has another fingerprint.
fn check_data(before: &str, training: &Training, folder: &RunFolder) -> Result<()> {
    if before == fingerprint(&training.blueprint.data.to_json()) { Ok(()) } else { Err(other_data(folder)) }
}

fn other_data(folder: &RunFolder) -> Error {
    Error::input(folder.path.display(), "this folder holds a run on other data: their numbers, axes or units differ")
        .hint("choose another --out, or go on with the same data")
}

/// Refuses another configuration than the run in `folder` has, unless it only asks for more steps.
fn check_config(config: &Config, folder: &RunFolder) -> Result<()> {
    let found = read_text(&folder.config())?;
    if found == config_text(config, folder) {
        return Ok(());
    }
    let before: Option<u64> = toml::from_str::<toml::Table>(&found).ok().and_then(|table| {
        let iterations = table.get("train")?.get("iterations")?.as_integer()?;
        u64::try_from(iterations).ok()
    });
    let with_steps = |iterations| {
        let mut config = config.clone();
        config.train.iterations = iterations;
        config_text(&config, folder)
    };
    match before {
        Some(before) if with_steps(before) == found => {
            if before < config.train.iterations {
                return Ok(());
            }
            let problem = format!("the run has {before} steps already, train.iterations asks for fewer");
            Err(Error::input(folder.path.display(), problem).hint("choose another --out"))
        }
        _ => Err(Error::input(folder.path.display(), "this folder holds a run of another configuration")
            .hint(format!("choose another --out, or compare with {}", folder.config().display()))),
    }
}

/// Whether an entry of a folder is all that a training leaves that was killed before it wrote its configuration.
fn is_begun(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    let part = PARTS.iter().any(|part| name == *part) && empty(&entry.path());
    part || name == "log.txt" || writer_of(&name).is_some()
}

/// Takes all steps that are left, with lines of metrics and checkpoints when they are due. All ranks stop at the same step.
fn steps(training: &mut Training, folder: &RunFolder, files: Option<&Files<'_>>, job: &Job<'_>) -> Result<()> {
    let train = training.blueprint.config.train.clone();
    let total = train.iterations;
    let mut saved = Instant::now();
    while training.optimizer.step < total {
        let line = training.step().map_err(|error| with_checkpoint(error, folder))?;
        if let (Some(line), Some(files)) = (line, files) {
            files.add_line(&line)?;
            job.reporter.status(&format!("loss {:.5}", line.loss));
        }
        let step = training.optimizer.step;
        job.reporter.advance(1);
        let wanted = train.snapshot_every.is_some_and(|every| step.is_multiple_of(every));
        if let Some(files) = files.filter(|_| wanted) {
            training.snapshot().write(&files.folder.snapshot_at(step))?;
        }
        let stopped = training.ranks.any(job.stopped())?;
        // The last step's serves those who want more steps later.
        let due = is_checkpoint_due(step, train.checkpoint_every, saved.elapsed()) || step == total || stopped;
        if let Some(files) = files.filter(|_| due) {
            training.write_checkpoint(&files.folder.checkpoint())?;
            saved = Instant::now();
        }
        if stopped && step < total {
            let hint = format!("step {step} of {total} is saved; run the same command again to go on");
            return Err(Error::Interrupted { hint });
        }
    }
    Ok(())
}

/// Whether a checkpoint is due at `step`, `age` after the last one.
fn is_checkpoint_due(step: u64, every: u64, age: Duration) -> bool {
    step.is_multiple_of(every) || age > LONGEST_LOSS
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
    for (name, value) in training.learned() {
        if let Value::Field(values) = value {
            let (rows, cols) = (training.dataset.grid.rows(), training.dataset.grid.cols());
            npy::write_f64(&folder.learned(&name), &[rows, cols], values.iter().copied())?;
        }
    }
    training.snapshot().write(&folder.snapshot())
}

/// Drops lines of steps that will be taken again, and a last one that was not written to its end. Any other line that is not
/// one of metrics is refused. Returns the fingerprint of those that are kept.
fn keep_metrics_until(path: &Path, step: u64) -> Result<String> {
    let mut history = String::new();
    if !path.exists() {
        return Ok(history);
    }
    let text = read_text(path)?;
    let mut kept = String::new();
    for (i, line) in text.split_inclusive('\n').enumerate() {
        match serde_json::from_str::<Metrics>(line) {
            Ok(metrics) if metrics.step > step => {}
            Ok(_) if line.ends_with('\n') => {
                kept.push_str(line);
                history = chained(&history, line);
            }
            _ if !line.ends_with('\n') => {}
            _ => {
                let problem = format!("line {} is damaged: expected metrics of a step as JSON", i + 1);
                return Err(Error::input(path.display(), problem)
                    .hint("repair or delete that line, or delete the folder and train again"));
            }
        }
    }
    write_text(path, &kept)?;
    Ok(history)
}

fn append(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(Error::io("write", path))?;
    file.write_all(text.as_bytes()).map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_due_by_steps_and_by_time() {
        assert!(is_checkpoint_due(200, 100, Duration::ZERO));
        assert!(!is_checkpoint_due(250, 100, Duration::from_secs(59)));
        assert!(is_checkpoint_due(250, 100, Duration::from_secs(61)));
    }
}
