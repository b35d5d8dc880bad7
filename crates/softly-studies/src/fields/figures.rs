//! Figures of field studies: samples and residual maps, metrics against misspecification, γ(σ), residuals along the
//! sampling path, spectra and histograms. Methods keep their colours; what they are compared with, [`DATA`], is black.

use softly_figures::axis::{Scale, Tick};
use softly_figures::charts::{Axes, LineChart, Point, Series, Spread};
use softly_figures::field_grid::{Coordinate, FieldGrid, FieldRow, Quantity};
use softly_figures::histogram::{Histogram, ValueSet};
use softly_figures::picture::{ColourMap, Field, Result, colours_of};
use softly_figures::svg::{Colours, INK, Svg};
use softly_pde::grid::{AxisId, Grid};

/// The name of what methods are compared with.
pub const DATA: &str = "data";

/// One sample of one method.
#[derive(Clone, Debug)]
pub struct MethodSample<'a> {
    /// The method.
    pub name: &'a str,
    /// Its fields, `[H, W]` each.
    pub fields: Vec<&'a [f64]>,
    /// The true residual `[H, W]`; not a number where it does not count.
    pub residual: &'a [f64],
}

/// A method's name and its points.
pub type Curve<'a> = (&'a str, Vec<Point>);

/// Samples as columns, their `fields` and the magnitude of their residual as rows, each row on one colour scale.
///
/// Colours span all but the most extreme half per cent of a row's values on either side, so that one bad node does not
/// hide all others; for residuals all but the lowest 2 % and the highest half per cent of the methods' values.
pub fn sample_figure(title: &str, grid: &Grid, fields: &[Quantity], samples: &[MethodSample]) -> Result<Svg> {
    let residuals: Vec<Vec<f64>> = samples.iter().map(|s| s.residual.iter().map(|r| r.abs()).collect()).collect();
    let picture = |values| Field::new(grid.rows(), grid.cols(), values);
    let mut rows = Vec::new();
    for (k, value) in fields.iter().enumerate() {
        let columns: Vec<&[f64]> = samples.iter().map(|s| s.fields.get(k).copied().unwrap_or_default()).collect();
        let range = quantiles(columns.iter().copied().flatten(), [0.005, 0.995]);
        let (map, scale) = colours_of(range);
        let fields = columns.into_iter().map(picture).collect::<Result<_>>()?;
        rows.push(FieldRow { value: value.clone(), map, scale, range: Some(range), fields });
    }
    // The residual of data may be rounding, whole decades below the residual of any method.
    let methods = |s: &MethodSample| s.name != DATA || samples.iter().all(|s| s.name == DATA);
    let shown = samples.iter().zip(&residuals).filter(|(s, _)| methods(s)).flat_map(|(_, values)| values);
    let range = quantiles(shown.filter(|r| **r > 0.0), [0.02, 0.995]);
    rows.push(FieldRow {
        value: Quantity::new("residual |R|", ""),
        map: ColourMap::Inferno,
        scale: Scale::Log,
        range: Some(range),
        fields: residuals.iter().map(|values| picture(values)).collect::<Result<_>>()?,
    });
    let columns = samples.iter().map(|s| s.name.to_owned()).collect();
    FieldGrid { title: title.to_owned(), columns, rows, coordinates: Some(coordinates(grid)) }.svg()
}

/// The coordinates of a grid: the first axis downwards, the second to the right.
pub fn coordinates(grid: &Grid) -> [Coordinate; 2] {
    AxisId::BOTH.map(|id| {
        let axis = grid.axis(id);
        Coordinate { quantity: Quantity::new(&axis.name, ""), ends: [axis.first, axis.last] }
    })
}

/// The values below which the given fractions of the finite `values` lie.
pub(crate) fn quantiles<'a>(values: impl Iterator<Item = &'a f64>, fractions: [f64; 2]) -> [f64; 2] {
    let mut values: Vec<f64> = values.copied().filter(|v| v.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    fractions.map(|q| values.get((q * values.len() as f64) as usize).copied().unwrap_or(f64::NAN))
}

/// A metric against how wrong the constraint is, one line per method, with error bars.
pub fn misspecification_chart(axes: Axes, curves: &[Curve], colours: &mut Colours) -> Svg {
    let x_ticks = places(curves).iter().map(|&value| Tick { value, label: format!("{value}") }).collect();
    LineChart { axes: Axes { x_ticks, ..axes }, series: series(curves, colours), spread: Spread::BarsApart }.svg()
}

/// Every finite x, ascending.
fn places(curves: &[Curve]) -> Vec<f64> {
    let mut places: Vec<f64> =
        curves.iter().flat_map(|(_, points)| points).map(|p| p.x).filter(|x| x.is_finite()).collect();
    places.sort_unstable_by(f64::total_cmp);
    places.dedup();
    places
}

/// γ against the noise level, one line per method with a band.
pub fn gamma_chart(title: &str, curves: &[Curve], colours: &mut Colours) -> Svg {
    let axes = Axes {
        title: title.to_owned(),
        x_label: "noise level σ".to_owned(),
        y_label: "γ".to_owned(),
        x_scale: Scale::Log,
        ..Axes::default()
    };
    LineChart { axes, series: series(curves, colours), spread: Spread::Band }.svg()
}

/// The residual of the denoiser's output along the sampling path against the noise level, one line per method.
pub fn path_chart(title: &str, curves: &[Curve], colours: &mut Colours) -> Svg {
    let axes = Axes {
        title: title.to_owned(),
        x_label: "noise level σ (sampling runs from right to left)".to_owned(),
        y_label: "mean |R| of the denoised sample".to_owned(),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        ..Axes::default()
    };
    LineChart { axes, series: series(curves, colours), spread: Spread::Band }.svg()
}

/// Radial power spectra of the field `name`, index k of each being k half waves; the constant is left out.
pub fn spectrum_chart(name: &str, spectra: &[(&str, &[f64])], colours: &mut Colours) -> Svg {
    let axes = Axes {
        title: format!("Power spectrum of {name}"),
        x_label: "wave number |k| (half waves across the domain)".to_owned(),
        y_label: format!("mean power of {name}"),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        ..Axes::default()
    };
    let points =
        |power: &[f64]| power.iter().enumerate().skip(1).map(|(k, &p)| Point::exact(k as f64, p)).collect::<Vec<_>>();
    let curves: Vec<Curve> = spectra.iter().map(|(name, power)| (*name, points(power))).collect();
    LineChart { axes, series: series(&curves, colours), spread: Spread::Bars }.svg()
}

/// How the mean |R| of single samples is distributed, one outline per method.
pub fn residual_histogram(title: &str, sets: &[(&str, &[f64])], colours: &mut Colours) -> Svg {
    let set = |&(name, values): &(_, _)| ValueSet { name, colour: colour_index(name, colours), values };
    let sets = sets.iter().map(set).collect();
    let x_label = "mean |R| of a sample".to_owned();
    Histogram { title: title.to_owned(), x_label, x_scale: Scale::Log, sets }.svg()
}

pub(crate) fn series(curves: &[Curve], colours: &mut Colours) -> Vec<Series> {
    let series = |(name, points): &Curve| Series {
        name: (*name).to_owned(),
        colour: colour_index(name, colours),
        points: points.clone(),
    };
    curves.iter().map(series).collect()
}

fn colour_index(name: &str, colours: &mut Colours) -> usize {
    if name == DATA { INK } else { colours.index(name) }
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node};

    use super::*;

    /// How many elements of a figure are as wanted.
    fn count(svg: &Svg, wanted: impl Fn(Node) -> bool) -> usize {
        Document::parse(&svg.to_string()).unwrap().descendants().filter(|n| wanted(*n)).count()
    }

    /// All texts of a figure, in order.
    fn texts(svg: &Svg) -> Vec<String> {
        let text = svg.to_string();
        let document = Document::parse(&text).unwrap();
        document.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text().map(str::to_owned)).collect()
    }

    #[test]
    fn samples_share_their_colours_and_clip_extremes() {
        let grid = Grid::unit(20, 20);
        let calm: Vec<f64> = (0..400).map(|k| f64::from(k) / 400.0 - 0.5).collect();
        let mut wild = calm.clone();
        wild[7] = 1e9;
        let positive: Vec<f64> = calm.iter().map(|v| (6.0 * v).exp()).collect();
        let residual: Vec<f64> = calm.iter().map(|v| if *v > 0.4 { f64::NAN } else { v.powi(3) }).collect();
        let sample = |name, p| MethodSample { name, fields: vec![p, &positive[..]], residual: &residual };
        let fields = [Quantity::new("p", ""), Quantity::new("K", "m²")];
        let svg = sample_figure("t", &grid, &fields, &[sample("data", &calm), sample("scd", &wild)]).unwrap();
        let found = texts(&svg);
        for wanted in ["data", "scd", "p", "K [m²]", "residual |R|", "x", "y", "grey: no value at 78 nodes"] {
            assert!(found.iter().any(|text| text == wanted), "{wanted} in {found:?}");
        }
        // Three rows of two panels and a bar; the wild node has not stretched the first scale.
        assert_eq!(count(&svg, |n| n.has_tag_name("image")), 9);
        assert!(found.contains(&"0.4".to_owned()), "{found:?}");
        let missing = MethodSample { name: "short", fields: vec![&calm], residual: &residual };
        assert!(sample_figure("t", &grid, &fields, &[missing]).is_err());
    }

    #[test]
    fn charts_name_their_axes_and_keep_colours() {
        let mut colours = Colours::default();
        let curve =
            |y: f64| [7.5, 10.0, 15.0].map(|x| Point { x, y: y * x, low: 0.9 * y * x, high: 1.1 * y * x }).to_vec();
        let curves: Vec<Curve> = vec![("vanilla", curve(1.0)), ("scd", curve(0.7))];
        let axes = Axes { levels: vec![("p ≡ 0".to_owned(), 0.3125)], ..Axes::default() };
        let lines = misspecification_chart(axes, &curves, &mut colours);
        let found = texts(&lines);
        assert!(["7.5", "10", "15", "vanilla", "scd", "p ≡ 0"].iter().all(|t| found.contains(&(*t).to_owned())));
        // Three markers and one in the legend.
        assert_eq!(count(&lines, |n| n.attribute("fill") == Some("#0072B2")), 4);

        let power = [1.0, 0.5, 0.1, 0.0];
        let spectrum = spectrum_chart("p", &[(DATA, &power), ("scd", &power)], &mut colours);
        assert!(texts(&spectrum).contains(&"2 of 6 points have no finite positive value and are not drawn".to_owned()));
        // The line of the data and its sample in the legend.
        assert_eq!(count(&spectrum, |n| n.attribute("stroke-width") == Some("6")), 2);
        let histogram = residual_histogram("h", &[("scd", &[0.1, 0.2, 0.3])], &mut colours);
        assert!(count(&histogram, |n| n.attribute("stroke") == Some("#D55E00")) > 0);
        for svg in [gamma_chart("γ", &curves, &mut colours), path_chart("path", &curves, &mut colours)] {
            assert!(texts(&svg).iter().any(|text| text.starts_with("noise level σ")));
            assert!(Document::parse(&svg.to_string()).is_ok());
        }
    }
}
