//! Samples whose residual stands out.

use serde::Serialize;

/// Deviations from the median, in units of the usual deviation of ln size, that make an outlier.
const DEVIATIONS: f64 = 5.0;
/// An outlier is at least this many times the median.
const FACTOR: f64 = 2.0;

/// A sample that obeys the equation much less than others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outlier {
    /// Which sample, from 0.
    pub sample: usize,
    /// Size of its residual.
    pub size: f64,
    /// The same as a multiple of the median.
    pub times_median: f64,
}

/// The samples whose `sizes` stand out, largest first.
///
/// Sizes are compared by their logarithms: |ln s − median| against 1.4826 times the median of that deviation.
pub fn outliers(sizes: &[f64]) -> Vec<Outlier> {
    let logs: Vec<f64> = sizes.iter().map(|size| size.max(f64::MIN_POSITIVE).ln()).collect();
    let Some(middle) = median(logs.clone()) else { return Vec::new() };
    let Some(spread) = median(logs.iter().map(|log| (log - middle).abs()).collect()) else { return Vec::new() };
    let limit = (DEVIATIONS * 1.4826 * spread).max(FACTOR.ln());
    let mut found: Vec<Outlier> = (0..sizes.len())
        .filter(|&sample| logs[sample] - middle > limit)
        .map(|sample| Outlier { sample, size: sizes[sample], times_median: sizes[sample] / middle.exp() })
        .collect();
    found.sort_by(|a, b| b.size.total_cmp(&a.size));
    found
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| f64::midpoint(values[(n - 1) / 2], values[n / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_out_is_named() {
        let mut sizes: Vec<f64> = (0..50).map(|i| 1.0 + 0.3 * (f64::from(i) * 1.7).sin()).collect();
        assert_eq!(outliers(&sizes), []);
        sizes[7] = 40.0;
        sizes[31] = 8.0;
        let found = outliers(&sizes);
        assert_eq!(found.iter().map(|outlier| outlier.sample).collect::<Vec<_>>(), [7, 31]);
        assert!((found[0].times_median - 40.0).abs() < 6.0);
        // Equal sizes have no spread; rounding does not make outliers.
        assert_eq!(outliers(&[1.0, 1.0, 1.0, 1.000_001]), []);
        assert_eq!(outliers(&[]), []);
    }
}
