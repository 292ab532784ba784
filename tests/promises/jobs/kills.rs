//! Jobs outlive the process: none is lost, none is stuck, none runs twice at once, and each call is accounted for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nevertwice_testkit::{DOC, DOC2, Gate, Gateway, Post, Reply, Upstream, random_document, sha256_hex};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::job_caller::{JOB, attempts, end, hand, lines_with, show, with_jobs};
use crate::jobs::{accepted, id};

async fn kill(gateway: &mut Gateway) {
    gateway.signal("KILL");
    gateway.wait_exit(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_gateway_that_is_killed_again_and_again_brings_every_job_to_its_end() {
    const JOBS: u64 = 100;
    let upstream = Upstream::start().await;
    let mut gateway =
        Gateway::with(&upstream.url(), &[("TOP", "jobs: {}"), ("UPSTREAM", "pool:\n  max_in_flight: 6")])
            .await;
    let calls = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
    let counted = Arc::clone(&calls);
    upstream.by(move |seen, n| {
        *counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(seen.body_sha256.clone())
            .or_default() += 1;
        accepted().delay(Duration::from_millis(5 + n * 37 % 90))
    });
    let (addr, acknowledged) = (gateway.addr, Arc::new(Mutex::new(HashMap::new())));
    let mut submitting = JoinSet::new();
    {
        let acknowledged = Arc::clone(&acknowledged);
        submitting.spawn(async move {
            for n in 0..JOBS {
                let document = random_document(n, 3000);
                // nobody knows what became of one that was not answered; with its key it is one job all the same
                loop {
                    let post = Post::to(addr, JOB).bearer("tok-1").header("Idempotency-Key", format!("n{n}"));
                    match post.body(document.clone()).try_send().await {
                        Ok(answer) if answer.status == 202 => {
                            let job = (id(&answer), sha256_hex(&[&document]));
                            acknowledged.lock().unwrap_or_else(PoisonError::into_inner).insert(job.0, job.1);
                            break;
                        }
                        _ => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            }
        });
    }
    for round in 0..12_u64 {
        tokio::time::sleep(Duration::from_millis(60 + round * 53 % 170)).await;
        kill(&mut gateway).await;
        gateway.restart().await;
    }
    assert!(submitting.join_next().await.is_some_and(|done| done.is_ok()));
    let jobs = acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(jobs.len() as u64, JOBS);
    let mut interrupted = 0;
    for (id, document) in &jobs {
        let job = end(&gateway, id).await;
        let made = calls.lock().unwrap_or_else(PoisonError::into_inner).get(document).copied().unwrap_or(0);
        match job["status"].as_str() {
            Some("succeeded") => assert_eq!(made, 1, "{job}"),
            _ => {
                assert_eq!(job["error"]["code"], "INTERRUPTED", "{job}");
                assert_eq!((&job["error"]["retryable"], job.get("result")), (&json!(true), None), "{job}");
                assert!(made <= 1, "{made} calls: {job}");
                interrupted += 1;
            }
        }
    }
    assert!(interrupted < JOBS / 2, "{interrupted}");
    let lines = gateway.audit();
    let accounted: HashSet<&str> =
        lines.iter().filter(|line| line["attempts"] != 0).filter_map(|line| line["job"].as_str()).collect();
    for (id, document) in &jobs {
        let made = calls.lock().unwrap_or_else(PoisonError::into_inner).get(document).copied().unwrap_or(0);
        assert!(made == 0 || accounted.contains(id.as_str()), "a call of {id} is not in the audit");
    }
    assert!(attempts(&lines) >= upstream.calls());
    assert!(!gateway.log().contains("panicked"));
}

#[tokio::test]
async fn a_job_whose_worker_died_in_a_call_is_told_and_not_sent_again_by_itself() {
    let upstream = Upstream::start().await;
    let mut gateway =
        Gateway::with(&upstream.url(), &[("TOP", "jobs: {}"), ("UPSTREAM", "pool:\n  max_in_flight: 1")])
            .await;
    upstream.always(Reply::stall());
    let cut = id(&hand(&gateway, JOB, &DOC).header("Idempotency-Key", "k").send().await);
    upstream.wait_calls(1).await;
    let waits = id(&hand(&gateway, JOB, &DOC2).send().await);
    upstream.always(accepted());
    kill(&mut gateway).await;
    gateway.restart().await;
    let job = end(&gateway, &cut).await;
    assert_eq!((&job["status"], &job["error"]["code"]), (&json!("failed"), &json!("INTERRUPTED")), "{job}");
    assert_eq!((&job["attempts"], &job["error"]["upstream_status"]), (&json!(1), &Value::Null), "{job}");
    assert_eq!(end(&gateway, &waits).await["status"], "succeeded");
    assert_eq!(upstream.calls(), 2);
    let lines = lines_with(&gateway, "interrupted call", |lines| {
        lines.iter().any(|line| line["code"] == "INTERRUPTED" && line["job"] == json!(cut))
    })
    .await;
    assert_eq!(attempts(&lines), 2);
    // its owner may try again: what happened is no verdict
    let again = hand(&gateway, JOB, &DOC).header("Idempotency-Key", "k").send().await;
    assert_eq!(end(&gateway, &id(&again)).await["status"], "succeeded");
    assert_eq!(upstream.calls(), 3);
}

#[tokio::test]
async fn a_drain_lets_calls_finish_and_leaves_what_waits() {
    let upstream = Upstream::start().await;
    let mut gateway =
        Gateway::with(&upstream.url(), &[("TOP", "jobs: {}"), ("UPSTREAM", "pool:\n  max_in_flight: 1")])
            .await;
    let gate = Gate::new();
    upstream.always(accepted().wait_for(&gate));
    let runs = id(&hand(&gateway, JOB, &DOC).send().await);
    gate.wait_waiting(1).await;
    let waits = id(&hand(&gateway, JOB, &DOC2).send().await);
    gateway.signal("TERM");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(gateway.is_running());
    gate.open();
    gateway.wait_exit(Duration::from_secs(10)).await;
    assert_eq!(upstream.calls(), 1);
    gateway.restart().await;
    assert_eq!(show(&gateway, &runs).await["status"], "succeeded");
    assert_eq!(end(&gateway, &waits).await["status"], "succeeded");
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test]
async fn what_a_drain_cuts_is_told() {
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::with(&upstream.url(), &[("TOP", "drain_s: 1\njobs: {}")]).await;
    upstream.always(Reply::stall());
    let job = id(&hand(&gateway, JOB, &DOC).send().await);
    upstream.wait_calls(1).await;
    gateway.signal("TERM");
    gateway.wait_exit(Duration::from_secs(20)).await;
    gateway.restart().await;
    let job = end(&gateway, &job).await;
    assert_eq!(job["error"]["code"], "INTERRUPTED", "{job}");
    assert_eq!((attempts(&gateway.audit()), upstream.calls()), (1, 1));
}

#[tokio::test]
async fn jobs_are_there_until_their_time_is_up() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "retention_s: 60").await;
    upstream.always(accepted());
    let job = end(&gateway, &id(&hand(&gateway, JOB, &DOC).send().await)).await;
    let (finished, expires) = (job["finished_at"].as_str(), job["expires_at"].as_str());
    let second = |time: Option<&str>| time.and_then(|time| time.get(17..19)?.parse::<u32>().ok());
    // a minute later to the second
    assert_eq!(second(finished), second(expires), "{job}");
    assert_ne!(finished, expires);
}
