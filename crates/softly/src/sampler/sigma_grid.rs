//! Grids of noise levels.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How noise levels are spaced between the largest and the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Spacing {
    /// Karras' levels, which are even in σ^{1/ρ}.
    Karras,
    /// Levels that are even in ln σ, and so in the logarithm of the signal-to-noise ratio.
    LogUniform,
    /// Levels by `density`, which is measured on the model if it is not given.
    Fitted,
}

/// Noise levels from σmax to σmin, then 0.
#[derive(Debug, Clone, PartialEq)]
pub struct SigmaGrid {
    /// Number of steps N.
    pub steps: usize,
    /// Smallest non-zero level.
    pub sigma_min: f64,
    /// Largest level, where sampling starts.
    pub sigma_max: f64,
    /// How the levels are spaced.
    pub spacing: Spacing,
    /// How much Karras' levels crowd at the low end.
    pub rho: f64,
    /// Fitted levels per unit of ln σ, up to a factor, at places even in ln σ from σmax to σmin; a straight line in between.
    pub density: Vec<f64>,
}

impl Default for SigmaGrid {
    fn default() -> Self {
        let (spacing, density) = (Spacing::Karras, Vec::new());
        Self { steps: 100, sigma_min: 0.002, sigma_max: 80.0, spacing, rho: 7.0, density }
    }
}

impl SigmaGrid {
    /// The N levels from `sigma_max` to `sigma_min`, followed by 0.
    pub fn levels(&self) -> Vec<f64> {
        let span = (self.steps.max(2) - 1) as f64;
        let level = |i: usize| match (self.spacing, &self.density[..]) {
            (Spacing::Karras, _) => self.karras(i as f64 / span),
            (Spacing::Fitted, density @ [_, _, ..]) => self.log_uniform(place_of_share(density, i as f64 / span)),
            _ => self.log_uniform(i as f64 / span),
        };
        (0..self.steps).map(level).chain([0.0]).collect()
    }

    /// (σmax^{1/ρ} + u (σmin^{1/ρ} − σmax^{1/ρ}))^ρ.
    fn karras(&self, u: f64) -> f64 {
        let (first, last) = (self.sigma_max.powf(1.0 / self.rho), self.sigma_min.powf(1.0 / self.rho));
        (first + u * (last - first)).powf(self.rho)
    }

    /// σmax (σmin/σmax)ᵘ.
    fn log_uniform(&self, u: f64) -> f64 {
        self.sigma_max * (self.sigma_min / self.sigma_max).powf(u)
    }
}

/// The place u in [0, 1] below which lies the given share of a density that is known at even places.
fn place_of_share(density: &[f64], share: f64) -> f64 {
    let cells = (density.len() - 1) as f64;
    let areas: Vec<f64> = density.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect();
    let mut left = share * areas.iter().sum::<f64>();
    for (k, (area, ends)) in areas.iter().zip(density.windows(2)).enumerate() {
        if left <= *area {
            // a v + (b − a) v²/2 = left, without the difference of near numbers.
            let (a, b) = (ends[0], ends[1]);
            let v = 2.0 * left / (a + (a * a + 2.0 * (b - a) * left).max(0.0).sqrt());
            return (k as f64 + v.min(1.0)) / cells;
        }
        left -= area;
    }
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigma_grids_match_the_reference_digits() {
        let levels = |steps| SigmaGrid { steps, ..SigmaGrid::default() }.levels();
        let close = |found: &[f64], expected: &[f64], digits: f64| {
            for (f, e) in found.iter().zip(expected) {
                assert!((f - e).abs() <= digits, "{f} against {e}");
            }
        };
        let coarse = levels(18);
        assert_eq!(coarse.len(), 19);
        close(&coarse[..3], &[80.0, 57.585_98, 40.785_57], 5.1e-6);
        close(&coarse[15..], &[0.022_935, 0.007_528, 0.002, 0.0], 5.1e-7);
        let fine = levels(100);
        close(&fine[..3], &[80.0, 75.691_19, 71.582_85], 5.1e-6);
        close(&fine[97..], &[0.003_245, 0.002_558, 0.002, 0.0], 5.1e-7);
    }

    #[test]
    fn levels_follow_their_density() {
        let grid = |spacing, density: &[f64]| {
            SigmaGrid { steps: 41, spacing, density: density.to_vec(), ..SigmaGrid::default() }.levels()
        };
        let even = grid(Spacing::LogUniform, &[]);
        for pair in even[..41].windows(2) {
            assert!(((pair[1] / pair[0]).ln() + (80.0f64 / 0.002).ln() / 40.0).abs() < 1e-12, "{pair:?}");
        }
        let constant = grid(Spacing::Fitted, &[3.0; 5]);
        assert!(constant.iter().zip(&even).all(|(a, b)| (a - b).abs() <= 1e-12 * b), "{constant:?}");
        // Karras' levels have a density ∝ σ^{1/ρ} in ln σ.
        let karras = grid(Spacing::Karras, &[]);
        let density: Vec<f64> = (0..=400).map(|k| (0.002f64 / 80.0).powf(f64::from(k) / 2800.0)).collect();
        let fitted = grid(Spacing::Fitted, &density);
        assert!(fitted.iter().zip(&karras).all(|(a, b)| (a - b).abs() <= 1e-4 * b), "{fitted:?} against {karras:?}");
        assert!(fitted.windows(2).all(|pair| pair[1] < pair[0]));
    }
}
