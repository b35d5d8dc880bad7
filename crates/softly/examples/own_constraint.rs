//! A PDE is a formula; its residual has a gradient, and following that gradient makes any field obey the PDE.
//!
//! `cargo run --release --example own_constraint`

use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, to_vec_f64};
use softly::units::Units;
use softly::{ConstraintConfig, SoftConstraint, device};
use softly_pde::grid::Grid;

const POISSON: &str = r#"
fields   = ["u"]
residual = "laplacian(u) + 1"
norm     = "half-squares"
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config: ConstraintConfig = toml::from_str(POISSON)?;
    let grid = Grid::unit(8, 8);
    let constraint = SoftConstraint::new(&config, &config.fields, &grid, &Units::identity(1))?;

    // Noise [N, C, H, W] knows nothing of Poisson's equation …
    let noise = Stream::new(0, Purpose::Metric, 0).normals(grid.len());
    let mut u = field_batch(noise, [1, grid.rows(), grid.cols()], &device::by_name("cpu")?);
    let before = to_vec_f64(constraint.norm(u.clone()))[0];
    for _ in 0..5000 {
        // … but ∇ log l_c = −∇‖R‖ points to where it holds.
        let (_, downhill) = constraint.norm_and_gradient(&u);
        u = u + downhill * 1e-6;
    }
    let after = to_vec_f64(constraint.norm(u))[0];
    println!("½ΣR² before {before:.3e}, after {after:.3e}");
    assert!(after < 1e-2 * before);
    Ok(())
}
