//! The `softly` program as a library: the binary and the Python package start it with [`run`].

mod arguments;
mod commands;
mod configuration;
mod interrupt;
mod output;
mod progress;
mod ranks;
mod sampling;
mod trainer;

use std::ffi::OsString;

use clap::Parser;

pub use configuration::run_info_of;
pub use trainer::{PROGRAM, Program};

/// Runs the program with the words of a command line, the program's name first; returns its exit code.
pub fn run(words: Vec<OsString>) -> u8 {
    let said = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    // Fails only if the program was run before in this process, and then its first words stay.
    let _ = configuration::WORDS.set(said);
    let arguments = match arguments::Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and versions are asked for; a closed pipe is not an error.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    commands::run(arguments)
}
