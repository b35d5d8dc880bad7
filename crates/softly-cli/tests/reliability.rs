//! Faults from outside: kills, leftovers of kills, damaged and hostile files, sizes that no machine has.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use softly::TensorFile;
use tempfile::TempDir;

/// A process that does not exist: numbers of processes end at 2²².
const DEAD: u32 = 1 << 23;

/// A training that takes about half a second.
const TINY: [&str; 6] = [
    "denoiser.backbone={kind='mlp', hidden=8}",
    "train.iterations=300",
    "train.batch=4",
    "train.log_every=10",
    "train.checkpoint_every=20",
    "data.count=20",
];

/// The program in `folder`, on one thread.
fn softly(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softly"));
    command.current_dir(folder).args(["--threads", "1"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let output = softly(folder, arguments).output().unwrap();
    assert!(output.status.success(), "softly {arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A refusal takes less than a second on an idle machine, and tests run side by side.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs a command that must exit with 2, soon and without a panic, and name all `needles`.
fn refuse(folder: &Path, arguments: &[&str], needles: &[&str]) {
    check_refusal(softly(folder, arguments), needles);
}

fn check_refusal(mut command: Command, needles: &[&str]) {
    let words = format!("{command:?}");
    let child = command.spawn().unwrap();
    let output = within(PATIENCE, child, &words);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{words}: {said}");
    assert!(!said.contains("panicked"), "{words}: {said}");
    for needle in needles {
        assert!(said.contains(needle), "{words} does not say {needle:?}: {said}");
    }
}

/// The outcome of a process that must end in time.
fn within(limit: Duration, mut child: Child, words: &str) -> Output {
    let deadline = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{words} runs longer than {limit:?}: {}", said(&child.wait_with_output().unwrap()));
        }
        sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// The arguments of a tiny training of `method` into `out`.
fn tiny<'a>(method: &'a str, out: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--preset", "circle-demo", "--method", method, "--out", out];
    arguments.extend(TINY.iter().flat_map(|setting| ["--set", setting]));
    arguments
}

/// The arguments of a tiny adaptation of `base` into `out`.
fn tiny_adapt<'a>(base: &'a str, out: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["adapt", base, "--preset", "circle-demo", "--method", "scd", "--out", out];
    arguments.extend(TINY.iter().flat_map(|setting| ["--set", setting]));
    arguments
}

/// Every file below `folder` by its path from there.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                all.insert(path.strip_prefix(folder).unwrap().to_path_buf(), fs::read(&path).unwrap());
            }
        }
    }
    all
}

fn has_temporary_files(folder: &Path) -> bool {
    contents(folder).keys().any(|path| path.extension() == Some(OsStr::new("tmp")))
}

/// The weights of the run in `folder`.
fn snapshot(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("snapshots/final.safetensors")).unwrap()
}

/// The folder that a training leaves which was killed before it wrote its configuration.
fn begin(folder: &Path) {
    for part in ["checkpoints", "snapshots"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    fs::write(folder.join("log.txt"), "").unwrap();
    fs::write(folder.join(format!(".config.toml.{DEAD}.tmp")), "[da").unwrap();
}

#[test]
fn names_in_a_snapshot_cannot_lead_out_of_the_folder() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    succeed(at, &[&tiny("vanilla", "run")[..], &["--set", "train.iterations=1"]].concat());
    let good = TensorFile::read(&at.join("run/snapshots/final.safetensors")).unwrap();
    let absolute = at.join("escaped").display().to_string();
    fs::create_dir(at.join("deep")).unwrap();
    for name in ["../escaped", "../../escaped", &absolute, "a/b", "..", "", "a\\u0000b", &"x".repeat(65)] {
        let mut evil = good.clone();
        let data = evil.metadata.get_mut("data").unwrap();
        let changed = data.replace("[\"x\",\"y\"]", &format!("[\"{name}\",\"y\"]"));
        assert_ne!(&changed, data);
        *data = changed;
        // The checksum is right: only the name is wrong.
        evil.write(&at.join("evil.safetensors")).unwrap();
        let before = contents(at);
        refuse(at, &["sample", "evil.safetensors", "--count", "2", "--out", "deep/out"], &["evil.safetensors", "name"]);
        assert_eq!(contents(at), before, "{name:?}: something was written");
    }
}

#[test]
fn a_snapshot_without_a_checksum_is_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    succeed(at, &[&tiny("vanilla", "run")[..], &["--set", "train.iterations=1"]].concat());
    let file = at.join("run/snapshots/final.safetensors");
    let good = fs::read(&file).unwrap();
    // The checksum stands behind the metadata's text: a line break and 64 digits, in JSON.
    let end = good.windows(3).position(|w| w == b"}\\n").unwrap() + 1;
    let length = u64::from_le_bytes(good[..8].try_into().unwrap()) - 66;
    fs::write(&file, [&length.to_le_bytes()[..], &good[8..end], &good[end + 66..]].concat()).unwrap();
    refuse(at, &["sample", "run", "--count", "2", "--out", "out"], &["final.safetensors", "without a checksum"]);
    refuse(at, &["eval", "run"], &["final.safetensors", "without a checksum"]);
    refuse(at, &tiny_adapt("run", "adapted"), &["final.safetensors", "without a checksum"]);
}

#[test]
fn what_a_kill_in_the_first_moment_leaves_is_taken_over() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let same = |whole: &str, begun: &str, arguments: &[&str]| {
        succeed(at, arguments);
        assert_eq!(snapshot(&at.join(begun)), snapshot(&at.join(whole)), "{arguments:?}");
        assert!(!has_temporary_files(&at.join(begun)), "{arguments:?}");
    };
    succeed(at, &tiny("vanilla", "whole"));
    begin(&at.join("begun"));
    same("whole", "begun", &tiny("vanilla", "begun"));
    succeed(at, &tiny_adapt("whole", "adapted"));
    begin(&at.join("begun-adapted"));
    same("adapted", "begun-adapted", &tiny_adapt("whole", "begun-adapted"));

    // Anything more is somebody's.
    begin(&at.join("mine"));
    fs::write(at.join("mine/checkpoints/notes.txt"), "keep").unwrap();
    refuse(at, &tiny("vanilla", "mine"), &["mine", "not empty"]);

    let generate = |out: &'static str| {
        let count = ["--set", "data.count=3", "--set", "data.valid=2"];
        [&["data", "generate", "--preset", "darcy-demo", "--out", out], &count[..]].concat()
    };
    succeed(at, &generate("data"));
    let left: [(&str, &[&str]); 4] = [
        ("nothing", &[]),
        ("partial", &[".partial/lock"]),
        ("record", &[".partial/lock", ".partial/train/K.npy", ".partial/.progress.toml.8388608.tmp"]),
        ("outside", &[".dataset.toml.8388608.tmp"]),
    ];
    for (name, files) in left {
        let folder = at.join(name);
        fs::create_dir(&folder).unwrap();
        for file in files {
            fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            fs::write(folder.join(file), "").unwrap();
        }
        succeed(at, &generate(name));
        assert_eq!(contents(&folder), contents(&at.join("data")), "{name}");
    }
}

#[test]
fn temporary_files_of_the_dead_are_removed_and_those_of_the_living_stay() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let living = std::process::id();
    let put = |folder: &str| {
        for process in [DEAD, living] {
            fs::write(at.join(format!("{folder}/.run.json.{process}.tmp")), "half").unwrap();
        }
        fs::write(at.join(format!("{folder}/.notes.tmp")), "no temporary file of this program").unwrap();
    };
    let check = |folder: &str| {
        assert!(!at.join(format!("{folder}/.run.json.{DEAD}.tmp")).exists(), "{folder}");
        assert!(at.join(format!("{folder}/.run.json.{living}.tmp")).exists(), "{folder}");
        assert!(at.join(format!("{folder}/.notes.tmp")).exists(), "{folder}");
    };
    let train = |steps: &str| succeed(at, &[&tiny("vanilla", "run")[..], &["--set", steps]].concat());
    train("train.iterations=20");
    // The first of these goes on, the second finds a finished run.
    for _ in 0..2 {
        let folders = ["run", "run/checkpoints", "run/snapshots"];
        for folder in folders {
            put(folder);
        }
        train("train.iterations=40");
        for folder in folders {
            check(folder);
        }
    }
    fs::create_dir(at.join("samples")).unwrap();
    put("samples");
    succeed(at, &["sample", "run", "--count", "2", "--steps", "2", "--out", "samples"]);
    check("samples");
}

#[test]
fn a_run_killed_before_its_last_word_says_that_it_is_finished() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    succeed(at, &tiny("vanilla", "run"));
    let info = at.join("run/run.json");
    let finished = fs::read_to_string(&info).unwrap();
    assert!(finished.contains("\"finished\""));
    fs::write(&info, finished.replace("\"finished\"", "\"running\"")).unwrap();
    let before = snapshot(&at.join("run"));
    succeed(at, &tiny("vanilla", "run"));
    assert_eq!(fs::read_to_string(&info).unwrap(), finished);
    assert_eq!(snapshot(&at.join("run")), before);
}

#[test]
fn damaged_metrics_are_refused_by_line_and_a_torn_last_line_is_dropped() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    succeed(at, &tiny("vanilla", "run"));
    let file = at.join("run/metrics.jsonl");
    let whole = fs::read_to_string(&file).unwrap();
    let longer = [&tiny("vanilla", "run")[..], &["--set", "train.iterations=320"]].concat();
    let mut lines: Vec<&str> = whole.lines().collect();
    assert_eq!(lines.len(), 30);
    lines[4] = "{\"step\": 50, \"lo";
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    refuse(at, &longer, &["metrics.jsonl", "line 5 is damaged", "hint:"]);

    fs::write(&file, &whole[..whole.len() - 9]).unwrap();
    succeed(at, &longer);
    let found = fs::read_to_string(&file).unwrap();
    // Lines up to step 290, without the torn one, then the two of the new steps.
    let kept: Vec<&str> = whole.lines().take(29).collect();
    let found: Vec<&str> = found.lines().collect();
    assert_eq!((&found[..29], found.len()), (&kept[..], 31));

    // A digit that was changed is no damage that anybody could see, but the checkpoint knows the lines.
    let text = fs::read_to_string(&file).unwrap();
    let digit = text.find("0.").unwrap() + 2;
    let other = if &text[digit..=digit] == "1" { "2" } else { "1" };
    fs::write(&file, [&text[..digit], other, &text[digit + 1..]].concat()).unwrap();
    let longest = [&tiny("vanilla", "run")[..], &["--set", "train.iterations=340"]].concat();
    let output = softly(at, &longest).output().unwrap();
    let said = said(&output);
    assert!(output.status.success() && said.contains("up to step 320 were changed or lost"), "{said}");
    // It is said once.
    let output = softly(at, &[&longest[..], &["--set", "train.iterations=360"]].concat()).output().unwrap();
    assert!(output.status.success() && !self::said(&output).contains("changed or lost"));
}

#[test]
fn numbers_outside_their_range_are_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    for (setting, key) in [
        ("train.adam.betas=[1.0, 0.999]", "train.adam.betas"),
        ("train.adam.betas=[0.9, -0.1]", "train.adam.betas"),
        ("train.ema={kind='constant', decay=1.0}", "train.ema.decay"),
        ("train.ema={kind='constant', decay=-0.5}", "train.ema.decay"),
        ("sampler.churn.amount=-1.0", "sampler.churn.amount"),
        ("sampler.churn.noise=nan", "sampler.churn.noise"),
        ("sampler.churn={from=2.0, to=1.0}", "sampler.churn"),
        ("constraint.parameters={a=nan}", "constraint.parameters.a"),
        ("train=[1000, 32]", "expected a table, found a list"),
    ] {
        refuse(at, &["train", "--preset", "circle-demo", "--method", "scd", "--out", "run", "--set", setting], &[key]);
    }
    assert!(contents(at).is_empty(), "something was written");
}

#[test]
fn a_changed_byte_of_what_a_dataset_says_of_itself_is_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let count = ["--set", "data.count=3", "--set", "data.valid=2"];
    succeed(at, &[&["data", "generate", "--preset", "darcy-demo", "--out", "data"], &count[..]].concat());
    let file = at.join("data/dataset.toml");
    let good = fs::read_to_string(&file).unwrap();
    // The equation's strength, for example, has no hash of its own.
    assert!(good.contains("flow = 10.0"));
    fs::write(&file, good.replace("flow = 10.0", "flow = 15.0")).unwrap();
    for command in [&["data", "inspect", "data"][..], &["train", "--set", "data.path=data", "--out", "run"]] {
        refuse(at, command, &["dataset.toml", "checksum", "softly data import data"]);
    }
    // A change that is wanted is recorded by the command that the hint names.
    succeed(at, &["data", "import", "data"]);
    succeed(at, &["data", "inspect", "data"]);

    let array = at.join("data/train/K.npy");
    let mut bytes = fs::read(&array).unwrap();
    let last = bytes.len() - 300;
    bytes[last] ^= 1;
    fs::write(&array, bytes).unwrap();
    for command in [&["data", "inspect", "data"][..], &["train", "--set", "data.path=data", "--out", "run"]] {
        refuse(at, command, &["train/K.npy", "block 0", "dataset.toml"]);
    }
}

#[test]
fn sizes_that_no_machine_has_are_refused_before_they_are_allocated() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let points = |setting: &'static str| ["train", "--preset", "circle-demo", "--out", "run", "--set", setting];
    for (setting, key) in [
        ("data.count=1000000000000", "data.count"),
        ("data.count=9223372036854775807", "data.count"),
        ("data.valid=1000000000000", "data.valid"),
        ("train.batch=1000000000000", "train.batch"),
        ("train.batch=9223372036854775807", "train.batch"),
        ("denoiser.backbone={kind='mlp', hidden=1000000000000}", "denoiser.backbone"),
        ("denoiser.backbone={kind='mlp', hidden=9223372036854775807}", "denoiser.backbone"),
        ("train.shares=1000000000000", "train.shares"),
        ("sampler.steps=1000000000000", "sampler.steps"),
    ] {
        refuse(at, &points(setting), &[key]);
    }
    let small = ["--set", "data.count=4", "--set", "data.valid=2"];
    for (setting, key) in [
        ("data.count=1000000000000", "data.count"),
        ("train.batch=1000000000000", "train.batch"),
        ("denoiser.backbone.channels=1000000000000", "denoiser.backbone"),
        ("denoiser.backbone.channels=9223372036854775807", "denoiser.backbone"),
        ("denoiser.backbone.multipliers=[1000000000000]", "denoiser.backbone"),
        ("denoiser.backbone.blocks=1000000000000", "denoiser.backbone"),
        ("data.generator.size=1000000000000", "data.generator"),
    ] {
        let train = [&["train", "--preset", "darcy-demo", "--out", "run"], &small[..], &["--set", setting]].concat();
        refuse(at, &train, &[key]);
    }
    refuse(at, &["info", "--threads", "20000"], &["--threads", "1024"]);
    assert!(contents(at).is_empty(), "something was written");

    succeed(at, &[&tiny("vanilla", "run")[..], &["--set", "train.iterations=1"]].concat());
    let sample = |extra: &[&'static str]| [&["sample", "run", "--out", "out"], extra].concat();
    refuse(at, &sample(&["--steps", "1000000000"]), &["sampler.steps", "1000000"]);
    refuse(at, &sample(&["--steps", "18446744073709551615"]), &["sampler.steps"]);
    refuse(at, &sample(&["--count", "4294967295"]), &["--count"]);
    refuse(at, &sample(&["--seeds", "0-18446744073709551615"]), &["--seeds"]);
    assert!(!at.join("out").exists());
    let wide = "denoiser.backbone={kind='mlp', hidden=1024}";
    succeed(at, &[&tiny("vanilla", "wide")[..], &["--set", "train.iterations=1", "--set", wide]].concat());
    let whole = ["sample", "wide", "--out", "out", "--count", "100000000", "--batch", "100000000"];
    refuse(at, &whole, &["--batch", "memory"]);
    assert!(!at.join("out").exists());
    // A batch is never larger than the samples.
    succeed(at, &sample(&["--count", "3", "--batch", "4294967295", "--steps", "2"]));
}

#[test]
fn a_run_that_took_for_ever_is_still_reported() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let settings = ["train.iterations=1", "train.batch=2", "data.count=4", "data.valid=2"];
    let network = "denoiser.backbone={kind='unet', channels=8, multipliers=[1], blocks=1, attention=[]}";
    let mut train = vec!["train", "--preset", "darcy-demo", "--method", "vanilla", "--out", "run", "--set", network];
    train.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    succeed(at, &train);
    let info = at.join("run/run.json");
    let text = fs::read_to_string(&info).unwrap();
    let seconds = text.lines().find(|line| line.contains("\"seconds\"")).unwrap();
    for absurd in ["1e300", "-1.0"] {
        fs::write(&info, text.replace(seconds, &format!("  \"seconds\": {absurd}"))).unwrap();
        let output = softly(at, &["report", "run", "--out", "page.html"]).env("SOFTLY_REDUCED", "1").output().unwrap();
        assert!(output.status.success() && at.join("page.html").exists(), "{absurd}: {}", said(&output));
    }
}

#[test]
fn paths_that_are_not_text_are_used_or_refused_without_a_panic() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let path = OsStr::from_bytes(b"folder-\xff\xfe");
    let mut train = softly(at, &tiny("vanilla", "unused")[..5]);
    train.args(["--set", "train.iterations=2", "--set", "data.count=9", "--out"]).arg(path);
    let output = train.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(at.join(path).join("snapshots/final.safetensors").exists());
    let mut absent = softly(at, &["train", "--out", "run", "--config"]);
    absent.arg(OsStr::from_bytes(b"absent-\xff.toml"));
    check_refusal(absent, &["absent-"]);
    fs::write(at.join(OsStr::from_bytes(b"\xff.toml")), "[train]\niterations = 'many'\n").unwrap();
    let mut wrong = softly(at, &["train", "--out", "run", "--config"]);
    wrong.arg(OsStr::from_bytes(b"\xff.toml"));
    check_refusal(wrong, &["iterations"]);
}

#[test]
fn options_that_do_not_apply_to_points_are_refused() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    succeed(at, &[&tiny("scd", "run")[..], &["--set", "train.iterations=1"]].concat());
    let eval = ["eval", "run", "--count", "5", "--sets", "1", "--steps", "2"];
    refuse(at, &[&eval[..], &["--data", "anywhere"]].concat(), &["--data", "points"]);
    refuse(at, &[&eval[..], &["--metrics", "nll"]].concat(), &["--metrics", "points"]);
    refuse(at, &[&eval[..], &["--data", "anywhere", "--sweep", "compliance"]].concat(), &["--data", "points"]);
    succeed(at, &eval);
}

/// The processes that a process has started.
fn children(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // Behind the name in parentheses: the state, then the parent.
        let parent = text.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if parent == Some(process) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    found
}

/// Whether a process runs; one that has ended and waits for its parent does not.
fn runs(process: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn trainings_of_a_killed_study_end_and_the_same_command_goes_on() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let study = |out: &str| {
        let mut command = softly(at, &["reproduce", "circle", "--out", out]);
        command.env("SOFTLY_REDUCED", "1");
        command
    };
    let mut parent = study("study").spawn().unwrap();
    let mut trainings = Vec::new();
    wait_until("a training starts", Duration::from_mins(1), || {
        trainings = children(parent.id());
        !trainings.is_empty()
    });
    parent.kill().unwrap();
    assert_eq!(parent.wait().unwrap().signal(), Some(9));
    wait_until("the trainings end", Duration::from_secs(15), || !trainings.iter().any(|&training| runs(training)));

    // What an earlier kill left: a temporary file of the study's.
    let stale = at.join(format!("study/.table.json.{DEAD}.tmp"));
    fs::write(&stale, "half").unwrap();
    let output = study("study").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(at.join("study/table.json").exists() && !has_temporary_files(&at.join("study")));

    // A finished cell is neither trained nor measured again; what a kill left there is removed, a changed result is refused.
    let cell = at.join("study/circle-vanilla-0");
    fs::write(cell.join(format!(".eval.json.{DEAD}.tmp")), "half").unwrap();
    let output = study("study").output().unwrap();
    assert!(output.status.success() && !has_temporary_files(&at.join("study")), "{}", said(&output));
    let result = fs::read_to_string(cell.join("eval.json")).unwrap();
    fs::write(cell.join("eval.json"), result.replacen("\"mean\": 0.", "\"mean\": 1.", 1)).unwrap();
    check_refusal(study("study"), &["circle-vanilla-0/eval.json", "checksum", "delete the file"]);
    fs::write(cell.join("eval.json"), result).unwrap();

    // One that was killed while it wrote its first file.
    fs::create_dir(at.join("begun")).unwrap();
    let stale = at.join(format!("begun/.study.txt.{DEAD}.tmp"));
    fs::write(&stale, "").unwrap();
    let mut begun = study("begun").spawn().unwrap();
    wait_until("the study starts", Duration::from_mins(1), || {
        assert!(begun.try_wait().unwrap().is_none(), "the folder is refused");
        trainings = children(begun.id());
        !trainings.is_empty()
    });
    begun.kill().unwrap();
    begun.wait().unwrap();
    assert!(at.join("begun/study.txt").exists() && !stale.exists());
    wait_until("the trainings end", Duration::from_secs(15), || !trainings.iter().any(|&training| runs(training)));
}

#[test]
fn an_interrupt_stops_sampling_within_a_batch() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    succeed(at, &[&tiny("vanilla", "run")[..], &["--set", "train.iterations=1"]].concat());
    // One batch that would take minutes.
    let long = ["sample", "run", "--count", "2000", "--batch", "2000", "--steps", "1000000", "--out", "out"];
    let child = softly(at, &long).spawn().unwrap();
    sleep(Duration::from_secs(2));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = within(Duration::from_secs(10), child, "an interrupted sampling");
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(!at.join("out").exists());
}

/// A generator of numbers below `n`, the same every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        // Knuth's linear congruential generator; its high bits are good.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn trainings_that_are_killed_at_any_moment_end_in_the_same_bytes() {
    const KILLS: usize = 20;
    let home = TempDir::new().unwrap();
    let at = home.path();
    succeed(at, &tiny("vanilla", "base"));
    let mut numbers = Numbers(17);
    let kinds: [fn(&str) -> Vec<&str>; 2] = [|out| tiny("scd", out), |out| tiny_adapt("base", out)];
    for (kind, arguments) in kinds.into_iter().enumerate() {
        let start = Instant::now();
        let whole = format!("whole-{kind}");
        succeed(at, &arguments(&whole));
        let length = start.elapsed().as_micros() as u64;
        let expected = snapshot(&at.join(&whole));
        let metrics = fs::read(at.join(&whole).join("metrics.jsonl")).unwrap();
        let (mut kills, mut runs) = (0, 0);
        while kills < KILLS / 2 {
            runs += 1;
            assert!(runs < 5 * KILLS, "trainings end before they are killed: {kills} kills in {runs}");
            let name = format!("run-{kind}-{runs}");
            // Up to four kills in a row.
            for _ in 0..=numbers.below(4) {
                kills += usize::from(killed(softly(at, &arguments(&name)), numbers.below(length)));
            }
            succeed(at, &arguments(&name));
            let folder = at.join(&name);
            assert!(snapshot(&folder) == expected, "{name}: other weights");
            assert!(fs::read(folder.join("metrics.jsonl")).unwrap() == metrics, "{name}: other metrics");
            assert!(fs::read_to_string(folder.join("run.json")).unwrap().contains("\"finished\""), "{name}");
            assert!(!has_temporary_files(&folder), "{name}: temporary files");
        }
    }
}

/// The arguments that make a hundred samples in `out`.
fn hundred(out: &str) -> [&str; 8] {
    ["data", "generate", "--preset", "darcy-demo", "--set", "data.count=100", "--out", out]
}

#[test]
fn datasets_whose_making_is_killed_have_the_same_bytes() {
    let home = TempDir::new().unwrap();
    let at = home.path();
    let start = Instant::now();
    succeed(at, &hundred("whole"));
    let length = start.elapsed().as_micros() as u64;
    let mut numbers = Numbers(3);
    let (mut kills, mut runs) = (0, 0);
    while kills < 6 {
        runs += 1;
        assert!(runs < 60, "datasets are complete before they are killed: {kills} kills in {runs}");
        let name = format!("data-{runs}");
        kills += usize::from(killed(softly(at, &hundred(&name)), numbers.below(length)));
        succeed(at, &hundred(&name));
        assert!(contents(&at.join(&name)) == contents(&at.join("whole")), "{name}");
    }
}

/// Kills a command after so many microseconds; false if it was done before, and then it must have succeeded.
fn killed(mut command: Command, after: u64) -> bool {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sleep(Duration::from_micros(after));
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(status.signal() == Some(9) || status.success(), "{command:?} is refused: {status}");
    status.signal() == Some(9)
}
