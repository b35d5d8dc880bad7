//! `softly denoise`: one call of a trained denoiser on arrays.

use std::path::{Path, PathBuf};

use serde_json::json;
use softly::error::{Error, Result};
use softly::npy::Array;
use softly::tensors::{field_batch, to_vec_f32};
use softly::{Denoiser, Trained, device, npy};

use crate::output::{print, print_json};

/// Samples that go through the network together: large enough to fill it, small enough for any memory.
const BATCH: usize = 64;

/// Denoises `input` at the noise levels `sigma` and writes the estimate to `out`.
pub fn run(model: &Path, input: &Path, sigma: &Path, out: &PathBuf, device: &str, json: bool) -> Result<()> {
    let device = device::by_name(device)?;
    let trained = Trained::load(model, &device)?;
    let shape = trained.model.shape;
    let x = read_input(input, shape)?;
    let levels = read_levels(sigma, x.shape[0])?;
    let mut values = Vec::with_capacity(x.values.len());
    for (x, levels) in x.values.chunks(BATCH * shape.iter().product::<usize>()).zip(levels.chunks(BATCH)) {
        let denoised = trained.model.denoise(field_batch(x.to_vec(), shape, &device), levels);
        values.extend(to_vec_f32(denoised));
    }
    npy::write_f32(out, &x.shape, values.into_iter())?;
    if json {
        print_json(&json!({ "out": out, "n": levels.len(), "shape": x.shape }));
    } else {
        print(&out.display().to_string());
    }
    Ok(())
}

/// Fields `[N, C, H, W]` of the model's shape.
fn read_input(path: &Path, [c, h, w]: [usize; 3]) -> Result<Array> {
    let array = npy::read(path)?;
    if array.shape.len() != 4 || array.shape[0] == 0 || array.shape[1..] != [c, h, w] {
        let problem = format!("expected [N, {c}, {h}, {w}] with N ≥ 1 for this model, found {:?}", array.shape);
        return Err(Error::input(format!("{} (input)", path.display()), problem));
    }
    finite(path, "input", &array)?;
    Ok(array)
}

/// Noise levels `[N]`.
fn read_levels(path: &Path, count: usize) -> Result<Vec<f64>> {
    let array = npy::read(path)?;
    let location = || format!("{} (sigma)", path.display());
    if array.shape != [count] {
        let problem = format!("expected [{count}], one noise level per sample, found {:?}", array.shape);
        return Err(Error::input(location(), problem));
    }
    finite(path, "sigma", &array)?;
    match array.values.iter().position(|&s| s <= 0.0) {
        Some(bad) => {
            let problem = format!("expected positive numbers, found {} at position {bad}", array.values[bad]);
            Err(Error::input(location(), problem))
        }
        None => Ok(array.values),
    }
}

fn finite(path: &Path, name: &str, array: &Array) -> Result<()> {
    match array.values.iter().position(|v| !v.is_finite()) {
        Some(bad) => {
            let problem = format!("expected finite numbers, found {} at position {bad}", array.values[bad]);
            Err(Error::input(format!("{} ({name})", path.display()), problem))
        }
        None => Ok(()),
    }
}
