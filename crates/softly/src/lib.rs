//! Diffusion models of PDE solutions that know their PDE softly.
