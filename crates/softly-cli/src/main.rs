//! The `softly` program: train, sample and judge diffusion models that know their PDE softly.

mod arguments;
mod bench_command;
mod circle_report;
mod commands;
mod data_commands;
mod denoise_command;
mod field_eval_command;
mod field_report;
mod progress;
mod reproduce_command;
mod solve_commands;
mod trainer;

use std::process::ExitCode;

use clap::Parser;

/// Keeps freed pages: every operation allocates its result, and fresh pages from the system cost more than small ones.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match commands::run(arguments::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress::error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
