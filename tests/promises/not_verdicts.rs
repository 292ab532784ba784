//! Refusals that are no verdict on the document: what says "later" is never remembered, routes without the memory never
//! have one, and what was remembered by mistake or is not true any more goes at an operator's word.
//!
//! `profile: status`, which these tests use, knows no error codes: a refusal of another thing that looks like one of the
//! document is remembered on a guarded route, and stands in the operator's list with the upstream's own words. Profiles that
//! do know codes are in `profiles.rs`.

use nevertwice_testkit::{
    Answer, Client, DOC, Gate, Gateway, Post, Reply, Request, Step, Upstream, r400, random_document,
};
use serde_json::json;

use crate::bench::settle;
use crate::caller::{CLASSIFY, assert_live, assert_own, assert_replay, entries, entry_count, forget, submit};

/// A gateway with the document routes, and with chat routes under `/llm`, all at one upstream.
async fn with_chat(upstream: &Upstream) -> Gateway {
    let chat = format!("- name: llm\n  adapter: openai\n  base_url: \"{}\"\n  mount: /llm", upstream.url());
    Gateway::with(&upstream.url(), &[("UPSTREAMS", &chat)]).await
}

fn refusal(status: u16, body: &str) -> Reply {
    Reply::status(status).header("Content-Type", "application/json").body(body.to_owned())
}

fn chat(gateway: &Gateway, path: &str) -> Post {
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] });
    submit(gateway, path).header("Content-Type", "application/json").body(body.to_string())
}

/// Refusals that the same request recovers from, on the chat routes: each of them goes up, and the fourth call is good.
async fn heals_at_once_on_chat(bodies: &[(u16, &str)]) {
    let upstream = Upstream::start().await;
    let gateway = with_chat(&upstream).await;
    let mut requests = 0;
    for path in ["/llm/v1/chat/completions", "/llm/v1/embeddings", "/llm/v1/completions", "/llm/v1/responses"]
    {
        for (status, body) in bodies {
            upstream.always(refusal(*status, body));
            let before = upstream.calls();
            for _ in 0..3 {
                let answer = chat(&gateway, path).send().await;
                assert_live(&answer, *status);
                assert_eq!(answer.text(), *body);
            }
            upstream.always(Reply::status(200).body("{}"));
            assert_live(&chat(&gateway, path).send().await, 200);
            assert_eq!(upstream.calls() - before, 4, "{path} {body}");
            requests += 4;
        }
    }
    assert_eq!(entry_count(&gateway).await, 0);
    settle(&gateway, requests).await;
}

/// The same refusals on a document route, where only the profile could tell: what the operator then sees and can do.
async fn is_shown_with_its_words_on_a_document_route(status: u16, body: &str) {
    let upstream = Upstream::start().await;
    let gateway = with_chat(&upstream).await;
    upstream.always(refusal(status, body));
    let live = submit(&gateway, CLASSIFY).body(&DOC[..]).send().await;
    assert_live(&live, status);
    assert_replay(&live, &submit(&gateway, CLASSIFY).body(&DOC[..]).send().await);
    let listed = entries(&gateway, "?upstream=doc-classifier").await;
    assert_eq!((listed.len(), &listed[0]["status"], &listed[0]["replays"]), (1, &status.into(), &1.into()));
    let key = listed[0]["fingerprint"].as_str().unwrap_or_default();
    let (_, shown) = gateway.admin_get(&format!("/admin/v1/refusals/{key}")).await;
    assert_eq!(shown["body_text"], body);
    // The document is found by what `sha256sum` prints.
    let digest = "a9244902da5899458950849c549905dd7d67cb5d2e6cfdbf8edfc120ec90c02a";
    assert_eq!(listed[0]["document_sha256"], digest);
    assert_eq!(forget(&gateway, &json!({ "document": digest })).await, 1);
    upstream.always(Reply::status(200));
    assert_live(&submit(&gateway, CLASSIFY).body(&DOC[..]).send().await, 200);
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, 3).await;
}

const EMPTY_WALLET: &str = r#"{"error":{"type":"invalid_request_error","message":"balance too low"}}"#;
const NO_MODEL: &str = r#"{"error":{"code":"model_not_found"}}"#;
const FILTERED: &str = r#"{"error":{"code":"content_filter","message":"policy P-7 of tenant dev_1"}}"#;

#[tokio::test]
async fn nv_01_empty_wallet_heals_the_same_second_on_chat() {
    heals_at_once_on_chat(&[(400, EMPTY_WALLET), (402, EMPTY_WALLET), (422, EMPTY_WALLET)]).await;
}

#[tokio::test]
async fn nv_01_empty_wallet_on_a_document_route_is_shown_with_its_words() {
    is_shown_with_its_words_on_a_document_route(400, EMPTY_WALLET).await;
}

#[tokio::test]
async fn nv_03_missing_deployment_heals_by_itself_on_chat() {
    let missing = r#"{"error":{"code":"DeploymentNotFound"}}"#;
    heals_at_once_on_chat(&[(404, missing), (400, NO_MODEL)]).await;
}

#[tokio::test]
async fn nv_03_railed_status_is_never_a_hit_on_a_document_route() {
    let upstream = Upstream::start().await;
    let gateway = with_chat(&upstream).await;
    let railed = [401, 403, 404, 408, 429];
    for status in railed {
        upstream.always(refusal(status, r#"{"error":{"code":"DeploymentNotFound"}}"#));
        for _ in 0..3 {
            assert_live(&submit(&gateway, CLASSIFY).body(&DOC[..]).send().await, status);
        }
    }
    upstream.always(Reply::status(200));
    assert_live(&submit(&gateway, CLASSIFY).body(&DOC[..]).send().await, 200);
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (16, 0));
    settle(&gateway, 16).await;
}

#[tokio::test]
async fn nv_09_content_filter_comes_and_goes_on_chat() {
    heals_at_once_on_chat(&[(400, FILTERED)]).await;
}

#[tokio::test]
async fn nv_09_content_filter_on_a_document_route_is_shown_with_its_words() {
    is_shown_with_its_words_on_a_document_route(400, FILTERED).await;
}

#[tokio::test]
async fn nv_06_raised_limit_is_forgotten_by_upstream_and_status() {
    let upstream = Upstream::start().await;
    let gateway = with_chat(&upstream).await;
    let (big, bad) = (random_document(3, 70_000), random_document(4, 100));
    upstream
        .by(|seen, _| if seen.body_len > 50_000 { refusal(413, r#"{"error":"limit 2MB"}"#) } else { r400() });
    let send = |document: &[u8]| submit(&gateway, CLASSIFY).body(document.to_vec()).send();
    let (too_big, unreadable) = (send(&big).await, send(&bad).await);
    assert_live(&too_big, 413);
    assert_live(&unreadable, 400);
    assert_replay(&too_big, &send(&big).await);
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (2, 2));

    upstream.always(Reply::status(200).body("fine"));
    assert_eq!(forget(&gateway, &json!({ "upstream": "llm", "status": 413 })).await, 0);
    assert_eq!(forget(&gateway, &json!({ "upstream": "doc-classifier", "status": 422 })).await, 0);
    assert_replay(&too_big, &send(&big).await);
    assert_eq!(forget(&gateway, &json!({ "upstream": "doc-classifier", "status": 413 })).await, 1);
    assert_live(&send(&big).await, 200);
    assert_replay(&unreadable, &send(&bad).await);
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (3, 1));

    // The variant that says itself that it is for now.
    upstream.always(refusal(413, r#"{"error":"limit 2MB"}"#).header("Retry-After", "60"));
    let other = random_document(5, 60_000);
    for _ in 0..3 {
        let answer = send(&other).await;
        assert_live(&answer, 413);
        assert_eq!(answer.header("retry-after").as_deref(), Some("60"));
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (6, 1));
    settle(&gateway, 9).await;
}

#[tokio::test]
async fn nv_08_forgetting_one_upstream_leaves_the_others() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    one.always(r400());
    two.always(r400());
    let second = format!("- name: second\n  base_url: \"{}\"\n  sync_paths: [/classify]", two.url());
    let gateway = Gateway::with(&one.url(), &[("UPSTREAMS", &second)]).await;
    let all: Vec<(&str, Vec<u8>)> = (0..8)
        .map(|n| (if n < 5 { CLASSIFY } else { "/second/classify" }, random_document(n, 300)))
        .collect();
    let mut first: Vec<Answer> = Vec::new();
    for (path, document) in &all {
        first.push(submit(&gateway, path).body(document.clone()).send().await);
        assert_live(&first[first.len() - 1], 400);
    }
    assert_eq!((one.calls(), two.calls(), entry_count(&gateway).await), (5, 3, 8));
    assert_eq!(entries(&gateway, "?upstream=doc-classifier").await.len(), 5);
    let before = gateway.metric("gateway_negative_cache_entries", &[]).await;
    assert_eq!(forget(&gateway, &json!({ "upstream": "doc-classifier" })).await, 5);
    assert_eq!(before - gateway.metric("gateway_negative_cache_entries", &[]).await, 5.0);
    let log = gateway.log();
    let told = log.lines().find(|line| line.contains("refusals forgotten")).unwrap_or_default();
    assert!(
        told.contains("upstream=doc-classifier") && told.contains("forgotten") && told.contains('5'),
        "{log}"
    );
    assert!(told.contains("who"), "{told}");

    // The repaired version is in place.
    one.always(Reply::status(200));
    for (number, (path, document)) in all.iter().enumerate() {
        let answer = submit(&gateway, path).body(document.clone()).send().await;
        if number < 5 { assert_live(&answer, 200) } else { assert_replay(&first[number], &answer) }
    }
    assert_eq!((one.calls(), two.calls(), entry_count(&gateway).await), (10, 3, 3));
    settle(&gateway, 16).await;
}

/// What says that it may be tried again, or that it must not be kept, and the reason that is counted.
const LATER: [(&str, &str, &str); 17] = [
    ("Retry-After", "60", "retry_after"),
    ("Retry-After", "0", "retry_after"),
    ("Retry-After", "Wed, 21 Oct 2099 07:28:00 GMT", "retry_after"),
    ("Retry-After", "soon", "retry_after"),
    ("Retry-After", "", "retry_after"),
    ("Retry-After", "-1", "retry_after"),
    ("retry-after-ms", "250", "retry_after"),
    ("retry-after-ms", "x", "retry_after"),
    ("x-ms-retry-after-ms", "250", "retry_after"),
    ("x-should-retry", "true", "should_retry"),
    ("X-Should-Retry", " TRUE ", "should_retry"),
    ("Cache-Control", "no-store", "cache_control"),
    ("Cache-Control", "No-Store", "cache_control"),
    ("Cache-Control", "max-age=0, no-store", "cache_control"),
    ("Cache-Control", "private", "cache_control"),
    ("Cache-Control", "max-age=60,private=\"x\"", "cache_control"),
    ("Cache-Control", "must-revalidate , private", "cache_control"),
];

#[tokio::test]
async fn rule_04_what_says_later_is_never_remembered() {
    let upstream = Upstream::start().await;
    let gateway = with_chat(&upstream).await;
    let mut requests = 0;
    for status in [400, 413, 415, 422] {
        for (number, (name, value, _)) in LATER.into_iter().enumerate() {
            upstream.always(refusal(status, "{}").header(name, value));
            let document = format!("{status} {number}");
            for round in 1..=2 {
                let before = upstream.calls();
                let answer = submit(&gateway, CLASSIFY).body(document.clone()).send().await;
                assert_live(&answer, status);
                assert_eq!(answer.header(name).as_deref(), Some(value.trim()), "{name} reaches the caller");
                assert_eq!(upstream.calls() - before, 1, "{status} {name}: {value}, call {round}");
                requests += 1;
            }
        }
    }
    for reason in ["retry_after", "should_retry", "cache_control"] {
        let expected = LATER.iter().filter(|(_, _, r)| *r == reason).count() * 8;
        let counted =
            gateway.metric("gateway_negative_cache_not_recorded_total", &[("reason", reason)]).await;
        assert_eq!(counted, expected as f64, "{reason}");
    }
    // Several lines of one field: any of them counts.
    let twice = [
        refusal(400, "{}").header("Cache-Control", "max-age=1").header("Cache-Control", "no-store"),
        refusal(400, "{}").header("X-Should-Retry", "false").header("X-Should-Retry", "true"),
    ];
    for (number, reply) in twice.into_iter().enumerate() {
        upstream.always(reply);
        for _ in 0..2 {
            let before = upstream.calls();
            assert_live(&submit(&gateway, CLASSIFY).body(format!("twice {number}")).send().await, 400);
            assert_eq!(upstream.calls() - before, 1);
        }
    }
    requests += 4;
    assert_eq!(entry_count(&gateway).await, 0);
    // What does not say so does not hinder.
    let harmless = [
        ("Cache-Control", "no-cache"),
        ("Cache-Control", "max-age=0"),
        ("Cache-Control", "x-no-store"),
        ("X-Should-Retry", "false"),
        ("Expires", "0"),
        ("Pragma", "no-cache"),
    ];
    for (number, (name, value)) in harmless.into_iter().enumerate() {
        upstream.always(refusal(400, "{}").header(name, value));
        let send = || submit(&gateway, CLASSIFY).body(format!("harmless {number}")).send();
        let live = send().await;
        assert_replay(&live, &send().await);
    }
    settle(&gateway, requests + 12).await;
}

#[tokio::test]
async fn rule_04_cache_control_is_overruled_where_the_operator_says_so() {
    let upstream = Upstream::start().await;
    let slots = [("UPSTREAM", "negative_cache: { honor_cache_control: false }")];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    for (number, value) in ["no-store", "private, max-age=0"].into_iter().enumerate() {
        upstream.always(refusal(400, "{}").header("Cache-Control", value));
        let send = || submit(&gateway, CLASSIFY).body(format!("document {number}")).send();
        let live = send().await;
        assert_live(&live, 400);
        let hit = send().await;
        assert_replay(&live, &hit);
        assert_eq!(hit.header("cache-control"), None);
    }
    // The other words are not the operator's to overrule.
    for (number, (name, value, reason)) in LATER.into_iter().enumerate() {
        if reason != "cache_control" {
            upstream.always(refusal(400, "{}").header(name, value));
            for _ in 0..2 {
                let before = upstream.calls();
                assert_live(&submit(&gateway, CLASSIFY).body(format!("later {number}")).send().await, 400);
                assert_eq!(upstream.calls() - before, 1);
            }
        }
    }
    assert_eq!(entry_count(&gateway).await, 2);
    settle(&gateway, 4 + 22).await;
}

#[tokio::test]
async fn i5_the_gateways_own_and_incomplete_answers_are_never_remembered() {
    let upstream = Upstream::start().await;
    let slots =
        [("UPSTREAM", "timeout_ms: 300\nidle_timeout_ms: 300"), ("TOP", "limits: { body_max_bytes: 5000 }")];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    let send = |body: &[u8]| submit(&gateway, CLASSIFY).body(body.to_vec()).send();
    // Over the gateway's own limit, by length and by what comes.
    let big = random_document(6, 5001);
    for chunk in [None, Some(1000)] {
        for _ in 0..2 {
            let post = submit(&gateway, CLASSIFY).body(big.clone());
            let answer = chunk.map_or(post.clone(), |size| post.chunked(size)).send().await;
            assert_own(&answer, 413, "BODY_TOO_LARGE");
        }
    }
    assert_eq!(upstream.calls(), 0);
    // No answer, no connection, no end of the answer.
    let broken = [
        (Reply::stall(), 504, "UPSTREAM_TIMEOUT"),
        (Reply::hang_up(), 502, "UPSTREAM_CLOSED"),
        (Reply::reset(), 502, "UPSTREAM_CLOSED"),
    ];
    for (reply, status, code) in broken {
        upstream.always(reply);
        for _ in 0..2 {
            let before = upstream.calls();
            assert_own(&send(&DOC).await, status, code);
            assert_eq!(upstream.calls() - before, 1, "{code}: sent once");
        }
    }
    assert_eq!(entry_count(&gateway).await, 0);
    upstream.always(r400());
    let live = send(&DOC).await;
    assert_live(&live, 400);
    assert_replay(&live, &send(&DOC).await);
    settle(&gateway, 12).await;
}

#[tokio::test]
async fn i5_refusal_that_is_late_or_long_is_passed_on_and_not_remembered() {
    let upstream = Upstream::start().await;
    let gateway =
        Gateway::with(&upstream.url(), &[("UPSTREAM", "negative_cache: { judge_wait_ms: 300 }")]).await;
    for round in 1..=2 {
        // Its second half comes when the client has seen the first.
        let gate = Gate::new();
        let halves = vec![
            Step::chunk("first half, "),
            Step::WaitFor(gate.clone()),
            Step::chunk("second"),
            Step::LastChunk,
        ];
        upstream.always(Reply::status(400).steps(halves));
        let mut client = Client::connect(gateway.addr).await;
        let request = Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..]);
        assert_eq!(client.try_send_request(request).await, Ok(()));
        let head = client.read_head().await;
        assert_eq!((head.status, head.header("x-negative-cache")), (400, None));
        let first = client.read_some().await.ok().flatten().map(|piece| piece.bytes);
        assert_eq!(first.as_deref(), Some(&b"first half, "[..]));
        gate.open();
        let second = client.read_some().await.ok().flatten().map(|piece| piece.bytes);
        assert_eq!(second.as_deref(), Some(&b"second"[..]));
        assert!(matches!(client.read_some().await, Ok(None)));
        assert_eq!(upstream.calls(), round);
    }
    let reason = [("reason", "incomplete")];
    assert_eq!(gateway.metric("gateway_negative_cache_not_recorded_total", &reason).await, 2.0);
    // One that is long only turns out to be so on the way.
    let long = random_document(7, 300_000);
    upstream.always(Reply::status(422).chunked(long.chunks(7000).map(<[u8]>::to_vec).collect()));
    for _ in 0..2 {
        let answer = submit(&gateway, CLASSIFY).body("long").send().await;
        assert_live(&answer, 422);
        assert!(answer.body == long, "{} bytes of {}", answer.body.len(), long.len());
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (4, 0));
    settle(&gateway, 4).await;
}

#[tokio::test]
async fn rule_06_page_of_a_proxy_is_remembered_by_this_profile_and_counted_for_the_operator() {
    let upstream = Upstream::start().await;
    let gateway = with_chat(&upstream).await;
    let page = "<html><head><title>413 Request Entity Too Large</title></head></html>";
    for (number, label) in ["text/html", "Text/HTML; charset=utf-8"].into_iter().enumerate() {
        upstream.always(Reply::status(413).header("Content-Type", label).body(page));
        let send = || submit(&gateway, CLASSIFY).body(format!("page {number}")).send();
        let live = send().await;
        assert_live(&live, 413);
        assert_replay(&live, &send().await);
    }
    assert_eq!(gateway.metric("gateway_negative_cache_doubtful_total", &[("reason", "html")]).await, 2.0);
    settle(&gateway, 4).await;
}

#[tokio::test]
async fn refusal_with_an_oversized_label_is_passed_on_and_not_remembered() {
    const MOST: usize = 4096;
    let upstream = Upstream::start().await;
    let gateway = with_chat(&upstream).await;
    let mut number = 0;
    for name in ["Content-Type", "Content-Encoding", "Content-Language"] {
        for (first, second, known) in [
            (MOST, None, true),
            (MOST + 1, None, false),
            (MOST - 5, Some(3), true),
            (MOST - 4, Some(3), false),
            (30_000, None, false),
        ] {
            number += 1;
            let mut reply = Reply::status(400).header(name, "a".repeat(first));
            if let Some(second) = second {
                reply = reply.header(name, "b".repeat(second));
            }
            upstream.always(reply.body("{}"));
            let send = || submit(&gateway, CLASSIFY).body(format!("document {number}")).send();
            let live = send().await;
            assert_live(&live, 400);
            let again = send().await;
            assert_eq!(again.is_hit(), known, "{name} of {first} and {second:?} bytes");
            if known {
                assert_replay(&live, &again);
            }
        }
    }
    let reason = [("reason", "fields_too_large")];
    assert_eq!(gateway.metric("gateway_negative_cache_not_recorded_total", &reason).await, 18.0);
    settle(&gateway, 30).await;
}

#[tokio::test]
async fn rule_20_a_request_that_is_cut_is_not_sent_and_makes_no_entry() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = with_chat(&upstream).await;
    // All of them hold the whole of the shorter document, and none is a request for it.
    let part = &DOC[..2000];
    let chunk = [b"7d0\r\n", part, b"\r\n"].concat();
    let cut: [(&str, Vec<u8>); 6] = [
        ("Content-Length: 4096", part.to_vec()),
        ("Transfer-Encoding: chunked", chunk.clone()),
        ("Transfer-Encoding: chunked", [&chunk[..], b"0\r\n"].concat()),
        ("Transfer-Encoding: chunked", [&chunk[..], b"0x0\r\n\r\n"].concat()),
        ("Transfer-Encoding: chunked", [&chunk[..chunk.len() - 2], b"00\r\n\r\n"].concat()),
        ("Transfer-Encoding: chunked", [&chunk[..], b"0\r\nContent-Length: 1\r\n\r\n"].concat()),
    ];
    let cases = cut.len();
    for (framing, body) in cut {
        let mut client = Client::connect(gateway.addr).await;
        let head = format!(
            "POST {CLASSIFY} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nExpect: 100-continue\r\n{framing}\r\n\r\n"
        );
        assert_eq!(client.send(head).await, Ok(()));
        // The gateway has begun with the request when it asks for its body.
        let asked = client.read_raw().await.ok().flatten().map(|piece| piece.bytes);
        assert_eq!(asked.as_deref(), Some(&b"HTTP/1.1 100 Continue\r\n\r\n"[..]));
        assert_eq!(client.send(body).await, Ok(()));
        client.half_close().await;
        // A refusal in the gateway's own words, or nobody is left to be answered.
        if let Ok(answer) = client.try_read_answer().await {
            assert!(answer.header("x-gateway-error").is_some(), "{} {:?}", answer.status, answer.headers);
        }
    }
    let lines = settle(&gateway, cases).await;
    assert!(lines.iter().all(|line| line["attempts"] == 0 && line["fingerprint"].is_null()), "{lines:#?}");
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (0, 0));
    let live = submit(&gateway, CLASSIFY).body(part).send().await;
    assert_live(&live, 400);
    assert_eq!((upstream.calls(), upstream.last_request().body_len), (1, 2000));
    settle(&gateway, cases + 1).await;
}

#[tokio::test]
async fn i5_an_upstream_that_has_not_read_the_document_judges_only_its_length_and_its_type() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    // longer than what two sockets hold, so that it cannot have gone up whole
    let mut requests = 0;
    for (status, remembered) in [(400, false), (422, false), (413, true), (415, true)] {
        upstream.always(refusal(status, "no").answer_early().close_after());
        let document = random_document(u64::from(status), 24 << 20);
        let before = upstream.calls();
        assert_live(&submit(&gateway, CLASSIFY).body(document.clone()).send().await, status);
        let again = submit(&gateway, CLASSIFY).body(document).send().await;
        assert_eq!((again.status, again.is_hit()), (status, remembered));
        assert_eq!(upstream.calls() - before, if remembered { 1 } else { 2 }, "{status}");
        requests += 2;
    }
    let reason = [("reason", "incomplete")];
    assert_eq!(gateway.metric("gateway_negative_cache_not_recorded_total", &reason).await, 4.0);
    settle(&gateway, requests).await;
}
