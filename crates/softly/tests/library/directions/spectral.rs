//! The spectral direction: the gradient seen through the data's covariance.

use std::sync::Arc;

use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{Basis, ConstraintConfig, Direction, Family, Norm, Precondition, SpectralDirection};
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;

use crate::common::{compiled, cpu, field, normals, relative_error, rms};
use crate::directions::{darcy_law, dense_basis, levels, small_units};

/// The direction along `law` for data whose spectrum falls from coefficient to coefficient.
pub fn spectral(law: &ConstraintConfig, families: Vec<Family>, grid: &Grid, units: &Units) -> SpectralDirection {
    let families = families.into_iter().map(|family| [family; 2]).collect();
    let basis = Basis::new(families, grid.rows(), grid.cols());
    let spectrum = (0..2 * grid.len()).map(|i| 1.0 / (1.0 + (i % grid.len()) as f32)).collect();
    SpectralDirection::new(Arc::new(compiled(law, grid, units)), basis, spectrum, &cpu())
}

#[test]
fn the_spectral_direction_is_its_dense_formula() {
    let grid = Grid::unit(6, 5);
    let law = darcy_law(Scheme::Mirror, Norm::L2);
    let units = small_units(0);
    let families = vec![Family::Cosine, Family::Fourier];
    let direction = spectral(&law, families.clone(), &grid, &units);
    let sigma = [0.02, 0.3, 40.0];
    let base = field(&normals(3, 1, 3 * 60), [2, 6, 5]);
    let found = to_vec_f64(direction.correction(&base, &sigma, &levels(&sigma)));

    let constraint = compiled(&law, &grid, &units);
    let gradient = to_vec_f64(constraint.norm_and_gradient(&base).1);
    for (sample, &sigma) in sigma.iter().enumerate() {
        let mut expected = vec![0.0; 60];
        for (c, &family) in families.iter().enumerate() {
            let gradient = &gradient[sample * 60 + c * 30..][..30];
            for (k, function) in dense_basis([family; 2], 6, 5).into_iter().enumerate() {
                let s = 1.0 / (1.0 + k as f64);
                let coefficient: f64 = function.iter().zip(gradient).map(|(f, g)| f * g).sum();
                let filtered = coefficient * s * sigma * sigma / (s + sigma * sigma);
                for (e, f) in expected[c * 30..].iter_mut().zip(&function) {
                    *e += filtered * f;
                }
            }
        }
        let scale = Precondition::new(sigma, 0.5).out / rms(&expected);
        for e in &mut expected {
            *e *= scale;
        }
        // The spectrum is stored in single precision.
        let error = relative_error(&found[sample * 60..][..60], &expected);
        assert!(error < 1e-7, "sigma {sigma}: {error}");
    }
}
