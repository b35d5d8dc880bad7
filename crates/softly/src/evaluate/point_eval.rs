//! Measuring samples of a model of planar points, next to what true points score.

use crate::data::generator::curve::Shape;
use crate::evaluate::points::{Cloud, Curve, PointMetrics};
use crate::evaluate::wasserstein::DistanceError;
use crate::random::{Purpose, Stream};
use crate::statistics::Summary;

/// Metrics of `sets` estimates of `points` samples each against the points of `curve`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PointEval {
    /// The true curve.
    pub curve: Shape,
    /// Standard deviation of the true points around it.
    pub noise: f64,
    /// Estimates.
    pub sets: usize,
    /// Samples per estimate.
    pub points: usize,
}

/// What true points are for. Points of different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// What samples are measured against.
    Reference = 0,
    /// What the floor measures …
    Floor = 1,
    /// … and what it is measured against.
    FloorReference = 2,
    /// Where a model is probed.
    Probe = 3,
}

impl PointEval {
    /// Indices of the samples to draw, set after set.
    pub fn indices(&self) -> Vec<u64> {
        (0..(self.sets * self.points) as u64).collect()
    }

    /// The true points of set `set`.
    pub fn true_points(&self, purpose: Truth, set: usize) -> Cloud {
        let mut stream = Stream::new(1_000 + purpose as u64, Purpose::Metric, set as u64);
        (0..self.points).map(|_| self.curve.sample(self.noise, &mut stream)).collect()
    }

    /// Metrics of samples `[sets · points, 2]`, set after set, over the sets.
    pub fn measure(&self, samples: &[[f64; 2]]) -> Result<PointMetrics<Summary>, DistanceError> {
        self.against(samples, Truth::Reference)
    }

    /// True points `[sets · points, 2]` and their metrics: what a perfect model scores.
    pub fn floor(&self) -> Result<(Cloud, PointMetrics<Summary>), DistanceError> {
        let truth = (0..self.sets).flat_map(|set| self.true_points(Truth::Floor, set)).collect::<Cloud>();
        let metrics = self.against(&truth, Truth::FloorReference)?;
        Ok((truth, metrics))
    }

    fn against(&self, samples: &[[f64; 2]], reference: Truth) -> Result<PointMetrics<Summary>, DistanceError> {
        let sets = samples.chunks_exact(self.points.max(1)).enumerate();
        let pairs: Vec<(Cloud, Cloud)> =
            sets.map(|(set, points)| (points.to_vec(), self.true_points(reference, set))).collect();
        PointMetrics::over(&pairs, &polyline(self.curve))
    }
}

/// Samples `[N, 2]` from their numbers, row-major.
pub fn cloud(values: &[f64]) -> Cloud {
    values.as_chunks().0.to_vec()
}

/// The curve as a polyline fine enough for distances of 1e-6.
fn polyline(shape: Shape) -> Curve {
    Curve::new(4096, |t| shape.point(std::f64::consts::TAU * t - std::f64::consts::PI))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_itself_is_perfect_and_the_floor_is_not() {
        let eval = PointEval { curve: Shape::Circle, noise: 0.0, sets: 3, points: 40 };
        assert_eq!(eval.indices().len(), 120);
        let reference: Cloud = (0..3).flat_map(|set| eval.true_points(Truth::Reference, set)).collect();
        let metrics = eval.measure(&reference).unwrap();
        assert!(metrics.w1.mean.abs() < 1e-12 && metrics.curve_mean.mean < 1e-6 && metrics.w1.n == 3, "{metrics:?}");
        let (truth, floor) = eval.floor().unwrap();
        assert_eq!(truth.len(), 120);
        assert!(floor.w1.mean > 0.05 && floor.curve_mean.mean < 1e-6, "{floor:?}");
        assert!(truth.iter().all(|p| !reference.contains(p)));
    }
}
