//! A residual linearised in one of its fields: Jacobian products in tensor operations, differentiable like any other.

use burn::tensor::Tensor;
use softly_pde::program::Tape;

use crate::constraint::{Part, SoftConstraint, full};
use crate::tensor_algebra::{TensorAlgebra, TensorValue};

/// One residual R of a constraint at given fields, and J = ∂R/∂u for one field u in normalised units.
pub(crate) struct Linearised<'a> {
    algebra: TensorAlgebra<'a>,
    part: &'a Part,
    tape: Tape<TensorValue>,
    slot: usize,
    slots: usize,
    scale: f64,
    like: Tensor<4>,
}

impl SoftConstraint {
    /// Linearises residual `part` in field `slot` at normalised fields `x` `[N, C, H, W]`, the physical fields `[N, H, W]`
    /// having passed through `prepare`.
    pub(crate) fn linearised(
        &self,
        part: usize,
        slot: usize,
        x: &Tensor<4>,
        prepare: impl FnOnce(&mut [TensorValue]),
    ) -> Linearised<'_> {
        let algebra = TensorAlgebra::new(&self.grid, &self.constants, x);
        let mut inputs = self.inputs(x);
        prepare(&mut inputs);
        let part = &self.parts[part];
        let tape = part.program.forward(&algebra, &inputs);
        let scale = self.fields[slot].scale;
        Linearised { algebra, part, tape, slot, slots: self.fields.len(), scale, like: x.clone() }
    }
}

impl Linearised<'_> {
    /// R `[N, H, W]`, zero outside its region.
    pub fn residual(&self) -> Tensor<3> {
        self.part.weighted(&self.algebra, self.tape.output(), &self.like)
    }

    /// J·`direction` `[N, H, W]`, zero outside the residual's region; a direction `[1, H, W]` is one for all samples.
    pub fn product(&self, direction: Tensor<3>) -> Tensor<3> {
        let mut directions = vec![None; self.slots];
        directions[self.slot] = Some(TensorValue::Tensor(direction * self.scale));
        let change = self.part.program.tangent(&self.algebra, &self.tape, &directions);
        let change = change.unwrap_or(TensorValue::Number(0.0));
        full(self.part.weighted(&self.algebra, &change, &self.like), &self.like)
    }
}
