//! Entries on their way from one store to another.

use nevertwice_domain::entry::{Entry, Tally};

/// An entry that is to be imported as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The entry, with the life that it had where it comes from.
    pub entry: Entry,
    /// Its replays so far.
    pub tally: Tally,
}

/// What became of an entry that was to be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Imported {
    /// It is remembered, durably.
    Stored,
    /// A live entry is under its key; nothing was changed.
    AlreadyThere,
    /// It has expired, or seems to come from the future.
    Expired,
    /// A forget came in between.
    Fenced,
}
