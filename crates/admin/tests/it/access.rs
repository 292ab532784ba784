//! Who gets in.

#![expect(clippy::unwrap_used, reason = "test")]

use nevertwice_admin::Version;
use nevertwice_config::checked::Admin;
use nevertwice_domain::clock::Millis;
use serde_json::json;
use tokio::sync::watch;

use crate::world::{OPEN, Plan, TOKEN, World};

const CLOSED: Plan = Plan { token: true, ..OPEN };

#[tokio::test]
async fn a_token_opens_and_everything_else_gets_the_same_short_401() {
    let world = World::new(CLOSED).await;
    let key = world.remember(1, |_| ()).await;
    let bearer = format!("Bearer {TOKEN}");
    world.send("GET", "/admin/v1/refusals", &[("Authorization", &bearer)], "").await.ok();

    let huge = format!("Bearer {}", "x".repeat(20_000));
    let with_token = format!("/admin/v1/refusals?token={TOKEN}");
    let mut answers = Vec::new();
    let basic = format!("Basic {TOKEN}");
    for headers in [
        vec![],
        vec![("Authorization", "Bearer ")],
        vec![("Authorization", "Bearer wrong")],
        vec![("Authorization", basic.as_str())],
        vec![("Authorization", huge.as_str())],
        vec![("X-Api-Key", TOKEN)],
        vec![("Host", "localhost"), ("Origin", "http://evil.test")],
    ] {
        answers.push(world.send("GET", "/admin/v1/refusals", &headers, "").await);
    }
    answers.push(world.get(&with_token).await);
    for answer in &answers {
        answer.problem(401, "UNAUTHENTICATED");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
        assert_eq!(answer.body, answers[0].body, "no oracle");
    }
    let target = format!("/admin/v1/refusals/{key}");
    assert!([401, 429].contains(&world.send("DELETE", &target, &[], "").await.status));
    assert_eq!(world.store.entries().await.unwrap(), 1);
    // probes and scrapers have none
    for open in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(world.send("GET", open, &[("Host", "gateway.internal")], "").await.status, 200, "{open}");
    }
}

#[tokio::test]
async fn failed_attempts_are_limited_and_the_operator_still_gets_in() {
    let world = World::new(CLOSED).await;
    let mut limited = 0;
    for _ in 0..300 {
        let answer = world.send("GET", "/admin/v1/version", &[("Authorization", "Bearer x")], "").await;
        if answer.status == 429 {
            answer.problem(429, "TOO_MANY_FAILURES");
            limited += 1;
        }
    }
    assert!(limited > 0);
    let bearer = format!("bearer {TOKEN}");
    world.send("GET", "/admin/v1/version", &[("authorization", &bearer)], "").await.ok();
}

#[tokio::test]
async fn without_a_token_web_pages_and_foreign_names_are_refused() {
    let world = World::new(OPEN).await;
    world.remember(1, |_| ()).await;
    let all = json!({ "all": true }).to_string();
    for headers in [
        vec![("Origin", "http://evil.test")],
        vec![("Origin", "null")],
        vec![("Host", "evil.test")],
        vec![("Host", "evil.test:9090"), ("Content-Type", "text/plain")],
        vec![("Host", "localhost.evil.test")],
    ] {
        let answer = world.send("POST", "/admin/v1/refusals/forget", &headers, &all).await;
        answer.problem(403, "FORBIDDEN_ORIGIN");
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
    }
    let preflight = [("Origin", "http://evil.test"), ("Access-Control-Request-Method", "POST")];
    let answer = world.send("OPTIONS", "/admin/v1/refusals/forget", &preflight, "").await;
    answer.problem(403, "FORBIDDEN_ORIGIN");
    assert_eq!(world.store.entries().await.unwrap(), 1);
    let own = world.addr.to_string();
    for host in ["localhost", "127.0.0.1:9090", own.as_str(), "[::1]:9090"] {
        world.send("GET", "/admin/v1/refusals", &[("Host", host)], "").await.ok();
    }
}

#[tokio::test]
async fn an_open_listener_on_the_network_does_not_start() {
    let version = Version {
        version: String::new(),
        commit: String::new(),
        built: Millis(0),
        config_digest: String::new(),
        started_at: Millis(0),
    };
    let start = async |listen: &str, token: Option<&str>| {
        let token = token.map(|t| t.as_bytes().to_vec().into_boxed_slice().into());
        let admin = Admin { listen: listen.parse().unwrap(), token };
        nevertwice_admin::start(admin, version.clone(), watch::channel(None).1, None).await
    };
    assert!(start("0.0.0.0:0", None).await.is_err());
    assert!(start("[::]:0", None).await.is_err());
    assert!(start("127.0.0.1:0", Some("")).await.is_err());
    assert!(start("127.0.0.1:0", Some("  ")).await.is_err());
    assert!(start("0.0.0.0:0", Some("token")).await.is_ok());
    assert!(start("127.0.0.1:0", None).await.is_ok());
}
