//! Matrices along the axes of images against plain sums, in both precisions.

mod common;

use common::{at_every_level, noise};
use proptest::prelude::*;
use softly_kernels::axis::{BothAxes, Number, Sparse};

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// A matrix with three full diagonals, one-sided ends and a corner, as derivatives have them, `[n, n]`.
fn derivative(n: usize) -> Vec<f32> {
    let values = noise(7, n * n);
    let near = |i: usize, j: usize| i.abs_diff(j) < 2 || (i == 0 && j < 4) || (i + 1 == n && (j + 4 > n || j == 0));
    (0..n * n).map(|i| if near(i / n, i % n) { values[i] } else { 0.0 }).collect()
}

fn sparse<T: Number + PartialEq>(dense: &[T], n: usize) -> Sparse<T> {
    let row = |row: &[T]| row.iter().copied().enumerate().filter(|(_, v)| *v != T::default()).collect();
    Sparse::new(dense.chunks_exact(n).map(row).collect())
}

/// L x R, one image.
fn both(left: &[f32], x: &[f32], right: &[f32], [h, w]: [usize; 2]) -> Vec<f64> {
    let product = |i: usize, j: usize| {
        let terms = (0..h * w).map(|k| [left[i * h + k / w], x[k], right[k % w * w + j]].map(f64::from));
        terms.map(|[l, x, r]| l * x * r).sum()
    };
    (0..h * w).map(|k| product(k / w, k % w)).collect()
}

fn identity(n: usize) -> Vec<f32> {
    (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect()
}

fn transposed(m: &[f32], n: usize) -> Vec<f32> {
    (0..n * n).map(|i| m[i % n * n + i / n]).collect()
}

/// Asserts that numbers are those of `exact` but for `tolerance` times the largest.
fn assert_close(name: &str, found: &[impl Into<f64> + Copy], exact: &[f64], tolerance: f64) {
    let size = exact.iter().fold(1.0_f64, |size, x| size.max(x.abs()));
    for (i, (found, exact)) in found.iter().zip(exact).enumerate() {
        let found: f64 = (*found).into();
        assert!((found - exact).abs() <= tolerance * size, "{name}[{i}] = {found}, expected {exact}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_sparse_matrix_along_either_axis_and_its_transpose(h in 4..40_usize, w in 4..40_usize, images in 1..4_usize) {
        let x = noise(1, images * h * w);
        let (rows, cols) = (derivative(h), derivative(w));
        let exact = |left: &[f32], right: &[f32]| -> Vec<f64> {
            x.chunks_exact(h * w).flat_map(|x| both(left, x, right, [h, w])).collect()
        };
        let down = exact(&rows, &identity(w));
        let down_transposed = exact(&transposed(&rows, h), &identity(w));
        let across = exact(&identity(h), &transposed(&cols, w));
        let across_transposed = exact(&identity(h), &cols);
        at_every_level(|| {
            let mut y = vec![f32::NAN; x.len()];
            let [along_rows, along_cols] = [sparse(&rows, h), sparse(&cols, w)];
            along_rows.down(w, &x, &mut y);
            assert_close("down", &y, &down, 1e-6);
            along_rows.transposed().down(w, &x, &mut y);
            assert_close("down, transposed", &y, &down_transposed, 1e-6);
            along_cols.across(&x, &mut y);
            assert_close("across", &y, &across, 1e-6);
            along_cols.transposed().across(&x, &mut y);
            assert_close("across, transposed", &y, &across_transposed, 1e-6);
            let (x, mut y) = (wide(&x), vec![f64::NAN; x.len()]);
            sparse(&wide(&rows), h).down(w, &x, &mut y);
            assert_close("down, f64", &y, &down, 1e-14);
            sparse(&wide(&cols), w).across(&x, &mut y);
            assert_close("across, f64", &y, &across, 1e-14);
        });
    }

    #[test]
    fn matrices_along_both_axes_and_their_transposes(h in 1..24_usize, w in 1..70_usize, samples in 1..3_usize) {
        let (left, right) = (noise(1, 2 * h * h), noise(2, 2 * w * w));
        let x = noise(3, samples * 2 * h * w);
        let matrices = BothAxes { shape: [2, h, w], left, right };
        let in_f64 = BothAxes { shape: [2, h, w], left: wide(&matrices.left), right: wide(&matrices.right) };
        let exact = |BothAxes { left, right, .. }: &BothAxes<f32>| -> Vec<f64> {
            let image = |(i, x): (usize, &[f32])| {
                both(&left[i % 2 * h * h..][..h * h], x, &right[i % 2 * w * w..][..w * w], [h, w])
            };
            x.chunks_exact(h * w).enumerate().flat_map(image).collect()
        };
        let (forth, back) = (exact(&matrices), exact(&matrices.transposed()));
        at_every_level(|| {
            let mut y = vec![f32::NAN; x.len()];
            matrices.apply(&x, &mut y);
            assert_close("both", &y, &forth, 2e-6);
            matrices.transposed().apply(&x, &mut y);
            assert_close("both, transposed", &y, &back, 2e-6);
            let mut y = vec![f64::NAN; x.len()];
            in_f64.apply(&wide(&x), &mut y);
            assert_close("both, f64", &y, &forth, 1e-14);
        });
    }
}
