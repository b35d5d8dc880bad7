//! Long work for a Python caller: it runs on threads of its own while the caller's thread answers calls of Python functions,
//! looks for signals and shows the progress.
//!
//! Functions are called on the caller's thread, one call at a time: they see its thread-local state, and Ctrl-C reaches them.

use std::any::Any;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use rayon::ThreadPool;
use softly::error::{Error, Result};
use softly::job::{Job, Reporter};

use crate::callable::{Callable, Request};
use crate::error::{raise, refuse};

/// How often the caller's thread looks for signals.
const LOOK: Duration = Duration::from_millis(50);
/// How often progress is shown.
const SHOW: Duration = Duration::from_millis(200);

/// A lock that a panic elsewhere does not break.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Python functions of this thread that are being called by softly.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Threads that work; 0 for as many as there are processors.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Pools by process, depth and size. A forked process has no threads of its parent, and work that a function asks for while
/// softly waits for the function needs threads that do not wait.
type Pools = HashMap<(u32, usize, usize), Arc<ThreadPool>>;

/// The threads that work for this caller.
pub fn pool() -> PyResult<Arc<ThreadPool>> {
    static POOLS: Mutex<Option<Pools>> = Mutex::new(None);
    let count = THREADS.load(Ordering::Relaxed);
    let key = (std::process::id(), DEPTH.get(), count);
    let mut pools = locked(&POOLS);
    let pools = pools.get_or_insert_with(HashMap::new);
    if let Some(pool) = pools.get(&key) {
        return Ok(pool.clone());
    }
    let built = rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(|i| format!("softly {i}")).build();
    let pool = Arc::new(built.map_err(|e| refuse("threads", e, "use fewer: softly.set_threads(1)"))?);
    pools.insert(key, pool.clone());
    Ok(pool)
}

/// Lets softly compute on `count` threads from now on; None for as many as there are processors.
#[pyfunction]
#[pyo3(signature = (count=None))]
pub fn set_threads(count: Option<usize>) -> PyResult<()> {
    if matches!(count, Some(count) if !(1..=1024).contains(&count)) {
        return Err(refuse("threads", format!("expected 1 to 1024 threads, found {}", count.unwrap_or(0)), ""));
    }
    THREADS.store(count.unwrap_or(0), Ordering::Relaxed);
    Ok(())
}

/// The number of threads that softly computes on.
#[pyfunction]
pub fn threads() -> PyResult<usize> {
    Ok(pool()?.current_num_threads())
}

/// Where working threads leave their calls of a Python function.
#[derive(Default)]
pub struct Board {
    requests: Mutex<VecDeque<Request>>,
    bell: Condvar,
}

impl Board {
    /// Leaves a call.
    pub fn push(&self, request: Request) {
        locked(&self.requests).push_back(request);
        self.bell.notify_all();
    }

    /// The next call; none when the work is `done` or when it is time to look for signals.
    fn wait(&self, done: &AtomicBool) -> Option<Request> {
        let requests = locked(&self.requests);
        let idle = |requests: &mut VecDeque<Request>| requests.is_empty() && !done.load(Ordering::Acquire);
        let (mut requests, _) =
            self.bell.wait_timeout_while(requests, LOOK, idle).unwrap_or_else(PoisonError::into_inner);
        requests.pop_front()
    }

    fn ring(&self) {
        // Under the lock, so that nobody goes to sleep between looking and being woken.
        let _requests = locked(&self.requests);
        self.bell.notify_all();
    }
}

/// Progress as working threads tell it.
#[derive(Default)]
struct Tally {
    done: AtomicU64,
    total: AtomicU64,
    status: Mutex<String>,
    notes: Mutex<Vec<String>>,
}

impl Reporter for Tally {
    fn begin(&self, total: u64, done: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }

    fn advance(&self, units: u64) {
        self.done.fetch_add(units, Ordering::Relaxed);
    }

    fn note(&self, text: &str) {
        locked(&self.notes).push(text.to_string());
    }

    fn status(&self, text: &str) {
        *locked(&self.status) = text.to_string();
    }
}

impl Tally {
    /// Shows the progress in a Python object with `note(text)` and `show(done, total, status)`. A display that fails is no reason
    /// to stop.
    fn show(&self, display: &Bound<'_, PyAny>) {
        for note in locked(&self.notes).drain(..) {
            let _ = display.call_method1("note", (note,));
        }
        let status = locked(&self.status).clone();
        let numbers = [&self.done, &self.total].map(|number| number.load(Ordering::Relaxed));
        let _ = display.call_method1("show", (numbers[0], numbers[1], status));
    }
}

/// What the caller's thread has seen.
#[derive(Default)]
struct Seen {
    /// The exception of a Python function.
    failure: Option<PyErr>,
    /// Ctrl-C.
    interrupt: Option<PyErr>,
}

impl Seen {
    /// Answers a call of `callable`. Ctrl-C within it is kept for later, and the function called again, so that the work can
    /// stop where it leaves nothing half done.
    fn answer(&mut self, py: Python<'_>, callable: &Callable, request: Request, stop: &AtomicBool) {
        DEPTH.set(DEPTH.get() + 1);
        let mut answer = callable.answer(py, &request);
        if let Err(error) = &answer
            && error.is_instance_of::<PyKeyboardInterrupt>(py)
            && self.interrupt.is_none()
        {
            stop.store(true, Ordering::Relaxed);
            self.interrupt = Some(error.clone_ref(py));
            answer = callable.answer(py, &request);
        }
        DEPTH.set(DEPTH.get() - 1);
        let answer = answer.map_err(|error| {
            stop.store(true, Ordering::Relaxed);
            self.failure.get_or_insert(error);
        });
        // Nobody waits for it if the work has failed elsewhere.
        let _ = request.reply.send(answer.ok());
    }
}

/// Runs `work` while the caller's thread answers calls of `callable` and shows the progress in `display`.
pub fn watch<T: Send>(
    py: Python<'_>,
    callable: Option<&Callable>,
    display: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Job<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let pool = pool()?;
    let lonely = Board::default();
    let board = callable.map_or(&lonely, |callable| &*callable.board);
    let (stop, done, tally) = (AtomicBool::new(false), AtomicBool::new(false), Tally::default());
    let mut seen = Seen::default();
    let outcome = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let device = Device::flex();
            let job = Job { stop: &stop, reporter: &tally, ..Job::silent(&device) };
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.install(|| work(&job))));
            done.store(true, Ordering::Release);
            board.ring();
            outcome
        });
        let mut shown = Instant::now();
        while !done.load(Ordering::Acquire) {
            let request = py.detach(|| board.wait(&done));
            if let (Some(request), Some(callable)) = (request, callable) {
                seen.answer(py, callable, request, &stop);
            }
            if let Err(error) = py.check_signals() {
                stop.store(true, Ordering::Relaxed);
                seen.interrupt.get_or_insert(error);
            }
            if let Some(display) = display
                && shown.elapsed() > SHOW
            {
                tally.show(display);
                shown = Instant::now();
            }
        }
        py.detach(|| worker.join())
    });
    if let Some(display) = display {
        tally.show(display);
    }
    finish(py, outcome.unwrap_or_else(Err), seen)
}

/// The result of watched work, or the exception that ended it.
fn finish<T>(py: Python<'_>, outcome: std::result::Result<Result<T>, Box<dyn Any + Send>>, seen: Seen) -> PyResult<T> {
    if let Some(failure) = seen.failure {
        return Err(failure);
    }
    if let Some(interrupt) = seen.interrupt {
        if let Ok(Err(Error::Interrupted { hint })) = &outcome {
            // The words say how to go on; other exceptions of signal handlers stay what they are.
            let plain = interrupt.is_instance_of::<PyKeyboardInterrupt>(py);
            return Err(if plain { PyKeyboardInterrupt::new_err(hint.clone()) } else { interrupt });
        }
        return Err(interrupt);
    }
    match outcome {
        Ok(result) => result.map_err(raise),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let why = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("an unknown error");
            Err(raise(Error::Failed { what: "the work".into(), why: format!("{why} (please report this)") }))
        }
    }
}
