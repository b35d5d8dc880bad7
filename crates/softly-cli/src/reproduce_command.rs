//! `softly reproduce`: a whole study with one command.

use std::path::PathBuf;

use softly::error::{Error, Result};
use softly::{circle_study, device, field_run};
use softly_studies::{Ablation, CircleStudy, Equation, FieldStudy, FieldTable, StudyScale};

use crate::arguments::{AblationName, Reproduce, ScaleName, Study};
use crate::commands::{STOP, catch_interrupt, print, print_json, run_info};
use crate::progress::{Bar, say};
use crate::{circle_report, field_report, trainer};

/// Runs the study, or goes on with it, and writes its table and page.
pub fn run(reproduce: &Reproduce, json: bool) -> Result<()> {
    let scale = match reproduce.scale {
        ScaleName::Demo => StudyScale::Demo,
        ScaleName::Cpu => StudyScale::Cpu,
        ScaleName::Paper => StudyScale::Paper,
    };
    if matches!(reproduce.study, Study::Circle) && reproduce.ablation.is_some() {
        return Err(Error::input("--study", "the study of the circle has no ablations")
            .hint("they go with `reproduce darcy` and `reproduce helmholtz`"));
    }
    catch_interrupt();
    match reproduce.study {
        Study::Circle => circle(reproduce, scale, json),
        Study::Darcy => field(reproduce, Equation::Darcy, scale, json),
        Study::Helmholtz => field(reproduce, Equation::Helmholtz, scale, json),
    }
}

fn folder(reproduce: &Reproduce, study: &str, scale: StudyScale) -> PathBuf {
    reproduce.out.clone().unwrap_or_else(|| PathBuf::from(format!("runs/{study}-{}", scale.name())))
}

fn circle(reproduce: &Reproduce, scale: StudyScale, json: bool) -> Result<()> {
    let study = CircleStudy::new(scale, reproduce.seeds);
    let out = folder(reproduce, "circle", scale);
    let name = reproduce.place.device.as_str();
    let device = device::by_name(name)?;
    let bar = Bar::new(1, "units");
    let train: &circle_study::Trainer<'_> =
        &|config, folder, advance| trainer::train(config, folder, None, name, &STOP, advance);
    let table = circle_study::run(&study, &out, &device, &run_info(0, name), train, &STOP, &bar)?;
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

fn field(reproduce: &Reproduce, equation: Equation, scale: StudyScale, json: bool) -> Result<()> {
    let ablation = reproduce.ablation.map(|name| match name {
        AblationName::Noise => Ablation::Noise,
        AblationName::Scale => Ablation::Scale,
        AblationName::Joint => Ablation::Joint,
        AblationName::Gamma => Ablation::Gamma,
        AblationName::Sampling => Ablation::Sampling,
    });
    let study = FieldStudy::new(equation, scale, reproduce.seeds, ablation);
    let out = folder(reproduce, equation.name(), scale);
    let name = reproduce.place.device.as_str();
    let device = device::by_name(name)?;
    let bar = Bar::new(1, "units");
    let train: &field_run::Trainer<'_> =
        &|config, folder, base, advance| trainer::train(config, folder, base, name, &STOP, advance);
    let table = field_run::run(&study, &out, &device, &run_info(0, name), train, &STOP, &bar)?;
    bar.finish();
    let page = field_report::file(&out, ablation);
    field_report::write(&study, &table, &out, &page)?;
    if json {
        print_json(&table.condensed());
    } else {
        print(&field_report::text_table(&study, &table));
    }
    say(&format!("wrote {} and {}", FieldTable::file(&out, ablation).display(), page.display()));
    Ok(())
}
