//! Physics in plain `f64`: grids, derivative matrices, formulas, random fields and reference solvers.
//!
//! No tensor framework: everything here works on slices and can be checked by hand.

pub mod algebra;
pub mod cosine_field;
pub mod darcy;
pub mod derivative;
pub mod formula;
pub mod formula_error;
pub mod grid;
pub mod helmholtz;
pub mod karhunen_loeve;
mod lexer;
pub mod nearest;
mod parser;
pub mod program;
pub mod spectrum;
mod transpose;
