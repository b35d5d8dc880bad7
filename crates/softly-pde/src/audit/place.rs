//! Where a residual is: at each point, by region, and by wavelength.

use rayon::prelude::*;
use serde::Serialize;

use crate::algebra::Value;
use crate::audit::claim::{Claim, Ready, Sample, restricted, sum};
use crate::grid::{Axis, AxisId, Grid, Placement};
use crate::region::{End, Region};
use crate::spectrum::RadialSpectrum;

/// Samples whose spectra are taken.
const SPECTRA: usize = 64;

/// Mean |R| over a part of the grid.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RegionShare {
    /// The part: `interior`, `border`, `corners`, or an end such as `t=first`.
    pub region: String,
    /// Mean |R| over its points and all samples.
    pub mean_abs: f64,
    /// Its points that count.
    pub points: usize,
}

/// Waves of similar length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Band {
    /// Shortest wavelength in grid spacings.
    pub from: f64,
    /// Longest wavelength in grid spacings; none for the band that holds the mean, too.
    pub to: Option<f64>,
    /// √power of the residual in these waves.
    pub residual: f64,
    /// √power of the largest term in these waves.
    pub largest: f64,
}

/// The parts of the grid with their mean |R|, from the `map` of mean |R| `[rows, cols]`, which is NaN where the
/// equation does not count.
pub(super) fn regions(map: &[f64], grid: &Grid) -> Vec<RegionShare> {
    if grid.is_point() {
        return Vec::new();
    }
    let with_ends: Vec<&Axis> = grid.axes.iter().filter(|axis| !axis.periodic).collect();
    let end = |axis: &Axis, end| Region::End { axis: axis.name.clone(), end };
    let ends = with_ends.iter().flat_map(|axis| [end(axis, End::First), end(axis, End::Last)]);
    let mut masks: Vec<(String, Vec<bool>)> = [Region::Interior, Region::Border]
        .into_iter()
        .chain(ends)
        .filter_map(|region| Some((region.to_string(), region.mask(grid).ok()?)))
        .collect();
    if with_ends.len() == 2 {
        let (rows, cols) = (grid.rows(), grid.cols());
        let corner = |point: usize| {
            let (i, j) = (point / cols, point % cols);
            (i == 0 || i + 1 == rows) && (j == 0 || j + 1 == cols)
        };
        masks.push(("corners".into(), (0..grid.len()).map(corner).collect()));
    }
    let share = |(region, mask): (String, Vec<bool>)| {
        let values: Vec<f64> = map
            .iter()
            .zip(mask)
            .filter(|(value, inside)| *inside && !value.is_nan())
            .map(|(value, _)| *value)
            .collect();
        let mean_abs = values.iter().sum::<f64>() / values.len() as f64;
        (!values.is_empty()).then_some(RegionShare { region, mean_abs, points: values.len() })
    };
    // On a torus the interior is everything.
    if with_ends.is_empty() { Vec::new() } else { masks.into_iter().filter_map(share).collect() }
}

/// Spectra of the residual of equation `e` and of its term `largest` in octaves of wavelength.
pub(super) fn wavelengths(claim: &Claim, ready: &Ready, e: usize, largest: usize, samples: &[Sample]) -> Vec<Band> {
    let region = &claim.equations[e].region;
    let inner = match region {
        Region::All => false,
        Region::Interior => true,
        // Points of a line have no spectrum in the plane.
        _ => return Vec::new(),
    };
    let whole = &claim.grid;
    let kept = |id: AxisId| -> Vec<usize> {
        let n = whole.nodes(id);
        let ends = inner && !whole.axes.is_empty() && !whole.axis(id).periodic;
        if ends { (1..n.saturating_sub(1)).collect() } else { (0..n).collect() }
    };
    let [rows, cols] = AxisId::BOTH.map(kept);
    if whole.is_point() || rows.len() < 4 || cols.len() < 4 {
        return Vec::new();
    }
    // Lengths are counted in spacings, so that axes of different units can share rings.
    let unit = |id: AxisId, n: usize| {
        let old = whole.axis(id);
        let steps = if old.has_end_nodes() { n - 1 } else { n };
        Axis { nodes: n, first: 0.0, last: steps as f64, placement: Placement::Nodes, ..old.clone() }
    };
    let mut axes = vec![unit(AxisId::Rows, rows.len()), unit(AxisId::Cols, cols.len())];
    for (axis, id) in axes.iter_mut().zip(AxisId::BOTH) {
        axis.placement = whole.axis(id).placement;
    }
    let grid = Grid { axes };
    let length = grid.length(AxisId::Rows).max(grid.length(AxisId::Cols));
    let Ok(spectrum) = RadialSpectrum::new(&grid) else { return Vec::new() };
    let narrowed = Grid { axes: vec![grid.axes[0].clone(), whole.axes[1].clone()] };
    let cut = |values: &[f64]| {
        let across = restricted(values, whole, AxisId::Rows, &rows);
        restricted(&across, &narrowed, AxisId::Cols, &cols)
    };
    let chosen = &samples[..samples.len().min(SPECTRA)];
    let powers: Vec<[Vec<f64>; 2]> = chosen
        .par_iter()
        .map(|sample| {
            let terms = ready.equations[e].terms(&ready.algebra, &ready.inputs(sample));
            [cut(&sum(&terms)), cut(&terms[largest])].map(|values| spectrum.power(&values))
        })
        .collect();
    octaves(&powers, length)
}

/// Powers by ring of residuals and largest terms, gathered in octaves; ring k has wavelength 2 `length` / k.
fn octaves(powers: &[[Vec<f64>; 2]], length: f64) -> Vec<Band> {
    let rings = powers.first().map_or(0, |[residual, _]| residual.len());
    let longest = (2.0 * length).log2().floor();
    let octave = |ring: usize| if ring == 0 { longest } else { (2.0 * length / ring as f64).log2().floor().max(1.0) };
    let mut bands: Vec<Band> = Vec::new();
    let mut exponent = 1.0;
    while exponent <= longest {
        let to = (exponent < longest).then(|| f64::exp2(exponent + 1.0));
        let total = |which: usize| {
            let of = |power: &[Vec<f64>; 2]| -> f64 {
                (0..rings).filter(|&ring| octave(ring) == exponent).map(|ring| power[which][ring]).sum()
            };
            (powers.iter().map(of).sum::<f64>() / powers.len() as f64).sqrt()
        };
        bands.push(Band { from: f64::exp2(exponent), to, residual: total(0), largest: total(1) });
        exponent += 1.0;
    }
    bands
}

/// A sample whose fields are the mean over all samples.
pub(super) fn mean_sample(samples: &[Sample], points: usize) -> Sample {
    let fields = samples.first().map_or(0, Vec::len);
    let mean = |field: usize| {
        let mut sums = vec![0.0; points];
        for sample in samples {
            sums.iter_mut().zip(sample[field].broadcast(points).iter()).for_each(|(sum, value)| *sum += value);
        }
        Value::from(sums.into_iter().map(|sum| sum / samples.len() as f64).collect::<Vec<_>>())
    };
    (0..fields).map(mean).collect()
}
