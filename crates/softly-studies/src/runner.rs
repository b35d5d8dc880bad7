//! Running the parts of a study side by side.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use softly::error::{Error, Result};
use softly::{Config, RunFolder};

/// Trains a configuration in a run folder, or goes on there, and tells the step it has reached; with a base, freezes its
/// denoiser and trains the rest. It is called from several threads at once.
pub type Trainer<'a> = dyn Fn(&Config, &RunFolder, Option<&RunFolder>, &mut dyn FnMut(u64)) -> Result<()> + Sync + 'a;

/// Works off `queue` with one worker per core. An item that `work` says is not done yet comes back at the end of the queue; a failure
/// stops the rest after their current item.
///
/// Each worker has a pool of one thread: workers that share a pool would steal each other's tiny kernels and wait for one
/// another.
pub(crate) fn side_by_side<T: Send>(queue: Vec<T>, work: impl Fn(&T) -> Result<bool> + Sync) -> Result<()> {
    let queue = Mutex::new(VecDeque::from(queue));
    let queue = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let worker = || -> Result<()> {
        loop {
            let next = queue().pop_front();
            let Some(item) = next else { return Ok(()) };
            if !work(&item)? {
                queue().push_back(item);
            }
        }
    };
    std::thread::scope(|scope| {
        let spawn = |_| {
            scope.spawn(|| match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
                Ok(pool) => pool.install(worker),
                Err(e) => Err(Error::input("--threads", format!("a worker could not be started: {e}"))),
            })
        };
        let workers: Vec<_> = (0..rayon::current_num_threads().max(1)).map(spawn).collect();
        let join = |w: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}
