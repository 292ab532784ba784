//! How long entries live, and what refusals in a row do to it.

use nevertwice_domain::entry::Candidate;
use nevertwice_domain::strike::LifePolicy;

use super::{Bench, samples, stored};
use crate::Recorded;

const TTL: i64 = samples::TTL_MS.cast_signed();
const DAY: i64 = 24 * 60 * 60 * 1000;

fn under(life: LifePolicy) -> Candidate {
    Candidate { life, ..samples::candidate(1) }
}

/// The count of a refusal that is not remembered yet.
fn unconfirmed(recorded: Recorded) -> Option<u32> {
    match recorded {
        Recorded::Unconfirmed(count) => Some(count),
        _ => None,
    }
}

pub(super) async fn an_entry_ends_with_its_life(bench: &Bench) {
    bench.store(1).await;
    bench.clock.advance_ms(TTL - 1);
    assert!(bench.recall(1).await.is_some());
    assert_eq!(bench.entries().await, 1);
    bench.clock.advance_ms(1);
    assert!(bench.recall(1).await.is_none());
    assert_eq!(bench.entries().await, 0);
    assert!(bench.store.show(&samples::fingerprint(1)).await.expect("show").is_none());
    assert!(bench.list(&super::everything()).await.is_empty());
    assert_eq!(bench.store.forget(&Default::default()).await.expect("forget"), 0);
}

pub(super) async fn reads_do_not_extend_a_life(bench: &Bench) {
    bench.store(1).await;
    for _ in 0..6 {
        assert!(bench.recall(1).await.is_some());
        bench.replay(1, &samples::tenant("a"));
        bench.clock.advance_ms(TTL / 6);
    }
    assert!(bench.recall(1).await.is_none());
}

pub(super) async fn a_clock_that_steps_back_does_not_stretch_a_life(bench: &Bench) {
    bench.store(1).await;
    // clocks differ a little
    bench.clock.advance_ms(-30_000);
    let recalled = bench.recall(1).await.expect("is live");
    assert_eq!(recalled.remaining_ms(bench.now()), Some(samples::TTL_MS));
    // how old an entry from the future is cannot be known: it is not used, and a fresh verdict takes its place
    bench.clock.advance_ms(-DAY);
    assert!(bench.recall(1).await.is_none());
    let renewed = bench.store(1).await;
    assert_eq!(renewed.recorded_at, bench.now());
    bench.clock.advance_ms(TTL);
    assert!(bench.recall(1).await.is_none());
}

pub(super) async fn an_expired_entry_is_replaced(bench: &Bench) {
    bench.store(1).await;
    bench.clock.advance_ms(TTL);
    let renewed = bench.store(1).await;
    assert_eq!(renewed.recorded_at, bench.now());
    assert_eq!(bench.recall(1).await, Some(renewed));
    assert_eq!(bench.entries().await, 1);
}

pub(super) async fn confirmations_come_first(bench: &Bench) {
    let candidate = |body: &'static str| {
        let mut candidate = under(samples::confirmed(3));
        candidate.entry.body = body.into();
        candidate
    };
    assert_eq!(unconfirmed(bench.record(candidate("one")).await), Some(1));
    assert!(bench.recall(1).await.is_none());
    assert_eq!(unconfirmed(bench.record(candidate("two")).await), Some(2));
    assert_eq!(bench.entries().await, 0);
    let entry = stored(bench.record(candidate("three")).await).expect("three make a verdict");
    assert_eq!((&*entry.body, entry.ttl_ms), (&b"three"[..], samples::TTL_MS));
    bench.clock.advance_ms(TTL);
    assert!(stored(bench.record(candidate("four")).await).is_some(), "a verdict that was confirmed stays so");
}

pub(super) async fn another_verdict_starts_the_row_again(bench: &Bench) {
    let candidate = |status, rule: &str| {
        let mut candidate = under(samples::confirmed(2));
        candidate.entry.status = samples::status(status);
        candidate.entry.rule = rule.into();
        candidate
    };
    assert_eq!(unconfirmed(bench.record(candidate(400, "status")).await), Some(1));
    assert_eq!(unconfirmed(bench.record(candidate(422, "status")).await), Some(1));
    assert_eq!(unconfirmed(bench.record(candidate(422, "code")).await), Some(1));
    assert!(stored(bench.record(candidate(422, "code")).await).is_some());
}

pub(super) async fn the_ladder_climbs(bench: &Bench) {
    for life in [1000, 4000, 16_000, samples::TTL_MS, samples::TTL_MS] {
        let entry = stored(bench.record(under(samples::ladder())).await).expect("the last one has expired");
        assert_eq!(entry.ttl_ms, life);
        assert!(matches!(bench.record(under(samples::ladder())).await, Recorded::AlreadyThere(_)));
        bench.clock.advance_ms(life.cast_signed());
    }
    assert!(!bench.accept(1).await, "it has expired");
    let entry = stored(bench.record(under(samples::ladder())).await).expect("is new");
    assert_eq!(entry.ttl_ms, 1000, "an acceptance resets the ladder");
}

pub(super) async fn a_capped_status_ends_earlier_and_the_others_do_not(bench: &Bench) {
    let capped = |policy: LifePolicy, ms| policy.capped_for(samples::status(413), ms);
    let refusal = |n, status, life| {
        let mut candidate = Candidate { life, ..samples::candidate(n) };
        candidate.entry.status = samples::status(status);
        candidate
    };
    // both were recorded under the cap; each ends with its own life, in every look at the store
    let life = capped(samples::flat(samples::TTL_MS), 2000);
    let too_large = stored(bench.record(refusal(1, 413, life.clone())).await).expect("is new");
    let unreadable = stored(bench.record(refusal(2, 400, life)).await).expect("is new");
    assert_eq!((too_large.ttl_ms, unreadable.ttl_ms), (2000, samples::TTL_MS));
    bench.clock.advance_ms(1999);
    assert_eq!(bench.present(3).await, [1, 2]);
    bench.clock.advance_ms(1);
    assert_eq!(bench.present(3).await, [2]);
    assert_eq!((bench.entries().await, bench.list(&super::everything()).await.len()), (1, 1));

    // a cap that came later decides whether a live entry is in the way of a fresh verdict, by the status of the live one
    let plain = samples::flat(samples::TTL_MS);
    stored(bench.record(refusal(1, 413, plain.clone())).await).expect("the last one has expired");
    bench.clock.advance_ms(1000);
    for life in [plain.clone(), capped(plain.clone(), 1001)] {
        let present = bench.record(refusal(1, 413, life)).await;
        assert!(matches!(present, Recorded::AlreadyThere(_)), "{present:?}");
    }
    let other = bench.record(refusal(2, 400, capped(plain.clone(), 1000))).await;
    assert!(matches!(other, Recorded::AlreadyThere(_)), "{other:?}");
    let renewed = stored(bench.record(refusal(1, 413, capped(plain, 1000))).await).expect("it is too old");
    assert_eq!((renewed.ttl_ms, renewed.recorded_at), (1000, bench.now()));

    // it caps the ladder too, whose rungs are counted on
    let life = capped(samples::ladder(), 3000);
    for ms in [1000, 3000, 3000] {
        let entry =
            stored(bench.record(refusal(3, 413, life.clone())).await).expect("the last one has expired");
        assert_eq!(entry.ttl_ms, ms);
        bench.clock.advance_ms(ms.cast_signed());
    }
    let uncapped = stored(bench.record(refusal(3, 413, samples::ladder())).await).expect("it has expired");
    assert_eq!(uncapped.ttl_ms, samples::TTL_MS, "the fourth rung");
}

pub(super) async fn strikes_end_after_thirty_days(bench: &Bench) {
    assert_eq!(unconfirmed(bench.record(under(samples::confirmed(3))).await), Some(1));
    bench.clock.advance_ms(30 * DAY - 1);
    assert_eq!(unconfirmed(bench.record(under(samples::confirmed(3))).await), Some(2));
    bench.clock.advance_ms(30 * DAY);
    assert_eq!(unconfirmed(bench.record(under(samples::confirmed(3))).await), Some(1));
}

pub(super) async fn strikes_are_bounded_oldest_first(bench: &Bench) {
    let strike = |n| Candidate { life: samples::confirmed(9), max_entries: 3, ..samples::candidate(n) };
    for n in 0..3 {
        bench.record(strike(n)).await;
    }
    bench.record(strike(0)).await;
    bench.record(strike(3)).await;
    assert_eq!(unconfirmed(bench.record(strike(0)).await), Some(3), "it was struck after 1");
    assert_eq!(unconfirmed(bench.record(strike(2)).await), Some(2));
    assert_eq!(unconfirmed(bench.record(strike(1)).await), Some(1), "the oldest went");
}

pub(super) async fn first_refused_is_the_first_of_the_row(bench: &Bench) {
    let began = bench.now();
    bench.record(under(samples::confirmed(2))).await;
    bench.clock.advance_ms(500);
    let entry = stored(bench.record(under(samples::confirmed(2))).await).expect("two make a verdict");
    assert_eq!((entry.first_refused_at, entry.recorded_at), (began, bench.now()));
}
