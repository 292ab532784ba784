//! The series of `/metrics`: the names that dashboards rely on, replays outside of every error rate, and a number of series
//! that no client and no upstream can raise.

use std::time::{Duration, Instant};

use nevertwice_testkit::{Answer, Client, DOC, Gateway, Reply, Request, Upstream, r400, random_document};
use tokio::task::JoinSet;

use crate::bench::{post, settle};
use crate::caller::CLASSIFY;

/// In every text that a client or an upstream chooses here, so that it would show in a label.
const MARK: &str = "zzz";

fn series(text: &str) -> usize {
    text.lines().filter(|line| !line.starts_with('#')).count()
}

async fn each(gateway: &Gateway, lanes: u64, count: u64, make: impl Fn(u64) -> Request) -> Vec<Answer> {
    let mut running = JoinSet::new();
    for lane in 0..lanes {
        let requests: Vec<Request> = (0..count).map(|n| make(lane * count + n)).collect();
        let addr = gateway.addr;
        running.spawn(async move {
            let mut answers = Vec::new();
            let mut client = Client::connect(addr).await;
            for request in requests {
                let answer = client.request(request).await;
                if answer.header("connection").as_deref() == Some("close") {
                    client = Client::connect(addr).await;
                }
                answers.push(answer);
            }
            answers
        });
    }
    running.join_all().await.concat()
}

#[tokio::test]
async fn ob_05_no_client_and_no_upstream_makes_series_at_will() {
    let upstream = Upstream::start().await;
    upstream.by(|seen, n| match seen.target.as_str() {
        target if target.starts_with("/classify") => r400(),
        _ => Reply::status(400 + u16::try_from(n % 200).unwrap_or_default())
            .header("X-Model", format!("{MARK}{n}")),
    });
    let llm = format!("- {{name: llm, adapter: openai, base_url: \"{}\"}}", upstream.url());
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAMS", &llm)]).await;
    let before = series(&gateway.metrics().await);
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"];
    let answers = each(&gateway, 8, 250, |n| {
        let method = methods.get(n as usize % 9).map_or_else(|| format!("{MARK}{n}"), |m| (*m).to_owned());
        let (mut path, mut token, mut body) =
            (format!("/doc-classifier/{MARK}{n}?api-version={MARK}{n}"), "tok-1".to_owned(), String::new());
        match n % 6 {
            0 => path = format!("/{MARK}{n}/x"),
            1 => token = format!("{MARK}{n}"),
            2 => {
                (path, body) = ("/llm/v1/chat/completions".to_owned(), format!("{{\"model\":\"{MARK}{n}\"}}"))
            }
            3 => (path, body) = (format!("{CLASSIFY}?kind={MARK}{n}"), format!("{MARK}{n}")),
            _ => {}
        }
        let request = Request::new(&method, &path).bearer(&token).header("Host", format!("{MARK}{n}.test"));
        request
            .header("Content-Type", format!("{MARK}/{n}"))
            .header("User-Agent", format!("{MARK}{n}"))
            .body(body)
    });
    assert_eq!(answers.await.len(), 2_000);
    let text = gateway.metrics().await;
    let grown = series(&text) - before;
    assert!(grown < 50, "{grown} more series: {text}");
    assert!(!text.contains(MARK), "a client's or an upstream's text is a label: {text}");

    // All of it again, under other names: nothing is left to grow.
    let after = series(&text);
    each(&gateway, 8, 250, |n| {
        let path = if n % 2 == 0 { format!("/doc-classifier/{MARK}-{n}") } else { format!("/{MARK}-{n}") };
        Request::new("POST", &path).bearer(if n % 5 == 0 { MARK } else { "tok-2" }).body(format!("{n}"))
    })
    .await;
    let text = gateway.metrics().await;
    assert!(series(&text) < after + 10, "{} series, then {}", after, series(&text));
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        gateway.metrics().await;
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
    settle(&gateway, 4_000).await;
}

#[tokio::test]
async fn ob_05_replays_are_counted_apart_from_every_error_rate() {
    let upstream = Upstream::start().await;
    upstream.by(|seen, _| match seen.body_len {
        4096 => r400(),
        1 => Reply::status(422).header("Retry-After", "1").body("later"),
        _ => Reply::status(200),
    });
    let gateway = Gateway::simple(&upstream.url()).await;
    assert_eq!(post(&gateway, CLASSIFY, &b"ok"[..]).await.status, 200);
    assert_eq!(post(&gateway, CLASSIFY, &b"x"[..]).await.status, 422);
    for n in 0..4 {
        assert_eq!(post(&gateway, CLASSIFY, &DOC[..]).await.is_hit(), n > 0);
    }
    let name = ("upstream", "doc-classifier");
    for (series, labels, value) in [
        ("gateway_negative_cache_refusals_total", &[name, ("status", "400")][..], 3.0),
        ("gateway_negative_cache_refusals_total", &[], 3.0),
        ("gateway_negative_cache_recorded_total", &[], 1.0),
        ("gateway_negative_cache_entries", &[], 1.0),
        ("gateway_negative_cache_not_recorded_total", &[("reason", "retry_after")], 1.0),
        ("gateway_negative_cache_not_recorded_total", &[], 1.0),
        ("gateway_negative_cache_evictions_total", &[], 0.0),
        ("gateway_negative_cache_store_errors_total", &[], 0.0),
        ("gateway_requests_total", &[name, ("code", "HTTP_400")], 1.0),
        ("gateway_requests_total", &[name, ("code", "HTTP_422")], 1.0),
        ("gateway_requests_total", &[name, ("code", "OK")], 1.0),
        ("gateway_requests_total", &[name], 6.0),
        ("gateway_tenant_requests_total", &[("tenant", "dev_1"), ("result", "replayed")], 3.0),
        ("gateway_tenant_requests_total", &[("tenant", "dev_1"), ("result", "refused")], 2.0),
        ("gateway_tenant_requests_total", &[("tenant", "dev_1"), ("result", "failed")], 0.0),
        ("gateway_upstream_attempts_total", &[name], 3.0),
    ] {
        assert_eq!(gateway.metric(series, labels).await, value, "{series} {labels:?}");
    }
    // Named from the first scrape on, so that an alert on them is one on a series that exists.
    let text = gateway.metrics().await;
    for present in
        ["recorded_total", "entries", "evictions_total", "not_recorded_total{reason=", "refusals_total{"]
    {
        assert!(text.contains(&format!("gateway_negative_cache_{present}")), "{present}: {text}");
    }
    let digest = random_document(1, 4096);
    assert!(
        digest == DOC && !text.contains("a9244902") && !text.contains("tok-1") && !text.contains("/classify")
    );

    let answer = Client::connect(gateway.admin).await.request(Request::get("/metrics")).await;
    let kind = answer.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    assert!(answer.text().ends_with("# EOF\n"));
    settle(&gateway, 6).await;
}
