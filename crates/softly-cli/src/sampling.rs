//! Loading a model with the command line's settings, and drawing samples from it.

use burn::tensor::Device;
use softly::error::{Error, Result};
use softly::{Compliance, Draw, Trained};

use crate::arguments::{Observing, Sampling};
use crate::interrupt::job;
use crate::progress::Bar;

/// The settings of a command line, with those that have flags of their own; `compliance` is a dial's value.
pub fn settings_of(sampling: &Sampling, compliance: Option<Compliance>) -> Vec<String> {
    let flags = [
        sampling.steps.map(|steps| format!("sampler.steps={steps}")),
        sampling.sigma_min.map(|sigma| format!("sampler.sigma_min={sigma:?}")),
        sampling.guidance.map(guidance),
        compliance.map(|c| format!("denoiser.scd.compliance={c}")),
    ];
    sampling.settings.iter().cloned().chain(flags.into_iter().flatten()).collect()
}

/// The model to sample from given measurements, with the command line's settings.
pub fn load_observing(sampling: &Sampling, observing: &Observing, device: &Device) -> Result<Trained> {
    let settings = settings_of(sampling, sampling.compliance);
    // Settings of a method that is not named are those of the default one.
    let unnamed = settings.iter().any(|setting| setting.trim_start().starts_with("conditioning."));
    let name = observing.conditioning.as_deref().or(unnamed.then_some("kalman"));
    let method = name.map(|name| format!("conditioning={{ kind = \"{name}\" }}"));
    let settings: Vec<String> = method.into_iter().chain(settings).collect();
    let trained = Trained::load_with(&sampling.model, &settings, device)?;
    if trained.blueprint.config.sampler.guidance.is_some() {
        let problem = "the run has guidance by its constraint, which does not go with --observe";
        return Err(Error::input("sampler.guidance", problem)
            .hint("set a weight of the equation instead: --set conditioning.equation=…"));
    }
    Ok(trained)
}

/// The setting of DPS guidance.
pub fn guidance(scale: f64) -> String {
    format!("sampler.guidance={{ kind = \"dps\", scale = {scale:?} }}")
}

/// The model to sample from on `device`, with the command line's settings.
pub fn load(sampling: &Sampling, device: &Device) -> Result<Trained> {
    Trained::load_with(&sampling.model, &settings_of(sampling, sampling.compliance), device)
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
    let draw = Draw { seed: sampling.seed, indices, batch: sampling.batch as usize };
    let values = trained.samples(&draw, &job(device, &bar))?;
    bar.finish();
    Ok(values)
}
