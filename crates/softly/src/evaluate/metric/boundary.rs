//! How far a sample misses the boundary condition of its equation, see
//! [`Reference::boundary`](crate::data::generator::Reference::boundary).

use crate::evaluate::metric::{Sample, SampleMetric};

/// The mean violation over nodes of the border.
pub struct Boundary;

impl SampleMetric for Boundary {
    fn name(&self) -> &'static str {
        "boundary"
    }

    fn title(&self) -> &'static str {
        "boundary"
    }

    fn measure(&self, sample: &Sample<'_>) -> Option<f64> {
        sample.reference?.boundary(sample.fields)
    }
}
