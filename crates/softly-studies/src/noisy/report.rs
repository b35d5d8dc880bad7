//! The study's table, verdicts and page.

use std::path::Path;

use softly::error::Result;
use softly::files::write_text;
use softly_figures::page::{Block, Cell, Origin, Page, Section, Table, duration, render};

use crate::noisy::study::{NoisyRow, NoisyTable, Way};

const HEADER: [&str; 9] = [
    "equation",
    "noise",
    "fitted to fields",
    "parameter",
    "truth",
    "furthest of five starts",
    "intervals with the truth",
    "mean |R| of samples",
    "NLL, clean data",
];

/// The table as lines of cells, a header first.
pub fn lines(table: &NoisyTable) -> Vec<Vec<String>> {
    let number = |value: Option<f64>, digits: usize| value.map_or_else(String::new, |v| format!("{v:.digits$}"));
    let row = |row: &NoisyRow| {
        let furthest = row.found.iter().max_by(|a, b| (a.1 - row.truth).abs().total_cmp(&(b.1 - row.truth).abs()));
        vec![
            row.equation.clone(),
            format!("{} %", 100.0 * row.noise),
            words(row.way).into(),
            row.parameter.clone(),
            row.truth.to_string(),
            furthest.map_or_else(String::new, |(_, found)| format!("{found:.5} ({:.2} % off)", 100.0 * row.error())),
            format!("{} of {}", row.covering(), row.intervals.len()),
            number(row.residual, 4),
            number(row.likelihood, 3),
        ]
    };
    std::iter::once(HEADER.map(String::from).to_vec()).chain(table.rows.iter().map(row)).collect()
}

fn words(way: Way) -> &'static str {
    match way {
        Way::Direct => "as they are",
        Way::Usual => "denoised, noise unknown",
        Way::Aware => "denoised, noise known",
    }
}

/// The fit through a denoiser that knows the noise against the direct one, for every equation and noise.
pub fn verdicts(table: &NoisyTable) -> Vec<String> {
    let verdict = |row: &NoisyRow| {
        let same = |r: &&NoisyRow| r.equation == row.equation && r.noise == row.noise && r.way == Way::Direct;
        let direct = table.rows.iter().find(same)?;
        Some(format!(
            "{}, {} % noise: {} off by {:.2} % through the denoiser that knows the noise, {:.2} % directly; ratio {:.2}.",
            row.equation,
            100.0 * row.noise,
            row.parameter,
            100.0 * row.error(),
            100.0 * direct.error(),
            row.error() / direct.error()
        ))
    };
    table.rows.iter().filter(|row| row.way == Way::Aware).filter_map(verdict).collect()
}

/// Writes the page.
pub fn write(table: &NoisyTable, path: &Path) -> Result<()> {
    let mut rows = lines(table).into_iter();
    let header = rows.next().unwrap_or_default();
    let origin = Origin {
        command: table.command.clone(),
        seeds: vec![0],
        commit: table.commit.clone(),
        time: duration(table.rows.iter().map(|row| row.train_seconds).sum()),
    };
    let results = Table {
        caption: "Parameters fitted to training fields with white noise, from a quarter to four times the truth; 95 % intervals of \
                  20 disjoint parts of the data. Samples are judged by the true equation; the likelihood is of clean held-out \
                  fields with the training data's noise, bits per dimension in normalised units. Time is of trainings alone."
            .into(),
        header,
        rows: rows.map(|row| row.into_iter().map(Cell::text).collect()).collect(),
        origin: Some(origin),
    };
    let blocks = verdicts(table).into_iter().map(Block::Verdict).chain([Block::Table(results)]).collect();
    let page = Page {
        title: format!("Noisy training data (scale {})", table.scale.name()),
        lead: "Derivatives of a noisy field are mostly noise, so an equation fitted to it is a wrong one. A denoiser that is \
               trained on the noisy fields alone, but knows how large their noise is, gives the expected clean field, \
               and an equation that is linear holds for expectations."
            .into(),
        sections: vec![Section { heading: "Results".into(), text: Vec::new(), blocks }],
    };
    write_text(path, &render(&page))
}
