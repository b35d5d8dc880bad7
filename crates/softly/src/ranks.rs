//! Several processes that do one piece of work, called ranks as in MPI.
//!
//! Numbers are added in the order of the parts of the work, never in the order of their arrival: any number of ranks gives the same
//! bytes.
//!
//! **Failures.** Every rank ends with [`end`](trait.Ranks.html#method.end). One that fails says so there, and all others hear of it
//! where they next talk, whatever they are about to say: nobody waits for a rank that has gone.

use std::ops::Range;

use softly_kernels::simd::Level;

use crate::error::{Error, Result};

/// Numbers that travel at a time: a megabyte. Ranks further down the chain wait for longer pieces; shorter ones cost more latency.
const PIECE: usize = 1 << 18;

/// First byte of a message.
const FINE: u8 = 0;
const FAILED: u8 = 1;

/// A way for ranks to talk.
pub trait Ranks: Sync {
    /// This rank, from 0.
    fn index(&self) -> usize;

    /// All ranks.
    fn count(&self) -> usize;

    /// Sends numbers to one rank while others arrive from one.
    fn exchange(&self, out: Option<(usize, &[f32])>, into: Option<(usize, &mut [f32])>);

    /// The bytes of every rank, in the order of the ranks. All of them call it.
    fn gather(&self, own: &[u8]) -> Vec<Vec<u8>>;
}

/// A process by itself.
pub struct Alone;

impl Ranks for Alone {
    fn index(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn exchange(&self, _out: Option<(usize, &[f32])>, _into: Option<(usize, &mut [f32])>) {}

    fn gather(&self, own: &[u8]) -> Vec<Vec<u8>> {
        vec![own.to_vec()]
    }
}

impl dyn Ranks + '_ {
    /// Whether this rank writes files and speaks to the user.
    pub fn leads(&self) -> bool {
        self.index() == 0
    }

    /// This rank's part of `n` things in a row.
    pub fn part(&self, n: usize) -> Range<usize> {
        let [first, last] = [self.index(), self.index() + 1].map(|i| i * n / self.count());
        first..last
    }

    /// The bytes of every rank, in their order; an error if one of them has failed.
    pub fn tell(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.gather(&[&[FINE], own].concat());
        match failure(&all) {
            Some(error) => Err(error),
            None => Ok(all.into_iter().map(|message| message[1..].to_vec()).collect()),
        }
    }

    /// The last word of a rank: the first failure in their order is everybody's.
    pub fn end(&self, outcome: Result<()>) -> Result<()> {
        let message = match &outcome {
            // All have heard of it.
            Err(Error::OnRank { .. }) => return outcome,
            Err(error) => [&[FAILED, error.exit_code()], error.to_string().as_bytes()].concat(),
            Ok(()) => vec![FINE],
        };
        match failure(&self.gather(&message)) {
            Some(Error::OnRank { rank, .. }) if rank == self.index() => outcome,
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Whether `yes` holds on any rank.
    pub fn any(&self, yes: bool) -> Result<bool> {
        Ok(self.tell(&[u8::from(yes)])?.iter().any(|message| message == &[1]))
    }

    /// Refuses ranks whose texts differ; `what` names the texts.
    pub fn same(&self, what: &str, text: &str) -> Result<()> {
        let all = self.tell(text.as_bytes())?;
        let Some(other) = all.iter().position(|text| *text != all[0]) else { return Ok(()) };
        let [ours, theirs] = [0, other].map(|rank| String::from_utf8_lossy(&all[rank]).into_owned());
        let lines = || ours.lines().chain([""]).zip(theirs.lines().chain([""]));
        let (ours, theirs) = lines().find(|(a, b)| a != b).unwrap_or_default();
        // Everybody sees the same texts, so everybody has heard of it.
        Err(Error::OnRank {
            rank: other,
            code: 2,
            text: format!(
                "expected the {what} of rank 0, `{ours}`, found `{theirs}`\nhint: start the same command on the same data with every rank"
            ),
        })
    }

    /// Refuses ranks with another `program` or other vector units than rank 0, which would compute other bytes.
    pub fn alike(&self, program: &str) -> Result<()> {
        self.same("program", program)?;
        self.same("processor's instructions", Level::current().name())
    }

    /// `values` of rank 0 on all ranks.
    pub fn lead(&self, values: &mut [f32]) {
        self.relay(values, self.below(), self.above(), |_, _| {});
    }

    /// The sum of the parts of all ranks, one part after the other in the order of the ranks; all parts have the same length, and every
    /// rank has at least one.
    pub fn add(&self, parts: Vec<Vec<f32>>) -> Vec<f32> {
        let len = parts[0].len();
        let mut parts = parts.into_iter();
        let first = if self.leads() { parts.next() } else { None };
        let mut sum = first.unwrap_or_else(|| vec![0.0; len]);
        let rest: Vec<Vec<f32>> = parts.collect();
        // Up the chain of ranks sums grow; the last rank's is complete and comes down.
        self.relay(&mut sum, self.below(), self.above(), |range, piece| {
            for part in &rest {
                piece.iter_mut().zip(&part[range.clone()]).for_each(|(sum, value)| *sum += value);
            }
        });
        self.relay(&mut sum, self.above(), self.below(), |_, _| {});
        sum
    }

    /// The numbers of all ranks one after the other.
    pub fn join(&self, own: &[f64]) -> Result<Vec<f64>> {
        if self.count() == 1 {
            return Ok(own.to_vec());
        }
        let mut all = vec![Vec::new(); self.count()];
        let mut pieces = own.chunks(PIECE);
        loop {
            let bytes: Vec<u8> =
                pieces.next().unwrap_or_default().iter().flat_map(|number| number.to_le_bytes()).collect();
            let arrived = self.tell(&bytes)?;
            if arrived.iter().all(Vec::is_empty) {
                return Ok(all.concat());
            }
            for (numbers, bytes) in all.iter_mut().zip(arrived) {
                numbers.extend(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)));
            }
        }
    }

    fn below(&self) -> Option<usize> {
        self.index().checked_sub(1)
    }

    fn above(&self) -> Option<usize> {
        Some(self.index() + 1).filter(|above| *above < self.count())
    }

    /// Passes `values` on from rank `from` to rank `to`, piece by piece: one leaves while the next arrives. `work` is done on every
    /// piece in between.
    fn relay(
        &self,
        values: &mut [f32],
        from: Option<usize>,
        to: Option<usize>,
        work: impl Fn(Range<usize>, &mut [f32]),
    ) {
        let mut ready = 0..0;
        loop {
            let next = ready.end..(ready.end + PIECE).min(values.len());
            let (before, after) = values.split_at_mut(next.start);
            let piece = &mut after[..next.len()];
            let out = to.filter(|_| !ready.is_empty()).map(|to| (to, &before[ready]));
            self.exchange(out, from.filter(|_| !next.is_empty()).map(|from| (from, &mut *piece)));
            if next.is_empty() {
                return;
            }
            work(next.clone(), piece);
            ready = next;
        }
    }
}

/// The first failure among messages.
fn failure(messages: &[Vec<u8>]) -> Option<Error> {
    let rank = messages.iter().position(|message| message[0] == FAILED)?;
    let (code, text) = (messages[rank][1], String::from_utf8_lossy(&messages[rank][2..]).into_owned());
    Some(Error::OnRank { rank, text, code })
}
