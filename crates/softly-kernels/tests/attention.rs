//! Cosine attention against double precision and finite differences.

mod common;

use common::{assert_close, at_every_level, differences, garbage, noise, weighted, wide};
use proptest::prelude::*;
use softly_kernels::attention::{AttentionShape, attention, attention_grad};

/// Straight from the definition: `qkv [N, M, D, 3, P]` → `[N, M, D, P]`.
fn exact(shape: AttentionShape, qkv: &[f64]) -> Vec<f64> {
    let AttentionShape { width, pixels, .. } = shape;
    let mut y = Vec::new();
    for head in qkv.chunks(3 * width * pixels) {
        let unit = |part: usize, p: usize| -> Vec<f64> {
            let v: Vec<f64> = (0..width).map(|c| head[(3 * c + part) * pixels + p]).collect();
            let rms = (v.iter().map(|v| v * v).sum::<f64>() / width as f64).sqrt();
            v.into_iter().map(|v| v / (1e-4 + rms)).collect()
        };
        let mut out = vec![0.0; width * pixels];
        for i in 0..pixels {
            let q = unit(0, i);
            let logits = (0..pixels).map(|j| unit(1, j).iter().zip(&q).map(|(k, q)| k * q).sum::<f64>());
            let weights: Vec<f64> = logits.map(|l| (l / (width as f64).sqrt()).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (j, w) in weights.iter().enumerate() {
                for (c, v) in unit(2, j).into_iter().enumerate() {
                    out[c * pixels + i] += w / total * v;
                }
            }
        }
        y.extend(out);
    }
    y
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn attention_and_its_gradient(batch in 1_usize..3, heads in 1_usize..3, width in 2_usize..5, pixels in 1_usize..11) {
        let shape = AttentionShape { batch, heads, width, pixels };
        let len = batch * heads * width * pixels;
        let (qkv, dy) = (noise(1, 3 * len), noise(2, len));
        let y_exact = exact(shape, &wide(&qkv));
        let dqkv_exact = differences(&wide(&qkv), |qkv| weighted(&dy, &exact(shape, qkv)));
        at_every_level(|| {
            let (mut y, mut dqkv) = (garbage(len), garbage(3 * len));
            attention(shape, &qkv, &mut y);
            attention_grad(shape, &qkv, &dy, &mut dqkv);
            assert_close("y", &y, &y_exact, 1e-5);
            assert_close("dqkv", &dqkv, &dqkv_exact, 2e-5);
        });
    }
}

#[test]
fn a_large_head_matches_the_definition() {
    let shape = AttentionShape { batch: 1, heads: 2, width: 72, pixels: 100 };
    let qkv = noise(3, 3 * 2 * 72 * 100);
    at_every_level(|| {
        let mut y = garbage(2 * 72 * 100);
        attention(shape, &qkv, &mut y);
        assert_close("y", &y, &exact(shape, &wide(&qkv)), 1e-5);
    });
}
