//! Multistep rules: the next state from the estimates of this step and of those before it.
//!
//! In λ = −ln σ, with noise of strength η put back on the way and κ = 1 + η, a sampler solves
//! dx = κ(D − x) dλ + √(2η) σ dW. Over a step of length h from λ, exactly:
//!
//! x' = e^{−κh} x + κ∫₀ʰ e^{−κ(h−s)} D(λ + s) ds + σ'√(1 − e^{−2ηh}) z.
//!
//! A rule puts a polynomial through known estimates in the place of D; everything else is exact.

use burn::tensor::Tensor;

use crate::sampler::solver::Step;

/// An estimate D `[N, C, H, W]` and the λ = −ln σ at which it was made.
pub type Known = (f64, Tensor<4>);

/// A step from λ to λ + h.
#[derive(Debug, Clone, Copy)]
pub struct Leap {
    /// λ = −ln σ at the start.
    pub from: f64,
    /// Length h.
    pub length: f64,
    /// Strength η of the noise that is put back.
    eta: f64,
    /// σ at the end.
    end: f64,
}

impl Leap {
    /// The leap of a step that does not end at σ = 0.
    pub fn of(step: &Step<'_>) -> Self {
        let Step { sigma, next, eta, .. } = *step;
        Self { from: -sigma.ln(), length: (sigma / next).ln(), eta, end: next }
    }

    /// The leap along the probability flow from one noise level to another, up or down.
    pub(crate) fn along_the_flow(sigma: f64, next: f64) -> Self {
        Self { from: -sigma.ln(), length: (sigma / next).ln(), eta: 0.0, end: next }
    }

    /// λ = −ln σ at the end.
    pub(crate) fn to(&self) -> f64 {
        self.from + self.length
    }

    /// e^{−κh}, the share of the state that stays.
    pub fn decay(&self) -> f64 {
        (-(1.0 + self.eta) * self.length).exp()
    }

    /// e^{−κh} x + Σ w_j D_j with the weights of the polynomial through all `known` estimates, `[N, C, H, W]`.
    pub fn mean(&self, state: Tensor<4>, known: &[Known]) -> Tensor<4> {
        let weights = self.weights(known.iter().map(|(lambda, _)| *lambda));
        let terms = weights.into_iter().zip(known);
        terms.fold(state * self.decay(), |sum, (weight, (_, estimate))| sum + estimate.clone() * weight)
    }

    /// `mean` with the step's noise σ'√(1 − e^{−2ηh}) z; nothing is drawn if η = 0.
    pub fn end(&self, mean: Tensor<4>, noise: &mut dyn FnMut() -> Tensor<4>) -> Tensor<4> {
        let variance = -(-2.0 * self.eta * self.length).exp_m1();
        if variance > 0.0 { mean + noise() * (self.end * variance.sqrt()) } else { mean }
    }

    /// w_j = κ∫₀ʰ e^{−κ(h−s)} ℓ_j(s/h) ds, ℓ_j Lagrange's polynomials of the places s/h of the given λ.
    pub(crate) fn weights(&self, lambdas: impl Iterator<Item = f64>) -> Vec<f64> {
        let places: Vec<f64> = lambdas.map(|lambda| (lambda - self.from) / self.length).collect();
        let moments = moments((1.0 + self.eta) * self.length, places.len());
        let weight = |&own: &f64| {
            // Coefficients of ℓ(u) = Π (u − uᵢ)/(own − uᵢ), lowest first.
            let mut coefficients = vec![1.0];
            for &other in places.iter().filter(|&&other| other != own) {
                let times_u = std::iter::once(0.0).chain(coefficients.iter().copied());
                let rest = coefficients.iter().copied().chain([0.0]);
                coefficients = times_u.zip(rest).map(|(c, r)| (c - other * r) / (own - other)).collect();
            }
            coefficients.iter().zip(&moments).map(|(c, m)| c * m).sum()
        };
        places.iter().map(weight).collect()
    }
}

/// m_k = z∫₀¹ e^{−z(1−u)} uᵏ du for k < `count`: m₀ = 1 − e^{−z}, m_k = 1 − (k/z) m_{k−1}.
fn moments(z: f64, count: usize) -> Vec<f64> {
    /// Below z = 1 the recursion forgets its start when it runs downwards, by z/k in every step.
    const ABOVE: usize = 24;
    if z >= 1.0 {
        let next = |before: &mut f64, k: usize| {
            *before = if k == 0 { -(-z).exp_m1() } else { 1.0 - k as f64 / z * *before };
            Some(*before)
        };
        return (0..count).scan(0.0, next).collect();
    }
    let mut moments = vec![0.0; count + ABOVE];
    for k in (1..count + ABOVE).rev() {
        moments[k - 1] = z / k as f64 * (1.0 - moments[k]);
    }
    moments.truncate(count);
    moments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_integrals_of_powers() {
        for z in [-1.4, -0.2, 1e-5, 0.01, 0.3, 0.999, 1.0, 3.0, 20.0] {
            let found = moments(z, 4);
            for (k, &found) in found.iter().enumerate() {
                // Simpson's rule.
                let (cells, f) = (20_000, |u: f64| z * (-z * (1.0 - u)).exp() * u.powi(k as i32));
                let simpson = |i: usize| if i == 0 || i == cells { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
                let sum: f64 = (0..=cells).map(|i| simpson(i) * f(i as f64 / cells as f64)).sum();
                let exact = sum / (3 * cells) as f64;
                assert!((found - exact).abs() < 1e-12 * exact.abs() + 1e-15, "m{k}({z}): {found} against {exact}");
            }
        }
    }

    #[test]
    fn weights_are_exact_for_polynomials() {
        // A negative length leads upwards in σ.
        for (eta, length) in [(0.0, 0.4), (1.0, 0.05), (0.5, 2.0), (0.0, -0.3), (0.0, -1.4)] {
            let leap = Leap { from: 0.0, length, eta, end: 1.0 };
            let places = [1.0, 0.0, -0.7, -2.1];
            let weights = leap.weights(places.iter().map(|place| place * length));
            let moments = moments((1.0 + eta) * length, 4);
            for (power, moment) in moments.into_iter().enumerate() {
                let sum: f64 = weights.iter().zip(places).map(|(w, u)| w * u.powi(power as i32)).sum();
                assert!((sum - moment).abs() < 1e-13, "power {power}: {sum} against {moment}");
            }
        }
    }
}
