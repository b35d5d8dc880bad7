//! Building blocks of the `softly` program.

pub mod axis;
pub mod charts;
pub mod field_figures;
pub mod field_grid;
pub mod font;
pub mod histogram;
pub mod picture;
pub mod report;
pub mod scatter;
pub mod svg;
