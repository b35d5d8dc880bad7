//! From a configuration to a denoiser.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use softly_pde::grid::Grid;

use crate::config::{BackboneConfig, Config, SigmaData};
use crate::constraint::SoftConstraint;
use crate::dataset::Dataset;
use crate::ddpm::{Ddpm, Label};
use crate::denoiser::{Backbone, Denoiser, Edm};
use crate::direction::{Direction, DirectionKind};
use crate::error::{Error, Result};
use crate::gradient_direction::{GradientDirection, automatic_lambda};
use crate::kalman_direction::KalmanDirection;
use crate::mlp::{LevelMlp, Mlp};
use crate::newton_direction::{NewtonConfig, NewtonDirection};
use crate::noise::NoiseDist;
use crate::random::{Purpose, Stream};
use crate::scd::{Gamma, Lambda, ScdConfig, SoftlyConstrained};
use crate::spectral_direction::{SpectralDirection, basis_of_data};
use crate::unet::UNet;
use crate::units::Units;

/// What a model needs to know of its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// Names of the channels.
    pub fields: Vec<String>,
    /// The grid they live on.
    pub grid: Grid,
    /// Physical units of the channels.
    pub units: Units,
    /// For each field that is positive in all training data a value that it is hardly ever below.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub floors: BTreeMap<String, f64>,
}

impl DataSpec {
    /// Shape of a sample, `[C, H, W]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.fields.len(), self.grid.rows, self.grid.cols]
    }
}

/// A configuration in which nothing is left to be found out, with its data's description: enough to build the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// The configuration; no `auto` is left in it.
    pub config: Config,
    /// The data's description.
    pub data: DataSpec,
}

/// A denoiser with what belongs to it.
pub struct Model {
    /// The denoiser.
    pub denoiser: Box<dyn Denoiser>,
    /// The constraint that the method was given, if any.
    pub constraint: Option<Arc<SoftConstraint>>,
    /// Standard deviation of the normalised data.
    pub sigma_data: f64,
    /// Shape of a sample, `[C, H, W]`.
    pub shape: [usize; 3],
}

impl Model {
    /// Takes over every value of `other`, a model of the same blueprint, and what of it is frozen.
    pub(crate) fn copy_weights(&mut self, other: &mut Self) {
        let mut all = Vec::new();
        other.denoiser.visit("", &mut |_, parameter| all.push((parameter.values(), parameter.trainable())));
        let mut all = all.into_iter();
        self.denoiser.visit("", &mut |_, parameter| {
            let (values, trainable) = all.next().expect("models of one blueprint have the same parameters");
            parameter.set(values);
            if !trainable {
                parameter.freeze();
            }
        });
    }
}

impl Blueprint {
    /// Finds out every `auto` of `config` from the data.
    pub fn new(config: &Config, dataset: &Dataset) -> Result<Self> {
        let (units, sigma_data) = dataset.units(config);
        let mut config = config.clone();
        config.data.sigma_data = SigmaData::Number(sigma_data);
        if let NoiseDist::TruncLogNormal { min, .. } = &mut config.objective.noise {
            // Samplers end at sigma_min, so that is the lowest noise worth training on.
            min.get_or_insert(config.sampler.sigma_min);
        }
        let data =
            DataSpec { fields: dataset.fields.clone(), grid: dataset.grid.clone(), units, floors: dataset.floors() };
        let mut blueprint = Self { config, data };
        if let Some(constraint) = blueprint.constraint()?
            && let Some(scd) = &mut blueprint.config.denoiser.scd
            && let Lambda::Auto(_) = scd.lambda
        {
            scd.lambda = Lambda::Number(automatic_lambda(&constraint, scd.scale, blueprint.data.shape(), sigma_data));
        }
        Ok(blueprint)
    }

    /// A model with the network, the units and sigma_data of `base`, and all else as in `config`.
    pub fn adapted(base: &Self, config: &Config, dataset: &Dataset) -> Result<Self> {
        let mut config = config.clone();
        let (ours, theirs) = (&config.denoiser, &base.config.denoiser);
        if ours.backbone != theirs.backbone || ours.precondition != theirs.precondition {
            let problem = "the configuration asks for another network than the snapshot has";
            return Err(Error::input("denoiser.backbone", problem)
                .hint("leave out the network's settings: they come with the snapshot"));
        }
        if ours.scd.is_none() {
            return Err(Error::input("denoiser.scd", "adapting trains the soft constraint, and there is none")
                .hint("add a [denoiser.scd] table"));
        }
        config.data.sigma_data = SigmaData::Number(base.sigma_data());
        let mut blueprint = Self::new(&config, dataset)?;
        let (data, known) = (&blueprint.data, &base.data);
        // A network from elsewhere does not name its fields or say what their units were.
        let nameless = known.fields.iter().enumerate().all(|(i, name)| *name == format!("field{i}"));
        let same_fields = data.fields == known.fields || (nameless && data.fields.len() == known.fields.len());
        if !same_fields || [data.grid.rows, data.grid.cols] != [known.grid.rows, known.grid.cols] {
            let describe = |spec: &DataSpec| {
                format!("{} on {} × {} nodes", spec.fields.join(", "), spec.grid.rows, spec.grid.cols)
            };
            let problem = format!("the snapshot knows {}, the data are {}", describe(known), describe(data));
            return Err(Error::input("data", problem).hint("adapt with data like those that it was trained on"));
        }
        if !nameless {
            blueprint.data.units = known.units.clone();
        }
        Ok(blueprint)
    }

    /// The standard deviation of the normalised data.
    pub fn sigma_data(&self) -> f64 {
        match self.config.data.sigma_data {
            SigmaData::Number(sigma) => sigma,
            SigmaData::Auto(_) => unreachable!("a blueprint has no auto left"),
        }
    }

    /// The constraint that the method is given, compiled.
    pub fn constraint(&self) -> Result<Option<SoftConstraint>> {
        let DataSpec { fields, grid, units, .. } = &self.data;
        self.config.constraint.as_ref().map(|c| SoftConstraint::new(c, fields, grid, units)).transpose()
    }

    /// The constraint that metrics use: `[truth]`, or else the method's own.
    pub fn truth(&self) -> Result<Option<SoftConstraint>> {
        let DataSpec { fields, grid, units, .. } = &self.data;
        let config = self.config.truth.as_ref().or(self.config.constraint.as_ref());
        config.map(|c| SoftConstraint::new(c, fields, grid, units)).transpose()
    }

    /// Builds the model with initial weights. They are tracked for gradients when the device does so.
    pub fn build(&self, device: &Device) -> Result<Model> {
        let config = &self.config;
        let shape = self.data.shape();
        let sigma_data = self.sigma_data();
        let constraint = self.constraint()?.map(Arc::new);
        if let Some(constraint) = &constraint {
            constraint.move_to(device);
        }
        // The base and γ have streams of their own: SCD's base starts from vanilla's very weights.
        let mut stream = Stream::new(config.train.seed, Purpose::Weights, 0);
        let channels = shape.iter().product();
        let backbone: Box<dyn Backbone> = match &config.denoiser.backbone {
            BackboneConfig::Mlp { hidden } => Box::new(Mlp::new(channels, *hidden, &mut stream, device)),
            BackboneConfig::LevelMlp { hidden, levels } => {
                Box::new(LevelMlp::new(channels, *hidden, *levels, &mut stream, device))
            }
            BackboneConfig::Unet(unet) => Box::new(UNet::new(unet, shape, &mut stream, device)?),
        };
        let base: Box<dyn Denoiser> = if let Some(levels) = config.ddpm_levels() {
            // PIDM's own network has a row per level; any other gets EDM's smooth noise input.
            let indexed = matches!(config.denoiser.backbone, BackboneConfig::LevelMlp { .. });
            Box::new(Ddpm::new(backbone, levels, if indexed { Label::Index } else { Label::LogSigma }))
        } else {
            // Small networks do not gain, and in training, under autodiff, shares of a batch are cut before.
            let large = matches!(config.denoiser.backbone, BackboneConfig::Unet(_));
            Box::new(Edm::new(backbone, sigma_data).side_by_side(large && *device == Device::flex()))
        };
        let denoiser = match (&config.denoiser.scd, &constraint) {
            (Some(scd), Some(constraint)) => {
                // What is learned with γ is learned at γ's rate.
                constraint.visit("", &mut |_, parameter| parameter.set_rate(parameter.rate() * scd.rate));
                let mut stream = Stream::new(config.train.seed, Purpose::Weights, 1);
                let gamma = Gamma::new(scd, shape, &mut stream, device)?;
                let directions = self.directions(scd, constraint, device)?;
                // Detaching is for training: guidance and likelihood differentiate the denoiser as it is.
                let training = device.is_autodiff();
                let scd = ScdConfig {
                    detach: scd.detach && training,
                    detach_base: scd.detach_base && training,
                    ..scd.clone()
                };
                Box::new(SoftlyConstrained::new(base, constraint.clone(), directions, gamma, scd, sigma_data))
            }
            _ => base,
        };
        Ok(Model { denoiser, constraint, sigma_data, shape })
    }

    /// The directions that `scd` names, along `constraint`, which is [`Blueprint::constraint`]; not measured yet.
    pub fn directions(
        &self,
        scd: &ScdConfig,
        constraint: &Arc<SoftConstraint>,
        device: &Device,
    ) -> Result<Vec<Box<dyn Direction>>> {
        scd.directions.iter().map(|&kind| self.direction(kind, scd, constraint, device)).collect()
    }

    fn direction(
        &self,
        kind: DirectionKind,
        scd: &ScdConfig,
        constraint: &Arc<SoftConstraint>,
        device: &Device,
    ) -> Result<Box<dyn Direction>> {
        let DataSpec { fields, grid, units, floors } = &self.data;
        let formulas = self.config.constraint.as_ref().expect("there is a compiled constraint");
        match kind {
            DirectionKind::Gradient => {
                let lambda = match scd.lambda {
                    Lambda::Number(lambda) => lambda,
                    Lambda::Auto(_) => unreachable!("a blueprint has no auto left"),
                };
                let gradient = GradientDirection::new(constraint.clone(), scd.scale, scd.damping, lambda);
                Ok(Box::new(if device.is_autodiff() { gradient } else { gradient.differentiable() }))
            }
            DirectionKind::Spectral => {
                let basis = basis_of_data(formulas, fields, grid);
                // White until it is measured or read from a file.
                let spectrum = vec![1.0; basis.shape().iter().product()];
                Ok(Box::new(SpectralDirection::new(constraint.clone(), basis, spectrum, device)))
            }
            DirectionKind::Newton => {
                let name = scd.solve_for.as_deref().unwrap_or_default();
                let others = || formulas.fields.iter().filter(|field| *field != name);
                let floor = || others().filter_map(|f| Some((f.clone(), *floors.get(f)?))).collect();
                let newton = NewtonConfig {
                    floor: Some(scd.newton.floor.clone().unwrap_or_else(floor)),
                    stop_gradient: scd.newton.stop_gradient && device.is_autodiff(),
                    ..scd.newton.clone()
                };
                let direction = NewtonDirection::new(&newton, name, formulas, fields, grid, units)?;
                Ok(Box::new(direction.sharing_parameters_of(constraint)))
            }
            DirectionKind::Kalman => {
                let name = scd.solve_for.as_deref().unwrap_or_default();
                Ok(Box::new(KalmanDirection::new(
                    &scd.kalman,
                    constraint.clone(),
                    formulas,
                    name,
                    fields,
                    grid,
                    device,
                )?))
            }
        }
    }
}
