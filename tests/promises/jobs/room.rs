//! What jobs keep is bounded in bytes, and a tenant has half of it.

use std::time::Duration;

use nevertwice_testkit::{Gate, Gateway, Upstream, random_document};

use crate::bench::assert_own;
use crate::job_caller::{JOB, ask, get, hand_as};
use crate::jobs::{accepted, id, refused};

#[tokio::test]
async fn what_jobs_keep_is_bounded_and_there_is_room_again_when_they_end() {
    const STORED: &str = "gateway_jobs_stored_bytes";
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(
        &upstream.url(),
        &[
            ("TOP", "jobs:\n  input_max_bytes: 10000\n  max_bytes: 20000\n  retention_s: 6"),
            ("UPSTREAM", "pool:\n  max_in_flight: 1"),
        ],
    )
    .await;
    let gate = Gate::new();
    upstream.always(refused(422).wait_for(&gate));
    let hand =
        async |tenant, n, length| hand_as(&gateway, tenant, JOB, &random_document(n, length)).send().await;
    let taken = async |tenant, n, length| {
        let answer = hand(tenant, n, length).await;
        assert_eq!(answer.status, 202, "{n}: {}", answer.text());
        id(&answer)
    };
    let first = taken(1, 1, 6000).await;
    let second = taken(1, 2, 4000).await;
    let full = hand(1, 3, 1).await;
    assert_own(&full, 503, "JOBS_FULL", "a tenant has half");
    assert!(full.header("retry-after").is_some());
    let detail = "what is kept of this tenant leaves no room for it in half of jobs.max_bytes";
    assert_eq!(full.json()["detail"], detail);
    let other = taken(2, 4, 9000).await;
    let full = hand(3, 5, 1001).await;
    assert_own(&full, 503, "JOBS_FULL", "all of it");
    let detail = "the inputs and results that are kept leave no room for it in jobs.max_bytes";
    assert_eq!(full.json()["detail"], detail);
    assert_eq!(gateway.metric(STORED, &[]).await, 19_000.0);
    // given up: its input goes
    let cancelled = ask(gateway.addr, "DELETE", &format!("/jobs/{second}"), 1).await;
    assert_eq!(cancelled.json()["status"], "cancelled");
    let third = taken(3, 5, 4000).await;
    // a failed one keeps its input, and its result beside that, until it is removed
    gate.open();
    for (tenant, job) in [(1, &first), (2, &other), (3, &third)] {
        let shown = get(&gateway, tenant, &format!("/jobs/{job}?wait=30")).await;
        assert_eq!(shown.json()["status"], "failed", "{}", shown.text());
    }
    assert!(gateway.metric(STORED, &[]).await > 19_000.0);
    assert_own(&hand(2, 6, 5000).await, 503, "JOBS_FULL", "they are kept");
    upstream.always(accepted());
    let mut answer = hand(2, 6, 5000).await;
    while answer.status == 503 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        answer = hand(2, 6, 5000).await;
    }
    assert_eq!(answer.status, 202, "there is room again: {}", answer.text());
    assert_eq!(get(&gateway, 1, &format!("/jobs/{first}")).await.status, 404);
    let ended = get(&gateway, 2, &format!("/jobs/{}?wait=30", id(&answer))).await;
    assert_eq!(ended.json()["status"], "succeeded", "{}", ended.text());
    let result = get(&gateway, 2, &format!("/jobs/{}/result", id(&answer))).await.body.len();
    // the result, and no input
    gateway.wait_metric(STORED, &[], result as f64).await;
    assert_eq!(upstream.calls(), 4, "what was refused was not sent");
}
