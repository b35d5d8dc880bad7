//! The study of fields from measurements: one trained denoiser, several sets of sensors, every method.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use softly::error::{Error, Result};
use softly::files::{make_folder, read_text, write_text};
use softly::job::Job;
use softly::{
    Config, Dataset, DatasetFolder, Draw, Layers, Noise, Observations, PosteriorJudge, RandomSensors, RunFolder,
    RunInfo, SoftConstraint, Split, Trained, disturbed, generate, is_reduced,
};

use crate::inverse::page::{PosteriorView, posterior_figures};
use crate::inverse::table::PosteriorRow;
use crate::runner::Trainer;
use crate::scale::StudyScale;
use crate::sweep::{CellState, Selection, once};

/// The study at one scale.
pub struct InverseStudy {
    /// How much of it.
    pub scale: StudyScale,
    /// The preset of data and network.
    preset: &'static str,
    /// Training steps of the denoiser.
    iterations: u64,
    /// Held-out fields that are measured.
    cases: usize,
    /// Sensors in all.
    sensors: usize,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// What is known and what is asked for, in words.
    pub words: String,
    sensors: Vec<RandomSensors>,
}

/// A method with its settings.
pub struct Entrant {
    /// What tables call it.
    pub name: String,
    settings: Vec<String>,
    /// Samples of each case; guidance, which is slow, gets few.
    samples: usize,
}

/// A method on a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InverseRow {
    /// The task's name.
    pub task: String,
    /// What was found.
    #[serde(flatten)]
    pub row: PosteriorRow,
}

/// All that was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InverseTable {
    /// How much of the study was run.
    pub scale: StudyScale,
    /// The command line.
    pub command: String,
    /// Commit of the program.
    pub commit: String,
    /// Nodes along each axis.
    pub grid: [usize; 2],
    /// Standard deviation of the noise over the field's, in percent.
    pub noise_percent: f64,
    /// Training steps of the denoiser, and seconds that they took.
    pub training: (u64, f64),
    /// The tasks.
    pub tasks: Vec<Task>,
    /// One for every task and method.
    pub rows: Vec<InverseRow>,
}

/// Noise of the sensors over the deviation of their field, in percent.
const NOISE_PERCENT: f64 = 1.0;

/// Seed of sensors and samples.
const SEED: u64 = 0;

impl InverseStudy {
    /// The study at `scale`.
    pub fn new(scale: StudyScale) -> Self {
        let (preset, iterations, cases, sensors) = match scale {
            StudyScale::Demo => ("darcy-demo", 25_000, 12, 30),
            StudyScale::Cpu | StudyScale::Long => ("darcy-cpu", 30_000, 16, 60),
            StudyScale::Paper => ("darcy-paper", 100_000, 32, 250),
        };
        let (iterations, cases) = if is_reduced() { (8, 2) } else { (iterations, cases) };
        Self { scale, preset, iterations, cases, sensors }
    }

    /// The tasks.
    pub fn tasks(&self) -> Vec<Task> {
        let n = self.sensors;
        let of = |field: &str, count: usize| RandomSensors { field: field.into(), count: Some(count) };
        let task = |name: &str, words: String, sensors: Vec<RandomSensors>| Task { name: name.into(), words, sensors };
        vec![
            task("both", format!("{} sensors of p and {} of K", n / 2, n / 2), vec![of("p", n / 2), of("K", n / 2)]),
            task("forward", format!("{n} sensors of K, none of p"), vec![of("K", n)]),
            task("inverse", format!("{n} sensors of p, none of K"), vec![of("p", n)]),
        ]
    }

    /// The methods: ours with the right, a wrong and no equation, along the flow, the control without a network, and rivals.
    pub fn entrants() -> Vec<Entrant> {
        let many = if is_reduced() { 2 } else { 19 };
        let few = many.min(4);
        let entrant = |name: &str, samples: usize, settings: &[&str]| Entrant {
            name: name.into(),
            settings: settings.iter().map(ToString::to_string).collect(),
            samples,
        };
        let kalman = "conditioning={ kind = \"kalman\" }";
        let steps = "sampler.steps=24";
        let guided = |kind: &str, scale: f64, steps: usize| Entrant {
            name: format!("{kind}, scale {scale}, {steps} steps"),
            settings: vec![
                format!("conditioning={{ kind = \"{kind}\", scale = {scale:?} }}"),
                format!("sampler.steps={steps}"),
            ],
            samples: few,
        };
        let projected = |kind: &str, steps: usize| Entrant {
            name: format!("{kind}, {steps} steps"),
            settings: vec![format!("conditioning={{ kind = \"{kind}\" }}"), format!("sampler.steps={steps}")],
            samples: few,
        };
        vec![
            entrant("kalman, given f = 10", many, &[kalman, steps]),
            entrant("kalman, given f = 15 (wrong)", many, &[kalman, steps, "constraint.parameters.flow=15.0"]),
            entrant("kalman, sensors only", many, &[kalman, steps, "conditioning.equation=false"]),
            entrant("kalman along the flow", many, &[kalman, "sampler.steps=12", "conditioning.jumps=false"]),
            entrant("kriging", many, &["conditioning={ kind = \"kriging\" }"]),
            guided("dps", 1.0, 64),
            guided("dps", 3.0, 64),
            guided("diffusionpde", 1.0, 64),
            guided("diffusionpde", 3.0, 64),
            guided("fundps", 1.0, 64),
            guided("fundps", 10.0, 64),
            entrant("mmps, 1 iteration", few, &["conditioning={ kind = \"mmps\" }", "sampler.steps=32"]),
            entrant(
                "mmps, 5 iterations",
                few,
                &["conditioning={ kind = \"mmps\", iterations = 5 }", "sampler.steps=32"],
            ),
            entrant(
                "jfps, 5 iterations",
                many,
                &["conditioning={ kind = \"jfps\", iterations = 5 }", "sampler.steps=32"],
            ),
            projected("eci", 40),
            projected("pcfm", 40),
            projected("ppr", 40),
            projected("pdm", 10),
            projected("cocogen", 40),
        ]
    }

    /// Every method on every task: the cells, by name.
    fn cells(&self) -> Vec<(String, Task, Entrant)> {
        let of_task = |task: Task| Self::entrants().into_iter().map(move |entrant| (task.clone(), entrant));
        let named = |(task, entrant): (Task, Entrant)| {
            let plain = |c: char| if c.is_alphanumeric() || c == '.' { c } else { '-' };
            (format!("{}-{}", task.name, entrant.name.chars().map(plain).collect::<String>()), task, entrant)
        };
        self.tasks().into_iter().flat_map(of_task).map(named).collect()
    }

    /// The cells in the folder `out`.
    pub fn states(&self, out: &Path) -> Vec<CellState> {
        let done = |name: &str| out.join("cells").join(format!("{name}.json")).exists();
        let state = |(cell, _, _): (String, Task, Entrant)| CellState { done: done(&cell), cell, base: None };
        self.cells().into_iter().map(state).collect()
    }

    fn config(&self, data: &Path) -> Result<Config> {
        let layers = Layers::new().preset(self.preset)?.method("vanilla")?;
        let mut config = layers.set(&format!("train.iterations={}", self.iterations))?.finish(self.preset)?;
        config.data.path = Some(data.to_path_buf());
        Ok(config)
    }
}

/// Runs the study in `out`; finished parts are not run again.
pub fn run_inverse(
    study: &InverseStudy,
    out: &Path,
    info: &RunInfo,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<InverseTable> {
    let rows = run_inverse_cells(study, out, &Selection::All, trainer, job)?;
    let (dataset, base) = (DatasetFolder::open(&out.join("data"))?.load()?, RunFolder::new(out.join("vanilla")));
    let table = InverseTable {
        scale: study.scale,
        command: info.command.clone(),
        commit: info.commit.clone(),
        grid: [dataset.grid.rows(), dataset.grid.cols()],
        noise_percent: NOISE_PERCENT,
        training: (study.iterations, base.read_info()?.seconds),
        tasks: study.tasks(),
        rows,
    };
    let text = serde_json::to_string_pretty(&table).expect("numbers are valid JSON") + "\n";
    write_text(&out.join("table.json"), &text)?;
    Ok(table)
}

/// Runs some cells of the study in `out`, and before them what all share; finished parts are not run again, and those of other processes
/// are waited for.
pub fn run_inverse_cells(
    study: &InverseStudy,
    out: &Path,
    selection: &Selection,
    trainer: &Trainer<'_>,
    job: &Job<'_>,
) -> Result<Vec<InverseRow>> {
    study.scale.claim_folder(out, "inverse")?;
    let (data, base) = (out.join("data"), RunFolder::new(out.join("vanilla")));
    let config = study.config(&data)?;
    once(
        out,
        "data",
        job,
        || data.join("dataset.toml").exists(),
        || {
            job.reporter.note(&format!("generating {} + {} samples", config.data.count, config.data.valid));
            generate(&config.data, &data, job).map(|_| ())
        },
    )?;
    once(
        out,
        "vanilla",
        job,
        || base.snapshot().exists(),
        || {
            job.reporter.note(&format!("training the denoiser, {} steps", study.iterations));
            job.reporter.begin(study.iterations, 0);
            let mut reported = 0;
            trainer(&config, &base, None, &mut |step| {
                job.reporter.advance(step.saturating_sub(reported));
                reported = reported.max(step);
            })
        },
    )?;
    let dataset = DatasetFolder::open(&data)?.load()?;
    make_folder(&out.join("cells"))?;
    let mut rows = Vec::new();
    for (position, (name, task, entrant)) in study.cells().into_iter().enumerate() {
        if selection.includes(position, &name) {
            let file = out.join("cells").join(format!("{name}.json"));
            let cell = Cell { study, task: &task, entrant: &entrant, base: &base.path, dataset: &dataset, file };
            once(out, &name, job, || cell.file.exists(), || cell.run(job))?;
            match cell.read()? {
                Outcome::Row(row) => rows.push(*row),
                Outcome::Diverged { diverged } => {
                    job.reporter.note(&format!("{name} is left out: {diverged}"));
                }
            }
        }
    }
    Ok(rows)
}

/// What a cell leaves.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Outcome {
    /// Guidance that is too strong for a task has no samples: what came out instead.
    Diverged { diverged: String },
    /// What was found.
    Row(Box<InverseRow>),
}

/// One method on one task.
struct Cell<'a> {
    study: &'a InverseStudy,
    task: &'a Task,
    entrant: &'a Entrant,
    base: &'a Path,
    dataset: &'a Dataset,
    file: PathBuf,
}

impl Cell<'_> {
    fn read(&self) -> Result<Outcome> {
        let damaged =
            |e: serde_json::Error| Error::input(self.file.display(), format!("is damaged: {e}")).hint("delete it");
        serde_json::from_str(&read_text(&self.file)?).map_err(damaged)
    }

    fn run(&self, job: &Job<'_>) -> Result<()> {
        let outcome = self.measure(job)?;
        write_text(&self.file, &(serde_json::to_string_pretty(&outcome).expect("numbers are valid JSON") + "\n"))?;
        let Outcome::Row(row) = outcome else { return Ok(()) };
        let errors: Vec<String> =
            row.row.metrics.fields.iter().map(|f| format!("{} {:.4}", f.name, f.sample_error.median)).collect();
        let (task, name) = (&self.task.name, &self.entrant.name);
        job.reporter.note(&format!("{task:8} {name:34} {} ({:.0} s)", errors.join(", "), row.row.seconds));
        Ok(())
    }

    fn measure(&self, job: &Job<'_>) -> Result<Outcome> {
        let trained = Trained::load_with(self.base, &self.entrant.settings, job.device)?;
        let cases = self.study.cases.min(self.dataset.valid_count());
        let truth: Vec<f64> = self.dataset.samples(Split::Valid, 0..cases)?.iter().map(|&v| f64::from(v)).collect();
        let observations = self.observations(&trained, &truth)?;
        let method = trained.blueprint.config.conditioning.method();
        let knowledge = trained.knowledge(method.needs(), self.dataset, job)?;
        let indices: Vec<u64> = (0..self.entrant.samples as u64).collect();
        job.reporter.begin((cases * indices.len() * trained.blueprint.config.sampler.steps) as u64, 0);
        let draw = Draw { seed: SEED, indices: &indices, batch: 64, observed: None };
        let posterior = match trained.posterior(&observations, &knowledge, &draw, job) {
            Err(error @ Error::NotFinite { .. }) => return Ok(Outcome::Diverged { diverged: error.to_string() }),
            posterior => posterior?,
        };
        let spec = &trained.blueprint.data;
        let equation = self.dataset.equation.as_ref();
        let equation =
            equation.map(|e| SoftConstraint::new(&self.dataset.complete(e), &spec.fields, &spec.grid, &spec.units));
        let equation = equation.transpose()?;
        let judge = PosteriorJudge {
            fields: &spec.fields,
            units: &spec.units,
            sigma_data: trained.model.sigma_data,
            truth: &truth,
            observations: &observations,
            equation: equation.as_ref(),
            shape: trained.model.shape,
        };
        let metrics = judge.judge(&posterior.samples);
        let metrics = metrics.ok_or_else(|| Error::input("inverse", "expected at least one case and one sample"))?;
        let view = PosteriorView {
            trained: &trained,
            observations: &observations[0],
            posterior: &posterior.samples,
            count: self.entrant.samples,
            truth: Some(&truth[..self.dataset.sample_len()]),
        };
        if let Ok([fields, spread]) = posterior_figures(&view) {
            let picture = softly_figures::svg::Svg::tile(&self.entrant.name, 1, &[fields, spread]);
            write_text(&self.file.with_extension("svg"), &picture.to_string())?;
        }
        let row = PosteriorRow {
            method: self.entrant.name.clone(),
            metrics,
            calls: posterior.calls,
            gradients: posterior.gradients,
            seconds: posterior.seconds,
        };
        Ok(Outcome::Row(Box::new(InverseRow { task: self.task.name.clone(), row })))
    }

    /// The sensors of every case: the same for all methods.
    fn observations(&self, trained: &Trained, truth: &[f64]) -> Result<Vec<Observations>> {
        let noise = Noise::parse(&[format!("{NOISE_PERCENT}%")])?;
        let measured = trained.measured();
        let of_case = |(case, truth): (usize, &[f64])| {
            let case = case as u64;
            let readings: Vec<_> =
                self.task.sensors.iter().flat_map(|sensors| sensors.readings(measured, truth, SEED, case)).collect();
            disturbed(&readings, &noise, measured, truth, SEED, case)
        };
        truth.chunks_exact(self.dataset.sample_len()).enumerate().map(of_case).collect()
    }
}
