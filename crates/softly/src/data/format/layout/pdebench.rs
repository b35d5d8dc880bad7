//! PDEBench's two families of HDF5 files.

use super::axis::AxisGuess;
use super::{Contents, Layout, Role, Scalar};
use crate::error::{Error, Result};

/// One array per field, `[N, t, x(, y(, z))]` or Darcy's `[N, x, y]` and `[N, 1, x, y]`, with cell-centred coordinates.
pub fn arrays(contents: &mut Contents) -> Result<Option<Layout>> {
    if contents.array("velocity").is_some_and(|a| a.shape.len() == 5) && contents.array("particles").is_some() {
        return incompressible(contents).map(Some);
    }
    if contents.array("x-coordinate").is_none() {
        return Ok(None);
    }
    let flow: Vec<&str> =
        ["density", "pressure", "Vx", "Vy", "Vz"].into_iter().filter(|name| contents.array(name).is_some()).collect();
    let tensor = contents.shape("tensor");
    let darcy = tensor.len() == 4 && tensor[1] == 1 && contents.shape("nu").len() == 3;
    let (fields, space): (Vec<(&str, &str)>, usize) = match (darcy, tensor.len()) {
        (true, _) => (vec![("nu", "nu"), ("u", "tensor")], 2),
        (false, 3..=5) => (vec![("u", "tensor")], tensor.len() - 2),
        (false, _) if !flow.is_empty() => {
            let rank = contents.shape(flow[0]).len();
            (flow.iter().map(|&name| (name, name)).collect(), rank.saturating_sub(2))
        }
        _ => return Ok(None),
    };
    let names: Vec<&str> = if darcy { vec!["x", "y"] } else { ["t", "x", "y", "z"][..=space.min(3)].to_vec() };
    let main = contents.shape(fields[fields.len() - 1].1);
    if main.len() < names.len() {
        return Ok(None);
    }
    let scalars = scalars(contents);
    let kind = kind(&scalars, darcy, !flow.is_empty());
    let periodic = match kind {
        "Burgers" | "advection" | "reaction–diffusion" => true,
        "compressible flow" => contents.path.to_string_lossy().contains("periodic"),
        _ => false,
    };
    let mut axes = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let nodes = main[main.len() - names.len() + i];
        axes.push(axis(contents, name, &format!("{name}-coordinate"), nodes, periodic)?);
    }
    let mut sources = Vec::new();
    for (name, array) in &fields {
        let rank = contents.shape(array).len();
        let mut roles = vec![Role::Sample];
        roles.extend((0..rank.saturating_sub(1 + names.len())).map(|_| Role::Component(0)));
        roles.extend((0..names.len()).map(Role::Axis));
        if roles.len() != rank {
            return Ok(None);
        }
        sources.push(contents.field(name, array, roles));
    }
    let mut notes = Vec::new();
    if fields.iter().any(|(_, array)| *array == "tensor") {
        notes.push("the array tensor is the field u".into());
    }
    if periodic {
        notes.push(format!("{} of PDEBench is periodic in space", capital(kind)));
    }
    if darcy {
        notes.push(
            "u is the late state of a finite-volume run: at jumps of nu, −divgrad(nu, u) = beta holds better than \
             products of nodal derivatives"
                .into(),
        );
    }
    let samples = main[0];
    let mut scalars = scalars;
    scalars.extend(super::generic::scalars(contents, samples, &axes)?);
    Ok(Some(Layout { name: format!("PDEBench {kind}"), fields: sources, axes, scalars, samples, notes }))
}

fn kind(scalars: &[Scalar], darcy: bool, flow: bool) -> &'static str {
    let has = |name: &str| scalars.iter().any(|s| s.name.eq_ignore_ascii_case(name));
    match () {
        () if darcy => "Darcy",
        () if flow => "compressible flow",
        () if has("nu") && has("rho") => "reaction–diffusion",
        () if has("nu") => "Burgers",
        () if has("beta") => "advection",
        () => "field",
    }
}

fn capital(kind: &str) -> String {
    format!("{}{}", kind[..1].to_uppercase(), &kind[1..])
}

/// The equation's numbers, kept as attributes of the file.
fn scalars(contents: &Contents) -> Vec<Scalar> {
    ["beta", "Nu", "nu", "rho", "eta", "zeta", "M"]
        .into_iter()
        .filter_map(|name| Some(Scalar { name: name.into(), values: vec![contents.attribute(name)?.number()?] }))
        .collect()
}

/// An axis of `nodes` entries with coordinates in `array`: cell centres in space, frames in time, of which the list may
/// have one too many.
fn axis(contents: &mut Contents, name: &str, array: &str, nodes: usize, periodic: bool) -> Result<AxisGuess> {
    match contents.numbers(array)? {
        Some(all) if all.len() == nodes || (name == "t" && all.len() > nodes) => {
            let (space, surplus) = (name != "t", all.len() - nodes);
            let mut from = format!("{array}, {}", if space { "cell centres" } else { "frames" });
            if surplus > 0 {
                from = format!("the first {nodes} of {} entries of {array}", all.len());
            }
            Ok(AxisGuess::through(name, &all[..nodes], periodic && space, space, from))
        }
        Some(all) => Err(Error::input(
            format!("{}:{array}", contents.path.display()),
            format!("expected {nodes} coordinates as the data have along {name}, found {}", all.len()),
        )
        .hint("the file is not laid out as PDEBench's: name the fields by --field NAME=FILE:ARRAY --axes …")),
        None => {
            let ends = if name == "t" { [0.0, (nodes.max(2) - 1) as f64] } else { [0.0, 1.0] };
            let from = format!("assumed: the file has no {array}");
            Ok(AxisGuess { cells: name != "t", ..AxisGuess::new(name, nodes, ends, from) })
        }
    }
}

/// Incompressible flow: `velocity` `[N, t, x, y, 2]`, `particles` `[N, t, x, y, 1]`, `force` `[N, x, y, 2]` and `t`
/// `[N, t]`.
fn incompressible(contents: &mut Contents) -> Result<Layout> {
    let shape = contents.shape("velocity");
    let unit = |name, nodes| AxisGuess {
        cells: true,
        ..AxisGuess::new(name, nodes, [0.0, 1.0], "PDEBench's unit square; the file has no coordinates")
    };
    let times = contents.numbers("t")?.filter(|t| t.len() >= shape[1] && shape[1] > 1);
    let t = match times {
        Some(all) => AxisGuess::through("t", &all[..shape[1]], false, false, "t of the first sample"),
        None => AxisGuess::new("t", shape[1], [0.0, (shape[1].max(2) - 1) as f64], "assumed: frames are one apart"),
    };
    let axes = vec![t, unit("x", shape[2]), unit("y", shape[3])];
    let moving = |k| vec![Role::Sample, Role::Axis(0), Role::Axis(1), Role::Axis(2), Role::Component(k)];
    let mut fields = vec![
        contents.field("velocity_x", "velocity", moving(0)),
        contents.field("velocity_y", "velocity", moving(1)),
        contents.field("particles", "particles", moving(0)),
    ];
    if contents.shape("force").len() == 4 {
        let still = |k| vec![Role::Sample, Role::Axis(1), Role::Axis(2), Role::Component(k)];
        fields.push(contents.field("force_x", "force", still(0)));
        fields.push(contents.field("force_y", "force", still(1)));
    }
    let name = "PDEBench incompressible flow".into();
    Ok(Layout { name, fields, axes, scalars: Vec::new(), samples: shape[0], notes: Vec::new() })
}

/// One group per sample, `0000`, `0001`, …, each with `data` `[t, x, y, c]` (or `[t, x, c]`) and `grid/{x, y, t}`.
pub fn groups(contents: &mut Contents) -> Result<Option<Layout>> {
    let groups: Vec<String> = contents
        .arrays()
        .iter()
        .filter_map(|a| a.name.strip_suffix("/data"))
        .filter(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()))
        .map(String::from)
        .collect();
    let Some(first) = groups.first().cloned() else {
        return Ok(None);
    };
    let shape = contents.shape(&format!("{first}/data"));
    let names = match shape.len() {
        3 => vec!["t", "x"],
        4 => vec!["t", "x", "y"],
        _ => return Ok(None),
    };
    for group in &groups {
        let other = contents.shape(&format!("{group}/data"));
        if other != shape {
            let place = format!("{}:{group}/data", contents.path.display());
            return Err(Error::input(place, format!("expected the shape {shape:?} of {first}/data, found {other:?}")));
        }
    }
    let mut axes = Vec::new();
    for (i, name) in names.iter().enumerate() {
        axes.push(axis(contents, name, &format!("{first}/grid/{name}"), shape[i], false)?);
    }
    let components = shape[shape.len() - 1];
    super::check_components(contents, &format!("{first}/data"), components)?;
    let water = contents.path.to_string_lossy().contains("rdb");
    let (kind, known): (_, &[&str]) = match (components, names.len()) {
        (1, 3) if water => ("shallow water", &["h"]),
        (1, 2) => ("diffusion–sorption", &["u"]),
        (2, 3) => ("diffusion–reaction", &["u", "v"]),
        _ => ("groups", &[]),
    };
    let mut fields = Vec::new();
    for k in 0..components {
        let name = known
            .get(k)
            .map_or_else(|| if components == 1 { "u".into() } else { format!("u_{k}") }, ToString::to_string);
        let mut roles: Vec<Role> = (0..names.len()).map(Role::Axis).collect();
        roles.push(Role::Component(k));
        let mut field = contents.field(&name, &format!("{first}/data"), roles);
        let piece = field.pieces[0].clone();
        field.pieces = groups.iter().map(|g| super::Piece { array: format!("{g}/data"), ..piece.clone() }).collect();
        fields.push(field);
    }
    let scalars = group_scalars(contents, &groups)?;
    let notes = vec![format!("each of the {} groups is a sample", groups.len())];
    let name = format!("PDEBench {kind}");
    Ok(Some(Layout { name, fields, axes, scalars, samples: groups.len(), notes }))
}

/// The equation's numbers in the groups: numeric attributes, and those in `config`, a YAML text.
fn group_scalars(contents: &Contents, groups: &[String]) -> Result<Vec<Scalar>> {
    let known = ["Du", "Dv", "k", "D", "por", "rho_s", "k_f", "n_f"];
    let mut scalars: Vec<Scalar> = known.map(|name| Scalar { name: name.into(), values: Vec::new() }).to_vec();
    for (i, group) in groups.iter().enumerate() {
        let attributes = contents.file.group_attributes(group)?;
        if i == 0 {
            let own = attributes.iter().filter(|(name, value)| {
                value.number().is_some() && !known.contains(&super::generic::identifier(name).as_str())
            });
            scalars.extend(own.map(|(name, _)| Scalar { name: name.clone(), values: Vec::new() }));
        }
        let text = super::find(&attributes, "config").map(|v| v.texts().join("\n")).unwrap_or_default();
        for scalar in &mut scalars {
            let own = super::find(&attributes, &scalar.name).and_then(super::Value::number);
            let values = text.lines().filter_map(|line| line.trim().split_once(':'));
            let mut values = values.filter(|(key, _)| *key == scalar.name);
            scalar.values.extend(own.or_else(|| values.find_map(|(_, v)| v.trim().parse::<f64>().ok())));
        }
    }
    scalars.retain(|s| s.values.len() == groups.len());
    for scalar in &mut scalars {
        scalar.name = super::generic::identifier(&scalar.name);
        if scalar.values.iter().all(|v| *v == scalar.values[0]) {
            scalar.values.truncate(1);
        }
    }
    Ok(scalars)
}
