//! Two processes on one server.

use std::sync::Arc;
use std::time::Duration;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Selector;
use nevertwice_store::redis::RedisOptions;
use nevertwice_store::suite::samples;
use nevertwice_store::{ListOrder, ListQuery, News, Recorded, RefusalStore};
use nevertwice_testkit::{Chaos, Fault, Redis};
use tokio::task::JoinSet;

use super::bench::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_copies_drop_within_a_second() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    let selectors = [
        Selector::key(samples::fingerprint(1)),
        Selector { upstream: Some(samples::upstream("ocr")), ..Selector::default() },
        Selector { document: Some(samples::document(1)), ..Selector::default() },
        Selector { status: Some(samples::status(400)), ..Selector::default() },
        Selector { before: Some(Millis(i64::MAX)), ..Selector::default() },
        Selector::default(),
    ];
    for which in &selectors {
        let entry = must_record(&a, 1).await;
        assert!(near(&a, 1) && !near(&b, 1), "{which:?}");
        assert_eq!(recall(&b, 1).await.ok().flatten(), Some(entry));
        assert!(near(&b, 1));
        assert_eq!(a.forget(which).await.ok(), Some(1), "{which:?}");
        assert!(!near(&a, 1) && !knows(&b, 1).await, "{which:?}");
        until("the near copy drops", SECOND, async || !near(&b, 1)).await;
    }
    let other = Selector { upstream: Some(samples::upstream("tika")), ..Selector::default() };
    must_record(&a, 1).await;
    assert!(knows(&b, 1).await);
    assert_eq!(a.forget(&other).await.ok(), Some(0));
    assert!(near(&b, 1), "it is of another upstream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspects_and_accepted_documents_are_served_by_nobody() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    for n in 0..3 {
        must_record(&a, n).await;
        assert!(knows(&b, n).await && near(&b, n));
    }
    let marked = a.suspect(&samples::upstream("ocr"), Millis(0)).await;
    assert_eq!(marked.ok(), Some(3));
    for n in 0..3 {
        assert!(!near(&a, n) && !knows(&a, n).await && !knows(&b, n).await);
        until("the near copy is not served", SECOND, async || !near(&b, n)).await;
    }
    assert_eq!(b.entries().await.ok(), Some(3), "they are there to be seen");

    assert!(matches!(record(&b, 1).await, Ok(Recorded::Stored(_))), "a suspect is replaced");
    assert!(knows(&a, 1).await && near(&a, 1));
    assert!(!a.has_accepted(&samples::upstream("ocr")));
    assert_eq!(b.accept(&samples::fingerprint(1), &samples::upstream("ocr")).await.ok(), Some(true));
    assert!(!knows(&a, 1).await);
    until("the near copy drops", SECOND, async || !near(&a, 1)).await;
    until("the acceptance is known", SECOND, async || a.has_accepted(&samples::upstream("ocr"))).await;
    assert!(store(server.addr()).await.has_accepted(&samples::upstream("ocr")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_database_is_another_fleet() {
    let server = Redis::start();
    let in_database = async |db| start(RedisOptions { db, ..options(server.addr(), PREFIX) }).await;
    let (a, b, other) = (in_database(3).await, in_database(3).await, in_database(4).await);
    let zero = in_database(0).await;
    let [mut at_b, mut at_other, mut at_zero] =
        [&b, &other, &zero].map(|store| store.news().unwrap_or_else(|| panic!("nobody took it")));
    let news = News::Tripped { upstream: samples::upstream("ocr"), since: Millis(5) };
    a.tell(news.clone());
    assert_eq!(at_b.recv().await, Some(news));
    must_record(&a, 1).await;
    assert!(knows(&b, 1).await && !knows(&other, 1).await && !knows(&zero, 1).await);
    assert!(at_other.try_recv().is_err() && at_zero.try_recv().is_err(), "the guards of others are theirs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_the_end_of_a_guard_that_could_not_be_told_is_told_later() {
    for outage in [Fault::Silence, Fault::Reset] {
        let server = Redis::start();
        let chaos = Chaos::start(server.addr()).await;
        let (a, b) = (start(hasty(chaos.addr())).await, store(server.addr()).await);
        let [mut at_a, mut at_b] =
            [&a, &b].map(|store| store.news().unwrap_or_else(|| panic!("nobody took it")));
        let upstream = samples::upstream("ocr");
        let tripped = News::Tripped { upstream: upstream.clone(), since: Millis(5) };
        a.tell(tripped.clone());
        assert_eq!(at_b.recv().await, Some(tripped.clone()));
        chaos.set(outage);
        let recovered = News::Recovered { upstream };
        a.tell(recovered.clone());
        // time enough to find that it cannot be told
        tokio::time::sleep(SECOND).await;
        chaos.set(Fault::None);
        let tripped = Some(tripped);
        let heard = tokio::time::timeout(LONG, async {
            loop {
                // that it is on may be said again
                let heard = at_b.recv().await;
                if heard != tripped {
                    break heard;
                }
            }
        });
        assert_eq!(heard.await, Ok(Some(recovered)), "{outage:?}");
        assert_eq!(server.ask(&["hgetall", &format!("{{{PREFIX}}}:tripped")]), "", "{outage:?}");
        assert!(at_a.try_recv().is_err(), "{outage:?}: what it said itself is no news");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_who_did_not_hear_of_a_guard_finds_out() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let (a, b) = (store(server.addr()).await, start(hasty(chaos.addr())).await);
    let mut at_b = b.news().unwrap_or_else(|| panic!("nobody took it"));
    let mut hears = async |news: &News| {
        let heard = tokio::time::timeout(LONG, async {
            while at_b.recv().await.is_none_or(|heard| heard != *news) {}
        });
        assert!(heard.await.is_ok(), "{news:?}");
    };
    let upstream = samples::upstream("ocr");
    let tripped = News::Tripped { upstream: upstream.clone(), since: Millis(5) };
    a.tell(tripped.clone());
    hears(&tripped).await;
    // without a connection
    chaos.set(Fault::Reset);
    let recovered = News::Recovered { upstream };
    a.tell(recovered.clone());
    tokio::time::sleep(SECOND).await;
    chaos.set(Fault::None);
    hears(&recovered).await;
    // with one: as a message that nobody hears
    let name = |of: &str| format!("{{{PREFIX}}}:{of}");
    server.ask(&["hdel", &name("recovered"), "ocr"]);
    server.ask(&["hset", &name("tripped"), "ocr", "5"]);
    hears(&tripped).await;
    server.ask(&["hdel", &name("tripped"), "ocr"]);
    while at_b.try_recv().is_ok() {}
    let asked = server.calls("hgetall");
    // a server that lost its latest data says what was so before
    server.ask(&["hset", &name("recovered"), "ocr", "5 1600000000000"]);
    until("it was read", LONG, async || server.calls("hgetall") >= asked + 4).await;
    assert!(at_b.try_recv().is_err(), "it is on since");
    server.ask(&["hset", &name("recovered"), "ocr", "5 1700000000000"]);
    assert_eq!(tokio::time::timeout(LONG, at_b.recv()).await, Ok(Some(recovered)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_lost_message_costs_five_seconds() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    must_record(&a, 1).await;
    assert!(knows(&b, 1).await);
    // as a forget whose message nobody hears
    server.ask(&["del", &format!("{{{PREFIX}}}:e:{}", samples::fingerprint(1))]);
    assert!(near(&b, 1));
    until("the near copy is too old", Duration::from_millis(5500), async || !near(&b, 1)).await;

    must_record(&a, 2).await;
    assert!(knows(&b, 2).await && near(&b, 2));
    server.ask(&["client", "kill", "type", "pubsub"]);
    until("nothing is known after a lost connection", SECOND, async || !near(&b, 2)).await;
    until("it is back", LONG, async || recall(&b, 2).await.is_ok_and(|entry| entry.is_some())).await;
    until("the other one too", LONG, async || a.forget(&Selector::default()).await.is_ok()).await;
    until("it hears again", SECOND, async || !near(&b, 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_add_up() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    must_record(&a, 1).await;
    assert!(knows(&b, 1).await);
    let key = samples::fingerprint(1);
    for replay in 1..=300_u64 {
        assert_eq!(a.count_replay(&key, &samples::tenant("a"), Millis(1000)), replay);
    }
    for _ in 0..200 {
        assert!(b.count_replay(&key, &samples::tenant("b"), Millis(2000)) > 0);
    }
    until("all are counted", LONG, async || {
        let shown = b.show(&key).await.ok().flatten();
        shown.is_some_and(|shown| shown.tally.replays == 500)
    })
    .await;
    let tally = a.show(&key).await.ok().flatten().map(|shown| shown.tally);
    let tally = tally.unwrap_or_else(|| panic!("it is there"));
    assert_eq!((tally.replays, tally.tenants.len()), (500, 2));
    assert_eq!((tally.first_replayed_at, tally.last_replayed_at), (Some(Millis(1000)), Some(Millis(2000))));
    // the next one goes on from what all counted
    until("the sum is known here", LONG, async || {
        a.count_replay(&key, &samples::tenant("a"), Millis(3000)) > 500
    })
    .await;

    // a list that is given up takes no counts with it
    let before = b.show(&key).await.ok().flatten().map_or(0, |shown| shown.tally.replays);
    for i in 0..50 {
        b.count_replay(&key, &samples::tenant("b"), Millis(4000));
        let query = ListQuery { limit: 1, ..ListQuery::default() };
        let _ = tokio::time::timeout(Duration::from_micros(i * 20), b.list(&query)).await;
    }
    until("none is lost", LONG, async || {
        let shown = b.show(&key).await.ok().flatten();
        shown.is_some_and(|shown| shown.tally.replays >= before + 50)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bound_is_exact_and_the_oldest_go_with_two_writers() {
    const MOST: u64 = 100;
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    let (a, b) = (Arc::new(a), Arc::new(b));
    let mut writers = JoinSet::new();
    let record_at = |writers: &mut JoinSet<()>, n: u64| {
        let store = Arc::clone(if n.is_multiple_of(2) { &a } else { &b });
        writers.spawn(async move {
            let fence = store.recall(&samples::fingerprint(n)).await.unwrap_or_else(|e| panic!("{e}")).fence;
            stored(store.record(bounded(n, MOST), fence).await);
        });
    };
    (0..MOST).for_each(|n| record_at(&mut writers, n));
    while let Some(done) = writers.join_next().await {
        done.unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(a.entries().await.ok(), Some(MOST));
    let query = ListQuery { order: ListOrder::Recent, limit: 1000, ..ListQuery::default() };
    let newest_first = b.list(&query).await.unwrap_or_else(|error| panic!("{error}")).items;
    let mut expected: Vec<_> = newest_first.iter().take(90).map(|item| item.entry.fingerprint).collect();

    (MOST..MOST + 10).for_each(|n| record_at(&mut writers, n));
    while let Some(done) = writers.join_next().await {
        done.unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(b.entries().await.ok(), Some(MOST));
    assert_eq!(server.ask(&["zcard", &format!("{{{PREFIX}}}:index")]), MOST.to_string());
    assert_eq!(a.evictions() + b.evictions(), 10);
    expected.extend((MOST..MOST + 10).map(samples::fingerprint));
    let there = a.list(&query).await.unwrap_or_else(|error| panic!("{error}")).items;
    let mut there: Vec<_> = there.iter().map(|item| item.entry.fingerprint).collect();
    expected.sort();
    there.sort();
    assert!(there == expected, "the ten oldest went");
    for n in 0..MOST + 10 {
        assert_eq!(knows(&a, n).await, expected.contains(&samples::fingerprint(n)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_at_the_bound_never_leave_more_than_it() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    for round in 0..60 {
        let one = async |store, n| stored(record_bounded(store, n, 5).await);
        tokio::join!(one(&a, round * 3), one(&b, round * 3 + 1), one(&b, round * 3 + 2));
        let there: u64 = server.ask(&["zcard", &format!("{{{PREFIX}}}:index")]).parse().unwrap_or(u64::MAX);
        assert!(there <= 5, "round {round}: {there}");
    }
    // nothing is left of those that went
    let keys = server.ask(&["keys", &format!("{{{PREFIX}}}:e:*")]);
    assert_eq!(keys.lines().count(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_is_not_the_oldest_though_the_count_was_lost() {
    let server = Redis::start();
    let store = store(server.addr()).await;
    for n in 0..10 {
        stored(record_bounded(&store, n, 10).await);
    }
    // as a server does that evicts
    server.ask(&["del", &format!("{{{PREFIX}}}:seq")]);
    for n in 10..15 {
        stored(record_bounded(&store, n, 10).await);
        assert!(knows(&store, n).await && !knows(&store, n - 10).await, "{n}");
    }
}

async fn record_bounded(
    store: &nevertwice_store::redis::RedisStore,
    n: u64,
    most: u64,
) -> Result<Recorded, nevertwice_store::StoreError> {
    let fence = store.recall(&samples::fingerprint(n)).await?.fence;
    store.record(bounded(n, most), fence).await
}
