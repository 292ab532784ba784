//! Webhooks: the end of a job is told to the address that its owner named, signed, again if need be, and never to the inside of a
//! network.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nevertwice_testkit::{DOC, Gateway, Reply, Seen, Setup, Upstream, random_document};
use serde_json::Value;

use crate::bench::assert_own;
use crate::job_caller::{JOB, cancel, end, hand, show};
use crate::jobs::{accepted, id, refused};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

async fn with_webhooks(upstream: &Upstream, more: &str) -> Gateway {
    let block = format!("jobs:\n  webhooks:\n    secret: env:HOOK_SECRET\n{more}");
    let yaml = Gateway::simple_yaml(&upstream.url(), &[("TOP", &block)]);
    Setup::new(&yaml).env("HOOK_SECRET", SECRET).start().await
}

/// What a receiver does, as the specification tells it to.
fn verify(seen: &Seen) -> Value {
    let header = |name: &str| seen.header(name).unwrap_or_default();
    let key = STANDARD.decode(SECRET.trim_start_matches("whsec_")).unwrap_or_default();
    let signed =
        [header("webhook-id").as_bytes(), b".", header("webhook-timestamp").as_bytes(), b".", &seen.body]
            .concat();
    let signature =
        STANDARD.decode(header("webhook-signature").trim_start_matches("v1,")).unwrap_or_default();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    assert!(hmac::verify(&key, &signed, &signature).is_ok(), "{seen:?}");
    assert_eq!((seen.method.as_str(), header("content-type").as_str()), ("POST", "application/json"));
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let at: u64 = header("webhook-timestamp").parse().unwrap_or_default();
    assert!(now.abs_diff(at) < 60);
    serde_json::from_slice(&seen.body).unwrap_or_default()
}

#[tokio::test]
async fn the_end_of_a_job_is_told_signed_and_again_until_it_is_heard() {
    let (upstream, hook) = (Upstream::start().await, Upstream::start().await);
    let gateway = with_webhooks(&upstream, "    allow_private: true").await;
    upstream.always(accepted());
    hook.by(|_, n| match n {
        1 => Reply::status(500),
        2 => Reply::status(302).header("Location", "/elsewhere"),
        _ => Reply::status(204),
    });
    let url = format!("{}/hook?job=1", hook.url());
    let handed = hand(&gateway, JOB, &DOC).header("Webhook-Url", &url).send().await;
    assert_eq!(handed.status, 202, "{}", handed.text());
    let job = end(&gateway, &id(&handed)).await;
    hook.wait_complete(3).await;
    let mut ids = Vec::new();
    for seen in hook.requests() {
        assert_eq!(seen.target, "/hook?job=1");
        assert_eq!(verify(&seen), job);
        ids.push(seen.header("webhook-id"));
    }
    assert!(ids.iter().all(|known| known.as_deref() == job["id"].as_str()), "{ids:?}");
    gateway.wait_metric("gateway_webhooks_total", &[("result", "delivered")], 1.0).await;
    assert_eq!(gateway.metric("gateway_webhooks_total", &[("result", "retried")]).await, 2.0);
    // the address is nobody's business
    assert!(!show(&gateway, &id(&handed)).await.to_string().contains("hook"));
}

#[tokio::test]
async fn every_kind_of_end_is_told_once() {
    let (upstream, hook) = (Upstream::start().await, Upstream::start().await);
    let gateway = with_webhooks(&upstream, "    allow_private: true").await;
    let url = format!("{}/", hook.url());
    let hand = |document: &[u8]| hand(&gateway, JOB, document).header("Webhook-Url", &url);
    upstream.always(refused(400));
    let failed = id(&hand(&DOC).send().await);
    end(&gateway, &failed).await;
    hook.wait_complete(1).await;
    // born failed
    let born = id(&hand(&DOC).send().await);
    hook.wait_complete(2).await;
    upstream.always(Reply::stall());
    let given_up = id(&hand(&random_document(1, 500)).send().await);
    upstream.wait_calls(2).await;
    cancel(&gateway, &given_up).await;
    hook.wait_complete(3).await;
    let told: Vec<_> = hook
        .requests()
        .iter()
        .map(|seen| {
            let job = verify(seen);
            (
                job["id"].as_str().unwrap_or_default().to_owned(),
                job["status"].as_str().unwrap_or_default().to_owned(),
            )
        })
        .collect();
    let expected =
        [(failed, "failed".to_owned()), (born, "failed".to_owned()), (given_up, "cancelled".to_owned())];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn no_webhook_leads_into_the_network_of_the_gateway() {
    let (upstream, inside) = (Upstream::start().await, Upstream::start().await);
    let gateway = with_webhooks(&upstream, "").await;
    upstream.always(accepted());
    let port = inside.addr().port();
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://10.0.0.1/".to_owned(),
        "file:///etc/passwd".to_owned(),
        "not a url".to_owned(),
        format!("http://user:pw@127.0.0.1:{port}/"),
    ] {
        let answer = hand(&gateway, JOB, &DOC).header("Webhook-Url", &url).send().await;
        assert_own(&answer, 400, "WEBHOOK_REFUSED", &url);
    }
    assert_eq!(upstream.calls(), 0);
    // names are looked at when they are resolved
    let named = format!("http://localhost:{port}/");
    let answer = hand(&gateway, JOB, &DOC).header("Webhook-Url", &named).send().await;
    assert_eq!(end(&gateway, &id(&answer)).await["status"], "succeeded");
    gateway.wait_metric("gateway_webhooks_total", &[("result", "refused")], 1.0).await;
    assert_eq!(inside.connections(), 0);
}
