//! Fitted steps: the parabola's step, and a correction that was fitted to the model's own paths.
//!
//! x' = e^{−h} x + Σⱼ wⱼ Dⱼ + Σᵢ cᵢ φᵢ,  φ = (x − D, D, ∇D, ∇²D, ∇³D, x − x₋),
//!
//! in coefficients of cosines. The weights w are those of DPM-Solver++ 3M, ∇ takes differences of the last estimates, x₋ is the state
//! before. The numbers c belong to a step, a field and an octave of waves: a [`Rule`]. Without a rule they are zero.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::constraint::basis::{Basis, Family};
use crate::sampler::Sampler;
use crate::sampler::solver::multistep::{Known, Leap};
use crate::sampler::solver::{Solver, Step};
use crate::tensors::constant;

/// Estimates in the parabola.
const ORDER: usize = 3;
/// Estimates in the terms φ.
const MEMORY: usize = 4;

/// The numbers c of fitted steps for one model and one row of noise levels.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// σ at which steps begin, highest first, and σ at which the last of them ends.
    pub levels: Vec<f64>,
    /// Shape of a sample, `[C, H, W]`.
    pub shape: [usize; 3],
    /// c by step: numbers `[C, octaves, terms]`.
    pub steps: Vec<Vec<f64>>,
}

impl Rule {
    /// Whether the rule has a number for every term of `levels`, a row of noise levels with a final 0, and samples of `shape`.
    pub fn is_for(&self, levels: &[f64], shape: [usize; 3]) -> bool {
        let groups = shape[0] * octaves(shape);
        let fits = |(k, numbers): (usize, &Vec<f64>)| numbers.len() == groups * term_count(k);
        self.shape == shape
            && levels.split_last().is_some_and(|(_, levels)| self.levels == levels)
            && self.steps.len() + 1 == self.levels.len()
            && self.steps.iter().enumerate().all(fits)
    }

    /// Σᵢ cᵢ φᵢ of a step for its `terms` φᵢ, coefficients `[N, C, H, W]`.
    pub(crate) fn correction(&self, step: usize, terms: &[Tensor<4>]) -> Tensor<4> {
        let [channels, rows, cols] = self.shape;
        let (octaves, numbers) = (octaves(self.shape), &self.steps[step]);
        let weight = |term: usize| {
            let of_wave = |i: usize| {
                let (channel, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
                numbers[(channel * octaves + octave(row, col)) * terms.len() + term]
            };
            let values = (0..channels * rows * cols).map(of_wave).collect();
            constant(values, [1, channels, rows, cols], &terms[term].device(), terms[term].dtype())
        };
        let products = terms.iter().enumerate().map(|(i, term)| term.clone() * weight(i));
        products.reduce(|sum, product| sum + product).expect("every step has terms")
    }
}

/// The octave of a wave with `row` and `col` half periods along the axes: 0 below two half periods, then doubling.
pub(crate) fn octave(row: usize, col: usize) -> usize {
    // log₂ of the root: half of that of the square.
    (row * row + col * col).max(1).ilog2() as usize / 2
}

/// Octaves of fields of a shape `[C, H, W]`.
pub(crate) fn octaves([_, rows, cols]: [usize; 3]) -> usize {
    octave(rows - 1, cols - 1) + 1
}

/// Terms φ of step `step`, which knows no more estimates than there were.
fn term_count(step: usize) -> usize {
    1 + MEMORY.min(step + 1) + usize::from(step > 0)
}

/// The waves in which octaves are told apart.
pub(crate) fn waves([channels, rows, cols]: [usize; 3]) -> Basis {
    Basis::new(vec![[Family::Cosine; 2]; channels], rows, cols)
}

/// The last estimates and the state before, coefficients `[N, C, H, W]`.
#[derive(Default)]
pub(crate) struct Memory {
    /// Estimates, latest first.
    known: Vec<Known>,
    before: Option<Tensor<4>>,
}

impl Memory {
    /// The parabola's mean and the terms φ of a step from `state` with its `estimate`, all of them coefficients `[N, C, H, W]`.
    pub fn look(&mut self, leap: &Leap, state: Tensor<4>, estimate: Tensor<4>) -> (Tensor<4>, Vec<Tensor<4>>) {
        self.known.insert(0, (leap.from, estimate.clone()));
        self.known.truncate(MEMORY);
        let mean = leap.mean(state.clone(), &self.known[..self.known.len().min(ORDER)]);
        let mut terms = vec![state.clone() - estimate];
        let mut differences: Vec<Tensor<4>> = self.known.iter().map(|(_, estimate)| estimate.clone()).collect();
        while let Some(first) = differences.first() {
            terms.push(first.clone());
            differences = differences.windows(2).map(|pair| pair[0].clone() - pair[1].clone()).collect();
        }
        terms.extend(self.before.replace(state.clone()).map(|before| state - before));
        (mean, terms)
    }
}

/// One denoiser call per step; deterministic.
pub struct Fitted {
    rule: Option<Arc<Rule>>,
    waves: Option<Basis>,
    memory: Memory,
}

impl Fitted {
    /// The solver before its first step.
    pub fn new(sampler: &Sampler) -> Self {
        let rule = sampler.rule.clone();
        let waves = rule.as_ref().map(|rule| waves(rule.shape));
        Self { rule, waves, memory: Memory::default() }
    }
}

impl Solver for Fitted {
    fn step(&mut self, step: Step<'_>) -> Tensor<4> {
        if step.next == 0.0 {
            return step.estimate;
        }
        let leap = Leap::of(&step);
        let (Some(rule), Some(waves)) = (&self.rule, &self.waves) else {
            return self.memory.look(&leap, step.state, step.estimate).0;
        };
        let transform = waves.transform(&step.state);
        let [state, estimate] = [step.state, step.estimate].map(|fields| transform.coefficients(fields));
        let (mean, terms) = self.memory.look(&leap, state, estimate);
        transform.fields(mean + rule.correction(step.index, &terms))
    }

    fn is_multistep(&self) -> bool {
        true
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octaves_double() {
        assert_eq!(
            [(0, 0), (1, 0), (1, 1), (0, 2), (3, 2), (0, 4), (15, 15)].map(|(r, c)| octave(r, c)),
            [0, 0, 0, 1, 1, 2, 4]
        );
        assert_eq!((octaves([2, 16, 16]), octaves([1, 1, 1])), (5, 1));
    }

    #[test]
    fn steps_have_as_many_terms_as_they_know() {
        let mut memory = Memory::default();
        for step in 0..6 {
            let leap = Leap::along_the_flow(0.5f64.powi(step), 0.5f64.powi(step + 1));
            let state = Tensor::<4>::ones([1, 1, 2, 2], &burn::tensor::Device::flex());
            let (_, terms) = memory.look(&leap, state.clone() * f64::from(step), state);
            assert_eq!(terms.len(), term_count(step as usize));
        }
    }
}
