//! The tables, and what is in their rows: operations and jobs as JSON, and beside it what they are looked for by.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{IdempotencyKey, Job, JobStatus};
use nevertwice_domain::operation::{Operation, Pending, Whereabouts};
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sqlite::file::{self, Format};
use crate::sqlite::row::{Columns, Malformed, insert, text, unsigned};
use crate::work::life;

/// The version with the tables of the one before, and the ends of jobs that are to be told. A file has it from the first such end.
const WITH_UNTOLD: u32 = 2;

/// The file.
pub(super) const FORMAT: Format = Format {
    file: "work.sqlite3",
    lock: "work.lock",
    // `nvtj`
    application_id: 0x6e76_746a,
    versions: 1..=WITH_UNTOLD,
    objects: OBJECTS,
    added: UNTOLD,
    first_rows: |_| Ok(()),
    shrinks: true,
    holds: "operations and jobs",
    anew: "start with no operations and no jobs",
};

/// Each table and index, as SQLite keeps its text. A status is a number ([`number_of`]); `schema` is the version of the JSON.
const OBJECTS: &[(&str, &str)] = &[
    (
        "jobs",
        "CREATE TABLE jobs (\
         sequence INTEGER PRIMARY KEY, id TEXT NOT NULL, tenant TEXT NOT NULL, upstream TEXT NOT NULL, \
         status INTEGER NOT NULL, not_before INTEGER, removed_at INTEGER NOT NULL, given_up_until INTEGER, \
         claims INTEGER NOT NULL, claimed_until INTEGER NOT NULL, idempotency_key BLOB, schema INTEGER NOT NULL, \
         job TEXT NOT NULL, checksum BLOB NOT NULL) STRICT",
    ),
    ("jobs_id", "CREATE INDEX jobs_id ON jobs (id, upstream, status, removed_at)"),
    ("jobs_tenant", "CREATE INDEX jobs_tenant ON jobs (tenant, id, upstream, status, removed_at)"),
    (
        "jobs_queued",
        "CREATE INDEX jobs_queued ON jobs (upstream, not_before, sequence, removed_at) WHERE status = 0",
    ),
    ("jobs_running", "CREATE INDEX jobs_running ON jobs (upstream, claimed_until) WHERE status = 1"),
    ("jobs_key", "CREATE INDEX jobs_key ON jobs (idempotency_key) WHERE idempotency_key IS NOT NULL"),
    ("jobs_removed", "CREATE INDEX jobs_removed ON jobs (removed_at)"),
    (
        "inputs",
        "CREATE TABLE inputs (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum BLOB NOT NULL) STRICT",
    ),
    (
        "results",
        "CREATE TABLE results (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum BLOB NOT NULL) STRICT",
    ),
    (
        "operations",
        "CREATE TABLE operations (\
         sequence INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, expires_at INTEGER NOT NULL, minted INTEGER NOT NULL, \
         next_look_at INTEGER, fingerprint BLOB, document BLOB, schema INTEGER NOT NULL, operation TEXT NOT NULL, \
         checksum BLOB NOT NULL) STRICT",
    ),
    ("operations_minted", "CREATE INDEX operations_minted ON operations (minted)"),
    ("operations_expiry", "CREATE INDEX operations_expiry ON operations (expires_at)"),
    (
        "operations_due",
        "CREATE INDEX operations_due ON operations (next_look_at, id) WHERE next_look_at IS NOT NULL",
    ),
    (
        "operations_fingerprint",
        "CREATE INDEX operations_fingerprint ON operations (fingerprint) WHERE fingerprint IS NOT NULL",
    ),
    (
        "operations_document",
        "CREATE INDEX operations_document ON operations (document) WHERE document IS NOT NULL",
    ),
];

/// What a file gets with the first end that is to be told. A row has the sequence of its job.
const UNTOLD: &[(&str, &str)] = &[
    (
        "untold",
        "CREATE TABLE untold (\
         sequence INTEGER PRIMARY KEY, id TEXT NOT NULL, tenant TEXT NOT NULL, next_at INTEGER NOT NULL, \
         calls INTEGER NOT NULL, checksum BLOB NOT NULL) STRICT",
    ),
    ("untold_due", "CREATE INDEX untold_due ON untold (tenant, next_at, id)"),
];

/// All columns of `jobs`, in the order of [`StoredJob::decode`].
pub(super) const JOB_COLUMNS: &str = "sequence, id, tenant, upstream, status, not_before, removed_at, given_up_until, \
    claims, claimed_until, idempotency_key, schema, job, checksum";

/// All columns of `operations`, in the order of [`StoredOperation::decode`].
pub(super) const OPERATION_COLUMNS: &str =
    "sequence, id, expires_at, minted, next_look_at, fingerprint, document, schema, operation, checksum";

/// All columns of `untold`, in the order of [`StoredUntold::decode`].
pub(super) const UNTOLD_COLUMNS: &str = "sequence, id, tenant, next_at, calls, checksum";

/// The version of the JSON.
const SCHEMA: i64 = 1;

/// The status of a row that does not verify and was put out of the way.
pub(super) const SET_ASIDE: i64 = -1;

/// A job and its place in the order in which they came.
#[derive(Clone, Debug)]
pub(super) struct StoredJob {
    pub(super) sequence: i64,
    pub(super) job: Job,
    pub(super) removed_at: Millis,
    /// When it is removed, if it was given up while it ran.
    pub(super) given_up_until: Option<Millis>,
    /// How often it was handed out: the token of the latest claim.
    pub(super) claims: i64,
    /// In milliseconds of the steady clock since the file was opened: at the next opening all claims are over.
    pub(super) claimed_until: i64,
    /// The key that it answers to; none any more when a later job has taken it over.
    pub(super) key: Option<IdempotencyKey>,
}

/// An operation and its place in the order in which they came.
#[derive(Clone, Debug)]
pub(super) struct StoredOperation {
    pub(super) sequence: i64,
    pub(super) operation: Operation,
}

/// An end that is to be told.
#[derive(Clone, Debug)]
pub(super) struct StoredUntold {
    /// Of its job.
    pub(super) sequence: i64,
    /// Of its job.
    pub(super) id: String,
    /// Of its job.
    pub(super) tenant: String,
    pub(super) next_at: Millis,
    /// How often it was handed out.
    pub(super) calls: u32,
}

/// Whether the file can hold ends that are to be told.
pub(super) fn has_untold(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(file::version(connection)? >= WITH_UNTOLD)
}

/// From now on it can, in the transaction that is under way.
pub(super) fn add_untold(connection: &Connection) -> rusqlite::Result<()> {
    if !has_untold(connection)? {
        for (_, sql) in UNTOLD {
            connection.execute(sql, [])?;
        }
        file::raise_version(connection, WITH_UNTOLD)?;
    }
    Ok(())
}

/// How a status stands in a row.
pub(super) fn number_of(status: JobStatus) -> i64 {
    match status {
        JobStatus::Queued => 0,
        JobStatus::Running => 1,
        JobStatus::Succeeded => 2,
        JobStatus::Failed => 3,
        JobStatus::Cancelled => 4,
    }
}

/// The failure of whoever needs a row that is not what was written.
pub(super) fn malformed() -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, "a row does not verify".into())
}

fn to_json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

fn from_json<T: DeserializeOwned>(c: &mut Columns<'_>) -> Result<T, Malformed> {
    if c.integer()? != SCHEMA {
        return Err(Malformed);
    }
    serde_json::from_str(c.text()?).map_err(|_| Malformed)
}

fn time<'v>(at: Option<Millis>) -> ValueRef<'v> {
    at.map_or(ValueRef::Null, |at| ValueRef::Integer(at.0))
}

impl StoredJob {
    /// Writes the row, in place of the one that may be there.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let (id, json) = (self.job.id.to_string(), to_json(&self.job)?);
        let values = [
            ValueRef::Integer(self.sequence),
            text(&id),
            text(self.job.tenant.as_str()),
            text(self.job.upstream.as_str()),
            ValueRef::Integer(number_of(self.job.status)),
            time(self.job.not_before),
            ValueRef::Integer(self.removed_at.0),
            time(self.given_up_until),
            ValueRef::Integer(self.claims),
            ValueRef::Integer(self.claimed_until),
            self.key.as_ref().map_or(ValueRef::Null, |key| ValueRef::Blob(key.as_bytes())),
            ValueRef::Integer(SCHEMA),
            text(&json),
        ];
        insert(connection, "jobs", &values)
    }

    /// Reads a row of [`JOB_COLUMNS`].
    pub(super) fn decode(row: &Row<'_>) -> rusqlite::Result<Result<Self, Malformed>> {
        Ok(Columns::verified("jobs", row, 14)?.and_then(Self::from_columns))
    }

    fn from_columns(mut c: Columns<'_>) -> Result<Self, Malformed> {
        let sequence = c.integer()?;
        for _ in ["id", "tenant", "upstream", "status", "not_before"] {
            c.next()?;
        }
        let (removed_at, given_up_until) = (c.time()?, c.optional_time()?);
        let (claims, claimed_until) = (c.integer()?, c.integer()?);
        let keyed = c.optional_bytes()?.is_some();
        let job: Job = from_json(&mut c)?;
        let key = job.key.filter(|_| keyed);
        Ok(Self { sequence, job, removed_at, given_up_until, claims, claimed_until, key })
    }

    /// How many bytes go with it.
    pub(super) fn weight(&self) -> u64 {
        self.job.request.bytes.saturating_add(self.job.result.as_ref().map_or(0, |result| result.bytes))
    }
}

impl StoredOperation {
    /// Writes the row, in place of the one that may be there.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let (id, json) = (self.operation.id.to_string(), to_json(&self.operation)?);
        let pending = pending(&self.operation);
        let values = [
            ValueRef::Integer(self.sequence),
            text(&id),
            ValueRef::Integer(self.operation.expires_at.0),
            ValueRef::Integer(life::is_minted(&self.operation).into()),
            time(pending.map(|pending| pending.next_look_at)),
            pending.map_or(ValueRef::Null, |pending| ValueRef::Blob(pending.fingerprint.as_bytes())),
            pending.map_or(ValueRef::Null, |pending| ValueRef::Blob(pending.document.digest.as_bytes())),
            ValueRef::Integer(SCHEMA),
            text(&json),
        ];
        insert(connection, "operations", &values)
    }

    /// Reads a row of [`OPERATION_COLUMNS`].
    pub(super) fn decode(row: &Row<'_>) -> rusqlite::Result<Result<Self, Malformed>> {
        Ok(Columns::verified("operations", row, 10)?.and_then(|mut c| {
            let sequence = c.integer()?;
            for _ in ["id", "expires_at", "minted", "next_look_at", "fingerprint", "document"] {
                c.next()?;
            }
            Ok(Self { sequence, operation: from_json(&mut c)? })
        }))
    }
}

impl StoredUntold {
    /// Writes the row, in place of the one that may be there.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let values = [
            ValueRef::Integer(self.sequence),
            text(&self.id),
            text(&self.tenant),
            ValueRef::Integer(self.next_at.0),
            ValueRef::Integer(self.calls.into()),
        ];
        insert(connection, "untold", &values)
    }

    /// Reads a row of [`UNTOLD_COLUMNS`].
    pub(super) fn decode(row: &Row<'_>) -> rusqlite::Result<Result<Self, Malformed>> {
        Ok(Columns::verified("untold", row, 6)?.and_then(|mut c| {
            Ok(Self {
                sequence: c.integer()?,
                id: c.text()?.to_owned(),
                tenant: c.text()?.to_owned(),
                next_at: c.time()?,
                calls: c.small()?,
            })
        }))
    }
}

fn pending(operation: &Operation) -> Option<&Pending> {
    match &operation.at {
        Whereabouts::Upstream { pending, .. } => pending.as_ref(),
        Whereabouts::Known { .. } => None,
    }
}

/// Writes a body into `inputs` or `results`.
pub(super) fn insert_body(
    connection: &Connection,
    table: &str,
    sequence: i64,
    body: &[u8],
) -> rusqlite::Result<()> {
    insert(connection, table, &[unsigned(sequence.cast_unsigned()), ValueRef::Blob(body)])
}

/// How long a body in `inputs` or `results` is, without reading it; `None` when there is none.
pub(super) fn body_length(
    connection: &Connection,
    table: &str,
    sequence: i64,
) -> rusqlite::Result<Option<i64>> {
    let sql = format!("SELECT length(body) FROM {table} WHERE sequence = ?");
    connection.prepare_cached(&sql)?.query_row([sequence], |row| row.get(0)).optional()
}

/// Reads a row of `sequence, body, checksum` of `inputs` or `results`.
pub(super) fn decode_body(table: &str, row: &Row<'_>) -> rusqlite::Result<Result<Bytes, Malformed>> {
    Ok(Columns::verified(table, row, 3)?.and_then(|mut c| {
        c.next()?;
        c.bytes()
    }))
}
