//! A soft constraint: residual formulas on physical fields, and a norm that turns them into log l_c = −‖R‖.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use softly_pde::algebra::{Algebra, Binary, F64Algebra, Value};
use softly_pde::derivative::Scheme;
use softly_pde::formula::{self, Parameter, Symbols};
use softly_pde::grid::Grid;
use softly_pde::program::{Program, Tape};

use crate::absolute_algebra::AbsoluteAlgebra;
use crate::error::{Error, Result, nearest};
use crate::parameter::Visitor;
use crate::runtime_parameter::{RuntimeParameters, Source};
use crate::smooth_field::SmoothField;
use crate::tensor_algebra::{Constants, TensorAlgebra, TensorValue};
use crate::units::Units;

/// A constraint as written in a configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConstraintConfig {
    /// Names of the fields that formulas speak of, each a channel of the data.
    pub fields: Vec<String>,
    /// One formula, or several with their regions.
    pub residual: Residuals,
    /// How derivatives are taken.
    #[serde(default = "default_stencil")]
    pub stencil: Scheme,
    /// How they are taken for single fields instead.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stencils: BTreeMap<String, Scheme>,
    /// How residuals are summed up.
    #[serde(default = "default_norm")]
    pub norm: Norm,
    /// Named quantities of the formulas.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ParameterConfig>,
}

fn default_stencil() -> Scheme {
    Scheme::OneSided2
}

fn default_norm() -> Norm {
    Norm::L1Mean
}

/// One residual formula on the whole grid, or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Residuals {
    /// A formula.
    One(String),
    /// Formulas with regions.
    Many(Vec<ResidualConfig>),
}

/// A residual formula and where it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualConfig {
    /// The formula; zero where the equation holds.
    pub formula: String,
    /// The nodes where it counts.
    #[serde(default)]
    pub region: Region,
    /// A factor on this residual.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

/// A set of nodes, as a field is printed: rows downwards (x), columns to the right (y).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Region {
    /// Every node.
    #[default]
    All,
    /// Every node but the outermost ring.
    Interior,
    /// The outermost ring.
    Border,
    /// The first column.
    Left,
    /// The last column.
    Right,
    /// The first row.
    Top,
    /// The last row.
    Bottom,
}

impl Region {
    fn contains(self, row: usize, col: usize, grid: &Grid) -> bool {
        let edges = [col == 0, col + 1 == grid.cols, row == 0, row + 1 == grid.rows];
        let border = edges.contains(&true);
        match self {
            Self::All => true,
            Self::Interior => !border,
            Self::Border => border,
            Self::Left => edges[0],
            Self::Right => edges[1],
            Self::Top => edges[2],
            Self::Bottom => edges[3],
        }
    }
}

/// A parameter's value as written in a configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected a number, a formula in quotes, { file = \"array.npy\" }, { normal = [mean, std] }, { learn = start } \
                 or { learn = start, length = 0.2, size = 1.0 }"
)]
pub enum ParameterConfig {
    /// A number.
    Number(f64),
    /// A formula of the coordinates and of other parameters that are no formulas or files.
    Formula(String),
    /// An array file `[H, W]`.
    File {
        /// Path of a `.npy` file.
        file: PathBuf,
    },
    /// A number that is drawn anew for every sample and evaluation; metrics take its mean.
    Normal {
        /// Mean and standard deviation.
        normal: [f64; 2],
    },
    /// A number that is learned together with γ; metrics take the start unless `[truth]` says better.
    Learn {
        /// The first value.
        learn: f64,
    },
    /// A smooth field that is learned likewise.
    LearnField {
        /// The first value, at every node.
        learn: f64,
        /// The length over which it varies, in units of the coordinates.
        length: f64,
        /// How far it may be expected to be from its start.
        size: f64,
    },
}

impl ParameterConfig {
    /// Whether the value is known without a model.
    pub fn is_fixed(&self) -> bool {
        !self.is_learned() && !matches!(self, Self::Normal { .. })
    }

    /// Whether training finds the value.
    pub fn is_learned(&self) -> bool {
        matches!(self, Self::Learn { .. } | Self::LearnField { .. })
    }
}

/// ‖R‖ of one sample's residuals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// Mean of |R| over nodes.
    L1Mean,
    /// Sum of |R| over nodes.
    L1Sum,
    /// √ΣR².
    L2,
    /// ½ΣR².
    HalfSquares,
}

/// The size of a set of residual values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ResidualSummary {
    /// Mean of |R|.
    pub mean_abs: f64,
    /// √mean R².
    pub rms: f64,
    /// Largest |R|.
    pub max_abs: f64,
    /// How many values.
    pub n: usize,
}

impl ResidualSummary {
    /// Summarises the values.
    pub fn of(values: &[f64]) -> Self {
        let n = values.len();
        let mean = |f: fn(f64) -> f64| values.iter().map(|&v| f(v)).sum::<f64>() / n.max(1) as f64;
        Self {
            mean_abs: mean(f64::abs),
            rms: mean(|v| v * v).sqrt(),
            max_abs: values.iter().fold(0.0, |max, v| v.abs().max(max)),
            n,
        }
    }
}

/// A residual ready to run: its program and the weight of each node (0 outside its region).
pub(crate) struct Part {
    pub(crate) program: Program,
    /// Row-major `[rows, cols]`; `None` when every node counts with weight 1.
    weights: Option<Arc<[f64]>>,
}

/// A constraint on fields of a grid, ready to run.
pub struct SoftConstraint {
    pub(crate) grid: Grid,
    pub(crate) parts: Vec<Part>,
    norm: Norm,
    /// Channel and units of each field.
    pub(crate) fields: Vec<Field>,
    channels: usize,
    /// Nodes that count, over all parts.
    nodes: usize,
    pub(crate) constants: Constants,
    parameters: RuntimeParameters,
}

pub(crate) struct Field {
    pub(crate) channel: usize,
    mean: f64,
    pub(crate) scale: f64,
}

impl SoftConstraint {
    /// Compiles `config` for data whose channels are `channels` on `grid`, normalised by `units`.
    pub fn new(config: &ConstraintConfig, channels: &[String], grid: &Grid, units: &Units) -> Result<Self> {
        let (symbols, parameters) = config.symbols(grid)?;
        let fields = config.fields.iter().map(|name| {
            let channel = channels.iter().position(|c| c == name).ok_or_else(|| {
                Error::input(
                    "constraint.fields",
                    format!("the data have no field `{name}`; they have {}", channels.join(", ")),
                )
                .hint(nearest(name, channels.iter().map(String::as_str)).map_or_else(
                    || "name the data's fields in the formula".to_string(),
                    |near| format!("did you mean `{near}`?"),
                ))
            })?;
            Ok(Field { channel, mean: units.mean[channel], scale: units.scale[channel] })
        });
        let fields = fields.collect::<Result<Vec<_>>>()?;
        let mut parts = Vec::new();
        let mut nodes = 0;
        for residual in config.residuals() {
            let program = formula::compile(&residual.formula, &symbols)
                .map_err(|e| Error::input("constraint.residual", format!("{e}")))?;
            if !(0..config.fields.len()).any(|slot| program.uses(slot)) {
                return Err(Error::input(
                    "constraint.residual",
                    format!("`{}` depends on none of the fields {}", residual.formula, config.fields.join(", ")),
                ));
            }
            let inside = |node: usize| residual.region.contains(node / grid.cols, node % grid.cols, grid);
            let weights: Arc<[f64]> = (0..grid.len()).map(|i| if inside(i) { residual.weight } else { 0.0 }).collect();
            let count = (0..grid.len()).filter(|&i| inside(i)).count();
            if count == 0 {
                let problem =
                    format!("the region {:?} of a {}×{} grid is empty", residual.region, grid.rows, grid.cols);
                return Err(Error::input("constraint.residual", problem));
            }
            nodes += count;
            let plain = weights.iter().all(|&w| w == 1.0);
            parts.push(Part { program, weights: (!plain).then_some(weights) });
        }
        Ok(Self {
            grid: grid.clone(),
            parts,
            norm: config.norm,
            fields,
            channels: channels.len(),
            nodes,
            constants: Constants::default(),
            parameters,
        })
    }

    /// The same constraint with the learned parameters of `other`, of which it is a variation: they are learned as one.
    #[must_use]
    pub fn sharing_parameters_of(self, other: &Self) -> Self {
        Self { parameters: other.parameters.clone(), ..self }
    }

    /// Puts learned parameters on `device`, which may track their gradients. All that share them see that.
    pub fn move_to(&self, device: &Device) {
        self.parameters.move_to(device);
    }

    /// Visits learned parameters, see [`Parameters::visit`](crate::parameter::Parameters::visit).
    pub fn visit(&self, prefix: &str, visit: &mut Visitor<'_>) {
        self.parameters.visit(prefix, visit);
    }

    /// The grid that the constraint lives on.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Every weighted residual of normalised fields `x` `[N, C, H, W]`: one `[N, H, W]` per formula.
    pub fn residuals(&self, x: &Tensor<4>) -> Vec<Tensor<3>> {
        let algebra = TensorAlgebra::new(&self.grid, &self.constants, x);
        let inputs = self.inputs(x);
        self.parts
            .iter()
            .map(|part| part.weighted(&algebra, part.program.forward(&algebra, &inputs).output(), x))
            .collect()
    }

    /// Mean |R| over the nodes that count, of every sample; `x` is normalised `[N, C, H, W]`.
    pub fn mean_abs(&self, x: &Tensor<4>) -> Vec<f64> {
        let n = x.dims()[0];
        let mut sums = vec![0.0; n];
        for residual in self.residuals(x) {
            let [_, h, w] = residual.dims();
            let part = crate::parameter::to_vec_f64(residual.abs().reshape([n, h * w]).sum_dim(1));
            sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        sums.into_iter().map(|sum| sum / self.nodes as f64).collect()
    }

    /// ‖R(x)‖ = −log l_c(x) of every sample; `x` is normalised `[N, C, H, W]`, the result `[N]`.
    pub fn norm(&self, x: Tensor<4>) -> Tensor<1> {
        self.norm_of(self.norm, &self.residuals(&x))
    }

    /// √mean R² over the nodes that count, of every sample of `x` `[N, C, H, W]`; at least 1e-12, so that it has a logarithm.
    pub fn rms(&self, x: &Tensor<4>) -> Tensor<1> {
        let mean_square = self.norm_of(Norm::HalfSquares, &self.residuals(x)) * (2.0 / self.nodes as f64);
        mean_square.clamp_min(1e-24).sqrt()
    }

    /// ‖R(x)‖ and ∇ log l_c(x) = −∇‖R(x)‖ with respect to the normalised `x`; `[N]` and `[N, C, H, W]`.
    ///
    /// The gradient is a walk back through the formulas in ordinary tensor operations, so that autodiff goes through
    /// it: the second derivative of the residual, which Proposition 1 needs, is included.
    pub fn norm_and_gradient(&self, x: &Tensor<4>) -> (Tensor<1>, Tensor<4>) {
        self.norm_and_gradient_in(self.norm, x)
    }

    /// The same in another norm than the constraint's own.
    pub fn norm_and_gradient_in(&self, norm: Norm, x: &Tensor<4>) -> (Tensor<1>, Tensor<4>) {
        let algebra = TensorAlgebra::new(&self.grid, &self.constants, x);
        let tapes = self.tapes(&algebra, &self.inputs(x));
        let residuals: Vec<Tensor<3>> =
            self.parts.iter().zip(&tapes).map(|(part, tape)| part.weighted(&algebra, tape.output(), x)).collect();
        let value = self.norm_of(norm, &residuals);
        let seeds = self.parts.iter().zip(residuals).map(|(part, residual)| {
            let seed = self.downhill(norm, residual, &value);
            match &part.weights {
                Some(weights) => seed * algebra.tensor(&algebra.array(weights)),
                None => seed,
            }
        });
        let adjoints = self.adjoints(&algebra, &tapes, seeds);
        (value, self.gather(&algebra, adjoints, x))
    }

    /// S = 1/(|J|ᵀ|J| 1), the step at every node and channel that `scale = "jacobi"` takes along −JᵀR; `[N, C, H, W]`.
    ///
    /// J = ∂R/∂x in normalised units. |J| 1 says how much R can change in all if every value moves by one, |J|ᵀ collects it
    /// where the value acts. By Gershgorin ‖J S^½‖ ≤ 1: a step γ S JᵀR with 0 < γ < 2 shrinks ‖R‖ wherever R is
    /// nearly linear. For K∇²p the step of p is about 1/(8K/h²)², 8/h² being the top eigenvalue of the Laplacian. It is a
    /// constant if `x` is.
    pub fn jacobi_step(&self, x: &Tensor<4>) -> Tensor<4> {
        let absolute = AbsoluteAlgebra(TensorAlgebra::new(&self.grid, &self.constants, x));
        let algebra = &absolute.0;
        let inputs = self.inputs(x).into_iter().map(|input| match input {
            // A learned parameter would bring its graph along.
            TensorValue::Tensor(tensor) if !x.is_autodiff() => TensorValue::Tensor(tensor.without_autodiff()),
            input => input,
        });
        let tapes = self.tapes(algebra, &inputs.collect::<Vec<_>>());
        let ones: Vec<_> = self.fields.iter().map(|field| Some(TensorValue::Number(field.scale.abs()))).collect();
        let seeds = self.parts.iter().zip(&tapes).map(|(part, tape)| {
            let reach = part.program.tangent(&absolute, tape, &ones).unwrap_or(TensorValue::Number(0.0));
            let reach = full(algebra.tensor(&reach), x);
            match &part.weights {
                // Once for |J| and once for |J|ᵀ.
                Some(weights) => reach * algebra.tensor(&algebra.array(weights)).powi_scalar(2),
                None => reach,
            }
        });
        let adjoints = self.adjoints(&absolute, &tapes, seeds);
        let bound = self.gather(algebra, adjoints, x).abs();
        // Where R hardly reacts a step would be huge. The other floor is for channels that R does not depend on.
        let [n, c, h, w] = bound.dims();
        let mean = bound.clone().reshape([n, c, h * w]).mean_dim(2).reshape([n, c, 1, 1]);
        bound.max_pair((mean * 1e-3).clamp_min(1e-20)).recip()
    }

    /// Whether a parameter of it is learned.
    pub fn learns(&self) -> bool {
        self.parameters.learn()
    }

    /// The learned parameter `name`, a number or a field, if `learned` are the values that [`SoftConstraint::visit`] shows.
    pub fn learned_value(&self, name: &str, learned: &[f32]) -> Option<Value> {
        self.parameters.learned_value(name, learned)
    }

    /// Every formula's intermediate values.
    fn tapes(&self, algebra: &TensorAlgebra<'_>, inputs: &[TensorValue]) -> Vec<Tape<TensorValue>> {
        self.parts.iter().map(|part| part.program.forward(algebra, inputs)).collect()
    }

    /// Σ Jᵀ·seed over all parts for every field, as `algebra` multiplies; one seed `[N, H, W]` per part.
    fn adjoints<A: Algebra<Value = TensorValue>>(
        &self,
        algebra: &A,
        tapes: &[Tape<TensorValue>],
        seeds: impl Iterator<Item = Tensor<3>>,
    ) -> Vec<Option<TensorValue>> {
        let mut total: Vec<Option<TensorValue>> = vec![None; self.fields.len()];
        for ((part, tape), seed) in self.parts.iter().zip(tapes).zip(seeds) {
            for (sum, adjoint) in total.iter_mut().zip(part.program.reverse(algebra, tape, TensorValue::Tensor(seed))) {
                *sum = match (sum.take(), adjoint) {
                    (Some(a), Some(b)) => Some(algebra.binary(Binary::Add, &a, &b)),
                    (a, b) => a.or(b),
                };
            }
        }
        total
    }

    /// −∂‖R‖/∂R at a residual `[N, H, W]` whose norm is `value`.
    fn downhill(&self, norm: Norm, residual: Tensor<3>, value: &Tensor<1>) -> Tensor<3> {
        let n = residual.dims()[0];
        match norm {
            Norm::L1Mean => residual.detach().sign() * (-1.0 / self.nodes as f64),
            Norm::L1Sum => residual.detach().sign().neg(),
            Norm::L2 => (residual / value.clone().clamp_min(1e-12).reshape([n, 1, 1])).neg(),
            Norm::HalfSquares => residual.neg(),
        }
    }

    fn norm_of(&self, norm: Norm, residuals: &[Tensor<3>]) -> Tensor<1> {
        let per_sample = |r: Tensor<3>| {
            let [n, h, w] = r.dims();
            r.reshape([n, h * w]).sum_dim(1).reshape([n])
        };
        let sum = |f: fn(Tensor<3>) -> Tensor<3>| {
            let mut terms = residuals.iter().map(|r| per_sample(f(r.clone())));
            let first = terms.next().expect("a constraint has at least one residual");
            terms.fold(first, |a, b| a + b)
        };
        let squares = |r: Tensor<3>| r.clone() * r;
        match norm {
            Norm::L1Mean => sum(Tensor::abs) / self.nodes as f64,
            Norm::L1Sum => sum(Tensor::abs),
            Norm::L2 => sum(squares).clamp_min(1e-24).sqrt(),
            Norm::HalfSquares => sum(squares) * 0.5,
        }
    }

    /// What the formulas take: the fields in physical units, `[N, H, W]` each, then the run-time parameters.
    pub(crate) fn inputs(&self, x: &Tensor<4>) -> Vec<TensorValue> {
        let [n, _, h, w] = x.dims();
        let field = |f: &Field| {
            let channel = x.clone().narrow(1, f.channel, 1).reshape([n, h, w]);
            let scaled = if f.scale == 1.0 { channel } else { channel * f.scale };
            TensorValue::Tensor(if f.mean == 0.0 { scaled } else { scaled + f.mean })
        };
        let algebra = TensorAlgebra::new(&self.grid, &self.constants, x);
        self.fields.iter().map(field).chain(self.parameters.values(&algebra, x)).collect()
    }

    /// Adjoints per field → the gradient by channel `[N, C, H, W]`, in normalised units.
    pub(crate) fn gather(
        &self,
        algebra: &TensorAlgebra<'_>,
        adjoints: Vec<Option<TensorValue>>,
        x: &Tensor<4>,
    ) -> Tensor<4> {
        let [n, _, h, w] = x.dims();
        let mut channels: Vec<Option<Tensor<4>>> = vec![None; self.channels];
        for (field, adjoint) in self.fields.iter().zip(adjoints) {
            channels[field.channel] = adjoint.map(|adjoint| {
                let adjoint = full(algebra.tensor(&adjoint), x).reshape([n, 1, h, w]);
                if field.scale == 1.0 { adjoint } else { adjoint * field.scale }
            });
        }
        let zeros = || Tensor::zeros([n, 1, h, w], (&x.device().without_autodiff(), x.dtype()));
        Tensor::cat(channels.into_iter().map(|c| c.unwrap_or_else(zeros)).collect(), 1)
    }

    /// Every weighted residual value of one sample in f64; `fields` are physical, row-major, in the config's order.
    pub fn residual_values(&self, fields: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let algebra = F64Algebra::new(self.grid.clone());
        let inputs: Vec<Value> =
            fields.iter().map(|f| Value::from(f.clone())).chain(self.parameters.numbers(&algebra)).collect();
        let values = |part: &Part| {
            let values = part.program.forward(&algebra, &inputs).output().broadcast(self.grid.len());
            match &part.weights {
                // Nodes outside the region do not exist for a summary.
                Some(weights) => {
                    weights.iter().zip(values.iter()).filter(|(w, _)| **w != 0.0).map(|(w, v)| w * v).collect()
                }
                None => values.to_vec(),
            }
        };
        self.parts.iter().map(values).collect()
    }

    /// The same values at their nodes, one `[H, W]` per formula, not a number where the formula does not count.
    pub fn residual_maps(&self, fields: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let counts = |part: &Part, node: usize| part.weights.as_ref().is_none_or(|weights| weights[node] != 0.0);
        let map = |(part, values): (&Part, Vec<f64>)| {
            let mut values = values.into_iter();
            let value = |node| if counts(part, node) { values.next() } else { None }.unwrap_or(f64::NAN);
            (0..self.grid.len()).map(value).collect()
        };
        self.parts.iter().zip(self.residual_values(fields)).map(map).collect()
    }
}

impl Part {
    /// The part's output with the weight of every node, `[N, H, W]`.
    pub(crate) fn weighted(&self, algebra: &TensorAlgebra<'_>, output: &TensorValue, x: &Tensor<4>) -> Tensor<3> {
        let output = full(algebra.tensor(output), x);
        match &self.weights {
            Some(weights) => output * algebra.tensor(&algebra.array(weights)),
            None => output,
        }
    }
}

/// A value that may stand for a whole batch or grid, as one `[N, H, W]` for fields like `x`.
pub(crate) fn full(value: Tensor<3>, x: &Tensor<4>) -> Tensor<3> {
    let [n, _, h, w] = x.dims();
    if value.dims() == [n, h, w] { value } else { value.expand([n, h, w]) }
}

impl ConstraintConfig {
    /// The formulas with their regions.
    pub fn residuals(&self) -> Vec<ResidualConfig> {
        match &self.residual {
            Residuals::One(formula) => {
                vec![ResidualConfig { formula: formula.clone(), region: Region::All, weight: 1.0 }]
            }
            Residuals::Many(many) => many.clone(),
        }
    }

    /// What the names in the formulas mean on `grid`, and where run-time parameters get their values.
    fn symbols(&self, grid: &Grid) -> Result<(Symbols, RuntimeParameters)> {
        if self.fields.is_empty() {
            return Err(Error::input("constraint.fields", "no field is named"));
        }
        if self.residuals().is_empty() {
            return Err(Error::input("constraint.residual", "no formula is given"));
        }
        let place = |name: &str| format!("constraint.parameters.{name}");
        for (i, name) in self.fields.iter().enumerate() {
            if self.fields[..i].contains(name) {
                return Err(Error::input("constraint.fields", format!("`{name}` is named twice")));
            }
            if self.parameters.contains_key(name) {
                return Err(
                    Error::input(place(name), format!("`{name}` is a field already")).hint("rename the parameter")
                );
            }
        }
        let mut symbols = Symbols::new(grid.clone(), self.stencil);
        symbols.field_schemes = self.stencils.clone();
        for name in self.stencils.keys() {
            if !self.fields.contains(name) && !self.parameters.contains_key(name) {
                let known = self.fields.iter().chain(self.parameters.keys()).map(String::as_str);
                let hint = nearest(name, known).map_or(String::new(), |n| format!("did you mean `{n}`?"));
                return Err(
                    Error::input("constraint.stencils", format!("`{name}` is no field or parameter")).hint(hint)
                );
            }
        }
        // Numbers first, so that formulas may use them.
        let mut sources = BTreeMap::new();
        for (name, parameter) in &self.parameters {
            let finite = |numbers: &[f64]| match numbers.iter().find(|number| !number.is_finite()) {
                Some(number) => Err(Error::input(place(name), format!("expected finite numbers, found {number}"))),
                None => Ok(()),
            };
            let meaning = match parameter {
                ParameterConfig::Number(number) => Parameter::Number(*number),
                ParameterConfig::Normal { normal: [mean, std] } => {
                    finite(&[*mean, *std])?;
                    if *std < 0.0 {
                        let problem = format!("expected a standard deviation ≥ 0, found {std}");
                        return Err(Error::input(place(name), problem));
                    }
                    sources.insert(name.clone(), Source::Drawn { mean: *mean, std: *std });
                    Parameter::Runtime
                }
                ParameterConfig::Learn { learn } => {
                    finite(&[*learn])?;
                    sources.insert(name.clone(), Source::learned(*learn));
                    Parameter::Runtime
                }
                ParameterConfig::LearnField { learn, length, size } => {
                    finite(&[*learn, *length, *size])?;
                    if *length <= 0.0 || *size <= 0.0 {
                        let problem = format!("expected a length and a size above 0, found {length} and {size}");
                        return Err(Error::input(place(name), problem));
                    }
                    let field = SmoothField::new(grid, *learn, *length, *size);
                    sources.insert(name.clone(), Source::learned_field(field));
                    Parameter::Runtime
                }
                ParameterConfig::Formula(_) | ParameterConfig::File { .. } => continue,
            };
            symbols.parameters.insert(name.clone(), meaning);
        }
        let numbers = symbols.clone();
        for (name, parameter) in &self.parameters {
            let meaning = match parameter {
                ParameterConfig::Formula(text) => {
                    let wrong = |e| Error::input(place(name), format!("{e}"));
                    let program = formula::compile(text, &numbers).map_err(wrong)?;
                    if (0..sources.len()).any(|slot| program.uses(slot)) {
                        sources.insert(name.clone(), Source::Computed(program.into()));
                        Parameter::Runtime
                    } else {
                        Parameter::Array(formula::evaluate_constant(text, &numbers).map_err(wrong)?.into())
                    }
                }
                ParameterConfig::File { file } => {
                    let array = crate::npy::read(file)?;
                    if array.shape != [grid.rows, grid.cols] {
                        let expected = format!("{} needs an array [{}, {}]", place(name), grid.rows, grid.cols);
                        return Err(Error::input(file.display(), format!("{expected}, found {:?}", array.shape)));
                    }
                    Parameter::Array(array.values.into())
                }
                _ => continue,
            };
            symbols.parameters.insert(name.clone(), meaning);
        }
        symbols.fields.clone_from(&self.fields);
        Ok((symbols, RuntimeParameters(sources)))
    }
}
