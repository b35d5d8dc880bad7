//! Training and held-out samples.

use crate::random::Purpose;

/// A part of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Training samples.
    Train,
    /// Held-out samples.
    Valid,
}

impl Split {
    /// Both, in the order in which they are made and hashed.
    pub const BOTH: [Self; 2] = [Self::Train, Self::Valid];

    /// The folder's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Valid => "valid",
        }
    }

    /// The random numbers that generated samples are made from.
    pub(crate) fn purpose(self) -> Purpose {
        match self {
            Self::Train => Purpose::TrainData,
            Self::Valid => Purpose::ValidData,
        }
    }
}
