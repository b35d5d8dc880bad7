//! The studies of fields: Darcy flow and the Helmholtz equation.

pub mod ablation;
pub mod figures;
pub mod report;
pub mod run;
pub mod study;
pub mod table;
pub mod targets;
