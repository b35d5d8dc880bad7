//! `softly data export`: a dataset in the layouts of other programs.

use std::path::Path;

use serde_json::json;
use softly::error::{Error, Result};
use softly::format::{AxisGuess, ExportHead, ExportLayout, Exporter, Sample, Scalar};
use softly::{DatasetFolder, Split};
use softly_pde::grid::{Axis, Placement};

use crate::arguments::ExportName;
use crate::output::{print, print_json};

/// Writes the dataset in `folder` to the file `out`: training samples, then held-out ones.
pub fn run(folder: &Path, to: ExportName, out: &Path, json: bool) -> Result<()> {
    let dataset = DatasetFolder::open(folder)?;
    let description = &dataset.description;
    let [rows, cols] = &description.grid.axes[..] else {
        return Err(Error::input(folder.display(), "expected fields on a grid, found single points"));
    };
    let name = folder.file_name().map_or_else(|| "dataset".into(), |name| name.to_string_lossy().into_owned());
    let is_scalar: Vec<bool> = description.fields.iter().map(|field| field.scalar).collect();
    let fields = description.fields.iter().filter(|field| !field.scalar).map(|field| field.name.clone());
    let head = ExportHead {
        name,
        fields: fields.collect(),
        axes: [guess(rows), guess(cols)],
        scalars: scalars(&dataset)?,
        samples: description.train + description.valid,
    };
    let layout = match to {
        ExportName::TheWell => ExportLayout::TheWell,
        ExportName::Pdebench => ExportLayout::PdeBench,
    };
    let mut exporter = Exporter::create(out, layout, &head)?;
    for split in Split::BOTH {
        let mut samples = dataset.samples(split)?;
        while let Some(fields) = samples.next_sample()? {
            let fields = fields.iter().zip(&is_scalar).filter(|(_, scalar)| !**scalar).flat_map(|(field, _)| field);
            let values = fields.map(|&v| v as f32).collect();
            exporter.push(&Sample { values, scalars: Vec::new() })?;
        }
    }
    exporter.finish()?;
    if json {
        print_json(&json!({ "out": out, "samples": head.samples }));
    } else {
        print(&out.display().to_string());
    }
    Ok(())
}

/// The numbers of samples: constants, and the scalars of all samples.
fn scalars(dataset: &DatasetFolder) -> Result<Vec<Scalar>> {
    let description = &dataset.description;
    let constant = |(name, value): (&String, &f64)| Scalar { name: name.clone(), values: vec![*value] };
    let mut scalars: Vec<Scalar> = description.constants.iter().map(constant).collect();
    let channels: Vec<usize> = (0..description.fields.len()).filter(|&c| description.fields[c].scalar).collect();
    let mut values = vec![Vec::new(); channels.len()];
    if !channels.is_empty() {
        for split in Split::BOTH {
            let mut samples = dataset.samples(split)?;
            while let Some(fields) = samples.next_sample()? {
                values.iter_mut().zip(&channels).for_each(|(values, &channel)| values.push(fields[channel][0]));
            }
        }
    }
    let named =
        |(&channel, values): (&usize, Vec<f64>)| Scalar { name: description.fields[channel].name.clone(), values };
    scalars.extend(channels.iter().zip(values).map(named));
    Ok(scalars)
}

fn guess(axis: &Axis) -> AxisGuess {
    let ends = AxisGuess::new(&axis.name, axis.nodes, [axis.first, axis.last], "the dataset");
    AxisGuess { periodic: axis.periodic, cells: axis.placement == Placement::Cells, ..ends }
}
