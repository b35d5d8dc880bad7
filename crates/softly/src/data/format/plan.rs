//! The way from a layout to samples on a grid of two axes: which entries along each axis are taken, and as what.

use super::layout::{AxisGuess, Coordinates, Layout, Scalar};
use super::options::ImportOptions;
use crate::error::{Error, Result, nearest};

/// What an axis of the layout becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Rows (0) or columns (1) of the grid.
    Grid(usize),
    /// Samples: one per frame.
    Frames,
    /// Nothing: one entry is taken.
    Fixed,
}

/// Entries `start`, `start + step`, …, `count` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picked {
    /// What the axis becomes.
    pub used: Use,
    /// The first entry.
    pub start: usize,
    /// The distance of entries.
    pub step: usize,
    /// Their number.
    pub count: usize,
}

/// A layout with the user's options applied.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The layout, its axes as the user corrected them.
    pub layout: Layout,
    /// What becomes of each axis.
    pub picked: Vec<Picked>,
}

impl Plan {
    /// Applies options to a layout.
    pub fn new(mut layout: Layout, options: &ImportOptions) -> Result<Self> {
        let kept = name_axes(&mut layout, options)?;
        check_names(&mut layout)?;
        correct_axes(&mut layout, options)?;
        let mut picked = pick(&layout, options)?;
        assign(&layout, &kept, &mut picked)?;
        let plan = Self { layout, picked };
        plan.axes()?;
        Ok(plan)
    }

    /// The axis of the layout that becomes rows (0) or columns (1).
    pub fn grid_axis(&self, position: usize) -> usize {
        self.picked.iter().position(|p| p.used == Use::Grid(position)).expect("a grid has two axes")
    }

    /// The axis of frames that become samples.
    pub fn frame_axis(&self) -> Option<usize> {
        self.picked.iter().position(|p| p.used == Use::Frames)
    }

    /// Samples that one sample of the layout becomes.
    pub fn frames(&self) -> usize {
        self.frame_axis().map_or(1, |axis| self.picked[axis].count)
    }

    /// Rows and columns of the grid.
    pub fn axes(&self) -> Result<[AxisGuess; 2]> {
        let axis = |position| {
            let i = self.grid_axis(position);
            taken(&self.layout.axes[i], self.picked[i])
        };
        Ok([axis(0)?, axis(1)?])
    }

    /// The scalars of all samples, with the time of frames that became samples.
    pub fn scalars(&self) -> Vec<Scalar> {
        let frames = self.frames();
        let mut scalars: Vec<Scalar> = self.layout.scalars.clone();
        for scalar in scalars.iter_mut().filter(|s| s.values.len() > 1) {
            scalar.values = scalar.values.iter().flat_map(|&v| vec![v; frames]).collect();
        }
        if let Some(i) = self.frame_axis() {
            let (axis, picked) = (&self.layout.axes[i], self.picked[i]);
            let times = (0..frames).map(|f| axis.coordinate((picked.start + f * picked.step) as f64));
            let values = times.collect::<Vec<_>>().repeat(self.layout.samples);
            scalars.push(Scalar { name: axis.name.clone(), values });
        }
        scalars
    }
}

/// Names the axes, or chooses those that are kept; gives the kept ones.
fn name_axes(layout: &mut Layout, options: &ImportOptions) -> Result<Vec<String>> {
    let names: Vec<String> = options
        .axes
        .iter()
        .filter(|n| !matches!(n.as_str(), "sample" | "samples" | "channel" | "channels"))
        .cloned()
        .collect();
    let unknown = names.iter().find(|name| layout.axes.iter().all(|axis| axis.name != **name));
    match unknown {
        None if names.len() == layout.axes.len() => Ok(Vec::new()),
        None => Ok(names),
        Some(_) if names.len() == layout.axes.len() => {
            for (axis, name) in layout.axes.iter_mut().zip(names) {
                axis.name = name;
            }
            Ok(Vec::new())
        }
        Some(name) => Err(no_such_axis("--axes", layout, name)),
    }
}

fn no_such_axis(flag: &str, layout: &Layout, name: &str) -> Error {
    let names: Vec<&str> = layout.axes.iter().map(|a| a.name.as_str()).collect();
    let hint = nearest(name, names.iter().copied()).map_or_else(String::new, |near| format!("did you mean {near}?"));
    Error::input(flag, format!("there is no axis {name}; the data have {}", names.join(", "))).hint(hint)
}

/// Names of fields and axes must differ; scalars give way.
fn check_names(layout: &mut Layout) -> Result<()> {
    for (i, field) in layout.fields.iter().enumerate() {
        let place = field.pieces[0].file.display();
        if layout.axes.iter().any(|axis| axis.name == field.name) {
            return Err(Error::input(place, format!("{} is the name of a field and of an axis", field.name))
                .hint("name the field by --field NAME=FILE:ARRAY or the axes by --axes"));
        }
        if layout.fields[..i].iter().any(|other| other.name == field.name) {
            return Err(Error::input(place, format!("two fields are called {}", field.name))
                .hint("name fields by --field NAME=FILE:ARRAY"));
        }
    }
    let taken: Vec<String> =
        layout.fields.iter().map(|f| f.name.clone()).chain(layout.axes.iter().map(|a| a.name.clone())).collect();
    let clash: Vec<String> =
        layout.scalars.iter().map(|s| s.name.clone()).filter(|name| taken.contains(name)).collect();
    layout.scalars.retain(|s| !clash.contains(&s.name));
    layout.notes.extend(clash.iter().map(|n| format!("the number {n} is left out: a field or an axis has its name")));
    Ok(())
}

/// Placement, periodicity and domain as the user states them.
fn correct_axes(layout: &mut Layout, options: &ImportOptions) -> Result<()> {
    let known = |flag: &str, layout: &Layout, name: &str| match layout.axes.iter().position(|a| a.name == name) {
        Some(i) => Ok(i),
        None => Err(no_such_axis(flag, layout, name)),
    };
    let periodic: Vec<usize> =
        options.periodic.iter().map(|name| known("--periodic", layout, name)).collect::<Result<_>>()?;
    for (i, axis) in layout.axes.iter_mut().enumerate() {
        let is_periodic = axis.periodic || periodic.contains(&i);
        let cells = if axis.name == "t" { axis.cells } else { options.cells.unwrap_or(axis.cells) };
        if axis.coordinates == Coordinates::None {
            (axis.periodic, axis.cells) = (is_periodic, cells);
        } else if (is_periodic, cells) != (axis.periodic, axis.cells) {
            // The coordinates stay; the ends of the domain move.
            let coordinates: Vec<f64> = (0..axis.nodes).map(|k| axis.coordinate(k as f64)).collect();
            let corrected = AxisGuess::through(&axis.name, &coordinates, is_periodic, cells, axis.from.clone());
            *axis = AxisGuess { coordinates: axis.coordinates, ..corrected };
        }
    }
    for (name, [first, last]) in &options.domain {
        let i = known("--domain", layout, name)?;
        let axis = &mut layout.axes[i];
        (axis.first, axis.last, axis.coordinates, axis.from) = (*first, *last, Coordinates::None, "--domain".into());
    }
    Ok(())
}

/// The entries that frames, strides and slices take.
fn pick(layout: &Layout, options: &ImportOptions) -> Result<Vec<Picked>> {
    if let Some(empty) = layout.axes.iter().find(|axis| axis.nodes == 0) {
        let problem = format!("the files hold no samples: axis {} has no entries", empty.name);
        return Err(Error::input("data import", problem));
    }
    let all = |axis: &AxisGuess| Picked { used: Use::Fixed, start: 0, step: 1, count: axis.nodes };
    let mut picked: Vec<Picked> = layout.axes.iter().map(all).collect();
    let position = |name: &str| layout.axes.iter().position(|a| a.name == name);
    if let Some([first, last]) = options.frames {
        let i = position("t").ok_or_else(|| no_such_axis("--frames", layout, "t"))?;
        let nodes = layout.axes[i].nodes;
        if last >= nodes {
            return Err(Error::input("--frames", format!("expected frames 0 to {}, found {last}", nodes - 1)));
        }
        (picked[i].start, picked[i].count) = (first, last - first + 1);
    }
    for (name, step) in &options.stride {
        let i = position(name).ok_or_else(|| no_such_axis("--stride", layout, name))?;
        if layout.axes[i].periodic && !layout.axes[i].nodes.is_multiple_of(*step) {
            let problem =
                format!("{name} is periodic with {} entries, which {step} does not divide", layout.axes[i].nodes);
            return Err(Error::input("--stride", problem).hint("choose a divisor, so that the period stays whole"));
        }
        (picked[i].step, picked[i].count) = (*step, picked[i].count.div_ceil(*step));
    }
    for (name, index) in &options.slice {
        let i = position(name).ok_or_else(|| no_such_axis("--slice", layout, name))?;
        if *index >= layout.axes[i].nodes {
            let problem = format!("expected an entry of {name} from 0 to {}, found {index}", layout.axes[i].nodes - 1);
            return Err(Error::input("--slice", problem));
        }
        picked[i] = Picked { used: Use::Fixed, start: *index, step: 1, count: 1 };
    }
    Ok(picked)
}

/// Decides which axes are rows and columns and which are frames.
fn assign(layout: &Layout, kept: &[String], picked: &mut [Picked]) -> Result<()> {
    let name = |i: usize| layout.axes[i].name.as_str();
    // A slice leaves one entry of an axis; an axis of one entry anyway needs no slice.
    let mut open: Vec<usize> = (0..picked.len()).filter(|&i| picked[i].count > 1).collect();
    let describe = || {
        let axes: Vec<String> = layout.axes.iter().map(|a| format!("{} ({} entries)", a.name, a.nodes)).collect();
        format!("besides samples the data have the axes {}", axes.join(", "))
    };
    if let Some(one) = kept.iter().find(|k| open.iter().all(|&i| name(i) != k.as_str())) {
        return Err(Error::input("--axes", format!("{one} is cut to one entry and cannot be kept; {}", describe())));
    }
    let time = open.iter().position(|&i| name(i) == "t");
    let is_extra = |i: usize| if kept.is_empty() { true } else { !kept.iter().any(|k| k == name(i)) };
    if open.len() == 3
        && let Some(t) = time.filter(|&t| is_extra(open[t]))
    {
        picked[open[t]].used = Use::Frames;
        open.remove(t);
    }
    if !kept.is_empty() && kept.len() == open.len() {
        open.sort_by_key(|&i| kept.iter().position(|k| k == name(i)));
    }
    let is_kept = |i: &usize| kept.is_empty() || kept.iter().any(|k| k == name(*i));
    match open[..] {
        [rows, columns] if is_kept(&rows) && is_kept(&columns) => {
            (picked[rows].used, picked[columns].used) = (Use::Grid(0), Use::Grid(1));
            Ok(())
        }
        [] | [_] => Err(Error::input("data import", format!("a grid has two axes; {}", describe()))
            .hint("a field needs two axes of space or time with more than one entry")),
        _ => {
            let last = open.iter().rev().find(|&&i| kept.is_empty() || is_extra(i)).map_or("z", |&i| name(i));
            let names = ["t", "x", "y", "z"][..open.len().min(4)].join(",");
            let rename = if layout.axes.iter().any(|a| a.name.starts_with("axis")) {
                format!("name them, as in --axes {names}, or ")
            } else {
                String::new()
            };
            Err(Error::input(
                "data import",
                format!("a grid has two axes, and frames of t can be samples; {}", describe()),
            )
            .hint(format!("{rename}keep one entry of an axis: --slice {last}=0")))
        }
    }
}

/// The axis through the entries that are taken.
fn taken(axis: &AxisGuess, picked: Picked) -> Result<AxisGuess> {
    if axis.coordinates == Coordinates::Uneven {
        let problem = format!("the coordinates of {} ({}) are not evenly spaced", axis.name, axis.from);
        return Err(Error::input("data import", problem).hint(format!(
            "softly needs a uniform grid: interpolate the data, or state the ends by --domain {0}=FIRST:LAST if the \
             spacing is uniform after all",
            axis.name
        )));
    }
    if (picked.start, picked.step, picked.count) == (0, 1, axis.nodes) {
        return Ok(axis.clone());
    }
    let at = |k: usize| axis.coordinate((picked.start + k * picked.step) as f64);
    let mut part = AxisGuess { nodes: picked.count, ..axis.clone() };
    let whole_period = axis.periodic && picked.start == 0 && picked.count * picked.step == axis.nodes;
    part.periodic = whole_period;
    part.cells = axis.cells && picked.step == 1;
    let half = if part.cells { (at(1) - at(0)) / 2.0 } else { 0.0 };
    part.first = at(0) - half;
    part.last = if whole_period { part.first + (axis.last - axis.first) } else { at(picked.count - 1) + half };
    Ok(part)
}
