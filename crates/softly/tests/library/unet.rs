//! The U-Net against reference numbers of the published network, through the kernels and composed of tensor operations.

use std::collections::HashMap;

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::SafeTensors;
use softly::random::{Purpose, Stream};
use softly::tensors::to_vec_f32;
use softly::{Backbone, BackboneConfig, Denoiser, Edm, Layers, Parameters, UNet, UNetConfig, composed};

use crate::common::cpu;

/// Name → shape and values.
type Reference = HashMap<String, (Vec<usize>, Vec<f32>)>;

fn reference() -> Reference {
    let bytes = include_bytes!("../data/edm2_16_c32.safetensors");
    let file = SafeTensors::deserialize(bytes).unwrap();
    let values = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    file.tensors().into_iter().map(|(name, view)| (name, (view.shape().to_vec(), values(view.data())))).collect()
}

fn small() -> UNetConfig {
    UNetConfig { channels: 32, multipliers: vec![1, 2], blocks: 1, attention: vec![8], head: 64, log_variance: true }
}

fn network(config: &UNetConfig, shape: [usize; 3], device: &Device) -> UNet {
    UNet::new(config, shape, &mut Stream::new(0, Purpose::Weights, 0), device).unwrap()
}

/// Largest difference relative to the largest expected value.
fn relative(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    found.iter().zip(expected).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / size
}

fn check_against_the_reference() {
    let reference = reference();
    let device = cpu().autodiff();
    let mut net = network(&small(), [2, 16, 16], &device);
    let mut loaded = 0;
    net.visit("net.", &mut |name, parameter| {
        let (shape, values) = reference.get(name).unwrap_or_else(|| panic!("{name} is not in the reference"));
        assert!(*shape == parameter.shape() || shape.is_empty(), "{name}");
        parameter.set(values.clone());
        loaded += 1;
    });
    assert_eq!(loaded, reference.keys().filter(|name| name.starts_with("net.")).count());

    let field = |name: &str| -> Tensor<4> {
        let (_, values) = &reference[name];
        Tensor::from_data(TensorData::new(values.clone(), [3, 2, 16, 16]), &device)
    };
    let sigma: Vec<f64> = reference["io.sigma"].1.iter().map(|&s| f64::from(s)).collect();
    let mut denoiser = Edm::new(Box::new(net), 0.5);
    let x = field("io.x").require_grad();
    let denoised = denoiser.denoise(x.clone(), &sigma);
    let log_variance = denoiser.log_variance(&sigma).unwrap();
    assert!(relative(&to_vec_f32(denoised.clone().without_autodiff()), &reference["io.denoised"].1) < 1e-5);
    assert!(relative(&to_vec_f32(log_variance.without_autodiff()), &reference["io.logvar"].1) < 1e-5);

    let mut gradients = (denoised * field("io.v")).sum().backward();
    assert!(relative(&to_vec_f32(x.grad_remove(&mut gradients).unwrap()), &reference["io.grad_x"].1) < 1e-4);
    let mut compared = 0;
    denoiser.visit("grad.", &mut |name, parameter| {
        let gradient = parameter.take_gradient(&mut gradients);
        if let Some((_, expected)) = reference.get(name) {
            let error = relative(&gradient.unwrap(), expected);
            assert!(error < 1e-4, "{name}: {error}");
            compared += 1;
        }
    });
    assert_eq!(compared, reference.keys().filter(|name| name.starts_with("grad.")).count());
}

#[test]
fn the_network_matches_the_reference_through_the_kernels() {
    check_against_the_reference();
}

#[test]
fn the_network_matches_the_reference_composed_of_tensor_operations() {
    composed(check_against_the_reference);
}

#[test]
fn the_papers_networks_have_the_papers_sizes() {
    let millions = |preset: &str, side: usize| {
        let config = Layers::new().preset(preset).unwrap().finish(preset).unwrap();
        let BackboneConfig::Unet(unet) = config.denoiser.backbone else { panic!("{preset} has a U-Net") };
        network(&unet, [2, side, side], &cpu()).count_parameters() as f64 / 1e6
    };
    let (darcy, helmholtz) = (millions("darcy-paper", 64), millions("helmholtz-paper", 128));
    assert!((darcy - 9.23).abs() < 0.005, "{darcy}");
    assert!((helmholtz - 16.4).abs() < 0.05, "{helmholtz}");
}

#[test]
fn rectangles_work_and_odd_sides_are_refused() {
    let device = cpu();
    let net = network(&small(), [1, 8, 12], &device);
    let x = Tensor::<4>::ones([2, 1, 8, 12], &device);
    assert_eq!(net.forward(x, &[0.1, 0.2]).dims(), [2, 1, 8, 12]);
    let error = UNet::new(&small(), [1, 8, 13], &mut Stream::new(0, Purpose::Weights, 0), &device).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("divisible by 2") && text.contains("8×13"), "{text}");
}
