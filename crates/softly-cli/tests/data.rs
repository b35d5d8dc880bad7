//! The program on data: a small dataset end to end, and input that it refuses.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::str::contains;
use serde_json::Value;
use softly::npy;

const TINY: &str = r#"
[data]
count = 6
valid = 2
generator = { kind = "darcy", size = 12, length = 0.3, modes = 4, discretisation = "mirror" }

[constraint]
fields = ["p", "K"]
residual = "K*laplacian(p) + dot(grad(K), grad(p)) + f"
stencils = { p = "mirror" }
[constraint.parameters]
f = "10*(x<=0.125)*(y<=0.125) - 10*(x>=0.875)*(y>=0.875)"
"#;

fn softly(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softly"));
    command.current_dir(folder).args(line.split_whitespace());
    command
}

fn json_of(folder: &Path, line: &str) -> Value {
    let output = softly(folder, line).assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

fn refuses(folder: &Path, line: &str, code: i32, words: &[&str]) {
    let mut result = softly(folder, line).assert().code(code);
    for word in words {
        result = result.stderr(contains(*word));
    }
}

fn tiny() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.toml"), TINY).unwrap();
    folder
}

/// An array file with the given `descr` and body.
fn array(path: &Path, descr: &str, shape: &str, body: &[u8]) {
    let dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    let dictionary = format!("{dictionary:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((dictionary.len() as u16).to_le_bytes());
    bytes.extend(dictionary.into_bytes());
    bytes.extend(body);
    fs::write(path, bytes).unwrap();
}

/// Two arrays agree as well as single precision can.
fn agree(a: &Path, b: &Path) {
    let (a, b) = (npy::read(a).unwrap(), npy::read(b).unwrap());
    assert_eq!(a.shape, b.shape);
    for (a, b) in a.values.iter().zip(&b.values) {
        assert!((a - b).abs() <= 1e-7 * b.abs(), "{a} {b}");
    }
}

#[test]
fn a_dataset_end_to_end() {
    let folder = tiny();
    let at = folder.path();
    softly(at, "data generate --config tiny.toml --out set --threads 2").assert().success().stdout("set\n");
    let own = json_of(at, "data inspect set --json --plot set.png");
    assert_eq!((&own["train"], &own["valid"]), (&Value::from(6), &Value::from(2)));
    assert!(fs::read(at.join("set.png")).unwrap().starts_with(b"\x89PNG"));
    softly(at, "data inspect set --plot set.SVG").assert().success();
    assert!(fs::read_to_string(at.join("set.SVG")).unwrap().starts_with("<svg "));
    for file in ["set.jpg", "set2"] {
        refuses(at, &format!("data inspect set --plot {file}"), 2, &["--plot", file, ".svg or .png"]);
        assert!(!at.join(file).exists());
    }
    softly(at, "data inspect set").assert().success().stdout(contains("permeability")).stdout(contains("mean |R|"));

    // The same constraint in a file, and the residual of the arrays themselves.
    let given = json_of(at, "data inspect set --config tiny.toml --json");
    let direct = json_of(at, "residual --config tiny.toml --field p=set/train/p.npy --field K=set/train/K.npy");
    for summary in [&own["residual"]["train"], &given["residual"]["train"]] {
        for key in ["mean_abs", "rms", "max_abs"] {
            let (a, b) = (summary[key].as_f64().unwrap(), direct[key].as_f64().unwrap());
            assert!((a / b - 1.0).abs() < 1e-12, "{key}: {a} {b}");
        }
        assert_eq!(summary["n"], 6 * 144);
    }
    softly(at, "solve darcy --permeability set/train/K.npy --discretisation mirror --out p.npy").assert().success();
    agree(&at.join("p.npy"), &at.join("set/train/p.npy"));
}

#[test]
fn helmholtz_end_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    softly(at, "data generate --preset helmholtz-demo --count 16 --seed 3 --out set").assert().success();
    let own = json_of(at, "data inspect set --json");
    assert_eq!((&own["train"], &own["valid"], &own["seed"]), (&Value::from(16), &Value::from(1), &Value::from(3)));
    assert!(own["residual"]["train"]["mean_abs"].as_f64().unwrap() < 1e-5);
    softly(at, "solve helmholtz --source set/train/a.npy --out u.npy").assert().success();
    agree(&at.join("u.npy"), &at.join("set/train/u.npy"));
    refuses(at, "solve helmholtz --source set/train/a.npy --wave-number nan --out v.npy", 2, &["--wave-number"]);
    assert!(!at.join("v.npy").exists());
}

#[test]
fn points_are_data_too() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    softly(at, "data generate --preset circle-demo --count 100 --out set").assert().success();
    let own = json_of(at, "data inspect set --json");
    assert!(own["residual"]["train"]["max_abs"].as_f64().unwrap() < 1e-12);
    refuses(at, "data inspect set --plot a.png", 2, &["--plot"]);
}

#[test]
fn output_folders_of_others_are_left_alone() {
    let folder = tiny();
    let at = folder.path();
    softly(at, "data generate --config tiny.toml --out set").assert().success();
    softly(at, "data generate --config tiny.toml --out set").assert().success();
    let line = "data generate --config tiny.toml --seed 18446744073709551615 --out large";
    refuses(at, line, 2, &["data.seed", "9223372036854775807"]);
    assert!(!at.join("large").exists());
    refuses(at, "data generate --config tiny.toml --count 7 --out set", 2, &["set", "other data", "hint"]);
    refuses(at, "data generate --config tiny.toml --out .", 2, &["not empty"]);
    refuses(at, "data generate --config tiny.toml --out tiny.toml", 2, &["tiny.toml", "found a file"]);
    refuses(at, "data generate --config tiny.toml --count 0 --out other", 2, &["--count", "0"]);
    refuses(at, "data generate --config tiny.toml --set data.generator.size=4 --out other", 2, &["generator.size"]);
    refuses(at, "data generate --preset nothing --out other", 2, &["no preset"]);
    assert!(!at.join("other").exists());
    refuses(at, "data inspect nowhere", 2, &["nowhere", "dataset.toml"]);
}

#[test]
fn arrays_that_cannot_be_solved_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let write = |name: &str, shape: &[usize], value: f64| {
        let n = shape.iter().product();
        npy::write_f64(&at.join(name), shape, (0..n).map(|i| if i == 70 { value } else { 1.0 })).unwrap();
    };
    write("negative.npy", &[8, 10], -1.0);
    write("infinite.npy", &[2, 8, 10], f64::INFINITY);
    write("small.npy", &[4, 4], 1.0);
    write("line.npy", &[80], 1.0);
    fs::write(at.join("foreign.npy"), "K,p\n1,2\n").unwrap();
    array(&at.join("integer.npy"), "<i4", "8, 8", &[0; 256]);
    array(&at.join("big-endian.npy"), ">f8", "8, 8", &[0; 512]);
    array(&at.join("truncated.npy"), "<f8", "8, 8", &[0; 500]);
    array(&at.join("huge.npy"), "<f8", "4000000000, 4000000, 8", &[0; 64]);
    for (name, word) in [
        ("negative", "permeability must be positive"),
        ("infinite", "sample 0"),
        ("small", "at least 8 nodes"),
        ("line", "[H, W]"),
        ("foreign", "expected a .npy array"),
        ("integer", "little-endian f4 or f8"),
        ("big-endian", "little-endian f4 or f8"),
        ("truncated", "truncated"),
        ("huge", "truncated"),
        ("absent", "cannot read"),
    ] {
        let line = format!("solve darcy --permeability {name}.npy --out p.npy");
        refuses(at, &line, 2, &[&format!("{name}.npy"), word]);
    }
    refuses(at, "solve darcy --permeability negative.npy --flow inf --out p.npy", 2, &["--flow"]);
    assert!(!at.join("p.npy").exists());
}

#[test]
fn a_killed_generation_goes_on_to_the_same_bytes() {
    let folder = tiny();
    let at = folder.path();
    let line = "data generate --config tiny.toml --count 3000 --threads 2 --out";
    softly(at, &format!("{line} whole")).assert().success();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_softly"))
        .current_dir(at)
        .args(format!("{line} killed").split_whitespace())
        .spawn()
        .unwrap();
    let partial = at.join("killed/.partial/train/p.npy");
    while child.try_wait().unwrap().is_none() && !fs::metadata(&partial).is_ok_and(|m| m.len() > 100_000) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    softly(at, &format!("{line} killed")).assert().success();
    for file in ["dataset.toml", "train/p.npy", "train/K.npy", "valid/p.npy", "valid/K.npy"] {
        let read = |folder: &str| fs::read(at.join(folder).join(file)).unwrap();
        assert!(read("whole") == read("killed"), "{file}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_failed_work() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    npy::write_f64(&at.join("K.npy"), &[8, 8], (0..64).map(|_| 1.0)).unwrap();
    // A place without room for files, as a full disk.
    refuses(at, "solve darcy --permeability K.npy --out /proc/p.npy", 1, &["cannot write /proc/p.npy"]);
}

/// u(t, x) = e^{−ν k² t} sin(k x + φ) with k = 2π on 24 times and 32 periodic points, six samples.
fn heat(path: &Path, nu: f64) {
    let (times, points, k) = (24, 32, std::f64::consts::TAU);
    let mut bytes = Vec::new();
    for sample in 0..6 {
        for (i, j) in (0..times).flat_map(|i| (0..points).map(move |j| (i, j))) {
            let (t, x) = (0.5 * f64::from(i) / f64::from(times - 1), f64::from(j) / f64::from(points));
            let u = (-nu * k * k * t).exp() * (k * x + f64::from(sample)).sin();
            bytes.extend(u.to_le_bytes());
        }
    }
    array(path, "<f8", "6, 24, 32", &bytes);
}

#[test]
fn an_array_of_another_program_becomes_a_dataset_and_goes_back() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path();
    heat(&at.join("u.npy"), 0.05);
    let import = "data import --field u=u.npy --axes t,x --domain t=0:0.5 --periodic x --valid 0.3 --out heat --json";
    let made = json_of(at, import);
    assert_eq!((made["train"].as_u64(), made["valid"].as_u64()), (Some(4), Some(2)), "{made}");
    assert_eq!(json_of(at, import)["hash"], made["hash"], "the same command again is done already");
    refuses(at, &import.replace("0.3", "0.5"), 2, &["heat", "other data"]);
    let axes = &made["grid"];
    assert_eq!((axes[0]["name"].as_str(), axes[1]["periodic"].as_bool()), (Some("t"), Some(true)), "{made}");

    // Second-order differences of the true equation leave little, a wrong diffusivity leaves much.
    let law = "[constraint]\nfields = ['u']\nresidual = 'dt(u) - nu*dxx(u)'\n[constraint.parameters]\nnu = NU\n";
    let mean = |nu: &str| {
        fs::write(at.join("law.toml"), law.replace("NU", nu)).unwrap();
        let inspected =
            json_of(at, "data inspect heat --config law.toml --json")["residual"]["train"]["mean_abs"].clone();
        let line = "residual --config law.toml --field u=u.npy --axes t,x --domain t=0:0.5 --periodic x";
        let direct = json_of(at, line)["mean_abs"].as_f64().unwrap();
        (inspected.as_f64().unwrap(), direct)
    };
    let ((right, right_direct), (wrong, _)) = (mean("0.05"), mean("0.1"));
    assert!(right < 0.02 && wrong > 0.5, "{right} {wrong}");
    // The residual command knows the same axes; its arrays are all six samples, in double precision.
    assert!((right_direct / right - 1.0).abs() < 0.2, "{right_direct} {right}");

    // The exported file is recognised, and its numbers and axes come back.
    for layout in ["pdebench", "the-well"] {
        let file = format!("{layout}.hdf5");
        succeed(at, &format!("data export heat --to {layout} --out {file}"));
        assert!(succeed(at, &format!("data describe {file}")).contains('u'));
        let back = json_of(at, &format!("data import {file} --valid 0.3 --out {layout} --json"));
        assert_eq!(back["hash"], made["hash"], "{layout}: {back}");
    }
}

fn succeed(folder: &Path, line: &str) -> String {
    String::from_utf8(softly(folder, line).assert().success().get_output().stdout.clone()).unwrap()
}

#[test]
fn imports_that_cannot_work_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path();
    heat(&at.join("u.npy"), 0.05);
    let import = "data import --field u=u.npy --axes t,x --out data";
    for (line, words) in [
        ("data import --out data", vec!["expected a file"]),
        ("data import absent.h5 --out data", vec!["absent.h5"]),
        ("data import --field u --out data", vec!["--field", "NAME=FILE"]),
        ("data import --field t=u.npy --axes t,x --out data", vec!["name of a field and of an axis", "t"]),
        (&format!("{import} --domain x=1:0"), vec!["--domain", "FIRST < LAST"]),
        (&format!("{import} --periodic z"), vec!["z"]),
        (&format!("{import} --valid 1.5"), vec!["--valid", "between 0 and 1"]),
        (&format!("{import} --valid -1"), vec!["--valid"]),
    ] {
        refuses(at, line, 2, &words);
        assert!(!at.join("data").exists(), "{line} left something behind");
    }
    fs::write(at.join("law.toml"), "[constraint]\nfields = ['u']\nresidual = 'log(u)'\n").unwrap();
    refuses(at, "residual --config law.toml --field u=u.npy", 2, &["finite", "sample 0"]);
    refuses(at, "residual --config law.toml --field u=u.npy --domain z=0:1", 2, &["--domain", "no axis `z`"]);
    refuses(at, "residual --config law.toml --field u=u.npy --axes t", 2, &["--axes", "two names"]);
}

/// A dataset of Burgers-like samples u `[N, 8, 8]` with a number nu per sample and the constant beta.
fn with_numbers(at: &Path, name: &str) {
    let write = |file: &str, shape: &[usize], value: &dyn Fn(usize) -> f64| {
        let count = shape.iter().product();
        npy::write_f64(&at.join(file), shape, (0..count).map(value)).unwrap();
    };
    write("u.npy", &[12, 8, 8], &|k| (0.37 * (k + k / 64) as f64).sin());
    write("nu.npy", &[12], &|k| 0.1 + 0.01 * k as f64);
    write("beta.npy", &[12, 1], &|_| 2.0);
    succeed(
        at,
        &format!("data import --field u=u.npy --field nu=nu.npy --field beta=beta.npy --axes t,x --out {name}"),
    );
}

const SMALL: &str = r#"
[data]
path = "numbers"
normalise = "std"
[denoiser.backbone]
kind = "unet"
channels = 8
multipliers = [1]
blocks = 1
[train]
batch = 16
iterations = 4
[sampler]
steps = 4
[constraint]
fields = ["u"]
residual = "dt(u) - nu*dxx(u) - beta"
"#;

#[test]
fn numbers_of_samples_are_imported_trained_sampled_and_exported() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path();
    with_numbers(at, "numbers");
    fs::write(at.join("small.toml"), SMALL).unwrap();
    let seen = json_of(at, "data inspect numbers --config small.toml --json");
    assert_eq!((seen["constants"]["beta"].as_f64(), seen["fields"][1]["scalar"].as_bool()), (Some(2.0), Some(true)));
    assert!(seen["residual"]["train"]["mean_abs"].as_f64().unwrap() > 0.0);
    succeed(at, "data inspect numbers --plot numbers.svg");

    // Fewer samples than a batch are said; the data's numbers are in the resolved configuration.
    let train = "train --config small.toml --out run";
    softly(at, train).assert().success().stderr(contains("11 training samples, fewer than a batch of 16"));
    let config = fs::read_to_string(at.join("run/config.toml")).unwrap();
    assert!(config.contains("beta = 2.0") && config.contains("\"nu\""), "{config}");
    succeed(at, "sample run --count 3 --out samples");
    let (nu, scalars) =
        (npy::read(&at.join("samples/nu.npy")).unwrap(), npy::read(&at.join("samples/scalars.npy")).unwrap());
    assert_eq!((nu.shape, scalars.shape), (vec![3, 8, 8], vec![3, 1]));
    let mean = nu.values[..64].iter().sum::<f64>() / 64.0;
    assert!((mean - scalars.values[0]).abs() < 1e-6, "{mean} {}", scalars.values[0]);
    let measured = json_of(at, "eval run --count 4 --json");
    assert!(measured["model"]["metrics"]["residual"]["mean"].as_f64().unwrap().is_finite(), "{measured}");

    for layout in ["the-well", "pdebench"] {
        succeed(at, &format!("data export numbers --to {layout} --out {layout}.hdf5"));
        let back = json_of(at, &format!("data import {layout}.hdf5 --out {layout} --json"));
        assert_eq!((&back["hash"], &back["constants"]), (&seen["hash"], &seen["constants"]), "{layout}: {back}");
    }
    refuses(at, "data import the-well.hdf5 --scalars mu --out other", 2, &["--scalars", "no number mu", "nu"]);
    let without = json_of(at, "data import the-well.hdf5 --scalars none --out bare --json");
    assert_eq!(without["fields"].as_array().unwrap().len(), 1);
}

#[test]
fn changed_and_exchanged_data_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path();
    with_numbers(at, "numbers");
    fs::write(at.join("small.toml"), SMALL).unwrap();
    succeed(at, "train --config small.toml --out run");
    let file = at.join("numbers/valid/u.npy");
    let good = fs::read(&file).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    fs::write(&file, bad).unwrap();
    let words = ["numbers/valid/u.npy", "block 0", "softly data import numbers"];
    let lines = [
        "data inspect numbers",
        "data inspect numbers --json",
        "train --config small.toml --out run",
        "train --config small.toml --out new",
        "adapt run --config small.toml --set denoiser.scd.directions=['gradient'] --out adapted",
        "eval run --count 2",
        "data export numbers --to pdebench --out out.hdf5",
    ];
    for line in lines {
        refuses(at, line, 2, &words);
    }
    assert!(!at.join("new").exists() && !at.join("adapted").exists() && !at.join("out.hdf5").exists());
    // The change is recorded, and now these are other data than the run's.
    succeed(at, "data import numbers");
    succeed(at, "data inspect numbers");
    refuses(at, "train --config small.toml --out run", 2, &["run", "other data"]);
    refuses(at, "eval run --count 2", 2, &["numbers", "other data", "--data numbers"]);
    succeed(at, "eval run --count 2 --data numbers");
    fs::write(&file, good).unwrap();
    succeed(at, "data import numbers --out numbers");
    succeed(at, "train --config small.toml --out run");
}

#[test]
fn a_folder_written_by_hand_is_completed_by_the_command_that_errors_name() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path();
    fs::create_dir(at.join("mine")).unwrap();
    heat(&at.join("mine/u.npy"), 0.05);
    fs::write(at.join("mine/dataset.toml"), "fields = ['u']\naxes = ['t', { name = 'x', periodic = true }]\n").unwrap();
    for line in ["data inspect mine", "train --preset darcy-demo --set data.path=mine --out run"] {
        refuses(at, line, 2, &["mine/dataset.toml", "not complete", "`softly data import mine`"]);
    }
    let copied = json_of(at, "data import mine --out copy --valid 0.3 --json");
    let made = json_of(at, "data import mine --valid 0.3 --json");
    assert_eq!((&made["hash"], made["train"].as_u64()), (&copied["hash"], Some(4)));
    succeed(at, "data inspect mine");
    refuses(at, "data import mine copy --out both", 2, &["one folder or several files"]);
    refuses(at, "data import copy --field u=u.npy --out both", 2, &["--field"]);
    refuses(at, "data import mine/u.npy", 2, &["--out"]);
    fs::create_dir(at.join("empty")).unwrap();
    refuses(at, "data import empty", 2, &["empty", "dataset.toml", "fields ="]);
}

#[test]
fn fields_that_do_not_vary_are_said_at_import_and_refused_in_training() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path();
    npy::write_f64(&at.join("K.npy"), &[12, 8, 8], (0..768).map(|_| 1.5)).unwrap();
    with_numbers(at, "numbers");
    softly(at, "data import --field u=u.npy --field K=K.npy --out constant")
        .assert()
        .success()
        .stderr(contains("warning: the field K is 1.5 in all training samples"));
    fs::write(at.join("small.toml"), SMALL.split("[constraint]").next().unwrap()).unwrap();
    let line = "train --config small.toml --set data.path=constant --out run";
    refuses(at, line, 2, &["field `K`", "values that vary", "1.5", "leave the field out"]);
    assert!(!at.join("run").exists());
}

#[test]
fn an_audit_names_the_wrong_flow_and_fits_it() {
    let folder = tiny();
    let at = folder.path();
    let law = TINY.replace("f = \"10*", "flow = 15.0\nf = \"flow*").replace("- 10*", "- flow*");
    fs::write(at.join("wrong.toml"), &law).unwrap();
    softly(at, "data generate --config tiny.toml --count 12 --out set").assert().success();

    let right = json_of(at, "data inspect set --json");
    assert_eq!(right["audit"]["slips"], Value::from(Vec::<Value>::new()), "{right}");
    assert!(right["audit"]["verdict"].as_str().unwrap().starts_with("The equation holds up to"), "{right}");

    let wrong = json_of(at, "data inspect set --config wrong.toml --fit flow --report audit.html --json");
    let slip = &wrong["audit"]["slips"][0];
    assert_eq!(slip["kind"], "parameter", "{wrong}");
    assert!((slip["value"].as_f64().unwrap() - 10.0).abs() < 0.01, "{slip}");
    let flow = &wrong["audit"]["fit"]["parameters"][0];
    assert!((flow["value"].as_f64().unwrap() - 10.0).abs() < 1e-3, "{flow}");
    let verdict = wrong["audit"]["verdict"].as_str().unwrap();
    assert!(
        verdict.contains("With flow = 10 instead of 15") && verdict.contains("Fitted to the data: flow = 10"),
        "{verdict}"
    );
    let page = fs::read_to_string(at.join("audit.html")).unwrap();
    for part in ["Verdict", "Residual by wavelength", "Residual by sample", "Fitted parameters", "mean |R|"] {
        assert!(page.contains(part), "{part}");
    }
    let text = succeed(at, "data inspect set --config wrong.toml --fit flow");
    for part in
        ["axis 1: x, 12 nodes from 0 to 1, h = 0.09091", "residual R", "by region: interior", "Verdict: The equation"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }

    refuses(at, "data inspect set --config wrong.toml --fit flaw", 2, &["--fit", "`flaw`", "flow"]);
    fs::write(at.join("lacking.toml"), law.replace("\"K\"]", "\"K\", \"q\"]")).unwrap();
    refuses(at, "data inspect set --config lacking.toml", 2, &["no field `q`", "p, K"]);
    fs::write(at.join("root.toml"), "[constraint]\nfields = ['p']\nresidual = 'sqrt(p - 1000) + p'\n").unwrap();
    refuses(
        at,
        "data inspect set --config root.toml",
        2,
        &["constraint.residual", "train sample 0", "sqrt(p - 1000) + p"],
    );
}
