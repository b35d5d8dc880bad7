//! `softly report`: pages from what studies and trainings have left behind; nothing is computed anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use softly::error::{Error, Result};
use softly::files::{read_text, write_text};
use softly::{Metrics, RunFolder, RunInfo};
use softly_figures::axis::Scale;
use softly_figures::charts::{Axes, LineChart, Point, Series, Spread};
use softly_figures::page::{Block, Cell, Page, Section, Table, readable, render};
use softly_figures::svg::Colours;
use softly_studies::{Ablation, CircleStudy, FieldTable, StudyTable, circle_report, fields_report};

use crate::output::{print, print_json};

/// Writes the pages of a study beside its tables, or one page of runs.
pub fn run(folders: &[PathBuf], out: Option<&Path>, json: bool) -> Result<()> {
    let pages = match folders {
        [folder] if !tables(folder).is_empty() => {
            let mut found = tables(folder);
            if out.is_some() {
                // There is one place, for the first and main of them.
                found.truncate(1);
            }
            found.into_iter().map(|ablation| study(folder, ablation, out)).collect::<Result<Vec<_>>>()?
        }
        _ => vec![runs(folders, out)?],
    };
    if json {
        print_json(&json!({ "pages": pages }));
    } else {
        for page in &pages {
            print(&page.display().to_string());
        }
    }
    Ok(())
}

/// The tables in a folder: of the main study, then of ablations.
fn tables(folder: &Path) -> Vec<Option<Ablation>> {
    let all = std::iter::once(None).chain(Ablation::ALL.map(Some));
    all.filter(|&ablation| FieldTable::file(folder, ablation).exists()).collect()
}

/// Writes the page of one table in a study's folder.
fn study(folder: &Path, ablation: Option<Ablation>, out: Option<&Path>) -> Result<PathBuf> {
    let page = out.map_or_else(|| fields_report::file(folder, ablation), Path::to_path_buf);
    let file = FieldTable::file(folder, ablation);
    let damaged = |e: serde_json::Error| Error::input(file.display(), format!("is no table of a study: {e}"));
    let value: Value = serde_json::from_str(&read_text(&file)?).map_err(damaged)?;
    if value["study"] == "circle" {
        let table: StudyTable = serde_json::from_value(value).map_err(damaged)?;
        let scale = serde_json::from_value(json!(table.scale)).map_err(damaged)?;
        let seeds: BTreeSet<u64> = table.rows.iter().map(|r| r.seed).collect();
        let study = CircleStudy::new(scale, Some(seeds.len().max(1) as u64));
        circle_report::write(&study, &table, folder, &page)?;
    } else {
        let table = FieldTable::read(&file)?;
        fields_report::write(&table.study(), &table, folder, &page)?;
    }
    Ok(page)
}

/// One training.
struct Run {
    name: String,
    info: RunInfo,
    config: String,
    metrics: Vec<Metrics>,
}

impl Run {
    fn read(path: &Path) -> Result<Self> {
        let folder = RunFolder::new(path);
        if !folder.info().exists() {
            return Err(Error::input(
                path.display(),
                "expected a folder with `run.json` or `table.json`, found neither",
            )
            .hint("name the folder of a training or of a study"));
        }
        let damaged = |e: serde_json::Error| Error::input(folder.metrics().display(), format!("is damaged: {e}"));
        let lines = if folder.metrics().exists() { read_text(&folder.metrics())? } else { String::new() };
        let metrics = lines.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>();
        Ok(Self {
            name: path.display().to_string(),
            info: folder.read_info()?,
            config: read_text(&folder.config())?,
            metrics: metrics.map_err(damaged)?,
        })
    }
}

/// Writes one page of trainings; of a single one into its own folder by default.
fn runs(folders: &[PathBuf], out: Option<&Path>) -> Result<PathBuf> {
    let page = match (out, folders) {
        (Some(out), _) => out.to_path_buf(),
        (None, [folder]) => folder.join("report.html"),
        (None, _) => {
            return Err(Error::input("--out", "several runs need a file for their page").hint("--out report.html"));
        }
    };
    let runs = folders.iter().map(|folder| Run::read(folder)).collect::<Result<Vec<_>>>()?;
    let mut colours = Colours::default();
    let text = |run: &Run| {
        let last = run.metrics.last();
        let number = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{v:.5}"));
        let learned = last.map_or_else(String::new, |m| {
            m.constraint.iter().map(|(name, value)| format!("{name} = {value:.4}")).collect::<Vec<_>>().join(", ")
        });
        vec![
            Cell::text(&*run.name),
            Cell::text(&*run.info.status),
            Cell::number(run.info.seed.to_string()),
            Cell::number(last.map_or_else(String::new, |m| m.step.to_string())),
            Cell::number(number(last.map(|m| m.loss))),
            Cell::text(learned),
            Cell::text(readable(Duration::from_secs_f64(run.info.seconds.max(0.0)))),
            Cell::text(format!("{}, {} threads", run.info.device, run.info.threads)),
            Cell::text(&*run.info.commit),
        ]
    };
    let header = ["run", "status", "seed", "steps", "loss", "learned", "time", "device", "commit"];
    let table = Table {
        caption: "Trainings; the loss is the mean over the steps of the last line of metrics.jsonl.".into(),
        header: header.map(String::from).to_vec(),
        rows: runs.iter().map(text).collect(),
        origin: None,
    };
    let mut chart = |title: &str, y_scale, of: &dyn Fn(&Metrics) -> Option<f64>| {
        let series = runs.iter().map(|run| Series {
            name: run.name.clone(),
            colour: colours.index(&run.name),
            points: run.metrics.iter().filter_map(|m| Some(Point::exact(m.step as f64, of(m)?))).collect(),
        });
        let series: Vec<Series> = series.filter(|s| !s.points.is_empty()).collect();
        let axes =
            Axes { title: title.into(), x_label: "step".into(), y_label: title.into(), y_scale, ..Axes::default() };
        let shown = !series.is_empty();
        shown.then(|| Block::Figure {
            svg: LineChart { axes, series, spread: Spread::Bars }.svg(),
            caption: String::new(),
        })
    };
    let mut blocks = vec![Block::Table(table)];
    blocks.extend(chart("Loss", Scale::Log, &|m| Some(m.loss)));
    blocks.extend(chart("Regulariser", Scale::Log, &|m| m.terms.get("residual").copied()));
    blocks.extend(chart("Loss of learned parameters", Scale::Log, &|m| m.terms.get("parameters").copied()));
    blocks.extend(chart("Gradient norm", Scale::Log, &|m| Some(m.gradient_norm)));
    let mut sections = vec![Section { heading: "Trainings".into(), text: Vec::new(), blocks }];
    sections.extend(runs.iter().map(|run| Section {
        heading: run.name.clone(),
        text: Vec::new(),
        blocks: vec![Block::Preformatted(run.info.command.clone()), Block::Preformatted(run.config.trim_end().into())],
    }));
    let title = if let [run] = &runs[..] { run.name.clone() } else { format!("{} runs", runs.len()) };
    write_text(&page, &render(&Page { title, lead: String::new(), sections }))?;
    Ok(page)
}
