//! The U-Net against reference numbers of the published network, through the kernels and composed of tensor operations.

use std::collections::HashMap;
use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use softly::job::Job;
use softly::random::{Purpose, Stream};
use softly::tensors::to_vec_f32;
use softly::{
    Backbone, BackboneConfig, Dataset, Denoiser, Edm, FieldShape, HeldOut, Integrator, Layers, Likelihood, Parameters,
    Precision, Probes, Split, Training, UNet, UNetConfig, Unobserved, composed, recomputing,
};
use softly_pde::grid::{Axis, Grid};

use crate::common::{configured, cpu, normals};

/// Name → shape and values.
type Reference = HashMap<String, (Vec<usize>, Vec<f32>)>;

fn reference() -> Reference {
    let bytes = include_bytes!("../data/edm2_16_c32.safetensors");
    let file = SafeTensors::deserialize(bytes).unwrap();
    let values = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    file.tensors().into_iter().map(|(name, view)| (name, (view.shape().to_vec(), values(view.data())))).collect()
}

fn small() -> UNetConfig {
    UNetConfig {
        channels: 32,
        multipliers: vec![1, 2],
        blocks: 1,
        attention: vec![8],
        head: 64,
        log_variance: true,
        precision: Precision::F32,
    }
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
fn the_network_matches_the_reference_with_activations_that_are_computed_again() {
    recomputing(true, check_against_the_reference);
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
fn rectangles_work_and_too_many_levels_are_refused() {
    let device = cpu();
    let net = network(&small(), [1, 8, 12], &device);
    let x = Tensor::<4>::ones([2, 1, 8, 12], &device);
    assert_eq!(net.forward(x, &[0.1, 0.2]).dims(), [2, 1, 8, 12]);
    let deep = UNetConfig { multipliers: vec![1; 6], ..small() };
    let error = UNet::new(&deep, [1, 64, 13], &mut Stream::new(0, Purpose::Weights, 0), &device).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("6 levels") && text.contains("64×13") && text.contains("fewer levels"), "{text}");
}

/// A network of three levels with random gains, so that its output and gradients are not zero at the start.
fn any_grid(shape: FieldShape, device: &Device) -> UNet {
    let config = UNetConfig {
        channels: 4,
        multipliers: vec![1, 2, 2],
        blocks: 1,
        attention: vec![],
        head: 4,
        log_variance: false,
        precision: Precision::F32,
    };
    let mut stream = Stream::new(3, Purpose::Weights, 0);
    let mut net = UNet::new(&config, shape, &mut stream, device).unwrap();
    net.visit("", &mut |name, parameter| {
        if name.ends_with("gain") {
            parameter.set(vec![0.7]);
        }
    });
    net
}

fn random(shape: [usize; 4], index: u64, device: &Device) -> Tensor<4> {
    let values = normals(7, index, shape.iter().product()).into_iter().map(|v| v as f32).collect();
    Tensor::from_data(TensorData::new::<f32, _>(values, shape), device)
}

#[test]
fn a_padded_network_is_the_network_of_the_extended_field() {
    // 6 × 7 nodes become 8 × 8: mirrored at the ends, or gone on with along a periodic axis.
    let device = cpu();
    let x = random([1, 2, 6, 7], 0, &device);
    let rows = |sources: &[i32]| -> Tensor<1, Int> { Tensor::from_data(sources, &device) };
    let extended = x.clone().select(2, rows(&[1, 0, 1, 2, 3, 4, 5, 4]));
    let whole = any_grid([2, 8, 8].into(), &device);
    for (periodic, cols) in [(false, [0, 1, 2, 3, 4, 5, 6, 5]), (true, [0, 1, 2, 3, 4, 5, 6, 0])] {
        let net = any_grid(FieldShape { periodic: [false, periodic], ..FieldShape::from([2, 6, 7]) }, &device);
        let found = net.forward(x.clone(), &[0.3]);
        let expected = whole.forward(extended.clone().select(3, rows(&cols)), &[0.3]).slice([0..1, 0..2, 1..7, 0..7]);
        assert_eq!(to_vec_f32(found), to_vec_f32(expected), "periodic: {periodic}");
    }
}

#[test]
fn gradients_pass_through_the_padding() {
    let device = cpu().autodiff();
    let shape = FieldShape { periodic: [false, true], ..FieldShape::from([1, 5, 7]) };
    let net = any_grid(shape, &device);
    let x = random([1, 1, 5, 7], 1, &device).require_grad();
    let v = random([1, 1, 5, 7], 2, &device);
    let mut gradients = (net.forward(x.clone(), &[0.2]) * v.clone()).sum().backward();
    let gradient = to_vec_f32(x.grad_remove(&mut gradients).unwrap());
    let plain = any_grid(shape, &cpu());
    let (x, v) = (x.detach().without_autodiff(), to_vec_f32(v.without_autodiff()));
    for node in [0, 3, 6, 17, 28, 34] {
        let at = |step: f32| -> f64 {
            let mut values = to_vec_f32(x.clone());
            values[node] += step;
            let moved: Tensor<4> = Tensor::from_data(TensorData::new(values, [1, 1, 5, 7]), &cpu());
            let out = to_vec_f32(plain.forward(moved, &[0.2]));
            out.iter().zip(&v).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
        assert!(
            (f64::from(gradient[node]) - slope).abs() < 2e-3 * (1.0 + slope.abs()),
            "{node}: {} {slope}",
            gradient[node]
        );
    }
}

/// Smooth data on `grid`.
fn waves(grid: &Grid, count: usize) -> Dataset {
    let field = |i: usize| {
        let [a, b] = normals(11, i as u64, 2)[..] else { panic!("two numbers") };
        let at = |node: usize| {
            let (x, y) =
                ((node / grid.cols()) as f64 / grid.rows() as f64, (node % grid.cols()) as f64 / grid.cols() as f64);
            (a * (6.0 * x).cos() + b * (std::f64::consts::TAU * y).sin()) as f32
        };
        (0..grid.len()).map(at).collect::<Vec<f32>>()
    };
    let samples = |from: usize, to: usize| (from..to).flat_map(field).collect::<Vec<_>>().into();
    Dataset {
        scalars: Vec::new(),
        constants: std::collections::BTreeMap::default(),
        fields: vec!["u".into()],
        grid: grid.clone(),
        train: samples(0, count),
        valid: samples(count, count + 2),
        generator: None,
        equation: None,
    }
}

#[test]
fn any_grid_trains_samples_and_has_a_likelihood() {
    for (rows, cols, channels) in [(50, 37, 4), (101, 64, 4), (421, 421, 2)] {
        let axes = vec![Axis::new("t", rows, 0.0, 1.0), Axis::new("x", cols, 0.0, 2.0).periodic()];
        let data = waves(&Grid { axes }, 3);
        let network = format!(
            "denoiser.backbone={{kind='unet', channels={channels}, multipliers=[1, 1, 1, 1], blocks=1, head=4}}"
        );
        let settings = [&*network, "train.batch=2", "train.iterations=2", "sampler.steps=2"];
        let config = configured("fields", &settings);
        let mut training = Training::new(&config, data.clone(), &cpu()).unwrap();
        training.step().unwrap();
        if rows == 421 {
            continue;
        }
        training.step().unwrap();
        let snapshot = training.snapshot();
        let model = snapshot.model(&cpu(), Path::new("test")).unwrap();
        let samples = to_vec_f32(config.sampler.sample(model.target(), 0, &[0, 1], &cpu(), &mut Unobserved));
        assert!(samples.len() == 2 * rows * cols && samples.iter().all(|v| v.is_finite()));
        let mut likelihood = Likelihood::for_model(&snapshot.blueprint.config);
        likelihood.integrator = Integrator::Heun { steps: 3, rho: 7.0 };
        likelihood.probes = Probes::Rademacher { count: 1 };
        let units = &snapshot.blueprint.data.units;
        let values = data.batch(Split::Valid, &[0], units).unwrap();
        let held_out = HeldOut { values: &values, shape: [1, rows, cols], units };
        let report = likelihood.evaluate(&model, held_out, 0, &Job::silent(&cpu())).unwrap();
        assert!(report.bits_per_dim.is_finite());
    }
}

/// Output and input gradient of a network with attention whose every part matters, composed of tensor operations.
fn composed_in(precision: Precision) -> [Vec<f32>; 2] {
    let device = cpu().autodiff();
    let mut net = network(&UNetConfig { head: 32, precision, ..small() }, [2, 16, 16], &device);
    net.visit("", &mut |name, parameter| {
        if name.ends_with("gain") {
            parameter.set(vec![0.7]);
        }
    });
    let x = random([2, 2, 16, 16], 3, &device).require_grad();
    composed(|| {
        let y = net.forward(x.clone(), &[0.1, -0.4]);
        let mut gradients = (y.clone() * random([2, 2, 16, 16], 4, &device)).sum().backward();
        [to_vec_f32(y), to_vec_f32(x.grad_remove(&mut gradients).unwrap())]
    })
}

#[test]
fn half_precision_is_single_precision_but_for_its_rounding() {
    let expected = composed_in(Precision::F32);
    // Roundings of 2^-12 and 2^-9 add up over some forty operations.
    for (precision, least, most) in [(Precision::F16, 1e-5, 5e-3), (Precision::Bf16, 1e-4, 4e-2)] {
        for (found, expected) in composed_in(precision).iter().zip(&expected) {
            let error = relative(found, expected);
            assert!(error > least && error < most, "{precision:?}: {error}");
        }
    }
}

#[test]
fn trainings_in_half_precision_see_the_gradients_of_single_precision() {
    let first = |precision: &str| {
        let backbone =
            "denoiser.backbone={kind='unet', channels=8, multipliers=[1, 2], blocks=1, head=8, precision='PRECISION'}";
        let backbone = backbone.replace("PRECISION", precision);
        let small = [
            "data.count=8",
            "data.valid=2",
            "train.batch=4",
            "train.shares=1",
            "train.log_every=1",
            "train.schedule={kind='constant'}",
            &backbone,
        ];
        let mut config = configured("darcy-demo", &small);
        config.denoiser.scd = None;
        // Operations are composed thread by thread.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        pool.install(|| {
            composed(|| {
                let dataset = Dataset::from_config(&config.data).unwrap();
                let mut training = Training::new(&config, dataset, &cpu()).unwrap();
                // The gain of the output is 0 before the first step, and then one rate, 0.05, more with every step.
                (0..3).map(|_| training.step().unwrap().unwrap()).collect::<Vec<_>>().pop().unwrap()
            })
        })
    };
    let expected = first("f32");
    for (precision, most) in [("f16", 5e-3), ("bf16", 3e-2)] {
        let found = first(precision);
        assert_eq!(found.replaced, 0, "{precision}");
        let pairs = [(found.loss, expected.loss), (found.gradient_norm, expected.gradient_norm)];
        for (found, expected) in pairs {
            assert!((found / expected - 1.0).abs() < most && found != expected, "{precision}: {found}, {expected}");
        }
    }
}
