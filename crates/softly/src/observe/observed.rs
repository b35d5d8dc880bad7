//! A denoiser given measurements: at every noise level the estimate D is updated by sensors and equation in one system.
//!
//! x0 = D + error, whose covariance at every noise level is measured ([`Errors`]). Rows of the system are the sensors,
//! H(D) + H'(x0 − D) = y + noise, and the equation at every node, R(D) + J(x0 − D) = m + noise. D' = D + E[x0 − D | rows] is the mean of x0
//! given x, the sensors and the equation, exactly if all is linear and Gaussian. Else the rows are linearised again at D', so many times.
//!
//! A state x that earlier updates have led astray has estimates with larger errors than those of clean samples with noise, and sensors
//! show it: with the covariance S of y − H(D) the sum (y − H(D))ᵀ S⁻¹ (y − H(D)) should be the number of sensors. Where it is larger,
//! errors are taken to be those of the lowest noise level at which it is not, and the equation's noise grows by the ratio of both levels: a
//! state that disagrees with the sensors may disagree with the equation as much.
//!
//! At the highest noise D is the data's mean and the errors have the data's covariance, so that the first update is kriging.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::constraint::SoftConstraint;
use crate::denoiser::Denoiser;
use crate::nn::parameter::{Parameters, Visitor};
use crate::noise::Noise;
use crate::observe::errors::Errors;
use crate::observe::observations::Observations;
use crate::observe::rows::{Disturbance, Rows};
use crate::observe::sensors::Sensors;
use crate::sampler::sigma_grid::{SigmaGrid, Spacing};
use crate::sampler::{Observer, Sampler};
use crate::tensors::{field_batch, to_vec_f64};

/// A denoiser given measurements.
pub struct Observed<'a> {
    base: &'a dyn Denoiser,
    observations: &'a Observations,
    constraint: Option<&'a SoftConstraint>,
    errors: &'a Errors,
    linearisations: usize,
    /// By the bits of σ: what all samples share if sensors are linear.
    sensors: Mutex<HashMap<u64, Arc<Sensors>>>,
}

/// An estimate `[1, C, H, W]`, the level whose errors it seems to have, and the sensors for these.
struct Fitting {
    estimate: Tensor<4>,
    level: f64,
    sensors: Arc<Sensors>,
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
        Self { base, observations, constraint, errors, linearisations, sensors: Mutex::new(HashMap::new()) }
    }

    /// Samples from `latents` `[N, C, H, W]`: at every level a draw of x0 given x and the rows, then the noise of the next level. Levels
    /// lie between the sampler's highest and lowest so that the errors' energy falls by the same share from each to the next.
    pub fn jumps(
        &self,
        sampler: &Sampler,
        latents: Tensor<4>,
        noise: &mut dyn FnMut() -> Tensor<4>,
        observer: &mut dyn Observer,
    ) -> Tensor<4> {
        let Sampler { steps, sigma_min, sigma_max, .. } = *sampler;
        let density = self.errors.density(sigma_max, sigma_min);
        let grid = SigmaGrid { steps, sigma_min, sigma_max, spacing: Spacing::Fitted, density, ..SigmaGrid::default() };
        let levels = grid.levels();
        let ([n, c, h, w], device) = (latents.dims(), latents.device().without_autodiff());
        let len = c * h * w;
        let kind = self.base.noise();
        let mut x = latents * levels[0];
        for (i, pair) in levels.windows(2).enumerate() {
            let (sigma, next) = (pair[0], pair[1]);
            let estimate = self.base.denoise(x.clone(), &vec![sigma; n]).without_autodiff();
            let fitting = self.fitting_all(&estimate, sigma);
            let steps: Vec<Vec<f64>> = if next == 0.0 {
                fitting.par_iter().map(|fitting| self.step(fitting, sigma, None)).collect()
            } else {
                // All numbers of a level are drawn before they are used: samples do not depend on their batch.
                let wanted = 2 * len + self.row_count();
                let drawn: Vec<Vec<f64>> = (0..wanted.div_ceil(len)).map(|_| to_vec_f64(noise())).collect();
                let step = |(k, fitting): (usize, &Fitting)| {
                    // Standard normals, whatever the noise is.
                    let own = k * len..(k + 1) * len;
                    let numbers: Vec<f64> = drawn.iter().flat_map(|d| kind.whiten(&d[own.clone()])).collect();
                    self.step(fitting, sigma, Some(&numbers))
                };
                fitting.par_iter().enumerate().map(step).collect()
            };
            x = estimate.clone() + field_batch(steps.concat(), [c, h, w], &device).cast(estimate.dtype());
            if next > 0.0 {
                x = x + noise() * next;
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

    /// The update at one noise level of estimates `[N, C, H, W]`, of the same shape.
    fn updated(&self, estimate: Tensor<4>, sigma: f64) -> Tensor<4> {
        let [_, c, h, w] = estimate.dims();
        let plain = estimate.clone().without_autodiff();
        let fitting = self.fitting_all(&plain, sigma);
        if self.is_curved(&fitting[0].sensors) {
            let steps: Vec<Vec<f64>> = fitting.par_iter().map(|fitting| self.step(fitting, sigma, None)).collect();
            return estimate + field_batch(steps.concat(), [c, h, w], &plain.device()).cast(plain.dtype());
        }
        // Sensors that are linear: in tensor operations, so that gradients pass.
        let of_sample = |(k, fitting): (usize, &Fitting)| {
            let own = estimate.clone().narrow(0, k, 1);
            let gain = fitting.sensors.gain(self.observations, &fitting.estimate);
            own.clone() - self.observations.misfit(&own).matmul(gain.cast(plain.dtype())).reshape([1, c, h, w])
        };
        Tensor::cat(fitting.iter().enumerate().map(of_sample).collect(), 0)
    }

    /// Whether rows depend on where they are linearised.
    fn is_curved(&self, sensors: &Sensors) -> bool {
        !self.observations.is_linear() || self.constraint.is_some() && sensors.errors.misfit.is_some()
    }

    /// E[x0 − D | rows] `[C·H·W]` for one estimate; a draw of it with standard normal `numbers`.
    fn step(&self, fitting: &Fitting, sigma: f64, numbers: Option<&[f64]>) -> Vec<f64> {
        let Fitting { estimate, level, sensors } = fitting;
        let [_, c, h, w] = estimate.dims();
        let disturbance = numbers.map(|numbers| Disturbance::of(numbers, &sensors.errors, c * h * w));
        let equation = self.constraint.map(|constraint| (constraint, level / sigma));
        let mut sensors = sensors.clone();
        let mut step = vec![0.0; c * h * w];
        for round in 0..if self.is_curved(&sensors) { self.linearisations } else { 1 } {
            let moved = field_batch(step.clone(), [c, h, w], &estimate.device()).cast(estimate.dtype());
            let at = estimate.clone() + moved;
            if round > 0 && !self.observations.is_linear() {
                sensors = Arc::new(Sensors::new(self.observations, sensors.errors.clone(), &at));
            }
            step = Rows::new(self.observations, &sensors, equation, &at).solve(&step, disturbance);
        }
        step
    }

    /// [`Self::fitting`] of estimates `[N, C, H, W]`, one after the other: what they share is made once.
    fn fitting_all(&self, estimate: &Tensor<4>, sigma: f64) -> Vec<Fitting> {
        (0..estimate.dims()[0]).map(|k| self.fitting(estimate.clone().narrow(0, k, 1), sigma)).collect()
    }

    /// The lowest level, from `sigma` on, with whose errors sensors of the estimate `[1, C, H, W]` would miss as they do.
    fn fitting(&self, estimate: Tensor<4>, sigma: f64) -> Fitting {
        let misfit = to_vec_f64(self.observations.misfit(&estimate));
        let (mut level, mut sensors) = (sigma, self.sensors_at(&estimate, sigma));
        for higher in self.errors.higher_levels(sigma) {
            let weights = sensors.covariance.solve(&misfit);
            if misfit.iter().zip(&weights).map(|(a, b)| a * b).sum::<f64>() <= misfit.len() as f64 {
                break;
            }
            (level, sensors) = (higher, self.sensors_at(&estimate, higher));
        }
        Fitting { estimate, level, sensors }
    }

    /// The sensors for errors of `level`, linearised at an estimate `[1, C, H, W]`.
    fn sensors_at(&self, estimate: &Tensor<4>, level: f64) -> Arc<Sensors> {
        let make = || {
            let errors = self.errors.at(level, &estimate.device());
            Arc::new(Sensors::new(self.observations, errors, estimate))
        };
        if !self.observations.is_linear() {
            return make();
        }
        let known = self.sensors.lock().unwrap_or_else(PoisonError::into_inner).get(&level.to_bits()).cloned();
        known.unwrap_or_else(|| {
            let made = make();
            self.sensors.lock().unwrap_or_else(PoisonError::into_inner).insert(level.to_bits(), made.clone());
            made
        })
    }
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

    fn noise(&self) -> Noise {
        self.base.noise()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::basis::Basis;
    use crate::denoiser::edm::Precondition;
    use crate::observe::errors::{LEVELS, LevelErrors};
    use crate::observe::noise::Noise as Levels;
    use crate::observe::observations::Measured;
    use crate::observe::reading::Reading;
    use crate::units::Units;
    use burn::tensor::Device;
    use softly_pde::gaussian::Modes;
    use softly_pde::grid::Grid;

    /// Estimates everything as zero.
    struct Zero;

    impl Parameters for Zero {
        fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {}
    }

    impl Denoiser for Zero {
        fn denoise(&self, x: Tensor<4>, _: &[f64]) -> Tensor<4> {
            x.zeros_like()
        }
    }

    #[test]
    fn errors_that_a_sensor_contradicts_are_those_of_the_first_level_that_explains_it() {
        let (grid, fields, units) = (Grid::point(), ["a".to_string()], Units::identity(1));
        let measured = Measured { fields: &fields, grid: &grid, units: &units, sigma_data: 2.0, constraint: None };
        let reading = |value: f64| Reading {
            source: "test".into(),
            quantity: "a".into(),
            place: Vec::new(),
            value,
            sd: Some(0.1),
        };
        // Errors of standard deviation c_out at every level.
        let modes = Modes { vectors: vec![1.0], values: vec![1.0], rest: vec![0.0] };
        let levels = vec![LevelErrors { modes, misfit: None }; LEVELS];
        let errors = Errors::new(levels, Basis::of_grid(1, &grid), 2.0);
        // One mode of one number in both precisions.
        assert_eq!(errors.bytes(10), 10.0 * 12.0);
        let size = |sigma: f64| Precondition::new(sigma, 2.0).out.powi(2);
        let sigma = 0.01;
        for value in [0.05, 1.0] {
            let observations = Observations::new(&[reading(value)], &Levels::default(), measured).unwrap();
            let observed = Observed::new(&Zero, &observations, None, &errors, 1);
            let x = field_batch(vec![0.3], [1, 1, 1], &Device::flex());
            let found = to_vec_f64(observed.denoise(x, &[sigma]))[0];
            // The level: σ itself if the reading is within its deviation, else the first one above with value² ≤ c_out² + 0.1².
            let usual = |level: &f64| value * value <= size(*level) + 0.01;
            let level = [sigma].into_iter().chain(errors.higher_levels(sigma)).find(usual).unwrap();
            assert_eq!(level > sigma, value == 1.0);
            let expected = value * size(level) / (size(level) + 0.01);
            assert!((found - expected).abs() < 1e-6 * expected, "{found} and {expected}");
        }
    }
}
