//! Models: from a configuration to a denoiser, and from a trained denoiser to files and back.

pub mod blueprint;
pub mod edm2_file;
pub mod event_file;
mod held_out_nodes;
mod knowledge;
pub mod posterior;
mod rule;
pub mod run_folder;
pub mod snapshot;
pub mod tensor_file;
pub mod trained;

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::Tensor;

use crate::constraint::SoftConstraint;
use crate::denoiser::{Denoiser, Estimates};
use crate::nn::parameter::{Parameters, Visitor};
use crate::noise::Noise;
use crate::sampler::{Projection, Target};
use crate::soft::SoftlyConstrained;

/// A base denoiser, with or without a soft constraint on top, and what belongs to it.
pub struct Model {
    body: Body,
    /// The constraint that the method was given, if any.
    pub constraint: Option<Arc<SoftConstraint>>,
    /// Standard deviation of the normalised data.
    pub sigma_data: f64,
    /// Shape of a sample, `[C, H, W]`.
    pub shape: [usize; 3],
}

enum Body {
    Plain(Box<dyn Denoiser>),
    Soft(Box<SoftlyConstrained>),
}

impl Model {
    /// A denoiser by itself; `constraint` serves guidance and regularisers.
    pub fn plain(
        denoiser: Box<dyn Denoiser>,
        constraint: Option<Arc<SoftConstraint>>,
        sigma_data: f64,
        shape: [usize; 3],
    ) -> Self {
        Self { body: Body::Plain(denoiser), constraint, sigma_data, shape }
    }

    /// A denoiser with `constraint` softly on top of it.
    pub fn soft(
        denoiser: SoftlyConstrained,
        constraint: Arc<SoftConstraint>,
        sigma_data: f64,
        shape: [usize; 3],
    ) -> Self {
        Self { body: Body::Soft(Box::new(denoiser)), constraint: Some(constraint), sigma_data, shape }
    }

    /// The soft constraint's part, if there is one.
    pub fn softly(&self) -> Option<&SoftlyConstrained> {
        match &self.body {
            Body::Plain(_) => None,
            Body::Soft(soft) => Some(soft),
        }
    }

    /// The soft constraint's part, to measure and to change.
    pub fn softly_mut(&mut self) -> Option<&mut SoftlyConstrained> {
        match &mut self.body {
            Body::Plain(_) => None,
            Body::Soft(soft) => Some(soft),
        }
    }

    /// D₀: the denoiser below a soft constraint, or the denoiser itself.
    pub fn base(&self) -> &dyn Denoiser {
        match &self.body {
            Body::Plain(denoiser) => &**denoiser,
            Body::Soft(soft) => soft.base(),
        }
    }

    /// Visits the parameters of D₀. Names have no prefix.
    pub fn visit_base(&mut self, visit: &mut Visitor<'_>) {
        match &mut self.body {
            Body::Plain(denoiser) => denoiser.visit("", visit),
            Body::Soft(soft) => soft.base_mut().visit("", visit),
        }
    }

    /// Learned parameters of the constraint by name: a number, or one per node.
    pub fn learned(&self) -> BTreeMap<String, Vec<f64>> {
        let mut all = BTreeMap::new();
        if let Some(constraint) = &self.constraint {
            constraint.visit("", &mut |name, parameter| {
                if let Some(value) = constraint.learned_value(name, &parameter.values()) {
                    all.insert(name.to_string(), value.numbers().to_vec());
                }
            });
        }
        all
    }

    /// All estimates that training compares with the clean fields behind `x` `[N, C, H, W]`; one σ per sample.
    pub fn estimates(&self, x: Tensor<4>, sigma: &[f64]) -> Estimates {
        match &self.body {
            Body::Plain(denoiser) => Estimates::plain(denoiser.denoise(x, sigma)),
            Body::Soft(soft) => soft.estimates(x, sigma),
        }
    }

    /// The model as a sampler sees it.
    pub fn target(&self) -> Target<'_> {
        Target {
            denoiser: self,
            constraint: self.constraint.as_deref(),
            projection: self.softly().map(|soft| soft as &dyn Projection),
            given: None,
            shape: self.shape,
        }
    }

    /// Takes over every value of `other`, a model of the same blueprint, and what of it is frozen.
    pub(crate) fn copy_weights(&mut self, other: &mut Self) {
        let mut all = Vec::new();
        other.visit("", &mut |_, parameter| all.push((parameter.values(), parameter.trainable())));
        let mut all = all.into_iter();
        self.visit("", &mut |_, parameter| {
            let (values, trainable) = all.next().expect("models of one blueprint have the same parameters");
            parameter.set(values);
            if !trainable {
                parameter.freeze();
            }
        });
    }
}

impl Parameters for Model {
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
        match &mut self.body {
            Body::Plain(denoiser) => denoiser.visit(prefix, visit),
            Body::Soft(soft) => soft.visit(prefix, visit),
        }
    }
}

impl Denoiser for Model {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        match &self.body {
            Body::Plain(denoiser) => denoiser.denoise(x, sigma),
            Body::Soft(soft) => soft.denoise(x, sigma),
        }
    }

    fn log_variance(&self, sigma: &[f64]) -> Option<Tensor<1>> {
        self.base().log_variance(sigma)
    }

    fn noise(&self) -> Noise {
        self.base().noise()
    }
}
