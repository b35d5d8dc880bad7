//! How well held-out data know a learned parameter of a constraint.
//!
//! With the rest of the model as it is, the estimate D(x; θ) that parameters are learned from is a regression of x0 on x, and the
//! parameters θ are its coefficients. One Gauss–Newton step of the held-out denoising loss Σ w ‖D − x0‖², with ∂D/∂θ by
//! central differences, gives an estimate of θ; repeating it for data and noise levels drawn anew (bootstrap) gives its interval.
//! For the best denoiser every noise level would prefer the same θ; a trained one has errors of its own, which differ from
//! level to level, so levels are drawn as samples are. Where D does not depend on a parameter, or depends on several in the
//! same way, there is no finite interval. Second derivatives of D are left out: around the best denoiser the error has nothing in
//! common with any function of x.
//!
//! Without a Kalman direction D is weighted by γ, which stays as it was learned: what another γ might make up for is not in the
//! interval.

use burn::tensor::Device;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use softly_pde::algebra::Value;
use softly_pde::normal_equations::NormalEquations;

use crate::denoiser::Estimates;
use crate::error::{Error, Result};
use crate::evaluate::held_out::HeldOut;
use crate::evaluate::paired::DRAWS;
use crate::job::{Job, NOTHING_WRITTEN};
use crate::model::Model;
use crate::objective::Objective;
use crate::random::{Purpose, Stream};
use crate::statistics::quantile;
use crate::tensors::{field_batch, to_vec_f64};

/// The step of differences, relative to the parameter.
const DIFFERENCE: f64 = 0.01;

/// How intervals are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterIntervals {
    /// Noise levels per held-out sample, drawn as in training.
    pub levels: usize,
    /// Fields that go through the network at a time.
    pub batch: usize,
}

/// What held-out data say about a learned parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterInterval {
    /// Its name.
    pub name: String,
    /// The learned value.
    pub value: f64,
    /// What the held-out data prefer; none if they have no preference.
    pub estimate: Option<f64>,
    /// 95 % bootstrap interval of the estimate; none if it is unbounded.
    pub interval: Option<[f64; 2]>,
    /// What follows.
    pub verdict: Identification,
    /// Held-out samples.
    pub count: usize,
}

/// Whether a parameter is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Identification {
    /// The interval holds the learned value and is narrower than it is large.
    Identified,
    /// The interval is narrow, but elsewhere: training was too short, or γ or what `kalman` measured makes up for the
    /// difference.
    Elsewhere,
    /// The interval is unbounded or wider than the value is large.
    NotIdentifiable,
}

impl ParameterInterval {
    fn new(name: String, value: f64, estimate: Option<f64>, interval: Option<[f64; 2]>, count: usize) -> Self {
        let verdict = match interval {
            Some([low, high]) if high - low <= value.abs() => {
                if (low..=high).contains(&value) {
                    Identification::Identified
                } else {
                    Identification::Elsewhere
                }
            }
            _ => Identification::NotIdentifiable,
        };
        Self { name, value, estimate, interval, verdict, count }
    }
}

impl ParameterIntervals {
    /// The intervals of all learned numbers of the constraint of `model` under the loss of `objective`; none without a
    /// constraint.
    ///
    /// Parameters are moved while this runs, and moved back. Noise levels and noise of sample i are fixed by (seed, i).
    /// Progress is counted in samples.
    pub fn evaluate(
        &self,
        model: &Model,
        objective: &Objective,
        data: HeldOut<'_>,
        seed: u64,
        job: &Job<'_>,
    ) -> Result<Vec<ParameterInterval>> {
        data.check()?;
        let Some(constraint) = &model.constraint else { return Ok(Vec::new()) };
        let mut learned: Vec<(String, f32)> = Vec::new();
        constraint.visit("", &mut |name, parameter| {
            // Fields are left out: an interval for each of their waves would help nobody.
            let values = parameter.values();
            if let Some(Value::Number(_)) = constraint.learned_value(name, &values) {
                learned.push((name.to_string(), values[0]));
            }
        });
        let set = |index: usize, value: f32| {
            constraint.visit("", &mut |name, parameter| {
                if name == learned[index].0 {
                    parameter.set(vec![value]);
                }
            });
        };
        // As f32, in which parameters are kept: the differences are exact.
        let step = |value: f32| (DIFFERENCE * if value == 0.0 { 1.0 } else { f64::from(value.abs()) }) as f32;
        let indices: Vec<usize> = (0..data.count()).collect();
        let mut samples: Vec<Vec<NormalEquations>> = Vec::with_capacity(data.count());
        // Few enough samples at a time that all their estimates fit into memory.
        for chunk in indices.chunks(64) {
            job.go_on(NOTHING_WRITTEN)?;
            let fields = Fields::draw(chunk, self.levels.max(1), objective, data, seed);
            let estimates = || fields.estimates(model, data.shape, self.batch, job.device);
            let here = estimates();
            let slopes: Vec<Vec<f64>> = (0..learned.len())
                .map(|index| {
                    let value = learned[index].1;
                    let ends = [value - step(value), value + step(value)];
                    let [below, above] = ends.map(|end| {
                        set(index, end);
                        estimates()
                    });
                    set(index, value);
                    let width = f64::from(ends[1]) - f64::from(ends[0]);
                    above.iter().zip(below).map(|(a, b)| (a - b) / width).collect()
                })
                .collect();
            samples.extend(fields.products(&here, &slopes, objective, model.sigma_data, data.size()));
            job.reporter.advance(chunk.len() as u64);
        }
        let finite = |level: &NormalEquations| level.gram.iter().chain(&level.right).all(|v| v.is_finite());
        if let Some(bad) = samples.iter().position(|levels| !levels.iter().all(finite)) {
            let why = format!("the denoiser's estimate of held-out sample {bad} is not finite");
            return Err(Error::Failed { what: "measuring parameters".into(), why });
        }
        let named = |(index, (name, value)): (usize, (String, f32))| {
            let value = f64::from(value);
            let (estimate, interval) = bootstrap(&samples, index, value, seed);
            ParameterInterval::new(name, value, estimate, interval, data.count())
        };
        Ok(learned.into_iter().enumerate().map(named).collect())
    }
}

/// Noisy fields of some samples, `levels` of each.
struct Fields {
    clean: Vec<Vec<f64>>,
    noisy: Vec<f64>,
    sigmas: Vec<f64>,
    levels: usize,
}

impl Fields {
    fn draw(samples: &[usize], levels: usize, objective: &Objective, data: HeldOut<'_>, seed: u64) -> Self {
        let clean: Vec<Vec<f64>> = samples.iter().map(|&i| data.sample(i)).collect();
        let (mut noisy, mut sigmas) = (Vec::new(), Vec::new());
        for (&i, clean) in samples.iter().zip(&clean) {
            let mut stream = Stream::new(seed, Purpose::ValidNoise, i as u64);
            let mut drawn = objective.noise.sample(levels, &mut stream);
            // Level k of one sample is like level k of any other.
            drawn.sort_unstable_by(f64::total_cmp);
            for sigma in drawn {
                noisy.extend(clean.iter().map(|x| x + sigma * stream.normal()));
                sigmas.push(sigma);
            }
        }
        Self { clean, noisy, sigmas, levels }
    }

    /// At every field the estimate that parameters are learned from.
    fn estimates(&self, model: &Model, shape: [usize; 3], batch: usize, device: &Device) -> Vec<f64> {
        let size = shape.iter().product::<usize>();
        let batches = self.noisy.par_chunks(size * batch.max(1)).zip(self.sigmas.par_chunks(batch.max(1)));
        let each = batches.map(|(noisy, sigmas)| {
            let Estimates { estimate, teaching, .. } =
                model.estimates(field_batch(noisy.to_vec(), shape, device), sigmas);
            to_vec_f64(teaching.unwrap_or(estimate))
        });
        each.collect::<Vec<_>>().concat()
    }

    /// The part of every sample and level in the equations for the Gauss–Newton step: columns ∂D/∂θ, target x0 − D.
    fn products(
        &self,
        estimates: &[f64],
        slopes: &[Vec<f64>],
        objective: &Objective,
        sigma_data: f64,
        size: usize,
    ) -> Vec<Vec<NormalEquations>> {
        let of_field = |field: usize| {
            let range = field * size..(field + 1) * size;
            let columns: Vec<&[f64]> = slopes.iter().map(|slope| &slope[range.clone()]).collect();
            let clean = &self.clean[field / self.levels];
            let target: Vec<f64> = clean.iter().zip(&estimates[range]).map(|(x, d)| x - d).collect();
            let mut products = NormalEquations::new(slopes.len());
            products.add_products(&columns, &target, objective.weight.at(self.sigmas[field], sigma_data));
            products
        };
        let of_sample = |sample: usize| (sample * self.levels..(sample + 1) * self.levels).map(of_field).collect();
        (0..self.clean.len()).map(of_sample).collect()
    }
}

/// θ + Δθ of parameter `index` from all `samples` and their levels, and the interval that it has over samples and levels drawn
/// with replacement.
fn bootstrap(samples: &[Vec<NormalEquations>], index: usize, value: f64, seed: u64) -> (Option<f64>, Option<[f64; 2]>) {
    let levels = samples[0].len();
    let step = |chosen: &mut dyn Iterator<Item = &NormalEquations>| {
        let mut sum = NormalEquations::new(samples[0][0].right.len());
        chosen.for_each(|part| sum.add(part));
        // Last, so that it counts only with what the others cannot do.
        sum.with_last(index).solve().pop().flatten().map(|step| value + step)
    };
    let draw = |draw: u64| {
        let mut stream = Stream::new(seed, Purpose::Metric, draw);
        let levels: Vec<usize> = (0..levels).map(|_| stream.below(levels)).collect();
        let drawn = (0..samples.len()).map(|_| &samples[stream.below(samples.len())]);
        step(&mut drawn.flat_map(|sample| levels.iter().map(|&level| &sample[level])))
    };
    let draws: Option<Vec<f64>> = (0..DRAWS).into_par_iter().map(draw).collect();
    let interval = draws.map(|mut draws| {
        draws.sort_unstable_by(f64::total_cmp);
        [quantile(&draws, 0.025), quantile(&draws, 0.975)]
    });
    (step(&mut samples.iter().flatten()), interval)
}
