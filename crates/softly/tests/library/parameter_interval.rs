//! How well held-out data know the learned parameters of a constraint.

use softly::job::Job;
use softly::random::{Purpose, Stream};
use softly::units::Units;
use softly::{
    Compliance, HeldOut, Identification, Model, Norm, ParameterConfig, ParameterFit, ParameterInterval, Residuals,
    SoftConstraint, intervals_of, parameter_intervals,
};
use softly_pde::grid::Grid;

use crate::common::{POINT, circle, cpu, field, law, normals, toward};

/// Points around the unit circle, on average at `mean` from the origin.
fn points(count: usize, seed: u64) -> (Vec<f32>, f64) {
    let mut stream = Stream::new(seed, Purpose::Metric, 0);
    let (mut values, mut sum) = (Vec::new(), 0.0);
    for _ in 0..count {
        let (radius, angle) = (1.0 + 0.05 * stream.normal(), std::f64::consts::TAU * stream.uniform());
        values.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
        sum += radius;
    }
    (values, sum / count as f64)
}

fn intervals(formula: &str, parameters: &[(&str, f64)], values: &[f32]) -> Vec<ParameterInterval> {
    let constraint = circle(formula, parameters);
    let model = Model::soft(toward(&constraint, 1.0, Compliance::LEARNED), constraint.clone(), 0.5, POINT);
    let units = Units::identity(2);
    let data = HeldOut { values, shape: POINT, units: &units };
    let found = parameter_intervals(&model, data, &Job::silent(&cpu())).unwrap();
    // Every parameter is back where it was.
    let mut after = Vec::new();
    constraint.visit("", &mut |name, p| after.push((name.to_string(), f64::from(p.values()[0]))));
    assert_eq!(after, found.iter().map(|p| (p.name.clone(), p.value)).collect::<Vec<_>>());
    found
}

#[test]
fn the_interval_of_a_radius_is_that_of_a_mean() {
    let (values, mean) = points(400, 9);
    // The residual is the distance from the circle, so least squares prefer the mean distance from the origin.
    for start in [0.8, mean, 1.2] {
        let found = intervals("r", &[("r", start)], &values).remove(0);
        let (estimate, [low, high]) = (found.estimate.unwrap(), found.interval.unwrap());
        assert!((estimate - mean).abs() < 1e-6, "{estimate} against {mean}");
        assert!(low < mean && mean < high);
        let expected = 2.0 * 1.96 * 0.05 / 20.0;
        assert!(((high - low) / expected - 1.0).abs() < 0.15, "{} against {expected}", high - low);
        let verdict = if start == mean { Identification::Identified } else { Identification::Elsewhere };
        assert_eq!((found.verdict, found.count), (verdict, 400));
    }
}

#[test]
fn intervals_cover_the_truth_as_often_as_they_say() {
    let covers = |seed: &u64| {
        let [low, high] = intervals("r", &[("r", 1.0)], &points(100, *seed).0)[0].interval.unwrap();
        low < 1.0 && 1.0 < high
    };
    let covered = (100..300).filter(covers).count();
    // 95 % of 200 are 190 ± 3.1.
    assert!((178..=199).contains(&covered), "{covered} of 200");
}

#[test]
fn an_equation_that_is_wrong_alike_in_all_samples_widens_the_interval() {
    let (shape, count) = ([2, 9, 8], 60);
    let mut config = law(&["p", "q"], Residuals::One("q - a*(1 + p)".into()), Norm::L2);
    config.parameters = [("a".to_string(), ParameterConfig::Learn { learn: 1.0 })].into();
    // q = 2 (1 + p) + pattern + noise: the pattern is the same in every sample of a case.
    let interval = |case: u64, pattern: f64| {
        let offsets = normals(case, 0, 72);
        let sample = |i: u64| {
            let (p, noise) = (normals(case, 2 * i + 1, 72), normals(case, 2 * i + 2, 72));
            let q = |n: usize| 2.0 * (1.0 + p[n]) + pattern * offsets[n] + 0.05 * noise[n];
            p.iter().copied().chain((0..72).map(q)).collect::<Vec<f64>>()
        };
        let clean = [field(&(0..count).flat_map(sample).collect::<Vec<f64>>(), shape)];
        let names = ["p".to_string(), "q".to_string()];
        let constraint = SoftConstraint::new(&config, &names, &Grid::unit(9, 8), &Units::identity(2)).unwrap();
        let fit = ParameterFit::new(&constraint, &clean);
        fit.run().unwrap();
        intervals_of(&fit).unwrap()[0].interval.unwrap()
    };
    let cases = 60;
    let found: Vec<[[f64; 2]; 2]> = (0..cases).map(|case| [0.0, 0.05].map(|pattern| interval(case, pattern))).collect();
    for (i, pattern) in ["none", "a pattern"].iter().enumerate() {
        let covered = found.iter().filter(|both| both[i][0] < 2.0 && 2.0 < both[i][1]).count();
        assert!(covered >= 51, "{pattern}: {covered} of {cases}");
    }
    // 0.05/√(60·72·2) by chance alone; a pattern of the same size counts √72 times 0.05/(72·2) however many samples there are.
    let mean = |i: usize| found.iter().map(|both| (both[i][1] - both[i][0]) / (2.0 * 1.96)).sum::<f64>() / cases as f64;
    assert!((4e-4..1.2e-3).contains(&mean(0)) && (1e-3..5e-3).contains(&mean(1)), "{:e}, {:e}", mean(0), mean(1));
}

#[test]
fn parameters_that_do_not_matter_are_not_identifiable() {
    let (values, mean) = points(100, 9);
    let unknown = |found: &ParameterInterval| {
        let wide = found.interval.is_none_or(|[low, high]| high - low > found.value.abs());
        assert!(wide && found.verdict == Identification::NotIdentifiable, "{found:?}");
    };
    // One that does nothing, beside one that does not mind.
    let found = intervals("r + 0*s", &[("r", 1.0), ("s", 2.0)], &values);
    assert!(found[0].name == "r" && found[0].verdict == Identification::Identified, "{found:?}");
    assert!((found[0].estimate.unwrap() - mean).abs() < 1e-6);
    unknown(&found[1]);
    // Two of which only the sum matters.
    intervals("(r + s)", &[("r", 0.4), ("s", 0.6)], &values).iter().for_each(unknown);
}
