//! Bounds, and many at once.

use std::sync::Arc;

use nevertwice_domain::clock::Clock;
use nevertwice_domain::entry::{Candidate, Selector};
use tokio::task::JoinSet;

use super::{Bench, everything, samples, stored};
use crate::{ListOrder, ListQuery, Recorded};

fn bounded(n: u64, max_entries: u64) -> Candidate {
    Candidate { max_entries, ..samples::candidate(n) }
}

pub(super) async fn eviction_is_in_the_order_of_recording(bench: &Bench) {
    for n in 0..1000 {
        assert!(stored(bench.record(bounded(n, 100)).await).is_some());
        assert!(bench.entries().await <= 100);
    }
    assert_eq!(bench.present(1000).await, (900..1000).collect::<Vec<_>>());
    assert_eq!((bench.entries().await, bench.store.evictions()), (100, 900));
}

pub(super) async fn an_evicted_key_comes_back_as_the_youngest(bench: &Bench) {
    for n in [0, 1, 2, 0, 3] {
        bench.record(bounded(n, 2)).await;
    }
    assert_eq!(bench.present(4).await, [0, 3]);
    // A present entry that was refused again keeps its place.
    bench.record(bounded(0, 2)).await;
    bench.record(bounded(4, 2)).await;
    assert_eq!(bench.present(5).await, [3, 4]);
}

pub(super) async fn expired_entries_make_room_first(bench: &Bench) {
    bench.record(bounded(0, 3)).await;
    bench.record(Candidate { life: samples::flat(10), ..bounded(1, 3) }).await;
    bench.record(bounded(2, 3)).await;
    bench.clock.advance_ms(10);
    bench.record(bounded(3, 3)).await;
    assert_eq!(bench.present(4).await, [0, 2, 3]);
    assert_eq!(bench.store.evictions(), 0);
}

pub(super) async fn a_smaller_bound_holds_from_the_next_record(bench: &Bench) {
    for n in 0..50 {
        bench.record(bounded(n, 50)).await;
    }
    bench.record(bounded(50, 10)).await;
    assert_eq!(bench.present(51).await, (41..51).collect::<Vec<_>>());
    assert_eq!(bench.store.evictions(), 41);
}

pub(super) async fn many_tasks_at_once(bench: &Bench) {
    let mut tasks = JoinSet::new();
    for task in 0..64_u64 {
        let store = Arc::clone(&bench.store);
        tasks.spawn(async move {
            let tenant = samples::tenant(&format!("t{task}"));
            for i in 0..8 {
                let n = task * 8 + i;
                let key = samples::fingerprint(n);
                let fence = store.recall(&key).await.expect("recall").fence;
                let recorded = store.record(samples::candidate(n), fence).await.expect("record");
                let entry = stored(recorded).expect("nobody else records this one");
                assert_eq!(store.recall(&key).await.expect("recall").entry, Some(entry));
                assert_eq!(store.count_replay(&key, &tenant, samples::entry(n).recorded_at), 1);
                if i % 2 == 0 {
                    assert_eq!(store.forget(&Selector::key(key)).await.expect("forget"), 1);
                    assert!(store.recall(&key).await.expect("recall").entry.is_none());
                }
                store.list(&ListQuery { limit: 3, ..ListQuery::default() }).await.expect("list");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no task fails");
    }
    assert_eq!(bench.entries().await, 256);
    let listed = bench.list(&ListQuery { order: ListOrder::Recent, ..everything() }).await;
    assert_eq!(listed.len(), 256);
    assert!(listed.iter().all(|summary| summary.tally.replays == 1));
}

pub(super) async fn one_of_many_writers_wins(bench: &Bench) {
    let fence = bench.fence().await;
    let mut tasks = JoinSet::new();
    for task in 0..64_u64 {
        let store = Arc::clone(&bench.store);
        tasks.spawn(async move {
            let mut candidate = samples::candidate(1);
            candidate.entry.body = task.to_string().into();
            store.record(candidate, fence).await.expect("record")
        });
    }
    let mut winners = Vec::new();
    let mut seen = Vec::new();
    while let Some(done) = tasks.join_next().await {
        match done.expect("no task fails") {
            Recorded::Stored(entry) => winners.push(entry),
            Recorded::AlreadyThere(entry) => seen.push(entry),
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!((winners.len(), seen.len()), (1, 63));
    assert!(seen.iter().all(|entry| *entry == winners[0]));
    assert_eq!(bench.recall(1).await.as_ref(), winners.first());
}

pub(super) async fn a_forget_beats_every_older_attempt(bench: &Bench) {
    for n in 0..100 {
        let key = samples::fingerprint(n);
        let fence = bench.fence().await;
        let (record, forget) = (Arc::clone(&bench.store), Arc::clone(&bench.store));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { record.record(samples::candidate(n), fence).await.map(|_| ()) });
        tasks.spawn(async move { forget.forget(&Selector::key(key)).await.map(|_| ()) });
        while let Some(done) = tasks.join_next().await {
            done.expect("no task fails").expect("record and forget");
        }
        assert!(bench.recall(n).await.is_none(), "whichever came first");
    }
}

pub(super) async fn no_replay_is_lost_to_a_renewal(bench: &Bench) {
    bench.store(1).await;
    let (store, clock) = (Arc::clone(&bench.store), Arc::clone(&bench.clock));
    let mut counting = JoinSet::new();
    counting.spawn(async move {
        for _ in 0..20_000 {
            store.count_replay(&samples::fingerprint(1), &samples::tenant("a"), clock.now());
            tokio::task::yield_now().await;
        }
    });
    while counting.try_join_next().is_none() {
        assert_eq!(bench.suspect("ocr", bench.now()).await, 1);
        bench.store(1).await;
    }
    let shown = bench.store.show(&samples::fingerprint(1)).await.expect("show").expect("is there");
    assert_eq!(shown.tally.replays, 20_000);
}
