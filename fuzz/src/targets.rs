//! Functions that read a stranger's bytes, each as the program calls it. None may panic, whatever the bytes; errors are fine.
//!
//! Fuzzers call them through `fuzz_targets`, and `crates/softly/tests/corpus.rs` with every file of `corpus`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use softly::error::Result;
use softly::format::{self, FileSource, ImportOptions};
use softly::units::Units;
use softly::{
    Layers, Measured, Noise, Observations, Snapshot, SoftConstraint, TensorFile, device, npy, read_observations,
};
use softly_pde::algebra::{F64Algebra, Value};
use softly_pde::formula::{Parameter, Symbols, compile, evaluate_constant};
use softly_pde::grid::{Axis, Grid};
use softly_pde::{mention, terms};

/// A target: reads bytes.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also that of its folder in `corpus`.
pub const TARGETS: [(&str, Target); 8] = [
    ("formula", formula),
    ("configuration", configuration),
    ("npy", npy),
    ("mat", mat),
    ("hdf5", hdf5),
    ("csv", csv),
    ("snapshot", snapshot),
    ("observations", observations),
];

/// Numbers of an array that are read; larger ones are described only.
const MOST_NUMBERS: usize = 1 << 12;

/// Numbers that no machine holds.
const NO_MACHINE: usize = 1 << 40;

/// The folder of inputs, in memory where the system has such a place; every process has its own.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
        let folder = parent.join(format!("softly-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for inputs");
        folder
    })
}

/// Removes the inputs of this process.
pub fn clean() {
    // Best effort: what stays are a few small files.
    let _ = fs::remove_dir_all(folder());
}

/// A file with these bytes.
fn file(name: &str, data: &[u8]) -> PathBuf {
    let path = folder().join(name);
    fs::write(&path, data).expect("room for an input");
    path
}

/// A residual formula on a grid of space, one of time and a periodic axis of cells, or a point: compiled, evaluated and
/// differentiated both ways.
pub fn formula(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let grid = match text.len() % 3 {
        0 => Grid::unit(6, 5),
        1 => Grid { axes: vec![Axis::new("t", 5, 0.0, 2.0), Axis::new("x", 6, -1.0, 1.0).periodic().cells()] },
        _ => Grid::point(),
    };
    let len = grid.len();
    let wave = |shift: f64| (0..len).map(|i| (i as f64 + shift).sin()).collect::<Vec<f64>>();
    let mut symbols = Symbols { fields: vec!["u".into(), "K".into()], ..Symbols::new(grid.clone()) };
    symbols.parameters = [
        ("c".into(), Parameter::Number(0.7)),
        ("a".into(), Parameter::Array(wave(2.0).into())),
        ("r".into(), Parameter::Runtime),
    ]
    .into();
    let _ = mention::mentions(text, &grid);
    let _ = evaluate_constant(text, &symbols).map_err(|e| e.to_string());
    if let Ok(found) = terms::terms(text) {
        // Each term is a formula by itself.
        for term in found.iter().take(8) {
            terms::terms(&term.text).expect("a term of a formula is a formula");
        }
    }
    let Ok(program) = compile(text, &symbols).map_err(|e| e.to_string()) else { return };
    let algebra = F64Algebra::new(grid);
    let tape = program.forward(&algebra, &[wave(0.0).into(), wave(1.0).into(), Value::Number(0.3)]);
    let adjoints = program.reverse(&algebra, &tape, Value::Number(1.0));
    assert_eq!(adjoints.len(), 2);
    let tangent = program.tangent(&algebra, &tape, &[Some(wave(3.0).into()), None]);
    assert!(tangent.is_none_or(|tangent| [1, len].contains(&tangent.numbers().len())));
}

/// A configuration, alone and as a setting on top of a preset: parsed, checked, written and read again, and its constraint
/// compiled.
pub fn configuration(data: &[u8]) {
    static PRESET: OnceLock<Layers> = OnceLock::new();
    let Ok(text) = std::str::from_utf8(data) else { return };
    let layers = if text.contains('\n') {
        Layers::new().text(text, "configuration")
    } else {
        PRESET.get_or_init(|| Layers::new().preset("circle-demo").expect("a preset")).clone().set(text)
    };
    let Ok(config) = layers.and_then(|layers| layers.finish("configuration")) else { return };
    let written = config.to_toml();
    let again = Layers::new().text(&written, "again").and_then(|layers| layers.finish("again"));
    assert_eq!(again.expect("a written configuration is one").to_toml(), written);
    if let Some(constraint) = &config.constraint {
        let (grid, fields) = (Grid::unit(6, 5), &constraint.fields);
        let _ = SoftConstraint::new(constraint, fields, &grid, &Units::identity(fields.len()));
    }
}

/// NumPy's arrays and archives.
pub fn npy(data: &[u8]) {
    let path = file("input.npy", data);
    // Points are such an array.
    if npy::read(&path).map_err(|e| e.to_string()).is_ok() {
        let _ = npy::read_points(&path).map_err(|e| e.to_string());
    }
    array_file(&path);
}

/// MATLAB's v5 and v7 files.
pub fn mat(data: &[u8]) {
    array_file(&file("input.mat", data));
}

/// HDF5, NetCDF-4 and MATLAB 7.3 files.
pub fn hdf5(data: &[u8]) {
    array_file(&file("input.h5", data));
}

/// Tables of numbers.
pub fn csv(data: &[u8]) {
    array_file(&file("input.csv", data));
}

/// Describes a file, reads its small arrays, and imports its first samples.
fn array_file(path: &Path) {
    let Ok(description) = format::describe(path).map_err(|e| e.to_string()) else { return };
    let _ = description.to_string();
    let _ = small_arrays(path).map_err(|e| e.to_string());
    // An import begins as the description does, and fails where that did.
    if description.layout.is_ok() {
        let _ = first_samples(path).map_err(|e| e.to_string());
    }
}

fn small_arrays(path: &Path) -> Result<()> {
    let mut file = format::open(path)?;
    for (i, info) in file.arrays().to_vec().into_iter().enumerate().take(16) {
        if info.size() <= MOST_NUMBERS {
            let origin = vec![0; info.shape.len()];
            if let Ok(numbers) = file.read_f64(i, &origin, &info.shape) {
                assert_eq!(numbers.len(), info.size(), "{}", info.name);
            }
            let _ = file.read_f32(i, &origin, &info.shape);
        }
    }
    Ok(())
}

fn first_samples(path: &Path) -> Result<()> {
    let options = ImportOptions::default();
    let layout = format::recognise(&[path.to_path_buf()], &options)?;
    // A few bytes can stand for many numbers and samples, which a file may hold; more than any machine holds are refused.
    let numbers = layout.axes.iter().fold(layout.fields.len(), |numbers, axis| numbers.saturating_mul(axis.nodes));
    if (16 * MOST_NUMBERS..NO_MACHINE).contains(&numbers) || (MOST_NUMBERS..NO_MACHINE).contains(&layout.samples) {
        return Ok(());
    }
    let mut source = FileSource::open(layout, &options)?;
    let numbers: usize = source.axes().iter().map(|axis| axis.nodes).product();
    let few = source.block()?.min(MOST_NUMBERS / numbers.max(1)).clamp(1, source.count());
    let samples = source.read(0..few)?;
    assert_eq!(samples.len(), few);
    source.scalar_values();
    Ok(())
}

/// A weights file: these very bytes; or, with the first byte 0, a header with the right checksum whose configuration, data,
/// step and first tensor's values are separated by zero bytes.
pub fn snapshot(data: &[u8]) {
    let path = match data.split_first() {
        Some((0, rest)) => {
            let path = file("input.safetensors", &[]);
            let parts: Vec<&[u8]> = rest.split(|&b| b == 0).collect();
            let text = |i: usize| String::from_utf8_lossy(parts.get(i).copied().unwrap_or_default()).into_owned();
            let metadata = ["config", "data", "step"].iter().enumerate().map(|(i, key)| ((*key).to_string(), text(i)));
            let values = vec![0.5; parts.get(3).copied().unwrap_or_default().len()];
            let tensors = vec![("first.weight".to_string(), vec![values.len()], values)];
            let whole = TensorFile { metadata: metadata.collect::<HashMap<_, _>>(), tensors };
            whole.write(&path).expect("a header of text can be written");
            path
        }
        _ => file("input.safetensors", data),
    };
    let Ok(snapshot) = Snapshot::read(&path).map_err(|e| e.to_string()) else { return };
    // A large grid is nothing that a file has to hold.
    if snapshot.blueprint.data.shape().iter().product::<usize>() > MOST_NUMBERS {
        return;
    }
    let device = device::by_name("cpu").expect("every build has a CPU");
    let _ = snapshot.model(&device, &path).map_err(|e| e.to_string());
}

/// Measurements of two fields on a grid of space and time: a table, or an array with NaN where nothing is known; read, and
/// those of the first sample compiled.
pub fn observations(data: &[u8]) {
    let is_array = data.starts_with(b"\x93NUMPY");
    let path = file(if is_array { "readings.npy" } else { "readings.csv" }, data);
    let source = if is_array { format!("u={}", path.display()) } else { path.display().to_string() };
    let grid = Grid { axes: vec![Axis::new("t", 3, 0.0, 2.0), Axis::new("x", 4, -1.0, 1.0).periodic().cells()] };
    let Ok(cases) = read_observations(&[source], &grid).map_err(|e| e.to_string()) else { return };
    let readings = &cases[0][..cases[0].len().min(16)];
    let noise = Noise::parse(&["1%".into()]).expect("a level for all fields");
    let (fields, units) = (["u".to_string(), "K".to_string()], Units::identity(2));
    let measured = Measured { fields: &fields, grid: &grid, units: &units, sigma_data: 0.5, constraint: None };
    let _ = Observations::new(readings, &noise, measured).map(|found| assert_eq!(found.len(), readings.len()));
}
