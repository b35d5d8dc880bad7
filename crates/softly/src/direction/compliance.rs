//! The dial between a base denoiser and its constraint: how much of the learned correction is applied after training.
//!
//! γ becomes γ · c^w(σ) with w = σd²/(σd² + σ²), EDM's c_skip. At low noise, where a sample gets its details and the
//! correction is nearly exact, the factor is c. At high noise it goes to 1: there the estimate is a blur of many samples, its residual
//! says little about any of them, and a correction other than the learned one moves the whole distribution. The power (and
//! not 1 + (c − 1) w) makes c = 0 the base denoiser at every noise level, and turning up and turning down mirror images in ln c.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::denoiser::edm::Precondition;

/// How much of a soft constraint's correction is applied.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number ≥ 0 or \"full\"")]
pub enum Compliance {
    /// c: 0 is the base denoiser, 1 as learned, more is closer to the constraint.
    Number(f64),
    /// As learned, and estimates are projected onto the constraint in the last steps of sampling.
    Word(Full),
}

/// The word `full`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Full {
    /// Samples that meet the constraint.
    Full,
}

impl Compliance {
    /// As learned.
    pub const LEARNED: Self = Self::Number(1.0);
    /// The base denoiser alone.
    pub const NONE: Self = Self::Number(0.0);
    /// Projected.
    pub const FULL: Self = Self::Word(Full::Full);
    /// What a sweep compares, besides [`Compliance::FULL`].
    pub const SWEEP: [Self; 5] = [Self::NONE, Self::Number(0.5), Self::LEARNED, Self::Number(1.5), Self::Number(2.0)];

    /// The factor on γ at one noise level; exactly 1 as learned, exactly 0 for the base.
    pub fn factor(self, at: Precondition) -> f64 {
        match self {
            Self::Number(c) if c > 0.0 => c.powf(at.skip),
            Self::Number(_) => 0.0,
            Self::Word(Full::Full) => 1.0,
        }
    }

    /// Whether the number is one; words always are.
    pub fn is_valid(self) -> bool {
        match self {
            Self::Number(c) => c.is_finite() && c >= 0.0,
            Self::Word(Full::Full) => true,
        }
    }
}

impl Default for Compliance {
    fn default() -> Self {
        Self::LEARNED
    }
}

impl fmt::Display for Compliance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(c) => write!(f, "{c}"),
            Self::Word(Full::Full) => f.write_str("full"),
        }
    }
}

impl FromStr for Compliance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = if text == "full" { Some(Self::FULL) } else { text.parse().ok().map(Self::Number) };
        parsed.filter(|c| c.is_valid()).ok_or_else(|| "expected a number ≥ 0 or `full`".into())
    }
}
