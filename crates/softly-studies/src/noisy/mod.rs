//! Training data with noise: what the direct fit of a parameter makes of them, and what a denoiser does.

pub mod report;
pub mod study;
