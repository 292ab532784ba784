//! Where entries live. One trait, [`RefusalStore`]; a reference implementation in memory; an embedded, durable one on
//! SQLite; one on Redis for a fleet; one conformance suite that all of them pass.
//!
//! A store is honest and fallible: it says what it could not do. That its trouble never fails a request is the business of
//! the gateway, which treats an error as a miss, or as not recorded.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Entry, Selector, Tally};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use tokio::sync::mpsc;

mod failure;
mod fence;
mod keeping;
mod listing;
mod moving;
mod news;

pub mod memory;
pub mod redis;
pub mod sqlite;
pub mod suite;
pub mod work;

pub use moving::{Imported, Moved};
pub use news::News;

/// The memory of refusals.
///
/// Every method may be called from many tasks at once. Methods that are not `async` touch memory alone and never wait for
/// I/O. An entry that has expired by its own life is never returned, and does not count. One that is not
/// [understood](Entry::is_understood) is kept for people to see, never returned by [`RefusalStore::near`] or
/// [`RefusalStore::recall`], and replaced by the next record.
#[async_trait]
pub trait RefusalStore: Send + Sync {
    /// The live entry under `key`, if this process has it in memory. Costs no I/O: it is called for every guarded request
    /// before anything else. `None` says nothing; [`RefusalStore::recall`] decides.
    fn near(&self, key: &Fingerprint) -> Option<Arc<Entry>>;

    /// The live entry under `key`, and the fence for an attempt that begins now. An entry that turns out to be damaged is none:
    /// it is dropped, so that the next refusal is recorded.
    ///
    /// # Errors
    /// When the store could not be asked; nothing is known then.
    async fn recall(&self, key: &Fingerprint) -> Result<Recalled, StoreError>;

    /// How long a look-up may take before the request goes on without it; `None` where the store itself lets none take long.
    fn look_deadline(&self) -> Option<Duration> {
        Some(Duration::from_millis(250))
    }

    /// As [`RefusalStore::recall`], for a request that would make an attempt: where there is no entry, a store that is shared
    /// among processes says also whose attempt it is.
    ///
    /// # Errors
    /// When the store could not be asked; nothing is known then.
    async fn look(&self, key: &Fingerprint) -> Result<Looked, StoreError> {
        let Recalled { entry, fence } = self.recall(key).await?;
        Ok(Looked { entry, fence, lease: Lease::NotNeeded })
    }

    /// The fence for an attempt that begins while the store cannot be asked: any forget since the store was last heard of bars it.
    /// `None` where nothing can be recorded then.
    fn last_fence(&self) -> Option<Fence> {
        None
    }

    /// Whether fences mean the same in every process that opens this store, now and later. Else one that was taken by another process, or
    /// before a restart, says nothing.
    fn fences_last(&self) -> bool {
        false
    }

    /// Records a verdict, unless a forget that matches it came after `fence`. On return the entry is durable. Where it replaces
    /// one of the same document and status that has expired (for less than a day), was marked suspect or is too old for the
    /// present rule, the tally and the time of the first refusal go on.
    ///
    /// # Errors
    /// When it could not be made durable; then it is not recorded.
    async fn record(&self, candidate: Candidate, fence: Fence) -> Result<Recorded, StoreError>;

    /// Puts entries of another store, or of this one as it was, as they are: each with its own life and its tally. One is not
    /// put when it has expired, when a forget that matches it came after `fence`, or when a live entry is under its key
    /// already, suspect or not. Their order is the order of recording from then on, and they count for `max_entries` as if
    /// they were recorded. Returns what became of each, in the same order, once they are durable. Where the store is far away, that
    /// may be the first ones alone, one of them at least: the others were not looked at, and are imported by another call.
    ///
    /// # Errors
    /// When one could not be made durable. Some of the others may be there then; to import all again is safe.
    async fn import(
        &self,
        moved: Vec<Moved>,
        fence: Fence,
        max_entries: u64,
    ) -> Result<Vec<Imported>, StoreError>;

    /// The upstream accepted this document: removes its entry and its strikes, and remembers durably that the upstream has
    /// accepted something. Costs no I/O when there is nothing to remove and the acceptance is known. Returns whether an
    /// entry was removed.
    ///
    /// # Errors
    /// When the entry could not be removed.
    async fn accept(&self, key: &Fingerprint, upstream: &UpstreamName) -> Result<bool, StoreError>;

    /// How long the answer to an accepted document may wait for [`RefusalStore::accept`] and a forget beside it; both go on without it.
    /// `None` where the store sets no bound of its own.
    fn accept_deadline(&self) -> Option<Duration> {
        None
    }

    /// Whether this store has ever seen `upstream` accept a document.
    fn has_accepted(&self, upstream: &UpstreamName) -> bool;

    /// Removes all entries and strikes that match, and fences attempts under way. Returns how many entries went, once they
    /// are durably gone.
    ///
    /// # Errors
    /// When it could not be made durable; nothing is forgotten then.
    async fn forget(&self, which: &Selector) -> Result<u64, StoreError>;

    /// Marks the entries of `upstream` that were recorded at `since` or later as suspect: they are kept for people to see
    /// and never returned by [`RefusalStore::near`] or [`RefusalStore::recall`] again; a fresh record replaces them.
    /// Returns how many were marked.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn suspect(&self, upstream: &UpstreamName, since: Millis) -> Result<u64, StoreError>;

    /// Tells the other processes that share this store. Costs no I/O; what cannot be told is lost.
    fn tell(&self, news: News) {
        // a store of one process has nobody to tell
        drop(news);
    }

    /// What the other processes tell, from now on; `None` where there are none, or when it was taken before.
    fn news(&self) -> Option<mpsc::Receiver<News>> {
        None
    }

    /// Counts one replay of the entry under `key` and returns how many there have been. Made durable within a second; a
    /// crash loses at most that second's counts. Returns 0 when there is no such entry any more.
    fn count_replay(&self, key: &Fingerprint, tenant: &TenantId, at: Millis) -> u64;

    /// How many entries there are, suspect ones included.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn entries(&self) -> Result<u64, StoreError>;

    /// How many entries were evicted by this process because of the bound on their number.
    fn evictions(&self) -> u64;

    /// A page of entries without their bodies.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError>;

    /// One entry, suspect or not, with its body and tally; `None` too when it turns out to be damaged, as in
    /// [`RefusalStore::recall`].
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn show(&self, key: &Fingerprint) -> Result<Option<Shown>, StoreError>;

    /// Makes all pending counts durable and releases the store's resources. Later calls fail with
    /// [`StoreErrorKind::Closed`].
    ///
    /// # Errors
    /// When the counts could not be made durable.
    async fn close(&self) -> Result<(), StoreError>;
}

/// The position of a store in its sequence of forgets. An attempt takes it before it calls the upstream; a record with a
/// fence older than a matching forget is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// The answer to a look-up.
#[derive(Clone, Debug)]
pub struct Recalled {
    /// The live, not suspect entry.
    pub entry: Option<Arc<Entry>>,
    /// The fence for an attempt that begins now.
    pub fence: Fence,
}

/// The answer to a look-up for an attempt.
pub struct Looked {
    /// The live, not suspect entry.
    pub entry: Option<Arc<Entry>>,
    /// The fence for an attempt that begins now.
    pub fence: Fence,
    /// Whose attempt it is.
    pub lease: Lease,
}

/// Whose attempt it is, among the processes that share a store.
pub enum Lease {
    /// Nobody else's, as far as the store knows.
    NotNeeded,
    /// This process's, until the lease is dropped.
    Held(redis::HeldLease),
    /// Another process's.
    Elsewhere(redis::RemoteAttempt),
}

/// What became of a verdict.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// It is remembered, durably.
    Stored(Arc<Entry>),
    /// A live entry was there already; the first writer wins.
    AlreadyThere(Arc<Entry>),
    /// Too few refusals yet to be sure; this many so far.
    Unconfirmed(u32),
    /// A forget came in between.
    Fenced,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// The disk or the memory limit is full.
    Full,
    /// Reading or writing failed.
    Io,
    /// The data is not what this program wrote.
    Corrupt,
    /// Another process has it.
    InUse,
    /// Written by a newer version of this program.
    Newer,
    /// Too many operations are waiting.
    Busy,
    /// The store was closed.
    Closed,
}

/// A store's failure.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    /// For programs.
    pub kind: StoreErrorKind,
    /// For people: what happened, where, and what to do.
    pub message: String,
}

/// In which order entries are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// The most replayed first.
    #[default]
    Replays,
    /// The latest recorded first.
    Recent,
    /// The earliest recorded first. What is recorded while pages are read comes at the end, so that every entry comes once.
    Oldest,
}

/// Which entries to list.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Of this upstream.
    pub upstream: Option<UpstreamName>,
    /// With this status.
    pub status: Option<RefusalStatus>,
    /// Of this document.
    pub document: Option<DocumentDigest>,
    /// Refused to, or replayed to, this tenant.
    pub tenant: Option<TenantId>,
    /// The order.
    pub order: ListOrder,
    /// At most this many; 1 to 1,000.
    pub limit: usize,
    /// Go on after this: the `next` of the page before.
    pub after: Option<Cursor>,
}

/// A place in a list: the sort value and the sequence number of the last entry seen. Stable under inserts and removals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The replays of that entry (0 when listing by time).
    pub replays: u64,
    /// Its place in the order of recording, counted from the other end where the earliest come first.
    pub sequence: u64,
}

/// Part of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The entries.
    pub items: Vec<Summary>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}

/// An entry without its body.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The entry; its body is empty.
    pub entry: Arc<Entry>,
    /// Its place in this list: the rest of the list begins after it.
    pub place: Cursor,
    /// The length of the stored body in bytes.
    pub body_bytes: u64,
    /// Its replays.
    pub tally: Tally,
    /// Whether it was marked suspect.
    pub suspect: bool,
}

/// An entry in full.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The entry with its body.
    pub entry: Arc<Entry>,
    /// Its replays.
    pub tally: Tally,
    /// Whether it was marked suspect.
    pub suspect: bool,
}
