//! The layers of the library: a file uses its own layer and those before it, never one after it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers above the base, which is all files next to `lib.rs`; each is a folder.
const LAYERS: [&str; 13] = [
    "nn",
    "constraint",
    "denoiser",
    "data",
    "sampler",
    "objective",
    "direction",
    "soft",
    "observe",
    "config",
    "model",
    "train",
    "evaluate",
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.flat_map(below).filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}

/// The code of a source text without its comments, which may point anywhere.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code).to_string() + "\n").collect()
}

/// Place of the folder or file `name` in the order of layers: 0 for the base; `None` for anything else.
fn height(name: &str, base: &BTreeSet<String>) -> Option<usize> {
    let layer = LAYERS.iter().position(|layer| *layer == name).map(|place| place + 1);
    layer.or_else(|| base.contains(name).then_some(0))
}

/// The first names of all paths `crate::name` and `crate::{name, …}` in `code`, in imports or in the middle of an
/// expression.
fn used(code: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = Vec::new();
    for after in code.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            names.push(name(after));
            continue;
        };
        let mut depth = 0;
        let mut start = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                c if start && !c.is_whitespace() => {
                    names.push(name(&group[at..]));
                    start = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// What is wrong with the paths in `text`, a file of layer number `own`.
fn faults(text: &str, own: usize, base: &BTreeSet<String>) -> Vec<String> {
    let code = code(text);
    let mut faults: Vec<String> = used(&code)
        .into_iter()
        .filter_map(|name| match height(&name, base) {
            Some(other) if other <= own => None,
            Some(_) => Some(format!("looks up at `{name}`")),
            None => Some(format!("`crate::{name}` does not say which layer it belongs to")),
        })
        .collect();
    if code.contains("super::super") {
        faults.push("`super::super` does not say which layer it belongs to".into());
    }
    faults
}

fn base() -> BTreeSet<String> {
    let next_to_lib = fs::read_dir(sources()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    next_to_lib.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).filter(|n| n != "lib").collect()
}

#[test]
fn no_layer_looks_up() {
    let base = base();
    let (mut wrong, mut paths) = (Vec::new(), 0);
    for path in files(&sources()) {
        let inside = path.strip_prefix(sources()).unwrap();
        if inside == Path::new("lib.rs") {
            continue;
        }
        let layer = inside.iter().next().unwrap().to_string_lossy().replace(".rs", "");
        let text = fs::read_to_string(&path).unwrap();
        paths += used(&code(&text)).len();
        match height(&layer, &base) {
            Some(own) => wrong.extend(faults(&text, own, &base).iter().map(|f| format!("{}: {f}", inside.display()))),
            None => wrong.push(format!("{}: the folder `{layer}` is no layer", inside.display())),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(paths > 300, "{paths} paths: were the sources read?");
}

#[test]
fn looking_up_is_seen_however_it_is_written() {
    let base: BTreeSet<String> = ["error".to_string()].into();
    let seen = |text: &str| faults(text, height("data", &base).unwrap(), &base).len();
    for fine in [
        "use crate::error::Result;\nuse crate::nn::ops;",
        "use crate::{error::{Error, Result}, data::dataset::Dataset};",
        "/// See [`Training`](crate::train::Training).\nfn f() {} // crate::train",
        "pub(crate) fn f() {}",
    ] {
        assert_eq!(seen(fine), 0, "{fine}");
    }
    for wrong in [
        "use crate::train::Training;",
        "pub use crate::train;",
        "use crate::{error::{Error, Result}, train::Training};",
        "use crate::{\n    error::Error,\n    sampler,\n};",
        "fn f() -> u64 { crate::evaluate::count() }",
        "fn f(x: &dyn crate::sampler::Observer) {}",
        "use crate::Training;",
        "use super::super::train::Training;",
    ] {
        assert_eq!(seen(wrong), 1, "{wrong}");
    }
}
