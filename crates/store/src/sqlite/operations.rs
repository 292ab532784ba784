//! What each operation does inside the writer's transaction.
//!
//! Decisions are taken on what the transaction sees, which includes the operations before it in the same group; what memory
//! has to follow is noted as a [`Change`] and applied after the commit.

use std::sync::Arc;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Entry, Selector, Tally};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::strike::StrikeOutcome;
use nevertwice_domain::tenant::UpstreamName;
use rusqlite::{Connection, OptionalExtension, Params, params};

use super::file;
use super::index::Change;
use super::schema::{
    self, ENTRY_COLUMNS, STRIKE_COLUMNS, StoredEntry, StoredStrike, StoredTally, TALLY_COLUMNS, Totals,
    WITH_FAILED_OPERATIONS,
};
use crate::fence::FenceLog;
use crate::keeping::{REMNANT_MS, STRIKE_MS, goes_on, is_in_a_row, is_live, is_servable};
use crate::{Fence, Imported, Moved, Recorded};

/// At most this many rows are swept at a time.
const SWEEP_ROWS: u64 = 256;

/// A transaction under way, and what it has changed so far.
pub(super) struct Operations<'a> {
    pub(super) connection: &'a Connection,
    pub(super) totals: &'a mut Totals,
    pub(super) fences: &'a mut FenceLog,
    pub(super) changes: Vec<Change>,
}

/// What `entries` says about one row besides its body.
struct Outline {
    sequence: u64,
    fingerprint: Fingerprint,
    document: DocumentDigest,
    upstream: String,
    status: i64,
    first_refused_at: Millis,
    expires_at: Millis,
}

impl Operations<'_> {
    pub(super) fn record(
        &mut self,
        candidate: &Candidate,
        fence: Fence,
        now: Millis,
    ) -> rusqlite::Result<Recorded> {
        let Candidate { entry, life, max_entries } = candidate;
        let key = &entry.fingerprint;
        let before = if life.needs_strikes() { self.strike(key, now)? } else { None };
        let (strike, outcome) =
            life.strike(before.as_ref().map(|b| &b.strike), entry.status, &entry.rule, now);
        let first_at = before.filter(|_| strike.count > 1).map_or(now, |b| b.first_at);
        let present = self.present(key)?;
        let goes_on = present.as_ref().filter(|(old, _)| goes_on(&old.entry, entry, now));
        let first_refused_at = goes_on.map_or(first_at, |(old, _)| first_at.min(old.entry.first_refused_at));
        let carried = goes_on.map(|(_, tally)| tally.tally.clone());
        if self.fences.bars(fence, entry, first_refused_at) {
            return Ok(Recorded::Fenced);
        }
        if let Some((present, tally)) = &present
            && !tally.suspect
            && is_servable(&present.entry, now)
            && present.entry.remaining_under(life, now).is_some()
        {
            return Ok(Recorded::AlreadyThere(Arc::clone(&present.entry)));
        }

        if life.needs_strikes() {
            self.totals.last_turn += 1;
            let row = StoredStrike {
                turn: self.totals.last_turn,
                fingerprint: *key,
                document: entry.document.digest,
                upstream: entry.upstream.clone(),
                strike,
                first_at,
            };
            self.put_strike(&row, (*max_entries).max(1))?;
        }
        let ttl_ms = match outcome {
            StrikeOutcome::Unconfirmed { count } => return Ok(Recorded::Unconfirmed(count)),
            StrikeOutcome::Remember { ttl_ms } => ttl_ms,
        };
        let entry = Entry { ttl_ms, recorded_at: now, first_refused_at, ..entry.clone() };
        let entry = Arc::new(entry);
        let carry = carried.is_some();
        self.put_entry(&entry, carried.unwrap_or_default(), carry)?;
        self.bound_entries((*max_entries).max(1), now)?;
        Ok(Recorded::Stored(entry))
    }

    pub(super) fn import(
        &mut self,
        moved: &[Moved],
        fence: Fence,
        max_entries: u64,
        now: Millis,
    ) -> rusqlite::Result<Vec<Imported>> {
        moved.iter().map(|moved| self.import_one(moved, fence, max_entries, now)).collect()
    }

    fn import_one(
        &mut self,
        Moved { entry, tally }: &Moved,
        fence: Fence,
        max_entries: u64,
        now: Millis,
    ) -> rusqlite::Result<Imported> {
        if !is_live(entry, now) {
            return Ok(Imported::Expired);
        }
        if self.fences.bars(fence, entry, entry.first_refused_at) {
            return Ok(Imported::Fenced);
        }
        if self.present(&entry.fingerprint)?.is_some_and(|(present, _)| is_live(&present.entry, now)) {
            return Ok(Imported::AlreadyThere);
        }
        self.put_entry(&Arc::new(entry.clone()), tally.clone(), false)?;
        self.bound_entries(max_entries.max(1), now)?;
        Ok(Imported::Stored)
    }

    /// The refusals in a row under `key`. A damaged row is none.
    fn strike(&self, key: &Fingerprint, now: Millis) -> rusqlite::Result<Option<StoredStrike>> {
        let found = self
            .connection
            .prepare_cached(&format!("SELECT {STRIKE_COLUMNS} FROM strikes WHERE fingerprint = ?"))?
            .query_row([key.as_bytes()], StoredStrike::decode)
            .optional()?;
        Ok(found.and_then(Result::ok).filter(|row| is_in_a_row(&row.strike, now)))
    }

    /// The entry under `key`. A damaged row is none, and is replaced by the next record.
    fn present(&self, key: &Fingerprint) -> rusqlite::Result<Option<(StoredEntry, StoredTally)>> {
        let found = self
            .connection
            .prepare_cached(&format!("SELECT {ENTRY_COLUMNS} FROM entries WHERE fingerprint = ?"))?
            .query_row([key.as_bytes()], StoredEntry::decode)
            .optional()?;
        let Some(Ok(entry)) = found else { return Ok(None) };
        Ok(self.tally(entry.sequence)?.map(|tally| (entry, tally)))
    }

    /// All strikes that a filter finds, damaged ones left out.
    fn strikes(&self, filter: &str, parameters: &[&[u8; 32]]) -> rusqlite::Result<Vec<StoredStrike>> {
        let mut query = self
            .connection
            .prepare_cached(&format!("SELECT {STRIKE_COLUMNS} FROM strikes WHERE {filter}"))?;
        let found = query
            .query_map(rusqlite::params_from_iter(parameters), StoredStrike::decode)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        Ok(found.into_iter().flatten().collect())
    }

    fn tally(&self, sequence: u64) -> rusqlite::Result<Option<StoredTally>> {
        let found = self
            .connection
            .prepare_cached(&format!("SELECT {TALLY_COLUMNS} FROM tallies WHERE sequence = ?"))?
            .query_row([sequence.cast_signed()], StoredTally::decode)
            .optional()?;
        Ok(found.and_then(Result::ok))
    }

    fn put_strike(&mut self, row: &StoredStrike, bound: u64) -> rusqlite::Result<()> {
        self.remove_strike(&row.fingerprint)?;
        row.insert(self.connection)?;
        self.totals.strikes += 1;
        self.changes.push(Change::Strikes { fingerprint: row.fingerprint, kept: true });
        let excess = self.totals.strikes.saturating_sub(bound);
        if excess > 0 {
            self.remove_strikes(
                "SELECT turn, fingerprint FROM strikes ORDER BY turn LIMIT ?",
                [excess.cast_signed()],
            )?;
        }
        Ok(())
    }

    fn remove_strike(&mut self, key: &Fingerprint) -> rusqlite::Result<()> {
        let gone = self
            .connection
            .prepare_cached("DELETE FROM strikes WHERE fingerprint = ?")?
            .execute([key.as_bytes()])?;
        if gone > 0 {
            self.totals.strikes = self.totals.strikes.saturating_sub(1);
            self.changes.push(Change::Strikes { fingerprint: *key, kept: false });
        }
        Ok(())
    }

    fn remove_strikes(&mut self, sql: &str, parameters: impl Params) -> rusqlite::Result<()> {
        self.keys(sql, parameters)?.iter().try_for_each(|(_, key)| self.remove_strike(key))
    }

    /// Puts an entry with its tally; `carry` says that it is the tally of the entry that is replaced.
    fn put_entry(&mut self, entry: &Arc<Entry>, tally: Tally, carry: bool) -> rusqlite::Result<()> {
        let old = "SELECT sequence, fingerprint FROM entries WHERE fingerprint = ?";
        for (sequence, _) in self.keys(old, [entry.fingerprint.as_bytes()])? {
            self.delete(sequence)?;
        }
        if entry.status.is_failed_operation() {
            file::raise_version(self.connection, WITH_FAILED_OPERATIONS)?;
        }
        self.totals.last_sequence += 1;
        self.totals.entries += 1;
        let sequence = self.totals.last_sequence;
        StoredEntry { sequence, entry: Arc::clone(entry) }.insert(self.connection)?;
        StoredTally { sequence, suspect: false, tally: tally.clone() }.insert(self.connection)?;
        self.changes.push(Change::Put { sequence, entry: Arc::clone(entry), tally, carry });
        Ok(())
    }

    /// Those that have expired go first, then the oldest.
    fn bound_entries(&mut self, bound: u64, now: Millis) -> rusqlite::Result<()> {
        let excess = self.totals.entries.saturating_sub(bound).cast_signed();
        if excess == 0 {
            return Ok(());
        }
        let expired = "SELECT sequence, fingerprint FROM entries WHERE expires_at <= ? \
             ORDER BY expires_at, sequence LIMIT ?";
        for (sequence, fingerprint) in self.keys(expired, [now.0, excess])? {
            self.remove(sequence, fingerprint, false)?;
        }
        let excess = self.totals.entries.saturating_sub(bound).cast_signed();
        let oldest = "SELECT sequence, fingerprint FROM entries ORDER BY sequence LIMIT ?";
        for (sequence, fingerprint) in self.keys(oldest, [excess])? {
            self.remove(sequence, fingerprint, true)?;
        }
        Ok(())
    }

    /// The sequences and fingerprints that a query finds.
    fn keys(&self, sql: &str, parameters: impl Params) -> rusqlite::Result<Vec<(u64, Fingerprint)>> {
        self.connection
            .prepare_cached(sql)?
            .query_map(parameters, |row| {
                Ok((row.get::<_, i64>(0)?.cast_unsigned(), Fingerprint::from_bytes(row.get(1)?)))
            })?
            .collect()
    }

    fn delete(&mut self, sequence: u64) -> rusqlite::Result<()> {
        let sequence = [sequence.cast_signed()];
        let gone =
            self.connection.prepare_cached("DELETE FROM entries WHERE sequence = ?")?.execute(sequence)?;
        self.connection.prepare_cached("DELETE FROM tallies WHERE sequence = ?")?.execute(sequence)?;
        self.totals.entries = self.totals.entries.saturating_sub(gone as u64);
        Ok(())
    }

    /// Removes one row.
    pub(super) fn remove(
        &mut self,
        sequence: u64,
        fingerprint: Fingerprint,
        evicted: bool,
    ) -> rusqlite::Result<()> {
        self.delete(sequence)?;
        self.changes.push(Change::Gone { fingerprint, sequence, evicted });
        Ok(())
    }

    fn outlines(&self, filter: &str, parameters: &[&[u8; 32]]) -> rusqlite::Result<Vec<Outline>> {
        self.connection
            .prepare_cached(&format!(
                "SELECT sequence, fingerprint, document, upstream, status, first_refused_at, expires_at \
                 FROM entries WHERE {filter}"
            ))?
            .query_map(rusqlite::params_from_iter(parameters), |row| {
                Ok(Outline {
                    sequence: row.get::<_, i64>(0)?.cast_unsigned(),
                    fingerprint: Fingerprint::from_bytes(row.get(1)?),
                    document: DocumentDigest::from_bytes(row.get(2)?),
                    upstream: row.get(3)?,
                    status: row.get(4)?,
                    first_refused_at: Millis(row.get(5)?),
                    expires_at: Millis(row.get(6)?),
                })
            })?
            .collect()
    }

    pub(super) fn accept(
        &mut self,
        key: &Fingerprint,
        upstream: &UpstreamName,
        now: Millis,
    ) -> rusqlite::Result<u64> {
        let mut removed = 0;
        for old in self.outlines("fingerprint = ?", &[key.as_bytes()])? {
            removed += u64::from(now < old.expires_at);
            self.remove(old.sequence, old.fingerprint, false)?;
        }
        self.remove_strike(key)?;
        let known = self
            .connection
            .prepare_cached("SELECT 1 FROM accepted WHERE upstream = ?")?
            .exists([upstream.as_str()])?;
        if !known {
            schema::insert_accepted(self.connection, upstream)?;
            self.totals.accepted += 1;
        }
        self.changes.push(Change::Accepted(upstream.clone()));
        Ok(removed)
    }

    pub(super) fn forget(&mut self, which: &Selector, now: Millis) -> rusqlite::Result<u64> {
        self.fences.push(which.clone());
        let candidates = match &which.fingerprint {
            Some(key) => self.outlines("fingerprint = ?", &[key.as_bytes()])?,
            None => self.outlines("TRUE", &[])?,
        };
        let mut forgotten = 0;
        for o in candidates {
            let Ok(upstream) = UpstreamName::new(&o.upstream) else { continue };
            let status = u16::try_from(o.status).unwrap_or_default();
            if which.matches(&o.fingerprint, &o.document, &upstream, status, o.first_refused_at) {
                forgotten += u64::from(now < o.expires_at);
                self.remove(o.sequence, o.fingerprint, false)?;
            }
        }
        // Traffic forgets single keys, and may not pay for all the others.
        let strikes = match &which.fingerprint {
            Some(key) => self.strikes("fingerprint = ?", &[key.as_bytes()])?,
            None => self.strikes("TRUE", &[])?,
        };
        for s in strikes {
            if which.matches(&s.fingerprint, &s.document, &s.upstream, s.strike.status, s.first_at) {
                self.remove_strike(&s.fingerprint)?;
            }
        }
        self.changes.push(Change::Fence(self.fences.now()));
        Ok(forgotten)
    }

    pub(super) fn suspect(
        &mut self,
        upstream: &UpstreamName,
        since: Millis,
        now: Millis,
    ) -> rusqlite::Result<u64> {
        let sql = "SELECT sequence, fingerprint FROM entries \
             WHERE upstream = ? AND recorded_at >= ? AND expires_at > ?";
        let mut marked = 0;
        for (sequence, fingerprint) in self.keys(sql, params![upstream.as_str(), since.0, now.0])? {
            let stored = self.tally(sequence)?;
            if stored.as_ref().is_some_and(|stored| stored.suspect) {
                continue;
            }
            // Counts that are newer than these are in memory, and are written with the next ones.
            let tally = stored.map(|stored| stored.tally).unwrap_or_default();
            StoredTally { sequence, suspect: true, tally }.insert(self.connection)?;
            self.changes.push(Change::Suspect { fingerprint, sequence });
            marked += 1;
        }
        Ok(marked)
    }

    /// Removes some of what is over for good.
    pub(super) fn sweep(&mut self, now: Millis) -> rusqlite::Result<()> {
        let over = |kept_ms: u64| now.0.saturating_sub(kept_ms.cast_signed());
        let gone =
            "SELECT sequence, fingerprint FROM entries WHERE expires_at <= ? ORDER BY expires_at LIMIT ?";
        for (sequence, fingerprint) in self.keys(gone, [over(REMNANT_MS), SWEEP_ROWS.cast_signed()])? {
            self.remove(sequence, fingerprint, false)?;
        }
        // The order of change is the order of the latest strikes, so that the first rows are the candidates.
        self.remove_strikes(
            "SELECT turn, fingerprint FROM (SELECT turn, fingerprint, last_at FROM strikes ORDER BY turn LIMIT ?) \
             WHERE last_at <= ?",
            [SWEEP_ROWS.cast_signed(), over(STRIKE_MS)],
        )
    }

    /// Writes counts of replays.
    pub(super) fn flush(&self, counts: &[(Fingerprint, StoredTally)]) -> rusqlite::Result<()> {
        counts.iter().try_for_each(|(_, count)| count.insert(self.connection))
    }
}
