//! PIDM's residual of Darcy flow: equation and outward slopes of the pressure as three channels, see
//! [`Reference::published_residual`](crate::data::generator::Reference::published_residual).

use crate::evaluate::metric::{Sample, SampleMetric};

/// The mean of |·| over all three channels.
pub struct ThreeChannelResidual;

impl SampleMetric for ThreeChannelResidual {
    fn name(&self) -> &'static str {
        "three_channel_residual"
    }

    fn title(&self) -> &'static str {
        "PIDM's |R|"
    }

    fn measure(&self, sample: &Sample<'_>) -> Option<f64> {
        sample.reference?.published_residual(sample.fields)
    }
}
