//! Replicas of this version and of the next on one server and one prefix. Of the next version is known what every version keeps
//! (docs/decisions/0011-versions-side-by-side.md): here its values are written by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, ENTRY_SCHEMA, Entry, REDUCED_SCHEMA, Selector};
use nevertwice_store::redis::RedisStore;
use nevertwice_store::suite::samples;
use nevertwice_store::{Imported, Lease, ListQuery, Moved, Recorded, RefusalStore};
use nevertwice_testkit::Redis;

use super::bench::{store as open, *};

fn name(word: &str) -> Vec<u8> {
    format!("{{{PREFIX}}}:{word}").into_bytes()
}

fn entry_key(n: u64) -> Vec<u8> {
    name(&format!("e:{}", samples::fingerprint(n)))
}

fn member(n: u64) -> Vec<u8> {
    samples::fingerprint(n).as_bytes().to_vec()
}

/// All fields of an entry as they stand there.
fn fields(server: &Redis, n: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let all = server.ask_bytes(&[b"HGETALL", &entry_key(n)]);
    all.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

/// Records what the next version would: its value has another field at the end, its hash too, and its schema is the next.
async fn record_as_next(store: &RedisStore, server: &Redis, candidate: Candidate, n: u64) {
    let fence = store.recall(&samples::fingerprint(n)).await.unwrap_or_else(|error| panic!("{error}")).fence;
    stored(store.record(candidate, fence).await);
    let mut head = fields(server, n).remove(&b"m"[..]).unwrap_or_else(|| panic!("it has a head"));
    head.truncate(head.len() - 8);
    // the versions of this one are 1, and 2 for a reduced body
    head[3] = 3;
    head.extend(b"a field that this version does not know");
    let sum = blake3::hash(&head);
    head.extend(&sum.as_bytes()[..8]);
    let schema = (REDUCED_SCHEMA + 1).to_string();
    server.ask_bytes(&[b"HSET", &entry_key(n), b"m", &head, b"c", schema.as_bytes(), b"z", b"new"]);
    // the near copy of who only played the next version
    assert_eq!(server.ask_bytes(&[b"PUBLISH", &name("events"), &[b"g", &member(n)[..]].concat()]).len(), 1);
    until("the near copy drops", SECOND, async || !near(store, n)).await;
}

async fn next(store: &RedisStore, server: &Redis, n: u64) {
    record_as_next(store, server, samples::candidate(n), n).await;
}

async fn listed(store: &RedisStore) -> usize {
    let page = store.list(&ListQuery { limit: 100, ..ListQuery::default() }).await;
    page.unwrap_or_else(|error| panic!("{error}")).items.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_the_next_version_are_used_by_nobody_and_harmed_by_nobody() {
    let log = Log::start();
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    for n in 0..3 {
        next(&a, &server, n).await;
        must_record(&a, 10 + n).await;
    }
    let before: Vec<_> = (0..3).map(|n| fields(&server, n)).collect();
    for store in [&a, &b] {
        for n in 0..3 {
            assert!(!knows(store, n).await && !near(store, n));
            assert!(store.show(&samples::fingerprint(n)).await.is_ok_and(|shown| shown.is_none()));
            assert!(knows(store, 10 + n).await);
            store.count_replay(&samples::fingerprint(10 + n), &samples::tenant("a"), Millis(1));
            // what is on its way is one attempt among all versions
            let Lease::Held(lease) = look(store, n).await else { panic!("it is to be found out") };
            lease.land_without_verdict();
        }
        // the list is of what can be read, the count of what is there
        assert_eq!((listed(store).await, store.entries().await.ok()), (3, Some(6)));
        let other = Selector { upstream: Some(samples::upstream("tika")), ..Selector::default() };
        assert_eq!(store.forget(&other).await.ok(), Some(0));
        assert_eq!(store.suspect(&samples::upstream("tika"), Millis(0)).await.ok(), Some(0));
    }
    // more than a tick of the task that tends the connection
    tokio::time::sleep(SECOND).await;
    let after: Vec<_> = (0..3).map(|n| fields(&server, n)).collect();
    assert!(after == before, "not a byte of them");
    assert_eq!(log.warnings(), [""; 0], "nothing is damaged");
}

/// What a replica of the version before looks at, before it reads anything: it knows schema 1 and values that begin with `NTe` and
/// a 1, and would replay a reduced body as a whole one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_reduced_is_of_another_version() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    for (n, schema, status, c, m) in [
        (1, ENTRY_SCHEMA, 422, b"1", b"NTe\x01"),
        (2, REDUCED_SCHEMA, 422, b"2", b"NTe\x02"),
        (3, ENTRY_SCHEMA, 200, b"1", b"NTe\x01"),
    ] {
        let mut candidate = samples::candidate(n);
        candidate.entry.schema = schema;
        candidate.entry.status = samples::status(status);
        assert!(!knows(&a, n).await);
        stored(a.record(candidate, last_fence(&a)).await);
        let stored = fields(&server, n);
        assert_eq!(stored.get(&b"c"[..]).map(Vec::as_slice), Some(&c[..]));
        assert!(stored.get(&b"m"[..]).is_some_and(|value| value.starts_with(m)));
        assert!(knows(&b, n).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forget_reaches_the_entries_of_both_versions() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    let of = |upstream: &str, status: u16| Selector {
        upstream: Some(samples::upstream(upstream)),
        status: Some(samples::status(status)),
        ..Selector::default()
    };
    let selectors = [
        Selector::key(samples::fingerprint(1)),
        Selector { upstream: Some(samples::upstream("ocr")), ..Selector::default() },
        Selector { document: Some(samples::document(1)), ..Selector::default() },
        Selector { status: Some(samples::status(400)), ..Selector::default() },
        Selector { before: Some(Millis(i64::MAX)), ..Selector::default() },
        of("ocr", 400),
        Selector::default(),
    ];
    let others = [
        Selector::key(samples::fingerprint(7)),
        Selector { upstream: Some(samples::upstream("tika")), ..Selector::default() },
        Selector { document: Some(samples::document(7)), ..Selector::default() },
        Selector { status: Some(samples::status(422)), ..Selector::default() },
        Selector { before: Some(Millis(0)), ..Selector::default() },
        of("ocr", 422),
        of("tika", 400),
    ];
    for which in &selectors {
        next(&a, &server, 1).await;
        let there = fields(&server, 1);
        for other in &others {
            assert_eq!(b.forget(other).await.ok(), Some(0), "{other:?}");
        }
        assert!(fields(&server, 1) == there, "{which:?}");
        assert_eq!(b.forget(which).await.ok(), Some(1), "{which:?}");
        assert!(fields(&server, 1).is_empty(), "{which:?}");
        assert_eq!(b.entries().await.ok(), Some(0), "{which:?}");
        for set in ["index", "expiry"] {
            assert_eq!(server.ask_bytes(&[b"ZCARD", &name(set)]), [b"0"], "{which:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_from_before_a_forget_that_is_not_understood_records_nothing() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    must_record(&a, 1).await;
    assert!(knows(&b, 1).await && near(&b, 1));
    let fence = last_fence(&b);
    // by something that this version does not know, noted and told as it notes and tells it
    let selector = [&[0x40][..], b"a condition of later"].concat();
    let epoch = server.ask_bytes(&[b"INCR", &name("epoch")]).concat();
    let number = String::from_utf8_lossy(&epoch).parse::<u64>().unwrap_or_else(|error| panic!("{error}"));
    let noted = [format!("{number:020}").as_bytes(), &selector[..]].concat();
    server.ask_bytes(&[b"ZADD", &name("wide"), &epoch, &noted]);
    server.ask_bytes(&[b"PUBLISH", &name("events"), &[b"f", &selector[..]].concat()]);
    for store in [&a, &b] {
        until("the near copy drops", SECOND, async || !near(store, 1)).await;
        let late = store.record(samples::candidate(2), fence).await;
        assert!(matches!(late, Ok(Recorded::Fenced)), "{late:?}");
    }
    // one that begins now is as good as any, and what was not removed is there
    must_record(&b, 2).await;
    assert!(knows(&a, 1).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspects_of_both_versions_are_marked() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    next(&a, &server, 1).await;
    must_record(&a, 2).await;
    assert_eq!(b.suspect(&samples::upstream("ocr"), Millis(i64::MAX)).await.ok(), Some(0));
    assert_eq!(b.suspect(&samples::upstream("ocr"), Millis(0)).await.ok(), Some(2));
    assert_eq!(a.suspect(&samples::upstream("ocr"), Millis(0)).await.ok(), Some(0), "they are marked");
    for n in [1, 2] {
        assert_eq!(fields(&server, n).get(&b"s"[..]), Some(&b"1".to_vec()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_replaced_as_a_whole() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    must_record(&a, 1).await;
    let own: Vec<_> = fields(&server, 1).into_keys().collect();
    next(&a, &server, 2).await;
    server.ask_bytes(&[b"HSET", &entry_key(2), b"n", b"41", b"f", b"1", b"l", b"2", b"t", b"x "]);
    // one call of the upstream, and from then on both versions have an entry that both can read
    must_record(&b, 2).await;
    assert_eq!(fields(&server, 2).into_keys().collect::<Vec<_>>(), own);
    assert!(knows(&a, 2).await && knows(&b, 2).await);
    assert!(matches!(record(&a, 2).await, Ok(Recorded::AlreadyThere(_))));
    assert_eq!((listed(&a).await, a.entries().await.ok()), (2, Some(2)));

    next(&a, &server, 3).await;
    assert_eq!(b.accept(&samples::fingerprint(3), &samples::upstream("ocr")).await.ok(), Some(true));
    assert!(fields(&server, 3).is_empty());

    next(&a, &server, 4).await;
    let moved = Moved {
        entry: Entry { recorded_at: Millis(1_700_000_000_000), ttl_ms: 1000, ..samples::entry(4) },
        tally: nevertwice_domain::entry::Tally::default(),
    };
    let imported = b.import(vec![moved], last_fence(&b), 100).await.ok();
    assert!(matches!(imported.as_deref(), Some([Imported::Stored])), "{imported:?}");
    assert!(knows(&a, 4).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bound_and_one_order_hold_for_both_versions() {
    let server = Redis::start();
    let (a, b) = pair(server.addr()).await;
    for n in 0..3 {
        must_record(&a, 2 * n).await;
        next(&a, &server, 2 * n + 1).await;
    }
    assert!(knows(&b, 0).await);
    // the oldest go first, of whichever version they are
    stored(b.record(bounded(10, 5), last_fence(&b)).await);
    assert!(fields(&server, 0).is_empty() && fields(&server, 1).is_empty());
    stored(b.record(bounded(11, 5), last_fence(&b)).await);
    assert!(fields(&server, 2).is_empty() && !fields(&server, 3).is_empty());
    assert_eq!((b.evictions(), b.entries().await.ok()), (3, Some(5)));
    // and before them what has expired
    server.ask_bytes(&[b"HSET", &entry_key(5), b"x", b"5"]);
    server.ask_bytes(&[b"ZADD", &name("expiry"), b"5", &member(5)]);
    stored(b.record(bounded(12, 5), last_fence(&b)).await);
    assert!(fields(&server, 5).is_empty() && !fields(&server, 3).is_empty());
    assert_eq!((b.evictions(), b.entries().await.ok()), (3, Some(5)));
    assert_eq!(server.ask_bytes(&[b"ZCARD", &name("index")]), [b"5"]);
}

/// Another layout is another memory: whoever comes second stays outside, also when it was the other one's first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_two_layouts_never_share_a_prefix() {
    let log = Log::start();
    let server = Redis::start();
    let a = open(server.addr()).await;
    must_record(&a, 1).await;
    // all is lost while it runs: the keys are soon known as its own again
    server.ask(&["flushall"]);
    until("the layout is said", Duration::from_secs(3), async || {
        server.ask_bytes(&[b"GET", &name("schema")]).concat() == b"1"
    })
    .await;
    must_record(&a, 1).await;
    assert_eq!(log.warnings(), [""; 0]);
    // all is lost, and another one was faster
    server.ask_bytes(&[
        b"EVAL",
        b"redis.call('FLUSHALL') redis.call('SET', KEYS[1], '2') return 1",
        b"1",
        &name("schema"),
    ]);
    until("it goes", Duration::from_secs(3), async || recall(&a, 1).await.is_err()).await;
    until("it says why", LONG, async || log.lines("layout 2").count() == 1).await;
    server.ask(&["del", &format!("{{{PREFIX}}}:epoch"), &format!("{{{PREFIX}}}:floor")]);
    tokio::time::sleep(4 * SECOND).await;
    assert!(record(&a, 2).await.is_err() && !near(&a, 1));
    assert_eq!(log.lines("layout 2").count(), 1, "once");
    assert_eq!(server.ask(&["dbsize"]), "1", "it writes nothing there");
    // a neighbour with a prefix of its own is not concerned, nor does it see any of it
    let b = start(options(server.addr(), "nt.2")).await;
    must_record(&b, 1).await;
    assert_eq!(b.forget(&Selector::default()).await.ok(), Some(1));
}
