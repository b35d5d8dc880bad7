//! The step that would make the equation hold for one field, the others standing still: p_solve(K_D) − p_D.
//!
//! With R the residual and J = ∂R/∂p at the base estimate, the step δ solves J δ = −R: exactly the solution for equations
//! that are linear in p, one Gauss–Newton step for others. It takes a fixed number of Krylov iterations on the formula's own Jacobian
//! products, preconditioned by a constant-coefficient inverse in the basis that diagonalises it, all in tensor
//! operations.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData, activation};
use serde::{Deserialize, Serialize};
use softly_pde::algebra::{F64Algebra, Value};
use softly_pde::derivative::{Matrix, Order, Scheme};
use softly_pde::grid::{Axis, Grid};

use crate::constraint::{ConstraintConfig, Region, SoftConstraint};
use crate::constraint_jacobian::Linearised;
use crate::denoiser::{Precondition, per_sample};
use crate::direction::Direction;
use crate::error::{Error, Result, nearest};
use crate::fast_basis::{Basis, Family, Transform};
use crate::tensor_algebra::TensorValue;
use crate::units::Units;

/// The largest RMS of the direction in units of c_out.
const TRUST: f64 = 3.0;

/// Steps of a projection: one solves a linear equation to the accuracy of its iterations, the second squares that.
const PROJECTION: usize = 2;

/// The Newton direction, as configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewtonConfig {
    /// Krylov iterations. 12 solve Darcy's law at 64×64 nodes to 1 %, 4 at 16×16; an equation with constant coefficients
    /// needs one.
    pub iterations: usize,
    /// How the direction differentiates the solved field. By default as the constraint does, but `mirror` in place of
    /// `one-sided-2` at the sides: one-sided rows there make the system nearly singular.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stencil: Option<Scheme>,
    /// Physical values that other fields are kept above, smoothly: a permeability has to be positive. By default
    /// [`DataSpec::floors`](crate::model::DataSpec::floors).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<BTreeMap<String, f64>>,
    /// Let no gradient flow through the direction into the base denoiser; learned parameters of the constraint keep theirs.
    pub stop_gradient: bool,
}

impl Default for NewtonConfig {
    fn default() -> Self {
        Self { iterations: 12, stencil: None, floor: None, stop_gradient: false }
    }
}

/// v = δ limited to an RMS of 3 c_out in the channel of the solved field, zero in all others.
///
/// The equation is the constraint's first residual that contains the field. Nodes outside its region keep their values,
/// and if it only fixes the field up to a constant, so does the field's mean.
pub struct NewtonDirection {
    /// The formula in the direction's own discretisation.
    constraint: SoftConstraint,
    equation: usize,
    slot: usize,
    channel: usize,
    channels: usize,
    /// Floors of the other fields, by slot.
    floors: Vec<(usize, f64)>,
    basis: Basis,
    /// Eigenvalue of the Laplacian for every coefficient, `[H, W]`.
    eigenvalues: Vec<f64>,
    /// 1 for coefficients that the step has, 0 for others, `[H, W]`.
    modes: Vec<f64>,
    /// Weight of every node in a mean, `[H, W]`, summing to 1.
    weights: Vec<f64>,
    /// The equation only fixes the field up to a constant.
    up_to_constant: bool,
    iterations: usize,
    stop_gradient: bool,
}

impl NewtonDirection {
    /// The direction with the learned parameters of `constraint`, of which its own is a variation.
    #[must_use]
    pub fn sharing_parameters_of(self, constraint: &SoftConstraint) -> Self {
        Self { constraint: self.constraint.sharing_parameters_of(constraint), ..self }
    }

    /// The direction that solves the equation of `constraint` for the field `solve_for`, on data whose channels are
    /// `channels` on `grid`, normalised by `units`.
    pub fn new(
        config: &NewtonConfig,
        solve_for: &str,
        constraint: &ConstraintConfig,
        channels: &[String],
        grid: &Grid,
        units: &Units,
    ) -> Result<Self> {
        let floors = config.floor.iter().flatten().map(|(name, &floor)| {
            if !(floor.is_finite() && floor > 0.0) {
                let problem = format!("expected a positive number for `{name}`, found {floor}");
                return Err(Error::input("denoiser.scd.newton.floor", problem));
            }
            Ok((slot_of(constraint, "newton.floor", name)?, floor))
        });
        let floors = floors.collect::<Result<Vec<_>>>()?;

        if config.iterations == 0 {
            return Err(Error::input("denoiser.scd.newton.iterations", "expected at least 1, found 0"));
        }
        let as_given = SoftConstraint::new(constraint, channels, grid, units)?;
        let (equation, slot, inner) = the_equation_of(solve_for, constraint, &as_given, grid, "newton")?;

        let mut own = constraint.clone();
        let given = constraint.stencils.get(solve_for).copied().unwrap_or(constraint.stencil);
        // In the interior one-sided stencils are plain central ones.
        let consistent = if given == Scheme::OneSided2 && !inner { Scheme::Mirror } else { given };
        let scheme = config.stencil.unwrap_or(consistent);
        own.stencils.insert(solve_for.to_string(), scheme);
        let own = SoftConstraint::new(&own, channels, grid, units)?;

        let family = match scheme {
            _ if inner => Family::InnerSine,
            Scheme::OneSided2 | Scheme::Mirror => Family::MirroredCosine,
            Scheme::Zero => Family::Sine,
            Scheme::Periodic | Scheme::Spectral => Family::Fourier,
        };
        let up_to_constant = !inner && own.ignores_constants(equation, slot);
        let [along_x, along_y] = [Axis::X, Axis::Y].map(|axis| eigenvalues(family, scheme, grid, axis));
        let pairs = || along_x.iter().flat_map(|&x| along_y.iter().map(move |&y| (x, y)));
        let eigenvalues = pairs().map(|(x, y)| x.unwrap_or(0.0) + y.unwrap_or(0.0)).collect();
        let mut modes: Vec<f64> = pairs().map(|(x, y)| if x.is_some() && y.is_some() { 1.0 } else { 0.0 }).collect();
        if up_to_constant {
            modes[0] = 0.0;
        }
        let weight = |node: usize| {
            family.node_weight(node / grid.cols, grid.rows) * family.node_weight(node % grid.cols, grid.cols)
        };
        let total: f64 = (0..grid.len()).map(weight).sum();
        Ok(Self {
            equation,
            slot,
            channel: own.fields[slot].channel,
            channels: channels.len(),
            constraint: own,
            floors,
            basis: Basis::new(vec![family], grid.rows, grid.cols),
            eigenvalues,
            modes,
            weights: (0..grid.len()).map(|node| weight(node) / total).collect(),
            up_to_constant,
            iterations: config.iterations,
            stop_gradient: config.stop_gradient,
        })
    }

    /// δ in normalised units, `[N, H, W]`, not limited.
    ///
    /// Generalised conjugate residuals on P⁻¹J δ = −P⁻¹R: among all steps of the Krylov space the one of least ‖P⁻¹(R + Jδ)‖,
    /// which is close to the least error (the least ‖R + Jδ‖ would neglect smooth errors, which a Laplacian hardly
    /// feels). It never diverges, whatever the estimate is like, and needs no symmetry.
    pub fn step(&self, base: &Tensor<4>) -> Tensor<3> {
        let linearised = self.constraint.linearised(self.equation, base, |fields| {
            for &(slot, floor) in &self.floors {
                if let TensorValue::Tensor(field) = &fields[slot] {
                    fields[slot] = TensorValue::Tensor(smoothly_above(field.clone(), floor));
                }
            }
        });
        let preconditioner = Preconditioner::new(self, &linearised, base);
        let mut residual = preconditioner.apply(linearised.residual().neg());
        let mut step = residual.zeros_like();
        // Search directions, their images, and the inverse squared length of each image.
        let mut past: Vec<(Tensor<3>, Tensor<3>, Tensor<3>)> = Vec::with_capacity(self.iterations);
        for _ in 0..self.iterations {
            let mut search = residual.clone();
            let mut image = preconditioner.apply(linearised.product_of(self.slot, search.clone()));
            for (old, old_image, inverse) in &past {
                let overlap = dot(&image, old_image) * inverse.clone();
                search = search - old.clone() * overlap.clone();
                image = image - old_image.clone() * overlap;
            }
            // A search that J hardly feels gets no length, and neither does one that is zero for all that matters in normalised
            // units; the square of the largest inverse, which its slope needs, still is a number in f32.
            let square = dot(&image, &image) + dot(&search, &search) * 1e-8;
            let inverse = square.clamp_min(1e-18).recip();
            let length = dot(&residual, &image) * inverse.clone();
            step = step + search.clone() * length.clone();
            residual = residual - image.clone() * length;
            past.push((search, image, inverse));
        }
        if self.up_to_constant { step.clone() - sum(step * preconditioner.weights) } else { step }
    }

    /// A step of the solved field `[N, 1, H, W]` with zeros in all other channels, `[N, C, H, W]`.
    fn in_its_channel(&self, step: Tensor<4>) -> Tensor<4> {
        let [n, _, h, w] = step.dims();
        let zeros = |count| Tensor::zeros([n, count, h, w], (&step.device().without_autodiff(), step.dtype()));
        let after = self.channels - self.channel - 1;
        let mut parts = Vec::with_capacity(3);
        if self.channel > 0 {
            parts.push(zeros(self.channel));
        }
        parts.push(step.clone());
        if after > 0 {
            parts.push(zeros(after));
        }
        Tensor::cat(parts, 1)
    }
}

impl Direction for NewtonDirection {
    fn at(&self, base: &Tensor<4>, _sigma: &[f64], at: &[Precondition]) -> Tensor<4> {
        let base = if self.stop_gradient { base.clone().detach() } else { base.clone() };
        let [n, _, h, w] = base.dims();
        let step = self.step(&base).reshape([n, 1, h, w]);
        let mean_square = (step.clone() * step.clone()).reshape([n, h * w]).mean_dim(1).reshape([n, 1, 1, 1]);
        self.in_its_channel(limited(step, mean_square, at))
    }

    fn project(&self, estimate: &Tensor<4>) -> Option<Tensor<4>> {
        let [n, _, h, w] = estimate.dims();
        let step = |x: Tensor<4>| x.clone() + self.in_its_channel(self.step(&x).reshape([n, 1, h, w]));
        Some((0..PROJECTION).fold(estimate.clone(), |x, _| step(x)))
    }
}

/// P = √c (∇² + κ) √c, the nearest thing to J that is inverted by a transform: c is the coefficient of the Laplacian at every node
/// and κ the mean ratio of the zeroth-order coefficient to it.
///
/// For ∇·(K∇p), c = K: √K ∇²(√K p) differs from it by p √K ∇²√K only. For ∇²u + k²u it is J itself.
struct Preconditioner {
    transform: Transform,
    /// ± 1/√|c|, the sign being that of the mean c, and 1/√|c|; `[N, H, W]` each.
    roots: [Tensor<3>; 2],
    /// 1/(λ + κ) by coefficient, 0 for those that are left out, `[N or 1, 1, H, W]`.
    inverse: Tensor<4>,
    /// Weights of the nodes in a mean, `[1, H, W]`.
    weights: Tensor<3>,
    /// If the equation fixes the field up to a constant only, it also has a solution only if the source is balanced:
    /// what is subtracted from every residual of unit weighted mean.
    balance: Option<Tensor<3>>,
}

impl Preconditioner {
    fn new(direction: &NewtonDirection, linearised: &Linearised<'_>, like: &Tensor<4>) -> Self {
        let grid = direction.constraint.grid();
        let (h, w) = (grid.rows, grid.cols);
        let constant = |values: Vec<f64>| constant(values, grid, like);
        let Principal { size, sign, zeroth } = Principal::of(linearised, direction.slot, grid, like);
        let root = size.clone().sqrt().recip();
        let eigenvalues = constant(direction.eigenvalues.clone()).reshape([1, 1, h, w]);
        let modes = constant(direction.modes.clone()).reshape([1, 1, h, w]);
        let shifted = if direction.up_to_constant {
            eigenvalues
        } else {
            let inside = (0..grid.len()).map(|node| {
                let (i, j) = (node / w, node % w);
                if i > 0 && j > 0 && i + 1 < h && j + 1 < w { 1.0 / ((h - 2) * (w - 2)) as f64 } else { 0.0 }
            });
            let ratio = zeroth / size * sign.clone();
            let mean = sum(ratio * constant(inside.collect()));
            let n = mean.dims()[0];
            eigenvalues + mean.reshape([n, 1, 1, 1])
        };
        // 1/x that stays finite at a resonance: the guard is far below the slowest wave's eigenvalue.
        let [x, y] = [grid.x, grid.y].map(|[first, last]| (std::f64::consts::PI / (last - first)).powi(2));
        let guard = (1e-4 * x.min(y)).powi(2);
        let inverse = modes * shifted.clone() / (shifted.clone() * shifted + guard);
        let weights = constant(direction.weights.clone());
        let balance = direction.up_to_constant.then(|| {
            let shape = root.clone() * weights.clone();
            shape.clone() / sum(shape * weights.clone())
        });
        Self {
            transform: direction.basis.transform(like),
            roots: [root.clone() * sign, root],
            inverse,
            weights,
            balance,
        }
    }

    /// P⁻¹ residual, `[N, H, W]` both.
    fn apply(&self, residual: Tensor<3>) -> Tensor<3> {
        let [n, h, w] = residual.dims();
        let [before, after] = &self.roots;
        let mut scaled = residual * before.clone();
        if let Some(balance) = &self.balance {
            let mean = sum(scaled.clone() * self.weights.clone());
            scaled = scaled - balance.clone() * mean;
        }
        let coefficients = self.transform.coefficients(scaled.reshape([n, 1, h, w])) * self.inverse.clone();
        self.transform.fields(coefficients).reshape([n, h, w]) * after.clone()
    }
}

/// The first residual of `compiled`, from `constraint`, that contains the field `solve_for`, the field's slot, and whether the
/// residual holds in the interior only; `direction` is who asks.
pub(crate) fn the_equation_of(
    solve_for: &str,
    constraint: &ConstraintConfig,
    compiled: &SoftConstraint,
    grid: &Grid,
    direction: &str,
) -> Result<(usize, usize, bool)> {
    let slot = slot_of(constraint, "solve_for", solve_for)?;
    let equation = compiled.parts.iter().position(|part| part.program.uses(slot)).ok_or_else(|| {
        let problem = format!("no residual contains `{solve_for}`");
        Error::input("denoiser.scd.solve_for", problem)
    })?;
    let inner = match constraint.residuals()[equation].region {
        Region::All => false,
        Region::Interior => true,
        region => {
            let problem = format!(
                "the first residual with `{solve_for}` holds on {region:?} only, which does not determine a field"
            );
            let hint = "list the equation of the whole grid or its interior before boundary conditions";
            return Err(Error::input("denoiser.scd.solve_for", problem).hint(hint));
        }
    };
    if grid.rows < 4 || grid.cols < 4 {
        let problem =
            format!("`{direction}` needs 4 nodes along each axis, the grid has {} × {}", grid.rows, grid.cols);
        return Err(Error::input("denoiser.scd.directions", problem).hint(format!("leave `{direction}` out")));
    }
    Ok((equation, slot, inner))
}

/// The place of the field `name` in `constraint`; `key` of the soft constraint named it.
fn slot_of(constraint: &ConstraintConfig, key: &str, name: &str) -> Result<usize> {
    constraint.fields.iter().position(|f| f == name).ok_or_else(|| {
        let problem = format!("`{name}` is no field of the constraint; it has {}", constraint.fields.join(", "));
        let hint = nearest(name, constraint.fields.iter().map(String::as_str));
        let hint = hint.map_or_else(|| "name one of them".to_string(), |near| format!("did you mean `{near}`?"));
        Error::input(format!("denoiser.scd.{key}"), problem).hint(hint)
    })
}

/// What J = ∂R/∂u is locally, for one field u: c ∇²u + b u and first derivatives.
pub(crate) struct Principal {
    /// |c|, kept away from zero, `[N, H, W]`.
    pub size: Tensor<3>,
    /// Sign of the mean c, `[N, 1, 1]`.
    pub sign: Tensor<3>,
    /// b, `[N, H, W]`.
    pub zeroth: Tensor<3>,
}

impl Principal {
    /// The local coefficients of field `slot`.
    pub fn of(linearised: &Linearised<'_>, slot: usize, grid: &Grid, like: &Tensor<4>) -> Self {
        let waves = Waves::new(grid, like);
        // With cos and sin of θ(i + j), θ = π/2, at every node cos·J cos + sin·J sin is the real part of J's symbol. First
        // derivatives are odd and drop out; second differences leave −2/h² each, at mirrored and zero ends, too.
        let [cosine, sine] = waves.pair.clone().map(|wave| linearised.product_of(slot, wave.clone()) * wave);
        // J on constants: the zeroth-order coefficient (outermost nodes of a grid with zero ends see the ends, too).
        let zeroth = linearised.product_of(slot, waves.constant);
        let c = (cosine + sine - zeroth.clone()) / waves.laplacian;
        let sign = sum(c.clone()).detach().sign();
        let mean_square = sum(c.clone() * c.clone()) / grid.len() as f64;
        let size = (c.clone() * c + mean_square * 1e-4).clamp_min(1e-24).sqrt();
        Self { size, sign, zeroth }
    }
}

/// Fields that show what an operator does locally, `[1, H, W]` each.
pub(crate) struct Waves {
    /// Cosine and sine of waves of four nodes along both axes.
    pub pair: [Tensor<3>; 2],
    /// Ones.
    pub constant: Tensor<3>,
    /// What the Laplacian multiplies the waves with.
    pub laplacian: f64,
}

impl Waves {
    pub fn new(grid: &Grid, like: &Tensor<4>) -> Self {
        let wave = |phase: usize| {
            let value = |node: usize| [1.0, 0.0, -1.0, 0.0][(node / grid.cols + node % grid.cols + phase) % 4];
            constant((0..grid.len()).map(value).collect(), grid, like)
        };
        let laplacian = -2.0 * (grid.spacing(Axis::X).powi(-2) + grid.spacing(Axis::Y).powi(-2));
        Self { pair: [wave(0), wave(1)], constant: constant(vec![1.0; grid.len()], grid, like), laplacian }
    }
}

/// One number per node as a tensor `[1, H, W]` of the type and device of `like`.
pub(crate) fn constant(values: Vec<f64>, grid: &Grid, like: &Tensor<4>) -> Tensor<3> {
    let options = (&like.device().without_autodiff(), like.dtype());
    Tensor::from_data(TensorData::new(values, [1, grid.rows, grid.cols]), options)
}

impl SoftConstraint {
    /// Whether residual `part` stays the same as a constant is added to field `slot`.
    fn ignores_constants(&self, part: usize, slot: usize) -> bool {
        let algebra = F64Algebra::new(self.grid.clone());
        let program = &self.parts[part].program;
        let count = self.fields.len() + program.runtime_parameters().len();
        // Any fields do, as long as they are positive and rough.
        let value = |i: usize, node: usize| 1.0 + 0.3 * ((i + 1) as f64 * 1.7 + node as f64 * 2.3).sin();
        let field = |i: usize| Value::from((0..self.grid.len()).map(|node| value(i, node)).collect::<Vec<_>>());
        let tape = program.forward(&algebra, &(0..count).map(field).collect::<Vec<_>>());
        let largest_change = |direction: Value| {
            let mut directions = vec![None; self.fields.len()];
            directions[slot] = Some(direction);
            let change = program.tangent(&algebra, &tape, &directions);
            change.map_or(0.0, |change| change.numbers().iter().fold(0.0, |max: f64, v| max.max(v.abs())))
        };
        largest_change(Value::Number(1.0)) <= 1e-9 * largest_change(field(count))
    }
}

/// A step `[N, C, H, W]` of the given mean square `[N, 1, 1, 1]`, limited to an RMS of 3 c_out.
///
/// step · (1 + (rms/limit)⁴)^(−1/4): smooth, within 1 % of the step up to a third of the limit's RMS and of the limit from three times
/// it on.
pub(crate) fn limited(step: Tensor<4>, mean_square: Tensor<4>, at: &[Precondition]) -> Tensor<4> {
    let ratio = mean_square * per_sample(at.iter().map(|a| (TRUST * a.out).powi(-2)), &step);
    // The bound keeps the fourth power finite in f32.
    let ratio = ratio.clamp_max(1e18);
    step * (ratio.clone() * ratio + 1.0).sqrt().sqrt().recip()
}

/// The eigenvalue of the second derivative along `axis` for each function of `family`; `None` for those that stand for
/// nodes that keep their values.
pub(crate) fn eigenvalues(family: Family, scheme: Scheme, grid: &Grid, axis: Axis) -> Vec<Option<f64>> {
    let n = grid.nodes(axis);
    let (analysis, synthesis) = (family.analysis(n), family.synthesis(n));
    let matrix = Matrix::on_grid(scheme, Order::Second, grid, axis);
    let eigenvalue = |k: usize| {
        let image = |row: &Vec<(usize, f64)>| row.iter().map(|&(j, v)| v * synthesis[j * n + k]).sum::<f64>();
        matrix.rows.iter().zip(&analysis[k * n..]).map(|(row, a)| a * image(row)).sum::<f64>()
    };
    let solved = if family == Family::InnerSine { n - 2 } else { n };
    (0..n).map(|k| (k < solved).then(|| eigenvalue(k))).collect()
}

/// floor + τ ln(1 + e^{(x − floor)/τ}) with τ = floor/4: at least the floor, and x itself from twice the floor on (to 1 %).
fn smoothly_above(x: Tensor<3>, floor: f64) -> Tensor<3> {
    let softness = 0.25 * floor;
    let above = x - floor;
    // The exponent is never positive, so nothing overflows.
    activation::relu(above.clone()) + (above.abs() / -softness).exp().log1p() * softness + floor
}

/// Σ over nodes, `[N, H, W]` → `[N, 1, 1]`.
pub(crate) fn sum(x: Tensor<3>) -> Tensor<3> {
    let [n, h, w] = x.dims();
    x.reshape([n, h * w]).sum_dim(1).reshape([n, 1, 1])
}

/// Σ a b over nodes, `[N, 1, 1]`.
pub(crate) fn dot(a: &Tensor<3>, b: &Tensor<3>) -> Tensor<3> {
    sum(a.clone() * b.clone())
}
