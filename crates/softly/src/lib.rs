//! Diffusion models of PDE solutions that know their PDE softly.

pub mod point_metrics;
pub mod wasserstein;
