//! The reference: everything in one map behind one lock, each rule written down in the plainest way. Forgets everything when
//! the process ends. What it does is what every store has to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::{Candidate, Entry, Selector, Tally};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::strike::{Strike, StrikeOutcome};
use nevertwice_domain::tenant::{TenantId, UpstreamName};

use crate::fence::FenceLog;
use crate::keeping::{goes_on, is_in_a_row, is_live, is_servable};
use crate::{
    Cursor, Fence, Imported, ListQuery, Moved, Page, Recalled, Recorded, RefusalStore, Shown, StoreError,
    Summary,
};

/// A store in the memory of this process.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<Fingerprint, Row>,
    strikes: BTreeMap<Fingerprint, StrikeRow>,
    accepted: BTreeSet<UpstreamName>,
    fences: FenceLog,
    last_sequence: u64,
    last_turn: u64,
    evictions: u64,
    closed: bool,
}

struct Row {
    entry: Arc<Entry>,
    sequence: u64,
    suspect: bool,
    tally: Tally,
}

struct StrikeRow {
    strike: Strike,
    first_at: Millis,
    document: DocumentDigest,
    upstream: UpstreamName,
    /// Its place in the order in which strikes were last changed.
    turn: u64,
}

impl MemoryStore {
    /// An empty store that reads the time from `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let state = self.lock();
        if state.closed { Err(StoreError::closed()) } else { Ok(state) }
    }
}

impl State {
    fn live(&self, key: &Fingerprint, now: Millis) -> Option<&Row> {
        self.rows.get(key).filter(|row| is_live(&row.entry, now))
    }

    fn servable(&self, key: &Fingerprint, now: Millis) -> Option<Arc<Entry>> {
        let row = self.rows.get(key).filter(|row| !row.suspect && is_servable(&row.entry, now))?;
        Some(Arc::clone(&row.entry))
    }

    fn record(&mut self, candidate: Candidate, fence: Fence, now: Millis) -> Recorded {
        let Candidate { mut entry, life, max_entries } = candidate;
        let key = entry.fingerprint;
        let before = self
            .strikes
            .get(&key)
            .filter(|row| life.needs_strikes() && is_in_a_row(&row.strike, now))
            .map(|row| (row.strike.clone(), row.first_at));
        let (strike, outcome) =
            life.strike(before.as_ref().map(|(strike, _)| strike), entry.status, &entry.rule, now);
        let first_at = before.filter(|_| strike.count > 1).map_or(now, |(_, first_at)| first_at);
        let carried = self
            .rows
            .get(&key)
            .filter(|old| goes_on(&old.entry, &entry, now))
            .map(|old| (old.tally.clone(), old.entry.first_refused_at));
        let first_refused_at = carried.as_ref().map_or(first_at, |(_, earlier)| first_at.min(*earlier));
        if self.fences.bars(fence, &entry, first_refused_at) {
            return Recorded::Fenced;
        }
        if let Some(present) = self.servable(&key, now)
            && present.remaining_under(&life, now).is_some()
        {
            return Recorded::AlreadyThere(present);
        }

        if life.needs_strikes() {
            self.last_turn += 1;
            let (document, upstream) = (entry.document.digest, entry.upstream.clone());
            let row = StrikeRow { strike, first_at, document, upstream, turn: self.last_turn };
            self.strikes.insert(key, row);
            self.bound_strikes(max_entries);
        }
        entry.ttl_ms = match outcome {
            StrikeOutcome::Unconfirmed { count } => return Recorded::Unconfirmed(count),
            StrikeOutcome::Remember { ttl_ms } => ttl_ms,
        };
        entry.recorded_at = now;
        entry.first_refused_at = first_refused_at;

        let tally = carried.map(|(tally, _)| tally).unwrap_or_default();
        let entry = Arc::new(entry);
        self.put(Arc::clone(&entry), tally, max_entries, now);
        Recorded::Stored(entry)
    }

    fn import(&mut self, moved: Moved, fence: Fence, max_entries: u64, now: Millis) -> Imported {
        let Moved { entry, tally } = moved;
        if !is_live(&entry, now) {
            return Imported::Expired;
        }
        if self.fences.bars(fence, &entry, entry.first_refused_at) {
            return Imported::Fenced;
        }
        if self.live(&entry.fingerprint, now).is_some() {
            return Imported::AlreadyThere;
        }
        self.put(Arc::new(entry), tally, max_entries, now);
        Imported::Stored
    }

    fn put(&mut self, entry: Arc<Entry>, tally: Tally, max_entries: u64, now: Millis) {
        self.last_sequence += 1;
        let row = Row { entry, sequence: self.last_sequence, suspect: false, tally };
        self.rows.insert(row.entry.fingerprint, row);
        self.bound_rows(max_entries, now);
    }

    /// Those that have expired go first, then the oldest.
    fn bound_rows(&mut self, max_entries: u64, now: Millis) {
        while self.rows.len() as u64 > max_entries.max(1) {
            let expired = self.rows.values().filter(|row| !is_live(&row.entry, now));
            let gone = match expired.min_by_key(|row| (row.entry.expires_at(), row.sequence)) {
                Some(row) => row.entry.fingerprint,
                None => {
                    let Some(oldest) = self.rows.values().min_by_key(|row| row.sequence) else { return };
                    self.evictions += 1;
                    oldest.entry.fingerprint
                }
            };
            self.rows.remove(&gone);
        }
    }

    fn bound_strikes(&mut self, max_entries: u64) {
        while self.strikes.len() as u64 > max_entries.max(1) {
            let Some(oldest) = self.strikes.iter().min_by_key(|(_, row)| row.turn) else { return };
            let oldest = *oldest.0;
            self.strikes.remove(&oldest);
        }
    }

    fn forget(&mut self, which: &Selector, now: Millis) -> u64 {
        self.fences.push(which.clone());
        self.fences.settle();
        self.strikes.retain(|key, row| {
            !which.matches(key, &row.document, &row.upstream, row.strike.status, row.first_at)
        });
        let mut forgotten = 0;
        self.rows.retain(|key, row| {
            let e = &row.entry;
            let goes =
                which.matches(key, &e.document.digest, &e.upstream, e.status.get(), e.first_refused_at);
            forgotten += u64::from(goes && is_live(e, now));
            !goes
        });
        forgotten
    }

    fn list(&self, query: &ListQuery, now: Millis) -> Page {
        let place = |row: &Row| query.place(row.tally.replays, row.sequence);
        let mut rows: Vec<&Row> = self
            .rows
            .values()
            .filter(|row| is_live(&row.entry, now))
            .filter(|row| query.selects(&row.entry, &row.tally))
            .filter(|row| query.after.is_none_or(|after| place(row) < (after.replays, after.sequence)))
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(place(row)));
        let more = rows.len() > query.page_length();
        rows.truncate(query.page_length());
        let next = rows.last().filter(|_| more).map(|row| Cursor::at(place(row)));
        Page { items: rows.into_iter().map(|row| row.summary(Cursor::at(place(row)))).collect(), next }
    }
}

impl Row {
    fn summary(&self, place: Cursor) -> Summary {
        Summary {
            entry: Arc::new(Entry { body: Bytes::new(), ..(*self.entry).clone() }),
            place,
            body_bytes: self.entry.body.len() as u64,
            tally: self.tally.clone(),
            suspect: self.suspect,
        }
    }
}

#[async_trait]
impl RefusalStore for MemoryStore {
    fn near(&self, key: &Fingerprint) -> Option<Arc<Entry>> {
        self.open().ok()?.servable(key, self.clock.now())
    }

    async fn recall(&self, key: &Fingerprint) -> Result<Recalled, StoreError> {
        let state = self.open()?;
        Ok(Recalled { entry: state.servable(key, self.clock.now()), fence: state.fences.now() })
    }

    async fn record(&self, candidate: Candidate, fence: Fence) -> Result<Recorded, StoreError> {
        Ok(self.open()?.record(candidate, fence, self.clock.now()))
    }

    async fn import(
        &self,
        moved: Vec<Moved>,
        fence: Fence,
        max_entries: u64,
    ) -> Result<Vec<Imported>, StoreError> {
        let mut state = self.open()?;
        let now = self.clock.now();
        Ok(moved.into_iter().map(|moved| state.import(moved, fence, max_entries, now)).collect())
    }

    async fn accept(&self, key: &Fingerprint, upstream: &UpstreamName) -> Result<bool, StoreError> {
        let mut state = self.open()?;
        state.accepted.insert(upstream.clone());
        state.strikes.remove(key);
        Ok(state.rows.remove(key).is_some_and(|row| is_live(&row.entry, self.clock.now())))
    }

    fn has_accepted(&self, upstream: &UpstreamName) -> bool {
        self.lock().accepted.contains(upstream)
    }

    async fn forget(&self, which: &Selector) -> Result<u64, StoreError> {
        Ok(self.open()?.forget(which, self.clock.now()))
    }

    async fn suspect(&self, upstream: &UpstreamName, since: Millis) -> Result<u64, StoreError> {
        let mut state = self.open()?;
        let now = self.clock.now();
        let mut marked = 0;
        for row in state.rows.values_mut() {
            let e = &row.entry;
            if !row.suspect && is_live(e, now) && e.upstream == *upstream && e.recorded_at >= since {
                row.suspect = true;
                marked += 1;
            }
        }
        Ok(marked)
    }

    fn count_replay(&self, key: &Fingerprint, tenant: &TenantId, at: Millis) -> u64 {
        let Ok(mut state) = self.open() else { return 0 };
        match state.rows.get_mut(key).filter(|row| is_live(&row.entry, self.clock.now())) {
            Some(row) => {
                row.tally.add(tenant, at);
                row.tally.replays
            }
            None => 0,
        }
    }

    async fn entries(&self) -> Result<u64, StoreError> {
        let now = self.clock.now();
        Ok(self.open()?.rows.values().filter(|row| is_live(&row.entry, now)).count() as u64)
    }

    fn evictions(&self) -> u64 {
        self.lock().evictions
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        Ok(self.open()?.list(query, self.clock.now()))
    }

    async fn show(&self, key: &Fingerprint) -> Result<Option<Shown>, StoreError> {
        let state = self.open()?;
        Ok(state.live(key, self.clock.now()).map(|row| Shown {
            entry: Arc::clone(&row.entry),
            tally: row.tally.clone(),
            suspect: row.suspect,
        }))
    }

    async fn close(&self) -> Result<(), StoreError> {
        let mut state = self.open()?;
        state.closed = true;
        state.rows.clear();
        state.strikes.clear();
        Ok(())
    }
}
