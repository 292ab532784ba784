//! What operators see of jobs, and can do to them.

#![expect(clippy::unwrap_used, reason = "test")]

use std::time::Duration;

use nevertwice_domain::job::{Job, JobStatus};
use nevertwice_store::work::suite::samples;
use nevertwice_store::work::{Claim, JobEnd, Submitted};
use serde_json::{Value, json};

use crate::world::{Log, OPEN, Plan, START, World};

const JOBS: Plan = Plan { jobs: true, ..OPEN };
/// An upstream that is not configured any more: no worker of the gateway takes its jobs.
const REMOVED: &str = "removed";

impl World {
    /// The `n`th job, with these changes, as it was taken in.
    async fn job(&self, n: u64, change: impl FnOnce(&mut Job)) -> Job {
        let mut job = samples::job(n, START);
        job.upstream = samples::upstream(REMOVED);
        change(&mut job);
        let bounds = samples::bounds(START.plus_ms(samples::LIFE_MS));
        match self.jobs.submit(job, samples::input(n), None, &bounds).await.unwrap() {
            Submitted::New(job) => job,
            other => unreachable!("{other:?}"),
        }
    }

    async fn claim(&self) -> Claim {
        self.jobs.claim(&samples::upstream(REMOVED), Duration::ZERO).await.unwrap().unwrap()
    }

    /// The next job fails.
    async fn fail(&self) {
        let claim = self.claim().await;
        assert!(self.jobs.sending(&claim).await.unwrap());
        let end = JobEnd::Final {
            status: JobStatus::Failed,
            error: Some(samples::verdict()),
            result: Some((samples::facts(422, b"secret answer"), "secret answer".into())),
            at: START,
            expires_at: START.plus_ms(samples::LIFE_MS),
        };
        assert!(self.jobs.settle_job(&claim, end).await.unwrap());
    }

    async fn word(&self, id: impl std::fmt::Display, what: &str) -> Value {
        self.send("POST", &format!("/admin/v1/jobs/{id}/{what}"), &[], "").await.ok()
    }
}

fn ids(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_job_is_shown_without_its_bodies() {
    let world = World::new(JOBS).await;
    let job = world.job(1, |_| ()).await;
    let target = format!("/admin/v1/jobs/{}", job.id);
    let shown = world.get(&target).await.ok();
    let expected = json!({
        "id": job.id.to_string(), "tenant": "a", "upstream": REMOVED, "path": "/sync", "status": "queued",
        "created_at": START, "started_at": null, "finished_at": null, "expires_at": null, "not_before": null,
        "attempts": 0, "sent": false, "cancelling": false, "bytes": samples::input(1).len(),
        "document_sha256": samples::document(1), "error": null, "result": null,
    });
    assert_eq!(shown, expected);
    world.fail().await;
    let answer = world.get(&target).await;
    let shown = answer.ok();
    assert_eq!((&shown["status"], &shown["attempts"]), (&json!("failed"), &json!(1)));
    let error = json!({ "code": "HTTP_422", "message": "the document is broken", "upstream_status": 422,
        "retryable": false, "replayed": false, "verdict": true });
    assert_eq!(shown["error"], error);
    assert_eq!(shown["result"], json!({ "status": 422, "content_type": "application/json", "bytes": 13 }));
    for secret in ["secret answer", "n=1", "caller.test", "pdf"] {
        assert!(!answer.text().contains(secret), "{secret}: {}", answer.text());
    }
    let listed = world.get("/admin/v1/jobs").await.ok();
    // of a failed job the input is kept too
    let stored_bytes = samples::input(1).len() + 13;
    let expected =
        json!({ "items": [shown], "next_cursor": null, "depth": [], "stored_bytes": stored_bytes });
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn jobs_are_listed_by_pages_and_filters() {
    let world = World::new(JOBS).await;
    let mut all = Vec::new();
    for n in 0..5 {
        let tenant = if n < 3 { "a" } else { "b" };
        let job = world.job(n, |job| job.tenant = samples::tenant(tenant)).await;
        all.insert(0, job.id.to_string());
    }
    world.fail().await;
    let list = async |query: &str| world.get(&format!("/admin/v1/jobs?{query}")).await.ok();
    let first = list("limit=2&upstream=").await;
    assert_eq!(ids(&first), all[..2]);
    let second = list(&format!("limit=2&cursor={}", first["next_cursor"].as_str().unwrap())).await;
    assert_eq!(ids(&second), all[2..4]);
    assert_eq!(ids(&list("tenant=b").await), all[..2]);
    assert_eq!(ids(&list("status=failed").await), all[4..]);
    assert_eq!(ids(&list("upstream=removed&status=queued&tenant=a").await), all[2..4]);
    // whatever the filters are
    let depth = json!([{ "upstream": REMOVED, "queued": 4, "running": 0 }]);
    for query in ["", "tenant=b", "upstream=ocr", "status=succeeded"] {
        assert_eq!(list(query).await["depth"], depth, "{query}");
    }
    for (query, part) in [
        ("state=failed", "unknown parameter `state`"),
        ("status=done", "queued, running, succeeded, failed, cancelled"),
        ("status=QUEUED", "has to be one of"),
        ("limit=0", "1 to 1000"),
        ("limit=1001", "1 to 1000"),
        ("cursor=abc", "`next_cursor` of the page before"),
        ("tenant=a/b", "the parameter `tenant`"),
        ("upstream=ocrr", "there is no upstream `ocrr`; upstreams: "),
        ("status=failed&status=queued", "stands twice"),
    ] {
        let detail = world.get(&format!("/admin/v1/jobs?{query}")).await.problem(400, "BAD_REQUEST");
        assert!(detail.contains(part), "{query}: {detail}");
    }
}

#[tokio::test]
async fn a_job_that_waits_is_cancelled_at_once_and_one_that_runs_by_its_worker() {
    let world = World::new(JOBS).await;
    let (waits, runs) = (world.job(1, |_| ()).await.id, world.job(2, |_| ()).await.id);
    let cancelled = world.word(waits, "cancel").await;
    assert_eq!((&cancelled["cancelled"], &cancelled["job"]["status"]), (&json!(true), &json!("cancelled")));
    assert_eq!(cancelled["job"]["cancelling"], false);
    let claim = world.claim().await;
    for changed in [true, false] {
        let answer = world.word(runs, "cancel").await;
        assert_eq!(answer["cancelled"], changed);
        let seen = (&answer["job"]["status"], &answer["job"]["cancelling"]);
        assert_eq!(seen, (&json!("running"), &json!(true)));
    }
    let end = JobEnd::Again { error: None, not_before: START };
    assert!(world.jobs.settle_job(&claim, end).await.unwrap());
    let shown = world.get(&format!("/admin/v1/jobs/{runs}")).await.ok();
    assert_eq!((&shown["status"], &shown["cancelling"]), (&json!("cancelled"), &json!(false)));
    // what is over stays so
    for (what, name) in [("cancel", "cancelled"), ("retry", "retried")] {
        let answer = world.word(waits, what).await;
        assert_eq!((&answer[name], &answer["job"]["status"]), (&json!(false), &json!("cancelled")));
    }
}

#[tokio::test]
async fn a_job_that_had_failed_when_it_came_is_not_retried() {
    let world = World::new(JOBS).await;
    let born = |job: &mut Job| (job.status, job.finished_at) = (JobStatus::Failed, Some(job.created_at));
    let id = world.job(1, born).await.id;
    let answer = world.word(id, "retry").await;
    assert_eq!((&answer["retried"], &answer["job"]["status"]), (&json!(false), &json!("failed")));
}

#[tokio::test]
async fn a_job_that_failed_waits_again_also_after_a_verdict() {
    let world = World::new(JOBS).await;
    let id = world.job(1, |_| ()).await.id;
    assert_eq!(world.word(id, "retry").await["retried"], false);
    world.fail().await;
    let answer = world.word(id, "retry").await;
    assert_eq!((&answer["retried"], &answer["job"]["status"]), (&json!(true), &json!("queued")));
    assert_eq!((&answer["job"]["attempts"], &answer["job"]["error"]), (&json!(0), &Value::Null));
    assert_eq!(world.claim().await.job.id, id);
}

#[tokio::test]
async fn what_is_no_job_is_said() {
    let world = World::new(JOBS).await;
    let unknown = samples::job(7, START).id;
    world.get(&format!("/admin/v1/jobs/{unknown}")).await.problem(404, "NO_JOB");
    for what in ["cancel", "retry"] {
        let target = format!("/admin/v1/jobs/{unknown}/{what}");
        world.send("POST", &target, &[], "").await.problem(404, "NO_JOB");
        world.send("POST", &format!("{target}?force=1"), &[], "").await.problem(400, "BAD_REQUEST");
    }
    let detail = world.get("/admin/v1/jobs/7").await.problem(400, "BAD_REQUEST");
    assert!(detail.contains("the id `7` in the path: expected a job id"), "{detail}");

    let without = World::new(OPEN).await;
    for target in ["/admin/v1/jobs".to_owned(), format!("/admin/v1/jobs/{unknown}")] {
        let detail = without.get(&target).await.problem(409, "JOBS_OFF");
        assert!(detail.contains("jobs: {}"), "{detail}");
    }
    for what in ["cancel", "retry"] {
        let target = format!("/admin/v1/jobs/{unknown}/{what}");
        without.send("POST", &target, &[], "").await.problem(409, "JOBS_OFF");
    }
}

#[tokio::test]
async fn every_word_on_a_job_leaves_an_audit_line() {
    let log = Log::listen();
    let world = World::new(JOBS).await;
    let (one, other) = (world.job(1, |_| ()).await.id, world.job(2, |_| ()).await.id);
    world.fail().await;
    world.word(one, "retry").await;
    world.word(other, "cancel").await;
    world.word(other, "cancel").await;
    world.send("POST", &format!("/admin/v1/jobs/{}/cancel", samples::job(9, START).id), &[], "").await;
    let lines: Vec<_> = log
        .audit()
        .into_iter()
        .map(|line| {
            assert_eq!((&line["who"], &line["tenant"]), (&json!("loopback"), &json!("a")));
            [&line["what"], &line["job"], &line["changed"], &line["status"]].map(Clone::clone)
        })
        .collect();
    let (one, other) = (json!(one.to_string()), json!(other.to_string()));
    assert_eq!(
        lines,
        [
            [json!("retry"), one, json!(true), json!("queued")],
            [json!("cancel"), other.clone(), json!(true), json!("cancelled")],
            [json!("cancel"), other, json!(false), json!("cancelled")],
        ]
    );
}
