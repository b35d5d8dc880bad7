//! Diffusion models of PDE solutions that know their PDE softly.
pub mod parameter;
pub mod random;
