//! Metrics of planar point clouds that should lie on a known closed curve, and how far chance alone takes them.
//!
//! An exact W1 between finite sets is far from zero even for perfect points: every table shows what true points score.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::evaluate::wasserstein::{DistanceError, sliced_w1, w1, w1_1d, w1_circle};
use crate::statistics::{Summary, quantile};

/// Points `[n, 2]` in the plane.
pub type Cloud = Vec<[f64; 2]>;

/// Directions of the sliced W1 in [`PointMetrics`].
pub const SLICES: usize = 64;

/// Vertices whose segments share a bounding box.
const BOX: usize = 32;

/// A closed polyline `[n, 2]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    vertices: Vec<[f64; 2]>,
    /// Low and high corner around the segments that start at each run of [`BOX`] vertices.
    boxes: Vec<[[f64; 2]; 2]>,
}

impl Curve {
    /// Polyline through `at(k / vertices)`, `k = 0..vertices` (at least one), closed back to `at(0)`: a curve of
    /// period 1 is met to second order in the spacing.
    pub fn new(vertices: usize, at: impl Fn(f64) -> [f64; 2]) -> Self {
        let count = vertices.max(1);
        let vertices: Vec<_> = (0..count).map(|k| at(k as f64 / count as f64)).collect();
        let boxes = (0..count).step_by(BOX).map(|start| {
            let ends = (start..=(start + BOX).min(count)).map(|k| vertices[k % count]);
            ends.fold([[f64::INFINITY; 2], [f64::NEG_INFINITY; 2]], |[low, high], p| {
                [[low[0].min(p[0]), low[1].min(p[1])], [high[0].max(p[0]), high[1].max(p[1])]]
            })
        });
        Self { boxes: boxes.collect(), vertices }
    }

    /// `min over segments of |p - segment|`.
    pub fn distance(&self, p: [f64; 2]) -> f64 {
        let to_box = |[low, high]: &[[f64; 2]; 2]| {
            let gap = |axis: usize| (low[axis] - p[axis]).max(p[axis] - high[axis]).max(0.0);
            gap(0).hypot(gap(1))
        };
        let bounds: Vec<f64> = self.boxes.iter().map(to_box).collect();
        let nearest = (0..bounds.len()).min_by(|&s, &t| bounds[s].total_cmp(&bounds[t])).unwrap_or(0);
        // The nearest box first: its distance rules most others out.
        let best = self.distance_within(nearest, p);
        (0..bounds.len())
            .fold(best, |best, k| if bounds[k] < best { best.min(self.distance_within(k, p)) } else { best })
    }

    fn distance_within(&self, index: usize, p: [f64; 2]) -> f64 {
        let count = self.vertices.len();
        let starts = index * BOX..((index + 1) * BOX).min(count);
        starts
            .map(|k| segment_distance(p, self.vertices[k], self.vertices[(k + 1) % count]))
            .fold(f64::INFINITY, f64::min)
    }
}

fn segment_distance(p: [f64; 2], from: [f64; 2], to: [f64; 2]) -> f64 {
    let (x, y) = (to[0] - from[0], to[1] - from[1]);
    let square = x * x + y * y;
    let along = ((p[0] - from[0]) * x + (p[1] - from[1]) * y) / square;
    let along = if square > 0.0 { along.clamp(0.0, 1.0) } else { 0.0 };
    (p[0] - from[0] - along * x).hypot(p[1] - from[1] - along * y)
}

/// Metrics of one set of points (`T = f64`) or their summaries over sets (`T = Summary`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PointMetrics<T> {
    /// Mean distance to the curve.
    pub curve_mean: T,
    /// Median distance to the curve.
    pub curve_median: T,
    /// 99th percentile of the distance to the curve.
    pub curve_p99: T,
    /// W1 of the distances from the origin.
    pub radial_w1: T,
    /// W1 of the angles seen from the origin, in radians along the circle.
    pub angular_w1: T,
    /// Exact W1 in the plane.
    pub w1: T,
    /// Mean W1 over 64 projections.
    pub sliced_w1: T,
}

impl PointMetrics<f64> {
    /// Metrics of `points: [n, 2]` against the true curve and true points `truth: [m, 2]` on it.
    pub fn of(points: &[[f64; 2]], truth: &[[f64; 2]], curve: &Curve) -> Result<Self, DistanceError> {
        let w1 = w1(points, truth)?;
        let mut off: Vec<f64> = points.iter().map(|&p| curve.distance(p)).collect();
        off.sort_unstable_by(f64::total_cmp);
        let radii = |points: &[[f64; 2]]| points.iter().map(|p| p[0].hypot(p[1])).collect::<Vec<_>>();
        let angles = |points: &[[f64; 2]]| points.iter().map(|p| p[1].atan2(p[0])).collect::<Vec<_>>();
        Ok(Self {
            curve_mean: off.iter().sum::<f64>() / off.len() as f64,
            curve_median: quantile(&off, 0.5),
            curve_p99: quantile(&off, 0.99),
            radial_w1: w1_1d(&radii(points), &radii(truth))?,
            angular_w1: w1_circle(&angles(points), &angles(truth))?,
            w1,
            sliced_w1: sliced_w1(points, truth, SLICES)?,
        })
    }
}

impl PointMetrics<Summary> {
    /// Every metric summarised over pairs `(points, truth)` of sets, computed in parallel.
    pub fn over(pairs: &[(Cloud, Cloud)], curve: &Curve) -> Result<Self, DistanceError> {
        let each = pairs.par_iter().map(|(points, truth)| PointMetrics::of(points, truth, curve));
        let each: Vec<PointMetrics<f64>> = each.collect::<Result<_, _>>()?;
        Ok(PointMetrics::combined(&each, Summary::of))
    }
}

impl<T: Copy> PointMetrics<T> {
    /// `f` of the values that each metric has in `all`.
    pub fn combined<U>(all: &[Self], f: impl Fn(&[T]) -> U) -> PointMetrics<U> {
        let over = |pick: fn(&Self) -> T| f(&all.iter().map(pick).collect::<Vec<_>>());
        PointMetrics {
            curve_mean: over(|m| m.curve_mean),
            curve_median: over(|m| m.curve_median),
            curve_p99: over(|m| m.curve_p99),
            radial_w1: over(|m| m.radial_w1),
            angular_w1: over(|m| m.angular_w1),
            w1: over(|m| m.w1),
            sliced_w1: over(|m| m.sliced_w1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{PI, TAU};

    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn on_circle(turn: f64) -> [f64; 2] {
        [(TAU * turn).cos(), (TAU * turn).sin()]
    }

    fn angles(n: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
        (0..n).map(|_| rng.random_range(-PI..PI)).collect()
    }

    #[test]
    fn distance_to_a_square() {
        let corners = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]];
        let square = Curve::new(4, |t| corners[(4.0 * t) as usize]);
        for (p, expected) in
            [([0.5, 0.25], 0.25), ([0.0, 0.7], 0.0), ([-3.0, -4.0], 5.0), ([0.5, 3.0], 2.0), ([-0.5, 0.5], 0.5)]
        {
            assert_eq!(square.distance(p), expected, "{p:?}");
        }
        let point = Curve::new(1, |_| [1.0, 1.0]);
        assert_eq!(point.distance([4.0, 5.0]), 5.0);
    }

    #[test]
    fn a_larger_circle_is_off_by_its_radius_alone() {
        let curve = Curve::new(4096, on_circle);
        let truth: Cloud = (0..200).map(|k| on_circle(f64::from(k) / 200.0)).collect();
        let grown = truth.iter().map(|p| p.map(|x| 1.25 * x)).collect();
        let metrics = PointMetrics::over(&[(grown, truth.clone()), (truth.clone(), truth)], &curve).unwrap();
        // One set is off by 1/4 and the other exact: the mean is 1/8, twice the deviation is sqrt(2)/4.
        for found in [metrics.curve_mean, metrics.curve_median, metrics.curve_p99, metrics.radial_w1, metrics.w1] {
            assert!((found.mean - 0.125).abs() < 1e-6, "{metrics:?}");
            assert!((found.two_sd - 0.5_f64.sqrt() / 2.0).abs() < 1e-6, "{metrics:?}");
            assert_eq!(found.n, 2);
        }
        assert!(metrics.angular_w1.mean < 1e-12);
        // A radial shift by 1/4 moves the projections of a uniform circle by 1/4 of the mean of |cos|.
        assert!((metrics.sliced_w1.mean - 0.125 * 2.0 / PI).abs() < 1e-4);
        assert_eq!(PointMetrics::of(&[], &[[0.0, 0.0]], &curve), Err(DistanceError::Empty { set: "first" }));
    }

    #[test]
    fn angular_floor_of_perfect_points() {
        let even: Vec<f64> = (0..20_000).map(|k| TAU * f64::from(k) / 20_000.0 - PI).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let (one, two): (Vec<f64>, Vec<f64>) = (0..300)
            .map(|_| {
                let (a, b) = (angles(1000, &mut rng), angles(1000, &mut rng));
                (w1_circle(&a, &even).unwrap(), w1_circle(&a, &b).unwrap())
            })
            .unzip();
        let (one, two) = (Summary::of(&one), Summary::of(&two));
        // The expected values are themselves means of 30 draws; the bands allow for their error (0.002 and 0.004) too.
        assert!((one.mean - 0.047).abs() < 0.004, "{one:?}");
        assert!((two.mean - 0.065).abs() < 0.006, "{two:?}");
        assert!((two.two_sd - 0.044).abs() < 0.012, "{two:?}");
    }

    proptest! {
        #[test]
        fn boxes_lose_no_segment(vertices in 1_usize..200, x in -2.0..2.0, y in -2.0..2.0) {
            let curve = Curve::new(vertices, |t| {
                let [x, y] = on_circle(t);
                [x * (1.0 + 0.4 * (3.0 * TAU * t).sin()), 0.7 * y]
            });
            let brute = (0..vertices)
                .map(|k| segment_distance([x, y], curve.vertices[k], curve.vertices[(k + 1) % vertices]))
                .fold(f64::INFINITY, f64::min);
            prop_assert_eq!(curve.distance([x, y]), brute);
        }
    }
}
