//! Running a study of fields: data, trainings side by side, evaluations, table.

use std::path::{Path, PathBuf};

use softly::error::{Error, Result};
use softly::job::Job;
use softly::{
    Config, Dataset, DatasetFolder, FieldEval, FieldEvaluator, Parameters, RunFolder, RunInfo, Trained, generate, npy,
};

use crate::fields::study::{Cell, FieldStudy, Variant};
use crate::fields::table::{FieldTable, Row};
use crate::runner::{Trainer, side_by_side};
use crate::sweep::{CellState, Selection, once, right_to};

/// Runs the study in `out`; finished parts are not run again.
pub fn run_fields(
    study: &FieldStudy,
    out: &Path,
    info: &RunInfo,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<FieldTable> {
    run_field_cells(study, out, &Selection::All, trainer, job)?;
    Run::new(study, out, &Selection::All, job)?.table(info)
}

/// Runs some cells of the study in `out`, and before them those that they are put on; finished parts are not run again, and those of
/// other processes are waited for.
pub fn run_field_cells(
    study: &FieldStudy,
    out: &Path,
    selection: &Selection,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<()> {
    study.scale.claim_folder(out, study.equation.name())?;
    let run = Run::new(study, out, selection, job)?;
    run.generate()?;
    run.begin();
    // Those on top of others after them.
    run.train(trainer, false)?;
    run.train(trainer, true)?;
    run.evaluate()
}

/// The cells of the study in the folder `out`.
pub fn field_cells(study: &FieldStudy, out: &Path) -> Vec<CellState> {
    let done = |cell: &Cell| cell.variants.iter().all(|variant| cell.result_file(out, variant).exists());
    let state = |cell: Cell| CellState { done: done(&cell), cell: cell.name, base: cell.base };
    study.cells().into_iter().map(state).collect()
}

/// A study in its folder.
struct Run<'a> {
    study: &'a FieldStudy,
    out: &'a Path,
    data: PathBuf,
    /// Those that are to be done.
    cells: Vec<(Cell, Config)>,
    /// Those that they are put on, which may be among them.
    bases: Vec<(Cell, Config)>,
    job: &'a Job<'a>,
}

impl<'a> Run<'a> {
    fn new(study: &'a FieldStudy, out: &'a Path, selection: &Selection, job: &'a Job<'a>) -> Result<Self> {
        let data = out.join("data");
        let all = study.cells();
        let configured = |cell: &Cell| Ok((cell.clone(), cell.config(study, &data)?));
        let chosen = all.iter().enumerate().filter(|(i, cell)| selection.includes(*i, &cell.name));
        let cells = chosen.map(|(_, cell)| configured(cell)).collect::<Result<Vec<_>>>()?;
        let is_base = |cell: &&Cell| cells.iter().any(|(other, _)| other.base.as_ref() == Some(&cell.name));
        let bases = all.iter().filter(is_base).map(configured).collect::<Result<Vec<_>>>()?;
        Ok(Self { study, out, data, cells, bases, job })
    }

    fn folder(&self, cell: &str) -> RunFolder {
        RunFolder::new(self.out.join(cell))
    }

    fn is_trained(&self, cell: &Cell) -> bool {
        self.folder(&cell.name).snapshot().exists()
    }

    /// How a variant is measured.
    fn eval(&self, variant: &Variant) -> FieldEval {
        if variant.full { self.study.full } else { self.study.brief }
    }

    /// Makes the data, if they are not there.
    fn generate(&self) -> Result<()> {
        let Some((_, config)) = self.cells.first() else { return Ok(()) };
        let done = || self.data.join("dataset.toml").exists();
        once(self.out, "data", self.job, done, || {
            self.job.reporter.note(&format!("generating {} + {} samples", config.data.count, config.data.valid));
            generate(&config.data, &self.data, self.job).map(|_| ())
        })
    }

    /// Says how much work there is, in denoiser calls on one sample: a training step costs about three per sample of the
    /// batch.
    fn begin(&self) {
        let (mut total, mut done) = (0, 0);
        for (cell, config) in &self.cells {
            let training = config.train.iterations * config.train.batch as u64 * 3;
            let units = |v: &Variant| self.eval(v).units(config.sampler.steps);
            total += training + cell.variants.iter().map(units).sum::<u64>();
            done += if self.is_trained(cell) { training } else { 0 };
            done += cell.variants.iter().filter(|v| cell.result_file(self.out, v).exists()).map(units).sum::<u64>();
        }
        self.job.reporter.begin(total, done);
    }

    /// Trains cells, one per core: those on top of others, or all the rest.
    fn train(&self, trainer: &Trainer<'_>, on_top: bool) -> Result<()> {
        let is_due = |cell: &Cell| cell.base.is_some() == on_top && !self.is_trained(cell);
        let mut queue: Vec<&(Cell, Config)> = self.cells.iter().filter(|(cell, _)| is_due(cell)).collect();
        for base in self.bases.iter().filter(|(cell, _)| is_due(cell)) {
            if !queue.iter().any(|(cell, _)| cell.name == base.0.name) {
                queue.push(base);
            }
        }
        side_by_side(queue, |(cell, config)| {
            let Some(_right) = right_to(self.out, &cell.name, self.job)? else { return Ok(false) };
            if self.is_trained(cell) {
                return Ok(true);
            }
            let folder = self.folder(&cell.name);
            let base = cell.base.as_ref().map(|base| self.folder(base));
            let per_step = 3 * config.train.batch as u64;
            let mut reported = 0;
            trainer(config, &folder, base.as_ref(), &mut |step| {
                self.job.reporter.advance(step.saturating_sub(reported) * per_step);
                reported = reported.max(step);
            })?;
            self.job.reporter.note(&format!("trained {} ({:.0} s)", cell.name, folder.read_info()?.seconds));
            Ok(true)
        })
    }

    /// The data, and the equation that they obey with their units.
    fn judge<'d>(&self, data: &'d Dataset) -> Result<FieldEvaluator<'d>> {
        let (_, config) = &self.cells[0];
        let truth = config.truth.as_ref().or(data.equation.as_ref()).or(config.constraint.as_ref());
        let truth = truth.ok_or_else(|| Error::input("constraint", "the study's preset has none"))?;
        FieldEvaluator::new(data, Some(truth), &data.units(&config.data)?.0)
    }

    /// Evaluates every variant that has no result yet.
    fn evaluate(&self) -> Result<()> {
        if self.cells.is_empty() {
            return Ok(());
        }
        let data = DatasetFolder::open(&self.data)?.load()?;
        let evaluator = self.judge(&data)?;
        for (cell, _) in &self.cells {
            let done = || cell.variants.iter().all(|variant| cell.result_file(self.out, variant).exists());
            once(self.out, &cell.name, self.job, done, || {
                for variant in &cell.variants {
                    let file = cell.result_file(self.out, variant);
                    if !file.exists() {
                        let row = self.measure(cell, variant, &evaluator, &data)?;
                        row.write(&file)?;
                        self.tell(&row);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The table of all results, written to the study's folder.
    fn table(&self, info: &RunInfo) -> Result<FieldTable> {
        let data = DatasetFolder::open(&self.data)?.load()?;
        let results = self.cells.iter().flat_map(|(cell, _)| cell.variants.iter().map(move |variant| (cell, variant)));
        let rows = results.map(|(cell, variant)| Row::read(&cell.result_file(self.out, variant)));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let training = |(cell, _): &(Cell, Config)| self.folder(&cell.name).read_info().map_or(0.0, |i| i.seconds);
        let cell_seconds =
            rows.iter().map(|r| r.result.seconds).sum::<f64>() + self.cells.iter().map(training).sum::<f64>();
        let mut table = FieldTable {
            study: self.study.equation,
            scale: self.study.scale,
            ablation: self.study.ablation,
            command: info.command.clone(),
            commit: info.commit.clone(),
            grid: [data.grid.rows(), data.grid.cols()],
            eval: self.study.full,
            references: self.judge(&data)?.references()?,
            verdicts: Vec::new(),
            targets: Vec::new(),
            rows,
            cell_seconds,
        };
        table.judge();
        table.write(self.out)?;
        Ok(table)
    }

    fn measure(&self, cell: &Cell, variant: &Variant, evaluator: &FieldEvaluator<'_>, data: &Dataset) -> Result<Row> {
        let folder = self.folder(&cell.name);
        let eval = self.eval(variant);
        let weights = variant.step.map_or_else(|| folder.path.clone(), |step| folder.snapshot_at(step));
        let mut trained = Trained::load_with(&weights, &variant.settings, self.job.device)?;
        let (result, kept) = eval.run(&trained, evaluator, data, self.job)?;
        let shape = [eval.keep.min(eval.samples), data.fields.len(), data.grid.rows(), data.grid.cols()];
        npy::write_f32(&cell.samples_file(self.out, variant), &shape, kept.iter().map(|&v| v as f32))?;
        let mut learned = Vec::new();
        trained.model.visit("", &mut |name, parameter| {
            if let (Some(name), [value]) = (name.strip_prefix("constraint."), &parameter.values()[..]) {
                learned.push((name.to_string(), f64::from(*value)));
            }
        });
        let config = &trained.blueprint.config;
        Ok(Row {
            method: variant.method.clone(),
            claim: variant.claim,
            seed: cell.seed,
            iterations: trained.step,
            sigma_min: config.sampler.sigma_min,
            steps: config.sampler.steps,
            learned,
            result,
            train_seconds: folder.read_info()?.seconds,
        })
    }

    /// Says what was measured.
    fn tell(&self, row: &Row) {
        let claim = self.study.equation.in_words(row.claim);
        if let Some(why) = &row.result.no_likelihood {
            self.job.reporter.note(&format!("{}, {claim}: no likelihood: {why}", row.method));
        }
        self.job.reporter.note(&format!(
            "{:22} {claim:12} seed {}: mean |R| {:.4} ({:.0} s)",
            row.method.to_string(),
            row.seed,
            row.result.metrics.mean_residual(),
            row.result.seconds
        ));
    }
}
