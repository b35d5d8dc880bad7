//! Metrics of single samples, one file each: numbers that tables show with their spread over samples.
//!
//! A new metric is one file here with an implementation of [`SampleMetric`], and one line in [`METRICS`]. Evaluations, tables and
//! pages show it under its name.

pub mod boundary;
pub mod three_channel_residual;

use crate::data::generator::Reference;
use crate::evaluate::metric::boundary::Boundary;
use crate::evaluate::metric::three_channel_residual::ThreeChannelResidual;

/// A sample as metrics see it.
pub struct Sample<'a> {
    /// The fields in physical units, `[H, W]` each.
    pub fields: &'a [Vec<f64>],
    /// The solver that made the data, if there is one.
    pub reference: Option<&'a dyn Reference>,
}

/// A number per sample.
pub trait SampleMetric: Sync {
    /// Its name in JSON files.
    fn name(&self) -> &'static str;

    /// Its title in tables.
    fn title(&self) -> &'static str;

    /// The number; `None` where there is none.
    fn measure(&self, sample: &Sample<'_>) -> Option<f64>;
}

/// All of them, in the order of tables.
pub const METRICS: &[&dyn SampleMetric] = &[&ThreeChannelResidual, &Boundary];
