//! The studies.

mod circle;
mod fields;
mod scale;
