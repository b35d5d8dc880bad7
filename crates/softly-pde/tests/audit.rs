//! Audits of data with known faults: closed-form solutions, each spoilt in one way.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::f64::consts::{PI, TAU};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use softly_pde::algebra::Value;
use softly_pde::audit::{Audit, Cause, Claim, Equation, Fit, Identifiability, Sample, SlipKind, audit, fit};
use softly_pde::grid::{Axis, AxisId, Grid};
use softly_pde::region::Region;
use softly_pde::stencil::default_schemes;

/// A number between 0 and 1 for each pair of integers.
fn any(i: usize, k: usize) -> f64 {
    ((i * 37 + k * 101) as f64 * 0.618_033_988_749_895 + 0.1).fract()
}

fn claim(grid: Grid, fields: &[&str], formula: &str, numbers: &[(&str, f64)]) -> Claim {
    Claim {
        schemes: default_schemes(&grid),
        grid,
        fields: fields.iter().map(ToString::to_string).collect(),
        equations: vec![Equation { formula: formula.into(), region: Region::All }],
        field_schemes: BTreeMap::new(),
        numbers: numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        formulas: BTreeMap::new(),
        arrays: BTreeMap::new(),
    }
}

/// f at every point, rounded as files are.
fn on(grid: &Grid, f: impl Fn(f64, f64) -> f64) -> Value {
    let [a, b] = AxisId::BOTH.map(|axis| grid.coordinate(axis));
    Value::from(a.iter().zip(&b).map(|(&a, &b)| f64::from(f(a, b) as f32)).collect::<Vec<_>>())
}

fn time_and_circle(steps: usize, nodes: usize) -> Grid {
    Grid { axes: vec![Axis::new("t", steps, 0.0, 1.0), Axis::new("x", nodes, 0.0, TAU).periodic()] }
}

/// Heat: Σ a exp(−ν k² t) sin(k x + φ).
fn heat(i: usize, nu: f64, t: f64, x: f64) -> f64 {
    let wave = |k: usize| {
        let m = k as f64;
        (0.3 + any(i, k)) * (-nu * m * m * t).exp() * (m * x + TAU * any(i, k + 7)).sin()
    };
    (1..=4).map(wave).sum()
}

/// Burgers by Cole and Hopf: u = −2ν φ'/φ + c with φ a positive solution of the heat equation, moving with speed c.
fn burgers(i: usize, nu: f64, t: f64, x: f64) -> f64 {
    let c = 0.5 + any(i, 3);
    let x = x - c * t;
    let (mut phi, mut slope) = (1.6, 0.0);
    for k in 1..=3 {
        let m = k as f64;
        let (size, angle) = (0.5 * (0.3 + any(i, k)) / m * (-nu * m * m * t).exp(), m * x + TAU * any(i, k + 5));
        phi += size * angle.cos();
        slope -= size * m * angle.sin();
    }
    c - 2.0 * nu * slope / phi
}

const NU: f64 = 0.2;
const BURGERS: &str = "dt(u) + u*dx(u) - nu*dxx(u)";

fn burgers_samples(grid: &Grid, count: usize) -> Vec<Sample> {
    (0..count).map(|i| vec![on(grid, |t, x| burgers(i, NU, t, x))]).collect()
}

/// Poisson: Δu = f with u a sum of waves that no end of the domain favours.
fn poisson(grid: &Grid, count: usize) -> Vec<Sample> {
    let wave = |i: usize, k: usize| {
        let (m, n) = (1.0 + (k % 3) as f64 + 0.3 * any(i, k), 1.0 + (k / 3) as f64 + 0.3 * any(i, k + 20));
        (0.2 + any(i, k + 40), PI * m, PI * n, TAU * any(i, k + 60))
    };
    let sample = |i: usize| {
        let sum = |f: &dyn Fn(f64, f64) -> f64, x: f64, y: f64| -> f64 {
            (0..6)
                .map(|k| wave(i, k))
                .map(|(a, m, n, phase)| a * f(m, n) * (m * x + phase).sin() * (n * y + phase).cos())
                .sum()
        };
        vec![on(grid, |x, y| sum(&|_, _| 1.0, x, y)), on(grid, |x, y| sum(&|m, n| -m * m - n * n, x, y))]
    };
    (0..count).map(sample).collect()
}

fn look(claim: &Claim, samples: &[Sample]) -> Audit {
    audit(claim, samples, &|| Ok(())).unwrap()
}

fn kinds(found: &Audit) -> Vec<SlipKind> {
    found.slips.iter().map(|slip| slip.kind).collect()
}

/// The audit finds `kind` first, as its sentence says with `words`.
fn finds(claim: &Claim, samples: &[Sample], kind: SlipKind, words: &[&str]) -> Audit {
    let found = look(claim, samples);
    assert_eq!(kinds(&found).first(), Some(&kind), "{}", found.verdict);
    for word in words {
        assert!(found.slips[0].sentence.contains(word), "{word}: {}", found.verdict);
    }
    assert!(found.verdict.to_lowercase().contains(&found.slips[0].sentence.to_lowercase()), "{}", found.verdict);
    found
}

#[test]
fn correct_data_raise_nothing() {
    let grid = time_and_circle(40, 48);
    let heat_claim = claim(grid.clone(), &["u"], "dt(u) - nu*dxx(u)", &[("nu", 0.1)]);
    let several: Vec<Sample> = (0..6).map(|i| vec![on(&grid, |t, x| heat(i, 0.1, t, x))]).collect();
    let single: Vec<Sample> =
        (0..3).map(|i| vec![on(&grid, |t, x| (f64::from(i) + 1.0) * (-0.4 * t).exp() * (2.0 * x).sin())]).collect();
    let square = Grid::unit(48, 40);
    let cells = Grid { axes: square.axes.iter().map(|axis| axis.clone().cells()).collect() };
    let cases = [
        look(&heat_claim, &several),
        look(&heat_claim, &single),
        look(&claim(grid.clone(), &["u"], BURGERS, &[("nu", NU)]), &burgers_samples(&grid, 6)),
        look(&claim(square.clone(), &["u", "f"], "laplacian(u) - f", &[]), &poisson(&square, 4)),
        look(&claim(cells.clone(), &["u", "f"], "laplacian(u) - f", &[]), &poisson(&cells, 4)),
    ];
    for found in cases {
        assert_eq!(found.slips, [], "{}", found.verdict);
        let equation = &found.equations[0];
        assert!(equation.relative.unwrap() < 0.06, "{}", found.verdict);
        assert_eq!(equation.discretisation.as_ref().unwrap().cause, Cause::Stencils, "{}", found.verdict);
        assert!(found.verdict.contains("which is what second-order stencils cost"), "{}", found.verdict);
        // Second-order stencils: four times the residual on every second point.
        let order = equation.discretisation.as_ref().unwrap().order.unwrap();
        assert!((1.5..2.5).contains(&order), "{order}");
    }
}

#[test]
fn data_that_only_look_normalised_raise_nothing() {
    // So coarse that no stencils are good, and in the units of a network by chance.
    let grid = time_and_circle(14, 20);
    let fields: Vec<Vec<f64>> = (0..6).map(|i| on(&grid, |t, x| heat(i, 0.1, t, x)).numbers().to_vec()).collect();
    let square: f64 = fields.iter().flatten().map(|v| v * v).sum::<f64>() / (6.0 * 280.0);
    let scaled = |field: Vec<f64>| vec![Value::from(field.iter().map(|v| v / square.sqrt()).collect::<Vec<_>>())];
    let samples: Vec<Sample> = fields.into_iter().map(scaled).collect();
    let found = look(&claim(grid, &["u"], "dt(u) - nu*dxx(u)", &[("nu", 0.1)]), &samples);
    assert!(found.equations[0].discretisation.as_ref().unwrap().other_rms > 3e-3 * found.equations[0].scale);
    assert_eq!(found.slips, [], "{}", found.verdict);
}

#[test]
fn an_exact_solution_of_the_stencils_holds_up_to_single_precision() {
    let grid = Grid::unit(24, 24);
    let samples = vec![vec![on(&grid, |x, y| 1.0 + x * x - 0.3 * y * y)]];
    let found = look(&claim(grid, &["u"], "laplacian(u) - q", &[("q", 1.4)]), &samples);
    assert!(found.verdict.contains("single precision"), "{}", found.verdict);
    assert_eq!(found.slips, []);
}

#[test]
fn sizes_are_those_of_the_formula() {
    // R = 2x + y − 1 with terms 2x, y and −1 for u = x, v = y.
    let grid = Grid::unit(5, 5);
    let samples = vec![vec![on(&grid, |x, _| x), on(&grid, |_, y| y)]];
    let found = look(&claim(grid.clone(), &["u", "v"], "2*u + v - 1", &[]), &samples);
    let equation = &found.equations[0];
    let points: Vec<f64> = (0..25).map(|p| 2.0 * f64::from(p / 5) / 4.0 + f64::from(p % 5) / 4.0 - 1.0).collect();
    let mean = |f: &dyn Fn(f64) -> f64| points.iter().map(|&r| f(r)).sum::<f64>() / 25.0;
    assert!((equation.mean_abs - mean(&f64::abs)).abs() < 1e-15);
    assert!((equation.rms - mean(&|r| r * r).sqrt()).abs() < 1e-15);
    assert_eq!(equation.max_abs, 2.0);
    assert_eq!(equation.terms.iter().map(|t| t.text.as_str()).collect::<Vec<_>>(), ["2*u", "v", "-1"]);
    assert_eq!((equation.largest.as_str(), equation.terms[2].rms), ("2*u", 1.0));
    assert!((equation.relative.unwrap() - equation.rms / equation.terms[0].rms).abs() < 1e-15);
    assert_eq!(equation.yardsticks.zero, Some(1.0));
    assert_eq!(equation.map[12], 0.5);
    let share = |name: &str| equation.regions.iter().find(|r| r.region == name).unwrap().clone();
    assert_eq!((share("corners").points, share("corners").mean_abs), (4, 1.0));
    assert_eq!((share("x=first").points, share("border").points, share("interior").points), (5, 16, 9));
    let all: f64 = [share("border"), share("interior")].iter().map(|r| r.points as f64 * r.mean_abs).sum();
    assert!((all / 25.0 - equation.mean_abs).abs() < 1e-15);
}

#[test]
fn the_residual_is_told_by_wavelength() {
    let grid = Grid { axes: ["x", "y"].map(|name| Axis::new(name, 64, 0.0, 1.0).periodic()).to_vec() };
    // The largest term has waves of 32 spacings, the residual besides a hundredth of that in waves of 4.
    let samples = vec![vec![
        on(&grid, |x, _| (TAU * 2.0 * x).sin()),
        on(&grid, |x, _| -(TAU * 2.0 * x).sin() + 0.01 * (TAU * 16.0 * x).sin()),
    ]];
    let found = look(&claim(grid, &["u", "v"], "u + v", &[]), &samples);
    let bands = &found.equations[0].wavelengths;
    let band = |from: f64| bands.iter().find(|band| band.from == from).unwrap();
    assert!((band(4.0).residual - 0.01 / 2.0_f64.sqrt()).abs() < 1e-6 && band(32.0).residual < 1e-6, "{bands:?}");
    assert!((band(32.0).largest - 0.5_f64.sqrt()).abs() < 1e-6, "{bands:?}");
    let power: f64 = bands.iter().map(|band| band.residual.powi(2)).sum();
    assert!((power.sqrt() / found.equations[0].rms - 1.0).abs() < 1e-9);
}

#[test]
fn a_missing_spacing_is_found() {
    // The data live on the unit square, the claim counts nodes.
    let unit = Grid::unit(40, 40);
    let samples = poisson(&unit, 4);
    let counted = Grid { axes: ["x", "y"].map(|name| Axis::new(name, 40, 0.0, 39.0)).to_vec() };
    let found = finds(
        &claim(counted, &["u", "f"], "laplacian(u) - f", &[]),
        &samples,
        SlipKind::Spacing,
        &["x and y", "instead of 1", "1/h"],
    );
    assert!((found.slips[0].value.unwrap() * 39.0 - 1.0).abs() < 0.02, "{}", found.verdict);
}

#[test]
fn exchanged_axes_are_found() {
    let grid = time_and_circle(40, 40);
    let turned = |sample: Sample| -> Sample {
        let values = sample[0].numbers();
        vec![Value::from((0..1600).map(|p| values[p % 40 * 40 + p / 40]).collect::<Vec<_>>())]
    };
    let samples: Vec<Sample> = burgers_samples(&grid, 5).into_iter().map(turned).collect();
    finds(&claim(grid, &["u"], BURGERS, &[("nu", NU)]), &samples, SlipKind::Transposed, &["exchanged"]);
    // One field of two.
    let square = Grid::unit(32, 32);
    let samples: Vec<Sample> = poisson(&square, 3)
        .into_iter()
        .map(|sample| {
            let values = sample[1].numbers();
            vec![sample[0].clone(), Value::from((0..1024).map(|p| values[p % 32 * 32 + p / 32]).collect::<Vec<_>>())]
        })
        .collect();
    let one = claim(square, &["u", "f"], "laplacian(u) - f", &[]);
    finds(&one, &samples, SlipKind::Transposed, &["is transposed"]);
}

#[test]
fn wrong_signs_and_factors_are_found() {
    let grid = time_and_circle(40, 48);
    let samples = burgers_samples(&grid, 5);
    let with = |formula: &str| claim(grid.clone(), &["u"], formula, &[("nu", NU)]);
    finds(&with("dt(u) - u*dx(u) - nu*dxx(u)"), &samples, SlipKind::Sign, &["-u*dx(u)", "wrong sign"]);
    finds(&with("dt(u) + u*dx(u) + nu*dxx(u)"), &samples, SlipKind::Sign, &["nu*dxx(u)", "wrong sign"]);
    let half = finds(&with("dt(u) + 0.5*u*dx(u) - nu*dxx(u)"), &samples, SlipKind::Factor, &["0.5*u*dx(u)", "(2)"]);
    assert!((half.slips[0].value.unwrap() - 2.0).abs() < 0.05, "{}", half.verdict);
    finds(&with("dt(u) + u*dx(u) - nu*dxx(u) + 3*u"), &samples, SlipKind::Factor, &["3*u", "without it"]);
}

#[test]
fn normalised_fields_are_found() {
    let grid = time_and_circle(32, 32);
    let samples = burgers_samples(&grid, 8);
    let all: Vec<f64> = samples.iter().flat_map(|sample| sample[0].numbers().to_vec()).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let std = (all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
    let scaled =
        |sample: Sample| vec![Value::from(sample[0].numbers().iter().map(|v| (v - mean) / std).collect::<Vec<_>>())];
    let samples: Vec<Sample> = samples.into_iter().map(scaled).collect();
    let given = claim(grid, &["u"], BURGERS, &[("nu", NU)]);
    finds(&given, &samples, SlipKind::Normalised, &["u looks normalised", "in place of u"]);
}

#[test]
fn cells_taken_for_nodes_are_found() {
    let nodes = Grid::unit(40, 40);
    let cells = Grid { axes: nodes.axes.iter().map(|axis| axis.clone().cells()).collect() };
    let formula = "laplacian(u) - f";
    let at_centres = poisson(&cells, 4);
    finds(
        &claim(nodes.clone(), &["u", "f"], formula, &[]),
        &at_centres,
        SlipKind::Placement,
        &["cell centres", "x and y"],
    );
    let at_nodes = poisson(&nodes, 4);
    finds(&claim(cells, &["u", "f"], formula, &[]), &at_nodes, SlipKind::Placement, &["nodes are taken", "x and y"]);
}

#[test]
fn a_repeated_last_node_is_found() {
    let honest = Grid { axes: vec![Axis::new("t", 30, 0.0, 1.0), Axis::new("x", 33, 0.0, TAU)] };
    let samples: Vec<Sample> = (0..4).map(|i| vec![on(&honest, |t, x| heat(i, 0.1, t, x))]).collect();
    let periodic = Grid { axes: vec![honest.axes[0].clone(), honest.axes[1].clone().periodic()] };
    let given = claim(periodic, &["u"], "dt(u) - nu*dxx(u)", &[("nu", 0.1)]);
    finds(&given, &samples, SlipKind::RepeatedNode, &["periodic axis x", "first one again"]);
}

#[test]
fn a_wrong_time_step_is_found() {
    let grid = time_and_circle(40, 48);
    let samples = burgers_samples(&grid, 5);
    let long = Grid { axes: vec![Axis::new("t", 40, 0.0, 2.0), grid.axes[1].clone()] };
    let found = finds(
        &claim(long, &["u"], BURGERS, &[("nu", NU)]),
        &samples,
        SlipKind::TimeStep,
        &["time step is wrong", "length 1"],
    );
    assert!((found.slips[0].value.unwrap() * 39.0 - 1.0).abs() < 0.02, "{}", found.verdict);
}

#[test]
fn a_wrong_parameter_is_found_and_fitted() {
    let grid = time_and_circle(40, 48);
    let samples = burgers_samples(&grid, 10);
    let given = claim(grid, &["u"], BURGERS, &[("nu", 0.5)]);
    let found = finds(&given, &samples, SlipKind::Parameter, &["with nu = 0.", "instead of 0.5"]);
    assert!((found.slips[0].value.unwrap() / NU - 1.0).abs() < 0.03, "{}", found.verdict);
    assert_eq!(found.equations[0].discretisation.as_ref().unwrap().cause, Cause::Model, "{}", found.verdict);
    let fitted = fitted(&given, &samples, &["nu"]);
    let nu = &fitted.parameters[0];
    assert_eq!((nu.given, &nu.verdict), (0.5, &Identifiability::Determined));
    let [low, high] = nu.interval.unwrap();
    assert!(low < nu.value && nu.value < high && high - low < 0.02, "{nu:?}");
    assert!(fitted.relative_after[0] < 0.1 * fitted.relative_before[0] && fitted.converged && fitted.steps <= 2);
}

fn fitted(claim: &Claim, samples: &[Sample], names: &[&str]) -> Fit {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    fit(claim, samples, &names, &mut ChaCha8Rng::seed_from_u64(1), &|| Ok(())).unwrap()
}

#[test]
fn fits_are_those_of_numpy() {
    // Printed by tests/data/audit/least_squares.py on the same data and stencils.
    let grid = time_and_circle(24, 32);
    let samples = burgers_samples(&grid, 12);
    let alone = fitted(&claim(grid.clone(), &["u"], BURGERS, &[("nu", 0.5)]), &samples, &["nu"]);
    assert!((alone.parameters[0].value / 0.206_713_071_209 - 1.0).abs() < 1e-9, "{alone:?}");
    let both = claim(grid, &["u"], "dt(u) + a*u*dx(u) - nu*dxx(u)", &[("nu", 0.5), ("a", 3.0)]);
    let both = fitted(&both, &samples, &["a", "nu"]);
    let values: Vec<f64> = both.parameters.iter().map(|p| p.value).collect();
    assert!((values[0] / 1.047_205_781_15 - 1.0).abs() < 1e-9 && (values[1] / 0.207_554_928_273 - 1.0).abs() < 1e-9);
    assert!(both.steps <= 2 && both.rms_after < both.rms_before, "{both:?}");
    assert!(both.parameters.iter().all(|p| p.verdict == Identifiability::Determined), "{both:?}");
}

#[test]
fn parameters_that_enter_otherwise_are_fitted_too() {
    let grid = time_and_circle(24, 32);
    let samples = burgers_samples(&grid, 6);
    let linear = fitted(&claim(grid.clone(), &["u"], BURGERS, &[("nu", 0.5)]), &samples, &["nu"]);
    let expected = linear.parameters[0].value;
    // As a square, and through a formula of the coordinates that uses it.
    let square = claim(grid.clone(), &["u"], "dt(u) + u*dx(u) - k^2*dxx(u)", &[("k", 2.0)]);
    let square = fitted(&square, &samples, &["k"]);
    assert!((square.parameters[0].value.powi(2) / expected - 1.0).abs() < 1e-8 && square.converged, "{square:?}");
    let mut formula = claim(grid, &["u"], "dt(u) + u*dx(u) - K*dxx(u)", &[("nu", 0.5)]);
    formula.formulas.insert("K".into(), "nu*(1 + 0*x)".into());
    assert_eq!(formula.used_numbers(), ["nu"]);
    let formula = fitted(&formula, &samples, &["nu"]);
    assert!((formula.parameters[0].value / expected - 1.0).abs() < 1e-9, "{formula:?}");
    // Few samples are drawn in tiles.
    assert!(formula.tiles && formula.drawn_from == 96 && formula.parameters[0].interval.is_some());
}

#[test]
fn parameters_that_data_do_not_tell_are_said_so() {
    let grid = time_and_circle(24, 32);
    let samples = burgers_samples(&grid, 10);
    let given = claim(grid, &["u"], "dt(u) + u*dx(u) - a*b*dxx(u) + 0*c", &[("a", 0.5), ("b", 1.0), ("c", 2.0)]);
    let found = fitted(&given, &samples, &["a", "b", "c"]);
    let verdicts: Vec<&Identifiability> = found.parameters.iter().map(|p| &p.verdict).collect();
    assert_eq!(verdicts[..2], [&Identifiability::SameAs("b".into()), &Identifiability::SameAs("a".into())]);
    assert_eq!((verdicts[2], found.parameters[2].value), (&Identifiability::Absent, 2.0));
    let unknown = fit(&given, &samples, &["d".into()], &mut ChaCha8Rng::seed_from_u64(1), &|| Ok(()));
    assert_eq!(unknown.unwrap_err().to_string(), "`d` is no number of the equation: it has a, b, c");
}

#[test]
fn shuffled_pairs_are_a_yardstick() {
    let grid = Grid::unit(24, 24);
    let samples = poisson(&grid, 6);
    let given = claim(grid, &["u", "f"], "laplacian(u) - f", &[]);
    let right = look(&given, &samples);
    assert!(right.equations[0].yardsticks.shuffled.unwrap() > 10.0 * right.equations[0].mean_abs);
    let mixed: Vec<Sample> = (0..6).map(|i| vec![samples[i][0].clone(), samples[(i + 2) % 6][1].clone()]).collect();
    assert!(look(&given, &mixed).verdict.contains("belong together"));
}

#[test]
fn several_equations_and_ends_are_judged_each() {
    let grid = time_and_circle(40, 48);
    let samples: Vec<Sample> =
        (0..4).map(|i| vec![on(&grid, |t, x| heat(i, 0.1, t, x)), on(&grid, |_, x| heat(i, 0.1, 0.0, x))]).collect();
    let mut given = claim(grid, &["u", "start"], "dt(u) - nu*dxx(u)", &[("nu", 0.1)]);
    given.equations.push(Equation { formula: "u - start".into(), region: "t=first".parse().unwrap() });
    given.equations.push(Equation { formula: "mean(u)".into(), region: Region::All });
    let found = look(&given, &samples);
    assert_eq!(found.slips, [], "{}", found.verdict);
    assert_eq!(found.equations[1].relative, Some(0.0));
    assert_eq!(found.equations[1].map.iter().filter(|v| !v.is_nan()).count(), 48);
    assert_eq!(found.equations[2].relative, None);
    assert!(found.verdict.contains("Equation 3: The equation mean(u) has one term only"), "{}", found.verdict);
}

#[test]
fn points_have_an_audit_without_places() {
    let samples: Vec<Sample> = (0..20)
        .map(|i| {
            let angle = f64::from(i);
            vec![Value::from(vec![3.0 * angle.cos()]), Value::from(vec![3.0 * angle.sin()])]
        })
        .collect();
    let found = look(&claim(Grid::point(), &["x", "y"], "sqrt(x^2 + y^2) - r", &[("r", 1.0)]), &samples);
    assert_eq!(kinds(&found), [SlipKind::Parameter], "{}", found.verdict);
    assert!((found.slips[0].value.unwrap() - 3.0).abs() < 1e-9);
    assert!(found.equations[0].regions.is_empty() && found.equations[0].wavelengths.is_empty());
}

#[test]
fn what_is_not_finite_is_refused_by_sample() {
    let grid = Grid::unit(6, 6);
    let sample = |value: f64| vec![on(&grid, move |_, _| value)];
    let given = claim(grid.clone(), &["u"], "log(u) - 1", &[]);
    let error = audit(&given, &[sample(1.0), sample(-1.0)], &|| Ok(())).unwrap_err();
    assert_eq!(error.to_string(), "the residual `log(u) - 1` is not finite in sample 1");
}
