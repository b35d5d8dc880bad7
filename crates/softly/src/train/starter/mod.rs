//! A first configuration for a dataset: `softly init`.
//!
//! Network, batch and steps are sized to the grid, the number of samples and the time that there is. The times are measured:
//! a few training steps with the very network and some of the very samples.

mod page;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use softly_pde::grid::Grid;
use softly_pde::mention::mentions;
use softly_pde::stencil::{Stencil, default_schemes};

use crate::config::Config;
use crate::config::layers::{Layers, UNKNOWN};
use crate::constraint::SoftConstraint;
use crate::constraint::config::{ConstraintConfig, ParameterConfig, ResidualConfig, Residuals};
use crate::constraint::norm::Norm;
use crate::data::dataset::Dataset;
use crate::data::folder::DatasetFolder;
use crate::error::{Error, Result, nearest};
use crate::nn::parameter::Parameters;
use crate::train::Training;
use crate::train::starter::page::Page;
use crate::units::Units;

/// Channels that are chosen from, best first.
const CHANNELS: [usize; 6] = [64, 48, 32, 24, 16, 8];
/// The network that the others' times are estimated from.
const FIRST_TRIED: usize = 16;
/// A step with c channels takes about c to this power as long.
const COST: f64 = 1.6;
/// Steps that are worth more than a wider network.
const ENOUGH_STEPS: f64 = 5000.0;
/// Steps beyond which a training hardly gains.
const MOST_STEPS: u64 = 20_000;
/// Times that a training may see every sample before it learns them by heart.
const MOST_EPOCHS: u64 = 400;
/// The share of the time that is for vanilla; the rest is for adapting it.
const VANILLA_SHARE: f64 = 0.75;
/// Values of a batch beyond which it gets smaller.
const BATCH_NODES: usize = 16 * 128 * 128;
/// Training samples that steps are timed with.
const FEW: usize = 16;
/// Samples that the direction `kalman` is measured with.
const MEASURED: f64 = 128.0;

/// What a first configuration is made from.
#[derive(Debug, Clone)]
pub struct Starter {
    /// Formulas, zero where the equations hold. Empty: those that the dataset knows, if it does.
    pub equations: Vec<String>,
    /// Values of parameters in them.
    pub parameters: BTreeMap<String, f64>,
    /// Time for training and adapting.
    pub budget: Duration,
}

/// A first configuration.
#[derive(Debug, Clone)]
pub struct Start {
    /// The file's text.
    pub text: String,
    /// Parameters whose values are left to be filled in.
    pub unknown: Vec<String>,
    /// Seconds of a training step.
    pub step_seconds: f64,
    /// Steps of the training.
    pub iterations: u64,
    /// Channels of the network's first level.
    pub channels: usize,
}

/// Network, batch and schedule.
#[derive(Debug, Clone)]
struct Sizes {
    channels: usize,
    levels: usize,
    batch: usize,
    shares: usize,
    /// Mean of ln σ in training.
    noise: f64,
}

/// What was measured.
struct Times {
    /// Seconds of a training step.
    step: f64,
    /// Numbers that the network learns.
    parameters: usize,
    /// Seconds of the measurements before adapting and of a step of it; `None` without an equation or if a first value of a
    /// parameter leads nowhere.
    adapt: Option<[f64; 2]>,
}

/// What a configuration is sized by.
struct Measured {
    sizes: Sizes,
    times: Times,
    iterations: u64,
}

impl Measured {
    fn start(&self, text: String, unknown: Vec<String>) -> Start {
        let Self { sizes, times, iterations } = self;
        Start { text, unknown, step_seconds: times.step, iterations: *iterations, channels: sizes.channels }
    }
}

impl Starter {
    /// The configuration for the dataset in `folder`, to be written to `file`.
    pub fn start(&self, folder: &DatasetFolder, file: &Path, device: &Device) -> Result<Start> {
        let grid = &folder.description.grid;
        if grid.is_point() {
            return Err(Error::input(
                folder.path.display(),
                "these data are points; a configuration is for fields on a grid",
            )
            .hint("`softly presets circle-demo` prints a configuration for points"));
        }
        let law = self.law(folder)?;
        let measured = self.measured(law.as_ref(), folder.description.train, &folder.load()?.first(FEW)?, device)?;
        let page = self.page(&measured, law.as_ref(), folder.description.train, grid);
        Ok(measured.start(page.text(folder, file), law.as_ref().map_or(Vec::new(), Law::unknown)))
    }

    /// Network, noise and schedule for data in memory under `constraint`: a configuration without data and equation. Equations
    /// and parameters of the starter do not count.
    pub fn sizes(&self, dataset: &Dataset, constraint: Option<&ConstraintConfig>, device: &Device) -> Result<Start> {
        let few = dataset.first(FEW)?;
        let law = constraint.map(|constraint| Law { constraint: dataset.complete(constraint), own: true });
        let measured = self.measured(law.as_ref(), dataset.train_count(), &few, device)?;
        let page = self.page(&measured, law.as_ref(), dataset.train_count(), &dataset.grid);
        Ok(measured.start(page.sizes(), Vec::new()))
    }

    fn page<'a>(&self, measured: &'a Measured, law: Option<&'a Law>, train: usize, grid: &'a Grid) -> Page<'a> {
        let Measured { sizes, times, iterations } = measured;
        Page { grid, train, law, sizes, times, iterations: *iterations, budget: self.budget }
    }

    /// The largest network that learns enough in the time that there is, timed with a `few` of the `train` samples.
    fn measured(&self, law: Option<&Law>, train: usize, few: &Dataset, device: &Device) -> Result<Measured> {
        let mut sizes = Sizes::of(&few.grid, train);
        let first = sizes.times(law, few, device)?;
        let seconds = VANILLA_SHARE * self.budget.as_secs_f64();
        let estimate = |channels: usize| first.step * (channels as f64 / FIRST_TRIED as f64).powf(COST);
        let enough = |channels: &usize| seconds / estimate(*channels) >= ENOUGH_STEPS;
        sizes.channels = CHANNELS.into_iter().find(enough).unwrap_or(CHANNELS[CHANNELS.len() - 1]);
        let times = if sizes.channels == FIRST_TRIED { first } else { sizes.times(law, few, device)? };
        let epochs = MOST_EPOCHS * train as u64 / sizes.batch as u64;
        let iterations = rounded(seconds / times.step).min(MOST_STEPS).min(epochs).max(100);
        Ok(Measured { sizes, times, iterations })
    }

    /// The equations as a constraint, checked; `None` if there are none.
    fn law(&self, folder: &DatasetFolder) -> Result<Option<Law>> {
        let (names, grid) = (folder.fields(), &folder.description.grid);
        let (constraint, own) = match (&self.equations[..], folder.equation()) {
            ([], Some(own)) => (own, true),
            ([], None) => {
                return match self.parameters.keys().next() {
                    Some(name) => Err(Error::input("--parameter", format!("`{name}` is a parameter of no equation"))
                        .hint("give the equation, too: --equation FORMULA")),
                    None => Ok(None),
                };
            }
            (formulas, _) => (Self::constraint(formulas, &names, grid)?, false),
        };
        let mut law = Law { constraint, own };
        for (name, value) in &folder.description.constants {
            if let Some(parameter) = law.constraint.parameters.get_mut(name) {
                *parameter = ParameterConfig::Number(*value);
            }
        }
        for (name, value) in &self.parameters {
            if let Some(parameter) = law.constraint.parameters.get_mut(name) {
                *parameter = ParameterConfig::Number(*value);
                continue;
            }
            let known = law.constraint.parameters.keys().map(String::as_str);
            let hint = nearest(name, known).map_or(String::new(), |near| format!("did you mean `{near}`?"));
            return Err(Error::input("--parameter", format!("no equation contains `{name}`")).hint(hint));
        }
        SoftConstraint::new(&law.tried(), &names, grid, &Units::identity(names.len())).map_err(in_equation)?;
        Ok(Some(law))
    }

    /// `formulas` as a constraint on the fields of the data that they contain.
    fn constraint(formulas: &[String], names: &[String], grid: &Grid) -> Result<ConstraintConfig> {
        let mut fields: Vec<String> = Vec::new();
        let mut parameters = BTreeMap::new();
        for formula in formulas {
            let found = mentions(formula, grid).map_err(|e| Error::input("--equation", e))?;
            if !found.iter().any(|mention| names.contains(&mention.name)) {
                let problem = format!("`{formula}` contains no field of the data; they have {}", names.join(", "));
                return Err(Error::input("--equation", problem).hint("write the equation in the names of the data"));
            }
            for name in found.into_iter().map(|mention| mention.name) {
                if names.contains(&name) {
                    if !fields.contains(&name) {
                        fields.push(name);
                    }
                } else if grid.find(&name).is_none() && name != "pi" {
                    parameters.insert(name, ParameterConfig::Formula(UNKNOWN.into()));
                }
            }
        }
        let residual = match formulas {
            [one] => Residuals::One(one.clone()),
            several => Residuals::Many(several.iter().map(|formula| whole_grid(formula)).collect()),
        };
        let schemes = grid.axes.iter().zip(default_schemes(grid)).map(|(axis, scheme)| (axis.name.clone(), scheme));
        Ok(ConstraintConfig {
            fields,
            residual,
            stencil: Stencil::PerAxis(schemes.collect()),
            stencils: BTreeMap::new(),
            norm: Norm::L1Mean,
            parameters,
        })
    }
}

/// A formula that holds at every node.
fn whole_grid(formula: &str) -> ResidualConfig {
    ResidualConfig { formula: formula.into(), region: softly_pde::region::Region::All, weight: 1.0, name: None }
}

/// An error of a compiled equation as one of the command line.
fn in_equation(error: Error) -> Error {
    match error {
        Error::Input { place, problem, hint } => Error::input(format!("--equation, {place}"), problem).hint(hint),
        other => other,
    }
}

/// An equation on its way into a file.
struct Law {
    constraint: ConstraintConfig,
    /// Whether the dataset brought it along.
    own: bool,
}

impl Law {
    /// Parameters whose values nobody has said.
    fn unknown(&self) -> Vec<String> {
        let unknown = ParameterConfig::Formula(UNKNOWN.into());
        self.constraint.parameters.iter().filter(|(_, p)| **p == unknown).map(|(name, _)| name.clone()).collect()
    }

    /// The equation with ones for unknown values, to try it.
    fn tried(&self) -> ConstraintConfig {
        let mut constraint = self.constraint.clone();
        for name in self.unknown() {
            constraint.parameters.insert(name, ParameterConfig::Number(1.0));
        }
        constraint
    }
}

impl Sizes {
    /// The first network to try for `train` samples on `grid`.
    fn of(grid: &Grid, train: usize) -> Self {
        let shorter = grid.rows().min(grid.cols());
        // The deepest level has 8 nodes or more along the shorter side.
        let levels = (1..5).filter(|level| shorter >> level >= 8).count() + 1;
        let batch = (BATCH_NODES / grid.len()).clamp(4, 16).min(train);
        let threads = rayon::current_num_threads().min(batch).min(8);
        let side = (grid.len() as f64).sqrt();
        Self {
            channels: FIRST_TRIED,
            levels: levels.max(2),
            batch,
            // The largest power of two that is not above the threads.
            shares: 1 << threads.ilog2(),
            // Neighbours of a finer grid say the same thing more often, and so hide the same field in more noise.
            noise: (10.0 * (-2.0 + 0.5 * (side / 32.0).max(1.0).ln())).round() / 10.0,
        }
    }

    fn multipliers(&self) -> Vec<usize> {
        (0..self.levels).map(|level| if level == 0 { 1 } else { 2 }).collect()
    }

    /// The configuration of `method` with these sizes.
    fn config(&self, law: Option<&Law>, method: &str, grid: &Grid) -> Result<Config> {
        let Self { channels, batch, shares, .. } = self;
        let mut layers = Layers::new();
        if let Some(law) = law {
            let table = BTreeMap::from([("constraint", law.tried())]);
            let text = toml::to_string(&table).map_err(|e| Error::input("--equation", e))?;
            layers = layers.text(&text, "--equation")?;
        }
        let settings = [
            format!("denoiser.backbone={{channels={channels}, multipliers={:?}}}", self.multipliers()),
            format!("train={{batch={batch}, shares={shares}}}"),
        ];
        layers.over_field_defaults(grid)?.method(method)?.with_settings(&settings)?.finish("init")
    }

    /// Times steps with this network on `few` samples.
    fn times(&self, law: Option<&Law>, few: &Dataset, device: &Device) -> Result<Times> {
        let vanilla = self.config(law, "vanilla", &few.grid)?;
        let mut training = Training::new(&vanilla, few.clone(), device)?;
        let step = timed_steps(&mut training)?;
        let parameters = training.model.count_parameters();
        let Some(law) = law else { return Ok(Times { step, parameters, adapt: None }) };
        let config = self.config(Some(law), "adapt", &few.grid)?;
        let start = Instant::now();
        let adapting = Training::adapt(&training.snapshot(), Path::new("init"), &config, few.clone(), device);
        let measuring = start.elapsed().as_secs_f64() * MEASURED / few.train_count().max(1) as f64;
        // A parameter that is wrong by orders of magnitude may ruin the step, and some equations lack such directions.
        let adapt = adapting.and_then(|mut adapting| Ok([measuring, timed_steps(&mut adapting)?])).ok();
        Ok(Times { step, parameters, adapt })
    }
}

/// Seconds of a step: the shorter of two, after one that finds its memory.
fn timed_steps(training: &mut Training) -> Result<f64> {
    training.step()?;
    let mut shortest = f64::INFINITY;
    for _ in 0..2 {
        let start = Instant::now();
        training.step()?;
        shortest = shortest.min(start.elapsed().as_secs_f64());
    }
    Ok(shortest)
}

/// A number of steps with two digits that say something.
fn rounded(steps: f64) -> u64 {
    let unit = 10f64.powf((steps.max(1.0).log10().floor() - 1.0).max(0.0));
    ((steps / unit).floor() * unit) as u64
}
