//! Norms that turn residuals into log l_c = −‖R‖.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// ‖R‖ of one sample's residuals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

impl Norm {
    /// −∂‖R‖/∂R at a residual `[N, H, W]` whose norm is `value` `[N]`.
    pub(super) fn downhill(self, residual: Tensor<3>, value: &Tensor<1>, nodes: usize) -> Tensor<3> {
        let n = residual.dims()[0];
        match self {
            Self::L1Mean => residual.detach().sign() * (-1.0 / nodes as f64),
            Self::L1Sum => residual.detach().sign().neg(),
            Self::L2 => (residual / value.clone().clamp_min(1e-12).reshape([n, 1, 1])).neg(),
            Self::HalfSquares => residual.neg(),
        }
    }

    /// ‖R‖ of every sample, `[N]`, from all residuals `[N, H, W]` over `nodes` nodes that count.
    pub(super) fn of(self, residuals: &[Tensor<3>], nodes: usize) -> Tensor<1> {
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
        match self {
            Self::L1Mean => sum(Tensor::abs) / nodes as f64,
            Self::L1Sum => sum(Tensor::abs),
            Self::L2 => sum(squares).clamp_min(1e-24).sqrt(),
            Self::HalfSquares => sum(squares) * 0.5,
        }
    }
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
