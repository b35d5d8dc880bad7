//! Checks of numbers in configurations, with errors that name the key.

use std::ops::RangeBounds;

use crate::error::{Error, Result};

/// Refuses anything but a positive finite number.
pub(crate) fn positive(key: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::input(key, format!("expected a positive number, found {value}")))
}

/// Refuses numbers that are not finite.
pub(crate) fn finite(key: &str, value: f64) -> Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    Err(Error::input(key, format!("expected a finite number, found {value}")))
}

/// Refuses numbers outside `range`, which `words` describe.
pub(crate) fn within(key: &str, value: f64, range: impl RangeBounds<f64>, words: &str) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::input(key, format!("expected {words}, found {value}")))
}

/// Refuses 0.
pub(crate) fn at_least_one(key: &str, value: u64) -> Result<()> {
    if value >= 1 {
        return Ok(());
    }
    Err(Error::input(key, format!("expected at least 1, found {value}")))
}
