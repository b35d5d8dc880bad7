//! Failures of devices: back ends have no errors for a device that is not there, is lost or has no memory left, they panic.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use crate::error::{Error, Result};

/// Words of the first panic that was kept.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Whether the program runs [`guarded`].
static GUARDED: AtomicBool = AtomicBool::new(false);

static KEEPING: Once = Once::new();

fn keep(info: &PanicHookInfo<'_>) {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| words(info.payload()));
}

/// The words of the first panic on any thread; those of `panic` if none was kept.
fn first(panic: &(dyn Any + Send)) -> String {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_else(|| words(panic))
}

/// What `work` gives, or the words of the first panic on any thread, which is not printed.
pub(crate) fn heard<R>(work: impl FnOnce() -> R) -> std::result::Result<R, String> {
    let before = panic::take_hook();
    panic::set_hook(Box::new(keep));
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    panic::set_hook(before);
    result.map_err(|panic| first(&*panic))
}

/// A device other than the CPU is at work: in a program that is [`guarded`], panics are its errors from now on. With
/// `RUST_BACKTRACE` they are printed as well.
pub(crate) fn device_is_at_work() {
    if GUARDED.load(Ordering::Relaxed) && std::env::var_os("RUST_BACKTRACE").is_none() {
        KEEPING.call_once(|| panic::set_hook(Box::new(keep)));
    }
}

/// What `work` gives; an error if it panics after a device other than the CPU was put to work.
pub fn guarded<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    GUARDED.store(true, Ordering::Relaxed);
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        if !KEEPING.is_completed() {
            panic::resume_unwind(panic);
        }
        let why = format!("{}\nhint: {HINT}", first(&*panic));
        Err(Error::Failed { what: "the work on the device".into(), why })
    })
}

const HINT: &str = "if memory is short, choose smaller batches (train.batch, --batch); what was saved is whole: run the same command \
                    again, or with --device cpu";

/// What a panic says.
fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it panicked without a word");
    text.trim().to_string()
}
