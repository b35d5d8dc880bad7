//! Data: samples of one or several fields on a grid.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use softly_pde::grid::Grid;

use crate::auto::NumberOrAuto;
use crate::constraint::config::ConstraintConfig;
use crate::data::config::{DataConfig, Normalise};
use crate::data::fingerprint::{BlockHasher, Blocks};
use crate::data::folder::{DatasetFolder, SCALARS};
use crate::data::generator::{GeneratorConfig, Reference, SampleMaker};
use crate::data::split::Split;
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
    /// Training samples, `[N, C, H, W]` row-major.
    pub train: Vec<f32>,
    /// Held-out samples, likewise.
    pub valid: Vec<f32>,
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
            train: maker.samples(Split::Train, 0..config.count)?.concat(),
            valid: maker.samples(Split::Valid, 0..config.valid)?.concat(),
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

    /// The first training samples, `count` at most, and one held-out sample.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let of = |values: &[f32], count: usize| values[..(count * self.sample_len()).min(values.len())].to_vec();
        Self {
            fields: self.fields.clone(),
            scalars: self.scalars.clone(),
            constants: self.constants.clone(),
            grid: self.grid.clone(),
            train: of(&self.train, count),
            valid: of(&self.valid, 1),
            generator: None,
            equation: None,
        }
    }

    /// Numbers per sample.
    pub fn sample_len(&self) -> usize {
        self.fields.len() * self.grid.len()
    }

    /// Training samples.
    pub fn train_count(&self) -> usize {
        self.train.len() / self.sample_len()
    }

    /// Held-out samples.
    pub fn valid_count(&self) -> usize {
        self.valid.len() / self.sample_len()
    }

    /// Shape of a sample, `[C, H, W]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.fields.len(), self.grid.rows(), self.grid.cols()]
    }

    /// Refuses empty data and data that are not finite.
    pub fn check(&self) -> Result<()> {
        for (split, values) in [("train", &self.train), ("valid", &self.valid)] {
            if values.is_empty() {
                return Err(Error::input(format!("{split} data"), "expected at least one sample, found none"));
            }
            if let Some(bad) = values.iter().position(|v| !v.is_finite()) {
                let (sample, inside) = (bad / self.sample_len(), bad % self.sample_len());
                let field = &self.fields[inside / self.grid.len()];
                return Err(Error::input(
                    format!("{split} data, field `{field}`"),
                    format!("expected finite numbers, found {} in sample {sample}", values[bad]),
                )
                .hint("drop or repair that sample"));
            }
        }
        Ok(())
    }

    /// The fingerprint of the samples, which a folder of them records.
    pub fn hash(&self) -> String {
        let nodes = self.grid.len();
        let is_scalar = |name: &String| self.scalars.contains(name);
        let scalars: Vec<usize> = (0..self.fields.len()).filter(|&c| is_scalar(&self.fields[c])).collect();
        let mut blocks = Blocks::new(nodes);
        for (split, values) in Split::BOTH.into_iter().zip([&self.train, &self.valid]) {
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
        blocks.hash()
    }

    /// The units of the network's channels and sigma_data, as `config` asks.
    pub fn units(&self, config: &DataConfig) -> (Units, f64) {
        let nodes = self.grid.len();
        let channels = self.fields.len();
        let moments = |select: &dyn Fn(usize) -> bool| {
            let values = || self.train.iter().enumerate().filter(|(i, _)| select(*i)).map(|(_, &v)| f64::from(v));
            let n = values().count() as f64;
            let mean = values().sum::<f64>() / n;
            (mean, (values().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt())
        };
        match config.normalise {
            Normalise::None => {
                let sigma_data = match config.sigma_data {
                    NumberOrAuto::Number(sigma) => sigma,
                    NumberOrAuto::Auto(_) => moments(&|_| true).1,
                };
                (Units::identity(channels), sigma_data)
            }
            Normalise::Std => {
                let sigma_data = config.sigma_data.number().unwrap_or(0.5);
                let of_channel = |c: usize| moments(&|i| (i / nodes) % channels == c);
                let (mean, std): (Vec<f64>, Vec<f64>) = (0..channels).map(of_channel).unzip();
                (Units { mean, scale: std.iter().map(|s| s / sigma_data).collect() }, sigma_data)
            }
        }
    }

    /// For each field that is positive in all training data the value that one in a thousand of its values is below.
    pub fn floors(&self) -> BTreeMap<String, f64> {
        let nodes = self.grid.len();
        let floor = |(channel, name): (usize, &String)| {
            let samples = self.train.chunks_exact(self.sample_len());
            let values = || samples.clone().flat_map(|sample| &sample[channel * nodes..(channel + 1) * nodes]).copied();
            if !values().all(|v| v > 0.0) {
                return None;
            }
            // A million values are enough for a quantile.
            let stride = (self.train.len() / self.fields.len()).div_ceil(1 << 20).max(1);
            let mut some: Vec<f32> = values().step_by(stride).collect();
            let rank = some.len() / 1000;
            (!some.is_empty()).then(|| (name.clone(), f64::from(*some.select_nth_unstable_by(rank, f32::total_cmp).1)))
        };
        self.fields.iter().enumerate().filter_map(floor).collect()
    }

    /// At most `count` training samples, evenly spaced.
    pub(crate) fn spread(&self, count: usize) -> impl ExactSizeIterator<Item = usize> {
        let all = self.train_count();
        (0..all).step_by(all.div_ceil(count.max(1)).max(1))
    }

    /// Training samples in batches of [`BATCH`] in double precision, normalised by `units`, `[N, C, H, W]` each.
    pub(crate) fn clean(&self, indices: &[usize], units: &Units, device: &Device) -> Vec<Tensor<4>> {
        let batch = |indices: &[usize]| {
            let values = Self::batch(&self.train, indices, self.sample_len(), self.grid.len(), units);
            field_batch(values.into_iter().map(f64::from).collect(), self.shape(), device)
        };
        indices.chunks(BATCH).map(batch).collect()
    }

    /// Samples with the given indices, normalised by `units`, `[N, C, H, W]` row-major.
    pub fn batch(values: &[f32], indices: &[usize], sample_len: usize, nodes: usize, units: &Units) -> Vec<f32> {
        let sample = |&i: &usize| &values[i * sample_len..(i + 1) * sample_len];
        if units.is_identity() {
            return indices.iter().flat_map(sample).copied().collect();
        }
        let normalise = |(i, &v): (usize, &f32)| {
            let channel = i / nodes;
            ((f64::from(v) - units.mean[channel]) / units.scale[channel]) as f32
        };
        indices.iter().flat_map(|i| sample(i).iter().enumerate().map(normalise)).collect()
    }
}
