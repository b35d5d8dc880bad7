//! The toy study's data: the unit circle, a circle with a dent, and a circle with a side chopped off.

use std::f64::consts::{FRAC_PI_2, PI, TAU};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::random::Stream;

/// A closed curve that points are drawn from, uniformly in the angle of the underlying circle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "shape", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Shape {
    /// The unit circle.
    Circle,
    /// A circle with a smooth dent at the top (the paper's appendix on circles).
    Dent,
    /// Points with |angle| < alpha are moved to x = cos(alpha).
    Chop {
        /// Half the angle that is chopped off, in radians.
        alpha: f64,
    },
}

impl Shape {
    /// The point of the curve at `angle` in [−π, π).
    pub fn point(self, angle: f64) -> [f64; 2] {
        match self {
            Self::Circle => [angle.cos(), angle.sin()],
            Self::Dent => {
                let radius = dent_radius(angle);
                [radius * angle.cos(), radius * angle.sin()]
            }
            Self::Chop { alpha } => {
                let x = if angle.abs() < alpha { alpha.cos() } else { angle.cos() };
                [x, angle.sin()]
            }
        }
    }

    /// One random point, with Gaussian noise of standard deviation `noise` added to both coordinates.
    pub fn sample(self, noise: f64, stream: &mut Stream) -> [f64; 2] {
        let point = self.point(TAU * stream.uniform() - PI);
        if noise == 0.0 { point } else { point.map(|v| v + noise * stream.normal()) }
    }

    /// The curve as a closed polyline of `n` points.
    pub fn polyline(self, n: usize) -> Vec<[f64; 2]> {
        (0..n).map(|i| self.point(TAU * i as f64 / n as f64 - PI)).collect()
    }
}

/// r(θ) = 1 − 0.25 β(u)(1 + 0.6(1 − 2u²)), u = wrap(θ − π/2)/1.2, β(u) = (1 − u²)⁵ for |u| < 1.
fn dent_radius(angle: f64) -> f64 {
    let wrapped = (angle - FRAC_PI_2 + PI).rem_euclid(TAU) - PI;
    let u2 = (wrapped / 1.2).powi(2);
    if u2 >= 1.0 {
        return 1.0;
    }
    1.0 - 0.25 * (1.0 - u2).powi(5) * (1.0 + 0.6 * (1.0 - 2.0 * u2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    #[test]
    fn curves_have_the_stated_shape() {
        let radius = |p: [f64; 2]| p[0].hypot(p[1]);
        assert!((radius(Shape::Dent.point(FRAC_PI_2)) - 0.6).abs() < 1e-12);
        assert!((radius(Shape::Dent.point(-FRAC_PI_2)) - 1.0).abs() < 1e-12);
        let chop = Shape::Chop { alpha: FRAC_PI_2 };
        assert!(chop.point(0.3)[0].abs() < 1e-12);
        assert_eq!(chop.point(2.0), [2.0f64.cos(), 2.0f64.sin()]);
    }

    #[test]
    fn standard_deviations_match_the_measured_ones() {
        for (shape, expected) in
            [(Shape::Circle, 0.707), (Shape::Dent, 0.675), (Shape::Chop { alpha: FRAC_PI_2 }, 0.592)]
        {
            let n = 40_000u64;
            let points: Vec<[f64; 2]> =
                (0..n).map(|i| shape.sample(0.0, &mut Stream::new(0, Purpose::Metric, i))).collect();
            let values: Vec<f64> = points.into_iter().flatten().collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
            assert!((std - expected).abs() < 0.005, "{shape:?}: {std}");
        }
    }
}
