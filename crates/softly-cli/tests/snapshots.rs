//! What readers see, kept as text: the help of every command, and the page of a study.
//!
//! `SOFTLY_BLESS=1 cargo test --release snapshots` writes the texts anew; look at the difference before committing it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;

fn softly(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_softly")).args(arguments).env("COLUMNS", "120").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("SOFTLY_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let difference = expected.lines().zip(text.lines()).find(|(expected, found)| expected != found);
    assert!(expected == text, "{} is stale at {difference:?}: run with SOFTLY_BLESS=1", path.display());
}

/// The names of the subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let names = listed.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(ToString::to_string).collect()
}

fn help(path: &[String], text: &mut String) {
    let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let said = softly(&arguments);
    write!(text, "$ softly {}\n\n{said}\n", arguments.join(" ")).unwrap();
    for name in subcommands(&said) {
        help(&[path, &[name]].concat(), text);
    }
}

#[test]
fn help_of_every_command() {
    let mut text = String::new();
    help(&[], &mut text);
    assert!(text.matches("$ softly").count() > 15 && text.contains("$ softly data inspect --help"), "{text}");
    check("help.txt", &text);
}

/// The words of a page: no styles, no pictures, no tags.
fn words(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        text += &rest[..start];
        let hidden = ["<style", "<svg", "<script"].into_iter().find(|tag| rest[start..].starts_with(tag));
        let end = match hidden {
            Some(tag) => rest[start..].find(&format!("</{}>", &tag[1..])).map(|at| at + tag.len() + 2),
            None => rest[start..].find('>').map(|at| at + 1),
        };
        text.push('\n');
        rest = &rest[start + end.unwrap_or(rest.len() - start)..];
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn page_of_a_study() {
    // A table of its own: results are measured again, the page stays.
    let table: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/darcy-demo-table.json");
    let home = tempfile::TempDir::new().unwrap();
    fs::copy(table, home.path().join("table.json")).unwrap();
    softly(&["report", home.path().to_str().unwrap()]);
    let page = fs::read_to_string(home.path().join("report.html")).unwrap();
    check("darcy-demo.txt", &words(&page));
}
