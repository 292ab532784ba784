//! A verdict that echoes its request can be too long to keep. Where the profile names what may go, the verdict is kept without
//! it, clearly marked, and never cut anywhere else; the caller whose request was refused gets all of it.
#![expect(clippy::unwrap_used, reason = "test")]

use nevertwice_testkit::{
    Answer, Client, DOC, Gate, Gateway, Reply, Request, Step, Upstream, random_document,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bench::{post, settle};
use crate::caller::{CLASSIFY, assert_live, assert_replay, entries, entry_count, submit};

/// A profile that names what may be left out; that a field is missing depends on the whole request.
const FASTAPI: &str = "negative_cache:\n  profile: fastapi\n  remember_keyed: true";
const KEPT: usize = 65_536;

async fn fastapi(upstream: &Upstream) -> Gateway {
    Gateway::with(&upstream.url(), &[("UPSTREAM", FASTAPI)]).await
}

/// What FastAPI answers when a field is missing: it echoes what was sent instead.
fn missing(echo: &str) -> String {
    of_type("missing", echo)
}

fn of_type(kind: &str, echo: &str) -> String {
    let detail =
        json!({ "type": kind, "loc": ["body", "file"], "msg": "Field required", "input": { "page": echo } });
    json!({ "detail": [detail] }).to_string()
}

/// The same without the echo.
fn reduced(echo: &str) -> String {
    let length = json!({ "page": echo }).to_string().len();
    let mut body: Value = serde_json::from_str(&missing(echo)).unwrap();
    body["detail"][0]["input"] = format!("[removed: {length} bytes]").into();
    body.to_string()
}

fn refusal(body: impl Into<String>) -> Reply {
    Reply::status(422).header("Content-Type", "application/json").body(body.into())
}

async fn send(gateway: &Gateway, document: &[u8]) -> Answer {
    post(gateway, CLASSIFY, document.to_vec()).await
}

async fn not_recorded(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric("gateway_negative_cache_not_recorded_total", &[("reason", reason)]).await
}

/// A replay of `live` with this body in place of its own, and marked.
fn assert_reduced(live: &Answer, hit: &Answer, body: &str) {
    assert_eq!(hit.text(), body);
    assert_eq!(hit.headers_named("x-negative-cache-body"), [b"reduced"]);
    let of_this_body = Answer { body: hit.body.clone(), ..live.clone() };
    assert_replay(&of_this_body, hit);
}

#[tokio::test]
async fn an_echo_is_left_out_of_what_is_kept_and_the_replay_says_so() {
    let upstream = Upstream::start().await;
    let gateway = fastapi(&upstream).await;
    let echo = "Straße ".repeat(20_000);
    let body = missing(&echo);
    upstream.always(refusal(body.clone()).header("X-Negative-Cache-Body", "reduced"));
    let live =
        submit(&gateway, CLASSIFY).header("X-Negative-Cache-Body", "reduced").body(&DOC[..]).send().await;
    assert_live(&live, 422);
    assert!(live.text() == body && live.header("x-negative-cache-body").is_none());
    assert_eq!(upstream.last_request().header("x-negative-cache-body"), None);
    for _ in 0..2 {
        let hit = submit(&gateway, CLASSIFY).body(&DOC[..]).send().await;
        assert_reduced(&live, &hit, &reduced(&echo));
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (1, 1));

    // what the operator sees
    let listed = entries(&gateway, "").await;
    assert_eq!((&listed[0]["reduced"], &listed[0]["replays"]), (&json!(true), &json!(2)));
    assert_eq!(listed[0]["body_bytes"], reduced(&echo).len());
    let path = format!("/admin/v1/refusals/{}", listed[0]["fingerprint"].as_str().unwrap());
    let (_, shown) = gateway.admin_get(&path).await;
    assert_eq!((&shown["body_text"], &shown["reduced"]), (&json!(reduced(&echo)), &json!(true)));
    let table = gateway.cli(&["refusals", "list"]).await;
    assert!(String::from_utf8_lossy(&table.stdout).contains("422 (reduced)"), "{table:?}");

    // one that fits is kept as it is
    let most = missing(&"x".repeat(KEPT - missing("").len()));
    assert_eq!(most.len(), KEPT);
    let document = random_document(1, 500);
    upstream.always(refusal(most));
    let live = send(&gateway, &document).await;
    let hit = send(&gateway, &document).await;
    assert_replay(&live, &hit);
    assert_eq!(hit.header("x-negative-cache-body"), None);
    let listed = entries(&gateway, "?sort=recent").await;
    assert_eq!((&listed[0]["reduced"], &listed[0]["body_bytes"]), (&json!(false), &json!(KEPT)));
    settle(&gateway, 5).await;
}

#[tokio::test]
async fn it_moves_to_another_gateway_with_its_mark() {
    let upstream = Upstream::start().await;
    let from = fastapi(&upstream).await;
    let to = fastapi(&upstream).await;
    let echo = "x".repeat(KEPT);
    upstream.always(refusal(missing(&echo)));
    let live = send(&from, &DOC).await;
    let (_, export) = from.admin_get("/admin/v1/refusals/export").await;
    let item = &export["items"][0];
    assert_eq!((&item["schema"], &item["reduced"]), (&json!(2), &json!(true)));
    // one that says of itself that it is whole is not taken for what it is not
    let mut whole = item.clone();
    whole["reduced"] = false.into();
    let (_, outcome) = to.admin_post("/admin/v1/refusals/import", &json!({ "items": [whole, item] })).await;
    assert_eq!((&outcome["imported"], &outcome["invalid"][0]["index"]), (&json!(1), &json!(0)), "{outcome}");
    assert_reduced(&live, &send(&to, &DOC).await, &reduced(&echo));
    assert_eq!(upstream.calls(), 1);
    // and over a restart
    let mut to = to;
    to.restart().await;
    assert_reduced(&live, &send(&to, &DOC).await, &reduced(&echo));
    settle(&from, 1).await;
    settle(&to, 2).await;
}

#[tokio::test]
async fn those_who_wait_get_the_reduced_one_and_the_first_gets_all() {
    let upstream = Upstream::start().await;
    let gateway = fastapi(&upstream).await;
    let echo = "y".repeat(3 << 20);
    let gate = Gate::new();
    let chunks: Vec<Vec<u8>> = missing(&echo).into_bytes().chunks(10_000).map(<[u8]>::to_vec).collect();
    upstream.always(
        Reply::status(422).header("Content-Type", "application/json").chunked(chunks).wait_for(&gate),
    );
    let mut all = JoinSet::new();
    for _ in 0..4 {
        all.spawn(submit(&gateway, CLASSIFY).body(&DOC[..]).send());
    }
    upstream.wait_calls(1).await;
    gate.open();
    let answers = all.join_all().await;
    let (hits, live): (Vec<_>, Vec<_>) = answers.into_iter().partition(Answer::is_hit);
    assert_eq!((hits.len(), live.len(), upstream.calls()), (3, 1, 1));
    assert!(live[0].text() == missing(&echo) && live[0].complete);
    hits.iter().for_each(|hit| assert_reduced(&live[0], hit, &reduced(&echo)));
    settle(&gateway, 4).await;
}

/// What cannot be kept whole, and not without the echo either, is passed on unchanged, and not remembered.
#[tokio::test]
async fn what_cannot_be_reduced_is_too_large() {
    let upstream = Upstream::start().await;
    let gateway = fastapi(&upstream).await;
    let echo = "z".repeat(2 * KEPT);
    let typed = |kind: &str, body: String| Reply::status(422).header("Content-Type", kind).body(body);
    let elsewhere = format!("{{\"more\":\"{echo}\",{}", &missing("")[1..]);
    let longest = 8 << 20;
    let cases = [
        ("the rest is too long", refusal(elsewhere), "body_too_large"),
        ("no JSON by its type", typed("text/plain", missing(&echo)), "body_too_large"),
        ("no type", Reply::status(422).body(missing(&echo)), "body_too_large"),
        ("a coding", refusal(missing(&echo)).header("Content-Encoding", "gzip"), "body_too_large"),
        ("over the bound", refusal(missing(&"z".repeat(longest))), "body_too_large"),
        ("no verdict", refusal(of_type("value_error", &echo)), "unclassified"),
    ];
    let mut expected = std::collections::BTreeMap::new();
    for (n, (name, reply, reason)) in cases.into_iter().enumerate() {
        upstream.always(reply);
        let document = random_document(100 + n as u64, 300);
        let first = send(&gateway, &document).await;
        assert_live(&first, 422);
        let second = send(&gateway, &document).await;
        assert!(!second.is_hit() && second.body == first.body && first.body.len() > KEPT, "{name}");
        *expected.entry(reason).or_insert(0.0) += 2.0;
        assert_eq!(not_recorded(&gateway, reason).await, expected[reason], "{name}");
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (12, 0));
    // that the coding is none is said by some
    upstream.always(refusal(missing(&echo)).header("Content-Encoding", "identity"));
    let live = send(&gateway, &DOC).await;
    assert_reduced(&live, &send(&gateway, &DOC).await, &reduced(&echo));
    // the longest that is read
    let whole = missing(&"z".repeat(longest - missing("").len()));
    upstream.always(refusal(whole.clone()));
    let document = random_document(200, 300);
    let live = send(&gateway, &document).await;
    assert!(live.text() == whole && whole.len() == longest);
    assert!(send(&gateway, &document).await.is_hit());
    settle(&gateway, 16).await;
}

#[tokio::test]
async fn only_a_profile_that_names_what_may_go_reads_so_much() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    upstream.always(refusal(missing(&"x".repeat(KEPT))));
    for _ in 0..2 {
        assert_live(&send(&gateway, &DOC).await, 422);
    }
    assert_eq!((not_recorded(&gateway, "body_too_large").await, upstream.calls()), (2.0, 2));
    settle(&gateway, 2).await;
}

/// It is counted in the memory of held bodies, on the same terms.
#[tokio::test]
async fn what_is_read_counts_as_held_bodies_do() {
    let upstream = Upstream::start().await;
    let slots = [("UPSTREAM", FASTAPI), ("TOP", "limits: { buffer_memory_bytes: 4194304 }")];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    // one body may take an eighth of it
    let echo = "x".repeat(600_000);
    for (n, chunked) in [false, true].into_iter().enumerate() {
        let body = missing(&echo);
        let pieces: Vec<Vec<u8>> = body.as_bytes().chunks(50_000).map(<[u8]>::to_vec).collect();
        let reply = refusal(body.clone());
        upstream.always(if chunked { reply.chunked(pieces) } else { reply });
        let live = send(&gateway, &random_document(n as u64, 300)).await;
        assert!(live.text() == body && live.complete);
    }
    assert_eq!((not_recorded(&gateway, "body_too_large").await, entry_count(&gateway).await), (2.0, 0));
    // with less than that there is room; when all is done nothing is held any more
    let echo = "x".repeat(400_000);
    upstream.always(refusal(missing(&echo)));
    let live = send(&gateway, &DOC).await;
    assert!(live.text() == missing(&echo) && live.complete);
    assert_eq!(entry_count(&gateway).await, 1);
    settle(&gateway, 3).await;
}

/// One that stops coming is passed on as far as it came, and what comes later after it.
#[tokio::test]
async fn what_is_too_late_streams_on() {
    let upstream = Upstream::start().await;
    let rules = format!("{FASTAPI}\n  judge_wait_ms: 300");
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", &rules)]).await;
    let body = missing(&"x".repeat(2 * KEPT));
    let (first, rest) = body.split_at(KEPT + 5000);
    let gate = Gate::new();
    let steps = [first, rest].map(|part| Step::chunk(part.to_owned()));
    let [first_step, rest_step] = steps;
    let steps = vec![first_step, Step::WaitFor(gate.clone()), rest_step, Step::LastChunk];
    upstream.always(Reply::status(422).header("Content-Type", "application/json").steps(steps));
    let mut client = Client::connect(gateway.addr).await;
    client.try_send_request(Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..])).await.unwrap();
    assert_eq!(client.read_head().await.status, 422);
    let mut got = Vec::new();
    while got.len() < first.len() {
        got.extend(client.read_some().await.unwrap().unwrap().bytes);
    }
    gate.open();
    while let Some(piece) = client.read_some().await.unwrap() {
        got.extend(piece.bytes);
    }
    assert!(got == body.as_bytes());
    assert_eq!((not_recorded(&gateway, "incomplete").await, entry_count(&gateway).await), (1.0, 0));
    settle(&gateway, 1).await;
}
