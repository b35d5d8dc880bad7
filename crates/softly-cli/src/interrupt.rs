//! Ctrl-C.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use softly::job::{Job, Reporter};

use crate::progress::say;
use crate::ranks;

/// With this environment variable the end of the standard input, at the latest the death of the process at its other end, stops
/// long work as Ctrl-C does.
pub const STOP_WITH_PARENT: &str = "SOFTLY_STOP_WITH_PARENT";

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
    if std::env::var_os(STOP_WITH_PARENT).is_some() {
        std::thread::spawn(|| {
            let mut nothing = [0];
            // Nothing is ever written there: a read returns when the other end is closed.
            let _ = std::io::stdin().read(&mut nothing);
            STOP.store(true, Ordering::Relaxed);
        });
    }
}

/// Long work on `device` that Ctrl-C stops and `reporter` shows.
pub fn job<'a>(device: &'a Device, reporter: &'a dyn Reporter) -> Job<'a> {
    Job { device, stop: &STOP, reporter, ranks: ranks::here() }
}
