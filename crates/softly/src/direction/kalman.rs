//! The Kalman update that takes the equations for observations of the base denoiser's error.
//!
//! δ = −Σ Jᵀ (J Σ Jᵀ + V)⁻¹ (R − m), with J = ∂R/∂x at the base estimate D, the covariance Σ of the error x0 − D, and the mean m
//! and covariance V of the equation's misfit R(D) + J(x0 − D). For Gaussian errors and a linear equation δ is the mean of x0 − D
//! given the equation. All fields move, each as far as it is uncertain. The paper's gradient −JᵀR is δ with multiples of the
//! identity for Σ and for the inverse; the Newton step is δ when all fields but one are certain.
//!
//! Several equations are one: R and J are stacked, and each equation has a mean misfit and a covariance V of its own, measured on
//! its region.
//!
//! Σ, m and V are measured when training starts, at several noise levels. Σ is diagonal in a fast basis: the spectrum of the
//! base's errors. m holds errors of the equation that all data share. V holds all other errors of the equation, and its curvature
//! beyond one linear step: a variance at every node, and a spectrum of the misfit divided by its deviation there. A wrong wave
//! number, for example, spoils long waves, and short ones can still be trusted.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::constraint::SoftConstraint;
use crate::constraint::basis::Basis;
use crate::data::dataset::{BATCH, Dataset};
use crate::denoiser::Denoiser;
use crate::denoiser::edm::Precondition;
use crate::direction::equation::check_nodes;
use crate::direction::stack::Stack;
use crate::direction::trust::{limited, mean_square};
use crate::direction::update::{Misfit, Update};
use crate::direction::{BuildDirection, Direction, Needs, Site};
use crate::error::{Error, Result};
use crate::host::{host, on_host, to_host};
use crate::nn::parameter::{AnyParameter, Parameter, Visitor};
use crate::random::{Purpose, Stream};
use crate::statistics::{NodeMoments, log_spaced};
use crate::tensors::{field_batch, to_vec_f64};
use crate::units::Units;

/// Noise levels at which errors and misfit are measured, evenly spaced in ln σ from the first to the last.
const LEVELS: usize = 16;
const FIRST: f64 = 0.001;
const LAST: f64 = 80.0;

/// Samples whose errors are measured at every level: they pin a variance to 12 %.
const SAMPLES: usize = 128;

/// The least energy of a wave of the standardised misfit, whose mean energy is at most 1: the precision of single-precision nodes.
const LEAST_MISFIT: f64 = 1e-6;

/// Noise is low up to about this share of the data's deviation. There the equation is trusted most, and most is left to solve.
const LOW_NOISE: f64 = 0.01;
/// The fewest iterations at high noise, where V leaves little to solve.
const AT_HIGH_NOISE: usize = 6;

/// v = δ, limited to an RMS of 3 c_out.
pub struct KalmanDirection {
    constraint: Arc<SoftConstraint>,
    /// All E equations of the constraint.
    stack: Stack,
    /// ln Σ, `[levels, C, H, W]`.
    errors: Parameter<4>,
    /// m, `[levels, E, H, W]`.
    misfit_mean: Parameter<4>,
    /// The logarithm of V's diagonal, `[levels, E, H, W]`; outside an equation's region it does not count.
    misfit_variance: Parameter<4>,
    /// The logarithm of the spectrum in the residual's basis of a misfit whose variance is one everywhere, `[levels, E, H, W]`.
    misfit_spectrum: Parameter<4>,
    iterations: usize,
    /// Where estimates are. What was measured is on the CPU.
    device: Device,
}

impl BuildDirection for KalmanDirection {
    const NEEDS: Needs = Needs { solve_for: false, grid: true, trained_base: true };

    fn build(site: Site<'_>) -> Result<Self> {
        let config = &site.settings.kalman;
        if config.iterations == 0 {
            return Err(Error::input("denoiser.scd.kalman.iterations", "expected at least 1, found 0"));
        }
        check_nodes(site.grid, "kalman")?;
        let basis = Basis::of_data(site.constraint, site.formulas, site.fields, site.grid)?;
        let [c, h, w] = basis.shape();
        let equations: Vec<usize> = (0..site.constraint.parts.len()).collect();
        let e = equations.len();
        let measured = |rows| Parameter::fixed(vec![0.0; LEVELS * rows * h * w], [LEVELS, rows, h, w], &host());
        Ok(Self {
            constraint: site.constraint.clone(),
            stack: Stack::new(site.constraint, site.formulas, basis, &equations, |_| true)?,
            errors: measured(c),
            misfit_mean: measured(e),
            misfit_variance: measured(e),
            misfit_spectrum: measured(e),
            iterations: config.iterations,
            device: site.device.clone().without_autodiff(),
        })
    }
}

impl KalmanDirection {
    /// m, ln V and the logarithm of V's spectrum, `[E, H, W]` each, at a noise level where the base makes `estimates` of `clean`
    /// fields, in batches.
    fn misfit(&self, clean: &[Tensor<4>], estimates: &[Tensor<4>]) -> [Vec<f32>; 3] {
        let shape = self.stack.residuals.shape();
        let size: usize = shape.iter().product();
        let at_clean = |(clean, estimate): (&Tensor<4>, &Tensor<4>)| {
            let linearised = self.constraint.linearised_system(self.stack.parts(), estimate, |_| {});
            let at_clean = linearised.residual() + linearised.product(&(clean.clone() - estimate.clone()));
            to_vec_f64(at_clean.without_autodiff())
        };
        let misfits: Vec<Vec<f64>> = clean.iter().zip(estimates).map(at_clean).collect();
        let (mut misfit, mut spectrum) = (NodeMoments::new(size), NodeMoments::new(size));
        for batch in &misfits {
            misfit.add(batch);
        }
        let mean: Vec<f64> = misfit.means().collect();
        let variance: Vec<f64> = misfit.variances().map(|variance| variance.max(1e-16)).collect();
        for mut batch in misfits {
            for sample in batch.chunks_exact_mut(size) {
                let moments = mean.iter().zip(&variance);
                sample.iter_mut().zip(moments).for_each(|(x, (mean, variance))| *x = (*x - mean) / variance.sqrt());
            }
            let standardised = field_batch(batch, shape, &host());
            spectrum.add(&to_vec_f64(self.stack.residuals.transform(&standardised).coefficients(standardised)));
        }
        [
            mean.iter().map(|&mean| mean as f32).collect(),
            variance.iter().map(|variance| variance.ln() as f32).collect(),
            spectrum.mean_squares().map(|square| square.max(LEAST_MISFIT).ln() as f32).collect(),
        ]
    }

    /// Takes over the misfit of every level.
    fn set_misfit(&mut self, levels: &[[Vec<f32>; 3]]) {
        let of = |which: usize| levels.iter().flat_map(|level| level[which].clone()).collect();
        self.misfit_mean.set(of(0));
        self.misfit_variance.set(of(1));
        self.misfit_spectrum.set(of(2));
    }

    /// δ `[N, C, H, W]`, not limited.
    ///
    /// Preconditioned conjugate gradients on (J Σ Jᵀ + V) y = m − R, then δ = Σ Jᵀ y.
    pub fn step(&self, base: &Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        self.step_in(base.dtype(), base, sigma, &vec![self.iterations; sigma.len()])
    }

    /// The same in numbers of the type `working`, by so many `iterations` of each sample.
    fn step_in(&self, working: DType, base: &Tensor<4>, sigma: &[f64], iterations: &[usize]) -> Tensor<4> {
        let linearised = self.constraint.linearised_system(self.stack.parts(), base, |_| {}).working_in(working);
        let base = linearised.fields();
        let inside = self.stack.inside(base);
        let misfit = Misfit {
            deviation: (measured_at(sigma, &self.misfit_variance, base) / 2.0).exp() * inside.clone(),
            spectrum: measured_at(sigma, &self.misfit_spectrum, base).exp(),
        };
        let covariance = measured_at(sigma, &self.errors, base).exp();
        let right = measured_at(sigma, &self.misfit_mean, base) * inside - linearised.residual();
        let probe = self.stack.probe(&linearised, base);
        Update::new(&self.stack, &probe, &linearised, covariance, misfit).step(right, iterations)
    }
}

impl KalmanDirection {
    /// Iterations at one noise level: all of them at low noise, and half as many for each factor of √10 above it.
    fn iterations_at(&self, at: Precondition) -> usize {
        // c_skip = σ_data²/(σ² + σ_data²).
        let noise = (1.0 / at.skip - 1.0).sqrt();
        let halvings = (2.0 * (noise / LOW_NOISE).log10()).round().clamp(0.0, 31.0) as u32;
        (self.iterations >> halvings).max(self.iterations.min(AT_HIGH_NOISE))
    }
}

impl Direction for KalmanDirection {
    fn correction_in(
        &self,
        working: DType,
        base: &Tensor<4>,
        sigma: &[f64],
        coefficients: &[Precondition],
    ) -> Tensor<4> {
        let iterations: Vec<usize> = coefficients.iter().map(|&at| self.iterations_at(at)).collect();
        on_host(working, base, |working, base| {
            let step = self.step_in(working, base, sigma, &iterations);
            let mean_square = mean_square(&step);
            limited(step, mean_square, coefficients)
        })
    }

    fn first_weight(&self) -> f32 {
        // δ is an estimate of the error as it stands.
        1.0
    }

    fn samples_to_measure(&self, dataset: &Dataset) -> usize {
        LEVELS * dataset.spread(SAMPLES).len()
    }

    fn measure(&mut self, base: &dyn Denoiser, dataset: &Dataset, units: &Units) -> Result<()> {
        let len = dataset.sample_len();
        let shape = self.stack.fields.shape();
        let chosen: Vec<usize> = dataset.spread(SAMPLES).collect();
        let clean = dataset.clean(&chosen, units, &host())?;
        let (mut errors, mut misfits) = (Vec::new(), Vec::new());
        for (level, sigma) in log_spaced(FIRST, LAST, LEVELS).into_iter().enumerate() {
            let estimate = |(indices, clean): (&[usize], &Tensor<4>)| {
                let noise = indices.iter().flat_map(|&i| {
                    let mut stream = Stream::new(level as u64, Purpose::Metric, i as u64);
                    base.noise().draw(&mut stream, len)
                });
                let noisy = to_vec_f64(clean.clone()).iter().zip(noise).map(|(x, z)| x + sigma * z).collect();
                let noisy = field_batch(noisy, shape, &self.device);
                let estimate = base.denoise(noisy, &vec![sigma; indices.len()]).without_autodiff();
                to_host(estimate)
            };
            let estimates: Vec<Tensor<4>> = chosen.chunks(BATCH).zip(&clean).map(estimate).collect();
            let mut energy = NodeMoments::new(len);
            for (clean, estimate) in clean.iter().zip(&estimates) {
                let error = clean.clone() - estimate.clone();
                energy.add(&to_vec_f64(self.stack.fields.transform(&error).coefficients(error)));
            }
            errors.extend(energy.mean_squares().map(|square| square.max(1e-16).ln() as f32));
            misfits.push(self.misfit(&clean, &estimates));
        }
        self.errors.set(errors);
        self.set_misfit(&misfits);
        Ok(())
    }

    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit(&format!("{prefix}errors"), &mut self.errors);
        visit(&format!("{prefix}misfit-mean"), &mut self.misfit_mean);
        visit(&format!("{prefix}misfit-variance"), &mut self.misfit_variance);
        visit(&format!("{prefix}misfit-spectrum"), &mut self.misfit_spectrum);
    }
}

/// What was measured, at every sample's noise level, `[N, C, H, W]`: linear in ln σ between levels.
fn measured_at(sigma: &[f64], measured: &Parameter<4>, like: &Tensor<4>) -> Tensor<4> {
    let [_, c, h, w] = measured.get().dims();
    let weights = sigma.iter().flat_map(|s| {
        let place = (s / FIRST).ln() / (LAST / FIRST).ln() * (LEVELS - 1) as f64;
        let place = place.clamp(0.0, (LEVELS - 1) as f64);
        (0..LEVELS).map(move |l| (1.0 - (place - l as f64).abs()).max(0.0))
    });
    let weights = TensorData::new(weights.collect::<Vec<f64>>(), [sigma.len(), LEVELS]);
    let weights: Tensor<2> = Tensor::from_data(weights, (&like.device().without_autodiff(), like.dtype()));
    let measured = measured.get().cast(like.dtype()).reshape([LEVELS, c * h * w]);
    weights.matmul(measured).reshape([sigma.len(), c, h, w])
}
