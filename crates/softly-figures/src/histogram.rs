//! Histograms of several sets of values on common bins, as outlines that stay readable where they overlap.

use crate::axis::Scale;
use crate::charts::{Axes, Plot, Point, Series};
use crate::svg::{Drawing, Svg, colour, short};

/// The values of a set.
#[derive(Clone, Copy, Debug)]
pub struct ValueSet<'a> {
    /// Written in the legend.
    pub name: &'a str,
    /// Colour index.
    pub colour: usize,
    /// The values; those without a place on the axis are counted below the figure.
    pub values: &'a [f64],
}

/// How often values occur, as fractions of their set; a broken line marks each median.
#[derive(Clone, Debug, Default)]
pub struct Histogram<'a> {
    /// Written above the figure.
    pub title: String,
    /// What the values are.
    pub x_label: String,
    /// Bins are equally wide on this scale.
    pub x_scale: Scale,
    /// The sets.
    pub sets: Vec<ValueSet<'a>>,
}

impl Histogram<'_> {
    /// Bins from the smallest to the largest value of all sets.
    const BINS: usize = 40;

    /// The figure.
    pub fn svg(&self) -> Svg {
        let length = |v: f64| if self.x_scale == Scale::Log { v.log10() } else { v };
        let value = |l: f64| if self.x_scale == Scale::Log { 10_f64.powf(l) } else { l };
        let counted = |set: &ValueSet| -> Vec<f64> {
            set.values.iter().copied().filter(|v| self.x_scale.holds(*v)).map(length).collect()
        };
        let sets: Vec<Vec<f64>> = self.sets.iter().map(counted).collect();
        let [low, high] =
            sets.iter().flatten().fold([f64::INFINITY, f64::NEG_INFINITY], |[l, h], v| [l.min(*v), h.max(*v)]);
        // All values the same: one bar around them.
        let margin = if high > low { 0.0 } else { 0.05 * low.abs().max(1.0) };
        let (low, high) = (low - margin, high + margin);
        let edge = |k: usize| low + (high - low) * k as f64 / Self::BINS as f64;
        let outline = |values: &Vec<f64>| {
            let mut counts = [0.0; Self::BINS];
            for v in values {
                let bin = (v - low) / (high - low) * Self::BINS as f64;
                counts[(bin as usize).min(Self::BINS - 1)] += 1.0 / values.len() as f64;
            }
            // From the first to the last bin with a value.
            let filled = |k: &usize| counts[*k] > 0.0;
            let first = (0..Self::BINS).find(filled).unwrap_or(0);
            let end = (0..Self::BINS).rev().find(filled).map_or(0, |k| k + 1);
            let steps = (first..end).flat_map(|k| [(edge(k), counts[k]), (edge(k + 1), counts[k])]);
            let points = [(edge(first), 0.0)].into_iter().chain(steps).chain([(edge(end), 0.0)]);
            if values.is_empty() { Vec::new() } else { points.map(|(x, y)| Point::exact(value(x), y)).collect() }
        };
        let series: Vec<Series> = self
            .sets
            .iter()
            .zip(&sets)
            .map(|(set, values)| Series { name: set.name.to_owned(), colour: set.colour, points: outline(values) })
            .collect();
        let axes = Axes {
            title: self.title.clone(),
            x_label: self.x_label.clone(),
            y_label: "fraction of samples".to_owned(),
            x_scale: self.x_scale,
            ..Axes::default()
        };
        let mut plot = Plot::new(&axes, &series, Some(0.0));
        let lost =
            self.sets.iter().map(|set| set.values.len()).sum::<usize>() - sets.iter().map(Vec::len).sum::<usize>();
        plot.note = match lost {
            0 => plot.note,
            lost => format!("{lost} values have no place on this axis and are not counted"),
        };
        let mut draw = Drawing::default();
        plot.frame(&mut draw);
        for (series, values) in series.iter().zip(&sets).filter(|(_, values)| !values.is_empty()) {
            let ink = colour(series.colour);
            let corners: Vec<String> =
                series.points.iter().map(|p| format!("{} {}", short(plot.x(p.x)), short(plot.y(p.y)))).collect();
            let d = format!("M{}", corners.join("L"));
            draw.add(format_args!("<path d=\"{d}\" fill=\"{ink}\" fill-opacity=\".1\"/>"));
            draw.stroke(&d, ink, 1.8, " stroke-linejoin=\"round\"");
            let mut sorted = values.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            let median = 0.5 * sorted[(sorted.len() - 1) / 2] + 0.5 * sorted[sorted.len() / 2];
            let middle = format!("M{} {}V{}", short(plot.x(value(median))), short(plot.y(0.0)), short(plot.top));
            draw.stroke(&middle, ink, 1.3, " stroke-dasharray=\"3 3\" stroke-opacity=\".8\"");
        }
        plot.legend(&mut draw, |draw, index, [x, y]| {
            draw.stroke(&format!("M{} {}h22", short(x), short(y)), colour(index), 1.8, "");
        });
        plot.finish(draw)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roxmltree::Document;

    use super::*;
    use crate::svg::testing::{count, texts};

    fn histogram<'a>(x_scale: Scale, sets: &[&'a [f64]]) -> Svg {
        let set = |(colour, values): (usize, &&'a [f64])| ValueSet { name: "set", colour, values };
        Histogram { x_scale, sets: sets.iter().enumerate().map(set).collect(), ..Histogram::default() }.svg()
    }

    #[test]
    fn fractions_reach_their_height() {
        // Three quarters in the first bin, a quarter in the last.
        let svg = histogram(Scale::Linear, &[&[0.0, 0.0, 0.0, 10.0]]);
        let labels = texts(&svg);
        assert!(labels.contains(&"0.8".to_owned()) && !labels.contains(&"1.0".to_owned()), "{labels:?}");
        assert_eq!(count(&svg, |n| n.attribute("stroke-dasharray").is_some()), 1);
    }

    #[test]
    fn values_without_a_place_are_mentioned() {
        let svg = histogram(Scale::Log, &[&[1.0, 0.0, 2.0], &[f64::NAN, 3.0]]);
        assert!(texts(&svg).contains(&"2 values have no place on this axis and are not counted".to_owned()));
        assert!(texts(&histogram(Scale::Log, &[&[]])).contains(&"no points".to_owned()));
    }

    proptest! {
        #[test]
        fn any_values_give_well_formed_figures(
            first in prop::collection::vec(any::<f64>(), 0..6),
            second in prop::collection::vec(any::<f64>(), 0..6),
            log in any::<bool>(),
        ) {
            let svg = histogram(if log { Scale::Log } else { Scale::Linear }, &[&first, &second]);
            prop_assert!(Document::parse(&svg.text).is_ok());
            prop_assert!(!svg.text.contains("NaN") && !svg.text.contains("inf"), "{}", svg.text);
        }
    }
}
