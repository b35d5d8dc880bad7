//! The studies of fields: what is trained and how it is sampled, for Darcy flow with a wrong source and the Helmholtz
//! equation with an uncertain or wrong wave number. [`crate::fields::run`] runs them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use softly::error::Result;
use softly::{Config, FieldEval, Layers};

use crate::fields::ablation::Ablation;
use crate::method::{Correction, Kind, Method, Trained};
use crate::scale::StudyScale;

/// The equation that is studied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Equation {
    /// Darcy flow; methods are given a source of strength `flow`, which is 10 in truth.
    Darcy,
    /// The Helmholtz equation; methods are given a wave number that scatters around the true 1, or a wrong one.
    Helmholtz,
}

/// What a method is given of the equation, right or wrong: in tables a number, or `{"k": number}`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Claim {
    /// The strength of Darcy's source, or the standard deviation σ_obs of the Helmholtz equation's wave number.
    Value(f64),
    /// A wave number that does not scatter.
    WaveNumber {
        /// The wave number.
        k: f64,
    },
}

/// As names of folders have it.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::WaveNumber { k } => write!(f, "k={k}"),
        }
    }
}

impl Claim {
    /// The number.
    pub fn number(self) -> f64 {
        match self {
            Self::Value(value) | Self::WaveNumber { k: value } => value,
        }
    }

    /// Whether the claim is on the study's main axis, σ_obs or f.
    pub fn on_main_axis(self) -> bool {
        matches!(self, Self::Value(_))
    }
}

impl Equation {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Darcy => "darcy",
            Self::Helmholtz => "helmholtz",
        }
    }

    /// What is varied, as tables call it.
    pub fn parameter(self) -> &'static str {
        match self {
            Self::Darcy => "f",
            Self::Helmholtz => "σ_obs",
        }
    }

    /// The value at which the constraint is right.
    pub fn truth(self) -> Claim {
        match self {
            Self::Darcy => Claim::Value(10.0),
            Self::Helmholtz => Claim::Value(0.0),
        }
    }

    /// The field that the equation is solved for.
    pub(crate) fn solved(self) -> &'static str {
        match self {
            Self::Darcy => "p",
            Self::Helmholtz => "u",
        }
    }

    /// The claim in words, such as `f = 15`.
    pub fn in_words(self, claim: Claim) -> String {
        match claim {
            Claim::Value(value) => format!("{} = {value}", self.parameter()),
            Claim::WaveNumber { k } => format!("k = {k}"),
        }
    }

    /// The setting that gives a method the claim.
    fn give(self, claim: Claim) -> String {
        match (self, claim) {
            (Self::Darcy, _) => format!("constraint.parameters.flow={:?}", claim.number()),
            (Self::Helmholtz, Claim::Value(0.0)) => "constraint.parameters.k=1.0".into(),
            (Self::Helmholtz, Claim::Value(std)) => format!("constraint.parameters.k={{ normal = [1.0, {std:?}] }}"),
            (Self::Helmholtz, Claim::WaveNumber { k }) => format!("constraint.parameters.k={k:?}"),
        }
    }

    /// The setting that lets a method learn its parameter, starting from the claim; none for a claim that scatters around
    /// the truth.
    fn let_learn(self, claim: Claim) -> Option<String> {
        match (self, claim) {
            (Self::Darcy, _) => Some(format!("constraint.parameters.flow={{ learn = {:?} }}", claim.number())),
            (Self::Helmholtz, Claim::Value(_)) => None,
            (Self::Helmholtz, Claim::WaveNumber { k }) => Some(format!("constraint.parameters.k={{ learn = {k:?} }}")),
        }
    }
}

/// What the study consists of.
#[derive(Debug, Clone)]
pub struct FieldStudy {
    /// The equation.
    pub equation: Equation,
    /// How much of it.
    pub scale: StudyScale,
    /// One ablation in place of the main tables.
    pub ablation: Option<Ablation>,
    /// Training seeds.
    pub seeds: Vec<u64>,
    /// What methods are given.
    pub claims: Vec<Claim>,
    /// What is measured of rows in the main table.
    pub full: FieldEval,
    /// What is measured of rows that only vary a sampler.
    pub brief: FieldEval,
}

/// One training.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Folder of the run.
    pub name: String,
    /// Method of the preset.
    pub method: Trained,
    /// Settings over the method's.
    pub settings: Vec<String>,
    /// What the method is given.
    pub claim: Claim,
    /// Training seed.
    pub seed: u64,
    /// The cell whose trained denoiser is frozen and adapted, if any.
    pub base: Option<String>,
    /// How the trained model is evaluated.
    pub variants: Vec<Variant>,
}

/// One way to sample from a trained model.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The method as tables have it.
    pub method: Method,
    /// What the method is given.
    pub claim: Claim,
    /// Settings over the run's own.
    pub settings: Vec<String>,
    /// The step of the training whose weights are sampled; the last if none.
    pub step: Option<u64>,
    /// Whether it is measured in full.
    pub full: bool,
}

impl FieldStudy {
    /// The study of `equation` at `scale`; `seeds` overrides how many seeds there are. Ablations have one.
    pub fn new(equation: Equation, scale: StudyScale, seeds: Option<u64>, ablation: Option<Ablation>) -> Self {
        let values: &[f64] = match (equation, scale) {
            (Equation::Darcy, StudyScale::Demo) => &[10.0, 15.0],
            (Equation::Darcy, _) => &[10.0, 7.5, 12.5, 15.0],
            (Equation::Helmholtz, StudyScale::Demo) => &[0.0, 0.5],
            (Equation::Helmholtz, _) => &[0.0, 0.05, 0.1, 0.5],
        };
        // The wave u is so small that k² u is little beside ∇²u for any σ_obs above. Here it is not: the first eigenvalue
        // of the square lies at k = 4.44, so that given 6 the long waves of a solution have the wrong sign.
        let wave_numbers: &[f64] = match equation {
            Equation::Darcy => &[],
            Equation::Helmholtz => &[6.0],
        };
        let (count, samples, likelihood) = match (equation, scale) {
            (_, StudyScale::Demo) => (1, 128, 32),
            (Equation::Darcy, StudyScale::Cpu | StudyScale::Long) => (3, 128, 32),
            // Four times the nodes.
            (Equation::Helmholtz, StudyScale::Cpu | StudyScale::Long) => (3, 64, 16),
            (_, StudyScale::Paper) => (1, 1000, 256),
        };
        let count = if ablation.is_some() { 1 } else { seeds.unwrap_or(count) };
        let batch = 32;
        let full = FieldEval { samples, batch, likelihood, likelihood_steps: 32, loss: 128, keep: 8 }.unless_reduced();
        let brief = FieldEval { likelihood: 0, loss: 0, keep: 4, ..full };
        let claims = values.iter().map(|&value| Claim::Value(value));
        let claims = claims.chain(wave_numbers.iter().map(|&k| Claim::WaveNumber { k })).collect();
        Self { equation, scale, ablation, seeds: (0..count).collect(), claims, full, brief }
    }

    /// The preset behind the study.
    pub fn preset(&self) -> String {
        format!("{}-{}", self.equation.name(), self.scale.name())
    }

    /// The claim furthest from the truth: the last.
    pub fn most_wrong(&self) -> Claim {
        self.claims.last().copied().unwrap_or_else(|| self.equation.truth())
    }

    /// Every training with its evaluations.
    pub fn cells(&self) -> Vec<Cell> {
        match self.ablation {
            Some(ablation) => ablation.cells(self),
            None => self.seeds.iter().flat_map(|&seed| self.cells_of(seed)).collect(),
        }
    }

    /// The main tables' part with one seed.
    ///
    /// Only the first seed has sweeps over weights, claims between the truth and the most wrong one, and methods beside the main
    /// comparison; for the Helmholtz equation, whose trainings take twice the time of Darcy flow's, SCD and the controls as
    /// well. Denoisers of Darcy flow are adapted to every claim with every seed.
    fn cells_of(&self, seed: u64) -> Vec<Cell> {
        let truth = self.equation.truth();
        let first = seed == self.seeds[0];
        let quick = self.equation == Equation::Darcy;
        let is_end = |claim: Claim| claim == truth || claim == self.most_wrong();
        let long = self.scale == StudyScale::Long;
        let compared = |claim: Claim| first || quick && is_end(claim);
        // A long training from scratch is made with the truth alone.
        let trained = |claim: Claim| if long { claim == truth } else { compared(claim) };
        let adapts = |claim: Claim| first || quick || is_end(claim);
        // Below the paper's scale the two ends stand for all claims.
        let stands_out = |claim: Claim| is_end(claim) || claim.on_main_axis() && self.scale == StudyScale::Paper;
        let swept = |claim: Claim| first && stands_out(claim);
        let as_sampled = |method: Trained, claim: Claim| {
            if stands_out(claim) {
                Variant::with_last_steps(method, claim)
            } else {
                vec![Variant::plain(method, claim)]
            }
        };
        let mut vanilla = as_sampled(Trained::Vanilla, truth);
        if first {
            vanilla.extend(self.on_the_way(Trained::Vanilla, truth));
        }
        for &claim in &self.claims {
            if first {
                let scales: &[usize] = if swept(claim) && self.scale != StudyScale::Demo { &[0, 1, 2] } else { &[1] };
                vanilla.extend(scales.iter().map(|&i| self.guided(self.guidance()[i], claim)));
            }
            if compared(claim) {
                vanilla.extend(self.post_hoc(claim, swept(claim)));
            }
        }
        let mut cells = vec![Cell::new(Trained::Vanilla, truth, seed, vanilla)];
        for &claim in &self.claims {
            if trained(claim) {
                let mut variants = as_sampled(Trained::Scd, claim);
                if first {
                    variants.extend(self.on_the_way(Trained::Scd, claim));
                }
                cells.push(Cell::new(Trained::Scd, claim, seed, variants));
            }
            if swept(claim) && trained(claim) {
                cells.push(Cell::new(Trained::Pidm, claim, seed, as_sampled(Trained::Pidm, claim)));
                // Where the preset's `pidm` is a tuned one and there is time for another.
                if self.equation == Equation::Darcy && matches!(self.scale, StudyScale::Cpu | StudyScale::Long) {
                    let published = Trained::PidmPublished;
                    cells.push(Cell::new(published, claim, seed, as_sampled(published, claim)));
                }
            }
            let mut adapted = vec![Variant::plain(Trained::Adapt, claim)];
            if first {
                // What was measured, without a learned γ.
                adapted.push(Variant {
                    method: Kind::PostHoc { correction: Correction::Kalman, weight: 1.0 }.into(),
                    claim,
                    settings: vec!["denoiser.scd.directions=[\"kalman\"]".into(), "denoiser.scd.constant=[1.0]".into()],
                    step: None,
                    full: self.scale == StudyScale::Long,
                });
            }
            if adapts(claim) {
                cells.push(self.adapted(Trained::Adapt, claim, seed, adapted));
            }
            if adapts(claim) && claim != truth && self.equation.let_learn(claim).is_some() {
                cells.push(self.learning(claim, seed));
            }
        }
        if first && self.scale != StudyScale::Demo {
            // More starts of the learned parameter.
            let starts: &[Claim] = match self.equation {
                Equation::Darcy => &[Claim::Value(5.0), Claim::Value(20.0)],
                Equation::Helmholtz => &[Claim::WaveNumber { k: 4.0 }],
            };
            for &start in starts {
                cells.push(self.learning(start, seed));
            }
        }
        if first && self.equation == Equation::Helmholtz {
            cells.push(self.fundps(seed));
        }
        let other_methods: &[Trained] = match (self.equation, self.scale) {
            (_, StudyScale::Long) => &[Trained::ScdPaper, Trained::ScdPaperNorm],
            (_, StudyScale::Paper) | (Equation::Darcy, StudyScale::Cpu) => {
                &[Trained::PidmDdpm, Trained::ScdPaper, Trained::ScdUnit]
            }
            _ => &[],
        };
        if first {
            for &method in other_methods {
                cells.push(Cell::new(method, truth, seed, vec![Variant::plain(method, truth)]));
            }
        }
        cells
    }

    /// The weights on the way of a long training, at steps of which its preset keeps a snapshot.
    fn on_the_way(&self, method: Trained, claim: Claim) -> Vec<Variant> {
        if self.scale != StudyScale::Long {
            return Vec::new();
        }
        let preset = Layers::new().preset(&self.preset()).and_then(|layers| layers.finish("preset"));
        let train = preset.expect("a preset of the program is valid").train;
        let every = train.snapshot_every.unwrap_or(train.iterations) as usize;
        let steps = (every as u64..train.iterations).step_by(every);
        steps.map(|step| Variant::on_the_way(method, claim, step)).collect()
    }

    /// FunDPS: a denoiser of functions in noise that is a random field, guided by observed nodes of the source and the
    /// residual, with the weights that it publishes for the Helmholtz equation; and the same denoiser without guidance.
    ///
    /// Its likelihood would be of data + σ_min·ε with another noise ε than that of all other rows, so it has none.
    fn fundps(&self, seed: u64) -> Cell {
        let truth = self.equation.truth();
        let guided = |&claim: &Claim| {
            let guidance =
                "sampler.guidance={ kind = \"fundps\", observe = { a = 10000.0 }, share = 0.03, residual = 1.0 }";
            let settings = vec![self.equation.give(claim), guidance.to_string()];
            Variant { method: Trained::Fundps.into(), claim, settings, step: None, full: false }
        };
        let method = Method::from(Trained::Fundps).with("without guidance");
        let free = Variant { method, claim: truth, settings: Vec::new(), step: None, full: false };
        let variants = std::iter::once(free).chain(self.claims.iter().map(guided)).collect();
        Cell::new(Trained::Fundps, truth, seed, variants)
    }

    /// The frozen vanilla denoiser, adapted while the parameter is learned from `start` on.
    fn learning(&self, start: Claim, seed: u64) -> Cell {
        self.adapted(Trained::AdaptLearn, start, seed, vec![Variant::plain(Trained::AdaptLearn, start)])
    }

    /// A training on top of the frozen vanilla denoiser.
    pub(crate) fn adapted(&self, method: Trained, claim: Claim, seed: u64, variants: Vec<Variant>) -> Cell {
        let base = Some(format!("vanilla-{}-{seed}", self.equation.truth()));
        Cell { base, ..Cell::new(method, claim, seed, variants) }
    }

    /// Scales of the guidance sweep: the one that serves best among powers of ten, and its neighbours. The gradient of the
    /// residual grows with the nodes on a side, so the finer the grid, the smaller. At the paper's scale, an extrapolation.
    fn guidance(&self) -> [f64; 3] {
        match (self.equation, self.scale) {
            (Equation::Darcy, StudyScale::Demo) | (Equation::Helmholtz, StudyScale::Cpu | StudyScale::Long) => {
                [3e-5, 1e-4, 3e-4]
            }
            (Equation::Darcy, StudyScale::Cpu | StudyScale::Long) | (Equation::Helmholtz, StudyScale::Paper) => {
                [3e-6, 1e-5, 3e-5]
            }
            (Equation::Darcy, StudyScale::Paper) => [3e-7, 1e-6, 3e-6],
            (Equation::Helmholtz, StudyScale::Demo) => [3e-4, 1e-3, 3e-3],
        }
    }

    /// Vanilla with guidance.
    fn guided(&self, scale: f64, claim: Claim) -> Variant {
        // The norm of DPS: the square root of the sum of R² over nodes.
        let dps = format!("sampler.guidance={{ kind = \"dps\", scale = {scale:?} }}");
        let guidance = ["constraint.norm=l2".to_string(), dps];
        let settings = std::iter::once(self.equation.give(claim)).chain(guidance).collect();
        Variant { method: Kind::Dps { scale }.into(), claim, settings, step: None, full: false }
    }

    /// Vanilla with guidance of the usual scale.
    pub(crate) fn usually_guided(&self, claim: Claim) -> Variant {
        self.guided(self.guidance()[1], claim)
    }

    /// Corrections with a constant γ, put on vanilla without any training: the control of everything that is said about SCD. All of
    /// the `sweep`, or the best known of each kind.
    fn post_hoc(&self, claim: Claim, sweep: bool) -> Vec<Variant> {
        let variant = |correction: Correction, weight: f64, scd: String| {
            let settings = vec![self.equation.give(claim), format!("denoiser.scd={{ {scd} }}")];
            let full = self.scale == StudyScale::Long;
            Variant { method: Kind::PostHoc { correction, weight }.into(), claim, settings, step: None, full }
        };
        let jacobi = |gamma: f64| {
            let constant = match self.equation {
                Equation::Darcy => format!("[{gamma:?}, 0.0]"),
                Equation::Helmholtz => format!("[0.0, {gamma:?}]"),
            };
            let scd = format!("scale = \"jacobi\", output = \"channel\", constant = {constant}");
            variant(Correction::Jacobi, gamma, scd)
        };
        let step = |gamma: f64| {
            let solved = self.equation.solved();
            let scd = format!("directions = [\"newton\"], solve_for = \"{solved}\", constant = [{gamma:?}]");
            variant(Correction::Newton, gamma, scd)
        };
        match self.scale {
            _ if !sweep => vec![jacobi(2.0), step(0.3)],
            StudyScale::Demo | StudyScale::Long => vec![jacobi(2.0), step(0.3), step(1.0)],
            _ => vec![jacobi(1.0), jacobi(2.0), step(0.15), step(0.3), step(0.6), step(1.0)],
        }
    }
}

impl Variant {
    /// The model as it was trained, measured in full.
    pub(crate) fn plain(method: impl Into<Method>, claim: Claim) -> Self {
        Self { method: method.into(), claim, settings: Vec::new(), step: None, full: true }
    }

    /// The model as it was trained, and with other last noise levels of the sampler: a weak last step can be most of a
    /// difference between two models.
    pub(crate) fn with_last_steps(method: Trained, claim: Claim) -> Vec<Self> {
        let last = |sigma_min: f64| {
            Self::sampled(method, claim, &format!("σ_min {sigma_min}"), format!("sampler.sigma_min={sigma_min:?}"))
        };
        vec![Self::plain(method, claim), last(0.005), last(0.01)]
    }

    /// The model of `method` with another setting of the sampler, which `what` says in words.
    pub(crate) fn sampled(method: Trained, claim: Claim, what: &str, setting: String) -> Self {
        Self { method: Method::from(method).with(what), claim, settings: vec![setting], step: None, full: false }
    }

    /// The model of `method` after `step` steps of its training.
    pub(crate) fn on_the_way(method: Trained, claim: Claim, step: u64) -> Self {
        let named = Method::from(method).with(format!("after {step} steps"));
        Self { step: Some(step), ..Self::plain(named, claim) }
    }

    /// The end of its files' names.
    fn file_name(&self) -> String {
        format!("{}-{}", self.method.file_name(), self.claim)
    }
}

impl Cell {
    /// A training of a method of the preset.
    pub(crate) fn new(method: Trained, claim: Claim, seed: u64, variants: Vec<Variant>) -> Self {
        let name = format!("{}-{claim}-{seed}", method.name());
        Self { name, method, settings: Vec::new(), claim, seed, base: None, variants }
    }

    /// The run's configuration, on the data in `data`.
    pub fn config(&self, study: &FieldStudy, data: &Path) -> Result<Config> {
        let preset = study.preset();
        let mut layers = Layers::new().preset(&preset)?.method(self.method.name())?;
        let learned = (self.method == Trained::AdaptLearn).then(|| study.equation.let_learn(self.claim)).flatten();
        layers = layers.set(&learned.unwrap_or_else(|| study.equation.give(self.claim)))?;
        for setting in &self.settings {
            layers = layers.set(setting)?;
        }
        let mut config = layers.finish(&preset)?;
        config.data.path = Some(data.to_path_buf());
        config.train.seed = self.seed;
        Ok(config)
    }

    /// The file of a variant's results, in the study's folder `out`.
    pub fn result_file(&self, out: &Path, variant: &Variant) -> PathBuf {
        out.join(&self.name).join(format!("eval-{}.json", variant.file_name()))
    }

    /// The file of a variant's first samples, physical units, `[keep, C, H, W]`.
    pub fn samples_file(&self, out: &Path, variant: &Variant) -> PathBuf {
        out.join(&self.name).join(format!("samples-{}.npy", variant.file_name()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cell_of_every_study_is_valid_and_has_files_of_its_own() {
        let ablations = std::iter::once(None).chain(Ablation::ALL.map(Some));
        for (equation, ablation) in ablations.flat_map(|a| [(Equation::Darcy, a), (Equation::Helmholtz, a)]) {
            for scale in StudyScale::ALL {
                let study = FieldStudy::new(equation, scale, None, ablation);
                let (out, mut files, mut variants) = (Path::new("out"), BTreeSet::new(), 0);
                for cell in study.cells() {
                    let config = cell.config(&study, Path::new("data")).unwrap();
                    let trained = config.to_toml();
                    for variant in &cell.variants {
                        let mut layers = Layers::new().text(&trained, "trained").unwrap();
                        for setting in &variant.settings {
                            layers = layers.set(setting).unwrap();
                        }
                        let sampled = layers.finish("sampled").unwrap();
                        assert_eq!(variant.settings.is_empty(), sampled == config, "{}", variant.method);
                        let kept = |step: u64| {
                            step < config.train.iterations
                                && config.train.snapshot_every.is_some_and(|every| step.is_multiple_of(every))
                        };
                        assert!(variant.step.is_none_or(kept), "{} keeps no snapshot of {:?}", cell.name, variant.step);
                        files.insert(cell.result_file(out, variant));
                        variants += 1;
                    }
                    let base = cell.base.as_ref().is_none_or(|base| study.cells().iter().any(|c| c.name == *base));
                    assert!(base, "{} has no base", cell.name);
                }
                assert_eq!(files.len(), variants, "{equation:?} {scale:?} {ablation:?}");
            }
        }
    }

    #[test]
    fn sweeps_have_the_first_seed_alone_and_names_stay() {
        let study = FieldStudy::new(Equation::Darcy, StudyScale::Cpu, None, None);
        let cells = study.cells();
        let of = |name: &str| cells.iter().find(|c| c.name == name).unwrap();
        let files = |name: &str| -> Vec<String> {
            let path = |v| of(name).result_file(Path::new(""), v);
            of(name).variants.iter().map(|v| path(v).file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(of("vanilla-10-0").variants.len(), 3 + 2 * 9 + 2 * 3);
        assert_eq!(of("vanilla-10-1").variants.len(), 3 + 2 * 2);
        assert_eq!(
            files("vanilla-10-0")[..4],
            [
                "eval-vanilla-10.json",
                "eval-vanilla--σ_min-0.005-10.json",
                "eval-vanilla--σ_min-0.01-10.json",
                "eval-dps-0.000003-10.json"
            ]
        );
        assert_eq!(files("adapt-15-0"), ["eval-adapt-15.json", "eval-post-hoc-kalman-1-15.json"]);
        assert_eq!(files("adapt-15-1"), ["eval-adapt-15.json"]);
        assert_eq!(files("scd-15-2"), files("scd-15-0"));
        for name in [
            "pidm-10-0",
            "pidm-published-15-0",
            "pidm-ddpm-10-0",
            "adapt-7.5-1",
            "adapt-learn-12.5-2",
            "adapt-learn-20-0",
        ] {
            of(name);
        }
        assert!(cells.iter().all(|c| !(c.seed > 0 && c.name.starts_with("scd-7.5"))));
        assert!(cells.iter().all(|c| !c.method.name().starts_with("pidm") || c.seed == 0));

        let study = FieldStudy::new(Equation::Helmholtz, StudyScale::Cpu, None, None);
        let names: Vec<String> = study.cells().into_iter().map(|c| c.name).collect();
        let has = |name: &str| names.iter().any(|n| n == name);
        assert!(
            ["scd-0.05-0", "adapt-0-1", "adapt-learn-k=4-0", "adapt-learn-k=6-2"].into_iter().all(has),
            "{names:?}"
        );
        assert!(!["scd-0-1", "adapt-0.05-1", "adapt-learn-0.5-0", "scd-k=4-0"].into_iter().any(has), "{names:?}");
        assert_eq!(study.most_wrong(), Claim::WaveNumber { k: 6.0 });
    }

    #[test]
    fn claims_are_numbers_in_tables() {
        for (claim, text) in [(Claim::Value(7.5), "7.5"), (Claim::WaveNumber { k: 4.0 }, "{\"k\":4.0}")] {
            assert_eq!(serde_json::to_string(&claim).unwrap(), text);
            assert_eq!(serde_json::from_str::<Claim>(text).unwrap(), claim);
        }
    }
}
