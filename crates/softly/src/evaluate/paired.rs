//! Comparing two methods sample by sample: the ratio of their means and how sure it is.
//!
//! Two methods that start from the same noise are compared pair by pair: what makes a sample hard is common to both.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::random::{Purpose, Stream};
use crate::statistics::{Summary, quantile};

/// Bootstrap draws behind an interval.
pub const DRAWS: u64 = 2000;

/// The values of two methods, sample by sample, of one training seed; `None` where there is no value.
pub type Pairs<'a> = (&'a [Option<f64>], &'a [Option<f64>]);

/// The first method's mean over the second's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedRatio {
    /// Ratio of the means over all seeds, every seed counting the same.
    pub ratio: f64,
    /// Its 95 % bootstrap interval: seeds are drawn with replacement, then pairs within each.
    pub interval: [f64; 2],
    /// The ratio of every seed.
    pub per_seed: Vec<f64>,
    /// 95 % Student interval of the geometric mean of the seeds' ratios: wide when seeds are few, as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub student: Option<[f64; 2]>,
    /// Pairs over all seeds; samples without a value in either method are not among them.
    pub pairs: usize,
}

impl PairedRatio {
    /// Compares over `seeds`; `seed` picks the bootstrap draws. `None` if a seed has no pairs or the ratio is no
    /// positive finite number.
    pub fn new(seeds: &[Pairs<'_>], seed: u64) -> Option<Self> {
        let complete = |&(first, second): &Pairs<'_>| -> Vec<[f64; 2]> {
            first.iter().zip(second).filter_map(|(a, b)| Some([(*a)?, (*b)?])).collect()
        };
        let seeds: Vec<Vec<[f64; 2]>> = seeds.iter().map(complete).collect();
        let per_seed: Vec<f64> = seeds.iter().map(|pairs| ratio(&[means(pairs.iter())])).collect();
        let total = ratio(&seeds.iter().map(|pairs| means(pairs.iter())).collect::<Vec<_>>());
        if !per_seed.iter().chain([&total]).all(|r| r.is_finite() && *r > 0.0) {
            return None;
        }
        let draw = |index| {
            let mut stream = Stream::new(seed, Purpose::Metric, index);
            let drawn: Vec<[f64; 2]> = (0..seeds.len())
                .map(|_| {
                    let pairs = &seeds[stream.below(seeds.len())];
                    means((0..pairs.len()).map(|_| &pairs[stream.below(pairs.len())]))
                })
                .collect();
            ratio(&drawn)
        };
        let mut draws: Vec<f64> = (0..DRAWS).into_par_iter().map(draw).collect();
        draws.sort_unstable_by(f64::total_cmp);
        Some(Self {
            ratio: total,
            interval: [quantile(&draws, 0.025), quantile(&draws, 0.975)],
            student: student(&per_seed),
            pairs: seeds.iter().map(Vec::len).sum(),
            per_seed,
        })
    }

    /// What the interval says of the first method's mean: `lower`, `higher` or `not clearly different`.
    pub fn relation(&self) -> &'static str {
        match self.interval {
            [_, high] if high < 1.0 => "lower",
            [low, _] if low > 1.0 => "higher",
            _ => "not clearly different",
        }
    }

    /// A sentence such as "scd's residual is lower than vanilla's: ratio 0.71, 95 % interval 0.68 to 0.74 (1000 pairs)".
    pub fn sentence(&self, quantity: &str, first: &str, second: &str) -> String {
        let [low, high] = self.interval;
        let relation = match self.relation() {
            "not clearly different" => "does not differ clearly from".to_string(),
            clear => format!("is {clear} than"),
        };
        let numbers = format!("ratio {:.3}, 95 % interval {low:.3} to {high:.3}", self.ratio);
        let basis = match self.per_seed.len() {
            1 => format!("{} pairs of one training seed", self.pairs),
            seeds => {
                let lower = self.per_seed.iter().filter(|r| **r < 1.0).count();
                format!("{} pairs, lower in {lower} of {seeds} training seeds", self.pairs)
            }
        };
        format!("{first}'s {quantity} {relation} {second}'s: {numbers} ({basis}).")
    }
}

/// The first method's mean less the second's, over the same data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// Mean difference.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
    /// Pairs.
    pub pairs: usize,
}

impl PairedDifference {
    /// Compares `first` and `second` `[n]`, pair by pair; `None` for fewer than two pairs.
    pub fn new(first: &[f64], second: &[f64]) -> Option<Self> {
        let differences: Vec<f64> = first.iter().zip(second).map(|(a, b)| a - b).collect();
        let summary = Summary::of(&differences);
        let error = 0.5 * summary.two_sd / (summary.n as f64).sqrt();
        (summary.n > 1 && summary.mean.is_finite()).then_some(Self { mean: summary.mean, error, pairs: summary.n })
    }

    /// What two standard errors say of the first method's mean: `lower`, `higher` or `not clearly different`.
    pub fn relation(&self) -> &'static str {
        match self.mean {
            mean if mean + 2.0 * self.error < 0.0 => "lower",
            mean if mean - 2.0 * self.error > 0.0 => "higher",
            _ => "not clearly different",
        }
    }
}

/// Means of the first and the second values.
fn means<'a>(pairs: impl ExactSizeIterator<Item = &'a [f64; 2]>) -> [f64; 2] {
    let n = pairs.len() as f64;
    pairs.fold([0.0; 2], |[a, b], pair| [a + pair[0] / n, b + pair[1] / n])
}

fn ratio(means: &[[f64; 2]]) -> f64 {
    means.iter().map(|m| m[0]).sum::<f64>() / means.iter().map(|m| m[1]).sum::<f64>()
}

fn student(ratios: &[f64]) -> Option<[f64; 2]> {
    let n = ratios.len() as f64;
    let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf(0.975);
    let logs: Vec<f64> = ratios.iter().map(|r| r.ln()).collect();
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half = t * (variance / n).sqrt();
    Some([(mean - half).exp(), (mean + half).exp()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(values: impl IntoIterator<Item = f64>) -> Vec<Option<f64>> {
        values.into_iter().map(Some).collect()
    }

    #[test]
    fn pairs_in_proportion_leave_no_doubt() {
        let second = some((1..=50).map(f64::from));
        let first = some((1..=50).map(|k| 0.7 * f64::from(k)));
        let found = PairedRatio::new(&[(&first, &second)], 1).unwrap();
        for value in [found.ratio, found.interval[0], found.interval[1]] {
            assert!((value - 0.7).abs() < 1e-12, "{found:?}");
        }
        assert_eq!((found.pairs, found.student), (50, None));
        let said = found.sentence("residual", "scd", "vanilla");
        let expected = "scd's residual is lower than vanilla's: ratio 0.700, 95 % interval 0.700 to 0.700 (50 pairs of one \
                        training seed).";
        assert_eq!(said, expected);
    }

    #[test]
    fn missing_values_take_their_pair_away() {
        let first = [Some(1.0), None, Some(3.0), Some(1000.0)];
        let second = [Some(2.0), Some(500.0), Some(2.0), None];
        let found = PairedRatio::new(&[(&first, &second)], 1).unwrap();
        assert_eq!((found.ratio, found.pairs), (1.0, 2));
        assert!(found.sentence("error", "a", "b").contains("does not differ clearly from"));
        assert_eq!(PairedRatio::new(&[(&first[1..2], &second[1..2])], 1), None);
        assert_eq!(PairedRatio::new(&[(&[Some(1.0)], &[Some(0.0)])], 1), None);
        assert_eq!(PairedRatio::new(&[], 1), None);
    }

    #[test]
    fn differences_are_taken_pair_by_pair() {
        // Differences 1, 2, 3 whatever is common: mean 2, standard deviation 1.
        let found = PairedDifference::new(&[101.0, -8.0, 3.0], &[100.0, -10.0, 0.0]).unwrap();
        assert_eq!((found.mean, found.pairs, found.relation()), (2.0, 3, "higher"));
        assert!((found.error - 1.0 / 3.0_f64.sqrt()).abs() < 1e-15);
        assert_eq!(PairedDifference::new(&[1.0, 0.0], &[0.0, 1.0]).unwrap().relation(), "not clearly different");
        assert_eq!(PairedDifference::new(&[1.0], &[0.0]), None);
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        // Ratios of means of 1 + 0.3 z and 2 + 0.3 z', with a part of the noise in common: the truth is 1/2.
        let covered = (0..200)
            .filter(|&trial| {
                let mut stream = Stream::new(7, Purpose::Metric, trial);
                let (first, second): (Vec<_>, Vec<_>) = (0..60)
                    .map(|_| {
                        let common = 0.2 * stream.normal();
                        let own = [1.0 + 0.2 * stream.normal(), 2.0 + 0.2 * stream.normal()];
                        (Some(own[0] + common), Some(own[1] + 2.0 * common))
                    })
                    .unzip();
                let [low, high] = PairedRatio::new(&[(&first, &second)], trial).unwrap().interval;
                low <= 0.5 && 0.5 <= high
            })
            .count();
        // Three standard deviations around 95 % of 200.
        assert!((180..=199).contains(&covered), "{covered}");
    }

    #[test]
    fn seeds_that_disagree_widen_the_interval() {
        let second = some([1.0; 20]);
        let seeds = [0.5, 0.8, 1.1].map(|ratio| some([ratio; 20]));
        let pairs: Vec<Pairs> = seeds.iter().map(|first| (&first[..], &second[..])).collect();
        let found = PairedRatio::new(&pairs, 3).unwrap();
        assert!((found.ratio - 0.8).abs() < 1e-12);
        // The chance that all three draws are one seed is 1/27 > 2.5 %.
        assert_eq!(found.interval.map(|r| (10.0 * r).round()), [5.0, 11.0]);
        let [low, high] = found.student.unwrap();
        // Logs −0.693, −0.223, 0.095: mean −0.2737, standard error 0.2290, t = 4.303.
        assert!((low.ln() + 0.2737 + 4.303 * 0.2290).abs() < 2e-3, "{low}");
        assert!((high.ln() + 0.2737 - 4.303 * 0.2290).abs() < 2e-3, "{high}");
        let said = found.sentence("residual", "a", "b");
        assert!(said.contains("60 pairs, lower in 2 of 3 training seeds"), "{said}");
        assert_eq!(PairedRatio::new(&pairs, 3).unwrap(), found);
    }
}
