//! The one thread that writes. It takes what has come together in the queue, does it in one transaction, and answers when
//! the commit is on disk: many records share one flush of the disk, and a record that was answered is never lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::{Candidate, Selector};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::UpstreamName;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::failure;
use super::file::Lock;
use super::index::{Change, Index};
use super::operations::Operations;
use super::reader::Reader;
use super::schema::{StoredTally, Totals};
use crate::fence::FenceLog;
use crate::{Fence, Imported, Moved, Recorded, StoreError};

/// At most this many operations share a commit.
const GROUP: usize = 512;

/// How long the thread sleeps when nothing comes.
const TICK: Duration = Duration::from_millis(250);

/// How old counts of replays may get before they are written, and how often the sweep runs. With the tick and a commit it
/// stays under the second that is promised.
const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// What the writer is asked.
pub(super) enum Work {
    Record {
        candidate: Box<Candidate>,
        fence: Fence,
    },
    Import {
        moved: Vec<Moved>,
        fence: Fence,
        max_entries: u64,
    },
    Accept {
        key: Fingerprint,
        upstream: UpstreamName,
    },
    Forget(Selector),
    Suspect {
        upstream: UpstreamName,
        since: Millis,
    },
    /// Removes a row that is damaged.
    Drop {
        key: Fingerprint,
        sequence: u64,
    },
    Close,
}

/// What it answers.
pub(super) enum Outcome {
    Recorded(Recorded),
    Imported(Vec<Imported>),
    Count(u64),
}

/// What comes back.
pub(super) type Answer = Result<Outcome, StoreError>;

/// A question and who waits for the answer.
pub(super) struct Request {
    pub(super) work: Work,
    pub(super) answer: oneshot::Sender<Answer>,
}

impl Work {
    /// How many bytes of bodies wait in the queue with it.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Record { candidate, .. } => candidate.entry.body.len(),
            Self::Import { moved, .. } => moved.iter().map(|moved| moved.entry.body.len()).sum(),
            _ => 0,
        }
    }
}

/// Everything the thread owns.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) index: Arc<Index>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) totals: Totals,
    /// Whether the latest commit failed: a full disk is one line in the log, not one per request.
    pub(super) failing: bool,
    /// Whether expired rows are removed: until the sweep meets damage in the file, which it would meet each time.
    pub(super) sweeps: bool,
    pub(super) queued_bytes: Arc<AtomicUsize>,
    pub(super) reader: Reader,
    pub(super) reader_thread: JoinHandle<()>,
    /// Held as long as the file is open.
    pub(super) lock: Lock,
}

/// Why a transaction was rolled back.
struct Failed {
    error: rusqlite::Error,
    at: Step,
}

/// What a transaction was doing.
enum Step {
    /// What concerns all of the group.
    Group,
    Sweep,
    /// The request at this place in the group.
    Request(usize),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self { error, at: Step::Group }
    }
}

impl Writer {
    /// Works until it is closed or nobody can ask any more.
    pub(super) fn run(mut self, requests: &Receiver<Request>) {
        let mut fences = FenceLog::default();
        let mut last_housekeeping = Instant::now();
        let mut log_grew = false;
        loop {
            let (group, closing) = match requests.recv_timeout(TICK) {
                Ok(first) => gather(first, requests),
                Err(RecvTimeoutError::Timeout) => {
                    if std::mem::take(&mut log_grew) {
                        self.fold_log();
                    }
                    (Vec::new(), None)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    if let Err(error) = self.finish() {
                        tracing::warn!(%error, "the last counts of replays were lost");
                    }
                    return;
                }
            };
            let housekeeping = last_housekeeping.elapsed() >= HOUSEKEEPING;
            if housekeeping {
                last_housekeeping = Instant::now();
            }
            if housekeeping || !group.is_empty() {
                log_grew |= self.commit(group, &mut fences, housekeeping);
            }
            if let Some(answer) = closing {
                let finished = self.finish();
                // An error says that nobody waits any more.
                let _ = answer.send(finished.map(|()| Outcome::Count(0)));
                return;
            }
        }
    }

    /// Does all of the group, or nothing of it, and answers. Returns whether it wrote anything. What meets damage in the file is
    /// taken out, and the others, which have nothing to do with it, are done without it.
    fn commit(&mut self, mut group: Vec<Request>, fences: &mut FenceLog, housekeeping: bool) -> bool {
        let bytes = group.iter().map(|request| request.work.weight()).sum();
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let (totals, fence) = (self.totals.clone(), fences.now());
        let counts = if housekeeping { self.index.take_dirty() } else { Vec::new() };
        loop {
            let failed = match self.transact(&group, &counts, fences, housekeeping) {
                Ok((outcomes, changes)) => {
                    let wrote = !counts.is_empty() || changes.iter().any(Change::is_in_the_file);
                    // A commit of nothing proves nothing.
                    if wrote && std::mem::take(&mut self.failing) {
                        tracing::info!("the refusal store can be written again");
                    }
                    fences.settle();
                    self.index.apply(changes);
                    for (request, outcome) in group.into_iter().zip(outcomes) {
                        // An error says that nobody waits any more; what was asked for is done all the same.
                        let _ = request.answer.send(Ok(outcome));
                    }
                    return wrote;
                }
                Err(failed) => failed,
            };
            self.totals = totals.clone();
            fences.roll_back(fence);
            let damaged = failure::is_damage(&failed.error);
            let error = StoreError::from(failed.error);
            match failed.at {
                Step::Request(at) if damaged && at < group.len() => {
                    let _ = group.remove(at).answer.send(Err(error));
                }
                Step::Sweep if damaged => {
                    self.sweeps = false;
                    tracing::warn!(%error, "expired entries stay in the refusal store until its file is whole again");
                }
                _ => {
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(%error, "the refusal store cannot be written: nothing is recorded until it can");
                    }
                    self.index.put_back_dirty(counts.into_iter().map(|(key, _)| key));
                    for request in group {
                        let _ = request.answer.send(Err(error.again()));
                    }
                    return false;
                }
            }
        }
    }

    fn transact(
        &mut self,
        group: &[Request],
        counts: &[(Fingerprint, StoredTally)],
        fences: &mut FenceLog,
        housekeeping: bool,
    ) -> Result<(Vec<Outcome>, Vec<Change>), Failed> {
        let before = self.totals.clone();
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut operations =
            Operations { connection: &transaction, totals: &mut self.totals, fences, changes: Vec::new() };
        // First, because an operation may mark or replace what was counted.
        operations.flush(counts)?;
        if housekeeping && self.sweeps {
            operations.sweep(self.clock.now()).map_err(|error| Failed { error, at: Step::Sweep })?;
        }
        let mut outcomes = Vec::with_capacity(group.len());
        for (at, request) in group.iter().enumerate() {
            let done = perform(&mut operations, &request.work, self.clock.now());
            outcomes.push(done.map_err(|error| Failed { error, at: Step::Request(at) })?);
        }
        let changes = operations.changes;
        if self.totals != before {
            self.totals.insert(&transaction)?;
        }
        transaction.commit()?;
        Ok((outcomes, changes))
    }

    /// Copies the log into the file while nothing else is to be done, so that little depends on the log alone.
    fn fold_log(&self) {
        if let Err(error) = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            tracing::debug!(%error, "the log was not folded in, and will be later");
        }
    }

    /// Writes the last counts, folds the log into the file and lets go of both.
    fn finish(mut self) -> Result<(), StoreError> {
        let counts = self.index.take_dirty();
        let flushed = self.transact(&[], &counts, &mut FenceLog::default(), false);
        self.reader.stop();
        // The reader answers what it was asked before; a thread that panicked has nothing more to say.
        let _ = self.reader_thread.join();
        // The last connection that closes folds the log in; one that cannot leaves it for the next start.
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "the refusal store did not close cleanly");
        }
        drop(self.lock);
        flushed.map(|_| ()).map_err(|failed| failed.error.into())
    }
}

fn perform(operations: &mut Operations<'_>, work: &Work, now: Millis) -> rusqlite::Result<Outcome> {
    Ok(match work {
        Work::Record { candidate, fence } => Outcome::Recorded(operations.record(candidate, *fence, now)?),
        Work::Import { moved, fence, max_entries } => {
            Outcome::Imported(operations.import(moved, *fence, *max_entries, now)?)
        }
        Work::Accept { key, upstream } => Outcome::Count(operations.accept(key, upstream, now)?),
        Work::Forget(which) => Outcome::Count(operations.forget(which, now)?),
        Work::Suspect { upstream, since } => Outcome::Count(operations.suspect(upstream, *since, now)?),
        Work::Drop { key, sequence } => {
            operations.remove(*sequence, *key, false)?;
            Outcome::Count(1)
        }
        Work::Close => Outcome::Count(0),
    })
}

/// What has come together in the queue, and who waits for the end if it is to end.
fn gather(first: Request, requests: &Receiver<Request>) -> (Vec<Request>, Option<oneshot::Sender<Answer>>) {
    let mut group = Vec::new();
    let mut next = Some(first);
    while let Some(request) = next {
        if matches!(request.work, Work::Close) {
            return (group, Some(request.answer));
        }
        group.push(request);
        next = if group.len() < GROUP { requests.try_recv().ok() } else { None };
    }
    (group, None)
}
