//! Servers and networks that fail: calls cost their time and then nothing, answers are never wrong, and it works again soon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Entry, Selector, Tally};
use nevertwice_store::redis::{RedisOptions, RedisStore};
use nevertwice_store::suite::samples;
use nevertwice_store::{Lease, ListOrder, ListQuery, Moved, Recorded, RefusalStore, StoreErrorKind};
use nevertwice_testkit::{Chaos, Fault, Redis};
use tokio::task::JoinSet;

use super::bench::{store as open, *};

/// How soon it has to work again.
const RECOVERY: Duration = Duration::from_secs(10);
/// What a busy machine adds to a budget.
const BUSY: Duration = Duration::from_millis(400);

async fn works(store: &RedisStore, n: u64) -> bool {
    recall(store, n).await.is_ok_and(|entry| entry.is_some_and(|e| e.fingerprint == samples::fingerprint(n)))
}

/// Calls while it fails: none takes longer than its budget, and soon none takes any time.
async fn costs_nothing_soon(store: &RedisStore) {
    for call in 0.. {
        let began = Instant::now();
        let result = recall(store, 1000).await;
        let took = began.elapsed();
        assert!(took < Duration::from_millis(100) + BUSY, "{took:?}");
        assert!(matches!(result, Ok(None)) || kind_of(result).is_some());
        if took < Duration::from_millis(20) && call >= 5 {
            break;
        }
        assert!(call < 40, "the breaker does not open");
    }
    let began = Instant::now();
    for n in 0..1000 {
        let result = store.look(&samples::fingerprint(n)).await;
        assert!(matches!(kind_of(result), Some(StoreErrorKind::Busy | StoreErrorKind::Io)));
    }
    assert!(began.elapsed() < BUSY, "a thousand took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_speak_the_protocol_costs_nothing_soon() {
    let log = Log::start();
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let store = start(hasty(chaos.addr())).await;
    must_record(&store, 1).await;
    chaos.set(Fault::Garbage);
    assert!(kind_of(recall(&store, 1000).await).is_some());
    costs_nothing_soon(&store).await;
    chaos.set(Fault::None);
    until("it works again", RECOVERY, async || works(&store, 1).await).await;
    assert!((1..=4).contains(&log.warnings().len()), "{:?}", log.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_frozen_server_costs_its_budget_and_then_nothing() {
    let log = Log::start();
    let server = Redis::start();
    let store = start(hasty(server.addr())).await;
    must_record(&store, 1).await;
    for frozen in [SECOND, Duration::from_secs(8)] {
        server.pause();
        let began = Instant::now();
        assert!(near(&store, 1), "what is at hand is served");
        costs_nothing_soon(&store).await;
        tokio::time::sleep(frozen.saturating_sub(began.elapsed())).await;
        server.resume();
        until("it works again", RECOVERY, async || works(&store, 1).await).await;
        assert!(!knows(&store, 1000).await);
    }
    must_record(&store, 2).await;
    assert!(log.warnings().len() <= 4, "{:?}", log.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_all_data_bars_what_began_before() {
    let log = Log::start();
    let mut server = Redis::start();
    let store = start(hasty(server.addr())).await;
    must_record(&store, 1).await;
    let Ok(before) = store.recall(&samples::fingerprint(2)).await else { panic!("it answers") };
    server.kill();
    until("nothing is at hand", SECOND, async || !near(&store, 1)).await;
    costs_nothing_soon(&store).await;
    server.restart();
    until("it works again", RECOVERY, async || recall(&store, 1).await.is_ok_and(|entry| entry.is_none()))
        .await;
    let late = store.record(samples::candidate(2), before.fence).await;
    assert!(matches!(late, Ok(Recorded::Fenced)), "{late:?}");
    // forgotten before anybody has looked
    server.ask(&["flushall"]);
    assert_eq!(store.forget(&Selector::default()).await.ok(), Some(0));
    let Ok(between) = store.recall(&samples::fingerprint(2)).await else { panic!("it answers") };
    assert!(between.fence > before.fence);
    let late = store.record(samples::candidate(2), before.fence).await;
    assert!(matches!(late, Ok(Recorded::Fenced)), "{late:?}");
    // neither the scripts nor the data: no error is seen
    server.ask(&["flushall"]);
    server.ask(&["script", "flush"]);
    must_record(&store, 2).await;
    assert!(knows(&store, 2).await);
    assert!(log.warnings().len() <= 3, "{:?}", log.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_goes_on_behind_its_place_though_all_was_lost_meanwhile() {
    let server = Redis::start();
    let store = store(server.addr()).await;
    for n in 0..30 {
        must_record(&store, n).await;
    }
    let query = ListQuery { order: ListOrder::Oldest, limit: 20, ..ListQuery::default() };
    let Ok(page) = store.list(&query).await else { panic!("it answers") };
    let place = page.items.last().map(|item| item.place);
    assert!(place.is_some());
    server.ask(&["flushall"]);
    for n in 100..103 {
        must_record(&store, n).await;
    }
    let rest = ListQuery { after: place, ..query.clone() };
    let Ok(page) = store.list(&rest).await else { panic!("it answers") };
    let seen: Vec<_> = page.items.iter().map(|item| item.entry.fingerprint).collect();
    assert_eq!(seen, [100, 101, 102].map(samples::fingerprint));
    // of a failover, which loses the latest numbers alone
    let place = page.items.last().map(|item| item.place);
    for name in ["seq", "index"] {
        server.ask(&["del", &format!("{{{PREFIX}}}:{name}")]);
    }
    server.ask(&["set", &format!("{{{PREFIX}}}:seq"), "1"]);
    must_record(&store, 104).await;
    let rest = ListQuery { after: place, ..query };
    let Ok(page) = store.list(&rest).await else { panic!("it answers") };
    assert_eq!(page.items.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_an_import_through_a_distant_server_gets_on_with_each_call() {
    const ALL: u64 = 1000;
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let store = store(chaos.addr()).await;
    let Ok(fence) = store.recall(&samples::fingerprint(0)).await.map(|recalled| recalled.fence) else {
        panic!("it answers")
    };
    let entry =
        |n| Entry { recorded_at: Millis(1_700_000_000_000), ttl_ms: samples::TTL_MS, ..samples::entry(n) };
    let mut left: Vec<_> = (0..ALL).map(|n| Moved { entry: entry(n), tally: Tally::default() }).collect();
    chaos.set(Fault::Late(Duration::from_millis(5)));
    let Ok(imported) = store.import(left.clone(), fence, 10 * ALL).await else { panic!("it answers") };
    assert!((1..left.len()).contains(&imported.len()), "{}", imported.len());
    chaos.set(Fault::None);
    while !left.is_empty() {
        let Ok(imported) = store.import(left.clone(), fence, 10 * ALL).await else { panic!("it answers") };
        assert!(!imported.is_empty());
        left.drain(..imported.len());
    }
    let query = ListQuery { order: ListOrder::Oldest, limit: ALL as usize, ..ListQuery::default() };
    let Ok(page) = store.list(&query).await else { panic!("it answers") };
    let seen: Vec<_> = page.items.iter().map(|item| item.entry.fingerprint).collect();
    assert_eq!(seen, (0..ALL).map(samples::fingerprint).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_kept_its_data_goes_on_as_it_was() {
    let mut server = Redis::with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    let (a, b) = pair(server.addr()).await;
    must_record(&a, 1).await;
    let Ok(fence) = a.recall(&samples::fingerprint(2)).await.map(|recalled| recalled.fence) else {
        panic!("it answers")
    };
    assert_eq!(b.forget(&Selector::key(samples::fingerprint(3))).await.ok(), Some(0));
    server.kill();
    server.restart();
    for store in [&a, &b] {
        until("it works again", RECOVERY, async || works(store, 1).await).await;
    }
    stored(a.record(samples::candidate(2), fence).await);
    let forgotten = a.record(samples::candidate(3), fence).await;
    assert!(matches!(forgotten, Ok(Recorded::Fenced)), "{forgotten:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forget_at_a_server_that_lacks_the_latest_ones_bars_what_began_before_it() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    let forget = async |n| assert!(b.forget(&Selector::key(samples::fingerprint(n))).await.is_ok());
    let epoch = format!("{{{PREFIX}}}:epoch");
    forget(7).await;
    let passed_on = server.ask(&["get", &epoch]);
    forget(8).await;
    forget(9).await;
    let Ok(began) = a.recall(&samples::fingerprint(1)).await else { panic!("it answers") };
    // a failover to a replica that had not heard of the last two: their numbers come again
    server.ask(&["set", &epoch, &passed_on]);
    server.ask(&["zremrangebyrank", &format!("{{{PREFIX}}}:keyed"), "1", "2"]);
    assert_eq!(server.ask(&["zcard", &format!("{{{PREFIX}}}:keyed")]), "2");
    forget(1).await;
    forget(2).await;
    let late = a.record(samples::candidate(1), began.fence).await;
    assert!(matches!(late, Ok(Recorded::Fenced)), "{late:?}");
    must_record(&a, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_drops_of_its_forgets_bars_what_began_before_them() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    let by_key = Selector::key(samples::fingerprint(1));
    let by_document = Selector { document: Some(samples::document(1)), ..Selector::default() };
    for (n, part) in ["keyed", "wide", "floor", "epoch"].into_iter().enumerate() {
        for (which, again) in [(&by_key, &by_document), (&by_document, &by_key)] {
            let Ok(began) = a.recall(&samples::fingerprint(1)).await else { panic!("it answers") };
            assert!(b.forget(which).await.is_ok());
            assert_eq!(server.ask(&["del", &format!("{{{PREFIX}}}:{part}")]), "1", "{part}");
            let late = a.record(samples::candidate(1), began.fence).await;
            assert!(matches!(late, Ok(Recorded::Fenced)), "{part} was lost: {late:?}");
            // nor when another forget has come since, which is about something else
            let other =
                Selector { document: again.document.map(|_| samples::document(9)), ..Selector::default() };
            let other = if again.document.is_some() { other } else { Selector::key(samples::fingerprint(9)) };
            assert!(b.forget(&other).await.is_ok());
            let late = a.record(samples::candidate(1), began.fence).await;
            assert!(matches!(late, Ok(Recorded::Fenced)), "{part} was lost: {late:?}");
            // what begins now is as good as any, also under a forget of something else
            let fresh = 10 + n as u64;
            let Ok(began) = a.recall(&samples::fingerprint(fresh)).await else { panic!("it answers") };
            assert!(b.forget(&Selector::key(samples::fingerprint(9))).await.is_ok());
            stored(a.record(samples::candidate(fresh), began.fence).await);
            assert!(b.forget(&Selector::key(samples::fingerprint(fresh))).await.is_ok());
        }
    }
}

/// A server that is asked to keep ten times what it can hold, by each policy: no call fails but for want of memory, what is found is
/// right, nothing that was forgotten comes back, and the index is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_server_that_evicts_loses_entries_and_nothing_else() {
    const MOST: u64 = 600;
    let log = Log::start();
    for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl", "noeviction"] {
        let server = Redis::with(&["--maxmemory", "6mb", "--maxmemory-policy", policy]);
        let far = || async { start(RedisOptions { near_bytes: 0, ..options(server.addr(), PREFIX) }).await };
        let (a, b) = (far().await, far().await);
        let (mut forgotten, mut full, mut fenced, mut found) = (Vec::new(), 0, 0, 0);
        for n in 0..4000 {
            let store = if n % 2 == 0 { &a } else { &b };
            let key = samples::fingerprint(n);
            let recalled = store.recall(&key).await;
            let fence = recalled.unwrap_or_else(|error| panic!("{policy}: {error}")).fence;
            let mut candidate = bounded(n, MOST);
            candidate.entry.body = vec![b'x'; 12_000].into();
            match store.record(candidate, fence).await {
                Ok(Recorded::Stored(_)) => {}
                Ok(Recorded::Fenced) => fenced += 1,
                Err(error) if error.kind == StoreErrorKind::Full => full += 1,
                other => panic!("{policy}: {other:?}"),
            }
            let earlier = n * 7919 % (n + 1);
            if let Some(entry) = recall(&b, earlier).await.unwrap_or_else(|error| panic!("{policy}: {error}"))
            {
                assert_eq!((entry.fingerprint, entry.body.len()), (samples::fingerprint(earlier), 12_000));
                assert!(!forgotten.contains(&earlier), "{policy}: {earlier} came back");
                found += 1;
            }
            if n % 40 == 39 {
                match a.forget(&Selector::key(samples::fingerprint(n - 1))).await {
                    Ok(_) => forgotten.push(n - 1),
                    Err(error) => assert_eq!(error.kind, StoreErrorKind::Full, "{policy}: {error}"),
                }
            }
            if n % 500 == 0 {
                let index = server.ask(&["zcard", &format!("{{{PREFIX}}}:index")]).parse::<u64>();
                assert!(index.is_ok_and(|index| index <= MOST), "{policy}");
            }
        }
        for n in &forgotten {
            assert!(!knows(&b, *n).await, "{policy}: {n} came back");
        }
        let evicts = policy != "noeviction";
        assert_eq!(evicts, full == 0, "{policy}: {full}");
        assert!(found > 0 && fenced < 100, "{policy}: {found} found, {fenced} fenced");
        // and with room again it is as ever
        server.ask(&["config", "set", "maxmemory", "0"]);
        must_record(&a, 5000).await;
        assert!(knows(&b, 5000).await);
    }
    // eight processes, a line for each kind of trouble
    assert!(log.warnings().len() <= 16, "{:?}", log.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_later_is_joined() {
    let log = Log::start();
    let mut server = Redis::start();
    server.kill();
    let began = Instant::now();
    let store = start(hasty(server.addr())).await;
    assert!(began.elapsed() < SECOND * 3);
    assert_eq!(kind_of(recall(&store, 1).await), Some(StoreErrorKind::Io));
    assert!(store.last_fence().is_none() && !near(&store, 1));
    tokio::time::sleep(SECOND).await;
    assert_eq!(log.warnings().len(), 1, "{:?}", log.warnings());
    server.restart();
    until("it is joined", RECOVERY, async || recall(&store, 1).await.is_ok()).await;
    must_record(&store, 1).await;
    assert_eq!((log.warnings().len(), log.lines("connected to").count()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_networks_fail_in_many_ways() {
    let log = Log::start();
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let store = start(hasty(chaos.addr())).await;
    must_record(&store, 1).await;
    let faults = [
        Fault::Late(Duration::from_millis(200)),
        Fault::Silence,
        Fault::Reset,
        Fault::Drip(Duration::from_millis(20)),
    ];
    for fault in faults {
        chaos.set(fault);
        costs_nothing_soon(&store).await;
        chaos.set(Fault::None);
        until(&format!("{fault:?} is over"), RECOVERY, async || works(&store, 1).await).await;
    }
    // an answer that is cut anywhere is no answer
    for most in (1..400).step_by(57) {
        chaos.set(Fault::CutAfter(most));
        let answer = recall(&store, 1).await;
        assert!(answer.is_err() || works_if_there(answer), "{most}");
        chaos.set(Fault::None);
        until("it works again", RECOVERY, async || works(&store, 1).await).await;
    }
    assert!(log.warnings().len() < 10, "{:?}", log.warnings());
}

fn works_if_there(answer: Result<Option<Arc<Entry>>, nevertwice_store::StoreError>) -> bool {
    answer.is_ok_and(|entry| entry.is_some_and(|entry| entry.fingerprint == samples::fingerprint(1)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_calls_that_are_given_up_disturb_no_other() {
    const CALLS: u64 = 20_000;
    let log = Log::start();
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let store = Arc::new(open(chaos.addr()).await);
    for n in 0..50 {
        must_record(&store, n).await;
    }
    chaos.set(Fault::Late(Duration::from_millis(2)));
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        let store = Arc::clone(&store);
        callers.spawn(async move {
            let mut chance = fastrand::Rng::with_seed(caller);
            let mut answered = 0;
            for _ in 0..CALLS / 20 {
                let n = chance.u64(0..100);
                let key = samples::fingerprint(n);
                let patience = Duration::from_micros(chance.u64(0..40_000));
                let entry = if chance.bool() {
                    let call = tokio::time::timeout(patience, store.recall(&key)).await;
                    call.ok().map(|r| r.unwrap_or_else(|error| panic!("{error}")).entry)
                } else {
                    let call = tokio::time::timeout(patience, store.look(&key)).await;
                    let looked = call.ok().map(|r| r.unwrap_or_else(|error| panic!("{error}")));
                    looked.map(|looked| {
                        assert_eq!(looked.entry.is_some(), matches!(looked.lease, Lease::NotNeeded));
                        looked.entry
                    })
                };
                let Some(entry) = entry else { continue };
                answered += 1;
                assert_eq!(entry.is_some(), n < 50, "{n}");
                assert!(entry.is_none_or(
                    |entry| entry.fingerprint == key && entry.document == samples::entry(n).document
                ));
            }
            answered
        });
    }
    let answered: u64 = callers.join_all().await.iter().sum();
    assert!(answered > CALLS / 20, "{answered} of {CALLS} were answered");
    chaos.set(Fault::None);
    assert!(works(&store, 1).await, "at once");
    until("no lease is left behind", SECOND * 3, async || {
        server.ask(&["keys", &format!("{{{PREFIX}}}:l:*")]).is_empty()
    })
    .await;
    assert!(log.warnings().is_empty(), "{:?}", log.warnings());
}
