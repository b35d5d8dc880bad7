//! The training loss of small models and its gradients.

use softly::tensors::to_vec_f64;
use softly::{Batch, Blueprint, Config, Dataset, Loss, Model, Objective, Parameters, Snapshot, Split};

use crate::common::{configured, cpu, dataset, field, new_training, normals};

/// The loss of `model` on `clean` fields with `noise` of levels `sigma`, `[N, C, H, W]` both, in f64 around the f32
/// network.
pub fn loss_of(model: &Model, objective: &Objective, clean: &[f64], noise: &[f64], sigma: &[f64]) -> Loss {
    let batch = Batch::new(field(clean, model.shape), field(noise, model.shape), sigma);
    let estimates = model.estimates(batch.noisy.clone(), sigma);
    objective.loss(model, model.constraint.as_deref(), &batch, estimates, model.sigma_data)
}

/// The value of a term that the loss has.
pub fn number(loss: &Loss, term: &str) -> f64 {
    to_vec_f64(loss.term(term).unwrap_or_else(|| panic!("no term `{term}`")).clone())[0]
}

/// Darcy flow with a learned source, corrected by Newton steps.
pub fn darcy(settings: &[&str]) -> Config {
    let common = [
        "data.count=16",
        "data.valid=1",
        "denoiser.backbone={kind='mlp', hidden=16}",
        "constraint.parameters.flow={learn=15.0}",
        "constraint.norm=l2",
        "denoiser.scd={directions=['newton'], solve_for='p', input='features'}",
    ];
    configured("darcy-demo", &[&common[..], settings].concat())
}

/// An untrained denoiser of Darcy flow, which knows nothing of a constraint.
pub fn plain_darcy() -> Snapshot {
    let mut plain = darcy(&["constraint.parameters.flow=15.0"]);
    plain.denoiser.scd = None;
    new_training(&plain).unwrap().snapshot()
}

/// A model, and its loss on some data.
pub struct Probe {
    config: Config,
    data: Dataset,
    blueprint: Blueprint,
    pub model: Model,
}

impl Probe {
    /// A model with γ awake.
    pub fn new(config: Config) -> Self {
        let data = dataset(&config);
        let blueprint = Blueprint::new(&config, &data).unwrap();
        let mut model = blueprint.build(&cpu().autodiff()).unwrap();
        if let Some(soft) = model.softly_mut() {
            soft.measure(&data, &blueprint.data.units).unwrap();
        }
        let mut probe = Self { config, data, blueprint, model };
        probe.set("gamma.last.bias", 0.3);
        probe
    }

    /// Gives every number of the parameter `which`, if there is one, the same value.
    pub fn set(&mut self, which: &str, value: f32) {
        self.model.visit("", &mut |name, parameter| {
            if name == which {
                parameter.set(vec![value; parameter.values().len()]);
            }
        });
    }

    pub fn loss(&self) -> Loss {
        let len: usize = self.model.shape.iter().product();
        let clean = self.data.batch(Split::Train, &[0, 1, 2], &self.blueprint.data.units).unwrap();
        let clean: Vec<f64> = clean.into_iter().map(f64::from).collect();
        loss_of(&self.model, &self.config.objective, &clean, &normals(5, 0, 3 * len), &[0.05, 0.3, 1.0])
    }

    /// The loss' gradient by every base weight, zero if it does not depend on it.
    pub fn base_gradient(&mut self) -> Vec<f64> {
        let mut gradients = self.loss().total().backward();
        let mut all = Vec::new();
        self.model.visit_base(&mut |_, parameter| {
            let zeros = vec![0.0; parameter.values().len()];
            all.extend(parameter.take_gradient(&mut gradients).unwrap_or(zeros).into_iter().map(f64::from));
        });
        all
    }
}
