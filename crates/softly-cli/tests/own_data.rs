//! From a file of another program to a trained, adapted and reported model, as a stranger would go: six commands.

use std::f64::consts::TAU;
use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;
use softly::npy;
use tempfile::TempDir;

const HEAT: &str = "dt(u) - nu*dxx(u)";

/// The program, run in `folder` and cut down to seconds.
fn softly(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softly"));
    command.current_dir(folder).env("SOFTLY_REDUCED", "1").args(arguments);
    command
}

/// Runs the program, which must succeed; its stdout and stderr.
fn succeed(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = softly(folder, arguments).output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "softly {arguments:?}: {stderr}");
    (stdout, stderr)
}

/// Runs the program, which must refuse with every needle; its exit code is 2.
fn refuse(folder: &Path, arguments: &[&str], needles: &[&str]) {
    let output = softly(folder, arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "softly {arguments:?}: {said}");
    for needle in needles {
        assert!(said.contains(needle), "softly {arguments:?} does not say {needle:?}: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

/// 24 solutions of the heat equation with nu = 0.02 at 11 times and 18 places of a ring, as a PDEBench file in `folder`.
fn heat(folder: &Path) {
    let value = |sample: usize, t: usize, x: usize| {
        let (time, place) = (t as f64 / 10.0, x as f64 / 18.0);
        let wave = |k: f64, phase: f64| (-0.02 * (TAU * k).powi(2) * time).exp() * (TAU * k * place + phase).cos();
        wave(1.0, sample as f64) + 0.5 * wave(2.0, 2.3 * sample as f64)
    };
    let values = (0..24 * 11 * 18).map(|i| value(i / 198, i / 18 % 11, i % 18) as f32);
    npy::write_f32(&folder.join("u.npy"), &[24, 11, 18], values).unwrap();
    let import = ["data", "import", "--field", "u=u.npy", "--axes", "t,x", "--periodic", "x", "--out", "first"];
    succeed(folder, &import);
    succeed(folder, &["data", "export", "first", "--to", "pdebench", "--out", "heat.hdf5"]);
}

#[test]
fn six_commands_from_a_file_to_a_report() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    heat(at);
    fs::create_dir(at.join("study")).unwrap();
    succeed(at, &["data", "import", "heat.hdf5", "--periodic", "x", "--out", "data/heat"]);
    let init = ["init", "data/heat", "--equation", HEAT, "--parameter", "nu=0.02", "--budget", "20s", "--out"];
    succeed(at, &[&init[..], &["study/my.toml"]].concat());
    let text = fs::read_to_string(at.join("study/my.toml")).unwrap();
    for line in [
        "path = \"../data/heat\"",
        "nu = 0.02",
        "stencil = { t = \"one-sided-2\", x = \"periodic\" }",
        "# A step took ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    succeed(at, &["data", "inspect", "data/heat", "--config", "study/my.toml"]);
    let train = ["train", "--config", "study/my.toml", "--method", "vanilla", "--out", "runs/vanilla"];
    succeed(at, &train);
    for method in ["adapt", "adapt-learn"] {
        let out = format!("runs/{method}");
        succeed(at, &["adapt", "runs/vanilla", "--config", "study/my.toml", "--method", method, "--out", &out]);
    }
    succeed(at, &["report", "runs/vanilla", "runs/adapt", "runs/adapt-learn", "--out", "page.html"]);
    let page = fs::read_to_string(at.join("page.html")).unwrap();
    assert!(page.contains("runs/adapt"));

    // The way of the fit from the given value on is kept with the run, and told on the page.
    let info: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(at.join("runs/adapt-learn/run.json")).unwrap()).unwrap();
    let fit = info["fit"].as_array().unwrap();
    assert!(fit.len() > 1 && fit[0].as_object().unwrap().values().all(|value| value == f64::from(0.02_f32)), "{fit:?}");
    assert!(page.contains("0.02 → "), "the way of the fit is missing");

    // The parameter that is learned was found.
    let config = fs::read_to_string(at.join("runs/adapt-learn/config.toml")).unwrap();
    assert!(config.contains("learn = 0.02"), "{config}");
    assert!(config.contains("path = \"../../data/heat\""), "{config}");
    // A run's configuration is a file like any other: its paths lead from its folder, whatever the working folder.
    succeed(&at.join("study"), &["train", "--config", "../runs/vanilla/config.toml", "--out", "../runs/again"]);
    assert_eq!(
        fs::read_to_string(at.join("runs/again/config.toml")).unwrap(),
        fs::read_to_string(at.join("runs/vanilla/config.toml")).unwrap()
    );
    // Trained from scratch with the equation, and sampled from another folder.
    succeed(at, &["train", "--config", "study/my.toml", "--method", "scd", "--out", "runs/scd"]);
    succeed(&at.join("study"), &["sample", "../runs/scd", "--count", "2", "--out", "samples"]);
    assert_eq!(npy::read(&at.join("study/samples/u.npy")).unwrap().shape, [2, 11, 18]);

    refuse(
        at,
        &["sample", "runs/adapt", "--set", "constraint.parameters.nu=0.05", "--out", "s"],
        &["constraint", "softly adapt"],
    );
    refuse(at, &[&init[..], &["study/my.toml"]].concat(), &["study/my.toml", "exists already"]);
    refuse(at, &[&train[..], &["--set", "train.rate=1.0"]].concat(), &["another configuration"]);
}

#[test]
fn two_lines_are_enough_to_train_fields() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    heat(at);
    fs::write(
        at.join("my.toml"),
        format!(
            "[data]\npath = 'first'\n[constraint]\nfields = ['u']\nresidual = '{HEAT}'\nparameters = {{ nu = 0.02 }}\n"
        ),
    )
    .unwrap();
    succeed(at, &["train", "--config", "my.toml", "--out", "run"]);
    let config = fs::read_to_string(at.join("run/config.toml")).unwrap();
    assert!(config.contains("kind = \"unet\"") && config.contains("normalise = \"std\""), "{config}");
    assert!(!config.contains("generator"), "{config}");
    succeed(at, &["adapt", "run", "--config", "my.toml", "--method", "adapt", "--out", "adapted"]);
    // Without a file, too.
    succeed(at, &["train", "--set", "data.path=first", "--out", "set"]);
    refuse(at, &["train", "--set", "train.rate=1.0", "--out", "none"], &["data", "`path`"]);
    refuse(
        at,
        &["train", "--set", "data.path=first", "--method", "adapt", "--out", "n"],
        &["[constraint]", "softly init"],
    );
}

#[test]
fn changed_descriptions_are_refused_and_so_are_ends_that_do_not_ascend() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    heat(at);
    let file = at.join("first/dataset.toml");
    let good = fs::read_to_string(&file).unwrap();
    let slips = [("\nvalid = 2\n", "\nvalid = 0\n"), ("last = 1.0", "last = 0.0"), ("last = 1.0", "last = -1.0")];
    for (right, wrong) in slips {
        assert!(good.contains(right), "{good}");
        fs::write(&file, good.replace(right, wrong)).unwrap();
        let train = ["train", "--set", "data.path=first", "--out", "run"];
        refuse(at, &train, &["dataset.toml", "checksum", "softly data import first"]);
        if wrong.starts_with("last") {
            refuse(at, &["data", "import", "first"], &["axis `x`", "first < last"]);
        }
    }
}

#[test]
fn what_init_cannot_know_is_left_to_be_filled_in() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    heat(at);
    let init = |more: &[&'static str]| [&["init", "first", "--budget", "5s", "--out", "my.toml"][..], more].concat();
    refuse(at, &init(&["--equation", "dt(v) - dxx(v)"]), &["--equation", "contains no field", "u"]);
    refuse(at, &init(&["--equation", "dt(u"]), &["--equation", "dt(u"]);
    refuse(at, &init(&["--equation", "dy(u)"]), &["--equation", "dy"]);
    refuse(at, &init(&["--equation", HEAT, "--parameter", "mu=1"]), &["--parameter", "`mu`", "did you mean `nu`?"]);
    refuse(at, &init(&["--equation", HEAT, "--parameter", "nu"]), &["--parameter", "NAME=NUMBER"]);
    refuse(at, &init(&["--parameter", "nu=1"]), &["--parameter", "--equation"]);
    refuse(at, &["init", "first", "--budget", "soon", "--out", "my.toml"], &["--budget", "30m"]);
    refuse(at, &["init", "absent", "--out", "my.toml"], &["absent"]);
    assert!(!at.join("my.toml").exists());

    let (stdout, stderr) = succeed(at, &init(&["--equation", HEAT, "--json"]));
    let said: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(said["unknown"], serde_json::json!(["nu"]));
    assert!(stderr.contains("nu") && stderr.contains("my.toml"), "{stderr}");
    let train = ["train", "--config", "my.toml", "--method", "vanilla", "--out", "run"];
    refuse(at, &train, &["my.toml", "[constraint.parameters] nu", "fill", "hint:"]);
    refuse(at, &["data", "inspect", "first", "--config", "my.toml"], &["my.toml", "[constraint.parameters] nu"]);
    succeed(at, &[&train[..], &["--set", "constraint.parameters.nu=0.02"]].concat());

    // Without an equation the file has a place for one, and trains.
    succeed(at, &["init", "first", "--budget", "5s", "--out", "plain.toml"]);
    succeed(at, &["train", "--config", "plain.toml", "--out", "plain"]);
    // A dataset may bring its equation along.
    let darcy = "data.generator={kind='darcy', size=12, length=0.3, modes=4, flow=10.0, discretisation='mirror'}";
    succeed(at, &["data", "generate", "--set", darcy, "--out", "darcy"]);
    succeed(at, &["init", "darcy", "--budget", "5s", "--out", "darcy.toml"]);
    assert!(fs::read_to_string(at.join("darcy.toml")).unwrap().contains("laplacian(p)"));
    succeed(at, &["train", "--config", "darcy.toml", "--method", "scd", "--out", "darcy-scd"]);
    let points = "data.generator={kind='points', curve={shape='circle'}}";
    succeed(at, &["data", "generate", "--set", points, "--out", "points"]);
    refuse(at, &["init", "points", "--out", "p.toml"], &["points"]);
}
