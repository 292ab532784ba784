//! Opening the store: find the file or make it, and trust nothing in it that was not verified.

use std::collections::HashMap;
use std::path::Path;

use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::UpstreamName;
use rusqlite::{Connection, OpenFlags};

use super::SqliteOptions;
use super::file::{self, Found, Lock, Place, Refused};
use super::index::Row;
use super::row::Malformed;
use super::schema::{
    self, ENTRY_COLUMNS, FORMAT, STRIKE_COLUMNS, StoredEntry, StoredStrike, StoredTally, TALLY_COLUMNS,
    Totals,
};
use crate::StoreError;

/// A store that was found good.
pub(super) struct Opened {
    pub(super) lock: Lock,
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    pub(super) rows: Vec<Row>,
    pub(super) strikes: Vec<Fingerprint>,
    pub(super) accepted: Vec<UpstreamName>,
    pub(super) totals: Totals,
}

/// Opens the store in `directory`.
pub(super) fn open(directory: &Path, options: &SqliteOptions) -> Result<Opened, StoreError> {
    let Found { place, lock, connection } = file::find(directory, &FORMAT)?;
    verify(&place, connection, lock, options).map_err(|refused| place.say(refused))
}

/// Verifies everything and reads what memory needs to know.
fn verify(place: &Place, writer: Connection, lock: Lock, options: &SqliteOptions) -> Result<Opened, Refused> {
    place.check_tables(&writer)?;
    place.check_pages(&writer, "quick_check(1)")?;
    let contents = read_all(&writer)?;
    if contents.malformed > 0 {
        let what = format!("{} of {} rows do not verify", contents.malformed, contents.seen);
        return Err(Refused::Said(place.damaged(&what)));
    }
    if !contents.is_complete() {
        return Err(Refused::Said(place.damaged("rows are missing")));
    }
    place.take_over(&writer)?;
    if let Some(bytes) = options.max_file_bytes {
        let page: i64 = writer.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = (i64::try_from(bytes).unwrap_or(i64::MAX) / page.max(1)).clamp(1, u32::MAX.into());
        writer.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    let reader = place.connect(OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(Refused::Said)?;
    let Contents { rows, strikes, accepted, totals, .. } = contents;
    Ok(Opened { lock, writer, reader, rows, strikes, accepted, totals: totals.unwrap_or_default() })
}

/// What a file holds.
#[derive(Default)]
struct Contents {
    rows: Vec<Row>,
    strikes: Vec<Fingerprint>,
    accepted: Vec<UpstreamName>,
    totals: Option<Totals>,
    seen: u64,
    malformed: u64,
}

impl Contents {
    /// Takes a row if it verifies.
    fn take<T>(&mut self, row: Result<T, Malformed>) -> Option<T> {
        self.seen += 1;
        self.malformed += u64::from(row.is_err());
        row.ok()
    }

    fn is_complete(&self) -> bool {
        self.totals.as_ref().is_some_and(|totals| {
            let counts = (self.rows.len() as u64, self.strikes.len() as u64, self.accepted.len() as u64);
            counts == (totals.entries, totals.strikes, totals.accepted)
        })
    }
}

fn read_all(connection: &Connection) -> rusqlite::Result<Contents> {
    let mut contents = Contents::default();
    let mut tallies = HashMap::new();
    let mut statement = connection.prepare(&format!("SELECT {TALLY_COLUMNS} FROM tallies"))?;
    for tally in statement.query_map([], StoredTally::decode)? {
        if let Some(tally) = contents.take(tally?) {
            tallies.insert(tally.sequence, tally);
        }
    }
    let mut statement = connection.prepare(&format!("SELECT {ENTRY_COLUMNS} FROM entries"))?;
    let mut unknown = 0;
    for entry in statement.query_map([], StoredEntry::decode)? {
        let Some(StoredEntry { sequence, entry }) = contents.take(entry?) else {
            unknown += 1;
            continue;
        };
        match tallies.remove(&sequence) {
            Some(StoredTally { suspect, tally, .. }) => {
                contents.rows.push(Row::of(sequence, &entry, suspect, tally))
            }
            None => contents.malformed += 1,
        }
    }
    // A row that does not verify has left its tally behind.
    contents.malformed += (tallies.len() as u64).saturating_sub(unknown);
    let mut statement = connection.prepare(&format!("SELECT {STRIKE_COLUMNS} FROM strikes"))?;
    for strike in statement.query_map([], StoredStrike::decode)? {
        if let Some(strike) = contents.take(strike?) {
            contents.strikes.push(strike.fingerprint);
        }
    }
    let mut statement = connection.prepare("SELECT upstream, checksum FROM accepted")?;
    for upstream in statement.query_map([], schema::decode_accepted)? {
        let upstream = contents.take(upstream?);
        contents.accepted.extend(upstream);
    }
    let mut statement = connection.prepare("SELECT * FROM totals")?;
    for totals in statement.query_map([], Totals::decode)? {
        contents.totals = contents.take(totals?);
    }
    Ok(contents)
}
