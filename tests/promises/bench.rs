//! What every case ends with.
#![expect(clippy::panic, reason = "a broken test should stop loudly")]

use bytes::Bytes;
use nevertwice_testkit::{Answer, Gateway, Post, Request};
use serde_json::Value;

/// The check after each case: nothing is in use any more, the process is up and has not panicked, and the audit has
/// exactly one line per request. Returns the audit's lines.
pub async fn settle(gateway: &Gateway, expected_requests: usize) -> Vec<Value> {
    for gauge in ["gateway_pool_in_use", "gateway_pool_queued", "gateway_body_memory_bytes"] {
        gateway.wait_metric(gauge, &[], 0.0).await;
    }
    let lines = gateway.wait_audit(expected_requests).await;
    assert_eq!(lines.len(), expected_requests, "audit lines: {lines:#?}");
    let health = gateway.admin_request(Request::get("/healthz")).await;
    assert_eq!(health.status, 200, "{}", health.text());
    let log = gateway.log();
    if log.contains("panicked") {
        panic!("the gateway panicked:\n{log}");
    }
    lines
}

/// Posts a document as the tenant `dev_1`, on a connection of its own.
pub async fn post(gateway: &Gateway, path: &str, document: impl Into<Bytes>) -> Answer {
    let post = Post::to(gateway.addr, path).bearer("tok-1");
    post.header("Content-Type", "application/pdf").body(document).send().await
}

/// Asserts that this is the gateway's own answer, whole and with this code.
pub fn assert_own(answer: &Answer, status: u16, code: &str, case: &str) {
    assert_eq!(answer.status, status, "{case}: {}", answer.text());
    assert!(answer.complete && !answer.is_hit(), "{case}: {answer:?}");
    assert_eq!(answer.header("x-gateway-error").as_deref(), Some(code), "{case}: {}", answer.text());
    assert_eq!(answer.header("content-type").as_deref(), Some("application/problem+json"), "{case}");
    assert_eq!((&answer.json()["code"], &answer.json()["status"]), (&code.into(), &status.into()), "{case}");
}
