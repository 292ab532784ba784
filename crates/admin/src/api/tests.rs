//! The description for programs says exactly what the router does.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::body::Body;
use http::header::ALLOW;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use nevertwice_domain::clock::Millis;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use super::*;
use crate::access::Access;

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

fn api() -> TowerToHyperService<Router> {
    let version = Version {
        version: "0".into(),
        commit: "unknown".into(),
        built: Millis(0),
        config_digest: String::new(),
        started_at: Millis(0),
    };
    let (_, gateway) = watch::channel(None);
    let access = Access::new(None, IpAddr::from([127, 0, 0, 1]));
    let (imports, tasks) = (Arc::new(Semaphore::new(IMPORTS)), TaskTracker::new());
    TowerToHyperService::new(router(Arc::new(Shared {
        version,
        access,
        gateway,
        reload: None,
        imports,
        tasks,
    })))
}

async fn answer(api: &TowerToHyperService<Router>, method: &str, path: &str) -> Response {
    let path = path.replace("{fingerprint}", &"ab".repeat(32)).replace("{name}", "ocr");
    let path = path.replace("{id}", "018f0000-0000-7000-8000-000000000000");
    let request =
        Request::builder().method(method).uri(path).header("host", "localhost").body(Body::from("{}"));
    let mut request = request.unwrap_or_else(|e| unreachable!("{e}"));
    request.extensions_mut().insert(Peer(([127, 0, 0, 1], 1).into()));
    api.call(request).await.unwrap_or_else(|e| match e {})
}

fn described() -> Value {
    serde_json::from_str(OPENAPI).unwrap_or_else(|e| unreachable!("{e}"))
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let described = described();
    let paths: BTreeSet<&str> =
        described["paths"].as_object().into_iter().flatten().map(|(p, _)| p.as_str()).collect();
    let routed: BTreeSet<&str> = routes().iter().map(|(path, _)| *path).collect();
    assert_eq!(paths, routed);
}

#[tokio::test]
async fn every_described_operation_answers_as_described_and_no_other_method_does() {
    let (api, described) = (api(), described());
    for (path, item) in described["paths"].as_object().into_iter().flatten() {
        for method in METHODS {
            let response = answer(&api, method, path).await;
            let status = response.status();
            let operation = &item[method.to_lowercase()];
            if operation.is_null() {
                assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
                let allow = response.headers().get(ALLOW).and_then(|a| a.to_str().ok()).unwrap_or_default();
                for allowed in item.as_object().into_iter().flatten().map(|(m, _)| m.to_uppercase()) {
                    assert!(allow.split(',').any(|a| a == allowed), "{method} {path}: {allow}");
                }
            } else {
                assert!(operation["responses"].get(status.as_str()).is_some(), "{method} {path}: {status}");
            }
            if status != StatusCode::OK && path != "/readyz" {
                assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json", "{method} {path}");
            }
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        }
    }
}

#[test]
fn every_reference_of_the_description_leads_somewhere() {
    fn walk(whole: &Value, part: &Value) {
        if let Some(reference) = part.get("$ref").and_then(Value::as_str) {
            let pointer = reference.trim_start_matches('#');
            assert!(whole.pointer(pointer).is_some(), "{reference}");
        }
        match part {
            Value::Object(map) => map.values().for_each(|v| walk(whole, v)),
            Value::Array(all) => all.iter().for_each(|v| walk(whole, v)),
            _ => {}
        }
    }
    let described = described();
    walk(&described, &described);
}
