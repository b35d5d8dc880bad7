//! Points in the plane, in small panels.

use std::fmt::Write as _;

use crate::axis::{Axis, Scale};
use crate::svg::{Anchor, Drawing, Svg, colour, fitting, short};

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
        let axis = Axis::exactly(Scale::Linear, self.range[0], self.range[1], 4);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::testing::texts;

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
