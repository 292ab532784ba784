//! Jobs in this process: the store that has them all, who waits for their ends, and the memory that inputs and results may take.

mod room;
mod seldom;
mod shares;

use std::sync::Arc;
use std::time::Duration;

use nevertwice_config::checked::Jobs as Rules;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobId, JobStatus};
use nevertwice_domain::tenant::UpstreamName;
use nevertwice_store::StoreError;
use nevertwice_store::work::{JobBounds, JobStore};
use tokio::sync::{Semaphore, SemaphorePermit, broadcast};

use crate::metrics::JobMetrics;
use crate::webhook::Webhooks;

pub(crate) use room::Room;
pub(crate) use seldom::Seldom;
pub(crate) use shares::Shares;

/// Requests that wait for the end of a job at once; what is beyond is answered at once.
const WAITERS: usize = 1024;
/// Ends that are told at once; whoever misses one looks into the store, as for an end in another process.
const TOLD: usize = 1024;
/// A job that does not come to its end is kept so long at least, however soon ended ones are removed.
const UNENDED_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// See the module.
pub(crate) struct Jobs {
    pub(crate) store: Arc<dyn JobStore>,
    pub(crate) rules: Rules,
    /// Whether several tenants share the room: each has half of it at most then, so that no one of them shuts the others out.
    shared: bool,
    /// What links begin with.
    pub(crate) base: String,
    /// For inputs on their way to the store.
    pub(crate) submitted: Room,
    /// For results on their way to the store.
    pub(crate) results: Room,
    /// For results on their way to clients.
    pub(crate) fetched: Room,
    /// What each of those is a quarter of.
    memory: u64,
    ended: broadcast::Sender<JobId>,
    given_up: broadcast::Sender<JobId>,
    waiting: Semaphore,
    store_trouble: Seldom,
    webhooks: Option<Arc<Webhooks>>,
    metrics: JobMetrics,
}

impl Jobs {
    pub(crate) fn new(
        store: Arc<dyn JobStore>,
        rules: Rules,
        shared: bool,
        base: String,
        memory: u64,
        webhooks: Option<Arc<Webhooks>>,
        metrics: JobMetrics,
    ) -> Self {
        let quarter = |longest: u64| Room::new((memory / 4).max(longest));
        Self {
            store,
            shared,
            base,
            submitted: quarter(rules.input_max_bytes),
            results: quarter(rules.result_max_bytes),
            // so that a tenant's half has room for the longest
            fetched: quarter(rules.result_max_bytes.saturating_mul(2)),
            memory,
            rules,
            ended: broadcast::Sender::new(TOLD),
            given_up: broadcast::Sender::new(TOLD),
            waiting: Semaphore::new(WAITERS),
            store_trouble: Seldom::default(),
            webhooks,
            metrics,
        }
    }

    /// Says in the log that the store failed, once in ten seconds: a store that is away fails every request and every worker.
    pub(crate) fn store_failed(&self, what: &'static str, error: &StoreError) {
        if self.store_trouble.is_due() {
            tracing::warn!(what, %error, "the store of jobs failed");
        }
    }

    /// The memory for inputs in the hands of the workers of one of so many upstreams. Each has its own, so that one that is slow does
    /// not stop the jobs of others.
    pub(crate) fn inputs_of_one(&self, upstreams: usize) -> Room {
        let share = self.memory / 4 / u64::try_from(upstreams).unwrap_or(u64::MAX).max(1);
        Room::new(share.max(self.rules.input_max_bytes))
    }

    /// When a job that ends now is removed.
    pub(crate) fn expires_at(&self, now: Millis) -> Millis {
        after(now, self.rules.retention)
    }

    /// The bounds of one that is submitted now, as this.
    pub(crate) fn bounds(&self, now: Millis, status: JobStatus) -> JobBounds {
        let expires_at = match status.is_final() {
            true => self.expires_at(now),
            false => after(now, self.rules.retention.max(UNENDED_LIFE)),
        };
        let of_one = |all: u64| if self.shared { all.div_ceil(2) } else { all };
        let Rules { max_queued, max_bytes, .. } = self.rules;
        JobBounds {
            max_queued,
            tenant_max_queued: of_one(max_queued),
            max_bytes,
            tenant_max_bytes: of_one(max_bytes),
            expires_at,
        }
    }

    /// A job has come to its end, by this process's doing: whoever waits for it is told.
    pub(crate) fn tell_end(&self, id: JobId, upstream: &UpstreamName, status: JobStatus, webhook: bool) {
        self.metrics.ended(upstream, status);
        // nobody may be waiting
        let _ = self.ended.send(id);
        if let (Some(webhooks), true) = (&self.webhooks, webhook) {
            webhooks.wake();
        }
    }

    /// Whether webhooks are called, and whether also at addresses that are not public.
    pub(crate) fn webhooks(&self) -> Option<&Arc<Webhooks>> {
        self.webhooks.as_ref()
    }

    /// A job's owner has given it up: a worker of this process that has it is told at once.
    pub(crate) fn tell_given_up(&self, id: JobId) {
        let _ = self.given_up.send(id);
    }

    /// Gives a job up, for whoever may: those who wait for its end are told, and a worker of this process that has it. Returns it as it
    /// is then, and whether it was given up by this.
    pub(crate) async fn cancel(&self, id: &JobId, now: Millis) -> Result<Option<(Job, bool)>, StoreError> {
        let Some(before) = self.store.job(id).await? else { return Ok(None) };
        let Some(job) = self.store.cancel(id, self.expires_at(now)).await? else { return Ok(None) };
        let cancelled = job.status == JobStatus::Cancelled;
        let changed = !before.status.is_final() && !before.cancel && (job.cancel || cancelled);
        if changed && cancelled {
            self.tell_end(*id, &job.upstream, job.status, job.webhook.is_some());
        }
        self.tell_given_up(*id);
        Ok(Some((job, changed)))
    }

    /// Lets one that has failed wait again. Returns it as it is then, and whether that changed anything.
    pub(crate) async fn retry(&self, id: &JobId) -> Result<Option<(Job, bool)>, StoreError> {
        let Some(before) = self.store.job(id).await? else { return Ok(None) };
        let Some(job) = self.store.retry(id).await? else { return Ok(None) };
        let changed = before.status == JobStatus::Failed && job.status != JobStatus::Failed;
        Ok(Some((job, changed)))
    }

    /// Hears of jobs that are given up from now on.
    pub(crate) fn given_up(&self) -> Told {
        Told(self.given_up.subscribe())
    }

    /// A place among those who wait for ends, and the news of ends from now on; `None` = too many wait.
    pub(crate) fn wait(&self) -> Option<(SemaphorePermit<'_>, Told)> {
        let place = self.waiting.try_acquire().ok()?;
        Some((place, Told(self.ended.subscribe())))
    }

    /// Brings the gauges up to date.
    pub(crate) async fn measure(&self, within: Duration) {
        if let Ok(Ok(depths)) = tokio::time::timeout(within, self.store.depth()).await {
            self.metrics.set_depth(&depths);
        }
        if let Ok(Ok(bytes)) = tokio::time::timeout(within, self.store.stored_bytes()).await {
            self.metrics.set_stored_bytes(bytes);
        }
    }
}

/// So long from now.
pub(crate) fn after(now: Millis, time: Duration) -> Millis {
    now.plus_ms(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// News of jobs.
pub(crate) struct Told(broadcast::Receiver<JobId>);

impl Told {
    /// Waits until there may be news of this job.
    pub(crate) async fn of(&mut self, id: &JobId) {
        loop {
            match self.0.recv().await {
                Ok(told) if told != *id => {}
                // what was missed may have been this one
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use nevertwice_domain::clock::ManualClock;
    use nevertwice_store::work::memory::WorkInMemory;

    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn a_job_that_does_not_end_is_there_for_a_week_at_least() {
        const DAY: u64 = 86_400_000;
        let now = Millis(1_000_000);
        for (days, week) in [(1, 7), (30, 30)] {
            let rules = Rules {
                input_max_bytes: 1,
                result_max_bytes: 1,
                max_queued: 1,
                max_bytes: 1,
                retention: Duration::from_millis(days * DAY),
                max_attempts: 1,
                retry_first: Duration::ZERO,
                retry_max: Duration::ZERO,
                webhooks: None,
            };
            let store = Arc::new(WorkInMemory::new(Arc::new(ManualClock::at(now))));
            let metrics = Metrics::new(false).jobs(iter::empty());
            let jobs = Jobs::new(store, rules, false, String::new(), 1, None, metrics);
            assert_eq!(jobs.bounds(now, JobStatus::Queued).expires_at, now.plus_ms(week * DAY));
            assert_eq!(jobs.bounds(now, JobStatus::Failed).expires_at, now.plus_ms(days * DAY));
            assert_eq!(jobs.expires_at(now), now.plus_ms(days * DAY));
        }
    }
}
