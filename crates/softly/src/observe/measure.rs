//! The errors of a denoiser, and the misfit of an equation, measured on training data.
//!
//! m and V are mean and variance of R(D) + J(x0 − D). V knows nothing of how the curvature depends on the error itself; an inflation κ of
//! V, the one with which the row explains most of the errors of other samples, makes up for that: at high noise it turns the
//! equation off.

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use softly_pde::gaussian::{Modes, inflated_means};

use crate::constraint::SoftConstraint;
use crate::constraint::basis::{Basis, Transform};
use crate::data::dataset::Dataset;
use crate::data::split::Split;
use crate::denoiser::Denoiser;
use crate::denoiser::edm::Precondition;
use crate::error::Result;
use crate::job::{Job, NOTHING_WRITTEN};
use crate::observe::errors::{Errors, LEFT_OUT, LEVELS, LevelErrors, MODES, Misfit};
use crate::random::{Purpose, Stream};
use crate::statistics::NodeMoments;
use crate::tensors::{field_batch, to_vec_f64};
use crate::units::Units;

/// Training samples whose errors give the modes.
const SAMPLES: usize = 1024;

/// Of these, samples whose misfit is measured.
const MISFIT_SAMPLES: usize = 128;

/// Further samples that judge the inflation of the misfit.
const JUDGES: usize = 32;

/// Samples that go through the network at a time.
const BATCH: usize = 32;

/// Inflations of the misfit that are tried; the last one is as good as no equation.
const INFLATIONS: [f64; 9] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 16384.0, 1e6, 1e10];

/// The least variance of a misfit.
const LEAST_VARIANCE: f64 = 1e-12;

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
        let basis = Basis::of_grid(dataset.fields.len(), &dataset.grid);
        let waves = basis.transform(&field_batch(vec![0.0; dataset.sample_len()], dataset.shape(), job.device));
        let site = Site { base, constraint, dataset, units, sigma_data, waves, device: job.device };
        let mut levels = Vec::new();
        for (level, sigma) in Self::measured_levels().into_iter().enumerate() {
            job.go_on(NOTHING_WRITTEN)?;
            levels.push(site.measure(level as u64, sigma, &givers, &judges)?);
            job.reporter.advance(chosen.len() as u64);
        }
        Ok(Self::new(levels, basis, sigma_data))
    }

    /// What [`Errors::measure`] reports in all.
    pub fn units_of_work(dataset: &Dataset) -> u64 {
        (LEVELS * chosen(dataset).len()) as u64
    }
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
    waves: Transform,
    device: &'a Device,
}

/// A clean sample and the denoiser's estimate of it, `[1, C, H, W]`, and the error `[C, H, W]`.
struct Pair {
    estimate: Tensor<4>,
    error: Vec<f64>,
}

impl Site<'_> {
    fn measure(&self, level: u64, sigma: f64, givers: &[usize], judges: &[usize]) -> Result<LevelErrors> {
        let len = self.dataset.sample_len();
        let size = Precondition::new(sigma, self.sigma_data).out;
        let pairs = self.pairs(level, sigma, givers)?;
        let scaled: Vec<f64> = pairs.iter().flat_map(|pair| pair.error.iter().map(|e| e / size)).collect();
        let by_waves = to_vec_f64(self.waves.coefficients(self.fields(scaled)));
        let modes = Modes::of_samples(&by_waves, len, MODES, LEFT_OUT);
        let misfit = |constraint| {
            let few = givers.len().div_ceil(MISFIT_SAMPLES).max(1);
            let found: Vec<[Vec<f64>; 2]> =
                pairs.par_iter().step_by(few).map(|pair| self.misfit(constraint, &modes, pair)).collect();
            let moments = |k: usize| {
                let mut moments = NodeMoments::new(found.first().map_or(0, |pair| pair[k].len()));
                for pair in &found {
                    moments.add(&pair[k]);
                }
                moments
            };
            let least = |variance: f64| variance.max(LEAST_VARIANCE);
            let (whole, rest) = (moments(0), moments(1));
            let mean: Vec<f64> = whole.means().collect();
            let variance: Vec<f64> = whole.variances().map(least).collect();
            let rest: Vec<f64> = rest.variances().zip(rest.means()).map(|(v, m)| least(v + m * m)).collect();
            let noise: Vec<f64> = variance.iter().zip(&rest).map(|(v, rest)| v + rest).collect();
            let fields = self.waves.fields(self.fields(modes.vectors.iter().map(|v| v * size).collect()));
            let judges = self.pairs(level, sigma, judges)?;
            let inflation = self.inflation(constraint, fields, (&mean, &noise), &judges);
            Ok(Misfit { mean, variance, rest, inflation })
        };
        let misfit = self.constraint.map(misfit).transpose()?;
        Ok(LevelErrors { modes, misfit })
    }

    fn fields(&self, values: Vec<f64>) -> Tensor<4> {
        field_batch(values, self.dataset.shape(), self.device)
    }

    /// The estimates of the samples `indices` with noise of standard deviation `sigma`.
    fn pairs(&self, level: u64, sigma: f64, indices: &[usize]) -> Result<Vec<Pair>> {
        let len = self.dataset.sample_len();
        let batches = indices.par_chunks(BATCH).map(|indices| {
            let clean = self.dataset.batch(Split::Train, indices, self.units)?;
            let kind = self.base.noise();
            let draw = |&i: &usize| kind.draw(&mut Stream::new(level, Purpose::Observation, i as u64), len);
            let noise = indices.iter().flat_map(draw);
            let noisy = clean.iter().zip(noise).map(|(&x, z)| f64::from(x) + sigma * z).collect();
            let noisy = field_batch(noisy, self.dataset.shape(), self.device);
            let estimate = self.base.denoise(noisy, &vec![sigma; indices.len()]).without_autodiff();
            let numbers = to_vec_f64(estimate.clone());
            let pair = |k: usize| {
                let own = k * len..(k + 1) * len;
                let error = clean[own.clone()].iter().zip(&numbers[own]).map(|(&x, d)| f64::from(x) - d);
                Pair { estimate: estimate.clone().narrow(0, k, 1), error: error.collect() }
            };
            Ok((0..indices.len()).map(pair).collect::<Vec<_>>())
        });
        Ok(batches.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// R(D) + J(x0 − D), and of that J's product with what the modes leave out, `[E, H, W]` each.
    fn misfit(&self, constraint: &SoftConstraint, modes: &Modes, pair: &Pair) -> [Vec<f64>; 2] {
        let error = self.fields(pair.error.clone());
        let along = modes.projected(&to_vec_f64(self.waves.coefficients(error.clone())));
        let rest = error.clone() - self.waves.fields(self.fields(along));
        let system = constraint.linearised_system(0..constraint.equations(), &pair.estimate, |_| {});
        [to_vec_f64(system.residual() + system.product(&error)), to_vec_f64(system.product(&rest))]
    }

    /// The inflation of the misfit's variance with which the update by the equation explains most of the errors of `judges`: the least
    /// sum over fields of what is left of their energy. `modes` are fields `[L, C, H, W]`. Without judges the misfit is taken as it is.
    fn inflation(
        &self,
        constraint: &SoftConstraint,
        modes: Tensor<4>,
        (mean, variance): (&[f64], &[f64]),
        judges: &[Pair],
    ) -> f64 {
        let (channels, nodes) = (self.dataset.fields.len(), self.dataset.grid.len());
        let (count, vectors) = (modes.dims()[0], to_vec_f64(modes.clone()));
        let left = |pair: &Pair| -> Vec<f64> {
            let system = constraint.linearised_system(0..constraint.equations(), &pair.estimate, |_| {});
            let mut columns = to_vec_f64(system.product(&modes));
            for column in columns.chunks_exact_mut(mean.len()) {
                column.iter_mut().zip(variance).for_each(|(v, variance)| *v /= variance.sqrt());
            }
            let residual = to_vec_f64(system.residual());
            let right: Vec<f64> =
                residual.iter().zip(mean.iter().zip(variance)).map(|(r, (m, v))| (m - r) / v.sqrt()).collect();
            let energies = inflated_means(&columns, count, &right, &INFLATIONS).into_iter().flat_map(|mean| {
                let mut rest = pair.error.clone();
                for (mode, a) in vectors.chunks_exact(rest.len()).zip(&mean) {
                    rest.iter_mut().zip(mode).for_each(|(rest, v)| *rest -= a * v);
                }
                for rest in &mut rest {
                    *rest *= *rest;
                }
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
