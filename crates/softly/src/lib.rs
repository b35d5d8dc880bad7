//! Diffusion models of PDE solutions that know their PDE softly.
//!
//! Every method is a point on three axes:
//!
//! | axis | trait or type | plain | with the equation |
//! |---|---|---|---|
//! | denoiser | [`Denoiser`] | [`Edm`] around a [`Backbone`] | [`SoftlyConstrained`], along [`Direction`]s of a [`SoftConstraint`] |
//! | objective | [`Objective`] | denoising score matching | [`Regulariser`] |
//! | sampler | [`Sampler`], a [`Solver`] | Heun's steps | [`Guidance`] |
//!
//! Around them: data ([`Dataset`], [`DatasetFolder`], [`Generator`], [`Source`]), configurations ([`Config`], [`Layers`]), the
//! training loop ([`Training`], [`run`]), trained models ([`Trained`], [`Snapshot`]) and their judges ([`FieldEvaluator`],
//! [`Likelihood`], [`Explained`], [`parameter_intervals`]).
//!
//! The code lies in layers, one folder each; a layer uses only those before it. Names that other crates need are all here.

pub mod auto;
mod checks;
pub mod device;
pub mod error;
pub mod failure;
pub mod files;
mod host;
pub mod job;
mod memory;
pub mod noise;
pub mod npy;
pub mod profile;
pub mod random;
pub mod ranks;
pub mod statistics;
pub mod tensors;
pub mod text;
pub mod units;

mod nn;

mod constraint;

mod denoiser;

mod data;

mod sampler;

mod objective;

mod direction;

mod soft;

mod observe;

mod config;

mod model;

mod train;

mod evaluate;

// Denoisers: networks, EDM's and DDPM's wrapping, and the soft constraint on top.
pub use constraint::basis::{Basis, Family, data_spectrum};
pub use denoiser::ddpm::{Ddpm, Label};
pub use denoiser::edm::{Edm, Precondition};
pub use denoiser::external::{Estimator, External};
pub use denoiser::{Denoiser, Estimates};
pub use direction::compliance::Compliance;
pub use direction::config::{Damping, GammaInput, GammaOutput, KalmanConfig, NewtonConfig, Scale, ScdConfig, SolveFor};
pub use direction::gradient::{GradientDirection, automatic_lambda};
pub use direction::kalman::KalmanDirection;
pub use direction::newton::NewtonDirection;
pub use direction::spectral::SpectralDirection;
pub use direction::{BuildDirection, Direction, DirectionKind, Needs, Site};
pub use host::composed;
pub use nn::backbone::{Backbone, BackboneConfig, BuildBackbone, FieldShape};
pub use nn::external::ExternalConfig;
pub use nn::mlp::{LevelMlpConfig, MlpConfig};
pub use nn::operator::{Operator, OperatorConfig};
pub use nn::optimizer::{Adam, Ema, Optimizer, Schedule};
pub use nn::parameter::{Parameter, Parameters, Visitor};
pub use nn::precision::Precision;
pub use nn::recompute::recomputing;
pub use nn::unet::{UNet, UNetConfig};
pub use soft::SoftlyConstrained;
pub use soft::gamma::Gamma;
pub use soft::parameter_fit::{ParameterFit, denoised};

// Constraints.
pub use constraint::SoftConstraint;
pub use constraint::config::{ConstraintConfig, ParameterConfig, ResidualConfig, Residuals, constraint_toml};
pub use constraint::norm::{Norm, ResidualSummary};
pub use softly_pde::region::Region;
pub use softly_pde::stencil::Stencil;

// Objectives.
pub use objective::noise::NoiseDist;
pub use objective::regulariser::{Estimation, LambdaSchedule, Regulariser};
pub use objective::{Batch, Loss, Objective, Term, Weight};

// Samplers.
pub use sampler::guidance::dps::Dps;
pub use sampler::guidance::fundps::Fundps;
pub use sampler::guidance::{Guidance, GuidanceConfig, Moment, ObservedNodes, Observing};
pub use sampler::sigma_grid::{SigmaGrid, Spacing};
pub use sampler::solver::{Solver, SolverKind, Step};
pub use sampler::{Churn, Observer, Projection, Sampler, Target, Unobserved};

// Measurements.
pub use observe::cocogen::CoCoGen;
pub use observe::conditioning::{Condition, Conditioning, Given, Knowledge, Needs as ConditioningNeeds};
pub use observe::diffusion_pde::DiffusionPde;
pub use observe::dps::Dps as SensorDps;
pub use observe::errors::Errors;
pub use observe::fun_dps::FunDps;
pub use observe::kalman::Kalman;
pub use observe::kriging::{Kriging, Moments as DataMoments};
pub use observe::mmps::{Jfps, Mmps, MomentMatched};
pub use observe::noise::Noise;
pub use observe::observations::{Measured, Observations};
pub use observe::observed::Observed;
pub use observe::pdm::Pdm;
pub use observe::place::Extent;
pub use observe::projected::{Eci, Pcfm, Ppr};
pub use observe::reading::{
    Cases, Reading, of_array as observed_array, read as read_observations, together as observed_together,
};

// Data.
pub use data::audit::{DataAudit, audit, audit_dataset, audit_stride, fit_dataset};
pub use data::audit_text;
pub use data::complete::complete;
pub use data::config::{DataConfig, Normalise};
pub use data::dataset::Dataset;
pub use data::draft::HandMade;
pub use data::fingerprint::Blocks;
pub use data::folder::{DatasetFolder, Description, FieldEntry};
pub use data::format;
pub use data::generator::burgers::Burgers;
pub use data::generator::curve::Shape;
pub use data::generator::darcy::Darcy;
pub use data::generator::darcy_threshold::DarcyThreshold;
pub use data::generator::helmholtz::Helmholtz;
pub use data::generator::points::Points;
pub use data::generator::poisson::Poisson;
pub use data::generator::{Comparison, FieldSpec, Generator, GeneratorConfig, Recipe, Reference, SampleMaker, Size};
pub use data::import::Imported;
pub use data::in_memory::InMemory;
pub use data::inspect::{DataConstraint, SplitInspection, inspect};
pub use data::split::Split;
pub use data::values::Values;
pub use data::writer::{Plan, Source, generate, help_generate, write};

// Configurations, models and training.
pub use config::layers::{Layers, REDUCED, is_reduced};
pub use config::presets::{FIELDS, PRESETS};
pub use config::reference::{reference_page, schema_text};
pub use config::source::ConfigSource;
pub use config::{Config, DenoiserConfig, PreconditionKind, Recompute, TrainConfig};
pub use model::Model;
pub use model::blueprint::{Blueprint, DataSpec};
pub use model::event_file::{EVENT_FILE, EventWriter};
pub use model::posterior::{Posterior, conditioned};
pub use model::run_folder::{Metrics, RunFolder, RunInfo};
pub use model::snapshot::Snapshot;
pub use model::tensor_file::TensorFile;
pub use model::trained::{Draw, Trained, snapshot_file};
pub use train::Training;
pub use train::run::run;
pub use train::starter::{Start, Starter};

// Evaluation.
pub use evaluate::denoising_loss::{DenoisingLoss, DenoisingReport};
pub use evaluate::explained::{Directions, Explained, ExplainedLevel, ExplainedReport};
pub use evaluate::field_eval::{Bits, FieldEval, FieldResult};
pub use evaluate::fields::{FieldComparison, FieldEvaluator, FieldMetrics, FormulaResidual, PerSample, ReferenceRow};
pub use evaluate::held_out::HeldOut;
pub use evaluate::likelihood::{Integrator, Likelihood, LikelihoodReport, PROGRESS_PER_SAMPLE, Probes};
pub use evaluate::metric::{METRICS, Sample, SampleMetric};
pub use evaluate::misfit::{Misfit, misfit};
pub use evaluate::neighbours::Nearest;
pub use evaluate::paired::{PairedDifference, PairedRatio};
pub use evaluate::parameter_interval::{Identification, ParameterInterval, intervals_of, parameter_intervals};
pub use evaluate::point_eval::{PointEval, Truth, cloud};
pub use evaluate::points::{Cloud, PointMetrics};
pub use evaluate::posterior::{
    FieldPosterior, INTERVALS, PosteriorJudge, PosteriorMetrics, RandomSensors, disturbed, node_moments,
};
pub use evaluate::stored::{MadeOf, StoredFields, read_fields, read_stored, stored_file, write_fields, write_stored};
pub use evaluate::wasserstein::{DistanceError, w1};

/// Compiles and runs the code in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
