//! Ablations of the studies of fields: what one choice is worth, all else being the main study's. They share its folder,
//! and its trainings where they are the same.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fields::study::{Cell, Claim, Equation, FieldStudy, Variant};
use crate::method::{Method, Trained};
use crate::scale::StudyScale;

/// The choice that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ablation {
    /// The distribution of noise levels in training.
    Noise,
    /// How the gradient is scaled, and which directions there are.
    Scale,
    /// Whether network and corrections are trained at once or one after the other.
    Joint,
    /// What γ looks at, how many numbers it has, and whether gradients flow through the direction.
    Gamma,
    /// The sampler's last noise level, churn and number of steps.
    Sampling,
}

impl FromStr for Ablation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.iter().map(|ablation| ablation.name());
        Self::ALL
            .into_iter()
            .find(|ablation| ablation.name() == text)
            .ok_or_else(|| format!("expected one of {}", names().collect::<Vec<_>>().join(", ")))
    }
}

impl Ablation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Noise, Self::Scale, Self::Joint, Self::Gamma, Self::Sampling];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noise => "noise",
            Self::Scale => "scale",
            Self::Joint => "joint",
            Self::Gamma => "gamma",
            Self::Sampling => "sampling",
        }
    }

    /// What it is about, in a sentence or two.
    pub fn question(self) -> &'static str {
        match self {
            Self::Noise => {
                "Which noise levels should training see? The preset draws ln σ from N(−2, 1.7²), cut off at the sampler's \
                 last level and, on small grids, spread evenly over every batch. `log-normal` is N(−1.5, 1.2²), the paper's \
                 comparison; `wide log-normal` is the preset's without the cut; `independent` is the preset's with \
                 independent draws; `cut at 0.018` takes the paper's limit of −4 as ln σ. In the paper's table (f = 10) the \
                 truncated distribution lowers vanilla's residual from 0.874 to 0.157 and SCD's from 0.342 to 0.106."
            }
            Self::Scale => {
                "How long should the correction be and where should it point? `scd` is relaxed node by node (jacobi); \
                 `scd-unit` counts the direction only; `polyak` would solve a linear constraint in one step; `plain` is the \
                 gradient of mean |R| as it is; `scd-paper` is that of the summed |R| with the paper's σ². `adapt` rows freeze \
                 vanilla and train γ for the directions that they name (`adapt`: all four)."
            }
            Self::Joint => {
                "Can strong directions be trained together with the network? `joint` trains both at once, along gradient, \
                 spectral and newton: the network may leave to the correction what the correction does well. `base loss` \
                 adds the network's own denoising loss; `detached` keeps the corrected estimate's loss from the network. \
                 `adapt, without kalman` trains the same corrections on top of the frozen vanilla network (kalman is \
                 measured on a trained network, so it cannot take part)."
            }
            Self::Gamma => {
                "What should γ look at and how many numbers should it have? `scd` sees two numbers, the residual with and \
                 without the noise level (features), and has one weight per field. `detached` takes the direction as a \
                 constant in training."
            }
            Self::Sampling => {
                "What does the sampler do to a residual? The same two trained models throughout; churn puts noise back at \
                 levels below σ = 1."
            }
        }
    }

    /// Every training with its evaluations, the main study's vanilla first.
    pub(crate) fn cells(self, study: &FieldStudy) -> Vec<Cell> {
        let vanilla = method(study, Trained::Vanilla, study.equation.truth());
        match self {
            Self::Noise => noise(study, vanilla),
            Self::Scale => scale(study, vanilla),
            Self::Joint => joint(study, vanilla),
            Self::Gamma => gamma(study, vanilla),
            Self::Sampling => sampling(study, vanilla),
        }
    }
}

/// A method of the preset.
fn method(study: &FieldStudy, method: Trained, claim: Claim) -> Cell {
    Cell::new(method, claim, study.seeds[0], vec![Variant::plain(method, claim)])
}

/// The frozen vanilla denoiser with corrections.
fn adapt(study: &FieldStudy, claim: Claim) -> Cell {
    study.adapted(Trained::Adapt, claim, study.seeds[0], vec![Variant::plain(Trained::Adapt, claim)])
}

/// A cell with some settings changed; tables call it `method, what`.
fn changed(cell: Cell, method: Trained, what: &str, settings: &[&str]) -> Cell {
    let words = what.replace(' ', "-").replace('γ', "gamma");
    Cell {
        name: format!("{}-{words}-{}-{}", method.name(), cell.claim, cell.seed),
        settings: settings.iter().map(|&s| s.into()).collect(),
        variants: vec![Variant::plain(Method::from(method).with(what), cell.claim)],
        ..cell
    }
}

fn noise(study: &FieldStudy, mut vanilla: Cell) -> Vec<Cell> {
    let truth = study.equation.truth();
    let log_normal = "objective.noise={ kind = 'log-normal', mean = -1.5, std = 1.2 }";
    let mut other = changed(vanilla.clone(), Trained::Vanilla, "log-normal", &[log_normal]);
    for claim in noise_claims(study) {
        let guided = study.usually_guided(claim);
        other.variants.push(Variant { method: guided.method.clone().with("log-normal"), ..guided.clone() });
        vanilla.variants.push(guided);
    }
    let mut cells = vec![vanilla, other];
    let wide = "objective.noise={ kind = 'log-normal', mean = -2.0, std = 1.7 }";
    let cut = "objective.noise={ kind = 'trunc-log-normal', mean = -2.0, std = 1.7, min = 0.0183 }";
    let independent = "objective.noise={ kind = 'trunc-log-normal', mean = -2.0, std = 1.7, stratified = false }";
    let mut others = vec![("wide log-normal", wide), ("cut at 0.018", cut)];
    if study.scale != StudyScale::Paper {
        // There the preset draws independently, as the paper does.
        others.push(("independent", independent));
    }
    for (what, setting) in others {
        cells.push(changed(method(study, Trained::Vanilla, truth), Trained::Vanilla, what, &[setting]));
    }
    for claim in noise_claims(study) {
        cells.push(method(study, Trained::Scd, claim));
        cells.push(changed(method(study, Trained::Scd, claim), Trained::Scd, "log-normal", &[log_normal]));
    }
    cells
}

fn scale(study: &FieldStudy, vanilla: Cell) -> Vec<Cell> {
    let truth = study.equation.truth();
    let mut cells = vec![vanilla];
    cells.extend([Trained::Scd, Trained::ScdUnit, Trained::ScdPaper].map(|name| method(study, name, truth)));
    cells.push(changed(method(study, Trained::Scd, truth), Trained::Scd, "plain", &["denoiser.scd.scale=plain"]));
    cells.push(changed(method(study, Trained::ScdUnit, truth), Trained::Scd, "polyak", &["denoiser.scd.scale=polyak"]));
    for claim in [truth, study.most_wrong()] {
        for (what, directions) in [
            ("gradient", "['gradient']"),
            ("spectral", "['spectral']"),
            ("newton", "['newton']"),
            ("kalman", "['kalman']"),
            ("without kalman", THREE),
        ] {
            let setting = format!("denoiser.scd.directions={directions}");
            cells.push(changed(adapt(study, claim), Trained::Adapt, what, &[&setting]));
        }
        cells.push(adapt(study, claim));
    }
    cells
}

/// The directions that need no measuring.
const THREE: &str = "['gradient', 'spectral', 'newton']";

fn joint(study: &FieldStudy, vanilla: Cell) -> Vec<Cell> {
    let mut cells = vec![vanilla];
    let solved = study.equation.solved();
    let scd = |detached: bool| {
        format!(
            "denoiser.scd={{ directions = {THREE}, solve_for = '{solved}', scale = 'jacobi', input = 'features', \
             rate = 0.1, detach_base = {detached} }}"
        )
    };
    for claim in [study.equation.truth(), study.most_wrong()] {
        for (what, base_loss, detached) in
            [("no base loss", 0.0, false), ("base loss 1", 1.0, false), ("detached", 1.0, true)]
        {
            let base_loss = format!("objective.base_loss={base_loss:?}");
            let settings = ["constraint.norm=l2", &base_loss, &scd(detached)];
            cells.push(changed(method(study, Trained::Vanilla, claim), Trained::Joint, what, &settings));
        }
        let directions = format!("denoiser.scd.directions={THREE}");
        cells.push(changed(adapt(study, claim), Trained::Adapt, "without kalman", &[&directions]));
    }
    cells
}

fn gamma(study: &FieldStudy, vanilla: Cell) -> Vec<Cell> {
    let scd = || method(study, Trained::Scd, study.equation.truth());
    let mut cells = vec![vanilla, scd()];
    for (what, setting) in [
        ("γ of the noisy field", "denoiser.scd.input=noisy"),
        ("γ of the estimate", "denoiser.scd.input=denoised"),
        ("one γ", "denoiser.scd.output=scalar"),
        ("γ per node", "denoiser.scd.output=pixel"),
        ("detached", "denoiser.scd.detach=true"),
    ] {
        cells.push(changed(scd(), Trained::Scd, what, &[setting]));
    }
    cells
}

fn sampling(study: &FieldStudy, vanilla: Cell) -> Vec<Cell> {
    let truth = study.equation.truth();
    let mut cells = vec![vanilla, method(study, Trained::Scd, truth)];
    for cell in &mut cells {
        let method = cell.method;
        cell.variants = Variant::with_last_steps(method, truth);
        let mut add = |what: &str, setting: String| {
            cell.variants.push(Variant::sampled(method, truth, what, format!("sampler.{setting}")));
        };
        add("σ_min 0.02", "sigma_min=0.02".into());
        for steps in [10, 25, 75] {
            add(&format!("{steps} steps"), format!("steps={steps}"));
        }
        for amount in [5.0, 20.0] {
            add(&format!("churn {amount}"), format!("churn={{ amount = {amount:?}, to = 1.0 }}"));
        }
    }
    cells
}

/// Claims of the noise ablation: the paper's f_max from 10 to 40, or the ends of the σ_obs axis.
fn noise_claims(study: &FieldStudy) -> Vec<Claim> {
    let values: &[f64] = match (study.equation, study.scale) {
        (Equation::Darcy, StudyScale::Demo) => &[10.0, 40.0],
        (Equation::Darcy, _) => &[10.0, 20.0, 30.0, 40.0],
        (Equation::Helmholtz, _) => &[0.0, 0.5],
    };
    values.iter().map(|&value| Claim::Value(value)).collect()
}
