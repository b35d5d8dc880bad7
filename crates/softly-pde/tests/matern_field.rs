//! Matérn's fields: their covariance, their inverse, their determinant, and the same function on every grid.

mod common;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use softly_pde::grid::{Axis, Grid};
use softly_pde::matern_field::{MaternError, MaternField};

/// Grids of every kind of axis.
fn grids(rows: usize, cols: usize) -> Vec<Grid> {
    let axis = |name: &str, n: usize| Axis::new(name, n, -1.0, 3.0);
    vec![
        Grid { axes: vec![axis("x", rows), axis("y", cols)] },
        Grid { axes: vec![axis("x", rows).cells(), axis("y", cols).cells()] },
        Grid { axes: vec![axis("x", rows).periodic(), axis("y", cols).cells().periodic()] },
        Grid { axes: vec![axis("t", rows), axis("x", cols).periodic()] },
    ]
}

fn normals(n: usize, seed: u64) -> Vec<f64> {
    StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(seed)).take(n).collect()
}

/// The matrix ∂ε/∂z, column by column.
fn columns(field: &MaternField) -> Vec<Vec<f64>> {
    let unit = |k: usize| (0..field.len()).map(|i| f64::from(u8::from(i == k))).collect::<Vec<_>>();
    (0..field.len()).map(|k| field.colour(&unit(k))).collect()
}

#[test]
fn every_point_has_unit_variance() {
    for grid in grids(6, 9) {
        for (length, smoothness) in [(0.05, 0.5), (0.3, 1.5), (0.005, 0.5)] {
            let columns = columns(&MaternField::new(&grid, length, smoothness).unwrap());
            for point in 0..grid.len() {
                let variance: f64 = columns.iter().map(|column| column[point].powi(2)).sum();
                assert!((variance - 1.0).abs() < 1e-12, "{grid:?}, point {point}: {variance}");
            }
        }
    }
}

#[test]
fn whitening_undoes_colouring() {
    for grid in grids(7, 8) {
        let field = MaternField::new(&grid, 0.1, 1.0).unwrap();
        let z = normals(field.len(), 1);
        for (found, expected) in field.whiten(&field.colour(&z)).iter().zip(&z) {
            assert!((found - expected).abs() < 1e-10, "{found} against {expected}");
        }
    }
}

#[test]
fn the_determinant_is_the_matrix_s() {
    for grid in grids(4, 5) {
        let field = MaternField::new(&grid, 0.2, 0.5).unwrap();
        let columns = columns(&field);
        let matrix = faer::Mat::from_fn(field.len(), field.len(), |i, j| columns[j][i]);
        let found = field.log_determinant();
        let expected = matrix.determinant().abs().ln();
        assert!((found - expected).abs() < 1e-9, "{grid:?}: {found} against {expected}");
    }
}

#[test]
fn the_covariance_inside_is_matern_s() {
    // Along a row from the centre of a grid whose spacing is a quarter of ℓ, three ℓ and more from the boundary.
    let (n, length) = (41, 0.1);
    let exponential = |r: f64| (-r).exp();
    let smoother = |r: f64| (1.0 + 3f64.sqrt() * r) * (-(3f64.sqrt()) * r).exp();
    // Waves beyond the grid are missing, of which the kink of exp(−r) at 0 has many.
    let cases: [(f64, &dyn Fn(f64) -> f64, f64); 2] = [(0.5, &exponential, 0.07), (1.5, &smoother, 0.005)];
    for (smoothness, expected, tolerance) in cases {
        let columns = columns(&MaternField::new(&Grid::unit(n, n), length, smoothness).unwrap());
        let centre = n * n / 2;
        for step in 0..=8 {
            let found: f64 = columns.iter().map(|column| column[centre] * column[centre + step]).sum();
            let expected = expected(step as f64 * 0.25);
            assert!((found - expected).abs() < tolerance, "ν = {smoothness}, {step}: {found} against {expected}");
        }
    }
}

#[test]
fn a_finer_grid_shows_the_same_function() {
    let length = 0.2;
    // Smooth: what the finer grid adds is small.
    let [coarse, fine] = [9, 17].map(|n| MaternField::new(&Grid::unit(n, n), length, 3.0).unwrap());
    let z = normals(17 * 17, 3);
    let (low, high) = (coarse.colour(&z[..81]), fine.colour(&z));
    let gap = |node: usize| low[node] - high[2 * (node / 9) * 17 + 2 * (node % 9)];
    let rms = ((0..81).map(|node| gap(node).powi(2)).sum::<f64>() / 81.0).sqrt();
    assert!(rms < 0.1, "{rms}");
}

#[test]
fn bad_parameters_are_refused() {
    let grid = Grid::unit(8, 8);
    for (length, smoothness) in
        [(0.0, 0.5), (-1.0, 0.5), (0.1, 0.0), (f64::NAN, 1.0), (0.1, f64::INFINITY), (0.9, 20.0)]
    {
        let found = MaternField::new(&grid, length, smoothness).err();
        assert!(matches!(found, Some(MaternError::BadParameters { .. })), "{length}, {smoothness}: {found:?}");
    }
    assert!(matches!(MaternField::new(&Grid::unit(1, 8), 0.1, 0.5).err(), Some(MaternError::TooSmall { .. })));
    assert!(matches!(MaternField::new(&Grid::point(), 0.1, 0.5).err(), Some(MaternError::TooSmall { .. })));
}
