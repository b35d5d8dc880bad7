//! Reference numbers and small numeric helpers that the tests share.
#![allow(dead_code, missing_docs)]

use std::fs::File;
use std::io::BufReader;

use npyz::NpyFile;

/// The array in `tests/data/<directory>/<name>.npy` as `f64`, row-major.
pub fn reference(directory: &str, name: &str) -> Vec<f64> {
    let path = format!("{}/tests/data/{directory}/{name}.npy", env!("CARGO_MANIFEST_DIR"));
    let array = NpyFile::new(BufReader::new(File::open(&path).expect(&path))).expect(&path);
    if array.dtype().descr().contains("f4") {
        array.into_vec::<f32>().expect(&path).into_iter().map(f64::from).collect()
    } else {
        array.into_vec().expect(&path)
    }
}

/// `‖found - expected‖ / ‖expected‖` in the Euclidean norm.
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

pub fn root_mean_square(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

/// The slope of the straight line through `(x, y)` by least squares.
pub fn slope(x: &[f64], y: &[f64]) -> f64 {
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mx, my) = (mean(x), mean(y));
    let covariance: f64 = x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum();
    covariance / x.iter().map(|x| (x - mx).powi(2)).sum::<f64>()
}
