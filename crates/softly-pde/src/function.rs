//! The functions of the formula language by name.

use crate::algebra::Unary;
use crate::grid::{AxisId, Grid};
use crate::lexer::Choice;

/// A function of the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Pointwise(Unary),
    Choice(Choice),
    Partial(Partial),
    Laplacian,
    Grad,
    Div,
    Dot,
    DivGrad,
    Mean,
    At,
}

/// `d<inner>` or `d<outer><inner>`: the derivative along `inner`, then along `outer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Partial {
    pub outer: Option<AxisId>,
    pub inner: AxisId,
}

/// Functions that exist on every grid.
const FIXED: [(&str, Function); 18] = [
    ("sqrt", Function::Pointwise(Unary::Sqrt)),
    ("abs", Function::Pointwise(Unary::Abs)),
    ("sign", Function::Pointwise(Unary::Sign)),
    ("heaviside", Function::Pointwise(Unary::Heaviside)),
    ("exp", Function::Pointwise(Unary::Exp)),
    ("log", Function::Pointwise(Unary::Log)),
    ("sin", Function::Pointwise(Unary::Sin)),
    ("cos", Function::Pointwise(Unary::Cos)),
    ("tanh", Function::Pointwise(Unary::Tanh)),
    ("min", Function::Choice(Choice::Min)),
    ("max", Function::Choice(Choice::Max)),
    ("laplacian", Function::Laplacian),
    ("grad", Function::Grad),
    ("div", Function::Div),
    ("dot", Function::Dot),
    ("divgrad", Function::DivGrad),
    ("mean", Function::Mean),
    ("at", Function::At),
];

/// Constants that exist on every grid.
pub(crate) const CONSTANTS: [(&str, f64); 1] = [("pi", std::f64::consts::PI)];

/// Every name that has a meaning whatever the grid.
pub(crate) fn fixed_names() -> impl Iterator<Item = &'static str> {
    CONSTANTS.into_iter().map(|(name, _)| name).chain(FIXED.into_iter().map(|(name, _)| name))
}

/// The derivatives along the axes of `grid`: first, second and mixed ones.
pub(crate) fn derivatives(grid: &Grid) -> Vec<(String, Partial)> {
    let name = |axis: AxisId| grid.axis(axis).name.as_str();
    let first = grid.ids().map(|inner| (format!("d{}", name(inner)), Partial { outer: None, inner }));
    let pairs = grid.ids().flat_map(|outer| grid.ids().map(move |inner| (outer, inner)));
    let second =
        pairs.map(|(outer, inner)| (format!("d{}{}", name(outer), name(inner)), Partial { outer: Some(outer), inner }));
    first.chain(second).collect()
}

/// Every function on `grid`.
pub(crate) fn functions(grid: &Grid) -> Vec<(String, Function)> {
    let fixed = FIXED.into_iter().map(|(name, function)| (name.to_owned(), function));
    let derivatives = derivatives(grid).into_iter().map(|(name, partial)| (name, Function::Partial(partial)));
    fixed.chain(derivatives).collect()
}

/// The argument of a function from which on arguments are words such as `harmonic` or `t=first` instead of formulas.
pub(crate) fn first_word(function: &str) -> Option<usize> {
    let (_, function) = FIXED.into_iter().find(|(name, _)| *name == function)?;
    match function {
        Function::Mean | Function::At => Some(1),
        Function::DivGrad => Some(2),
        _ => None,
    }
}

impl Function {
    /// Type and number of the arguments that are formulas.
    pub fn arguments(self) -> (&'static str, usize) {
        match self {
            Function::Div => ("vector", 1),
            Function::Dot => ("vector", 2),
            Function::Choice(_) | Function::DivGrad => ("scalar", 2),
            _ => ("scalar", 1),
        }
    }

    /// Fewest and most words after the arguments.
    pub fn words(self) -> [usize; 2] {
        match self {
            Function::Mean | Function::DivGrad => [0, 1],
            Function::At => [1, 1],
            _ => [0, 0],
        }
    }
}
