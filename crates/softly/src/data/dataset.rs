//! Data: samples of one or several fields on a grid.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Device, Tensor};
use softly_pde::grid::Grid;

use crate::auto::NumberOrAuto;
use crate::constraint::config::ConstraintConfig;
use crate::data::config::{DataConfig, Normalise};
use crate::data::fingerprint::{BlockHasher, Blocks};
use crate::data::folder::{DatasetFolder, SCALARS};
use crate::data::generator::{GeneratorConfig, Reference, SampleMaker};
use crate::data::split::Split;
use crate::data::values::{PIECE, Values};
use crate::error::{Error, Result};
use crate::memory;
use crate::tensors::field_batch;
use crate::units::Units;

/// Samples of a batch of [`Dataset::clean`].
pub(crate) const BATCH: usize = 32;

/// Samples in physical units.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Names of the fields: the channels.
    pub fields: Vec<String>,
    /// Names of the channels that are scalars of samples: constant over the grid.
    pub scalars: Vec<String>,
    /// Numbers that all samples share, which formulas may use by name.
    pub constants: BTreeMap<String, f64>,
    /// The grid they live on.
    pub grid: Grid,
    /// Training samples.
    pub train: Values,
    /// Held-out samples.
    pub valid: Values,
    /// The generator that made the samples, if one did.
    pub generator: Option<GeneratorConfig>,
    /// The equation that the samples obey, if it is known.
    pub equation: Option<ConstraintConfig>,
}

impl Dataset {
    /// The data that `config` asks for: the samples of a folder, or generated ones.
    pub fn from_config(config: &DataConfig) -> Result<Self> {
        if let Some(path) = &config.path {
            return DatasetFolder::open(path)?.load();
        }
        let Some(generator) = &config.generator else {
            return Err(Error::input("data", "expected `path` or `generator`, found neither")
                .hint("name a dataset folder: --set data.path=DIR, or use a preset"));
        };
        let samples = config.count as f64 + config.valid as f64;
        let numbers = (generator.get().fields().len() * generator.get().grid().len()) as f64;
        memory::check("data.count and data.valid", 4.0 * samples * numbers)?;
        let maker = SampleMaker::new(generator.get(), config.seed)?;
        Ok(Self {
            fields: generator.get().fields().into_iter().map(|f| f.name).collect(),
            scalars: Vec::new(),
            constants: BTreeMap::new(),
            grid: generator.get().grid(),
            train: maker.samples(Split::Train, 0..config.count)?.concat().into(),
            valid: maker.samples(Split::Valid, 0..config.valid)?.concat().into(),
            generator: Some(generator.clone()),
            equation: generator.get().equation(),
        })
    }

    /// The solver that made the data; `None` if they were not generated or there is nothing to solve.
    pub fn reference(&self) -> Result<Option<Box<dyn Reference>>> {
        let Some(generator) = self.generator.as_ref().map(GeneratorConfig::get) else { return Ok(None) };
        let (names, grid) = (generator.fields().into_iter().map(|f| f.name).collect::<Vec<_>>(), generator.grid());
        if self.fields != names || self.grid != grid {
            let words = |fields: &[String], grid: &Grid| {
                format!("{} on {} × {} nodes", fields.join(", "), grid.rows(), grid.cols())
            };
            let (found, made) = (words(&self.fields, &self.grid), words(&names, &grid));
            let problem = format!("the data have the fields {found}, the generator makes {made}");
            return Err(Error::input("data.generator", problem).hint("set it to what made the data"));
        }
        generator.reference(self)
    }

    /// A constraint in which the scalars of these data are fields and their constants are parameters, where its formulas use
    /// them and it does not say otherwise.
    #[must_use]
    pub fn complete(&self, constraint: &ConstraintConfig) -> ConstraintConfig {
        constraint.with_numbers(&self.scalars, &self.constants)
    }

    /// The first training samples, `count` at most, and one held-out sample, in memory.
    pub fn first(&self, count: usize) -> Result<Self> {
        let of = |split, count: usize| -> Result<Values> {
            Ok(self.samples(split, 0..count.min(self.count(split)))?.into_owned().into())
        };
        Ok(Self {
            fields: self.fields.clone(),
            scalars: self.scalars.clone(),
            constants: self.constants.clone(),
            grid: self.grid.clone(),
            train: of(Split::Train, count)?,
            valid: of(Split::Valid, 1)?,
            generator: None,
            equation: None,
        })
    }

    /// Numbers per sample.
    pub fn sample_len(&self) -> usize {
        self.fields.len() * self.grid.len()
    }

    /// Training samples.
    pub fn train_count(&self) -> usize {
        self.count(Split::Train)
    }

    /// Held-out samples.
    pub fn valid_count(&self) -> usize {
        self.count(Split::Valid)
    }

    /// The number of samples of a split.
    pub fn count(&self, split: Split) -> usize {
        self.values(split).count(self.sample_len())
    }

    fn values(&self, split: Split) -> &Values {
        match split {
            Split::Train => &self.train,
            Split::Valid => &self.valid,
        }
    }

    /// Samples `range` of a split, `[N, C, H, W]` row-major.
    pub fn samples(&self, split: Split, range: Range<usize>) -> Result<Cow<'_, [f32]>> {
        self.values(split).read(range, self.sample_len())
    }

    /// All samples of a split, `[N, C, H, W]` row-major, in memory.
    pub fn all(&self, split: Split) -> Result<Cow<'_, [f32]>> {
        let count = self.count(split);
        memory::check(&format!("{} data", split.name()), 4.0 * (count * self.sample_len()) as f64)?;
        self.samples(split, 0..count)
    }

    /// All samples of a split, some `[N, C, H, W]` at a time.
    pub fn pieces(&self, split: Split) -> impl Iterator<Item = Result<Cow<'_, [f32]>>> {
        let (count, at_once) = (self.count(split), (PIECE / self.sample_len()).max(1));
        (0..count).step_by(at_once).map(move |first| self.samples(split, first..count.min(first + at_once)))
    }

    /// Shape of a sample, `[C, H, W]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.fields.len(), self.grid.rows(), self.grid.cols()]
    }

    /// Refuses empty data, and data that are not finite or damaged. Training samples in files are looked at block by block when they are
    /// read; held-out ones are looked at now, for no step of a training would notice.
    pub fn check(&self) -> Result<()> {
        for split in Split::BOTH {
            if self.count(split) == 0 {
                let problem = "expected at least one sample, found none";
                return Err(Error::input(format!("{} data", split.name()), problem));
            }
            let Values::Memory(values) = self.values(split) else {
                if split == Split::Valid {
                    self.pieces(split).try_for_each(|piece| piece.map(|_| ()))?;
                }
                continue;
            };
            if let Some(bad) = values.iter().position(|v| !v.is_finite()) {
                let (sample, inside) = (bad / self.sample_len(), bad % self.sample_len());
                let field = &self.fields[inside / self.grid.len()];
                return Err(Error::input(
                    format!("{} data, field `{field}`", split.name()),
                    format!("expected finite numbers, found {} in sample {sample}", values[bad]),
                )
                .hint("drop or repair that sample"));
            }
        }
        Ok(())
    }

    /// The fingerprint of the samples, which a folder of them records.
    pub fn hash(&self) -> String {
        let mut blocks = Blocks::new(self.grid.len());
        for split in Split::BOTH {
            match self.values(split) {
                Values::Memory(values) => self.hash_samples(split, values, &mut blocks),
                Values::Files(files) => {
                    files.hashes().for_each(|(name, hashes)| blocks.insert(split, name, hashes.to_vec()));
                }
            }
        }
        blocks.hash()
    }

    /// Adds the hashes of a split's samples `[N, C, H, W]` to `blocks`, as if they were in files.
    fn hash_samples(&self, split: Split, values: &[f32], blocks: &mut Blocks) {
        let nodes = self.grid.len();
        let is_scalar = |name: &String| self.scalars.contains(name);
        let scalars: Vec<usize> = (0..self.fields.len()).filter(|&c| is_scalar(&self.fields[c])).collect();
        let samples = || values.chunks_exact(self.sample_len());
        for (channel, name) in self.fields.iter().enumerate().filter(|(_, name)| !is_scalar(name)) {
            let mut hasher = BlockHasher::new(blocks.samples);
            samples().for_each(|s| hasher.add_numbers(s[channel * nodes..(channel + 1) * nodes].iter().copied()));
            blocks.insert(split, name, hasher.hashes());
        }
        if !scalars.is_empty() {
            let mut hasher = BlockHasher::new(blocks.samples);
            samples().for_each(|s| hasher.add_numbers(scalars.iter().map(|channel| s[channel * nodes])));
            blocks.insert(split, SCALARS, hasher.hashes());
        }
    }

    /// The units of the network's channels and sigma_data, as `config` asks.
    pub fn units(&self, config: &DataConfig) -> Result<(Units, f64)> {
        let channels = self.fields.len();
        match config.normalise {
            Normalise::None => {
                let sigma_data = match config.sigma_data {
                    NumberOrAuto::Number(sigma) => sigma,
                    NumberOrAuto::Auto(_) => self.moments(1)?[0].1,
                };
                Ok((Units::identity(channels), sigma_data))
            }
            Normalise::Std => {
                let sigma_data = config.sigma_data.number().unwrap_or(0.5);
                let (mean, std): (Vec<f64>, Vec<f64>) = self.moments(channels)?.into_iter().unzip();
                Ok((Units { mean, scale: std.iter().map(|s| s / sigma_data).collect() }, sigma_data))
            }
        }
    }

    /// Mean and standard deviation of the training data, of every channel (`groups` = C) or of all together (1), in two passes.
    fn moments(&self, groups: usize) -> Result<Vec<(f64, f64)>> {
        let n = (self.train_count() * self.sample_len() / groups) as f64;
        let means: Vec<f64> = self.sums(groups, |_, v| v)?.into_iter().map(|sum| sum / n).collect();
        let squares = self.sums(groups, |group, v| (v - means[group]).powi(2))?;
        Ok(means.iter().copied().zip(squares.into_iter().map(|square| (square / n).sqrt())).collect())
    }

    /// The sum of `term(group, number)` over the training data by group, one number after the other in the order of the samples.
    fn sums(&self, groups: usize, term: impl Fn(usize, f64) -> f64) -> Result<Vec<f64>> {
        let mut sums = vec![0.0; groups];
        self.each_field(|_, channel, values| {
            let group = channel % groups;
            sums[group] = values.iter().fold(sums[group], |sum, &v| sum + term(group, f64::from(v)));
        })?;
        Ok(sums)
    }

    /// Calls `look` with every field of every training sample: the sample, the channel, and the numbers `[H, W]`.
    fn each_field(&self, mut look: impl FnMut(usize, usize, &[f32])) -> Result<()> {
        let (mut fields, channels) = (0, self.fields.len());
        for piece in self.pieces(Split::Train) {
            for values in piece?.chunks_exact(self.grid.len()) {
                look(fields / channels, fields % channels, values);
                fields += 1;
            }
        }
        Ok(())
    }

    /// For each field that is positive in all training data the value that one in a thousand of its values is below.
    pub fn floors(&self) -> Result<BTreeMap<String, f64>> {
        let nodes = self.grid.len();
        // A million values are enough for a quantile.
        let stride = (self.train_count() * nodes).div_ceil(1 << 20).max(1);
        let mut some = vec![Some(Vec::new()); self.fields.len()];
        self.each_field(|sample, channel, values| {
            let first = (stride - sample * nodes % stride) % stride;
            match &mut some[channel] {
                Some(some) if values.iter().all(|&v| v > 0.0) => some.extend(values.iter().skip(first).step_by(stride)),
                some => *some = None,
            }
        })?;
        let floor = |(name, some): (&String, Option<Vec<f32>>)| {
            let mut some = some.filter(|some| !some.is_empty())?;
            let rank = some.len() / 1000;
            Some((name.clone(), f64::from(*some.select_nth_unstable_by(rank, f32::total_cmp).1)))
        };
        Ok(self.fields.iter().zip(some).filter_map(floor).collect())
    }

    /// At most `count` training samples, evenly spaced.
    pub(crate) fn spread(&self, count: usize) -> impl ExactSizeIterator<Item = usize> {
        let all = self.train_count();
        (0..all).step_by(all.div_ceil(count.max(1)).max(1))
    }

    /// Training samples in batches of [`BATCH`] in double precision, normalised by `units`, `[N, C, H, W]` each.
    pub fn clean(&self, indices: &[usize], units: &Units, device: &Device) -> Result<Vec<Tensor<4>>> {
        let batch = |indices: &[usize]| {
            let values = self.batch(Split::Train, indices, units)?;
            Ok(field_batch(values.into_iter().map(f64::from).collect(), self.shape(), device))
        };
        indices.chunks(BATCH).map(batch).collect()
    }

    /// Samples of a split with the given indices, normalised by `units`, `[N, C, H, W]` row-major.
    pub fn batch(&self, split: Split, indices: &[usize], units: &Units) -> Result<Vec<f32>> {
        let mut values = Vec::with_capacity(indices.len() * self.sample_len());
        for &i in indices {
            values.extend_from_slice(&self.samples(split, i..i + 1)?);
        }
        Ok(units.normalised_numbers(values, self.grid.len()))
    }
}
