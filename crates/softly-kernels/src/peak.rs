//! The peak of the processor: multiply-adds that never touch memory, the yardstick of the other kernels.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

use crate::simd::{Job, Level, Simd};

/// Independent chains, enough to hide the latency of a multiply-add; with two factors they fit into 16 registers.
const CHAINS: usize = 12;
/// Rounds of one measurement: about a millisecond.
const ROUNDS: usize = 200_000;

struct Chains;

impl Job for Chains {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut chains = [simd.splat(1.0); CHAINS];
        let (factor, term) = (simd.splat(black_box(0.999)), simd.splat(black_box(0.001)));
        for _ in 0..ROUNDS {
            for chain in 0..CHAINS {
                chains[chain] = simd.mul_add(chains[chain], factor, term);
            }
        }
        let mut sum = chains[0];
        for chain in 1..CHAINS {
            sum = simd.add(sum, chains[chain]);
        }
        simd.sum(sum)
    }
}

/// GFLOP/s of multiply-adds in the widest registers, on all threads of the current pool together; the best measurement
/// within a budget of seconds.
pub fn peak(budget: f64) -> f64 {
    let (level, threads) = (Level::current(), rayon::current_num_threads());
    let mut best = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < budget {
        let begin = Instant::now();
        (0..threads).into_par_iter().with_max_len(1).for_each(|_| {
            black_box(level.run(Chains));
        });
        best = best.min(begin.elapsed().as_secs_f64());
    }
    (2 * ROUNDS * CHAINS * level.lanes() * threads) as f64 / best * 1e-9
}
