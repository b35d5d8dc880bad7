//! The Gauss–Newton step onto sensors and equation: u − Jᵀ(JJᵀ + 1e-6)⁻¹ h(u), with the misfits h and their derivatives J.

use burn::tensor::Tensor;

use crate::constraint::SoftConstraint;
use crate::constraint::linearised::LinearisedSystem;
use crate::direction::krylov::conjugate_gradients;
use crate::observe::conditioning::Given;
use crate::observe::observations::Observations;
use crate::tensors::constant;

/// What keeps J Jᵀ away from zero.
const RIDGE: f64 = 1e-6;

/// The surface of fields that agree with sensors and equation.
pub(crate) struct Projection<'a> {
    observations: &'a Observations,
    equation: Option<&'a SoftConstraint>,
    iterations: usize,
}

impl<'a> Projection<'a> {
    /// Onto the sensors that are `given` and, if wanted, the equation, by so many iterations of a solver.
    pub fn new(given: Given<'a>, equation: bool, iterations: usize) -> Self {
        Self { observations: given.observations, equation: given.constraint.filter(|_| equation), iterations }
    }

    /// So many Gauss–Newton steps from `x` `[N, C, H, W]`.
    pub fn steps(&self, x: Tensor<4>, count: usize) -> Tensor<4> {
        (0..count).fold(x, |x, _| self.step(x))
    }

    /// x − Jᵀ(JJᵀ + 1e-6)⁻¹ h(x), `[N, C, H, W]`; h are the sensors' misfits in normalised units and the equation's residuals.
    pub fn step(&self, x: Tensor<4>) -> Tensor<4> {
        let [n, _, rows, cols] = x.dims();
        let sensors = self.observations.linearised(&x);
        let system = self.equation.map(|c| c.linearised_system(0..c.equations(), &x, |_| {}));
        let scales = self.observations.scales();
        let m = scales.len();
        let scales: Tensor<2> = constant(scales, [1, m], &x.device(), x.dtype());
        let e = self.equation.map_or(0, SoftConstraint::equations);
        let joined = |sensors: Tensor<2>, residual: Option<Tensor<4>>| match residual {
            Some(residual) => Tensor::cat(vec![sensors, residual.reshape([n, e * rows * cols])], 1),
            None => sensors,
        };
        let product = |d: &Tensor<4>| {
            joined(sensors.product(d) / scales.clone(), system.as_ref().map(|system| system.product(d)))
        };
        let transposed = |w: &Tensor<2>| {
            let own = sensors.transposed(&(w.clone().narrow(1, 0, m) / scales.clone()));
            match &system {
                Some(system) => {
                    let rest = w.clone().narrow(1, m, e * rows * cols).reshape([n, e, rows, cols]);
                    own + system.transposed(&rest)
                }
                None => own,
            }
        };
        let misfit = joined(self.observations.normalised_misfit(&x), system.as_ref().map(LinearisedSystem::residual));
        let apply = |w: Tensor<2>| product(&transposed(&w)) + w * RIDGE;
        let iterations = vec![self.iterations; misfit.dims()[0]];
        let weights = conjugate_gradients(misfit, &iterations, apply, |residual| residual);
        x - transposed(&weights)
    }
}
