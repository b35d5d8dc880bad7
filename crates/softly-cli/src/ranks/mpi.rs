//! Ranks that talk through MPI.

use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use mpi::Threading;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::request::scope;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Source};
use softly::error::{Error, Result};
use softly::ranks::Ranks;

/// The most bytes of all ranks together that MPI's counts can name.
const MOST: usize = i32::MAX as usize;

/// All processes of the job.
struct World {
    index: usize,
    count: usize,
}

/// Joins the job and puts its ranks into `here`. Only this thread may talk.
pub fn join(here: &OnceLock<&'static dyn Ranks>) -> Result<ManuallyDrop<Universe>> {
    let joined = mpi::initialize_with_threading(Threading::Funneled);
    let Some((universe, _)) = joined.filter(|(_, threading)| *threading >= Threading::Funneled) else {
        return Err(Error::input("mpirun", "this MPI does not allow threads beside the one that talks")
            .hint("use an MPI with thread support"));
    };
    let world = universe.world();
    let ranks = World { index: world.rank() as usize, count: world.size() as usize };
    // Fails only if the program was run before in this process, and then its ranks stay.
    let _ = here.set(Box::leak(Box::new(ranks)));
    Ok(ManuallyDrop::new(universe))
}

impl Ranks for World {
    fn index(&self) -> usize {
        self.index
    }

    fn count(&self) -> usize {
        self.count
    }

    fn exchange(&self, out: Option<(usize, &[f32])>, into: Option<(usize, &mut [f32])>) {
        let world = SimpleCommunicator::world();
        scope(|scope| {
            let arriving =
                into.map(|(from, numbers)| world.process_at_rank(from as i32).immediate_receive_into(scope, numbers));
            let leaving = out.map(|(to, numbers)| world.process_at_rank(to as i32).immediate_send(scope, numbers));
            [arriving, leaving].into_iter().flatten().for_each(mpi::request::Request::wait_without_status);
        });
    }

    fn gather(&self, own: &[u8]) -> Vec<Vec<u8>> {
        let world = SimpleCommunicator::world();
        let mut lengths = vec![0i32; self.count];
        assert!(own.len() <= MOST / self.count, "a message of {} bytes is too long", own.len());
        world.all_gather_into(&(own.len() as i32), &mut lengths[..]);
        let starts: Vec<i32> = lengths.iter().scan(0, |next, len| Some(std::mem::replace(next, *next + len))).collect();
        let mut all = vec![0u8; lengths.iter().map(|len| *len as usize).sum()];
        world.all_gather_varcount_into(own, &mut PartitionMut::new(&mut all[..], &lengths[..], &starts[..]));
        let mut rest = &all[..];
        let mut take = |len: &i32| {
            let (first, others) = rest.split_at(*len as usize);
            rest = others;
            first.to_vec()
        };
        lengths.iter().map(&mut take).collect()
    }
}
