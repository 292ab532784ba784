//! Clients that take their time: a head, a body, a pause between requests and the reading of an answer all have their
//! limits, each with its own word, and none of them holds a place at an upstream.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test")]

use std::time::{Duration, Instant};

use nevertwice_testkit::{Client, Failure, Gateway, Reply, Request, Step, Upstream};

use crate::bench::{assert_own, settle};

const GUARDED: &str = "/doc-classifier/classify";
const PASSING: &str = "/doc-classifier/other";
/// All limits of these tests are well below a second; a loaded machine may take its time.
const SOON: Duration = Duration::from_secs(8);

async fn gateway(upstream: &Upstream, http: &str, more: &str) -> Gateway {
    let block: String = http.lines().map(|line| format!("  {line}\n")).collect();
    Gateway::with(&upstream.url(), &[("TOP", &format!("http:\n{block}")), ("UPSTREAM", more)]).await
}

fn head(path: &str, lines: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\n{lines}\r\n")
}

/// Sends a byte each 40 ms until the peer has had enough, and returns what it says.
async fn drip(client: &mut Client, byte: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
    let began = Instant::now();
    while began.elapsed() < SOON {
        let sent = client.send(byte).await;
        tokio::select! {
            read = client.read_raw() => return Ok(read?.map(|arrived| arrived.bytes.to_vec())),
            () = tokio::time::sleep(Duration::from_millis(40)) => sent?,
        }
    }
    panic!("still taken after {SOON:?}");
}

#[tokio::test]
async fn sc_01_a_head_that_does_not_end_has_a_limit() {
    let upstream = Upstream::start().await;
    let gateway = gateway(&upstream, "header_timeout_ms: 300", "").await;
    let whole = head(GUARDED, "Content-Length: 4\r\n");
    // silent from the start, in the request line, in the name, before the empty line
    for sent in [0, 3, 30, 60, whole.len() - 2] {
        let began = Instant::now();
        let mut client = Client::connect(gateway.addr).await;
        client.send(&whole[..sent]).await.unwrap();
        match client.try_read_answer().await {
            Err(Failure::Closed | Failure::Reset) => {}
            Ok(answer) if answer.status == 408 => {}
            other => panic!("after {sent} bytes: {other:?}"),
        }
        assert!(
            began.elapsed() >= Duration::from_millis(250) && began.elapsed() < SOON,
            "{:?}",
            began.elapsed()
        );
    }
    // a byte now and then does not help: the limit is for the whole of it
    let mut client = Client::connect(gateway.addr).await;
    client.send("POST / HTTP/1.1\r\nHost: gw\r\nX-A: ").await.unwrap();
    let said = drip(&mut client, b"a").await;
    assert!(!matches!(&said, Ok(Some(bytes)) if !bytes.starts_with(b"HTTP/1.1 408")), "{said:?}");
    // the second head on a connection the same
    let mut client = Client::connect(gateway.addr).await;
    assert_eq!(client.request(Request::get(PASSING).bearer("tok-1")).await.status, 200);
    client.send("GET / HT").await.unwrap();
    assert!(matches!(client.try_read_answer().await, Err(Failure::Closed | Failure::Reset)));
    gateway.wait_metric("gateway_connections", &[], 0.0).await;
    assert_eq!(upstream.calls(), 1);
    settle(&gateway, 1).await;
}

#[tokio::test]
async fn sc_02_a_body_that_stops_or_trickles_has_a_limit() {
    let upstream = Upstream::start().await;
    let http = "body_idle_timeout_ms: 300\nbody_min_rate_bytes_s: 1000";
    let gateway = gateway(&upstream, http, "idle_timeout_ms: 300\npool:\n  max_in_flight: 1").await;
    let mut requests = 0;
    for (lines, beginning, byte) in [
        ("Content-Length: 4096\r\n", "%PDF", &b"x"[..]),
        ("Transfer-Encoding: chunked\r\n", "4\r\n%PDF\r\n", b"1\r\nx\r\n"),
    ] {
        // it stops
        for path in [GUARDED, PASSING] {
            let mut client = Client::connect(gateway.addr).await;
            let began = Instant::now();
            client.send(head(path, lines)).await.unwrap();
            client.send(beginning).await.unwrap();
            let answer = client.read_answer().await;
            assert_own(&answer, 408, "BODY_TIMEOUT", path);
            assert_eq!(answer.header("connection").as_deref(), Some("close"));
            assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < SOON);
            assert!(client.closed_by_peer().await);
            requests += 1;
        }
        // it never stops, and never gets anywhere; the byte that comes in time is not enough
        for path in [GUARDED, PASSING] {
            let mut client = Client::connect(gateway.addr).await;
            client.send(head(path, lines)).await.unwrap();
            client.send(beginning).await.unwrap();
            let said = drip(&mut client, byte).await.unwrap().unwrap();
            assert!(said.starts_with(b"HTTP/1.1 408 "), "{path}: {}", String::from_utf8_lossy(&said));
            requests += 1;
            gateway.wait_metric("gateway_pool_in_use", &[], 0.0).await;
        }
        gateway.wait_metric("gateway_body_memory_bytes", &[], 0.0).await;
    }
    // on the guarded path nobody was bothered; on the other the upstream saw no end, and its place is free
    assert_eq!((upstream.calls_to("/classify"), upstream.calls_to("/other")), (0, 4));
    assert!(upstream.requests().iter().all(|seen| !seen.body_complete));
    gateway.wait_metric("gateway_pool_in_use", &[], 0.0).await;
    let lines = settle(&gateway, requests).await;
    assert!(lines.iter().all(|line| line["code"] == "BODY_TIMEOUT" && line["status"] == 408), "{lines:#?}");
}

#[tokio::test]
async fn sc_03_a_slow_but_steady_body_is_fine() {
    let upstream = Upstream::start().await;
    let http = "body_idle_timeout_ms: 400\nbody_min_rate_bytes_s: 100\nheader_timeout_ms: 400";
    let gateway = gateway(&upstream, http, "timeout_ms: 400\nidle_timeout_ms: 400").await;
    // three times as long as any limit, on both paths
    for path in [GUARDED, PASSING] {
        let mut client = Client::connect(gateway.addr).await;
        client.send(head(path, "Content-Length: 1200\r\n")).await.unwrap();
        for _ in 0..12 {
            client.send([b'x'; 100]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(client.read_answer().await.status, 200);
        assert_eq!(upstream.last_request().body_len, 1200);
    }
    settle(&gateway, 2).await;
}

#[tokio::test]
async fn sc_03_a_client_that_is_held_back_by_the_upstream_is_not_a_slow_one() {
    let upstream = Upstream::start().await;
    upstream.by_head(|_, _| Reply::status(200).read_slowly(64 << 10, Duration::from_millis(20)));
    // the client is faster than that; the upstream takes no more than a third of it
    let http = "body_idle_timeout_ms: 300\nbody_min_rate_bytes_s: 10485760";
    let gateway = gateway(&upstream, http, "").await;
    for path in [GUARDED, PASSING] {
        let request = Request::post(path).bearer("tok-1").body(vec![b'x'; 4 << 20]);
        assert_eq!(Client::connect(gateway.addr).await.request(request).await.status, 200, "{path}");
        assert_eq!(upstream.last_request().body_len, 4 << 20);
    }
    settle(&gateway, 2).await;
}

#[tokio::test]
async fn sc_04_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not() {
    let upstream = Upstream::start().await;
    let http = "keep_alive_timeout_ms: 300\nheader_timeout_ms: 300\nbody_idle_timeout_ms: 300";
    let gateway = gateway(&upstream, http, "").await;
    upstream.always(Reply::status(200).delay(Duration::from_millis(1000)).body("at last"));
    let mut client = Client::connect(gateway.addr).await;
    for path in [GUARDED, PASSING] {
        let answer = client.request(Request::post(path).bearer("tok-1").body("x")).await;
        assert_eq!(answer.text(), "at last", "{path}: waiting is not idling");
    }
    let began = Instant::now();
    assert!(client.closed_by_peer().await);
    assert!(began.elapsed() < SOON);
    gateway.wait_metric("gateway_connections", &[], 0.0).await;
    settle(&gateway, 2).await;
}

#[tokio::test]
async fn sc_05_a_client_that_does_not_read_is_given_up_and_holds_no_place() {
    let upstream = Upstream::start().await;
    let gateway = gateway(&upstream, "write_stall_timeout_ms: 500", "pool:\n  max_in_flight: 1").await;
    let piece = vec![b'x'; 1 << 20];
    let mut steps = vec![Step::chunk(piece); 64];
    steps.push(Step::LastChunk);
    upstream.script(vec![Reply::status(200).steps(steps), Reply::status(200).body("next")]);
    let mut client = Client::connect(gateway.addr).await;
    client.try_send_request(Request::post(PASSING).bearer("tok-1").body("x")).await.unwrap();
    upstream.wait_calls(1).await;
    let began = Instant::now();
    // it never reads; the next one gets the place all the same
    let next =
        Client::connect(gateway.addr).await.request(Request::post(PASSING).bearer("tok-1").body("x")).await;
    assert_eq!(next.text(), "next");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    upstream.wait_peer_closed(1).await;
    let lines = gateway.wait_audit(2).await;
    let given_up = lines.iter().find(|line| line["end"] == "client_closed").unwrap();
    assert!(given_up["bytes_out"].as_u64() < Some(64 << 20), "{given_up}");
    drop(client);
    settle(&gateway, 2).await;
}
