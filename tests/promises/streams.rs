//! Streams are relayed byte for byte, as they come, in both directions; a broken one never looks like a whole one; a
//! client that leaves is noticed at the upstream at once; and silence is another matter than length.
#![expect(clippy::unwrap_used, reason = "test")]

use std::time::{Duration, Instant};

use nevertwice_testkit::{Client, Gate, Gateway, Reply, Request, Step, Upstream};
use serde_json::json;

use crate::bench::{gzip, settle};

const CHAT: &str = "/llm/v1/chat/completions";
const OTHER: &str = "/doc-classifier/other";
const CLASSIFY: &str = "/doc-classifier/classify";
const QUESTION: &str = r#"{"model":"m","stream":true,"messages":[]}"#;

fn chat() -> Request {
    Request::post(CHAT).bearer("tok-1").header("Content-Type", "application/json").body(QUESTION)
}

/// A gateway with the upstream `llm` beside the usual one, both at this stub; `more` goes into `llm`.
async fn with_llm(upstream: &Upstream, more: &str) -> Gateway {
    let mut item =
        format!("- name: llm\n  adapter: openai\n  base_url: \"{}\"\n  mount: /llm\n", upstream.url());
    more.lines().for_each(|line| item.push_str(&format!("  {line}\n")));
    Gateway::with(&upstream.url(), &[("UPSTREAMS", &item)]).await
}

fn events(steps: Vec<Step>) -> Reply {
    Reply::status(200).header("Content-Type", "text/event-stream").steps(steps)
}

fn event(n: usize) -> String {
    format!("data: {{\"n\":{n}}}\n\n")
}

/// Reads the body on until it has these bytes.
async fn read_up_to(client: &mut Client, body: &mut Vec<u8>, expected: &[u8]) {
    while body.len() < expected.len() {
        let piece = client.read_some().await.unwrap();
        body.extend_from_slice(&piece.unwrap().bytes);
    }
    assert_eq!(String::from_utf8_lossy(body), String::from_utf8_lossy(expected));
}

#[tokio::test]
async fn st_01_a_stream_that_breaks_never_ends_like_a_whole_one() {
    let upstream = Upstream::start().await;
    let gateway = with_llm(&upstream, "").await;
    let three = || (0..3).map(|n| Step::chunk(event(n))).collect::<Vec<_>>();
    let sent: String = (0..3).map(event).collect();
    let with = |steps: Vec<Step>| [three(), steps].concat();
    let inside = format!("{sent}data: {{\"n\"");
    let done = format!("{sent}data: [DONE]\n\n");
    let whole = Reply::status(200).header("Content-Length", "1000");
    let cases = [
        ("reset", events(with(vec![Step::Reset])), None, sent.clone()),
        ("closed between events", events(with(vec![Step::Close])), Some(false), sent.clone()),
        (
            "closed in an event",
            events(with(vec![Step::chunk("data: {\"n\""), Step::Close])),
            Some(false),
            inside,
        ),
        (
            "closed in a chunk",
            events(with(vec![Step::write("40\r\ndata: half"), Step::Close])),
            Some(false),
            format!("{sent}data: half"),
        ),
        ("bad chunk size", events(with(vec![Step::write("zz\r\n"), Step::Stall])), Some(false), sent.clone()),
        (
            "short of its length",
            whole.steps(vec![Step::write("abc"), Step::Close]),
            Some(false),
            "abc".into(),
        ),
        ("no [DONE]", events(with(vec![Step::LastChunk])), Some(true), sent.clone()),
        ("whole", events(with(vec![Step::chunk("data: [DONE]\n\n"), Step::LastChunk])), Some(true), done),
    ];
    let count = cases.len();
    for (n, (name, reply, complete, expected)) in cases.into_iter().enumerate() {
        upstream.always(reply);
        let answer = Client::connect(gateway.addr).await.request(chat()).await;
        assert_eq!(answer.status, 200, "{name}");
        assert_eq!(answer.complete, complete.unwrap_or(false), "{name}: {answer:?}");
        // a reset may overtake the bytes before it, on either connection
        if complete.is_some() {
            assert_eq!(answer.text(), expected, "{name}");
        } else {
            assert!(expected.starts_with(&answer.text()), "{name}: {}", answer.text());
        }
        let line = gateway.wait_audit(n + 1).await.pop().unwrap();
        let end = if complete == Some(true) { json!(null) } else { json!("upstream_aborted") };
        assert_eq!(line["end"], end, "{name}: {line}");
        assert_eq!(line["code"], "OK", "{name}");
        assert!(line["bytes_out"].as_u64().unwrap() >= answer.body.len() as u64, "{name}: {line}");
    }
    assert_eq!(upstream.calls(), count as u64, "no retry");

    // the guarded route the same: an acceptance that breaks off
    upstream.always(events(with(vec![Step::Close])));
    let answer =
        Client::connect(gateway.addr).await.request(Request::post(CLASSIFY).bearer("tok-1").body("x")).await;
    assert_eq!((answer.status, answer.complete), (200, false));
    settle(&gateway, count + 1).await;
}

/// How the upstream frames what it writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Chunks {
    /// Each write is a chunk.
    Each,
    /// All writes are in one chunk.
    One,
}

/// The client gets each write before the upstream does the next one, and the head before the first: every write waits for a
/// gate, which opens when all before has arrived. So nothing is held back for what follows it. That nothing is held back
/// for a time is the second assertion.
async fn arrives_write_by_write(
    upstream: &Upstream,
    gateway: &Gateway,
    (path, encoding, chunks): (&str, &str, Chunks),
    writes: &[Vec<u8>],
) {
    let case = format!("{path}, {encoding}, {chunks:?}");
    let head = Gate::new();
    let gates: Vec<Gate> = writes.iter().map(|_| Gate::new()).collect();
    let mut steps = vec![];
    if chunks == Chunks::One {
        steps.push(Step::write(format!("{:x}\r\n", writes.concat().len())));
    }
    for (write, gate) in writes.iter().zip(&gates) {
        let write = write.clone();
        steps.push(Step::WaitFor(gate.clone()));
        steps.push(if chunks == Chunks::One { Step::write(write) } else { Step::chunk(write) });
    }
    if chunks == Chunks::One {
        steps.push(Step::write("\r\n"));
    }
    steps.push(Step::LastChunk);
    let reply = events(steps).header("Content-Encoding", encoding).header("Transfer-Encoding", "chunked");
    upstream.always(reply.wait_for(&head));

    let mut client = Client::connect(gateway.addr).await;
    let request = Request::post(path).bearer("tok-1").header("Accept", "*/*").body(QUESTION);
    client.try_send_request(request).await.unwrap();
    head.wait_waiting(1).await;
    let began = Instant::now();
    head.open();
    let answer = client.read_head().await;
    assert_eq!(answer.headers_named("content-type"), [b"text/event-stream"], "{case}");
    assert_eq!(answer.headers_named("content-encoding"), [encoding.as_bytes()], "{case}: as it came");
    assert!(answer.headers_named("content-length").is_empty(), "{case}");
    assert_eq!(answer.headers_named("transfer-encoding"), [b"chunked"], "{case}");
    let (mut body, mut expected) = (Vec::new(), Vec::new());
    for (write, gate) in writes.iter().zip(&gates) {
        gate.open();
        expected.extend_from_slice(write);
        read_up_to(&mut client, &mut body, &expected).await;
    }
    // 200 ms for each on the average; one alone may have bad luck with the machine
    let limit = Duration::from_millis(200) * u32::try_from(writes.len() + 1).unwrap();
    assert!(began.elapsed() < limit, "{case}: {:?} for {} writes", began.elapsed(), writes.len());
    assert_eq!(body, expected, "{case}");
    assert_eq!(client.read_some().await.unwrap().map(|a| a.bytes), None, "{case}: a clean end");
    // the same connection serves the next request
    upstream.always(Reply::status(200).body("next"));
    assert_eq!(client.request(chat()).await.text(), "next", "{case}");
}

#[tokio::test]
async fn st_02_comments_and_odd_lines_arrive_as_they_are_before_the_next_one_is_sent() {
    const PING: &[u8] = b": ping\n\n";
    let mut writes = vec![PING.to_vec(); 10];
    let others: [&[u8]; 9] = [
        b"event: x\nid: 7\nretry: 100\ndata: a\ndata: b\n\n",
        PING,
        b"data:{\"no\":\"space\"}\r\n\r\n",
        PING,
        b"\n",
        b":\r",
        b"\n\xef\xbb\xbfdata: \xff\xfe\x00\n\n",
        PING,
        b"data: [DONE]\n\n",
    ];
    writes.extend(others.map(<[u8]>::to_vec));
    let upstream = Upstream::start().await;
    let gateway = with_llm(&upstream, "").await;
    let paths = [CHAT, OTHER, CLASSIFY];
    for path in paths {
        arrives_write_by_write(&upstream, &gateway, (path, "identity", Chunks::Each), &writes).await;
    }
    settle(&gateway, paths.len() * 2).await;
}

#[tokio::test]
async fn st_03_half_an_event_and_single_bytes_arrive_before_the_next_ones_are_sent() {
    const HALF: usize = 11;
    const SINGLE: &[u8] = b"data: one at a time\n\n";
    let upstream = Upstream::start().await;
    let gateway = with_llm(&upstream, "").await;
    let of_bytes = |bytes: &[u8]| bytes.iter().map(|byte| vec![*byte]).collect::<Vec<_>>();
    let event: &[u8] = b"data: {\"half\":1}\n\n";
    let zipped = gzip(&[event, b"data: whole\n\n", SINGLE, b"data: [DONE]\n\n"]);
    let [first, whole, single, done, trailer] = &zipped[..] else {
        unreachable!("a part each, and the trailer")
    };
    let plain = [
        vec![event[..HALF].to_vec(), event[HALF..].to_vec()],
        of_bytes(SINGLE),
        vec![b"data: [DONE]\n\n".to_vec()],
    ];
    let zipped = [
        vec![first[..HALF].to_vec(), first[HALF..].to_vec(), whole.clone()],
        of_bytes(single),
        vec![done.clone(), trailer.clone()],
    ];
    let mut requests = 0;
    for (encoding, writes) in [("identity", plain.concat()), ("gzip", zipped.concat())] {
        for chunks in [Chunks::Each, Chunks::One] {
            for path in [CHAT, OTHER, CLASSIFY] {
                arrives_write_by_write(&upstream, &gateway, (path, encoding, chunks), &writes).await;
                requests += 2;
            }
        }
    }
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn st_03_a_body_with_a_length_is_not_held_back_either() {
    let upstream = Upstream::start().await;
    let gateway = with_llm(&upstream, "").await;
    let (one, two) = (Gate::new(), Gate::new());
    upstream.always(Reply::status(200).header("Content-Length", "12").steps(vec![
        Step::WaitFor(one.clone()),
        Step::write("half an "),
        Step::WaitFor(two.clone()),
        Step::write("hour"),
    ]));
    let mut client = Client::connect(gateway.addr).await;
    client.try_send_request(chat()).await.unwrap();
    let answer = client.read_head().await;
    assert_eq!(answer.headers_named("content-length"), [b"12"]);
    let mut body = Vec::new();
    one.open();
    read_up_to(&mut client, &mut body, b"half an ").await;
    two.open();
    read_up_to(&mut client, &mut body, b"half an hour").await;
    settle(&gateway, 1).await;
}

#[tokio::test]
async fn st_03_an_upload_is_forwarded_while_it_arrives_and_answered_while_it_goes_on() {
    let upstream = Upstream::start().await;
    let gateway = with_llm(&upstream, "").await;
    upstream.always(Reply::status(200).body("got it"));
    // in chunks, and with a length
    for (n, chunked) in [true, false].into_iter().enumerate() {
        let mut client = Client::connect(gateway.addr).await;
        let framing = if chunked { "Transfer-Encoding: chunked" } else { "Content-Length: 15" };
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\n{framing}\r\n\r\n");
        client.send(head).await.unwrap();
        let before = upstream.body_bytes();
        upstream.wait_calls(n as u64 + 1).await;
        for part in 1..=3 {
            client.send(if chunked { "5\r\nabcde\r\n" } else { "abcde" }).await.unwrap();
            upstream.wait_until("the part", |it| it.body_bytes() == before + part * 5).await;
        }
        if chunked {
            client.send("0\r\n\r\n").await.unwrap();
        }
        assert_eq!(client.read_answer().await.text(), "got it");
        let seen = upstream.last_request();
        assert_eq!((&seen.body[..], seen.problems.len()), (&b"abcdeabcdeabcde"[..], 0));
        let kept = if chunked { "transfer-encoding" } else { "content-length" };
        assert_eq!(seen.headers_named(kept).len(), 1, "{:?}", seen.headers);
    }
    // both at once: the answer streams while the upload does
    let gate = Gate::new();
    let steps =
        vec![Step::chunk("early "), Step::WaitFor(gate.clone()), Step::chunk("late"), Step::LastChunk];
    upstream.always(events(steps).answer_early());
    let mut client = Client::connect(gateway.addr).await;
    let head = "POST /llm/v1/x HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(head).await.unwrap();
    client.send("5\r\nabcde\r\n").await.unwrap();
    client.read_head().await;
    let mut body = Vec::new();
    read_up_to(&mut client, &mut body, b"early ").await;
    client.send("5\r\nfghij\r\n").await.unwrap();
    gate.open();
    read_up_to(&mut client, &mut body, b"early late").await;
    client.send("0\r\n\r\n").await.unwrap();
    upstream.wait_complete(3).await;
    assert_eq!(upstream.last_request().body, &b"abcdefghij"[..]);
    settle(&gateway, 3).await;
}

#[tokio::test]
async fn st_04_a_client_that_leaves_a_stream_frees_its_place_at_once() {
    let upstream = Upstream::start().await;
    let gateway = with_llm(&upstream, "pool:\n  max_in_flight: 1").await;
    for (n, reset) in [false, true].into_iter().enumerate() {
        let never = Gate::new();
        let first = (0..5).map(|n| Step::chunk(event(n)));
        upstream.script(vec![
            events(first.chain([Step::WaitFor(never.clone()), Step::LastChunk]).collect()),
            Reply::status(200).body("second"),
        ]);
        let mut client = Client::connect(gateway.addr).await;
        client.try_send_request(chat()).await.unwrap();
        client.read_head().await;
        let expected: String = (0..5).map(event).collect();
        read_up_to(&mut client, &mut Vec::new(), expected.as_bytes()).await;
        let left = Instant::now();
        if reset {
            client.reset();
        } else {
            client.close().await;
        }
        // the second one asks while the first may still have the place
        let second = Client::connect(gateway.addr).await.request(chat()).await;
        assert_eq!(second.text(), "second");
        upstream.wait_peer_closed(n as u64 + 1).await;
        assert!(left.elapsed() < Duration::from_secs(3), "{:?}", left.elapsed());
        let lines = gateway.wait_audit(2 * (n + 1)).await;
        let line = lines.iter().filter(|line| line["end"] == "client_closed").nth(n).unwrap();
        assert_eq!(line["bytes_out"], json!(expected.len()), "{line}");
        assert_eq!(line["code"], "OK");
    }
    settle(&gateway, 4).await;
}

#[tokio::test]
async fn st_06_a_long_stream_lives_and_a_silent_one_ends() {
    let upstream = Upstream::start().await;
    let gateway =
        with_llm(&upstream, "timeout_ms: 700\nidle_timeout_ms: 700\npool:\n  max_in_flight: 1").await;
    // three times as long as either limit, and never silent for long; a ping is a sign of life
    let mut steps = vec![];
    for n in 0..12 {
        let what = if n % 3 == 0 { event(n) } else { ": ping\n\n".to_owned() };
        steps.extend([Step::chunk(what), Step::Pause(Duration::from_millis(180))]);
    }
    steps.push(Step::LastChunk);
    upstream.always(events(steps));
    let answer = Client::connect(gateway.addr).await.request(chat()).await;
    assert!(answer.complete && answer.text().matches(": ping").count() == 8, "{answer:?}");

    // two events, then nothing
    upstream.always(events(vec![Step::chunk(event(0)), Step::chunk(event(1)), Step::Stall]));
    let began = Instant::now();
    let answer = Client::connect(gateway.addr).await.request(chat()).await;
    assert!(!answer.complete && answer.text() == event(0) + &event(1), "{answer:?}");
    assert!(began.elapsed() >= Duration::from_millis(700) && began.elapsed() < Duration::from_secs(5));
    upstream.wait_peer_closed(1).await;
    assert_eq!(gateway.wait_audit(2).await[1]["end"], "idle_timeout");
    gateway.wait_metric("gateway_pool_in_use", &[], 0.0).await;

    // nothing at all is the other limit
    upstream.always(Reply::stall());
    let answer = Client::connect(gateway.addr).await.request(chat()).await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (504, Some("UPSTREAM_TIMEOUT")));
    upstream.wait_peer_closed(2).await;
    settle(&gateway, 3).await;

    // the third limit is for those who set it
    let capped = with_llm(&upstream, "stream_max_ms: 600").await;
    let steps = (0..40).flat_map(|n| [Step::chunk(event(n)), Step::Pause(Duration::from_millis(100))]);
    upstream.always(events(steps.collect()));
    let answer = Client::connect(capped.addr).await.request(chat()).await;
    assert!(!answer.complete && answer.text().starts_with(&event(0)), "{answer:?}");
    assert_eq!(settle(&capped, 1).await[0]["end"], "stream_max");
}

#[tokio::test]
async fn st_07_a_refusal_of_a_streaming_request_comes_as_it_was_said() {
    let upstream = Upstream::start().await;
    let gateway = with_llm(&upstream, "").await;
    let json_type = "application/json; charset=utf-8";
    let refusal = r#"{"error":{"message":"context length exceeded","code":"context_length_exceeded"}}"#;
    let cases = [
        Reply::status(400).header("Content-Type", json_type).body(refusal),
        Reply::status(400).header("Content-Type", json_type).chunked(vec![&refusal[..7], &refusal[7..]]),
        Reply::status(429).header("Content-Type", json_type).header("Retry-After", "7").body(refusal),
        Reply::status(200).header("Content-Type", json_type).body("{\"choices\":[]}"),
        Reply::status(529).header("Content-Type", "text/plain").body("overloaded"),
    ];
    let count = cases.len();
    for reply in cases {
        let calls = upstream.calls();
        upstream.always(reply.header("x-request-id", "req_1"));
        for _ in 0..2 {
            let request = chat().header("Accept", "text/event-stream");
            let direct = Client::connect(upstream.addr()).await.request(request.clone()).await;
            let answer = Client::connect(gateway.addr).await.request(request).await;
            assert_eq!((answer.status, &answer.body), (direct.status, &direct.body));
            for name in ["content-type", "retry-after", "x-request-id", "x-negative-cache", "content-length"]
            {
                assert_eq!(answer.headers_named(name), direct.headers_named(name), "{name}");
            }
        }
        assert_eq!(upstream.calls(), calls + 4, "nothing is remembered on a chat route unless asked for");
    }
    settle(&gateway, count * 2).await;
}
