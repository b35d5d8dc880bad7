//! Completing a dataset folder that a user wrote, where it is: its arrays stay, its `dataset.toml` gets all that is missing.

use std::path::Path;

use crate::data::draft::HandMade;
use crate::data::fingerprint::Blocks;
use crate::data::folder::{DatasetFolder, Description, FORMAT, FieldEntry, SCALARS, Samples};
use crate::data::format::ImportOptions;
use crate::data::generator::FieldSpec;
use crate::data::import::Imported;
use crate::data::split::Split;
use crate::data::writer::{Source, write_beside, write_description};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::npy;
use crate::statistics::Moments;

/// Completes the dataset in `folder`: arrays beside its `dataset.toml` are copied to `train` and `valid`, the last share `valid`
/// of the samples; arrays in `train` and `valid` are read and left as they are. Notes say how the folder is taken.
pub fn complete(
    folder: &Path,
    options: &ImportOptions,
    valid: f64,
    job: &Job<'_>,
) -> Result<(DatasetFolder, Vec<String>)> {
    let hand_made = HandMade::open(folder)?;
    let source = Imported::of_folder(&hand_made, options, valid)?;
    let made = if hand_made.train.is_some() {
        check_arrays(&hand_made, &source, options)?;
        describe(folder, &hand_made, &source, job)?
    } else {
        write_beside(&source, folder, job)?
    };
    Ok((made, source.notes))
}

/// Refuses arrays that a dataset cannot hold as they are.
fn check_arrays(hand_made: &HandMade, source: &Imported, options: &ImportOptions) -> Result<()> {
    let elsewhere = |place: &dyn std::fmt::Display, problem: String| {
        Err(Error::input(place, problem)
            .hint("name another folder for the dataset: --out DIR; this one stays as it is"))
    };
    let ImportOptions { stride, slice, frames, drop_nan, .. } = options;
    if !stride.is_empty() || !slice.is_empty() || frames.is_some() || *drop_nan {
        return elsewhere(
            &"data import",
            "arrays in train and valid are not changed, but options take parts of them".into(),
        );
    }
    for file in &hand_made.files {
        let shape = match npy::Reader::open(file) {
            Ok(reader) => reader.shape,
            Err(Error::Input { problem, .. }) => return elsewhere(&file.display(), problem),
            Err(other) => return Err(other),
        };
        let grid = source.grid();
        if shape.len() == 3 && shape[1..] != [grid.rows(), grid.cols()] {
            let problem = format!("the grid is {} × {}, the array has the shape {shape:?}", grid.rows(), grid.cols());
            return elsewhere(
                &file.display(),
                format!("{problem}: the last entry of a periodic axis repeats the first"),
            );
        }
    }
    let columns = hand_made.table().len();
    if columns > 0 && options.scalars.is_some() {
        return elsewhere(&"--scalars", "scalars.npy is not changed, but the option takes part of it".into());
    }
    if columns > 0 && hand_made.layout.scalars.len() > columns {
        let problem = "some numbers of samples are in scalars.npy and some in files of their own";
        return elsewhere(&"data import", problem.into());
    }
    Ok(())
}

/// Writes the description of arrays in `train` and `valid`, and the table of scalars if they have files of their own.
fn describe(folder: &Path, hand_made: &HandMade, source: &Imported, job: &Job<'_>) -> Result<DatasetFolder> {
    let plan = source.plan();
    let table = hand_made.table();
    let has_table = !table.is_empty();
    let scalars = if has_table { table } else { source.scalars() };
    if !has_table && !scalars.is_empty() {
        for (split, count) in Split::BOTH.into_iter().zip([plan.train, plan.valid]) {
            let columns: Vec<Vec<f64>> = (0..scalars.len()).map(|k| source.scalar_values(k, split)).collect();
            let values = (0..count).flat_map(|i| columns.iter().map(move |column| column[i] as f32));
            let path = folder.join(split.name()).join(format!("{SCALARS}.npy"));
            npy::write_f32(&path, &[count, scalars.len()], values)?;
        }
    }
    let fields = source.fields().into_iter().map(|field| (field, false));
    let entry = |(field, scalar): (FieldSpec, bool)| FieldEntry {
        name: field.name,
        quantity: field.quantity,
        unit: field.unit,
        scalar,
        statistics: Moments::default().statistics(),
    };
    let grid = source.grid();
    // Columns of a table stay columns, even if they do not vary.
    let mut constants = source.constants();
    constants.retain(|name, _| scalars.iter().all(|scalar| scalar.name != *name));
    let mut description = Description {
        format: FORMAT,
        train: plan.train,
        valid: plan.valid,
        seed: plan.seed,
        hash: String::new(),
        constants,
        blocks: Blocks::new(grid.len()),
        grid,
        fields: fields.chain(scalars.into_iter().map(|scalar| (scalar, true))).map(entry).collect(),
        generator: plan.generator.clone(),
        origin: hand_made.draft.origin.clone(),
        equation: source.equation(),
    };
    job.reporter.begin((plan.train + plan.valid) as u64, 0);
    for split in Split::BOTH {
        measure(folder, &mut description, split, job)?;
    }
    description.hash = description.blocks.hash();
    write_description(folder, &description)?;
    DatasetFolder::open(folder)
}

/// Finds the hashes of a split's files and, of training samples, the statistics.
fn measure(folder: &Path, description: &mut Description, split: Split, job: &Job<'_>) -> Result<()> {
    let mut samples = Samples::open(folder, description, split, false)?;
    let mut moments = vec![Moments::default(); description.fields.len()];
    while let Some(sample) = samples.next_sample()? {
        for (sum, field) in moments.iter_mut().zip(&sample) {
            *sum = sum.merged(Moments::of(field.iter().map(|&v| f64::from(v as f32))));
        }
        job.reporter.advance(1);
        job.go_on("the arrays are as they were; run the same command again")?;
    }
    for ((name, _), hashes) in description.files().into_iter().zip(samples.hashes()) {
        description.blocks.insert(split, &name, hashes);
    }
    if split == Split::Train {
        for (field, moments) in description.fields.iter_mut().zip(moments) {
            field.statistics = moments.statistics();
        }
    }
    Ok(())
}
