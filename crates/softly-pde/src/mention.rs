//! What a formula speaks of, read off its text: the names in it, and how often each is differentiated.

use std::ops::Range;

use crate::formula_error::FormulaError;
use crate::function::{Function, functions};
use crate::grid::Grid;
use crate::parser::{ItemKind, parse};

/// A name in a formula that is no function's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mention {
    /// The name: a field, a parameter, a coordinate or a constant.
    pub name: String,
    /// Derivatives around it, at the place where there are most: 2 for u in `dt(u) - dxx(u)`.
    pub order: usize,
}

/// Every name in `text` once, in the order of their first places; derivatives are those along the axes of `grid`.
pub fn mentions(text: &str, grid: &Grid) -> Result<Vec<Mention>, FormulaError> {
    let items = parse(text)?;
    let functions = functions(grid);
    let function = |span: &Range<usize>| functions.iter().find(|(name, _)| *name == text[span.clone()]).map(|f| f.1);
    // The bytes of each argument and how often the function around it differentiates it.
    let arguments: Vec<(Range<usize>, usize)> = items
        .iter()
        .filter_map(|item| match &item.kind {
            ItemKind::Call(arguments) => Some((function(&item.span)?, arguments)),
            _ => None,
        })
        .flat_map(|(function, arguments)| {
            arguments.formulas.iter().enumerate().map(move |(i, span)| (span.clone(), order(function, i)))
        })
        .collect();
    let mut names: Vec<&Range<usize>> =
        items.iter().filter(|item| item.kind == ItemKind::Name).map(|item| &item.span).collect();
    names.sort_by_key(|span| span.start);
    let mut mentions: Vec<Mention> = Vec::new();
    for span in names {
        let around = arguments.iter().filter(|(argument, _)| argument.start <= span.start && span.end <= argument.end);
        let order = around.map(|(_, order)| order).sum();
        let name = &text[span.clone()];
        match mentions.iter_mut().find(|mention| mention.name == name) {
            Some(mention) => mention.order = mention.order.max(order),
            None => mentions.push(Mention { name: name.to_owned(), order }),
        }
    }
    Ok(mentions)
}

/// How often `function` differentiates its argument `i`.
fn order(function: Function, i: usize) -> usize {
    match function {
        Function::Partial(partial) => 1 + usize::from(partial.outer.is_some()),
        Function::Laplacian => 2,
        Function::Grad | Function::Div => 1,
        Function::DivGrad => 1 + i,
        Function::Pointwise(_) | Function::Choice(_) | Function::Dot | Function::Mean | Function::At => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Axis;

    #[test]
    fn names_come_with_their_derivatives() {
        let grid = Grid { axes: vec![Axis::new("t", 8, 0.0, 1.0), Axis::new("x", 8, 0.0, 1.0)] };
        let found = |text: &str| -> Vec<(String, usize)> {
            mentions(text, &grid).unwrap().into_iter().map(|m| (m.name, m.order)).collect()
        };
        let expected = |pairs: &[(&str, usize)]| pairs.iter().map(|(n, o)| ((*n).to_string(), *o)).collect::<Vec<_>>();
        assert_eq!(found("dt(u) + u*dx(u) - nu*dxx(u)"), expected(&[("u", 2), ("nu", 0)]));
        assert_eq!(found("divgrad(K, p, harmonic) + f*exp(x)"), expected(&[("K", 1), ("p", 2), ("f", 0), ("x", 0)]));
        assert_eq!(found("div(grad(p)) - dx(dtx(q) + p) + pi"), expected(&[("p", 2), ("q", 3), ("pi", 0)]));
        assert_eq!(found("at(u, t=first) - sin(2*x)"), expected(&[("u", 0), ("x", 0)]));
        assert!(mentions("dx(u", &grid).is_err());
    }
}
