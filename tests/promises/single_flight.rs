//! At most one attempt in flight per document: a stampede of one bad document costs one call, whoever leaves and however
//! the attempt ends; a good document never waits for longer than the first answer; and a verdict that any caller has
//! seen is durable.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "test")]

use std::time::{Duration, Instant};

use nevertwice_testkit::{
    Answer, Client, Failure, Gate, Gateway, Post, Reply, Request, Step, Upstream, r400, random_document,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::bench::settle;

const CLASSIFY: &str = "/doc-classifier/classify";
const REFUSAL: &str = r#"{"error":"unreadable page"}"#;
/// Short enough to arrive in one piece with its head: a body is in the gauge when room is made for it, so of one that comes
/// in pieces the gauge does not tell that all of it is there.
const LENGTH: usize = 2048;
static DOC: &[u8] = nevertwice_testkit::DOC.split_at(LENGTH).0;

fn document(seed: u64) -> Vec<u8> {
    random_document(1000 + seed, LENGTH)
}

fn send(gateway: &Gateway, document: &[u8]) -> JoinHandle<Answer> {
    tokio::spawn(Post::to(gateway.addr, CLASSIFY).bearer("tok-1").body(document.to_vec()).send())
}

async fn post(gateway: &Gateway, document: &[u8]) -> Answer {
    send(gateway, document).await.unwrap()
}

async fn all(sent: Vec<JoinHandle<Answer>>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for answer in sent {
        answers.push(answer.await.unwrap());
    }
    answers
}

/// A request whose client can leave.
async fn leaver(gateway: &Gateway, document: &[u8]) -> Client {
    let mut client = Client::connect(gateway.addr).await;
    let request = Request::post(CLASSIFY).bearer("tok-1").body(document.to_vec());
    client.try_send_request(request).await.unwrap();
    client
}

/// Waits until the bodies of so many requests have been read: then each of them is an attempt or waits for one.
async fn read_in(gateway: &Gateway, requests: usize) {
    gateway.wait_metric("gateway_body_memory_bytes", &[], (requests * LENGTH) as f64).await;
}

async fn waits(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("gateway_negative_cache_waits_total", &[("result", result)]).await
}

async fn memory(upstream: &Upstream, lines: &str) -> Gateway {
    let block: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    Gateway::with(&upstream.url(), &[("UPSTREAM", &format!("negative_cache:\n{block}"))]).await
}

fn is_refusal(answer: &Answer) -> bool {
    answer.status == 400
        && answer.body == REFUSAL
        && answer.complete
        && answer.headers_named("content-type") == [b"application/json"]
}

#[tokio::test]
async fn cc_01_a_thousand_submissions_of_one_bad_document_are_one_call() {
    const CALLERS: usize = 1000;
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    // one place and no queue: whoever but the leader asked for a place would be shed
    let pool = "pool:\n  max_in_flight: 1\n  max_queue: 0\ntimeout_ms: 60000\n\
                negative_cache:\n  single_flight_wait_ms: 60000";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    let sent = (0..CALLERS).map(|n| {
        let post = Post::to(gateway.addr, CLASSIFY)
            .bearer(&format!("tok-{}", n % 3 + 1))
            .header("traceparent", format!("00-{:032x}-{:016x}-01", n + 1, n + 1))
            .header("X-Request-Id", format!("request-{n}"))
            .body(DOC);
        tokio::spawn(post.send())
    });
    let sent: Vec<_> = sent.collect();
    gate.wait_waiting(1).await;
    read_in(&gateway, CALLERS).await;
    assert_eq!(gateway.metric("gateway_pool_in_use", &[]).await, 1.0);
    assert_eq!(gateway.metric("gateway_pool_queued", &[]).await, 0.0);
    gate.open();
    let answers = all(sent).await;
    for answer in &answers {
        assert!(is_refusal(answer), "{answer:?}");
    }
    assert_eq!(upstream.calls(), 1);
    assert_eq!(
        answers.iter().filter(|a| a.is_hit()).count(),
        CALLERS - 1,
        "all but the leader's are replays"
    );
    assert!(waits(&gateway, "verdict").await > 0.9 * CALLERS as f64);
    let hits = [("upstream", "doc-classifier"), ("status", "400")];
    assert_eq!(gateway.metric("gateway_negative_cache_refusals_total", &hits).await, (CALLERS - 1) as f64);
    let lines = settle(&gateway, CALLERS).await;
    let of = |code: &str| lines.iter().filter(|line| line["code"] == code).count();
    assert_eq!((of("HTTP_400"), of("REFUSED_HTTP_400")), (1, CALLERS - 1));
    let mut traces: Vec<_> = lines.iter().map(|line| line["trace_id"].to_string()).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), CALLERS, "each request has its own trace");
    assert!(lines.iter().all(|line| line["fingerprint"] == lines[0]["fingerprint"]));
    assert!(lines.iter().filter(|line| line["cache_hit"] == true).all(|line| line["upstream_ms"] == 0));
}

#[tokio::test]
async fn cc_01_a_hundred_good_documents_wait_once_and_go_up_together() {
    const CALLERS: usize = 100;
    let upstream = Upstream::start().await;
    let (first, rest) = (Gate::new(), Gate::new());
    let gates = (first.clone(), rest.clone());
    upstream.by(move |_, n| {
        let gate = if n == 1 { &gates.0 } else { &gates.1 };
        Reply::status(200).body(format!("answer {n}")).wait_for(gate)
    });
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", "pool:\n  max_in_flight: 200")]).await;
    let sent: Vec<_> = (0..CALLERS).map(|_| send(&gateway, DOC)).collect();
    first.wait_waiting(1).await;
    read_in(&gateway, CALLERS).await;
    assert_eq!(upstream.calls(), 1);
    first.open();
    // all of them are there before any of them is answered: nobody waits for a second one
    rest.wait_waiting(CALLERS - 1).await;
    rest.open();
    let answers = all(sent).await;
    let mut bodies: Vec<_> = answers.iter().map(Answer::text).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), CALLERS, "a success is never shared");
    assert!(answers.iter().all(|a| a.status == 200 && !a.is_hit()));
    assert_eq!(upstream.calls(), CALLERS as u64);

    // what was accepted lately is not made to wait at all
    let again = Gate::new();
    upstream.always(Reply::status(200).wait_for(&again));
    let sent: Vec<_> = (0..10).map(|_| send(&gateway, DOC)).collect();
    again.wait_waiting(10).await;
    again.open();
    all(sent).await;
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 0.0);

    // and different documents never wait for each other
    let third = Gate::new();
    upstream.always(r400().wait_for(&third));
    let sent: Vec<_> = (0..10).map(|n| send(&gateway, &document(n))).collect();
    third.wait_waiting(10).await;
    third.open();
    assert!(all(sent).await.iter().all(|a| is_refusal(a) && !a.is_hit()));
    settle(&gateway, CALLERS + 20).await;
}

#[tokio::test]
async fn cc_01_an_attempt_that_ends_without_a_verdict_releases_all_waiters_at_once() {
    const WAITERS: usize = 4;
    let upstream = Upstream::start().await;
    let slots = "timeout_ms: 2000\npool:\n  max_in_flight: 8";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", slots)]).await;
    let gate = Gate::new();
    let cases: Vec<(&str, Reply, u16)> = vec![
        ("500", Reply::status(500).body("boom"), 500),
        ("503", Reply::status(503).header("Retry-After", "1"), 503),
        ("429", Reply::status(429).body("slow down"), 429),
        ("401", Reply::status(401), 401),
        ("404", Reply::status(404).body("no such model"), 404),
        ("408", Reply::status(408), 408),
        ("418", Reply::status(418), 418),
        ("redirect", Reply::status(307).header("Location", "/elsewhere"), 307),
        ("later", r400().header("Retry-After", "5"), 400),
        ("should retry", r400().header("x-should-retry", "true"), 400),
        ("no store", r400().header("Cache-Control", "no-store"), 400),
        ("too long", Reply::status(400).body(vec![b'x'; (64 << 10) + 1]), 400),
        ("too long in chunks", Reply::status(400).chunked(vec![vec![b'x'; 40 << 10]; 2]), 400),
        ("without an end", Reply::status(400).steps(vec![Step::write("until the close")]), 400),
        ("cut", Reply::status(400).steps(vec![Step::chunk("{\"err"), Step::Close]), 502),
        ("reset in the body", Reply::status(422).steps(vec![Step::chunk("{\"err"), Step::Reset]), 502),
        ("hang up", Reply::hang_up(), 502),
        ("reset", Reply::reset(), 502),
        ("garbage", Reply::raw("SSH-2.0-OpenSSH_9.6\r\n\r\n"), 502),
        ("success", Reply::status(200).body("fine"), 200),
        ("empty success", Reply::status(204), 204),
        ("silence", Reply::stall(), 504),
    ];
    let count = cases.len();
    for (n, (name, reply, status)) in cases.into_iter().enumerate() {
        let before = upstream.calls();
        let (first, rest) = (if name == "silence" { gate.clone() } else { Gate::new() }, Gate::new());
        let (reply, after) = (reply.wait_for(&first), Reply::status(200).wait_for(&rest));
        if name == "silence" {
            first.open();
        }
        upstream.by(move |_, n| if n == 1 { reply.clone() } else { after.clone() });
        let document = document(n as u64);
        let leader = send(&gateway, &document);
        upstream.wait_calls(before + 1).await;
        let waiting: Vec<_> = (0..WAITERS).map(|_| send(&gateway, &document)).collect();
        read_in(&gateway, 1 + WAITERS).await;
        assert_eq!(upstream.calls(), before + 1, "{name}: nobody else goes up while the outcome is unknown");
        first.open();
        rest.wait_waiting(WAITERS).await;
        let answer = leader.await.unwrap();
        assert_eq!(answer.status, status, "{name}: {answer:?}");
        assert_eq!(answer.header("x-gateway-error").is_some(), matches!(status, 502 | 504), "{name}");
        rest.open();
        let answers = all(waiting).await;
        assert!(answers.iter().all(|a| a.status == 200 && !a.is_hit()), "{name}: {answers:?}");
        assert_eq!(upstream.calls(), before + 1 + WAITERS as u64, "{name}: no retry");
        gateway.wait_metric("gateway_body_memory_bytes", &[], 0.0).await;
    }
    assert_eq!(waits(&gateway, "released").await, (count * WAITERS) as f64);
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 0.0);
    settle(&gateway, count * (1 + WAITERS)).await;
}

#[tokio::test]
async fn cc_01_the_leader_s_client_may_leave_and_the_verdict_is_everybody_s() {
    let upstream = Upstream::start().await;
    let pool = "pool:\n  max_in_flight: 1\n  max_queue: 0";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    for (n, reset) in [false, true].into_iter().enumerate() {
        let gate = Gate::new();
        upstream.always(r400().wait_for(&gate));
        let (before, document) = (upstream.calls(), document(n as u64));
        let leader = leaver(&gateway, &document).await;
        gate.wait_waiting(1).await;
        let waiting: Vec<_> = (0..5).map(|_| send(&gateway, &document)).collect();
        read_in(&gateway, 6).await;
        if reset {
            leader.reset();
        } else {
            leader.close().await;
        }
        gateway.wait_metric("gateway_connections", &[], 5.0).await;
        assert_eq!(gateway.metric("gateway_pool_in_use", &[]).await, 1.0, "the attempt goes on");
        gate.open();
        let answers = all(waiting).await;
        assert!(answers.iter().all(|a| is_refusal(a) && a.is_hit()), "{answers:?}");
        assert_eq!(upstream.calls(), before + 1);
    }
    // with nobody waiting the verdict is recorded all the same
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let (calls, entries) = (upstream.calls(), 2.0);
    let leader = leaver(&gateway, &document(7)).await;
    gate.wait_waiting(1).await;
    leader.close().await;
    gateway.wait_metric("gateway_connections", &[], 0.0).await;
    gate.open();
    gateway.wait_metric("gateway_negative_cache_entries", &[], entries + 1.0).await;
    assert!(post(&gateway, &document(7)).await.is_hit());
    assert_eq!(upstream.calls(), calls + 1);

    // a leader that left and was accepted: the others go up themselves
    let (first, rest) = (Gate::new(), Gate::new());
    let gates = (first.clone(), rest.clone());
    upstream
        .by(move |_, n| Reply::status(200).body("fine").wait_for(if n == 1 { &gates.0 } else { &gates.1 }));
    let leader = leaver(&gateway, &document(8)).await;
    first.wait_waiting(1).await;
    let waiting = send(&gateway, &document(8));
    read_in(&gateway, 2).await;
    leader.close().await;
    gateway.wait_metric("gateway_connections", &[], 1.0).await;
    first.open();
    rest.wait_waiting(1).await;
    rest.open();
    assert_eq!(waiting.await.unwrap().status, 200);

    let lines = settle(&gateway, 2 * 6 + 2 + 2).await;
    let left: Vec<_> = lines.iter().filter(|line| line["end"] == "client_closed").collect();
    assert_eq!(left.len(), 4, "{lines:#?}");
    assert!(left.iter().all(|line| line["upstream_ms"].as_u64() > Some(0) && line["attempts"] == 1));
}

#[tokio::test]
async fn cc_01_a_waiter_that_leaves_never_held_a_place() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", "pool:\n  max_in_flight: 1")]).await;
    let leader = send(&gateway, DOC);
    gate.wait_waiting(1).await;
    let stays = send(&gateway, DOC);
    let (closes, resets) = (leaver(&gateway, DOC).await, leaver(&gateway, DOC).await);
    read_in(&gateway, 4).await;
    closes.close().await;
    resets.reset();
    read_in(&gateway, 2).await;
    let lines = gateway.wait_audit(2).await;
    for line in &lines {
        assert_eq!((&line["code"], &line["status"]), (&json!("CLIENT_ABORTED"), &json!(499)), "{line}");
        assert_eq!((&line["attempts"], &line["queue_ms"]), (&json!(0), &json!(0)), "{line}");
    }
    assert_eq!(gateway.metric("gateway_pool_queued", &[]).await, 0.0);
    assert_eq!(gateway.metric("gateway_pool_in_use", &[]).await, 1.0);
    gate.open();
    assert!(is_refusal(&leader.await.unwrap()));
    let stays = stays.await.unwrap();
    assert!(is_refusal(&stays) && stays.is_hit());
    assert_eq!(upstream.calls(), 1);
    settle(&gateway, 4).await;
}

#[tokio::test]
async fn cc_01_without_waiting_all_go_up_and_success_beats_memory() {
    let upstream = Upstream::start().await;
    let gateway = memory(&upstream, "single_flight_wait_ms: 0").await;
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let sent: Vec<_> = (0..5).map(|_| send(&gateway, DOC)).collect();
    gate.wait_waiting(5).await;
    gate.open();
    assert!(all(sent).await.iter().all(|a| is_refusal(a) && !a.is_hit()));
    assert_eq!(upstream.calls(), 5);
    assert!(post(&gateway, DOC).await.is_hit());
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 1.0);

    // two attempts at one document: the second is refused and remembered, then the first is accepted. Each round has a
    // new document; in the first one the acceptance is the first that the upstream ever made.
    for round in 0..3 {
        let document = document(10 + round);
        let (one, two) = (Gate::new(), Gate::new());
        let gates = (one.clone(), two.clone());
        upstream.by(move |_, n| match n {
            1 => Reply::status(200).wait_for(&gates.0),
            2 => r400().wait_for(&gates.1),
            _ => Reply::status(200).body("live"),
        });
        let first = send(&gateway, &document);
        one.wait_waiting(1).await;
        let second = send(&gateway, &document);
        two.wait_waiting(1).await;
        two.open();
        assert!(is_refusal(&second.await.unwrap()));
        assert!(post(&gateway, &document).await.is_hit());
        one.open();
        assert_eq!(first.await.unwrap().status, 200);
        let next = post(&gateway, &document).await;
        assert_eq!((next.text().as_str(), next.is_hit()), ("live", false), "round {round}: {next:?}");
        assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 1.0);
    }

    // the other way round: an attempt that began before an acceptance does not record after it
    let document = document(20);
    let (one, two) = (Gate::new(), Gate::new());
    let gates = (one.clone(), two.clone());
    upstream.by(move |_, n| match n {
        1 => r400().wait_for(&gates.0),
        2 => Reply::status(200).wait_for(&gates.1),
        _ => Reply::status(200).body("live"),
    });
    let first = send(&gateway, &document);
    one.wait_waiting(1).await;
    let second = send(&gateway, &document);
    two.wait_waiting(1).await;
    two.open();
    assert_eq!(second.await.unwrap().status, 200);
    one.open();
    let refused = first.await.unwrap();
    assert!(is_refusal(&refused) && !refused.is_hit());
    assert_eq!(post(&gateway, &document).await.text(), "live");
    assert_eq!(
        gateway.metric("gateway_negative_cache_not_recorded_total", &[("reason", "fenced")]).await,
        1.0
    );
    settle(&gateway, 5 + 1 + 3 * 4 + 3).await;
}

#[tokio::test]
async fn cc_01_a_short_wait_ends_and_the_waiter_goes_up_itself() {
    let upstream = Upstream::start().await;
    let gateway = memory(&upstream, "single_flight_wait_ms: 200").await;
    let (one, two) = (Gate::new(), Gate::new());
    let gates = (one.clone(), two.clone());
    upstream.by(move |_, n| r400().wait_for(if n == 1 { &gates.0 } else { &gates.1 }));
    let began = Instant::now();
    let leader = send(&gateway, DOC);
    one.wait_waiting(1).await;
    let waiting: Vec<_> = (0..3).map(|_| send(&gateway, DOC)).collect();
    two.wait_waiting(3).await;
    assert!(began.elapsed() >= Duration::from_millis(200), "they did wait");
    assert_eq!(waits(&gateway, "timed_out").await, 3.0);
    two.open();
    assert!(all(waiting).await.iter().all(|a| is_refusal(a) && !a.is_hit()));
    // one of them has recorded the verdict: from now on the memory answers, although the leader is still out
    assert!(post(&gateway, DOC).await.is_hit());
    one.open();
    assert!(is_refusal(&leader.await.unwrap()));
    assert_eq!(upstream.calls(), 4);
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 1.0);
    settle(&gateway, 5).await;
}

#[tokio::test]
async fn cc_02_a_forget_fences_the_attempt_that_is_in_flight() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    post(&gateway, DOC).await;
    let known = gateway.wait_audit(1).await.remove(0);
    let (fingerprint, sha256) = (known["fingerprint"].clone(), known["document_sha256"].clone());
    let everything = json!({"all": true});
    let forget = "/admin/v1/refusals/forget";
    assert_eq!(gateway.admin_post(forget, &everything).await, (200, json!({"forgotten": 1})));

    let selectors = [
        (everything.clone(), true),
        (json!({"upstream": "doc-classifier"}), true),
        (json!({"status": 400}), true),
        (json!({"document": sha256}), true),
        (json!({"fingerprint": fingerprint}), true),
        (json!({"upstream": "doc-classifier", "status": 400, "document": sha256}), true),
        (Value::Null, true),
        // these do not speak of it
        (json!({"status": 413}), false),
        (json!({"document": "0".repeat(64)}), false),
        (json!({"before": "2020-01-01T00:00:00Z"}), false),
        (json!({"upstream": "doc-classifier", "status": 422}), false),
    ];
    let (mut requests, mut fenced) = (1, 0.0);
    for (selector, fences) in &selectors {
        let gate = Gate::new();
        upstream.always(r400().wait_for(&gate));
        let calls = upstream.calls();
        let attempt = send(&gateway, DOC);
        gate.wait_waiting(1).await;
        let waiter = send(&gateway, DOC);
        read_in(&gateway, 2).await;
        if selector.is_null() {
            let path = format!("/admin/v1/refusals/{}", fingerprint.as_str().unwrap());
            assert_eq!(gateway.admin_delete(&path).await.0, 404, "there is nothing to forget yet");
        } else {
            let answer = gateway.admin_post(forget, selector).await;
            assert_eq!(answer, (200, json!({"forgotten": 0})), "{selector}");
        }
        gate.open();
        let answer = attempt.await.unwrap();
        assert!(is_refusal(&answer) && !answer.is_hit(), "{selector}: {answer:?}");
        let waiter = waiter.await.unwrap();
        // the waiter asked before the forget; its own attempt begins after it, and that one is recorded
        assert_eq!(waiter.is_hit(), !fences, "{selector}: {waiter:?}");
        fenced += f64::from(u8::from(*fences));
        let not_recorded = [("reason", "fenced")];
        assert_eq!(
            gateway.metric("gateway_negative_cache_not_recorded_total", &not_recorded).await,
            fenced,
            "{selector}"
        );
        assert!(post(&gateway, DOC).await.is_hit(), "{selector}");
        assert_eq!(upstream.calls(), calls + 1 + u64::from(*fences), "{selector}");
        assert_eq!(gateway.admin_post(forget, &everything).await, (200, json!({"forgotten": 1})));
        requests += 3;
    }
    // a forget that returned is never followed by a hit
    assert!(!post(&gateway, DOC).await.is_hit());
    settle(&gateway, requests + 1).await;
}

#[tokio::test]
async fn cc_03_a_verdict_that_a_caller_has_seen_survives_kill_9() {
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::simple(&upstream.url()).await;
    for round in 0..3 {
        let gate = Gate::new();
        upstream.always(r400().wait_for(&gate));
        let (told, mut answers) = tokio::sync::mpsc::channel::<(u64, Result<Answer, Failure>)>(64);
        for n in 0..12 {
            let post = Post::to(gateway.addr, CLASSIFY).bearer("tok-1").body(document(round * 100 + n));
            let told = told.clone();
            tokio::spawn(async move { told.send((n, post.try_send().await)).await });
        }
        drop(told);
        gate.wait_waiting(12).await;
        gate.open();
        let mut seen = Vec::new();
        while let Some((n, answer)) = answers.recv().await {
            if answer.is_ok_and(|a| is_refusal(&a)) {
                seen.push(n);
            }
            // the very moment the first callers know, it dies
            if seen.len() == 1 + usize::try_from(round).unwrap() && gateway.is_running() {
                gateway.signal("KILL");
            }
        }
        gateway.wait_exit(Duration::from_secs(10)).await;
        std::fs::remove_file(gateway.dir().join("audit.jsonl")).unwrap();
        gateway.restart().await;
        let calls = upstream.calls();
        for n in &seen {
            let answer = post(&gateway, &document(round * 100 + n)).await;
            assert!(is_refusal(&answer) && answer.is_hit(), "round {round}, document {n}: {answer:?}");
        }
        assert_eq!(upstream.calls(), calls, "round {round}: {} callers had seen their verdict", seen.len());
        settle(&gateway, seen.len()).await;
    }
}

#[tokio::test]
async fn cc_04_when_an_entry_expires_one_probe_goes_up_and_the_rest_wait() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::with(&upstream.url(), &[("MEMORY", "ttl_s: 1")]).await;
    post(&gateway, DOC).await;
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let mut requests = 1;
    // replays, until one request is held at the upstream: the probe
    let probe = loop {
        let mut request = send(&gateway, DOC);
        requests += 1;
        tokio::select! {
            answer = &mut request => assert!(answer.unwrap().is_hit()),
            () = gate.wait_waiting(1) => break request,
        }
    };
    let rest: Vec<_> = (0..20).map(|_| send(&gateway, DOC)).collect();
    read_in(&gateway, 21).await;
    assert_eq!((gate.waiting(), upstream.calls()), (1, 2));
    gate.open();
    let probe = probe.await.unwrap();
    assert!(is_refusal(&probe) && !probe.is_hit());
    let rest = all(rest).await;
    assert!(rest.iter().all(|a| is_refusal(a) && a.is_hit()), "{rest:?}");
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, requests + 20).await;
}

#[tokio::test]
async fn cc_05_a_burst_evicts_the_oldest_and_never_exceeds_the_bound() {
    let upstream = Upstream::start().await;
    let block = "negative_cache:\n  mass_refusal_guard: {enabled: false}";
    let slots = [("MEMORY", "max_entries: 100"), ("UPSTREAM", block)];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    // a hundred at once, then ten more
    let first: Vec<_> = (0..64).map(|n| send(&gateway, &document(n))).collect();
    gate.wait_waiting(64).await;
    let more: Vec<_> = (64..100).map(|n| send(&gateway, &document(n))).collect();
    gate.open();
    all(first).await;
    all(more).await;
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 100.0);
    for n in 100..110 {
        post(&gateway, &document(n)).await;
        assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 100.0);
    }
    assert_eq!(gateway.metric("gateway_negative_cache_evictions_total", &[]).await, 10.0);
    let listed = gateway.admin_get("/admin/v1/refusals?limit=1000").await.1;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(100));
    // an acceptance records nothing, so asking changes nothing
    upstream.always(Reply::status(200));
    let mut hits = Vec::new();
    for n in 0..110 {
        hits.push(post(&gateway, &document(n)).await.is_hit());
    }
    assert_eq!(hits.iter().filter(|hit| **hit).count(), 100);
    assert!(hits[100..].iter().all(|hit| *hit), "the ten latest: {hits:?}");

    // one after another: exactly the oldest go
    gateway.admin_post("/admin/v1/refusals/forget", &json!({"all": true})).await;
    upstream.always(r400());
    for n in 200..307 {
        post(&gateway, &document(n)).await;
    }
    upstream.always(Reply::status(200));
    for n in 200..307 {
        assert_eq!(post(&gateway, &document(n)).await.is_hit(), n >= 207, "document {n}");
    }
    settle(&gateway, 110 + 110 + 107 + 107).await;
}
