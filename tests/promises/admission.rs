//! Places at an upstream: none leaks, whichever way a request ends; a known-bad document needs none; a flood of one tenant
//! does not starve another; and who gets no place is told so in the gateway's own words.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nevertwice_testkit::{
    Answer, Client, DOC, Gate, Gateway, Post, Reply, Request, Step, Upstream, r400, random_document,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::bench::{assert_own, settle};

const CLASSIFY: &str = "/doc-classifier/classify";
const OTHER: &str = "/doc-classifier/other";

fn document(seed: u64) -> Vec<u8> {
    random_document(9000 + seed, 4096)
}

fn send(gateway: &Gateway, document: &[u8]) -> JoinHandle<Answer> {
    tokio::spawn(Post::to(gateway.addr, CLASSIFY).bearer("tok-1").body(document.to_vec()).send())
}

async fn in_use(gateway: &Gateway) -> f64 {
    gateway.metric("gateway_pool_in_use", &[("upstream", "doc-classifier")]).await
}

/// What the upstream does with a document that begins like this, after `%PDF-1.7\n`.
fn scripted(body: &[u8], never: &Gate) -> Reply {
    match body.get(9) {
        Some(b'R') => r400(),
        Some(b'X') => Reply::reset(),
        Some(b'H') => Reply::hang_up(),
        Some(b'G') => Reply::raw("220 mail.example ESMTP\r\n\r\n"),
        Some(b'T') => Reply::stall(),
        Some(b'5') => Reply::status(500),
        Some(b'W') => Reply::status(200).wait_for(never),
        Some(b'S') => Reply::status(200).steps(vec![Step::chunk("token "), Step::WaitFor(never.clone())]),
        Some(b'C') => Reply::status(400).steps(vec![Step::chunk("half"), Step::Close]),
        _ => Reply::status(200),
    }
}

fn told(kind: u8, seed: u64) -> Vec<u8> {
    let mut document = document(seed);
    document[9] = kind;
    document
}

#[tokio::test]
async fn to_01_no_place_leaks_whichever_way_requests_end() {
    let upstream = Upstream::start().await;
    let never = Gate::new();
    let gate = never.clone();
    upstream.by(move |seen, _| scripted(&seen.body, &gate));
    let slots = "timeout_ms: 250\nidle_timeout_ms: 250\npool:\n  max_in_flight: 2\n  max_queue: 8\n  queue_timeout_ms: 400";
    // nobody listens on the port of an upstream that was stopped
    let dead = Upstream::start().await;
    let dead_url = dead.url();
    dead.stop().await;
    let second = format!(
        "- name: dead\n  base_url: \"{dead_url}\"\n  sync_paths: [/classify]\n  pool:\n    max_in_flight: 2"
    );
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", slots), ("UPSTREAMS", &second)]).await;
    let addr = gateway.addr;
    // remembered before, for the replays among the mix
    Post::to(addr, CLASSIFY).bearer("tok-1").body(told(b'R', 0)).send().await;

    let requests = Arc::new(AtomicU64::new(1));
    let mut running = JoinSet::new();
    for n in 0..240_u64 {
        if running.len() >= 12 {
            running.join_next().await.unwrap().unwrap();
            let now = in_use(&gateway).await;
            assert!((0.0..=2.0).contains(&now), "{now} places in use");
        }
        let requests = requests.clone();
        running.spawn(async move {
            requests.fetch_add(1, Ordering::SeqCst);
            let path = if n % 2 == 0 { CLASSIFY } else { OTHER };
            let trace = format!("00-{:032x}-{:016x}-01", n + 1, n + 1);
            let post = |body: Vec<u8>| Post::to(addr, path).bearer("tok-1").header("traceparent", &trace).body(body);
            match n % 12 {
                // the client leaves in its upload
                0 | 1 => {
                    let mut client = Client::connect(addr).await;
                    let head = format!(
                        "POST {path} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\ntraceparent: {trace}\r\nContent-Length: 9999\r\n\r\n%PDF"
                    );
                    client.send(head).await.unwrap();
                    client.close().await;
                }
                // before the first byte of the answer, at the upstream or in the queue
                2 | 3 => {
                    let mut client = Client::connect(addr).await;
                    let request = Request::post(path).bearer("tok-1").header("traceparent", &trace).body(told(b'W', n));
                    client.try_send_request(request).await.unwrap();
                    let _ = client.patience(Duration::from_millis(20 * (n % 5))).try_read_head().await;
                }
                // in the stream
                4 => {
                    let mut client = Client::connect(addr).await;
                    let request = Request::post(path).bearer("tok-1").header("traceparent", &trace).body(told(b'S', n));
                    client.try_send_request(request).await.unwrap();
                    let _ = client.try_read_head().await;
                    client.reset();
                }
                5 => drop(post(told(b'X', n)).try_send().await),
                6 => drop(post(told([b'G', b'H'][usize::try_from(n / 12 % 2).unwrap()], n)).try_send().await),
                7 => drop(post(told(b'T', n)).try_send().await),
                8 => drop(Post::to(addr, CLASSIFY).bearer("tok-1").header("traceparent", &trace).body(told(b'R', 0)).try_send().await),
                9 => drop(post(told([b'5', b'C'][usize::try_from(n / 12 % 2).unwrap()], n)).try_send().await),
                10 => {
                    let answer = Post::to(addr, "/dead/classify").bearer("tok-1").header("traceparent", &trace).body(document(n)).send().await;
                    assert_own(&answer, 502, "UPSTREAM_UNREACHABLE", "dead");
                }
                _ => drop(post(told(b'R', n)).try_send().await),
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    gateway.wait_metric("gateway_pool_in_use", &[], 0.0).await;
    gateway.wait_metric("gateway_pool_queued", &[], 0.0).await;
    // both places are there
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let two = [send(&gateway, &document(1001)), send(&gateway, &document(1002))];
    gate.wait_waiting(2).await;
    assert_eq!(in_use(&gateway).await, 2.0);
    gate.open();
    for answer in two {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    let lines = settle(&gateway, usize::try_from(requests.load(Ordering::SeqCst)).unwrap() + 2).await;
    for code in
        ["CLIENT_ABORTED", "UPSTREAM_CLOSED", "UPSTREAM_TIMEOUT", "UPSTREAM_UNREACHABLE", "REFUSED_HTTP_400"]
    {
        assert!(lines.iter().any(|line| line["code"] == code), "no {code} among the ends");
    }
}

#[tokio::test]
async fn to_05_a_flood_of_one_tenant_does_not_starve_another() {
    const FLOOD: u64 = 500;
    const SERVICE_MS: u64 = 100;
    let upstream = Upstream::start().await;
    upstream.always(Reply::status(200).delay(Duration::from_millis(SERVICE_MS)));
    let pool = "pool:\n  max_in_flight: 10\n  max_queue: 20\n  queue_timeout_ms: 5000";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    let addr = gateway.addr;
    let (stop, flood_requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (shed, mut was_shed) = watch::channel(0_u64);
    let mut flood = JoinSet::new();
    for n in 0..FLOOD {
        let (stop, shed, count) = (stop.clone(), shed.clone(), flood_requests.clone());
        flood.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = Post::to(addr, OTHER).bearer("tok-1").body(document(n)).send().await;
                if answer.status == 503 {
                    shed.send_modify(|count| *count += 1);
                    assert_own(&answer, 503, "POOL_FULL", "the flood");
                    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
                    // even an impatient client waits a little
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        });
    }
    // all of them are there: what has neither a place nor a turn has been told so
    was_shed.wait_for(|shed| *shed >= FLOOD - 30).await.unwrap();
    let mut slowest = Duration::ZERO;
    for n in 0..20 {
        // the queue is full again
        let before = *was_shed.borrow();
        was_shed.wait_for(|shed| *shed > before).await.unwrap();
        let began = Instant::now();
        let answer = Post::to(addr, CLASSIFY).bearer("tok-2").body(document(FLOOD + n)).send().await;
        assert_eq!(answer.status, 200, "request {n} of the second tenant: {}", answer.text());
        slowest = slowest.max(began.elapsed());
    }
    // with everything on two cores the bound is generous
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    stop.store(true, Ordering::SeqCst);
    while let Some(ended) = flood.join_next().await {
        ended.unwrap();
    }
    for (tenant, any) in [("dev_1", true), ("dev_2", false)] {
        let own =
            gateway.metric("gateway_tenant_requests_total", &[("tenant", tenant), ("result", "shed")]).await;
        assert_eq!(own > 0.0, any, "{tenant} was shed {own} times");
    }
    let requests = usize::try_from(flood_requests.load(Ordering::SeqCst)).unwrap() + 20;
    let lines = settle(&gateway, requests).await;
    let of_second = lines.iter().filter(|line| line["tenant"] == "dev_2");
    let mut waits: Vec<u64> = of_second.map(|line| line["queue_ms"].as_u64().unwrap()).collect();
    waits.sort_unstable();
    assert_eq!(waits.len(), 20);
    assert!(waits[10] <= 2 * SERVICE_MS, "{waits:?}");
}

#[tokio::test]
async fn to_06_a_known_bad_document_needs_no_place() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let pool = "pool:\n  max_in_flight: 1\n  max_queue: 10\n  queue_timeout_ms: 20000";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    send(&gateway, &DOC).await.unwrap();
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let good: Vec<_> = (0..11).map(|n| send(&gateway, &document(n))).collect();
    gate.wait_waiting(1).await;
    gateway.wait_metric("gateway_pool_queued", &[], 10.0).await;
    let calls = upstream.calls();
    let began = Instant::now();
    let mut known = JoinSet::new();
    for n in 1..=3 {
        for _ in 0..34 {
            known.spawn(Post::to(gateway.addr, CLASSIFY).bearer(&format!("tok-{n}")).body(&DOC[..]).send());
        }
    }
    while let Some(answer) = known.join_next().await {
        let answer = answer.unwrap();
        assert!(answer.is_hit() && answer.status == 400, "{answer:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((in_use(&gateway).await, upstream.calls()), (1.0, calls));
    // a good one is over the queue's end
    let answer = send(&gateway, &document(99)).await.unwrap();
    assert_own(&answer, 503, "POOL_FULL", "one more");
    assert_eq!(answer.header("retry-after").as_deref(), Some("20"));
    gate.open();
    for answer in good {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    // what was shed was never remembered
    assert_eq!(send(&gateway, &document(99)).await.unwrap().status, 200);
    let lines = settle(&gateway, 1 + 11 + 102 + 2).await;
    let shed = lines.iter().find(|line| line["code"] == "POOL_FULL").unwrap();
    assert_eq!(
        (&shed["attempts"], &shed["upstream_ms"], &shed["status"]),
        (&json!(0), &json!(0), &json!(503))
    );
}

#[tokio::test]
async fn to_07_the_queue_has_a_deadline_and_who_leaves_it_is_gone() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let pool = "pool:\n  max_in_flight: 1\n  max_queue: 1\n  queue_timeout_ms: 600";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    let holder = send(&gateway, &document(0));
    gate.wait_waiting(1).await;
    let began = Instant::now();
    let answer = send(&gateway, &document(1)).await.unwrap();
    assert_own(&answer, 503, "QUEUE_TIMEOUT", "the deadline");
    assert_eq!(answer.header("retry-after").as_deref(), Some("1"));
    assert!(began.elapsed() >= Duration::from_millis(600) && began.elapsed() < Duration::from_secs(5));

    // the queue holds one; when that one leaves there is room for the next: at once, also where its body has not been read,
    // unless others may wait for its attempt; then by the queue's deadline
    let small = document(10)[..100].to_vec();
    for (n, (path, body)) in [(OTHER, small), (OTHER, random_document(1, 1 << 20)), (CLASSIFY, document(11))]
        .into_iter()
        .enumerate()
    {
        let mut waits = Client::connect(gateway.addr).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        waits.send([head.as_bytes(), &body[..body.len().min(100_000)]].concat()).await.unwrap();
        if path == CLASSIFY {
            waits.send(&body[body.len().min(100_000)..]).await.unwrap();
        }
        gateway.wait_metric("gateway_pool_queued", &[], 1.0).await;
        let shed = send(&gateway, &document(20 + n as u64)).await.unwrap();
        assert_own(&shed, 503, "POOL_FULL", path);
        waits.close().await;
        let line = gateway.wait_audit(3 + 2 * n).await.pop().unwrap();
        assert_eq!(line["attempts"], json!(0), "{line}");
        if path == OTHER {
            assert_eq!(line["code"], "CLIENT_ABORTED", "{line}");
        }
        gateway.wait_metric("gateway_pool_queued", &[], 0.0).await;
    }
    let last = send(&gateway, &document(30));
    gateway.wait_metric("gateway_pool_queued", &[], 1.0).await;
    gate.open();
    assert_eq!((holder.await.unwrap().status, last.await.unwrap().status), (200, 200));
    assert_eq!(upstream.calls(), 2, "nobody who was shed or left went up");
    let lines = settle(&gateway, 9).await;
    let queued = lines.iter().find(|line| line["code"] == "QUEUE_TIMEOUT").unwrap();
    assert!(queued["queue_ms"].as_u64() >= Some(600) && queued["upstream_ms"] == 0, "{queued}");
}
