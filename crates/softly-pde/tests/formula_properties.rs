//! Random formulas on random grids: adjoints, tangents and second derivatives against finite differences.

use std::sync::Arc;

use proptest::prelude::*;
use softly_pde::algebra::{Algebra, Binary, Derivative, F64Algebra, Unary, Value};
use softly_pde::derivative::Scheme;
use softly_pde::formula::{Parameter, Symbols, compile};
use softly_pde::grid::Grid;
use softly_pde::program::Program;

/// Scalar formulas of the fields p and q, the run-time parameter r and constants c and a. Functions get arguments where
/// they are smooth, so that finite differences can be trusted.
fn scalar(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        4 => Just("p".to_owned()),
        4 => Just("q".to_owned()),
        1 => prop::sample::select(vec!["r", "c", "a", "x", "y", "pi", "0.7", "2"]).prop_map(str::to_owned),
        1 => Just("(x < 0.6)".to_owned()),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let inner = || scalar(depth - 1);
    let two = || (inner(), inner());
    prop_oneof![
        2 => leaf,
        2 => two().prop_map(|(a, b)| format!("({a} + {b})")),
        2 => two().prop_map(|(a, b)| format!("({a} - {b})")),
        3 => two().prop_map(|(a, b)| format!("{a}*{b}")),
        1 => two().prop_map(|(a, b)| format!("({a})/(2 + cos({b}))")),
        1 => inner().prop_map(|a| format!("-({a})")),
        2 => (inner(), prop::sample::select(vec!["2", "3", "0"])).prop_map(|(a, n)| format!("({a})^{n}")),
        1 => (inner(), prop::sample::select(vec!["0.5", "1.7", "-1", "-0.3"]))
            .prop_map(|(a, n)| format!("(2 + tanh({a}))^{n}")),
        1 => (inner(), prop::sample::select(vec!["sin", "cos", "tanh"])).prop_map(|(a, f)| format!("{f}({a})")),
        1 => (inner(), prop::sample::select(vec!["sqrt", "log", "exp", "abs"]))
            .prop_map(|(a, f)| format!("{f}(2 + sin({a}))")),
        1 => inner().prop_map(|a| format!("abs(sin({a}) - 2)")),
        3 => (inner(), prop::sample::select(vec!["dx", "dy", "dxx", "dyy", "laplacian"]))
            .prop_map(|(a, f)| format!("{f}({a})")),
        2 => vector(depth - 1).prop_map(|v| format!("div({v})")),
        2 => (vector(depth - 1), vector(depth - 1)).prop_map(|(v, w)| format!("dot({v}, {w})")),
    ]
    .boxed()
}

fn vector(depth: u32) -> BoxedStrategy<String> {
    let gradient = scalar(depth.saturating_sub(1)).prop_map(|a| format!("grad({a})"));
    if depth == 0 {
        return gradient.boxed();
    }
    let inner = || vector(depth - 1);
    prop_oneof![
        4 => gradient,
        1 => (inner(), inner()).prop_map(|(v, w)| format!("({v} + {w})")),
        1 => (inner(), inner()).prop_map(|(v, w)| format!("({v} - {w})")),
        1 => inner().prop_map(|v| format!("-{v}")),
        1 => (scalar(depth - 1), inner()).prop_map(|(a, v)| format!("{a}*{v}")),
        1 => (inner(), scalar(depth - 1)).prop_map(|(v, a)| format!("{v}*{a}")),
        1 => (inner(), scalar(depth - 1)).prop_map(|(v, a)| format!("{v}/(2 + sin({a}))")),
    ]
    .boxed()
}

fn scheme() -> impl Strategy<Value = Scheme> {
    prop::sample::select(Scheme::ALL.map(|(_, scheme)| scheme).to_vec())
}

fn symbols() -> impl Strategy<Value = Symbols> {
    let grid = (4..7usize, 4..7usize, 2.0..6.0, 2.0..6.0);
    (grid, scheme(), prop::option::of(scheme())).prop_map(|((rows, cols, width, height), scheme, of_p)| {
        let grid = Grid { rows, cols, x: [-0.5, width], y: [0.0, height] };
        let array = noise(grid.len(), 5);
        let mut symbols = Symbols::new(grid, scheme);
        symbols.fields = vec!["p".into(), "q".into()];
        symbols.field_schemes = of_p.map(|scheme| ("p".into(), scheme)).into_iter().collect();
        symbols.parameters = [
            ("r".into(), Parameter::Runtime),
            ("c".into(), Parameter::Number(-1.3)),
            ("a".into(), Parameter::Array(array.into())),
        ]
        .into();
        symbols
    })
}

fn noise(len: usize, seed: usize) -> Vec<f64> {
    (0..len).map(|i| ((i * 7 + seed * 131) as f64 * 1.7).sin()).collect()
}

fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn moved(point: &[f64], direction: &[f64], step: f64) -> Vec<f64> {
    point.iter().zip(direction).map(|(x, d)| x + step * d).collect()
}

/// A program at a point, with a direction to move in and a weight per output node. Fields are concatenated.
struct Case {
    program: Program,
    algebra: F64Algebra,
    len: usize,
    point: Vec<f64>,
    direction: Vec<f64>,
    weight: Vec<f64>,
}

impl Case {
    fn new(text: &str, symbols: &Symbols, seed: usize) -> Self {
        let program = compile(text, symbols).unwrap_or_else(|error| panic!("{error}"));
        let len = symbols.grid.len();
        Case {
            program,
            algebra: F64Algebra::new(symbols.grid.clone()),
            len,
            point: noise(2 * len, seed),
            direction: noise(2 * len, seed + 1),
            weight: noise(len, seed + 2),
        }
    }

    fn inputs(&self, point: &[f64]) -> [Value; 3] {
        [point[..self.len].to_vec().into(), point[self.len..].to_vec().into(), Value::Number(0.8)]
    }

    fn value(&self, point: &[f64]) -> Vec<f64> {
        self.program.forward(&self.algebra, &self.inputs(point)).output().broadcast(self.len).to_vec()
    }

    /// Jᵀ·weight.
    fn adjoint(&self, point: &[f64]) -> Vec<f64> {
        let tape = self.program.forward(&self.algebra, &self.inputs(point));
        let adjoints = self.program.reverse(&self.algebra, &tape, self.weight.clone().into());
        let flat = adjoints.into_iter().map(|adjoint| adjoint.unwrap_or(Value::Number(0.0)).broadcast(self.len));
        flat.flat_map(|adjoint| adjoint.to_vec()).collect()
    }

    /// J·direction.
    fn tangent(&self) -> Vec<f64> {
        let tape = self.program.forward(&self.algebra, &self.inputs(&self.point));
        let [p, q, _] = self.inputs(&self.direction);
        let tangent = self.program.tangent(&self.algebra, &tape, &[Some(p), Some(q)]);
        tangent.unwrap_or(Value::Number(0.0)).broadcast(self.len).to_vec()
    }
}

/// The change of `f` along the case's direction by central differences, and how far to trust it.
fn difference(case: &Case, f: impl Fn(&[f64]) -> Vec<f64>) -> (Vec<f64>, f64) {
    let central = |step: f64| -> Vec<f64> {
        let (ahead, behind) =
            (f(&moved(&case.point, &case.direction, step)), f(&moved(&case.point, &case.direction, -step)));
        ahead.iter().zip(&behind).map(|(a, b)| (a - b) / (2.0 * step)).collect()
    };
    let (fine, coarse) = (central(1e-5), central(2e-5));
    let size = f(&case.point).iter().chain(&fine).fold(1.0, |size: f64, x| size.max(x.abs()));
    let spread = fine.iter().zip(&coarse).fold(0.0, |spread: f64, (a, b)| spread.max((a - b).abs()));
    (fine, 1e-7 * size + 2.0 * spread)
}

/// Values with their change along a direction: differentiates whatever is computed with it.
struct DualAlgebra(F64Algebra);

type Dual = (Value, Value);

impl Algebra for DualAlgebra {
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
            Unary::Sqrt => self.0.binary(Binary::Div, &Value::Number(0.5), &value),
            Unary::Abs => unary(Unary::Sign, x),
            Unary::Sign => Value::Number(0.0),
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
        // No floor is reached by these formulas.
        (self.0.at_least(x, floor), dx.clone())
    }

    fn derivative(&self, (x, dx): &Dual, derivative: Derivative, transposed: bool) -> Dual {
        (self.0.derivative(x, derivative, transposed), self.0.derivative(dx, derivative, transposed))
    }
}

proptest! {
    #[test]
    fn tangents_are_finite_differences(text in scalar(3), symbols in symbols(), seed in 0..1000usize) {
        let case = Case::new(&text, &symbols, seed);
        let (expected, tolerance) = difference(&case, |point| case.value(point));
        for (found, expected) in case.tangent().iter().zip(&expected) {
            prop_assert!((found - expected).abs() <= tolerance, "{}: {} instead of {}", text, found, expected);
        }
    }

    #[test]
    fn adjoints_are_finite_differences(text in scalar(3), symbols in symbols(), seed in 0..1000usize) {
        let case = Case::new(&text, &symbols, seed);
        let (expected, tolerance) = difference(&case, |point| vec![inner(&case.weight, &case.value(point))]);
        let found = inner(&case.adjoint(&case.point), &case.direction);
        prop_assert!((found - expected[0]).abs() <= tolerance, "{}: {} instead of {}", text, found, expected[0]);
    }

    #[test]
    fn adjoints_are_transposed_tangents(text in scalar(4), symbols in symbols(), seed in 0..1000usize) {
        let case = Case::new(&text, &symbols, seed);
        let (tangent, adjoint) = (case.tangent(), case.adjoint(&case.point));
        let (left, right) = (inner(&tangent, &case.weight), inner(&case.direction, &adjoint));
        let size = tangent.iter().chain(&adjoint).fold(1.0, |size: f64, x| size.max(x.abs()));
        prop_assert!((left - right).abs() <= 1e-11 * size * case.len as f64, "{}: {} and {}", text, left, right);
    }

    #[test]
    fn adjoints_can_be_differentiated(text in scalar(3), symbols in symbols(), seed in 0..1000usize) {
        let case = Case::new(&text, &symbols, seed);
        let (expected, tolerance) = difference(&case, |point| case.adjoint(point));
        let algebra = DualAlgebra(F64Algebra::new(symbols.grid.clone()));
        let ([p, q, r], [dp, dq, _]) = (case.inputs(&case.point), case.inputs(&case.direction));
        let tape = case.program.forward(&algebra, &[(p, dp), (q, dq), (r, Value::Number(0.0))]);
        let seed = (case.weight.clone().into(), Value::Number(0.0));
        let zero = (Value::Number(0.0), Value::Number(0.0));
        let adjoints = case.program.reverse(&algebra, &tape, seed).into_iter();
        let found = adjoints.flat_map(|adjoint| adjoint.unwrap_or(zero.clone()).1.broadcast(case.len).to_vec());
        for (found, expected) in found.zip(&expected) {
            prop_assert!((found - expected).abs() <= tolerance, "{}: {} instead of {}", text, found, expected);
        }
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let symbols = Symbols { fields: vec!["p".into()], ..Symbols::new(Grid::unit(4, 4), Scheme::OneSided2) };
        let _ = compile(&text, &symbols).map_err(|error| error.to_string());
    }

    #[test]
    fn no_formula_like_text_panics(words in prop::collection::vec(prop::sample::select(vec![
        "p", "x", "pi", "1", "1e", ".", "-", "+", "*", "/", "^", "(", ")", ",", "<", "==", "=", "sin", "sin(", "dot(",
        "grad(", "div(", "dx(", "max(", " ", "é", "\0", "{", "2.5", "q", "\n",
    ]), 0..12)) {
        let text: String = words.concat();
        let symbols = Symbols { fields: vec!["p".into()], ..Symbols::new(Grid::unit(4, 4), Scheme::OneSided2) };
        let _ = compile(&text, &symbols).map_err(|error| error.to_string());
    }
}
