//! The studies of fields, end to end: Darcy flow with a wrong source and the Helmholtz equation with an uncertain wave
//! number, every method, every metric.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Layers};
use crate::dataset::Dataset;
use crate::dataset_folder::{DatasetFolder, Plan, generate};
use crate::error::{Error, Result};
use crate::field_eval::{FieldEval, FieldResult};
use crate::field_metrics::{FieldEvaluator, Reference};
use crate::files::{read_text, write_text};
use crate::generate::Trained;
use crate::npy;
use crate::paired::PairedRatio;
use crate::reporter::Reporter;
use crate::study_scale::StudyScale;
use crate::train::{RunFolder, RunInfo};

/// The equation that is studied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Equation {
    /// Darcy flow; methods are told a source of strength `flow`, which is 10 in truth.
    Darcy,
    /// The Helmholtz equation; methods are told a wave number that scatters around the true 1.
    Helmholtz,
}

impl Equation {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Darcy => "darcy",
            Self::Helmholtz => "helmholtz",
        }
    }

    /// What is varied, as tables call it.
    pub fn parameter(self) -> &'static str {
        match self {
            Self::Darcy => "f",
            Self::Helmholtz => "σ_obs",
        }
    }

    /// The value at which the constraint is right.
    pub fn truth(self) -> f64 {
        match self {
            Self::Darcy => 10.0,
            Self::Helmholtz => 0.0,
        }
    }

    /// The setting that tells a method `value`.
    fn tell(self, value: f64) -> String {
        match self {
            Self::Darcy => format!("constraint.parameters.flow={value:?}"),
            Self::Helmholtz if value == 0.0 => "constraint.parameters.k=1.0".into(),
            Self::Helmholtz => format!("constraint.parameters.k={{ normal = [1.0, {value:?}] }}"),
        }
    }
}

/// What the study consists of.
#[derive(Debug, Clone)]
pub struct FieldStudy {
    /// The equation.
    pub equation: Equation,
    /// How much of it.
    pub scale: StudyScale,
    /// Training seeds.
    pub seeds: Vec<u64>,
    /// What methods are told.
    pub told: Vec<f64>,
    /// What is measured of rows in the main table.
    pub full: FieldEval,
    /// What is measured of rows that only vary a sampler.
    pub brief: FieldEval,
}

/// One training.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Folder of the run.
    pub name: String,
    /// Method of the preset.
    pub method: &'static str,
    /// What it is told.
    pub told: f64,
    /// Training seed.
    pub seed: u64,
    /// The cell whose trained denoiser is frozen and adapted, if any.
    pub base: Option<String>,
    /// How the trained model is evaluated.
    pub variants: Vec<Variant>,
}

/// One way to sample from a trained model.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The method's name in the table.
    pub label: String,
    /// What it is told.
    pub told: f64,
    /// Settings over the run's own.
    pub settings: Vec<String>,
    /// Whether it is measured in full.
    pub full: bool,
}

impl FieldStudy {
    /// The study of `equation` at `scale`; `seeds` overrides how many seeds there are.
    pub fn new(equation: Equation, scale: StudyScale, seeds: Option<u64>) -> Self {
        let told = match (equation, scale) {
            (Equation::Darcy, StudyScale::Demo) => vec![10.0, 15.0],
            (Equation::Darcy, _) => vec![10.0, 7.5, 12.5, 15.0],
            (Equation::Helmholtz, StudyScale::Demo) => vec![0.0, 0.5],
            (Equation::Helmholtz, _) => vec![0.0, 0.05, 0.1, 0.5],
        };
        let (count, samples, likelihood) = match scale {
            StudyScale::Demo => (1, 128, 32),
            StudyScale::Cpu => (3, 128, 32),
            StudyScale::Paper => (1, 1000, 256),
        };
        let batch = 32;
        let full = FieldEval { samples, batch, likelihood, likelihood_steps: 32, loss: 128, keep: 8 };
        let brief = FieldEval { likelihood: 0, loss: 0, keep: 4, ..full };
        Self { equation, scale, seeds: (0..seeds.unwrap_or(count)).collect(), told, full, brief }
    }

    /// The preset behind the study.
    pub fn preset(&self) -> String {
        format!("{}-{}", self.equation.name(), self.scale.name())
    }

    /// Every training with its evaluations.
    pub fn cells(&self) -> Vec<Cell> {
        let truth = self.equation.truth();
        let mut cells = Vec::new();
        for &seed in &self.seeds {
            let first = seed == self.seeds[0];
            let cell = |method: &'static str, told: f64, variants: Vec<Variant>| Cell {
                name: format!("{method}-{told}-{seed}"),
                method,
                told,
                seed,
                base: None,
                variants,
            };
            let plain = |label: &str, told: f64| Variant { label: label.into(), told, settings: vec![], full: true };
            let last_steps = |label: &str, told: f64| {
                [0.005, 0.01].map(|sigma_min: f64| Variant {
                    label: format!("{label}, σ_min {sigma_min}"),
                    told,
                    settings: vec![format!("sampler.sigma_min={sigma_min:?}")],
                    full: false,
                })
            };
            let mut vanilla = vec![plain("vanilla", truth)];
            vanilla.extend(last_steps("vanilla", truth));
            for &told in &self.told {
                let tell = self.equation.tell(told);
                for scale in self.guidance() {
                    vanilla.push(Variant {
                        label: format!("dps {scale}"),
                        told,
                        // The norm of DPS: the square root of the sum of R² over nodes.
                        settings: vec![
                            tell.clone(),
                            "constraint.norm=l2".into(),
                            format!("sampler.guidance.scale={scale:?}"),
                        ],
                        full: false,
                    });
                }
                for (label, scd) in self.post_hoc() {
                    vanilla.push(Variant { label, told, settings: vec![tell.clone(), scd], full: false });
                }
            }
            cells.push(cell("vanilla", truth, vanilla));
            for &told in &self.told {
                let mut variants = vec![plain("scd", told)];
                variants.extend(last_steps("scd", told));
                cells.push(cell("scd", told, variants));
                if first {
                    let mut variants = vec![plain("pidm", told)];
                    variants.extend(last_steps("pidm", told));
                    cells.push(cell("pidm", told, variants));
                }
                let base = format!("vanilla-{truth}-{seed}");
                let adapted = |method, variants| Cell { base: Some(base.clone()), ..cell(method, told, variants) };
                cells.push(adapted("adapt", vec![plain("adapt", told)]));
                if told != truth {
                    cells.push(adapted("adapt-learn", vec![plain("adapt-learn", told)]));
                }
            }
            if first && self.scale != StudyScale::Demo {
                cells.push(cell("pidm-ddpm", truth, vec![plain("pidm-ddpm", truth)]));
                cells.push(cell("scd-paper", truth, vec![plain("scd-paper", truth)]));
                cells.push(cell("scd-unit", truth, vec![plain("scd-unit", truth)]));
            }
        }
        cells
    }

    /// Scales of the guidance sweep.
    fn guidance(&self) -> Vec<f64> {
        match self.scale {
            StudyScale::Demo => vec![1e-4],
            _ => vec![3e-5, 1e-4, 3e-4],
        }
    }

    /// Corrections with a constant γ, put on vanilla without any training: the control of every claim about SCD.
    fn post_hoc(&self) -> Vec<(String, String)> {
        let newton = match self.equation {
            Equation::Darcy => "p",
            Equation::Helmholtz => "u",
        };
        let jacobi = |gamma: f64| {
            let scd = "scale = \"jacobi\", output = \"channel\"";
            let constant = match self.equation {
                Equation::Darcy => format!("[{gamma:?}, 0.0]"),
                Equation::Helmholtz => format!("[0.0, {gamma:?}]"),
            };
            (format!("post-hoc jacobi {gamma}"), format!("denoiser.scd={{ {scd}, constant = {constant} }}"))
        };
        let step = |gamma: f64| {
            let scd = format!("directions = [\"newton\"], solve_for = \"{newton}\", constant = [{gamma:?}]");
            (format!("post-hoc newton {gamma}"), format!("denoiser.scd={{ {scd} }}"))
        };
        match self.scale {
            StudyScale::Demo => vec![jacobi(2.0), step(0.3), step(1.0)],
            _ => vec![jacobi(1.0), jacobi(2.0), step(0.15), step(0.3), step(0.6), step(1.0)],
        }
    }
}

impl Cell {
    /// The run's configuration, on the data in `data`.
    pub fn config(&self, study: &FieldStudy, data: &Path) -> Result<Config> {
        let preset = study.preset();
        let layers = Layers::new().preset(&preset)?.method(self.method)?;
        // A learned parameter starts from what the method is told.
        let tell = study.equation.tell(self.told);
        let tell = match tell.split_once('=') {
            Some((key, value)) if self.method == "adapt-learn" => format!("{key}={{ learn = {value} }}"),
            _ => tell,
        };
        let mut config = layers.set(&tell)?.finish(&preset)?;
        config.data.path = Some(data.to_path_buf());
        config.train.seed = self.seed;
        Ok(config)
    }
}

/// A row of results: one method, told one thing, with one seed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Method.
    pub method: String,
    /// What it was told.
    pub told: f64,
    /// Training seed.
    pub seed: u64,
    /// Training steps behind it.
    pub iterations: u64,
    /// Smallest noise level of the sampler.
    pub sigma_min: f64,
    /// Steps of the sampler.
    pub steps: usize,
    /// Learned constraint parameters by name.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub learned: Vec<(String, f64)>,
    /// What was measured.
    pub result: FieldResult,
    /// Seconds of training.
    pub train_seconds: f64,
}

/// The residual of one method against vanilla's on the same seeds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// Method.
    pub method: String,
    /// What it was told.
    pub told: f64,
    /// Mean |R| over seeds.
    pub residual: f64,
    /// Against vanilla's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio: Option<PairedRatio>,
    /// −log2 p per dimension less vanilla's on the same data: mean over seeds, and its standard error over data.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub likelihood_difference: Option<[f64; 2]>,
    /// In words.
    pub sentence: String,
}

/// `table.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FieldTable {
    /// `darcy` or `helmholtz`.
    pub study: String,
    /// How much of it was run.
    pub scale: String,
    /// The command line behind it.
    pub command: String,
    /// Commit of the program.
    pub commit: String,
    /// Nodes of the grid, `[rows, columns]`.
    pub grid: [usize; 2],
    /// How rows were measured.
    pub eval: FieldEval,
    /// Rows to compare with: the data, no solution, somebody else's solution.
    pub references: Vec<Reference>,
    /// Every method and seed.
    pub rows: Vec<Row>,
    /// Every method against vanilla.
    pub verdicts: Vec<Verdict>,
    /// Seconds of all trainings and evaluations, added up over cells.
    pub cell_seconds: f64,
}

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
    let result_file = |cell: &Cell, variant: &Variant| {
        let label = variant.label.replace([' ', ','], "-");
        out.join(&cell.name).join(format!("eval-{label}-{}.json", variant.told))
    };
    let trained = |cell: &Cell| RunFolder::new(out.join(&cell.name)).snapshot().exists();
    let mut total = 0;
    let mut done = 0;
    for (cell, config) in cells.iter().zip(&configs) {
        total += train_units(config) + eval_units(cell, config);
        done += if trained(cell) { train_units(config) } else { 0 };
        let finished = cell.variants.iter().filter(|v| result_file(cell, v).exists());
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
        let folder = RunFolder::new(out.join(&cell.name));
        for variant in &cell.variants {
            let file = result_file(cell, variant);
            if !file.exists() {
                let row = measure(cell, variant, eval(variant), &folder, &evaluator, &data, device, stop, reporter)?;
                write_text(&file, &(serde_json::to_string(&row).expect("numbers are valid JSON") + "\n"))?;
                reporter.note(&format!(
                    "{:22} {} = {:<5} seed {}: mean |R| {:.4} ({:.0} s)",
                    row.method,
                    study.equation.parameter(),
                    row.told,
                    row.seed,
                    row.result.metrics.residual.summary.mean,
                    row.result.seconds
                ));
            }
            rows.push(read_row(&file)?);
        }
    }
    let cell_seconds = rows.iter().map(|r| r.result.seconds).sum::<f64>()
        + cells.iter().map(|c| run_info(&RunFolder::new(out.join(&c.name))).map_or(0.0, |i| i.seconds)).sum::<f64>();
    let table = FieldTable {
        study: study.equation.name().into(),
        scale: study.scale.name().into(),
        command: info.command.clone(),
        commit: info.commit.clone(),
        grid: [data.grid.rows, data.grid.cols],
        eval: study.full,
        references: evaluator.references()?,
        verdicts: verdicts(study.equation, &rows),
        rows,
        cell_seconds,
    };
    // On one line: most of it are lists of numbers by sample and noise level.
    let text = serde_json::to_string(&table).expect("numbers are valid JSON");
    write_text(&out.join("table.json"), &(text + "\n"))?;
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
    folder: &RunFolder,
    evaluator: &FieldEvaluator<'_>,
    data: &Dataset,
    device: &Device,
    stop: &AtomicBool,
    reporter: &dyn Reporter,
) -> Result<Row> {
    let mut trained = Trained::load_with(&folder.path, &variant.settings, device)?;
    let (result, kept) = eval.run(&trained, evaluator, data, device, stop, &|units| reporter.advance(units))?;
    let label = format!("{}-{}", variant.label.replace([' ', ','], "-"), variant.told);
    let shape = [eval.keep.min(eval.samples), data.fields.len(), data.grid.rows, data.grid.cols];
    npy::write_f32(&folder.path.join(format!("samples-{label}.npy")), &shape, kept.iter().map(|&v| v as f32))?;
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
        train_seconds: run_info(folder)?.seconds,
    })
}

/// The kept samples of a row in physical units, `[keep, C, H, W]`.
pub fn kept_samples(study: &FieldStudy, out: &Path, row: &Row) -> Result<Option<Vec<f32>>> {
    let label = format!("{}-{}", row.method.replace([' ', ','], "-"), row.told);
    for cell in study.cells() {
        let path: PathBuf = out.join(&cell.name).join(format!("samples-{label}.npy"));
        if cell.seed == row.seed && path.exists() {
            return Ok(Some(npy::read(&path)?.values.into_iter().map(|v| v as f32).collect()));
        }
    }
    Ok(None)
}

fn run_info(folder: &RunFolder) -> Result<RunInfo> {
    serde_json::from_str(&read_text(&folder.info())?)
        .map_err(|e| Error::input(folder.info().display(), format!("is damaged: {e}")))
}

fn read_row(file: &Path) -> Result<Row> {
    serde_json::from_str(&read_text(file)?)
        .map_err(|e| Error::input(file.display(), format!("is damaged: {e}")).hint("delete it and run again"))
}

/// Every method against vanilla with the same seeds.
fn verdicts(equation: Equation, rows: &[Row]) -> Vec<Verdict> {
    let mut keys: Vec<(&str, f64)> = Vec::new();
    for row in rows {
        if !keys.contains(&(row.method.as_str(), row.told)) {
            keys.push((&row.method, row.told));
        }
    }
    let vanilla = |seed: u64| rows.iter().find(|r| r.method == "vanilla" && r.seed == seed);
    let verdict = |(method, told): (&str, f64)| {
        let same: Vec<&Row> = rows.iter().filter(|r| r.method == method && r.told == told).collect();
        let residual = same.iter().map(|r| r.result.metrics.residual.summary.mean).sum::<f64>() / same.len() as f64;
        let pairs: Vec<(&Row, &Row)> = same.iter().filter_map(|r| Some((*r, vanilla(r.seed)?))).collect();
        let residuals = |r: &'_ Row| -> Vec<Option<f64>> { r.result.metrics.per_sample.residual.clone() };
        let values: Vec<_> = pairs.iter().map(|(a, b)| (residuals(a), residuals(b))).collect();
        let slices: Vec<_> = values.iter().map(|(a, b)| (a.as_slice(), b.as_slice())).collect();
        let ratio = if method == "vanilla" { None } else { PairedRatio::new(&slices, 0) };
        let differences: Vec<f64> = pairs
            .iter()
            .flat_map(|(a, b)| a.result.likelihood_samples.iter().zip(&b.result.likelihood_samples))
            .map(|(a, b)| a - b)
            .collect();
        let n = differences.len() as f64;
        let likelihood_difference = (method != "vanilla" && n > 1.0).then(|| {
            let mean = differences.iter().sum::<f64>() / n;
            let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
            [mean, (variance / n).sqrt()]
        });
        let name = format!("{method} ({} = {told})", equation.parameter());
        let sentence = ratio.as_ref().map_or_else(String::new, |r| r.sentence("residual", &name, "vanilla"));
        Verdict { method: method.into(), told, residual, ratio, likelihood_difference, sentence }
    };
    keys.into_iter().map(verdict).collect()
}
