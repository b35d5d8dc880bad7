//! The Newton direction against reference solvers.

use std::collections::BTreeMap;

use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    ConstraintConfig, Darcy, Direction, Generator, Helmholtz, NewtonConfig, NewtonDirection, Norm, Region,
    ResidualConfig, Residuals, SampleMaker, ScdConfig, Size, Split,
};
use softly_pde::darcy::Discretisation;
use softly_pde::derivative::Scheme;
use softly_pde::grid::Grid;

use crate::common::{field, normals, one, relative_error};
use crate::directions::{build, darcy_law, helmholtz_law, normalised, small_units, unlimited};

/// The settings of a soft constraint that solves for `field` in `iterations`.
pub fn solve_for(field: &str, iterations: usize) -> ScdConfig {
    let floor = (field == "p").then(|| BTreeMap::from([("K".to_string(), 0.05)]));
    let newton = NewtonConfig { iterations, floor, ..NewtonConfig::default() };
    ScdConfig { solve_for: Some(field.into()), newton, ..ScdConfig::default() }
}

#[test]
fn newton_solves_helmholtz_in_one_application() {
    for (size, k) in [(Size::Rectangle([24, 32]), 1.0), (Size::Rectangle([24, 32]), 4.0), (Size::Square(64), 1.0)] {
        let generator = Helmholtz { size, wave_number: k, alpha: 2.0, tau: 3.0, zero_border: true };
        let grid = generator.grid();
        let maker = SampleMaker::new(&generator, 5).unwrap();
        let samples: Vec<f64> = (0..2).flat_map(|i| maker.sample(Split::Train, i).unwrap()).map(f64::from).collect();
        let units = small_units(1);
        let truth = normalised(&samples, &units, grid.len());
        // Any solution with the right border is a start.
        let noise = normals(3, 2, truth.len());
        let inner = |node: usize| {
            let (i, j) = (node / grid.cols(), node % grid.cols());
            i > 0 && j > 0 && i + 1 < grid.rows() && j + 1 < grid.cols()
        };
        let start: Vec<f64> = truth
            .iter()
            .enumerate()
            .map(|(i, t)| if i / grid.len() % 2 == 1 && inner(i % grid.len()) { t + noise[i] } else { *t })
            .collect();
        let base = field(&start, [2, grid.rows(), grid.cols()]);
        for iterations in [1, 4] {
            let direction =
                build::<NewtonDirection>(&helmholtz_law(k), &grid, &units, &solve_for("u", iterations)).unwrap();
            let v = to_vec_f64(direction.correction(&base, &[1.0; 2], &unlimited(2)));
            let (mut moved, mut expected) = (Vec::new(), Vec::new());
            for (i, v) in v.iter().enumerate() {
                if i / grid.len() % 2 == 1 {
                    moved.push(*v);
                    expected.push(truth[i] - start[i]);
                } else {
                    assert_eq!(*v, 0.0, "only the solved field moves");
                }
            }
            let error = relative_error(&moved, &expected);
            // Samples are stored in single precision.
            assert!(error < 1e-5, "k = {k}, {iterations} iterations: {error}");
        }
    }
}

#[test]
fn newton_solves_darcy_within_its_iterations() {
    for (size, length, modes, iterations, bound) in
        [(16, 0.2, 4, 10, 0.01), (32, 0.2, 16, 10, 0.05), (16, 0.2, 4, 40, 2e-3)]
    {
        let generator = |discretisation| Darcy { size: Size::Square(size), length, modes, flow: 10.0, discretisation };
        let mirrored = generator(Discretisation::Mirror);
        let grid = mirrored.grid();
        let maker = SampleMaker::new(&mirrored, 5).unwrap();
        let samples: Vec<f64> = (0..3).flat_map(|i| maker.sample(Split::Train, i).unwrap()).map(f64::from).collect();
        let units = small_units(0);
        let truth = normalised(&samples, &units, grid.len());
        let noise = normals(3, 4, truth.len());
        let moved = |i: usize| (i / grid.len()).is_multiple_of(2);
        let start: Vec<f64> = (0..truth.len()).map(|i| if moved(i) { truth[i] + noise[i] } else { truth[i] }).collect();
        let base = field(&start, [2, grid.rows(), grid.cols()]);
        // The constraint has one-sided rows; the direction takes mirrored ones by itself.
        let law = generator(Discretisation::OneSided).equation().unwrap();
        let direction = build::<NewtonDirection>(&law, &grid, &units, &solve_for("p", iterations)).unwrap();
        let v = to_vec_f64(direction.correction(&base, &[1.0; 3], &unlimited(3)));
        for sample in 0..3 {
            let channel = 2 * sample * grid.len()..(2 * sample + 1) * grid.len();
            // The step keeps the mean, so compare what is left without one.
            let centred = |values: Vec<f64>| {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                values.into_iter().map(|v| v - mean).collect::<Vec<_>>()
            };
            let reached = centred(channel.clone().map(|i| start[i] + v[i]).collect());
            let error = relative_error(&reached, &centred(truth[channel].to_vec()));
            assert!(error < bound, "{size} nodes, {iterations} iterations: {error}");
        }
    }
}

#[test]
fn a_wrong_configuration_is_named() {
    let grid = Grid::unit(8, 8);
    let law = darcy_law(Scheme::OneSided2, Norm::L2);
    let border = ConstraintConfig {
        residual: Residuals::Many(vec![ResidualConfig {
            formula: "p".into(),
            region: Region::Border,
            weight: 1.0,
            name: None,
        }]),
        ..law.clone()
    };
    let circle = ConstraintConfig { residual: one("p^2 + K^2 - 1"), parameters: BTreeMap::new(), ..law.clone() };
    let floored = |name: &str, floor: f64| {
        let floor = Some(BTreeMap::from([(name.to_string(), floor)]));
        let newton = NewtonConfig { floor, ..NewtonConfig::default() };
        ScdConfig { newton, ..solve_for("p", 3) }
    };
    for (config, law, grid, said) in [
        (solve_for("q", 3), &law, &grid, "denoiser.scd.solve_for: `q` is no field"),
        (solve_for("p", 3), &border, &grid, "denoiser.scd.solve_for"),
        (solve_for("K", 3), &border, &grid, "denoiser.scd.solve_for: no residual contains `K`"),
        (solve_for("p", 0), &law, &grid, "denoiser.scd.newton.iterations"),
        (solve_for("p", 3), &circle, &Grid::point(), "denoiser.scd.directions: `newton` needs 4 nodes"),
        (floored("K", 0.0), &law, &grid, "denoiser.scd.newton.floor: expected a positive number"),
        (floored("k", 0.1), &law, &grid, "denoiser.scd.newton.floor: `k` is no field"),
    ] {
        let built = build::<NewtonDirection>(law, grid, &Units::identity(2), &config);
        let error = built.err().expect("a refusal").to_string();
        assert!(error.starts_with(said), "{error}");
    }
}
