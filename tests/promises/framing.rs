//! One request is one request: bytes that could be read in two ways are refused before anything is done with them, the
//! upstream never sees a request that nobody sent, and what is well formed passes untouched.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test")]

use std::time::Duration;

use nevertwice_testkit::{
    Answer, Client, DOC, DOC2, Failure, Gate, Gateway, Part, Post, Reply, Request, Step, Upstream, multipart,
    r400,
};

use crate::bench::{assert_own, settle};
use crate::caller::until;

const GUARDED: &str = "/doc-classifier/classify";
const PASSING: &str = "/doc-classifier/other";
const SMUGGLED: &str = "GET /admin/v1/refusals HTTP/1.1\r\nHost: gw\r\n\r\n";

/// A head with these further lines, as a tenant sends it.
fn head(path: &str, lines: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\n{lines}\r\n").into_bytes()
}

/// Sends the bytes, cut into pieces, and reads so many answers; nothing may come after them.
async fn converse(gateway: &Gateway, bytes: &[u8], piece: usize, expected: usize) -> Vec<Answer> {
    let mut client = Client::connect(gateway.addr).await;
    for piece in bytes.chunks(piece) {
        if client.send(piece).await.is_err() {
            break;
        }
    }
    finish(client, expected).await
}

async fn finish(mut client: Client, expected: usize) -> Vec<Answer> {
    let mut answers = Vec::new();
    for _ in 0..expected {
        answers.push(client.read_answer().await);
    }
    client.half_close().await;
    let after = client.try_read_answer().await;
    assert!(matches!(after, Err(Failure::Closed | Failure::Reset)), "{after:?}, after {answers:?}");
    answers
}

#[tokio::test]
async fn up_05_a_request_with_two_readings_is_refused_and_nothing_of_it_goes_up() {
    let chunked = "Transfer-Encoding: chunked\r\n";
    let heads = [
        ("length and coding", format!("Content-Length: 4\r\n{chunked}")),
        ("coding and length", format!("{chunked}Content-Length: 4\r\n")),
        ("chunked twice in one", "Transfer-Encoding: chunked, chunked\r\n".into()),
        ("coding twice", format!("{chunked}{chunked}")),
        ("unknown coding first", "Transfer-Encoding: JUNK, chunked\r\n".into()),
        ("unknown coding last", "Transfer-Encoding: chunked, JUNK\r\n".into()),
        ("gzip", "Transfer-Encoding: gzip, chunked\r\n".into()),
        ("identity", "Transfer-Encoding: identity\r\n".into()),
        ("vertical tab before the coding", "Transfer-Encoding: \x0bchunked\r\n".into()),
        ("nul in the coding", "Transfer-Encoding: chun\0ked\r\n".into()),
        ("quoted coding", "Transfer-Encoding: \"chunked\"\r\n".into()),
        ("empty coding", "Transfer-Encoding:\r\n".into()),
        ("tab before the colon", "Transfer-Encoding\t: chunked\r\n".into()),
        ("space before the colon", "Content-Length : 4\r\n".into()),
        ("vertical tab in the name", "Transfer-Encoding\x0b: chunked\r\n".into()),
        ("coding in a folded line", "X-A: b\r\n Transfer-Encoding: chunked\r\n".into()),
        ("folded coding", "Transfer-Encoding:\r\n chunked\r\n".into()),
        ("list of equal lengths", "Content-Length: 5, 5\r\n".into()),
        ("two equal lengths", "Content-Length: 4\r\nContent-Length: 4\r\n".into()),
        ("two lengths", "Content-Length: 4\r\nContent-Length: 40\r\n".into()),
        ("plus", "Content-Length: +5\r\n".into()),
        ("minus", "Content-Length: -1\r\n".into()),
        ("hex length", "Content-Length: 0x5\r\n".into()),
        ("length with a blank", "Content-Length: 1 2\r\n".into()),
        ("empty length", "Content-Length:\r\n".into()),
        ("length over 64 bits", "Content-Length: 18446744073709551620\r\n".into()),
        ("bare line feed", "X-A: b\nContent-Length: 4\r\n".into()),
        ("bare carriage return", "X-A: b\rContent-Length: 4\r\n".into()),
        ("a line without a colon", "nonsense\r\nContent-Length: 4\r\n".into()),
        ("second host", "Host: other\r\nContent-Length: 4\r\n".into()),
    ];
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut refused = 0.0;
    for (name, lines) in &heads {
        // what comes after it is a request of its own to whoever reads the head in another way
        let attacks = [(GUARDED, usize::MAX), (PASSING, usize::MAX), (GUARDED, 11)];
        for (path, piece) in attacks {
            let mut bytes = head(path, lines);
            bytes.extend_from_slice(format!("0\r\n\r\n{SMUGGLED}").as_bytes());
            let answer = converse(&gateway, &bytes, piece, 1).await.remove(0);
            assert!(matches!(answer.status, 400 | 501), "{name}: {answer:?}");
            assert_eq!(answer.header("connection").as_deref(), Some("close"), "{name}");
            assert_eq!(upstream.calls(), 0, "{name}");
            if piece < bytes.len() {
                // in whose words it is refused then, the next test says
                refused = gateway.metric("gateway_refused_framing_total", &[]).await;
                continue;
            }
            assert!(answer.header("x-gateway-error").is_some(), "{name}: {answer:?}");
            refused += 1.0;
            assert_eq!(
                gateway.metric("gateway_refused_framing_total", &[]).await,
                refused,
                "{name} {path} {piece}"
            );
        }
    }
    // nothing of it was remembered
    upstream.always(r400());
    let answer = Post::to(gateway.addr, GUARDED).bearer("tok-1").body(&DOC[..]).send().await;
    assert!(answer.status == 400 && !answer.is_hit());
    assert!(Post::to(gateway.addr, GUARDED).bearer("tok-1").body(&DOC[..]).send().await.is_hit());
    settle(&gateway, 2).await;
}

#[tokio::test]
async fn up_05_a_malformed_head_is_refused_in_the_gateway_s_own_words_however_it_arrives() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut refused = 0.0;
    for line in [
        "POST  /doc-classifier/classify HTTP/1.1",
        "POST /doc-classifier/classify HTTP/1.1 ",
        "POST /doc-classifier/classify\tHTTP/1.1",
        "POST /doc-classifier/classify",
        "POST /doc-classifier/classify HTTP/2.0",
        "POST /doc-classifier/classify HTTP/1.10",
        "POST /doc-classifier/classify http/1.1",
        "CONNECT upstream:443 HTTP/1.1",
        "P(ST /doc-classifier/classify HTTP/1.1",
        "\x16\x03\x01\x02",
    ] {
        let bytes = format!("{line}\r\nHost: gw\r\nContent-Length: 0\r\n\r\n{SMUGGLED}");
        let answer = converse(&gateway, bytes.as_bytes(), usize::MAX, 1).await.remove(0);
        assert!(matches!(answer.status, 400 | 501 | 505), "{line:?}: {answer:?}");
        assert!(answer.header("x-gateway-error").is_some(), "{line:?}: {answer:?}");
        assert_eq!(upstream.calls(), 0, "{line:?}");
        refused += 1.0;
        assert_eq!(gateway.metric("gateway_refused_framing_total", &[]).await, refused, "{line:?}");
    }

    // the first half of a bad line comes alone
    for (before, after) in [
        ("POST  /doc-classifier/classify", " HTTP/1.1\r\nHost: gw\r\n\r\n"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nX A", ": b\r\n\r\n"),
        ("POST / HTTP/1.1\r\nHost: gw\r\nX-A: \x01", "b\r\n\r\n"),
    ] {
        let mut client = Client::connect(gateway.addr).await.patience(Duration::from_millis(300));
        client.send(before).await.unwrap();
        let answer = match client.try_read_answer().await {
            Err(Failure::TimedOut) => {
                client.send(after).await.unwrap();
                client.patience(Duration::from_secs(20)).read_answer().await
            }
            answer => answer.unwrap(),
        };
        assert_eq!(
            answer.header("x-gateway-error").as_deref(),
            Some("BAD_REQUEST"),
            "{before:?}: {answer:?}"
        );
    }
    assert_eq!(upstream.calls(), 0);
    settle(&gateway, 0).await;
}

#[tokio::test]
async fn up_05_a_broken_chunked_body_is_refused_and_no_key_is_made_of_it() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    let bodies = [
        ("0x", "0x5\r\nabcde\r\n0\r\n\r\n"),
        ("blank after the size", "5 \r\nabcde\r\n0\r\n\r\n"),
        ("blank before the size", " 5\r\nabcde\r\n0\r\n\r\n"),
        ("17 digits", "00000000000000005\r\nabcde\r\n0\r\n\r\n"),
        ("over 64 bits", "10000000000000005\r\nabcde\r\n0\r\n\r\n"),
        ("plus", "+5\r\nabcde\r\n0\r\n\r\n"),
        ("no size", "\r\nabcde\r\n0\r\n\r\n"),
        ("chunk longer than its size", "3\r\nabcde\r\n0\r\n\r\n"),
        ("chunk shorter than its size", "7\r\nabcde\r\n0\r\n\r\n"),
        ("bare line feed after the size", "5\nabcde\r\n0\r\n\r\n"),
        ("bare line feed after the data", "5\r\nabcde\n0\r\n\r\n"),
        ("control byte in an extension", "5;a=\x01\r\nabcde\r\n0\r\n\r\n"),
        ("length in the trailers", "5\r\nabcde\r\n0\r\nContent-Length: 5\r\n\r\n"),
        ("coding in the trailers", "5\r\nabcde\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("folded trailer", "5\r\nabcde\r\n0\r\nX-A: b\r\n c\r\n\r\n"),
    ];
    let check = |answer: &Answer, name: &str| {
        assert_eq!(answer.status, 400, "{name}: {answer:?}");
        assert_eq!(answer.header("x-gateway-error").as_deref(), Some("BAD_REQUEST"), "{name}");
        assert_eq!(answer.header("connection").as_deref(), Some("close"), "{name}");
    };
    for (name, body) in bodies {
        // at once, and byte by byte
        for (path, piece) in [(GUARDED, usize::MAX), (GUARDED, 1), (PASSING, usize::MAX)] {
            let mut bytes = head(path, "Transfer-Encoding: chunked\r\n");
            bytes.extend_from_slice(format!("{body}{SMUGGLED}").as_bytes());
            check(&converse(&gateway, &bytes, piece, 1).await[0], name);
        }
        // after a good beginning, when the body is being read already
        for path in [GUARDED, PASSING] {
            let calls = upstream.calls();
            let refused = gateway.metric("gateway_refused_framing_total", &[]).await;
            let mut client = Client::connect(gateway.addr).await;
            client.send(head(path, "Transfer-Encoding: chunked\r\n")).await.unwrap();
            client.send("3\r\nxyz\r\n").await.unwrap();
            if path == GUARDED {
                gateway.wait_metric("gateway_body_memory_bytes", &[], 4096.0).await;
            } else {
                upstream.wait_calls(calls + 1).await;
            }
            client.send(format!("{body}{SMUGGLED}")).await.unwrap();
            check(&finish(client, 1).await[0], name);
            let now = gateway.metric("gateway_refused_framing_total", &[]).await;
            assert_eq!(now, refused + 1.0, "{name}");
        }
    }
    // what was passed on while it came was cut off there, and never completed by anybody
    upstream.wait_until("no open request", |it| it.open_connections() == 0).await;
    for seen in upstream.requests() {
        assert!(!seen.body_complete && seen.method == "POST" && seen.target == "/other", "{seen:?}");
    }
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 0.0);
    let answer = Post::to(gateway.addr, GUARDED).bearer("tok-1").body("abcde").send().await;
    assert!(!answer.is_hit());
    // requests that could not be read as one are counted and have no line
    let read = gateway.metric("gateway_requests_total", &[]).await;
    let lines = settle(&gateway, read as usize).await;
    assert!(lines.iter().filter(|line| line["code"] == "BAD_REQUEST").count() >= 2 * bodies.len());
}

#[tokio::test]
async fn up_05_bytes_after_a_request_are_the_client_s_next_request_and_its_own() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    // a body longer than its length: the rest is a request of this client, without a key, and goes nowhere
    for path in [GUARDED, PASSING] {
        let calls = upstream.calls();
        let mut bytes = head(path, "Content-Length: 4\r\n");
        bytes.extend_from_slice(format!("abcdX{SMUGGLED}").as_bytes());
        let answers = converse(&gateway, &bytes, usize::MAX, 2).await;
        let statuses: Vec<_> = answers.iter().map(|a| a.status).collect();
        assert_eq!(statuses, [400, 401], "{answers:?}");
        assert_eq!(answers[1].header("x-gateway-error").as_deref(), Some("UNAUTHENTICATED"));
        assert_eq!(upstream.calls(), calls + 1);
        assert_eq!(&upstream.last_request().body[..], b"abcd");
    }
    // pipelined requests are answered in order, known ones among them
    let mut bytes = Vec::new();
    for (path, body) in [(GUARDED, "one!"), (GUARDED, "abcd"), (PASSING, "two!"), (GUARDED, "one!")] {
        bytes.extend(head(path, "Content-Length: 4\r\n"));
        bytes.extend_from_slice(body.as_bytes());
    }
    for piece in [usize::MAX, 7] {
        let answers = converse(&gateway, &bytes, piece, 4).await;
        let hits: Vec<_> = answers.iter().map(Answer::is_hit).collect();
        assert_eq!(hits, [piece == 7, true, false, true], "{answers:?}");
    }
    // odd but certain: extensions, upper-case digits, leading zeros, trailers, empty lines before the request
    for (n, body) in ["5;x=y;\"z\"\r\nabcde\r\n0\r\n\r\n", "0A\r\n0123456789\r\n000\r\nX-Sum: 1\r\n\r\n"]
        .iter()
        .enumerate()
    {
        let mut bytes = b"\r\n\r\n".to_vec();
        bytes.extend(head(GUARDED, "Transfer-Encoding: chunked\r\n"));
        bytes.extend_from_slice(body.as_bytes());
        converse(&gateway, &bytes, usize::MAX, 1).await;
        let seen = upstream.last_request();
        assert_eq!(&seen.body[..], [&b"abcde"[..], b"0123456789"][n]);
        assert!(seen.problems.is_empty() && seen.trailers.is_empty(), "{seen:?}");
    }
    for seen in upstream.requests() {
        assert!(seen.problems.is_empty() && seen.method == "POST", "{seen:?}");
    }
    settle(&gateway, 4 + 8 + 2).await;
}

/// Heads that are refused, in the first byte and after good lines.
const MALFORMED: [&str; 2] = ["\x01garbage\r\n\r\n", "GET / HTTP/1.1\r\nHost: gw\r\nX A: b\r\n\r\n"];

/// Waits until the gateway has no connection any more.
async fn all_gone(gateway: &Gateway, limit: Duration, case: &str) {
    until(&format!("{case}: the end of the connection"), limit, || async {
        (gateway.metric("gateway_connections", &[]).await == 0.0).then_some(())
    })
    .await;
}

/// The answer to a malformed head, and then nothing but the end.
async fn refused_and_closed(mut client: Client, gateway: &Gateway, case: &str) {
    let refusal = client.try_read_answer().await.unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_own(&refusal, 400, "BAD_REQUEST", case);
    assert_eq!(refusal.header("connection").as_deref(), Some("close"), "{case}");
    assert!(client.closed_by_peer().await, "{case}");
    drop(client);
    all_gone(gateway, Duration::from_secs(5), case).await;
}

#[tokio::test]
async fn up_05_a_malformed_head_behind_a_request_is_refused_after_its_answer_and_the_connection_ends() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    assert_eq!(Post::to(gateway.addr, GUARDED).bearer("tok-1").body(&DOC[..]).send().await.status, 400);
    upstream.always(Reply::status(200).body("fine"));
    let request = |line: &str, more: &str, body: &[u8]| {
        let head = format!("{line} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\n{more}\r\n");
        [head.as_bytes(), body].concat()
    };
    let post = |path: &str, body: &[u8]| {
        request(&format!("POST {path}"), &format!("Content-Length: {}\r\n", body.len()), body)
    };
    let chunked = "Transfer-Encoding: chunked\r\n";
    let (mut requests, mut refused) = (1, 0.0);
    for (name, bytes, status, goes) in [
        ("guarded", post(GUARDED, &DOC2), 200, true),
        (
            "guarded, chunked",
            request(&format!("POST {GUARDED}"), chunked, b"3\r\nabc\r\n0\r\n\r\n"),
            200,
            true,
        ),
        ("passing", post(PASSING, b"abc"), 200, true),
        (
            "passing, chunked",
            request(&format!("POST {PASSING}"), chunked, b"3\r\nabc\r\n0\r\n\r\n"),
            200,
            true,
        ),
        ("get", request(&format!("GET {PASSING}"), "", b""), 200, true),
        ("replay", post(GUARDED, &DOC), 400, false),
        ("own answer", request("GET /nowhere", "", b""), 404, false),
    ] {
        for malformed in MALFORMED {
            // in one segment; in a second one, while the upstream has not answered; the same with an answer that is quick
            for (segments, slow) in [(1, true), (2, true), (1, false), (2, false)] {
                if slow && !goes {
                    continue;
                }
                let case = format!("{name}, {malformed:?}, {segments} segments, slow {slow}");
                let (gate, calls) = (Gate::new(), upstream.calls());
                upstream.always(match slow {
                    true => Reply::status(200).body("fine").wait_for(&gate),
                    false => Reply::status(200).body("fine"),
                });
                let mut client = Client::connect(gateway.addr).await.patience(Duration::from_secs(8));
                if segments == 1 {
                    client.send([&bytes[..], malformed.as_bytes()].concat()).await.unwrap();
                } else {
                    client.send(&bytes).await.unwrap();
                    if slow {
                        gate.wait_waiting(1).await;
                    }
                    client.send(malformed).await.unwrap();
                }
                if slow {
                    gate.wait_waiting(1).await;
                    // it may be read now or later; both are fine
                    let seen = gateway.wait_metric("gateway_refused_framing_total", &[], refused + 1.0);
                    let _ = tokio::time::timeout(Duration::from_millis(300), seen).await;
                    gate.open();
                }
                let answer = client.try_read_answer().await.unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!((answer.status, answer.is_hit()), (status, name == "replay"), "{case}");
                refused_and_closed(client, &gateway, &case).await;
                (requests, refused) = (requests + 1, refused + 1.0);
                assert_eq!(gateway.metric("gateway_refused_framing_total", &[]).await, refused, "{case}");
                assert_eq!(upstream.calls(), calls + u64::from(goes), "{case}");
            }
        }
    }
    for seen in upstream.requests() {
        assert!(seen.problems.is_empty() && seen.body_complete, "{seen:?}");
    }
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn up_05_a_malformed_head_of_a_client_that_never_reads_does_not_keep_the_connection() {
    let upstream = Upstream::start().await;
    let http = "http:\n  write_stall_timeout_ms: 500";
    let gateway = Gateway::with(&upstream.url(), &[("TOP", http)]).await;
    let large = vec![Step::chunk(vec![b'x'; 1 << 20]); 64].into_iter().chain([Step::LastChunk]).collect();
    let mut clients = Vec::new();
    for (n, reply) in
        [Reply::status(200).body("fine"), Reply::status(200).steps(large)].into_iter().enumerate()
    {
        for (path, segments) in [(GUARDED, 1), (PASSING, 1), (GUARDED, 2), (PASSING, 2)] {
            let gate = Gate::new();
            upstream.always(reply.clone().wait_for(&gate));
            let document = format!("{n} {segments}");
            let first = [head(path, "Content-Length: 3\r\n"), document.into_bytes()].concat();
            let mut client = Client::connect(gateway.addr).await;
            if segments == 1 {
                client.send([&first[..], MALFORMED[0].as_bytes()].concat()).await.unwrap();
                gate.wait_waiting(1).await;
            } else {
                client.send(first).await.unwrap();
                gate.wait_waiting(1).await;
                client.send(MALFORMED[0]).await.unwrap();
            }
            gate.open();
            clients.push(client);
        }
    }
    // it stalls for half a second, and what the gateway still takes in after its last word ends after three
    all_gone(&gateway, Duration::from_secs(10), "never reads").await;
    settle(&gateway, clients.len()).await;
}

#[tokio::test]
async fn up_07_what_is_well_formed_passes_untouched() {
    let binary: Vec<u8> = [&b"\r\n--not-the-boundary\r\n\0\xff"[..], &DOC[..], b"\r\n--"].concat();
    let extra = [("Content-Transfer-Encoding", "binary"), ("X-Part", "1")];
    let file = |name, content| Part::file("file", name, "application/octet-stream", content);
    let parts = [
        file("D:\\\u{30d5}.jpg", &DOC[..]),
        Part { extra_headers: &[("Content-Disposition", "attachment")], ..file("a\"b", b"x") },
        Part { name: "file\"; filename*=UTF-8''%E3%83%95; x=\"", content: b"y", ..Part::default() },
        Part::field("no-file", "value"),
        Part { name: "empty", ..Part::default() },
        Part { extra_headers: &extra, ..file("binary", &binary) },
    ];
    let thousand: Vec<_> = (0..1000).map(|_| Part::field("field", "value")).collect();
    let (kind, plain) = multipart("----WebKitFormBoundary7MA4YWxkTrZu0gW", &parts);
    let (quoted, odd) = multipart("bound ary:/=?", &parts);
    let (many, large) = multipart("b", &thousand);
    let framed = [b"This is the preamble.\r\n", &plain[..], b"\r\nand this the epilogue\r\n--x"].concat();
    let bodies = [
        (kind.as_str(), plain.clone()),
        (quoted.as_str(), odd),
        (many.as_str(), large),
        (kind.as_str(), framed),
        (
            "Multipart/Form-Data; charset=utf-8; Boundary=\"----WebKitFormBoundary7MA4YWxkTrZu0gW\"",
            plain.clone(),
        ),
        // no form after all: another boundary, none, cut short, bare line feeds
        ("multipart/form-data; boundary=other", plain.clone()),
        ("multipart/form-data", plain.clone()),
        (kind.as_str(), plain[..plain.len() - 7].to_vec()),
        (kind.as_str(), String::from_utf8_lossy(&plain).replace("\r\n", "\n").into_bytes()),
        ("application/json", br#"{"a" : 1,  "a":2, "u":"\u00e9\ud83d", "n":1e400 }"#.to_vec()),
        ("application/x-www-form-urlencoded", b"a=%zz&&=&a".to_vec()),
        ("text/plain; charset=utf-16", b"\xff\xfe\0\n\r\r\n".to_vec()),
    ];
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut requests = 0;
    for (content_type, body) in bodies {
        for path in [GUARDED, PASSING] {
            for chunk in [None, Some(1000)] {
                let mut post =
                    Post::to(gateway.addr, path).bearer("tok-1").header("Content-Type", content_type);
                post = post.body(body.clone());
                let answer = match chunk {
                    Some(size) => post.chunked(size).send().await,
                    None => post.send().await,
                };
                assert_eq!(answer.status, 200, "{content_type}: {}", answer.text());
                let seen = upstream.last_request();
                assert!(seen.body == body, "{content_type} on {path}");
                assert!(seen.body_complete && seen.problems.is_empty(), "{seen:?}");
                assert_eq!(seen.headers_named("content-type"), [content_type.as_bytes()]);
                requests += 1;
            }
        }
    }
    // requests without a body stay without
    for method in ["GET", "DELETE", "OPTIONS", "HEAD"] {
        let request = Request::new(method, PASSING).bearer("tok-1");
        assert_eq!(Client::connect(gateway.addr).await.request(request).await.status, 200);
        let seen = upstream.last_request();
        assert_eq!(seen.method, method);
        for name in ["content-length", "transfer-encoding", "content-type"] {
            assert!(seen.headers_named(name).is_empty(), "{method}: {:?}", seen.headers);
        }
        requests += 1;
    }
    assert_eq!(upstream.calls(), requests as u64);
    settle(&gateway, requests).await;
}
