//! One memory for all replicas: several gateways on one Redis refuse a document once, whichever of them it comes to, and
//! whatever happens to Redis, no request fails because of it.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "test")]

use std::time::{Duration, Instant};

use nevertwice_testkit::{
    Answer, Chaos, Fault, Gate, Gateway, Post, Redis, Reply, Upstream, r400, random_document,
};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};

use crate::bench::settle;

const CLASSIFY: &str = "/doc-classifier/classify";

/// Scripts of the store: what every one has in front, and its own text.
pub const LOOK: [&str; 2] = [EPOCH, include_str!("../../crates/store/src/redis/scripts/look.lua")];
pub const RELEASE: [&str; 2] = [EPOCH, include_str!("../../crates/store/src/redis/scripts/release.lua")];
const RENEW: [&str; 2] = [EPOCH, include_str!("../../crates/store/src/redis/scripts/renew.lua")];
const EPOCH: &str = include_str!("../../crates/store/src/redis/scripts/epoch.lua");

/// By what a script is called.
pub fn script(redis: &Redis, text: [&str; 2]) -> String {
    redis.ask(&["script", "load", &text.concat()])
}

/// Whether a line of the monitor is a call of this script.
pub fn runs(line: &str, digest: &str) -> bool {
    line.contains(&format!("] \"EVALSHA\" \"{digest}\""))
}

/// A gateway of the fleet.
pub async fn replica(upstream: &Upstream, redis_url: &str, slots: &[(&str, &str)]) -> Gateway {
    let embedded = "embedded:\n    path: \"@DIR@/data\"";
    // the budgets are for machines that do nothing else; what happens when they run out has tests of its own
    let shared = format!("redis:\n    url: \"{redis_url}\"\n    read_ms: 2000\n    write_ms: 2000");
    let yaml = Gateway::simple_yaml(&upstream.url(), slots);
    assert!(yaml.contains(embedded));
    Gateway::start(&yaml.replace(embedded, &shared)).await
}

pub async fn fleet<const N: usize>(
    upstream: &Upstream,
    redis: &Redis,
    slots: &[(&str, &str)],
) -> [Gateway; N] {
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(replica(upstream, &redis.url(), slots).await);
    }
    all.try_into().unwrap()
}

pub fn send(gateway: &Gateway, document: &[u8]) -> JoinHandle<Answer> {
    tokio::spawn(Post::to(gateway.addr, CLASSIFY).bearer("tok-1").body(document.to_vec()).send())
}

pub async fn post(gateway: &Gateway, document: &[u8]) -> Answer {
    send(gateway, document).await.unwrap()
}

/// Waits until so many requests of this gateway have ended in this way of waiting.
async fn waited(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("gateway_negative_cache_waits_total", &[("result", result)]).await
}

/// Asks until it is so.
pub async fn until(limit: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn slow_a_thousand_submissions_over_eight_replicas_are_one_call() {
    const CALLERS: usize = 1000;
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let slots = [("UPSTREAM", "timeout_ms: 60000\nnegative_cache:\n  single_flight_wait_ms: 60000")];
    let replicas: [Gateway; 8] = fleet(&upstream, &redis, &slots).await;
    let document = random_document(1, 2048);
    let sent: Vec<_> = (0..CALLERS).map(|n| send(&replicas[n % 8], &document)).collect();
    gate.wait_waiting(1).await;
    for gateway in &replicas {
        gateway.wait_metric("gateway_body_memory_bytes", &[], (CALLERS / 8 * 2048) as f64).await;
    }
    assert_eq!(upstream.calls(), 1);
    gate.open();
    let mut hits = 0;
    for answer in sent {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.text()), (400, r#"{"error":"unreadable page"}"#.to_owned()));
        hits += usize::from(answer.is_hit());
    }
    assert_eq!((upstream.calls(), hits), (1, CALLERS - 1));
    for gateway in &replicas {
        settle(gateway, CALLERS / 8).await;
    }
}

#[tokio::test]
async fn slow_each_of_five_hundred_documents_goes_up_once() {
    const DOCUMENTS: usize = 500;
    const COPIES: usize = 20;
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    upstream.always(r400());
    let slots = [(
        "UPSTREAM",
        "pool:\n  max_in_flight: 100\n  max_queue: 10000\n  queue_timeout_ms: 60000\n\
                   negative_cache:\n  mass_refusal_guard: {enabled: false}\n  single_flight_wait_ms: 60000",
    )];
    let replicas: [Gateway; 8] = fleet(&upstream, &redis, &slots).await;
    // a fixed shuffle: every document to every replica, far apart and close together
    let mut order: Vec<usize> = (0..DOCUMENTS * COPIES).collect();
    let mut state = 7_u64;
    for n in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(n, usize::try_from(state >> 33).unwrap() % (n + 1));
    }
    let mut running = JoinSet::new();
    let mut counts = [0; 8];
    for (n, at) in order.into_iter().enumerate() {
        let document = random_document((at % DOCUMENTS) as u64, 256);
        counts[n % 8] += 1;
        running.spawn(Post::to(replicas[n % 8].addr, CLASSIFY).bearer("tok-2").body(document).send());
        if running.len() >= 200 {
            assert_eq!(running.join_next().await.unwrap().unwrap().status, 400);
        }
    }
    assert!(running.join_all().await.iter().all(|answer| answer.status == 400));
    for gateway in &replicas {
        // a look-up that came too late would be a call too many, and none that the fleet is to blame for
        assert_eq!(gateway.metric("gateway_negative_cache_store_errors_total", &[]).await, 0.0);
        assert_eq!(waited(gateway, "timed_out").await, 0.0);
    }
    assert_eq!(upstream.calls(), DOCUMENTS as u64);
    for (gateway, count) in replicas.iter().zip(counts) {
        settle(gateway, count).await;
    }
    assert_eq!(replicas[3].metric("gateway_negative_cache_entries", &[]).await, DOCUMENTS as f64);
}

#[tokio::test]
async fn an_outcome_without_a_verdict_releases_all_replicas_at_once() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let [a, b, c] = fleet(&upstream, &redis, &[("UPSTREAM", "pool:\n  max_in_flight: 50")]).await;
    for (n, first) in [Reply::status(200), Reply::status(503), Reply::hang_up()].into_iter().enumerate() {
        let (before, document) = (upstream.calls(), random_document(n as u64, 512));
        let (leader, rest) = (Gate::new(), Gate::new());
        let (first, after) = (first.wait_for(&leader), Reply::status(200).wait_for(&rest));
        upstream.by(move |_, n| if n == 1 { first.clone() } else { after.clone() });
        let mut sent = vec![send(&a, &document)];
        leader.wait_waiting(1).await;
        for gateway in [&a, &b, &c] {
            sent.extend((0..5).map(|_| send(gateway, &document)));
        }
        b.wait_metric("gateway_body_memory_bytes", &[], 5.0 * 512.0).await;
        c.wait_metric("gateway_body_memory_bytes", &[], 5.0 * 512.0).await;
        a.wait_metric("gateway_body_memory_bytes", &[], 6.0 * 512.0).await;
        assert_eq!(upstream.calls(), before + 1, "nobody goes up while the outcome is unknown");
        leader.open();
        // all are there before any of them is answered
        rest.wait_waiting(15).await;
        rest.open();
        for answer in sent {
            answer.await.unwrap();
        }
        assert_eq!(upstream.calls(), before + 16);
    }
    assert!(waited(&b, "released").await >= 3.0);
}

#[tokio::test]
async fn slow_a_leader_that_dies_blocks_nobody_for_longer_than_its_lease() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let [mut a, b] = fleet(&upstream, &redis, &[]).await;
    let (never, document) = (Gate::new(), random_document(1, 512));
    let stuck = Reply::status(200).wait_for(&never);
    upstream.by(move |_, n| if n == 1 { stuck.clone() } else { r400() });
    let lost = tokio::spawn({
        let request = Post::to(a.addr, CLASSIFY).bearer("tok-1").body(document.clone());
        async move { tokio::time::timeout(Duration::from_secs(30), request.try_send()).await }
    });
    never.wait_waiting(1).await;
    let began = Instant::now();
    let waiting = send(&b, &document);
    b.wait_metric("gateway_body_memory_bytes", &[], 512.0).await;
    a.signal("KILL");
    a.wait_exit(Duration::from_secs(10)).await;
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status, answer.is_hit()), (400, false));
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    assert!(post(&b, &document).await.is_hit());
    assert_eq!(upstream.calls(), 2);
    let _ = lost.await;
    settle(&b, 2).await;
}

#[tokio::test]
async fn slow_a_lease_is_prolonged_as_long_as_its_attempt_takes() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let [a, b] = fleet(&upstream, &redis, &[]).await;
    let (gate, document) = (Gate::new(), random_document(1, 512));
    upstream.always(r400().wait_for(&gate));
    let leader = send(&a, &document);
    gate.wait_waiting(1).await;
    let waiting = send(&b, &document);
    // longer than a lease lives by itself, and less than one waits
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(upstream.calls(), 1);
    gate.open();
    assert!(!leader.await.unwrap().is_hit());
    assert!(waiting.await.unwrap().is_hit());
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test]
async fn a_forget_reaches_every_replica_within_a_second() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    upstream.always(r400());
    let [a, b, c] = fleet(&upstream, &redis, &[]).await;
    let documents: Vec<_> = (0..4).map(|n| random_document(n, 256)).collect();
    for document in &documents {
        assert!(!post(&a, document).await.is_hit());
        assert!(post(&b, document).await.is_hit() && post(&c, document).await.is_hit());
    }
    assert_eq!(upstream.calls(), 4);
    // one that is under way: it does not record what was forgotten
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let under_way = random_document(9, 256);
    let attempt = send(&b, &under_way);
    gate.wait_waiting(1).await;
    let (status, said) =
        a.admin_post("/admin/v1/refusals/forget", &json!({"upstream": "doc-classifier"})).await;
    assert_eq!((status, &said["forgotten"]), (200, &json!(4)));
    let forgotten = Instant::now();
    gate.open();
    assert!(!attempt.await.unwrap().is_hit());
    tokio::time::sleep(Duration::from_secs(1).saturating_sub(forgotten.elapsed())).await;
    upstream.always(Reply::status(200).body("fine"));
    let before = upstream.calls();
    for document in documents.iter().chain([&under_way]) {
        for gateway in [&b, &c] {
            assert_eq!(post(gateway, document).await.text(), "fine");
        }
    }
    assert_eq!(upstream.calls(), before + 10);
}

#[tokio::test]
async fn a_success_on_one_replica_beats_the_memory_of_all() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let slots = [("UPSTREAM", "negative_cache:\n  mode: observe")];
    let (watching, [a, b]) =
        (replica(&upstream, &redis.url(), &slots).await, fleet(&upstream, &redis, &[]).await);
    let document = random_document(1, 256);
    upstream.always(r400());
    post(&a, &document).await;
    assert!(post(&b, &document).await.is_hit());
    upstream.always(Reply::status(200).body("fine"));
    assert_eq!(post(&watching, &document).await.text(), "fine");
    for gateway in [&a, &b] {
        until(Duration::from_secs(1), "the entry is gone", async || !post(gateway, &document).await.is_hit())
            .await;
    }
}

#[tokio::test]
async fn a_guarded_miss_is_one_round_trip_and_a_near_hit_none() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    upstream.always(Reply::status(404));
    let [gateway] = fleet(&upstream, &redis, &[]).await;
    let (monitor, look, release) = (redis.monitor(), script(&redis, LOOK), script(&redis, RELEASE));
    let ran = |digest: &str| monitor.lines(&redis).iter().filter(|line| runs(line, digest)).count();
    for n in 1..=50 {
        post(&gateway, &random_document(n, 256)).await;
    }
    assert_eq!(ran(&look), 50, "a look-up for each");
    // off the way, when the lease is given up
    until(Duration::from_secs(10), "all leases are given up", async || ran(&release) == 50).await;
    // what else is asked about entries and leases is that leases are prolonged, by the clock
    let renew = script(&redis, RENEW);
    for line in monitor.lines(&redis).iter().filter(|line| !line.contains(" lua] ")) {
        let of_a_request = line.contains("}:l:") || line.contains("}:e:");
        assert!(!of_a_request || [&look, &release, &renew].iter().any(|digest| runs(line, digest)), "{line}");
    }
    assert_eq!((ran(&look), ran(&release)), (50, 50));

    upstream.always(r400());
    let document = random_document(100, 256);
    post(&gateway, &document).await;
    let (calls, before, began) = (|| redis.calls("evalsha"), redis.calls("evalsha"), Instant::now());
    let (looked, mut hits) = (ran(&look), 0);
    while began.elapsed() < Duration::from_secs(2) {
        assert!(post(&gateway, &document).await.is_hit());
        hits += 1;
    }
    let made = calls() - before;
    // none for them; the replays are told together, now and then
    assert_eq!(ran(&look), looked);
    assert!(hits > 50 && made < 15, "{made} for {hits} hits");
    let (_, shown) = gateway.admin_get("/admin/v1/refusals").await;
    assert_eq!(shown["items"][0]["replays"], hits);
}

#[tokio::test]
async fn without_redis_a_gateway_works_and_joins_when_it_comes() {
    let (upstream, mut redis) = (Upstream::start().await, Redis::start());
    let url = redis.url();
    redis.kill();
    upstream.always(r400());
    let (alone, document) = (replica(&upstream, &url, &[]).await, random_document(1, 256));
    for _ in 0..3 {
        let answer = post(&alone, &document).await;
        assert_eq!((answer.status, answer.is_hit()), (400, false));
    }
    assert_eq!(upstream.calls(), 3);
    let said = alone.log().lines().filter(|line| line.contains("refusal store")).count();
    assert!((1..=4).contains(&said), "{}", alone.log());
    redis.restart();
    until(Duration::from_secs(10), "it joins", async || post(&alone, &document).await.is_hit()).await;
    let other = replica(&upstream, &url, &[]).await;
    assert!(post(&other, &document).await.is_hit());
}

#[tokio::test]
async fn sr_01_a_frozen_redis_costs_no_request_more_than_its_budget() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let budgets = "read_ms: 50\n    write_ms: 50";
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]).replace(
        "embedded:\n    path: \"@DIR@/data\"",
        &format!("redis:\n    url: \"{}\"\n    {budgets}", redis.url()),
    );
    let gateway = Gateway::start(&yaml).await;
    upstream.always(r400());
    let known = random_document(0, 256);
    until(Duration::from_secs(10), "it is remembered", async || post(&gateway, &known).await.is_hit()).await;
    redis.pause();
    // what is at hand is replayed still
    assert!(post(&gateway, &known).await.is_hit());
    upstream.always(Reply::status(200).body("fine"));
    let mut slow = 0;
    for n in 1..=60 {
        let began = Instant::now();
        assert_eq!(post(&gateway, &random_document(n, 256)).await.text(), "fine");
        slow += u32::from(began.elapsed() > Duration::from_millis(50));
    }
    assert!(slow <= 30, "{slow} of 60 waited for a store that does not answer");
    assert!(gateway.metric("gateway_negative_cache_store_errors_total", &[]).await > 0.0);
    upstream.always(r400());
    let late = random_document(100, 256);
    assert!(!post(&gateway, &late).await.is_hit());
    let calls = upstream.calls();
    redis.resume();
    // learned while the store was away, written when it was back
    until(Duration::from_secs(10), "it is remembered late", async || post(&gateway, &late).await.is_hit())
        .await;
    assert!(upstream.calls() <= calls + 60);
    until(Duration::from_secs(10), "it is said to be well", async || {
        gateway.admin_get("/readyz").await == (200, json!({"status": "ready", "store": "ok"}))
    })
    .await;
}

#[tokio::test]
async fn a_record_that_outlasts_its_answer_and_its_client_is_made_all_the_same() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let chaos = Chaos::start(redis.addr()).await;
    let slots = [("UPSTREAM", "negative_cache:\n  judge_wait_ms: 300")];
    let url = format!("redis://{}", chaos.addr());
    let [slow, other] =
        [replica(&upstream, &url, &slots).await, replica(&upstream, &redis.url(), &slots).await];
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let document = random_document(1, 512);
    let sent = send(&slow, &document);
    gate.wait_waiting(1).await;
    // a record is two calls, one after the other
    chaos.set(Fault::Late(Duration::from_millis(400)));
    gate.open();
    let answer = sent.await.unwrap();
    assert_eq!((answer.status, answer.is_hit()), (400, false));
    let not_in_time = [("reason", "store")];
    assert_eq!(slow.metric("gateway_negative_cache_not_recorded_total", &not_in_time).await, 1.0);
    other.wait_metric("gateway_negative_cache_entries", &[], 1.0).await;
    chaos.set(Fault::None);
    assert!(post(&other, &document).await.is_hit() && post(&slow, &document).await.is_hit());
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test]
async fn a_success_is_answered_before_its_lease_is_given_up() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let chaos = Chaos::start(redis.addr()).await;
    let gateway = replica(&upstream, &format!("redis://{}", chaos.addr()), &[]).await;
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let sent = send(&gateway, &random_document(1, 512));
    gate.wait_waiting(1).await;
    let leases = || redis.ask(&["keys", "{nevertwice}:l:*"]);
    assert!(!leases().is_empty());
    chaos.set(Fault::Silence);
    gate.open();
    assert_eq!(sent.await.unwrap().status, 200);
    // nobody has heard of the acceptance, and nobody has given up waiting for that either
    assert!(!leases().is_empty());
    assert_eq!(gateway.metric("gateway_negative_cache_store_errors_total", &[]).await, 0.0);
    chaos.set(Fault::None);
    until(Duration::from_secs(10), "the lease goes", async || leases().is_empty()).await;
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_while_its_refusal_is_recorded_takes_no_other_s_away() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let chaos = Chaos::start(redis.addr()).await;
    let gateway = replica(&upstream, &format!("redis://{}", chaos.addr()), &[]).await;
    let (first, last) = (Gate::new(), Gate::new());
    let replies = [Reply::status(503).wait_for(&first), r400(), r400().wait_for(&last)];
    upstream.by(move |_, n| replies[usize::try_from(n - 1).unwrap().min(2)].clone());
    let document = random_document(1, 512);
    let leader = send(&gateway, &document);
    first.wait_waiting(1).await;
    let mut released: Vec<_> = (0..3).map(|_| send(&gateway, &document)).collect();
    gateway.wait_metric("gateway_body_memory_bytes", &[], 4.0 * 512.0).await;
    first.open();
    assert_eq!(leader.await.unwrap().status, 503);
    // one of the three is refused, recorded and told so, while the others are under way
    until(Duration::from_secs(10), "one has its answer", async || {
        released.iter().any(JoinHandle::is_finished)
    })
    .await;
    last.wait_waiting(2).await;
    let seen = released.iter().position(JoinHandle::is_finished).unwrap();
    assert_eq!(released.remove(seen).await.unwrap().status, 400);
    assert!(post(&gateway, &document).await.is_hit());
    // and the others' clients leave while their records are on their way; one of them leads nobody, and ends with its client
    chaos.set(Fault::Late(Duration::from_millis(400)));
    last.open();
    tokio::time::sleep(Duration::from_millis(200)).await;
    released.iter().for_each(JoinHandle::abort);
    gateway.wait_metric("gateway_pool_in_use", &[], 0.0).await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    chaos.set(Fault::None);
    assert!(post(&gateway, &document).await.is_hit());
    assert_eq!(upstream.calls(), 4);
}

#[tokio::test]
async fn one_whose_time_is_up_releases_nobody_else() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let slots = [("UPSTREAM", "negative_cache:\n  single_flight_wait_ms: 2000")];
    let [a, b] = fleet(&upstream, &redis, &slots).await;
    let (slow, quick) = (Gate::new(), Gate::new());
    let (first, after) = (r400().wait_for(&slow), r400().wait_for(&quick));
    upstream.by(move |_, n| if n == 1 { first.clone() } else { after.clone() });
    let document = random_document(1, 512);
    let leader = send(&a, &document);
    slow.wait_waiting(1).await;
    let early = send(&b, &document);
    b.wait_metric("gateway_body_memory_bytes", &[], 512.0).await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    let late: Vec<_> = (0..5).map(|_| send(&b, &document)).collect();
    // the time of the early one is up, and of no other
    quick.wait_waiting(1).await;
    b.wait_metric("gateway_negative_cache_waits_total", &[("result", "timed_out")], 1.0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(upstream.calls(), 2);
    quick.open();
    assert!(!early.await.unwrap().is_hit());
    for answer in late {
        assert!(answer.await.unwrap().is_hit());
    }
    slow.open();
    leader.await.unwrap();
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test]
async fn a_refusal_is_not_remembered_when_another_replica_has_seen_the_document_accepted_since() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let a = replica(&upstream, &redis.url(), &[("UPSTREAM", "negative_cache:\n  single_flight_wait_ms: 0")])
        .await;
    let b = replica(&upstream, &redis.url(), &[]).await;
    let slow = Gate::new();
    let first = r400().wait_for(&slow);
    upstream.by(move |_, n| match n {
        1 => first.clone(),
        2 => Reply::status(200).body("fine"),
        _ => r400(),
    });
    let document = random_document(1, 512);
    let early = send(&b, &document);
    slow.wait_waiting(1).await;
    assert_eq!(post(&a, &document).await.text(), "fine");
    until(Duration::from_secs(5), "b hears of it", async || {
        let (_, upstreams) = b.admin_get("/admin/v1/upstreams").await;
        upstreams["items"][0]["guard"]["judged"] == 1
    })
    .await;
    slow.open();
    assert!(!early.await.unwrap().is_hit());
    // what was sent after that is a verdict as any other
    assert!(!post(&a, &document).await.is_hit());
    assert_eq!(upstream.calls(), 3);
    assert!(post(&b, &document).await.is_hit());
    assert_eq!(upstream.calls(), 3);
}
