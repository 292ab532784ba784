//! What operators do with jobs, by the admin API and the command line: they see those of all tenants and nobody's documents, and a
//! retry asks the memory first.
#![expect(clippy::panic, reason = "a broken test should stop loudly")]

use std::process::Output;
use std::time::Duration;

use nevertwice_testkit::{DOC, DOC2, Gate, Gateway, Redis, Reply, Upstream, random_document};
use serde_json::{Value, json};

use crate::fleet::replica;
use crate::job_caller::{JOB, attempts, end, get, hand, hand_as, lines_with, with_jobs};
use crate::jobs::{accepted, id, refused};

const LIST: &str = "/admin/v1/jobs";

/// How a command ended: its code, and what it wrote to both outputs.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

async fn jobs(gateway: &Gateway, arguments: &[&str]) -> (Option<i32>, String, String) {
    told(&gateway.cli(&[&["jobs"], arguments].concat()).await)
}

/// It has to succeed; what it wrote to standard output.
async fn done(gateway: &Gateway, arguments: &[&str]) -> String {
    let (code, out, error) = jobs(gateway, arguments).await;
    assert_eq!(code, Some(0), "{arguments:?}: {out}{error}");
    out
}

fn ids(listed: &Value) -> Vec<&str> {
    let items = listed["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item["id"].as_str()).collect()
}

/// The audit log's lines on jobs: what, which job, and whether it changed anything.
fn words(gateway: &Gateway) -> usize {
    gateway.log().lines().filter(|line| line.contains("an operator's word on a job")).count()
}

#[tokio::test]
async fn an_operator_sees_the_jobs_of_all_tenants_and_cancels_any() {
    let upstream = Upstream::start().await;
    let one_place = [("TOP", "jobs: {}"), ("UPSTREAM", "pool:\n  max_in_flight: 1")];
    let gateway = Gateway::with(&upstream.url(), &one_place).await;
    let gate = Gate::new();
    upstream.always(accepted().wait_for(&gate));
    let mut handed = Vec::new();
    for tenant in 1..=3 {
        let target = format!("{JOB}?secret=x{tenant}");
        let document = random_document(u64::from(tenant), 900);
        handed.push(id(&hand_as(&gateway, tenant, &target, &document).send().await));
        if tenant == 1 {
            upstream.wait_calls(1).await;
        }
    }
    let [runs, second, third] = handed.as_slice() else { panic!("{handed:?}") };

    let (status, listed) = gateway.admin_get(LIST).await;
    assert_eq!((status, ids(&listed)), (200, vec![third.as_str(), second, runs]), "{listed}");
    assert_eq!(listed["depth"], json!([{ "upstream": "doc-classifier", "queued": 2, "running": 1 }]));
    assert_eq!(listed["stored_bytes"], json!(2700));
    let running = &listed["items"][2];
    assert_eq!(
        (&running["status"], &running["sent"], &running["attempts"], &running["bytes"]),
        (&json!("running"), &json!(true), &json!(1), &json!(900)),
        "{running}"
    );
    assert!(!listed.to_string().contains("secret="), "{listed}");
    let (_, theirs) =
        gateway.admin_get(&format!("{LIST}?tenant=dev_2&status=queued&upstream=doc-classifier")).await;
    assert_eq!(ids(&theirs), [second]);

    // the same by pages, by the command, and as a table
    let json = done(&gateway, &["list", "--json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"));
    assert_eq!(json, listed);
    let (code, first, more) = jobs(&gateway, &["list", "--limit", "2"]).await;
    assert_eq!(code, Some(0));
    assert!(first.contains(third.as_str()) && !first.contains(runs.as_str()), "{first}");
    assert!(more.contains("2 shown, there are more"), "{more}");
    let table = done(&gateway, &["list", "--status", "running"]).await;
    assert!(table.contains("call under way") && table.contains("UPSTREAM        QUEUED  RUNNING"), "{table}");
    let shown = done(&gateway, &["show", runs]).await;
    assert!(shown.contains("path      /classify\n") && shown.contains("tenant    dev_1\n"), "{shown}");

    let out = done(&gateway, &["cancel", second, runs]).await;
    assert_eq!(
        out,
        format!("{second}: cancelled\n{runs}: its worker is told, it is cancelled in a moment\n")
    );
    assert_eq!(end(&gateway, runs).await["status"], "cancelled");
    assert_eq!(get(&gateway, 2, &format!("/jobs/{second}")).await.json()["status"], "cancelled");
    upstream.wait_calls(2).await;
    gate.open();
    assert_eq!(done(&gateway, &["wait", third]).await, "1 of 1 jobs succeeded\n");
    let (code, out, error) = jobs(&gateway, &["wait", runs, second, third]).await;
    assert_eq!((code, out.as_str()), (Some(1), "1 of 3 jobs succeeded, 2 cancelled\n"));
    assert!(error.contains("2 of 3 jobs did not succeed"), "{error}");
    assert_eq!(upstream.calls(), 2, "nothing was sent of the one that waited");

    // what is over stays so
    let out = done(&gateway, &["cancel", third]).await;
    assert_eq!(out, format!("{third}: nothing to cancel: it is succeeded\n"));
    let (code, out, error) = jobs(&gateway, &["retry", second, third]).await;
    assert_eq!(code, Some(1));
    assert!(
        out.contains(&format!("{second}: not retried: it was cancelled, and its input is gone")),
        "{out}"
    );
    assert!(out.contains(&format!("{third}: not retried: only a job that has failed is")), "{out}");
    assert!(error.contains("retry: not done for 2 of 2 jobs"), "{error}");
    assert_eq!(words(&gateway), 5);
}

#[tokio::test]
async fn a_retry_makes_the_call_again() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "max_attempts: 1").await;
    upstream.by(|_, n| if n == 1 { Reply::status(503).body("busy") } else { accepted() });
    let job = id(&hand(&gateway, JOB, &DOC).send().await);
    let (code, out, error) = jobs(&gateway, &["wait", &job]).await;
    assert_eq!((code, out.as_str()), (Some(1), "0 of 1 jobs succeeded, 1 failed\n"));
    assert!(error.contains(&format!("{job} failed: HTTP_503 busy")), "{error}");
    let shown = done(&gateway, &["show", &job]).await;
    assert!(shown.contains("another attempt may end otherwise") && shown.contains("503, 4 bytes"), "{shown}");

    assert_eq!(done(&gateway, &["retry", &job]).await, format!("{job}: waits again\n"));
    assert_eq!(done(&gateway, &["wait", &job]).await, "1 of 1 jobs succeeded\n");
    let shown = end(&gateway, &job).await;
    assert_eq!((&shown["attempts"], shown.get("error")), (&json!(1), None), "{shown}");
    assert_eq!(upstream.calls(), 2);
    let lines = lines_with(&gateway, "two attempts", |lines| attempts(lines) == 2).await;
    assert_eq!(lines.iter().filter(|line| line["job"] == job.as_str()).count(), 2);
}

#[tokio::test]
async fn after_a_verdict_the_memory_decides_at_a_retry() {
    let (embedded, redis) = (Upstream::start().await, Redis::start());
    let on_redis = Upstream::start().await;
    let gateways = [
        (with_jobs(&embedded, "").await, embedded),
        (replica(&on_redis, &redis.url(), &[("TOP", "jobs: {}")]).await, on_redis),
    ];
    for (gateway, upstream) in gateways {
        upstream.always(refused(400));
        let job = id(&hand(&gateway, JOB, &DOC).send().await);
        assert_eq!(end(&gateway, &job).await["error"]["code"], "HTTP_400");
        upstream.always(accepted());
        done(&gateway, &["retry", &job]).await;
        let again = end(&gateway, &job).await;
        assert_eq!(
            (&again["status"], &again["error"]["code"], &again["attempts"]),
            (&json!("failed"), &json!("REFUSED_HTTP_400"), &json!(0)),
            "{again}"
        );
        assert_eq!(upstream.calls(), 1);
        let (status, answer) = gateway.admin_post("/admin/v1/refusals/forget", &json!({ "all": true })).await;
        assert_eq!((status, &answer["forgotten"]), (200, &json!(1)));
        let (status, answer) = gateway.admin_post(&format!("{LIST}/{job}/retry"), &Value::Null).await;
        assert_eq!((status, &answer["retried"], &answer["job"]["id"]), (200, &json!(true), &json!(job)));
        assert_eq!(done(&gateway, &["wait", &job]).await, "1 of 1 jobs succeeded\n");
        assert_eq!(upstream.calls(), 2);
    }
}

#[tokio::test]
async fn an_interrupted_job_is_found_and_retried() {
    let upstream = Upstream::start().await;
    let mut gateway = with_jobs(&upstream, "").await;
    upstream.by(|_, n| if n == 1 { Reply::stall() } else { accepted() });
    let job = id(&hand(&gateway, JOB, &DOC).send().await);
    upstream.wait_calls(1).await;
    gateway.signal("KILL");
    gateway.wait_exit(Duration::from_secs(10)).await;
    gateway.restart().await;
    let (code, _, error) = jobs(&gateway, &["wait", "--all"]).await;
    // it may have been seen as interrupted before this began
    assert!(code == Some(0) || error.contains("INTERRUPTED"), "{error}");
    end(&gateway, &job).await;
    let listed = done(&gateway, &["list", "--status", "failed", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap_or_else(|e| panic!("{e}: {listed}"));
    assert_eq!(
        (ids(&listed), &listed["items"][0]["error"]["code"]),
        (vec![job.as_str()], &json!("INTERRUPTED"))
    );
    assert_eq!(upstream.calls(), 1, "not by itself");
    assert_eq!(gateway.metric("gateway_requests_total", &[("code", "INTERRUPTED")]).await, 1.0);
    done(&gateway, &["retry", &job]).await;
    assert_eq!(done(&gateway, &["wait", &job]).await, "1 of 1 jobs succeeded\n");
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test]
async fn a_wait_ends_with_the_jobs_or_with_its_time() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    assert_eq!(done(&gateway, &["wait", "--all"]).await, "no job waits or runs\n");
    assert_eq!(done(&gateway, &["list"]).await, "there is no job\n");
    let gate = Gate::new();
    upstream.always(accepted().wait_for(&gate));
    for n in 0..30 {
        assert_eq!(hand(&gateway, JOB, &random_document(n, 900)).send().await.status, 202);
    }
    let (code, out, error) = jobs(&gateway, &["wait", "--all", "--timeout-s", "1"]).await;
    assert_eq!((code, out.as_str()), (Some(1), "0 of 30 jobs succeeded, 30 not final\n"));
    assert!(error.contains("the time is over: 30 of 30 jobs are not final"), "{error}");
    let waiting = done(&gateway, &["wait", "--all", "--upstream", "doc-classifier", "--json"]);
    let (out, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        gate.open();
    });
    let sum: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
    assert_eq!(
        (&sum["jobs"], &sum["succeeded"], &sum["not_succeeded"]),
        (&json!(30), &json!(30), &json!([]))
    );
}

#[tokio::test]
async fn errors_say_what_is_wrong_and_what_to_do() {
    let upstream = Upstream::start().await;
    let (without, gateway) = (Gateway::simple(&upstream.url()).await, with_jobs(&upstream, "").await);
    let unknown = "019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e10";
    for (at, arguments, code, part) in [
        (&without, &["list"][..], 1, "set `jobs: {}` in the configuration (JOBS_OFF)"),
        (&without, &["wait", "--all"], 1, "JOBS_OFF"),
        (&gateway, &["show", unknown], 1, "(NO_JOB)"),
        (&gateway, &["cancel", unknown], 1, "cancel: not done for 1 of 1 jobs"),
        (&gateway, &["wait", unknown], 1, "1 of 1 jobs did not succeed"),
        (
            &gateway,
            &["list", "--upstream", "ocrr"],
            2,
            "there is no upstream `ocrr`; upstreams: doc-classifier",
        ),
        (&gateway, &["show", "7"], 2, "`jobs list` shows them"),
        (&gateway, &["list", "--status", "done"], 2, "queued, running, succeeded, failed, cancelled"),
    ] {
        let (seen, _, error) = jobs(at, arguments).await;
        assert!(seen == Some(code) && error.contains(part), "{arguments:?}: {seen:?} {error}");
    }
    let (status, problem) = gateway.admin_post(&format!("{LIST}/{unknown}/retry"), &Value::Null).await;
    assert_eq!((status, &problem["code"]), (404, &json!("NO_JOB")));
    assert_eq!(words(&gateway), 0);
}

#[tokio::test]
async fn a_word_at_one_replica_reaches_the_worker_of_another() {
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    let gate = Gate::new();
    upstream.always(accepted().wait_for(&gate));
    let served = [("TOP", "jobs: {}")];
    let a = replica(&upstream, &redis.url(), &served).await;
    let job = id(&hand(&a, JOB, &DOC).send().await);
    upstream.wait_calls(1).await;
    // it comes later, so the job is the other's
    let b = replica(&upstream, &redis.url(), &served).await;
    let out = done(&b, &["cancel", &job]).await;
    assert!(out.contains("its worker is told"), "{out}");
    assert_eq!(end(&b, &job).await["status"], "cancelled");
    gate.open();
    let other = id(&hand(&a, JOB, &DOC2).send().await);
    assert_eq!(done(&b, &["wait", &other]).await, "1 of 1 jobs succeeded\n");
    let (_, listed) = b.admin_get(LIST).await;
    assert_eq!(ids(&listed), [other, job]);
    assert_eq!(upstream.calls(), 2);
}
