//! Physics in plain `f64`: grids, derivative matrices, formulas, random fields and reference solvers.
//!
//! No tensor framework: everything here works on slices and can be checked by hand.

pub mod algebra;
pub mod audit;
pub mod burgers;
mod compiler;
pub mod cosine_field;
pub mod darcy;
pub mod derivative;
pub mod dual;
pub mod flux;
pub mod flux_solver;
pub mod formula;
pub mod formula_error;
mod function;
pub mod gaussian;
pub mod grid;
pub mod helmholtz;
pub mod karhunen_loeve;
mod lexer;
pub mod matern_field;
pub mod matrix;
pub mod mention;
pub mod nearest;
pub mod normal_equations;
pub mod operator;
mod parser;
pub mod program;
pub mod region;
pub mod spectrum;
pub mod stencil;
pub mod terms;
mod transpose;
pub mod waves;
