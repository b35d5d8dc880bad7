//! The Well's HDF5 files: `t0_fields` (scalars), `t1_fields` (vectors) and `t2_fields` (tensors) of named dimensions.

use super::axis::{AxisGuess, begins_half_a_cell_from_zero};
use super::{Contents, Layout, Role, Scalar, Value, find};
use crate::error::{Error, Result};

/// The layout of The Well.
pub fn recognise(contents: &mut Contents) -> Result<Option<Layout>> {
    let is_field = |name: &str| ["t0_fields/", "t1_fields/", "t2_fields/"].iter().any(|group| name.starts_with(group));
    if !contents.arrays().iter().any(|a| is_field(&a.name)) || contents.array("dimensions/time").is_none() {
        return Ok(None);
    }
    let attributes = contents.file.group_attributes("dimensions")?;
    let dims = find(&attributes, "spatial_dims").map(|v| v.texts().to_vec()).unwrap_or_default();
    if !(1..=3).contains(&dims.len()) {
        let place = format!("{}:dimensions", contents.path.display());
        let problem = "expected one to three names in the attribute spatial_dims, as The Well's format has them";
        return Err(Error::input(place, format!("{problem}, found {}", dims.len())));
    }
    let periodic = periodic_dims(contents)?;
    let mut notes = Vec::new();
    let mut axes = vec![time_axis(contents)?];
    for dim in &dims {
        axes.push(space_axis(contents, dim, periodic.contains(dim), &mut notes)?);
    }
    let mut fields = Vec::new();
    for group in ["t0_fields", "t1_fields", "t2_fields"] {
        for name in field_names(contents, group)? {
            add_fields(contents, &name, &dims, &mut fields)?;
        }
    }
    let samples = fields.iter().flat_map(|f: &super::FieldSource| &f.pieces).map(|p| p.samples).max().unwrap_or(0);
    // Fields that are the same in all samples belong to all of them.
    for field in fields.iter_mut().filter(|f| !f.roles.contains(&Role::Sample)) {
        field.pieces[0].samples = samples;
    }
    let scalars = scalars(contents, samples, &mut notes)?;
    if let Some(Value::Texts(names)) = contents.attribute("dataset_name") {
        notes.insert(0, format!("dataset {}", names.join(" ")));
    }
    if let Some(types) = boundaries(contents) {
        notes.push(types);
    }
    Ok(Some(Layout { name: "The Well".into(), fields, axes, scalars, samples, notes }))
}

/// The arrays of a group, in the order of its attribute `field_names`.
fn field_names(contents: &Contents, group: &str) -> Result<Vec<String>> {
    let mut names: Vec<String> =
        contents.arrays().iter().map(|a| a.name.clone()).filter(|n| n.starts_with(&format!("{group}/"))).collect();
    if !names.is_empty() {
        let attributes = contents.file.group_attributes(group)?;
        let order = find(&attributes, "field_names").map(|v| v.texts().to_vec()).unwrap_or_default();
        names.sort_by_key(|name| order.iter().position(|o| name[group.len() + 1..] == *o).unwrap_or(order.len()));
    }
    Ok(names)
}

/// The fields of an array: its components, named after the dimensions.
fn add_fields(contents: &Contents, array: &str, dims: &[String], fields: &mut Vec<super::FieldSource>) -> Result<()> {
    let Some(info) = contents.array(array) else {
        return Ok(());
    };
    let flag = |name: &str| info.attribute(name).and_then(Value::number) != Some(0.0);
    let varying = info.attribute("dim_varying").map(|v| v.numbers().to_vec()).unwrap_or_default();
    let mut roles = Vec::new();
    if flag("sample_varying") {
        roles.push(Role::Sample);
    }
    if flag("time_varying") {
        roles.push(Role::Axis(0));
    }
    roles.extend((0..dims.len()).filter(|&d| varying.get(d) != Some(&0.0)).map(|d| Role::Axis(d + 1)));
    let rank = match &array[..2] {
        "t0" => 0,
        "t1" => 1,
        _ => 2,
    };
    if roles.len() + rank != info.shape.len() {
        let problem =
            format!("expected {} axes as its attributes say, found the shape {:?}", roles.len() + rank, info.shape);
        return Err(Error::input(format!("{}:{array}", contents.path.display()), problem));
    }
    let name = array.rsplit('/').next().unwrap_or(array);
    let d = dims.len();
    for component in 0..d.pow(rank as u32) {
        let indices = [component / d, component % d];
        let indices = &indices[2 - rank..];
        let full_name = indices.iter().fold(name.to_string(), |name, &k| format!("{name}_{}", dims[k]));
        let mut roles = roles.clone();
        roles.extend(indices.iter().map(|&k| Role::Component(k)));
        fields.push(contents.field(&full_name, array, roles));
    }
    Ok(())
}

fn time_axis(contents: &mut Contents) -> Result<AxisGuess> {
    let shape = contents.shape("dimensions/time");
    let times = contents.numbers("dimensions/time")?.unwrap_or_default();
    // Times that differ between samples are listed per sample; the first sample's are taken.
    let frames = shape.last().copied().unwrap_or(0);
    match times.get(..frames) {
        Some(times) if frames > 0 => Ok(AxisGuess::through("t", times, false, false, "dimensions/time")),
        _ => Err(Error::input(format!("{}:dimensions/time", contents.path.display()), "expected times, found none")),
    }
}

fn space_axis(contents: &mut Contents, dim: &str, periodic: bool, notes: &mut Vec<String>) -> Result<AxisGuess> {
    let array = format!("dimensions/{dim}");
    let coordinates = contents.numbers(&array)?.filter(|c| !c.is_empty());
    let shape = contents.shape(&array);
    let Some(coordinates) = coordinates.filter(|_| shape.len() == 1) else {
        let place = format!("{}:{array}", contents.path.display());
        return Err(Error::input(place, format!("expected a list of coordinates, found the shape {shape:?}"))
            .hint("grids that change between samples or in time cannot be imported"));
    };
    let cells = begins_half_a_cell_from_zero(&coordinates);
    if cells {
        notes.push(format!("{dim} begins half a spacing after 0, so its coordinates are taken for cell centres"));
    }
    Ok(AxisGuess::through(dim, &coordinates, periodic, cells, array))
}

/// The names of boundary conditions, which are groups with datasets.
fn conditions(contents: &Contents) -> Vec<String> {
    let mut names: Vec<String> = contents
        .arrays()
        .iter()
        .filter_map(|a| a.name.strip_prefix("boundary_conditions/")?.split_once('/'))
        .map(|(group, _)| format!("boundary_conditions/{group}"))
        .collect();
    names.dedup();
    names
}

fn periodic_dims(contents: &Contents) -> Result<Vec<String>> {
    let mut dims = Vec::new();
    for group in conditions(contents) {
        let attributes = contents.file.group_attributes(&group)?;
        let kind = find(&attributes, "bc_type").map(|v| v.texts().join("")).unwrap_or_default();
        if kind.eq_ignore_ascii_case("periodic") {
            dims.extend(find(&attributes, "associated_dims").map(|v| v.texts().to_vec()).unwrap_or_default());
        }
    }
    Ok(dims)
}

/// The conditions that are not periodic, for the user to put into an equation.
fn boundaries(contents: &Contents) -> Option<String> {
    let mut parts = Vec::new();
    for group in conditions(contents) {
        let attributes = contents.file.group_attributes(&group).ok()?;
        let text = |name| find(&attributes, name).map(|v| v.texts().join(", ")).unwrap_or_default();
        if !text("bc_type").eq_ignore_ascii_case("periodic") {
            parts.push(format!("{} at the ends of {}", text("bc_type").to_lowercase(), text("associated_dims")));
        }
    }
    (!parts.is_empty()).then(|| format!("boundary conditions: {}", parts.join("; ")))
}

/// Numbers in `/scalars`: one for the file, or one per sample.
fn scalars(contents: &mut Contents, samples: usize, notes: &mut Vec<String>) -> Result<Vec<Scalar>> {
    let names: Vec<String> =
        contents.arrays().iter().filter_map(|a| a.name.strip_prefix("scalars/")).map(String::from).collect();
    let mut scalars = Vec::new();
    for name in names {
        let mut values = contents.numbers(&format!("scalars/{name}"))?.unwrap_or_default();
        // The attribute of the same name may be more precise than the array.
        if let ([value], Some(precise)) = (&mut values[..], contents.attribute(&name).and_then(Value::number)) {
            *value = precise;
        }
        if values.len() == 1 || values.len() == samples {
            scalars.push(Scalar { name: super::generic::identifier(&name), values });
        } else {
            notes.push(format!("the scalar {name} changes in time and is left out"));
        }
    }
    Ok(scalars)
}
