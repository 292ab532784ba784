//! A replay is the upstream's own refusal, byte for byte: status, body, content-type, content-encoding and
//! content-language, whatever they are and however they were framed; and nothing else of that answer.

use std::collections::BTreeSet;

use nevertwice_testkit::client::h2_post;
use nevertwice_testkit::{Answer, Client, DOC, DOC2, Gateway, Post, Reply, Request, Step, Upstream, r400};

use crate::bench::{gzip, settle};
use crate::caller::{
    CLASSIFY, LAYOUT, assert_live, assert_own, assert_replay, entries, entry_count, field, submit, submit_as,
};

/// Sends the document twice and checks that the second answer is a replay of the first, with one call in all.
async fn refused_twice(
    gateway: &Gateway,
    upstream: &Upstream,
    path: &str,
    document: &[u8],
) -> (Answer, Answer) {
    let before = upstream.calls();
    let send = || submit(gateway, path).header("Accept-Encoding", "gzip").body(document.to_vec()).send();
    let live = send().await;
    let hit = send().await;
    assert!(field(&live, "x-negative-cache").is_none() && live.complete, "{:?}", live.headers);
    assert_replay(&live, &hit);
    assert_eq!(upstream.calls() - before, 1);
    (live, hit)
}

#[tokio::test]
async fn rf_01_compressed_refusal_is_replayed_compressed() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let body = gzip(&[br#"{"error":"unreadable page"}"#]).concat();
    let refusal = || Reply::status(400).header("Content-Type", "application/json");

    upstream.always(refusal().header("Content-Encoding", "gzip").body(body.clone()));
    let (live, hit) = refused_twice(&gateway, &upstream, CLASSIFY, &DOC).await;
    assert_eq!((&live.body[..], &hit.body[..]), (&body[..], &body[..]));
    assert_eq!(hit.header("content-encoding").as_deref(), Some("gzip"));
    assert_eq!(hit.header("content-type").as_deref(), Some("application/json"));
    assert_eq!(live.header("content-length"), Some(body.len().to_string()));
    assert_eq!(upstream.last_request().headers_named("accept-encoding"), [b"identity"]);
    // A caller that asks for no coding gets the same bytes with the same label.
    let plain = submit_as(&gateway, 2, CLASSIFY).body(&DOC[..]).send().await;
    assert_replay(&live, &plain);

    // Labels stay, whatever they say, and however many lines they take.
    let labels: [&[(&str, &str)]; 6] = [
        &[("Content-Encoding", "br")],
        &[("Content-Encoding", "GZip , identity")],
        &[("Content-Encoding", "gzip"), ("Content-Encoding", "br")],
        &[("Content-Language", "de-AT, en"), ("Content-Encoding", "identity")],
        &[("Content-Language", "de"), ("Content-Language", "en")],
        &[("Content-Language", "")],
    ];
    for (number, labels) in labels.iter().enumerate() {
        let reply = labels.iter().fold(refusal(), |reply, (name, value)| reply.header(name, value));
        upstream.always(reply.body(body.clone()));
        let (live, _) =
            refused_twice(&gateway, &upstream, LAYOUT, format!("labels {number}").as_bytes()).await;
        for (name, _) in *labels {
            let sent: Vec<_> = labels.iter().filter(|(n, _)| n == name).map(|(_, v)| *v).collect();
            assert_eq!(field(&live, name), Some(sent.join(", ").into_bytes()));
        }
    }
    assert_eq!(entry_count(&gateway).await, 7);
    settle(&gateway, 15).await;
}

#[tokio::test]
async fn rf_03_empty_refusal_stays_empty_and_the_connection_in_step() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    upstream.script(vec![Reply::status(422), Reply::status(200).body("fine")]);
    let mut client = Client::connect(gateway.addr).await;
    let send = |document: &'static [u8]| Request::post(LAYOUT).bearer("tok-1").body(document);
    let live = client.request(send(&DOC)).await;
    let hit = client.request(send(&DOC)).await;
    assert_live(&live, 422);
    assert_replay(&live, &hit);
    for answer in [&live, &hit] {
        assert_eq!(answer.header("content-length").as_deref(), Some("0"));
        assert_eq!((field(answer, "content-type"), answer.body.len()), (None, 0));
    }
    let good = client.request(send(&DOC2)).await;
    assert_live(&good, 200);
    assert_eq!((good.text().as_str(), upstream.calls()), ("fine", 2));
    // The rule of the profile `status`: remembered, and counted as something to look at.
    assert_eq!(gateway.metric("gateway_negative_cache_doubtful_total", &[("reason", "empty")]).await, 1.0);

    // Empty chunked, and empty with a type.
    upstream.script(vec![
        Reply::status(400).chunked(Vec::<Vec<u8>>::new()),
        Reply::status(400).header("Content-Type", "application/json"),
    ]);
    for document in [&b"empty chunked"[..], b"empty typed"] {
        let (_, hit) = refused_twice(&gateway, &upstream, CLASSIFY, document).await;
        assert_eq!(hit.header("content-length").as_deref(), Some("0"));
    }
    settle(&gateway, 7).await;
}

#[tokio::test]
async fn rf_05_chunked_refusal_is_replayed_with_a_length() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
    let chunks = "5\r\n{\"a\":\r\n3;x=y\r\n12}\r\n0\r\n\r\n";
    upstream.always(Reply::raw(format!("{head}\r\n{chunks}")));
    let (live, hit) = refused_twice(&gateway, &upstream, CLASSIFY, &DOC).await;
    assert_eq!((live.text().as_str(), hit.text().as_str()), ("{\"a\":12}", "{\"a\":12}"));
    assert_eq!(hit.header("content-length").as_deref(), Some("8"));
    let framings = live.headers_named("content-length").len() + live.headers_named("transfer-encoding").len();
    assert_eq!(framings, 1, "{:?}", live.headers);
    // Chunk by chunk and byte by byte are the same payload.
    let bytes: Vec<Vec<u8>> = b"{\"a\":12}".iter().map(|byte| vec![*byte]).collect();
    upstream.always(Reply::status(400).header("Content-Type", "application/json").chunked(bytes));
    let (_, hit) = refused_twice(&gateway, &upstream, CLASSIFY, &DOC2).await;
    assert_eq!(hit.text(), "{\"a\":12}");
    // Neither an interim answer, nor the end of the connection, nor an old version changes what a whole refusal is.
    let old = "HTTP/1.0 400 No\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\nno";
    let whole = [
        r400().interim(103),
        r400().interim(100).interim(102),
        r400().close_after(),
        Reply::raw(old).steps(vec![Step::write(old), Step::Close]),
        r400().reason("Nicht lesbar \u{e4}"),
    ];
    for (number, reply) in whole.into_iter().enumerate() {
        upstream.always(reply);
        let (live, hit) =
            refused_twice(&gateway, &upstream, LAYOUT, format!("whole {number}").as_bytes()).await;
        assert!(live.interim.is_empty() && hit.interim.is_empty(), "{:?}", live.interim);
    }
    settle(&gateway, 14).await;
}

/// What it takes to be malformed, and whether a well-formed relay of a part is possible at all.
const MALFORMED: [(&str, &str); 15] = [
    (
        "coding twice",
        "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
    ),
    (
        "coding listed twice",
        "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked, chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
    ),
    ("another coding", "HTTP/1.1 400 No\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"),
    (
        "both framings",
        "HTTP/1.1 400 No\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
    ),
    ("two lengths", "HTTP/1.1 400 No\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nnoo"),
    ("one length twice", "HTTP/1.1 400 No\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nno"),
    ("a list of lengths", "HTTP/1.1 400 No\r\nContent-Length: 2, 2\r\n\r\nno"),
    ("a signed length", "HTTP/1.1 400 No\r\nContent-Length: +2\r\n\r\nno"),
    ("chunk size with prefix", "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nno\r\n0\r\n\r\n"),
    (
        "chunk longer than its size",
        "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nnooo\r\n0\r\n\r\n",
    ),
    ("status of four digits", "HTTP/1.1 4000 No\r\nContent-Length: 2\r\n\r\nno"),
    ("no status line", "not HTTP at all\r\n\r\n"),
    ("a control byte in a value", "HTTP/1.1 400 No\r\nX-A: a\0b\r\nContent-Length: 2\r\n\r\nno"),
    ("no colon", "HTTP/1.1 400 No\r\nX-A\r\nContent-Length: 2\r\n\r\nno"),
    ("coding in HTTP/1.0", "HTTP/1.0 400 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"),
];

#[tokio::test]
async fn rf_05_malformed_refusal_is_a_clean_502_and_never_remembered() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    for (number, (what, wire)) in MALFORMED.into_iter().enumerate() {
        upstream.always(Reply::raw(wire));
        for round in 1..=2 {
            let answer = submit(&gateway, CLASSIFY).body(what).send().await;
            assert_eq!(answer.status, 502, "{what}: {:?} {}", answer.headers, answer.text());
            assert_own(&answer, 502, "UPSTREAM_MALFORMED");
            assert_eq!(upstream.calls(), 2 * number as u64 + round, "{what}");
        }
    }
    assert_eq!(entry_count(&gateway).await, 0);
    settle(&gateway, 2 * MALFORMED.len()).await;
}

#[tokio::test]
async fn rf_05_cut_refusal_is_never_taken_for_a_whole_one() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let cut = [
        "HTTP/1.1 400 No\r\nContent-Length: 27\r\n\r\n{\"error\"",
        "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n",
        "HTTP/1.1 400 No\r\nContent-Le",
    ];
    for (number, wire) in cut.into_iter().enumerate() {
        upstream.always(Reply::raw(wire).steps(vec![Step::write(wire), Step::Close]));
        for round in 1..=2 {
            let answer = submit(&gateway, CLASSIFY).body(wire).send().await;
            assert_eq!((answer.status, field(&answer, "x-negative-cache")), (502, None), "{wire:?}");
            assert_eq!(upstream.calls(), 2 * number as u64 + round, "{wire:?}");
        }
    }
    // A body that ends with the connection may be whole or cut: passed on, not remembered.
    upstream.always(Reply::raw("").steps(vec![
        Step::write("HTTP/1.1 400 No\r\nContent-Type: text/plain\r\n\r\nbad page"),
        Step::Close,
    ]));
    for _ in 0..2 {
        let answer = submit(&gateway, CLASSIFY).body(&DOC[..]).send().await;
        assert_live(&answer, 400);
        assert_eq!(answer.text(), "bad page");
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (12, 0));
    let incomplete =
        gateway.metric("gateway_negative_cache_not_recorded_total", &[("reason", "incomplete")]).await;
    assert_eq!(incomplete, 2.0);
    settle(&gateway, 12).await;
}

#[tokio::test]
async fn rf_07_refusal_that_is_not_utf_8_is_kept_as_bytes() {
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::simple(&upstream.url()).await;
    let body = [0x66, 0x6f, 0x72, 0x6d, 0xe9, 0x00, 0xff, 0xfe, 0x0a];
    upstream.always(
        Reply::status(415).header("Content-Type", "text/plain; charset=iso-8859-1").body(body.to_vec()),
    );
    let (live, hit) = refused_twice(&gateway, &upstream, CLASSIFY, &DOC).await;
    assert_eq!((&live.body[..], &hit.body[..]), (&body[..], &body[..]));
    // A type with such bytes, too.
    upstream.always(Reply::status(415).header("Content-Type", b"text/plain; charset=\"\xe9\"").body("odd"));
    let (odd, hit) = refused_twice(&gateway, &upstream, CLASSIFY, &DOC2).await;
    assert_eq!(field(&hit, "content-type"), Some(b"text/plain; charset=\"\xe9\"".to_vec()));

    // The operator's view is valid JSON, and tells the bytes.
    let listed = entries(&gateway, "?sort=recent").await;
    assert_eq!(listed[0]["content_type"], "text/plain; charset=\"\\xe9\"");
    let key = listed[1]["fingerprint"].as_str().unwrap_or_default();
    let (status, shown) = gateway.admin_get(&format!("/admin/v1/refusals/{key}")).await;
    assert_eq!((status, shown["body_base64"].as_str()), (200, Some("Zm9ybekA//4K")));
    assert_eq!((shown["body_bytes"].as_u64(), shown.get("body_text")), (Some(9), None));
    settle(&gateway, 4).await;

    // What comes from the disk is the same.
    gateway.restart().await;
    for (document, first) in [(&DOC, &live), (&DOC2, &odd)] {
        assert_replay(first, &submit(&gateway, CLASSIFY).body(&document[..]).send().await);
    }
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, 6).await;
}

#[tokio::test]
async fn rf_10_trailers_end_at_the_gateway_and_announce_nothing() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let refusal = Reply::status(422)
        .header("Trailer", "X-Sum")
        .chunked(vec!["ba", "d"])
        .trailer("X-Sum", "1")
        .trailer("Content-Length", "999")
        .trailer("Retry-After", "60")
        .trailer("X-Negative-Cache", "HIT");
    upstream.script(vec![refusal, Reply::status(200).body("fine")]);
    let mut client = Client::connect(gateway.addr).await;
    let send = |document: &'static [u8]| Request::post(CLASSIFY).bearer("tok-1").body(document);
    let live = client.request(send(&DOC)).await;
    let hit = client.request(send(&DOC)).await;
    assert_live(&live, 422);
    assert_replay(&live, &hit);
    for answer in [&live, &hit] {
        assert_eq!((answer.text().as_str(), field(answer, "trailer")), ("bad", None));
        assert!(answer.trailers.is_empty() && field(answer, "x-sum").is_none(), "{:?}", answer.trailers);
    }
    // Both connections are in step.
    let good = client.request(send(&DOC2)).await;
    assert_live(&good, 200);
    assert_eq!((good.text().as_str(), upstream.calls(), upstream.connections()), ("fine", 2, 1));
    settle(&gateway, 3).await;
}

#[tokio::test]
async fn rf_12_every_other_status_passes_unchanged_and_unremembered() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let statuses = [
        201, 202, 204, 205, 207, 226, 299, 300, 304, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411,
        412, 414, 416, 417, 418, 421, 423, 424, 425, 426, 428, 429, 431, 451, 460, 499, 500, 501, 502, 503,
        504, 505, 507, 511, 529, 599,
    ];
    for status in statuses {
        let body = if matches!(status, 204 | 205 | 304) { String::new() } else { format!("status {status}") };
        upstream.always(Reply::status(status).header("Content-Type", "text/plain").body(body.clone()));
        for _ in 0..2 {
            let before = upstream.calls();
            let answer = submit(&gateway, CLASSIFY).body(format!("document {status}")).send().await;
            assert_live(&answer, status);
            assert_eq!((answer.text(), upstream.calls() - before), (body.clone(), 1), "{status}");
        }
    }
    assert_eq!(entry_count(&gateway).await, 0);
    let lines = settle(&gateway, 2 * statuses.len()).await;
    for (line, status) in lines.iter().step_by(2).zip(statuses) {
        let code = if status < 400 { "OK".to_owned() } else { format!("HTTP_{status}") };
        assert_eq!((&line["code"], &line["status"]), (&code.into(), &status.into()), "{line}");
        assert!(line["upstream_ms"].as_u64() > Some(0), "{line}");
    }

    // The gateway's own 502 is told apart, and says that nothing was sent.
    upstream.stop().await;
    let answer = submit(&gateway, CLASSIFY).body(&DOC[..]).send().await;
    assert_own(&answer, 502, "UPSTREAM_UNREACHABLE");
    upstream.restart().await;
    upstream.always(r400());
    refused_twice(&gateway, &upstream, CLASSIFY, &DOC).await;
    settle(&gateway, 2 * statuses.len() + 3).await;
}

/// How a client speaks.
#[derive(Clone, Copy, Debug)]
enum Speaks {
    Http11,
    Http10,
    Http2,
}

async fn send(gateway: &Gateway, speaks: Speaks, document: &str) -> Answer {
    match speaks {
        Speaks::Http11 => submit(gateway, CLASSIFY).body(document.to_owned()).send().await,
        Speaks::Http2 => {
            let headers = [("authorization", "Bearer tok-1")];
            h2_post(gateway.addr, CLASSIFY, &headers, document.to_owned()).await
        }
        Speaks::Http10 => {
            let mut client = Client::connect(gateway.addr).await;
            let length = document.len();
            let request = format!(
                "POST {CLASSIFY} HTTP/1.0\r\nAuthorization: Bearer tok-1\r\nContent-Length: {length}\r\n\r\n{document}"
            );
            assert_eq!(client.send(request).await, Ok(()));
            let answer = client.read_answer().await;
            assert!(client.closed_by_peer().await, "HTTP/1.0 without keep-alive ends the connection");
            answer
        }
    }
}

#[tokio::test]
async fn rule_27_every_status_and_size_is_replayed_over_every_protocol() {
    const CAP: usize = 64 << 10;
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let bodies =
        [Vec::new(), vec![b'x'], vec![b'y'; CAP], vec![b'z'; CAP + 1], vec![0xe9, 0, 0xff, 0xfe, 10]];
    let answers = bodies.clone();
    // A document says how it is to be refused: `400 2 Http11`.
    upstream.by(move |seen, _| {
        let text = String::from_utf8_lossy(&seen.body).into_owned();
        let mut words = text.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u16>().ok()).unwrap_or_default();
        let (status, body) = (number(), number());
        Reply::status(status).header("Content-Type", "x/y").body(answers[usize::from(body)].clone())
    });
    let all = [Speaks::Http11, Speaks::Http10, Speaks::Http2];
    let mut requests = 0;
    for status in [400, 413, 415, 422] {
        for (number, body) in bodies.iter().enumerate() {
            for speaks in all {
                let document = format!("{status} {number} {speaks:?}");
                let before = upstream.calls();
                let live = send(&gateway, speaks, &document).await;
                assert_live(&live, status);
                assert_eq!(live.body, body, "{document}");
                for again in all {
                    let answer = send(&gateway, again, &document).await;
                    if body.len() > CAP {
                        assert_live(&answer, status);
                        assert_eq!(answer.body, live.body, "{document} over {again:?}");
                    } else {
                        assert_replay(&live, &answer);
                    }
                }
                requests += 4;
                assert_eq!(upstream.calls() - before, if body.len() > CAP { 4 } else { 1 }, "{document}");
            }
        }
    }
    assert_eq!(entry_count(&gateway).await, 4 * 4 * 3);
    let too_large = [("reason", "body_too_large")];
    assert_eq!(gateway.metric("gateway_negative_cache_not_recorded_total", &too_large).await, 48.0);
    let replays = gateway.metric("gateway_negative_cache_refusals_total", &[("status", "413")]).await;
    assert_eq!(replays, 36.0);
    settle(&gateway, requests).await;
}

/// What an upstream may send beside what a replay carries.
const UPSTREAM_FIELDS: [(&str, &str); 42] = [
    ("Content-Type", "application/problem+json; charset=utf-8"),
    ("Content-Language", "en"),
    ("Content-Encoding", "identity"),
    ("Content-Disposition", "inline"),
    ("Content-Location", "/errors/1"),
    ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("Server", "ocr/1.0"),
    ("Set-Cookie", "session=of-the-first-caller"),
    ("Set-Cookie", "second=1"),
    ("X-Request-Id", "req-1"),
    ("Request-Id", "req-1"),
    ("X-Ms-Request-Id", "req-1"),
    ("Apim-Request-Id", "req-1"),
    ("X-Amzn-RequestId", "req-1"),
    ("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("Tracestate", "a=b"),
    ("Server-Timing", "db;dur=53"),
    ("RateLimit", "\"default\";r=50;t=30"),
    ("RateLimit-Policy", "\"default\";q=100;w=60"),
    ("RateLimit-Remaining", "1"),
    ("X-RateLimit-Limit-Requests", "60"),
    ("X-RateLimit-Remaining-Tokens", "0"),
    ("X-Ratelimit-Reset-Tokens", "1s"),
    ("ETag", "\"1\""),
    ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("Expires", "0"),
    ("Cache-Control", "max-age=60"),
    ("Age", "7"),
    ("Vary", "*"),
    ("Via", "1.1 proxy"),
    ("Cache-Status", "cdn; fwd=miss"),
    ("X-Cache", "MISS"),
    ("Link", "</help>; rel=help"),
    ("Location", "https://elsewhere.example/"),
    ("Warning", "199 - x"),
    ("WWW-Authenticate", "Basic"),
    ("Proxy-Authenticate", "Basic"),
    ("Keep-Alive", "timeout=5"),
    ("Alt-Svc", "h2=\":443\""),
    ("Strict-Transport-Security", "max-age=1"),
    ("X-Should-Retry", "false"),
    ("Access-Control-Allow-Origin", "*"),
];

#[tokio::test]
async fn rule_28_replay_has_exactly_the_kept_fields_and_the_gateways_own() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let reply =
        UPSTREAM_FIELDS.iter().fold(Reply::status(400), |reply, (name, value)| reply.header(name, value));
    upstream.always(
        reply
            .header("X-Negative-Cache", "HIT")
            .header("X-Negative-Cache-Entry", "0".repeat(64))
            .header("X-Gateway-Error", "POOL_FULL")
            .body("no"),
    );
    let trace = |id: u8| format!("00-{:032x}-00000000000000aa-01", id);
    let send = |id: u8| submit(&gateway, CLASSIFY).header("Traceparent", trace(id)).body(&DOC[..]).send();
    let live = send(1).await;
    assert_live(&live, 400);
    // The first caller gets what the upstream said, but for what speaks of the connection and the markers.
    for (name, value) in UPSTREAM_FIELDS {
        let connection = matches!(name, "Keep-Alive" | "Proxy-Authenticate");
        let there = live.headers_named(name).contains(&value.as_bytes());
        assert_eq!(there, !connection, "{name}: {:?}", live.headers);
    }
    let hit = send(2).await;
    assert_replay(&live, &hit);
    let names: BTreeSet<String> = hit.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let mut expected = BTreeSet::from(
        [
            "age",
            "cache-status",
            "content-encoding",
            "content-language",
            "content-length",
            "content-type",
            "date",
            "x-negative-cache",
            "x-negative-cache-entry",
            "x-should-retry",
        ]
        .map(str::to_owned),
    );
    assert_eq!(names.len(), hit.headers.len(), "a field twice: {:?}", hit.headers);
    if !names.contains("date") {
        expected.remove("date");
    }
    assert_eq!(names, expected);
    assert_ne!(hit.header("date").as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    assert_eq!(hit.header("age").as_deref().map(|age| age.len() == 1), Some(true), "{:?}", hit.headers);
    // Each caller keeps its own trace.
    let lines = settle(&gateway, 2).await;
    for (line, id) in lines.iter().zip([1, 2]) {
        assert_eq!(line["trace_id"], format!("{id:032x}"));
    }
    assert_eq!((&lines[0]["code"], &lines[0]["cache_hit"]), (&"HTTP_400".into(), &false.into()));
    assert_eq!((&lines[1]["code"], &lines[1]["cache_hit"]), (&"REFUSED_HTTP_400".into(), &true.into()));
    assert_eq!((&lines[1]["upstream_ms"], &lines[1]["attempts"]), (&0.into(), &0.into()));
    assert!(lines[0]["upstream_ms"].as_u64() > Some(0));
    assert_eq!(lines[0]["document_sha256"], lines[1]["document_sha256"]);
    assert_eq!(lines[1]["fingerprint"].as_str(), hit.header("x-negative-cache-entry").as_deref());
}

#[tokio::test]
async fn three_tenants_on_three_connections_cost_one_call() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    let live = submit_as(&gateway, 1, CLASSIFY).body(&DOC[..]).send().await;
    assert_live(&live, 400);
    for (tenant, times) in [(1, 2), (2, 3), (3, 1)] {
        for _ in 0..times {
            assert_replay(&live, &submit_as(&gateway, tenant, CLASSIFY).body(&DOC[..]).send().await);
        }
    }
    assert_eq!(upstream.calls(), 1);
    let listed = entries(&gateway, "").await;
    assert_eq!(listed.len(), 1);
    let entry = &listed[0];
    assert_eq!(
        (&entry["replays"], &entry["status"], &entry["body_bytes"]),
        (&6.into(), &400.into(), &27.into())
    );
    assert_eq!(entry["tenants"], serde_json::json!(["dev_1", "dev_2", "dev_3"]));
    // Only those who may ask learn that there is anything to know.
    for (key, status, code) in [("tok-9", 401, "UNAUTHENTICATED"), ("", 401, "UNAUTHENTICATED")] {
        let answer = Post::to(gateway.addr, CLASSIFY).bearer(key).body(&DOC[..]).send().await;
        assert_own(&answer, status, code);
    }
    assert_eq!(upstream.calls(), 1);
    // In every signal, a replay is a thing of its own and no error of the upstream.
    let requests = async |code| {
        gateway.metric("gateway_requests_total", &[("upstream", "doc-classifier"), ("code", code)]).await
    };
    assert_eq!((requests("HTTP_400").await, requests("REFUSED").await), (1.0, 6.0));
    let replayed = gateway.metric("gateway_tenant_requests_total", &[("result", "replayed")]).await;
    let refused = gateway.metric("gateway_tenant_requests_total", &[("result", "refused")]).await;
    let attempts = gateway.metric("gateway_upstream_attempts_total", &[]).await;
    let replays = gateway.metric("gateway_negative_cache_refusals_total", &[("status", "400")]).await;
    assert_eq!((replayed, refused, attempts, replays), (6.0, 1.0, 1.0, 6.0));
    settle(&gateway, 9).await;
}
