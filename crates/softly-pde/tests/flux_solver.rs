//! The solver of fluxes against manufactured solutions, its own formula and bad input.

mod common;

use std::f64::consts::PI;

use common::slope;
use softly_pde::flux::FaceMean;
use softly_pde::flux_solver::{FluxError, FluxSolver};
use softly_pde::grid::{Axis, AxisId, Grid, GridError};

fn cells(rows: usize, cols: usize) -> Grid {
    Grid { axes: vec![Axis::new("x", rows, 0.0, 1.0).cells(), Axis::new("y", cols, 0.0, 1.0).cells()] }
}

fn field(grid: &Grid, value: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let places = grid.coordinate(AxisId::Rows).into_iter().zip(grid.coordinate(AxisId::Cols));
    places.map(|(x, y)| value(x, y)).collect()
}

/// The order in h of the largest error of the solution for K and f against u.
fn order(mean: FaceMean, k: fn(f64, f64) -> f64, f: fn(f64, f64) -> f64, u: fn(f64, f64) -> f64) -> f64 {
    let sizes = [16, 24, 32, 48, 64];
    let errors = sizes.map(|n| {
        let grid = cells(n, n + n / 2);
        let found = FluxSolver::new(&grid, mean).unwrap().solve(&field(&grid, k), &field(&grid, f)).unwrap();
        found.iter().zip(field(&grid, u)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max).ln()
    });
    -slope(&sizes.map(|n| f64::from(n as u32).ln()), &errors)
}

#[test]
fn smooth_coefficients_give_second_order() {
    // u = sin πx sin πy with K = 1 + x + y²: f = −∇·(K∇u).
    let k = |x: f64, y: f64| 1.0 + x + y * y;
    let u = |x: f64, y: f64| (PI * x).sin() * (PI * y).sin();
    let f = |x: f64, y: f64| {
        let (s, c) =
            ((PI * x).sin() * (PI * y).sin(), [(PI * x).cos() * (PI * y).sin(), (PI * x).sin() * (PI * y).cos()]);
        2.0 * PI * PI * (1.0 + x + y * y) * s - PI * c[0] - 2.0 * y * PI * c[1]
    };
    for mean in [FaceMean::Arithmetic, FaceMean::Harmonic] {
        let found = order(mean, k, f, u);
        assert!((1.85..2.15).contains(&found), "{mean:?}: order {found}");
    }
}

#[test]
fn a_jump_at_faces_costs_the_arithmetic_mean_an_order() {
    // K u = sin 2πx sin πy is smooth though K jumps from 3 to 12 at x = ½, where u vanishes: the flux is continuous.
    let k = |x: f64, _: f64| if x < 0.5 { 3.0 } else { 12.0 };
    let u = |x: f64, y: f64| (2.0 * PI * x).sin() * (PI * y).sin() / if x < 0.5 { 3.0 } else { 12.0 };
    let f = |x: f64, y: f64| 5.0 * PI * PI * (2.0 * PI * x).sin() * (PI * y).sin();
    let harmonic = order(FaceMean::Harmonic, k, f, u);
    assert!((1.85..2.15).contains(&harmonic), "order {harmonic}");
    let arithmetic = order(FaceMean::Arithmetic, k, f, u);
    assert!((0.8..1.2).contains(&arithmetic), "order {arithmetic}");
}

#[test]
fn solutions_are_linear_in_the_source_and_positive_sources_lift() {
    let grid = cells(12, 9);
    let solver = FluxSolver::new(&grid, FaceMean::Arithmetic).unwrap();
    let k = field(&grid, |x, y| if x + y < 0.8 { 3.0 } else { 12.0 });
    let one = solver.solve(&k, &vec![1.0; grid.len()]).unwrap();
    assert!(one.iter().all(|u| *u > 0.0));
    let twice = solver.solve(&k, &vec![2.0; grid.len()]).unwrap();
    assert!(one.iter().zip(&twice).all(|(a, b)| (2.0 * a - b).abs() < 1e-14));
    // Symmetric: the answer at a to a source at b is the answer at b to a source at a.
    let response = |at: usize| {
        let mut source = vec![0.0; grid.len()];
        source[at] = 1.0;
        solver.solve(&k, &source).unwrap()
    };
    assert!((response(17)[80] - response(80)[17]).abs() < 1e-16);
}

#[test]
fn what_cannot_be_solved_is_refused() {
    let nodes = Grid::unit(8, 8);
    assert_eq!(FluxSolver::new(&nodes, FaceMean::Arithmetic).err(), Some(FluxError::Nodes { axis: "x".into() }));
    let mut periodic = cells(8, 8);
    periodic.axes[1].periodic = true;
    let found = FluxSolver::new(&periodic, FaceMean::Arithmetic).err();
    assert!(matches!(found, Some(FluxError::Grid(GridError::Unsuitable { .. }))));
    let grid = cells(4, 5);
    let solver = FluxSolver::new(&grid, FaceMean::Harmonic).unwrap();
    let ones = vec![1.0; 20];
    assert!(matches!(solver.solve(&ones[1..], &ones), Err(FluxError::WrongLength { expected: 20, found: 19, .. })));
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut k = ones.clone();
        k[7] = bad;
        assert!(matches!(solver.solve(&k, &ones), Err(FluxError::BadValue { row: 1, col: 2, .. })), "{bad}");
    }
    let mut source = ones.clone();
    source[19] = f64::NAN;
    assert!(matches!(solver.solve(&ones, &source), Err(FluxError::BadValue { field: "the source", .. })));
}
