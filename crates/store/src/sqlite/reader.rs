//! The thread that reads bodies from the file, on a connection of its own, so that a reader never waits for a commit.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};

use nevertwice_domain::entry::Entry;
use nevertwice_domain::fingerprint::Fingerprint;
use rusqlite::{Connection, OptionalExtension};
use tokio::sync::oneshot;

use super::failure;
use super::schema::{ENTRY_COLUMNS, StoredEntry};
use crate::{StoreError, StoreErrorKind};

/// How many reads may wait.
const QUEUE: usize = 1024;

type Answer = oneshot::Sender<Result<Read, StoreError>>;

/// What became of a row.
pub(super) enum Read {
    /// It is what was recorded.
    Whole(Arc<Entry>),
    /// It is not there any more.
    Gone,
    /// It is not what was recorded, for this reason.
    Damaged(String),
}

/// What the thread is asked.
enum Work {
    Read { sequence: u64, fingerprint: Fingerprint, answer: Answer },
    Stop,
}

/// The way to the reader. It ends when asked to, or when the last copy of this is gone.
#[derive(Clone)]
pub(super) struct Reader(SyncSender<Work>);

impl Reader {
    /// Starts the thread.
    pub(super) fn start(connection: Connection) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let thread =
            thread::Builder::new().name("store-read".into()).spawn(move || run(&connection, &receiver))?;
        Ok((Self(sender), thread))
    }

    /// The row with this sequence.
    pub(super) async fn read(&self, sequence: u64, fingerprint: Fingerprint) -> Result<Read, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send(Work::Read { sequence, fingerprint, answer }).map_err(|e| match e {
            TrySendError::Full(_) => {
                StoreErrorKind::Busy.error(format!("{QUEUE} reads of the refusal store wait"))
            }
            TrySendError::Disconnected(_) => StoreError::closed(),
        })?;
        answered.await.unwrap_or_else(|_| Err(StoreError::closed()))
    }

    /// Ends the thread after the reads that wait.
    pub(super) fn stop(&self) {
        // An error says that it has ended.
        let _ = self.0.send(Work::Stop);
    }
}

fn run(connection: &Connection, work: &Receiver<Work>) {
    while let Ok(Work::Read { sequence, fingerprint, answer }) = work.recv() {
        if !answer.is_closed() {
            // An error says that nobody waits any more.
            let _ = answer.send(read(connection, sequence, &fingerprint));
        }
    }
}

fn read(connection: &Connection, sequence: u64, fingerprint: &Fingerprint) -> Result<Read, StoreError> {
    let found = connection
        .prepare_cached(&format!("SELECT {ENTRY_COLUMNS} FROM entries WHERE sequence = ?"))
        .and_then(|mut query| query.query_row([sequence.cast_signed()], StoredEntry::decode).optional());
    match found {
        Ok(None) => Ok(Read::Gone),
        Ok(Some(Ok(stored))) if stored.entry.fingerprint == *fingerprint => Ok(Read::Whole(stored.entry)),
        Ok(Some(_)) => Ok(Read::Damaged("its checksum does not match".to_owned())),
        Err(error) if failure::is_damage(&error) => Ok(Read::Damaged(error.to_string())),
        Err(error) => Err(error.into()),
    }
}
