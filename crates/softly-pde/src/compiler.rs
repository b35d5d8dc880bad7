//! Postfix items to a program: names get their meaning, types are checked, constants folded.

use std::ops::Range;

use crate::algebra::{Algebra, Binary, F64Algebra, Unary, Value};
use crate::derivative::{Order, Scheme};
use crate::flux::FaceMean;
use crate::formula::{Parameter, Symbols};
use crate::formula_error::{Fault, FormulaError, Problem};
use crate::function::{CONSTANTS, Function, Partial, derivatives, functions};
use crate::grid::AxisId;
use crate::lexer::{Choice, Operator as Infix};
use crate::nearest::nearest;
use crate::operator::{Operator, OperatorKind};
use crate::parser::{Arguments, Item, ItemKind, Word, parse};
use crate::program::{Builder, Program};

/// Integer exponents up to this size become products: exact for negative bases, and smooth at 0.
const MAX_PRODUCT_EXPONENT: i32 = 64;

/// A scalar that is known already, or the operation that computes it.
#[derive(Debug, Clone)]
pub(crate) enum Scalar {
    Constant(Value),
    Operation(usize),
}

#[derive(Debug, Clone)]
enum Typed {
    Scalar(Scalar),
    /// One component per axis of space.
    Vector(Vec<Scalar>),
}

impl Typed {
    fn type_name(&self) -> &'static str {
        match self {
            Typed::Scalar(_) => "scalar",
            Typed::Vector(_) => "vector",
        }
    }

    fn components(&self) -> &[Scalar] {
        match self {
            Typed::Scalar(scalar) => std::slice::from_ref(scalar),
            Typed::Vector(vector) => vector,
        }
    }
}

/// A call of a function by its name in the formula, with the schemes of its derivatives.
struct Call<'a> {
    name: &'a str,
    function: Function,
    schemes: [Scheme; 2],
}

pub(crate) struct Compiler<'a> {
    text: &'a str,
    symbols: &'a Symbols,
    functions: Vec<(String, Function)>,
    algebra: F64Algebra,
    builder: Builder,
    /// Where a field or run-time parameter is first named.
    pub first_variable: Option<Range<usize>>,
}

/// The formula `text` compiled up to its output.
pub(crate) fn compiled<'a>(text: &'a str, symbols: &'a Symbols) -> Result<(Compiler<'a>, Scalar), FormulaError> {
    let error = |(span, problem)| FormulaError { formula: text.to_owned(), span, problem };
    symbols.grid.check().map_err(|bad| error((0..0, Problem::Grid(bad))))?;
    let items = parse(text)?;
    let mut compiler = Compiler {
        text,
        symbols,
        functions: functions(&symbols.grid),
        algebra: F64Algebra::new(symbols.grid.clone()),
        builder: Builder::default(),
        first_variable: None,
    };
    let output = compiler.run(&items).map_err(error)?;
    Ok((compiler, output))
}

impl Compiler<'_> {
    /// The program that computes `output`.
    pub fn finish(mut self, output: Scalar) -> Program {
        let output = self.operation(output);
        let Symbols { fields, .. } = self.symbols;
        let names = fields.iter().map(String::as_str).chain(self.symbols.runtime_parameters());
        self.builder.finish(output, names.map(str::to_owned).collect(), fields.len())
    }

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
                    Typed::Vector(x) => Typed::Vector(x.into_iter().map(|x| self.unary(Unary::Neg, x)).collect()),
                },
                ItemKind::Operator(operator) => {
                    let right = stack.pop().expect(WELL_FORMED);
                    let left = stack.pop().expect(WELL_FORMED);
                    self.operator(*operator, left, right).map_err(|problem| (item.span.clone(), problem))?
                }
                ItemKind::Call(arguments) => {
                    let values = stack.split_off(stack.len() - arguments.formulas.len());
                    // In postfix, a last argument that is just a name stands right before the call.
                    let schemes = match items[..index].last() {
                        Some(Item { kind: ItemKind::Name, span }) => {
                            self.symbols.field_schemes.get(&self.text[span.clone()])
                        }
                        _ => None,
                    };
                    let schemes = schemes.copied().unwrap_or(self.symbols.schemes);
                    self.call(&item.span, &values, arguments, schemes)?
                }
            };
            check_finite(typed.components()).map_err(|problem| (item.span.clone(), problem))?;
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
        let (field, axis) = (fields.iter().position(|field| field == name), grid.find(name));
        if axis.is_some() && !grid.is_point() && (field.is_some() || parameters.contains_key(name)) {
            return fault(Problem::NameOfAxis(name.to_owned()));
        }
        if let Some(slot) = field {
            self.first_variable.get_or_insert(span.clone());
            return Ok(Scalar::Operation(self.builder.input(slot, true)));
        }
        Ok(Scalar::Constant(match (parameters.get(name), axis) {
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
                return fault(Problem::ParameterSize { name, found, rows: grid.rows(), cols: grid.cols() });
            }
            (None, Some(axis)) => grid.coordinate(axis).into(),
            (None, None) => match CONSTANTS.iter().find(|(constant, _)| *constant == name) {
                Some((_, number)) => Value::Number(*number),
                None if self.functions.iter().any(|(function, _)| function == name) => {
                    return fault(Problem::FunctionWithoutArguments(name.to_owned()));
                }
                None => return fault(self.unknown(name)),
            },
        }))
    }

    /// Every name that can stand for a value, each once.
    fn value_names(&self) -> Vec<&str> {
        let Symbols { grid, fields, parameters, .. } = self.symbols;
        let mut names: Vec<&str> = fields.iter().chain(parameters.keys()).map(String::as_str).collect();
        let axes = grid.axes.iter().map(|axis| axis.name.as_str());
        for name in axes.chain(CONSTANTS.iter().map(|(name, _)| *name)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn unknown(&self, name: &str) -> Problem {
        let mut known = self.value_names();
        known.extend(self.functions.iter().map(|(function, _)| function.as_str()));
        let nearest = nearest(name, known.iter().copied()).map(str::to_owned);
        Problem::UnknownName { name: name.to_owned(), nearest, known: known.into_iter().map(str::to_owned).collect() }
    }

    /// The problem with calling `name`, which is no function.
    fn unknown_function(&self, name: &str) -> Problem {
        let grid = &self.symbols.grid;
        if self.value_names().contains(&name) {
            return Problem::NotAFunction(name.to_owned());
        }
        let problem = self.unknown(name);
        let derivatives: Vec<String> = derivatives(grid).into_iter().map(|(derivative, _)| derivative).collect();
        let near_one =
            matches!(&problem, Problem::UnknownName { nearest: Some(near), .. } if derivatives.contains(near));
        let letters = name.strip_prefix('d').map_or(0, |axes| axes.chars().count());
        if !(near_one || (1..=2).contains(&letters)) {
            return problem;
        }
        if grid.is_point() {
            return Problem::DerivativeOfPoint(name.to_owned());
        }
        let axes = grid.axes.iter().map(|axis| axis.name.clone()).collect();
        Problem::UnknownDerivative { name: name.to_owned(), axes, known: derivatives }
    }

    fn operator(&mut self, operator: Infix, left: Typed, right: Typed) -> Result<Typed, Problem> {
        let types = (left.type_name(), right.type_name());
        Ok(match (operator, left, right) {
            (Infix::Arithmetic(operation), Typed::Scalar(a), Typed::Scalar(b)) => {
                Typed::Scalar(self.binary(operation, a, b))
            }
            (Infix::Arithmetic(operation @ (Binary::Add | Binary::Sub)), Typed::Vector(a), Typed::Vector(b)) => {
                Typed::Vector(a.into_iter().zip(b).map(|(a, b)| self.binary(operation, a, b)).collect())
            }
            (Infix::Arithmetic(Binary::Mul), Typed::Scalar(s), Typed::Vector(v)) => {
                Typed::Vector(v.into_iter().map(|v| self.binary(Binary::Mul, s.clone(), v)).collect())
            }
            (Infix::Arithmetic(operation @ (Binary::Mul | Binary::Div)), Typed::Vector(v), Typed::Scalar(s)) => {
                Typed::Vector(v.into_iter().map(|v| self.binary(operation, v, s.clone())).collect())
            }
            (Infix::Power, Typed::Scalar(base), Typed::Scalar(exponent)) => Typed::Scalar(self.power(base, exponent)?),
            (Infix::Choice(choice), Typed::Scalar(Scalar::Constant(a)), Typed::Scalar(Scalar::Constant(b))) => {
                Typed::Scalar(Scalar::Constant(a.zip(&b, |a, b| choice.of(a, b))))
            }
            (Infix::Choice(_), Typed::Scalar(_), Typed::Scalar(_)) => {
                return Err(Problem::ConstantsOnly(operator.symbol()));
            }
            _ => return Err(Problem::WrongOperands { operator: operator.symbol(), left: types.0, right: types.1 }),
        })
    }

    fn call(
        &mut self,
        name_span: &Range<usize>,
        values: &[Typed],
        arguments: &Arguments,
        schemes: [Scheme; 2],
    ) -> Result<Typed, Fault> {
        let name = &self.text[name_span.clone()];
        let fault = |problem| (name_span.clone(), problem);
        let Some(function) = self.functions.iter().find(|(known, _)| known == name).map(|(_, function)| *function)
        else {
            return Err(fault(self.unknown_function(name)));
        };
        let (argument_type, formulas) = function.arguments();
        let expected = function.words().map(|words| formulas + words);
        let found = values.len() + arguments.words.len();
        if values.len() != formulas || found < expected[0] || found > expected[1] {
            return Err(fault(Problem::ArgumentCount { function: name.to_owned(), expected, found }));
        }
        for (value, span) in values.iter().zip(&arguments.formulas) {
            if value.type_name() != argument_type {
                let problem = wrong_type(&format!("the argument of `{name}`"), argument_type, value.type_name());
                return Err((span.clone(), problem));
            }
        }
        let needs_axes = matches!(function, Function::Laplacian | Function::Grad | Function::Div | Function::DivGrad);
        if needs_axes && self.symbols.grid.is_point() {
            return Err(fault(Problem::DerivativeOfPoint(name.to_owned())));
        }
        let call = Call { name, function, schemes };
        match arguments.words.first() {
            Some(word) => {
                let scalars: Vec<Scalar> = values.iter().flat_map(|value| value.components().to_vec()).collect();
                self.call_with_word(&call, &scalars, word)
            }
            None => self.apply(&call, values).map_err(fault),
        }
    }

    /// A call whose number and types of arguments are right and that has no words.
    fn apply(&mut self, call: &Call<'_>, values: &[Typed]) -> Result<Typed, Problem> {
        let space: Vec<AxisId> = self.symbols.grid.space().collect();
        Ok(match (call.function, values) {
            (Function::Pointwise(function), [Typed::Scalar(x)]) => Typed::Scalar(self.unary(function, x.clone())),
            (Function::Choice(choice), [Typed::Scalar(a), Typed::Scalar(b)]) => {
                Typed::Scalar(self.choose(choice, a.clone(), b.clone()))
            }
            (Function::Partial(partial), [Typed::Scalar(x)]) => Typed::Scalar(self.partial(call, x, partial)?),
            (Function::Grad, [Typed::Scalar(x)]) => {
                let components = space.into_iter().map(|axis| self.derivative(call, x, Order::First, axis));
                Typed::Vector(components.collect::<Result<_, _>>()?)
            }
            (Function::Laplacian, [Typed::Scalar(x)]) => {
                let terms = space.into_iter().map(|axis| self.derivative(call, x, Order::Second, axis));
                let terms = terms.collect::<Result<Vec<_>, _>>()?;
                Typed::Scalar(self.sum(terms))
            }
            (Function::Div, [Typed::Vector(v)]) => {
                let terms = space.into_iter().zip(v).map(|(axis, v)| self.derivative(call, v, Order::First, axis));
                let terms = terms.collect::<Result<Vec<_>, _>>()?;
                Typed::Scalar(self.sum(terms))
            }
            (Function::Dot, [Typed::Vector(v), Typed::Vector(w)]) => {
                let terms = v.iter().zip(w).map(|(v, w)| self.binary(Binary::Mul, v.clone(), w.clone())).collect();
                Typed::Scalar(self.sum(terms))
            }
            (Function::DivGrad, [Typed::Scalar(k), Typed::Scalar(p)]) => {
                Typed::Scalar(self.divgrad(call, k, p, FaceMean::Arithmetic)?)
            }
            (Function::Mean, [Typed::Scalar(x)]) => {
                let axes = self.symbols.grid.ids();
                let over = |x: Scalar, axis| self.along(x, Operator { kind: OperatorKind::Mean, axis });
                Typed::Scalar(axes.fold(x.clone(), over))
            }
            _ => unreachable!("number and types of the arguments were checked"),
        })
    }

    /// A call whose last argument is a word: an axis, a place on an axis, or a kind of mean.
    fn call_with_word(&mut self, call: &Call<'_>, values: &[Scalar], word: &Word) -> Result<Typed, Fault> {
        let grid = &self.symbols.grid;
        let text = |span: &Range<usize>| &self.text[span.clone()];
        let bad = |expected: String| {
            let (function, found) = (call.name.to_owned(), text(&word.span()).to_owned());
            (word.span(), Problem::BadWord { function, expected, found })
        };
        let (name, value) = (text(&word.name), word.value.as_ref().map(text));
        let names: Vec<&str> = match &grid.axes[..] {
            [] => vec!["a lone point has none"],
            axes => axes.iter().map(|axis| axis.name.as_str()).collect(),
        };
        let axis = || grid.find(name).ok_or_else(|| bad(format!("an axis of the grid ({})", names.join(" or "))));
        Ok(Typed::Scalar(match (call.function, values, value) {
            (Function::DivGrad, [k, p], None) if matches!(name, "harmonic" | "arithmetic") => {
                let mean = if name == "harmonic" { FaceMean::Harmonic } else { FaceMean::Arithmetic };
                self.divgrad(call, k, p, mean).map_err(|problem| (word.span(), problem))?
            }
            (Function::Mean, [x], None) => self.along(x.clone(), Operator { kind: OperatorKind::Mean, axis: axis()? }),
            (Function::At, [x], place) => {
                let axis = axis()?;
                let last = grid.nodes(axis) - 1;
                let index = match place {
                    Some("first") => Some(0),
                    Some("last") => Some(last),
                    place => place.and_then(|digits| digits.parse().ok()).filter(|&index: &usize| index <= last),
                };
                let expected = || bad(format!("{name}=first, {name}=last or an index from {name}=0 to {name}={last}"));
                self.along(x.clone(), Operator { kind: OperatorKind::At(index.ok_or_else(expected)?), axis })
            }
            (Function::DivGrad, ..) => return Err(bad("`harmonic` or `arithmetic`".into())),
            _ => return Err(bad("the name of an axis".into())),
        }))
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

    fn along(&mut self, x: Scalar, operator: Operator) -> Scalar {
        match x {
            Scalar::Constant(x) => Scalar::Constant(self.algebra.apply(&x, operator, false)),
            Scalar::Operation(x) => Scalar::Operation(self.builder.along(x, operator)),
        }
    }

    /// The sum of at least one term.
    fn sum(&mut self, terms: Vec<Scalar>) -> Scalar {
        let sum = terms.into_iter().reduce(|sum, term| self.binary(Binary::Add, sum, term));
        sum.expect("a grid has an axis of space")
    }

    /// `h a + (1 − h) b` with h = 1 where a is chosen (at ties, too), else 0.
    fn choose(&mut self, choice: Choice, a: Scalar, b: Scalar) -> Scalar {
        if let (Scalar::Constant(a), Scalar::Constant(b)) = (&a, &b) {
            return Scalar::Constant(a.zip(b, |a, b| choice.of(a, b)));
        }
        let (more, less) = if choice == Choice::Max { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        let lead = self.binary(Binary::Sub, more, less);
        let first = self.unary(Unary::Heaviside, lead);
        let second = self.binary(Binary::Sub, Scalar::Constant(Value::Number(1.0)), first.clone());
        let (a, b) = (self.binary(Binary::Mul, first, a), self.binary(Binary::Mul, second, b));
        self.binary(Binary::Add, a, b)
    }

    fn power(&mut self, base: Scalar, exponent: Scalar) -> Result<Scalar, Problem> {
        match (base, exponent) {
            (Scalar::Constant(base), Scalar::Constant(exponent)) => {
                Ok(Scalar::Constant(base.zip(&exponent, f64::powf)))
            }
            (Scalar::Operation(base), Scalar::Constant(Value::Number(exponent))) => {
                Ok(self.variable_power(base, exponent))
            }
            (base, exponent) => {
                let logarithm = self.unary(Unary::Log, base);
                check_finite(std::slice::from_ref(&logarithm)).map_err(|_| Problem::Base)?;
                let product = self.binary(Binary::Mul, exponent, logarithm);
                Ok(self.unary(Unary::Exp, product))
            }
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

    /// The scheme of a call along `axis`, if derivatives can be taken with it.
    fn scheme(&self, call: &Call<'_>, axis: AxisId) -> Result<Scheme, Problem> {
        let (function, scheme) = (call.name.to_owned(), call.schemes[axis as usize]);
        if self.symbols.grid.is_point() {
            return Err(Problem::DerivativeOfPoint(function));
        }
        let checked = scheme.check(self.symbols.grid.axis(axis));
        checked.map(|()| scheme).map_err(|error| Problem::Scheme { function, error })
    }

    fn derivative(&mut self, call: &Call<'_>, x: &Scalar, order: Order, axis: AxisId) -> Result<Scalar, Problem> {
        let kind = OperatorKind::Derivative(self.scheme(call, axis)?, order);
        Ok(self.along(x.clone(), Operator { kind, axis }))
    }

    /// A first, second or mixed derivative; matrices along different axes commute, so mixed ones have one order.
    fn partial(&mut self, call: &Call<'_>, x: &Scalar, partial: Partial) -> Result<Scalar, Problem> {
        match partial {
            Partial { outer: None, inner } => self.derivative(call, x, Order::First, inner),
            Partial { outer: Some(outer), inner } if outer == inner => self.derivative(call, x, Order::Second, inner),
            Partial { .. } => {
                let inner = self.derivative(call, x, Order::First, AxisId::Cols)?;
                self.derivative(call, &inner, Order::First, AxisId::Rows)
            }
        }
    }

    /// ∇·(K∇p) over the axes of space, as explained in [`crate::flux`].
    fn divgrad(&mut self, call: &Call<'_>, k: &Scalar, p: &Scalar, mean: FaceMean) -> Result<Scalar, Problem> {
        let mut terms = Vec::new();
        for axis in self.symbols.grid.space() {
            let scheme = self.scheme(call, axis)?;
            let operator = |kind| Operator { kind, axis };
            let faces = match mean {
                FaceMean::Arithmetic => self.along(k.clone(), operator(OperatorKind::FaceMean(scheme))),
                FaceMean::Harmonic => {
                    let ahead = self.along(k.clone(), operator(OperatorKind::FaceAhead(scheme)));
                    let product = self.binary(Binary::Mul, k.clone(), ahead.clone());
                    let sum = self.binary(Binary::Add, k.clone(), ahead);
                    let half = self.binary(Binary::Div, product, sum);
                    self.binary(Binary::Mul, Scalar::Constant(Value::Number(2.0)), half)
                }
            };
            check_finite(std::slice::from_ref(&faces))?;
            let slope = self.along(p.clone(), operator(OperatorKind::FaceSlope(scheme)));
            let flux = self.binary(Binary::Mul, faces, slope);
            terms.push(self.along(flux, operator(OperatorKind::FaceDivergence(scheme))));
            for &order in scheme.end_orders() {
                let at_ends = operator(OperatorKind::AtEnds(scheme, order));
                let factor = if order == Order::First { self.along(k.clone(), at_ends) } else { k.clone() };
                let change = self.along(p.clone(), at_ends);
                terms.push(self.binary(Binary::Mul, factor, change));
            }
        }
        Ok(self.sum(terms))
    }
}

fn check_finite(scalars: &[Scalar]) -> Result<(), Problem> {
    let finite = |scalar: &Scalar| match scalar {
        Scalar::Constant(value) => value.numbers().iter().all(|x| x.is_finite()),
        Scalar::Operation(_) => true,
    };
    if scalars.iter().all(finite) { Ok(()) } else { Err(Problem::NotFinite) }
}

fn wrong_type(place: &str, expected: &'static str, found: &'static str) -> Problem {
    Problem::WrongType { place: place.to_owned(), expected, found }
}
