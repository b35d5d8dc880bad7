//! Formulas: text such as `K*laplacian(p) + dot(grad(K), grad(p)) + f`, typed, folded and compiled.
//!
//! A formula is literal about its discretisation: `laplacian(p)` is `dxx(p) + dyy(p)` with second-derivative matrices,
//! `div(grad(p))` applies first-derivative matrices twice. What does not depend on a field or a run-time parameter is
//! computed once, when the formula is compiled.
//!
//! | written                              | means                                                                     |
//! |--------------------------------------|---------------------------------------------------------------------------|
//! | `x`, `t`, …, `pi`                    | the coordinate along the axis of that name; π                             |
//! | `a + b`, `a - b`, `a*b`, `a/b`       | arithmetic, at every point                                                |
//! | `a^b`                                | a power; products for small integers b, e^(b ln a) with a > 0 if b varies |
//! | `a < b`, `<=`, `>`, `>=`, `==`, `!=` | 1 or 0; for constants only                                                |
//! | `sqrt exp log sin cos tanh`          | functions of one number                                                   |
//! | `abs(a)`                             | its slope is the sign of a, and 0 at 0                                    |
//! | `sign(a)`, `heaviside(a)`            | −1, 0 or 1; 1 where a ≥ 0, else 0; their slope is 0                       |
//! | `min(a, b)`, `max(a, b)`             | of finite numbers; the slope is the chosen one's, the first's at ties     |
//! | `dx(u)`, `dxx(u)`, `dtx(u)`          | derivatives along the axes x and t; a mixed one is `dt(dx(u))`            |
//! | `laplacian(u)`                       | sum of the second derivatives along the axes of space (all but t)         |
//! | `grad(u)`, `div(v)`, `dot(v, w)`     | vectors over the axes of space                                            |
//! | `divgrad(K, u)`                      | ∇·(K∇u) over the axes of space by fluxes, see [`crate::flux`]             |
//! | `divgrad(K, u, harmonic)`            | the same with harmonic means of K, which must be positive                 |
//! | `mean(u)`, `mean(u, x)`              | the mean over the domain, or over one axis, at every point                |
//! | `at(u, t=first)`, `t=last`, `t=3`    | the value at an end or index (from 0) of an axis, at every point          |
//!
//! ```
//! use softly_pde::algebra::{F64Algebra, Value};
//! use softly_pde::formula::{Symbols, compile};
//! use softly_pde::grid::Grid;
//!
//! let grid = Grid::unit(8, 8);
//! let symbols = Symbols { fields: vec!["u".into()], ..Symbols::new(grid.clone()) };
//! let residual = compile("laplacian(u) - 4", &symbols)?;
//!
//! let u: Vec<f64> = (0..64).map(|i| ((i / 8) as f64 / 7.0).powi(2) + ((i % 8) as f64 / 7.0).powi(2)).collect();
//! let algebra = F64Algebra::new(grid);
//! let tape = residual.forward(&algebra, &[u.into()]);
//! assert!(tape.output().numbers().iter().all(|r| r.abs() < 1e-12));
//! let gradient = residual.reverse(&algebra, &tape, Value::Number(1.0));
//! assert!(gradient[0].is_some());
//! # Ok::<(), softly_pde::formula_error::FormulaError>(())
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::compiler::{Scalar, compiled};
use crate::derivative::Scheme;
use crate::formula_error::{FormulaError, Problem};
use crate::grid::Grid;
use crate::program::Program;
use crate::stencil::default_schemes;

/// What the names in a formula mean.
///
/// A name is a field, else a parameter, else the coordinate along an axis or `pi`.
#[derive(Debug, Clone)]
pub struct Symbols {
    /// The grid that fields live on.
    pub grid: Grid,
    /// Names of the fields, in the order of a program's inputs.
    pub fields: Vec<String>,
    /// How derivatives are taken along each axis.
    pub schemes: [Scheme; 2],
    /// How they are taken instead where the (last) argument is just this field or parameter: `dx(p)`, `divgrad(K, p)`.
    pub field_schemes: BTreeMap<String, [Scheme; 2]>,
    /// Names with a meaning of their own.
    pub parameters: BTreeMap<String, Parameter>,
}

/// The meaning of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    /// The same number everywhere.
    Number(f64),
    /// A number for every point, row-major `[rows, cols]`.
    Array(Arc<[f64]>),
    /// A scalar or field that is handed over at every evaluation, such as a number that comes with each sample.
    Runtime,
}

impl Symbols {
    /// Coordinates and numbers on `grid` with the schemes that follow from its axes: no fields, no parameters.
    pub fn new(grid: Grid) -> Self {
        let schemes = default_schemes(&grid);
        Self { grid, fields: Vec::new(), schemes, field_schemes: BTreeMap::new(), parameters: BTreeMap::new() }
    }

    /// Names of the run-time parameters, in the order of a program's inputs after the fields.
    pub fn runtime_parameters(&self) -> impl Iterator<Item = &str> {
        let runtime = self.parameters.iter().filter(|(_, parameter)| **parameter == Parameter::Runtime);
        runtime.map(|(name, _)| name.as_str())
    }
}

/// Compiles the residual `text`.
pub fn compile(text: &str, symbols: &Symbols) -> Result<Program, FormulaError> {
    let (compiler, output) = compiled(text, symbols)?;
    Ok(compiler.finish(output))
}

/// Evaluates a formula of coordinates, numbers and constant parameters at every point: row-major `[rows, cols]`.
pub fn evaluate_constant(text: &str, symbols: &Symbols) -> Result<Vec<f64>, FormulaError> {
    match compiled(text, symbols)? {
        (_, Scalar::Constant(value)) => Ok(value.broadcast(symbols.grid.len()).to_vec()),
        (compiler, Scalar::Operation(_)) => {
            let span = compiler.first_variable.unwrap_or(0..text.len());
            let problem = Problem::NotConstant(text[span.clone()].to_owned());
            Err(FormulaError { formula: text.to_owned(), span, problem })
        }
    }
}
