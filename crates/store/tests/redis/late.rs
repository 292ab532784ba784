//! What was learned while the server could not be told.

use std::sync::Arc;
use std::time::Duration;

use nevertwice_domain::clock::{ManualClock, Millis};
use nevertwice_domain::entry::{Candidate, Selector};
use nevertwice_store::redis::RedisStore;
use nevertwice_store::suite::samples;
use nevertwice_store::{News, RefusalStore, StoreErrorKind};
use nevertwice_testkit::{Chaos, Fault, Redis};

use super::bench::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_verdicts_of_an_outage_are_recorded_after_it_unless_something_came_in_between() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let cut_off = start(hasty(chaos.addr())).await;
    let other = store(server.addr()).await;
    let ocr = samples::upstream("ocr");
    must_record(&other, 6).await;
    assert!(recall(&cut_off, 0).await.is_ok());
    chaos.set(Fault::Silence);

    // an attempt that began in the outage has the fence of what was heard last
    let fence = last_fence(&cut_off);
    for n in 0..6 {
        let candidate = Candidate { life: samples::flat(86_400_000), ..samples::candidate(n) };
        let kind = kind_of(cut_off.record(candidate, fence).await);
        assert!(matches!(kind, Some(StoreErrorKind::Io | StoreErrorKind::Busy)), "{kind:?}");
    }
    // here
    assert!(cut_off.forget(&Selector::key(samples::fingerprint(1))).await.is_err());
    assert!(cut_off.accept(&samples::fingerprint(2), &ocr).await.is_err());
    // an entry of before the outage was accepted in it
    assert!(cut_off.accept(&samples::fingerprint(6), &ocr).await.is_err());
    // elsewhere
    assert_eq!(other.forget(&Selector::key(samples::fingerprint(3))).await.ok(), Some(0));
    let document = Selector { document: Some(samples::document(4)), ..Selector::default() };
    assert_eq!(other.forget(&document).await.ok(), Some(0));
    must_record(&other, 5).await;
    chaos.set(Fault::None);

    let within = Duration::from_secs(10);
    until("the first is recorded", within, async || knows(&other, 0).await).await;
    // unheard, another process may have seen it accepted: it does not stay for a day
    assert_eq!(recall(&other, 0).await.ok().flatten().map(|entry| entry.ttl_ms), Some(3_600_000));
    until("the entry of before is gone", within, async || !knows(&other, 6).await).await;
    for n in 1..5 {
        assert!(!knows(&other, n).await, "{n} was forgotten or accepted");
    }
    assert!(knows(&other, 5).await);
    assert!(other.has_accepted(&ocr));
    // nothing comes later still
    must_record(&cut_off, 100).await;
    assert_eq!(other.entries().await.ok(), Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_refusal_whose_record_was_not_answered_counts_once() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let slow = start(hasty(chaos.addr())).await;
    let other = store(server.addr()).await;
    let confirmed = Candidate { life: samples::confirmed(2), ..samples::candidate(1) };
    assert!(recall(&slow, 1).await.is_ok());
    let fence = last_fence(&slow);
    // of the two answers the first comes in time
    chaos.set(Fault::Late(Duration::from_millis(120)));
    assert!(slow.record(confirmed.clone(), fence).await.is_err());
    chaos.set(Fault::None);
    until("it works again", LONG, async || recall(&slow, 9).await.is_ok()).await;
    // time enough for what is told late
    tokio::time::sleep(2 * SECOND).await;
    assert!(!knows(&other, 1).await, "one refusal is not two");
    stored(other.record(confirmed, fence).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_of_an_outage_do_not_survive_a_loss_of_all_data() {
    let mut server = Redis::start();
    let store = start(hasty(server.addr())).await;
    assert!(recall(&store, 0).await.is_ok());
    let fence = last_fence(&store);
    server.kill();
    assert!(store.record(samples::candidate(1), fence).await.is_err());
    server.restart();
    until("it works again", LONG, async || recall(&store, 0).await.is_ok()).await;
    must_record(&store, 2).await;
    assert!(!knows(&store, 1).await, "whether it was forgotten since nobody knows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_an_acceptance_of_an_outage_does_not_take_away_what_was_recorded_long_after_it() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let clock = Arc::new(ManualClock::at(Millis(1_700_000_000_000)));
    let cut_off = RedisStore::start(hasty(chaos.addr()), Arc::<ManualClock>::clone(&clock)).await;
    let other = RedisStore::start(options(server.addr(), PREFIX), Arc::<ManualClock>::clone(&clock)).await;
    let ocr = samples::upstream("ocr");
    chaos.set(Fault::Reset);
    until("the connection is lost", LONG, async || recall(&cut_off, 0).await.is_err()).await;
    // told in this order
    for n in [1, 2] {
        assert!(cut_off.accept(&samples::fingerprint(n), &ocr).await.is_err());
    }
    clock.advance_ms(59_000);
    must_record(&other, 2).await;
    clock.advance_ms(2_000);
    must_record(&other, 1).await;
    chaos.set(Fault::None);
    let within = Duration::from_secs(10);
    until("what may be older is gone", within, async || !knows(&other, 2).await).await;
    assert!(knows(&other, 1).await, "the upstream has changed its mind since");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_mass_refusal_of_an_outage_is_marked_after_it_and_its_verdicts_are_not_told() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let clock = Arc::new(ManualClock::at(Millis(1_000_000)));
    let cut_off = RedisStore::start(hasty(chaos.addr()), Arc::<ManualClock>::clone(&clock)).await;
    let other = RedisStore::start(options(server.addr(), PREFIX), Arc::<ManualClock>::clone(&clock)).await;
    let ocr = samples::upstream("ocr");
    must_record(&cut_off, 0).await;
    clock.advance_ms(1_000);
    must_record(&cut_off, 1).await;
    for n in 0..2 {
        assert!(knows(&other, n).await && near(&other, n));
    }
    chaos.set(Fault::Silence);
    let fence = last_fence(&cut_off);
    for n in 2..4 {
        assert!(cut_off.record(samples::candidate(n), fence).await.is_err());
    }
    // the guard goes on, and off again, while nobody can be told
    assert!(cut_off.suspect(&ocr, Millis(1_001_000)).await.is_err());
    cut_off.tell(News::Tripped { upstream: ocr.clone(), since: Millis(1_001_000) });
    cut_off.tell(News::Recovered { upstream: ocr.clone() });
    chaos.set(Fault::None);

    until("the window is marked", LONG, async || !knows(&other, 1).await).await;
    assert!(!near(&other, 1), "it is at hand nowhere");
    assert!(knows(&other, 0).await, "it is from before the window");
    for n in 2..4 {
        assert!(!knows(&other, n).await, "{n} is of the window");
    }
    // nothing is told later still, and what is learned from now on counts
    must_record(&cut_off, 2).await;
    assert_eq!(other.entries().await.ok(), Some(3));
    tokio::time::sleep(SECOND).await;
    assert!(knows(&other, 2).await && !knows(&other, 1).await && !knows(&other, 3).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_verdict_that_is_told_late_is_as_old_as_it_is() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let clock = Arc::new(ManualClock::at(Millis(1_000_000)));
    let cut_off = RedisStore::start(hasty(chaos.addr()), Arc::<ManualClock>::clone(&clock)).await;
    let other = RedisStore::start(options(server.addr(), PREFIX), Arc::<ManualClock>::clone(&clock)).await;
    assert!(recall(&cut_off, 1).await.is_ok());
    chaos.set(Fault::Silence);
    let fence = last_fence(&cut_off);
    for n in 1..3 {
        let life = samples::flat(if n == 1 { 600_000 } else { 60_000 });
        assert!(cut_off.record(Candidate { life, ..samples::candidate(n) }, fence).await.is_err());
    }
    clock.advance_ms(500_000);
    chaos.set(Fault::None);
    until("it is told", LONG, async || knows(&other, 1).await).await;
    let entry = recall(&other, 1).await.ok().flatten().unwrap_or_else(|| panic!("it is there"));
    assert_eq!((entry.recorded_at, entry.first_refused_at), (Millis(1_000_000), Millis(1_000_000)));
    assert_eq!(entry.expires_at(), Millis(1_600_000));
    must_record(&cut_off, 9).await;
    assert!(!knows(&other, 2).await, "its time was over");
    assert_eq!(other.entries().await.ok(), Some(2));
    // and a forget of what is older finds it
    let before = Selector { before: Some(Millis(1_200_000)), ..Selector::default() };
    assert_eq!(other.forget(&before).await.ok(), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_of_an_outage_are_told_also_after_a_failover_that_lost_a_forget() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let store = start(hasty(chaos.addr())).await;
    assert!(recall(&store, 0).await.is_ok());
    let epoch = format!("{{{PREFIX}}}:epoch");
    let before = server.ask(&["get", &epoch]);
    assert!(store.forget(&Selector::default()).await.is_ok());
    // the new primary does not have it
    chaos.set(Fault::Reset);
    until("the connection is lost", LONG, async || recall(&store, 0).await.is_err()).await;
    server.ask(&["set", &epoch, &before]);
    server.ask(&["zremrangebyscore", &format!("{{{PREFIX}}}:wide"), "-inf", "(+inf"]);
    chaos.set(Fault::None);
    until("it is back", LONG, async || recall(&store, 0).await.is_ok()).await;
    chaos.set(Fault::Reset);
    until("the connection is lost again", LONG, async || recall(&store, 0).await.is_err()).await;
    let fence = last_fence(&store);
    assert!(store.record(samples::candidate(1), fence).await.is_err());
    chaos.set(Fault::None);
    until("it is told", LONG, async || recall(&store, 1).await.is_ok_and(|entry| entry.is_some())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_away_while_a_guard_was_on_tells_nothing_of_that_time() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let clock = Arc::new(ManualClock::at(Millis(1_700_000_000_000)));
    let cut_off = RedisStore::start(hasty(chaos.addr()), Arc::<ManualClock>::clone(&clock)).await;
    let other = RedisStore::start(options(server.addr(), PREFIX), Arc::<ManualClock>::clone(&clock)).await;
    let upstream = samples::upstream("ocr");
    assert!(recall(&cut_off, 1).await.is_ok());
    chaos.set(Fault::Reset);
    until("the connection is lost", LONG, async || recall(&cut_off, 1).await.is_err()).await;
    let fence = last_fence(&cut_off);
    for n in 1..4 {
        // the second one while the guard is on elsewhere
        if n == 2 {
            other.tell(News::Tripped { upstream: upstream.clone(), since: Millis(1_700_000_001_000) });
        }
        assert!(cut_off.record(samples::candidate(n), fence).await.is_err());
        if n == 2 {
            other.tell(News::Recovered { upstream: upstream.clone() });
        }
        clock.advance_ms(2_000);
    }
    until("the guard's end is told", LONG, async || {
        !server.ask(&["hget", &format!("{{{PREFIX}}}:recovered"), "ocr"]).is_empty()
    })
    .await;
    chaos.set(Fault::None);
    until("what came after it is told", LONG, async || knows(&other, 3).await).await;
    assert!(knows(&other, 1).await && !knows(&other, 2).await);
}
