//! What operators can do.

#![expect(clippy::unwrap_used, reason = "test")]

use nevertwice_store::suite::samples;
use serde_json::json;

use crate::world::{Log, OPEN, START, World, document};

#[tokio::test]
async fn one_entry_is_forgotten_by_its_fingerprint() {
    let world = World::new(OPEN).await;
    let key = world.remember(1, |_| ()).await;
    world.remember(2, |_| ()).await;
    let target = format!("/admin/v1/refusals/{key}");
    world.send("DELETE", &format!("{target}?dry_run=1"), &[], "").await.problem(400, "BAD_REQUEST");
    assert_eq!(world.send("DELETE", &target, &[], "").await.ok(), json!({ "forgotten": 1 }));
    world.send("DELETE", &target, &[], "").await.problem(404, "NO_REFUSAL");
    world.get(&target).await.problem(404, "NO_REFUSAL");
    assert_eq!(world.store.entries().await.unwrap(), 1);
}

#[tokio::test]
async fn fields_are_anded_and_only_all_means_all() {
    let world = World::new(OPEN).await;
    for n in 0..5 {
        world.remember(n, |_| ()).await;
    }
    for n in 5..8 {
        world.remember(n, |e| e.upstream = samples::upstream("doc-classifier")).await;
    }
    world.remember(8, |e| e.status = samples::status(422)).await;
    world.clock.advance_ms(1000);
    world.remember(9, |e| e.upstream = samples::upstream("removed")).await;

    let forget = async |body| world.post("/admin/v1/refusals/forget", &body).await;
    for (body, part) in [
        (json!({}), "no field says what to forget"),
        (json!({ "upstreams": "ocr" }), "did you mean `upstream`?"),
        (json!({ "all": true, "upstream": "ocr" }), "stands alone"),
        (json!({ "upstream": "ocrr" }), "upstreams: "),
        (json!({ "status": 401 }), "it speaks of the credential"),
        (json!([]), "JSON object"),
    ] {
        let detail = forget(body.clone()).await.problem(400, "BAD_REQUEST");
        assert!(detail.contains(part), "{body}: {detail}");
    }
    assert_eq!(world.store.entries().await.unwrap(), 10);

    let forgotten = async |body| forget(body).await.ok()["forgotten"].as_u64().unwrap();
    assert_eq!(forgotten(json!({ "upstream": "doc-classifier", "status": 422 })).await, 0);
    assert_eq!(forgotten(json!({ "upstream": "ocr", "status": 422 })).await, 1);
    assert_eq!(forgotten(json!({ "document": document(0) })).await, 1);
    assert_eq!(forgotten(json!({ "fingerprint": samples::fingerprint(1) })).await, 1);
    assert_eq!(forgotten(json!({ "upstream": "ocr", "before": START })).await, 0);
    assert_eq!(forgotten(json!({ "upstream": "ocr", "before": START.plus_ms(1) })).await, 3);
    assert_eq!(forgotten(json!({ "upstream": "removed" })).await, 1);
    assert_eq!(world.store.entries().await.unwrap(), 3, "those of the other upstream are untouched");
    assert_eq!(forgotten(json!({ "all": true })).await, 3);
    assert!(world.get("/metrics").await.text().contains("gateway_negative_cache_entries 0"));
}

#[tokio::test]
async fn every_forget_leaves_an_audit_line() {
    let log = Log::listen();
    let world = World::new(OPEN).await;
    world.remember(1, |_| ()).await;
    world.post("/admin/v1/refusals/forget", &json!({ "upstream": "ocr", "status": 400 })).await.ok();
    world.send("POST", "/admin/v1/upstreams/ocr/recover", &[], "").await.ok();
    let lines = log.audit();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let forget = &lines[0];
    assert_eq!((&forget["who"], &forget["what"]), (&json!("loopback"), &json!("upstream=ocr status=400")));
    assert_eq!(forget["forgotten"], 1);
    assert_eq!(lines[1]["upstream"], "ocr");
}
