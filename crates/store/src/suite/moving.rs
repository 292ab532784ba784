//! Entries that come from elsewhere, as they are.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Entry, Selector, Tally};

use super::{Bench, everything, samples};
use crate::{Fence, Imported, ListOrder, ListQuery, Moved, Recorded, Shown, Summary};

/// The `n`th sample as another store had it: first refused 30 s ago, recorded 20 s ago, replayed `n` times since.
fn moved(bench: &Bench, n: u64) -> Moved {
    let now = bench.now().0;
    let mut tally = Tally::default();
    for i in 0..n {
        let tenant = samples::tenant(&format!("t{}", i % 40));
        tally.add(&tenant, Millis(now - 10_000 + i.cast_signed()));
    }
    let entry = Entry {
        first_refused_at: Millis(now - 30_000),
        recorded_at: Millis(now - 20_000),
        ttl_ms: samples::TTL_MS,
        ..samples::entry(n)
    };
    Moved { entry, tally }
}

async fn import_all(bench: &Bench, moved: &[Moved], fence: Fence, max_entries: u64) -> Vec<Imported> {
    let mut imported = Vec::new();
    loop {
        let rest = &moved[imported.len()..];
        let some = bench.store.import(rest.to_vec(), fence, max_entries).await.expect("import");
        assert!(!some.is_empty() || rest.is_empty());
        imported.extend(some);
        if imported.len() >= moved.len() {
            return imported;
        }
    }
}

async fn import(bench: &Bench, moved: &Moved) -> Imported {
    let fence = bench.fence().await;
    let mut outcomes = import_all(bench, std::slice::from_ref(moved), fence, 10_000).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

async fn show(bench: &Bench, n: u64) -> Option<Shown> {
    bench.store.show(&samples::fingerprint(n)).await.expect("show")
}

pub(super) async fn what_was_imported_is_as_it_was(bench: &Bench) {
    assert_eq!(import_all(bench, &[], bench.fence().await, 10).await, []);
    let all_bytes: Vec<u8> = (0..=255).collect();
    let mut odd = moved(bench, 50);
    odd.entry.body = all_bytes.repeat(300).into();
    odd.entry.fields.content_type = Some(Bytes::from_static(b"text/plain; x=\xfc\xff"));
    odd.entry.fields.content_encoding = Some(Bytes::new());
    odd.entry.fields.content_language = None;
    odd.entry.generation = "\u{fc}\n".into();
    odd.entry.document.bytes = u64::MAX;
    let all = [moved(bench, 0), moved(bench, 3), odd];
    assert_eq!(import_all(bench, &all, bench.fence().await, 10).await, [Imported::Stored; 3]);
    for (n, Moved { entry, tally }) in [0, 3, 50].into_iter().zip(&all) {
        assert_eq!(bench.recall(n).await.as_deref(), Some(entry));
        if let Some(near) = bench.store.near(&samples::fingerprint(n)) {
            assert_eq!(*near, *entry);
        }
        let shown = show(bench, n).await.expect("is there");
        assert_eq!((&*shown.entry, &shown.tally, shown.suspect), (entry, tally, false));
    }
    assert_eq!(bench.entries().await, 3);
}

pub(super) async fn a_live_entry_stays_as_it_is(bench: &Bench) {
    // As often as it is imported, it is there once, and what was counted meanwhile stays.
    assert_eq!(import(bench, &moved(bench, 3)).await, Imported::Stored);
    assert_eq!(bench.replay(3, &samples::tenant("late")), 4);
    assert_eq!(import(bench, &moved(bench, 3)).await, Imported::AlreadyThere);
    let shown = show(bench, 3).await.expect("is there");
    assert_eq!((shown.tally.replays, shown.tally.tenants.len()), (4, 4));
    // What was recorded here stays too.
    let recorded = bench.store(1).await;
    assert_eq!(import(bench, &moved(bench, 1)).await, Imported::AlreadyThere);
    assert_eq!(bench.recall(1).await, Some(recorded));
    // A copy from before does not make a suspect entry believed again.
    bench.store(2).await;
    bench.suspect("ocr", bench.now()).await;
    assert_eq!(import(bench, &moved(bench, 2)).await, Imported::AlreadyThere);
    assert!(bench.recall(2).await.is_none());
    assert!(show(bench, 2).await.is_some_and(|shown| shown.suspect));
    // Twice in one import.
    let twice = [moved(bench, 7), moved(bench, 7)];
    let outcomes = import_all(bench, &twice, bench.fence().await, 10_000).await;
    assert_eq!(outcomes, [Imported::Stored, Imported::AlreadyThere]);
    assert_eq!(bench.entries().await, 4);
}

pub(super) async fn what_is_over_is_not_imported(bench: &Bench) {
    let now = bench.now().0;
    let at = |n, recorded_at, ttl_ms| {
        let Moved { entry, tally } = moved(bench, n);
        Moved { entry: Entry { recorded_at: Millis(recorded_at), ttl_ms, ..entry }, tally }
    };
    for (n, recorded_at, ttl_ms, expected) in [
        (1, now - 1000, 1000, Imported::Expired),
        (2, now - 1000, 0, Imported::Expired),
        (3, now + 60_001, 1000, Imported::Expired),
        (5, now - 1000, 1001, Imported::Stored),
        (6, now + 60_000, 1000, Imported::Stored),
        (7, now - 1000, u64::MAX, Imported::Stored),
    ] {
        assert_eq!(import(bench, &at(n, recorded_at, ttl_ms)).await, expected, "{n}");
    }
    assert_eq!(bench.present(8).await, [5, 6, 7]);
    bench.clock.advance_ms(1);
    assert_eq!(bench.present(8).await, [6, 7], "it ends with its own life");
}

pub(super) async fn an_expired_entry_makes_room_for_an_imported_one(bench: &Bench) {
    bench.store(2).await;
    bench.replay(2, &samples::tenant("z"));
    // told before the entry ends: what is on its way may be counted for the next one
    assert_eq!(show(bench, 2).await.map(|shown| shown.tally.replays), Some(1));
    bench.clock.advance_ms(samples::TTL_MS.cast_signed());
    let moved = moved(bench, 2);
    assert_eq!(import(bench, &moved).await, Imported::Stored);
    let shown = show(bench, 2).await.expect("is there");
    assert_eq!((&*shown.entry, &shown.tally), (&moved.entry, &moved.tally), "as it is, tally included");
    assert_eq!(bench.entries().await, 1);
}

pub(super) async fn imports_count_like_records_in_their_order(bench: &Bench) {
    bench.store(0).await;
    bench.store(1).await;
    let mut all: Vec<Moved> = [4, 2, 3].map(|n| moved(bench, n)).into();
    // When they were recorded elsewhere has no say in it.
    all[0].entry.recorded_at = bench.now();
    let outcomes = import_all(bench, &all, bench.fence().await, 4).await;
    assert_eq!(outcomes, [Imported::Stored; 3]);
    assert_eq!((bench.present(5).await, bench.store.evictions()), (vec![1, 2, 3, 4], 1));
    bench.record(Candidate { max_entries: 3, ..samples::candidate(5) }).await;
    assert_eq!(bench.present(6).await, [2, 3, 5]);
    // More than there is room for: the last ones stay.
    let all: Vec<Moved> = (10..20).map(|n| moved(bench, n)).collect();
    import_all(bench, &all, bench.fence().await, 3).await;
    assert_eq!(bench.present(20).await, [17, 18, 19]);
}

pub(super) async fn a_forget_bars_what_is_imported_after_it(bench: &Bench) {
    let fence = bench.fence().await;
    let all: Vec<Moved> = (0..3).map(|n| moved(bench, n)).collect();
    assert_eq!(import_all(bench, &all[..1], fence, 100).await, [Imported::Stored]);
    let of_one = Selector { document: Some(samples::document(1)), ..Selector::default() };
    assert_eq!(bench.store.forget(&of_one).await.expect("forget"), 0);
    // What was imported before it goes as well.
    assert_eq!(bench.store.forget(&Selector::key(samples::fingerprint(0))).await.expect("forget"), 1);
    let outcomes = import_all(bench, &all, fence, 100).await;
    assert_eq!(outcomes, [Imported::Fenced, Imported::Fenced, Imported::Stored]);
    // An import that begins now is no attempt of before.
    assert_eq!(import(bench, &all[1]).await, Imported::Stored);
    // Its first refusal says whether it was refused before a time.
    let fence = bench.fence().await;
    let before = Selector { before: Some(Millis(bench.now().0 - 25_000)), ..Selector::default() };
    assert_eq!(bench.store.forget(&before).await.expect("forget"), 2);
    let mut later = moved(bench, 4);
    later.entry.first_refused_at = later.entry.recorded_at;
    let outcomes = import_all(bench, &[moved(bench, 3), later], fence, 100).await;
    assert_eq!(outcomes, [Imported::Fenced, Imported::Stored]);
}

pub(super) async fn an_imported_entry_is_like_any_other(bench: &Bench) {
    let all: Vec<Moved> = (1..6).map(|n| moved(bench, n)).collect();
    import_all(bench, &all, bench.fence().await, 100).await;
    // The first writer wins.
    let recorded = bench.record(samples::candidate(1)).await;
    assert!(matches!(recorded, Recorded::AlreadyThere(entry) if *entry == all[0].entry));
    // An acceptance removes it, a trip of the guard marks it by when it was recorded.
    assert!(bench.accept(2).await);
    assert_eq!(bench.suspect("ocr", Millis(bench.now().0 - 19_999)).await, 0);
    assert_eq!(bench.suspect("ocr", Millis(bench.now().0 - 20_000)).await, 4);
    assert!(bench.present(6).await.is_empty());
    // Its tally and its first refusal go on when the document is refused again.
    bench.record(samples::candidate(4)).await;
    let shown = show(bench, 4).await.expect("is there");
    assert_eq!((&shown.tally, shown.entry.first_refused_at), (&all[3].tally, all[3].entry.first_refused_at));
    assert_eq!(bench.replay(4, &samples::tenant("t0")), 5);
}

pub(super) async fn a_memory_moves_as_a_whole(bench: &Bench) {
    for n in 0..50 {
        bench.store(n).await;
        for _ in 0..n % 3 {
            bench.replay(n, &samples::tenant("a"));
        }
    }
    let query = ListQuery { order: ListOrder::Oldest, limit: 7, ..ListQuery::default() };
    let before = bench.list(&query).await;
    let mut all = Vec::new();
    for summary in &before {
        let shown = bench.store.show(&summary.entry.fingerprint).await.expect("show").expect("is there");
        all.push(Moved { entry: (*shown.entry).clone(), tally: shown.tally });
    }
    assert_eq!(bench.store.forget(&Selector::default()).await.expect("forget"), 50);
    assert_eq!(bench.list(&everything()).await.len(), 0);
    assert_eq!(import_all(bench, &all, bench.fence().await, 50).await, [Imported::Stored; 50]);
    let after = bench.list(&query).await;
    let told = |summary: &Summary| format!("{:?} {:?}", summary.entry, summary.tally);
    assert!(after.iter().map(told).eq(before.iter().map(told)), "the same entries in the same order");
    assert_eq!(import_all(bench, &all, bench.fence().await, 50).await, [Imported::AlreadyThere; 50]);
    assert_eq!(bench.store.evictions(), 0);
}
