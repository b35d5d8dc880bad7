//! How noisy the training examples are: distributions of sigma.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::function::erf::{erfc, erfc_inv};

use crate::denoiser::ddpm::CosineSchedule;
use crate::random::Stream;

/// The distribution of sigma in training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum NoiseDist {
    /// ln σ ~ N(mean, std²), as EDM.
    LogNormal {
        /// Mean of ln σ.
        mean: f64,
        /// Standard deviation of ln σ.
        std: f64,
    },
    /// The same with σ ≥ `min`: samplers end at a known smallest σ, and below it the loss weight only adds variance.
    TruncLogNormal {
        /// Mean of ln σ.
        mean: f64,
        /// Standard deviation of ln σ.
        std: f64,
        /// Smallest σ; by default the sampler's `sigma_min`. (The paper's limit, −4, may be σ or ln σ.)
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<f64>,
        /// One draw from each of n equally likely intervals, so that every batch covers all noise levels.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stratified: bool,
    },
    /// The discrete levels of a cosine DDPM schedule, drawn uniformly.
    Cosine {
        /// Number of levels.
        steps: usize,
        /// Draw levels in pairs t and T−1−t.
        antithetic: bool,
    },
}

impl NoiseDist {
    /// Draws `n` values of sigma, one per sample of a batch.
    pub fn sample(&self, n: usize, stream: &mut Stream) -> Vec<f64> {
        match *self {
            Self::LogNormal { mean, std } => (0..n).map(|_| (mean + std * stream.normal()).exp()).collect(),
            Self::TruncLogNormal { mean, std, min, stratified } => {
                let lower = normal_cdf((min.unwrap_or(0.0).ln() - mean) / std);
                (0..n)
                    .map(|i| {
                        let drawn = stream.uniform();
                        let u = if stratified { (i as f64 + drawn) / n as f64 } else { drawn };
                        // Inverse CDF; 1 − u lies in (0, 1], so the upper tail stays finite.
                        let upper_tail = (1.0 - lower) * (1.0 - u);
                        (mean + std * normal_upper_quantile(upper_tail)).exp().max(min.unwrap_or(0.0))
                    })
                    .collect()
            }
            Self::Cosine { steps, antithetic } => {
                let schedule = CosineSchedule::new(steps);
                let drawn = if antithetic { n / 2 + 1 } else { n };
                let mut levels: Vec<usize> = (0..drawn).map(|_| stream.below(steps)).collect();
                if antithetic {
                    levels.extend(levels.clone().into_iter().map(|t| steps - 1 - t));
                }
                levels.truncate(n);
                levels.into_iter().map(|t| schedule.sigma(t)).collect()
            }
        }
    }
}

fn normal_cdf(z: f64) -> f64 {
    0.5 * erfc(-z / std::f64::consts::SQRT_2)
}

/// The z with P(Z > z) = `tail`.
fn normal_upper_quantile(tail: f64) -> f64 {
    std::f64::consts::SQRT_2 * erfc_inv(2.0 * tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    #[test]
    fn truncated_moments_match_the_closed_form() {
        let (mean, std, min) = (-2.0, 1.7, 0.002f64);
        let dist = NoiseDist::TruncLogNormal { mean, std, min: Some(min), stratified: false };
        let n = 200_000;
        let logs: Vec<f64> = dist.sample(n, &mut Stream::new(0, Purpose::Metric, 0)).into_iter().map(f64::ln).collect();
        assert!(logs.iter().all(|&l| l >= min.ln() - 1e-12));
        // Mean of a normal truncated below at a: mean + std φ(a)/(1 − Φ(a)).
        let a = (min.ln() - mean) / std;
        let density = (-0.5 * a * a).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let expected = mean + std * density / (1.0 - normal_cdf(a));
        let measured = logs.iter().sum::<f64>() / n as f64;
        assert!((measured - expected).abs() < 4.0 * std / (n as f64).sqrt(), "{measured} against {expected}");
    }

    #[test]
    fn stratified_draws_fall_into_one_interval_each() {
        let (mean, std) = (-2.0, 1.7);
        let dist = NoiseDist::TruncLogNormal { mean, std, min: None, stratified: true };
        let drawn = dist.sample(50, &mut Stream::new(0, Purpose::Metric, 0));
        for (i, sigma) in drawn.into_iter().enumerate() {
            let u = normal_cdf((sigma.ln() - mean) / std);
            assert!((i as f64 / 50.0..(i + 1) as f64 / 50.0).contains(&u), "draw {i} has rank {u}");
        }
    }

    #[test]
    fn antithetic_levels_come_in_pairs() {
        let dist = NoiseDist::Cosine { steps: 100, antithetic: true };
        let schedule = CosineSchedule::new(100);
        let level = |sigma: f64| (0..100).find(|&t| schedule.sigma(t) == sigma).unwrap();
        let drawn = dist.sample(10, &mut Stream::new(0, Purpose::Metric, 0));
        let levels: Vec<usize> = drawn.into_iter().map(level).collect();
        assert_eq!(levels.len(), 10);
        for i in 0..4 {
            assert_eq!(levels[6 + i], 99 - levels[i]);
        }
    }
}
