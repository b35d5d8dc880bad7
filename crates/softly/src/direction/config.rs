//! The soft constraint as configured: its directions and the weights γ on them (`[denoiser.scd]`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::stencil::Stencil;

use crate::auto::NumberOrAuto;
use crate::checks::positive;
use crate::direction::DirectionKind;
use crate::direction::compliance::Compliance;
use crate::error::{Error, Result, nearest};

/// Most hidden units of γ's network.
const MOST_HIDDEN: usize = 100_000;

/// What γ's network looks at besides the noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GammaInput {
    /// The noisy field c_in·x.
    Noisy,
    /// The base denoiser's output.
    Denoised,
    /// Two numbers per equation instead of a field: ln rms R(D) and ln rms R(D) − ln σ. Cheap, and the same for every grid.
    Features,
}

/// How many numbers γ has per sample and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GammaOutput {
    /// One.
    Scalar,
    /// One per channel.
    Channel,
    /// One per channel and node.
    Pixel,
}

/// Fields that equations are solved for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected the name of a field, or a list of names such as [\"u\", \"v\"]")]
pub enum SolveFor {
    /// One field.
    One(String),
    /// Several fields, solved for at once.
    Many(Vec<String>),
}

impl SolveFor {
    /// The names of the fields.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
    }
}

impl From<&str> for SolveFor {
    fn from(name: &str) -> Self {
        Self::One(name.into())
    }
}

/// The soft constraint's part of a denoiser, as configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScdConfig {
    /// What the correction moves along; γ has a part for each.
    pub directions: Vec<DirectionKind>,
    /// The field or fields that the direction `newton` solves the equations for. By default the field with the highest
    /// derivatives in each equation, if there is one only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub solve_for: Option<SolveFor>,
    /// How the direction `gradient` is scaled.
    pub scale: Scale,
    /// How `paper` and `plain` are damped at high noise.
    pub damping: Damping,
    /// λ of the exponential damping; `auto` is the paper's heuristic.
    pub lambda: NumberOrAuto,
    /// What γ looks at.
    pub input: GammaInput,
    /// How many numbers γ has.
    pub output: GammaOutput,
    /// Constant weights in place of a learned γ, one per direction and channel if γ has one per channel: a correction
    /// that can be put on a trained denoiser as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constant: Option<Vec<f64>>,
    /// Hidden units of γ's network.
    pub hidden: usize,
    /// Learning rate of γ's network, as a multiple of the run's.
    pub rate: f64,
    /// Learn every parameter of the constraint that is a plain number, from that number on.
    #[serde(skip_serializing_if = "is_default")]
    pub learn_parameters: bool,
    /// How the direction `newton` solves.
    #[serde(skip_serializing_if = "is_default")]
    pub newton: NewtonConfig,
    /// How the direction `kalman` solves.
    #[serde(skip_serializing_if = "is_default")]
    pub kalman: KalmanConfig,
    /// Treat the directions as constants in training (ablation; wrong for residuals that are not linear).
    pub detach: bool,
    /// Keep the loss of the corrected estimate from the base denoiser: it learns from `objective.base_loss` alone, as if the
    /// correction were put on it later.
    pub detach_base: bool,
    /// How much of the correction is applied after training.
    #[serde(skip_serializing_if = "as_learned")]
    pub compliance: Compliance,
}

impl Default for ScdConfig {
    fn default() -> Self {
        Self {
            directions: vec![DirectionKind::Gradient],
            solve_for: None,
            scale: Scale::Plain,
            damping: Damping::Exponential,
            lambda: NumberOrAuto::Number(1.0),
            input: GammaInput::Noisy,
            output: GammaOutput::Scalar,
            constant: None,
            hidden: 100,
            rate: 1.0,
            learn_parameters: false,
            newton: NewtonConfig::default(),
            kalman: KalmanConfig::default(),
            detach: false,
            detach_base: false,
            compliance: Compliance::LEARNED,
        }
    }
}

impl ScdConfig {
    /// Refuses settings that cannot work with a constraint on `fields` and the base's own loss weighted by `base_loss`.
    pub fn check(&self, fields: &[String], base_loss: f64) -> Result<()> {
        if !(1..=MOST_HIDDEN).contains(&self.hidden) {
            let problem = format!("expected 1 to {MOST_HIDDEN}, found {}", self.hidden);
            return Err(Error::input("denoiser.scd.hidden", problem));
        }
        positive("denoiser.scd.rate", self.rate)?;
        if let NumberOrAuto::Number(lambda) = self.lambda
            && !(lambda.is_finite() && lambda >= 0.0)
        {
            return Err(Error::input("denoiser.scd.lambda", format!("expected a number ≥ 0, found {lambda}")));
        }
        if self.detach_base && base_loss == 0.0 {
            let problem =
                "keeps the loss from the base denoiser, which then learns from objective.base_loss alone: it is 0";
            return Err(Error::input("denoiser.scd.detach_base", problem).hint("set objective.base_loss=1"));
        }
        self.check_compliance()?;
        self.check_directions()?;
        self.check_solve_for(fields)
    }

    fn check_compliance(&self) -> Result<()> {
        let place = "denoiser.scd.compliance";
        if !self.compliance.is_valid() {
            let problem = format!("expected a number ≥ 0 or \"full\", found {}", self.compliance);
            return Err(Error::input(place, problem));
        }
        if self.compliance == Compliance::FULL && !self.directions.iter().any(|kind| kind.projects()) {
            let projecting = DirectionKind::ALL.iter().filter(|kind| kind.projects()).map(|kind| kind.name());
            let names = projecting.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let problem = format!("`full` projects onto the constraint, and the model has no direction {names}");
            return Err(Error::input(place, problem).hint(
                "give a number, or adapt with such a direction among denoiser.scd.directions and denoiser.scd.solve_for",
            ));
        }
        Ok(())
    }

    fn check_directions(&self) -> Result<()> {
        let place = "denoiser.scd.directions";
        if self.directions.is_empty() {
            return Err(Error::input(place, "expected at least one direction, found none")
                .hint("leave out the [denoiser.scd] table for a denoiser without a constraint"));
        }
        for (i, kind) in self.directions.iter().enumerate() {
            if self.directions[..i].contains(kind) {
                return Err(Error::input(place, format!("`{}` is named twice", kind.name())));
            }
        }
        Ok(())
    }

    fn check_solve_for(&self, fields: &[String]) -> Result<()> {
        let place = "denoiser.scd.solve_for";
        let Some(solve_for) = &self.solve_for else { return Ok(()) };
        let names = solve_for.names();
        if names.is_empty() {
            return Err(Error::input(place, "expected at least one field, found none")
                .hint(format!("name some of {}, or leave the key out", fields.join(", "))));
        }
        for (i, name) in names.iter().enumerate() {
            if !fields.contains(name) {
                let hint = nearest(name, fields.iter().map(String::as_str)).map(|n| format!("did you mean `{n}`?"));
                let problem = format!("the constraint has no field `{name}`; it has {}", fields.join(", "));
                return Err(Error::input(place, problem).hint(hint.unwrap_or_default()));
            }
            if names[..i].contains(name) {
                return Err(Error::input(place, format!("`{name}` is named twice")));
            }
        }
        Ok(())
    }

    /// The parts of γ for the given `fields` by name: directions, and their fields where γ has weights per channel or node.
    pub fn parts(&self, fields: &[String]) -> Vec<String> {
        let of = |kind: &DirectionKind| match self.output {
            GammaOutput::Scalar => vec![kind.name().to_string()],
            GammaOutput::Channel | GammaOutput::Pixel => {
                fields.iter().map(|field| format!("{}, {field}", kind.name())).collect()
            }
        };
        self.directions.iter().flat_map(of).collect()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn as_learned(compliance: &Compliance) -> bool {
    *compliance == Compliance::LEARNED
}

/// The factor between the constraint's gradient g and the correction that γ multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// σ² · damping · g: as written in the paper.
    Paper,
    /// damping · g.
    Plain,
    /// c_out · g / rms(g): only the direction counts.
    Unit,
    /// g · ‖R‖/‖g‖²: the step that would reach ‖R‖ = 0 if R were linear, so γ has no units.
    Polyak,
    /// −S JᵀR with the local step S of [`SoftConstraint::jacobi_step`](crate::constraint::SoftConstraint::jacobi_step): the gradient of ½‖R‖², whatever the constraint's
    /// norm, relaxed at every node by how strongly R reacts to it. γ has no units.
    Jacobi,
}

/// What keeps the correction of `paper` and `plain` bounded at high noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Damping {
    /// e^{−λσ}.
    Exponential,
    /// 1/‖g‖².
    GradientNorm,
}

/// The Newton direction, as configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewtonConfig {
    /// Krylov iterations. 12 solve Darcy's law at 64×64 nodes to 1 %, 4 at 16×16; an equation with constant coefficients
    /// needs one.
    pub iterations: usize,
    /// How the direction differentiates the solved fields. By default as the constraint does, but for one field with one
    /// equation `mirror` in place of `one-sided-2` at the sides: one-sided rows there make the system nearly singular.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stencil: Option<Stencil>,
    /// Physical values that other fields are kept above, smoothly: a permeability has to be positive. By default
    /// a value that one in a thousand of the training data is below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<BTreeMap<String, f64>>,
    /// Let no gradient flow through the direction into the base denoiser.
    pub stop_gradient: bool,
}

impl Default for NewtonConfig {
    fn default() -> Self {
        Self { iterations: 12, stencil: None, floor: None, stop_gradient: false }
    }
}

/// The Kalman direction, as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KalmanConfig {
    /// Conjugate-gradient iterations at low noise, σ about σ_data/100; half as many for each factor of √10 above, at least 6. On Darcy's
    /// law at 32×32 nodes samples with 96 have less than half of the residual that samples with 24 have; the coefficients of the
    /// Helmholtz equation are constant, and there 6 do what 24 do.
    pub iterations: usize,
}

impl Default for KalmanConfig {
    fn default() -> Self {
        Self { iterations: 96 }
    }
}
