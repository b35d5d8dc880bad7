//! Gaussian data, whose best denoiser and whose density are known in closed form.

use std::f64::consts::TAU;

use burn::tensor::{Tensor, TensorData};
use softly::Denoiser;
use softly::random::{Purpose, Stream};

use crate::common::denoisers::without_parameters;
use crate::common::normals;

/// Seed of measurements on the data.
pub const SEED: u64 = 3;

/// Gaussian data: mean, and a covariance with the given eigenvalues whose eigenvectors are mirrored unit vectors.
#[derive(Clone)]
pub struct Gaussian {
    pub shape: [usize; 3],
    mean: Vec<f64>,
    pub eigenvalues: Vec<f64>,
    /// Normal of the mirror, of length 1.
    normal: Vec<f64>,
}

impl Gaussian {
    /// Two dimensions, one wide and one narrow.
    pub fn flat() -> Self {
        Self {
            shape: [2, 1, 1],
            mean: vec![0.02, -0.01],
            eigenvalues: vec![1.2, 0.1],
            normal: vec![0.3f64.cos(), 0.3f64.sin()],
        }
    }

    /// 64 dimensions as two channels of 4×8, from far narrower than σmin = 0.002 to wide, as PDE solutions are.
    pub fn field() -> Self {
        let eigenvalues = (0..64).map(|i| 10f64.powf(-8.0 + 8.0 * f64::from(i) / 63.0)).collect();
        let mut stream = Stream::new(40, Purpose::Metric, 0);
        let normal = stream.normals(64);
        let length = normal.iter().map(|v| v * v).sum::<f64>().sqrt();
        let mean = stream.normals(64).into_iter().map(|v| 0.02 * v).collect();
        Self { shape: [2, 4, 8], mean, eigenvalues, normal: normal.into_iter().map(|v| v / length).collect() }
    }

    /// 256 dimensions as one field of 16×16, from a hundredth to one wide.
    pub fn large() -> Self {
        let eigenvalues = (0..256).map(|i| 10f64.powf(-4.0 + 4.0 * f64::from(i) / 255.0)).collect();
        let mut stream = Stream::new(43, Purpose::Metric, 0);
        let normal = stream.normals(256);
        let length = normal.iter().map(|v| v * v).sum::<f64>().sqrt();
        let mean = stream.normals(256).into_iter().map(|v| 0.02 * v).collect();
        Self { shape: [1, 16, 16], mean, eigenvalues, normal: normal.into_iter().map(|v| v / length).collect() }
    }

    pub fn size(&self) -> usize {
        self.mean.len()
    }

    /// The mirror: its own inverse.
    pub fn mirror(&self, x: &[f64]) -> Vec<f64> {
        let along: f64 = x.iter().zip(&self.normal).map(|(x, n)| x * n).sum();
        x.iter().zip(&self.normal).map(|(x, n)| x - 2.0 * along * n).collect()
    }

    pub fn to_eigen(&self, x: &[f64]) -> Vec<f64> {
        self.mirror(&x.iter().zip(&self.mean).map(|(x, m)| x - m).collect::<Vec<_>>())
    }

    pub fn out_of_eigen(&self, y: &[f64]) -> Vec<f64> {
        self.mirror(y).iter().zip(&self.mean).map(|(y, m)| y + m).collect()
    }

    pub fn data(&self, n: u64) -> Vec<f32> {
        let sample = |i: u64| {
            let z = normals(41, i, self.size());
            self.out_of_eigen(&z.iter().zip(&self.eigenvalues).map(|(z, l)| z * l.sqrt()).collect::<Vec<_>>())
        };
        (0..n).flat_map(sample).map(|v| v as f32).collect()
    }

    /// −log density of data + σ·noise at x, nats.
    pub fn nll(&self, x: &[f64], sigma: f64) -> f64 {
        let term = |(y, l): (f64, &f64)| {
            let variance = l + sigma * sigma;
            0.5 * (y * y / variance + (TAU * variance).ln())
        };
        self.to_eigen(x).into_iter().zip(&self.eigenvalues).map(term).sum()
    }

    /// −log density at x of what the exact flow makes of N(0, σmax²) at σmin, nats.
    pub fn flow_nll(&self, x: &[f64], sigma_min: f64, sigma_max: f64) -> f64 {
        let growth: Vec<f64> = self
            .eigenvalues
            .iter()
            .map(|l| ((l + sigma_max * sigma_max) / (l + sigma_min * sigma_min)).sqrt())
            .collect();
        let end = self.out_of_eigen(&self.to_eigen(x).iter().zip(&growth).map(|(y, g)| y * g).collect::<Vec<_>>());
        let terminal: f64 =
            end.iter().map(|v| 0.5 * ((v / sigma_max).powi(2) + (TAU * sigma_max * sigma_max).ln())).sum();
        terminal - growth.iter().map(|g| g.ln()).sum::<f64>()
    }

    /// E‖x0 − D‖²/d of the best denoiser.
    pub fn mse(&self, sigma: f64) -> f64 {
        self.eigenvalues.iter().map(|l| l * sigma * sigma / (l + sigma * sigma)).sum::<f64>() / self.size() as f64
    }

    /// Where the likelihood of sample `index` is evaluated: one stream gives the noise.
    pub fn start(&self, data: &[f32], index: usize, sigma: f64) -> Vec<f64> {
        let noise = normals(SEED, index as u64, self.size());
        let sample = &data[index * self.size()..(index + 1) * self.size()];
        sample.iter().zip(noise).map(|(&x, n)| f64::from(x) + sigma * n).collect()
    }

    fn row(values: &[f64], like: &Tensor<2>) -> Tensor<2> {
        Tensor::from_data(
            TensorData::new(values.to_vec(), [1, values.len()]),
            (&like.device().without_autodiff(), like.dtype()),
        )
    }

    /// mean + gains · (x − offset·mean) in the eigenbasis, one row of gains per sample, in tensor operations.
    pub fn filter(&self, x: Tensor<4>, offsets: &[f64], gains: Vec<f64>) -> Tensor<4> {
        let ([n, c, h, w], d) = (x.dims(), self.size());
        let mirror = |y: Tensor<2>| {
            let normal = Self::row(&self.normal, &y);
            let along = (y.clone() * normal.clone()).sum_dim(1);
            y - along * normal * 2.0
        };
        let constant = |values: Vec<f64>, shape: [usize; 2]| -> Tensor<2> {
            Tensor::from_data(TensorData::new(values, shape), (&x.device().without_autodiff(), x.dtype()))
        };
        let flat = x.clone().reshape([n, d]);
        let mean = Self::row(&self.mean, &flat);
        let centred = flat - mean.clone() * constant(offsets.to_vec(), [n, 1]);
        (mirror(mirror(centred) * constant(gains, [n, d])) + mean).reshape([n, c, h, w])
    }
}

without_parameters!(Gaussian);

impl Denoiser for Gaussian {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let gains = sigma.iter().flat_map(|s| self.eigenvalues.iter().map(move |l| l / (l + s * s)));
        self.filter(x, &vec![1.0; sigma.len()], gains.collect())
    }
}
