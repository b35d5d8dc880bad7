//! Systems of equations: several fields, boundary and initial conditions, in every direction and in training.

use std::collections::BTreeMap;
use std::path::Path;

use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{
    Config, ConstraintConfig, Dataset, Direction, Layers, NewtonConfig, NewtonDirection, Norm, ParameterConfig,
    ResidualConfig, Residuals, ScdConfig, Snapshot, SolveFor, Training,
};
use softly_pde::grid::{Axis, Grid};

use crate::common::{compiled, cpu, denoised, field, law, normals, rms, weights};
use crate::directions::kalman::some_kalman;
use crate::directions::{build, check_gradient, levels, unlimited};

fn equations(parts: &[(&str, &str, f64)]) -> Residuals {
    let part = |&(formula, region, weight): &(&str, &str, f64)| ResidualConfig {
        formula: formula.into(),
        region: region.parse().unwrap(),
        weight,
        name: None,
    };
    Residuals::Many(parts.iter().map(part).collect())
}

/// A concentration c that flows with v and diffuses, v without sources, and c on the border.
pub fn transport_law() -> ConstraintConfig {
    let residual = equations(&[
        ("dx(v) + dy(w)", "all", 1.0),
        ("v*dx(c) + w*dy(c) - kappa*laplacian(c)", "interior", 0.3),
        ("c - x*y", "border", 2.0),
    ]);
    let parameters = BTreeMap::from([("kappa".to_string(), ParameterConfig::Number(0.4))]);
    ConstraintConfig { parameters, ..law(&["c", "v", "w"], residual, Norm::L2) }
}

/// Two species that turn into each other and diffuse, and a third that is their sum, from given values on.
pub fn reaction_law() -> ConstraintConfig {
    let residual = equations(&[
        ("dt(a) - 0.1*dxx(a) + a*b", "all", 1.0),
        ("s - a - b", "all", 1.0),
        ("a - 0.5*cos(pi*x)", "t=first", 4.0),
    ]);
    ConstraintConfig { stencil: softly::Stencil::default(), ..law(&["a", "b", "s"], residual, Norm::L2) }
}

/// Units that are not trivial.
pub fn three_units() -> Units {
    Units { mean: vec![0.3, 1.2, -0.5], scale: vec![0.6, 1.5, 0.8] }
}

/// The settings of a direction that solves for `names` in `iterations`.
fn solving(names: &[&str], iterations: usize) -> ScdConfig {
    let solve_for = Some(SolveFor::Many(names.iter().map(ToString::to_string).collect()));
    ScdConfig { solve_for, newton: NewtonConfig { iterations, ..NewtonConfig::default() }, ..ScdConfig::default() }
}

/// Poisson's equation with a border, four fields with sources, and flow in time.
fn four_field_law() -> ConstraintConfig {
    let residual = equations(&[
        ("dx(v) + dy(w)", "all", 1.0),
        ("v*dx(c) + w*dy(c) - 0.4*laplacian(c) - q", "interior", 1.0),
        ("c", "border", 1.0),
    ]);
    law(&["c", "v", "w", "q"], residual, Norm::L2)
}

#[test]
fn gradients_through_a_kalman_system_match_finite_differences() {
    let (sigma, grid) = ([0.05, 0.8], Grid::unit(7, 6));
    let at = levels(&sigma);
    let x: Vec<f64> = normals(3, 6, 2 * 3 * grid.len()).into_iter().map(|v| 0.5 * v).collect();
    let (law, units) = (transport_law(), three_units());
    let kalman = some_kalman(5, &law, &grid, &units);
    check_gradient("kalman", &|x| kalman.correction(x, &sigma, &at), &x, [3, 7, 6], 1e-5);
}

#[test]
fn gradients_through_a_newton_system_match_finite_differences() {
    let (sigma, grid) = ([0.05, 0.8], Grid::unit(7, 6));
    let at = levels(&sigma);
    // Not in between: conjugate gradients on the way to a solution of an ill-conditioned system turn rounding errors of 1e-16 into
    // 1e-6, which a difference over 1e-5 does not bear.
    let x: Vec<f64> = normals(3, 6, 2 * 3 * grid.len()).into_iter().map(|v| 0.1 * v).collect();
    for (names, iterations) in [(&["c"][..], 5), (&["c", "v", "w"], 1), (&["c", "v", "w"], 2), (&["c", "v", "w"], 20)] {
        let newton: NewtonDirection =
            build(&transport_law(), &grid, &three_units(), &solving(names, iterations)).unwrap();
        let name = format!("newton for {names:?} in {iterations}");
        check_gradient(&name, &|x| newton.correction(x, &sigma, &at), &x, [3, 7, 6], 1e-5);
    }
}

/// √mean R² of each equation at `x` `[C, H, W]`, over all nodes.
fn sizes(law: &ConstraintConfig, grid: &Grid, units: &Units, x: &[f64]) -> Vec<f64> {
    let shape = [law.fields.len(), grid.rows(), grid.cols()];
    let residuals = compiled(law, grid, units).residuals(&field(x, shape));
    residuals.into_iter().map(|r| rms(&to_vec_f64(r))).collect()
}

#[test]
fn newton_solves_all_equations_of_its_fields() {
    let grid = Grid::unit(12, 10);
    let tube = Grid { axes: vec![Axis::new("t", 12, 0.0, 1.0), Axis::new("x", 10, 0.0, 2.0).periodic()] };
    let poisson =
        law(&["u", "f"], equations(&[("laplacian(u) + f", "interior", 1.0), ("u - x", "border", 1.0)]), Norm::L2);
    let heat =
        law(&["u", "f"], equations(&[("dt(u) - 0.1*dxx(u) - f", "interior", 1.0), ("u", "t=first", 1.0)]), Norm::L2);
    let heat = ConstraintConfig { stencil: softly::Stencil::default(), ..heat };
    let four = four_field_law();
    let identity = |n: usize| Units::identity(n);
    for (law, grid, names, steps, left) in [
        (&poisson, &grid, &["u"][..], 1, 1e-3),
        (&heat, &tube, &["u"], 1, 0.01),
        (&transport_law(), &grid, &["c"], 1, 1e-3),
        (&transport_law(), &grid, &["c", "v", "w"], 4, 0.02),
        (&four, &grid, &["c", "v", "w"], 4, 0.02),
    ] {
        let units = identity(law.fields.len());
        let newton: NewtonDirection = build(law, grid, &units, &solving(names, 30)).unwrap();
        let shape = [law.fields.len(), grid.rows(), grid.cols()];
        let start: Vec<f64> = normals(3, 11, law.fields.len() * grid.len()).into_iter().map(|v| 0.3 * v).collect();
        let mut x = start.clone();
        for _ in 0..steps {
            let v = to_vec_f64(newton.correction(&field(&x, shape), &[1.0], &unlimited(1)));
            x.iter_mut().zip(v).for_each(|(x, v)| *x += v);
        }
        for (slot, name) in law.fields.iter().enumerate() {
            let own = slot * grid.len()..(slot + 1) * grid.len();
            assert_eq!(start[own.clone()] != x[own], names.contains(&name.as_str()), "{name}");
        }
        let (before, after) = (sizes(law, grid, &units, &start), sizes(law, grid, &units, &x));
        // An equation without a solved field stays as it is.
        let contained = |k: usize| names.iter().any(|name| law.residuals()[k].formula.contains(name));
        for (k, (before, after)) in before.iter().zip(&after).enumerate().filter(|(k, _)| contained(*k)) {
            assert!(*after < left * before, "{names:?}, {}: {before} to {after}", law.residuals()[k].formula);
        }
    }
}

#[test]
fn fields_to_solve_for_are_derived_or_asked_for() {
    let grid = Grid::unit(8, 8);
    let none = ScdConfig::default();
    let built = |law: &ConstraintConfig, settings: &ScdConfig| {
        build::<NewtonDirection>(law, &grid, &Units::identity(law.fields.len()), settings)
    };
    // The moved channels say which fields were found.
    let moved = |law: &ConstraintConfig| -> Vec<String> {
        let n = law.fields.len();
        let x = field(&normals(3, 1, n * 64), [n, 8, 8]);
        let v = to_vec_f64(built(law, &none).unwrap().correction(&x, &[1.0], &levels(&[1.0])));
        let moves = |slot: &usize| v[slot * 64..(slot + 1) * 64].iter().any(|v| *v != 0.0);
        (0..n).filter(moves).map(|slot| law.fields[slot].clone()).collect()
    };
    let of = |fields: &[&str], parts: &[(&str, &str, f64)]| law(fields, equations(parts), Norm::L2);
    let darcy = of(&["K", "p"], &[("K*laplacian(p) + dot(grad(K), grad(p)) + 1", "all", 1.0)]);
    assert_eq!(moved(&darcy), ["p"]);
    let conservative = of(&["K", "p"], &[("divgrad(K, p) + 1", "interior", 1.0), ("p", "border", 1.0)]);
    assert_eq!(moved(&conservative), ["p"]);
    let pair = of(&["u", "v"], &[("laplacian(u) - v", "interior", 1.0), ("dx(v) + u", "interior", 1.0)]);
    assert_eq!(moved(&pair), ["u", "v"]);

    let refused = |law: &ConstraintConfig, settings: &ScdConfig| built(law, settings).err().unwrap().to_string();
    let said = refused(&transport_law(), &none);
    assert!(said.starts_with("denoiser.scd.solve_for: `dx(v) + dy(w)` could be solved for v or w"), "{said}");
    let border = of(&["u", "v"], &[("u", "border", 1.0), ("v", "x=first", 1.0)]);
    let said = refused(&border, &none);
    assert!(said.starts_with("denoiser.scd.solve_for: no equation on the whole grid"), "{said}");
    let said = refused(&border, &solving(&["u", "v"], 3));
    assert!(said.starts_with("denoiser.scd.solve_for: the equations with `u`, `v` hold on border only"), "{said}");
    let said = refused(&darcy, &solving(&["p", "q"], 3));
    assert!(said.starts_with("denoiser.scd.solve_for: `q` is no field"), "{said}");
}

#[test]
fn a_far_node_of_a_region_does_not_matter() {
    // Measurements outside an equation's region are never looked at.
    let (grid, units, law) = (Grid::unit(7, 6), three_units(), transport_law());
    let x = field(&normals(3, 2, 3 * grid.len()), [3, 7, 6]);
    let mut kalman = some_kalman(12, &law, &grid, &units);
    let before = to_vec_f64(kalman.step(&x, &[0.3]));
    let masks: Vec<bool> = law.residuals().iter().flat_map(|residual| residual.region.mask(&grid).unwrap()).collect();
    kalman.visit("", &mut |name, parameter| {
        if ["misfit-mean", "misfit-variance"].contains(&name) {
            let values = parameter.values().into_iter().enumerate();
            let outside = |i: usize| !masks[i % masks.len()];
            parameter.set(values.map(|(i, v)| if outside(i) { v - 30.0 } else { v }).collect());
        }
    });
    assert_eq!(before, to_vec_f64(kalman.step(&x, &[0.3])));
}

/// Samples of four fields on 8×8 nodes: any c, v and w, and the source that they need.
fn four_fields(count: usize, seed: u64) -> Vec<f32> {
    use std::f64::consts::PI;
    let nodes = 8;
    let mut samples = Vec::new();
    for sample in 0..count {
        let z = normals(seed, sample as u64, 12);
        let at = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f32> {
            let node = |i: usize| (i / nodes) as f64 / (nodes - 1) as f64;
            (0..nodes * nodes).map(|i| f(node(i), (i % nodes) as f64 / (nodes - 1) as f64) as f32).collect()
        };
        let c = |x: f64, y: f64| {
            (PI * x).sin() * (PI * y).sin() * (z[0] + 0.3 * z[1] * (PI * x).cos() + 0.3 * z[2] * (PI * y).cos())
        };
        samples.extend(at(&c));
        samples.extend(at(&|x, y| z[3] + 0.3 * z[4] * y + 0.2 * z[5] * x));
        samples.extend(at(&|x, y| z[6] + 0.3 * z[7] * x - 0.2 * z[5] * y));
        samples.extend(at(&|x, y| 4.0 * c(x, y) + 0.2 * z[8]));
    }
    samples
}

fn four_field_data() -> Dataset {
    Dataset {
        scalars: Vec::new(),
        constants: std::collections::BTreeMap::default(),
        fields: ["c", "v", "w", "q"].map(String::from).to_vec(),
        grid: Grid::unit(8, 8),
        train: four_fields(64, 1).into(),
        valid: four_fields(8, 2).into(),
        generator: None,
        equation: None,
    }
}

fn configured(extra: &str) -> Config {
    let text = format!(
        "[data]\nnormalise = 'std'\n\
         [denoiser]\nbackbone = {{ kind = 'mlp', hidden = 16 }}\n\
         [train]\niterations = 3\nbatch = 4\nshares = 2\n\
         [constraint]\nfields = ['c', 'v', 'w', 'q']\nstencil = 'one-sided-2'\nnorm = 'l2'\n\
         [constraint.parameters]\nkappa = {{ learn = 0.4 }}\nedge = {{ learn = 0.1 }}\n\
         [[constraint.residual]]\nformula = 'dx(v) + dy(w)'\nname = 'no sources of flow'\n\
         [[constraint.residual]]\nformula = 'v*dx(c) + w*dy(c) - kappa*laplacian(c) - q'\nregion = 'interior'\n\
         [[constraint.residual]]\nformula = 'c - edge'\nregion = 'border'\n{extra}"
    );
    Layers::new().text(&text, "test").unwrap().finish("test").unwrap()
}

#[test]
fn a_system_is_learned_along_every_direction_and_kept_with_the_model() {
    let mut plain = configured("");
    plain.denoiser.scd = None;
    plain.constraint = None;
    let mut base = Training::new(&plain, four_field_data(), &cpu()).unwrap();
    base.step().unwrap();
    let base = base.snapshot();
    let scd = "[denoiser.scd]\ndirections = ['gradient', 'spectral', 'newton', 'kalman']\n\
               solve_for = ['c', 'v', 'w']\nscale = 'jacobi'\ninput = 'features'\n";
    let config = configured(scd);
    let mut training = Training::adapt(&base, Path::new("base"), &config, four_field_data(), &cpu()).unwrap();
    for _ in 0..3 {
        training.step().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.safetensors");
    training.snapshot().write(&path).unwrap();
    let snapshot = Snapshot::read(&path).unwrap();
    for name in ["misfit-mean", "misfit-variance", "misfit-spectrum"] {
        let name = format!("kalman.{name}");
        let (_, shape, _) = snapshot.weights.iter().find(|(other, _, _)| *other == name).unwrap();
        assert_eq!(*shape, [16, 3, 8, 8], "{name}");
    }
    // γ sees two numbers of every equation and the noise.
    let (_, shape, _) = snapshot.weights.iter().find(|(name, _, _)| name == "gamma.first.weight").unwrap();
    assert!(shape.contains(&(1 + 2 * 3 + 8)), "{shape:?}");
    // Parameters of the second and of the third equation have moved.
    assert!(weights(&snapshot, "constraint.kappa")[0] != 0.4 && weights(&snapshot, "constraint.edge")[0] != 0.1);
    let model = snapshot.model(&cpu(), &path).unwrap();
    let kept = training.snapshot().model(&cpu(), &path).unwrap();
    let x = || field(&normals(3, 30, 512), [4, 8, 8]);
    let estimate = denoised(&model, x(), &[0.1, 2.0]);
    assert!(estimate.iter().all(|v| v.is_finite()));
    assert_eq!(estimate, denoised(&kept, x(), &[0.1, 2.0]));
}
