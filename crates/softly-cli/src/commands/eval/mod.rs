//! `softly eval`: measure a trained model.

mod fields;
mod held_out;
mod points;
mod sweep;

use softly::device;
use softly::error::Result;

use crate::arguments::{Eval, SweepName};
use crate::sampling::load;

/// Measures what the command line asks for.
pub fn run(eval: &Eval, json: bool) -> Result<()> {
    let Eval { sampling, sets, scales, data, metrics, sweep, out } = eval;
    let (sets, data) = (*sets as usize, data.as_deref());
    if let Some(SweepName::Compliance) = sweep {
        return sweep::run(sampling, sets, data, out.as_deref(), json);
    }
    if metrics.iter().any(|metric| held_out::measures(*metric)) {
        return held_out::run(sampling, data, metrics, json);
    }
    let device = device::by_name(&sampling.compute.device)?;
    let trained = load(sampling, &device)?;
    if trained.blueprint.data.grid.is_point() {
        points::run(&trained, sampling, sets, scales, &device, json)
    } else {
        fields::run(&trained, sampling, &device, data, metrics, json)
    }
}
