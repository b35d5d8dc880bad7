//! A residual linearised at given fields: products with its Jacobian and with the transpose in tensor operations,
//! differentiable like any other.

use burn::tensor::Tensor;
use softly_pde::program::Tape;

use crate::constraint::tensor_algebra::{TensorAlgebra, TensorValue};
use crate::constraint::{Field, Part, SoftConstraint, full};

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
        let algebra = TensorAlgebra::new(&self.grid, &self.constants, x);
        let mut inputs = self.inputs(x);
        prepare(&mut inputs);
        let part = &self.parts[part];
        let tape = part.program.forward(&algebra, &inputs);
        Linearised { constraint: self, algebra, part, tape, like: x.clone() }
    }
}

impl Linearised<'_> {
    /// R `[N, H, W]`, zero outside its region.
    pub fn residual(&self) -> Tensor<3> {
        self.part.weighted(&self.algebra, self.tape.output(), &self.like)
    }

    /// J·`direction` `[N, H, W]` where only field `slot` moves, zero outside the residual's region; a direction `[1, H, W]`
    /// is one for all samples.
    pub fn product_of(&self, slot: usize, direction: Tensor<3>) -> Tensor<3> {
        let mut directions = vec![None; self.constraint.fields.len()];
        directions[slot] = Some(TensorValue::Tensor(direction * self.constraint.fields[slot].scale));
        self.tangent(&directions)
    }

    /// J·`direction` `[N, C, H, W]` → `[N, H, W]`, zero outside the residual's region.
    pub fn product(&self, direction: &Tensor<4>) -> Tensor<3> {
        let [n, _, h, w] = direction.dims();
        let of_field = |(slot, field): (usize, &Field)| {
            let moved = direction.clone().narrow(1, field.channel, 1).reshape([n, h, w]) * field.scale;
            self.part.program.uses(slot).then(|| TensorValue::Tensor(moved))
        };
        self.tangent(&self.constraint.fields.iter().enumerate().map(of_field).collect::<Vec<_>>())
    }

    /// Jᵀ·`weights` `[N, H, W]` → `[N, C, H, W]`; weights outside the residual's region do not count.
    pub fn transposed(&self, weights: Tensor<3>) -> Tensor<4> {
        let seed = self.part.weighted(&self.algebra, &TensorValue::Tensor(weights), &self.like);
        let adjoints = self.part.program.reverse(&self.algebra, &self.tape, TensorValue::Tensor(seed));
        self.constraint.gather(&self.algebra, adjoints, &self.like)
    }

    fn tangent(&self, directions: &[Option<TensorValue>]) -> Tensor<3> {
        let change = self.part.program.tangent(&self.algebra, &self.tape, directions);
        let change = change.unwrap_or(TensorValue::Number(0.0));
        full(self.part.weighted(&self.algebra, &change, &self.like), &self.like)
    }
}
