//! EDM's grid of noise levels.

use serde::{Deserialize, Serialize};

/// EDM's noise levels: σᵢ = (σmax^{1/ρ} + i/(N−1)·(σmin^{1/ρ} − σmax^{1/ρ}))^ρ, then 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SigmaGrid {
    /// Number of steps N.
    pub steps: usize,
    /// Smallest non-zero level.
    pub sigma_min: f64,
    /// Largest level, where sampling starts.
    pub sigma_max: f64,
    /// How much the steps crowd at the low end.
    pub rho: f64,
}

impl Default for SigmaGrid {
    fn default() -> Self {
        Self { steps: 100, sigma_min: 0.002, sigma_max: 80.0, rho: 7.0 }
    }
}

impl SigmaGrid {
    /// The N levels from `sigma_max` to `sigma_min`, followed by 0.
    pub fn levels(&self) -> Vec<f64> {
        let (first, last) = (self.sigma_max.powf(1.0 / self.rho), self.sigma_min.powf(1.0 / self.rho));
        let span = (self.steps.max(2) - 1) as f64;
        let level = |i: usize| (first + i as f64 / span * (last - first)).powf(self.rho);
        (0..self.steps).map(level).chain([0.0]).collect()
    }
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
}
