//! Speed of what data generation is made of: `cargo bench -p softly-pde`.

use softly_pde::darcy::{DarcySolver, Discretisation, corner_source};
use softly_pde::grid::{Axis, Grid};

fn main() {
    divan::main();
}

#[divan::bench(args = [Discretisation::OneSided, Discretisation::Mirror])]
fn darcy_solve_64(bencher: divan::Bencher, discretisation: Discretisation) {
    let grid = Grid::unit(64, 64);
    let solver = DarcySolver::new(&grid, discretisation).unwrap();
    let (x, y) = (grid.coordinate(Axis::X), grid.coordinate(Axis::Y));
    let permeability: Vec<f64> =
        x.iter().zip(&y).map(|(x, y)| ((9.0 * x + 1.0).sin() + (11.0 * y * x).cos()).exp()).collect();
    let source = corner_source(&grid, 10.0);
    bencher.bench(|| solver.solve(&permeability, &source).unwrap());
}
