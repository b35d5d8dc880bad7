//! The study of noisy training data: parameters of three equations, fitted to the fields as they are and through denoisers.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use softly::auto::NumberOrAuto;
use softly::error::{Error, Result};
use softly::files::{make_folder, read_record, write_record, write_text};
use softly::job::{Job, Silent};
use softly::random::{Purpose, Stream};
use softly::{
    Config, DataConfig, Dataset, DatasetFolder, FieldEval, FieldEvaluator, InMemory, Layers, Normalise, ParameterFit,
    RunFolder, RunInfo, SoftConstraint, Split, Trained, denoised, generate, intervals_of, write,
};

use crate::runner::{Trainer, side_by_side};
use crate::scale::StudyScale;
use crate::sweep::{CellState, Selection, once, right_to};

/// Starts of every fit, as multiples of the truth.
const STARTS: [f64; 5] = [0.25, 0.5, 1.5, 2.0, 4.0];

/// Repetitions of a fit, each with samples of its own, and how many samples each has.
const REPETITIONS: usize = 20;
const SAMPLES: usize = 64;

/// An equation with one parameter to be found.
#[derive(Debug, Clone, Copy)]
struct Problem {
    /// As tables call it.
    name: &'static str,
    preset: &'static str,
    parameter: &'static str,
    truth: f64,
    /// Settings over the preset's.
    settings: &'static [&'static str],
}

const PROBLEMS: [Problem; 3] = [
    Problem { name: "darcy", preset: "darcy-demo", parameter: "flow", truth: 10.0, settings: &[] },
    Problem { name: "helmholtz", preset: "helmholtz-demo", parameter: "k", truth: 1.0, settings: &[] },
    Problem {
        name: "burgers",
        preset: "burgers-demo",
        parameter: "nu",
        truth: 0.02,
        settings: &["data.generator.size=32", "data.generator.viscosity=0.02", "data.generator.modes=16"],
    },
];

/// The study at one scale.
pub struct NoisyStudy {
    /// How much of it.
    pub scale: StudyScale,
    /// Standard deviations of the noise over the fields' own.
    pub noises: Vec<f64>,
}

/// How fields come to the fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// As they are.
    Direct,
    /// Through a denoiser that takes them for clean.
    Usual,
    /// Through a denoiser that knows their noise.
    Aware,
}

impl Way {
    /// Both that train a denoiser.
    const TRAINED: [Self; 2] = [Self::Usual, Self::Aware];

    /// Its name in folders and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Usual => "usual",
            Self::Aware => "aware",
        }
    }
}

/// What one way finds in data with some noise.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NoisyRow {
    /// The equation.
    pub equation: String,
    /// The parameter's name.
    pub parameter: String,
    /// Its true value.
    pub truth: f64,
    /// Standard deviation of the noise over the fields' own.
    pub noise: f64,
    /// How fields come to the fit.
    pub way: Way,
    /// The value that each start ends at.
    pub found: Vec<(f64, f64)>,
    /// 95 % intervals of repetitions with samples of their own, from one start.
    pub intervals: Vec<Option<[f64; 2]>>,
    /// Mean |R| of samples with the true parameters, of trained ways.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub residual: Option<f64>,
    /// −log2 p per dimension of clean held-out data, whose density is that of data with the training data's noise.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub likelihood: Option<f64>,
    /// Seconds of training.
    pub train_seconds: f64,
}

impl NoisyRow {
    /// The largest relative error over starts.
    pub fn error(&self) -> f64 {
        self.found.iter().map(|(_, found)| (found / self.truth - 1.0).abs()).fold(0.0, f64::max)
    }

    /// Intervals that hold the truth.
    pub fn covering(&self) -> usize {
        self.intervals.iter().flatten().filter(|[low, high]| (*low..=*high).contains(&self.truth)).count()
    }
}

/// All that was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NoisyTable {
    /// How much of the study was run.
    pub scale: StudyScale,
    /// The command line.
    pub command: String,
    /// Commit of the program.
    pub commit: String,
    /// One for every equation, noise and way.
    pub rows: Vec<NoisyRow>,
}

impl NoisyStudy {
    /// The study at `scale`.
    pub fn new(scale: StudyScale) -> Self {
        let noises = if scale == StudyScale::Demo { vec![0.05] } else { vec![0.01, 0.05, 0.2] };
        Self { scale, noises }
    }

    /// The cells in the folder `out`.
    pub fn states(&self, out: &Path) -> Vec<CellState> {
        let state = |cell: Cell| CellState { done: cell.result(out).exists(), cell: cell.name(), base: None };
        self.cells().into_iter().map(state).collect()
    }

    /// Every training, and the way without one on clean and on noisy data.
    fn cells(&self) -> Vec<Cell> {
        let of = |problem: Problem| {
            let at = move |noise: f64| {
                let ways = [Way::Direct].into_iter().chain(Way::TRAINED.into_iter().filter(move |_| noise > 0.0));
                ways.map(move |way| Cell { problem, noise, way })
            };
            std::iter::once(0.0).chain(self.noises.iter().copied()).flat_map(at)
        };
        PROBLEMS.into_iter().flat_map(of).collect()
    }
}

/// One way on one dataset.
struct Cell {
    problem: Problem,
    noise: f64,
    way: Way,
}

impl Cell {
    fn name(&self) -> String {
        format!("{}-{}-{}", self.problem.name, self.noise, self.way.name())
    }

    fn data(&self, out: &Path) -> PathBuf {
        out.join(format!("data-{}-{}", self.problem.name, self.noise))
    }

    fn folder(&self, out: &Path) -> RunFolder {
        RunFolder::new(out.join(self.name()))
    }

    fn result(&self, out: &Path) -> PathBuf {
        out.join("cells").join(format!("{}.json", self.name()))
    }

    /// Steps of its training.
    fn steps(&self, config: &Config) -> u64 {
        if self.way == Way::Direct { 0 } else { config.train.iterations }
    }

    fn config(&self, out: &Path) -> Result<Config> {
        let preset = self.problem.preset;
        let truth = format!("constraint.parameters.{}={:?}", self.problem.parameter, self.problem.truth);
        let mut layers = Layers::new().preset(preset)?.method("vanilla")?.set(&truth)?;
        for setting in self.problem.settings {
            layers = layers.set(setting)?;
        }
        if self.way == Way::Aware {
            layers = layers.set(&format!("data.noise={:?}", self.noise))?;
        }
        let mut config = layers.finish(preset)?;
        config.data.path = Some(self.data(out));
        Ok(config)
    }

    /// Makes the data: clean ones, or a copy of them whose training fields have noise.
    fn generate(&self, out: &Path, job: &Job<'_>) -> Result<()> {
        let folder = self.data(out);
        let part = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let done = || folder.join("dataset.toml").exists();
        if self.noise == 0.0 {
            let config = self.config(out)?;
            return once(out, &part, job, done, || {
                generate(&config.data, &folder, &job.reporting_to(&Silent)).map(|_| ())
            });
        }
        let clean = Cell { noise: 0.0, way: Way::Direct, ..*self };
        clean.generate(out, job)?;
        once(out, &part, job, done, || {
            let mut dataset = DatasetFolder::open(&clean.data(out))?.load()?;
            spoil(&mut dataset, self.noise)?;
            write(&InMemory::new(&dataset), &folder, &job.reporting_to(&Silent)).map(|_| ())
        })
    }

    /// Trains if there is something to train, and measures.
    fn run(&self, out: &Path, trainer: &Trainer<'_>, job: &Job<'_>) -> Result<()> {
        let config = self.config(out)?;
        if self.steps(&config) > 0 && !self.folder(out).snapshot().exists() {
            let mut reported = 0;
            trainer(&config, &self.folder(out), None, &mut |step| {
                job.reporter.advance(step.saturating_sub(reported));
                reported = reported.max(step);
            })?;
        }
        let row = self.measure(out, &job.reporting_to(&Silent))?;
        job.reporter.note(&format!(
            "{} with {} % noise, {}: {} within {:.2} % of {}",
            self.problem.name,
            100.0 * self.noise,
            self.way.name(),
            self.problem.parameter,
            100.0 * row.error(),
            self.problem.truth
        ));
        write_record(&self.result(out), &row)
    }

    fn measure(&self, out: &Path, job: &Job<'_>) -> Result<NoisyRow> {
        let config = self.config(out)?;
        let dataset = DatasetFolder::open(&self.data(out))?.load()?;
        let (units, sigma_data) = dataset.units(&config.data)?;
        let some: Vec<usize> = (0..dataset.train_count().min(REPETITIONS * SAMPLES)).collect();
        let mut fields = dataset.clean(&some, &units, job.device)?;
        let level = self.noise * sigma_data;
        let (mut residual, mut likelihood, mut train_seconds) = (None, None, 0.0);
        if self.way != Way::Direct {
            let folder = self.folder(out);
            let trained = Trained::load_with(&folder.path, &[], job.device)?;
            fields = fields.into_iter().map(|y| denoised(trained.model.base(), y, level)).collect();
            let truth = config.constraint.as_ref().ok_or_else(|| Error::input("constraint", "the preset has none"))?;
            let evaluator = FieldEvaluator::new(&dataset, Some(truth), &units)?;
            let eval = FieldEval { samples: 64, batch: 32, likelihood: 0, likelihood_steps: 32, loss: 0, keep: 0 };
            let (result, _) = eval.unless_reduced().run(&trained, &evaluator, &dataset, job)?;
            residual = Some(result.metrics.mean_residual());
            // Densities of data with the same noise can be compared.
            let at_noise = Trained::load_with(&folder.path, &[format!("sampler.sigma_min={level:?}")], job.device)?;
            let eval = FieldEval { samples: 1, likelihood: 16, ..eval };
            let (result, _) = eval.unless_reduced().run(&at_noise, &evaluator, &dataset, job)?;
            likelihood = result.likelihood.map(|bits| bits.normalised);
            train_seconds = folder.read_info()?.seconds;
        }
        let starting = |start: f64| -> Result<SoftConstraint> {
            let setting = format!("constraint.parameters.{}={{ learn = {start:?} }}", self.problem.parameter);
            let layers = Layers::new().text(&config.to_toml(), "study")?.set(&setting)?;
            let constraint = layers.finish("study")?.constraint.map(|c| dataset.complete(&c));
            let constraint = constraint.ok_or_else(|| Error::input("constraint", "the preset has none"))?;
            SoftConstraint::new(&constraint, &dataset.fields, &dataset.grid, &units)
        };
        let mut found = Vec::new();
        for start in STARTS.map(|factor| factor * self.problem.truth) {
            let constraint = starting(start)?;
            let fit = ParameterFit::new(&constraint, &fields);
            fit.run()?;
            let end = fit.numbers().into_iter().flatten().next().map_or(f64::NAN, |(_, value)| value);
            found.push((start, end));
        }
        let mut intervals = Vec::new();
        // Batches have fewer samples than a repetition.
        let per_repetition = SAMPLES / fields.first().map_or(SAMPLES, |batch| batch.dims()[0]).min(SAMPLES);
        for some in fields.chunks(per_repetition) {
            let constraint = starting(STARTS[0] * self.problem.truth)?;
            let fit = ParameterFit::new(&constraint, some);
            fit.run()?;
            intervals.extend(intervals_of(&fit)?.into_iter().map(|found| found.interval));
        }
        let Problem { name, parameter, truth, .. } = self.problem;
        Ok(NoisyRow {
            equation: name.into(),
            parameter: parameter.into(),
            truth,
            noise: self.noise,
            way: self.way,
            found,
            intervals,
            residual,
            likelihood,
            train_seconds,
        })
    }
}

/// Adds noise to the training fields, of `noise` times the standard deviation of each channel.
fn spoil(dataset: &mut Dataset, noise: f64) -> Result<()> {
    let (nodes, length) = (dataset.grid.len(), dataset.sample_len());
    let plain =
        DataConfig { normalise: Normalise::Std, sigma_data: NumberOrAuto::Number(1.0), ..DataConfig::default() };
    let (units, _) = dataset.units(&plain)?;
    let mut values = dataset.all(Split::Train)?.into_owned();
    for (index, sample) in values.chunks_exact_mut(length).enumerate() {
        let normals = Stream::new(0, Purpose::Observation, index as u64).normals(length);
        for (i, (value, normal)) in sample.iter_mut().zip(normals).enumerate() {
            *value += (noise * units.scale[i / nodes] * normal) as f32;
        }
    }
    dataset.train = values.into();
    Ok(())
}

/// Runs the study in `out`; finished parts are not run again.
pub fn run_noisy(
    study: &NoisyStudy,
    out: &Path,
    info: &RunInfo,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<NoisyTable> {
    run_noisy_cells(study, out, &Selection::All, trainer, job)?;
    let rows = study.cells().iter().map(|cell| read_record(&cell.result(out))).collect::<Result<Vec<_>>>()?;
    let table = NoisyTable { scale: study.scale, command: info.command.clone(), commit: info.commit.clone(), rows };
    let text = serde_json::to_string_pretty(&table).expect("numbers are valid JSON") + "\n";
    write_text(&out.join("table.json"), &text)?;
    Ok(table)
}

/// Runs some cells of the study in `out`; finished cells are not run again, and those of other processes are waited for.
pub fn run_noisy_cells(
    study: &NoisyStudy,
    out: &Path,
    selection: &Selection,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<()> {
    study.scale.claim_folder(out, "noisy")?;
    make_folder(&out.join("cells"))?;
    let cells = study.cells().into_iter().enumerate();
    let chosen = cells.filter(|(i, cell)| selection.includes(*i, &cell.name())).map(|(_, cell)| cell);
    let queue: Vec<Cell> = chosen.filter(|cell| !cell.result(out).exists()).collect();
    let steps = |cell: &Cell| Ok(cell.steps(&cell.config(out)?));
    job.reporter.begin(queue.iter().map(steps).sum::<Result<u64>>()?, 0);
    side_by_side(queue, |cell| {
        cell.generate(out, job)?;
        let Some(_right) = right_to(out, &cell.name(), job)? else { return Ok(false) };
        if !cell.result(out).exists() {
            cell.run(out, trainer, job)?;
        }
        Ok(true)
    })
}
