//! Fields on grids as pictures: PNG bytes, heat maps with axes, and tables of fields.
//!
//! The first row of a field is at the top of its picture.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use colorous::Gradient;
use thiserror::Error;

use crate::font;
use crate::svg::{Anchor, Axis, Drawing, Svg, short, text_width};

/// What keeps fields from becoming a picture.
#[derive(Debug, Error)]
pub enum ImageError {
    /// A field's size and its number of values do not agree.
    #[error("field of {height} × {width} cells has {values} values; give one value per cell")]
    Size {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Number of values.
        values: usize,
    },
    /// A field without cells.
    #[error("field of {height} × {width} cells is empty; give at least one row and one column")]
    Empty {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
    /// A table of fields with a gap.
    #[error("column {column:?} has {found} fields for {expected} row labels; give one field per row")]
    Rows {
        /// The column.
        column: String,
        /// Rows of the table.
        expected: usize,
        /// Fields of the column.
        found: usize,
    },
    /// The PNG encoder refused.
    #[error("picture of {width} × {height} pixels cannot be written as PNG: {reason}; show fewer or smaller fields")]
    Encode {
        /// Pixels across.
        width: usize,
        /// Pixels down.
        height: usize,
        /// What the encoder says.
        reason: png::EncodingError,
    },
}

type Result<T> = std::result::Result<T, ImageError>;

/// Values on a grid, `[height, width]`, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    height: usize,
    width: usize,
    values: &'a [f64],
}

impl<'a> Field<'a> {
    /// The field of `values` `[height, width]`.
    pub fn new(height: usize, width: usize, values: &'a [f64]) -> Result<Self> {
        if height == 0 || width == 0 {
            return Err(ImageError::Empty { height, width });
        }
        if height.checked_mul(width) != Some(values.len()) {
            return Err(ImageError::Size { height, width, values: values.len() });
        }
        Ok(Field { height, width, values })
    }
}

/// Colours for values, uniform to the eye.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColourMap {
    /// Dark blue over green to yellow: any quantity.
    #[default]
    Viridis,
    /// Black over red to pale yellow: magnitudes such as residuals.
    Inferno,
    /// Blue over white to red, white at zero: signed quantities.
    Diverging,
}

/// Cells that are not finite.
const LOST: Pixel = [128, 128, 128];

type Pixel = [u8; 3];

impl ColourMap {
    /// The colour of place `t` in 0 ..= 1.
    fn at(self, t: f64) -> Pixel {
        let gradient: Gradient = match self {
            ColourMap::Viridis => colorous::VIRIDIS,
            ColourMap::Inferno => colorous::INFERNO,
            ColourMap::Diverging => colorous::RED_BLUE,
        };
        // The gradient runs from red to blue, while warm colours stand for large values.
        gradient.eval_continuous(if self == ColourMap::Diverging { 1.0 - t } else { t }).as_array()
    }

    /// The finite values' range, symmetric around zero for the diverging map, and moved apart if it is one value.
    fn range(self, values: impl Iterator<Item = f64>) -> [f64; 2] {
        let [low, high] =
            values.filter(|v| v.is_finite()).fold([f64::INFINITY, f64::NEG_INFINITY], |[l, h], v| [l.min(v), h.max(v)]);
        let [low, high] = if low > high { [0.0, 1.0] } else { [low, high] };
        let size = low.abs().max(high.abs());
        match self {
            ColourMap::Diverging if size > 0.0 => [-size, size],
            _ if high > low => [low, high],
            _ if size > 0.0 => [low - 0.1 * size, high + 0.1 * size],
            _ => [-1.0, 1.0],
        }
    }
}

/// A picture, row by row from the top.
struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<Pixel>,
}

impl Picture {
    fn blank(width: usize, height: usize) -> Self {
        Picture { width, height, pixels: vec![[255; 3]; width * height] }
    }

    /// One pixel per cell; values beyond `range` take the colours of its ends.
    fn of(field: &Field, map: ColourMap, [low, high]: [f64; 2]) -> Self {
        // Halves, because the difference of the ends may be too large for a number.
        let place = |v: f64| ((0.5 * v - 0.5 * low) / (0.5 * high - 0.5 * low)).clamp(0.0, 1.0);
        let pixels = field.values.iter().map(|&v| if v.is_finite() { map.at(place(v)) } else { LOST }).collect();
        Picture { width: field.width, height: field.height, pixels }
    }

    /// The colours of `map` from left (low) to right (high).
    fn scale(map: ColourMap) -> Self {
        let pixels = (0..256).map(|k| map.at(f64::from(k) / 255.0)).collect();
        Picture { width: 256, height: 1, pixels }
    }

    /// The same picture standing up: left becomes bottom.
    fn upright(self) -> Self {
        let turned = |k: usize| self.pixels[(k % self.height) * self.width + self.width - 1 - k / self.height];
        Picture { width: self.height, height: self.width, pixels: (0..self.pixels.len()).map(turned).collect() }
    }

    fn png(&self) -> Result<Vec<u8>> {
        let failed = |reason| ImageError::Encode { width: self.width, height: self.height, reason };
        let mut bytes = Vec::new();
        // Sizes beyond 32 bits become zero, which the encoder refuses.
        let size = |length: usize| u32::try_from(length).unwrap_or(0);
        let mut encoder = png::Encoder::new(&mut bytes, size(self.width), size(self.height));
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_compression(png::Compression::High);
        let mut writer = encoder.write_header().map_err(failed)?;
        writer.write_image_data(self.pixels.as_flattened()).map_err(failed)?;
        writer.finish().map_err(failed)?;
        Ok(bytes)
    }
}

/// `field` as PNG bytes, one pixel per cell, with `range[0]` and below in the first colour and `range[1]` and above in
/// the last; cells that are not finite are grey. Without `range`, the range of the field.
pub fn png(field: &Field, map: ColourMap, range: Option<[f64; 2]>) -> Result<Vec<u8>> {
    let range = map.range(range.as_ref().map_or(field.values, |range| range).iter().copied());
    Picture::of(field, map, range).png()
}

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

/// One field with axes and a colour bar.
#[derive(Clone, Debug)]
pub struct HeatMap<'a> {
    /// Written above and read aloud.
    pub title: &'a str,
    /// The values.
    pub field: Field<'a>,
    /// Their colours.
    pub map: ColourMap,
    /// Values of the first and last colour; without it, the range of the field.
    pub range: Option<[f64; 2]>,
    /// What the values are.
    pub value: Quantity,
    /// What runs along the rows, and its values at the left and right edge.
    pub x: (Quantity, [f64; 2]),
    /// What runs along the columns, and its values at the bottom and top edge.
    pub y: (Quantity, [f64; 2]),
}

impl HeatMap<'_> {
    /// The figure; cells are as high as wide.
    pub fn svg(&self) -> Result<Svg> {
        const LONGEST: f64 = 280.0;
        const TICK: f64 = 12.0;
        const LABEL: f64 = 13.0;
        const BAR: f64 = 14.0;
        let range = self.map.range(self.range.as_ref().map_or(self.field.values, |range| range).iter().copied());
        let longest = self.field.width.max(self.field.height) as f64;
        // Very flat fields are stretched, so that they can be seen and labelled.
        let side = |cells: usize| (LONGEST * cells as f64 / longest).max(0.25 * LONGEST);
        let (width, height) = (side(self.field.width), side(self.field.height));
        let (x_axis, x_flip) = edge_axis(self.x.1, if width < 150.0 { 2 } else { 4 });
        let (y_axis, y_flip) = edge_axis(self.y.1, if height < 150.0 { 2 } else { 4 });
        let value_axis = Axis::exactly(range[0], range[1], if height < 150.0 { 2 } else { 5 });
        let widest = |axis: &Axis| axis.ticks.iter().map(|tick| text_width(&tick.label, TICK)).fold(0.0, f64::max);
        let (left, top) = (8.0 + 1.6 * LABEL + widest(&y_axis) + 8.0, 30.0);
        let bar = left + width + 18.0;
        let across = |place: f64, flip: bool| if flip { 1.0 - place } else { place };

        let mut draw = Drawing::default();
        draw.text([left, 18.0], 15.0, Anchor::Start, 0.0, self.title);
        embed(&mut draw, &Picture::of(&self.field, self.map, range), [left, top, width, height])?;
        embed(&mut draw, &Picture::scale(self.map).upright(), [bar, top, BAR, height])?;
        let mut marks = String::new();
        let mark =
            |marks: &mut String, x: f64, y: f64, d: &str| *marks += &["M", &short(x), " ", &short(y), d].concat();
        for tick in &x_axis.ticks {
            let x = left + width * across(x_axis.place(tick.value), x_flip);
            mark(&mut marks, x, top + height, "v4");
            draw.text([x, top + height + 6.0 + TICK], TICK, Anchor::Middle, 0.0, &tick.label);
        }
        for tick in &y_axis.ticks {
            let y = top + height * (1.0 - across(y_axis.place(tick.value), y_flip));
            mark(&mut marks, left, y, "h-4");
            draw.text([left - 8.0, y + 0.35 * TICK], TICK, Anchor::End, 0.0, &tick.label);
        }
        for tick in &value_axis.ticks {
            let y = top + height * (1.0 - value_axis.place(tick.value));
            mark(&mut marks, bar + BAR, y, "h4");
            draw.text([bar + BAR + 8.0, y + 0.35 * TICK], TICK, Anchor::Start, 0.0, &tick.label);
        }
        draw.stroke(&marks, "currentColor", 1.0, "");
        let middle = top + 0.5 * height;
        let x_label = top + height + 2.2 * TICK + LABEL;
        draw.text([left + 0.5 * width, x_label], LABEL, Anchor::Middle, 0.0, &self.x.0.label());
        draw.text([8.0 + LABEL, middle], LABEL, Anchor::Middle, -90.0, &self.y.0.label());
        let value_label = bar + BAR + 8.0 + widest(&value_axis) + 1.4 * LABEL;
        draw.text([value_label, middle], LABEL, Anchor::Middle, -90.0, &self.value.label());
        let note = lost_note(self.field.values.iter());
        if !note.is_empty() {
            draw.text([left, x_label + 17.0], 11.0, Anchor::Start, 0.0, &note);
        }
        let right = (value_label + 10.0).max(left + text_width(self.title, 15.0)).max(left + text_width(&note, 11.0));
        Ok(draw.finish(right, x_label + if note.is_empty() { 8.0 } else { 25.0 }, self.title))
    }
}

/// The axis between two edges, and whether it runs from the larger to the smaller value.
fn edge_axis([start, end]: [f64; 2], intervals: usize) -> (Axis, bool) {
    (Axis::exactly(start.min(end), start.max(end), intervals), end < start)
}

fn lost_note<'a>(values: impl Iterator<Item = &'a f64>) -> String {
    match values.filter(|v| !v.is_finite()).count() {
        0 => String::new(),
        1 => "grey: 1 cell is not finite".to_owned(),
        lost => format!("grey: {lost} cells are not finite"),
    }
}

/// Puts `picture` into the rectangle `[x, y, width, height]` with a frame around it.
fn embed(draw: &mut Drawing, picture: &Picture, rectangle: [f64; 4]) -> Result<()> {
    let [x, y, w, h] = rectangle.map(short);
    let data = BASE64.encode(picture.png()?);
    draw.add(format_args!(
        "<image x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" preserveAspectRatio=\"none\" \
         style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{data}\"/>"
    ));
    draw.stroke(&format!("M{x} {y}h{w}v{h}h-{w}z"), "currentColor", 1.0, " stroke-opacity=\".6\"");
    Ok(())
}

/// Fields in rows (samples) and columns (quantities). The fields of a column share colours and colour bar.
#[derive(Clone, Debug, Default)]
pub struct FieldGrid<'a> {
    /// Written above and read aloud.
    pub title: String,
    /// Names of the rows.
    pub rows: Vec<String>,
    /// The columns, each with one field per row.
    pub columns: Vec<FieldColumn<'a>>,
}

/// One quantity in all samples.
#[derive(Clone, Debug, Default)]
pub struct FieldColumn<'a> {
    /// What the values are.
    pub value: Quantity,
    /// Their colours.
    pub map: ColourMap,
    /// One field per row.
    pub fields: Vec<Field<'a>>,
}

/// Something to draw a table of fields on.
trait Canvas {
    /// `text` with its base line's start, middle or end at a point.
    fn text(&mut self, at: [f64; 2], anchor: Anchor, text: &str);
    /// `picture` in the rectangle `[x, y, width, height]`.
    fn picture(&mut self, picture: &Picture, rectangle: [f64; 4]) -> Result<()>;
}

impl FieldGrid<'_> {
    /// The longer side of a panel, if its cells do not need more.
    const PANEL: usize = 200;
    const BAR: f64 = 12.0;
    const GAP: f64 = 16.0;
    /// Size of the letters.
    const LETTER: f64 = 14.0;
    /// Room for a letter, wide enough for both kinds of letters.
    const ADVANCE: f64 = 12.0;

    /// The table as a figure.
    pub fn svg(&self) -> Result<Svg> {
        let mut draw = Drawing::default();
        let [width, height] = self.draw(&mut draw)?;
        Ok(draw.finish(width, height, &self.title))
    }

    /// The table as PNG bytes, one file for any viewer: black letters on white.
    pub fn png(&self) -> Result<Vec<u8>> {
        let [width, height] = self.draw(&mut Measure)?;
        let mut picture = Picture::blank(width.ceil() as usize, height.ceil() as usize);
        self.draw(&mut picture)?;
        picture.png()
    }

    /// Draws everything and returns width and height.
    fn draw(&self, canvas: &mut impl Canvas) -> Result<[f64; 2]> {
        for column in &self.columns {
            if column.fields.len() != self.rows.len() {
                let (column, found) = (column.value.label(), column.fields.len());
                return Err(ImageError::Rows { column, expected: self.rows.len(), found });
            }
        }
        let letters = |text: &str| Self::ADVANCE * text.chars().count() as f64;
        let title_room = if self.title.is_empty() { 0.0 } else { 2.0 * Self::LETTER };
        let names = self.rows.iter().map(|name| letters(name)).fold(0.0, f64::max);
        let row_heights: Vec<f64> = (0..self.rows.len())
            .map(|row| self.columns.iter().map(|column| panel(&column.fields[row])[1]).fold(0.0, f64::max))
            .collect();
        let top = Self::GAP + title_room + 1.7 * Self::LETTER;
        let bottom = top + row_heights.iter().map(|height| height + Self::GAP).sum::<f64>();
        let height = bottom + Self::BAR + 2.0 * Self::LETTER;

        canvas.text([Self::GAP, Self::GAP + 0.8 * Self::LETTER], Anchor::Start, &self.title);
        let mut y = top;
        for (name, height) in self.rows.iter().zip(&row_heights) {
            canvas.text([Self::GAP + names, y + 0.5 * height + 0.5 * Self::LETTER], Anchor::End, name);
            y += height + Self::GAP;
        }
        let mut x = Self::GAP + if names > 0.0 { names + Self::GAP } else { 0.0 };
        for column in &self.columns {
            let range = column.map.range(column.fields.iter().flat_map(|field| field.values.iter().copied()));
            let ends = end_labels(range);
            let label = column.value.label();
            let wide = column.fields.iter().map(|field| panel(field)[0]).fold(0.0, f64::max);
            let room = wide.max(letters(&label)).max(letters(&ends[0]) + letters(&ends[1]) + Self::GAP);
            let left = (x + 0.5 * (room - wide)).floor();
            canvas.text([x + 0.5 * room, top - 0.6 * Self::LETTER], Anchor::Middle, &label);
            let mut y = top;
            for (field, row_height) in column.fields.iter().zip(&row_heights) {
                let [w, h] = panel(field);
                let place = [left + (0.5 * (wide - w)).floor(), y + (0.5 * (row_height - h)).floor(), w, h];
                canvas.picture(&Picture::of(field, column.map, range), place)?;
                y += row_height + Self::GAP;
            }
            if !column.fields.is_empty() {
                canvas.picture(&Picture::scale(column.map), [left, bottom, wide, Self::BAR])?;
                let line = bottom + Self::BAR + 1.4 * Self::LETTER;
                let outside = (letters(&ends[0]) + letters(&ends[1]) + Self::GAP - wide).max(0.0) / 2.0;
                canvas.text([left - outside, line], Anchor::Start, &ends[0]);
                canvas.text([left + wide + outside, line], Anchor::End, &ends[1]);
            }
            x += room + 1.5 * Self::GAP;
        }
        let note = lost_note(self.columns.iter().flat_map(|column| &column.fields).flat_map(|field| field.values));
        let note_room = if note.is_empty() { 0.0 } else { 1.7 * Self::LETTER };
        canvas.text([Self::GAP, height + 0.8 * Self::LETTER], Anchor::Start, &note);
        let width = x.max(letters(&self.title).max(letters(&note)) + 2.0 * Self::GAP);
        Ok([width, height + note_room])
    }
}

/// Width and height of a field's panel: whole pixels per cell, about [`FieldGrid::PANEL`] on the longer side.
fn panel(field: &Field) -> [f64; 2] {
    let cell = (FieldGrid::PANEL / field.width.max(field.height)).max(1);
    [field.width, field.height].map(|cells| (cell * cells).max(24) as f64)
}

/// The ends of a range with three digits, in the shorter of both notations.
fn end_labels(range: [f64; 2]) -> [String; 2] {
    range.map(|end| {
        let size = end.abs();
        if end == 0.0 {
            "0".to_owned()
        } else if (1e-3..1e4).contains(&size) {
            let digits = (2 - size.log10().floor() as i32).max(0) as usize;
            format!("{end:.digits$}")
        } else {
            format!("{end:.2e}")
        }
    })
}

impl Canvas for Drawing {
    fn text(&mut self, at: [f64; 2], anchor: Anchor, text: &str) {
        if !text.is_empty() {
            Drawing::text(self, at, FieldGrid::LETTER, anchor, 0.0, text);
        }
    }

    fn picture(&mut self, picture: &Picture, rectangle: [f64; 4]) -> Result<()> {
        embed(self, picture, rectangle)
    }
}

/// Draws nothing: the size of a table is known after drawing it.
struct Measure;

impl Canvas for Measure {
    fn text(&mut self, _: [f64; 2], _: Anchor, _: &str) {}

    fn picture(&mut self, _: &Picture, _: [f64; 4]) -> Result<()> {
        Ok(())
    }
}

impl Canvas for Picture {
    /// Letters of dots, two pixels per dot.
    fn text(&mut self, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        const DOT: usize = 2;
        const ADVANCE: usize = (font::WIDTH + 1) * DOT;
        let width = text.chars().count() * ADVANCE;
        let left = x as usize - [0, width / 2, width][anchor as usize].min(x as usize);
        let top = (y as usize).saturating_sub(7 * DOT);
        for (k, letter) in text.chars().enumerate() {
            for (r, row) in font::glyph(letter).iter().enumerate() {
                for (c, _) in row.iter().enumerate().filter(|(_, dot)| **dot) {
                    self.fill([left + k * ADVANCE + c * DOT, top + r * DOT, DOT, DOT], |_, _| [0; 3]);
                }
            }
        }
    }

    fn picture(&mut self, picture: &Picture, rectangle: [f64; 4]) -> Result<()> {
        let [x, y, w, h] = rectangle.map(|length| length as usize);
        self.fill([x - 1, y - 1, w + 2, h + 2], |_, _| [0; 3]);
        self.fill([x, y, w, h], |r, c| picture.pixels[r * picture.height / h * picture.width + c * picture.width / w]);
        Ok(())
    }
}

impl Picture {
    /// Paints the rectangle `[x, y, width, height]`, as far as it lies inside, with the colours of (row, column).
    fn fill(&mut self, [x, y, w, h]: [usize; 4], colour: impl Fn(usize, usize) -> Pixel) {
        for r in y..(y + h).min(self.height) {
            for c in x..(x + w).min(self.width) {
                self.pixels[r * self.width + c] = colour(r - y, c - x);
            }
        }
    }
}
