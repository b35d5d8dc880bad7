//! `softly report`: pages from what studies have left behind, and of trainings.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use softly::device;
use softly::error::{Error, Result};
use softly::files::read_text;
use softly_studies::{Ablation, CircleStudy, FieldTable, StudyTable, circle_report, fields_report, write_runs_page};

use crate::interrupt::{catch_interrupt, job};
use crate::output::{print, print_json};
use crate::progress::Bar;

/// Writes the pages of a study beside its tables, or one page of runs.
pub fn run(folders: &[PathBuf], out: Option<&Path>, device: &str, json: bool) -> Result<()> {
    let pages = match folders {
        [folder] if !tables(folder).is_empty() => {
            let mut found = tables(folder);
            if out.is_some() {
                // There is one place, for the first and main of them.
                found.truncate(1);
            }
            found.into_iter().map(|ablation| study(folder, ablation, out)).collect::<Result<Vec<_>>>()?
        }
        _ => vec![runs(folders, out, device)?],
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

/// Writes one page of trainings; of a single one into its own folder by default.
fn runs(folders: &[PathBuf], out: Option<&Path>, device: &str) -> Result<PathBuf> {
    let page = match (out, folders) {
        (Some(out), _) => out.to_path_buf(),
        (None, [folder]) => folder.join("report.html"),
        (None, _) => {
            return Err(Error::input("--out", "several runs need a file for their page").hint("--out report.html"));
        }
    };
    let device = device::by_name(device)?;
    catch_interrupt();
    let bar = Bar::new(0, "calls");
    write_runs_page(folders, &page, &job(&device, &bar))?;
    bar.finish();
    Ok(page)
}
