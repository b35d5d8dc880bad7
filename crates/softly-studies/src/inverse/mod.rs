//! Fields from measurements: the study of every method on one denoiser, tables and pictures of posteriors.

pub mod page;
pub mod report;
pub mod study;
pub mod table;
