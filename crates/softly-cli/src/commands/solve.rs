//! `softly solve`: reference solutions of the studies' equations.

use std::path::Path;

use rayon::prelude::*;
use serde_json::{Value, json};
use softly::error::{Error, Result};
use softly::npy;
use softly::npy::Array;
use softly_pde::darcy::{self, DarcySolver, Discretisation, corner_source};
use softly_pde::grid::Grid;
use softly_pde::helmholtz::HelmholtzSolver;

use crate::arguments::Solve;
use crate::output::{print, print_json};
use crate::progress::say;

/// A square of the wave number closer to an eigenvalue than this fraction is worth a warning.
const NEAR_RESONANCE: f64 = 0.01;

/// Solves an equation.
pub fn run(command: Solve, json: bool) -> Result<()> {
    let (out, facts) = match command {
        Solve::Darcy { permeability, flow, discretisation, out } => {
            let facts = darcy(&permeability, flow, discretisation, &out)?;
            (out, facts)
        }
        Solve::Helmholtz { source, wave_number, out } => {
            let facts = helmholtz(&source, wave_number, &out)?;
            (out, facts)
        }
    };
    if json {
        print_json(&facts);
    } else {
        print(&out.display().to_string());
    }
    Ok(())
}

fn darcy(path: &Path, flow: f64, discretisation: Discretisation, out: &Path) -> Result<Value> {
    if !flow.is_finite() {
        return Err(Error::input("--flow", format!("expected a finite number, found {flow}")));
    }
    let (permeability, grid) = read_fields(path, "permeability")?;
    let refused = |e: &dyn std::fmt::Display| Error::input(format!("{} (permeability)", path.display()), e);
    let solver = DarcySolver::new(&grid, discretisation).map_err(|e| refused(&e))?;
    let source = corner_source(&grid, flow);
    let solve = |k: &[f64]| {
        let pressure = solver.solve(k, &source).map_err(|e| e.to_string())?;
        let residual = darcy::residual(&grid, discretisation, k, &pressure, &source).map_err(|e| e.to_string())?;
        Ok((pressure, residual.iter().map(|r| r.abs()).sum::<f64>() / residual.len() as f64))
    };
    let solved = each_sample(&permeability, &grid, path, "permeability", solve)?;
    let mean_abs = solved.iter().map(|(_, r)| r).sum::<f64>() / solved.len() as f64;
    npy::write_f64(out, &permeability.shape, solved.iter().flat_map(|(p, _)| p).copied())?;
    say(&format!("mean |residual| of the solutions: {mean_abs:.3e}"));
    Ok(json!({ "out": out, "n": solved.len(), "residual_mean_abs": mean_abs }))
}

fn helmholtz(path: &Path, wave_number: f64, out: &Path) -> Result<Value> {
    let (source, grid) = read_fields(path, "source")?;
    let solver = HelmholtzSolver::new(&grid, wave_number).map_err(|e| {
        let place =
            if grid.rows() < 3 || grid.cols() < 3 { path.display().to_string() } else { "--wave-number".into() };
        Error::input(place, e)
    })?;
    let solve = |a: &[f64]| solver.solve(a).map_err(|e| e.to_string());
    let solved = each_sample(&source, &grid, path, "source", solve)?;
    npy::write_f64(out, &source.shape, solved.iter().flatten().copied())?;
    let nearest = solver.nearest_eigenvalue();
    if nearest.relative_distance < NEAR_RESONANCE {
        say(&format!(
            "warning: the square of the wave number is within a fraction {:.1e} of the eigenvalue {:.6}: near resonance, \
             errors of the source are amplified",
            nearest.relative_distance, nearest.eigenvalue
        ));
    }
    Ok(json!({
        "out": out, "n": solved.len(), "nearest_eigenvalue": nearest.eigenvalue,
        "relative_distance": nearest.relative_distance,
    }))
}

/// Fields `[H, W]` or `[N, H, W]` and their grid on the unit square.
fn read_fields(path: &Path, name: &str) -> Result<(Array, Grid)> {
    let array = npy::read(path)?;
    match array.shape[..] {
        [rows, cols] | [_, rows, cols] if !array.values.is_empty() => Ok((array, Grid::unit(rows, cols))),
        _ => {
            let problem = format!("expected [H, W] or [N, H, W] with at least one value, found {:?}", array.shape);
            Err(Error::input(format!("{} ({name})", path.display()), problem))
        }
    }
}

/// Solves every sample, in parallel; an error names the file and the sample.
fn each_sample<T: Send>(
    array: &Array,
    grid: &Grid,
    path: &Path,
    name: &str,
    solve: impl Fn(&[f64]) -> std::result::Result<T, String> + Sync + Send,
) -> Result<Vec<T>> {
    let solved: Vec<_> = array.values.par_chunks_exact(grid.len()).map(solve).collect();
    let name_sample = |(i, result): (usize, std::result::Result<T, String>)| {
        result.map_err(|e| Error::input(format!("{} ({name}), sample {i}", path.display()), e))
    };
    solved.into_iter().enumerate().map(name_sample).collect()
}
