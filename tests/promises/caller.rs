//! How the tenants of the cases call the gateway, and what an operator sees afterwards.
#![expect(clippy::panic, reason = "a broken test should stop loudly")]

use std::future::Future;
use std::time::{Duration, Instant};

use nevertwice_testkit::{Answer, Gateway, Post};
use serde_json::{Value, json};

/// A guarded path.
pub const CLASSIFY: &str = "/doc-classifier/classify";
/// Another guarded path of the same upstream.
pub const LAYOUT: &str = "/doc-classifier/layout";

/// A submission by the first tenant.
pub fn submit(gateway: &Gateway, path: &str) -> Post {
    submit_as(gateway, 1, path)
}

/// A submission by one of the three tenants.
pub fn submit_as(gateway: &Gateway, tenant: u8, path: &str) -> Post {
    Post::to(gateway.addr, path).bearer(&format!("tok-{tenant}"))
}

/// The remembered refusals, as the admin API lists them by this query.
pub async fn entries(gateway: &Gateway, query: &str) -> Vec<Value> {
    let (status, page) = gateway.admin_get(&format!("/admin/v1/refusals{query}")).await;
    assert_eq!(status, 200, "{page}");
    page["items"].as_array().cloned().unwrap_or_else(|| panic!("no items: {page}"))
}

/// How many refusals are remembered; the metric has to agree with the list.
pub async fn entry_count(gateway: &Gateway) -> usize {
    let listed = entries(gateway, "?limit=1000").await.len();
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, listed as f64);
    listed
}

/// Forgets by a selection and returns how many entries went.
pub async fn forget(gateway: &Gateway, selection: &Value) -> u64 {
    let (status, answer) = gateway.admin_post("/admin/v1/refusals/forget", selection).await;
    assert_eq!(status, 200, "{answer}");
    answer["forgotten"].as_u64().unwrap_or_else(|| panic!("no count: {answer}"))
}

/// Forgets everything.
pub async fn forget_all(gateway: &Gateway) -> u64 {
    forget(gateway, &json!({ "all": true })).await
}

/// All values of a field as the one list that they mean (RFC 9110, section 5.3).
pub fn field(answer: &Answer, name: &str) -> Option<Vec<u8>> {
    let values = answer.headers_named(name);
    if values.is_empty() { None } else { Some(values.join(&b", "[..])) }
}

/// The upstream's answer with this status, whole, and not marked as anything else.
pub fn assert_live(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{:?}: {}", answer.headers, answer.text());
    for name in ["x-negative-cache", "x-negative-cache-entry", "x-gateway-error"] {
        assert_eq!(field(answer, name), None, "{name} on a live answer: {:?}", answer.headers);
    }
    assert!(answer.complete, "cut: {:?}", answer.headers);
}

/// The gateway's own answer with this status and code: marked, a problem document, and no replay.
pub fn assert_own(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{:?}: {}", answer.headers, answer.text());
    assert_eq!(answer.header("x-gateway-error").as_deref(), Some(code));
    assert_eq!(answer.header("content-type").as_deref(), Some("application/problem+json"));
    assert_eq!(answer.json()["code"], code);
    assert_eq!(field(answer, "x-negative-cache"), None);
}

/// `hit` is a replay of `live`: equal in all that is promised, framed anew, and marked.
pub fn assert_replay(live: &Answer, hit: &Answer) {
    assert!(hit.is_hit(), "no HIT: {} {:?}", hit.status, hit.headers);
    assert_eq!(hit.status, live.status);
    assert_eq!(hit.body, live.body, "{:?} is not {:?}", hit.text(), live.text());
    for name in ["content-type", "content-encoding", "content-language"] {
        assert_eq!(field(hit, name), field(live, name), "{name}");
    }
    assert!(hit.complete);
    // HTTP/2 ends an empty answer with its head.
    let framed = !(hit.head_raw.is_empty() && hit.body.is_empty());
    let length = hit.header("content-length");
    assert_eq!(length, framed.then(|| hit.body.len().to_string()), "{:?}", hit.headers);
    for name in ["transfer-encoding", "trailer", "retry-after", "set-cookie"] {
        assert_eq!(field(hit, name), None, "{name} on a replay");
    }
    let age = hit.header("age").and_then(|age| age.parse::<u64>().ok());
    assert!(age.is_some(), "{:?}", hit.headers);
    assert_eq!(hit.header("x-should-retry").as_deref(), Some("false"));
    let entry = hit.header("x-negative-cache-entry").unwrap_or_default();
    assert!(entry.len() == 64 && entry.bytes().all(|b| b.is_ascii_hexdigit()), "{entry}");
    let status = hit.header("cache-status").unwrap_or_default();
    assert!(status.starts_with("nevertwice; hit; ttl=") && status.ends_with("; detail=refusal"), "{status}");
}

/// Asks again and again until a condition holds; panics with `what` after `limit`.
pub async fn until<F, T>(what: &str, limit: Duration, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        if Instant::now() > deadline {
            panic!("{what} did not come about within {limit:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
