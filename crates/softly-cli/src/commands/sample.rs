//! `softly sample`: draw samples from a trained model.

use std::path::Path;

use serde_json::json;
use softly::error::Result;
use softly::files::make_folder;
use softly::{device, npy};

use crate::arguments::Sampling;
use crate::interrupt::catch_interrupt;
use crate::output::{print, print_json};
use crate::sampling::{draw, indices_of, load};

/// Draws samples into the folder `out`.
pub fn run(sampling: &Sampling, seeds: Option<&str>, out: &Path, json: bool) -> Result<()> {
    let device = device::by_name(&sampling.compute.device)?;
    let trained = load(sampling, &device)?;
    let indices = indices_of(&trained, sampling.count(), seeds)?;
    catch_interrupt();
    let values = draw(&trained, sampling, &indices, &device)?;
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
        print_json(
            &json!({ "files": files, "count": indices.len(), "steps": trained.blueprint.config.sampler.steps, "seed": sampling.seed }),
        );
    } else {
        for path in files {
            print(&path.display().to_string());
        }
    }
    Ok(())
}
