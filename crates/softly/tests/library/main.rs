//! Tests of the library through its public names, one file per subject.
//!
//! They are one program: the tensor library is large, and every further program would link it again.

mod adapt;
mod blueprint;
mod common;
mod compliance;
mod constraint;
mod dataset;
mod denoising_loss;
mod directions;
mod explained;
mod field_metrics;
mod formats;
mod function_noise;
mod fundps;
mod generators;
mod hand_made;
mod layers;
mod likelihood;
mod memory;
mod objective;
mod observations;
mod operator;
mod outside;
mod parameter_interval;
mod parameters;
mod parity;
mod posterior;
mod ranks;
mod sampler;
mod snapshot;
mod soft_constraint;
mod solvers;
mod training;
mod transfers;
mod unet;
