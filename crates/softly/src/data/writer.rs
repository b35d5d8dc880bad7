//! Writing dataset folders from any source of samples.
//!
//! A dataset under way lives in `.partial` inside its folder and moves out when it is complete, `dataset.toml` last: a
//! folder with that file is whole. `.partial/progress.toml` says what is being made and how many samples are safe, so
//! that the same command goes on after an interruption, to the same bytes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;
use toml::Table;

use crate::constraint::config::ConstraintConfig;
use crate::data::config::DataConfig;
use crate::data::fingerprint::{BlockHasher, Blocks, block_samples};
use crate::data::folder::{DatasetFolder, Description, FORMAT, FieldEntry, SCALARS, seal};
use crate::data::generator::{FieldSpec, GeneratorConfig, SampleMaker};
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::files::{is_vacant, make_folder, read_text, write_text};
use crate::job::Job;
use crate::npy;
use crate::ranks::Ranks;
use crate::statistics::Moments;

/// How often finished samples are made safe against a crash of the machine.
const SAFE_EVERY: Duration = Duration::from_secs(5);

/// A source of samples.
pub trait Source: Sync {
    /// What is made: two sources with equal plans give the same samples.
    fn plan(&self) -> &Plan;

    /// The fields of a sample: the channels, in order.
    fn fields(&self) -> Vec<FieldSpec>;

    /// The grid that the fields live on.
    fn grid(&self) -> Grid;

    /// The equation that the samples obey, if it is known.
    fn equation(&self) -> Option<ConstraintConfig>;

    /// The scalars of a sample: numbers that are channels constant over the grid.
    fn scalars(&self) -> Vec<FieldSpec> {
        Vec::new()
    }

    /// Numbers that all samples share.
    fn constants(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// Samples `range` of `split`, each the fields `[C, H, W]`, then the scalars.
    fn samples(&self, split: Split, range: Range<usize>) -> Result<Vec<Vec<f32>>>;

    /// Samples that are best made at once: enough to keep every thread busy, few enough to stop soon and to fit twice into
    /// memory. The bytes do not depend on it.
    fn chunk(&self) -> usize {
        64.max(8 * rayon::current_num_threads())
    }
}

/// What a dataset is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Training samples.
    pub train: usize,
    /// Held-out samples.
    pub valid: usize,
    /// Seed of generated samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The generator, if one makes the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator: Option<GeneratorConfig>,
    /// Where samples that are not generated come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Table>,
}

/// Samples of a generator.
struct Generated {
    plan: Plan,
    generator: GeneratorConfig,
    maker: SampleMaker,
    /// Those that make the samples; the first one writes them.
    ranks: &'static dyn Ranks,
}

impl Generated {
    fn new(plan: Plan, generator: GeneratorConfig, seed: u64, job: &Job<'_>) -> Result<Self> {
        plan.check()?;
        let maker = SampleMaker::new(generator.get(), seed)?;
        Ok(Self { plan, generator, maker, ranks: job.ranks })
    }

    /// Samples `range` of `split`, of which every rank makes a part.
    fn shared(&self, split: Split, range: Range<usize>) -> Result<Vec<Vec<f32>>> {
        let part = self.ranks.part(range.len());
        let own = self.maker.samples(split, range.start + part.start..range.start + part.end)?;
        if self.ranks.count() == 1 {
            return Ok(own);
        }
        let all = self.ranks.join(&own.iter().flatten().map(|&v| f64::from(v)).collect::<Vec<_>>())?;
        let length = self.fields().len() * self.grid().len();
        Ok(all.chunks(length).map(|sample| sample.iter().map(|&v| v as f32).collect()).collect())
    }
}

impl Source for Generated {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn fields(&self) -> Vec<FieldSpec> {
        self.generator.get().fields()
    }

    fn grid(&self) -> Grid {
        self.generator.get().grid()
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        self.generator.get().equation()
    }

    fn samples(&self, split: Split, range: Range<usize>) -> Result<Vec<Vec<f32>>> {
        let order = [split as usize, range.start, range.end].map(|number| number as u64);
        self.ranks.tell(&order.map(u64::to_le_bytes).concat())?;
        self.shared(split, range)
    }

    fn chunk(&self) -> usize {
        64.max(8 * self.ranks.count() * rayon::current_num_threads())
    }
}

/// `.partial/progress.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// Finished samples that are safe, training ones first.
    done: usize,
    plan: Plan,
    /// Hashes of the blocks of these samples by file, the last one perhaps of an incomplete block.
    blocks: BTreeMap<String, Vec<String>>,
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

    fn check(&self) -> Result<()> {
        for (place, count) in [("data.count", self.train), ("data.valid", self.valid)] {
            if count == 0 {
                return Err(Error::input(place, "expected at least 1 sample, found 0"));
            }
        }
        match self.seed {
            // TOML has no larger numbers.
            Some(seed) if i64::try_from(seed).is_err() => {
                Err(Error::input("data.seed", format!("expected at most {}, found {seed}", i64::MAX)))
            }
            _ => Ok(()),
        }
    }
}

/// Generates the data that `config` asks for in `folder`, or goes on where an earlier call stopped. Ranks behind the first help it,
/// see [`help_generate`].
pub fn generate(config: &DataConfig, folder: &Path, job: &Job<'_>) -> Result<DatasetFolder> {
    let (plan, generator) = plan_of(config)?;
    // Before anything that all samples share is computed.
    let made = match finished(&plan, folder)? {
        Some(finished) => finished,
        None => write(&Generated::new(plan, generator, config.seed, job)?, folder, job)?,
    };
    // An empty order: nothing is left to be made.
    job.ranks.tell(&[])?;
    Ok(made)
}

/// Makes samples of `config` for the first rank, which calls [`generate`], until it asks for no more.
pub fn help_generate(config: &DataConfig, job: &Job<'_>) -> Result<()> {
    let (plan, generator) = plan_of(config)?;
    let source = Generated::new(plan, generator, config.seed, job)?;
    loop {
        job.go_on("what is done is kept; run the same command again to go on")?;
        let orders = job.ranks.tell(&[])?;
        let order: Vec<usize> = orders[0].as_chunks().0.iter().map(|n| u64::from_le_bytes(*n) as usize).collect();
        let [split, first, last] = order[..] else { return Ok(()) };
        source.shared(Split::BOTH[split], first..last)?;
    }
}

/// The plan and the generator of the data that `config` asks for.
fn plan_of(config: &DataConfig) -> Result<(Plan, GeneratorConfig)> {
    let Some(generator) = config.generator.clone() else {
        return Err(Error::input("data.generator", "expected a generator, found none").hint("use a preset"));
    };
    let (train, valid, seed) = (config.count, config.valid, Some(config.seed));
    Ok((Plan { train, valid, seed, generator: Some(generator.clone()), origin: None }, generator))
}

/// The dataset in `folder`, if it is the finished dataset of `plan`.
fn finished(plan: &Plan, folder: &Path) -> Result<Option<DatasetFolder>> {
    if !folder.join("dataset.toml").exists() {
        return Ok(None);
    }
    let finished = DatasetFolder::open(folder)?;
    let Description { train, valid, seed, generator, origin, .. } = finished.description.clone();
    plan.refuse_other(&Plan { train, valid, seed, generator, origin }, folder, "a dataset")?;
    // Left over if the program was killed between its last two acts.
    let _ = fs::remove_dir_all(folder.join(".partial"));
    Ok(Some(finished))
}

/// Writes the samples of `source` into `folder`, or goes on where an earlier call stopped, until done or stopped.
///
/// Samples are written in order: the bytes depend on the plan alone.
pub fn write(source: &dyn Source, folder: &Path, job: &Job<'_>) -> Result<DatasetFolder> {
    let plan = source.plan();
    plan.check()?;
    if let Some(finished) = finished(plan, folder)? {
        return Ok(finished);
    }
    if folder.is_file() {
        return Err(Error::input(folder.display(), "expected a folder, found a file").hint("choose another --out"));
    }
    if !folder.join(".partial").exists() && !is_vacant(folder) {
        return Err(Error::input(folder.display(), "this folder is not empty and holds no dataset")
            .hint("choose another --out"));
    }
    write_beside(source, folder, job)
}

/// The same in a folder that holds other files, which stay; its `dataset.toml` is replaced when all else is there.
pub(super) fn write_beside(source: &dyn Source, folder: &Path, job: &Job<'_>) -> Result<DatasetFolder> {
    let plan = source.plan();
    plan.check()?;
    let partial = folder.join(".partial");
    make_folder(folder)?;
    make_folder(&partial)?;
    let _lock = lock(folder, &partial)?;
    let record = partial.join("progress.toml");
    let before = earlier(plan, folder, &partial, &record)?;
    if !partial.join("dataset.toml").exists() {
        let mut writing = Writing::open(source, &partial, before)?;
        writing.save(&record)?;
        writing.run(&record, job)?;
        write_description(&partial, &writing.description())?;
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

/// Writes the `dataset.toml` of a folder.
pub(super) fn write_description(folder: &Path, description: &Description) -> Result<()> {
    let text = toml::to_string(description).expect("a description is valid TOML");
    write_text(&folder.join("dataset.toml"), &seal(&text))
}

/// Makes this process the only one that writes the dataset, until the file is dropped.
fn lock(folder: &Path, partial: &Path) -> Result<File> {
    let path = partial.join("lock");
    let file = File::create(&path).map_err(Error::io("write", &path))?;
    if file.try_lock().is_err() {
        return Err(Error::input(folder.display(), "another program is writing data in this folder")
            .hint("wait for it, or choose another --out"));
    }
    Ok(file)
}

/// What an earlier call has made safe; refuses the remains of another plan.
fn earlier(plan: &Plan, folder: &Path, partial: &Path, record: &Path) -> Result<Option<Record>> {
    if !record.exists() {
        return Ok(None);
    }
    let found: Record = toml::from_str(&read_text(record)?).map_err(|e| {
        Error::input(record.display(), e.to_string().trim_end())
            .hint(format!("remove {} to start again", partial.display()))
    })?;
    plan.refuse_other(&found.plan, folder, "an unfinished dataset")?;
    Ok(Some(found))
}

/// A sample as it is stored, and the moments of its channels.
struct Sample {
    /// The fields `[C, H, W]`, then the scalars, `f4`.
    bytes: Vec<u8>,
    moments: Vec<Moments>,
}

impl Sample {
    /// The sample of `values`, of which all but `scalars` belong to fields of `nodes` numbers.
    fn new(values: &[f32], nodes: usize, scalars: usize) -> Self {
        let mut bytes = vec![0; 4 * values.len()];
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        let (fields, scalars) = values.split_at(values.len() - scalars);
        let moments = |values: &[f32]| Moments::of(values.iter().map(|&v| f64::from(v)));
        Self { bytes, moments: fields.chunks(nodes).chain(scalars.chunks(1)).map(moments).collect() }
    }
}

/// An array file under way.
struct Output {
    /// Name inside the folder of its split.
    name: String,
    path: PathBuf,
    file: File,
    /// Where a sample's bytes lie in [`Sample::bytes`].
    bytes: Range<usize>,
    hasher: BlockHasher,
}

/// The array files of a dataset under way.
struct Writing<'a> {
    source: &'a dyn Source,
    nodes: usize,
    scalars: usize,
    /// By split.
    files: [Vec<Output>; 2],
    done: usize,
    /// Of the training samples, by channel.
    moments: Vec<Moments>,
}

impl<'a> Writing<'a> {
    /// Opens the files in `partial` with the samples that `before` promises, or as many as are there.
    fn open(source: &'a dyn Source, partial: &Path, before: Option<Record>) -> Result<Self> {
        let (plan, grid, fields) = (source.plan(), source.grid(), source.fields());
        let (nodes, scalars) = (grid.len(), source.scalars().len());
        let promised = before.as_ref().map_or(0, |record| record.done.min(plan.total()));
        let mut done = promised;
        let width = 4 * nodes;
        let mut arrays: Vec<(String, Range<usize>)> =
            fields.iter().enumerate().map(|(k, field)| (field.name.clone(), k * width..(k + 1) * width)).collect();
        if scalars > 0 {
            arrays.push((SCALARS.into(), fields.len() * width..fields.len() * width + 4 * scalars));
        }
        let mut files = [Vec::new(), Vec::new()];
        for (split, files) in Split::BOTH.into_iter().zip(&mut files) {
            make_folder(&partial.join(split.name()))?;
            for (name, bytes) in arrays.clone() {
                let count = plan.count(split);
                let shape = if name == SCALARS { vec![count, scalars] } else { vec![count, grid.rows(), grid.cols()] };
                let header = npy::header_f32(&shape);
                let path = partial.join(split.name()).join(format!("{name}.npy"));
                let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
                let mut file = file.map_err(Error::io("write", &path))?;
                file.write_all(&header).map_err(Error::io("write", &path))?;
                let length = file.metadata().map_err(Error::io("write", &path))?.len();
                let whole = (length - header.len() as u64) as usize / bytes.len();
                let before = if split == Split::Train { 0 } else { plan.train };
                if done > before && whole < count {
                    done = done.min(before + whole);
                }
                files.push(Output { name, path, file, bytes, hasher: BlockHasher::new(block_samples(nodes)) });
            }
        }
        let moments = vec![Moments::default(); fields.len() + scalars];
        let mut writing = Self { source, nodes, scalars, files, done: 0, moments };
        writing.read_again(done)?;
        if let Some(record) = before {
            writing.check(&record, done == promised, partial)?;
        }
        Ok(writing)
    }

    /// Takes the first `done` samples into the hashes and the statistics, and cuts off what lies behind them.
    fn read_again(&mut self, done: usize) -> Result<()> {
        while self.done < done {
            let (split, _) = self.source.plan().split_of(self.done);
            let mut values = Vec::with_capacity(self.moments.len() * self.nodes);
            for output in &mut self.files[split as usize] {
                let mut bytes = vec![0; output.bytes.len()];
                output.file.read_exact(&mut bytes).map_err(Error::io("read", &output.path))?;
                values.extend(bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)));
            }
            self.absorb(split, &Sample::new(&values, self.nodes, self.scalars));
        }
        for Output { path, file, .. } in self.files.iter_mut().flatten() {
            let end = file.stream_position().map_err(Error::io("write", path))?;
            file.set_len(end).map_err(Error::io("write", path))?;
            file.seek(SeekFrom::Start(end)).map_err(Error::io("write", path))?;
        }
        Ok(())
    }

    /// Refuses files whose samples are other ones than `record` promises; incomplete last blocks can be compared if `all`
    /// promised samples are there.
    fn check(&self, record: &Record, all: bool, partial: &Path) -> Result<()> {
        for (split, output) in self.outputs() {
            let promised = record.blocks.get(&key(split, output)).map_or(&[][..], Vec::as_slice);
            let comparable = if all { usize::MAX } else { output.hasher.complete() };
            let found = output.hasher.hashes();
            let differs = |block: &usize| promised.get(*block) != Some(&found[*block]);
            if let Some(block) = (0..found.len().min(comparable)).find(differs) {
                return Err(output
                    .hasher
                    .mismatch(&output.path, block, "progress.toml")
                    .hint(format!("the file is damaged: remove {} to start again", partial.display())));
            }
        }
        Ok(())
    }

    /// The files with their splits.
    fn outputs(&self) -> impl Iterator<Item = (Split, &Output)> {
        Split::BOTH.into_iter().flat_map(|split| self.files[split as usize].iter().map(move |output| (split, output)))
    }

    /// Makes and writes all samples that are left. While one thread writes a chunk the others make the next one: two of them
    /// are in memory.
    fn run(&mut self, record: &Path, job: &Job<'_>) -> Result<()> {
        let (source, plan, nodes, scalars) = (self.source, self.source.plan(), self.nodes, self.scalars);
        job.reporter.begin(plan.total() as u64, self.done as u64);
        let mut safe = Instant::now();
        let chunk = source.chunk().max(1);
        let mut made = self.done;
        let mut ready = (Split::Train, Vec::new());
        loop {
            let stopped = job.stopped();
            let (split, before) = plan.split_of(made);
            let first = made - before;
            let last = if stopped { first } else { plan.count(split).min(first + chunk) };
            // The first is done by this thread, the only one that may talk to other ranks.
            let (samples, written): (Result<Vec<Sample>>, _) = rayon::join(
                || {
                    let samples = if last > first { source.samples(split, first..last)? } else { Vec::new() };
                    Ok(samples.iter().map(|sample| Sample::new(sample, nodes, scalars)).collect())
                },
                || -> Result<()> {
                    let (split, samples) = &ready;
                    self.append(*split, samples)?;
                    job.reporter.advance(samples.len() as u64);
                    if safe.elapsed() > SAFE_EVERY {
                        self.save(record)?;
                        safe = Instant::now();
                    }
                    Ok(())
                },
            );
            written?;
            if self.done == plan.total() {
                return self.save(record);
            }
            if stopped {
                self.save(record)?;
                let (done, total) = (self.done, plan.total());
                let hint = format!("{done} of {total} samples are saved; run the same command again to go on");
                return Err(Error::Interrupted { hint });
            }
            made += last - first;
            ready = (split, samples?);
        }
    }

    fn absorb(&mut self, split: Split, sample: &Sample) {
        for output in &mut self.files[split as usize] {
            output.hasher.add(&sample.bytes[output.bytes.clone()]);
        }
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
        for Output { path, file, bytes, .. } in &mut self.files[split as usize] {
            for sample in samples {
                file.write_all(&sample.bytes[bytes.clone()]).map_err(Error::io("write", path))?;
            }
        }
        Ok(())
    }

    /// Makes everything so far safe, then says so in the record.
    fn save(&self, record: &Path) -> Result<()> {
        for Output { path, file, .. } in self.files.iter().flatten() {
            file.sync_data().map_err(Error::io("write", path))?;
        }
        let blocks = self.outputs().map(|(split, output)| (key(split, output), output.hasher.hashes())).collect();
        let text = toml::to_string(&Record { done: self.done, plan: self.source.plan().clone(), blocks });
        write_text(record, &text.expect("a plan is valid TOML"))
    }

    fn description(&self) -> Description {
        let plan = self.source.plan();
        let fields = self.source.fields().into_iter().map(|field| (field, false));
        let scalars = self.source.scalars().into_iter().map(|scalar| (scalar, true));
        let fields = fields.chain(scalars).zip(&self.moments).map(|((field, scalar), moments)| FieldEntry {
            name: field.name,
            quantity: field.quantity,
            unit: field.unit,
            scalar,
            statistics: moments.statistics(),
        });
        let mut blocks = Blocks::new(self.nodes);
        self.outputs().for_each(|(split, output)| blocks.insert(split, &output.name, output.hasher.hashes()));
        Description {
            format: FORMAT,
            train: plan.train,
            valid: plan.valid,
            seed: plan.seed,
            hash: blocks.hash(),
            constants: self.source.constants(),
            grid: self.source.grid(),
            fields: fields.collect(),
            generator: plan.generator.clone(),
            origin: plan.origin.clone(),
            equation: self.source.equation(),
            blocks,
        }
    }
}

/// The name of a file in the record.
fn key(split: Split, output: &Output) -> String {
    format!("{}/{}", split.name(), output.name)
}
