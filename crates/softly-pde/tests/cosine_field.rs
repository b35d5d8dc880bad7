//! Cosine fields against the sum they stand for and their exact spread.

mod common;

use std::f64::consts::PI;

use common::{relative_error, root_mean_square};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use softly_pde::cosine_field::{CosineField, CosineFieldError};
use softly_pde::grid::{Axis, Grid, GridError};

#[test]
fn the_pixel_spread_is_the_published_one() {
    // The transform is orthogonal, so signs do not matter and all normals being ±1 gives the expected mean square.
    let grid = Grid::unit(128, 128);
    let field = CosineField::new(&grid, 2.0, 3.0, false).unwrap();
    let signs: Vec<f64> = (0..grid.len()).map(|i| if (i * i / 7) % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let std = root_mean_square(&field.combine(&signs).unwrap());
    assert!((std - 0.29208).abs() < 5e-6, "{std}");
}

#[test]
fn samples_have_the_variance_of_their_waves() {
    let grid = Grid::unit(24, 24);
    let field = CosineField::new(&grid, 2.0, 3.0, false).unwrap();
    let expected = root_mean_square(&field.combine(&vec![1.0; grid.len()]).unwrap()).powi(2);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let squares: Vec<f64> = (0..2000).map(|_| root_mean_square(&field.sample(&mut rng)).powi(2)).collect();
    let mean = squares.iter().sum::<f64>() / 2000.0;
    let error = (squares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / 2000.0 / 2000.0).sqrt();
    assert!((mean - expected).abs() < 4.0 * error, "{mean} instead of {expected}, standard error {error}");
    assert!(error < 0.03 * expected);
}

#[test]
fn a_zero_border_changes_the_border_alone() {
    let grid = Grid::unit(5, 7);
    let sample =
        |zero_border| CosineField::new(&grid, 2.0, 3.0, zero_border).unwrap().sample(&mut ChaCha8Rng::seed_from_u64(3));
    let (free, zero) = (sample(false), sample(true));
    for node in 0..grid.len() {
        let (i, j) = (node / 7, node % 7);
        let inside = (1..4).contains(&i) && (1..6).contains(&j);
        assert_eq!(zero[node], if inside { free[node] } else { 0.0 });
        assert_ne!(free[node], 0.0);
    }
}

#[test]
fn errors_say_what_was_expected() {
    let grid = Grid::unit(6, 5);
    let error = |grid: &Grid, alpha, tau| CosineField::new(grid, alpha, tau, false).err().unwrap();
    for (alpha, tau) in [(2.0, 0.0), (2.0, -3.0), (f64::NAN, 3.0), (2.0, f64::INFINITY)] {
        assert!(matches!(error(&grid, alpha, tau), CosineFieldError::BadParameters { .. }), "{alpha}, {tau}");
    }
    assert!(matches!(error(&Grid::unit(0, 4), 2.0, 3.0), CosineFieldError::Grid(GridError::NodeCount { .. })));
    let periodic = Grid { axes: vec![Axis::new("x", 6, 0.0, 1.0).periodic(), Axis::new("y", 5, 0.0, 1.0).cells()] };
    let found = error(&periodic, 2.0, 3.0).to_string();
    assert_eq!(found, "axis `x`: this random field cannot use a periodic axis");
    assert_eq!(CosineField::new(&Grid::point(), 2.0, 3.0, false).unwrap().combine(&[1.0]), Ok(vec![0.0]));
    let field = CosineField::new(&grid, 2.0, 3.0, false).unwrap();
    assert_eq!(field.combine(&[0.0; 29]), Err(CosineFieldError::WrongLength { expected: 30, found: 29 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn fields_are_the_sum_of_cosines(
        rows in 1_usize..40, cols in 1_usize..12, alpha in 1.0..3.0_f64, tau in 0.5..8.0_f64, length in 0.5..2.0_f64,
    ) {
        let grid = Grid { axes: vec![Axis::new("x", rows, 0.0, length), Axis::new("y", cols, 0.0, 1.0)] };
        prop_assume!(grid.len() > 1);
        let normals: Vec<f64> = (0..grid.len()).map(|i| (1.3 * i as f64).sin()).collect();
        let found = CosineField::new(&grid, alpha, tau, false).unwrap().combine(&normals).unwrap();
        let mut expected = vec![0.0; grid.len()];
        for (wave, normal) in normals.iter().enumerate().skip(1) {
            let (p, q) = (wave / cols, wave % cols);
            let square = PI * PI * ((p as f64 / length).powi(2) + (q * q) as f64);
            let halves = f64::from(u8::from(p == 0) + u8::from(q == 0));
            let amplitude = 2.0 * 0.5_f64.powf(0.5 * halves) * tau.powf(alpha - 1.0)
                * (square + tau * tau).powf(-0.5 * alpha);
            for (node, value) in expected.iter_mut().enumerate() {
                let cosine = |k: usize, i: usize, n: usize| (PI * k as f64 * (i as f64 + 0.5) / n as f64).cos();
                *value += amplitude * normal * cosine(p, node / cols, rows) * cosine(q, node % cols, cols);
            }
        }
        prop_assert!(relative_error(&found, &expected) < 1e-12);
    }
}
