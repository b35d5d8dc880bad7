//! Dual numbers: values with their change along a direction. Whatever is computed with them is differentiated on the way; an
//! adjoint computed with them gives second derivatives.

use std::sync::Arc;

use crate::algebra::{Algebra, Binary, F64Algebra, Unary, Value};
use crate::operator::Operator;
use crate::program::SQRT_FLOOR;

/// A value and its change along a direction.
pub type Dual = (Value, Value);

/// The interpreter on dual numbers of one grid.
pub struct DualAlgebra<'a>(pub &'a F64Algebra);

impl Algebra for DualAlgebra<'_> {
    type Value = Dual;

    fn number(&self, number: f64) -> Dual {
        (Value::Number(number), Value::Number(0.0))
    }

    fn array(&self, array: &Arc<[f64]>) -> Dual {
        (Value::Field(array.clone()), Value::Number(0.0))
    }

    fn unary(&self, function: Unary, (x, dx): &Dual) -> Dual {
        let unary = |function, x: &Value| self.0.unary(function, x);
        let value = unary(function, x);
        let slope = match function {
            Unary::Neg => Value::Number(-1.0),
            Unary::Sqrt => value.map(|root| 0.5 / root.max(SQRT_FLOOR)),
            Unary::Abs => unary(Unary::Sign, x),
            Unary::Sign | Unary::Heaviside => Value::Number(0.0),
            Unary::Exp => value.clone(),
            Unary::Log => self.0.binary(Binary::Div, &Value::Number(1.0), x),
            Unary::Sin => unary(Unary::Cos, x),
            Unary::Cos => unary(Unary::Neg, &unary(Unary::Sin, x)),
            Unary::Tanh => {
                let square = self.0.binary(Binary::Mul, &value, &value);
                self.0.binary(Binary::Sub, &Value::Number(1.0), &square)
            }
        };
        (value, self.0.binary(Binary::Mul, &slope, dx))
    }

    fn binary(&self, operation: Binary, (a, da): &Dual, (b, db): &Dual) -> Dual {
        let binary = |operation, a: &Value, b: &Value| self.0.binary(operation, a, b);
        let value = binary(operation, a, b);
        let change = match operation {
            Binary::Add | Binary::Sub => binary(operation, da, db),
            Binary::Mul => binary(Binary::Add, &binary(Binary::Mul, da, b), &binary(Binary::Mul, a, db)),
            Binary::Div => binary(Binary::Div, &binary(Binary::Sub, da, &binary(Binary::Mul, &value, db)), b),
        };
        (value, change)
    }

    fn power(&self, (x, dx): &Dual, exponent: f64) -> Dual {
        let slope = self.0.binary(Binary::Mul, &Value::Number(exponent), &self.0.power(x, exponent - 1.0));
        (self.0.power(x, exponent), self.0.binary(Binary::Mul, &slope, dx))
    }

    fn at_least(&self, (x, dx): &Dual, floor: f64) -> Dual {
        let above = x.map(|x| f64::from(x > floor));
        (self.0.at_least(x, floor), self.0.binary(Binary::Mul, &above, dx))
    }

    fn apply(&self, (x, dx): &Dual, operator: Operator, transposed: bool) -> Dual {
        (self.0.apply(x, operator, transposed), self.0.apply(dx, operator, transposed))
    }
}
