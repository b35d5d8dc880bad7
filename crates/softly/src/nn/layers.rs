//! Layers that magnitude-preserving networks share: features of the noise level, weights, gains, the log-variance.

use burn::tensor::{DType, Device, Tensor};

use crate::nn::mp_ops as mp;
use crate::nn::parameter::{Parameter, Parameters, Visitor};
use crate::random::Stream;
use crate::tensors::constant;

/// Features of the noise level for the log-variance.
const LOG_VARIANCE_FEATURES: usize = 128;

/// √2·cos(f c + φ): features of a noise input, with fixed frequencies and phases.
pub(crate) struct Fourier {
    freqs: Parameter<1>,
    phases: Parameter<1>,
}

impl Fourier {
    pub fn new(count: usize, stream: &mut Stream, device: &Device) -> Self {
        let turn = 2.0 * std::f64::consts::PI;
        let mut draw = |value: &mut dyn FnMut(&mut Stream) -> f64| -> Vec<f32> {
            (0..count).map(|_| (turn * value(stream)) as f32).collect()
        };
        let freqs = draw(&mut |s| s.normal());
        let phases = draw(&mut |s| s.uniform());
        Self { freqs: Parameter::fixed(freqs, [count], device), phases: Parameter::fixed(phases, [count], device) }
    }

    /// One number per sample → `[N, features]`.
    pub fn forward(&self, noise: &[f64]) -> Tensor<2> {
        let freqs = self.freqs.get();
        let noise: Tensor<2> = constant(noise.to_vec(), [noise.len(), 1], &freqs.device(), DType::F32);
        (noise * freqs.unsqueeze::<2>() + self.phases.get().unsqueeze::<2>()).cos() * std::f64::consts::SQRT_2
    }
}

impl Parameters for Fourier {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        visit(&format!("{prefix}freqs"), &mut self.freqs);
        visit(&format!("{prefix}phases"), &mut self.phases);
    }
}

/// Weights `[outputs, inputs, k, k]`, standard normal.
pub(crate) fn conv_weight(
    inputs: usize,
    outputs: usize,
    k: usize,
    stream: &mut Stream,
    device: &Device,
) -> Parameter<4> {
    let values = stream.normals(outputs * inputs * k * k).into_iter().map(|v| v as f32).collect();
    Parameter::new(values, [outputs, inputs, k, k], device).with_unit_rows()
}

/// Weights `[outputs, inputs]`, standard normal.
pub(crate) fn linear_weight(inputs: usize, outputs: usize, stream: &mut Stream, device: &Device) -> Parameter<2> {
    let values = stream.normals(outputs * inputs).into_iter().map(|v| v as f32).collect();
    Parameter::new(values, [outputs, inputs], device).with_unit_rows()
}

/// A learned factor, 0 at the start.
pub(crate) fn gain(device: &Device) -> Parameter<1> {
    Parameter::new(vec![0.0], [1], device)
}

/// The gain 1 of layers without a learned one.
pub(crate) fn unit_gain(device: &Device) -> Tensor<1> {
    Tensor::ones([1], &device.clone().without_autodiff())
}

/// u(σ), the log-variance of the denoising error.
pub(crate) struct LogVariance {
    fourier: Fourier,
    linear: Parameter<2>,
}

impl LogVariance {
    pub fn new(stream: &mut Stream, device: &Device) -> Self {
        Self {
            fourier: Fourier::new(LOG_VARIANCE_FEATURES, stream, device),
            linear: linear_weight(LOG_VARIANCE_FEATURES, 1, stream, device),
        }
    }

    /// One number per sample → `[N]`.
    pub fn forward(&self, noise: &[f64]) -> Tensor<1> {
        let features = self.fourier.forward(noise);
        let gain = unit_gain(&features.device());
        mp::linear(features, self.linear.get(), gain).reshape([noise.len()])
    }
}

impl Parameters for LogVariance {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        self.fourier.visit(&format!("{prefix}logvar_fourier."), visit);
        visit(&format!("{prefix}logvar_linear.weight"), &mut self.linear);
    }
}
