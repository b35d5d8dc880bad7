//! `softly reproduce`: a whole study with one command.

use std::path::{Path, PathBuf};

use softly::RunInfo;
use softly::device;
use softly::error::{Error, Result};
use softly::job::Job;
use softly_studies::{
    CellState, CircleStudy, Equation, FieldStudy, FieldTable, InverseStudy, NoisyStudy, Selection, StudyScale, Trainer,
    circle_report, field_cells, fields_report, inverse_report, noisy_report, run_circle, run_circle_cells,
    run_field_cells, run_fields, run_inverse, run_inverse_cells, run_noisy, run_noisy_cells,
};

use crate::arguments::{Reproduce, Study};
use crate::configuration::run_info;
use crate::interrupt::{STOP, catch_interrupt, job};
use crate::output::{print, print_json, text_table};
use crate::progress::{Bar, say};
use crate::trainer;

/// Runs the study, or goes on with it, and writes its table and page.
pub fn run(reproduce: &Reproduce, json: bool) -> Result<()> {
    let alone = matches!(reproduce.study, Study::Circle | Study::Inverse | Study::Noisy);
    if alone && reproduce.ablation.is_some() {
        return Err(Error::input("--study", "this study has no ablations")
            .hint("they go with `reproduce darcy` and `reproduce helmholtz`"));
    }
    if alone && reproduce.scale == StudyScale::Long {
        return Err(Error::input("--scale", "this study has no scale `long`")
            .hint("darcy and helmholtz have it; choose demo, cpu or paper"));
    }
    catch_interrupt();
    match reproduce.study {
        Study::Circle => circle(reproduce, json),
        Study::Darcy => fields(reproduce, Equation::Darcy, json),
        Study::Helmholtz => fields(reproduce, Equation::Helmholtz, json),
        Study::Inverse => inverse(reproduce, json),
        Study::Noisy => noisy(reproduce, json),
    }
}

fn folder(reproduce: &Reproduce, study: &str) -> PathBuf {
    reproduce.out.clone().unwrap_or_else(|| PathBuf::from(format!("runs/{study}-{}", reproduce.scale.name())))
}

/// The cells that the command line asks for; `None` if they were to be listed.
fn selected(reproduce: &Reproduce, states: &[CellState], json: bool) -> Result<Option<Selection>> {
    if reproduce.list_cells {
        if json {
            print_json(&states);
        } else {
            let line = |state: &CellState| vec![state.cell.clone(), if state.done { "done" } else { "" }.to_string()];
            print(&text_table(&states.iter().map(line).collect::<Vec<_>>(), 2));
        }
        return Ok(None);
    }
    let only = reproduce.only.clone().map(Selection::Only);
    let selection = only.or(reproduce.shard.map(Selection::Shard)).unwrap_or_default();
    selection.check(states)?;
    Ok(Some(selection))
}

/// Whether every cell is done; says how many are not.
fn all_done(states: &[CellState]) -> bool {
    let left = states.iter().filter(|state| !state.done).count();
    if left > 0 {
        say(&format!(
            "{left} of {} cells are not done yet; who finishes the last one writes the table and the page",
            states.len()
        ));
    }
    left == 0
}

/// The table of a study whose cells are in `states`: `cells` runs those that the command line asks for, `table` makes the table.
/// `None` if the cells were to be listed, or if some are not done yet.
fn table_of<T>(
    reproduce: &Reproduce,
    json: bool,
    states: impl Fn() -> Vec<CellState>,
    cells: impl FnOnce(&Selection, &Trainer<'_>, &Job<'_>) -> Result<()>,
    table: impl FnOnce(&RunInfo, &Trainer<'_>, &Job<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let Some(selection) = selected(reproduce, &states(), json)? else { return Ok(None) };
    let name = reproduce.compute.device.as_str();
    let device = device::by_name(name)?;
    let bar = Bar::new(1, "units");
    let train: &Trainer<'_> =
        &|config, folder, base, advance| trainer::train(config, folder, base, name, &STOP, advance);
    let job = job(&device, &bar);
    cells(&selection, train, &job)?;
    if !all_done(&states()) {
        return Ok(None);
    }
    let table = table(&run_info(0, name), train, &job)?;
    bar.finish();
    Ok(Some(table))
}

/// Says which files hold the table and the page.
fn say_written(table: &Path, page: &Path) {
    say(&format!("wrote {} and {}", table.display(), page.display()));
}

fn circle(reproduce: &Reproduce, json: bool) -> Result<()> {
    let study = CircleStudy::new(reproduce.scale, reproduce.seeds);
    let out = folder(reproduce, "circle");
    let table = table_of(
        reproduce,
        json,
        || study.states(&out),
        |selection, train, job| run_circle_cells(&study, &out, selection, train, job),
        |info, train, job| run_circle(&study, &out, info, train, job),
    )?;
    let Some(table) = table else { return Ok(()) };
    let page = out.join("report.html");
    circle_report::write(&study, &table, &out, &page)?;
    if json {
        print_json(&table);
    } else {
        print(&circle_report::text_table(&table));
    }
    say_written(&out.join("table.json"), &page);
    Ok(())
}

fn inverse(reproduce: &Reproduce, json: bool) -> Result<()> {
    let study = InverseStudy::new(reproduce.scale);
    let out = folder(reproduce, "inverse");
    let table = table_of(
        reproduce,
        json,
        || study.states(&out),
        |selection, train, job| run_inverse_cells(&study, &out, selection, train, job).map(|_| ()),
        |info, train, job| run_inverse(&study, &out, info, train, job),
    )?;
    let Some(table) = table else { return Ok(()) };
    let page = out.join("report.html");
    inverse_report::write(&table, &out, &page)?;
    if json {
        print_json(&table);
    } else {
        for (words, lines) in inverse_report::text_tables(&table) {
            print(&format!("{words}\n{}\n", text_table(&lines, 2)));
        }
        for verdict in inverse_report::verdicts(&table) {
            print(&verdict);
        }
    }
    say_written(&out.join("table.json"), &page);
    Ok(())
}

fn noisy(reproduce: &Reproduce, json: bool) -> Result<()> {
    let study = NoisyStudy::new(reproduce.scale);
    let out = folder(reproduce, "noisy");
    let table = table_of(
        reproduce,
        json,
        || study.states(&out),
        |selection, train, job| run_noisy_cells(&study, &out, selection, train, job),
        |info, train, job| run_noisy(&study, &out, info, train, job),
    )?;
    let Some(table) = table else { return Ok(()) };
    let page = out.join("report.html");
    noisy_report::write(&table, &page)?;
    if json {
        print_json(&table);
    } else {
        print(&text_table(&noisy_report::lines(&table), 2));
        for verdict in noisy_report::verdicts(&table) {
            print(&verdict);
        }
    }
    say_written(&out.join("table.json"), &page);
    Ok(())
}

fn fields(reproduce: &Reproduce, equation: Equation, json: bool) -> Result<()> {
    let ablation = reproduce.ablation;
    let study = FieldStudy::new(equation, reproduce.scale, reproduce.seeds, ablation);
    let out = folder(reproduce, equation.name());
    let table = table_of(
        reproduce,
        json,
        || field_cells(&study, &out),
        |selection, train, job| run_field_cells(&study, &out, selection, train, job),
        |info, train, job| run_fields(&study, &out, info, train, job),
    )?;
    let Some(table) = table else { return Ok(()) };
    let page = fields_report::file(&out, ablation);
    fields_report::write(&study, &table, &out, &page)?;
    if json {
        print_json(&table.condensed());
    } else {
        print(&fields_report::text_table(&study, &table));
    }
    say_written(&FieldTable::file(&out, ablation), &page);
    Ok(())
}
