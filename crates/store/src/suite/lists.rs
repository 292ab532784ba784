//! Listing.

use std::collections::BTreeSet;

use nevertwice_domain::entry::Selector;

use super::{Bench, everything, samples, upstream_is};
use crate::{ListOrder, ListQuery, Summary};

fn numbers(bench_size: u64, items: &[Summary]) -> Vec<u64> {
    let key =
        |summary: &Summary| (0..bench_size).find(|n| samples::fingerprint(*n) == summary.entry.fingerprint);
    items.iter().filter_map(key).collect()
}

pub(super) async fn filters_select(bench: &Bench) {
    for n in 0..6 {
        let mut candidate = samples::candidate(n);
        candidate.entry.upstream = samples::upstream(if n % 2 == 0 { "ocr" } else { "tika" });
        candidate.entry.status = samples::status(if n < 3 { 400 } else { 415 });
        candidate.entry.document.digest = samples::document(n % 3);
        candidate.entry.refused_tenant = samples::tenant(if n == 5 { "b" } else { "a" });
        bench.record(candidate).await;
    }
    bench.replay(0, &samples::tenant("b"));
    let all = ListQuery { order: ListOrder::Recent, ..everything() };
    let cases = [
        (all.clone(), vec![5, 4, 3, 2, 1, 0]),
        (ListQuery { upstream: upstream_is("ocr"), ..all.clone() }, vec![4, 2, 0]),
        (ListQuery { upstream: upstream_is("nobody"), ..all.clone() }, vec![]),
        (ListQuery { status: Some(samples::status(415)), ..all.clone() }, vec![5, 4, 3]),
        (ListQuery { document: Some(samples::document(1)), ..all.clone() }, vec![4, 1]),
        (ListQuery { tenant: Some(samples::tenant("b")), ..all.clone() }, vec![5, 0]),
        (ListQuery { tenant: Some(samples::tenant("a")), ..all.clone() }, vec![4, 3, 2, 1, 0]),
        (ListQuery { upstream: upstream_is("tika"), status: Some(samples::status(415)), ..all }, vec![5, 3]),
    ];
    for (query, expected) in cases {
        assert_eq!(numbers(6, &bench.list(&query).await), expected, "{query:?}");
    }
}

pub(super) async fn orders_are_total(bench: &Bench) {
    for n in 0..6 {
        bench.store(n).await;
    }
    for n in [1, 1, 1, 4, 2, 2] {
        bench.replay(n, &samples::tenant("a"));
    }
    for limit in [1, 2, 3, 5, 1000] {
        let query = ListQuery { limit, ..ListQuery::default() };
        assert_eq!(numbers(6, &bench.list(&query).await), [1, 2, 4, 5, 3, 0], "{limit}");
        let query = ListQuery { order: ListOrder::Recent, ..query };
        assert_eq!(numbers(6, &bench.list(&query).await), [5, 4, 3, 2, 1, 0], "{limit}");
        let query = ListQuery { order: ListOrder::Oldest, ..query };
        assert_eq!(numbers(6, &bench.list(&query).await), [0, 1, 2, 3, 4, 5], "{limit}");
    }
}

pub(super) async fn pages_are_complete(bench: &Bench) {
    for n in 0..60 {
        bench.store(n).await;
        for _ in 0..n % 7 {
            bench.replay(n, &samples::tenant("a"));
        }
    }
    for order in [ListOrder::Replays, ListOrder::Recent, ListOrder::Oldest] {
        for limit in [1, 7, 20, 59, 60, 61] {
            let query = ListQuery { order, limit, ..ListQuery::default() };
            let items = bench.list(&query).await;
            let rest = bench.list(&ListQuery { after: Some(items[24].place), ..query }).await;
            assert_eq!(rest.len(), 35, "{order:?} by {limit}: what comes after the 25th");
            assert_eq!(rest[0].entry, items[25].entry);
            let keys: BTreeSet<_> = items.iter().map(|summary| summary.entry.fingerprint).collect();
            assert_eq!((items.len(), keys.len()), (60, 60), "{order:?} by {limit}");
        }
    }
    let page = bench.store.list(&ListQuery { limit: 60, ..ListQuery::default() }).await.expect("list");
    assert_eq!((page.items.len(), page.next), (60, None), "nothing comes after the last");
}

pub(super) async fn cursors_survive_change(bench: &Bench) {
    for n in 0..10 {
        bench.store(n).await;
    }
    let query = ListQuery { order: ListOrder::Recent, limit: 4, ..ListQuery::default() };
    let first = bench.store.list(&query).await.expect("list");
    assert_eq!(numbers(12, &first.items), [9, 8, 7, 6]);
    // The last one seen goes, so does one that would come, and a new one comes.
    bench.store.forget(&Selector::key(samples::fingerprint(6))).await.expect("forget");
    bench.store.forget(&Selector::key(samples::fingerprint(4))).await.expect("forget");
    bench.store(11).await;
    let rest = bench.list(&ListQuery { after: first.next, ..query }).await;
    assert_eq!(numbers(12, &rest), [5, 3, 2, 1, 0]);
}

pub(super) async fn the_oldest_first_each_once_whatever_changes(bench: &Bench) {
    for n in 0..10 {
        bench.store(n).await;
    }
    let query = ListQuery { order: ListOrder::Oldest, limit: 4, ..ListQuery::default() };
    let first = bench.store.list(&query).await.expect("list");
    assert_eq!(numbers(12, &first.items), [0, 1, 2, 3]);
    // Replays, one that is gone, one that is recorded again, and a new one.
    bench.replay(5, &samples::tenant("a"));
    bench.store.forget(&Selector::key(samples::fingerprint(3))).await.expect("forget");
    bench.store.forget(&Selector::key(samples::fingerprint(6))).await.expect("forget");
    bench.store(6).await;
    bench.store(11).await;
    let rest = bench.list(&ListQuery { after: first.next, ..query }).await;
    assert_eq!(numbers(12, &rest), [4, 5, 7, 8, 9, 6, 11]);
}

pub(super) async fn a_summary_has_no_body(bench: &Bench) {
    let mut candidate = samples::candidate(1);
    candidate.entry.body = vec![7; 5000].into();
    bench.record(candidate).await;
    bench.replay(1, &samples::tenant("b"));
    let items = bench.list(&everything()).await;
    assert_eq!(items.len(), 1);
    assert_eq!((items[0].entry.body.len(), items[0].body_bytes, items[0].tally.replays), (0, 5000, 1));
    assert_eq!(items[0].entry.fields, samples::entry(1).fields);
}

pub(super) async fn many_entries_are_listed(bench: &Bench) {
    for n in 0..2500 {
        bench.store(n).await;
    }
    let items = bench.list(&ListQuery { order: ListOrder::Recent, ..everything() }).await;
    let keys: BTreeSet<_> = items.iter().map(|summary| summary.entry.fingerprint).collect();
    assert_eq!((items.len(), keys.len()), (2500, 2500));
    let oldest =
        bench.list(&ListQuery { order: ListOrder::Oldest, limit: 700, ..ListQuery::default() }).await;
    assert!(oldest.iter().rev().map(|s| s.entry.fingerprint).eq(items.iter().map(|s| s.entry.fingerprint)));
    let page = bench.store.list(&ListQuery { limit: 1_000_000, ..ListQuery::default() }).await.expect("list");
    assert_eq!(page.items.len(), 1000, "no page is longer");
}
