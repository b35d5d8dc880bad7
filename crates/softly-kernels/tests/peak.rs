//! The measured peak is one: no matrix product is faster.

use std::time::Instant;

use rayon::ThreadPoolBuilder;
use softly_kernels::matmul::{MatmulShape, matmul};
use softly_kernels::peak::peak;
use softly_kernels::simd::{Level, with_level};

#[test]
fn no_matrix_product_is_faster_than_the_peak() {
    let shape = MatmulShape { m: 96, n: 128, k: 256 };
    let (a, b) = (vec![0.5_f32; shape.m * shape.k], vec![0.25_f32; shape.k * shape.n]);
    let mut c = vec![0.0_f32; shape.m * shape.n];
    let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    // The portable levels are compiled for what every processor has, where fused operations are calls.
    for level in Level::supported().into_iter().filter(|level| !format!("{level:?}").starts_with("Portable")) {
        let (mut fastest, mut highest) = (f64::INFINITY, 0.0_f64);
        // In turns, so that whatever else the machine does hits both.
        for _ in 0..40 {
            pool.install(|| {
                with_level(level, || {
                    highest = highest.max(peak(0.005));
                    let start = Instant::now();
                    matmul(shape, &a, &b, &mut c, false);
                    fastest = fastest.min(start.elapsed().as_secs_f64());
                });
            });
        }
        let product = 2.0 * (shape.m * shape.n * shape.k) as f64 / fastest * 1e-9;
        assert!(product <= 1.02 * highest, "{level:?}: {product:.1} GFLOP/s against a peak of {highest:.1}");
        assert!(product > 0.1 * highest, "{level:?}: {product:.1} GFLOP/s against a peak of {highest:.1}");
        assert!((c[0] - 32.0).abs() < 1e-4);
    }
}
