//! Long work: where it computes, on how many ranks, whether it should stop, and who hears of its progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;

use crate::error::{Error, Result};
use crate::ranks::{Alone, Ranks};

/// A listener to the progress of long work, counted in units that take about as long as one another.
pub trait Reporter: Sync {
    /// The work has this many units in all, some of which are `done` already.
    fn begin(&self, total: u64, done: u64);
    /// `units` more are done.
    fn advance(&self, units: u64);
    /// Something worth a line.
    fn note(&self, text: &str);
    /// A few words beside the progress, such as the newest loss.
    fn status(&self, _text: &str) {}
}

/// A reporter that says nothing.
pub struct Silent;

impl Reporter for Silent {
    fn begin(&self, _total: u64, _done: u64) {}
    fn advance(&self, _units: u64) {}
    fn note(&self, _text: &str) {}
}

/// The circumstances of long work.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Where tensors live.
    pub device: &'a Device,
    /// Set when the work should stop.
    pub stop: &'a AtomicBool,
    /// Who hears of the progress.
    pub reporter: &'a dyn Reporter,
    /// The processes that share the work.
    pub ranks: &'static dyn Ranks,
}

impl<'a> Job<'a> {
    /// Work on `device` that nobody watches or stops.
    pub fn silent(device: &'a Device) -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Self { device, stop: &NEVER, reporter: &Silent, ranks: &Alone }
    }

    /// The same work with another listener.
    #[must_use]
    pub fn reporting_to(self, reporter: &'a dyn Reporter) -> Self {
        Self { reporter, ..self }
    }

    /// Whether the work should stop.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// An error if the work should stop; `hint` says how to go on.
    pub fn go_on(&self, hint: &str) -> Result<()> {
        if self.stopped() { Err(Error::Interrupted { hint: hint.into() }) } else { Ok(()) }
    }
}

/// Hint for work that leaves nothing behind when it is stopped.
pub(crate) const NOTHING_WRITTEN: &str = "nothing was written; run the same command again";

/// A reporter that turns the units of a part into units of the whole: one of the part is `factor` of the whole.
pub struct Scaled<'a> {
    reporter: &'a dyn Reporter,
    factor: f64,
    /// Fractions of a unit that are still to be told.
    rest: Mutex<f64>,
}

impl<'a> Scaled<'a> {
    /// A listener to a part of the work that `reporter` hears of.
    pub fn new(reporter: &'a dyn Reporter, factor: f64) -> Self {
        Self { reporter, factor, rest: Mutex::new(0.0) }
    }
}

impl Reporter for Scaled<'_> {
    fn begin(&self, _total: u64, _done: u64) {}

    fn advance(&self, units: u64) {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        *rest += units as f64 * self.factor;
        let whole = rest.floor();
        *rest -= whole;
        if whole > 0.0 {
            self.reporter.advance(whole as u64);
        }
    }

    fn note(&self, text: &str) {
        self.reporter.note(text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Reporter for Counter {
        fn begin(&self, _: u64, _: u64) {}
        fn advance(&self, units: u64) {
            self.0.fetch_add(units, Ordering::Relaxed);
        }
        fn note(&self, _: &str) {}
    }

    #[test]
    fn scaled_units_add_up_to_the_whole() {
        for (factor, units, expected) in [(0.25, 400, 100), (3.0, 7, 21), (0.1, 1000, 100)] {
            let counter = Counter::default();
            let scaled = Scaled::new(&counter, factor);
            (0..units).for_each(|_| scaled.advance(1));
            assert!(counter.0.load(Ordering::Relaxed).abs_diff(expected) <= 1, "{factor}");
        }
    }

    #[test]
    fn a_stopped_job_says_how_to_go_on() {
        let (device, stop) = (Device::flex(), AtomicBool::new(false));
        let job = Job { stop: &stop, ..Job::silent(&device) };
        job.go_on("x").unwrap();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(job.go_on("run it again").unwrap_err().exit_code(), 130);
    }
}
