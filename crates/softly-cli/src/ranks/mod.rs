//! The ranks of this process: those that `mpirun` has started, or none but itself.

#[cfg(feature = "mpi")]
mod mpi;

use std::sync::OnceLock;

use softly::error::{Error, Result};
use softly::ranks::{Alone, Ranks};

/// Variables in which launchers say how many processes they have started and which one this is: those of Open MPI, of MPICH and
/// Intel, and of Slurm.
const LAUNCHERS: [[&str; 2]; 3] = [
    ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"],
    ["PMI_SIZE", "PMI_RANK"],
    ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID"],
];

static HERE: OnceLock<&'static dyn Ranks> = OnceLock::new();

/// The ranks of this process.
pub fn here() -> &'static dyn Ranks {
    HERE.get().copied().unwrap_or(&Alone)
}

/// Does `work` as one of the ranks that a launcher has started, if one did; `can_share` says whether several can do this work.
pub fn as_rank(can_share: bool, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let launched =
        LAUNCHERS.iter().find_map(|[size, rank]| Some((number(size).filter(|size| *size > 1)?, number(rank)?)));
    let Some((size, rank)) = launched else { return work() };
    let work = move || if can_share { work() } else { Err(refusal(size)) };
    share(size, rank, work)
}

/// The error of work that several processes would do several times.
fn refusal(size: usize) -> Error {
    let problem = format!("this command runs as one process, and {size} were started");
    Error::input("mpirun", problem).hint("start it without mpirun; train, adapt, sample, eval of samples and likelihood, data generate and bench run on several ranks")
}

#[cfg(feature = "mpi")]
fn share(_size: usize, _rank: usize, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let universe = mpi::join(&HERE)?;
    let program = format!("softly {} ({})", env!("CARGO_PKG_VERSION"), env!("SOFTLY_COMMIT"));
    let outcome = here().end(here().alike(&program).and_then(|()| work()));
    // After the last word of every rank. A panic skips it, and the launcher ends the others.
    drop(std::mem::ManuallyDrop::into_inner(universe));
    outcome
}

/// Without MPI every process would do the whole work in the same folder.
#[cfg(not(feature = "mpi"))]
fn share(size: usize, rank: usize, _work: impl FnOnce() -> Result<()>) -> Result<()> {
    if rank > 0 {
        // A launcher ends all ranks with the first, which is to be the one that speaks.
        std::thread::sleep(std::time::Duration::from_secs(1));
        std::process::exit(2);
    }
    let problem =
        format!("{size} processes were started, and this build knows nothing of MPI: each would train by itself");
    Err(Error::input("mpirun", problem)
        .hint("build with `cargo build --release --features mpi`, or start a single process"))
}
