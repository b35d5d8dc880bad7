//! `softly sample`: draw samples from a trained model.

use std::path::Path;

use serde_json::json;
use softly::error::Result;
use softly::files::make_folder;
use softly::{device, npy};

use crate::arguments::Sampling;
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::Bar;
use crate::ranks;
use crate::sampling::{check_ranks, draw, draw_refined, indices_of, load};

/// Draws samples into the folder `out`; on the trained grid first if they are refined from the noise level `restart`
/// on.
pub fn run(sampling: &Sampling, seeds: Option<&str>, restart: Option<f64>, out: &Path, json: bool) -> Result<()> {
    let device = device::by_name(&sampling.compute.device)?;
    let mut trained = load(sampling, &device)?;
    let indices = indices_of(&trained, sampling.count(), seeds)?;
    check_ranks(&trained, sampling)?;
    ranks::here().same("samples", &format!("{seeds:?}"))?;
    catch_interrupt();
    trained.check_memory(indices.len(), sampling.batch as usize)?;
    if restart.is_some() {
        trained.check_restart()?;
    }
    let bar = Bar::new(0, "sample-steps");
    let fitted = trained.fitted_sampler(&job(&device, &bar))?;
    bar.finish();
    trained.blueprint.config.sampler = fitted;
    let values = match restart {
        Some(sigma) => draw_refined(&trained, sigma, sampling, &indices, &device)?,
        None => draw(&trained, sampling, &indices, &device)?,
    };
    if !ranks::here().leads() {
        return Ok(());
    }
    make_folder(out)?;
    let data = &trained.blueprint.data;
    let (nodes, channels) = (data.grid.len(), data.fields.len());
    let mut files = Vec::new();
    for (channel, name) in data.fields.iter().enumerate() {
        let of_channel = values.chunks_exact(nodes).skip(channel).step_by(channels).flatten().map(|&v| v as f32);
        let path = out.join(format!("{name}.npy"));
        npy::write_f32(&path, &[indices.len(), data.grid.rows(), data.grid.cols()], of_channel)?;
        files.push(path);
    }
    if !data.scalars.is_empty() {
        // One number per sample and scalar: the mean over the grid.
        let columns: Vec<usize> = (0..channels).filter(|&c| data.scalars.contains(&data.fields[c])).collect();
        let mean = |sample: &[f64], c: usize| sample[c * nodes..(c + 1) * nodes].iter().sum::<f64>() / nodes as f64;
        let means = values
            .chunks_exact(channels * nodes)
            .flat_map(|sample| columns.iter().map(move |&c| mean(sample, c) as f32));
        let path = out.join("scalars.npy");
        npy::write_f32(&path, &[indices.len(), columns.len()], means)?;
        files.push(path);
    }
    if data.grid.is_point() && channels == 2 {
        let path = out.join("points.npy");
        npy::write_f32(&path, &[indices.len(), 2], values.iter().map(|&v| v as f32))?;
        files.push(path);
    }
    if json {
        let sampler = &trained.blueprint.config.sampler;
        print_json(&json!({
            "files": files, "count": indices.len(), "seed": sampling.seed,
            "solver": sampler.solver, "steps": sampler.steps, "calls": sampler.calls(), "levels": sampler.levels(),
            "density": sampler.density,
        }));
    } else {
        for path in files {
            print(&path.display().to_string());
        }
    }
    Ok(())
}
