//! The neural operator: one function at every resolution, its gradients, and the same bits on any number of threads.

use burn::tensor::{Device, Tensor, TensorData};
use softly::job::Job;
use softly::random::{Purpose, Stream};
use softly::tensors::{to_vec_f32, to_vec_f64};
use softly::{
    Backbone, BackboneConfig, Draw, FieldShape, Operator, OperatorConfig, Parameters, RunFolder, Trained, composed,
};
use softly_pde::grid::{Axis, Grid};
use softly_pde::waves::{interpolate, wave};

use crate::common::{configured, cpu, new_training, normals, order, run_until};

fn config() -> OperatorConfig {
    OperatorConfig { channels: 6, modes: 5, blocks: 2, log_variance: false }
}

/// The network with gains that are not zero, as they are at the start.
fn network(shape: impl Into<FieldShape>, device: &Device) -> Operator {
    let mut net = Operator::new(&config(), shape, &mut Stream::new(3, Purpose::Weights, 0), device).unwrap();
    net.visit("", &mut |name, parameter| {
        if name.ends_with("gain") {
            parameter.set(vec![0.7]);
        }
    });
    net
}

fn tensor(values: Vec<f64>, shape: [usize; 4], device: &Device) -> Tensor<4> {
    let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Axes of every kind, and the shape of two fields on them.
fn kinds(n: usize) -> Vec<(Grid, FieldShape)> {
    let axis = |name: &str| Axis::new(name, n, 0.0, 1.0);
    let shape = FieldShape::from([2, n, n]);
    vec![
        (Grid { axes: vec![axis("x"), axis("y")] }, shape),
        (Grid { axes: vec![axis("x").cells(), axis("y").cells()] }, FieldShape { cells: [true, true], ..shape }),
        (Grid { axes: vec![axis("t"), axis("x").periodic()] }, FieldShape { periodic: [false, true], ..shape }),
    ]
}

/// Two fields of the first four waves of both axes, the same functions on every grid.
fn smooth(grid: &Grid) -> Vec<f64> {
    let field = |channel: u64| {
        let heights = normals(5, channel, 16);
        let place = |k: usize| {
            let (i, j) = (k / grid.cols(), k % grid.cols());
            let (rows, cols) = (&grid.axes[0], &grid.axes[1]);
            let term = |n: usize| {
                let along =
                    [wave(rows.periodic, n / 4, rows.coordinate(i)), wave(cols.periodic, n % 4, cols.coordinate(j))];
                0.3 * heights[n] * along[0] * along[1]
            };
            (0..16).map(term).sum()
        };
        (0..grid.len()).map(place).collect::<Vec<f64>>()
    };
    [field(0), field(1)].concat()
}

#[test]
fn smooth_fields_have_one_image_at_every_resolution() {
    let device = cpu();
    let reference = 72;
    for kind in 0..3 {
        let image = |n: usize| {
            let (grid, shape) = kinds(n).swap_remove(kind);
            let x = tensor(smooth(&grid), [1, 2, n, n], &device);
            (to_vec_f64(network(shape, &device).forward(x, &[0.2])), grid)
        };
        let (exact, fine) = image(reference);
        let size = exact.iter().map(|v| v * v).sum::<f64>().sqrt();
        assert!(size > 1.0);
        let errors = [12, 18, 24, 36].map(|n| {
            let (values, coarse) = image(n);
            let finer: Vec<f64> = values.chunks(n * n).flat_map(|field| interpolate(&coarse, &fine, field)).collect();
            let gap = finer.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt() / size;
            (1.0 / n as f64, gap)
        });
        // What is left are the sums over points of waves that the activations made and the grid does not resolve.
        assert!(errors[2].1 < 0.02, "{kind}: {errors:?}");
        assert!(order(&errors) > 2.0, "{kind}: {errors:?}");
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = cpu().autodiff();
    let (grid, shape) = kinds(8).swap_remove(2);
    let net = network(shape, &device);
    let values = smooth(&grid);
    let x = tensor([values.clone(), values.iter().map(|v| 0.5 - v).collect()].concat(), [2, 2, 8, 8], &device);
    let direction = tensor(normals(9, 0, 256), [2, 2, 8, 8], &device);
    let weight = tensor(normals(9, 1, 256), [2, 2, 8, 8], &device);
    let loss = |net: &Operator, x: Tensor<4>| (net.forward(x, &[0.3, -0.4]) * weight.clone()).sum();
    let number = |loss: Tensor<1>| f64::from(loss.without_autodiff().into_scalar::<f32>());
    let tracked = x.clone().require_grad();
    let mut gradients = loss(&net, tracked.clone()).backward();
    let gradient = tracked.grad_remove(&mut gradients).unwrap();
    let analytic = number((gradient * direction.clone().without_autodiff()).sum());
    let step = 1e-2;
    let at = |s: f64| number(loss(&net, x.clone() + direction.clone() * s));
    let numeric = (at(step) - at(-step)) / (2.0 * step);
    assert!((analytic - numeric).abs() < 1e-2 * numeric.abs().max(1.0), "input: {analytic} against {numeric}");

    // Every weight, along a random direction of its own.
    let mut net = net;
    let mut names = Vec::new();
    net.visit("", &mut |name, parameter| {
        if parameter.trainable() {
            names.push((name.to_string(), parameter.values(), parameter.take_gradient(&mut gradients)));
        }
    });
    assert!(names.len() > 10);
    for (k, (name, values, gradient)) in names.into_iter().enumerate() {
        let gradient = gradient.unwrap_or_else(|| panic!("{name} has no gradient"));
        let along: Vec<f32> = normals(10, k as u64, values.len()).into_iter().map(|v| v as f32).collect();
        let analytic: f64 = gradient.iter().zip(&along).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
        let mut at = |s: f32| {
            let moved: Vec<f32> = values.iter().zip(&along).map(|(v, d)| v + s * d).collect();
            net.visit("", &mut |other, parameter| {
                if other == name {
                    parameter.set(moved.clone());
                }
            });
            number(loss(&net, x.clone()))
        };
        let step = 4e-3;
        let numeric = (at(step) - at(-step)) / (2.0 * f64::from(step));
        at(0.0);
        assert!((analytic - numeric).abs() < 1e-2 * numeric.abs().max(1.0), "{name}: {analytic} against {numeric}");
    }
}

#[test]
fn the_result_does_not_depend_on_threads_or_on_the_batch_and_kernels_change_nothing() {
    let (grid, shape) = kinds(9).swap_remove(0);
    let run = |n: usize| {
        let device = cpu().autodiff();
        let net = network(shape, &device);
        let values: Vec<f64> =
            (0..n).flat_map(|k| smooth(&grid).into_iter().map(move |v| v + 0.1 * k as f64)).collect();
        let x = tensor(values, [n, 2, 9, 9], &device).require_grad();
        let y = net.forward(x.clone(), &vec![0.1; n]);
        let mut gradients = (y.clone() * y.clone()).sum().backward();
        let gradient = to_vec_f32(x.grad_remove(&mut gradients).unwrap());
        (to_vec_f32(y.without_autodiff()), gradient)
    };
    let bits = |(a, b): (Vec<f32>, Vec<f32>)| a.into_iter().chain(b).map(f32::to_bits).collect::<Vec<_>>();
    let on = |threads: usize, n: usize| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| run(n))
    };
    assert_eq!(bits(on(1, 5)), bits(on(2, 5)));
    let (many, alone) = (on(2, 5).0, on(1, 1).0);
    assert_eq!(many[..alone.len()], alone[..]);
    let plain = composed(|| run(2)).0;
    for (a, b) in run(2).0.iter().zip(&plain) {
        assert!((a - b).abs() < 1e-5, "{a} against {b}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let build = |config: OperatorConfig, shape: [usize; 3]| {
        Operator::new(&config, shape, &mut Stream::new(0, Purpose::Weights, 0), &cpu()).err().unwrap().to_string()
    };
    let few = build(config(), [2, 5, 9]);
    assert!(few.starts_with("denoiser.backbone.modes: ") && few.contains("5×9"), "{few}");
    for bad in [OperatorConfig { channels: 0, ..config() }, OperatorConfig { modes: 2, ..config() }] {
        let said = build(bad, [2, 9, 9]);
        assert!(said.starts_with("denoiser.backbone: expected at least"), "{said}");
    }
}

#[test]
fn a_trained_operator_draws_on_grids_that_it_never_saw() {
    let backbone = "denoiser.backbone={kind='operator', channels=6, modes=4, blocks=1}";
    let settings = ["data.generator.size=8", "data.count=40", "data.valid=8", "train.iterations=8", "train.batch=6"];
    let noise = "noise.field={length=0.2, smoothness=2.0}";
    let all = |backbone: &'static str| [&settings[..], &[backbone, noise, "sampler.steps=12"]].concat();
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::new(folder.path().join("run"));
    run_until(new_training(&configured("helmholtz-demo", &all(backbone))).unwrap(), &run, u64::MAX).unwrap();
    let device = cpu();
    let load = |size: Option<[usize; 2]>| Trained::load_on(&run.path, &[], size, &device);
    let draw = Draw { seed: 0, indices: &[0, 1], batch: 2, observed: None };
    let job = Job::silent(&device);
    let (coarse, fine) = (load(None).unwrap(), load(Some([16, 12])).unwrap());
    assert_eq!(fine.model.shape, [2, 16, 12]);
    let (low, high) = (coarse.samples(&draw, &job).unwrap(), fine.samples(&draw, &job).unwrap());
    assert_eq!(high.len(), 2 * 2 * 16 * 12);
    // The noise is one smooth function on both grids, so the samples nearly are, too.
    let [from, to] = [&coarse, &fine].map(|trained| &trained.blueprint.data.grid);
    let finer: Vec<f64> = low.chunks(64).flat_map(|field| interpolate(from, to, field)).collect();
    let size = high.iter().map(|v| v * v).sum::<f64>();
    let gap = finer.iter().zip(&high).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / size;
    assert!(gap.sqrt() < 0.25, "{}", gap.sqrt());
    // Drawn again from little noise the interpolated samples hardly change.
    let again = fine.refine(&coarse, 0.02, &draw, &job).unwrap();
    let moved = again.iter().zip(&finer).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / size;
    assert!(moved > 0.0 && moved.sqrt() < 0.2, "{}", moved.sqrt());

    let too_coarse = load(Some([4, 16])).err().unwrap().to_string();
    assert!(too_coarse.starts_with("denoiser.backbone.modes: "), "{too_coarse}");
    let unet = "denoiser.backbone={kind='unet', channels=8, multipliers=[1], blocks=1, head=8}";
    let other = RunFolder::new(folder.path().join("unet"));
    run_until(new_training(&configured("helmholtz-demo", &all(unet))).unwrap(), &other, u64::MAX).unwrap();
    let said = Trained::load_on(&other.path, &[], Some([16, 16]), &device).err().unwrap().to_string();
    assert!(said.starts_with("--grid: ") && said.contains("operator"), "{said}");
    let config = configured("helmholtz-demo", &all(backbone));
    assert!(matches!(config.denoiser.backbone, BackboneConfig::Operator(_)));
}
