//! A configuration with its data's description: enough to build the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use softly_pde::grid::{Axis, AxisId, Grid, Placement};

use crate::auto::NumberOrAuto;
use crate::config::Config;
use crate::constraint::SoftConstraint;
use crate::data::dataset::Dataset;
use crate::denoiser::Denoiser;
use crate::denoiser::ddpm::{Ddpm, Label};
use crate::denoiser::edm::Edm;
use crate::denoiser::external::{Estimator, External};
use crate::direction::config::ScdConfig;
use crate::direction::gradient::automatic_lambda;
use crate::direction::{Direction, Site};
use crate::error::{Error, Result};
use crate::memory;
use crate::model::Model;
use crate::nn::backbone::FieldShape;
use crate::noise::Noise;
use crate::objective::noise::NoiseDist;
use crate::random::{Purpose, Stream};
use crate::soft::SoftlyConstrained;
use crate::soft::gamma::Gamma;
use crate::statistics::is_constant;
use crate::units::Units;

/// What a model needs to know of its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// Names of the channels.
    pub fields: Vec<String>,
    /// Names of the channels that are scalars of samples: constant over the grid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scalars: Vec<String>,
    /// Fingerprint of the data; empty if it is not known.
    #[serde(default)]
    pub hash: String,
    /// The grid they live on.
    pub grid: Grid,
    /// Physical units of the channels.
    pub units: Units,
    /// For each field that is positive in all training data a value that it is hardly ever below.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub floors: BTreeMap<String, f64>,
}

impl DataSpec {
    /// The description as snapshots have it.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a description is valid JSON")
    }

    /// Shape of a sample, `[C, H, W]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.fields.len(), self.grid.rows(), self.grid.cols()]
    }

    /// The fields as networks know them: their shape, and which axes are periodic.
    fn field_shape(&self) -> FieldShape {
        let of_axes =
            |is: fn(&Axis) -> bool| AxisId::BOTH.map(|axis| self.grid.axes.get(axis as usize).is_some_and(is));
        FieldShape {
            size: self.shape(),
            periodic: of_axes(|axis| axis.periodic),
            cells: of_axes(|axis| axis.placement == Placement::Cells),
        }
    }
}

/// The value, its gradient, two moments and an average, each a single-precision number, and a copy on its way.
const BYTES_PER_WEIGHT: f64 = 24.0;

/// A configuration in which nothing is left to be found out, with its data's description: enough to build the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// The configuration; no `auto` is left in it.
    pub config: Config,
    /// The data's description.
    pub data: DataSpec,
}

impl Blueprint {
    /// Finds out every `auto` of `config` from the data.
    pub fn new(config: &Config, dataset: &Dataset) -> Result<Self> {
        let (units, sigma_data) = dataset.units(&config.data)?;
        let mut config = config.clone();
        config.data.sigma_data = NumberOrAuto::Number(sigma_data);
        // Nothing below the noise of the data can be learned from them.
        let least = config.data.noise * sigma_data;
        config.sampler.sigma_min = config.sampler.sigma_min.max(least);
        if let NoiseDist::TruncLogNormal { min, .. } = &mut config.objective.noise {
            // Samplers end at sigma_min, so that is the lowest noise worth training on.
            *min = Some(min.unwrap_or(config.sampler.sigma_min).max(least));
        }
        check_units(&dataset.fields, &units, sigma_data)?;
        let data = DataSpec {
            fields: dataset.fields.clone(),
            scalars: dataset.scalars.clone(),
            hash: dataset.hash(),
            grid: dataset.grid.clone(),
            units,
            floors: dataset.floors()?,
        };
        let activations = config.denoiser.backbone.get().footprint(data.shape()).activations;
        config.train.shares = config.train.shares.or_else(|| Some(config.train.automatic_shares(activations)));
        config.truth = config.truth.or_else(|| dataset.equation.clone());
        for equation in [&mut config.constraint, &mut config.truth].into_iter().flatten() {
            *equation = dataset.complete(equation);
        }
        // The dataset's own equation has not been seen by anyone before.
        config.check()?;
        let mut blueprint = Self { config, data };
        blueprint.truth()?;
        let automatic = blueprint.config.denoiser.scd.as_ref().is_some_and(|scd| scd.lambda == NumberOrAuto::AUTO);
        if automatic
            && let Some(constraint) = blueprint.constraint()?
            && let Some(scd) = &mut blueprint.config.denoiser.scd
        {
            let lambda = automatic_lambda(&constraint, scd.scale, blueprint.data.shape(), sigma_data);
            scd.lambda = NumberOrAuto::Number(lambda);
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
        if config.noise != base.config.noise {
            let problem = "the configuration asks for other noise than the snapshot was trained to remove";
            return Err(Error::input("noise", problem).hint("leave [noise] out: it comes with the snapshot"));
        }
        if ours.scd.is_none() {
            return Err(Error::input("denoiser.scd", "adapting trains the soft constraint, and there is none")
                .hint("add a [denoiser.scd] table"));
        }
        config.data.sigma_data = NumberOrAuto::Number(base.sigma_data());
        if config.data.noise == 0.0 {
            config.data.noise = base.config.data.noise;
        }
        let mut blueprint = Self::new(&config, dataset)?;
        let (data, known) = (&blueprint.data, &base.data);
        // A network from elsewhere does not name its fields or say what their units were.
        let nameless = known.fields.iter().enumerate().all(|(i, name)| *name == format!("field{i}"));
        let same_fields = data.fields == known.fields || (nameless && data.fields.len() == known.fields.len());
        let [ours, theirs] = [data, known].map(DataSpec::field_shape);
        if !same_fields || ours.size != theirs.size || (!nameless && ours.periodic != theirs.periodic) {
            let describe = |spec: &DataSpec| {
                let periodic = spec.grid.axes.iter().filter(|axis| axis.periodic).map(|axis| axis.name.as_str());
                let periodic = periodic.collect::<Vec<_>>().join(" and ");
                let periodic = if periodic.is_empty() { periodic } else { format!(", periodic along {periodic}") };
                format!("{} on {} × {} nodes{periodic}", spec.fields.join(", "), spec.grid.rows(), spec.grid.cols())
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
        self.config.data.sigma_data.number().expect("a blueprint has no auto left")
    }

    /// The standard deviation of the noise in the training data, in normalised units.
    pub fn data_noise(&self) -> f64 {
        self.config.data.noise * self.sigma_data()
    }

    /// The constraint that the method is given, compiled.
    pub fn constraint(&self) -> Result<Option<SoftConstraint>> {
        let DataSpec { fields, grid, units, .. } = &self.data;
        self.config.constraint.as_ref().map(|c| SoftConstraint::new(c, fields, grid, units)).transpose()
    }

    /// The constraint that metrics use: `[truth]`, which is the dataset's own equation unless it is given, or else the method's
    /// constraint.
    pub fn truth(&self) -> Result<Option<SoftConstraint>> {
        let DataSpec { fields, grid, units, .. } = &self.data;
        let config = self.config.truth.as_ref().or(self.config.constraint.as_ref());
        config.map(|c| SoftConstraint::new(c, fields, grid, units)).transpose()
    }

    /// Builds the model with initial weights. They are tracked for gradients when the device does so.
    pub fn build(&self, device: &Device) -> Result<Model> {
        self.build_on(None, device)
    }

    /// The same with D₀ outside of softly, if there is one.
    pub fn build_on(&self, outside: Option<&Arc<dyn Estimator>>, device: &Device) -> Result<Model> {
        let (shape, sigma_data) = (self.data.shape(), self.sigma_data());
        let constraint = self.constraint()?.map(Arc::new);
        let base = match outside {
            Some(estimator) => Box::new(External(estimator.clone())),
            None => self.base(device)?,
        };
        match (&self.config.denoiser.scd, constraint) {
            (Some(scd), Some(constraint)) => {
                let soft = self.softly_constrained(base, scd, &constraint, device)?;
                Ok(Model::soft(soft, constraint, sigma_data, shape))
            }
            (_, constraint) => Ok(Model::plain(base, constraint, sigma_data, shape)),
        }
    }

    /// D₀, the denoiser below a soft constraint. Its weights have a stream of their own: SCD's base starts from vanilla's
    /// very weights.
    fn base(&self, device: &Device) -> Result<Box<dyn Denoiser>> {
        let config = &self.config;
        let mut stream = Stream::new(config.train.seed, Purpose::Weights, 0);
        let settings = config.denoiser.backbone.get();
        memory::check("denoiser.backbone", BYTES_PER_WEIGHT * settings.footprint(self.data.shape()).weights)?;
        let backbone = settings.build(self.data.field_shape(), &mut stream, device)?;
        let noise = Noise::new(&config.noise, &self.data.grid)?;
        if let Some(levels) = config.ddpm_levels() {
            // A network of single levels has a row for each; any other gets EDM's smooth noise input.
            let label = if settings.levels().is_some() { Label::Index } else { Label::LogSigma };
            return Ok(Box::new(Ddpm::new(backbone, levels, label).with_noise(noise)));
        }
        let lanes = settings.is_large() && *device == Device::flex();
        Ok(Box::new(Edm::new(backbone, self.sigma_data()).with_noise(noise).side_by_side(lanes)))
    }

    /// `base` with a soft constraint on top.
    fn softly_constrained(
        &self,
        base: Box<dyn Denoiser>,
        scd: &ScdConfig,
        constraint: &Arc<SoftConstraint>,
        device: &Device,
    ) -> Result<SoftlyConstrained> {
        let directions = self.directions(scd, constraint, device)?;
        let mut stream = Stream::new(self.config.train.seed, Purpose::Weights, 1);
        let gamma = Gamma::new(scd, &directions, constraint.equations(), self.data.shape(), &mut stream, device)?;
        // Detaching is for training: guidance and likelihood differentiate the denoiser as it is.
        let training = device.is_autodiff();
        let scd = ScdConfig { detach: scd.detach && training, detach_base: scd.detach_base && training, ..scd.clone() };
        let lanes = self.config.denoiser.backbone.get().is_large() && *device == Device::flex();
        let soft = SoftlyConstrained::new(base, constraint.clone(), directions, gamma, scd, self.sigma_data());
        Ok(soft.side_by_side(lanes))
    }

    /// The directions that `scd` names, along `constraint`, which is [`Blueprint::constraint`]; not measured yet.
    pub fn directions(
        &self,
        scd: &ScdConfig,
        constraint: &Arc<SoftConstraint>,
        device: &Device,
    ) -> Result<Vec<Box<dyn Direction>>> {
        let DataSpec { fields, grid, units, floors, .. } = &self.data;
        let formulas = self.config.constraint.as_ref().expect("there is a compiled constraint");
        let site = Site { constraint, formulas, fields, grid, units, floors, settings: scd, device };
        scd.directions.iter().map(|kind| kind.build(site)).collect()
    }
}

/// Refuses fields that do not vary: no scale makes them the size of others.
fn check_units(fields: &[String], units: &Units, sigma_data: f64) -> Result<()> {
    let constant = |c: &usize| is_constant(units.mean[*c], units.scale[*c] * sigma_data);
    if !units.is_identity()
        && let Some(c) = (0..fields.len()).find(constant)
    {
        let problem = format!("expected values that vary, found {} in all training samples", units.mean[c]);
        return Err(Error::input(format!("train data, field `{}`", fields[c]), problem).hint(
            "leave the field out of the dataset, and write the number in the equation; single precision does not tell \
             apart what differs by less than 1e-7 of its size or by less than 1e-38",
        ));
    }
    if sigma_data.is_nan() || sigma_data <= 0.0 {
        return Err(Error::input("train data", "expected values that vary, found the same number everywhere"));
    }
    Ok(())
}
