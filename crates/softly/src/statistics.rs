//! Summaries of numbers: means with spread, quantiles, running moments, and evenly spaced noise levels.

use serde::{Deserialize, Serialize};

/// Mean and two standard deviations over independent estimates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Mean; not a number when there are no estimates.
    pub mean: f64,
    /// Twice the sample standard deviation (divisor n − 1); 0 for a single estimate.
    pub two_sd: f64,
    /// Number of estimates.
    pub n: usize,
}

impl Summary {
    /// Summary of `estimates` `[n]`.
    pub fn of(estimates: &[f64]) -> Self {
        let n = estimates.len();
        let mean = estimates.iter().sum::<f64>() / n as f64;
        let squares: f64 = estimates.iter().map(|x| (x - mean).powi(2)).sum();
        Self { mean, two_sd: 2.0 * (squares / n.saturating_sub(1).max(1) as f64).sqrt(), n }
    }
}

/// A quantity over samples: [`Summary`] and median.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OverSamples {
    /// Mean, two standard deviations, number of samples.
    #[serde(flatten)]
    pub summary: Summary,
    /// Median.
    pub median: f64,
}

impl OverSamples {
    /// Summary of `values` `[n]`; `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        (!values.is_empty()).then(|| Self { summary: Summary::of(&values), median: quantile(&values, 0.5) })
    }
}

/// The value at position q (n − 1) of ascending values `[n]`, interpolated linearly between neighbours.
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    let position = q * (ascending.len() - 1) as f64;
    let low = ascending[position.floor() as usize];
    let high = ascending[position.ceil() as usize];
    low + (high - low) * position.fract()
}

/// A quantity by noise level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AtLevel {
    /// Noise level.
    pub sigma: f64,
    /// Its mean.
    pub mean: f64,
    /// 10th percentile.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
}

impl AtLevel {
    /// Mean and percentiles of `values` at `sigma`.
    pub fn of(sigma: f64, mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let n = values.len().max(1);
        let at = |percent: usize| values.get(n * percent / 100).copied().unwrap_or(f64::NAN);
        Self { sigma, mean: values.iter().sum::<f64>() / n as f64, low: at(10), high: at(90) }
    }
}

/// Statistics of a set of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statistics {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub std: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// Whether numbers of this mean and standard deviation differ by no more than single precision tells apart.
pub fn is_constant(mean: f64, std: f64) -> bool {
    std <= f64::from(f32::EPSILON) * mean.abs() || std < f64::from(f32::MIN_POSITIVE)
}

/// Running count, mean, sum of squared deviations and extremes.
#[derive(Debug, Clone, Copy)]
pub struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { count: 0.0, mean: 0.0, squares: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Moments {
    /// The moments of `values`.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let mut moments = Self::default();
        for v in values.clone() {
            moments.count += 1.0;
            moments.mean += v;
            moments.min = moments.min.min(v);
            moments.max = moments.max.max(v);
        }
        moments.mean /= moments.count.max(1.0);
        moments.squares = values.map(|v| (v - moments.mean).powi(2)).sum();
        moments
    }

    /// The moments of both sets together.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        let count = self.count + other.count;
        let share = if count > 0.0 { other.count / count } else { 0.0 };
        let gap = other.mean - self.mean;
        Self {
            count,
            mean: self.mean + gap * share,
            squares: self.squares + other.squares + gap * gap * share * self.count,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// Mean, standard deviation and extremes.
    pub fn statistics(self) -> Statistics {
        Statistics { mean: self.mean, std: (self.squares / self.count.max(1.0)).sqrt(), min: self.min, max: self.max }
    }
}

/// Running sums at every node, over samples.
pub(crate) struct NodeMoments {
    count: f64,
    sums: Vec<f64>,
    squares: Vec<f64>,
}

impl NodeMoments {
    /// No samples yet, of `len` numbers each.
    pub fn new(len: usize) -> Self {
        Self { count: 0.0, sums: vec![0.0; len], squares: vec![0.0; len] }
    }

    /// Adds samples, row after row.
    pub fn add(&mut self, samples: &[f64]) {
        for sample in samples.chunks_exact(self.sums.len()) {
            self.count += 1.0;
            for ((sum, square), value) in self.sums.iter_mut().zip(&mut self.squares).zip(sample) {
                *sum += value;
                *square += value * value;
            }
        }
    }

    /// Mean at every node.
    pub fn means(&self) -> impl Iterator<Item = f64> {
        self.sums.iter().map(|sum| sum / self.count)
    }

    /// Mean square at every node.
    pub fn mean_squares(&self) -> impl Iterator<Item = f64> {
        self.squares.iter().map(|square| square / self.count)
    }

    /// Variance at every node.
    pub fn variances(&self) -> impl Iterator<Item = f64> {
        self.mean_squares().zip(self.means()).map(|(square, mean)| (square - mean * mean).max(0.0))
    }
}

/// `count` levels σ from `first` to `last`, evenly spaced in ln σ: first (last/first)^(i/(count−1)).
pub fn log_spaced(first: f64, last: f64, count: usize) -> Vec<f64> {
    let span = count.saturating_sub(1).max(1) as f64;
    let level = |i: usize| match i {
        0 => first,
        i if i + 1 == count => last,
        i => first * (last / first).powf(i as f64 / span),
    };
    (0..count).map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_known_numbers() {
        assert_eq!(Summary::of(&[1.0, 2.0, 3.0]), Summary { mean: 2.0, two_sd: 2.0, n: 3 });
        assert_eq!(Summary::of(&[4.0]), Summary { mean: 4.0, two_sd: 0.0, n: 1 });
        assert!(Summary::of(&[]).mean.is_nan());
        assert_eq!(quantile(&[0.0, 1.0, 2.0, 4.0], 0.5), 1.5);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn merged_moments_are_the_moments_of_all() {
        let values: Vec<f64> = (0..57).map(|i| (f64::from(i) * 1.3).sin() + 2.0).collect();
        let (first, second) = values.split_at(20);
        let moments = |v: &[f64]| Moments::of(v.iter().copied());
        let merged = moments(first).merged(moments(second)).statistics();
        let whole = moments(&values).statistics();
        assert!((merged.mean - whole.mean).abs() < 1e-13 && (merged.std - whole.std).abs() < 1e-13);
        assert_eq!((merged.min, merged.max), (whole.min, whole.max));
        let mut nodes = NodeMoments::new(1);
        nodes.add(&values);
        assert!((nodes.variances().next().unwrap().sqrt() - whole.std).abs() < 1e-12);
    }

    #[test]
    fn levels_are_evenly_spaced_and_end_where_they_should() {
        let levels = log_spaced(0.002, 80.0, 17);
        assert_eq!((levels.len(), levels[0], levels[16]), (17, 0.002, 80.0));
        for triple in levels.windows(3) {
            assert!((triple[0] * triple[2] / (triple[1] * triple[1]) - 1.0).abs() < 1e-12);
        }
        assert_eq!(log_spaced(0.5, 3.0, 1), [0.5]);
    }
}
