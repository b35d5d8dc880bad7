//! The page of trainings: the verdict on their constraints, the numbers and the figures behind it.

mod evidence;
mod figures;
mod gallery;
mod judge;
mod page;
mod record;
mod verdict;

use std::path::{Path, PathBuf};

use softly::error::Result;
use softly::files::write_text;
use softly::job::Job;
use softly_figures::page::{Page, render};

use crate::runs::gallery::Gallery;
use crate::runs::page::Report;
use crate::runs::record::Record;

/// Writes the page of the runs in `folders`, and its figures into a folder beside it; returns that folder. What has not
/// been measured yet is measured now and kept in the folders of the runs.
pub fn write(folders: &[PathBuf], page: &Path, job: &Job<'_>) -> Result<PathBuf> {
    let records = Record::read_all(folders)?;
    let (judgement, notes) = judge::judge(&records, job)?;
    for note in &notes {
        job.reporter.note(note);
    }
    let mut gallery = Gallery::default();
    let sections = Report::new(&records, judgement.as_ref(), &notes)?.sections(&mut gallery)?;
    let title = if let [record] = &records[..] { record.name.clone() } else { names(&records) };
    let lead = judgement.as_ref().map_or_else(String::new, page::lead);
    write_text(page, &render(&Page { title, lead, sections }))?;
    gallery.write(page)
}

/// The names of a few runs, or their number.
fn names(records: &[Record]) -> String {
    if records.len() > 4 {
        return format!("{} runs", records.len());
    }
    records.iter().map(|record| record.name.as_str()).collect::<Vec<_>>().join(", ")
}
