//! The studies of fields: what is trained and how it is sampled, for Darcy flow with a wrong source and the Helmholtz
//! equation with an uncertain or wrong wave number. [`crate::fields::run`] runs them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fields::ablation::Ablation;
use crate::scale::StudyScale;
use softly::error::Result;
use softly::{Config, FieldEval, Layers};

/// The equation that is studied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Equation {
    /// Darcy flow; methods are told a source of strength `flow`, which is 10 in truth.
    Darcy,
    /// The Helmholtz equation; methods are told a wave number that scatters around the true 1, or a wrong one.
    Helmholtz,
}

/// What a method is told: in tables a number, or `{"k": number}`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Told {
    /// The strength of Darcy's source, or the standard deviation σ_obs of the Helmholtz equation's wave number.
    Value(f64),
    /// A wave number that does not scatter.
    WaveNumber {
        /// The wave number.
        k: f64,
    },
}

/// As names of folders have it.
impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::WaveNumber { k } => write!(f, "k={k}"),
        }
    }
}

impl Told {
    /// The number.
    pub fn number(self) -> f64 {
        match self {
            Self::Value(value) | Self::WaveNumber { k: value } => value,
        }
    }

    /// Whether it is on the study's main axis, σ_obs or f.
    pub fn is_usual(self) -> bool {
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
    pub fn truth(self) -> Told {
        match self {
            Self::Darcy => Told::Value(10.0),
            Self::Helmholtz => Told::Value(0.0),
        }
    }

    /// The field that the equation is solved for.
    pub(crate) fn solved(self) -> &'static str {
        match self {
            Self::Darcy => "p",
            Self::Helmholtz => "u",
        }
    }

    /// What is told, such as `f = 15`.
    pub fn told(self, told: Told) -> String {
        match told {
            Told::Value(value) => format!("{} = {value}", self.parameter()),
            Told::WaveNumber { k } => format!("k = {k}"),
        }
    }

    /// The setting that tells a method so.
    fn tell(self, told: Told) -> String {
        match (self, told) {
            (Self::Darcy, _) => format!("constraint.parameters.flow={:?}", told.number()),
            (Self::Helmholtz, Told::Value(0.0)) => "constraint.parameters.k=1.0".into(),
            (Self::Helmholtz, Told::Value(std)) => format!("constraint.parameters.k={{ normal = [1.0, {std:?}] }}"),
            (Self::Helmholtz, Told::WaveNumber { k }) => format!("constraint.parameters.k={k:?}"),
        }
    }

    /// The setting that lets a method learn its parameter from what it is told on; none if that scatters around the
    /// truth.
    fn let_learn(self, told: Told) -> Option<String> {
        match (self, told) {
            (Self::Darcy, _) => Some(format!("constraint.parameters.flow={{ learn = {:?} }}", told.number())),
            (Self::Helmholtz, Told::Value(_)) => None,
            (Self::Helmholtz, Told::WaveNumber { k }) => Some(format!("constraint.parameters.k={{ learn = {k:?} }}")),
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
    /// What methods are told.
    pub told: Vec<Told>,
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
    pub method: &'static str,
    /// Settings over the method's.
    pub settings: Vec<String>,
    /// What it is told.
    pub told: Told,
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
    /// The method's name in the table.
    pub label: String,
    /// What it is told.
    pub told: Told,
    /// Settings over the run's own.
    pub settings: Vec<String>,
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
        // of the square lies at k = 4.44, so that told 6 the long waves of a solution have the wrong sign.
        let wave_numbers: &[f64] = match equation {
            Equation::Darcy => &[],
            Equation::Helmholtz => &[6.0],
        };
        let (count, samples, likelihood) = match (equation, scale) {
            (_, StudyScale::Demo) => (1, 128, 32),
            (Equation::Darcy, StudyScale::Cpu) => (3, 128, 32),
            // Four times the nodes.
            (Equation::Helmholtz, StudyScale::Cpu) => (3, 64, 16),
            (_, StudyScale::Paper) => (1, 1000, 256),
        };
        let count = if ablation.is_some() { 1 } else { seeds.unwrap_or(count) };
        let batch = 32;
        let full = FieldEval { samples, batch, likelihood, likelihood_steps: 32, loss: 128, keep: 8 };
        let brief = FieldEval { likelihood: 0, loss: 0, keep: 4, ..full };
        let told = values.iter().map(|&value| Told::Value(value));
        let told = told.chain(wave_numbers.iter().map(|&k| Told::WaveNumber { k })).collect();
        Self { equation, scale, ablation, seeds: (0..count).collect(), told, full, brief }
    }

    /// The preset behind the study.
    pub fn preset(&self) -> String {
        format!("{}-{}", self.equation.name(), self.scale.name())
    }

    /// What is told and furthest from the truth: the last.
    pub fn most_wrong(&self) -> Told {
        self.told.last().copied().unwrap_or_else(|| self.equation.truth())
    }

    /// Every training with its evaluations.
    pub fn cells(&self) -> Vec<Cell> {
        match self.ablation {
            Some(ablation) => ablation.cells(self),
            None => self.seeds.iter().flat_map(|&seed| self.cells_of(seed)).collect(),
        }
    }

    /// The main tables' part with one seed. Sweeps over weights, what lies between the truth and the most wrong, and methods that
    /// are beside the point have the first seed alone; so have SCD and the controls for the Helmholtz equation, where a
    /// training takes twice the time of one for Darcy flow. Denoisers of Darcy flow are adapted to all that is told with every seed.
    fn cells_of(&self, seed: u64) -> Vec<Cell> {
        let truth = self.equation.truth();
        let first = seed == self.seeds[0];
        let quick = self.equation == Equation::Darcy;
        let is_end = |told: Told| told == truth || told == self.most_wrong();
        let compared = |told: Told| first || quick && is_end(told);
        let adapts = |told: Told| first || quick || is_end(told);
        // Below the paper's scale the ends of what is told stand for all of it.
        let stands_out = |told: Told| is_end(told) || told.is_usual() && self.scale == StudyScale::Paper;
        let swept = |told: Told| first && stands_out(told);
        let as_sampled = |method: &str, told: Told| {
            if stands_out(told) { Variant::with_last_steps(method, told) } else { vec![Variant::plain(method, told)] }
        };
        let mut vanilla = as_sampled("vanilla", truth);
        for &told in &self.told {
            if first {
                let scales: &[usize] = if swept(told) && self.scale != StudyScale::Demo { &[0, 1, 2] } else { &[1] };
                vanilla.extend(scales.iter().map(|&i| self.guided(self.guidance()[i], told)));
            }
            if compared(told) {
                vanilla.extend(self.post_hoc(told, swept(told)));
            }
        }
        let mut cells = vec![Cell::new("vanilla", truth, seed, vanilla)];
        for &told in &self.told {
            if compared(told) {
                cells.push(Cell::new("scd", told, seed, as_sampled("scd", told)));
            }
            if swept(told) {
                cells.push(Cell::new("pidm", told, seed, as_sampled("pidm", told)));
                // Where the preset's `pidm` is a tuned one and there is time for another.
                if self.equation == Equation::Darcy && self.scale == StudyScale::Cpu {
                    cells.push(Cell::new("pidm-published", told, seed, as_sampled("pidm-published", told)));
                }
            }
            let mut adapted = vec![Variant::plain("adapt", told)];
            if first {
                // What was measured, without a learned γ.
                adapted.push(Variant {
                    label: "post-hoc kalman 1".into(),
                    told,
                    settings: vec!["denoiser.scd.directions=[\"kalman\"]".into(), "denoiser.scd.constant=[1.0]".into()],
                    full: false,
                });
            }
            if adapts(told) {
                cells.push(self.adapted("adapt", told, seed, adapted));
            }
            if adapts(told) && told != truth && self.equation.let_learn(told).is_some() {
                cells.push(self.adapted("adapt-learn", told, seed, vec![Variant::plain("adapt-learn", told)]));
            }
        }
        if first && self.scale != StudyScale::Demo {
            // More starts of the learned parameter.
            let starts: &[Told] = match self.equation {
                Equation::Darcy => &[Told::Value(5.0), Told::Value(20.0)],
                Equation::Helmholtz => &[Told::WaveNumber { k: 4.0 }],
            };
            for &start in starts {
                cells.push(self.adapted("adapt-learn", start, seed, vec![Variant::plain("adapt-learn", start)]));
            }
        }
        let other_methods = match self.equation {
            Equation::Darcy => self.scale != StudyScale::Demo,
            Equation::Helmholtz => self.scale == StudyScale::Paper,
        };
        if first && other_methods {
            for method in ["pidm-ddpm", "scd-paper", "scd-unit"] {
                cells.push(Cell::new(method, truth, seed, vec![Variant::plain(method, truth)]));
            }
        }
        cells
    }

    /// A training on top of the frozen vanilla denoiser.
    pub(crate) fn adapted(&self, method: &'static str, told: Told, seed: u64, variants: Vec<Variant>) -> Cell {
        let base = Some(format!("vanilla-{}-{seed}", self.equation.truth()));
        Cell { base, ..Cell::new(method, told, seed, variants) }
    }

    /// Scales of the guidance sweep: the one that serves best among powers of ten, and its neighbours. The gradient of the
    /// residual grows with the nodes on a side, so the finer the grid, the smaller. At the paper's scale, an extrapolation.
    fn guidance(&self) -> [f64; 3] {
        match (self.equation, self.scale) {
            (Equation::Darcy, StudyScale::Demo) | (Equation::Helmholtz, StudyScale::Cpu) => [3e-5, 1e-4, 3e-4],
            (Equation::Darcy, StudyScale::Cpu) | (Equation::Helmholtz, StudyScale::Paper) => [3e-6, 1e-5, 3e-5],
            (Equation::Darcy, StudyScale::Paper) => [3e-7, 1e-6, 3e-6],
            (Equation::Helmholtz, StudyScale::Demo) => [3e-4, 1e-3, 3e-3],
        }
    }

    /// Vanilla with guidance.
    fn guided(&self, scale: f64, told: Told) -> Variant {
        // The norm of DPS: the square root of the sum of R² over nodes.
        let guidance = ["constraint.norm=l2".to_string(), format!("sampler.guidance.scale={scale:?}")];
        let settings = std::iter::once(self.equation.tell(told)).chain(guidance).collect();
        Variant { label: format!("dps {scale}"), told, settings, full: false }
    }

    /// Vanilla with guidance of the usual scale.
    pub(crate) fn usually_guided(&self, told: Told) -> Variant {
        self.guided(self.guidance()[1], told)
    }

    /// Corrections with a constant γ, put on vanilla without any training: the control of every claim about SCD. All of
    /// the `sweep`, or the best known of each kind.
    fn post_hoc(&self, told: Told, sweep: bool) -> Vec<Variant> {
        let variant = |label: String, scd: String| {
            let settings = vec![self.equation.tell(told), format!("denoiser.scd={{ {scd} }}")];
            Variant { label, told, settings, full: false }
        };
        let jacobi = |gamma: f64| {
            let constant = match self.equation {
                Equation::Darcy => format!("[{gamma:?}, 0.0]"),
                Equation::Helmholtz => format!("[0.0, {gamma:?}]"),
            };
            let scd = format!("scale = \"jacobi\", output = \"channel\", constant = {constant}");
            variant(format!("post-hoc jacobi {gamma}"), scd)
        };
        let step = |gamma: f64| {
            let solved = self.equation.solved();
            let scd = format!("directions = [\"newton\"], solve_for = \"{solved}\", constant = [{gamma:?}]");
            variant(format!("post-hoc newton {gamma}"), scd)
        };
        match self.scale {
            _ if !sweep => vec![jacobi(2.0), step(0.3)],
            StudyScale::Demo => vec![jacobi(2.0), step(0.3), step(1.0)],
            _ => vec![jacobi(1.0), jacobi(2.0), step(0.15), step(0.3), step(0.6), step(1.0)],
        }
    }
}

impl Variant {
    /// The model as it was trained, measured in full.
    pub(crate) fn plain(label: impl Into<String>, told: Told) -> Self {
        Self { label: label.into(), told, settings: Vec::new(), full: true }
    }

    /// The model as it was trained, and with other last noise levels of the sampler: a weak last step can be most of a
    /// difference between two models.
    pub(crate) fn with_last_steps(label: &str, told: Told) -> Vec<Self> {
        let last = |sigma_min: f64| {
            Self::sampled(label, told, &format!("σ_min {sigma_min}"), format!("sampler.sigma_min={sigma_min:?}"))
        };
        vec![Self::plain(label, told), last(0.005), last(0.01)]
    }

    /// The model `label` with another setting of the sampler; `what` names it.
    pub(crate) fn sampled(label: &str, told: Told, what: &str, setting: String) -> Self {
        Self { label: format!("{label}, {what}"), told, settings: vec![setting], full: false }
    }

    /// The end of its files' names.
    fn file_name(&self) -> String {
        format!("{}-{}", self.label.replace([' ', ','], "-"), self.told)
    }
}

impl Cell {
    /// A training of a method of the preset.
    pub(crate) fn new(method: &'static str, told: Told, seed: u64, variants: Vec<Variant>) -> Self {
        let name = format!("{method}-{told}-{seed}");
        Self { name, method, settings: Vec::new(), told, seed, base: None, variants }
    }

    /// The run's configuration, on the data in `data`.
    pub fn config(&self, study: &FieldStudy, data: &Path) -> Result<Config> {
        let preset = study.preset();
        let mut layers = Layers::new().preset(&preset)?.method(self.method)?;
        let learned = (self.method == "adapt-learn").then(|| study.equation.let_learn(self.told)).flatten();
        layers = layers.set(&learned.unwrap_or_else(|| study.equation.tell(self.told)))?;
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
            for scale in [StudyScale::Demo, StudyScale::Cpu, StudyScale::Paper] {
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
                        assert_eq!(variant.settings.is_empty(), sampled == config, "{}", variant.label);
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
        assert!(cells.iter().all(|c| !c.method.starts_with("pidm") || c.seed == 0));

        let study = FieldStudy::new(Equation::Helmholtz, StudyScale::Cpu, None, None);
        let names: Vec<String> = study.cells().into_iter().map(|c| c.name).collect();
        let has = |name: &str| names.iter().any(|n| n == name);
        assert!(
            ["scd-0.05-0", "adapt-0-1", "adapt-learn-k=4-0", "adapt-learn-k=6-2"].into_iter().all(has),
            "{names:?}"
        );
        assert!(!["scd-0-1", "adapt-0.05-1", "adapt-learn-0.5-0", "scd-k=4-0"].into_iter().any(has), "{names:?}");
        assert_eq!(study.most_wrong(), Told::WaveNumber { k: 6.0 });
    }

    #[test]
    fn what_is_told_is_a_number_in_tables() {
        for (told, text) in [(Told::Value(7.5), "7.5"), (Told::WaveNumber { k: 4.0 }, "{\"k\":4.0}")] {
            assert_eq!(serde_json::to_string(&told).unwrap(), text);
            assert_eq!(serde_json::from_str::<Told>(text).unwrap(), told);
        }
    }
}
