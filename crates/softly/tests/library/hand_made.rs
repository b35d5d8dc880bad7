//! Folders that a user wrote: arrays and a `dataset.toml` with fields and axes become datasets, and slips are named.

use std::fs;
use std::path::Path;

use softly::error::Result;
use softly::format::ImportOptions;
use softly::job::Job;
use softly::{DatasetFolder, HandMade, Imported, complete, npy, write};
use softly_pde::grid::Placement;
use tempfile::TempDir;

use crate::common::{Watch, contents, cpu, train, valid};

const DRAFT: &str = "fields = ['u', 'v']\naxes = ['t', { name = 'x', last = 2.0, periodic = true }]\n";

/// Sample `i` of field `c`: numbers that differ in every entry, `[4, 6]`.
fn sample(c: usize, i: usize) -> impl Iterator<Item = f64> {
    (0..24).map(move |k| (0.7 * (k + 24 * (i + 10 * c)) as f64).sin())
}

/// Writes the samples `from` to `to` of field `c`.
fn array(path: &Path, c: usize, from: usize, to: usize) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    npy::write_f64(path, &[to - from, 4, 6], (from..to).flat_map(|i| sample(c, i))).unwrap();
}

/// A folder with the draft and ten samples beside it, or six and four in `train` and `valid`.
fn folder(split: bool, draft: &str) -> TempDir {
    let home = TempDir::new().unwrap();
    fs::write(home.path().join("dataset.toml"), draft).unwrap();
    for (c, name) in ["u.npy", "v.npy"].into_iter().enumerate() {
        if split {
            array(&home.path().join("train").join(name), c, 0, 6);
            array(&home.path().join("valid").join(name), c, 6, 10);
        } else {
            array(&home.path().join(name), c, 0, 10);
        }
    }
    home
}

fn in_place(folder: &Path) -> Result<DatasetFolder> {
    complete(folder, &ImportOptions::default(), 0.4, &Job::silent(&cpu())).map(|(made, _)| made)
}

/// The message of a completion that must be refused and must change nothing.
fn refused(folder: &Path, options: &ImportOptions) -> String {
    let before = contents(folder);
    let error = complete(folder, options, 0.4, &Job::silent(&cpu())).expect_err("this must be refused");
    assert_eq!(error.exit_code(), 2, "{error}");
    assert_eq!(contents(folder), before, "{error}: something was changed");
    error.to_string()
}

fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "\"{part}\" is missing in: {said}");
    }
}

#[test]
fn arrays_beside_a_draft_and_split_ones_become_the_same_dataset() {
    let (flat, split) = (folder(false, DRAFT), folder(true, DRAFT));
    let before = [contents(flat.path()), contents(split.path())];
    for home in [&flat, &split] {
        let said = DatasetFolder::open(home.path()).unwrap_err().to_string();
        assert_says(&said, &["dataset.toml", "not complete", &format!("softly data import {}", home.path().display())]);
    }
    let made = [in_place(flat.path()).unwrap(), in_place(split.path()).unwrap()];
    // All arrays are as they were; only dataset.toml is another.
    for (home, before) in [&flat, &split].into_iter().zip(before) {
        let after = contents(home.path());
        for (path, bytes) in before.iter().filter(|(path, _)| !path.ends_with("dataset.toml")) {
            assert_eq!(after.get(path), Some(bytes), "{}", path.display());
        }
        assert!(!home.path().join(".partial").exists());
    }
    let [a, b] = made.map(|made| (made.load().unwrap(), made.description));
    assert_eq!((train(&a.0), valid(&a.0), &a.0.fields), (train(&b.0), valid(&b.0), &b.0.fields));
    assert_eq!(train(&a.0)[..24], sample(0, 0).map(|v| v as f32).collect::<Vec<_>>());
    assert_eq!(valid(&a.0)[24..48], sample(1, 6).map(|v| v as f32).collect::<Vec<_>>());
    assert_eq!((a.1.train, a.1.valid, &a.1.hash, &a.1.fields), (b.1.train, b.1.valid, &b.1.hash, &b.1.fields));
    let [t, x] = &a.1.grid.axes[..] else { panic!("two axes") };
    assert_eq!((t.name.as_str(), t.nodes, t.last, t.periodic, t.placement), ("t", 4, 1.0, false, Placement::Nodes));
    assert_eq!((x.name.as_str(), x.nodes, x.last, x.periodic), ("x", 6, 2.0, true));

    // A split folder may be completed again; one with both forms must be made up its mind about.
    let once = contents(split.path());
    in_place(split.path()).unwrap();
    assert_eq!(contents(split.path()), once);
    assert_says(&refused(flat.path(), &ImportOptions::default()), &["u.npy", "train", "remove"]);
}

#[test]
fn another_folder_gets_the_same_samples_from_arrays_of_any_type() {
    let home = folder(true, DRAFT);
    let whole = in_place(home.path()).unwrap();
    // Integers cannot stay where they are.
    let mut bytes = fs::read(home.path().join("train/u.npy")).unwrap();
    let at = bytes.windows(3).position(|w| w == b"<f8").unwrap();
    bytes[at + 1] = b'i';
    fs::write(home.path().join("train/u.npy"), bytes).unwrap();
    assert_says(&refused(home.path(), &ImportOptions::default()), &["train/u.npy", "i8", "--out"]);
    array(&home.path().join("train/u.npy"), 0, 0, 6);
    fs::write(home.path().join("dataset.toml"), DRAFT).unwrap();

    let out = TempDir::new().unwrap();
    let copy = |options: &ImportOptions, name: &str| {
        let source = Imported::of_folder(&HandMade::open(home.path())?, options, 0.4)?;
        write(&source, &out.path().join(name), &Job::silent(&cpu()))
    };
    let copied = copy(&ImportOptions::default(), "copy").unwrap();
    assert_eq!(copied.description.hash, whole.description.hash);
    let strided = ImportOptions { stride: vec![("x".into(), 2)], ..ImportOptions::default() };
    assert_eq!(copy(&strided, "strided").unwrap().load().unwrap().shape(), [2, 4, 3]);
    assert_says(&refused(home.path(), &strided), &["--out", "not changed"]);
    // Held-out samples without the second one, which has a hole.
    let holes = (0..96).map(|i| if i == 30 { f64::NAN } else { f64::from(i) });
    npy::write_f64(&home.path().join("valid/u.npy"), &[4, 4, 6], holes).unwrap();
    let dropping = ImportOptions { drop_nan: true, ..ImportOptions::default() };
    assert_says(&refused(home.path(), &dropping), &["--out", "not changed"]);
    let dropped = copy(&dropping, "dropped").unwrap().load().unwrap();
    assert_eq!((dropped.train_count(), dropped.valid_count(), valid(&dropped)[48]), (6, 3, 48.0));
}

#[test]
fn an_interrupted_completion_goes_on() {
    let home = TempDir::new().unwrap();
    fs::write(home.path().join("dataset.toml"), "fields = ['u']\n").unwrap();
    let count = 40_000;
    npy::write_f32(&home.path().join("u.npy"), &[count, 4, 6], (0..count * 24).map(|i| (i % 1000) as f32)).unwrap();
    let stopped = Watch::new(|made| made > 0);
    let outcome = complete(home.path(), &ImportOptions::default(), 0.5, &stopped.job(&cpu()));
    // The arrays fit one block, so the stop may come too late; what was moved by halves is put right in any case.
    if outcome.is_ok() {
        let [partial, train] = [".partial", "train"].map(|name| home.path().join(name));
        fs::create_dir(&partial).unwrap();
        fs::rename(home.path().join("valid"), partial.join("valid")).unwrap();
        fs::rename(home.path().join("dataset.toml"), partial.join("dataset.toml")).unwrap();
        fs::write(home.path().join("dataset.toml"), "fields = ['u']\n").unwrap();
        assert!(train.exists());
    }
    let made = complete(home.path(), &ImportOptions::default(), 0.5, &Job::silent(&cpu())).unwrap().0;
    assert_eq!((made.description.train, valid(&made.load().unwrap())[0]), (20_000, (20_000 * 24 % 1000) as f32));
}

#[test]
fn lists_with_a_number_per_sample_are_scalars() {
    for split in [false, true] {
        let home = folder(split, "fields = ['u', 'v', 'nu', 'beta']\nconstants = { g = 9.81 }\n");
        let parts = if split { vec![("train/", 0..6), ("valid/", 6..10)] } else { vec![("", 0..10)] };
        for (part, range) in parts {
            let path = |name: &str| home.path().join(format!("{part}{name}.npy"));
            npy::write_f64(&path("nu"), &[range.len()], range.clone().map(|i| 0.1 * f64::from(i + 1))).unwrap();
            npy::write_f64(&path("beta"), &[range.len(), 1], range.map(|_| 2.0)).unwrap();
        }
        let made = in_place(home.path()).unwrap();
        assert_eq!(made.fields(), ["u", "v", "nu"]);
        assert_eq!(made.description.scalars(), ["nu"]);
        let constants: Vec<(String, f64)> = made.description.constants.clone().into_iter().collect();
        assert_eq!(constants, [("beta".to_string(), 2.0), ("g".to_string(), 9.81)]);
        let data = made.load().unwrap();
        assert_eq!((data.shape(), data.hash()), ([3, 4, 6], made.description.hash.clone()));
        // A scalar is a channel that is constant over the grid.
        for (i, sample) in train(&data).chunks_exact(72).enumerate() {
            assert!(sample[48..].iter().all(|v| *v == (0.1 * (i + 1) as f64) as f32));
        }
        assert_eq!(npy::read(&home.path().join("valid/scalars.npy")).unwrap().shape, [4, 1]);
        let wanted = made.description.fields[2].statistics;
        assert!((wanted.mean - 0.35).abs() < 1e-7 && (wanted.max - 0.6).abs() < 1e-7, "{wanted:?}");
        // The complete description is a draft, too: its scalars are columns of a table.
        if split {
            for part in ["train", "valid"] {
                fs::remove_file(home.path().join(part).join("nu.npy")).unwrap();
            }
            assert_eq!(in_place(home.path()).unwrap(), made);
            for (part, count) in [("train", 6), ("valid", 4)] {
                let path = home.path().join(part).join("scalars.npy");
                npy::write_f32(&path, &[count, 1], (0..count).map(|_| 0.5)).unwrap();
            }
            let same = in_place(home.path()).unwrap().description;
            assert_eq!((same.scalars(), &same.constants), (vec!["nu".to_string()], &made.description.constants));
            assert_says(&same.remarks().concat(), &["the field nu is 0.5 in all training samples"]);
        }
    }
}

#[test]
fn drafts_that_cannot_work_say_why() {
    let with = |split: bool, draft: &str, spoil: &dyn Fn(&Path)| {
        let home = folder(split, draft);
        spoil(home.path());
        refused(home.path(), &ImportOptions::default())
    };
    let nothing = |_: &Path| {};
    assert_says(&with(false, "fields = ['u']\naxes = ['x']\n", &nothing), &["dataset.toml", "two axes, found 1"]);
    assert_says(&with(false, "fields = ['u']\naxis = ['x', 'y']\n", &nothing), &["dataset.toml", "axis"]);
    assert_says(&with(false, "fields = [3]\n", &nothing), &["dataset.toml", "expected a name"]);
    assert_says(&with(false, "fields = ['../u']\n", &nothing), &["`../u` cannot be a field's name"]);
    assert_says(&with(false, "fields = ['scalars']\n", &nothing), &["`scalars` cannot be a field's name"]);
    assert_says(&with(false, "fields = [\n", &nothing), &["dataset.toml", "TOML parse error"]);
    assert_says(&with(false, "fields = ['w']\n", &nothing), &["expected", "train/w.npy", "w.npy"]);
    for twice in
        ["fields = ['u', 'u']\n", "fields = ['u']\naxes = ['u', 'x']\n", "fields = ['u']\nconstants = { u = 1.0 }\n"]
    {
        assert_says(&with(false, twice, &nothing), &["dataset.toml", "`u` is the name of two"]);
    }
    let axis = |ends: &str| format!("fields = ['u']\naxes = ['t', {{ name = 'x', {ends} }}]\n");
    for ends in ["first = 1.0, last = 0.0", "first = 1.0", "last = nan"] {
        assert_says(&with(true, &axis(ends), &nothing), &["axis `x`", "first < last"]);
    }
    assert_says(&with(true, &axis("nodes = 7"), &nothing), &["7 along x", "[6, 4, 6]", "leave out `nodes`"]);
    let turned = "fields = ['u']\naxes = [{ name = 't', nodes = 6 }, { name = 'x', nodes = 4 }]\n";
    assert_says(&with(true, turned, &nothing), &["[6, 4, 6]", "transposed"]);
    assert_says(
        &with(true, DRAFT, &|at| fs::remove_dir_all(at.join("valid")).unwrap()),
        &["held-out samples", "valid/u.npy", "--valid"],
    );
    let reshaped = |shape: &'static [usize]| {
        move |at: &Path| npy::write_f64(&at.join("v.npy"), shape, (0..240).map(f64::from)).unwrap()
    };
    assert_says(&with(false, DRAFT, &reshaped(&[10, 6, 4])), &["v.npy", "[10, 4, 6]", "[10, 6, 4]", "transposed"]);
    assert_says(&with(false, DRAFT, &reshaped(&[5, 8, 6])), &["v.npy", "[5, 8, 6]", "share samples and grid"]);
    assert_says(&with(false, DRAFT, &reshaped(&[2, 5, 4, 6])), &["v.npy", "[N, H, W]", "[2, 5, 4, 6]"]);
    assert_says(&with(false, DRAFT, &reshaped(&[40, 6])), &["v.npy", "[N, H, W]", "array[None]"]);
    assert_says(&with(false, DRAFT, &reshaped(&[240])), &["v.npy", "expected 10 numbers", "found 240"]);
    assert_says(&with(false, DRAFT, &|at| fs::write(at.join("u.npy"), "").unwrap()), &["u.npy", "empty"]);
    assert_says(
        &with(true, DRAFT, &|at| fs::remove_file(at.join("dataset.toml")).unwrap()),
        &["dataset.toml", "fields ="],
    );
    let hole = |at: &Path| {
        npy::write_f64(&at.join("valid/u.npy"), &[4, 4, 6], (0..96).map(|i| 1.0 / f64::from(i - 30))).unwrap();
    };
    assert_says(&with(true, DRAFT, &hole), &["valid/u.npy (field `u`)", "inf in sample 1", "--drop-nan --out"]);
    // The last column of periodic data repeats the first.
    let repeated = |at: &Path| {
        for (part, count) in [("train", 6), ("valid", 4)] {
            for name in ["u", "v"] {
                let values =
                    (0..count * 24).map(|k| (std::f64::consts::TAU * (k % 6) as f64 / 5.0).cos() + (k / 6) as f64);
                npy::write_f64(&at.join(part).join(format!("{name}.npy")), &[count, 4, 6], values).unwrap();
            }
        }
    };
    assert_says(&with(true, DRAFT, &repeated), &["4 × 5", "[6, 4, 6]", "repeats the first", "--out"]);
}

#[test]
fn an_equation_of_data_is_formulas_and_numbers() {
    let draft = |parameter: &str| {
        format!(
            "{DRAFT}[equation]\nfields = ['u']\nresidual = 'dt(u) - nu*dxx(u)'\nparameters = {{ nu = {parameter} }}\n"
        )
    };
    let made = folder(true, &draft("0.1"));
    assert!(in_place(made.path()).unwrap().equation().is_some());
    for parameter in ["{ learn = 0.1 }", "{ normal = [0.1, 0.01] }", "{ file = 'nu.npy' }"] {
        let made = folder(true, &draft(parameter));
        assert_says(&refused(made.path(), &ImportOptions::default()), &["dataset.toml", "equation.parameters.nu"]);
    }
}

#[test]
fn a_folder_that_was_changed_is_not_taken_for_the_dataset_made_of_it() {
    let made = folder(true, DRAFT);
    let out = TempDir::new().unwrap();
    let import = || {
        let hand_made = HandMade::open(made.path())?;
        let source = Imported::of_folder(&hand_made, &ImportOptions::default(), 0.4)?;
        write(&source, &out.path().join("set"), &Job::silent(&cpu()))
    };
    let first = import().unwrap();
    assert_eq!(import().unwrap(), first, "the same folder, the same dataset");
    fs::write(made.path().join("dataset.toml"), DRAFT.replace("last = 2.0", "last = 3.0")).unwrap();
    let error = import().unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
}
