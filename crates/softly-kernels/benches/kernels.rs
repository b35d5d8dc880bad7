//! Speed of the kernels against the measured peak of the processor: `cargo bench -p softly-kernels [-- NAME]`.

use std::hint::black_box;
use std::time::Instant;

use rayon::ThreadPool;
use softly_kernels::activation::{mp_silu, mp_silu_grad, mp_silu_scaled, mp_silu_scaled_grad};
use softly_kernels::activation::{silu_modulate, silu_modulate_grad};
use softly_kernels::adam::{AdamStep, adam, ema};
use softly_kernels::conv1x1::{conv1x1, conv1x1_grad_input, conv1x1_grad_weights};
use softly_kernels::conv3x3::{conv3x3, conv3x3_grad_input, conv3x3_grad_weights};
use softly_kernels::matmul::{MatmulShape, matmul, matmul_nt, matmul_tn};
use softly_kernels::mp::{mp_cat, mp_cat_grad, mp_sum, mp_sum_grad};
use softly_kernels::norm::{normalize_rows, pixel_norm, pixel_norm_grad, weight_norm, weight_norm_grad};
use softly_kernels::peak::peak;
use softly_kernels::resample::{ResampleShape, downsample, upsample};
use softly_kernels::shape::{ConvShape, Planes};
use softly_kernels::simd::{Level, SETTING};

/// Shortest run within a time budget.
fn fastest(budget: f64, work: &mut dyn FnMut()) -> f64 {
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

struct Table {
    /// Thread pools with their peaks.
    pools: Vec<(ThreadPool, f64)>,
    only: Option<String>,
}

impl Table {
    /// One line: `operations` multiply-adds (in GFLOP/s and % of the peak), or else `values` read and written (in GB/s).
    fn line(&self, name: &str, shape: &str, work: Work, mut kernel: impl FnMut() + Send) {
        if self.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        // Thread counts take turns, so that other programs disturb all of them alike.
        let mut seconds = vec![f64::INFINITY; self.pools.len()];
        for _ in 0..8 {
            for (seconds, (pool, _)) in seconds.iter_mut().zip(&self.pools) {
                *seconds = seconds.min(pool.install(|| fastest(0.015, &mut kernel)));
            }
        }
        print!("{name:<21} {shape:<15}");
        for (time, (_, peak)) in seconds.iter().zip(&self.pools) {
            print!(" | {:>8.3} ms", time * 1e3);
            match work {
                Work::MultiplyAdds(count) => {
                    let speed = 2.0 * count as f64 / time * 1e-9;
                    print!(" {speed:>6.1} GFLOP/s {:>3.0} %", 100.0 * speed / peak);
                }
                Work::Values(count) => print!(" {:>6.1} GB/s        ", 4.0 * count as f64 / time * 1e-9),
            }
        }
        println!(" | {:.2}x", seconds[0] / seconds[seconds.len() - 1]);
    }
}

#[derive(Clone, Copy)]
enum Work {
    MultiplyAdds(usize),
    Values(usize),
}

fn convolutions(table: &Table, batch: usize, inputs: usize, outputs: usize, size: usize) {
    let shape = ConvShape { batch, inputs, outputs, height: size, width: size };
    let name = if inputs == outputs {
        format!("{batch}x{inputs}x{size}x{size}")
    } else {
        format!("{batch}x{inputs}-{outputs}x{size}x{size}")
    };
    let (x, dy) = (noise(shape.input_values()), noise(shape.output_values()));
    let (mut y, mut dx) = (dy.clone(), x.clone());
    let (w, mut dw) = (noise(inputs * outputs * 9), noise(inputs * outputs * 9));
    let work = Work::MultiplyAdds(9 * outputs * x.len());
    table.line("conv3x3", &name, work, || conv3x3(shape, &x, &w, &mut y));
    table.line("conv3x3_grad_input", &name, work, || conv3x3_grad_input(shape, &dy, &w, &mut dx));
    table.line("conv3x3_grad_weights", &name, work, || conv3x3_grad_weights(shape, &x, &dy, &mut dw));
    let (w, mut dw) = (noise(inputs * outputs), noise(inputs * outputs));
    let work = Work::MultiplyAdds(outputs * x.len());
    table.line("conv1x1", &name, work, || conv1x1(shape, &x, &w, &mut y));
    table.line("conv1x1_grad_input", &name, work, || conv1x1_grad_input(shape, &dy, &w, &mut dx));
    table.line("conv1x1_grad_weights", &name, work, || conv1x1_grad_weights(shape, &x, &dy, &mut dw));
}

fn products(table: &Table, m: usize, n: usize, k: usize) {
    let shape = MatmulShape { m, n, k };
    let (a, b, mut c) = (noise(m * k), noise(k * n), noise(m * n));
    let (name, work) = (format!("{m}x{n}x{k}"), Work::MultiplyAdds(m * n * k));
    table.line("matmul", &name, work, || matmul(shape, &a, &b, &mut c, false));
    table.line("matmul_tn", &name, work, || matmul_tn(shape, &a, &b, &mut c, false));
    table.line("matmul_nt", &name, work, || matmul_nt(shape, &a, &b, &mut c, false));
}

fn pointwise(table: &Table) {
    let shape = Planes { batch: 4, channels: 24, pixels: 64 * 64 };
    let len = shape.values();
    let (x, b, dy, c) = (noise(len), noise(len), noise(len), noise(shape.rows()));
    let (mut y, mut z, mut dc, mut dt) = (noise(len), noise(len), c.clone(), c.clone());
    let name = "4x24x64x64";
    let moved = |arrays: usize| Work::Values(arrays * len);
    table.line("mp_silu", name, moved(2), || mp_silu(&x, &mut y));
    table.line("mp_silu_grad", name, moved(3), || mp_silu_grad(&x, &dy, &mut y));
    table.line("mp_silu_scaled", name, moved(2), || mp_silu_scaled(shape, &x, &c, &mut y));
    table.line("mp_silu_scaled_grad", name, moved(3), || mp_silu_scaled_grad(shape, &x, &c, &dy, &mut y, &mut dc));
    table.line("silu_modulate", name, moved(2), || silu_modulate(shape, &x, &c, &c, &mut y));
    table.line("silu_modulate_grad", name, moved(3), || {
        silu_modulate_grad(shape, &x, &c, &c, &dy, &mut y, &mut dc, &mut dt);
    });
    table.line("pixel_norm", name, moved(2), || pixel_norm(shape, &x, &mut y));
    table.line("pixel_norm_grad", name, moved(3), || pixel_norm_grad(shape, &x, &dy, &mut y));
    table.line("mp_sum", name, moved(3), || mp_sum(0.3, 256.0, &x, &b, &mut y));
    table.line("mp_sum_grad", name, moved(4), || mp_sum_grad(0.3, 256.0, &x, &dy, &mut y, &mut z));
    let mut both = noise(2 * len);
    table.line("mp_cat", name, moved(4), || mp_cat(shape, 24, 0.5, &x, &b, &mut both));
    table.line("mp_cat_grad", name, moved(4), || mp_cat_grad(shape, 24, 0.5, &both, &mut y, &mut z));
    let half = ResampleShape { images: shape.rows(), height: 32, width: 32 };
    table.line("downsample", name, Work::Values(len + len / 4), || downsample(half, &x, &mut y[..len / 4]));
    table.line("upsample", name, Work::Values(len + len / 4), || upsample(half, &x[..len / 4], &mut y));
    let step =
        AdamStep { learning_rate: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, correction1: 0.5, correction2: 0.5 };
    let (g, mut p, mut m, mut v) = (noise(1 << 20), noise(1 << 20), noise(1 << 20), vec![0.5; 1 << 20]);
    table.line("adam", "1048576", Work::Values(7 << 20), || adam(step, &g, &mut p, &mut m, &mut v));
    table.line("ema", "1048576", Work::Values(3 << 20), || ema(0.999, &g, &mut p));
    table.line("normalize_rows", "2048x512", Work::Values(2 << 20), || normalize_rows(512, &mut m));
    table.line("weight_norm", "2048x512", Work::Values(2 << 20), || weight_norm(512, 1.0, &g, &mut m));
    table.line("weight_norm_grad", "2048x512", Work::Values(3 << 20), || {
        black_box(weight_norm_grad(512, 1.0, &g, &p, &mut m));
    });
}

fn main() {
    let level = Level::asked_for().unwrap_or_else(|found| panic!("{SETTING}: this machine has no `{found}`"));
    println!("instruction set {}", level.name());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pools = [1, cores].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
        let peak = pool.install(|| peak(0.5));
        println!("peak {peak:.1} GFLOP/s on {threads} threads");
        (pool, peak)
    });
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let table = Table { pools: pools.into(), only };
    for batch in [4, 8] {
        for (channels, size) in [(24, 64), (48, 32), (72, 16), (96, 8)] {
            convolutions(&table, batch, channels, channels, size);
        }
    }
    for (inputs, outputs, size) in [(3, 24, 64), (48, 24, 64), (32, 32, 128), (128, 128, 16)] {
        convolutions(&table, 4, inputs, outputs, size);
    }
    products(&table, 512, 128, 128);
    products(&table, 64, 96, 96);
    pointwise(&table);
}
