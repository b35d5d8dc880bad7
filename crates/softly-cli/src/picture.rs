//! Fields as pixels: colour maps, and pictures with letters as PNG bytes.

use colorous::Gradient;
use thiserror::Error;

use crate::axis::{Axis, Scale};
use crate::font;
use crate::svg::Anchor;

/// What keeps fields from becoming a picture.
#[derive(Debug, Error)]
pub enum PictureError {
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
    #[error("row {row:?} has {found} fields for {expected} columns; give one field per column")]
    Columns {
        /// The row.
        row: String,
        /// Columns of the table.
        expected: usize,
        /// Fields of the row.
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

/// The result of drawing.
pub type Result<T> = std::result::Result<T, PictureError>;

/// Values on a grid, `[height, width]`, row by row. The first row is at the top of its picture.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) values: &'a [f64],
}

impl<'a> Field<'a> {
    /// The field of `values` `[height, width]`.
    pub fn new(height: usize, width: usize, values: &'a [f64]) -> Result<Self> {
        if height == 0 || width == 0 {
            return Err(PictureError::Empty { height, width });
        }
        if height.checked_mul(width) != Some(values.len()) {
            return Err(PictureError::Size { height, width, values: values.len() });
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
const LOST: Pixel = [160, 160, 160];

pub(crate) type Pixel = [u8; 3];

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

    /// The axis of the values that have a place on it, symmetric around zero for the diverging map.
    pub(crate) fn axis(self, scale: Scale, values: impl Iterator<Item = f64>, intervals: usize) -> Axis {
        let [low, high] = values
            .filter(|v| scale.holds(*v))
            .fold([f64::INFINITY, f64::NEG_INFINITY], |[l, h], v| [l.min(v), h.max(v)]);
        let size = low.abs().max(high.abs());
        match self {
            ColourMap::Diverging => Axis::exactly(scale, -size, size, intervals),
            _ => Axis::exactly(scale, low, high, intervals),
        }
    }
}

/// A picture, row by row from the top.
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) pixels: Vec<Pixel>,
}

impl Picture {
    pub(crate) fn blank(width: usize, height: usize) -> Self {
        Picture { width, height, pixels: vec![[255; 3]; width * height] }
    }

    /// One pixel per cell; values beyond the ends of `axis` take the colours of its ends, those that are not finite are
    /// grey.
    pub(crate) fn of(field: &Field, map: ColourMap, axis: &Axis) -> Self {
        let pixels = field.values.iter().map(|&v| if v.is_finite() { map.at(axis.place(v)) } else { LOST }).collect();
        Picture { width: field.width, height: field.height, pixels }
    }

    /// The colours of `map` from bottom (low) to top (high).
    pub(crate) fn scale(map: ColourMap) -> Self {
        let pixels = (0..256).rev().map(|k| map.at(f64::from(k) / 255.0)).collect();
        Picture { width: 1, height: 256, pixels }
    }

    pub(crate) fn png(&self) -> Result<Vec<u8>> {
        let failed = |reason| PictureError::Encode { width: self.width, height: self.height, reason };
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

    /// Paints the rectangle `[x, y, width, height]`, as far as it lies inside, with the colours of (row, column).
    pub(crate) fn fill(&mut self, [x, y, w, h]: [usize; 4], colour: impl Fn(usize, usize) -> Pixel) {
        for r in y..(y + h).min(self.height) {
            for c in x..(x + w).min(self.width) {
                self.pixels[r * self.width + c] = colour(r - y, c - x);
            }
        }
    }

    /// Pixels per dot of a letter.
    const DOT: usize = 2;

    /// Width of `text` in pixels.
    pub(crate) fn text_width(text: &str) -> usize {
        text.chars().count() * (font::WIDTH + 1) * Self::DOT
    }

    /// Black letters of dots, with the base line's start, middle or end at a point; upwards if `upright`.
    pub(crate) fn letters(&mut self, [x, y]: [f64; 2], anchor: Anchor, upright: bool, text: &str) {
        const ASCENT: f64 = 7.0;
        let dot = Self::DOT as f64;
        let start = -(Self::text_width(text) as f64) * [0.0, 0.5, 1.0][anchor as usize];
        for (k, letter) in text.chars().enumerate() {
            for (r, row) in font::glyph(letter).iter().enumerate() {
                for (c, _) in row.iter().enumerate().filter(|(_, dot)| **dot) {
                    let along = start + ((k * (font::WIDTH + 1) + c) as f64) * dot;
                    let down = (r as f64 - ASCENT) * dot;
                    // Turned by a quarter: along becomes upwards, down becomes to the right.
                    let [px, py] = if upright { [x + down, y - along - dot] } else { [x + along, y + down] };
                    if px >= 0.0 && py >= 0.0 {
                        self.fill([px as usize, py as usize, Self::DOT, Self::DOT], |_, _| [0; 3]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const LOW: Pixel = [0x44, 0x01, 0x54];
    pub(crate) const HIGH: Pixel = [0xfd, 0xe7, 0x25];

    pub(crate) fn decode(bytes: &[u8]) -> Picture {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut data = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut data).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        let pixels = data.chunks_exact(3).map(|p| [p[0], p[1], p[2]]).collect();
        Picture { width: info.width as usize, height: info.height as usize, pixels }
    }

    /// `values` as a picture of one row, through its PNG bytes.
    fn pixels(values: &[f64], map: ColourMap, scale: Scale, range: [f64; 2]) -> Vec<Pixel> {
        let field = Field::new(1, values.len(), values).unwrap();
        let axis = map.axis(scale, range.into_iter(), 4);
        decode(&Picture::of(&field, map, &axis).png().unwrap()).pixels
    }

    #[test]
    fn a_small_field_has_the_colours_of_its_values() {
        let values = [-3.0, 5.0, f64::NAN, -9.0, 1e300];
        assert_eq!(pixels(&values, ColourMap::Viridis, Scale::Linear, [-3.0, 5.0]), [LOW, HIGH, LOST, LOW, HIGH]);
        assert_eq!(pixels(&[1e-3, 0.0, 10.0], ColourMap::Viridis, Scale::Log, [1e-3, 10.0]), [LOW, LOW, HIGH]);
        let middle = pixels(&[0.1], ColourMap::Viridis, Scale::Log, [1e-3, 10.0])[0];
        assert_eq!(middle, pixels(&[0.5], ColourMap::Viridis, Scale::Linear, [0.0, 1.0])[0]);
    }

    #[test]
    fn the_diverging_map_is_pale_at_zero_blue_below_and_red_above() {
        let [below, zero, above] = pixels(&[-1.0, 0.0, 4.0], ColourMap::Diverging, Scale::Linear, [-1.0, 4.0])[..]
        else {
            panic!("three pixels")
        };
        assert!(below[2] > below[0] && above[0] > above[2]);
        assert!(zero.iter().all(|c| *c > 235), "{zero:?}");
    }

    #[test]
    fn the_colour_bar_rises() {
        let bar = Picture::scale(ColourMap::Viridis);
        assert_eq!((bar.width, bar.height, bar.pixels[255], bar.pixels[0]), (1, 256, LOW, HIGH));
    }

    #[test]
    fn wrong_sizes_are_explained() {
        let message = |result: Result<Field>| result.unwrap_err().to_string();
        assert_eq!(message(Field::new(2, 3, &[0.0; 5])), "field of 2 × 3 cells has 5 values; give one value per cell");
        assert!(message(Field::new(0, 3, &[])).contains("is empty"));
        assert!(message(Field::new(usize::MAX, 3, &[0.0; 5])).contains("has 5 values"));
    }

    #[test]
    fn upright_letters_are_turned_to_the_left() {
        let (mut flat, mut upright) = (Picture::blank(40, 40), Picture::blank(40, 40));
        flat.letters([10.0, 30.0], Anchor::Start, false, "Lq");
        upright.letters([30.0, 29.0], Anchor::Start, true, "Lq");
        let black = |p: &Picture, x: usize, y: usize| p.pixels[y * p.width + x] == [0; 3];
        // A step to the right becomes one upwards, a step down one to the right.
        for (right, down) in (0..24).flat_map(|right| (0..18).map(move |down| (right, down))) {
            assert_eq!(black(&flat, 10 + right, 16 + down), black(&upright, 16 + down, 28 - right), "{right} {down}");
        }
        assert!(black(&flat, 10, 16) && black(&flat, 10, 28));
    }
}
