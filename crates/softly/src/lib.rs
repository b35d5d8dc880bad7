//! Diffusion models of PDE solutions that know their PDE softly.
//!
//! Every method is a point on three axes: a [`denoiser::Denoiser`] (plain, or [`scd::SoftlyConstrained`]), an
//! [`objective::Objective`] (denoising score matching, or with PIDM's regulariser) and a [`sampler::Sampler`] (Heun, or
//! with guidance).

pub mod absolute_algebra;
pub mod circle_study;
pub mod compliance;
pub mod config;
pub mod constraint;
mod constraint_jacobian;
pub mod dataset;
pub mod dataset_folder;
pub mod ddpm;
pub mod denoiser;
pub mod denoising_loss;
pub mod device;
pub mod direction;
pub mod edm2_file;
pub mod error;
pub mod explained;
pub mod fast_basis;
pub mod field_ablation;
pub mod field_eval;
pub mod field_metrics;
pub mod field_run;
pub mod field_study;
pub mod field_table;
pub mod field_targets;
pub mod files;
pub mod generate;
pub mod generators;
pub mod gradient_direction;
pub mod held_out;
pub mod inspect;
pub mod kalman_direction;
pub mod likelihood;
pub mod mlp;
pub mod model;
pub mod mp_ops;
pub mod neighbours;
pub mod newton_direction;
pub mod noise;
mod normal_equations;
pub mod npy;
pub mod objective;
pub mod ops;
pub mod optimizer;
pub mod paired;
pub mod parameter;
pub mod parameter_interval;
pub mod point_eval;
pub mod point_metrics;
pub mod quadrature;
pub mod random;
pub mod reporter;
mod runtime_parameter;
pub mod sampler;
pub mod scd;
mod side_by_side;
mod smooth_field;
pub mod snapshot;
pub mod spectral_direction;
pub mod study_scale;
pub mod tensor_algebra;
pub mod toy;
pub mod train;
pub mod true_equation;
pub mod unet;
pub mod units;
pub mod wasserstein;

/// Compiles and runs the code in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
