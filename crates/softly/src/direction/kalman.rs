//! The Kalman update that takes the equation for an observation of the base denoiser's error.
//!
//! δ = −Σ Jᵀ (J Σ Jᵀ + V)⁻¹ (R − m), with J = ∂R/∂x at the base estimate D, the covariance Σ of the error x0 − D, and the mean m
//! and covariance V of the equation's misfit R(D) + J(x0 − D). For Gaussian errors and a linear equation δ is the mean of x0 − D
//! given the equation. All fields move, each as far as it is uncertain. The paper's gradient −JᵀR is δ with multiples of the
//! identity for Σ and for the inverse; the Newton step is δ when all fields but one are certain.
//!
//! Σ, m and V are measured when training starts, at several noise levels. Σ is diagonal in a fast basis: the spectrum of the
//! base's errors. m holds errors of the equation that all data share. V holds all other errors of the equation, and its curvature
//! beyond one linear step: a variance at every node, and a spectrum of the misfit divided by its deviation there. A wrong wave
//! number, for example, spoils long waves, and short ones can still be trusted.
//!
//! Learned parameters of the constraint follow the denoising loss of D + δ, whatever γ is: a γ that is small because the equation
//! is wrong would keep it wrong. m is then zero, or nothing would be left to learn from, and V is measured again every hundred
//! steps: the equation is trusted as far as it has been learned.

use std::sync::Arc;

use burn::tensor::{DType, Tensor, TensorData};
use softly_pde::grid::AxisId;

use crate::constraint::SoftConstraint;
use crate::constraint::linearised::Linearised;
use crate::data::dataset::Dataset;
use crate::denoiser::Denoiser;
use crate::denoiser::edm::Precondition;
use crate::direction::basis::{Basis, Transform, eigenvalues};
use crate::direction::equation::Equation;
use crate::direction::krylov::{conjugate_gradients, sum};
use crate::direction::symbol::{Symbol, Waves};
use crate::direction::trust::{limited, mean_square};
use crate::direction::{BuildDirection, Direction, Needs, Site};
use crate::error::{Error, Result};
use crate::nn::parameter::{AnyParameter, Parameter, Visitor};
use crate::random::{Purpose, Stream};
use crate::statistics::{NodeMoments, log_spaced};
use crate::tensors::{field_batch, per_node, to_vec_f64};
use crate::units::Units;

/// Noise levels at which errors and misfit are measured, evenly spaced in ln σ from the first to the last.
const LEVELS: usize = 16;
const FIRST: f64 = 0.001;
const LAST: f64 = 80.0;

/// Samples whose errors are measured at every level: they pin a variance to 12 %.
const SAMPLES: usize = 128;

/// The least energy of a wave of the standardised misfit, whose mean energy is 1: the precision of single-precision nodes.
const LEAST_MISFIT: f64 = 1e-6;

/// v = δ, limited to an RMS of 3 c_out.
pub struct KalmanDirection {
    constraint: Arc<SoftConstraint>,
    equation: usize,
    slot: usize,
    /// Of the fields, one family per channel.
    basis: Basis,
    /// Of the residual.
    residual_basis: Basis,
    /// Eigenvalue of the Laplacian for every coefficient of the residual, `[H, W]`.
    eigenvalues: Vec<f64>,
    /// ln Σ, `[levels, C, H, W]`.
    errors: Parameter<4>,
    /// m, `[levels, 1, H, W]`.
    misfit_mean: Parameter<4>,
    /// The logarithm of V's diagonal, `[levels, 1, H, W]`.
    misfit_variance: Parameter<4>,
    /// The logarithm of the spectrum in the residual's basis of a misfit whose variance is one everywhere, `[levels, 1, H, W]`.
    misfit_spectrum: Parameter<4>,
    iterations: usize,
    kept: Kept,
}

/// Estimates of the base on some training data, to measure the misfit again when the constraint has changed; nothing is kept for
/// a constraint that does not change.
#[derive(Default)]
struct Kept {
    /// `[N, C, H, W]` in batches.
    clean: Vec<Tensor<4>>,
    /// Of every level the batches of estimates, in single precision.
    estimates: Vec<Vec<Tensor<4>>>,
}

impl BuildDirection for KalmanDirection {
    const NEEDS: Needs = Needs { solve_for: true, grid: true, trained_base: true };

    fn build(site: Site<'_>) -> Result<Self> {
        let config = &site.settings.kalman;
        if config.iterations == 0 {
            return Err(Error::input("denoiser.scd.kalman.iterations", "expected at least 1, found 0"));
        }
        let Equation { residual: equation, slot, .. } = Equation::of(site, "kalman")?;
        let basis = Basis::of_data(site.formulas, site.fields, site.grid)?;
        let channel = site.constraint.fields[slot].channel;
        let schemes = site.formulas.schemes_of(&site.formulas.fields[slot], site.grid)?;
        let families = basis.families(channel);
        let along = |id: AxisId| eigenvalues(families[id as usize], schemes[id as usize], site.grid.axis(id));
        let [along_rows, along_cols] = AxisId::BOTH.map(along);
        let value = |x: Option<f64>| x.unwrap_or(0.0);
        let eigenvalues =
            along_rows.iter().flat_map(|&x| along_cols.iter().map(move |&y| value(x) + value(y))).collect();
        let [c, h, w] = basis.shape();
        let of_nodes = || Parameter::fixed(vec![0.0; LEVELS * h * w], [LEVELS, 1, h, w], site.device);
        Ok(Self {
            constraint: site.constraint.clone(),
            equation,
            slot,
            residual_basis: basis.of_channel(channel),
            basis,
            eigenvalues,
            errors: Parameter::fixed(vec![0.0; LEVELS * c * h * w], [LEVELS, c, h, w], site.device),
            misfit_mean: of_nodes(),
            misfit_variance: of_nodes(),
            misfit_spectrum: of_nodes(),
            iterations: config.iterations,
            kept: Kept::default(),
        })
    }
}

impl KalmanDirection {
    /// m, ln V and the logarithm of V's spectrum at a noise level where the base makes `estimates` of `clean` fields, in batches.
    fn misfit(&self, clean: &[Tensor<4>], estimates: &[Tensor<4>]) -> [Vec<f32>; 3] {
        let shape @ [_, h, w] = self.residual_basis.shape();
        let at_clean = |(clean, estimate): (&Tensor<4>, &Tensor<4>)| {
            let linearised = self.constraint.linearised(self.equation, estimate, |_| {});
            let at_clean = linearised.residual() + linearised.product(&(clean.clone() - estimate.clone()));
            to_vec_f64(at_clean.without_autodiff())
        };
        let misfits: Vec<Vec<f64>> = clean.iter().zip(estimates).map(at_clean).collect();
        let (mut misfit, mut spectrum) = (NodeMoments::new(h * w), NodeMoments::new(h * w));
        for batch in &misfits {
            misfit.add(batch);
        }
        let mean: Vec<f64> = misfit.means().collect();
        let variance: Vec<f64> = misfit.variances().map(|variance| variance.max(1e-16)).collect();
        for mut batch in misfits {
            for sample in batch.chunks_exact_mut(h * w) {
                let moments = mean.iter().zip(&variance);
                sample.iter_mut().zip(moments).for_each(|(x, (mean, variance))| *x = (*x - mean) / variance.sqrt());
            }
            let standardised = field_batch(batch, shape, &self.errors.get().device());
            spectrum.add(&to_vec_f64(self.residual_basis.transform(&standardised).coefficients(standardised)));
        }
        let learns = self.constraint.learns();
        [
            mean.iter().map(|&mean| if learns { 0.0 } else { mean as f32 }).collect(),
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
        let [n, _, h, w] = base.dims();
        let linearised = self.constraint.linearised(self.equation, base, |_| {});
        let covariance = measured_at(sigma, &self.errors, base).exp();
        let transform = self.basis.transform(base);
        let smooth = |x: Tensor<4>| transform.fields(transform.coefficients(x) * covariance.clone());
        let mean = measured_at(sigma, &self.misfit_mean, base).reshape([n, h, w]);
        let misfit = Misfit {
            deviation: (measured_at(sigma, &self.misfit_variance, base) / 2.0).exp(),
            spectrum: measured_at(sigma, &self.misfit_spectrum, base).exp(),
            transform: self.residual_basis.transform(base),
        };
        let preconditioner = Preconditioner::new(self, &linearised, &covariance, &misfit, base);
        let apply = |y: Tensor<3>| linearised.product(&smooth(linearised.transposed(y.clone()))) + misfit.covariance(y);
        let right = mean - linearised.residual();
        let solution = conjugate_gradients(right, self.iterations, apply, |x| preconditioner.apply(x));
        smooth(linearised.transposed(solution))
    }
}

impl Direction for KalmanDirection {
    fn correction(&self, base: &Tensor<4>, sigma: &[f64], coefficients: &[Precondition]) -> Tensor<4> {
        let step = self.step(base, sigma);
        let mean_square = mean_square(&step);
        limited(step, mean_square, coefficients)
    }

    fn first_weight(&self) -> f32 {
        // δ is an estimate of the error as it stands.
        1.0
    }

    fn teaches_parameters(&self) -> bool {
        true
    }

    fn measure(&mut self, base: &dyn Denoiser, dataset: &Dataset, units: &Units) {
        let (count, len, nodes) = (dataset.train_count(), dataset.sample_len(), dataset.grid.len());
        let shape = self.basis.shape();
        let chosen: Vec<usize> = (0..count).step_by(count.div_ceil(SAMPLES).max(1)).collect();
        let device = self.errors.get().device();
        let clean = chosen.chunks(32).map(|indices| {
            let values = Dataset::batch(&dataset.train, indices, len, nodes, units);
            field_batch(values.into_iter().map(f64::from).collect(), shape, &device)
        });
        let mut kept = Kept { clean: clean.collect(), estimates: Vec::new() };
        let (mut errors, mut misfits) = (Vec::new(), Vec::new());
        for (level, sigma) in log_spaced(FIRST, LAST, LEVELS).into_iter().enumerate() {
            let estimate = |(indices, clean): (&[usize], &Tensor<4>)| {
                let noise =
                    indices.iter().flat_map(|&i| Stream::new(level as u64, Purpose::Metric, i as u64).normals(len));
                let noisy = to_vec_f64(clean.clone()).iter().zip(noise).map(|(x, z)| x + sigma * z).collect();
                base.denoise(field_batch(noisy, shape, &device), &vec![sigma; indices.len()]).without_autodiff()
            };
            let estimates: Vec<Tensor<4>> = chosen.chunks(32).zip(&kept.clean).map(estimate).collect();
            let mut energy = NodeMoments::new(len);
            for (clean, estimate) in kept.clean.iter().zip(&estimates) {
                let error = clean.clone() - estimate.clone();
                energy.add(&to_vec_f64(self.basis.transform(&error).coefficients(error)));
            }
            errors.extend(energy.mean_squares().map(|square| square.max(1e-16).ln() as f32));
            misfits.push(self.misfit(&kept.clean, &estimates));
            if self.constraint.learns() {
                kept.estimates.push(estimates.into_iter().map(|estimate| estimate.cast(DType::F32)).collect());
            }
        }
        self.errors.set(errors);
        self.set_misfit(&misfits);
        if self.constraint.learns() {
            self.kept = kept;
        }
    }

    fn update(&mut self) {
        let misfit = |estimates: &Vec<Tensor<4>>| {
            let estimates: Vec<Tensor<4>> =
                estimates.iter().map(|estimate| estimate.clone().cast(DType::F64)).collect();
            self.misfit(&self.kept.clean, &estimates)
        };
        let misfits: Vec<[Vec<f32>; 3]> = self.kept.estimates.iter().map(misfit).collect();
        if !misfits.is_empty() {
            self.set_misfit(&misfits);
        }
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

/// V = d Fᵀ S F d.
struct Misfit {
    /// d, `[N, 1, H, W]`.
    deviation: Tensor<4>,
    /// S, `[N, 1, H, W]`.
    spectrum: Tensor<4>,
    transform: Transform,
}

impl Misfit {
    /// V y, `[N, H, W]` both.
    fn covariance(&self, y: Tensor<3>) -> Tensor<3> {
        let [n, h, w] = y.dims();
        let scaled = y.reshape([n, 1, h, w]) * self.deviation.clone();
        let coefficients = self.transform.coefficients(scaled) * self.spectrum.clone();
        (self.transform.fields(coefficients) * self.deviation.clone()).reshape([n, h, w])
    }
}

/// c Fᵀ D F c ≈ J Σ Jᵀ + V, which a transform inverts. c is the coefficient of the solved field's Laplacian at every node; D is,
/// for each wave and summed over fields, the energy of c⁻¹J on waves of that length times Σ.
struct Preconditioner<'a> {
    transform: &'a Transform,
    /// 1/c, `[N, H, W]`.
    root: Tensor<3>,
    /// 1/D, `[N, 1, H, W]`.
    inverse: Tensor<4>,
}

impl<'a> Preconditioner<'a> {
    fn new(
        direction: &KalmanDirection,
        linearised: &Linearised<'_>,
        covariance: &Tensor<4>,
        misfit: &'a Misfit,
        like: &Tensor<4>,
    ) -> Self {
        let constraint = &direction.constraint;
        let grid = constraint.grid();
        let [n, _, h, w] = like.dims();
        let Symbol { size, sign, zeroth } = Symbol::of(linearised, direction.slot, grid, like);
        let root = size.recip();
        let mean = |x: Tensor<3>| (sum(x) / grid.len() as f64).reshape([n, 1, 1, 1]);
        let waves = Waves::new(grid, like);
        let eigenvalues = per_node(direction.eigenvalues.clone(), grid, like);
        let eigenvalues = eigenvalues.reshape([1, 1, h, w]);
        let of_field = |slot: usize| covariance.clone().narrow(1, constraint.fields[slot].channel, 1);
        let shifted = eigenvalues.clone() + mean(zeroth * root.clone() * sign);
        let mut energy = shifted.clone() * shifted * of_field(direction.slot);
        for slot in (0..constraint.fields.len()).filter(|&slot| slot != direction.slot) {
            let energy_of = |wave: Tensor<3>| {
                let image = linearised.product_of(slot, wave) * root.clone();
                mean(image.clone() * image)
            };
            let [cosine, sine] = waves.pair.clone().map(energy_of);
            let ones = energy_of(waves.constant.clone());
            let slope = (cosine + sine - ones.clone()).clamp_min(0.0) / waves.laplacian;
            energy = energy + (ones + slope * eigenvalues.clone()) * of_field(slot);
        }
        let deviation = misfit.deviation.clone().reshape([n, h, w]) * root.clone();
        let energy = energy + mean(deviation.clone() * deviation) * misfit.spectrum.clone();
        let floor = energy.clone().reshape([n, h * w]).mean_dim(1).reshape([n, 1, 1, 1]) * 1e-6;
        let inverse = (energy + floor).clamp_min(1e-18).recip();
        Self { transform: &misfit.transform, root, inverse }
    }

    /// `[N, H, W]` both.
    fn apply(&self, residual: Tensor<3>) -> Tensor<3> {
        let [n, h, w] = residual.dims();
        let scaled = (residual * self.root.clone()).reshape([n, 1, h, w]);
        let coefficients = self.transform.coefficients(scaled) * self.inverse.clone();
        self.transform.fields(coefficients).reshape([n, h, w]) * self.root.clone()
    }
}
