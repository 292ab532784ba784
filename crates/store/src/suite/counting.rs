//! Counting replays.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Selector, Tally};

use super::{Bench, samples, stored};

const TTL: i64 = samples::TTL_MS.cast_signed();

async fn tally(bench: &Bench, n: u64) -> Tally {
    bench.store.show(&samples::fingerprint(n)).await.expect("show").expect("is there").tally
}

pub(super) async fn replays_are_counted_and_named(bench: &Bench) {
    bench.store(1).await;
    bench.store(2).await;
    let began = bench.now();
    let names: Vec<_> = (0..40).map(|i| samples::tenant(&format!("t{i}"))).collect();
    let mut count = 0;
    for round in 0..3 {
        for tenant in &names {
            count += 1;
            assert_eq!(bench.replay(1, tenant), count);
        }
        bench.clock.advance_ms(i64::from(round < 2));
    }
    let expected = Tally {
        replays: 120,
        first_replayed_at: Some(began),
        last_replayed_at: Some(bench.now()),
        tenants: names[..Tally::MAX_TENANTS].to_vec(),
    };
    assert_eq!(tally(bench, 1).await, expected);
    assert_eq!(tally(bench, 2).await, Tally::default());
}

pub(super) async fn replays_go_on_across_renewals(bench: &Bench) {
    let a = samples::tenant("a");
    bench.store(1).await;
    bench.replay(1, &a);
    bench.replay(1, &a);
    // expired
    bench.clock.advance_ms(TTL + 1000);
    bench.store(1).await;
    assert_eq!(bench.replay(1, &a), 3);
    // suspect
    assert_eq!(bench.suspect("ocr", bench.now()).await, 1);
    bench.store(1).await;
    assert_eq!(bench.replay(1, &a), 4);
    // too old for a shorter rule
    bench.clock.advance_ms(100);
    let short = Candidate { life: samples::flat(50), ..samples::candidate(1) };
    assert!(stored(bench.record(short).await).is_some());
    assert_eq!(bench.replay(1, &a), 5);
    // expired for more than a day
    bench.clock.advance_ms(TTL + 24 * 60 * 60 * 1000);
    bench.store(1).await;
    assert_eq!(bench.replay(1, &a), 1);
}

pub(super) async fn another_document_or_status_starts_a_new_tally(bench: &Bench) {
    let a = samples::tenant("a");
    bench.store(1).await;
    bench.replay(1, &a);
    bench.clock.advance_ms(TTL);
    let mut other = samples::candidate(1);
    other.entry.status = samples::status(422);
    assert!(stored(bench.record(other).await).is_some());
    assert_eq!(bench.replay(1, &a), 1);
    bench.clock.advance_ms(TTL);
    let mut other = samples::candidate(1);
    other.entry.status = samples::status(422);
    other.entry.document.digest = samples::document(2);
    assert!(stored(bench.record(other).await).is_some());
    assert_eq!(bench.replay(1, &a), 1);
}

pub(super) async fn the_first_refusal_goes_on_with_the_tally(bench: &Bench) {
    let began = bench.now();
    let first_refused = async |candidate| {
        stored(bench.record(candidate).await).expect("the one before is over").first_refused_at
    };
    bench.store(1).await;
    for _ in 0..3 {
        bench.replay(1, &samples::tenant("a"));
        bench.clock.advance_ms(TTL);
        assert_eq!(first_refused(samples::candidate(1)).await, began);
    }
    let listed = bench.list(&super::everything()).await;
    assert_eq!(listed[0].entry.first_refused_at, began);
    assert_eq!(listed[0].tally.first_replayed_at, Some(began));
    assert_eq!(bench.suspect("ocr", bench.now()).await, 1);
    assert_eq!(first_refused(samples::candidate(1)).await, began);

    // An operator who forgets what is old means the loop, and not its latest renewal alone.
    let fence = bench.fence().await;
    let old = Selector { before: Some(Millis(began.0 + 1)), ..Selector::default() };
    assert_eq!(bench.store.forget(&old).await.expect("forget"), 1);
    let recorded = bench.store.record(samples::candidate(1), fence).await.expect("record");
    assert_eq!(stored(recorded).map(|entry| entry.first_refused_at), Some(bench.now()));

    bench.clock.advance_ms(TTL);
    let mut other = samples::candidate(1);
    other.entry.status = samples::status(422);
    assert_eq!(first_refused(other.clone()).await, bench.now(), "another verdict");
    bench.clock.advance_ms(TTL + 24 * 60 * 60 * 1000);
    assert_eq!(first_refused(other.clone()).await, bench.now(), "its tally is over");
    // A clock that steps back: the earlier of the two.
    bench.clock.advance_ms(-1000);
    let short = Candidate { life: samples::flat(50), ..other };
    assert!(matches!(bench.record(short).await, crate::Recorded::AlreadyThere(_)));
    assert_eq!(bench.suspect("ocr", Millis(0)).await, 1);
    let mut other = samples::candidate(1);
    other.entry.status = samples::status(422);
    assert_eq!(first_refused(other).await, bench.now());
}

pub(super) async fn nothing_counts_for_what_is_gone(bench: &Bench) {
    let a = samples::tenant("a");
    assert_eq!(bench.replay(1, &a), 0);
    bench.store(1).await;
    assert_eq!(bench.replay(1, &a), 1);
    bench.store.forget(&Selector::default()).await.expect("forget");
    assert_eq!(bench.replay(1, &a), 0);
    bench.store(1).await;
    assert_eq!(bench.replay(1, &a), 1, "a forget resets the tally");
    bench.accept(1).await;
    bench.store(1).await;
    assert_eq!(bench.replay(1, &a), 1, "an acceptance resets the tally");
    bench.clock.advance_ms(TTL);
    assert_eq!(bench.replay(1, &a), 0, "it has expired");
}
