//! The same bits for every number of threads.

mod common;

use common::{garbage, noise};
use softly_kernels::activation::{mp_silu, mp_silu_grad, mp_silu_scaled_grad, silu_modulate_grad};
use softly_kernels::adam::{AdamStep, adam, ema};
use softly_kernels::attention::{AttentionShape, attention, attention_grad};
use softly_kernels::axis::{BothAxes, Sparse};
use softly_kernels::conv1x1::{conv1x1, conv1x1_grad_input, conv1x1_grad_weights};
use softly_kernels::conv3x3::{conv3x3, conv3x3_grad_input, conv3x3_grad_weights};
use softly_kernels::matmul::{MatmulShape, matmul_tn};
use softly_kernels::mp::{mp_cat, mp_cat_grad, mp_sum, mp_sum_grad};
use softly_kernels::norm::{normalize_rows, pixel_norm, pixel_norm_grad, weight_norm, weight_norm_grad};
use softly_kernels::resample::{ResampleShape, downsample, upsample};
use softly_kernels::shape::{ConvShape, Planes};
use softly_kernels::simd::{Level, with_level};

/// Runs `kernel(outputs)` with 1, 2 and 5 threads and compares the bits.
fn same_bits(name: &str, outputs: &[usize], kernel: impl Fn(&mut [Vec<f32>]) + Sync) {
    for level in Level::supported() {
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            let mut results: Vec<Vec<f32>> = outputs.iter().map(|len| garbage(*len)).collect();
            pool.install(|| with_level(level, || kernel(&mut results)));
            results.concat().into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        };
        let alone = run(1);
        assert!(alone.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{name} leaves gaps");
        for threads in [2, 3, 5] {
            assert!(alone == run(threads), "{name} at {level:?} with {threads} threads");
        }
    }
}

#[test]
fn convolutions() {
    let large = [(4, 24, 24, 64, 64), (3, 13, 17, 31, 29), (8, 96, 96, 8, 8)];
    let small = [(16, 3, 16, 16, 16), (16, 16, 2, 16, 16), (16, 64, 32, 8, 8), (7, 32, 96, 8, 8), (1, 48, 16, 16, 16)];
    for (batch, inputs, outputs, height, width) in large.into_iter().chain(small) {
        let shape = ConvShape { batch, inputs, outputs, height, width };
        let (x, dy) = (noise(1, shape.input_values()), noise(2, shape.output_values()));
        let (w3, w1) = (noise(3, inputs * outputs * 9), noise(4, inputs * outputs));
        same_bits("conv3x3", &[dy.len()], |out| conv3x3(shape, &x, &w3, &mut out[0]));
        same_bits("conv3x3_grad_input", &[x.len()], |out| conv3x3_grad_input(shape, &dy, &w3, &mut out[0]));
        same_bits("conv3x3_grad_weights", &[w3.len()], |out| conv3x3_grad_weights(shape, &x, &dy, &mut out[0]));
        same_bits("conv1x1", &[dy.len()], |out| conv1x1(shape, &x, &w1, &mut out[0]));
        same_bits("conv1x1_grad_input", &[x.len()], |out| conv1x1_grad_input(shape, &dy, &w1, &mut out[0]));
        same_bits("conv1x1_grad_weights", &[w1.len()], |out| conv1x1_grad_weights(shape, &x, &dy, &mut out[0]));
    }
    let shape = MatmulShape { m: 200, n: 300, k: 700 };
    let (a, b) = (noise(1, 200 * 700), noise(2, 300 * 700));
    same_bits("matmul_tn", &[200 * 300], |out| matmul_tn(shape, &a, &b, &mut out[0], false));
}

#[test]
fn matrices_along_axes() {
    let (n, x) = (47, noise(1, 60 * 47 * 47));
    let row = |i: usize| (i.saturating_sub(1)..n.min(i + 2)).map(|j| (j, (i + 2 * j) as f32)).collect();
    let sparse = Sparse::new((0..n).map(row).collect());
    let dense = BothAxes { shape: [3, n, n], left: noise(2, 3 * n * n), right: noise(3, 3 * n * n) };
    same_bits("down", &[x.len()], |out| sparse.down(n, &x, &mut out[0]));
    same_bits("across", &[x.len()], |out| sparse.across(&x, &mut out[0]));
    same_bits("both axes", &[x.len()], |out| dense.apply(&x, &mut out[0]));
}

#[test]
fn everything_else() {
    for shape in [Planes { batch: 3, channels: 25, pixels: 999 }, Planes { batch: 301, channels: 250, pixels: 1 }] {
        let len = shape.values();
        let rows = shape.rows();
        let (a, b, dy, c, d) = (noise(1, len), noise(2, len), noise(3, len), noise(4, rows), noise(5, rows));
        same_bits("mp_silu", &[len], |out| mp_silu(&a, &mut out[0]));
        same_bits("mp_silu_grad", &[len], |out| mp_silu_grad(&a, &dy, &mut out[0]));
        same_bits("mp_silu_scaled_grad", &[len, rows], |out| {
            let [dx, dc] = out else { unreachable!() };
            mp_silu_scaled_grad(shape, &a, &c, &dy, dx, dc);
        });
        same_bits("silu_modulate_grad", &[len, rows, rows], |out| {
            let [dx, ds, dt] = out else { unreachable!() };
            silu_modulate_grad(shape, &a, &c, &d, &dy, dx, ds, dt);
        });
        same_bits("pixel_norm", &[len], |out| pixel_norm(shape, &a, &mut out[0]));
        same_bits("pixel_norm_grad", &[len], |out| pixel_norm_grad(shape, &a, &dy, &mut out[0]));
        same_bits("mp_sum", &[len], |out| mp_sum(0.3, 1.0, &a, &b, &mut out[0]));
        same_bits("mp_sum_grad", &[len, len], |out| {
            let [da, db] = out else { unreachable!() };
            mp_sum_grad(0.3, 1.0, &a, &dy, da, db);
        });
        same_bits("mp_cat", &[2 * len], |out| mp_cat(shape, shape.channels, 0.5, &a, &b, &mut out[0]));
        let twice = noise(6, 2 * len);
        same_bits("mp_cat_grad", &[len, len], |out| {
            let [da, db] = out else { unreachable!() };
            mp_cat_grad(shape, shape.channels, 0.5, &twice, da, db);
        });
        let heads = AttentionShape { batch: shape.batch, heads: 1, width: shape.channels, pixels: shape.pixels };
        let qkv = noise(8, 3 * len);
        same_bits("attention", &[len], |out| attention(heads, &qkv, &mut out[0]));
        same_bits("attention_grad", &[3 * len], |out| attention_grad(heads, &qkv, &dy, &mut out[0]));
        same_bits("normalize_rows", &[len], |out| {
            out[0].copy_from_slice(&a);
            normalize_rows(shape.channels, &mut out[0]);
        });
        same_bits("weight_norm", &[len], |out| weight_norm(shape.channels, 0.7, &a, &mut out[0]));
        same_bits("weight_norm_grad", &[len, 1], |out| {
            let [dw, dgain] = out else { unreachable!() };
            dgain[0] = weight_norm_grad(shape.channels, 0.7, &a, &dy, dw);
        });
        same_bits("adam and ema", &[len, len, len], |out| {
            let [p, m, v] = out else { unreachable!() };
            p.copy_from_slice(&a);
            m.copy_from_slice(&b);
            v.fill(0.5);
            let step = AdamStep {
                learning_rate: 0.1,
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-8,
                correction1: 0.1,
                correction2: 0.01,
            };
            adam(step, &dy, p, m, v);
            ema(0.9, p, m);
        });
    }
    let shape = ResampleShape { images: 11, height: 37, width: 41 };
    let values = 11 * 37 * 41;
    let (small, large) = (noise(1, values), noise(2, 4 * values));
    same_bits("downsample", &[values], |out| downsample(shape, &large, &mut out[0]));
    same_bits("upsample", &[4 * values], |out| upsample(shape, &small, &mut out[0]));
}
