//! Errors as Python has them.

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(softly, Error, PyValueError, "What softly refuses, or what went wrong, and what to do about it.");

/// The library's error for Python, with the program's text.
pub fn raise(error: softly::error::Error) -> PyErr {
    match error {
        softly::error::Error::Interrupted { hint } => PyKeyboardInterrupt::new_err(hint),
        other => Error::new_err(other.to_string()),
    }
}

/// An input error for Python.
pub fn refuse(place: &str, problem: impl ToString, hint: &str) -> PyErr {
    raise(softly::error::Error::input(place, problem).hint(hint))
}
