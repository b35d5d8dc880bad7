//! How well held-out data know the learned parameters of a constraint.

use std::path::Path;

use softly::job::Job;
use softly::random::{Purpose, Stream};
use softly::units::Units;
use softly::{
    Compliance, HeldOut, Identification, Model, NoiseDist, Objective, ParameterInterval, ParameterIntervals, Training,
};

use crate::common::probe::{darcy, plain_darcy};
use crate::common::{POINT, circle, cpu, dataset, toward};

/// Points around the unit circle, on average at `mean` from the origin.
fn points(count: usize) -> (Vec<f32>, f64) {
    let mut stream = Stream::new(9, Purpose::Metric, 0);
    let (mut values, mut sum) = (Vec::new(), 0.0);
    for _ in 0..count {
        let (radius, angle) = (1.0 + 0.05 * stream.normal(), std::f64::consts::TAU * stream.uniform());
        values.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
        sum += radius;
    }
    (values, sum / count as f64)
}

fn intervals(formula: &str, parameters: &[(&str, f64)], gamma: f64, values: &[f32]) -> Vec<ParameterInterval> {
    let constraint = circle(formula, parameters);
    let model = Model::soft(toward(&constraint, gamma, Compliance::LEARNED), constraint.clone(), 0.5, POINT);
    let units = Units::identity(2);
    let data = HeldOut { values, shape: POINT, units: &units };
    let noise = NoiseDist::LogNormal { mean: -5.0, std: 0.1 };
    let objective = Objective { noise, ..Objective::default() };
    let settings = ParameterIntervals { levels: 3, batch: 50 };
    let found = settings.evaluate(&model, &objective, data, 0, &Job::silent(&cpu())).unwrap();
    // Every parameter is back where it was.
    let mut after = Vec::new();
    constraint.visit("", &mut |name, p| after.push((name.to_string(), f64::from(p.values()[0]))));
    assert_eq!(after, found.iter().map(|p| (p.name.clone(), p.value)).collect::<Vec<_>>());
    found
}

#[test]
fn the_interval_of_a_radius_is_that_of_a_mean() {
    let (values, mean) = points(400);
    // With γ = 1 every estimate lies on the circle of radius r, so the loss has its minimum at the mean distance.
    for start in [0.8, mean, 1.2] {
        let found = intervals("r", &[("r", start)], 1.0, &values).remove(0);
        let (estimate, [low, high]) = (found.estimate.unwrap(), found.interval.unwrap());
        assert!((estimate - mean).abs() < 1e-3, "{estimate} against {mean}");
        assert!(low < mean && mean < high);
        let expected = 2.0 * 1.96 * 0.05 / 20.0;
        assert!(((high - low) / expected - 1.0).abs() < 0.15, "{} against {expected}", high - low);
        let verdict = if start == mean { Identification::Identified } else { Identification::Elsewhere };
        assert_eq!((found.verdict, found.count), (verdict, 400));
    }
}

#[test]
fn parameters_that_do_not_matter_are_not_identifiable() {
    let (values, mean) = points(100);
    let unknown = |found: &ParameterInterval| {
        let wide = found.interval.is_none_or(|[low, high]| high - low > found.value.abs());
        assert!(wide && found.verdict == Identification::NotIdentifiable, "{found:?}");
    };
    // One that does nothing, beside one that does not mind.
    let found = intervals("r + 0*s", &[("r", 1.0), ("s", 2.0)], 1.0, &values);
    assert!(found[0].name == "r" && found[0].verdict == Identification::Identified, "{found:?}");
    assert!((found[0].estimate.unwrap() - mean).abs() < 1e-3);
    unknown(&found[1]);
    // Two of which only the sum matters.
    intervals("(r + s)", &[("r", 0.4), ("s", 0.6)], 1.0, &values).iter().for_each(unknown);
    // A correction that is switched off.
    intervals("r", &[("r", 1.0)], 0.0, &values).iter().for_each(unknown);
}

#[test]
fn the_interval_is_that_of_the_estimate_which_a_parameter_is_learned_from() {
    let config = darcy(&["denoiser.scd.directions=['newton', 'kalman']", "train.batch=4"]);
    let (data, base) = (dataset(&config), plain_darcy());
    let snapshot = Training::adapt(&base, Path::new("base"), &config, data.clone(), &cpu()).unwrap().snapshot();
    let intervals = |gamma: f32| {
        let mut snapshot = snapshot.clone();
        for (_, _, values) in snapshot.weights.iter_mut().filter(|(name, _, _)| name == "gamma.last.bias") {
            values.fill(gamma);
        }
        let model = snapshot.model(&cpu(), Path::new("here")).unwrap();
        let units = &snapshot.blueprint.data.units;
        let held_out = HeldOut { values: &data.train[..4 * data.sample_len()], shape: model.shape, units };
        let settings = ParameterIntervals { levels: 2, batch: 4 };
        settings.evaluate(&model, &config.objective, held_out, 0, &Job::silent(&cpu())).unwrap()
    };
    let found = intervals(0.0);
    assert!(found.len() == 1 && found[0].estimate.is_some(), "{found:?}");
    assert_eq!(found, intervals(0.3));
}
