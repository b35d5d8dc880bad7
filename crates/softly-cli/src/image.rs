//! Fields on grids as pictures: PNG bytes, heat maps with axes, and tables of fields.
//!
//! The first row of a field is at the top of its picture.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use colorous::Gradient;
use thiserror::Error;

use crate::font;
use crate::svg::{Anchor, Axis, Drawing, Svg, fitting, short, text_width};

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
/// the last (made symmetric around zero for the diverging map); cells that are not finite are grey. Without `range`,
/// the range of the field.
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
    /// Values of the first and last colour (made symmetric for the diverging map); without it, the range of the field.
    pub range: Option<[f64; 2]>,
    /// What the values are.
    pub value: Quantity,
    /// What runs along the rows, and its values at the left and right edge.
    pub x: (Quantity, [f64; 2]),
    /// What runs along the columns, and its values at the bottom and top edge.
    pub y: (Quantity, [f64; 2]),
}

impl HeatMap<'_> {
    /// The figure; cells are as high as wide, unless the field would be too flat to see.
    pub fn svg(&self) -> Result<Svg> {
        const LONGEST: usize = 280;
        const TICK: f64 = 12.0;
        const LABEL: f64 = 13.0;
        const BAR: f64 = 14.0;
        let range = self.map.range(self.range.as_ref().map_or(self.field.values, |range| range).iter().copied());
        let [width, height] = panel(&self.field, LONGEST, 70);
        let (x_axis, x_flip) = edge_axis(self.x.1, if width < 150.0 { 2 } else { 4 });
        let (y_axis, y_flip) = edge_axis(self.y.1, if height < 150.0 { 2 } else { 4 });
        let value_axis = Axis::exactly(range[0], range[1], if height < 150.0 { 4 } else { 6 });
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
        let label = |draw: &mut Drawing, at: [f64; 2], room: f64, turn: f64, text: &str| {
            draw.text(at, fitting(text, LABEL, room), Anchor::Middle, turn, text);
        };
        label(&mut draw, [left + 0.5 * width, x_label], width + 60.0, 0.0, &self.x.0.label());
        label(&mut draw, [8.0 + LABEL, middle], height + 40.0, -90.0, &self.y.0.label());
        let value_label = bar + BAR + 8.0 + widest(&value_axis) + 1.7 * LABEL;
        label(&mut draw, [value_label, middle], height + 40.0, -90.0, &self.value.label());
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

    fn panel(field: &Field) -> [f64; 2] {
        panel(field, Self::PANEL, 24)
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
            .map(|row| self.columns.iter().map(|column| Self::panel(&column.fields[row])[1]).fold(0.0, f64::max))
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
            let wide = column.fields.iter().map(|field| Self::panel(field)[0]).fold(0.0, f64::max);
            let room = wide.max(letters(&label)).max(letters(&ends[0]) + letters(&ends[1]) + Self::GAP);
            let left = (x + 0.5 * (room - wide)).floor();
            canvas.text([x + 0.5 * room, top - 0.6 * Self::LETTER], Anchor::Middle, &label);
            let mut y = top;
            for (field, row_height) in column.fields.iter().zip(&row_heights) {
                let [w, h] = Self::panel(field);
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
        let note_room = if note.is_empty() { 0.0 } else { 2.2 * Self::LETTER };
        canvas.text([Self::GAP, height + 1.4 * Self::LETTER], Anchor::Start, &note);
        let width = x.max(letters(&self.title).max(letters(&note)) + 2.0 * Self::GAP);
        Ok([width, height + note_room])
    }
}

/// Width and height of a field's panel: whole pixels per cell, about `longest` on the longer side (more only if it has
/// more cells); very flat fields are stretched to at least `shortest`, so that they can be seen and labelled.
fn panel(field: &Field, longest: usize, shortest: usize) -> [f64; 2] {
    let cell = (longest / field.width.max(field.height)).max(1);
    [field.width, field.height].map(|cells| (cell * cells).max(shortest) as f64)
}

/// The ends of a range with three digits, in the shorter of both notations.
fn end_labels(range: [f64; 2]) -> [String; 2] {
    range.map(|end| {
        let text = match end.abs() {
            0.0 => "0".to_owned(),
            size if (1e-3..1e4).contains(&size) => {
                format!("{end:.*}", (2 - size.log10().floor() as i32).max(0) as usize)
            }
            _ => format!("{end:.2e}"),
        };
        text.replace('-', "−")
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roxmltree::Document;

    use super::*;

    fn decode(bytes: &[u8]) -> Picture {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut data = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut data).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        let pixels = data.chunks_exact(3).map(|p| [p[0], p[1], p[2]]).collect();
        Picture { width: info.width as usize, height: info.height as usize, pixels }
    }

    const LOW: Pixel = [0x44, 0x01, 0x54];
    const HIGH: Pixel = [0xfd, 0xe7, 0x25];

    #[test]
    fn a_small_field_has_the_colours_of_its_values() {
        let field = Field::new(2, 2, &[-3.0, 5.0, f64::NAN, -3.0]).unwrap();
        let picture = decode(&png(&field, ColourMap::Viridis, None).unwrap());
        assert_eq!((picture.width, picture.height), (2, 2));
        assert_eq!(picture.pixels, [LOW, HIGH, LOST, LOW]);
        let clipped = decode(&png(&field, ColourMap::Viridis, Some([10.0, 20.0])).unwrap());
        assert_eq!(clipped.pixels, [LOW, LOW, LOST, LOW]);
    }

    #[test]
    fn the_diverging_map_is_pale_at_zero_blue_below_and_red_above() {
        let field = Field::new(1, 3, &[-1.0, 0.0, 4.0]).unwrap();
        let [below, zero, above] = decode(&png(&field, ColourMap::Diverging, None).unwrap()).pixels[..] else {
            panic!("three pixels")
        };
        assert!(below[2] > below[0] && above[0] > above[2]);
        assert!(zero.iter().all(|c| *c > 235), "{zero:?}");
    }

    #[test]
    fn the_colour_bar_rises() {
        let bar = Picture::scale(ColourMap::Viridis).upright();
        assert_eq!((bar.width, bar.height), (1, 256));
        assert_eq!((bar.pixels[255], bar.pixels[0]), (LOW, HIGH));
    }

    #[test]
    fn wrong_sizes_are_explained() {
        let message = |result: Result<Field>| result.unwrap_err().to_string();
        assert_eq!(message(Field::new(2, 3, &[0.0; 5])), "field of 2 × 3 cells has 5 values; give one value per cell");
        assert!(message(Field::new(0, 3, &[])).contains("is empty"));
        assert!(message(Field::new(usize::MAX, 3, &[0.0; 5])).contains("has 5 values"));
        let column = FieldColumn { value: Quantity::new("p", "Pa"), ..FieldColumn::default() };
        let grid = FieldGrid { rows: vec!["a".to_owned()], columns: vec![column], ..FieldGrid::default() };
        let expected = "column \"p [Pa]\" has 0 fields for 1 row labels; give one field per row";
        assert_eq!(grid.png().unwrap_err().to_string(), expected);
        assert_eq!(grid.svg().unwrap_err().to_string(), expected);
    }

    fn map(field: Field) -> HeatMap {
        let axis = || (Quantity::new("x & y", "m"), [0.0, 1.0]);
        let value = Quantity::new("<p>", "Pa");
        HeatMap { title: "a < b", field, map: ColourMap::Inferno, range: None, value, x: axis(), y: axis() }
    }

    fn texts(svg: &Svg) -> Vec<String> {
        let text = svg.to_string();
        let document = Document::parse(&text).unwrap();
        document.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text().map(str::to_owned)).collect()
    }

    #[test]
    fn a_heat_map_holds_its_field_and_names_everything() {
        let values = [0.0, 1.0, 2.0, f64::INFINITY, 3.0, 4.0];
        let field = Field::new(2, 3, &values).unwrap();
        let svg = map(field).svg().unwrap();
        let found = texts(&svg);
        for wanted in ["a < b", "x & y [m]", "<p> [Pa]", "grey: 1 cell is not finite"] {
            assert!(found.iter().any(|text| text == wanted), "{wanted} in {found:?}");
        }
        let text = svg.to_string();
        let document = Document::parse(&text).unwrap();
        let image = document.descendants().find(|n| n.has_tag_name("image")).unwrap();
        let data = image.attribute("href").unwrap().strip_prefix("data:image/png;base64,").unwrap();
        let inside = decode(&BASE64.decode(data).unwrap());
        assert_eq!((inside.width, inside.height, inside.pixels[3]), (3, 2, LOST));
    }

    #[test]
    fn an_axis_may_run_downwards() {
        let values = [0.0; 4];
        let heights = |edges: [f64; 2]| {
            let mut map = map(Field::new(2, 2, &values).unwrap());
            map.x.1 = [10.0, 11.0];
            map.y.1 = edges;
            let text = map.svg().unwrap().to_string();
            let document = Document::parse(&text).unwrap();
            let end = |label: &str| {
                let found = document.descendants().find(|n| n.has_tag_name("text") && n.text() == Some(label));
                found.unwrap().attribute("y").unwrap().parse::<f64>().unwrap()
            };
            end("40") - end("50")
        };
        assert_eq!(heights([40.0, 50.0]), 280.0);
        assert_eq!(heights([50.0, 40.0]), -280.0);
    }

    /// Whether `glyph` stands with its upper left corner at `(x, y)`, in dots of two pixels.
    fn shows(picture: &Picture, glyph: &[[bool; font::WIDTH]; font::HEIGHT], x: usize, y: usize) -> bool {
        let black = |r: usize, c: usize| picture.pixels[(y + r) * picture.width + x + c] == [0; 3];
        (0..2 * font::HEIGHT).all(|r| (0..2 * font::WIDTH).all(|c| black(r, c) == glyph[r / 2][c / 2]))
    }

    #[test]
    fn a_grid_of_fields_is_labelled_in_its_pixels() {
        let (a, b) = ([0.0, 1.0], [1.0, 0.0]);
        let fields = vec![Field::new(1, 2, &a).unwrap(), Field::new(1, 2, &b).unwrap()];
        let column = FieldColumn { value: Quantity::new("p", ""), map: ColourMap::Viridis, fields };
        let rows = vec![String::new(), String::new()];
        let grid = FieldGrid { title: "Kq".to_owned(), rows, columns: vec![column] };
        let picture = decode(&grid.png().unwrap());
        let places = |letter| {
            let glyph = font::glyph(letter);
            let spots = (0..picture.height - 18).flat_map(|y| (0..picture.width - 12).map(move |x| (x, y)));
            spots.filter(|&(x, y)| shows(&picture, &glyph, x, y)).collect::<Vec<_>>()
        };
        let k = places('K');
        assert_eq!(k.len(), 1, "{k:?}");
        assert_eq!(places('q'), [(k[0].0 + 12, k[0].1)]);
        assert_eq!(places('p').len(), 1);
        // Two panels of 200 × 100 pixels, half of each in either colour; the bar adds less than a line of each.
        let painted = |colour: Pixel| picture.pixels.iter().filter(|p| **p == colour).count();
        assert!((20_000..20_100).contains(&painted(LOW)), "{}", painted(LOW));
        assert!((20_000..20_100).contains(&painted(HIGH)), "{}", painted(HIGH));
        assert_eq!(texts(&grid.svg().unwrap()), ["Kq", "p", "0", "1.00"]);
    }

    #[test]
    fn an_empty_grid_is_a_small_picture() {
        let grid = FieldGrid::default();
        assert!(decode(&grid.png().unwrap()).width > 0);
        assert!(Document::parse(&grid.svg().unwrap().to_string()).is_ok());
    }

    #[test]
    fn ends_of_a_bar_have_three_digits() {
        assert_eq!(end_labels([0.0, 7.389]), ["0", "7.39"]);
        assert_eq!(end_labels([-1.99e-5, 1234.0]), ["−1.99e−5", "1234"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn any_values_give_pictures(
            values in prop::collection::vec(any::<f64>(), 6),
            range in prop::option::of(any::<[f64; 2]>()),
            edges in any::<[f64; 2]>(),
        ) {
            let field = Field::new(3, 2, &values).unwrap();
            for colours in [ColourMap::Viridis, ColourMap::Diverging] {
                decode(&png(&field, colours, range).unwrap());
                let mut map = map(field);
                (map.map, map.range, map.x.1) = (colours, range, edges);
                let svg = map.svg().unwrap().to_string();
                prop_assert!(Document::parse(&svg).is_ok());
                prop_assert!(!svg.contains("\"NaN") && !svg.contains("MNaN"), "{}", svg);
            }
        }
    }
}
