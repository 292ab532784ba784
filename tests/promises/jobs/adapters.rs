//! Upstreams that do not answer at once: the gateway submits and polls until there is an outcome, and learns from it.

use nevertwice_testkit::azure_di::ANALYZE;
use nevertwice_testkit::{AzureDi, DOC, DOC2, Fate, Gateway, Reply, Upstream, fault, random_document};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::job_caller::{end, get, hand};
use crate::jobs::id;

async fn azure(di: &AzureDi, more: &str) -> Gateway {
    let upstream = format!(
        "- name: di\n  adapter: azure-di\n  base_url: \"{}\"\n  poll_interval_ms: 50\n  negative_cache: {{enabled: true}}\n{more}",
        di.url()
    );
    let jobs = ("TOP", "jobs: {}");
    Gateway::start(&Gateway::simple_yaml(&di.url(), &[("UPSTREAMS", &upstream), jobs])).await
}

fn analyze() -> String {
    format!("/jobs/di{ANALYZE}")
}

#[tokio::test]
async fn an_operation_is_followed_to_its_end_and_a_failure_of_it_is_remembered() {
    let di = AzureDi::start().await;
    let gateway = azure(&di, "").await;
    di.on(DOC, Fate::succeeds().after(2));
    let job = end(&gateway, &id(&hand(&gateway, &analyze(), &DOC).send().await)).await;
    assert_eq!((&job["status"], &job["attempts"]), (&json!("succeeded"), &json!(1)), "{job}");
    let link = format!("/jobs/{}/result", job["id"].as_str().unwrap_or_default());
    let result = get(&gateway, 1, &link).await;
    assert_eq!((result.status, &result.json()["status"]), (200, &json!("succeeded")), "{}", result.text());
    assert_eq!((di.submits().len(), di.polls().len()), (1, 3));

    // one that fails at the poll: one submit, however often it comes and in what ways
    di.on(DOC2, Fate::fails(fault("InvalidRequest", "InvalidContent")).after(1));
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        tasks.spawn(hand(&gateway, &analyze(), &DOC2).send());
    }
    let mut ids = Vec::new();
    while let Some(Ok(answer)) = tasks.join_next().await {
        ids.push(id(&answer));
    }
    for id in &ids {
        let job = end(&gateway, id).await;
        assert_eq!(
            (&job["status"], &job["error"]["upstream_status"]),
            (&json!("failed"), &json!(200)),
            "{job}"
        );
        let message = job["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("InvalidRequest"), "{job}");
    }
    assert_eq!(di.submits_of(DOC2), 1);
    let again = hand(&gateway, &analyze(), &DOC2).send().await;
    assert_eq!(again.json()["status"], "failed", "{}", again.text());
    let job = end(&gateway, &id(&again)).await;
    assert_eq!(
        (&job["error"]["code"], &job["error"]["replayed"]),
        (&json!("REFUSED_HTTP_200"), &json!(true))
    );
    let link = format!("/jobs/{}/result", id(&again));
    assert_eq!(get(&gateway, 1, &link).await.json()["error"]["code"], "InvalidRequest");
    assert_eq!(di.submits_of(DOC2), 1);

    // refused at the submit
    let document = random_document(1, 700);
    di.on(&document, Fate::refused(400, fault("InvalidRequest", "InvalidContentDimensions")));
    let job = end(&gateway, &id(&hand(&gateway, &analyze(), &document).send().await)).await;
    assert_eq!(job["error"]["code"], "HTTP_400");
    let again = hand(&gateway, &analyze(), &document).send().await;
    assert_eq!((&again.json()["status"], di.submits_of(&document)), (&json!("failed"), 1));
    // every call is in the audit: submits and polls
    let calls = di.upstream.calls();
    let counted: u64 = gateway.audit().iter().filter_map(|line| line["attempts"].as_u64()).sum();
    assert_eq!(counted, calls);
}

#[tokio::test]
async fn a_failure_of_an_operation_that_is_no_verdict_is_not_remembered() {
    let di = AzureDi::start().await;
    let gateway = azure(&di, "").await;
    di.on(DOC, Fate::fails(fault("InternalServerError", "InternalServerError")));
    for submits in 1..=2 {
        let job = end(&gateway, &id(&hand(&gateway, &analyze(), &DOC).send().await)).await;
        assert_eq!(
            (&job["error"]["code"], &job["error"]["retryable"]),
            (&json!("FAILED_HTTP_200"), &json!(true))
        );
        assert_eq!(di.submits().len(), submits);
    }
    // input by reference: what is behind it may be another thing tomorrow
    let by_reference = json!({ "urlSource": "https://files.example.com/a.pdf" }).to_string();
    di.on(&by_reference, Fate::fails(fault("InvalidRequest", "InvalidContent")));
    for submits in 3..=4 {
        let post = nevertwice_testkit::Post::to(gateway.addr, &analyze()).bearer("tok-1");
        let post = post.header("Content-Type", "application/json").body(by_reference.clone());
        let job = end(&gateway, &id(&post.send().await)).await;
        assert_eq!((&job["status"], di.submits().len()), (&json!("failed"), submits), "{job}");
    }
    assert_eq!(gateway.admin_get("/admin/v1/refusals").await.1["items"], json!([]));
}

#[tokio::test]
async fn an_operation_elsewhere_is_not_followed() {
    let (di, other) = (AzureDi::start().await, Upstream::start().await);
    let gateway = azure(&di, "").await;
    for template in [
        format!("http://{}@PATH@", other.addr()),
        format!("http://@AUTHORITY@@{}@PATH@", other.addr()),
        "https://@AUTHORITY@@PATH@".to_owned(),
        String::new(),
    ] {
        di.locate(&template);
        let job = end(
            &gateway,
            &id(&hand(&gateway, &analyze(), &random_document(template.len() as u64, 600)).send().await),
        )
        .await;
        assert_eq!(job["error"]["code"], "UPSTREAM_MALFORMED", "{template}: {job}");
        assert_eq!((&job["attempts"], &job["error"]["retryable"]), (&json!(1), &json!(true)));
    }
    assert_eq!((other.connections(), di.polls().len()), (0, 0));
}

#[tokio::test]
async fn an_operation_that_does_not_end_is_given_up_in_time() {
    let di = AzureDi::start().await;
    let gateway = azure(&di, "  operation_timeout_ms: 2500").await;
    di.on(DOC, Fate::succeeds().after(1000));
    let job = end(&gateway, &id(&hand(&gateway, &analyze(), &DOC).send().await)).await;
    assert_eq!(
        (&job["error"]["code"], &job["error"]["retryable"]),
        (&json!("UPSTREAM_TIMEOUT"), &json!(true)),
        "{job}"
    );
    assert!(di.submits().len() == 1 && !di.polls().is_empty());
}

#[tokio::test]
async fn a_submit_that_did_not_take_the_whole_document_teaches_nothing() {
    let upstream = Upstream::start().await;
    let di = format!(
        "- name: di\n  adapter: azure-di\n  base_url: \"{}\"\n  poll_interval_ms: 50\n  negative_cache: {{enabled: true}}",
        upstream.url()
    );
    let gateway = Gateway::start(&Gateway::simple_yaml(&upstream.url(), &[("UPSTREAMS", &di)])).await;
    let location = format!("{}/operations/1", upstream.url());
    let failed = json!({ "status": "failed", "error": fault("InvalidRequest", "InvalidContent") });
    upstream.by_head(move |seen, _| match seen.method.as_str() {
        "POST" => Reply::status(202).header("Operation-Location", &location).answer_early().close_after(),
        _ => as_json(200, &failed),
    });
    // longer than what two sockets hold, so that it cannot have gone up whole
    let document = random_document(1, 24 << 20);
    for submits in 1..=2 {
        let job = end(&gateway, &id(&hand(&gateway, &analyze(), &document).send().await)).await;
        assert_eq!((&job["status"], &job["error"]["replayed"]), (&json!("failed"), &json!(false)), "{job}");
        assert_eq!(job["error"]["code"], "FAILED_HTTP_200", "{job}");
        assert_eq!(upstream.calls_to("/documentintelligence"), submits);
    }
    assert_eq!(gateway.admin_get("/admin/v1/refusals").await.1["items"], json!([]));
}

/// A GPU server: `POST /ocr` begins a job, `GET /jobs/7` tells of it.
async fn gpu(upstream: &Upstream, more: &str) -> Gateway {
    let gpu = format!(
        "- name: gpu\n  adapter: gpuserver-job\n  base_url: \"{}/v1\"\n  poll_interval_ms: 50\n{more}",
        upstream.url()
    );
    Gateway::start(&Gateway::simple_yaml(&upstream.url(), &[("UPSTREAMS", &gpu)])).await
}

fn as_json(status: u16, body: &Value) -> Reply {
    Reply::status(status).header("Content-Type", "application/json").body(body.to_string())
}

#[tokio::test]
async fn a_job_api_is_polled_until_it_has_an_outcome() {
    let upstream = Upstream::start().await;
    let gateway = gpu(&upstream, "").await;
    for (n, submitted) in [
        as_json(202, &json!({ "job_id": "7" })),
        as_json(200, &json!({ "id": 7 })),
        as_json(201, &json!({})).header("Location", "/v1/jobs/7"),
        as_json(202, &json!({})).header("Location", format!("{}/v1/jobs/7", upstream.url())),
    ]
    .into_iter()
    .enumerate()
    {
        let done = json!({ "status": "Completed", "pages": n });
        let outcome = done.clone();
        let mut polls = 0;
        upstream.by(move |seen, _| match (seen.method.as_str(), seen.target.as_str()) {
            ("POST", "/v1/ocr?lang=de") => submitted.clone(),
            ("GET", "/v1/jobs/7") => {
                polls += 1;
                match polls {
                    1 => as_json(200, &json!({ "status": "queued" })),
                    2 => as_json(503, &json!({})),
                    3 => as_json(200, &json!({ "status": "IN_PROGRESS" })),
                    _ => as_json(200, &outcome),
                }
            }
            _ => Reply::status(404),
        });
        let before = upstream.calls();
        let document = random_document(n as u64, 800);
        let job = end(&gateway, &id(&hand(&gateway, "/jobs/gpu/ocr?lang=de", &document).send().await)).await;
        assert_eq!((&job["status"], &job["attempts"]), (&json!("succeeded"), &json!(1)), "{job}");
        let link = format!("/jobs/{}/result", job["id"].as_str().unwrap_or_default());
        assert_eq!(get(&gateway, 1, &link).await.json(), done);
        assert_eq!(upstream.calls() - before, 5);
    }
}

#[tokio::test]
async fn a_job_api_s_failures_are_failures() {
    let upstream = Upstream::start().await;
    let gateway = gpu(&upstream, "").await;
    for (n, (told, message)) in [
        (json!({ "status": "failed", "error": "out of pages" }), "out of pages"),
        (json!({ "status": "ERROR", "error": { "code": 7, "message": "no text" } }), "no text"),
        (json!({ "status": "canceled", "error": "by an operator" }), "by an operator"),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.by(move |seen, _| match seen.method.as_str() {
            "POST" => as_json(202, &json!({ "job_id": "a" })),
            _ => as_json(200, &told),
        });
        let job = end(
            &gateway,
            &id(&hand(&gateway, "/jobs/gpu/ocr", &random_document(n as u64, 800)).send().await),
        )
        .await;
        assert_eq!(
            (&job["status"], &job["error"]["code"]),
            (&json!("failed"), &json!("FAILED_HTTP_200")),
            "{job}"
        );
        assert_eq!(job["error"]["message"], message);
    }
    for (n, submitted) in [
        as_json(202, &json!({})),
        as_json(202, &json!({ "job_id": "../x" })),
        as_json(202, &json!({ "job_id": 1 })).header("Location", "http://127.0.0.1:9/v1/jobs/1"),
        as_json(202, &json!({ "job_id": 1 })).header("Location", "/elsewhere/1"),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.always(submitted);
        let before = upstream.calls();
        let job = end(
            &gateway,
            &id(&hand(&gateway, "/jobs/gpu/ocr", &random_document(9 + n as u64, 800)).send().await),
        )
        .await;
        assert_eq!(
            (&job["error"]["code"], upstream.calls() - before),
            (&json!("UPSTREAM_MALFORMED"), 1),
            "{job}"
        );
    }
    // refused at the submit: a verdict by the profile `status`
    upstream.always(as_json(422, &json!({ "detail": "not a picture" })));
    let job = end(&gateway, &id(&hand(&gateway, "/jobs/gpu/ocr", &DOC).send().await)).await;
    assert_eq!(
        (&job["error"]["code"], &job["error"]["message"]),
        (&json!("HTTP_422"), &json!("not a picture"))
    );
    let before = upstream.calls();
    let again = hand(&gateway, "/jobs/gpu/ocr", &DOC).send().await;
    assert_eq!((&again.json()["status"], upstream.calls()), (&json!("failed"), before));
}
