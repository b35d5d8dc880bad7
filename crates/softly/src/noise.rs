//! The noise ε of x = x0 + σ·ε: white, or a Gaussian random field.
//!
//! White noise is rougher the finer the grid: it has no limit, and a network that removes it knows one resolution. A random field
//! is the same function on every grid that resolves it. Its pointwise variance is 1 as that of white noise, so EDM's weights, noise
//! levels and preconditioning hold unchanged; with the covariance C of ε the flow dx/dσ = (x − D)/σ is −σ C ∇log p.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;
use softly_pde::matern_field::MaternField;

use crate::checks::positive;
use crate::error::{Error, Result};
use crate::random::Stream;

/// The noise that data are mixed with.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NoiseConfig {
    /// A Gaussian random field of unit variance instead of white noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<FieldNoise>,
}

/// A Gaussian random field of unit variance with Matérn's covariance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FieldNoise {
    /// Correlation length ℓ, as a fraction of the sides of the domain.
    pub length: f64,
    /// Matérn's smoothness ν: ½ is the covariance exp(−r/ℓ), larger is smoother.
    #[serde(default = "smoothness")]
    pub smoothness: f64,
}

fn smoothness() -> f64 {
    0.5
}

impl NoiseConfig {
    /// Whether the noise is white.
    pub fn is_white(&self) -> bool {
        self.field.is_none()
    }

    /// Refuses settings that cannot work.
    pub fn check(&self) -> Result<()> {
        let Some(field) = self.field else { return Ok(()) };
        positive("noise.field.length", field.length)?;
        positive("noise.field.smoothness", field.smoothness)
    }
}

/// The noise ε on a grid.
#[derive(Clone, Default)]
pub enum Noise {
    /// Independent standard normals.
    #[default]
    White,
    /// One and the same random field for every channel, drawn independently.
    Field(Arc<MaternField>),
}

impl Noise {
    /// The noise that `config` asks for on `grid`.
    pub fn new(config: &NoiseConfig, grid: &Grid) -> Result<Self> {
        let Some(FieldNoise { length, smoothness }) = config.field else { return Ok(Self::White) };
        let field = MaternField::new(grid, length, smoothness).map_err(|problem| {
            Error::input("noise.field", problem).hint("leave the table out for white noise, which any grid can have")
        })?;
        Ok(Self::Field(Arc::new(field)))
    }

    /// ε of one sample, `[C, H, W]` of `size` numbers; it takes as many standard normals from `stream`.
    pub fn draw(&self, stream: &mut Stream, size: usize) -> Vec<f64> {
        let normals = stream.normals(size);
        match self {
            Self::White => normals,
            Self::Field(field) => normals.chunks_exact(field.len()).flat_map(|z| field.colour(z)).collect(),
        }
    }

    /// The normals z behind values `[C, H, W]`: x itself, or C^(−½) x.
    pub fn whiten(&self, x: &[f64]) -> Vec<f64> {
        match self {
            Self::White => x.to_vec(),
            Self::Field(field) => x.chunks_exact(field.len()).flat_map(|channel| field.whiten(channel)).collect(),
        }
    }

    /// ½ ln det C per number: what a density loses by being spread out as ε is.
    pub fn log_spread(&self) -> f64 {
        match self {
            Self::White => 0.0,
            Self::Field(field) => field.log_determinant() / field.len() as f64,
        }
    }

    /// ln N(x; 0, σ² C) of values `[C, H, W]`.
    pub fn log_density(&self, x: &[f64], sigma: f64) -> f64 {
        let radius2 = self.whiten(x).iter().map(|z| (z / sigma).powi(2)).sum::<f64>();
        let size = x.len() as f64;
        -0.5 * (radius2 + size * (std::f64::consts::TAU * sigma * sigma).ln()) - size * self.log_spread()
    }
}
