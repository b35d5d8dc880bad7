//! Measurements ready to be compared with fields: y = H(x) + noise.
//!
//! H first turns fields into *quantities*, each a formula on the grid (a field by itself is the simplest formula), then takes
//! weighted sums over nodes. The formulas are those of constraints: products with H' and its transpose come with them.

use burn::tensor::{Device, Tensor};
use softly_pde::grid::Grid;
use softly_pde::region::Region;

use crate::constraint::SoftConstraint;
use crate::constraint::config::{ConstraintConfig, ParameterConfig, ResidualConfig, Residuals};
use crate::constraint::linearised::{LinearisedSystem, stacked};
use crate::constraint::norm::Norm;
use crate::error::{Error, Result, nearest};
use crate::observe::noise::{Level, Noise};
use crate::observe::place::nodes;
use crate::observe::reading::Reading;
use crate::random::{Purpose, Stream};
use crate::tensors::{self, field_batch, to_vec_f64};
use crate::units::Units;

/// The data that measurements are of.
#[derive(Clone, Copy)]
pub struct Measured<'a> {
    /// Names of the channels.
    pub fields: &'a [String],
    /// Their grid.
    pub grid: &'a Grid,
    /// Their units.
    pub units: &'a Units,
    /// Standard deviation of the normalised data.
    pub sigma_data: f64,
    /// The run's constraint, whose stencils and parameters formulas use.
    pub constraint: Option<&'a ConstraintConfig>,
}

/// One measurement: a weighted sum over nodes of a quantity.
#[derive(Debug, Clone)]
struct Sensor {
    quantity: usize,
    nodes: Vec<(usize, f64)>,
    value: f64,
    sd: f64,
}

/// Measurements y of fields with the standard deviations of their noise.
pub struct Observations {
    /// One formula per quantity.
    quantities: SoftConstraint,
    names: Vec<String>,
    /// The channel of quantities that are fields.
    channels: Vec<Option<usize>>,
    sensors: Vec<Sensor>,
    /// The size of a quantity: 1 in normalised units of its fields, by quantity.
    scales: Vec<f64>,
    linear: bool,
}

/// How far apart two readings of one place may be, in standard deviations of their difference.
const CONTRADICTION: f64 = 6.0;

/// The least noise, in normalised units: a network's numbers have seven digits.
const LEAST_NOISE: f64 = 1e-6;

/// How far the readings of a field may be from the training data's mean, in standard deviations of the data, on average.
const FOREIGN: f64 = 10.0;

impl Observations {
    /// Compiles `readings` of `measured` fields; `noise` serves those without a standard deviation of their own.
    pub fn new(readings: &[Reading], noise: &Noise, measured: Measured<'_>) -> Result<Self> {
        if readings.is_empty() {
            return Err(Error::input("--observe", "expected at least one measurement, found none"));
        }
        let mut names: Vec<String> = Vec::new();
        for reading in readings.iter().filter(|r| !r.quantity.is_empty()) {
            if !names.contains(&reading.quantity) {
                measured.compile(std::slice::from_ref(&reading.quantity)).map_err(|e| at(&reading.source, e))?;
                names.push(reading.quantity.clone());
            }
        }
        let sensor = |reading: &Reading| {
            let quantity = names.iter().position(|name| *name == reading.quantity).ok_or_else(|| {
                Error::input(&reading.source, "expected the name of a field or a formula, found nothing")
            })?;
            let place = nodes(&reading.place, measured.grid).map_err(|problem| {
                Error::input(&reading.source, problem).hint("coordinates are in the units of the dataset's axes")
            })?;
            Ok(Sensor { quantity, nodes: place, value: reading.value, sd: measured.sd(reading, noise)? })
        };
        let sensors = readings.iter().map(sensor).collect::<Result<Vec<_>>>()?;
        refuse_crowds(&names, &sensors, readings, measured.grid)?;
        refuse_contradictions(&sensors, readings)?;
        measured.refuse_foreign(&names, &sensors, readings)?;
        if let Some(name) = noise.unknown(&names) {
            let problem = format!("nothing of `{name}` is measured; measured are {}", names.join(", "));
            return Err(Error::input("--noise", problem));
        }
        let quantities = measured.compile(&names)?;
        let channels: Vec<Option<usize>> =
            names.iter().map(|name| measured.fields.iter().position(|field| field == name)).collect();
        let (scales, linear) = measured.probed(&quantities, &channels);
        refuse_exactness(&scales, &sensors, readings)?;
        Ok(Self { quantities, names, channels, sensors, scales, linear })
    }

    /// Number of measurements M.
    pub fn len(&self) -> usize {
        self.sensors.len()
    }

    /// True without measurements; there is no such thing.
    pub fn is_empty(&self) -> bool {
        self.sensors.is_empty()
    }

    /// Names of the measured quantities.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether H is linear.
    pub fn is_linear(&self) -> bool {
        self.linear
    }

    /// y `[M]`, in physical units.
    pub fn values(&self) -> Vec<f64> {
        self.sensors.iter().map(|s| s.value).collect()
    }

    /// The standard deviations of the noise `[M]`.
    pub fn sds(&self) -> Vec<f64> {
        self.sensors.iter().map(|s| s.sd).collect()
    }

    /// The size `[M]` of each measurement's quantity: what a change by 1 in normalised units does to it.
    pub fn scales(&self) -> Vec<f64> {
        self.sensors.iter().map(|s| self.scales[s.quantity]).collect()
    }

    /// The quantity of each measurement, as a place in [`Self::names`], and its nodes with their weights.
    pub fn places(&self) -> impl Iterator<Item = (usize, &[(usize, f64)])> {
        self.sensors.iter().map(|s| (s.quantity, &s.nodes[..]))
    }

    /// The same sensors with other readings `[M]`.
    #[must_use]
    pub fn with_values(mut self, values: &[f64]) -> Self {
        self.sensors.iter_mut().zip(values).for_each(|(sensor, &value)| sensor.value = value);
        self
    }

    /// H(x) of normalised fields `x` `[N, C, H, W]`: `[N, M]`, in physical units.
    pub fn predicted(&self, x: &Tensor<4>) -> Tensor<2> {
        let quantities = self.quantities.residuals(x);
        self.summed(stacked(quantities.into_iter()))
    }

    /// y − H(x), `[N, M]`, in physical units.
    pub fn lack(&self, x: &Tensor<4>) -> Tensor<2> {
        let predicted = self.predicted(x);
        constant(self.values(), &predicted) - predicted
    }

    /// H(x) − y in units of the noise, `[N, M]`.
    pub fn misfit(&self, x: &Tensor<4>) -> Tensor<2> {
        let predicted = self.predicted(x);
        let row = |values: Vec<f64>| constant(values, &predicted);
        (predicted.clone() - row(self.values())) / row(self.sds())
    }

    /// H(x) − y in normalised units, `[N, M]`.
    pub fn normalised_misfit(&self, x: &Tensor<4>) -> Tensor<2> {
        let predicted = self.predicted(x);
        let row = |values: Vec<f64>| constant(values, &predicted);
        (predicted.clone() - row(self.values())) / row(self.scales())
    }

    /// H at `x` `[N, C, H, W]`, linearised.
    pub fn linearised<'a>(&'a self, x: &Tensor<4>) -> LinearisedObservations<'a> {
        let system = self.quantities.linearised_system(0..self.names.len(), x, |_| {});
        LinearisedObservations { observations: self, system }
    }

    /// What is left out of a description of the fields adds to the noise: the largest standard deviation `[M]` that errors of variance
    /// `rest` `[C, H, W]` (normalised) can give each measurement. Formulas are taken at their size.
    pub fn left_out(&self, rest: &[f64]) -> Vec<f64> {
        let nodes = self.quantities.grid().len();
        let of = |sensor: &Sensor| {
            let sd = |node: usize| match self.channels[sensor.quantity] {
                Some(channel) => rest[channel * nodes + node].sqrt(),
                None => rest.iter().skip(node).step_by(nodes).sum::<f64>().sqrt(),
            };
            sensor.nodes.iter().map(|(node, weight)| weight.abs() * sd(*node)).sum::<f64>()
                * self.scales[sensor.quantity]
        };
        self.sensors.iter().map(of).collect()
    }

    /// Weighted sums over nodes of quantities `[N, Q, H, W]`: `[N, M]`.
    fn summed(&self, quantities: Tensor<4>) -> Tensor<2> {
        let [n, q, h, w] = quantities.dims();
        let longest = self.sensors.iter().map(|s| s.nodes.len()).max().unwrap_or(1);
        let m = self.sensors.len();
        let (mut places, mut weights) = (vec![0.0; m * longest], vec![0.0; m * longest]);
        for (k, sensor) in self.sensors.iter().enumerate() {
            for (i, (node, weight)) in sensor.nodes.iter().enumerate() {
                places[k * longest + i] = (sensor.quantity * h * w + node) as f64;
                weights[k * longest + i] = *weight;
            }
        }
        let (device, dtype) = (quantities.device(), quantities.dtype());
        let places = tensors::constant::<1>(places, [m * longest], &device, dtype).int();
        let weights: Tensor<3> = tensors::constant(weights, [1, m, longest], &device, dtype);
        let chosen = quantities.reshape([n, q * h * w]).select(1, places).reshape([n, m, longest]);
        (chosen * weights).sum_dim(2).reshape([n, m])
    }
}

/// Numbers `[M]` as a row `[1, M]` like `like`.
fn constant(values: Vec<f64>, like: &Tensor<2>) -> Tensor<2> {
    let shape = [1, values.len()];
    tensors::constant(values, shape, &like.device(), like.dtype())
}

/// H' at given fields.
pub struct LinearisedObservations<'a> {
    observations: &'a Observations,
    system: LinearisedSystem<'a>,
}

impl LinearisedObservations<'_> {
    /// H'·`directions` `[N, C, H, W]` → `[N, M]`, in physical units; fields of one sample serve any number of directions.
    pub fn product(&self, directions: &Tensor<4>) -> Tensor<2> {
        self.observations.summed(self.system.product(directions))
    }

    /// H'ᵀ·`weights` `[N, M]` → `[N, C, H, W]`.
    pub fn transposed(&self, weights: &Tensor<2>) -> Tensor<4> {
        let observations = self.observations;
        let (q, grid) = (observations.names.len(), observations.quantities.grid());
        let (n, nodes) = (weights.dims()[0], grid.len());
        let given = to_vec_f64(weights.clone());
        let mut spread = vec![0.0; n * q * nodes];
        for (sample, given) in given.chunks_exact(observations.sensors.len()).enumerate() {
            for (sensor, value) in observations.sensors.iter().zip(given) {
                for (node, weight) in &sensor.nodes {
                    spread[(sample * q + sensor.quantity) * nodes + node] += weight * value;
                }
            }
        }
        let device = weights.device().without_autodiff();
        let spread = field_batch(spread, [q, grid.rows(), grid.cols()], &device).cast(weights.dtype());
        self.system.transposed(&spread)
    }
}

impl Measured<'_> {
    /// The formulas `names` of the fields as a constraint, with the stencils and fixed parameters of the run's.
    fn compile(&self, names: &[String]) -> Result<SoftConstraint> {
        let whole = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        if let Some(name) = names.iter().find(|name| name.chars().all(whole) && !self.fields.contains(name)) {
            let problem = format!("there is no field `{name}`; the fields are {}", self.fields.join(", "));
            let near = nearest(name, self.fields.iter().map(String::as_str));
            return Err(Error::input("--observe", problem).hint(near.map_or_else(
                || "name a field of the model, or a formula of its fields".to_string(),
                |near| format!("did you mean `{near}`?"),
            )));
        }
        let residual = |formula: &String| ResidualConfig {
            formula: formula.clone(),
            region: Region::All,
            weight: 1.0,
            name: None,
        };
        let start = |parameter: &ParameterConfig| match parameter {
            ParameterConfig::Learn { learn } | ParameterConfig::LearnField { learn, .. } => {
                ParameterConfig::Number(*learn)
            }
            ParameterConfig::Normal { normal: [mean, _] } => ParameterConfig::Number(*mean),
            other => other.clone(),
        };
        let given = self.constraint;
        let config = ConstraintConfig {
            fields: self.fields.to_vec(),
            residual: Residuals::Many(names.iter().map(residual).collect()),
            stencil: given.map(|c| c.stencil.clone()).unwrap_or_default(),
            stencils: given.map(|c| c.stencils.clone()).unwrap_or_default(),
            norm: Norm::L2,
            parameters: given
                .map(|c| c.parameters.iter().map(|(name, p)| (name.clone(), start(p))).collect())
                .unwrap_or_default(),
        };
        SoftConstraint::new(&config, self.fields, self.grid, self.units)
    }

    /// The standard deviation of a reading's noise.
    fn sd(&self, reading: &Reading, noise: &Noise) -> Result<f64> {
        let channel = self.fields.iter().position(|field| *field == reading.quantity);
        let sd = match (reading.sd, noise.of(&reading.quantity), channel) {
            (Some(sd), _, _) | (None, Some(Level::Absolute(sd)), _) => sd,
            (None, Some(Level::Relative(share)), Some(channel)) => share * self.units.scale[channel] * self.sigma_data,
            (None, Some(Level::Relative(_)), None) => {
                let problem = format!("a share needs a field, and `{}` is a formula", reading.quantity);
                return Err(Error::input(&reading.source, problem).hint("give its noise as a number"));
            }
            (None, None, _) => {
                let quantity = &reading.quantity;
                let problem = format!("the noise of `{quantity}` is not known");
                return Err(Error::input(&reading.source, problem)
                    .hint(format!("give its standard deviation: --noise \"{quantity}=0.01\", or a column `sd`")));
            }
        };
        if sd.is_finite() && sd > 0.0 {
            return Ok(sd);
        }
        let problem = format!("expected a positive standard deviation of the noise, found {sd}");
        Err(Error::input(&reading.source, problem).hint("even an exact value has rounding: give that"))
    }

    /// Refuses readings that seem to be in other units: on average too far from the data of their field.
    fn refuse_foreign(&self, names: &[String], sensors: &[Sensor], readings: &[Reading]) -> Result<()> {
        for (quantity, name) in names.iter().enumerate() {
            let Some(channel) = self.fields.iter().position(|field| field == name) else { continue };
            let (mean, sd) = (self.units.mean[channel], self.units.scale[channel] * self.sigma_data);
            let own = || sensors.iter().zip(readings).filter(|(sensor, _)| sensor.quantity == quantity);
            let distance = |sensor: &Sensor| (sensor.value - mean).abs() / sd;
            let far = own().map(|(sensor, _)| distance(sensor)).sum::<f64>() / own().count() as f64;
            let farthest = own().max_by(|a, b| distance(a.0).total_cmp(&distance(b.0)));
            if far > FOREIGN
                && let Some((_, reading)) = farthest
            {
                let problem = format!(
                    "readings of `{name}` such as {} lie {far:.0} standard deviations from the training data, whose mean is \
                     {mean:.4} and whose deviation is {sd:.4}",
                    reading.value
                );
                return Err(Error::input(&reading.source, problem)
                    .hint("are they in other units, or of another dataset? The model knows its own units only"));
            }
        }
        Ok(())
    }

    /// The size of each quantity, and whether all of them are linear.
    fn probed(&self, quantities: &SoftConstraint, channels: &[Option<usize>]) -> (Vec<f64>, bool) {
        let shape = [self.fields.len(), self.grid.rows(), self.grid.cols()];
        let device = Device::flex();
        let probe = |index: u64| {
            let values = Stream::new(0, Purpose::Observation, index).normals(shape.iter().product());
            field_batch(values, shape, &device)
        };
        let (x, direction) = (probe(0) * 0.1, probe(1));
        let system = |x: &Tensor<4>| quantities.linearised_system(0..channels.len(), x, |_| {}).product(&direction);
        let (here, elsewhere) = (to_vec_f64(system(&x)), to_vec_f64(system(&(x * -0.5))));
        let same = |(here, elsewhere): (&[f64], &[f64])| {
            let size = here.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            here.iter().zip(elsewhere).all(|(a, b)| (a - b).abs() <= 1e-9 * size)
        };
        let nodes = self.grid.len();
        let linear = here.chunks_exact(nodes).zip(elsewhere.chunks_exact(nodes)).all(same);
        let scale = |(channel, change): (&Option<usize>, &[f64])| match channel {
            Some(channel) => self.units.scale[*channel],
            None => (change.iter().map(|v| v * v).sum::<f64>() / change.len() as f64).sqrt().max(f64::MIN_POSITIVE),
        };
        (channels.iter().zip(here.chunks_exact(nodes)).map(scale).collect(), linear)
    }
}

/// The same error at another place.
fn at(source: &str, error: Error) -> Error {
    match error {
        Error::Input { problem, hint, .. } => Error::Input { place: source.into(), problem, hint },
        other => other,
    }
}

/// Refuses more readings of a quantity than there are nodes.
fn refuse_crowds(names: &[String], sensors: &[Sensor], readings: &[Reading], grid: &Grid) -> Result<()> {
    for (quantity, name) in names.iter().enumerate() {
        let mut own = sensors.iter().zip(readings).filter(|(sensor, _)| sensor.quantity == quantity);
        if let Some((_, reading)) = own.nth(grid.len()) {
            let problem = format!("there are more readings of `{name}` than the grid's {} nodes", grid.len());
            return Err(Error::input(&reading.source, problem)
                .hint("average readings that are closer than the grid's spacing: σ of a mean of n is σ/√n"));
        }
    }
    Ok(())
}

/// Refuses noise that is too small for the numbers of a network.
fn refuse_exactness(scales: &[f64], sensors: &[Sensor], readings: &[Reading]) -> Result<()> {
    let exact = |(sensor, _): &(&Sensor, &Reading)| sensor.sd < LEAST_NOISE * scales[sensor.quantity];
    let Some((sensor, reading)) = sensors.iter().zip(readings).find(exact) else { return Ok(()) };
    let least = LEAST_NOISE * scales[sensor.quantity];
    let problem = format!("expected noise with a standard deviation of at least {least:.1e}, found {:e}", sensor.sd);
    Err(Error::input(&reading.source, problem).hint("samples have no more digits than that"))
}

/// Refuses two readings of one place that cannot both be right.
fn refuse_contradictions(sensors: &[Sensor], readings: &[Reading]) -> Result<()> {
    let key = |sensor: &Sensor| {
        let nodes = sensor.nodes.iter().map(|(node, weight)| (*node, weight.to_bits())).collect::<Vec<_>>();
        (sensor.quantity, nodes)
    };
    let mut known = std::collections::HashMap::new();
    for (k, sensor) in sensors.iter().enumerate() {
        let first: usize = *known.entry(key(sensor)).or_insert(k);
        let other = &sensors[first];
        if (sensor.value - other.value).abs() > CONTRADICTION * sensor.sd.hypot(other.sd) {
            let problem = format!(
                "{} contradicts {} at the same place ({}): they differ by more than {CONTRADICTION} standard deviations of their noise",
                sensor.value, other.value, readings[first].source
            );
            return Err(Error::input(&readings[k].source, problem)
                .hint("drop one of them, or give both the noise that they really have"));
        }
    }
    Ok(())
}
