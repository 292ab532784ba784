//! A refusal that comes as HTTP 200 with a failure in its body is remembered like any other, where the upstream's profile
//! knows such failures; everything else that is a 200 stays a success, and streams.
#![expect(clippy::unwrap_used, reason = "test")]

use nevertwice_testkit::random_document;
use nevertwice_testkit::{Answer, Client, DOC, DOC2, Gate, Gateway, Reply, Request, Step, Upstream};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bench::{post, settle};
use crate::caller::{CLASSIFY, assert_live, assert_own, assert_replay, entries, entry_count, forget, submit};
use crate::memory_settings::reconfigure;

const NAME: (&str, &str) = ("upstream", "doc-classifier");
/// A profile that knows failed operations, and one that does not.
const DOCLING: &str = "profile: docling-serve";
const STATUS: &str = "profile: status";

/// A gateway whose upstream has the profile of docling; `more` goes into its `negative_cache`.
async fn docling(upstream: &Upstream, more: &str) -> Gateway {
    Gateway::with(&upstream.url(), &[("UPSTREAM", &rules(more))]).await
}

fn rules(more: &str) -> String {
    let more = more.lines().map(|line| format!("  {line}\n")).collect::<String>();
    format!("negative_cache:\n  {DOCLING}\n{more}")
}

fn failure(component: &str) -> String {
    let error =
        json!({ "component_type": component, "module_name": "", "error_message": "no page could be read" });
    json!({ "document": {}, "status": "failure", "errors": [error], "processing_time": 0.1 }).to_string()
}

fn success() -> String {
    json!({ "document": { "md_content": "# Title" }, "status": "success", "errors": [] }).to_string()
}

fn answer(body: impl Into<String>) -> Reply {
    Reply::status(200).header("Content-Type", "application/json").body(body.into())
}

async fn send(gateway: &Gateway, document: &[u8]) -> Answer {
    post(gateway, CLASSIFY, document.to_vec()).await
}

async fn not_recorded(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric("gateway_negative_cache_not_recorded_total", &[("reason", reason)]).await
}

fn codes(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["code"].as_str().unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_failed_operation_is_replayed_as_the_200_that_it_was() {
    let upstream = Upstream::start().await;
    let gateway = docling(&upstream, "").await;
    let body = failure("user_input");
    upstream.always(
        answer(body.clone())
            .header("Content-Language", "en")
            .header("Set-Cookie", "a=b")
            .header("X-Request-Id", "r-1")
            .header("X-Negative-Cache", "HIT"),
    );
    let live = send(&gateway, &DOC).await;
    assert_live(&live, 200);
    assert_eq!((live.text(), live.header("set-cookie").as_deref()), (body, Some("a=b")));
    assert_eq!(live.header("x-request-id").as_deref(), Some("r-1"));
    for _ in 0..2 {
        let hit = send(&gateway, &DOC).await;
        assert_replay(&live, &hit);
        assert_eq!((hit.header("set-cookie"), hit.header("x-request-id")), (None, None));
    }
    assert_eq!(upstream.calls(), 1);

    // what the operator sees
    let replays = gateway.metric("gateway_negative_cache_refusals_total", &[NAME, ("status", "200")]).await;
    assert_eq!((replays, entry_count(&gateway).await), (2.0, 1));
    let listed = entries(&gateway, "?status=200").await;
    assert_eq!((listed.len(), &listed[0]["status"], &listed[0]["replays"]), (1, &json!(200), &json!(2)));
    assert_eq!(entries(&gateway, "?status=400").await.len(), 0);
    let shown = gateway.cli(&["refusals", "list", "--status", "200"]).await;
    assert!(String::from_utf8_lossy(&shown.stdout).contains("  200  "), "{shown:?}");
    for (code, count) in [("FAILED_HTTP_200", 1.0), ("REFUSED", 2.0)] {
        assert_eq!(gateway.metric("gateway_requests_total", &[NAME, ("code", code)]).await, count, "{code}");
    }
    for (result, count) in [("refused", 1.0), ("replayed", 2.0)] {
        let labels = [("tenant", "dev_1"), ("result", result)];
        assert_eq!(gateway.metric("gateway_tenant_requests_total", &labels).await, count, "{result}");
    }

    // and can do
    assert_eq!(forget(&gateway, &json!({ "status": 400 })).await, 0);
    assert_eq!(forget(&gateway, &json!({ "status": 200 })).await, 1);
    upstream.always(answer(success()));
    let good = send(&gateway, &DOC).await;
    assert_live(&good, 200);
    assert_eq!((good.text(), upstream.calls()), (success(), 2));
    let lines = settle(&gateway, 4).await;
    assert_eq!(codes(&lines), ["FAILED_HTTP_200", "REFUSED_HTTP_200", "REFUSED_HTTP_200", "OK"]);
    for (line, hit) in lines.iter().zip([false, true, true, false]) {
        assert_eq!((&line["status"], &line["cache_hit"]), (&json!(200), &json!(hit)));
        assert_eq!(line["upstream_ms"] == 0, hit, "{line}");
    }
    assert_eq!(lines[0]["document_sha256"], lines[1]["document_sha256"]);
}

#[tokio::test]
async fn a_failure_that_is_not_the_documents_is_neither_remembered_nor_an_acceptance() {
    let upstream = Upstream::start().await;
    // every request goes up, so that there is something to remove
    let gateway = docling(&upstream, "mode: observe").await;
    upstream.always(answer(failure("user_input")));
    send(&gateway, &DOC).await;
    assert_eq!(entry_count(&gateway).await, 1);
    upstream.always(answer(failure("pipeline")));
    for document in [&DOC[..], &DOC2] {
        let live = send(&gateway, document).await;
        assert_live(&live, 200);
        assert_eq!(live.text(), failure("pipeline"));
    }
    assert_eq!((entry_count(&gateway).await, not_recorded(&gateway, "rule").await), (1, 2.0));
    upstream.always(answer(success()));
    send(&gateway, &DOC).await;
    assert_eq!((entry_count(&gateway).await, upstream.calls()), (0, 4));
    let lines = settle(&gateway, 4).await;
    assert_eq!(codes(&lines), ["FAILED_HTTP_200", "FAILED_HTTP_200", "FAILED_HTTP_200", "OK"]);
}

#[tokio::test]
async fn failed_operations_count_for_the_mass_refusal_guard_and_do_not_recover_it() {
    let upstream = Upstream::start().await;
    let gateway = docling(&upstream, "mass_refusal_guard: {distinct: 3, share: 0.5}").await;
    let document = |n: u64| random_document(7000 + n, 500);
    let is_on = async || gateway.metric("gateway_negative_cache_guard", &[NAME]).await == 1.0;
    upstream.always(answer(success()));
    send(&gateway, &document(0)).await;
    // what is not of the document says nothing
    upstream.always(answer(failure("pipeline")));
    for n in 1..5 {
        send(&gateway, &document(n)).await;
    }
    assert!(!is_on().await);
    upstream.always(answer(failure("user_input")));
    for n in 10..13 {
        send(&gateway, &document(n)).await;
    }
    assert!(is_on().await);
    assert_eq!(not_recorded(&gateway, "guard").await, 1.0);
    upstream.always(answer(failure("pipeline")));
    send(&gateway, &document(20)).await;
    assert!(is_on().await, "a failure is no acceptance");
    upstream.always(answer(success()));
    send(&gateway, &document(21)).await;
    assert!(!is_on().await);
    settle(&gateway, 10).await;
}

#[tokio::test]
async fn what_forbids_to_remember_makes_no_failure_of_a_success() {
    let upstream = Upstream::start().await;
    let gateway = docling(&upstream, "mode: observe").await;
    let words = [
        ("Cache-Control", "no-store", "cache_control"),
        ("Retry-After", "9", "retry_after"),
        ("x-should-retry", "true", "should_retry"),
    ];
    for (n, (name, value, reason)) in words.into_iter().enumerate() {
        upstream.always(answer(failure("user_input")));
        send(&gateway, &DOC).await;
        assert_eq!(entry_count(&gateway).await, 1, "{name}");
        // not remembered, and no acceptance either
        upstream.always(answer(failure("user_input")).header(name, value));
        assert_live(&send(&gateway, &random_document(n as u64, 300)).await, 200);
        send(&gateway, &DOC).await;
        assert_eq!((entry_count(&gateway).await, not_recorded(&gateway, reason).await), (1, 2.0), "{name}");
        upstream.always(answer(success()).header(name, value));
        send(&gateway, &DOC).await;
        assert_eq!(entry_count(&gateway).await, 0, "{name}: a success is one");
    }
    settle(&gateway, 12).await;
}

#[tokio::test]
async fn other_answers_are_not_looked_into() {
    let upstream = Upstream::start().await;
    let gateway = docling(&upstream, "judge_wait_ms: 60000").await;
    let failed = failure("user_input");
    let created = Reply::status(201).header("Content-Type", "application/json").body(failed.clone());
    let text = Reply::status(200).header("Content-Type", "text/plain").body(failed.clone());
    let untyped = Reply::status(200).body(failed.clone());
    for (n, reply) in [created, text, untyped].into_iter().enumerate() {
        upstream.always(reply);
        for _ in 0..2 {
            let live = send(&gateway, &random_document(n as u64, 100)).await;
            assert!(!live.is_hit() && live.text() == failed);
        }
    }
    // a path that is not guarded, and a method without a document
    upstream.always(answer(failed));
    for _ in 0..2 {
        assert!(!post(&gateway, "/doc-classifier/other", &DOC[..]).await.is_hit());
        let mut client = Client::connect(gateway.addr).await;
        assert_eq!(client.request(Request::get(CLASSIFY).bearer("tok-1")).await.status, 200);
    }
    // their head goes out while the upstream holds back the rest, long before a judgement would have to end
    for (status, kind) in [(200, "text/event-stream"), (201, "application/json")] {
        let gate = Gate::new();
        let steps = vec![Step::chunk("{"), Step::WaitFor(gate.clone()), Step::chunk("}"), Step::LastChunk];
        upstream.always(Reply::status(status).header("Content-Type", kind).steps(steps));
        let mut client = Client::connect(gateway.addr).await;
        client.try_send_request(Request::post(CLASSIFY).bearer("tok-1").body(&DOC2[..])).await.unwrap();
        assert_eq!(client.read_head().await.status, status);
        gate.open();
        while client.read_some().await.unwrap().is_some() {}
    }
    assert_eq!((entry_count(&gateway).await, upstream.calls()), (0, 12));
    let lines = settle(&gateway, 12).await;
    assert!(lines.iter().all(|line| line["code"] == "OK"), "{lines:#?}");

    // what says that it is JSON is
    for kind in ["Application/Vnd.x+JSON ; charset=utf-8", "application/x-amz-json-1.1"] {
        let document = random_document(kind.len() as u64, 200);
        upstream.always(Reply::status(200).header("Content-Type", kind).body(failure("user_input")));
        let live = send(&gateway, &document).await;
        assert_replay(&live, &send(&gateway, &document).await);
    }
}

#[tokio::test]
async fn without_a_profile_that_knows_failures_a_200_is_a_success() {
    let upstream = Upstream::start().await;
    let mut gateway = docling(&upstream, "").await;
    upstream.always(answer(failure("user_input")));
    let live = send(&gateway, &DOC).await;
    assert_replay(&live, &send(&gateway, &DOC).await);
    // what was remembered is used only as long as the profile would judge so: the key names its rules
    reconfigure(&mut gateway, DOCLING, STATUS).await;
    for _ in 0..2 {
        assert_live(&send(&gateway, &DOC).await, 200);
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (3, 1), "it is kept to be seen");
    assert!(!gateway.metrics().await.contains("status=\"200\""), "no series for what is not replayed");
    reconfigure(&mut gateway, STATUS, DOCLING).await;
    assert_replay(&live, &send(&gateway, &DOC).await);
    assert_eq!(upstream.calls(), 3);
    let lines = settle(&gateway, 5).await;
    assert_eq!(codes(&lines), ["FAILED_HTTP_200", "REFUSED_HTTP_200", "OK", "OK", "REFUSED_HTTP_200"]);
}

/// Rules that are put in force while it runs; what follows from them is there too.
#[tokio::test]
async fn failures_that_a_reload_brings_are_judged_from_then_on() {
    let upstream = Upstream::start().await;
    let own = |lines: &str| {
        let rule = "{rule: never, status: 422, when: [{at: /x, is: y}], class: request, remember: never}";
        format!("profile: own\nabout: ours\n{lines}- {rule}\n")
    };
    let rule = "{rule: bad, status: 200, when: [{at: /why, is: document}], class: content, remember: full}";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("own.yaml");
    std::fs::write(&file, own("rules:\n")).unwrap();
    let profiles = format!("profiles: [\"{}\"]", file.display());
    let slots = [("UPSTREAM", "negative_cache: {profile: own}"), ("TOP", profiles.as_str())];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    upstream.always(answer(json!({ "state": "failed", "why": "document" }).to_string()));
    for _ in 0..2 {
        assert_live(&send(&gateway, &DOC).await, 200);
    }
    let lines = format!("failures: [{{at: /state, is: failed}}]\nrules:\n- {rule}\n");
    std::fs::write(&file, own(&lines)).unwrap();
    let (status, done) = gateway.admin_post("/admin/v1/reload", &json!({})).await;
    assert_eq!(status, 200, "{done}");
    let live = send(&gateway, &DOC).await;
    assert_live(&live, 200);
    assert_replay(&live, &send(&gateway, &DOC).await);
    assert_eq!(upstream.calls(), 3);
    let replays = gateway.metric("gateway_negative_cache_refusals_total", &[NAME, ("status", "200")]).await;
    assert_eq!((replays, &entries(&gateway, "").await[0]["rule"]), (1.0, &json!("bad")));
    let lines = settle(&gateway, 4).await;
    assert_eq!(codes(&lines), ["OK", "OK", "FAILED_HTTP_200", "REFUSED_HTTP_200"]);
}

/// One that is too long or too late for the memory: it streams, and is a success.
#[tokio::test]
async fn what_is_too_long_or_too_late_streams_on() {
    let upstream = Upstream::start().await;
    let slots = [("MEMORY", "max_body_bytes: 1000"), ("UPSTREAM", &rules("judge_wait_ms: 300"))];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    let mut long = failure("user_input");
    long.insert_str(1, &format!("\"more\":\"{}\",", "x".repeat(1000)));
    // its length says so
    upstream.always(answer(long.clone()));
    for _ in 0..2 {
        assert!(!send(&gateway, &DOC).await.is_hit());
    }
    // it is seen when it comes: the head and what came first arrive while the rest is held back
    let (first, rest) = long.split_at(1001);
    let held = |first: &str, gate: &Gate, rest: &str| {
        let steps = vec![
            Step::chunk(first.to_owned()),
            Step::WaitFor(gate.clone()),
            Step::chunk(rest.to_owned()),
            Step::LastChunk,
        ];
        Reply::status(200).header("Content-Type", "application/json").steps(steps)
    };
    let late = failure("user_input");
    let (early, last) = late.split_at(5);
    for (n, (first, rest)) in [(first, rest), (early, last)].into_iter().enumerate() {
        let gate = Gate::new();
        upstream.always(held(first, &gate, rest));
        let mut client = Client::connect(gateway.addr).await;
        let request = Request::post(CLASSIFY).bearer("tok-1").body(random_document(n as u64, 200));
        client.try_send_request(request).await.unwrap();
        assert_eq!(client.read_head().await.status, 200);
        let mut body = Vec::new();
        while body.len() < first.len() {
            body.extend(client.read_some().await.unwrap().unwrap().bytes);
        }
        gate.open();
        while let Some(piece) = client.read_some().await.unwrap() {
            body.extend(piece.bytes);
        }
        assert_eq!(String::from_utf8_lossy(&body), format!("{first}{rest}"));
    }
    assert_eq!(entry_count(&gateway).await, 0);
    let lines = settle(&gateway, 4).await;
    assert!(lines.iter().all(|line| line["code"] == "OK" && line["end"].is_null()), "{lines:#?}");
}

#[tokio::test]
async fn a_200_that_breaks_off_while_it_is_judged_is_no_answer() {
    let upstream = Upstream::start().await;
    let gateway = docling(&upstream, "").await;
    let whole = failure("user_input");
    let cut = Reply::status(200)
        .header("Content-Type", "application/json")
        .header("Content-Length", whole.len().to_string())
        .steps(vec![Step::write(whole[..9].to_owned()), Step::Close]);
    upstream.always(cut);
    assert_own(&send(&gateway, &DOC).await, 502, "UPSTREAM_CLOSED");
    // one whose end cannot be known is passed on, and not remembered
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
    upstream.always(Reply::raw("").steps(vec![Step::write(format!("{head}{whole}")), Step::Close]));
    for _ in 0..2 {
        let live = send(&gateway, &DOC).await;
        assert!(!live.is_hit() && live.text() == whole);
    }
    assert_eq!(not_recorded(&gateway, "incomplete").await, 2.0);
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (3, 0));
    let lines = settle(&gateway, 3).await;
    assert_eq!(codes(&lines), ["UPSTREAM_CLOSED", "FAILED_HTTP_200", "FAILED_HTTP_200"]);
    assert_eq!(lines[0]["end"], "answer_body");
}

/// Those who wait for the attempt are answered from the verdict.
#[tokio::test]
async fn waiters_share_a_failed_operation_and_no_success() {
    let upstream = Upstream::start().await;
    let gateway = docling(&upstream, "").await;
    for (document, body, calls) in [(&DOC[..], failure("user_input"), 1), (&DOC2, success(), 5)] {
        let before = upstream.calls();
        let gate = Gate::new();
        upstream.always(answer(body).wait_for(&gate));
        let mut all = JoinSet::new();
        for _ in 0..5 {
            all.spawn(submit(&gateway, CLASSIFY).body(document.to_vec()).send());
        }
        upstream.wait_calls(before + 1).await;
        gate.open();
        let answers = all.join_all().await;
        assert!(answers.iter().all(|answer| answer.status == 200 && answer.complete));
        let hits = answers.iter().filter(|answer| answer.is_hit()).count();
        assert_eq!((hits as u64, upstream.calls() - before), (5 - calls, calls));
    }
    settle(&gateway, 10).await;
}
