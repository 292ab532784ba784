//! Operations and jobs on one machine: one SQLite file, durable, for one process.
//!
//! One thread writes, and answers after the commit is on disk; two read. Nothing but counts is held in memory, a few and two of
//! each tenant: what waits, waits in the file. An exclusive lock keeps a second process out, so a claim of a process before is one of the dead.
//!
//! The files in the directory: `work.sqlite3` (with `-wal` and `-shm` while it is open) and `work.lock`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::Selector;
use nevertwice_domain::job::{Job, JobId};
use nevertwice_domain::operation::{Operation, OperationId};
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use self::counts::Counts;
use self::reader::Reader;
use self::steps::{Next, Steps};
use self::writer::{Asked, ClaimNext, Request, Writer};
use super::{
    Claim, Held, JobBounds, JobDepth, JobEnd, JobPage, JobQuery, JobStore, OperationStore, Submitted, Untold,
    life,
};
use crate::sqlite::failure;
use crate::{StoreError, StoreErrorKind};

mod counts;
mod open;
mod operations;
mod reader;
mod schema;
mod steps;
mod untold;
mod writer;

/// How many requests may wait for the writer.
const QUEUE: usize = 4096;

/// How many bytes of bodies may wait for the writer, and one body more.
const QUEUE_BYTES: usize = 64 * 1024 * 1024;

/// How long the store's end is waited for when it is dropped.
const DROP_WAIT: Duration = Duration::from_secs(5);

/// How long a waiter goes without another look, whatever the clock says.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Operations and jobs in a directory. Dropping it ends it: what was asked before is done first.
pub struct SqliteWork {
    clock: Arc<dyn Clock>,
    shared: Arc<Shared>,
    queued_bytes: Arc<AtomicUsize>,
    /// `None` only while it is dropped, as the writer.
    reader: Option<Reader>,
    writer: Option<SyncSender<Box<dyn Request>>>,
    /// Closed when the writer has ended.
    ended: Mutex<Receiver<()>>,
}

/// What the writer and those who ask it both know.
#[derive(Default)]
struct Shared {
    /// Of each upstream, the jobs that wait and those that run.
    jobs: Mutex<BTreeMap<UpstreamName, (u64, u64)>>,
    /// Bytes of inputs and results.
    bytes: AtomicU64,
    /// Who waits for a job of which upstream.
    waiters: Mutex<BTreeMap<UpstreamName, Arc<Notify>>>,
    /// Claims that did not arrive.
    returned: Mutex<Vec<(JobId, String)>>,
}

impl Shared {
    fn publish(&self, counts: &Counts) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&counts.jobs);
        self.bytes.store(counts.bytes, Ordering::Relaxed);
    }

    /// Whether there is anything to look for.
    fn has_work(&self, upstream: &UpstreamName) -> bool {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).contains_key(upstream)
    }

    fn waiters(&self, upstream: &UpstreamName) -> Arc<Notify> {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(waiters.entry(upstream.clone()).or_default())
    }

    /// Wakes one who waits, or the next who does.
    fn wake(&self, upstream: &UpstreamName) {
        let waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiters) = waiters.get(upstream) {
            waiters.notify_one();
        }
    }
}

/// What SQLite's failure means here.
fn failed(error: &rusqlite::Error) -> StoreError {
    failure::of("the store of jobs", error)
}

fn closed() -> StoreError {
    StoreErrorKind::Closed.error("the store of jobs was closed")
}

impl SqliteWork {
    /// Opens the store in `directory`, which is made if it is not there. Blocks until all operations and jobs have been verified. Jobs
    /// that a worker of another process had are handed out again at once.
    ///
    /// # Errors
    /// [`StoreErrorKind::InUse`] when another process has it; [`StoreErrorKind::Newer`] when a newer version wrote it;
    /// [`StoreErrorKind::Corrupt`] when the file is not what this program wrote; [`StoreErrorKind::Io`] or
    /// [`StoreErrorKind::Full`] when the machine says no. The message names the file and the cure. Nothing is changed then.
    pub fn open(directory: &Path, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let opened = open::open(directory)?;
        let no_thread =
            |e| StoreErrorKind::Io.error(format!("cannot start a thread of the store of jobs: {e}"));
        let (reader, readers) = Reader::start(opened.readers).map_err(no_thread)?;
        let shared = Arc::<Shared>::default();
        shared.publish(&opened.counts);
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let (ending, ended) = mpsc::sync_channel(1);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            connection: opened.writer,
            opened: clock.steady(),
            clock: Arc::clone(&clock),
            counts: opened.counts,
            shares: opened.shares,
            shared: Arc::clone(&shared),
            queued_bytes: Arc::clone(&queued_bytes),
            readers,
            failing: false,
            lock: opened.lock,
        };
        let run = move || {
            writer.run(&receiver);
            drop::<SyncSender<()>>(ending);
        };
        thread::Builder::new().name("work-write".into()).spawn(run).map_err(no_thread)?;
        Ok(Self {
            clock,
            shared,
            queued_bytes,
            reader: Some(reader),
            writer: Some(sender),
            ended: Mutex::new(ended),
        })
    }

    /// Has the writer do it. It is done even when the caller does not wait for the answer.
    async fn ask<T: Send + 'static>(
        &self,
        weight: usize,
        what: impl FnMut(&mut Steps<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.send(Box::new(Asked { what, weight, outcome: None, answer }))?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    fn send(&self, request: Box<dyn Request>) -> Result<(), StoreError> {
        let weight = request.weight();
        if self.queued_bytes.fetch_add(weight, Ordering::Relaxed) > QUEUE_BYTES && weight > 0 {
            self.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            return Err(StoreErrorKind::Busy.error("too many bytes wait to be written to the store of jobs"));
        }
        let Some(writer) = &self.writer else { return Err(closed()) };
        writer.try_send(request).map_err(|error| {
            self.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => {
                    StoreErrorKind::Busy.error(format!("{QUEUE} requests wait for the store of jobs"))
                }
                TrySendError::Disconnected(_) => closed(),
            }
        })
    }

    async fn read<T: Send + 'static>(
        &self,
        what: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.reader {
            Some(reader) => reader.read(what).await,
            None => Err(closed()),
        }
    }

    async fn next(&self, upstream: &UpstreamName) -> Result<Next, StoreError> {
        if !self.shared.has_work(upstream) {
            return Ok(Next::NotBefore(None));
        }
        let (answer, answered) = oneshot::channel();
        self.send(Box::new(ClaimNext {
            upstream: upstream.clone(),
            outcome: None,
            answer,
            shared: Arc::clone(&self.shared),
        }))?;
        let handed = answered.await.unwrap_or_else(|_| Err(closed()))?;
        Ok(handed.take())
    }
}

#[async_trait]
impl OperationStore for SqliteWork {
    async fn put(&self, operation: &Operation) -> Result<(), StoreError> {
        let operation = operation.clone();
        self.ask(0, move |steps| steps.put_operation(&operation)).await
    }

    async fn operation(&self, id: &OperationId) -> Result<Option<Operation>, StoreError> {
        let (id, now) = (*id, self.clock.now());
        self.read(move |connection| operations::read(connection, &id, now)).await
    }

    async fn settle(&self, id: &OperationId) -> Result<bool, StoreError> {
        let id = *id;
        self.ask(0, move |steps| steps.settle_operation(&id)).await
    }

    async fn remove(&self, id: &OperationId) -> Result<(), StoreError> {
        let id = *id;
        self.ask(0, move |steps| steps.remove_operation(&id)).await
    }

    async fn due(&self, now: Millis, again_at: Millis, limit: usize) -> Result<Vec<Operation>, StoreError> {
        self.ask(0, move |steps| steps.due(now, again_at, limit)).await
    }

    async fn forget_pending(&self, which: &Selector) -> Result<(), StoreError> {
        let which = which.clone();
        self.ask(0, move |steps| steps.forget_pending(&which)).await
    }
}

#[async_trait]
impl JobStore for SqliteWork {
    async fn submit(
        &self,
        job: Job,
        input: Bytes,
        result: Option<Bytes>,
        bounds: &JobBounds,
    ) -> Result<Submitted, StoreError> {
        let bounds = *bounds;
        // it is not kept, and so does not count for what waits
        let input = if job.status.is_final() { Bytes::new() } else { input };
        let bytes = input.len() + result.as_ref().map_or(0, Bytes::len);
        self.ask(bytes, move |steps| steps.submit(&job, &input, result.as_ref(), &bounds)).await
    }

    async fn job(&self, id: &JobId) -> Result<Option<Job>, StoreError> {
        let (id, now) = (*id, self.clock.now());
        self.read(move |connection| reader::job(connection, &id, now)).await
    }

    async fn input(&self, id: &JobId) -> Result<Option<Bytes>, StoreError> {
        let (id, now) = (*id, self.clock.now());
        self.read(move |connection| reader::body(connection, "inputs", &id, now)).await
    }

    async fn result(&self, id: &JobId) -> Result<Option<Bytes>, StoreError> {
        let (id, now) = (*id, self.clock.now());
        self.read(move |connection| reader::body(connection, "results", &id, now)).await
    }

    async fn list(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        let (query, now) = (query.clone(), self.clock.now());
        self.read(move |connection| reader::list(connection, &query, now)).await
    }

    async fn depth(&self) -> Result<Vec<JobDepth>, StoreError> {
        let jobs = self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let depth = |(upstream, (queued, running))| JobDepth { upstream, queued, running };
        Ok(jobs.into_iter().map(depth).collect())
    }

    async fn stored_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.shared.bytes.load(Ordering::Relaxed))
    }

    async fn cancel(&self, id: &JobId, expires_at: Millis) -> Result<Option<Job>, StoreError> {
        let id = *id;
        self.ask(0, move |steps| steps.cancel(&id, expires_at)).await
    }

    async fn retry(&self, id: &JobId) -> Result<Option<Job>, StoreError> {
        let id = *id;
        self.ask(0, move |steps| steps.retry(&id)).await
    }

    async fn claim(&self, upstream: &UpstreamName, wait: Duration) -> Result<Option<Claim>, StoreError> {
        let end = Instant::now() + wait;
        let waiters = self.shared.waiters(upstream);
        loop {
            let next = match self.next(upstream).await? {
                Next::Claimed(claim) => return Ok(Some(*claim)),
                Next::NotBefore(next) => next,
            };
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            let due = next.map_or(LOOK_AGAIN, |at| Duration::from_millis(at.since_ms(self.clock.now())));
            // Whoever is woken while nobody waits is remembered; whether it was news or time, a look tells.
            let _ = tokio::time::timeout(rest.min(due).min(LOOK_AGAIN), waiters.notified()).await;
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Held, StoreError> {
        let (id, token) = (claim.job.id, claim.token.clone());
        self.ask(0, move |steps| steps.renew(&id, &token)).await
    }

    async fn sending(&self, claim: &Claim) -> Result<bool, StoreError> {
        let (id, token) = (claim.job.id, claim.token.clone());
        self.ask(0, move |steps| steps.sending(&id, &token)).await
    }

    async fn settle_job(&self, claim: &Claim, end: JobEnd) -> Result<bool, StoreError> {
        life::check(&end)?;
        let (id, token) = (claim.job.id, claim.token.clone());
        let weight = match &end {
            JobEnd::Final { result: Some((_, body)), .. } => body.len(),
            _ => 0,
        };
        self.ask(weight, move |steps| steps.end(&id, &token, &end)).await
    }

    async fn tenants_to_tell(&self) -> Result<Vec<TenantId>, StoreError> {
        let now = self.clock.now();
        self.read(move |connection| untold::tenants(connection, now)).await
    }

    async fn to_tell(
        &self,
        tenant: &TenantId,
        again_at: Millis,
        limit: usize,
    ) -> Result<Vec<Untold>, StoreError> {
        let tenant = tenant.clone();
        self.ask(0, move |steps| steps.tell_due(&tenant, again_at, limit)).await
    }

    async fn told(&self, untold: &Untold, again_at: Option<Millis>) -> Result<bool, StoreError> {
        let untold = untold.clone();
        self.ask(0, move |steps| steps.told(&untold, again_at)).await
    }
}

impl Drop for SqliteWork {
    fn drop(&mut self) {
        // The threads end when nobody can ask them any more.
        self.reader = None;
        self.writer = None;
        if let Ok(ended) = self.ended.lock() {
            // Bounded, should the disk hang; an error is what says that the thread has ended.
            let _ = ended.recv_timeout(DROP_WAIT);
        }
    }
}
