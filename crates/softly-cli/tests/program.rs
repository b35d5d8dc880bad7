//! The program from outside: help, refusals, and a small study from training to metrics.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_softly");

/// The program, run in `folder`.
fn softly(folder: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder);
    command
}

/// Runs the program, which must succeed, and returns its stdout.
fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let output = softly(folder).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "softly {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn succeed_json(folder: &Path, arguments: &[&str]) -> Value {
    let stdout = succeed(folder, arguments);
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("softly {arguments:?} printed {stdout:?}: {e}"))
}

/// Every file and folder below `folder`, files with their bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
            all.insert(path, Vec::new());
        } else {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

/// Runs the program, which must refuse: exit code 2, every needle on stderr, an empty stdout, nothing written.
fn refuse(folder: &Path, arguments: &[&str], needles: &[&str]) {
    let before = contents(folder);
    let output = softly(folder).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "softly {arguments:?}: {said}");
    for needle in needles {
        assert!(said.contains(needle), "softly {arguments:?} does not say {needle:?}: {said}");
    }
    assert!(!said.contains("panicked") && !said.contains('\x1b'), "softly {arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "softly {arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(contents(folder) == before, "softly {arguments:?} wrote something");
}

/// A `.npy` file with the given type, shape and bytes.
fn write_npy(path: &Path, descr: &str, shape: &str, bytes: &[u8]) {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    fs::write(path, file).unwrap();
}

fn write_f64(path: &Path, shape: &str, values: &[f64]) {
    write_npy(path, "<f8", shape, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
}

/// The values behind the header of an `f4` array.
fn read_f32(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert!(String::from_utf8_lossy(&bytes[..start]).contains("<f4"));
    bytes[start..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A run of 200 steps, trained once for all tests; its home folder holds the run in `run`.
fn trained() -> &'static Path {
    static HOME: OnceLock<TempDir> = OnceLock::new();
    let home = HOME.get_or_init(|| {
        let home = TempDir::new().unwrap();
        let settings = ["train.iterations=200", "train.batch=32", "train.log_every=50", "data.count=500"];
        let mut arguments = vec!["train", "--preset", "circle-demo", "--method", "scd", "--out", "run"];
        arguments.extend(settings.iter().flat_map(|s| ["--set", s]));
        let stdout = succeed(home.path(), &arguments);
        assert_eq!(Path::new(stdout.trim()), Path::new("run/snapshots/final.safetensors"));
        home
    });
    home.path()
}

fn run() -> String {
    trained().join("run").display().to_string()
}

#[test]
fn every_command_has_help_with_an_example() {
    let commands: [&[&str]; 17] = [
        &[],
        &["reproduce"],
        &["presets"],
        &["train"],
        &["sample"],
        &["eval"],
        &["residual"],
        &["distance"],
        &["distance", "w1"],
        &["data"],
        &["data", "generate"],
        &["data", "inspect"],
        &["solve"],
        &["solve", "darcy"],
        &["solve", "helmholtz"],
        &["info"],
        &["completions"],
    ];
    let home = TempDir::new().unwrap();
    for command in commands {
        let text = succeed(home.path(), &[command, &["--help"]].concat());
        assert!(text.contains("Example") && text.contains("softly"), "softly {command:?} --help: {text}");
    }
    // No command is missing from the list above.
    let text = succeed(home.path(), &["--help"]);
    let listed = text.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names = listed.lines().filter_map(|l| l.strip_prefix("  ")).filter(|l| !l.starts_with(' '));
    for name in names.map(|l| l.split_whitespace().next().unwrap()).filter(|n| *n != "help") {
        assert!(commands.iter().any(|c| c.first() == Some(&name)), "{name} is not tested");
    }
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let train = |extra: &[&'static str]| [&["train", "--preset", "circle-demo", "--out", "run"], extra].concat();
    let set = |setting: &'static str| train(&["--set", setting]);
    refuse(at, &set("train.itertions=5"), &["train.itertions=5", "did you mean `iterations`?"]);
    refuse(at, &set("train.batch=many"), &["train.batch=many", "invalid type"]);
    refuse(at, &set("train.batch"), &["--set train.batch", "expected key=value", "hint:"]);
    refuse(at, &set("sampler.sigma_min=-0.1"), &["sampler.sigma_min", "positive", "-0.1"]);
    refuse(at, &set("sampler.steps=0"), &["sampler.steps", "at least 1"]);
    refuse(at, &set("train.rate=nan"), &["train.rate", "positive"]);
    refuse(at, &set("data.count=0"), &["data.count", "at least 1"]);
    // The formula, a caret under the place, and a hint.
    refuse(
        at,
        &set("constraint.residual=x^2 + y^2 - radius"),
        &["constraint.residual", "`radius`", "\n  x^2 + y^2 - radius\n", "\n              ^^^^^^\n", "hint:"],
    );
    refuse(at, &set("constraint.residual=sqrt(x^2"), &["constraint.residual", "^", "sqrt(x^2"]);
    refuse(at, &set("constraint.fields=['x', 'z']"), &["constraint.fields", "`z`"]);
    refuse(at, &train(&["--method", "sdc"]), &["--method", "did you mean `scd`?"]);
    refuse(at, &["train", "--preset", "circle-dmo", "--out", "run"], &["--preset", "did you mean `circle-demo`?"]);
    refuse(at, &["train", "--out", "run"], &["--preset"]);
    refuse(at, &["train", "--set", "train.rate=1", "--out", "run"], &["--preset", "--config"]);
    refuse(at, &["train", "--config", "absent.toml", "--out", "run"], &["absent.toml"]);
    fs::write(at.join("bad.toml"), "[train]\nbatch = 3\nrte = 1\n").unwrap();
    refuse(at, &["train", "--config", "bad.toml", "--out", "run"], &["bad.toml", "line 3", "did you mean `rate`?"]);
    fs::write(at.join("broken.toml"), "[train\nbatch = 3\n").unwrap();
    refuse(at, &["train", "--config", "broken.toml", "--out", "run"], &["broken.toml", "line 1"]);
    refuse(at, &["presets", "circle-deno"], &["did you mean `circle-demo`?"]);
    refuse(at, &["reproduce", "sphere"], &["sphere", "circle"]);
    refuse(at, &["reproduce", "circle", "--seeds", "18446744073709551615"], &["--seeds", "1000"]);
    refuse(at, &["info", "--threads", "0"], &["--threads"]);
    // A folder that holds something else.
    fs::create_dir(at.join("mine")).unwrap();
    fs::write(at.join("mine/notes.txt"), "keep").unwrap();
    refuse(at, &["train", "--preset", "circle-demo", "--out", "mine"], &["mine", "not empty", "--out"]);
}

#[test]
fn sampling_that_cannot_work_is_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let run = run();
    let sample = |extra: &[&'static str]| [&["sample", run.as_str(), "--out", "out"], extra].concat();
    refuse(at, &sample(&["--steps", "0"]), &["sampler.steps", "at least 1"]);
    refuse(at, &sample(&["--steps", "-5"]), &["--steps", "-5"]);
    refuse(at, &sample(&["--sigma-min", "-1"]), &["sampler.sigma_min", "positive", "-1"]);
    refuse(at, &sample(&["--sigma-min", "nan"]), &["sampler.sigma_min"]);
    refuse(at, &sample(&["--guidance", "-2"]), &["--guidance", "-2"]);
    refuse(at, &sample(&["--count", "0"]), &["--count"]);
    refuse(at, &sample(&["--seeds", "7-3"]), &["--seeds", "7-3", "hint:"]);
    refuse(at, &sample(&["--seeds", "all"]), &["--seeds", "all"]);
    refuse(at, &sample(&["--seeds", "0-18446744073709551615"]), &["--seeds"]);
    let most = "4294967295";
    refuse(at, &sample(&["--count", most]), &["--count", "at most", most, "--seeds A-B"]);
    refuse(at, &["eval", &run, "--sets", most, "--count", most], &["--sets × --count", "18446744065119617025"]);
    refuse(at, &["eval", &run, "--seeds", "0-9"], &["--seeds"]);
    let eval = |extra: &[&'static str]| [&["eval", run.as_str(), "--count", "20", "--sets", "2"], extra].concat();
    refuse(at, &eval(&["--scales", "0.1,nan"]), &["--scales", "NaN"]);
    refuse(at, &eval(&["--scales", "-1"]), &["--scales", "-1"]);
    refuse(at, &["sample", "absent.safetensors", "--out", "out"], &["absent.safetensors"]);
    fs::create_dir(at.join("empty")).unwrap();
    refuse(at, &["sample", "empty", "--out", "out"], &["empty", "no snapshot", "hint:"]);

    let good = fs::read(trained().join("run/snapshots/final.safetensors")).unwrap();
    let damaged = at.join("damaged.safetensors");
    for bytes in [&good[..good.len() - 3], &good[..60], &good[..0], b"a text file, not a snapshot"] {
        fs::write(&damaged, bytes).unwrap();
        for command in
            [["sample", "damaged.safetensors", "--out", "out"], ["eval", "damaged.safetensors", "--sets", "1"]]
        {
            refuse(at, &command, &["damaged.safetensors", "hint:"]);
        }
    }
    // A checkpoint is no snapshot, though the same kind of file.
    fs::remove_file(&damaged).unwrap();
    let arguments =
        ["train", "--preset", "circle-demo", "--set", "train.iterations=2", "--set", "train.checkpoint_every=1"];
    succeed(at, &[&arguments[..], &["--set", "data.count=10", "--out", "tiny"]].concat());
    refuse(at, &["sample", "tiny/checkpoints/latest.safetensors", "--out", "out"], &["latest.safetensors", "config"]);
}

#[test]
fn devices_that_are_not_there_are_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let run = run();
    let commands: [&[&str]; 4] = [
        &["train", "--preset", "circle-demo", "--out", "run"],
        &["sample", &run, "--out", "out"],
        &["eval", &run],
        &["reproduce", "circle"],
    ];
    for command in commands {
        let on = |device: &'static str| [command, &["--device", device]].concat();
        // ROCm is in no build that this machine could test; if it were, the name would be accepted.
        if !cfg!(feature = "rocm") {
            refuse(at, &on("rocm"), &["--device", "`rocm`", "--features rocm"]);
        }
        refuse(at, &on("cpuu"), &["--device", "did you mean `cpu`?"]);
        refuse(at, &on("abacus"), &["--device", "expected one of cpu, wgpu, vulkan, metal, cuda, rocm"]);
    }
    succeed(at, &["sample", &run, "--count", "2", "--steps", "2", "--device", "cpu", "--out", "out"]);
}

#[test]
fn guidance_without_a_constraint_is_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    fs::write(at.join("plain.toml"), "[data]\ncount = 20\n[train]\niterations = 2\nbatch = 4\n").unwrap();
    succeed(at, &["train", "--config", "plain.toml", "--out", "plain"]);
    refuse(at, &["sample", "plain", "--guidance", "0.1", "--out", "out"], &["guidance", "[constraint]"]);
    refuse(at, &["eval", "plain", "--scales", "0.1", "--count", "9", "--sets", "1"], &["guidance", "[constraint]"]);
}

#[test]
fn arrays_that_cannot_be_used_are_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    write_f64(&at.join("good.npy"), "(2, 2)", &[0.0, 1.0, 1.0, 0.0]);
    let w1 = |b: &'static str| ["distance", "w1", "good.npy", b];
    write_f64(&at.join("nan.npy"), "(2, 2)", &[0.0, 1.0, f64::NAN, 0.0]);
    refuse(at, &w1("nan.npy"), &["nan.npy", "NaN", "point 1"]);
    write_f64(&at.join("infinite.npy"), "(1, 2)", &[f64::INFINITY, 1.0]);
    refuse(at, &w1("infinite.npy"), &["infinite.npy", "inf", "point 0"]);
    write_npy(&at.join("integers.npy"), "<i8", "(1, 2)", &[0; 16]);
    refuse(at, &w1("integers.npy"), &["integers.npy", "i8", "hint:"]);
    write_npy(&at.join("big.npy"), ">f8", "(1, 2)", &[0; 16]);
    refuse(at, &w1("big.npy"), &["big.npy", ">f8", "little-endian"]);
    write_npy(&at.join("short.npy"), "<f8", "(3, 2)", &[0; 47]);
    refuse(at, &w1("short.npy"), &["short.npy", "[3, 2]", "truncated"]);
    write_npy(&at.join("huge.npy"), "<f8", "(4611686018427387904, 2)", &[0; 16]);
    refuse(at, &w1("huge.npy"), &["huge.npy"]);
    write_npy(&at.join("large.npy"), "<f4", "(100000000000, 2)", &[0; 16]);
    refuse(at, &w1("large.npy"), &["large.npy"]);
    write_f64(&at.join("flat.npy"), "(4,)", &[0.0; 4]);
    refuse(at, &w1("flat.npy"), &["flat.npy", "[N, 2]", "[4]"]);
    write_f64(&at.join("none.npy"), "(0, 2)", &[]);
    refuse(at, &w1("none.npy"), &["none.npy", "at least one point"]);
    fs::write(at.join("text.npy"), "0 1\n1 0\n").unwrap();
    refuse(at, &w1("text.npy"), &["text.npy", "numpy.save"]);
    fs::write(at.join("nothing.npy"), "").unwrap();
    refuse(at, &w1("nothing.npy"), &["nothing.npy"]);
    refuse(at, &w1("absent.npy"), &["absent.npy"]);
    fs::create_dir(at.join("folder.npy")).unwrap();
    refuse(at, &w1("folder.npy"), &["folder.npy"]);
}

const DARCY: &str = "[constraint]\nfields = [\"p\", \"K\"]\nresidual = \"K*laplacian(p) + dot(grad(K), grad(p)) + f\"\n\
                     [constraint.parameters]\nf = 1.5\n";

#[test]
fn residuals_that_cannot_be_taken_are_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    fs::write(at.join("darcy.toml"), DARCY).unwrap();
    let zeros = |name: &str, shape: &str, n: usize| write_f64(&at.join(name), shape, &vec![0.0; n]);
    zeros("p.npy", "(5, 4)", 20);
    zeros("K.npy", "(5, 4)", 20);
    let residual = |extra: &[&'static str]| [&["residual", "--config", "darcy.toml", "--out", "r.npy"], extra].concat();
    refuse(at, &residual(&["--field", "p=p.npy"]), &["`K`", "--field K=FILE"]);
    refuse(at, &residual(&["--field", "p=p.npy", "--field", "k=K.npy"]), &["`k`", "did you mean `K`?"]);
    refuse(at, &residual(&["--field", "p"]), &["--field p", "NAME=FILE"]);
    refuse(at, &residual(&["--field", "p=absent.npy"]), &["absent.npy"]);
    zeros("other.npy", "(4, 5)", 20);
    let against = |file: &'static str| residual(&["--field", "p=p.npy", "--field", file]);
    refuse(at, &against("K=other.npy"), &["other.npy", "[5, 4]", "[4, 5]"]);
    write_f64(&at.join("nan.npy"), "(5, 4)", &[f64::NAN; 20]);
    refuse(at, &against("K=nan.npy"), &["nan.npy", "`K`", "NaN"]);
    refuse(at, &residual(&["--field", "p=p.npy", "--field", "K=K.npy", "--field", "p=K.npy"]), &["--field p", "twice"]);
    // Too few nodes for the stencil.
    for (name, shape, n) in [("small.npy", "(2, 2)", 4), ("point.npy", "(1, 1)", 1)] {
        zeros(name, shape, n);
        let (p, k) = (format!("p={name}"), format!("K={name}"));
        refuse(at, &["residual", "--config", "darcy.toml", "--field", &p, "--field", &k], &["constraint.residual"]);
    }
    zeros("line.npy", "(20,)", 20);
    refuse(at, &residual(&["--field", "p=line.npy", "--field", "K=line.npy"]), &["line.npy", "[H, W]"]);
    zeros("none.npy", "(0, 5, 4)", 0);
    refuse(at, &residual(&["--field", "p=none.npy", "--field", "K=none.npy"]), &["none.npy", "at least one"]);
    fs::write(at.join("plain.toml"), "[train]\nbatch = 4\n").unwrap();
    refuse(at, &["residual", "--config", "plain.toml", "--field", "p=p.npy"], &["plain.toml", "[constraint]"]);
    fs::write(at.join("typo.toml"), DARCY.replace("laplacian", "laplacan")).unwrap();
    let fields = ["--field", "p=p.npy", "--field", "K=K.npy"];
    refuse(
        at,
        &[&["residual", "--config", "typo.toml"], &fields[..]].concat(),
        &["laplacan", "^^^^^^^^", "laplacian`?"],
    );
}

#[test]
fn the_residual_of_arrays_is_exact() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    fs::write(at.join("darcy.toml"), DARCY).unwrap();
    // p = x² + y² and K = 1 on the unit square: K ∇²p + ∇K·∇p + f = 4 + 1.5, exactly on these stencils.
    let p = (0..42).map(|i| (f64::from(i / 6) / 6.0).powi(2) + (f64::from(i % 6) / 5.0).powi(2));
    let p: Vec<f64> = p.collect();
    write_f64(&at.join("p.npy"), "(2, 7, 6)", &[p.clone(), p].concat());
    write_f64(&at.join("K.npy"), "(2, 7, 6)", &[1.0; 84]);
    let arguments =
        ["residual", "--config", "darcy.toml", "--field", "K=K.npy", "--field", "p=p.npy", "--out", "r.npy"];
    let summary = succeed_json(at, &arguments);
    let keys: Vec<&String> = summary.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["max_abs", "mean_abs", "n", "rms"]);
    assert_eq!(summary["n"], 84);
    for key in ["mean_abs", "rms", "max_abs"] {
        assert!((summary[key].as_f64().unwrap() - 5.5).abs() < 1e-10, "{summary}");
    }
    let written = fs::read(at.join("r.npy")).unwrap();
    assert!(String::from_utf8_lossy(&written[..80]).contains("(2, 7, 6"));
    let tail = written[written.len() - 84 * 8..].chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap()));
    assert!(tail.into_iter().all(|v| (v - 5.5).abs() < 1e-10));
}

#[test]
fn a_small_study_from_training_to_metrics() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let run = run();
    for file in ["config.toml", "run.json", "metrics.jsonl", "log.txt"] {
        assert!(Path::new(&run).join(file).is_file(), "{file}");
    }
    let about: Value = serde_json::from_str(&fs::read_to_string(Path::new(&run).join("run.json")).unwrap()).unwrap();
    assert_eq!(about["status"], "finished");

    let said = succeed_json(at, &["sample", &run, "--count", "300", "--steps", "20", "--out", "samples", "--json"]);
    assert_eq!((&said["count"], &said["steps"]), (&Value::from(300), &Value::from(20)));
    let points = read_f32(&at.join("samples/points.npy"));
    let (x, y) = (read_f32(&at.join("samples/x.npy")), read_f32(&at.join("samples/y.npy")));
    assert_eq!((points.len(), x.len(), y.len()), (600, 300, 300));
    assert!(points.chunks_exact(2).zip(x.iter().zip(&y)).all(|(p, (x, y))| p == [*x, *y]));

    let table = succeed_json(at, &["eval", &run, "--count", "50", "--sets", "3", "--steps", "10", "--json"]);
    assert_eq!((&table["sets"], &table["points"]), (&Value::from(3), &Value::from(50)));
    let names: Vec<&str> = table["rows"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["model", "data"]);
    for row in table["rows"].as_array().unwrap() {
        let w1 = &row["metrics"]["w1"];
        assert!(w1["mean"].as_f64().unwrap() > 0.0 && row["residual"]["n"] == 150, "{row}");
    }
    assert!(table["rows"][1]["residual"]["mean_abs"].as_f64().unwrap() < 1e-12, "data lie on the circle");
    let text = succeed(at, &["eval", &run, "--count", "20", "--sets", "2", "--steps", "5", "--scales", "0.1,1"]);
    assert!(text.contains("guidance 0.1") && text.contains("guidance 1") && text.contains("data"), "{text}");

    let distance = |a: &str, b: &str| succeed_json(at, &["distance", "w1", a, b]);
    let same = distance("samples/points.npy", "samples/points.npy");
    assert_eq!(same.as_object().unwrap().keys().collect::<Vec<_>>(), ["n", "w1"]);
    assert!(same["w1"].as_f64().unwrap().abs() < 1e-12 && same["n"] == 300, "{same}");
    write_f64(&at.join("a.npy"), "(2, 2)", &[0.0, 0.0, 1.0, 0.0]);
    write_f64(&at.join("b.npy"), "(2, 2)", &[1.0, 3.0, 0.0, 4.0]);
    assert!((distance("a.npy", "b.npy")["w1"].as_f64().unwrap() - 3.5).abs() < 1e-12);

    let circle = "[constraint]\nfields = [\"x\", \"y\"]\nresidual = \"(sqrt(x^2 + y^2) - 1)^2\"\n";
    fs::write(at.join("circle.toml"), circle).unwrap();
    let fields = ["--field", "x=samples/x.npy", "--field", "y=samples/y.npy"];
    let summary = succeed_json(at, &[&["residual", "--config", "circle.toml"], &fields[..]].concat());
    let by_hand = points.chunks_exact(2).map(|p| (f64::from(p[0]).hypot(f64::from(p[1])) - 1.0).powi(2)).sum::<f64>();
    assert!((summary["mean_abs"].as_f64().unwrap() * 300.0 / by_hand - 1.0).abs() < 1e-9, "{summary}");
    assert_eq!(summary["n"], 300);
}

#[test]
fn sample_i_is_the_same_in_any_range_batch_and_number_of_threads() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let run = run();
    let draw = |name: &str, extra: &[&str]| {
        succeed(at, &[&["sample", run.as_str(), "--steps", "12", "--out", name], extra].concat());
        read_f32(&at.join(name).join("points.npy"))
    };
    let ten = draw("ten", &["--count", "10"]);
    assert_eq!(draw("range", &["--seeds", "3-5"]), ten[6..12]);
    assert_eq!(draw("batches", &["--count", "10", "--batch", "3", "--threads", "2"]), ten);
    assert_eq!(draw("one", &["--count", "10", "--batch", "1", "--threads", "1"]), ten);
    assert_ne!(draw("seed", &["--count", "10", "--seed", "1"]), ten);
}

#[test]
fn presets_info_and_completions_print_what_they_promise() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    assert!(succeed(at, &["presets"]).contains("circle-demo"));
    let names = succeed_json(at, &["presets", "--json"]);
    for name in names.as_array().unwrap() {
        let text = succeed(at, &["presets", name.as_str().unwrap(), "--method", "vanilla"]);
        assert!(text.contains("[constraint]") && !text.contains("[denoiser.scd]"), "{text}");
    }
    // What is printed is a configuration again.
    let printed = succeed(at, &["presets", "circle-demo", "--method", "scd"]);
    assert!(printed.contains("[denoiser.scd]"), "{printed}");
    fs::write(at.join("printed.toml"), printed).unwrap();
    let small = ["--set", "train.iterations=1", "--set", "data.count=9", "--set", "train.batch=3"];
    succeed(at, &[&["train", "--config", "printed.toml", "--out", "run"], &small[..]].concat());
    let info = succeed_json(at, &["info", "--json", "--threads", "1"]);
    assert_eq!((&info["threads"], &info["version"]), (&Value::from(1), &Value::from(env!("CARGO_PKG_VERSION"))));
    assert!(succeed(at, &["info"]).contains("version"));
    assert!(succeed(at, &["completions", "bash"]).contains("complete -F _softly"));
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_a_checkpoint_and_the_same_command_goes_on() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let settings = [
        "denoiser.backbone={kind='mlp', hidden=8}",
        "train.iterations=15000",
        "train.batch=8",
        "train.log_every=10",
        "data.count=50",
    ];
    let mut arguments = vec!["train", "--preset", "circle-demo", "--method", "vanilla", "--out", "run"];
    arguments.extend(settings.iter().flat_map(|s| ["--set", s]));
    let mut child = Process::new(PROGRAM)
        .args(&arguments)
        .current_dir(at)
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !at.join("run/metrics.jsonl").exists() {
        assert!(start.elapsed() < Duration::from_mins(1), "training did not start");
        std::thread::sleep(Duration::from_millis(2));
    }
    let kill = Process::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let code = child.wait().unwrap().code();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("run the same command again") && !said.contains("panicked"), "{said}");
    assert!(at.join("run/checkpoints/latest.safetensors").exists());
    assert!(!at.join("run/snapshots/final.safetensors").exists());
    refuse(at, &["sample", "run", "--out", "out"], &["no snapshot", "hint:"]);

    succeed(at, &arguments);
    assert!(at.join("run/snapshots/final.safetensors").exists());
    let log = fs::read_to_string(at.join("run/log.txt")).unwrap();
    let starts: Vec<&str> = log.lines().filter(|l| l.ends_with("start")).collect();
    assert_eq!(starts.len(), 2);
    assert!(starts[0].starts_with("step 0 ") && !starts[1].starts_with("step 0 "), "{starts:?}");
    let metrics = fs::read_to_string(at.join("run/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 1_500, "one line per ten steps, none twice");
}
