//! Speed of what data generation is made of: `cargo bench -p softly-pde`.

use softly_pde::darcy::{DarcySolver, Discretisation, corner_source};
use softly_pde::grid::{AxisId, Grid};
use softly_pde::helmholtz::HelmholtzSolver;
use softly_pde::karhunen_loeve::KarhunenLoeve;

fn main() {
    divan::main();
}

#[divan::bench(args = [Discretisation::OneSided, Discretisation::Mirror])]
fn darcy_solve_64(bencher: divan::Bencher, discretisation: Discretisation) {
    let grid = Grid::unit(64, 64);
    let solver = DarcySolver::new(&grid, discretisation).unwrap();
    let (x, y) = (grid.coordinate(AxisId::Rows), grid.coordinate(AxisId::Cols));
    let permeability: Vec<f64> =
        x.iter().zip(&y).map(|(x, y)| ((9.0 * x + 1.0).sin() + (11.0 * y * x).cos()).exp()).collect();
    let source = corner_source(&grid, 10.0);
    bencher.bench(|| solver.solve(&permeability, &source).unwrap());
}

#[divan::bench]
fn helmholtz_solve_128(bencher: divan::Bencher) {
    let grid = Grid::unit(128, 128);
    let solver = HelmholtzSolver::new(&grid, 1.0).unwrap();
    let source: Vec<f64> = (0..grid.len()).map(|i| (1.7 * i as f64).sin()).collect();
    bencher.bench(|| solver.solve(&source).unwrap());
}

#[divan::bench(args = [32, 64, 128], sample_count = 3)]
fn karhunen_loeve_set_up(n: usize) -> KarhunenLoeve {
    KarhunenLoeve::new(&Grid::unit(n, n), 0.1, 64).unwrap()
}
