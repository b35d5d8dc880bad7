//! What each command does: parse, call the library, print.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use clap::CommandFactory;
use serde_json::json;
use softly::error::{Error, Result, nearest};
use softly::files::make_folder;
use softly::job::Reporter;
use softly::statistics::Summary;
use softly::units::Units;
use softly::{
    Compliance, Config, Dataset, DistanceError, Generator, Guidance, Layers, PRESETS, PointEval, ResidualSummary,
    RunFolder, RunInfo, Sampler, Snapshot, SoftConstraint, Trained, Training, cloud, device, npy, snapshot_file, train,
    w1,
};
use softly_pde::grid::Grid;

use crate::arguments::{Arguments, Command, Distance, MetricName, Sampling, Source, SweepName};
use crate::progress::{Bar, say};
use crate::{
    bench_command, data_commands, denoise_command, field_eval_command, held_out_command, report_command,
    reproduce_command, solve_commands, sweep_command,
};

/// Set by Ctrl-C; long work looks at it.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// Runs the program.
pub fn run(arguments: Arguments) -> Result<()> {
    let threads =
        arguments.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, Into::into), usize::from);
    // Fails only if a pool exists already, and this is the first use of one.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    // Inside the pool: handing every small kernel over to it from outside would cost more than the kernel.
    rayon::scope(|_| dispatch(arguments.command, arguments.json))
}

fn dispatch(command: Command, json: bool) -> Result<()> {
    match command {
        Command::Reproduce(reproduce) => reproduce_command::run(&reproduce, json),
        Command::Presets { name, method } => presets(name.as_deref(), method.as_deref(), json),
        Command::Data { kind } => data_commands::run(kind, json),
        Command::Train { source, out, place } => train_model(&source, &out, &place.device, json),
        Command::Adapt { base, source, out, place } => adapt_model(&base, &source, &out, &place.device, json),
        Command::Sample { sampling, seeds, out } => sample(&sampling, seeds.as_deref(), &out, json),
        Command::Eval { sampling, sets, data, sweep: Some(SweepName::Compliance), out, .. } => {
            sweep_command::run(&sampling, sets as usize, data.as_deref(), out.as_deref(), json)
        }
        Command::Eval { sampling, data, metrics, .. } if metrics.iter().any(|m| held_out_command::measures(*m)) => {
            held_out_command::run(&sampling, data.as_deref(), &metrics, json)
        }
        Command::Eval { sampling, sets, scales, data, metrics, .. } => {
            eval(&sampling, sets as usize, &scales, data.as_deref(), &metrics, json)
        }
        Command::Denoise { model, input, sigma, out, place } => {
            denoise_command::run(&model, &input, &sigma, &out, &place.device, json)
        }
        Command::Residual { config, fields, out } => residual(&config, &fields, out.as_deref()),
        Command::Report { folders, out } => report_command::run(&folders, out.as_deref(), json),
        Command::Solve { kind } => solve_commands::run(kind, json),
        Command::Distance { kind: Distance::W1 { a, b } } => distance(&a, &b),
        Command::Bench(bench) => bench_command::run(&bench, json),
        Command::Info => {
            info(json);
            Ok(())
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "softly", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// Prints a line of data on stdout; a closed pipe is not an error.
pub fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

pub fn print_json(value: &impl serde::Serialize) {
    print(&serde_json::to_string(value).expect("values of the program are valid JSON"));
}

/// From now on Ctrl-C asks long work to stop instead of killing the program; a second one kills.
pub fn catch_interrupt() {
    // Fails only if there is a handler already, and then that one serves.
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        say("stopping after this step; Ctrl-C again to quit at once");
    });
}

/// A description of this run of the program on the named device.
pub fn run_info(seed: u64, device: &str) -> RunInfo {
    RunInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SOFTLY_COMMIT").into(),
        command: std::iter::once("softly".to_string()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" "),
        seed,
        dataset_hash: String::new(),
        device: if device == "cpu" { "cpu (flex)".into() } else { device.into() },
        threads: rayon::current_num_threads(),
        status: String::new(),
        seconds: 0.0,
    }
}

fn presets(name: Option<&str>, method: Option<&str>, json: bool) -> Result<()> {
    let Some(name) = name else {
        if json {
            print_json(&PRESETS.iter().map(|(name, _)| name).collect::<Vec<_>>());
        } else {
            for (name, text) in PRESETS {
                print(&format!("{name:15} {}", text.lines().next().unwrap_or_default().trim_start_matches("# ")));
            }
        }
        return Ok(());
    };
    let mut layers = Layers::new().preset(name)?;
    if let Some(method) = method {
        layers = layers.method(method)?;
    }
    let config = layers.finish(name)?;
    if json {
        print_json(&config);
    } else {
        print(config.to_toml().trim_end());
    }
    Ok(())
}

/// The configuration that a command line asks for.
pub fn configuration(source: &Source) -> Result<Config> {
    let mut layers = Layers::new();
    let mut place = "--set".to_string();
    if let Some(preset) = &source.preset {
        layers = layers.preset(preset)?;
        place = format!("preset {preset}");
    }
    if let Some(file) = &source.config {
        layers = layers.file(file)?;
        place = file.display().to_string();
    }
    if source.preset.is_none() && source.config.is_none() {
        return Err(Error::input("--preset", "expected --preset or --config").hint("`softly presets` lists presets"));
    }
    with_method_and_settings(layers, source)?.finish(&place)
}

fn with_method_and_settings(mut layers: Layers, source: &Source) -> Result<Layers> {
    if let Some(method) = &source.method {
        layers = layers.method(method)?;
    }
    for setting in &source.settings {
        layers = layers.set(setting)?;
    }
    Ok(layers)
}

fn train_model(source: &Source, out: &Path, device: &str, json: bool) -> Result<()> {
    let config = configuration(source)?;
    let training = Training::new(&config, Dataset::from_config(&config)?, &device::by_name(device)?)?;
    run_training(training, out, device, json)
}

fn adapt_model(base: &Path, source: &Source, out: &Path, device: &str, json: bool) -> Result<()> {
    let file = snapshot_file(base)?;
    let place = file.display().to_string();
    let snapshot = Snapshot::read(&file)?;
    let mut layers = Layers::new().text(&snapshot.blueprint.config.to_toml(), &place)?;
    if let Some(preset) = &source.preset {
        layers = layers.preset(preset)?;
    }
    layers = layers.adapting()?;
    if let Some(file) = &source.config {
        layers = layers.file(file)?;
    }
    let config = with_method_and_settings(layers, source)?.finish(&place)?;
    let dataset = Dataset::from_config(&config)?;
    let training = Training::adapt(&snapshot, &file, &config, dataset, &device::by_name(device)?)?;
    run_training(training, out, device, json)
}

/// Runs a training in the folder `out` with a progress bar.
fn run_training(training: Training, out: &Path, device: &str, json: bool) -> Result<()> {
    let config = training.blueprint.config.clone();
    catch_interrupt();
    let bar = Bar::new(config.train.iterations, "steps");
    let folder = RunFolder::new(out);
    let mut started = false;
    train::run_training(training, &folder, run_info(config.train.seed, device), &STOP, &mut |progress| {
        if !started {
            bar.begin(progress.total, progress.step.saturating_sub(1));
            started = true;
        }
        if let Some(loss) = progress.loss {
            bar.message(format!("loss {loss:.5}"));
        }
        bar.set(progress.step);
    })?;
    bar.finish();
    if json {
        print_json(&json!({ "run": out, "snapshot": folder.snapshot(), "iterations": config.train.iterations }));
    } else {
        print(&folder.snapshot().display().to_string());
    }
    Ok(())
}

fn check_scale(place: &str, scale: f64) -> Result<()> {
    if scale.is_finite() && scale >= 0.0 {
        Ok(())
    } else {
        Err(Error::input(place, format!("expected a number ≥ 0, found {scale}")))
    }
}

/// The sampler of a run with the command line's changes.
pub fn sampler_of(trained: &Trained, sampling: &Sampling) -> Result<Sampler> {
    let mut config = trained.blueprint.config.clone();
    if let Some(steps) = sampling.steps {
        config.sampler.steps = steps;
    }
    if let Some(sigma_min) = sampling.sigma_min {
        config.sampler.sigma_min = sigma_min;
    }
    if let Some(scale) = sampling.guidance {
        check_scale("--guidance", scale)?;
        config.sampler.guidance = Some(Guidance { scale });
    }
    config.check()?;
    Ok(config.sampler)
}

/// Numbers that one command may hold in memory: 8 GB of them.
const MOST_NUMBERS: u64 = 1 << 30;

/// Refuses more samples than fit into memory.
fn check_amount(place: &str, samples: u64, trained: &Trained) -> Result<()> {
    let most = MOST_NUMBERS / trained.model.shape.iter().product::<usize>().max(1) as u64;
    if samples <= most {
        return Ok(());
    }
    Err(Error::input(place, format!("expected at most {most} samples of this model at a time, found {samples}"))
        .hint("draw them in parts: `softly sample --seeds A-B`"))
}

/// The sample indices that a command line asks for: `0..count`, or the range `A-B`.
fn indices_of(trained: &Trained, count: u32, range: Option<&str>) -> Result<Vec<u64>> {
    let Some(range) = range else {
        check_amount("--count", u64::from(count), trained)?;
        return Ok((0..u64::from(count)).collect());
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let ends = range.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?)));
    match ends {
        Some((first, last)) if first <= last => {
            check_amount("--seeds", (last - first).saturating_add(1), trained)?;
            Ok((first..=last).collect())
        }
        _ => Err(Error::input("--seeds", format!("expected A-B with A ≤ B, found `{range}`"))
            .hint("for example --seeds 0-99")),
    }
}

/// Draws samples with a progress bar.
pub fn draw(
    trained: &Trained,
    sampler: &Sampler,
    sampling: &Sampling,
    indices: &[u64],
    device: &Device,
) -> Result<Vec<f64>> {
    let bar = Bar::new((indices.len() * sampler.steps) as u64, "sample-steps");
    let advance = |samples: usize| bar.advance(samples as u64);
    let batch = sampling.batch as usize;
    let values = trained.generate(sampler, sampling.seed, indices, batch, device, &STOP, &advance)?;
    bar.finish();
    Ok(values)
}

/// The settings of a command line, with those that have flags of their own.
pub fn settings_of(sampling: &Sampling, compliance: Option<Compliance>) -> Vec<String> {
    let dial = compliance.map(|c| format!("denoiser.scd.compliance={c}"));
    sampling.settings.iter().cloned().chain(dial).collect()
}

/// The model to sample from on `device`, with the command line's settings.
fn load(sampling: &Sampling, device: &Device) -> Result<Trained> {
    Trained::load_with(&sampling.model, &settings_of(sampling, sampling.compliance), device)
}

fn sample(sampling: &Sampling, seeds: Option<&str>, out: &Path, json: bool) -> Result<()> {
    let device = device::by_name(&sampling.place.device)?;
    let trained = load(sampling, &device)?;
    let sampler = sampler_of(&trained, sampling)?;
    let indices = indices_of(&trained, sampling.count, seeds)?;
    catch_interrupt();
    let values = draw(&trained, &sampler, sampling, &indices, &device)?;
    make_folder(out)?;
    let data = &trained.blueprint.data;
    let (nodes, channels) = (data.grid.len(), data.fields.len());
    let mut files = Vec::new();
    for (channel, name) in data.fields.iter().enumerate() {
        let of_channel = values.chunks_exact(nodes).skip(channel).step_by(channels).flatten().map(|&v| v as f32);
        let path = out.join(format!("{name}.npy"));
        npy::write_f32(&path, &[indices.len(), data.grid.rows, data.grid.cols], of_channel)?;
        files.push(path);
    }
    if data.grid.is_point() && channels == 2 {
        let path = out.join("points.npy");
        npy::write_f32(&path, &[indices.len(), 2], values.iter().map(|&v| v as f32))?;
        files.push(path);
    }
    if json {
        print_json(&json!({ "files": files, "count": indices.len(), "steps": sampler.steps, "seed": sampling.seed }));
    } else {
        for path in files {
            print(&path.display().to_string());
        }
    }
    Ok(())
}

/// How samples of a model of points are measured.
pub fn point_eval_of(trained: &Trained, sampling: &Sampling, sets: usize) -> Result<PointEval> {
    let points = sampling.count as usize;
    check_amount("--sets × --count", sets as u64 * points as u64, trained)?;
    let Generator::Points { curve, noise } = trained.blueprint.config.data.generator else {
        return Err(Error::input(sampling.model.display(), "only models of points can be measured")
            .hint("draw samples with `softly sample` and use `softly residual`"));
    };
    Ok(PointEval { curve, noise, sets, points })
}

fn eval(
    sampling: &Sampling,
    sets: usize,
    scales: &[f64],
    data: Option<&Path>,
    metrics: &[MetricName],
    json: bool,
) -> Result<()> {
    let device = device::by_name(&sampling.place.device)?;
    let mut trained = load(sampling, &device)?;
    let sampler = sampler_of(&trained, sampling)?;
    if !trained.blueprint.data.grid.is_point() {
        trained.blueprint.config.sampler = sampler;
        return field_eval_command::run(&trained, sampling, &device, data, metrics, json);
    }
    for &scale in scales {
        check_scale("--scales", scale)?;
        if trained.model.constraint.is_none() {
            return Err(Error::input("--scales", "guidance needs a [constraint] table, and this run has none"));
        }
    }
    let eval = point_eval_of(&trained, sampling, sets)?;
    let points = eval.points;
    catch_interrupt();
    let refuse = |e: DistanceError| Error::input(sampling.model.display(), e);
    let residual = trained.blueprint.truth()?;
    let residual_of = |points: &[[f64; 2]]| {
        residual.as_ref().map(|constraint| {
            let values: Vec<f64> =
                points.iter().flat_map(|p| constraint.residual_values(&[vec![p[0]], vec![p[1]]]).concat()).collect();
            ResidualSummary::of(&values)
        })
    };
    let mut rows = Vec::new();
    let variants: Vec<Option<f64>> =
        if scales.is_empty() { vec![None] } else { scales.iter().map(|&s| Some(s)).collect() };
    for scale in variants {
        let mut sampler = sampler.clone();
        if let Some(scale) = scale {
            sampler.guidance = Some(Guidance { scale });
        }
        let all = cloud(&draw(&trained, &sampler, sampling, &eval.indices(), &device)?);
        let name = scale.map_or_else(|| "model".to_string(), |s| format!("guidance {s}"));
        rows.push((name, eval.measure(&all).map_err(refuse)?, residual_of(&all)));
    }
    let (real, metrics) = eval.floor().map_err(refuse)?;
    rows.push(("data".to_string(), metrics, residual_of(&real)));
    if json {
        let rows = rows
            .iter()
            .map(|(name, metrics, residual)| json!({ "name": name, "metrics": metrics, "residual": residual }));
        print_json(&json!({ "sets": sets, "points": points, "rows": rows.collect::<Vec<_>>() }));
        return Ok(());
    }
    print(&format!(
        "{sets} estimates of {points} samples each; mean ± two standard deviations over estimates. \"data\" is what true points score."
    ));
    print(&format!(
        "{:14} {:>19} {:>19} {:>19} {:>19} {:>14}",
        "", "distance to curve", "W1", "radial W1", "angular W1", "mean |residual|"
    ));
    let cell = |s: Summary| format!("{:.5} ± {:.5}", s.mean, s.two_sd);
    for (name, m, residual) in rows {
        let residual = residual.map_or_else(|| "-".to_string(), |r| format!("{:.3e}", r.mean_abs));
        print(&format!(
            "{name:14} {:>19} {:>19} {:>19} {:>19} {residual:>14}",
            cell(m.curve_mean),
            cell(m.w1),
            cell(m.radial_w1),
            cell(m.angular_w1)
        ));
    }
    Ok(())
}

fn residual(config: &Path, fields: &[String], out: Option<&Path>) -> Result<()> {
    let place = config.display().to_string();
    let parsed = Layers::new().file(config)?.finish(&place)?;
    let constraint = parsed.constraint.ok_or_else(|| {
        Error::input(&place, "expected a [constraint] table, found none").hint("see `softly presets circle-demo`")
    })?;
    let mut given = Vec::new();
    for field in fields {
        let Some((name, path)) = field.split_once('=') else {
            return Err(
                Error::input(format!("--field {field}"), "expected NAME=FILE").hint("for example --field p=p.npy")
            );
        };
        if !constraint.fields.iter().any(|f| f == name) {
            let hint = nearest(name, constraint.fields.iter().map(String::as_str))
                .map_or(String::new(), |n| format!("did you mean `{n}`?"));
            let problem = format!("the constraint has no field `{name}`; it has {}", constraint.fields.join(", "));
            return Err(Error::input(format!("--field {field}"), problem).hint(hint));
        }
        if given.iter().any(|(n, _, _)| n == name) {
            return Err(Error::input(format!("--field {field}"), format!("the field `{name}` is given twice")));
        }
        given.push((name.to_string(), PathBuf::from(path), npy::read(Path::new(path))?));
    }
    let mut arrays = Vec::new();
    for name in &constraint.fields {
        let found = given.iter().find(|(n, _, _)| n == name);
        arrays.push(found.ok_or_else(|| {
            Error::input("--field", format!("no array is given for the field `{name}`"))
                .hint(format!("add --field {name}=FILE"))
        })?);
    }
    let (_, first_path, first) = &arrays[0];
    let (count, rows, cols) = match first.shape[..] {
        [h, w] => (1, h, w),
        [n, h, w] => (n, h, w),
        _ => {
            return Err(Error::input(
                first_path.display(),
                format!("expected [H, W] or [N, H, W], found {:?}", first.shape),
            ));
        }
    };
    for (name, path, array) in &arrays {
        if array.shape != first.shape {
            let problem = format!("expected {:?} as {}, found {:?}", first.shape, first_path.display(), array.shape);
            return Err(Error::input(format!("{} (field `{name}`)", path.display()), problem));
        }
        if let Some(bad) = array.values.iter().position(|v| !v.is_finite()) {
            let problem = format!("expected finite numbers, found {} at position {bad}", array.values[bad]);
            return Err(Error::input(format!("{} (field `{name}`)", path.display()), problem));
        }
    }
    if count == 0 || rows * cols == 0 {
        return Err(Error::input(
            first_path.display(),
            format!("expected at least one value, found shape {:?}", first.shape),
        ));
    }
    let grid = Grid::unit(rows, cols);
    let compiled =
        SoftConstraint::new(&constraint, &constraint.fields, &grid, &Units::identity(constraint.fields.len()))?;
    let nodes = grid.len();
    let mut values = Vec::new();
    let mut whole = true;
    for sample in 0..count {
        let fields: Vec<Vec<f64>> =
            arrays.iter().map(|(_, _, a)| a.values[sample * nodes..(sample + 1) * nodes].to_vec()).collect();
        let parts = compiled.residual_values(&fields);
        whole &= parts.len() == 1 && parts[0].len() == nodes;
        values.extend(parts.concat());
    }
    if let Some(out) = out {
        if !whole {
            return Err(Error::input("--out", "needs one residual formula on every node")
                .hint("leave out --out, or give a single `residual` without a region"));
        }
        npy::write_f64(out, &first.shape, values.iter().copied())?;
    }
    print_json(&ResidualSummary::of(&values));
    Ok(())
}

fn distance(a: &Path, b: &Path) -> Result<()> {
    let (first, second) = (npy::read_points(a)?, npy::read_points(b)?);
    let w1 = w1(&first, &second).map_err(|e| Error::input(a.display(), format!("{e}")))?;
    let n = if first.len() == second.len() { json!(first.len()) } else { json!([first.len(), second.len()]) };
    print_json(&json!({ "w1": w1, "n": n }));
    Ok(())
}

fn info(json: bool) {
    let info = run_info(0, "cpu");
    let facts = json!({
        "version": info.version, "commit": info.commit, "device": info.device,
        "devices": device::NAMES.join(", "), "threads": info.threads,
        "burn": "0.22.1", "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
    });
    if json {
        print_json(&facts);
    } else if let Some(facts) = facts.as_object() {
        for (key, value) in facts {
            print(&format!("{key:8} {}", value.as_str().map_or_else(|| value.to_string(), ToString::to_string)));
        }
    }
}
