//! The one thread that writes. It takes what has come together in the queue, does it in one transaction, and answers when
//! the commit is on disk: many submits share one flush of the disk, and what was answered is never lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nevertwice_domain::clock::Clock;
use nevertwice_domain::job::JobId;
use nevertwice_domain::tenant::UpstreamName;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::counts::{Counts, Shares};
use super::steps::{Next, Steps};
use super::{Shared, failed};
use crate::sqlite::failure;
use crate::sqlite::file::Lock;
use crate::{StoreError, StoreErrorKind};

/// At most this many requests share a commit.
const GROUP: usize = 512;

/// How long the thread sleeps when nothing comes.
const TICK: Duration = Duration::from_millis(250);

/// How often what has expired is removed.
const SWEEP: Duration = Duration::from_millis(500);

/// With more free pages than this, and than a quarter of the file, pages are given back to the disk.
const FREE_PAGES: i64 = 4096;

/// How many at once.
const SHRINK_PAGES: u32 = 4096;

/// What the writer is asked, and who waits for the answer.
pub(super) trait Request: Send {
    /// Does it. May be done again, when the transaction did not come to its end.
    fn perform(&mut self, steps: &mut Steps<'_>) -> rusqlite::Result<()>;

    /// Tells what became of it. Nobody may wait any more; it is done all the same.
    fn answer(self: Box<Self>, done: Result<(), StoreError>);

    /// How many bytes of bodies wait in the queue with it.
    fn weight(&self) -> usize {
        0
    }
}

/// A request that is a function.
pub(super) struct Asked<T, F> {
    pub(super) what: F,
    pub(super) weight: usize,
    pub(super) outcome: Option<T>,
    pub(super) answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&mut Steps<'_>) -> rusqlite::Result<T> + Send> Request for Asked<T, F> {
    fn perform(&mut self, steps: &mut Steps<'_>) -> rusqlite::Result<()> {
        self.outcome = Some((self.what)(steps)?);
        Ok(())
    }

    fn answer(self: Box<Self>, done: Result<(), StoreError>) {
        let Self { outcome, answer, .. } = *self;
        let _ = answer.send(done.and_then(|()| outcome.ok_or_else(super::closed)));
    }

    fn weight(&self) -> usize {
        self.weight
    }
}

/// A request for the next job.
pub(super) struct ClaimNext {
    pub(super) upstream: UpstreamName,
    pub(super) outcome: Option<Next>,
    pub(super) answer: oneshot::Sender<Result<Handed, StoreError>>,
    pub(super) shared: Arc<Shared>,
}

impl Request for ClaimNext {
    fn perform(&mut self, steps: &mut Steps<'_>) -> rusqlite::Result<()> {
        self.outcome = Some(steps.claim(&self.upstream)?);
        Ok(())
    }

    fn answer(self: Box<Self>, done: Result<(), StoreError>) {
        let Self { outcome, answer, shared, .. } = *self;
        let next = done.and_then(|()| outcome.ok_or_else(super::closed));
        let _ = answer.send(next.map(|next| Handed { next: Some(next), shared }));
    }
}

/// A claim on its way to the worker. One that does not arrive is given back.
pub(super) struct Handed {
    next: Option<Next>,
    shared: Arc<Shared>,
}

impl Handed {
    /// It has arrived.
    pub(super) fn take(mut self) -> Next {
        self.next.take().unwrap_or(Next::NotBefore(None))
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(Next::Claimed(claim)) = self.next.take() {
            let mut returned = self.shared.returned.lock().unwrap_or_else(PoisonError::into_inner);
            returned.push((claim.job.id, claim.token));
        }
    }
}

/// A claim that did not arrive.
struct GiveBack(JobId, String);

impl Request for GiveBack {
    fn perform(&mut self, steps: &mut Steps<'_>) -> rusqlite::Result<()> {
        steps.give_back(&self.0, &self.1)
    }

    fn answer(self: Box<Self>, done: Result<(), StoreError>) {
        if let Err(error) = done {
            tracing::debug!(job = %self.0, %error, "the job comes when its claim has lapsed");
        }
    }
}

/// Everything the thread owns.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) clock: Arc<dyn Clock>,
    /// When the file was opened.
    pub(super) opened: Instant,
    pub(super) counts: Counts,
    pub(super) shares: Shares,
    pub(super) shared: Arc<Shared>,
    pub(super) queued_bytes: Arc<AtomicUsize>,
    pub(super) readers: Vec<JoinHandle<()>>,
    /// Whether the latest commit failed: a full disk is one line in the log, not one per request.
    pub(super) failing: bool,
    /// Held as long as the file is open.
    pub(super) lock: Lock,
}

/// Why a transaction was rolled back, and at which request, if it was at one.
struct Failed {
    error: rusqlite::Error,
    at: Option<usize>,
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self { error, at: None }
    }
}

impl Writer {
    /// Works until nobody can ask any more.
    pub(super) fn run(mut self, requests: &Receiver<Box<dyn Request>>) {
        let mut last_sweep = Instant::now();
        let mut log_grew = false;
        loop {
            let mut group = match requests.recv_timeout(TICK) {
                Ok(first) => gather(first, requests),
                Err(RecvTimeoutError::Timeout) => {
                    if std::mem::take(&mut log_grew) {
                        self.fold_log();
                    } else {
                        log_grew = self.shrink();
                    }
                    Vec::new()
                }
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            };
            let returned =
                std::mem::take(&mut *self.shared.returned.lock().unwrap_or_else(PoisonError::into_inner));
            group.extend(
                returned.into_iter().map(|(id, token)| Box::new(GiveBack(id, token)) as Box<dyn Request>),
            );
            if !group.is_empty() {
                let bytes = group.iter().map(|request| request.weight()).sum();
                self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
                self.commit(group);
                log_grew = true;
            }
            if last_sweep.elapsed() >= SWEEP {
                last_sweep = Instant::now();
                log_grew |= self.sweep();
            }
        }
    }

    /// Does all of the group, and answers. What meets damage in the file is taken out, and the others, which have nothing to do
    /// with it, are done without it. Where the disk has no room for all, each is tried alone: a big one must not take the small ones
    /// along.
    fn commit(&mut self, mut group: Vec<Box<dyn Request>>) {
        loop {
            let Err(Failed { error, at }) = self.transact(|steps| perform(&mut group, steps)) else {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("operations and jobs can be written again");
                }
                for request in group {
                    request.answer(Ok(()));
                }
                return;
            };
            let damaged = failure::is_damage(&error);
            let error = failed(&error);
            match at {
                Some(at) if damaged && at < group.len() => group.remove(at).answer(Err(error)),
                _ if error.kind == StoreErrorKind::Full && group.len() > 1 => {
                    for request in group {
                        self.commit(vec![request]);
                    }
                    return;
                }
                _ => {
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(%error, "operations and jobs cannot be written: none is taken in until they can");
                    }
                    for request in group {
                        request.answer(Err(error.again()));
                    }
                    return;
                }
            }
        }
    }

    /// One transaction: all of it is done and known, or nothing.
    fn transact(&mut self, what: impl FnOnce(&mut Steps<'_>) -> Result<(), Failed>) -> Result<(), Failed> {
        let done = self.try_to(what);
        if done.is_ok() {
            self.shares.keep();
        } else {
            self.shares.undo();
        }
        done
    }

    fn try_to(&mut self, what: impl FnOnce(&mut Steps<'_>) -> Result<(), Failed>) -> Result<(), Failed> {
        let mut counts = self.counts.clone();
        let mut news = Vec::new();
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = self.clock.now();
        let steady = self.clock.steady().saturating_duration_since(self.opened);
        let steady_ms = i64::try_from(steady.as_millis()).unwrap_or(i64::MAX);
        what(&mut Steps {
            connection: &transaction,
            counts: &mut counts,
            shares: &mut self.shares,
            news: &mut news,
            now,
            steady_ms,
        })?;
        transaction.commit()?;
        if counts != self.counts {
            self.shared.publish(&counts);
            self.counts = counts;
        }
        for upstream in news {
            self.shared.wake(&upstream);
        }
        Ok(())
    }

    /// Removes some of what has expired. Returns whether anything was written.
    fn sweep(&mut self) -> bool {
        let now = self.clock.now().0;
        let sql = "SELECT EXISTS (SELECT 1 FROM jobs WHERE removed_at <= ?1) OR \
                   EXISTS (SELECT 1 FROM operations WHERE expires_at <= ?1)";
        let any =
            self.connection.prepare_cached(sql).and_then(|mut any| any.query_row([now], |row| row.get(0)));
        let swept = match any {
            Ok(true) => {
                self.transact(|steps| Ok(steps.sweep_jobs().and_then(|()| steps.sweep_operations())?))
            }
            Ok(false) => return false,
            Err(error) => Err(error.into()),
        };
        if let Err(Failed { error, .. }) = &swept {
            tracing::debug!(%error, "what has expired stays in the file until it can be removed");
        }
        swept.is_ok()
    }

    /// Copies the log into the file while nothing else is to be done, so that little depends on the log alone.
    fn fold_log(&self) {
        if let Err(error) = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            tracing::debug!(%error, "the log was not folded in, and will be later");
        }
    }

    /// Gives some pages back to the disk while nothing else is to be done, if many are free. Returns whether it did.
    fn shrink(&self) -> bool {
        let shrunk = self.free_pages().and_then(|(free, all)| {
            if free <= FREE_PAGES || free <= all / 4 {
                return Ok(false);
            }
            let mut vacuum =
                self.connection.prepare(&format!("PRAGMA incremental_vacuum({SHRINK_PAGES})"))?;
            let mut pages = vacuum.query([])?;
            // A step for each page.
            while pages.next()?.is_some() {}
            Ok(true)
        });
        shrunk.unwrap_or_else(|error| {
            tracing::debug!(%error, "free pages stay in the file");
            false
        })
    }

    fn free_pages(&self) -> rusqlite::Result<(i64, i64)> {
        let value = |name| self.connection.pragma_query_value(None, name, |row| row.get(0));
        Ok((value("freelist_count")?, value("page_count")?))
    }

    /// Folds the log into the file and lets go of both.
    fn finish(self) {
        // The readers answer what they were asked before; one that panicked has nothing more to say.
        for reader in self.readers {
            let _ = reader.join();
        }
        // The last connection that closes folds the log in; one that cannot leaves it for the next start.
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "the store of jobs did not close cleanly");
        }
        drop(self.lock);
    }
}

fn perform(group: &mut [Box<dyn Request>], steps: &mut Steps<'_>) -> Result<(), Failed> {
    for (at, request) in group.iter_mut().enumerate() {
        request.perform(steps).map_err(|error| Failed { error, at: Some(at) })?;
    }
    Ok(())
}

/// What has come together in the queue.
fn gather(first: Box<dyn Request>, requests: &Receiver<Box<dyn Request>>) -> Vec<Box<dyn Request>> {
    let mut group = vec![first];
    while group.len() < GROUP
        && let Ok(request) = requests.try_recv()
    {
        group.push(request);
    }
    group
}
