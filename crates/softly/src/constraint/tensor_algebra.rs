//! The interpreter of formulas on tensors: every operation is an ordinary differentiable tensor operation, so autodiff
//! passes through a formula and through its reverse walk alike.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Device, Tensor};
use softly_pde::algebra::{Algebra, Binary, Unary};
use softly_pde::grid::{AxisId, Grid};
use softly_pde::operator::Operator;

use crate::host::host;
use crate::nn::linear_map::{AlongAxis, LinearMap, mapped};
use crate::tensors::constant;

/// A number, or a batch of fields `[N, H, W]` in which sizes of 1 stand for any size.
// Boxing the handle would cost an allocation per operation to save bytes of a value that lives on the stack.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone)]
pub enum TensorValue {
    /// The same number everywhere.
    Number(f64),
    /// A batch of fields.
    Tensor(Tensor<3>),
}

impl TensorValue {
    /// The value in numbers of another type.
    pub(crate) fn cast(self, dtype: DType) -> Self {
        match self {
            Self::Tensor(tensor) if tensor.dtype() != dtype => Self::Tensor(tensor.cast(dtype)),
            value => value,
        }
    }
}

/// Constant tensors that a constraint needs again and again: matrices and arrays of its formulas.
#[derive(Default)]
pub struct Constants {
    matrices: Mutex<HashMap<(Operator, Kind, Place), Tensor<3>>>,
    /// Kernels of sparse matrices, `None` for others.
    maps: Mutex<HashMap<(Operator, Kind), Option<Map>>>,
    /// By address; the array is kept alive with its tensor so that the address stays its own.
    arrays: Mutex<HashMap<(usize, Place), Uploaded>>,
}

/// The type of a constant's numbers, and whether it is on the CPU; a constraint knows one other device.
type Place = (DType, bool);

/// What is done to an operator's matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    transposed: bool,
    /// Every entry's absolute value.
    absolute: bool,
}

/// A kernel that applies a matrix.
type Map = Arc<dyn LinearMap>;

/// An array and its tensor.
type Uploaded = (Arc<[f64]>, Tensor<3>);

/// Entries of a row, on average, up to which a matrix is sparse.
const SPARSE: usize = 8;

fn cached<K: Eq + Hash, V: Clone>(map: &Mutex<HashMap<K, V>>, key: K, make: impl FnOnce() -> V) -> V {
    map.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert_with(make).clone()
}

/// The interpreter for tensors of one type and device.
pub struct TensorAlgebra<'a> {
    grid: &'a Grid,
    constants: &'a Constants,
    dtype: DType,
    device: Device,
}

impl<'a> TensorAlgebra<'a> {
    /// The interpreter for values like `like`.
    pub fn new(grid: &'a Grid, constants: &'a Constants, like: &Tensor<4>) -> Self {
        Self { grid, constants, dtype: like.dtype(), device: like.device().without_autodiff() }
    }

    /// A value as a tensor that broadcasts against `[N, H, W]`.
    pub fn tensor(&self, value: &TensorValue) -> Tensor<3> {
        match value {
            TensorValue::Number(number) => self.constant(vec![*number], [1, 1, 1]),
            TensorValue::Tensor(tensor) => tensor.clone(),
        }
    }

    fn place(&self) -> Place {
        (self.dtype, self.device == host())
    }

    fn constant(&self, values: Vec<f64>, shape: [usize; 3]) -> Tensor<3> {
        constant(values, shape, &self.device, self.dtype)
    }

    /// The matrix as it multiplies `[N, H, W]`: from the left along the rows' axis, from the right (hence transposed) along the
    /// columns'.
    fn matrix(&self, operator: Operator, kind: Kind) -> Tensor<3> {
        cached(&self.constants.matrices, (operator, kind, self.place()), || {
            let matrix = operator.matrix(self.grid);
            let from_right = operator.axis == AxisId::Cols;
            let matrix = if kind.transposed == from_right { matrix } else { matrix.transposed() };
            let n = matrix.size();
            let entries = matrix.dense();
            let entries = if kind.absolute { entries.into_iter().map(f64::abs).collect() } else { entries };
            self.constant(entries, [1, n, n])
        })
    }

    /// The matrix as a kernel, if it is sparse.
    fn map(&self, operator: Operator, kind: Kind) -> Option<Map> {
        cached(&self.constants.maps, (operator, kind), || {
            let matrix = operator.matrix(self.grid);
            let matrix = if kind.transposed { matrix.transposed() } else { matrix };
            let entries: usize = matrix.rows.iter().map(Vec::len).sum();
            let value = |v: f64| if kind.absolute { v.abs() } else { v };
            let row = |row: Vec<(usize, f64)>| row.into_iter().map(|(j, v)| (j, value(v))).collect();
            (entries <= SPARSE * matrix.size()).then(|| -> Map {
                let width = (operator.axis == AxisId::Rows).then(|| self.grid.cols());
                Arc::new(AlongAxis::new(matrix.rows.into_iter().map(row).collect(), width))
            })
        })
    }

    fn product(&self, x: &TensorValue, operator: Operator, kind: Kind) -> TensorValue {
        let x = self.tensor(x);
        let n = x.dims()[0];
        let x = x.expand([n, self.grid.rows(), self.grid.cols()]);
        if let Some(product) = self.map(operator, kind).and_then(|map| mapped(&x, &map)) {
            return TensorValue::Tensor(product);
        }
        let matrix = self.matrix(operator, kind);
        TensorValue::Tensor(match operator.axis {
            AxisId::Rows => matrix.matmul(x),
            AxisId::Cols => x.matmul(matrix),
        })
    }

    /// [`Algebra::apply`] with the absolute values of the matrix' entries.
    pub fn absolute_apply(&self, x: &TensorValue, operator: Operator, transposed: bool) -> TensorValue {
        self.product(x, operator, Kind { transposed, absolute: true })
    }
}

impl Algebra for TensorAlgebra<'_> {
    type Value = TensorValue;

    fn number(&self, number: f64) -> TensorValue {
        TensorValue::Number(number)
    }

    fn array(&self, array: &Arc<[f64]>) -> TensorValue {
        let key = (array.as_ptr() as usize, self.place());
        let make = || (array.clone(), self.constant(array.to_vec(), [1, self.grid.rows(), self.grid.cols()]));
        TensorValue::Tensor(cached(&self.constants.arrays, key, make).1)
    }

    fn unary(&self, function: Unary, x: &TensorValue) -> TensorValue {
        let x = self.tensor(x);
        TensorValue::Tensor(match function {
            Unary::Neg => x.neg(),
            // The floor keeps the recorded slope finite at 0; in f32 it is the smallest whose root squares back.
            Unary::Sqrt => x.clamp_min(1e-24).sqrt(),
            Unary::Abs => x.abs(),
            Unary::Sign => x.detach().sign(),
            Unary::Heaviside => x.detach().greater_equal_elem(0.0).float().cast(self.dtype),
            Unary::Exp => x.exp(),
            Unary::Log => x.log(),
            Unary::Sin => x.sin(),
            Unary::Cos => x.cos(),
            Unary::Tanh => x.tanh(),
        })
    }

    fn binary(&self, operation: Binary, a: &TensorValue, b: &TensorValue) -> TensorValue {
        use TensorValue::{Number, Tensor};
        let (a, b) = match (a, b) {
            (Number(a), Number(b)) => {
                return Number(match operation {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::Div => a / b,
                });
            }
            (Tensor(a), Number(b)) => {
                let a = a.clone();
                return Tensor(match operation {
                    Binary::Add => a + *b,
                    Binary::Sub => a - *b,
                    Binary::Mul => a * *b,
                    Binary::Div => a / *b,
                });
            }
            (Number(a), Tensor(b)) => {
                let b = b.clone();
                return Tensor(match operation {
                    Binary::Add => b + *a,
                    Binary::Sub => b.neg() + *a,
                    Binary::Mul => b * *a,
                    Binary::Div => b.recip() * *a,
                });
            }
            (Tensor(a), Tensor(b)) => (a.clone(), b.clone()),
        };
        Tensor(match operation {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
        })
    }

    fn power(&self, x: &TensorValue, exponent: f64) -> TensorValue {
        let x = self.tensor(x);
        // The tensor library takes a whole exponent for a 32-bit one.
        let whole = exponent.abs() < f64::from(i32::MAX);
        TensorValue::Tensor(if whole { x.powf_scalar(exponent) } else { x.clone().powf(x.full_like(exponent)) })
    }

    fn at_least(&self, x: &TensorValue, floor: f64) -> TensorValue {
        TensorValue::Tensor(self.tensor(x).clamp_min(floor))
    }

    fn apply(&self, x: &TensorValue, operator: Operator, transposed: bool) -> TensorValue {
        self.product(x, operator, Kind { transposed, absolute: false })
    }
}
