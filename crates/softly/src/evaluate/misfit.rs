//! How far data are from an equation that they may not obey, and whether they miss it in the same way in every sample.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::constraint::config::{ConstraintConfig, ResidualConfig};
use crate::data::dataset::Dataset;
use crate::error::Result;
use crate::units::Units;

/// The residual of one formula on a set of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Misfit {
    /// The formula.
    pub formula: String,
    /// Mean |R| over its nodes and the samples.
    pub mean_abs: f64,
    /// The share of mean R² that is the square of the mean residual at its node, without what chance adds: near 1 the
    /// residual is the same in every sample (a wrong source or constant), near 0 it changes from sample to sample. None
    /// for a single sample, or without any residual.
    pub systematic: Option<f64>,
}

/// The residual of `samples` `[N, C, H, W]`, in physical units and with the fields and the grid of `data`, under
/// `equation`.
pub fn misfit(equation: &ConstraintConfig, data: &Dataset, samples: &[f32]) -> Result<Vec<Misfit>> {
    let constraint = SoftConstraint::new(equation, &data.fields, &data.grid, &Units::identity(data.fields.len()))?;
    // Compiling has found every one of them.
    let channels: Vec<usize> =
        equation.fields.iter().filter_map(|name| data.fields.iter().position(|f| f == name)).collect();
    let nodes = data.grid.len();
    let residuals = |sample: &[f32]| {
        let field = |&c: &usize| sample[c * nodes..(c + 1) * nodes].iter().map(|&v| f64::from(v)).collect();
        constraint.residual_values(&channels.iter().map(field).collect::<Vec<Vec<f64>>>())
    };
    let each: Vec<Vec<Vec<f64>>> = samples.par_chunks_exact(data.sample_len()).map(residuals).collect();
    let formula = |(k, residual): (usize, ResidualConfig)| {
        let values: Vec<&[f64]> = each.iter().map(|sample| &sample[k][..]).collect();
        Misfit { formula: residual.formula, mean_abs: mean_abs(&values), systematic: systematic(&values) }
    };
    Ok(equation.residuals().into_iter().enumerate().map(formula).collect())
}

fn mean_abs(values: &[&[f64]]) -> f64 {
    let count = values.iter().map(|sample| sample.len()).sum::<usize>();
    values.iter().flat_map(|sample| sample.iter()).map(|r| r.abs()).sum::<f64>() / count as f64
}

/// Σ (m² − s²/n) / Σ mean R² over nodes, m and s² being mean and variance over the n samples `values`: E m² = μ² +
/// s²/n.
fn systematic(values: &[&[f64]]) -> Option<f64> {
    let n = values.len() as f64;
    let nodes = values.first()?.len();
    if values.len() < 2 {
        return None;
    }
    let (mut common, mut total) = (0.0, 0.0);
    for node in 0..nodes {
        let mean = values.iter().map(|sample| sample[node]).sum::<f64>() / n;
        let square = values.iter().map(|sample| sample[node].powi(2)).sum::<f64>() / n;
        let variance = values.iter().map(|sample| (sample[node] - mean).powi(2)).sum::<f64>() / (n - 1.0);
        common += mean * mean - variance / n;
        total += square;
    }
    (total > 0.0).then(|| (common / total).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};

    #[test]
    fn the_same_residual_everywhere_is_systematic_and_noise_is_not() {
        let constant = vec![3.0; 40];
        let same: Vec<&[f64]> = (0..8).map(|_| &constant[..]).collect();
        assert_eq!(systematic(&same), Some(1.0));
        let noise: Vec<Vec<f64>> = (0..50).map(|i| Stream::new(1, Purpose::Metric, i).normals(400)).collect();
        let alone: Vec<&[f64]> = noise.iter().map(Vec::as_slice).collect();
        assert!(systematic(&alone).unwrap() < 0.01);
        // R = 1 + z: half of E R² = 2 is the square of the mean.
        let shifted: Vec<Vec<f64>> = noise.iter().map(|s| s.iter().map(|z| 1.0 + z).collect()).collect();
        let half = systematic(&shifted.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        assert!((half - 0.5).abs() < 0.02, "{half}");
        assert_eq!((systematic(&same[..1]), systematic(&[&[0.0], &[0.0]])), (None, None));
    }
}
