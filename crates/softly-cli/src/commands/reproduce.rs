//! `softly reproduce`: a whole study with one command.

use std::path::PathBuf;

use softly::device;
use softly::error::{Error, Result};
use softly_studies::{
    CircleStudy, Equation, FieldStudy, FieldTable, InverseStudy, Trainer, circle_report, fields_report, inverse_report,
    run_circle, run_fields, run_inverse,
};

use crate::arguments::{Reproduce, Study};
use crate::configuration::run_info;
use crate::interrupt::{STOP, catch_interrupt, job};
use crate::output::{print, print_json, text_table};
use crate::progress::{Bar, say};
use crate::trainer;

/// Runs the study, or goes on with it, and writes its table and page.
pub fn run(reproduce: &Reproduce, json: bool) -> Result<()> {
    let alone = matches!(reproduce.study, Study::Circle | Study::Inverse);
    if alone && reproduce.ablation.is_some() {
        return Err(Error::input("--study", "this study has no ablations")
            .hint("they go with `reproduce darcy` and `reproduce helmholtz`"));
    }
    catch_interrupt();
    match reproduce.study {
        Study::Circle => circle(reproduce, json),
        Study::Darcy => fields(reproduce, Equation::Darcy, json),
        Study::Helmholtz => fields(reproduce, Equation::Helmholtz, json),
        Study::Inverse => inverse(reproduce, json),
    }
}

fn folder(reproduce: &Reproduce, study: &str) -> PathBuf {
    reproduce.out.clone().unwrap_or_else(|| PathBuf::from(format!("runs/{study}-{}", reproduce.scale.name())))
}

fn circle(reproduce: &Reproduce, json: bool) -> Result<()> {
    let study = CircleStudy::new(reproduce.scale, reproduce.seeds);
    let out = folder(reproduce, "circle");
    let name = reproduce.compute.device.as_str();
    let device = device::by_name(name)?;
    let bar = Bar::new(1, "units");
    let train: &Trainer<'_> =
        &|config, folder, base, advance| trainer::train(config, folder, base, name, &STOP, advance);
    let table = run_circle(&study, &out, &run_info(0, name), train, &job(&device, &bar))?;
    bar.finish();
    let page = out.join("report.html");
    circle_report::write(&study, &table, &out, &page)?;
    if json {
        print_json(&table);
    } else {
        print(&circle_report::text_table(&table));
    }
    say(&format!("wrote {} and {}", out.join("table.json").display(), page.display()));
    Ok(())
}

fn inverse(reproduce: &Reproduce, json: bool) -> Result<()> {
    let study = InverseStudy::new(reproduce.scale);
    let out = folder(reproduce, "inverse");
    let name = reproduce.compute.device.as_str();
    let device = device::by_name(name)?;
    let bar = Bar::new(1, "units");
    let train: &Trainer<'_> =
        &|config, folder, base, advance| trainer::train(config, folder, base, name, &STOP, advance);
    let table = run_inverse(&study, &out, &run_info(0, name), train, &job(&device, &bar))?;
    bar.finish();
    let page = out.join("report.html");
    inverse_report::write(&table, &out, &page)?;
    if json {
        print_json(&table);
    } else {
        for (words, lines) in inverse_report::text_tables(&table) {
            print(&format!("{words}\n{}\n", text_table(&lines, 2)));
        }
        inverse_report::verdicts(&table).iter().for_each(|verdict| print(verdict));
    }
    say(&format!("wrote {} and {}", out.join("table.json").display(), page.display()));
    Ok(())
}

fn fields(reproduce: &Reproduce, equation: Equation, json: bool) -> Result<()> {
    let ablation = reproduce.ablation;
    let study = FieldStudy::new(equation, reproduce.scale, reproduce.seeds, ablation);
    let out = folder(reproduce, equation.name());
    let name = reproduce.compute.device.as_str();
    let device = device::by_name(name)?;
    let bar = Bar::new(1, "units");
    let train: &Trainer<'_> =
        &|config, folder, base, advance| trainer::train(config, folder, base, name, &STOP, advance);
    let table = run_fields(&study, &out, &run_info(0, name), train, &job(&device, &bar))?;
    bar.finish();
    let page = fields_report::file(&out, ablation);
    fields_report::write(&study, &table, &out, &page)?;
    if json {
        print_json(&table.condensed());
    } else {
        print(&fields_report::text_table(&study, &table));
    }
    say(&format!("wrote {} and {}", FieldTable::file(&out, ablation).display(), page.display()));
    Ok(())
}
