//! Running a study of fields: data, trainings side by side, evaluations, table.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;

use crate::fields::study::{Cell, FieldStudy, Variant};
use crate::fields::table::{FieldTable, Row};
use softly::error::{Error, Result};
use softly::files::read_text;
use softly::job::Reporter;
use softly::{
    Config, Dataset, DatasetFolder, FieldEval, FieldEvaluator, Plan, RunFolder, RunInfo, Trained, generate, npy,
};

/// Trains a configuration in a run folder, or goes on there, and tells the step it has reached; with a base, freezes its
/// denoiser and trains the rest. It is called from several threads at once.
pub type Trainer<'a> = dyn Fn(&Config, &RunFolder, Option<&RunFolder>, &mut dyn FnMut(u64)) -> Result<()> + Sync + 'a;

/// Runs the study in `out`; finished parts are not run again.
pub fn run(
    study: &FieldStudy,
    out: &Path,
    device: &Device,
    info: &RunInfo,
    trainer: &Trainer<'_>,
    stop: &AtomicBool,
    reporter: &dyn Reporter,
) -> Result<FieldTable> {
    study.scale.claim_folder(out, study.equation.name())?;
    let data_folder = out.join("data");
    let cells = study.cells();
    let configs = cells.iter().map(|cell| cell.config(study, &data_folder)).collect::<Result<Vec<_>>>()?;
    let first = &configs[0];
    if !data_folder.join("dataset.toml").exists() {
        reporter.note(&format!("generating {} + {} samples", first.data.count, first.data.valid));
        let generator = first.data.generator.clone();
        let plan = Plan { train: first.data.count, valid: first.data.valid, seed: first.data.seed, generator };
        generate(&plan, &data_folder, stop, reporter)?;
    }

    // A training step costs about as much as this many denoiser calls per sample of the batch.
    let train_units = |config: &Config| config.train.iterations * config.train.batch as u64 * 3;
    let eval = |variant: &Variant| if variant.full { study.full } else { study.brief };
    let eval_units = |cell: &Cell, config: &Config| -> u64 {
        cell.variants.iter().map(|v| eval(v).units(config.sampler.steps)).sum()
    };
    let trained = |cell: &Cell| RunFolder::new(out.join(&cell.name)).snapshot().exists();
    let mut total = 0;
    let mut done = 0;
    for (cell, config) in cells.iter().zip(&configs) {
        total += train_units(config) + eval_units(cell, config);
        done += if trained(cell) { train_units(config) } else { 0 };
        let finished = cell.variants.iter().filter(|v| cell.result_file(out, v).exists());
        done += finished.map(|v| eval(v).units(config.sampler.steps)).sum::<u64>();
    }
    reporter.begin(total, done);

    // Trainings first, one per core; those on top of others after them.
    for adapted in [false, true] {
        let queue: Vec<(&Cell, &Config)> =
            cells.iter().zip(&configs).filter(|(cell, _)| cell.base.is_some() == adapted && !trained(cell)).collect();
        in_parallel(queue, |(cell, config)| {
            let folder = RunFolder::new(out.join(&cell.name));
            let base = cell.base.as_ref().map(|base| RunFolder::new(out.join(base)));
            let per_step = 3 * config.train.batch as u64;
            let mut reported = 0;
            trainer(config, &folder, base.as_ref(), &mut |step| {
                reporter.advance(step.saturating_sub(reported) * per_step);
                reported = reported.max(step);
            })?;
            reporter.note(&format!("trained {} ({:.0} s)", cell.name, run_info(&folder)?.seconds));
            Ok(())
        })?;
    }

    let data = DatasetFolder::open(&data_folder)?.load()?;
    let truth = first.truth.as_ref().or(first.constraint.as_ref());
    let truth = truth.ok_or_else(|| Error::input("constraint", "the study's preset has none"))?;
    let (units, _) = data.units(first);
    let evaluator = FieldEvaluator::new(&data, truth, Some(&first.data.generator), &units)?;
    let mut rows = Vec::new();
    for cell in &cells {
        for variant in &cell.variants {
            let file = cell.result_file(out, variant);
            if !file.exists() {
                let row = measure(cell, variant, eval(variant), out, &evaluator, &data, device, stop, reporter)?;
                row.write(&file)?;
                if let Some(why) = &row.result.no_likelihood {
                    reporter.note(&format!("{}, {}: no likelihood: {why}", row.method, study.equation.told(row.told)));
                }
                reporter.note(&format!(
                    "{:22} {:12} seed {}: mean |R| {:.4} ({:.0} s)",
                    row.method,
                    study.equation.told(row.told),
                    row.seed,
                    row.result.metrics.residual.summary.mean,
                    row.result.seconds
                ));
            }
            rows.push(Row::read(&file)?);
        }
    }
    let cell_seconds = rows.iter().map(|r| r.result.seconds).sum::<f64>()
        + cells.iter().map(|c| run_info(&RunFolder::new(out.join(&c.name))).map_or(0.0, |i| i.seconds)).sum::<f64>();
    let mut table = FieldTable {
        study: study.equation,
        scale: study.scale,
        ablation: study.ablation,
        command: info.command.clone(),
        commit: info.commit.clone(),
        grid: [data.grid.rows, data.grid.cols],
        eval: study.full,
        references: evaluator.references()?,
        verdicts: Vec::new(),
        targets: Vec::new(),
        rows,
        cell_seconds,
    };
    table.judge();
    table.write(out)?;
    Ok(table)
}

/// Works off `queue` with one worker per core. A failure stops the rest after their current item.
fn in_parallel<T: Send + Copy>(queue: Vec<T>, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let queue = Mutex::new(queue.into_iter());
    let worker = || -> Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(item) = next else { return Ok(()) };
            work(item)?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..rayon::current_num_threads().max(1)).map(|_| scope.spawn(worker)).collect();
        let join = |w: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

#[allow(clippy::too_many_arguments)]
fn measure(
    cell: &Cell,
    variant: &Variant,
    eval: FieldEval,
    out: &Path,
    evaluator: &FieldEvaluator<'_>,
    data: &Dataset,
    device: &Device,
    stop: &AtomicBool,
    reporter: &dyn Reporter,
) -> Result<Row> {
    let folder = RunFolder::new(out.join(&cell.name));
    let mut trained = Trained::load_with(&folder.path, &variant.settings, device)?;
    let (result, kept) = eval.run(&trained, evaluator, data, device, stop, &|units| reporter.advance(units))?;
    let shape = [eval.keep.min(eval.samples), data.fields.len(), data.grid.rows, data.grid.cols];
    npy::write_f32(&cell.samples_file(out, variant), &shape, kept.iter().map(|&v| v as f32))?;
    let mut learned = Vec::new();
    trained.model.denoiser.visit("", &mut |name, parameter| {
        if let (Some(name), [value]) = (name.strip_prefix("constraint."), &parameter.values()[..]) {
            learned.push((name.to_string(), f64::from(*value)));
        }
    });
    let config = &trained.blueprint.config;
    Ok(Row {
        method: variant.label.clone(),
        told: variant.told,
        seed: cell.seed,
        iterations: trained.step,
        sigma_min: config.sampler.sigma_min,
        steps: config.sampler.steps,
        learned,
        result,
        train_seconds: run_info(&folder)?.seconds,
    })
}

fn run_info(folder: &RunFolder) -> Result<RunInfo> {
    serde_json::from_str(&read_text(&folder.info())?)
        .map_err(|e| Error::input(folder.info().display(), format!("is damaged: {e}")))
}
