//! Modes of covariances and updates by linear rows against the same in plain sums.

use softly_pde::gaussian::{Covariance, Modes, Update, inflated_means};

/// Numbers without a pattern.
fn numbers(count: usize, seed: f64) -> Vec<f64> {
    (0..count).map(|i| (i as f64 * 12.9898 + seed).sin() * 43_758.545_3).map(|v| v - v.floor() - 0.5).collect()
}

fn covariance(samples: &[f64], n: usize) -> Vec<f64> {
    let count = (samples.len() / n) as f64;
    let entry = |i: usize, j: usize| samples.chunks_exact(n).map(|x| x[i] * x[j]).sum::<f64>() / count;
    (0..n * n).map(|k| entry(k / n, k % n)).collect()
}

fn of_modes(modes: &Modes, n: usize) -> Vec<f64> {
    let mut sum = vec![0.0; n * n];
    for mode in modes.vectors.chunks_exact(n) {
        sum.iter_mut().enumerate().for_each(|(k, s)| *s += mode[k / n] * mode[k % n]);
    }
    sum
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn all_modes_are_the_covariance_with_more_and_with_fewer_samples_than_dimensions() {
    for (count, n) in [(40, 6), (5, 12)] {
        let samples = numbers(count * n, 0.3);
        let modes = Modes::of_samples(&samples, n, n, 0.0);
        assert_eq!(modes.len(), n.min(count));
        let difference = largest_difference(&of_modes(&modes, n), &covariance(&samples, n));
        assert!(difference < 1e-12, "{difference}");
        assert!(modes.rest.iter().all(|v| *v < 1e-12), "{:?}", modes.rest);
    }
}

#[test]
fn modes_that_are_left_out_are_the_rest() {
    let (count, n) = (50, 8);
    let samples = numbers(count * n, 1.7);
    let modes = Modes::of_samples(&samples, n, 3, 0.0);
    let (kept, all) = (of_modes(&modes, n), covariance(&samples, n));
    for i in 0..n {
        assert!((kept[i * n + i] + modes.rest[i] - all[i * n + i]).abs() < 1e-12);
    }
    let few = Modes::of_samples(&samples, n, n, 0.3);
    let total: f64 = (0..n).map(|i| all[i * n + i]).sum();
    let held: f64 = few.values.iter().sum();
    assert!(held >= 0.7 * total && held - few.values.last().unwrap() < 0.7 * total);
}

#[test]
fn a_covariance_between_two_is_their_weighted_mean() {
    let n = 5;
    let [a, b] = [0.1, 2.2].map(|seed| numbers(30 * n, seed));
    let [first, second] = [&a, &b].map(|samples| Modes::of_samples(samples, n, 2, 0.0));
    let between = Modes::between(&first, &second, 0.25, n, 0.0);
    let expected: Vec<f64> =
        of_modes(&first, n).iter().zip(of_modes(&second, n)).map(|(a, b)| 0.75 * a + 0.25 * b).collect();
    assert!(largest_difference(&of_modes(&between, n), &expected) < 1e-12);
    let rest: Vec<f64> = first.rest.iter().zip(&second.rest).map(|(a, b)| 0.75 * a + 0.25 * b).collect();
    assert!(largest_difference(&between.rest, &rest) < 1e-12);
}

#[test]
fn a_projection_keeps_the_modes_and_drops_the_rest() {
    let n = 6;
    let modes = Modes::of_samples(&numbers(30 * n, 0.9), n, 2, 0.0);
    let mode = modes.vectors[n..2 * n].to_vec();
    assert!(largest_difference(&modes.projected(&mode), &mode) < 1e-12);
    let x = numbers(n, 5.0);
    let once = modes.projected(&x);
    assert!(largest_difference(&modes.projected(&once), &once) < 1e-12);
    assert!(largest_difference(&once, &x) > 0.01);
}

#[test]
fn an_update_solves_the_normal_equations_from_either_side() {
    for (rows, modes) in [(3, 7), (9, 4), (1, 1)] {
        let (columns, right) = (numbers(rows * modes, 0.5), numbers(rows, 3.0));
        let update = Update::new(&columns, modes);
        let mean = update.mean(&right);
        // (I + Aᵀ A) mean = Aᵀ r.
        let image = |i: usize| (0..modes).map(|k| columns[k * rows + i] * mean[k]).sum::<f64>();
        for (k, column) in columns.chunks_exact(rows).enumerate() {
            let left: f64 = column.iter().enumerate().map(|(i, a)| a * image(i)).sum();
            let expected: f64 = column.iter().zip(&right).map(|(a, r)| a * r).sum();
            assert!((mean[k] + left - expected).abs() < 1e-12);
        }
    }
}

#[test]
fn inflated_noise_is_rows_and_readings_divided_by_its_deviation() {
    for (rows, modes) in [(3, 7), (9, 4)] {
        let (columns, right) = (numbers(rows * modes, 0.2), numbers(rows, 4.0));
        let inflations = [1.0, 25.0];
        for (mean, inflation) in inflated_means(&columns, modes, &right, &inflations).iter().zip(inflations) {
            let divided = |values: &[f64]| values.iter().map(|v| v / inflation.sqrt()).collect::<Vec<f64>>();
            let expected = Update::new(&divided(&columns), modes).mean(&divided(&right));
            assert!(largest_difference(mean, &expected) < 1e-12);
        }
    }
}

#[test]
fn a_factorised_covariance_solves_for_several_right_hand_sides() {
    let (n, columns) = (6, 3);
    let mut matrix = covariance(&numbers(40 * n, 0.7), n);
    (0..n).for_each(|i| matrix[i * n + i] += 0.1);
    let right = numbers(n * columns, 2.5);
    let solved = Covariance::new(&matrix, n).solve(&right);
    let image = |i: usize, j: usize| (0..n).map(|k| matrix[i * n + k] * solved[k * columns + j]).sum::<f64>();
    let image: Vec<f64> = (0..n * columns).map(|k| image(k / columns, k % columns)).collect();
    assert!(largest_difference(&image, &right) < 1e-12);
}
