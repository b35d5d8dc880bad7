//! A denoiser given measurements: at every noise level the estimate D is updated by sensors and equation in one system.
//!
//! x0 = D + U a with standard normal a, where U holds the measured modes of D's errors ([`Errors`]). Rows of the system are the sensors,
//! H(D) + H' U a = y + noise, and the equation at every node, R(D) + J U a = m + noise. D' = D + U E[a | rows] is the mean of x0 given
//! x, the sensors and the equation, exactly if all is linear and Gaussian. Else the rows are linearised again at D', so many times.
//!
//! At the highest noise D is the data's mean and U their covariance, so that the first update is kriging.
//!
//! Two samplers use the update. The *flow* is the ordinary solver with D' for a denoiser. *Jumps* draw x0 from the Gaussian that the
//! update stands for and put the noise of the next level on it: x ← x0 + σ' z. Between Gaussians both are exact. Where linearisation
//! was wrong at high noise, a jump forgets it, while the flow has to live with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::gaussian::Update;

use crate::constraint::SoftConstraint;
use crate::denoiser::Denoiser;
use crate::error::{Error, Result};
use crate::nn::parameter::{Parameters, Visitor};
use crate::observe::conditioning::{Condition, Given, Knowledge, Needs};
use crate::observe::errors::{Errors, ErrorsAt};
use crate::observe::observations::Observations;
use crate::sampler::{Observer, Sampler, Target};
use crate::tensors::{field_batch, to_vec_f64};

/// Kalman's update by sensors and equation at every noise level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Kalman {
    /// Whether the equation, if the run has one, counts besides the sensors.
    pub equation: bool,
    /// How often sensors and equation are linearised at each noise level.
    pub linearisations: usize,
    /// Whether samples jump from level to level instead of following the flow: one network call per step, and fresh noise.
    pub jumps: bool,
}

impl Default for Kalman {
    fn default() -> Self {
        Self { equation: true, linearisations: 2, jumps: false }
    }
}

impl Condition for Kalman {
    fn check(&self) -> Result<()> {
        if self.linearisations >= 1 {
            return Ok(());
        }
        Err(Error::input("conditioning.linearisations", "expected at least 1, found 0"))
    }

    fn needs(&self) -> Needs {
        Needs { errors: true, data: false }
    }

    fn sample(
        &self,
        given: Given<'_>,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let Knowledge { errors: Some(errors), .. } = given.knowledge else { unreachable!("errors were asked for") };
        let constraint = given.constraint.filter(|_| self.equation);
        let observed = Observed::new(given.denoiser, given.observations, constraint, errors, self.linearisations);
        if self.jumps {
            return observed.jumps(sampler, latents, noise, observer);
        }
        sampler.sample_from(latents, Target::plain(&observed, given.shape), noise, observer)
    }
}

/// A denoiser given measurements.
pub struct Observed<'a> {
    base: &'a dyn Denoiser,
    observations: &'a Observations,
    constraint: Option<&'a SoftConstraint>,
    errors: &'a Errors,
    linearisations: usize,
    /// By the bits of σ: what all samples share if nothing has to be linearised.
    gains: Mutex<HashMap<u64, Arc<Gain>>>,
}

/// D' = D + (y − H D) G U with G `[M, L]` and U `[L, C·H·W]`.
struct Gain {
    gain: Tensor<2>,
    modes: Tensor<2>,
}

impl<'a> Observed<'a> {
    /// `base` given `observations` and, if wanted, the equation; `errors` are the base's, and know the equation's misfit.
    pub fn new(
        base: &'a dyn Denoiser,
        observations: &'a Observations,
        constraint: Option<&'a SoftConstraint>,
        errors: &'a Errors,
        linearisations: usize,
    ) -> Self {
        Self { base, observations, constraint, errors, linearisations, gains: Mutex::new(HashMap::new()) }
    }

    /// The update at one noise level of estimates `[N, C, H, W]`, of the same shape.
    fn updated(&self, estimate: Tensor<4>, sigma: f64) -> Tensor<4> {
        let device = estimate.device().without_autodiff();
        if self.constraint.is_none() && self.observations.is_linear() {
            return self.linearly(estimate, sigma, &device);
        }
        let errors = self.errors.at(sigma, &device);
        let [n, c, h, w] = estimate.dims();
        let plain = estimate.clone().without_autodiff();
        let steps: Vec<Vec<f64>> =
            (0..n).into_par_iter().map(|i| self.step(&plain.clone().narrow(0, i, 1), &errors, None)).collect();
        estimate + field_batch(steps.concat(), [c, h, w], &device).cast(plain.dtype())
    }

    /// Samples from `latents` `[N, C, H, W]`: at every level a draw of x0 given x and the rows, then the noise of the next level.
    fn jumps(
        &self,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let levels = sampler.levels();
        let ([n, c, h, w], device) = (latents.dims(), latents.device().without_autodiff());
        let len = c * h * w;
        let mut x = latents * levels[0];
        for (i, pair) in levels.windows(2).enumerate() {
            let (sigma, next) = (pair[0], pair[1]);
            let estimate = self.base.denoise(x.clone(), &vec![sigma; n]).without_autodiff();
            if next == 0.0 {
                x = self.updated(estimate.clone(), sigma);
            } else {
                let errors = self.errors.at(sigma, &device);
                let rows = self.row_count();
                let drawn: Vec<Vec<f64>> = (0..(len + rows).div_ceil(len)).map(|_| to_vec_f64(noise())).collect();
                let step = |k: usize| {
                    let numbers: Vec<f64> = drawn.iter().flat_map(|d| d[k * len..(k + 1) * len].to_vec()).collect();
                    let (prior, others) = numbers.split_at(len);
                    let disturbance = Disturbance { prior: &prior[..errors.modes.len()], rows: &others[..rows] };
                    self.step(&estimate.clone().narrow(0, k, 1), &errors, Some(disturbance))
                };
                let steps: Vec<Vec<f64>> = (0..n).into_par_iter().map(step).collect();
                let drawn = estimate.clone() + field_batch(steps.concat(), [c, h, w], &device);
                // What the modes leave out is drawn node by node, together with the noise.
                let variance = field_batch(errors.modes.rest.clone(), [c, h, w], &device) + next * next;
                x = drawn + noise() * variance.sqrt();
            }
            observer.step(i + 1, sampler.steps, sigma, &estimate, &x);
            if observer.stopped() {
                break;
            }
        }
        x
    }

    /// Number of rows of the system.
    fn row_count(&self) -> usize {
        let equation = self.constraint.map_or(0, |constraint| constraint.equations() * constraint.grid().len());
        self.observations.len() + equation
    }

    /// Sensors that are linear: one gain serves all samples, in tensor operations, so that gradients pass.
    fn linearly(&self, estimate: Tensor<4>, sigma: f64, device: &Device) -> Tensor<4> {
        let known = self.gains.lock().unwrap_or_else(PoisonError::into_inner).get(&sigma.to_bits()).cloned();
        let gain = known.unwrap_or_else(|| {
            let made = Arc::new(self.gain(&estimate, sigma, device));
            self.gains.lock().unwrap_or_else(PoisonError::into_inner).insert(sigma.to_bits(), made.clone());
            made
        });
        let [n, c, h, w] = estimate.dims();
        let innovation = self.observations.misfit(&estimate).neg();
        let step = innovation.matmul(gain.gain.clone()).matmul(gain.modes.clone());
        estimate + step.reshape([n, c, h, w])
    }

    fn gain(&self, like: &Tensor<4>, sigma: f64, device: &Device) -> Gain {
        let errors = self.errors.at(sigma, device);
        let origin = like.clone().without_autodiff().narrow(0, 0, 1);
        let sensors = self.sensors(&origin, &errors);
        let (l, m, d) = (errors.modes.len(), self.observations.len(), errors.modes.rest.len());
        let mut gain = Update::new(&sensors.columns, l).gain();
        // Innovations come in units of the sensors' own noise.
        for (row, (sd, total)) in gain.chunks_exact_mut(l).zip(self.observations.sds().iter().zip(&sensors.noise)) {
            row.iter_mut().for_each(|v| *v *= sd / total);
        }
        let matrix = |values: Vec<f64>, shape: [usize; 2]| -> Tensor<2> {
            Tensor::from_data(TensorData::new(values, shape), (device, like.dtype()))
        };
        Gain { gain: matrix(gain, [m, l]), modes: matrix(errors.modes.vectors.clone(), [l, d]) }
    }

    /// U E[a | rows] `[C, H, W]` for one estimate `[1, C, H, W]`; with a disturbance z of the prior and η of the rows it is a draw of
    /// U a, the mean of a − z given rows that are off by η − A z.
    fn step(&self, estimate: &Tensor<4>, errors: &ErrorsAt, disturbance: Option<Disturbance<'_>>) -> Vec<f64> {
        let [_, c, h, w] = estimate.dims();
        let l = errors.modes.len();
        let mut coefficients = vec![0.0; l];
        let mut step = vec![0.0; c * h * w];
        for _ in 0..self.linearisations {
            let moved = field_batch(step, [c, h, w], &estimate.device()).cast(estimate.dtype());
            let at = estimate.clone() + moved;
            let mut rows = vec![self.sensors(&at, errors)];
            rows.extend(self.constraint.and_then(|constraint| equation(constraint, &at, errors)));
            let count: usize = rows.iter().map(|rows| rows.right.len()).sum();
            let mut columns = Vec::with_capacity(l * count);
            for k in 0..l {
                rows.iter().for_each(|rows| columns.extend_from_slice(rows.column(k)));
            }
            // The rows say what they are at `at`; seen from D the step so far belongs to the right-hand side.
            let mut right: Vec<f64> = rows.iter().flat_map(|rows| rows.right.clone()).collect();
            for (column, a) in columns.chunks_exact(count).zip(&coefficients) {
                right.iter_mut().zip(column).for_each(|(r, v)| *r += a * v);
            }
            if let Some(Disturbance { prior, rows }) = disturbance {
                right.iter_mut().zip(rows).for_each(|(r, eta)| *r += eta);
                for (column, z) in columns.chunks_exact(count).zip(prior) {
                    right.iter_mut().zip(column).for_each(|(r, v)| *r -= z * v);
                }
            }
            coefficients = Update::new(&columns, l).mean(&right);
            if let Some(Disturbance { prior, .. }) = disturbance {
                coefficients.iter_mut().zip(prior).for_each(|(a, z)| *a += z);
            }
            step = errors.modes.combined(&coefficients);
        }
        step
    }

    /// The sensors' rows at fields `[1, C, H, W]`.
    fn sensors(&self, at: &Tensor<4>, errors: &ErrorsAt) -> Rows {
        let left_out = self.observations.left_out(&errors.modes.rest);
        let noise: Vec<f64> = self.observations.sds().iter().zip(left_out).map(|(sd, rest)| sd.hypot(rest)).collect();
        let predicted = to_vec_f64(self.observations.predicted(at));
        let right = self.observations.values().iter().zip(predicted).map(|(y, p)| y - p).collect();
        let columns = to_vec_f64(self.observations.linearised(at).product(&errors.fields));
        Rows { columns, right, noise }.whitened()
    }
}

/// Standard normal numbers that make a draw of a mean.
#[derive(Clone, Copy)]
struct Disturbance<'a> {
    /// z `[L]`.
    prior: &'a [f64],
    /// η `[M]`.
    rows: &'a [f64],
}

/// Rows r = A a + noise, given column by column.
struct Rows {
    /// Aᵀ `[L, M]`.
    columns: Vec<f64>,
    /// r `[M]`.
    right: Vec<f64>,
    /// Standard deviations `[M]`.
    noise: Vec<f64>,
}

impl Rows {
    /// The same in units of the noise.
    fn whitened(mut self) -> Self {
        let divide = |values: &mut [f64]| values.iter_mut().zip(&self.noise).for_each(|(v, sd)| *v /= sd);
        self.columns.chunks_exact_mut(self.noise.len()).for_each(divide);
        divide(&mut self.right);
        self
    }

    fn column(&self, k: usize) -> &[f64] {
        &self.columns[k * self.noise.len()..(k + 1) * self.noise.len()]
    }
}

/// The equation's rows at fields `[1, C, H, W]`; none if its misfit is not known.
fn equation(constraint: &SoftConstraint, at: &Tensor<4>, errors: &ErrorsAt) -> Option<Rows> {
    let (mean, noise) = errors.misfit.as_ref()?;
    let system = constraint.linearised_system(0..constraint.equations(), at, |_| {});
    let right = mean.iter().zip(to_vec_f64(system.residual())).map(|(m, r)| m - r).collect();
    Some(Rows { columns: to_vec_f64(system.product(&errors.fields)), right, noise: noise.clone() }.whitened())
}

impl Parameters for Observed<'_> {
    fn visit(&mut self, _prefix: &str, _visit: &mut Visitor<'_>) {}
}

impl Denoiser for Observed<'_> {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let estimate = self.base.denoise(x, sigma);
        let Some(&first) = sigma.first() else { return estimate };
        if sigma.iter().all(|&s| s == first) {
            return self.updated(estimate, first);
        }
        let parts = sigma.iter().enumerate().map(|(i, &s)| self.updated(estimate.clone().narrow(0, i, 1), s));
        Tensor::cat(parts.collect(), 0)
    }
}
