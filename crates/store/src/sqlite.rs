//! The embedded store: one SQLite file, durable, for one process.
//!
//! Each request first looks into an index in memory that knows every entry, so that a miss, which is the common case, touches
//! no disk. One thread writes, and answers after the commit is on disk; another reads the bodies that are not in memory. An
//! exclusive lock keeps a second process out, and every row is verified at start: a file that is there and cannot be
//! trusted is a refusal to start, never an empty memory.
//!
//! The files in the directory: `refusals.sqlite3` (with `-wal` and `-shm` while it is open) and `lock`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::{Candidate, Entry, Selector};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use tokio::sync::oneshot;

use self::index::{Change, Found, Index};
use self::reader::{Read, Reader};
use self::writer::{Answer, Outcome, Request, Work, Writer};
use crate::{
    Fence, Imported, ListQuery, Moved, Page, Recalled, Recorded, RefusalStore, Shown, StoreError,
    StoreErrorKind,
};

pub(crate) mod failure;
pub(crate) mod file;
mod index;
mod open;
mod operations;
mod reader;
pub(crate) mod row;
mod schema;
mod wal;
mod writer;

/// How many operations may wait for the writer.
const QUEUE: usize = 4096;

/// How many bytes of bodies may wait for the writer.
const QUEUE_BYTES: usize = 64 * 1024 * 1024;

/// How long the store's end is waited for when it is dropped without having been closed.
const DROP_WAIT: Duration = Duration::from_secs(5);

/// How often a body is looked for when its entry is replaced at the same moment.
const READ_ATTEMPTS: u32 = 3;

/// The bounds of the embedded store.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// How many bytes of refusal bodies are kept in memory.
    pub near_bytes: u64,
    /// The size in bytes that the file may not exceed; what does not fit is not recorded. `None` = the disk decides.
    pub max_file_bytes: Option<u64>,
}

impl Default for SqliteOptions {
    /// 64 MiB of bodies in memory, and no bound on the file.
    fn default() -> Self {
        Self { near_bytes: 64 * 1024 * 1024, max_file_bytes: None }
    }
}

/// A store in a directory. Dropping it without [`RefusalStore::close`] ends it too, and then nobody learns whether the last
/// counts were written.
pub struct SqliteStore {
    clock: Arc<dyn Clock>,
    index: Arc<Index>,
    queued_bytes: Arc<AtomicUsize>,
    closed: AtomicBool,
    reader: Reader,
    /// `None` only while it is dropped.
    writer: Option<SyncSender<Request>>,
    /// Closed when the writer has ended.
    ended: Mutex<Receiver<()>>,
}

impl SqliteStore {
    /// Opens the store in `directory`, which is made if it is not there. Blocks until all entries have been read and verified.
    ///
    /// # Errors
    /// [`StoreErrorKind::InUse`] when another process has it; [`StoreErrorKind::Newer`] when a newer version wrote it;
    /// [`StoreErrorKind::Corrupt`] when the file is not what this program wrote; [`StoreErrorKind::Io`] or
    /// [`StoreErrorKind::Full`] when the machine says no. The message names the file and the cure. Nothing is changed then.
    pub fn open(directory: &Path, clock: Arc<dyn Clock>, options: SqliteOptions) -> Result<Self, StoreError> {
        let opened = open::open(directory, &options)?;
        let index = Arc::new(Index::new(options.near_bytes));
        for row in opened.rows {
            index.load(row);
        }
        let strikes =
            opened.strikes.into_iter().map(|fingerprint| Change::Strikes { fingerprint, kept: true });
        index.apply(strikes.chain(opened.accepted.into_iter().map(Change::Accepted)).collect());

        let no_thread =
            |e| StoreErrorKind::Io.error(format!("cannot start a thread of the refusal store: {e}"));
        let (reader, reader_thread) = Reader::start(opened.reader).map_err(no_thread)?;
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let (ending, ended) = mpsc::sync_channel(1);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            connection: opened.writer,
            index: Arc::clone(&index),
            clock: Arc::clone(&clock),
            totals: opened.totals,
            failing: false,
            sweeps: true,
            queued_bytes: Arc::clone(&queued_bytes),
            reader: reader.clone(),
            reader_thread,
            lock: opened.lock,
        };
        let run = move || {
            writer.run(&receiver);
            drop::<SyncSender<()>>(ending);
        };
        thread::Builder::new().name("store-write".into()).spawn(run).map_err(no_thread)?;
        Ok(Self {
            clock,
            index,
            queued_bytes,
            closed: AtomicBool::new(false),
            reader,
            writer: Some(sender),
            ended: Mutex::new(ended),
        })
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::SeqCst) { Err(StoreError::closed()) } else { Ok(()) }
    }

    /// Has the writer do it. It is done even when the caller does not wait for the answer.
    async fn ask(&self, work: Work) -> Result<Outcome, StoreError> {
        self.send(work)?.await.unwrap_or_else(|_| Err(StoreError::closed()))
    }

    fn send(&self, work: Work) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let weight = work.weight();
        if self.queued_bytes.fetch_add(weight, Ordering::Relaxed) > QUEUE_BYTES {
            self.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            return Err(StoreErrorKind::Busy.error("too many bytes wait to be written to the refusal store"));
        }
        let (answer, answered) = oneshot::channel();
        let sent = match &self.writer {
            Some(writer) => writer.try_send(Request { work, answer }),
            None => return Err(StoreError::closed()),
        };
        if let Err(error) = sent {
            self.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            return Err(match error {
                TrySendError::Full(_) => {
                    StoreErrorKind::Busy.error(format!("{QUEUE} operations wait for the refusal store"))
                }
                TrySendError::Disconnected(_) => StoreError::closed(),
            });
        }
        Ok(answered)
    }

    async fn count(&self, work: Work) -> Result<u64, StoreError> {
        match self.ask(work).await? {
            Outcome::Count(count) => Ok(count),
            _ => Err(another_question()),
        }
    }

    /// The whole entry that the index has found; `None` when it has gone meanwhile, or is damaged and goes now.
    async fn whole(&self, key: &Fingerprint, found: Found) -> Result<Option<Arc<Entry>>, StoreError> {
        let sequence = match found {
            Found::Whole(entry) => return Ok(Some(entry)),
            Found::InFile { sequence } => sequence,
        };
        Ok(match self.reader.read(sequence, *key).await? {
            Read::Whole(entry) => Some(entry).filter(|entry| self.index.keep(sequence, entry)),
            Read::Gone => None,
            Read::Damaged(reason) => {
                self.drop_damaged(*key, sequence, &reason);
                None
            }
        })
    }

    /// Takes a row that cannot be read out of memory, so that the next refusal is recorded, and out of the file if SQLite can
    /// still remove it.
    fn drop_damaged(&self, key: Fingerprint, sequence: u64, reason: &str) {
        if self.index.drop_damaged(&key, sequence) {
            tracing::error!(
                fingerprint = %key, reason,
                "a stored entry is damaged and was dropped: the next refusal is recorded in its place"
            );
            if let Err(error) = self.send(Work::Drop { key, sequence }) {
                tracing::debug!(fingerprint = %key, %error, "the damaged entry stays in the file until it is replaced");
            }
        }
    }
}

fn another_question() -> StoreError {
    StoreErrorKind::Io.error("the refusal store answered another question")
}

#[async_trait]
impl RefusalStore for SqliteStore {
    fn near(&self, key: &Fingerprint) -> Option<Arc<Entry>> {
        self.check_open().ok()?;
        match self.index.servable(key, self.clock.now())? {
            Found::Whole(entry) => Some(entry),
            Found::InFile { .. } => None,
        }
    }

    async fn recall(&self, key: &Fingerprint) -> Result<Recalled, StoreError> {
        self.check_open()?;
        // The fence is taken first: a forget that comes in between then fences this attempt too.
        let fence = self.index.fence();
        for _ in 0..READ_ATTEMPTS {
            let Some(found) = self.index.servable(key, self.clock.now()) else { break };
            if let Some(entry) = self.whole(key, found).await? {
                return Ok(Recalled { entry: Some(entry), fence });
            }
        }
        Ok(Recalled { entry: None, fence })
    }

    async fn record(&self, candidate: Candidate, fence: Fence) -> Result<Recorded, StoreError> {
        self.check_open()?;
        match self.ask(Work::Record { candidate: Box::new(candidate), fence }).await? {
            Outcome::Recorded(recorded) => Ok(recorded),
            _ => Err(another_question()),
        }
    }

    async fn import(
        &self,
        moved: Vec<Moved>,
        fence: Fence,
        max_entries: u64,
    ) -> Result<Vec<Imported>, StoreError> {
        self.check_open()?;
        match self.ask(Work::Import { moved, fence, max_entries }).await? {
            Outcome::Imported(imported) => Ok(imported),
            _ => Err(another_question()),
        }
    }

    async fn accept(&self, key: &Fingerprint, upstream: &UpstreamName) -> Result<bool, StoreError> {
        self.check_open()?;
        if self.index.has_accepted(upstream) && !self.index.knows(key) {
            return Ok(false);
        }
        Ok(self.count(Work::Accept { key: *key, upstream: upstream.clone() }).await? > 0)
    }

    fn has_accepted(&self, upstream: &UpstreamName) -> bool {
        self.index.has_accepted(upstream)
    }

    async fn forget(&self, which: &Selector) -> Result<u64, StoreError> {
        self.check_open()?;
        self.count(Work::Forget(which.clone())).await
    }

    async fn suspect(&self, upstream: &UpstreamName, since: Millis) -> Result<u64, StoreError> {
        self.check_open()?;
        self.count(Work::Suspect { upstream: upstream.clone(), since }).await
    }

    fn count_replay(&self, key: &Fingerprint, tenant: &TenantId, at: Millis) -> u64 {
        match self.check_open() {
            Ok(()) => self.index.count_replay(key, tenant, at, self.clock.now()),
            Err(_) => 0,
        }
    }

    async fn entries(&self) -> Result<u64, StoreError> {
        self.check_open()?;
        Ok(self.index.live(self.clock.now()))
    }

    fn evictions(&self) -> u64 {
        self.index.evictions()
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.check_open()?;
        Ok(self.index.list(query, self.clock.now()))
    }

    async fn show(&self, key: &Fingerprint) -> Result<Option<Shown>, StoreError> {
        self.check_open()?;
        for _ in 0..READ_ATTEMPTS {
            let Some((found, tally, suspect)) = self.index.shown(key, self.clock.now()) else { break };
            if let Some(entry) = self.whole(key, found).await? {
                return Ok(Some(Shown { entry, tally, suspect }));
            }
        }
        Ok(None)
    }

    async fn close(&self) -> Result<(), StoreError> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return Err(StoreError::closed());
        }
        let closed = self.count(Work::Close).await.map(|_| ());
        if closed.as_ref().is_err_and(|error| error.kind == StoreErrorKind::Busy) {
            // It was not even asked to.
            self.closed.store(false, Ordering::SeqCst);
        }
        closed
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // The writer ends when nobody can ask it any more.
        self.writer = None;
        if let Ok(ended) = self.ended.lock() {
            // Bounded, should the disk hang; an error is what says that the thread has ended.
            let _ = ended.recv_timeout(DROP_WAIT);
        }
    }
}
