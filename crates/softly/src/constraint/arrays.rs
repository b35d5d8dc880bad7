//! The constraint on plain arrays in physical units and double precision, samples in parallel: residuals, products with the
//! Jacobian J = ∂R/∂u and with its transpose, and the change of Jᵀ along a direction.
//!
//! Fields are one array `[N, H, W]` each, row-major, in the order of the constraint; residuals are one array `[N, E, H, W]` of all
//! E equations with their weights, zero outside of their regions.

use rayon::prelude::*;
use softly_pde::algebra::{Algebra, Binary, F64Algebra, Value};
use softly_pde::dual::{Dual, DualAlgebra};

use crate::constraint::{Part, SoftConstraint};

impl SoftConstraint {
    /// R `[N, E, H, W]`.
    pub fn residual_arrays(&self, fields: &[&[f64]]) -> Vec<f64> {
        let parameters = self.parameters.numbers(&self.algebra);
        self.equations_of(fields[0].len(), |sample, part| {
            let tape = part.program.forward(&self.algebra, &self.sample(fields, sample, &parameters));
            part.weigh(&self.algebra, tape.output())
        })
    }

    /// J·directions `[N, E, H, W]`; a field without a direction stands still.
    pub fn product_arrays(&self, fields: &[&[f64]], directions: &[Option<&[f64]>]) -> Vec<f64> {
        let parameters = self.parameters.numbers(&self.algebra);
        self.equations_of(fields[0].len(), |sample, part| {
            let tape = part.program.forward(&self.algebra, &self.sample(fields, sample, &parameters));
            let along: Vec<Option<Value>> = directions.iter().map(|d| d.map(|d| self.slice(d, sample))).collect();
            let change = part.program.tangent(&self.algebra, &tape, &along);
            part.weigh(&self.algebra, &change.unwrap_or(Value::Number(0.0)))
        })
    }

    /// Jᵀ·weights of weights `[N, E, H, W]`: one array `[N, H, W]` per field.
    pub fn transposed_arrays(&self, fields: &[&[f64]], weights: &[f64]) -> Vec<Vec<f64>> {
        let parameters = self.parameters.numbers(&self.algebra);
        let algebra = &self.algebra;
        self.fields_of(fields[0].len(), |sample, e, part| {
            let tape = part.program.forward(algebra, &self.sample(fields, sample, &parameters));
            part.program.reverse(algebra, &tape, self.seed(weights, sample, e))
        })
    }

    /// d/dε of Jᵀ·weights at fields + ε·directions, for ε = 0; shapes as in [`SoftConstraint::transposed_arrays`].
    pub fn curvature_arrays(&self, fields: &[&[f64]], weights: &[f64], directions: &[Option<&[f64]>]) -> Vec<Vec<f64>> {
        let parameters = self.parameters.numbers(&self.algebra);
        let algebra = DualAlgebra(&self.algebra);
        self.fields_of(fields[0].len(), |sample, e, part| {
            let still = |value: Value| (value, Value::Number(0.0));
            let mut inputs: Vec<Dual> = self.sample(fields, sample, &parameters).into_iter().map(still).collect();
            for (input, direction) in inputs.iter_mut().zip(directions) {
                if let Some(direction) = direction {
                    input.1 = self.slice(direction, sample);
                }
            }
            let tape = part.program.forward(&algebra, &inputs);
            let adjoints = part.program.reverse(&algebra, &tape, still(self.seed(weights, sample, e)));
            adjoints.into_iter().map(|adjoint| adjoint.map(|(_, change)| change)).collect()
        })
    }

    /// `of(sample, equation)` at every node of fields of `numbers` numbers, `[N, E, H, W]`.
    fn equations_of(&self, numbers: usize, of: impl Fn(usize, &Part) -> Value + Sync) -> Vec<f64> {
        let (nodes, equations) = (self.grid.len(), self.parts.len());
        let mut all = vec![0.0; numbers * equations];
        all.par_chunks_exact_mut(nodes * equations).enumerate().for_each(|(sample, all)| {
            for (part, out) in self.parts.iter().zip(all.chunks_exact_mut(nodes)) {
                match of(sample, part) {
                    Value::Number(number) => out.fill(number),
                    Value::Field(values) => out.copy_from_slice(&values),
                }
            }
        });
        all
    }

    /// The sum of `of(sample, e, equation)` over all equations, by field, for fields of `numbers` numbers: `[N, H, W]` each.
    fn fields_of(
        &self,
        numbers: usize,
        of: impl Fn(usize, usize, &Part) -> Vec<Option<Value>> + Sync,
    ) -> Vec<Vec<f64>> {
        let nodes = self.grid.len();
        let sums = |sample: usize| {
            let mut sums: Vec<Option<Value>> = vec![None; self.fields.len()];
            for (e, part) in self.parts.iter().enumerate() {
                for (sum, term) in sums.iter_mut().zip(of(sample, e, part)) {
                    *sum = match (sum.take(), term) {
                        (Some(a), Some(b)) => Some(self.algebra.binary(Binary::Add, &a, &b)),
                        (a, b) => a.or(b),
                    };
                }
            }
            sums
        };
        let by_sample: Vec<Vec<Option<Value>>> = (0..numbers / nodes).into_par_iter().map(sums).collect();
        let of_field = |field: usize| {
            let mut all = vec![0.0; numbers];
            all.par_chunks_exact_mut(nodes).zip(&by_sample).for_each(|(out, sums)| match &sums[field] {
                Some(Value::Number(number)) => out.fill(*number),
                Some(Value::Field(values)) => out.copy_from_slice(values),
                None => {}
            });
            all
        };
        (0..self.fields.len()).map(of_field).collect()
    }

    /// What the formulas take for one sample: its fields, then the run-time parameters.
    fn sample(&self, fields: &[&[f64]], sample: usize, parameters: &[Value]) -> Vec<Value> {
        fields.iter().map(|field| self.slice(field, sample)).chain(parameters.iter().cloned()).collect()
    }

    /// Sample `sample` of an array `[N, H, W]`.
    fn slice(&self, array: &[f64], sample: usize) -> Value {
        let nodes = self.grid.len();
        Value::Field(array[sample * nodes..(sample + 1) * nodes].into())
    }

    /// The weights of equation `e` in `sample`, times the equation's own.
    fn seed(&self, weights: &[f64], sample: usize, e: usize) -> Value {
        self.parts[e].weigh(&self.algebra, &self.slice(weights, sample * self.parts.len() + e))
    }
}

impl Part {
    /// A value with the weight of every node.
    fn weigh(&self, algebra: &F64Algebra, value: &Value) -> Value {
        match &self.weights {
            Some(weights) => algebra.binary(Binary::Mul, value, &Value::Field(weights.clone())),
            None => value.clone(),
        }
    }
}
