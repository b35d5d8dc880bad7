//! What can go wrong, said so that a user can mend it.

use std::path::{Path, PathBuf};

pub use softly_pde::nearest::nearest;

/// The library's error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that was handed in is not usable: usage, configuration or data.
    #[error("{place}: {problem}{}", hint_line(.hint))]
    Input {
        /// The file, field, key or flag at fault.
        place: String,
        /// What was expected and what was found.
        problem: String,
        /// What to do about it; may be empty.
        hint: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, e.g. "write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Training produced numbers that are not finite.
    #[error("training diverged at step {step}: loss {loss}\nhint: {hint}")]
    Diverged {
        /// The step that failed.
        step: u64,
        /// The loss there.
        loss: f64,
        /// The last good checkpoint and what to change.
        hint: String,
    },
    /// A sample came out as a number that is not finite.
    #[error("{place}: sample {sample} came out as {value}{}", hint_line(.hint))]
    NotFinite {
        /// The model that drew it.
        place: String,
        /// Which one.
        sample: u64,
        /// The number.
        value: f64,
        /// What to do about it.
        hint: String,
    },
    /// A part of the work failed.
    #[error("{what} failed: {why}")]
    Failed {
        /// Which part.
        what: String,
        /// What it said.
        why: String,
    },
    /// A rank failed; all ranks have heard of it.
    #[error("rank {rank}: {text}")]
    OnRank {
        /// Which one.
        rank: usize,
        /// What it said.
        text: String,
        /// Its exit code.
        code: u8,
    },
    /// The user asked to stop.
    #[error("interrupted{}", hint_line(.hint))]
    Interrupted {
        /// How to go on.
        hint: String,
    },
}

fn hint_line(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("\nhint: {hint}") }
}

/// The library's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An input error without a hint.
    pub fn input(place: impl ToString, problem: impl ToString) -> Self {
        Self::Input { place: place.to_string(), problem: problem.to_string(), hint: String::new() }
    }

    /// Adds what to do about an input error.
    #[must_use]
    pub fn hint(mut self, text: impl ToString) -> Self {
        if let Self::Input { hint, .. } = &mut self {
            *hint = text.to_string();
        }
        self
    }

    /// Turns a system error on `path` into ours.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// The program's exit code for this error: 1 the work failed, 2 bad input, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Input { .. } | Self::NotFinite { .. } => 2,
            // A file that cannot be read is bad input; a file that cannot be written (full disk) is failed work.
            Self::Io { action, .. } => 1 + u8::from(*action == "read"),
            Self::Diverged { .. } | Self::Failed { .. } => 1,
            Self::OnRank { code, .. } => *code,
            Self::Interrupted { .. } => 130,
        }
    }
}
