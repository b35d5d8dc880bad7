//! The toy study: points on curves.

pub mod report;
pub mod study;
