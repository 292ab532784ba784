//! Several gateways on one Redis, and several replicas of the service: a poll finds the one that has the operation.

use std::collections::HashMap;

use nevertwice_testkit::Redis;

use super::*;
use crate::memory_settings::reconfigure;

/// The configuration of a gateway of the fleet.
fn shared(redis: &Redis, yaml: &str) -> String {
    let embedded = "embedded:\n    path: \"@DIR@/data\"";
    assert!(yaml.contains(embedded));
    let url = redis.url();
    yaml.replace(embedded, &format!("redis:\n    url: \"{url}\"\n    read_ms: 2000\n    write_ms: 2000"))
}

#[tokio::test]
async fn di_04_a_hundred_polls_find_the_replica_that_has_the_operation() {
    let (redis, [one, two]) = (Redis::start(), [AzureDi::start().await, AzureDi::start().await]);
    let (both, turned) = (
        format!("[\"{}\", \"{}\"]", one.url(), two.url()),
        format!("[\"{}\", \"{}\"]", two.url(), one.url()),
    );
    let first = Gateway::start(&shared(&redis, &yaml(&one, &[("BASE", &both)]))).await;
    let mut second = Gateway::start(&shared(&redis, &yaml(&one, &[("BASE", &both)]))).await;
    let mut operations = HashMap::new();
    for n in 0..100 {
        let document = format!("document {n}");
        let submitted = submit(&first, ANALYZE, document.clone()).await;
        for replica in [&one, &two] {
            let head = String::from_utf8_lossy(&submitted.head_raw).into_owned();
            assert!(!head.contains(&replica.addr().to_string()), "{head}");
        }
        operations.insert(operation(&first, &submitted), sha256_hex(&[document]));
    }
    let submits = [one.submits().len(), two.submits().len()];
    assert!(submits.iter().sum::<usize>() == 100 && submits.iter().all(|n| *n > 0), "{submits:?}");
    // half of the polls, then a restart with the replicas in another order, then all
    for (path, digest) in operations.iter().take(50) {
        assert!(poll(&second, path).await.text().contains(digest), "{path}");
    }
    reconfigure(&mut second, &both, &turned).await;
    for (path, digest) in &operations {
        let done = poll(&second, path).await;
        assert_eq!((done.status, done.text().contains(digest)), (200, true), "{path}: {}", done.text());
    }
    assert_eq!([one.polls().len(), two.polls().len()].iter().sum::<usize>(), 150);
    // without the first replica: a clear word for what it had, and not the other one's
    reconfigure(&mut second, &turned, &format!("\"{}\"", two.url())).await;
    let (had, calls) = (one.submits().len(), two.upstream.calls());
    let mut gone = 0;
    for path in operations.keys() {
        let answer = poll(&second, path).await;
        if answer.status == 200 {
            continue;
        }
        assert_no_operation(&answer, 410, "OPERATION_GONE");
        gone += 1;
    }
    assert_eq!((gone, two.upstream.calls() - calls), (had, (100 - had) as u64));
}

#[tokio::test]
async fn a_poll_through_one_replica_is_known_to_all() {
    let (redis, di) = (Redis::start(), AzureDi::start().await);
    let configuration = shared(&redis, &yaml(&di, &[]));
    let (a, b) = (Gateway::start(&configuration).await, Gateway::start(&configuration).await);
    di.on(&DOC[..], failing().after(1));
    let operation_of = |submitted: &Answer, gateway: &Gateway| operation(gateway, submitted);
    let live = operation_of(&submit(&a, ANALYZE, &DOC[..]).await, &a);
    assert_eq!(poll(&a, &live).await.json()["status"], "running");
    let failed = poll(&b, &live).await.json();
    assert_eq!(failed["status"], "failed");
    // who learned it, who had it submitted, and one that comes later
    let late = Gateway::start(&configuration).await;
    for (n, submits_to) in [&a, &b, &late].into_iter().enumerate() {
        let submitted = submit(submits_to, ANALYZE, &DOC[..]).await;
        assert!(submitted.is_hit(), "{n}");
        let minted = operation_of(&submitted, submits_to);
        for polls in [&a, &b, &late] {
            let replayed = poll(polls, &minted).await;
            assert_eq!((replayed.is_hit(), &replayed.json()["error"]), (true, &failed["error"]));
            assert_no_operation(&call(polls, 2, "GET", &minted).await, 404, "OPERATION_NOT_FOUND");
        }
    }
    assert_eq!((di.submits().len(), di.polls().len()), (1, 2));
    for gateway in [&a, &b, &late] {
        let timed_out = [("result", "timed_out")];
        assert_eq!(gateway.metric("gateway_negative_cache_waits_total", &timed_out).await, 0.0);
    }
}

/// Behind one address, a poll may reach any replica, and not the one that has the attempt and those who wait for it.
#[tokio::test]
async fn whoever_waits_hears_of_it_whichever_replica_is_asked() {
    let (redis, di) = (Redis::start(), AzureDi::start().await);
    let wait = ("DI", "negative_cache: {single_flight_wait_ms: 60000}");
    let configuration = shared(&redis, &yaml(&di, &[wait]));
    let (a, b) = (Gateway::start(&configuration).await, Gateway::start(&configuration).await);
    for (n, polls) in [&a, &b].into_iter().enumerate() {
        let document = format!("waited for {n}");
        di.on(&document, failing());
        let first = operation(&a, &submit(&a, ANALYZE, document.clone()).await);
        let mut waiting = tokio::task::JoinSet::new();
        for gateway in [&a, &a, &b, &b] {
            let request = Request::post(&format!("/di{ANALYZE}")).bearer("tok-1");
            let request = request.header("Content-Type", "application/octet-stream").body(document.clone());
            let addr = gateway.addr;
            waiting.spawn(async move { Client::connect(addr).await.request(request).await });
        }
        for gateway in [&a, &b] {
            gateway.wait_metric("gateway_body_memory_bytes", &[], 2.0 * document.len() as f64).await;
        }
        assert_eq!(poll(polls, &first).await.json()["status"], "failed");
        while let Some(answer) = waiting.join_next().await {
            assert!(answer.unwrap().is_hit(), "polled at replica {n}");
        }
        assert_eq!(di.submits_of(&document), 1);
    }
}

#[tokio::test]
async fn a_forget_at_one_replica_holds_for_a_poll_at_another() {
    let (redis, di) = (Redis::start(), AzureDi::start().await);
    let configuration = shared(&redis, &yaml(&di, &[]));
    let (a, b) = (Gateway::start(&configuration).await, Gateway::start(&configuration).await);
    di.on(&DOC[..], failing());
    let live = operation(&a, &submit(&a, ANALYZE, &DOC[..]).await);
    crate::caller::forget(&b, &serde_json::json!({ "upstream": "di" })).await;
    assert_eq!(poll(&b, &live).await.json()["status"], "failed");
    assert!(!submit(&a, ANALYZE, &DOC[..]).await.is_hit());
    assert_eq!(di.submits().len(), 2);
}

/// The upstream has the document: whether the store can take the operation is no reason to say otherwise. This process can be asked for
/// it, and with the store back, every other one.
#[tokio::test]
async fn without_redis_an_operation_is_known_here_and_later_everywhere() {
    let (mut redis, di) =
        (Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]), AzureDi::start().await);
    let configuration = shared(&redis, &yaml(&di, &[]));
    let (a, b) = (Gateway::start(&configuration).await, Gateway::start(&configuration).await);
    let kept = operation(&a, &submit(&a, ANALYZE, &DOC[..]).await);
    redis.kill();
    let late = operation(&a, &submit(&a, ANALYZE, &DOC2[..]).await);
    for operation in [&kept, &late] {
        assert_eq!(poll(&a, operation).await.status, 200);
        // no word on whether there is one
        assert_no_operation(&poll(&b, operation).await, 503, "STORE_UNAVAILABLE");
    }
    redis.restart();
    for operation in [&kept, &late] {
        crate::caller::until("its operation is there for all", Duration::from_secs(20), async || {
            (poll(&b, operation).await.status == 200).then_some(())
        })
        .await;
    }
}
