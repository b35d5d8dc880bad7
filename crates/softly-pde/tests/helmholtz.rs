//! The Helmholtz solver against reference numbers, manufactured solutions and bad input.

mod common;

use std::f64::consts::PI;

use common::{reference, relative_error, slope};
use proptest::prelude::*;
use softly_pde::derivative::{Order, Scheme};
use softly_pde::grid::{Axis, AxisId, Grid, GridError};
use softly_pde::helmholtz::{HelmholtzError, HelmholtzSolver, RESONANCE_TOLERANCE};
use softly_pde::matrix::Matrix;

/// `∇²u + k²u` at the interior nodes, `[rows - 2, cols - 2]`.
fn operator(grid: &Grid, k: f64, u: &[f64]) -> Vec<f64> {
    let second =
        |axis| Matrix::on_grid(Scheme::Zero, Order::Second, grid, axis).apply(axis, u, grid.rows(), grid.cols());
    let all = second(AxisId::Rows).into_iter().zip(second(AxisId::Cols)).zip(u).map(|((x, y), u)| x + y + k * k * u);
    interior(grid, &all.collect::<Vec<_>>())
}

fn interior(grid: &Grid, field: &[f64]) -> Vec<f64> {
    let lines = field.chunks_exact(grid.cols()).skip(1).take(grid.rows() - 2);
    lines.flat_map(|line| &line[1..grid.cols() - 1]).copied().collect()
}

#[test]
fn solutions_of_a_sparse_factorisation() {
    let grid = Grid::unit(64, 64);
    let sources = reference("helmholtz_solve", "a");
    for (k, name) in [(1.0, "u_k1"), (4.0, "u_k4")] {
        let solver = HelmholtzSolver::new(&grid, k).unwrap();
        let expected = reference("helmholtz_solve", name);
        for (a, u) in sources.chunks_exact(grid.len()).zip(expected.chunks_exact(grid.len())) {
            let error = relative_error(&solver.solve(a).unwrap(), u);
            assert!(error < 1e-10, "k = {k}: relative error {error:e}");
        }
    }
}

#[test]
fn residuals_of_the_reference_implementation() {
    let grid = Grid::unit(48, 48);
    let [a, u, expected] = ["a", "u", "residual_interior"].map(|name| reference("helmholtz_residual_fundps", name));
    let samples = a.chunks_exact(grid.len()).zip(u.chunks_exact(grid.len()));
    for ((a, u), expected) in samples.zip(expected.chunks_exact(46 * 46)) {
        let found: Vec<f64> = operator(&grid, 1.0, u).iter().zip(interior(&grid, a)).map(|(l, a)| l - a).collect();
        let error = relative_error(&found, expected);
        assert!(error < 1e-10, "relative error {error:e}");
    }
}

#[test]
fn second_order_convergence() {
    let k = 5.0;
    let (mut steps, mut errors) = (vec![], vec![]);
    for n in [17, 33, 49, 97] {
        let grid = Grid { axes: vec![Axis::new("x", n, 0.0, 1.0), Axis::new("y", 2 * n, -1.0, 1.0)] };
        // Zero at the ends without being a sum of few sines.
        let nodes = || grid.coordinate(AxisId::Rows).into_iter().zip(grid.coordinate(AxisId::Cols));
        let exact: Vec<f64> = nodes().map(|(x, y)| x * (1.0 - x) * x.exp() * (PI * y).sin()).collect();
        let source: Vec<f64> = nodes()
            .map(|(x, y)| {
                // (x - x²) eˣ has second derivative -(3x + x²) eˣ.
                let (u, u_xx) = (x * (1.0 - x) * x.exp(), -(3.0 * x + x * x) * x.exp());
                (u_xx + (k * k - PI * PI) * u) * (PI * y).sin()
            })
            .collect();
        let found = HelmholtzSolver::new(&grid, k).unwrap().solve(&source).unwrap();
        steps.push(grid.spacing(AxisId::Rows).ln());
        errors.push(relative_error(&found, &exact).ln());
    }
    let order = slope(&steps, &errors);
    assert!((order - 2.0).abs() < 0.1, "order {order}, errors {errors:?}");
}

#[test]
fn resonance_is_reported_and_refused() {
    let grid = Grid { axes: vec![Axis::new("x", 20, 0.0, 1.0), Axis::new("y", 33, 0.0, 1.5)] };
    // The eigenvalue of the mode with 2 × 3 half waves, from the stencil applied to that mode.
    let mode: Vec<f64> = grid
        .coordinate(AxisId::Rows)
        .into_iter()
        .zip(grid.coordinate(AxisId::Cols))
        .map(|(x, y)| (2.0 * PI * x).sin() * (2.0 * PI * y).sin())
        .collect();
    let eigenvalue = -operator(&grid, 0.0, &mode)[5] / interior(&grid, &mode)[5];
    let k = |relative: f64| (eigenvalue * (1.0 + relative)).sqrt();

    let solver = HelmholtzSolver::new(&grid, k(1e-3)).unwrap();
    let nearest = solver.nearest_eigenvalue();
    assert_eq!(nearest.half_waves, [2, 3]);
    assert!((nearest.eigenvalue / eigenvalue - 1.0).abs() < 1e-12);
    assert!((nearest.relative_distance / 1e-3 - 1.0).abs() < 1e-9);

    for relative in [0.0, 0.9 * RESONANCE_TOLERANCE, -0.9 * RESONANCE_TOLERANCE] {
        match HelmholtzSolver::new(&grid, k(relative)).err() {
            Some(HelmholtzError::Resonance { nearest, .. }) => assert_eq!(nearest.half_waves, [2, 3]),
            other => panic!("{relative}: {other:?}"),
        }
    }
    // Just outside the tolerance the solution is still right.
    let k = k(1.1 * RESONANCE_TOLERANCE);
    let source: Vec<f64> = (0..grid.len()).map(|i| (1.7 * i as f64).sin()).collect();
    let u = HelmholtzSolver::new(&grid, k).unwrap().solve(&source).unwrap();
    let error = relative_error(&operator(&grid, k, &u), &interior(&grid, &source));
    assert!(error < 1e-7, "{error:e}");
}

#[test]
fn errors_say_what_and_where() {
    let grid = Grid::unit(5, 4);
    let error = |grid: &Grid, k| HelmholtzSolver::new(grid, k).err().unwrap();
    assert_eq!(error(&Grid::unit(2, 9), 1.0), HelmholtzError::GridTooSmall { rows: 2, cols: 9 });
    assert_eq!(error(&grid, 1e200), HelmholtzError::BadWaveNumber { wave_number: 1e200 });
    assert!(matches!(error(&grid, f64::NAN), HelmholtzError::BadWaveNumber { .. }));
    let degenerate = Grid { axes: vec![grid.axes[0].clone(), Axis::new("y", 4, 1.0, 1.0)] };
    assert_eq!(
        error(&degenerate, 1.0),
        HelmholtzError::Grid(GridError::Ends { axis: "y".into(), first: 1.0, last: 1.0 })
    );

    let periodic = Grid { axes: vec![Axis::new("z", 5, 0.0, 1.0).periodic(), Axis::new("y", 4, 0.0, 1.0)] };
    assert_eq!(error(&periodic, 1.0).to_string(), "axis `z`: the Helmholtz solver cannot use a periodic axis");

    let solver = HelmholtzSolver::new(&grid, 1.0).unwrap();
    assert_eq!(solver.solve(&[1.0; 19]), Err(HelmholtzError::WrongLength { expected: 20, found: 19 }));
    let mut source = vec![1.0; 20];
    source[6] = f64::INFINITY;
    let error = solver.solve(&source);
    assert_eq!(error, Err(HelmholtzError::NotFinite { row: 1, col: 2, value: f64::INFINITY }));
}

proptest! {
    /// The solution satisfies the stencil equations and the boundary condition on any grid.
    #[test]
    fn solutions_satisfy_the_equations(
        rows in 3_usize..40, cols in 3_usize..40, length in 0.3..3.0_f64, k in 0.0..30.0_f64, seed in 0.0..6.0_f64,
    ) {
        let grid = Grid { axes: vec![Axis::new("x", rows, 0.0, 1.0), Axis::new("y", cols, 1.0, 1.0 + length)] };
        let source: Vec<f64> = (0..grid.len()).map(|i| (1.7 * i as f64 + seed).sin()).collect();
        let solver = match HelmholtzSolver::new(&grid, k) {
            Ok(solver) => solver,
            Err(error) => return Err(TestCaseError::reject(error.to_string())),
        };
        prop_assume!(solver.nearest_eigenvalue().relative_distance > 1e-4);
        let u = solver.solve(&source).unwrap();
        let on_border = |node: usize| {
            let (i, j) = (node / cols, node % cols);
            i == 0 || j == 0 || i == rows - 1 || j == cols - 1
        };
        prop_assert!(u.iter().enumerate().all(|(node, &v)| !on_border(node) || v == 0.0));
        prop_assert!(relative_error(&operator(&grid, k, &u), &interior(&grid, &source)) < 1e-8);
        prop_assert_eq!(solver.solve(&source).unwrap(), u);
    }
}
