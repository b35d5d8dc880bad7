//! Data: samples of fields on a grid, their folders, and the generators that make them.

pub mod config;
pub mod dataset;
pub mod folder;
pub mod format;
pub mod generator;
pub mod import;
pub mod inspect;
pub mod split;
pub mod writer;
