//! Noise levels fitted to a model: those with which few steps end closest to where many steps end.
//!
//! The logarithm of the levels' density over ln σ is a parabola a t + b t², t from −1 at σmax to 1 at σmin; a and b are searched
//! on a few samples. Distances are relative, of values and of second differences along both axes, which is what residuals see.

use burn::tensor::Tensor;

use crate::error::Result;
use crate::job::{Job, NOTHING_WRITTEN};
use crate::random::{Purpose, Stream};
use crate::sampler::sigma_grid::Spacing;
use crate::sampler::{BatchNoise, Observer, Sampler, Target};
use crate::tensors::{field_batch, to_vec_f64};

/// Samples of the search.
const SAMPLES: u64 = 8;
/// Steps of the reference for each step of the sampler.
const FINER: usize = 6;
/// Numbers of a density.
const PLACES: usize = 33;
/// Strides of the search in a and b, one after the other.
const STRIDES: [f64; 3] = [0.4, 0.2, 0.1];
/// Moves of one stride at most.
const MOVES: usize = 6;

impl Sampler {
    /// The sampler with a density of its levels, measured on `target` if levels are to be fitted and no density is given, and with
    /// a rule if its steps are to be fitted and it has none for them.
    pub fn fitted_to(&self, target: Target<'_>, job: &Job<'_>) -> Result<Self> {
        self.with_density(target, job)?.with_rule(target, job)
    }

    pub(crate) fn with_density(&self, target: Target<'_>, job: &Job<'_>) -> Result<Self> {
        if self.spacing != Spacing::Fitted || !self.density.is_empty() {
            return Ok(self.clone());
        }
        let density = Search::new(self, target, job).density();
        job.go_on(NOTHING_WRITTEN)?;
        Ok(Self { density, ..self.clone() })
    }
}

/// The density e^{a t + b t²} at even places of t in [−1, 1].
fn parabola([a, b]: [f64; 2]) -> Vec<f64> {
    let at = |k: usize| 2.0 * k as f64 / (PLACES - 1) as f64 - 1.0;
    (0..PLACES).map(|k| (a * at(k) + b * at(k) * at(k)).exp()).collect()
}

/// Samples that grow from the same latents on different grids.
struct Search<'a> {
    sampler: Sampler,
    target: Target<'a>,
    job: &'a Job<'a>,
    /// Noise of unit variance, `[SAMPLES, C, H, W]`.
    latents: Vec<f64>,
    /// Values and second differences of the samples of many steps.
    reference: [Vec<f64>; 2],
}

impl<'a> Search<'a> {
    fn new(sampler: &Sampler, target: Target<'a>, job: &'a Job<'a>) -> Self {
        let size = target.shape.iter().product();
        let kind = target.denoiser.noise();
        let latents = (0..SAMPLES).flat_map(|i| kind.draw(&mut Stream::new(0, Purpose::Metric, i), size)).collect();
        let sampler = Sampler { eta: 0.0, ..sampler.clone() };
        let fine = Sampler { steps: FINER * sampler.steps, ..sampler.clone() };
        let search = Self { sampler, target, job, latents, reference: [Vec::new(), Vec::new()] };
        Self { reference: search.run(&fine), ..search }
    }

    /// Values and second differences of the samples of `sampler`.
    fn run(&self, sampler: &Sampler) -> [Vec<f64>; 2] {
        let latents = field_batch(self.latents.clone(), self.target.shape, self.job.device);
        let streams = (0..SAMPLES).map(|i| Stream::new(1, Purpose::Metric, i)).collect();
        let kind = self.target.denoiser.noise();
        let mut noise = BatchNoise { streams, kind, shape: self.target.shape, device: self.job.device };
        let values = to_vec_f64(sampler.sample_from(latents, self.target, &mut || noise.draw(), &mut Watch(self.job)));
        let differences = second_differences(&values, self.target.shape);
        [values, differences]
    }

    /// Squared relative distances of the samples of few steps from the reference, added.
    fn distance(&self, place: [f64; 2]) -> f64 {
        let found = self.run(&Sampler { density: parabola(place), ..self.sampler.clone() });
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
        let relative = |(found, exact): (&Vec<f64>, &Vec<f64>)| {
            let error = square(&mut found.iter().zip(exact).map(|(f, e)| f - e));
            error / square(&mut exact.iter().copied()).max(f64::MIN_POSITIVE)
        };
        found.iter().zip(&self.reference).map(relative).sum()
    }

    /// The density of the best place that a search along both axes finds, from even levels on.
    fn density(&self) -> Vec<f64> {
        let mut best = ([0.0, 0.0], self.distance([0.0, 0.0]));
        for stride in STRIDES {
            for _ in 0..MOVES {
                let moves = [[stride, 0.0], [-stride, 0.0], [0.0, stride], [0.0, -stride]];
                let places = moves.map(|[a, b]| [best.0[0] + a, best.0[1] + b]);
                let near = places.map(|place| (place, self.distance(place)));
                let nearest = near.into_iter().fold(best, |best, other| if other.1 < best.1 { other } else { best });
                if nearest.0 == best.0 {
                    break;
                }
                best = nearest;
            }
        }
        parabola(best.0)
    }
}

/// Ends a sampler with its job.
struct Watch<'a>(&'a Job<'a>);

impl Observer for Watch<'_> {
    fn step(&mut self, _: usize, _: usize, _: f64, _: &Tensor<4>, _: &Tensor<4>) {}

    fn stopped(&self) -> bool {
        self.0.stopped()
    }
}

/// u₋ − 2u + u₊ along both axes of fields `[N, C, H, W]` with three nodes or more there, all of them in one list.
fn second_differences(values: &[f64], [_, h, w]: [usize; 3]) -> Vec<f64> {
    let second = |before: f64, here: f64, after: f64| before - 2.0 * here + after;
    let of_field = |field: &[f64]| -> Vec<f64> {
        let along_rows = field.chunks_exact(w).flat_map(|row| row.windows(3).map(|u| second(u[0], u[1], u[2])));
        let inside = w..(h.max(2) - 1) * w;
        let along_columns = inside.filter(|_| h > 2).map(|i| second(field[i - w], field[i], field[i + w]));
        along_rows.chain(along_columns).collect()
    };
    values.chunks_exact(h * w).flat_map(of_field).collect()
}
