//! Metrics of fields whose answers are known.

use std::path::Path;

use softly::units::Units;
use softly::{
    Darcy, DataConfig, Dataset, FieldEvaluator, FieldMetrics, FormulaResidual, GeneratorConfig, Helmholtz, Norm,
    Normalise, PairedRatio, ParameterConfig, ResidualConfig, Residuals, Size, misfit, npy,
};
use softly_pde::darcy::Discretisation;
use softly_pde::grid::Grid;

use crate::common::{law, train, valid};

fn darcy(size: usize, discretisation: Discretisation) -> GeneratorConfig {
    GeneratorConfig::Darcy(Darcy { size: Size::Square(size), length: 0.2, modes: 4, flow: 10.0, discretisation })
}

fn helmholtz() -> GeneratorConfig {
    let size = Size::Rectangle([16, 20]);
    GeneratorConfig::Helmholtz(Helmholtz { size, wave_number: 4.0, alpha: 2.0, tau: 3.0, zero_border: true })
}

fn data(generator: GeneratorConfig, count: usize, valid: usize) -> (Dataset, Units) {
    let normalise = Normalise::Std;
    let config = DataConfig { generator: Some(generator), count, valid, normalise, ..DataConfig::default() };
    let data = Dataset::from_config(&config).unwrap();
    let (units, _) = data.units(&config).unwrap();
    (data, units)
}

/// Measures against the equation of the data.
fn evaluator<'a>(data: &'a Dataset, units: &Units) -> FieldEvaluator<'a> {
    FieldEvaluator::new(data, data.equation.as_ref(), units).unwrap()
}

fn close(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance, "{found} instead of {expected}");
}

fn other(metrics: &FieldMetrics, name: &str) -> f64 {
    metrics.others[name].summary.mean
}

fn error(metrics: &FieldMetrics) -> f64 {
    metrics.solver.as_ref().unwrap().error.unwrap().summary.mean
}

#[test]
fn reference_rows_of_darcy_flow() {
    let (data, units) = data(darcy(16, Discretisation::Mirror), 60, 20);
    let rows = evaluator(&data, &units).references().unwrap();
    let names: Vec<&str> = rows.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["data", "p ≡ 0", "shuffled pairs"]);
    let [exact, zero, shuffled] = [0, 1, 2].map(|k| &rows[k].metrics);

    assert_eq!((exact.count, exact.not_finite, exact.formulas.len()), (20, 0, 1));
    assert!(exact.mean_residual() < 0.02, "{:?}", exact.residual);
    assert!(error(exact) < 1e-6, "{}", error(exact));
    assert_eq!((exact.fields[0].w1, exact.fields[1].spectral_distance), (0.0, 0.0));
    assert!(exact.fields.iter().all(|f| f.w1_floor > 0.0 && f.spectral_floor > 0.0));
    assert_eq!(exact.neighbours.ratio, Some(1.0));

    // Without pressure the residual is the source: ±10 at 8 of 256 nodes.
    assert_eq!(
        (zero.mean_residual(), zero.residual.unwrap().summary.two_sd, zero.residual.unwrap().median),
        (0.3125, 0.0, 0.3125)
    );
    close(other(zero, "three_channel_residual"), 0.3125 / 3.0, 1e-15);
    assert_eq!(other(zero, "boundary"), 0.0);
    close(error(zero), 1.0, 1e-12);
    assert_eq!(zero.fields[0].samples.std, 0.0);
    assert_eq!(zero.fields[1].w1, 0.0);

    // Marginals and spectra see nothing wrong with pairs that do not belong together.
    assert!(shuffled.fields.iter().all(|f| f.w1 == 0.0 && f.spectral_distance < 1e-9));
    assert!(shuffled.mean_residual() > 20.0 * exact.mean_residual());
    assert!(error(shuffled) > 0.1);
    assert_eq!(shuffled.solver.as_ref().unwrap().unsolved, 0);
}

#[test]
fn every_equation_is_measured_on_its_own_nodes() {
    let part = |formula: &str, region: &str, name: Option<&str>| ResidualConfig {
        formula: formula.into(),
        region: region.parse().unwrap(),
        weight: 1.0,
        name: name.map(String::from),
    };
    let parts =
        vec![part("u - v", "all", None), part("u", "border", None), part("dx(u) + dy(v)", "interior", Some("mass"))];
    let truth = law(&["u", "v"], Residuals::Many(parts), Norm::L2);
    let grid = Grid::unit(5, 4);
    let at = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f32> {
        (0..20).map(|i| f(f64::from(i / 4) / 4.0, f64::from(i % 4) / 3.0) as f32).collect()
    };
    // u = 2 + 3x and v = −1 + y: R is 3 + 3x − y, 2 + 3x and 4.
    let sample = [at(&|x, _| 2.0 + 3.0 * x), at(&|_, y| y - 1.0)].concat();
    let fields = truth.fields.clone();
    let (train, valid) = ([sample.clone(), sample.clone()].concat().into(), sample.clone().into());
    let (scalars, constants) = Default::default();
    let data = Dataset { fields, scalars, constants, grid, train, valid, generator: None, equation: None };
    let evaluator = FieldEvaluator::new(&data, Some(&truth), &Units::identity(2)).unwrap();
    let metrics = evaluator.metrics(&sample).unwrap();
    let titles: Vec<String> = metrics.formulas.iter().map(FormulaResidual::title).collect();
    assert_eq!(titles, ["u - v", "u on border", "mass"]);
    for (equation, expected) in metrics.formulas.iter().zip([4.0, 3.5, 4.0]) {
        close(equation.residual.summary.mean, expected, 1e-6);
    }
    // All values of all equations together: 20, 14 and 6 of them.
    close(metrics.residual.unwrap().summary.mean, (20.0 * 4.0 + 14.0 * 3.5 + 6.0 * 4.0) / 40.0, 1e-6);
    let json = serde_json::to_value(&metrics).unwrap();
    assert_eq!(json["formulas"][2]["name"], "mass");
    assert!(json["formulas"][1].get("name").is_none() && json["formulas"][1]["region"] == "border");
    assert_eq!(serde_json::from_value::<FieldMetrics>(json).unwrap(), metrics);
    // Held-out data are measured likewise.
    assert_eq!(evaluator.references().unwrap()[0].metrics.formulas, metrics.formulas);
}

#[test]
fn the_boundary_is_measured_on_its_own() {
    let (data, units) = data(darcy(16, Discretisation::OneSided), 4, 2);
    let evaluator = evaluator(&data, &units);
    // K = 1 and p = 3 x + 5 y: no residual besides the source, slopes of 3 and 5 at the sides.
    let grid = &data.grid;
    let pressure = (0..grid.len()).map(|n| 3.0 * (n / 16) as f64 / 15.0 + 5.0 * (n % 16) as f64 / 15.0);
    let sample: Vec<f64> = pressure.chain(std::iter::repeat_n(1.0, grid.len())).collect();
    let found = evaluator.metrics(&sample).unwrap();
    close(found.mean_residual(), 0.3125, 1e-10);
    close(other(&found, "boundary"), 4.0, 1e-12);
    close(other(&found, "three_channel_residual"), (80.0 + 32.0 * 8.0) / 768.0, 1e-10);
}

#[test]
fn the_three_channel_residual_is_the_published_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../softly-pde/tests/data/darcy_residual_pidm");
    let [p, k, expected] =
        ["p", "K", "pidm_residual"].map(|name| npy::read(&folder.join(format!("{name}.npy"))).unwrap());
    let (data, units) = data(darcy(64, Discretisation::OneSided), 2, 1);
    let evaluator = evaluator(&data, &units);
    let nodes = data.grid.len();
    for ((p, k), expected) in
        p.values.chunks(nodes).zip(k.values.chunks(nodes)).zip(expected.values.chunks_exact(3 * nodes))
    {
        let found = other(&evaluator.metrics(&[p, k].concat()).unwrap(), "three_channel_residual");
        let expected = expected.iter().map(|r| r.abs()).sum::<f64>() / (3 * nodes) as f64;
        // The reference computes in single precision.
        assert!((found / expected - 1.0).abs() < 1e-4, "{found} instead of {expected}");
    }
}

#[test]
fn a_shift_is_seen_by_marginals_alone() {
    let (data, units) = data(darcy(16, Discretisation::Mirror), 30, 12);
    let evaluator = evaluator(&data, &units);
    let nodes = data.grid.len();
    let shifted: Vec<f64> = valid(&data)
        .iter()
        .enumerate()
        .map(|(i, &v)| f64::from(v) + if i / nodes % 2 == 0 { 0.25 } else { 0.0 })
        .collect();
    let found = evaluator.metrics(&shifted).unwrap();
    let pressure = &found.fields[0];
    close(pressure.w1, 0.25, 1e-7);
    close(pressure.samples.mean - pressure.data.mean, 0.25, 1e-7);
    close(pressure.samples.std, pressure.data.std, 1e-9);
    close(pressure.samples.within.mean, pressure.data.within.mean, 1e-9);
    close(pressure.spectral_distance, 0.0, 1e-4);
    assert_eq!(found.fields[1].w1, 0.0);
    // Pressure is known up to a constant.
    assert!(error(&found) < 1e-6);
    // Every distance to the data has grown; the shift alone is 0.25 / scale in one of two fields.
    let shift = 0.25 / units.scale[0] / 2.0_f64.sqrt();
    assert!(found.neighbours.samples.median > 0.5 * shift, "{:?}", found.neighbours);
}

#[test]
fn copies_of_training_data_are_recognised() {
    let (data, units) = data(helmholtz(), 40, 10);
    let evaluator = evaluator(&data, &units);
    let found = evaluator.metrics(&train(&data)[..7 * data.sample_len()]).unwrap();
    assert_eq!((found.neighbours.samples.summary.mean, found.neighbours.ratio), (0.0, Some(0.0)));
    assert!(found.neighbours.held_out.median > 0.01);
}

#[test]
fn reference_rows_of_the_helmholtz_equation() {
    let (data, units) = data(helmholtz(), 20, 10);
    let evaluator = evaluator(&data, &units);
    let rows = evaluator.references().unwrap();
    let [exact, zero, shuffled] = [0, 1, 2].map(|k| &rows[k].metrics);
    assert_eq!(rows[1].name, "u ≡ 0");
    assert!(error(exact) < 1e-6 && exact.mean_residual() < 1e-4);
    assert_eq!((other(exact, "boundary"), exact.others.get("three_channel_residual")), (0.0, None));
    close(error(zero), 1.0, 1e-12);
    assert!(error(shuffled) > 0.1);
    // Without a solution the residual is the source at the inner nodes.
    let (nodes, cols) = (data.grid.len(), data.grid.cols());
    let inner = |i: usize| (1..15).contains(&(i / cols)) && (1..19).contains(&(i % cols));
    let source: f64 = valid(&data)
        .chunks(2 * nodes)
        .flat_map(|s| (0..nodes).filter(|&i| inner(i)).map(|i| f64::from(s[i].abs())))
        .sum();
    close(zero.mean_residual(), source / f64::from(10 * 14 * 18), 1e-12);
    // A residual map has the grid's shape, empty on the border.
    let map = &evaluator.residual_maps(&valid(&data)[..data.sample_len()])[0];
    assert!((0..nodes).all(|i| map[i].is_finite() == inner(i)));
    // Without a source there is nothing to compare with, and without copies all of it is read back.
    let nothing = evaluator.metrics(&vec![0.0; data.sample_len()]).unwrap();
    assert_eq!(nothing.solver.as_ref().map(|s| (s.unsolved, s.error)), Some((1, None)));
    for metrics in [exact, &nothing] {
        let text = serde_json::to_string(metrics).unwrap();
        assert_eq!(&serde_json::from_str::<FieldMetrics>(&text).unwrap(), metrics);
    }
}

#[test]
fn bad_samples_are_counted_and_left_out() {
    let (data, units) = data(darcy(16, Discretisation::Mirror), 20, 4);
    let evaluator = evaluator(&data, &units);
    let length = data.sample_len();
    let mut samples = valid(&data);
    samples[length + 3] = f32::NAN;
    // A quarter of the permeability of the last sample becomes negative.
    samples[3 * length + 256..3 * length + 320].iter_mut().for_each(|k| *k = -*k);
    let found = evaluator.metrics(&samples).unwrap();
    assert_eq!((found.count, found.not_finite, found.residual.unwrap().summary.n), (3, 1, 3));
    assert_eq!(found.per_sample.residual.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true]);
    let solver = found.solver.unwrap();
    close(solver.lifted, 64.0 / 768.0, 1e-15);
    assert_eq!((solver.unsolved, solver.error.unwrap().summary.n), (0, 3));
    assert!(found.per_sample.solver_error[3].unwrap() > 0.05);

    // The same samples paired with themselves.
    let residual = &found.per_sample.residual;
    let ratio = PairedRatio::new(&[(residual, residual)], 0).unwrap();
    assert_eq!((ratio.ratio, ratio.interval, ratio.pairs), (1.0, [1.0, 1.0], 3));

    let refuse = |samples: &[f32]| evaluator.metrics(samples).unwrap_err();
    let said = refuse(&[f32::NAN; 512]);
    assert!(said.exit_code() == 2 && said.to_string().contains("none of the 1 samples is finite"), "{said}");
    let said = refuse(&samples[1..]).to_string();
    assert!(said.contains("expected samples of 512 numbers each, found 2047"), "{said}");
    let foreign = Dataset { generator: Some(darcy(20, Discretisation::Mirror)), ..data.clone() };
    let truth = data.equation.as_ref().unwrap();
    let said = FieldEvaluator::new(&foreign, Some(truth), &units).err().expect("a refusal").to_string();
    assert!(said.contains("data.generator") && said.contains("16 × 16") && said.contains("20 × 20"), "{said}");
}

#[test]
fn data_of_unknown_origin_are_compared_without_residual_or_solver() {
    let (known, units) = data(darcy(16, Discretisation::Mirror), 20, 4);
    let unknown = Dataset { generator: None, equation: None, ..known.clone() };
    let evaluator = FieldEvaluator::new(&unknown, None, &units).unwrap();
    assert!(evaluator.equation().is_none() && evaluator.residual_maps(&valid(&unknown)[..512]).is_empty());
    let rows = evaluator.references().unwrap();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let found = &row.metrics;
    assert_eq!((found.count, found.residual, found.formulas.len(), &found.solver), (4, None, 0, &None));
    assert!(found.mean_residual().is_nan() && found.per_sample.residual == [None; 4]);
    // All else is as it is with an equation.
    let whole = &self::evaluator(&known, &units).references().unwrap()[0].metrics;
    assert_eq!((&found.fields, found.neighbours), (&whole.fields, whole.neighbours));
    // Training sample 7 is its own nearest neighbour.
    let nearest = evaluator.nearest(&train(&known)[7 * 512..8 * 512]).unwrap();
    assert_eq!((nearest[0].index, nearest[0].distance), (7, 0.0));
}

#[test]
fn a_wrong_source_is_missed_alike_in_every_sample() {
    let (data, _) = data(darcy(16, Discretisation::Mirror), 2, 12);
    let mut equation = data.equation.clone().unwrap();
    let right = &misfit(&equation, &data, &valid(&data)).unwrap()[0];
    equation.parameters.insert("flow".into(), ParameterConfig::Number(15.0));
    let wrong = &misfit(&equation, &data, &valid(&data)).unwrap()[0];
    // A source that is too strong by 5 at 8 of 256 nodes; single precision leaves the rest.
    close(wrong.mean_abs, 0.15625, 0.02);
    assert!(right.mean_abs < 0.02 && wrong.systematic.unwrap() > 0.99, "{right:?} {wrong:?}");
}
