//! Waiting for another attempt, where it meets other limits: the pool, the queue, the scope, the mode, and the time that a
//! refusal may be held back.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "test")]

use std::time::{Duration, Instant};

use nevertwice_testkit::{Answer, Client, DOC, Gate, Gateway, Post, Reply, Request, Step, Upstream, r400};
use tokio::task::JoinHandle;

use crate::bench::{assert_own, post, settle};

const CLASSIFY: &str = "/doc-classifier/classify";

fn send(gateway: &Gateway, tenant: usize, document: &'static [u8]) -> JoinHandle<Answer> {
    tokio::spawn(Post::to(gateway.addr, CLASSIFY).bearer(&format!("tok-{tenant}")).body(document).send())
}

async fn read_in(gateway: &Gateway, bytes: usize) {
    gateway.wait_metric("gateway_body_memory_bytes", &[], bytes as f64).await;
}

#[tokio::test]
async fn cc_06_released_waiters_go_up_as_far_as_the_pool_allows() {
    let upstream = Upstream::start().await;
    let (first, rest) = (Gate::new(), Gate::new());
    let gates = (first.clone(), rest.clone());
    upstream.by(move |_, n| Reply::status(200).wait_for(if n == 1 { &gates.0 } else { &gates.1 }));
    let pool = "pool:\n  max_in_flight: 10\n  max_queue: 80\n  queue_timeout_ms: 20000";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    let sent: Vec<_> = (0..100).map(|_| send(&gateway, 1, &DOC)).collect();
    first.wait_waiting(1).await;
    read_in(&gateway, 100 * DOC.len()).await;
    assert_eq!(gateway.metric("gateway_pool_in_use", &[]).await, 1.0);
    first.open();
    // 99 are released: ten places, eighty in the queue, nine are told at once
    rest.wait_waiting(10).await;
    gateway.wait_metric("gateway_pool_queued", &[], 80.0).await;
    assert_eq!(gateway.metric("gateway_pool_in_use", &[]).await, 10.0);
    rest.open();
    let (mut fine, mut shed) = (0, 0);
    for answer in sent {
        let answer = answer.await.unwrap();
        if answer.status == 200 {
            fine += 1;
        } else {
            assert_own(&answer, 503, "POOL_FULL", "over the queue");
            shed += 1;
        }
    }
    assert_eq!((fine, shed, upstream.calls()), (91, 9, 91));
    settle(&gateway, 100).await;
}

#[tokio::test]
async fn cc_06_a_leader_that_gets_no_place_releases_the_others_and_nothing_is_remembered() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let pool = "pool:\n  max_in_flight: 1\n  max_queue: 1\n  queue_timeout_ms: 500";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    let holder = send(&gateway, 1, b"another document");
    gate.wait_waiting(1).await;
    let leader = send(&gateway, 1, &DOC);
    gateway.wait_metric("gateway_pool_queued", &[], 1.0).await;
    let waiting: Vec<_> = (0..3).map(|_| send(&gateway, 1, &DOC)).collect();
    assert_own(&leader.await.unwrap(), 503, "QUEUE_TIMEOUT", "the leader");
    let mut codes = Vec::new();
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, 503, "{answer:?}");
        codes.push(answer.header("x-gateway-error").unwrap());
    }
    codes.sort_unstable();
    assert_eq!(codes, ["POOL_FULL", "POOL_FULL", "QUEUE_TIMEOUT"]);
    gate.open();
    assert_eq!(holder.await.unwrap().status, 200);
    upstream.always(r400());
    assert!(!post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, 6).await;
}

#[tokio::test]
async fn cc_07_tenants_wait_for_each_other_only_where_they_share() {
    let upstream = Upstream::start().await;
    for (scope, attempts) in [
        ("negative_cache: {scope: tenant}", 3),
        ("negative_cache: {scope: domain, trust_domains: [{name: pair, tenants: [dev_1, dev_2]}]}", 2),
        ("negative_cache: {scope: fleet}", 1),
        // nothing is replayed, so nobody waits
        ("negative_cache: {mode: observe}", 15),
    ] {
        let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", scope)]).await;
        let gate = Gate::new();
        upstream.always(r400().wait_for(&gate));
        let calls = upstream.calls();
        let sent: Vec<_> = (0..15).map(|n| send(&gateway, n % 3 + 1, &DOC)).collect();
        gate.wait_waiting(attempts).await;
        read_in(&gateway, 15 * DOC.len()).await;
        assert_eq!(upstream.calls(), calls + attempts as u64, "{scope}");
        gate.open();
        let mut hits = 0;
        for answer in sent {
            let answer = answer.await.unwrap();
            assert_eq!(answer.status, 400, "{scope}: {answer:?}");
            hits += usize::from(answer.is_hit());
        }
        assert_eq!(hits, 15 - attempts, "{scope}");
        assert_eq!(upstream.calls(), calls + attempts as u64, "{scope}");
        settle(&gateway, 15).await;
    }
}

#[tokio::test]
async fn cc_08_a_refusal_that_does_not_end_is_released_in_time_and_not_remembered() {
    let upstream = Upstream::start().await;
    let block = "negative_cache: {judge_wait_ms: 400}";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", block)]).await;
    let gate = Gate::new();
    let steps =
        vec![Step::chunk("{\"error\":"), Step::WaitFor(gate.clone()), Step::chunk("1}"), Step::LastChunk];
    upstream.script(vec![Reply::status(400).steps(steps), Reply::status(200)]);
    let mut client = Client::connect(gateway.addr).await;
    let began = Instant::now();
    client.try_send_request(Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..])).await.unwrap();
    upstream.wait_calls(1).await;
    let waiter = send(&gateway, 2, &DOC);
    // the head and what there is of the body, although the rest is still out
    assert_eq!(client.read_head().await.status, 400);
    assert!(began.elapsed() >= Duration::from_millis(400) && began.elapsed() < Duration::from_secs(4));
    assert_eq!(client.read_some().await.unwrap().unwrap().bytes, "{\"error\":");
    // whoever waited goes on as well
    assert_eq!(waiter.await.unwrap().status, 200);
    gate.open();
    assert_eq!(client.read_some().await.unwrap().unwrap().bytes, "1}");
    assert!(client.read_some().await.unwrap().is_none());
    let not_recorded = [("reason", "incomplete")];
    assert_eq!(gateway.metric("gateway_negative_cache_not_recorded_total", &not_recorded).await, 1.0);
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 0.0);
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, 2).await;
}
