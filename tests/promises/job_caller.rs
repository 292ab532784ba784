//! How callers use jobs.
#![expect(clippy::panic, reason = "a broken test should stop loudly")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nevertwice_testkit::{Answer, Client, Gateway, Post, Request, Upstream};
use serde_json::Value;

/// A job on a guarded path.
pub const JOB: &str = "/jobs/doc-classifier/classify";
/// How long a job may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway that serves jobs; `more` are lines of its block `jobs`.
pub async fn with_jobs(upstream: &Upstream, more: &str) -> Gateway {
    let lines: String = more.lines().map(|line| format!("  {line}\n")).collect();
    let block = if lines.is_empty() { "jobs: {}\n".to_owned() } else { format!("jobs:\n{lines}") };
    Gateway::with(&upstream.url(), &[("TOP", &block)]).await
}

/// A document handed over by the first tenant.
pub fn hand(gateway: &Gateway, target: &str, document: &[u8]) -> Post {
    hand_as(gateway, 1, target, document)
}

/// A document handed over by one of the three tenants.
pub fn hand_as(gateway: &Gateway, tenant: u8, target: &str, document: &[u8]) -> Post {
    let post = Post::to(gateway.addr, target).bearer(&format!("tok-{tenant}"));
    post.header("Content-Type", "application/pdf").body(document.to_vec())
}

/// A request without a body by one of the tenants.
pub async fn ask(addr: SocketAddr, method: &str, target: &str, tenant: u8) -> Answer {
    let request = Request::new(method, target).bearer(&format!("tok-{tenant}"));
    Client::connect(addr).await.patience(PATIENCE + PATIENCE).request(request).await
}

/// A GET by one of the tenants.
pub async fn get(gateway: &Gateway, tenant: u8, target: &str) -> Answer {
    ask(gateway.addr, "GET", target, tenant).await
}

/// A DELETE of a job by one of the tenants.
pub async fn delete(gateway: &Gateway, tenant: u8, id: &str) -> Answer {
    ask(gateway.addr, "DELETE", &format!("/jobs/{id}"), tenant).await
}

/// The first tenant's job as it is.
pub async fn show(gateway: &Gateway, id: &str) -> Value {
    let answer = get(gateway, 1, &format!("/jobs/{id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The first tenant's job, cancelled.
pub async fn cancel(gateway: &Gateway, id: &str) -> Value {
    let answer = delete(gateway, 1, id).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The first tenant's job when it has come to its end.
pub async fn end(gateway: &Gateway, id: &str) -> Value {
    let began = Instant::now();
    loop {
        let answer = get(gateway, 1, &format!("/jobs/{id}?wait=5")).await;
        assert_eq!(answer.status, 200, "{id}: {}", answer.text());
        let job = answer.json();
        if ["succeeded", "failed", "cancelled"].iter().any(|end| job["status"] == *end) {
            return job;
        }
        if began.elapsed() > PATIENCE {
            panic!("the job does not end: {job}\n{}", gateway.log());
        }
    }
}

/// The audit, when what is looked for is in it: lines come a moment after the answers.
pub async fn lines_with(gateway: &Gateway, what: &str, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let lines = gateway.audit();
        if holds(&lines) {
            return lines;
        }
        if began.elapsed() > Duration::from_secs(10) {
            panic!("no {what} in the audit: {lines:#?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Calls of upstreams that the audit tells of.
pub fn attempts(lines: &[Value]) -> u64 {
    lines.iter().filter_map(|line| line["attempts"].as_u64()).sum()
}
