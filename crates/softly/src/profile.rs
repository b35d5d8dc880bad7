//! Where the time goes: named parts of the work, each without the parts inside it, added up over threads.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Makes the enumeration of parts from a list of names.
macro_rules! parts {
    ($($(#[doc = $doc:literal])* $part:ident = $name:literal;)*) => {
        /// A part of the work.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Part {
            $($(#[doc = $doc])* $part,)*
        }

        impl Part {
            /// All parts.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$part),*];

            /// The part in words.
            pub fn name(self) -> &'static str {
                match self { $(Self::$part => $name,)* }
            }
        }
    };
}

parts! {
    /// The network's kernels on the way forward.
    Network = "network";
    /// The way back through network, constraint and directions.
    Backward = "backward";
    /// Residuals and their derivatives.
    Constraint = "constraint";
    /// Transforms between fields and waves.
    Transforms = "transforms";
    /// The rest of directions: sums, products and iterations.
    Directions = "directions";
    /// The weights γ.
    Gamma = "gamma";
    /// Adam and averages.
    Optimiser = "optimiser";
    /// Batches, noise, gradients and weights on their way.
    Copies = "copies";
    /// Numbers on their way to other ranks and back, and waiting for ranks that are not done.
    Communication = "communication";
    /// Lanes that are done before the others.
    Waiting = "waiting";
    /// All else.
    Other = "other";
}

static ON: AtomicBool = AtomicBool::new(false);
static NANOSECONDS: [AtomicU64; Part::ALL.len()] = [const { AtomicU64::new(0) }; Part::ALL.len()];

thread_local! {
    /// The parts that this thread is in, and since when the innermost one.
    static INSIDE: RefCell<(Vec<Part>, Option<Instant>)> = const { RefCell::new((Vec::new(), None)) };
}

/// Adds a time to a part.
pub fn add(part: Part, time: Duration) {
    if ON.load(Ordering::Relaxed) {
        NANOSECONDS[part as usize].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Gives the time since the last call to the innermost part, then changes what that is.
fn turn(change: impl FnOnce(&mut Vec<Part>)) {
    INSIDE.with_borrow_mut(|(parts, since)| {
        let now = Instant::now();
        if let (Some(part), Some(since)) = (parts.last(), *since) {
            add(*part, now - since);
        }
        change(parts);
        *since = Some(now);
    });
}

/// Runs `work`, whose time counts as `part` as far as it is in no other part.
pub fn part<T>(part: Part, work: impl FnOnce() -> T) -> T {
    if !ON.load(Ordering::Relaxed) {
        return work();
    }
    turn(|parts| parts.push(part));
    let result = work();
    turn(|parts| {
        parts.pop();
    });
    result
}

/// Runs `work` on other threads, which keep their own times: it counts as no part of this one.
pub fn away<T>(work: impl FnOnce() -> T) -> T {
    if !ON.load(Ordering::Relaxed) {
        return work();
    }
    turn(|_| {});
    let result = work();
    INSIDE.with_borrow_mut(|(_, since)| *since = Some(Instant::now()));
    result
}

/// Runs `work` while times are added up: its result, and the seconds of all parts. One profile at a time.
pub fn profiled<T>(work: impl FnOnce() -> T) -> (T, Vec<(Part, f64)>) {
    for sum in &NANOSECONDS {
        sum.store(0, Ordering::Relaxed);
    }
    ON.store(true, Ordering::Relaxed);
    let result = part(Part::Other, work);
    ON.store(false, Ordering::Relaxed);
    let seconds = |part: Part| NANOSECONDS[part as usize].load(Ordering::Relaxed) as f64 * 1e-9;
    (result, Part::ALL.into_iter().map(|part| (part, seconds(part))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(milliseconds: u64) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(milliseconds) {}
    }

    #[test]
    fn a_part_does_not_count_the_parts_inside_it() {
        let start = Instant::now();
        let (result, times) = profiled(|| {
            part(Part::Directions, || {
                spin(20);
                part(Part::Transforms, || spin(40));
                spin(20);
            });
            7
        });
        let all = start.elapsed().as_secs_f64();
        let seconds = |part: Part| times.iter().find(|(p, _)| *p == part).unwrap().1;
        assert_eq!(result, 7);
        assert!(seconds(Part::Directions) >= 0.04 && seconds(Part::Transforms) >= 0.04, "{times:?}");
        let sum: f64 = times.iter().map(|t| t.1).sum();
        assert!(sum <= all && seconds(Part::Directions) <= all - seconds(Part::Transforms), "{times:?} of {all}");
        assert_eq!(seconds(Part::Network), 0.0);
        // Nothing is counted outside of a profile.
        part(Part::Network, || spin(1));
        assert_eq!(profiled(|| ()).1.iter().find(|(p, _)| *p == Part::Network).unwrap().1, 0.0);
    }
}
