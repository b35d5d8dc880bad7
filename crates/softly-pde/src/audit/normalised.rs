//! Fields in units of a network instead of physical ones: u = a + b u′ with u′ of mean 0 and standard deviation 1.

use crate::algebra::Value;
use crate::audit::claim::Sample;
use crate::audit::search::simplex;
use crate::audit::words::number;

/// Steps of the search for units, per unknown.
const STEPS: usize = 120;

/// Whether a field of `samples` has mean 0 and standard deviation 1 (or ½), or values between 0 or −1 and 1.
pub(super) fn looks_normalised(samples: &[Sample], field: usize, points: usize) -> bool {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    let [mut least, mut most] = [f64::INFINITY, f64::NEG_INFINITY];
    for sample in samples {
        for &value in sample[field].broadcast(points).iter() {
            count += 1.0;
            sum += value;
            squares += value * value;
            (least, most) = (least.min(value), most.max(value));
        }
    }
    let mean: f64 = sum / count;
    let std = (squares / count - mean * mean).max(0.0).sqrt();
    // Few samples of a normalised dataset have moments of their own.
    let standard = [1.0, 0.5].iter().any(|unit| (std / unit - 1.0).abs() < 0.1 && mean.abs() < 0.15 * unit);
    let near = |value: f64, target: f64| (value - target).abs() < 0.005;
    standard || ((near(least, 0.0) || near(least, -1.0)) && near(most, 1.0))
}

/// Physical units of some fields.
pub(super) struct Affine {
    /// Field, offset a and scale b of each.
    units: Vec<(usize, f64, f64)>,
}

/// The units of `fields` that make `size` of the samples smallest.
pub(super) fn affine(samples: &[Sample], fields: &[usize], points: usize, size: impl Fn(&[Sample]) -> f64) -> Affine {
    let of = |unknowns: &[f64]| Affine {
        units: fields
            .iter()
            .zip(unknowns.chunks_exact(2))
            .map(|(&field, u)| (field, u[0] * u[1].exp(), u[1].exp()))
            .collect(),
    };
    let unknowns = 2 * fields.len();
    let starts =
        [-2.0, 0.0, 2.0].map(|log| (0..unknowns).map(|k| if k % 2 == 1 { log } else { 0.0 }).collect::<Vec<_>>());
    let search = |start: Vec<f64>| simplex(&start, 1.0, STEPS * unknowns, |u| size(&of(u).apply(samples, points)));
    let found = starts.map(search).into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
    of(&found.map_or(vec![0.0; unknowns], |(unknowns, _)| unknowns))
}

impl Affine {
    /// The samples in these units.
    pub fn apply(&self, samples: &[Sample], points: usize) -> Vec<Sample> {
        let mut samples = samples.to_vec();
        for sample in &mut samples {
            for &(field, a, b) in &self.units {
                let values = sample[field].broadcast(points);
                sample[field] = Value::from(values.iter().map(|v| a + b * v).collect::<Vec<_>>());
            }
        }
        samples
    }

    /// The units in words.
    pub fn words(&self, names: &[String]) -> String {
        let one = |&(field, a, b): &(usize, f64, f64)| {
            let name = &names[field];
            format!("{} + {} {name} in place of {name}", number(a), number(b))
        };
        self.units.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}
