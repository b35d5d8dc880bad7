//! The word `auto` in configurations: a value that is found from the data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The word `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Auto {
    /// Find the value from the data.
    Auto,
}

/// A number, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number or \"auto\"")]
pub enum NumberOrAuto {
    /// A given value.
    Number(f64),
    /// A value to be found from the data.
    Auto(Auto),
}

impl NumberOrAuto {
    /// The word.
    pub const AUTO: Self = Self::Auto(Auto::Auto);

    /// The value, if it is given or has been found.
    pub fn number(self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Auto(_) => None,
        }
    }
}
