//! Random operations have the same results on the embedded store as on the reference, across restarts of the former.

use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use nevertwice_domain::clock::{Clock, ManualClock, Millis};
use nevertwice_domain::entry::{Candidate, Selector, Tally};
use nevertwice_domain::strike::{Ladder, LifePolicy};
use nevertwice_store::memory::MemoryStore;
use nevertwice_store::sqlite::{SqliteOptions, SqliteStore};
use nevertwice_store::suite::samples;
use nevertwice_store::{Fence, ListOrder, ListQuery, Moved, RefusalStore};

const KEYS: u64 = 12;
const UPSTREAMS: [&str; 3] = ["ocr", "tika", "classifier"];
const STATUSES: [u16; 3] = [400, 415, 422];
const HOUR: i64 = 60 * 60 * 1000;

struct Pair {
    clock: Arc<ManualClock>,
    reference: MemoryStore,
    embedded: SqliteStore,
    /// The evictions before the last restart.
    evicted_before: u64,
    /// Attempts under way: their fences in both stores.
    fences: Vec<(Fence, Fence)>,
}

fn open(directory: &Path, clock: &Arc<ManualClock>, near_bytes: u64) -> SqliteStore {
    let options = SqliteOptions { near_bytes, ..SqliteOptions::default() };
    SqliteStore::open(directory, Arc::<ManualClock>::clone(clock), options)
        .unwrap_or_else(|e| unreachable!("{e}"))
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

fn maybe<T>(rng: &mut Rng, value: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if rng.u8(..3) == 0 { Some(value(rng)) } else { None }
}

fn candidate(rng: &mut Rng) -> Candidate {
    let n = rng.u64(..KEYS);
    let mut entry = samples::entry(n);
    // A key belongs to one upstream and mostly to one document, as in life.
    entry.upstream = samples::upstream(UPSTREAMS[(n % 3) as usize]);
    entry.document.digest = samples::document(if rng.u8(..10) == 0 { n + 1 } else { n / 2 });
    entry.status = samples::status(pick(rng, &STATUSES));
    entry.rule = pick(rng, &["status", "code"]).into();
    entry.refused_tenant = samples::tenant(pick(rng, &["a", "b", "c"]));
    entry.body = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect::<Vec<_>>().into();
    let mut life = LifePolicy::flat(pick(rng, &[2000, 60_000, 3_600_000])).confirmed_by(rng.u32(1..3));
    if let Some(ladder) = maybe(rng, |_| Ladder { first_ms: 1000, factor: 3 }) {
        life = life.climbing(ladder);
    }
    if let Some(cap) = maybe(rng, |rng| pick(rng, &[1000, 30_000])) {
        life = life.capped_for(samples::status(415), cap);
    }
    Candidate { entry, life, max_entries: pick(rng, &[3, 8, 8, 100]) }
}

fn moved(rng: &mut Rng, now: Millis) -> Moved {
    let Candidate { mut entry, .. } = candidate(rng);
    entry.recorded_at = Millis(now.0 - rng.i64(-70_000..5000));
    entry.first_refused_at = Millis(entry.recorded_at.0 - rng.i64(0..5000));
    entry.ttl_ms = rng.u64(..10_000);
    let mut tally = Tally::default();
    for n in 0..rng.i64(..3) {
        tally.add(&samples::tenant(pick(rng, &["a", "b", "d"])), Millis(entry.recorded_at.0 + n));
    }
    Moved { entry, tally }
}

fn selector(rng: &mut Rng, now: Millis) -> Selector {
    let n = rng.u64(..KEYS);
    Selector {
        fingerprint: maybe(rng, |_| samples::fingerprint(n)),
        document: maybe(rng, |_| samples::document(n / 2)),
        upstream: maybe(rng, |rng| samples::upstream(pick(rng, &UPSTREAMS))),
        status: maybe(rng, |rng| samples::status(pick(rng, &STATUSES))),
        before: maybe(rng, |rng| Millis(now.0 - rng.i64(-10..5000))),
    }
}

fn query(rng: &mut Rng) -> ListQuery {
    ListQuery {
        upstream: maybe(rng, |rng| samples::upstream(pick(rng, &UPSTREAMS))),
        status: maybe(rng, |rng| samples::status(pick(rng, &STATUSES))),
        document: maybe(rng, |_| samples::document(0)),
        tenant: maybe(rng, |_| samples::tenant("b")),
        order: pick(rng, &[ListOrder::Replays, ListOrder::Recent, ListOrder::Oldest]),
        limit: rng.usize(1..5),
        after: None,
    }
}

async fn all_pages(store: &dyn RefusalStore, mut query: ListQuery) -> String {
    let mut items = Vec::new();
    loop {
        let page = store.list(&query).await.unwrap_or_else(|e| unreachable!("{e}"));
        items.extend(page.items);
        assert!(items.len() < 1000, "paging comes to an end");
        query.after = page.next;
        if query.after.is_none() {
            return format!("{items:?}");
        }
    }
}

impl Pair {
    /// Does one random thing to both; what they answered, and what was done.
    async fn step(&mut self, rng: &mut Rng, directory: &Path) -> (String, [String; 2]) {
        let now = self.clock.now();
        let (a, b): (&dyn RefusalStore, &dyn RefusalStore) = (&self.reference, &self.embedded);
        let key = samples::fingerprint(rng.u64(..KEYS));
        match rng.u8(..21) {
            0..7 => {
                let candidate = candidate(rng);
                let fences = match rng.u8(..4) {
                    0 if !self.fences.is_empty() => self.fences.swap_remove(rng.usize(..self.fences.len())),
                    _ => fences(a, b).await,
                };
                let done = [
                    a.record(candidate.clone(), fences.0).await,
                    b.record(candidate.clone(), fences.1).await,
                ];
                (format!("record {candidate:?}"), done.map(|d| format!("{d:?}")))
            }
            7..9 => {
                if self.fences.len() < 8 {
                    self.fences.push(fences(a, b).await);
                }
                ("begin".into(), <[String; 2]>::default())
            }
            9 => {
                let upstream = samples::upstream(pick(rng, &UPSTREAMS));
                let done = [a.accept(&key, &upstream).await, b.accept(&key, &upstream).await];
                (format!("accept {key} {upstream}"), done.map(|d| format!("{d:?}")))
            }
            10 => {
                let which = selector(rng, now);
                let done = [a.forget(&which).await, b.forget(&which).await];
                (format!("forget {which:?}"), done.map(|d| format!("{d:?}")))
            }
            11 => {
                let (upstream, since) =
                    (samples::upstream(pick(rng, &UPSTREAMS)), Millis(now.0 - rng.i64(0..5000)));
                let done = [a.suspect(&upstream, since).await, b.suspect(&upstream, since).await];
                (format!("suspect {upstream} {since}"), done.map(|d| format!("{d:?}")))
            }
            12..15 => {
                let tenant = samples::tenant(pick(rng, &["a", "b", "c"]));
                let done = [a.count_replay(&key, &tenant, now), b.count_replay(&key, &tenant, now)];
                (format!("replay {key} {tenant}"), done.map(|d| d.to_string()))
            }
            15..18 => {
                let ms = pick(rng, &[1, 500, 1000, 2000, 60_000, 2 * HOUR, 25 * HOUR, 31 * 24 * HOUR]);
                self.clock.advance_ms(rng.i64(0..=ms));
                ("time".into(), <[String; 2]>::default())
            }
            18 => {
                let query = query(rng);
                let done = [all_pages(a, query.clone()).await, all_pages(b, query.clone()).await];
                (format!("list {query:?}"), done)
            }
            19 => {
                let moved: Vec<_> = (0..rng.usize(..3)).map(|_| moved(rng, now)).collect();
                let fences = match rng.u8(..2) {
                    0 if !self.fences.is_empty() => self.fences.swap_remove(rng.usize(..self.fences.len())),
                    _ => fences(a, b).await,
                };
                let most = pick(rng, &[3, 100]);
                let done = [
                    a.import(moved.clone(), fences.0, most).await,
                    b.import(moved.clone(), fences.1, most).await,
                ];
                (format!("import {moved:?}"), done.map(|d| format!("{d:?}")))
            }
            _ => {
                self.embedded.close().await.unwrap_or_else(|e| unreachable!("{e}"));
                self.evicted_before += self.embedded.evictions();
                self.fences.clear();
                self.embedded = open(directory, &self.clock, pick(rng, &[0, 1 << 20]));
                ("restart".into(), <[String; 2]>::default())
            }
        }
    }

    /// What can be seen of each.
    async fn views(&self) -> [String; 2] {
        let stores: [&dyn RefusalStore; 2] = [&self.reference, &self.embedded];
        let mut views = [String::new(), String::new()];
        for (view, store) in views.iter_mut().zip(stores) {
            for n in 0..KEYS {
                let key = samples::fingerprint(n);
                let recalled = store.recall(&key).await.map(|recalled| recalled.entry);
                *view += &format!("{n}: {recalled:?} {:?}\n", store.show(&key).await);
            }
            let accepted = UPSTREAMS.map(|name| store.has_accepted(&samples::upstream(name)));
            *view += &format!("{accepted:?} {:?}", store.entries().await);
        }
        views[0] += &format!(" {}", self.reference.evictions());
        views[1] += &format!(" {}", self.embedded.evictions() + self.evicted_before);
        views
    }
}

async fn fences(a: &dyn RefusalStore, b: &dyn RefusalStore) -> (Fence, Fence) {
    let key = samples::fingerprint(u64::MAX);
    let fence = |recalled: Result<nevertwice_store::Recalled, _>| recalled.map(|recalled| recalled.fence);
    match (fence(a.recall(&key).await), fence(b.recall(&key).await)) {
        (Ok(a), Ok(b)) => (a, b),
        failed => unreachable!("{failed:?}"),
    }
}

async fn compare(seed: u64, steps: usize) {
    let mut rng = Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap_or_else(|e| unreachable!("{e}"));
    let clock = Arc::new(ManualClock::at(Millis(1_700_000_000_000)));
    let mut pair = Pair {
        reference: MemoryStore::new(Arc::<ManualClock>::clone(&clock)),
        embedded: open(directory.path(), &clock, 1 << 20),
        clock,
        evicted_before: 0,
        fences: Vec::new(),
    };
    for step in 0..steps {
        let (did, [a, b]) = pair.step(&mut rng, directory.path()).await;
        assert_eq!(a, b, "seed {seed}, step {step}: {did}");
        let [a, b] = pair.views().await;
        assert_eq!(a, b, "seed {seed}, step {step}, after: {did}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_do_the_same() {
    for seed in 0..6 {
        compare(seed, 300).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_both_stores_do_the_same_for_long() {
    for seed in 100..120 {
        compare(seed, 800).await;
    }
}
