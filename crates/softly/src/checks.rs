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

/// Longest name of a field or parameter.
const LONGEST_NAME: usize = 64;

/// Refuses names that a file cannot have: a name is letters, digits, `_` and `-`, so that a file named after it stays in its
/// folder.
pub(crate) fn usable_name(name: &str) -> std::result::Result<(), String> {
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    if (1..=LONGEST_NAME).contains(&name.chars().count()) && name.chars().all(plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(LONGEST_NAME).collect();
    let shown = shown.escape_debug();
    Err(format!(
        "`{shown}` cannot be a field's name: letters, digits, _ and - make one, at most {LONGEST_NAME} of them"
    ))
}

/// The same with the `place` of the name.
pub(crate) fn name(place: &str, name: &str) -> Result<()> {
    usable_name(name).map_err(|problem| Error::input(place, problem))
}

/// Refuses 0.
pub(crate) fn at_least_one(key: &str, value: u64) -> Result<()> {
    if value >= 1 {
        return Ok(());
    }
    Err(Error::input(key, format!("expected at least 1, found {value}")))
}
