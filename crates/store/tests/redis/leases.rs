//! One attempt at a time, fleet-wide.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nevertwice_domain::clock::{ManualClock, Millis};
use nevertwice_store::redis::{HeldLease, RedisOptions, RedisStore, RemoteAttempt, RemoteLanding};
use nevertwice_store::suite::samples;
use nevertwice_store::{Lease, RefusalStore, StoreErrorKind};
use nevertwice_testkit::{Chaos, Fault, Redis};
use tokio::task::JoinSet;

use super::bench::*;

fn held(lease: Lease) -> HeldLease {
    match lease {
        Lease::Held(lease) => lease,
        Lease::NotNeeded => panic!("it is needed"),
        Lease::Elsewhere(_) => panic!("it is free"),
    }
}

fn elsewhere(lease: Lease) -> RemoteAttempt {
    match lease {
        Lease::Elsewhere(attempt) => attempt,
        Lease::NotNeeded | Lease::Held(_) => panic!("another process makes the attempt"),
    }
}

fn lease_key(n: u64) -> String {
    format!("{{{PREFIX}}}:l:{}", samples::fingerprint(n))
}

/// What those who wait are told, once it is more than that it is time to look for oneself.
async fn landed(store: &RedisStore, n: u64) -> (RemoteLanding, Duration) {
    let began = Instant::now();
    (elsewhere(look(store, n).await).landed().await, began.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_gets_the_lease_and_all_others_are_told() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    let (a, b) = (Arc::new(a), Arc::new(b));
    let mut looks = JoinSet::new();
    for i in 0..60 {
        let store = Arc::clone(if i % 2 == 0 { &a } else { &b });
        looks.spawn(async move { look(&store, 1).await });
    }
    let (mut leader, mut others) = (None, Vec::new());
    while let Some(lease) = looks.join_next().await {
        match lease.unwrap_or_else(|error| panic!("{error}")) {
            Lease::Held(lease) => assert!(leader.replace(lease).is_none(), "two have it"),
            Lease::Elsewhere(attempt) => others.push(attempt),
            Lease::NotNeeded => panic!("it is needed"),
        }
    }
    assert_eq!(others.len(), 59);
    let waiting = others.into_iter().map(RemoteAttempt::landed).collect::<Vec<_>>();
    let told: JoinSet<RemoteLanding> = waiting.into_iter().collect();
    let began = Instant::now();
    must_record(&a, 1).await;
    assert!(told.join_all().await.iter().all(|landing| *landing == RemoteLanding::LookAgain));
    assert!(began.elapsed() < SECOND);
    drop(leader);
    assert!(matches!(look(&b, 1).await, Lease::NotNeeded), "there is an entry");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_is_told() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;

    // without a verdict: all go up
    let lease = held(look(&a, 1).await);
    let waiting = elsewhere(look(&b, 1).await);
    lease.land_without_verdict();
    assert_eq!(waiting.landed().await, RemoteLanding::Released);

    // accepted: all go up
    let lease = held(look(&a, 2).await);
    let waiting = elsewhere(look(&b, 2).await);
    assert_eq!(a.accept(&samples::fingerprint(2), &samples::upstream("ocr")).await.ok(), Some(false));
    assert_eq!(waiting.landed().await, RemoteLanding::Released);
    drop(lease);

    // given up: one of them is next
    let lease = held(look(&a, 3).await);
    let waiting = elsewhere(look(&b, 3).await);
    let began = Instant::now();
    drop(lease);
    assert_eq!(waiting.landed().await, RemoteLanding::LookAgain);
    assert!(began.elapsed() < SECOND);
    held(look(&b, 3).await).land_without_verdict();

    // nothing is heard: everybody looks for himself after half a second
    let lease = held(look(&a, 4).await);
    let (landing, after) = landed(&b, 4).await;
    assert_eq!(landing, RemoteLanding::LookAgain);
    assert!(after >= Duration::from_millis(400) && after < Duration::from_secs(3), "{after:?}");

    // another's token is never released: the lease of b replaced that of a
    server.ask(&["set", &lease_key(4), "someone-else", "px", "4000"]);
    drop(lease);
    // it waits for what it has begun
    assert!(a.close().await.is_ok());
    assert_eq!(server.ask(&["get", &lease_key(4)]), "someone-else");
    assert!(matches!(look(&b, 4).await, Lease::Elsewhere(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_nobody_waits_for_is_not_told() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    assert_eq!(a.accept(&samples::fingerprint(99), &samples::upstream("ocr")).await.ok(), Some(false));
    let keys = |kind: &str| server.ask(&["keys", &format!("{{{PREFIX}}}:{kind}:*")]);
    let before = server.calls("publish");
    for n in 0..60 {
        let lease = held(look(&a, n).await);
        match n % 3 {
            0 => lease.land_without_verdict(),
            1 => drop(lease),
            _ => {
                let accepted = a.accept(&samples::fingerprint(n), &samples::upstream("ocr")).await;
                assert_eq!(accepted.ok(), Some(false));
                drop(lease);
            }
        }
    }
    until("all are given up", SECOND, async || keys("l").is_empty()).await;
    // the connections are tended meanwhile
    assert!(server.calls("publish") - before < 20, "{}", server.calls("publish") - before);

    let lease = held(look(&a, 100).await);
    let waiting = elsewhere(look(&b, 100).await);
    assert_eq!(keys("w"), format!("{{{PREFIX}}}:w:{}", samples::fingerprint(100)));
    let left: i64 = server.ask(&["pttl", &keys("w")]).parse().unwrap_or_default();
    assert!((1..=5000).contains(&left), "{left}");
    lease.land_without_verdict();
    assert_eq!(waiting.landed().await, RemoteLanding::Released);
    assert!(keys("w").is_empty(), "the next one is not told for nothing");

    let lease = held(look(&a, 101).await);
    let waiting = elsewhere(look(&b, 101).await);
    must_record(&a, 101).await;
    assert_eq!(waiting.landed().await, RemoteLanding::LookAgain);
    assert!(keys("w").is_empty());
    drop(lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_up_that_was_given_up_holds_nothing() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    // the server executes it while nobody waits for the answer
    for n in 0..200 {
        let key = samples::fingerprint(n);
        let _ = tokio::time::timeout(Duration::from_micros(n * 5), a.look(&key)).await;
    }
    until("no lease is left behind", SECOND, async || {
        server.ask(&["keys", &format!("{{{PREFIX}}}:l:*")]).is_empty()
    })
    .await;
    held(look(&b, 7).await).land_without_verdict();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_lease_is_prolonged_while_its_process_lives_and_no_longer() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    let lease = held(look(&a, 1).await);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(6500) {
        assert!(matches!(look(&b, 1).await, Lease::Elsewhere(_)), "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // the process dies: nobody releases it, nobody prolongs it
    std::mem::forget(lease);
    drop(a);
    let after = until("it is free", Duration::from_secs(7), async || match look(&b, 1).await {
        Lease::Held(lease) => {
            lease.land_without_verdict();
            true
        }
        Lease::Elsewhere(attempt) => attempt.landed().await == RemoteLanding::Released,
        Lease::NotNeeded => false,
    })
    .await;
    assert!(after < Duration::from_millis(6000), "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_lease_is_prolonged_though_answers_are_slow_and_there_is_much_to_tell() {
    // told in a dozen calls, one after the other
    const REPLAYED: u64 = 3200;
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let a = start(RedisOptions { near_bytes: 16 << 20, ..options(chaos.addr(), PREFIX) }).await;
    let b = store(server.addr()).await;
    for n in 0..REPLAYED {
        must_record(&a, 1000 + n).await;
    }
    let _lease = held(look(&a, 1).await);
    chaos.set(Fault::Late(Duration::from_millis(400)));
    for n in 0..REPLAYED {
        let key = samples::fingerprint(1000 + n);
        assert_eq!(a.count_replay(&key, &samples::tenant("a"), Millis(1_700_000_000_000)), 1);
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(6500) {
        assert!(matches!(look(&b, 1).await, Lease::Elsewhere(_)), "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_closed_gives_its_leases_up() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    let _kept = held(look(&a, 1).await);
    let given_up = held(look(&a, 2).await);
    drop(given_up);
    assert!(a.close().await.is_ok());
    held(look(&b, 1).await).land_without_verdict();
    held(look(&b, 2).await).land_without_verdict();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_at_the_key_of_a_lease_blocks_nobody() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    server.ask(&["hset", &lease_key(1), "not", "a lease"]);
    let lease = held(look(&a, 1).await);
    assert!(matches!(look(&b, 1).await, Lease::Elsewhere(_)));
    server.ask(&["del", &lease_key(1)]);
    server.ask(&["hset", &lease_key(1), "not", "a lease"]);
    must_record(&a, 1).await;
    lease.land_without_verdict();
    assert!(knows(&b, 1).await);
    server.ask(&["hset", &lease_key(2), "not", "a lease"]);
    assert_eq!(a.accept(&samples::fingerprint(2), &samples::upstream("ocr")).await.ok(), Some(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_nobody_can_use_does_not_send_all_of_them_up() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    // by the clock of one that is a day ahead
    let ahead = Arc::new(ManualClock::at(Millis(1_700_086_400_000)));
    let ahead = RedisStore::start(options(server.addr(), PREFIX), ahead).await;
    must_record(&ahead, 1).await;
    must_record(&ahead, 2).await;
    server.ask(&["HSET", &format!("{{{PREFIX}}}:e:{}", samples::fingerprint(2)), "b", "another body"]);
    for n in [1, 2] {
        assert!(!knows(&a, n).await && !knows(&b, n).await);
        let _lease = held(look(&a, n).await);
        let Lease::Elsewhere(elsewhere) = look(&b, n).await else { panic!("{n}: two attempts") };
        // what comes of it takes the place of what was there
        must_record(&a, n).await;
        assert_eq!(elsewhere.landed().await, RemoteLanding::LookAgain);
        assert!(knows(&b, n).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_up_that_asks_twice_has_the_time_of_one() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let read = Duration::from_millis(190);
    let store = start(RedisOptions { read, ..options(chaos.addr(), PREFIX) }).await;
    must_record(&store, 1).await;
    server.ask(&["HSET", &format!("{{{PREFIX}}}:e:{}", samples::fingerprint(1)), "b", "another body"]);
    let key = samples::fingerprint(1);
    assert!(store.look(&key).await.is_ok(), "in time it finds that there is nothing");
    // each answer alone is in time
    chaos.set(Fault::Late(Duration::from_millis(100)));
    assert_eq!(kind_of(store.look(&key).await), Some(StoreErrorKind::Io));
}
