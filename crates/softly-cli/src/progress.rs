//! What the program says on stderr: progress and errors.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use softly::error::Result;
use softly::job::Reporter;

use crate::ranks;

/// The exit code of an outcome, after its error was printed with its hint.
pub fn code(outcome: Result<()>) -> u8 {
    let Err(error) = outcome else { return 0 };
    say(&format!("\x1b[1;31merror:\x1b[0m {error}"));
    error.exit_code()
}

/// Prints a line to stderr, on the leading rank.
pub fn say(text: &str) {
    if ranks::here().leads() {
        anstream::eprintln!("{text}");
    }
}

/// A bar on a terminal, a status line every few seconds otherwise.
pub struct Bar {
    line: ProgressBar,
    plain: Option<Mutex<Plain>>,
    already: AtomicU64,
    unit: &'static str,
}

/// When the last plain line was printed.
struct Plain {
    start: Instant,
    last: Instant,
}

impl Bar {
    /// A bar over `total` units of `unit`.
    pub fn new(total: u64, unit: &'static str) -> Self {
        let terminal = std::io::stderr().is_terminal() && ranks::here().leads();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let template = format!(
            "{{bar:30}} {{percent:>3}} %  {{human_pos}}/{{human_len}} {unit}  {{per_sec}}  {{elapsed}} gone, {{eta}} left  {{msg}}"
        );
        bar.set_style(ProgressStyle::with_template(&template).expect("the template is valid"));
        let now = Instant::now();
        let plain = (!terminal).then(|| Mutex::new(Plain { start: now, last: now }));
        Self { line: bar, plain, already: AtomicU64::new(0), unit }
    }

    /// The work is done.
    pub fn finish(&self) {
        self.line.finish_and_clear();
    }

    /// Prints a plain line if there is no terminal and some time has passed.
    fn plain_line(&self) {
        let Some(plain) = &self.plain else { return };
        let Ok(mut plain) = plain.lock() else { return };
        if plain.last.elapsed() < Duration::from_secs(10) {
            return;
        }
        plain.last = Instant::now();
        let (position, total) = (self.line.position(), self.line.length().unwrap_or(0));
        let gone = plain.start.elapsed().as_secs_f64();
        let fresh = position.saturating_sub(self.already.load(Ordering::Relaxed)) as f64;
        let rate = fresh / gone;
        let left = if fresh > 0.0 { total.saturating_sub(position) as f64 / rate } else { 0.0 };
        let message = self.line.message();
        say(&format!(
            "{:5.1} %  {position}/{total} {}  {rate:.0}/s  {} left  {message}",
            100.0 * position as f64 / total.max(1) as f64,
            self.unit,
            HumanDuration(Duration::from_secs_f64(left))
        ));
    }
}

impl Reporter for Bar {
    fn begin(&self, total: u64, done: u64) {
        self.line.set_length(total);
        self.line.set_position(done);
        self.line.reset_eta();
        self.already.store(done, Ordering::Relaxed);
    }

    fn advance(&self, units: u64) {
        self.line.inc(units);
        self.plain_line();
    }

    fn note(&self, text: &str) {
        self.line.suspend(|| say(text));
    }

    fn status(&self, text: &str) {
        self.line.set_message(text.to_string());
    }
}
