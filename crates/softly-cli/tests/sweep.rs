//! Studies cut into cells: several processes in one folder, cells that need others, processes that die.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// `softly reproduce` in `home` with everything cut down to seconds.
fn reproduce(home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softly"));
    command.current_dir(home).env("SOFTLY_REDUCED", "1").args(["--json", "--threads", "1", "reproduce"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn succeed(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn cells(home: &Path, words: &[&str]) -> Vec<Value> {
    let listed = reproduce(home, &[words, &["--list-cells"]].concat()).output().unwrap();
    serde_json::from_str(&succeed(listed)).unwrap()
}

fn name(cell: &Value) -> &str {
    cell["cell"].as_str().unwrap()
}

/// The rows of a table without the times.
fn rows(table: &Path) -> Vec<Value> {
    let table: Value = serde_json::from_str(&fs::read_to_string(table).unwrap()).unwrap();
    let mut rows = table["rows"].as_array().unwrap().clone();
    for row in &mut rows {
        let row = row.as_object_mut().unwrap();
        row.retain(|key, _| !key.ends_with("_seconds"));
    }
    rows
}

/// Trainings that were begun in a run folder.
fn starts(run: &Path) -> usize {
    fs::read_to_string(run.join("log.txt")).unwrap_or_default().matches(": start").count()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn shards_side_by_side_make_the_table_of_one_process() {
    let home = TempDir::new().unwrap();
    let before = cells(home.path(), &["circle", "--out", "cut"]);
    assert!(before.len() == 6 && before.iter().all(|cell| cell["done"] == false), "{before:?}");
    assert!(!home.path().join("cut").exists(), "a list changes nothing");
    succeed(reproduce(home.path(), &["circle", "--out", "whole"]).output().unwrap());
    // Two processes share the first shard.
    let start = |shard: &str| reproduce(home.path(), &["circle", "--out", "cut", "--shard", shard]).spawn().unwrap();
    let processes: [Child; 4] = ["1/3", "1/3", "2/3", "3/3"].map(start);
    let outputs: Vec<Output> = processes.into_iter().map(|process| process.wait_with_output().unwrap()).collect();
    let tables = outputs.into_iter().map(succeed).filter(|said| said.contains("\"rows\"")).count();
    assert!(tables >= 1, "nobody made the table");
    let after = cells(home.path(), &["circle", "--out", "cut"]);
    for cell in &after {
        assert_eq!(cell["done"], true, "{cell}");
        assert_eq!(starts(&home.path().join("cut").join(name(cell))), 1, "{cell} was trained more than once");
    }
    let [whole, cut] = ["whole", "cut"].map(|out| rows(&home.path().join(out).join("table.json")));
    assert_eq!(whole, cut);
    assert!(home.path().join("cut/report.html").exists());
}

#[test]
fn a_cell_brings_what_it_needs_and_is_taken_over_from_a_dead_process() {
    let home = TempDir::new().unwrap();
    let study = ["darcy", "--out", "study"];
    let all = cells(home.path(), &study);
    let adapted = all.iter().find(|cell| cell["base"].is_string()).unwrap();
    let base = adapted["base"].as_str().unwrap();
    let only = [&study[..], &["--only", name(adapted)]].concat();
    let folder = home.path().join("study");
    // Killed while it trains the base.
    let mut dead = reproduce(home.path(), &only).spawn().unwrap();
    wait_until("the base is not trained", || starts(&folder.join(base)) == 1);
    dead.kill().unwrap();
    dead.wait().unwrap();
    let output = reproduce(home.path(), &only).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    succeed(output);
    assert!(said.contains(&format!("{} of {} cells are not done yet", all.len() - 1, all.len())), "{said}");
    let done: Vec<Value> = cells(home.path(), &study).into_iter().filter(|cell| cell["done"] == true).collect();
    assert_eq!(done.iter().map(name).collect::<Vec<_>>(), [name(adapted)]);
    assert!(folder.join(base).join("snapshots/final.safetensors").exists());
    assert!(!folder.join("table.json").exists());
}

#[test]
fn cells_that_are_not_there_are_refused() {
    let home = TempDir::new().unwrap();
    for (words, needle) in [
        (["--only", "circle-scd-00"], "did you mean `circle-scd-0`?"),
        (["--shard", "0/4"], "expected i/n with i from 1 to n"),
        (["--shard", "5/4"], "expected i/n with i from 1 to n"),
    ] {
        let output = reproduce(home.path(), &["circle", "--out", "study", words[0], words[1]]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(needle), "{said}");
        assert!(!home.path().join("study").exists());
    }
}
