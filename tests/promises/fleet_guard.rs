//! One mass-refusal guard for all replicas, whatever each of them has heard.
#![expect(clippy::unwrap_used, reason = "test")]

use std::time::Duration;

use nevertwice_testkit::{Chaos, Fault, Gateway, Redis, Reply, Upstream, r400, random_document};
use serde_json::Value;

use crate::fleet::{fleet, post, replica, until};

#[tokio::test]
async fn the_mass_refusal_guard_is_the_fleet_s() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let [a, b, c] = fleet(&upstream, &redis, &[]).await;
    let guard = async |gateway: &Gateway| {
        let (_, upstreams) = gateway.admin_get("/admin/v1/upstreams").await;
        upstreams["items"][0]["guard"].clone()
    };
    let document = |n: u64| random_document(500 + n, 256);
    upstream.always(Reply::status(200));
    post(&a, &document(0)).await;
    upstream.always(r400());
    // no replica sees twenty of them
    for n in 1..=12 {
        post(&a, &document(n)).await;
    }
    until(Duration::from_secs(5), "b hears of a's", async || guard(&b).await["refused"] == 12).await;
    for n in 13..=20 {
        post(&b, &document(n)).await;
    }
    for gateway in [&a, &b, &c] {
        until(Duration::from_secs(2), "it is on", async || guard(gateway).await["tripped_at"].is_string())
            .await;
        assert!(!post(gateway, &document(3)).await.is_hit(), "what the window remembered is not used");
    }
    let late = replica(&upstream, &redis.url(), &[]).await;
    until(Duration::from_secs(2), "one that comes later knows", async || {
        guard(&late).await["tripped_at"].is_string()
    })
    .await;
    // the upstream is well again: one replica sees it, all know it
    upstream.always(Reply::status(200));
    post(&c, &document(30)).await;
    for gateway in [&a, &b, &c, &late] {
        until(Duration::from_secs(2), "it is off", async || guard(gateway).await["tripped_at"].is_null())
            .await;
    }
    upstream.always(r400());
    post(&a, &document(40)).await;
    assert!(post(&late, &document(40)).await.is_hit());
}

async fn guard_is_on(gateway: &Gateway) -> bool {
    let (_, upstreams) = gateway.admin_get("/admin/v1/upstreams").await;
    upstreams["items"][0]["guard"]["tripped_at"].is_string()
}

#[tokio::test]
async fn slow_a_mass_refusal_while_the_store_is_away_leaves_nothing_behind() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let chaos = Chaos::start(redis.addr()).await;
    let (a, b) = (
        replica(&upstream, &format!("redis://{}", chaos.addr()), &[]).await,
        replica(&upstream, &redis.url(), &[]).await,
    );
    let document = |n: u64| random_document(700 + n, 256);
    upstream.always(Reply::status(200));
    post(&a, &document(0)).await;
    upstream.always(r400());
    for n in 1..=4 {
        post(&a, &document(n)).await;
        assert!(post(&b, &document(n)).await.is_hit());
    }
    chaos.set(Fault::Reset);
    for n in 5..=24 {
        assert_eq!(post(&a, &document(n)).await.status, 400);
    }
    assert!(guard_is_on(&a).await);
    // well again, before anybody could be told
    upstream.always(Reply::status(200));
    assert_eq!(post(&a, &document(30)).await.status, 200);
    assert!(!guard_is_on(&a).await);
    chaos.set(Fault::None);
    // by then what waited has been told, and what was recorded is marked
    until(Duration::from_secs(10), "the marks are made", async || {
        let (_, listed) = b.admin_get("/admin/v1/refusals").await;
        let items = listed["items"].as_array().map(Vec::len);
        items == Some(4) && listed["items"].as_array().unwrap().iter().all(|item| item["suspect"] == true)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let calls = upstream.calls();
    for n in 1..=24 {
        for gateway in [&a, &b] {
            let answer = post(gateway, &document(n)).await;
            assert_eq!((answer.status, answer.is_hit()), (200, false), "document {n}");
        }
    }
    assert_eq!(upstream.calls(), calls + 48);
}

#[tokio::test]
async fn slow_a_replica_that_missed_the_end_of_a_guard_finds_out() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let chaos = Chaos::start(redis.addr()).await;
    let (a, b) = (
        replica(&upstream, &redis.url(), &[]).await,
        replica(&upstream, &format!("redis://{}", chaos.addr()), &[]).await,
    );
    let document = |n: u64| random_document(800 + n, 256);
    upstream.always(Reply::status(200));
    post(&a, &document(0)).await;
    upstream.always(r400());
    for n in 1..=20 {
        post(&a, &document(n)).await;
    }
    let soon = Duration::from_secs(10);
    until(soon, "it is on everywhere", async || guard_is_on(&a).await && guard_is_on(&b).await).await;
    chaos.set(Fault::Reset);
    let recover = "/admin/v1/upstreams/doc-classifier/recover";
    assert_eq!(a.admin_post(recover, &Value::Null).await.0, 200);
    assert!(!guard_is_on(&a).await && guard_is_on(&b).await);
    chaos.set(Fault::None);
    until(soon, "it is off everywhere", async || !guard_is_on(&b).await).await;
    let calls = upstream.calls();
    post(&b, &document(40)).await;
    for gateway in [&a, &b] {
        assert!(post(gateway, &document(40)).await.is_hit());
    }
    assert_eq!(upstream.calls(), calls + 1);
}
