//! `softly export`: a run for programs that show curves or fields, or for somebody else.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use softly::error::{Error, Result};
use softly::files::{make_folder, write_atomically};
use softly::format::write_vti;
use softly::units::Units;
use softly::{
    ConstraintConfig, Dataset, DatasetFolder, Draw, EVENT_FILE, EventWriter, Metrics, RunFolder, Snapshot,
    SoftConstraint, Split, Trained, device, snapshot_file,
};
use softly_pde::grid::Grid;

use crate::arguments::{Export, ViewerName};
use crate::interrupt::{STOP, catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::{Bar, say};

/// Time between two looks at a training that is followed.
const PAUSE: Duration = Duration::from_millis(500);

/// Writes what the command line asks for.
pub fn run(export: &Export, json: bool) -> Result<()> {
    let files = match export.to {
        ViewerName::Tensorboard => vec![tensorboard(export)?],
        ViewerName::Vti => vti(export)?,
        ViewerName::Half => vec![half(export)?],
    };
    if json {
        print_json(&json!({ "files": files }));
    } else {
        for file in &files {
            print(&file.display().to_string());
        }
    }
    Ok(())
}

/// The folder for files: `name` inside the source unless another one is asked for.
fn folder_of(export: &Export, name: &str) -> Result<PathBuf> {
    match &export.out {
        Some(out) => Ok(out.clone()),
        None if export.source.is_dir() => Ok(export.source.join(name)),
        None => Err(Error::input("--out", format!("{} is no folder to write into", export.source.display()))
            .hint("name a folder: --out DIR")),
    }
}

/// Refuses to wait for new lines of metrics where none are written.
fn refuse_following(export: &Export) -> Result<()> {
    if export.follow {
        return Err(Error::input("--follow", "is for --to tensorboard").hint("leave it out"));
    }
    Ok(())
}

/// Writes the metrics of a run as an event file.
fn tensorboard(export: &Export) -> Result<PathBuf> {
    let run = RunFolder::new(&export.source);
    if !run.info().exists() {
        return Err(Error::input(export.source.display(), "expected the folder of a training, found no run.json")
            .hint("train one with `softly train`; in data and snapshots there are no curves"));
    }
    let folder = folder_of(export, "tensorboard")?;
    let metrics = run.read_metrics()?;
    make_folder(&folder)?;
    let file = folder.join(EVENT_FILE);
    let clock = Clock::of(&run, &metrics)?;
    if export.follow {
        follow(&run, metrics, &clock, &file)?;
        return Ok(file);
    }
    write_atomically(&file, |out| {
        let mut events = EventWriter::new(out, clock.start())?;
        metrics.iter().try_for_each(|line| events.metrics(line, clock.at(line.step)))?;
        events.flush()
    })?;
    Ok(file)
}

/// Writes the lines that are there, then every new one until the training ends.
fn follow(run: &RunFolder, metrics: Vec<Metrics>, clock: &Clock, file: &Path) -> Result<()> {
    let failed = || Error::io("write", file);
    catch_interrupt();
    let out = BufWriter::new(File::create(file).map_err(failed())?);
    let mut events = EventWriter::new(out, clock.start()).map_err(failed())?;
    for line in &metrics {
        events.metrics(line, clock.at(line.step)).map_err(failed())?;
    }
    let mut last = metrics.last().map_or(0, |line| line.step);
    say(&format!("following {}: Ctrl-C ends", run.path.display()));
    loop {
        events.flush().map_err(failed())?;
        // Asked before the lines are read: what is written in between is not lost.
        let running = run.read_info()?.status == "running";
        let fresh: Vec<Metrics> = run.read_metrics()?.into_iter().filter(|line| line.step > last).collect();
        for line in &fresh {
            events.metrics(line, now()).map_err(failed())?;
            last = line.step;
        }
        if !running || STOP.load(Ordering::Relaxed) {
            return events.flush().map_err(failed());
        }
        sleep(PAUSE);
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// When steps were taken. Metrics have no times, so that they are reproducible: steps are spread evenly over the
/// training's time, which ends with the last change of the file.
struct Clock {
    end: f64,
    seconds: f64,
    steps: u64,
}

impl Clock {
    fn of(run: &RunFolder, metrics: &[Metrics]) -> Result<Self> {
        let changed = fs::metadata(run.metrics()).and_then(|data| data.modified()).ok();
        let end = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or_else(now, |t| t.as_secs_f64());
        let steps = metrics.last().map_or(1, |line| line.step.max(1));
        Ok(Self { end, seconds: run.read_info()?.seconds, steps })
    }

    fn start(&self) -> f64 {
        self.end - self.seconds
    }

    fn at(&self, step: u64) -> f64 {
        self.start() + self.seconds * step as f64 / self.steps as f64
    }
}

/// Writes the snapshot in half precision.
fn half(export: &Export) -> Result<PathBuf> {
    refuse_following(export)?;
    let folder = folder_of(export, "half")?;
    let snapshot = Snapshot::read(&snapshot_file(&export.source)?)?;
    make_folder(&folder)?;
    let file = folder.join("snapshot.safetensors");
    snapshot.write_half(&file)?;
    Ok(file)
}

/// Samples in physical units, `[N, C, H, W]`.
struct Samples {
    fields: Vec<String>,
    grid: Grid,
    values: Vec<f64>,
    equation: Option<ConstraintConfig>,
}

/// Writes samples or data as image data.
fn vti(export: &Export) -> Result<Vec<PathBuf>> {
    refuse_following(export)?;
    let folder = folder_of(export, "vti")?;
    let samples = if export.source.join("dataset.toml").exists() {
        of_folder(&export.source, export.count as usize)?
    } else {
        of_run(export)?
    };
    let Samples { fields, grid, values, equation } = &samples;
    let constraint = equation
        .as_ref()
        .map(|equation| SoftConstraint::new(equation, fields, grid, &Units::identity(fields.len())))
        .transpose()?;
    // Refused before anything is written.
    if grid.is_point() {
        return Err(Error::input(export.source.display(), "expected fields on a grid, found single points")
            .hint("`softly sample` writes points as points.npy"));
    }
    make_folder(&folder)?;
    let mut files = Vec::new();
    for (k, sample) in values.chunks_exact(fields.len() * grid.len()).enumerate() {
        let parts: Vec<&[f64]> = sample.chunks_exact(grid.len()).collect();
        let mut all: Vec<(String, Vec<f64>)> =
            fields.iter().cloned().zip(parts.iter().map(|part| part.to_vec())).collect();
        if let (Some(constraint), Some(equation)) = (&constraint, equation) {
            let channel = |name: &String| fields.iter().position(|field| field == name);
            let used: Vec<Vec<f64>> =
                equation.fields.iter().filter_map(channel).map(|channel| parts[channel].to_vec()).collect();
            let maps = constraint.residual_maps(&used);
            let several = maps.len() > 1;
            let name = |i: usize| if several { format!("residual {}", i + 1) } else { "residual".to_string() };
            all.extend(maps.into_iter().enumerate().map(|(i, map)| (name(i), map)));
        }
        let file = folder.join(format!("sample-{k:04}.vti"));
        let named: Vec<(&str, &[f64])> = all.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect();
        write_vti(&file, grid, &named)?;
        files.push(file);
    }
    Ok(files)
}

/// The first held-out samples of a dataset folder.
fn of_folder(path: &Path, count: usize) -> Result<Samples> {
    let folder = DatasetFolder::open(path)?;
    let mut samples = folder.samples(Split::Valid)?;
    let mut values = Vec::new();
    for _ in 0..count {
        let Some(sample) = samples.next_sample()? else { break };
        values.extend(sample.into_iter().flatten());
    }
    let description = &folder.description;
    Ok(Samples { fields: folder.fields(), grid: description.grid.clone(), values, equation: folder.equation() })
}

/// Samples of a run, or the first of its held-out data.
fn of_run(export: &Export) -> Result<Samples> {
    let device = device::by_name(&export.compute.device)?;
    let trained = Trained::load(&export.source, &device)?;
    let config = &trained.blueprint.config;
    let spec = &trained.blueprint.data;
    let count = export.count as usize;
    let values = if export.data {
        let data = Dataset::from_config(&config.data)?;
        let first = data.samples(Split::Valid, 0..count.min(data.valid_count()))?;
        first.iter().map(|&v| f64::from(v)).collect()
    } else {
        catch_interrupt();
        let indices: Vec<u64> = (0..count as u64).collect();
        let bar = Bar::new((count * config.sampler.steps) as u64, "sample-steps");
        let draw = Draw { seed: export.seed, indices: &indices, batch: 64, observed: None };
        let values = trained.samples(&draw, &job(&device, &bar))?;
        bar.finish();
        values
    };
    let equation = config.truth.clone().or_else(|| config.constraint.clone());
    Ok(Samples { fields: spec.fields.clone(), grid: spec.grid.clone(), values, equation })
}
