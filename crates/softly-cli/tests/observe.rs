//! `--observe`: samples given measurements, their evaluation, and refusals.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

fn softly(folder: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softly"));
    command.current_dir(folder).env("SOFTLY_REDUCED", "1").args(arguments).output().unwrap()
}

fn succeed(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = softly(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "softly {arguments:?}: {said}");
    (String::from_utf8(output.stdout).unwrap(), said)
}

fn refuse(folder: &Path, arguments: &[&str], needles: &[&str]) {
    let output = softly(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "softly {arguments:?}: {said}");
    assert!(needles.iter().all(|needle| said.contains(needle)), "softly {arguments:?}: {said}");
}

/// A folder with a tiny run on Darcy flow and a table of sensors.
fn made() -> TempDir {
    let home = TempDir::new().unwrap();
    let small = ["--set", "data.generator.size=8", "--set", "data.generator.modes=2"];
    let network = ["--set", "denoiser.backbone={ kind = \"mlp\", hidden = 8 }", "--method", "vanilla", "--out", "run"];
    succeed(home.path(), &[&["train", "--preset", "darcy-demo"][..], &small, &network].concat());
    let sensors = "field,x,y,value,sd\np,0.2,0.3,0.01,0.001\nK,0.5,0.55,1.1,\n\"K*dx(p)\",0.5,0.5,0.02,0.05\n";
    fs::write(home.path().join("sensors.csv"), sensors).unwrap();
    home
}

/// The same, made once for all tests that need no other.
fn home() -> &'static Path {
    static HOME: OnceLock<TempDir> = OnceLock::new();
    HOME.get_or_init(made).path()
}

const SENSORS: [&str; 4] = ["--observe", "sensors.csv", "--noise", "K=1%"];

#[test]
fn samples_given_sensors_are_arrays_a_record_and_a_page_and_errors_are_measured_once() {
    let home = made();
    let home = || home.path();
    let draw = |out: &str| {
        succeed(home(), &[&["sample", "run", "--count", "3", "--json", "--out", out][..], &SENSORS].concat())
    };
    let (first, said) = draw("first");
    let found: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((found["cases"].as_u64(), found["count"].as_u64()), (Some(1), Some(3)));
    assert!(found["misfit"].as_f64().unwrap().is_finite() && found["calls"].as_f64().unwrap() > 0.0);
    assert_eq!(found["gradients"].as_f64(), Some(0.0));
    assert!(said.contains("measuring the denoiser's errors"), "{said}");
    let (_, said) = draw("second");
    assert!(!said.contains("measuring the denoiser's errors"), "{said}");
    for name in ["p.npy", "K.npy", "mean-p.npy", "sd-K.npy"] {
        assert_eq!(
            fs::read(home().join("first").join(name)).unwrap(),
            fs::read(home().join("second").join(name)).unwrap()
        );
    }
    let record: Value = serde_json::from_str(&fs::read_to_string(home().join("first/run.json")).unwrap()).unwrap();
    assert_eq!(record["observations"][0].as_array().unwrap().len(), 3);
    assert_eq!(record["observations"][0][2]["field"], "K*dx(p)");
    assert!(fs::read_to_string(home().join("first/posterior.html")).unwrap().contains("<svg"));
}

#[test]
fn every_method_draws_and_is_judged_next_to_kriging() {
    for method in
        ["kalman", "kriging", "dps", "diffusionpde", "fundps", "mmps", "jfps", "eci", "pcfm", "ppr", "pdm", "cocogen"]
    {
        let arguments = [
            "eval",
            "run",
            "--observe",
            "p=5",
            "--observe",
            "K=all",
            "--noise",
            "10%",
            "--conditioning",
            method,
            "--json",
        ];
        // Guidance at a scale that the untrained network survives.
        let gentle: &[&str] = if ["dps", "diffusionpde", "fundps"].contains(&method) {
            &["--set", "conditioning.scale=1e-3"]
        } else {
            &[]
        };
        let found: Value = serde_json::from_str(&succeed(home(), &[&arguments[..], gentle].concat()).0).unwrap();
        let rows = found["rows"].as_array().unwrap();
        assert_eq!(rows.len(), if method == "kriging" { 1 } else { 2 });
        assert_eq!(rows[0]["method"], method);
        assert!(rows[0]["metrics"]["fields"][1]["sample_error"]["mean"].as_f64().unwrap().is_finite());
        let gradients = rows[0]["gradients"].as_f64().unwrap();
        assert_eq!(
            gradients > 0.0,
            ["dps", "diffusionpde", "fundps", "mmps"].contains(&method),
            "{method}: {gradients}"
        );
    }
    succeed(home(), &["eval", "run", "--observe", "sensors.csv", "--noise", "K=1%", "--out", "judged"]);
    assert!(home().join("judged/posterior.html").exists() && home().join("judged/posterior.json").exists());
}

#[test]
fn bad_measurements_end_with_exit_code_2() {
    let at = home();
    let draw = ["sample", "run", "--out", "refused", "--observe"];
    let observe = |sources: &[&'static str]| -> Vec<&'static str> { [&draw[..], sources].concat() };
    refuse(at, &observe(&["sensors.csv"]), &["sensors.csv, line 3", "noise of `K` is not known"]);
    refuse(at, &observe(&["nowhere.csv", "--noise", "1%"]), &["nowhere.csv"]);
    refuse(at, &observe(&["sensors.csv", "--noise", "K=0"]), &["--noise", "positive"]);
    refuse(at, &observe(&["sensors.csv", "--conditioning", "magic"]), &["magic", "kalman"]);
    refuse(
        at,
        &observe(&["sensors.csv", "--noise", "K=1%", "--guidance", "0.1"]),
        &["sampler.guidance", "measurements"],
    );
    refuse(at, &["sample", "run", "--out", "x", "--noise", "p=1"], &["--observe"]);
    refuse(at, &["eval", "run", "--observe", "p=1000", "--noise", "1%"], &["--observe", "64 nodes"]);
    refuse(at, &["eval", "run", "--observe", "T=5", "--noise", "1%"], &["no field `T`"]);
    refuse(at, &["eval", "run", "--observe", "p=0", "--noise", "1%"], &["at least one sensor"]);
    refuse(at, &["eval", "run", "--out", "x"], &["--out", "--observe"]);
    // Noise that no network can show, twice at one place; a formula that leaves the numbers; options that measurements do not go with.
    fs::write(at.join("exact.csv"), "field,x,y,value,sd\np,0.2,0.3,0.01,1e-14\np,0.2,0.3,0.01,1e-14\n").unwrap();
    refuse(at, &observe(&["exact.csv"]), &["exact.csv, line 2", "at least", "1e-14"]);
    fs::write(at.join("twice.csv"), "field,x,y,value,sd,sd\np,0.2,0.3,0.01,1,1\n").unwrap();
    refuse(at, &observe(&["twice.csv"]), &["twice.csv", "two columns `sd`"]);
    fs::write(at.join("log.csv"), "field,x,y,value,sd\nlog(K - 100),0.2,0.3,0.01,0.1\n").unwrap();
    refuse(at, &observe(&["log.csv", "--count", "2"]), &["NaN"]);
    refuse(at, &observe(&["sensors.csv", "--noise", "K=1%", "--grid", "16x16"]), &["--grid", "no other"]);
    refuse(at, &observe(&["sensors.csv", "--noise", "K=1%", "--grid", "16x16", "--restart", "1"]), &["--restart"]);
    // What conditioning learns from training data is wrong if they have noise.
    refuse(at, &observe(&["sensors.csv", "--noise", "K=1%", "--set", "data.noise=0.1"]), &["`kalman`", "data.noise"]);
    fs::write(at.join("gap.csv"), "field,x,y,value,sd,sample\np,0.2,0.3,0.01,1,0\np,0.2,0.3,0.01,1,2\n").unwrap();
    refuse(at, &observe(&["gap.csv"]), &["gap.csv", "found none of sample 1", "from 0 without gaps"]);
    assert!(!at.join("refused").exists());
}
