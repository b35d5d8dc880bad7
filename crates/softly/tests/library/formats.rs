//! Files that NumPy, SciPy, h5py and netCDF4 wrote (`fixtures/formats/make.py`) give the same numbers, sample by
//! sample, and files that cannot be read say why.

use std::path::{Path, PathBuf};

use softly::error::Result;
use softly::format::{
    self, AxisGuess, ExportHead, ExportLayout, Exporter, FieldOption, FileSource, ImportOptions, Layout, Scalar,
};
use softly::{Imported, Source, Split, npy};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/formats")
}

fn paths(files: &[&str]) -> Vec<PathBuf> {
    files.iter().map(|f| folder().join(f)).collect()
}

/// The expected samples `[N, C, H, W]` of a case.
fn expected(case: &str) -> (Vec<usize>, Vec<f32>) {
    let mut file = format::open(&folder().join("expected.npz")).unwrap();
    let position = file.arrays().iter().position(|a| a.name == case).unwrap_or_else(|| panic!("no case {case}"));
    let shape = file.arrays()[position].shape.clone();
    let values = file.read_f32(position, &vec![0; shape.len()], &shape).unwrap();
    (shape, values)
}

fn source(files: &[&str], options: &ImportOptions) -> Result<FileSource> {
    FileSource::open(format::recognise(&paths(files), options)?, options)
}

/// Reads all samples of a source, in pieces of `step`.
fn values(source: &mut FileSource, step: usize) -> Vec<f32> {
    let count = source.count();
    let mut values = Vec::new();
    for start in (0..count).step_by(step) {
        let samples = source.read(start..count.min(start + step)).unwrap();
        values.extend(samples.into_iter().flat_map(|s| s.values));
    }
    values
}

/// Checks that a source gives exactly the samples of a case, however it is read.
fn check_source(case: &str, source: &mut FileSource) {
    let (shape, numbers) = expected(case);
    let [rows, columns] = source.axes();
    assert_eq!(shape, [source.count(), source.fields().len(), rows.nodes, columns.nodes], "{case}");
    let block = source.block().unwrap();
    for step in [1, 2, block] {
        let found = values(source, step);
        let wrong = found.iter().zip(&numbers).position(|(a, b)| a != b);
        assert!(found.len() == numbers.len() && wrong.is_none(), "{case}, {step} samples at once: number {wrong:?}");
    }
    let last = source.count() - 1;
    let again = source.read(last..last + 1).unwrap().remove(0).values;
    assert_eq!(again, numbers[numbers.len() - again.len()..], "{case}: the last sample");
    assert_eq!(source.read(0..1).unwrap()[0].values, numbers[..again.len()], "{case}: back to the first sample");
}

fn check_with(case: &str, files: &[&str], options: &ImportOptions) -> FileSource {
    let mut source = source(files, options).unwrap_or_else(|e| panic!("{case}: {e}"));
    check_source(case, &mut source);
    source
}

fn check(case: &str, file: &str) -> FileSource {
    check_with(case, &[file], &ImportOptions::default())
}

/// The options that import `FILE:ARRAY` as the field u.
fn field(file: &str, array: &str) -> ImportOptions {
    let field = FieldOption { name: "u".into(), file: folder().join(file), array: Some(array.into()) };
    ImportOptions { fields: vec![field], ..ImportOptions::default() }
}

fn axes(names: &str) -> Vec<String> {
    names.split(',').map(String::from).collect()
}

fn layout(file: &str) -> Layout {
    format::recognise(&paths(&[file]), &ImportOptions::default()).unwrap()
}

/// Name, ends, periodic and cells of an axis.
fn ends(axis: &AxisGuess) -> (&str, f64, f64, bool, bool) {
    (&axis.name, axis.first, axis.last, axis.periodic, axis.cells)
}

/// The message of what must fail, which must contain all of `parts`.
fn refused<T>(result: Result<T>, parts: &[&str]) {
    let Err(error) = result else { panic!("accepted, expected an error with {parts:?}") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "\"{part}\" is missing in: {text}");
    }
    assert_eq!(error.exit_code(), 2, "{text}");
}

fn refused_file(file: &str, parts: &[&str]) {
    let result = source(&[file], &ImportOptions::default()).and_then(|mut s| s.read(0..s.count()));
    refused(result, &[&[file], parts].concat());
}

#[test]
fn npy_of_every_type_and_order() {
    for case in [
        "c_f4",
        "fortran_f8",
        "big_f4",
        "big_fortran_f8",
        "f2",
        "i1",
        "i2_big",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4_big",
        "u8",
        "bool",
    ] {
        check(case, &format!("{case}.npy"));
    }
}

#[test]
fn npy_of_other_shapes() {
    let source = check("channels", "channels.npy");
    assert_eq!(source.fields(), ["channels_0", "channels_1"]);
    let source = check_with("pairs", &["pair_0.npy", "pair_1.npy", "pair_2.npy"], &ImportOptions::default());
    assert_eq!(source.fields(), ["pair_0", "pair_1"]);
    let options = ImportOptions { axes: axes("x,y,sample"), ..ImportOptions::default() };
    check_with("last_is_sample", &["last_is_sample.npy"], &options);
    let options = ImportOptions { axes: axes("x,y,z"), slice: vec![("z".into(), 3)], ..ImportOptions::default() };
    check_with("volume", &["volume.npy"], &options);
}

#[test]
fn npz_stored_and_deflated() {
    let mut stored = check("stored", "stored.npz");
    assert_eq!(stored.fields(), ["K", "p"]);
    assert_eq!(stored.scalars(), ["nu"]);
    assert_eq!(stored.read(1..2).unwrap()[0].scalars, [0.2]);
    assert_eq!(ends(&stored.axes()[0]), ("x", -1.0, 1.0, false, false));
    assert_eq!(ends(&stored.axes()[1]), ("y", 0.0, 1.0, false, true));
    check("deflated", "deflated.npz");
}

#[test]
fn tables() {
    let source = check_with("pidm", &["K_data.csv", "p_data.csv"], &ImportOptions::default());
    assert_eq!(source.fields(), ["K", "p"]);
    for case in ["semicolon", "tab", "spaces", "header"] {
        check(case, &format!("{case}.csv"));
    }
}

#[test]
fn matlab_of_every_version() {
    for case in ["v5", "v7", "v73", "big", "thresh", "helmholtz", "poisson", "burgers"] {
        check(case, &format!("{case}.mat"));
    }
    assert_eq!(layout("v7.mat").name, "FNO Darcy");
    assert_eq!(layout("v73.mat").name, "FNO Darcy");
    assert_eq!(layout("thresh.mat").name, "DiffusionPDE Darcy");
    assert_eq!(layout("helmholtz.mat").name, "DiffusionPDE Helmholtz");
    assert_eq!(layout("poisson.mat").name, "DiffusionPDE Poisson");
    assert_eq!(layout("burgers.mat").name, "DiffusionPDE Burgers");
}

#[test]
fn matlab_text_and_cells_are_listed_as_unreadable() {
    for file in ["v5.mat", "v7.mat"] {
        let described = format::describe(&folder().join(file)).unwrap().to_string();
        for part in
            ["coeff  [4, 7, 6]  f8", "note  [1, 14]  text", "cells  [1, 2]  a cell array", "taken for FNO Darcy"]
        {
            assert!(described.contains(part), "{part} is missing in {described}");
        }
    }
}

#[test]
fn navier_stokes_frames_are_samples_with_their_time() {
    let mut source = check("ns", "ns.mat");
    assert_eq!(source.scalars(), ["t"]);
    let times: Vec<f64> = source.read(0..10).unwrap().iter().map(|s| s.scalars[0]).collect();
    assert_eq!(times, [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let options = ImportOptions { frames: Some([4, 4]), ..ImportOptions::default() };
    let source = check_with("ns_last", &["ns.mat"], &options);
    assert_eq!(ends(&source.axes()[0]), ("x", 0.0, 1.0, true, false));
}

#[test]
fn pdebench_darcy() {
    let mut source = check("darcy", "2D_DarcyFlow_beta0.1_Train.hdf5");
    assert_eq!(source.fields(), ["nu", "u"]);
    assert_eq!(ends(&source.axes()[0]), ("x", 0.0, 1.0, false, true));
    assert_eq!(
        (source.scalars(), source.read(0..1).unwrap()[0].scalars.clone()),
        (vec!["beta".to_string()], vec![0.1])
    );
    assert_eq!(layout("2D_DarcyFlow_beta0.1_Train.hdf5").name, "PDEBench Darcy");
}

#[test]
fn pdebench_burgers_has_a_time_too_many() {
    let file = "1D_Burgers_Sols_Nu0.01.hdf5";
    let source = check("burgers_1d", file);
    let [t, x] = source.axes();
    assert_eq!(ends(x), ("x", 0.0, 1.0, true, true));
    assert_eq!(ends(t), ("t", 0.0, 0.6, false, false));
    assert_eq!(t.from, "the first 7 of 8 entries of t-coordinate");
    let both = check_with("burgers_two", &[file, "1D_Burgers_Sols_Nu0.1.hdf5"], &ImportOptions::default());
    assert_eq!(both.count(), 5);
    let mut both = both;
    let nu: Vec<f64> = both.read(0..5).unwrap().iter().map(|s| s.scalars[0]).collect();
    assert_eq!(nu, [0.01, 0.01, 0.01, 0.1, 0.1]);
    let stride = vec![("t".into(), 3), ("x".into(), 2)];
    let source = check_with("burgers_stride", &[file], &ImportOptions { stride, ..ImportOptions::default() });
    let [t, x] = source.axes();
    assert_eq!(ends(t), ("t", 0.0, 0.6, false, false));
    // Every second cell centre of a periodic axis: nodes from 1/16 on, with the same period.
    assert_eq!(ends(x), ("x", 0.0625, 1.0625, true, false));
}

#[test]
fn pdebench_flow_in_three_ways() {
    let file = "2D_CFD_Rand_periodic_Train.hdf5";
    let mut source = check("cfd", file);
    assert_eq!(source.fields(), ["density", "Vx"]);
    assert_eq!(source.scalars(), ["eta", "zeta", "M", "t"]);
    assert_eq!(source.read(4..5).unwrap()[0].scalars, [0.01, 0.02, 0.1, 0.5]);
    assert_eq!(ends(&source.axes()[1]), ("y", 0.0, 1.0, true, true));
    let slice = vec![("y".into(), 2)];
    let source = check_with("cfd_space_time", &[file], &ImportOptions { slice, ..ImportOptions::default() });
    assert_eq!(ends(&source.axes()[0]), ("t", 0.0, 1.0, false, false));
    let options = ImportOptions { axes: axes("y,x"), ..ImportOptions::default() };
    let source = check_with("cfd_transposed", &[file], &options);
    assert_eq!((source.axes()[0].name.as_str(), source.axes()[0].nodes), ("y", 5));
}

#[test]
fn pdebench_groups() {
    let mut source = check("diff_react", "2D_diff-react_NA_NA.h5");
    assert_eq!(source.fields(), ["u", "v"]);
    assert_eq!(ends(&source.axes()[0]), ("x", -1.0, 1.0, false, true));
    assert_eq!(source.scalars(), ["Du", "Dv", "k", "t"]);
    let scalars = source.read(5..6).unwrap()[0].scalars.clone();
    assert_eq!(scalars[..3], [0.001, 0.005, 0.006]);
    assert!((scalars[3] - 0.05).abs() < 1e-7);
}

#[test]
fn pdebench_incompressible_flow_in_lzf() {
    let source = check("ns_incom", "ns_incom_inhom_2d.h5");
    assert_eq!(source.fields(), ["velocity_x", "velocity_y", "particles", "force_x", "force_y"]);
}

#[test]
fn the_well() {
    let mut source = check("the_well", "the_well.hdf5");
    assert_eq!(source.fields(), ["depth", "pressure", "velocity_x", "velocity_z"]);
    let [x, z] = source.axes();
    assert_eq!(ends(x), ("x", 0.0, 1.0, true, false));
    assert_eq!(ends(z), ("z", -1.0, 1.0, false, false));
    assert_eq!(source.scalars(), ["Re", "seed_of_sample", "t"]);
    assert_eq!(source.read(4..5).unwrap()[0].scalars, [100.0, 4.0, 0.5]);
    let layout = layout("the_well.hdf5");
    assert!(layout.notes.contains(&"boundary conditions: wall at the ends of z".to_string()), "{:?}", layout.notes);
}

#[test]
fn hdf5_of_every_type() {
    for name in ["f2", "big", "i2", "u1", "lzf", "fletcher"] {
        check_with(&format!("h5_{name}"), &[], &field("types.h5", name));
    }
    check_with("h5_f8", &[], &field("types.h5", "deep/group/f8"));
}

#[test]
fn netcdf_unpacks_numbers_and_knows_its_axes() {
    let mut source = check("heat", "heat.nc");
    let [lat, lon] = source.axes();
    assert_eq!(ends(lat), ("lat", -10.0, 10.0, false, false));
    assert_eq!(ends(lon), ("lon", 0.0, 270.0, false, false));
    assert_eq!((source.scalars(), source.read(2..3).unwrap()[0].scalars[0]), (vec!["t".to_string()], 2.0));
    let options = ImportOptions { periodic: vec!["lon".into()], ..ImportOptions::default() };
    let source = check_with("heat", &["heat.nc"], &options);
    assert_eq!(ends(&source.axes()[1]), ("lon", 0.0, 360.0, true, false));
}

#[test]
fn content_counts_and_not_the_extension() {
    check("hdf5_inside", "hdf5_inside.npy");
}

#[test]
fn stated_axes_override_guesses() {
    let options = ImportOptions {
        axes: axes("x,y"),
        domain: vec![("x".into(), [0.0, 2.0]), ("y".into(), [-1.0, 1.0])],
        periodic: vec!["y".into()],
        cells: Some(true),
        ..ImportOptions::default()
    };
    let source = check_with("c_f4", &["c_f4.npy"], &options);
    assert_eq!(ends(&source.axes()[0]), ("x", 0.0, 2.0, false, true));
    assert_eq!(ends(&source.axes()[1]), ("y", -1.0, 1.0, true, true));
    // Coordinates −1 … 1 of six entries that are called cell centres: the domain grows by half a cell at each end.
    let options = ImportOptions { cells: Some(true), ..ImportOptions::default() };
    let source = check_with("stored", &["stored.npz"], &options);
    let x = &source.axes()[0];
    assert!((x.first + 1.2).abs() < 1e-12 && (x.last - 1.2).abs() < 1e-12, "{x:?}");
}

#[test]
fn repeated_nodes_of_both_axes_are_left_out() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("u.npy");
    let wave = |i: usize, n: usize| (i as f64 / n as f64 * std::f64::consts::TAU).sin() as f32;
    // Six intervals along x, eight along y, the last node of each being the first.
    let value = |i: usize, j: usize| 1.0 + 2.0 * wave(i % 6, 6) + wave(j % 8, 8);
    let numbers = (0..3).flat_map(|k| (0..7 * 9).map(move |at| k as f32 + value(at / 9, at % 9)));
    npy::write_f32(&path, &[3, 7, 9], numbers).unwrap();
    let options = ImportOptions { periodic: vec!["x".into(), "y".into()], ..ImportOptions::default() };
    let mut source = FileSource::open(format::recognise(&[path], &options).unwrap(), &options).unwrap();
    assert_eq!(source.axes().iter().map(|axis| axis.nodes).collect::<Vec<_>>(), [6, 8]);
    let expected: Vec<f32> = (0..3).flat_map(|k| (0..6 * 8).map(move |at| k as f32 + value(at / 8, at % 8))).collect();
    assert_eq!(values(&mut source, 2), expected);
}

#[test]
fn a_repeated_node_of_periodic_data_is_left_out() {
    let options = ImportOptions { periodic: vec!["x".into()], ..ImportOptions::default() };
    let source = check_with("repeated", &["repeated.npy"], &options);
    assert_eq!((source.axes()[0].nodes, source.axes()[0].last), (8, 1.0));
    assert!(
        source.notes().iter().any(|n| n.contains("the last entry along x repeats the first")),
        "{:?}",
        source.notes()
    );
    let source = check("not_repeated", "repeated.npy");
    assert!(source.notes().iter().any(|n| n.contains("--periodic x")), "{:?}", source.notes());
    assert!(!source.notes().iter().any(|n| n.contains("--periodic y")), "{:?}", source.notes());
}

#[test]
fn nan_names_its_sample_and_can_be_dropped() {
    refused_file("nan.npy", &["field nan", "found NaN in sample 1", "--drop-nan"]);
    let options = ImportOptions { drop_nan: true, ..ImportOptions::default() };
    let source = check_with("nan", &["nan.npy"], &options);
    assert!(source.notes().iter().any(|n| n.contains("1 of 3 samples")), "{:?}", source.notes());
    refused_file("huge.npy", &["beyond single precision", "sample 0"]);
}

#[test]
fn files_that_cannot_be_read_say_why() {
    for (file, parts) in [
        ("complex.npy", vec!["complex numbers", "the real and the imaginary part"]),
        ("complex.mat", vec!["complex numbers"]),
        ("text.npy", vec!["expected fields [N, H, W]"]),
        ("empty.npy", vec!["the file is empty"]),
        ("noise.npy", vec!["text without numbers"]),
        ("truncated.npy", vec!["truncated", "holds 57 numbers", "[3, 4, 5]"]),
        ("truncated.npz", vec!["truncated", "table of contents"]),
        ("truncated.mat", vec!["truncated", "bytes more"]),
        ("truncated_v7.mat", vec!["truncated", "bytes more"]),
        ("truncated.h5", vec!["truncated", "bytes of"]),
        ("encrypted.npz", vec!["K is encrypted", "password"]),
        ("blosc.h5", vec!["Blosc", "h5repack"]),
        ("bad_cell.csv", vec!["line 3", "column 3", "\"n/a\""]),
        ("short_row.csv", vec!["line 3", "expected 5 columns", "found 4"]),
        ("comma.csv", vec!["decimal point"]),
        ("words.csv", vec!["text without numbers"]),
        ("uneven.h5", vec!["not evenly spaced", "--domain x="]),
        ("volume.npy", vec!["axis1 (5 entries)", "--axes t,x,y", "--slice"]),
    ] {
        let result = source(&[file], &ImportOptions::default()).and_then(|mut s| s.read(0..s.count()));
        refused(result, &parts);
    }
    refused(source(&["no such file.h5"], &ImportOptions::default()), &["cannot read", "no such file.h5"]);
    refused(source(&["."], &ImportOptions::default()), &["found a folder"]);
    let options = ImportOptions { domain: vec![("x".into(), [0.0, 8.0])], ..ImportOptions::default() };
    check_with("uneven", &["uneven.h5"], &options);
}

#[test]
fn files_that_promise_more_than_any_machine_holds_are_refused_at_once() {
    let begin = std::time::Instant::now();
    for (file, parts) in [
        ("samples_without_end.h5", vec!["data import", "needs about", "this machine has"]),
        ("frames_without_end.h5", vec!["data import", "needs about", "this machine has"]),
        ("components_without_end.h5", vec!["0000/data", "at most 64 components", "1099511627776"]),
        ("many_axes.npz", vec!["a grid has two axes"]),
        ("many_dimensions.hdf5", vec!["spatial_dims", "found 40"]),
    ] {
        refused(source(&[file], &ImportOptions::default()), &parts);
    }
    // Groups that contain each other are listed once.
    check("circles", "circles.h5");
    assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn options_that_do_not_fit_say_what_would() {
    let with = |options: ImportOptions, file: &str| source(&[file], &options);
    let none = ImportOptions::default;
    refused(source(&[], &field("types.h5", "f3")), &["there is no array f3", "deep/group/f8", "did you mean f2?"]);
    refused(source(&[], &field("types.h5", "complex")), &["types.h5:complex", "complex numbers"]);
    refused(source(&[], &field("types.h5", "words")), &["found text"]);
    refused(with(ImportOptions { axes: axes("a,b,c,d"), ..none() }, "c_f4.npy"), &["a, b, c, d", "[3, 4, 5]"]);
    refused(with(ImportOptions { axes: axes("c_f,y"), ..none() }, "c_f4.npy"), &["field and of an axis"]);
    refused(with(ImportOptions { periodic: axes("z"), ..none() }, "c_f4.npy"), &["--periodic", "no axis z", "x, y"]);
    refused(with(ImportOptions { frames: Some([0, 9]), ..none() }, "ns.mat"), &["frames 0 to 4", "found 9"]);
    refused(with(ImportOptions { frames: Some([0, 1]), ..none() }, "c_f4.npy"), &["--frames", "no axis t"]);
    refused(with(ImportOptions { stride: vec![("x".into(), 4)], ..none() }, "ns.mat"), &["periodic", "divisor"]);
    refused(with(ImportOptions { slice: vec![("x".into(), 4)], ..none() }, "c_f4.npy"), &["from 0 to 3", "found 4"]);
    refused(with(ImportOptions { slice: vec![("x".into(), 0)], ..none() }, "c_f4.npy"), &["a grid has two axes"]);
    refused(source(&["c_f4.npy", "K_data.csv"], &none()), &["K_data.csv", "share one grid"]);
    refused(source(&["v5.mat", "thresh.mat"], &none()), &["thresh.mat", "axis x has 6 entries", "has 7"]);
    for text in ["u", "=file", "u="] {
        refused(FieldOption::parse(text), &["NAME=FILE:ARRAY"]);
    }
    refused(ImportOptions::parse_domain("x=1:0"), &["FIRST < LAST"]);
    refused(ImportOptions::parse_domain("x=1"), &["AXIS=FIRST:LAST"]);
    refused(ImportOptions::parse_frames("5-2"), &["A ≤ B"]);
    refused(ImportOptions::parse_count("--stride", "t=0", 1), &["--stride", "N ≥ 1"]);
    let parsed = FieldOption::parse("u=a.h5:/g/d").unwrap();
    assert_eq!((parsed.file, parsed.array), (PathBuf::from("a.h5"), Some("g/d".to_string())));
    assert_eq!(ImportOptions::parse_domain("x=-1:2.5").unwrap(), ("x".to_string(), [-1.0, 2.5]));
    assert_eq!(ImportOptions::parse_frames("3").unwrap(), [3, 3]);
}

/// Writes a source in a layout and opens what was written.
fn exported(source: &mut FileSource, layout: ExportLayout, path: &Path) -> FileSource {
    let samples = source.read(0..source.count()).unwrap();
    let scalars = source.scalars().into_iter().enumerate().map(|(k, name)| {
        let mut values: Vec<f64> = samples.iter().map(|s| s.scalars[k]).collect();
        if values.iter().all(|v| *v == values[0]) {
            values.truncate(1);
        }
        Scalar { name, values }
    });
    let head = ExportHead {
        name: "test".into(),
        fields: source.fields(),
        axes: source.axes().clone(),
        scalars: scalars.collect(),
        samples: source.count(),
    };
    let mut exporter = Exporter::create(path, layout, &head).unwrap();
    for sample in &samples {
        exporter.push(sample).unwrap();
    }
    assert!(!path.exists(), "a file gets its name when it is complete");
    exporter.finish().unwrap();
    let options = ImportOptions::default();
    FileSource::open(format::recognise(&[path.to_path_buf()], &options).unwrap(), &options).unwrap()
}

#[test]
fn what_is_exported_is_imported_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let flow = ImportOptions { frames: Some([1, 1]), ..ImportOptions::default() };
    for (case, file, options, layouts) in [
        ("burgers_1d", "1D_Burgers_Sols_Nu0.01.hdf5", ImportOptions::default(), 2),
        ("darcy", "2D_DarcyFlow_beta0.1_Train.hdf5", ImportOptions::default(), 2),
        ("the_well", "the_well.hdf5", flow, 1),
    ] {
        for layout in &[ExportLayout::TheWell, ExportLayout::PdeBench][..layouts] {
            let mut before = source(&[file], &options).unwrap();
            let path = folder.path().join(format!("{case}_{layout:?}.h5"));
            let mut after = exported(&mut before, *layout, &path);
            assert_eq!((before.fields(), before.count()), (after.fields(), after.count()), "{case} {layout:?}");
            for (a, b) in before.axes().iter().zip(after.axes()) {
                assert_eq!(ends(a), ends(b), "{case} {layout:?}");
            }
            let count = before.count();
            assert!(before.read(0..count).unwrap() == after.read(0..count).unwrap(), "{case} {layout:?}");
            assert_eq!(before.scalars(), after.scalars(), "{case} {layout:?}");
        }
    }
    let mut burgers = source(&["1D_Burgers_Sols_Nu0.01.hdf5"], &ImportOptions::default()).unwrap();
    let head = ExportHead {
        name: String::new(),
        fields: burgers.fields(),
        axes: [burgers.axes()[1].clone(), burgers.axes()[0].clone()],
        scalars: Vec::new(),
        samples: 3,
    };
    refused(Exporter::create(&folder.path().join("x.h5"), ExportLayout::TheWell, &head), &["t as the first axis"]);
    let head = ExportHead { axes: burgers.axes().clone(), ..head };
    let mut unfinished = Exporter::create(&folder.path().join("x.h5"), ExportLayout::TheWell, &head).unwrap();
    unfinished.push(&burgers.read(0..1).unwrap()[0]).unwrap();
    assert!(unfinished.finish().unwrap_err().to_string().contains("expected 3 samples, got 1"));
}

/// The next number of a simple generator of noise.
fn noise(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn damaged_files_are_refused_or_read_but_never_panic() {
    let folder_of_damage = tempfile::tempdir().unwrap();
    let mut state = 1;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let whole = std::fs::read(&path).unwrap();
        if whole.is_empty() || path.ends_with("make.py") {
            continue;
        }
        let damaged_path = folder_of_damage.path().join(path.file_name().unwrap());
        for round in 0..40 {
            let mut bytes = whole.clone();
            if round % 4 == 0 {
                bytes.truncate(noise(&mut state) as usize % whole.len());
            } else {
                for _ in 0..=round / 4 {
                    // Most damage goes to the beginning, where formats keep their tables.
                    let reach = if round % 2 == 0 { whole.len() } else { whole.len().min(600) };
                    bytes[noise(&mut state) as usize % reach] = noise(&mut state) as u8;
                }
            }
            std::fs::write(&damaged_path, &bytes).unwrap();
            let options = ImportOptions::default();
            let _ = format::describe(&damaged_path).map(|d| d.to_string());
            let _ = format::recognise(std::slice::from_ref(&damaged_path), &options)
                .and_then(|layout| FileSource::open(layout, &options))
                .and_then(|mut source| source.read(0..source.count().min(2)));
        }
    }
}

#[test]
fn numbers_of_samples_come_with_their_names() {
    // One attribute per group, and one that all groups share.
    let mut source = check("sorption", "1D_diff-sorp_NA_NA.h5");
    assert_eq!(source.scalars(), ["nu", "beta"]);
    assert_eq!(source.read(2..3).unwrap()[0].scalars, [0.3, 2.0]);
    let values = source.scalar_values();
    assert_eq!((&values[0].values, &values[1].values), (&vec![0.1, 0.2, 0.3], &vec![2.0]));

    // A list, a table's column and a single number beside a field.
    let number = |name: &str, file: &str, array: Option<&str>| FieldOption {
        name: name.into(),
        file: folder().join(file),
        array: array.map(String::from),
    };
    let with = |numbers: Vec<FieldOption>| {
        let mut options = field("stored.npz", "K");
        options.fields.extend(numbers);
        source_of(&options)
    };
    let named = with(vec![number("a", "stored.npz", Some("nu")), number("b", "numbers.csv", Some("nu_squared"))]);
    let mut named = named.unwrap();
    assert_eq!((named.fields(), named.scalars()), (vec!["u".to_string()], vec!["a".into(), "b".to_string()]));
    let second = named.read(1..2).unwrap().remove(0).scalars;
    assert!(second[0] == 0.2 && (second[1] - 0.04).abs() < 1e-15, "{second:?}");
    refused(
        with(vec![number("a", "stored.npz", Some("x"))]),
        &["stored.npz", "one number a per sample, 3 in all, found 6"],
    );
    let only = ImportOptions { fields: vec![number("a", "stored.npz", Some("nu"))], ..ImportOptions::default() };
    refused(source_of(&only), &["--field", "expected a field [N, H, W]", "one number per sample"]);

    refused_numbers("with_nan.npz", &["number nu", "NaN in sample 1", "--drop-nan", "--scalars"]);
    let options = ImportOptions { drop_nan: true, ..ImportOptions::default() };
    let mut source = check_with("with_nan", &["with_nan.npz"], &options);
    assert_eq!(source.scalar_values()[0].values, [0.1, 0.3]);
    assert_eq!(source.read(1..2).unwrap()[0].scalars, [0.3]);
}

fn source_of(options: &ImportOptions) -> Result<FileSource> {
    source(&[], options)
}

fn refused_numbers(file: &str, parts: &[&str]) {
    refused(source(&[file], &ImportOptions::default()).and_then(|mut s| s.read(0..s.count())), parts);
}

#[test]
fn the_numbers_that_are_kept_can_be_chosen() {
    let import = |scalars: Option<&str>, file: &str| {
        let scalars = scalars.map(|names| names.split(',').filter(|n| !n.is_empty()).map(String::from).collect());
        Imported::open(&paths(&[file]), &ImportOptions { scalars, ..ImportOptions::default() }, 0.5)
    };
    let names = |imported: &Imported| imported.scalars().into_iter().map(|s| s.name).collect::<Vec<_>>();
    let constants = |imported: &Imported| imported.constants().into_iter().collect::<Vec<_>>();
    let all = import(None, "the_well.hdf5").unwrap();
    assert_eq!((names(&all), constants(&all)), (vec!["seed_of_sample".to_string()], vec![("Re".to_string(), 100.0)]));
    assert!(all.notes.iter().any(|n| n.contains("t of the samples is not kept")), "{:?}", all.notes);
    let some = import(Some("t"), "the_well.hdf5").unwrap();
    assert_eq!((names(&some), constants(&some)), (vec!["t".to_string()], Vec::new()));
    assert!(names(&import(Some(""), "the_well.hdf5").unwrap()).is_empty());
    refused(import(Some("Ra"), "the_well.hdf5"), &["--scalars", "no number Ra", "Re, seed_of_sample, t"]);
    refused(import(Some("a"), "c_f4.npy"), &["--scalars", "none"]);
    // The samples of two files with other constants: the number varies.
    let files = paths(&["1D_Burgers_Sols_Nu0.01.hdf5", "1D_Burgers_Sols_Nu0.1.hdf5"]);
    let both = Imported::open(&files, &ImportOptions::default(), 0.2).unwrap();
    assert_eq!((names(&both), constants(&both)), (vec!["Nu".to_string()], Vec::new()));
    let held_out = both.samples(Split::Valid, 0..1).unwrap().remove(0);
    assert_eq!((held_out.len(), held_out[56]), (57, 0.1));
}

#[test]
fn axes_that_do_not_fit_their_coordinates_are_refused() {
    let import = |file: &str, options: ImportOptions| Imported::open(&paths(&[file]), &options, 0.5);
    let none = ImportOptions::default;
    refused(
        import("transposed.npz", none()),
        &["transposed.npz:u", "[3, 6, 5]", "5 along x and 6 along y", "another order", "--axes y,x"],
    );
    let turned = ImportOptions { axes: axes("y,x"), ..none() };
    let source = check_with("transposed", &["transposed.npz"], &turned);
    assert_eq!(ends(&source.axes()[0]), ("y", 0.0, 1.0, false, true));
    refused(
        import("transposed_well.hdf5", none()),
        &["transposed_well.hdf5:t0_fields/u", "[3, 1, 6, 5]", "transposed"],
    );
    let unrelated = import("unrelated.npz", none()).unwrap();
    assert!(unrelated.notes.iter().any(|n| n.contains("the 9 coordinates of x are not used")), "{:?}", unrelated.notes);
    refused(import("backwards.npz", none()), &["axis `x`", "first < last", "reverse them"]);
    refused(import("standing.npz", none()), &["coordinates of x", "not evenly spaced"]);
    let shapes = import("shapes.npz", none()).unwrap();
    assert!(shapes.notes.iter().any(|n| n.contains("v [3, 4, 4] is left out")), "{:?}", shapes.notes);
    assert_eq!(shapes.fields().len(), 1);
    refused(import("huge.npy", none()), &["at least 2 samples, found 1", "hold out"]);
    for valid in [0.0, 1.0, -0.1, f64::NAN] {
        refused(Imported::open(&paths(&["c_f4.npy"]), &none(), valid), &["--valid", "between 0 and 1"]);
    }
    let home = tempfile::tempdir().unwrap();
    let reserved = home.path().join("scalars.npy");
    std::fs::copy(folder().join("c_f4.npy"), &reserved).unwrap();
    refused(Imported::open(&[reserved], &none(), 0.5), &["`scalars` cannot be a field's name", "--field"]);
}

#[test]
fn other_formats_where_an_array_is_expected_are_named() {
    for (file, words) in [("hdf5_inside.npy", "an HDF5 file"), ("stored.npz", "an .npz archive"), ("v5.mat", "MATLAB")]
    {
        refused(npy::read(&folder().join(file)), &[file, "expected a .npy array", words, "softly data import"]);
    }
    for (file, words) in [("fortran_f8.npy", "Fortran"), ("big_f4.npy", ">f4"), ("i4.npy", "<i4"), ("f2.npy", "<f2")] {
        refused(npy::read(&folder().join(file)), &[file, words, "save"]);
    }
}
