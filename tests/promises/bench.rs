//! What every case ends with.
#![expect(clippy::panic, reason = "a broken test should stop loudly")]

use serde_json::Value;

use nevertwice_testkit::{Gateway, Request};

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
