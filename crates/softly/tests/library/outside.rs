//! What other programs bring along: denoisers, arrays, samples in memory.

use std::path::Path;
use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};
use softly::job::Job;
use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    BackboneConfig, ConstraintConfig, DataConstraint, Dataset, Denoiser, Estimator, ExternalConfig, InMemory, Model,
    Snapshot, Split, Trained, Training, audit, audit_dataset, audit_stride, fit_dataset, inspect, write,
};
use softly_pde::grid::Grid;

use crate::common::{compiled, configured, cpu, dataset, field, new_training, normals, train, valid};

const SMALL: [&str; 4] = ["data.count=12", "data.valid=2", "train.batch=2", "train.iterations=4"];
const BACKBONES: [&str; 2] = [
    "denoiser.backbone={kind='mlp', hidden=8}",
    "denoiser.backbone={kind='unet', channels=4, multipliers=[1, 1], blocks=1, head=4}",
];
const KALMAN: &str = "denoiser.scd={directions=['gradient', 'kalman'], solve_for='p', input='features'}";

/// A model of the library as a function of numbers.
struct Function(Model);

impl Estimator for Function {
    fn estimate(&self, x: TensorData, sigma: &[f64]) -> TensorData {
        let dtype = x.dtype();
        self.0.denoise(Tensor::from_data(x, (&cpu(), dtype)), sigma).into_data()
    }

    fn transposed(&self, x: TensorData, sigma: &[f64], cotangent: TensorData) -> TensorData {
        let device = cpu().autodiff();
        let dtype = x.dtype();
        let x: Tensor<4> = Tensor::from_data(x, (&device, dtype)).require_grad();
        let weights: Tensor<4> = Tensor::from_data(cotangent, (&cpu(), dtype));
        let gradients = (self.0.denoise(x.clone(), sigma) * weights).sum().backward();
        x.grad(&gradients).expect("D depends on x").into_data()
    }
}

#[test]
fn a_denoiser_outside_gives_the_weights_and_samples_of_the_same_one_inside() {
    BACKBONES.into_iter().for_each(outside_as_inside);
}

fn outside_as_inside(backbone: &str) {
    let mut training = new_training(&configured("darcy-demo", &[&SMALL[..], &[backbone]].concat())).unwrap();
    (0..4).for_each(|_| drop(training.step().unwrap()));
    let vanilla = training.snapshot();
    let config = configured("darcy-demo", &[&SMALL[..], &[backbone, KALMAN]].concat());
    let steps = |mut training: Training| {
        for _ in 0..4 {
            training.step().unwrap();
        }
        training.snapshot()
    };
    let inside = steps(Training::adapt(&vanilla, Path::new("base"), &config, dataset(&config), &cpu()).unwrap());
    let (data, device) = (dataset(&config), cpu());
    let function: Arc<dyn Estimator> = Arc::new(Function(vanilla.model(&device, Path::new("base")).unwrap()));
    let units = Some(vanilla.blueprint.data.units.clone());
    let external = Snapshot::external(&data, vanilla.blueprint.sigma_data(), units).unwrap();
    let mut config = config;
    config.denoiser.backbone = BackboneConfig::External(ExternalConfig::default());
    let job = Job::silent(&device);
    let outside =
        Training::adapt_watched(&external, Path::new("f"), Some(&function), &config, data, &job).map(steps).unwrap();
    assert!(outside.is_external() && !inside.is_external() && !outside.weights.is_empty());
    for (name, _, values) in &outside.weights {
        let (_, _, expected) = inside.weights.iter().find(|(other, _, _)| other == name).unwrap();
        assert_eq!(values, expected, "{name}");
    }
    let x = field(&normals(3, 0, 2 * 256), [2, 16, 16]);
    let model = |snapshot: &Snapshot, function| {
        Trained::of(snapshot.clone(), "m".into(), function, &device).unwrap().model.denoise(x.clone(), &[0.3])
    };
    assert_eq!(to_vec_f64(model(&outside, Some(&function))), to_vec_f64(model(&inside, None)));
    let refused = Trained::of(outside, "m".into(), None, &device).err().expect("there is no function").to_string();
    assert!(refused.contains("outside of softly") && refused.contains("denoiser=f"), "{refused}");
}

#[test]
fn a_base_outside_needs_units_that_fit() {
    let data = dataset(&configured("darcy-demo", &SMALL));
    let units = Units { mean: vec![0.0; 2], scale: vec![1.0, 0.0] };
    let said = Snapshot::external(&data, 0.5, Some(units)).unwrap_err().to_string();
    assert!(said.contains("units") && said.contains("2 fields"), "{said}");
}

fn system() -> ConstraintConfig {
    toml::from_str(
        "fields = ['u', 'v']\nresidual = [{ formula = 'u*dx(v) + sin(u) - k*dyy(u)' }, \
         { formula = 'u*v', region = 'border', weight = -2.0 }]\nparameters = { k = { learn = 0.3 } }",
    )
    .unwrap()
}

#[test]
fn arrays_give_the_numbers_of_tensors_and_adjoint_products() {
    let (grid, config) = (Grid::unit(5, 6), system());
    let constraint = compiled(&config, &grid, &Units::identity(2));
    let (n, nodes) = (3, grid.len());
    let fields: Vec<Vec<f64>> = (0..2).map(|k| normals(1, k, n * nodes)).collect();
    let slices: Vec<&[f64]> = fields.iter().map(Vec::as_slice).collect();
    let mixed: Vec<f64> =
        (0..n).flat_map(|i| slices.iter().flat_map(move |f| f[i * nodes..(i + 1) * nodes].to_vec())).collect();
    let tensors: Vec<Vec<f64>> = constraint.residuals(&field(&mixed, [2, 5, 6])).into_iter().map(to_vec_f64).collect();
    let residual = constraint.residual_arrays(&slices);
    for (i, sample) in residual.chunks_exact(2 * nodes).enumerate() {
        for (e, values) in sample.chunks_exact(nodes).enumerate() {
            for (found, expected) in values.iter().zip(&tensors[e][i * nodes..(i + 1) * nodes]) {
                assert!((found - expected).abs() < 1e-10, "{found} {expected}");
            }
        }
    }
    let (along, weights) = ([normals(2, 0, n * nodes), normals(2, 1, n * nodes)], normals(3, 0, 2 * n * nodes));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let product = constraint.product_arrays(&slices, &[Some(&along[0]), Some(&along[1])]);
    let transposed = constraint.transposed_arrays(&slices, &weights);
    let (left, right) = (dot(&product, &weights), dot(&transposed[0], &along[0]) + dot(&transposed[1], &along[1]));
    assert!((left - right).abs() < 1e-10 * left.abs().max(1.0), "{left} {right}");
    // A field that stands still changes nothing.
    let still = constraint.product_arrays(&slices, &[Some(&along[0]), None]);
    let zero = vec![0.0; n * nodes];
    assert_eq!(still, constraint.product_arrays(&slices, &[Some(&along[0]), Some(&zero)]));
    let e = 1e-6;
    let moved = |sign: f64| {
        let at: Vec<Vec<f64>> =
            (0..2).map(|k| fields[k].iter().zip(&along[k]).map(|(x, d)| x + sign * e * d).collect()).collect();
        constraint.transposed_arrays(&at.iter().map(Vec::as_slice).collect::<Vec<_>>(), &weights)
    };
    let (ahead, behind) = (moved(1.0), moved(-1.0));
    let curvature = constraint.curvature_arrays(&slices, &weights, &[Some(&along[0]), Some(&along[1])]);
    for k in 0..2 {
        for ((found, a), b) in curvature[k].iter().zip(&ahead[k]).zip(&behind[k]) {
            assert!((found - (a - b) / (2.0 * e)).abs() < 1e-4, "{found}");
        }
    }
}

#[test]
fn samples_in_memory_are_written_and_audited_like_those_of_a_folder() {
    let mut data: Dataset = dataset(&configured("darcy-demo", &["data.count=20", "data.valid=3"]));
    data.generator = None;
    let folder = tempfile::tempdir().unwrap();
    let device = cpu();
    let job = Job::silent(&device);
    let written = write(&InMemory::new(&data), &folder.path().join("data"), &job).unwrap();
    let again = written.load().unwrap();
    assert_eq!((train(&again), valid(&again), again.hash()), (train(&data), valid(&data), data.hash()));
    let config = configured("darcy-demo", &["constraint.parameters.flow=15.0"]).constraint.unwrap();
    let names = ["flow".to_string()];
    let constraint = DataConstraint::new(&config, &written).unwrap().keeping(audit_stride(&written));
    let train = inspect(&written, Split::Train, usize::MAX, Some(&constraint), &job).unwrap();
    let expected = audit(&config, &written, &train, &names, &job).unwrap();
    let found = audit_dataset(&config, &data, &names, &job).unwrap();
    assert_eq!(found, expected);
    let fit = fit_dataset(&config, &data, &names, &job).unwrap();
    assert_eq!(Some(&fit), expected.fit.as_ref());
    assert!((fit.parameters[0].value - 10.0).abs() < 0.5, "{}", fit.parameters[0].value);
}
