//! Random formulas on random grids: adjoints, tangents and second derivatives against finite differences.

use std::sync::Arc;

use proptest::prelude::*;
use softly_pde::algebra::{Algebra, Binary, F64Algebra, Unary, Value};
use softly_pde::derivative::Scheme;
use softly_pde::dual::DualAlgebra;
use softly_pde::formula::{Parameter, Symbols, compile};
use softly_pde::grid::{Axis, Grid, Placement};
use softly_pde::operator::Operator;
use softly_pde::program::Program;

/// Scalar formulas of the fields p and q, the run-time parameter r and constants c and a; `@0` and `@1` stand for the
/// names of the axes. Functions get arguments where they are smooth, so that finite differences can be trusted: steps
/// and kinks lie between points of either side.
fn scalar(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        4 => Just("p".to_owned()),
        4 => Just("q".to_owned()),
        1 => prop::sample::select(vec!["r", "c", "a", "@0", "@1", "pi", "0.7", "2"]).prop_map(str::to_owned),
        1 => Just("(@0 < 0.6)".to_owned()),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    prop_oneof![2 => leaf, 11 => pointwise(depth - 1), 9 => along_axes(depth - 1)].boxed()
}

fn two(depth: u32) -> impl Strategy<Value = (String, String)> {
    (scalar(depth), scalar(depth))
}

fn pointwise(depth: u32) -> BoxedStrategy<String> {
    let inner = || scalar(depth);
    let two = || two(depth);
    prop_oneof![
        2 => two().prop_map(|(a, b)| format!("({a} + {b})")),
        2 => two().prop_map(|(a, b)| format!("({a} - {b})")),
        3 => two().prop_map(|(a, b)| format!("{a}*{b}")),
        1 => two().prop_map(|(a, b)| format!("({a})/(2 + cos({b}))")),
        1 => inner().prop_map(|a| format!("-({a})")),
        2 => (inner(), prop::sample::select(vec!["2", "3", "0"])).prop_map(|(a, n)| format!("({a})^{n}")),
        1 => (inner(), prop::sample::select(vec!["0.5", "1.7", "-1", "-0.3"]))
            .prop_map(|(a, n)| format!("(2 + tanh({a}))^{n}")),
        1 => two().prop_map(|(a, b)| format!("(2 + tanh({a}))^sin({b})")),
        1 => inner().prop_map(|a| format!("1.5^sin({a})")),
        1 => (inner(), prop::sample::select(vec!["sin", "cos", "tanh"])).prop_map(|(a, f)| format!("{f}({a})")),
        1 => (inner(), prop::sample::select(vec!["sqrt", "log", "exp", "abs"]))
            .prop_map(|(a, f)| format!("{f}(2 + sin({a}))")),
        2 => (inner(), prop::sample::select(vec!["abs", "heaviside", "sign"]))
            .prop_map(|(a, f)| format!("{f}(sin({a}) + 4*(@0 < 0.6) - 2)")),
        2 => (inner(), inner(), prop::sample::select(vec!["min", "max"]))
            .prop_map(|(a, b, f)| format!("{f}(sin({a}), sin({b}) + 6*(@0 < 0.6) - 3)")),
    ]
    .boxed()
}

fn along_axes(depth: u32) -> BoxedStrategy<String> {
    let inner = || scalar(depth);
    let derivative = ["d@0", "d@1", "d@0@0", "d@1@1", "d@0@1", "d@1@0", "laplacian"];
    let reduction = ["mean(_)", "mean(_, @0)", "mean(_, @1)", "at(_, @0=first)", "at(_, @1=last)", "at(_, @1=2)"];
    prop_oneof![
        4 => (inner(), prop::sample::select(derivative.to_vec())).prop_map(|(a, f)| format!("{f}({a})")),
        2 => vector(depth).prop_map(|v| format!("div({v})")),
        2 => (vector(depth), vector(depth)).prop_map(|(v, w)| format!("dot({v}, {w})")),
        1 => two(depth).prop_map(|(a, b)| format!("divgrad({a}, {b})")),
        1 => two(depth).prop_map(|(a, b)| format!("divgrad(2 + sin({a}), {b}, harmonic)")),
        2 => (inner(), prop::sample::select(reduction.to_vec())).prop_map(|(a, f)| f.replace('_', &a)),
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

/// An axis and two schemes that fit it.
fn axis(name: &'static str) -> impl Strategy<Value = (Axis, [Scheme; 2])> {
    // Spacings of about 1 keep derivatives of derivatives in bounds.
    let axis = (6..9usize, -1.0..1.0, 0.8..1.6, any::<bool>(), any::<bool>());
    axis.prop_flat_map(move |(nodes, first, spacing, periodic, cells)| {
        let length = spacing * nodes as f64;
        let placement = if cells { Placement::Cells } else { Placement::Nodes };
        let axis = Axis { periodic, placement, ..Axis::new(name, nodes, first, first + length) };
        let fits = |scheme: &Scheme| scheme.check(&axis).is_ok();
        let schemes: Vec<Scheme> = Scheme::ALL.map(|(_, scheme)| scheme).into_iter().filter(fits).collect();
        let scheme = || prop::sample::select(schemes.clone());
        (Just(axis), [scheme(), scheme()])
    })
}

fn symbols() -> impl Strategy<Value = Symbols> {
    let names = prop::sample::select(vec![["x", "y"], ["t", "x"], ["z", "t"], ["theta", "r2"]]);
    let axes = names.prop_flat_map(|[first, second]| (axis(first), axis(second)));
    (axes, any::<bool>()).prop_map(|(((rows, down), (cols, across)), own_scheme)| {
        let grid = Grid { axes: vec![rows, cols] };
        let array = noise(grid.len(), 5);
        let mut symbols = Symbols { schemes: [down[0], across[0]], ..Symbols::new(grid) };
        symbols.fields = vec!["p".into(), "q".into()];
        if own_scheme {
            symbols.field_schemes.insert("p".into(), [down[1], across[1]]);
        }
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
        let [rows, cols] = &symbols.grid.axes[..] else { panic!("two axes") };
        let text = text.replace("@0", &rows.name).replace("@1", &cols.name);
        let program = compile(&text, symbols).unwrap_or_else(|error| panic!("{error}"));
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

    /// |J|·|direction|: what the tangent's terms could add up to without cancelling.
    fn absolute_tangent(&self) -> Vec<f64> {
        let absolute = AbsoluteAlgebra(&self.algebra);
        let tape = self.program.forward(&self.algebra, &self.inputs(&self.point));
        let [p, q, _] = self.inputs(&self.direction).map(|value| self.algebra.unary(Unary::Abs, &value));
        let tangent = self.program.tangent(&absolute, &tape, &[Some(p), Some(q)]).unwrap_or(Value::Number(0.0));
        tangent.broadcast(self.len).to_vec()
    }

    /// The fastest that any value can change along the direction.
    fn speed(&self) -> f64 {
        self.absolute_tangent().iter().fold(0.0, |speed, &change| f64::max(speed, change))
    }
}

/// Slopes, products and matrices without their signs.
struct AbsoluteAlgebra<'a>(&'a F64Algebra);

impl Algebra for AbsoluteAlgebra<'_> {
    type Value = Value;

    fn number(&self, number: f64) -> Value {
        Value::Number(number)
    }

    fn array(&self, array: &Arc<[f64]>) -> Value {
        self.0.array(array)
    }

    fn unary(&self, function: Unary, x: &Value) -> Value {
        if function == Unary::Neg { x.clone() } else { self.0.unary(function, x) }
    }

    fn binary(&self, operation: Binary, a: &Value, b: &Value) -> Value {
        match operation {
            Binary::Mul => self.0.unary(Unary::Abs, &self.0.binary(operation, a, b)),
            _ => self.0.binary(operation, a, b),
        }
    }

    fn power(&self, x: &Value, exponent: f64) -> Value {
        self.0.power(x, exponent)
    }

    fn at_least(&self, x: &Value, floor: f64) -> Value {
        self.0.at_least(x, floor)
    }

    fn apply(&self, x: &Value, operator: Operator, transposed: bool) -> Value {
        assert!(!transposed, "tangents only");
        let grid = self.0.grid();
        let mut matrix = operator.matrix(grid);
        matrix.rows.iter_mut().flatten().for_each(|(_, v)| *v = v.abs());
        matrix.apply(operator.axis, &x.broadcast(grid.len()), grid.rows(), grid.cols()).into()
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
    (fine, 1e-7 * size + 1e-9 * case.speed() + 2.0 * spread)
}

/// Speeds beyond this leave finite differences lost between the waves of a sine.
const FASTEST: f64 = 1e3;

proptest! {
    #[test]
    fn tangents_are_finite_differences(text in scalar(3), symbols in symbols(), seed in 0..1000usize) {
        let case = Case::new(&text, &symbols, seed);
        prop_assume!(case.speed() < FASTEST);
        let (expected, tolerance) = difference(&case, |point| case.value(point));
        for (found, expected) in case.tangent().iter().zip(&expected) {
            prop_assert!((found - expected).abs() <= tolerance, "{}: {} instead of {}", text, found, expected);
        }
    }

    #[test]
    fn adjoints_are_finite_differences(text in scalar(3), symbols in symbols(), seed in 0..1000usize) {
        let case = Case::new(&text, &symbols, seed);
        prop_assume!(case.speed() < FASTEST);
        let (expected, tolerance) = difference(&case, |point| vec![inner(&case.weight, &case.value(point))]);
        let found = inner(&case.adjoint(&case.point), &case.direction);
        prop_assert!((found - expected[0]).abs() <= tolerance, "{}: {} instead of {}", text, found, expected[0]);
    }

    #[test]
    fn adjoints_are_transposed_tangents(text in scalar(4), symbols in symbols(), seed in 0..1000usize) {
        let case = Case::new(&text, &symbols, seed);
        let (tangent, adjoint) = (case.tangent(), case.adjoint(&case.point));
        let (left, right) = (inner(&tangent, &case.weight), inner(&case.direction, &adjoint));
        let size = inner(&case.absolute_tangent(), &case.weight.iter().map(|w| w.abs()).collect::<Vec<_>>());
        prop_assert!((left - right).abs() <= 1e-12 * size, "{}: {} and {}", text, left, right);
    }

    #[test]
    fn adjoints_can_be_differentiated(text in scalar(3), symbols in symbols(), seed in 0..1000usize) {
        let case = Case::new(&text, &symbols, seed);
        prop_assume!(case.speed() < FASTEST);
        let (expected, tolerance) = difference(&case, |point| case.adjoint(point));
        let algebra = DualAlgebra(&case.algebra);
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
        let symbols = Symbols { fields: vec!["p".into()], ..Symbols::new(Grid::unit(4, 4)) };
        let _ = compile(&text, &symbols).map_err(|error| error.to_string());
    }

    #[test]
    fn no_formula_like_text_panics(words in prop::collection::vec(prop::sample::select(vec![
        "p", "x", "pi", "1", "1e", ".", "-", "+", "*", "/", "^", "(", ")", ",", "<", "==", "=", "sin", "sin(", "dot(",
        "grad(", "div(", "dx(", "max(", " ", "é", "\0", "{", "2.5", "q", "\n", "at(", "mean(", "x=", "first",
        "divgrad(", ", x", ", harmonic", "1e19", "heaviside(", "dxy(",
    ]), 0..12)) {
        let text: String = words.concat();
        let symbols = Symbols { fields: vec!["p".into()], ..Symbols::new(Grid::unit(4, 4)) };
        let _ = compile(&text, &symbols).map_err(|error| error.to_string());
    }
}
