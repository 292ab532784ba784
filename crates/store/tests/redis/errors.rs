//! What the server refuses, and what strangers write under our keys: each has its kind and its one line, and none is an entry.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{ENTRY_SCHEMA, Entry, REDUCED_SCHEMA, Selector};
use nevertwice_store::redis::{RedisOptions, RedisStore};
use nevertwice_store::suite::samples;
use nevertwice_store::{ListQuery, Recorded, RefusalStore, StoreErrorKind};
use nevertwice_testkit::Redis;

use super::bench::{store as open, *};

fn entry_key(n: u64) -> String {
    format!("{{{PREFIX}}}:e:{}", samples::fingerprint(n))
}

/// Refused records, and the one line that says so with this word.
async fn records_are_refused(store: &RedisStore, log: &Log, kind: StoreErrorKind, word: &str) {
    for n in 500..520 {
        let refused = record(store, n).await;
        assert_eq!(refused.as_ref().err().map(|error| error.kind), Some(kind), "{refused:?}");
    }
    // longer than the probe takes to find that the server is well
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(kind_of(record(store, 500).await), Some(kind));
    let lines: Vec<_> = log.lines(word).collect();
    assert_eq!((lines.len(), log.warnings().len()), (1, 1), "{:?}", log.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_full_server_answers_for_what_it_knows() {
    let log = Log::start();
    let server = Redis::with(&["--save", "", "--appendonly", "no", "--maxmemory", "3mb"]);
    let store = store(server.addr()).await;
    let mut count = 0;
    for n in 0..2000 {
        let mut candidate = samples::candidate(n);
        candidate.entry.body = Bytes::from(vec![b'x'; 20_000]);
        let fence = store.recall(&samples::fingerprint(n)).await.map(|recalled| recalled.fence);
        let fence = fence.unwrap_or_else(|error| panic!("{error}"));
        match store.record(candidate, fence).await {
            Ok(Recorded::Stored(_)) => count += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.kind, StoreErrorKind::Full, "{error}");
                break;
            }
        }
    }
    assert!(count > 10, "{count}");
    server.ask(&["config", "set", "maxmemory", "1mb"]);
    records_are_refused(&store, &log, StoreErrorKind::Full, "OOM").await;
    for n in 0..count {
        assert!(knows(&store, n).await, "{n} of {count}");
    }
    assert!(matches!(look(&store, 5000).await, nevertwice_store::Lease::NotNeeded));
    // a process that starts now knows them too, and can make room
    let fresh = open(server.addr()).await;
    assert!(knows(&fresh, 0).await);
    assert_eq!(fresh.suspect(&samples::upstream("tika"), Millis(0)).await.ok(), Some(0));
    assert_eq!(fresh.suspect(&samples::upstream("ocr"), Millis(0)).await.ok(), Some(count));
    assert_eq!(fresh.accept(&samples::fingerprint(0), &samples::upstream("ocr")).await.ok(), Some(true));
    assert_eq!(fresh.forget(&Selector::key(samples::fingerprint(1))).await.ok(), Some(1));
    assert_eq!(fresh.forget(&Selector::default()).await.ok(), Some(count - 2));
    server.ask(&["config", "set", "maxmemory", "3mb"]);
    must_record(&fresh, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_server_that_cannot_save_takes_no_records() {
    let log = Log::start();
    let server = Redis::start();
    // Redis 6.2 does not take this from the command line
    server.ask(&["config", "set", "save", "3600 1000000"]);
    let store = store(server.addr()).await;
    must_record(&store, 1).await;
    server.ask(&["config", "set", "stop-writes-on-bgsave-error", "yes"]);
    let file = server.dir().join("dump.rdb");
    let made = std::fs::create_dir(&file).and_then(|()| std::fs::write(file.join("x"), "x"));
    assert!(made.is_ok());
    server.ask(&["bgsave"]);
    until("it notices", LONG, async || {
        server.ask(&["info", "persistence"]).contains("last_bgsave_status:err")
    })
    .await;
    assert!(knows(&store, 1).await);
    records_are_refused(&store, &log, StoreErrorKind::Full, "MISCONF").await;
    assert!(knows(&open(server.addr()).await, 1).await, "also for one that starts now");
    server.ask(&["config", "set", "stop-writes-on-bgsave-error", "no"]);
    must_record(&store, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_replica_is_left_alone_until_it_is_a_primary() {
    let log = Log::start();
    let (primary, server) = (Redis::start(), Redis::start());
    let store = store(server.addr()).await;
    must_record(&store, 1).await;
    server.ask(&["replicaof", "127.0.0.1", &primary.addr().port().to_string()]);
    until("it is a replica", LONG, async || record(&store, 2).await.is_err()).await;
    for _ in 0..200 {
        let refused = record(&store, 2).await;
        assert!(refused.is_err());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(log.warnings().len() <= 2, "{:?}", log.warnings());
    assert!(log.warnings().iter().any(|line| line.contains("is a replica")));
    let connections = server.ask(&["info", "stats"]);
    let received = connections.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    assert!(received.is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n < 40)), "{received:?}");
    server.ask(&["replicaof", "no", "one"]);
    until("it is used again", Duration::from_secs(10), async || record(&store, 3).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_who_may_not_enter_waits_outside() {
    let log = Log::start();
    let server = Redis::with(&["--save", "", "--requirepass", "sesame"]);
    let with = |password: Option<&str>, username: Option<&str>| RedisOptions {
        password: password.map(Into::into),
        username: username.map(Into::into),
        ..options(server.addr(), PREFIX)
    };
    for (password, username, word) in
        [(None, None, "NOAUTH"), (Some("open"), None, "WRONGPASS"), (Some("x"), Some("nobody"), "WRONGPASS")]
    {
        let before = log.warnings().len();
        let store = start(with(password, username)).await;
        assert_eq!(kind_of(recall(&store, 1).await), Some(StoreErrorKind::Io));
        assert_eq!(kind_of(record(&store, 1).await), Some(StoreErrorKind::Io));
        tokio::time::sleep(SECOND).await;
        assert_eq!(kind_of(recall(&store, 1).await), Some(StoreErrorKind::Io));
        let said: Vec<_> = log.warnings().split_off(before);
        assert_eq!(said.len(), 1, "{word}: {said:?}");
        assert!(said[0].contains("username") && !said[0].contains("open"), "{said:?}");
    }
    let store = start(with(Some("sesame"), None)).await;
    must_record(&store, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_user_needs_what_is_listed_and_no_more() {
    let log = Log::start();
    let server = Redis::start();
    // what docs/operating.md lists
    let rights = "on >pw resetkeys resetchannels -@all ~{nt}:* &{nt}:events +hello +auth +select +subscribe \
                  +script|load +evalsha +publish +get +set +del +incr +pexpire +pttl +time +hget +hmget +hgetall +hset +hdel +hincrby \
                  +ping +info +hstrlen +zadd +zrem +zscore +zcard +zcount +zrange +zrangebyscore +zpopmin +sadd +smembers \
                  +xadd +xgroup|create +xreadgroup +xpending +xclaim +xack +xdel +xlen";
    let mut grant = vec!["acl", "setuser", "gate", "reset"];
    grant.extend(rights.split_whitespace());
    server.ask(&grant);
    let as_gate = RedisOptions {
        username: Some("gate".into()),
        password: Some("pw".into()),
        ..options(server.addr(), PREFIX)
    };
    let store = start(as_gate).await;
    must_record(&store, 1).await;
    stored(store.record(bounded(2, 1), last_fence(&store)).await);
    store.count_replay(&samples::fingerprint(2), &samples::tenant("a"), Millis(1));
    assert_eq!(store.accept(&samples::fingerprint(3), &samples::upstream("ocr")).await.ok(), Some(false));
    assert_eq!(store.suspect(&samples::upstream("ocr"), Millis(0)).await.ok(), Some(1));
    assert!(store.list(&ListQuery { limit: 1, ..ListQuery::default() }).await.is_ok());
    assert!(store.show(&samples::fingerprint(2)).await.is_ok());
    assert_eq!(store.entries().await.ok(), Some(1));
    assert_eq!(store.forget(&Selector::key(samples::fingerprint(9))).await.ok(), Some(0));
    assert_eq!(store.forget(&Selector::default()).await.ok(), Some(1));
    assert_eq!(log.warnings(), [""; 0]);
    let used = server.ask(&["acl", "log"]);
    assert_eq!(used, "", "nothing was refused");

    server.ask(&["acl", "setuser", "gate", "-zadd"]);
    records_are_refused(&store, &log, StoreErrorKind::Io, "docs/operating.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_server_busy_with_a_script_is_left_alone() {
    let log = Log::start();
    let server = Redis::start();
    let store = start(hasty(server.addr())).await;
    must_record(&store, 1).await;
    server.ask(&["config", "set", "lua-time-limit", "100"]);
    let addr = server.addr();
    let running = std::thread::spawn(move || {
        let port = addr.port().to_string();
        std::process::Command::new("redis-cli").args(["-p", &port, "eval", "while true do end", "0"]).output()
    });
    until("it says so", LONG, async || {
        server.try_ask(&["get", "x"]).is_err_and(|said| said.contains("BUSY"))
    })
    .await;
    until("it is not asked any more", LONG, async || {
        kind_of(recall(&store, 1).await) == Some(StoreErrorKind::Busy)
    })
    .await;
    tokio::time::sleep(SECOND).await;
    assert!(log.warnings().len() <= 4, "{:?}", log.warnings());
    server.ask(&["script", "kill"]);
    assert!(running.join().is_ok());
    until("it is asked again", Duration::from_secs(10), async || recall(&store, 1).await.is_ok()).await;
    assert!(knows(&store, 1).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_strangers_write_is_no_entry_and_is_replaced() {
    let server = Redis::start();
    let store = store(server.addr()).await;
    for n in 0..4 {
        must_record(&store, n).await;
    }
    let key = entry_key(1);
    let damages: &[&[&[&str]]] = &[
        &[&["del", &key], &["set", &key, "a string"]],
        &[&["del", &key], &["rpush", &key, "a", "list"]],
        &[&["hset", &key, "m", "garbage"]],
        &[&["hset", &key, "b", "another body"]],
        &[&["hdel", &key, "m"]],
        &[&["hdel", &key, "b"]],
        &[&["hdel", &key, "q"]],
        &[&["hset", &key, "x", "never"]],
        &[&["hset", &key, "x", ""]],
        &[&["hset", &key, "q", "nan", "n", "many", "f", "?", "l", "?", "t", "\u{ff} ~"]],
        &[&["hset", &key, "c", "99"]],
        &[&["hset", &key, "m", "NTe\u{3}and what a newer version writes"]],
        &[&["hset", &key, "m", "NTe\u{2}and what a newer version writes"]],
        &[&["del", &key]],
        &[
            &["zrem", &format!("{{{PREFIX}}}:index"), "x"],
            &["del", &key],
            &["hset", &key, "x", "9999999999999", "c", &ENTRY_SCHEMA.to_string()],
        ],
    ];
    let everything = ListQuery { limit: 100, ..ListQuery::default() };
    for damage in damages {
        assert!(store.near(&samples::fingerprint(1)).is_some());
        for command in *damage {
            server.ask(command);
        }
        // replays of the near copy are counted, and hold up no other
        store.count_replay(&samples::fingerprint(1), &samples::tenant("a"), Millis(1));
        store.count_replay(&samples::fingerprint(2), &samples::tenant("a"), Millis(1));
        let before = store.show(&samples::fingerprint(2)).await.ok().flatten();
        assert!(before.is_some_and(|shown| shown.tally.replays > 0), "{damage:?}");
        let shown = store.show(&samples::fingerprint(1)).await;
        assert!(shown.is_ok(), "{damage:?}: {shown:?}");
        let listed = store.list(&everything).await.map(|page| page.items.len());
        assert!(matches!(listed, Ok(3..=4)), "{damage:?}: {listed:?}");
        assert!(!knows(&store, 1).await, "{damage:?}");
        let marked = store.suspect(&samples::upstream("tika"), Millis(0)).await;
        assert_eq!(marked.ok(), Some(0), "{damage:?}");
        let again = record(&store, 1).await;
        assert!(matches!(again, Ok(Recorded::Stored(_))), "{damage:?}: {again:?}");
        assert!(knows(&store, 1).await && knows(&store, 2).await, "{damage:?}");
    }
    server.ask(&["del", &key]);
    server.ask(&["set", &key, "a string"]);
    assert_eq!(store.forget(&Selector::default()).await.ok(), Some(3));
    assert_eq!(server.ask(&["keys", "*:e:*"]), "", "a stranger's value under our key goes too");

    // the index lost: nothing is found that a forget of many would not find
    must_record(&store, 1).await;
    server.ask(&["del", &format!("{{{PREFIX}}}:index")]);
    assert!(!knows(&store, 1).await);
    must_record(&store, 1).await;
    assert!(knows(&store, 1).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_entry_that_is_asked_for_again_and_again_is_one_line() {
    let log = Log::start();
    let server = Redis::start();
    let store = store(server.addr()).await;
    must_record(&store, 1).await;
    server.ask(&["hset", &entry_key(1), "b", "another body"]);
    for _ in 0..100 {
        assert!(!knows(&store, 1).await);
    }
    assert_eq!(log.lines("damaged").count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_short_values_are_bounded_and_neighbours_are_safe() {
    let server = Redis::start();
    let store = store(server.addr()).await;
    let strangers = ["nt:e:1", "{nt}", "{nt2}:e:1", "other", "{nt}x:index"];
    for stranger in strangers {
        server.ask(&["set", stranger, "theirs"]);
    }
    let long = "name".repeat(16);
    let mut sizes = BTreeMap::new();
    for n in 0..20 {
        let mut candidate = samples::candidate(n);
        candidate.entry.body = Bytes::from(vec![b'b'; 4096]);
        candidate.entry.rule = long[..32].to_owned();
        sizes.insert(entry_key(n), candidate.entry.body.len());
        let fence = store.recall(&samples::fingerprint(n)).await.map(|recalled| recalled.fence);
        stored(store.record(candidate, fence.unwrap_or_else(|error| panic!("{error}"))).await);
        let _lease = look(&store, 1000 + n).await;
    }
    for key in server.ask(&["keys", "*"]).lines() {
        if strangers.contains(&key) {
            continue;
        }
        assert!(key.starts_with("{nt}:") && key.len() <= 128, "{key}");
        if let Some(body) = sizes.get(key) {
            let dump = server.ask(&[
                "eval",
                "local t = 0; for _, v in ipairs(redis.call('HGETALL', KEYS[1])) do t = t + #v end; return t",
                "1",
                key,
            ]);
            assert!(dump.parse::<usize>().is_ok_and(|size| size <= body + 1024), "{key}: {dump}");
        }
    }
    assert_eq!(store.forget(&Selector::default()).await.ok(), Some(20));
    for stranger in strangers {
        assert_eq!(server.ask(&["get", stranger]), "theirs");
    }
    assert_eq!(server.ask(&["keys", "{nt}:e:*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_another_version_are_not_touched() {
    let log = Log::start();
    let server = Redis::start();
    server.ask(&["set", &format!("{{{PREFIX}}}:schema"), "2"]);
    let store = store(server.addr()).await;
    let refused = record(&store, 1).await;
    assert_eq!(kind_of(refused), Some(StoreErrorKind::Io));
    tokio::time::sleep(SECOND).await;
    assert_eq!((log.warnings().len(), log.lines("layout 2").count()), (1, 1), "{:?}", log.warnings());
    assert_eq!(server.ask(&["dbsize"]), "1");
    server.ask(&["flushall"]);
    until("it is joined", Duration::from_secs(10), async || record(&store, 1).await.is_ok()).await;
}

/// An entry of another schema is shown, not served, and replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_schema_is_shown_and_not_served() {
    let server = Redis::start();
    let store = store(server.addr()).await;
    let mut candidate = samples::candidate(1);
    candidate.entry = Entry { schema: REDUCED_SCHEMA + 1, ..candidate.entry };
    let fence = store.recall(&samples::fingerprint(1)).await.map(|recalled| recalled.fence);
    stored(store.record(candidate, fence.unwrap_or_else(|error| panic!("{error}"))).await);
    assert!(!near(&store, 1) && !knows(&store, 1).await);
    assert!(store.show(&samples::fingerprint(1)).await.is_ok_and(|shown| shown.is_some()));
    must_record(&store, 1).await;
    assert!(knows(&store, 1).await);
}
