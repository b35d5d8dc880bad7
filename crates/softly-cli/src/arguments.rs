//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use softly::{Compliance, Conditioning};
use softly_pde::darcy::Discretisation;
use softly_studies::{Ablation, Shard, StudyScale};

/// Diffusion models of PDE solutions that know their PDE softly.
#[derive(Debug, Parser)]
#[command(
    name = "softly",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  softly reproduce darcy                           Darcy flow on a small grid in ten minutes, with a report
  softly reproduce circle                          the toy study in a few minutes
  softly train --preset circle-demo --method scd --out runs/scd
  softly sample runs/scd --count 1000 --out samples
  softly eval runs/scd
  softly data generate --preset darcy-demo --out data/darcy
  softly presets circle-demo                       print a preset"
)]
pub struct Arguments {
    /// Threads to use; all cores by default.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a study end to end: data, every method, metrics, table.json and report.html.
    #[command(after_help = "\
Examples:
  softly reproduce darcy                           16×16 nodes, every method, right and wrong source: ten minutes
  softly reproduce circle                          two curves, short trainings: a few minutes
  softly reproduce circle --scale paper --seeds 1  the paper's trainings with one seed
  softly reproduce darcy --study noise             an ablation, in the folder of the main study
  softly reproduce inverse                         fields from thirty sensors, every method of conditioning
Run the same command again to go on after an interruption.")]
    Reproduce(Reproduce),
    /// List the presets, or print one.
    #[command(after_help = "\
Examples:
  softly presets
  softly presets circle-demo --method scd          resolved with a method laid over it
  softly presets --schema > softly.schema.json     for editors: `#:schema softly.schema.json` at the top of a file")]
    Presets {
        /// The preset to print.
        name: Option<String>,
        /// Lay a method of the preset over it.
        #[arg(long, requires = "name")]
        method: Option<String>,
        /// Print the JSON Schema of configuration files instead, for editors that complete them.
        #[arg(long, conflicts_with = "name")]
        schema: bool,
    },
    /// Make datasets and look at them.
    #[command(
        after_help = "Examples:\n  softly data import burgers.hdf5 --out data/burgers && softly data inspect data/burgers\n  softly data generate --preset darcy-demo --out data/darcy && softly data inspect data/darcy"
    )]
    Data {
        /// What to do with data.
        #[command(subcommand)]
        kind: Data,
    },
    /// Write a first configuration for a dataset: network, noise and steps sized to the grid and to your time.
    #[command(after_help = "\
Examples:
  softly init data/burgers --equation 'dt(u) + u*dx(u) - nu*dxx(u)' --parameter nu=0.01 --out my.toml
  softly init data/darcy --budget 10m --out my.toml       with the equation that the dataset brought along
A few steps of training are timed. Names in the equation that are neither fields nor axes are its parameters: give their
values, or fill them in later. Then: softly train --config my.toml --method vanilla --out runs/vanilla")]
    Init(Init),
    /// Train a model, or go on with a training.
    #[command(after_help = "\
Examples:
  softly train --preset circle-demo --method scd --out runs/scd
  softly train --preset circle-demo --set train.iterations=2000 --set data.generator.curve.shape=dent --out runs/dent
  softly train --config my.toml --out runs/mine
Ctrl-C saves a checkpoint; the same command goes on from there. A larger train.iterations goes on with a finished run.")]
    Train {
        /// What to train.
        #[command(flatten)]
        source: Source,
        /// Folder of the run.
        #[arg(long, value_name = "RUN")]
        out: PathBuf,
        /// Where to compute.
        #[command(flatten)]
        compute: Compute,
    },
    /// Freeze a trained denoiser and train a soft constraint on top of it, or go on with that.
    #[command(after_help = "\
Examples:
  softly adapt runs/vanilla --preset darcy-demo --method scd --out runs/adapted
  softly adapt runs/vanilla --config my.toml --set constraint.parameters.flow={learn=15.0} --out runs/learned
Whatever is not said comes from the snapshot: network, data, constraint. Training is short unless a file or a method
says otherwise: a preset's [train] is for whole networks. The result is a run like any other.")]
    Adapt {
        /// A run folder or a snapshot file: the denoiser to freeze.
        #[arg(value_name = "RUN|SNAPSHOT")]
        base: PathBuf,
        /// What to put on top of it.
        #[command(flatten)]
        source: Source,
        /// Folder of the new run.
        #[arg(long, value_name = "RUN")]
        out: PathBuf,
        /// Where to compute.
        #[command(flatten)]
        compute: Compute,
    },
    /// Draw samples from a trained model.
    #[command(after_help = "\
Examples:
  softly sample runs/scd --count 1000 --out samples
  softly sample runs/vanilla --count 100 --guidance 0.2 --steps 50 --out guided
  softly sample runs/vanilla --solver heun --steps 100 --spacing karras --out slow     the paper's sampler
  softly sample runs/adapted --compliance 1.5 --out closer    beyond what was learned, toward the constraint
  softly sample runs/adapted --compliance full --out solved   projected onto it in the last steps
  softly sample runs/operator --grid 64x64 --out finer        on a grid that the network was not trained on
  softly sample runs/operator --grid 64x64 --restart 1 --out refined   on the trained grid first, then refined
  softly sample runs/vanilla --observe sensors.csv --noise p=1% --count 64 --out posterior   given measurements
  softly sample runs/vanilla --observe p=known.npy --noise p=0.001 --conditioning dps --out guided
A table of sensors begins with a line such as `field,x,y,value,sd`; a field may be a formula such as K*dx(p), and a
coordinate a range a:b, over which the reading is a mean. An array holds NaN where nothing was measured; [N, H, W]
gives N cases, and `--count` samples are drawn of each.")]
    Sample {
        /// What to sample from.
        #[command(flatten)]
        sampling: Sampling,
        /// What the samples are given.
        #[command(flatten)]
        observing: Observing,
        /// Sample indices A-B (both included) instead of 0 to count−1: sample i is the same in any range.
        #[arg(long, value_name = "A-B", conflicts_with = "count")]
        seeds: Option<String>,
        /// Draw on the trained grid, interpolate to `--grid`, add noise of this level and denoise there.
        #[arg(
            long,
            value_name = "SIGMA",
            requires = "grid",
            conflicts_with = "observe",
            allow_negative_numbers = true
        )]
        restart: Option<f64>,
        /// Folder for the arrays, one `<field>.npy` each (and `points.npy` for points).
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Measure a trained model: numbers with spread and n, next to the data's own.
    #[command(after_help = "\
Examples:
  softly eval runs/scd
  softly eval runs/vanilla --scales 0.01,0.05,0.2  with DPS guidance at several scales
  softly eval runs/darcy --count 256 --metrics residual,nll
  softly eval runs/darcy --set constraint.parameters.flow=15.0 --guidance 1e-4
  softly eval runs/adapted --sweep compliance --count 256 --out front
  softly eval runs/vanilla --metrics explained     is the equation worth a training?
  softly eval runs/learned --metrics parameters    how well the data know the learned parameters
  softly eval runs/darcy --observe p=15 --observe K=15 --noise 1% --out posterior   fields from 15 + 15 sensors
Residuals are of [truth], which is the data's own equation unless it was given, else of [constraint]; without either
they are left out. Numbers of a run as it is are kept in RUN/eval for `softly report`.")]
    Eval(Eval),
    /// One call of a trained denoiser on arrays.
    #[command(after_help = "\
Examples:
  softly denoise runs/scd --input x.npy --sigma s.npy --out d.npy
  softly denoise edm2.safetensors --input x.npy --sigma s.npy --out d.npy
Weights of EDM2 networks are read, too: PyTorch's names, with img_resolution, img_channels, model_channels, channel_mult,
num_blocks, attn_resolutions and sigma_data in the header. The input is [N, C, H, W] in the network's normalised units (points are 1×1 images), sigma is [N].")]
    Denoise {
        /// A run folder or a snapshot file.
        #[arg(value_name = "RUN|SNAPSHOT")]
        model: PathBuf,
        /// Noisy fields [N, C, H, W].
        #[arg(long, value_name = "FILE")]
        input: PathBuf,
        /// Their noise levels [N].
        #[arg(long, value_name = "FILE")]
        sigma: PathBuf,
        /// File for the estimates of the clean fields, [N, C, H, W].
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Where to compute.
        #[command(flatten)]
        compute: Compute,
    },
    /// The residual of arrays under a constraint.
    #[command(after_help = "\
Examples:
  softly residual --config darcy.toml --field p=p.npy --field K=K.npy --out r.npy
  softly residual --config burgers.toml --field u=u.npy --axes t,x --domain t=0:2 --periodic x
The arrays are [H, W] or [N, H, W]; only the [constraint] table of the file is used.")]
    Residual {
        /// File with a [constraint] table.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// A field and its array.
        #[arg(long = "field", value_name = "NAME=FILE", required = true)]
        fields: Vec<String>,
        /// The axes of the arrays: x,y on the unit square unless said otherwise.
        #[command(flatten)]
        axes: AxisOptions,
        /// Write the residual as an array.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Pages of studies and of trainings, with a verdict on the constraint in plain words.
    #[command(after_help = "\
Examples:
  softly report runs/adapted                       report.html in its folder: with and without the constraint
  softly report runs/vanilla runs/adapted --out page.html
  softly report runs/darcy-demo                    a study: report.html (and report-NAME.html) from table.json
A page of trainings has the verdict, samples and residual maps beside data, distributions, curves by noise level and
learned parameters; its figures are also files in PAGE-figures. What `softly eval` has left in a run is used if it is
fresh; the rest is measured with a few samples and kept there. The first run without a constraint is what others are
compared with; if there is none, an adapted run is compared with its frozen base.")]
    Report {
        /// The folder of a study, or of one or more trainings.
        #[arg(value_name = "RUN", required = true)]
        folders: Vec<PathBuf>,
        /// File of the page: beside the table, or in the folder of a single training by default.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Where to compute.
        #[command(flatten)]
        compute: Compute,
    },
    /// Write a run for other programs: curves for TensorBoard, fields for ParaView; or a smaller snapshot to share.
    #[command(after_help = "\
Examples:
  softly export runs/scd --to tensorboard          then: tensorboard --logdir runs
  softly export runs/scd --to tensorboard --follow while it trains in another window
  softly export runs/scd --to vti --count 4        samples with their residuals, one .vti file each
  softly export runs/scd --to vti --data           held-out data of the run instead
  softly export data/darcy --to vti --out fields   held-out data of a dataset folder
  softly export runs/scd --to half --out shared    shared/snapshot.safetensors: sample, eval, adapt take it as it is")]
    Export(Export),
    /// Reference solutions of the studies' equations.
    #[command(after_help = "Example:\n  softly solve darcy --permeability K.npy --out p.npy")]
    Solve {
        /// Which equation.
        #[command(subcommand)]
        kind: Solve,
    },
    /// Distances between samples.
    #[command(after_help = "Example:\n  softly distance w1 samples/points.npy truth.npy")]
    Distance {
        /// Which distance.
        #[command(subcommand)]
        kind: Distance,
    },
    /// Time and memory of a training step, a denoiser call or a batch of samples, on synthetic data.
    #[command(after_help = "\
Examples:
  softly bench train-step --preset circle-paper --method scd --threads 1
  softly bench denoise --preset darcy-paper --batch 4 --json
  softly bench sample --preset darcy-demo --method adapt --profile   where does the time go?
  softly bench train-step --preset circle-demo --rounds 1000   does memory grow?
The data are random plane waves of the preset's shape; nothing is generated or written.")]
    Bench(Bench),
    /// Versions, device and threads.
    #[command(after_help = "Example:\n  softly info --json")]
    Info,
    /// Shell completions on stdout.
    #[command(after_help = "Example:\n  softly completions bash > /etc/bash_completion.d/softly")]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// What to write a first configuration for.
#[derive(Debug, Args)]
pub struct Init {
    /// A dataset folder.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// A formula that is zero where the equation holds; may be repeated. The dataset's own equation by default.
    #[arg(long = "equation", value_name = "FORMULA", allow_hyphen_values = true)]
    pub equations: Vec<String>,
    /// The value of a parameter of the equation; may be repeated.
    #[arg(long = "parameter", value_name = "NAME=NUMBER")]
    pub parameters: Vec<String>,
    /// Time for training and adapting, such as 90s, 30m or 2h.
    #[arg(long, value_name = "TIME", default_value = "30m")]
    pub budget: String,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

/// What to write for other programs and people.
#[derive(Debug, Args)]
pub struct Export {
    /// A run folder; with `--to vti` also a snapshot file or a dataset folder, with `--to half` also a snapshot file.
    #[arg(value_name = "RUN")]
    pub source: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    pub to: ViewerName,
    /// Folder for the files: `tensorboard`, `vti` or `half` inside RUN by default.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with every new line of metrics until the training ends or Ctrl-C is pressed (tensorboard).
    #[arg(long)]
    pub follow: bool,
    /// Samples to write (vti).
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub count: u32,
    /// Seed of the samples (vti).
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Held-out data of the run instead of samples (vti).
    #[arg(long)]
    pub data: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

/// What the files are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ViewerName {
    /// TensorBoard: an event file of loss, gradient norm, rate and learned parameters.
    Tensorboard,
    /// VTK and ParaView: image data, one file per sample.
    Vti,
    /// Sharing: the snapshot with weights rounded to half precision, half as many bytes.
    Half,
}

/// What to measure of a trained model.
#[derive(Debug, Args)]
pub struct Eval {
    /// What to sample from.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Estimates of `--count` samples each.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub sets: u32,
    /// Guidance scales to compare, for a model without guidance of its own.
    #[arg(long, value_delimiter = ',', value_name = "SCALE,…", allow_negative_numbers = true, value_parser = not_negative)]
    pub scales: Vec<f64>,
    /// Dataset folder to compare with, instead of the run's own data (models of fields).
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// What to measure of a model of fields besides its samples, or of any model instead of them.
    #[arg(long, value_delimiter = ',', value_name = "METRIC,…")]
    pub metrics: Vec<MetricName>,
    /// What the samples are given: measurements of held-out samples, which the posterior is judged by.
    #[command(flatten)]
    pub observing: Observing,
    /// Held-out samples that are measured.
    #[arg(long, default_value_t = 16, requires = "observe", value_parser = clap::value_parser!(u32).range(1..))]
    pub cases: u32,
    /// Compare the values of a dial: residual against likelihood and marginal distances.
    #[arg(long, value_name = "DIAL", conflicts_with_all = ["compliance", "scales", "metrics", "observe"])]
    pub sweep: Option<SweepName>,
    /// Folder for `sweep.json` and `sweep.svg`, or for `posterior.json` and `posterior.html`.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// A study and its scale.
#[derive(Debug, Args)]
pub struct Reproduce {
    /// The study.
    pub study: Study,
    /// How much of it.
    #[arg(long, value_name = "demo|cpu|long|paper", default_value = "demo")]
    pub scale: StudyScale,
    /// Folder for everything; `runs/<study>-<scale>` by default.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Number of seeds, instead of the scale's own.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,
    /// An ablation instead of the main tables: noise, scale, joint, gamma or sampling; table-NAME.json and report-NAME.html
    /// (darcy and helmholtz, one seed).
    #[arg(long = "study", value_name = "NAME", conflicts_with = "seeds")]
    pub ablation: Option<Ablation>,
    /// Print the study's cells, the parts that can be done by themselves, and do nothing.
    #[arg(long, conflicts_with_all = ["only", "shard"])]
    pub list_cells: bool,
    /// Do one cell, and the cells that it needs; the process that finishes the last one writes the table and the page.
    #[arg(long, value_name = "CELL", conflicts_with = "shard")]
    pub only: Option<String>,
    /// Do the i-th of n parts of the cells, likewise. Several processes share one folder, on any machines.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

/// A study.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Study {
    /// Points on a circle, a dented and a chopped one.
    Circle,
    /// Darcy flow, with a source strength that is given right or wrong.
    Darcy,
    /// The Helmholtz equation, with an uncertain wave number.
    Helmholtz,
    /// Darcy flow from measurements: every method of conditioning on one denoiser.
    Inverse,
    /// Training data with noise: parameters of three equations, fitted directly and through denoisers.
    Noisy,
}

/// Where a configuration comes from.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = true)]
pub struct Source {
    /// A preset (`softly presets` lists them). Fields on a grid without one have the defaults of the preset `fields`.
    #[arg(long, value_name = "P")]
    pub preset: Option<String>,
    /// A configuration file, laid over the preset if there is one; paths in it are relative to its folder.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A method of the preset or file, laid over it.
    #[arg(long, value_name = "NAME")]
    pub method: Option<String>,
    /// Change one setting, e.g. train.rate=1e-3; may be repeated.
    #[arg(long = "set", value_name = "A.B=C")]
    pub settings: Vec<String>,
}

/// What to measure.
#[derive(Debug, Args)]
pub struct Bench {
    /// The work of one round.
    #[arg(value_name = "WORK")]
    pub work: BenchWork,
    /// The configuration to measure.
    #[command(flatten)]
    pub source: Source,
    /// Samples per round, instead of the training's batch.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch: Option<u32>,
    /// Rounds to measure, after a warm-up.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rounds: u32,
    /// Also say where the time goes: network, way back, constraint, transforms, optimiser, copies, waiting.
    #[arg(long)]
    pub profile: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

/// The work of one round.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum BenchWork {
    /// A whole training step: noise, forward, backward, optimiser, average.
    TrainStep,
    /// One denoiser call, without gradients.
    Denoise,
    /// A batch of samples with the configured sampler.
    Sample,
}

/// What to sample from and how.
#[derive(Debug, Args)]
pub struct Sampling {
    /// A run folder or a snapshot file.
    #[arg(value_name = "RUN|SNAPSHOT")]
    pub model: PathBuf,
    /// Number of samples: 1000 by default; given measurements, 64 of each case (`eval`: 39).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Seed of the samples.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How steps are taken, instead of the run's way: euler, heun, ancestral, dpm-2m, dpm-3m, unipc or fitted.
    #[arg(long, value_name = "NAME")]
    pub solver: Option<String>,
    /// Sampler steps, instead of the run's. A step is a network call, of heun two.
    #[arg(long, allow_negative_numbers = true)]
    pub steps: Option<usize>,
    /// Spacing of the noise levels, instead of the run's: karras, log-uniform, or fitted to the model.
    #[arg(long, value_name = "NAME")]
    pub spacing: Option<String>,
    /// Noise put back in every step of dpm-2m, dpm-3m and unipc: 0 follows the ODE, 1 the reverse SDE.
    #[arg(long, allow_negative_numbers = true, value_parser = not_negative)]
    pub eta: Option<f64>,
    /// Smallest noise level, instead of the run's.
    #[arg(long, allow_negative_numbers = true)]
    pub sigma_min: Option<f64>,
    /// DPS guidance scale.
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true, value_parser = not_negative)]
    pub guidance: Option<f64>,
    /// How much of a soft constraint is applied: 0 is the model below it, 1 as learned, more is closer to the constraint, and
    /// `full` projects onto it in the last steps (with the direction `newton`).
    #[arg(long, value_name = "C", allow_negative_numbers = true)]
    pub compliance: Option<Compliance>,
    /// Another grid than the trained one over the same domain, such as 64x64 (models whose network is an `operator`).
    #[arg(long, value_name = "ROWSxCOLS", value_parser = grid_size)]
    pub grid: Option<[usize; 2]>,
    /// Samples per batch; the samples do not depend on it.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
    /// Set any value of the run's configuration (a.b.c=value), for example the constraint of guidance; may be repeated. A soft
    /// constraint stays the one that it was trained with.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

/// Reads `64x64`, rows and columns.
fn grid_size(text: &str) -> Result<[usize; 2], String> {
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|nodes| (2..=MOST_NODES).contains(nodes));
    let sides = text.split_once(['x', '×']).and_then(|(rows, cols)| Some([number(rows)?, number(cols)?]));
    sides.ok_or_else(|| format!("expected rows and columns from 2 to {MOST_NODES}, such as 64x64"))
}

/// Most points along an axis of `--grid`.
const MOST_NODES: usize = 4096;

impl Sampling {
    /// Number of samples without measurements.
    pub fn count(&self) -> u32 {
        self.count.unwrap_or(1000)
    }
}

/// What samples are given.
#[derive(Debug, Args)]
pub struct Observing {
    /// Measurements: a table of sensors, or NAME=array.npy with NaN where nothing is known; may be repeated. `eval` measures
    /// held-out samples: NAME=30 at thirty random nodes, NAME=all at every node, or at the places of a table.
    #[arg(long, value_name = "FILE|NAME=…")]
    pub observe: Vec<String>,
    /// Noise of measurements that do not say their own: a standard deviation, p=0.01, or a share of the field's deviation in the
    /// training data, p=1%, or 1% for all fields; may be repeated.
    #[arg(long, value_name = "NAME=SD", requires = "observe")]
    pub noise: Vec<String>,
    /// How samples are conditioned, with settings `--set conditioning.KEY=…`; kalman by default.
    #[arg(long, value_name = "METHOD", requires = "observe", value_parser = clap::builder::PossibleValuesParser::new(Conditioning::NAMES))]
    pub conditioning: Option<String>,
}

/// Reads a finite number that is not negative.
fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "expected a number ≥ 0".into())
}

/// Where to compute.
#[derive(Debug, Args)]
pub struct Compute {
    /// Device: cpu, or a GPU back end that the program was built with (wgpu, vulkan, metal, cuda, rocm).
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub device: String,
}

/// What is measured of a model of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MetricName {
    /// Residual of samples, solver error, boundary, neighbours. Always on.
    Residual,
    /// Marginals, amplitudes and spectra. Always on.
    Marginals,
    /// Likelihood by the probability-flow ODE, variational bound, loss by noise level.
    Nll,
    /// How much of the denoiser's error each direction of the constraint explains, by noise level. Instead of samples.
    Explained,
    /// Confidence intervals of learned parameters of the constraint. Instead of samples.
    Parameters,
}

/// A dial to compare the values of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SweepName {
    /// `--compliance` at 0, 0.5, 1, 1.5, 2 and, where the model can, full.
    Compliance,
}

/// Which distance.
#[derive(Debug, Subcommand)]
pub enum Distance {
    /// Exact Wasserstein-1 with the Euclidean distance, between point clouds [N, 2].
    #[command(after_help = "Example:\n  softly distance w1 samples/points.npy truth.npy")]
    W1 {
        /// Points [N, 2].
        a: PathBuf,
        /// Points [M, 2].
        b: PathBuf,
    },
}

/// Names, ends and kinds of the two axes of arrays.
#[derive(Debug, Args)]
pub struct AxisOptions {
    /// Names of the axes, e.g. t,x.
    #[arg(long, value_delimiter = ',', value_name = "AXIS,…")]
    pub axes: Vec<String>,
    /// Ends of the domain along an axis, e.g. x=0:1; may be repeated.
    #[arg(long, value_name = "AXIS=FIRST:LAST", allow_hyphen_values = true)]
    pub domain: Vec<String>,
    /// Periodic axes.
    #[arg(long, value_delimiter = ',', value_name = "AXIS,…")]
    pub periodic: Vec<String>,
    /// Where numbers sit along the space axes.
    #[arg(long, value_enum)]
    pub placement: Option<PlacementName>,
}

/// What to import and how to take it.
#[derive(Debug, Args)]
pub struct Import {
    /// Files; several are joined, as more samples or as more fields. Or a folder with arrays and a dataset.toml that names
    /// fields and axes.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A field and its array, or a number of samples and its list; may be repeated.
    #[arg(long = "field", value_name = "NAME=FILE[:ARRAY]")]
    pub fields: Vec<String>,
    /// Folder of the dataset; without it a folder with a dataset.toml is completed where it is.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The axes, where the files do not say; of an unknown array all names, `sample` and `channel` included.
    #[command(flatten)]
    pub axes: AxisOptions,
    /// Keep every n-th entry along an axis, e.g. t=4; may be repeated.
    #[arg(long, value_name = "AXIS=N")]
    pub stride: Vec<String>,
    /// Keep one entry along an axis, counted from 0, e.g. z=32; may be repeated.
    #[arg(long, value_name = "AXIS=INDEX")]
    pub slice: Vec<String>,
    /// Keep the frames A to B (entries along t, counted from 0).
    #[arg(long, value_name = "A-B")]
    pub frames: Option<String>,
    /// Leave out samples with NaN or infinite values instead of refusing them.
    #[arg(long)]
    pub drop_nan: bool,
    /// The numbers of samples (a viscosity, say) that are kept, or `none`; by default all but the time of frames.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub scalars: Option<Vec<String>>,
    /// Share of the samples that is held out.
    #[arg(long, default_value_t = 0.1, value_name = "SHARE", allow_negative_numbers = true)]
    pub valid: f64,
}

/// Where numbers sit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlacementName {
    /// On nodes, the ends of the domain included.
    Nodes,
    /// In the middle of cells.
    Cells,
}

/// A layout of other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportName {
    /// The Well: groups `t0_fields`, `dimensions`, `boundary_conditions`.
    TheWell,
    /// PDEBench: one array per field with coordinates.
    Pdebench,
}

/// What to do with data.
#[derive(Debug, Subcommand)]
pub enum Data {
    /// What is in an array file of another program, and what softly takes it for.
    #[command(after_help = "\
Examples:
  softly data describe 2D_DarcyFlow_beta1.0_Train.hdf5
  softly data describe burgers.npz --json
Read are .npy, .npz, CSV, MATLAB (v5 to v7.3), HDF5 and NetCDF-4 files, whatever their names.")]
    Describe {
        /// The file.
        file: PathBuf,
    },
    /// Make a dataset folder from array files of other programs, or go on with one.
    #[command(after_help = "\
Examples:
  softly data import 1D_Burgers_Sols_Nu0.01.hdf5 --out data/burgers
  softly data import --field u=run.npz:u --axes t,x --domain t=0:2 --domain x=0:1 --periodic x --out data/mine
  softly data import trajectories.h5 --stride t=4 --frames 0-100 --out data/short
  softly data import --field u=u.npy --field nu=nu.npy --axes t,x --out data/many   nu: one number per sample
  softly data import data/mine            completes a folder of .npy arrays and a dataset.toml with fields and axes
PDEBench, The Well, FNO's and DiffusionPDE's .mat, and PIDM's CSV files are recognised; `softly data describe FILE` says what
a file is taken for. A grid has two axes: [N, t, x] gives samples in space and time, [N, t, x, y] one sample per frame. The
last share of the samples is held out. Ctrl-C keeps what is done; the same command goes on from there.")]
    Import(Import),
    /// Write a dataset in the layout of The Well or PDEBench (HDF5).
    #[command(after_help = "Example:\n  softly data export data/darcy --to pdebench --out darcy.hdf5")]
    Export {
        /// A dataset folder.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The layout.
        #[arg(long, value_enum)]
        to: ExportName,
        /// The file; training and held-out samples follow each other in it.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Generate a dataset folder, or go on with one.
    #[command(after_help = "\
Examples:
  softly data generate --preset darcy-demo --out data/darcy
  softly data generate --preset helmholtz-paper --count 2000 --out data/helmholtz
  softly data generate --preset darcy-cpu --set data.generator.flow=5 --out data/weak
The folder holds dataset.toml, train/<field>.npy and valid/<field>.npy, each [N, H, W] f4. Sample i is the same whatever
the count and the threads. Ctrl-C keeps what is done; the same command goes on from there.")]
    Generate {
        /// What to generate: its [data] table.
        #[command(flatten)]
        source: Source,
        /// Folder of the dataset.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Training samples, with held-out ones in the proportion of the preset.
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        count: Option<u64>,
        /// Seed of the samples.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Do the data obey an equation? Ranges, distributions, and an audit of the residual with a verdict.
    #[command(after_help = "\
Examples:
  softly data inspect data/darcy                   under the equation that the data were made with
  softly data inspect data/mine --config my.toml   under the [constraint] of a file
  softly data inspect data/mine --config my.toml --fit nu,beta --report audit.html
  softly data inspect data/darcy --plot fields.png --json
The audit compares the residual with the terms of the equation, says where it is and how much of it is discretisation,
and tries the classical slips: spacing, time step, sign, factor, exchanged axes, cells for nodes, normalised fields,
other parameters.
A dataset whose files have changed since it was made ends with exit code 2.")]
    Inspect {
        /// A dataset folder.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// File whose [constraint] gives the equation, instead of the dataset's own.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Fit these numbers of [constraint.parameters] to the data by least squares.
        #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
        fit: Vec<String>,
        /// Draw some samples into a file that ends in .svg or .png.
        #[arg(long, value_name = "FILE")]
        plot: Option<PathBuf>,
        /// Write the audit with figures into one HTML file.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
}

/// Which equation to solve.
#[derive(Debug, Subcommand)]
pub enum Solve {
    /// Darcy flow: the pressure of a permeability, `∇·(K∇p) + f = 0` without flux through the sides.
    #[command(after_help = "\
Examples:
  softly solve darcy --permeability K.npy --out p.npy
  softly solve darcy --permeability K.npy --flow 5 --discretisation mirror --out p.npy
The arrays are [H, W] or [N, H, W] on the unit square; f is +flow where x, y ≤ 1/8 and -flow where x, y ≥ 7/8.")]
    Darcy {
        /// Permeability K, positive.
        #[arg(long, value_name = "FILE")]
        permeability: PathBuf,
        /// Strength of source and sink.
        #[arg(long, default_value_t = 10.0, allow_negative_numbers = true)]
        flow: f64,
        /// How the equation is discretised.
        #[arg(long, value_name = "one-sided-2|mirror", default_value = "one-sided-2")]
        discretisation: Discretisation,
        /// File for the pressure p, of zero mean.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// The Helmholtz equation: `∇²u + k²u = a` with u = 0 on the border.
    #[command(after_help = "\
Examples:
  softly solve helmholtz --source a.npy --out u.npy
  softly solve helmholtz --source a.npy --wave-number 4 --out u.npy
The arrays are [H, W] or [N, H, W] on the unit square.")]
    Helmholtz {
        /// Source a.
        #[arg(long, value_name = "FILE")]
        source: PathBuf,
        /// Wave number k.
        #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
        wave_number: f64,
        /// File for the solution u.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}
