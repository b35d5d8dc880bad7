//! From noise to fields: grids of noise levels, solvers of the probability-flow ODE, and guidance.

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::constraint::SoftConstraint;
use crate::ddpm::CosineSchedule;
use crate::denoiser::Denoiser;
use crate::device::state_dtype;
use crate::random::{Purpose, Stream};

/// EDM's noise levels: σᵢ = (σmax^{1/ρ} + i/(N−1)·(σmin^{1/ρ} − σmax^{1/ρ}))^ρ, then 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SigmaGrid {
    /// Number of steps N.
    pub steps: usize,
    /// Smallest non-zero level.
    pub sigma_min: f64,
    /// Largest level, where sampling starts.
    pub sigma_max: f64,
    /// How much the steps crowd at the low end.
    pub rho: f64,
}

impl Default for SigmaGrid {
    fn default() -> Self {
        Self { steps: 100, sigma_min: 0.002, sigma_max: 80.0, rho: 7.0 }
    }
}

impl SigmaGrid {
    /// The N levels from `sigma_max` to `sigma_min`, followed by 0.
    pub fn levels(&self) -> Vec<f64> {
        let (first, last) = (self.sigma_max.powf(1.0 / self.rho), self.sigma_min.powf(1.0 / self.rho));
        let span = (self.steps.max(2) - 1) as f64;
        let level = |i: usize| (first + i as f64 / span * (last - first)).powf(self.rho);
        (0..self.steps).map(level).chain([0.0]).collect()
    }
}

/// EDM's stochastic noise injection. With `amount` 0 sampling is deterministic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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

/// How a step from one noise level to the next is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Solver {
    /// One denoiser call, first order.
    Euler,
    /// Two denoiser calls (one in the last step), second order.
    Heun,
    /// DDPM's ancestral steps over all levels of its cosine schedule; `steps` is the number of levels.
    Ancestral,
}

/// Diffusion posterior sampling: after each step x ← x − scale·∇ₓ‖R(D(x))‖ at the step's start, through the network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guidance {
    /// Size of the guidance step.
    pub scale: f64,
}

/// What a sampler tells while it works.
pub trait Observer {
    /// Step `step` of `steps` is done: the denoised estimate at `sigma`, and the new state, both `[N, C, H, W]`.
    fn step(&mut self, step: usize, steps: usize, sigma: f64, denoised: &Tensor<4>, state: &Tensor<4>);
}

/// An observer that does not look.
pub struct Unobserved;

impl Observer for Unobserved {
    fn step(&mut self, _: usize, _: usize, _: f64, _: &Tensor<4>, _: &Tensor<4>) {}
}

/// One in so many steps, at the end, counts as the last: with EDM's levels those below σ = 0.03.
const LAST_STEPS: usize = 8;

/// A sampler of the probability-flow ODE dx/dσ = (x − D(x; σ))/σ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampler {
    /// How steps are taken.
    pub solver: Solver,
    /// Number of steps.
    pub steps: usize,
    /// Smallest non-zero noise level.
    pub sigma_min: f64,
    /// Largest noise level.
    pub sigma_max: f64,
    /// Crowding of the levels at the low end.
    pub rho: f64,
    /// Noise put back while sampling.
    pub churn: Churn,
    /// Guidance by the constraint, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance: Option<Guidance>,
}

impl Default for Sampler {
    fn default() -> Self {
        let SigmaGrid { steps, sigma_min, sigma_max, rho } = SigmaGrid::default();
        Self { solver: Solver::Heun, steps, sigma_min, sigma_max, rho, churn: Churn::default(), guidance: None }
    }
}

impl Sampler {
    /// The noise levels, highest first, with a final 0.
    pub fn levels(&self) -> Vec<f64> {
        match self.solver {
            Solver::Ancestral => {
                let schedule = CosineSchedule::new(self.steps);
                (0..self.steps).rev().map(|t| schedule.sigma(t)).chain([0.0]).collect()
            }
            Solver::Euler | Solver::Heun => {
                let Self { steps, sigma_min, sigma_max, rho, .. } = *self;
                SigmaGrid { steps, sigma_min, sigma_max, rho }.levels()
            }
        }
    }

    /// Draws the samples with the given indices; `shape` is `[C, H, W]`. The result is `[N, C, H, W]`, in f64 where the device has it.
    ///
    /// Sample i depends on (seed, i) alone, not on the others in the batch. `constraint` is needed for guidance only.
    #[allow(clippy::too_many_arguments)]
    pub fn sample(
        &self,
        denoiser: &dyn Denoiser,
        constraint: Option<&SoftConstraint>,
        shape: [usize; 3],
        seed: u64,
        indices: &[u64],
        device: &Device,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let size = shape.iter().product();
        let latents = indices.iter().flat_map(|&i| Stream::new(seed, Purpose::Latent, i).normals(size)).collect();
        let latents = field_batch(latents, shape, device);
        let mut noise = BatchNoise {
            streams: indices.iter().map(|&i| Stream::new(seed, Purpose::SamplerNoise, i)).collect(),
            shape,
            device,
        };
        self.sample_from(latents, denoiser, constraint, &mut || noise.draw(), observer)
    }

    /// The same from given standard normal latents `[N, C, H, W]`; `noise` draws more of them when needed.
    pub fn sample_from(
        &self,
        latents: Tensor<4>,
        denoiser: &dyn Denoiser,
        constraint: Option<&SoftConstraint>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let levels = self.levels();
        let n = latents.dims()[0];
        let guide = Guide { denoiser, constraint, guidance: self.guidance };
        let mut x = match self.solver {
            // DDPM starts from a standard normal x_T, which is our x divided by √(1+σ²).
            Solver::Ancestral => latents * (1.0 + levels[0] * levels[0]).sqrt(),
            Solver::Euler | Solver::Heun => latents * levels[0],
        };
        let schedule = CosineSchedule::new(self.steps);
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
            let finish = |estimate| if last { denoiser.project(estimate) } else { estimate };
            let (denoised, push) = guide.denoise(x.clone(), sigma, n);
            let denoised = finish(denoised);
            let mut stepped = match self.solver {
                Solver::Ancestral => ancestral_step(&schedule, self.steps - 1 - i, x.clone(), denoised.clone(), noise),
                Solver::Euler | Solver::Heun => {
                    let slope = (x.clone() - denoised.clone()) / sigma;
                    let euler = x.clone() + slope.clone() * (next - sigma);
                    if self.solver == Solver::Heun && next > 0.0 {
                        let corrected = finish(denoiser.denoise(euler.clone(), &vec![next; n]));
                        let slope_there = (euler - corrected) / next;
                        x + (slope + slope_there) * (0.5 * (next - sigma))
                    } else {
                        euler
                    }
                }
            };
            if let Some(push) = push {
                stepped = stepped - push;
            }
            x = stepped;
            observer.step(i + 1, self.steps, sigma, &denoised, &x);
        }
        x
    }
}

/// One ancestral DDPM step from level `t` in our scaling, with noise of variance β.
fn ancestral_step(
    schedule: &CosineSchedule,
    t: usize,
    x: Tensor<4>,
    denoised: Tensor<4>,
    noise: &mut dyn FnMut() -> Tensor<4>,
) -> Tensor<4> {
    let (beta, alpha_bar, before) = (schedule.beta[t], schedule.alpha_bar[t], schedule.alpha_bar_before(t));
    let weight_denoised = before.sqrt() * beta / (1.0 - alpha_bar);
    let weight_state = (1.0 - beta).sqrt() * (1.0 - before) / (1.0 - alpha_bar);
    let mean = denoised * weight_denoised + x * (alpha_bar.sqrt() * weight_state);
    let next = if t == 0 { mean } else { mean + noise() * beta.sqrt() };
    next / before.sqrt()
}

/// A denoiser with an optional push along the constraint's gradient.
struct Guide<'a> {
    denoiser: &'a dyn Denoiser,
    constraint: Option<&'a SoftConstraint>,
    guidance: Option<Guidance>,
}

impl Guide<'_> {
    /// D(x; σ), and scale·∇ₓ‖R(D(x; σ))‖ per sample if guided.
    fn denoise(&self, x: Tensor<4>, sigma: f64, n: usize) -> (Tensor<4>, Option<Tensor<4>>) {
        let sigma = vec![sigma; n];
        match (self.guidance, self.constraint) {
            (Some(Guidance { scale }), Some(constraint)) if scale != 0.0 => {
                let x = x.autodiff().require_grad();
                let denoised = self.denoiser.denoise(x.clone(), &sigma);
                // Summed over samples: each sample's gradient involves its own norm only.
                let mut gradients = constraint.norm(denoised.clone()).sum().backward();
                let push = x.grad_remove(&mut gradients).map(|g| g * scale);
                (denoised.without_autodiff(), push)
            }
            _ => (self.denoiser.denoise(x, &sigma), None),
        }
    }
}

/// Fresh noise for every sample of a batch, each from its own stream.
struct BatchNoise<'a> {
    streams: Vec<Stream>,
    shape: [usize; 3],
    device: &'a Device,
}

impl BatchNoise<'_> {
    fn draw(&mut self) -> Tensor<4> {
        let size = self.shape.iter().product();
        let values = self.streams.iter_mut().flat_map(|s| s.normals(size)).collect();
        field_batch(values, self.shape, self.device)
    }
}

/// A batch of fields `[N, C, H, W]` in the device's best precision from row-major values.
pub fn field_batch(values: Vec<f64>, [c, h, w]: [usize; 3], device: &Device) -> Tensor<4> {
    let n = values.len() / (c * h * w);
    Tensor::from_data(TensorData::new(values, [n, c, h, w]), (device, state_dtype(device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigma_grids_match_the_reference_digits() {
        let levels = |steps| SigmaGrid { steps, ..SigmaGrid::default() }.levels();
        let close = |found: &[f64], expected: &[f64], digits: f64| {
            for (f, e) in found.iter().zip(expected) {
                assert!((f - e).abs() <= digits, "{f} against {e}");
            }
        };
        let coarse = levels(18);
        assert_eq!(coarse.len(), 19);
        close(&coarse[..3], &[80.0, 57.585_98, 40.785_57], 5.1e-6);
        close(&coarse[15..], &[0.022_935, 0.007_528, 0.002, 0.0], 5.1e-7);
        let fine = levels(100);
        close(&fine[..3], &[80.0, 75.691_19, 71.582_85], 5.1e-6);
        close(&fine[97..], &[0.003_245, 0.002_558, 0.002, 0.0], 5.1e-7);
    }
}
