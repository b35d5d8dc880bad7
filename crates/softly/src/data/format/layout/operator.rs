//! Files of operator learning: FNO's and DiffusionPDE's `.mat`, PIDM's CSV.

use super::axis::AxisGuess;
use super::{Contents, FieldSource, Layout, Role};
use crate::error::Result;

/// A known set of arrays `[N, x, y]`, with the names of their fields.
struct Pair {
    name: &'static str,
    arrays: [(&'static str, &'static str); 2],
    note: &'static str,
}

const PAIRS: [Pair; 4] = [
    Pair { name: "FNO Darcy", arrays: [("coeff", "a"), ("sol", "u")], note: "a is coeff, u is sol" },
    Pair {
        name: "DiffusionPDE Darcy",
        arrays: [("thresh_a_data", "a"), ("thresh_p_data", "u")],
        note: "a is thresh_a_data, u is thresh_p_data",
    },
    Pair {
        name: "DiffusionPDE Helmholtz",
        arrays: [("f_data", "f"), ("psi_data", "psi")],
        note: "f is f_data, psi is psi_data",
    },
    Pair {
        name: "DiffusionPDE Poisson",
        arrays: [("f_data", "f"), ("phi_data", "phi")],
        note: "f is f_data, phi is phi_data",
    },
];

const SQUARE: &str = "the unit square of this benchmark; the file has no coordinates";

/// The layouts of operator learning.
pub fn recognise(contents: &mut Contents) -> Result<Option<Layout>> {
    for pair in &PAIRS {
        let shapes = pair.arrays.map(|(array, _)| contents.shape(array));
        if shapes[0].len() == 3 && shapes[0] == shapes[1] {
            let roles = vec![Role::Sample, Role::Axis(0), Role::Axis(1)];
            let fields = pair.arrays.iter().map(|(array, name)| contents.field(name, array, roles.clone())).collect();
            let axes = [("x", 1), ("y", 2)].map(|(name, i)| AxisGuess::new(name, shapes[0][i], [0.0, 1.0], SQUARE));
            return Ok(Some(layout(pair.name, fields, axes.to_vec(), shapes[0][0], pair.note)));
        }
    }
    if let Some(layout) = navier_stokes(contents)? {
        return Ok(Some(layout));
    }
    Ok(burgers(contents).or_else(|| table(contents)))
}

fn layout(name: &str, fields: Vec<FieldSource>, axes: Vec<AxisGuess>, samples: usize, note: &str) -> Layout {
    Layout { name: name.into(), fields, axes, scalars: Vec::new(), samples, notes: vec![note.into()] }
}

/// Vorticity: `a` `[N, x, y]` at first and `u` `[N, x, y, t]` later, periodic; `t` lists the times.
fn navier_stokes(contents: &mut Contents) -> Result<Option<Layout>> {
    let (a, u) = (contents.shape("a"), contents.shape("u"));
    if a.len() != 3 || u.len() != 4 || u[..3] != a[..] || u[3] == 0 {
        return Ok(None);
    }
    let frames = u[3];
    let times = contents.numbers("t")?.filter(|t| t.len() == frames && frames > 1);
    let t = match times {
        Some(times) => AxisGuess::through("t", &times, false, false, "t"),
        None => AxisGuess::new("t", frames, [1.0, frames.max(2) as f64], "assumed: frames are one apart"),
    };
    let space = |name, nodes| AxisGuess { periodic: true, ..AxisGuess::new(name, nodes, [0.0, 1.0], SQUARE) };
    let axes = vec![space("x", a[1]), space("y", a[2]), t];
    let roles = vec![Role::Sample, Role::Axis(0), Role::Axis(1), Role::Axis(2)];
    let fields = vec![contents.field("a", "a", roles[..3].to_vec()), contents.field("u", "u", roles)];
    let note = format!(
        "a is the vorticity at first and u later, on a periodic square; --frames {0}-{0} keeps the pairs of a and the \
         last u",
        frames - 1
    );
    Ok(Some(layout("FNO Navier–Stokes", fields, axes, a[0], &note)))
}

/// Burgers: `input` `[N, x]` at first and `output` `[N, t, x]`, periodic.
fn burgers(contents: &Contents) -> Option<Layout> {
    let (input, output) = (contents.shape("input"), contents.shape("output"));
    if input.len() != 2 || output.len() != 3 || output[0] != input[0] || output[2] != input[1] {
        return None;
    }
    let x = AxisGuess { periodic: true, ..AxisGuess::new("x", output[2], [0.0, 1.0], SQUARE) };
    let t = AxisGuess::new("t", output[1], [0.0, 1.0], SQUARE);
    let fields = vec![contents.field("u", "output", vec![Role::Sample, Role::Axis(0), Role::Axis(1)])];
    let note = "u is output; input, its first state, is left out";
    Some(layout("DiffusionPDE Burgers", fields, vec![t, x], output[0], note))
}

/// PIDM's tables: no header, one sample per row, its n² values row after row.
fn table(contents: &Contents) -> Option<Layout> {
    let info = contents.arrays().first()?;
    let stem = contents.path.file_stem()?.to_string_lossy().into_owned();
    let is_text = contents.path.extension().is_some_and(|e| e == "csv" || e == "txt" || e == "dat");
    let [rows, columns] = info.shape[..] else { return None };
    let side = columns.isqrt();
    // A table of fewer columns, or with names of columns, is one field, row after row.
    if !is_text
        || contents.attribute("header").is_some()
        || contents.arrays().len() != 1
        || side * side != columns
        || side < 12
    {
        return None;
    }
    let axes = ["x", "y"].map(|name| AxisGuess::new(name, side, [0.0, 1.0], "assumed: a table has no coordinates"));
    let name = super::generic::identifier(stem.strip_suffix("_data").unwrap_or(&stem));
    let field = contents.field(&name, &info.name, vec![Role::Sample, Role::Flat(0, 1)]);
    let note = format!("each row of {columns} values is a sample of {side} × {side}, row after row");
    Some(layout("table of samples", vec![field], axes.to_vec(), rows, &note))
}
