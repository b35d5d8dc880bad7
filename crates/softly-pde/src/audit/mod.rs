//! Do data obey an equation? An audit in plain `f64`.
//!
//! Of every equation: the size of its residual beside the size of its terms, where the residual is (points, regions,
//! wavelengths), how much of it is discretisation, and what nonsense would give (shuffled pairs, zero, the mean field).
//! Then the classical slips, each by trying the alternative, and a verdict in words. [`fit`] finds parameters by least
//! squares.
//!
//! ```
//! use std::collections::BTreeMap;
//! use softly_pde::audit::{Claim, Equation, audit};
//! use softly_pde::grid::Grid;
//! use softly_pde::region::Region;
//! use softly_pde::stencil::default_schemes;
//!
//! // Δu = 4 claimed for u = x² + y², whose second differences are exact.
//! let grid = Grid::unit(16, 16);
//! let claim = Claim {
//!     schemes: default_schemes(&grid),
//!     grid,
//!     fields: vec!["u".into()],
//!     equations: vec![Equation { formula: "laplacian(u) - q".into(), region: Region::All }],
//!     field_schemes: BTreeMap::new(),
//!     numbers: BTreeMap::from([("q".into(), 4.0)]),
//!     formulas: BTreeMap::new(),
//!     arrays: BTreeMap::new(),
//! };
//! let u: Vec<f64> = (0..256).map(|i| ((i / 16) as f64 / 15.0).powi(2) + ((i % 16) as f64 / 15.0).powi(2)).collect();
//! let found = audit(&claim, &[vec![u.into()]], &|| Ok(()))?;
//! assert!(found.equations[0].relative.unwrap() < 1e-12 && found.slips.is_empty());
//! # Ok::<(), softly_pde::audit::AuditError>(())
//! ```

mod claim;
mod discretisation;
mod fit;
mod gram;
mod normalised;
mod outliers;
mod place;
mod search;
mod slips;
mod verdict;
mod words;

use rayon::prelude::*;
use serde::Serialize;
use thiserror::Error;

use crate::algebra::Value;
use crate::audit::claim::{Ready, sum};
use crate::audit::gram::Gram;
use crate::formula_error::FormulaError;
use crate::region::RegionError;

pub use claim::{Claim, Equation, Sample};
pub use discretisation::{Cause, Discretisation};
pub use fit::{Fit, FittedParameter, Identifiability, fit};
pub use outliers::{Outlier, outliers};
pub use place::{Band, RegionShare};
pub use slips::{Slip, SlipKind};
pub use words::{interval, number, percent};

/// Samples whose rounding is measured.
const ROUNDED: usize = 4;

/// Called between parts of long work; an error ends the work.
pub type Watch<'a> = dyn Fn() -> Result<(), AuditError> + Sync + 'a;

/// Why there is no audit.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AuditError {
    /// A formula that cannot be compiled.
    #[error("{0}")]
    Formula(#[from] FormulaError),
    /// A region that the grid does not have.
    #[error("{0}")]
    Region(#[from] RegionError),
    /// A residual that is not a number or infinite.
    #[error("the residual{} is not finite in sample {sample}", quoted(equation.as_deref()))]
    NotFinite {
        /// The equation, if it is known.
        equation: Option<String>,
        /// The sample, from 0.
        sample: usize,
    },
    /// A parameter that is no number of the claim.
    #[error("`{name}` is no number of the equation: it has {}", listed(known))]
    UnknownParameter {
        /// The name.
        name: String,
        /// The numbers that there are.
        known: Vec<String>,
        /// A similar name.
        near: Option<String>,
    },
    /// Nothing to look at.
    #[error("there are no samples")]
    NoSamples,
    /// The user asked to stop.
    #[error("stopped")]
    Stopped,
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

fn quoted(equation: Option<&str>) -> String {
    equation.map_or(String::new(), |equation| format!(" `{equation}`"))
}

/// What there is to say about data and the equations claimed for them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Audit {
    /// Samples that were looked at.
    pub samples: usize,
    /// Each equation.
    pub equations: Vec<EquationAudit>,
    /// Readings of the data in which the equations hold much better; any one of them would explain the residual.
    pub slips: Vec<Slip>,
    /// The result in words.
    pub verdict: String,
}

/// What there is to say about one equation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EquationAudit {
    /// The residual R as written.
    pub formula: String,
    /// The points where it counts.
    pub region: String,
    /// Mean |R|.
    pub mean_abs: f64,
    /// √⟨R²⟩.
    pub rms: f64,
    /// Largest |R|.
    pub max_abs: f64,
    /// √⟨R²⟩ relative to the largest term; none if there is nothing to compare with.
    pub relative: Option<f64>,
    /// √⟨T²⟩ of the largest term.
    pub scale: f64,
    /// The largest term.
    pub largest: String,
    /// Each term.
    pub terms: Vec<TermAudit>,
    /// √⟨R²⟩ that storing the fields in single precision alone would give.
    pub rounding: f64,
    /// Mean |R| by part of the grid.
    pub regions: Vec<RegionShare>,
    /// The residual by wavelength.
    pub wavelengths: Vec<Band>,
    /// Stencils of another order.
    pub discretisation: Option<Discretisation>,
    /// Residuals of nonsense.
    pub yardsticks: Yardsticks,
    /// Mean |R| at each point, row-major; NaN where the equation does not count.
    #[serde(skip)]
    pub map: Vec<f64>,
    /// √⟨R²⟩ of each sample that was looked at.
    #[serde(skip)]
    pub by_sample: Vec<f64>,
    /// The result in words.
    pub verdict: String,
}

/// One term of an equation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TermAudit {
    /// The term with its sign.
    pub text: String,
    /// Mean |T|.
    pub mean_abs: f64,
    /// √⟨T²⟩.
    pub rms: f64,
    /// The factor on this term alone that makes the residual smallest: 1 where the equation holds.
    pub factor: Option<f64>,
}

/// Mean |R| of fields that cannot be expected to obey the equation.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Yardsticks {
    /// The first field of one sample with the other fields of another; none for single fields or samples.
    pub shuffled: Option<f64>,
    /// All fields zero; none if the formula is not finite there.
    pub zero: Option<f64>,
    /// The mean over samples.
    pub mean_field: Option<f64>,
}

/// Looks at `claim` on `samples`; `watch` is called between the parts.
pub fn audit(claim: &Claim, samples: &[Sample], watch: &Watch<'_>) -> Result<Audit, AuditError> {
    if samples.is_empty() {
        return Err(AuditError::NoSamples);
    }
    let ready = claim.ready(&[])?;
    watch()?;
    let grams = Gram::of(&ready, samples);
    watch()?;
    let causes = discretisation::discretisation(claim, &ready, samples);
    let mut equations = Vec::new();
    for (e, (gram, discretisation)) in grams.iter().zip(causes).enumerate() {
        watch()?;
        equations.push(equation_audit(claim, &ready, e, gram, discretisation, samples)?);
    }
    let relative = |value: f64, scale: f64| if scale > 0.0 { value / scale } else { 0.0 };
    let floor = equations.iter().map(|e| relative(e.rounding, e.scale)).fold(0.0, f64::max);
    let stencils = equations.iter().map(|e| {
        e.discretisation.as_ref().map_or(0.0, |d| relative(d.difference_rms.min(d.given_rms.max(d.other_rms)), e.scale))
    });
    let tolerance = (3.0 * stencils.fold(0.0, f64::max)).clamp(0.03, 0.3);
    let slips = slips::slips(claim, samples, floor, tolerance, watch)?;
    for equation in &mut equations {
        equation.verdict = verdict::of_equation(equation, claim);
    }
    let verdict = verdict::of_all(&equations, &slips);
    Ok(Audit { samples: samples.len(), equations, slips, verdict })
}

/// Sums of one sample's residual and terms.
struct SampleSums {
    absolute: f64,
    square: f64,
    largest: f64,
    /// Σ|T| of every term.
    terms: Vec<f64>,
}

fn equation_audit(
    claim: &Claim,
    ready: &Ready,
    e: usize,
    gram: &Gram,
    discretisation: Option<Discretisation>,
    samples: &[Sample],
) -> Result<EquationAudit, AuditError> {
    let equation = &ready.equations[e];
    let formula = &claim.equations[e].formula;
    let n = equation.count as f64;
    let mut map = vec![0.0; claim.grid.len()];
    let mut sums: Vec<SampleSums> = Vec::with_capacity(samples.len());
    // In pieces, so that few residuals are in memory at a time.
    for piece in samples.chunks(64) {
        let each: Vec<(SampleSums, Vec<f64>)> = piece
            .par_iter()
            .map(|sample| {
                let terms = equation.terms(&ready.algebra, &ready.inputs(sample));
                let residual = sum(&terms);
                let over = |f: &dyn Fn(usize) -> f64| equation.points().map(f).sum::<f64>();
                let sums = SampleSums {
                    absolute: over(&|p| residual[p].abs()),
                    square: over(&|p| residual[p].powi(2)),
                    largest: equation.points().map(|p| residual[p].abs()).fold(0.0, f64::max),
                    terms: terms.iter().map(|term| over(&|p| term[p].abs())).collect(),
                };
                (sums, residual)
            })
            .collect();
        for (sample, residual) in each {
            if !sample.absolute.is_finite() {
                return Err(AuditError::NotFinite { equation: Some(formula.clone()), sample: sums.len() });
            }
            map.iter_mut().zip(&residual).for_each(|(sum, value)| *sum += value.abs());
            sums.push(sample);
        }
    }
    let samples_count = samples.len() as f64;
    for (value, inside) in map.iter_mut().zip(&equation.inside) {
        *value = if *inside { *value / samples_count } else { f64::NAN };
    }
    let total = |f: &dyn Fn(&SampleSums) -> f64| sums.iter().map(f).sum::<f64>() / (n * samples_count);
    let terms = (0..gram.terms).map(|k| TermAudit {
        text: equation.names[k].clone(),
        mean_abs: total(&|s| s.terms[k]),
        rms: gram.size(k),
        factor: (gram.terms > 1).then(|| gram.best_factor(k)).flatten(),
    });
    let rms = total(&|s| s.square).sqrt();
    let largest = gram.largest();
    let scale = if gram.terms > 1 { gram.size(largest) } else { whole_grid_size(ready, e, samples) };
    let alone = gram.terms == 1 && equation.count == claim.grid.len();
    Ok(EquationAudit {
        formula: formula.clone(),
        region: claim.equations[e].region.to_string(),
        mean_abs: total(&|s| s.absolute),
        rms,
        max_abs: sums.iter().map(|s| s.largest).fold(0.0, f64::max),
        relative: (scale > 0.0 && !alone).then(|| rms / scale),
        scale,
        largest: equation.names[largest].clone(),
        terms: terms.collect(),
        rounding: rounding(ready, e, samples),
        regions: place::regions(&map, &claim.grid),
        wavelengths: place::wavelengths(claim, ready, e, largest, samples),
        discretisation,
        yardsticks: yardsticks(ready, e, samples),
        by_sample: sums.iter().map(|s| (s.square / n).sqrt()).collect(),
        map,
        verdict: String::new(),
    })
}

/// √⟨T²⟩ of the only term of an equation over all points, also those where the equation does not count.
fn whole_grid_size(ready: &Ready, e: usize, samples: &[Sample]) -> f64 {
    let of = |sample: &Sample| {
        let values = ready.equations[e].residual(&ready.algebra, &ready.inputs(sample));
        values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64
    };
    (samples.par_iter().map(of).collect::<Vec<_>>().iter().sum::<f64>() / samples.len() as f64).sqrt()
}

/// √⟨(R(u + δ) − R(u))²⟩ with δ as large as the error of single precision, 2⁻²⁴ |u| at most.
fn rounding(ready: &Ready, e: usize, samples: &[Sample]) -> f64 {
    let (equation, points) = (&ready.equations[e], ready.algebra.grid().len());
    let mut state = 0_u64;
    // Uniform between −1 and 1, the same on every run (splitmix64).
    let mut noise = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 * f64::exp2(-52.0) - 1.0
    };
    let few = &samples[..samples.len().min(ROUNDED)];
    let mut square = 0.0;
    for sample in few {
        let mut moved = |field: &Value| {
            let values = field.broadcast(points);
            Value::from(values.iter().map(|v| v + v * noise() * f64::exp2(-24.0)).collect::<Vec<_>>())
        };
        let moved: Sample = sample.iter().map(&mut moved).collect();
        let [old, new] = [sample, &moved].map(|sample| equation.residual(&ready.algebra, &ready.inputs(sample)));
        square += equation.points().map(|p| (new[p] - old[p]).powi(2)).sum::<f64>() / equation.count as f64;
    }
    (square / few.len().max(1) as f64).sqrt()
}

fn yardsticks(ready: &Ready, e: usize, samples: &[Sample]) -> Yardsticks {
    let (equation, points) = (&ready.equations[e], ready.algebra.grid().len());
    let size = |sample: &Sample| {
        let residual = equation.residual(&ready.algebra, &ready.inputs(sample));
        equation.points().map(|p| residual[p].abs()).sum::<f64>() / equation.count as f64
    };
    let finite = |size: f64| size.is_finite().then_some(size);
    let fields = samples[0].len();
    let used: Vec<usize> =
        (0..fields).filter(|&slot| equation.programs.iter().any(|(_, program)| program.uses(slot))).collect();
    let shuffled = (samples.len() > 1 && used.len() > 1).then(|| {
        let pair = |i: usize| {
            let mut pair = samples[(i + 1) % samples.len()].clone();
            pair[used[0]] = samples[i][used[0]].clone();
            size(&pair)
        };
        let few = samples.len().min(256);
        (0..few).into_par_iter().map(pair).collect::<Vec<_>>().iter().sum::<f64>() / few as f64
    });
    Yardsticks {
        shuffled: shuffled.and_then(finite),
        zero: finite(size(&vec![Value::Number(0.0); fields])),
        mean_field: (samples.len() > 1).then(|| size(&place::mean_sample(samples, points))).and_then(finite),
    }
}
