//! What this process knows of the store: entries that it has seen lately, at most five seconds behind, and the replays that it
//! has counted and not yet told. Bounded in bytes; nothing here outlives a lost connection for longer than those seconds.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Entry, Selector, Tally};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::keeping::{is_live, is_servable};

/// How far behind a near copy may be.
const FRESH: Duration = Duration::from_secs(5);
/// What an entry takes beside its body and names: some 730 bytes as measured by the example `redis_scale`.
const OVERHEAD: u64 = 768;
/// Keys whose replays may wait to be told; beyond that they are not counted.
const TALLIES: usize = 65_536;

/// The near copy.
pub(super) struct Near {
    known: Cache<Fingerprint, Arc<Known>, ByBytes>,
    untold: Mutex<HashMap<Fingerprint, Tally>>,
    removals: Mutex<Removals>,
}

/// What was taken out lately: an answer of the store that was overtaken by a removal is not kept.
#[derive(Default)]
struct Removals {
    count: u64,
    /// The number of the latest that was of more than one key.
    wide: u64,
    /// The keys of the latest ones, the newest last; a wide one has none.
    latest: VecDeque<Option<Fingerprint>>,
}

/// When the store was asked, and how many removals there had been.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    at: Instant,
    removals: u64,
}

impl Removals {
    /// How many are known by their keys.
    const KNOWN: usize = 1024;

    fn note(&mut self, key: Option<Fingerprint>) {
        self.count += 1;
        if key.is_none() {
            self.wide = self.count;
        }
        self.latest.push_back(key);
        if self.latest.len() > Self::KNOWN {
            self.latest.pop_front();
        }
    }

    fn was_removed(&self, key: &Fingerprint, since: Mark) -> bool {
        let missed = usize::try_from(self.count - since.removals).unwrap_or(usize::MAX);
        missed > Self::KNOWN
            || self.wide > since.removals
            || self.latest.iter().rev().take(missed).any(|removed| removed.as_ref() == Some(key))
    }
}

struct Known {
    entry: Arc<Entry>,
    seen: Instant,
    suspect: AtomicBool,
    /// Replays that the store knows of, and those that are on their way to it.
    told: AtomicU64,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Fingerprint, Arc<Known>> for ByBytes {
    fn weight(&self, _: &Fingerprint, known: &Arc<Known>) -> u64 {
        known.entry.body.len() as u64 + OVERHEAD
    }
}

impl Near {
    pub(super) fn new(bytes: u64) -> Self {
        let items = usize::try_from(bytes / (4 * OVERHEAD)).unwrap_or(usize::MAX).clamp(16, 1 << 20);
        Self {
            known: Cache::with_weighter(items, bytes, ByBytes),
            untold: Mutex::default(),
            removals: Mutex::default(),
        }
    }

    /// To be taken before the store is asked.
    pub(super) fn mark(&self) -> Mark {
        Mark { at: Instant::now(), removals: self.removals().count }
    }

    /// The store has this entry, replayed so often; those replays that are on their way to it may not be among them.
    pub(super) fn put(&self, entry: &Arc<Entry>, replays: u64, mark: Mark) {
        let removals = self.removals();
        if removals.was_removed(&entry.fingerprint, mark) {
            return;
        }
        let same = |known: &Arc<Known>| {
            known.entry.document.digest == entry.document.digest && known.entry.status == entry.status
        };
        let before = self.known.get(&entry.fingerprint).filter(same);
        let told = before.map_or(replays, |known| known.told.load(Ordering::Relaxed).max(replays));
        let known = Known {
            entry: Arc::clone(entry),
            // the answer may be as old as the question
            seen: mark.at,
            suspect: AtomicBool::new(false),
            told: AtomicU64::new(told),
        };
        self.known.insert(entry.fingerprint, Arc::new(known));
    }

    /// The store has this entry now in place of another: its replays begin anew, or with those that it brings.
    pub(super) fn put_anew(&self, entry: &Arc<Entry>, replays: u64, mark: Mark) {
        self.known.remove(&entry.fingerprint);
        self.untold().remove(&entry.fingerprint);
        self.put(entry, replays, mark);
    }

    /// The entry, if it may be replayed without asking.
    pub(super) fn get(&self, key: &Fingerprint, now: Millis) -> Option<Arc<Entry>> {
        let known = self.known.get(key)?;
        let usable = !known.suspect.load(Ordering::Relaxed)
            && known.seen.elapsed() < FRESH
            && is_servable(&known.entry, now);
        usable.then(|| Arc::clone(&known.entry))
    }

    pub(super) fn remove(&self, key: &Fingerprint) {
        self.removals().note(Some(*key));
        self.known.remove(key);
        self.untold().remove(key);
    }

    pub(super) fn forget(&self, which: &Selector) {
        self.removals().note(None);
        let selects = |key: &Fingerprint, e: &Entry| {
            which.matches(key, &e.document.digest, &e.upstream, e.status.get(), e.first_refused_at)
        };
        // the counts afterwards: whoever holds them may be looking for an entry, which waits for this
        let gone = RefCell::new(Vec::new());
        self.known.retain(|key, known| {
            let goes = selects(key, &known.entry);
            if goes {
                gone.borrow_mut().push(*key);
            }
            !goes
        });
        let mut untold = self.untold();
        for key in gone.into_inner() {
            untold.remove(&key);
        }
    }

    pub(super) fn suspect(&self, upstream: &UpstreamName, since: Millis) {
        self.removals().note(None);
        for (_, known) in self.known.iter() {
            if known.entry.upstream == *upstream && known.entry.recorded_at >= since {
                known.suspect.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Nothing that was known is known any more. Replays that were counted are still told.
    pub(super) fn clear(&self) {
        self.removals().note(None);
        self.known.clear();
    }

    /// Counts a replay; 0 when nothing is known of the entry.
    pub(super) fn count(&self, key: &Fingerprint, tenant: &TenantId, at: Millis, now: Millis) -> u64 {
        let Some(known) = self.known.get(key).filter(|known| is_live(&known.entry, now)) else { return 0 };
        let mut untold = self.untold();
        let room = untold.len() < TALLIES || untold.contains_key(key);
        let counted = if room {
            let tally = untold.entry(*key).or_default();
            tally.add(tenant, at);
            tally.replays
        } else {
            0
        };
        known.told.load(Ordering::Relaxed).saturating_add(counted)
    }

    /// The replays that are to be told now.
    pub(super) fn take_untold(&self) -> Vec<(Fingerprint, Tally)> {
        let mut untold = self.untold();
        for (key, tally) in untold.iter() {
            if let Some(known) = self.known.get(key) {
                known.told.fetch_add(tally.replays, Ordering::Relaxed);
            }
        }
        untold.drain().collect()
    }

    /// They could not be told.
    pub(super) fn put_back(&self, tallies: Vec<(Fingerprint, Tally)>) {
        let mut untold = self.untold();
        for (key, tally) in tallies {
            if let Some(known) = self.known.get(&key) {
                let _ = known.told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |told| {
                    Some(told.saturating_sub(tally.replays))
                });
            }
            if untold.len() >= TALLIES && !untold.contains_key(&key) {
                continue;
            }
            match untold.entry(key) {
                std::collections::hash_map::Entry::Vacant(none) => {
                    none.insert(tally);
                }
                std::collections::hash_map::Entry::Occupied(mut some) => merge(some.get_mut(), &tally),
            }
        }
    }

    /// So often has the entry been replayed, by all.
    pub(super) fn told(&self, key: &Fingerprint, total: u64) {
        if let Some(known) = self.known.get(key) {
            known.told.store(total, Ordering::Relaxed);
        }
    }

    fn removals(&self) -> MutexGuard<'_, Removals> {
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untold(&self) -> MutexGuard<'_, HashMap<Fingerprint, Tally>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn merge(into: &mut Tally, earlier: &Tally) {
    into.replays = into.replays.saturating_add(earlier.replays);
    into.first_replayed_at = earlier.first_replayed_at.or(into.first_replayed_at);
    let later = std::mem::replace(&mut into.tenants, earlier.tenants.clone());
    for tenant in later {
        if into.tenants.len() < Tally::MAX_TENANTS && !into.tenants.contains(&tenant) {
            into.tenants.push(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::samples;

    #[test]
    fn an_answer_that_was_overtaken_by_a_removal_is_not_kept() {
        let near = Near::new(1 << 20);
        let entry = |n| Arc::new(Entry { ttl_ms: 1000, ..samples::entry(n) });
        let knows = |n| near.get(&samples::fingerprint(n), Millis(1)).is_some();
        let mark = near.mark();
        near.remove(&samples::fingerprint(1));
        near.put(&entry(1), 0, mark);
        near.put(&entry(2), 0, mark);
        assert!(!knows(1) && knows(2), "the removal was of the other");
        near.put(&entry(1), 0, near.mark());
        assert!(knows(1), "the answer is from after it");

        let mark = near.mark();
        near.clear();
        near.put(&entry(3), 0, mark);
        assert!(!knows(2) && !knows(3));
        let mark = near.mark();
        for n in 0..=Removals::KNOWN as u64 {
            near.remove(&samples::fingerprint(100 + n));
        }
        near.put(&entry(3), 0, mark);
        assert!(!knows(3), "too many to know");
    }

    #[test]
    fn a_forget_and_a_count_do_not_wait_for_each_other() {
        let near = Arc::new(Near::new(1 << 20));
        let (done, ended) = std::sync::mpsc::channel();
        for forgets in [true, false] {
            let (near, done) = (Arc::clone(&near), done.clone());
            std::thread::spawn(move || {
                for round in 0..20_000 {
                    let n = round % 8;
                    near.put(&Arc::new(Entry { ttl_ms: 1000, ..samples::entry(n) }), 0, near.mark());
                    near.count(&samples::fingerprint(n), &samples::tenant("a"), Millis(1), Millis(1));
                    if forgets {
                        near.forget(&Selector::default());
                    } else {
                        let told = near.take_untold();
                        near.put_back(told);
                    }
                }
                let _ = done.send(());
            });
        }
        for _ in 0..2 {
            assert!(ended.recv_timeout(Duration::from_secs(60)).is_ok(), "they wait for each other");
        }
    }

    #[test]
    fn a_copy_is_as_old_as_the_question() {
        let near = Near::new(1 << 20);
        let entry = Arc::new(Entry { ttl_ms: 1000, ..samples::entry(1) });
        let now = near.mark();
        let long_ago = now.at.checked_sub(FRESH).map(|at| Mark { at, ..now });
        near.put(&entry, 0, long_ago.unwrap_or(now));
        assert!(near.get(&entry.fingerprint, Millis(1)).is_none() || long_ago.is_none());
        near.put(&entry, 0, now);
        assert!(near.get(&entry.fingerprint, Millis(1)).is_some());
    }
}
