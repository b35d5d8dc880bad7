//! Derivative matrices and fluxes through faces: convergence orders, exactness on polynomials and waves, conservation.

mod common;

use std::f64::consts::{PI, TAU};

use common::slope;
use proptest::prelude::*;
use softly_pde::algebra::{F64Algebra, Value};
use softly_pde::derivative::{Order, Scheme};
use softly_pde::formula::{Symbols, compile, evaluate_constant};
use softly_pde::grid::{Axis, AxisId, Grid, Placement};
use softly_pde::matrix::Matrix;

/// Every scheme with both placements, on an axis that it fits, of `nodes` points from 1 to 3.
fn every_axis(nodes: usize) -> Vec<(Scheme, Axis)> {
    let both = [Placement::Nodes, Placement::Cells];
    let axes = Scheme::ALL.into_iter().flat_map(|(_, scheme)| both.map(|placement| (scheme, placement)));
    axes.map(|(scheme, placement)| {
        (scheme, Axis { periodic: scheme.is_periodic(), placement, ..Axis::new("x", nodes, 1.0, 3.0) })
    })
    .collect()
}

/// The order that a scheme promises; Fourier differentiation of analytic fields beats every order.
fn promised(scheme: Scheme) -> f64 {
    match scheme {
        Scheme::OneSided4 | Scheme::Periodic4 => 4.0,
        Scheme::Spectral => f64::INFINITY,
        _ => 2.0,
    }
}

/// A function, its first and its second derivative.
type Known = [fn(f64) -> f64; 3];

/// Functions of an angle for p and for K that obey what each scheme assumes beyond the ends, at 0 and π.
fn known(scheme: Scheme) -> (Known, Known) {
    let smooth: Known = [|s| s.sin() + 0.1 * s.exp(), |s| s.cos() + 0.1 * s.exp(), |s| 0.1 * s.exp() - s.sin()];
    let even: Known =
        [|s| s.cos() + (3.0 * s).cos(), |s| -s.sin() - 3.0 * (3.0 * s).sin(), |s| -s.cos() - 9.0 * (3.0 * s).cos()];
    let odd: Known =
        [|s| s.sin() + (2.0 * s).sin(), |s| s.cos() + 2.0 * (2.0 * s).cos(), |s| -s.sin() - 4.0 * (2.0 * s).sin()];
    let wave: Known = [
        |s| (2.0 * s + 0.3).sin().exp(),
        |s| 2.0 * (2.0 * s + 0.3).cos() * (2.0 * s + 0.3).sin().exp(),
        |s| 4.0 * ((2.0 * s + 0.3).cos().powi(2) - (2.0 * s + 0.3).sin()) * (2.0 * s + 0.3).sin().exp(),
    ];
    // 2 + sin⁴ is flat to third order at 0 and π, so that its value beyond an end node hardly matters.
    let flat: Known = [|s| 2.0 + s.sin().powi(4), |s| 4.0 * s.sin().powi(3) * s.cos(), |_| f64::NAN];
    let shifted: Known = [|s| 2.0 + (2.0 * s).sin(), |s| 2.0 * (2.0 * s).cos(), |_| f64::NAN];
    let sloped: Known = [|s| 2.0 + 0.5 * s.cos(), |s| -0.5 * s.sin(), |_| f64::NAN];
    let mirrored: Known = [|s| 2.0 + (2.0 * s).cos(), |s| -2.0 * (2.0 * s).sin(), |_| f64::NAN];
    match scheme {
        Scheme::OneSided2 | Scheme::OneSided4 => (smooth, sloped),
        Scheme::Mirror => (even, mirrored),
        Scheme::Zero => (odd, flat),
        Scheme::Periodic | Scheme::Periodic4 | Scheme::Spectral => (wave, shifted),
    }
}

/// Angles of the points, 0 and π where the scheme has its ends, and dangle/dx.
fn angles(scheme: Scheme, axis: &Axis) -> (Vec<f64>, f64) {
    // With nodes, `zero` holds one spacing beyond the end nodes.
    let beyond = if scheme == Scheme::Zero && axis.placement == Placement::Nodes { axis.spacing() } else { 0.0 };
    let rate = PI / (axis.length() + 2.0 * beyond);
    ((0..axis.nodes).map(|i| (axis.coordinate(i) - axis.first + beyond) * rate).collect(), rate)
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |largest, (a, b)| f64::max(largest, (a - b).abs()))
}

/// Fits the order at which `error` falls with the spacing and compares it with the promised one.
fn assert_order(scheme: Scheme, promised: f64, what: &str, error: impl Fn(usize) -> f64) {
    if promised.is_infinite() {
        let (coarse, fine) = (error(12), error(48));
        assert!(fine < 1e-9 && coarse > 1e-5, "{what}, {scheme}: error {coarse:e} falls to {fine:e}");
        return;
    }
    // Fine enough for the leading term, coarse enough to stay clear of rounding.
    let sizes = [40, 60, 80, 120];
    let (steps, errors): (Vec<f64>, Vec<f64>) = sizes.map(|n| (-(n as f64).ln(), error(n).ln())).into_iter().unzip();
    let order = slope(&steps, &errors);
    assert!((promised - 0.3..promised + 0.5).contains(&order), "{what}, {scheme}: order {order}");
}

#[test]
fn derivatives_converge_at_their_order() {
    for (scheme, axis) in every_axis(1) {
        let (field, _) = known(scheme);
        for (order, k) in [(Order::First, 1), (Order::Second, 2)] {
            assert_order(scheme, promised(scheme), &format!("{order:?}, {:?}", axis.placement), |nodes| {
                let axis = Axis { nodes, ..axis.clone() };
                let (angles, rate) = angles(scheme, &axis);
                let values: Vec<f64> = angles.iter().map(|&s| field[0](s)).collect();
                let exact: Vec<f64> = angles.iter().map(|&s| rate.powi(k) * field[k as usize](s)).collect();
                let found = Matrix::derivative(scheme, order, &axis).apply(AxisId::Rows, &values, nodes, 1);
                largest_difference(&found, &exact)
            });
        }
    }
}

/// The formula's value on the field p (and K) made of functions of the angles along both axes.
fn evaluated(text: &str, grid: &Grid, schemes: [Scheme; 2], fields: [Vec<f64>; 2]) -> Vec<f64> {
    let symbols = Symbols { fields: vec!["p".into(), "K".into()], schemes, ..Symbols::new(grid.clone()) };
    let program = compile(text, &symbols).unwrap_or_else(|error| panic!("{error}"));
    let tape = program.forward(&F64Algebra::new(grid.clone()), &fields.map(Value::from));
    tape.output().broadcast(grid.len()).to_vec()
}

/// f(angle down, angle across) at every point.
fn on_grid(angles: [&[f64]; 2], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    angles[0].iter().flat_map(|&a| angles[1].iter().map(move |&b| (a, b))).map(|(a, b)| f(a, b)).collect()
}

#[test]
fn mixed_derivatives_converge_at_the_lower_order() {
    for (down, first) in every_axis(1) {
        for (across, second) in every_axis(1) {
            let order = promised(down).min(promised(across));
            let what = format!("mixed with {across}, {:?} and {:?}", first.placement, second.placement);
            assert_order(down, order, &what, |nodes| {
                let first = Axis { nodes, name: "t".into(), ..first.clone() };
                let second = Axis { nodes: nodes + 1, ..second.clone() };
                let ((a, da), (b, db)) = (angles(down, &first), angles(across, &second));
                let (f, g) = (known(down).0, known(across).0);
                let grid = Grid { axes: vec![first, second] };
                let p = on_grid([&a, &b], |a, b| f[0](a) * g[0](b));
                let exact = on_grid([&a, &b], |a, b| da * db * f[1](a) * g[1](b));
                let found = evaluated("dtx(p)", &grid, [down, across], [p.clone(), p]);
                largest_difference(&found, &exact)
            });
        }
    }
}

/// ∂ₓ(K ∂ₓp) on a line with a trivial second axis of space, whose fields are constant.
fn divgrad_error(text: &str, scheme: Scheme, axis: &Axis) -> f64 {
    let (angles, rate) = angles(scheme, axis);
    let (p, k) = known(scheme);
    let grid = Grid { axes: vec![axis.clone(), Axis::new("y", 3, 0.0, 1.0).periodic()] };
    let field = |f: &dyn Fn(f64) -> f64| on_grid([&angles, &[0.0; 3]], |s, _| f(s));
    let exact = field(&|s| rate * rate * (k[1](s) * p[1](s) + k[0](s) * p[2](s)));
    let found = evaluated(text, &grid, [scheme, Scheme::Periodic], [field(&p[0]), field(&k[0])]);
    largest_difference(&found, &exact)
}

#[test]
fn divgrad_converges_at_its_order() {
    for (scheme, axis) in every_axis(1) {
        for (text, order) in [("divgrad(K, p)", promised(scheme)), ("divgrad(K, p, harmonic)", 2.0)] {
            assert_order(scheme, order, &format!("{text}, {:?}", axis.placement), |nodes| {
                divgrad_error(text, scheme, &Axis { nodes, ..axis.clone() })
            });
        }
    }
}

#[test]
fn divgrad_sums_over_space_and_leaves_time_alone() {
    let exact = "4*x + y + 2";
    let square = Grid { axes: vec![Axis::new("x", 7, 0.0, 2.0), Axis::new("y", 6, -1.0, 1.0).cells()] };
    let symbols = Symbols::new(square.clone());
    let field = |text: &str| evaluate_constant(text, &symbols).unwrap();
    for scheme in [Scheme::OneSided2, Scheme::OneSided4] {
        let found = evaluated("divgrad(K, p)", &square, [scheme; 2], [field("x^2 + x*y"), field("1 + x")]);
        assert!(largest_difference(&found, &field(exact)) < 1e-11, "{scheme}");
    }
    let film = Grid { axes: vec![Axis::new("t", 7, 0.0, 2.0), Axis::new("x", 6, -1.0, 1.0)] };
    let symbols = Symbols::new(film.clone());
    let field = |text: &str| evaluate_constant(text, &symbols).unwrap();
    let found = evaluated("divgrad(K, p)", &film, symbols.schemes, [field("t^3*x^2"), field("t + x")]);
    assert!(largest_difference(&found, &field("2*t^4 + 4*t^3*x")) < 1e-11);
}

#[test]
fn one_sided_stencils_are_exact_on_polynomials() {
    // Degree up to which each scheme is exact, for first and second derivatives; inner second differences gain one.
    for (scheme, [first, second]) in [(Scheme::OneSided2, [2, 3]), (Scheme::OneSided4, [4, 5])] {
        for placement in [Placement::Nodes, Placement::Cells] {
            let axis = Axis { placement, ..Axis::new("x", 9, -1.0, 1.0) };
            for (order, degree) in [(Order::First, first), (Order::Second, second)] {
                for power in 0..=degree {
                    let x: Vec<f64> = (0..9).map(|i| axis.coordinate(i)).collect();
                    let values: Vec<f64> = x.iter().map(|x| x.powi(power)).collect();
                    let n = f64::from(power);
                    let exact = x.iter().map(|x| match order {
                        Order::First => n * x.powi((power - 1).max(0)),
                        Order::Second => n * (n - 1.0) * x.powi((power - 2).max(0)),
                    });
                    let found = Matrix::derivative(scheme, order, &axis).apply(AxisId::Cols, &values, 1, 9);
                    let error = largest_difference(&found, &exact.collect::<Vec<_>>());
                    assert!(error < 1e-11, "{scheme} {order:?} of x^{power}: {error}");
                }
            }
        }
    }
}

#[test]
fn ghosts_stand_at_nodes_or_faces() {
    let rows = |scheme, order, cells: bool| {
        let axis = if cells { Axis::new("x", 5, 0.0, 2.5).cells() } else { Axis::new("x", 5, 0.0, 2.0) };
        let rows = Matrix::derivative(scheme, order, &axis).rows;
        (rows[0].clone(), rows[4].clone())
    };
    assert_eq!(rows(Scheme::Mirror, Order::First, false), (vec![], vec![]));
    assert_eq!(rows(Scheme::Mirror, Order::Second, false), (vec![(0, -8.0), (1, 8.0)], vec![(3, 8.0), (4, -8.0)]));
    assert_eq!(rows(Scheme::Mirror, Order::First, true), (vec![(0, -1.0), (1, 1.0)], vec![(3, -1.0), (4, 1.0)]));
    assert_eq!(rows(Scheme::Mirror, Order::Second, true), (vec![(0, -4.0), (1, 4.0)], vec![(3, 4.0), (4, -4.0)]));
    assert_eq!(rows(Scheme::Zero, Order::First, false), (vec![(1, 1.0)], vec![(3, -1.0)]));
    assert_eq!(rows(Scheme::Zero, Order::First, true), (vec![(0, 1.0), (1, 1.0)], vec![(3, -1.0), (4, -1.0)]));
    assert_eq!(rows(Scheme::Zero, Order::Second, true), (vec![(0, -12.0), (1, 4.0)], vec![(3, 4.0), (4, -12.0)]));
}

#[test]
fn the_period_is_the_length_of_the_axis() {
    for (scheme, axis) in every_axis(7).into_iter().filter(|(scheme, _)| *scheme == Scheme::Spectral) {
        for nodes in [7, 8, 9, 12] {
            let axis = Axis { nodes, ..axis.clone() };
            let angles: Vec<f64> = (0..nodes).map(|i| TAU * axis.coordinate(i) / axis.length()).collect();
            let field: Vec<f64> = angles.iter().map(|s| (2.0 * s).sin()).collect();
            for (order, exact) in [(Order::First, TAU), (Order::Second, -TAU * TAU)] {
                let wave =
                    |s: &f64| if order == Order::First { exact * (2.0 * s).cos() } else { exact * (2.0 * s).sin() };
                let exact: Vec<f64> = angles.iter().map(wave).collect();
                let found = Matrix::derivative(scheme, order, &axis).apply(AxisId::Rows, &field, nodes, 1);
                assert!(largest_difference(&found, &exact) < 1e-11, "{nodes} {order:?}");
            }
        }
    }
}

#[test]
fn constant_conductivity_gives_the_second_derivative() {
    // Faces and second differences agree where both are second order, whatever the ends; Fourier ones do, too.
    for (scheme, axis) in every_axis(9) {
        let grid = Grid { axes: vec![axis, Axis::new("y", 3, 0.0, 1.0).periodic()] };
        let p: Vec<f64> = (0..27).map(|i| (1.7 * f64::from(i)).sin()).collect();
        let found = |text| evaluated(text, &grid, [scheme, Scheme::Periodic], [p.clone(), vec![1.0; 27]]);
        if !matches!(scheme, Scheme::OneSided4 | Scheme::Periodic4) {
            assert!(largest_difference(&found("divgrad(K, p)"), &found("laplacian(p)")) < 1e-10, "{scheme}");
        }
    }
}

fn random_axis(name: &'static str) -> impl Strategy<Value = (Scheme, Axis)> {
    let sizes = (6..12_usize, -1.0..1.0, 0.5..4.0_f64);
    (sizes, prop::sample::select(every_axis(1))).prop_map(move |((nodes, first, length), (scheme, axis))| {
        let Axis { periodic, placement, .. } = axis;
        (scheme, Axis { periodic, placement, ..Axis::new(name, nodes, first, first + length) })
    })
}

proptest! {
    #[test]
    fn transposes_are_adjoints(
        (down, rows) in random_axis("x"), (across, cols) in random_axis("y"), seed in 0..1000_usize,
    ) {
        let (n, m) = (rows.nodes, cols.nodes);
        let noise = |seed: usize| (0..n * m).map(|i| ((i * 7 + seed * 131) as f64 * 1.7).sin()).collect::<Vec<_>>();
        let inner = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (v, w) = (noise(seed), noise(seed + 1));
        for order in [Order::First, Order::Second] {
            for (scheme, axis, id) in [(down, &rows, AxisId::Rows), (across, &cols, AxisId::Cols)] {
                let matrix = Matrix::derivative(scheme, order, axis);
                let left = inner(&matrix.apply(id, &v, n, m), &w);
                let right = inner(&v, &matrix.transposed().apply(id, &w, n, m));
                let dense = matrix.dense();
                let size = dense.iter().fold(1.0, |size: f64, v| size.max(v.abs())) * (n * m) as f64;
                prop_assert!((left - right).abs() < 1e-13 * size, "{scheme} {order:?} {id:?}");
            }
        }
    }

    /// No flux leaves through mirrored or periodic ends, and periodic derivatives have no mean.
    #[test]
    fn fluxes_are_conserved(
        (down, rows) in random_axis("t"), (across, cols) in random_axis("x"), seed in 0..1000_usize,
    ) {
        let len = rows.nodes * cols.nodes;
        let noise = |seed: usize| (0..len).map(|i| ((i * 7 + seed * 131) as f64 * 1.7).sin()).collect::<Vec<_>>();
        let k: Vec<f64> = noise(seed + 1).iter().map(|k| 1.5 + k).collect();
        let scale = 100.0 * cols.spacing().powi(-2);
        let grid = Grid { axes: vec![rows, cols] };
        let total = |text: &str| {
            let found = evaluated(text, &grid, [down, across], [noise(seed), k.clone()]);
            found.iter().fold(0.0, |largest: f64, v| largest.max(v.abs())) / scale
        };
        let closed = across == Scheme::Mirror || across.is_periodic();
        for text in ["mean(divgrad(K, p), x)", "mean(divgrad(K, p, harmonic))"] {
            if closed {
                prop_assert!(total(text) < 1e-13, "{across}: {text} = {}", total(text));
            }
        }
        if across.is_periodic() {
            for text in ["mean(dx(p*K), x)", "mean(dxx(p))", "mean(dxt(p), x)"] {
                prop_assert!(total(text) < 1e-12, "{across}: {text} = {}", total(text));
            }
        }
        // ∫ q ∇·(K∇p) = ∫ p ∇·(K∇q): the operator is symmetric in the weighted product.
        if closed {
            let difference = total("mean(sin(p*K)*divgrad(K, p) - p*divgrad(K, sin(p*K)))");
            prop_assert!(difference < 1e-12, "{across}: {difference}");
        }
    }
}
