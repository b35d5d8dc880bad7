//! Files of no known layout: arrays of the same shape are fields.

use super::axis::{AxisGuess, begins_half_a_cell_from_zero};
use super::{Contents, Layout, Role, Scalar};
use crate::error::{Error, Result};

/// The name of this layout.
pub const NAME: &str = "arrays";

/// Axes of an array whose orders are all tried: n! of them.
const MOST_PERMUTED: usize = 5;

/// Axes that a user named.
pub struct Names<'a>(pub &'a [String]);

/// An axis of an array.
#[derive(Debug, Clone, PartialEq)]
enum Meaning {
    Sample,
    Channel,
    Axis(String),
}

/// The largest number of components that an unnamed axis is taken for.
const CHANNELS: usize = 4;

/// The layout of arrays: the largest rank that occurs, its first shape; or of one array.
pub fn recognise(contents: &mut Contents, names: &Names, only: Option<&str>) -> Result<Layout> {
    let numeric: Vec<(String, Vec<usize>)> = contents
        .arrays()
        .iter()
        .filter(|a| a.is_numeric() && only.is_none_or(|name| name == a.name))
        .map(|a| (a.name.clone(), a.shape.clone()))
        .collect();
    let rank = numeric.iter().map(|(_, shape)| shape.len()).max().unwrap_or(0);
    let main = numeric.iter().find(|(_, shape)| shape.len() == rank && rank >= 2).cloned();
    let Some((first, shape)) = main else {
        return Err(no_fields(contents));
    };
    let mut notes = Vec::new();
    let meanings = meanings(contents, &first, &shape, names)?;
    check_order(contents, &first, &meanings, &shape, &mut notes)?;
    let mut axes: Vec<AxisGuess> = Vec::new();
    let mut roles = Vec::new();
    for (meaning, &nodes) in meanings.iter().zip(&shape) {
        roles.push(match meaning {
            Meaning::Sample => Role::Sample,
            Meaning::Channel => Role::Component(0),
            Meaning::Axis(name) => {
                axes.push(axis(contents, name, nodes)?);
                Role::Axis(axes.len() - 1)
            }
        });
    }
    let channels = meanings.iter().position(|m| *m == Meaning::Channel).map(|i| (i, shape[i]));
    if shape.contains(&0) {
        let problem = format!("{first}: expected numbers, found none: its shape is {shape:?}");
        return Err(Error::input(contents.path.display(), problem));
    }
    let mut fields = Vec::new();
    for (array, _) in numeric.iter().filter(|(_, other)| *other == shape) {
        let name = field_name(contents, array, only.is_some());
        match channels {
            None => fields.push(contents.field(&name, array, roles.clone())),
            Some((position, count)) => {
                super::check_components(contents, array, count)?;
                for k in 0..count {
                    let mut roles = roles.clone();
                    roles[position] = Role::Component(k);
                    fields.push(contents.field(&format!("{name}_{k}"), array, roles));
                }
            }
        }
    }
    if let Some((position, count)) = channels {
        notes.push(format!("axis {position} of {count} entries is taken for components: fields {}", joined(&fields)));
    }
    for (array, other) in numeric.iter().filter(|(_, other)| other.len() == rank && *other != shape) {
        notes.push(format!("{array} {other:?} is left out: fields share one shape, and {first} has {shape:?}"));
    }
    let samples = fields[0].pieces[0].samples;
    let scalars = if only.is_none() { scalars(contents, samples, &axes)? } else { Vec::new() };
    Ok(Layout { name: NAME.into(), fields, axes, scalars, samples, notes })
}

fn joined(fields: &[super::FieldSource]) -> String {
    fields.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn no_fields(contents: &Contents) -> Error {
    let unreadable =
        contents.arrays().iter().find(|a| !a.is_numeric() && a.shape.iter().filter(|&&n| n > 1).count() >= 2);
    if let Some(array) = unreadable {
        return array.unreadable(contents.path);
    }
    let arrays: Vec<String> = contents.arrays().iter().map(|a| format!("{} {:?}", a.name, a.shape)).collect();
    let arrays: Vec<&str> = arrays.iter().map(String::as_str).collect();
    Error::input(contents.path.display(), format!("expected fields [N, H, W], found {}", super::list(&arrays)))
        .hint("a field needs two axes of space or time")
}

/// What the axes of an array are: by the user's names, by the file's, by their sizes.
fn meanings(contents: &Contents, array: &str, shape: &[usize], names: &Names) -> Result<Vec<Meaning>> {
    let rank = shape.len();
    let named = |names: &[String]| -> Vec<Meaning> {
        names
            .iter()
            .map(|name| match name.as_str() {
                "sample" | "samples" => Meaning::Sample,
                "channel" | "channels" => Meaning::Channel,
                name => Meaning::Axis(name.into()),
            })
            .collect()
    };
    if !names.0.is_empty() {
        let mut meanings = named(names.0);
        if meanings.len() + 1 == rank && !meanings.contains(&Meaning::Sample) {
            meanings.insert(0, Meaning::Sample);
        }
        if meanings.len() != rank {
            let place = format!("{}:{array}", contents.path.display());
            let problem = format!("--axes names {}, but its shape is {shape:?}", names.0.join(", "));
            return Err(Error::input(place, problem).hint(
                "name every axis besides samples, as in --axes t,x; `sample` and `channel` are names too, as in \
                 --axes x,y,sample",
            ));
        }
        return Ok(meanings);
    }
    let own = &contents.array(array).expect("the array was listed").dimensions;
    if !own.is_empty() {
        return Ok(by_file(contents, own));
    }
    Ok(by_size(shape))
}

/// The file's own names: those of samples, `time` as `t`, and the rest as they are.
fn by_file(contents: &Contents, names: &[String]) -> Vec<Meaning> {
    let known = ["sample", "samples", "batch", "trajectory", "ensemble", "member", "realization", "case", "n"];
    let mut meanings: Vec<Meaning> = names
        .iter()
        .map(|name| match name.to_lowercase().as_str() {
            lower if known.contains(&lower) => Meaning::Sample,
            "channel" | "component" => Meaning::Channel,
            "time" => Meaning::Axis("t".into()),
            _ => Meaning::Axis(identifier(name)),
        })
        .collect();
    // A first axis without coordinates counts samples.
    let counts = contents.array(&names[0]).is_none() && names.len() >= 3 && names[0] != "t" && names[0] != "time";
    if counts && !meanings.contains(&Meaning::Sample) {
        meanings[0] = Meaning::Sample;
    }
    meanings
}

fn by_size(shape: &[usize]) -> Vec<Meaning> {
    use Meaning::{Channel, Sample};
    let axis = |name: &str| Meaning::Axis(name.into());
    match *shape {
        [_, _] => vec![axis("x"), axis("y")],
        [h, w, c] if c <= CHANNELS && h > CHANNELS && w > CHANNELS => vec![axis("x"), axis("y"), Channel],
        [_, _, _] => vec![Sample, axis("x"), axis("y")],
        [_, c, h, w] if c <= CHANNELS && h > CHANNELS && w > CHANNELS => vec![Sample, Channel, axis("x"), axis("y")],
        [_, h, w, c] if c <= CHANNELS && h > CHANNELS && w > CHANNELS => vec![Sample, axis("x"), axis("y"), Channel],
        [_, t, x, y] if x == y && t != x => vec![Sample, axis("t"), axis("x"), axis("y")],
        [_, x, y, t] if x == y && t != x => vec![Sample, axis("x"), axis("y"), axis("t")],
        _ => {
            let mut meanings = vec![Sample];
            meanings.extend((1..shape.len()).map(|i| axis(&format!("axis{i}"))));
            meanings
        }
    }
}

/// Names under which files keep the coordinates of an axis.
fn coordinate_names(name: &str) -> Vec<String> {
    let mut names: Vec<String> = ["{}", "{}-coordinate", "{}_coordinate", "{}_coords", "grid/{}", "dimensions/{}"]
        .map(|p| p.replace("{}", name))
        .into();
    if name == "t" {
        names.extend(["time", "times", "grid/time", "dimensions/time"].map(String::from));
    }
    names
}

/// Refuses an array whose axes have as many entries as the file has coordinates in another order only: it is transposed.
fn check_order(
    contents: &Contents,
    array: &str,
    meanings: &[Meaning],
    shape: &[usize],
    notes: &mut Vec<String>,
) -> Result<()> {
    let list = |name: &String| {
        let lengths = coordinate_names(name).into_iter().filter_map(|list| {
            let shape = &contents.array(&list)?.shape;
            (shape.iter().filter(|&&n| n > 1).count() == 1).then(|| shape.iter().product::<usize>())
        });
        lengths.collect::<Vec<_>>().first().copied()
    };
    let axes: Vec<(&String, usize)> = meanings
        .iter()
        .zip(shape)
        .filter_map(|(meaning, &nodes)| if let Meaning::Axis(name) = meaning { Some((name, nodes)) } else { None })
        .collect();
    let lengths: Vec<Option<usize>> = axes.iter().map(|(name, _)| list(name)).collect();
    // Entry i of an order is the axis that stands in place i.
    let fits = |order: &[usize]| {
        order.iter().zip(&axes).all(|(&axis, (_, nodes))| {
            lengths[axis].is_none_or(|n| n == *nodes || (axes[axis].0 == "t" && n == nodes + 1))
        })
    };
    let given: Vec<usize> = (0..axes.len()).collect();
    if fits(&given) {
        return Ok(());
    }
    let orders = if axes.len() <= MOST_PERMUTED { orders(axes.len()) } else { Vec::new() };
    if let Some(order) = orders.into_iter().find(|order| fits(order)) {
        let mut names = order.iter().map(|&axis| axes[axis].0.as_str());
        let names: Vec<&str> = meanings
            .iter()
            .enumerate()
            .filter_map(|(i, meaning)| match meaning {
                Meaning::Sample if i == 0 => None,
                Meaning::Sample => Some("sample"),
                Meaning::Channel => Some("channel"),
                Meaning::Axis(_) => names.next(),
            })
            .collect();
        let counts: Vec<String> =
            axes.iter().zip(&lengths).filter_map(|((name, _), n)| n.map(|n| format!("{n} along {name}"))).collect();
        let problem = format!(
            "its shape is {shape:?}, but the file has coordinates of {}: the axes are in another order",
            counts.join(" and ")
        );
        return Err(Error::input(format!("{}:{array}", contents.path.display()), problem)
            .hint(format!("the array is transposed: --axes {}", names.join(","))));
    }
    for ((name, nodes), length) in axes.iter().zip(&lengths) {
        if let Some(n) = length.filter(|n| n != nodes) {
            notes.push(format!("the {n} coordinates of {name} are not used: {array} has {nodes} entries along it"));
        }
    }
    Ok(())
}

/// All orders of `n` things.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![Vec::new()] };
    let put = |order: Vec<usize>| {
        (0..=last).map(move |place| {
            let mut order = order.clone();
            order.insert(place, last);
            order
        })
    };
    orders(last).into_iter().flat_map(put).collect()
}

fn axis(contents: &mut Contents, name: &str, nodes: usize) -> Result<AxisGuess> {
    for array in coordinate_names(name) {
        let is_list = contents.shape(&array).iter().filter(|&&n| n > 1).count() <= 1;
        let Some(all) = contents.numbers(&array)?.filter(|c| is_list && c.len() >= nodes && nodes > 1) else {
            continue;
        };
        if all.len() == nodes || (name == "t" && all.len() == nodes + 1) {
            let coordinates = &all[..nodes];
            let cells = name != "t" && begins_half_a_cell_from_zero(coordinates);
            return Ok(AxisGuess::through(name, coordinates, false, cells, array));
        }
    }
    let from = "assumed: the file has no coordinates; --domain states them";
    let ends = if name == "t" { [0.0, (nodes.max(2) - 1) as f64] } else { [0.0, 1.0] };
    Ok(AxisGuess::new(name, nodes, ends, from))
}

/// Lists with one number per sample that are no coordinates.
pub fn scalars(contents: &mut Contents, samples: usize, axes: &[AxisGuess]) -> Result<Vec<Scalar>> {
    let taken: Vec<String> = axes.iter().flat_map(|a| coordinate_names(&a.name)).collect();
    let lists: Vec<String> = contents
        .arrays()
        .iter()
        .filter(|a| a.is_numeric() && a.size() == samples && samples > 1)
        .filter(|a| a.shape.iter().filter(|&&n| n > 1).count() == 1 && !taken.contains(&a.name))
        .map(|a| a.name.clone())
        .collect();
    let mut scalars = Vec::new();
    for name in lists {
        if let Some(values) = contents.numbers(&name)? {
            scalars.push(Scalar { name: identifier(&name), values });
        }
    }
    Ok(scalars)
}

/// The field's name: the array's. The number at the end of a `.npy` file's name counts samples and is left out.
fn field_name(contents: &Contents, array: &str, named: bool) -> String {
    let is_npy = contents.path.extension().is_some_and(|e| e == "npy");
    if named || !is_npy {
        return identifier(array.rsplit('/').next().unwrap_or(array));
    }
    let base = array.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches(['_', '-']);
    if base.is_empty() { "field".into() } else { identifier(base) }
}

/// A name that formulas can use: letters, digits and underscores, no digit first.
pub fn identifier(name: &str) -> String {
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if out.starts_with(|c: char| c.is_ascii_digit()) || out.is_empty() {
        out.insert(0, '_');
    }
    out
}
