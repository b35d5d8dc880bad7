//! The toy study: points on curves.

pub mod study;
