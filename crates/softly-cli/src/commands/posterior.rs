//! `softly sample --observe`: draw samples given measurements.

use std::path::{Path, PathBuf};

use serde_json::json;
use softly::error::Result;
use softly::files::{make_folder, write_text};
use softly::statistics::OverSamples;
use softly::{
    Draw, Knowledge, Noise, Observations, Posterior, PosteriorJudge, Reading, Trained, device, npy, read_observations,
};
use softly_studies::{PosteriorView, posterior_page};

use crate::arguments::{Observing, Sampling};
use crate::commands::eval::data_of;
use crate::configuration::run_info;
use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::Bar;
use crate::sampling::{check_amount, indices_of, load_observing};

/// Samples of each case unless the command line says otherwise.
const COUNT: u32 = 64;

/// Draws samples of every case into the folder `out`: arrays of all samples, of their means and standard deviations, and a page.
pub fn run(sampling: &Sampling, observing: &Observing, seeds: Option<&str>, out: &Path, json: bool) -> Result<()> {
    let device = device::by_name(&sampling.compute.device)?;
    let trained = load_observing(sampling, observing, &device)?;
    let noise = Noise::parse(&observing.noise)?;
    let readings = read_observations(&observing.observe, &trained.blueprint.data.grid)?;
    let cases = readings.iter().map(|case| Observations::new(case, &noise, trained.measured()));
    let cases = cases.collect::<Result<Vec<_>>>()?;
    let indices = indices_of(&trained, sampling.count.unwrap_or(COUNT), seeds)?;
    check_amount("--count", (indices.len() * cases.len()) as u64, &trained)?;
    catch_interrupt();
    let config = &trained.blueprint.config;
    let bar = Bar::new((indices.len() * cases.len() * config.sampler.steps) as u64, "sample-steps");
    let job = job(&device, &bar);
    let needs = config.conditioning.method().needs();
    let knowledge =
        if needs.data() { trained.knowledge(needs, &data_of(&trained, None)?, &job)? } else { Knowledge::default() };
    job.reporter.begin((indices.len() * cases.len() * config.sampler.steps) as u64, 0);
    let draw = Draw { seed: sampling.seed, indices: &indices, batch: sampling.batch as usize, observed: None };
    let posterior = trained.posterior(&cases, &knowledge, &draw, &job)?;
    bar.finish();
    let misfit = misfit(&trained, &cases, &posterior.samples);
    make_folder(out)?;
    let mut files = write_arrays(&trained, &posterior, indices.len(), out)?;
    files.push(write_record(&trained, &readings, &cases, &posterior, sampling, out)?);
    let view = PosteriorView {
        trained: &trained,
        observations: &cases[0],
        posterior: &posterior.samples,
        count: indices.len(),
        truth: None,
    };
    let page = out.join("posterior.html");
    posterior_page(&view, &[], &page)?;
    files.push(page);
    if json {
        let misfit = misfit.map(|m| m.summary.mean);
        print_json(&json!({
            "files": files, "cases": cases.len(), "count": indices.len(), "method": config.conditioning.name(), "seed": sampling.seed,
            "steps": config.sampler.steps, "misfit": misfit, "calls": posterior.calls, "gradients": posterior.gradients,
            "seconds": posterior.seconds,
        }));
        return Ok(());
    }
    for path in files {
        print(&path.display().to_string());
    }
    if let Some(misfit) = misfit {
        print(&format!(
            "sensors are missed by {:.2} of their noise (1 is right), {:.0} network calls per sample, {:.1} s",
            misfit.summary.mean, posterior.calls, posterior.seconds
        ));
    }
    Ok(())
}

/// Root mean square misfit of all samples, in units of the noise.
fn misfit(trained: &Trained, cases: &[Observations], samples: &[f64]) -> Option<OverSamples> {
    let data = &trained.blueprint.data;
    let truth = vec![0.0; samples.len() / cases.len().max(1)];
    let judge = PosteriorJudge {
        fields: &[],
        units: &data.units,
        sigma_data: trained.model.sigma_data,
        truth: &truth,
        observations: cases,
        equation: None,
        shape: trained.model.shape,
    };
    judge.judge(samples).map(|metrics| metrics.misfit)
}

/// `<field>.npy` `[cases · samples, H, W]`, `mean-<field>.npy` and `sd-<field>.npy` `[cases, H, W]`.
fn write_arrays(trained: &Trained, posterior: &Posterior, count: usize, out: &Path) -> Result<Vec<PathBuf>> {
    let data = &trained.blueprint.data;
    let (nodes, channels) = (data.grid.len(), data.fields.len());
    let (rows, cols) = (data.grid.rows(), data.grid.cols());
    let mut files = Vec::new();
    for (channel, name) in data.fields.iter().enumerate() {
        let fields: Vec<&[f64]> = posterior.samples.chunks_exact(nodes).skip(channel).step_by(channels).collect();
        let cases = fields.len() / count;
        let mut write = |file: String, shape: [usize; 3], values: Vec<f64>| -> Result<()> {
            let path = out.join(file);
            npy::write_f32(&path, &shape, values.iter().map(|&v| v as f32))?;
            files.push(path);
            Ok(())
        };
        write(format!("{name}.npy"), [fields.len(), rows, cols], fields.concat())?;
        let moments: Vec<(f64, f64)> = fields.chunks_exact(count).flat_map(softly::node_moments).collect();
        write(format!("mean-{name}.npy"), [cases, rows, cols], moments.iter().map(|m| m.0).collect())?;
        write(format!("sd-{name}.npy"), [cases, rows, cols], moments.iter().map(|m| m.1).collect())?;
    }
    Ok(files)
}

/// `run.json`: the command, the method and every measurement.
fn write_record(
    trained: &Trained,
    readings: &[Vec<Reading>],
    cases: &[Observations],
    posterior: &Posterior,
    sampling: &Sampling,
    out: &Path,
) -> Result<PathBuf> {
    let of_case = |(readings, observations): (&Vec<Reading>, &Observations)| {
        let sds = observations.sds();
        let reading = |(reading, sd): (&Reading, f64)| json!({ "source": reading.source, "field": reading.quantity, "value": reading.value, "sd": sd });
        readings.iter().zip(sds).map(reading).collect::<Vec<_>>()
    };
    let mut info = run_info(sampling.seed, &sampling.compute.device);
    info.status = "finished".into();
    info.seconds = posterior.seconds;
    info.dataset_hash.clone_from(&trained.blueprint.data.hash);
    let record = json!({
        "run": info, "model": trained.path, "conditioning": trained.blueprint.config.conditioning,
        "sampler": trained.blueprint.config.sampler, "observations": readings.iter().zip(cases).map(of_case).collect::<Vec<_>>(),
    });
    let path = out.join("run.json");
    write_text(&path, &(serde_json::to_string_pretty(&record).expect("numbers are valid JSON") + "\n"))?;
    Ok(path)
}
