//! Diffusion models of PDE solutions that know their PDE softly.
//!
//! Every method is a point on three axes: a [`denoiser::Denoiser`] (plain, or [`scd::SoftlyConstrained`]), an
//! [`objective::Objective`] (denoising score matching, or with PIDM's regulariser) and a [`sampler::Sampler`] (Heun, or
//! with guidance).

pub mod device;
pub mod error;
pub mod files;
pub mod job;
pub mod npy;
pub mod random;
pub mod tensors;
pub mod units;

mod nn;
mod constraint;
mod denoiser;
mod data;
mod sampler;
mod objective;
mod direction;
mod soft;
mod config;
mod model;
mod train;
mod evaluate;

pub use config::{BackboneConfig, Config, DataConfig, Layers, PRESETS, PreconditionKind, SigmaData};
pub use constraint::{ConstraintConfig, Norm, ParameterConfig, Region, ResidualConfig, ResidualSummary, Residuals, SoftConstraint};
pub use data::dataset::{Dataset};
pub use data::folder::{DatasetFolder, FieldEntry, Plan, Split, generate};
pub use data::generator::{Generator, Size};
pub use data::generator::curve::{Shape};
pub use data::inspect::{DataConstraint, SplitInspection, inspect};
pub use denoiser::{Denoiser, Estimates};
pub use denoiser::ddpm::{Ddpm, Label};
pub use denoiser::edm::{Edm, Precondition};
pub use direction::{Direction, DirectionKind};
pub use direction::basis::{Basis, Family, data_spectrum};
pub use direction::gradient::{Damping, GradientDirection, Scale, automatic_lambda};
pub use direction::kalman::{KalmanConfig, KalmanDirection};
pub use direction::newton::{NewtonConfig, NewtonDirection};
pub use direction::spectral::{SpectralDirection};
pub use evaluate::denoising_loss::{DenoisingLoss, DenoisingReport};
pub use evaluate::error_shares::{Directions, Explained, ExplainedReport};
pub use evaluate::field_eval::{AtLevel, Bits, FieldEval, FieldResult};
pub use evaluate::fields::{FieldEvaluator, FieldMetrics, OverSamples, PerSample, Reference};
pub use evaluate::held_out::{HeldOut};
pub use evaluate::likelihood::{Integrator, Likelihood, LikelihoodReport, PROGRESS_PER_SAMPLE, Probes};
pub use evaluate::paired::{PairedRatio};
pub use evaluate::parameter_interval::{ParameterInterval, ParameterIntervals, Verdict};
pub use evaluate::point_eval::{PointEval, Truth, cloud};
pub use evaluate::points::{PointMetrics, Summary};
pub use evaluate::wasserstein::{DistanceError, w1};
pub use model::blueprint::{Blueprint, DataSpec, Model};
pub use model::snapshot::{Snapshot, TensorFile};
pub use model::trained::{Trained, snapshot_file};
pub use nn::backbone::{Backbone};
pub use nn::mp_ops::{composed};
pub use nn::optimizer::{Optimizer};
pub use nn::parameter::{Parameters, Visitor};
pub use nn::unet::{UNet, UNetConfig};
pub use objective::{Estimation, LambdaSchedule, Loss, Objective, Regulariser, Weight};
pub use objective::noise::{NoiseDist};
pub use sampler::{Churn, Guidance, Observer, Sampler, Solver, Unobserved};
pub use soft::{Gamma, GammaInput, GammaOutput, Lambda, ScdConfig, SoftlyConstrained};
pub use soft::compliance::{Compliance};
pub use train::{Metrics, Progress, RunFolder, RunInfo, Training, run, run_training};

/// Compiles and runs the code in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
