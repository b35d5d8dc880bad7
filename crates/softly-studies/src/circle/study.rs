//! The toy study, end to end: every method on every curve, with the unit circle as the (often wrong) constraint.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_3, FRAC_PI_4};
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use softly::error::{Error, Result};
use softly::files::{read_record, write_record, write_text};
use softly::job::{Job, Scaled};
use softly::random::{Purpose, Stream};
use softly::statistics::{AtLevel, Summary, log_spaced};
use softly::tensors::to_vec_f64;
use softly::{
    Config, Draw, GeneratorConfig, Layers, PointEval, PointMetrics, Points, RunFolder, RunInfo, Shape,
    Trained as Model, Truth, cloud, is_reduced, npy,
};

use crate::method::{Kind, Method, Trained};
use crate::paper;
use crate::runner::{Trainer, side_by_side};
use crate::scale::StudyScale;
use crate::sweep::{CellState, Selection, right_to};

/// What the study consists of.
#[derive(Debug, Clone)]
pub struct CircleStudy {
    /// How much of it.
    pub scale: StudyScale,
    /// Training seeds.
    pub seeds: Vec<u64>,
    /// Name and curve of each data set.
    pub curves: Vec<(&'static str, Shape)>,
    /// Trained methods, by their name in the preset.
    pub methods: Vec<Trained>,
    /// Guidance scales of DPS on the vanilla model.
    pub guidance: Vec<f64>,
    /// Estimates per cell.
    pub sets: usize,
    /// Samples per estimate.
    pub points: usize,
}

impl CircleStudy {
    /// The study at `scale`; `seeds` overrides how many seeds there are.
    pub fn new(scale: StudyScale, seeds: Option<u64>) -> Self {
        use Trained::{Pidm, PidmDdpm, Scd, ScdPaper, ScdTuned, Vanilla, VanillaTuned};
        let chop = |alpha| Shape::Chop { alpha };
        let three = vec![("circle", Shape::Circle), ("dent", Shape::Dent), ("chop-pi2", chop(FRAC_PI_2))];
        let five = || {
            let mut curves = three.clone();
            curves.extend([("chop-pi4", chop(FRAC_PI_4)), ("chop-pi3", chop(FRAC_PI_3))]);
            curves
        };
        let guidance = vec![0.01, 0.05, 0.2, 0.5];
        let (seed_count, curves, methods, guidance, sets) = match scale {
            StudyScale::Demo => (1, three[..2].to_vec(), vec![Vanilla, Scd, Pidm], vec![0.2], 5),
            StudyScale::Cpu | StudyScale::Long => {
                (3, three, vec![Vanilla, Scd, ScdPaper, Pidm, PidmDdpm], guidance, 10)
            }
            StudyScale::Paper => {
                let methods = vec![Vanilla, Scd, ScdPaper, Pidm, PidmDdpm, VanillaTuned, ScdTuned];
                (3, five(), methods, guidance, 20)
            }
        };
        let (sets, points) = if is_reduced() { (2, 50) } else { (sets, 1000) };
        Self { scale, seeds: (0..seeds.unwrap_or(seed_count)).collect(), curves, methods, guidance, sets, points }
    }

    /// Every cell of the table.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &seed in &self.seeds {
            for &(data, curve) in &self.curves {
                let sweep = ["chop-pi4", "chop-pi3"].contains(&data);
                // The sweep over the angle is about the methods, not about the learning rate.
                let methods = self
                    .methods
                    .iter()
                    .filter(|method| !(sweep && matches!(method, Trained::VanillaTuned | Trained::ScdTuned)));
                for &method in methods {
                    let name = format!("{data}-{}-{seed}", method.name());
                    let guidance = if method == Trained::Vanilla { self.guidance.clone() } else { Vec::new() };
                    cells.push(Cell { name, data, curve, method, seed, guidance, sweep });
                }
            }
        }
        cells
    }

    /// The cells in the folder `out`.
    pub fn states(&self, out: &Path) -> Vec<CellState> {
        let state = |cell: Cell| CellState { done: result_file(out, &cell).exists(), cell: cell.name, base: None };
        self.cells().into_iter().map(state).collect()
    }

    /// Work of a cell's evaluations, in training steps.
    fn eval_units(&self, cell: &Cell) -> u64 {
        (1 + GUIDED * cell.guidance.len() as u64) * self.sets as u64 * SET_UNITS
    }

    /// How a model of `curve` is measured.
    fn eval(&self, curve: Shape) -> PointEval {
        PointEval { curve, noise: 0.0, sets: self.sets, points: self.points }
    }

    /// The preset behind the study.
    pub fn preset(&self) -> String {
        format!("circle-{}", self.scale.name())
    }
}

/// One training with its evaluations.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Folder of the run.
    pub name: String,
    /// Data set.
    pub data: &'static str,
    /// Its curve.
    pub curve: Shape,
    /// Method of the preset.
    pub method: Trained,
    /// Training seed.
    pub seed: u64,
    /// Guidance scales to evaluate the model with, besides none.
    pub guidance: Vec<f64>,
    /// Whether it belongs to the sweep over the chop's angle, not to the main table.
    pub sweep: bool,
}

impl Cell {
    /// The run's configuration.
    pub fn config(&self, preset: &str) -> Result<Config> {
        let mut config = Layers::new().preset(preset)?.method(self.method.name())?.finish(preset)?;
        config.data.generator = Some(GeneratorConfig::Points(Points { curve: self.curve, noise: 0.0 }));
        config.train.seed = self.seed;
        Ok(config)
    }
}

/// A row of results: one method on one data set with one seed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Data set.
    pub data: String,
    /// Method.
    pub method: Method,
    /// Training seed.
    pub seed: u64,
    /// Training steps behind it.
    pub iterations: u64,
    /// Learning rate.
    pub rate: f64,
    /// Metrics over the sets.
    pub metrics: PointMetrics<Summary>,
    /// Seconds of training.
    pub train_seconds: f64,
    /// Seconds of sampling and measuring.
    pub eval_seconds: f64,
}

/// What a cell leaves in `eval.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CellResult {
    /// One row, and one more per guidance scale.
    pub rows: Vec<Row>,
    /// γ(σ), for softly constrained models.
    pub gamma: Vec<AtLevel>,
}

/// What true points score: the floor of every metric at this number of points.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Floor {
    /// Data set.
    pub data: String,
    /// Metrics of true points against other true points.
    pub metrics: PointMetrics<Summary>,
}

/// `table.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StudyTable {
    /// `circle`.
    pub study: String,
    /// How much of it was run.
    pub scale: String,
    /// The command line behind it.
    pub command: String,
    /// Commit of the program.
    pub commit: String,
    /// Estimates per row.
    pub sets: usize,
    /// Samples per estimate.
    pub points: usize,
    /// Floors by data set.
    pub floors: Vec<Floor>,
    /// Every method, data set and seed.
    pub rows: Vec<Row>,
    /// Means over seeds.
    pub means: Vec<SeedMean>,
    /// Seconds of all trainings and evaluations, added up over cells.
    pub cell_seconds: f64,
}

/// One method on one data set, over seeds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SeedMean {
    /// Data set.
    pub data: String,
    /// Method.
    pub method: Method,
    /// How many seeds.
    pub seeds: usize,
    /// Training steps.
    pub iterations: u64,
    /// Learning rate.
    pub rate: f64,
    /// Mean and two standard deviations over seeds of each row's mean; of a single seed, over its estimates.
    pub metrics: PointMetrics<Summary>,
    /// The paper's W1 in its Table 1 (its estimator is not determinable; facts in the book), as mean and two standard
    /// deviations.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub paper_w1: Option<[f64; 2]>,
}

/// Runs the study in `out`; finished cells are not run again.
pub fn run_circle(
    study: &CircleStudy,
    out: &Path,
    info: &RunInfo,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<StudyTable> {
    run_circle_cells(study, out, &Selection::All, trainer, job)?;
    let rows = study.cells().iter().map(|cell| Ok(cell_result(out, cell)?.rows)).collect::<Result<Vec<_>>>()?.concat();
    table(study, out, info, rows)
}

/// Runs some cells of the study in `out`; finished cells are not run again, and those of other processes are waited for.
pub fn run_circle_cells(
    study: &CircleStudy,
    out: &Path,
    selection: &Selection,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<()> {
    let preset = study.preset();
    let mut cells = study.cells();
    let mut position = 0..;
    cells.retain(|cell| selection.includes(position.next().unwrap_or_default(), &cell.name));
    let configs = cells.iter().map(|cell| cell.config(&preset)).collect::<Result<Vec<_>>>()?;
    study.scale.claim_folder(out, "circle")?;
    let units = |(cell, config): (&Cell, &Config)| config.train.iterations + study.eval_units(cell);
    let finished = |cell: &Cell| result_file(out, cell).exists();
    let total = cells.iter().zip(&configs).map(units).sum();
    let done = cells.iter().zip(&configs).filter(|(cell, _)| finished(cell)).map(units).sum();
    job.reporter.begin(total, done);

    // The main table before the sweep and seed by seed, so that an interrupted study has something whole; longest first,
    // so that the cores finish together.
    let mut queue: Vec<(&Cell, &Config)> = cells.iter().zip(&configs).filter(|(cell, _)| !finished(cell)).collect();
    queue.sort_by_key(|&(cell, config)| (cell.sweep, cell.seed, std::cmp::Reverse(units((cell, config)))));
    side_by_side(queue, |&(cell, config)| {
        let Some(_right) = right_to(out, &cell.name, job)? else { return Ok(false) };
        if finished(cell) {
            return Ok(true);
        }
        let result = run_cell(study, cell, config, out, trainer, job)?;
        write_record(&result_file(out, cell), &result)?;
        let row = &result.rows[0];
        job.reporter.note(&format!(
            "{:9} {:13} seed {}: distance to curve {:.5}, W1 {:.4} ± {:.4} ({:.0} s)",
            row.data,
            row.method.to_string(),
            row.seed,
            row.metrics.curve_mean.mean,
            row.metrics.w1.mean,
            row.metrics.w1.two_sd,
            row.train_seconds + row.eval_seconds
        ));
        Ok(true)
    })
}

/// The table of all rows, written to `out`.
fn table(study: &CircleStudy, out: &Path, info: &RunInfo, rows: Vec<Row>) -> Result<StudyTable> {
    let floors = study.curves.iter().map(|&(data, curve)| floor(study, data, curve)).collect::<Result<Vec<_>>>()?;
    // Guided rows share the training of the row before them.
    let trained = rows.iter().filter(|r| r.method.trained().is_some());
    let cell_seconds = rows.iter().map(|r| r.eval_seconds).sum::<f64>() + trained.map(|r| r.train_seconds).sum::<f64>();
    let table = StudyTable {
        study: "circle".into(),
        scale: study.scale.name().into(),
        command: info.command.clone(),
        commit: info.commit.clone(),
        sets: study.sets,
        points: study.points,
        floors,
        means: seed_means(&rows),
        rows,
        cell_seconds,
    };
    let text = serde_json::to_string_pretty(&table).expect("numbers are valid JSON");
    write_text(&out.join("table.json"), &(text + "\n"))?;
    Ok(table)
}

/// Sampling one batch without guidance costs about as much as this many training steps, with guidance three times that.
const SET_UNITS: u64 = 400;
const GUIDED: u64 = 3;

fn run_cell(
    study: &CircleStudy,
    cell: &Cell,
    config: &Config,
    out: &Path,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<CellResult> {
    let folder = RunFolder::new(out.join(&cell.name));
    let mut reported = 0;
    trainer(config, &folder, None, &mut |step| {
        job.reporter.advance(step.saturating_sub(reported));
        reported = step;
    })?;
    let mut rows = vec![measure(study, cell, config, &folder, cell.method.into(), job)?];
    for &scale in &cell.guidance {
        job.go_on("run the same command again to go on")?;
        rows.push(measure(study, cell, config, &folder, Kind::Dps { scale }.into(), job)?);
    }
    let trained = Model::load(&folder.path, job.device)?;
    Ok(CellResult { rows, gamma: gamma_curve(&trained, cell, job.device) })
}

/// Samples the model of `folder` as `method` does, and measures the samples.
fn measure(
    study: &CircleStudy,
    cell: &Cell,
    config: &Config,
    folder: &RunFolder,
    method: Method,
    job: &Job<'_>,
) -> Result<Row> {
    let start = Instant::now();
    let guidance = match method.kind {
        Kind::Dps { scale } => Some(format!("sampler.guidance={{ kind = \"dps\", scale = {scale:?} }}")),
        _ => None,
    };
    let weight = if guidance.is_some() { GUIDED } else { 1 };
    let trained = Model::load_with(&folder.path, &Vec::from_iter(guidance), job.device)?;
    let eval = study.eval(cell.curve);
    let per_step = (weight * SET_UNITS) as f64 / (study.points * config.sampler.steps) as f64;
    let progress = Scaled::new(job.reporter, per_step);
    let draw = Draw { seed: cell.seed, indices: &eval.indices(), batch: study.points, observed: None };
    let values = trained.samples(&draw, &job.reporting_to(&progress))?;
    let file = folder.path.join(format!("samples-{}.npy", method.file_name()));
    npy::write_f32(&file, &[study.points, 2], values[..2 * study.points].iter().map(|&v| v as f32))?;
    let metrics = eval
        .measure(&cloud(&values))
        .map_err(|e| Error::input(folder.path.display(), format!("samples cannot be measured: {e}")))?;
    Ok(Row {
        data: cell.data.into(),
        method,
        seed: cell.seed,
        iterations: config.train.iterations,
        rate: config.train.rate,
        metrics,
        train_seconds: folder.read_info()?.seconds,
        eval_seconds: start.elapsed().as_secs_f64(),
    })
}

fn floor(study: &CircleStudy, data: &str, curve: Shape) -> Result<Floor> {
    let (_, metrics) =
        study.eval(curve).floor().map_err(|e| Error::input("floor", format!("true points cannot be measured: {e}")))?;
    Ok(Floor { data: data.into(), metrics })
}

/// γ over noisy data by noise level; empty for models without one.
fn gamma_curve(trained: &Model, cell: &Cell, device: &Device) -> Vec<AtLevel> {
    let Some(soft) = trained.model.softly() else { return Vec::new() };
    let n = 512;
    let at = |sigma: f64| {
        let probe = PointEval { curve: cell.curve, noise: 0.0, sets: 1, points: n };
        let clean = probe.true_points(Truth::Probe, 0);
        let mut stream = Stream::new(0, Purpose::Metric, 0);
        let noisy: Vec<f32> = clean.into_iter().flatten().map(|v| (v + sigma * stream.normal()) as f32).collect();
        let x: Tensor<4> = Tensor::from_data(TensorData::new(noisy, [n, 2, 1, 1]), device);
        AtLevel::of(sigma, to_vec_f64(soft.gamma(x, &vec![sigma; n])))
    };
    log_spaced(0.002, 80.0, 25).into_iter().map(at).collect()
}

fn seed_means(rows: &[Row]) -> Vec<SeedMean> {
    let mut keys: Vec<(String, Method)> = Vec::new();
    for row in rows {
        let key = (row.data.clone(), row.method.clone());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mean = |(data, method): (String, Method)| {
        let same: Vec<&Row> = rows.iter().filter(|r| r.data == data && r.method == method).collect();
        let metrics: Vec<PointMetrics<Summary>> = same.iter().map(|r| r.metrics).collect();
        let metrics = PointMetrics::combined(&metrics, |of_seeds| match of_seeds {
            [only] => *only,
            several => Summary::of(&several.iter().map(|s| s.mean).collect::<Vec<_>>()),
        });
        let paper_w1 = paper::toy_w1(&data, &method);
        SeedMean {
            seeds: same.len(),
            iterations: same[0].iterations,
            rate: same[0].rate,
            data,
            method,
            metrics,
            paper_w1,
        }
    };
    keys.into_iter().map(mean).collect()
}

fn result_file(out: &Path, cell: &Cell) -> PathBuf {
    out.join(&cell.name).join("eval.json")
}

/// The result of a finished cell in `out`.
pub fn cell_result(out: &Path, cell: &Cell) -> Result<CellResult> {
    read_record(&result_file(out, cell))
}
