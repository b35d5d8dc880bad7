//! `softly._core`: the library for Python. Arrays and text cross the border here; the names that users see are in `python/softly`.

mod callable;
mod constraint;
mod data;
mod error;
mod model;
mod program;
mod training;
mod watch;

use pyo3::prelude::*;

/// Keeps freed memory: every operation allocates its result, and fresh pages from the system cost more than small ones.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The part of softly that is written in Rust.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::callable::Callable;
    #[pymodule_export]
    use crate::constraint::{Constraint, names};
    #[pymodule_export]
    use crate::data::{Data, complete, import_files, open_folder, save};
    #[pymodule_export]
    use crate::error::Error;
    #[pymodule_export]
    use crate::model::{Model, load};
    #[pymodule_export]
    use crate::program::{run_program, version};
    #[pymodule_export]
    use crate::training::{adapt, train};
    #[pymodule_export]
    use crate::watch::{set_threads, threads};
}
