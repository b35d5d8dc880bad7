//! The `softly` program, started from Python.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

/// The version of the package.
#[pyfunction]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Runs the program with the words of a command line, its name first; `python` starts its children as `python -m softly`. Returns
/// the exit code.
#[pyfunction]
pub fn run_program(py: Python<'_>, words: Vec<OsString>, python: PathBuf) -> u8 {
    // Fails only if it was said before.
    let _ = softly_cli::PROGRAM.set((python, ["-m", "softly"].map(OsString::from).to_vec()));
    py.detach(|| softly_cli::run(words))
}
