//! The gradient of log l_c seen through the data's own posterior covariance.
//!
//! Proposition 1 multiplies ∇log l_c with the covariance of x0 given x, which the paper replaces by a multiple of the
//! identity. For Gaussian data that is stationary enough to be diagonal in a fast basis it is S σ²/(S + σ²) there, S the
//! variance of each coefficient: what the data never do, the correction does not do either.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use softly_pde::grid::Grid;

use crate::constraint::{ConstraintConfig, Region, SoftConstraint};
use crate::dataset::Dataset;
use crate::denoiser::{Denoiser, Precondition, per_sample};
use crate::direction::Direction;
use crate::fast_basis::{Basis, Family, data_spectrum};
use crate::parameter::{AnyParameter, Parameter, Visitor};
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

/// The basis for channels `channels` on `grid` by what their fields do at the sides in `constraint`.
///
/// A field whose equations all hold in the interior gets sines of the interior and its border's nodes by themselves; else
/// its stencil decides. Channels that the constraint does not know get cosines, which assume nothing.
pub fn basis_of_data(constraint: &ConstraintConfig, channels: &[String], grid: &Grid) -> Basis {
    let interior = constraint.residuals().iter().all(|r| r.region == Region::Interior);
    let family = |name: &String| {
        if !constraint.fields.contains(name) {
            Family::Cosine
        } else if interior {
            Family::InnerSine
        } else {
            Family::of_data(constraint.stencils.get(name).copied().unwrap_or(constraint.stencil))
        }
    };
    Basis::new(channels.iter().map(family).collect(), grid.rows, grid.cols)
}

impl SpectralDirection {
    /// The direction of `constraint` for data whose coefficients in `basis` have the variances `spectrum` `[C, H, W]`,
    /// see [`data_spectrum`].
    pub fn new(constraint: Arc<SoftConstraint>, basis: Basis, spectrum: Vec<f32>, device: &Device) -> Self {
        let spectrum = Parameter::fixed(spectrum, basis.shape(), device);
        Self { constraint, basis, spectrum }
    }
}

impl Direction for SpectralDirection {
    fn at(&self, base: &Tensor<4>, sigma: &[f64], at: &[Precondition]) -> Tensor<4> {
        let (_, gradient) = self.constraint.norm_and_gradient(base);
        let [n, c, h, w] = gradient.dims();
        let transform = self.basis.transform(base);
        let spectrum = self.spectrum.get().cast(base.dtype()).reshape([1, c, h, w]);
        let noise = per_sample(sigma.iter().map(|s| s * s), base);
        // Smallest first: S/(S + σ²) is at most 1, so nothing overflows at any noise.
        let covariance = spectrum.clone() / (spectrum + noise.clone()) * noise;
        let smoothed = transform.fields(transform.coefficients(gradient) * covariance);
        let squares = smoothed.clone() * smoothed.clone();
        let mean_square = squares.reshape([n, c * h * w]).mean_dim(1).reshape([n, 1, 1, 1]);
        // Small enough never to matter, large enough that its inverse is finite in f32.
        let rms = mean_square.clamp_min(1e-20).sqrt();
        smoothed * (per_sample(at.iter().map(|a| a.out), base) / rms)
    }

    fn measure(&mut self, _base: &dyn Denoiser, dataset: &Dataset, units: &Units) {
        let (count, len, nodes) = (dataset.train_count(), dataset.sample_len(), dataset.grid.len());
        // Evenly spaced, so that a sorted file is covered as a whole.
        let chosen: Vec<usize> = (0..count).step_by(count.div_ceil(SPECTRUM_SAMPLES).max(1)).collect();
        let batches = chosen.chunks(64).map(|indices| Dataset::batch(&dataset.train, indices, len, nodes, units));
        self.spectrum.set(data_spectrum(batches, &self.basis));
    }

    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit(&format!("{prefix}spectrum"), &mut self.spectrum);
    }
}
