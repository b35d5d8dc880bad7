//! Work on parts of a batch, each part on a thread of its own from beginning to end.
//!
//! Threads that share every kernel meet at the end of every kernel, and some kernels compute things twice so that both have them. A
//! part in a lane, a pool of one thread, knows nothing of the others.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::profile::{self, Part};

static LANES: Mutex<Vec<Arc<ThreadPool>>> = Mutex::new(Vec::new());

/// `count` lanes, or as many as the system gives.
fn lanes(count: usize) -> Vec<Arc<ThreadPool>> {
    let mut lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner);
    while lanes.len() < count {
        let Ok(lane) = ThreadPoolBuilder::new().num_threads(1).build() else { break };
        lanes.push(Arc::new(lane));
    }
    lanes.iter().take(count).cloned().collect()
}

/// `work` on every task, in as many lanes as the current pool has threads; results in the order of the tasks.
pub(crate) fn side_by_side<T: Send, R: Send>(tasks: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = rayon::current_num_threads().min(tasks.len());
    let lanes = if threads > 1 { lanes(threads) } else { Vec::new() };
    if lanes.len() < 2 {
        return tasks.into_iter().map(work).collect();
    }
    let (total, mut tasks) = (tasks.len(), tasks.into_iter());
    let share =
        |lane: usize| tasks.by_ref().take((lane + 1) * total / lanes.len() - lane * total / lanes.len()).collect();
    let shares: Vec<Vec<T>> = (0..lanes.len()).map(share).collect();
    let in_lane = |(lane, share): (&Arc<ThreadPool>, Vec<T>)| {
        lane.install(|| {
            let start = Instant::now();
            let results = profile::part(Part::Other, || share.into_iter().map(&work).collect::<Vec<R>>());
            (results, start.elapsed())
        })
    };
    let start = Instant::now();
    let results: Vec<(Vec<R>, Duration)> =
        profile::away(|| lanes.par_iter().zip(shares).with_max_len(1).map(in_lane).collect());
    let all = start.elapsed();
    for (_, busy) in &results {
        profile::add(Part::Waiting, all.saturating_sub(*busy));
    }
    results.into_iter().flat_map(|(results, _)| results).collect()
}

/// `work` on the `n` samples of a batch, cut into one range for each thread: its results `[N, C, H, W]` as one.
pub(crate) fn by_ranges(n: usize, work: impl Fn(Range<usize>) -> Tensor<4> + Sync) -> Tensor<4> {
    let parts = rayon::current_num_threads().min(n);
    if parts < 2 {
        return work(0..n);
    }
    Tensor::cat(side_by_side((0..parts).collect(), |i: usize| work(i * n / parts..(i + 1) * n / parts)), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_every_task_is_alone_in_its_pool() {
        for threads in [1, 2, 3, 5] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for tasks in [0, 1, 2, 7] {
                let found = pool
                    .install(|| side_by_side((0..tasks).collect(), |i: usize| (i * i, rayon::current_num_threads())));
                assert_eq!(
                    found.iter().map(|f| f.0).collect::<Vec<_>>(),
                    (0..tasks).map(|i| i * i).collect::<Vec<_>>()
                );
                let alone = threads.min(tasks) > 1;
                assert!(!alone || found.iter().all(|f| f.1 == 1), "{threads} threads: {found:?}");
            }
        }
    }
}
