//! Loading a model with the command line's settings, and drawing samples from it.

use burn::tensor::Device;
use softly::error::{Error, Result};
use softly::{Compliance, Dataset, Draw, Trained, conditioned};
use softly_pde::grid::Grid;

use crate::arguments::{Observing, Sampling};
use crate::interrupt::job;
use crate::progress::Bar;
use crate::ranks;

/// The settings of a command line, with those that have flags of their own; `compliance` is a dial's value.
pub fn settings_of(sampling: &Sampling, compliance: Option<Compliance>) -> Vec<String> {
    let flags = [
        sampling.solver.as_ref().map(|solver| format!("sampler.solver='{solver}'")),
        sampling.spacing.as_ref().map(|spacing| format!("sampler.spacing='{spacing}'")),
        sampling.eta.map(|eta| format!("sampler.eta={eta:?}")),
        sampling.steps.map(|steps| format!("sampler.steps={steps}")),
        sampling.sigma_min.map(|sigma| format!("sampler.sigma_min={sigma:?}")),
        sampling.guidance.map(guidance),
        compliance.map(|c| format!("denoiser.scd.compliance={c}")),
    ];
    sampling.settings.iter().cloned().chain(flags.into_iter().flatten()).collect()
}

/// The model to sample from given measurements, with the command line's settings.
pub fn load_observing(sampling: &Sampling, observing: &Observing, device: &Device) -> Result<Trained> {
    let settings = conditioned(observing.conditioning.as_deref(), settings_of(sampling, sampling.compliance));
    Trained::load_on(&sampling.model, &settings, sampling.grid, device)
}

/// The setting of DPS guidance.
pub fn guidance(scale: f64) -> String {
    format!("sampler.guidance={{ kind = \"dps\", scale = {scale:?} }}")
}

/// The model to sample from on `device`, with the command line's settings.
pub fn load(sampling: &Sampling, device: &Device) -> Result<Trained> {
    Trained::load_on(&sampling.model, &settings_of(sampling, sampling.compliance), sampling.grid, device)
}

/// Refuses ranks that would draw from another model than rank 0, or other samples.
pub fn check_ranks(trained: &Trained, sampling: &Sampling) -> Result<()> {
    let ranks = ranks::here();
    trained.check_ranks(ranks)?;
    let Sampling { seed, batch, .. } = sampling;
    ranks.same("samples", &format!("{} of seed {seed} in batches of {batch}", sampling.count()))
}

/// Numbers that one command may hold in memory: 8 GB of them.
const MOST_NUMBERS: u64 = 1 << 30;

/// Refuses more samples than fit into memory.
pub fn check_amount(key: &str, samples: u64, trained: &Trained) -> Result<()> {
    let most = MOST_NUMBERS / trained.model.shape.iter().product::<usize>().max(1) as u64;
    if samples <= most {
        return Ok(());
    }
    Err(Error::input(key, format!("expected at most {most} samples of this model at a time, found {samples}"))
        .hint("draw them in parts: `softly sample --seeds A-B`"))
}

/// The sample indices that a command line asks for: `0..count`, or the range `A-B`.
pub fn indices_of(trained: &Trained, count: u32, range: Option<&str>) -> Result<Vec<u64>> {
    let Some(range) = range else {
        check_amount("--count", u64::from(count), trained)?;
        return Ok((0..u64::from(count)).collect());
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let ends = range.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?)));
    match ends {
        Some((first, last)) if first <= last => {
            check_amount("--seeds", (last - first).saturating_add(1), trained)?;
            Ok((first..=last).collect())
        }
        _ => Err(Error::input("--seeds", format!("expected A-B with A ≤ B, found `{range}`"))
            .hint("for example --seeds 0-99")),
    }
}

/// Draws samples with a progress bar, `[N, C, H, W]` row-major in physical units.
pub fn draw(trained: &Trained, sampling: &Sampling, indices: &[u64], device: &Device) -> Result<Vec<f64>> {
    let steps = trained.blueprint.config.sampler.steps;
    let bar = Bar::new((indices.len() * steps) as u64, "sample-steps");
    let observed = observed(trained)?;
    let draw = Draw { seed: sampling.seed, indices, batch: sampling.batch as usize, observed: observed.as_ref() };
    let values = trained.samples(&draw, &job(device, &bar))?;
    bar.finish();
    Ok(values)
}

/// The same drawn on the trained grid first, and again on the grid of `trained` from the noise level `sigma` on.
pub fn draw_refined(
    trained: &Trained,
    sigma: f64,
    sampling: &Sampling,
    indices: &[u64],
    device: &Device,
) -> Result<Vec<f64>> {
    if trained.observes() {
        let problem = "guidance by observed nodes knows one grid, and refined samples live on two";
        return Err(Error::input("--restart", problem).hint("leave --restart or the guidance out"));
    }
    let coarse = Trained::load_with(&sampling.model, &settings_of(sampling, sampling.compliance), device)?;
    let steps = trained.blueprint.config.sampler.steps;
    let bar = Bar::new((2 * indices.len() * steps) as u64, "sample-steps");
    let draw = Draw { seed: sampling.seed, indices, batch: sampling.batch as usize, observed: None };
    let values = trained.refine(&coarse, sigma, &draw, &job(device, &bar))?;
    bar.finish();
    Ok(values)
}

/// The data of the run whose held-out samples guidance observes, if it does.
fn observed(trained: &Trained) -> Result<Option<Dataset>> {
    if !trained.observes() {
        return Ok(None);
    }
    let data = Dataset::from_config(&trained.blueprint.config.data)?;
    let (found, expected) = (&data.grid, &trained.blueprint.data.grid);
    if found != expected {
        let size = |grid: &Grid| format!("{}×{}", grid.rows(), grid.cols());
        let problem = format!("the run's data are on {} nodes, the samples on {}", size(found), size(expected));
        return Err(Error::input("sampler.guidance.observe", problem)
            .hint("name data on the samples' grid: --set data.path=DIR"));
    }
    Ok(Some(data))
}
