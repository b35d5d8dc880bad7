//! The longest step that a direction may take.

use burn::tensor::Tensor;

use crate::denoiser::edm::Precondition;
use crate::tensors::per_sample;

/// The largest RMS of a step in units of c_out.
const TRUST: f64 = 3.0;

/// 1/limit² with limit = 3 c_out.
pub(crate) fn inverse_square_limit(at: &Precondition) -> f64 {
    (TRUST * at.out).powi(-2)
}

/// step · (1 + (rms/limit)⁴)^(−1/4) with limit = 3 c_out, for a step `[N, C, H, W]` of the given mean square `[N, 1, 1, 1]`.
///
/// The result is smooth in the step. It is within 1 % of the step up to a third of the limit, and within 1 % of the limit from
/// three times the limit on.
pub(crate) fn limited(step: Tensor<4>, mean_square: Tensor<4>, coefficients: &[Precondition]) -> Tensor<4> {
    let ratio = mean_square * per_sample(coefficients.iter().map(inverse_square_limit), &step);
    // The bound keeps the fourth power finite in f32.
    let ratio = ratio.clamp_max(1e18);
    step * (ratio.clone() * ratio + 1.0).sqrt().sqrt().recip()
}

/// The mean square of each sample of `x` `[N, C, H, W]` over channels and nodes, `[N, 1, 1, 1]`.
pub(crate) fn mean_square(x: &Tensor<4>) -> Tensor<4> {
    let [n, c, h, w] = x.dims();
    (x.clone() * x.clone()).reshape([n, c * h * w]).mean_dim(1).reshape([n, 1, 1, 1])
}
