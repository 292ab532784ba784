//! Forgetting, accepting and suspecting.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Selector};

use super::{Bench, everything, is_fenced, samples, stored, upstream_is};
use crate::Recorded;

const TTL: i64 = samples::TTL_MS.cast_signed();

/// Two upstreams, two statuses, two times: 0 to 7.
async fn eight(bench: &Bench) {
    for n in 0..8 {
        if n == 4 {
            bench.clock.advance_ms(100);
        }
        let mut candidate = samples::candidate(n);
        candidate.entry.upstream = samples::upstream(if n % 2 == 0 { "ocr" } else { "tika" });
        candidate.entry.status = samples::status(if n % 4 < 2 { 400 } else { 422 });
        candidate.entry.document.digest = samples::document(n / 2);
        assert!(stored(bench.record(candidate).await).is_some());
    }
}

async fn forget(bench: &Bench, which: &Selector) -> u64 {
    bench.store.forget(which).await.expect("forget")
}

pub(super) async fn each_condition_selects(bench: &Bench) {
    let began = bench.now();
    eight(bench).await;
    assert_eq!(forget(bench, &Selector::key(samples::fingerprint(9))).await, 0);
    assert_eq!(forget(bench, &Selector::key(samples::fingerprint(7))).await, 1);
    assert_eq!(bench.present(8).await, [0, 1, 2, 3, 4, 5, 6]);
    let document = Selector { document: Some(samples::document(2)), ..Selector::default() };
    assert_eq!(forget(bench, &document).await, 2);
    assert_eq!(bench.present(8).await, [0, 1, 2, 3, 6]);
    let status = Selector { status: Some(samples::status(422)), ..Selector::default() };
    assert_eq!(forget(bench, &status).await, 3);
    assert_eq!(bench.present(8).await, [0, 1]);
    assert_eq!(forget(bench, &Selector { before: Some(began), ..Selector::default() }).await, 0);
    let upstream = Selector { upstream: upstream_is("tika"), ..Selector::default() };
    assert_eq!(forget(bench, &upstream).await, 1);
    assert_eq!(
        forget(bench, &Selector { before: Some(Millis(began.0 + 1)), ..Selector::default() }).await,
        1
    );
    assert_eq!(bench.entries().await, 0);
    eight(bench).await;
    assert_eq!(forget(bench, &Selector::default()).await, 8);
    assert_eq!(bench.present(8).await, [0; 0]);
}

pub(super) async fn conditions_are_anded(bench: &Bench) {
    let began = bench.now();
    eight(bench).await;
    let which = Selector {
        upstream: upstream_is("ocr"),
        status: Some(samples::status(400)),
        before: Some(Millis(began.0 + 1)),
        ..Selector::default()
    };
    assert_eq!(forget(bench, &which).await, 1);
    assert_eq!(bench.present(8).await, [1, 2, 3, 4, 5, 6, 7]);
    let contradiction =
        Selector { document: Some(samples::document(0)), ..Selector::key(samples::fingerprint(7)) };
    assert_eq!(forget(bench, &contradiction).await, 0);
}

pub(super) async fn a_forget_fences_attempts_under_way(bench: &Bench) {
    let later = Millis(bench.now().0 + 1_000_000);
    let of_entry = [
        Selector::default(),
        Selector::key(samples::fingerprint(1)),
        Selector { document: Some(samples::document(1)), ..Selector::default() },
        Selector { upstream: upstream_is("ocr"), ..Selector::default() },
        Selector { status: Some(samples::status(400)), ..Selector::default() },
        Selector { before: Some(later), ..Selector::default() },
        Selector {
            upstream: upstream_is("ocr"),
            before: Some(later),
            ..Selector::key(samples::fingerprint(1))
        },
    ];
    for which in of_entry {
        let fence = bench.fence().await;
        forget(bench, &which).await;
        let recorded = bench.store.record(samples::candidate(1), fence).await.expect("record");
        assert!(is_fenced(&recorded), "{which:?}: {recorded:?}");
        assert!(bench.recall(1).await.is_none());
        // An attempt that begins now is free, whatever became of the old one.
        bench.store(1).await;
        let again = bench.store.record(samples::candidate(1), fence).await.expect("record");
        assert!(is_fenced(&again), "{which:?}: {again:?}");
        assert!(bench.accept(1).await);
    }
}

pub(super) async fn an_unrelated_forget_fences_nobody(bench: &Bench) {
    let fence = bench.fence().await;
    let of_others = [
        Selector::key(samples::fingerprint(2)),
        Selector { document: Some(samples::document(2)), ..Selector::default() },
        Selector { upstream: upstream_is("tika"), ..Selector::default() },
        Selector { status: Some(samples::status(422)), ..Selector::default() },
        Selector { before: Some(bench.now()), ..Selector::default() },
        Selector { upstream: upstream_is("tika"), ..Selector::key(samples::fingerprint(1)) },
    ];
    for which in of_others {
        forget(bench, &which).await;
    }
    assert!(stored(bench.store.record(samples::candidate(1), fence).await.expect("record")).is_some());
}

pub(super) async fn a_forget_of_the_past_does_not_fence_a_fresh_refusal(bench: &Bench) {
    let struck = || Candidate { life: samples::confirmed(3), ..samples::candidate(1) };
    let old = bench.now();
    bench.record(struck()).await;
    bench.clock.advance_ms(100);
    let fence = bench.fence().await;
    // What was refused before is gone, strikes included; what is refused now was not refused before.
    forget(bench, &Selector { before: Some(Millis(old.0 + 50)), ..Selector::default() }).await;
    let recorded = bench.store.record(struck(), fence).await.expect("record");
    assert!(matches!(recorded, Recorded::Unconfirmed(1)), "{recorded:?}");
}

pub(super) async fn a_fence_that_is_too_old_bars(bench: &Bench) {
    let fence = bench.fence().await;
    for n in 0..1500 {
        let unrelated = Selector { document: Some(samples::document(100 + n)), ..Selector::default() };
        forget(bench, &unrelated).await;
    }
    let recorded = bench.store.record(samples::candidate(1), fence).await.expect("record");
    assert!(is_fenced(&recorded) || stored(recorded).is_some(), "either is honest");
    assert!(stored(bench.record(samples::candidate(2)).await).is_some());
}

pub(super) async fn forgets_of_keys_do_not_crowd_out_the_others(bench: &Bench) {
    let before = bench.fence().await;
    forget(bench, &Selector { upstream: upstream_is("tika"), ..Selector::default() }).await;
    let after = bench.fence().await;
    for n in 0..3000 {
        forget(bench, &Selector::key(samples::fingerprint(100 + n))).await;
    }
    let of_tika = |n| {
        let mut candidate = samples::candidate(n);
        candidate.entry.upstream = samples::upstream("tika");
        candidate
    };
    let record = async |candidate, fence| bench.store.record(candidate, fence).await.expect("record");
    assert!(is_fenced(&record(of_tika(1), before).await));
    assert!(stored(record(samples::candidate(1), before).await).is_some(), "nobody forgot this one");
    assert!(stored(record(of_tika(2), after).await).is_some(), "nor this one since");
    for n in [100, 3099] {
        assert!(is_fenced(&record(of_tika(n), after).await), "{n}");
    }
}

pub(super) async fn a_forget_of_one_key_leaves_the_other_strikes(bench: &Bench) {
    let struck = |n| Candidate { life: samples::confirmed(9), ..samples::candidate(n) };
    for n in 0..3 {
        bench.record(struck(n)).await;
    }
    let of_status =
        |status| Selector { status: Some(samples::status(status)), ..Selector::key(samples::fingerprint(1)) };
    forget(bench, &Selector::key(samples::fingerprint(0))).await;
    forget(bench, &of_status(422)).await;
    for (n, count) in [(0, 1), (1, 2), (2, 2)] {
        let recorded = bench.record(struck(n)).await;
        assert!(matches!(recorded, Recorded::Unconfirmed(c) if c == count), "{n}: {recorded:?}");
    }
    forget(bench, &of_status(400)).await;
    assert!(matches!(bench.record(struck(1)).await, Recorded::Unconfirmed(1)));
}

pub(super) async fn a_forget_resets_strikes(bench: &Bench) {
    let struck = |n| Candidate { life: samples::confirmed(3), ..samples::candidate(n) };
    let kinds = [
        Selector::key(samples::fingerprint(1)),
        Selector { document: Some(samples::document(1)), ..Selector::default() },
        Selector { upstream: upstream_is("ocr"), status: Some(samples::status(400)), ..Selector::default() },
        Selector::default(),
    ];
    for which in kinds {
        bench.record(struck(1)).await;
        bench.record(struck(1)).await;
        assert_eq!(forget(bench, &which).await, 0, "strikes are no entries");
        let recorded = bench.record(struck(1)).await;
        assert!(matches!(recorded, Recorded::Unconfirmed(1)), "{which:?}: {recorded:?}");
        bench.accept(1).await;
    }
    bench.record(struck(1)).await;
    forget(bench, &Selector::key(samples::fingerprint(2))).await;
    forget(bench, &Selector { before: Some(bench.now()), ..Selector::default() }).await;
    assert!(matches!(bench.record(struck(1)).await, Recorded::Unconfirmed(2)));
}

pub(super) async fn an_acceptance_removes_and_is_remembered(bench: &Bench) {
    let ocr = samples::upstream("ocr");
    assert!(!bench.store.has_accepted(&ocr));
    assert!(!bench.accept(1).await);
    assert!(bench.store.has_accepted(&ocr));
    assert!(!bench.store.has_accepted(&samples::upstream("tika")));
    bench.store(1).await;
    bench.store(2).await;
    assert!(bench.accept(1).await);
    assert!(!bench.accept(1).await);
    assert_eq!(bench.present(3).await, [2]);

    let struck = || Candidate { life: samples::confirmed(2), ..samples::candidate(3) };
    bench.record(struck()).await;
    assert!(!bench.accept(3).await);
    assert!(matches!(bench.record(struck()).await, Recorded::Unconfirmed(1)));
}

pub(super) async fn an_acceptance_fences_nobody(bench: &Bench) {
    let fence = bench.fence().await;
    bench.accept(1).await;
    assert_eq!(bench.fence().await, fence);
    assert!(stored(bench.store.record(samples::candidate(1), fence).await.expect("record")).is_some());
}

pub(super) async fn suspects_are_seen_and_not_served(bench: &Bench) {
    bench.store(0).await;
    bench.clock.advance_ms(100);
    let since = bench.now();
    let first = bench.store(1).await;
    let mut elsewhere = samples::candidate(2);
    elsewhere.entry.upstream = samples::upstream("tika");
    bench.record(elsewhere).await;
    assert_eq!(bench.suspect("nobody", Millis(0)).await, 0);
    assert_eq!(bench.suspect("ocr", since).await, 1);
    assert_eq!(bench.suspect("ocr", since).await, 0, "it is marked already");
    assert_eq!(bench.present(3).await, [0, 2]);
    assert!(bench.store.near(&first.fingerprint).is_none());
    assert_eq!(bench.entries().await, 3);
    let shown = bench.store.show(&first.fingerprint).await.expect("show").expect("is there");
    assert_eq!((shown.suspect, shown.entry), (true, first));
    assert_eq!(bench.list(&everything()).await.iter().filter(|summary| summary.suspect).count(), 1);

    bench.clock.advance_ms(1);
    let fresh = bench.store(1).await;
    assert_eq!(bench.recall(1).await, Some(fresh), "a fresh verdict replaces it");
    assert_eq!(bench.entries().await, 3);
    assert_eq!(bench.suspect("ocr", Millis(0)).await, 2);
    assert_eq!(forget(bench, &Selector { upstream: upstream_is("ocr"), ..Selector::default() }).await, 2);
    bench.clock.advance_ms(TTL);
    assert_eq!(bench.suspect("tika", Millis(0)).await, 0, "it has expired");
}
