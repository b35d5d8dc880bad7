//! The optimiser step and the running average of parameters.

use crate::elementwise::{RowMap, Rows};
use crate::simd::Simd;

/// Numbers of one Adam step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Learning rate, `η`.
    pub learning_rate: f32,
    /// Decay of the mean of gradients, `β₁`.
    pub beta1: f32,
    /// Decay of the mean of squares, `β₂`.
    pub beta2: f32,
    /// `ε`, added to the root of the mean square.
    pub epsilon: f32,
    /// Bias correction `1 − β₁^step`.
    pub correction1: f32,
    /// Bias correction `1 − β₂^step`.
    pub correction2: f32,
}

/// `m ← β₁ m + (1−β₁) g`, `v ← β₂ v + (1−β₂) g²`, `p ← p − η (m/c₁) / (√(v/c₂) + ε)`; arrays of any equal length.
pub fn adam(step: AdamStep, grad: &[f32], param: &mut [f32], mean: &mut [f32], square: &mut [f32]) {
    struct Map(AdamStep);
    impl RowMap<0, 1, 3, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, []: [S::V; 0], [g]: [S::V; 1], y: [S::V; 3]) -> ([S::V; 3], [S::V; 0]) {
            let AdamStep { learning_rate, beta1, beta2, epsilon, correction1, correction2 } = self.0;
            let [p, m, v] = y;
            let m = s.mul_add(m, s.splat(beta1), s.mul(g, s.splat(1.0 - beta1)));
            let v = s.mul_add(v, s.splat(beta2), s.mul(s.mul(g, g), s.splat(1.0 - beta2)));
            let root = s.sqrt(s.mul(v, s.splat(1.0 / correction2)));
            let change = s.div(s.mul(m, s.splat(learning_rate / correction1)), s.add(root, s.splat(epsilon)));
            ([s.sub(p, change), m, v], [])
        }
    }
    Rows { count: grad.len(), len: 1, k: [], x: [grad], y: [param, mean, square], sums: [] }.map(&Map(step));
}

/// `average ← decay · average + (1 − decay) · value`; arrays of any equal length.
pub fn ema(decay: f32, value: &[f32], average: &mut [f32]) {
    struct Map(f32);
    impl RowMap<0, 1, 1, 0> for Map {
        #[inline(always)]
        fn apply<S: Simd>(&self, s: S, []: [S::V; 0], [x]: [S::V; 1], [a]: [S::V; 1]) -> ([S::V; 1], [S::V; 0]) {
            // As a step towards the value, a decay close to 1 loses no digits of the average.
            ([s.mul_add(s.sub(x, a), s.splat(1.0 - self.0), a)], [])
        }
    }
    Rows { count: value.len(), len: 1, k: [], x: [value], y: [average], sums: [] }.map(&Map(decay));
}
