//! The sensors for errors of one noise level: what all samples share if sensors are linear.
//!
//! In units of the sensors' noise, with A = H'U and B = H'C √ρ, y − H(D) has the covariance S = A Aᵀ + B Bᵀ + 1. H' is sparse: A and
//! B Bᵀ are sums over the sensors' own nodes of modes, and of waves that start at a sensor.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Tensor, TensorData};
use softly_pde::gaussian::Covariance;

use crate::observe::errors::ErrorsAt;
use crate::observe::observations::{LinearisedObservations, Observations};
use crate::tensors::{field_batch, to_vec_f64, uploaded};

/// Sensors whose waves are held at a time.
const PART: usize = 64;

/// The sensors for errors of a noise level.
pub(crate) struct Sensors {
    /// The errors.
    pub errors: Arc<ErrorsAt>,
    /// S `[M, M]`.
    pub covariance: Covariance,
    /// Aᵀ `[L, M]`.
    pub columns: Vec<f64>,
    /// The diagonal of B Bᵀ `[M]`.
    pub rest: Vec<f64>,
    /// S⁻¹ (A Uᵀ + B √ρ Cᵀ) `[M, C·H·W]`, once it was asked for.
    gain: OnceLock<Tensor<2>>,
}

impl Sensors {
    /// Sensors for `errors`, linearised at an estimate `[1, C, H, W]`.
    pub fn new(observations: &Observations, errors: Arc<ErrorsAt>, estimate: &Tensor<4>) -> Self {
        let (m, sds) = (observations.len(), observations.sds());
        let linearised = observations.linearised(estimate);
        let seen = |fields: &Tensor<4>| -> Vec<f64> {
            let seen = to_vec_f64(linearised.product(fields));
            seen.iter().zip(sds.iter().cycle()).map(|(v, sd)| v / sd).collect()
        };
        let [_, c, h, w] = errors.rest.dims();
        let columns = seen(&field_batch(errors.modes.clone(), [c, h, w], &errors.rest.device()));
        let spread = |first: usize| seen(&waves_of(&linearised, &errors, &sds, first..(first + PART).min(m)));
        let waves: Vec<f64> = (0..m).step_by(PART).flat_map(spread).collect();
        let rest = waves.iter().step_by(m + 1).copied().collect();
        let covariance = Covariance::of_rows(&columns, &waves, m);
        Self { errors, covariance, columns, rest, gain: OnceLock::new() }
    }

    /// S⁻¹ (A Uᵀ + B √ρ Cᵀ) `[M, C·H·W]`: what readings in units of their noise add to the estimate `[1, C, H, W]`.
    pub fn gain(&self, observations: &Observations, estimate: &Tensor<4>) -> Tensor<2> {
        let make = || {
            let (m, len) = (observations.len(), self.errors.rest.dims()[1..].iter().product());
            let linearised = observations.linearised(estimate);
            let mut spread = to_vec_f64(waves_of(&linearised, &self.errors, &observations.sds(), 0..m));
            for (mode, column) in self.errors.modes.chunks_exact(len).zip(self.columns.chunks_exact(m)) {
                for (row, a) in spread.chunks_exact_mut(len).zip(column) {
                    row.iter_mut().zip(mode).for_each(|(v, u)| *v += a * u);
                }
            }
            let gain = TensorData::new(self.covariance.solve(&spread), [m, len]);
            uploaded(gain, &estimate.device(), self.errors.rest.dtype())
        };
        self.gain.get_or_init(make).clone()
    }
}

/// C ρ Cᵀ H'ᵀ eᵢ of the sensors i in `part`, in units of their noise, `[part, C, H, W]`.
fn waves_of(
    linearised: &LinearisedObservations<'_>,
    errors: &ErrorsAt,
    sds: &[f64],
    part: std::ops::Range<usize>,
) -> Tensor<4> {
    let (count, m) = (part.len(), sds.len());
    let mut own = vec![0.0; count * m];
    part.enumerate().for_each(|(row, i)| own[row * m + i] = 1.0 / sds[i]);
    let like = &errors.rest;
    let own = uploaded(TensorData::new(own, [count, m]), &like.device(), like.dtype());
    errors.spread(errors.gathered(linearised.transposed(&own)))
}
