//! Charts: series of points as lines with error bars or bands.

use std::fmt::Write as _;

use crate::axis::{Axis, Scale, Tick};
use crate::svg::{Anchor, Drawing, INK, Svg, colour, fitting, short, text_width};

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
    /// Names and values of y that results are compared with, drawn as broken lines across the plot.
    pub levels: Vec<(String, f64)>,
}

/// How a line chart shows the intervals of its points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// As bars at the points.
    #[default]
    Bars,
    /// As bars, the points of different series moved apart by a few pixels: for series over the same few x.
    BarsApart,
    /// As a translucent band along the line: for curves of many points.
    Band,
}

/// Series as lines with markers and error bars; a line is interrupted where a point is left out.
#[derive(Clone, Debug, Default)]
pub struct LineChart {
    /// Titles and scales.
    pub axes: Axes,
    /// The lines.
    pub series: Vec<Series>,
    /// How intervals are shown.
    pub spread: Spread,
}

impl LineChart {
    /// Distance in pixels between points that are moved apart.
    const APART: f64 = 6.0;
    /// Markers of a line keep this distance in pixels.
    const BETWEEN: f64 = 16.0;

    /// The figure, with the legend to the right of the plot.
    pub fn svg(&self) -> Svg {
        let mut plot = Plot::new(&self.axes, &self.series, None);
        let middle = 0.5 * self.series.len().saturating_sub(1) as f64;
        let apart = if self.spread == Spread::BarsApart { Self::APART } else { 0.0 };
        plot.side += apart * middle;
        let mut draw = Drawing::default();
        plot.frame(&mut draw);
        for (k, series) in self.series.iter().enumerate() {
            let ink = colour(series.colour);
            let x = |p: &Point| plot.x(p.x) + apart * (k as f64 - middle);
            for run in series.points.split(|p| !self.axes.holds(p)) {
                if self.spread == Spread::Band {
                    plot.band(&mut draw, run, ink);
                }
                let corners: Vec<String> = run.iter().map(|p| pair(x(p), plot.y(p.y))).collect();
                if corners.len() > 1 {
                    line(&mut draw, series.colour, &format!("M{}", corners.join("L")));
                }
            }
            let mut last = [f64::NEG_INFINITY; 2];
            for p in series.points.iter().filter(|p| self.axes.holds(p)) {
                if self.spread != Spread::Band {
                    plot.error_bar(&mut draw, x(p), p, ink);
                }
                let at = [x(p), plot.y(p.y)];
                if (at[0] - last[0]).hypot(at[1] - last[1]) >= Self::BETWEEN {
                    marker(&mut draw, series.colour, at);
                    last = at;
                }
            }
        }
        plot.legend(&mut draw, |draw, index, [x, y]| {
            line(draw, index, &format!("M{} {}h22", short(x), short(y)));
            marker(draw, index, [x + 11.0, y]);
        });
        plot.finish(draw)
    }
}

/// A line along `d`; that of [`INK`] is broad and pale, so that lines on top of it stay visible.
fn line(draw: &mut Drawing, index: usize, d: &str) {
    let (width, opacity) = if index == INK { (6.0, " stroke-opacity=\".3\"") } else { (1.8, "") };
    draw.stroke(d, colour(index), width, &format!(" stroke-linejoin=\"round\"{opacity}"));
}

/// Coordinates in a path.
fn pair(x: f64, y: f64) -> String {
    format!("{} {}", short(x), short(y))
}

impl Axes {
    fn holds(&self, point: &Point) -> bool {
        self.x_scale.holds(point.x) && self.y_scale.holds(point.y)
    }
}

/// Axes with their place on the paper.
pub(crate) struct Plot<'a> {
    axes: &'a Axes,
    series: &'a [Series],
    x_axis: Axis,
    y_axis: Axis,
    left: f64,
    pub(crate) top: f64,
    /// Room between the ends of x and the frame.
    side: f64,
    /// Tick labels of x are turned because they are too long to stand side by side.
    turned: bool,
    pub(crate) note: String,
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

    /// The plot that shows all drawable points, and `floor` on the y axis.
    pub(crate) fn new(axes: &'a Axes, series: &'a [Series], floor: Option<f64>) -> Self {
        let all = || series.iter().flat_map(|s| &s.points);
        let drawn = || all().filter(|p| axes.holds(p));
        let x_axis = Axis::covering(axes.x_scale, drawn().map(|p| p.x), &axes.x_ticks);
        let ys = drawn().flat_map(|p| [p.low, p.y, p.high]).chain(floor);
        let ys = ys.chain(axes.levels.iter().map(|level| level.1));
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
        let top = if axes.title.is_empty() { 10.0 } else { 32.0 };
        let mut plot = Plot { axes, series, x_axis, y_axis, left, top, side: Self::INSET, turned: false, note };
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

    pub(crate) fn x(&self, value: f64) -> f64 {
        self.left + self.side + (Self::WIDTH - 2.0 * self.side) * self.x_axis.place(value)
    }

    pub(crate) fn y(&self, value: f64) -> f64 {
        self.top + Self::INSET + (Self::HEIGHT - 2.0 * Self::INSET) * (1.0 - self.y_axis.place(value))
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
    pub(crate) fn frame(&self, draw: &mut Drawing) {
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

    /// The area between the low and the high ends of `run`.
    fn band(&self, draw: &mut Drawing, run: &[Point], ink: &str) {
        let lows = run.iter().map(|p| [p.x, p.low.min(p.y)]);
        let highs = run.iter().rev().map(|p| [p.x, p.high.max(p.y)]);
        let corners: Vec<String> = lows.chain(highs).map(|[x, y]| pair(self.x(x), self.y(y))).collect();
        if run.len() > 1 {
            draw.add(format_args!("<path d=\"M{}z\" fill=\"{ink}\" fill-opacity=\".15\"/>", corners.join("L")));
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

    /// The levels, and the names of all series, each beside the `sample` drawn for its colour index, then theirs.
    pub(crate) fn legend(&self, draw: &mut Drawing, sample: impl Fn(&mut Drawing, usize, [f64; 2])) {
        for (k, (_, value)) in self.axes.levels.iter().enumerate().filter(|(_, level)| self.axes.y_scale.holds(level.1))
        {
            let y = short(self.y(*value));
            level_line(draw, k, &format!("M{} {y}h{}", short(self.left), Self::WIDTH));
        }
        let x = self.left + Self::WIDTH + 16.0;
        let names = self.named().map(|s| (&s.name, Some(s.colour)));
        let levels = self.axes.levels.iter().map(|(name, _)| (name, None));
        for (k, (name, index)) in names.chain(levels).enumerate() {
            let y = self.top + Self::LEGEND_LINE * (k as f64 + 0.5);
            match index {
                Some(index) => sample(draw, index, [x, y]),
                None => level_line(draw, k - self.named().count(), &format!("M{} {}h22", short(x), short(y))),
            }
            draw.text([x + 30.0, y + 0.35 * Self::LABEL], Self::LABEL, Anchor::Start, 0.0, name);
        }
    }

    /// The series in the legend: all, or none if no name is given.
    fn named(&self) -> impl Iterator<Item = &Series> {
        let any = self.series.iter().any(|s| !s.name.is_empty());
        self.series.iter().filter(move |_| any)
    }

    fn legend_width(&self) -> f64 {
        let names = self.named().map(|s| &s.name).chain(self.axes.levels.iter().map(|level| &level.0));
        names.map(|name| 46.0 + text_width(name, Self::LABEL)).fold(0.0, f64::max)
    }

    pub(crate) fn finish(&self, draw: Drawing) -> Svg {
        let title = text_width(&self.axes.title, Self::TITLE);
        let width = self.left + (Self::WIDTH + self.legend_width()).max(title) + 14.0;
        let x_label = if self.axes.x_label.is_empty() { 0.0 } else { 6.0 + Self::LABEL };
        let note = if self.note.is_empty() { 0.0 } else { 18.0 };
        let below = Self::HEIGHT + self.tick_room() + x_label.max(note) + note.min(x_label) + 8.0;
        let lines = self.named().count() + self.axes.levels.len();
        let height = self.top + below.max(Self::LEGEND_LINE * lines as f64);
        draw.finish(width, height, &self.axes.title)
    }
}

/// A broken line along `d`, each level with its own breaks.
fn level_line(draw: &mut Drawing, index: usize, d: &str) {
    let breaks = ["6 4", "2 3", "9 3 2 3"][index % 3];
    draw.stroke(d, "currentColor", 1.4, &format!(" stroke-opacity=\".75\" stroke-dasharray=\"{breaks}\""));
}

/// The marker of series `index`: its shape tells series apart where colours cannot, as in print. [`INK`] has none.
fn marker(draw: &mut Drawing, index: usize, [x, y]: [f64; 2]) {
    if index == INK {
        return;
    }
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
    use roxmltree::Document;

    use super::*;
    use crate::scatter::Scatter;
    use crate::svg::testing::{count, texts};

    proptest! {
        #[test]
        fn any_numbers_give_well_formed_figures(
            values in prop::collection::vec([any::<f64>(), any::<f64>(), any::<f64>(), any::<f64>()], 0..6),
            log in any::<[bool; 2]>(),
            range in any::<[f64; 2]>(),
        ) {
            let scale = |log: bool| if log { Scale::Log } else { Scale::Linear };
            let levels = values.iter().map(|v| ("level".to_owned(), v[1])).collect();
            let axes = Axes { x_scale: scale(log[0]), y_scale: scale(log[1]), levels, ..Axes::default() };
            let points: Vec<Point> = values.iter().map(|v| Point { x: v[0], y: v[1], low: v[2], high: v[3] }).collect();
            let series = vec![Series { name: "a".to_owned(), colour: 1, points }];
            let plane: Vec<[f64; 2]> = values.iter().map(|v| [v[0], v[1]]).collect();
            for svg in [
                LineChart { axes: axes.clone(), series: series.clone(), spread: Spread::BarsApart }.svg(),
                LineChart { axes, series, spread: Spread::Band }.svg(),
                Scatter { title: "", points: &plane, curve: &plane, range, colour: 0 }.svg(),
            ] {
                prop_assert!(Document::parse(&svg.text).is_ok());
                prop_assert!(!svg.text.contains("NaN") && !svg.text.contains("inf\""), "{}", svg.text);
            }
        }

        #[test]
        fn any_text_comes_back_from_the_figure(title in "\\PC{1,30}") {
            let svg = LineChart { axes: Axes { title: title.clone(), ..Axes::default() }, ..LineChart::default() }.svg();
            prop_assert!(texts(&svg).contains(&title));
        }
    }

    fn chart(points: Vec<Point>, y_scale: Scale) -> Svg {
        let series = vec![Series { name: "only".to_owned(), colour: 0, points }];
        LineChart { axes: Axes { y_scale, ..Axes::default() }, series, ..LineChart::default() }.svg()
    }

    #[test]
    fn a_missing_point_interrupts_the_line_and_is_mentioned() {
        let value = |x: f64| Point::exact(x, if x == 2.0 { f64::NAN } else { x });
        let svg = chart((0..5).map(|k| value(f64::from(k))).collect(), Scale::Linear);
        assert!(texts(&svg).contains(&"1 of 5 points has no finite value and is not drawn".to_owned()));
        // Two pieces, four points, and one of each in the legend.
        assert_eq!(count(&svg, |n| n.attribute("stroke-linejoin").is_some()), 3);
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
    fn points_of_several_series_stand_side_by_side() {
        let series = |colour| Series { colour, points: vec![Point::exact(1.0, 2.0)], ..Series::default() };
        let places = |spread| {
            let svg = LineChart { series: vec![series(0), series(5)], spread, ..LineChart::default() }.svg();
            let document = Document::parse(&svg.text).unwrap();
            let circles = document.descendants().filter(|n| n.has_tag_name("circle"));
            circles.map(|n| n.attribute("cx").unwrap().parse::<f64>().unwrap()).collect::<Vec<_>>()
        };
        let (together, apart) = (places(Spread::Bars), places(Spread::BarsApart));
        assert_eq!(together[0], together[1]);
        assert_eq!([0, 1].map(|k| (apart[k] - together[k]).round()), [-3.0, 3.0]);
    }

    #[test]
    fn long_curves_have_a_band_and_few_markers() {
        let point = |k: i32| Point { x: f64::from(k), y: 1.0, low: 0.5, high: f64::NAN };
        let series = vec![Series { points: (0..100).map(point).collect(), ..Series::default() }];
        let svg = LineChart { series, spread: Spread::Band, ..LineChart::default() }.svg();
        // 424 pixels at 4.3 each: every fourth point is 16 pixels from the last marked one.
        assert_eq!(count(&svg, |n| n.has_tag_name("circle")), 25);
        assert_eq!(count(&svg, |n| n.attribute("fill-opacity").is_some()), 1);
        assert_eq!(count(&svg, |n| n.attribute("stroke-width") == Some("1.3")), 0);
    }

    #[test]
    fn levels_lie_inside_the_plot_and_in_the_legend() {
        let axes = Axes { levels: vec![("data".to_owned(), 0.3), ("lost".to_owned(), f64::NAN)], ..Axes::default() };
        let series = vec![Series { points: vec![Point::exact(0.0, 5.0)], ..Series::default() }];
        let svg = LineChart { axes, series, ..LineChart::default() }.svg();
        assert!(texts(&svg).ends_with(&["data".to_owned(), "lost".to_owned()]), "{:?}", texts(&svg));
        // One line across the plot, and one sample per name.
        assert_eq!(count(&svg, |n| n.attribute("stroke-dasharray").is_some()), 3);
    }

    #[test]
    fn long_tick_labels_are_turned_and_stay_inside() {
        let tick = |k: i32| Tick { value: f64::from(k), label: "a rather long name of a method".to_owned() };
        let axes = Axes { x_ticks: (0..4).map(tick).collect(), ..Axes::default() };
        let points = (0..4).map(|k| Point::exact(f64::from(k), 1.0)).collect();
        let series = vec![Series { points, ..Series::default() }];
        let svg = LineChart { axes, series, ..LineChart::default() }.svg();
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
}
