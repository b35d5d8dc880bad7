//! A formula's text taken apart: the terms of its outermost sum, and parameters replaced by what they stand for.

use crate::algebra::Binary;
use crate::formula_error::FormulaError;
use crate::lexer::{Operator, Token, TokenKind, tokens};
use crate::parser::parse;

/// One term of a sum as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// The term without its sign: a formula.
    pub text: String,
    /// Whether the term is subtracted.
    pub negative: bool,
}

impl Term {
    /// +1 or −1.
    pub fn sign(&self) -> f64 {
        if self.negative { -1.0 } else { 1.0 }
    }
}

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.text)
    }
}

/// The terms whose sum is the formula `text`: `dt(u) - (f + g)` is `dt(u)`, `-f`, `-g`.
///
/// Sums are taken apart inside parentheses that hold a whole term, not inside products or calls.
pub fn terms(text: &str) -> Result<Vec<Term>, FormulaError> {
    parse(text)?;
    let tokens = lexed(text)?;
    let mut found = Vec::new();
    collect(text, &tokens, false, &mut found);
    Ok(found)
}

/// The formula `text` with every name that `meaning` knows replaced by its meaning in parentheses; functions stay.
pub fn substitute(text: &str, meaning: impl Fn(&str) -> Option<String>) -> Result<String, FormulaError> {
    let tokens = lexed(text)?;
    let mut result = String::new();
    let mut copied = 0;
    for (index, token) in tokens.iter().enumerate() {
        let neighbour = |at: Option<usize>| at.and_then(|at| tokens.get(at)).map(|token| token.kind);
        let is_call = neighbour(Some(index + 1)) == Some(TokenKind::Open);
        // `t=first`: neither side is a value.
        let is_place = [Some(index + 1), index.checked_sub(1)].map(neighbour).contains(&Some(TokenKind::Equals));
        if token.kind == TokenKind::Name
            && !is_call
            && !is_place
            && let Some(new) = meaning(&text[token.span.clone()])
        {
            result += &text[copied..token.span.start];
            result.extend(["(", new.as_str(), ")"]);
            copied = token.span.end;
        }
    }
    Ok(result + &text[copied..])
}

/// Whether the formula `text` names `name` as a value.
pub fn mentions(text: &str, name: &str) -> bool {
    substitute(text, |found| (found == name).then(String::new)).is_ok_and(|new| new != text)
}

fn lexed(text: &str) -> Result<Vec<Token>, FormulaError> {
    tokens(text).map_err(|(span, problem)| FormulaError { formula: text.to_owned(), span, problem })
}

/// Adds the terms of the sum that `tokens` of `text` spell.
fn collect(text: &str, tokens: &[Token], negative: bool, found: &mut Vec<Term>) {
    let cuts = cuts(tokens);
    let mut begin = 0;
    for end in cuts.iter().copied().chain([tokens.len()]) {
        let mut part = &tokens[begin..end];
        let mut sign = negative;
        // The operator that joins the term to the sum, then signs of its own.
        while let Some(TokenKind::Operator(Operator::Arithmetic(operation @ (Binary::Add | Binary::Sub)))) =
            part.first().map(|token| token.kind)
        {
            sign ^= operation == Binary::Sub;
            part = &part[1..];
        }
        begin = end;
        if is_enclosed(part) {
            collect(text, &part[1..part.len() - 1], sign, found);
        } else if let (Some(first), Some(last)) = (part.first(), part.last()) {
            let text = text[first.span.start..last.span.end].to_owned();
            found.push(Term { text, negative: sign });
        }
    }
}

/// Where the terms of a sum begin, the first excepted; none if the whole is a comparison.
fn cuts(tokens: &[Token]) -> Vec<usize> {
    let mut depth = 0;
    let mut cuts = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth -= 1,
            TokenKind::Operator(Operator::Choice(_)) if depth == 0 => return Vec::new(),
            TokenKind::Operator(Operator::Arithmetic(Binary::Add | Binary::Sub)) if depth == 0 => {
                let before = index.checked_sub(1).map(|before| tokens[before].kind);
                // After an operand it joins two terms; elsewhere it is a sign.
                if matches!(before, Some(TokenKind::Number(_) | TokenKind::Name | TokenKind::Close)) {
                    cuts.push(index);
                }
            }
            _ => {}
        }
    }
    cuts
}

/// Whether one pair of parentheses holds everything.
fn is_enclosed(tokens: &[Token]) -> bool {
    let mut depth = 0;
    let closes_at = tokens.iter().position(|token| {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    tokens.len() > 2 && tokens[0].kind == TokenKind::Open && closes_at == Some(tokens.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Vec<String> {
        terms(text).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn sums_are_taken_apart_and_nothing_else() {
        assert_eq!(written("dt(u) + u*dx(u) - nu*dxx(u)"), ["dt(u)", "u*dx(u)", "-nu*dxx(u)"]);
        assert_eq!(written("-(a - (b + c)) + 2*(d - e)"), ["-a", "b", "c", "2*(d - e)"]);
        assert_eq!(written("- -a - -b^-2"), ["a", "b^-2"]);
        assert_eq!(written("a*-b - 1e-3"), ["a*-b", "-1e-3"]);
        assert_eq!(written("min(a + b, c) + at(u, t=first)"), ["min(a + b, c)", "at(u, t=first)"]);
        assert_eq!(written("(a)*(b)"), ["(a)*(b)"]);
        assert_eq!(written("a + 1 < b"), ["a + 1 < b"]);
        assert_eq!(written("((u))"), ["u"]);
        assert!(terms("a +").is_err() && terms("").is_err());
    }

    #[test]
    fn names_are_replaced_where_they_are_values() {
        let new = |text: &str| substitute(text, |name| (name == "f").then(|| "2*flow".into())).unwrap();
        assert_eq!(new("f + f(x) - ff*f"), "(2*flow) + f(x) - ff*(2*flow)");
        assert_eq!(new("at(u, f=first)"), "at(u, f=first)");
        assert!(mentions("a*nu", "nu") && !mentions("a*nu2", "nu") && !mentions("nu(a)", "nu"));
    }
}
