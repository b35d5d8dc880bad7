//! Building blocks of the `softly` program.

pub mod font;
pub mod image;
pub mod report;
pub mod svg;
