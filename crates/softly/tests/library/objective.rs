//! What training minimises: the regulariser against its formula, and the base denoiser's own loss.

use softly::tensors::to_vec_f64;
use softly::{
    Batch, Blueprint, Denoiser, Estimates, Estimation, LambdaSchedule, NoiseDist, Norm, Objective, Parameters,
    Regulariser, Weight,
};

use crate::common::denoisers::Shrink;
use crate::common::probe::{Probe, darcy, number};
use crate::common::{POINT, configured, dataset, field, new_training, normals, point_constraint, try_configured};

#[test]
fn the_regulariser_is_what_its_formula_says() {
    let (denoiser, sigma_data) = (Shrink { variance: 0.8 }, 0.6);
    let constraint = point_constraint("x^2 + y^2 - 1", Norm::HalfSquares);
    // Levels 10, 50 and 1 of the cosine schedule with 100 levels: σ and variance of x_{t−1} given x_t and x0.
    let levels = [(1.8555e-1, 4.637_085e-3), (1.0445, 3.060_437e-2), (4.1840e-2, 4.034_886e-4)];
    let sigma = levels.map(|l| l.0);
    let last = 2.5133e-2;
    let clean = normals(21, 0, 6);
    let noise = normals(21, 1, 6);
    let edm = |s: f64| (s * s + sigma_data * sigma_data) / (s * sigma_data).powi(2);
    let min_snr = |s: f64| (1.0 / (s * s)).min(5.0);
    let mut bounded = 0;
    for (weight, data_weight) in [(Weight::Edm, &edm as &dyn Fn(f64) -> f64), (Weight::MinSnr { max: 5.0 }, &min_snr)] {
        for schedule in [LambdaSchedule::Data, LambdaSchedule::Constant, LambdaSchedule::PosteriorVariance] {
            for estimation in [Estimation::Mean, Estimation::Sample] {
                for clamp in [None, Some(2.0)] {
                    let regulariser = Regulariser { weight: 0.3, schedule, estimation, clamp };
                    let objective = Objective { weight, regulariser: Some(regulariser), ..Objective::default() };
                    let batch = Batch::new(field(&clean, POINT), field(&noise, POINT), &sigma);
                    let estimates = Estimates::plain(denoiser.denoise(batch.noisy.clone(), &sigma));
                    let loss = objective.loss(&denoiser, Some(&constraint), &batch, estimates, sigma_data);
                    let (mut data, mut residual) = (0.0, 0.0);
                    for (i, (s, variance)) in levels.into_iter().enumerate() {
                        let at = |v: &[f64]| [v[2 * i], v[2 * i + 1]];
                        let (x0, z) = (at(&clean), at(&noise));
                        let x = [x0[0] + s * z[0], x0[1] + s * z[1]];
                        let estimate = x.map(|v| denoiser.factor(s) * v);
                        let error2 = (estimate[0] - x0[0]).powi(2) + (estimate[1] - x0[1]).powi(2);
                        data += data_weight(s) * error2 / 6.0;
                        let judged = match estimation {
                            Estimation::Mean => estimate,
                            Estimation::Sample => {
                                [0, 1].map(|c| denoiser.factor(last) * (estimate[c] + last / s * (x[c] - estimate[c])))
                            }
                        };
                        let lambda = match schedule {
                            LambdaSchedule::Data => data_weight(s),
                            LambdaSchedule::Constant => 1.0,
                            LambdaSchedule::PosteriorVariance => 1.0 / variance,
                        };
                        let r = judged[0].powi(2) + judged[1].powi(2) - 1.0;
                        let term = lambda * 0.5 * r * r;
                        bounded += usize::from(clamp.is_some_and(|c| term > c));
                        residual += 0.3 * clamp.map_or(term, |c| term.min(c)) / 3.0;
                    }
                    let found = number(&loss, "loss");
                    assert!((found / data - 1.0).abs() < 1e-12, "{found} against {data}");
                    let found = number(&loss, "residual");
                    // The table above has five digits.
                    assert!((found / residual - 1.0).abs() < 3e-5, "{regulariser:?}: {found} against {residual}");
                    let total = to_vec_f64(loss.total())[0];
                    assert!((total / (data + residual) - 1.0).abs() < 3e-5);
                }
            }
        }
    }
    assert!(bounded > 0, "the bound was never reached");
}

#[test]
fn the_bases_own_loss_is_that_of_the_base_alone() {
    let scd = "denoiser.scd={scale='unit', input='features'}";
    let mut vanilla = darcy(&[]);
    vanilla.denoiser.scd = None;
    let mut vanilla = Probe::new(vanilla);
    let alone = number(&vanilla.loss(), "loss");
    let gradient = vanilla.base_gradient();
    let length = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let distance = |a: &[f64], factor: f64| {
        let rest: Vec<f64> = a.iter().zip(&gradient).map(|(a, g)| a - factor * g).collect();
        length(&rest) / length(&gradient)
    };
    // Without it the base learns from the corrected estimate alone.
    let mut joint = Probe::new(darcy(&[scd]));
    assert!(joint.loss().term("base").is_none());
    assert!(distance(&joint.base_gradient(), 1.0) > 1e-3);
    let mut supervised = Probe::new(darcy(&[scd, "objective.base_loss=0.5"]));
    let loss = supervised.loss();
    let (data, base, total) = (number(&loss, "loss"), number(&loss, "base"), to_vec_f64(loss.total())[0]);
    assert!((base / (0.5 * alone) - 1.0).abs() < 1e-12, "{base} against half of {alone}");
    assert!((total / (data + base) - 1.0).abs() < 1e-12 && (data / alone - 1.0).abs() > 1e-4);
    let both: Vec<f64> = supervised.base_gradient();
    let apart: Vec<f64> = joint.base_gradient().iter().zip(&gradient).map(|(j, g)| j + 0.5 * g).collect();
    let rest: Vec<f64> = both.iter().zip(&apart).map(|(a, b)| a - b).collect();
    assert!(length(&rest) < 1e-4 * length(&apart), "{}", length(&rest) / length(&apart));
    // Cut off from the correction, the base learns as if there were none, and γ still learns.
    let mut cut = Probe::new(darcy(&["objective.base_loss=0.5", &scd.replace('}', ", detach_base=true}")]));
    assert!(distance(&cut.base_gradient(), 0.5) < 1e-5, "{}", distance(&cut.base_gradient(), 0.5));
    let mut gradients = cut.loss().total().backward();
    cut.model.visit("", &mut |name, parameter| {
        let has = parameter.take_gradient(&mut gradients).is_some();
        assert!(has || !name.starts_with("gamma.last"), "{name}");
    });
    let error = try_configured("darcy-demo", &["denoiser.scd={detach_base=true}"]).unwrap_err();
    assert!(error.to_string().contains("denoiser.scd.detach_base"), "{error}");
    let error = try_configured("darcy-demo", &["objective.base_loss=-1"]).unwrap_err();
    assert!(error.to_string().contains("objective.base_loss"), "{error}");
}

/// Points x0 of variance v are known as y with noise s. Among D = c·x the loss on y alone is smallest at c = v/(v + σ²), the
/// denoiser of the clean points; without the knowledge of s at (v + s²)/(v + σ²).
#[test]
fn fields_with_noise_of_their_own_teach_the_denoiser_of_clean_ones() {
    let (variance, s, sigma_data, count) = (0.7_f64, 0.3, 0.8, 20_000);
    let clean = normals(3, 0, 2 * count);
    let (own, added) = (normals(3, 1, 2 * count), normals(3, 2, 2 * count));
    let y: Vec<f64> = clean.iter().zip(&own).map(|(x, n)| variance.sqrt() * x + s * n).collect();
    for sigma in [0.35, 0.6, 2.0] {
        let sigmas = vec![sigma; count];
        let best = |known: f64, batch: &Batch<'_>| {
            let loss = |factor: f64| {
                let estimates = Estimates::plain(batch.noisy.clone() * factor);
                let shrink = Shrink { variance };
                number(&Objective::default().loss(&shrink, None, batch, estimates, sigma_data), "loss")
            };
            // The loss is a parabola in c.
            let (low, middle, high) = (loss(0.0), loss(0.5), loss(1.0));
            let found = 0.25 * (3.0 * low - 4.0 * middle + high) / (low - 2.0 * middle + high);
            let wanted = (variance + s * s - known * known) / (variance + sigma * sigma);
            assert!((found - wanted).abs() < 0.02, "σ {sigma}, known {known}: {found} against {wanted}");
        };
        let batch = Batch::of_noisy(field(&y, POINT), s, field(&added, POINT), &sigmas);
        let total: f64 = to_vec_f64(batch.noisy.clone()).iter().map(|x| x * x).sum::<f64>() / (2 * count) as f64;
        assert!((total / (variance + sigma * sigma) - 1.0).abs() < 0.03, "x is x0 with noise σ: {total}");
        best(s, &batch);
        let unknown = (sigma * sigma - s * s).sqrt();
        let levels = vec![unknown; count];
        best(0.0, &Batch::new(field(&y, POINT), field(&added, POINT), &levels));
    }
}

#[test]
fn noise_of_the_data_ends_levels_and_samplers() {
    let config = configured("darcy-demo", &["data.count=8", "data.valid=1", "data.noise=0.1"]);
    let blueprint = Blueprint::new(&config, &dataset(&config)).unwrap();
    assert_eq!((blueprint.data_noise(), blueprint.config.sampler.sigma_min), (0.05, 0.05));
    let NoiseDist::TruncLogNormal { min, .. } = blueprint.config.objective.noise else { panic!("another kind") };
    assert_eq!(min, Some(0.05));
    for (settings, says) in [
        (["data.noise=1.5", "data.normalise=std"], "from 0 to below 1"),
        (["data.noise=0.1", "data.normalise=none"], "channels are not normalised"),
        (["data.noise=0.1", "noise.field={length=0.1}"], "random field"),
        (["data.noise=0.1", "objective.noise={kind='log-normal', mean=-2.0, std=1.2}"], "trunc-log-normal"),
    ] {
        let error = try_configured("darcy-demo", &settings).unwrap_err().to_string();
        assert!(error.contains("data.noise") && error.contains(says), "{error}");
    }
}

#[test]
fn a_parameter_is_not_learned_from_noisy_data_before_they_are_denoised() {
    let learned = ["data.count=8", "data.valid=1", "constraint.parameters.flow={learn=15.0}"];
    let begun = |more: &[&str]| new_training(&configured("darcy-demo", &[&learned[..], more].concat()));
    let scd = "denoiser.scd={ scale='jacobi', input='features', output='channel' }";
    // A plain denoiser does not use it, clean data may be fitted.
    begun(&["data.noise=0.1"]).unwrap();
    begun(&[scd]).unwrap();
    let error = begun(&["data.noise=0.1", scd]).err().expect("refused").to_string();
    assert!(error.starts_with("constraint.parameters.flow") && error.contains("softly adapt"), "{error}");
}
