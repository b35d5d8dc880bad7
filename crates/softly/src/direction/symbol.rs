//! What J = ∂R/∂u does locally, found by applying it to a few test fields.

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

/// J u ≈ a_x ∂²u/∂x² + a_y ∂²u/∂y² + b_x ∂u/∂x + b_y ∂u/∂y + c u, for one field u and axes x and y.
///
/// Unlike [`Symbol`] it knows axes that differ: an equation in space and time has second derivatives along one of them.
pub(crate) struct AxisSymbol {
    /// a by axis, `[N, H, W]`.
    pub second: [Tensor<3>; 2],
    /// b by axis, `[N, H, W]`.
    pub first: [Tensor<3>; 2],
    /// c, `[N, H, W]`.
    pub zeroth: Tensor<3>,
}

impl AxisSymbol {
    /// The local coefficients of field `slot`, in normalised units; zero outside the equation's region.
    pub fn of(linearised: &Linearised<'_>, slot: usize, grid: &Grid, like: &Tensor<4>) -> Self {
        let zeroth = linearised.product_of(slot, per_node(vec![1.0; grid.len()], grid, like));
        let along = |axis: AxisId| {
            let [cosine, sine] = [0, 1].map(|phase| quarter_wave(axis, phase, grid, like));
            let [image_of_cosine, image_of_sine] =
                [&cosine, &sine].map(|wave| linearised.product_of(slot, wave.clone()));
            // On waves of four nodes second differences are −2/h², first ones turn sin into cos/h and cos into −sin/h.
            let even = cosine.clone() * image_of_cosine.clone() + sine.clone() * image_of_sine.clone();
            let odd = cosine * image_of_sine - sine * image_of_cosine;
            let h = grid.spacing(axis);
            ((even - zeroth.clone()) / short_wave(grid, axis), odd * h)
        };
        let [(second_x, first_x), (second_y, first_y)] = AxisId::BOTH.map(along);
        Self { second: [second_x, second_y], first: [first_x, first_y], zeroth }
    }

    /// The mean of |J|² over nodes with `weights` `[N, H, W]`, as a function of waves.
    pub fn energy(&self, weights: &Tensor<3>) -> Energy {
        let mean = |a: &Tensor<3>, b: &Tensor<3>| {
            let n = a.dims()[0];
            sum(a.clone() * b.clone() * weights.clone()).reshape([n, 1, 1, 1])
        };
        let ([ax, ay], [bx, by], c) = (&self.second, &self.first, &self.zeroth);
        Energy {
            squares: [mean(ax, ax), mean(ay, ay)],
            product: mean(ax, ay) * 2.0,
            slopes: [mean(ax, c) * 2.0, mean(ay, c) * 2.0],
            firsts: [mean(bx, bx), mean(by, by)],
            constant: mean(c, c),
        }
    }
}

/// |J|² of waves with the eigenvalues x and y of the second derivatives, a polynomial with coefficients `[N, 1, 1, 1]`.
pub(crate) struct Energy {
    squares: [Tensor<4>; 2],
    product: Tensor<4>,
    slopes: [Tensor<4>; 2],
    /// A first derivative's square is minus the second derivative.
    firsts: [Tensor<4>; 2],
    constant: Tensor<4>,
}

impl Energy {
    /// |J|² `[N, 1, H, W]` for the eigenvalues `x` `[1, 1, H, 1]` and `y` `[1, 1, 1, W]`; never negative.
    pub fn at(&self, [x, y]: &[Tensor<4>; 2]) -> Tensor<4> {
        let along = |k: usize, z: &Tensor<4>| {
            let even = (z.clone() * self.squares[k].clone() + self.slopes[k].clone()) * z.clone();
            even + z.clone().abs() * self.firsts[k].clone()
        };
        let both = x.clone() * y.clone() * self.product.clone();
        (along(0, x) + self.constant.clone() + along(1, y) + both).clamp_min(0.0)
    }
}

/// The eigenvalue of the second derivative along `axis` on waves of four nodes.
pub(crate) fn short_wave(grid: &Grid, axis: AxisId) -> f64 {
    -2.0 * grid.spacing(axis).powi(-2)
}

/// The cosine (`phase` 0) or sine (`phase` 1) of four nodes along `axis`, constant along the other one, `[1, H, W]`.
fn quarter_wave(axis: AxisId, phase: usize, grid: &Grid, like: &Tensor<4>) -> Tensor<3> {
    let place = |node: usize| match axis {
        AxisId::Rows => node / grid.cols(),
        AxisId::Cols => node % grid.cols(),
    };
    let wave = if phase == 0 { [1.0, 0.0, -1.0, 0.0] } else { [0.0, 1.0, 0.0, -1.0] };
    per_node((0..grid.len()).map(|node| wave[place(node) % 4]).collect(), grid, like)
}
