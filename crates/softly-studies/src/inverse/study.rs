//! The study of fields from measurements: one trained denoiser, several sets of sensors, every method.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use softly::error::{Error, Result};
use softly::files::{make_folder, read_text, write_text};
use softly::job::Job;
use softly::{
    Config, Dataset, DatasetFolder, Draw, Layers, Noise, Observations, PosteriorJudge, RandomSensors, RunFolder,
    RunInfo, SoftConstraint, Trained, disturbed, generate, is_reduced,
};

use crate::inverse::page::{PosteriorView, posterior_figures};
use crate::inverse::table::PosteriorRow;
use crate::runner::Trainer;
use crate::scale::StudyScale;

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
            StudyScale::Demo => ("darcy-demo", 25_000, 16, 30),
            StudyScale::Cpu => ("darcy-cpu", 30_000, 16, 60),
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

    /// The methods: ours with the right, a wrong and no equation, the control without a network, and rivals.
    pub fn entrants() -> Vec<Entrant> {
        let many = if is_reduced() { 2 } else { 39 };
        let few = many.min(4);
        let entrant = |name: &str, samples: usize, settings: &[&str]| Entrant {
            name: name.into(),
            settings: settings.iter().map(ToString::to_string).collect(),
            samples,
        };
        let kalman = "conditioning={ kind = \"kalman\" }";
        let steps = "sampler.steps=12";
        let guided = |kind: &str, scale: f64, steps: usize| Entrant {
            name: format!("{kind}, scale {scale}, {steps} steps"),
            settings: vec![
                format!("conditioning={{ kind = \"{kind}\", scale = {scale:?} }}"),
                format!("sampler.steps={steps}"),
            ],
            samples: few,
        };
        vec![
            entrant("kalman, given f = 10", many, &[kalman, steps]),
            entrant("kalman, given f = 15 (wrong)", many, &[kalman, steps, "constraint.parameters.flow=15.0"]),
            entrant("kalman, sensors only", many, &[kalman, steps, "conditioning.equation=false"]),
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
        ]
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
    study.scale.claim_folder(out, "inverse")?;
    let (data, base) = (out.join("data"), RunFolder::new(out.join("vanilla")));
    let config = study.config(&data)?;
    if !data.join("dataset.toml").exists() {
        job.reporter.note(&format!("generating {} + {} samples", config.data.count, config.data.valid));
        generate(&config.data, &data, job)?;
    }
    if !base.snapshot().exists() {
        job.reporter.note(&format!("training the denoiser, {} steps", study.iterations));
        job.reporter.begin(study.iterations, 0);
        let mut reported = 0;
        trainer(&config, &base, None, &mut |step| {
            job.reporter.advance(step.saturating_sub(reported));
            reported = reported.max(step);
        })?;
    }
    let dataset = DatasetFolder::open(&data)?.load()?;
    make_folder(&out.join("cells"))?;
    let mut rows = Vec::new();
    for task in study.tasks() {
        for entrant in InverseStudy::entrants() {
            let cell = Cell { study, task: &task, entrant: &entrant, base: &base.path, dataset: &dataset, out };
            rows.push(cell.run(job)?);
        }
    }
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

/// One method on one task.
struct Cell<'a> {
    study: &'a InverseStudy,
    task: &'a Task,
    entrant: &'a Entrant,
    base: &'a Path,
    dataset: &'a Dataset,
    out: &'a Path,
}

impl Cell<'_> {
    fn file(&self) -> PathBuf {
        let name: String =
            self.entrant.name.chars().map(|c| if c.is_alphanumeric() || c == '.' { c } else { '-' }).collect();
        self.out.join("cells").join(format!("{}-{name}.json", self.task.name))
    }

    fn run(&self, job: &Job<'_>) -> Result<InverseRow> {
        let file = self.file();
        if file.exists() {
            let damaged =
                |e: serde_json::Error| Error::input(file.display(), format!("is damaged: {e}")).hint("delete it");
            return serde_json::from_str(&read_text(&file)?).map_err(damaged);
        }
        let row = self.measure(job)?;
        write_text(&file, &(serde_json::to_string_pretty(&row).expect("numbers are valid JSON") + "\n"))?;
        let errors: Vec<String> =
            row.row.metrics.fields.iter().map(|f| format!("{} {:.4}", f.name, f.sample_error.median)).collect();
        let (task, name) = (&self.task.name, &self.entrant.name);
        job.reporter.note(&format!("{task:8} {name:34} {} ({:.0} s)", errors.join(", "), row.row.seconds));
        Ok(row)
    }

    fn measure(&self, job: &Job<'_>) -> Result<InverseRow> {
        let trained = Trained::load_with(self.base, &self.entrant.settings, job.device)?;
        let cases = self.study.cases.min(self.dataset.valid_count());
        let len = self.dataset.sample_len();
        let truth: Vec<f64> = self.dataset.valid[..cases * len].iter().map(|&v| f64::from(v)).collect();
        let observations = self.observations(&trained, &truth)?;
        let method = trained.blueprint.config.conditioning.method();
        let knowledge = trained.knowledge(method.needs(), self.dataset, job)?;
        let indices: Vec<u64> = (0..self.entrant.samples as u64).collect();
        job.reporter.begin((cases * indices.len() * trained.blueprint.config.sampler.steps) as u64, 0);
        let draw = Draw { seed: SEED, indices: &indices, batch: 64, observed: None };
        let posterior = trained.posterior(&observations, &knowledge, &draw, job)?;
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
            truth: Some(&truth[..len]),
        };
        if let Ok([fields, spread]) = posterior_figures(&view) {
            let picture = softly_figures::svg::Svg::tile(&self.entrant.name, 1, &[fields, spread]);
            write_text(&self.file().with_extension("svg"), &picture.to_string())?;
        }
        let row = PosteriorRow {
            method: self.entrant.name.clone(),
            metrics,
            calls: posterior.calls,
            gradients: posterior.gradients,
            seconds: posterior.seconds,
        };
        Ok(InverseRow { task: self.task.name.clone(), row })
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
