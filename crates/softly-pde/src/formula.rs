//! Formulas: text such as `K*laplacian(p) + dot(grad(K), grad(p)) + f`, typed, folded and compiled.
//!
//! A formula is literal about its discretisation: `laplacian(p)` is `dxx(p) + dyy(p)` with second-derivative matrices,
//! `div(grad(p))` applies first-derivative matrices twice. What does not depend on a field or a run-time parameter is
//! computed once, when the formula is compiled.
//!
//! ```
//! use softly_pde::algebra::{F64Algebra, Value};
//! use softly_pde::derivative::Scheme;
//! use softly_pde::formula::{Symbols, compile};
//! use softly_pde::grid::Grid;
//!
//! let grid = Grid::unit(8, 8);
//! let symbols = Symbols { fields: vec!["u".into()], ..Symbols::new(grid.clone(), Scheme::OneSided2) };
//! let residual = compile("laplacian(u) - 4", &symbols)?;
//!
//! let u: Vec<f64> = (0..64).map(|i| ((i / 8) as f64 / 7.0).powi(2) + ((i % 8) as f64 / 7.0).powi(2)).collect();
//! let algebra = F64Algebra::new(grid);
//! let tape = residual.forward(&algebra, &[u.into()]);
//! assert!(tape.output().numbers().iter().all(|r| r.abs() < 1e-12));
//! let gradient = residual.reverse(&algebra, &tape, Value::Number(1.0));
//! assert!(gradient[0].is_some());
//! # Ok::<(), softly_pde::formula_error::FormulaError>(())
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::algebra::{Algebra, Binary, Derivative, F64Algebra, Unary, Value};
use crate::derivative::{Order, Scheme};
use crate::formula_error::{Fault, FormulaError, Problem};
use crate::grid::{Axis, Grid};
use crate::lexer::{Choice, Operator};
use crate::nearest::nearest;
use crate::parser::{Item, ItemKind, parse};
use crate::program::{Builder, Program};

/// What the names in a formula mean.
///
/// A name is a field, else a parameter, else one of the constants `x`, `y` (coordinates) and `pi`.
#[derive(Debug, Clone)]
pub struct Symbols {
    /// The grid that fields live on.
    pub grid: Grid,
    /// Names of the fields, in the order of a program's inputs.
    pub fields: Vec<String>,
    /// How derivatives are taken.
    pub scheme: Scheme,
    /// How they are taken instead where the argument is just this field (or parameter), as in `dx(p)` or `grad(p)`.
    pub field_schemes: BTreeMap<String, Scheme>,
    /// Names with a meaning of their own.
    pub parameters: BTreeMap<String, Parameter>,
}

/// The meaning of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    /// The same number everywhere.
    Number(f64),
    /// A number for every node, row-major `[rows, cols]`.
    Array(Arc<[f64]>),
    /// A scalar or field that is handed over at every evaluation.
    Runtime,
}

impl Symbols {
    /// Coordinates and numbers on `grid`: no fields, no parameters.
    pub fn new(grid: Grid, scheme: Scheme) -> Self {
        Self { grid, fields: Vec::new(), scheme, field_schemes: BTreeMap::new(), parameters: BTreeMap::new() }
    }

    /// Names of the run-time parameters, in the order of a program's inputs after the fields.
    pub fn runtime_parameters(&self) -> impl Iterator<Item = &str> {
        let runtime = self.parameters.iter().filter(|(_, parameter)| **parameter == Parameter::Runtime);
        runtime.map(|(name, _)| name.as_str())
    }
}

/// Compiles the residual `text`.
pub fn compile(text: &str, symbols: &Symbols) -> Result<Program, FormulaError> {
    let (mut compiler, output) = compiled(text, symbols)?;
    let output = compiler.operation(output);
    let names = symbols.fields.iter().map(String::as_str).chain(symbols.runtime_parameters());
    Ok(compiler.builder.finish(output, names.map(str::to_owned).collect(), symbols.fields.len()))
}

/// Evaluates a formula of coordinates, numbers and constant parameters at every node: row-major `[rows, cols]`.
pub fn evaluate_constant(text: &str, symbols: &Symbols) -> Result<Vec<f64>, FormulaError> {
    match compiled(text, symbols)? {
        (_, Scalar::Constant(value)) => Ok(value.broadcast(symbols.grid.len()).to_vec()),
        (compiler, Scalar::Operation(_)) => {
            let span = compiler.first_variable.unwrap_or(0..text.len());
            let problem = Problem::NotConstant(text[span.clone()].to_owned());
            Err(FormulaError { formula: text.to_owned(), span, problem })
        }
    }
}

fn compiled<'a>(text: &'a str, symbols: &'a Symbols) -> Result<(Compiler<'a>, Scalar), FormulaError> {
    let items = parse(text)?;
    let mut compiler = Compiler {
        text,
        symbols,
        algebra: F64Algebra::new(symbols.grid.clone()),
        builder: Builder::default(),
        first_variable: None,
    };
    let output = compiler.run(&items);
    let output = output.map_err(|(span, problem)| FormulaError { formula: text.to_owned(), span, problem })?;
    Ok((compiler, output))
}

/// A function of the language.
#[derive(Debug, Clone, Copy)]
enum Function {
    Pointwise(Unary),
    Choice(Choice),
    Partial(Order, Axis),
    Laplacian,
    Grad,
    Div,
    Dot,
}

const FUNCTIONS: [(&str, Function); 17] = [
    ("sqrt", Function::Pointwise(Unary::Sqrt)),
    ("abs", Function::Pointwise(Unary::Abs)),
    ("exp", Function::Pointwise(Unary::Exp)),
    ("log", Function::Pointwise(Unary::Log)),
    ("sin", Function::Pointwise(Unary::Sin)),
    ("cos", Function::Pointwise(Unary::Cos)),
    ("tanh", Function::Pointwise(Unary::Tanh)),
    ("min", Function::Choice(Choice::Min)),
    ("max", Function::Choice(Choice::Max)),
    ("dx", Function::Partial(Order::First, Axis::X)),
    ("dy", Function::Partial(Order::First, Axis::Y)),
    ("dxx", Function::Partial(Order::Second, Axis::X)),
    ("dyy", Function::Partial(Order::Second, Axis::Y)),
    ("laplacian", Function::Laplacian),
    ("grad", Function::Grad),
    ("div", Function::Div),
    ("dot", Function::Dot),
];

const CONSTANTS: [&str; 3] = ["x", "y", "pi"];

/// Integer exponents up to this size become products: exact for negative bases, and smooth at 0.
const MAX_PRODUCT_EXPONENT: i32 = 64;

/// A scalar that is known already, or the operation that computes it.
#[derive(Debug, Clone)]
enum Scalar {
    Constant(Value),
    Operation(usize),
}

#[derive(Debug, Clone)]
enum Typed {
    Scalar(Scalar),
    Vector([Scalar; 2]),
}

impl Typed {
    fn type_name(&self) -> &'static str {
        match self {
            Typed::Scalar(_) => "scalar",
            Typed::Vector(_) => "vector",
        }
    }
}

struct Compiler<'a> {
    text: &'a str,
    symbols: &'a Symbols,
    algebra: F64Algebra,
    builder: Builder,
    /// Where a field or run-time parameter is first named.
    first_variable: Option<Range<usize>>,
}

impl Compiler<'_> {
    /// Runs the postfix items on a stack of typed values.
    fn run(&mut self, items: &[Item]) -> Result<Scalar, Fault> {
        const WELL_FORMED: &str = "the parser puts operands before operators";
        let mut stack: Vec<Typed> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let typed = match &item.kind {
                ItemKind::Number(number) => Typed::Scalar(Scalar::Constant(Value::Number(*number))),
                ItemKind::Name => Typed::Scalar(self.name(&item.span)?),
                ItemKind::Negate => match stack.pop().expect(WELL_FORMED) {
                    Typed::Scalar(x) => Typed::Scalar(self.unary(Unary::Neg, x)),
                    Typed::Vector(x) => Typed::Vector(x.map(|x| self.unary(Unary::Neg, x))),
                },
                ItemKind::Operator(operator) => {
                    let right = stack.pop().expect(WELL_FORMED);
                    let left = stack.pop().expect(WELL_FORMED);
                    self.operator(*operator, left, right).map_err(|problem| (item.span.clone(), problem))?
                }
                ItemKind::Call(spans) => {
                    let arguments = stack.split_off(stack.len() - spans.len());
                    // In postfix, an argument that is just a name stands right before the call.
                    let scheme = match items[..index].last() {
                        Some(Item { kind: ItemKind::Name, span }) => {
                            self.symbols.field_schemes.get(&self.text[span.clone()])
                        }
                        _ => None,
                    };
                    let scheme = scheme.copied().unwrap_or(self.symbols.scheme);
                    self.call(&item.span, &arguments, spans, scheme)?
                }
            };
            check_finite(&typed).map_err(|problem| (item.span.clone(), problem))?;
            stack.push(typed);
        }
        match stack.pop().expect(WELL_FORMED) {
            Typed::Scalar(output) => Ok(output),
            Typed::Vector(_) => Err((0..self.text.len(), wrong_type("a formula", "scalar", "vector"))),
        }
    }

    fn name(&mut self, span: &Range<usize>) -> Result<Scalar, Fault> {
        let Symbols { grid, fields, parameters, .. } = self.symbols;
        let name = &self.text[span.clone()];
        let fault = |problem| Err((span.clone(), problem));
        if let Some(slot) = fields.iter().position(|field| field == name) {
            self.first_variable.get_or_insert(span.clone());
            return Ok(Scalar::Operation(self.builder.input(slot, true)));
        }
        Ok(Scalar::Constant(match (parameters.get(name), name) {
            (Some(Parameter::Runtime), _) => {
                let slot = self.symbols.runtime_parameters().position(|runtime| runtime == name);
                self.first_variable.get_or_insert(span.clone());
                let slot = fields.len() + slot.expect("the parameter is one of the run-time parameters");
                return Ok(Scalar::Operation(self.builder.input(slot, false)));
            }
            (Some(Parameter::Number(number)), _) => Value::Number(*number),
            (Some(Parameter::Array(array)), _) if array.len() == grid.len() => Value::Field(array.clone()),
            (Some(Parameter::Array(array)), _) => {
                let (name, found) = (name.to_owned(), array.len());
                return fault(Problem::ParameterSize { name, found, rows: grid.rows, cols: grid.cols });
            }
            (None, "x") => grid.coordinate(Axis::X).into(),
            (None, "y") => grid.coordinate(Axis::Y).into(),
            (None, "pi") => Value::Number(std::f64::consts::PI),
            (None, _) if FUNCTIONS.iter().any(|(function, _)| *function == name) => {
                return fault(Problem::FunctionWithoutArguments(name.to_owned()));
            }
            (None, _) => return fault(self.unknown(name)),
        }))
    }

    /// Every name that can stand for a value.
    fn value_names(&self) -> impl Iterator<Item = &str> {
        let Symbols { fields, parameters, .. } = self.symbols;
        // A field or parameter may take the name of a constant.
        let hidden = |name: &str| fields.iter().any(|field| field == name) || parameters.contains_key(name);
        let constants = CONSTANTS.into_iter().filter(move |name| !hidden(name));
        fields.iter().chain(parameters.keys()).map(String::as_str).chain(constants)
    }

    fn unknown(&self, name: &str) -> Problem {
        let functions = FUNCTIONS.iter().map(|(function, _)| *function);
        let nearest = nearest(name, self.value_names().chain(functions.clone())).map(str::to_owned);
        let known = self.value_names().chain(functions).map(str::to_owned).collect();
        Problem::UnknownName { name: name.to_owned(), nearest, known }
    }

    fn operator(&mut self, operator: Operator, left: Typed, right: Typed) -> Result<Typed, Problem> {
        let types = (left.type_name(), right.type_name());
        Ok(match (operator, left, right) {
            (Operator::Arithmetic(operation), Typed::Scalar(a), Typed::Scalar(b)) => {
                Typed::Scalar(self.binary(operation, a, b))
            }
            (Operator::Arithmetic(operation @ (Binary::Add | Binary::Sub)), Typed::Vector(a), Typed::Vector(b)) => {
                let ([ax, ay], [bx, by]) = (a, b);
                Typed::Vector([self.binary(operation, ax, bx), self.binary(operation, ay, by)])
            }
            (Operator::Arithmetic(Binary::Mul), Typed::Scalar(s), Typed::Vector(v)) => {
                Typed::Vector(v.map(|v| self.binary(Binary::Mul, s.clone(), v)))
            }
            (Operator::Arithmetic(operation @ (Binary::Mul | Binary::Div)), Typed::Vector(v), Typed::Scalar(s)) => {
                Typed::Vector(v.map(|v| self.binary(operation, v, s.clone())))
            }
            (Operator::Power, Typed::Scalar(base), Typed::Scalar(exponent)) => {
                Typed::Scalar(self.power(base, &exponent)?)
            }
            (Operator::Choice(choice), Typed::Scalar(a), Typed::Scalar(b)) => {
                Typed::Scalar(choose(choice, operator.symbol(), &a, &b)?)
            }
            _ => return Err(Problem::WrongOperands { operator: operator.symbol(), left: types.0, right: types.1 }),
        })
    }

    fn call(
        &mut self,
        name_span: &Range<usize>,
        arguments: &[Typed],
        spans: &[Range<usize>],
        scheme: Scheme,
    ) -> Result<Typed, Fault> {
        let name = &self.text[name_span.clone()];
        let fault = |problem| (name_span.clone(), problem);
        let Some(&(name, function)) = FUNCTIONS.iter().find(|(function, _)| *function == name) else {
            let is_value = self.value_names().any(|value| value == name);
            return Err(fault(if is_value { Problem::NotAFunction(name.to_owned()) } else { self.unknown(name) }));
        };
        let (argument_type, expected) = match function {
            Function::Pointwise(_) | Function::Partial(..) | Function::Laplacian | Function::Grad => ("scalar", 1),
            Function::Choice(_) => ("scalar", 2),
            Function::Div => ("vector", 1),
            Function::Dot => ("vector", 2),
        };
        if arguments.len() != expected {
            return Err(fault(Problem::ArgumentCount { function: name, expected, found: arguments.len() }));
        }
        for (argument, span) in arguments.iter().zip(spans) {
            if argument.type_name() != argument_type {
                let problem = wrong_type(&format!("the argument of `{name}`"), argument_type, argument.type_name());
                return Err((span.clone(), problem));
            }
        }
        let mut derivative = |x: &Scalar, order, axis| self.derivative(x, Derivative { scheme, order, axis }, name);
        Ok(match (function, arguments) {
            (Function::Partial(order, axis), [Typed::Scalar(x)]) => {
                Typed::Scalar(derivative(x, order, axis).map_err(fault)?)
            }
            (Function::Grad, [Typed::Scalar(x)]) => Typed::Vector([
                derivative(x, Order::First, Axis::X).map_err(fault)?,
                derivative(x, Order::First, Axis::Y).map_err(fault)?,
            ]),
            (Function::Laplacian, [Typed::Scalar(x)]) => {
                let along_x = derivative(x, Order::Second, Axis::X).map_err(fault)?;
                let along_y = derivative(x, Order::Second, Axis::Y).map_err(fault)?;
                Typed::Scalar(self.binary(Binary::Add, along_x, along_y))
            }
            (Function::Div, [Typed::Vector([x, y])]) => {
                let along_x = derivative(x, Order::First, Axis::X).map_err(fault)?;
                let along_y = derivative(y, Order::First, Axis::Y).map_err(fault)?;
                Typed::Scalar(self.binary(Binary::Add, along_x, along_y))
            }
            (Function::Dot, [Typed::Vector([ax, ay]), Typed::Vector([bx, by])]) => {
                let along_x = self.binary(Binary::Mul, ax.clone(), bx.clone());
                let along_y = self.binary(Binary::Mul, ay.clone(), by.clone());
                Typed::Scalar(self.binary(Binary::Add, along_x, along_y))
            }
            (Function::Choice(choice), [Typed::Scalar(a), Typed::Scalar(b)]) => {
                Typed::Scalar(choose(choice, name, a, b).map_err(fault)?)
            }
            (Function::Pointwise(function), [Typed::Scalar(x)]) => Typed::Scalar(self.unary(function, x.clone())),
            _ => unreachable!("number and types of the arguments were checked"),
        })
    }

    /// The operation that computes `scalar`.
    fn operation(&mut self, scalar: Scalar) -> usize {
        match scalar {
            Scalar::Constant(value) => self.builder.constant(value),
            Scalar::Operation(operation) => operation,
        }
    }

    fn unary(&mut self, function: Unary, x: Scalar) -> Scalar {
        match x {
            Scalar::Constant(x) => Scalar::Constant(self.algebra.unary(function, &x)),
            Scalar::Operation(x) => Scalar::Operation(self.builder.unary(function, x)),
        }
    }

    fn binary(&mut self, operation: Binary, a: Scalar, b: Scalar) -> Scalar {
        if let (Scalar::Constant(a), Scalar::Constant(b)) = (&a, &b) {
            return Scalar::Constant(self.algebra.binary(operation, a, b));
        }
        let (a, b) = (self.operation(a), self.operation(b));
        Scalar::Operation(self.builder.binary(operation, a, b))
    }

    fn power(&mut self, base: Scalar, exponent: &Scalar) -> Result<Scalar, Problem> {
        match (base, exponent) {
            (Scalar::Constant(base), Scalar::Constant(exponent)) => Ok(Scalar::Constant(base.zip(exponent, f64::powf))),
            (Scalar::Operation(base), Scalar::Constant(Value::Number(exponent))) => {
                Ok(self.variable_power(base, *exponent))
            }
            _ => Err(Problem::Exponent),
        }
    }

    fn variable_power(&mut self, base: usize, exponent: f64) -> Scalar {
        if exponent == 0.5 {
            return Scalar::Operation(self.builder.unary(Unary::Sqrt, base));
        }
        if exponent.fract() != 0.0 || exponent.abs() > f64::from(MAX_PRODUCT_EXPONENT) {
            return Scalar::Operation(self.builder.power(base, exponent));
        }
        let one = Scalar::Constant(Value::Number(1.0));
        // Square and multiply: the bits of the exponent say which squares to take.
        let (mut bits, mut square, mut product) = (exponent.abs() as u32, base, None);
        while bits > 0 {
            if bits % 2 == 1 {
                product = Some(product.map_or(square, |product| self.builder.binary(Binary::Mul, product, square)));
            }
            bits /= 2;
            if bits > 0 {
                square = self.builder.binary(Binary::Mul, square, square);
            }
        }
        match product {
            None => one,
            Some(product) if exponent < 0.0 => self.binary(Binary::Div, one, Scalar::Operation(product)),
            Some(product) => Scalar::Operation(product),
        }
    }

    fn derivative(&mut self, x: &Scalar, derivative: Derivative, function: &'static str) -> Result<Scalar, Problem> {
        let Derivative { scheme, axis, .. } = derivative;
        let grid = &self.symbols.grid;
        let (found, needed, spacing) = (grid.nodes(axis), scheme.min_nodes(), grid.spacing(axis));
        if grid.is_point() {
            return Err(Problem::DerivativeOfPoint(function));
        }
        if found < needed || grid.is_empty() {
            return Err(Problem::TooFewNodes { function, scheme, axis, needed, found });
        }
        if !spacing.is_normal() {
            return Err(Problem::NoExtent { function, axis, spacing });
        }
        Ok(match x {
            Scalar::Constant(x) => Scalar::Constant(self.algebra.derivative(x, derivative, false)),
            Scalar::Operation(x) => Scalar::Operation(self.builder.derivative(*x, derivative)),
        })
    }
}

fn check_finite(typed: &Typed) -> Result<(), Problem> {
    let scalars = match typed {
        Typed::Scalar(scalar) => std::slice::from_ref(scalar),
        Typed::Vector(vector) => vector,
    };
    let finite = |scalar: &Scalar| match scalar {
        Scalar::Constant(value) => value.numbers().iter().all(|x| x.is_finite()),
        Scalar::Operation(_) => true,
    };
    if scalars.iter().all(finite) { Ok(()) } else { Err(Problem::NotFinite) }
}

fn choose(choice: Choice, name: &'static str, a: &Scalar, b: &Scalar) -> Result<Scalar, Problem> {
    match (a, b) {
        (Scalar::Constant(a), Scalar::Constant(b)) => Ok(Scalar::Constant(a.zip(b, |a, b| choice.of(a, b)))),
        _ => Err(Problem::ConstantsOnly(name)),
    }
}

fn wrong_type(place: &str, expected: &'static str, found: &'static str) -> Problem {
    Problem::WrongType { place: place.to_owned(), expected, found }
}
