//! Formula text to tokens.

use std::ops::Range;

use crate::algebra::Binary;
use crate::formula_error::{Fault, Problem};

/// A word of the language and the bytes it covers.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub kind: TokenKind,
    pub span: Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenKind {
    Number(f64),
    Name,
    Operator(Operator),
    Open,
    Close,
    Comma,
    /// A single `=`, as in `t=first`.
    Equals,
}

/// An infix operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Arithmetic(Binary),
    Power,
    Choice(Choice),
}

/// Functions of two numbers that choose. Comparisons have no useful derivative and work on constants only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    Min,
    Max,
}

impl Choice {
    /// The comparison's 0 or 1, or the smaller or larger number.
    pub fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Choice::Less => f64::from(a < b),
            Choice::LessEqual => f64::from(a <= b),
            Choice::Greater => f64::from(a > b),
            Choice::GreaterEqual => f64::from(a >= b),
            Choice::Equal => f64::from(a == b),
            Choice::NotEqual => f64::from(a != b),
            Choice::Min => a.min(b),
            Choice::Max => a.max(b),
        }
    }
}

/// Every operator as written; one that begins with another comes first.
const OPERATORS: [(&str, Operator); 11] = [
    ("<=", Operator::Choice(Choice::LessEqual)),
    (">=", Operator::Choice(Choice::GreaterEqual)),
    ("==", Operator::Choice(Choice::Equal)),
    ("!=", Operator::Choice(Choice::NotEqual)),
    ("<", Operator::Choice(Choice::Less)),
    (">", Operator::Choice(Choice::Greater)),
    ("+", Operator::Arithmetic(Binary::Add)),
    ("-", Operator::Arithmetic(Binary::Sub)),
    ("*", Operator::Arithmetic(Binary::Mul)),
    ("/", Operator::Arithmetic(Binary::Div)),
    ("^", Operator::Power),
];

impl Operator {
    /// The operator as written.
    pub fn symbol(self) -> &'static str {
        OPERATORS.iter().find(|(_, operator)| *operator == self).map_or("", |(symbol, _)| symbol)
    }
}

/// The tokens of `text`, or the bytes that are none and why.
pub fn tokens(text: &str) -> Result<Vec<Token>, Fault> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let (length, kind) = if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        } else if c.is_ascii_digit() || c == '.' {
            let length = number_length(rest);
            let parsed = rest[..length].parse::<f64>().ok().filter(|number| number.is_finite());
            let number = parsed.ok_or_else(|| (at..at + length, Problem::BadNumber(rest[..length].to_owned())))?;
            (length, TokenKind::Number(number))
        } else if c.is_alphabetic() || c == '_' {
            (word_length(rest), TokenKind::Name)
        } else if let Some((symbol, operator)) = OPERATORS.iter().find(|(symbol, _)| rest.starts_with(symbol)) {
            (symbol.len(), TokenKind::Operator(*operator))
        } else {
            let kind = match c {
                '(' => TokenKind::Open,
                ')' => TokenKind::Close,
                ',' => TokenKind::Comma,
                '=' => TokenKind::Equals,
                other => return Err((at..at + c.len_utf8(), Problem::UnexpectedCharacter(other))),
            };
            (1, kind)
        };
        tokens.push(Token { kind, span: at..at + length });
        at += length;
    }
    Ok(tokens)
}

/// Bytes of the letters, digits and underscores that `text` begins with.
fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Bytes of the number that `text` begins with, and of everything glued to it: `2x` and `1.2.3` are bad numbers.
fn number_length(text: &str) -> usize {
    let mut length = 0;
    loop {
        let word = word_length(&text[length..]);
        let ends_in_exponent = word > 0 && text[..length + word].ends_with(['e', 'E']);
        length += word;
        let next = text[length..].chars().next();
        let is_exponent_sign = ends_in_exponent
            && matches!(next, Some('+' | '-'))
            && text[length + 1..].starts_with(|c: char| c.is_ascii_digit());
        if next != Some('.') && !is_exponent_sign {
            return length;
        }
        length += 1;
    }
}
