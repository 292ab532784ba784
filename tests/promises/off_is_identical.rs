//! Off means identical: without the memory (no block, `enabled: false`, or on with this route unguarded) both wires carry
//! the same bytes, those of the stored file, and there is no store, no log line and no series of the memory.
//!
//! The stored files were made by this test. When a change of the bytes is meant, run it with `NEVERTWICE_GOLDEN=write` and
//! review the difference.

use std::path::PathBuf;

use nevertwice_testkit::{
    Answer, Client, DOC2, Gateway, Part, Reply, Request, Seen, Step, Upstream, multipart, r400,
};

use crate::bench::settle;

/// What is sent and what is answered, in order, on one connection.
fn script() -> [(Request, Reply); 19] {
    let classify = || Request::post("/doc-classifier/classify").bearer("tok-1");
    let (form, body) = multipart(
        "b-1",
        &[Part::file("file", "a.pdf", "application/pdf", b"%PDF"), Part::field("lang", "en")],
    );
    let events = ["data: a\n\n", "data: b\n\n"];
    let refused = classify().header("Content-Type", "application/pdf").body("%PDF-1.7 bad");
    [
        (refused.clone(), r400()),
        (refused.clone(), r400()),
        (
            refused.header("Accept-Encoding", "gzip").header("X-Negative-Cache", "HIT"),
            r400().header("X-Negative-Cache", "HIT"),
        ),
        (
            classify().header("Content-Type", form).body(body),
            Reply::status(422).header("Content-Type", "text/html").body("<p>no</p>"),
        ),
        (classify().body("chunked upload").chunked(9), Reply::status(200).chunked(vec!["one chunk"])),
        (classify().body(""), Reply::status(415)),
        (
            classify().body("x").header("Accept-Encoding", "gzip"),
            Reply::status(200).header("Content-Encoding", "gzip").body(&b"\x1f\x8b\x08\x00\xff"[..]),
        ),
        (
            classify()
                .body(&DOC2[..64])
                .header("X-Custom", "1")
                .header("X-Custom", "2")
                .header("Connection", "keep-alive, X-Hop")
                .header("X-Hop", "gone")
                .header("Cookie", "a=b"),
            Reply::status(200)
                .header("Set-Cookie", "c=d")
                .header("Set-Cookie", "e=f")
                .header("Connection", "X-Up")
                .header("X-Up", "gone")
                .header("ETag", "\"1\"")
                .body("fine"),
        ),
        (classify().body("r"), Reply::status(307).header("Location", "/classify/")),
        (classify().body("e"), Reply::status(500).header("Retry-After", "3").body("oops")),
        (classify().body("m"), Reply::raw("HTTP/1.1 4000 Bad\r\n\r\n")),
        (
            classify().body("s"),
            Reply::status(200)
                .header("Content-Type", "text/event-stream")
                .steps(vec![Step::chunk(events.concat()), Step::LastChunk]),
        ),
        (
            Request::new("PUT", "/doc-classifier/classify?a=%2F&b").header("api-key", "tok-1").body("put"),
            Reply::status(201).body("made"),
        ),
        (
            Request::get("/doc-classifier/classify").header("x-api-key", "tok-2"),
            Reply::status(200).body("got"),
        ),
        (
            Request::new("HEAD", "/doc-classifier/classify").bearer("tok-1"),
            Reply::status(200).header("Content-Length", "77"),
        ),
        (Request::new("DELETE", "/doc-classifier/x/1").bearer("tok-1"), Reply::status(204)),
        (
            Request::get("/doc-classifier/x").bearer("tok-1").header("If-None-Match", "\"1\""),
            Reply::status(304).header("ETag", "\"1\""),
        ),
        (Request::get("/elsewhere").bearer("tok-1"), Reply::status(200)),
        (Request::get("/doc-classifier/x").bearer("wrong"), Reply::status(200)),
    ]
}

/// Both wires as text, with what differs between any two runs made alike.
async fn both_wires(gateway: &Gateway, upstream: &Upstream) -> String {
    let mut text = String::new();
    let mut client = Client::connect(gateway.addr).await;
    for (request, reply) in script() {
        upstream.always(reply);
        let before = upstream.requests().len();
        let name = request.to_string();
        let answer = client
            .request(request.header("traceparent", format!("00-{}-{}-01", "a".repeat(32), "b".repeat(16))))
            .await;
        let seen = upstream.requests().into_iter().nth(before);
        text += &format!("==== {name}\n");
        text += &seen.map_or_else(|| "---- nothing went up\n".to_owned(), |seen| went_up(&seen));
        text += &came_back(&answer);
        if answer.header("connection").as_deref() == Some("close") {
            client = Client::connect(gateway.addr).await;
        }
    }
    let text =
        text.replace(&upstream.addr().to_string(), "UPSTREAM").replace(&gateway.addr.to_string(), "GATEWAY");
    text.lines().map(|line| alike(line) + "\n").collect()
}

fn went_up(seen: &Seen) -> String {
    format!("---- to the upstream\n{}\n", shown(&seen.raw()))
}

fn came_back(answer: &Answer) -> String {
    format!("---- to the client\n{}\n", shown(&[&answer.head_raw[..], &answer.raw_body[..]].concat()))
}

/// Bytes as text that shows every one of them.
fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\r\\n", "\\r\\n\n").replace("\\\"", "\"")
}

fn alike(line: &str) -> String {
    match line.split_once(": ") {
        Some((name, _)) if name.eq_ignore_ascii_case("date") => format!("{name}: DATE\\r\\n"),
        Some((name, value)) if name.eq_ignore_ascii_case("traceparent") => {
            let mut parts: Vec<&str> = value.split('-').collect();
            if let Some(span) = parts.get_mut(2) {
                *span = "SPAN";
            }
            format!("{name}: {}", parts.join("-"))
        }
        _ => line.to_owned(),
    }
}

fn golden(name: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("promises/golden").join(name);
    if std::env::var_os("NEVERTWICE_GOLDEN").is_some_and(|value| value == "write") {
        let written = std::fs::create_dir_all(path.parent().unwrap_or(&path))
            .and_then(|()| std::fs::write(&path, found));
        written.unwrap_or_else(|error| unreachable!("{}: {error}", path.display()));
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(stored.lines()).enumerate().find(|(_, (found, stored))| found != stored);
    if let Some((at, (found, stored))) = differs {
        assert_eq!(found, stored, "{name}, line {}", at + 1);
    }
    assert_eq!(found.lines().count(), stored.lines().count(), "{name} has another length");
}

/// The series of `/metrics`: names and labels without their values.
async fn series(gateway: &Gateway) -> String {
    let text = gateway.metrics().await;
    let mut all: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series))
        .collect();
    all.sort_unstable();
    all.iter().map(|series| format!("{series}\n")).collect()
}

const BLOCK: &str = "negative_cache:\n  enabled: true\n";

#[tokio::test]
async fn off_and_absent_are_the_stored_bytes_and_series() {
    let upstream = Upstream::start().await;
    let on = Gateway::simple_yaml(&upstream.url(), &[]);
    assert!(on.contains(BLOCK), "{on}");
    for (case, yaml) in [
        ("absent", on.replace(BLOCK, "")),
        (
            "enabled: false",
            on.replace(BLOCK, "negative_cache:\n  enabled: false\n  ttl_s: 60\n  statuses: [400]\n"),
        ),
    ] {
        let gateway = Gateway::start(&yaml).await;
        golden("off_wire.txt", &both_wires(&gateway, &upstream).await);
        let lines = settle(&gateway, script().len()).await;
        golden("off_metrics.txt", &series(&gateway).await);
        assert!(!gateway.metrics().await.contains("negative_cache"), "{case}");
        assert!(!gateway.log().contains("refusal memory"), "{case}: {}", gateway.log());
        assert!(!gateway.dir().join("data").exists(), "{case}: no store is made");
        for line in &lines {
            assert_eq!(line["cache_hit"], false, "{case}");
            for absent in ["fingerprint", "document_sha256", "would_replay"] {
                assert!(line.get(absent).is_none(), "{case}: {line}");
            }
        }
        assert_eq!(gateway.admin_get("/admin/v1/refusals").await.0, 409, "{case}");
    }
}

#[tokio::test]
async fn on_with_this_route_unguarded_is_the_same_bytes() {
    let upstream = Upstream::start().await;
    let on = |slots: &[(&str, &str)]| Gateway::simple_yaml(&upstream.url(), slots);
    for (case, yaml) in [
        ("off on the upstream", on(&[("UPSTREAM", "negative_cache: {enabled: false}")])),
        ("not listed", on(&[]).replace("sync_paths: [/classify, /layout]", "sync_paths: [/layout]")),
        (
            "openai",
            on(&[])
                .replace("adapter: sync-facade", "adapter: openai")
                .replace("    sync_paths: [/classify, /layout]\n", ""),
        ),
    ] {
        let gateway = Gateway::start(&yaml).await;
        golden("off_wire.txt", &both_wires(&gateway, &upstream).await);
        settle(&gateway, script().len()).await;
        for series in ["refusals_total", "recorded_total", "entries", "not_recorded_total", "waits_total"] {
            let name = format!("gateway_negative_cache_{series}");
            assert_eq!(gateway.metric(&name, &[]).await, 0.0, "{case}: {name}");
        }
    }
}
