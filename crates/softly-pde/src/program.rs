//! A compiled formula: a straight line of scalar operations, run forwards, tangentially and in reverse.

use std::collections::HashMap;

use crate::algebra::{Algebra, Binary, Unary, Value};
use crate::operator::Operator;

/// One operation; operands are the indices of earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Op {
    Input(usize),
    Constant(Value),
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    /// The exponent's bits, so that operations can be hashed.
    Power(usize, u64),
    Along(usize, Operator),
}

/// A residual, compiled: it maps the values of its inputs to a scalar field.
///
/// Inputs are all fields in their order, then all run-time parameters in theirs, used or not: programs compiled from
/// the same [`Symbols`](crate::formula::Symbols) take the same inputs.
#[derive(Debug, Clone)]
pub struct Program {
    ops: Vec<Op>,
    /// For each operation, whether its value changes with a field, small changes considered.
    varies: Vec<bool>,
    output: usize,
    inputs: Vec<String>,
    fields: usize,
}

/// Every intermediate value of one evaluation.
#[derive(Debug, Clone)]
pub struct Tape<V> {
    values: Vec<V>,
    output: usize,
}

impl<V> Tape<V> {
    /// The value of the formula.
    pub fn output(&self) -> &V {
        &self.values[self.output]
    }

    /// The same values in another form.
    pub fn map<W>(self, form: impl FnMut(V) -> W) -> Tape<W> {
        Tape { values: self.values.into_iter().map(form).collect(), output: self.output }
    }
}

/// How an operation passes a small change of one operand on.
enum Slope<V> {
    One,
    MinusOne,
    Times(V),
    Matrix(Operator),
}

/// √x has infinite slope at 0. Its slope is taken as ½ / max(√x, this), so that √(x² + y²) has slope 0 at the origin.
pub(crate) const SQRT_FLOOR: f64 = 1e-12;

impl Program {
    /// Names of the fields: the first inputs.
    pub fn fields(&self) -> &[String] {
        &self.inputs[..self.fields]
    }

    /// Names of the run-time parameters: the inputs after the fields.
    pub fn runtime_parameters(&self) -> &[String] {
        &self.inputs[self.fields..]
    }

    /// Whether the formula mentions the input at `slot`.
    pub fn uses(&self, slot: usize) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Input(used) if *used == slot))
    }

    /// Every operator that the formula applies at run time, each once.
    pub fn operators(&self) -> Vec<Operator> {
        let mut operators = Vec::new();
        for op in &self.ops {
            if let Op::Along(_, operator) = op
                && !operators.contains(operator)
            {
                operators.push(*operator);
            }
        }
        operators
    }

    /// Number of operations, inputs and constants included.
    pub fn operations(&self) -> usize {
        self.ops.len()
    }

    /// The summands of the outermost sum with their signs, each a program of its own: `laplacian(u)` has one per axis.
    pub fn summands(&self) -> Vec<(f64, Program)> {
        let mut found = Vec::new();
        let mut waiting = vec![(1.0, self.output)];
        while let Some((sign, index)) = waiting.pop() {
            match self.ops[index] {
                // The last one pushed is taken first, so summands come in their order.
                Op::Binary(Binary::Add, a, b) => waiting.extend([(sign, b), (sign, a)]),
                Op::Binary(Binary::Sub, a, b) => waiting.extend([(-sign, b), (sign, a)]),
                Op::Unary(Unary::Neg, x) => waiting.push((-sign, x)),
                _ => found.push((sign, Program { output: index, ..self.clone() })),
            }
        }
        found
    }

    /// The formula's value R(inputs), with everything on the way.
    ///
    /// # Panics
    /// Unless there is one value per field and run-time parameter.
    pub fn forward<A: Algebra>(&self, algebra: &A, inputs: &[A::Value]) -> Tape<A::Value> {
        assert_eq!(inputs.len(), self.inputs.len(), "one value for each of {:?}", self.inputs);
        let mut values: Vec<A::Value> = Vec::with_capacity(self.ops.len());
        for op in &self.ops {
            values.push(match op {
                Op::Input(slot) => inputs[*slot].clone(),
                Op::Constant(Value::Number(number)) => algebra.number(*number),
                Op::Constant(Value::Field(array)) => algebra.array(array),
                Op::Unary(function, x) => algebra.unary(*function, &values[*x]),
                Op::Binary(operation, a, b) => algebra.binary(*operation, &values[*a], &values[*b]),
                Op::Power(x, exponent) => algebra.power(&values[*x], f64::from_bits(*exponent)),
                Op::Along(x, operator) => algebra.apply(&values[*x], *operator, false),
            });
        }
        Tape { values, output: self.output }
    }

    /// Jᵀ·seed for every field, J being the derivative of the formula by the fields at the taped point; `None` for a
    /// field that the formula does not depend on.
    ///
    /// Where √x is 0 its slope is taken as 0.5e12 instead of infinite, where |x| is 0 its slope is 0.
    pub fn reverse<A: Algebra>(&self, algebra: &A, tape: &Tape<A::Value>, seed: A::Value) -> Vec<Option<A::Value>> {
        let mut result = vec![None; self.fields];
        let mut adjoints = vec![None; self.ops.len()];
        if self.varies[self.output] {
            adjoints[self.output] = Some(seed);
        }
        for index in (0..self.ops.len()).rev() {
            let Some(adjoint) = adjoints[index].take() else { continue };
            if let Op::Input(slot) = self.ops[index] {
                result[slot] = Some(adjoint);
                continue;
            }
            for (operand, slope) in self.slopes(algebra, tape, index) {
                let change = pass(algebra, &slope, &adjoint, true);
                accumulate(algebra, &mut adjoints[operand], change);
            }
        }
        result
    }

    /// J·directions, the change of the formula's value as every field moves along its direction; `None` in
    /// `directions` is a field that stands still, `None` as a result is no change at all.
    ///
    /// # Panics
    /// Unless there is one direction per field.
    pub fn tangent<A: Algebra>(
        &self,
        algebra: &A,
        tape: &Tape<A::Value>,
        directions: &[Option<A::Value>],
    ) -> Option<A::Value> {
        assert_eq!(directions.len(), self.fields, "one direction for each of {:?}", self.fields());
        let mut tangents: Vec<Option<A::Value>> = vec![None; self.ops.len()];
        for index in 0..self.ops.len() {
            if let Op::Input(slot) = self.ops[index] {
                tangents[index] = directions.get(slot).cloned().flatten();
                continue;
            }
            let mut sum = None;
            for (operand, slope) in self.slopes(algebra, tape, index) {
                if let Some(tangent) = &tangents[operand] {
                    accumulate(algebra, &mut sum, pass(algebra, &slope, tangent, false));
                }
            }
            tangents[index] = sum;
        }
        tangents.swap_remove(self.output)
    }

    /// The slope of an operation by each of its operands that varies. Tangents and adjoints know nothing else about the
    /// operations.
    fn slopes<A: Algebra>(&self, algebra: &A, tape: &Tape<A::Value>, index: usize) -> Vec<(usize, Slope<A::Value>)> {
        let value = |i: usize| &tape.values[i];
        let number = |number| algebra.number(number);
        let mul = |a: &A::Value, b: &A::Value| algebra.binary(Binary::Mul, a, b);
        let div = |a: &A::Value, b: &A::Value| algebra.binary(Binary::Div, a, b);
        let neg = |a: &A::Value| algebra.unary(Unary::Neg, a);
        let own = value(index);
        let mut slopes = Vec::with_capacity(2);
        if !self.varies[index] {
            return slopes;
        }
        let mut push = |operand: usize, slope: &dyn Fn() -> Slope<A::Value>| {
            if self.varies[operand] {
                slopes.push((operand, slope()));
            }
        };
        match self.ops[index] {
            Op::Input(_) | Op::Constant(_) => {}
            Op::Unary(function, x) => push(x, &|| match function {
                Unary::Neg => Slope::MinusOne,
                Unary::Sqrt => Slope::Times(div(&number(0.5), &algebra.at_least(own, SQRT_FLOOR))),
                Unary::Abs => Slope::Times(algebra.unary(Unary::Sign, value(x))),
                Unary::Sign | Unary::Heaviside => Slope::Times(number(0.0)),
                Unary::Exp => Slope::Times(own.clone()),
                Unary::Log => Slope::Times(div(&number(1.0), value(x))),
                Unary::Sin => Slope::Times(algebra.unary(Unary::Cos, value(x))),
                Unary::Cos => Slope::Times(neg(&algebra.unary(Unary::Sin, value(x)))),
                Unary::Tanh => Slope::Times(algebra.binary(Binary::Sub, &number(1.0), &mul(own, own))),
            }),
            Op::Binary(Binary::Add, a, b) => {
                push(a, &|| Slope::One);
                push(b, &|| Slope::One);
            }
            Op::Binary(Binary::Sub, a, b) => {
                push(a, &|| Slope::One);
                push(b, &|| Slope::MinusOne);
            }
            Op::Binary(Binary::Mul, a, b) => {
                push(a, &|| Slope::Times(value(b).clone()));
                push(b, &|| Slope::Times(value(a).clone()));
            }
            Op::Binary(Binary::Div, a, b) => {
                push(a, &|| Slope::Times(div(&number(1.0), value(b))));
                push(b, &|| Slope::Times(neg(&div(own, value(b)))));
            }
            Op::Power(x, exponent) => push(x, &|| {
                let exponent = f64::from_bits(exponent);
                Slope::Times(mul(&number(exponent), &algebra.power(value(x), exponent - 1.0)))
            }),
            Op::Along(x, operator) => push(x, &|| Slope::Matrix(operator)),
        }
        slopes
    }
}

/// A change passed through a slope: from operand to result, or `transposed` from result to operand.
fn pass<A: Algebra>(algebra: &A, slope: &Slope<A::Value>, change: &A::Value, transposed: bool) -> A::Value {
    match slope {
        Slope::One => change.clone(),
        Slope::MinusOne => algebra.unary(Unary::Neg, change),
        Slope::Times(factor) => algebra.binary(Binary::Mul, change, factor),
        Slope::Matrix(operator) => algebra.apply(change, *operator, transposed),
    }
}

fn accumulate<A: Algebra>(algebra: &A, sum: &mut Option<A::Value>, change: A::Value) {
    *sum = Some(match sum.take() {
        Some(sum) => algebra.binary(Binary::Add, &sum, &change),
        None => change,
    });
}

/// Collects operations; an operation that is already there is not added again.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    ops: Vec<Op>,
    varies: Vec<bool>,
    known: HashMap<Op, usize>,
}

impl Builder {
    /// An input, and whether it is a field.
    pub fn input(&mut self, slot: usize, is_field: bool) -> usize {
        self.push(Op::Input(slot), is_field)
    }

    pub fn constant(&mut self, value: Value) -> usize {
        self.push(Op::Constant(value), false)
    }

    pub fn unary(&mut self, function: Unary, x: usize) -> usize {
        // Steps have no slope, so nothing before them counts.
        let is_step = matches!(function, Unary::Sign | Unary::Heaviside);
        self.push(Op::Unary(function, x), self.varies[x] && !is_step)
    }

    pub fn binary(&mut self, operation: Binary, a: usize, b: usize) -> usize {
        // Sums and products round the same either way round, so one order is enough.
        let commutes = matches!(operation, Binary::Add | Binary::Mul);
        let (a, b) = if commutes { (a.min(b), a.max(b)) } else { (a, b) };
        self.push(Op::Binary(operation, a, b), self.varies[a] || self.varies[b])
    }

    pub fn power(&mut self, x: usize, exponent: f64) -> usize {
        self.push(Op::Power(x, exponent.to_bits()), self.varies[x])
    }

    pub fn along(&mut self, x: usize, operator: Operator) -> usize {
        self.push(Op::Along(x, operator), self.varies[x])
    }

    fn push(&mut self, op: Op, varies: bool) -> usize {
        let Self { ops, varies: all_varies, known } = self;
        *known.entry(op).or_insert_with_key(|op| {
            ops.push(op.clone());
            all_varies.push(varies);
            ops.len() - 1
        })
    }

    /// The program that ends in operation `output`; the first `fields` of its inputs are fields.
    pub fn finish(self, output: usize, inputs: Vec<String>, fields: usize) -> Program {
        Program { ops: self.ops, varies: self.varies, output, inputs, fields }
    }
}
