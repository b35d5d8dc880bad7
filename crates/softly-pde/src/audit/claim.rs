//! Equations that somebody claims for data: formulas, stencils and parameters on a grid, easy to vary.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::algebra::{F64Algebra, Value};
use crate::audit::AuditError;
use crate::derivative::Scheme;
use crate::formula::{Parameter, Symbols, compile, evaluate_constant};
use crate::grid::{Axis, AxisId, Grid, Placement};
use crate::operator::OperatorKind;
use crate::program::Program;
use crate::region::Region;
use crate::terms::{mentions, substitute, terms};

/// The fields of one sample in the order of [`Claim::fields`], each `[rows, cols]`.
pub type Sample = Vec<Value>;

/// What is claimed for data. Everything is plain data, so that a variation is a changed copy.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The points that the fields live on.
    pub grid: Grid,
    /// Names of the fields.
    pub fields: Vec<String>,
    /// The equations, each zero where the claim holds.
    pub equations: Vec<Equation>,
    /// How derivatives are taken along each axis.
    pub schemes: [Scheme; 2],
    /// How they are taken of single fields instead.
    pub field_schemes: BTreeMap<String, [Scheme; 2]>,
    /// Parameters that are one number.
    pub numbers: BTreeMap<String, f64>,
    /// Parameters that are formulas of the coordinates and of numbers.
    pub formulas: BTreeMap<String, String>,
    /// Parameters with a number per point, row-major `[rows, cols]`.
    pub arrays: BTreeMap<String, Arc<[f64]>>,
}

/// A formula and where it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Equation {
    /// The residual R.
    pub formula: String,
    /// The points where it counts.
    pub region: Region,
}

/// A claim whose formulas are compiled.
pub(crate) struct Ready {
    pub algebra: F64Algebra,
    pub equations: Vec<ReadyEquation>,
    /// Values of the free parameters, the inputs after the fields.
    pub free: Vec<f64>,
}

/// An equation term by term.
pub(crate) struct ReadyEquation {
    /// Each term as written, with its sign.
    pub names: Vec<String>,
    /// Each term's sign and program.
    pub programs: Vec<(f64, Program)>,
    /// Whether each point counts.
    pub inside: Vec<bool>,
    /// Points that count.
    pub count: usize,
}

impl Claim {
    /// The claim with the numbers of the names in `free` as inputs after the fields.
    pub(crate) fn ready(&self, free: &[String]) -> Result<Ready, AuditError> {
        let mut symbols = Symbols::new(self.grid.clone());
        symbols.schemes = self.schemes;
        symbols.field_schemes.clone_from(&self.field_schemes);
        let known = self.numbers.iter().filter(|(name, _)| !free.contains(name));
        symbols.parameters = known.map(|(name, number)| (name.clone(), Parameter::Number(*number))).collect();
        let constants = symbols.clone();
        // A formula of free numbers is written out wherever its name stands.
        let varies = |text: &str| free.iter().any(|name| mentions(text, name));
        for (name, text) in self.formulas.iter().filter(|(_, text)| !varies(text)) {
            let values = evaluate_constant(text, &constants)?;
            symbols.parameters.insert(name.clone(), Parameter::Array(values.into()));
        }
        for (name, array) in &self.arrays {
            symbols.parameters.insert(name.clone(), Parameter::Array(array.clone()));
        }
        symbols.fields = self.fields.iter().chain(free).cloned().collect();
        let written_out = |name: &str| self.formulas.get(name).filter(|text| varies(text)).cloned();
        let ready = |equation: &Equation| ReadyEquation::new(equation, &symbols, &written_out);
        Ok(Ready {
            algebra: F64Algebra::new(self.grid.clone()),
            equations: self.equations.iter().map(ready).collect::<Result<_, _>>()?,
            free: free.iter().map(|name| self.numbers[name]).collect(),
        })
    }

    /// Names of the numbers that an equation or a formula of an equation mentions.
    pub fn used_numbers(&self) -> Vec<String> {
        let in_equation = |name: &str| self.equations.iter().any(|equation| mentions(&equation.formula, name));
        let used = |name: &str| {
            let through = self.formulas.iter().any(|(formula, text)| mentions(text, name) && in_equation(formula));
            in_equation(name) || through
        };
        self.numbers.keys().filter(|name| used(name)).cloned().collect()
    }

    /// The claim with every scheme replaced.
    pub(crate) fn with_schemes(&self, new: impl Fn(Scheme) -> Scheme) -> Self {
        let field_schemes = self.field_schemes.iter().map(|(name, schemes)| (name.clone(), schemes.map(&new)));
        Self { schemes: self.schemes.map(&new), field_schemes: field_schemes.collect(), ..self.clone() }
    }

    /// The claim with one axis replaced; the number of points stays.
    pub(crate) fn with_axis(&self, axis: AxisId, new: impl Fn(&Axis) -> Axis) -> Self {
        let mut claim = self.clone();
        claim.grid.axes[axis as usize] = new(&self.grid.axes[axis as usize]);
        claim
    }

    /// The claim with an axis `factor` times as long.
    pub(crate) fn stretched(&self, axis: AxisId, factor: f64) -> Self {
        self.with_axis(axis, |old| Axis { last: old.first + factor * old.length(), ..old.clone() })
    }

    /// The claim with nodes instead of cells along an axis, or the other way round.
    pub(crate) fn replaced(&self, axis: AxisId) -> Self {
        self.with_axis(axis, |old| {
            let placement = if old.placement == Placement::Nodes { Placement::Cells } else { Placement::Nodes };
            Axis { placement, ..old.clone() }
        })
    }

    /// The claim with exchanged axes: rows run along what columns ran along. The numbers of rows and columns stay.
    pub(crate) fn exchanged(&self) -> Self {
        let mut claim = self.clone();
        if let [rows, cols] = &self.grid.axes[..] {
            claim.grid.axes =
                vec![Axis { nodes: rows.nodes, ..cols.clone() }, Axis { nodes: cols.nodes, ..rows.clone() }];
        }
        claim.schemes.reverse();
        claim.field_schemes.values_mut().for_each(|schemes| schemes.reverse());
        claim
    }

    /// The claim on the points whose indices along `axis` are in `kept`; `new` is their axis.
    pub(crate) fn restricted(&self, axis: AxisId, kept: &[usize], new: Axis) -> Self {
        let mut claim = self.clone();
        for array in claim.arrays.values_mut() {
            *array = restricted(array, &self.grid, axis, kept);
        }
        claim.grid.axes[axis as usize] = new;
        claim
    }

    /// Whether a formula takes values by an index in the middle of an axis, which means another place on another grid.
    pub(crate) fn has_indices(&self) -> bool {
        self.ready(&[]).is_ok_and(|ready| {
            let programs = ready.equations.iter().flat_map(|equation| &equation.programs);
            programs.flat_map(|(_, program)| program.operators()).any(|operator| match operator.kind {
                OperatorKind::At(index) => index != 0 && index + 1 != self.grid.nodes(operator.axis),
                _ => false,
            })
        })
    }
}

/// The values `[rows, cols]` at the indices `kept` along `axis`.
pub(crate) fn restricted(values: &[f64], grid: &Grid, axis: AxisId, kept: &[usize]) -> Arc<[f64]> {
    let (rows, cols) = (grid.rows(), grid.cols());
    match axis {
        AxisId::Rows => kept.iter().flat_map(|&i| values[i * cols..(i + 1) * cols].iter().copied()).collect(),
        AxisId::Cols => (0..rows).flat_map(|i| kept.iter().map(move |&j| values[i * cols + j])).collect(),
    }
}

impl ReadyEquation {
    fn new(
        equation: &Equation,
        symbols: &Symbols,
        written_out: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, AuditError> {
        let inside = equation.region.mask(&symbols.grid)?;
        let parts = terms(&equation.formula)?;
        let mut names: Vec<String> = parts.iter().map(ToString::to_string).collect();
        let program = |text: &str| compile(&substitute(text, written_out)?, symbols);
        let programs = parts.iter().map(|term| Ok((term.sign(), program(&term.text)?)));
        let mut programs = programs.collect::<Result<Vec<_>, AuditError>>()?;
        // A single term may still be a sum, such as a Laplacian.
        if let [(sign, whole)] = &programs[..] {
            let summands: Vec<_> = whole.summands().into_iter().map(|(own, part)| (sign * own, part)).collect();
            if summands.len() > 1 {
                names = (1..=summands.len()).map(|k| format!("summand {k} of {}", names[0])).collect();
                programs = summands;
            }
        }
        let count = inside.iter().filter(|inside| **inside).count();
        Ok(Self { names, programs, inside, count })
    }

    /// Every term with its sign at every point, `[terms][points]`.
    pub fn terms(&self, algebra: &F64Algebra, inputs: &[Value]) -> Vec<Vec<f64>> {
        let value = |(sign, program): &(f64, Program)| {
            let values = program.forward(algebra, inputs).output().broadcast(algebra.grid().len());
            values.iter().map(|v| sign * v).collect()
        };
        self.programs.iter().map(value).collect()
    }

    /// The residual at every point: the sum of the terms.
    pub fn residual(&self, algebra: &F64Algebra, inputs: &[Value]) -> Vec<f64> {
        sum(&self.terms(algebra, inputs))
    }

    /// The indices of the points that count.
    pub fn points(&self) -> impl Iterator<Item = usize> {
        self.inside.iter().enumerate().filter(|(_, inside)| **inside).map(|(point, _)| point)
    }
}

/// The sum of terms `[terms][points]` at every point.
pub(crate) fn sum(terms: &[Vec<f64>]) -> Vec<f64> {
    let mut sum = vec![0.0; terms.first().map_or(0, Vec::len)];
    for term in terms {
        sum.iter_mut().zip(term).for_each(|(sum, value)| *sum += value);
    }
    sum
}

impl Ready {
    /// The inputs of the programs for `sample`: its fields, then the free parameters.
    pub fn inputs(&self, sample: &Sample) -> Vec<Value> {
        sample.iter().cloned().chain(self.free.iter().map(|number| Value::Number(*number))).collect()
    }
}
