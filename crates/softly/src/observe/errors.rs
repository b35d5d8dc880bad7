//! How a denoiser errs, measured on training data at several noise levels.
//!
//! x0 = D + U a with standard normal a: U holds the leading modes of the errors x0 − D, over all fields at once, so that an error of
//! one field tells of the errors of the others. Errors are measured in units of c_out, in which they change little from level to level,
//! and their covariances are interpolated in ln σ.
//!
//! An equation R(x0) = 0 is the row R(D) + J U a = m + noise of the variance V at every node: m and V are what R(D) + J(x0 − D) was
//! found to be, so that a wrong equation and its curvature count as noise. V knows nothing of how the curvature depends on the error
//! itself; an inflation of V, the one with which the row explains most of the errors of other samples, makes up for that: at high
//! noise it turns the equation off.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use softly_pde::gaussian::{Modes, inflated_means};

use crate::constraint::SoftConstraint;
use crate::data::dataset::Dataset;
use crate::denoiser::Denoiser;
use crate::denoiser::edm::Precondition;
use crate::error::Result;
use crate::job::{Job, NOTHING_WRITTEN};
use crate::random::{Purpose, Stream};
use crate::statistics::{NodeMoments, log_spaced};
use crate::tensors::{field_batch, to_vec_f64};
use crate::units::Units;

/// Noise levels, evenly spaced in ln σ.
const LEVELS: usize = 20;
const FIRST: f64 = 0.001;
const LAST: f64 = 80.0;

/// Training samples whose errors give the modes.
const SAMPLES: usize = 1024;

/// Of these, samples whose misfit is measured.
const MISFIT_SAMPLES: usize = 128;

/// Further samples that judge the inflation of the misfit.
const JUDGES: usize = 32;

/// Samples that go through the network at a time.
const BATCH: usize = 32;

/// Most modes.
const MODES: usize = 512;

/// Share of the errors' energy that modes may leave out.
const LEFT_OUT: f64 = 1e-4;

/// Inflations of the misfit that are tried; the last one is as good as no equation.
const INFLATIONS: [f64; 9] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 16384.0, 1e6, 1e10];

/// The errors of a denoiser by noise level.
pub struct Errors {
    shape: [usize; 3],
    source: Source,
    /// By the bits of σ.
    found: Mutex<HashMap<u64, Arc<ErrorsAt>>>,
}

/// Where the errors are known from.
enum Source {
    /// Measurements at several levels.
    Levels { levels: Vec<LevelErrors>, sigma_data: f64 },
    /// A formula of σ.
    Known(Box<dyn Fn(f64) -> Modes + Send + Sync>),
}

/// At a measured level.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LevelErrors {
    /// Of (x0 − D)/c_out.
    pub modes: Modes,
    /// Of the equation, if there is one.
    pub misfit: Option<Misfit>,
}

/// The equation's misfit R(D) + J(x0 − D).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Misfit {
    /// m, `[E, H, W]`.
    pub mean: Vec<f64>,
    /// V's diagonal, `[E, H, W]`.
    pub variance: Vec<f64>,
    /// The factor on V.
    pub inflation: f64,
}

/// The errors at any noise level.
pub(crate) struct ErrorsAt {
    /// U.
    pub modes: Modes,
    /// U as fields, `[L, C, H, W]`.
    pub fields: Tensor<4>,
    /// The equation's misfit, if it is known.
    pub misfit: Option<MisfitAt>,
}

impl Errors {
    /// Measures `base` on the training samples of `dataset`, normalised by `units`, and the misfit of `constraint`. Progress is
    /// counted in samples, see [`Errors::units_of_work`].
    pub fn measure(
        base: &dyn Denoiser,
        constraint: Option<&SoftConstraint>,
        dataset: &Dataset,
        units: &Units,
        sigma_data: f64,
        job: &Job<'_>,
    ) -> Result<Self> {
        let chosen = chosen(dataset);
        // Judges are every so-many-th of the samples and give no modes, unless there are too few samples.
        let every = if constraint.is_some() && chosen.len() >= 2 * JUDGES { chosen.len() / JUDGES } else { usize::MAX };
        let part = |judges: bool| {
            let of_part = chosen.iter().enumerate().filter(move |(k, _)| (k % every == every / 2) == judges);
            of_part.map(|(_, &i)| i).collect::<Vec<usize>>()
        };
        let (judges, givers) = (part(true), part(false));
        let site = Site { base, constraint, dataset, units, sigma_data, device: job.device };
        let mut levels = Vec::new();
        for (level, sigma) in log_spaced(FIRST, LAST, LEVELS).into_iter().enumerate() {
            job.go_on(NOTHING_WRITTEN)?;
            levels.push(site.measure(level as u64, sigma, &givers, &judges));
            job.reporter.advance(chosen.len() as u64);
        }
        Ok(Self::new(levels, dataset.shape(), sigma_data))
    }

    /// The errors of measured levels.
    pub(crate) fn new(levels: Vec<LevelErrors>, shape: [usize; 3], sigma_data: f64) -> Self {
        Self { shape, source: Source::Levels { levels, sigma_data }, found: Mutex::new(HashMap::new()) }
    }

    /// Errors of fields `[C, H, W]` whose covariance at every σ is known; an equation's misfit is not.
    pub fn known(shape: [usize; 3], covariance: impl Fn(f64) -> Modes + Send + Sync + 'static) -> Self {
        Self { shape, source: Source::Known(Box::new(covariance)), found: Mutex::new(HashMap::new()) }
    }

    /// The measured levels; none if the errors are known by a formula.
    pub(crate) fn levels(&self) -> &[LevelErrors] {
        match &self.source {
            Source::Levels { levels, .. } => levels,
            Source::Known(_) => &[],
        }
    }

    /// What [`Errors::measure`] reports in all.
    pub fn units_of_work(dataset: &Dataset) -> u64 {
        (LEVELS * chosen(dataset).len()) as u64
    }

    /// σ, number of modes, share of the variance that they leave out, and inflation of the misfit at every measured level.
    pub fn summary(&self) -> Vec<(f64, usize, f64, Option<f64>)> {
        let of = |(sigma, level): (f64, &LevelErrors)| {
            let (held, left) = (level.modes.values.iter().sum::<f64>(), level.modes.rest.iter().sum::<f64>());
            (sigma, level.modes.len(), left / (held + left), level.misfit.as_ref().map(|misfit| misfit.inflation))
        };
        log_spaced(FIRST, LAST, LEVELS).into_iter().zip(self.levels()).map(of).collect()
    }

    /// The errors at `sigma`, as fields on `device`.
    pub(crate) fn at(&self, sigma: f64, device: &Device) -> Arc<ErrorsAt> {
        let known = self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&sigma.to_bits()).cloned();
        known.unwrap_or_else(|| {
            let (modes, misfit) = match &self.source {
                Source::Known(covariance) => (covariance(sigma), None),
                Source::Levels { levels, sigma_data } => interpolated(levels, *sigma_data, sigma),
            };
            let fields = field_batch(modes.vectors.clone(), self.shape, device);
            let made = Arc::new(ErrorsAt { modes, fields, misfit });
            self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(sigma.to_bits(), made.clone());
            made
        })
    }
}

/// m and the standard deviations of the inflated noise, `[E, H, W]` each.
type MisfitAt = (Vec<f64>, Vec<f64>);

/// The covariance at `sigma` between measured levels, and the misfit if there is one.
fn interpolated(levels: &[LevelErrors], sigma_data: f64, sigma: f64) -> (Modes, Option<MisfitAt>) {
    let last = levels.len() - 1;
    let place = ((sigma / FIRST).ln() / (LAST / FIRST).ln() * last as f64).clamp(0.0, last as f64);
    let (low, share) = (place.floor() as usize, place.fract());
    let (first, second) = (&levels[low], &levels[(low + 1).min(last)]);
    let mut modes = if share == 0.0 {
        first.modes.clone()
    } else {
        Modes::between(&first.modes, &second.modes, share, MODES, LEFT_OUT)
    };
    let size = Precondition::new(sigma, sigma_data).out;
    modes.vectors.iter_mut().for_each(|v| *v *= size);
    modes.values.iter_mut().chain(&mut modes.rest).for_each(|v| *v *= size * size);
    let misfit = first.misfit.as_ref().zip(second.misfit.as_ref()).map(|(a, b)| {
        let inflation = (1.0 - share) * a.inflation.ln() + share * b.inflation.ln();
        let mean = a.mean.iter().zip(&b.mean).map(|(a, b)| (1.0 - share) * a + share * b);
        let deviation = a.variance.iter().zip(&b.variance);
        let deviation = deviation.map(|(a, b)| (0.5 * ((1.0 - share) * a.ln() + share * b.ln() + inflation)).exp());
        (mean.collect(), deviation.collect())
    });
    (modes, misfit)
}

/// The training samples that are looked at, evenly spaced.
fn chosen(dataset: &Dataset) -> Vec<usize> {
    let count = dataset.train_count();
    let wanted = (SAMPLES + JUDGES).min(count);
    (0..wanted).map(|k| k * count / wanted).collect()
}

/// A denoiser, its data and an equation.
struct Site<'a> {
    base: &'a dyn Denoiser,
    constraint: Option<&'a SoftConstraint>,
    dataset: &'a Dataset,
    units: &'a Units,
    sigma_data: f64,
    device: &'a Device,
}

/// A clean sample and the denoiser's estimate of it, `[1, C, H, W]`, and the error `[C, H, W]`.
struct Pair {
    estimate: Tensor<4>,
    error: Vec<f64>,
}

impl Site<'_> {
    fn measure(&self, level: u64, sigma: f64, givers: &[usize], judges: &[usize]) -> LevelErrors {
        let len = self.dataset.sample_len();
        let size = Precondition::new(sigma, self.sigma_data).out;
        let pairs = self.pairs(level, sigma, givers);
        let scaled: Vec<f64> = pairs.iter().flat_map(|pair| pair.error.iter().map(|e| e / size)).collect();
        let modes = Modes::of_samples(&scaled, len, MODES, LEFT_OUT);
        let misfit = self.constraint.map(|constraint| {
            let few = givers.len().div_ceil(MISFIT_SAMPLES).max(1);
            let misfits: Vec<Vec<f64>> =
                pairs.par_iter().step_by(few).map(|pair| self.misfit(constraint, &modes, pair)).collect();
            let mut moments = NodeMoments::new(misfits.first().map_or(0, Vec::len));
            misfits.iter().for_each(|misfit| moments.add(misfit));
            let mean: Vec<f64> = moments.means().collect();
            let variance: Vec<f64> = moments.variances().map(|variance| variance.max(1e-12)).collect();
            let inflation =
                self.inflation(constraint, &modes, size, (&mean, &variance), &self.pairs(level, sigma, judges));
            Misfit { mean, variance, inflation }
        });
        LevelErrors { modes, misfit }
    }

    /// The estimates of the samples `indices` with noise of standard deviation `sigma`.
    fn pairs(&self, level: u64, sigma: f64, indices: &[usize]) -> Vec<Pair> {
        let (len, nodes) = (self.dataset.sample_len(), self.dataset.grid.len());
        let batches = indices.par_chunks(BATCH).map(|indices| {
            let clean = Dataset::batch(&self.dataset.train, indices, len, nodes, self.units);
            let noise = indices.iter().flat_map(|&i| Stream::new(level, Purpose::Observation, i as u64).normals(len));
            let noisy = clean.iter().zip(noise).map(|(&x, z)| f64::from(x) + sigma * z).collect();
            let noisy = field_batch(noisy, self.dataset.shape(), self.device);
            let estimate = self.base.denoise(noisy, &vec![sigma; indices.len()]).without_autodiff();
            let numbers = to_vec_f64(estimate.clone());
            let pair = |k: usize| {
                let own = k * len..(k + 1) * len;
                let error = clean[own.clone()].iter().zip(&numbers[own]).map(|(&x, d)| f64::from(x) - d);
                Pair { estimate: estimate.clone().narrow(0, k, 1), error: error.collect() }
            };
            (0..indices.len()).map(pair).collect::<Vec<_>>()
        });
        batches.flatten().collect()
    }

    /// R(D) + J P(x0 − D) `[E, H, W]`, with the projection P onto the modes.
    fn misfit(&self, constraint: &SoftConstraint, modes: &Modes, pair: &Pair) -> Vec<f64> {
        let along = field_batch(modes.projected(&pair.error), self.dataset.shape(), self.device);
        let system = constraint.linearised_system(0..constraint.equations(), &pair.estimate, |_| {});
        to_vec_f64(system.residual() + system.product(&along))
    }

    /// The inflation of the misfit's variance with which the update by the equation explains most of the errors of `judges`: the least
    /// sum over fields of what is left of their energy. Without judges the misfit is taken as it is.
    fn inflation(
        &self,
        constraint: &SoftConstraint,
        modes: &Modes,
        size: f64,
        (mean, variance): (&[f64], &[f64]),
        judges: &[Pair],
    ) -> f64 {
        let channels = self.dataset.fields.len();
        let nodes = self.dataset.grid.len();
        let fields = field_batch(modes.vectors.iter().map(|v| v * size).collect(), self.dataset.shape(), self.device);
        let left = |pair: &Pair| -> Vec<f64> {
            let system = constraint.linearised_system(0..constraint.equations(), &pair.estimate, |_| {});
            let mut columns = to_vec_f64(system.product(&fields));
            for column in columns.chunks_exact_mut(mean.len()) {
                column.iter_mut().zip(variance).for_each(|(v, variance)| *v /= variance.sqrt());
            }
            let residual = to_vec_f64(system.residual());
            let right: Vec<f64> =
                residual.iter().zip(mean.iter().zip(variance)).map(|(r, (m, v))| (m - r) / v.sqrt()).collect();
            let energies = inflated_means(&columns, modes.len(), &right, &INFLATIONS).into_iter().flat_map(|mean| {
                let step = modes.combined(&mean);
                let rest: Vec<f64> = pair.error.iter().zip(&step).map(|(e, s)| (e - s * size).powi(2)).collect();
                rest.chunks_exact(nodes).map(|channel| channel.iter().sum()).collect::<Vec<f64>>()
            });
            energies.collect()
        };
        let sums = judges
            .par_iter()
            .map(left)
            .reduce(|| vec![0.0; INFLATIONS.len() * channels], |a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect());
        let without = &sums[(INFLATIONS.len() - 1) * channels..];
        let score = |k: usize| (0..channels).map(|c| sums[k * channels + c] / without[c].max(1e-300)).sum::<f64>();
        let best = (0..INFLATIONS.len()).min_by(|&a, &b| score(a).total_cmp(&score(b)));
        if judges.is_empty() { INFLATIONS[0] } else { best.map_or(INFLATIONS[0], |best| INFLATIONS[best]) }
    }
}
