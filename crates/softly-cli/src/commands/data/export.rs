//! `softly data export`: a dataset in the layouts of other programs.

use std::path::Path;

use serde_json::json;
use softly::error::{Error, Result};
use softly::format::{AxisGuess, ExportHead, ExportLayout, Exporter, Sample};
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
    let head = ExportHead {
        name,
        fields: dataset.fields(),
        axes: [guess(rows), guess(cols)],
        scalars: Vec::new(),
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
            let values = fields.iter().flatten().map(|&v| v as f32).collect();
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

fn guess(axis: &Axis) -> AxisGuess {
    let ends = AxisGuess::new(&axis.name, axis.nodes, [axis.first, axis.last], "the dataset");
    AxisGuess { periodic: axis.periodic, cells: axis.placement == Placement::Cells, ..ends }
}
