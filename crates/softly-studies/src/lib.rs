//! The studies of the paper and their reports: what is trained, how it is judged, tables, targets and pages.
//!
//! [`run_circle`] runs the toy study (points on curves), [`run_fields`] the studies of fields (Darcy flow and the Helmholtz
//! equation). Both take a [`Trainer`], which trains one configuration in a run folder, and leave a table and a page.
//! [`run_inverse`] runs the study of fields from measurements, [`run_noisy`] the one of noisy training data.
//! [`write_runs_page`] makes the page of any trainings, with a verdict on their constraints.

mod circle;
mod fields;
mod inverse;
mod method;
mod noisy;
mod paper;
mod runner;
mod runs;
mod scale;
mod sweep;

pub use circle::study::{
    CellResult, CircleStudy, Floor, SeedMean, StudyTable, cell_result, run_circle, run_circle_cells,
};
pub use circle::{report as circle_report, study::Cell as CircleCell};
pub use fields::ablation::Ablation;
pub use fields::figures::coordinates;
pub use fields::report as fields_report;
pub use fields::run::{field_cells, run_field_cells, run_fields};
pub use fields::study::{Cell, Claim, Equation, FieldStudy, Variant};
pub use fields::table::{FieldTable, Row, Verdict};
pub use fields::targets::Target;
pub use inverse::page::{PosteriorView, posterior_figures, posterior_page};
pub use inverse::report as inverse_report;
pub use inverse::study::{InverseStudy, InverseTable, run_inverse, run_inverse_cells};
pub use inverse::table::{PosteriorRow, posterior_table};
pub use method::{Correction, Kind, Method, Trained};
pub use noisy::report as noisy_report;
pub use noisy::study::{NoisyRow, NoisyStudy, NoisyTable, Way, run_noisy, run_noisy_cells};
pub use runner::Trainer;
pub use runs::write as write_runs_page;
pub use scale::StudyScale;
pub use sweep::{CellState, Selection, Shard};
