//! A rule of fitted steps for a model: few steps that end where many steps end.
//!
//! Some samples are followed from their first noise to the end with six times as many steps. Then, step by step, the numbers c of a
//! [`Rule`] minimise the squared distance between the next state of the few steps and the path of the many, field by field and octave by
//! octave. Few steps go on from their own states, so that later ones mend what earlier ones left over.

use burn::tensor::Tensor;
use rayon::prelude::*;
use softly_pde::normal_equations::NormalEquations;

use crate::constraint::basis::Basis;
use crate::error::Result;
use crate::job::{Job, NOTHING_WRITTEN};
use crate::memory;
use crate::random::{Purpose, Stream};
use crate::sampler::solver::SolverKind;
use crate::sampler::solver::fitted::{Memory, Rule, octave, octaves, waves};
use crate::sampler::solver::multistep::Leap;
use crate::sampler::{Observer, Sampler, Target};
use crate::tensors::{field_batch, to_vec_f64};

/// Samples whose paths are followed.
const SAMPLES: u64 = 48;
/// Samples in a batch.
const BATCH: usize = 8;
/// Steps on a path for each step of the sampler.
const FINER: usize = 6;
/// The share of a term's own square that is added to it, so that terms that are almost the same stay small.
const RIDGE: f64 = 1e-7;

impl Sampler {
    /// The sampler with a rule for its steps on `target`, if its steps are fitted and it has none yet.
    pub(crate) fn with_rule(self, target: Target<'_>, job: &Job<'_>) -> Result<Self> {
        let levels = self.levels();
        if self.solver != SolverKind::Fitted
            || self.rule.as_ref().is_some_and(|rule| rule.is_for(&levels, target.shape))
        {
            return Ok(self);
        }
        let plain = Target::plain(target.denoiser, target.shape);
        let rule = Fit::new(&self, plain, job)?.rule()?;
        Ok(Self { rule: Some(rule.into()), ..self })
    }
}

/// What a fit works on.
struct Fit<'a> {
    target: Target<'a>,
    job: &'a Job<'a>,
    /// Noise levels of the few steps, without the final 0.
    levels: Vec<f64>,
    waves: Basis,
    batches: Vec<Batch>,
}

/// Some of the samples.
struct Batch {
    /// The state of the few steps, `[N, C, H, W]`.
    state: Tensor<4>,
    memory: Memory,
    /// States of the many steps where the few steps end, one after the other.
    path: Vec<Tensor<4>>,
}

impl<'a> Fit<'a> {
    fn new(sampler: &Sampler, target: Target<'a>, job: &'a Job<'a>) -> Result<Self> {
        let mut levels = sampler.levels();
        levels.pop();
        // The finer levels include the coarse ones, however they are spaced.
        let many = Sampler {
            solver: SolverKind::UniPc,
            steps: FINER * (levels.len() - 1) + 1,
            rule: None,
            guidance: None,
            ..sampler.clone()
        };
        let numbers = SAMPLES as usize * levels.len() * target.shape.iter().product::<usize>();
        memory::check("sampler.steps", (size_of::<f64>() * numbers) as f64)?;
        job.reporter.note("fitting the solver to the model, once");
        job.reporter.begin(SAMPLES * (many.steps + levels.len()) as u64, 0);
        let (size, kind) = (target.shape.iter().product(), target.denoiser.noise());
        let indices: Vec<u64> = (0..SAMPLES).collect();
        let batches = indices.par_chunks(BATCH).map(|indices| {
            let drawn =
                indices.iter().flat_map(|&i| kind.draw(&mut Stream::new(2, Purpose::Metric, i), size)).collect();
            let latents = field_batch(drawn, target.shape, job.device);
            let mut path = Path { job, samples: indices.len() as u64, states: Vec::new() };
            let mut none = || -> Tensor<4> { unreachable!("the probability flow has no noise") };
            many.sample_from(latents.clone(), target, &mut none, &mut path);
            Batch { state: latents * levels[0], memory: Memory::default(), path: path.states }
        });
        let batches = batches.collect();
        job.go_on(NOTHING_WRITTEN)?;
        Ok(Self { target, job, levels, waves: waves(target.shape), batches })
    }

    fn rule(mut self) -> Result<Rule> {
        let mut rule = Rule { levels: self.levels.clone(), shape: self.target.shape, steps: Vec::new() };
        for (step, pair) in self.levels.windows(2).enumerate() {
            let leap = Leap::along_the_flow(pair[0], pair[1]);
            let (target, waves, job) = (&self.target, &self.waves, self.job);
            let looked: Vec<_> =
                self.batches.par_iter_mut().map(|batch| batch.look(step, &leap, pair[0], target, waves)).collect();
            let mut sums = looked[0].products.clone();
            for other in &looked[1..] {
                sums.iter_mut().zip(&other.products).for_each(|(sum, products)| sum.add(products));
            }
            rule.steps.push(sums.into_iter().flat_map(numbers).collect());
            self.batches.par_iter_mut().zip(looked).for_each(|(batch, look)| {
                let transform = waves.transform(&batch.state);
                batch.state = transform.fields(look.mean + rule.correction(step, &look.terms));
                job.reporter.advance(BATCH as u64);
            });
            job.go_on(NOTHING_WRITTEN)?;
        }
        Ok(rule)
    }
}

/// A step before its correction.
struct Look {
    /// The parabola's mean, coefficients `[N, C, H, W]`.
    mean: Tensor<4>,
    /// The terms φ, coefficients `[N, C, H, W]`.
    terms: Vec<Tensor<4>>,
    /// Products of the terms with each other and with what the parabola's step misses, by field and octave.
    products: Vec<NormalEquations>,
}

impl Batch {
    fn look(&mut self, step: usize, leap: &Leap, sigma: f64, target: &Target<'_>, waves: &Basis) -> Look {
        let n = self.state.dims()[0];
        let estimate = target.denoiser.denoise(self.state.clone(), &vec![sigma; n]);
        let transform = waves.transform(&self.state);
        let coefficients = |fields: Tensor<4>| transform.coefficients(fields);
        let (mean, terms) = self.memory.look(leap, coefficients(self.state.clone()), coefficients(estimate));
        let missed = to_vec_f64(coefficients(self.path[step].clone()) - mean.clone());
        let values: Vec<Vec<f64>> = terms.iter().map(|term| to_vec_f64(term.clone())).collect();
        let [channels, rows, cols] = target.shape;
        let groups = (0..channels).flat_map(|channel| (0..octaves(target.shape)).map(move |octave| (channel, octave)));
        let products = groups.map(|(channel, of)| {
            let here: Vec<usize> = (0..rows * cols).filter(|i| octave(i / cols, i % cols) == of).collect();
            let gather = |values: &[f64]| -> Vec<f64> {
                let samples = values.chunks_exact(channels * rows * cols);
                samples.flat_map(|sample| here.iter().map(|i| sample[channel * rows * cols + i])).collect()
            };
            let columns: Vec<Vec<f64>> = values.iter().map(|values| gather(values)).collect();
            let mut products = NormalEquations::new(columns.len());
            products.add_products(&columns.iter().map(Vec::as_slice).collect::<Vec<_>>(), &gather(&missed), 1.0);
            products
        });
        Look { mean, terms, products: products.collect() }
    }
}

/// The numbers c that leave least of what the parabola's step misses.
fn numbers(mut products: NormalEquations) -> Vec<f64> {
    let n = products.right.len();
    (0..n).for_each(|i| products.gram[i * (n + 1)] *= 1.0 + RIDGE);
    products.solve().into_iter().map(|number| number.unwrap_or(0.0)).collect()
}

/// Keeps every sixth state of the many steps.
struct Path<'a> {
    job: &'a Job<'a>,
    samples: u64,
    states: Vec<Tensor<4>>,
}

impl Observer for Path<'_> {
    fn step(&mut self, step: usize, _: usize, _: f64, _: &Tensor<4>, state: &Tensor<4>) {
        self.job.reporter.advance(self.samples);
        if step.is_multiple_of(FINER) {
            self.states.push(state.clone());
        }
    }

    fn stopped(&self) -> bool {
        self.job.stopped()
    }
}
