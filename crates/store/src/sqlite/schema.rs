//! The tables, and what is in their rows. A damaged disk can cost a row, but can never change what is replayed. The life of a row that never changes (`entries`) and
//! what is counted beside it (`tallies`) are two tables, so that counting does not rewrite bodies.

use std::sync::Arc;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{DocumentFacts, Entry, ReplayFields, Tally};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::strike::Strike;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use super::file::Format;
use super::row::{Columns, Malformed, insert, optional, text, unsigned};

/// The version with the tables of the one before, and entries with the status of a failed operation.
pub(super) const WITH_FAILED_OPERATIONS: u32 = 2;

/// The file.
pub(super) const FORMAT: Format = Format {
    file: "refusals.sqlite3",
    lock: "lock",
    // `nvtw`
    application_id: 0x6e76_7477,
    versions: 1..=WITH_FAILED_OPERATIONS,
    objects: OBJECTS,
    added: &[],
    first_rows: |connection| Totals::default().insert(connection),
    shrinks: false,
    holds: "verdicts",
    anew: "start with an empty memory",
};

/// Each table and index, as SQLite keeps its text.
const OBJECTS: &[(&str, &str)] = &[
    (
        "entries",
        "CREATE TABLE entries (\
         sequence INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL UNIQUE, schema INTEGER NOT NULL, scope TEXT NOT NULL, \
         upstream TEXT NOT NULL, generation TEXT NOT NULL, status INTEGER NOT NULL, rule TEXT NOT NULL, \
         refused_tenant TEXT NOT NULL, document BLOB NOT NULL, document_bytes INTEGER NOT NULL, \
         document_parts INTEGER NOT NULL, first_refused_at INTEGER NOT NULL, recorded_at INTEGER NOT NULL, \
         ttl_ms INTEGER NOT NULL, expires_at INTEGER NOT NULL, content_type BLOB, content_encoding BLOB, \
         content_language BLOB, body BLOB NOT NULL, checksum BLOB NOT NULL) STRICT",
    ),
    ("entries_expiry", "CREATE INDEX entries_expiry ON entries (expires_at)"),
    (
        "tallies",
        "CREATE TABLE tallies (\
         sequence INTEGER PRIMARY KEY, suspect INTEGER NOT NULL, replays INTEGER NOT NULL, first_replayed_at INTEGER, \
         last_replayed_at INTEGER, tenants TEXT NOT NULL, checksum BLOB NOT NULL) STRICT",
    ),
    (
        "strikes",
        "CREATE TABLE strikes (\
         turn INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL UNIQUE, document BLOB NOT NULL, upstream TEXT NOT NULL, \
         status INTEGER NOT NULL, rule TEXT NOT NULL, count INTEGER NOT NULL, first_at INTEGER NOT NULL, \
         last_at INTEGER NOT NULL, checksum BLOB NOT NULL) STRICT",
    ),
    ("accepted", "CREATE TABLE accepted (upstream TEXT PRIMARY KEY, checksum BLOB NOT NULL) STRICT"),
    (
        "totals",
        "CREATE TABLE totals (\
         id INTEGER PRIMARY KEY, entries INTEGER NOT NULL, strikes INTEGER NOT NULL, accepted INTEGER NOT NULL, \
         last_sequence INTEGER NOT NULL, last_turn INTEGER NOT NULL, checksum BLOB NOT NULL) STRICT",
    ),
];

/// All columns of `entries`, in the order of [`StoredEntry::decode`].
pub(super) const ENTRY_COLUMNS: &str = "sequence, fingerprint, schema, scope, upstream, generation, status, rule, \
    refused_tenant, document, document_bytes, document_parts, first_refused_at, recorded_at, ttl_ms, expires_at, \
    content_type, content_encoding, content_language, body, checksum";

/// All columns of `tallies`, in the order of [`StoredTally::decode`].
pub(super) const TALLY_COLUMNS: &str =
    "sequence, suspect, replays, first_replayed_at, last_replayed_at, tenants, checksum";

/// All columns of `strikes`, in the order of [`StoredStrike::decode`].
pub(super) const STRIKE_COLUMNS: &str =
    "turn, fingerprint, document, upstream, status, rule, count, first_at, last_at, checksum";

/// An entry and its place in the order of recording.
#[derive(Clone, Debug)]
pub(super) struct StoredEntry {
    pub(super) sequence: u64,
    pub(super) entry: Arc<Entry>,
}

/// What changes about an entry.
#[derive(Clone, Debug)]
pub(super) struct StoredTally {
    pub(super) sequence: u64,
    pub(super) suspect: bool,
    pub(super) tally: Tally,
}

/// Refusals in a row, whose they are, and their place in the order of change.
#[derive(Clone, Debug)]
pub(super) struct StoredStrike {
    pub(super) turn: u64,
    pub(super) fingerprint: Fingerprint,
    pub(super) document: DocumentDigest,
    pub(super) upstream: UpstreamName,
    pub(super) strike: Strike,
    pub(super) first_at: Millis,
}

/// How many rows each table has, so that a row that vanished is missed, and where the counters stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) entries: u64,
    pub(super) strikes: u64,
    pub(super) accepted: u64,
    pub(super) last_sequence: u64,
    pub(super) last_turn: u64,
}

impl StoredEntry {
    /// Writes the row.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let e = &self.entry;
        let values = [
            unsigned(self.sequence),
            ValueRef::Blob(e.fingerprint.as_bytes()),
            ValueRef::Integer(e.schema.into()),
            text(&e.scope),
            text(e.upstream.as_str()),
            text(&e.generation),
            ValueRef::Integer(e.status.get().into()),
            text(&e.rule),
            text(e.refused_tenant.as_str()),
            ValueRef::Blob(e.document.digest.as_bytes()),
            unsigned(e.document.bytes),
            ValueRef::Integer(e.document.parts.into()),
            ValueRef::Integer(e.first_refused_at.0),
            ValueRef::Integer(e.recorded_at.0),
            unsigned(e.ttl_ms),
            ValueRef::Integer(e.expires_at().0),
            optional(e.fields.content_type.as_ref()),
            optional(e.fields.content_encoding.as_ref()),
            optional(e.fields.content_language.as_ref()),
            ValueRef::Blob(&e.body),
        ];
        insert(connection, "entries", &values)
    }

    /// Reads a row of [`ENTRY_COLUMNS`].
    pub(super) fn decode(row: &Row<'_>) -> rusqlite::Result<Result<Self, Malformed>> {
        Ok(Columns::verified("entries", row, 21)?.and_then(Self::from_columns))
    }

    fn from_columns(mut c: Columns<'_>) -> Result<Self, Malformed> {
        let sequence = c.unsigned()?;
        let fingerprint = Fingerprint::from_bytes(c.digest()?);
        let schema = c.small()?;
        let scope = c.text()?.to_owned();
        let upstream = c.upstream()?;
        let generation = c.text()?.to_owned();
        let status = RefusalStatus::of_entry(c.small()?).map_err(|_| Malformed)?;
        let rule = c.text()?.to_owned();
        let refused_tenant = TenantId::new(c.text()?).map_err(|_| Malformed)?;
        let digest = DocumentDigest::from_bytes(c.digest()?);
        let document = DocumentFacts { digest, bytes: c.unsigned()?, parts: c.small()? };
        let first_refused_at = c.time()?;
        let recorded_at = c.time()?;
        let ttl_ms = c.unsigned()?;
        let expires_at = c.time()?;
        let fields = ReplayFields {
            content_type: c.optional_bytes()?,
            content_encoding: c.optional_bytes()?,
            content_language: c.optional_bytes()?,
        };
        let body = c.bytes()?;
        let entry = Entry {
            schema,
            fingerprint,
            scope,
            upstream,
            generation,
            status,
            fields,
            body,
            document,
            rule,
            refused_tenant,
            first_refused_at,
            recorded_at,
            ttl_ms,
        };
        if entry.expires_at() == expires_at {
            Ok(Self { sequence, entry: Arc::new(entry) })
        } else {
            Err(Malformed)
        }
    }
}

impl StoredTally {
    /// Writes the row, in place of the one that may be there.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let time = |at: Option<Millis>| at.map_or(ValueRef::Null, |at| ValueRef::Integer(at.0));
        // names have no blanks
        let tenants = self.tally.tenants.iter().map(TenantId::as_str).collect::<Vec<_>>().join(" ");
        let values = [
            unsigned(self.sequence),
            ValueRef::Integer(self.suspect.into()),
            unsigned(self.tally.replays),
            time(self.tally.first_replayed_at),
            time(self.tally.last_replayed_at),
            text(&tenants),
        ];
        insert(connection, "tallies", &values)
    }

    /// Reads a row of [`TALLY_COLUMNS`].
    pub(super) fn decode(row: &Row<'_>) -> rusqlite::Result<Result<Self, Malformed>> {
        Ok(Columns::verified("tallies", row, 7)?.and_then(Self::from_columns))
    }

    fn from_columns(mut c: Columns<'_>) -> Result<Self, Malformed> {
        let sequence = c.unsigned()?;
        let suspect = c.integer()? != 0;
        let replays = c.unsigned()?;
        let first_replayed_at = c.optional_time()?;
        let last_replayed_at = c.optional_time()?;
        let tenants = c.text()?.split_ascii_whitespace().map(TenantId::new).collect::<Result<Vec<_>, _>>();
        let tenants = tenants.map_err(|_| Malformed)?;
        Ok(Self { sequence, suspect, tally: Tally { replays, first_replayed_at, last_replayed_at, tenants } })
    }
}

impl StoredStrike {
    /// Writes the row, in place of the one that may be there under the fingerprint.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let values = [
            unsigned(self.turn),
            ValueRef::Blob(self.fingerprint.as_bytes()),
            ValueRef::Blob(self.document.as_bytes()),
            text(self.upstream.as_str()),
            ValueRef::Integer(self.strike.status.into()),
            text(&self.strike.rule),
            ValueRef::Integer(self.strike.count.into()),
            ValueRef::Integer(self.first_at.0),
            ValueRef::Integer(self.strike.last_at_ms),
        ];
        insert(connection, "strikes", &values)
    }

    /// Reads a row of [`STRIKE_COLUMNS`].
    pub(super) fn decode(row: &Row<'_>) -> rusqlite::Result<Result<Self, Malformed>> {
        Ok(Columns::verified("strikes", row, 10)?.and_then(Self::from_columns))
    }

    fn from_columns(mut c: Columns<'_>) -> Result<Self, Malformed> {
        let turn = c.unsigned()?;
        let fingerprint = Fingerprint::from_bytes(c.digest()?);
        let document = DocumentDigest::from_bytes(c.digest()?);
        let upstream = c.upstream()?;
        let (status, rule, count) = (c.small()?, c.text()?.to_owned(), c.small()?);
        let first_at = c.time()?;
        let strike = Strike { status, rule, count, last_at_ms: c.integer()? };
        Ok(Self { turn, fingerprint, document, upstream, strike, first_at })
    }
}

/// Notes that an upstream has accepted something.
pub(super) fn insert_accepted(connection: &Connection, upstream: &UpstreamName) -> rusqlite::Result<()> {
    insert(connection, "accepted", &[text(upstream.as_str())])
}

/// Reads a row of `upstream, checksum`.
pub(super) fn decode_accepted(row: &Row<'_>) -> rusqlite::Result<Result<UpstreamName, Malformed>> {
    Ok(Columns::verified("accepted", row, 2)?.and_then(|mut c| c.upstream()))
}

impl Totals {
    /// Writes the one row.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let counts =
            [self.entries, self.strikes, self.accepted, self.last_sequence, self.last_turn].map(unsigned);
        insert(connection, "totals", &[&[ValueRef::Integer(1)], &counts[..]].concat())
    }

    /// Reads the one row.
    pub(super) fn decode(row: &Row<'_>) -> rusqlite::Result<Result<Self, Malformed>> {
        Ok(Columns::verified("totals", row, 7)?.and_then(|mut c| {
            c.integer()?;
            Ok(Self {
                entries: c.unsigned()?,
                strikes: c.unsigned()?,
                accepted: c.unsigned()?,
                last_sequence: c.unsigned()?,
                last_turn: c.unsigned()?,
            })
        }))
    }
}
