//! Data: samples of fields on a grid, their folders, and the generators that make them.

pub mod array_file;
pub mod audit;
pub mod audit_text;
pub mod complete;
pub mod config;
pub mod dataset;
pub mod draft;
pub mod fingerprint;
pub mod folder;
pub mod format;
pub mod generator;
pub mod import;
pub mod in_memory;
pub mod inspect;
pub mod split;
pub mod values;
pub mod writer;
