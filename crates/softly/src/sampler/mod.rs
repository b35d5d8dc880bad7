//! From noise to fields: noise levels, solvers of the probability-flow ODE, and guidance.

pub mod fit;
pub mod guidance;
mod rule;
pub mod sigma_grid;
pub mod solver;

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::{positive, within};
use crate::constraint::SoftConstraint;
use crate::denoiser::Denoiser;
use crate::error::{Error, Result};
use crate::noise::Noise;
use crate::random::{Purpose, Stream};
use crate::sampler::guidance::{GuidanceConfig, Moment, ObservedNodes};
use crate::sampler::sigma_grid::{SigmaGrid, Spacing};
use crate::sampler::solver::fitted::Rule;
use crate::sampler::solver::{SolverKind, Step};
use crate::tensors::field_batch;

/// EDM's stochastic noise injection. With `amount` 0 sampling is deterministic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Churn {
    /// S_churn: how much noise is put back in all.
    pub amount: f64,
    /// Only at levels of at least this σ …
    pub from: f64,
    /// … and at most this one.
    pub to: f64,
    /// Standard deviation of the added noise.
    pub noise: f64,
}

impl Default for Churn {
    fn default() -> Self {
        Self { amount: 0.0, from: 0.0, to: f64::MAX, noise: 1.0 }
    }
}

/// A spectator of a sampler at work.
pub trait Observer {
    /// Step `step` of `steps` is done: the denoised estimate at `sigma`, and the new state, both `[N, C, H, W]`.
    fn step(&mut self, step: usize, steps: usize, sigma: f64, denoised: &Tensor<4>, state: &Tensor<4>);

    /// Whether sampling should end before it is done; what it returns then is of no use.
    fn stopped(&self) -> bool {
        false
    }
}

/// An observer that does not look.
pub struct Unobserved;

impl Observer for Unobserved {
    fn step(&mut self, _: usize, _: usize, _: f64, _: &Tensor<4>, _: &Tensor<4>) {}
}

/// A model that can move its estimates onto a constraint; samplers ask for it in their last steps.
pub trait Projection: Sync {
    /// The estimate `[N, C, H, W]` on the constraint, or as it is if the model is not asked for that.
    fn project(&self, estimate: Tensor<4>) -> Tensor<4>;
}

/// What a sampler draws from.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The denoiser.
    pub denoiser: &'a dyn Denoiser,
    /// The constraint that guidance follows.
    pub constraint: Option<&'a SoftConstraint>,
    /// The projection of estimates in the last steps.
    pub projection: Option<&'a dyn Projection>,
    /// Observations that guidance follows.
    pub given: Option<&'a ObservedNodes>,
    /// Shape of a sample, `[C, H, W]`.
    pub shape: [usize; 3],
}

impl<'a> Target<'a> {
    /// A denoiser by itself, for samples of `shape` `[C, H, W]`.
    pub fn plain(denoiser: &'a dyn Denoiser, shape: [usize; 3]) -> Self {
        Self { denoiser, constraint: None, projection: None, given: None, shape }
    }
}

/// Most steps of a sampler: a thousand times what any solver needs.
const MOST_STEPS: usize = 1_000_000;

/// One in so many steps, at the end, counts as the last: with EDM's levels those below σ = 0.03.
const LAST_STEPS: usize = 8;

/// A sampler of the probability-flow ODE dx/dσ = (x − D(x; σ))/σ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sampler {
    /// How steps are taken.
    pub solver: SolverKind,
    /// Number of steps.
    pub steps: usize,
    /// Smallest non-zero noise level.
    pub sigma_min: f64,
    /// Largest noise level.
    pub sigma_max: f64,
    /// How the levels are spaced.
    pub spacing: Spacing,
    /// Crowding of `karras` levels at the low end.
    pub rho: f64,
    /// `fitted` levels per unit of ln σ, up to a factor, at places even in ln σ from σmax to σmin. Without numbers they are
    /// measured on the model before the first sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub density: Vec<f64>,
    /// Noise put back in every step of a multistep solver: 0 is the probability-flow ODE, 1 the reverse SDE.
    pub eta: f64,
    /// Noise put back between the steps of other solvers.
    pub churn: Churn,
    /// Guidance by the constraint, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance: Option<GuidanceConfig>,
    /// Numbers of `fitted` steps, measured on a model; none are in a file.
    #[serde(skip)]
    pub rule: Option<Arc<Rule>>,
}

impl Default for Sampler {
    fn default() -> Self {
        let SigmaGrid { steps, sigma_min, sigma_max, spacing, rho, density } = SigmaGrid::default();
        let (solver, churn) = (SolverKind::Heun, Churn::default());
        Self { solver, steps, sigma_min, sigma_max, spacing, rho, density, eta: 0.0, churn, guidance: None, rule: None }
    }
}

impl Sampler {
    /// The noise levels, highest first, with a final 0.
    pub fn levels(&self) -> Vec<f64> {
        self.solver.build(self).levels(&self.sigma_grid())
    }

    /// Denoiser calls of one sample.
    pub fn calls(&self) -> usize {
        self.solver.build(self).calls(self.steps)
    }

    fn sigma_grid(&self) -> SigmaGrid {
        let Self { steps, sigma_min, sigma_max, spacing, rho, .. } = *self;
        SigmaGrid { steps, sigma_min, sigma_max, spacing, rho, density: self.density.clone() }
    }

    /// Refuses settings that cannot work.
    pub fn check(&self) -> Result<()> {
        positive("sampler.sigma_min", self.sigma_min)?;
        positive("sampler.sigma_max", self.sigma_max)?;
        positive("sampler.rho", self.rho)?;
        if !(1..=MOST_STEPS).contains(&self.steps) {
            let problem = format!("expected at least 1 and at most {MOST_STEPS} steps, found {}", self.steps);
            return Err(Error::input("sampler.steps", problem).hint("the default is 100"));
        }
        within("sampler.churn.amount", self.churn.amount, 0.0..=f64::MAX, "a number ≥ 0")?;
        within("sampler.churn.noise", self.churn.noise, 0.0..=f64::MAX, "a number ≥ 0")?;
        self.check_noise()?;
        self.check_density()?;
        let Churn { from, to, .. } = self.churn;
        if from.is_nan() || to.is_nan() || from > to {
            let problem = format!("expected from ≤ to, found {from} and {to}: no noise level is between them");
            return Err(Error::input("sampler.churn", problem));
        }
        if self.sigma_min >= self.sigma_max {
            let problem = format!("expected sigma_min < sigma_max, found {} and {}", self.sigma_min, self.sigma_max);
            return Err(Error::input("sampler.sigma_min", problem));
        }
        if self.guidance.is_some() {
            self.refuse_fitted("without guidance")?;
        }
        self.guidance.as_ref().map_or(Ok(()), |guidance| guidance.method().check())
    }

    /// Refuses steps that were fitted to other paths: `of` says which those are.
    pub(crate) fn refuse_fitted(&self, of: &str) -> Result<()> {
        if self.solver != SolverKind::Fitted {
            return Ok(());
        }
        let problem = format!("`fitted` steps are of the model {of}");
        Err(Error::input("sampler.solver", problem).hint("use solver unipc, or heun"))
    }

    /// Refuses noise that the solver cannot put back.
    fn check_noise(&self) -> Result<()> {
        within("sampler.eta", self.eta, 0.0..=f64::MAX, "a number ≥ 0")?;
        let solver = self.solver.build(self);
        let multistep = solver.is_multistep();
        if solver.is_deterministic() && self.eta > 0.0 {
            let problem = format!("expected 0 with a deterministic solver, found {}", self.eta);
            return Err(Error::input("sampler.eta", problem).hint("use solver dpm-2m, dpm-3m or unipc"));
        }
        if multistep && self.churn.amount > 0.0 {
            let problem = format!("expected 0 with a multistep solver, found {}", self.churn.amount);
            return Err(Error::input("sampler.churn.amount", problem).hint("these put noise back by `sampler.eta`"));
        }
        if !multistep && self.eta > 0.0 {
            let problem = format!("expected 0 with a solver that is not multistep, found {}", self.eta);
            return Err(Error::input("sampler.eta", problem)
                .hint("use solver dpm-2m, dpm-3m or unipc, or `sampler.churn.amount`"));
        }
        Ok(())
    }

    fn check_density(&self) -> Result<()> {
        let fits = self.density.iter().all(|d| d.is_finite() && *d > 0.0);
        if self.density.is_empty() || fits && self.density.len() > 1 {
            return Ok(());
        }
        let problem = format!("expected no or at least two positive numbers, found {:?}", self.density);
        Err(Error::input("sampler.density", problem).hint("without numbers the density is measured on the model"))
    }

    /// Draws the samples with the given indices, `[N, C, H, W]`, in f64 where the device has it.
    ///
    /// Sample i depends on (seed, i) alone, not on the others in the batch.
    pub fn sample(
        &self,
        target: Target<'_>,
        seed: u64,
        indices: &[u64],
        device: &Device,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let size = target.shape.iter().product();
        let kind = target.denoiser.noise();
        let latents =
            indices.iter().flat_map(|&i| kind.draw(&mut Stream::new(seed, Purpose::Latent, i), size)).collect();
        let latents = field_batch(latents, target.shape, device);
        let mut noise = BatchNoise {
            streams: indices.iter().map(|&i| Stream::new(seed, Purpose::SamplerNoise, i)).collect(),
            kind,
            shape: target.shape,
            device,
        };
        self.sample_from(latents, target, &mut || noise.draw(), observer)
    }

    /// Draws samples again from `estimates` `[N, C, H, W]`: noise of the sampler's highest level is put on them and
    /// removed.
    ///
    /// Sample i depends on (seed, i) and its estimate alone, not on the others in the batch.
    pub fn sample_again(
        &self,
        estimates: Tensor<4>,
        target: Target<'_>,
        seed: u64,
        indices: &[u64],
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let (size, device) = (target.shape.iter().product(), estimates.device());
        let kind = target.denoiser.noise();
        let fresh =
            indices.iter().flat_map(|&i| kind.draw(&mut Stream::new(seed, Purpose::Restart, i), size)).collect();
        let latents = estimates / self.levels()[0] + field_batch(fresh, target.shape, &device);
        let streams = indices.iter().map(|&i| Stream::new(seed, Purpose::SamplerNoise, i)).collect();
        let mut noise = BatchNoise { streams, kind, shape: target.shape, device: &device };
        self.sample_from(latents, target, &mut || noise.draw(), observer)
    }

    /// The samples that grow from given `latents` `[N, C, H, W]`, noise of unit variance; `noise` draws more of it when
    /// needed.
    pub fn sample_from(
        &self,
        latents: Tensor<4>,
        target: Target<'_>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let mut solver = self.solver.build(self);
        let levels = solver.levels(&self.sigma_grid());
        let n = latents.dims()[0];
        let mut x = solver.start(latents, levels[0]);
        for (i, pair) in levels.windows(2).enumerate() {
            let (mut sigma, next) = (pair[0], pair[1]);
            let factor = (self.churn.amount / self.steps as f64).min(std::f64::consts::SQRT_2 - 1.0);
            if factor > 0.0 && (self.churn.from..=self.churn.to).contains(&sigma) {
                let raised = sigma * (1.0 + factor);
                x = x + noise() * ((raised * raised - sigma * sigma).sqrt() * self.churn.noise);
                sigma = raised;
            }
            // A model may project its estimates onto its constraint; early on that would bend what is still undecided.
            let last = i + self.steps.div_ceil(LAST_STEPS) >= self.steps;
            let projected = |estimate: Tensor<4>| match target.projection {
                Some(projection) if last => projection.project(estimate),
                _ => estimate,
            };
            let (estimate, push) = self.guided(target, x.clone(), [sigma, next]);
            let estimate = projected(estimate);
            let denoise = |x: Tensor<4>, sigma: f64| projected(target.denoiser.denoise(x, &vec![sigma; n]));
            let step = Step {
                index: i,
                state: x,
                estimate: estimate.clone(),
                sigma,
                next,
                eta: self.eta,
                denoise: &denoise,
                noise: &mut *noise,
            };
            x = solver.step(step);
            if let Some(push) = push {
                x = x - push;
            }
            observer.step(i + 1, self.steps, sigma, &estimate, &x);
            if observer.stopped() {
                break;
            }
        }
        x
    }

    /// D(x; σ) and the push of the guidance, if there is guidance, for a step to the noise level `next`.
    fn guided(&self, target: Target<'_>, x: Tensor<4>, [sigma, next]: [f64; 2]) -> (Tensor<4>, Option<Tensor<4>>) {
        let Target { denoiser, constraint, given, .. } = target;
        if let (Some(guidance), Some(constraint)) = (&self.guidance, constraint) {
            return guidance.method().guide(Moment { denoiser, constraint, given, state: x, sigma, next });
        }
        let n = x.dims()[0];
        (denoiser.denoise(x, &vec![sigma; n]), None)
    }
}

/// Fresh noise for every sample of a batch, each from its own stream.
struct BatchNoise<'a> {
    streams: Vec<Stream>,
    kind: Noise,
    shape: [usize; 3],
    device: &'a Device,
}

impl BatchNoise<'_> {
    /// Noise of unit variance, `[N, C, H, W]`.
    fn draw(&mut self) -> Tensor<4> {
        let size = self.shape.iter().product();
        let values = self.streams.iter_mut().flat_map(|stream| self.kind.draw(stream, size)).collect();
        field_batch(values, self.shape, self.device)
    }
}
