//! Convolutions and matrix products against sums in double precision.

mod common;

use common::{assert_close, at_every_level, dot, garbage, noise};
use proptest::prelude::*;
use softly_kernels::conv1x1::{conv1x1, conv1x1_grad_input, conv1x1_grad_weights};
use softly_kernels::conv3x3::{conv3x3, conv3x3_grad_input, conv3x3_grad_weights};
use softly_kernels::matmul::{MatmulShape, matmul, matmul_nt, matmul_tn};
use softly_kernels::shape::ConvShape;

/// The three arrays of a convolution and, for every product of it, the function `visit(x index, w index, y index)`.
fn for_each_product(shape: ConvShape, taps: usize, mut visit: impl FnMut(usize, usize, usize)) {
    let ConvShape { batch, inputs, outputs, height, width } = shape;
    let reach = taps / 2;
    for n in 0..batch {
        for o in 0..outputs {
            for i in 0..inputs {
                for (r, c) in (0..height).flat_map(|r| (0..width).map(move |c| (r, c))) {
                    for (a, b) in (0..taps).flat_map(|a| (0..taps).map(move |b| (a, b))) {
                        let (row, col) = (r + a, c + b);
                        if (reach..height + reach).contains(&row) && (reach..width + reach).contains(&col) {
                            let x = ((n * inputs + i) * height + row - reach) * width + col - reach;
                            let w = ((o * inputs + i) * taps + a) * taps + b;
                            visit(x, w, ((n * outputs + o) * height + r) * width + c);
                        }
                    }
                }
            }
        }
    }
}

type Kernel = fn(ConvShape, &[f32], &[f32], &mut [f32]);

fn check_convolution(shape: ConvShape, taps: usize, forward: Kernel, grad_input: Kernel, grad_weights: Kernel) {
    let weights = shape.inputs * shape.outputs * taps * taps;
    let x = noise(1, shape.input_values());
    let w = noise(2, weights);
    let dy = noise(3, shape.output_values());
    let (mut y_exact, mut dx_exact, mut dw_exact) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
    for_each_product(shape, taps, |xi, wi, yi| {
        let [x, w, dy] = [x[xi], w[wi], dy[yi]].map(f64::from);
        y_exact[yi] += x * w;
        dx_exact[xi] += dy * w;
        dw_exact[wi] += dy * x;
    });
    at_every_level(|| {
        let (mut y, mut dx, mut dw) = (garbage(dy.len()), garbage(x.len()), garbage(w.len()));
        forward(shape, &x, &w, &mut y);
        grad_input(shape, &dy, &w, &mut dx);
        grad_weights(shape, &x, &dy, &mut dw);
        // Minimal filtering is less accurate than direct sums.
        let minimal = taps == 3 && shape.inputs.min(shape.outputs) >= 8 && shape.height.min(shape.width) >= 4;
        let tolerance = if minimal { 8e-6 } else { 2e-6 };
        assert_close("y", &y, &y_exact, tolerance);
        assert_close("dx", &dx, &dx_exact, tolerance);
        assert_close("dw", &dw, &dw_exact, tolerance);
        // ⟨conv(x, w), dy⟩ = ⟨x, dx⟩ = ⟨w, dw⟩.
        let scale = (y.len() as f64 * shape.inputs as f64).sqrt() * taps as f64 + 1.0;
        assert!((dot(&y, &dy) - dot(&x, &dx)).abs() < 2e-5 * scale);
        assert!((dot(&y, &dy) - dot(&w, &dw)).abs() < 2e-5 * scale);
    });
}

fn check_conv3x3(shape: ConvShape) {
    check_convolution(shape, 3, conv3x3, conv3x3_grad_input, conv3x3_grad_weights);
}

fn check_conv1x1(shape: ConvShape) {
    check_convolution(shape, 1, conv1x1, conv1x1_grad_input, conv1x1_grad_weights);
}

fn shape(batch: usize, inputs: usize, outputs: usize, height: usize, width: usize) -> ConvShape {
    ConvShape { batch, inputs, outputs, height, width }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn conv3x3_of_any_shape(n in 1_usize..5, i in 1_usize..20, o in 1_usize..20, h in 1_usize..12, w in 1_usize..20) {
        check_conv3x3(shape(n, i, o, h, w));
    }

    #[test]
    fn conv1x1_of_any_shape(n in 1_usize..5, i in 1_usize..40, o in 1_usize..40, h in 1_usize..8, w in 1_usize..20) {
        check_conv1x1(shape(n, i, o, h, w));
    }

    #[test]
    fn matmul_of_any_shape(m in 1_usize..120, n in 1_usize..150, k in 1_usize..40, accumulate: bool) {
        check_matmul(MatmulShape { m, n, k }, accumulate);
    }
}

#[test]
fn conv3x3_of_special_shapes() {
    // One pixel, one row, one column, exactly one vector, several bands, several images packed together, many parts.
    check_conv3x3(shape(1, 1, 1, 1, 1));
    check_conv3x3(shape(1, 3, 7, 1, 33));
    check_conv3x3(shape(2, 5, 6, 37, 1));
    check_conv3x3(shape(1, 24, 24, 8, 8));
    // Vectors of sixteen and half a one: pairs with it, and one with it behind a pair.
    check_conv3x3(shape(1, 39, 56, 6, 9));
    check_conv3x3(shape(2, 6, 3, 40, 64));
    check_conv3x3(shape(3, 70, 13, 9, 63));
    check_conv3x3(shape(37, 2, 3, 16, 16));
    check_conv3x3(shape(2, 96, 96, 4, 4));
    check_conv3x3(shape(1, 1, 2, 3, 1100));
    check_conv3x3(shape(40, 1, 1, 32, 64));
}

#[test]
fn conv1x1_of_special_shapes() {
    check_conv1x1(shape(1, 1, 1, 1, 1));
    check_conv1x1(shape(2, 24, 24, 33, 33));
    check_conv1x1(shape(70, 3, 5, 4, 8));
    check_conv1x1(shape(1, 600, 3, 2, 2));
}

#[test]
fn a_filter_with_a_one_in_a_corner_shifts_the_image() {
    let shape = shape(1, 1, 1, 3, 3);
    let x: Vec<f32> = (1..=9_u8).map(f32::from).collect();
    let mut y = garbage(9);
    conv3x3(shape, &x, &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], &mut y);
    assert_eq!(y, [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 4.0, 5.0]);
}

#[test]
fn empty_arrays_are_fine() {
    for shape in [shape(0, 2, 3, 4, 4), shape(2, 0, 3, 4, 4), shape(2, 3, 0, 4, 4), shape(2, 2, 3, 0, 4)] {
        check_conv3x3(shape);
        check_conv1x1(shape);
    }
    check_matmul(MatmulShape { m: 3, n: 4, k: 0 }, false);
    check_matmul(MatmulShape { m: 0, n: 4, k: 2 }, false);
    check_matmul(MatmulShape { m: 3, n: 0, k: 2 }, false);
}

fn check_matmul(shape: MatmulShape, accumulate: bool) {
    let MatmulShape { m, n, k } = shape;
    let transpose = |rows: usize, cols: usize, x: &[f32]| -> Vec<f32> {
        (0..cols).flat_map(|c| (0..rows).map(move |r| x[r * cols + c])).collect()
    };
    let (a, b) = (noise(4, m * k), noise(5, k * n));
    let before = if accumulate { noise(6, m * n) } else { garbage(m * n) };
    let exact: Vec<f64> = (0..m)
        .flat_map(|i| (0..n).map(move |j| (i, j)))
        .map(|(i, j)| {
            let start = if accumulate { f64::from(before[i * n + j]) } else { 0.0 };
            start + (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum::<f64>()
        })
        .collect();
    let (at, bt) = (transpose(m, k, &a), transpose(k, n, &b));
    at_every_level(|| {
        let mut c = before.clone();
        matmul(shape, &a, &b, &mut c, accumulate);
        assert_close("A·B", &c, &exact, 2e-6);
        c.copy_from_slice(&before);
        matmul_tn(shape, &at, &b, &mut c, accumulate);
        assert_close("Aᵀ·B", &c, &exact, 2e-6);
        c.copy_from_slice(&before);
        matmul_nt(shape, &a, &bt, &mut c, accumulate);
        assert_close("A·Bᵀ", &c, &exact, 2e-6);
    });
}

#[test]
fn matmul_with_a_long_inner_dimension() {
    check_matmul(MatmulShape { m: 7, n: 19, k: 1500 }, true);
    check_matmul(MatmulShape { m: 200, n: 1, k: 513 }, false);
}
