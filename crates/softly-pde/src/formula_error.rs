//! What can be wrong with a formula, shown with a caret under the place.

use std::fmt;
use std::ops::Range;

use thiserror::Error;

use crate::derivative::SchemeError;
use crate::grid::GridError;

/// A formula that cannot be used, where, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct FormulaError {
    /// The formula as it was written.
    pub formula: String,
    /// The offending bytes of the formula.
    pub span: Range<usize>,
    /// What is wrong there.
    pub problem: Problem,
}

/// The offending bytes of a formula and what is wrong there.
pub(crate) type Fault = (Range<usize>, Problem);

/// What is wrong with a formula.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Problem {
    /// Nothing but white space.
    #[error("the formula is empty")]
    Empty,
    /// More text than anybody writes by hand.
    #[error("the formula is too long: {length} bytes (at most {limit} are allowed)")]
    TooLong {
        /// Bytes found.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Parentheses, signs or powers inside each other beyond any use.
    #[error("parentheses, signs and powers are nested more than {limit} deep")]
    TooDeep {
        /// Levels allowed.
        limit: usize,
    },
    /// A character that is no part of the language.
    #[error("unexpected character `{}`", .0.escape_default())]
    UnexpectedCharacter(char),
    /// Digits that do not make a finite number.
    #[error("bad number `{0}`")]
    BadNumber(String),
    /// The grammar wants something else here.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What could stand here.
        expected: &'static str,
        /// What stands here.
        found: String,
    },
    /// An opening parenthesis that is never closed.
    #[error("this parenthesis is never closed")]
    Unclosed,
    /// A closing parenthesis that was never opened.
    #[error("this parenthesis was never opened")]
    Unopened,
    /// `a < b < c`.
    #[error("comparisons cannot be chained")]
    ChainedComparison,
    /// A name that means nothing.
    #[error("unknown name `{name}`")]
    UnknownName {
        /// The name.
        name: String,
        /// The nearest name that means something, if one is near.
        nearest: Option<String>,
        /// Every name that could stand here.
        known: Vec<String>,
    },
    /// A derivative along an axis that the grid does not have.
    #[error("there is no derivative `{name}`: the axes are {}", axes.join(" and "))]
    UnknownDerivative {
        /// The name.
        name: String,
        /// The axes that there are.
        axes: Vec<String>,
        /// The derivatives that there are.
        known: Vec<String>,
    },
    /// A field or parameter with the name of an axis.
    #[error("`{0}` is both a field or parameter and an axis")]
    NameOfAxis(String),
    /// A field or parameter used like a function.
    #[error("`{0}` is not a function")]
    NotAFunction(String),
    /// A function without its arguments.
    #[error("function `{0}` has no arguments here")]
    FunctionWithoutArguments(String),
    /// Too many or too few arguments.
    #[error("`{function}` takes {} (found {found})", count(*.expected))]
    ArgumentCount {
        /// The function.
        function: String,
        /// Fewest and most arguments it takes.
        expected: [usize; 2],
        /// Arguments found.
        found: usize,
    },
    /// A word among the arguments that is none of those that the function knows.
    #[error("`{function}` expects {expected} here, found `{found}`")]
    BadWord {
        /// The function.
        function: String,
        /// What could stand here.
        expected: String,
        /// What stands here.
        found: String,
    },
    /// A vector where only a scalar makes sense, or the other way round.
    #[error("{place} must be a {expected}, not a {found}")]
    WrongType {
        /// What has the wrong type.
        place: String,
        /// `scalar` or `vector`.
        expected: &'static str,
        /// `scalar` or `vector`.
        found: &'static str,
    },
    /// An operator that is not defined for its operands' types.
    #[error("`{operator}` is not defined between a {left} and a {right}")]
    WrongOperands {
        /// The operator.
        operator: &'static str,
        /// `scalar` or `vector`.
        left: &'static str,
        /// `scalar` or `vector`.
        right: &'static str,
    },
    /// A comparison of something that is not known beforehand.
    #[error("`{0}` is for constants, but an operand depends on a field or on a run-time parameter")]
    ConstantsOnly(&'static str),
    /// A power that varies with its exponent and has a constant base without a logarithm.
    #[error("a power with a varying exponent needs a positive base")]
    Base,
    /// A constant part of the formula that is infinite or undefined.
    #[error("this constant is not finite everywhere on the grid")]
    NotFinite,
    /// An array parameter that does not fit the grid.
    #[error("parameter `{name}` has {found} values for a grid of {rows} x {cols} nodes")]
    ParameterSize {
        /// The parameter.
        name: String,
        /// Values found.
        found: usize,
        /// The grid's rows.
        rows: usize,
        /// The grid's columns.
        cols: usize,
    },
    /// A derivative on the grid of a lone point.
    #[error("`{0}` needs a grid, but the fields are single points, which have no derivatives")]
    DerivativeOfPoint(String),
    /// A derivative by a scheme that does not fit its axis.
    #[error("`{function}`: {error}")]
    Scheme {
        /// The function.
        function: String,
        /// Why the scheme does not fit.
        error: SchemeError,
    },
    /// Axes that make no grid.
    #[error("{0}")]
    Grid(GridError),
    /// A formula that should be constant but names a field or a run-time parameter.
    #[error("`{0}` is not known beforehand, so this formula is not a constant")]
    NotConstant(String),
}

impl Problem {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Problem::UnexpectedCharacter('=') => {
                "a residual is what should be zero: write `left - (right)`; `==` compares constants".into()
            }
            Problem::Expected { found, .. } if found == "`*`" => "a power is written `a^b`".into(),
            Problem::BadNumber(_) => "numbers look like 1, 1.5 or 1e-3; write a product as `2*x`".into(),
            Problem::ChainedComparison => "multiply two comparisons: `(a < x)*(x < b)`".into(),
            Problem::UnknownName { nearest: Some(nearest), .. } => format!("did you mean `{nearest}`?"),
            Problem::UnknownName { known, .. } => format!("known names are {}", known.join(", ")),
            Problem::UnknownDerivative { known, .. } => format!("derivatives are {}", known.join(", ")),
            Problem::NameOfAxis(_) => "rename one of them".into(),
            Problem::NotAFunction(name) => format!("write a product as `{name}*(...)`"),
            Problem::FunctionWithoutArguments(name) => format!("write `{name}(...)`"),
            Problem::WrongType { expected: "scalar", .. } => "`dot(a, b)` and `div(a)` make scalars of vectors".into(),
            Problem::WrongType { .. } => "`grad(s)` makes a vector of a scalar".into(),
            Problem::WrongOperands { operator: "*", .. } => "`dot(a, b)` multiplies two vectors".into(),
            Problem::ConstantsOnly(_) => "`heaviside(a - b)` is 1 where a >= b, for fields, too".into(),
            Problem::Base => "write the exponent as a number if it is one: `(-2)^3`".into(),
            Problem::NotFinite => "look for a division by zero, or a `log` or `sqrt` outside its domain".into(),
            Problem::Scheme { error, .. } => error.hint(),
            Problem::Grid(error) => error.hint()?.into(),
            _ => return None,
        })
    }
}

/// `1 argument`, `2 arguments` or `2 or 3 arguments`.
fn count([fewest, most]: [usize; 2]) -> String {
    match (fewest == most, most) {
        (true, 1) => "1 argument".into(),
        (true, _) => format!("{most} arguments"),
        (false, _) => format!("{fewest} or {most} arguments"),
    }
}

/// Characters of the formula shown on either side of the offending place.
const MARGIN: usize = 40;

impl fmt::Display for FormulaError {
    /// The problem with its column, the formula with carets under the place, and a hint.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Problem::Grid(error) = &self.problem {
            // No place in the formula is to blame.
            return write!(f, "{error}").and_then(|()| error.hint().map_or(Ok(()), |hint| write!(f, "\nhint: {hint}")));
        }
        let start = self.formula[..self.span.start].chars().count();
        let marked = self.formula[self.span.clone()].chars().count().max(1);
        write!(f, "{} at column {}", self.problem, start + 1)?;
        if !self.formula.is_empty() {
            let first = start.saturating_sub(MARGIN);
            let shown = marked.min(MARGIN);
            let (before, after) = (if first > 0 { "..." } else { "" }, start + shown + MARGIN);
            // Line breaks and control characters would tear the caret from its place.
            let window = self.formula.chars().take(after).skip(first);
            let window: String = window.map(|c| if c.is_control() { ' ' } else { c }).collect();
            let more = if self.formula.chars().nth(after).is_some() { "..." } else { "" };
            write!(f, "\n  {before}{window}{more}")?;
            write!(f, "\n  {}{}", " ".repeat(before.len() + start - first), "^".repeat(shown))?;
        }
        self.problem.hint().map_or(Ok(()), |hint| write!(f, "\nhint: {hint}"))
    }
}

impl std::error::Error for FormulaError {}
