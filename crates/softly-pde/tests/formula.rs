//! Formulas: language, typing, folding, errors and exact values.

use std::sync::Arc;

use softly_pde::algebra::{F64Algebra, Value};
use softly_pde::derivative::{Order, Scheme, SchemeError};
use softly_pde::formula::{Parameter, Symbols, compile, evaluate_constant};
use softly_pde::formula_error::{FormulaError, Problem};
use softly_pde::grid::{Axis, AxisId, Grid, GridError};
use softly_pde::matrix::Matrix;
use softly_pde::operator::{Operator, OperatorKind};

fn symbols(grid: Grid, fields: &[&str]) -> Symbols {
    Symbols { fields: fields.iter().map(ToString::to_string).collect(), ..Symbols::new(grid) }
}

fn constant(text: &str) -> f64 {
    let values = evaluate_constant(text, &Symbols::new(Grid::point()));
    values.unwrap_or_else(|error| panic!("{error}"))[0]
}

/// Two fields and a vector's worth of functions on a 6 x 5 grid.
fn error(text: &str) -> FormulaError {
    let mut symbols = symbols(Grid::unit(6, 5), &["p", "K"]);
    symbols.parameters.insert("f".into(), Parameter::Number(2.0));
    symbols.parameters.insert("r".into(), Parameter::Runtime);
    symbols.parameters.insert("short".into(), Parameter::Array(Arc::new([1.0, 2.0])));
    compile(text, &symbols).expect_err(text)
}

fn run(text: &str, symbols: &Symbols, inputs: &[&[f64]]) -> Vec<f64> {
    let program = compile(text, symbols).unwrap_or_else(|error| panic!("{error}"));
    let inputs: Vec<Value> = inputs.iter().map(|input| input.to_vec().into()).collect();
    let algebra = F64Algebra::new(symbols.grid.clone());
    program.forward(&algebra, &inputs).output().broadcast(symbols.grid.len()).to_vec()
}

fn noise(len: usize, seed: usize) -> Vec<f64> {
    (0..len).map(|i| ((i * 7 + seed * 13) as f64 * 1.7).sin()).collect()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "node {i}: found {a}, expected {b}");
    }
}

#[test]
fn precedence_is_that_of_mathematics() {
    for (text, expected) in [
        ("1+2*3", 7.0),
        ("(1+2)*3", 9.0),
        ("10-4-3", 3.0),
        ("24/4/3", 2.0),
        ("24/4*3", 18.0),
        ("2^3^2", 512.0),
        ("-3^2", -9.0),
        ("(-3)^2", 9.0),
        ("2^-1", 0.5),
        ("2^-1*4", 2.0),
        ("2^-2^2", 1.0 / 16.0),
        ("-2*3", -6.0),
        ("2*-3", -6.0),
        ("5--3", 8.0),
        ("--3", 3.0),
        ("-(1+2)", -3.0),
        ("1+1 == 2", 1.0),
        ("1 != 1", 0.0),
        ("1 < 1", 0.0),
        ("1 <= 1", 1.0),
        ("2 > 1", 1.0),
        ("2 >= 3", 0.0),
        ("3*(1<2)", 3.0),
        ("1e-3", 1e-3),
        ("1.5E+2", 150.0),
        (".5+1.", 1.5),
        ("sqrt(16) + abs(-2)", 6.0),
        ("exp(0) + log(1) + sin(0) + cos(0) + tanh(0)", 2.0),
        ("min(1, 2) + max(3, 4)", 5.0),
        ("cos(pi)", -1.0),
        (" 1\n\t+ 1 ", 2.0),
    ] {
        assert_eq!(constant(text), expected, "{text}");
    }
}

#[test]
fn constants_of_the_coordinates_are_arrays() {
    let grid = Grid::unit(9, 9);
    let text = "10*(x<=0.125)*(y<=0.125) - 10*(x>=0.875)*(y>=0.875)";
    let found = evaluate_constant(text, &Symbols::new(grid.clone())).unwrap();
    let at = |i: usize, j: usize| match (i, j) {
        (0 | 1, 0 | 1) => 10.0,
        (7 | 8, 7 | 8) => -10.0,
        _ => 0.0,
    };
    let expected: Vec<f64> = (0..81).map(|node| at(node / 9, node % 9)).collect();
    assert_eq!(found, expected);
}

#[test]
fn constant_work_is_done_when_compiling_and_common_work_once() {
    let mut symbols = symbols(Grid::unit(6, 5), &["p", "K"]);
    symbols.parameters.insert("f".into(), Parameter::Array(noise(30, 1).into()));
    let len = |text: &str| compile(text, &symbols).unwrap().operations();
    // The field, the folded array, their sum.
    assert_eq!(len("p + sin(x)*laplacian(f) + 0"), 5);
    assert_eq!(len("p + (sin(x)*laplacian(f) + 0)"), 3);
    assert_eq!(len("dot(grad(f), grad(f))"), 1);
    // p, dx, sin, sum.
    assert_eq!(len("sin(dx(p)) + sin(dx(p))"), 4);
    assert_eq!(len("K*p - p*K"), 4);
    // Equal arrays are one constant however they were computed.
    assert_eq!(len("p*(x+x) - p*(2*x)"), 4);
    let program = compile("laplacian(p) + dxx(p) + dx(f)", &symbols).unwrap();
    assert_eq!(program.operators().len(), 2);
    assert!(program.uses(0) && !program.uses(1));
}

#[test]
fn darcy_is_the_sum_of_its_stencils() {
    let grid = Grid::unit(6, 5);
    let mut symbols = symbols(grid.clone(), &["p", "K"]);
    symbols.parameters.insert("f".into(), Parameter::Number(10.0));
    let (p, k) = (noise(30, 1), noise(30, 2));
    let found = run("K*laplacian(p) + dot(grad(K), grad(p)) + f", &symbols, &[&p, &k]);
    let d = |order, axis, field: &[f64]| {
        Matrix::on_grid(Scheme::OneSided2, order, &grid, axis).apply(axis, field, grid.rows(), grid.cols())
    };
    let (pxx, pyy) = (d(Order::Second, AxisId::Rows, &p), d(Order::Second, AxisId::Cols, &p));
    let (px, py) = (d(Order::First, AxisId::Rows, &p), d(Order::First, AxisId::Cols, &p));
    let (kx, ky) = (d(Order::First, AxisId::Rows, &k), d(Order::First, AxisId::Cols, &k));
    let expected: Vec<f64> = (0..30).map(|i| k[i] * (pxx[i] + pyy[i]) + kx[i] * px[i] + ky[i] * py[i] + 10.0).collect();
    assert_close(&found, &expected, 1e-13);
}

#[test]
fn darcy_in_either_form_is_exact_on_low_polynomials() {
    // p = x² + xy and K = 1 + x: div(K grad p) = 2x + y + 2(1+x) exactly, and both discretisations are exact here.
    let symbols = symbols(Grid { axes: vec![Axis::new("x", 7, 0.0, 2.0), Axis::new("y", 5, -1.0, 1.0)] }, &["p", "K"]);
    let field = |text: &str| evaluate_constant(text, &symbols).unwrap();
    let (p, k) = (field("x^2 + x*y"), field("1 + x"));
    let expected = field("4*x + y + 2");
    assert_close(&run("K*laplacian(p) + dot(grad(K), grad(p))", &symbols, &[&p, &k]), &expected, 1e-12);
    assert_close(&run("div(K*grad(p))", &symbols, &[&p, &k]), &expected, 1e-12);
    assert_close(&run("dx(K*dx(p)) + dy(K*dy(p))", &symbols, &[&p, &k]), &expected, 1e-12);
}

/// One smooth random sample of p and K and the expanded residual that PIDM computes from it in `f32`, with PIDM's sign.
#[test]
fn darcy_is_that_of_pidm() {
    let numbers: Vec<f64> = include_bytes!("data/darcy_residual.f32")
        .chunks_exact(4)
        .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())))
        .collect();
    let [p, k, minus_expected] = [0, 1, 2].map(|i| &numbers[i * 4096..(i + 1) * 4096]);
    let mut symbols = symbols(Grid::unit(64, 64), &["p", "K"]);
    let f = evaluate_constant("10*(x<=0.125)*(y<=0.125) - 10*(x>=0.875)*(y>=0.875)", &symbols).unwrap();
    symbols.parameters.insert("f".into(), Parameter::Array(f.into()));
    let found = run("K*laplacian(p) + dot(grad(K), grad(p)) + f", &symbols, &[p, k]);
    let scale = minus_expected.iter().fold(0.0, |scale: f64, e| scale.max(e.abs()));
    for (found, minus_expected) in found.iter().zip(minus_expected) {
        assert!((found + minus_expected).abs() < 2e-5 * scale, "{found} instead of {}", -minus_expected);
    }
}

/// One smooth random sample of u and a and the residual on interior nodes that `FunDPS` computes from it for k = 1.
#[test]
fn helmholtz_is_that_of_fundps() {
    let n = 48;
    let numbers: Vec<f64> = include_bytes!("data/helmholtz_residual.f64")
        .chunks_exact(8)
        .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let (u, rest) = numbers.split_at(n * n);
    let (a, expected) = rest.split_at(n * n);
    let mut symbols = symbols(Grid::unit(n, n), &["u", "a"]);
    symbols.parameters.insert("k".into(), Parameter::Number(1.0));
    let found = run("laplacian(u) + k^2*u - a", &symbols, &[u, a]);
    let interior = |i: &usize| (1..n - 1).contains(&(i / n)) && (1..n - 1).contains(&(i % n));
    let found: Vec<f64> = (0..n * n).filter(interior).map(|i| found[i]).collect();
    assert_close(&found, expected, 1e-10);
}

#[test]
fn helmholtz_takes_run_time_parameters() {
    let mut symbols = symbols(Grid::unit(8, 8), &["u", "a"]);
    symbols.parameters.insert("k".into(), Parameter::Runtime);
    let (u, a) = (noise(64, 1), noise(64, 2));
    let program = compile("laplacian(u) + k^2*u - a", &symbols).unwrap();
    assert_eq!(program.runtime_parameters(), ["k"]);
    let algebra = F64Algebra::new(symbols.grid.clone());
    let inputs = [u.clone().into(), a.clone().into(), Value::Number(3.0)];
    let tape = program.forward(&algebra, &inputs);
    symbols.parameters.insert("k".into(), Parameter::Number(3.0));
    let expected = run("laplacian(u) + k^2*u - a", &symbols, &[&u, &a]);
    assert_close(tape.output().numbers(), &expected, 1e-13);
    let adjoints = program.reverse(&algebra, &tape, Value::Number(1.0));
    assert_eq!(adjoints.len(), 2, "one per field, none for the parameter");
    assert_eq!(adjoints[1], Some(Value::Number(-1.0)));
}

#[test]
fn circle_on_points_has_no_slope_at_its_centre() {
    let symbols = symbols(Grid::point(), &["x", "y"]);
    let program = compile("(sqrt(x^2+y^2)-1)^2", &symbols).unwrap();
    let algebra = F64Algebra::new(Grid::point());
    let gradient = |x: f64, y: f64| {
        let tape = program.forward(&algebra, &[vec![x].into(), vec![y].into()]);
        let adjoints = program.reverse(&algebra, &tape, Value::Number(1.0));
        let slopes: Vec<f64> = adjoints.into_iter().map(|adjoint| adjoint.unwrap().numbers()[0]).collect();
        (tape.output().numbers()[0], slopes)
    };
    let (value, slopes) = gradient(3.0, 4.0);
    assert_eq!(value, 16.0);
    assert_close(&slopes, &[8.0 * 0.6, 8.0 * 0.8], 1e-14);
    assert_eq!(gradient(0.0, 0.0), (1.0, vec![0.0, 0.0]));
    let tape = program.forward(&algebra, &[vec![0.0].into(), vec![0.0].into()]);
    let tangent = program.tangent(&algebra, &tape, &[Some(Value::Number(1.0)), None]).unwrap();
    assert_eq!(tangent.numbers(), [0.0]);
}

#[test]
fn the_slope_of_an_absolute_value_is_its_sign() {
    let symbols = symbols(Grid::unit(3, 1), &["p"]);
    let program = compile("abs(p)", &symbols).unwrap();
    let algebra = F64Algebra::new(symbols.grid.clone());
    let tape = program.forward(&algebra, &[vec![-2.0, 0.0, 5.0].into()]);
    assert_eq!(tape.output().numbers(), [2.0, 0.0, 5.0]);
    let adjoint = program.reverse(&algebra, &tape, Value::Number(1.0)).remove(0).unwrap();
    assert_eq!(adjoint.numbers(), [-1.0, 0.0, 1.0]);
}

#[test]
fn powers_of_variables() {
    let symbols = symbols(Grid::unit(2, 2), &["p"]);
    let p = [-2.0_f64, 0.5, 1.0, 3.0];
    for exponent in [0, 1, 2, 3, 7, -1, -3, 64, 65] {
        let expected: Vec<f64> = p.iter().map(|p| p.powi(exponent)).collect();
        assert_close(&run(&format!("p^{exponent}"), &symbols, &[&p]), &expected, 1e-12);
    }
    let positive = p.map(f64::abs);
    assert_close(&run("p^0.5 - sqrt(p)", &symbols, &[&positive]), &[0.0; 4], 0.0);
    assert_close(&run("p^1.7", &symbols, &[&positive]), &positive.map(|p| p.powf(1.7)), 1e-14);
}

#[test]
fn names_hide_constants_but_not_axes() {
    let mut symbols = symbols(Grid::unit(2, 2), &["u", "x"]);
    symbols.parameters.insert("pi".into(), Parameter::Number(3.0));
    symbols.parameters.insert("y".into(), Parameter::Number(7.0));
    assert_eq!(run("u + 100*pi", &symbols, &[&[1.0, 2.0, 3.0, 4.0], &[0.0; 4]]), [301.0, 302.0, 303.0, 304.0]);
    for (text, name) in [("u + x", "x"), ("y*u", "y")] {
        let error = compile(text, &symbols).unwrap_err();
        assert_eq!(error.problem, Problem::NameOfAxis(name.into()));
        assert_eq!(&text[error.span], name);
    }
}

fn derivative_schemes(text: &str, symbols: &Symbols) -> Vec<Scheme> {
    let operators = compile(text, symbols).unwrap_or_else(|error| panic!("{error}")).operators();
    let scheme = |operator: &Operator| match operator.kind {
        OperatorKind::Derivative(scheme, _) | OperatorKind::FaceDivergence(scheme) => Some(scheme),
        _ => None,
    };
    operators.iter().filter_map(scheme).collect()
}

#[test]
fn a_field_may_have_its_own_scheme() {
    let mut symbols = symbols(Grid::unit(6, 6), &["p", "K"]);
    symbols.field_schemes.insert("p".into(), [Scheme::Mirror; 2]);
    let schemes = |text: &str| derivative_schemes(text, &symbols);
    assert_eq!(schemes("dx(p)"), [Scheme::Mirror]);
    assert_eq!(schemes("laplacian((p))"), [Scheme::Mirror; 2]);
    assert_eq!(schemes("dx(K)"), [Scheme::OneSided2]);
    assert_eq!(schemes("dx(-p)"), [Scheme::OneSided2]);
    assert_eq!(schemes("dx(1*p)"), [Scheme::OneSided2]);
    assert_eq!(schemes("dx(K*p)"), [Scheme::OneSided2]);
    assert_eq!(schemes("dx(dx(p))"), [Scheme::Mirror, Scheme::OneSided2]);
    assert_eq!(schemes("dxy(p)"), [Scheme::Mirror; 2]);
    assert_eq!(schemes("divgrad(K, p)"), [Scheme::Mirror; 2]);
    assert_eq!(schemes("divgrad(2*K, p, harmonic)"), [Scheme::Mirror; 2]);
    assert_eq!(schemes("divgrad(p, K)"), [Scheme::OneSided2; 2]);
}

/// Burgers' axes: open in time, periodic in space.
fn space_time() -> Grid {
    Grid { axes: vec![Axis::new("t", 6, 0.0, 0.5), Axis::new("x", 8, -1.0, 1.0).periodic()] }
}

#[test]
fn axes_have_their_own_names_and_schemes() {
    let mut symbols = symbols(space_time(), &["u"]);
    symbols.parameters.insert("nu".into(), Parameter::Runtime);
    assert_eq!(derivative_schemes("dt(u)", &symbols), [Scheme::OneSided2]);
    assert_eq!(derivative_schemes("u*dx(u) - nu*dxx(u)", &symbols), [Scheme::Periodic; 2]);
    // Space is every axis but t.
    assert_eq!(derivative_schemes("laplacian(u)", &symbols), [Scheme::Periodic]);
    assert_eq!(derivative_schemes("div(grad(u)) + dot(grad(u), grad(u))", &symbols).len(), 1);
    assert_eq!(derivative_schemes("divgrad(u, u)", &symbols), [Scheme::Periodic]);
    symbols.schemes = [Scheme::OneSided4, Scheme::Spectral];
    assert_eq!(derivative_schemes("dtx(u) + dxt(u)", &symbols), [Scheme::Spectral, Scheme::OneSided4]);

    // The dataset's numbers come with each sample.
    let program = compile("dt(u) + u*dx(u) - nu*dxx(u)", &symbols).unwrap();
    assert_eq!(program.runtime_parameters(), ["nu"]);
    let algebra = F64Algebra::new(symbols.grid.clone());
    let u = Value::from(evaluate_constant("t^2 + sin(pi*x)", &symbols).unwrap());
    let expected = evaluate_constant("2*t + (t^2 + sin(pi*x))*pi*cos(pi*x) + 0.3*pi^2*sin(pi*x)", &symbols).unwrap();
    let tape = program.forward(&algebra, &[u, Value::Number(0.3)]);
    assert_close(tape.output().numbers(), &expected, 1e-12);
}

#[test]
fn schemes_must_fit_their_axes() {
    let mut symbols = symbols(space_time(), &["u"]);
    symbols.schemes = [Scheme::Periodic, Scheme::Mirror];
    assert_eq!(
        compile("1 + dt(u)", &symbols).unwrap_err().to_string(),
        "`dt`: stencil `periodic` is for periodic axes, and axis `t` is not periodic at column 5\n  \
         1 + dt(u)\n      ^^\nhint: mark the axis `periodic = true` if the data are, or use stencil = { t = \"one-sided-2\" }"
    );
    for text in ["dx(u)", "dxx(u)", "laplacian(u)", "grad(u)", "divgrad(u, u)", "divgrad(u, u, harmonic)"] {
        let error = compile(text, &symbols).unwrap_err();
        assert!(matches!(error.problem, Problem::Scheme { error: SchemeError::Periodic { .. }, .. }), "{text}");
        assert!(error.to_string().contains("`mirror` is for axes with ends, and axis `x` is periodic"), "{error}");
    }
    assert!(compile("mean(u, x) - at(u, t=0)", &symbols).is_ok());
}

#[test]
fn choices_steps_and_powers_of_fields() {
    let symbols = symbols(Grid::unit(2, 2), &["p", "q"]);
    let (p, q) = ([-2.0, 0.0, 1.5, 3.0], [1.0, 0.0, -1.0, 2.0]);
    let values = |text: &str| run(text, &symbols, &[&p, &q]);
    assert_eq!(values("min(p, q)"), [-2.0, 0.0, -1.0, 2.0]);
    assert_eq!(values("max(p, q)"), [1.0, 0.0, 1.5, 3.0]);
    assert_eq!(values("max(p, 1)"), [1.0, 1.0, 1.5, 3.0]);
    assert_eq!(values("heaviside(p)"), [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(values("sign(p)"), [-1.0, 0.0, 1.0, 1.0]);
    assert_close(&values("2^p"), &p.map(f64::exp2), 1e-15);
    assert_close(&values("(3 + p)^q"), &[1.0, 1.0, 1.0 / 4.5, 36.0], 1e-14);
    assert_close(&values("(3 + p)^x"), &[1.0, 1.0, 4.5, 6.0], 1e-14);

    let slopes = |text: &str| -> Vec<Vec<f64>> {
        let program = compile(text, &symbols).unwrap();
        let algebra = F64Algebra::new(symbols.grid.clone());
        let tape = program.forward(&algebra, &[p.to_vec().into(), q.to_vec().into()]);
        let adjoints = program.reverse(&algebra, &tape, Value::Number(1.0));
        adjoints.into_iter().map(|a| a.map_or(vec![0.0; 4], |a| a.broadcast(4).to_vec())).collect()
    };
    // At a tie, the first one's slope; steps have none.
    assert_eq!(slopes("min(p, q)"), [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]);
    assert_eq!(slopes("max(p, q)"), [[0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]]);
    assert_eq!(slopes("heaviside(p) + sign(q)"), [[0.0; 4]; 2]);
    assert_eq!(slopes("heaviside(p)*q"), [[0.0; 4], [0.0, 1.0, 1.0, 1.0]]);
    // d(a^b) = b a^(b-1) da + a^b ln(a) db
    let expected = |i: usize| [q[i] * (3.0 + p[i]).powf(q[i] - 1.0), (3.0 + p[i]).powf(q[i]) * (3.0 + p[i]).ln()];
    let found = slopes("(3 + p)^q");
    assert_close(&found[0], &[0, 1, 2, 3].map(|i| expected(i)[0]), 1e-13);
    assert_close(&found[1], &[0, 1, 2, 3].map(|i| expected(i)[1]), 1e-13);
}

#[test]
fn absurd_constants_are_errors_or_numbers() {
    let symbols = symbols(Grid::unit(4, 4), &["p"]);
    let p = [0.5; 16];
    assert_eq!(run("x^1e19 + p^1e19", &symbols, &[&p])[..4], [0.0; 4]);
    assert_eq!(run("p^1e308 + p^-0", &symbols, &[&p]), [1.0; 16]);
    for text in ["p + 2^1e19", "p + 1e300*1e300", "p*x^-1e19", "p + (-1)^0.5"] {
        assert_eq!(compile(text, &symbols).unwrap_err().problem, Problem::NotFinite, "{text}");
    }
    for text in ["at(p, x=1e19)", "at(p, x=99999999999999999999999)", "at(p, x=4)", "at(p, x=1.5)", "at(p, x=middle)"] {
        let problem = compile(text, &symbols).unwrap_err().problem;
        assert!(matches!(problem, Problem::BadWord { .. }), "{text}: {problem:?}");
    }
}

#[test]
fn means_and_values_elsewhere_are_exact() {
    let axes = vec![Axis::new("t", 5, 0.0, 2.0), Axis::new("x", 4, 0.0, 1.0).cells()];
    let symbols = symbols(Grid { axes }, &["u"]);
    let field = |text: &str| evaluate_constant(text, &symbols).unwrap();
    // Trapezoids are exact along t, midpoints along x for what is linear.
    let u = field("1 + 3*t - 2*x + t*x");
    assert_close(&run("mean(u)", &symbols, &[&u]), &field("1 + 3 - 1 + 0.5"), 1e-15);
    assert_close(&run("mean(u, t)", &symbols, &[&u]), &field("1 + 3 - 2*x + x"), 1e-15);
    assert_close(&run("mean(u, x)", &symbols, &[&u]), &field("1 + 3*t - 1 + 0.5*t"), 1e-15);
    assert_eq!(run("at(u, t=first)", &symbols, &[&u]), field("1 + 3*0 - 2*x + 0*x"));
    assert_eq!(run("at(u, t = last)", &symbols, &[&u]), field("1 + 3*2 - 2*x + 2*x"));
    assert_eq!(run("at(u, t=3)", &symbols, &[&u]), field("1 + 3*1.5 - 2*x + 1.5*x"));
    assert_eq!(run("at(at(u, t=0), x=last)", &symbols, &[&u]), field("1 - 2*0.875"));
    assert_eq!(run("at(t*x, x=1) - 0.375*t + 0*u", &symbols, &[&u]), [0.0; 20]);
    assert_close(&run("u - mean(u, x) - at(u, t=2)*0", &symbols, &[&u]), &field("(t - 2)*(x - 0.5)"), 1e-14);
    // A point has no axes to average over.
    let point = self::symbols(Grid::point(), &["u"]);
    assert_eq!(run("mean(u^2)", &point, &[&[3.0]]), [9.0]);
    let error = compile("mean(u, x)", &point).unwrap_err().to_string();
    assert!(error.starts_with("`mean` expects an axis of the grid (a lone point has none) here, found `x`"), "{error}");
}

#[test]
fn words_are_checked() {
    let message = |text: &str| error(text).to_string();
    assert_eq!(
        message("mean(p, z)"),
        "`mean` expects an axis of the grid (x or y) here, found `z` at column 9\n  mean(p, z)\n          ^"
    );
    assert!(message("at(p, z=first)").starts_with("`at` expects an axis of the grid (x or y) here, found `z=first`"));
    let place = "`at` expects x=first, x=last or an index from x=0 to x=5 here, found `x`";
    assert!(message("at(p, x)").starts_with(place));
    assert!(message("mean(p, x=first)").starts_with("`mean` expects the name of an axis here, found `x=first`"));
    assert!(message("divgrad(K, p, geometric)").starts_with("`divgrad` expects `harmonic` or `arithmetic` here"));
    assert!(message("at(p)").starts_with("`at` takes 2 arguments (found 1)"));
    assert!(message("mean(p, x, y)").starts_with("`mean` takes 1 or 2 arguments (found 3)"));
    assert!(message("divgrad(K)").starts_with("`divgrad` takes 2 or 3 arguments (found 1)"));
    assert!(message("at(p, 3)").starts_with("expected a name, found `3`"));
    assert!(message("at(p, x=)").starts_with("expected first, last or a number, found `)`"));
    assert!(message("at(p, x=-1)").starts_with("expected first, last or a number, found `-`"));
    assert!(message("sin(x=1)").contains("unexpected character `=`"));
}

#[test]
fn derivatives_name_the_axes_that_there_are() {
    assert_eq!(
        error("1 + dz(p)").to_string(),
        "there is no derivative `dz`: the axes are x and y at column 5\n  1 + dz(p)\n      ^^\n\
         hint: derivatives are dx, dy, dxx, dxy, dyx, dyy"
    );
    for text in ["dt(p)", "dzz(p)", "dxz(p)", "dxxx(p)", "dX(p)"] {
        assert!(matches!(error(text).problem, Problem::UnknownDerivative { .. }), "{text}");
    }
    assert!(matches!(error("dott(p)").problem, Problem::UnknownName { nearest: Some(near), .. } if near == "dot"));
    let error = compile("u + z", &symbols(space_time(), &["u"])).unwrap_err();
    assert!(matches!(&error.problem, Problem::UnknownName { known, .. } if known[..4] == ["u", "t", "x", "pi"]));
}

#[test]
fn errors_point_at_the_place_and_suggest_a_name() {
    assert_eq!(
        error("K*laplacain(p) + f").to_string(),
        "unknown name `laplacain` at column 3\n  K*laplacain(p) + f\n    ^^^^^^^^^\nhint: did you mean `laplacian`?"
    );
    assert_eq!(error("p + k").to_string(), "unknown name `k` at column 5\n  p + k\n      ^\nhint: did you mean `K`?");
    assert_eq!(
        error("sqrt(f + grad(p)/2)").to_string(),
        "`+` is not defined between a scalar and a vector at column 8\n  sqrt(f + grad(p)/2)\n         ^"
    );
    assert_eq!(
        error("σ + p").to_string().lines().take(3).collect::<Vec<_>>(),
        ["unknown name `σ` at column 1", "  σ + p", "  ^"]
    );
    assert!(error("p + q").to_string().ends_with(
        "hint: known names are p, K, f, r, short, x, y, pi, sqrt, abs, sign, heaviside, exp, log, sin, cos, tanh, \
         min, max, laplacian, grad, div, dot, divgrad, mean, at, dx, dy, dxx, dxy, dyx, dyy"
    ));
    // Fields that take the name of a coordinate are listed once.
    let points = symbols(Grid::point(), &["x", "y"]);
    let hint = compile("x + q", &points).unwrap_err().to_string();
    assert!(hint.contains("known names are x, y, pi, sqrt"), "{hint}");
    assert_eq!(error("(p +\n\tK").to_string(), "this parenthesis is never closed at column 1\n  (p +  K\n  ^");
    assert_eq!(
        error("K*sqrt(2*grad(p))").to_string(),
        "the argument of `sqrt` must be a scalar, not a vector at column 8\n  K*sqrt(2*grad(p))\n         ^^^^^^^^^\n\
         hint: `dot(a, b)` and `div(a)` make scalars of vectors"
    );
    let long = format!("{}sin(q){}", "p + ".repeat(100), " + p".repeat(100));
    let lines = error(&long).to_string();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines[0], "unknown name `q` at column 405");
    let caret = lines[2].find('^').unwrap();
    assert_eq!(&lines[1][caret..=caret], "q");
    assert!(lines[1].len() < 100);
}

#[test]
fn every_mistake_has_its_own_error() {
    let at = |text: &str| {
        let error = error(text);
        let place = text[error.span.clone()].to_owned();
        (error.problem, place)
    };
    let place = |text: &str, expected: fn(&Problem) -> bool, place: &str| {
        let (problem, found) = at(text);
        assert!(expected(&problem), "{text}: {problem:?}");
        assert_eq!(found, place, "{text}");
    };
    place("", |p| *p == Problem::Empty, "");
    place(" \n ", |p| *p == Problem::Empty, "");
    place("p + {", |p| *p == Problem::UnexpectedCharacter('{'), "{");
    place("p = K", |p| *p == Problem::UnexpectedCharacter('='), "=");
    place("p\0", |p| *p == Problem::UnexpectedCharacter('\0'), "\0");
    place("2p", |p| matches!(p, Problem::BadNumber(_)), "2p");
    place("p+1.2.3", |p| matches!(p, Problem::BadNumber(_)), "1.2.3");
    place("1e", |p| matches!(p, Problem::BadNumber(_)), "1e");
    place(".", |p| matches!(p, Problem::BadNumber(_)), ".");
    place("1e999", |p| matches!(p, Problem::BadNumber(_)), "1e999");
    place("p K", |p| matches!(p, Problem::Expected { .. }), "K");
    place("p +", |p| matches!(p, Problem::Expected { .. }), "");
    place("p + * K", |p| matches!(p, Problem::Expected { .. }), "*");
    place("dot(grad(p) K)", |p| matches!(p, Problem::Expected { .. }), "K");
    place("sin(p", |p| *p == Problem::Unclosed, "(");
    place("((p)", |p| *p == Problem::Unclosed, "(");
    place("p)", |p| *p == Problem::Unopened, ")");
    place("p, K", |p| matches!(p, Problem::Expected { .. }), ",");
    place("0 < x < 1", |p| *p == Problem::ChainedComparison, "<");
    place("sin", |p| matches!(p, Problem::FunctionWithoutArguments(_)), "sin");
    place("p(1)", |p| matches!(p, Problem::NotAFunction(_)), "p");
    place("sin()", |p| matches!(p, Problem::ArgumentCount { expected: [1, 1], found: 0, .. }), "sin");
    place("dot(grad(p))", |p| matches!(p, Problem::ArgumentCount { expected: [2, 2], found: 1, .. }), "dot");
    place("sqrt(p, K)", |p| matches!(p, Problem::ArgumentCount { expected: [1, 1], found: 2, .. }), "sqrt");
    place("K*sqrt(2*grad(p))", |p| matches!(p, Problem::WrongType { expected: "scalar", .. }), "2*grad(p)");
    place("div(p)", |p| matches!(p, Problem::WrongType { expected: "vector", .. }), "p");
    place("dot(grad(p), (K))", |p| matches!(p, Problem::WrongType { expected: "vector", .. }), "(K)");
    place("grad(p)", |p| matches!(p, Problem::WrongType { expected: "scalar", .. }), "grad(p)");
    place("div(grad(p)*grad(K))", |p| matches!(p, Problem::WrongOperands { operator: "*", .. }), "*");
    place("div(p/grad(K))", |p| matches!(p, Problem::WrongOperands { operator: "/", .. }), "/");
    place("div(grad(K)^2)", |p| matches!(p, Problem::WrongOperands { operator: "^", .. }), "^");
    place("(p < 1)", |p| matches!(p, Problem::ConstantsOnly("<")), "<");
    place("(x < r)", |p| matches!(p, Problem::ConstantsOnly("<")), "<");
    place("(x - 2)^p", |p| *p == Problem::Base, "^");
    place("0^p", |p| *p == Problem::Base, "^");
    place("divgrad(0, p, harmonic)", |p| *p == Problem::NotFinite, "harmonic");
    place("p + 1/0", |p| *p == Problem::NotFinite, "/");
    place("p*log(x)", |p| *p == Problem::NotFinite, "log");
    place("sqrt(0-1)", |p| *p == Problem::NotFinite, "sqrt");
    place("p*short", |p| matches!(p, Problem::ParameterSize { found: 2, rows: 6, cols: 5, .. }), "short");
    let (problem, _) = at(&"p+".repeat(40_000));
    assert!(matches!(problem, Problem::TooLong { length: 80_000, .. }));
}

#[test]
fn derivatives_need_a_grid_that_carries_them() {
    let problem = |text: &str, grid: Grid| compile(text, &symbols(grid, &["p"])).expect_err(text).problem;
    for text in ["1 + dx(p)", "laplacian(p)", "grad(p)", "divgrad(p, p)", "divgrad(p, p, harmonic)"] {
        assert!(matches!(problem(text, Grid::point()), Problem::DerivativeOfPoint(_)), "{text}");
        assert!(matches!(problem(text, Grid::unit(1, 1)), Problem::DerivativeOfPoint(_)), "{text}");
    }
    assert!(matches!(
        problem("grad(p)", Grid::unit(8, 3)),
        Problem::Scheme { error: SchemeError::TooFewNodes { needed: 4, found: 3, .. }, .. }
    ));
    assert!(compile("dx(p)", &symbols(Grid::unit(8, 1), &["p"])).is_ok());
    assert_eq!(
        compile("1 + dy(p)", &symbols(Grid::unit(8, 3), &["p"])).unwrap_err().to_string(),
        "`dy`: stencil `one-sided-2` needs at least 4 nodes along `y` (the grid has 3) at column 5\n  \
         1 + dy(p)\n      ^^\nhint: use a finer grid or another scheme"
    );
    assert!(matches!(problem("dx(p)", Grid::unit(8, 0)), Problem::Grid(GridError::NodeCount { .. })));
    let flat = Grid { axes: vec![Axis::new("x", 8, 1.0, 1.0), Axis::new("y", 8, 0.0, 1.0)] };
    assert_eq!(
        compile("p", &symbols(flat, &["p"])).unwrap_err().to_string(),
        "axis `x`: expected finite ends with first < last, found first 1 and last 1\n\
         hint: `first` and `last` are the ends of the domain; if the arrays run the other way, reverse them"
    );
}

#[test]
fn a_constant_formula_names_what_is_not() {
    let mut symbols = symbols(Grid::unit(2, 2), &["p"]);
    symbols.parameters.insert("k".into(), Parameter::Runtime);
    let error = evaluate_constant("x + 2*k*p", &symbols).unwrap_err();
    assert_eq!((error.span, error.problem), (6..7, Problem::NotConstant("k".into())));
}

#[test]
fn size_is_bounded_by_errors_not_by_the_stack() {
    let symbols = symbols(Grid::unit(2, 2), &["p"]);
    let deep =
        |text: String| matches!(compile(&text, &symbols), Err(FormulaError { problem: Problem::TooDeep { .. }, .. }));
    assert!(deep(format!("{}p{}", "(".repeat(20_000), ")".repeat(20_000))));
    assert!(deep("sin(".repeat(10_000)));
    assert!(deep(format!("{}p", "-".repeat(60_000))));
    assert!(deep("2^".repeat(30_000)));
    assert!(compile(&"(".repeat(100_000), &symbols).is_err());
    assert!(compile(&format!("{}p{}", "1+2*(".repeat(100), ")".repeat(100)), &symbols).is_ok());
    let sum = format!("{}p", "p + ".repeat(9_999));
    assert_eq!(run(&sum, &symbols, &[&[1.0, 2.0, 0.5, 0.0]]), [10_000.0, 20_000.0, 5_000.0, 0.0]);
}
