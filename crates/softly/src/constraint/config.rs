//! The constraint as written in a configuration file (`[constraint]`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use softly_pde::audit::{Claim, Equation};
use softly_pde::derivative::Scheme;
use softly_pde::formula::{self, Parameter, Symbols};
use softly_pde::grid::Grid;
use softly_pde::region::Region;
use softly_pde::stencil::{Stencil, StencilError, default_schemes};
use softly_pde::terms::mentions;

use crate::checks;
use crate::constraint::norm::Norm;
use crate::constraint::parameters::{RuntimeParameters, Source};
use crate::constraint::smooth_field::SmoothField;
use crate::error::{Error, Result, nearest};
use crate::npy;

/// A constraint as written in a configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConstraintConfig {
    /// Names of the fields that formulas speak of, each a channel of the data.
    pub fields: Vec<String>,
    /// One formula, or several with their regions.
    pub residual: Residuals,
    /// How derivatives are taken: one scheme for all axes, or one per axis. By default as the axis asks: `periodic`, or
    /// `one-sided-2`.
    #[serde(default, skip_serializing_if = "Stencil::is_default")]
    pub stencil: Stencil,
    /// How they are taken for single fields instead.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stencils: BTreeMap<String, Stencil>,
    /// How residuals are summed up.
    #[serde(default = "default_norm")]
    pub norm: Norm,
    /// Named quantities of the formulas.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ParameterConfig>,
}

fn default_norm() -> Norm {
    Norm::L1Mean
}

/// One residual formula on the whole grid, or several.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Residuals {
    /// A formula.
    One(String),
    /// Formulas with regions.
    Many(Vec<ResidualConfig>),
}

/// Text is a formula, a list is of tables; what is wrong in a table is said of that table.
impl<'de> Deserialize<'de> for Residuals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Residuals;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a formula in quotes, or a list of tables with `formula` and `region`")
            }

            fn visit_str<E: serde::de::Error>(self, formula: &str) -> std::result::Result<Residuals, E> {
                Ok(Residuals::One(formula.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> std::result::Result<Residuals, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Residuals::Many)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// A residual formula and where it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { formula = \"u\", region = \"border\" }")]
pub struct ResidualConfig {
    /// The formula; zero where the equation holds.
    pub formula: String,
    /// The nodes where it counts.
    #[serde(default)]
    pub region: Region,
    /// A factor on this residual.
    #[serde(default = "one")]
    pub weight: f64,
    /// What evaluations call it; by default its formula.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ResidualConfig {
    /// What evaluations call it.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.formula)
    }
}

fn one() -> f64 {
    1.0
}

/// A parameter's value as written in a configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected a number, a formula in quotes, { file = \"array.npy\" }, { normal = [mean, std] }, { learn = start } \
                 or { learn = start, length = 0.2, size = 1.0 }"
)]
pub enum ParameterConfig {
    /// A number.
    Number(f64),
    /// A formula of the coordinates and of other parameters that are no formulas or files.
    Formula(String),
    /// An array file `[H, W]`.
    File {
        /// Path of a `.npy` file.
        file: PathBuf,
    },
    /// A number that is drawn anew for every sample and evaluation; metrics take its mean.
    Normal {
        /// Mean and standard deviation.
        normal: [f64; 2],
    },
    /// A number that is fitted to the training data before γ is learned; metrics take the start unless `[truth]` says better.
    Learn {
        /// The first value.
        learn: f64,
    },
    /// A smooth field that is learned likewise.
    LearnField {
        /// The first value, at every node.
        learn: f64,
        /// The length over which it varies, in units of the coordinates.
        length: f64,
        /// How far it may be expected to be from its start.
        size: f64,
    },
}

impl ParameterConfig {
    /// Whether the value is known without a model.
    pub fn is_fixed(&self) -> bool {
        !self.is_learned() && !matches!(self, Self::Normal { .. })
    }

    /// Whether training finds the value.
    pub fn is_learned(&self) -> bool {
        matches!(self, Self::Learn { .. } | Self::LearnField { .. })
    }
}

/// A constraint as the table `[constraint]` of a configuration file.
pub fn constraint_toml(constraint: &ConstraintConfig) -> String {
    toml::to_string(&BTreeMap::from([("constraint", constraint)])).expect("a constraint is valid TOML")
}

impl ConstraintConfig {
    /// The formulas with their regions.
    pub fn residuals(&self) -> Vec<ResidualConfig> {
        match &self.residual {
            Residuals::One(formula) => {
                vec![ResidualConfig { formula: formula.clone(), region: Region::All, weight: 1.0, name: None }]
            }
            Residuals::Many(many) => many.clone(),
        }
    }

    /// The constraint with the numbers of data that its formulas use and that it does not explain itself: `scalars` of samples
    /// are further fields, `constants` further parameters.
    #[must_use]
    pub fn with_numbers(&self, scalars: &[String], constants: &BTreeMap<String, f64>) -> Self {
        let mut whole = self.clone();
        let is_open =
            |name: &String| !self.fields.contains(name) && !self.parameters.contains_key(name) && self.mentions(name);
        whole.fields.extend(scalars.iter().filter(|name| is_open(name)).cloned());
        let constants = constants.iter().filter(|(name, _)| is_open(name));
        whole.parameters.extend(constants.map(|(name, value)| (name.clone(), ParameterConfig::Number(*value))));
        whole
    }

    /// Whether `name` occurs in a formula.
    fn mentions(&self, name: &str) -> bool {
        let of_parameter = |parameter: &ParameterConfig| match parameter {
            ParameterConfig::Formula(formula) => mentions(formula, name),
            _ => false,
        };
        self.residuals().iter().any(|residual| mentions(&residual.formula, name))
            || self.parameters.values().any(of_parameter)
    }

    /// How derivatives of the field `name` are taken along each axis of `grid`.
    pub fn schemes_of(&self, name: &str, grid: &Grid) -> Result<[Scheme; 2]> {
        let refused = |key: &str| {
            let key = format!("constraint.{key}");
            move |e: StencilError| Error::input(key, &e).hint(e.hint().unwrap_or_default())
        };
        let all = self.stencil.schemes(grid, default_schemes(grid)).map_err(refused("stencil"))?;
        match self.stencils.get(name) {
            Some(own) => own.schemes(grid, all).map_err(refused(&format!("stencils.{name}"))),
            None => Ok(all),
        }
    }

    /// The equations on `grid` in plain `f64`; a drawn number is its mean, a learned number or field its start.
    pub fn claim(&self, grid: &Grid) -> Result<Claim> {
        let (symbols, _) = self.symbols(grid)?;
        let equations = self.residuals().into_iter().map(|r| Equation { formula: r.formula, region: r.region });
        let mut claim = Claim {
            grid: grid.clone(),
            fields: self.fields.clone(),
            equations: equations.collect(),
            schemes: symbols.schemes,
            field_schemes: symbols.field_schemes,
            numbers: BTreeMap::new(),
            formulas: BTreeMap::new(),
            arrays: BTreeMap::new(),
        };
        for (name, parameter) in &self.parameters {
            let name = name.clone();
            match parameter {
                ParameterConfig::Number(number)
                | ParameterConfig::Normal { normal: [number, _] }
                | ParameterConfig::Learn { learn: number }
                | ParameterConfig::LearnField { learn: number, .. } => {
                    claim.numbers.insert(name, *number);
                }
                ParameterConfig::Formula(text) => {
                    claim.formulas.insert(name, text.clone());
                }
                ParameterConfig::File { file } => {
                    let array = read_array(&name, file, grid)?;
                    claim.arrays.insert(name, array.into());
                }
            }
        }
        Ok(claim)
    }

    /// What the names in the formulas mean on `grid`, and where run-time parameters get their values.
    pub(super) fn symbols(&self, grid: &Grid) -> Result<(Symbols, RuntimeParameters)> {
        self.check_names()?;
        let mut symbols = Symbols::new(grid.clone());
        // No field is called so.
        symbols.schemes = self.schemes_of("", grid)?;
        for name in self.stencils.keys() {
            symbols.field_schemes.insert(name.clone(), self.schemes_of(name, grid)?);
        }
        let mut sources = BTreeMap::new();
        // Numbers first, so that formulas may use them.
        for (name, parameter) in &self.parameters {
            let meaning = match (parameter, parameter.source(name, grid)?) {
                (ParameterConfig::Number(number), _) => Parameter::Number(*number),
                (_, Some(source)) => {
                    sources.insert(name.clone(), source);
                    Parameter::Runtime
                }
                (_, None) => continue,
            };
            symbols.parameters.insert(name.clone(), meaning);
        }
        let numbers = symbols.clone();
        for (name, parameter) in &self.parameters {
            let meaning = match parameter {
                ParameterConfig::Formula(text) => {
                    let wrong = |e| Error::input(key_of(name), format!("{e}"));
                    let program = formula::compile(text, &numbers).map_err(wrong)?;
                    if (0..sources.len()).any(|slot| program.uses(slot)) {
                        sources.insert(name.clone(), Source::Computed(program.into()));
                        Parameter::Runtime
                    } else {
                        Parameter::Array(formula::evaluate_constant(text, &numbers).map_err(wrong)?.into())
                    }
                }
                ParameterConfig::File { file } => Parameter::Array(read_array(name, file, grid)?.into()),
                _ => continue,
            };
            symbols.parameters.insert(name.clone(), meaning);
        }
        symbols.fields.clone_from(&self.fields);
        Ok((symbols, RuntimeParameters(sources)))
    }

    /// Refuses names of fields and parameters with other letters than names have.
    pub(crate) fn check_letters(&self) -> Result<()> {
        self.parameters.keys().try_for_each(|name| checks::name("constraint.parameters", name))?;
        self.fields.iter().try_for_each(|name| checks::name("constraint.fields", name))
    }

    /// Refuses a constraint without fields or formulas, and names that mean two things or nothing.
    fn check_names(&self) -> Result<()> {
        if self.fields.is_empty() {
            return Err(Error::input("constraint.fields", "no field is named"));
        }
        if self.residuals().is_empty() {
            return Err(Error::input("constraint.residual", "no formula is given"));
        }
        self.check_letters()?;
        for (i, name) in self.fields.iter().enumerate() {
            if self.fields[..i].contains(name) {
                return Err(Error::input("constraint.fields", format!("`{name}` is named twice")));
            }
            if self.parameters.contains_key(name) {
                let problem = format!("`{name}` is a field already");
                return Err(Error::input(key_of(name), problem).hint("rename the parameter"));
            }
        }
        for name in self.stencils.keys() {
            if !self.fields.contains(name) && !self.parameters.contains_key(name) {
                let known = self.fields.iter().chain(self.parameters.keys()).map(String::as_str);
                let hint = nearest(name, known).map_or(String::new(), |n| format!("did you mean `{n}`?"));
                let problem = format!("`{name}` is no field or parameter");
                return Err(Error::input("constraint.stencils", problem).hint(hint));
            }
        }
        Ok(())
    }
}

impl ParameterConfig {
    /// Where the value of a drawn or learned parameter comes from; `None` for others.
    fn source(&self, name: &str, grid: &Grid) -> Result<Option<Source>> {
        let finite = |numbers: &[f64]| match numbers.iter().find(|number| !number.is_finite()) {
            Some(number) => Err(Error::input(key_of(name), format!("expected finite numbers, found {number}"))),
            None => Ok(()),
        };
        match self {
            Self::Normal { normal: [mean, std] } => {
                finite(&[*mean, *std])?;
                if *std < 0.0 {
                    let problem = format!("expected a standard deviation ≥ 0, found {std}");
                    return Err(Error::input(key_of(name), problem));
                }
                Ok(Some(Source::Drawn { mean: *mean, std: *std }))
            }
            Self::Learn { learn } => {
                finite(&[*learn])?;
                Ok(Some(Source::learned(*learn)))
            }
            Self::LearnField { learn, length, size } => {
                finite(&[*learn, *length, *size])?;
                if *length <= 0.0 || *size <= 0.0 {
                    let problem = format!("expected a length and a size above 0, found {length} and {size}");
                    return Err(Error::input(key_of(name), problem));
                }
                Ok(Some(Source::learned_field(SmoothField::new(grid, *learn, *length, *size))))
            }
            Self::Number(number) => finite(&[*number]).map(|()| None),
            Self::Formula(_) | Self::File { .. } => Ok(None),
        }
    }
}

/// The key of the parameter `name`.
fn key_of(name: &str) -> String {
    format!("constraint.parameters.{name}")
}

/// The array `[H, W]` of the parameter `name`.
fn read_array(name: &str, file: &Path, grid: &Grid) -> Result<Vec<f64>> {
    let array = npy::read(file)?;
    if array.shape != [grid.rows(), grid.cols()] {
        let expected = format!("{} needs an array [{}, {}]", key_of(name), grid.rows(), grid.cols());
        return Err(Error::input(file.display(), format!("{expected}, found {:?}", array.shape)));
    }
    Ok(array.values)
}
