//! Generators: samples obey the equation that goes with them, and new generators need nothing but the public traits.

use std::ops::Range;

use softly::error::{Error, Result};
use softly::job::Job;
use softly::random::Stream;
use softly::units::Units;
use softly::{
    Burgers, ConstraintConfig, Darcy, DarcyThreshold, DataConfig, Dataset, DatasetFolder, FieldSpec, Generator,
    GeneratorConfig, Helmholtz, Norm, Plan, Poisson, Recipe, SampleMaker, Size, Source, Split, write,
};
use softly_pde::darcy::{Discretisation, corner_source};
use softly_pde::grid::Grid;

use crate::common::{compiled, cpu, law, one, train, valid};

fn darcy(size: usize, discretisation: Discretisation) -> Darcy {
    Darcy { size: Size::Square(size), length: 0.2, modes: 4, flow: 10.0, discretisation }
}

#[test]
fn the_equation_has_exactly_the_source_of_the_solver() {
    for size in [16, 32, 64] {
        let generator = darcy(size, Discretisation::OneSided);
        let grid = generator.grid();
        let constraint = compiled(&generator.equation().unwrap(), &grid, &Units::identity(2));
        // Without pressure the residual is the source alone.
        let fields = [vec![0.0; grid.len()], vec![1.0; grid.len()]];
        assert_eq!(constraint.residual_values(&fields).concat(), corner_source(&grid, 10.0), "{size}");
        assert_eq!(corner_source(&grid, 1.0).iter().filter(|&&f| f == 1.0).count(), (size / 8).pow(2));
    }
}

#[test]
fn samples_obey_their_equation() {
    let size = Size::Rectangle([24, 32]);
    let helmholtz = Helmholtz { size, wave_number: 4.0, alpha: 2.0, tau: 3.0, zero_border: true };
    // The least-squares solution leaves a residual on purpose; the others only what single precision leaves.
    let (mirrored, one_sided) = (darcy(16, Discretisation::Mirror), darcy(32, Discretisation::OneSided));
    let poisson = Poisson { size, alpha: 2.0, tau: 3.0 };
    // The stencils' error in the first frames, where short waves die within a frame.
    let burgers = Burgers { size: Size::Rectangle([96, 64]), ..generator("kind = 'burgers'\nsize = 64") };
    let [arithmetic, harmonic]: [DarcyThreshold; 2] = ["arithmetic", "harmonic"]
        .map(|faces| generator(&format!("kind = 'darcy-threshold'\nsize = [24, 32]\nfaces = '{faces}'")));
    let generators: [(&dyn Generator, f64); 7] = [
        (&mirrored, 0.02),
        (&one_sided, 0.03),
        (&helmholtz, 1e-4),
        (&poisson, 1e-5),
        (&arithmetic, 1e-4),
        (&harmonic, 1e-4),
        (&burgers, 4e-3),
    ];
    for (generator, bound) in generators {
        let grid = generator.grid();
        let sample = SampleMaker::new(generator, 5).unwrap().sample(Split::Train, 3).unwrap();
        let channels = generator.fields().len();
        let constraint = compiled(&generator.equation().unwrap(), &grid, &Units::identity(channels));
        let fields: Vec<Vec<f64>> =
            sample.chunks(grid.len()).map(|f| f.iter().map(|&v| f64::from(v)).collect()).collect();
        let residual = constraint.residual_values(&fields).concat();
        let mean = residual.iter().map(|r| r.abs()).sum::<f64>() / residual.len() as f64;
        assert!(mean < bound, "{:?}: {mean}", generator.fields());
    }
}

#[test]
fn references_find_no_fault_in_the_data() {
    for (text, bound) in [
        ("kind = 'poisson'\nsize = 24", 1e-5),
        ("kind = 'darcy-threshold'\nsize = [16, 24]", 1e-6),
        // Waves of the first frame beyond the grid are missing in what it is solved from.
        ("kind = 'burgers'\nsize = [16, 128]", 1e-4),
    ] {
        let generator: GeneratorConfig = toml::from_str(text).unwrap();
        let config = DataConfig { generator: Some(generator), count: 3, valid: 2, ..DataConfig::default() };
        let data = Dataset::from_config(&config).unwrap();
        let reference = data.reference().unwrap().unwrap();
        let nodes = data.grid.len();
        let double = |field: &[f32]| field.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        for sample in valid(&data).chunks(data.sample_len()) {
            let mut fields: Vec<Vec<f64>> = sample.chunks(nodes).map(double).collect();
            let comparison = reference.compare(&fields);
            assert!(comparison.error.unwrap() < bound, "{text}: {comparison:?}");
            assert_eq!(comparison.lifted, 0);
            let size = fields[reference.solution()].iter().map(|u| u.abs()).fold(0.0, f64::max);
            assert!(reference.boundary(&fields).unwrap() < 0.1 * size, "{text}");
            // A solution of double size is wrong, whatever the equation; of Burgers' from the second frame on.
            let skipped = if data.fields.len() == 1 { data.grid.cols() } else { 0 };
            fields[reference.solution()].iter_mut().skip(skipped).for_each(|u| *u *= 2.0);
            assert!(reference.compare(&fields).error.unwrap() > 0.3, "{text}");
        }
    }
}

#[test]
fn the_published_data_have_these_moments() {
    // DiffusionPDE's Darcy flow: mean and standard deviation of u are 5.69e-3 and 3.79e-3, of a 7.5 and 4.5; Poisson's
    // 0.292 of a and 4.17e-3 of u.
    for (text, a, u) in [
        ("kind = 'darcy-threshold'\nsize = 32", [7.5, 4.5], [5.69e-3, 3.79e-3]),
        ("kind = 'poisson'\nsize = 32", [0.0, 0.292], [0.0, 4.17e-3]),
    ] {
        let generator: GeneratorConfig = toml::from_str(text).unwrap();
        let config = DataConfig { generator: Some(generator), count: 600, valid: 1, ..DataConfig::default() };
        let data = Dataset::from_config(&config).unwrap();
        for (channel, [mean, std]) in [a, u].into_iter().enumerate() {
            let all = train(&data);
            let fields = all.chunks(data.grid.len()).skip(channel).step_by(2);
            let values: Vec<f64> = fields.flatten().map(|&v| f64::from(v)).collect();
            let n = values.len() as f64;
            let found = values.iter().sum::<f64>() / n;
            let spread = (values.iter().map(|v| (v - found).powi(2)).sum::<f64>() / n).sqrt();
            assert!((found - mean).abs() < 0.12 * std, "{text}, {channel}: mean {found} against {mean}");
            assert!((spread / std - 1.0).abs() < 0.06, "{text}, {channel}: spread {spread} against {std}");
        }
    }
}

#[test]
fn burgers_data_are_the_same_functions_on_every_grid() {
    let sample = |frames: usize, points: usize| {
        let burgers: Burgers = generator(&format!("kind = 'burgers'\nsize = [{frames}, {points}]"));
        SampleMaker::new(&burgers, 5).unwrap().sample(Split::Train, 1).unwrap()
    };
    let (coarse, fine) = (sample(9, 32), sample(17, 64));
    for (node, value) in coarse.iter().enumerate() {
        let other = fine[2 * (node / 32) * 64 + 2 * (node % 32)];
        assert!((value - other).abs() < 1e-5, "{node}: {value} against {other}");
    }
}

/// The settings of a generator from a file's text.
fn generator<G: serde::de::DeserializeOwned>(text: &str) -> G {
    let mut table: toml::Table = toml::from_str(text).unwrap();
    table.remove("kind");
    table.try_into().unwrap()
}

#[test]
fn impossible_parameters_are_refused_by_name() {
    let with = |text: &str| -> GeneratorConfig { toml::from_str(text).unwrap() };
    for (text, place) in [
        ("kind = 'darcy'\nsize = 7", "data.generator.size"),
        ("kind = 'darcy'\nsize = [8, 5000]", "data.generator.size"),
        ("kind = 'darcy'\nsize = 16\nmodes = 257", "data.generator.modes"),
        ("kind = 'darcy'\nsize = 16\nlength = 0.0", "data.generator.length"),
        ("kind = 'darcy'\nsize = 16\nflow = nan", "data.generator.flow"),
        ("kind = 'helmholtz'\nsize = 2", "data.generator.size"),
        ("kind = 'poisson'\nsize = 2", "data.generator.size"),
        ("kind = 'poisson'\nsize = 8\ntau = 0.0", "data.generator.tau"),
        ("kind = 'darcy-threshold'\nsize = 8\nlow = -3.0", "data.generator.low"),
        ("kind = 'darcy-threshold'\nsize = 8\nflow = inf", "data.generator.flow"),
        ("kind = 'burgers'\nsize = 4", "data.generator.size"),
        ("kind = 'burgers'\nsize = 16\nmodes = 0", "data.generator.modes"),
        ("kind = 'burgers'\nsize = 16\nviscosity = 1e-6", "data.generator: the viscosity"),
        ("kind = 'helmholtz'\nsize = 16\ntau = -1.0", "data.generator.tau"),
    ] {
        let said = with(text).get().check().unwrap_err().to_string();
        assert!(said.starts_with(place), "{text}: {said}");
    }
}

/// u = a sin(2πx) sin(2πy) of random height a, K = 1 + b x of random slope b, and s = K u: three fields on one grid.
struct Product {
    nodes: usize,
}

impl Generator for Product {
    fn fields(&self) -> Vec<FieldSpec> {
        let source = FieldSpec { name: "s".into(), quantity: "source".into(), unit: "1/s".into() };
        vec![FieldSpec::dimensionless("u", "concentration"), FieldSpec::dimensionless("K", "rate"), source]
    }

    fn grid(&self) -> Grid {
        Grid::unit(self.nodes, self.nodes + 1)
    }

    fn check(&self) -> Result<()> {
        if self.nodes > 1 { Ok(()) } else { Err(Error::input("nodes", "expected at least 2")) }
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        Some(law(&["u", "K", "s"], one("K*u - s"), Norm::L1Mean))
    }

    fn recipe(&self) -> Result<Box<dyn Recipe>> {
        Ok(Box::new(Self { nodes: self.nodes }))
    }
}

impl Recipe for Product {
    fn sample(&self, stream: &mut Stream) -> std::result::Result<Vec<f32>, String> {
        let (height, slope, grid) = (stream.normal(), stream.uniform(), self.grid());
        let place = |node: usize| {
            let [x, y] = [node / grid.cols(), node % grid.cols()].map(|i| i as f64);
            [x / (grid.rows() - 1) as f64, y / (grid.cols() - 1) as f64]
        };
        let wave = |[x, y]: [f64; 2]| height * (std::f64::consts::TAU * x).sin() * (std::f64::consts::TAU * y).sin();
        let field = |value: &dyn Fn([f64; 2]) -> f64| (0..grid.len()).map(|node| value(place(node)) as f32).collect();
        let rate = |[x, _]: [f64; 2]| 1.0 + slope * x;
        let fields: [Vec<f32>; 3] = [field(&wave), field(&rate), field(&|at| rate(at) * wave(at))];
        Ok(fields.concat())
    }
}

/// The samples of a generator that no configuration knows.
struct Foreign {
    plan: Plan,
    generator: Product,
    maker: SampleMaker,
}

impl Source for Foreign {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn fields(&self) -> Vec<FieldSpec> {
        self.generator.fields()
    }

    fn grid(&self) -> Grid {
        self.generator.grid()
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        self.generator.equation()
    }

    fn samples(&self, split: Split, range: Range<usize>) -> Result<Vec<Vec<f32>>> {
        self.maker.samples(split, range)
    }
}

#[test]
fn a_generator_of_three_fields_needs_the_public_traits_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("product");
    let generator = Product { nodes: 5 };
    let origin = toml::Table::from_iter([("name".to_string(), "product".into())]);
    let plan = Plan { train: 7, valid: 2, seed: Some(3), generator: None, origin: Some(origin.clone()) };
    let maker = SampleMaker::new(&generator, 3).unwrap();
    let written = write(&Foreign { plan, generator, maker }, &path, &Job::silent(&cpu())).unwrap();
    assert_eq!(written, DatasetFolder::open(&path).unwrap());
    assert_eq!(written.fields(), ["u", "K", "s"]);
    assert_eq!((written.description.fields[2].unit.as_str(), &written.description.origin), ("1/s", &Some(origin)));

    // The folder is data like any other.
    let data = Dataset::from_config(&DataConfig { path: Some(path), ..DataConfig::default() }).unwrap();
    assert_eq!((data.train_count(), data.valid_count(), data.shape()), (7, 2, [3, 5, 6]));
    let maker = SampleMaker::new(&Product { nodes: 5 }, 3).unwrap();
    let made = [(Split::Train, 7), (Split::Valid, 2)].map(|(s, n)| maker.samples(s, 0..n).unwrap().concat());
    assert_eq!([train(&data), valid(&data)], made);
    let constraint = compiled(data.equation.as_ref().unwrap(), &data.grid, &Units::identity(3));
    for sample in train(&data).chunks_exact(data.sample_len()) {
        let fields: Vec<Vec<f64>> =
            sample.chunks_exact(30).map(|field| field.iter().map(|&v| f64::from(v)).collect()).collect();
        assert!(constraint.residual_values(&fields).concat().iter().all(|r| r.abs() < 1e-6));
    }
}
