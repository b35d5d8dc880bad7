//! Tokens to postfix: operands before their operator, so that later passes need neither recursion nor a tree.

use std::ops::Range;

use crate::algebra::Binary;
use crate::formula_error::{Fault, FormulaError, Problem};
use crate::function::first_word;
use crate::lexer::{Operator, Token, TokenKind, tokens};

/// Longest formula in bytes: room for sums of ten thousand terms.
const MAX_LENGTH: usize = 1 << 16;

/// Deepest nesting of parentheses, signs and powers; bounds the parser's recursion.
const MAX_DEPTH: usize = 100;

/// One step of a formula in postfix, and the bytes to point at when it fails.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    pub kind: ItemKind,
    pub span: Range<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ItemKind {
    Number(f64),
    Name,
    Negate,
    Operator(Operator),
    /// A function's name after its arguments.
    Call(Arguments),
}

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Arguments {
    /// The bytes of each argument that is a formula.
    pub formulas: Vec<Range<usize>>,
    /// What follows them.
    pub words: Vec<Word>,
}

/// A word such as `harmonic`, or one with a value such as `t=first`.
#[derive(Debug, Clone, PartialEq)]
pub struct Word {
    pub name: Range<usize>,
    pub value: Option<Range<usize>>,
}

impl Word {
    /// All its bytes.
    pub fn span(&self) -> Range<usize> {
        self.name.start..self.value.as_ref().unwrap_or(&self.name).end
    }
}

/// The formula `text` in postfix; never empty.
pub fn parse(text: &str) -> Result<Vec<Item>, FormulaError> {
    let error = |(span, problem)| FormulaError { formula: text.to_owned(), span, problem };
    if text.len() > MAX_LENGTH {
        return Err(error((0..0, Problem::TooLong { length: text.len(), limit: MAX_LENGTH })));
    }
    let tokens = tokens(text).map_err(error)?;
    if tokens.is_empty() {
        return Err(error((0..0, Problem::Empty)));
    }
    let mut parser = Parser { text, tokens, next: 0, depth: 0, items: Vec::new() };
    parser.expression(Level::Comparison).and_then(|()| parser.end()).map_err(error)?;
    Ok(parser.items)
}

/// How tightly an operator binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Comparison,
    Sum,
    Product,
    Sign,
    Power,
}

impl Level {
    fn of(operator: Operator) -> Self {
        match operator {
            Operator::Choice(_) => Level::Comparison,
            Operator::Arithmetic(Binary::Add | Binary::Sub) => Level::Sum,
            Operator::Arithmetic(Binary::Mul | Binary::Div) => Level::Product,
            Operator::Power => Level::Power,
        }
    }

    /// The level of a right operand: one up, so that `a-b-c` is `(a-b)-c`, but `a^b^c` is `a^(b^c)`.
    fn of_right_operand(self) -> Self {
        match self {
            Level::Comparison => Level::Sum,
            Level::Sum => Level::Product,
            Level::Product => Level::Sign,
            Level::Sign | Level::Power => Level::Power,
        }
    }
}

type Parsed = Result<(), Fault>;

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
    items: Vec<Item>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<TokenKind> {
        self.tokens.get(self.next).map(|token| token.kind)
    }

    /// The bytes of the next token, or the end of the formula.
    fn here(&self) -> Range<usize> {
        let end = self.tokens.last().map_or(0, |token| token.span.end);
        self.tokens.get(self.next).map_or(end..end, |token| token.span.clone())
    }

    fn expected(&self, expected: &'static str) -> Parsed {
        if self.peek() == Some(TokenKind::Close) && self.depth == 0 {
            return Err((self.here(), Problem::Unopened));
        }
        if self.peek() == Some(TokenKind::Equals) {
            return Err((self.here(), Problem::UnexpectedCharacter('=')));
        }
        let here = self.here();
        let found = if here.is_empty() { "the end".into() } else { format!("`{}`", &self.text[here.clone()]) };
        Err((here, Problem::Expected { expected, found }))
    }

    fn end(&self) -> Parsed {
        if self.next == self.tokens.len() { Ok(()) } else { self.expected("an operator or the end") }
    }

    /// Emits an operand and every operator after it that binds at least as tightly as `level`.
    fn expression(&mut self, level: Level) -> Parsed {
        self.operand()?;
        while let Some(TokenKind::Operator(operator)) = self.peek() {
            let own = Level::of(operator);
            if own < level {
                break;
            }
            let span = self.here();
            self.next += 1;
            if own == Level::Power {
                self.nested(|parser| parser.expression(Level::Power))?;
            } else {
                self.expression(own.of_right_operand())?;
            }
            self.items.push(Item { kind: ItemKind::Operator(operator), span });
            if own == Level::Comparison && matches!(self.peek(), Some(TokenKind::Operator(Operator::Choice(_)))) {
                return Err((self.here(), Problem::ChainedComparison));
            }
        }
        Ok(())
    }

    /// Emits a number, a name, a call, a sign with its operand, or what is in parentheses.
    fn operand(&mut self) -> Parsed {
        let span = self.here();
        match self.peek() {
            Some(TokenKind::Number(number)) => {
                self.next += 1;
                self.items.push(Item { kind: ItemKind::Number(number), span });
            }
            Some(TokenKind::Name) => {
                self.next += 1;
                let kind = match self.peek() {
                    Some(TokenKind::Open) => {
                        let words_from = first_word(&self.text[span.clone()]);
                        ItemKind::Call(self.nested(|parser| parser.arguments(words_from))?)
                    }
                    _ => ItemKind::Name,
                };
                self.items.push(Item { kind, span });
            }
            Some(TokenKind::Operator(Operator::Arithmetic(Binary::Sub))) => {
                self.next += 1;
                self.nested(|parser| parser.expression(Level::Sign))?;
                self.items.push(Item { kind: ItemKind::Negate, span });
            }
            Some(TokenKind::Open) => {
                self.next += 1;
                self.nested(|parser| {
                    parser.expression(Level::Comparison)?;
                    parser.close(&span, "an operator or `)`")
                })?;
            }
            _ => self.expected("a number, a name or `(`")?,
        }
        Ok(())
    }

    /// Emits the arguments of a call that are formulas and returns where all are; those from `words_from` on are words.
    fn arguments(&mut self, words_from: Option<usize>) -> Result<Arguments, Fault> {
        let open = self.here();
        self.next += 1;
        let mut arguments = Arguments::default();
        if self.peek() != Some(TokenKind::Close) {
            loop {
                if words_from.is_some_and(|first| arguments.formulas.len() >= first) {
                    arguments.words.push(self.word()?);
                } else {
                    let start = self.here().start;
                    self.expression(Level::Comparison)?;
                    arguments.formulas.push(start..self.tokens[self.next - 1].span.end);
                }
                if self.peek() != Some(TokenKind::Comma) {
                    break;
                }
                self.next += 1;
            }
        }
        self.close(&open, "an operator, `,` or `)`")?;
        Ok(arguments)
    }

    fn word(&mut self) -> Result<Word, Fault> {
        if self.peek() != Some(TokenKind::Name) {
            self.expected("a name")?;
        }
        let mut word = Word { name: self.here(), value: None };
        self.next += 1;
        if self.peek() == Some(TokenKind::Equals) {
            self.next += 1;
            if !matches!(self.peek(), Some(TokenKind::Name | TokenKind::Number(_))) {
                self.expected("first, last or a number")?;
            }
            word.value = Some(self.here());
            self.next += 1;
        }
        Ok(word)
    }

    fn close(&mut self, open: &Range<usize>, expected: &'static str) -> Parsed {
        match self.peek() {
            Some(TokenKind::Close) => self.next += 1,
            None => return Err((open.clone(), Problem::Unclosed)),
            Some(_) => return self.expected(expected),
        }
        Ok(())
    }

    /// Runs `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.depth == MAX_DEPTH {
            return Err((self.here(), Problem::TooDeep { limit: MAX_DEPTH }));
        }
        self.depth += 1;
        let result = inner(self)?;
        self.depth -= 1;
        Ok(result)
    }
}
