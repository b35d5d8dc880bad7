//! Figures as SVG text, without scripts, fonts or other files.
//!
//! Lines and letters are painted in `currentColor`, so a figure inside a page follows the page's light or dark colours
//! and a figure alone is black on white. Nothing carries an `id`: any number of figures can share one page.

use std::fmt::{self, Arguments, Display, Write as _};

/// A finished figure. Only this crate's drawing code makes one, so it can stand in a page without escaping.
#[derive(Clone, Debug, PartialEq)]
pub struct Svg {
    text: String,
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

/// The colours of Okabe and Ito, which stay apart for colour-blind readers; black is the text colour, so that it
/// shows on a dark page, and pale yellow comes last.
const PALETTE: [&str; 8] =
    ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "currentColor", "#F0E442"];

/// The colour of series `index`; colours repeat after eight, marker shapes after five, the pair after forty.
pub fn colour(index: usize) -> &'static str {
    PALETTE[index % PALETTE.len()]
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

/// How an axis maps values to lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Length in proportion to the value.
    #[default]
    Linear,
    /// Length in proportion to log₁₀ of the value; only positive values have a place.
    Log,
}

impl Scale {
    /// Whether `value` has a place on the axis. The bounds far outside any result keep every later step finite.
    fn holds(self, value: f64) -> bool {
        value.is_finite() && value.abs() < 1e290 && (self == Scale::Linear || value > 1e-290)
    }
}

/// A marked place on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where.
    pub value: f64,
    /// What is written there.
    pub label: String,
}

/// Ticks at round numbers, about `intervals` + 1 of them, the first at or below `low` and the last at or above `high`.
///
/// Linear ticks are multiples of 1, 2 or 5 times a power of ten. Log ticks are powers of ten, or 1, 2 and 5 times
/// them where the data spans about two decades or less.
pub fn ticks(scale: Scale, low: f64, high: f64, intervals: usize) -> Vec<Tick> {
    match scale {
        Scale::Linear => linear_ticks(low, high, intervals),
        Scale::Log => log_ticks(low, high, intervals),
    }
}

/// Rounding may leave a bound this fraction of a step beyond its tick without asking for one more tick.
const SLACK: f64 = 1e-9;

fn linear_ticks(low: f64, high: f64, intervals: usize) -> Vec<Tick> {
    let [low, high] = widened(low, high);
    let rough = (high - low) / intervals.max(1) as f64;
    let power = 10_f64.powf((rough.log10() + SLACK).floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough * (1.0 - SLACK));
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((low / step + SLACK).floor() as i64, (high / step - SLACK).ceil() as i64);
    let largest = (first.abs().max(last.abs()) as f64) * step;
    (first..=last)
        .map(|k| {
            let value = k as f64 * step;
            Tick { value, label: tick_label(value, step, largest) }
        })
        .collect()
}

/// `low` and `high` moved apart when they are too close, or the same, to hold distinct ticks.
fn widened(low: f64, high: f64) -> [f64; 2] {
    let size = low.abs().max(high.abs());
    if high - low > (SLACK * size).max(1e-280) {
        return [low, high];
    }
    let margin = if size < 1e-270 { 1.0 } else { 0.1 * size };
    let middle = 0.5 * low + 0.5 * high;
    [middle - margin, middle + margin]
}

fn log_ticks(low: f64, high: f64, intervals: usize) -> Vec<Tick> {
    let (first, last) = ((low.log10() + SLACK).floor() as i32, (high.log10() - SLACK).ceil() as i32);
    if high.log10() - low.log10() > 2.2 {
        // Labels of powers are short: a few more than on a linear axis save skipping powers.
        let stride = (last - first).unsigned_abs().div_ceil(intervals as u32 + 3);
        let count = (last - first).unsigned_abs().div_ceil(stride);
        return (0..=count)
            .map(|k| first + (k * stride) as i32)
            .map(|power| Tick { value: 10_f64.powi(power), label: format!("10{}", superscript(power)) })
            .collect();
    }
    let steps: Vec<(f64, i32)> =
        (first - 1..=last + 1).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| (digit, power))).collect();
    let value = |&(digit, power): &(f64, i32)| digit * 10_f64.powi(power);
    let start = steps.iter().rposition(|step| value(step) <= low * (1.0 + SLACK)).unwrap_or(0);
    let end = steps.iter().position(|step| value(step) >= high * (1.0 - SLACK)).unwrap_or(steps.len() - 1);
    let steps = if start < end { &steps[start..=end] } else { &steps[start - 1..=end + 1] };
    steps
        .iter()
        .map(|step| {
            let label = match *step {
                (digit, power @ 0..=3) => format!("{}", digit * 10_f64.powi(power)),
                (digit, power @ -3..0) => format!("{:.*}", power.unsigned_abs() as usize, digit * 10_f64.powi(power)),
                (1.0, power) => format!("10{}", superscript(power)),
                (digit, power) => format!("{digit}×10{}", superscript(power)),
            };
            Tick { value: value(step), label }
        })
        .collect()
}

/// A multiple of `step` with exactly the digits the step needs; powers of ten where plain digits would be long.
fn tick_label(value: f64, step: f64, largest: f64) -> String {
    let step_power = (step.log10() + SLACK).floor() as i32;
    let text = if value.abs() < 0.5 * step {
        "0".to_owned()
    } else if largest < 1e5 && step_power >= -4 {
        format!("{value:.*}", (-step_power).max(0) as usize)
    } else {
        let power = (value.abs().log10() + SLACK).floor() as i32;
        let digits = (power - step_power).max(0) as usize;
        let text = format!("{value:.digits$e}");
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        let mantissa =
            if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { mantissa };
        format!("{mantissa}×10{}", superscript(power.parse().unwrap_or(0)))
    };
    text.replace('-', "−")
}

fn superscript(power: i32) -> String {
    power
        .to_string()
        .chars()
        .map(|c| c.to_digit(10).map_or('⁻', |d| ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][d as usize]))
        .collect()
}

/// A range of values and its ticks.
pub(crate) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    pub(crate) ticks: Vec<Tick>,
}

impl Axis {
    /// The axis that covers all `values` (0 to 1, or 1 to 10, without any) and all its ticks.
    fn covering(scale: Scale, values: impl Iterator<Item = f64>, own_ticks: &[Tick]) -> Self {
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values
                .filter(|v| scale.holds(*v))
                .fold([f64::INFINITY, f64::NEG_INFINITY], |[l, h], v| [l.min(v), h.max(v)])
        };
        let own_ticks: Vec<Tick> = own_ticks.iter().filter(|tick| scale.holds(tick.value)).cloned().collect();
        let [mut low, mut high] = bounds(&mut values.chain(own_ticks.iter().map(|tick| tick.value)));
        if low > high {
            [low, high] = if scale == Scale::Linear { [0.0, 1.0] } else { [1.0, 10.0] };
        }
        let ticks = if own_ticks.is_empty() { ticks(scale, low, high, 5) } else { own_ticks };
        let [low, high] = bounds(&mut ticks.iter().map(|tick| tick.value).chain([low, high]));
        let [low, high] = match scale {
            Scale::Linear => widened(low, high),
            Scale::Log if low == high => [low / 2.0, high * 2.0],
            Scale::Log => [low, high],
        };
        Axis { scale, low, high, ticks }
    }

    /// The linear axis of exactly `[low, high]`, with the ticks that lie inside.
    pub(crate) fn exactly(low: f64, high: f64, intervals: usize) -> Self {
        let (low, high) = if Scale::Linear.holds(low) && Scale::Linear.holds(high) { (low, high) } else { (0.0, 1.0) };
        let [low, high] = widened(low, high);
        let slack = SLACK * (high - low);
        let mut ticks = linear_ticks(low, high, intervals);
        ticks.retain(|tick| tick.value >= low - slack && tick.value <= high + slack);
        Axis { scale: Scale::Linear, low, high, ticks }
    }

    /// The place of `value`: 0 at the lower end, 1 at the upper end; beyond the ends it stays at the end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let length = |v: f64| if self.scale == Scale::Log { v.max(1e-300).log10() } else { v };
        let (low, high) = (length(self.low), length(self.high));
        ((length(value) - low) / (high - low)).clamp(0.0, 1.0)
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

/// A small square panel of points in the plane over the curve they should lie on, with the same scale on both axes.
#[derive(Clone, Debug)]
pub struct Scatter<'a> {
    /// Written above the panel and read aloud for it.
    pub title: &'a str,
    /// Points `[x, y]`; of more than 1000 in range, 1000 spread evenly over the list are drawn.
    pub points: &'a [[f64; 2]],
    /// Corners of the closed curve underneath; may be empty.
    pub curve: &'a [[f64; 2]],
    /// Lower and upper end of both axes.
    pub range: [f64; 2],
    /// Colour index of the points.
    pub colour: usize,
}

impl Scatter<'_> {
    /// At most this many points are drawn.
    const MOST: usize = 1000;

    /// The panel, always of the same size, so that panels line up. Points that cannot be shown are counted below it.
    pub fn svg(&self) -> Svg {
        const SIDE: f64 = 160.0;
        const LEFT: f64 = 26.0;
        const TOP: f64 = 20.0;
        const WIDTH: f64 = 2.0 * LEFT + SIDE;
        let axis = Axis::exactly(self.range[0], self.range[1], 4);
        let x = |v: f64| LEFT + SIDE * axis.place(v);
        let y = |v: f64| TOP + SIDE * (1.0 - axis.place(v));
        let mut draw = Drawing::default();
        let mut grid = String::new();
        for tick in &axis.ticks {
            let (tx, ty) = (x(tick.value), y(tick.value));
            let _ = write!(grid, "M{} {}v{SIDE}M{LEFT} {}h{SIDE}", short(tx), TOP, short(ty));
            draw.text([tx, TOP + SIDE + 13.0], 10.0, Anchor::Middle, 0.0, &tick.label);
            draw.text([LEFT - 5.0, ty + 3.5], 10.0, Anchor::End, 0.0, &tick.label);
        }
        draw.stroke(&grid, "currentColor", 1.0, " stroke-opacity=\".1\"");
        draw.stroke(&format!("M{LEFT} {TOP}h{SIDE}v{SIDE}h-{SIDE}z"), "currentColor", 1.0, " stroke-opacity=\".4\"");
        let line = |draw: &mut Drawing, y: f64, size: f64, text: &str| {
            draw.text([WIDTH / 2.0, y], fitting(text, size, WIDTH), Anchor::Middle, 0.0, text);
        };
        line(&mut draw, 13.0, 12.0, self.title);

        // A nested viewport clips what leaves the panel without needing an id.
        let scale = SIDE / (axis.high - axis.low);
        let inside =
            |p: &[f64; 2]| format!("{} {}", short(scale * (p[0] - axis.low)), short(scale * (axis.high - p[1])));
        draw.add(format_args!("<svg x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\">"));
        let corners: Vec<String> = self.curve.iter().filter(|p| is_finite(p)).map(inside).collect();
        if !corners.is_empty() {
            draw.stroke(&format!("M{}z", corners.join("L")), "#888", 1.5, " stroke-opacity=\".8\"");
        }
        let seen = |p: &[f64; 2]| is_finite(p) && p.iter().all(|v| (axis.low..=axis.high).contains(v));
        let visible: Vec<[f64; 2]> = self.points.iter().copied().filter(seen).collect();
        let count = visible.len().min(Self::MOST);
        let dots: Vec<String> = (0..count).map(|k| inside(&visible[k * visible.len() / count])).collect();
        // Dots of one path do not darken each other where they overlap; several paths do, at a third of the size of
        // one element per dot.
        for part in dots.chunks(50) {
            let d = part.iter().fold(String::new(), |d, dot| d + "M" + dot + "h0");
            draw.stroke(&d, colour(self.colour), 2.6, " stroke-opacity=\".45\" stroke-linecap=\"round\"");
        }
        draw.add(format_args!("</svg>"));

        let lost = self.points.iter().filter(|p| !is_finite(p)).count();
        let beyond = self.points.len() - lost - visible.len();
        let mut notes = Vec::new();
        if self.points.is_empty() {
            notes.push("no points".to_owned());
        }
        if count < visible.len() {
            notes.push(format!("{count} of {} drawn", visible.len()));
        }
        if beyond > 0 {
            notes.push(format!("{beyond} outside"));
        }
        if lost > 0 {
            notes.push(format!("{lost} not finite"));
        }
        line(&mut draw, TOP + SIDE + 26.0, 9.0, &notes.join(", "));
        draw.finish(WIDTH, TOP + SIDE + 34.0, self.title)
    }
}

fn is_finite(point: &[f64; 2]) -> bool {
    point.iter().all(|v| Scale::Linear.holds(*v))
}

/// A value over x with an interval around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// The value. A point whose x or y is not finite (or, on a log axis, not positive) is left out, and the figure
    /// says so.
    pub y: f64,
    /// Lower end of the error bar; no bar downwards if it is not a number or not below y.
    pub low: f64,
    /// Upper end of the error bar; no bar upwards if it is not a number or not above y.
    pub high: f64,
}

impl Point {
    /// A point without error bar.
    pub fn exact(x: f64, y: f64) -> Self {
        Point { x, y, low: y, high: y }
    }
}

/// Points that belong together.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Written in the legend; a figure whose names are all empty has no legend.
    pub name: String,
    /// Colour index, see [`colour`] and [`Colours`].
    pub colour: usize,
    /// The points, in the order the line visits them.
    pub points: Vec<Point>,
}

/// What stands around the plotted data.
#[derive(Clone, Debug, Default)]
pub struct Axes {
    /// Written above the figure and read aloud for it.
    pub title: String,
    /// Name and unit of x.
    pub x_label: String,
    /// Name and unit of y.
    pub y_label: String,
    /// Scale of x.
    pub x_scale: Scale,
    /// Scale of y.
    pub y_scale: Scale,
    /// Ticks of x in place of round numbers, such as 0, π/4, π/2 or the names of categories; empty for round numbers.
    pub x_ticks: Vec<Tick>,
}

/// Series as lines with markers and error bars; a line is interrupted where a point is left out.
#[derive(Clone, Debug, Default)]
pub struct LineChart {
    /// Titles and scales.
    pub axes: Axes,
    /// The lines.
    pub series: Vec<Series>,
}

impl LineChart {
    /// The figure, with the legend to the right of the plot.
    pub fn svg(&self) -> Svg {
        let plot = Plot::new(&self.axes, &self.series, 0.0, None);
        let mut draw = Drawing::default();
        plot.frame(&mut draw);
        for series in &self.series {
            let ink = colour(series.colour);
            for run in series.points.split(|p| !self.axes.holds(p)) {
                let corners: Vec<String> = run.iter().map(|p| plot.at(p.x, p.y)).collect();
                if corners.len() > 1 {
                    draw.stroke(&format!("M{}", corners.join("L")), ink, 1.8, " stroke-linejoin=\"round\"");
                }
            }
            for p in series.points.iter().filter(|p| self.axes.holds(p)) {
                plot.error_bar(&mut draw, plot.x(p.x), p, ink);
                marker(&mut draw, series.colour, [plot.x(p.x), plot.y(p.y)]);
            }
        }
        plot.legend(&mut draw, |draw, index, [x, y]| {
            draw.stroke(&format!("M{} {}h22", short(x), short(y)), colour(index), 1.8, "");
            marker(draw, index, [x + 11.0, y]);
        });
        plot.finish(draw)
    }
}

/// How the bars of several series share a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Next to each other, each as wide as its share: groups of bars per category.
    #[default]
    SideBySide,
    /// On top of each other and translucent: histograms.
    Overlaid,
}

/// Series as bars with error bars: groups over categories, or histograms over bin centres.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// Titles and scales; categories are ticks of x.
    pub axes: Axes,
    /// Bar heights; x is the middle of the place the series share.
    pub series: Vec<Series>,
    /// Width of that place in units of x: the bin width, or for categories at 0, 1, 2, … about 0.8.
    pub width: f64,
    /// How series share it.
    pub sharing: Sharing,
}

impl Bars {
    /// The figure. Bars stand on zero, or on the lower end of a log axis.
    pub fn svg(&self) -> Svg {
        let width = if self.width.is_finite() && self.width > 0.0 { self.width } else { 1.0 };
        let floor = (self.axes.y_scale == Scale::Linear).then_some(0.0);
        let plot = Plot::new(&self.axes, &self.series, width, floor);
        let mut draw = Drawing::default();
        plot.frame(&mut draw);
        let (share, opacity) = match self.sharing {
            Sharing::SideBySide => (width / self.series.len().max(1) as f64, ""),
            Sharing::Overlaid => (width, " fill-opacity=\".6\""),
        };
        let ground = floor.map_or(plot.top + Plot::HEIGHT, |floor| plot.y(floor));
        for (k, series) in self.series.iter().enumerate() {
            let shift = if self.sharing == Sharing::SideBySide { k as f64 * share } else { 0.0 };
            for p in series.points.iter().filter(|p| self.axes.holds(p)) {
                let left = plot.x(p.x - 0.5 * width + shift);
                let wide = plot.x(p.x - 0.5 * width + shift + share) - left;
                let (top, bottom) = (plot.y(p.y).min(ground), plot.y(p.y).max(ground));
                // Half a pixel of air keeps neighbouring bars apart.
                draw.add(format_args!(
                    "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"{opacity}/>",
                    short(left + 0.5),
                    short(top),
                    short((wide - 1.0).max(0.5)),
                    short(bottom - top),
                    colour(series.colour)
                ));
                plot.error_bar(&mut draw, left + 0.5 * wide, p, "currentColor");
            }
        }
        plot.legend(&mut draw, |draw, index, [x, y]| {
            let (x, y) = (short(x + 5.0), short(y - 6.0));
            let ink = colour(index);
            draw.add(format_args!("<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{ink}\"{opacity}/>"));
        });
        plot.finish(draw)
    }
}

impl Axes {
    fn holds(&self, point: &Point) -> bool {
        self.x_scale.holds(point.x) && self.y_scale.holds(point.y)
    }
}

/// Axes with their place on the paper.
struct Plot<'a> {
    axes: &'a Axes,
    series: &'a [Series],
    x_axis: Axis,
    y_axis: Axis,
    left: f64,
    top: f64,
    /// Room below the lower end of y: none under bars, which stand on the frame.
    foot: f64,
    /// Tick labels of x are turned because they are too long to stand side by side.
    turned: bool,
    note: String,
}

impl<'a> Plot<'a> {
    const WIDTH: f64 = 440.0;
    const HEIGHT: f64 = 280.0;
    /// Room between the ends of the axes and the frame, so that markers at the ends are whole.
    const INSET: f64 = 8.0;
    const TITLE: f64 = 15.0;
    const LABEL: f64 = 13.0;
    const TICK: f64 = 12.0;
    const LEGEND_LINE: f64 = 20.0;
    /// Angle of turned tick labels in degrees.
    const TURN: f64 = -30.0;

    /// The plot that shows all drawable points, `width` around each x, and `floor` on the y axis.
    fn new(axes: &'a Axes, series: &'a [Series], width: f64, floor: Option<f64>) -> Self {
        let all = || series.iter().flat_map(|s| &s.points);
        let drawn = || all().filter(|p| axes.holds(p));
        let xs = drawn().flat_map(|p| [p.x - 0.5 * width, p.x + 0.5 * width]);
        let x_axis = Axis::covering(axes.x_scale, xs, &axes.x_ticks);
        let ys = drawn().flat_map(|p| [p.low, p.y, p.high]).chain(floor);
        let y_axis = Axis::covering(axes.y_scale, ys, &[]);

        let count = all().count();
        let skipped = count - drawn().count();
        let needed =
            if axes.x_scale == Scale::Log || axes.y_scale == Scale::Log { "finite positive" } else { "finite" };
        let note = match (count, skipped) {
            (0, _) => "no points".to_owned(),
            (_, 0) => String::new(),
            (_, 1) => format!("1 of {count} points has no {needed} value and is not drawn"),
            _ => format!("{skipped} of {count} points have no {needed} value and are not drawn"),
        };

        let longest = y_axis.ticks.iter().map(|tick| text_width(&tick.label, Self::TICK)).fold(0.0, f64::max);
        let left = 8.0 + if axes.y_label.is_empty() { 0.0 } else { 1.6 * Self::LABEL } + longest + 8.0;
        let foot = if width > 0.0 { 0.0 } else { Self::INSET };
        let top = if axes.title.is_empty() { 10.0 } else { 32.0 };
        let mut plot = Plot { axes, series, x_axis, y_axis, left, top, foot, turned: false, note };
        let ends = |tick: &Tick| {
            let half = 0.5 * text_width(&tick.label, Self::TICK) + 3.0;
            (plot.x(tick.value) - half, plot.x(tick.value) + half)
        };
        plot.turned = plot.x_axis.ticks.windows(2).any(|pair| ends(&pair[0]).1 > ends(&pair[1]).0);
        if plot.turned {
            // Turned labels end under their tick and may start left of everything else.
            let reach = |tick: &Tick| text_width(&tick.label, Self::TICK) * Self::TURN.to_radians().cos();
            plot.left += plot.x_axis.ticks.iter().map(|tick| reach(tick) - plot.x(tick.value)).fold(0.0, f64::max);
        }
        plot
    }

    fn x(&self, value: f64) -> f64 {
        self.left + Self::INSET + (Self::WIDTH - 2.0 * Self::INSET) * self.x_axis.place(value)
    }

    fn y(&self, value: f64) -> f64 {
        self.top + Self::INSET + (Self::HEIGHT - Self::INSET - self.foot) * (1.0 - self.y_axis.place(value))
    }

    fn at(&self, x: f64, y: f64) -> String {
        format!("{} {}", short(self.x(x)), short(self.y(y)))
    }

    /// Height of the tick labels of x.
    fn tick_room(&self) -> f64 {
        if !self.turned {
            return 8.0 + Self::TICK;
        }
        let longest = self.x_axis.ticks.iter().map(|tick| text_width(&tick.label, Self::TICK)).fold(0.0, f64::max);
        10.0 + Self::TICK + longest * (-Self::TURN).to_radians().sin()
    }

    /// Grid, ticks and titles.
    fn frame(&self, draw: &mut Drawing) {
        let (left, top, bottom) = (self.left, self.top, self.top + Self::HEIGHT);
        let mut grid = String::new();
        for tick in &self.x_axis.ticks {
            let x = self.x(tick.value);
            let _ = write!(grid, "M{} {}v{}", short(x), short(top), Self::HEIGHT);
            let (anchor, turn) = if self.turned { (Anchor::End, Self::TURN) } else { (Anchor::Middle, 0.0) };
            draw.text([x, bottom + 5.0 + Self::TICK], Self::TICK, anchor, turn, &tick.label);
        }
        for tick in &self.y_axis.ticks {
            let y = self.y(tick.value);
            let _ = write!(grid, "M{} {}h{}", short(left), short(y), Self::WIDTH);
            draw.text([left - 7.0, y + 0.35 * Self::TICK], Self::TICK, Anchor::End, 0.0, &tick.label);
        }
        draw.stroke(&grid, "currentColor", 1.0, " stroke-opacity=\".12\"");
        let frame = format!("M{} {}v{}h{}", short(left), short(top), Self::HEIGHT, Self::WIDTH);
        draw.stroke(&frame, "currentColor", 1.0, " stroke-opacity=\".7\"");
        draw.text([left, 18.0], Self::TITLE, Anchor::Start, 0.0, &self.axes.title);
        let below = bottom + self.tick_room() + 6.0 + Self::LABEL;
        let x_size = fitting(&self.axes.x_label, Self::LABEL, Self::WIDTH);
        draw.text([left + 0.5 * Self::WIDTH, below], x_size, Anchor::Middle, 0.0, &self.axes.x_label);
        let middle = top + 0.5 * Self::HEIGHT;
        let y_size = fitting(&self.axes.y_label, Self::LABEL, Self::HEIGHT);
        draw.text([8.0 + Self::LABEL, middle], y_size, Anchor::Middle, -90.0, &self.axes.y_label);
        if !self.note.is_empty() {
            draw.text([left, below + 18.0], 11.0, Anchor::Start, 0.0, &self.note);
        }
    }

    /// A bar from the point's low to its high end at `x` on the paper.
    fn error_bar(&self, draw: &mut Drawing, x: f64, point: &Point, ink: &str) {
        let mut d = String::new();
        for end in [point.low.min(point.y), point.high.max(point.y)] {
            // The minimum and maximum with y replace an end that is not a number by y itself: no bar on that side.
            if end != point.y {
                let (from, to) = (self.y(point.y), self.y(end));
                let _ = write!(d, "M{} {}V{}M{} {}h8", short(x), short(from), short(to), short(x - 4.0), short(to));
            }
        }
        draw.stroke(&d, ink, 1.3, "");
    }

    /// The names of all series, each beside the `sample` drawn for its colour index.
    fn legend(&self, draw: &mut Drawing, sample: impl Fn(&mut Drawing, usize, [f64; 2])) {
        if self.legend_width() == 0.0 {
            return;
        }
        let x = self.left + Self::WIDTH + 16.0;
        for (k, series) in self.series.iter().enumerate() {
            let y = self.top + Self::LEGEND_LINE * (k as f64 + 0.5);
            sample(draw, series.colour, [x, y]);
            draw.text([x + 30.0, y + 0.35 * Self::LABEL], Self::LABEL, Anchor::Start, 0.0, &series.name);
        }
    }

    fn legend_width(&self) -> f64 {
        let longest = self.series.iter().map(|s| text_width(&s.name, Self::LABEL)).fold(0.0, f64::max);
        if longest > 0.0 { 46.0 + longest } else { 0.0 }
    }

    fn finish(&self, draw: Drawing) -> Svg {
        let title = text_width(&self.axes.title, Self::TITLE);
        let width = self.left + (Self::WIDTH + self.legend_width()).max(title) + 14.0;
        let x_label = if self.axes.x_label.is_empty() { 0.0 } else { 6.0 + Self::LABEL };
        let note = if self.note.is_empty() { 0.0 } else { 18.0 };
        let below = Self::HEIGHT + self.tick_room() + x_label.max(note) + note.min(x_label) + 8.0;
        let height = self.top + below.max(Self::LEGEND_LINE * self.series.len() as f64);
        draw.finish(width, height, &self.axes.title)
    }
}

/// The marker of series `index`: its shape tells series apart where colours cannot, as in print.
fn marker(draw: &mut Drawing, index: usize, [x, y]: [f64; 2]) {
    let (x, y, ink) = (short(x), short(y), colour(index));
    match index % 5 {
        0 => draw.add(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"3.8\" fill=\"{ink}\"/>")),
        shape => {
            let corners =
                ["", "m-3.4-3.4h6.8v6.8h-6.8z", "m0-4.8 4.4 7.8h-8.8z", "m0-5 5 5-5 5-5-5z", "m0 4.8 4.4-7.8h-8.8z"];
            draw.add(format_args!("<path d=\"M{x} {y}{}\" fill=\"{ink}\"/>", corners[shape]));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roxmltree::{Document, Node};

    use super::*;

    fn texts(svg: &Svg) -> Vec<String> {
        let document = Document::parse(&svg.text).unwrap();
        document.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text().map(str::to_owned)).collect()
    }

    fn count(svg: &Svg, wanted: impl Fn(Node) -> bool) -> usize {
        Document::parse(&svg.text).unwrap().descendants().filter(|n| wanted(*n)).count()
    }

    /// The number a label stands for.
    fn read(label: &str) -> f64 {
        let plain: String = label
            .replace('−', "-")
            .replace("×10", "e")
            .chars()
            .map(|c| match "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().position(|s| s == c) {
                Some(digit) => char::from(b'0' + digit as u8),
                None if c == '⁻' => '-',
                None => c,
            })
            .collect();
        // A bare power such as 10⁻³ has lost its sign of exponent.
        let bare = label.starts_with("10") && label.chars().nth(2).is_some_and(|c| "⁰¹²³⁴⁵⁶⁷⁸⁹⁻".contains(c));
        if bare { 10_f64.powi(plain[2..].parse().unwrap()) } else { plain.parse().unwrap() }
    }

    fn assert_good_ticks(ticks: &[Tick], low: f64, high: f64) -> Result<(), TestCaseError> {
        let room = 1e-8 * (high - low).abs().max(1e-8 * low.abs());
        prop_assert!(ticks[0].value <= low + room && ticks[ticks.len() - 1].value >= high - room, "{ticks:?}");
        prop_assert!((2..=11).contains(&ticks.len()), "{ticks:?}");
        for tick in ticks {
            let exact = (read(&tick.label) - tick.value).abs() <= 1e-9 * tick.value.abs();
            prop_assert!(exact, "{} is written {}", tick.value, tick.label);
        }
        prop_assert!(ticks.windows(2).all(|pair| pair[0].label != pair[1].label), "{ticks:?}");
        Ok(())
    }

    /// The leading digit of a number that has only one.
    fn is_round(value: f64) -> bool {
        let digit = value / 10_f64.powf((value.log10() + SLACK).floor());
        [1.0, 2.0, 5.0].iter().any(|round| (digit - round).abs() < 1e-6)
    }

    proptest! {
        #[test]
        fn linear_ticks_cover_the_data_at_round_steps(a in -10.0..10.0_f64, b in -10.0..10.0_f64, power in -30..30_i32) {
            let scale = 10_f64.powi(power);
            let (low, high) = (a.min(b) * scale, a.max(b) * scale);
            let ticks = ticks(Scale::Linear, low, high, 5);
            assert_good_ticks(&ticks, low, high)?;
            prop_assert!(ticks.windows(2).all(|p| is_round(p[1].value - p[0].value)), "{:?}", ticks);
        }

        #[test]
        fn log_ticks_cover_the_data_at_round_numbers(a in -20.0..20.0_f64, span in prop_oneof![0.0..3.0_f64, 0.0..40.0]) {
            let (low, high) = (10_f64.powf(a), 10_f64.powf(a + span));
            let ticks = ticks(Scale::Log, low, high, 5);
            assert_good_ticks(&ticks, low, high)?;
            prop_assert!(ticks.iter().all(|tick| is_round(tick.value)), "{:?}", ticks);
        }

        #[test]
        fn any_numbers_give_well_formed_figures(
            values in prop::collection::vec([any::<f64>(), any::<f64>(), any::<f64>(), any::<f64>()], 0..6),
            log in any::<[bool; 2]>(),
            range in any::<[f64; 2]>(),
        ) {
            let scale = |log: bool| if log { Scale::Log } else { Scale::Linear };
            let axes = Axes { x_scale: scale(log[0]), y_scale: scale(log[1]), ..Axes::default() };
            let points: Vec<Point> = values.iter().map(|v| Point { x: v[0], y: v[1], low: v[2], high: v[3] }).collect();
            let series = vec![Series { name: "a".to_owned(), colour: 1, points }];
            let plane: Vec<[f64; 2]> = values.iter().map(|v| [v[0], v[1]]).collect();
            for svg in [
                LineChart { axes: axes.clone(), series: series.clone() }.svg(),
                Bars { axes, series, width: range[0], sharing: Sharing::SideBySide }.svg(),
                Scatter { title: "", points: &plane, curve: &plane, range, colour: 0 }.svg(),
            ] {
                prop_assert!(Document::parse(&svg.text).is_ok());
                prop_assert!(!svg.text.contains("NaN") && !svg.text.contains("inf\""), "{}", svg.text);
            }
        }

        #[test]
        fn any_text_comes_back_from_the_figure(title in "\\PC{1,30}") {
            let svg = LineChart { axes: Axes { title: title.clone(), ..Axes::default() }, series: Vec::new() }.svg();
            prop_assert!(texts(&svg).contains(&title));
        }
    }

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn tick_labels_have_the_digits_they_need() {
        assert_eq!(labels(&ticks(Scale::Linear, 0.0, 0.3, 5)), ["0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(&ticks(Scale::Linear, -1.5, 1.2, 4)), ["−2", "−1", "0", "1", "2"]);
        assert_eq!(labels(&ticks(Scale::Linear, 0.0, 2e-6, 4)), ["0", "5×10⁻⁷", "1×10⁻⁶", "1.5×10⁻⁶", "2×10⁻⁶"]);
        assert_eq!(labels(&ticks(Scale::Log, 0.02, 0.7, 5)), ["0.02", "0.05", "0.1", "0.2", "0.5", "1"]);
        assert_eq!(labels(&ticks(Scale::Log, 1e-4, 1.0, 5)), ["10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "10⁰"]);
    }

    #[test]
    fn equal_data_has_an_axis_around_it() {
        for value in [0.0, 3.0, -1e-300, 7e12] {
            let ticks = ticks(Scale::Linear, value, value, 5);
            assert!(ticks[0].value < value && value < ticks[ticks.len() - 1].value, "{ticks:?}");
        }
        let ticks = ticks(Scale::Log, 1.0, 1.0, 5);
        assert_eq!(labels(&ticks), ["0.5", "1", "2"]);
    }

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

    fn chart(points: Vec<Point>, y_scale: Scale) -> Svg {
        let series = vec![Series { name: "only".to_owned(), colour: 0, points }];
        LineChart { axes: Axes { y_scale, ..Axes::default() }, series }.svg()
    }

    #[test]
    fn a_missing_point_interrupts_the_line_and_is_mentioned() {
        let value = |x: f64| Point::exact(x, if x == 2.0 { f64::NAN } else { x });
        let svg = chart((0..5).map(|k| value(f64::from(k))).collect(), Scale::Linear);
        assert!(texts(&svg).contains(&"1 of 5 points has no finite value and is not drawn".to_owned()));
        assert_eq!(count(&svg, |n| n.attribute("stroke-linejoin").is_some()), 2);
        // Four points and the one in the legend.
        assert_eq!(count(&svg, |n| n.has_tag_name("circle")), 5);
    }

    #[test]
    fn zero_has_no_place_on_a_log_axis() {
        let svg = chart(vec![Point::exact(1.0, 0.0), Point::exact(2.0, -1.0), Point::exact(3.0, 1.0)], Scale::Log);
        assert!(texts(&svg).contains(&"2 of 3 points have no finite positive value and are not drawn".to_owned()));
    }

    #[test]
    fn an_empty_chart_says_so() {
        assert!(texts(&chart(Vec::new(), Scale::Linear)).contains(&"no points".to_owned()));
        assert!(texts(&Bars::default().svg()).contains(&"no points".to_owned()));
    }

    #[test]
    fn error_bars_reach_their_ends_only_where_there_is_one() {
        let bars = |low: f64, high: f64| {
            let svg = chart(vec![Point { x: 0.0, y: 1.0, low, high }], Scale::Linear);
            let document = Document::parse(&svg.text).unwrap();
            let d = document.descendants().find(|n| n.attribute("stroke-width") == Some("1.3"));
            d.and_then(|n| n.attribute("d")).map_or(0, |d| d.matches("h8").count())
        };
        assert_eq!([bars(0.5, 1.5), bars(1.0, 1.5), bars(f64::NAN, 1.5), bars(1.0, 1.0)], [2, 1, 1, 0]);
    }

    #[test]
    fn long_tick_labels_are_turned_and_stay_inside() {
        let tick = |k: i32| Tick { value: f64::from(k), label: "a rather long name of a method".to_owned() };
        let axes = Axes { x_ticks: (0..4).map(tick).collect(), ..Axes::default() };
        let points = (0..4).map(|k| Point::exact(f64::from(k), 1.0)).collect();
        let svg =
            Bars { axes, series: vec![Series { points, ..Series::default() }], width: 0.8, ..Bars::default() }.svg();
        let reach = text_width("a rather long name of a method", 12.0) * 30_f64.to_radians().cos();
        let document = Document::parse(&svg.text).unwrap();
        let turned: Vec<f64> = document
            .descendants()
            .filter(|n| n.attribute("transform").is_some_and(|turn| turn.starts_with("rotate(-30")))
            .map(|n| n.attribute("x").unwrap().parse().unwrap())
            .collect();
        assert_eq!(turned.len(), 4);
        assert!(turned.iter().all(|x| x - reach > -0.1), "{turned:?}");
    }

    #[test]
    fn side_by_side_bars_share_the_width_and_stand_on_zero() {
        let series = |y: f64| Series { points: vec![Point::exact(0.0, y)], ..Series::default() };
        let svg = Bars { series: vec![series(2.0), series(-1.0)], width: 1.0, ..Bars::default() }.svg();
        let document = Document::parse(&svg.text).unwrap();
        let read = |n: Node, name: &str| n.attribute(name).unwrap().parse::<f64>().unwrap();
        let bars: Vec<[f64; 4]> = document
            .descendants()
            .filter(|n| n.has_tag_name("rect"))
            .map(|n| ["x", "y", "width", "height"].map(|name| read(n, name)))
            .collect();
        let [up, down] = bars[..] else { panic!("{bars:?}") };
        assert!((up[0] + up[2] + 1.0 - down[0]).abs() < 0.11, "{bars:?}");
        assert!((up[1] + up[3] - down[1]).abs() < 0.11, "{bars:?}");
        assert!((up[3] - 2.0 * down[3]).abs() < 0.21, "{bars:?}");
    }

    #[test]
    fn a_panel_keeps_both_axes_equal_and_counts_what_it_cannot_show() {
        let mut points = vec![[0.5, 0.0]; 1500];
        points[0] = [f64::NAN, 0.0];
        points[1] = [0.0, 9.0];
        let curve = [[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0]];
        let svg = Scatter { title: "p < q", points: &points, curve: &curve, range: [-1.0, 1.0], colour: 2 }.svg();
        assert!(texts(&svg).contains(&"1000 of 1498 drawn, 1 outside, 1 not finite".to_owned()));
        assert!(svg.text.contains("M0 160L160 160L160 0z"), "{}", svg.text);
        assert_eq!(svg.text.matches("M120 80h0").count(), 1000);
        assert!(svg.text.len() < 16_000, "{}", svg.text.len());
    }
}
