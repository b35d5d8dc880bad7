//! The local step of the relaxed gradient: S = 1/(|J|ᵀ|J| 1).

use burn::tensor::Tensor;
use softly_pde::algebra::Algebra;

use crate::constraint::absolute_algebra::AbsoluteAlgebra;
use crate::constraint::tensor_algebra::{TensorAlgebra, TensorValue};
use crate::constraint::{SoftConstraint, full};

impl SoftConstraint {
    /// S = 1/(|J|ᵀ|J| 1), the step at every node and channel that `scale = "jacobi"` takes along −JᵀR; `[N, C, H, W]`.
    ///
    /// J = ∂R/∂x in normalised units. |J| 1 says how much R can change in all if every value moves by one, |J|ᵀ collects it
    /// where the value acts. By Gershgorin ‖J S^½‖ ≤ 1: a step γ S JᵀR with 0 < γ < 2 shrinks ‖R‖ wherever R is
    /// nearly linear. For K∇²p the step of p is about 1/(8K/h²)², 8/h² being the top eigenvalue of the Laplacian. It is a
    /// constant if `x` is.
    pub fn jacobi_step(&self, x: &Tensor<4>) -> Tensor<4> {
        let absolute = AbsoluteAlgebra(TensorAlgebra::new(&self.grid, &self.constants, x));
        let algebra = &absolute.0;
        let inputs = self.inputs(x).into_iter().map(|input| match input {
            // A learned parameter would bring its graph along.
            TensorValue::Tensor(tensor) if !x.is_autodiff() => TensorValue::Tensor(tensor.without_autodiff()),
            input => input,
        });
        let tapes = self.tapes(algebra, &inputs.collect::<Vec<_>>());
        let ones: Vec<_> = self.fields.iter().map(|field| Some(TensorValue::Number(field.scale.abs()))).collect();
        let seeds = self.parts.iter().zip(&tapes).map(|(part, tape)| {
            let reach = part.program.tangent(&absolute, tape, &ones).unwrap_or(TensorValue::Number(0.0));
            let reach = full(algebra.tensor(&reach), x);
            match &part.weights {
                // Once for |J| and once for |J|ᵀ.
                Some(weights) => reach * algebra.tensor(&algebra.array(weights)).powi_scalar(2),
                None => reach,
            }
        });
        let adjoints = self.adjoints(&absolute, &tapes, seeds);
        let bound = self.gather(algebra, adjoints, x).abs();
        // Where R hardly reacts a step would be huge. The other floor is for channels that R does not depend on.
        let [n, c, h, w] = bound.dims();
        let mean = bound.clone().reshape([n, c, h * w]).mean_dim(2).reshape([n, c, 1, 1]);
        bound.max_pair((mean * 1e-3).clamp_min(1e-20)).recip()
    }
}
