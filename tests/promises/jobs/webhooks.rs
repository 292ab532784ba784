//! Webhooks: the end of a job is told to the address that its owner named, signed, again if need be, and never to the inside of a
//! network.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::time::Duration;

use nevertwice_testkit::{DOC, Gateway, Redis, Reply, Seen, Setup, Upstream, random_document};
use serde_json::Value;

use crate::bench::assert_own;
use crate::caller::until;
use crate::job_caller::{JOB, cancel, end, hand, show};
use crate::jobs::{accepted, id, refused};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An end whose teller died comes again within 20 s.
const LATE: Duration = Duration::from_secs(60);

fn yaml(upstream: &Upstream, more: &str) -> String {
    let block = format!("jobs:\n  webhooks:\n    secret: env:HOOK_SECRET\n{more}");
    Gateway::simple_yaml(&upstream.url(), &[("TOP", &block)])
}

async fn with_webhooks(upstream: &Upstream, more: &str) -> Gateway {
    Setup::new(&yaml(upstream, more)).env("HOOK_SECRET", SECRET).start().await
}

/// One of a fleet.
async fn replica(upstream: &Upstream, redis: &Redis) -> Gateway {
    let (alone, yaml) = ("embedded:\n    path: \"@DIR@/data\"", yaml(upstream, "    allow_private: true"));
    assert!(yaml.contains(alone));
    let shared = format!("redis:\n    url: \"{}\"\n    read_ms: 2000\n    write_ms: 2000", redis.url());
    Setup::new(&yaml.replace(alone, &shared)).env("HOOK_SECRET", SECRET).start().await
}

async fn kill(gateway: &mut Gateway) {
    gateway.signal("KILL");
    gateway.wait_exit(Duration::from_secs(10)).await;
}

/// Waits until the receiver was called so often, and returns the calls.
async fn calls(hook: &Upstream, n: u64) -> Vec<Seen> {
    let enough = async || (hook.requests().len() as u64 >= n).then(|| hook.requests());
    until("calls of the webhook", LATE, enough).await
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

#[tokio::test]
async fn a_webhook_that_was_not_heard_is_called_again_after_a_kill() {
    // a receiver that refuses, and one that hangs
    for first in [Reply::status(500), Reply::stall()] {
        let (upstream, hook) = (Upstream::start().await, Upstream::start().await);
        let mut gateway = with_webhooks(&upstream, "    allow_private: true").await;
        upstream.always(accepted());
        hook.always(first);
        let job = id(&hand(&gateway, JOB, &DOC).header("Webhook-Url", hook.url()).send().await);
        let ended = end(&gateway, &job).await;
        let before = calls(&hook, 1).await;
        kill(&mut gateway).await;
        let in_vain = hook.requests().len() as u64;
        hook.always(Reply::status(204));
        gateway.restart().await;
        let all = calls(&hook, in_vain + 1).await;
        gateway.wait_metric("gateway_webhooks_total", &[("result", "delivered")], 1.0).await;
        for seen in before.iter().chain(&all) {
            assert_eq!(verify(seen), ended);
            assert_eq!(seen.header("webhook-id").as_deref(), Some(job.as_str()));
        }
    }
}

#[tokio::test]
async fn an_end_that_nobody_had_time_to_tell_is_told_after_the_next_start() {
    const JOBS: u64 = 40;
    let (upstream, hook) = (Upstream::start().await, Upstream::start().await);
    let mut gateway = with_webhooks(&upstream, "    allow_private: true").await;
    upstream.always(accepted());
    // four calls hang; all others wait for a place
    hook.always(Reply::stall());
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let post = hand(&gateway, JOB, &random_document(n, 300)).header("Webhook-Url", hook.url());
        jobs.push(id(&post.send().await));
    }
    for job in &jobs {
        end(&gateway, job).await;
    }
    calls(&hook, 4).await;
    kill(&mut gateway).await;
    hook.always(Reply::status(204));
    gateway.restart().await;
    let told = |hook: &Upstream| {
        let mut ids: Vec<_> = hook.requests().iter().filter_map(|seen| seen.header("webhook-id")).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let all = async || (told(&hook).len() as u64 == JOBS).then_some(());
    until("all to be told", LATE, all).await;
    let delivered = async || {
        let delivered = gateway.metric("gateway_webhooks_total", &[("result", "delivered")]).await;
        (delivered >= JOBS as f64).then_some(())
    };
    until("all to be heard", LATE, delivered).await;
    jobs.sort_unstable();
    assert_eq!(told(&hook), jobs);
    assert_eq!(gateway.metric("gateway_webhooks_total", &[("result", "delivered")]).await, JOBS as f64);
}

#[tokio::test]
async fn another_replica_tells_what_a_dead_one_did_not() {
    let (upstream, hook, redis) = (Upstream::start().await, Upstream::start().await, Redis::start());
    upstream.always(accepted());
    hook.always(Reply::stall());
    let mut a = replica(&upstream, &redis).await;
    let job = id(&hand(&a, JOB, &DOC).header("Webhook-Url", hook.url()).send().await);
    let ended = end(&a, &job).await;
    calls(&hook, 1).await;
    let b = replica(&upstream, &redis).await;
    kill(&mut a).await;
    hook.always(Reply::status(204));
    let all = calls(&hook, 2).await;
    b.wait_metric("gateway_webhooks_total", &[("result", "delivered")], 1.0).await;
    assert_eq!(all.len(), 2);
    for seen in &all {
        assert_eq!(verify(seen), ended);
        assert_eq!(seen.header("webhook-id").as_deref(), Some(job.as_str()));
    }
    let over = async || (redis.ask(&["exists", "{nevertwice}:jobs:untold"]) == "0").then_some(());
    until("nothing to be left to tell", LATE, over).await;
}

#[tokio::test]
async fn two_replicas_tell_each_end_once() {
    const JOBS: u64 = 60;
    let (upstream, hook, redis) = (Upstream::start().await, Upstream::start().await, Redis::start());
    upstream.always(accepted());
    hook.always(Reply::status(204));
    let (a, b) = (replica(&upstream, &redis).await, replica(&upstream, &redis).await);
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let at = if n % 2 == 0 { &a } else { &b };
        jobs.push(id(&hand(at, JOB, &random_document(n, 300))
            .header("Webhook-Url", hook.url())
            .send()
            .await));
    }
    let nothing_left = async || {
        for job in &jobs {
            end(&a, job).await;
        }
        (redis.ask(&["exists", "{nevertwice}:jobs:untold"]) == "0").then_some(())
    };
    until("all to be told", LATE, nothing_left).await;
    let mut told: Vec<_> = hook.requests().iter().filter_map(|seen| seen.header("webhook-id")).collect();
    told.sort_unstable();
    jobs.sort_unstable();
    assert_eq!(told, jobs);
}

#[tokio::test]
async fn a_receiver_that_always_fails_is_called_eight_times() {
    let (upstream, hook, redis) = (Upstream::start().await, Upstream::start().await, Redis::start());
    upstream.always(accepted());
    hook.always(Reply::status(503));
    let (a, _b) = (replica(&upstream, &redis).await, replica(&upstream, &redis).await);
    let job = id(&hand(&a, JOB, &DOC).header("Webhook-Url", hook.url()).send().await);
    end(&a, &job).await;
    calls(&hook, 1).await;
    // its time comes at once, instead of after two minutes in all
    let given_up = async || {
        let tenant = redis.ask(&["zrange", "{nevertwice}:jobs:untold", "0", "0"]);
        redis.ask(&["zadd", &format!("{{nevertwice}}:ju:{tenant}"), "xx", "0", &job]);
        redis.ask(&["zadd", "{nevertwice}:jobs:untold", "xx", "0", &tenant]);
        tenant.is_empty().then_some(())
    };
    until("the webhook to be given up", LATE, given_up).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(hook.calls(), 8);
    assert!(hook.requests().iter().all(|seen| seen.header("webhook-id").as_deref() == Some(job.as_str())));
}

#[tokio::test]
async fn a_job_that_is_tried_again_tells_its_other_end() {
    let (upstream, hook) = (Upstream::start().await, Upstream::start().await);
    let gateway = with_webhooks(&upstream, "    allow_private: true\n  max_attempts: 1").await;
    hook.always(Reply::status(204));
    upstream.by(|_, n| if n == 1 { Reply::status(503) } else { accepted() });
    let job = id(&hand(&gateway, JOB, &DOC).header("Webhook-Url", hook.url()).send().await);
    end(&gateway, &job).await;
    let first = calls(&hook, 1).await;
    assert_eq!(verify(&first[0])["status"], "failed");
    let (status, _) = gateway.admin_post(&format!("/admin/v1/jobs/{job}/retry"), &Value::Null).await;
    assert_eq!(status, 200);
    let second = calls(&hook, 2).await;
    assert_eq!(verify(&second[1])["status"], "succeeded");
    // a receiver that knows the first must not take the second for it
    let ids: Vec<_> = second.iter().filter_map(|seen| seen.header("webhook-id")).collect();
    assert_eq!(ids, [job.clone(), format!("{job}-2")]);
}
