//! `softly bench`: time and memory of the library's own training step, denoiser and sampler, on synthetic data.

use std::collections::BTreeMap;
use std::f64::consts::{SQRT_2, TAU};
use std::time::Instant;

use burn::tensor::{Tensor, TensorData};
use serde::Serialize;
use softly::error::{Error, Result};
use softly::job::Silent;
use softly::profile;
use softly::random::{Purpose, Stream};
use softly::tensors::to_vec_f32;
use softly::{Blueprint, Config, Dataset, Denoiser, Parameters, Sampler, Split, Training, Unobserved, Values, device};
use softly_pde::grid::Grid;

use crate::arguments::{Bench, BenchWork};
use crate::configuration::{configuration, run_info};
use crate::interrupt::job;
use crate::output::{print, print_json};

/// Rounds that are not counted: they find the memory that later ones reuse.
const WARM_UP: usize = 2;
/// Synthetic samples.
const SAMPLES: usize = 64;

/// What was measured.
#[derive(Debug, Serialize)]
struct Measured {
    work: &'static str,
    /// Shortest, middle and longest round.
    seconds_min: f64,
    seconds_median: f64,
    seconds_max: f64,
    /// By the median.
    samples_per_second: f64,
    batch: usize,
    rounds: usize,
    /// Shape of a sample, `[C, H, W]`.
    shape: [usize; 3],
    /// Learned numbers.
    parameters: usize,
    /// Most memory that the process ever had, and what it had after a tenth of the rounds and after the last: the same,
    /// if nothing leaks. `null` where the system does not tell.
    peak_rss_bytes: Option<u64>,
    rss_tenth_bytes: Option<u64>,
    rss_end_bytes: Option<u64>,
    /// Share of each part of the work, all threads together; asked for by `--profile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<BTreeMap<&'static str, f64>>,
    ranks: usize,
    threads: usize,
    device: String,
    version: String,
    commit: String,
}

/// Measures and prints.
pub fn run(bench: &Bench, json: bool) -> Result<()> {
    let mut config = configuration(&bench.source)?;
    if let Some(batch) = bench.batch {
        config.train.batch = batch as usize;
    }
    let work = || measure(bench.work, &config, bench.rounds as usize, &bench.compute.device);
    let measured = if bench.profile { profiled(work)? } else { work()? };
    if json {
        print_json(&measured);
    } else {
        print(&text(&measured));
    }
    Ok(())
}

/// Measures, and where the time went: warm-up and building included, which hardly count after some rounds.
fn profiled(work: impl FnOnce() -> Result<Measured>) -> Result<Measured> {
    let (measured, parts) = profile::profiled(work);
    let all: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    let shares = parts.into_iter().map(|(part, seconds)| (part.name(), seconds / all)).collect();
    Ok(Measured { profile: Some(shares), ..measured? })
}

fn text(m: &Measured) -> String {
    let megabytes =
        |bytes: Option<u64>| bytes.map_or_else(|| "unknown".into(), |b| format!("{:.1} MB", b as f64 / 1e6));
    let [c, h, w] = m.shape;
    let ranks = if m.ranks == 1 { String::new() } else { format!("{} ranks of ", m.ranks) };
    format!(
        "{}: {} samples of {c}×{h}×{w}, {} parameters, {}, {ranks}{} threads\n\
         time    {:.3} ms (median of {} rounds, {:.3} to {:.3})\n\
         speed   {:.1} samples/s\n\
         memory  {} at most, {} after a tenth of the rounds, {} at the end{}",
        m.work,
        m.batch,
        m.parameters,
        m.device,
        m.threads,
        1e3 * m.seconds_median,
        m.rounds,
        1e3 * m.seconds_min,
        1e3 * m.seconds_max,
        m.samples_per_second,
        megabytes(m.peak_rss_bytes),
        megabytes(m.rss_tenth_bytes),
        megabytes(m.rss_end_bytes),
        m.profile.as_ref().map_or_else(String::new, shares_of_time),
    )
}

/// A line of every part that takes time, the largest first.
fn shares_of_time(profile: &BTreeMap<&'static str, f64>) -> String {
    let mut parts: Vec<(&str, f64)> = profile.iter().map(|(name, share)| (*name, *share)).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let line = |(name, share): (&str, f64)| format!("\n        {:5.1} %  {name}", 100.0 * share);
    parts.into_iter().filter(|(_, share)| *share >= 5e-4).map(line).collect()
}

fn measure(work: BenchWork, config: &Config, rounds: usize, device: &str) -> Result<Measured> {
    let info = run_info(0, device);
    let batch = config.train.batch;
    let dataset = if config.data.path.is_some() { Dataset::from_config(&config.data)? } else { synthetic(config)? };
    let device = device::by_name(device)?;
    let (name, clock, parameters, shape) = match work {
        BenchWork::TrainStep => {
            let mut training = Training::begin(config, dataset, &job(&device, &Silent))?;
            let clock = Clock::run(WARM_UP, rounds, || training.step().map(|_| ()))?;
            ("train-step", clock, training.model.count_parameters(), training.model.shape)
        }
        BenchWork::Denoise => {
            let blueprint = Blueprint::new(config, &dataset)?;
            let mut model = blueprint.build(&device)?;
            let indices: Vec<usize> = (0..batch).map(|i| i % dataset.train_count()).collect();
            let x = dataset.batch(Split::Train, &indices, &blueprint.data.units)?;
            let [c, h, w] = model.shape;
            let x: Tensor<4> = Tensor::from_data(TensorData::new(x, [batch, c, h, w]), &device);
            let sigma: Vec<f64> = (0..batch).map(|i| 0.5 + i as f64 / batch as f64).collect();
            let clock = Clock::run(WARM_UP, rounds, || {
                // Read back, so that the work is done on any device.
                to_vec_f32(model.denoise(x.clone(), &sigma));
                Ok(())
            })?;
            ("denoise", clock, model.count_parameters(), model.shape)
        }
        BenchWork::Sample => {
            let blueprint = Blueprint::new(config, &dataset)?;
            let mut model = blueprint.build(&device)?;
            let indices: Vec<u64> = (0..batch as u64).collect();
            let draw = |sampler: &Sampler| {
                to_vec_f32(sampler.sample(model.target(), 0, &indices, &device, &mut Unobserved));
                Ok(())
            };
            let sampler = &blueprint.config.sampler;
            // All steps are alike, so two of them warm up as well as all.
            draw(&Sampler { steps: sampler.steps.min(2), ..sampler.clone() })?;
            let clock = Clock::run(0, rounds, || draw(sampler))?;
            ("sample", clock, model.count_parameters(), model.shape)
        }
    };
    let Clock { seconds, rss_tenth, rss_end } = clock;
    let seconds_median = 0.5 * (seconds[(rounds - 1) / 2] + seconds[rounds / 2]);
    Ok(Measured {
        work: name,
        seconds_min: seconds[0],
        seconds_median,
        seconds_max: seconds[rounds - 1],
        samples_per_second: batch as f64 / seconds_median,
        batch,
        rounds,
        shape,
        parameters,
        peak_rss_bytes: memory("VmHWM:"),
        rss_tenth_bytes: rss_tenth,
        rss_end_bytes: rss_end,
        profile: None,
        ranks: info.ranks,
        threads: info.threads,
        device: info.device,
        version: info.version,
        commit: info.commit,
    })
}

/// Times of rounds, shortest first, and the process's memory in between.
struct Clock {
    seconds: Vec<f64>,
    rss_tenth: Option<u64>,
    rss_end: Option<u64>,
}

impl Clock {
    /// Runs `work` for some rounds that do not count and then for some that do.
    fn run(warm_up: usize, rounds: usize, mut work: impl FnMut() -> Result<()>) -> Result<Self> {
        for _ in 0..warm_up {
            work()?;
        }
        let mut rss_tenth = None;
        let mut seconds = Vec::with_capacity(rounds);
        for round in 0..rounds {
            if round == rounds / 10 {
                rss_tenth = memory("VmRSS:");
            }
            let start = Instant::now();
            work()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        Ok(Self { seconds, rss_tenth, rss_end: memory("VmRSS:") })
    }
}

/// Samples of the shape that `config` asks for, each field a random plane wave of zero mean and unit variance: smooth, so
/// that constraints on derivatives stay tame.
fn synthetic(config: &Config) -> Result<Dataset> {
    let Some(generator) = &config.data.generator else {
        return Err(Error::input("data", "expected `path` or `generator`, found neither").hint("use a preset"));
    };
    let (fields, grid) = (generator.get().fields(), generator.get().grid());
    let samples = |purpose, count: usize| {
        let field = |i: usize| plane_wave(&grid, &mut Stream::new(config.data.seed, purpose, i as u64));
        Values::from((0..count * fields.len()).flat_map(field).collect::<Vec<f32>>())
    };
    let (train, valid) = (samples(Purpose::TrainData, SAMPLES), samples(Purpose::ValidData, 1));
    let fields = fields.into_iter().map(|f| f.name).collect();
    let (scalars, constants) = (Vec::new(), BTreeMap::new());
    Ok(Dataset { fields, scalars, constants, grid, train, valid, generator: None, equation: None })
}

/// √2 cos(2π(a x + b y) + φ): one to two waves along each axis.
fn plane_wave(grid: &Grid, stream: &mut Stream) -> Vec<f32> {
    let [a, b, phase] = [0; 3].map(|_| stream.uniform());
    let wave = |i: usize| {
        let (x, y) = ((i / grid.cols()) as f64 / grid.rows() as f64, (i % grid.cols()) as f64 / grid.cols() as f64);
        (SQRT_2 * (TAU * ((1.0 + a) * x + (1.0 + b) * y + phase)).cos()) as f32
    };
    (0..grid.len()).map(wave).collect()
}

/// A line of the process's status in bytes, where the system has such a file.
fn memory(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
