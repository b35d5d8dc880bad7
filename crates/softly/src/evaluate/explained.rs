//! What a constraint can explain: the share of a denoiser's error energy along its directions, by noise level.
//!
//! With e = x0 − D₀(x; σ) on held-out data, the best multiple of a direction v (one number per noise level) takes away the share
//! ⟨e, v⟩²/(⟨v, v⟩⟨e, e⟩) of ⟨e, e⟩, sums over all samples and nodes. Nothing is trained for it: it tells whether an equation is
//! worth a training.

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use softly_pde::normal_equations::NormalEquations;

use crate::config::Config;
use crate::data::dataset::Dataset;
use crate::denoiser::edm::Precondition;
use crate::denoiser::{Denoiser, Estimates};
use crate::direction::config::ScdConfig;
use crate::direction::{Direction, DirectionKind};
use crate::error::{Error, Result};
use crate::evaluate::denoising_loss::DenoisingLoss;
use crate::evaluate::held_out::{HeldOut, Levels};
use crate::job::Job;
use crate::model::Model;
use crate::model::blueprint::Blueprint;
use crate::tensors::to_vec_f64;

/// How it is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// The noise levels.
    pub sigmas: Vec<f64>,
    /// Fields that go through the network at a time.
    pub batch: usize,
}

/// The directions that are judged.
pub struct Directions {
    /// Name and direction, those that the model has weights for first.
    pub all: Vec<(DirectionKind, Box<dyn Direction>)>,
    /// How many the model has weights for.
    pub learned: usize,
}

/// What is explained at one noise level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExplainedLevel {
    /// The noise level.
    pub sigma: f64,
    /// Root mean square of the base denoiser's error.
    pub error: f64,
    /// The share of its energy that each direction explains alone.
    pub alone: Vec<f64>,
    /// The multiple of each direction that does so.
    pub best: Vec<f64>,
    /// The share that all directions explain together.
    pub span: f64,
    /// The share that the model's own correction takes away; negative if it does harm. None without a correction.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub learned: Option<f64>,
    /// Mean γ of each direction that the model has weights for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub gamma: Vec<f64>,
}

/// What is explained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExplainedReport {
    /// The directions.
    pub directions: Vec<DirectionKind>,
    /// Each noise level, lowest first.
    pub levels: Vec<ExplainedLevel>,
    /// Held-out samples.
    pub count: usize,
    /// What one direction explains by chance: 1 over all numbers of all samples.
    pub chance: f64,
}

impl Directions {
    /// The directions of `scd`, then all others that can be built along the constraint of `model`, all measured on the base of
    /// `model` and on the training data. A direction that needs fields to solve for can be built if they are named or clear.
    pub fn of(
        blueprint: &Blueprint,
        scd: &ScdConfig,
        model: &Model,
        dataset: &Dataset,
        device: &Device,
    ) -> Result<Self> {
        let Some(constraint) = &model.constraint else {
            return Err(Error::input("constraint", "expected a constraint to judge, found none"));
        };
        let mut kinds = scd.directions.clone();
        let possible = |kind: DirectionKind| {
            let needs = kind.needs();
            let alone = || ScdConfig { directions: vec![kind], ..scd.clone() };
            let clear = || blueprint.directions(&alone(), constraint, device).is_ok();
            !(needs.grid && blueprint.data.grid.is_point()) && (!needs.solve_for || scd.solve_for.is_some() || clear())
        };
        for &kind in DirectionKind::ALL {
            if possible(kind) && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let all = ScdConfig { directions: kinds.clone(), ..scd.clone() };
        let mut directions = blueprint.directions(&all, constraint, device)?;
        for direction in &mut directions {
            direction.measure(model.base(), dataset, &blueprint.data.units)?;
        }
        let learned = if model.softly().is_some() { scd.directions.len() } else { 0 };
        Ok(Self { all: kinds.into_iter().zip(directions).collect(), learned })
    }
}

/// Sums over samples at one noise level.
struct Sums {
    products: NormalEquations,
    /// ⟨e, e⟩ of the base and of the corrected estimate.
    energy: [f64; 2],
    gamma: Vec<f64>,
}

impl Explained {
    /// About a dozen noise levels that suit a model of this configuration.
    pub fn for_model(config: &Config) -> Self {
        let DenoisingLoss { sigmas, batch } = DenoisingLoss::for_model(config, 12);
        let every = sigmas.len().div_ceil(12).max(1);
        Self { sigmas: sigmas.into_iter().step_by(every).collect(), batch }
    }

    /// What `directions` explain of the error of the base of `model` on `data`.
    ///
    /// `HeldOut::at_levels` draws the noise; progress is counted in samples × levels.
    pub fn evaluate(
        &self,
        model: &Model,
        directions: &Directions,
        data: HeldOut<'_>,
        seed: u64,
        job: &Job<'_>,
    ) -> Result<ExplainedReport> {
        let noise = model.noise();
        let levels = Levels { sigmas: &self.sigmas, batch: self.batch, seed, samples: 0..data.count() };
        let chunks = data.at_levels(&levels, &noise, job, |clean, noisy, sigma| {
            level_sums(model, directions, clean, noisy, sigma)
        })?;
        let numbers = data.count() * data.size();
        let level = |(k, &sigma): (usize, &f64)| {
            let mut products = NormalEquations::new(directions.all.len());
            let (mut energy, mut gamma) = ([0.0; 2], vec![0.0; directions.learned]);
            for sums in chunks.iter().map(|levels| &levels[k]) {
                products.add(&sums.products);
                energy.iter_mut().zip(sums.energy).for_each(|(sum, term)| *sum += term);
                gamma.iter_mut().zip(&sums.gamma).for_each(|(sum, term)| *sum += term / data.count() as f64);
            }
            let [base, corrected] = energy;
            if !(base.is_finite() && corrected.is_finite()) {
                let why = format!("the denoiser's error at σ = {sigma} is not finite");
                return Err(Error::Failed { what: "measuring what is explained".into(), why });
            }
            let alone = |i: usize| products.only(i);
            let each = 0..directions.all.len();
            // A denoiser without error leaves nothing to explain.
            let share = |explained: f64| if base > 0.0 { explained / base } else { 0.0 };
            Ok(ExplainedLevel {
                sigma,
                error: (base / numbers as f64).sqrt(),
                alone: each.clone().map(|i| share(alone(i).explained())).collect(),
                best: each.map(|i| alone(i).solve()[0].unwrap_or(0.0)).collect(),
                span: share(products.explained()),
                learned: (directions.learned > 0).then(|| share(base - corrected)),
                gamma,
            })
        };
        Ok(ExplainedReport {
            directions: directions.all.iter().map(|(kind, _)| *kind).collect(),
            levels: self.sigmas.iter().enumerate().map(level).collect::<Result<_>>()?,
            count: data.count(),
            chance: 1.0 / numbers as f64,
        })
    }
}

/// Sums over the samples `clean` at noise level `sigma`, where they are `noisy`; both `[N, C, H, W]`.
fn level_sums(model: &Model, directions: &Directions, clean: &[f64], noisy: Tensor<4>, sigma: f64) -> Sums {
    let n = noisy.dims()[0];
    let sigmas = vec![sigma; n];
    let Estimates { estimate, base, .. } = model.estimates(noisy.clone(), &sigmas);
    let base = base.unwrap_or_else(|| estimate.clone());
    let coefficients = vec![Precondition::new(sigma, model.sigma_data); n];
    let column = |direction: &dyn Direction| to_vec_f64(direction.correction(&base, &sigmas, &coefficients));
    let columns: Vec<Vec<f64>> = directions.all.iter().map(|(_, direction)| column(&**direction)).collect();
    let error = |estimate| clean.iter().zip(to_vec_f64(estimate)).map(|(x, d)| x - d).collect::<Vec<f64>>();
    let (base, corrected) = (error(base), error(estimate));
    let energy = |error: &[f64]| error.iter().map(|e| e * e).sum();
    let mut products = NormalEquations::new(columns.len());
    products.add_products(&columns.iter().map(Vec::as_slice).collect::<Vec<_>>(), &base, 1.0);
    let mut gamma = vec![0.0; directions.learned];
    if directions.learned > 0
        && let Some(soft) = model.softly()
    {
        let weights = soft.gamma(noisy, &sigmas);
        let outputs = weights.dims()[1] / directions.learned;
        for (i, value) in to_vec_f64(weights).into_iter().enumerate() {
            gamma[i / outputs % directions.learned] += value / outputs as f64;
        }
    }
    Sums { products, energy: [energy(&base), energy(&corrected)], gamma }
}
