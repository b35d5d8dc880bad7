//! How a denoiser errs at every noise level.
//!
//! x0 = D + U a + C √ρ b with standard normal a and b: U holds the leading modes of the errors x0 − D, over all fields at once, so that
//! an error of one field tells of the errors of the others. What the modes leave out has the variance ρ by waves C, the cosines of a
//! grid, so that a covariance of any grid is known from few samples. Errors are in units of c_out, in which they change little from
//! level to level, and their covariances are interpolated in ln σ.
//!
//! An equation R(x0) = 0 is the row R(D) + J(x0 − D) = m + noise of the variance κV at every node; m and V are what that was found to be
//! ([`crate::observe::measure`]), so that a wrong equation and its curvature count as noise.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Device, Tensor};
use softly_pde::gaussian::Modes;

use crate::constraint::basis::{Basis, Family, Transform};
use crate::denoiser::edm::Precondition;
use crate::statistics::log_spaced;
use crate::tensors::{field_batch, to_vec_f64};

/// Noise levels at which errors are measured, evenly spaced in ln σ.
pub(crate) const LEVELS: usize = 20;
const FIRST: f64 = 0.001;
const LAST: f64 = 80.0;

/// Most modes.
pub(crate) const MODES: usize = 256;

/// Share of the errors' energy that modes may leave out.
pub(crate) const LEFT_OUT: f64 = 1e-4;

/// Places between σmax and σmin where the density of levels is looked at.
const PLACES: usize = 64;

/// The least density of levels, over that of errors that are proportional to σ.
const LEAST_DENSITY: f64 = 0.1;

/// The errors of a denoiser by noise level.
pub struct Errors {
    basis: Basis,
    source: Source,
    /// By the bits of σ.
    found: Mutex<HashMap<u64, Arc<ErrorsAt>>>,
}

/// Where the errors are known from.
enum Source {
    /// Measurements at several levels.
    Levels { levels: Vec<LevelErrors>, sigma_data: f64 },
    /// A formula of σ.
    Known(Box<dyn Fn(f64) -> Modes + Send + Sync>),
}

/// At a measured level.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LevelErrors {
    /// Of (x0 − D)/c_out by waves.
    pub modes: Modes,
    /// Of the equation, if there is one.
    pub misfit: Option<Misfit>,
}

/// The equation's misfit R(D) + J(x0 − D).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Misfit {
    /// m, `[E, H, W]`.
    pub mean: Vec<f64>,
    /// V's diagonal, `[E, H, W]`.
    pub variance: Vec<f64>,
    /// The variance of J C √ρ b, what errors beyond the modes do to the equation, `[E, H, W]`.
    pub rest: Vec<f64>,
    /// The factor κ on V.
    pub inflation: f64,
}

/// The errors at any noise level.
pub(crate) struct ErrorsAt {
    /// U as fields, `[L, C, H, W]`.
    pub modes: Vec<f64>,
    /// The same in single precision.
    pub single: Tensor<4>,
    /// √ρ by waves, `[1, C, H, W]`.
    pub rest: Tensor<4>,
    /// C.
    pub waves: Transform,
    /// The equation's misfit, if it is known.
    pub misfit: Option<MisfitAt>,
}

/// The equation's misfit at any noise level, `[E, H, W]` each.
pub(crate) struct MisfitAt {
    /// m.
    pub mean: Vec<f64>,
    /// √(κV).
    pub deviation: Vec<f64>,
    /// The standard deviation of J C √ρ b.
    pub rest: Vec<f64>,
}

impl Errors {
    /// The errors of measured levels, by the waves of `basis`.
    pub(crate) fn new(levels: Vec<LevelErrors>, basis: Basis, sigma_data: f64) -> Self {
        Self { basis, source: Source::Levels { levels, sigma_data }, found: Mutex::new(HashMap::new()) }
    }

    /// Errors of fields `[C, H, W]` whose covariance at every σ is known, all of it in modes by nodes; an equation's misfit is not.
    pub fn known(
        [channels, rows, cols]: [usize; 3],
        covariance: impl Fn(f64) -> Modes + Send + Sync + 'static,
    ) -> Self {
        let basis = Basis::new(vec![[Family::Cosine; 2]; channels], rows, cols);
        Self { basis, source: Source::Known(Box::new(covariance)), found: Mutex::new(HashMap::new()) }
    }

    /// The noise levels that are measured.
    pub(crate) fn measured_levels() -> Vec<f64> {
        log_spaced(FIRST, LAST, LEVELS)
    }

    /// The measured levels; none if the errors are known by a formula.
    pub(crate) fn levels(&self) -> &[LevelErrors] {
        match &self.source {
            Source::Levels { levels, .. } => levels,
            Source::Known(_) => &[],
        }
    }

    /// Bytes of the errors at `count` noise levels, which stay in memory for the next samples.
    pub(crate) fn bytes(&self, count: usize) -> f64 {
        let numbers = self.levels().iter().map(|level| level.modes.vectors.len()).max().unwrap_or(0);
        (size_of::<f64>() + size_of::<f32>()) as f64 * count as f64 * numbers as f64
    }

    /// Noise levels above `sigma` whose errors may be those of an estimate at `sigma` as well, ascending: the measured ones and those
    /// half-way between them. Errors that are known by a formula are what they are.
    pub(crate) fn higher_levels(&self, sigma: f64) -> impl Iterator<Item = f64> {
        let count = if self.levels().is_empty() { 0 } else { 2 * LEVELS - 1 };
        // A hair above a level is the level.
        log_spaced(FIRST, LAST, count).into_iter().filter(move |level| *level > 1.01 * sigma)
    }

    /// σ, number of modes, share of the variance that they leave out, and inflation of the misfit at every measured level.
    pub fn summary(&self) -> Vec<(f64, usize, f64, Option<f64>)> {
        let of = |(sigma, level): (f64, &LevelErrors)| {
            let (held, left) = (level.modes.values.iter().sum::<f64>(), level.modes.rest.iter().sum::<f64>());
            (sigma, level.modes.len(), left / (held + left), level.misfit.as_ref().map(|misfit| misfit.inflation))
        };
        Self::measured_levels().into_iter().zip(self.levels()).map(of).collect()
    }

    /// How many noise levels a sampler wants at places even in ln σ from `sigma_max` to `sigma_min`, up to a factor: so many that
    /// the errors' energy falls by the same share from each to the next.
    pub(crate) fn density(&self, sigma_max: f64, sigma_min: f64) -> Vec<f64> {
        let places = log_spaced(sigma_max, sigma_min, PLACES + 1);
        let energies: Vec<f64> = places.iter().map(|&sigma| self.energy(sigma)).collect();
        let full = 2.0 * (sigma_max / sigma_min).ln() / PLACES as f64;
        let slopes: Vec<f64> =
            energies.windows(2).map(|pair| ((pair[0] / pair[1]).ln() / full).max(LEAST_DENSITY)).collect();
        // A place's density is the mean of both sides.
        let side = |k: usize| slopes[k.min(PLACES - 1)];
        (0..=PLACES).map(|k| 0.5 * (side(k.saturating_sub(1)) + side(k))).collect()
    }

    /// E‖x0 − D‖² at `sigma`.
    fn energy(&self, sigma: f64) -> f64 {
        let of = |modes: &Modes| modes.values.iter().chain(&modes.rest).sum::<f64>().max(1e-300);
        match &self.source {
            Source::Known(covariance) => of(&covariance(sigma)),
            Source::Levels { levels, sigma_data } => {
                let (low, share) = place(levels.len(), sigma);
                let (first, second) = (of(&levels[low].modes).ln(), of(&levels[low + 1].modes).ln());
                ((1.0 - share) * first + share * second).exp() * Precondition::new(sigma, *sigma_data).out.powi(2)
            }
        }
    }

    /// The errors at `sigma`, as fields on `device`.
    pub(crate) fn at(&self, sigma: f64, device: &Device) -> Arc<ErrorsAt> {
        let known = self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&sigma.to_bits()).cloned();
        known.unwrap_or_else(|| {
            let shape = self.basis.shape();
            let fields = |values: Vec<f64>| field_batch(values, shape, device);
            let waves = self.basis.transform(&fields(vec![0.0; shape.iter().product()]));
            let (modes, rest, misfit) = match &self.source {
                Source::Known(covariance) => {
                    let modes = covariance(sigma);
                    (fields(modes.vectors), modes.rest, None)
                }
                Source::Levels { levels, sigma_data } => {
                    let (modes, misfit) = interpolated(levels, *sigma_data, sigma);
                    (waves.fields(fields(modes.vectors)), modes.rest, misfit)
                }
            };
            let rest = fields(rest.iter().map(|variance| variance.sqrt()).collect());
            let single = modes.clone().cast(DType::F32);
            let made = ErrorsAt { modes: to_vec_f64(modes), single, rest, waves, misfit };
            let made = Arc::new(made);
            self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(sigma.to_bits(), made.clone());
            made
        })
    }
}

impl ErrorsAt {
    /// L.
    pub fn len(&self) -> usize {
        self.single.dims()[0]
    }

    /// U a `[C·H·W]` for coefficients a `[L]`.
    pub fn combined(&self, coefficients: &[f64]) -> Vec<f64> {
        let len = self.modes.len() / self.len().max(1);
        let mut sum = vec![0.0; len];
        for (mode, a) in self.modes.chunks_exact(len.max(1)).zip(coefficients) {
            sum.iter_mut().zip(mode).for_each(|(sum, v)| *sum += a * v);
        }
        sum
    }

    /// C √ρ b for waves b, both `[N, C, H, W]`.
    pub fn spread(&self, waves: Tensor<4>) -> Tensor<4> {
        self.waves.fields(waves * self.rest.clone())
    }

    /// √ρ Cᵀ g for fields g, both `[N, C, H, W]`.
    pub fn gathered(&self, fields: Tensor<4>) -> Tensor<4> {
        self.waves.coefficients(fields) * self.rest.clone()
    }
}

/// The level below `sigma` of `count`, and how far `sigma` is towards the next one.
fn place(count: usize, sigma: f64) -> (usize, f64) {
    let last = (count - 1) as f64;
    let place = ((sigma / FIRST).ln() / (LAST / FIRST).ln() * last).clamp(0.0, last);
    let low = (place.floor() as usize).min(count - 2);
    (low, place - low as f64)
}

/// The covariance at `sigma` between measured levels, by waves, and the misfit if there is one.
fn interpolated(levels: &[LevelErrors], sigma_data: f64, sigma: f64) -> (Modes, Option<MisfitAt>) {
    let (low, share) = place(levels.len(), sigma);
    let (first, second) = (&levels[low], &levels[low + 1]);
    let mut modes = match share {
        0.0 => first.modes.clone(),
        1.0 => second.modes.clone(),
        _ => Modes::between(&first.modes, &second.modes, share, MODES, LEFT_OUT),
    };
    let size = Precondition::new(sigma, sigma_data).out;
    modes.vectors.iter_mut().for_each(|v| *v *= size);
    modes.values.iter_mut().chain(&mut modes.rest).for_each(|v| *v *= size * size);
    let misfit = first.misfit.as_ref().zip(second.misfit.as_ref()).map(|(a, b)| {
        let inflation = (1.0 - share) * a.inflation.ln() + share * b.inflation.ln();
        let mean = a.mean.iter().zip(&b.mean).map(|(a, b)| (1.0 - share) * a + share * b);
        let deviation = |a: &[f64], b: &[f64], inflation: f64| {
            let of = |(a, b): (&f64, &f64)| (0.5 * ((1.0 - share) * a.ln() + share * b.ln() + inflation)).exp();
            a.iter().zip(b).map(of).collect()
        };
        MisfitAt {
            mean: mean.collect(),
            deviation: deviation(&a.variance, &b.variance, inflation),
            rest: deviation(&a.rest, &b.rest, 0.0),
        }
    });
    (modes, misfit)
}
