//! The study's tables and page.

use std::path::Path;

use softly::error::Result;
use softly::files::{read_text, write_text};
use softly_figures::page::{Block, Cell, Origin, Page, Section, Table, duration, render};

use crate::inverse::study::{InverseTable, Task};
use crate::inverse::table::{PosteriorRow, posterior_table};

/// The rows of a task.
fn rows_of(table: &InverseTable, task: &Task) -> Vec<PosteriorRow> {
    table.rows.iter().filter(|row| row.task == task.name).map(|row| row.row.clone()).collect()
}

/// Lines of text for every task, ready to be aligned in columns, with the task's words before them.
pub fn text_tables(table: &InverseTable) -> Vec<(String, Vec<Vec<String>>)> {
    let of = |task: &Task| (format!("{}: {}", task.name, task.words), posterior_table(&rows_of(table, task)));
    table.tasks.iter().map(of).collect()
}

/// How ours compares with kriging and with the best rival, field by field.
pub fn verdicts(table: &InverseTable) -> Vec<String> {
    let verdict = |task: &Task| {
        let rows = rows_of(table, task);
        let ours = rows.first()?;
        let kriging = rows.iter().find(|row| row.method == "kriging")?;
        let rivals = || rows.iter().filter(|row| !row.method.starts_with("kalman") && row.method != "kriging");
        let of_field = |k: usize| {
            let own = &ours.metrics.fields[k];
            let mean = own.mean_error.median / kriging.metrics.fields[k].mean_error.median;
            let best = rivals().map(|row| row.metrics.fields[k].sample_error.median).fold(f64::INFINITY, f64::min);
            let coverage = 100.0 * own.coverage[1];
            let sample = own.sample_error.median / best;
            format!(
                "{}: mean / kriging's {mean:.2}, samples / best rival's {sample:.2}, {coverage:.0} % of nodes in the 90 % interval",
                own.name
            )
        };
        let fields: Vec<String> = (0..ours.metrics.fields.len()).map(of_field).collect();
        Some(format!("{} ({}). {}.", task.name, task.words, fields.join("; ")))
    };
    table.tasks.iter().filter_map(verdict).collect()
}

/// Writes the page.
pub fn write(table: &InverseTable, out: &Path, path: &Path) -> Result<()> {
    let seconds: f64 = table.rows.iter().map(|row| row.row.seconds).sum::<f64>() + table.training.1;
    let origin = Origin {
        command: table.command.clone(),
        seeds: vec![0],
        commit: table.commit.clone(),
        time: duration(seconds),
    };
    let mut sections = vec![Section {
        heading: "In short".into(),
        text: Vec::new(),
        blocks: verdicts(table).into_iter().map(Block::Verdict).collect(),
    }];
    for task in &table.tasks {
        let lines = posterior_table(&rows_of(table, task));
        let cells = |line: &Vec<String>| {
            let cell = |(k, text): (usize, &String)| if k < 2 { Cell::text(text) } else { Cell::number(text) };
            line.iter().enumerate().map(cell).collect()
        };
        let block = Block::Table(Table {
            caption: format!(
                "{}, noise of {} % of a field's deviation. Errors are relative, medians over fields.",
                task.words, table.noise_percent
            ),
            header: lines[0].clone(),
            rows: lines[1..].iter().map(cells).collect(),
            origin: Some(origin.clone()),
        });
        let picture = out.join("cells").join(format!("{}-kalman--given-f---10.svg", task.name));
        let text = read_text(&picture).ok().map(|_| {
            format!(
                "A picture of the first case: cells/{}.",
                picture.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
            )
        });
        sections.push(Section { heading: task.name.clone(), text: text.into_iter().collect(), blocks: vec![block] });
    }
    let [rows, cols] = table.grid;
    let page = Page {
        title: format!("Fields from measurements: {rows}×{cols} nodes (scale {})", table.scale.name()),
        lead: "One denoiser of Darcy flow, trained without an equation, and measurements of fields that it has not seen. Every method draws \
               fields that agree with them; kriging, the control, needs no network."
            .into(),
        sections,
    };
    write_text(path, &render(&page))
}
