//! The likelihood of data under a diffusion model, by the probability-flow ODE.
//!
//! **What density.** A sampler starts at N(0, σmax² I) and follows dx/dσ = (x − D(x; σ))/σ down to σmin. What comes out
//! there has a density of its own, p, and this module evaluates it: it is normalised whatever the denoiser, so models
//! can be compared by it. Following the flow from x at σmin up to x_T at σmax,
//!
//! log p(x) = log N(x_T; 0, σmax² I) + ∫ (d − tr ∂D/∂x) d ln σ   over ln σmin … ln σmax   (the paper's appendix).
//!
//! The last term of the paper's formula is called an entropy there; it is the log-density at x_T.
//!
//! **Of what.** p is the model's density of data + σmin·noise, so that is where it is evaluated: x = x0 + σmin·noise,
//! the noise of a sample being fixed by (seed, index) and thus the same for every model. The mean of −log p is then a
//! cross-entropy, lowest for the true density. (At x0 itself it would not be: a model is rewarded there for putting
//! mass at the centre of noise that it does not know to be absent, by up to ½ nat per dimension.) It follows that
//! numbers of different σmin cannot be compared: a flat direction of the data costs log2(σmin) + const bits.
//!
//! **Coloured noise.** With a noise of covariance C the sampler starts at N(0, σmax² C), whose density takes the place
//! of the white one; the flow and its trace are the same.
//!
//! **DDPM.** The adjustment of the paper's appendix, x_t = x/√(1+σ²) as the network's input and the drift
//! (x_t − √ᾱ x̂0)/√(1−ᾱ) = (x − x̂0)/σ, is what [`crate::denoiser::ddpm::Ddpm`] does to be a denoiser at all. What remains is that its
//! network knows single noise levels only, so the integral goes from level to level: [`Integrator::Cosine`].
//!
//! **Jumps.** The formula needs a flow that is unique in both directions. A correction that jumps (the signs of an L1
//! norm, the scale `unit`, a residual with a kink) can gather paths on the jump: seen downwards that is mass without a
//! density, seen upwards a region that no sample comes from, where −log p is infinite and what is computed grows with
//! the accuracy. [`LikelihoodReport::forced_steps`] counts the steps that hit such places; if there are many, trust the
//! bound of [`crate::evaluate::denoising_loss`], which asks nothing of the denoiser but its error.
//!
//! **How.** x moves along straight lines in σ where the data are narrow and stands still where they are wide; in both cases the
//! estimate D and the trace are constant, and in between they are smooth in ln σ. So the path is that of a polynomial through
//! the latest estimates in the place of D, everything else being exact, and the trace is integrated over the same nodes: a step
//! is one denoiser call with its derivative. The state is f64 around the network's f32.

use burn::tensor::Device;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::constraint::config::{ConstraintConfig, ParameterConfig};
use crate::denoiser::Denoiser;
use crate::denoiser::ddpm::CosineSchedule;
use crate::error::{Error, Result};
use crate::evaluate::held_out::HeldOut;
use crate::evaluate::quadrature::{divided_difference, integrate};
use crate::job::Job;
use crate::noise::Noise;
use crate::random::{Purpose, Stream};
use crate::sampler::Sampler;
use crate::sampler::sigma_grid::SigmaGrid;
use crate::sampler::solver::multistep::Leap;
use crate::statistics::Summary;
use crate::tensors::{field_batch, to_vec_f64};
use crate::units::Units;

/// How the path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Integrator {
    /// Heun's second-order steps over the levels of a sampler's [`SigmaGrid`].
    Heun {
        /// Levels, σmin and σmax among them.
        steps: usize,
        /// Crowding of the levels at the low end.
        rho: f64,
    },
    /// Heun's steps over those levels of a cosine DDPM schedule that lie between σmin and σmax; the lowest and the
    /// highest of them take the place of σmin and σmax.
    Cosine {
        /// Levels of the whole schedule.
        levels: usize,
    },
    /// UniPC upwards: steps of one denoiser call, as long as their error allows. Every sample has steps of its own, so
    /// its result does not depend on its batch.
    Adaptive {
        /// Largest error of a step before its correction: of the state in units of σ (root mean square over dimensions), and of
        /// the trace's integral in nats per dimension.
        tolerance: f64,
    },
}

/// How the trace of the denoiser's Jacobian is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Probes {
    /// Σ eᵀ J e over unit vectors: exact, one reverse pass per dimension.
    Exact,
    /// Hutchinson's mean of vᵀ J v over vectors of random signs.
    Rademacher {
        /// Vectors per sample, each kept along the whole path.
        count: usize,
    },
    /// The same with standard normal vectors; more variance.
    Gaussian {
        /// Vectors per sample, each kept along the whole path.
        count: usize,
    },
}

/// How likelihoods are computed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Likelihood {
    /// The noise level at which the density is taken: the same for all models that are compared.
    pub sigma_min: f64,
    /// The noise level at which the density is known: N(0, σmax² I).
    pub sigma_max: f64,
    /// How the path is followed.
    pub integrator: Integrator,
    /// How the trace is found.
    pub probes: Probes,
    /// Fields that go through the network at a time; a sample counts once per probe.
    pub batch: usize,
}

impl Default for Likelihood {
    fn default() -> Self {
        let SigmaGrid { sigma_min, sigma_max, .. } = SigmaGrid::default();
        Self {
            sigma_min,
            sigma_max,
            integrator: Integrator::Adaptive { tolerance: 1e-3 },
            probes: Probes::Rademacher { count: 4 },
            batch: 64,
        }
    }
}

/// The likelihood of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SampleLikelihood {
    /// −log p in nats, normalised units, all dimensions together.
    pub nats: f64,
    /// −log2 p per dimension, normalised units.
    pub bits_per_dim: f64,
    /// −log2 p per dimension, physical units.
    pub bits_per_dim_physical: f64,
    /// Standard error of `bits_per_dim` from the choice of probes; none with fewer than two.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub probe_standard_error: Option<f64>,
    /// Denoiser calls.
    pub evaluations: usize,
    /// Reverse passes through the denoiser.
    pub reverse_passes: usize,
    /// Steps that were taken though their error was too large, because they were as short as steps may be.
    pub forced_steps: usize,
}

impl SampleLikelihood {
    /// All of it as numbers, which ranks send each other.
    fn numbers(&self) -> [f64; 8] {
        let (has_error, error) = self.probe_standard_error.map_or((0.0, 0.0), |error| (1.0, error));
        let counts = [self.evaluations, self.reverse_passes, self.forced_steps].map(|count| count as f64);
        [self.nats, self.bits_per_dim, self.bits_per_dim_physical, has_error, error, counts[0], counts[1], counts[2]]
    }

    fn of_numbers(numbers: [f64; 8]) -> Self {
        let [nats, bits_per_dim, bits_per_dim_physical, has_error, error, evaluations, reverse_passes, forced_steps] =
            numbers;
        Self {
            nats,
            bits_per_dim,
            bits_per_dim_physical,
            probe_standard_error: (has_error > 0.0).then_some(error),
            evaluations: evaluations as usize,
            reverse_passes: reverse_passes as usize,
            forced_steps: forced_steps as usize,
        }
    }
}

/// The likelihood of a set of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LikelihoodReport {
    /// Mean of −log2 p per dimension, normalised units.
    pub bits_per_dim: f64,
    /// The same in physical units: larger by the mean of log2 scale.
    pub bits_per_dim_physical: f64,
    /// Standard error of the mean over data, the choice of probes included; none for a single sample.
    pub standard_error: Option<f64>,
    /// The part of it that is due to the choice of probes: 0 if exact, none with fewer than two probes.
    pub probe_standard_error: Option<f64>,
    /// Samples.
    pub count: usize,
    /// Dimensions of a sample.
    pub dimensions: usize,
    /// Noise level of the density: p belongs to data + σmin·noise.
    pub sigma_min: f64,
    /// Noise level at which the path ended, at N(0, σmax² I).
    pub sigma_max: f64,
    /// Mean denoiser calls per sample.
    pub evaluations: f64,
    /// Mean reverse passes per sample.
    pub reverse_passes: f64,
    /// Steps, over all samples, that were taken though their error was too large.
    pub forced_steps: usize,
    /// The physical units.
    pub units: Units,
    /// How it was computed.
    pub settings: Likelihood,
    /// Seed of the noise at σmin and of the probes.
    pub seed: u64,
    /// Each sample.
    pub samples: Vec<SampleLikelihood>,
}

/// Units of progress per sample: hundredths of its way in ln σ.
pub const PROGRESS_PER_SAMPLE: usize = 100;

/// Estimates that a step is predicted from; its correction has one more.
const ORDER: usize = 3;
/// The first step in ln σ, …
const FIRST: f64 = 0.25;
/// … the longest, …
const LONGEST: f64 = 1.4;
/// … and the shortest: a denoiser with jumps (signs of residuals) has no short step without error.
const SHORTEST: f64 = 0.01;

impl Likelihood {
    /// The settings that suit a model of this configuration: its sampler's σmin and σmax, its noise levels if it knows
    /// single ones only, and the sampler's fixed steps if parts of its constraint are drawn anew at every evaluation, for
    /// then no step is without error.
    pub fn for_model(config: &Config) -> Self {
        let Sampler { steps, rho, sigma_min, sigma_max, .. } = config.sampler;
        let drawn = |constraint: &ConstraintConfig| {
            constraint.parameters.values().any(|p| matches!(p, ParameterConfig::Normal { .. }))
        };
        let integrator = match config.ddpm_levels() {
            Some(levels) => Integrator::Cosine { levels },
            None if config.denoiser.scd.is_some() && config.constraint.as_ref().is_some_and(drawn) => {
                Integrator::Heun { steps, rho }
            }
            None => Self::default().integrator,
        };
        Self { sigma_min, sigma_max, integrator, ..Self::default() }
    }

    /// −log p of every sample of `data`.
    ///
    /// Build `denoiser` on a device without autodiff, or its weights get gradients that nobody wants. Sample i depends
    /// on (seed, i) and its data alone. Ranks share the samples, chunks of samples run in parallel; progress is counted in
    /// hundredths of samples done, [`PROGRESS_PER_SAMPLE`] per sample in all.
    pub fn evaluate(
        &self,
        denoiser: &dyn Denoiser,
        data: HeldOut<'_>,
        seed: u64,
        job: &Job<'_>,
    ) -> Result<LikelihoodReport> {
        data.check()?;
        let levels = self.levels()?;
        let rows = match self.probes {
            Probes::Exact => data.size(),
            Probes::Rademacher { count } | Probes::Gaussian { count } => count,
        };
        let flow = Flow {
            denoiser,
            shape: data.shape,
            exact: self.probes == Probes::Exact,
            batch: self.batch,
            device: job.device,
        };
        let noise = denoiser.noise();
        let indices: Vec<usize> = job.ranks.part(data.count()).collect();
        let chunks: Vec<Option<Vec<Path>>> = indices
            .par_chunks((self.batch / rows).max(1))
            .map(|chunk| {
                let start = |&i: &usize| self.start(data, i, seed, levels[0], &noise);
                let mut paths: Vec<Path> = chunk.iter().map(start).collect();
                self.follow(&flow, &mut paths, &levels, job).then_some(paths)
            })
            .collect();
        let Some(paths) = chunks.into_iter().collect::<Option<Vec<_>>>() else {
            return Err(Error::Interrupted { hint: "nothing was written; run the same command again".into() });
        };
        let last = levels[levels.len() - 1];
        let own = paths.iter().flatten().map(|path| path.outcome(flow.exact, last, data, &noise));
        let own: Vec<f64> = own.flat_map(|sample| sample.numbers()).collect();
        let samples: Vec<SampleLikelihood> =
            job.ranks.join(&own)?.as_chunks().0.iter().map(|numbers| SampleLikelihood::of_numbers(*numbers)).collect();
        if let Some((i, bad)) = samples.iter().enumerate().find(|(_, s)| !s.nats.is_finite()) {
            let why = format!(
                "−log p of held-out sample {i} came out as {}: the denoiser drives its path out of all bounds",
                bad.nats
            );
            return Err(Error::Failed { what: "the likelihood".into(), why });
        }
        Ok(self.report(samples, [levels[0], last], data, seed))
    }

    /// The noise levels that the path visits, lowest first; of the adaptive path only the two ends.
    fn levels(&self) -> Result<Vec<f64>> {
        let Self { sigma_min, sigma_max, .. } = *self;
        if !(sigma_min > 0.0 && sigma_min < sigma_max && sigma_max.is_finite()) {
            let problem = format!("expected 0 < sigma_min < sigma_max, found {sigma_min} and {sigma_max}");
            return Err(Error::input("likelihood.sigma_min", problem));
        }
        if self.batch == 0 {
            return Err(Error::input("likelihood.batch", "expected at least 1, found 0"));
        }
        if let Probes::Rademacher { count: 0 } | Probes::Gaussian { count: 0 } = self.probes {
            let hint = "`exact` needs no probes, but a reverse pass per dimension";
            return Err(Error::input("likelihood.probes.count", "expected at least 1 probe, found 0").hint(hint));
        }
        match self.integrator {
            Integrator::Heun { steps, rho } => {
                if steps < 2 || !(rho.is_finite() && rho > 0.0) {
                    let problem = format!("expected at least 2 steps and a positive rho, found {steps} and {rho}");
                    return Err(Error::input("likelihood.integrator", problem));
                }
                let grid = SigmaGrid { steps, sigma_min, sigma_max, rho, ..SigmaGrid::default() };
                let mut levels: Vec<f64> = grid.levels().into_iter().filter(|&s| s > 0.0).rev().collect();
                // Not a rounding error away from what was asked for.
                (levels[0], levels[steps - 1]) = (sigma_min, sigma_max);
                Ok(levels)
            }
            Integrator::Cosine { levels } => {
                let inside = CosineSchedule::new(levels).sigmas_between(sigma_min, sigma_max);
                if inside.len() < 2 {
                    let problem = format!(
                        "expected at least 2 of the {levels} noise levels between {sigma_min} and {sigma_max}, found {}",
                        inside.len()
                    );
                    return Err(Error::input("likelihood.integrator.levels", problem));
                }
                Ok(inside)
            }
            Integrator::Adaptive { tolerance } => {
                if !(tolerance.is_finite() && tolerance > 0.0) {
                    let problem = format!("expected a positive number, found {tolerance}");
                    return Err(Error::input("likelihood.integrator.tolerance", problem));
                }
                Ok(vec![sigma_min, sigma_max])
            }
        }
    }

    /// Sample `index` at `sigma`: x0 + σ·noise, with its probes. One stream gives the noise, then the probes.
    fn start(&self, data: HeldOut<'_>, index: usize, seed: u64, sigma: f64, noise: &Noise) -> Path {
        let size = data.size();
        let mut stream = Stream::new(seed, Purpose::Metric, index as u64);
        let noise = noise.draw(&mut stream, size);
        let x = data.sample(index).into_iter().zip(noise).map(|(v, n)| v + sigma * n).collect();
        let probes = match self.probes {
            Probes::Exact => (0..size * size).map(|k| f64::from(u8::from(k / size == k % size))).collect(),
            Probes::Rademacher { count } => {
                (0..count * size).map(|_| if stream.uniform() < 0.5 { -1.0 } else { 1.0 }).collect()
            }
            Probes::Gaussian { count } => stream.normals(count * size),
        };
        Path {
            x,
            sigma,
            known: Vec::new(),
            probes,
            step: FIRST,
            log_sigma: Vec::new(),
            rates: Vec::new(),
            evaluations: 0,
            reverse_passes: 0,
            forced_steps: 0,
            told: 0,
        }
    }

    /// Takes `paths` from the first of `levels` to the last; false if stopped on the way.
    fn follow(&self, flow: &Flow<'_>, paths: &mut [Path], levels: &[f64], job: &Job<'_>) -> bool {
        let last = levels[levels.len() - 1];
        let nodes = flow.nodes(paths.iter().map(|p| (&p.x[..], p.sigma, &p.probes[..])).collect());
        for (path, node) in paths.iter_mut().zip(nodes) {
            path.count(1, flow.size());
            path.arrive(path.x.clone(), path.sigma, node);
        }
        let mut next = levels[1..].iter();
        loop {
            let mut under_way: Vec<&mut Path> = paths.iter_mut().filter(|p| p.sigma < last).collect();
            if under_way.is_empty() {
                return true;
            }
            if job.stopped() {
                return false;
            }
            match (self.integrator, next.next()) {
                (Integrator::Adaptive { tolerance }, _) => flow.adaptive_step(&mut under_way, last, tolerance),
                (_, Some(&next)) => flow.heun_step(&mut under_way, next),
                (_, None) => return true,
            }
            let told: usize = under_way.iter_mut().map(|p| p.progress(levels[0], last)).sum();
            job.reporter.advance(told as u64);
        }
    }

    fn report(
        &self,
        samples: Vec<SampleLikelihood>,
        [sigma_min, sigma_max]: [f64; 2],
        data: HeldOut<'_>,
        seed: u64,
    ) -> LikelihoodReport {
        let count = samples.len();
        let summary = |f: fn(&SampleLikelihood) -> f64| Summary::of(&samples.iter().map(f).collect::<Vec<_>>());
        let bits = summary(|s| s.bits_per_dim);
        // Probes of different samples are independent: variances add.
        let probe_variance: Option<f64> =
            samples.iter().map(|s| s.probe_standard_error.map(|error| error * error)).sum();
        LikelihoodReport {
            bits_per_dim: bits.mean,
            bits_per_dim_physical: bits.mean + data.physical_shift(),
            standard_error: (count > 1).then(|| 0.5 * bits.two_sd / (count as f64).sqrt()),
            probe_standard_error: probe_variance.map(|sum| sum.sqrt() / count as f64),
            count,
            dimensions: data.size(),
            sigma_min,
            sigma_max,
            evaluations: summary(|s| s.evaluations as f64).mean,
            reverse_passes: summary(|s| s.reverse_passes as f64).mean,
            forced_steps: samples.iter().map(|s| s.forced_steps).sum(),
            units: data.units.clone(),
            settings: *self,
            seed,
            samples,
        }
    }
}

/// −ln σ and the estimate D `[C, H, W]` there.
type Known = (f64, Vec<f64>);

/// One sample's way from σmin to σmax.
struct Path {
    /// The state, `[C, H, W]`.
    x: Vec<f64>,
    sigma: f64,
    /// The latest estimates D and the −ln σ at which they were made, the latest first.
    known: Vec<Known>,
    /// `[K, C, H, W]`.
    probes: Vec<f64>,
    /// Length in ln σ of the next step to try.
    step: f64,
    /// ln σ of the nodes visited.
    log_sigma: Vec<f64>,
    /// d − vᵀ J v at these nodes, one per probe; d − tr J alone if exact.
    rates: Vec<Vec<f64>>,
    evaluations: usize,
    reverse_passes: usize,
    forced_steps: usize,
    /// Progress that was told already.
    told: usize,
}

/// The flow at a state.
struct Node {
    /// D.
    denoised: Vec<f64>,
    /// The divergence in ln σ, d − vᵀ J v per probe.
    rates: Vec<f64>,
}

impl Path {
    fn arrive(&mut self, x: Vec<f64>, sigma: f64, node: Node) {
        self.x = x;
        self.sigma = sigma;
        self.known.insert(0, (-sigma.ln(), node.denoised));
        self.known.truncate(ORDER);
        self.log_sigma.push(sigma.ln());
        self.rates.push(node.rates);
    }

    /// Counts a step with this many denoiser calls, the last of which came with the trace.
    fn count(&mut self, calls: usize, size: usize) {
        self.evaluations += calls;
        self.reverse_passes += self.probes.len() / size;
    }

    /// dx/dσ = (x − D)/σ.
    fn slope(&self) -> Vec<f64> {
        slope(&self.x, &self.known[0].1, self.sigma)
    }

    /// The error, per dimension, of the integral of the trace over a step to the given node: how far the polynomial through the
    /// latest four nodes, or as many as there are, is from the one through one node less.
    fn trace_error(&self, sigma: f64, rates: &[f64]) -> f64 {
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        let nodes = self.log_sigma.iter().zip(&self.rates).rev().map(|(u, rates)| (*u, mean(rates)));
        let all: Vec<(f64, f64)> = std::iter::once((sigma.ln(), mean(rates))).chain(nodes).take(4).collect();
        let width = all[0].0 - all[1].0;
        let distance = match all[..] {
            [a, b, c, d] => {
                let third = (divided_difference(c, b, a) - divided_difference(d, c, b)) / (a.0 - d.0);
                third * width.powi(3) * (width / 12.0 + (b.0 - c.0) / 6.0)
            }
            [a, b, c] => divided_difference(c, b, a) * width.powi(3) / 6.0,
            _ => (all[0].1 - all[1].1) * width / 12.0,
        };
        distance.abs() / self.x.len() as f64
    }

    /// Progress since it was asked for last.
    fn progress(&mut self, first: f64, last: f64) -> usize {
        let done = (PROGRESS_PER_SAMPLE as f64 * (self.sigma / first).ln() / (last / first).ln()).round() as usize;
        let news = done - self.told;
        self.told = done;
        news
    }

    fn outcome(&self, exact: bool, sigma_max: f64, data: HeldOut<'_>, noise: &Noise) -> SampleLikelihood {
        let size = self.x.len() as f64;
        let bits = |nats: f64| nats / (size * std::f64::consts::LN_2);
        let volumes: Vec<f64> = (0..self.rates[0].len())
            .map(|k| integrate(&self.log_sigma, &self.rates.iter().map(|r| r[k]).collect::<Vec<_>>()))
            .collect();
        let volume = Summary::of(&volumes);
        let nats = -(noise.log_density(&self.x, sigma_max) + volume.mean);
        SampleLikelihood {
            nats,
            bits_per_dim: bits(nats),
            bits_per_dim_physical: bits(nats) + data.physical_shift(),
            probe_standard_error: match volume.n {
                _ if exact => Some(0.0),
                1 => None,
                n => Some(bits(0.5 * volume.two_sd / (n as f64).sqrt())),
            },
            evaluations: self.evaluations,
            reverse_passes: self.reverse_passes,
            forced_steps: self.forced_steps,
        }
    }
}

/// x + Σ weight·slope.
fn moved(x: &[f64], terms: &[(f64, &[f64])]) -> Vec<f64> {
    (0..x.len()).map(|i| x[i] + terms.iter().map(|(weight, slope)| weight * slope[i]).sum::<f64>()).collect()
}

/// (x − D)/σ.
fn slope(x: &[f64], denoised: &[f64], sigma: f64) -> Vec<f64> {
    x.iter().zip(denoised).map(|(x, d)| (x - d) / sigma).collect()
}

/// The probability flow of a denoiser, for many samples at once.
struct Flow<'a> {
    denoiser: &'a dyn Denoiser,
    shape: [usize; 3],
    /// Probes are the unit vectors, and their terms are added up.
    exact: bool,
    batch: usize,
    device: &'a Device,
}

impl Flow<'_> {
    fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// dx/dσ at each state and its σ.
    fn slopes(&self, states: &[(Vec<f64>, f64)]) -> Vec<Vec<f64>> {
        let batches = states.chunks(self.batch).flat_map(|states| {
            let x = states.iter().flat_map(|(x, _)| x.iter().copied()).collect();
            let sigma: Vec<f64> = states.iter().map(|(_, sigma)| *sigma).collect();
            to_vec_f64(self.denoiser.denoise(field_batch(x, self.shape, self.device), &sigma))
        });
        let denoised: Vec<f64> = batches.collect();
        states.iter().zip(denoised.chunks(self.size())).map(|((x, sigma), d)| slope(x, d, *sigma)).collect()
    }

    /// D and the divergence at each state, its σ and its probes `[K, C, H, W]`.
    ///
    /// A reverse pass gives ∇(v·D) = Jᵀ v for every row of a batch, so a sample has a row per probe. The graph of a
    /// forward pass serves one reverse pass only: the row's forward pass is repeated too.
    fn nodes(&self, states: Vec<(&[f64], f64, &[f64])>) -> Vec<Node> {
        let size = self.size();
        let rows: Vec<(&[f64], f64, &[f64])> = states
            .iter()
            .flat_map(|&(x, sigma, probes)| probes.chunks(size).map(move |probe| (x, sigma, probe)))
            .collect();
        let (mut denoised, mut forms) = (Vec::new(), Vec::new());
        for rows in rows.chunks(self.batch) {
            let fields = |values: Vec<f64>| field_batch(values, self.shape, self.device);
            let x = fields(rows.iter().flat_map(|row| row.0).copied().collect()).autodiff().require_grad();
            let probes: Vec<f64> = rows.iter().flat_map(|row| row.2).copied().collect();
            let sigma: Vec<f64> = rows.iter().map(|row| row.1).collect();
            let estimate = self.denoiser.denoise(x.clone(), &sigma);
            denoised.extend(to_vec_f64(estimate.clone().without_autodiff()));
            // Summed over rows: each row's gradient involves its own estimate only.
            let mut gradients = (estimate * fields(probes.clone())).sum().backward();
            // No gradient: the denoiser does not look at x.
            let pulled = x.grad_remove(&mut gradients).map_or_else(|| vec![0.0; probes.len()], to_vec_f64);
            let dot = |(v, g): (&[f64], &[f64])| v.iter().zip(g).map(|(v, g)| v * g).sum::<f64>();
            forms.extend(probes.chunks(size).zip(pulled.chunks(size)).map(dot));
        }
        let mut first = 0;
        let node = |(_, _, probes): (&[f64], f64, &[f64])| {
            let rows = first..first + probes.len() / size;
            first = rows.end;
            let denoised = denoised[rows.start * size..(rows.start + 1) * size].to_vec();
            let forms = &forms[rows];
            let d = size as f64;
            let rates =
                if self.exact { vec![d - forms.iter().sum::<f64>()] } else { forms.iter().map(|f| d - f).collect() };
            Node { denoised, rates }
        };
        states.into_iter().map(node).collect()
    }

    /// Heun's step of every path to `next`.
    fn heun_step(&self, paths: &mut [&mut Path], next: f64) {
        let euler: Vec<_> = paths.iter().map(|p| (moved(&p.x, &[(next - p.sigma, &p.slope())]), next)).collect();
        let there = self.slopes(&euler);
        let arrived: Vec<Vec<f64>> = paths
            .iter()
            .zip(&there)
            .map(|(p, there)| {
                let half = 0.5 * (next - p.sigma);
                moved(&p.x, &[(half, &p.slope()), (half, there)])
            })
            .collect();
        let nodes = self.nodes(paths.iter().zip(&arrived).map(|(p, x)| (&x[..], next, &p.probes[..])).collect());
        for ((path, x), node) in paths.iter_mut().zip(arrived).zip(nodes) {
            path.count(2, self.size());
            path.arrive(x, next, node);
        }
    }

    /// Tries the next step of every path, and lengthens or shortens it by its error.
    fn adaptive_step(&self, paths: &mut [&mut Path], last: f64, tolerance: f64) {
        let leap = |path: &&mut Path| {
            let left = (last / path.sigma).ln();
            // No tiny step is left for the end: curvature would be measured over it.
            let length = path.step.min(0.5 * left);
            let next = if left <= path.step { last } else { path.sigma * length.exp() };
            (next, Leap::along_the_flow(path.sigma, next))
        };
        let leaps: Vec<(f64, Leap)> = paths.iter().map(leap).collect();
        let predicted: Vec<Vec<f64>> =
            paths.iter().zip(&leaps).map(|(p, (_, leap))| landed(leap, &p.x, &p.known)).collect();
        let places = paths.iter().zip(&leaps).zip(&predicted);
        let nodes = self.nodes(places.map(|((p, (next, _)), x)| (&x[..], *next, &p.probes[..])).collect());
        for (((path, (sigma, leap)), predicted), node) in paths.iter_mut().zip(leaps).zip(predicted).zip(nodes) {
            path.count(1, self.size());
            let order = path.known.len() as f64;
            let known: Vec<Known> =
                std::iter::once((leap.to(), node.denoised.clone())).chain(path.known.iter().cloned()).collect();
            let x = landed(&leap, &path.x, &known);
            let distance2: f64 = x.iter().zip(&predicted).map(|(x, p)| (x - p).powi(2)).sum();
            let state_error = (distance2 / x.len() as f64).sqrt() / sigma;
            let error = state_error.max(path.trace_error(sigma, &node.rates)) / tolerance;
            // A number that is not finite must not pass for a small error.
            let error = if state_error.is_finite() && error.is_finite() { error } else { f64::INFINITY };
            let length = (sigma / path.sigma).ln();
            let forced = error > 1.0 && length <= SHORTEST * (1.0 + 1e-9);
            if forced && error.is_infinite() {
                // The path has left every bound. Nothing brings it back, and the outcome will say so.
                path.arrive(vec![f64::NAN; x.len()], last, node);
            } else if error <= 1.0 || forced {
                path.forced_steps += usize::from(forced);
                path.arrive(x, sigma, node);
            }
            let factor = (0.9 * error.powf(-1.0 / (order + 1.0))).clamp(0.2, 2.0);
            path.step = (length * factor).clamp(SHORTEST, LONGEST);
        }
    }
}

/// Where `leap` leads from `x` if D is the polynomial through the `known` estimates.
fn landed(leap: &Leap, x: &[f64], known: &[Known]) -> Vec<f64> {
    let weights = leap.weights(known.iter().map(|(lambda, _)| *lambda));
    let terms: Vec<(f64, &[f64])> = weights.into_iter().zip(known).map(|(w, (_, d))| (w, &d[..])).collect();
    let decay = leap.decay();
    moved(&x.iter().map(|x| decay * x).collect::<Vec<_>>(), &terms)
}
