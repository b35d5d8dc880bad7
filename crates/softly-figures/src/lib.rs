//! Figures and pages of results: line charts ([`charts`]), histograms ([`histogram`]), points in the plane
//! ([`scatter`]), fields on a grid with colour bars ([`field_grid`]), and HTML pages around them ([`page`]).
//!
//! Every figure is an [`svg::Svg`]; [`raster::svg_to_png`] makes pixels of it. Numbers and names go in, text and bytes
//! come out: nothing here knows what a model or an equation is.
//!
//! ```
//! use softly_figures::charts::{Axes, LineChart, Point, Series};
//! use softly_figures::raster::svg_to_png;
//!
//! let points = (1..=9).map(|k| Point::exact(f64::from(k), 1.0 / f64::from(k))).collect();
//! let series = vec![Series { name: "1/σ".to_owned(), colour: 0, points }];
//! let axes = Axes { x_label: "σ".to_owned(), ..Axes::default() };
//! let svg = LineChart { axes, series, ..LineChart::default() }.svg();
//! let png = svg_to_png(&svg.to_string(), 2.0)?;
//! # assert!(png.starts_with(b"\x89PNG"));
//! # Ok::<(), softly_figures::picture::PictureError>(())
//! ```

pub mod axis;
pub mod charts;
pub mod field_grid;
pub mod histogram;
pub mod page;
pub mod picture;
pub mod raster;
pub mod scatter;
pub mod svg;
