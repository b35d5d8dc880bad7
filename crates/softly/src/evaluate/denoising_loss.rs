//! The held-out denoising loss by noise level, and the bound on the likelihood that follows from it.
//!
//! **Bound.** Let q be the law of x_σ = x0 + σ·noise and p the density at σmin of the reverse diffusion that starts at
//! N(0, σmax² I) and is driven by the score (D(x; σ) − x)/σ². The divergence between the two diffusions' paths bounds
//! the divergence of their ends (Girsanov), which for the law of x at σmin reads
//!
//! E[−log p] ≤ E[−log N(x_T; 0, σmax² I)] + ½ ∫ E{‖(D − x0)/σ²‖² − ‖(x − x0)/σ²‖²} dσ²
//!
//! and, since E‖x − x0‖² = σ² d,
//!
//! E[−log p] ≤ d/2 · ln(2πe σmin²) + E‖x0‖²/(2 σmax²) + ∫ E‖x0 − D(x; σ)‖² σ⁻³ dσ   over σmin … σmax:
//!
//! the entropy of the noise at σmin, the part of the data that is left in x_T, and the I-MMSE integral. There is no
//! separate reconstruction term because the density belongs to data + σmin·noise, the same that [`crate::evaluate::likelihood`]
//! evaluates. For the best denoiser the bound is met up to the divergence of x_T from the Gaussian. The density that is
//! bounded belongs to the stochastic reverse diffusion; for a denoiser that is not a score it differs from the
//! deterministic flow's, so the bound may then lie on either side of the flow's likelihood.
//!
//! Noise of covariance C is white in z = C^(−½) x: norms are then ‖C^(−½) ·‖, and ½ ln det C is added.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::denoiser::Denoiser;
use crate::denoiser::ddpm::CosineSchedule;
use crate::error::{Error, Result};
use crate::evaluate::held_out::{HeldOut, Levels};
use crate::evaluate::quadrature::integrate;
use crate::job::Job;
use crate::noise::Noise;
use crate::objective::Weight;
use crate::sampler::Sampler;
use crate::statistics::{Summary, log_spaced};
use crate::tensors::to_vec_f64;
use crate::units::Units;

/// How the loss by noise level is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenoisingLoss {
    /// The noise levels, ascending. The bound's σmin and σmax are the first and the last.
    pub sigmas: Vec<f64>,
    /// Fields that go through the network at a time.
    pub batch: usize,
}

/// The loss at one noise level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LevelLoss {
    /// The noise level.
    pub sigma: f64,
    /// ‖D − x0‖²/d over samples.
    pub mse: Summary,
    /// The same times EDM's weight (σ²+σd²)/(σ σd)², as training has it.
    pub weighted: Summary,
    /// ‖D − x0‖²/d of each sample: two models are compared sample by sample, for their noise is the same.
    pub samples: Vec<f64>,
}

/// The bound on the likelihood.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariationalBound {
    /// Upper bound on the mean of −log2 p per dimension, normalised units.
    pub bits_per_dim: f64,
    /// The same in physical units: larger by the mean of log2 scale.
    pub bits_per_dim_physical: f64,
    /// Standard error over data and noise; none for a single sample.
    pub standard_error: Option<f64>,
    /// Noise level of the density: p belongs to data + σmin·noise.
    pub sigma_min: f64,
    /// Noise level at which the model starts from N(0, σmax² I).
    pub sigma_max: f64,
    /// The physical units.
    pub units: Units,
    /// The share of each sample, bits per dimension in normalised units.
    pub samples: Vec<f64>,
}

/// The loss by noise level, and the bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenoisingReport {
    /// Each noise level, lowest first.
    pub levels: Vec<LevelLoss>,
    /// The bound that follows.
    pub bound: VariationalBound,
}

impl DenoisingLoss {
    /// `count` noise levels from `sigma_min` to `sigma_max`, evenly spaced in ln σ.
    pub fn log_spaced(sigma_min: f64, sigma_max: f64, count: usize) -> Self {
        Self { sigmas: log_spaced(sigma_min, sigma_max, count), batch: 64 }
    }

    /// The noise levels that suit a model of this configuration: `count` from its sampler's σmin to σmax, or the levels of its
    /// own between them if it knows single ones only.
    pub fn for_model(config: &Config, count: usize) -> Self {
        let Sampler { sigma_min, sigma_max, .. } = config.sampler;
        let spaced = Self::log_spaced(sigma_min, sigma_max, count);
        match config.ddpm_levels() {
            Some(levels) => Self { sigmas: CosineSchedule::new(levels).sigmas_between(sigma_min, sigma_max), ..spaced },
            None => spaced,
        }
    }

    fn check(&self) -> Result<()> {
        let ascending = self.sigmas.windows(2).all(|pair| pair[0] < pair[1]);
        let positive = self.sigmas.iter().all(|s| s.is_finite() && *s > 0.0);
        if self.sigmas.len() < 2 || !ascending || !positive {
            let problem = format!("expected two or more positive ascending noise levels, found {:?}", self.sigmas);
            return Err(Error::input("denoising loss, sigmas", problem));
        }
        if self.batch == 0 {
            return Err(Error::input("denoising loss, batch", "expected at least 1, found 0"));
        }
        Ok(())
    }

    /// The loss of `denoiser` on `data` whose standard deviation, normalised, is `sigma_data`.
    ///
    /// `HeldOut::at_levels` draws the noise; progress is counted in samples × levels.
    pub fn evaluate(
        &self,
        denoiser: &dyn Denoiser,
        data: HeldOut<'_>,
        sigma_data: f64,
        seed: u64,
        job: &Job<'_>,
    ) -> Result<DenoisingReport> {
        self.check()?;
        // By batch and level ‖D − x0‖²/d of every sample of this rank, and the same in the norm of the noise.
        let (size, noise) = (data.size(), denoiser.noise());
        let samples = job.ranks.part(data.count());
        let levels = Levels { sigmas: &self.sigmas, batch: self.batch, seed, samples };
        let batches = data.at_levels(&levels, &noise, job, |clean, noisy, sigma| {
            let estimate = to_vec_f64(denoiser.denoise(noisy, &vec![sigma; clean.len() / size]));
            let pairs = estimate.chunks(size).zip(clean.chunks(size));
            let errors = pairs.map(|(e, c)| e.iter().zip(c).map(|(e, c)| e - c).collect::<Vec<f64>>());
            errors.map(|e| [mean_square(&e), mean_square(&noise.whiten(&e))]).collect::<Vec<_>>()
        })?;
        // Of all ranks, per sample, per level.
        let in_norm = |norm: usize| -> Result<Vec<Vec<f64>>> {
            let of_sample = |levels: &Vec<Vec<[f64; 2]>>, i: usize| -> Vec<f64> {
                levels.iter().map(|level| level[i][norm]).collect()
            };
            let own = batches.iter().flat_map(|levels| (0..levels[0].len()).flat_map(|i| of_sample(levels, i)));
            let all = job.ranks.join(&own.collect::<Vec<f64>>())?;
            Ok(all.chunks(self.sigmas.len()).map(<[f64]>::to_vec).collect())
        };
        let losses = in_norm(0)?;
        if let Some(bad) = losses.iter().position(|l| l.iter().any(|v| !v.is_finite())) {
            let why = format!("held-out sample {bad} has losses {:?}", losses[bad]);
            return Err(Error::Failed { what: "the denoising loss".into(), why });
        }
        let level = |(k, &sigma): (usize, &f64)| {
            let samples: Vec<f64> = losses.iter().map(|l| l[k]).collect();
            let mse = Summary::of(&samples);
            let weight = Weight::Edm.at(sigma, sigma_data);
            let weighted = Summary { mean: weight * mse.mean, two_sd: weight * mse.two_sd, n: mse.n };
            LevelLoss { sigma, mse, weighted, samples }
        };
        let levels = self.sigmas.iter().enumerate().map(level).collect();
        Ok(DenoisingReport { levels, bound: self.bound(&in_norm(1)?, data, &noise) })
    }

    /// The bound from the losses of each sample at each level in the norm of `noise`.
    fn bound(&self, losses: &[Vec<f64>], data: HeldOut<'_>, noise: &Noise) -> VariationalBound {
        let (sigma_min, sigma_max) = (self.sigmas[0], self.sigmas[self.sigmas.len() - 1]);
        let nodes: Vec<f64> = self.sigmas.iter().map(|s| s.ln()).collect();
        let noise_entropy =
            0.5 * (std::f64::consts::TAU * std::f64::consts::E * sigma_min * sigma_min).ln() + noise.log_spread();
        let share = |(i, losses): (usize, &Vec<f64>)| {
            let rates: Vec<f64> = losses.iter().zip(&self.sigmas).map(|(l, s)| l / (s * s)).collect();
            let square = mean_square(&noise.whiten(&data.sample(i)));
            let nats = noise_entropy + 0.5 * square / (sigma_max * sigma_max) + integrate(&nodes, &rates);
            nats / std::f64::consts::LN_2
        };
        let samples: Vec<f64> = losses.iter().enumerate().map(share).collect();
        let bits = Summary::of(&samples);
        VariationalBound {
            bits_per_dim: bits.mean,
            bits_per_dim_physical: bits.mean + data.physical_shift(),
            standard_error: (bits.n > 1).then(|| 0.5 * bits.two_sd / (bits.n as f64).sqrt()),
            sigma_min,
            sigma_max,
            units: data.units.clone(),
            samples,
        }
    }
}

/// ‖v‖²/d.
fn mean_square(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64
}
