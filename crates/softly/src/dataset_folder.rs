//! Dataset folders: `dataset.toml`, `train/<field>.npy` and `valid/<field>.npy`, each `[N, H, W]`.
//!
//! A dataset under way lives in `.partial` inside its folder and moves out when it is complete, `dataset.toml` last: a
//! folder with that file is whole. `.partial/progress.toml` says what is being made and how many samples are safe, so
//! that the same command goes on after an interruption, to the same bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;

use crate::constraint::ConstraintConfig;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::files::{make_folder, read_text, write_text};
use crate::generators::Generator;
use crate::npy;
use crate::random::Purpose;
use crate::reporter::Reporter;

/// Version of the layout.
const FORMAT: u32 = 1;
/// How often finished samples are made safe against a crash of the machine.
const SAFE_EVERY: Duration = Duration::from_secs(5);

/// A part of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Training samples.
    Train,
    /// Held-out samples.
    Valid,
}

impl Split {
    /// Both, in the order in which they are made and hashed.
    pub const BOTH: [Self; 2] = [Self::Train, Self::Valid];

    /// The folder's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Valid => "valid",
        }
    }

    fn purpose(self) -> Purpose {
        match self {
            Self::Train => Purpose::TrainData,
            Self::Valid => Purpose::ValidData,
        }
    }
}

/// `dataset.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the layout.
    pub format: u32,
    /// Training samples.
    pub train: usize,
    /// Held-out samples.
    pub valid: usize,
    /// Seed of the samples, if they were generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// BLAKE3 of all numbers as `f4`: train, then valid, sample after sample, the fields of a sample in order.
    pub hash: String,
    /// The nodes and their domain.
    pub grid: Grid,
    /// The fields, in the order of the channels.
    pub fields: Vec<FieldEntry>,
    /// What made the samples, if they were generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator: Option<Generator>,
    /// The equation that they obey, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equation: Option<ConstraintConfig>,
}

/// A field in `dataset.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldEntry {
    /// Name in formulas and files.
    pub name: String,
    /// What it is.
    #[serde(default)]
    pub quantity: String,
    /// Its unit; `1` for dimensionless quantities.
    #[serde(default)]
    pub unit: String,
    /// Statistics of the training samples.
    pub statistics: Statistics,
}

/// Statistics of a set of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statistics {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub std: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// Running count, mean, sum of squared deviations and extremes.
#[derive(Debug, Clone, Copy)]
pub struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { count: 0.0, mean: 0.0, squares: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Moments {
    /// Those of `values`.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let mut moments = Self::default();
        for v in values.clone() {
            moments.count += 1.0;
            moments.mean += v;
            moments.min = moments.min.min(v);
            moments.max = moments.max.max(v);
        }
        moments.mean /= moments.count.max(1.0);
        moments.squares = values.map(|v| (v - moments.mean).powi(2)).sum();
        moments
    }

    /// Those of both sets together.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        let count = self.count + other.count;
        let share = if count > 0.0 { other.count / count } else { 0.0 };
        let gap = other.mean - self.mean;
        Self {
            count,
            mean: self.mean + gap * share,
            squares: self.squares + other.squares + gap * gap * share * self.count,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// What they say.
    pub fn statistics(self) -> Statistics {
        Statistics { mean: self.mean, std: (self.squares / self.count.max(1.0)).sqrt(), min: self.min, max: self.max }
    }
}

/// What to generate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Training samples.
    pub train: usize,
    /// Held-out samples.
    pub valid: usize,
    /// Seed of the samples.
    pub seed: u64,
    /// What makes them.
    pub generator: Generator,
}

/// `.partial/progress.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// Finished samples that are safe, training ones first.
    done: usize,
    plan: Plan,
}

impl Plan {
    fn count(&self, split: Split) -> usize {
        match split {
            Split::Train => self.train,
            Split::Valid => self.valid,
        }
    }

    fn total(&self) -> usize {
        self.train + self.valid
    }

    /// The split of sample `index` of the whole, and how many samples lie before that split.
    fn split_of(&self, index: usize) -> (Split, usize) {
        if index < self.train { (Split::Train, 0) } else { (Split::Valid, self.train) }
    }

    fn refuse_other(&self, other: &Self, folder: &Path, what: &str) -> Result<()> {
        if self == other {
            return Ok(());
        }
        let tell = |plan: &Self| toml::to_string(plan).unwrap_or_default().trim_end().replace('\n', ", ");
        let problem =
            format!("this folder holds {what} of other data\n  asked for: {}\n  found: {}", tell(self), tell(other));
        Err(Error::input(folder.display(), problem).hint("choose another --out, or remove the folder"))
    }
}

/// Makes the dataset of `plan` in `folder`, or goes on where an earlier call stopped, until done or `stop` is set.
///
/// Samples are made in parallel and written in order: the bytes depend on the plan alone.
pub fn generate(plan: &Plan, folder: &Path, stop: &AtomicBool, reporter: &dyn Reporter) -> Result<DatasetFolder> {
    for (place, count) in [("data.count", plan.train), ("data.valid", plan.valid)] {
        if count == 0 {
            return Err(Error::input(place, "expected at least 1 sample, found 0"));
        }
    }
    if i64::try_from(plan.seed).is_err() {
        return Err(Error::input("data.seed", format!("expected at most {}, found {}", i64::MAX, plan.seed)));
    }
    let partial = folder.join(".partial");
    if folder.join("dataset.toml").exists() {
        let finished = DatasetFolder::open(folder)?;
        let Description { train, valid, seed, generator, .. } = finished.description.clone();
        let (Some(seed), Some(generator)) = (seed, generator) else {
            return Err(Error::input(folder.display(), "this folder holds a dataset that was not generated")
                .hint("choose another --out"));
        };
        plan.refuse_other(&Plan { train, valid, seed, generator }, folder, "a dataset")?;
        // Left over if the program was killed between its last two acts.
        let _ = fs::remove_dir_all(&partial);
        return Ok(finished);
    }
    if folder.is_file() {
        return Err(Error::input(folder.display(), "expected a folder, found a file").hint("choose another --out"));
    }
    if !partial.exists() && fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::input(folder.display(), "this folder is not empty and holds no dataset")
            .hint("choose another --out"));
    }
    let maker = plan.generator.prepare(plan.seed)?;
    make_folder(&partial)?;
    let lock = partial.join("lock");
    let held = File::create(&lock).map_err(Error::io("write", &lock))?;
    if held.try_lock().is_err() {
        return Err(Error::input(folder.display(), "another program is generating data in this folder")
            .hint("wait for it, or choose another --out"));
    }
    let record = partial.join("progress.toml");
    let mut done = 0;
    if record.exists() {
        let text = read_text(&record)?;
        let found: Record = toml::from_str(&text).map_err(|e| {
            Error::input(record.display(), e).hint(format!("remove {} to start again", partial.display()))
        })?;
        plan.refuse_other(&found.plan, folder, "an unfinished dataset")?;
        done = found.done;
    }
    if !partial.join("dataset.toml").exists() {
        let mut writing = Writing::open(plan, &partial, done)?;
        writing.save(&record)?;
        reporter.begin(plan.total() as u64, writing.done as u64);
        let mut safe = Instant::now();
        // Large enough to keep every thread busy, small enough to stop soon; nothing else depends on it.
        let chunk = 64.max(8 * rayon::current_num_threads());
        let mut made = writing.done;
        let mut ready = (Split::Train, Vec::new());
        loop {
            let stopped = stop.load(Ordering::Relaxed);
            let (split, before) = plan.split_of(made);
            let first = made - before;
            let last = if stopped { first } else { plan.count(split).min(first + chunk) };
            // While one thread writes a chunk the others make the next one: two of them are in memory.
            let nodes = writing.nodes;
            let (written, samples): (_, Vec<Result<Sample>>) = rayon::join(
                || -> Result<()> {
                    let (split, samples) = &ready;
                    writing.append(*split, samples)?;
                    reporter.advance(samples.len() as u64);
                    if safe.elapsed() > SAFE_EVERY {
                        writing.save(&record)?;
                        safe = Instant::now();
                    }
                    Ok(())
                },
                || {
                    let make = |i| Ok(Sample::new(&maker.sample(split.purpose(), i as u64)?, nodes));
                    (first..last).into_par_iter().map(make).collect()
                },
            );
            written?;
            if writing.done == plan.total() {
                break;
            }
            if stopped {
                writing.save(&record)?;
                let (done, total) = (writing.done, plan.total());
                let hint = format!("{done} of {total} samples are saved; run the same command again to go on");
                return Err(Error::Interrupted { hint });
            }
            made += last - first;
            ready = (split, samples.into_iter().collect::<Result<_>>()?);
        }
        writing.save(&record)?;
        let description = writing.description();
        let text = toml::to_string(&description).expect("a description is valid TOML");
        write_text(&partial.join("dataset.toml"), &text)?;
    }
    for name in ["train", "valid", "dataset.toml"] {
        let (from, to) = (partial.join(name), folder.join(name));
        if from.exists() {
            fs::rename(&from, &to).map_err(Error::io("write", &to))?;
        }
    }
    fs::remove_dir_all(&partial).map_err(Error::io("remove", &partial))?;
    DatasetFolder::open(folder)
}

/// A sample as it is stored, and the moments of its fields.
struct Sample {
    /// `[C, H, W]`, `f4`.
    bytes: Vec<u8>,
    moments: Vec<Moments>,
}

impl Sample {
    fn new(values: &[f32], nodes: usize) -> Self {
        let mut bytes = vec![0; 4 * values.len()];
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        Self {
            bytes,
            moments: values.chunks(nodes).map(|field| Moments::of(field.iter().map(|&v| f64::from(v)))).collect(),
        }
    }
}

/// The array files of a dataset under way.
struct Writing<'a> {
    plan: &'a Plan,
    nodes: usize,
    /// By split, then by field.
    files: [Vec<(PathBuf, File)>; 2],
    done: usize,
    hasher: blake3::Hasher,
    /// Of the training samples, by field.
    moments: Vec<Moments>,
}

impl<'a> Writing<'a> {
    /// Opens the files in `partial` with the first `done` samples, or as many as are there.
    fn open(plan: &'a Plan, partial: &Path, done: usize) -> Result<Self> {
        let grid = plan.generator.grid();
        let nodes = grid.len();
        let fields = plan.generator.fields();
        let mut done = done.min(plan.total());
        let mut files = [Vec::new(), Vec::new()];
        for (split, files) in Split::BOTH.into_iter().zip(&mut files) {
            make_folder(&partial.join(split.name()))?;
            let header = npy::header_f32(&[plan.count(split), grid.rows, grid.cols]);
            for field in fields {
                let path = partial.join(split.name()).join(format!("{}.npy", field.name));
                let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
                let mut file = file.map_err(Error::io("write", &path))?;
                file.write_all(&header).map_err(Error::io("write", &path))?;
                let length = file.metadata().map_err(Error::io("write", &path))?.len();
                let whole = ((length - header.len() as u64) / (4 * nodes as u64)) as usize;
                let before = if split == Split::Train { 0 } else { plan.train };
                if done > before && whole < plan.count(split) {
                    done = done.min(before + whole);
                }
                files.push((path, file));
            }
        }
        let mut writing = Self {
            plan,
            nodes,
            files,
            done: 0,
            hasher: blake3::Hasher::new(),
            moments: vec![Moments::default(); fields.len()],
        };
        // The hash and the statistics go over the samples that are there; what lies behind them is made again.
        while writing.done < done {
            let (split, _) = plan.split_of(writing.done);
            let mut values = Vec::with_capacity(fields.len() * nodes);
            for (path, file) in &mut writing.files[split as usize] {
                let mut bytes = vec![0; 4 * nodes];
                file.read_exact(&mut bytes).map_err(Error::io("read", path))?;
                values.extend(bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)));
            }
            writing.absorb(split, &Sample::new(&values, nodes));
        }
        for (path, file) in writing.files.iter_mut().flatten() {
            let end = file.stream_position().map_err(Error::io("write", path))?;
            file.set_len(end).map_err(Error::io("write", path))?;
            file.seek(SeekFrom::Start(end)).map_err(Error::io("write", path))?;
        }
        Ok(writing)
    }

    fn absorb(&mut self, split: Split, sample: &Sample) {
        self.hasher.update(&sample.bytes);
        if split == Split::Train {
            for (sum, moments) in self.moments.iter_mut().zip(&sample.moments) {
                *sum = sum.merged(*moments);
            }
        }
        self.done += 1;
    }

    fn append(&mut self, split: Split, samples: &[Sample]) -> Result<()> {
        for sample in samples {
            self.absorb(split, sample);
        }
        let width = 4 * self.nodes;
        for (field, (path, file)) in self.files[split as usize].iter_mut().enumerate() {
            for sample in samples {
                let bytes = &sample.bytes[field * width..(field + 1) * width];
                file.write_all(bytes).map_err(Error::io("write", path))?;
            }
        }
        Ok(())
    }

    /// Makes everything so far safe, then says so in the record.
    fn save(&self, record: &Path) -> Result<()> {
        for (path, file) in self.files.iter().flatten() {
            file.sync_data().map_err(Error::io("write", path))?;
        }
        let text = toml::to_string(&Record { done: self.done, plan: self.plan.clone() }).expect("a plan is valid TOML");
        write_text(record, &text)
    }

    fn description(&self) -> Description {
        let generator = &self.plan.generator;
        let fields = generator.fields().into_iter().zip(&self.moments).map(|(field, moments)| FieldEntry {
            name: field.name.into(),
            quantity: field.quantity.into(),
            unit: field.unit.into(),
            statistics: moments.statistics(),
        });
        Description {
            format: FORMAT,
            train: self.plan.train,
            valid: self.plan.valid,
            seed: Some(self.plan.seed),
            hash: self.hasher.finalize().to_hex().to_string(),
            grid: generator.grid(),
            fields: fields.collect(),
            generator: Some(generator.clone()),
            equation: generator.equation(),
        }
    }
}

/// A complete dataset on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetFolder {
    /// The folder.
    pub path: PathBuf,
    /// Its `dataset.toml`.
    pub description: Description,
}

impl DatasetFolder {
    /// Opens the dataset in `path` and checks that its files are what `dataset.toml` says.
    pub fn open(path: &Path) -> Result<Self> {
        let place = path.join("dataset.toml");
        if !place.exists() {
            let unfinished = path.join(".partial").exists();
            let (problem, hint) = if unfinished {
                ("the dataset in this folder is not finished", "run the same `softly data generate` again to go on")
            } else {
                ("expected a dataset folder, found no dataset.toml", "make one with `softly data generate`")
            };
            return Err(Error::input(path.display(), problem).hint(hint));
        }
        let description: Description =
            toml::from_str(&read_text(&place)?).map_err(|e| Error::input(place.display(), e.to_string().trim_end()))?;
        let refuse = |problem: String| Err(Error::input(place.display(), problem));
        if description.format != FORMAT {
            return refuse(format!("expected format = {FORMAT}, found {}", description.format));
        }
        if description.fields.is_empty() || description.grid.is_empty() {
            return refuse("expected at least one field and one node".into());
        }
        if let Some(field) = description.fields.iter().find(|f| f.name.is_empty() || f.name.contains(['/', '\\', '.']))
        {
            return refuse(format!("`{}` cannot be a field's name", field.name));
        }
        let folder = Self { path: path.to_path_buf(), description };
        for split in Split::BOTH {
            if folder.count(split) == 0 {
                return refuse(format!("expected at least one {} sample, found 0", split.name()));
            }
            folder.samples(split)?;
        }
        Ok(folder)
    }

    /// Samples of a split.
    pub fn count(&self, split: Split) -> usize {
        match split {
            Split::Train => self.description.train,
            Split::Valid => self.description.valid,
        }
    }

    /// Names of the fields.
    pub fn fields(&self) -> Vec<String> {
        self.description.fields.iter().map(|f| f.name.clone()).collect()
    }

    /// The samples of a split, to be read one after the other.
    pub fn samples(&self, split: Split) -> Result<Samples> {
        let Grid { rows, cols, .. } = self.description.grid;
        let expected = [self.count(split), rows, cols];
        let readers = self.description.fields.iter().map(|field| {
            let path = self.path.join(split.name()).join(format!("{}.npy", field.name));
            let place = format!("{} (field `{}`)", path.display(), field.name);
            if !path.exists() {
                return Err(Error::input(place, "dataset.toml names this field, but its file is missing")
                    .hint("copy the whole folder, or generate it again"));
            }
            let reader = npy::Reader::open(&path)?;
            if reader.shape != expected {
                let problem = format!("dataset.toml says [N, H, W] = {expected:?}, the array has {:?}", reader.shape);
                return Err(Error::input(place, problem));
            }
            Ok((place, reader))
        });
        Ok(Samples { readers: readers.collect::<Result<_>>()?, nodes: rows * cols, next: 0, count: self.count(split) })
    }

    /// Reads all of it into memory.
    pub fn load(&self) -> Result<Dataset> {
        let read = |split| -> Result<Vec<f32>> {
            let mut samples = self.samples(split)?;
            let mut values =
                Vec::with_capacity(self.count(split) * self.description.fields.len() * self.description.grid.len());
            while let Some(fields) = samples.next_sample()? {
                values.extend(fields.iter().flatten().map(|&v| v as f32));
            }
            Ok(values)
        };
        Ok(Dataset {
            fields: self.fields(),
            grid: self.description.grid.clone(),
            train: read(Split::Train)?,
            valid: read(Split::Valid)?,
        })
    }
}

/// Samples of a split, one after the other.
#[derive(Debug)]
pub struct Samples {
    /// Each field's file, named as errors name it, and what is left of it.
    readers: Vec<(String, npy::Reader)>,
    nodes: usize,
    next: usize,
    count: usize,
}

impl Samples {
    /// The next sample, `[H, W]` for every field; its values are finite.
    pub fn next_sample(&mut self) -> Result<Option<Vec<Vec<f64>>>> {
        if self.next == self.count {
            return Ok(None);
        }
        let sample = self.next;
        self.next += 1;
        let field = |(place, reader): &mut (String, npy::Reader)| {
            let mut values = vec![0.0; self.nodes];
            reader.read(&mut values)?;
            match values.iter().find(|v| !v.is_finite()) {
                None => Ok(values),
                Some(value) => {
                    let problem = format!("expected finite numbers, found {value} in sample {sample}");
                    Err(Error::input(&*place, problem).hint("drop or repair that sample"))
                }
            }
        };
        self.readers.iter_mut().map(field).collect::<Result<_>>().map(Some)
    }
}
