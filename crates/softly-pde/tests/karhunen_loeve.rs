//! Karhunen–Loève expansions against reference eigenvalues and the covariance matrix itself.

mod common;

use common::{reference, relative_error, root_mean_square};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use softly_pde::grid::{Axis, AxisId, Grid, GridError};
use softly_pde::karhunen_loeve::{KarhunenLoeve, KarhunenLoeveError};

/// The covariance matrix, `[nodes, nodes]`.
fn covariance(grid: &Grid, length: f64) -> Vec<f64> {
    let (x, y) = (grid.coordinate(AxisId::Rows), grid.coordinate(AxisId::Cols));
    let n = grid.len();
    (0..n * n).map(|e| (-(x[e / n] - x[e % n]).hypot(y[e / n] - y[e % n]) / length).exp()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The largest of `|Cφ - λφ|` relative to the largest eigenvalue and of the deviations from orthonormality.
fn worst_defect(field: &KarhunenLoeve, grid: &Grid, length: f64) -> f64 {
    let c = covariance(grid, length);
    let modes: Vec<&[f64]> = field.modes().chunks_exact(grid.len()).collect();
    let mut worst: f64 = 0.0;
    for (k, mode) in modes.iter().enumerate() {
        for (row, entry) in c.chunks_exact(grid.len()).zip(*mode) {
            let defect = dot(row, mode) - field.eigenvalues()[k] * entry;
            worst = worst.max(defect.abs() / field.eigenvalues()[0]);
        }
        for (l, other) in modes.iter().enumerate() {
            worst = worst.max((dot(mode, other) - f64::from(u8::from(k == l))).abs());
        }
    }
    worst
}

#[test]
fn eigenvalues_of_the_reference_generator() {
    for n in [32, 64] {
        let field = KarhunenLoeve::new(&Grid::unit(n, n), 0.1, 64).unwrap();
        let expected = reference(&format!("darcy_solve_pidm_{n}"), "eigenvalues");
        for (k, (found, expected)) in field.eigenvalues().iter().zip(&expected).enumerate() {
            assert!((found / expected - 1.0).abs() < 1e-9, "{n}: eigenvalue {k} is {found}, not {expected}");
        }
        assert_eq!(field.eigenvalues().len(), expected.len());
    }
}

#[test]
fn modes_are_orthonormal_eigenvectors() {
    for (rows, cols, height, length, modes) in
        [(24, 24, 1.0, 0.1, 40), (17, 30, 2.5, 0.3, 25), (1, 50, 1.0, 0.2, 12), (7, 1, 1.0, 1e3, 3)]
    {
        let grid = Grid { axes: vec![Axis::new("x", rows, 0.0, height), Axis::new("y", cols, -1.0, 0.0)] };
        let field = KarhunenLoeve::new(&grid, length, modes).unwrap();
        let worst = worst_defect(&field, &grid, length);
        assert!(worst < 1e-11, "{rows} × {cols}: {worst:e}");
    }
}

#[test]
fn all_modes_together_are_the_covariance() {
    // Lengths far below the spacing make all eigenvalues equal, the worst case of an iterative search.
    for (rows, cols, length) in [(6, 5, 0.4), (7, 7, 0.1), (8, 6, 1e-4)] {
        let grid = Grid::unit(rows, cols);
        let n = grid.len();
        let field = KarhunenLoeve::new(&grid, length, n).unwrap();
        let mut sum = vec![0.0; n * n];
        for (eigenvalue, mode) in field.eigenvalues().iter().zip(field.modes().chunks_exact(n)) {
            for (entry, value) in sum.iter_mut().enumerate() {
                *value += eigenvalue * mode[entry / n] * mode[entry % n];
            }
        }
        assert!(relative_error(&sum, &covariance(&grid, length)) < 1e-12, "{rows} × {cols}");
    }
}

#[test]
fn pairs_on_a_square_are_told_apart_by_symmetry() {
    let n = 12;
    let field = KarhunenLoeve::new(&Grid::unit(n, n), 0.2, 20).unwrap();
    let (values, modes) = (field.eigenvalues(), field.modes());
    // The second and third mode are one half wave along y and along x.
    assert!((values[1] / values[2] - 1.0).abs() < 1e-12);
    let along_y: Vec<f64> = modes[n * n..2 * n * n].to_vec();
    for (i, line) in along_y.chunks_exact(n).enumerate() {
        for (j, &value) in line.iter().enumerate() {
            assert!((value + line[n - 1 - j]).abs() < 1e-10);
            assert!((value - modes[2 * n * n + j * n + i]).abs() < 1e-10);
        }
    }
    assert!(values.is_sorted_by(|a, b| *a >= b * (1.0 - 1e-8)));
    for mode in modes.chunks_exact(n * n) {
        let largest = mode.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let first = mode.iter().find(|v| v.abs() > largest * (1.0 - 1e-6));
        assert!(first.is_some_and(|v| *v > 0.0));
    }
    assert_eq!(KarhunenLoeve::new(&Grid::unit(n, n), 0.2, 20).unwrap(), field);
}

#[test]
fn samples_have_the_variance_of_their_modes() {
    let grid = Grid::unit(16, 16);
    let field = KarhunenLoeve::new(&grid, 0.1, 32).unwrap();
    let expected = field.eigenvalues().iter().sum::<f64>() / grid.len() as f64;
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let squares: Vec<f64> = (0..2000).map(|_| root_mean_square(&field.sample(&mut rng)).powi(2)).collect();
    let mean = squares.iter().sum::<f64>() / 2000.0;
    let error = (squares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / 2000.0 / 2000.0).sqrt();
    assert!((mean - expected).abs() < 4.0 * error, "{mean} instead of {expected}, standard error {error}");
    assert!(error < 0.02 * expected);
}

#[test]
fn errors_say_what_was_expected() {
    let grid = Grid::unit(4, 5);
    for length in [0.0, -1.0, f64::INFINITY] {
        assert_eq!(KarhunenLoeve::new(&grid, length, 3), Err(KarhunenLoeveError::BadLength { length }));
    }
    for modes in [0, 21] {
        assert_eq!(KarhunenLoeve::new(&grid, 0.1, modes), Err(KarhunenLoeveError::BadModes { modes, nodes: 20 }));
    }
    assert!(matches!(
        KarhunenLoeve::new(&Grid::unit(0, 3), 0.1, 1),
        Err(KarhunenLoeveError::Grid(GridError::NodeCount { .. }))
    ));
    let periodic = Grid { axes: vec![Axis::new("x", 6, 0.0, 1.0), Axis::new("y", 5, 0.0, 1.0).periodic()] };
    assert!(matches!(
        KarhunenLoeve::new(&periodic, 0.1, 1),
        Err(KarhunenLoeveError::Grid(GridError::Unsuitable { periodic: true, .. }))
    ));
    assert_eq!(KarhunenLoeve::new(&Grid::point(), 0.1, 1).unwrap().eigenvalues().len(), 1);
    let field = KarhunenLoeve::new(&grid, 0.1, 3).unwrap();
    assert_eq!(field.combine(&[1.0; 4]), Err(KarhunenLoeveError::WrongLength { expected: 3, found: 4 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn modes_are_eigenvectors_of_any_grid(
        rows in 1_usize..14, cols in 1_usize..14, height in 0.2..3.0_f64, length in 0.01..3.0_f64,
        share in 0.0..1.0_f64,
    ) {
        let grid = Grid { axes: vec![Axis::new("x", rows, 0.0, height), Axis::new("y", cols, 0.0, 1.0)] };
        let modes = 1 + (share * (grid.len() - 1) as f64) as usize;
        let field = KarhunenLoeve::new(&grid, length, modes).unwrap();
        prop_assert!(worst_defect(&field, &grid, length) < 1e-11);
        // None is missing: what is left of the trace is no more than the last eigenvalue for each mode left out.
        let left: f64 = grid.len() as f64 - field.eigenvalues().iter().sum::<f64>();
        prop_assert!(left <= (grid.len() - modes) as f64 * field.eigenvalues()[modes - 1] + 1e-9);
    }
}
