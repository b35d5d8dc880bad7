//! Fields in rows and columns with axes and colour bars.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

use crate::axis::{Axis, Scale};
use crate::picture::{ColourMap, Field, Picture, PictureError, Result};
use crate::svg::{Anchor, Drawing, Svg, short, text_width};

/// A quantity and its unit, written `name [unit]`.
#[derive(Clone, Debug, Default)]
pub struct Quantity {
    /// The name.
    pub name: String,
    /// The unit; empty for plain numbers.
    pub unit: String,
}

impl Quantity {
    /// `name [unit]`.
    pub fn new(name: impl Into<String>, unit: impl Into<String>) -> Self {
        Quantity { name: name.into(), unit: unit.into() }
    }

    fn label(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{} [{}]", self.name, self.unit) }
    }
}

/// Fields in rows (quantities) and columns (samples, methods). The fields of a row share colours and colour bar.
#[derive(Clone, Debug, Default)]
pub struct FieldGrid<'a> {
    /// Written above and read aloud.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows, each with one field per column.
    pub rows: Vec<FieldRow<'a>>,
    /// What runs along the fields' columns (downwards) and rows (to the right); without it there are no axes.
    pub coordinates: Option<[Coordinate; 2]>,
}

/// One quantity in all columns.
#[derive(Clone, Debug, Default)]
pub struct FieldRow<'a> {
    /// What the values are.
    pub value: Quantity,
    /// Their colours.
    pub map: ColourMap,
    /// How colours follow the values.
    pub scale: Scale,
    /// Values of the first and last colour (made symmetric for the diverging map); without it, the range of the fields.
    pub range: Option<[f64; 2]>,
    /// One field per column.
    pub fields: Vec<Field<'a>>,
}

/// A coordinate of the nodes in the middle of the fields' cells.
#[derive(Clone, Debug, Default)]
pub struct Coordinate {
    /// Name and unit.
    pub quantity: Quantity,
    /// Its values at the first and at the last node.
    pub ends: [f64; 2],
}

/// Places and sizes of a table.
struct Layout {
    /// Width and height of the panels.
    panel: [f64; 2],
    /// Left edge of each column.
    left: Vec<f64>,
    /// Upper edge of each row.
    top: Vec<f64>,
    /// Axes of the coordinates downwards and to the right.
    coordinates: Option<[Axis; 2]>,
    /// Axes of the rows' values.
    values: Vec<Axis>,
}

impl FieldGrid<'_> {
    const BAR: f64 = 14.0;
    const GAP: f64 = 14.0;
    /// Size of the letters.
    const LETTER: f64 = 14.0;
    /// Length of a mark.
    const MARK: f64 = 5.0;
    /// Between a mark and its number.
    const AIR: f64 = 4.0;

    /// The table as a figure.
    pub fn svg(&self) -> Result<Svg> {
        let mut draw = Drawing::default();
        let [width, height] = self.draw(&mut draw)?;
        Ok(draw.finish(width, height, &self.title))
    }

    /// Draws everything and returns width and height.
    fn draw(&self, draw: &mut Drawing) -> Result<[f64; 2]> {
        for row in &self.rows {
            if row.fields.len() != self.columns.len() {
                let (row, found) = (row.value.label(), row.fields.len());
                return Err(PictureError::Columns { row, expected: self.columns.len(), found });
            }
        }
        let layout = self.layout();
        let [wide, tall] = layout.panel;
        letters(draw, [Self::GAP, Self::GAP + 0.8 * Self::LETTER], Anchor::Start, false, &self.title);
        if let Some(first) = layout.top.first() {
            for (name, left) in self.columns.iter().zip(&layout.left) {
                letters(draw, [left + 0.5 * wide, first - 0.5 * Self::LETTER], Anchor::Middle, false, name);
            }
        }
        let mut right = room(&self.title) + 2.0 * Self::GAP;
        // The names of all rows stand in one line.
        let numbers = layout.values.iter().map(widest).fold(0.0, f64::max);
        for ((row, axis), &top) in self.rows.iter().zip(&layout.values).zip(&layout.top) {
            for (field, &left) in row.fields.iter().zip(&layout.left) {
                show(draw, &Picture::of(field, row.map, axis), [left, top, wide, tall])?;
            }
            let bar = layout.left.last().map_or(Self::GAP, |left| left + wide + Self::GAP);
            right = right.max(Self::colour_bar(draw, row, axis, numbers, [bar, top, Self::BAR, tall])?);
        }
        let mut bottom = layout.top.last().map_or(2.0 * Self::GAP + Self::LETTER, |top| top + tall);
        bottom = self.draw_axes(draw, &layout, bottom) + 0.6 * Self::LETTER;
        let note = self.note();
        if !note.is_empty() {
            bottom += 1.2 * Self::LETTER;
            letters(draw, [Self::GAP, bottom], Anchor::Start, false, &note);
            right = right.max(room(&note) + 2.0 * Self::GAP);
        }
        Ok([right, bottom + 0.6 * Self::LETTER])
    }

    fn layout(&self) -> Layout {
        // Panels of all fields have one size: whole pixels per cell for the largest field, never flatter than a line,
        // and as wide as the names above them, or most of the figure would be the room between panels.
        let named = self.columns.iter().map(|name| room(name)).fold(0.0, f64::max) as usize;
        let longest = (900 / self.columns.len().max(1)).max(named).clamp(120, 200);
        let fields = || self.rows.iter().flat_map(|row| &row.fields);
        let (width, height) = fields().fold((1, 1), |(w, h), field| (field.width.max(w), field.height.max(h)));
        let cell = (longest / width.max(height)).max(1);
        let panel = [width, height].map(|cells| (cell * cells).max(24) as f64);
        let intervals = |length: f64| if length < 100.0 { 1 } else { 2 };
        let coordinates = self.coordinates.as_ref().map(|both| {
            let axis = |k: usize| {
                let [first, last] = both[k].ends;
                Axis::exactly(Scale::Linear, first.min(last), first.max(last), intervals(panel[1 - k]))
            };
            [axis(0), axis(1)]
        });
        let values: Vec<Axis> = self
            .rows
            .iter()
            .map(|row| {
                let all = row.fields.iter().flat_map(|field| field.values.iter().copied());
                let few = if panel[1] < 100.0 { 2 } else { 5 };
                match row.range {
                    Some(range) => row.map.axis(row.scale, range.into_iter(), few),
                    None => row.map.axis(row.scale, all, few),
                }
            })
            .collect();
        let side = coordinates.as_ref().map_or(0.0, |[down, _]| {
            let label = if self.coordinate_label(0).is_empty() { 0.0 } else { 1.5 * Self::LETTER };
            label + widest(down) + Self::AIR + Self::MARK
        });
        // Numbers at the ends of neighbouring panels must not touch, nor the names above them.
        let numbers = coordinates.as_ref().map_or(0.0, |[_, right]| widest(right) + 4.0);
        let names = self.columns.iter().map(|name| room(name) + 8.0 - panel[0]).fold(0.0, f64::max);
        let across = panel[0] + Self::GAP.max(numbers).max(names);
        let title = if self.title.is_empty() { 0.0 } else { 1.8 * Self::LETTER };
        let heading = if self.columns.iter().all(String::is_empty) { 0.0 } else { 1.3 * Self::LETTER };
        let first = Self::GAP + title + heading;
        let labels = self.rows.iter().map(|row| room(&row.value.label())).fold(0.0, f64::max);
        let down = (panel[1] + Self::GAP).max(labels + 8.0);
        let left = |k: usize| (Self::GAP + side + 0.5 * names + across * k as f64).round();
        let top = |k: usize| (first + down * k as f64).round();
        Layout {
            panel,
            left: (0..self.columns.len()).map(left).collect(),
            top: (0..self.rows.len()).map(top).collect(),
            coordinates,
            values,
        }
    }

    /// Numbers along the left and the lower edge of the table, marks at all panels; returns the lower end.
    fn draw_axes(&self, draw: &mut Drawing, layout: &Layout, bottom: f64) -> f64 {
        let (Some([down, right]), Some(first)) = (&layout.coordinates, layout.left.first()) else { return bottom };
        let [wide, tall] = layout.panel;
        let nodes = self.rows.first().and_then(|row| row.fields.first()).map_or([1, 1], |f| [f.height, f.width]);
        // Nodes are in the middle of their cells.
        let place = |axis: &Axis, k: usize, value: f64| {
            let flip = self.coordinates.as_ref().is_some_and(|c| c[k].ends[1] < c[k].ends[0]);
            let place = if flip { 1.0 - axis.place(value) } else { axis.place(value) };
            (0.5 + place * (nodes[k] - 1) as f64) / nodes[k] as f64
        };
        let mut numbers: f64 = 0.0;
        for tick in &down.ticks {
            let y = |top: &f64| top + tall * place(down, 0, tick.value);
            for top in &layout.top {
                let points: Vec<[f64; 2]> = layout.left.iter().map(|left| [*left, y(top)]).collect();
                mark(draw, &points, [-1.0, 0.0]);
                let at = [first - Self::MARK - Self::AIR, y(top) + 0.36 * Self::LETTER];
                letters(draw, at, Anchor::End, false, &tick.label);
            }
            numbers = numbers.max(room(&tick.label));
        }
        for tick in &right.ticks {
            let x = |left: &f64| left + wide * place(right, 1, tick.value);
            for top in &layout.top {
                let points: Vec<[f64; 2]> = layout.left.iter().map(|left| [x(left), top + tall]).collect();
                mark(draw, &points, [0.0, 1.0]);
            }
            for left in &layout.left {
                let at = [x(left), bottom + Self::MARK + Self::AIR + 0.8 * Self::LETTER];
                letters(draw, at, Anchor::Middle, false, &tick.label);
            }
        }
        for top in &layout.top {
            let at = [first - Self::MARK - Self::AIR - numbers - 0.6 * Self::LETTER, top + 0.5 * tall];
            letters(draw, at, Anchor::Middle, true, &self.coordinate_label(0));
        }
        let line = bottom + Self::MARK + Self::AIR + 2.2 * Self::LETTER;
        for left in &layout.left {
            letters(draw, [left + 0.5 * wide, line], Anchor::Middle, false, &self.coordinate_label(1));
        }
        if self.coordinate_label(1).is_empty() { line - 1.2 * Self::LETTER } else { line }
    }

    fn coordinate_label(&self, k: usize) -> String {
        self.coordinates.as_ref().map_or(String::new(), |both| both[k].quantity.label())
    }

    /// A colour bar, its numbers in a column of width `room`, and the name of the quantity; returns the right end.
    fn colour_bar(draw: &mut Drawing, row: &FieldRow, axis: &Axis, room: f64, place: [f64; 4]) -> Result<f64> {
        let [x, y, wide, tall] = place;
        show(draw, &Picture::scale(row.map), place)?;
        let height = |value: f64| y + tall * (1.0 - axis.place(value));
        let points: Vec<[f64; 2]> = axis.ticks.iter().map(|tick| [x + wide, height(tick.value)]).collect();
        mark(draw, &points, [1.0, 0.0]);
        let numbers = x + wide + Self::MARK + Self::AIR;
        for tick in &axis.ticks {
            letters(draw, [numbers, height(tick.value) + 0.36 * Self::LETTER], Anchor::Start, false, &tick.label);
        }
        let label = numbers + room + 1.3 * Self::LETTER;
        letters(draw, [label, y + 0.5 * tall], Anchor::Middle, true, &row.value.label());
        Ok(label + Self::GAP)
    }

    fn note(&self) -> String {
        let fields = self.rows.iter().flat_map(|row| &row.fields);
        match fields.flat_map(|field| field.values).filter(|v| !v.is_finite()).count() {
            0 => String::new(),
            1 => "grey: no value at 1 node".to_owned(),
            lost => format!("grey: no value at {lost} nodes"),
        }
    }
}

/// Room for the numbers of an axis.
fn widest(axis: &Axis) -> f64 {
    axis.ticks.iter().map(|tick| room(&tick.label)).fold(0.0, f64::max)
}

/// Room for `text`.
fn room(text: &str) -> f64 {
    text_width(text, FieldGrid::LETTER)
}

/// `text` with its base line's start, middle or end at a point, upwards if `upright`.
fn letters(draw: &mut Drawing, at: [f64; 2], anchor: Anchor, upright: bool, text: &str) {
    if !text.is_empty() {
        draw.text(at, FieldGrid::LETTER, anchor, if upright { -90.0 } else { 0.0 }, text);
    }
}

/// `picture` in the rectangle `[x, y, width, height]`, in a frame.
fn show(draw: &mut Drawing, picture: &Picture, rectangle: [f64; 4]) -> Result<()> {
    let [x, y, w, h] = rectangle.map(short);
    let data = BASE64.encode(picture.png()?);
    draw.add(format_args!(
        "<image x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" preserveAspectRatio=\"none\" \
         style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{data}\"/>"
    ));
    draw.stroke(&format!("M{x} {y}h{w}v{h}h-{w}z"), "currentColor", 1.0, " stroke-opacity=\".6\"");
    Ok(())
}

/// Marks outside the frame that start at points and run to the right (`[1, 0]`), left or down.
fn mark(draw: &mut Drawing, points: &[[f64; 2]], direction: [f64; 2]) {
    let [dx, dy] = direction.map(|d| short(d * FieldGrid::MARK));
    let mut d = String::new();
    for [x, y] in points {
        let _ = write!(d, "M{} {}l{dx} {dy}", short(*x), short(*y));
    }
    draw.stroke(&d, "currentColor", 1.0, " stroke-opacity=\".6\"");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roxmltree::Document;

    use super::*;
    use crate::picture::tests::{HIGH, LOW, decode};
    use crate::raster::svg_to_png;
    use crate::svg::testing::texts;

    fn coordinates() -> [Coordinate; 2] {
        ["x", "y & z"].map(|name| Coordinate { quantity: Quantity::new(name, "m"), ends: [0.0, 1.0] })
    }

    fn row<'a>(name: &str, fields: Vec<Field<'a>>) -> FieldRow<'a> {
        FieldRow { value: Quantity::new(name, ""), fields, ..FieldRow::default() }
    }

    #[test]
    fn a_row_with_a_gap_is_refused() {
        let row = FieldRow { value: Quantity::new("p", "Pa"), ..FieldRow::default() };
        let grid = FieldGrid { columns: vec!["a".to_owned()], rows: vec![row], ..FieldGrid::default() };
        let expected = "row \"p [Pa]\" has 0 fields for 1 columns; give one field per column";
        assert_eq!(grid.svg().unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_figure_holds_its_fields_and_names_everything() {
        let values = [0.0, 1.0, 2.0, f64::INFINITY, 3.0, 4.0];
        let fields = vec![Field::new(2, 3, &values).unwrap(); 2];
        let value = Quantity::new("<p>", "Pa");
        let row = FieldRow { value, map: ColourMap::Inferno, fields, ..FieldRow::default() };
        let columns = vec!["one".to_owned(), "two".to_owned()];
        let grid = FieldGrid { title: "a < b".to_owned(), columns, rows: vec![row], coordinates: Some(coordinates()) };
        let svg = grid.svg().unwrap();
        let found = texts(&svg);
        for wanted in ["a < b", "one", "two", "x [m]", "y & z [m]", "<p> [Pa]", "grey: no value at 2 nodes"] {
            assert!(found.iter().any(|text| text == wanted), "{wanted} in {found:?}");
        }
        // Numbers of the first coordinate stand once, those of the second below both panels, and 0 and 1 at the bar.
        assert_eq!(found.iter().filter(|text| *text == "0").count(), 4, "{found:?}");
        let document = Document::parse(&svg.text).unwrap();
        let image = document.descendants().find(|n| n.has_tag_name("image")).unwrap();
        let data = image.attribute("href").unwrap().strip_prefix("data:image/png;base64,").unwrap();
        let inside = decode(&BASE64.decode(data).unwrap());
        assert_eq!((inside.width, inside.height), (3, 2));
    }

    #[test]
    fn numbers_stand_at_the_nodes_and_may_run_either_way() {
        let values = [0.0; 100];
        let places = |ends: [f64; 2]| {
            let mut coordinates = coordinates();
            coordinates[0].ends = ends;
            let rows = vec![row("", vec![Field::new(10, 10, &values).unwrap()])];
            let grid = FieldGrid {
                columns: vec![String::new()],
                rows,
                coordinates: Some(coordinates),
                ..FieldGrid::default()
            };
            let svg = grid.svg().unwrap();
            let document = Document::parse(&svg.text).unwrap();
            let place = |label: &str| {
                let found = document.descendants().find(|n| n.has_tag_name("text") && n.text() == Some(label));
                found.unwrap().attribute("y").unwrap().parse::<f64>().unwrap()
            };
            place("50") - place("40")
        };
        // Cells of 20 pixels: from the middle of the first to the middle of the last are 9.
        assert_eq!(places([40.0, 50.0]), 180.0);
        assert_eq!(places([50.0, 40.0]), -180.0);
    }

    #[test]
    fn every_cell_of_a_field_has_its_colour_in_the_pixels() {
        let (a, b) = ([0.0, 1.0], [1.0, 0.0]);
        let fields = vec![Field::new(1, 2, &a).unwrap(), Field::new(1, 2, &b).unwrap()];
        let columns = vec!["p".to_owned(), String::new()];
        let rows = vec![row("", fields)];
        let grid = FieldGrid { title: "Kq".to_owned(), columns, rows, coordinates: Some(coordinates()) };
        let picture = decode(&svg_to_png(&grid.svg().unwrap().to_string(), 1.0).unwrap());
        // Two panels of 200 × 100 pixels, half of each in either colour. The frame lies half inside: it darkens a pixel
        // along three sides of either half, 2·100 + 100 pixels. The bar adds less than two lines of each colour.
        let painted = |colour| picture.pixels.iter().filter(|p| **p == colour).count();
        for count in [painted(LOW), painted(HIGH)] {
            assert!((20_000 - 2 * 300..20_000 - 2 * 300 + 60).contains(&count), "{count}");
        }
    }

    #[test]
    fn an_empty_grid_is_a_small_picture() {
        let grid = FieldGrid { coordinates: Some(coordinates()), ..FieldGrid::default() };
        let svg = grid.svg().unwrap().to_string();
        assert!(Document::parse(&svg).is_ok());
        assert!(decode(&svg_to_png(&svg, 1.0).unwrap()).width > 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn any_values_give_pictures(
            values in prop::collection::vec(any::<f64>(), 6),
            range in prop::option::of(any::<[f64; 2]>()),
            ends in any::<[f64; 2]>(),
            log in any::<bool>(),
        ) {
            let scale = if log { Scale::Log } else { Scale::Linear };
            for map in [ColourMap::Viridis, ColourMap::Diverging] {
                let fields = vec![Field::new(3, 2, &values).unwrap()];
                let rows = vec![FieldRow { map, scale, range, fields, ..FieldRow::default() }];
                let coordinates = coordinates().map(|c| Coordinate { ends, ..c });
                let grid = FieldGrid { columns: vec![String::new()], rows, coordinates: Some(coordinates), ..FieldGrid::default() };
                let svg = grid.svg().unwrap();
                prop_assert!(Document::parse(&svg.text).is_ok());
                decode(&svg_to_png(&svg.text, 1.0).unwrap());
                prop_assert!(!svg.text.contains("\"NaN") && !svg.text.contains("MNaN"), "{}", svg);
            }
        }
    }
}
