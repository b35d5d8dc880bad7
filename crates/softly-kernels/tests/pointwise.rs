//! Activations, norms, sums, resampling and the optimiser against double precision and finite differences.

mod common;

use common::{assert_close, at_every_level, differences, dot, garbage, noise, weighted, wide};
use proptest::prelude::*;
use softly_kernels::activation::{
    mp_silu, mp_silu_grad, mp_silu_scaled, mp_silu_scaled_grad, silu_modulate, silu_modulate_grad, softplus_scaled,
    softplus_scaled_grad,
};
use softly_kernels::adam::{AdamStep, adam, ema};
use softly_kernels::mp::{mp_cat, mp_cat_grad, mp_sum, mp_sum_grad};
use softly_kernels::norm::{normalize_rows, pixel_norm, pixel_norm_grad, weight_norm, weight_norm_grad};
use softly_kernels::resample::{ResampleShape, downsample, downsample_grad, upsample, upsample_grad};
use softly_kernels::shape::Planes;

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Noise of a given size, for arguments on both flat and steep parts of a function.
fn scaled_noise(seed: u64, len: usize, size: f32) -> Vec<f32> {
    noise(seed, len).into_iter().map(|x| size * x).collect()
}

fn modulate_exact(pixels: usize, x: &[f64], scale: &[f64], shift: &[f64]) -> Vec<f64> {
    x.iter().enumerate().map(|(i, x)| silu(x * (1.0 + scale[i / pixels]) + shift[i / pixels])).collect()
}

fn scaled_exact(pixels: usize, x: &[f64], c: &[f64]) -> Vec<f64> {
    x.iter().enumerate().map(|(i, x)| silu(x * c[i / pixels]) / 0.596).collect()
}

fn pixel_norm_exact(shape: Planes, x: &[f64]) -> Vec<f64> {
    let Planes { channels, pixels, .. } = shape;
    let at = |n: usize, c: usize, p: usize| (n * channels + c) * pixels + p;
    (0..x.len())
        .map(|i| {
            let (n, p) = (i / (channels * pixels), i % pixels);
            let squares: f64 = (0..channels).map(|c| x[at(n, c, p)].powi(2)).sum();
            x[i] / (1e-4 + (squares / channels as f64).sqrt())
        })
        .collect()
}

fn weight_norm_exact(len: usize, gain: f64, w: &[f64]) -> Vec<f64> {
    w.chunks(len)
        .flat_map(|row| {
            let rms = (row.iter().map(|w| w * w).sum::<f64>() / len as f64).sqrt();
            row.iter().map(move |w| w / (1e-4 + rms) * gain / (len as f64).sqrt())
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn mp_silu_and_its_gradient(len in 0_usize..70, size in 0.1_f32..30.0) {
        let (x, dy) = (scaled_noise(1, len, size), noise(2, len));
        let exact: Vec<f64> = wide(&x).iter().map(|x| silu(*x) / 0.596).collect();
        let slope = differences(&wide(&x), |x| weighted(&dy, &scaled_exact(len, x, &[1.0])));
        at_every_level(|| {
            let (mut y, mut dx) = (garbage(len), garbage(len));
            mp_silu(&x, &mut y);
            mp_silu_grad(&x, &dy, &mut dx);
            assert_close("y", &y, &exact, 5e-7);
            assert_close("dx", &dx, &slope, 1e-6);
        });
    }

    #[test]
    fn mp_silu_scaled_and_its_gradients(batch in 1_usize..3, channels in 1_usize..5, pixels in 1_usize..40) {
        let shape = Planes { batch, channels, pixels };
        let (x, c, dy) = (scaled_noise(1, shape.values(), 3.0), noise(2, shape.rows()), noise(3, shape.values()));
        let exact = scaled_exact(pixels, &wide(&x), &wide(&c));
        let dx_exact = differences(&wide(&x), |x| weighted(&dy, &scaled_exact(pixels, x, &wide(&c))));
        let dc_exact = differences(&wide(&c), |c| weighted(&dy, &scaled_exact(pixels, &wide(&x), c)));
        at_every_level(|| {
            let (mut y, mut dx, mut dc) = (garbage(x.len()), garbage(x.len()), garbage(c.len()));
            mp_silu_scaled(shape, &x, &c, &mut y);
            mp_silu_scaled_grad(shape, &x, &c, &dy, &mut dx, &mut dc);
            assert_close("y", &y, &exact, 1e-6);
            assert_close("dx", &dx, &dx_exact, 1e-6);
            assert_close("dc", &dc, &dc_exact, 1e-6);
        });
    }

    #[test]
    fn softplus_scaled_and_its_gradients(len in 1_usize..70, size in 0.1_f32..60.0) {
        let (x, c, dy) = (scaled_noise(1, len, size), noise(2, len), noise(3, len));
        let softplus = |x: &[f64], c: &[f64]| -> Vec<f64> {
            x.iter().zip(c).map(|(x, c)| (x * c).max(0.0) + (-(x * c).abs()).exp().ln_1p()).collect()
        };
        let exact = softplus(&wide(&x), &wide(&c));
        let dx_exact = differences(&wide(&x), |x| weighted(&dy, &softplus(x, &wide(&c))));
        let dc_exact = differences(&wide(&c), |c| weighted(&dy, &softplus(&wide(&x), c)));
        at_every_level(|| {
            let (mut y, mut dx, mut dc) = (garbage(len), garbage(len), garbage(len));
            softplus_scaled(&x, &c, &mut y);
            softplus_scaled_grad(&x, &c, &dy, &mut dx, &mut dc);
            assert_close("y", &y, &exact, 5e-7);
            // Far below zero the value is small, not zero: its digits count, too.
            for (y, exact) in y.iter().zip(&exact).filter(|(_, exact)| **exact > 1e-30) {
                assert!((f64::from(*y) / exact - 1.0).abs() < 4e-6, "{y} against {exact}");
            }
            assert_close("dx", &dx, &dx_exact, 2e-6);
            assert_close("dc", &dc, &dc_exact, 2e-6);
        });
    }

    #[test]
    fn silu_modulate_and_its_gradients(batch in 1_usize..8, channels in 1_usize..9, pixels in 1_usize..20) {
        let shape = Planes { batch, channels, pixels };
        let rows = shape.rows();
        let x = scaled_noise(1, shape.values(), 3.0);
        let (scale, shift, dy) = (noise(2, rows), noise(3, rows), noise(4, x.len()));
        let (wx, ws, wt) = (wide(&x), wide(&scale), wide(&shift));
        let exact = modulate_exact(pixels, &wx, &ws, &wt);
        let dx_exact = differences(&wx, |x| weighted(&dy, &modulate_exact(pixels, x, &ws, &wt)));
        let ds_exact = differences(&ws, |s| weighted(&dy, &modulate_exact(pixels, &wx, s, &wt)));
        let dt_exact = differences(&wt, |t| weighted(&dy, &modulate_exact(pixels, &wx, &ws, t)));
        at_every_level(|| {
            let (mut y, mut dx, mut ds, mut dt) = (garbage(x.len()), garbage(x.len()), garbage(rows), garbage(rows));
            silu_modulate(shape, &x, &scale, &shift, &mut y);
            silu_modulate_grad(shape, &x, &scale, &shift, &dy, &mut dx, &mut ds, &mut dt);
            assert_close("y", &y, &exact, 1e-6);
            assert_close("dx", &dx, &dx_exact, 1e-6);
            assert_close("dscale", &ds, &ds_exact, 1e-6);
            assert_close("dshift", &dt, &dt_exact, 1e-6);
        });
    }

    #[test]
    fn pixel_norm_and_its_gradient(batch in 1_usize..4, channels in 1_usize..9, pixels in 1_usize..150) {
        let shape = Planes { batch, channels, pixels };
        let (x, dy) = (noise(1, shape.values()), noise(2, shape.values()));
        let exact = pixel_norm_exact(shape, &wide(&x));
        // One sample and pixel at a time, because finite differences of everything cost the square of the size.
        let dx_exact: Vec<f64> = {
            let mut dx = vec![0.0; x.len()];
            for (n, p) in (0..batch).flat_map(|n| (0..pixels).map(move |p| (n, p))) {
                let at: Vec<usize> = (0..channels).map(|c| (n * channels + c) * pixels + p).collect();
                let pick = |from: &[f32]| at.iter().map(|i| from[*i]).collect::<Vec<f32>>();
                let (one, dy) = (Planes { batch: 1, channels, pixels: 1 }, pick(&dy));
                let d = differences(&wide(&pick(&x)), |x| weighted(&dy, &pixel_norm_exact(one, x)));
                for (i, d) in at.iter().zip(d) {
                    dx[*i] = d;
                }
            }
            dx
        };
        at_every_level(|| {
            let (mut y, mut dx) = (garbage(x.len()), garbage(x.len()));
            pixel_norm(shape, &x, &mut y);
            pixel_norm_grad(shape, &x, &dy, &mut dx);
            assert_close("y", &y, &exact, 1e-6);
            // A single channel has a gradient of nearly 0 by cancellation of terms of size 1/x.
            let size = dx_exact.iter().fold(0.0_f64, |size, d| size.max(d.abs()));
            let smallest = x.iter().fold(1.0_f32, |size, x| size.min(x.abs()));
            let terms = if channels == 1 { 1.0 / f64::from(smallest + 1e-4) } else { 1.0 };
            assert_close("dx", &dx, &dx_exact, 1e-6 + 1e-6 * terms / size.max(1.0));
        });
    }

    #[test]
    fn mp_sum_and_its_gradients(len in 0_usize..50, t in 0.0_f32..1.0, clip in 0.1_f32..2.0) {
        let (a, b, dy) = (noise(1, len), noise(2, len), noise(3, len));
        let norm = f64::from((1.0 - t).hypot(t));
        let (wa, wb) = (f64::from(1.0 - t) / norm, f64::from(t) / norm);
        let sum: Vec<f64> = wide(&a).iter().zip(wide(&b)).map(|(a, b)| wa * a + wb * b).collect();
        let limit = f64::from(clip);
        // Numbers so close to the limit that rounding decides would make this test random.
        prop_assume!(sum.iter().all(|s| (s.abs() - limit).abs() > 1e-5));
        let clipped: Vec<f64> = sum.iter().map(|s| s.clamp(-limit, limit)).collect();
        let inside = |w: f64| -> Vec<f64> {
            sum.iter().zip(&dy).map(|(s, dy)| if s.abs() < limit { w * f64::from(*dy) } else { 0.0 }).collect()
        };
        at_every_level(|| {
            let (mut y, mut da, mut db) = (garbage(len), garbage(len), garbage(len));
            mp_sum(t, clip, &a, &b, &mut y);
            mp_sum_grad(t, clip, &y, &dy, &mut da, &mut db);
            assert_close("clipped", &y, &clipped, 1e-6);
            assert_close("da", &da, &inside(wa), 1e-6);
            assert_close("db", &db, &inside(wb), 1e-6);
            mp_sum(t, f32::INFINITY, &a, &b, &mut y);
            assert_close("y", &y, &sum, 1e-6);
        });
    }

    #[test]
    fn mp_cat_and_its_gradients(n in 1_usize..3, na in 1_usize..5, nb in 1_usize..5, pixels in 1_usize..20) {
        let shape = Planes { batch: n, channels: na, pixels };
        let (a, b) = (noise(1, n * na * pixels), noise(2, n * nb * pixels));
        let dy = noise(3, a.len() + b.len());
        let t = 0.3_f32;
        let c = ((na + nb) as f64 / (0.7_f64.powi(2) + 0.3_f64.powi(2))).sqrt();
        let exact: Vec<f64> = (0..n)
            .flat_map(|n| {
                let a = a[n * na * pixels..][..na * pixels].iter().map(|a| f64::from(*a) * c * 0.7 / (na as f64).sqrt());
                let b = b[n * nb * pixels..][..nb * pixels].iter().map(|b| f64::from(*b) * c * 0.3 / (nb as f64).sqrt());
                a.chain(b).collect::<Vec<f64>>()
            })
            .collect();
        let (mut y, mut da, mut db) = (garbage(dy.len()), garbage(a.len()), garbage(b.len()));
        mp_cat(shape, nb, t, &a, &b, &mut y);
        mp_cat_grad(shape, nb, t, &dy, &mut da, &mut db);
        assert_close("y", &y, &exact, 1e-6);
        prop_assert!((dot(&y, &dy) - dot(&a, &da) - dot(&b, &db)).abs() < 1e-5 * (1.0 + dy.len() as f64).sqrt());
    }

    #[test]
    fn resampling_is_adjoint_to_its_gradient(images in 1_usize..4, height in 1_usize..6, width in 1_usize..12) {
        let shape = ResampleShape { images, height, width };
        let small = noise(1, images * height * width);
        let large = noise(2, 4 * small.len());
        let (mut to_small, mut to_large) = (garbage(small.len()), garbage(large.len()));
        downsample(shape, &large, &mut to_small);
        downsample_grad(shape, &small, &mut to_large);
        prop_assert!((dot(&small, &to_small) - dot(&large, &to_large)).abs() < 1e-4);
        upsample(shape, &small, &mut to_large);
        upsample_grad(shape, &large, &mut to_small);
        prop_assert!((dot(&small, &to_small) - dot(&large, &to_large)).abs() < 1e-4);
        // Down undoes up exactly.
        downsample(shape, &to_large, &mut to_small);
        prop_assert_eq!(to_small, small);
    }

    #[test]
    fn rows_of_weights_get_unit_size(rows in 1_usize..5, len in 1_usize..80) {
        let w = noise(1, rows * len);
        let exact: Vec<f64> = wide(&w)
            .chunks(len)
            .flat_map(|row| {
                let rms = (row.iter().map(|w| w * w).sum::<f64>() / len as f64).sqrt();
                row.iter().map(move |w| w / (1e-4 + rms)).collect::<Vec<f64>>()
            })
            .collect();
        at_every_level(|| {
            let mut w = w.clone();
            normalize_rows(len, &mut w);
            assert_close("w", &w, &exact, 1e-6);
        });
    }

    #[test]
    fn weight_norm_and_its_gradients(rows in 0_usize..4, len in 2_usize..110, gain in -2.0_f32..2.0, size in 0.01_f32..3.0) {
        let (w, dy) = (scaled_noise(1, rows * len, size), noise(2, rows * len));
        let (wide_w, wide_gain) = (wide(&w), f64::from(gain));
        let exact = weight_norm_exact(len, wide_gain, &wide_w);
        // Row by row, because finite differences of everything cost the square of the size. The step scales with the weights.
        let dw_exact: Vec<f64> = (0..rows)
            .flat_map(|row| {
                let (from, to) = (row * len, (row + 1) * len);
                let relative: Vec<f64> = wide_w[from..to].iter().map(|w| w / f64::from(size)).collect();
                let along = |v: &[f64]| {
                    let w: Vec<f64> = v.iter().map(|v| v * f64::from(size)).collect();
                    weighted(&dy[from..to], &weight_norm_exact(len, wide_gain, &w))
                };
                differences(&relative, along).into_iter().map(|d| d / f64::from(size))
            })
            .collect();
        let dgain_exact = differences(&[wide_gain], |g| weighted(&dy, &weight_norm_exact(len, g[0], &wide_w)));
        at_every_level(|| {
            let (mut y, mut dw) = (garbage(w.len()), garbage(w.len()));
            weight_norm(len, gain, &w, &mut y);
            assert_close("y", &y, &exact, 1e-6);
            let dgain = weight_norm_grad(len, gain, &w, &dy, &mut dw);
            assert_close("dw", &dw, &dw_exact, 3e-6);
            assert_close("dgain", &[dgain], &dgain_exact, 1e-6);
        });
    }
}

#[test]
fn known_values() {
    let mut y = [0.0; 3];
    mp_silu(&[0.0, 1.0, -1.0], &mut y);
    assert_close("mp_silu", &y, &[0.0, 0.731_058_578_630_004_9 / 0.596, -0.268_941_421_369_995_1 / 0.596], 1e-7);
    let mut y = [0.0; 2];
    pixel_norm(Planes { batch: 1, channels: 2, pixels: 1 }, &[3.0, 4.0], &mut y);
    assert_close("pixel_norm", &y, &[3.0 / 3.535_633_9, 4.0 / 3.535_633_9], 1e-6);
    let shape = ResampleShape { images: 1, height: 1, width: 2 };
    downsample(shape, &[1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0], &mut y);
    assert_eq!(y, [2.5, 6.5]);
    let mut large = [0.0; 8];
    upsample(shape, &[1.0, 2.0], &mut large);
    assert_eq!(large, [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
}

#[test]
fn silu_is_defined_everywhere() {
    at_every_level(|| {
        let x = [-f32::MAX, -1e4, -100.0, 100.0, 1e4, f32::MAX];
        let (mut y, mut dx) = (garbage(6), garbage(6));
        mp_silu(&x, &mut y);
        mp_silu_grad(&x, &[1.0; 6], &mut dx);
        assert!(y[1].abs() < 1e-30 && y[2].abs() < 1e-30 && (y[3] * 0.596 - 100.0).abs() < 1e-4, "{y:?}");
        assert!(dx[1].abs() < 1e-30 && (dx[3] * 0.596 - 1.0).abs() < 1e-6, "{dx:?}");
        let mut y = [0.0];
        mp_silu(&[f32::NAN], &mut y);
        assert!(y[0].is_nan());
        mp_sum(0.3, 256.0, &[f32::NAN], &[1.0], &mut y);
        assert!(y[0].is_nan());
    });
}

#[test]
fn pixel_norm_of_zeros_is_zero_and_scales_its_gradient() {
    at_every_level(|| {
        let shape = Planes { batch: 1, channels: 3, pixels: 9 };
        let (x, dy) = (vec![0.0; 27], noise(1, 27));
        let (mut y, mut dx) = (garbage(27), garbage(27));
        pixel_norm(shape, &x, &mut y);
        pixel_norm_grad(shape, &x, &dy, &mut dx);
        assert_eq!(y, x);
        assert_close("dx", &dx, &wide(&dy).iter().map(|d| d * 1e4).collect::<Vec<f64>>(), 1e-6);
    });
}

#[test]
fn weights_of_zero_are_used_as_zeros() {
    at_every_level(|| {
        let (mut y, mut dw) = (garbage(6), garbage(6));
        weight_norm(3, 2.0, &[0.0; 6], &mut y);
        assert_eq!(y, [0.0; 6]);
        let dgain = weight_norm_grad(3, 2.0, &[0.0; 6], &[1.0; 6], &mut dw);
        assert_eq!(dgain, 0.0);
        assert_close("dw", &dw, &[2e4 / 3.0_f64.sqrt(); 6], 1e-6);
    });
}

#[test]
fn adam_follows_its_formula() {
    let len = 37;
    at_every_level(|| {
        let (mut p, mut m, mut v) = (noise(1, len), vec![0.0; len], vec![0.0; len]);
        let (mut pw, mut mw, mut vw) = (wide(&p), wide(&m), wide(&v));
        for step in 1..=20_u8 {
            let g = noise(u64::from(step) + 10, len);
            let (b1, b2) = (0.9_f64, 0.99_f64);
            let (c1, c2) = (1.0 - b1.powi(i32::from(step)), 1.0 - b2.powi(i32::from(step)));
            let numbers = AdamStep {
                learning_rate: 0.01,
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-8,
                correction1: c1 as f32,
                correction2: c2 as f32,
            };
            adam(numbers, &g, &mut p, &mut m, &mut v);
            for i in 0..len {
                let g = f64::from(g[i]);
                mw[i] = b1 * mw[i] + (1.0 - b1) * g;
                vw[i] = b2 * vw[i] + (1.0 - b2) * g * g;
                pw[i] -= 0.01 * (mw[i] / c1) / ((vw[i] / c2).sqrt() + 1e-8);
            }
        }
        assert_close("param", &p, &pw, 2e-6);
        assert_close("mean", &m, &mw, 2e-6);
        assert_close("square", &v, &vw, 2e-6);
    });
}

#[test]
fn the_first_adam_step_has_the_size_of_the_learning_rate() {
    let numbers =
        AdamStep { learning_rate: 0.125, beta1: 0.5, beta2: 0.75, epsilon: 0.0, correction1: 0.5, correction2: 0.25 };
    let (mut p, mut m, mut v) = ([1.0, 1.0], [0.0; 2], [0.0; 2]);
    adam(numbers, &[4.0, -2.0], &mut p, &mut m, &mut v);
    assert_eq!(p, [0.875, 1.125]);
}

#[test]
fn ema_is_a_weighted_mean() {
    at_every_level(|| {
        let (value, mut average) = (noise(1, 21), noise(2, 21));
        let exact: Vec<f64> = wide(&value).iter().zip(wide(&average)).map(|(v, a)| 0.75 * a + 0.25 * v).collect();
        ema(0.75, &value, &mut average);
        assert_close("average", &average, &exact, 1e-6);
        ema(0.0, &value, &mut average);
        assert_close("average", &average, &wide(&value), 1e-6);
    });
}
