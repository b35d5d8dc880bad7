//! The toy study, end to end: every method on every curve, with the unit circle as the (often wrong) constraint.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_3, FRAC_PI_4};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::scale::StudyScale;
use softly::error::{Error, Result};
use softly::files::{read_text, write_text};
use softly::job::Reporter;
use softly::random::{Purpose, Stream};
use softly::statistics::Summary;
use softly::tensors::to_vec_f64;
use softly::{
    Config, Generator, Layers, PointEval, PointMetrics, RunFolder, RunInfo, Shape, Trained, Truth, cloud, npy,
};

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
    pub methods: Vec<&'static str>,
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
        let chop = |alpha| Shape::Chop { alpha };
        let three = vec![("circle", Shape::Circle), ("dent", Shape::Dent), ("chop-pi2", chop(FRAC_PI_2))];
        let five = || {
            let mut curves = three.clone();
            curves.extend([("chop-pi4", chop(FRAC_PI_4)), ("chop-pi3", chop(FRAC_PI_3))]);
            curves
        };
        let guidance = vec![0.01, 0.05, 0.2, 0.5];
        let (seed_count, curves, methods, guidance, sets) = match scale {
            StudyScale::Demo => (1, three[..2].to_vec(), vec!["vanilla", "scd", "pidm"], vec![0.2], 5),
            StudyScale::Cpu => (3, three, vec!["vanilla", "scd", "scd-paper", "pidm", "pidm-ddpm"], guidance, 10),
            StudyScale::Paper => {
                let methods = vec!["vanilla", "scd", "scd-paper", "pidm", "pidm-ddpm", "vanilla-tuned", "scd-tuned"];
                (3, five(), methods, guidance, 20)
            }
        };
        Self { scale, seeds: (0..seeds.unwrap_or(seed_count)).collect(), curves, methods, guidance, sets, points: 1000 }
    }

    /// Every cell of the table.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &seed in &self.seeds {
            for &(data, curve) in &self.curves {
                let sweep = ["chop-pi4", "chop-pi3"].contains(&data);
                // The sweep over the angle is about the methods, not about the learning rate.
                let methods = self.methods.iter().filter(|method| !(sweep && method.ends_with("-tuned")));
                for &method in methods {
                    let name = format!("{data}-{method}-{seed}");
                    let guidance = if method == "vanilla" { self.guidance.clone() } else { Vec::new() };
                    cells.push(Cell { name, data, curve, method, seed, guidance, sweep });
                }
            }
        }
        cells
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
    pub method: &'static str,
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
        let mut config = Layers::new().preset(preset)?.method(self.method)?.finish(preset)?;
        config.data.generator = Generator::Points { curve: self.curve, noise: 0.0 };
        config.train.seed = self.seed;
        Ok(config)
    }
}

/// A row of results: one method on one data set with one seed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Data set.
    pub data: String,
    /// Method, with its guidance scale if any (`dps 0.2`).
    pub method: String,
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

/// γ of a softly constrained model by noise level.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GammaPoint {
    /// Noise level.
    pub sigma: f64,
    /// Mean of γ over noisy data.
    pub mean: f64,
    /// 10th percentile.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
}

/// What a cell leaves in `eval.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CellResult {
    /// One row, and one more per guidance scale.
    pub rows: Vec<Row>,
    /// γ(σ), for softly constrained models.
    pub gamma: Vec<GammaPoint>,
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
    pub method: String,
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

/// The paper's Table 1 and, for the chop's other angles, its figure.
fn paper_w1(data: &str, method: &str) -> Option<[f64; 2]> {
    let value = match (data, method.split(' ').next().unwrap_or_default()) {
        ("circle", "vanilla") => [3.91e-3, 0.18e-3],
        ("circle", "dps") => [3.97e-3, 0.65e-3],
        ("circle", "pidm-ddpm") => [4.04e-3, 0.20e-3],
        ("circle", "scd-paper") => [2.16e-3, 0.15e-3],
        ("dent", "vanilla") => [7.53e-3, 0.46e-3],
        ("dent", "dps") => [6.27e-3, 0.63e-3],
        ("dent", "pidm-ddpm") => [6.65e-3, 1.44e-3],
        ("dent", "scd-paper") => [5.6e-3, 0.44e-3],
        ("chop-pi2", "vanilla") => [3.34e-3, 0.11e-3],
        ("chop-pi2", "dps") => [10.2e-3, 3.21e-3],
        ("chop-pi2", "pidm-ddpm") => [33.75e-3, 3.37e-3],
        ("chop-pi2", "scd-paper") => [2.42e-3, 0.16e-3],
        ("chop-pi4", "vanilla") => [4.5e-3, 0.1e-3],
        ("chop-pi4", "scd-paper") => [3.4e-3, 0.2e-3],
        ("chop-pi3", "vanilla") => [5.8e-3, 0.2e-3],
        ("chop-pi3", "scd-paper") => [4.4e-3, 0.4e-3],
        _ => return None,
    };
    Some(value)
}

/// Trains a configuration in a run folder, or goes on there, and tells the step it has reached. It is called from
/// several threads at once.
pub type Trainer<'a> = dyn Fn(&Config, &RunFolder, &mut dyn FnMut(u64)) -> Result<()> + Sync + 'a;

/// Runs the study in `out`; finished cells are not run again.
pub fn run(
    study: &CircleStudy,
    out: &Path,
    device: &Device,
    info: &RunInfo,
    trainer: &Trainer<'_>,
    stop: &AtomicBool,
    reporter: &dyn Reporter,
) -> Result<StudyTable> {
    let preset = study.preset();
    let cells = study.cells();
    let configs = cells.iter().map(|cell| cell.config(&preset)).collect::<Result<Vec<_>>>()?;
    study.scale.claim_folder(out, "circle")?;
    // Sampling one batch costs about as much as this many training steps per solver step.
    let eval_units = |cell: &Cell| (1 + 3 * cell.guidance.len()) as u64 * study.sets as u64 * 400;
    let units = |(cell, config): (&Cell, &Config)| config.train.iterations + eval_units(cell);
    let total = cells.iter().zip(&configs).map(units).sum();
    let done_file = |cell: &Cell| out.join(&cell.name).join("eval.json");
    let finished = |cell: &Cell| done_file(cell).exists();
    let done = cells.iter().zip(&configs).filter(|(cell, _)| finished(cell)).map(units).sum();
    reporter.begin(total, done);

    // The main table before the sweep and seed by seed, so that an interrupted study has something whole; longest first,
    // so that the cores finish together.
    let mut queue: Vec<(&Cell, &Config)> = cells.iter().zip(&configs).filter(|(cell, _)| !finished(cell)).collect();
    queue.sort_by_key(|&(cell, config)| (cell.sweep, cell.seed, std::cmp::Reverse(units((cell, config)))));
    let queue = Mutex::new(queue.into_iter());
    let workers = rayon::current_num_threads().max(1);
    // One worker per core takes the next cell. Each has a pool of one thread: workers that share a pool would steal each
    // other's tiny kernels and wait for one another. A failure stops the rest after their current cell.
    let worker = || -> Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((cell, config)) = next else { return Ok(()) };
            let result = run_cell(study, cell, config, out, device, trainer, stop, reporter)?;
            let text = serde_json::to_string_pretty(&result).expect("numbers are valid JSON");
            write_text(&done_file(cell), &(text + "\n"))?;
            let row = &result.rows[0];
            reporter.note(&format!(
                "{:9} {:13} seed {}: distance to curve {:.5}, W1 {:.4} ± {:.4} ({:.0} s)",
                row.data,
                row.method,
                row.seed,
                row.metrics.curve_mean.mean,
                row.metrics.w1.mean,
                row.metrics.w1.two_sd,
                row.train_seconds + row.eval_seconds
            ));
        }
    };
    let outcomes = std::thread::scope(|scope| {
        let spawn = |_| {
            scope.spawn(|| match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
                Ok(pool) => pool.install(worker),
                Err(e) => Err(Error::input("--threads", format!("a worker could not be started: {e}"))),
            })
        };
        let workers: Vec<_> = (0..workers).map(spawn).collect();
        workers
            .into_iter()
            .map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Vec<_>>()
    });
    outcomes.into_iter().collect::<Result<()>>()?;

    let mut rows = Vec::new();
    for cell in &cells {
        let text = read_text(&done_file(cell))?;
        let result: CellResult = serde_json::from_str(&text).map_err(|e| {
            Error::input(done_file(cell).display(), format!("is damaged: {e}")).hint("delete it and run again")
        })?;
        rows.extend(result.rows);
    }
    let floors = study.curves.iter().map(|&(data, curve)| floor(study, data, curve)).collect::<Result<Vec<_>>>()?;
    // Guided rows share the training of the row before them.
    let train = |r: &&Row| !r.method.starts_with("dps");
    let cell_seconds = rows.iter().map(|r| r.eval_seconds).sum::<f64>()
        + rows.iter().filter(train).map(|r| r.train_seconds).sum::<f64>();
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

#[allow(clippy::too_many_arguments)]
fn run_cell(
    study: &CircleStudy,
    cell: &Cell,
    config: &Config,
    out: &Path,
    device: &Device,
    trainer: &Trainer<'_>,
    stop: &AtomicBool,
    reporter: &dyn Reporter,
) -> Result<CellResult> {
    let folder = RunFolder::new(out.join(&cell.name));
    let mut reported = 0;
    trainer(config, &folder, &mut |step| {
        reporter.advance(step.saturating_sub(reported));
        reported = step;
    })?;
    let trained_info: RunInfo = serde_json::from_str(&read_text(&folder.info())?)
        .map_err(|e| Error::input(folder.info().display(), format!("is damaged: {e}")))?;
    let trained = Trained::load(&folder.path, device)?;
    let eval = study.eval(cell.curve);
    let row = |method: String, guidance: Option<f64>| -> Result<Row> {
        let start = Instant::now();
        let mut sampler = config.sampler.clone();
        sampler.guidance = guidance.map(|scale| softly::sampler::Guidance { scale });
        let weight = if guidance.is_some() { 3.0 } else { 1.0 };
        let per_step = weight * 400.0 / (study.points * sampler.steps) as f64;
        let credit = Mutex::new(0.0f64);
        let advance = |samples: usize| {
            let mut credit = credit.lock().unwrap_or_else(PoisonError::into_inner);
            *credit += samples as f64 * per_step;
            if *credit >= 100.0 {
                reporter.advance(*credit as u64);
                *credit = credit.fract();
            }
        };
        let values = trained.generate(&sampler, cell.seed, &eval.indices(), study.points, device, stop, &advance)?;
        let file = folder.path.join(format!("samples-{}.npy", method.replace(' ', "-")));
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
            train_seconds: trained_info.seconds,
            eval_seconds: start.elapsed().as_secs_f64(),
        })
    };
    let mut rows = vec![row(cell.method.to_string(), None)?];
    for &scale in &cell.guidance {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted { hint: "run the same command again to go on".into() });
        }
        rows.push(row(format!("dps {scale}"), Some(scale))?);
    }
    Ok(CellResult { rows, gamma: gamma_curve(&trained, cell, device) })
}

fn floor(study: &CircleStudy, data: &str, curve: Shape) -> Result<Floor> {
    let (_, metrics) =
        study.eval(curve).floor().map_err(|e| Error::input("floor", format!("true points cannot be measured: {e}")))?;
    Ok(Floor { data: data.into(), metrics })
}

/// γ over noisy data by noise level; empty for models without one.
fn gamma_curve(trained: &Trained, cell: &Cell, device: &Device) -> Vec<GammaPoint> {
    let n = 512;
    let levels = (0..25).map(|i| 0.002 * (80.0f64 / 0.002).powf(f64::from(i) / 24.0));
    let at = |sigma: f64| -> Option<GammaPoint> {
        let probe = PointEval { curve: cell.curve, noise: 0.0, sets: 1, points: n };
        let clean = probe.true_points(Truth::Probe, 0);
        let mut stream = Stream::new(0, Purpose::Metric, 0);
        let noisy: Vec<f32> = clean.into_iter().flatten().map(|v| (v + sigma * stream.normal()) as f32).collect();
        let x: Tensor<4> = Tensor::from_data(TensorData::new(noisy, [n, 2, 1, 1]), device);
        let mut gamma = to_vec_f64(trained.model.denoiser.gamma(x, &vec![sigma; n])?);
        gamma.sort_unstable_by(f64::total_cmp);
        let mean = gamma.iter().sum::<f64>() / gamma.len() as f64;
        Some(GammaPoint { sigma, mean, low: gamma[gamma.len() / 10], high: gamma[gamma.len() * 9 / 10] })
    };
    levels.map_while(at).collect()
}

fn seed_means(rows: &[Row]) -> Vec<SeedMean> {
    let mut keys: Vec<(String, String)> = Vec::new();
    for row in rows {
        let key = (row.data.clone(), row.method.clone());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mean = |(data, method): (String, String)| {
        let same: Vec<&Row> = rows.iter().filter(|r| r.data == data && r.method == method).collect();
        let metrics: Vec<PointMetrics<Summary>> = same.iter().map(|r| r.metrics).collect();
        let metrics = PointMetrics::combined(&metrics, |of_seeds| match of_seeds {
            [only] => *only,
            several => Summary::of(&several.iter().map(|s| s.mean).collect::<Vec<_>>()),
        });
        let paper_w1 = paper_w1(&data, &method);
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

/// The result of a finished cell in `out`.
pub fn cell_result(out: &Path, cell: &Cell) -> Result<CellResult> {
    let path: PathBuf = out.join(&cell.name).join("eval.json");
    serde_json::from_str(&read_text(&path)?).map_err(|e| Error::input(path.display(), format!("is damaged: {e}")))
}
