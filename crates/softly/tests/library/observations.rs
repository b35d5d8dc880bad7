//! Measurements: what they read, their adjoint, and every kind of bad input.

use std::fs;
use std::path::Path;

use burn::tensor::{Tensor, TensorData};
use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{ConstraintConfig, Extent, Measured, Noise, Observations, Reading, npy, read_observations};
use softly_pde::grid::Grid;

use crate::common::{cpu, field, normals};

/// Two fields on 6 × 7 nodes.
struct Site {
    fields: Vec<String>,
    grid: Grid,
    units: Units,
    constraint: ConstraintConfig,
}

impl Site {
    fn new() -> Self {
        let text =
            "fields = ['p', 'K']\nresidual = 'K*laplacian(p)'\nstencils = { p = 'mirror' }\nparameters = { c = 2.0 }";
        Self {
            fields: vec!["p".into(), "K".into()],
            grid: Grid::unit(6, 7),
            units: Units { mean: vec![0.5, 2.0], scale: vec![0.2, 1.5] },
            constraint: toml::from_str(text).unwrap(),
        }
    }

    fn measured(&self) -> Measured<'_> {
        Measured {
            fields: &self.fields,
            grid: &self.grid,
            units: &self.units,
            sigma_data: 0.5,
            constraint: Some(&self.constraint),
        }
    }

    fn observations(&self, readings: &[Reading], noise: &[&str]) -> softly::error::Result<Observations> {
        let noise = Noise::parse(&noise.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        Observations::new(readings, &noise, self.measured())
    }

    /// What is made of a table's text.
    fn table(&self, text: &str, noise: &[&str]) -> softly::error::Result<Observations> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sensors.csv");
        fs::write(&file, text).unwrap();
        let cases = read_observations(&[file.display().to_string()], &self.grid)?;
        self.observations(&cases[0], noise)
    }
}

fn point(quantity: &str, x: f64, y: f64, value: f64) -> Reading {
    let place = vec![Extent::Point(x), Extent::Point(y)];
    Reading { source: format!("{quantity} at {x}, {y}"), quantity: quantity.into(), place, value, sd: Some(0.1) }
}

#[test]
fn sensors_read_bilinear_fields_fluxes_and_means_exactly() {
    let site = Site::new();
    let readings = [
        point("p", 0.31, 0.77, 0.4),
        point("K*dx(p)", 0.6, 0.25, 0.1),
        point("K + c*p", 0.2, 0.5, 3.0),
        Reading { place: vec![Extent::Whole, Extent::Range(0.0, 0.5)], ..point("K", 0.0, 0.0, 2.0) },
    ];
    let observations = site.observations(&readings, &[]).unwrap();
    assert_eq!((observations.len(), observations.is_linear()), (4, false));
    // p = 0.5 + 0.1 y (the mirror has no slope along x at the sides, so none at all), K = 2 + x − y, in physical units.
    let (rows, cols) = (site.grid.rows(), site.grid.cols());
    let coordinate = |k: usize| (k / cols, k % cols);
    let value = |k: usize, f: &dyn Fn(f64, f64) -> f64| {
        let (i, j) = coordinate(k);
        f(i as f64 / (rows - 1) as f64, j as f64 / (cols - 1) as f64)
    };
    let n = rows * cols;
    let p: Vec<f64> = (0..n).map(|k| (value(k, &|x, y| 0.5 + 0.1 * y + 0.0 * x) - 0.5) / 0.2).collect();
    let k: Vec<f64> = (0..n).map(|k| (value(k, &|x, y| 2.0 + x - y) - 2.0) / 1.5).collect();
    let x = field(&[p, k].concat(), [2, rows, cols]);
    let found = to_vec_f64(observations.predicted(&x));
    let expected = [0.5 + 0.1 * 0.77, 0.0, 2.0 + 0.2 - 0.5 + 2.0 * (0.5 + 0.05), 2.0 + 0.5 - 0.25];
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-10, "{found} and {expected}");
    }
    let misfit = to_vec_f64(observations.misfit(&x));
    assert!((misfit[0] - (expected[0] - 0.4) / 0.1).abs() < 1e-9);
    // Fields alone are linear.
    assert!(site.observations(&readings[..1], &[]).unwrap().is_linear());
    assert!(site.observations(&readings[2..3], &[]).unwrap().is_linear());
}

#[test]
fn the_transpose_is_the_adjoint_and_the_product_is_the_slope() {
    let site = Site::new();
    let readings = [
        point("p", 0.31, 0.77, 0.4),
        point("K*dx(p) + p^2", 0.6, 0.25, 0.1),
        Reading { place: vec![Extent::Whole, Extent::Whole], ..point("K*dy(p)", 0.0, 0.0, 0.3) },
    ];
    let observations = site.observations(&readings, &[]).unwrap();
    let numbers = |index: u64| field(&normals(4, index, 2 * 84), [2, 6, 7]);
    let (x, d) = (numbers(0), numbers(1));
    let linearised = observations.linearised(&x);
    let w: Tensor<2> = Tensor::from_data(TensorData::new(normals(4, 9, 6), [2, 3]), (&cpu(), x.dtype()));
    let left = to_vec_f64((linearised.product(&d) * w.clone()).sum())[0];
    let right = to_vec_f64((linearised.transposed(&w) * d.clone()).sum())[0];
    assert!((left - right).abs() < 1e-10 * left.abs().max(1.0), "{left} and {right}");
    // Formulas of second degree: the symmetric difference is exact.
    let at = |t: f64| observations.predicted(&(x.clone() + d.clone() * t));
    let slope = to_vec_f64(at(0.5) - at(-0.5));
    for (a, b) in slope.iter().zip(to_vec_f64(linearised.product(&d))) {
        assert!((a - b).abs() < 1e-10, "{a} and {b}");
    }
    // One sample's fields serve many directions.
    let first = observations.linearised(&x.clone().narrow(0, 0, 1));
    let own = to_vec_f64(first.product(&d));
    let same = to_vec_f64(linearised.product(&d));
    assert!((own[0] - same[0]).abs() < 1e-12 && own.len() == same.len());
}

#[test]
fn tables_are_read_with_comments_quotes_ranges_and_noise_of_their_own() {
    let site = Site::new();
    let text = "# two sensors\n\u{20}\nvalue,field,x,y,sd\n0.4,p,0.5,0.5,0.02\n3,\"K + min(p, c)\",0.1:0.9,,\n";
    let said = site.table(text, &["K + min(p, c)=0.5"]);
    let observations = said.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(observations.names(), ["p", "K + min(p, c)"]);
    assert_eq!((observations.values(), observations.sds()), (vec![0.4, 3.0], vec![0.02, 0.5]));
    let relative = site.table("field;x;y;value\nK;0;0;2\n", &["2%"]).unwrap();
    assert!((relative.sds()[0] - 0.02 * 1.5 * 0.5).abs() < 1e-12);
}

/// Checks that an error names its place and says what is wrong.
fn refused<T>(outcome: softly::error::Result<T>, parts: &[&str]) {
    let error = outcome.err().expect("expected an error");
    assert_eq!(error.exit_code(), 2, "{error}");
    let said = error.to_string();
    assert!(parts.iter().all(|part| said.contains(part)), "{parts:?} is not all in: {said}");
}

#[test]
fn bad_tables_are_refused_with_their_row() {
    let site = Site::new();
    let head = "field,x,y,value,sd\n";
    for (rows, parts) in [
        ("p,1.5,0.5,0.4,0.1\n", &["line 2", "x = 1.5 is outside of the domain, which is 0 to 1"][..]),
        ("p,0.5,0.5,0.4,0.1\nq,0.5,0.5,0.4,0.1\n", &["line 3", "no field `q`", "p, K"]),
        ("k,0.5,0.5,0.4,0.1\n", &["line 2", "no field `k`", "did you mean `K`"]),
        ("p,0.5,0.5,0.4,0.01\np,0.5,0.5,0.6,0.01\n", &["line 3", "0.6 contradicts 0.4", "line 2"]),
        ("p,0.5,0.5,0.4,0\n", &["line 2", "positive standard deviation", "found 0"]),
        ("p,0.5,0.5,0.4,-0.1\n", &["line 2", "positive standard deviation", "found -0.1"]),
        ("p,0.5,0.5,0.4,\n", &["line 2", "noise of `p` is not known", "--noise \"p=0.01\""]),
        ("p,0.5,0.5,nan,0.1\n", &["line 2", "a number for `value`", "`nan`"]),
        ("p,here,0.5,0.4,0.1\n", &["line 2", "a coordinate", "`here`"]),
        ("p,0.5,0.5,0.4\n", &["line 2", "expected 5 cells", "found 4"]),
        ("2*c + x,0.5,0.5,0.4,0.1\n", &["line 2", "depends on none of the fields"]),
        ("K*dx(p,0.5,0.5,0.4,0.1\n", &["line 2"]),
        (
            "p,0.5,0.5,101325,0.1\np,0.2,0.2,101300,0.1\n",
            &["line 2", "standard deviations from the training data", "other units"],
        ),
        (",0.5,0.5,0.4,0.1\n", &["line 2", "found nothing"]),
        ("", &["no rows", "field,x,y,value"]),
    ] {
        refused(site.table(&format!("{head}{rows}"), &[]), &[&["sensors.csv"], parts].concat());
    }
    refused(site.table("", &[]), &["sensors.csv", "empty"]);
    refused(site.table("field,x,value\np,0.5,0.4\n", &[]), &["sensors.csv", "no column `y`"]);
    refused(site.table("field,x,y,valu\np,0.5,0.4,1\n", &[]), &["unknown column `valu`", "did you mean `value`"]);
    refused(site.table("field,x,x,y,value\np,0,0,0,1\n", &[]), &["two columns `x`"]);
    refused(site.table(&format!("{head}p,0.5,0.5,0.4,0.1\n"), &["T=0.1"]), &["--noise", "nothing of `T` is measured"]);
    refused(site.table(&format!("{head}K*p,0.5,0.5,1,\n"), &["1%"]), &["a share needs a field"]);
    let crowd: String = (0..43).map(|_| "p,0.5,0.5,0.4,0.1\n").collect();
    refused(site.table(&format!("{head}{crowd}"), &[]), &["line 44", "more readings of `p` than the grid's 42 nodes"]);
    refused(read_observations(&["nowhere.csv".into()], &site.grid), &["nowhere.csv"]);
}

#[test]
fn arrays_hold_nan_where_nothing_is_known_and_one_case_or_many() {
    let site = Site::new();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, shape: &[usize], values: Vec<f64>| {
        let file = folder.path().join(name);
        npy::write_f64(&file, shape, values.into_iter()).unwrap();
        file
    };
    let source = |quantity: &str, file: &Path| format!("{quantity}={}", file.display());
    let mut values = vec![f64::NAN; 2 * 42];
    values[8] = 0.6;
    values[42] = 0.7;
    values[43] = 0.8;
    let many = write("many.npy", &[2, 6, 7], values.clone());
    let one = write("one.npy", &[6, 7], (0..42).map(|k| if k == 3 { 2.5 } else { f64::NAN }).collect());
    let cases = read_observations(&[source("p", &many), source("K", &one)], &site.grid).unwrap();
    assert_eq!(cases.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3]);
    let observations = site.observations(&cases[0], &["p=0.01", "K=0.1"]).unwrap();
    assert_eq!((observations.values(), observations.sds()), (vec![0.6, 2.5], vec![0.01, 0.1]));
    // Node [1, 1] of 6 × 7.
    let reads: Vec<_> = observations.places().map(|(_, nodes)| nodes.to_vec()).collect();
    assert_eq!(reads[0], [(8, 1.0)]);
    values[42] = f64::NAN;
    values[43] = f64::NAN;
    let empty = write("empty.npy", &[2, 6, 7], values);
    refused(read_observations(&[source("p", &empty)], &site.grid), &["none of sample 1"]);
    let nothing = write("nothing.npy", &[6, 7], vec![f64::NAN; 42]);
    refused(read_observations(&[source("p", &nothing)], &site.grid), &["nothing.npy", "NaN at every node"]);
    let infinite = write("infinite.npy", &[6, 7], vec![f64::INFINITY; 42]);
    refused(read_observations(&[source("p", &infinite)], &site.grid), &["infinite.npy", "inf at [0, 0]"]);
    let other = write("other.npy", &[7, 6], vec![0.0; 42]);
    refused(read_observations(&[source("p", &other)], &site.grid), &["other.npy", "[6, 7]", "[7, 6]"]);
    let three = write("three.npy", &[3, 6, 7], vec![1.0; 3 * 42]);
    refused(read_observations(&[source("p", &many), source("K", &three)], &site.grid), &["readings of 3 samples"]);
}
