//! Diffusion models of PDE solutions that know their PDE softly.
//!
//! Every method is a point on three axes: a [`denoiser::Denoiser`] (plain, or [`scd::SoftlyConstrained`]), an
//! [`objective::Objective`] (denoising score matching, or with PIDM's regulariser) and a [`sampler::Sampler`] (Heun, or
//! with guidance).

pub mod circle_study;
pub mod config;
pub mod constraint;
pub mod dataset;
pub mod dataset_folder;
pub mod ddpm;
pub mod denoiser;
pub mod device;
pub mod error;
pub mod files;
pub mod generate;
pub mod generators;
pub mod inspect;
pub mod mlp;
pub mod model;
pub mod noise;
pub mod npy;
pub mod objective;
pub mod ops;
pub mod optimizer;
pub mod parameter;
pub mod point_eval;
pub mod point_metrics;
pub mod random;
pub mod reporter;
pub mod sampler;
pub mod scd;
pub mod snapshot;
pub mod tensor_algebra;
pub mod toy;
pub mod train;
pub mod units;
pub mod wasserstein;

/// Compiles and runs the code in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
