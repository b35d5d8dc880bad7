//! How long work tells of its progress, whatever shows it.

/// How a long job tells of its progress. Work is counted in units that take about as long as one training step.
pub trait Reporter: Sync {
    /// The job has this many units in all, some of which are `done` already.
    fn begin(&self, total: u64, done: u64);
    /// `units` more are done.
    fn advance(&self, units: u64);
    /// Something worth a line.
    fn note(&self, text: &str);
}
