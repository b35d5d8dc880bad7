//! FunDPS's guidance against hand calculations.

use std::collections::BTreeMap;

use softly::job::Job;
use softly::random::{Purpose, Stream};
use softly::tensors::to_vec_f64;
use softly::{Dataset, Draw, Fundps, Guidance, GuidanceConfig, Moment, Norm, ObservedNodes, RunFolder, Trained};

use crate::common::denoisers::Shrink;
use crate::common::{POINT, configured, cpu, field, new_training, normals, point_constraint, run_until, valid};

fn fundps(residual: f64) -> Fundps {
    Fundps { observe: BTreeMap::new(), share: 0.5, residual }
}

/// x̂ = g x of a Heun step with D = k(σ) x.
fn gain(denoiser: &Shrink, sigma: f64, next: f64) -> f64 {
    denoiser.factor(next) * (1.0 + (next - sigma) * (1.0 - denoiser.factor(sigma)) / sigma)
}

#[test]
fn both_terms_are_those_of_a_hand_calculation() {
    let denoiser = Shrink { variance: 0.5 };
    let constraint = point_constraint("3*x - 2*y + 0.5", Norm::L1Mean);
    let x: Vec<f64> = normals(11, 0, 12).iter().map(|x| 0.3 * x).collect();
    let (values, weights) = (normals(11, 1, 12), [7.0, 0.0]);
    let given = ObservedNodes { values: field(&values, POINT), weights: field(&weights, POINT) };
    let lambda = 2.5;
    for (sigma, next) in [(3.0, 2.0), (0.8, 0.5), (0.1, 0.05)] {
        let g = gain(&denoiser, sigma, next);
        let [observation, equation] = if sigma > 1.0 { [1.0, 0.0] } else { [sigma, sigma] };
        for given in [None, Some(&given)] {
            let state = field(&x, POINT);
            let moment = Moment { denoiser: &denoiser, constraint: &constraint, given, state, sigma, next };
            let (estimate, push) = fundps(lambda).guide(moment);
            for (found, x) in to_vec_f64(estimate).iter().zip(&x) {
                assert!((found - denoiser.factor(sigma) * x).abs() < 1e-12);
            }
            let Some(push) = push else {
                assert!(given.is_none() && equation == 0.0);
                continue;
            };
            let mut kinks = 0;
            for ((found, x), y) in to_vec_f64(push).chunks(2).zip(x.chunks(2)).zip(values.chunks(2)) {
                let residual = 3.0 * g * x[0] - 2.0 * g * x[1] + 0.5;
                kinks += usize::from(residual.abs() > 1.0);
                // Huber's slope is R, cut at ±1.
                let slope = equation * lambda * residual.clamp(-1.0, 1.0);
                for (i, jacobian) in [3.0, -2.0].into_iter().enumerate() {
                    let misfit = if given.is_some() { 2.0 * weights[i] * (g * x[i] - y[i]) } else { 0.0 };
                    let expected = g * (observation * misfit + slope * jacobian);
                    assert!((found[i] - expected).abs() < 1e-10, "σ = {sigma}: {} against {expected}", found[i]);
                }
            }
            assert!(kinks < 6, "some residuals lie inside of ±1");
        }
    }
    let state = field(&x, POINT);
    let last =
        Moment { denoiser: &denoiser, constraint: &constraint, given: Some(&given), state, sigma: 0.1, next: 0.0 };
    assert!(fundps(lambda).guide(last).1.is_none(), "the last step is free");
}

#[test]
fn held_out_nodes_draw_samples_to_them() {
    let settings = [
        "data.generator.size=8",
        "data.count=40",
        "data.valid=3",
        "denoiser.backbone={kind='operator', channels=6, modes=4, blocks=1}",
        "noise.field={length=0.1}",
        "train.iterations=8",
        "train.batch=6",
        "sampler.steps=16",
    ];
    let config = configured("helmholtz-demo", &settings);
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::new(folder.path().join("run"));
    run_until(new_training(&config).unwrap(), &run, u64::MAX).unwrap();
    let (device, data) = (cpu(), Dataset::from_config(&config.data).unwrap());
    let job = Job::silent(&device);
    let draw = |guidance: &str, indices: &[u64], batch: usize| {
        let trained = Trained::load_with(&run.path, &[format!("sampler.guidance={guidance}")], &device)?;
        trained.samples(&Draw { seed: 0, indices, batch, observed: Some(&data) }, &job)
    };
    let guided = "{kind='fundps', observe={a=20.0}, share=0.2, residual=0.0}";
    let free = "{kind='fundps', residual=0.0}";
    let (pulled, plain) = (draw(guided, &[0, 1, 4], 3).unwrap(), draw(free, &[0, 1, 4], 3).unwrap());
    // 13 nodes of the source, by the stream that the file says.
    let nodes = Stream::new(500, Purpose::Metric, 0).permutation(64);
    let truth = valid(&data);
    let misfit = |samples: &[f64], sample: usize, held_out: usize| {
        let gap = |node: usize| samples[sample * 128 + node] - f64::from(truth[held_out * 128 + node]);
        nodes[..13].iter().map(|&node| gap(node).powi(2)).sum::<f64>()
    };
    for (sample, held_out) in [(0, 0), (1, 1), (2, 4 % 3)] {
        let (with, without) = (misfit(&pulled, sample, held_out), misfit(&plain, sample, held_out));
        assert!(with < 0.7 * without, "sample {sample}: {with} against {without}");
    }
    assert_eq!(draw(guided, &[4], 1).unwrap(), pulled[256..], "alone or in a batch");

    let said = draw("{kind='fundps', observe={b=1.0}}", &[0], 1).err().unwrap().to_string();
    assert!(said.starts_with("sampler.guidance.observe: the data have no field `b`"), "{said}");
    for (guidance, place) in [
        ("{kind='fundps', share=0.0}", "sampler.guidance.share"),
        ("{kind='fundps', residual=-1.0}", "sampler.guidance.residual"),
        ("{kind='fundps', observe={a=-1.0}}", "sampler.guidance.observe.a"),
    ] {
        let said = draw(guidance, &[0], 1).err().unwrap().to_string();
        assert!(said.starts_with(place), "{said}");
    }
    assert!(GuidanceConfig::Fundps(fundps(1.0)).method().observes().is_none());
}
