//! Fields from measurements: tables and pictures of posteriors.

pub mod page;
pub mod table;
