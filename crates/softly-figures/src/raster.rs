//! Figures as PNG pictures. Letters come from a font inside the program, so that no fonts of a machine are needed and
//! the pixels are the same everywhere.

use std::sync::{Arc, LazyLock};

use resvg::{tiny_skia, usvg};

use crate::picture::{Picture, PictureError, Result};

/// DejaVu Sans Condensed, see `fonts/README.md`. Its digits are as wide as the room that figures leave for them.
const FONT: &[u8] = include_bytes!("../fonts/DejaVuSansCondensed.ttf");

/// The font for any family that a figure asks for.
static OPTIONS: LazyLock<usvg::Options> = LazyLock::new(|| {
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    let family = fonts
        .load_font_source(usvg::fontdb::Source::Binary(Arc::new(FONT)))
        .first()
        .and_then(|id| fonts.face(*id))
        .map(|face| face.families[0].0.clone())
        .expect("the font of the program has a name");
    fonts.set_sans_serif_family(&family);
    options.font_family = family;
    options
});

/// `svg` as PNG bytes on white, `scale` pixels per unit of the figure: 1 for plain screens, 2 for fine ones and paper.
pub fn svg_to_png(svg: &str, scale: f32) -> Result<Vec<u8>> {
    let tree = usvg::Tree::from_str(svg, &OPTIONS).map_err(PictureError::Svg)?;
    let [width, height] = [tree.size().width(), tree.size().height()].map(|length| (length * scale).ceil() as u32);
    let mut pixels = tiny_skia::Pixmap::new(width, height).ok_or(PictureError::Pixels { width, height })?;
    pixels.fill(tiny_skia::Color::WHITE);
    resvg::render(&tree, tiny_skia::Transform::from_scale(scale, scale), &mut pixels.as_mut());
    let pixels = pixels.pixels().iter().map(|p| [p.red(), p.green(), p.blue()]).collect();
    Picture { width: width as usize, height: height as usize, pixels }.png()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::{Axes, LineChart, Point, Series};
    use crate::picture::tests::decode;
    use crate::svg::{Anchor, Drawing};

    const WHITE: [u8; 3] = [255; 3];

    /// `text` alone in the middle of a figure of 40 × 40.
    fn drawn(text: &str) -> Picture {
        let mut draw = Drawing::default();
        draw.text([20.0, 26.0], 20.0, Anchor::Middle, 0.0, text);
        decode(&svg_to_png(&draw.finish(40.0, 40.0, "").to_string(), 1.0).unwrap())
    }

    #[test]
    fn every_letter_of_a_figure_is_drawn() {
        // No font has a letter of its own at this place.
        let missing = drawn("\u{e000}").pixels;
        assert_ne!(missing, drawn("").pixels);
        let letters = ('!'..='~').chain('Α'..='Ρ').chain('Σ'..='Ω').chain('α'..='ω');
        for letter in letters.chain("−±×·÷≤≥≠≈≡∇∂‖√∞∑∫∝→←⟨⟩⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ₀₁₂₃₄₅₆₇₈₉ᵀᵢₓ½¼°…–µᾱ⊙�".chars())
        {
            let pixels = drawn(&letter.to_string()).pixels;
            assert!(pixels != missing && pixels.iter().any(|p| *p != WHITE), "{letter}");
        }
    }

    #[test]
    fn letters_are_black_and_turned_ones_run_upwards() {
        let columns = |picture: &Picture| {
            let inked = |x: &usize| (0..40).any(|y| picture.pixels[y * 40 + x] != WHITE);
            (0..40).filter(inked).count()
        };
        let flat = drawn("σσσ");
        assert!(flat.pixels.contains(&[0; 3]));
        let mut draw = Drawing::default();
        draw.text([26.0, 20.0], 20.0, Anchor::Middle, -90.0, "σσσ");
        let turned = decode(&svg_to_png(&draw.finish(40.0, 40.0, "").to_string(), 1.0).unwrap());
        assert!(columns(&flat) > 2 * columns(&turned), "{} {}", columns(&flat), columns(&turned));
    }

    #[test]
    fn pictures_have_the_size_of_their_figure_and_cut_nothing_off() {
        let series = |colour: usize| Series {
            name: format!("‖∇φ‖² of method number {colour}"),
            colour,
            points: (1..9).map(|k| Point::exact(f64::from(k), -1e5 * f64::from(k))).collect(),
        };
        let axes = Axes {
            title: "MEAN RESIDUAL OF 1000 SAMPLES, WITH WIDE LETTERS ONLY, IN A TITLE AS LONG AS THE FIGURE".to_owned(),
            x_label: "noise level σ".to_owned(),
            y_label: "γ(σ) [m² s⁻¹]".to_owned(),
            ..Axes::default()
        };
        let svg = LineChart { axes, series: (0..30).map(series).collect(), ..LineChart::default() }.svg();
        let root = roxmltree::Document::parse(&svg.text).unwrap();
        let length = |name| root.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
        for scale in [1.0, 2.0] {
            let picture = decode(&svg_to_png(&svg.text, scale).unwrap());
            let expected = ["width", "height"].map(|name| (length(name) * f64::from(scale)).ceil() as usize);
            assert_eq!([picture.width, picture.height], expected);
            let inked = picture.pixels.iter().filter(|p| **p != WHITE).count();
            assert!(inked > picture.pixels.len() / 50, "{inked}");
            let edge = |k: usize| {
                let (x, y) = (k % picture.width, k / picture.width);
                x == 0 || y == 0 || x == picture.width - 1 || y == picture.height - 1
            };
            let cut = picture.pixels.iter().enumerate().filter(|(k, p)| edge(*k) && **p != WHITE).count();
            assert_eq!(cut, 0);
        }
    }

    #[test]
    fn what_is_no_picture_is_explained() {
        let message = |svg: &str, scale| svg_to_png(svg, scale).unwrap_err().to_string();
        assert!(message("no figure", 1.0).starts_with("this is not an SVG figure: "));
        let svg = Drawing::default().finish(10.0, 10.0, "").to_string();
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(message(&svg, scale).contains("choose another scale"), "{scale}");
        }
    }
}
