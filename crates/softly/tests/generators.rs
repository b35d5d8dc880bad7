//! Generated samples obey the equation that goes with them.

use softly::random::Purpose;
use softly::units::Units;
use softly::{Generator, Size, SoftConstraint};
use softly_pde::darcy::{Discretisation, corner_source};

fn darcy(size: usize, discretisation: Discretisation) -> Generator {
    Generator::Darcy { size: Size::Square(size), length: 0.2, modes: 4, flow: 10.0, discretisation }
}

#[test]
fn the_equation_has_exactly_the_source_of_the_solver() {
    for size in [16, 32, 64] {
        let generator = darcy(size, Discretisation::OneSided);
        let grid = generator.grid();
        let names = generator.fields().map(|f| f.name.to_string());
        let equation = generator.equation().unwrap();
        let constraint = SoftConstraint::new(&equation, &names, &grid, &Units::identity(2)).unwrap();
        // Without pressure the residual is the source alone.
        let fields = [vec![0.0; grid.len()], vec![1.0; grid.len()]];
        assert_eq!(constraint.residual_values(&fields).concat(), corner_source(&grid, 10.0), "{size}");
        assert_eq!(corner_source(&grid, 1.0).iter().filter(|&&f| f == 1.0).count(), (size / 8).pow(2));
    }
}

#[test]
fn samples_obey_their_equation() {
    let helmholtz = Generator::Helmholtz {
        size: Size::Rectangle([24, 32]),
        wave_number: 4.0,
        alpha: 2.0,
        tau: 3.0,
        zero_border: true,
    };
    // The least-squares solution leaves a residual on purpose; the others only what single precision leaves.
    for (generator, bound) in
        [(darcy(16, Discretisation::Mirror), 0.02), (darcy(32, Discretisation::OneSided), 0.03), (helmholtz, 1e-4)]
    {
        let grid = generator.grid();
        let sample = generator.prepare(5).unwrap().sample(Purpose::TrainData, 3).unwrap();
        let names = generator.fields().map(|f| f.name.to_string());
        let equation = generator.equation().unwrap();
        let constraint = SoftConstraint::new(&equation, &names, &grid, &Units::identity(2)).unwrap();
        let fields: Vec<Vec<f64>> =
            sample.chunks(grid.len()).map(|f| f.iter().map(|&v| f64::from(v)).collect()).collect();
        let residual = constraint.residual_values(&fields).concat();
        let mean = residual.iter().map(|r| r.abs()).sum::<f64>() / residual.len() as f64;
        assert!(mean < bound, "{generator:?}: {mean}");
    }
}

#[test]
fn impossible_parameters_are_refused_by_name() {
    let with = |text: &str| -> Generator { toml::from_str(text).unwrap() };
    for (text, place) in [
        ("kind = 'darcy'\nsize = 7", "data.generator.size"),
        ("kind = 'darcy'\nsize = [8, 5000]", "data.generator.size"),
        ("kind = 'darcy'\nsize = 16\nmodes = 257", "data.generator.modes"),
        ("kind = 'darcy'\nsize = 16\nlength = 0.0", "data.generator.length"),
        ("kind = 'darcy'\nsize = 16\nflow = nan", "data.generator.flow"),
        ("kind = 'helmholtz'\nsize = 2", "data.generator.size"),
        ("kind = 'helmholtz'\nsize = 16\ntau = -1.0", "data.generator.tau"),
    ] {
        let said = with(text).check().unwrap_err().to_string();
        assert!(said.starts_with(place), "{text}: {said}");
    }
}
