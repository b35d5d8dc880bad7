//! What fields are, given measurements of them: observations, and methods that condition a denoiser on them.
//!
//! | name | idea | gradients of the network |
//! |---|---|---|
//! | `kalman` | the estimate is updated by sensors and equation at every noise level, with the measured covariance of its errors | none |
//! | `kriging` | the Gaussian with the training data's mean and covariance, given the sensors; no network | none |
//! | `dps` | after each step, down the gradient of the misfit | one per step |
//! | `diffusionpde`, `fundps` | the same through both network calls of a step, sensors first, then the equation | two per step |
//! | `mmps`, `jfps` | Kalman's update with the denoiser's Jacobian for a covariance, or a multiple of the identity | several per call, none |
//! | `eci`, `pcfm`, `ppr` | the estimate is projected onto sensors (and equation), then the noise is put back, or fresh noise | none |
//! | `pdm` | Langevin steps, each followed by a projection of the noisy state | none |
//! | `cocogen` | sensors are put into the estimate, and the last steps descend along the equation | none |
//!
//! A new method is one file here with an implementation of [`conditioning::Condition`], and one line in the list at the end of
//! `conditioning.rs`.

pub mod cocogen;
pub mod conditioning;
pub mod diffusion_pde;
pub mod dps;
pub mod errors;
pub mod fun_dps;
mod guided;
pub mod kalman;
pub mod kriging;
mod measure;
pub mod mmps;
pub mod noise;
pub mod observations;
pub mod observed;
pub mod pdm;
pub mod place;
pub mod projected;
mod projection;
pub mod reading;
mod rows;
mod sensors;
