//! `softly eval`: measure a trained model.

mod fields;
mod held_out;
mod points;
mod posterior;
mod sweep;

use std::path::Path;

use softly::device;
use softly::error::{Error, Result};

use crate::arguments::{Eval, MetricName, SweepName};
use crate::sampling::{check_ranks, load};

pub use fields::data_of;

/// Whether several ranks can measure together: they share the samples and the likelihood.
pub fn can_share(eval: &Eval) -> bool {
    let held_out = eval.metrics.iter().any(|metric| held_out::measures(*metric));
    eval.observing.observe.is_empty() && eval.sweep.is_none() && !held_out
}

/// Measures what the command line asks for.
pub fn run(eval: &Eval, json: bool) -> Result<()> {
    let Eval { sampling, sets, scales, data, metrics, observing, cases, sweep, out } = eval;
    let (sets, data) = (*sets as usize, data.as_deref());
    if sampling.grid.is_some() && (sweep.is_some() || metrics.iter().any(|metric| held_out::measures(*metric))) {
        let problem = "sweeps, `explained` and `parameters` are measured on the grid that the model was trained on";
        return Err(Error::input("--grid", problem).hint("leave --grid out"));
    }
    if !observing.observe.is_empty() {
        return posterior::run(sampling, observing, *cases as usize, data, out.as_deref(), json);
    }
    if out.is_some() && sweep.is_none() {
        return Err(Error::input("--out", "goes with --sweep or --observe").hint("leave it out: numbers are printed"));
    }
    if let Some(SweepName::Compliance) = sweep {
        return sweep::run(sampling, sets, data, out.as_deref(), json);
    }
    if metrics.iter().any(|metric| held_out::measures(*metric)) {
        return held_out::run(sampling, data, metrics, json);
    }
    let device = device::by_name(&sampling.compute.device)?;
    let trained = load(sampling, &device)?;
    check_ranks(&trained, sampling)?;
    let points = trained.blueprint.data.grid.is_point();
    refuse_idle(points, data, metrics, scales)?;
    if points {
        points::run(&trained, sampling, sets, scales, &device, json)
    } else {
        fields::run(&trained, sampling, &device, data, metrics, json)
    }
}

/// Refuses options that a model of points, or else one of fields, has no use for.
fn refuse_idle(points: bool, data: Option<&Path>, metrics: &[MetricName], scales: &[f64]) -> Result<()> {
    if !points {
        return match scales {
            [] => Ok(()),
            _ => {
                Err(Error::input("--scales", "this is a model of fields: guidance scales are compared for points only")
                    .hint("measure one scale at a time: --guidance SCALE"))
            }
        };
    }
    if data.is_some() {
        let problem = "this is a model of points: its samples are compared with the exact curve, not with a dataset";
        return Err(Error::input("--data", problem).hint("leave --data out"));
    }
    if !metrics.is_empty() {
        let problem = "this is a model of points: these metrics are for models of fields";
        return Err(Error::input("--metrics", problem).hint("leave --metrics out: points have metrics of their own"));
    }
    Ok(())
}
