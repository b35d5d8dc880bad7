//! `softly distance`: distances between samples.

use std::path::Path;

use serde_json::json;
use softly::error::{Error, Result};
use softly::{npy, w1};

use crate::output::print_json;

/// Prints the exact Wasserstein-1 distance between two point clouds `[N, 2]`.
pub fn w1_of(a: &Path, b: &Path) -> Result<()> {
    let (first, second) = (npy::read_points(a)?, npy::read_points(b)?);
    let w1 = w1(&first, &second).map_err(|e| Error::input(a.display(), format!("{e}")))?;
    let n = if first.len() == second.len() { json!(first.len()) } else { json!([first.len(), second.len()]) };
    print_json(&json!({ "w1": w1, "n": n }));
    Ok(())
}
