#![expect(clippy::unwrap_used, reason = "test")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;

use super::*;
use crate::admin_client::tests::canned;

const ID: &str = "019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e10";
const OTHER: &str = "019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e11";

/// The command as `main` has it.
#[derive(Parser, Debug)]
struct Cli {
    #[command(flatten)]
    jobs: Jobs,
}

fn parse(line: &str) -> Result<Command, String> {
    let words = std::iter::once("jobs").chain(line.split_whitespace());
    Cli::try_parse_from(words).map(|cli| cli.jobs.command).map_err(|e| e.to_string())
}

fn job(change: &Value) -> Value {
    let mut job = json!({
        "id": ID, "tenant": "dev_1", "upstream": "ocr", "path": "/sync", "status": "queued",
        "created_at": "2023-11-14T22:13:20.123Z", "started_at": null, "finished_at": null, "expires_at": null,
        "not_before": null, "attempts": 0, "sent": false, "cancelling": false, "bytes": 1001,
        "document_sha256": null, "error": null, "result": null,
    });
    for (name, value) in change.as_object().unwrap() {
        job[name] = value.clone();
    }
    job
}

fn failed() -> Value {
    job(&json!({
        "status": "failed", "attempts": 1, "started_at": "2023-11-14T22:13:21.000Z",
        "finished_at": "2023-11-14T22:13:25.000Z", "expires_at": "2023-11-15T22:13:25.000Z",
        "document_sha256": "ab".repeat(32),
        "error": { "code": "HTTP_422", "message": "broken \u{1b}[2J", "upstream_status": 422, "retryable": false,
            "replayed": false, "verdict": true },
        "result": { "status": 422, "content_type": "application/json", "bytes": 17 },
    }))
}

fn at(text: &str) -> Millis {
    parse_rfc3339(text).unwrap()
}

#[test]
fn what_is_meant_is_said() {
    assert!(matches!(parse(&format!("cancel {ID} {OTHER}")), Ok(Command::Cancel(_))));
    match parse("list --upstream ocr --tenant a --status failed --limit 7").unwrap() {
        Command::List(list) => {
            let names = [("tenant", "a"), ("upstream", "ocr"), ("status", "failed")];
            assert_eq!(list.parameters(), names.map(|(name, value)| (name, value.to_owned())));
            assert_eq!(list.limit, 7);
        }
        other => unreachable!("{other:?}"),
    }
    for (line, part) in [
        ("cancel", "required"),
        ("retry --json", "required"),
        ("show abc", "36 characters"),
        ("retry 019a2f6e", "`jobs list` shows them"),
        ("wait", "required"),
        (&format!("wait --all {ID}"), "cannot be used with"),
        (&format!("wait {ID} --upstream ocr"), "--all"),
        ("wait --all --timeout-s 0", "0 is not in"),
        ("list --status done", "queued, running, succeeded, failed, cancelled"),
        ("list --limit 0", "0 is not in"),
    ] {
        let told = parse(line).unwrap_err();
        assert!(told.contains(part), "{line}: {told}");
    }
    for command in ["list", "show", "cancel", "retry", "wait"] {
        let help = parse(&format!("{command} --help")).unwrap_err();
        assert!(help.contains(&format!("  nevertwice jobs {command} ")), "{help}");
    }
}

#[test]
fn the_table_says_what_hangs() {
    let running = |more: Value| {
        let mut row = job(&json!({ "status": "running", "started_at": "2023-11-14T22:13:50.123Z" }));
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        row
    };
    let later = "2023-11-14T22:18:20.123Z";
    let rows = [
        job(&json!({})),
        job(&json!({ "not_before": later, "attempts": 2, "error": { "code": "HTTP_503" } })),
        running(json!({ "sent": true, "attempts": 1 })),
        running(json!({ "cancelling": true })),
        running(json!({ "error": { "code": "UPSTREAM_TIMEOUT" } })),
        failed(),
    ];
    let rows: Vec<_> = rows.iter().map(|row| Item::read(row).unwrap()).collect();
    let text = list::table(&rows, at("2023-11-14T22:15:20.123Z"));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split("  ").collect()).collect();
    let cells = |line: &[&str]| -> Vec<String> {
        line.iter().map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    assert_eq!(
        cells(&lines[0]),
        ["ID", "STATUS", "FOR", "UPSTREAM", "TENANT", "CREATED", "ATTEMPTS", "NOTE"]
    );
    let created = "2023-11-14T22:13:20Z";
    for (line, [status, long, attempts, note]) in lines[1..].iter().zip([
        ["queued", "2m 0s", "0", "-"],
        ["queued", "2m 0s", "2", "next attempt in 3m 0s, after HTTP_503"],
        ["running", "1m 30s", "1", "call under way"],
        ["running", "1m 30s", "0", "being cancelled"],
        ["running", "1m 30s", "0", "after UPSTREAM_TIMEOUT"],
        ["failed", "1m 55s", "1", "HTTP_422"],
    ]) {
        assert_eq!(cells(line), [ID, status, long, "ocr", "dev_1", created, attempts, note], "{text}");
    }
    let depth = json!([{ "upstream": "ocr", "queued": 7, "running": 2 }]);
    assert_eq!(list::depth_table(&depth).unwrap(), "UPSTREAM  QUEUED  RUNNING\nocr            7        2");
    assert_eq!(list::depth_table(&json!([])), None);
    let stored = list::stored(&json!(12_345));
    assert_eq!(stored.as_deref(), Some("stored inputs and results: 12345 bytes"));
    assert_eq!((list::stored(&json!(0)), list::stored(&json!(null))), (None, None));
}

#[test]
fn one_job_is_shown_with_what_it_failed_of() {
    let text = show::text(&failed(), at("2023-11-14T22:15:20.123Z")).unwrap();
    let expected = [
        format!("job              {ID}"),
        "status           failed for 1m 55s".into(),
        "tenant           dev_1".into(),
        "upstream         ocr".into(),
        "path             /sync".into(),
        "input            1001 bytes".into(),
        format!("document sha256  {}", "ab".repeat(32)),
        "created          2023-11-14T22:13:20Z".into(),
        "started          2023-11-14T22:13:21Z".into(),
        "finished         2023-11-14T22:13:25Z".into(),
        "removed          2023-11-15T22:13:25Z".into(),
        "attempts         1".into(),
        "error            HTTP_422".into(),
        r"message          broken \u{1b}[2J".into(),
        "that is          a verdict on the document: a retry asks the memory first".into(),
        "result           422, 17 bytes of application/json".into(),
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    let born = job(
        &json!({ "status": "failed", "finished_at": "2023-11-14T22:13:20.123Z", "error": failed()["error"] }),
    );
    let born = show::text(&born, Millis(0)).unwrap();
    assert!(born.contains("known when it came: its input is not kept"), "{born}");
    let waits = show::text(&job(&json!({ "not_before": "2023-11-14T22:18:20Z" })), Millis(0)).unwrap();
    assert!(waits.contains("now       next attempt in ") && !waits.contains("error"), "{waits}");
}

async fn watched(
    ids: &[&str],
    answers: Vec<Value>,
    time: Option<Duration>,
) -> (Result<wait::Sum, Failure>, Vec<String>) {
    let (client, mut server) = canned(answers).await;
    let ids: BTreeSet<_> = ids.iter().map(|id| (*id).to_owned()).collect();
    let until = time.map(|time| Instant::now() + time);
    let sum = wait::watch(&client, ids, until, Duration::ZERO).await;
    (sum, server.join_next().await.unwrap().unwrap())
}

#[tokio::test]
async fn a_wait_ends_with_the_last_job() {
    let running = job(&json!({ "status": "running" }));
    let succeeded = job(&json!({ "status": "succeeded" }));
    let answers = vec![running.clone(), succeeded.clone(), running, failed()];
    let (sum, seen) = watched(&[ID, OTHER], answers, None).await;
    let sum = sum.unwrap();
    assert_eq!((sum.jobs, sum.succeeded, sum.failed, sum.unfinished), (2, 1, 1, 0));
    let not = wait::NotSucceeded { id: ID.into(), status: "failed".into(), code: Some("HTTP_422".into()) };
    assert_eq!(sum.not_succeeded, [not]);
    assert_eq!(sum.text(), "1 of 2 jobs succeeded, 1 failed");
    // one that is final is not asked for again
    let asked: Vec<_> = seen.iter().map(|text| text.contains(&format!("GET /admin/v1/jobs/{ID} "))).collect();
    assert_eq!(asked, [true, false, true, true]);

    let cancelled = job(&json!({ "status": "cancelled" }));
    let (sum, _) = watched(&[ID, OTHER], vec![cancelled, succeeded], None).await;
    assert_eq!(sum.unwrap().text(), "1 of 2 jobs succeeded, 1 cancelled");
}

#[tokio::test]
async fn a_wait_ends_with_its_time() {
    let running = job(&json!({ "status": "running" }));
    let (sum, _) = watched(&[ID], vec![running], Some(Duration::ZERO)).await;
    let sum = sum.unwrap();
    assert_eq!((sum.unfinished, sum.text().as_str()), (1, "0 of 1 jobs succeeded, 1 not final"));
}

#[tokio::test]
async fn all_means_those_that_wait_or_run() {
    let list = |ids: &[&str]| {
        let items: Vec<_> = ids.iter().map(|id| json!({ "id": id })).collect();
        json!({ "items": items, "next_cursor": null, "depth": [], "stored_bytes": 0 })
    };
    let (client, mut server) = canned(vec![list(&[OTHER, ID]), list(&[ID])]).await;
    let upstream = crate::args::an_upstream("ocr").unwrap();
    let ids = wait::under_way(&client, Some(&upstream)).await.unwrap();
    assert_eq!(ids.into_iter().collect::<Vec<_>>(), [ID, OTHER]);
    let seen = server.join_next().await.unwrap().unwrap();
    assert!(seen[0].contains("?status=queued&upstream=ocr&limit=1000 "), "{}", seen[0]);
    assert!(seen[1].contains("?status=running&upstream=ocr&"), "{}", seen[1]);
}
