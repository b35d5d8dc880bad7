//! Residuals linearised at given fields: products with the Jacobian and with its transpose in tensor operations,
//! differentiable like any other; of one residual, and of several at once.

use burn::tensor::{DType, Tensor};
use softly_pde::program::Tape;

use crate::constraint::tensor_algebra::{TensorAlgebra, TensorValue};
use crate::constraint::{Field, Part, SoftConstraint, full};
use crate::profile;
use crate::tensors::in_type;

/// One residual R of a constraint at given fields, and J = ∂R/∂x in normalised units.
pub(crate) struct Linearised<'a> {
    constraint: &'a SoftConstraint,
    algebra: TensorAlgebra<'a>,
    part: &'a Part,
    tape: Tape<TensorValue>,
    like: Tensor<4>,
}

impl SoftConstraint {
    /// Linearises residual `part` at normalised fields `x` `[N, C, H, W]`, the physical fields `[N, H, W]` having passed
    /// through `prepare`.
    pub(crate) fn linearised(
        &self,
        part: usize,
        x: &Tensor<4>,
        prepare: impl FnOnce(&mut [TensorValue]),
    ) -> Linearised<'_> {
        let mut inputs = self.inputs(x);
        prepare(&mut inputs);
        self.linearised_at(part, x, &inputs)
    }

    /// Linearises the residuals `parts` at normalised fields `x` `[N, C, H, W]`, the physical fields `[N, H, W]` having passed
    /// through `prepare`.
    pub(crate) fn linearised_system(
        &self,
        parts: impl Iterator<Item = usize>,
        x: &Tensor<4>,
        prepare: impl FnOnce(&mut [TensorValue]),
    ) -> LinearisedSystem<'_> {
        let mut inputs = self.inputs(x);
        prepare(&mut inputs);
        LinearisedSystem { equations: parts.map(|part| self.linearised_at(part, x, &inputs)).collect() }
    }

    fn linearised_at(&self, part: usize, x: &Tensor<4>, inputs: &[TensorValue]) -> Linearised<'_> {
        let algebra = TensorAlgebra::new(&self.grid, &self.constants, x);
        let part = &self.parts[part];
        let tape = profile::part(profile::Part::Constraint, || part.program.forward(&algebra, inputs));
        Linearised { constraint: self, algebra, part, tape, like: x.clone() }
    }
}

impl Linearised<'_> {
    /// The same in numbers of the type `working`. R, a small difference of large numbers, has been evaluated in the type of the
    /// fields and is rounded afterwards.
    #[must_use]
    pub fn working_in(self, working: DType) -> Self {
        let Self { constraint, part, tape, like, .. } = self;
        let like = in_type(&like, working);
        let algebra = TensorAlgebra::new(&constraint.grid, &constraint.constants, &like);
        Self { constraint, algebra, part, tape: tape.map(|value| value.cast(working)), like }
    }

    /// The fields `[N, C, H, W]` where R is linearised.
    pub fn fields(&self) -> &Tensor<4> {
        &self.like
    }

    /// R `[N, H, W]`, zero outside its region.
    pub fn residual(&self) -> Tensor<3> {
        self.part.weighted(&self.algebra, self.tape.output(), &self.like)
    }

    /// J·`direction` `[N, H, W]` where only field `slot` moves, zero outside the residual's region; a direction `[1, H, W]`
    /// is one for all samples.
    pub fn product_of(&self, slot: usize, direction: Tensor<3>) -> Tensor<3> {
        let mut directions = vec![None; self.constraint.fields.len()];
        directions[slot] = Some(TensorValue::Tensor(direction * self.constraint.fields[slot].scale));
        self.tangent(&directions, &self.like)
    }

    /// J·`direction` `[N, C, H, W]` → `[N, H, W]`, zero outside the residual's region; fields of one sample serve any number of
    /// directions.
    pub fn product(&self, direction: &Tensor<4>) -> Tensor<3> {
        let [n, _, h, w] = direction.dims();
        let of_field = |(slot, field): (usize, &Field)| {
            let moved = direction.clone().narrow(1, field.channel, 1).reshape([n, h, w]) * field.scale;
            self.part.program.uses(slot).then(|| TensorValue::Tensor(moved))
        };
        self.tangent(&self.constraint.fields.iter().enumerate().map(of_field).collect::<Vec<_>>(), direction)
    }

    /// Jᵀ·`weights` `[N, H, W]` → `[N, C, H, W]`; weights outside the residual's region do not count. Fields of one sample serve any
    /// number of weights.
    pub fn transposed(&self, weights: Tensor<3>) -> Tensor<4> {
        profile::part(profile::Part::Constraint, || {
            let [_, c, h, w] = self.like.dims();
            let like = self.like.clone().expand([weights.dims()[0], c, h, w]);
            let seed = self.part.weighted(&self.algebra, &TensorValue::Tensor(weights), &like);
            let adjoints = self.part.program.reverse(&self.algebra, &self.tape, TensorValue::Tensor(seed));
            self.constraint.gather(&self.algebra, adjoints, &like)
        })
    }

    /// The change along `directions`, one for each sample of `like` `[N, C, H, W]`.
    fn tangent(&self, directions: &[Option<TensorValue>], like: &Tensor<4>) -> Tensor<3> {
        profile::part(profile::Part::Constraint, || {
            let change = self.part.program.tangent(&self.algebra, &self.tape, directions);
            let change = change.unwrap_or(TensorValue::Number(0.0));
            full(self.part.weighted(&self.algebra, &change, like), like)
        })
    }
}

/// E residuals R of a constraint at given fields as one, and J = ∂R/∂x in normalised units.
pub(crate) struct LinearisedSystem<'a> {
    /// The residuals by themselves, at least one.
    pub equations: Vec<Linearised<'a>>,
}

impl LinearisedSystem<'_> {
    /// See [`Linearised::working_in`].
    #[must_use]
    pub fn working_in(self, working: DType) -> Self {
        Self { equations: self.equations.into_iter().map(|equation| equation.working_in(working)).collect() }
    }

    /// The fields `[N, C, H, W]` where the residuals are linearised.
    pub fn fields(&self) -> &Tensor<4> {
        self.equations[0].fields()
    }

    /// R `[N, E, H, W]`, each equation zero outside its region.
    pub fn residual(&self) -> Tensor<4> {
        stacked(self.equations.iter().map(Linearised::residual))
    }

    /// J·`direction` `[N, C, H, W]` → `[N, E, H, W]`, each equation zero outside its region.
    pub fn product(&self, direction: &Tensor<4>) -> Tensor<4> {
        stacked(self.equations.iter().map(|equation| equation.product(direction)))
    }

    /// Jᵀ·`weights` `[N, E, H, W]` → `[N, C, H, W]`; weights outside an equation's region do not count.
    pub fn transposed(&self, weights: &Tensor<4>) -> Tensor<4> {
        let [n, _, h, w] = weights.dims();
        let of = |(e, equation): (usize, &Linearised<'_>)| {
            equation.transposed(weights.clone().narrow(1, e, 1).reshape([n, h, w]))
        };
        let sum = self.equations.iter().enumerate().map(of).reduce(|a, b| a + b);
        sum.expect("a system has at least one equation")
    }
}

/// Tensors `[N, H, W]` as one `[N, E, H, W]`.
pub(crate) fn stacked(equations: impl Iterator<Item = Tensor<3>>) -> Tensor<4> {
    let rows = equations.map(|x| {
        let [n, h, w] = x.dims();
        x.reshape([n, 1, h, w])
    });
    Tensor::cat(rows.collect(), 1)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use softly_pde::grid::Grid;

    use super::*;
    use crate::constraint::config::ConstraintConfig;
    use crate::random::{Purpose, Stream};
    use crate::tensors::{field_batch, to_vec_f64};
    use crate::units::Units;

    fn numbers(index: u64, shape: [usize; 3]) -> Tensor<4> {
        let values = Stream::new(7, Purpose::Metric, index).normals(2 * shape.iter().product::<usize>());
        field_batch(values, shape, &Device::flex())
    }

    #[test]
    fn a_system_and_its_transpose_are_adjoint_and_its_product_is_the_slope() {
        let text = "fields = ['c', 'v', 'w', 'q']\nresidual = [\
                    { formula = 'dx(v) + dy(w)' },\
                    { formula = 'v*dx(c) + w*dy(c) - 0.3*laplacian(c) - q', region = 'interior', weight = 0.5 },\
                    { formula = 'c^2 + v', region = 'border', weight = -2.0 },\
                    { formula = 'divgrad(c, q) - mean(w)', region = 'x=last' }]";
        let config: ConstraintConfig = toml::from_str(text).unwrap();
        let units = Units { mean: vec![0.3, 1.2, -0.5, 0.0], scale: vec![0.6, 1.5, 0.8, 2.0] };
        let grid = Grid::unit(6, 7);
        let constraint = SoftConstraint::new(&config, &config.fields, &grid, &units).unwrap();
        let (x, d, y) = (numbers(0, [4, 6, 7]), numbers(1, [4, 6, 7]), numbers(2, [4, 6, 7]));
        let system = constraint.linearised_system(0..4, &x, |_| {});
        let inner = |a: Tensor<4>, b: &Tensor<4>| to_vec_f64((a * b.clone()).sum())[0];
        let (left, right) = (inner(system.product(&d), &y), inner(system.transposed(&y), &d));
        assert!((left - right).abs() < 1e-10 * left.abs(), "{left} and {right}");
        // One sample's fields serve both directions and both weights.
        let lone = constraint.linearised_system(0..4, &x.clone().narrow(0, 0, 1), |_| {});
        let (left, right) = (inner(lone.product(&d), &y), inner(lone.transposed(&y), &d));
        assert!((left - right).abs() < 1e-10 * left.abs(), "{left} and {right}");
        let at = |t: f64| constraint.linearised_system(0..4, &(x.clone() + d.clone() * t), |_| {}).residual();
        // Formulas of second degree.
        let slope = to_vec_f64(at(0.5) - at(-0.5));
        let largest = slope.iter().zip(to_vec_f64(system.product(&d))).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(largest < 1e-10, "{largest}");
        // Each equation is the one that it is by itself.
        let [n, e, h, w] = system.residual().dims();
        assert_eq!([n, e, h, w], [2, 4, 6, 7]);
        for (k, residual) in constraint.residuals(&x).into_iter().enumerate() {
            let own = system.residual().narrow(1, k, 1).reshape([n, h, w]);
            assert_eq!(to_vec_f64(own), to_vec_f64(residual));
        }
    }
}
