//! The studies of fields on tiny models: every training and evaluation, tables, pages, and pages made again.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;
use softly::error::Result;
use softly::job::Job;
use softly::{
    BackboneConfig, Config, Dataset, FieldEval, Layers, MlpConfig, RunFolder, RunInfo, Snapshot, Training, device,
    generate,
};
use softly_studies::{Ablation, Claim, Equation, FieldStudy, FieldTable, StudyScale, Trainer, run_fields};
use tempfile::TempDir;

fn info() -> RunInfo {
    let text = |t: &str| t.to_string();
    RunInfo {
        version: text("0"),
        commit: text("none"),
        command: text("softly reproduce darcy"),
        seed: 0,
        dataset_hash: text(""),
        device: text("cpu"),
        ranks: 1,
        threads: 1,
        status: text(""),
        seconds: 0.0,
        fit: Vec::new(),
    }
}

/// Two steps of a tiny network, sampled with three.
fn train_little(config: &Config, folder: &RunFolder, base: Option<&RunFolder>) -> Result<()> {
    let mut config = config.clone();
    config.denoiser.backbone = BackboneConfig::Mlp(MlpConfig { hidden: 8 });
    config.train.iterations = 2;
    config.train.batch = 2;
    config.sampler.steps = 3;
    let (device, data) = (device::by_name("cpu")?, Dataset::from_config(&config.data)?);
    let training = match base {
        Some(base) => {
            let snapshot = Snapshot::read(&base.snapshot())?;
            Training::adapt(&snapshot, &base.snapshot(), &config, data, &device)?
        }
        None => Training::new(&config, data, &device)?,
    };
    softly::run(training, folder, info(), &Job::silent(&device))
}

fn study(equation: Equation, ablation: Option<Ablation>) -> FieldStudy {
    let mut study = FieldStudy::new(equation, StudyScale::Demo, None, ablation);
    let full = FieldEval { samples: 3, batch: 2, likelihood: 2, likelihood_steps: 3, loss: 2, keep: 1 };
    study.full = full;
    study.brief = FieldEval { likelihood: 0, loss: 0, ..full };
    study
}

/// A few samples in the study's folder.
fn make_data(study: &FieldStudy, out: &Path) {
    fs::write(out.join("study.txt"), format!("{} demo\n", study.equation.name())).unwrap();
    let preset = Layers::new().preset(&study.preset()).unwrap().finish("preset").unwrap();
    let mut data = preset.data;
    (data.count, data.valid, data.seed) = (12, 3, 0);
    generate(&data, &out.join("data"), &Job::silent(&device::by_name("cpu").unwrap())).unwrap();
}

fn run(study: &FieldStudy, out: &Path) -> FieldTable {
    let trainer: &Trainer<'_> = &|config, folder, base, _| train_little(config, folder, base);
    run_fields(study, out, &info(), trainer, &Job::silent(&device::by_name("cpu").unwrap())).unwrap()
}

fn softly(arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_softly")).args(arguments).arg(folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn a_study_and_its_ablations_from_training_to_pages() {
    let home = TempDir::new().unwrap();
    let out = home.path();
    let main = study(Equation::Darcy, None);
    make_data(&main, out);
    let table = run(&main, out);
    let count = |study: &FieldStudy| study.cells().iter().map(|c| c.variants.len()).sum::<usize>();
    assert_eq!(table.rows.len(), count(&main));
    let find = |method: &str| table.verdicts.iter().find(|v| v.method.to_string() == method).unwrap();
    assert_eq!(find("scd").ratio.as_ref().unwrap().pairs, 3);
    assert!(find("adapt-learn").likelihood_difference.is_some() && find("vanilla").ratio.is_none());
    assert!(table.targets.is_empty(), "a demonstration has none");

    // The file is small, and whole again beside its cells: the same comparisons follow from it.
    let file = FieldTable::file(out, None);
    let written = json(&file);
    assert_eq!(written["rows"][0]["result"]["metrics"]["per_sample"]["residual"].as_array().unwrap().len(), 0);
    let again = FieldTable::read(&file).unwrap();
    assert_eq!(again.condensed(), written);
    assert_eq!(again.rows[0].result.metrics.per_sample, table.rows[0].result.metrics.per_sample);

    // Judged as if it were the large study.
    let mut large = written.clone();
    large["scale"] = "cpu".into();
    // There guidance has other scales.
    large["rows"].as_array_mut().unwrap().retain(|row| !row["method"].as_str().unwrap().starts_with("dps"));
    fs::write(out.join("large.json"), large.to_string()).unwrap();
    let large = FieldTable::read(&out.join("large.json")).unwrap();
    let lowest = |name: &str, told: f64| {
        let own = table.verdicts.iter().filter(|v| v.method.kind.to_string() == name && v.claim == Claim::Value(told));
        own.map(|v| v.residual).fold(f64::INFINITY, f64::min)
    };
    let target = |text: &str| large.targets.iter().find(|t| t.what.contains(text)).unwrap();
    let ratio = lowest("scd", 10.0) / lowest("vanilla", 10.0);
    let found = target("SCD / vanilla residual, f = 10");
    assert!(found.found.starts_with(&format!("{ratio:.3} [")) && found.met == (ratio <= 0.7), "{found:?} {ratio}");
    for text in [
        "SCD / vanilla residual, f = 15",
        "scd / vanilla residual, f = 10",
        "marginal W1 of adapt",
        "scd against post-hoc jacobi 2, f = 10",
        "adapt against post-hoc kalman 1, f = 15",
        "NLL of scd",
        "NLL of adapt and adapt-learn",
        "adapt / vanilla residual, f = 15",
        "adapt-learn / vanilla residual, f = 15",
        "learned f",
        "PIDM / vanilla",
    ] {
        target(text);
    }

    // The program finds nothing left to do but table and page.
    let said: Value = serde_json::from_str(&softly(&["reproduce", "darcy", "--json", "--out"], out)).unwrap();
    assert_eq!(said["verdicts"], written["verdicts"]);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for part in [
        "γ of the direction gradient, p",
        "γ of the direction newton",
        "γ of the direction kalman",
        "One sample of each method",
        "post-hoc",
    ] {
        assert!(page.contains(part), "{part}");
    }

    for ablation in Ablation::ALL {
        let study = study(Equation::Darcy, Some(ablation));
        let table = run(&study, out);
        assert_eq!(table.rows.len(), count(&study), "{ablation:?}");
        assert!(table.rows.iter().all(|r| r.origin(&study).is_some()));
        // Trainings of the main study are not repeated.
        let vanilla = RunFolder::new(out.join("vanilla-10-0"));
        assert_eq!(table.rows[0].train_seconds, json(&vanilla.info())["seconds"].as_f64().unwrap());
    }
    let gamma = FieldTable::read(&FieldTable::file(out, Some(Ablation::Gamma))).unwrap();
    let parts = |method: &str| gamma.rows.iter().find(|r| r.method.to_string() == method).unwrap().result.gamma.len();
    assert_eq!([parts("scd"), parts("scd, one γ"), parts("scd, γ per node")], [2, 1, 2]);

    let before = fs::read(out.join("report.html")).unwrap();
    fs::remove_file(out.join("report.html")).unwrap();
    let pages = softly(&["report"], out);
    assert_eq!(pages.lines().count(), 1 + Ablation::ALL.len(), "{pages}");
    assert!(fs::read(out.join("report.html")).unwrap() == before);
    for ablation in Ablation::ALL {
        let page = fs::read_to_string(out.join(format!("report-{}.html", ablation.name()))).unwrap();
        assert!(page.contains("Results"), "{ablation:?}");
    }
    // A table alone, without its cells, makes a page as well; so does a training.
    let alone = home.path().join("alone");
    fs::create_dir(&alone).unwrap();
    fs::copy(&file, alone.join("table.json")).unwrap();
    assert_eq!(Path::new(softly(&["report"], &alone).trim()), alone.join("report.html"));
    assert_eq!(Path::new(softly(&["report"], &out.join("scd-10-0")).trim()), out.join("scd-10-0/report.html"));
}

#[test]
fn wave_numbers_that_scatter_and_wrong_ones() {
    let home = TempDir::new().unwrap();
    let out = home.path();
    let mut study = study(Equation::Helmholtz, None);
    study.claims = vec![Claim::Value(0.0), Claim::Value(0.5), Claim::WaveNumber { k: 4.0 }];
    make_data(&study, out);
    let table = run(&study, out);
    let learned = table.rows.iter().find(|r| r.method.to_string() == "adapt-learn").unwrap();
    let [(name, k)] = &learned.learned[..] else { panic!("{:?}", learned.learned) };
    assert!(name == "k" && (k - 1.0).abs() < 1e-4, "{k}");
    assert_eq!(learned.claim, Claim::WaveNumber { k: 4.0 });
    softly(&["report"], out);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("When the wave number is far off") && page.contains("k=4"));
    // Rows of the main axis are in the main table, others are not.
    let heading = |text: &str| page.rfind(text).unwrap();
    let main = &page[heading("Results</h2>")..heading("Samples and residuals</h2>")];
    assert!(main.contains(">0.5<") && !main.contains("k=4"));
}
