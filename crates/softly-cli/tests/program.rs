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

/// A small training of points without a constraint.
const PLAIN: &str = "[data]\ncount = 20\ngenerator = { kind = 'points', curve = { shape = 'circle' } }\n\
                     [train]\niterations = 2\nbatch = 4\n";

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
    let commands: [&[&str]; 23] = [
        &[],
        &["reproduce"],
        &["report"],
        &["export"],
        &["presets"],
        &["init"],
        &["train"],
        &["adapt"],
        &["sample"],
        &["eval"],
        &["denoise"],
        &["residual"],
        &["distance"],
        &["distance", "w1"],
        &["data"],
        &["data", "generate"],
        &["data", "inspect"],
        &["solve"],
        &["solve", "darcy"],
        &["solve", "helmholtz"],
        &["bench"],
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
    let names: Vec<&str> = names.map(|l| l.split_whitespace().next().unwrap()).filter(|n| *n != "help").collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
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
    refuse(at, &set("denoiser.scd={directions=['spectral']}"), &["denoiser.scd.directions", "spectral", "points"]);
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
    refuse(at, &["train", "--set", "train.rate=1", "--out", "run"], &["data", "`path`", "`generator`", "hint:"]);
    refuse(at, &["train", "--config", "absent.toml", "--out", "run"], &["absent.toml"]);
    fs::write(at.join("bad.toml"), "[train]\nbatch = 3\nrte = 1\n").unwrap();
    refuse(at, &["train", "--config", "bad.toml", "--out", "run"], &["bad.toml", "line 3", "did you mean `rate`?"]);
    fs::write(at.join("broken.toml"), "[train\nbatch = 3\n").unwrap();
    refuse(at, &["train", "--config", "broken.toml", "--out", "run"], &["broken.toml", "line 1"]);
    refuse(at, &["presets", "circle-deno"], &["did you mean `circle-demo`?"]);
    refuse(at, &["reproduce", "sphere"], &["sphere", "circle"]);
    refuse(at, &["reproduce", "circle", "--seeds", "18446744073709551615"], &["--seeds", "1000"]);
    refuse(at, &["reproduce", "circle", "--study", "noise"], &["--study", "reproduce darcy"]);
    refuse(at, &["reproduce", "darcy", "--study", "nose"], &["nose", "noise"]);
    refuse(at, &["reproduce", "circle", "--scale", "long"], &["--scale", "darcy and helmholtz"]);
    refuse(at, &["report", "."], &["run.json", "table.json", "hint:"]);
    refuse(at, &["report", "a", "b"], &["--out"]);
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
    refuse(at, &eval(&["--scales", "0.1,nan"]), &["--scales", "nan"]);
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
    fs::write(at.join("plain.toml"), PLAIN).unwrap();
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
    // A residual without end, not a `null`.
    fs::write(at.join("pole.toml"), DARCY.replace("laplacian(p)", "1/p")).unwrap();
    let pole = ["residual", "--config", "pole.toml", "--field", "p=p.npy", "--field", "K=one.npy", "--out", "r.npy"];
    write_f64(&at.join("one.npy"), "(5, 4)", &[1.0; 20]);
    refuse(at, &pole, &["constraint.residual", "finite", "inf in sample 0"]);
    assert!(!at.join("r.npy").exists());
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
fn a_frozen_denoiser_is_adapted_and_sampled() {
    let home = TempDir::new().unwrap();
    let base = run();
    let circle = "constraint={residual='sqrt(x^2 + y^2) - r', norm='l2', parameters={r={learn=1.5}}}";
    let head = "denoiser.scd={scale='polyak', input='features'}";
    let adapt = |out: &str, more: &[&str]| -> Vec<String> {
        let mut arguments =
            vec!["adapt", &base, "--set", circle, "--set", head, "--set", "train.iterations=40", "--out", out];
        arguments.extend(more.iter().flat_map(|s| ["--set", s]));
        arguments.into_iter().map(String::from).collect()
    };
    let succeed_owned =
        |arguments: Vec<String>| succeed(home.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let stdout = succeed_owned(adapt("adapted", &[]));
    assert_eq!(Path::new(stdout.trim()), Path::new("adapted/snapshots/final.safetensors"));
    let (ours, theirs) =
        (home.path().join("adapted/snapshots/final.safetensors"), Path::new(&base).join("snapshots/final.safetensors"));
    let (ours, theirs) = (fs::read(ours).unwrap(), fs::read(theirs).unwrap());
    let ((header, data), (base_header, base_data)) = (safetensors(&ours), safetensors(&theirs));
    for name in ["first.weight", "last.bias"] {
        assert_eq!(tensor(&header, data, name), tensor(&base_header, base_data, name), "{name}");
    }
    let radius = f32::from_le_bytes(tensor(&header, data, "constraint.r").try_into().unwrap());
    assert!(radius < 1.5 && radius > 0.5, "{radius}");
    let metrics = fs::read_to_string(home.path().join("adapted/metrics.jsonl")).unwrap();
    assert!(metrics.lines().count() == 2 && metrics.contains("\"constraint\":{\"r\":1."), "{metrics}");
    // The same command has nothing left to do; the result is a run like any other.
    let before = contents(home.path());
    succeed_owned(adapt("adapted", &[]));
    assert!(contents(home.path()) == before);
    succeed(home.path(), &["sample", "adapted", "--count", "5", "--steps", "4", "--out", "samples"]);
    assert_eq!(read_f32(&home.path().join("samples/points.npy")).len(), 10);

    let refuse_owned = |arguments: Vec<String>, needles: &[&str]| {
        refuse(home.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>(), needles);
    };
    refuse_owned(adapt("other", &["denoiser.backbone.hidden=64"]), &["denoiser.backbone", "another network"]);
    refuse_owned(adapt("adapted", &["train.rate=1e-3"]), &["another configuration"]);
    refuse(home.path(), &["adapt", "nowhere", "--set", head, "--out", "other"], &["nowhere"]);
    refuse(
        home.path(),
        &["adapt", &base, "--preset", "circle-demi", "--out", "other"],
        &["did you mean `circle-demo`"],
    );
}

#[test]
fn the_dial_is_turned_and_swept() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let run = run();
    let sample = |extra: &[&'static str]| -> Vec<f32> {
        let arguments = [&["sample", &run, "--count", "20", "--steps", "8", "--out", "samples"], extra].concat();
        succeed(at, &arguments);
        read_f32(&at.join("samples/points.npy"))
    };
    let learned = sample(&[]);
    assert_eq!(sample(&["--compliance", "1"]), learned);
    assert_eq!(sample(&["--set", "denoiser.scd.compliance=1"]), learned);
    let base = sample(&["--compliance", "0"]);
    assert!(base != learned && sample(&["--compliance", "1.5"]) != learned);
    assert_eq!(sample(&["--set", "denoiser.scd.compliance=0"]), base);

    let sweep = ["eval", &run, "--sweep", "compliance", "--count", "20", "--sets", "2", "--steps", "5"];
    let table = succeed_json(at, &[&sweep[..], &["--out", "front", "--json"]].concat());
    let values: Vec<&Value> = table["rows"].as_array().unwrap().iter().map(|row| &row["compliance"]).collect();
    assert_eq!(values, [0.0, 0.5, 1.0, 1.5, 2.0], "points have no Newton steps, so no full compliance");
    for row in table["rows"].as_array().unwrap() {
        assert!(row["residual"]["mean"].as_f64().unwrap() > 0.0 && row["likelihood"].is_null(), "{row}");
        assert!(row["marginals"][0]["w1"].as_f64().unwrap() > 0.0, "{row}");
    }
    let written: Value = serde_json::from_str(&fs::read_to_string(at.join("front/sweep.json")).unwrap()).unwrap();
    assert_eq!(written, table);
    let figure = fs::read_to_string(at.join("front/sweep.svg")).unwrap();
    assert!(figure.starts_with("<svg") && figure.contains("distance to the curve") && figure.contains(">1.5<"));
    let text = succeed(at, &sweep);
    assert!(text.lines().count() == 7 && text.contains("distance to the curve"), "{text}");

    let refuse_sample = |value: &str, needles: &[&str]| {
        refuse(at, &["sample", &run, "--compliance", value, "--out", "out"], needles);
    };
    refuse_sample("-1", &["--compliance", "-1", "≥ 0"]);
    refuse_sample("nan", &["--compliance", "≥ 0"]);
    refuse_sample("half", &["--compliance", "half", "`full`"]);
    refuse_sample("full", &["denoiser.scd.compliance", "no direction `newton`", "solve_for"]);
    refuse(at, &[&sweep[..], &["--compliance", "1"]].concat(), &["--compliance"]);
    refuse(at, &["eval", &run, "--out", "out"], &["--sweep"]);
    refuse(at, &["eval", &run, "--sweep", "guidance"], &["guidance", "compliance"]);
    let train = ["train", "--preset", "circle-demo", "--method", "scd", "--set", "denoiser.scd.compliance=2"];
    refuse(at, &[&train[..], &["--out", "other"]].concat(), &["denoiser.scd.compliance", "softly sample"]);
    refuse(
        at,
        &["sample", &run, "--set", "denoiser.scd.lambda=auto", "--out", "out"],
        &["--set", "denoiser.scd.lambda"],
    );
    // A model without a soft constraint has no dial.
    fs::write(at.join("plain.toml"), PLAIN).unwrap();
    succeed(at, &["train", "--config", "plain.toml", "--out", "plain"]);
    let needles = ["denoiser.scd.compliance", "no soft constraint", "softly adapt"];
    refuse(at, &["sample", "plain", "--compliance", "2", "--out", "out"], &needles);
    refuse(at, &["eval", "plain", "--sweep", "compliance"], &needles);
    refuse(at, &["eval", "plain", "--metrics", "explained"], &["plain", "[constraint]"]);
    // A constraint can be judged on it all the same.
    let circle = "constraint={fields=['x', 'y'], residual='sqrt(x^2 + y^2) - 1', norm='l2'}";
    let told = ["eval", "plain", "--metrics", "explained", "--set", circle, "--count", "50", "--json"];
    let report = succeed_json(at, &told);
    assert_eq!(report["explained"]["directions"], serde_json::json!(["gradient"]));
}

#[test]
fn a_field_model_is_judged_turned_and_projected() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let small = ["data.count=64", "data.valid=16", "train.iterations=20", "denoiser.backbone={kind='mlp', hidden=32}"];
    let settings = |all: &[&'static str]| all.iter().flat_map(|s| ["--set", s]).collect::<Vec<_>>();
    succeed(at, &[&["train", "--preset", "darcy-demo", "--out", "vanilla"], &settings(&small)[..]].concat());

    // Before any training of a soft constraint.
    let explain = ["eval", "vanilla", "--metrics", "explained"];
    let all = serde_json::json!(["gradient", "spectral", "newton", "kalman"]);
    let report = succeed_json(at, &[&explain[..], &["--json"]].concat());
    assert_eq!(report["explained"]["directions"], all, "the pressure has the highest derivatives");
    let told = [&explain[..], &["--set", "denoiser.scd.solve_for=p"]].concat();
    let report = succeed_json(at, &[&told[..], &["--json"]].concat())["explained"].clone();
    assert_eq!(report["directions"], all);
    assert_eq!((&report["count"], report["levels"].as_array().unwrap().len()), (&Value::from(16), 12));
    for level in report["levels"].as_array().unwrap() {
        let span = level["span"].as_f64().unwrap();
        let alone = level["alone"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap());
        assert!(span <= 1.0 + 1e-9 && alone.clone().count() == 4, "{level}");
        assert!(alone.into_iter().all(|share| share >= 0.0 && share <= span + 1e-9), "{level}");
        assert!(level.get("gamma").is_none() && level.get("learned").is_none(), "{level}");
    }
    let text = succeed(at, &told);
    assert!(text.contains("newton") && text.contains("together") && !text.contains('γ'), "{text}");
    refuse(at, &[&explain[..], &["--set", "denoiser.scd.solve_for=q"]].concat(), &["denoiser.scd.solve_for", "`q`"]);
    refuse(at, &["eval", "vanilla", "--metrics", "explained,nll"], &["--metrics", "without samples"]);
    refuse(at, &["eval", "vanilla", "--metrics", "parameters"], &["vanilla", "learned no number", "{learn="]);
    // Of several equations each is shown.
    let system =
        "truth.residual=[{formula='laplacian(p)', region='interior', name='inside'}, {formula='p', region='border'}]";
    let text = succeed(at, &["eval", "vanilla", "--count", "2", "--steps", "1", "--set", system]);
    assert!(text.contains("\nequation inside") && text.contains("\nequation p on border"), "{text}");
    // A model beyond repair is measured as far as it goes.
    let huge = "denoiser.scd={scale='plain', constant=[1e4]}";
    let ruined = ["eval", "vanilla", "--count", "2", "--steps", "1", "--metrics", "nll", "--set", huge];
    let text = succeed(at, &ruined);
    assert!(text.contains("no NLL: −log p of held-out sample"), "{text}");

    let learn = ["train.iterations=5", "constraint.parameters.flow={learn=12.0}"];
    let adapt = ["adapt", "vanilla", "--preset", "darcy-demo", "--method", "adapt", "--out", "adapted"];
    succeed(
        at,
        &[&adapt[..], &settings(&["data.count=64", "data.valid=16"]), &settings(&small[3..]), &settings(&learn)]
            .concat(),
    );
    let both = ["eval", "adapted", "--metrics", "explained,parameters"];
    let report = succeed_json(at, &[&both[..], &["--json"]].concat());
    let level = &report["explained"]["levels"][0];
    assert!(level["gamma"].as_array().unwrap().len() == 4 && level["learned"].is_f64(), "{level}");
    let flow = &report["parameters"][0];
    assert!(flow["name"] == "flow" && flow["count"] == 16 && flow["verdict"].is_string(), "{flow}");
    let text = succeed(at, &both);
    assert!(text.contains("γ kalman") && text.contains("flow = 1") && text.contains("95 % interval"), "{text}");

    let sweep =
        ["eval", "adapted", "--sweep", "compliance", "--count", "4", "--steps", "8", "--out", "front", "--json"];
    let rows = succeed_json(at, &sweep)["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[5]["compliance"], "full");
    assert!(rows[5]["likelihood"].is_null() && rows[..5].iter().all(|row| row["likelihood"]["normalised"].is_f64()));
    // Projecting solves for p and leaves K alone. (So short a training has no K that p could be solved for.)
    let w1 = |row: &Value, field: usize| row["marginals"][field]["w1"].as_f64().unwrap();
    assert!(w1(&rows[5], 0) != w1(&rows[2], 0) && w1(&rows[5], 1) == w1(&rows[2], 1), "{rows:?}");
    let names: Vec<&Value> = rows[0]["marginals"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert!(names == ["p", "K"] && rows[0]["marginals"][1]["std_ratio"].is_f64());
    let figure = fs::read_to_string(at.join("front/sweep.svg")).unwrap();
    assert!(["mean |R|", "NLL (bits/dim)", "W1 of p", "W1 of K", ">full<"].iter().all(|text| figure.contains(text)));
    succeed(at, &["sample", "adapted", "--compliance", "full", "--count", "2", "--steps", "8", "--out", "samples"]);
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
fn denoising_at_low_noise_keeps_the_input_and_depends_on_nothing_else_in_the_batch() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    fs::write(at.join("plain.toml"), PLAIN).unwrap();
    succeed(at, &["train", "--config", "plain.toml", "--out", "plain"]);
    let count = 70;
    let x: Vec<f64> = (0..2 * count).map(|i| f64::from(i * 37 % 100) / 50.0 - 1.0).collect();
    let sigma: Vec<f64> = (0..count).map(|i| if i % 2 == 0 { 1e-6 } else { 0.5 + f64::from(i) }).collect();
    write_f64(&at.join("x.npy"), &format!("({count}, 2, 1, 1)"), &x);
    write_f64(&at.join("s.npy"), &format!("({count},)"), &sigma);
    let denoise = |x: &str, s: &str, out: &str| {
        let said = succeed_json(at, &["denoise", "plain", "--input", x, "--sigma", s, "--out", out, "--json"]);
        (said["n"].as_u64().unwrap(), read_f32(&at.join(out)))
    };
    let (n, all) = denoise("x.npy", "s.npy", "d.npy");
    assert_eq!((n, all.len()), (count as u64, x.len()));
    for (i, pair) in all.chunks_exact(2).enumerate().step_by(2) {
        // D(x; σ) = x + O(σ) without a constraint.
        assert!((f64::from(pair[0]) - x[2 * i]).abs() < 1e-5 && (f64::from(pair[1]) - x[2 * i + 1]).abs() < 1e-5);
    }
    // Far above the data the input hardly counts: c_skip = σd²/(σ² + σd²).
    assert!(all.chunks_exact(2).skip(1).step_by(2).all(|p| p[0].hypot(p[1]) < 2.0));
    assert!((f64::from(all[2]) - x[2]).abs() > 1e-3 && (f64::from(all[3]) - x[3]).abs() > 1e-3);
    // The 67th of the batch alone, in single precision.
    let one: Vec<u8> = x[132..134].iter().flat_map(|&v| (v as f32).to_le_bytes()).collect();
    write_npy(&at.join("one.npy"), "<f4", "(1, 2, 1, 1)", &one);
    write_f64(&at.join("its.npy"), "(1,)", &sigma[66..67]);
    let (_, alone) = denoise("one.npy", "its.npy", "e.npy");
    assert!(alone.iter().zip(&all[132..134]).all(|(a, b)| (a - b).abs() < 1e-5), "{alone:?} {:?}", &all[132..134]);
    let stdout = succeed(at, &["denoise", "plain", "--input", "x.npy", "--sigma", "s.npy", "--out", "d.npy"]);
    assert_eq!(stdout.trim(), "d.npy");
}

#[test]
fn denoising_that_cannot_work_is_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let run = run();
    write_f64(&at.join("x.npy"), "(2, 2, 1, 1)", &[0.1, 0.2, 0.3, 0.4]);
    write_f64(&at.join("s.npy"), "(2,)", &[0.5, 1.0]);
    let refused = |x: &str, s: &str, needles: &[&str]| {
        refuse(at, &["denoise", &run, "--input", x, "--sigma", s, "--out", "d.npy"], needles);
    };
    write_f64(&at.join("flat.npy"), "(2, 2)", &[0.0; 4]);
    refused("flat.npy", "s.npy", &["flat.npy (input)", "[N, 2, 1, 1]", "[2, 2]"]);
    write_f64(&at.join("wide.npy"), "(1, 2, 1, 2)", &[0.0; 4]);
    refused("wide.npy", "s.npy", &["wide.npy (input)", "[1, 2, 1, 2]"]);
    write_f64(&at.join("none.npy"), "(0, 2, 1, 1)", &[]);
    refused("none.npy", "s.npy", &["none.npy (input)", "N ≥ 1"]);
    write_f64(&at.join("nan.npy"), "(2, 2, 1, 1)", &[0.0, 1.0, f64::NAN, 0.0]);
    refused("nan.npy", "s.npy", &["nan.npy (input)", "NaN at position 2"]);
    write_f64(&at.join("three.npy"), "(3,)", &[1.0; 3]);
    refused("x.npy", "three.npy", &["three.npy (sigma)", "expected [2]", "[3]"]);
    write_f64(&at.join("zero.npy"), "(2,)", &[1.0, 0.0]);
    refused("x.npy", "zero.npy", &["zero.npy (sigma)", "positive", "0 at position 1"]);
    write_f64(&at.join("infinite.npy"), "(2,)", &[f64::INFINITY, 1.0]);
    refused("x.npy", "infinite.npy", &["infinite.npy (sigma)", "inf"]);
    refused("x.npy", "absent.npy", &["absent.npy"]);
    refuse(at, &["denoise", &run, "--input", "x.npy", "--out", "d.npy"], &["--sigma"]);
    let arguments = ["denoise", "x.npy", "--input", "x.npy", "--sigma", "s.npy", "--out", "d.npy"];
    refuse(at, &arguments, &["x.npy", "hint:"]);
}

/// Weights, inputs and outputs of a published network.
const EDM2: &[u8] = include_bytes!("../../softly/tests/data/edm2_16_c32.safetensors");

/// The header of a `.safetensors` file and the bytes behind it.
fn safetensors(file: &[u8]) -> (Value, &[u8]) {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[8..8 + length]).unwrap(), &file[8 + length..])
}

/// The bytes of one tensor.
fn tensor<'a>(header: &Value, data: &'a [u8], name: &str) -> &'a [u8] {
    let [from, to] = [0, 1].map(|i| header[name]["data_offsets"][i].as_u64().unwrap() as usize);
    &data[from..to]
}

/// A file with some tensors of [`EDM2`] under new names, and changed metadata.
fn write_edm2(
    path: &Path,
    rename: impl Fn(&str) -> Option<String>,
    change: impl Fn(&mut serde_json::Map<String, Value>),
) {
    let (header, data) = safetensors(EDM2);
    let mut metadata = header["__metadata__"].as_object().unwrap().clone();
    change(&mut metadata);
    let (mut new, mut bytes) = (serde_json::Map::new(), Vec::new());
    new.insert("__metadata__".into(), metadata.into());
    for (name, entry) in header.as_object().unwrap() {
        if let Some(renamed) = rename(name) {
            let from = bytes.len();
            bytes.extend(tensor(&header, data, name));
            let mut entry = entry.clone();
            entry["data_offsets"] = serde_json::json!([from, bytes.len()]);
            new.insert(renamed, entry);
        }
    }
    let header = serde_json::to_vec(&new).unwrap();
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat()).unwrap();
}

#[test]
fn edm2_weights_denoise_as_published() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let (header, data) = safetensors(EDM2);
    write_npy(&at.join("x.npy"), "<f4", "(3, 2, 16, 16)", tensor(&header, data, "io.x"));
    write_npy(&at.join("s.npy"), "<f4", "(3,)", tensor(&header, data, "io.sigma"));
    let strip = |name: &str| name.strip_prefix("net.").map(ToString::to_string);
    write_edm2(&at.join("plain.safetensors"), strip, |_| ());
    // The reference file itself holds inputs and outputs, too, and its weights are called `net.…`.
    fs::write(at.join("reference.safetensors"), EDM2).unwrap();
    // As a network without the log-variance of the loss, and with a note that other programs add.
    let network = |name: &str| strip(name).filter(|n| n.starts_with("unet."));
    write_edm2(&at.join("network.safetensors"), network, |m| drop(m.insert("format".into(), "pt".into())));
    let expected: Vec<f32> = tensor(&header, data, "io.denoised")
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let size = expected.iter().fold(0.0_f32, |size, v| size.max(v.abs()));
    for name in ["plain", "reference", "network"] {
        let file = format!("{name}.safetensors");
        succeed(at, &["denoise", &file, "--input", "x.npy", "--sigma", "s.npy", "--out", "d.npy"]);
        let found = read_f32(&at.join("d.npy"));
        assert_eq!(found.len(), expected.len());
        let error = found.iter().zip(&expected).fold(0.0_f32, |error, (a, b)| error.max((a - b).abs())) / size;
        assert!(error < 1e-5, "{name}: {error}");
    }
}

#[test]
fn edm2_weights_that_do_not_fit_their_header_are_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    write_npy(&at.join("x.npy"), "<f4", "(1, 2, 16, 16)", &[0; 2048]);
    write_npy(&at.join("s.npy"), "<f4", "(1,)", &1.0_f32.to_le_bytes());
    let strip = |name: &str| name.strip_prefix("net.").map(ToString::to_string);
    let refused = |needles: &[&str]| {
        let arguments = ["denoise", "w.safetensors", "--input", "x.npy", "--sigma", "s.npy", "--out", "d.npy"];
        refuse(at, &arguments, &[&["w.safetensors"], needles].concat());
    };
    for (key, value, needles) in [
        ("img_resolution", "32", &["unet.enc.32x32_block0", "missing"][..]),
        ("img_resolution", "sixteen", &["`img_resolution` is broken", "`sixteen`"]),
        ("img_channels", "3", &["unet.out_conv.weight", "[3, 32, 3, 3]", "[2, 32, 3, 3]"]),
        ("img_channels", "0", &["`img_channels`", "at least 1"]),
        ("model_channels", "18446744073709551615", &["unet.out_conv.weight"]),
        ("model_channels", "48", &["[2, 48, 3, 3]", "[2, 32, 3, 3]"]),
        ("channel_mult", "[1, 3]", &["unet.enc.8x8_block0.conv_res1.weight", "[96, 96, 3, 3]", "[64, 64, 3, 3]"]),
        ("channel_mult", "[]", &["`channel_mult`", "at least 1"]),
        ("num_blocks", "1000000000000", &["unet.enc.16x16_block1.conv_res1.weight", "missing"]),
        ("num_blocks", "-1", &["`num_blocks` is broken", "`-1`"]),
        ("attn_resolutions", "[]", &["unet.", "attn_", "unknown to the model"]),
        ("sigma_data", "0", &["sigma_data", "positive", "0"]),
    ] {
        write_edm2(&at.join("w.safetensors"), strip, |m| drop(m.insert(key.into(), value.into())));
        refused(needles);
    }
    write_edm2(&at.join("w.safetensors"), strip, |m| drop(m.remove("num_blocks")));
    refused(&["the header has no `num_blocks`"]);
    write_edm2(&at.join("w.safetensors"), |n| strip(n).filter(|n| !n.contains("in1.emb_gain")), |_| ());
    refused(&["unet.dec.8x8_in1.emb_gain", "missing"]);
    write_edm2(&at.join("w.safetensors"), strip, serde_json::Map::clear);
    refused(&["no softly header", "hint:"]);
    write_edm2(&at.join("w.safetensors"), strip, |_| ());
    write_npy(&at.join("x.npy"), "<f4", "(1, 2, 8, 8)", &[0; 512]);
    let arguments = ["denoise", "w.safetensors", "--input", "x.npy", "--sigma", "s.npy", "--out", "d.npy"];
    refuse(at, &arguments, &["x.npy (input)", "[N, 2, 16, 16]", "[1, 2, 8, 8]"]);
}

#[test]
fn benchmarks_report_times_sizes_and_memory() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    for (work, method, parameters) in
        [("train-step", "scd", 22_451), ("denoise", "vanilla", 21_250), ("sample", "scd", 22_451)]
    {
        let arguments =
            ["bench", work, "--preset", "circle-demo", "--method", method, "--batch", "16", "--rounds", "7"];
        let said =
            succeed_json(at, &[&arguments[..], &["--set", "sampler.steps=4", "--threads", "1", "--json"]].concat());
        let number = |key: &str| said[key].as_f64().unwrap_or_else(|| panic!("{key} in {said}"));
        assert!(number("seconds_min") > 0.0 && number("seconds_min") <= number("seconds_median"), "{said}");
        assert!(number("seconds_median") <= number("seconds_max"), "{said}");
        assert!((number("samples_per_second") * number("seconds_median") / 16.0 - 1.0).abs() < 1e-9, "{said}");
        assert_eq!((&said["work"], &said["parameters"]), (&Value::from(work), &Value::from(parameters)));
        assert_eq!((&said["batch"], &said["rounds"], &said["threads"]), (&16.into(), &7.into(), &1.into()));
        assert_eq!(said["shape"], serde_json::json!([2, 1, 1]));
        if cfg!(target_os = "linux") {
            assert!(number("peak_rss_bytes") >= number("rss_end_bytes") && number("rss_tenth_bytes") > 1e6, "{said}");
        }
    }
    let text = succeed(at, &["bench", "denoise", "--preset", "darcy-demo", "--batch", "2", "--rounds", "1"]);
    assert!(text.contains("2 samples of 2×16×16") && text.contains("samples/s") && text.contains("memory"), "{text}");
    assert!(contents(at).is_empty(), "benchmarks write nothing");

    let bench = |extra: &[&'static str]| [&["bench", "train-step", "--preset", "circle-demo"], extra].concat();
    refuse(at, &bench(&["--rounds", "0"]), &["--rounds"]);
    refuse(at, &bench(&["--batch", "0"]), &["--batch"]);
    refuse(at, &bench(&["--method", "sdc"]), &["--method", "did you mean `scd`?"]);
    refuse(at, &bench(&["--set", "data.path=absent"]), &["absent"]);
    refuse(at, &["bench", "train-step"], &["--preset"]);
    refuse(at, &["bench", "training", "--preset", "circle-demo"], &["training", "train-step"]);
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_flat_over_a_thousand_training_steps() {
    let home = TempDir::new().unwrap();
    let network = "denoiser.backbone={kind='unet', channels=8, multipliers=[1, 2], blocks=1, attention=[8], head=16}";
    for (preset, method, batch, setting) in
        [("circle-demo", "scd", "128", "train.rate=1e-4"), ("darcy-demo", "vanilla", "2", network)]
    {
        let arguments = ["bench", "train-step", "--preset", preset, "--method", method, "--batch", batch];
        let more = ["--set", setting, "--rounds", "1000", "--threads", "1", "--json"];
        let said = succeed_json(home.path(), &[&arguments[..], &more[..]].concat());
        let number = |key: &str| said[key].as_f64().unwrap();
        // A leak of a single activation per step would be 1,000 × 2 × 8 × 16 × 16 × 4 bytes or more.
        assert!(number("rss_end_bytes") < number("rss_tenth_bytes") + 4e6, "{said}");
    }
}

#[test]
fn presets_info_and_completions_print_what_they_promise() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    assert!(succeed(at, &["presets"]).contains("circle-demo"));
    let names = succeed_json(at, &["presets", "--json"]);
    for name in names.as_array().unwrap() {
        let text = succeed(at, &["presets", name.as_str().unwrap(), "--method", "vanilla"]);
        // The equation of your own data is yours to give.
        assert!(text.contains("[constraint]") == (name != "fields") && !text.contains("[denoiser.scd]"), "{text}");
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

#[test]
fn the_environment_chooses_the_instruction_set() {
    let home = TempDir::new().unwrap();
    let info = |name: &str| softly(home.path()).args(["info", "--json"]).env("SOFTLY_VECTORS", name).output().unwrap();
    let said: Value = serde_json::from_slice(&info("portable").stdout).unwrap();
    assert_eq!(said["vectors"], "portable");
    let refused = info("avx3");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(["SOFTLY_VECTORS", "avx3", "portable", "hint:"].iter().all(|text| said.contains(text)), "{said}");
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

#[test]
fn an_operator_is_sampled_and_measured_on_other_grids() {
    let home = TempDir::new().unwrap();
    let folder = home.path();
    let train = |name: &str, backbone: &str| {
        let settings =
            ["data.generator.size=8", "data.count=20", "data.valid=8", "train.iterations=4", "train.batch=4"];
        let mut arguments = vec!["train", "--preset", "helmholtz-demo", "--method", "fundps", "--out", name];
        arguments.extend(settings.iter().chain(&["sampler.steps=3"]).flat_map(|s| ["--set", s]));
        arguments.extend(["--set", backbone]);
        succeed(folder, &arguments);
    };
    train("operator", "denoiser.backbone={kind='operator', channels=4, modes=4, blocks=1}");
    train("unet", "denoiser.backbone={kind='unet', channels=8, multipliers=[1], blocks=1, head=8}");
    for (more, out) in [(&["--grid", "12x10"][..], "finer"), (&["--grid", "12x10", "--restart", "0.5"][..], "refined")]
    {
        let arguments = [&["sample", "operator", "--count", "3", "--out", out][..], more].concat();
        succeed(folder, &arguments);
        assert_eq!(read_f32(&folder.join(out).join("u.npy")).len(), 3 * 12 * 10, "{out}");
    }
    let fine = ["--preset", "helmholtz-demo", "--set", "data.generator.size=12", "--set", "data.count=8", "--set"];
    succeed(folder, &[&["data", "generate", "--out", "fine"][..], &fine, &["data.valid=4"]].concat());
    let eval = ["--json", "eval", "operator", "--count", "4", "--grid", "12x12"];
    let measured = succeed_json(folder, &[&eval[..], &["--data", "fine"]].concat());
    assert!(measured["model"]["metrics"]["residual"]["mean"].as_f64().unwrap() > 0.0, "{measured}");

    let sample = ["sample", "operator", "--count", "2", "--out", "x"];
    let with = |more: &[&'static str]| [&sample[..], more].concat();
    refuse(folder, &with(&["--grid", "12"]), &["--grid", "such as 64x64"]);
    refuse(folder, &with(&["--grid", "4x12"]), &["denoiser.backbone.modes", "4×12"]);
    refuse(folder, &with(&["--restart", "1"]), &["--grid"]);
    refuse(folder, &with(&["--grid", "12x12", "--restart", "-1"]), &["sampler.sigma_max", "positive"]);
    let observing = "sampler.guidance={kind='fundps', observe={a=1.0}}";
    refuse(folder, &with(&["--grid", "12x12", "--set", observing]), &["sampler.guidance.observe", "data.path"]);
    refuse(folder, &["sample", "unet", "--grid", "12x12", "--out", "x"], &["--grid", "operator"]);
    refuse(folder, &eval, &["--data", "8×8"]);
    refuse(folder, &[&eval[..], &["--metrics", "explained"]].concat(), &["--grid", "trained on"]);
    refuse(folder, &["sample", &run(), "--grid", "4x4", "--out", "x"], &["--grid", "points"]);
}

#[test]
#[cfg(not(feature = "mpi"))]
fn several_processes_are_refused_without_mpi() {
    let home = TempDir::new().unwrap();
    let words = ["train", "--preset", "circle-demo", "--method", "scd", "--out", "run"];
    let launchers = [
        ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"],
        ["PMI_SIZE", "PMI_RANK"],
        ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID"],
    ];
    for [size, rank] in launchers {
        for (index, speaks) in [("0", true), ("1", false)] {
            let output = softly(home.path()).env(size, "2").env(rank, index).args(words).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert_eq!(said.contains("2 processes were started") && said.contains("--features mpi"), speaks, "{said}");
            assert_eq!(contents(home.path()).len(), 0);
        }
        // A launcher of one process changes nothing.
        let output = softly(home.path()).env(size, "1").env(rank, "0").arg("info").output().unwrap();
        assert!(output.status.success());
    }
}
