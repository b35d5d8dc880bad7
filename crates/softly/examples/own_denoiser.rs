//! Anything that maps a noisy field and its noise level to a clean one can be sampled from. Here it is a formula: the
//! best denoiser of Gaussian data, with which the sampler must give back their mean and standard deviation.
//!
//! `cargo run --release --example own_denoiser`

use burn::tensor::Tensor;
use softly::tensors::{per_sample, to_vec_f64};
use softly::{Denoiser, Parameters, Sampler, Target, Unobserved, Visitor, device};

/// E[x0 | x] for x0 ~ N(mean, std²): (std² x + σ² mean) / (std² + σ²).
struct Gaussian {
    mean: f64,
    std: f64,
}

impl Parameters for Gaussian {
    fn visit(&mut self, _: &str, _: &mut Visitor<'_>) {} // nothing is learned
}

impl Denoiser for Gaussian {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let trust = |s: &f64| self.std.powi(2) / (self.std.powi(2) + s * s);
        let shift = per_sample(sigma.iter().map(|s| self.mean * (1.0 - trust(s))), &x);
        x.clone() * per_sample(sigma.iter().map(trust), &x) + shift
    }
}

fn main() -> softly::error::Result<()> {
    let device = device::by_name("cpu")?;
    let denoiser = Gaussian { mean: 0.3, std: 0.5 };
    let indices: Vec<u64> = (0..1000).collect();
    // Fields of one channel on 4 × 4 nodes.
    let target = Target::plain(&denoiser, [1, 4, 4]);
    let samples = Sampler::default().sample(target, 0, &indices, &device, &mut Unobserved);
    let values = to_vec_f64(samples);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
    println!("mean {mean:.3} (0.3 expected), standard deviation {std:.3} (0.5 expected)");
    assert!((mean - 0.3).abs() < 0.02 && (std - 0.5).abs() < 0.02);
    Ok(())
}
