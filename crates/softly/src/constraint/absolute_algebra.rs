//! Absolute values of Jacobians: how strongly an operation can act at most, whatever the signs.

use std::sync::Arc;

use softly_pde::algebra::{Algebra, Binary, Unary};
use softly_pde::operator::Operator;

use crate::constraint::tensor_algebra::{TensorAlgebra, TensorValue};

/// The interpreter under which the tangent of a program is |J|·directions and its adjoint |J|ᵀ·seed.
///
/// Tangents and adjoints are products of slopes, passed on by negation, multiplication, derivative matrices and sums. Here
/// negation keeps the sign, products are products of absolute values and matrices have absolute entries, so that
/// the sums cannot cancel: where several paths lead from a field to the residual, |J| is bounded from above. The taped
/// values have to come from the ordinary interpreter.
pub struct AbsoluteAlgebra<'a>(pub TensorAlgebra<'a>);

impl AbsoluteAlgebra<'_> {
    fn absolute(&self, x: &TensorValue) -> TensorValue {
        match x {
            TensorValue::Number(number) => TensorValue::Number(number.abs()),
            TensorValue::Tensor(_) => self.0.unary(Unary::Abs, x),
        }
    }
}

impl Algebra for AbsoluteAlgebra<'_> {
    type Value = TensorValue;

    fn number(&self, number: f64) -> TensorValue {
        self.0.number(number)
    }

    fn array(&self, array: &Arc<[f64]>) -> TensorValue {
        self.0.array(array)
    }

    fn unary(&self, function: Unary, x: &TensorValue) -> TensorValue {
        if function == Unary::Neg { x.clone() } else { self.0.unary(function, x) }
    }

    fn binary(&self, operation: Binary, a: &TensorValue, b: &TensorValue) -> TensorValue {
        if operation == Binary::Mul {
            self.0.binary(operation, &self.absolute(a), &self.absolute(b))
        } else {
            self.0.binary(operation, a, b)
        }
    }

    fn power(&self, x: &TensorValue, exponent: f64) -> TensorValue {
        self.0.power(x, exponent)
    }

    fn at_least(&self, x: &TensorValue, floor: f64) -> TensorValue {
        self.0.at_least(x, floor)
    }

    fn apply(&self, x: &TensorValue, operator: Operator, transposed: bool) -> TensorValue {
        self.0.absolute_apply(x, operator, transposed)
    }
}
