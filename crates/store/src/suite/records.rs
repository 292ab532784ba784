//! Recording and recalling.

use bytes::Bytes;
use nevertwice_domain::entry::{Candidate, ENTRY_SCHEMA, Entry, REDUCED_SCHEMA, Selector};

use super::{Bench, everything, is_fenced, samples, stored};
use crate::{Imported, ListQuery, Moved, Recorded, StoreErrorKind};

pub(super) async fn what_was_recorded_is_recalled_as_it_was(bench: &Bench) {
    let began = bench.now();
    assert!(bench.recall(1).await.is_none());
    let recorded = bench.store(1).await;
    let expected =
        Entry { first_refused_at: began, recorded_at: began, ttl_ms: samples::TTL_MS, ..samples::entry(1) };
    assert_eq!(*recorded, expected);
    assert_eq!(bench.recall(1).await.as_deref(), Some(&expected));
    assert!(bench.recall(2).await.is_none());
    assert_eq!(bench.entries().await, 1);
    let shown = bench.store.show(&samples::fingerprint(1)).await.expect("show").expect("is there");
    assert_eq!(*shown.entry, expected);
    assert!(!shown.suspect);
    assert_eq!(shown.tally, Default::default());
    assert!(bench.store.show(&samples::fingerprint(2)).await.expect("show").is_none());
}

pub(super) async fn bodies_and_fields_are_bytes(bench: &Bench) {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let bodies = [
        Bytes::new(),
        Bytes::from_static(b"\0"),
        Bytes::from(all_bytes.clone()),
        Bytes::from(vec![0xff; 65_536]),
        Bytes::from(all_bytes.repeat(256)),
    ];
    let odd = [
        None,
        Some(Bytes::new()),
        Some(Bytes::from_static(b"text/plain; x=\xfc\xff")),
        Some(all_bytes.into()),
    ];
    for (n, body) in bodies.iter().enumerate() {
        for (m, field) in odd.iter().enumerate() {
            let mut candidate = samples::candidate((n * odd.len() + m) as u64);
            candidate.entry.body = body.clone();
            candidate.entry.fields.content_type = field.clone();
            candidate.entry.fields.content_encoding = odd[(m + 1) % odd.len()].clone();
            candidate.entry.fields.content_language = odd[(m + 2) % odd.len()].clone();
            candidate.entry.generation = "ü\n\0".into();
            candidate.entry.document.bytes = u64::MAX;
            candidate.entry.document.parts = u32::MAX;
            let recorded = stored(bench.record(candidate).await).expect("is new");
            let recalled = bench.store.recall(&recorded.fingerprint).await.expect("recall").entry;
            assert_eq!(recalled.as_ref(), Some(&recorded));
            assert_eq!(recorded.body, *body);
        }
    }
}

pub(super) async fn the_first_writer_wins(bench: &Bench) {
    let first = bench.store(1).await;
    bench.clock.advance_ms(10);
    let mut second = samples::candidate(1);
    second.entry.body = Bytes::from_static(b"another text");
    second.entry.status = samples::status(422);
    match bench.record(second).await {
        Recorded::AlreadyThere(there) => assert_eq!(there, first),
        other => unreachable!("the first writer wins, but: {other:?}"),
    }
    assert_eq!(bench.recall(1).await, Some(first));
    assert_eq!(bench.entries().await, 1);
}

pub(super) async fn a_present_entry_that_is_too_old_for_the_rule_is_replaced(bench: &Bench) {
    bench.store(1).await;
    bench.clock.advance_ms(1000);
    let short = |ttl_ms| Candidate { life: samples::flat(ttl_ms), ..samples::candidate(1) };
    assert!(matches!(bench.record(short(1001)).await, Recorded::AlreadyThere(_)));
    let replaced = stored(bench.record(short(1000)).await).expect("the shorter rule counts");
    assert_eq!((replaced.recorded_at, replaced.ttl_ms), (bench.now(), 1000));
    assert_eq!(bench.recall(1).await, Some(replaced));
    assert_eq!(bench.list(&everything()).await.len(), 1);
}

pub(super) async fn near_agrees_with_recall(bench: &Bench) {
    let key = samples::fingerprint(1);
    assert!(bench.store.near(&key).is_none());
    let recorded = bench.store(1).await;
    // A store may know less near by, and never something else.
    assert!(bench.store.near(&key).is_none_or(|near| near == recorded));
    bench.recall(1).await;
    assert!(bench.store.near(&key).is_none_or(|near| near == recorded));
    bench.clock.advance_ms(samples::TTL_MS.cast_signed());
    assert!(bench.store.near(&key).is_none());
    bench.store(1).await;
    bench.store.forget(&Selector::key(key)).await.expect("forget");
    assert!(bench.store.near(&key).is_none());
}

pub(super) async fn an_entry_of_another_schema_is_replaced(bench: &Bench) {
    let key = samples::fingerprint(1);
    for schema in [REDUCED_SCHEMA + 1, ENTRY_SCHEMA - 1, u32::MAX] {
        let mut other = samples::candidate(1);
        other.entry.schema = schema;
        other.entry.body = Bytes::from_static(b"it means something else");
        let other = stored(bench.record(other).await).expect("nothing is there that could be replayed");
        assert!(bench.store.near(&key).is_none());
        assert!(bench.recall(1).await.is_none());
        assert!(bench.store.near(&key).is_none());
        let shown = bench.store.show(&key).await.expect("show").expect("it is kept for people");
        assert_eq!(shown.entry, other);
    }
    let fresh = bench.store(1).await;
    assert_eq!(bench.recall(1).await, Some(fresh));
    assert_eq!(bench.entries().await, 1);
}

pub(super) async fn a_reduced_body_is_known_as_one(bench: &Bench) {
    let key = samples::fingerprint(1);
    let reduced = |n| {
        let mut candidate = samples::candidate(n);
        candidate.entry.schema = REDUCED_SCHEMA;
        candidate.entry.status = samples::status(422);
        candidate.entry.body = Bytes::from_static(b"{\"input\":\"[removed: 70000 bytes]\"}");
        candidate
    };
    let recorded = stored(bench.record(reduced(1)).await).expect("is new");
    bench.store(2).await;
    assert!(recorded.is_reduced());
    assert_eq!(bench.recall(1).await.as_ref(), Some(&recorded));
    assert!(bench.store.near(&key).is_none_or(|near| near == recorded));
    assert!(
        matches!(bench.record(samples::candidate(1)).await, Recorded::AlreadyThere(there) if there.is_reduced())
    );
    assert_eq!(bench.replay(1, &samples::tenant("b")), 1);
    let shown = bench.store.show(&key).await.expect("show").expect("is there");
    assert_eq!((&shown.entry, shown.tally.replays), (&recorded, 1));
    let mut listed: Vec<_> =
        bench.list(&everything()).await.iter().map(|item| item.entry.is_reduced()).collect();
    listed.sort_unstable();
    assert_eq!(listed, [false, true]);

    // its tally goes on with a whole one of the same document, and the other way round
    bench.clock.advance_ms(samples::TTL_MS.cast_signed());
    let mut whole = reduced(1);
    whole.entry.schema = ENTRY_SCHEMA;
    let whole = stored(bench.record(whole).await).expect("the last one has expired");
    assert!(!whole.is_reduced() && bench.recall(1).await.as_ref() == Some(&whole));
    bench.clock.advance_ms(samples::TTL_MS.cast_signed());
    stored(bench.record(reduced(1)).await).expect("the last one has expired");
    let again = bench.store.show(&key).await.expect("show").expect("is there");
    assert_eq!((again.entry.is_reduced(), again.tally.replays), (true, 1));

    assert!(bench.accept(1).await);
    let fence = bench.fence().await;
    let moved =
        Moved { entry: Entry { recorded_at: bench.now(), ..(*recorded).clone() }, tally: shown.tally };
    let imported = bench.store.import(vec![moved.clone()], fence, 10).await.expect("import");
    assert_eq!((imported, bench.recall(1).await.as_deref()), (vec![Imported::Stored], Some(&moved.entry)));
    assert_eq!(bench.suspect("ocr", bench.now()).await, 1);
    assert!(bench.recall(1).await.is_none());
    let which = Selector { status: Some(samples::status(422)), ..Selector::default() };
    assert_eq!(bench.store.forget(&which).await.expect("forget"), 1);
}

pub(super) async fn a_failed_operation_is_kept_like_any_refusal(bench: &Bench) {
    let key = samples::fingerprint(1);
    let status = samples::status(200);
    let failed = |n: u64, life| {
        let mut candidate = Candidate { life, ..samples::candidate(n) };
        candidate.entry.status = status;
        candidate
    };
    let flat = || samples::flat(samples::TTL_MS);
    let recorded = stored(bench.record(failed(1, flat())).await).expect("is new");
    assert_eq!(recorded.status, status);
    bench.store(2).await;
    assert_eq!(bench.recall(1).await.as_ref(), Some(&recorded));
    assert!(bench.store.near(&key).is_none_or(|near| near == recorded));
    assert!(matches!(bench.record(failed(1, flat())).await, Recorded::AlreadyThere(_)));
    bench.replay(1, &samples::tenant("b"));
    let shown = bench.store.show(&key).await.expect("show").expect("is there");
    assert_eq!((&shown.entry, shown.tally.replays), (&recorded, 1));

    // it is found, and forgotten, by its status
    let listed = bench.list(&ListQuery { status: Some(status), ..everything() }).await;
    assert_eq!(listed.iter().map(|item| item.entry.fingerprint).collect::<Vec<_>>(), [key]);
    let fence = bench.fence().await;
    let which = Selector { status: Some(status), ..Selector::default() };
    assert_eq!(bench.store.forget(&which).await.expect("forget"), 1);
    assert_eq!(bench.present(3).await, [2]);
    assert!(is_fenced(&bench.store.record(failed(1, flat()), fence).await.expect("record")));
    assert!(stored(bench.store.record(samples::candidate(3), fence).await.expect("record")).is_some());

    // its row of refusals is its own, and an acceptance ends it
    assert!(matches!(bench.record(failed(1, samples::confirmed(2))).await, Recorded::Unconfirmed(1)));
    assert!(!bench.accept(1).await);
    assert!(matches!(bench.record(failed(1, samples::confirmed(2))).await, Recorded::Unconfirmed(1)));
    assert!(stored(bench.record(failed(1, samples::confirmed(2))).await).is_some());
    assert!(bench.accept(1).await);
    assert!(bench.recall(1).await.is_none());

    let moved = Moved { entry: (*recorded).clone(), tally: shown.tally };
    let fence = bench.fence().await;
    let imported = bench.store.import(vec![moved], fence, 10).await.expect("import");
    assert_eq!(imported, [Imported::Stored]);
    assert_eq!(bench.recall(1).await, Some(recorded));
}

pub(super) async fn close_is_the_end(bench: &Bench) {
    let key = samples::fingerprint(1);
    let ocr = samples::upstream("ocr");
    bench.store(1).await;
    let fence = bench.fence().await;
    let store = &bench.store;
    store.close().await.expect("close");
    let closed = Some(StoreErrorKind::Closed);
    assert_eq!(store.recall(&key).await.err().map(|e| e.kind), closed);
    assert_eq!(store.record(samples::candidate(2), fence).await.err().map(|e| e.kind), closed);
    assert_eq!(store.import(Vec::new(), fence, 9).await.err().map(|e| e.kind), closed);
    assert_eq!(store.accept(&key, &ocr).await.err().map(|e| e.kind), closed);
    assert_eq!(store.forget(&Selector::default()).await.err().map(|e| e.kind), closed);
    assert_eq!(store.suspect(&ocr, bench.now()).await.err().map(|e| e.kind), closed);
    assert_eq!(store.entries().await.err().map(|e| e.kind), closed);
    assert_eq!(store.list(&everything()).await.err().map(|e| e.kind), closed);
    assert_eq!(store.show(&key).await.err().map(|e| e.kind), closed);
    assert_eq!(store.close().await.err().map(|e| e.kind), closed);
    assert!(store.near(&key).is_none());
    assert_eq!(bench.replay(1, &samples::tenant("a")), 0);
}
