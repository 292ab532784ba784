//! The threads that read, each on a connection of its own, so that a reader never waits for a commit; and what they read.

use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobId};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};
use tokio::sync::oneshot;

use super::schema::{self, JOB_COLUMNS, StoredJob};
use super::{closed, failed};
use crate::work::{JobPage, JobQuery};
use crate::{StoreError, StoreErrorKind};

/// How many reads may wait.
const QUEUE: usize = 1024;

type Work = Box<dyn FnOnce(&Connection) + Send>;

/// The way to the readers. They end when it is gone.
pub(super) struct Reader(SyncSender<Work>);

impl Reader {
    /// Starts a thread for each connection.
    pub(super) fn start(
        connections: impl IntoIterator<Item = Connection>,
    ) -> std::io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let receiver = Arc::new(Mutex::new(receiver));
        let start = |connection| {
            let receiver = Arc::clone(&receiver);
            thread::Builder::new().name("work-read".into()).spawn(move || run(&connection, &receiver))
        };
        let threads = connections.into_iter().map(start).collect::<Result<_, _>>()?;
        Ok((Self(sender), threads))
    }

    /// Has a reader do it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            if !answer.is_closed() {
                // An error says that nobody waits any more.
                let _ = answer.send(what(connection).map_err(|error| failed(&error)));
            }
        });
        self.0.try_send(work).map_err(|e| match e {
            TrySendError::Full(_) => {
                StoreErrorKind::Busy.error(format!("{QUEUE} reads of the store of jobs wait"))
            }
            TrySendError::Disconnected(_) => closed(),
        })?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }
}

fn run(connection: &Connection, work: &Mutex<Receiver<Work>>) {
    loop {
        // Released before the work is done: the other reader takes what comes next.
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(work) => work(connection),
            Err(_) => return,
        }
    }
}

/// A job.
pub(super) fn job(connection: &Connection, id: &JobId, now: Millis) -> rusqlite::Result<Option<Job>> {
    let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE id = ? AND removed_at > ?");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row((id.to_string(), now.0), StoredJob::decode).optional()?;
    found.map(|stored| stored.map(|s| s.job).map_err(|_| schema::malformed())).transpose()
}

/// A job's input or result.
pub(super) fn body(
    connection: &Connection,
    table: &'static str,
    id: &JobId,
    now: Millis,
) -> rusqlite::Result<Option<Bytes>> {
    let sql = format!(
        "SELECT sequence, body, {table}.checksum FROM {table} JOIN jobs USING (sequence) WHERE id = ? AND removed_at > ?"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let values = (id.to_string(), now.0);
    let found = statement.query_row(values, |row| schema::decode_body(table, row)).optional()?;
    found.map(|body| body.map_err(|_| schema::malformed())).transpose()
}

/// A page of jobs.
pub(super) fn list(connection: &Connection, query: &JobQuery, now: Millis) -> rusqlite::Result<JobPage> {
    let limit = query.limit.clamp(1, 1000);
    let index = if query.tenant.is_some() { "jobs_tenant" } else { "jobs_id" };
    let mut sql =
        format!("SELECT {JOB_COLUMNS} FROM jobs INDEXED BY {index} WHERE status >= 0 AND removed_at > ?");
    let mut values = vec![Value::Integer(now.0)];
    if let Some(tenant) = &query.tenant {
        sql += " AND tenant = ?";
        values.push(Value::Text(tenant.as_str().to_owned()));
    }
    if let Some(upstream) = &query.upstream {
        sql += " AND upstream = ?";
        values.push(Value::Text(upstream.as_str().to_owned()));
    }
    if let Some(status) = query.status {
        sql += " AND status = ?";
        values.push(Value::Integer(schema::number_of(status)));
    }
    if let Some(after) = query.after {
        sql += " AND id < ?";
        values.push(Value::Text(after.to_string()));
    }
    sql += &format!(" ORDER BY id DESC LIMIT {}", limit + 1);
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(values), StoredJob::decode)?;
    let mut items = rows
        .map(|row| row.and_then(|stored| stored.map(|s| s.job).map_err(|_| schema::malformed())))
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().map(|job| job.id).filter(|_| more);
    Ok(JobPage { items, next })
}
