//! Before the gateway serves, while it does, and after.

use nevertwice_gateway::Phase;
use serde_json::json;

use crate::world::{OPEN, Plan, World};

#[tokio::test]
async fn it_answers_before_the_gateway_serves() {
    let world = World::new(Plan { started: false, ..OPEN }).await;
    assert_eq!(world.get("/healthz").await.ok(), json!({ "status": "ok" }));
    let ready = world.get("/readyz").await;
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("starting")));
    for path in ["/metrics", "/admin/v1/refusals", "/admin/v1/coverage", "/admin/v1/upstreams"] {
        world.get(path).await.problem(503, "STARTING");
    }
    let version = world.get("/admin/v1/version").await.ok();
    assert_eq!((version["version"].as_str(), version["commit"].as_str()), (Some("1.2.3"), Some("abc")));
    assert_eq!(version["started_at"], "2023-11-14T22:13:20.000Z");
    assert_eq!(version["config_digest"].as_str().map(str::len), Some(16));
}

#[tokio::test]
async fn readiness_follows_the_gateway() {
    let world = World::new(OPEN).await;
    assert_eq!(world.get("/readyz").await.ok(), json!({ "status": "ready", "store": "ok" }));
    let Some(gateway) = &world.gateway else { unreachable!() };
    gateway.drain().await;
    assert_eq!(gateway.phase(), Phase::Draining);
    let ready = world.get("/readyz").await;
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("draining")));
    assert_eq!(world.get("/healthz").await.status, 200);
    let addr = world.addr;
    world.admin.stop().await;
    assert!(tokio::net::TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn a_store_that_fails_makes_it_degraded_and_not_unready() {
    let world = World::new(OPEN).await;
    assert!(world.store.close().await.is_ok());
    assert_eq!(world.get("/readyz").await.ok(), json!({ "status": "ready", "store": "failing" }));
    world.get("/admin/v1/refusals").await.problem(503, "STORE_FAILED");
    world.post("/admin/v1/refusals/forget", &json!({ "all": true })).await.problem(503, "STORE_FAILED");
}

#[tokio::test]
async fn with_the_memory_off_there_is_nothing_to_list() {
    let world = World::new(Plan { memory: false, ..OPEN }).await;
    assert_eq!(world.get("/readyz").await.ok(), json!({ "status": "ready", "store": "off" }));
    world.get("/admin/v1/refusals").await.problem(409, "MEMORY_OFF");
    world.get("/admin/v1/unclassified").await.problem(409, "MEMORY_OFF");
    world.post("/admin/v1/refusals/forget", &json!({ "all": true })).await.problem(409, "MEMORY_OFF");
    world.send("POST", "/admin/v1/reload", &[], "").await.problem(409, "NO_FILE");
    world.send("POST", "/admin/v1/upstreams/ocr/recover", &[], "").await.problem(409, "MEMORY_OFF");
    let coverage = world.get("/admin/v1/coverage").await.ok();
    assert_eq!(coverage["enabled"], false);
    assert_eq!(coverage["routes"][0]["reason"], "the memory is off");
    assert!(!world.get("/metrics").await.text().contains("negative_cache"));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let world = World::new(OPEN).await;
    for path in ["/", "/admin", "/admin/v1/", "/admin/v1/refusal", "//admin/v1/version", "/readyz/"] {
        world.get(path).await.problem(404, "NO_PATH");
    }
    let answer = world.send("PUT", "/admin/v1/refusals", &[], "").await;
    answer.problem(405, "METHOD_NOT_ALLOWED");
    assert!(answer.head.contains("allow: get,head"), "{}", answer.head);
    world.get("/admin/v1/refusals/forget").await.problem(405, "METHOD_NOT_ALLOWED");
    let head = world.send("HEAD", "/admin/v1/version", &[], "").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[tokio::test]
async fn what_the_wire_brings_is_bounded() {
    let world = World::new(OPEN).await;
    let long = "x".repeat(70_000);
    let answer = world.send("POST", "/admin/v1/refusals/forget", &[], &long).await;
    answer.problem(413, "BODY_TOO_LARGE");
    let answer = world.get(&format!("/admin/v1/refusals?tenant={}", "x".repeat(30_000))).await;
    assert!(answer.problem(400, "BAD_REQUEST").len() < 300);
    assert!(world.raw(b"GET / HTTP/1.1\r\nno colon\r\n\r\n").await.status == 400);
}
