//! Lives of single statuses, end to end: a refusal that speaks of a limit ends with its own life, however long the others live.

use std::time::{Duration, Instant};

use nevertwice_testkit::{Gateway, Reply, Upstream, r400, random_document};
use serde_json::Value;

use crate::bench::settle;
use crate::caller::{CLASSIFY, assert_live, assert_replay, entries, entry_count, submit, until};
use crate::memory_settings::{reconfigure, replays_until_live, ttl_and_age, with_rules};

/// What a document of more than 50,000 bytes is refused with.
fn too_large() -> Reply {
    Reply::status(413).header("Content-Type", "application/json").body(r#"{"error":"limit 2MB"}"#)
}

/// An upstream with a limit on size, and that reads no document; one document over the limit, and one under it.
async fn limited() -> (Upstream, Vec<u8>, Vec<u8>) {
    let upstream = Upstream::start().await;
    upstream.by(|seen, _| if seen.body_len > 50_000 { too_large() } else { r400() });
    (upstream, random_document(3, 70_000), random_document(4, 100))
}

/// How long the remembered refusal with this status lives, in seconds.
async fn life(gateway: &Gateway, status: u16) -> Value {
    entries(gateway, &format!("?status={status}")).await[0]["ttl_s"].clone()
}

#[tokio::test]
async fn nv_06_raised_limit_is_seen_when_the_life_of_its_status_is_over() {
    let (upstream, big, bad) = limited().await;
    let gateway = with_rules(&upstream, "status_ttl_s: { 413: 2 }").await;
    let send = |document: &[u8]| submit(&gateway, CLASSIFY).body(document.to_vec()).send();
    let unreadable = send(&bad).await;
    let began = Instant::now();
    let refused = send(&big).await;
    assert_live(&unreadable, 400);
    assert_live(&refused, 413);
    for (live, document, life) in [(&refused, &big, 2), (&unreadable, &bad, 86_400)] {
        let hit = send(document).await;
        assert_replay(live, &hit);
        let (ttl, age) = ttl_and_age(&hit);
        assert_eq!(ttl + age, life);
    }
    assert_eq!(upstream.calls(), 2);

    // The limit is raised, and nobody tells the gateway.
    upstream.always(Reply::status(200).body("fine"));
    let mut asked = 0;
    let asked_so_far = &mut asked;
    let healed = until("the end of the refusal", Duration::from_secs(20), || {
        let answer = send(&big);
        *asked_so_far += 1;
        async move { Some(answer.await).filter(|answer| !answer.is_hit()) }
    });
    assert_live(&healed.await, 200);
    let took = began.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(10)).contains(&took), "healed after {took:?}");
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (3, 1));
    // What was refused at the same time for another reason is still known.
    assert_replay(&unreadable, &send(&bad).await);
    assert_eq!(upstream.calls(), 3);
    settle(&gateway, asked + 5).await;
}

#[tokio::test]
async fn nv_06_life_of_one_status_that_was_shortened_counts_for_live_entries() {
    let (upstream, big, bad) = limited().await;
    let mut gateway = with_rules(&upstream, "status_ttl_s: { 413: 3600 }").await;
    let send = |gateway: &Gateway, document: &[u8]| submit(gateway, CLASSIFY).body(document.to_vec()).send();
    let began = Instant::now();
    let refused = send(&gateway, &big).await;
    let unreadable = send(&gateway, &bad).await;
    let (ttl, age) = ttl_and_age(&send(&gateway, &big).await);
    assert_eq!((ttl + age, life(&gateway, 413).await), (3600, 3600.into()));

    reconfigure(&mut gateway, "413: 3600", "413: 3").await;
    let hit = send(&gateway, &big).await;
    // On a slow machine the entry may be over before the restart is; then this was the probe.
    let mut asked = 1;
    if hit.is_hit() {
        let (ttl, age) = ttl_and_age(&hit);
        assert_eq!(ttl + age, 3);
        let (took, replays) = replays_until_live(&gateway, &refused, &big, began).await;
        let on_time = (Duration::from_secs(3)..Duration::from_secs(10)).contains(&took);
        assert!(on_time, "an hour became {took:?}");
        asked += replays;
    } else {
        assert_live(&hit, 413);
    }
    assert_eq!((upstream.calls(), life(&gateway, 413).await), (3, 3.into()));
    let hit = send(&gateway, &bad).await;
    assert_replay(&unreadable, &hit);
    let (ttl, age) = ttl_and_age(&hit);
    assert_eq!((ttl + age, upstream.calls()), (86_400, 3));
    settle(&gateway, asked + 4).await;
}

#[tokio::test]
async fn life_of_a_status_caps_the_ladder() {
    let (upstream, big, bad) = limited().await;
    let rules = "ttl_ladder: { first_s: 2, factor: 100 }, status_ttl_s: { 413: 3 }";
    let gateway = with_rules(&upstream, rules).await;
    let mut asked = 0;
    for (document, status, second_life) in [(&big, 413, 3), (&bad, 400, 200)] {
        let began = Instant::now();
        let live = submit(&gateway, CLASSIFY).body(document.clone()).send().await;
        assert_live(&live, status);
        assert_eq!(life(&gateway, status).await, 2);
        asked += 1 + replays_until_live(&gateway, &live, document, began).await.1;
        assert_eq!(life(&gateway, status).await, second_life);
    }
    assert_eq!(upstream.calls(), 4);
    settle(&gateway, asked).await;
}
