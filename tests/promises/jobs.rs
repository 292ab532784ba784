//! Jobs: a document is handed over, its outcome is asked for later, and what the memory knows of it makes no call.
#![expect(clippy::panic, reason = "a broken test should stop loudly")]

mod adapters;
mod fleet;
mod kills;
mod room;
mod shares;
mod webhooks;

use std::time::Duration;

use nevertwice_testkit::random_document;
use nevertwice_testkit::{Answer, DOC, DOC2, Gate, Gateway, Part, Post, Reply, Step, Upstream, multipart};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bench::{assert_own, settle};
use crate::caller::{CLASSIFY, submit};
use crate::job_caller::{
    JOB, ask, attempts, cancel, delete, end, get, hand, hand_as, lines_with, show, with_jobs,
};

const REFUSAL: &str = r#"{"error":{"code":"corrupt","message":"the file is corrupt"}}"#;

pub fn refused(status: u16) -> Reply {
    Reply::status(status).header("Content-Type", "application/json").body(REFUSAL)
}

pub fn accepted() -> Reply {
    Reply::status(200).header("Content-Type", "application/json").body(r#"{"label":"invoice"}"#)
}

pub fn id(answer: &Answer) -> String {
    answer.json()["id"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_job_is_handed_over_and_its_result_is_the_upstream_s_answer() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    upstream.always(accepted().header("X-Other", "1").header("Content-Language", "de"));
    let path = "/jobs/doc-classifier/classify?a=%2F&b=2";
    let answer = hand(&gateway, path, &DOC).header("X-Mine", "secret").send().await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let location = answer.header("location").unwrap_or_default();
    let handed = answer.json();
    assert_eq!(location, format!("/jobs/{}", id(&answer)));
    assert_eq!((&handed["status"], answer.header("retry-after").as_deref()), (&json!("queued"), Some("1")));
    assert_eq!(handed["links"], json!({ "self": location, "result": format!("{location}/result") }));

    let job = end(&gateway, &id(&answer)).await;
    assert_eq!((&job["status"], &job["attempts"]), (&json!("succeeded"), &json!(1)), "{job}");
    assert_eq!((&job["upstream"], &job["path"]), (&json!("doc-classifier"), &json!("/classify?a=%2F&b=2")));
    assert_eq!(job["result"], json!({ "status": 200, "content_type": "application/json", "bytes": 19 }));
    for time in ["created_at", "started_at", "finished_at", "expires_at"] {
        assert!(job[time].as_str().is_some_and(|time| time.ends_with('Z')), "{time}: {job}");
    }
    let result = get(&gateway, 1, &format!("{location}/result")).await;
    assert_eq!((result.status, result.text()), (200, r#"{"label":"invoice"}"#.to_owned()));
    assert_eq!(result.header("content-language").as_deref(), Some("de"));
    assert_eq!(result.header("x-other"), None);

    // what went up: the body and what describes it
    let seen = upstream.last_request();
    assert_eq!((seen.target.as_str(), &seen.body[..]), ("/classify?a=%2F&b=2", &DOC[..]));
    assert_eq!(
        (seen.header("content-type").as_deref(), seen.header("x-mine")),
        (Some("application/pdf"), None)
    );

    let lines =
        lines_with(&gateway, "GET", |lines| lines.iter().any(|l| l["path"] == format!("{location}/result")))
            .await;
    settle(&gateway, lines.len()).await;
    let submitted = lines.iter().find(|line| line["method"] == "POST" && line.get("job").is_none());
    let attempt = lines.iter().find(|line| line.get("job").is_some());
    let (Some(submitted), Some(attempt)) = (submitted, attempt) else { panic!("{lines:#?}") };
    assert_eq!(
        (&submitted["code"], &submitted["status"], &submitted["attempts"]),
        (&json!("OK"), &json!(202), &json!(0))
    );
    assert_eq!(
        (&attempt["code"], &attempt["status"], &attempt["attempts"]),
        (&json!("OK"), &json!(200), &json!(1))
    );
    assert_eq!((&attempt["job"], &attempt["tenant"]), (&json!(id(&answer)), &json!("dev_1")));
    assert_eq!(
        (&attempt["path"], &attempt["route"]),
        (&json!("/jobs/doc-classifier/classify"), &json!("/classify"))
    );
}

#[tokio::test]
async fn a_known_bad_document_is_never_sent_again_by_jobs_nor_beside_them() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    upstream.always(refused(400));
    let first = hand(&gateway, JOB, &DOC).header("Idempotency-Key", "k").send().await;
    let failed = end(&gateway, &id(&first)).await;
    assert_eq!(failed["status"], "failed");
    let error = json!({ "code": "HTTP_400", "message": "the file is corrupt", "upstream_status": 400,
        "retryable": false, "replayed": false });
    assert_eq!(failed["error"], error);

    // a hundred times, with the same key, with new ones and with none
    let mut tasks = JoinSet::new();
    for n in 0..100 {
        let post = hand(&gateway, JOB, &DOC);
        let post = match n % 3 {
            0 => post.header("Idempotency-Key", "k"),
            1 => post.header("Idempotency-Key", format!("k{n}")),
            _ => post,
        };
        tasks.spawn(async move { (n, post.send().await) });
    }
    while let Some(done) = tasks.join_next().await {
        let Ok((n, answer)) = done else { panic!("{done:?}") };
        assert_eq!(
            (answer.status, &answer.json()["status"]),
            (202, &json!("failed")),
            "{n}: {}",
            answer.text()
        );
        assert_eq!(answer.header("retry-after"), None);
        let same = n % 3 == 0;
        assert_eq!(answer.header("idempotent-replayed").is_some(), same);
        assert_eq!(id(&answer) == id(&first), same);
        let job = show(&gateway, &id(&answer)).await;
        let (code, replayed) = if same { ("HTTP_400", false) } else { ("REFUSED_HTTP_400", true) };
        assert_eq!((&job["error"]["code"], &job["error"]["replayed"]), (&json!(code), &json!(replayed)));
        assert_eq!(job["error"]["message"], "the file is corrupt");
        let result = get(&gateway, 1, &format!("/jobs/{}/result", id(&answer))).await;
        assert_eq!((result.status, result.text()), (400, REFUSAL.to_owned()));
        assert_eq!(result.header("content-type").as_deref(), Some("application/json"));
    }
    assert_eq!(upstream.calls(), 1);
    // and the same document where it is called directly
    let direct =
        submit(&gateway, CLASSIFY).header("Content-Type", "application/pdf").body(&DOC[..]).send().await;
    assert!(direct.is_hit() && direct.status == 400 && direct.text() == REFUSAL, "{direct:?}");
    assert_eq!(upstream.calls(), 1);

    let is_replay = |line: &&Value| line["code"] == "REFUSED_HTTP_400";
    let lines = lines_with(&gateway, "replays", |lines| lines.iter().filter(is_replay).count() == 101).await;
    let replays: Vec<_> = lines.iter().filter(is_replay).collect();
    for line in &replays {
        assert_eq!(
            (&line["cache_hit"], &line["upstream_ms"], &line["attempts"]),
            (&json!(true), &json!(0), &json!(0))
        );
        assert_eq!(line["document_sha256"], replays[0]["document_sha256"]);
    }
    assert_eq!(attempts(&lines), 1);
    let labels = [("upstream", "doc-classifier"), ("status", "400")];
    assert_eq!(gateway.metric("gateway_negative_cache_refusals_total", &labels).await, 101.0);
    let (_, listed) = gateway.admin_get("/admin/v1/refusals").await;
    assert_eq!(listed["items"][0]["replays"], 101, "{listed}");
}

#[tokio::test]
async fn a_refusal_learned_beside_jobs_makes_them_born_failed() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    upstream.always(refused(422));
    let form = |boundary: &str| multipart(boundary, &[Part::file("f", "a.pdf", "application/pdf", &DOC)]);
    let (content_type, body) = form("one");
    let live = submit(&gateway, CLASSIFY).header("Content-Type", &content_type).body(body).send().await;
    assert_eq!(live.status, 422);
    let (content_type, body) = form("another");
    let post = Post::to(gateway.addr, JOB).bearer("tok-2").header("Content-Type", &content_type).body(body);
    let answer = post.send().await;
    assert_eq!((answer.status, &answer.json()["status"]), (202, &json!("failed")), "{}", answer.text());
    let job = get(&gateway, 2, &format!("/jobs/{}", id(&answer))).await.json();
    assert_eq!((&job["error"]["code"], &job["attempts"]), (&json!("REFUSED_HTTP_422"), &json!(0)), "{job}");
    assert_eq!(upstream.calls(), 1);
    let metric = [("upstream", "doc-classifier"), ("status", "failed")];
    assert_eq!(gateway.metric("gateway_jobs_total", &metric).await, 1.0);
}

#[tokio::test]
async fn a_hundred_jobs_with_one_bad_document_make_one_call() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    upstream.always(refused(400).delay(Duration::from_millis(300)));
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        tasks.spawn(hand(&gateway, JOB, &DOC).send());
    }
    let mut ids = Vec::new();
    while let Some(Ok(answer)) = tasks.join_next().await {
        assert_eq!(answer.status, 202, "{}", answer.text());
        ids.push(id(&answer));
    }
    for id in &ids {
        let job = end(&gateway, id).await;
        assert_eq!(
            (&job["status"], &job["error"]["message"]),
            (&json!("failed"), &json!("the file is corrupt"))
        );
    }
    assert_eq!((ids.len(), upstream.calls()), (100, 1));
}

#[tokio::test]
async fn a_key_stands_for_one_request() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    let gate = Gate::new();
    upstream.always(accepted().wait_for(&gate));
    let with_key = |post: Post| post.header("Idempotency-Key", "\"order-7\"");
    let form = |boundary: &str, file: &[u8]| {
        let (content_type, body) = multipart(boundary, &[Part::file("f", "a.pdf", "application/pdf", file)]);
        let post =
            Post::to(gateway.addr, JOB).bearer("tok-1").header("Content-Type", &content_type).body(body);
        with_key(post)
    };
    let first = form("one", &DOC).send().await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (202, None), "{}", first.text());
    // while it runs, with another boundary, without the quotes, and after its end
    let same = form("two", &DOC).send().await;
    assert_eq!((same.status, id(&same)), (202, id(&first)));
    assert_eq!(same.header("idempotent-replayed").as_deref(), Some("true"));
    for (other, case) in [
        (form("one", &DOC2).send().await, "another document"),
        (with_key(hand(&gateway, JOB, &DOC)).send().await, "no form"),
        (with_key(hand(&gateway, "/jobs/doc-classifier/layout", &DOC)).send().await, "another path"),
        (with_key(hand(&gateway, "/jobs/doc-classifier/classify?x=1", &DOC)).send().await, "another query"),
    ] {
        assert_own(&other, 422, "IDEMPOTENCY_MISMATCH", case);
    }
    // of another tenant it is another key
    let theirs = Post::to(gateway.addr, JOB).bearer("tok-2").header("Idempotency-Key", "order-7");
    let theirs = theirs.body(&DOC2[..]).send().await;
    assert_eq!((theirs.status, theirs.header("idempotent-replayed")), (202, None), "{}", theirs.text());
    upstream.wait_calls(2).await;
    gate.open();
    end(&gateway, &id(&first)).await;
    let after = form("three", &DOC).send().await;
    assert_eq!((id(&after), &after.json()["status"]), (id(&first), &json!("succeeded")));
    assert_eq!(upstream.calls(), 2);
    assert_eq!(gateway.admin_get("/admin/v1/refusals").await.1["items"], json!([]));
}

#[tokio::test]
async fn keys_have_bounds_and_stand_nowhere() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    upstream.always(accepted());
    let long = |n: usize| "x".repeat(n);
    for good in ["k", &long(255), "a b", "../../x", "it's", "\"q\\\"q\""] {
        let answer = hand(&gateway, JOB, &DOC).header("Idempotency-Key", good).send().await;
        assert_eq!(answer.status, 202, "{good}: {}", answer.text());
    }
    for bad in ["", "  ", &long(256), &long(10_000), "schlüssel", "\"", "\"\"", "\"a\"b\""] {
        let answer = hand(&gateway, JOB, &DOC).header("Idempotency-Key", bad).send().await;
        assert_own(&answer, 400, "BAD_IDEMPOTENCY_KEY", bad);
    }
    let two = hand(&gateway, JOB, &DOC).header("Idempotency-Key", "a").header("Idempotency-Key", "a");
    assert_own(&two.send().await, 400, "BAD_IDEMPOTENCY_KEY", "two lines");
    let told = format!("{}{:?}{}", gateway.metrics().await, gateway.audit(), gateway.log());
    assert!(!told.contains("../../x") && !told.contains("it's"));
}

#[tokio::test]
async fn after_a_failure_that_is_no_verdict_the_same_key_begins_anew() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "max_attempts: 1").await;
    upstream.by(|_, n| if n == 1 { Reply::status(503).body("busy") } else { accepted() });
    let first = hand(&gateway, JOB, &DOC).header("Idempotency-Key", "k").send().await;
    let job = end(&gateway, &id(&first)).await;
    let error = json!({ "code": "HTTP_503", "message": "busy", "upstream_status": 503, "retryable": true, "replayed": false });
    assert_eq!((&job["status"], &job["error"]), (&json!("failed"), &error));
    let result = get(&gateway, 1, &format!("/jobs/{}/result", id(&first))).await;
    assert_eq!((result.status, result.text()), (503, "busy".to_owned()));
    let second = hand(&gateway, JOB, &DOC).header("Idempotency-Key", "k").send().await;
    assert!(id(&second) != id(&first) && second.header("idempotent-replayed").is_none());
    assert_eq!(end(&gateway, &id(&second)).await["status"], "succeeded");
    // the new one has the key now
    let third = hand(&gateway, JOB, &DOC).header("Idempotency-Key", "k").send().await;
    assert_eq!((id(&third), upstream.calls()), (id(&second), 2));
}

#[tokio::test]
async fn transient_failures_are_tried_again_and_others_are_not() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "retry_first_ms: 10\nmax_attempts: 4").await;
    upstream.by(|_, n| match n {
        1 => Reply::status(503).body("busy"),
        2 => Reply::status(429).header("Retry-After", "1").body("slow down"),
        3 => Reply::status(408),
        _ => accepted(),
    });
    let job = end(&gateway, &id(&hand(&gateway, JOB, &DOC).send().await)).await;
    assert_eq!(
        (&job["status"], &job["attempts"], job.get("error")),
        (&json!("succeeded"), &json!(4), None),
        "{job}"
    );
    assert_eq!(upstream.calls(), 4);

    // as often as is allowed, and no more
    upstream.always(Reply::status(500).body("oops"));
    let job = end(&gateway, &id(&hand(&gateway, JOB, &DOC2).send().await)).await;
    assert_eq!((&job["error"]["code"], &job["attempts"]), (&json!("HTTP_500"), &json!(4)), "{job}");
    assert_eq!((&job["error"]["retryable"], upstream.calls()), (&json!(true), 8));

    // what is no document's fault and will not pass
    for status in [401_u16, 403, 404, 409, 302] {
        upstream.always(Reply::status(status).body("no"));
        let before = upstream.calls();
        let job =
            end(&gateway, &id(&hand(&gateway, JOB, &random_document(u64::from(status), 900)).send().await))
                .await;
        assert_eq!(job["error"]["code"], format!("HTTP_{status}"));
        assert_eq!(
            (&job["status"], &job["error"]["retryable"], upstream.calls() - before),
            (&json!("failed"), &json!(false), 1)
        );
    }
    // nobody is there
    upstream.stop().await;
    let job = end(&gateway, &id(&hand(&gateway, JOB, &random_document(1, 900)).send().await)).await;
    assert_eq!(
        (&job["error"]["code"], &job["attempts"]),
        (&json!("UPSTREAM_UNREACHABLE"), &json!(4)),
        "{job}"
    );
    assert_eq!((&job["error"]["upstream_status"], job.get("result")), (&Value::Null, None));
    let result = get(&gateway, 1, &format!("/jobs/{}/result", job["id"].as_str().unwrap_or_default())).await;
    assert_own(&result, 404, "NO_RESULT", "no answer");
    // each call that was made is in the audit
    assert_eq!(attempts(&gateway.audit()), upstream.calls());
}

#[tokio::test]
async fn a_call_that_may_have_been_processed_is_not_repeated_by_itself() {
    let upstream = Upstream::start().await;
    let slots = [("TOP", "jobs:\n  retry_first_ms: 10"), ("UPSTREAM", "timeout_ms: 200")];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    for (n, (code, reply)) in (1..).zip([
        ("UPSTREAM_TIMEOUT", Reply::stall()),
        ("UPSTREAM_CLOSED", Reply::hang_up()),
        ("UPSTREAM_MALFORMED", Reply::raw("what is this\r\n\r\n")),
    ]) {
        upstream.always(reply);
        let document = random_document(n, 900);
        let first = id(&hand(&gateway, JOB, &document).header("Idempotency-Key", code).send().await);
        let job = end(&gateway, &first).await;
        assert_eq!(
            (&job["error"]["code"], &job["attempts"], &job["error"]["retryable"]),
            (&json!(code), &json!(1), &json!(true)),
            "{job}"
        );
        assert_eq!((upstream.calls(), attempts(&gateway.audit())), (2 * n - 1, 2 * n - 1));
        // its owner's decision
        upstream.always(accepted());
        let second = id(&hand(&gateway, JOB, &document).header("Idempotency-Key", code).send().await);
        assert_ne!(first, second);
        assert_eq!(end(&gateway, &second).await["status"], "succeeded");
        assert_eq!((upstream.calls(), attempts(&gateway.audit())), (2 * n, 2 * n));
    }
}

#[tokio::test]
async fn a_job_that_waits_is_cancelled_at_once_and_one_that_runs_is_dropped() {
    let upstream = Upstream::start().await;
    let gateway =
        Gateway::with(&upstream.url(), &[("TOP", "jobs: {}"), ("UPSTREAM", "pool:\n  max_in_flight: 1")])
            .await;
    upstream.always(Reply::stall());
    let runs = id(&hand(&gateway, JOB, &DOC).send().await);
    upstream.wait_calls(1).await;
    let waits = id(&hand(&gateway, JOB, &DOC2).send().await);
    assert_eq!(show(&gateway, &waits).await["status"], "queued");
    assert_own(&get(&gateway, 1, &format!("/jobs/{waits}/result")).await, 409, "JOB_NOT_FINISHED", "waits");
    assert_eq!(gateway.metric("gateway_jobs_queued", &[("upstream", "doc-classifier")]).await, 1.0);
    assert_eq!(gateway.metric("gateway_jobs_running", &[("upstream", "doc-classifier")]).await, 1.0);

    // not by others
    assert_own(&delete(&gateway, 2, &waits).await, 404, "JOB_NOT_FOUND", "another tenant");
    assert_eq!(cancel(&gateway, &waits).await["status"], "cancelled");
    assert_eq!(cancel(&gateway, &waits).await["status"], "cancelled");
    let running = cancel(&gateway, &runs).await;
    assert!(running["status"] == "running" || running["status"] == "cancelled", "{running}");
    assert_eq!(end(&gateway, &runs).await["status"], "cancelled");
    // the call was dropped, and its place is free
    upstream.wait_peer_closed(1).await;
    upstream.always(accepted());
    let next = id(&hand(&gateway, JOB, &random_document(2, 800)).send().await);
    assert_eq!(end(&gateway, &next).await["status"], "succeeded");
    assert_eq!(upstream.calls(), 2);
    let is_cut = |line: &&Value| line["code"] == "JOB_CANCELLED";
    let lines = lines_with(&gateway, "cancelled call", |lines| lines.iter().any(|line| is_cut(&line))).await;
    let cut: Vec<_> = lines.iter().filter(is_cut).collect();
    assert_eq!((cut.len(), &cut[0]["job"], &cut[0]["attempts"]), (1, &json!(runs), &json!(1)));
    let cancelled = [("upstream", "doc-classifier"), ("status", "cancelled")];
    assert_eq!(gateway.metric("gateway_jobs_total", &cancelled).await, 2.0);
    // a job that has ended stays as it is
    assert_eq!(cancel(&gateway, &next).await["status"], "succeeded");
}

#[tokio::test]
async fn a_long_poll_ends_with_the_job_and_not_before() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    let gate = Gate::new();
    upstream.always(accepted().wait_for(&gate));
    let job = id(&hand(&gateway, JOB, &DOC).send().await);
    let early = get(&gateway, 1, &format!("/jobs/{job}?wait=1")).await;
    assert_eq!(
        (&early.json()["status"], early.header("retry-after").as_deref()),
        (&json!("running"), Some("1"))
    );
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        let target = format!("/jobs/{job}?wait=60");
        let addr = gateway.addr;
        waiting.spawn(async move { ask(addr, "GET", &target, 1).await });
    }
    upstream.wait_calls(1).await;
    gate.open();
    while let Some(Ok(answer)) = waiting.join_next().await {
        assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("succeeded")));
        assert_eq!(answer.header("retry-after"), None);
    }
    for bad in ["wait=61", "wait=-1", "wait=x", "wait=", "wait=1&wait=1", "other=1"] {
        assert_own(&get(&gateway, 1, &format!("/jobs/{job}?{bad}")).await, 400, "BAD_REQUEST", bad);
    }
}

#[tokio::test]
async fn tenants_see_their_own_jobs_alone() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "").await;
    upstream.always(accepted());
    let mut own = Vec::new();
    for n in 0..5 {
        own.push(id(&hand(&gateway, JOB, &random_document(n, 500)).send().await));
        end(&gateway, &own[own.len() - 1]).await;
    }
    let theirs = id(&hand_as(&gateway, 2, JOB, &DOC).send().await);
    for (tenant, target) in [
        (1, format!("/jobs/{theirs}")),
        (1, format!("/jobs/{theirs}/result")),
        (1, format!("/jobs/{theirs}?wait=5")),
        (2, format!("/jobs/{}", own[0])),
        (1, "/jobs/0190a0a0-0000-7000-8000-000000000000".to_owned()),
        (1, "/jobs/..".to_owned()),
        (1, "/jobs/x".to_owned()),
    ] {
        assert_own(&get(&gateway, tenant, &target).await, 404, "JOB_NOT_FOUND", &target);
    }
    // the latest first, in pages
    let first = get(&gateway, 1, "/jobs?limit=2").await.json();
    let ids = |page: &Value| {
        let items = page["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item["id"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&first), [own[4].clone(), own[3].clone()]);
    let mut all = ids(&first);
    let mut cursor = first["next_cursor"].as_str().map(str::to_owned);
    while let Some(at) = cursor {
        let page = get(&gateway, 1, &format!("/jobs?limit=2&cursor={at}")).await.json();
        all.extend(ids(&page));
        cursor = page["next_cursor"].as_str().map(str::to_owned);
    }
    own.reverse();
    assert_eq!(all, own);
    let none = get(&gateway, 1, "/jobs?status=failed").await.json();
    assert_eq!((ids(&none).len(), ids(&get(&gateway, 1, "/jobs?upstream=other").await.json()).len()), (0, 0));
    assert_eq!(
        ids(&get(&gateway, 1, "/jobs?status=succeeded&upstream=doc-classifier").await.json()).len(),
        5
    );
    for bad in ["limit=0", "limit=1001", "status=new", "cursor=x", "sort=id"] {
        assert_own(&get(&gateway, 1, &format!("/jobs?{bad}")).await, 400, "BAD_REQUEST", bad);
    }
    assert_own(&get(&gateway, 9, "/jobs").await, 401, "UNAUTHENTICATED", "nobody");
}

#[tokio::test]
async fn what_cannot_become_a_job_is_refused_at_once() {
    let upstream = Upstream::start().await;
    let tenants = "jobs:\n  input_max_bytes: 10000\n  max_queued: 3";
    let gateway = Gateway::with(
        &upstream.url(),
        &[("TOP", tenants), ("UPSTREAM", "strict_paths: true\npool:\n  max_in_flight: 1")],
    )
    .await;
    upstream.always(Reply::stall());
    for (target, status, code) in [
        ("/jobs/nobody/classify", 404, "NO_ROUTE"),
        ("/jobs", 404, "NO_ROUTE"),
        ("/jobs/", 404, "NO_ROUTE"),
        ("/jobs/doc-classifier/other", 404, "NO_ROUTE"),
        ("/jobs/doc-classifier/%2e%2e/classify", 400, "BAD_REQUEST"),
    ] {
        assert_own(&hand(&gateway, target, &DOC).send().await, status, code, target);
    }
    assert_own(&hand(&gateway, JOB, b"").send().await, 400, "EMPTY_DOCUMENT", "empty");
    let (content_type, body) = multipart("b", &[Part::file("f", "a.pdf", "application/pdf", b"")]);
    let empty = Post::to(gateway.addr, JOB).bearer("tok-1").header("Content-Type", &content_type).body(body);
    assert_own(&empty.send().await, 400, "EMPTY_DOCUMENT", "an empty file part");
    assert_own(&hand(&gateway, JOB, &random_document(3, 10_001)).send().await, 413, "BODY_TOO_LARGE", "long");
    let chunked = hand(&gateway, JOB, &random_document(3, 10_001)).chunked(1000);
    assert_own(&chunked.send().await, 413, "BODY_TOO_LARGE", "long and chunked");
    let webhook = hand(&gateway, JOB, &DOC).header("Webhook-Url", "https://hooks.example.com/");
    assert_own(&webhook.send().await, 400, "WEBHOOK_REFUSED", "no webhooks");
    assert_own(&Post::to(gateway.addr, JOB).body(&DOC[..]).send().await, 401, "UNAUTHENTICATED", "nobody");
    for method in ["PUT", "PATCH", "DELETE"] {
        let answer = ask(gateway.addr, method, JOB, 1).await;
        assert_own(&answer, 404, "NO_ROUTE", method);
    }
    assert_eq!(upstream.calls(), 0);
    // one runs, two wait, and then it is full
    for n in 0..3 {
        let answer = hand(&gateway, JOB, &random_document(n, 9000)).send().await;
        assert_eq!(answer.status, 202, "{n}: {}", answer.text());
        upstream.wait_calls(1).await;
    }
    let full = hand(&gateway, JOB, &DOC).send().await;
    assert_own(&full, 503, "JOBS_FULL", "full");
    assert!(full.header("retry-after").is_some());
    // for this tenant: it has half of the places, and others the rest
    let detail = "half of jobs.max_queued jobs of this tenant wait for this upstream";
    assert_eq!(full.json()["detail"], detail);
    assert_eq!(hand_as(&gateway, 2, JOB, &DOC).send().await.status, 202);
    let full = hand_as(&gateway, 2, JOB, &DOC).send().await;
    assert_own(&full, 503, "JOBS_FULL", "full for all");
    assert_eq!(full.json()["detail"], "jobs.max_queued jobs wait for this upstream");
}

#[tokio::test]
async fn a_tenant_hands_jobs_to_its_own_upstreams_alone() {
    let upstream = Upstream::start().await;
    let yaml = Gateway::simple_yaml(&upstream.url(), &[("TOP", "jobs: {}")]);
    let yaml = yaml.replacen("routes: [\"*\"]", "routes: [other]", 1).replace(
        "upstreams:\n",
        &format!("upstreams:\n  - name: other\n    adapter: classify\n    base_url: {}\n", upstream.url()),
    );
    let gateway = Gateway::start(&yaml).await;
    upstream.always(accepted());
    assert_own(&hand(&gateway, JOB, &DOC).send().await, 403, "FORBIDDEN_ROUTE", "not its own");
    let own = hand(&gateway, "/jobs/other/any/path", &DOC).send().await;
    assert_eq!(end(&gateway, &id(&own)).await["status"], "succeeded");
    // it has no mount, and every path of it has the memory
    assert_own(&submit(&gateway, "/other/any/path").body(&DOC[..]).send().await, 404, "NO_ROUTE", "no mount");
    upstream.always(refused(422));
    let bad = end(&gateway, &id(&hand(&gateway, "/jobs/other/any/path", &DOC2).send().await)).await;
    assert_eq!(bad["error"]["code"], "HTTP_422");
    let again = hand(&gateway, "/jobs/other/any/path", &DOC2).send().await;
    assert_eq!((&again.json()["status"], upstream.calls()), (&json!("failed"), 2));
}

#[tokio::test]
async fn a_result_that_is_too_long_is_a_failure() {
    let upstream = Upstream::start().await;
    let gateway = with_jobs(&upstream, "result_max_bytes: 100000").await;
    let replies = [
        Reply::status(200).body(vec![b'x'; 100_001]),
        Reply::status(200)
            .steps((0..11).map(|_| Step::chunk(vec![b'x'; 10_000])).chain([Step::LastChunk]).collect()),
    ];
    for (n, reply) in (0..).zip(replies) {
        upstream.always(reply);
        let job = end(&gateway, &id(&hand(&gateway, JOB, &random_document(n, 700)).send().await)).await;
        assert_eq!(
            (&job["status"], &job["error"]["code"]),
            (&json!("failed"), &json!("RESULT_TOO_LARGE")),
            "{job}"
        );
    }
    upstream.always(Reply::status(200).body(vec![b'x'; 100_000]));
    let job = end(&gateway, &id(&hand(&gateway, JOB, &DOC).send().await)).await;
    let result = get(&gateway, 1, &format!("/jobs/{}/result", job["id"].as_str().unwrap_or_default())).await;
    assert_eq!((result.status, result.body.len(), upstream.calls()), (200, 100_000, 3));
}

#[tokio::test]
async fn jobs_that_are_not_served_are_not_there() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    for answer in [hand(&gateway, JOB, &DOC).send().await, get(&gateway, 1, "/jobs").await] {
        assert_own(&answer, 404, "NO_ROUTE", "off");
    }
    let series = gateway.metrics().await;
    assert!(!series.contains("gateway_jobs") && !series.contains("gateway_webhooks"));
    assert!(!gateway.dir().join("data/work.sqlite3").exists());
}
