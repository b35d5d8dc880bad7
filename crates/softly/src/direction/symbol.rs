//! What J = ∂R/∂u does locally, found by applying it to three test fields.

use burn::tensor::Tensor;
use softly_pde::grid::{AxisId, Grid};

use crate::constraint::linearised::Linearised;
use crate::direction::krylov::sum;
use crate::tensors::per_node;

/// J u ≈ c ∇²u + b u + first derivatives, for one field u.
pub(crate) struct Symbol {
    /// |c|, kept away from zero, `[N, H, W]`.
    pub size: Tensor<3>,
    /// Sign of the mean c, `[N, 1, 1]`.
    pub sign: Tensor<3>,
    /// b, `[N, H, W]`.
    pub zeroth: Tensor<3>,
}

impl Symbol {
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

/// Test fields, `[1, H, W]` each.
pub(crate) struct Waves {
    /// Cosine and sine of waves of four nodes along both axes.
    pub pair: [Tensor<3>; 2],
    /// Ones.
    pub constant: Tensor<3>,
    /// The eigenvalue of the discrete Laplacian on the waves.
    pub laplacian: f64,
}

impl Waves {
    /// The test fields on `grid`, of the type and device of `like`.
    pub fn new(grid: &Grid, like: &Tensor<4>) -> Self {
        let wave = |phase: usize| {
            let value = |node: usize| [1.0, 0.0, -1.0, 0.0][(node / grid.cols() + node % grid.cols() + phase) % 4];
            per_node((0..grid.len()).map(value).collect(), grid, like)
        };
        let laplacian = AxisId::BOTH.map(|axis| -2.0 * grid.spacing(axis).powi(-2)).iter().sum();
        Self { pair: [wave(0), wave(1)], constant: per_node(vec![1.0; grid.len()], grid, like), laplacian }
    }
}
