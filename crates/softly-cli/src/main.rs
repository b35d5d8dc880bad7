//! The `softly` program: train, sample and judge diffusion models that know their PDE softly.

use std::process::ExitCode;

/// Keeps freed memory: every operation allocates its result, and fresh pages from the system cost more than small ones.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Starts the program anew with the allocator told to keep freed pages for a second rather than ten milliseconds: a
/// training step is that long, and giving pages back within it costs a fifth of its time. The allocator reads its settings
/// before `main`, so they have to be in the environment of the process; one that is there already is respected.
#[cfg(unix)]
fn keep_pages() {
    use std::os::unix::process::CommandExt;
    const SETTING: &str = "MIMALLOC_PURGE_DELAY";
    if std::env::var_os(SETTING).is_none()
        && let Ok(program) = std::env::current_exe()
    {
        // Returns only if it fails, and then the program just goes on.
        let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).env(SETTING, "10000").exec();
    }
}

#[cfg(not(unix))]
fn keep_pages() {}

fn main() -> ExitCode {
    keep_pages();
    ExitCode::from(softly_cli::run(std::env::args_os().collect()))
}
