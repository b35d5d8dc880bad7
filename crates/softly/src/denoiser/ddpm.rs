//! The variance-preserving diffusion of DDPM, seen as a denoiser of `x = x0 + σ·noise`.
//!
//! DDPM's x_t = √ᾱ x0 + √(1−ᾱ) noise is our x divided by √(1+σ²), with σ² = (1−ᾱ)/ᾱ. Everything else in the
//! library therefore speaks of sigma only.

use burn::tensor::Tensor;

use crate::denoiser::Denoiser;
use crate::nn::backbone::Backbone;
use crate::nn::parameter::{Parameters, Visitor};
use crate::noise::Noise;
use crate::tensors::per_sample;

/// The cosine noise schedule with T levels: ᾱ(t) ∝ cos²(π/2 · (t/T + s)/(1 + s)), s = 0.008.
#[derive(Debug, Clone)]
pub struct CosineSchedule {
    /// β of each level.
    pub beta: Vec<f64>,
    /// ᾱ of each level: the running product of 1 − β.
    pub alpha_bar: Vec<f64>,
    /// σ of each level, ascending.
    sigma: Vec<f64>,
}

impl CosineSchedule {
    /// The schedule with `steps` levels.
    pub fn new(steps: usize) -> Self {
        let offset = 0.008;
        let curve = |t: usize| {
            let phase = (t as f64 / steps as f64 + offset) / (1.0 + offset);
            (phase * std::f64::consts::FRAC_PI_2).cos().powi(2)
        };
        let beta: Vec<f64> = (0..steps).map(|t| (1.0 - curve(t + 1) / curve(t)).clamp(0.0, 0.999)).collect();
        let alpha_bar: Vec<f64> = beta
            .iter()
            .scan(1.0, |product, beta| {
                *product *= 1.0 - beta;
                Some(*product)
            })
            .collect();
        let sigma = alpha_bar.iter().map(|a| ((1.0 - a) / a).sqrt()).collect();
        Self { beta, alpha_bar, sigma }
    }

    /// Number of levels.
    pub fn steps(&self) -> usize {
        self.beta.len()
    }

    /// σ of level t: √((1−ᾱ)/ᾱ).
    pub fn sigma(&self, t: usize) -> f64 {
        self.sigma[t]
    }

    /// ᾱ of the level below t; 1 below the first.
    pub fn alpha_bar_before(&self, t: usize) -> f64 {
        if t == 0 { 1.0 } else { self.alpha_bar[t - 1] }
    }

    /// Variance of x_{t−1} given x_t and x0; level 0, where it vanishes, takes the value of level 1.
    pub fn posterior_variance(&self, t: usize) -> f64 {
        let t = t.max(1).min(self.steps() - 1);
        self.beta[t] * (1.0 - self.alpha_bar_before(t)) / (1.0 - self.alpha_bar[t])
    }

    /// σ of the levels from `min` to `max`, ascending. A bound copied from a table of levels does not lose its level to
    /// rounding.
    pub fn sigmas_between(&self, min: f64, max: f64) -> Vec<f64> {
        let wanted = min * (1.0 - 1e-6)..=max * (1.0 + 1e-6);
        (0..self.steps()).map(|t| self.sigma(t)).filter(|sigma| wanted.contains(sigma)).collect()
    }

    /// The level whose σ is nearest to `sigma` on a log scale.
    pub fn nearest_level(&self, sigma: f64) -> usize {
        let above = self.sigma.partition_point(|&level| level < sigma).min(self.steps() - 1);
        if above > 0 && sigma * sigma < self.sigma(above) * self.sigma(above - 1) { above - 1 } else { above }
    }
}

/// A denoiser from a network that predicts x0 from DDPM's x_t and the index of the noise level.
pub struct Ddpm {
    backbone: Box<dyn Backbone>,
    schedule: CosineSchedule,
    label: Label,
    noise: Noise,
}

/// How a network is told the noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// The level's index.
    Index,
    /// ln(σ)/4 of the level.
    LogSigma,
}

impl Ddpm {
    /// Wraps `backbone`, which knows the levels of a schedule of `steps` steps.
    pub fn new(backbone: Box<dyn Backbone>, steps: usize, label: Label) -> Self {
        Self { backbone, schedule: CosineSchedule::new(steps), label, noise: Noise::White }
    }

    /// The same for data in another noise of unit variance.
    #[must_use]
    pub fn with_noise(self, noise: Noise) -> Self {
        Self { noise, ..self }
    }
}

impl Parameters for Ddpm {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        self.backbone.visit(prefix, visit);
    }
}

impl Denoiser for Ddpm {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let dtype = x.dtype();
        let label = |&s: &f64| {
            let level = self.schedule.nearest_level(s);
            match self.label {
                Label::Index => level as f64,
                Label::LogSigma => self.schedule.sigma(level).ln() / 4.0,
            }
        };
        let levels: Vec<f64> = sigma.iter().map(label).collect();
        // The input is scaled by the true σ, so that between levels only the level's label is rounded.
        let scaled = x.clone() * per_sample(sigma.iter().map(|s| 1.0 / (1.0 + s * s).sqrt()), &x);
        self.backbone.forward(scaled.cast(burn::tensor::DType::F32), &levels).cast(dtype)
    }

    fn noise(&self) -> Noise {
        self.noise.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference table of the cosine schedule, T = 100: t, β, ᾱ, clipped posterior variance, σ.
    const TABLE: [(usize, f64, f64, f64, f64); 8] = [
        (0, 6.312_816e-4, 9.993_687e-1, 4.034_886e-4, 2.5133e-2),
        (1, 1.116_937e-3, 9.982_525e-1, 4.034_886e-4, 4.1840e-2),
        (10, 5.530_370e-3, 9.667_167e-1, 4.637_085e-3, 1.8555e-1),
        (25, 1.344_914e-2, 8.356_206e-1, 1.251_711e-2, 4.4353e-1),
        (50, 3.154_634e-2, 4.782_646e-1, 3.060_437e-2, 1.0445),
        (75, 7.470_115e-2, 1.334_948e-1, 7.377_204e-2, 2.5477),
        (98, 7.499_393e-1, 2.428_572e-4, 7.493_929e-1, 64.161),
        (99, 9.990_000e-1, 2.428_572e-7, 9.987_576e-1, 2029.2),
    ];

    #[test]
    fn the_cosine_schedule_matches_the_reference_table() {
        let schedule = CosineSchedule::new(100);
        let close = |found: f64, expected: f64, digits: f64| assert!((found / expected - 1.0).abs() < digits);
        for (t, beta, alpha_bar, variance, sigma) in TABLE {
            close(schedule.beta[t], beta, 1e-6);
            close(schedule.alpha_bar[t], alpha_bar, 1e-6);
            close(schedule.posterior_variance(t), variance, 1e-6);
            close(schedule.sigma(t), sigma, 5e-5);
        }
    }

    #[test]
    fn every_level_is_its_own_nearest() {
        let schedule = CosineSchedule::new(100);
        for t in 0..100 {
            assert_eq!(schedule.nearest_level(schedule.sigma(t)), t);
        }
        assert_eq!(schedule.nearest_level(1e-9), 0);
        assert_eq!(schedule.nearest_level(1e9), 99);
    }
}
