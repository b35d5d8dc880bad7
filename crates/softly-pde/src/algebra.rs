//! The few operations that a compiled formula consists of, and their interpreter on plain `f64` arrays.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::grid::Grid;
use crate::matrix::Matrix;
use crate::operator::Operator;

/// A function of one number, applied at every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unary {
    /// −x
    Neg,
    /// √x
    Sqrt,
    /// |x|
    Abs,
    /// −1, 0 or 1 as x is negative, zero or positive: the slope of |x|. Its own slope is 0 everywhere.
    Sign,
    /// 1 for x ≥ 0, else 0. Its slope is 0 everywhere.
    Heaviside,
    /// eˣ
    Exp,
    /// Natural logarithm.
    Log,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Hyperbolic tangent.
    Tanh,
}

/// Arithmetic between two numbers, applied at every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binary {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b
    Div,
}

/// An interpreter: what values are and how to compute with them.
///
/// A value is a scalar (one number, perhaps one per sample) or a field on the grid; every operation accepts any mix and
/// treats a scalar as a field that is the same everywhere. Formulas, their tangents and their adjoints are written in
/// these operations alone, so whatever differentiates them differentiates through an adjoint, too.
pub trait Algebra {
    /// A scalar or a field.
    type Value: Clone;

    /// The same number everywhere.
    fn number(&self, number: f64) -> Self::Value;

    /// A constant field, row-major `[rows, cols]`. A program hands over the same allocation every time, so an
    /// interpreter that keeps a clone may recognise it by its address.
    fn array(&self, array: &Arc<[f64]>) -> Self::Value;

    /// A function of one value.
    ///
    /// An interpreter that records √x to differentiate it has to keep its slope finite at 0, as adjoints do
    /// (see [`Program::reverse`](crate::program::Program::reverse)).
    fn unary(&self, function: Unary, x: &Self::Value) -> Self::Value;

    /// Arithmetic between two values.
    fn binary(&self, operation: Binary, a: &Self::Value, b: &Self::Value) -> Self::Value;

    /// x^exponent; programs use it only for exponents that are no small integers.
    fn power(&self, x: &Self::Value, exponent: f64) -> Self::Value;

    /// max(x, floor), with slope 0 where the floor holds.
    fn at_least(&self, x: &Self::Value, floor: f64) -> Self::Value;

    /// The operator's matrix, or its transpose, applied to `x` along the operator's axis.
    fn apply(&self, x: &Self::Value, operator: Operator, transposed: bool) -> Self::Value;
}

/// A scalar or a field of `f64`. Equal when every bit is, so equal constants can be found by hashing.
#[derive(Debug, Clone)]
pub enum Value {
    /// The same number at every node.
    Number(f64),
    /// One number per node, row-major `[rows, cols]`.
    Field(Arc<[f64]>),
}

impl Value {
    /// The number at every node of a grid of `len` nodes.
    pub fn broadcast(&self, len: usize) -> Arc<[f64]> {
        match self {
            Value::Number(number) => vec![*number; len].into(),
            Value::Field(field) => field.clone(),
        }
    }

    /// The numbers it consists of: one, or one per node.
    pub fn numbers(&self) -> &[f64] {
        match self {
            Value::Number(number) => std::slice::from_ref(number),
            Value::Field(field) => field,
        }
    }

    /// f at every node.
    pub(crate) fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        match self {
            Value::Number(number) => Value::Number(f(*number)),
            Value::Field(field) => Value::Field(field.iter().map(|&x| f(x)).collect()),
        }
    }

    /// f of two numbers at every node.
    pub(crate) fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        match (self, other) {
            (a, Value::Number(b)) => a.map(|a| f(a, *b)),
            (Value::Number(a), b) => b.map(|b| f(*a, b)),
            (Value::Field(a), Value::Field(b)) => {
                assert_eq!(a.len(), b.len(), "fields on different grids");
                Value::Field(a.iter().zip(b.iter()).map(|(&a, &b)| f(a, b)).collect())
            }
        }
    }
}

impl From<Vec<f64>> for Value {
    fn from(field: Vec<f64>) -> Self {
        Value::Field(field.into())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        let is_number = |value: &Self| matches!(value, Value::Number(_));
        let same = || self.numbers().iter().map(|x| x.to_bits()).eq(other.numbers().iter().map(|x| x.to_bits()));
        is_number(self) == is_number(other) && same()
    }
}

impl Eq for Value {}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers().iter().for_each(|x| x.to_bits().hash(state));
    }
}

/// The interpreter on `f64` arrays of one grid.
#[derive(Debug)]
pub struct F64Algebra {
    grid: Grid,
    /// Matrices are made when first used; the flag says whether transposed.
    matrices: Mutex<HashMap<(Operator, bool), Arc<Matrix>>>,
}

impl F64Algebra {
    /// The interpreter for fields on `grid`.
    pub fn new(grid: Grid) -> Self {
        Self { grid, matrices: Mutex::default() }
    }

    /// The grid that fields live on.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    fn matrix(&self, operator: Operator, transposed: bool) -> Arc<Matrix> {
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let matrix = matrices.entry((operator, transposed)).or_insert_with(|| {
            let matrix = operator.matrix(&self.grid);
            Arc::new(if transposed { matrix.transposed() } else { matrix })
        });
        matrix.clone()
    }
}

impl Algebra for F64Algebra {
    type Value = Value;

    fn number(&self, number: f64) -> Value {
        Value::Number(number)
    }

    fn array(&self, array: &Arc<[f64]>) -> Value {
        Value::Field(array.clone())
    }

    fn unary(&self, function: Unary, x: &Value) -> Value {
        match function {
            Unary::Neg => x.map(|x| -x),
            Unary::Sqrt => x.map(f64::sqrt),
            Unary::Abs => x.map(f64::abs),
            Unary::Sign => x.map(|x| if x == 0.0 { 0.0 } else { x.signum() }),
            Unary::Heaviside => x.map(|x| f64::from(x >= 0.0)),
            Unary::Exp => x.map(f64::exp),
            Unary::Log => x.map(f64::ln),
            Unary::Sin => x.map(f64::sin),
            Unary::Cos => x.map(f64::cos),
            Unary::Tanh => x.map(f64::tanh),
        }
    }

    fn binary(&self, operation: Binary, a: &Value, b: &Value) -> Value {
        match operation {
            Binary::Add => a.zip(b, |a, b| a + b),
            Binary::Sub => a.zip(b, |a, b| a - b),
            Binary::Mul => a.zip(b, |a, b| a * b),
            Binary::Div => a.zip(b, |a, b| a / b),
        }
    }

    fn power(&self, x: &Value, exponent: f64) -> Value {
        x.map(|x| x.powf(exponent))
    }

    fn at_least(&self, x: &Value, floor: f64) -> Value {
        x.map(|x| x.max(floor))
    }

    fn apply(&self, x: &Value, operator: Operator, transposed: bool) -> Value {
        let (rows, cols) = (self.grid.rows(), self.grid.cols());
        self.matrix(operator, transposed).apply(operator.axis, &x.broadcast(rows * cols), rows, cols).into()
    }
}
