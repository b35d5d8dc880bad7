//! Figures as SVG text, without scripts, fonts or other files.
//!
//! Lines and letters are painted in `currentColor`, so a figure inside a page follows the page's light or dark colours
//! and a figure alone is black on white. Nothing carries an `id`: any number of figures can share one page.

use std::fmt::{self, Arguments, Display, Write as _};

/// A finished figure. Only this crate's drawing code makes one, so it can stand in a page without escaping.
#[derive(Clone, Debug, PartialEq)]
pub struct Svg {
    pub(crate) text: String,
    width: f64,
    height: f64,
}

impl Svg {
    /// Panels in one figure on white, left to right and then downwards, `columns` per row.
    pub fn tile(title: &str, columns: usize, panels: &[Svg]) -> Svg {
        let cell = |size: fn(&Svg) -> f64| panels.iter().map(size).fold(0.0, f64::max);
        let (width, height) = (cell(|p| p.width), cell(|p| p.height));
        let columns = columns.max(1);
        let (total_width, total_height) =
            (width * columns.min(panels.len()) as f64, height * panels.len().div_ceil(columns) as f64);
        let mut draw = Drawing::default();
        draw.add(format_args!(
            "<rect width=\"{}\" height=\"{}\" fill=\"#fff\"/>",
            short(total_width),
            short(total_height)
        ));
        for (k, panel) in panels.iter().enumerate() {
            let (x, y) = (width * (k % columns) as f64, height * (k / columns) as f64);
            let placed = format!("<svg x=\"{}\" y=\"{}\" ", short(x), short(y));
            draw.add(format_args!("{}", panel.text.replacen("<svg ", &placed, 1)));
        }
        draw.finish(total_width, total_height, title)
    }
}

impl Display for Svg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl maud::Render for Svg {
    fn render_to(&self, page: &mut String) {
        page.push_str(&self.text);
    }
}

/// The colours of Okabe and Ito, which stay apart for colour-blind readers, pale yellow last of them, then wine and
/// grey. Their black is [`INK`].
const PALETTE: [&str; 9] =
    ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#882255", "#888888"];

/// The colour index of the text colour, black on paper: for what others are compared with, such as data.
pub const INK: usize = usize::MAX;

/// The colour of series `index`; colours repeat after nine, marker shapes after five, the pair after 45.
pub fn colour(index: usize) -> &'static str {
    if index == INK { "currentColor" } else { PALETTE[index % PALETTE.len()] }
}

/// One colour index per name, given out in order of first use: keep one of these for a whole report and a method has
/// the same colour and marker in all its figures.
#[derive(Clone, Debug, Default)]
pub struct Colours(Vec<String>);

impl Colours {
    /// The colour index of `name`.
    pub fn index(&mut self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        })
    }
}

/// Where a text starts relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// Letters of the usual sans-serif faces are at most about this wide on average, in units of the letter size.
const LETTER_WIDTH: f64 = 0.58;

pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    LETTER_WIDTH * size * text.chars().count() as f64
}

/// The letter size, at most `size`, at which `text` fits into `room`.
pub(crate) fn fitting(text: &str, size: f64, room: f64) -> f64 {
    let fits = size.min(size * room / text_width(text, size).max(1.0));
    (10.0 * fits).floor() / 10.0
}

/// SVG text under construction.
#[derive(Default)]
pub(crate) struct Drawing(String);

impl Drawing {
    pub(crate) fn add(&mut self, element: Arguments<'_>) {
        self.0.write_fmt(element).expect("a string takes all text");
    }

    pub(crate) fn text(&mut self, [x, y]: [f64; 2], size: f64, anchor: Anchor, turn: f64, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (short(x), short(y), escape(text));
        let turn = if turn == 0.0 { String::new() } else { format!(" transform=\"rotate({turn} {x} {y})\"") };
        self.add(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"currentColor\"{turn}>{text}</text>"
        ));
    }

    /// A stroke along the path `d`, with further attributes.
    pub(crate) fn stroke(&mut self, d: &str, colour: &str, width: f64, attributes: &str) {
        if !d.is_empty() {
            self.add(format_args!(
                "<path d=\"{d}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{attributes}/>"
            ));
        }
    }

    pub(crate) fn finish(self, width: f64, height: f64, title: &str) -> Svg {
        let (w, h, title, body) = (short(width), short(height), escape(title), self.0);
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\"><title>{title}</title>{body}</svg>"
        );
        Svg { text, width, height }
    }
}

/// `text` safe inside elements and attributes; characters XML does not allow become �.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c if c.is_control() && !matches!(c, '\n' | '\t') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// A length in pixels to one decimal, without a trailing `.0`: files stay small.
pub(crate) fn short(length: f64) -> String {
    let rounded = (length * 10.0).round() / 10.0;
    format!("{}", rounded + 0.0)
}

/// What tests look for in figures.
#[cfg(test)]
pub(crate) mod testing {
    use roxmltree::{Document, Node};

    use super::Svg;

    /// All texts of a figure, in order.
    pub(crate) fn texts(svg: &Svg) -> Vec<String> {
        let document = Document::parse(&svg.text).unwrap();
        document.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text().map(str::to_owned)).collect()
    }

    /// How many elements of a figure are as wanted.
    pub(crate) fn count(svg: &Svg, wanted: impl Fn(Node) -> bool) -> usize {
        Document::parse(&svg.text).unwrap().descendants().filter(|n| wanted(*n)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([12.0, 3.25999, -0.04, 0.0].map(short), ["12", "3.3", "0", "0"]);
    }

    #[test]
    fn markup_and_control_characters_are_harmless() {
        assert_eq!(escape("<a b=\"c\"> & \u{1}"), "&lt;a b=&quot;c&quot;&gt; &amp; \u{fffd}");
    }

    #[test]
    fn a_name_keeps_its_colour() {
        let mut colours = Colours::default();
        assert_eq!(["a", "b", "a", "c", "b"].map(|name| colours.index(name)), [0, 1, 0, 2, 1]);
    }
}
