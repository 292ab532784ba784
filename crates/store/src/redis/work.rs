//! Operations and jobs on Redis, through the connection that the memory has, beside its keys.
//!
//! What a job becomes is decided here, by the rules of every store, on what was read of it; a script writes it if it is still as
//! it was read. The jobs of an upstream that are not at their end are entries of one stream, which one group of consumers reads; its two
//! consumers stand for "a worker has it" and "it waits again". A token with the job says which worker has it.
//! See docs/decisions/0013-jobs-on-streams.md.

mod bodies;
mod claims;
mod jobs;
mod lists;
mod operations;
mod rows;
mod stored;
mod untold;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Selector;
use nevertwice_domain::job::{Job, JobId};
use nevertwice_domain::operation::{Operation, OperationId};
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use tokio::sync::{Notify, Semaphore};

use super::{RedisStore, Shared};
use crate::StoreError;
use crate::work::{
    Claim, Held, JobBounds, JobDepth, JobEnd, JobPage, JobQuery, JobStore, OperationStore, Submitted, Untold,
};

/// How often something is decided anew because it changed meanwhile.
const DECISIONS: u32 = 16;
/// How much longer keys live than what they stand for: so long there is time to tidy up after it.
const SLACK_MS: u64 = 3_600_000;
/// The longest life of a key, whatever a time says: ten years.
const LONGEST_MS: u64 = 3650 * 86_400_000;
/// The longest that a call may take, however much it moves.
const LONGEST: Duration = Duration::from_secs(30);
/// What moves within a second at least.
const PER_SECOND: u64 = 4 << 20;
/// Large bodies that move at once; others wait, so that look-ups find the connection free now and then.
const TURNS: usize = 2;
/// Bytes of bodies that are on their way at once, of all of them: what a look-up may find before it on the connection.
const ON_THE_WAY: usize = 4 << 20;

/// What this process knows of operations and jobs.
pub(super) struct Work {
    /// Whether it has to do with jobs: then it tidies up after them.
    used: AtomicBool,
    /// Who waits for jobs of an upstream.
    doors: Mutex<BTreeMap<UpstreamName, Arc<Notify>>>,
    turns: Semaphore,
    on_the_way: Semaphore,
}

impl Work {
    pub(super) fn new() -> Self {
        Self {
            used: AtomicBool::new(false),
            doors: Mutex::default(),
            turns: Semaphore::new(TURNS),
            on_the_way: Semaphore::new(ON_THE_WAY),
        }
    }

    /// Where one waits for jobs of this upstream.
    fn door(&self, upstream: &UpstreamName) -> Arc<Notify> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(doors.entry(upstream.clone()).or_default())
    }

    /// A job of this upstream has come.
    pub(super) fn knock(&self, upstream: &UpstreamName) {
        let doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = doors.get(upstream) {
            door.notify_waiters();
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn for_jobs(&self) -> Result<(), StoreError> {
        self.work.used.store(true, Ordering::Relaxed);
        self.check_open()
    }

    /// How long a call may take that moves so many bytes. What was promised has to be kept: it is not given up as soon as a look-up is.
    fn budget(&self, bytes: usize) -> Duration {
        let seconds = (bytes as u64).div_ceil(PER_SECOND).max(1);
        (self.options.write + Duration::from_secs(seconds)).min(LONGEST)
    }

    /// How long keys live of what ends then, in milliseconds.
    fn life_until(&self, end: Millis) -> u64 {
        end.since_ms(self.now()).saturating_add(SLACK_MS).min(LONGEST_MS)
    }
}

#[async_trait]
impl OperationStore for RedisStore {
    async fn put(&self, operation: &Operation) -> Result<(), StoreError> {
        self.shared.check_open()?;
        self.shared.put_operation(operation).await
    }

    async fn operation(&self, id: &OperationId) -> Result<Option<Operation>, StoreError> {
        self.shared.check_open()?;
        self.shared.operation(id).await
    }

    async fn settle(&self, id: &OperationId) -> Result<bool, StoreError> {
        self.shared.check_open()?;
        self.shared.settle_operation(id).await
    }

    async fn remove(&self, id: &OperationId) -> Result<(), StoreError> {
        self.shared.check_open()?;
        self.shared.remove_operation(id).await
    }

    async fn due(&self, now: Millis, again_at: Millis, limit: usize) -> Result<Vec<Operation>, StoreError> {
        self.shared.check_open()?;
        self.shared.due_operations(now, again_at, limit).await
    }

    async fn forget_pending(&self, _which: &Selector) -> Result<(), StoreError> {
        // forgets are numbered here, and the numbers outlive the processes: a verdict from before one is barred by its fence
        self.shared.check_open()
    }
}

#[async_trait]
impl JobStore for RedisStore {
    async fn submit(
        &self,
        job: Job,
        input: Bytes,
        result: Option<Bytes>,
        bounds: &JobBounds,
    ) -> Result<Submitted, StoreError> {
        self.shared.for_jobs()?;
        self.shared.submit(job, &input, result.as_ref(), bounds).await
    }

    async fn job(&self, id: &JobId) -> Result<Option<Job>, StoreError> {
        self.shared.for_jobs()?;
        Ok(self.shared.live_row(id).await?.map(|row| row.job))
    }

    async fn input(&self, id: &JobId) -> Result<Option<Bytes>, StoreError> {
        self.shared.for_jobs()?;
        self.shared.input(id).await
    }

    async fn result(&self, id: &JobId) -> Result<Option<Bytes>, StoreError> {
        self.shared.for_jobs()?;
        self.shared.result(id).await
    }

    async fn list(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        self.shared.for_jobs()?;
        self.shared.list_jobs(query).await
    }

    async fn depth(&self) -> Result<Vec<JobDepth>, StoreError> {
        self.shared.for_jobs()?;
        self.shared.depth().await
    }

    async fn stored_bytes(&self) -> Result<u64, StoreError> {
        self.shared.for_jobs()?;
        self.shared.stored_bytes().await
    }

    async fn cancel(&self, id: &JobId, expires_at: Millis) -> Result<Option<Job>, StoreError> {
        self.shared.for_jobs()?;
        self.shared.cancel(id, expires_at).await
    }

    async fn retry(&self, id: &JobId) -> Result<Option<Job>, StoreError> {
        self.shared.for_jobs()?;
        self.shared.retry(id).await
    }

    async fn claim(&self, upstream: &UpstreamName, wait: Duration) -> Result<Option<Claim>, StoreError> {
        self.shared.for_jobs()?;
        self.shared.claim(upstream, wait).await
    }

    async fn renew(&self, claim: &Claim) -> Result<Held, StoreError> {
        self.shared.for_jobs()?;
        self.shared.renew(claim).await
    }

    async fn sending(&self, claim: &Claim) -> Result<bool, StoreError> {
        self.shared.for_jobs()?;
        self.shared.sending(claim).await
    }

    async fn settle_job(&self, claim: &Claim, end: JobEnd) -> Result<bool, StoreError> {
        self.shared.for_jobs()?;
        self.shared.settle_job(claim, end).await
    }

    async fn tenants_to_tell(&self) -> Result<Vec<TenantId>, StoreError> {
        self.shared.for_jobs()?;
        self.shared.tenants_to_tell().await
    }

    async fn to_tell(
        &self,
        tenant: &TenantId,
        again_at: Millis,
        limit: usize,
    ) -> Result<Vec<Untold>, StoreError> {
        self.shared.for_jobs()?;
        self.shared.to_tell(tenant, again_at, limit).await
    }

    async fn told(&self, untold: &Untold, again_at: Option<Millis>) -> Result<bool, StoreError> {
        self.shared.for_jobs()?;
        self.shared.told(untold, again_at).await
    }
}
