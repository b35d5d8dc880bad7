//! Judging models: samples against data and equation, likelihood, loss by noise level, learned parameters.

pub mod denoising_loss;
pub mod explained;
pub mod field_eval;
pub mod fields;
pub mod held_out;
pub mod likelihood;
pub mod metric;
pub mod misfit;
pub mod neighbours;
pub mod paired;
pub mod parameter_interval;
pub mod point_eval;
pub mod points;
pub mod posterior;
pub mod quadrature;
pub mod stored;
pub mod wasserstein;
