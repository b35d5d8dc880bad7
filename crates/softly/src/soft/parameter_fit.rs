//! Learned parameters θ of a constraint: the values under which the data's own residuals are most likely.
//!
//! ```text
//! θ* = argmin min_V Σ_i −log N(R(x_i; θ); 0, V) + ½ ‖z‖²,   V = d Fᵀ S F d
//! ```
//!
//! over clean samples x_i. V is the covariance of what the equation leaves over, a standard deviation d at every node and a
//! spectrum S of the residual divided by it, for every equation by itself; for given θ the best d and S are the mean squares. z are
//! the waves of learned fields, which have a Gaussian prior.
//!
//! Steps alternate: d and S for the present θ, then a Gauss–Newton step of the least squares that they weight. A parameter that
//! enters linearly is found from any start, whatever V is, because the residual is regressed on ∂R/∂θ; V decides how much every
//! node and wave counts, so that waves on which the equation fails say little.
//!
//! Nothing is learned through the denoiser as long as data are clean: they know more about their equation than any estimate of them.
//! Data with noise are [`denoised`] first.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use rayon::prelude::*;
use softly_pde::algebra::Value;
use softly_pde::normal_equations::NormalEquations;

use crate::constraint::SoftConstraint;
use crate::constraint::basis::{Basis, Transform};
use crate::constraint::linearised::stacked;
use crate::denoiser::Denoiser;
use crate::error::{Error, Result};
use crate::statistics::NodeMoments;
use crate::tensors::{field_batch, to_vec_f64};

/// Most Gauss–Newton steps.
const STEPS: usize = 30;
/// Steps that are shorter, relative to the parameter's size, end the search.
const TOLERANCE: f64 = 1e-6;
/// The step of differences, relative to the parameter's size.
const DIFFERENCE: f64 = 0.01;
/// The least variance at a node, relative to the mean over nodes, and the least energy of a wave: a residual may vanish somewhere.
const LEAST: f64 = 1e-6;

/// Samples to fit parameters to.
pub struct ParameterFit<'a> {
    constraint: &'a SoftConstraint,
    /// x, `[N, C, H, W]` in batches of normalised fields.
    clean: &'a [Tensor<4>],
    /// Of the residuals, `[E, H, W]`.
    basis: Basis,
    /// 1 where an equation counts, else 0, `[E, H, W]`.
    inside: Vec<f64>,
    /// Every number of θ: its parameter's name, and whether it is the wave of a field.
    entries: Vec<(String, bool)>,
}

/// V for some θ.
struct Weights {
    /// 1/d, zero where an equation does not count, `[E, H, W]`.
    inverse_deviation: Vec<f64>,
    /// 1/√S, `[E, H, W]`.
    inverse_root: Vec<f64>,
    /// Half the logarithm of V's determinant.
    half_log_determinant: f64,
}

/// Residuals near the present θ, `[N, E, H, W]` row after row.
struct Linear {
    /// R.
    target: Vec<f64>,
    /// −∂R/∂θ of every number of θ.
    columns: Vec<Vec<f64>>,
}

impl<'a> ParameterFit<'a> {
    /// The learned parameters of `constraint` and batches of clean fields `[N, C, H, W]` in normalised units.
    pub fn new(constraint: &'a SoftConstraint, clean: &'a [Tensor<4>]) -> Self {
        let grid = constraint.grid();
        let counts = (0..constraint.equations()).flat_map(|part| constraint.counts(part));
        let mut entries = Vec::new();
        constraint.visit("", &mut |name, parameter| {
            let values = parameter.values();
            let wave = !matches!(constraint.learned_value(name, &values), Some(Value::Number(_)));
            entries.extend(values.iter().map(|_| (name.to_string(), wave)));
        });
        Self {
            constraint,
            clean,
            basis: Basis::of_grid(constraint.equations(), grid),
            inside: counts.map(|counts| if counts { 1.0 } else { 0.0 }).collect(),
            entries,
        }
    }

    /// Moves the parameters to θ*; gives their way there, every number by name, from the start on. A parameter that the residual
    /// does not depend on, or that does the same as those before it, is refused by name.
    pub fn run(&self) -> Result<Vec<BTreeMap<String, f64>>> {
        let mut values = self.values();
        let mut objective = self.objective(&values)?;
        let present = || self.numbers().into_iter().flatten().map(|(name, value)| (name.to_string(), value)).collect();
        let mut way = vec![present()];
        for _ in 0..STEPS {
            let change = self.change(&values)?;
            let mut factor = 1.0;
            loop {
                let moved: Vec<f64> =
                    values.iter().zip(&change).map(|(value, change)| value + factor * change).collect();
                self.set(&moved);
                let found = self.objective(&moved);
                // The differences of a longer step may leave the formula's domain.
                if let Ok(found) = found
                    && found <= objective + 1e-9 * objective.abs()
                {
                    (values, objective) = (moved, found);
                    break;
                }
                factor *= 0.5;
                if factor < 1e-4 {
                    self.set(&values);
                    return Ok(way);
                }
            }
            way.push(present());
            let short = |(i, change): (usize, &f64)| (factor * change).abs() <= TOLERANCE * self.size(i, values[i]);
            if change.iter().enumerate().all(short) {
                break;
            }
        }
        Ok(way)
    }

    /// The normal equations of a Gauss–Newton step at the present θ, one for every sample: columns −∂R/∂θ, target R, both
    /// weighted by V. What is refused is what [`ParameterFit::run`] refuses.
    pub fn equations(&self) -> Result<Vec<NormalEquations>> {
        let values = self.values();
        let weights = self.weights()?;
        let per_batch: Vec<Vec<NormalEquations>> =
            self.clean.iter().map(|clean| self.of_batch(clean, &weights, &values)).collect();
        Ok(per_batch.concat())
    }

    /// Shape of a sample's residuals, `[E, H, W]`.
    pub fn shape(&self) -> [usize; 3] {
        self.basis.shape()
    }

    /// u = Σ_i −∂R_i/∂θ ∘ V⁻¹ R_i: how hard every node of every equation pulls at θ, `[E H W][θ]`. The sum over nodes is the right
    /// side of the normal equations of all samples.
    pub fn pulls(&self) -> Result<Vec<Vec<f64>>> {
        let (values, weights) = (self.values(), self.weights()?);
        let size = self.inside.len();
        let mut pulls = vec![vec![0.0; values.len()]; size];
        for clean in self.clean {
            let transform = self.transform(clean);
            let Linear { target, columns } = self.linear(clean, &values);
            // V⁻¹ R = d⁻¹ Fᵀ S⁻¹ F d⁻¹ R: waves of a grid's basis are orthonormal.
            let waves = scaled(&self.weighted(&transform, &weights, &target), &weights.inverse_root);
            let fields = transform.fields(field_batch(waves, self.basis.shape(), &transform.device()));
            let remainder = scaled(&to_vec_f64(fields), &weights.inverse_deviation);
            for (k, column) in columns.iter().enumerate() {
                for (i, (slope, remainder)) in column.iter().zip(&remainder).enumerate() {
                    pulls[i % size][k] += slope * remainder;
                }
            }
        }
        Ok(pulls)
    }

    /// What `work` finds with θ + `change` in place of θ, both rounded to single precision.
    pub fn moved<R>(&self, change: &[f64], work: impl FnOnce() -> R) -> R {
        let values = self.values();
        self.set(&values.iter().zip(change).map(|(value, change)| value + change).collect::<Vec<_>>());
        let found = work();
        self.set(&values);
        found
    }

    /// Name and present value of every number of θ; none for waves of fields.
    pub fn numbers(&self) -> Vec<Option<(&str, f64)>> {
        let numbers = self.entries.iter().zip(self.values());
        numbers.map(|((name, wave), value)| (!wave).then_some((name.as_str(), value))).collect()
    }

    /// A Gauss–Newton step of all samples and the prior.
    fn change(&self, values: &[f64]) -> Result<Vec<f64>> {
        let n = self.entries.len();
        let mut sum = NormalEquations::new(n);
        self.equations()?.iter().for_each(|sample| sum.add(sample));
        for (i, (value, (_, wave))) in values.iter().zip(&self.entries).enumerate() {
            if *wave {
                sum.gram[i * n + i] += 1.0;
                sum.right[i] -= value;
            }
        }
        let steps = sum.solve();
        match steps.iter().position(Option::is_none) {
            Some(useless) => {
                let name = &self.entries[useless].0;
                let problem = "expected a parameter that changes the residual of the data, found one that does not, or \
                               only as others do";
                Err(Error::input(format!("constraint.parameters.{name}"), problem)
                    .hint("use it in a formula, or give it a value instead of `learn`"))
            }
            None => Ok(steps.into_iter().flatten().collect()),
        }
    }

    /// The profile of the likelihood: N ½ log det V + ½ ‖z‖² for the best V of the present θ, which is `values`.
    fn objective(&self, values: &[f64]) -> Result<f64> {
        let samples: usize = self.clean.iter().map(|clean| clean.dims()[0]).sum();
        let prior = values.iter().zip(&self.entries).filter(|(_, (_, wave))| *wave).map(|(z, _)| 0.5 * z * z);
        Ok(samples as f64 * self.weights()?.half_log_determinant + prior.sum::<f64>())
    }

    /// The best V for the present θ.
    fn weights(&self) -> Result<Weights> {
        let residuals: Vec<Vec<f64>> = self.clean.iter().map(|clean| to_vec_f64(self.residuals(clean))).collect();
        let size = self.inside.len();
        if let Some(bad) = residuals.concat().iter().position(|value| !value.is_finite()) {
            let why = format!("the residual of training sample {} is not finite", bad / size);
            return Err(Error::Failed { what: "fitting the constraint's parameters".into(), why });
        }
        let mut moments = NodeMoments::new(size);
        for batch in &residuals {
            moments.add(batch);
        }
        let squares: Vec<f64> = moments.mean_squares().collect();
        let nodes = self.constraint.grid().len();
        let mut deviation = Vec::with_capacity(size);
        for (squares, inside) in squares.chunks_exact(nodes).zip(self.inside.chunks_exact(nodes)) {
            let mean = squares.iter().sum::<f64>() / inside.iter().sum::<f64>();
            deviation.extend(squares.iter().map(|square| (square + LEAST * mean + f64::MIN_POSITIVE).sqrt()));
        }
        let inverse_deviation: Vec<f64> = self.inside.iter().zip(&deviation).map(|(inside, d)| inside / d).collect();
        let mut spectrum = NodeMoments::new(size);
        for (batch, clean) in residuals.iter().zip(self.clean) {
            let standardised = scaled(batch, &inverse_deviation);
            let fields = field_batch(standardised, self.basis.shape(), &clean.device());
            spectrum.add(&to_vec_f64(self.transform(clean).coefficients(fields)));
        }
        let spectrum: Vec<f64> = spectrum.mean_squares().map(|square| square + LEAST).collect();
        let counted = |(d, inside): (&f64, &f64)| if *inside > 0.0 { d.ln() } else { 0.0 };
        let of_nodes: f64 = deviation.iter().zip(&self.inside).map(counted).sum();
        Ok(Weights {
            half_log_determinant: of_nodes + spectrum.iter().map(|s| 0.5 * s.ln()).sum::<f64>(),
            inverse_deviation,
            inverse_root: spectrum.iter().map(|s| s.sqrt().recip()).collect(),
        })
    }

    /// The normal equations of every sample of a batch; `values` is the present θ.
    fn of_batch(&self, clean: &Tensor<4>, weights: &Weights, values: &[f64]) -> Vec<NormalEquations> {
        let transform = self.transform(clean);
        let Linear { target, columns } = self.linear(clean, values);
        let target = self.weighted(&transform, weights, &target);
        let columns: Vec<Vec<f64>> = columns.iter().map(|c| self.weighted(&transform, weights, c)).collect();
        let size = self.inside.len();
        let of_sample = |sample: usize| {
            let range = sample * size..(sample + 1) * size;
            let columns: Vec<&[f64]> = columns.iter().map(|column| &column[range.clone()]).collect();
            let mut equations = NormalEquations::new(columns.len());
            equations.add_products(&columns, &target[range], 1.0);
            equations
        };
        (0..clean.dims()[0]).into_par_iter().map(of_sample).collect()
    }

    /// S^(−½) F d⁻¹ r, row after row; its square is rᵀ V⁻¹ r.
    fn weighted(&self, transform: &Transform, weights: &Weights, residuals: &[f64]) -> Vec<f64> {
        let fields = scaled(residuals, &weights.inverse_deviation);
        let fields = field_batch(fields, self.basis.shape(), &transform.device());
        scaled(&to_vec_f64(transform.coefficients(fields)), &weights.inverse_root)
    }

    /// R and −∂R/∂θ of a batch by differences; `values` is the present θ.
    fn linear(&self, clean: &Tensor<4>, values: &[f64]) -> Linear {
        let at = |values: &[f64]| {
            self.set(values);
            to_vec_f64(self.residuals(clean))
        };
        let mut columns = Vec::with_capacity(values.len());
        for (i, &value) in values.iter().enumerate() {
            // Parameters are kept in single precision: the ends are what they are rounded to.
            let step = DIFFERENCE * self.size(i, value);
            let ends = [value - step, value + step].map(|end| f64::from(end as f32));
            let [below, above] = ends.map(|end| {
                let mut moved = values.to_vec();
                moved[i] = end;
                at(&moved)
            });
            columns.push(below.iter().zip(above).map(|(b, a)| (b - a) / (ends[1] - ends[0])).collect());
        }
        Linear { target: at(values), columns }
    }

    /// How large number `index` of θ is, if it is `value`: a wave is of size 1.
    fn size(&self, index: usize, value: f64) -> f64 {
        let (_, wave) = self.entries[index];
        if wave || value == 0.0 { 1.0 } else { value.abs() }
    }

    fn transform(&self, like: &Tensor<4>) -> Transform {
        self.basis.transform(like)
    }

    /// R of a batch at the present θ, `[N, E, H, W]`.
    fn residuals(&self, clean: &Tensor<4>) -> Tensor<4> {
        stacked(self.constraint.residuals(clean).into_iter())
    }

    /// The present θ, number by number.
    fn values(&self) -> Vec<f64> {
        let mut all = Vec::with_capacity(self.entries.len());
        self.constraint.visit("", &mut |_, parameter| all.extend(parameter.values().into_iter().map(f64::from)));
        all
    }

    fn set(&self, values: &[f64]) {
        let mut rest = values.iter().map(|&value| value as f32);
        self.constraint.visit("", &mut |_, parameter| {
            let count = parameter.values().len();
            parameter.set(rest.by_ref().take(count).collect());
        });
    }
}

/// E[x0 | y] of fields y `[N, C, H, W]` with noise of standard deviation `noise`, to be fitted to in place of y: an equation that
/// is linear in x0 holds for its expectation, whatever the noise, but derivatives of y are mostly noise.
pub fn denoised(denoiser: &dyn Denoiser, y: Tensor<4>, noise: f64) -> Tensor<4> {
    let levels = vec![noise; y.dims()[0]];
    let kind = y.dtype();
    denoiser.denoise(y, &levels).without_autodiff().cast(kind)
}

/// Samples, row after row, times `factors` of a sample.
fn scaled(samples: &[f64], factors: &[f64]) -> Vec<f64> {
    samples.chunks_exact(factors.len()).flat_map(|sample| sample.iter().zip(factors).map(|(x, f)| x * f)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::f64::consts::PI;

    use burn::tensor::Device;
    use softly_pde::derivative::Scheme;
    use softly_pde::grid::{Axis, Grid};
    use softly_pde::stencil::Stencil;

    use super::*;
    use crate::constraint::config::{ConstraintConfig, ParameterConfig, Residuals};
    use crate::constraint::norm::Norm;
    use crate::random::{Purpose, Stream};
    use crate::units::Units;

    const NODES: [usize; 2] = [9, 8];

    fn grid() -> Grid {
        Grid { axes: vec![Axis::new("x", NODES[0], 0.0, 1.0), Axis::new("y", NODES[1], 0.0, 1.0)] }
    }

    /// The residual `formula` of the fields p and q with learned `parameters`.
    fn constraint(formula: &str, parameters: &[(&str, ParameterConfig)]) -> SoftConstraint {
        let names = ["p".to_string(), "q".to_string()];
        let config = ConstraintConfig {
            fields: names.to_vec(),
            residual: Residuals::One(formula.into()),
            stencil: Stencil::All(Scheme::OneSided2),
            stencils: BTreeMap::new(),
            norm: Norm::L2,
            parameters: parameters.iter().map(|(name, p)| (name.to_string(), p.clone())).collect(),
        };
        SoftConstraint::new(&config, &names, &grid(), &Units::identity(2)).unwrap()
    }

    /// Samples with p of independent normal nodes and q = `law`(p, noise, node): `[N, 2, H, W]`.
    fn samples(count: usize, seed: u64, law: impl Fn(f64, f64, [f64; 2]) -> f64) -> Vec<Tensor<4>> {
        let [h, w] = NODES;
        let place = |node: usize| [(node / w) as f64 / (h - 1) as f64, (node % w) as f64 / (w - 1) as f64];
        let sample = |i: usize| {
            let mut stream = Stream::new(seed, Purpose::Metric, i as u64);
            let p = stream.normals(h * w);
            let q: Vec<f64> = p.iter().enumerate().map(|(node, &p)| law(p, stream.normal(), place(node))).collect();
            [p, q].concat()
        };
        let values = (0..count).flat_map(sample).collect();
        vec![field_batch(values, [2, h, w], &Device::flex())]
    }

    fn learn(start: f64) -> ParameterConfig {
        ParameterConfig::Learn { learn: start }
    }

    fn fitted(constraint: &SoftConstraint, clean: &[Tensor<4>]) -> Vec<f64> {
        let fit = ParameterFit::new(constraint, clean);
        fit.run().unwrap();
        fit.values()
    }

    #[test]
    fn numbers_are_found_from_any_start_even_far_away() {
        let clean = samples(20, 1, |p, _, _| 3.0 * p * p - 0.2 * p.sin());
        for start in [0.001, 0.1, 2.0, 50.0, -7.0] {
            // b² enters nonlinearly; its sign is that of the start.
            let constraint = constraint("q - b^2*p^2 + c*sin(p)", &[("b", learn(start)), ("c", learn(-start))]);
            let [b, c] = fitted(&constraint, &clean)[..] else { panic!("two numbers") };
            assert!((b - start.signum() * 3f64.sqrt()).abs() < 1e-5 && (c - 0.2).abs() < 1e-5, "{b}, {c} from {start}");
        }
    }

    #[test]
    fn nodes_and_waves_on_which_the_equation_fails_say_little() {
        // Noise a hundred times as large for x > 1/2: ordinary least squares would be off by its scatter.
        let noise = |x: f64| if x > 0.5 { 1.0 } else { 0.01 };
        let law = |p: f64, e: f64, [x, _]: [f64; 2]| 2.0 * p + noise(x) * e;
        let (mut weighted, mut plain) = (0.0, 0.0);
        for seed in 0..10 {
            let clean = samples(20, seed, law);
            weighted += (fitted(&constraint("q - a*p", &[("a", learn(1.0))]), &clean)[0] - 2.0).powi(2) / 10.0;
            let values = to_vec_f64(clean[0].clone());
            let half = NODES[0] * NODES[1];
            let products = |a: usize, b: usize| {
                let of = |s: &[f64]| (0..half).map(|i| s[a * half + i] * s[b * half + i]).sum::<f64>();
                values.chunks_exact(2 * half).map(of).sum::<f64>()
            };
            plain += (products(0, 1) / products(0, 0) - 2.0).powi(2) / 10.0;
        }
        // Five of nine rows are quiet: the best estimate scatters by 0.01/√(20·5·8).
        let best = 0.01 / 800f64.sqrt();
        assert!(weighted.sqrt() < 2.0 * best && plain.sqrt() > 20.0 * best, "{weighted:e}, {plain:e}, {best:e}");
    }

    #[test]
    fn a_learned_field_is_found_and_keeps_to_its_prior_where_data_are_silent() {
        let truth = |[x, y]: [f64; 2]| 1.0 + 0.5 * (PI * x).cos() + 0.3 * (PI * y).cos();
        let clean = samples(40, 3, |p, e, place| truth(place) * p + 0.05 * e);
        let field = ParameterConfig::LearnField { learn: 1.0, length: 0.4, size: 0.5 };
        let learned = |formula: &str| {
            let constraint = constraint(formula, &[("s", field.clone())]);
            let z: Vec<f32> = fitted(&constraint, &clean).iter().map(|&z| z as f32).collect();
            (constraint.learned_value("s", &z).unwrap().broadcast(72).to_vec(), z)
        };
        let (found, _) = learned("q - s*p");
        let [h, w] = NODES;
        let expected = |node: usize| truth([(node / w) as f64 / (h - 1) as f64, (node % w) as f64 / (w - 1) as f64]);
        let worst = found.iter().enumerate().map(|(i, v)| (v - expected(i)).abs()).fold(0.0, f64::max);
        assert!(worst < 0.05, "{worst}");
        let (_, silent) = learned("q - p + 0*s");
        assert!(silent.iter().all(|z| *z == 0.0), "{silent:?}");
    }

    #[test]
    fn numbers_that_change_nothing_are_refused_by_name() {
        let clean = samples(4, 1, |p, _, _| p);
        for (formula, name) in [("q - p + 0*a + b*p", "a"), ("q - p*(a + b)", "b")] {
            let constraint = constraint(formula, &[("a", learn(1.0)), ("b", learn(0.5))]);
            let error = ParameterFit::new(&constraint, &clean).run().unwrap_err();
            assert!(error.to_string().starts_with(&format!("constraint.parameters.{name}: ")), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
