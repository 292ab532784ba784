//! Where operations and jobs live: beside the memory, and needed where it is not. Two traits, [`OperationStore`] and
//! [`JobStore`]; implemented in memory (the reference), on SQLite for one machine, and on Redis for a fleet; one conformance suite.
//!
//! Unlike the memory, which may be lost, this is what callers were promised: what was acknowledged is durable.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Selector;
use nevertwice_domain::job::{Job, JobError, JobId, JobStatus, ResultFacts};
use nevertwice_domain::operation::{Operation, OperationId};
use nevertwice_domain::tenant::{TenantId, UpstreamName};

use crate::StoreError;

pub(crate) mod life;

pub mod memory;
pub mod sqlite;
pub mod suite;

/// How many operations at upstreams are kept at most.
pub const MAX_OPERATIONS: u64 = 100_000;

/// How many operations of the gateway's own making are kept at most ([`Known`](nevertwice_domain::operation::Whereabouts::Known)). A
/// caller makes them without a call of the upstream, so they have a bound of their own.
pub const MAX_MINTED: u64 = 20_000;

/// How long a claim on a job holds without being renewed, whatever is done to the time meanwhile. A worker that dies is replaced after this.
pub const CLAIM_LIFE: Duration = Duration::from_secs(15);

/// Operations that a gateway has given an id.
#[async_trait]
pub trait OperationStore: Send + Sync {
    /// Keeps an operation until it expires. Durable on return. There are at most [`MAX_OPERATIONS`] at upstreams and [`MAX_MINTED`] of the
    /// gateway's own making; the oldest of their kind make room.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn put(&self, operation: &Operation) -> Result<(), StoreError>;

    /// The operation with this id; `None` when there is none, or none any more.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn operation(&self, id: &OperationId) -> Result<Option<Operation>, StoreError>;

    /// Its outcome is known: nothing of it is [pending](nevertwice_domain::operation::Pending) any more. Of several who say so at
    /// once, one is told `true`.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn settle(&self, id: &OperationId) -> Result<bool, StoreError>;

    /// Removes it.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn remove(&self, id: &OperationId) -> Result<(), StoreError>;

    /// At most `limit` operations whose `next_look_at` has come, each handed to one caller alone: it comes again at `again_at`,
    /// with one look more counted, unless it is settled. Each is returned as it is then, this look counted; the longest due come
    /// first.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn due(&self, now: Millis, again_at: Millis, limit: usize) -> Result<Vec<Operation>, StoreError>;

    /// What matches is pending no more: a verdict of theirs would be one from before a forget. Everything that an entry of theirs
    /// might match counts as a match: status and time of the selector say nothing about a verdict that is not there yet. A store whose fences outlive the process
    /// ([`RefusalStore::fences_last`](crate::RefusalStore::fences_last)) need not do anything.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn forget_pending(&self, which: &Selector) -> Result<(), StoreError>;
}

/// Jobs, and the work on them. A job is taken by one worker at a time: what a worker does to it counts only as long as its
/// [`Claim`] holds.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Takes a job in: durable on return, with its input. Where the job has an idempotency key that another job of its tenant has,
    /// the one that was there is returned, or there is a conflict, or the new one takes its place
    /// ([`Job::answers_its_key`], and the same request). A job that is final already is kept with the body of its result, without its
    /// input, and never handed out; how many wait does not concern it.
    ///
    /// The bytes that are kept are what inputs and results take, from when a job is taken in, or ends with a result, until
    /// they are removed: an input when its job succeeds or is cancelled, all of a job after it has expired. What is taken in is
    /// counted in the same step.
    ///
    /// # Errors
    /// When it could not be made durable; it is not taken in then.
    async fn submit(
        &self,
        job: Job,
        input: Bytes,
        result: Option<Bytes>,
        bounds: &JobBounds,
    ) -> Result<Submitted, StoreError>;

    /// The job; `None` when there is none, or none any more.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn job(&self, id: &JobId) -> Result<Option<Job>, StoreError>;

    /// Its input; `None` too when it is not kept: when the job has succeeded or was cancelled, or was final from the start.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn input(&self, id: &JobId) -> Result<Option<Bytes>, StoreError>;

    /// The body of its result.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn result(&self, id: &JobId) -> Result<Option<Bytes>, StoreError>;

    /// A page of jobs, the latest first.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn list(&self, query: &JobQuery) -> Result<JobPage, StoreError>;

    /// How many jobs of each upstream wait or run.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn depth(&self) -> Result<Vec<JobDepth>, StoreError>;

    /// How many bytes of inputs and results are kept.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn stored_bytes(&self) -> Result<u64, StoreError>;

    /// Gives a job up: one that waits is cancelled at once, of one that runs its worker is told, one that is final stays as it is.
    /// Returns it as it is then. One that was given up while it ran never waits again: it is cancelled instead.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn cancel(&self, id: &JobId, expires_at: Millis) -> Result<Option<Job>, StoreError>;

    /// An operator's word: one that has failed waits again, as if for its first attempt, and is removed when it would have been, unless it
    /// comes to another end before. Any other stays as it is, and so does one that was final from the start: its input is not kept. Returns
    /// it as it is then.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn retry(&self, id: &JobId) -> Result<Option<Job>, StoreError>;

    /// The next job of this upstream whose time has come, in the order in which they came; waits up to `wait` for one. The claim
    /// holds for [`CLAIM_LIFE`] from its last renewal. A job whose worker has let its claim lapse is handed out again, `sent` as that
    /// worker left it; it may have been given up meanwhile (`cancel`). A caller that goes away while it waits takes no job with it.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn claim(&self, upstream: &UpstreamName, wait: Duration) -> Result<Option<Claim>, StoreError>;

    /// Prolongs a claim. One that has lapsed holds again, as long as nobody else has been handed the job.
    ///
    /// # Errors
    /// When the store could not be asked; the claim holds as long as it did.
    async fn renew(&self, claim: &Claim) -> Result<Held, StoreError>;

    /// A call is about to be made: `sent` is set and `attempts` counted, durably, and the claim is prolonged, if it holds and the job was
    /// not given up. Returns whether that is so; where it is not, nothing has changed, and no call may be made.
    ///
    /// # Errors
    /// When it could not be made durable; no call may be made then.
    async fn sending(&self, claim: &Claim) -> Result<bool, StoreError>;

    /// The job comes to its end, or waits for its next attempt, and the claim is over: `sent` is so no more. Returns whether the claim held; where it did
    /// not, nothing has changed. A result is kept whatever room there is: it has been paid for.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn settle_job(&self, claim: &Claim, end: JobEnd) -> Result<bool, StoreError>;

    /// Whose jobs have ends that are to be told now, each tenant once, the one whose has been due longest first. The end of a job with a
    /// [webhook](Job::webhook) is to be told from the step that brings it to its end until it [was told](Self::told), the job is tried
    /// again, or it is removed. A tenant may be named of whose ends the last was told or removed meanwhile.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn tenants_to_tell(&self) -> Result<Vec<TenantId>, StoreError>;

    /// At most `limit` ends of a tenant's jobs that are to be told now, each handed to one caller alone: it comes again at `again_at`,
    /// with one call more counted, unless that caller says before what became of it. The longest due come first.
    ///
    /// # Errors
    /// When the store could not be asked.
    async fn to_tell(
        &self,
        tenant: &TenantId,
        again_at: Millis,
        limit: usize,
    ) -> Result<Vec<Untold>, StoreError>;

    /// What became of an end that was handed out: it was told, or is given up, and is over; or it comes again at `again_at`. Returns whether it
    /// was this caller's; where it was not, since it has been handed out again, nothing has changed.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn told(&self, untold: &Untold, again_at: Option<Millis>) -> Result<bool, StoreError>;
}

/// How many jobs there may be, for one that is to be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobBounds {
    /// Jobs of its upstream that wait: `queued`, whether their time has come or not.
    pub max_queued: u64,
    /// Those of them that are its tenant's.
    pub tenant_max_queued: u64,
    /// Bytes that are kept, with its own.
    pub max_bytes: u64,
    /// Those of them that are its tenant's.
    pub tenant_max_bytes: u64,
    /// When a job that is final from the start is removed, and when one that never comes to its end is.
    pub expires_at: Millis,
}

/// What became of a submitted job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It was taken in.
    New(Job),
    /// A job with its key and its request was there already.
    Same(Job),
    /// A job with its key and another request was there already.
    Conflict(JobId),
    /// There is no room for it.
    Full(Full),
}

/// The bound that leaves no room for a job; the first one of [`JobBounds`] of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// [`JobBounds::max_queued`].
    Queue,
    /// [`JobBounds::tenant_max_queued`].
    TenantQueue,
    /// [`JobBounds::max_bytes`].
    Bytes,
    /// [`JobBounds::tenant_max_bytes`].
    TenantBytes,
}

/// A worker's right to a job.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The job, as it was handed out: `running`.
    pub job: Job,
    /// Tells this claim from every other on the job.
    pub token: String,
}

/// The end of a job that is to be told.
#[derive(Clone, Debug)]
pub struct Untold {
    /// The job, at its end.
    pub job: Job,
    /// How often it was handed out to be told, this time among them.
    pub calls: u32,
    /// Tells this time from every other.
    pub token: String,
}

/// What a renewal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The claim holds.
    Yes,
    /// It holds, and the job's owner has given it up.
    Cancelled,
    /// It does not hold: another worker may have the job.
    No,
}

/// How a claim ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// The job has come to its end.
    Final {
        /// `Succeeded`, `Failed` or `Cancelled`.
        status: JobStatus,
        /// Why it failed.
        error: Option<JobError>,
        /// The upstream's answer.
        result: Option<(ResultFacts, Bytes)>,
        /// When.
        at: Millis,
        /// When it is removed.
        expires_at: Millis,
    },
    /// It waits for another attempt.
    Again {
        /// Why the last one failed; `None` when none was made.
        error: Option<JobError>,
        /// Not before.
        not_before: Millis,
    },
}

/// Which jobs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// Of this upstream.
    pub upstream: Option<UpstreamName>,
    /// With this status.
    pub status: Option<JobStatus>,
    /// At most this many; 1 to 1,000.
    pub limit: usize,
    /// Go on after this: the `next` of the page before.
    pub after: Option<JobId>,
}

/// Part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPage {
    /// The jobs; where few of many match, fewer than asked for, though more may come.
    pub items: Vec<Job>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<JobId>,
}

/// How many jobs of an upstream are not final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobDepth {
    /// The upstream.
    pub upstream: UpstreamName,
    /// Jobs that wait.
    pub queued: u64,
    /// Jobs that workers have.
    pub running: u64,
}
