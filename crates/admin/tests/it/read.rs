//! What operators see.

#![expect(clippy::unwrap_used, reason = "test")]

use std::collections::BTreeSet;

use bytes::Bytes;
use nevertwice_store::suite::samples;
use serde_json::{Value, json};

use crate::world::{OPEN, START, World, document};

#[tokio::test]
async fn an_item_tells_all_about_a_refusal() {
    let world = World::new(OPEN).await;
    let key = world.remember(1, |_| ()).await;
    world.clock.advance_ms(1500);
    for tenant in ["b", "c", "b"] {
        world.store.count_replay(&key, &samples::tenant(tenant), START.plus_ms(1500));
    }
    let list = world.get("/admin/v1/refusals").await.ok();
    let expected = json!({
        "fingerprint": key, "document_sha256": document(1), "documents": 1, "document_bytes": 1001,
        "upstream": "ocr", "status": 400, "rule": "status", "suspect": false, "reduced": false, "replays": 3,
        "first_refused_at": "2023-11-14T22:13:20.000Z",
        "first_replayed_at": "2023-11-14T22:13:21.500Z",
        "last_replayed_at": "2023-11-14T22:13:21.500Z",
        "expires_at": "2023-11-14T23:13:20.000Z", "ttl_s": 3600,
        "refused_tenant": "a", "tenants": ["b", "c"],
        "content_type": "application/json", "body_bytes": 32,
    });
    assert_eq!(list, json!({ "items": [expected], "next_cursor": null }));
    let mut shown = world.get(&format!("/admin/v1/refusals/{key}")).await.ok();
    assert_eq!(shown["body_text"], "{\"error\":\"document 1 is broken\"}");
    assert_eq!(shown["content_language"], "en");
    assert_eq!(shown["scope"], "fleet");
    for (name, value) in expected.as_object().into_iter().flatten() {
        assert_eq!(shown[name].take(), *value, "{name}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_told_as_they_are() {
    let world = World::new(OPEN).await;
    let key = world
        .remember(1, |entry| {
            entry.body = Bytes::from_static(&[0x66, 0x6f, 0x72, 0x6d, 0xe9, 0x00, 0xff, 0xfe, 0x0a]);
            entry.fields.content_type = Some(Bytes::from_static(b"text/plain; charset=\xe9"));
        })
        .await;
    let shown = world.get(&format!("/admin/v1/refusals/{key}")).await.ok();
    assert_eq!(shown["body_base64"], "Zm9ybekA//4K");
    assert_eq!(shown.get("body_text"), None);
    assert_eq!(shown["content_type"], "text/plain; charset=\\xe9");
    assert_eq!(shown["body_bytes"], 9);
}

#[tokio::test]
async fn pages_follow_each_other_without_gaps_or_doubles() {
    let world = World::new(OPEN).await;
    for n in 0..25 {
        let key = world.remember(n, |_| ()).await;
        for _ in 0..n % 4 {
            world.store.count_replay(&key, &samples::tenant("b"), START);
        }
    }
    for sort in ["replays", "recent"] {
        let (mut seen, mut replays, mut cursor) = (BTreeSet::new(), Vec::new(), String::new());
        loop {
            let page =
                world.get(&format!("/admin/v1/refusals?sort={sort}&limit=10&cursor={cursor}")).await.ok();
            for item in page["items"].as_array().unwrap() {
                assert!(seen.insert(item["fingerprint"].to_string()));
                replays.push(item["replays"].as_u64());
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(seen.len(), 25);
        assert!(sort == "recent" || replays.is_sorted_by(|a, b| a >= b), "{replays:?}");
    }
    let first = world.get("/admin/v1/refusals?limit=10").await.ok();
    let target = format!("/admin/v1/refusals?sort=recent&cursor={}", first["next_cursor"].as_str().unwrap());
    assert!(world.get(&target).await.problem(400, "BAD_REQUEST").contains("another order"));
}

#[tokio::test]
async fn filters_narrow_and_mistakes_are_named() {
    let world = World::new(OPEN).await;
    world.remember(1, |_| ()).await;
    world.remember(2, |e| e.upstream = samples::upstream("doc-classifier")).await;
    world.remember(3, |e| e.status = samples::status(422)).await;
    world.remember(4, |e| e.refused_tenant = samples::tenant("z")).await;
    world.remember(5, |e| e.upstream = samples::upstream("removed")).await;
    world.remember(6, |e| e.status = samples::status(200)).await;
    let count = async |query: &str| {
        let list = world.get(&format!("/admin/v1/refusals?{query}")).await.ok();
        list["items"].as_array().map(Vec::len).unwrap()
    };
    assert_eq!(count("").await, 6);
    assert_eq!(count("upstream=&status=&document=&tenant=&sort=&limit=&cursor=").await, 6);
    assert_eq!(count("upstream=ocr").await, 4);
    assert_eq!(count("upstream=removed").await, 1);
    assert_eq!(count("upstream=ocr&status=422").await, 1);
    assert_eq!(count("status=415").await, 0);
    assert_eq!(count("status=200").await, 1);
    assert_eq!(count("tenant=z").await, 1);
    assert_eq!(count(&format!("document={}", document(2).to_string().to_uppercase())).await, 1);
    for (query, part) in [
        ("upstraem=ocr", "unknown parameter `upstraem`; did you mean `upstream`?"),
        ("colour=red", "parameters here: upstream, status"),
        ("upstream=ocrr", "there is no upstream `ocrr`; upstreams: "),
        ("upstream=a%20b", "the parameter `upstream`"),
        ("status=404", "never remembered"),
        ("status=4xx", "the parameter `status`: has to be a number"),
        ("document=abc", "the parameter `document`: expected 64 hex digits"),
        ("tenant=%FF", "the parameter `tenant`"),
        ("sort=replay", "has to be `replays` or `recent`"),
        ("limit=0", "from 1 to 1000"),
        ("limit=1001", "from 1 to 1000"),
        ("limit=-1", "from 1 to 1000"),
        ("limit=1&limit=2", "stands twice"),
        ("cursor=nonsense", "`next_cursor` of the page before"),
    ] {
        let detail = world.get(&format!("/admin/v1/refusals?{query}")).await.problem(400, "BAD_REQUEST");
        assert!(detail.contains(part), "{query}: {detail}");
    }
    assert_eq!(world.get("/admin/v1/unclassified").await.ok(), json!({ "items": [], "dropped": 0 }));
    world.get("/admin/v1/unclassified?all=yes").await.problem(400, "BAD_REQUEST");
    world.get("/admin/v1/refusals/abc").await.problem(400, "BAD_REQUEST");
    world.get(&format!("/admin/v1/refusals/{}", "0".repeat(64))).await.problem(404, "NO_REFUSAL");
    world.get("/admin/v1/version?x=1").await.problem(400, "BAD_REQUEST");
}

#[tokio::test]
async fn the_gateway_is_shown() {
    let world = World::new(OPEN).await;
    let coverage = world.get("/admin/v1/coverage").await.ok();
    assert_eq!(coverage["enabled"], true);
    let routes = coverage["routes"].as_array().unwrap();
    let guarded = routes.iter().find(|r| r["path"] == "/ocr/read").unwrap();
    assert_eq!((&guarded["guarded"], &guarded["mode"]), (&json!(true), &json!("enforce")));
    let upstreams = world.get("/admin/v1/upstreams").await.ok();
    let ocr = upstreams["items"].as_array().unwrap().iter().find(|u| u["name"] == "ocr").unwrap();
    assert_eq!((&ocr["guard"]["tripped_at"], &ocr["loop_breaker"]), (&Value::Null, &Value::Null));
    let metrics = world.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(metrics.head.contains(kind), "{}", metrics.head);
    assert!(metrics.text().ends_with("# EOF\n"));
    assert_eq!(
        world.send("POST", "/admin/v1/upstreams/ocr/recover", &[], "").await.ok(),
        json!({ "recovered": false })
    );
    let detail =
        world.send("POST", "/admin/v1/upstreams/nope/recover", &[], "").await.problem(404, "NO_UPSTREAM");
    assert!(detail.contains("ocr"), "{detail}");
}

/// Whether the names in `value` are those that `schema` has.
fn assert_described(whole: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => whole.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema.get("oneOf").and_then(|all| all.get(0)).unwrap_or(schema),
    };
    let parts = schema.get("allOf").and_then(Value::as_array);
    let parts: Vec<&Value> = parts.map_or_else(|| vec![schema], |all| all.iter().collect());
    let parts: Vec<&Value> = parts
        .into_iter()
        .map(|p| {
            p.get("$ref")
                .and_then(Value::as_str)
                .map_or(p, |r| whole.pointer(r.trim_start_matches('#')).unwrap())
        })
        .collect();
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let described = parts.iter().find_map(|p| p["properties"].get(name));
                let described = described.unwrap_or_else(|| unreachable!("{at}.{name} is not described"));
                assert_described(whole, described, field, &format!("{at}.{name}"));
            }
            for required in parts.iter().filter_map(|p| p["required"].as_array()).flatten() {
                assert!(fields.contains_key(required.as_str().unwrap()), "{at} lacks {required}");
            }
        }
        Value::Array(items) => {
            items.iter().for_each(|item| assert_described(whole, &schema["items"], item, &format!("{at}[]")));
        }
        _ => {}
    }
    if schema.get("$ref").is_none() && schema.get("oneOf").is_none() && parts.len() == 1 {
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => return,
        };
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        assert!(
            kinds.contains(&kind)
                || kind == "null" && [".guard", ".loop_breaker"].iter().any(|end| at.ends_with(end)),
            "{at}: {kind} is not in {kinds:?}"
        );
    }
}

#[tokio::test]
async fn answers_have_the_fields_that_the_description_says() {
    let world = World::new(OPEN).await;
    let key = world.remember(1, |_| ()).await;
    let whole = world.get("/admin/v1/openapi.json").await.ok();
    let item = format!("/admin/v1/refusals/{key}");
    for (path, template) in [
        ("/healthz", "/healthz"),
        ("/readyz", "/readyz"),
        ("/admin/v1/version", "/admin/v1/version"),
        ("/admin/v1/unclassified?all=true", "/admin/v1/unclassified"),
        ("/admin/v1/coverage", "/admin/v1/coverage"),
        ("/admin/v1/upstreams", "/admin/v1/upstreams"),
        ("/admin/v1/refusals", "/admin/v1/refusals"),
        (&item, "/admin/v1/refusals/{fingerprint}"),
    ] {
        let schema =
            &whole["paths"][template]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{template}");
        assert_described(&whole, schema, &world.get(path).await.ok(), template);
    }
}
