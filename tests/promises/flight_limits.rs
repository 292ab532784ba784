//! Waiting for another attempt, where it meets other limits: the pool, the queue, the scope, the mode, and the time that a
//! refusal may be held back.
#![expect(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "test")]

use std::time::{Duration, Instant};

use nevertwice_testkit::{Answer, Client, DOC, Gate, Gateway, Post, Reply, Request, Step, Upstream, r400};
use tokio::task::{JoinHandle, JoinSet};

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
    // whoever came to the pool after that would find room
    let told = [("tenant", "dev_1"), ("result", "shed")];
    gateway.wait_metric("gateway_tenant_requests_total", &told, 9.0).await;
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

/// Whether this is what a request gets that found no place.
fn is_shed(answer: &Answer) -> bool {
    let code = answer.header("x-gateway-error").unwrap_or_default();
    answer.status == 503 && ["POOL_FULL", "QUEUE_TIMEOUT"].contains(&code.as_str())
}

/// Other documents that hold all places of the pool until the gate is open, which the rest of the script does not know.
async fn hold_all(gateway: &Gateway, gate: &Gate, places: usize) -> Vec<JoinHandle<Answer>> {
    const OTHERS: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];
    let holders = OTHERS[..places].iter().map(|document| send(gateway, 1, document)).collect();
    gate.wait_waiting(places).await;
    holders
}

#[tokio::test]
async fn cc_06_a_leader_that_gets_no_place_says_nothing_about_the_document() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let pool = "pool:\n  max_in_flight: 1\n  max_queue: 1\n  queue_timeout_ms: 500";
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    let holders = hold_all(&gateway, &gate, 1).await;
    let leader = send(&gateway, 1, &DOC);
    gateway.wait_metric("gateway_pool_queued", &[], 1.0).await;
    let waiting: Vec<_> = (0..3).map(|_| send(&gateway, 1, &DOC)).collect();
    assert_own(&leader.await.unwrap(), 503, "QUEUE_TIMEOUT", "the leader");
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert!(is_shed(&answer), "{answer:?}");
        assert_own(&answer, 503, &answer.header("x-gateway-error").unwrap(), "a waiter");
    }
    assert_eq!(upstream.calls(), 1, "that of the other document");
    gate.open();
    for holder in holders {
        assert_eq!(holder.await.unwrap().status, 200);
    }
    upstream.always(r400());
    assert!(!post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, 6).await;
}

#[tokio::test]
async fn cc_06_a_leader_that_is_shed_does_not_send_the_crowd_up() {
    const COPIES: usize = 20;
    let upstream = Upstream::start().await;
    for (places, queue) in [(1, 0), (1, 1), (4, 30)] {
        let case = format!("{places} places, {queue} in the queue");
        let block = format!("pool: {{max_in_flight: {places}, max_queue: {queue}, queue_timeout_ms: 400}}");
        let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", &block)]).await;
        let (held, refusing) = (Gate::new(), Gate::new());
        let gates = (held.clone(), refusing.clone());
        upstream.by(move |seen, _| match seen.body == DOC[..] {
            true => r400().wait_for(&gates.1),
            false => Reply::status(200).wait_for(&gates.0),
        });
        let before = upstream.calls();
        let holders = hold_all(&gateway, &held, places).await;
        let mut copies = JoinSet::new();
        for n in 0..COPIES {
            let post = Post::to(gateway.addr, CLASSIFY).bearer(&format!("tok-{}", n % 3 + 1));
            copies.spawn(post.body(&DOC[..]).send());
        }
        // the first one is shed: at once, or when its time in the queue is over
        let mut shed = 0;
        let first = copies.join_next().await.unwrap().unwrap();
        assert!(is_shed(&first), "{case}: {first:?}");
        shed += 1;
        held.open();
        for holder in holders {
            assert_eq!(holder.await.unwrap().status, 200, "{case}");
        }
        if queue > 0 {
            // one of the crowd goes up; whoever else would is there by the time the queue is empty
            refusing.wait_waiting(1).await;
            gateway.wait_metric("gateway_pool_queued", &[], 0.0).await;
        }
        refusing.open();
        let (mut live, mut hits) = (0, 0);
        while let Some(answer) = copies.join_next().await {
            let answer = answer.unwrap();
            match answer.status {
                400 if answer.is_hit() => hits += 1,
                400 => live += 1,
                _ => {
                    assert!(is_shed(&answer), "{case}: {answer:?}");
                    shed += 1;
                }
            }
        }
        let calls = upstream.calls() - before - places as u64;
        assert_eq!(live, calls, "{case}: {hits} hits, {shed} shed");
        // without a queue the first place may come too late for all of them
        assert!(calls == 1 || (calls == 0 && queue == 0), "{case}: {calls} calls, {hits} hits, {shed} shed");
        let next = send(&gateway, 1, &DOC).await.unwrap();
        assert_eq!((next.status, next.is_hit()), (400, calls > 0), "{case}");
        settle(&gateway, places + COPIES + 1).await;
    }
}

#[tokio::test]
async fn cc_06_who_is_still_without_a_place_when_the_verdict_lands_gets_it_and_no_call() {
    const COPIES: usize = 12;
    let upstream = Upstream::start().await;
    // the wait ends before the attempt does, or there is none
    for wait in [200, 0] {
        let block = format!(
            "pool: {{max_in_flight: 2, max_queue: 100, queue_timeout_ms: 20000}}\n\
             negative_cache: {{single_flight_wait_ms: {wait}}}"
        );
        let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", &block)]).await;
        let (one, rest) = (Gate::new(), Gate::new());
        let gates = (one.clone(), rest.clone());
        upstream.by(move |_, n| r400().wait_for(if n == 1 { &gates.0 } else { &gates.1 }));
        let before = upstream.calls();
        let first = send(&gateway, 1, &DOC);
        one.wait_waiting(1).await;
        let mut others = JoinSet::new();
        for n in 1..COPIES {
            let post = Post::to(gateway.addr, CLASSIFY).bearer(&format!("tok-{}", n % 3 + 1));
            others.spawn(post.body(&DOC[..]).send());
        }
        rest.wait_waiting(1).await;
        gateway.wait_metric("gateway_pool_queued", &[], (COPIES - 2) as f64).await;
        one.open();
        let first = first.await.unwrap();
        assert!(first.status == 400 && !first.is_hit(), "{first:?}");
        // the other call is still out; everybody else has the answer of the first
        for _ in 0..COPIES - 2 {
            let next = tokio::time::timeout(Duration::from_secs(5), others.join_next()).await;
            let next = next.unwrap_or_else(|_| panic!("wait {wait}: {} calls", upstream.calls() - before));
            let next = next.unwrap().unwrap();
            assert!(next.status == 400 && next.is_hit(), "wait {wait}: {next:?}");
        }
        assert_eq!(upstream.calls() - before, 2, "wait {wait}");
        rest.open();
        let second = others.join_next().await.unwrap().unwrap();
        assert!(second.status == 400 && !second.is_hit(), "wait {wait}: {second:?}");
        assert_eq!(upstream.calls() - before, 2, "wait {wait}");
        let lines = settle(&gateway, COPIES).await;
        let known: Vec<_> = lines.iter().filter(|line| line["code"] == "REFUSED_HTTP_400").collect();
        assert_eq!(known.len(), COPIES - 2, "{lines:#?}");
        assert!(known.iter().all(|line| line["cache_hit"] == true && line["upstream_ms"] == 0), "{known:#?}");
        assert!(known.iter().all(|line| line["attempts"] == 0), "{known:#?}");
    }

    // the upstream takes its time, and nobody steers it
    let gateway = Gateway::with(
        &upstream.url(),
        &[("UPSTREAM", "pool: {max_in_flight: 2}\nnegative_cache: {single_flight_wait_ms: 200}")],
    )
    .await;
    upstream.always(r400().delay(Duration::from_secs(1)));
    let before = upstream.calls();
    let sent: Vec<_> = (0..COPIES).map(|n| send(&gateway, n % 3 + 1, &DOC)).collect();
    let mut hits = 0;
    for answer in sent {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, 400, "{answer:?}");
        hits += u64::from(answer.is_hit());
    }
    let calls = upstream.calls() - before;
    assert!(calls <= 3 && hits == COPIES as u64 - calls, "{calls} calls, {hits} hits");
    settle(&gateway, COPIES).await;
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
