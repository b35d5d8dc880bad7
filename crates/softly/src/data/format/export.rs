//! Datasets written back in the layouts of The Well and PDEBench.

use std::fs;
use std::path::{Path, PathBuf};

use super::hdf5_writer::{Attribute, Hdf5Writer, Node};
use super::layout::{AxisGuess, Scalar};
use super::source::Sample;
use crate::error::{Error, Result};

/// A layout to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportLayout {
    /// The Well: `t0_fields/<name>` `[N, t, x(, y)]` with dimensions, boundary conditions and scalars.
    TheWell,
    /// PDEBench: `tensor` (the field u) or `<name>` `[N, t, x]` or `[N, x, y]` with coordinates.
    PdeBench,
}

/// What is exported.
#[derive(Debug, Clone)]
pub struct ExportHead {
    /// Name of the dataset.
    pub name: String,
    /// The fields.
    pub fields: Vec<String>,
    /// Rows and columns of the grid.
    pub axes: [AxisGuess; 2],
    /// Numbers of samples.
    pub scalars: Vec<Scalar>,
    /// Number of samples.
    pub samples: usize,
}

/// A file under way; it gets its name when it is complete.
pub struct Exporter {
    writer: Hdf5Writer,
    path: PathBuf,
    partial: PathBuf,
    /// Path of each field's array.
    arrays: Vec<String>,
    area: usize,
    samples: usize,
    written: usize,
}

impl Exporter {
    /// Begins a file.
    pub fn create(path: &Path, layout: ExportLayout, head: &ExportHead) -> Result<Self> {
        if head.axes[1].name == "t" {
            let problem = format!("expected t as the first axis, found {}, t", head.axes[0].name);
            return Err(Error::input(path.display(), problem).hint("import the data with --axes t,x"));
        }
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let (root, lists, arrays) = match layout {
            ExportLayout::TheWell => the_well(head),
            ExportLayout::PdeBench => pdebench(head),
        };
        let failed = Error::io("write", path);
        let writer = Hdf5Writer::create(&partial, &root).and_then(|mut writer| {
            lists.iter().try_for_each(|(array, numbers)| writer.write(array, 0, numbers))?;
            Ok(writer)
        });
        let writer = writer.map_err(failed)?;
        let area = head.axes[0].nodes * head.axes[1].nodes;
        Ok(Self { writer, path: path.to_path_buf(), partial, arrays, area, samples: head.samples, written: 0 })
    }

    /// Writes the next sample, `[C, H, W]`.
    pub fn push(&mut self, sample: &Sample) -> Result<()> {
        for (array, field) in self.arrays.iter().zip(sample.values.chunks(self.area)) {
            self.writer.write(array, self.written * self.area, field).map_err(Error::io("write", &self.path))?;
        }
        self.written += 1;
        Ok(())
    }

    /// Completes the file.
    pub fn finish(self) -> Result<()> {
        if self.written != self.samples {
            let why = format!("expected {} samples, got {}", self.samples, self.written);
            return Err(Error::Failed { what: format!("writing {}", self.path.display()), why });
        }
        self.writer.finish().map_err(Error::io("write", &self.path))?;
        fs::rename(&self.partial, &self.path).map_err(Error::io("write", &self.path))
    }
}

/// A file's tree, its arrays of known numbers, and the paths of its fields.
type Tree = (Node, Vec<(String, Vec<f32>)>, Vec<String>);

fn coordinates(axis: &AxisGuess) -> Vec<f32> {
    (0..axis.nodes).map(|i| axis.coordinate(i as f64) as f32).collect()
}

fn the_well(head: &ExportHead) -> Tree {
    let in_time = head.axes[0].name == "t";
    let space = if in_time { &head.axes[1..] } else { &head.axes[..] };
    let truth = |v| Attribute::Truth(v);
    let varying = |node: Node, sample| node.with("sample_varying", truth(sample)).with("time_varying", truth(false));
    let names: Vec<String> = space.iter().map(|a| a.name.clone()).collect();
    let mut lists = Vec::new();
    let mut dimensions = Node::default().with("spatial_dims", Attribute::Texts(names));
    let times = if in_time { coordinates(&head.axes[0]) } else { vec![0.0] };
    let frames = times.len();
    for (name, values) in [("time", times)].into_iter().chain(space.iter().map(|a| (a.name.as_str(), coordinates(a)))) {
        dimensions.add(name, varying(Node::array(&[values.len()]), false));
        lists.push((format!("dimensions/{name}"), values));
    }
    let mut conditions = Node::default();
    for axis in space {
        let kind = if axis.periodic { "PERIODIC" } else { "OPEN" };
        let condition = Node::group(vec![("mask", Node::array(&[axis.nodes])), ("values", Node::array(&[2]))])
            .with("bc_type", Attribute::Text(kind.into()))
            .with("associated_dims", Attribute::Texts(vec![axis.name.clone()]))
            .with("associated_fields", Attribute::Texts(Vec::new()));
        conditions.add(&format!("{}_{}", axis.name, kind.to_lowercase()), varying(condition, false));
        let mut mask = vec![0.0; axis.nodes];
        (mask[0], mask[axis.nodes - 1]) = (1.0, 1.0);
        lists.push((format!("boundary_conditions/{}_{}/mask", axis.name, kind.to_lowercase()), mask));
    }
    let mut scalars = Node::default();
    let mut parameters = Vec::new();
    for scalar in &head.scalars {
        let many = scalar.values.len() > 1;
        let shape = if many { vec![head.samples] } else { Vec::new() };
        scalars.add(&scalar.name, varying(Node::array(&shape), many));
        lists.push((format!("scalars/{}", scalar.name), scalar.values.iter().map(|&v| v as f32).collect()));
        parameters.push(scalar.name.clone());
    }
    let mut shape = vec![head.samples, frames];
    shape.extend(space.iter().map(|a| a.nodes));
    let mut fields = Node::default().with("field_names", Attribute::Texts(head.fields.clone()));
    for name in &head.fields {
        let field = Node::array(&shape).with("dim_varying", Attribute::Truths(vec![true; space.len()]));
        fields.add(name, field.with("sample_varying", truth(true)).with("time_varying", truth(true)));
    }
    let none = || Node::default().with("field_names", Attribute::Texts(Vec::new()));
    let mut root = Node::group(vec![
        ("boundary_conditions", conditions),
        ("dimensions", dimensions),
        ("scalars", scalars.with("field_names", Attribute::Texts(parameters.clone()))),
        ("t0_fields", fields),
        ("t1_fields", none()),
        ("t2_fields", none()),
    ])
    .with("dataset_name", Attribute::Text(head.name.clone()))
    .with("grid_type", Attribute::Text("cartesian".into()))
    .with("n_spatial_dims", Attribute::Count(space.len() as i64))
    .with("n_trajectories", Attribute::Count(head.samples as i64))
    .with("simulation_parameters", Attribute::Texts(parameters));
    for scalar in head.scalars.iter().filter(|s| s.values.len() == 1) {
        root = root.with(&scalar.name, Attribute::Number(scalar.values[0]));
    }
    (root, lists, head.fields.iter().map(|name| format!("t0_fields/{name}")).collect())
}

fn pdebench(head: &ExportHead) -> Tree {
    let [rows, columns] = [head.axes[0].nodes, head.axes[1].nodes];
    let darcy = head.axes[0].name != "t" && head.fields.iter().any(|f| f == "nu");
    let mut root = Node::default();
    let mut lists = Vec::new();
    let mut arrays = Vec::new();
    for name in &head.fields {
        let array = if name == "u" { "tensor" } else { name };
        // Darcy's solution has an axis of one frame.
        let shape =
            if darcy && name == "u" { vec![head.samples, 1, rows, columns] } else { vec![head.samples, rows, columns] };
        root.add(array, Node::array(&shape));
        arrays.push(array.to_string());
    }
    for axis in &head.axes {
        root.add(&format!("{}-coordinate", axis.name), Node::array(&[axis.nodes]));
        lists.push((format!("{}-coordinate", axis.name), coordinates(axis)));
    }
    for scalar in &head.scalars {
        if scalar.values.len() == 1 {
            root = root.with(&scalar.name, Attribute::Number(scalar.values[0]));
        } else {
            root.add(&scalar.name, Node::array(&[head.samples]));
            lists.push((scalar.name.clone(), scalar.values.iter().map(|&v| v as f32).collect()));
        }
    }
    (root, lists, arrays)
}
