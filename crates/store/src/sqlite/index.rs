//! Everything about all entries but their bodies, in memory, and the bodies that were needed lately.
//!
//! The index follows the file: the writer changes it only after a commit. It is cut into shards, each behind its own lock
//! that is held for a look-up or a count, and by a list for a sixteenth of the entries at a time, so that an operator who
//! lists 100,000 entries does not hold up traffic.

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Entry, Tally};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::schema::StoredTally;
use crate::keeping::{is_live, is_servable};
use crate::{Cursor, Fence, ListQuery, Page, Summary};

const SHARDS: usize = 16;

/// The shared state of one store.
pub(super) struct Index {
    shards: [RwLock<Shard>; SHARDS],
    accepted: RwLock<BTreeSet<UpstreamName>>,
    epoch: AtomicU64,
    evictions: AtomicU64,
    /// Whole entries by sequence: a sequence is never used twice, so a copy can be unreachable but never wrong.
    bodies: Cache<u64, Arc<Entry>, Bytes, RandomState>,
}

#[derive(Default)]
struct Shard {
    rows: HashMap<Fingerprint, Row>,
    /// Which fingerprints have strikes in the file.
    strikes: HashSet<Fingerprint>,
    /// Which rows have replays that are not in the file yet.
    dirty: HashSet<Fingerprint>,
}

/// One entry without its body.
pub(super) struct Row {
    pub(super) sequence: u64,
    pub(super) head: Arc<Entry>,
    pub(super) body_bytes: u64,
    pub(super) suspect: bool,
    pub(super) tally: Tally,
}

/// Where an entry was found.
pub(super) enum Found {
    /// In memory, whole.
    Whole(Arc<Entry>),
    /// Its body is in the file.
    InFile {
        /// Under this sequence.
        sequence: u64,
    },
}

/// What a commit changed.
pub(super) enum Change {
    /// An entry is there, with this tally or, if `carry`, with that of the entry it replaces.
    Put { sequence: u64, entry: Arc<Entry>, tally: Tally, carry: bool },
    /// An entry is gone.
    Gone { fingerprint: Fingerprint, sequence: u64, evicted: bool },
    /// An entry was marked.
    Suspect { fingerprint: Fingerprint, sequence: u64 },
    /// A fingerprint has strikes, or has none any more.
    Strikes { fingerprint: Fingerprint, kept: bool },
    /// An upstream has accepted something.
    Accepted(UpstreamName),
    /// The sequence of forgets stands here.
    Fence(Fence),
}

impl Change {
    /// Whether it changed the file too.
    pub(super) fn is_in_the_file(&self) -> bool {
        !matches!(self, Self::Fence(_))
    }
}

/// What an entry in the body cache weighs.
#[derive(Clone)]
struct Bytes;

impl Weighter<u64, Arc<Entry>> for Bytes {
    fn weight(&self, _: &u64, entry: &Arc<Entry>) -> u64 {
        const BESIDES: u64 = 512;
        entry.body.len() as u64 + BESIDES
    }
}

impl Row {
    /// The row of an entry.
    pub(super) fn of(sequence: u64, entry: &Arc<Entry>, suspect: bool, tally: Tally) -> Self {
        let head = if entry.body.is_empty() {
            Arc::clone(entry)
        } else {
            Arc::new(Entry { body: bytes::Bytes::new(), ..(**entry).clone() })
        };
        Self { sequence, head, body_bytes: entry.body.len() as u64, suspect, tally }
    }

    fn summary(&self, place: Cursor) -> Summary {
        Summary {
            entry: Arc::clone(&self.head),
            place,
            body_bytes: self.body_bytes,
            tally: self.tally.clone(),
            suspect: self.suspect,
        }
    }
}

impl Index {
    /// An empty index that keeps bodies up to `near_bytes` in memory.
    pub(super) fn new(near_bytes: u64) -> Self {
        const EXPECTED: usize = 10_000;
        Self {
            shards: std::array::from_fn(|_| RwLock::default()),
            accepted: RwLock::default(),
            epoch: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            bodies: Cache::with(EXPECTED, near_bytes, Bytes, RandomState::new(), DefaultLifecycle::default()),
        }
    }

    fn lock(&self, key: &Fingerprint) -> &RwLock<Shard> {
        // A fingerprint is a hash already.
        &self.shards[usize::from(key.as_bytes()[0]) % SHARDS]
    }

    fn read(&self, key: &Fingerprint) -> RwLockReadGuard<'_, Shard> {
        self.lock(key).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, key: &Fingerprint) -> RwLockWriteGuard<'_, Shard> {
        self.lock(key).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn each_shard(&self) -> impl Iterator<Item = RwLockReadGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts in a row that was read at start.
    pub(super) fn load(&self, row: Row) {
        let key = row.head.fingerprint;
        self.write(&key).rows.insert(key, row);
    }

    /// The fence for an attempt that begins now.
    pub(super) fn fence(&self) -> Fence {
        Fence(self.epoch.load(Ordering::SeqCst))
    }

    /// The live, not suspect entry under `key`.
    pub(super) fn servable(&self, key: &Fingerprint, now: Millis) -> Option<Found> {
        let shard = self.read(key);
        let row = shard.rows.get(key).filter(|row| !row.suspect && is_servable(&row.head, now))?;
        Some(self.whole(row))
    }

    fn whole(&self, row: &Row) -> Found {
        if row.body_bytes == 0 {
            return Found::Whole(Arc::clone(&row.head));
        }
        match self.bodies.get(&row.sequence) {
            Some(entry) => Found::Whole(entry),
            None => Found::InFile { sequence: row.sequence },
        }
    }

    /// The entry under `key`, suspect or not, with what is counted about it.
    pub(super) fn shown(&self, key: &Fingerprint, now: Millis) -> Option<(Found, Tally, bool)> {
        let shard = self.read(key);
        let row = shard.rows.get(key).filter(|row| is_live(&row.head, now))?;
        Some((self.whole(row), row.tally.clone(), row.suspect))
    }

    /// Keeps a whole entry that was read from the file. Returns whether it is still the one under its key.
    pub(super) fn keep(&self, sequence: u64, entry: &Arc<Entry>) -> bool {
        let shard = self.read(&entry.fingerprint);
        let current = shard.rows.get(&entry.fingerprint).is_some_and(|row| row.sequence == sequence);
        if current {
            self.bodies.insert(sequence, Arc::clone(entry));
        }
        current
    }

    /// Takes out a row that the file cannot give back. Returns whether it was still there.
    pub(super) fn drop_damaged(&self, key: &Fingerprint, sequence: u64) -> bool {
        let mut shard = self.write(key);
        let current = shard.rows.get(key).is_some_and(|row| row.sequence == sequence);
        if current {
            shard.rows.remove(key);
            shard.dirty.remove(key);
        }
        current
    }

    /// Whether the file has anything under `key`.
    pub(super) fn knows(&self, key: &Fingerprint) -> bool {
        let shard = self.read(key);
        shard.rows.contains_key(key) || shard.strikes.contains(key)
    }

    /// Whether `upstream` was seen to accept.
    pub(super) fn has_accepted(&self, upstream: &UpstreamName) -> bool {
        self.accepted.read().unwrap_or_else(PoisonError::into_inner).contains(upstream)
    }

    /// How many entries count now.
    pub(super) fn live(&self, now: Millis) -> u64 {
        self.each_shard()
            .map(|shard| shard.rows.values().filter(|row| is_live(&row.head, now)).count() as u64)
            .sum()
    }

    /// How many entries the bound on their number has cost.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Counts one replay.
    pub(super) fn count_replay(&self, key: &Fingerprint, tenant: &TenantId, at: Millis, now: Millis) -> u64 {
        let mut shard = self.write(key);
        let Some(row) = shard.rows.get_mut(key).filter(|row| is_live(&row.head, now)) else { return 0 };
        row.tally.add(tenant, at);
        let replays = row.tally.replays;
        shard.dirty.insert(*key);
        replays
    }

    /// Takes the counts that are not in the file yet.
    pub(super) fn take_dirty(&self) -> Vec<(Fingerprint, StoredTally)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            for key in std::mem::take(&mut shard.dirty) {
                if let Some(row) = shard.rows.get(&key) {
                    let Row { sequence, suspect, .. } = *row;
                    taken.push((key, StoredTally { sequence, suspect, tally: row.tally.clone() }));
                }
            }
        }
        taken
    }

    /// Gives counts back that could not be written.
    pub(super) fn put_back_dirty(&self, taken: impl IntoIterator<Item = Fingerprint>) {
        for key in taken {
            self.write(&key).dirty.insert(key);
        }
    }

    /// Follows a commit.
    pub(super) fn apply(&self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Put { sequence, entry, tally, carry } => self.put(sequence, entry, tally, carry),
                Change::Gone { fingerprint, sequence, evicted } => {
                    let mut shard = self.write(&fingerprint);
                    if shard.rows.get(&fingerprint).is_some_and(|row| row.sequence == sequence) {
                        shard.rows.remove(&fingerprint);
                        shard.dirty.remove(&fingerprint);
                    }
                    self.bodies.remove(&sequence);
                    self.evictions.fetch_add(evicted.into(), Ordering::Relaxed);
                }
                Change::Suspect { fingerprint, sequence } => {
                    if let Some(row) = self.write(&fingerprint).rows.get_mut(&fingerprint)
                        && row.sequence == sequence
                    {
                        row.suspect = true;
                    }
                }
                Change::Strikes { fingerprint, kept } => {
                    let mut shard = self.write(&fingerprint);
                    if kept {
                        shard.strikes.insert(fingerprint);
                    } else {
                        shard.strikes.remove(&fingerprint);
                    }
                }
                Change::Accepted(upstream) => {
                    self.accepted.write().unwrap_or_else(PoisonError::into_inner).insert(upstream);
                }
                Change::Fence(fence) => self.epoch.store(fence.0, Ordering::SeqCst),
            }
        }
    }

    fn put(&self, sequence: u64, entry: Arc<Entry>, tally: Tally, carry: bool) {
        let key = entry.fingerprint;
        let mut row = Row::of(sequence, &entry, false, tally);
        let mut shard = self.write(&key);
        if let Some(old) = shard.rows.remove(&key) {
            self.bodies.remove(&old.sequence);
            // Memory counts first: what the file does not have yet is marked as such under this key already.
            if carry {
                row.tally = old.tally;
            }
        }
        shard.rows.insert(key, row);
        if !entry.body.is_empty() {
            self.bodies.insert(sequence, entry);
        }
    }

    /// A page of entries.
    pub(super) fn list(&self, query: &ListQuery, now: Millis) -> Page {
        let length = query.page_length();
        // The best so far, the worst of them on top.
        let mut best = BinaryHeap::with_capacity(length + 2);
        for shard in self.each_shard() {
            for (key, row) in &shard.rows {
                let place = query.place(row.tally.replays, row.sequence);
                let worse =
                    best.len() > length && best.peek().is_some_and(|Reverse((worst, _))| place < *worst);
                if worse
                    || query.after.is_some_and(|after| place >= (after.replays, after.sequence))
                    || !is_live(&row.head, now)
                    || !query.selects(&row.head, &row.tally)
                {
                    continue;
                }
                best.push(Reverse((place, *key)));
                if best.len() > length + 1 {
                    best.pop();
                }
            }
        }
        let mut places: Vec<_> = best.into_sorted_vec().into_iter().map(|Reverse(found)| found).collect();
        let more = places.len() > length;
        places.truncate(length);
        let next = places.last().filter(|_| more).map(|(place, _)| Cursor::at(*place));
        // One that has gone since is left out.
        let summary = |(place, key): &(_, Fingerprint)| {
            self.read(key).rows.get(key).map(|row| row.summary(Cursor::at(*place)))
        };
        Page { items: places.iter().filter_map(summary).collect(), next }
    }
}
