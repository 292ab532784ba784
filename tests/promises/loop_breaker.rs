//! The loop breaker: a request that an upstream fails on again and again, with the same 5xx or 429, is held for a while and
//! answered with the upstream's last answer. Off, everything goes up. It is no part of the memory, which never has a 5xx; it
//! believes no single tenant where tenants share; and it never counts what speaks of the moment.

use std::time::Duration;

use nevertwice_testkit::{
    Answer, DOC, DOC2, Gate, Gateway, Reply, Step, Upstream, random_document, sha256_hex,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bench::{gzip, settle};
use crate::caller::{CLASSIFY, LAYOUT, assert_live, entries, entry_count, field, forget, submit, submit_as};

const NAME: [(&str, &str); 1] = [("upstream", "doc-classifier")];
/// What an OCR server says of an image that it cannot decode.
const BARE: &str = "Internal Server Error";

fn bare() -> Reply {
    Reply::status(500).header("Content-Type", "text/plain").body(BARE)
}

/// The breaker with these settings, and more lines for the upstream.
fn breaker(settings: &str, more: &str) -> String {
    format!("negative_cache:\n  loop_breaker: {{enabled: true, {settings}}}\n{more}")
}

async fn on(upstream: &Upstream, settings: &str) -> Gateway {
    Gateway::with(&upstream.url(), &[("UPSTREAM", &breaker(settings, ""))]).await
}

async fn send(gateway: &Gateway, tenant: u8, document: &[u8]) -> Answer {
    submit_as(gateway, tenant, CLASSIFY)
        .header("Content-Type", "image/png")
        .body(document.to_vec())
        .send()
        .await
}

fn is_held(answer: &Answer) -> bool {
    answer.header("x-negative-cache").as_deref() == Some("HELD")
}

/// `held` is `live` once more: equal in all that is promised, framed anew, and marked.
#[track_caller]
fn assert_held(live: &Answer, held: &Answer) {
    assert!(is_held(held) && held.complete, "{} {:?}", held.status, held.headers);
    assert_eq!((held.status, &held.body), (live.status, &live.body));
    for name in ["content-type", "content-encoding", "content-language"] {
        assert_eq!(field(held, name), field(live, name), "{name}");
    }
    for name in ["transfer-encoding", "retry-after", "set-cookie", "x-gateway-error", "x-request-id"] {
        assert_eq!(field(held, name), None, "{name}");
    }
    assert_eq!(held.header("content-length"), Some(held.body.len().to_string()));
    assert_eq!(held.header("x-should-retry").as_deref(), Some("false"));
    assert!(held.header("age").is_some_and(|age| age.parse::<u64>().is_ok()), "{:?}", held.headers);
    assert!(held.header("x-negative-cache-entry").is_some_and(|entry| entry.len() == 64));
    let status = held.header("cache-status").unwrap_or_default();
    assert!(status.starts_with("nevertwice; hit; ttl=") && status.ends_with("; detail=held"), "{status}");
}

/// Sends until it is held, and says how many went up.
async fn until_held(gateway: &Gateway, tenant: u8, document: &[u8]) -> usize {
    for sent in 0..50 {
        if is_held(&send(gateway, tenant, document).await) {
            return sent;
        }
    }
    usize::MAX
}

async fn held_count(gateway: &Gateway) -> Value {
    let (_, upstreams) = gateway.admin_get("/admin/v1/upstreams").await;
    let breaker = upstreams["items"][0]["loop_breaker"].clone();
    let gauge = gateway.metric("gateway_loop_breaker_fingerprints", &NAME).await;
    assert_eq!(breaker["held"].as_f64().unwrap_or(0.0), gauge, "{upstreams}");
    breaker["held"].clone()
}

#[tokio::test]
async fn lb_01_off_every_request_goes_up() {
    let upstream = Upstream::start().await;
    upstream.always(bare());
    for lines in [
        "",
        "negative_cache:\n  loop_breaker: {failures: 2, one_tenant_suffices: true}",
        "negative_cache:\n  loop_breaker: {enabled: false, failures: 2, one_tenant_suffices: true}",
        "negative_cache:\n  mode: observe\n  loop_breaker: {enabled: true, failures: 2, one_tenant_suffices: true}",
    ] {
        let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", lines)]).await;
        let before = upstream.calls();
        for n in 0..12 {
            let answer = send(&gateway, 1 + n % 2, &DOC).await;
            assert_live(&answer, 500);
            assert_eq!(answer.text(), BARE, "{lines}");
        }
        assert_eq!((upstream.calls() - before, entry_count(&gateway).await), (12, 0), "{lines}");
        let metrics = gateway.metrics().await;
        assert!(!metrics.contains("loop_breaker") && !metrics.contains("HELD"), "{lines}");
        assert_eq!(held_count(&gateway).await, Value::Null);
        for line in settle(&gateway, 12).await {
            assert_eq!((&line["code"], &line["cache_hit"]), (&json!("HTTP_500"), &json!(false)));
        }
    }
}

#[tokio::test]
async fn lb_02_on_exactly_so_many_go_up_and_then_it_is_held() {
    let upstream = Upstream::start().await;
    upstream.always(
        bare().header("Set-Cookie", "a=b").header("X-Request-Id", "1").header("X-Negative-Cache", "HIT"),
    );
    let gateway = on(&upstream, "").await;
    let mut live = Vec::new();
    for n in 0..5 {
        live.push(send(&gateway, 1 + n % 2, &DOC).await);
        assert_live(&live[usize::from(n)], 500);
    }
    for n in 0..20 {
        assert_held(&live[4], &send(&gateway, 1 + n % 3, &DOC).await);
    }
    assert_eq!(upstream.calls(), 5);
    assert_eq!(held_count(&gateway).await, 1);

    // other documents and other paths are not touched
    assert_live(&send(&gateway, 1, &DOC2).await, 500);
    assert_live(
        &submit(&gateway, LAYOUT).header("Content-Type", "image/png").body(&DOC[..]).send().await,
        500,
    );
    assert_eq!(upstream.calls(), 7);

    // it is no refusal: the memory has nothing, and replayed nothing
    assert_eq!(entry_count(&gateway).await, 0);
    for series in ["refusals_total", "recorded_total", "not_recorded_total"] {
        assert_eq!(gateway.metric(&format!("gateway_negative_cache_{series}"), &[]).await, 0.0, "{series}");
    }
    let held = [NAME[0], ("status", "500")];
    assert_eq!(gateway.metric("gateway_loop_breaker_held_total", &held).await, 20.0);
    assert_eq!(gateway.metric("gateway_loop_breaker_held_total", &[]).await, 20.0);
    for (code, count) in [("HELD", 20.0), ("HTTP_500", 7.0), ("REFUSED", 0.0)] {
        let labels = [NAME[0], ("code", code)];
        assert_eq!(gateway.metric("gateway_requests_total", &labels).await, count, "{code}");
    }
    // and no failure of the upstream
    assert_eq!(gateway.metric("gateway_tenant_requests_total", &[("result", "failed")]).await, 7.0);
    assert_eq!(gateway.metric("gateway_tenant_requests_total", &[("result", "replayed")]).await, 20.0);
    assert_eq!(gateway.metric("gateway_upstream_attempts_total", &NAME).await, 7.0);

    let lines = settle(&gateway, 27).await;
    let digest = sha256_hex(&[&DOC[..]]);
    let of_held: Vec<&Value> = lines.iter().filter(|line| line["code"] == "HELD_HTTP_500").collect();
    assert_eq!(of_held.len(), 20, "{lines:#?}");
    let fingerprint = &of_held[0]["fingerprint"];
    for line in of_held {
        assert_eq!((&line["status"], &line["cache_hit"]), (&json!(500), &json!(true)));
        for zero in ["upstream_ms", "queue_ms", "attempts"] {
            assert_eq!(line[zero], 0, "{zero}: {line}");
        }
        assert_eq!((&line["fingerprint"], &line["document_sha256"]), (fingerprint, &json!(digest)));
    }
    // the failure that began it is known by its document too
    let documents = lines.iter().filter(|line| line["document_sha256"] == digest.as_str());
    assert_eq!(documents.count(), 21);
    let log = gateway.log();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("loop breaker: ")).collect();
    assert_eq!(said.len(), 1, "{log}");
    for part in [fingerprint.as_str().unwrap_or("?"), "doc-classifier", "500"] {
        assert!(said[0].contains(part), "{}", said[0]);
    }
    assert!(!log.contains(BARE) && !log.contains("tok-1"), "{log}");
    let shown = gateway.cli(&["upstreams"]).await;
    assert!(String::from_utf8_lossy(&shown.stdout).contains("on (1 held)"), "{shown:?}");
}

#[tokio::test]
async fn lb_03_one_tenant_alone_does_not_hold_what_tenants_share() {
    let upstream = Upstream::start().await;
    upstream.always(bare());
    let gateway = on(&upstream, "failures: 3").await;
    for _ in 0..10 {
        assert_live(&send(&gateway, 1, &DOC).await, 500);
    }
    assert_live(&send(&gateway, 2, &DOC).await, 500);
    assert!(is_held(&send(&gateway, 1, &DOC).await) && is_held(&send(&gateway, 3, &DOC).await));
    assert_eq!(upstream.calls(), 11);
    settle(&gateway, 13).await;

    let domains = "  scope: domain\n  trust_domains: [{name: d, tenants: [dev_1, dev_2]}]\n";
    let keyless = |yaml: String| {
        let (head, rest) = yaml.split_once("tenants:\n").unwrap_or_default();
        format!("{head}store:\n{}", rest.split_once("store:\n").unwrap_or_default().1)
    };
    let yaml = |settings: &str, more: &str| {
        Gateway::simple_yaml(&upstream.url(), &[("UPSTREAM", &breaker(settings, more))])
    };
    for (case, yaml, tenants, held_after) in [
        ("told so", yaml("failures: 3, one_tenant_suffices: true", ""), vec![1, 1, 1], 3),
        ("its own scope", yaml("failures: 3", "  scope: tenant\n"), vec![1, 2, 1, 2, 1], 5),
        ("a domain, one", yaml("failures: 3", domains), vec![1, 1, 1, 1, 2], 5),
        ("a domain, another one", yaml("failures: 3", domains), vec![1, 3, 1, 3, 1, 2], 6),
        ("in no domain", yaml("failures: 3", domains), vec![3, 3, 3], 3),
        ("no tenants", keyless(yaml("failures: 3", "")), vec![1, 1, 1], 3),
    ] {
        let gateway = Gateway::start(&yaml).await;
        let before = upstream.calls();
        for tenant in &tenants {
            assert_live(&send(&gateway, *tenant, &DOC).await, 500);
        }
        let last = tenants.last().copied().unwrap_or(1);
        assert!(is_held(&send(&gateway, last, &DOC).await), "{case}");
        assert_eq!(upstream.calls() - before, held_after, "{case}");
        if case == "its own scope" {
            assert!(!is_held(&send(&gateway, 2, &DOC).await), "what holds one does not hold the other");
        }
    }
}

#[tokio::test]
async fn lb_04_what_speaks_of_the_moment_never_counts() {
    let upstream = Upstream::start().await;
    let lines = breaker("failures: 2, one_tenant_suffices: true", "  judge_wait_ms: 200\ntimeout_ms: 1000\n");
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", &lines)]).await;
    let long = "x".repeat(70_000);
    let slow =
        [Step::chunk("sl"), Step::Pause(Duration::from_millis(800)), Step::chunk("ow"), Step::LastChunk];
    let cases = [
        ("503", Reply::status(503).body("busy"), 503),
        ("502", Reply::status(502).body("bad gateway"), 502),
        ("504", Reply::status(504), 504),
        ("529", Reply::status(529).body("overloaded"), 529),
        ("429 and when", Reply::status(429).header("Retry-After", "1"), 429),
        ("500 and when", bare().header("Retry-After", "Wed, 21 Oct 2026 07:28:00 GMT"), 500),
        ("429 and when, in ms", Reply::status(429).header("retry-after-ms", "10"), 429),
        ("500 and when, in ms", bare().header("x-ms-retry-after-ms", "10"), 500),
        ("500 and again", bare().header("x-should-retry", "true"), 500),
        ("500, not to be stored", bare().header("Cache-Control", "no-store"), 500),
        ("500, too long", Reply::status(500).body(long.clone()), 500),
        ("500, too long, in chunks", Reply::status(500).chunked(vec![long.clone()]), 500),
        ("500, too slow", Reply::status(500).steps(slow.to_vec()), 500),
        ("500, until the end", Reply::status(500).steps(vec![Step::write("until the end")]), 500),
        (
            "500, cut",
            Reply::status(500).header("Content-Length", "99").steps(vec![Step::write("cut"), Step::Close]),
            502,
        ),
        ("no answer", Reply::hang_up(), 502),
        ("no answer in time", Reply::stall(), 504),
        ("no HTTP", Reply::raw("nonsense\r\n\r\n"), 502),
        ("404", Reply::status(404).body("no model"), 404),
    ];
    let mut sent = 0;
    for (number, (case, reply, status)) in cases.into_iter().enumerate() {
        let document = random_document(100 + number as u64, 500);
        upstream.always(reply.clone());
        let before = upstream.calls();
        for _ in 0..4 {
            let answer = send(&gateway, 1, &document).await;
            assert_eq!((answer.status, is_held(&answer)), (status, false), "{case}: {answer:?}");
            match case {
                "500, too long" | "500, too long, in chunks" => {
                    assert!(answer.complete && answer.text() == long)
                }
                "500, too slow" => assert!(answer.complete && answer.text() == "slow", "{answer:?}"),
                _ => {}
            }
        }
        assert_eq!(upstream.calls() - before, 4, "{case}");
        // neither does it disturb a count that is under way
        if case != "404" {
            let document = random_document(200 + number as u64, 500);
            for counted in [true, false, true] {
                upstream.always(if counted { bare() } else { reply.clone() });
                assert!(!is_held(&send(&gateway, 1, &document).await), "{case}");
            }
            assert!(is_held(&send(&gateway, 1, &document).await), "{case}");
            sent += 4;
        }
        sent += 4;
    }
    assert_eq!(entry_count(&gateway).await, 0);
    settle(&gateway, sent).await;
}

#[tokio::test]
async fn lb_05_another_answer_ends_the_count() {
    let upstream = Upstream::start().await;
    let gateway = on(&upstream, "failures: 3, one_tenant_suffices: true").await;
    let mut sent = 0;
    for (number, other) in [
        Reply::status(200).body("fine"),
        Reply::status(204),
        Reply::status(404),
        Reply::status(400).header("Retry-After", "1"),
        Reply::status(429),
        Reply::status(501),
    ]
    .into_iter()
    .enumerate()
    {
        let document = random_document(300 + number as u64, 500);
        upstream.always(bare());
        for _ in 0..2 {
            assert_live(&send(&gateway, 1, &document).await, 500);
        }
        upstream.always(other.clone());
        let status = send(&gateway, 1, &document).await.status;
        upstream.always(bare());
        assert_eq!(until_held(&gateway, 1, &document).await, 3, "after a {status}");
        sent += 2 + 1 + 3 + 1;
    }
    // a 429 without a time is a failure like others, and bodies do not have to be equal
    let gateway_sent = std::sync::atomic::AtomicU32::new(0);
    upstream.by(move |_, _| {
        let n = gateway_sent.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Reply::status(429).header("Content-Type", "application/json").body(format!("{{\"at\":{n}}}"))
    });
    let mut live = Vec::new();
    for _ in 0..3 {
        live.push(send(&gateway, 1, &DOC).await);
    }
    let held = send(&gateway, 1, &DOC).await;
    assert_held(&live[2], &held);
    assert_eq!(held.text(), "{\"at\":2}");
    let counted = [NAME[0], ("status", "429")];
    assert_eq!(gateway.metric("gateway_loop_breaker_held_total", &counted).await, 1.0);
    settle(&gateway, sent + 4).await;
}

#[tokio::test]
async fn lb_10_a_held_request_does_not_wait_for_attempts_that_are_under_way() {
    let upstream = Upstream::start().await;
    let lines = breaker("failures: 2, one_tenant_suffices: true", "  single_flight_wait_ms: 600000\n");
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", &lines)]).await;
    let (first, second, last) = (Gate::new(), Gate::new(), Gate::new());
    upstream.script(vec![
        bare().wait_for(&first),
        bare().wait_for(&second),
        Reply::status(200).wait_for(&last),
    ]);
    let mut sent = JoinSet::new();
    for _ in 0..3 {
        let post = submit(&gateway, CLASSIFY).header("Content-Type", "image/png");
        sent.spawn(post.body(&DOC[..]).send());
    }
    gateway.wait_metric("gateway_body_memory_bytes", &[], 3.0 * DOC.len() as f64).await;
    first.open();
    second.wait_waiting(1).await;
    last.wait_waiting(1).await;
    second.open();
    for _ in 0..2 {
        assert_live(&sent.join_next().await.and_then(Result::ok).unwrap_or_else(|| unreachable!()), 500);
    }
    assert!(is_held(&send(&gateway, 2, &DOC).await));
    // that one turns out well, and ends the hold
    last.open();
    assert!(sent.join_all().await.iter().all(|answer| answer.status == 200));
    assert_live(&send(&gateway, 2, &DOC).await, 200);
    assert_eq!(upstream.calls(), 4);
    settle(&gateway, 5).await;
}

/// Asks until the hold is over, and says how often it was held before that.
async fn after_the_hold(gateway: &Gateway, tenant: u8) -> (usize, Answer) {
    let mut held = 0;
    loop {
        let answer = send(gateway, tenant, &DOC).await;
        if !is_held(&answer) {
            return (held, answer);
        }
        held += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn lb_06_a_hold_ends_however_often_it_is_asked_for_and_then_one_goes_up() {
    let upstream = Upstream::start().await;
    upstream.always(bare());
    let gateway = on(&upstream, "failures: 3, hold_s: 3").await;
    for tenant in [1, 2, 1] {
        assert_live(&send(&gateway, tenant, &DOC).await, 500);
    }
    let gate = Gate::new();
    upstream.always(bare().wait_for(&gate));
    let crowd = async {
        gate.wait_waiting(1).await;
        let mut sent = JoinSet::new();
        for n in 0..30 {
            let post = submit_as(&gateway, 1 + n % 3, CLASSIFY).header("Content-Type", "image/png");
            sent.spawn(post.body(&DOC[..]).send());
        }
        gateway.wait_metric("gateway_body_memory_bytes", &[], 31.0 * DOC.len() as f64).await;
        gate.open();
        sent.join_all().await
    };
    let ((mut held, live), crowd) = tokio::join!(after_the_hold(&gateway, 3), crowd);
    assert_live(&live, 500);
    // the one failure, of one tenant, holds all of them again
    crowd.iter().for_each(|answer| assert_held(&live, answer));
    assert_eq!(upstream.calls(), 4);

    // a success ends it at once, and the count begins anew
    upstream.always(Reply::status(200).body("fine"));
    let (more, fine) = after_the_hold(&gateway, 2).await;
    held += more;
    assert_live(&fine, 200);
    assert_eq!((upstream.calls(), held_count(&gateway).await), (5, json!(0)));
    upstream.always(bare());
    for tenant in [1, 2, 1] {
        assert_live(&send(&gateway, tenant, &DOC).await, 500);
    }
    assert!(is_held(&send(&gateway, 1, &DOC).await));
    assert_eq!(upstream.calls(), 8);
    settle(&gateway, 3 + held + 1 + 30 + 1 + 4).await;
}

#[tokio::test]
async fn lb_07_a_forget_ends_a_hold() {
    let upstream = Upstream::start().await;
    upstream.always(bare());
    let gateway = on(&upstream, "failures: 2, one_tenant_suffices: true").await;
    let mut sent = 0;
    let digest = sha256_hex(&[&DOC[..]]);
    for (selection, forgotten) in [
        (json!({ "status": 400 }), 0),
        (json!({ "upstream": "doc-classifier", "status": 400 }), 0),
        (json!({ "before": "2020-01-01T00:00:00Z" }), 0),
        (json!({ "document": sha256_hex(&[&DOC2[..]]) }), 0),
        (json!({ "fingerprint": "0".repeat(64) }), 0),
        (json!({ "upstream": "doc-classifier" }), 1),
        (json!({ "document": digest }), 1),
        (json!({ "before": "2120-01-01T00:00:00Z" }), 1),
        (json!({ "all": true }), 1),
    ] {
        let more = until_held(&gateway, 1, &DOC).await;
        assert!([0, 2].contains(&more), "{more}");
        assert_eq!(forget(&gateway, &selection).await, forgotten, "{selection}");
        let next = send(&gateway, 1, &DOC).await;
        assert_eq!(is_held(&next), forgotten == 0, "{selection}");
        sent += more + 2;
        if forgotten == 1 {
            // not only the hold is forgotten, the count is too
            assert!(!is_held(&send(&gateway, 1, &DOC).await));
            sent += 1;
        }
    }
    // by the fingerprint that the answer names, and on the command line
    let held = send(&gateway, 1, &DOC).await;
    let fingerprint = held.header("x-negative-cache-entry").unwrap_or_default();
    let path = format!("/admin/v1/refusals/{fingerprint}");
    assert_eq!(gateway.admin_delete(&path).await, (200, json!({ "forgotten": 1 })));
    assert_eq!(gateway.admin_delete(&path).await.0, 404);
    assert_eq!(until_held(&gateway, 1, &DOC).await, 2);
    let output = gateway.cli(&["refusals", "forget", &fingerprint]).await;
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"1 refusal forgotten\n"[..]));
    assert_eq!(until_held(&gateway, 1, &DOC).await, 2);
    let output = gateway.cli(&["refusals", "forget", "--upstream", "doc-classifier"]).await;
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"1 refusal forgotten\n"[..]));
    assert!(!is_held(&send(&gateway, 1, &DOC).await));
    assert_eq!(entries(&gateway, "").await.len(), 0);
    settle(&gateway, sent + 1 + 3 + 3 + 1).await;
}

#[tokio::test]
async fn lb_08_labels_lengths_and_protocols_are_kept() {
    let upstream = Upstream::start().await;
    let gateway = on(&upstream, "failures: 2, one_tenant_suffices: true").await;
    let zipped = gzip(&[b"<h1>Internal Server Error</h1>"]).concat();
    let mut sent = 0;
    for (number, reply) in [
        Reply::status(500),
        Reply::status(500).body("no type"),
        Reply::status(500)
            .header("Content-Type", "text/html")
            .header("Content-Encoding", "gzip")
            .body(zipped),
        Reply::status(500).header("Content-Language", "de").header("Content-Language", "en").body("zwei"),
        Reply::status(507).chunked(vec!["in ", "two"]),
        Reply::status(429).chunked(Vec::<Vec<u8>>::new()),
        Reply::status(599).body(vec![0xff; 65_536]),
    ]
    .into_iter()
    .enumerate()
    {
        let document = random_document(400 + number as u64, 500);
        upstream.always(reply.header("Date", "Thu, 01 Jan 1970 00:00:00 GMT").header("ETag", "\"1\""));
        let live = send(&gateway, 1, &document).await;
        assert!(!is_held(&send(&gateway, 1, &document).await));
        let held = send(&gateway, 1, &document).await;
        assert_held(&live, &held);
        assert_eq!(field(&held, "etag"), None);
        assert_ne!(held.header("date"), live.header("date"));
        let fields = [("authorization", "Bearer tok-1"), ("content-type", "image/png")];
        let h2 = nevertwice_testkit::client::h2_post(gateway.addr, CLASSIFY, &fields, document.clone()).await;
        assert!(is_held(&h2) && h2.status == live.status && h2.body == live.body);
        sent += 4;
    }
    settle(&gateway, sent).await;
}

#[tokio::test]
async fn lb_09_a_crowd_is_counted_whole_and_held_requests_take_no_place() {
    let upstream = Upstream::start().await;
    let more = "pool: {max_in_flight: 4, queue_timeout_ms: 60000}\n";
    let lines = breaker("failures: 20", more);
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", &lines)]).await;
    upstream.always(bare());
    let mut sent = JoinSet::new();
    for n in 0..300_u16 {
        let post = submit_as(&gateway, 1 + u8::try_from(n % 3).unwrap_or(0), CLASSIFY);
        sent.spawn(post.header("Content-Type", "image/png").body(&DOC[..]).send());
    }
    let answers = sent.join_all().await;
    let live = answers.iter().filter(|answer| !is_held(answer)).count();
    assert!(answers.iter().all(|answer| answer.status == 500 && answer.text() == BARE));
    // none is lost; those that were at the upstream when the twentieth came back are more than that
    assert!((20..=23).contains(&live), "{live} went up");
    assert_eq!(upstream.calls(), live as u64);
    assert!(is_held(&send(&gateway, 1, &DOC).await));

    // every place is taken, and a held request is answered all the same
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let mut others = JoinSet::new();
    for n in 0..8 {
        let post = submit_as(&gateway, 1, CLASSIFY).header("Content-Type", "image/png");
        others.spawn(post.body(random_document(500 + n, 500)).send());
    }
    gate.wait_waiting(4).await;
    gateway.wait_metric("gateway_pool_queued", &[], 4.0).await;
    assert!(is_held(&send(&gateway, 2, &DOC).await));
    gate.open();
    assert!(others.join_all().await.iter().all(|answer| answer.status == 200));
    settle(&gateway, 300 + 1 + 8 + 1).await;
}
