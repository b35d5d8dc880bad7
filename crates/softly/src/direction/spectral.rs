//! The gradient of log l_c seen through the data's own posterior covariance.
//!
//! Proposition 1 multiplies ∇log l_c with the covariance of x0 given x, which the paper replaces by a multiple of the
//! identity. For Gaussian data that is stationary enough to be diagonal in a fast basis it is S σ²/(S + σ²) there, S the
//! variance of each coefficient: what the data never do, the correction does not do either.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use crate::constraint::SoftConstraint;
use crate::constraint::basis::{Basis, data_spectrum};
use crate::data::dataset::Dataset;
use crate::data::split::Split;
use crate::denoiser::Denoiser;
use crate::denoiser::edm::Precondition;
use crate::direction::trust::mean_square;
use crate::direction::{BuildDirection, Direction, Needs, Site};
use crate::error::Result;
use crate::nn::parameter::{AnyParameter, Parameter, Visitor};
use crate::tensors::{in_type, per_sample};
use crate::units::Units;

/// The most samples that the spectrum is measured on: they pin a variance to about 2 %.
const SPECTRUM_SAMPLES: usize = 4096;

/// v = c_out · u / rms(u) with u = C_σ ∇log l_c(D) and C_σ = S σ²/(S + σ²) in a fast basis.
pub struct SpectralDirection {
    constraint: Arc<SoftConstraint>,
    basis: Basis,
    /// S, `[C, H, W]`.
    spectrum: Parameter<3>,
}

impl SpectralDirection {
    /// The direction of `constraint` for data whose coefficients in `basis` have the variances `spectrum` `[C, H, W]`,
    /// see [`data_spectrum`].
    pub fn new(constraint: Arc<SoftConstraint>, basis: Basis, spectrum: Vec<f32>, device: &Device) -> Self {
        let spectrum = Parameter::fixed(spectrum, basis.shape(), device);
        Self { constraint, basis, spectrum }
    }
}

impl BuildDirection for SpectralDirection {
    const NEEDS: Needs = Needs { solve_for: false, grid: true, trained_base: false };

    fn build(site: Site<'_>) -> Result<Self> {
        let basis = Basis::of_data(site.constraint, site.formulas, site.fields, site.grid)?;
        // White until it is measured or read from a file.
        let spectrum = vec![1.0; basis.shape().iter().product()];
        Ok(Self::new(site.constraint.clone(), basis, spectrum, site.device))
    }
}

impl Direction for SpectralDirection {
    fn correction_in(
        &self,
        working: DType,
        base: &Tensor<4>,
        sigma: &[f64],
        coefficients: &[Precondition],
    ) -> Tensor<4> {
        let (_, gradient) = self.constraint.norm_and_rounded_gradient(None, base, working);
        let [_, c, h, w] = gradient.dims();
        let transform = self.basis.transform(&gradient);
        let spectrum = in_type(&self.spectrum.get(), working).reshape([1, c, h, w]);
        let noise = per_sample(sigma.iter().map(|s| s * s), &spectrum);
        // Smallest first: S/(S + σ²) is at most 1, so nothing overflows at any noise.
        let covariance = spectrum.clone() / (spectrum + noise.clone()) * noise;
        let smoothed = transform.fields(transform.coefficients(gradient) * covariance);
        // Small enough never to matter, large enough that its inverse is finite in f32.
        let rms = mean_square(&smoothed).clamp_min(1e-20).sqrt();
        smoothed * (per_sample(coefficients.iter().map(|c| c.out), &rms) / rms)
    }

    fn measure(&mut self, _base: &dyn Denoiser, dataset: &Dataset, units: &Units) -> Result<()> {
        let count = dataset.train_count();
        // Evenly spaced, so that a sorted file is covered as a whole.
        let chosen: Vec<usize> = (0..count).step_by(count.div_ceil(SPECTRUM_SAMPLES).max(1)).collect();
        let batches = chosen.chunks(64).map(|indices| dataset.batch(Split::Train, indices, units));
        let batches = batches.collect::<Result<Vec<_>>>()?;
        self.spectrum.set(data_spectrum(batches.into_iter(), &self.basis));
        Ok(())
    }

    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit(&format!("{prefix}spectrum"), &mut self.spectrum);
    }
}
