//! The ranks of this process: those that `mpirun` has started, or none but itself.

#[cfg(feature = "mpi")]
mod mpi;

use std::sync::OnceLock;
use std::time::Duration;

use softly::error::{Error, Result};
use softly::ranks::{Alone, Ranks};

use crate::progress;

/// Variables in which launchers say how many processes they have started and which one this is: those of Open MPI, of MPICH and
/// Intel, and of Slurm.
const LAUNCHERS: [[&str; 2]; 3] = [
    ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"],
    ["PMI_SIZE", "PMI_RANK"],
    ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID"],
];

/// Time for a launcher to pass the leading rank's words on. It ends all ranks with the first that fails, and what it has not read by
/// then is lost: the leading rank leaves this long after it has spoken, the others leave after it.
const LAST_WORDS: Duration = Duration::from_millis(300);

static HERE: OnceLock<&'static dyn Ranks> = OnceLock::new();

/// The ranks of this process.
pub fn here() -> &'static dyn Ranks {
    HERE.get().copied().unwrap_or(&Alone)
}

/// Does `work` as one of the ranks that a launcher has started, if one did, and returns the exit code after its error was printed;
/// `can_share` says whether several can do this work.
pub fn as_rank(can_share: bool, work: impl FnOnce() -> Result<()>) -> u8 {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let launched =
        LAUNCHERS.iter().find_map(|[size, rank]| Some((number(size).filter(|size| *size > 1)?, number(rank)?)));
    let Some((size, rank)) = launched else { return progress::code(work()) };
    let code = share(size, rank, move || if can_share { work() } else { Err(refusal(size)) });
    if code != 0 {
        std::thread::sleep(if rank == 0 { LAST_WORDS } else { 3 * LAST_WORDS });
    }
    code
}

/// The error of work that several processes would do several times.
fn refusal(size: usize) -> Error {
    let problem = format!("this command runs as one process, and {size} were started");
    Error::input("mpirun", problem).hint("start it without mpirun; train, adapt, sample, eval of samples and likelihood, data generate and bench run on several ranks")
}

#[cfg(feature = "mpi")]
fn share(_size: usize, _rank: usize, work: impl FnOnce() -> Result<()>) -> u8 {
    let universe = match mpi::join(&HERE) {
        Ok(universe) => universe,
        Err(error) => return progress::code(Err(error)),
    };
    let program = format!("softly {} ({})", env!("CARGO_PKG_VERSION"), env!("SOFTLY_COMMIT"));
    let code = progress::code(here().end(here().alike(&program).and_then(|()| work())));
    // Every rank is here after the leading one has spoken. MPI refuses messages without bytes.
    here().gather(&[0]);
    // A panic skips this, and the launcher ends the others.
    drop(std::mem::ManuallyDrop::into_inner(universe));
    code
}

/// Without MPI every process would do the whole work in the same folder.
#[cfg(not(feature = "mpi"))]
fn share(size: usize, rank: usize, _work: impl FnOnce() -> Result<()>) -> u8 {
    let problem =
        format!("{size} processes were started, and this build knows nothing of MPI: each would train by itself");
    let error = Error::input("mpirun", problem)
        .hint("build with `cargo build --release --features mpi`, or start a single process");
    if rank == 0 { progress::code(Err(error)) } else { error.exit_code() }
}
