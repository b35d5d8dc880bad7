//! Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use softly::job::{Job, Reporter};

use crate::progress::say;

/// Set by Ctrl-C; long work looks at it.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C asks long work to stop instead of killing the program; a second one kills.
pub fn catch_interrupt() {
    // Fails only if there is a handler already, and then that one serves.
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        say("stopping after this step; Ctrl-C again to quit at once");
    });
}

/// Long work on `device` that Ctrl-C stops and `reporter` shows.
pub fn job<'a>(device: &'a Device, reporter: &'a dyn Reporter) -> Job<'a> {
    Job { device, stop: &STOP, reporter }
}
