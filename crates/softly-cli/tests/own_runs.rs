//! Runs on data of unknown origin: evaluations, the page with its verdict, and exports, read by decoders of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// A tiny network on imported data, which bring no equation.
const PLAIN: &str = "[data]\npath = 'data'\nnormalise = 'std'\n\
                     [denoiser]\nbackbone = { kind = 'mlp', hidden = 8 }\n\
                     [train]\niterations = 6\nbatch = 4\nlog_every = 2\n\
                     [sampler]\nsteps = 3\n";

/// Darcy's equation with a source that is too strong, put on top of a network while its strength is learned.
const GIVEN: &str = "[constraint]\nfields = ['p', 'K']\nnorm = 'l2'\nstencils = { p = 'mirror' }\n\
                     residual = 'K*laplacian(p) + dot(grad(K), grad(p)) + f'\n\
                     [constraint.parameters]\nflow = { learn = 15.0 }\n\
                     f = 'flow*(x<=0.125)*(y<=0.125) - flow*(x>=0.875)*(y>=0.875)'\n\
                     [denoiser.scd]\nscale = 'jacobi'\n\
                     [train]\niterations = 6\nbatch = 4\nlog_every = 2\n";

fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softly"));
    let output = command.current_dir(folder).env("SOFTLY_REDUCED", "1").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "softly {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn refuse(folder: &Path, arguments: &[&str], needles: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softly"));
    let output = command.current_dir(folder).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "softly {arguments:?}: {said}");
    assert!(needles.iter().all(|needle| said.contains(needle)), "softly {arguments:?}: {said}");
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed(folder, &[arguments, &["--json"]].concat())).unwrap()
}

/// A folder with a dataset of unknown origin, a run on it, and an adapted one; made once for all tests.
fn home() -> &'static Path {
    static HOME: OnceLock<TempDir> = OnceLock::new();
    let home = HOME.get_or_init(|| {
        let home = TempDir::new().unwrap();
        let at = home.path();
        let few = ["--set", "data.count=24", "--set", "data.valid=6", "--set", "data.generator.size=8"];
        let modes = ["--set", "data.generator.modes=2", "--out", "made"];
        succeed(at, &[&["data", "generate", "--preset", "darcy-demo"][..], &few, &modes].concat());
        let fields = ["--field", "p=made/train/p.npy", "--field", "K=made/train/K.npy"];
        succeed(at, &[&["data", "import"][..], &fields, &["--valid", "0.25", "--out", "data"]].concat());
        fs::write(at.join("plain.toml"), PLAIN).unwrap();
        fs::write(at.join("given.toml"), GIVEN).unwrap();
        succeed(at, &["train", "--config", "plain.toml", "--out", "plain"]);
        succeed(at, &["adapt", "plain", "--config", "given.toml", "--out", "adapted"]);
        home
    });
    home.path()
}

/// A copy of the run `name` beside a copy of the data, so that tests do not share its `eval` folder.
fn copy_of(name: &str) -> (TempDir, PathBuf) {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let (path, target) = (entry.path(), to.join(entry.file_name()));
            if path.is_dir() {
                copy(&path, &target);
            } else {
                fs::copy(&path, &target).unwrap();
            }
        }
    }
    let place = TempDir::new().unwrap();
    let at = place.path().join(name);
    copy(&home().join(name), &at);
    copy(&home().join("data"), &place.path().join("data"));
    fs::remove_dir_all(at.join("eval")).ok();
    (place, at)
}

#[test]
fn runs_on_data_of_unknown_origin_are_measured() {
    let at = home();
    let (_place, plain) = copy_of("plain");
    let (_place, adapted) = copy_of("adapted");
    let [plain, adapted] = [&plain, &adapted].map(|path| path.to_str().unwrap());

    // Without any equation there is no residual, and all else is there.
    let found = json(at, &["eval", plain, "--count", "4", "--metrics", "nll"]);
    let metrics = &found["model"]["metrics"];
    assert!(metrics.get("residual").is_none() && metrics["formulas"].as_array().unwrap().is_empty(), "{metrics}");
    assert_eq!((metrics["fields"].as_array().unwrap().len(), &metrics["count"]), (2, &Value::from(4)));
    assert!(found["model"]["likelihood"]["normalised"].is_number() && found["references"][0]["name"] == "data");
    let text = succeed(at, &["eval", plain, "--count", "4"]);
    assert!(text.contains("no residual") && !text.contains("|R|") && text.contains("field K"), "{text}");

    // Given one, residuals are of it; the data obey the right one and not the run's.
    let truth = "truth={ fields = ['p'], residual = 'p' }";
    let found = json(at, &["eval", plain, "--count", "4", "--set", truth]);
    assert!(found["model"]["metrics"]["residual"]["mean"].as_f64().unwrap() > 0.0);
    let found = json(at, &["eval", adapted, "--count", "4"]);
    // A source that is too strong by 5 at 2 of 64 nodes.
    let wrong = found["references"][0]["metrics"]["residual"]["mean"].as_f64().unwrap();
    assert!((wrong - 5.0 * 2.0 / 64.0).abs() < 0.1, "{wrong}");

    let found = json(at, &["eval", adapted, "--metrics", "explained,parameters"]);
    assert_eq!(found["parameters"][0]["name"], "flow");
    let swept = json(at, &["eval", adapted, "--sweep", "compliance", "--count", "4"]);
    assert!(swept["rows"][0]["residual"]["mean"].is_number() && swept["rows"][0]["likelihood"]["count"].is_number());
    let other = json(at, &["eval", adapted, "--count", "4", "--data", "made"]);
    // Those data bring the true equation.
    assert!(other.to_string().contains("references"));

    // What was measured of a run as it is stays in its folder; other settings leave nothing.
    let names = |run: &str| -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(Path::new(run).join("eval"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(plain), ["fields.json", "fields.npy"]);
    assert_eq!(names(adapted), ["explained.json", "fields.json", "fields.npy", "parameters.json"]);
}

#[test]
fn a_page_of_runs_has_a_verdict_and_figures() {
    let at = home();
    let (place, adapted) = copy_of("adapted");
    let (_place, plain) = copy_of("plain");
    let page = place.path().join("page.html");
    let [page_name, plain, adapted_name] = [&page, &plain, &adapted].map(|path| path.to_str().unwrap());
    let said = json(at, &["report", plain, adapted_name, "--out", page_name]);
    assert_eq!(said["pages"][0].as_str(), Some(page_name));
    let text = fs::read_to_string(&page).unwrap();
    for part in [
        "Verdict on the constraint of adapted",
        "of that of plain (of its own equation, for the data bring none)",
        "Residuals R are of the equation that adapted has learned",
        "flow was given as 15 and learned as",
        "Residuals of single samples",
        "Values of p",
        "Power spectrum of K",
        "Residual along the sampling path",
        "What the correction takes away",
        "Learned γ of the direction gradient",
        "Learned parameters",
        "Distance to the nearest training sample",
        "Samples and their nearest training samples",
        "How plain was made",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Self-contained: nothing is fetched.
    assert!(!text.contains("src=\"http") && !text.contains("<script") && !text.contains("href=\"http"));
    let figures = place.path().join("page-figures");
    let files: Vec<PathBuf> = fs::read_dir(&figures).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 10, "{files:?}");
    for file in &files {
        let svg = fs::read_to_string(file).unwrap();
        let root = roxmltree::Document::parse(&svg).unwrap();
        assert!(root.root_element().has_tag_name("svg"), "{}", file.display());
    }

    // The same page again: nothing is measured anew.
    let kept = adapted.join("eval/report.json");
    let before = fs::metadata(&kept).unwrap().modified().unwrap();
    succeed(at, &["report", plain, adapted_name, "--out", page_name]);
    assert_eq!(fs::read_to_string(&page).unwrap(), text);
    assert_eq!(fs::metadata(&kept).unwrap().modified().unwrap(), before);

    // An adapted run alone is compared with its frozen base, in a page in its own folder.
    succeed(at, &["report", adapted_name]);
    let text = fs::read_to_string(adapted.join("report.html")).unwrap();
    assert!(text.contains("of that of adapted without it") && adapted.join("eval/report-base.json").exists());
    // A run without any equation has no verdict and no residuals, but everything else.
    succeed(at, &["report", plain]);
    let text = fs::read_to_string(Path::new(plain).join("report.html")).unwrap();
    assert!(!text.contains("Verdict") && !text.contains("|R|") && text.contains("Power spectrum of p"));
    assert!(text.contains("Neither the data nor the runs bring an equation"));
}

/// The records of an event file, with their checksums checked.
fn records(bytes: &[u8]) -> Vec<&[u8]> {
    // CRC-32C by a table, where the program goes bit by bit.
    let table: Vec<u32> = (0..256_u32)
        .map(|byte| (0..8).fold(byte, |crc, _| if crc & 1 == 0 { crc >> 1 } else { 0x82F6_3B78 ^ (crc >> 1) }))
        .collect();
    let checksum = |bytes: &[u8]| {
        let crc =
            bytes.iter().fold(u32::MAX, |crc, b| table[((crc ^ u32::from(*b)) & 255) as usize] ^ (crc >> 8)) ^ u32::MAX;
        crc.rotate_right(15).wrapping_add(0xA282_EAD8)
    };
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let mut rest = bytes;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(number(&rest[8..12]), checksum(&rest[..8]));
        let data = &rest[12..12 + length];
        assert_eq!(number(&rest[12 + length..16 + length]), checksum(data));
        all.push(data);
        rest = &rest[16 + length..];
    }
    all
}

/// The fields of a protocol-buffer message: number, and the bytes of its value.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
        }
        value
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => varint(&mut bytes).to_le_bytes().to_vec(),
            kind => {
                let length = match kind {
                    1 => 8,
                    5 => 4,
                    2 => varint(&mut bytes) as usize,
                    _ => panic!("kind {kind}"),
                };
                let value = bytes[..length].to_vec();
                bytes = &bytes[length..];
                value
            }
        };
        all.push((key >> 3, value));
    }
    all
}

/// The scalars of an event file by tag: steps and values.
fn scalars(file: &Path) -> BTreeMap<String, Vec<(u64, f32)>> {
    let bytes = fs::read(file).unwrap();
    let records = records(&bytes);
    assert!(fields(records[0]).contains(&(3, b"brain.Event:2".to_vec())));
    let mut all: BTreeMap<String, Vec<(u64, f32)>> = BTreeMap::new();
    let mut last = 0.0;
    for record in &records[1..] {
        let event: BTreeMap<u64, Vec<u8>> = fields(record).into_iter().collect();
        let time = f64::from_le_bytes(event[&1][..].try_into().unwrap());
        assert!(time >= last && time > 1e9, "{time}");
        last = time;
        let step = u64::from_le_bytes(event[&2][..].try_into().unwrap());
        for (_, value) in fields(&event[&5]) {
            let value: BTreeMap<u64, Vec<u8>> = fields(&value).into_iter().collect();
            let tag = String::from_utf8(value[&1].clone()).unwrap();
            all.entry(tag).or_default().push((step, f32::from_le_bytes(value[&2][..].try_into().unwrap())));
        }
    }
    all
}

#[test]
fn metrics_become_an_event_file() {
    let at = home();
    let (_place, run) = copy_of("adapted");
    let name = run.to_str().unwrap();
    let lines: Vec<Value> = fs::read_to_string(run.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let file = run.join("tensorboard/events.out.tfevents.softly");
    // Following a training that is done ends at once, with the same numbers.
    for arguments in
        [&["export", name, "--to", "tensorboard"][..], &["export", name, "--to", "tensorboard", "--follow"]]
    {
        assert_eq!(Path::new(succeed(at, arguments).trim()), file);
        let found = scalars(&file);
        let column = |key: &dyn Fn(&Value) -> f64| -> Vec<(u64, f32)> {
            lines.iter().map(|line| (line["step"].as_u64().unwrap(), key(line) as f32)).collect()
        };
        assert_eq!(found["loss/denoising"], column(&|line| line["loss"].as_f64().unwrap()));
        assert_eq!(found["optimiser/gradient norm"], column(&|line| line["gradient_norm"].as_f64().unwrap()));
        assert_eq!(found["optimiser/rate"], column(&|line| line["rate"].as_f64().unwrap()));
        assert_eq!(found["constraint/flow"], column(&|line| line["constraint"]["flow"].as_f64().unwrap()));
        assert!(lines.len() == 3 && found.contains_key("optimiser/replaced entries"));
    }

    // A training that goes on: lines that come later are in the file as well, and the end of the training is its end.
    let (info, lines_file) = (run.join("run.json"), run.join("metrics.jsonl"));
    let finished = fs::read_to_string(&info).unwrap();
    let all = fs::read_to_string(&lines_file).unwrap();
    fs::write(&info, finished.replace("\"finished\"", "\"running\"")).unwrap();
    let first = all.split_inclusive('\n').next().unwrap();
    // The second line is not whole yet.
    fs::write(&lines_file, &all[..first.len() + 9]).unwrap();
    fs::remove_file(&file).unwrap();
    let mut follower = Process::new(env!("CARGO_BIN_EXE_softly"))
        .args(["export", name, "--to", "tensorboard", "--follow"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_mins(1);
    let is_empty = || fs::metadata(&file).map_or(true, |data| data.len() == 0);
    while is_empty() || scalars(&file).get("loss/denoising").is_none_or(|points| points.len() != 1) {
        assert!(Instant::now() < deadline && follower.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(20));
    }
    for (file, text) in [(&lines_file, &all), (&info, &finished)] {
        let whole = run.join("whole");
        fs::write(&whole, text).unwrap();
        fs::rename(&whole, file).unwrap();
    }
    assert!(follower.wait().unwrap().success());
    assert_eq!(scalars(&file)["loss/denoising"].iter().map(|point| point.0).collect::<Vec<_>>(), [2, 4, 6]);

    refuse(at, &["export", "data", "--to", "tensorboard"], &["run.json", "hint:"]);
    refuse(at, &["export", name, "--to", "vti", "--follow"], &["--follow", "tensorboard"]);
}

/// The numbers of base 64 with a header of eight bytes.
fn decoded(text: &str) -> Vec<f32> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.trim().bytes().filter(|b| *b != b'=');
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for letter in digits {
        bits = bits << 6 | LETTERS.iter().position(|l| *l == letter).unwrap() as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize, bytes.len() - 8);
    bytes[8..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn fields_become_image_data() {
    let at = home();
    let place = TempDir::new().unwrap();
    let out = place.path().to_str().unwrap();
    let said = json(at, &["export", "data", "--to", "vti", "--count", "2", "--out", out]);
    assert_eq!(said["files"].as_array().unwrap().len(), 2);
    let text = fs::read_to_string(place.path().join("sample-0001.vti")).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let find = |name: &str| document.descendants().find(|n| n.has_tag_name(name)).unwrap();
    assert_eq!(find("VTKFile").attribute("type"), Some("ImageData"));
    assert_eq!(find("ImageData").attribute("WholeExtent"), Some("0 7 0 7 0 0"));
    let spacing: Vec<f64> =
        find("ImageData").attribute("Spacing").unwrap().split(' ').map(|v| v.parse().unwrap()).collect();
    assert_eq!(spacing, [1.0 / 7.0, 1.0 / 7.0, 1.0]);
    // x runs fastest in VTK and slowest in arrays.
    let bytes = fs::read(at.join("data/valid/p.npy")).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let array: Vec<f32> = bytes[start..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let arrays: Vec<_> = find("PointData").children().filter(|n| n.has_tag_name("DataArray")).collect();
    assert_eq!(arrays.iter().map(|a| a.attribute("Name").unwrap()).collect::<Vec<_>>(), ["p", "K"]);
    let values = decoded(arrays[0].text().unwrap());
    assert_eq!(values.len(), 64);
    for (k, value) in values.iter().enumerate() {
        let (x, y) = (k % 8, k / 8);
        assert_eq!(*value, array[64 + 8 * x + y]);
    }

    // Samples come with the residual of the equation that the run knows.
    let (_place, adapted) = copy_of("adapted");
    let run = adapted.to_str().unwrap();
    succeed(at, &["export", run, "--to", "vti", "--count", "1"]);
    let text = fs::read_to_string(adapted.join("vti/sample-0000.vti")).unwrap();
    assert!(["p", "K", "residual"].iter().all(|name| text.contains(&format!("Name=\"{name}\""))), "{text}");
    succeed(at, &["export", run, "--to", "vti", "--count", "1", "--data", "--out", out]);
    let held_out = fs::read_to_string(place.path().join("sample-0000.vti")).unwrap();
    assert!(held_out != text && held_out.contains("Name=\"residual\""));
    let snapshot = adapted.join("snapshots/final.safetensors");
    refuse(at, &["export", snapshot.to_str().unwrap(), "--to", "vti"], &["--out", "folder"]);
}

#[test]
fn a_snapshot_in_half_precision_is_used_as_any_other() {
    let at = home();
    let (_place, adapted) = copy_of("adapted");
    let run = adapted.to_str().unwrap();
    assert_eq!(
        Path::new(succeed(at, &["export", run, "--to", "half"]).trim()),
        adapted.join("half/snapshot.safetensors")
    );
    let half = adapted.join("half/snapshot.safetensors");
    let half = half.to_str().unwrap();
    let residual = |of: &str| {
        let answer = json(at, &["eval", of, "--metrics", "residual", "--count", "2", "--data", "data"]);
        answer["model"]["metrics"]["residual"]["mean"].as_f64().unwrap()
    };
    let (whole, rounded) = (residual(run), residual(half));
    assert!(rounded != whole && (rounded / whole - 1.0).abs() < 1e-2, "{rounded} and {whole}");
    refuse(at, &["export", run, "--to", "half", "--follow"], &["--follow", "tensorboard"]);
    refuse(at, &["export", half, "--to", "half"], &["--out", "folder"]);
    refuse(at, &["export", "data", "--to", "half", "--out", "elsewhere"], &["data"]);
}

#[test]
fn fitted_steps_are_measured_once_and_kept_beside_the_model() {
    let at = home();
    let (_place, adapted) = copy_of("adapted");
    let run = adapted.to_str().unwrap();
    let kept = || -> Vec<PathBuf> {
        let files = fs::read_dir(adapted.join("solver")).into_iter().flatten();
        files.map(|file| file.unwrap().path()).collect()
    };
    let draw = |out: &Path| {
        let out = out.to_str().unwrap();
        let sampler = ["--solver", "fitted", "--spacing", "log-uniform", "--steps", "4"];
        succeed(at, &[&["sample", run, "--count", "2", "--out", out][..], &sampler].concat());
        fs::read(Path::new(out).join("p.npy")).unwrap()
    };
    let (first, second, third) = (adapted.join("first"), adapted.join("second"), adapted.join("third"));
    let drawn = draw(&first);
    let files = kept();
    assert_eq!(files.len(), 1, "{files:?}");
    let written = fs::metadata(&files[0]).unwrap().modified().unwrap();
    assert_eq!(draw(&second), drawn);
    assert_eq!(fs::metadata(&files[0]).unwrap().modified().unwrap(), written);
    // A damaged file is measured again.
    let good = fs::read(&files[0]).unwrap();
    fs::write(&files[0], &good[..good.len() - 1]).unwrap();
    assert_eq!(draw(&third), drawn);
    assert_eq!(fs::read(&files[0]).unwrap(), good);
    let steps = ["--solver", "fitted", "--steps", "4"];
    refuse(
        at,
        &[&["eval", run, "--observe", "p=3", "--noise", "1%", "--data", "data"][..], &steps].concat(),
        &["fitted", "unipc"],
    );
    refuse(at, &[&["sample", run, "--guidance", "1e-3", "--out", "guided"][..], &steps].concat(), &["fitted", "unipc"]);
}
