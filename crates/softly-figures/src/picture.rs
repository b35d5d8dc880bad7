//! Fields as pixels: colour maps, and pictures as PNG bytes.

use colorous::Gradient;
use resvg::usvg;
use thiserror::Error;

use crate::axis::{Axis, Scale};

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
    /// A text that is not a figure.
    #[error("this is not an SVG figure: {0}; give the text of one")]
    Svg(usvg::Error),
    /// A picture without pixels, or with more than memory can address.
    #[error("picture of {width} × {height} pixels cannot be drawn; choose another scale")]
    Pixels {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
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

/// From this ratio of the largest to the smallest value on, a positive field has a logarithmic colour scale.
const WIDE: f64 = 20.0;

/// Colours and scale for values from `low` to `high`: around zero, over orders of magnitude, or plain.
pub fn colours_of([low, high]: [f64; 2]) -> (ColourMap, Scale) {
    if low < 0.0 && high > 0.0 {
        (ColourMap::Diverging, Scale::Linear)
    } else if low > 0.0 && high > WIDE * low {
        (ColourMap::Viridis, Scale::Log)
    } else {
        (ColourMap::Viridis, Scale::Linear)
    }
}

/// A picture, row by row from the top.
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) pixels: Vec<Pixel>,
}

impl Picture {
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
    fn colours_fit_the_values() {
        assert_eq!(colours_of([-1.0, 3.0]), (ColourMap::Diverging, Scale::Linear));
        assert_eq!(colours_of([0.1, 3.0]), (ColourMap::Viridis, Scale::Log));
        assert_eq!(colours_of([1.0, 3.0]), (ColourMap::Viridis, Scale::Linear));
        assert_eq!(colours_of([0.0, 3.0]), (ColourMap::Viridis, Scale::Linear));
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
}
