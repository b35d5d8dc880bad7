//! `softly residual`: the residual of arrays under a constraint.

use std::path::{Path, PathBuf};

use softly::error::{Error, Result, nearest};
use softly::format::ImportOptions;
use softly::npy::Array;
use softly::units::Units;
use softly::{ConstraintConfig, Layers, ResidualSummary, SoftConstraint, npy};
use softly_pde::grid::{Grid, Placement, TIME};

use crate::arguments::{AxisOptions, PlacementName};
use crate::output::print_json;

/// A field's name, its file and its array.
type Given = (String, PathBuf, Array);

/// Prints the size of the residual of `fields`, each `NAME=FILE`, under the constraint of the file `config`.
pub fn run(config: &Path, fields: &[String], axes: &AxisOptions, out: Option<&Path>) -> Result<()> {
    let location = config.display().to_string();
    let parsed = Layers::new().file(config)?.finish(&location)?;
    let constraint = parsed.constraint.ok_or_else(|| {
        Error::input(&location, "expected a [constraint] table, found none").hint("see `softly presets circle-demo`")
    })?;
    let arrays = arrays(&constraint, fields)?;
    let (_, _, first) = &arrays[0];
    let (count, rows, cols) = check_shapes(&arrays)?;
    let grid = grid_of(axes, [rows, cols])?;
    let compiled =
        SoftConstraint::new(&constraint, &constraint.fields, &grid, &Units::identity(constraint.fields.len()))?;
    let nodes = grid.len();
    let mut values = Vec::new();
    let mut whole = true;
    for sample in 0..count {
        let fields: Vec<Vec<f64>> =
            arrays.iter().map(|(_, _, a)| a.values[sample * nodes..(sample + 1) * nodes].to_vec()).collect();
        let parts = compiled.residual_values(&fields);
        whole &= parts.len() == 1 && parts[0].len() == nodes;
        if let Some(value) = parts.iter().flatten().find(|value| !value.is_finite()) {
            let problem = format!("expected finite residuals, found {value} in sample {sample}");
            return Err(Error::input("constraint.residual", problem)
                .hint("the formula divides by zero or takes a root or logarithm of a negative number there"));
        }
        values.extend(parts.concat());
    }
    if let Some(out) = out {
        if !whole {
            return Err(Error::input("--out", "needs one residual formula on every node")
                .hint("leave out --out, or give a single `residual` without a region"));
        }
        npy::write_f64(out, &first.shape, values.iter().copied())?;
    }
    print_json(&ResidualSummary::of(&values));
    Ok(())
}

/// The grid of arrays with `nodes` along their axes, by default on the unit square.
fn grid_of(options: &AxisOptions, nodes: [usize; 2]) -> Result<Grid> {
    let mut grid = Grid::unit(nodes[0], nodes[1]);
    if !options.axes.is_empty() && options.axes.len() != 2 {
        let problem = format!("expected two names, such as t,x, found {}", options.axes.join(","));
        return Err(Error::input("--axes", problem));
    }
    for (axis, name) in grid.axes.iter_mut().zip(&options.axes) {
        axis.name.clone_from(name);
    }
    let known = grid.axes.iter().map(|axis| axis.name.clone()).collect::<Vec<_>>().join(", ");
    let find = |grid: &Grid, flag: &str, name: &str| {
        let missing = || Error::input(flag, format!("there is no axis `{name}`; there are {known}")).hint("see --axes");
        grid.find(name).map(|id| id as usize).ok_or_else(missing)
    };
    for text in &options.domain {
        let (name, [first, last]) = ImportOptions::parse_domain(text)?;
        let axis = find(&grid, "--domain", &name)?;
        (grid.axes[axis].first, grid.axes[axis].last) = (first, last);
    }
    for name in &options.periodic {
        let axis = find(&grid, "--periodic", name)?;
        grid.axes[axis].periodic = true;
    }
    for axis in grid.axes.iter_mut().filter(|axis| axis.name != TIME) {
        if options.placement == Some(PlacementName::Cells) {
            axis.placement = Placement::Cells;
        }
    }
    grid.check().map_err(|e| Error::input("--axes", &e).hint(e.hint().unwrap_or_default()))?;
    Ok(grid)
}

/// The array of every field of `constraint`, in its order.
fn arrays(constraint: &ConstraintConfig, fields: &[String]) -> Result<Vec<Given>> {
    let mut given: Vec<Given> = Vec::new();
    for field in fields {
        let Some((name, path)) = field.split_once('=') else {
            return Err(
                Error::input(format!("--field {field}"), "expected NAME=FILE").hint("for example --field p=p.npy")
            );
        };
        if !constraint.fields.iter().any(|f| f == name) {
            let hint = nearest(name, constraint.fields.iter().map(String::as_str))
                .map_or(String::new(), |n| format!("did you mean `{n}`?"));
            let problem = format!("the constraint has no field `{name}`; it has {}", constraint.fields.join(", "));
            return Err(Error::input(format!("--field {field}"), problem).hint(hint));
        }
        if given.iter().any(|(n, _, _)| n == name) {
            return Err(Error::input(format!("--field {field}"), format!("the field `{name}` is given twice")));
        }
        given.push((name.to_string(), PathBuf::from(path), npy::read(Path::new(path))?));
    }
    let take = |name: &String| {
        let found = given.iter().position(|(n, _, _)| n == name);
        found.map(|at| given.swap_remove(at)).ok_or_else(|| {
            Error::input("--field", format!("no array is given for the field `{name}`"))
                .hint(format!("add --field {name}=FILE"))
        })
    };
    constraint.fields.iter().map(take).collect()
}

/// Samples, rows and columns of the arrays, which must agree and be finite.
fn check_shapes(arrays: &[Given]) -> Result<(usize, usize, usize)> {
    let (_, first_path, first) = &arrays[0];
    let (count, rows, cols) = match first.shape[..] {
        [h, w] => (1, h, w),
        [n, h, w] => (n, h, w),
        _ => {
            let problem = format!("expected [H, W] or [N, H, W], found {:?}", first.shape);
            return Err(Error::input(first_path.display(), problem));
        }
    };
    for (name, path, array) in arrays {
        let location = format!("{} (field `{name}`)", path.display());
        if array.shape != first.shape {
            let problem = format!("expected {:?} as {}, found {:?}", first.shape, first_path.display(), array.shape);
            return Err(Error::input(location, problem));
        }
        if let Some(bad) = array.values.iter().position(|v| !v.is_finite()) {
            let problem = format!("expected finite numbers, found {} at position {bad}", array.values[bad]);
            return Err(Error::input(location, problem));
        }
    }
    if count == 0 || rows * cols == 0 {
        let problem = format!("expected at least one value, found shape {:?}", first.shape);
        return Err(Error::input(first_path.display(), problem));
    }
    Ok((count, rows, cols))
}
