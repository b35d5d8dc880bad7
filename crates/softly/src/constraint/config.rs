//! The constraint as written in a configuration file (`[constraint]`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_pde::derivative::Scheme;
use softly_pde::formula::{self, Parameter, Symbols};
use softly_pde::grid::Grid;

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
    /// How derivatives are taken.
    #[serde(default = "default_stencil")]
    pub stencil: Scheme,
    /// How they are taken for single fields instead.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stencils: BTreeMap<String, Scheme>,
    /// How residuals are summed up.
    #[serde(default = "default_norm")]
    pub norm: Norm,
    /// Named quantities of the formulas.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ParameterConfig>,
}

fn default_stencil() -> Scheme {
    Scheme::OneSided2
}

fn default_norm() -> Norm {
    Norm::L1Mean
}

/// One residual formula on the whole grid, or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Residuals {
    /// A formula.
    One(String),
    /// Formulas with regions.
    Many(Vec<ResidualConfig>),
}

/// A residual formula and where it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResidualConfig {
    /// The formula; zero where the equation holds.
    pub formula: String,
    /// The nodes where it counts.
    #[serde(default)]
    pub region: Region,
    /// A factor on this residual.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

/// A set of nodes, as a field is printed: rows downwards (x), columns to the right (y).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Region {
    /// Every node.
    #[default]
    All,
    /// Every node but the outermost ring.
    Interior,
    /// The outermost ring.
    Border,
    /// The first column.
    Left,
    /// The last column.
    Right,
    /// The first row.
    Top,
    /// The last row.
    Bottom,
}

impl Region {
    /// Whether the node in `row` and `col` of `grid` belongs to the region.
    pub fn contains(self, row: usize, col: usize, grid: &Grid) -> bool {
        let edges = [col == 0, col + 1 == grid.cols, row == 0, row + 1 == grid.rows];
        let border = edges.contains(&true);
        match self {
            Self::All => true,
            Self::Interior => !border,
            Self::Border => border,
            Self::Left => edges[0],
            Self::Right => edges[1],
            Self::Top => edges[2],
            Self::Bottom => edges[3],
        }
    }
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
    /// A number that is learned together with γ; metrics take the start unless `[truth]` says better.
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

impl ConstraintConfig {
    /// The formulas with their regions.
    pub fn residuals(&self) -> Vec<ResidualConfig> {
        match &self.residual {
            Residuals::One(formula) => {
                vec![ResidualConfig { formula: formula.clone(), region: Region::All, weight: 1.0 }]
            }
            Residuals::Many(many) => many.clone(),
        }
    }

    /// How derivatives of the field `name` are taken.
    pub fn stencil_of(&self, name: &str) -> Scheme {
        self.stencils.get(name).copied().unwrap_or(self.stencil)
    }

    /// What the names in the formulas mean on `grid`, and where run-time parameters get their values.
    pub(super) fn symbols(&self, grid: &Grid) -> Result<(Symbols, RuntimeParameters)> {
        self.check_names()?;
        let mut symbols = Symbols::new(grid.clone(), self.stencil);
        symbols.field_schemes = self.stencils.clone();
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

    /// Refuses a constraint without fields or formulas, and names that mean two things or nothing.
    fn check_names(&self) -> Result<()> {
        if self.fields.is_empty() {
            return Err(Error::input("constraint.fields", "no field is named"));
        }
        if self.residuals().is_empty() {
            return Err(Error::input("constraint.residual", "no formula is given"));
        }
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
            Self::Number(_) | Self::Formula(_) | Self::File { .. } => Ok(None),
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
    if array.shape != [grid.rows, grid.cols] {
        let expected = format!("{} needs an array [{}, {}]", key_of(name), grid.rows, grid.cols);
        return Err(Error::input(file.display(), format!("{expected}, found {:?}", array.shape)));
    }
    Ok(array.values)
}
