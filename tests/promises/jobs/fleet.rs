//! Jobs of a fleet on one Redis: handed over here, worked on there, asked for anywhere.

use nevertwice_testkit::{DOC, Gateway, Post, Redis, Upstream, random_document};
use serde_json::json;
use tokio::task::JoinSet;

use crate::bench::assert_own;
use crate::fleet::replica;
use crate::job_caller::{JOB, end, get, hand, show};
use crate::jobs::{accepted, id, refused};

const JOBS: [(&str, &str); 1] = [("TOP", "jobs: {}")];

#[tokio::test]
async fn a_known_bad_document_is_one_call_over_two_replicas() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    upstream.always(refused(400));
    let (a, b) =
        (replica(&upstream, &redis.url(), &JOBS).await, replica(&upstream, &redis.url(), &JOBS).await);
    let first = hand(&a, JOB, &DOC).header("Idempotency-Key", "k").send().await;
    let failed = end(&b, &id(&first)).await;
    assert_eq!(
        (&failed["status"], &failed["error"]["message"]),
        (&json!("failed"), &json!("the file is corrupt"))
    );
    let mut tasks = JoinSet::new();
    for n in 0..100 {
        let at = if n % 2 == 0 { &a } else { &b };
        let key = if n % 4 < 2 { "k".to_owned() } else { format!("k{n}") };
        tasks.spawn(hand(at, JOB, &DOC).header("Idempotency-Key", key).send());
    }
    let mut all = Vec::new();
    while let Some(Ok(answer)) = tasks.join_next().await {
        assert_eq!((answer.status, &answer.json()["status"]), (202, &json!("failed")), "{}", answer.text());
        all.push(id(&answer));
    }
    assert_eq!((all.len(), all.iter().filter(|other| **other == id(&first)).count()), (100, 50));
    for (n, job) in all.iter().enumerate() {
        let at = if n % 2 == 0 { &b } else { &a };
        assert_eq!(show(at, job).await["error"]["message"], "the file is corrupt");
        assert_eq!(get(at, 1, &format!("/jobs/{job}/result")).await.status, 400);
    }
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test]
async fn jobs_are_asked_for_anywhere_and_after_restarts() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    upstream.always(accepted());
    let mut a = replica(&upstream, &redis.url(), &JOBS).await;
    let mut b = replica(&upstream, &redis.url(), &JOBS).await;
    let mut jobs = Vec::new();
    for n in 0..40 {
        let at = if n % 2 == 0 { &a } else { &b };
        jobs.push(id(&hand(at, JOB, &random_document(n, 2000)).send().await));
    }
    for job in &jobs {
        assert_eq!(end(&b, job).await["status"], "succeeded");
    }
    assert_eq!(upstream.calls(), 40);
    a.restart().await;
    b.restart().await;
    for job in &jobs {
        let (here, there) = (show(&a, job).await, show(&b, job).await);
        assert_eq!(here, there);
        assert_eq!(get(&a, 1, &format!("/jobs/{job}/result")).await.text(), r#"{"label":"invoice"}"#);
        assert_own(&get(&b, 2, &format!("/jobs/{job}")).await, 404, "JOB_NOT_FOUND", "another tenant");
    }
    let page = get(&a, 1, "/jobs?limit=1000").await.json();
    assert_eq!(page["items"].as_array().map(Vec::len), Some(40));
}

#[tokio::test]
async fn a_dead_replica_s_jobs_are_another_s() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    upstream.always(accepted().delay(std::time::Duration::from_millis(50)));
    // so many jobs can be in the middle of their calls when a replica dies
    let slots = [JOBS[0], ("UPSTREAM", "pool:\n  max_in_flight: 4")];
    let mut a = replica(&upstream, &redis.url(), &slots).await;
    let b = replica(&upstream, &redis.url(), &slots).await;
    let mut jobs = Vec::new();
    for n in 0..60 {
        jobs.push(id(&hand(&a, JOB, &random_document(n, 2000)).send().await));
    }
    a.signal("KILL");
    a.wait_exit(std::time::Duration::from_secs(10)).await;
    let mut succeeded = 0;
    for job in &jobs {
        let job = end(&b, job).await;
        succeeded += usize::from(job["status"] == "succeeded");
        assert!(job["status"] == "succeeded" || job["error"]["code"] == "INTERRUPTED", "{job}");
    }
    assert!(succeeded >= 60 - 4 && upstream.calls() <= 60, "{succeeded} of {}", upstream.calls());
}

#[tokio::test]
async fn a_store_that_is_away_takes_no_jobs_in_and_says_so() {
    let (upstream, mut redis) = (Upstream::start().await, Redis::start());
    upstream.always(accepted());
    let gateway: Gateway = replica(&upstream, &redis.url(), &JOBS).await;
    let job = id(&hand(&gateway, JOB, &DOC).send().await);
    end(&gateway, &job).await;
    redis.kill();
    for answer in [
        hand(&gateway, JOB, &random_document(1, 900)).send().await,
        get(&gateway, 1, &format!("/jobs/{job}")).await,
        get(&gateway, 1, "/jobs").await,
    ] {
        assert_own(&answer, 503, "STORE_UNAVAILABLE", "no store");
        assert!(answer.header("retry-after").is_some());
    }
    // what needs no store goes on
    let direct = Post::to(gateway.addr, "/doc-classifier/classify").bearer("tok-1").body(&DOC[..]);
    assert_eq!(direct.send().await.status, 200);
}
