//! Speed of the kernels against the measured peak of the processor.

use std::hint::black_box;
use std::time::Instant;

use softly_kernels::conv1x1::{conv1x1, conv1x1_grad_input, conv1x1_grad_weights};
use softly_kernels::conv3x3::{conv3x3, conv3x3_grad_input, conv3x3_grad_weights};
use softly_kernels::shape::ConvShape;

/// Accumulators and lanes of the peak loop.
const CHAINS: usize = 12;
const LANES: usize = 8;

#[inline(always)]
fn fused_chains(rounds: usize) -> f32 {
    let mut acc = [[1.0_f32; LANES]; CHAINS];
    let (a, b) = (black_box([0.999_f32; LANES]), black_box([0.001_f32; LANES]));
    for _ in 0..rounds {
        for acc in &mut acc {
            *acc = std::array::from_fn(|i| acc[i].mul_add(a[i], b[i]));
        }
    }
    acc.iter().flatten().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fused_chains_avx2(rounds: usize) -> f32 {
    fused_chains(rounds)
}

/// GFLOP/s of multiply-adds that never touch memory, on one core.
fn peak() -> f64 {
    let rounds = 1_000_000;
    let seconds = fastest(0.5, || {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            black_box(unsafe { fused_chains_avx2(rounds) });
            return;
        }
        black_box(fused_chains(rounds));
    });
    (2 * rounds * CHAINS * LANES) as f64 / seconds * 1e-9
}

/// Shortest run within a time budget.
fn fastest(budget: f64, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < budget {
        let begin = Instant::now();
        work();
        best = best.min(begin.elapsed().as_secs_f64());
    }
    best
}

fn noise(len: usize) -> Vec<f32> {
    let mut state = 1_u64;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// One line per thread count.
fn report(name: &str, shape: &str, flops: f64, peak: f64, budget: f64, mut work: impl FnMut() + Send) {
    let mut alone = 0.0;
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let seconds = pool.install(|| fastest(budget, &mut work));
        if threads == 1 {
            alone = seconds;
        }
        let speed = flops / seconds * 1e-9;
        println!(
            "{name:<22} {shape:<22} {threads} thr {:>9.3} ms {speed:>7.1} GFLOP/s {:>5.1} % {:>5.2}x",
            seconds * 1e3,
            100.0 * speed / (peak * threads as f64),
            alone / seconds
        );
    }
}

fn main() {
    let peak = peak();
    println!("peak {peak:.1} GFLOP/s per core");
    let budget = 0.15;
    for batch in [4, 8] {
        for (channels, size) in [(24, 64), (48, 32), (72, 16), (96, 8)] {
            let shape = ConvShape { batch, inputs: channels, outputs: channels, height: size, width: size };
            let name = format!("{batch}x{channels}x{size}x{size}");
            let (x, dy) = (noise(shape.input_values()), noise(shape.output_values()));
            let mut out = noise(shape.input_values());
            let w = noise(channels * channels * 9);
            let mut dw = w.clone();
            let flops = 2.0 * (shape.output_values() * channels) as f64;
            report("conv3x3", &name, 9.0 * flops, peak, budget, || conv3x3(shape, &x, &w, &mut out));
            report("conv3x3_grad_input", &name, 9.0 * flops, peak, budget, || {
                conv3x3_grad_input(shape, &dy, &w, &mut out);
            });
            report("conv3x3_grad_weights", &name, 9.0 * flops, peak, budget, || {
                conv3x3_grad_weights(shape, &x, &dy, &mut dw);
            });
            let w = noise(channels * channels);
            let mut dw = w.clone();
            report("conv1x1", &name, flops, peak, budget, || conv1x1(shape, &x, &w, &mut out));
            report("conv1x1_grad_input", &name, flops, peak, budget, || {
                conv1x1_grad_input(shape, &dy, &w, &mut out);
            });
            report("conv1x1_grad_weights", &name, flops, peak, budget, || {
                conv1x1_grad_weights(shape, &x, &dy, &mut dw);
            });
        }
    }
}
