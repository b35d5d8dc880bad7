//! A soft constraint: residual formulas on physical fields, and a norm that turns them into log l_c = −‖R‖.

mod absolute_algebra;
mod arrays;
pub mod basis;
pub mod config;
mod jacobi;
pub mod linearised;
pub mod norm;
pub mod parameters;
pub mod smooth_field;
pub mod tensor_algebra;

use std::sync::Arc;

use burn::tensor::{DType, Tensor};

use softly_pde::algebra::{Algebra, Binary, F64Algebra, Value};
use softly_pde::formula::{self};
use softly_pde::grid::Grid;
use softly_pde::program::{Program, Tape};

use crate::constraint::config::ConstraintConfig;
use crate::constraint::norm::Norm;
use crate::constraint::parameters::RuntimeParameters;
use crate::constraint::tensor_algebra::{Constants, TensorAlgebra, TensorValue};
use crate::error::{Error, Result, nearest};
use crate::nn::parameter::Visitor;
use crate::profile;
use crate::tensors::in_type;
use crate::units::Units;

/// A residual ready to run: its program and the weight of each node (0 outside its region).
pub(crate) struct Part {
    pub(crate) program: Program,
    /// Row-major `[rows, cols]`; `None` when every node counts with weight 1.
    pub(super) weights: Option<Arc<[f64]>>,
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
    /// For single samples in double precision; it keeps its matrices.
    algebra: F64Algebra,
    parameters: RuntimeParameters,
}

pub(crate) struct Field {
    pub(crate) channel: usize,
    pub(crate) mean: f64,
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
            let inside = residual
                .region
                .mask(grid)
                .map_err(|e| Error::input("constraint.residual", &e).hint(e.hint().unwrap_or_default()))?;
            let weights: Arc<[f64]> = inside.iter().map(|&inside| if inside { residual.weight } else { 0.0 }).collect();
            let count = inside.iter().filter(|inside| **inside).count();
            if count == 0 {
                let problem =
                    format!("the region {} of a {}×{} grid is empty", residual.region, grid.rows(), grid.cols());
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
            algebra: F64Algebra::new(grid.clone()),
            parameters,
        })
    }

    /// The same constraint with the learned parameters of `other`, of which it is a variation: they are learned as one.
    #[must_use]
    pub fn sharing_parameters_of(self, other: &Self) -> Self {
        Self { parameters: other.parameters.clone(), ..self }
    }

    /// Visits learned parameters, see [`Parameters::visit`](crate::nn::parameter::Parameters::visit).
    pub fn visit(&self, prefix: &str, visit: &mut Visitor<'_>) {
        self.parameters.visit(prefix, visit);
    }

    /// The grid that the constraint lives on.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Every weighted residual of normalised fields `x` `[N, C, H, W]`: one `[N, H, W]` per formula.
    pub fn residuals(&self, x: &Tensor<4>) -> Vec<Tensor<3>> {
        let of_part = |algebra: &TensorAlgebra<'_>, inputs: &[TensorValue], part: &Part| {
            part.weighted(algebra, part.program.forward(algebra, inputs).output(), x)
        };
        profile::part(profile::Part::Constraint, || {
            let (algebra, inputs) = (TensorAlgebra::new(&self.grid, &self.constants, x), self.inputs(x));
            self.parts.iter().map(|part| of_part(&algebra, &inputs, part)).collect()
        })
    }

    /// Mean |R| over the nodes that count, of every sample; `x` is normalised `[N, C, H, W]`.
    pub fn mean_abs(&self, x: &Tensor<4>) -> Vec<f64> {
        let n = x.dims()[0];
        let mut sums = vec![0.0; n];
        for residual in self.residuals(x) {
            let [_, h, w] = residual.dims();
            let part = crate::tensors::to_vec_f64(residual.abs().reshape([n, h * w]).sum_dim(1));
            sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        sums.into_iter().map(|sum| sum / self.nodes as f64).collect()
    }

    /// ‖R(x)‖ = −log l_c(x) of every sample; `x` is normalised `[N, C, H, W]`, the result `[N]`.
    pub fn norm(&self, x: Tensor<4>) -> Tensor<1> {
        self.norm.of(&self.residuals(&x), self.nodes)
    }

    /// √mean R² over the nodes that count, of every sample of `x` `[N, C, H, W]` and every equation, `[N, E]`; at least 1e-12, so
    /// that it has a logarithm.
    pub fn rms(&self, x: &Tensor<4>) -> Tensor<2> {
        let of_equation = |(part, residual): (&Part, Tensor<3>)| {
            let (n, nodes) = (residual.dims()[0], part.nodes(&self.grid));
            let mean_square = Norm::HalfSquares.of(&[residual], nodes) * (2.0 / nodes as f64);
            mean_square.clamp_min(1e-24).sqrt().reshape([n, 1])
        };
        Tensor::cat(self.parts.iter().zip(self.residuals(x)).map(of_equation).collect(), 1)
    }

    /// Number of nodes that count, over all equations.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Number of equations.
    pub fn equations(&self) -> usize {
        self.parts.len()
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
        self.norm_and_rounded_gradient(Some(norm), x, x.dtype())
    }

    /// The same in numbers of the type `working`: residuals, small differences of large numbers, are evaluated in the type of `x` and
    /// rounded afterwards. Without a `norm` the constraint's own counts.
    pub(crate) fn norm_and_rounded_gradient(
        &self,
        norm: Option<Norm>,
        x: &Tensor<4>,
        working: DType,
    ) -> (Tensor<1>, Tensor<4>) {
        profile::part(profile::Part::Constraint, || self.walk_back(norm.unwrap_or(self.norm), x, working))
    }

    fn walk_back(&self, norm: Norm, x: &Tensor<4>, working: DType) -> (Tensor<1>, Tensor<4>) {
        let tapes = self.tapes(&TensorAlgebra::new(&self.grid, &self.constants, x), &self.inputs(x));
        let rounded = |tape: Tape<TensorValue>| tape.map(|value| value.cast(working));
        let tapes: Vec<Tape<TensorValue>> = tapes.into_iter().map(rounded).collect();
        let x = &in_type(x, working);
        let algebra = TensorAlgebra::new(&self.grid, &self.constants, x);
        let residuals: Vec<Tensor<3>> =
            self.parts.iter().zip(&tapes).map(|(part, tape)| part.weighted(&algebra, tape.output(), x)).collect();
        let value = norm.of(&residuals, self.nodes);
        let seeds = self.parts.iter().zip(residuals).map(|(part, residual)| {
            let seed = norm.downhill(residual, &value, self.nodes);
            match &part.weights {
                Some(weights) => seed * algebra.tensor(&algebra.array(weights)),
                None => seed,
            }
        });
        let adjoints = self.adjoints(&algebra, &tapes, seeds);
        (value, self.gather(&algebra, adjoints, x))
    }

    /// Whether a parameter of the constraint is learned.
    pub fn learns(&self) -> bool {
        self.parameters.learn()
    }

    /// The learned parameter `name`, a number or a field, if `learned` are the values that [`SoftConstraint::visit`] shows.
    pub fn learned_value(&self, name: &str, learned: &[f32]) -> Option<Value> {
        self.parameters.learned_value(name, learned)
    }

    /// Every formula's intermediate values.
    pub(super) fn tapes(&self, algebra: &TensorAlgebra<'_>, inputs: &[TensorValue]) -> Vec<Tape<TensorValue>> {
        self.parts.iter().map(|part| part.program.forward(algebra, inputs)).collect()
    }

    /// Σ Jᵀ·seed over all parts for every field, as `algebra` multiplies; one seed `[N, H, W]` per part.
    pub(super) fn adjoints<A: Algebra<Value = TensorValue>>(
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

    /// Whether residual `part` counts at each node, `[H, W]`.
    pub(crate) fn counts(&self, part: usize) -> Vec<bool> {
        match &self.parts[part].weights {
            Some(weights) => weights.iter().map(|&weight| weight != 0.0).collect(),
            None => vec![true; self.grid.len()],
        }
    }

    /// Every weighted residual value of one sample in f64; `fields` are physical, row-major, in the config's order.
    pub fn residual_values(&self, fields: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let algebra = &self.algebra;
        let inputs: Vec<Value> =
            fields.iter().map(|f| Value::from(f.clone())).chain(self.parameters.numbers(algebra)).collect();
        let values = |part: &Part| {
            let values = part.program.forward(algebra, &inputs).output().broadcast(self.grid.len());
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
    /// Nodes of `grid` where the part counts; 1 if there are none.
    fn nodes(&self, grid: &Grid) -> usize {
        let counting = |weights: &Arc<[f64]>| weights.iter().filter(|weight| **weight != 0.0).count().max(1);
        self.weights.as_ref().map_or(grid.len(), counting)
    }

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
